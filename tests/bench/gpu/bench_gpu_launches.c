/* Measures the cost to the GPU of an event behind each kernel, which the device's clock needs
 * (offload/cuda/cuda_clock.h).
 *
 * KERNELS small kernels run in a row, in five forms that take turns round by round. A figure is the median
 * over the rounds of the difference to the first form, for one kernel:
 *
 *     single     one command with all kernels
 *     untimed    as single, with an event behind each kernel, made with cudaEventDisableTiming
 *     timed      as untimed, with events that record the time
 *     commands   one command of the device for each kernel
 *     observed   as commands, on a device that has an observer, as a traced run has
 *
 * A copy of some milliseconds runs first, so that all kernels are enqueued before the first begins, and
 * the GPU alone is measured. If the copy ends too early, the round counts as late and is discarded.
 * KERNELS is less than the capacity of the clock's ring, since a full ring makes the caller wait. */
#include "tests/bench/gpu/bench_gpu.h"

#include "kernels/cuda/launchers.h"
#include "offload/cuda/cuda_clock.h"
#include "offload/cuda/cuda_device.h"
#include "offload/cuda/cuda_driver.h"

enum { KERNELS = 200, FRONT_COPIES = 8, SMALL_ELEMENTS = 256, ROUNDS_MOST = 15 };
static_assert(KERNELS + 8 < TIDE_CUDA_RING_ENTRIES, "the ring does not fill");

enum { SINGLE, UNTIMED, TIMED, COMMANDS, OBSERVED, FORMS };
static const char *const names[FORMS] = {
    [SINGLE] = "a small kernel",
    [UNTIMED] = "an event without a time behind a kernel",
    [TIMED] = "an event with a time behind a kernel",
    [COMMANDS] = "a command of its own for a kernel",
    [OBSERVED] = "a command of its own for a kernel, observed",
};

typedef struct fixture {
    /* [0] without an observer, [1] with one */
    tide_device *devices[2];
    cudaEvent_t begin, end;
    /* [0] without a time, [1] with one */
    cudaEvent_t events[2][KERNELS];
    tide_copy_args front;
    tide_add_args small;
} fixture;

static void observe(void *context, const tide_observed *command)
{
    (void)context;
    (void)command;
}

static fixture fixture_open(uint32_t ordinal, const bench_gpu_sizes *sizes)
{
    fixture it = {0};
    void *from, *to;
    for (int i = 0; i < 2; i++) {
        const tide_device_options options = {.device_memory_bytes = sizes->chunk_bytes,
                                             .host_memory_bytes = sizes->chunk_bytes,
                                             .chunk_bytes = sizes->chunk_bytes,
                                             .observer = i == 1 ? observe : NULL};
        bench_check(tide_device_cuda_open(&options, ordinal, &it.devices[i]), "open");
        for (int k = 0; k < KERNELS; k++)
            BENCH_CUDA(cudaEventCreateWithFlags(&it.events[i][k],
                                                i == 1 ? cudaEventDefault : cudaEventDisableTiming));
    }
    BENCH_CUDA(cudaEventCreateWithFlags(&it.begin, cudaEventDefault));
    BENCH_CUDA(cudaEventCreateWithFlags(&it.end, cudaEventDefault));
    BENCH_CUDA(cudaMalloc(&from, sizes->part_bytes));
    BENCH_CUDA(cudaMalloc(&to, sizes->part_bytes));
    it.front = (tide_copy_args){.in = from, .out = to, .bytes = sizes->part_bytes};
    it.small = (tide_add_args){
        .a = from, .b = from, .out = to, .elements = SMALL_ELEMENTS, .dtype = TIDE_DTYPE_BF16};
    return it;
}

static void fixture_close(fixture *it)
{
    BENCH_CUDA(cudaFree(it->small.out));
    BENCH_CUDA(cudaFree((void *)(uintptr_t)it->small.a));
    BENCH_CUDA(cudaEventDestroy(it->end));
    BENCH_CUDA(cudaEventDestroy(it->begin));
    for (int i = 0; i < 2; i++) {
        for (int k = 0; k < KERNELS; k++)
            BENCH_CUDA(cudaEventDestroy(it->events[i][k]));
        it->devices[i]->ops->close(it->devices[i]);
    }
}

/* --- the forms --- */

static tide_status front_run(void *stream, const void *arguments)
{
    const fixture *it = *(const fixture *const *)arguments;
    for (int i = 0; i < FRONT_COPIES; i++)
        bench_check(tide_cuda_copy(stream, &it->front), "copy");
    BENCH_CUDA(cudaEventRecord(it->begin, stream));
    return TIDE_OK;
}

static tide_status end_run(void *stream, const void *arguments)
{
    const fixture *it = *(const fixture *const *)arguments;
    BENCH_CUDA(cudaEventRecord(it->end, stream));
    return TIDE_OK;
}

typedef struct kernels_in_a_row {
    const fixture *of;
    const cudaEvent_t *events; /* NULL: no events */
    int count;
} kernels_in_a_row;

static tide_status kernels_run(void *stream, const void *arguments)
{
    const kernels_in_a_row *it = arguments;
    for (int k = 0; k < it->count; k++) {
        bench_check(tide_cuda_add(stream, &it->of->small), "add");
        if (it->events != NULL)
            BENCH_CUDA(cudaEventRecord(it->events[k], stream));
    }
    return TIDE_OK;
}

static void enqueue(tide_device *device, tide_kernel function, const void *arguments, size_t bytes)
{
    const tide_work work = {.label = "bench launch"};
    bench_check(device->ops->launch(device, TIDE_STREAM_COMPUTE, &work, function, arguments, bytes),
                "launch");
}

/* --- measuring --- */

/* Sets the seconds from the first kernel's begin to the last one's end, and the seconds to enqueue them.
 * Returns false if the round is late. */
static bool form_time(const fixture *it, int form, double *seconds, double *enqueue_seconds)
{
    const bool apart = form == COMMANDS || form == OBSERVED;
    tide_device *device = it->devices[form == OBSERVED];
    const kernels_in_a_row row = {.of = it,
                                  .events = form == UNTIMED ? it->events[0]
                                            : form == TIMED ? it->events[1]
                                                            : NULL,
                                  .count = apart ? 1 : KERNELS};
    float milliseconds;
    enqueue(device, front_run, &it, sizeof it);
    const double begin = bench_seconds();
    for (int i = 0; i < (apart ? KERNELS : 1); i++)
        enqueue(device, kernels_run, &row, sizeof row);
    *enqueue_seconds = bench_seconds() - begin;
    enqueue(device, end_run, &it, sizeof it);
    const bool late = !tide_cuda_is_pending(cudaEventQuery(it->begin));
    device->ops->synchronize(device);
    bench_check(device->ops->failure(device), "the device");
    BENCH_CUDA(cudaEventElapsedTime(&milliseconds, it->begin, it->end));
    *seconds = (double)milliseconds * 1e-3;
    return !late;
}

typedef struct samples {
    int rounds, late; /* number of rounds that were not late, and of late ones */
    double kernel_us[ROUNDS_MOST], enqueue_us[ROUNDS_MOST];
} samples;

/* Records the differences to the single command of the same round, and the time of enqueueing. */
static void round_take(const fixture *it, samples all[FORMS])
{
    double seconds[FORMS], enqueue_seconds[FORMS];
    bool good[FORMS];
    for (int form = 0; form < FORMS; form++)
        good[form] = form_time(it, form, &seconds[form], &enqueue_seconds[form]);
    for (int form = 0; form < FORMS; form++) {
        samples *of = &all[form];
        const double compared = seconds[form] - (form == SINGLE ? 0 : seconds[SINGLE]);
        if (good[form] && good[SINGLE]) {
            of->kernel_us[of->rounds] = compared * 1e6 / KERNELS;
            of->enqueue_us[of->rounds++] = enqueue_seconds[form] * 1e6 / KERNELS;
        } else
            of->late++;
    }
}

static void form_tell(samples *of, const char *name)
{
    if (of->rounds == 0) {
        bench_missing(name, "us", "all %d rounds were late", of->late);
        return;
    }
    bench_figure(name, bench_median(of->kernel_us, (size_t)of->rounds), "us", BENCH_NO_BOUND, 0,
                 "enqueued in %.2f us; %d of %d rounds late",
                 bench_median(of->enqueue_us, (size_t)of->rounds), of->late, of->late + of->rounds);
}

void bench_gpu_launches(uint32_t ordinal, const bench_gpu_sizes *sizes)
{
    samples all[FORMS] = {0};
    double seconds, enqueue_seconds;
    const int rounds = sizes->rounds > 1 ? ROUNDS_MOST : 1;
    fixture it = fixture_open(ordinal, sizes);
    /* warm up */
    for (int form = 0; form < FORMS; form++)
        (void)form_time(&it, form, &seconds, &enqueue_seconds);
    for (int i = 0; i < rounds; i++)
        round_take(&it, all);
    for (int form = 0; form < FORMS; form++)
        form_tell(&all[form], names[form]);
    fixture_close(&it);
}
