/* Where the caller stands, and what is told to options.trace.
 *
 * Events are made on the caller's, the engine's and the streams' threads. Owns the step, moment and op that stand in each of
 * them. Calls nobody in this folder.
 */
#ifndef TIDE_POOL_TRACER_H
#define TIDE_POOL_TRACER_H

#include "chunk/manager.h"
#include "src/pool/ground.h"

#include <stdatomic.h>

typedef struct tide_tracer {
    const tide_ground *ground;
    _Atomic uint64_t step;        /* training steps begun; the caller writes it */
    _Atomic uint32_t moment;      /* in the open step; likewise */
    _Atomic(const char *) op;     /* likewise; NULL between ops */
    _Atomic uint64_t let_go_step; /* [lock] training step whose updates were let go last */
} tide_tracer;

/* Something happened to a chunk, now or at `t_ns`. What is done for an update belongs to the step whose gradients it uses. */
void tide_tracer_tell(const tide_tracer *tracer, const char *event, tide_chunk chunk, const char *from, const char *to,
                      const char *reason);
void tide_tracer_copy(const tide_tracer *tracer, tide_stream stream, tide_chunk chunk, const char *reason, uint64_t begin_ns,
                      uint64_t end_ns);
/* A stall is the step's that it holds up. */
void tide_tracer_stall(const tide_tracer *tracer, tide_stall_cause cause, uint64_t begin_ns, uint64_t end_ns);

/* As tide_tracer_tell; costs nothing where nobody listens. */
static inline void tide_tracer_chunk(const tide_tracer *tracer, const char *event, tide_chunk chunk, const char *from,
                                     const char *to, const char *reason)
{
    if (tracer->ground->options.trace != NULL)
        tide_tracer_tell(tracer, event, chunk, from, to, reason);
}

#endif
