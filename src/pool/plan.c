/* Plans slots and budgets, and refuses those that are too small.
 *
 *     device   budget >= device_slots x chunk + frames + region (frames: of several ranks, plan_ranks.c)
 *     host     budget >= host_slots x chunk + buffers (staging, mailbox, segment tables)
 *
 * A plan depends only on the options, factory and packing of a context, not on an open device.
 *
 * Default budgets, where options.free_memory_bytes says how much memory the host has free:
 *
 *   device   with memory of its own: the run's needs, at most the memory available
 *            else: the run's needs, at most 1/4 of free memory, at least the least that works
 *   host     the run's other needs, at most 4/5 of the free memory that the device leaves
 *
 * The device budget is raised to the smallest one that works, since a run with less can't compute. The host
 * budget is not raised: a run that needs more than 4/5 of free memory would make the machine swap.
 */
#include "src/pool/internal.h"

#include "base/align.h"
#include "base/minmax.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

bool tide_pool_context_is_valid(const tide_pool_context *context)
{
    const tide_pool_plan *plan = &context->plan;
    return plan->device_slots * plan->chunk_bytes + plan->frame_bytes + plan->region_bytes <=
               plan->device_memory_bytes &&
           plan->host_slots * plan->chunk_bytes + plan->buffer_bytes <= plan->host_memory_bytes &&
           plan->region_bytes == context->packing->region.total_bytes;
}

static uint64_t page_up(uint64_t bytes)
{
    return tide_round_up(bytes, 4096);
}

/* Each buffer takes whole pages (tide_device_ops.buffer_create counts them so). */
static uint64_t buffer_bytes(const tide_pool_context *context)
{
    const uint64_t segments = page_up(tide_running_tasks_table_bytes(context->packing->layout));
    return 2 * page_up(context->options.staging_bytes / 2) + page_up(TIDE_SCALAR_BYTES) +
           TIDE_RUNNING_TASKS_MAX * segments;
}

/* Chunks that ops use: params and activations. */
static uint64_t used_chunks(const tide_layout *layout)
{
    return (uint64_t)tide_layout_space_chunks(layout, TIDE_SPACE_PARAM) +
           tide_layout_space_chunks(layout, TIDE_SPACE_ACTIVATION);
}

/* The device slots with which no chunk ever has to move: one for each chunk used on the device, and one
 * spare. */
static uint64_t full_device_slots(const tide_pool_context *context)
{
    const tide_layout *layout = context->packing->layout;
    const bool state_there = context->options.placement != TIDE_PLACEMENT_HOST;
    return tide_max_u64(context->packing->needs.device_slots,
                        (state_there ? tide_layout_chunk_count(layout) : used_chunks(layout)) + 1);
}

/* The host slots beyond which more are useless, with `device_slots` slots on the device. If the device cannot
 * hold all chunks that ops use, every chunk may be on the host at times: one slot for each. Otherwise the
 * device's spare slots hold the state of as many PARAM chunks as fit (chunk/pending.c); the host holds the
 * state of the other PARAM chunks and a copy of each of those while it updates it. */
static uint64_t full_host_slots(const tide_pool_context *context, uint64_t device_slots)
{
    const tide_layout *layout = context->packing->layout;
    const uint64_t all = tide_layout_chunk_count(layout), used = used_chunks(layout), state = all - used;
    if (device_slots <= used)
        return all;
    const uint64_t margin = context->options.placement == TIDE_PLACEMENT_HOST ? 0 : device_slots - used - 1;
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
        there = fits ? upto : there; /* a STATE chunk shared with the next PARAM chunk moves back and forth */
        elsewhere += !fits;
    }
    return tide_max_u64(state - there, 1) + elsewhere;
}

/* Would this device budget be enough with chunks of this size? */
static bool suffices(const tide_pool_context *context, uint64_t chunk_bytes, uint64_t budget)
{
    tide_ops ops = {.count = 0};
    tide_layout *layout = NULL;
    tide_slot_needs needs;
    bool does = tide_layout_create(context->packing->description, chunk_bytes, tide_context_shard(context),
                                   &layout) == TIDE_OK &&
                tide_ops_create(&ops, layout) == TIDE_OK;
    if (does) {
        tide_manager_needs(&ops, context->options.placement, &needs);
        const uint64_t slots = needs.device_slots + tide_plan_least_frames(context, layout, &needs) *
                                                        tide_plan_frame_slots(context);
        does = slots * chunk_bytes + context->packing->region.total_bytes <= budget;
    }
    tide_ops_destroy(&ops);
    tide_layout_destroy(layout);
    return does;
}

/* Refuse the device budget; the message names a smaller chunk size with which it would be enough, if there is
 * one. */
static tide_status refuse_device(const tide_pool_context *context, const tide_pool_plan *plan,
                                 uint64_t budget)
{
    char advice[80] = "", groups[80] = "", frames[160] = "";
    const tide_slot_needs *needs = &context->packing->needs;
    const uint64_t frame = tide_plan_frame_slots(context),
                   least = tide_plan_least_frames(context, context->packing->layout, needs),
                   fewest = needs->frames;
    if (frame > 0)
        snprintf(frames, sizeof frames, ", %llu of frames for the chunks of %llu other ranks%s",
                 (unsigned long long)(least * frame * plan->chunk_bytes), (unsigned long long)frame,
                 least > fewest ? " (all of them; resharding needs fewer)" : "");
    if (plan->sum_group_bytes > 0)
        snprintf(groups, sizeof groups, " (%llu of them since there are %u sum groups)",
                 (unsigned long long)plan->sum_group_bytes, context->packing->sum_groups);
    for (uint64_t chunk = context->options.chunk_bytes / 2;
         chunk >= context->factory.chunk_bytes_min && advice[0] == '\0'; chunk /= 2)
        if (suffices(context, chunk, budget))
            snprintf(advice, sizeof advice, " (with chunks of %llu bytes this one would do)",
                     (unsigned long long)chunk);
    return tide_fail(TIDE_ERROR_BUDGET,
                     "device budget of %llu bytes is too small: op %s needs %llu bytes of chunks%s beside "
                     "%llu of region%s; "
                     "the least budget is %llu bytes%s",
                     (unsigned long long)budget, plan->largest_op, (unsigned long long)plan->largest_op_bytes,
                     frames, (unsigned long long)plan->region_bytes, groups,
                     (unsigned long long)plan->least_device_bytes, advice);
}

/* The device's name for messages about its memory; for a null device, the name of the device that it
 * simulates. */
static const char *device_told(const tide_pool_options *options)
{
    if (strcmp(options->device, "null") == 0)
        return "the GPU"; /* only one that the null device simulates has a limit that a budget can exceed */
    return strncmp(options->device, "null:", strlen("null:")) == 0 ? options->device + strlen("null:")
                                                                   : options->device;
}

/* Refuse a budget for which the GPU has too little free memory, which other programs may be using. */
static tide_status check_available(const tide_pool_context *context, const tide_pool_plan *plan)
{
    const uint64_t needed = plan->device_slots * plan->chunk_bytes + plan->frame_bytes + plan->region_bytes;
    if (needed <= context->factory.available_bytes)
        return TIDE_OK;
    return tide_fail(
        TIDE_ERROR_BUDGET,
        "device budget of %llu bytes is too large: %s has %llu bytes free, its context and a reserve of "
        "%llu bytes apart",
        (unsigned long long)plan->device_memory_bytes, device_told(&context->options),
        (unsigned long long)context->factory.available_bytes, (unsigned long long)TIDE_MODULE_RESERVE_BYTES);
}

static void plan_sizes(const tide_pool_context *context, tide_pool_plan *plan)
{
    const tide_packing *packing = context->packing;
    const tide_layout *layout = packing->layout;
    const tide_region_layout *region = &packing->region;
    for (tide_param i = 0; i < packing->param_count; i++) {
        plan->params += packing->params[i].elements;
        plan->model_bytes +=
            packing->params[i].elements *
            (tide_context_element_bytes(context) + tide_context_state_bytes(&packing->params[i].state));
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
    plan->scalar_bytes = region->workspace_offset - region->blocks_offset - region->ring_bytes;
    plan->ring_bytes = region->ring_bytes;
    plan->sum_group_bytes = region->sets_bytes;
    plan->buffer_bytes = buffer_bytes(context);
}

static uint32_t slots_of(uint64_t budget, uint64_t other, uint64_t chunk, uint64_t most)
{
    const uint64_t slots = budget > other ? (budget - other) / chunk : 0;
    assert(chunk > 0 && most <= UINT32_MAX);
    return (uint32_t)tide_min_u64(slots, most);
}

/* The largest default device budget: the available memory, less the page tables that pinning `host_bytes`
 * takes on the device. */
static uint64_t device_available(const tide_pool_context *context, uint64_t host_bytes)
{
    const uint64_t available = context->factory.available_bytes;
    const uint64_t tables = host_bytes / TIDE_MODULE_HOST_BYTES_A_TABLE_BYTE;
    if (available == UINT64_MAX)
        return UINT64_MAX;
    return available > tables ? available - tables : 0;
}

/* --- default budgets --- */

uint64_t tide_plan_device_most(uint64_t free_memory_bytes, uint64_t available_bytes)
{
    if (available_bytes != UINT64_MAX)
        return available_bytes;
    return free_memory_bytes == 0 ? UINT64_MAX : free_memory_bytes / 4;
}

uint64_t tide_plan_host_most(uint64_t free_memory_bytes, uint64_t available_bytes, uint64_t device_bytes)
{
    const uint64_t shared = available_bytes != UINT64_MAX ? 0 : tide_min_u64(device_bytes, free_memory_bytes);
    return free_memory_bytes == 0 ? UINT64_MAX : tide_max_u64((free_memory_bytes - shared) / 5 * 4, 1);
}

static uint64_t device_budget(const tide_pool_context *context, const tide_pool_plan *plan)
{
    const tide_pool_options *options = &context->options;
    if (options->device_memory_bytes != 0)
        return options->device_memory_bytes;
    if (plan->device_available_bytes != UINT64_MAX)
        return tide_min_u64(plan->full_device_bytes, plan->device_available_bytes);
    const uint64_t most = tide_plan_device_most(options->free_memory_bytes, UINT64_MAX);
    return tide_max_u64(tide_min_u64(plan->full_device_bytes, most), plan->least_device_bytes);
}

static uint64_t host_budget(const tide_pool_context *context, const tide_pool_plan *plan)
{
    const tide_pool_options *options = &context->options;
    if (options->host_memory_bytes != 0)
        return options->host_memory_bytes;
    return tide_min_u64(plan->full_host_bytes,
                        tide_plan_host_most(options->free_memory_bytes, plan->device_available_bytes,
                                            plan->device_memory_bytes));
}

/* --- the plan --- */

static tide_status plan_device(const tide_pool_context *context, bool refuse, tide_pool_plan *plan)
{
    const tide_slot_needs *needs = &context->packing->needs;
    const uint64_t chunk = plan->chunk_bytes, all = tide_layout_chunk_count(context->packing->layout);
    const uint64_t host = context->options.host_memory_bytes, full = full_device_slots(context);
    const uint64_t frame = tide_plan_frame_slots(context), groups = plan->chunks[TIDE_SPACE_PARAM];
    const uint64_t least =
        needs->device_slots + tide_plan_least_frames(context, context->packing->layout, needs) * frame;
    plan->largest_op = context->packing->ops[needs->largest_op].description->name;
    plan->largest_op_bytes = needs->largest_op_slots * chunk;
    plan->least_device_bytes = least * chunk + plan->region_bytes;
    plan->full_device_bytes = (full + groups * frame) * chunk + plan->region_bytes;
    /* The host's default budget depends on the device's slots, which are not known yet: assume its largest
     * value. */
    plan->device_available_bytes =
        device_available(context, host != 0 ? host : all * chunk + plan->buffer_bytes);
    plan->device_memory_bytes = device_budget(context, plan);
    /* Frames use any slot there is, so the slots of several ranks are no more than the device can have. */
    const uint64_t most = frame > 0 ? plan->device_available_bytes : UINT64_MAX;
    const uint32_t slots = slots_of(tide_min_u64(plan->device_memory_bytes, most), plan->region_bytes, chunk,
                                    full + groups * frame);
    plan->device_slots = slots;
    if (frame > 0)
        tide_plan_share_out(context, slots, used_chunks(context->packing->layout) + 1, full, plan);
    if (refuse && slots < least)
        return refuse_device(context, plan, plan->device_memory_bytes);
    return refuse ? check_available(context, plan) : TIDE_OK;
}

static tide_status plan_host(const tide_pool_context *context, bool refuse, tide_pool_plan *plan)
{
    const tide_slot_needs *needs = &context->packing->needs;
    const uint64_t chunk = plan->chunk_bytes, all = tide_layout_chunk_count(context->packing->layout);
    const uint64_t elsewhere =
        needs->total_slots > plan->device_slots ? needs->total_slots - plan->device_slots : 0;
    const uint64_t fewest = tide_max_u64(needs->host_slots, elsewhere);
    plan->least_host_bytes = fewest * chunk + plan->buffer_bytes;
    plan->full_host_bytes =
        tide_max_u64(fewest, full_host_slots(context, plan->device_slots)) * chunk + plan->buffer_bytes;
    plan->host_memory_bytes = host_budget(context, plan);
    plan->host_slots =
        slots_of(plan->host_memory_bytes, plan->buffer_bytes, chunk, tide_max_u64(fewest, all));
    if (!refuse || plan->host_slots >= fewest)
        return TIDE_OK;
    return tide_fail(
        TIDE_ERROR_BUDGET,
        "host budget of %llu bytes is too small: %llu chunks of %llu bytes and %llu bytes of buffers do "
        "not fit beside the device's %u chunks; the least budget is %llu bytes",
        (unsigned long long)plan->host_memory_bytes, (unsigned long long)all, (unsigned long long)chunk,
        (unsigned long long)plan->buffer_bytes, plan->device_slots,
        (unsigned long long)plan->least_host_bytes);
}

tide_status tide_plan_make(const tide_pool_context *context, bool refuse, tide_pool_plan *plan)
{
    *plan = (tide_pool_plan){.params = 0};
    plan_sizes(context, plan);
    tide_status status = plan_device(context, refuse, plan);
    if (status == TIDE_OK)
        status = plan_host(context, refuse, plan);
    return status == TIDE_OK && context->options.ranks.count > 1 ? tide_plan_collectives(context, plan)
                                                                 : status;
}
