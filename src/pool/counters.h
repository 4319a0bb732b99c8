/* Counters, in all and step by step.
 *
 * A step lasts from its first op to the next step's first op. At those two points the counters read the sums
 * that the device keeps (busy and waiting streams). Moves are counted as they are enqueued, those made for
 * updates to the step whose gradients they use. A move that belongs to no step's record is in the sums alone.
 * An update says to which step it belongs, since it may still run on the device when the next step's updates
 * begin.
 *
 * Owns the sums and a ring of records, one for each step: taken <= updating's, begun - taken <=
 * TIDE_STEP_COUNTERS_MAX. Record 0, closed from the start, stands for everything before the first step. Reads
 * stalls, asks the device and the manager, tells the tracer which step counts, calls nothing else.
 */
#ifndef TIDE_POOL_COUNTERS_H
#define TIDE_POOL_COUNTERS_H

#include "src/pool/stall.h"

enum { TIDE_STEP_COUNTERS_MAX = 8, TIDE_ADAM_TIMERS = 2 * TIDE_STEP_COUNTERS_MAX };

/* A step's counters while they can still grow. */
typedef struct tide_step_counters {
    uint64_t step;
    tide_pool_counters begin;    /* the sums at the step's first op */
    tide_pool_counters counters; /* the moves of this step so far; the rest at close */
    _Atomic uint64_t adam_ns[2]; /* [any] time of its updates: host executor, update stream */
    bool is_open;                /* the next step's first op has not begun */
    bool updates_pending;        /* not all of its updates have ended */
} tide_step_counters;

typedef struct tide_counters {
    tide_tracer *tracer;
    const tide_stalls *stalls;
    const tide_manager *manager;
    tide_pool_counters sums;                         /* sums that the device does not keep */
    tide_step_counters ring[TIDE_STEP_COUNTERS_MAX]; /* [lock] */
    uint64_t begun, taken;                           /* [lock] */
    uint64_t updating;                               /* number of the record whose updates began last */
    uint64_t ending;             /* number of the record before, while its updates run; 0: none */
    _Atomic uint64_t adam_ns[2]; /* [any] time of all updates */
} tide_counters;

/* --- [lock] --- */

/* A training step's first op begins: close the record before and open one. */
void tide_counters_begin(tide_counters *all);
/* Close the last step's record, if open. */
void tide_counters_close(tide_counters *all);
/* Drop the last record: its step was given up. */
void tide_counters_drop(tide_counters *all);
/* The updates of the last record's step, or their drop, begin; the engine has enqueued all updates before. */
void tide_counters_let_go(tide_counters *all);
/* The last update of the record `ending` has ended. */
void tide_counters_ended(tide_counters *all);
/* No update is open or runs. If the record whose updates ran is closed, so that no more can follow, its
 * counts are final, too. */
void tide_counters_updates_ended(tide_counters *all);
/* Take the oldest record, if its counts are final. */
bool tide_counters_take(tide_counters *all, uint64_t *step, tide_pool_counters *counters);

/* Count the bytes of a copy that has been enqueued; count a command that is done. */
void tide_counters_count(tide_counters *all, tide_reason reason, const tide_pool_counters *more);
void tide_counters_count_command(tide_counters *all, const tide_command *command);
/* The timer of an update that is enqueued now, below TIDE_ADAM_TIMERS. tide_counters_updated, without the
 * lock: an update with that timer has ended after `ns`. */
uint32_t tide_counters_timer(const tide_counters *all, tide_tier tier);
void tide_counters_updated(tide_counters *all, uint32_t timer, uint64_t ns);
/* The step whose record counts moves for this reason, 0: none does. */
uint64_t tide_counters_step(tide_counters *all, tide_reason reason);
void tide_counters_sum(const tide_counters *all, tide_pool_counters *sums);
bool tide_counters_is_valid(const tide_counters *all);

#endif
