/* The sums of gradients: accumulators in the region, one sum group after another (packing.h), and the kernels
 * that add the groups' sums, round the finished sum to the pool's dtype, write it over its param
 * (chunk/gradients.h) and compute the norm of the rounded gradient.
 */
#include "src/pool/internal.h"

#include "kernels/kernels.h"

#include <assert.h>

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
static tide_status round_sums(tide_pool *pool, uint64_t offset, uint64_t bytes)
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
                                     TIDE_PART_BEGIN};
    assert(offset + bytes <= pool->context.plan.region_bytes);
    return bytes > 0 && args.dtype != TIDE_DTYPE_FP32 ? tide_launch_kernel(pool, &kernel) : TIDE_OK;
}

/* Add the fp32 sums at `from` to those at `to`. */
static tide_status add_sums(tide_pool *pool, uint64_t to, uint64_t from, uint64_t bytes)
{
    char *region = pool->context.region;
    const tide_add_args args = {.a = region + to,
                                .b = region + from,
                                .out = region + to,
                                .elements = bytes / sizeof(float),
                                .dtype = TIDE_DTYPE_FP32};
    const tide_kernel_work kernel = {
        "sum group add", pool->context.kernels->add,    &args,
        sizeof args,     (double)tide_add_flops(&args), (double)tide_add_bytes(&args),
        TIDE_PART_BEGIN};
    assert(to + bytes <= from && from + bytes <= pool->context.plan.region_bytes);
    return bytes > 0 ? tide_launch_kernel(pool, &kernel) : TIDE_OK;
}

/* Add the op's own accumulators in `set` to those in the set below. */
static tide_status fold(tide_pool *pool, uint32_t set)
{
    const tide_packed_op *op = tide_op_open(pool);
    assert(set > 0);
    return add_sums(pool, op->set_offset + (set - 1) * op->set_bytes, op->set_offset + set * op->set_bytes,
                    op->set_bytes);
}

/* End the open sum group: a group without a slice sums nothing, so its sums are zeros. */
static tide_status end_group(tide_pool *pool)
{
    const tide_packed_op *op = tide_op_open(pool);
    const uint32_t groups = pool->context.packing->sum_groups, group = pool->op.group;
    uint32_t set = tide_packing_set(group);
    tide_status status = groups > 1 && pool->op.group_slices == 0 ? fill(pool, true) : TIDE_OK;
    if (status == TIDE_OK)
        status = round_sums(pool, op->set_offset + set * op->set_bytes, op->set_bytes);
    for (uint32_t bits = group; bits & 1 && status == TIDE_OK; bits >>= 1)
        status = fold(pool, set--);
    return status;
}

tide_status tide_gradient_begin(tide_pool *pool)
{
    pool->op.group = pool->op.group_slices = 0;
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

/* End all groups and add what is left of the op's own sums, the last ones first. */
static tide_status end_groups(tide_pool *pool)
{
    const uint32_t groups = pool->context.packing->sum_groups;
    tide_status status = enter(pool, groups - 1);
    if (status == TIDE_OK)
        status = end_group(pool);
    for (uint32_t set = tide_packing_set(groups) - 1; set > 0 && status == TIDE_OK; set--)
        status = fold(pool, set);
    return status;
}

/* Add the sets of a shared accumulator, one for each sum group, into the first. */
static tide_status add_shared(tide_pool *pool, const tide_packed_param *param)
{
    const uint32_t groups = pool->context.packing->sum_groups;
    const uint64_t bytes = tide_packed_param_accumulator_bytes(param), first = param->shared_offset_bytes;
    tide_status status = round_sums(pool, first, groups * bytes);
    for (uint32_t step = 1; step < groups; step *= 2)
        for (uint32_t to = 0; to + step < groups && status == TIDE_OK; to += 2 * step)
            status = add_sums(pool, first + to * bytes, first + (to + step) * bytes, bytes);
    return status;
}

/* --- rounding --- */

/* Launch the two kernels that round the accumulator over the param and compute the norm of the result. */
static tide_status launch_rounding(tide_pool *pool, const tide_packed_param *param,
                                   uint64_t accumulator_offset)
{
    const tide_pool_context *context = &pool->context;
    assert(accumulator_offset + param->elements * sizeof(float) <= context->plan.region_bytes);
    double *blocks = (double *)(void *)(context->region + context->packing->region.blocks_offset);
    const tide_cast_args rounding = {.in = context->region + accumulator_offset,
                                     .out =
                                         context->space_address[TIDE_SPACE_PARAM] + param->data_offset_bytes,
                                     .elements = param->elements,
                                     .in_dtype = TIDE_DTYPE_FP32,
                                     .out_dtype = context->packing->description->dtype};
    const tide_gradient_norm_args norm = {.gradient = rounding.out,
                                          .blocks = blocks + param->first_block,
                                          .elements = param->elements,
                                          .dtype = context->packing->description->dtype};
    const tide_kernel_work kernels[] = {
        {"gradient rounding", context->kernels->cast, &rounding, sizeof rounding, 0,
         (double)tide_cast_bytes(&rounding), TIDE_PART_END},
        {"gradient norm", context->kernels->gradient_norm, &norm, sizeof norm,
         (double)tide_gradient_norm_flops(&norm), (double)tide_gradient_norm_bytes(&norm), TIDE_PART_END}};
    const tide_status status = tide_launch_kernel(pool, &kernels[0]);
    return status == TIDE_OK ? tide_launch_kernel(pool, &kernels[1]) : status;
}

/* Finish the gradient of the op's use `i`, which the op closes. */
static tide_status close_gradient(tide_pool *pool, uint32_t i)
{
    const tide_packed_op *op = tide_op_open(pool);
    const tide_packed_param *param = &pool->context.packing->params[op->description->params[i].tensor];
    const tide_status status = param->shared_offset_bytes != UINT64_MAX ? add_shared(pool, param) : TIDE_OK;
    return status == TIDE_OK ? launch_rounding(pool, param, op->accumulator_offsets[i]) : status;
}

tide_status tide_gradient_end(tide_pool *pool)
{
    const tide_gradients *gradients = gradients_of(pool);
    const tide_packed_op *op = tide_op_open(pool);
    tide_status status = op->makes_gradients ? end_groups(pool) : TIDE_OK;
    for (uint32_t i = 0; i < op->description->param_count && status == TIDE_OK; i++) {
        if (tide_gradients_closes(gradients, pool->op.number, &op->description->params[i]))
            status = close_gradient(pool, i);
    }
    return status;
}
