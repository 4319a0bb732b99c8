/* Stalls: the time in which compute stood still within steps, each nanosecond with one cause.
 *
 * Compute stands still in three ways, and each is measured where it is known best:
 *
 *   held back    the compute stream waits for another's event: the observer is told from when to when, and at which site
 *   held up      the caller is blocked, so nothing can be enqueued: from hold to release, as far as the stream is idle
 *   left idle    nothing is enqueued although nothing held the caller up: the observer sees the gap between two commands
 *
 *   compute      |kernel|      |kernel|wait|kernel|       |norm|copy|             |kernel|
 *   the caller      |... op ...|         step end            |step begin: held|op ...|
 *                       caller         link                  norm                caller
 *
 * What holds the caller up may change while it does: first a chunk's update, then its copy. The engine tells whenever
 * it has done something, link before and after it maps; where the cause is another, the time since is the old one's.
 * The copy that carries the norm to the host is the norm's time, not compute's, and so is the gap before it.
 *
 * A GPU times the kernels of an op or slice as one (may_coalesce in device.h), unless a trace or an observer wants
 * each one's time. Gaps between them then count as compute, not as the caller's.
 *
 * Why an op's request is not ready (cause_now), in this order: a chunk's update is pending; the engine is mapping; a chunk
 * has no slot and none is free; else a copy is under way. Until a caller wakes whose request has become ready, it is
 * what it was. A stream that waits for copies into the device waits for the link: such copies themselves wait for
 * nothing (order.h). So does one that is to write what is still being copied out.
 *
 * The caller is late from a step's first op to its last one's end, in training steps: `settled_ns` is where the last
 * account ended or the first op began, `late_until_ns` where the step ended. Work between ops takes no account of the
 * gap before it. What is before the first op and after the last belongs to nobody, unless the norm or updates hold up
 * the next step's begin.
 *
 * The observer alone writes compute_end_ns. `settled_ns` moves on only while the stream is idle and the observer has
 * heard of all that ended (a GPU's does in statistics()), or at a first op, when gaps before are nobody's.
 *
 * Owns the sums and what holds the caller up. Calls tracer and the device's clock and statistics.
 */
#ifndef TIDE_POOL_STALL_H
#define TIDE_POOL_STALL_H

#include "src/pool/tracer.h"

typedef struct tide_stalls {
    const tide_tracer *tracer;
    _Atomic uint64_t ns[TIDE_STALL_CAUSE_COUNT]; /* so far */
    _Atomic uint64_t
        compute_end_ns; /* the observer writes it: when the compute stream's last command or wait ended */
    _Atomic uint64_t norm_copy_ns;  /* likewise: of the stream's busy time, the norm's way to the host */
    _Atomic uint64_t settled_ns;    /* idle time before is counted, or nobody's */
    _Atomic uint64_t late_until_ns; /* [caller] idle time after is not the caller's */
    bool held;                      /* [lock] the caller is held up */
    bool mapping;                   /* [lock] the engine maps or unmaps */
    bool norm_awaited;              /* [lock] while held: what the engine told last, */
    tide_request_wait wait;         /* [lock] and what the open op's request waits for */
    tide_stall_cause cause;         /* [lock] while held: the cause, */
    uint64_t since_ns;              /* [lock] and since when, */
    tide_chunk chunk;               /* [lock] for which chunk, */
    bool asked;                     /* [lock] and whether a request was not ready when it began: */
    uint64_t ended_by;              /* [lock] the command that made it ready; 0: it is not */
    uint64_t brought_on;            /* [lock] tracer's, when the cause began */
} tide_stalls;

/* What a command of the compute stream was. */
typedef enum tide_stall_command {
    TIDE_STALL_OF_OP = 0, /* a kernel of the open op's */
    TIDE_STALL_BETWEEN,   /* work between ops */
    TIDE_STALL_WAIT,      /* a wait, at a site */
    TIDE_STALL_NORM_COPY, /* the norm's copy to the host */
} tide_stall_command;

/* It began and ended; `site` of a wait; `where` it was enqueued, for the trace, NULL: not known. The observer. */
void tide_stalls_observe(tide_stalls *stalls, tide_stall_command command, uint32_t site, uint64_t begin_ns,
                         uint64_t end_ns, const tide_trace_event *where);

/* A training step's first op begins: from now on idle time is the caller's, if nobody else's. Caller's thread. */
void tide_stalls_ops_begin(tide_stalls *stalls);
/* From now on it is not: the step has ended, or is given up. */
void tide_stalls_ops_end(tide_stalls *stalls);

/* --- [lock] --- */

/* Something holds the caller up from here to release: idle time is that one's. */
void tide_stalls_hold(tide_stalls *stalls, bool norm_awaited, tide_request_wait wait, tide_chunk chunk);
void tide_stalls_release(tide_stalls *stalls);
/* What he waits for, now, and of which chunk: the cause, while he is held up; else it is only kept. */
void tide_stalls_tell(tide_stalls *stalls, bool norm_awaited, tide_request_wait wait, tide_chunk chunk);
/* The engine begins to map or unmap, or has ended it. */
void tide_stalls_mapping(tide_stalls *stalls, bool mapping);

#endif
