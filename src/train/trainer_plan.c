/* Makes model and pool from resolved options: chooses recompute, refuses runs that can't fit. It computes
 * sizes from plans (tide_pool_plan_make), which need no pool. The pool chooses default budgets
 * (src/pool/plan.c).
 *
 * Free memory is the memory available now. For a GPU it also includes memory that the machine can add later
 * (offload/free_memory.h).
 *
 * Recompute `auto`. The device budget first holds everything else that ops use: the region, all PARAM chunks,
 * the residuals and one spare slot. The rest of the budget holds the activations of as many blocks as fit.
 * These are the last blocks, whose activations wait the shortest time for backward. Optimizer state is not
 * counted, since the host can update it while the device computes, but recompute takes the device's time. If
 * the budget does not even hold the PARAM chunks, no block saves its activations. Blocks save no more than
 * fits in both budgets together beside all else, so a run that fits with recompute is never refused. */
#include "src/train/trainer_internal.h"

#include "base/align.h"
#include "base/minmax.h"
#include "base/team.h"
#include "src/pool/inspect.h"
#include "src/pool/plan.h"
#include "src/train/pool_memory.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>

enum {
    MESSAGE_BYTES = 1024,
    ADAMW_BYTES = 3 * sizeof(float) /* of an element: master, momentum and variance */
};

/* --- building --- */

/* The parts of tide_decoder_options that the trainer chooses, rather than copy from its own options. */
typedef struct model_variant {
    const tide_kernels *kernels;
    tide_decoder_seen seen; /* decoder.h; may be NULL */
    void *seen_context;
    bool *recompute; /* [layers]: which blocks recompute */
    bool *frozen;    /* [tensors]: which are frozen; NULL: none is */
} model_variant;

static tide_decoder_options model_options(const tide_trainer_options *options, const model_variant *variant)
{
    const uint64_t sequences = options->global_batch_tokens / options->seq_len;
    const uint32_t ranks = tide_trainer_ranks(options);
    return (tide_decoder_options){
        .config = options->model,
        .dtype = options->dtype,
        .seq_len = options->seq_len,
        .micro_batch_sequences = options->micro_batch_sequences,
        .micro_batches = (uint32_t)(sequences / options->micro_batch_sequences / ranks),
        .sum_groups = options->pool.sum_groups / ranks,
        .recompute = variant->recompute,
        .frozen = variant->frozen,
        .comm = options->pool.ranks.comm,
        .kernels = variant->kernels,
        .seen = variant->seen,
        .seen_context = variant->seen_context,
    };
}

static tide_status describe_model(const tide_trainer_options *options, const model_variant *variant,
                                  tide_decoder **model)
{
    const tide_decoder_options of_model = model_options(options, variant);
    return tide_decoder_create(&of_model, model);
}

/* The plan of a pool for this model, without the pool. */
static tide_status plan_for(const tide_trainer_options *options, const model_variant *variant,
                            tide_pool_plan *plan)
{
    tide_decoder *model = NULL;
    model_variant unseen = *variant;
    unseen.seen = NULL;
    tide_status status = describe_model(options, &unseen, &model);
    if (status == TIDE_OK)
        status = tide_pool_plan_make(&options->pool, tide_decoder_description(model), plan);
    plan->largest_op = NULL; /* a string of the description, which is destroyed below */
    tide_decoder_destroy(model);
    return status;
}

/* --- recompute --- */

/* How many device bytes ops use when `saved_blocks` blocks save their activations. `none_saved`: the plan in
 * which no block saves them. */
static uint64_t device_need(const tide_pool_plan *none_saved, uint64_t saved_block_bytes,
                            uint32_t saved_blocks)
{
    const uint64_t chunk = none_saved->chunk_bytes;
    const uint64_t activation_bytes =
        none_saved->space_bytes[TIDE_SPACE_ACTIVATION] + saved_blocks * saved_block_bytes;
    const uint64_t activation_chunks = tide_ceil_div(activation_bytes, chunk);
    const uint64_t spare = 1;
    return none_saved->region_bytes + none_saved->frame_bytes +
           (none_saved->chunks[TIDE_SPACE_PARAM] + activation_chunks + spare) * chunk;
}

/* Do both budgets together hold all chunks, with one slot to spare for a chunk that moves? */
static bool all_fits(const tide_pool_plan *none_saved, uint64_t saved_block_bytes, uint32_t saved_blocks,
                     uint64_t device_bytes, uint64_t host_bytes)
{
    const uint64_t chunk = none_saved->chunk_bytes, spare = 1;
    const uint64_t activation_bytes =
        none_saved->space_bytes[TIDE_SPACE_ACTIVATION] + saved_blocks * saved_block_bytes;
    const uint64_t taken = none_saved->region_bytes + none_saved->frame_bytes;
    const uint64_t chunks = none_saved->chunks[TIDE_SPACE_PARAM] + none_saved->chunks[TIDE_SPACE_STATE] +
                            tide_ceil_div(activation_bytes, chunk);
    return device_bytes / 2 + host_bytes / 2 > UINT64_MAX / 4 ||
           chunks + spare <= (device_bytes - tide_min_u64(taken, device_bytes)) / chunk +
                                 (host_bytes - tide_min_u64(none_saved->buffer_bytes, host_bytes)) / chunk;
}

/* How many blocks have a backward pass. */
static uint32_t reached_blocks(const tide_trainer_options *options, const model_variant *variant)
{
    return options->model.layers - tide_decoder_lowest_trained(&options->model, variant->frozen);
}

static tide_status saved_automatically(const tide_trainer_options *options, uint64_t saved_block_bytes,
                                       const model_variant *variant, uint32_t *saved_blocks)
{
    const tide_pool_options *pool = &options->pool;
    tide_trainer_options fewest = *options; /* activations come before frames that ops do not need */
    tide_pool_plan none_saved;
    if (fewest.pool.ranks.zero_stage == 3 && fewest.pool.ranks.reshard == TIDE_RESHARD_AUTO)
        fewest.pool.ranks.reshard = TIDE_RESHARD_ON;
    const tide_status status = plan_for(&fewest, variant, &none_saved);
    if (status != TIDE_OK)
        return status;
    const uint64_t available = none_saved.device_available_bytes;
    const uint64_t limit_bytes = pool->device_memory_bytes != 0
                                     ? pool->device_memory_bytes
                                     : tide_plan_device_most(pool->free_memory_bytes, available);
    const uint64_t host_bytes = pool->host_memory_bytes != 0
                                    ? pool->host_memory_bytes
                                    : tide_plan_host_most(pool->free_memory_bytes, available, limit_bytes);
    uint32_t blocks = reached_blocks(options, variant);
    while (blocks > 0 && (device_need(&none_saved, saved_block_bytes, blocks) > limit_bytes ||
                          !all_fits(&none_saved, saved_block_bytes, blocks, limit_bytes, host_bytes)))
        blocks--;
    *saved_blocks = blocks;
    return TIDE_OK;
}

/* The last `saved_blocks` blocks keep their activations, all others recompute them. Blocks that backward does
 * not reach save none. */
static tide_status choose_recompute(const tide_trainer_options *options, uint64_t saved_block_bytes,
                                    const model_variant *variant)
{
    const uint32_t layers = options->model.layers;
    uint32_t saved_blocks = options->recompute == TIDE_RECOMPUTE_NONE ? reached_blocks(options, variant) : 0;
    for (uint32_t i = 0; i < layers; i++)
        variant->recompute[i] = true;
    if (options->recompute == TIDE_RECOMPUTE_AUTO) {
        const tide_status status = saved_automatically(options, saved_block_bytes, variant, &saved_blocks);
        if (status != TIDE_OK)
            return status;
    }
    for (uint32_t i = layers - saved_blocks; i < layers; i++)
        variant->recompute[i] = false;
    return TIDE_OK;
}

/* All ranks recompute the same blocks, so that their ops use the same params: as many as the rank with the
 * least memory. */
static tide_status agree_on_recompute(const tide_trainer_options *options, const model_variant *variant)
{
    tide_comm *comm = options->pool.ranks.comm;
    const uint32_t ranks = tide_comm_ranks(comm);
    uint32_t mine = 0, most = 0; /* the first blocks, which recompute */
    uint32_t *all = calloc(ranks, sizeof *all);
    if (all == NULL)
        return tide_fail(TIDE_ERROR_NO_MEMORY, "no memory to compare %u ranks", ranks);
    while (mine < options->model.layers && variant->recompute[mine])
        mine++;
    const tide_status status = tide_comm_exchange(comm, &mine, sizeof mine, all);
    for (uint32_t rank = 0; rank < ranks && status == TIDE_OK; rank++)
        most = tide_max_u32(most, all[rank]);
    for (uint32_t i = 0; i < most; i++)
        variant->recompute[i] = true;
    free(all);
    return status;
}

/* --- refusals --- */

static tide_status batch_fits(const tide_trainer_options *options, const model_variant *variant,
                              uint32_t micro_batches, bool *fits)
{
    tide_trainer_options smaller = *options;
    smaller.global_batch_tokens = (uint64_t)micro_batches * options->micro_batch_sequences * options->seq_len;
    tide_pool_plan plan;
    const tide_status status = plan_for(&smaller, variant, &plan);
    if (status == TIDE_OK)
        *fits = plan.least_device_bytes <= plan.device_memory_bytes &&
                plan.least_host_bytes <= plan.host_memory_bytes;
    return status;
}

/* Call after the pool has refused its budgets: if a batch of fewer micro-batches would fit, adds the
 * tokens of the largest such batch to the message. */
static tide_status refuse(const tide_trainer_options *options, const model_variant *variant,
                          tide_description *description)
{
    char message[MESSAGE_BYTES];
    snprintf(message, sizeof message, "%s", tide_message());
    tide_pool_plan plan;
    tide_status status = tide_pool_plan_make(&options->pool, description, &plan);
    if (status != TIDE_OK)
        return tide_fail(TIDE_ERROR_BUDGET, "%s", message);
    tide_trainer_options in_force = *options;
    in_force.pool.device_memory_bytes = plan.device_memory_bytes;
    in_force.pool.host_memory_bytes = plan.host_memory_bytes;
    const uint32_t groups = options->pool.sum_groups; /* which divide the micro-batches */
    uint32_t fitting = 0;
    uint32_t refused =
        (uint32_t)(options->global_batch_tokens / options->seq_len / options->micro_batch_sequences / groups);
    while (refused - fitting > 1) {
        const uint32_t middle = fitting + (refused - fitting) / 2;
        bool fits = false;
        status = batch_fits(&in_force, variant, middle * groups, &fits);
        if (status != TIDE_OK)
            return status;
        *(fits ? &fitting : &refused) = middle;
    }
    if (fitting == 0)
        return tide_fail(TIDE_ERROR_BUDGET, "%s", message);
    return tide_fail(TIDE_ERROR_BUDGET, "%s; the largest batch that fits is %llu tokens", message,
                     (unsigned long long)fitting * groups * options->micro_batch_sequences *
                         options->seq_len);
}

/* --- the plan --- */

/* How many of the blocks that backward reaches recompute. */
static uint32_t count_recomputed(const tide_trainer_options *options, const model_variant *variant)
{
    uint32_t count = 0;
    for (uint32_t i = options->model.layers - reached_blocks(options, variant); i < options->model.layers;
         i++)
        count += variant->recompute[i];
    return count;
}

/* Sum up the params by kind: trained, frozen and padding. */
static void describe_params(const tide_trainer_options *options, const bool *frozen, tide_trainer_plan *plan)
{
    const uint32_t value_bytes = (uint32_t)tide_dtype_bytes(options->dtype);
    plan->frozen_element_bytes = value_bytes;
    plan->element_bytes = value_bytes + ADAMW_BYTES;
    for (size_t i = 0; i < tide_model_param_count(&options->model); i++) {
        tide_model_param param;
        tide_model_param_describe(&options->model, i, &param);
        const bool is_frozen = frozen && frozen[param.first_tensor];
        uint64_t *end = is_frozen ? &plan->frozen_bytes : &plan->trained_bytes;
        *end = tide_align_up(*end) + param.memory_elements * value_bytes;
        plan->params += param.elements;
        plan->frozen_params += is_frozen ? param.elements : 0;
        plan->frozen_tensors += is_frozen ? param.tensors : 0;
        plan->padding_bytes += (param.memory_elements - param.elements) *
                               (is_frozen ? plan->frozen_element_bytes : plan->element_bytes);
    }
}

static tide_trainer_plan describe(const tide_trainer_options *options, const model_variant *variant,
                                  uint64_t available_bytes)
{
    const tide_decoder_options of_model = model_options(options, variant);
    const tide_decoder_region region = tide_decoder_region_layout(&of_model);
    const uint64_t part_bytes = tide_decoder_residual_part_bytes(&of_model);
    const uint64_t parts = (options->model.layers + UINT64_C(1)) * of_model.micro_batches;
    tide_trainer_plan plan = {
        .global_batch_tokens = options->global_batch_tokens,
        .warmup_steps = options->hyper.schedule.warmup_steps,
        .free_memory_bytes = options->pool.free_memory_bytes,
        .device_available_bytes = available_bytes == UINT64_MAX ? 0 : available_bytes,
        .seq_len = options->seq_len,
        .global_batch_sequences = (uint32_t)(options->global_batch_tokens / options->seq_len),
        .micro_batch_sequences = options->micro_batch_sequences,
        .ranks = tide_trainer_ranks(options),
        .micro_batches = of_model.micro_batches,
        .sum_groups = options->pool.sum_groups,
        .reduce_dtype = options->pool.reduce_dtype,
        .blocks = reached_blocks(options, variant),
        .recomputed_blocks = count_recomputed(options, variant),
        .residual_bytes =
            (parts - 1) * tide_align_up(part_bytes) + part_bytes, /* no padding after the last part */
        .saved_block_bytes = tide_align_up(tide_decoder_saved_part_bytes(&of_model)) * of_model.micro_batches,
        .token_bytes = region.losses_offset,
        .loss_bytes = region.logits_offset - region.losses_offset,
        .logits_bytes = region.rope_offset - region.logits_offset,
        .rope_bytes = region.bytes - region.rope_offset,
        .default_device_budget = options->pool.device_memory_bytes == 0,
        .default_host_budget = options->pool.host_memory_bytes == 0,
    };
    plan.saved_bytes = (plan.blocks - plan.recomputed_blocks) * plan.saved_block_bytes;
    describe_params(options, variant->frozen, &plan);
    return plan;
}

/* Describes the model, and makes its pool or, if `pool` is NULL, only the pool's plan. A refusal says which
 * batch would fit. */
static tide_status build(const tide_trainer_options *options, const model_variant *variant, tide_pool **pool,
                         tide_pool_plan *plan, tide_decoder **model)
{
    tide_decoder *made = NULL;
    tide_status status = describe_model(options, variant, &made);
    if (status != TIDE_OK)
        return status;
    tide_description *description = tide_decoder_description(made);
    if (pool == NULL)
        status = tide_pool_plan_check(&options->pool, description, plan);
    else
        status = tide_pool_create(&options->pool, description, pool);
    if (status == TIDE_OK && pool != NULL) {
        tide_decoder_attach(made, *pool);
        status = tide_pool_plan_get(*pool, plan);
        assert(status == TIDE_OK);
    }
    if (status == TIDE_ERROR_BUDGET)
        status = refuse(options, variant, description);
    if (status == TIDE_OK)
        *model = made;
    else
        tide_decoder_destroy(made);
    return status;
}

static tide_status variant_make(const tide_trainer_options *options, model_variant *variant)
{
    variant->recompute = calloc(options->model.layers, sizeof *variant->recompute);
    if (!variant->recompute)
        return tide_fail(TIDE_ERROR_NO_MEMORY, "no memory for %u blocks", options->model.layers);
    const tide_status status = tide_trainer_frozen(options, &variant->frozen);
    if (status != TIDE_OK)
        free(variant->recompute);
    return status;
}

/* Finds the machine's part: kernels, and the memory of which default budgets are shares. */
static tide_status find_machine(tide_trainer_options *options, tide_device_factory *factory)
{
    const tide_status status =
        tide_device_factory_find(options->pool.device, options->pool.machine.gpu_memory_bytes, factory);
    if (status != TIDE_OK)
        return status;
    const int threads = tide_device_factory_threads(&options->pool);
    /* Ranks that are threads of one process have equal counts, and some may compute already. */
    if (tide_trainer_ranks(options) == 1 || tide_team_threads() != threads)
        tide_kernels_cpu_configure(threads);
    return tide_pool_memory_find(factory, options->imitates, &options->pool);
}

/* Completes the options and makes everything of a run that does not depend on data. */
static tide_status make(tide_trainer_options *options, tide_decoder_seen seen, void *seen_context,
                        tide_pool **pool, tide_decoder **model, tide_trainer_plan *plan)
{
    tide_device_factory factory;
    tide_status status = find_machine(options, &factory);
    if (status != TIDE_OK)
        return status;
    model_variant variant = {.kernels = factory.kernels, .seen = seen, .seen_context = seen_context};
    status = variant_make(options, &variant);
    if (status != TIDE_OK)
        return status;
    tide_trainer_plan made = describe(options, &variant, factory.available_bytes);
    status = choose_recompute(options, made.saved_block_bytes, &variant);
    tide_pool_plan of_pool;
    if (status == TIDE_OK && pool != NULL)
        status = agree_on_recompute(options, &variant);
    if (status == TIDE_OK)
        status = build(options, &variant, pool, &of_pool, model);
    if (status == TIDE_OK) {
        made = describe(options, &variant, factory.available_bytes);
        made.step_flops = tide_decoder_step_flops(*model);
        made.pool = of_pool;
        *plan = made;
    }
    free(variant.recompute);
    free(variant.frozen);
    return status;
}

tide_status tide_trainer_build(const tide_trainer_options *resolved, tide_pool **pool, tide_decoder **model,
                               tide_trainer_plan *plan)
{
    tide_trainer_options options = *resolved;
    return make(&options, NULL, NULL, pool, model, plan);
}

tide_status tide_trainer_draft_make(const tide_trainer_options *options, tide_decoder_seen seen,
                                    void *seen_context, tide_trainer_draft *draft)
{
    tide_trainer_draft made = {.model = NULL};
    tide_status status = tide_trainer_resolve(options, &made.options);
    if (status == TIDE_OK)
        status = make(&made.options, seen, seen_context, NULL, &made.model, &made.plan);
    if (status == TIDE_OK)
        *draft = made;
    return status;
}

void tide_trainer_draft_destroy(tide_trainer_draft *draft)
{
    tide_decoder_destroy(draft->model);
    *draft = (tide_trainer_draft){.model = NULL};
}
