/* The engine: executes what the chunk manager decides, in its order, without making anybody wait who need not.
 *
 * It polls what is open, judges the norm when it has come, and asks the manager for more: on a thread of its own, which sleeps
 * in the device's park() and is rung awake; on a device that is not asynchronous (null) the caller runs its rounds wherever he
 * would wait.
 *
 * No command is asked for while a way of the link has no room for it, and no task is started while its stream has none: the
 * engine holds the lock and never sleeps for room. A failure stops it from asking for more; what is open is brought to its end
 * when the step is given up.
 *
 * Owns the manager, the open commands, the thread, what the norm's verdicts come to (updates let go or dropped, the count of
 * updates, the poisoned pool), and giving up. All [lock], but the manager's gradients, which change in the caller's calls alone: he
 * may read them without. Calls commands, norm, running_tasks, link, telemetry, order, monitor: the caller's side calls the engine, and of
 * those below only what enqueues his own work or asks.
 */
#ifndef TIDE_POOL_ENGINE_H
#define TIDE_POOL_ENGINE_H

#include "src/pool/commands.h"

enum {
    TIDE_OP_ENDS_MAX = 256
}; /* ops that the caller is ahead of the device; older ones count as the oldest */

typedef struct tide_op_ends {
    uint64_t count;                     /* of ops since seal, as the manager counts them */
    uint64_t passed;                    /* of those, seen to be over on the compute stream */
    uint64_t numbers[TIDE_OP_ENDS_MAX]; /* a ring: their last pieces of the compute stream */
} tide_op_ends;

typedef struct tide_give_up {
    bool asked;    /* the engine gives the step up and answers by clearing it */
    bool poisoned; /* its answer: updates had begun, params are undefined */
    bool gave_up;  /* its answer: a training step is as if it had not begun */
} tide_give_up;

typedef struct tide_engine {
    const tide_sealed_context *context;
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
    bool poisoned;       /* params are undefined until all is set anew */
    uint64_t poisonings; /* so far */
    uint64_t updates;    /* of steps whose norms are known */
    bool is_counted;     /* the step that ended last is one of them */
} tide_engine;

typedef bool (*tide_engine_ready)(const tide_engine *engine);

/* --- [lock] --- */

/* One round: poll what is open, hand out what is next. True if something moved. May drop the lock and take it again. */
bool tide_engine_round(tide_engine *engine);
/* There may be something to do: wake the engine, or run it here where it has no thread. `held_up`: mappings, made here, take
 * the caller's time in a step. */
void tide_engine_ring(tide_engine *engine, bool held_up);
/* Until it is so, or a failure. */
tide_status tide_engine_wait(tide_engine *engine, tide_engine_ready ready);
/* Likewise; idle time is that of what holds the caller up. */
tide_status tide_engine_wait_held(tide_engine *engine, tide_engine_ready ready);
/* Something holds the caller up from here to tide_stalls_release. */
void tide_engine_hold(tide_engine *engine);

/* What can be waited for: */
bool tide_engine_norm_known(const tide_engine *engine);   /* no norm is on its way */
bool tide_engine_updates_done(const tide_engine *engine); /* no update of the last step is open */
bool tide_engine_updates_ended(
    const tide_engine *engine); /* all are over, those enqueued on the device included */
/* Wait, held up, for the open op's chunks to be there. */
tide_status tide_engine_wait_request(tide_engine *engine);
/* Wait until the last step's norm is known and its updates are done. */
tide_status tide_engine_settle(tide_engine *engine);

/* The sticky failure, one included that the device alone knows of so far: sticky from now on, whoever asks first. */
tide_status tide_engine_failure(tide_engine *engine);
/* Updates of the step before are over, those of the last one begun may begin: fix what they use. */
void tide_engine_let_go(tide_engine *engine, const tide_step_options *step, float gradient_scale);
/* Have the request, which may be on the caller's stack, worked on in the host tier, where the manager has been asked for its
 * chunks. The pool's failure: the step has to be given up then, which ends it. */
tide_status tide_engine_access(tide_engine *engine, tide_access_request *request);
/* Everything has been set anew. */
void tide_engine_recovered(tide_engine *engine);
/* The open op has ended, with what has been recorded on the compute stream last. */
static inline void tide_engine_op_ended(tide_engine *engine)
{
    assert(tide_monitor_is_held(engine->monitor));
    engine->ends.numbers[++engine->ends.count % TIDE_OP_ENDS_MAX] =
        engine->order->recorded[TIDE_STREAM_COMPUTE];
}
/* Give up the open step and every request, wait for what runs, clear the failure if the device can go on, and set the pool's
 * counts right. OK if the engine is clean again: then either the pool is poisoned, or the training step given up, if any, is as
 * if it had not begun, with its restores under way. */
tide_status tide_engine_give_up(tide_engine *engine);
bool tide_engine_is_valid(const tide_engine *engine);

/* --- thread.c, without the lock --- */

/* Manager, layout and device are there. NO_MEMORY without a thread for it. */
tide_status tide_engine_start(tide_engine *engine);
void tide_engine_stop(tide_engine *engine); /* not started: allowed */

#endif
