/* Measures the whole way of a chunk: op begin, planner, map, copy, unmap, event. The ops compute next to
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
#include "tests/bench/bench_copy.h"

#include "src/pool/internal.h"
#include "tests/support/bench.h"

#include <inttypes.h>
#include <stdio.h>

enum {
    /* bytes of params and, if ops write, of activations; OPS_MIN chunks of each may be more */
    SPACE_BYTES = 512 << 20,
    /* at least so many chunks, so that the ends of a pass, where one way is idle, weigh little */
    OPS_MIN = 16,
    OPS_MAX = SPACE_BYTES / (4 << 20),
    SPARE_CHUNKS = 4,
    ROUNDS_MAX = 15,
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
    it->pool->context.device->ops->synchronize(it->pool->context.device);
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

static void measure(fixture *reference, uint64_t chunk_bytes, bool writes, int rounds)
{
    static stream_pool it;
    double ratios[ROUNDS_MAX], rates[ROUNDS_MAX];
    char name[48];
    streamed last = {0};
    open_pool(&it, chunk_bytes, writes);
    run_pass(&it); /* records the ops */
    run_pass(&it); /* settles the schedule */
    for (int round = 0; round < rounds; round++) {
        last = run_passes(&it);
        /* Waits for chunks prefetched for the next pass. */
        synchronize(&it);
        rates[round] = (double)(last.in_bytes + last.out_bytes) / last.seconds;
        ratios[round] = bench_copy_reference_seconds(reference, last.in_bytes, last.out_bytes) / last.seconds;
    }
    tide_pool_destroy(it.pool);
    tide_description_destroy(it.description);
    snprintf(name, sizeof name, "pool, %s, %" PRIu64 " MiB", writes ? "in and out" : "in", chunk_bytes >> 20);
    bench_figure(
        name, bench_median(ratios, (size_t)rounds), "ratio", BENCH_AT_LEAST, writes ? 0.90 : 0.95,
        "ops that stream through a pool, map and unmap included, against memcpy of as many chunks each "
        "way (%" PRIu64 " in, %" PRIu64 " out): %.2f GB/s",
        last.in_bytes / chunk_bytes, last.out_bytes / chunk_bytes,
        bench_median(rates, (size_t)rounds) * 1e-9);
}

void bench_copy_pool(fixture *reference, uint64_t chunk_bytes, int rounds)
{
    measure(reference, chunk_bytes, false, rounds);
    measure(reference, chunk_bytes, true, rounds);
}
