/* Stalls: measures the time within steps in which the device computes nothing, and counts each nanosecond for
 * one cause.
 *
 * The compute stream stalls in three ways:
 *
 *   held back    the compute stream waits for another stream: the observer reports begin, end and site
 *   held up      the caller is blocked in the pool, between hold and release, and the stream is idle
 *   left idle    the caller is not in the pool and enqueues nothing: the observer sees a gap
 *
 *   compute      |kernel|      |kernel|wait|kernel|       |norm|copy|             |kernel|
 *   the caller      |... op ...|         step end            |step begin: held|op ...|
 *                       caller         link                  norm                caller
 *
 * While the caller is held up, the cause may change: first a chunk's update, then its copy. The engine calls
 * tide_stalls_tell after each of its actions, the link tide_stalls_mapping before and after it maps; if the
 * cause has changed, the time since the last change counts for the old cause. The copy of the norm to the
 * host, and the gap before it, count as a stall whose cause is the norm.
 *
 * A GPU times the kernels of an op or slice as one (may_coalesce in device.h), unless a trace or an observer
 * wants each one's time. Then gaps between those kernels count as compute.
 *
 * The cause of a wait of the caller's is the first of these that is true (cause_now): the norm is not on the
 * host yet; a chunk's update is pending; the engine is mapping; a chunk has no slot and none is free; a copy
 * is running; else the caller waits for all updates, at a step's end. When the caller's request becomes
 * ready, the cause stays the same until the caller wakes. A wait of the compute stream for a copy in either
 * direction counts for the link, since copies into the device wait for no other stream's work (order.h); a
 * wait for the collective stream counts for the peers, although a part of that stream's work is the rank's
 * own.
 *
 * Idle time counts as the caller's only in training steps, from the first op's begin to the step's end: from
 * `settled_ns`, up to which idle time is counted already, to `late_until_ns`. A gap before work between ops
 * is not counted. Idle time before the first op and after the last has no cause, unless the norm or updates
 * delay the next step's begin.
 *
 * Only the observer writes `compute_end_ns`. `settled_ns` changes at a step's first op, and while the stream
 * is idle after the observer has heard of all commands that ended (a GPU reports them in statistics()).
 *
 * Owns the sums and the cause that holds the caller up. Calls tracer and the device's clock and statistics.
 */
#ifndef TIDE_POOL_STALL_H
#define TIDE_POOL_STALL_H

#include "src/pool/tracer.h"

typedef struct tide_stalls {
    const tide_tracer *tracer;
    _Atomic uint64_t ns[TIDE_STALL_CAUSE_COUNT]; /* sums since create */
    _Atomic uint64_t compute_end_ns;             /* end of the compute stream's last command or wait */
    _Atomic uint64_t norm_copy_ns;               /* time of the norm's copies; the observer writes it */
    _Atomic uint64_t settled_ns;                 /* idle time before this is counted or has no cause */
    _Atomic uint64_t late_until_ns;              /* [caller] idle time after this is not the caller's */
    bool held;                                   /* [lock] the caller is held up */
    bool mapping;                                /* [lock] the engine maps or unmaps */
    bool norm_awaited;                           /* [lock] while held: the caller waits for the norm */
    tide_request_wait wait;                      /* [lock] what the open op's request waits for */
    tide_stall_cause cause;                      /* [lock] while held: the cause of the wait */
    uint64_t since_ns;                           /* [lock] begin of the time not yet counted for `cause` */
    tide_chunk chunk;                            /* [lock] the chunk for which the caller waits */
    bool asked;                                  /* [lock] a request was not ready when the hold began */
    uint64_t ended_by;   /* [lock] id of the command that made it ready; 0: none yet */
    uint64_t brought_on; /* [lock] the tracer's `brought_on` when the cause began */
} tide_stalls;

/* The kinds of commands of the compute stream. */
typedef enum tide_stall_command {
    TIDE_STALL_OF_OP = 0, /* a kernel of an op */
    TIDE_STALL_BETWEEN,   /* work between ops */
    TIDE_STALL_WAIT,      /* a wait, at a site */
    TIDE_STALL_NORM_COPY, /* the norm's copy to the host */
} tide_stall_command;

/* The observer calls this for each ended command of the compute stream. `site` is that of a wait; `where` is
 * the command's trace event, with op and slice, or NULL. */
void tide_stalls_observe(tide_stalls *stalls, tide_stall_command command, uint32_t site, uint64_t begin_ns,
                         uint64_t end_ns, const tide_trace_event *where);

/* A training step's first op begins: from here on idle time without another cause counts as the caller's.
 * Caller's thread. */
void tide_stalls_ops_begin(tide_stalls *stalls);
/* The step has ended or was given up: from here on idle time does not count as the caller's. */
void tide_stalls_ops_end(tide_stalls *stalls);

/* --- [lock] --- */

/* The caller waits from here to tide_stalls_release: idle time counts for the cause, which follows from the
 * arguments. */
void tide_stalls_hold(tide_stalls *stalls, bool norm_awaited, tide_request_wait wait, tide_chunk chunk);
void tide_stalls_release(tide_stalls *stalls);
/* For what, and for which chunk, the caller waits at present. If he is held up and this changes the cause,
 * the time so far counts for the old one. */
void tide_stalls_tell(tide_stalls *stalls, bool norm_awaited, tide_request_wait wait, tide_chunk chunk);
/* The engine begins or has ended a map or unmap. */
void tide_stalls_mapping(tide_stalls *stalls, bool mapping);

#endif
