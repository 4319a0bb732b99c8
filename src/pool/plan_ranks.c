/* The part of a plan that several ranks have: how device slots are shared out between the rank's own chunks
 * and frames for the others' (chunk/frames.h), and the bytes that a step moves between ranks. */
#include "src/pool/plan.h"

#include "base/align.h"
#include "base/minmax.h"
#include "chunk/collectives.h"
#include "kernels/kernels.h"

#include <assert.h>

enum { STEPS = 3 /* in the third step frames hold what they hold in every later one */ };

static uint32_t ranks_of(const tide_pool_context *context)
{
    return context->options.ranks.count;
}

uint64_t tide_plan_frame_slots(const tide_pool_context *context)
{
    return tide_context_shard(context).ranks - 1;
}

/* Do params stay gathered until the step ends? */
static bool keeps_all(const tide_pool_context *context)
{
    const tide_ranks_options *ranks = &context->options.ranks;
    return ranks->zero_stage < 3 || ranks->reshard == TIDE_RESHARD_OFF;
}

uint64_t tide_plan_least_frames(const tide_pool_context *context, const tide_layout *layout,
                                const tide_slot_needs *needs)
{
    return keeps_all(context) ? tide_layout_space_chunks(layout, TIDE_SPACE_PARAM) : needs->frames;
}

/* Up to `most` of the slots that are left, which become fewer. */
static uint64_t take(uint64_t *left, uint64_t most)
{
    const uint64_t taken = tide_min_u64(*left, most);
    *left -= taken;
    return taken;
}

void tide_plan_share_out(const tide_pool_context *context, uint64_t slots, uint64_t used, uint64_t full,
                         tide_pool_plan *plan)
{
    const tide_slot_needs *needs = &context->packing->needs;
    const uint64_t each = tide_plan_frame_slots(context),
                   least = tide_plan_least_frames(context, context->packing->layout, needs);
    const uint64_t groups = tide_layout_space_chunks(context->packing->layout, TIDE_SPACE_PARAM);
    const uint64_t frames_ahead = keeps_all(context) ? groups : needs->frames_ahead;
    uint64_t frames = least, local = needs->device_slots;
    assert(each > 0);
    plan->gathers_ahead = slots >= needs->device_slots_ahead + frames_ahead * each;
    if (plan->gathers_ahead) {
        frames = frames_ahead;
        local = needs->device_slots_ahead;
    }
    uint64_t left = slots > local + frames * each ? slots - local - frames * each : 0;
    if (slots < local + frames * each) /* too few: the plan says how many are needed */
        local = slots > frames * each ? slots - frames * each : 0;
    local += take(&left, used > local ? used - local : 0);
    if (context->options.ranks.reshard != TIDE_RESHARD_ON)
        frames += take(&left, tide_min_u64(left / each, groups - frames) * each) / each;
    local += take(&left, full > local ? full - local : 0);
    plan->device_slots = (uint32_t)local;
    plan->frames = (uint32_t)frames;
    plan->frame_bytes = frames * each * plan->chunk_bytes;
}

/* --- bytes between ranks --- */

/* How many of the ops a training step runs: up to the last that goes backward. Behind it stand ops of
 * evaluation. */
static uint32_t training_ops(const tide_ops *ops)
{
    uint32_t count = ops->count;
    while (count > 0 && ops->records[count - 1].pass == TIDE_PASS_FORWARD)
        count--;
    return count;
}

/* Bytes of params that the rank receives in a training step that runs each op once, in the description's
 * order. */
static tide_status count_gathered(const tide_pool_context *context, const tide_ops *ops, tide_pool_plan *plan)
{
    const tide_layout *layout = context->packing->layout;
    const uint32_t count = training_ops(ops);
    tide_arrays arrays = {0};
    tide_frames frames = {.count = 0};
    tide_roll roll;
    tide_status status = TIDE_OK;
    tide_roll_create(&roll, tide_roll_capacity(ops), &arrays);
    if (arrays.lacks)
        status = tide_fail(TIDE_ERROR_NO_MEMORY, "pool: no memory to plan collectives");
    if (status == TIDE_OK)
        status = tide_frames_create(&frames, ops, &roll, plan->frames, plan->gathers_ahead);
    for (int step = 0; step < STEPS && status == TIDE_OK; step++) {
        plan->gathered_bytes = 0;
        tide_frames_step_begin(&frames, true);
        for (tide_op op = 0; op <= count; op++) {
            for (; tide_roll_head(&roll) != NULL; tide_roll_pop(&roll))
                plan->gathered_bytes += tide_plan_frame_slots(context) *
                                        tide_layout_chunk_used_bytes(layout, tide_roll_head(&roll)->group);
            if (op < count)
                tide_frames_begin(&frames, op);
        }
        tide_frames_step_end(&frames);
    }
    tide_frames_destroy(&frames);
    tide_arrays_free(&arrays);
    return status;
}

/* The trained elements that the rank owns, of all that it trains. */
static uint64_t owned_elements(const tide_layout *layout)
{
    uint64_t elements = 0;
    for (tide_chunk chunk = 0; chunk < tide_layout_space_chunks(layout, TIDE_SPACE_PARAM); chunk++) {
        uint32_t first;
        const uint32_t count = tide_layout_chunk_segments(layout, chunk, &first);
        for (uint32_t i = first; i < first + count && tide_layout_pieces(layout, chunk) > 0; i++)
            elements += tide_layout_chunk_segment(layout, chunk, i).elements;
    }
    return elements;
}

/* Each rank sums what it owns: it receives the others' partial sums, and blocks of the norm. At stage 0,
 * where every rank owns all, each sums an even slice, in whole blocks of the norm, and receives the others'
 * rounded sums. */
static void count_reduced(const tide_pool_context *context, tide_pool_plan *plan)
{
    const tide_pool_options *options = &context->options;
    const uint64_t others = ranks_of(context) - 1, all = owned_elements(context->packing->layout);
    const bool rounds = options->reduce_dtype == TIDE_DTYPE_BF16 && tide_context_sum_groups(context) == 1;
    const uint64_t bytes = rounds ? tide_dtype_bytes(TIDE_DTYPE_BF16) : sizeof(float);
    const uint64_t blocks = context->packing->region.blocks_count;
    const uint64_t slice =
        tide_min_u64(all, tide_round_up(tide_ceil_div(all, ranks_of(context)), TIDE_NORM_BLOCK_ELEMENTS));
    const bool slices = options->ranks.zero_stage == 0;
    const uint64_t own = slices ? slice : all;
    plan->reduced_bytes = own * others * bytes;
    plan->reduced_bytes += slices ? (all - slice) * tide_context_element_bytes(context) : 0;
    plan->reduced_bytes +=
        (blocks - tide_min_u64(blocks, tide_ceil_div(own, TIDE_NORM_BLOCK_ELEMENTS))) * sizeof(double);
}

tide_status tide_plan_collectives(const tide_pool_context *context, tide_pool_plan *plan)
{
    tide_ops ops = {.count = 0};
    count_reduced(context, plan);
    if (tide_plan_frame_slots(context) == 0 || plan->frames < context->packing->needs.frames ||
        plan->device_memory_bytes < plan->least_device_bytes)
        return TIDE_OK; /* nothing is gathered, or the plan does not fit */
    tide_status status = tide_ops_create(&ops, context->packing->layout);
    if (status == TIDE_OK)
        status = count_gathered(context, &ops, plan);
    tide_ops_destroy(&ops);
    return status;
}
