/* Runs blocks through the public API with everything resident and no kernel launched: the cost of the API
 * to its caller. */
#include "tests/bench/bench_manager.h"

#include "tests/support/bench.h"
#include "tests/support/interpose.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>

enum {
    CHUNK_BYTES = 256 << 10,
    CHUNKS_A_PARAM_CHUNK = 4,
    OPS_TIMED = 100000,
    PASSES_MAX = 2000,
    PASSES_MIN = 5,
};

/* sleeps of the caller per op; the first op of a pass may wait for the end of the step before */
static const double SLEEPS_MAX = 0.01;

typedef struct pooled {
    tide_description *description;
    tide_pool *pool;
    uint32_t blocks;
} pooled;

static void add_block(pooled *it, uint32_t block)
{
    tide_use uses[BLOCK_PARAMS];
    char name[32];
    tide_op op;
    for (uint32_t i = 0; i < BLOCK_PARAMS; i++) {
        const uint64_t elements = bench_block_elements(i, CHUNK_BYTES / 4);
        snprintf(name, sizeof name, "b%" PRIu32 ".p%" PRIu32, block, i);
        uses[i].access = TIDE_ACCESS_READ;
        bench_check(tide_description_add_param(it->description, name, &elements, 1, NULL, &uses[i].tensor),
                    "param");
    }
    snprintf(name, sizeof name, "b%" PRIu32, block);
    const tide_op_description description = {
        .name = name, .pass = TIDE_PASS_FORWARD, .params = uses, .param_count = BLOCK_PARAMS};
    bench_check(tide_description_add_op(it->description, &description, &op), "op");
    if (op != block)
        bench_die("ops are not numbered from 0");
}

static pooled open_pool(const char *device, uint32_t chunks)
{
    tide_pool_options options;
    tide_pool_options_default(&options);
    options.device = device;
    options.chunk_bytes = CHUNK_BYTES;
    pooled it = {.blocks = chunks / (CHUNKS_A_PARAM_CHUNK * BLOCK_CHUNKS)};
    bench_check(tide_description_create(TIDE_DTYPE_FP32, 0, &it.description), "description");
    for (uint32_t block = 0; block < it.blocks; block++)
        add_block(&it, block);
    /* Budgets are 0: every chunk lies where it is used. */
    bench_check(tide_pool_create(&options, it.description, &it.pool), "pool");
    return it;
}

/* How often this thread has given up its core to wait, for a lock for instance. */
static uint64_t sleeps(void)
{
    struct rusage usage;
    if (getrusage(RUSAGE_THREAD, &usage) != 0)
        bench_die("getrusage failed");
    return (uint64_t)usage.ru_nvcsw;
}

/* Seconds of a forward pass from the first begin to the last end; adds to *slept how often this thread
 * slept. */
static double run_pass(const pooled *it, uint64_t *slept)
{
    const tide_step_options forward_only = {.training = false};
    bench_check(tide_step_begin(it->pool, &forward_only), "step begin");
    const uint64_t before = sleeps();
    const double begin = bench_seconds();
    for (tide_op op = 0; op < it->blocks; op++) {
        tide_status status = tide_op_begin(it->pool, op);
        if (status == TIDE_OK)
            status = tide_op_end(it->pool);
        bench_check(status, "op");
    }
    const double seconds = bench_seconds() - begin;
    *slept += sleeps() - before;
    bench_check(tide_step_end(it->pool), "step end");
    return seconds;
}

typedef struct pool_figures {
    double nanoseconds; /* of an op, median of the passes */
    double sleeps;      /* of an op, in the mean */
    uint64_t allocations;
    uint32_t passes;
} pool_figures;

static pool_figures measure(const pooled *it, uint32_t passes)
{
    static double nanoseconds[PASSES_MAX];
    tide_pool_counters before, after;
    bench_check(tide_pool_counters_get(it->pool, &before), "counters");
    uint64_t slept = 0;
    interpose_arm();
    for (uint32_t i = 0; i < passes; i++)
        nanoseconds[i] = run_pass(it, &slept) * 1e9 / it->blocks;
    interpose_disarm();
    bench_check(tide_pool_counters_get(it->pool, &after), "counters");
    return (pool_figures){
        .nanoseconds = bench_median(nanoseconds, passes),
        .sleeps = (double)slept / ((double)passes * it->blocks),
        .allocations = interpose_read().allocations + after.device_allocations - before.device_allocations +
                       after.host_allocations - before.host_allocations,
        .passes = passes,
    };
}

void bench_manager_pool(const char *device, uint32_t chunks, bool quick)
{
    char name[64];
    pooled it = open_pool(device, chunks);
    const uint32_t wanted = OPS_TIMED / (quick ? 10U : 1U) / it.blocks + PASSES_MIN;
    uint64_t ignored = 0;
    for (int i = 0; i < 3; i++)
        (void)run_pass(&it, &ignored);
    const pool_figures found = measure(&it, wanted < PASSES_MAX ? wanted : PASSES_MAX);
    tide_pool_destroy(it.pool);
    tide_description_destroy(it.description);
    snprintf(name, sizeof name, "public API, %s device, %" PRIu32 " chunks", device, chunks);
    bench_figure(name, found.nanoseconds, "ns", BENCH_AT_MOST, 1000,
                 "tide_op_begin + tide_op_end of a block, all resident, median of %" PRIu32 " passes",
                 found.passes);
    snprintf(name, sizeof name, "sleeps an op, %s device, %" PRIu32 " chunks", device, chunks);
    bench_figure(name, found.sleeps, "count", BENCH_AT_MOST, SLEEPS_MAX,
                 "voluntary context switches of the calling thread: a lock found taken is one");
    snprintf(name, sizeof name, "allocations, %s device, %" PRIu32 " chunks", device, chunks);
    bench_figure(name, (double)found.allocations, "count", BENCH_AT_MOST, 0,
                 "malloc and its family in all threads, and the device's own, in %" PRIu32
                 " passes of %" PRIu32 " ops",
                 found.passes, it.blocks);
}
