#include "src/pool/packing.h"

#include "base/minmax.h"
#include "kernels/kernels.h"

#include <assert.h>

static void fill_param(tide_packing *packing, tide_param number)
{
    const tide_named *named = tide_layout_param(packing->layout, number);
    tide_packed_param *param = &packing->params[number];
    *param = (tide_packed_param){.name = named->name,
                                 .elements = named->size,
                                 .state = *tide_description_state(packing->description, number),
                                 .decays = named->decays,
                                 .first_block = packing->region.blocks_count,
                                 .data_offset_bytes = tide_layout_param_offset(packing->layout, number) *
                                                      tide_dtype_bytes(packing->description->dtype),
                                 .shared_offset_bytes = UINT64_MAX};
    tide_layout_param_chunks(packing->layout, number, &param->first_chunk, &param->last_chunk);
    assert(param->first_chunk <= param->last_chunk);
    if (!tide_packed_param_is_frozen(param))
        packing->region.blocks_count += tide_norm_blocks(param->elements);
}

/* Place the accumulators that several ops share, each with a set for every sum group, one after another from
 * `offset` on. Returns where the last ends. */
static uint64_t place_shared(tide_packing *packing, const tide_gradients *gradients, uint32_t sum_groups,
                             uint64_t offset)
{
    for (tide_param i = 0; i < packing->param_count; i++) {
        if (!tide_gradients_is_shared(gradients, i))
            continue;
        packing->params[i].shared_offset_bytes = offset;
        offset += sum_groups * tide_packed_param_accumulator_bytes(&packing->params[i]);
    }
    return offset;
}

/* Place the op's own accumulators from `offset` on: those that the op overwrites if `overwritten`, else the
 * others. Returns where the last ends. */
static uint64_t place_accumulators(const tide_packing *packing, const tide_packed_op *op, bool overwritten,
                                   uint64_t offset)
{
    for (uint32_t j = 0; j < op->description->param_count; j++) {
        const tide_use use = op->description->params[j];
        const tide_packed_param *param = &packing->params[use.tensor];
        if (((use.access & TIDE_ACCESS_OVERWRITE) != 0) != overwritten)
            continue;
        op->accumulator_offsets[j] = param->shared_offset_bytes;
        if ((use.access & TIDE_ACCESS_GRAD) == 0 || param->shared_offset_bytes != UINT64_MAX)
            continue;
        assert(offset % TIDE_ALIGNMENT_BYTES == 0);
        op->accumulator_offsets[j] = offset;
        offset += tide_packed_param_accumulator_bytes(param);
    }
    return offset;
}

/* How many sets of its own accumulators an op needs: the most one bits of a group's number, and one. */
static uint32_t own_sets(uint32_t sum_groups)
{
    uint32_t sets = 1;
    while (sum_groups >>= 1)
        sets++;
    return sets;
}

/* Place the sets of the op's own accumulators from `offset` on; in each set those that the pool zeroes lie
 * next to each other. Returns where the last set ends. */
static uint64_t place_sets(const tide_packing *packing, tide_packed_op *op, uint32_t sum_groups,
                           uint64_t offset)
{
    op->set_offset = offset;
    op->set_bytes =
        place_accumulators(packing, op, true, place_accumulators(packing, op, false, offset)) - offset;
    return offset + own_sets(sum_groups) * op->set_bytes;
}

/* With one end: each op's accumulators behind its workspace. */
static void place_at_one_end(tide_packing *packing, uint32_t sum_groups)
{
    tide_region_layout *region = &packing->region;
    region->ends_offset = region->total_bytes = region->workspace_offset;
    for (tide_op i = 0; i < packing->op_count; i++) {
        tide_packed_op *op = &packing->ops[i];
        const uint64_t offset = region->workspace_offset + tide_align_up(op->description->workspace_bytes);
        region->total_bytes = tide_max_u64(region->total_bytes, place_sets(packing, op, sum_groups, offset));
    }
}

/* With two ends: all workspaces at one place; behind it the accumulators of neighbouring ops from both ends
 * in turn, in a range that is large enough for both. */
static void place_at_two_ends(tide_packing *packing, uint32_t sum_groups)
{
    tide_region_layout *region = &packing->region;
    uint64_t workspace = 0, most = 0, before = 0;
    uint32_t turn = 0;
    for (tide_op i = 0; i < packing->op_count; i++) {
        tide_packed_op *op = &packing->ops[i];
        const uint64_t bytes = place_sets(packing, op, sum_groups, 0);
        workspace = tide_max_u64(workspace, tide_align_up(op->description->workspace_bytes));
        if (bytes == 0)
            continue;
        op->turn = ++turn;
        op->end = turn % 2 == 1 ? TIDE_REGION_LOW : TIDE_REGION_HIGH;
        most = tide_max_u64(most, before + bytes);
        before = bytes;
    }
    region->ends_offset = region->workspace_offset + workspace;
    region->total_bytes = region->ends_offset + most;
    for (tide_op i = 0; i < packing->op_count; i++) {
        tide_packed_op *op = &packing->ops[i];
        const uint64_t bytes = own_sets(sum_groups) * op->set_bytes;
        (void)place_sets(packing, op, sum_groups,
                         op->end == TIDE_REGION_HIGH ? region->total_bytes - bytes : region->ends_offset);
    }
}

static void place_region(tide_packing *packing, const tide_gradients *gradients, uint32_t sum_groups)
{
    tide_region_layout *region = &packing->region;
    region->shared_offset = tide_align_up(packing->description->nonmodel_bytes);
    region->blocks_offset = place_shared(packing, gradients, sum_groups, region->shared_offset);
    region->scalars_offset = region->blocks_offset + tide_align_up(region->blocks_count * sizeof(double));
    region->workspace_offset = region->scalars_offset + TIDE_SCALAR_BYTES + region->ring_bytes;
    if (packing->two_ends)
        place_at_two_ends(packing, sum_groups);
    else
        place_at_one_end(packing, sum_groups);
    assert(tide_packing_is_valid(packing));
}

tide_region_range tide_packing_part(const tide_packing *packing, tide_region_part part)
{
    const tide_region_layout *region = &packing->region;
    const tide_region_range ranges[TIDE_REGION_PARTS] = {
        [TIDE_REGION_NONMODEL] = {0, region->shared_offset},
        [TIDE_REGION_SHARED] = {region->shared_offset, region->blocks_offset},
        [TIDE_REGION_NORM] = {region->blocks_offset, region->workspace_offset - region->ring_bytes},
        [TIDE_REGION_WORKSPACE] = {region->workspace_offset, region->ends_offset},
        [TIDE_REGION_LOW] = {region->ends_offset, region->total_bytes},
        [TIDE_REGION_HIGH] = {packing->two_ends ? region->ends_offset : region->total_bytes,
                              region->total_bytes}};
    return ranges[part];
}

/* Place the region, first with one sum group to see what the sets beyond the first take. */
static void place(tide_packing *packing, const tide_gradients *gradients)
{
    place_region(packing, gradients, 1);
    const uint64_t least_bytes = packing->region.total_bytes;
    place_region(packing, gradients, packing->sum_groups);
    packing->region.sets_bytes = packing->region.total_bytes - least_bytes;
}

/* Allocate the packing's tables. False: there was no memory. */
static bool make_tables(tide_packing *packing)
{
    const tide_description *description = packing->description;
    packing->param_count = description->params.count;
    packing->op_count = description->op_count;
    packing->params = tide_arrays_add(&packing->arrays, packing->param_count, sizeof *packing->params);
    packing->ops = tide_arrays_add(&packing->arrays, packing->op_count, sizeof *packing->ops);
    for (tide_op i = 0; i < packing->op_count && !packing->arrays.lacks; i++)
        packing->ops[i] =
            (tide_packed_op){.description = &description->ops[i],
                             .end = TIDE_REGION_LOW,
                             .makes_gradients = tide_packing_makes_gradients(&description->ops[i]),
                             .accumulator_offsets = tide_arrays_add(
                                 &packing->arrays, description->ops[i].param_count, sizeof(uint64_t))};
    return !packing->arrays.lacks;
}

bool tide_packing_makes_gradients(const tide_op_description *op)
{
    uint32_t access = 0;
    for (uint32_t i = 0; i < op->param_count; i++)
        access |= op->params[i].access;
    return (access & TIDE_ACCESS_GRAD) != 0;
}

tide_status tide_packing_check(const tide_description *description, const char *call)
{
    if (tide_description_is_complete(description))
        return TIDE_OK;
    return tide_fail(TIDE_ERROR_STATE, "%s: the description has to have an op and a param", call);
}

/* Mark the ops that work with shared accumulators: those that add to one, and those that close one. */
static void find_shared(tide_packing *packing, const tide_gradients *gradients)
{
    for (tide_op i = 0; i < packing->op_count; i++) {
        tide_packed_op *op = &packing->ops[i];
        for (uint32_t j = 0; j < op->description->param_count; j++) {
            const tide_use use = op->description->params[j];
            if (tide_gradients_is_shared(gradients, use.tensor) &&
                (use.access & TIDE_ACCESS_GRAD || tide_gradients_may_close(gradients, i, use.tensor)))
                op->uses_shared = true;
        }
    }
}

tide_status tide_packing_create(tide_packing *packing, tide_description *description,
                                const tide_packing_options *options)
{
    assert(options->sum_groups > 0);
    *packing = (tide_packing){.description = description,
                              .sum_groups = options->sum_groups,
                              .two_ends = options->two_ends,
                              .region = {.ring_bytes = options->ring_bytes}};
    tide_ops ops = {.count = 0};
    tide_status status =
        tide_layout_create(description, options->chunk_bytes, options->shard, &packing->layout);
    if (status == TIDE_OK)
        status = tide_ops_create(&ops, packing->layout);
    if (status == TIDE_OK && !make_tables(packing))
        status = tide_fail(TIDE_ERROR_NO_MEMORY, "pool: no memory to plan %u params and %u ops",
                           packing->param_count, packing->op_count);
    if (status == TIDE_OK) {
        tide_manager_needs(&ops, options->placement, &packing->needs);
        for (tide_param i = 0; i < packing->param_count; i++)
            fill_param(packing, i);
        place(packing, &ops.gradients);
        find_shared(packing, &ops.gradients);
    } else {
        tide_packing_destroy(packing);
    }
    tide_ops_destroy(&ops);
    return status;
}

void tide_packing_destroy(tide_packing *packing)
{
    tide_layout_destroy(packing->layout);
    tide_arrays_free(&packing->arrays);
    *packing = (tide_packing){.description = NULL};
}

bool tide_packing_is_valid(const tide_packing *packing)
{
    const tide_region_layout *region = &packing->region;
    const uint64_t offsets[] = {region->shared_offset,    region->blocks_offset, region->scalars_offset,
                                region->workspace_offset, region->ends_offset,   region->total_bytes};
    for (size_t i = 0; i < sizeof offsets / sizeof offsets[0]; i++) {
        if (offsets[i] % TIDE_ALIGNMENT_BYTES != 0 || (i > 0 && offsets[i] < offsets[i - 1]))
            return false;
    }
    return region->scalars_offset - region->blocks_offset >= region->blocks_count * sizeof(double);
}
