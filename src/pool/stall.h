/* Stalls: the time within steps in which the device computes nothing, each nanosecond with one cause.
 *
 * The compute stream stalls in three ways, each measured where it is known best:
 *
 *   held back    the compute stream waits for another's event: the observer reports begin, end and site
 *   held up      the caller is blocked and enqueues nothing: from hold to release, while the stream is idle
 *   left idle    the caller enqueues nothing although he is free: the observer sees the gap between commands
 *
 *   compute      |kernel|      |kernel|wait|kernel|       |norm|copy|             |kernel|
 *   the caller      |... op ...|         step end            |step begin: held|op ...|
 *                       caller         link                  norm                caller
 *
 * While the caller is held up, the cause may change: first a chunk's update, then its copy. The engine
 * reports after each of its actions, the link before and after it maps; where the cause has changed, the time
 * until now goes to the old one. The copy that carries the norm to the host is the norm's time, not
 * compute's, and so is the gap before it.
 *
 * A GPU times the kernels of an op or slice as one (may_coalesce in device.h), unless a trace or an observer
 * wants each one's time. Gaps between them then count as compute, not as the caller's.
 *
 * cause_now asks in this order why the caller waits: the norm is not on the host yet; a chunk's update is
 * pending; the engine is mapping; a chunk has no slot and none is free; a copy is running; else the caller waits
 * for all updates, at a step's end. When the request becomes ready, the cause stays the same until the caller
 * wakes. A stream that waits for copies into
 * the device waits for the link, since such copies themselves wait for nothing (order.h). A stream that waits
 * to overwrite a chunk that is being copied out waits for the link, too.
 *
 * In training steps the caller counts as late from a step's first op to the end of its last one: `settled_ns`
 * is where the last account ended or the first op began, `late_until_ns` where the step ended. The gap before
 * work between ops is not counted. Idle time before the first op and after the last has no cause, unless the
 * norm or updates delay the next step's begin.
 *
 * The observer alone writes compute_end_ns. `settled_ns` moves on only while the stream is idle and the
 * observer has heard of all commands that ended (a GPU reports them in statistics()), or at a first op,
 * before which gaps have no cause.
 *
 * Owns the sums and the cause that holds the caller up. Calls tracer and the device's clock and statistics.
 */
#ifndef TIDE_POOL_STALL_H
#define TIDE_POOL_STALL_H

#include "src/pool/tracer.h"

typedef struct tide_stalls {
    const tide_tracer *tracer;
    _Atomic uint64_t ns[TIDE_STALL_CAUSE_COUNT]; /* sums so far */
    _Atomic uint64_t compute_end_ns;             /* end of the compute stream's last command or wait */
    _Atomic uint64_t norm_copy_ns;  /* busy time of the norm's copies; the observer writes both */
    _Atomic uint64_t settled_ns;    /* idle time before it is counted, or has no cause */
    _Atomic uint64_t late_until_ns; /* [caller] idle time after it is not the caller's */
    bool held;                      /* [lock] the caller is held up */
    bool mapping;                   /* [lock] the engine maps or unmaps */
    bool norm_awaited;              /* [lock] while held: is the norm awaited, */
    tide_request_wait wait;         /* [lock] and what does the open op's request wait for */
    tide_stall_cause cause;         /* [lock] while held: the cause, */
    uint64_t since_ns;              /* [lock] and since when, */
    tide_chunk chunk;               /* [lock] for which chunk, */
    bool asked;                     /* [lock] and was a request not ready at its begin: */
    uint64_t ended_by;              /* [lock] the command that made it ready; 0: none yet */
    uint64_t brought_on;            /* [lock] the tracer's `brought_on` at the cause's begin */
} tide_stalls;

/* The kinds of commands of the compute stream. */
typedef enum tide_stall_command {
    TIDE_STALL_OF_OP = 0, /* a kernel of the open op's */
    TIDE_STALL_BETWEEN,   /* work between ops */
    TIDE_STALL_WAIT,      /* a wait, at a site */
    TIDE_STALL_NORM_COPY, /* the norm's copy to the host */
} tide_stall_command;

/* A command began and ended. `site`: of a wait; `where`: its trace event, which says where it was enqueued,
 * NULL: unknown. The observer calls this. */
void tide_stalls_observe(tide_stalls *stalls, tide_stall_command command, uint32_t site, uint64_t begin_ns,
                         uint64_t end_ns, const tide_trace_event *where);

/* A training step's first op begins: from now on idle time without another cause is the caller's. Caller's
 * thread. */
void tide_stalls_ops_begin(tide_stalls *stalls);
/* The step has ended, or is given up: from now on idle time is not the caller's. */
void tide_stalls_ops_end(tide_stalls *stalls);

/* --- [lock] --- */

/* The caller is held up from here to release: idle time belongs to the cause. */
void tide_stalls_hold(tide_stalls *stalls, bool norm_awaited, tide_request_wait wait, tide_chunk chunk);
void tide_stalls_release(tide_stalls *stalls);
/* The norm or request that the caller waits for now, and for which chunk. While he is held up this is the
 * cause; otherwise only a note for the next hold. */
void tide_stalls_tell(tide_stalls *stalls, bool norm_awaited, tide_request_wait wait, tide_chunk chunk);
/* The engine begins or has ended a map or unmap. */
void tide_stalls_mapping(tide_stalls *stalls, bool mapping);

#endif
