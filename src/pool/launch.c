/* Enqueues kernels on the compute stream: the caller's, and those that the pool adds at the begin and end of
 * ops and steps. The open step and op decide in which sum a kernel's time is counted. */
#include "src/pool/internal.h"

#include <assert.h>
#include <math.h>
#include <string.h>

void tide_launch_lock(tide_pool *pool)
{
    tide_device *device = pool->context.device;
    assert(!tide_monitor_is_held(NULL));
    (void)device->ops->has_capacity(device, TIDE_STREAM_COMPUTE, true);
    if (tide_context_finish_stream(&pool->context) != TIDE_STREAM_COMPUTE)
        (void)device->ops->has_capacity(device, tide_context_finish_stream(&pool->context), true);
    tide_monitor_lock(&pool->monitor);
}

uint32_t tide_launch_tag(const tide_pool *pool)
{
    if (!pool->step.options.training)
        return UINT32_MAX;
    return tide_op_is_open(pool) ? pool->op.number : pool->context.packing->op_count;
}

uint32_t tide_launch_timer(const tide_pool *pool, tide_launch_part part)
{
    const tide_measure *measure = &pool->telemetry.measure;
    uint32_t series;
    if (!tide_op_is_open(pool))
        series = part == TIDE_PART_BEGIN || part == TIDE_PART_WRITE ? TIDE_SERIES_BEFORE : TIDE_SERIES_AFTER;
    else if (part == TIDE_PART_BEGIN)
        series = tide_series_of_begin(measure, pool->op.number);
    else if (part == TIDE_PART_END)
        series = tide_series_of_end(measure, pool->op.number);
    else
        series = tide_series_of_op(pool->op.number);
    return pool->step.options.training ? TIDE_TIMER_SERIES + series : TIDE_TIMER_NONE;
}

/* Enqueue a kernel that makes these accesses. */
static tide_status enqueue(tide_pool *pool, tide_stream stream, const tide_kernel_work *kernel,
                           const tide_access *accesses, uint32_t access_count)
{
    tide_device *device = pool->context.device;
    const tide_work work = {.label = kernel->label,
                            .op = pool->telemetry.tracer.op,
                            .tag = tide_launch_tag(pool),
                            .timer = tide_launch_timer(pool, kernel->part),
                            .id = tide_tracer_launch(&pool->telemetry.tracer),
                            .flops = kernel->flops,
                            .bytes = kernel->bytes,
                            .accesses = accesses,
                            .access_count = access_count,
                            .may_coalesce = !tide_telemetry_times_kernels(&pool->telemetry)};
    return device->ops->launch(device, stream, &work, kernel->kernel, kernel->arguments,
                               kernel->argument_bytes);
}

tide_status tide_launch_kernel(tide_pool *pool, const tide_kernel_work *kernel)
{
    const tide_open_op *op = &pool->op;
    assert(!tide_monitor_is_held(NULL));
    if (tide_op_is_open(pool) && kernel->part == TIDE_PART_END)
        return enqueue(pool, op->finishing_stream, kernel, op->finishing, op->finishing_count);
    return enqueue(pool, TIDE_STREAM_COMPUTE, kernel, op->accesses,
                   kernel->part == TIDE_PART_BEGIN ? op->region_count : op->count);
}

tide_status tide_launch_of_norm(tide_pool *pool, const tide_kernel_work *kernel)
{
    tide_access access;
    const uint32_t count = tide_context_add_part(&pool->context, TIDE_REGION_NORM, true, &access, 0);
    assert(!tide_op_is_open(pool));
    return enqueue(pool, TIDE_STREAM_COMPUTE, kernel, &access, count);
}

static tide_status launch_fill(tide_pool *pool, const char *label, tide_kernel kernel, uint64_t offset,
                               uint64_t bytes)
{
    const tide_zero_args args = {.data = pool->context.region + offset, .bytes = bytes};
    assert(offset + bytes <= pool->context.plan.region_bytes);
    const tide_kernel_work work = {label, kernel, &args, sizeof args, 0, (double)bytes, TIDE_PART_BEGIN};
    return tide_launch_kernel(pool, &work);
}

tide_status tide_launch_zero(tide_pool *pool, uint64_t offset, uint64_t bytes)
{
    return launch_fill(pool, "zero", pool->context.kernels->zero, offset, bytes);
}

/* In fp32, 32 bits that are all ones are a NaN. */
static tide_status fill_with_nan(void *stream, const void *arguments)
{
    const tide_zero_args *args = arguments;
    (void)stream;
    memset(args->data, 0xff, args->bytes);
    return TIDE_OK;
}

tide_status tide_launch_nan(tide_pool *pool, uint64_t offset, uint64_t bytes)
{
    assert(pool->context.options.checks.hazard_check);
    return launch_fill(pool, "nan", fill_with_nan, offset, bytes);
}

/* --- the caller's kernels --- */

static tide_status check(const tide_kernel_work *kernel)
{
    const bool no_arguments = kernel->arguments == NULL && kernel->argument_bytes > 0;
    if (kernel->label == NULL || kernel->kernel == NULL || no_arguments)
        return tide_pool_given("tide_launch", kernel->label == NULL    ? "name"
                                              : kernel->kernel == NULL ? "kernel"
                                                                       : "arguments");
    if (kernel->argument_bytes > TIDE_LAUNCH_ARGUMENTS_MAX_BYTES)
        return tide_fail(TIDE_ERROR_ARGUMENT,
                         "tide_launch of %s: %zu bytes of arguments, at most %d are copied", kernel->label,
                         kernel->argument_bytes, TIDE_LAUNCH_ARGUMENTS_MAX_BYTES);
    if (!isfinite(kernel->flops) || kernel->flops < 0 || !isfinite(kernel->bytes) || kernel->bytes < 0)
        return tide_fail(TIDE_ERROR_ARGUMENT,
                         "tide_launch of %s: %g flops and %g bytes; they must be finite and at least 0",
                         kernel->label, kernel->flops, kernel->bytes);
    return TIDE_OK;
}

tide_status tide_launch(tide_pool *pool, const char *name, tide_kernel kernel, const void *arguments,
                        size_t argument_bytes, double flops, double bytes)
{
    const tide_kernel_work work = {name, kernel, arguments, argument_bytes, flops, bytes, TIDE_PART_OP};
    tide_status status = check(&work);
    if (status == TIDE_OK)
        status = tide_pool_callable(pool, "tide_launch");
    if (status == TIDE_OK && !pool->step.is_open)
        status = tide_fail(TIDE_ERROR_STATE, "tide_launch of %s: no step is open", name);
    if (status != TIDE_OK)
        return status;
    return tide_monitor_keep(&pool->monitor, tide_launch_kernel(pool, &work));
}
