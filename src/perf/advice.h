/* Changes to a run that would make it faster, or make it fit. Each has been predicted.
 *
 * tide_advise knows no trainer: it lists changes to the facts of a run and asks a callback to predict them.
 * `tidepool plan` and `tune` predict with a trainer's options, `tidepool trace summary` with the ops of a
 * recorded run. */
#ifndef TIDE_PERF_ADVICE_H
#define TIDE_PERF_ADVICE_H

#include "src/perf/performance_model.h"

enum { TIDE_PROPOSALS = 3 };

typedef enum tide_change {
    /* faster runs */
    TIDE_CHANGE_BATCH = 0,     /* value: tokens */
    TIDE_CHANGE_MICRO_BATCH,   /* value: sequences */
    TIDE_CHANGE_CLIP,          /* no clipping */
    TIDE_CHANGE_DEVICE_MEMORY, /* value: bytes; the device budget */
    TIDE_CHANGE_CHUNK_SIZE,    /* value: bytes */
    TIDE_CHANGE_RECOMPUTE,     /* value: tide_recompute */
    TIDE_CHANGE_PLACEMENT,     /* value: tide_placement */
    TIDE_CHANGE_PREFETCH,      /* on */
    TIDE_CHANGE_LINK,          /* twice as fast */
    TIDE_CHANGE_HOST_ADAM,     /* twice as fast */
    /* only to make a run fit */
    TIDE_CHANGE_HOST_MEMORY, /* value: bytes */
    TIDE_CHANGE_FREEZE,      /* value: how many of the first blocks, a multiple of ten */
    TIDE_CHANGE_SEQUENCE,    /* value: its length */
} tide_change;

typedef struct tide_proposal {
    tide_change change;
    uint64_t value;
    uint64_t global_batch_tokens;   /* SEQUENCE: the new batch */
    uint32_t micro_batch_sequences; /* BATCH, SEQUENCE: the new micro-batch */
    uint64_t more_bytes;            /* DEVICE_MEMORY, of a faster run: how much more than the run has */
    bool needs_larger_gpu;          /* DEVICE_MEMORY: more than the machine's GPU has */
    bool is_share;                  /* HOST_MEMORY: by default, four fifths of the machine's memory */
    double step_seconds, tokens_per_second; /* 0 if only memory was predicted */
    double gain;                            /* of tokens a second: 0.1 is a tenth more */
} tide_proposal;

/* Does the change alter the training's results? */
bool tide_proposal_changes_numerics(const tide_proposal *proposal);

/* A run as it is, and how to predict it with one thing changed. */
typedef struct tide_advised {
    uint32_t changes; /* a set of 1 << tide_change: those that `predict` can make */
    uint64_t global_batch_tokens, chunk_bytes, device_memory_bytes, full_device_bytes;
    uint64_t gpu_bytes; /* the most that device_memory_bytes may be; 0: no limit */
    uint32_t micro_batches, micro_batch_sequences, blocks, recomputed_blocks;
    uint32_t device_updates; /* chunks that the device's optimizer updates at first */
    tide_recompute recompute;
    tide_placement placement;
    bool clips, prefetches;
    double tokens_per_second;
    /* Set step_seconds and tokens_per_second of a proposal. Leave them 0 if the change is not possible, if it
     * can't reach `least` tokens a second, or if the search is to end. */
    void (*predict)(void *context, tide_proposal *proposal, double least);
    void *context;
} tide_advised;

/* Find the changes that gain the most tokens a second, at least a hundredth each, the best first. Returns how
 * many it found. */
uint32_t tide_advise(const tide_advised *run, tide_proposal best[TIDE_PROPOSALS]);

/* --- advice on a trainer's run ---
 *
 * `how` may stop the search (go_on); it may be NULL. `given` is the performance of the run as it is. */

/* tide_advise. `numerics_only`: try only changes that alter the training's results. */
uint32_t tide_advise_trainer(const tide_trainer_options *options, const tide_machine_profile *profile,
                             const tide_performance_how *how, const tide_performance *given,
                             bool numerics_only, tide_proposal best[TIDE_PROPOSALS]);

/* For a run that does not fit, find changes of which each alone makes it fit, the least intrusive first.
 * Returns how many. */
uint32_t tide_advise_fit(const tide_trainer_options *options, const tide_machine_profile *profile,
                         tide_proposal ways[TIDE_PROPOSALS]);

/* Write the pattern for the blocks [10 * decade, 10 * decade + 10) as a user would write it in a shell. */
enum { TIDE_FREEZE_DECADES = 10, TIDE_FREEZE_PATTERN_BYTES = 48 };
void tide_freeze_pattern(const tide_model_config *model, uint32_t decade,
                         char pattern[TIDE_FREEZE_PATTERN_BYTES]);

/* The smallest batch, in tokens, from which offloading costs nothing: a step takes at most a fiftieth longer
 * than its compute. Tries only doublings and halvings of the run's batch. 0: none up to 16 times the run's
 * batch that fits. */
uint64_t tide_advise_free_batch(const tide_trainer_options *options, const tide_machine_profile *profile,
                                const tide_performance_how *how, const tide_performance *given);

#endif
