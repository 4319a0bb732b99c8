#include "src/pool/launch.h"

#include "src/pool/internal.h"

#include <assert.h>
#include <math.h>

void tide_launcher_make_room(const tide_launcher *launcher)
{
    tide_device *device = launcher->ground->device;
    assert(!tide_monitor_is_held(NULL));
    (void)device->ops->room(device, TIDE_STREAM_COMPUTE, true);
}

static uint32_t series_of(const tide_launcher *launcher, tide_launch_part part)
{
    const tide_measure *measure = &launcher->journal->measure;
    if (launcher->op == measure->op_count)
        return part == TIDE_PART_BEGIN || part == TIDE_PART_WRITE ? TIDE_SERIES_BEFORE : TIDE_SERIES_AFTER;
    if (part == TIDE_PART_BEGIN)
        return tide_series_of_begin(measure, launcher->op);
    return part == TIDE_PART_END ? tide_series_of_end(measure, launcher->op)
                                 : tide_series_of_op(launcher->op);
}

uint32_t tide_launcher_meter(const tide_launcher *launcher, tide_launch_part part)
{
    return launcher->training ? TIDE_METER_SERIES + series_of(launcher, part) : TIDE_METER_NONE;
}

tide_status tide_launcher_kernel(tide_launcher *launcher, const tide_kernel_work *kernel,
                                 const tide_access *accesses, uint32_t access_count)
{
    tide_device *device = launcher->ground->device;
    const tide_access region = tide_writes(TIDE_OBJECT_REGION, launcher->ground->region_object);
    const tide_work work = {.label = kernel->label,
                            .op = launcher->journal->tracer.op,
                            .tag = tide_launcher_tag(launcher),
                            .meter = tide_launcher_meter(launcher, kernel->part),
                            .flops = launcher->shadow ? 0 : kernel->flops,
                            .bytes = launcher->shadow ? launcher->shadow_bytes : kernel->bytes,
                            .accesses = access_count > 0 ? accesses : &region,
                            .access_count = access_count > 0 ? access_count : 1};
    assert(tide_order_may_enqueue(launcher->order, TIDE_STREAM_COMPUTE));
    assert(access_count == 0 || accesses != NULL);
    const tide_status status = device->ops->launch(device, TIDE_STREAM_COMPUTE, &work, kernel->kernel,
                                                   kernel->arguments, kernel->argument_bytes);
    launcher->shadow_bytes = 0;
    return status;
}

tide_status tide_launcher_zero_region(tide_launcher *launcher, uint64_t offset, uint64_t bytes)
{
    const tide_ground *ground = launcher->ground;
    const tide_zero_args zero = {.data = ground->region + offset, .bytes = bytes};
    assert(offset + bytes <= ground->plan.region_bytes);
    const tide_kernel_work kernel = {"zero", ground->kernels->zero, &zero,          sizeof zero,
                                     0,      (double)bytes,         TIDE_PART_BEGIN};
    return tide_launcher_kernel(launcher, &kernel, NULL, 0);
}

/* --- the caller's kernels --- */

static tide_status check(const tide_kernel_work *kernel)
{
    const bool no_arguments = kernel->arguments == NULL && kernel->argument_bytes > 0;
    const tide_status given = tide_pool_given("tide_launch", kernel->label == NULL    ? "name"
                                                             : kernel->kernel == NULL ? "kernel"
                                                             : no_arguments           ? "arguments"
                                                                                      : NULL);
    if (given != TIDE_OK)
        return given;
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
    status = tide_launcher_kernel(&pool->launch, &work, pool->launch.accesses, pool->launch.access_count);
    return tide_monitor_keep(&pool->monitor, status);
}
