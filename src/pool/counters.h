/* The pool's counters: sums since create, and a record for each step.
 *
 * A step lasts from its first op to the next step's first op. At those two points the counters read the sums
 * that the device keeps (busy and waiting streams). A move is counted when it is enqueued: a move made for an
 * update in the record of the step whose gradients the update uses, any other move in the open record. A move
 * for which neither record is open is in the sums alone. The time of an update counts for the step given by
 * its timer, since the update may still run on the device when the next step's updates begin.
 *
 * Owns the sums and a ring of records, numbered by step: `begun` is the number of the last record begun,
 * `updating` of the record whose updates began last, `taken` of the last record that the caller has taken.
 * updating <= begun, taken <= begun, and begun - taken <= TIDE_STEP_COUNTERS_MAX. Record 0, closed from the
 * start, stands for everything before the first step. Reads stalls, asks the device and the manager, tells
 * the tracer which step's record is open, calls nothing else.
 */
#ifndef TIDE_POOL_COUNTERS_H
#define TIDE_POOL_COUNTERS_H

#include "src/pool/stall.h"

enum { TIDE_STEP_COUNTERS_MAX = 8, TIDE_ADAM_TIMERS = 2 * TIDE_STEP_COUNTERS_MAX };

/* A step's counters while they can still grow. */
typedef struct tide_step_counters {
    uint64_t step;
    tide_pool_counters begin;    /* the sums at the step's first op */
    tide_pool_counters counters; /* its moves are counted at once; close sets the rest */
    _Atomic uint64_t adam_ns[2]; /* [any] time of its updates: host executor, update stream */
    bool is_open;                /* the next step's first op has not begun */
    bool updates_pending;        /* some of its updates have not ended */
} tide_step_counters;

typedef struct tide_counters {
    tide_tracer *tracer;
    const tide_stalls *stalls;
    const tide_manager *manager;
    tide_pool_counters sums;                         /* sums that the device does not keep */
    tide_step_counters ring[TIDE_STEP_COUNTERS_MAX]; /* [lock] */
    uint64_t begun, taken;                           /* [lock] */
    uint64_t updating;                               /* number of the record whose updates began last */
    uint64_t ending;             /* the record whose updates began before, while they run; 0: none */
    _Atomic uint64_t adam_ns[2]; /* [any] time of all updates */
} tide_counters;

/* --- [lock] --- */

/* A training step's first op begins: close the last record and begin the next. */
void tide_counters_begin(tide_counters *all);
/* Close the last record begun, if it is open. */
void tide_counters_close(tide_counters *all);
/* Drop the last record begun: its step was given up. */
void tide_counters_drop(tide_counters *all);
/* From now on updates belong to the last record begun: its step's updates are released or dropped. The engine
 * has enqueued all updates of earlier steps. */
void tide_counters_let_go(tide_counters *all);
/* The last update of the record `ending` has ended. */
void tide_counters_ended(tide_counters *all);
/* No update is open or running. If the record `updating` is closed, no more of its updates can follow: its
 * counts become final. */
void tide_counters_updates_ended(tide_counters *all);
/* Take the oldest record that was not taken yet, if its counts are final; false if not. */
bool tide_counters_take(tide_counters *all, uint64_t *step, tide_pool_counters *counters);

/* tide_counters_count adds `more` (bytes of an enqueued copy, say), tide_counters_count_command a command
 * that is done, to the sums and to the record that counts moves for the reason. */
void tide_counters_count(tide_counters *all, tide_reason reason, const tide_pool_counters *more);
void tide_counters_count_command(tide_counters *all, const tide_command *command);
/* The timer (below TIDE_ADAM_TIMERS) for an update about to be enqueued: it names the record and the tier.
 * tide_counters_updated adds `ns`, how long an update with that timer took; call it without the lock. */
uint32_t tide_counters_timer(const tide_counters *all, tide_tier tier);
void tide_counters_updated(tide_counters *all, uint32_t timer, uint64_t ns);
/* The step whose record counts moves for this reason; 0: only the sums count them. */
uint64_t tide_counters_step(tide_counters *all, tide_reason reason);
void tide_counters_sum(const tide_counters *all, tide_pool_counters *sums);
bool tide_counters_is_valid(const tide_counters *all);

#endif
