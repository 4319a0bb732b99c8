/* Finds the fastest chunk size, recompute, placement and prefetch for a run. None of these changes a bit of
 * its results.
 *
 * The search predicts each choice (performance_model.h): first all chunk sizes, with everything else as
 * given; then, for the two best of them, every recompute and placement, and the other setting of prefetch. It
 * skips a choice that amounts to one it has predicted.
 */
#ifndef TIDE_PERF_TUNE_H
#define TIDE_PERF_TUNE_H

#include "src/perf/performance_model.h"

#define TIDE_TUNE_CHUNK_LEAST (UINT64_C(1) << 20)
#define TIDE_TUNE_CHUNK_MOST  (UINT64_C(512) << 20)

typedef struct tide_choice {
    uint64_t chunk_bytes;
    tide_recompute recompute;
    tide_placement placement;
    bool prefetch;
} tide_choice;

/* Which parts of a choice stay as given. */
typedef struct tide_choice_kept {
    bool chunk, recompute, placement, prefetch;
} tide_choice_kept;

typedef struct tide_candidate {
    tide_choice choice;
    bool fits; /* false: the performance is zero */
    tide_performance performance;
} tide_candidate;

enum { TIDE_CANDIDATES_MAX = 96 };

typedef struct tide_tune_options {
    tide_choice_kept kept;
    double seconds_most; /* limit of the search's time, after the first prediction; 0: no limit */
    /* Called before each prediction and between its steps; `total` is an estimate. If it returns false, the
     * search ends with the candidates so far. May be NULL. */
    bool (*go_on)(void *context, uint32_t done, uint32_t total);
    void *context;
} tide_tune_options;

/* The choice in `options`; and set a choice in them. */
tide_choice tide_choice_of(const tide_trainer_options *options);
void tide_choice_apply(const tide_choice *choice, tide_trainer_options *options);

/* Predict and sort candidates, the best first. Those within 0.5% of the best count as equal; of them, the one
 * that differs least from the run as given comes first. Candidates that do not fit come last. BUDGET, with
 * the message of the run as given: none fits. Other statuses of tide_performance_make. */
TIDE_NODISCARD tide_status tide_tune(const tide_trainer_options *options, const tide_machine_profile *profile,
                                     const tide_tune_options *how,
                                     tide_candidate candidates[TIDE_CANDIDATES_MAX], uint32_t *count);

#endif
