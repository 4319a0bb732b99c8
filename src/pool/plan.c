/* Plans the place of every byte: the region, the slots, the budgets, and the refusals.
 *
 *     region   | non-model | shared accumulators | norm blocks | scalars | the op's workspace, accumulators |
 *     device   budget >= device_slots x chunk + region
 *     host     budget >= host_slots x chunk + buffers (staging, mailbox, segment tables)
 *
 * The region's size depends neither on the chunk size nor on budgets, so nothing computed in it can depend on
 * them.
 */
#include "src/pool/internal.h"

#include "base/minmax.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

enum { SCALAR_BYTES = TIDE_ALIGNMENT_BYTES };

static tide_status layout_fill(const tide_pool *pool, tide_layout *layout)
{
    tide_status status = TIDE_OK;
    uint32_t number;
    for (uint32_t i = 0; i < pool->model.param_count && status == TIDE_OK; i++)
        status =
            tide_layout_add_param_of(layout, &pool->model.params[i].of_class.state,
                                     pool->model.params[i].name, pool->model.params[i].elements, &number);
    for (uint32_t i = 0; i < pool->model.activation_count && status == TIDE_OK; i++) {
        const tide_pool_activation *activation = &pool->model.activations[i];
        status = tide_layout_add_activation(layout, activation->name, activation->parts,
                                            activation->part_bytes, &number);
    }
    if (status == TIDE_OK)
        status = tide_layout_seal(layout);
    return status;
}

tide_status tide_pool_policy_build(const tide_pool *pool, uint64_t chunk_bytes, tide_layout **result_layout,
                                   tide_manager **result_manager)
{
    tide_layout *layout = NULL;
    tide_manager *manager = NULL;
    tide_op op;
    tide_status status = tide_layout_create(
        &(tide_layout_options){.chunk_bytes = chunk_bytes, .dtype = pool->context.options.dtype}, &layout);
    if (status == TIDE_OK)
        status = layout_fill(pool, layout);
    if (status == TIDE_OK)
        status = tide_manager_create(layout, &manager);
    for (uint32_t i = 0; i < pool->model.op_count && status == TIDE_OK; i++) {
        status = tide_manager_add_op(manager, &pool->model.ops[i].description, &op);
        assert(status != TIDE_OK || op == i);
    }
    if (status != TIDE_OK) {
        tide_manager_destroy(manager);
        tide_layout_destroy(layout);
        return status;
    }
    *result_layout = layout;
    *result_manager = manager;
    return TIDE_OK;
}

static bool region_is_valid(const tide_region_layout *region)
{
    const uint64_t offsets[] = {region->shared_offset, region->blocks_offset, region->scalars_offset,
                                region->workspace_offset, region->total_bytes};
    for (size_t i = 0; i < sizeof offsets / sizeof offsets[0]; i++) {
        if (offsets[i] % TIDE_ALIGNMENT_BYTES != 0 || (i > 0 && offsets[i] < offsets[i - 1]))
            return false;
    }
    return region->scalars_offset - region->blocks_offset >= region->blocks_count * sizeof(double);
}

bool tide_sealed_context_is_valid(const tide_sealed_context *context)
{
    const tide_pool_plan *plan = &context->plan;
    return region_is_valid(&context->region_layout) &&
           plan->device_slots * plan->chunk_bytes + plan->region_bytes <= plan->device_memory_bytes &&
           plan->host_slots * plan->chunk_bytes + plan->buffer_bytes <= plan->host_memory_bytes &&
           plan->region_bytes == context->region_layout.total_bytes;
}

/* Give each accumulator that several ops share a place of its own. Returns where they end. */
static uint64_t plan_shared(tide_pool *pool, const tide_gradients *gradients, uint64_t offset)
{
    for (uint32_t i = 0; i < pool->model.param_count; i++) {
        pool->model.params[i].shared_offset_bytes = UINT64_MAX;
        if (!tide_gradients_is_shared(gradients, i))
            continue;
        pool->model.params[i].shared_offset_bytes = offset;
        offset += tide_align_up(pool->model.params[i].elements * sizeof(float));
    }
    return offset;
}

/* Place the op's own accumulators: those that it overwrites, or the others. Returns where they end. */
static uint64_t plan_accumulators(const tide_pool *pool, tide_pool_op *op, bool overwritten, uint64_t offset)
{
    for (uint32_t j = 0; j < op->description.param_count; j++) {
        const tide_use use = op->description.params[j];
        const tide_pool_param *param = &pool->model.params[use.tensor];
        if (((use.access & TIDE_ACCESS_OVERWRITE) != 0) != overwritten)
            continue;
        op->accumulator_offsets[j] = param->shared_offset_bytes;
        if ((use.access & TIDE_ACCESS_GRAD) == 0 || param->shared_offset_bytes != UINT64_MAX)
            continue;
        assert(offset % TIDE_ALIGNMENT_BYTES == 0);
        op->accumulator_offsets[j] = offset;
        offset += tide_align_up(param->elements * sizeof(float));
    }
    return offset;
}

/* Place the op's workspace, then its accumulators, those that the pool zeroes side by side. Returns where
 * they end. */
static uint64_t plan_op(const tide_pool *pool, tide_pool_op *op, uint64_t workspace_offset)
{
    const uint64_t offset = workspace_offset + tide_align_up(op->description.workspace_bytes);
    return plan_accumulators(pool, op, true, plan_accumulators(pool, op, false, offset));
}

/* Plan the region's layout; sets the accumulator offsets of ops and params. Needs a manager with all ops. */
static void plan_region(tide_pool *pool, tide_manager *manager, tide_region_layout *region)
{
    region->blocks_count = 0;
    for (uint32_t i = 0; i < pool->model.param_count; i++) {
        pool->model.params[i].first_block = region->blocks_count;
        if (!tide_pool_param_is_frozen(&pool->model.params[i]))
            region->blocks_count += tide_norm_blocks(pool->model.params[i].elements);
    }
    region->shared_offset = tide_align_up(pool->context.options.nonmodel_bytes);
    region->blocks_offset = plan_shared(pool, tide_manager_gradients(manager), region->shared_offset);
    region->scalars_offset = region->blocks_offset + tide_align_up(region->blocks_count * sizeof(double));
    region->workspace_offset = region->total_bytes = region->scalars_offset + SCALAR_BYTES;
    for (uint32_t i = 0; i < pool->model.op_count; i++)
        region->total_bytes =
            tide_max_u64(region->total_bytes, plan_op(pool, &pool->model.ops[i], region->workspace_offset));
    assert(region_is_valid(region));
}

static uint64_t page_up(uint64_t bytes)
{
    return (bytes + 4095) / 4096 * 4096;
}

/* Each buffer takes whole pages (tide_device_ops.buffer_create counts them so). */
static uint64_t buffer_bytes(const tide_pool *pool, const tide_layout *layout)
{
    const uint64_t segments = page_up(tide_running_tasks_table_bytes(layout));
    return 2 * page_up(pool->context.options.staging_bytes / 2) + page_up(SCALAR_BYTES) +
           TIDE_RUNNING_TASKS_MAX * segments;
}

/* Chunks that ops use: params and activations. */
static uint64_t used_chunks(const tide_layout *layout)
{
    return (uint64_t)tide_layout_space_chunks(layout, TIDE_SPACE_PARAM) +
           tide_layout_space_chunks(layout, TIDE_SPACE_ACTIVATION);
}

/* Device slots with which no chunk ever has to move: one for each chunk used there, and one more. */
static uint64_t full_device_slots(const tide_pool *pool, const tide_layout *layout,
                                  const tide_slot_needs *needs)
{
    const bool state_there = pool->context.options.placement != TIDE_PLACEMENT_HOST;
    return tide_max_u64(needs->device_slots,
                        (state_there ? tide_layout_chunk_count(layout) : used_chunks(layout)) + 1);
}

/* The most host slots that a run takes beside so many on the device: with one fewer, more chunks would move.
 * On a device that cannot hold all chunks that ops use, all chunks take turns. Otherwise the device holds in
 * its margin the state of as many PARAM chunks as fit (chunk/pending.c); the host holds the state of the
 * others and, when it updates one, a copy of that. */
static uint64_t full_host_slots(const tide_pool *pool, const tide_layout *layout, uint64_t device_slots)
{
    const uint64_t all = tide_layout_chunk_count(layout), used = used_chunks(layout), state = all - used;
    if (device_slots <= used)
        return all;
    const uint64_t margin =
        pool->context.options.placement == TIDE_PLACEMENT_HOST ? 0 : device_slots - used - 1;
    if (margin >= state)
        return 0;
    uint64_t elsewhere = 0, there = 0;
    for (tide_chunk chunk = 0; chunk < tide_layout_space_chunks(layout, TIDE_SPACE_PARAM); chunk++) {
        const uint32_t pieces = tide_layout_pieces(layout, chunk);
        if (pieces == 0)
            continue;
        tide_chunk first, last;
        const tide_chunk border = tide_layout_piece(layout, chunk, pieces - 1).state_chunk;
        tide_layout_state_owners(layout, border, &first, &last);
        const uint64_t upto = tide_layout_chunk_index(layout, border) + (last == chunk);
        const bool fits = margin > 0 && upto <= margin;
        there = fits ? upto : there; /* state shared with the next chunk goes back and forth */
        elsewhere += !fits;
    }
    return tide_max_u64(state - there, 1) + elsewhere;
}

/* Refuse the device budget; the message names a chunk size with which it would suffice, if there is one. */
static tide_status refuse_device(const tide_pool *pool, const tide_pool_plan *plan, uint64_t budget)
{
    char advice[80] = "";
    for (uint64_t chunk = pool->context.options.chunk_bytes / 2;
         chunk >= pool->context.factory.chunk_bytes_min && advice[0] == '\0'; chunk /= 2) {
        tide_layout *layout;
        tide_manager *manager;
        if (tide_pool_policy_build(pool, chunk, &layout, &manager) != TIDE_OK)
            break;
        tide_slot_needs needs;
        tide_manager_needs(manager, pool->context.options.placement, &needs);
        tide_manager_destroy(manager);
        tide_layout_destroy(layout);
        if (needs.device_slots * chunk + plan->region_bytes <= budget)
            snprintf(advice, sizeof advice, " (with chunks of %llu bytes this one would do)",
                     (unsigned long long)chunk);
    }
    return tide_fail(
        TIDE_ERROR_BUDGET,
        "device budget of %llu bytes is too small: op %s needs %llu bytes of chunks beside %llu of region; "
        "the least budget is %llu bytes%s",
        (unsigned long long)budget, plan->largest_op, (unsigned long long)plan->largest_op_bytes,
        (unsigned long long)plan->region_bytes, (unsigned long long)plan->least_device_bytes, advice);
}

/* The device whose memory the message names; for a null device, the one that it stands for. */
static const char *device_told(const char *device)
{
    if (strncmp(device, "null:gpu:", strlen("null:gpu:")) == 0)
        return "the GPU";
    return strncmp(device, "null:", strlen("null:")) == 0 ? device + strlen("null:") : device;
}

/* A GPU may have less memory free than the budget allows, since other programs use it, too. */
static tide_status check_available(const tide_pool *pool, const tide_pool_plan *plan)
{
    const uint64_t needed = plan->device_slots * plan->chunk_bytes + plan->region_bytes;
    if (needed <= pool->context.factory.available_bytes)
        return TIDE_OK;
    return tide_fail(
        TIDE_ERROR_BUDGET,
        "device budget of %llu bytes is too large: %s has %llu bytes free, its context and a reserve of "
        "%llu bytes apart",
        (unsigned long long)plan->device_memory_bytes, device_told(pool->context.options.device),
        (unsigned long long)pool->context.factory.available_bytes,
        (unsigned long long)TIDE_MODULE_RESERVE_BYTES);
}

static void plan_sizes(const tide_pool *pool, const tide_layout *layout, tide_pool_plan *plan)
{
    const tide_region_layout *region = &pool->context.region_layout;
    for (uint32_t i = 0; i < pool->model.param_count; i++) {
        const tide_pool_param *param = &pool->model.params[i];
        plan->params += param->elements;
        plan->model_bytes += param->elements * (tide_sealed_element_bytes(&pool->context) +
                                                tide_sealed_state_bytes(&param->of_class.state));
    }
    plan->chunk_bytes = tide_layout_chunk_bytes(layout);
    for (int space = 0; space < TIDE_SPACE_COUNT; space++) {
        plan->chunks[space] = tide_layout_space_chunks(layout, (tide_space)space);
        for (uint32_t i = 0; i < plan->chunks[space]; i++)
            plan->space_bytes[space] +=
                tide_layout_chunk_used_bytes(layout, tide_layout_chunk(layout, (tide_space)space, i));
    }
    plan->region_bytes = region->total_bytes;
    plan->nonmodel_bytes = region->shared_offset;
    plan->workspace_bytes = region->total_bytes - region->workspace_offset;
    plan->shared_accumulator_bytes = region->blocks_offset - region->shared_offset;
    plan->scalar_bytes = region->workspace_offset - region->blocks_offset;
    plan->buffer_bytes = buffer_bytes(pool, layout);
}

static uint32_t slots_of(uint64_t budget, uint64_t other, uint64_t chunk, uint64_t most)
{
    const uint64_t slots = budget > other ? (budget - other) / chunk : 0;
    assert(chunk > 0 && most <= UINT32_MAX);
    return (uint32_t)tide_min_u64(slots, most);
}

/* The most that a default device budget may be: pinned host memory takes page tables on the device. */
static uint64_t device_available(const tide_pool *pool, uint64_t host_bytes)
{
    const uint64_t available = pool->context.factory.available_bytes;
    const uint64_t tables = host_bytes / TIDE_MODULE_HOST_BYTES_A_TABLE_BYTE;
    if (available == UINT64_MAX)
        return UINT64_MAX;
    return available > tables ? available - tables : 0;
}

tide_status tide_pool_plan_make(tide_pool *pool, const tide_layout *layout, tide_manager *manager,
                                uint64_t device_memory_bytes, uint64_t host_memory_bytes, bool refuse,
                                tide_pool_plan *plan)
{
    memset(plan, 0, sizeof *plan);
    plan_region(pool, manager, &pool->context.region_layout);
    plan_sizes(pool, layout, plan);
    tide_slot_needs needs;
    tide_manager_needs(manager, pool->context.options.placement, &needs);
    const uint64_t chunk = plan->chunk_bytes;
    const uint64_t full_device = full_device_slots(pool, layout, &needs);
    plan->largest_op = pool->model.ops[needs.largest_op].description.name;
    plan->largest_op_bytes = needs.largest_op_slots * chunk;
    plan->least_device_bytes = needs.device_slots * chunk + plan->region_bytes;
    plan->full_device_bytes = full_device * chunk + plan->region_bytes;
    /* The host's default depends on the device's slots: count here the most that it can be. */
    const uint64_t all = tide_layout_chunk_count(layout);
    plan->device_available_bytes =
        device_available(pool, host_memory_bytes != 0 ? host_memory_bytes : all * chunk + plan->buffer_bytes);
    plan->device_memory_bytes = device_memory_bytes != 0
                                    ? device_memory_bytes
                                    : tide_min_u64(plan->full_device_bytes, plan->device_available_bytes);
    plan->device_slots = slots_of(plan->device_memory_bytes, plan->region_bytes, chunk, full_device);
    if (refuse && plan->device_slots < needs.device_slots)
        return refuse_device(pool, plan, plan->device_memory_bytes);
    const tide_status fits = refuse ? check_available(pool, plan) : TIDE_OK;
    if (fits != TIDE_OK)
        return fits;

    const uint64_t elsewhere =
        needs.total_slots > plan->device_slots ? needs.total_slots - plan->device_slots : 0;
    const uint64_t least_host = tide_max_u64(needs.host_slots, elsewhere);
    const uint64_t most_host = tide_max_u64(least_host, all);
    plan->least_host_bytes = least_host * chunk + plan->buffer_bytes;
    plan->full_host_bytes =
        tide_max_u64(least_host, full_host_slots(pool, layout, plan->device_slots)) * chunk +
        plan->buffer_bytes;
    plan->host_memory_bytes = host_memory_bytes != 0 ? host_memory_bytes : plan->full_host_bytes;
    plan->host_slots = slots_of(plan->host_memory_bytes, plan->buffer_bytes, chunk, most_host);
    if (refuse && plan->host_slots < least_host)
        return tide_fail(
            TIDE_ERROR_BUDGET,
            "host budget of %llu bytes is too small: %u chunks of %llu bytes and %llu bytes of buffers do "
            "not fit beside the device's %u chunks; the least budget is %llu bytes",
            (unsigned long long)plan->host_memory_bytes, tide_layout_chunk_count(layout),
            (unsigned long long)chunk, (unsigned long long)plan->buffer_bytes, plan->device_slots,
            (unsigned long long)plan->least_host_bytes);
    return TIDE_OK;
}

tide_status tide_pool_described(const tide_pool *pool, const char *call)
{
    if (pool->model.trained_count > 0 && pool->model.op_count > 0)
        return TIDE_OK;
    return tide_fail(TIDE_ERROR_STATE, "%s: register at least one op, and one param that is not frozen",
                     call);
}

tide_status tide_pool_plan_get(tide_pool *pool, uint64_t device_memory_bytes, tide_pool_plan *plan)
{
    if (pool == NULL || plan == NULL)
        return tide_pool_given("tide_pool_plan_get", pool == NULL ? "pool" : "plan");
    if (pool->sealed) {
        *plan = pool->context.plan;
        return TIDE_OK;
    }
    tide_layout *layout;
    tide_manager *manager;
    tide_status status = tide_pool_described(pool, "tide_pool_plan_get");
    if (status == TIDE_OK)
        status = tide_pool_policy_build(pool, pool->context.options.chunk_bytes, &layout, &manager);
    if (status != TIDE_OK)
        return status;
    /* Planning writes offsets into the pool's own tables; seal writes the same offsets again. */
    status = tide_pool_plan_make(pool, layout, manager,
                                 device_memory_bytes != 0 ? device_memory_bytes
                                                          : pool->context.options.device_memory_bytes,
                                 pool->context.options.host_memory_bytes, false, plan);
    tide_manager_destroy(manager);
    tide_layout_destroy(layout);
    return status;
}

tide_status tide_pool_set_budgets(tide_pool *pool, uint64_t device_memory_bytes, uint64_t host_memory_bytes)
{
    if (pool == NULL)
        return tide_pool_given("tide_pool_set_budgets", "pool");
    if (pool->sealed)
        return tide_fail(TIDE_ERROR_STATE, "tide_pool_set_budgets: budgets are fixed at seal");
    pool->context.options.device_memory_bytes = device_memory_bytes;
    pool->context.options.host_memory_bytes = host_memory_bytes;
    return TIDE_OK;
}
