/* Compares copies of chunks as the pool's engine, the thread that moves chunks, makes them with memcpy
 * between the same addresses. The engine queues copy_slot back to back on the in and the out stream, an event
 * behind each, and waits once, for the last.
 *
 *     host slots    [ in: from here | out: to here   ]
 *     chunk places  [ in: to here   | out: from here ]     device slots of the memfd, mapped once
 *
 * One warm thread for each direction runs memcpy, timed by its own clock, so that no wake-up counts. The
 * engine is timed from the first call to the return of the last wait, wake-ups included. The two run in
 * turn in short rounds, alternately first, so that other load on the machine slows both; a figure is the
 * median of the rounds' ratios. A round copies half of the memory, so the caches hold only data that the
 * measured copies left there.
 *
 * The throttled link is compared with the rate set for it, a quarter and a half of memcpy's rate.
 *
 * Second yardsticks, printed as `limits agree`: memcpy against reading and writing alone (bench_memory.h),
 * both ways against one, the throttled rate against the device's own bytes and busy time. */
#include "src/pool/internal.h"
#include "tests/support/bench.h"
#include "tests/support/bench_memory.h"

#include <inttypes.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

enum {
    SITE = 1,
    /* bytes of host memory, and of device memory, for each direction */
    DIRECTION_BYTES = 256 << 20,
    /* bytes that a measurement copies in each direction */
    ROUND_BYTES = 128 << 20,
    EVENTS = ROUND_BYTES / (4 << 20),
    ROUNDS_MAX = 41,
};

typedef enum direction { IN = 0, OUT, DIRECTIONS } direction;

/* Mode m copies in the directions of the bit set m + 1, whose bits are 1 << direction. */
static const char *const direction_names[] = {"in", "out", "both"};
enum { MODES = 3 };

/* A device and memory for copies. */
typedef struct fixture {
    tide_device *device;
    const tide_device_ops *ops;
    uint64_t chunk_bytes;
    uint32_t chunks; /* number of chunks that a measurement copies in each direction */
    tide_event events[DIRECTIONS][EVENTS];
    /* each is one contiguous range */
    char *device_side[DIRECTIONS], *host_side[DIRECTIONS];
    uint32_t half; /* which half of the memory the next measurement copies, 0 or 1 */
} fixture;

/* --- setup --- */

static void fixture_map(fixture *it)
{
    void *range;
    bench_check(it->ops->reserve(it->device, 2 * (uint64_t)DIRECTION_BYTES, &range), "reserve");
    for (uint32_t slot = 0; slot < 4 * it->chunks; slot++)
        bench_check(it->ops->map(it->device, slot, (char *)range + slot * it->chunk_bytes), "map");
    for (int d = 0; d < DIRECTIONS; d++) {
        it->device_side[d] = (char *)range + (uint64_t)d * DIRECTION_BYTES;
        it->host_side[d] = it->ops->slot_address(it->device, TIDE_TIER_HOST, 2 * (uint32_t)d * it->chunks);
        /* Touches every page, so that it is in memory and in both page tables. */
        memset(it->device_side[d], 1, DIRECTION_BYTES);
        memset(it->host_side[d], 2, DIRECTION_BYTES);
    }
}

static fixture fixture_open(uint64_t chunk_bytes, double link_bytes_per_second)
{
    const tide_device_options options = {.device_memory_bytes = 2 * (uint64_t)DIRECTION_BYTES,
                                         .host_memory_bytes = 2 * (uint64_t)DIRECTION_BYTES,
                                         .chunk_bytes = chunk_bytes,
                                         .link_bytes_per_second = link_bytes_per_second};
    fixture it = {.chunk_bytes = chunk_bytes, .chunks = (uint32_t)(ROUND_BYTES / chunk_bytes)};
    bench_check(tide_device_host_open(&options, &it.device), "host device");
    it.ops = it.device->ops;
    bench_check(it.ops->slots_create(it.device, TIDE_TIER_DEVICE, 4 * it.chunks), "device slots");
    bench_check(it.ops->slots_create(it.device, TIDE_TIER_HOST, 4 * it.chunks), "host slots");
    for (int d = 0; d < DIRECTIONS; d++)
        for (uint32_t i = 0; i < it.chunks; i++)
            bench_check(it.ops->event_create(it.device, &it.events[d][i]), "event");
    fixture_map(&it);
    return it;
}

static void fixture_close(fixture *it)
{
    it->ops->close(it->device);
}

/* --- the engine's copies --- */

static void enqueue(fixture *it, direction d, uint32_t i)
{
    const tide_stream stream = d == IN ? TIDE_STREAM_IN : TIDE_STREAM_OUT;
    const tide_tier to = d == IN ? TIDE_TIER_DEVICE : TIDE_TIER_HOST;
    const tide_work work = {.label = "bench copy", .tag = i};
    const uint32_t slot = (2 * (uint32_t)d + it->half) * it->chunks + i;
    bench_check(it->ops->copy_slot(it->device, stream, &work, to, slot, slot, it->chunk_bytes), "copy");
    bench_check(it->ops->event_record(it->device, it->events[d][i], stream), "record");
}

static double engine_seconds(fixture *it, unsigned directions)
{
    const double begin = bench_seconds();
    for (uint32_t i = 0; i < it->chunks; i++)
        for (unsigned d = 0; d < DIRECTIONS; d++)
            if (directions & 1U << d)
                enqueue(it, (direction)d, i);
    for (unsigned d = 0; d < DIRECTIONS; d++)
        if (directions & 1U << d)
            bench_check(it->ops->event_wait(it->device, it->events[d][it->chunks - 1], SITE), "wait");
    it->half ^= 1;
    return bench_seconds() - begin;
}

/* --- the reference: memcpy --- */

typedef struct reference {
    const fixture *fixture;
    direction direction;
    /* chunks to copy; if there are fewer, they are copied again and again */
    uint64_t chunks;
    pthread_barrier_t *start;
    double begin, end;
} reference;

static void *reference_main(void *argument)
{
    reference *it = argument;
    const fixture *r = it->fixture;
    char *to = it->direction == IN ? r->device_side[IN] : r->host_side[OUT];
    const char *from = it->direction == IN ? r->host_side[IN] : r->device_side[OUT];
    (void)pthread_barrier_wait(it->start);
    it->begin = bench_seconds();
    for (uint64_t i = 0; i < it->chunks; i++) {
        const uint64_t at = (r->half * r->chunks + i) % (2 * (uint64_t)r->chunks) * r->chunk_bytes;
        memcpy(to + at, from + at, r->chunk_bytes);
    }
    it->end = bench_seconds();
    return NULL;
}

/* Copies so many chunks each way at once; returns the seconds from the first thread's begin to the last
 * one's end. */
static double reference_seconds_of(fixture *r, const uint64_t chunks[DIRECTIONS])
{
    reference work[DIRECTIONS];
    pthread_t threads[DIRECTIONS];
    pthread_barrier_t start;
    unsigned count = 0;
    for (unsigned d = 0; d < DIRECTIONS; d++)
        if (chunks[d] > 0)
            work[count++] =
                (reference){.fixture = r, .direction = (direction)d, .chunks = chunks[d], .start = &start};
    (void)pthread_barrier_init(&start, NULL, count);
    for (unsigned i = 0; i < count; i++)
        if (pthread_create(&threads[i], NULL, reference_main, &work[i]) != 0)
            bench_die("no thread for a reference copy");
    double begin = 0, end = 0;
    for (unsigned i = 0; i < count; i++) {
        (void)pthread_join(threads[i], NULL);
        begin = i == 0 || work[i].begin < begin ? work[i].begin : begin;
        end = work[i].end > end ? work[i].end : end;
    }
    (void)pthread_barrier_destroy(&start);
    r->half ^= 1;
    return end - begin;
}

static double reference_seconds(fixture *r, unsigned directions)
{
    const uint64_t chunks[DIRECTIONS] = {directions & 1U << IN ? r->chunks : 0,
                                         directions & 1U << OUT ? r->chunks : 0};
    return reference_seconds_of(r, chunks);
}

/* --- figures --- */

static double rate(unsigned directions, double seconds)
{
    return (double)ROUND_BYTES * __builtin_popcount(directions) / seconds;
}

/* Sets the ratio of the engine's rate to memcpy's, for one chunk size and mode, and memcpy's rate. */
static void measure(fixture *it, unsigned mode, int rounds, double *ratio, double *reference_rate)
{
    double ratios[ROUNDS_MAX], rates[ROUNDS_MAX];
    const unsigned directions = mode + 1;
    for (int round = 0; round < rounds; round++) {
        double engine = 0, other = 0;
        for (int turn = 0; turn < 2; turn++) {
            if ((turn + round) % 2)
                engine = engine_seconds(it, directions);
            else
                other = reference_seconds(it, directions);
        }
        ratios[round] = other / engine;
        rates[round] = rate(directions, other);
    }
    *ratio = bench_median(ratios, (size_t)rounds);
    *reference_rate = bench_median(rates, (size_t)rounds);
}

/* Prints the ratio of each mode, and sets memcpy's rates. */
static void bench_streams(fixture *it, int rounds, double reference_rates[MODES])
{
    static const double required[MODES] = {0.95, 0.95, 0.90};
    for (unsigned mode = 0; mode < MODES; mode++) {
        double ratio;
        measure(it, mode, rounds, &ratio, &reference_rates[mode]);
        bench_figure(bench_name("%s, %" PRIu64 " MiB", direction_names[mode], it->chunk_bytes >> 20), ratio,
                     "ratio", BENCH_AT_LEAST, required[mode],
                     "queued copy_slot against memcpy between the same addresses, %.2f GB/s by memcpy",
                     reference_rates[mode] * 1e-9);
    }
}

/* Compares memcpy with reading alone and writing alone by one thread, since memcpy makes the device's
 * copies and so is their limit. memcpy may take longer than the two together: copies by streaming stores
 * can be faster (host_link.c), which a figure without a bound shows. Both ways at once must carry at least
 * as much as one way and at most as much as the two ways alone together. */
static void bench_limits(fixture *it, const double reference_rates[MODES], int rounds)
{
    bench_memory_times measured[ROUNDS_MAX];
    double copies[ROUNDS_MAX];
    const uint64_t mib = it->chunk_bytes >> 20;
    const char *relation;
    for (int i = 0; i < rounds; i++) {
        measured[i] = bench_memory_measure(it->host_side[IN], it->device_side[IN], ROUND_BYTES, 1);
        copies[i] = reference_seconds(it, 1U << IN);
    }
    const bench_memory_times alone = bench_memory_median(measured, (size_t)rounds);
    const double seconds = bench_median(copies, (size_t)rounds);
    const double value = bench_memory_claim(&alone, ROUND_BYTES, seconds, ROUND_BYTES, &relation);
    bench_figure(bench_name("limits agree, one way, %" PRIu64 " MiB", mib), value, "ratio", BENCH_AT_MOST,
                 BENCH_AGREEMENT, "GB/s: memcpy %.2f, reading alone %.2f, writing alone %.2f; above 1: %s",
                 rate(1, seconds) * 1e-9, rate(1, alone.read_seconds) * 1e-9,
                 rate(1, alone.write_seconds) * 1e-9, relation);
    bench_figure(bench_name("memcpy to reading, then writing, %" PRIu64 " MiB", mib),
                 (alone.read_seconds + alone.write_seconds) / seconds, "ratio", BENCH_NO_BOUND, 0,
                 "below 1: this machine could copy faster than its C library does");
    const double in = reference_rates[0], out = reference_rates[1], both = reference_rates[2];
    bench_figure(bench_name("limits agree, both ways, %" PRIu64 " MiB", mib),
                 fmax(both / (in + out), fmin(in, out) / both), "ratio", BENCH_AT_MOST, BENCH_AGREEMENT,
                 "GB/s: in %.2f, out %.2f, both at once %.2f", in * 1e-9, out * 1e-9, both * 1e-9);
}

/* The device's rate over the rounds, by its own count of bytes and busy time. */
static double own_rate(const fixture *it, direction d, int rounds)
{
    tide_device_statistics counted;
    it->ops->statistics(it->device, &counted);
    const uint64_t bytes = d == IN ? counted.h2d_bytes : counted.d2h_bytes;
    if (bytes != (uint64_t)ROUND_BYTES * (uint64_t)rounds)
        bench_die("the device counted %" PRIu64 " bytes of %d rounds", bytes, rounds);
    return (double)bytes / ((double)counted.busy_ns[d == IN ? TIDE_STREAM_IN : TIDE_STREAM_OUT] * 1e-9);
}

/* Measures a link throttled to `share` of memcpy's rate: the rate that it carries over the rate set.
 * Raises *fastest to the highest rate by the device's own counts over the rate set. */
static void bench_throttled(unsigned mode, double share, double reference_rate, int rounds, double *fastest)
{
    double ratios[ROUNDS_MAX];
    const unsigned directions = mode + 1, ways = (unsigned)__builtin_popcount(directions);
    const double link_rate = share * reference_rate / ways;
    fixture it = fixture_open(4 << 20, link_rate);
    for (int round = 0; round < rounds; round++)
        ratios[round] = rate(directions, engine_seconds(&it, directions)) / (link_rate * ways);
    for (unsigned d = 0; d < DIRECTIONS; d++)
        if (directions & 1U << d)
            *fastest = fmax(*fastest, own_rate(&it, (direction)d, rounds) / link_rate);
    fixture_close(&it);
    bench_figure(bench_name("throttled to %.0f%%, %s", 100 * share, direction_names[mode]),
                 bench_median(ratios, (size_t)rounds), "ratio", BENCH_AT_LEAST, 0.95,
                 "carried by a link of %.2f GB/s each way, 4 MiB chunks", link_rate * 1e-9);
}

/* --- copies through a pool ---
 *
 * Measures the whole way of a chunk: op begin, planner, map, copy, unmap, event. The ops compute next to
 * nothing.
 *
 *     pass      f0   f1   f2   ...   each op reads one param of one chunk; "in and out": it also writes
 *               one activation of one chunk, which does not fit the device and is evicted
 *
 * The device budget is the least budget plus four chunks. Param chunks are clean, so they come in and are
 * dropped: "in" moves chunks one way only, "in and out" both ways. A round has two passes; chunks that the
 * pool prefetches for the next pass count as moved.
 *
 * The limit is memcpy of as many chunks each way at once. The ways may differ: at the end of a pass some
 * params stay for the next one, so fewer chunks come in than leave, and the busier way sets the time.
 *
 * The bounds are memory and the cores. Where every core copies, other threads take time from the copies.
 * Both ways, with chunks of 4 MiB, on a virtual machine of two cores, a round of 370 ms (2 x 185) had 55
 * ms of the engine, 12 of the caller, 7 of the compute thread and 246 of copies; memcpy alone took 326.
 * Two thirds of the engine's time were maps and unmaps: each 2 MiB moved interrupts every core that runs a
 * thread of the process (host_memory.h), which slows copies too. So the engine moves a slot that is needed
 * at once directly from one place to the next, with half of the interrupts (src/pool/tier_link.c). */

enum {
    /* bytes of params and, if ops write, of activations; OPS_MIN chunks of each may be more */
    SPACE_BYTES = 512 << 20,
    /* at least so many chunks, so that the ends of a pass, where one way is idle, weigh little */
    OPS_MIN = 16,
    OPS_MAX = SPACE_BYTES / (4 << 20),
    SPARE_CHUNKS = 4,
    PASSES = 2,
};

typedef struct stream_pool {
    tide_description *description;
    tide_pool *pool;
    uint32_t ops;
    bool writes;
    tide_param params[OPS_MAX];
    tide_activation saved[OPS_MAX];
    tide_op forward[OPS_MAX];
} stream_pool;

/* A param class without optimizer state, so that host memory holds little except the params. */
static const tide_param_class no_state = {.state = {1, {128}}};

static tide_status no_update(void *context, const tide_step_options *step, uint64_t update,
                             float gradient_scale, const tide_update_segment *segments, uint32_t count)
{
    (void)context, (void)step, (void)update, (void)gradient_scale, (void)segments, (void)count;
    return TIDE_OK;
}

static void add_op(stream_pool *it, uint32_t i, uint64_t chunk_bytes)
{
    char name[16];
    const uint64_t elements = chunk_bytes / tide_dtype_bytes(TIDE_DTYPE_BF16);
    snprintf(name, sizeof name, "w%" PRIu32, i);
    bench_check(tide_description_add_param(it->description, name, &elements, 1, &no_state, &it->params[i]),
                "param");
    snprintf(name, sizeof name, "s%" PRIu32, i);
    if (it->writes)
        bench_check(tide_description_add_activation(it->description, name, 1, chunk_bytes, &it->saved[i]),
                    "activation");
    snprintf(name, sizeof name, "f%" PRIu32, i);
    const tide_use param = {it->params[i], TIDE_ACCESS_READ}, saved = {it->saved[i], TIDE_ACCESS_WRITE};
    const tide_op_description op = {.name = name,
                                    .pass = TIDE_PASS_FORWARD,
                                    .params = &param,
                                    .param_count = 1,
                                    .activations = &saved,
                                    .activation_count = it->writes,
                                    .slices = it->writes};
    bench_check(tide_description_add_op(it->description, &op, &it->forward[i]), "op");
}

static void choose_budgets(tide_pool_options *options, tide_description *description)
{
    tide_pool_plan plan;
    bench_check(tide_pool_plan_make(options, description, &plan), "plan");
    options->device_memory_bytes = plan.least_device_bytes + SPARE_CHUNKS * plan.chunk_bytes;
    bench_check(tide_pool_plan_make(options, description, &plan), "plan");
    const uint64_t least = plan.least_host_bytes, full = plan.full_host_bytes;
    options->host_memory_bytes = (least > full ? least : full) + SPARE_CHUNKS * plan.chunk_bytes;
}

static void open_pool(stream_pool *it, uint64_t chunk_bytes, bool writes)
{
    tide_pool_options options;
    tide_pool_options_default(&options);
    options.chunk_bytes = chunk_bytes;
    options.update = no_update;
    const uint32_t ops = (uint32_t)(SPACE_BYTES / chunk_bytes);
    *it = (stream_pool){.ops = ops < OPS_MIN ? OPS_MIN : ops, .writes = writes};
    bench_check(tide_description_create(TIDE_DTYPE_BF16, 0, &it->description), "description");
    for (uint32_t i = 0; i < it->ops; i++)
        add_op(it, i, chunk_bytes);
    choose_budgets(&options, it->description);
    bench_check(tide_pool_create(&options, it->description, &it->pool), "pool");
    /* Setting one value gives the chunk content. */
    for (uint32_t i = 0; i < it->ops; i++) {
        const float value = 1;
        bench_check(tide_param_set(it->pool, it->params[i], TIDE_VALUE_MASTER, 0, 1, &value), "set");
    }
}

typedef struct touch_arguments {
    const char *param;
    char *saved; /* NULL in the first form */
} touch_arguments;

static tide_status touch(void *stream, const void *arguments)
{
    const touch_arguments *it = arguments;
    (void)stream;
    if (it->saved != NULL)
        *it->saved = *it->param;
    return TIDE_OK;
}

static void run_op(const stream_pool *it, uint32_t i)
{
    bench_check(tide_op_begin(it->pool, it->forward[i]), "op begin");
    if (it->writes)
        bench_check(tide_op_slice(it->pool, 0), "op slice");
    const touch_arguments arguments = {tide_param_data(it->pool, it->params[i]),
                                       it->writes ? tide_activation_data(it->pool, it->saved[i], 0) : NULL};
    bench_check(tide_launch(it->pool, "touch", touch, &arguments, sizeof arguments, 1, 1), "launch");
    bench_check(tide_op_end(it->pool), "op end");
}

static void synchronize(const stream_pool *it)
{
    tide_device *device = it->pool->context.device;
    device->ops->synchronize(device);
}

static tide_pool_counters counters_of(const stream_pool *it)
{
    tide_pool_counters counters;
    bench_check(tide_pool_counters_get(it->pool, &counters), "counters");
    return counters;
}

static void run_pass(const stream_pool *it)
{
    const tide_step_options forward_only = {.training = false};
    bench_check(tide_step_begin(it->pool, &forward_only), "step begin");
    for (uint32_t i = 0; i < it->ops; i++)
        run_op(it, i);
    bench_check(tide_step_end(it->pool), "step end");
}

typedef struct streamed {
    uint64_t in_bytes, out_bytes;
    double seconds;
} streamed;

/* Runs a few passes. The pool counts bytes when it enqueues them, so the clock runs until all of them have
 * arrived. */
static streamed run_passes(const stream_pool *it)
{
    synchronize(it);
    const tide_pool_counters before = counters_of(it);
    const double begin = bench_seconds();
    for (int pass = 0; pass < PASSES; pass++)
        run_pass(it);
    const tide_pool_counters after = counters_of(it);
    synchronize(it);
    return (streamed){.in_bytes = after.h2d_bytes - before.h2d_bytes,
                      .out_bytes = after.d2h_bytes - before.d2h_bytes,
                      .seconds = bench_seconds() - begin};
}

static void measure_pool(fixture *rival, bool writes, int rounds)
{
    static stream_pool it;
    double ratios[ROUNDS_MAX], rates[ROUNDS_MAX];
    const uint64_t chunk_bytes = rival->chunk_bytes;
    streamed last = {0};
    open_pool(&it, chunk_bytes, writes);
    run_pass(&it); /* records the ops */
    run_pass(&it); /* settles the schedule */
    for (int round = 0; round < rounds; round++) {
        last = run_passes(&it);
        /* Waits for chunks prefetched for the next pass. */
        synchronize(&it);
        rates[round] = (double)(last.in_bytes + last.out_bytes) / last.seconds;
        const uint64_t chunks[DIRECTIONS] = {last.in_bytes / chunk_bytes, last.out_bytes / chunk_bytes};
        ratios[round] = reference_seconds_of(rival, chunks) / last.seconds;
    }
    tide_pool_destroy(it.pool);
    tide_description_destroy(it.description);
    bench_figure(
        bench_name("pool, %s, %" PRIu64 " MiB", writes ? "in and out" : "in", chunk_bytes >> 20),
        bench_median(ratios, (size_t)rounds), "ratio", BENCH_AT_LEAST, writes ? 0.90 : 0.95,
        "ops that stream through a pool, map and unmap included, against memcpy of as many chunks each "
        "way (%" PRIu64 " in, %" PRIu64 " out): %.2f GB/s",
        last.in_bytes / chunk_bytes, last.out_bytes / chunk_bytes,
        bench_median(rates, (size_t)rounds) * 1e-9);
}

/* --- the benchmark --- */

static void bench_chunks(uint64_t chunk_bytes, bool throttled, bool quick)
{
    static const double shares[] = {0.25, 0.5};
    double reference_rates[MODES];
    const int few = quick ? 3 : 9;
    fixture it = fixture_open(chunk_bytes, 0);
    bench_streams(&it, quick ? 9 : ROUNDS_MAX, reference_rates);
    bench_limits(&it, reference_rates, few);
    measure_pool(&it, false, few);
    measure_pool(&it, true, few);
    fixture_close(&it);
    double fastest = 0;
    const size_t share_count = quick ? 1 : sizeof shares / sizeof shares[0];
    for (size_t i = 0; throttled && i < share_count; i++)
        for (unsigned mode = 0; mode < MODES; mode++)
            bench_throttled(mode, shares[i], reference_rates[mode], few, &fastest);
    if (throttled)
        bench_figure(
            "limits agree, throttled", fastest, "ratio", BENCH_AT_MOST, 1.02,
            "bytes over busy time as the device counts them, against the rate that it was told, at most");
}

int main(int argc, char **argv)
{
    const bool quick = bench_options(argc, argv);
    bench_begin("copy");
    bench_chunks(4 << 20, true, quick);
    bench_chunks(64 << 20, false, quick);
    bench_end();
    return 0;
}
