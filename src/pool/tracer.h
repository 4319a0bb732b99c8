/* Sends events to options.trace (docs/trace.md), and keeps the caller's open op and slice for them.
 *
 *     issued, with the lock      id -> ring of its stream: the event, with kind, step and chunk
 *     over, on its stream        the observer finds the event by its id and sends it with the device's times
 *
 * So an event of the trace has all that is known of its command. A ring has more entries than its stream can
 * have unfinished commands. Moves without a copy, which no stream runs, have ids of a series of their own.
 * Successive commands of the compute stream for one op or slice and the same step make one event (a span).
 *
 * The caller's, the engine's and the streams' threads make events. Without options.trace the tracer keeps
 * only `step`, `counted` and `op`. Owns these, the rings, and the last traced state of each chunk and param.
 * Calls only the manager's queries and the device's clock.
 */
#ifndef TIDE_POOL_TRACER_H
#define TIDE_POOL_TRACER_H

#include "chunk/manager.h"
#include "chunk/watch.h"
#include "src/pool/context.h"

#include <pthread.h>
#include <stdatomic.h>

enum { TIDE_TRACER_RING = 1024 };

typedef struct tide_tracer {
    const tide_pool_context *context;
    _Atomic uint64_t step;    /* training steps begun; the caller writes it */
    _Atomic uint64_t counted; /* the step whose record is open; 0: none. counters.c writes it */
    _Atomic(const char *) op; /* the open op's name; the caller writes it; NULL between ops */
    _Atomic uint64_t pass;    /* passes begun; the caller writes it */

    bool on;               /* [fixed] options.trace is set */
    tide_trace_event here; /* [lock] to write, by the caller: a template with his op and slice */
    uint64_t here_id;      /* [caller] id of `here` in the compute stream's ring; 0: `here` changed since */
    uint64_t last_id;      /* [lock] id of the last command that the engine issued, ended or mapped for */
    uint64_t brought_on;   /* [lock] how often `last_id` was set */
    tide_trace_event
        *issued[TIDE_STREAM_COUNT]; /* [fixed] the rings; the thread that enqueues on the stream writes it */
    uint64_t numbers[TIDE_STREAM_COUNT + 1]; /* ids issued: [caller] compute, [lock] the others */
    uint64_t plans[2]; /* [caller] numbers of the plans traced last: of forward-only passes, of training */

    pthread_mutex_t running_lock;
    tide_trace_event running; /* [running_lock] the span being collected; busy_ns 0: none */

    tide_chunk_view *seen; /* [lock] the state of each chunk, as traced last */
    bool *has_gradient;    /* [lock] of each param, as traced last */
} tide_tracer;

/* Make rings and tables; context and layout must be there. NO_MEMORY; destroy frees them then, too. */
tide_status tide_tracer_create(tide_tracer *tracer);
void tide_tracer_destroy(tide_tracer *tracer); /* zeroed: allowed */

/* A new event with the caller's op and slice, without times, chunk, param or slot. */
tide_trace_event tide_tracer_event(const tide_tracer *tracer, tide_trace_kind kind);
/* Send an event to options.trace, which must be set. The other functions here may be called without
 * options.trace: they send nothing and return the id 0. */
void tide_tracer_tell(const tide_tracer *tracer, const tide_trace_event *event);

/* --- with the lock: progress of the caller --- */

void tide_tracer_pass_begins(tide_tracer *tracer, bool training, bool clips);
void tide_tracer_pass_ends(tide_tracer *tracer, const tide_manager *manager);
void tide_tracer_given_up(tide_tracer *tracer);
/* Slice `slice` of an op begins, with TIDE_TRACE_NONE the op itself; with `op` TIDE_OP_NONE the op has ended.
 * `predicted`: the op is the next one of the recorded schedule. */
void tide_tracer_stand(tide_tracer *tracer, tide_op op, uint32_t slice, bool predicted);
/* Trace each chunk of the open request that is not ready; returns how many. */
uint32_t tide_tracer_lacking(tide_tracer *tracer, tide_manager *manager);
/* Trace that the request made at `asked_ns` is ready. */
void tide_tracer_ready(tide_tracer *tracer, uint32_t chunks, uint32_t lacked, uint64_t asked_ns);
/* Trace the chunks that have changed since they were last traced. */
void tide_tracer_look(tide_tracer *tracer, tide_manager *manager);
/* Trace the state of every chunk that has a slot or values, as if none had been traced yet. */
void tide_tracer_look_at_all(tide_tracer *tracer, tide_manager *manager);

/* --- commands --- */

/* Call with the lock when the engine has issued a command, ended it, or changed a mapping for it. A waiting
 * caller may wait for something else from here on; stall.c names this command as the one that ended the
 * cause. */
static inline void tide_tracer_brought_on(tide_tracer *tracer, uint64_t id)
{
    tracer->last_id = id;
    tracer->brought_on++;
}

/* A new id for a command about to be enqueued on the stream (TIDE_STREAM_COUNT: on none). With the lock,
 * except for the compute stream, whose ids only the caller's thread takes. */
uint64_t tide_tracer_number(tide_tracer *tracer, tide_stream stream);
/* Store the event of a command about to be enqueued; tide_tracer_over sends it with the times. Locked as
 * tide_tracer_number. */
void tide_tracer_issue(tide_tracer *tracer, uint64_t id, const tide_trace_event *event);
/* The id for a command that the caller launches: one for all of an op or slice. */
uint64_t tide_tracer_launch(tide_tracer *tracer);
/* A new id for a wait of the stream for the command `awaited`, if the stream is compute; else 0. With the
 * lock. */
uint64_t tide_tracer_wait(tide_tracer *tracer, tide_stream stream, uint64_t awaited);
/* The event that was issued under the id, NULL if there is none. Valid until the command has ended. */
const tide_trace_event *tide_tracer_issued(const tide_tracer *tracer, uint64_t id);
/* A command of a stream (not a wait) has ended: send its event. `of_norm`: it is the norm's copy; `zeroes`:
 * it is a kernel that zeroes memory before the task's own kernel. */
void tide_tracer_over(tide_tracer *tracer, const tide_observed *command, bool of_norm, bool zeroes);
/* Send the span collected so far, without waiting for its end. */
void tide_tracer_flush(tide_tracer *tracer);

/* Send a stall as an event of the step whose record is open. `where`: the event of the command that stalled;
 * NULL: between ops. */
void tide_tracer_stall(const tide_tracer *tracer, tide_stall_cause cause, uint64_t begin_ns, uint64_t end_ns,
                       const tide_trace_event *where);

#endif
