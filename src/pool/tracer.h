/* Where the caller stands, and what is told to options.trace (docs/trace.md).
 *
 *     issued, with the lock      id -> ring of its stream: what it is, for which step, of which chunk
 *     over, on its stream        the observer finds it there by its id and tells it with the device's times
 *
 * So whoever reads a trace joins nothing. A ring holds more commands than its stream can hold unfinished; ids that no
 * command of a stream has (moves without a copy) have a number of their own. Commands of the compute stream are told
 * as one span for all that follow each other for one op or slice, and are counted for one step.
 *
 * Events are made on the caller's, the engine's and the streams' threads. Where nobody listens only step, counted and
 * op are kept. Owns these, the rings, and what was told last of each chunk and param. Calls the manager's queries,
 * and nobody in this folder.
 */
#ifndef TIDE_POOL_TRACER_H
#define TIDE_POOL_TRACER_H

#include "chunk/manager.h"
#include "src/pool/sealed_context.h"

#include <pthread.h>
#include <stdatomic.h>

enum { TIDE_TRACER_RING = 1024 };

typedef struct tide_tracer {
    const tide_sealed_context *context;
    _Atomic uint64_t step;    /* training steps begun; the caller writes it */
    _Atomic uint64_t counted; /* the step that counts what happens now; 0: none. counters.c writes it */
    _Atomic(const char *) op; /* the open op's name; the caller writes it; NULL between ops */
    _Atomic uint64_t pass;    /* passes begun; likewise */

    bool on; /* [fixed] somebody listens */
    tide_trace_event
        here; /* [lock] to write, which the caller alone does: where he stands, in an event of nothing */
    uint64_t here_id;    /* [caller] that in the compute stream's ring; 0: nothing has been launched there */
    uint64_t last_id;    /* [lock] of the command that the engine brought on last, */
    uint64_t brought_on; /* [lock] and how often it did with any */
    tide_trace_event
        *issued[TIDE_STREAM_COUNT]; /* [fixed] the rings; one of a stream is written by who enqueues there */
    uint64_t numbers[TIDE_STREAM_COUNT + 1]; /* issued so far: [caller] of compute, [lock] of the others */
    uint64_t plans[2];                       /* [caller] the last told: of forward-only passes, of training */

    pthread_mutex_t running_lock;
    tide_trace_event running; /* [running_lock] kernels that follow each other; busy_ns 0: none */

    tide_chunk_view *seen; /* [lock] of each chunk, as told last */
    bool *has_gradient;    /* [lock] of each param, likewise */
} tide_tracer;

/* With sealed context and layout. NO_MEMORY, leaving what destroy frees. */
tide_status tide_tracer_create(tide_tracer *tracer);
void tide_tracer_destroy(tide_tracer *tracer); /* zeroed: allowed */

/* An event of now, or not timed yet: where the caller stands, of no chunk, param or slot. */
tide_trace_event tide_tracer_event(const tide_tracer *tracer, tide_trace_kind kind);
/* Tell it. The rest of this header tells nothing, and gives the id 0, where nobody listens. */
void tide_tracer_tell(const tide_tracer *tracer, const tide_trace_event *event);

/* --- with the lock: where the caller stands --- */

void tide_tracer_pass_begins(tide_tracer *tracer, bool training, bool clips);
void tide_tracer_pass_ends(tide_tracer *tracer, const tide_manager *manager);
void tide_tracer_given_up(tide_tracer *tracer);
/* An op, or one of its slices (else TIDE_TRACE_NONE), begins; TIDE_OP_NONE: it has ended. `predicted`: as recorded. */
void tide_tracer_stand(tide_tracer *tracer, tide_op op, uint32_t slice, bool predicted);
/* What was asked for there is not ready, and since; returns how many. */
uint32_t tide_tracer_lacking(tide_tracer *tracer, tide_manager *manager);
/* It is. */
void tide_tracer_ready(tide_tracer *tracer, uint32_t chunks, uint32_t lacked, uint64_t asked_ns);
/* Chunks that have changed since they were told of last. */
void tide_tracer_look(tide_tracer *tracer, tide_manager *manager);
/* All of them, as if nothing had been told yet. */
void tide_tracer_look_at_all(tide_tracer *tracer, tide_manager *manager);

/* --- commands --- */

/* With the lock: the engine has brought the command on. Who waits may wait for something else now, or for nothing. */
static inline void tide_tracer_brought_on(tide_tracer *tracer, uint64_t id)
{
    tracer->last_id = id;
    tracer->brought_on++;
}

/* The id of one that is to be enqueued on the stream; TIDE_STREAM_COUNT: on none. With the lock; of the compute
 * stream's the caller. */
uint64_t tide_tracer_number(tide_tracer *tracer, tide_stream stream);
/* It is enqueued now: `event` is what is told when it is over, times aside. Likewise. */
void tide_tracer_issue(tide_tracer *tracer, uint64_t id, const tide_trace_event *event);
/* The id of what the caller launches. */
uint64_t tide_tracer_launch(tide_tracer *tracer);
/* The compute stream is made to wait for the command `awaited`; the id of that wait. With the lock. */
uint64_t tide_tracer_wait(tide_tracer *tracer, tide_stream stream, uint64_t awaited);
/* What was issued under the id, NULL if nothing is known of it. While it is not over. */
const tide_trace_event *tide_tracer_issued(const tide_tracer *tracer, uint64_t id);
/* A command of a stream, no wait, is over. `of_norm`: it is the norm's copy; `zeroes`: a kernel before its own. */
void tide_tracer_over(tide_tracer *tracer, const tide_observed *command, bool of_norm, bool zeroes);
/* Tell what has been computed so far, though more of it may follow. */
void tide_tracer_flush(tide_tracer *tracer);

/* A stall is the step's that it holds up; `where` may be NULL: between ops. */
void tide_tracer_stall(const tide_tracer *tracer, tide_stall_cause cause, uint64_t begin_ns, uint64_t end_ns,
                       const tide_trace_event *where);

#endif
