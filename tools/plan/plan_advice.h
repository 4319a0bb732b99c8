/* What to change about a run: for more speed, or that it may fit. Each proposal has been tried on the null device. */
#ifndef TIDE_TOOLS_PLAN_ADVICE_H
#define TIDE_TOOLS_PLAN_ADVICE_H

#include "src/perf/performance_model.h"

enum { TIDE_PROPOSALS = 3, TIDE_PROPOSAL_TEXT_BYTES = 160, TIDE_PROPOSAL_OPTION_BYTES = 640 };

typedef struct tide_proposal {
    char what[TIDE_PROPOSAL_TEXT_BYTES];     /* "a batch twice as large" */
    char option[TIDE_PROPOSAL_OPTION_BYTES]; /* "--batch-tokens 65536"; "" where it is another machine */
    bool changes_bits;                       /* of what is trained */
    double step_seconds, tokens_per_second;  /* 0 where only memory was asked */
    double gain;                             /* of tokens a second: 0.1 is a tenth more */
} tide_proposal;

/* The changes that give the most tokens a second, the best first, if each gives a hundredth at least. `given` is the performance of
 * the run as it is. What can't be tried is left out, and what is left when a stop is
 * wanted (stop.h). Returns how many. */
uint32_t tide_plan_changes(const tide_trainer_options *options, const tide_machine_profile *profile,
                           const tide_performance *given, tide_proposal best[TIDE_PROPOSALS]);

/* Of them those that change what is computed. */
uint32_t tide_plan_other_results(const tide_trainer_options *options, const tide_machine_profile *profile,
                                 const tide_performance *given, tide_proposal best[TIDE_PROPOSALS]);

/* Of a run that does not fit: ways out of which each by itself is enough, the least intrusive first. Returns how many. */
uint32_t tide_plan_ways_out(const tide_trainer_options *options, const tide_machine_profile *profile,
                            tide_proposal ways[TIDE_PROPOSALS]);

/* The least batch, by doubling or halving the run's, in which offloading costs nothing: a step takes at most a fiftieth longer
 * than its compute. 0: none up to 16 times the run's batch, or none that fits. */
uint64_t tide_plan_free_batch(const tide_trainer_options *options, const tide_machine_profile *profile,
                              const tide_performance *given);

#endif
