/* Times copies and mappings of chunks, of 64 MiB unless --quick.
 *
 *     plain     cudaMemcpyAsync between pinned memory (cudaHostAlloc) and cudaMalloc's, back to back, one
 *               stream for each direction
 *     engine    copy_slot on the in and the out stream, an event behind each, as the pool's engine
 *               enqueues them
 *
 * The two run in turn, in rounds; a figure is the median of the rounds' ratios (the engine's bytes a
 * second over the plain copies'). Then the benchmark maps and unmaps a free slot at a free place and times
 * each pair of calls, first without other work and then while the engine's copies run. The second figure
 * has no bound: on an H200, cuMemSetAccess waits for about 1 ms, a time slice, while a copy from the
 * device to the host runs, whatever the copy's size. In a training step this matters little: stalls took
 * 0.1% of its time. */
#include "tests/bench/gpu/bench_gpu.h"

#include "offload/cuda/cuda_device.h"

#include <stdlib.h>

enum { SITE = 1, COPIES = 16, ROUNDS = 9, ROUNDS_QUICK = 1, MAPPINGS = 400, SLOTS = 6 };
enum { IN = 1, OUT = 2, BOTH = 3 };

typedef struct fixture {
    tide_device *device;
    const tide_device_ops *ops;
    uint64_t chunk_bytes;
    tide_event events[2][COPIES];
    char *places; /* range of SLOTS chunks */
    void *host[2], *gpu[2];
    cudaStream_t streams[2];
} fixture;

static fixture fixture_open(uint32_t ordinal, uint64_t chunk_bytes)
{
    fixture it = {.chunk_bytes = chunk_bytes};
    const tide_device_options options = {.device_memory_bytes = SLOTS * chunk_bytes,
                                         .host_memory_bytes = SLOTS * chunk_bytes,
                                         .chunk_bytes = chunk_bytes};
    void *places;
    bench_check(tide_device_cuda_open(&options, ordinal, &it.device), "open");
    it.ops = it.device->ops;
    bench_check(it.ops->slots_create(it.device, TIDE_TIER_DEVICE, SLOTS), "device slots");
    bench_check(it.ops->slots_create(it.device, TIDE_TIER_HOST, SLOTS), "host slots");
    bench_check(it.ops->reserve(it.device, SLOTS * chunk_bytes, &places), "reserve");
    it.places = places;
    for (uint32_t slot = 0; slot < 4; slot++)
        bench_check(it.ops->map(it.device, slot, it.places + slot * chunk_bytes), "map");
    for (int d = 0; d < 2; d++) {
        for (int i = 0; i < COPIES; i++)
            bench_check(it.ops->event_create(it.device, &it.events[d][i]), "event");
        BENCH_CUDA(cudaHostAlloc(&it.host[d], chunk_bytes, cudaHostAllocDefault));
        BENCH_CUDA(cudaMalloc(&it.gpu[d], chunk_bytes));
        BENCH_CUDA(cudaStreamCreateWithFlags(&it.streams[d], cudaStreamNonBlocking));
    }
    return it;
}

static void fixture_close(fixture *it)
{
    for (int d = 0; d < 2; d++) {
        BENCH_CUDA(cudaStreamDestroy(it->streams[d]));
        BENCH_CUDA(cudaFree(it->gpu[d]));
        BENCH_CUDA(cudaFreeHost(it->host[d]));
    }
    it->ops->close(it->device);
}

static double reference_seconds(fixture *it, int directions)
{
    const double begin = bench_seconds();
    for (int i = 0; i < COPIES; i++) {
        if (directions & IN)
            BENCH_CUDA(cudaMemcpyAsync(it->gpu[0], it->host[0], it->chunk_bytes, cudaMemcpyHostToDevice,
                                       it->streams[0]));
        if (directions & OUT)
            BENCH_CUDA(cudaMemcpyAsync(it->host[1], it->gpu[1], it->chunk_bytes, cudaMemcpyDeviceToHost,
                                       it->streams[1]));
    }
    BENCH_CUDA(cudaStreamSynchronize(it->streams[0]));
    BENCH_CUDA(cudaStreamSynchronize(it->streams[1]));
    return bench_seconds() - begin;
}

/* Copies in use slots 0 and 1 in turn, copies out use slots 2 and 3. */
static void engine_enqueue(fixture *it, int directions)
{
    for (uint32_t i = 0; i < COPIES; i++) {
        const tide_work work = {.label = "bench copy", .tag = i};
        if (directions & IN) {
            bench_check(it->ops->copy_slot(it->device, TIDE_STREAM_IN, &work, TIDE_TIER_DEVICE, i % 2, i % 2,
                                           it->chunk_bytes),
                        "in");
            bench_check(it->ops->event_record(it->device, it->events[0][i], TIDE_STREAM_IN), "record");
        }
        if (directions & OUT) {
            bench_check(it->ops->copy_slot(it->device, TIDE_STREAM_OUT, &work, TIDE_TIER_HOST, 2 + i % 2,
                                           2 + i % 2, it->chunk_bytes),
                        "out");
            bench_check(it->ops->event_record(it->device, it->events[1][i], TIDE_STREAM_OUT), "record");
        }
    }
}

static void engine_wait(fixture *it, int directions)
{
    if (directions & IN)
        bench_check(it->ops->event_wait(it->device, it->events[0][COPIES - 1], SITE), "wait");
    if (directions & OUT)
        bench_check(it->ops->event_wait(it->device, it->events[1][COPIES - 1], SITE), "wait");
}

static double engine_seconds(fixture *it, int directions)
{
    const double begin = bench_seconds();
    engine_enqueue(it, directions);
    engine_wait(it, directions);
    return bench_seconds() - begin;
}

static void copies_measure(fixture *it, const char *gpu, int kernel_rounds)
{
    static const char *const names[] = {
        [IN] = "chunks in", [OUT] = "chunks out", [BOTH] = "chunks in and out"};
    const int rounds = kernel_rounds > 1 ? ROUNDS : ROUNDS_QUICK;
    for (int directions = IN; directions <= BOTH; directions++) {
        const double bytes = (double)COPIES * (double)it->chunk_bytes * (directions == BOTH ? 2 : 1);
        double ratios[ROUNDS], reference_rates[ROUNDS];
        /* warm up */
        (void)reference_seconds(it, directions);
        (void)engine_seconds(it, directions);
        for (int i = 0; i < rounds; i++) {
            const double reference = reference_seconds(it, directions);
            ratios[i] = reference / engine_seconds(it, directions);
            reference_rates[i] = bytes / reference;
        }
        bench_figure(names[directions], bench_median(ratios, (size_t)rounds), "x", BENCH_AT_LEAST, 0.95,
                     "%s: plain copies carry %.1f GB/s", gpu,
                     bench_median(reference_rates, (size_t)rounds) * 1e-9);
    }
}

/* Maps and unmaps slot 4 at place 4 and times each pair of calls; us[i] gets its microseconds. */
static void mappings_time(fixture *it, double *us, bool under_load)
{
    for (int i = 0; i < MAPPINGS; i++) {
        if (under_load && i % 40 == 0) {
            engine_wait(it, BOTH);
            engine_enqueue(it, BOTH);
        }
        const double begin = bench_seconds();
        bench_check(it->ops->map(it->device, 4, it->places + 4 * it->chunk_bytes), "map");
        bench_check(it->ops->unmap(it->device, 4, it->places + 4 * it->chunk_bytes), "unmap");
        us[i] = (bench_seconds() - begin) * 1e6;
    }
}

static void mappings_measure(fixture *it)
{
    static double us[MAPPINGS];
    for (int load = 0; load < 2; load++) {
        mappings_time(it, us, load);
        engine_wait(it, BOTH);
        /* bench_median() also sorts us */
        const double median = bench_median(us, MAPPINGS);
        bench_figure(load ? "map and unmap a chunk while copies run" : "map and unmap a chunk", median, "us",
                     load ? BENCH_NO_BOUND : BENCH_AT_MOST, 100, "99th percentile %.1f us, most %.1f us",
                     us[MAPPINGS * 99 / 100], us[MAPPINGS - 1]);
    }
}

void bench_gpu_copies(const char *gpu, uint32_t ordinal, const bench_gpu_sizes *sizes)
{
    fixture it = fixture_open(ordinal, sizes->chunk_bytes);
    copies_measure(&it, gpu, sizes->rounds);
    mappings_measure(&it);
    fixture_close(&it);
}
