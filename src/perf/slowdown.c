/* Measures slowdowns. For each set of streams, all of them run their loads at once for a while; only the time
 * in which all of them are busy counts.
 *
 *     compute      a matrix product       in, out         copies of chunks, each between slots of its own
 *     update       AdamW, device          host            AdamW, host
 *
 * A stream's slowdown is the work that it does in this time, divided by the work that it does alone in a
 * time of the same length. */
#include "src/perf/slowdown.h"

#include "base/align.h"
#include "base/minmax.h"
#include "kernels/kernels.h"
#include "src/pool/device_factory.h"

#include <assert.h>
#include <string.h>

enum {
    ATTEMPTS = 3,
    COMMANDS_MIN = 3,
    COMMANDS_MAX = 48,
    CHUNK_BYTES = 16 << 20,
    SLOTS = 3,
    REGION_BYTES = 512 << 20,
    ROWS = 512,
    WIDTH_LEAST = 1024,
    WIDTH_MOST = 8192,
    ADAM_ELEMENTS = CHUNK_BYTES / 16, /* a param takes 14 bytes with its optimizer state */
};

static const double window_ns = 50e6, command_ns_least = 5e5;

/* A stream's commands, as the observer saw them. Only the stream's thread writes; the caller reads after a
 * wait. */
typedef struct load {
    uint32_t count;
    double begin_ns[COMMANDS_MAX], end_ns[COMMANDS_MAX];
    double alone_ns; /* without other streams: from the begin of a command to that of the next */
} load;

typedef struct bench {
    tide_device *device;
    const tide_kernels *device_kernels;
    tide_matmul_args product;
    tide_adamw_segment segments[2]; /* on the device, on the host */
    uint32_t object;
    load loads[TIDE_STREAM_COUNT];
} bench;

static void command_seen(void *context, const tide_observed *command)
{
    bench *run = context;
    load *of = &run->loads[command->stream];
    if (command->is_wait || of->count == COMMANDS_MAX || strcmp(command->label, "load") != 0)
        return;
    of->begin_ns[of->count] = (double)command->begin_ns;
    of->end_ns[of->count++] = (double)command->end_ns;
}

static tide_status launch(bench *run, tide_stream stream, tide_access access, tide_kernel kernel,
                          const void *arguments, size_t bytes)
{
    const tide_work work = {.label = "load", .accesses = &access, .access_count = 1};
    return run->device->ops->launch(run->device, stream, &work, kernel, arguments, bytes);
}

static tide_status command_add(bench *run, tide_stream stream)
{
    const tide_device_ops *ops = run->device->ops;
    const tide_work copy = {.label = "load"};
    const tide_adamw_args adam = {
        .segments = &run->segments[stream == TIDE_STREAM_HOST], .segment_count = 1, .dtype = TIDE_DTYPE_BF16};
    switch (stream) {
    case TIDE_STREAM_COMPUTE:
        return launch(run, stream, tide_writes(TIDE_OBJECT_REGION, run->object), run->device_kernels->matmul,
                      &run->product, sizeof run->product);
    case TIDE_STREAM_IN:
        return ops->copy_slot(run->device, stream, &copy, TIDE_TIER_DEVICE, 0, 0, CHUNK_BYTES);
    case TIDE_STREAM_OUT:
        return ops->copy_slot(run->device, stream, &copy, TIDE_TIER_HOST, 1, 1, CHUNK_BYTES);
    case TIDE_STREAM_UPDATE:
        return launch(run, stream, tide_writes(TIDE_OBJECT_DEVICE_SLOT, 2), run->device_kernels->adamw, &adam,
                      sizeof adam);
    default:
        assert(stream == TIDE_STREAM_HOST);
        return launch(run, stream, tide_writes(TIDE_OBJECT_HOST_SLOT, 2), tide_kernels_cpu()->adamw, &adam,
                      sizeof adam);
    }
}

/* How many commands a stream gets: so many that some are left at the window's end, even if other streams
 * slow it. */
static uint32_t commands_of(const load *of)
{
    const double count = of->alone_ns > 0 ? COMMANDS_MIN + window_ns / of->alone_ns : COMMANDS_MIN;
    return count < COMMANDS_MAX ? (uint32_t)count : COMMANDS_MAX;
}

static tide_status set_run(bench *run, unsigned set)
{
    tide_status status = TIDE_OK;
    for (int stream = 0; stream < TIDE_STREAM_COUNT; stream++)
        run->loads[stream].count = 0;
    for (uint32_t i = 0; i < COMMANDS_MAX && status == TIDE_OK; i++)
        for (int stream = 0; stream < TIDE_STREAM_COUNT && status == TIDE_OK; stream++)
            if ((set & 1u << stream) != 0 && i < commands_of(&run->loads[stream]))
                status = command_add(run, (tide_stream)stream);
    run->device->ops->synchronize(run->device);
    if (status == TIDE_OK)
        status = run->device->ops->failure(run->device);
    for (int stream = 0; stream < TIDE_STREAM_COUNT && status == TIDE_OK; stream++)
        if ((set & 1u << stream) != 0 && run->loads[stream].count < COMMANDS_MIN)
            status = tide_fail(TIDE_ERROR_INTERNAL, "measuring slowdowns: the %s stream told of %u commands",
                               tide_stream_name((tide_stream)stream), run->loads[stream].count);
    return status;
}

/* How many commands the stream completed between two times. Commands that are partly inside count in part;
 * the gap after a command belongs to it. */
static double done_between(const load *of, double begin_ns, double end_ns)
{
    double done = 0;
    for (uint32_t i = 0; i + 1 < of->count; i++) {
        const double lasted = of->begin_ns[i + 1] - of->begin_ns[i],
                     inside =
                         tide_min_f64(of->begin_ns[i + 1], end_ns) - tide_max_f64(of->begin_ns[i], begin_ns);
        done += inside > 0 && lasted > 0 ? inside / lasted : 0;
    }
    return done;
}

/* Computes the slowdowns of the set, from the time at which all its streams run until one begins its last
 * command. False if they never ran at the same time, as on a busy machine; they then count as running at full
 * speed. */
static bool set_conclude(const bench *run, unsigned set, tide_slowdowns *slowdowns)
{
    double begin_ns = 0, end_ns = 1e300;
    for (int stream = 0; stream < TIDE_STREAM_COUNT; stream++) {
        const load *of = &run->loads[stream];
        if ((set & 1u << stream) == 0)
            continue;
        begin_ns = tide_max_f64(begin_ns, of->begin_ns[0]);
        end_ns = tide_min_f64(end_ns, of->begin_ns[of->count - 1]);
    }
    for (int stream = 0; stream < TIDE_STREAM_COUNT; stream++) {
        const load *of = &run->loads[stream];
        if ((set & 1u << stream) != 0)
            slowdowns->of[stream][set] =
                end_ns > begin_ns
                    ? tide_min_f64(1, done_between(of, begin_ns, end_ns) * of->alone_ns / (end_ns - begin_ns))
                    : 1;
    }
    return end_ns > begin_ns;
}

static tide_status alone_measure(bench *run, int stream)
{
    load *of = &run->loads[stream];
    tide_status status = TIDE_OK;
    of->alone_ns = 0;
    /* the first round measures how many commands the second needs */
    for (int round = 0; round < 2 && status == TIDE_OK; round++) {
        status = set_run(run, 1u << stream);
        if (status == TIDE_OK)
            of->alone_ns = (of->begin_ns[of->count - 1] - of->begin_ns[0]) / (of->count - 1);
    }
    return status;
}

/* Prepares a product of this width, whose kernel has to take much longer than its launch. */
static tide_status product_prepare(bench *run, char *region, size_t width)
{
    const size_t matrix = width * width * 2, rows = ROWS * width * 2;
    size_t workspace = 0;
    tide_matmul_args product = {.a = region,
                                .b = region + rows,
                                .c = region + rows + matrix,
                                .workspace = region + 2 * rows + matrix,
                                .m = ROWS,
                                .n = width,
                                .k = width,
                                .lda = width,
                                .ldb = width,
                                .ldc = width,
                                .in_dtype = TIDE_DTYPE_BF16,
                                .out_dtype = TIDE_DTYPE_BF16};
    const tide_status status = run->device_kernels->matmul_prepare(&product, &workspace);
    if (status != TIDE_OK)
        return status;
    if (2 * rows + matrix + workspace > REGION_BYTES)
        return tide_fail(TIDE_ERROR_INTERNAL, "measuring slowdowns needs a workspace of %zu bytes",
                         workspace);
    product.workspace_bytes = workspace;
    run->product = product;
    return TIDE_OK;
}

static tide_status compute_measure(bench *run, char *region)
{
    tide_status status = TIDE_OK;
    for (size_t width = WIDTH_LEAST; width <= WIDTH_MOST && status == TIDE_OK; width *= 2) {
        status = product_prepare(run, region, width);
        if (status == TIDE_OK)
            status = alone_measure(run, TIDE_STREAM_COMPUTE);
        if (run->loads[TIDE_STREAM_COMPUTE].alone_ns >= command_ns_least)
            break;
    }
    return status;
}

static tide_adamw_segment segment_at(char *at)
{
    const size_t elements = ADAM_ELEMENTS;
    return (tide_adamw_segment){.param = at,
                                .elements = elements,
                                .decays = true,
                                .master = (float *)(void *)(at + 2 * elements),
                                .momentum = (float *)(void *)(at + 6 * elements),
                                .variance = (float *)(void *)(at + 10 * elements)};
}

static tide_status memory_make(bench *run, void **region)
{
    const tide_device_ops *ops = run->device->ops;
    tide_status status = ops->slots_create(run->device, TIDE_TIER_DEVICE, SLOTS);
    if (status == TIDE_OK)
        status = ops->slots_create(run->device, TIDE_TIER_HOST, SLOTS);
    if (status == TIDE_OK)
        status = ops->region_create(run->device, REGION_BYTES, region);
    if (status == TIDE_OK)
        status = ops->region_object(run->device, "load", 0, REGION_BYTES, &run->object);
    return status;
}

static const int streams[] = {TIDE_STREAM_COMPUTE, TIDE_STREAM_IN, TIDE_STREAM_OUT, TIDE_STREAM_UPDATE,
                              TIDE_STREAM_HOST};

/* The mean gap between two commands. */
static double gap_mean(const load *of)
{
    double sum = 0;
    for (uint32_t i = 0; i + 1 < of->count; i++)
        sum += of->begin_ns[i + 1] - of->end_ns[i];
    return sum > 0 ? sum / (of->count - 1) : 0;
}

static tide_status bench_run(bench *run, tide_slowdowns *slowdowns, double *launch_ns)
{
    const tide_device_ops *ops = run->device->ops;
    unsigned all = 0;
    void *region = NULL;
    tide_status status = memory_make(run, &region);
    if (status != TIDE_OK)
        return status;
    run->segments[0] = segment_at(ops->slot_address(run->device, TIDE_TIER_DEVICE, 2));
    run->segments[1] = segment_at(ops->slot_address(run->device, TIDE_TIER_HOST, 2));
    for (int i = 0; i < SLOTS; i++)
        memset(ops->slot_address(run->device, TIDE_TIER_HOST, (uint32_t)i), 0, CHUNK_BYTES);
    for (uint32_t i = 0; i < SLOTS && status == TIDE_OK; i++)
        status = ops->copy_slot(run->device, TIDE_STREAM_IN, &(tide_work){.label = "zero"}, TIDE_TIER_DEVICE,
                                i, i, CHUNK_BYTES);
    ops->synchronize(run->device);
    if (status == TIDE_OK)
        status = compute_measure(run, region);
    *launch_ns = gap_mean(&run->loads[TIDE_STREAM_COMPUTE]);
    for (size_t i = 0; i < sizeof streams / sizeof streams[0] && status == TIDE_OK; i++) {
        all |= 1u << streams[i];
        if (streams[i] != TIDE_STREAM_COMPUTE)
            status = alone_measure(run, streams[i]);
    }
    for (unsigned set = 1; set <= all && status == TIDE_OK; set++) {
        if ((set & ~all) != 0 || tide_is_power_of_two(set))
            continue;
        bool together = false;
        for (int attempt = 0; attempt < ATTEMPTS && status == TIDE_OK && !together; attempt++) {
            status = set_run(run, set);
            if (status == TIDE_OK)
                together = set_conclude(run, set, slowdowns);
        }
    }
    return status;
}

tide_status tide_slowdown_measure(const char *device, uint32_t threads, tide_slowdowns *slowdowns,
                                  double *launch_ns)
{
    static bench run; /* static because it is large */
    tide_device_factory factory;
    tide_slowdowns measured = {0};
    tide_status status = tide_device_factory_find(device, 0, &factory);
    if (status != TIDE_OK)
        return status;
    run = (bench){.device_kernels = factory.kernels};
    const tide_device_options options = {.device_memory_bytes = REGION_BYTES + SLOTS * (uint64_t)CHUNK_BYTES,
                                         .host_memory_bytes = SLOTS * (uint64_t)CHUNK_BYTES,
                                         .chunk_bytes = CHUNK_BYTES,
                                         .threads = threads,
                                         .observer = command_seen,
                                         .observer_context = &run};
    status = tide_device_factory_open(&factory, &options, &run.device);
    if (status != TIDE_OK)
        return status;
    double gap_ns = 0;
    status = bench_run(&run, &measured, &gap_ns);
    run.device->ops->close(run.device);
    if (status == TIDE_OK) {
        *slowdowns = measured;
        *launch_ns = gap_ns;
    }
    return status;
}
