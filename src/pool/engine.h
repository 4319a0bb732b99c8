/* The engine carries out the chunk manager's decisions, in the manager's order, and makes no thread wait that
 * need not.
 *
 * It polls the open commands, judges the norm when it has arrived, and asks the manager for more commands. It
 * has a thread of its own, which sleeps in the device's park() until somebody rings. On a device that is not
 * asynchronous (null) the caller runs the engine's rounds wherever he would wait.
 *
 * The engine asks the manager for a command only while both link streams have space for it, and starts a task
 * only while the task's stream has: it holds the lock and never sleeps for space. After a failure it asks for
 * no more commands; giving the step up ends the open ones.
 *
 * Owns the manager, the open commands, the thread, the effects of the norm's verdicts (updates released or
 * dropped, the count of updates, the poisoned pool), and giving up. All [lock], but the manager's gradients:
 * they change only in the caller's calls, so he may read them without the lock. Calls commands, norm,
 * running_tasks, link, telemetry, order and monitor. The caller's side calls the engine, and those below it
 * only to enqueue the caller's own work or to ask.
 */
#ifndef TIDE_POOL_ENGINE_H
#define TIDE_POOL_ENGINE_H

#include "src/pool/commands.h"

enum { TIDE_OP_ENDS_MAX = 256 }; /* the last ops that the engine follows; older ones count as finished */

typedef struct tide_op_ends {
    uint64_t count;                     /* ops ended since create, as the manager counts them */
    uint64_t passed;                    /* of those, ops that the engine has seen end on the compute stream */
    uint64_t numbers[TIDE_OP_ENDS_MAX]; /* a ring: the last submission of the compute stream of each op */
} tide_op_ends;

typedef struct tide_give_up {
    bool asked;    /* the engine gives the step up and answers by clearing it */
    bool poisoned; /* its answer: updates had begun, params are undefined */
    bool gave_up;  /* its answer: a training step is as if it had not begun */
} tide_give_up;

typedef struct tide_engine {
    const tide_pool_context *context;
    tide_monitor *monitor;
    tide_order *order;
    tide_telemetry *telemetry;
    tide_link *link;
    tide_running_tasks *running_tasks;
    tide_norm *norm;
    tide_manager *manager;
    tide_commands commands;
    pthread_t thread;
    bool started;
    bool stopping;
    tide_give_up abort;
    tide_op_ends ends;
    bool poisoned;       /* params are undefined until the caller sets all of them anew */
    uint64_t poisonings; /* so far */
    uint64_t updates;    /* number of updates, one for each step whose norm was finite */
    bool is_counted;     /* the step that ended last is one of them */
} tide_engine;

typedef bool (*tide_engine_ready)(const tide_engine *engine);

/* --- [lock] --- */

/* One round: poll the open commands, then issue new ones. True if something moved. May release the lock for a
 * while. */
bool tide_engine_round(tide_engine *engine);
/* The engine may have something to do: wake its thread, or run it here where it has none. `held_up`: mappings
 * that are made here count as a stall of the caller's. */
void tide_engine_ring(tide_engine *engine, bool held_up);
/* Sleep until `ready` or until the pool has failed; returns the failure. */
tide_status tide_engine_wait(tide_engine *engine, tide_engine_ready ready);
/* tide_engine_wait, with the device's idle time counted as a stall of whatever the caller waits for. */
tide_status tide_engine_wait_held(tide_engine *engine, tide_engine_ready ready);
/* The caller begins to wait; tide_stalls_release ends that. */
void tide_engine_hold(tide_engine *engine);

/* Conditions for tide_engine_wait: */
bool tide_engine_norm_known(const tide_engine *engine);    /* no norm is awaited */
bool tide_engine_updates_done(const tide_engine *engine);  /* no update of the last step is open */
bool tide_engine_updates_ended(const tide_engine *engine); /* none is open or runs, on the device either */
/* Wait until the open op's chunks are there; the wait counts as a stall. */
tide_status tide_engine_wait_request(tide_engine *engine);
/* Wait until the last step's norm is known and its updates are done. */
tide_status tide_engine_settle(tide_engine *engine);

/* The pool's failure. Asks the device for its own first and keeps that as the pool's. */
tide_status tide_engine_failure(tide_engine *engine);
/* Fix the terms of the updates of the last step begun; no update of the step before is open any more. */
void tide_engine_set_terms(tide_engine *engine, const tide_step_options *step, float gradient_scale);
/* Have the engine carry out the request, for whose chunks the caller has asked the manager, in the host tier.
 * The request may be on the caller's stack. Returns the pool's failure; then the caller must give the step
 * up, which ends the request. */
tide_status tide_engine_access(tide_engine *engine, tide_access_request *request);
/* The caller has set all params anew: the pool is no longer poisoned. */
void tide_engine_recovered(tide_engine *engine);
/* The open op has ended with the last recorded submission of the compute stream. */
static inline void tide_engine_op_ended(tide_engine *engine)
{
    assert(tide_monitor_is_held(engine->monitor));
    engine->ends.numbers[++engine->ends.count % TIDE_OP_ENDS_MAX] =
        engine->order->recorded[TIDE_STREAM_COMPUTE];
}
/* Give up the open step and every request: wait for running work, clear the failure if the device can go on,
 * and correct the pool's counts. OK if the engine can work again: then either the pool is poisoned, or the
 * training step given up, if any, is as if it had not begun, with its restores under way. */
tide_status tide_engine_give_up(tide_engine *engine);
bool tide_engine_is_valid(const tide_engine *engine);

/* --- thread.c, without the lock --- */

/* Manager, layout and device must be there. NO_MEMORY if the thread cannot be started. */
tide_status tide_engine_start(tide_engine *engine);
void tide_engine_stop(tide_engine *engine); /* not started: allowed */

#endif
