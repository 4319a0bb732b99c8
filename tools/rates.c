/* Each figure is the best of a few repetitions: other programs only ever slow one down.
 *
 *     host device   2 device slots, a host slot, a region for the kernels' operands; no throttle, no checks
 *     timing        by the device's observer: begin and end of a command on its stream, not the wait for it
 */
#include "tools/rates.h"

#include "kernels/kernels.h"
#include "offload/device.h"
#include "offload/topology.h"

#include <string.h>

enum {
    MATMUL_SIZE = 1024,
    REPETITIONS = 4,
    REGION_BYTES = 256 << 20, /* beyond any cache */
    CHUNK_BYTES_MIN = 256 << 10,
    CHUNK_BYTES_MAX = 64 << 20,
    SITE = 1, /* the only wait here; nobody takes it away */
};

typedef struct bench {
    tide_device *device;
    const tide_kernels *kernels;
    tide_event event;
    char *region;
    uint32_t object; /* the region, whole */
    uint64_t
        best_ns; /* shortest command since the last reset; written on stream threads, read after a wait */
} bench;

/* Streams run one command at a time here, so there is one writer; the event orders it before the reader. */
static void command_seen(void *context, tide_stream stream, const char *label, uint32_t tag,
                         uint64_t begin_ns, uint64_t end_ns)
{
    bench *run = context;
    (void)stream, (void)tag;
    if (strcmp(label, "measure") != 0)
        return;
    if (end_ns - begin_ns < run->best_ns)
        run->best_ns = end_ns - begin_ns;
}

static tide_status bench_wait(bench *run, tide_stream stream)
{
    tide_status status = run->device->ops->event_record(run->device, run->event, stream);
    if (status == TIDE_OK)
        status = run->device->ops->event_wait(run->device, run->event, SITE);
    return status;
}

static tide_status kernel_time(bench *run, tide_kernel kernel, const void *arguments, size_t bytes,
                               double *seconds)
{
    tide_access access = tide_writes(TIDE_OBJECT_REGION, run->object);
    tide_work work = {.label = "measure", .accesses = &access, .access_count = 1};
    tide_status status = TIDE_OK;
    run->best_ns = UINT64_MAX;
    for (int i = 0; i < REPETITIONS && status == TIDE_OK; i++) {
        status = run->device->ops->launch(run->device, TIDE_STREAM_COMPUTE, &work, kernel, arguments, bytes);
        if (status == TIDE_OK)
            status = bench_wait(run, TIDE_STREAM_COMPUTE);
    }
    run->device->ops->synchronize(run->device); /* the observer has seen the last one too */
    if (status == TIDE_OK)
        *seconds = (double)run->best_ns * 1e-9;
    return status;
}

static tide_status matmul_measure(bench *run, tide_dtype dtype, double *flops_per_second)
{
    size_t matrix = (size_t)MATMUL_SIZE * MATMUL_SIZE * tide_dtype_bytes(dtype), workspace = 0;
    tide_matmul_args args = {.a = run->region,
                             .b = run->region + matrix,
                             .c = run->region + 2 * matrix,
                             .workspace = run->region + 3 * matrix,
                             .m = MATMUL_SIZE,
                             .n = MATMUL_SIZE,
                             .k = MATMUL_SIZE,
                             .lda = MATMUL_SIZE,
                             .ldb = MATMUL_SIZE,
                             .ldc = MATMUL_SIZE,
                             .in_dtype = dtype,
                             .out_dtype = dtype};
    double seconds = 0;
    tide_status status = run->kernels->matmul_prepare(&args, &workspace);
    if (status != TIDE_OK)
        return status;
    if (3 * matrix + workspace > REGION_BYTES)
        return tide_fail(TIDE_ERROR_INTERNAL, "measuring matrix products needs a workspace of %zu bytes",
                         workspace);
    args.workspace_bytes = workspace;
    status = kernel_time(run, run->kernels->matmul, &args, sizeof args, &seconds);
    if (status == TIDE_OK)
        *flops_per_second = (double)tide_matmul_flops(&args) / seconds;
    return status;
}

static tide_status memory_measure(bench *run, double *bytes_per_second)
{
    tide_copy_args args = {
        .in = run->region, .out = run->region + REGION_BYTES / 2, .bytes = REGION_BYTES / 2};
    double seconds = 0;
    tide_status status = kernel_time(run, run->kernels->copy, &args, sizeof args, &seconds);
    if (status == TIDE_OK)
        *bytes_per_second = (double)tide_copy_bytes(&args) / seconds;
    return status;
}

/* Zero gradients and zero states: the arithmetic is the same for every value. */
static tide_status adam_measure(bench *run, double *bytes_per_second)
{
    enum { ELEMENTS = (REGION_BYTES / 14) & ~255 };
    char *at = run->region;
    tide_adamw_segment segment = {.param = at, .elements = ELEMENTS, .decays = true};
    segment.master = (float *)(void *)(at += (size_t)ELEMENTS * 2);
    segment.momentum = (float *)(void *)(at += (size_t)ELEMENTS * 4);
    segment.variance = (float *)(void *)(at + (size_t)ELEMENTS * 4);
    tide_adamw_args args = {.segments = &segment, .segment_count = 1, .dtype = TIDE_DTYPE_BF16};
    double seconds = 0;
    memset(run->region, 0, REGION_BYTES);
    tide_status status = kernel_time(run, run->kernels->adamw, &args, sizeof args, &seconds);
    if (status == TIDE_OK)
        *bytes_per_second = (double)tide_adamw_bytes(&args) / seconds;
    return status;
}

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

static tide_status map_measure(bench *run, void *place, uint64_t *map_ns)
{
    const tide_device_ops *ops = run->device->ops;
    tide_status status = TIDE_OK;
    uint64_t best = UINT64_MAX;
    for (int i = 0; i < REPETITIONS && status == TIDE_OK; i++) {
        uint64_t begin = ops->now_ns(run->device);
        status = ops->map(run->device, 1, place);
        uint64_t took = ops->now_ns(run->device) - begin;
        if (status == TIDE_OK)
            status = ops->unmap(run->device, 1, place);
        best = took < best ? took : best;
    }
    if (status == TIDE_OK)
        *map_ns = best;
    return status;
}

static tide_status bench_memory(bench *run, uint64_t chunk_bytes, void **place)
{
    const tide_device_ops *ops = run->device->ops;
    void *region = NULL;
    tide_status status = ops->slots_create(run->device, TIDE_TIER_DEVICE, 2);
    if (status == TIDE_OK)
        status = ops->slots_create(run->device, TIDE_TIER_HOST, 1);
    if (status == TIDE_OK)
        status = ops->reserve(run->device, chunk_bytes, place);
    if (status == TIDE_OK)
        status = ops->region_create(run->device, REGION_BYTES, &region);
    if (status == TIDE_OK)
        status = ops->region_object(run->device, "measure", 0, REGION_BYTES, &run->object);
    if (status == TIDE_OK)
        status = ops->event_create(run->device, &run->event);
    run->region = region;
    return status;
}

static tide_status bench_run(bench *run, uint64_t chunk_bytes, tide_rates *rates)
{
    void *place = NULL;
    tide_status status = bench_memory(run, chunk_bytes, &place);
    if (status == TIDE_OK)
        status = matmul_measure(run, TIDE_DTYPE_BF16, &rates->flops_per_second[TIDE_DTYPE_BF16]);
    if (status == TIDE_OK)
        status = matmul_measure(run, TIDE_DTYPE_FP16, &rates->flops_per_second[TIDE_DTYPE_FP16]);
    if (status == TIDE_OK)
        status = matmul_measure(run, TIDE_DTYPE_FP32, &rates->flops_per_second[TIDE_DTYPE_FP32]);
    if (status == TIDE_OK)
        status = memory_measure(run, &rates->device_bytes_per_second);
    if (status == TIDE_OK)
        status = adam_measure(run, &rates->adam_bytes_per_second);
    if (status == TIDE_OK)
        status = copy_measure(run, TIDE_TIER_DEVICE, chunk_bytes, &rates->h2d_bytes_per_second);
    if (status == TIDE_OK)
        status = copy_measure(run, TIDE_TIER_HOST, chunk_bytes, &rates->d2h_bytes_per_second);
    if (status == TIDE_OK)
        status = map_measure(run, place, &rates->map_ns);
    return status;
}

static uint64_t chunk_clamp(uint64_t chunk_bytes)
{
    if (chunk_bytes < CHUNK_BYTES_MIN)
        return CHUNK_BYTES_MIN;
    return chunk_bytes > CHUNK_BYTES_MAX ? CHUNK_BYTES_MAX : chunk_bytes;
}

tide_status tide_rates_measure(uint32_t threads, uint64_t chunk_bytes, tide_rates *rates)
{
    uint64_t chunk = chunk_clamp(chunk_bytes);
    tide_rates measured = {.threads = threads != 0 ? threads : tide_topology_processors(),
                           .chunk_bytes = chunk};
    bench run = {.kernels = tide_kernels_cpu(), .best_ns = UINT64_MAX};
    tide_device_options options = {.device_memory_bytes = 2 * chunk + REGION_BYTES,
                                   .host_memory_bytes = chunk,
                                   .chunk_bytes = chunk,
                                   .threads = measured.threads,
                                   .observer = command_seen,
                                   .observer_context = &run};
    tide_kernels_cpu_configure((int)measured.threads);
    tide_status status = tide_device_host_open(&options, &run.device);
    if (status != TIDE_OK)
        return status;
    status = bench_run(&run, chunk, &measured);
    run.device->ops->close(run.device);
    if (status == TIDE_OK)
        *rates = measured;
    return status;
}
