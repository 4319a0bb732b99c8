/* Measures rates. Each is the best of a few repetitions, since other programs can only make one slower.
 *
 *   device   2 device slots, a host slot and a region for the kernels' operands; no throttle, no checks
 *   timing   by the device's observer: from begin to end of a command on its stream, without the wait for it
 *   sizes    doubled while a command takes less than a millisecond and the region has room, since work that
 *            fills a CPU takes a GPU almost no time
 *
 * On the host device the operands of commands bound by memory fill the region from the start, which is larger
 * than most caches (some Xeons have 300 MiB). The chunks that the host's AdamW updates are as large together,
 * since in a step all other chunks come between two updates of one.
 */
#include "src/perf/rates.h"

#include "base/minmax.h"
#include "kernels/kernels.h"
#include "offload/topology.h"
#include "src/pool/device_factory.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

enum {
    MATMUL_SIZE_LEAST = 1024,
    /* so many square fp32 matrices fill the region: three operands, and five for the workspace */
    MATMUL_PARTS = 8,
    ADAM_PARAM_BYTES = 14,
    REPETITIONS = 4,
    SITE = 1, /* the number of the only wait in this file (tide_wait_site) */
};

static const double enough_seconds = 1e-3;
static const uint64_t host_bytes_most = UINT64_C(512) << 20, gpu_region_bytes = UINT64_C(2) << 30,
                      gpu_operand_bytes = UINT64_C(16) << 20, chunk_bytes_most = UINT64_C(64) << 20;

typedef struct bench {
    tide_device *device;
    const tide_kernels *kernels;
    tide_event event;
    char *region;
    uint64_t region_bytes;
    uint64_t operand_bytes_least; /* the smallest operand of commands that memory limits */
    uint32_t object;              /* the number of the device's object that is the whole region */
    uint32_t host_slots;
    /* the shortest command since the last reset; the device's threads write it, the caller reads it after a
     * wait */
    uint64_t best_ns;
} bench;

/* Only one stream at a time runs commands here, so only one thread writes best_ns; the event orders its
 * writes before the caller's read. */
static void command_seen(void *context, const tide_observed *command)
{
    bench *run = context;
    const uint64_t ns = command->end_ns - command->begin_ns;
    if (strcmp(command->label, "measure") == 0 && ns < run->best_ns)
        run->best_ns = ns;
}

static tide_status bench_wait(bench *run, tide_stream stream)
{
    tide_status status = run->device->ops->event_record(run->device, run->event, stream);
    if (status == TIDE_OK)
        status = run->device->ops->event_wait(run->device, run->event, SITE);
    return status;
}

static tide_status kernel_time(bench *run, tide_stream stream, tide_access access, tide_kernel kernel,
                               const void *arguments, size_t bytes, double *seconds)
{
    tide_work work = {.label = "measure", .accesses = &access, .access_count = 1};
    tide_status status = TIDE_OK;
    run->best_ns = UINT64_MAX;
    for (int i = 0; i < REPETITIONS && status == TIDE_OK; i++) {
        status = run->device->ops->launch(run->device, stream, &work, kernel, arguments, bytes);
        if (status == TIDE_OK)
            status = bench_wait(run, stream);
    }
    run->device->ops->synchronize(run->device); /* wait until the observer has seen the last command */
    if (status == TIDE_OK)
        *seconds = (double)run->best_ns * 1e-9;
    return status;
}

/* The bytes of operands for commands that the host's memory limits: half of host_bytes_most if less than
 * four times host_bytes_most is free. */
static uint64_t host_bytes(void)
{
    return tide_topology_available_bytes() / 4 < host_bytes_most ? host_bytes_most / 2 : host_bytes_most;
}

static tide_status region_time(bench *run, tide_kernel kernel, const void *arguments, size_t bytes,
                               double *seconds)
{
    return kernel_time(run, TIDE_STREAM_COMPUTE, tide_writes(TIDE_OBJECT_REGION, run->object), kernel,
                       arguments, bytes, seconds);
}

/* --- matrix products --- */

/* Fills with signed values near 1 in any dtype: with zeros a GPU's clock would run faster than in
 * training. */
static void fill_slot(uint16_t *values, uint64_t count)
{
    uint32_t state = 1;
    for (uint64_t i = 0; i < count; i++) {
        state = state * 1664525u + 1013904223u;
        values[i] = (uint16_t)(0x3f00u | (state >> 16 & 0x80ffu));
    }
}

static tide_status region_fill(bench *run, uint64_t chunk_bytes)
{
    const tide_device_ops *ops = run->device->ops;
    const tide_work upload = {.label = "fill"};
    fill_slot(ops->slot_address(run->device, TIDE_TIER_HOST, 0), chunk_bytes / 2);
    tide_status status =
        ops->copy_slot(run->device, TIDE_STREAM_COMPUTE, &upload, TIDE_TIER_DEVICE, 0, 0, chunk_bytes);
    const tide_access accesses[] = {tide_reads(TIDE_OBJECT_DEVICE_SLOT, 0),
                                    tide_writes(TIDE_OBJECT_REGION, run->object)};
    const tide_work work = {.label = "fill", .accesses = accesses, .access_count = 2};
    for (uint64_t at = 0; at < run->region_bytes && status == TIDE_OK; at += chunk_bytes) {
        const tide_copy_args copy = {.in = ops->slot_address(run->device, TIDE_TIER_DEVICE, 0),
                                     .out = run->region + at,
                                     .bytes = tide_min_u64(chunk_bytes, run->region_bytes - at)};
        status = ops->launch(run->device, TIDE_STREAM_COMPUTE, &work, run->kernels->copy, &copy, sizeof copy);
    }
    return status == TIDE_OK ? bench_wait(run, TIDE_STREAM_COMPUTE) : status;
}

static tide_status product_time(bench *run, tide_dtype dtype, size_t size, double *seconds)
{
    const size_t matrix = size * size * tide_dtype_bytes(dtype);
    size_t workspace = 0;
    tide_matmul_args args = {.a = run->region,
                             .b = run->region + matrix,
                             .c = run->region + 2 * matrix,
                             .workspace = run->region + 3 * matrix,
                             .m = size,
                             .n = size,
                             .k = size,
                             .lda = size,
                             .ldb = size,
                             .ldc = size,
                             .in_dtype = dtype,
                             .out_dtype = dtype};
    tide_status status = run->kernels->matmul_prepare(&args, &workspace);
    if (status != TIDE_OK)
        return status;
    if (3 * matrix + workspace > run->region_bytes)
        return tide_fail(TIDE_ERROR_INTERNAL, "measuring matrix products needs a workspace of %zu bytes",
                         workspace);
    args.workspace_bytes = workspace;
    return region_time(run, run->kernels->matmul, &args, sizeof args, seconds);
}

static bool product_fits(const bench *run, size_t size)
{
    return MATMUL_PARTS * size * size * sizeof(float) <= run->region_bytes;
}

static tide_status matmul_measure(bench *run, tide_dtype dtype, double *flops_per_second)
{
    size_t size = MATMUL_SIZE_LEAST;
    double seconds = 0;
    tide_status status = product_time(run, dtype, size, &seconds);
    while (status == TIDE_OK && seconds < enough_seconds && product_fits(run, 2 * size))
        status = product_time(run, dtype, size *= 2, &seconds);
    if (status == TIDE_OK)
        *flops_per_second = 2.0 * (double)size * (double)size * (double)size / seconds;
    return status;
}

/* --- memory --- */

static tide_status memory_measure(bench *run, double *bytes_per_second)
{
    tide_copy_args args = {.in = run->region, .bytes = run->operand_bytes_least};
    tide_status status = TIDE_OK;
    double seconds = 0;
    for (;; args.bytes *= 2) {
        args.out = run->region + args.bytes;
        status = region_time(run, run->kernels->copy, &args, sizeof args, &seconds);
        if (status != TIDE_OK || seconds >= enough_seconds || 4 * args.bytes > run->region_bytes)
            break;
    }
    if (status == TIDE_OK)
        *bytes_per_second = (double)tide_copy_bytes(&args) / seconds;
    return status;
}

/* Lays out as many params, with their optimizer state, as fit in `bytes`. The segment must live until the
 * kernel has run; the callers wait for it. */
static tide_adamw_segment adam_segment(char *at, uint64_t bytes)
{
    const size_t elements = (size_t)(bytes / ADAM_PARAM_BYTES) & ~(size_t)255;
    tide_adamw_segment segment = {.param = at, .elements = elements, .decays = true};
    segment.master = (float *)(void *)(at += elements * 2);
    segment.momentum = (float *)(void *)(at += elements * 4);
    segment.variance = (float *)(void *)(at + elements * 4);
    return segment;
}

/* Gradients and state are zero, since AdamW takes the same time for every value. */
static tide_status adam_measure(bench *run, double *bytes_per_second)
{
    const tide_zero_args zero = {.data = run->region, .bytes = run->region_bytes};
    double seconds = 0;
    uint64_t bytes = 2 * run->operand_bytes_least;
    tide_adamw_segment segment;
    tide_adamw_args args = {.segments = &segment, .segment_count = 1, .dtype = TIDE_DTYPE_BF16};
    tide_status status = region_time(run, run->kernels->zero, &zero, sizeof zero, &seconds);
    for (; status == TIDE_OK; bytes *= 2) {
        segment = adam_segment(run->region, bytes);
        status = region_time(run, run->kernels->adamw, &args, sizeof args, &seconds);
        if (seconds >= enough_seconds || 2 * bytes > run->region_bytes)
            break;
    }
    if (status == TIDE_OK)
        *bytes_per_second = (double)tide_adamw_bytes(&args) / seconds;
    return status;
}

/* Measures AdamW on the host: the CPU's kernel on host slots, run by the host executor. It uses all slots in
 * turn, so that none is in a cache. The first round touches the slots, the second is timed. */
static tide_status host_adam_measure(bench *run, uint64_t chunk_bytes, double *bytes_per_second)
{
    const tide_device_ops *ops = run->device->ops;
    const uint32_t slots = run->host_slots;
    tide_adamw_segment segment;
    const tide_adamw_args args = {.segments = &segment, .segment_count = 1, .dtype = TIDE_DTYPE_BF16};
    tide_status status = TIDE_OK;
    for (uint32_t i = 0; i < 2 * slots && status == TIDE_OK; i++) {
        char *slot = ops->slot_address(run->device, TIDE_TIER_HOST, i % slots);
        const tide_access access = tide_writes(TIDE_OBJECT_HOST_SLOT, i % slots);
        const tide_work work = {.label = "measure", .accesses = &access, .access_count = 1};
        segment = adam_segment(slot, chunk_bytes);
        if (i < slots)
            memset(slot, 0, chunk_bytes);
        if (i == slots) {
            ops->synchronize(run->device); /* wait until the observer has seen the first round */
            run->best_ns = UINT64_MAX;
        }
        status =
            ops->launch(run->device, TIDE_STREAM_HOST, &work, tide_kernels_cpu()->adamw, &args, sizeof args);
        if (status == TIDE_OK)
            status = bench_wait(run, TIDE_STREAM_HOST);
    }
    ops->synchronize(run->device);
    if (status == TIDE_OK)
        *bytes_per_second = (double)tide_adamw_bytes(&args) / ((double)run->best_ns * 1e-9);
    return status;
}

/* --- the link, maps and unmaps --- */

static tide_status copy_measure(bench *run, tide_tier to, uint64_t bytes, double *bytes_per_second)
{
    tide_stream stream = to == TIDE_TIER_DEVICE ? TIDE_STREAM_IN : TIDE_STREAM_OUT;
    tide_work work = {.label = "measure"};
    tide_status status = TIDE_OK;
    run->best_ns = UINT64_MAX;
    for (int i = 0; i < REPETITIONS && status == TIDE_OK; i++) {
        status = run->device->ops->copy_slot(run->device, stream, &work, to, 0, 0, bytes);
        if (status == TIDE_OK)
            status = bench_wait(run, stream);
    }
    run->device->ops->synchronize(run->device);
    if (status == TIDE_OK)
        *bytes_per_second = (double)bytes / ((double)run->best_ns * 1e-9);
    return status;
}

static tide_status map_measure(bench *run, void *place, tide_machine_profile *profile)
{
    const tide_device_ops *ops = run->device->ops;
    tide_status status = TIDE_OK;
    uint64_t map_ns = UINT64_MAX, unmap_ns = UINT64_MAX;
    for (int i = 0; i < REPETITIONS && status == TIDE_OK; i++) {
        const uint64_t begin = ops->now_ns(run->device);
        status = ops->map(run->device, 1, place);
        const uint64_t mapped = ops->now_ns(run->device);
        if (status == TIDE_OK)
            status = ops->unmap(run->device, 1, place);
        map_ns = tide_min_u64(map_ns, mapped - begin);
        unmap_ns = tide_min_u64(unmap_ns, ops->now_ns(run->device) - mapped);
    }
    if (status == TIDE_OK) {
        profile->map_ns = (double)map_ns;
        profile->unmap_ns = (double)unmap_ns;
    }
    return status;
}

/* --- all measurements --- */

static tide_status bench_memory(bench *run, uint64_t chunk_bytes, void **place)
{
    const tide_device_ops *ops = run->device->ops;
    void *region = NULL;
    tide_status status = ops->slots_create(run->device, TIDE_TIER_DEVICE, 2);
    if (status == TIDE_OK)
        status = ops->slots_create(run->device, TIDE_TIER_HOST, run->host_slots);
    if (status == TIDE_OK)
        status = ops->reserve(run->device, chunk_bytes, place);
    if (status == TIDE_OK)
        status = ops->region_create(run->device, run->region_bytes, &region);
    if (status == TIDE_OK)
        status = ops->region_object(run->device, "measure", 0, run->region_bytes, &run->object);
    if (status == TIDE_OK)
        status = ops->event_create(run->device, &run->event);
    run->region = region;
    return status;
}

static tide_status kernels_measure(bench *run, uint64_t chunk_bytes, tide_machine_profile *profile)
{
    static const tide_dtype dtypes[] = {TIDE_DTYPE_BF16, TIDE_DTYPE_FP16, TIDE_DTYPE_FP32};
    tide_status status = region_fill(run, chunk_bytes);
    for (size_t i = 0; i < sizeof dtypes / sizeof dtypes[0] && status == TIDE_OK; i++)
        status = matmul_measure(run, dtypes[i], &profile->flops_per_second[dtypes[i]]);
    if (status == TIDE_OK)
        status = memory_measure(run, &profile->device_bytes_per_second);
    if (status == TIDE_OK)
        status = adam_measure(run, &profile->device_adam_bytes_per_second);
    return status;
}

static tide_status bench_run(bench *run, const tide_device_factory *factory, uint64_t chunk_bytes,
                             tide_machine_profile *profile)
{
    void *place = NULL;
    tide_status status = bench_memory(run, chunk_bytes, &place);
    if (status == TIDE_OK)
        status = kernels_measure(run, chunk_bytes, profile);
    double *host_adam = &profile->adams[0].bytes_per_second;
    *host_adam = profile->device_adam_bytes_per_second;
    if (status == TIDE_OK && factory->module != NULL)
        status = host_adam_measure(run, chunk_bytes, host_adam);
    if (status == TIDE_OK)
        status = copy_measure(run, TIDE_TIER_DEVICE, chunk_bytes, &profile->h2d_bytes_per_second);
    if (status == TIDE_OK)
        status = copy_measure(run, TIDE_TIER_HOST, chunk_bytes, &profile->d2h_bytes_per_second);
    if (status == TIDE_OK)
        status = map_measure(run, place, profile);
    return status;
}

static uint64_t chunk_clamp(const tide_device_factory *factory, uint64_t chunk_bytes)
{
    return chunk_bytes < factory->chunk_bytes_min ? factory->chunk_bytes_min
                                                  : tide_min_u64(chunk_bytes, chunk_bytes_most);
}

static tide_status measure(const tide_device_factory *factory, uint32_t threads, uint64_t chunk_bytes,
                           tide_machine_profile *profile)
{
    const bool gpu = factory->module != NULL;
    bench run = {.kernels = factory->kernels, .best_ns = UINT64_MAX};
    run.region_bytes = gpu ? tide_min_u64(gpu_region_bytes, factory->available_bytes / 4) : host_bytes();
    run.operand_bytes_least =
        gpu ? tide_min_u64(gpu_operand_bytes, run.region_bytes / 4) : run.region_bytes / 2;
    run.host_slots = gpu ? (uint32_t)(host_bytes() / chunk_bytes) : 1; /* many slots for the host's AdamW */
    const tide_device_options options = {.device_memory_bytes = 2 * chunk_bytes + run.region_bytes,
                                         .host_memory_bytes = run.host_slots * chunk_bytes,
                                         .chunk_bytes = chunk_bytes,
                                         .threads = threads,
                                         .observer = command_seen,
                                         .observer_context = &run};
    tide_kernels_cpu_configure((int)(threads > 0 ? threads : tide_topology_processors()));
    tide_device_statistics statistics;
    tide_status status = tide_device_factory_open(factory, &options, &run.device);
    if (status != TIDE_OK)
        return status;
    status = bench_run(&run, factory, chunk_bytes, profile);
    run.device->ops->statistics(run.device, &statistics);
    profile->threads = profile->adams[0].threads = statistics.host_threads;
    profile->adam_count = 1;
    run.device->ops->close(run.device);
    return status;
}

tide_status tide_rates_measure(const char *device, uint32_t threads, uint64_t chunk_bytes,
                               tide_machine_profile *profile)
{
    tide_device_factory factory;
    const tide_status found = tide_device_factory_find(device, 0, &factory);
    if (found != TIDE_OK)
        return found;
    assert(factory.has_data);
    tide_machine_profile measured = *profile;
    snprintf(measured.device, sizeof measured.device, "%s", device);
    const tide_status status = measure(&factory, threads, chunk_clamp(&factory, chunk_bytes), &measured);
    if (status == TIDE_OK)
        *profile = measured;
    return status;
}

tide_status tide_rates_host_adam(uint32_t threads, double *bytes_per_second)
{
    const uint64_t chunk_bytes = chunk_bytes_most;
    bench run = {.best_ns = UINT64_MAX, .host_slots = (uint32_t)(host_bytes() / chunk_bytes)};
    const tide_device_options options = {.host_memory_bytes = run.host_slots * chunk_bytes,
                                         .device_memory_bytes = chunk_bytes,
                                         .chunk_bytes = chunk_bytes,
                                         .threads = threads,
                                         .observer = command_seen,
                                         .observer_context = &run};
    tide_status status = tide_device_host_open(&options, &run.device);
    if (status != TIDE_OK)
        return status;
    const tide_device_ops *ops = run.device->ops;
    status = ops->slots_create(run.device, TIDE_TIER_HOST, run.host_slots);
    if (status == TIDE_OK)
        status = ops->event_create(run.device, &run.event);
    if (status == TIDE_OK)
        status = host_adam_measure(&run, chunk_bytes, bytes_per_second);
    ops->close(run.device);
    return status;
}
