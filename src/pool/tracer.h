/* Sends events to options.trace (docs/trace.md), and keeps the op and slice at which the caller stands.
 *
 *     issued, with the lock      id -> ring of its stream: the event, with kind, step and chunk
 *     over, on its stream        the observer finds the event by its id and sends it with the device's times
 *
 * So a reader of a trace joins no events. A ring holds more commands than its stream can hold unfinished; ids
 * of moves without a copy, which no stream runs, are counted separately. All commands of the compute stream
 * that follow each other for one op or slice, and count for one step, make one span.
 *
 * The caller's, the engine's and the streams' threads make events. Without options.trace the tracer keeps
 * only step, counted and op. Owns these, the rings, and the last traced state of each chunk and param. Calls
 * the manager's queries, and no other file of this folder.
 */
#ifndef TIDE_POOL_TRACER_H
#define TIDE_POOL_TRACER_H

#include "chunk/manager.h"
#include "src/pool/context.h"

#include <pthread.h>
#include <stdatomic.h>

enum { TIDE_TRACER_RING = 1024 };

typedef struct tide_tracer {
    const tide_pool_context *context;
    _Atomic uint64_t step;    /* training steps begun; the caller writes it */
    _Atomic uint64_t counted; /* the step that counts what happens now; 0: none. counters.c writes it */
    _Atomic(const char *) op; /* the open op's name; the caller writes it; NULL between ops */
    _Atomic uint64_t pass;    /* passes begun; the caller writes it */

    bool on;               /* [fixed] options.trace is set */
    tide_trace_event here; /* [lock] to write, by the caller alone: an event with his op and slice */
    uint64_t here_id;      /* [caller] id of `here` in the compute stream's ring; 0: nothing launched yet */
    uint64_t last_id;      /* [lock] the last command that the engine went on with, */
    uint64_t brought_on;   /* [lock] and how often it went on with any */
    tide_trace_event
        *issued[TIDE_STREAM_COUNT]; /* [fixed] the rings; the thread that enqueues on the stream writes it */
    uint64_t numbers[TIDE_STREAM_COUNT + 1]; /* issued so far: [caller] of compute, [lock] of the others */
    uint64_t plans[2]; /* [caller] the plans traced last: of forward-only passes, of training */

    pthread_mutex_t running_lock;
    tide_trace_event running; /* [running_lock] kernels that follow each other; busy_ns 0: none */

    tide_chunk_view *seen; /* [lock] the state of each chunk, as traced last */
    bool *has_gradient;    /* [lock] of each param, as traced last */
} tide_tracer;

/* Make rings and tables; context and layout must be there. NO_MEMORY; destroy frees them then, too. */
tide_status tide_tracer_create(tide_tracer *tracer);
void tide_tracer_destroy(tide_tracer *tracer); /* zeroed: allowed */

/* A new event with the caller's op and slice, without times, chunk, param or slot. */
tide_trace_event tide_tracer_event(const tide_tracer *tracer, tide_trace_kind kind);
/* Send an event to options.trace, which must be set. Without options.trace the other functions here send
 * nothing and return the id 0. */
void tide_tracer_tell(const tide_tracer *tracer, const tide_trace_event *event);

/* --- with the lock: progress of the caller --- */

void tide_tracer_pass_begins(tide_tracer *tracer, bool training, bool clips);
void tide_tracer_pass_ends(tide_tracer *tracer, const tide_manager *manager);
void tide_tracer_given_up(tide_tracer *tracer);
/* An op, or one of its slices (else TIDE_TRACE_NONE), begins; TIDE_OP_NONE: the op has ended. `predicted`: it
 * follows the recorded schedule. */
void tide_tracer_stand(tide_tracer *tracer, tide_op op, uint32_t slice, bool predicted);
/* Trace each chunk of the open request that is not ready; returns how many. */
uint32_t tide_tracer_lacking(tide_tracer *tracer, tide_manager *manager);
/* Trace that the request is ready, which the caller made at `asked_ns`. */
void tide_tracer_ready(tide_tracer *tracer, uint32_t chunks, uint32_t lacked, uint64_t asked_ns);
/* Trace the chunks that have changed since they were last traced. */
void tide_tracer_look(tide_tracer *tracer, tide_manager *manager);
/* Trace all chunks that are anywhere, as if none had been traced yet. */
void tide_tracer_look_at_all(tide_tracer *tracer, tide_manager *manager);

/* --- commands --- */

/* With the lock: the engine has gone on with the command, so that a waiting caller may now wait for another
 * cause, or for none. */
static inline void tide_tracer_brought_on(tide_tracer *tracer, uint64_t id)
{
    tracer->last_id = id;
    tracer->brought_on++;
}

/* A new id for a command that will be enqueued on the stream; TIDE_STREAM_COUNT: on none. With the lock, but
 * for the compute stream, whose ids the caller's thread takes. */
uint64_t tide_tracer_number(tide_tracer *tracer, tide_stream stream);
/* Keep `event` for a command that is enqueued now; it is sent with the times when the command is over. Locked
 * as tide_tracer_number. */
void tide_tracer_issue(tide_tracer *tracer, uint64_t id, const tide_trace_event *event);
/* The id of a command that the caller launches. */
uint64_t tide_tracer_launch(tide_tracer *tracer);
/* The id of the wait of the compute stream for the command `awaited`. With the lock. */
uint64_t tide_tracer_wait(tide_tracer *tracer, tide_stream stream, uint64_t awaited);
/* The event that was issued under the id, NULL if there is none. Valid until the command is over. */
const tide_trace_event *tide_tracer_issued(const tide_tracer *tracer, uint64_t id);
/* A command of a stream, not a wait, is over: send its event. `of_norm`: it is the norm's copy; `zeroes`: it
 * is a kernel that zeroes before the command's own. */
void tide_tracer_over(tide_tracer *tracer, const tide_observed *command, bool of_norm, bool zeroes);
/* Send the span of compute so far, although more of it may follow. */
void tide_tracer_flush(tide_tracer *tracer);

/* Send a stall, for the step that counts now. `where`: the event of the command that stalled; NULL: between
 * ops. */
void tide_tracer_stall(const tide_tracer *tracer, tide_stall_cause cause, uint64_t begin_ns, uint64_t end_ns,
                       const tide_trace_event *where);

#endif
