#include "src/perf/advice.h"

#include "base/align.h"
#include "base/minmax.h"
#include "offload/module.h"
#include "src/model/family.h"

#include <stdio.h>

static const double worth = 0.01, free_part = 0.02;

enum { FREE_FACTOR_MOST = 16 };
#define CHUNK_LEAST        (UINT64_C(2) << 20)
#define CHUNK_MOST         (UINT64_C(512) << 20)
#define MEMORY_MORE_MOST   (UINT64_C(8) << 30)
#define CHUNK_LEAST_TO_FIT (UINT64_C(256) << 10)

bool tide_proposal_changes_numerics(const tide_proposal *proposal)
{
    const unsigned numeric = 1u << TIDE_CHANGE_BATCH | 1u << TIDE_CHANGE_MICRO_BATCH |
                             1u << TIDE_CHANGE_CLIP | 1u << TIDE_CHANGE_FREEZE | 1u << TIDE_CHANGE_SEQUENCE;
    return (numeric >> proposal->change & 1) != 0;
}

/* ---- changes that make a run faster ---- */

typedef struct search {
    const tide_advised *run;
    tide_proposal *best; /* [TIDE_PROPOSALS], the largest gain first */
    uint32_t count;
} search;

/* Inserts the proposal into the list of the best, unless all of those are better. */
static void keep(search *of, const tide_proposal *proposal)
{
    uint32_t place = of->count;
    while (place > 0 && of->best[place - 1].gain < proposal->gain)
        place--;
    if (place == TIDE_PROPOSALS)
        return;
    of->count += of->count < TIDE_PROPOSALS;
    for (uint32_t i = of->count - 1; i > place; i--)
        of->best[i] = of->best[i - 1];
    of->best[place] = *proposal;
}

static void try(search *of, tide_proposal proposal)
{
    const tide_advised *run = of->run;
    if ((run->changes & 1u << proposal.change) == 0)
        return;
    run->predict(run->context, &proposal, run->tokens_per_second * (1 + worth));
    if (proposal.step_seconds <= 0)
        return;
    proposal.gain = proposal.tokens_per_second / run->tokens_per_second - 1;
    if (proposal.gain >= worth)
        keep(of, &proposal);
}

static void device_memory_try(search *of)
{
    const tide_advised *run = of->run;
    const uint64_t had = run->device_memory_bytes, more = tide_min_u64(had, MEMORY_MORE_MOST),
                   bytes = had + more;
    if (had < run->full_device_bytes)
        try(of, (tide_proposal){.change = TIDE_CHANGE_DEVICE_MEMORY,
                                .value = bytes,
                                .more_bytes = more,
                                .needs_larger_gpu = run->gpu_bytes != 0 && bytes > run->gpu_bytes});
}

static void numerics_try(search *of)
{
    const tide_advised *run = of->run;
    try(of, (tide_proposal){.change = TIDE_CHANGE_BATCH,
                            .value = 2 * run->global_batch_tokens,
                            .micro_batch_sequences = run->micro_batch_sequences});
    if (run->micro_batches % 2 == 0)
        try(of, (tide_proposal){.change = TIDE_CHANGE_MICRO_BATCH,
                                .value = 2 * (uint64_t)run->micro_batch_sequences});
    if (run->clips)
        try(of, (tide_proposal){.change = TIDE_CHANGE_CLIP});
}

static void chunk_size_try(search *of, uint64_t bytes)
{
    if (bytes >= CHUNK_LEAST && bytes <= CHUNK_MOST)
        try(of, (tide_proposal){.change = TIDE_CHANGE_CHUNK_SIZE, .value = bytes});
}

/* Skips a choice that recomputes the same blocks as the run does. */
static void recompute_try(search *of, tide_recompute recompute, uint32_t recomputed_blocks)
{
    if (recompute != of->run->recompute && recomputed_blocks != of->run->recomputed_blocks)
        try(of, (tide_proposal){.change = TIDE_CHANGE_RECOMPUTE, .value = recompute});
}

/* Skips the host if the host updates all chunks in the run as it is. */
static void placement_try(search *of, tide_placement placement)
{
    if (placement != of->run->placement && (placement != TIDE_PLACEMENT_HOST || of->run->device_updates > 0))
        try(of, (tide_proposal){.change = TIDE_CHANGE_PLACEMENT, .value = placement});
}

static uint32_t search_all(const tide_advised *run, bool numerics_only, tide_proposal best[TIDE_PROPOSALS])
{
    search of = {.run = run, .best = best};
    if (run->tokens_per_second <= 0)
        return 0;
    if (!numerics_only)
        device_memory_try(&of);
    numerics_try(&of);
    if (numerics_only)
        return of.count;
    chunk_size_try(&of, 2 * run->chunk_bytes);
    chunk_size_try(&of, run->chunk_bytes / 2);
    recompute_try(&of, TIDE_RECOMPUTE_NONE, 0);
    recompute_try(&of, TIDE_RECOMPUTE_ALL, run->blocks);
    for (int placement = TIDE_PLACEMENT_AUTO; placement <= TIDE_PLACEMENT_DEVICE; placement++)
        placement_try(&of, (tide_placement)placement);
    if (!run->prefetches)
        try(&of, (tide_proposal){.change = TIDE_CHANGE_PREFETCH});
    try(&of, (tide_proposal){.change = TIDE_CHANGE_LINK});
    try(&of, (tide_proposal){.change = TIDE_CHANGE_HOST_ADAM});
    return of.count;
}

uint32_t tide_advise(const tide_advised *run, tide_proposal best[TIDE_PROPOSALS])
{
    return search_all(run, false, best);
}

/* ---- a trainer's run with one thing changed ---- */

typedef struct trainer_run {
    const tide_trainer_options *options;
    const tide_machine_profile *profile;
    const tide_performance_how *how;
} trainer_run;

/* A copy of the machine with a GPU of `gpu_bytes`, which exists only in the prediction. */
static tide_machine_profile with_memory(const tide_machine_profile *profile, uint64_t gpu_bytes)
{
    tide_machine_profile other = *profile;
    other.gpu_bytes = gpu_bytes;
    other.is_here = false;
    return other;
}

static void machine_change(const tide_proposal *proposal, tide_trainer_options *options,
                           tide_machine_profile *profile)
{
    if (proposal->change == TIDE_CHANGE_LINK) {
        profile->h2d_bytes_per_second *= 2;
        profile->d2h_bytes_per_second *= 2;
        options->pool.link_bytes_per_second *= 2;
    }
    for (uint32_t i = 0; i < profile->adam_count && proposal->change == TIDE_CHANGE_HOST_ADAM; i++)
        profile->adams[i].bytes_per_second *= 2;
    if (proposal->needs_larger_gpu)
        *profile = with_memory(profile, proposal->value + proposal->more_bytes / 64);
}

static void options_change(const tide_proposal *proposal, tide_trainer_options *options)
{
    switch (proposal->change) {
    case TIDE_CHANGE_BATCH:
        options->global_batch_tokens = proposal->value;
        options->micro_batch_sequences = proposal->micro_batch_sequences;
        break;
    case TIDE_CHANGE_MICRO_BATCH:
        options->micro_batch_sequences = (uint32_t)proposal->value;
        break;
    case TIDE_CHANGE_CLIP:
        options->hyper.clip = 0;
        break;
    case TIDE_CHANGE_DEVICE_MEMORY:
        options->pool.device_memory_bytes = proposal->value;
        break;
    case TIDE_CHANGE_CHUNK_SIZE:
        options->pool.chunk_bytes = proposal->value;
        break;
    case TIDE_CHANGE_RECOMPUTE:
        options->recompute = (tide_recompute)proposal->value;
        break;
    case TIDE_CHANGE_PLACEMENT:
        options->pool.placement = (tide_placement)proposal->value;
        break;
    case TIDE_CHANGE_PREFETCH:
        options->pool.prefetch = true;
        break;
    default:
        break;
    }
}

/* A tide_advised's predict. */
static void trainer_predict(void *context, tide_proposal *proposal, double least)
{
    const trainer_run *run = context;
    tide_trainer_options options = *run->options;
    tide_machine_profile profile = *run->profile;
    tide_performance performance;
    tide_performance_how how = {.tokens_per_second_least = least};
    if (run->how != NULL) {
        how.go_on = run->how->go_on;
        how.context = run->how->context;
    }
    options_change(proposal, &options);
    machine_change(proposal, &options, &profile);
    if (tide_performance_make(&options, &profile, &how, &performance) != TIDE_OK)
        return;
    proposal->step_seconds = performance.step.seconds;
    proposal->tokens_per_second = performance.tokens_per_second;
}

uint32_t tide_advise_trainer(const tide_trainer_options *options, const tide_machine_profile *profile,
                             const tide_performance_how *how, const tide_performance *given,
                             bool numerics_only, tide_proposal best[TIDE_PROPOSALS])
{
    const tide_trainer_plan *plan = &given->plan;
    trainer_run run = {options, profile, how};
    const tide_advised advised = {.changes = UINT32_MAX,
                                  .global_batch_tokens = plan->global_batch_tokens,
                                  .chunk_bytes = plan->pool.chunk_bytes,
                                  .device_memory_bytes = plan->pool.device_memory_bytes,
                                  .full_device_bytes = plan->pool.full_device_bytes,
                                  .gpu_bytes = profile->gpu_bytes,
                                  .micro_batches = plan->micro_batches,
                                  .micro_batch_sequences = plan->micro_batch_sequences,
                                  .blocks = plan->blocks,
                                  .recomputed_blocks = plan->recomputed_blocks,
                                  .device_updates = plan->pool.device_updates,
                                  .recompute = options->recompute,
                                  .placement = options->pool.placement,
                                  .clips = options->hyper.clip > 0,
                                  .prefetches = options->pool.prefetch,
                                  .tokens_per_second = given->tokens_per_second,
                                  .predict = trainer_predict,
                                  .context = &run};
    return search_all(&advised, numerics_only, best);
}

/* ---- the batch from which offloading costs nothing ---- */

static bool costs_nothing(const tide_performance *performance)
{
    return performance->step.seconds <= (1 + free_part) * performance->step.compute_seconds;
}

/* False also if a run with that batch is not possible. */
static bool is_free_at(const trainer_run *run, const tide_performance *given, uint64_t tokens)
{
    tide_trainer_options changed = *run->options;
    tide_performance performance;
    changed.global_batch_tokens = tokens;
    changed.micro_batch_sequences = given->plan.micro_batch_sequences;
    return tide_performance_make(&changed, run->profile, run->how, &performance) == TIDE_OK &&
           costs_nothing(&performance);
}

uint64_t tide_advise_free_batch(const tide_trainer_options *options, const tide_machine_profile *profile,
                                const tide_performance_how *how, const tide_performance *given)
{
    const trainer_run run = {options, profile, how};
    /* sum groups divide the micro-batches: count as many of these as there are groups as one */
    const uint64_t groups = given->plan.sum_groups;
    const uint64_t micro_batch = groups * given->plan.micro_batch_sequences * given->plan.seq_len;
    uint64_t batches = given->plan.micro_batches / groups;
    if (costs_nothing(given)) {
        while (batches > 1 && is_free_at(&run, given, batches / 2 * micro_batch))
            batches /= 2;
        return batches * micro_batch;
    }
    for (uint64_t factor = 2; factor <= FREE_FACTOR_MOST; factor *= 2)
        if (is_free_at(&run, given, factor * batches * micro_batch))
            return factor * batches * micro_batch;
    return 0;
}

/* ---- ways to make a run fit ---- */

typedef struct exits {
    const tide_trainer_options *options;
    const tide_machine_profile *profile;
    tide_proposal *ways;
    uint32_t count;
} exits;

/* Sizes are rounded to multiples of this, so that they look as if a person had written them. */
static uint64_t step_of(uint64_t bytes)
{
    return bytes < UINT64_C(4) << 30 ? UINT64_C(1) << 20 : UINT64_C(256) << 20;
}

static uint64_t up(uint64_t bytes)
{
    return tide_round_up(bytes, step_of(bytes));
}

static bool fits(const tide_trainer_options *options, const tide_machine_profile *profile,
                 tide_performance *performance)
{
    return tide_performance_memory(options, profile, performance) == TIDE_OK;
}

static void way_add(exits *of, tide_proposal way)
{
    if (of->count < TIDE_PROPOSALS)
        of->ways[of->count++] = way;
}

static void chunk_way(exits *of)
{
    tide_trainer_options changed = *of->options;
    tide_performance performance;
    const uint64_t least = of->profile->gpu_bytes != 0 ? TIDE_GPU_CHUNK_BYTES_LEAST : CHUNK_LEAST_TO_FIT;
    for (uint64_t bytes = changed.pool.chunk_bytes / 2; bytes >= least; bytes /= 2) {
        changed.pool.chunk_bytes = bytes;
        if (!fits(&changed, of->profile, &performance))
            continue;
        way_add(of, (tide_proposal){.change = TIDE_CHANGE_CHUNK_SIZE, .value = bytes});
        return;
    }
}

/* The least value of *bytes, a member of `changed`, between a value that is too small and one that is large
 * enough: a multiple of step_of. 0: the multiple does not fit. */
static uint64_t bisect(tide_trainer_options *changed, const tide_machine_profile *profile, uint64_t *bytes,
                       uint64_t too_little, uint64_t enough)
{
    tide_performance performance;
    while (enough - too_little > step_of(enough)) {
        *bytes = too_little + (enough - too_little) / 2;
        *(fits(changed, profile, &performance) ? &enough : &too_little) = *bytes;
    }
    *bytes = up(enough);
    return fits(changed, profile, &performance) ? *bytes : 0;
}

/* Finds the smallest host budget that fits. By default a run takes four fifths of the machine's memory. */
static void host_memory_way(exits *of)
{
    tide_trainer_options changed = *of->options;
    tide_performance performance;
    const bool by_default = changed.pool.host_memory_bytes == 0 && changed.pool.free_memory_bytes != 0;
    uint64_t too_little = 0, enough = UINT64_C(1) << 20;
    for (; enough < UINT64_C(1) << 44;
         /* doubles from below: the page tables for a huge host budget may leave a GPU no memory */
         enough *= 2) {
        changed.pool.host_memory_bytes = enough;
        if (fits(&changed, of->profile, &performance))
            break;
        too_little = enough;
    }
    const uint64_t least = bisect(&changed, of->profile, &changed.pool.host_memory_bytes, too_little, enough);
    if (least != 0)
        way_add(of, (tide_proposal){.change = TIDE_CHANGE_HOST_MEMORY,
                                    .value = least,
                                    .is_share = by_default && of->profile->gpu_bytes != 0});
}

/* Finds a device budget that fits if host and device share one memory. More for the device leaves less for
 * the host, so bisection would not work: this tries one size after the other. */
static uint64_t shared_device_fitting(const exits *of, tide_trainer_options *changed)
{
    enum { PARTS = 32 };
    tide_performance performance;
    for (uint64_t part = 1; part < PARTS && changed->pool.free_memory_bytes >= PARTS; part++) {
        changed->pool.device_memory_bytes = up(changed->pool.free_memory_bytes / PARTS * part);
        if (fits(changed, of->profile, &performance))
            return changed->pool.device_memory_bytes;
    }
    return 0;
}

/* The smallest device budget that fits, even if only a larger GPU has it; 0: none. */
static uint64_t gpu_memory_fitting(const exits *of, tide_trainer_options *changed)
{
    const tide_machine_profile ample = with_memory(of->profile, UINT64_C(1) << 50);
    const uint64_t enough = UINT64_C(1) << 44;
    tide_performance performance;
    changed->pool.device_memory_bytes = enough;
    return fits(changed, &ample, &performance)
               ? bisect(changed, &ample, &changed->pool.device_memory_bytes, 0, enough)
               : 0;
}

static void device_memory_way(exits *of)
{
    tide_trainer_options changed = *of->options;
    const uint64_t gpu_bytes = of->profile->gpu_bytes, least = gpu_bytes != 0
                                                                   ? gpu_memory_fitting(of, &changed)
                                                                   : shared_device_fitting(of, &changed);
    if (least != 0)
        way_add(of, (tide_proposal){.change = TIDE_CHANGE_DEVICE_MEMORY,
                                    .value = least,
                                    .needs_larger_gpu = gpu_bytes != 0 && least > gpu_bytes});
}

static void batch_way(exits *of)
{
    tide_trainer_options changed = *of->options;
    tide_performance performance;
    for (uint64_t tokens = changed.global_batch_tokens / 2;
         tokens >= changed.seq_len && tokens % changed.seq_len == 0; tokens /= 2) {
        changed.global_batch_tokens = tokens;
        changed.micro_batch_sequences = 0;
        if (!fits(&changed, of->profile, &performance))
            continue;
        way_add(of, (tide_proposal){.change = TIDE_CHANGE_BATCH,
                                    .value = tokens,
                                    .micro_batch_sequences = performance.plan.micro_batch_sequences});
        return;
    }
}

void tide_freeze_pattern(const tide_model_config *model, uint32_t decade,
                         char pattern[TIDE_FREEZE_PATTERN_BYTES])
{
    const char *layers = model->family->layer_name;
    if (decade == 0)
        snprintf(pattern, TIDE_FREEZE_PATTERN_BYTES, "%s[0-9].*", layers);
    else
        snprintf(pattern, TIDE_FREEZE_PATTERN_BYTES, "%s%u[0-9].*", layers, decade);
}

/* Tries to freeze blocks 0 to 9, then 0 to 19, and so on. */
static void freeze_way(exits *of)
{
    const tide_model_config *model = &of->options->model;
    char patterns[TIDE_FREEZE_DECADES][TIDE_FREEZE_PATTERN_BYTES];
    const char *list[TIDE_FREEZE_DECADES];
    tide_trainer_options changed = *of->options;
    tide_performance performance;
    if (changed.freeze_count != 0)
        return;
    changed.freeze = list;
    for (uint32_t decade = 0; decade < TIDE_FREEZE_DECADES && 10 * decade + 10 < model->layers; decade++) {
        tide_freeze_pattern(model, decade, patterns[decade]);
        list[decade] = patterns[decade];
        changed.freeze_count = decade + 1;
        if (!fits(&changed, of->profile, &performance))
            continue;
        way_add(of, (tide_proposal){.change = TIDE_CHANGE_FREEZE, .value = 10 * decade + 10});
        return;
    }
}

static void sequence_way(exits *of)
{
    tide_trainer_options changed = *of->options;
    tide_performance performance;
    const uint64_t sequences = changed.global_batch_tokens / changed.seq_len;
    for (uint32_t length = changed.seq_len / 2; length >= 128; length /= 2) {
        changed.seq_len = length;
        changed.global_batch_tokens = sequences * length;
        changed.micro_batch_sequences = 0;
        if (!fits(&changed, of->profile, &performance))
            continue;
        way_add(of, (tide_proposal){.change = TIDE_CHANGE_SEQUENCE,
                                    .value = length,
                                    .global_batch_tokens = changed.global_batch_tokens,
                                    .micro_batch_sequences = performance.plan.micro_batch_sequences});
        return;
    }
}

uint32_t tide_advise_fit(const tide_trainer_options *options, const tide_machine_profile *profile,
                         tide_proposal ways[TIDE_PROPOSALS])
{
    exits of = {.options = options, .profile = profile, .ways = ways};
    chunk_way(&of);
    batch_way(&of);
    host_memory_way(&of);
    device_memory_way(&of);
    freeze_way(&of);
    sequence_way(&of);
    return of.count;
}
