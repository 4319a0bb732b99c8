/* The engine carries out the chunk manager's commands in the manager's order, without making a thread wait
 * longer than the data requires.
 *
 * In each round it polls the open commands, judges the norm if it has arrived, and asks the manager for more
 * commands. Its own thread runs the rounds, and between them sleeps in the device's park() until
 * tide_engine_ring or the device wakes it. On a device that is not asynchronous (null) the caller runs a
 * round wherever he would otherwise wait.
 *
 * The engine asks the manager for a command only while both link streams have space for it, and starts a task
 * only while the task's stream has space, because it holds the lock and must not sleep until a stream has
 * space. After a failure it asks for no more commands; giving the step up ends the open ones.
 *
 * Owns the manager, the open commands, the thread, the effects of the norm's verdicts (updates released or
 * dropped, the count of updates, the poisoned pool), and giving up. All [lock], except the manager's
 * gradients: they change only in the caller's calls, so he may read them without the lock. Calls commands,
 * norm, running_tasks, link, telemetry, order and monitor. Functions on the caller's thread call the engine;
 * they call the objects that the engine uses only to enqueue the caller's own work or for queries.
 */
#ifndef TIDE_POOL_ENGINE_H
#define TIDE_POOL_ENGINE_H

#include "src/pool/commands.h"

enum { TIDE_OP_ENDS_MAX = 256 }; /* the last ops, whose ends the engine tracks; older ops count as finished */

typedef struct tide_op_ends {
    uint64_t count;                     /* ops ended since create, as the manager counts them */
    uint64_t passed;                    /* how many of them the engine has seen end on the compute stream */
    uint64_t numbers[TIDE_OP_ENDS_MAX]; /* a ring: each op's last submission on the compute stream */
} tide_op_ends;

typedef struct tide_give_up {
    bool asked;    /* the caller sets it; the engine clears it when it has given the step up */
    bool poisoned; /* the engine's answer: updates had begun, params are undefined */
    bool gave_up;  /* the engine's answer: the training step is undone */
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
    uint64_t poisonings; /* how often the pool was poisoned since create */
    uint64_t updates;    /* number of updates, one for each step whose norm was finite */
    bool is_counted;     /* `updates` counts the step that ended last */
} tide_engine;

typedef bool (*tide_engine_ready)(const tide_engine *engine);

/* --- [lock] --- */

/* One round: poll the open commands, then issue new ones. True if any command went on. May release the lock
 * for a while. */
bool tide_engine_round(tide_engine *engine);
/* Call when the engine may have something to do: wakes its thread or, if it has none, runs a round here.
 * `held_up`: the time that this round maps or unmaps counts as a stall. */
void tide_engine_ring(tide_engine *engine, bool held_up);
/* Sleep until `ready` or until the pool has failed; returns the failure. */
tide_status tide_engine_wait(tide_engine *engine, tide_engine_ready ready);
/* tide_engine_wait, with the device's idle time counted as a stall; its cause is the reason of the wait. */
tide_status tide_engine_wait_held(tide_engine *engine, tide_engine_ready ready);
/* The caller begins to wait: until tide_stalls_release the device's idle time counts as a stall. */
void tide_engine_hold(tide_engine *engine);

/* Conditions for tide_engine_wait: */
bool tide_engine_norm_known(const tide_engine *engine);    /* no norm is awaited */
bool tide_engine_updates_done(const tide_engine *engine);  /* no update of the last step is open */
bool tide_engine_updates_ended(const tide_engine *engine); /* all have ended, on the device, too */
/* Wait until the chunks that the open op or slice requested are ready; the wait counts as a stall. */
tide_status tide_engine_wait_request(tide_engine *engine);
/* Wait until the last step's norm is known and its updates are done. */
tide_status tide_engine_settle(tide_engine *engine);

/* The pool's failure, TIDE_OK if none. Asks the device first: a failure of the device becomes the pool's. */
tide_status tide_engine_failure(tide_engine *engine);
/* Fix the options, factor and number of the updates of the last step begun. All updates of the step before
 * must have left the open commands. */
void tide_engine_set_terms(tide_engine *engine, const tide_step_options *step, float gradient_scale);
/* Have the engine carry out the request in the host tier, and wait until it is done. The caller has already
 * asked the manager for the request's chunks. The request may be on the caller's stack. Returns the pool's
 * failure, if any; then the caller must give the step up, which ends the request. */
tide_status tide_engine_access(tide_engine *engine, tide_access_request *request);
/* The caller has set all params anew: the pool is no longer poisoned. */
void tide_engine_recovered(tide_engine *engine);
/* The open op has ended; its work ends with the last submission recorded on the compute stream. */
static inline void tide_engine_op_ended(tide_engine *engine)
{
    assert(tide_monitor_is_held(engine->monitor));
    engine->ends.numbers[++engine->ends.count % TIDE_OP_ENDS_MAX] =
        engine->order->recorded[TIDE_STREAM_COMPUTE];
}
/* Give up the open step and every request: wait for running work, clear the failure if the device can go on,
 * and correct the pool's counts. OK if the engine can work again: then either the pool is poisoned, or the
 * training step given up, if any, is undone, and restores of its params may still be running. */
tide_status tide_engine_give_up(tide_engine *engine);
bool tide_engine_is_valid(const tide_engine *engine);

/* --- thread.c, without the lock --- */

/* Start the engine's thread; manager, layout and device must be made. NO_MEMORY if the thread cannot be
 * started. */
tide_status tide_engine_start(tide_engine *engine);
void tide_engine_stop(tide_engine *engine); /* may be called without a start */

#endif
