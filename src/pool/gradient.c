/* The sums of gradients: accumulators in the region, and the kernels that round each finished sum to the
 * pool's dtype, write it over its param (chunk/gradients.h) and compute the norm of the rounded gradient.
 */
#include "src/pool/internal.h"

#include "kernels/kernels.h"

#include <assert.h>

/* Zero the region from `begin` to `end`; nothing if they are equal. */
static tide_status zero_between(tide_pool *pool, uint64_t begin, uint64_t end)
{
    assert(begin <= end);
    return begin < end ? tide_launch_zero(pool, begin, end - begin) : TIDE_OK;
}

/* One launch zeroes accumulators that lie side by side. */
tide_status tide_gradient_fill(tide_pool *pool)
{
    const tide_gradients *gradients = tide_manager_gradients(pool->engine.manager);
    const tide_packed_op *op = tide_op_open(pool);
    uint64_t begin = 0, end = 0; /* the range to zero */
    tide_status status = TIDE_OK;
    for (uint32_t i = 0; i < op->description->param_count && status == TIDE_OK; i++) {
        const tide_use use = op->description->params[i];
        const uint64_t offset = op->accumulator_offsets[i];
        const uint64_t bytes =
            tide_align_up(pool->context.packing->params[use.tensor].elements * sizeof(float));
        if (!(use.access & TIDE_ACCESS_GRAD) || gradients->params[use.tensor].is_added)
            continue;
        if (use.access & TIDE_ACCESS_OVERWRITE) {
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

tide_status tide_gradient_round(tide_pool *pool)
{
    const tide_gradients *gradients = tide_manager_gradients(pool->engine.manager);
    const tide_packed_op *op = tide_op_open(pool);
    tide_status status = TIDE_OK;
    for (uint32_t i = 0; i < op->description->param_count && status == TIDE_OK; i++) {
        const tide_use *use = &op->description->params[i];
        if (tide_gradients_closes(gradients, pool->op.number, use))
            status = launch_rounding(pool, &pool->context.packing->params[use->tensor],
                                     op->accumulator_offsets[i]);
    }
    return status;
}
