/* The sums of gradients: accumulators in the region, one sum group after another (packing.h), and the kernels
 * that add the groups' sums, round the finished sum to the pool's dtype, write it over its param
 * (chunk/gradients.h) and compute the norm of the rounded gradient.
 */
#include "src/pool/internal.h"

#include "base/minmax.h"
#include "kernels/kernels.h"

#include <assert.h>
#include <string.h>

static const tide_gradients *gradients_of(const tide_pool *pool)
{
    return tide_manager_gradients(pool->engine.manager);
}

/* The sum group of a slice of the open op. */
static uint32_t group_of(const tide_pool *pool, uint32_t slice)
{
    const tide_op_description *op = tide_op_open(pool)->description;
    const uint32_t groups = pool->context.packing->sum_groups;
    assert(slice < op->slices && (groups == 1 || op->slices % groups == 0));
    return groups == 1 ? 0 : slice / (op->slices / groups);
}

tide_status tide_gradient_check_slice(const tide_pool *pool, uint32_t slice)
{
    const tide_packed_op *op = tide_op_open(pool);
    if (!op->makes_gradients || group_of(pool, slice) >= pool->op.group)
        return TIDE_OK;
    return tide_fail(TIDE_ERROR_STATE,
                     "tide_op_slice of %s: slice %u is of sum group %u, after one of group %u; the groups' "
                     "slices come in ascending order",
                     op->description->name, slice, group_of(pool, slice), pool->op.group);
}

uint64_t tide_gradient_offset(const tide_pool *pool, uint32_t use)
{
    const tide_packing *packing = pool->context.packing;
    const tide_packed_op *op = tide_op_open(pool);
    const tide_packed_param *param = &packing->params[op->description->params[use].tensor];
    assert(pool->op.group < packing->sum_groups && op->accumulator_offsets[use] != UINT64_MAX);
    const uint64_t after = param->shared_offset_bytes != UINT64_MAX
                               ? pool->op.group * tide_packed_param_accumulator_bytes(param)
                               : tide_packing_set(pool->op.group) * op->set_bytes;
    return op->accumulator_offsets[use] + after;
}

/* Zero the region from `begin` to `end`; nothing if they are equal. */
static tide_status zero_between(tide_pool *pool, uint64_t begin, uint64_t end)
{
    assert(begin <= end);
    return begin < end ? tide_launch_zero(pool, begin, end - begin) : TIDE_OK;
}

/* Fill the open group's accumulators whose first use is in this op: those that the op overwrites with NaN (if
 * hazards are checked) or, if `all`, with zeros; the others with zeros. One launch zeroes accumulators that
 * lie side by side. */
static tide_status fill(tide_pool *pool, bool all)
{
    const tide_gradients *gradients = gradients_of(pool);
    const tide_packed_op *op = tide_op_open(pool);
    uint64_t begin = 0, end = 0; /* the range to zero */
    tide_status status = TIDE_OK;
    for (uint32_t i = 0; i < op->description->param_count && status == TIDE_OK; i++) {
        const tide_use use = op->description->params[i];
        if (!(use.access & TIDE_ACCESS_GRAD) || gradients->params[use.tensor].is_added)
            continue;
        const uint64_t offset = tide_gradient_offset(pool, i);
        const uint64_t bytes =
            tide_packed_param_accumulator_bytes(&pool->context.packing->params[use.tensor]);
        if (use.access & TIDE_ACCESS_OVERWRITE && !all) {
            if (pool->context.options.checks.hazard_check)
                status = tide_launch_nan(pool, offset, bytes);
            continue;
        }
        if (offset != end) {
            status = zero_between(pool, begin, end);
            begin = offset;
        }
        end = offset + bytes;
    }
    return status == TIDE_OK ? zero_between(pool, begin, end) : status;
}

/* --- sum groups --- */

/* Round fp32 sums to options.reduce_dtype. */
static tide_status round_sums(tide_pool *pool, uint64_t offset, uint64_t bytes, tide_launch_part part)
{
    const tide_round_args args = {.data = (float *)(void *)(pool->context.region + offset),
                                  .elements = bytes / sizeof(float),
                                  .dtype = pool->context.options.reduce_dtype};
    const tide_kernel_work kernel = {"sum group rounding",
                                     pool->context.kernels->round,
                                     &args,
                                     sizeof args,
                                     0,
                                     (double)tide_round_bytes(&args),
                                     part};
    assert(offset + bytes <= pool->context.plan.region_bytes);
    return bytes > 0 && args.dtype != TIDE_DTYPE_FP32 ? tide_launch_kernel(pool, &kernel) : TIDE_OK;
}

/* Add the fp32 sums at `from` to those at `to`. */
static tide_status add_sums(tide_pool *pool, uint64_t to, uint64_t from, uint64_t bytes,
                            tide_launch_part part)
{
    char *region = pool->context.region;
    const tide_add_args args = {.a = region + to,
                                .b = region + from,
                                .out = region + to,
                                .elements = bytes / sizeof(float),
                                .dtype = TIDE_DTYPE_FP32};
    const tide_kernel_work kernel = {"sum group add",
                                     pool->context.kernels->add,
                                     &args,
                                     sizeof args,
                                     (double)tide_add_flops(&args),
                                     (double)tide_add_bytes(&args),
                                     part};
    assert(to + bytes <= from && from + bytes <= pool->context.plan.region_bytes);
    return bytes > 0 ? tide_launch_kernel(pool, &kernel) : TIDE_OK;
}

/* A group without a slice sums nothing, so its sums are zeros. */
static tide_status zero_empty_group(tide_pool *pool)
{
    return pool->context.packing->sum_groups > 1 && pool->op.group_slices == 0 ? fill(pool, true) : TIDE_OK;
}

/* End the open sum group, which is not the last one. */
static tide_status end_group(tide_pool *pool)
{
    const tide_packed_op *op = tide_op_open(pool);
    uint32_t set = tide_packing_set(pool->op.group);
    tide_status status = zero_empty_group(pool);
    if (status == TIDE_OK)
        status = round_sums(pool, op->set_offset + set * op->set_bytes, op->set_bytes, TIDE_PART_BEGIN);
    for (uint32_t bits = pool->op.group; bits & 1 && status == TIDE_OK; bits >>= 1, set--)
        status = add_sums(pool, op->set_offset + (set - 1) * op->set_bytes,
                          op->set_offset + set * op->set_bytes, op->set_bytes, TIDE_PART_BEGIN);
    return status;
}

tide_status tide_gradient_begin(tide_pool *pool)
{
    pool->op.group = pool->op.group_slices = 0;
    for (uint32_t i = 0; i < tide_op_open(pool)->description->param_count; i++)
        pool->op.finished[i].count = 0;
    return fill(pool, false);
}

/* End the open sum group and those between, and open `group`. */
static tide_status enter(tide_pool *pool, uint32_t group)
{
    tide_status status = TIDE_OK;
    assert(pool->op.group <= group && group < pool->context.packing->sum_groups);
    while (pool->op.group < group && status == TIDE_OK) {
        status = end_group(pool);
        pool->op.group++;
        pool->op.group_slices = 0;
        if (status == TIDE_OK)
            status = fill(pool, false);
    }
    return status;
}

tide_status tide_gradient_slice(tide_pool *pool, uint32_t slice)
{
    if (!tide_op_open(pool)->makes_gradients)
        return TIDE_OK;
    const tide_status status = enter(pool, group_of(pool, slice));
    pool->op.group_slices++;
    return status;
}

/* Add the sets of an accumulator that the op closes, in elements [first, first + count), into the first set.
 * The sums of all groups are there; of an op's own accumulators all but the last have been added. */
static tide_status add_sets(tide_pool *pool, uint32_t use, uint64_t first, uint64_t count)
{
    const tide_packing *packing = pool->context.packing;
    const tide_packed_op *op = tide_op_open(pool);
    const tide_packed_param *param = &packing->params[op->description->params[use].tensor];
    const bool shared = param->shared_offset_bytes != UINT64_MAX;
    const uint32_t last = packing->sum_groups - 1, sets = shared ? last : tide_packing_set(last);
    const uint64_t at = op->accumulator_offsets[use] + first * sizeof(float), bytes = count * sizeof(float);
    const uint64_t apart = shared ? tide_packed_param_accumulator_bytes(param) : op->set_bytes;
    tide_status status = TIDE_OK;
    for (uint32_t set = shared ? 0 : sets; set <= sets && status == TIDE_OK; set++)
        status = round_sums(pool, at + set * apart, bytes, TIDE_PART_END);
    for (uint32_t set = sets; set > 0 && !shared && status == TIDE_OK; set--)
        status = add_sums(pool, at + (set - 1) * apart, at + set * apart, bytes, TIDE_PART_END);
    for (uint32_t step = 1; step <= sets && shared; step *= 2)
        for (uint32_t to = 0; to + step <= sets && status == TIDE_OK; to += 2 * step)
            status = add_sums(pool, at + to * apart, at + (to + step) * apart, bytes, TIDE_PART_END);
    return status;
}

/* --- finishing --- */

static const tide_packed_param *param_of(const tide_pool *pool, uint32_t use)
{
    return &pool->context.packing->params[tide_op_open(pool)->description->params[use].tensor];
}

static tide_status launch_rounding(tide_pool *pool, uint32_t use, uint64_t first, uint64_t count)
{
    const tide_pool_context *context = &pool->context;
    const tide_dtype dtype = context->packing->description->dtype;
    char *place = context->space_address[TIDE_SPACE_PARAM] + param_of(pool, use)->data_offset_bytes;
    const uint64_t offset = tide_op_open(pool)->accumulator_offsets[use] + first * sizeof(float);
    const tide_cast_args rounding = {.in = context->region + offset,
                                     .out = place + first * tide_dtype_bytes(dtype),
                                     .elements = count,
                                     .in_dtype = TIDE_DTYPE_FP32,
                                     .out_dtype = dtype};
    const tide_kernel_work kernel = {"gradient rounding",
                                     context->kernels->cast,
                                     &rounding,
                                     sizeof rounding,
                                     0,
                                     (double)tide_cast_bytes(&rounding),
                                     TIDE_PART_END};
    assert(offset + count * sizeof(float) <= context->plan.region_bytes);
    return tide_launch_kernel(pool, &kernel);
}

static tide_status launch_norm(tide_pool *pool, uint32_t use, uint64_t first, uint64_t count)
{
    const tide_pool_context *context = &pool->context;
    const tide_packed_param *param = param_of(pool, use);
    double *blocks = (double *)(void *)(context->region + context->packing->region.blocks_offset);
    const tide_dtype dtype = context->packing->description->dtype;
    const char *place = context->space_address[TIDE_SPACE_PARAM] + param->data_offset_bytes;
    const tide_gradient_norm_args norm = {.gradient = place + first * tide_dtype_bytes(dtype),
                                          .blocks =
                                              blocks + param->first_block + first / TIDE_NORM_BLOCK_ELEMENTS,
                                          .elements = count,
                                          .dtype = dtype};
    assert(first % TIDE_NORM_BLOCK_ELEMENTS == 0);
    const tide_kernel_work kernel = {
        "gradient norm", context->kernels->gradient_norm,         &norm,
        sizeof norm,     (double)tide_gradient_norm_flops(&norm), (double)tide_gradient_norm_bytes(&norm),
        TIDE_PART_END};
    return tide_launch_kernel(pool, &kernel);
}

/* The first finished range that ends at or behind `first`, or the count of ranges. */
static uint32_t find_range(const tide_finished *finished, uint64_t first)
{
    uint32_t at = 0;
    while (at < finished->count && finished->ranges[at].end < first)
        at++;
    return at;
}

/* Add a range that overlaps no finished one. */
static void note_range(tide_finished *finished, uint64_t first, uint64_t end)
{
    const uint32_t at = find_range(finished, first);
    uint32_t behind = at; /* the first range that stays behind the new one */
    for (; behind < finished->count && finished->ranges[behind].first <= end; behind++) {
        assert(finished->ranges[behind].end <= first || end <= finished->ranges[behind].first);
        first = tide_min_u64(first, finished->ranges[behind].first);
        end = tide_max_u64(end, finished->ranges[behind].end);
    }
    memmove(&finished->ranges[at + 1], &finished->ranges[behind],
            (finished->count - behind) * sizeof finished->ranges[0]);
    finished->count = finished->count - behind + at + 1;
    finished->ranges[at].first = first;
    finished->ranges[at].end = end;
}

tide_status tide_gradient_round(tide_pool *pool, uint32_t use, uint64_t first, uint64_t count)
{
    const tide_status status = launch_rounding(pool, use, first, count);
    return status == TIDE_OK ? launch_norm(pool, use, first, count) : status;
}

tide_status tide_gradient_range(tide_pool *pool, uint32_t use, uint64_t first, uint64_t count)
{
    const bool sums_only = tide_context_has_peers(&pool->context);
    tide_finished *finished = &pool->op.finished[use];
    const uint64_t elements = param_of(pool, use)->elements;
    assert(count > 0 && first + count <= elements);
    tide_status status = add_sets(pool, use, first, count);
    if (status == TIDE_OK && !sums_only)
        status = launch_rounding(pool, use, first, count);
    if (status != TIDE_OK)
        return status;
    note_range(finished, first, first + count);
    const bool complete = finished->ranges[0].first == 0 && finished->ranges[0].end == elements;
    return complete && !sums_only ? launch_norm(pool, use, 0, elements) : TIDE_OK;
}

/* Finish what is left of a gradient, from its start on. */
static tide_status finish_rest(tide_pool *pool, uint32_t use)
{
    const tide_finished *finished = &pool->op.finished[use];
    const uint64_t elements = param_of(pool, use)->elements;
    tide_status status = TIDE_OK;
    for (uint64_t first = 0; first < elements && status == TIDE_OK;) {
        const bool begun = finished->count > 0 && finished->ranges[0].first == 0;
        const uint32_t next = begun ? 1 : 0;
        first = begun ? finished->ranges[0].end : 0;
        const uint64_t end = next < finished->count ? finished->ranges[next].first : elements;
        if (first < end)
            status = tide_gradient_range(pool, use, first, end - first);
    }
    return status;
}

tide_status tide_gradient_end_groups(tide_pool *pool)
{
    if (!tide_op_open(pool)->makes_gradients)
        return TIDE_OK;
    const tide_status status = enter(pool, pool->context.packing->sum_groups - 1);
    return status == TIDE_OK ? zero_empty_group(pool) : status;
}

tide_status tide_gradient_end(tide_pool *pool)
{
    const tide_gradients *gradients = gradients_of(pool);
    const tide_op_description *op = tide_op_open(pool)->description;
    tide_status status = TIDE_OK;
    for (uint32_t i = 0; i < op->param_count && status == TIDE_OK; i++) {
        if (tide_gradients_closes(gradients, pool->op.number, &op->params[i]))
            status = finish_rest(pool, i);
    }
    if (status == TIDE_OK && tide_context_has_peers(&pool->context))
        status = tide_ranks_reduce(pool);
    return status;
}

/* --- may a range be finished? --- */

static tide_status check_state(const tide_pool *pool, const char *name, uint32_t use)
{
    const tide_packed_op *op = tide_op_open(pool);
    const uint32_t groups = pool->context.packing->sum_groups;
    if (!tide_gradients_closes(gradients_of(pool), pool->op.number, &op->description->params[use]))
        return tide_fail(TIDE_ERROR_STATE, "tide_gradient_finish of %s: op %s does not close its gradient",
                         name, op->description->name);
    if (op->makes_gradients && pool->op.group + 1 < groups)
        return tide_fail(TIDE_ERROR_STATE,
                         "tide_gradient_finish of %s: op %s has opened no slice of its last sum group yet",
                         name, op->description->name);
    return TIDE_OK;
}

static tide_status check_overlap(const tide_pool *pool, const char *name, uint32_t use, uint64_t first,
                                 uint64_t end)
{
    const tide_finished *finished = &pool->op.finished[use];
    uint32_t at = find_range(finished, first);
    const bool joins_left = at < finished->count && finished->ranges[at].end == first;
    at += joins_left;
    if (at < finished->count && finished->ranges[at].first < end)
        return tide_fail(TIDE_ERROR_STATE, "tide_gradient_finish of %s: element %llu is finished already",
                         name, (unsigned long long)tide_max_u64(first, finished->ranges[at].first));
    const bool joins_right = at < finished->count && finished->ranges[at].first == end;
    if (finished->count == TIDE_FINISHED_RANGES_MAX && !joins_left && !joins_right)
        return tide_fail(TIDE_ERROR_STATE,
                         "tide_gradient_finish of %s: more than %d finished ranges would lie apart", name,
                         TIDE_FINISHED_RANGES_MAX);
    return TIDE_OK;
}

static tide_status check_bounds(const tide_packed_param *param, uint64_t first, uint64_t count)
{
    const bool inside = first < param->elements && count > 0 && count <= param->elements - first;
    if (inside && first % TIDE_FINISHED_ALIGNMENT == 0 &&
        (count % TIDE_FINISHED_ALIGNMENT == 0 || first + count == param->elements))
        return TIDE_OK;
    return tide_fail(
        TIDE_ERROR_ARGUMENT,
        "tide_gradient_finish of %s: %llu elements from %llu on; it has %llu, and ranges begin at "
        "multiples of %d and end at such or with the param",
        param->name, (unsigned long long)count, (unsigned long long)first,
        (unsigned long long)param->elements, TIDE_FINISHED_ALIGNMENT);
}

tide_status tide_gradient_check_range(const tide_pool *pool, tide_param param, uint64_t first, uint64_t count,
                                      uint32_t *use)
{
    if (!tide_op_is_open(pool))
        return tide_fail(TIDE_ERROR_STATE, "tide_gradient_finish: no op is open");
    if (param >= pool->context.packing->param_count)
        return tide_fail(TIDE_ERROR_ARGUMENT, "tide_gradient_finish: there is no param %u", param);
    const tide_packed_param *of = &pool->context.packing->params[param];
    tide_status status = check_bounds(of, first, count);
    if (status != TIDE_OK)
        return status;
    const tide_op_description *op = tide_op_open(pool)->description;
    uint32_t i = 0;
    while (i < op->param_count && op->params[i].tensor != param)
        i++;
    if (i == op->param_count)
        return tide_fail(TIDE_ERROR_STATE, "tide_gradient_finish of %s: op %s does not use it", of->name,
                         op->name);
    status = check_state(pool, of->name, i);
    *use = i;
    return status == TIDE_OK ? check_overlap(pool, of->name, i, first, first + count) : status;
}
