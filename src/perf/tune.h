/* How to run best what is to be computed: chunk size, recompute, prefetch and the optimizer's place, of which none changes a bit.
 *
 * Every choice is predicted (performance_model.h). First all chunk sizes, the rest as given; then, of the best of
 * these, every recompute and placement, and prefetch off. A choice that comes to what was played already is not
 * played again.
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

typedef struct tide_candidate {
    tide_choice choice;
    bool fits; /* else the performance is zero */
    tide_performance performance;
} tide_candidate;

enum { TIDE_CANDIDATES_MAX = 96 };

typedef struct tide_tune_options {
    bool keep_chunk, keep_recompute, keep_placement, keep_prefetch; /* as the run has it */
    double seconds_most; /* of search, once one is predicted; 0: no limit */
    /* Called before each prediction and between its steps, `total` is a guess; false ends the search with what there is. May be
     * NULL. */
    bool (*go_on)(void *context, uint32_t done, uint32_t total);
    void *context;
} tide_tune_options;

/* What `options` say of these four, and a run with another choice. */
tide_choice tide_choice_of(const tide_trainer_options *options);
void tide_choice_apply(const tide_choice *choice, tide_trainer_options *options);

/* Predict, and sort: the best first; those within half a hundredth of the best count as equal, and of them the one that differs
 * least from the run as given comes first; what does not fit comes last. BUDGET, with the run's own message, where nothing fits;
 * other statuses of tide_performance_make. */
TIDE_NODISCARD tide_status tide_tune(const tide_trainer_options *options, const tide_machine_profile *profile,
                                     const tide_tune_options *how,
                                     tide_candidate candidates[TIDE_CANDIDATES_MAX], uint32_t *count);

#endif
