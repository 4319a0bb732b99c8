#include "tools/plan/plan_advice.h"

#include "base/align.h"
#include "offload/module.h"
#include "src/model/family.h"
#include "tools/train/stop.h"
#include "tools/units.h"

#include <stdio.h>
#include <string.h>

static const double worth = 0.01, free_part = 0.02;

enum { FREE_FACTOR_MOST = 16, FREEZE_DECADES = 10 };

/* ---- changes ---- */

/* A run on a machine, with one thing changed. */
typedef struct variant {
    tide_trainer_options options;
    tide_machine_profile profile;
    tide_proposal proposal;
} variant;

static variant variant_of(const tide_trainer_options *options, const tide_machine_profile *profile,
                          const char *what, bool changes_bits)
{
    variant made = {.options = *options, .profile = *profile};
    snprintf(made.proposal.what, sizeof made.proposal.what, "%s", what);
    made.proposal.changes_bits = changes_bits;
    return made;
}

typedef struct tide_search {
    const tide_trainer_options *options;
    const tide_machine_profile *profile;
    const tide_performance *given;
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

static bool goes_on(void *context)
{
    (void)context;
    return !tide_stop_wanted();
}

static void try(search *of, variant *changed)
{
    tide_performance performance;
    tide_proposal *proposal = &changed->proposal;
    const tide_performance_how how = {.go_on = goes_on,
                                      .tokens_per_second_least = of->given->tokens_per_second * (1 + worth)};
    if (tide_performance_make(&changed->options, &changed->profile, &how, &performance) != TIDE_OK ||
        performance.step.seconds <= 0)
        return;
    proposal->step_seconds = performance.step.seconds;
    proposal->tokens_per_second = performance.tokens_per_second;
    proposal->gain = performance.tokens_per_second / of->given->tokens_per_second - 1;
    if (proposal->gain >= worth)
        keep(of, proposal);
}

/* Whether these bytes are more than the GPU has. */
static bool on_larger_gpu(const tide_machine_profile *profile, uint64_t device_bytes)
{
    return profile->gpu_bytes != 0 && device_bytes > profile->gpu_bytes;
}

/* A copy of the machine with a GPU of `gpu_bytes`, which exists only in the prediction. */
static tide_machine_profile with_memory(const tide_machine_profile *profile, uint64_t gpu_bytes)
{
    tide_machine_profile other = *profile;
    other.gpu_bytes = gpu_bytes;
    other.is_here = false;
    return other;
}

static void device_memory_try(search *of)
{
    const tide_pool_plan *plan = &of->given->plan.pool;
    const uint64_t most = UINT64_C(8) << 30, had = plan->device_memory_bytes, more = had < most ? had : most;
    char size[TIDE_UNITS_TEXT_BYTES], what[64], whole[TIDE_UNITS_TEXT_BYTES];
    if (had >= plan->full_device_bytes)
        return;
    snprintf(what, sizeof what, "%s more device memory", tide_size_format(more, size));
    variant changed = variant_of(of->options, of->profile, what, false);
    changed.options.pool.device_memory_bytes = had + more;
    if (on_larger_gpu(of->profile, had + more))
        changed.profile = with_memory(of->profile, had + more + more / 64);
    else
        snprintf(changed.proposal.option, sizeof changed.proposal.option, "--device-memory %s",
                 tide_size_format_exact(had + more, whole));
    try(of, &changed);
}

static void batch_try(search *of)
{
    const uint64_t tokens = 2 * of->given->plan.batch_tokens;
    variant changed = variant_of(of->options, of->profile, "a batch twice as large", true);
    changed.options.batch_tokens = tokens;
    changed.options.micro_batch_sequences = of->given->plan.micro_batch_sequences;
    snprintf(changed.proposal.option, sizeof changed.proposal.option, "--batch-tokens %llu --micro-batch %u",
             (unsigned long long)tokens, changed.options.micro_batch_sequences);
    try(of, &changed);
}

static void micro_batch_try(search *of)
{
    const tide_trainer_plan *plan = &of->given->plan;
    variant changed = variant_of(of->options, of->profile, "micro-batches twice as large", true);
    if (plan->micro_batches % 2 != 0)
        return;
    changed.options.micro_batch_sequences = 2 * plan->micro_batch_sequences;
    snprintf(changed.proposal.option, sizeof changed.proposal.option, "--micro-batch %u",
             changed.options.micro_batch_sequences);
    try(of, &changed);
}

static void clip_try(search *of)
{
    variant changed = variant_of(of->options, of->profile, "no clipping: updates run during backward", true);
    if (of->options->clip <= 0)
        return;
    changed.options.clip = 0;
    snprintf(changed.proposal.option, sizeof changed.proposal.option, "--clip 0");
    try(of, &changed);
}

static void chunk_try(search *of, bool larger)
{
    const uint64_t had = of->given->plan.pool.chunk_bytes, least = UINT64_C(2) << 20,
                   most = UINT64_C(1) << 29;
    char size[TIDE_UNITS_TEXT_BYTES], what[64];
    if ((larger && 2 * had > most) || (!larger && had / 2 < least))
        return;
    const uint64_t bytes = larger ? 2 * had : had / 2;
    snprintf(what, sizeof what, "chunks of %s", tide_size_format(bytes, size));
    variant changed = variant_of(of->options, of->profile, what, false);
    changed.options.pool.chunk_bytes = bytes;
    snprintf(changed.proposal.option, sizeof changed.proposal.option, "--chunk-size %s",
             tide_size_format_exact(bytes, size));
    try(of, &changed);
}

static void recompute_try(search *of, tide_recompute recompute, const char *word, const char *what)
{
    variant changed = variant_of(of->options, of->profile, what, false);
    if (of->options->recompute == recompute)
        return;
    changed.options.recompute = recompute;
    snprintf(changed.proposal.option, sizeof changed.proposal.option, "--recompute %s", word);
    try(of, &changed);
}

static void placement_try(search *of, tide_placement placement, const char *word)
{
    char what[64];
    snprintf(what, sizeof what, "the optimizer's place: %s", word);
    variant changed = variant_of(of->options, of->profile, what, false);
    if (of->options->pool.placement == placement)
        return;
    changed.options.pool.placement = placement;
    snprintf(changed.proposal.option, sizeof changed.proposal.option, "--optimizer-placement %s", word);
    try(of, &changed);
}

static void prefetch_try(search *of)
{
    variant changed = variant_of(of->options, of->profile, "prefetch", false);
    if (of->options->pool.prefetch)
        return;
    changed.options.pool.prefetch = true;
    snprintf(changed.proposal.option, sizeof changed.proposal.option, "--prefetch on");
    try(of, &changed);
}

static void machine_try(search *of)
{
    variant changed = variant_of(of->options, of->profile, "a link twice as fast", false);
    changed.profile.h2d_bytes_per_second *= 2;
    changed.profile.d2h_bytes_per_second *= 2;
    changed.options.pool.link_bytes_per_second *= 2;
    try(of, &changed);
    changed = variant_of(of->options, of->profile, "an optimizer on the host twice as fast", false);
    for (uint32_t i = 0; i < changed.profile.adam_count; i++)
        changed.profile.adams[i].bytes_per_second *= 2;
    try(of, &changed);
}

/* Tries the changes that alter the training's results. */
static void results_try(search *of)
{
    batch_try(of);
    micro_batch_try(of);
    clip_try(of);
}

uint32_t tide_plan_changes(const tide_trainer_options *options, const tide_machine_profile *profile,
                           const tide_performance *given, tide_proposal best[TIDE_PROPOSALS])
{
    search of = {.options = options, .profile = profile, .given = given, .best = best};
    if (given->tokens_per_second <= 0)
        return 0;
    device_memory_try(&of);
    results_try(&of);
    chunk_try(&of, true);
    chunk_try(&of, false);
    recompute_try(&of, TIDE_RECOMPUTE_NONE, "none", "no block computed again");
    recompute_try(&of, TIDE_RECOMPUTE_ALL, "all", "all blocks computed again");
    placement_try(&of, TIDE_PLACEMENT_AUTO, "auto");
    placement_try(&of, TIDE_PLACEMENT_HOST, "host");
    placement_try(&of, TIDE_PLACEMENT_DEVICE, "device");
    prefetch_try(&of);
    machine_try(&of);
    return of.count;
}

uint32_t tide_plan_other_results(const tide_trainer_options *options, const tide_machine_profile *profile,
                                 const tide_performance *given, tide_proposal best[TIDE_PROPOSALS])
{
    search of = {.options = options, .profile = profile, .given = given, .best = best};
    if (given->tokens_per_second > 0)
        results_try(&of);
    return of.count;
}

/* ---- the batch from which offloading costs nothing ---- */

static bool costs_nothing(const tide_performance *performance)
{
    return performance->step.seconds <= (1 + free_part) * performance->step.compute_seconds;
}

/* False also if a run with that batch is not possible. */
static bool is_free_at(const tide_trainer_options *options, const tide_machine_profile *profile,
                       const tide_performance *given, uint64_t tokens)
{
    tide_trainer_options changed = *options;
    tide_performance performance;
    changed.batch_tokens = tokens;
    changed.micro_batch_sequences = given->plan.micro_batch_sequences;
    return tide_performance_make(&changed, profile, NULL, &performance) == TIDE_OK &&
           costs_nothing(&performance);
}

uint64_t tide_plan_free_batch(const tide_trainer_options *options, const tide_machine_profile *profile,
                              const tide_performance *given)
{
    const uint64_t micro_batch = (uint64_t)given->plan.micro_batch_sequences * given->plan.seq_len;
    uint64_t batches = given->plan.micro_batches;
    if (costs_nothing(given)) {
        while (batches > 1 && is_free_at(options, profile, given, batches / 2 * micro_batch))
            batches /= 2;
        return batches * micro_batch;
    }
    for (uint64_t factor = 2; factor <= FREE_FACTOR_MOST; factor *= 2)
        if (is_free_at(options, profile, given, factor * batches * micro_batch))
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

static void way_add(exits *of, bool changes_bits, const char *what, const char *option)
{
    if (of->count == TIDE_PROPOSALS)
        return;
    tide_proposal *way = &of->ways[of->count++];
    *way = (tide_proposal){.changes_bits = changes_bits};
    snprintf(way->what, sizeof way->what, "%s", what);
    snprintf(way->option, sizeof way->option, "%s", option);
}

static void chunk_way(exits *of)
{
    tide_trainer_options changed = *of->options;
    tide_performance performance;
    char size[TIDE_UNITS_TEXT_BYTES], option[64];
    const uint64_t least = of->profile->gpu_bytes != 0 ? TIDE_GPU_CHUNK_BYTES_LEAST : UINT64_C(256) << 10;
    for (uint64_t bytes = changed.pool.chunk_bytes / 2; bytes >= least; bytes /= 2) {
        changed.pool.chunk_bytes = bytes;
        if (!fits(&changed, of->profile, &performance))
            continue;
        snprintf(option, sizeof option, "--chunk-size %s", tide_size_format_exact(bytes, size));
        way_add(of, false, "smaller chunks", option);
        return;
    }
}

/* Finds the smallest host budget that fits, by bisection. By default a run takes four fifths of the machine's
 * memory. */
static void host_memory_way(exits *of)
{
    tide_trainer_options changed = *of->options;
    tide_performance performance;
    char size[TIDE_UNITS_TEXT_BYTES], what[TIDE_PROPOSAL_TEXT_BYTES], option[64];
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
    while (enough - too_little > step_of(enough)) {
        changed.pool.host_memory_bytes = too_little + (enough - too_little) / 2;
        *(fits(&changed, of->profile, &performance) ? &enough : &too_little) = changed.pool.host_memory_bytes;
    }
    const uint64_t least = changed.pool.host_memory_bytes = up(enough);
    if (!fits(&changed, of->profile, &performance))
        return;
    snprintf(option, sizeof option, "--host-memory %s", tide_size_format_exact(least, size));
    snprintf(what, sizeof what, "a host budget of %s", tide_size_format(least, size));
    if (by_default && of->profile->gpu_bytes != 0)
        snprintf(what + strlen(what), sizeof what - strlen(what), ", which is four fifths of %s of memory",
                 tide_size_format(least / 4 * 5, size));
    way_add(of, false, what, option);
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
    tide_performance performance;
    uint64_t too_little = 0, enough = UINT64_C(1) << 44;
    changed->pool.device_memory_bytes = enough;
    if (!fits(changed, &ample, &performance))
        return 0;
    while (enough - too_little > step_of(enough)) {
        changed->pool.device_memory_bytes = too_little + (enough - too_little) / 2;
        *(fits(changed, &ample, &performance) ? &enough : &too_little) = changed->pool.device_memory_bytes;
    }
    changed->pool.device_memory_bytes = up(enough);
    return fits(changed, &ample, &performance) ? up(enough) : 0;
}

static void device_memory_way(exits *of)
{
    tide_trainer_options changed = *of->options;
    char size[TIDE_UNITS_TEXT_BYTES], what[TIDE_PROPOSAL_TEXT_BYTES], option[64];
    const uint64_t least =
        of->profile->gpu_bytes != 0 ? gpu_memory_fitting(of, &changed) : shared_device_fitting(of, &changed);
    if (least == 0)
        return;
    const bool larger = on_larger_gpu(of->profile, least);
    snprintf(what, sizeof what, "a device budget of %s%s", tide_size_format(least, size),
             larger ? ", on a larger GPU" : "");
    snprintf(option, sizeof option, "--device-memory %s", tide_size_format_exact(least, size));
    way_add(of, false, what, larger ? "" : option);
}

static void batch_way(exits *of)
{
    tide_trainer_options changed = *of->options;
    tide_performance performance;
    char option[96];
    for (uint64_t tokens = changed.batch_tokens / 2;
         tokens >= changed.seq_len && tokens % changed.seq_len == 0; tokens /= 2) {
        changed.batch_tokens = tokens;
        changed.micro_batch_sequences = 0;
        if (!fits(&changed, of->profile, &performance))
            continue;
        snprintf(option, sizeof option, "--batch-tokens %llu --micro-batch %u", (unsigned long long)tokens,
                 performance.plan.micro_batch_sequences);
        way_add(of, true, "a smaller batch", option);
        return;
    }
}

/* Tries to freeze blocks 0 to 9, then 0 to 19, and so on, by patterns as a user would write them in a
 * shell. */
static void freeze_way(exits *of)
{
    const tide_model_config *model = &of->options->model;
    static char patterns[FREEZE_DECADES][48];
    const char *list[FREEZE_DECADES];
    tide_trainer_options changed = *of->options;
    tide_performance performance;
    char what[TIDE_PROPOSAL_TEXT_BYTES], option[FREEZE_DECADES * 64] = "";
    if (changed.freeze_count != 0)
        return;
    changed.freeze = list;
    for (uint32_t decade = 0; decade < FREEZE_DECADES && 10 * decade + 10 < model->layers; decade++) {
        const char *layers = model->family->layer_name;
        if (decade == 0)
            snprintf(patterns[decade], sizeof patterns[decade], "%s[0-9].*", layers);
        else
            snprintf(patterns[decade], sizeof patterns[decade], "%s%u[0-9].*", layers, decade);
        list[decade] = patterns[decade];
        changed.freeze_count = decade + 1;
        const size_t length = strlen(option);
        snprintf(option + length, sizeof option - length, "%s--freeze '%s'", decade > 0 ? " " : "",
                 patterns[decade]);
        if (!fits(&changed, of->profile, &performance))
            continue;
        snprintf(what, sizeof what, "the first %u of %u blocks not trained", 10 * decade + 10, model->layers);
        way_add(of, true, what, option);
        return;
    }
}

static void sequence_way(exits *of)
{
    tide_trainer_options changed = *of->options;
    tide_performance performance;
    char option[96];
    const uint64_t sequences = changed.batch_tokens / changed.seq_len;
    for (uint32_t length = changed.seq_len / 2; length >= 128; length /= 2) {
        changed.seq_len = length;
        changed.batch_tokens = sequences * length;
        changed.micro_batch_sequences = 0;
        if (!fits(&changed, of->profile, &performance))
            continue;
        snprintf(option, sizeof option, "--seq-len %u --batch-tokens %llu --micro-batch %u", length,
                 (unsigned long long)changed.batch_tokens, performance.plan.micro_batch_sequences);
        way_add(of, true, "shorter sequences", option);
        return;
    }
}

uint32_t tide_plan_ways_out(const tide_trainer_options *options, const tide_machine_profile *profile,
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
