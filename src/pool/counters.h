/* Counters, in all and step by step.
 *
 * A step lasts from its first op to the next step's first op. Sums that the device keeps (busy and waiting streams)
 * are read at those two points; moves are counted as they are enqueued, those made for updates to the step whose
 * gradients they use. What is moved when no step's record takes it is in the sums alone. Updates say whose they are:
 * one step's may still run on the device when the next one's begin.
 *
 * Owns the sums and a ring of records: taken <= updating's, begun - taken <= TIDE_STEP_COUNTERS_MAX. Record 0, over
 * from the start, is of what comes before the first step. Reads stalls, asks the device and the manager, tells the
 * tracer which step counts, calls nobody else.
 */
#ifndef TIDE_POOL_COUNTERS_H
#define TIDE_POOL_COUNTERS_H

#include "src/pool/stall.h"

enum { TIDE_STEP_COUNTERS_MAX = 8, TIDE_ADAM_TIMERS = 2 * TIDE_STEP_COUNTERS_MAX };

/* A step's counters while they can still grow. */
typedef struct tide_step_counters {
    uint64_t step;
    tide_pool_counters begin;    /* sums at the step's first op */
    tide_pool_counters counters; /* moves attributed so far; the rest at close */
    _Atomic uint64_t adam_ns[2]; /* of its updates, by the observer: host executor, update stream */
    bool is_open;                /* the next step's first op has not begun */
    bool updates_pending;        /* its updates are not over */
} tide_step_counters;

typedef struct tide_counters {
    tide_tracer *tracer;
    const tide_stalls *stalls;
    const tide_manager *manager;
    tide_pool_counters sums;                         /* [lock] as far as the device does not keep them */
    tide_step_counters ring[TIDE_STEP_COUNTERS_MAX]; /* [lock] */
    uint64_t begun, taken;                           /* [lock] */
    uint64_t updating;           /* [lock] number of the record whose updates were let go last */
    uint64_t ending;             /* [lock] of the one before, while some of its updates run on; 0: none */
    _Atomic uint64_t adam_ns[2]; /* of all, by the observer */
} tide_counters;

/* --- [lock] --- */

/* A training step's first op: closes the record before and opens one. */
void tide_counters_begin(tide_counters *all);
/* Close the last step's record, if open. */
void tide_counters_close(tide_counters *all);
/* The last record is of a step that was given up. */
void tide_counters_drop(tide_counters *all);
/* Updates of the last record's step, or their drop, begin: those before are all enqueued. */
void tide_counters_let_go(tide_counters *all);
/* The last of the updates that were `ending` has ended. */
void tide_counters_ended(tide_counters *all);
/* No update is open or runs: if the record whose updates ran is closed, so that none can follow, it is over, too. */
void tide_counters_updates_ended(tide_counters *all);
/* The oldest, if it is over. */
bool tide_counters_take(tide_counters *all, uint64_t *step, tide_pool_counters *counters);

/* Moves (bytes of a copy that has been enqueued); those that a command that is done counts for. */
void tide_counters_count(tide_counters *all, tide_reason reason, const tide_pool_counters *more);
void tide_counters_count_command(tide_counters *all, const tide_command *command);
/* What an update that is enqueued now counts as, below TIDE_ADAM_TIMERS; and, not under the lock, that it has ended. */
uint32_t tide_counters_timer(const tide_counters *all, tide_tier tier);
void tide_counters_updated(tide_counters *all, uint32_t timer, uint64_t ns);
/* The step whose record counts moves of this kind, 0: none does. */
uint64_t tide_counters_step(tide_counters *all, tide_reason reason);
void tide_counters_sum(const tide_counters *all, tide_pool_counters *sums);
bool tide_counters_is_valid(const tide_counters *all);

#endif
