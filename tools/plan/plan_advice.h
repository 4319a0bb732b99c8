/* Proposals to change a run: to make it faster, or to make it fit. Each has been tried on the null device. */
#ifndef TIDE_TOOLS_PLAN_ADVICE_H
#define TIDE_TOOLS_PLAN_ADVICE_H

#include "src/perf/performance_model.h"

enum { TIDE_PROPOSALS = 3, TIDE_PROPOSAL_TEXT_BYTES = 160, TIDE_PROPOSAL_OPTION_BYTES = 640 };

typedef struct tide_proposal {
    char what[TIDE_PROPOSAL_TEXT_BYTES]; /* "a batch twice as large" */
    /* "--batch-tokens 65536"; "" if the proposal is another machine */
    char option[TIDE_PROPOSAL_OPTION_BYTES];
    bool changes_bits;                      /* the proposal changes the training's results */
    double step_seconds, tokens_per_second; /* 0 if only the memory was predicted */
    double gain;                            /* of tokens a second: 0.1 is a tenth more */
} tide_proposal;

/* Finds the changes that gain the most tokens a second, at least a hundredth each, the best first. `given` is
 * the performance of the run as it is. Skips changes that are not possible; stops trying when a signal asks
 * for the end (stop.h). Returns how many it found. */
uint32_t tide_plan_changes(const tide_trainer_options *options, const tide_machine_profile *profile,
                           const tide_performance *given, tide_proposal best[TIDE_PROPOSALS]);

/* Finds the best of those changes that alter the training's results. */
uint32_t tide_plan_other_results(const tide_trainer_options *options, const tide_machine_profile *profile,
                                 const tide_performance *given, tide_proposal best[TIDE_PROPOSALS]);

/* For a run that does not fit, finds changes of which each alone makes it fit, the least intrusive first.
 * Returns how many. */
uint32_t tide_plan_ways_out(const tide_trainer_options *options, const tide_machine_profile *profile,
                            tide_proposal ways[TIDE_PROPOSALS]);

/* The smallest batch, in tokens, from which offloading costs nothing: a step takes at most a fiftieth longer
 * than its compute. Only doublings and halvings of the run's batch are tried. 0: none up to 16 times the
 * run's batch that fits. */
uint64_t tide_plan_free_batch(const tide_trainer_options *options, const tide_machine_profile *profile,
                              const tide_performance *given);

#endif
