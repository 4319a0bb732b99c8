/* Counters, in all and step by step.
 *
 * A step lasts from its first op to the next step's first op. Sums that the device keeps (busy and waiting streams)
 * are read at those two points; moves are counted as they are enqueued, those made for updates to the step whose
 * gradients they use. What is moved when no step's record takes it is in the sums alone. Updates say whose they are:
 * one step's may still run on the device when the next one's begin.
 *
 * Owns the sums and a ring of records: taken <= updating's, begun - taken <= TIDE_STEP_RECORDS_MAX. Record 0, over
 * from the start, is of what comes before the first step. Reads stalls, asks the device and the manager, tells the
 * tracer which step counts, calls nobody else.
 */
#ifndef TIDE_POOL_RECORDS_H
#define TIDE_POOL_RECORDS_H

#include "src/pool/stall.h"

enum { TIDE_STEP_RECORDS_MAX = 8, TIDE_ADAM_METERS = 2 * TIDE_STEP_RECORDS_MAX };

/* A step's counters while they can still grow. */
typedef struct tide_step_record {
    uint64_t step;
    tide_pool_counters begin;    /* sums at the step's first op */
    tide_pool_counters counters; /* moves attributed so far; the rest at close */
    _Atomic uint64_t adam_ns[2]; /* of its updates, by the observer: host executor, update stream */
    bool is_open;                /* the next step's first op has not begun */
    bool updates_pending;           /* its updates are not over */
} tide_step_record;

typedef struct tide_records {
    tide_tracer *tracer;
    const tide_stalls *stalls;
    const tide_manager *manager;
    tide_pool_counters sums;                      /* [lock] as far as the device does not keep them */
    tide_step_record ring[TIDE_STEP_RECORDS_MAX]; /* [lock] */
    uint64_t begun, taken;                        /* [lock] */
    uint64_t updating;           /* [lock] number of the record whose updates were let go last */
    uint64_t ending;             /* [lock] of the one before, while some of its updates run on; 0: none */
    _Atomic uint64_t adam_ns[2]; /* of all, by the observer */
} tide_records;

/* --- [lock] --- */

/* A training step's first op: closes the record before and opens one. */
void tide_records_begin(tide_records *records);
/* Close the last step's record, if open. */
void tide_records_close(tide_records *records);
/* The last record is of a step that was given up. */
void tide_records_drop(tide_records *records);
/* Updates of the last record's step, or their drop, begin: those before are all enqueued. */
void tide_records_let_go(tide_records *records);
/* The last of the updates that were `ending` has ended. */
void tide_records_ended(tide_records *records);
/* No update is open or runs: if the record whose updates ran is closed, so that none can follow, it is over, too. */
void tide_records_updates_ended(tide_records *records);
/* The oldest, if it is over. */
bool tide_records_take(tide_records *records, uint64_t *step, tide_pool_counters *counters);

/* Moves (bytes of a copy that has been enqueued); those that a command that is done counts for. */
void tide_records_count(tide_records *records, tide_reason reason, const tide_pool_counters *more);
void tide_records_count_command(tide_records *records, const tide_command *command);
/* What an update that is enqueued now counts as, below TIDE_ADAM_METERS; and, not under the lock, that it has ended. */
uint32_t tide_records_meter(const tide_records *records, tide_tier tier);
void tide_records_updated(tide_records *records, uint32_t meter, uint64_t ns);
/* The step whose record counts moves of this kind, 0: none does. */
uint64_t tide_records_step(tide_records *records, tide_reason reason);
void tide_records_sum(const tide_records *records, tide_pool_counters *sums);
bool tide_records_is_valid(const tide_records *records);

#endif
