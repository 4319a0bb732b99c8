/* Measures the cost of the manager's policy:
 *
 *   op begin + end   begin, next (which hands out commands) and end of an op whose chunks are all on the
 *                    device, with a thousand, ten thousand and a hundred thousand chunks
 *   tight            commands a second where most chunks have to move: a training step whose ops use random
 *                    params, with a quarter of the PARAM chunks on the device and all state and updates on
 *                    the host; commands end late and in random order, as on a link
 *   null device      a large model's step, whose engine runs on the caller's thread
 *   public API       the ops of the first row through a pool, with everything resident and no kernel launched
 *   plan             the time to plan a step
 *
 * The model of the first row and of the pool is a row of GPT blocks, each with 12 params on 4 PARAM chunks
 * (8 small params, and 4 that straddle chunks), in fp32 with two moments, so a block has 16 chunks. An op
 * reads a block, or in a variant one param. Single-threaded parts are measured in the process's CPU time, so
 * that other processes do not count. */
#include "chunk/manager.h"
#include "chunk/planner.h"
#include "tests/support/bench.h"
#include "tests/support/bench_plan.h"
#include "tests/support/interpose.h"
#include "tests/support/small_model.h"
#include "tests/support/stream_hash.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>

enum {
    BLOCK_PARAMS = 12,
    BLOCK_CHUNKS = 4,
    CHUNKS_A_PARAM_CHUNK = 4, /* PARAM, MASTER, MOMENTUM, VARIANCE */
    PASSES_MAX = 4000,
};

static const uint32_t chunk_counts[] = {1000, 10000, 100000};
enum { CHUNK_COUNTS = sizeof chunk_counts / sizeof chunk_counts[0] };

/* --- models --- */

static tide_param add_param(tide_description *description, uint32_t number, uint64_t elements)
{
    char name[32];
    tide_param param;
    snprintf(name, sizeof name, "p%" PRIu32, number);
    bench_check(tide_description_add_param(description, name, &elements, 1, NULL, &param), "param");
    return param;
}

static void add_op(tide_description *description, tide_pass pass, const tide_use *uses, uint32_t count)
{
    tide_op op;
    const tide_op_description described = {.name = "op", .pass = pass, .params = uses, .param_count = count};
    bench_check(tide_description_add_op(description, &described, &op), "op");
}

static tide_description *describe(void)
{
    tide_description *description;
    bench_check(tide_description_create(TIDE_DTYPE_FP32, 0, &description), "description");
    return description;
}

/* Describes `ops` ops, each of which reads a block of params, or one param of a chunk. */
static tide_description *describe_row(uint32_t ops, uint32_t params_an_op, uint64_t chunk_elements)
{
    /* Sizes in 64ths of a chunk, which add up to four chunks: eight small params (norms, biases), then
     * attention's two matrices and the MLP's two. */
    static const uint64_t units[BLOCK_PARAMS] = {4, 4, 4, 4, 4, 4, 4, 4, 56, 20, 72, 76};
    tide_description *made = describe();
    for (uint32_t op = 0; op < ops; op++) {
        tide_use uses[BLOCK_PARAMS];
        for (uint32_t i = 0; i < params_an_op; i++) {
            const uint64_t elements = params_an_op == 1 ? chunk_elements : units[i] * (chunk_elements / 64);
            uses[i] = (tide_use){add_param(made, op * params_an_op + i, elements), TIDE_ACCESS_READ};
        }
        add_op(made, TIDE_PASS_FORWARD, uses, params_an_op);
    }
    return made;
}

/* A manager alone: the benchmark carries its commands out, and no memory is behind its chunks. */
typedef struct managed {
    tide_description *description;
    tide_layout *layout;
    tide_manager *manager;
    uint32_t ops;
} managed;

static managed laid_out(tide_description *description, uint64_t chunk_bytes)
{
    managed it = {.description = description};
    bench_check(tide_layout_create(description, chunk_bytes, TIDE_SHARD_ALL, &it.layout), "layout");
    return it;
}

static void managed_close(managed *it)
{
    tide_manager_destroy(it->manager);
    tide_layout_destroy(it->layout);
    tide_description_destroy(it->description);
}

/* --- op begin + end --- */

static void run_commands(const managed *it)
{
    tide_command command;
    while (tide_manager_next(it->manager, &command))
        tide_manager_done(it->manager, command.id, TIDE_OK);
}

/* CPU seconds of a forward pass from the first begin to the last end. */
static double run_pass(const managed *it)
{
    bench_check(tide_manager_step_begin(it->manager, false, false), "step begin");
    run_commands(it);
    const double begin = bench_cpu_seconds();
    for (tide_op op = 0; op < it->ops; op++) {
        tide_status status = tide_manager_begin(it->manager, op);
        run_commands(it);
        if (status == TIDE_OK && tide_manager_ready(it->manager))
            status = tide_manager_end(it->manager);
        bench_check(status, "op");
    }
    const double seconds = bench_cpu_seconds() - begin;
    bench_check(tide_manager_step_end(it->manager), "step end");
    run_commands(it);
    return seconds;
}

static void measure_row(uint32_t chunks, uint32_t params_an_op, bool quick)
{
    /* CHUNK_BYTES is the least size that the layout allows; OPS_TIMED the least number of ops to time, in all
     * passes together */
    enum { CHUNK_BYTES = 4096, OPS_TIMED = 250000 };
    static double nanoseconds[PASSES_MAX];
    const uint32_t ops = chunks / (CHUNKS_A_PARAM_CHUNK * (params_an_op == 1 ? 1U : BLOCK_CHUNKS));
    managed it = laid_out(describe_row(ops, params_an_op, CHUNK_BYTES / 4), CHUNK_BYTES);
    it.ops = ops;
    const tide_manager_options options = {
        .device_slots = tide_layout_chunk_count(it.layout) + 1, .host_slots = 4, .prefetch = true};
    bench_check(tide_manager_create(it.layout, &options, &it.manager), "manager");
    /* The manager records the first pass and plans the second. The third begins where a planned pass ended,
     * as all later ones do. */
    for (int i = 0; i < 3; i++)
        (void)run_pass(&it);
    const uint32_t wanted = OPS_TIMED / (quick ? 10U : 1U) / ops + 3;
    const uint32_t passes = wanted < PASSES_MAX ? wanted : PASSES_MAX;
    for (uint32_t i = 0; i < passes; i++)
        nanoseconds[i] = run_pass(&it) * 1e9 / ops;
    bench_figure(
        bench_name("op begin + end, %s, %" PRIu32 " chunks", params_an_op == 1 ? "1 param" : "block", chunks),
        bench_median(nanoseconds, passes), "ns", BENCH_AT_MOST, 1000,
        "begin, next and end in the manager, all resident; %" PRIu32 " params an op, %" PRIu32
        " ops a pass, median of %" PRIu32 " passes",
        params_an_op, ops, passes);
    managed_close(&it);
}

/* --- commands a second --- */

enum {
    /* While so many commands are under way, the benchmark completes one before it takes the next. */
    COMMANDS_OPEN_MAX = 24,
    PARAMS_AN_OP = 8,
};

typedef struct tight {
    managed of; /* half of the ops are forward, half backward */
    uint64_t random, commands;
    uint32_t open[COMMANDS_OPEN_MAX], open_count;
} tight;

static uint32_t below(uint64_t *random, uint32_t limit)
{
    *random = *random * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (uint32_t)((*random >> 33) % limit);
}

/* Adds ops that use the params in random order; forward and backward ops get different orders. */
static void add_random_ops(tide_description *to, uint64_t *random, uint32_t params, tide_pass pass,
                           uint32_t access)
{
    tide_use *uses = calloc(params, sizeof *uses);
    if (uses == NULL)
        bench_die("no memory for %" PRIu32 " params", params);
    for (uint32_t i = 0; i < params; i++) {
        const uint32_t at = below(random, i + 1);
        uses[i] = uses[at];
        uses[at] = (tide_use){i, access};
    }
    for (uint32_t first = 0; first < params; first += PARAMS_AN_OP)
        add_op(to, pass, uses + first, PARAMS_AN_OP);
    free(uses);
}

static tight tight_open(uint32_t chunks)
{
    enum { CHUNK_BYTES = 1 << 20 };
    const uint32_t params = chunks / CHUNKS_A_PARAM_CHUNK / PARAMS_AN_OP * PARAMS_AN_OP;
    tide_description *description = describe();
    tight it = {.random = chunks};
    for (uint32_t i = 0; i < params; i++)
        (void)add_param(description, i, CHUNK_BYTES / 4);
    add_random_ops(description, &it.random, params, TIDE_PASS_FORWARD, TIDE_ACCESS_READ);
    add_random_ops(description, &it.random, params, TIDE_PASS_BACKWARD, TIDE_ACCESS_READ | TIDE_ACCESS_GRAD);
    it.of = laid_out(description, CHUNK_BYTES);
    it.of.ops = 2 * params / PARAMS_AN_OP;
    const tide_manager_options options = {.device_slots = params / 4,
                                          .host_slots = tide_layout_chunk_count(it.of.layout),
                                          .placement = TIDE_PLACEMENT_HOST,
                                          .prefetch = true};
    bench_check(tide_manager_create(it.of.layout, &options, &it.of.manager), "manager");
    return it;
}

static void end_one(tight *it)
{
    const uint32_t at = below(&it->random, it->open_count);
    const uint32_t id = it->open[at];
    it->open[at] = it->open[--it->open_count];
    tide_manager_done(it->of.manager, id, TIDE_OK);
}

/* Runs commands until none is under way or, with `until_ready`, until the begun op is ready. */
static void run_late(tight *it, bool until_ready)
{
    tide_command command;
    for (;;) {
        while (it->open_count < COMMANDS_OPEN_MAX && tide_manager_next(it->of.manager, &command)) {
            it->open[it->open_count++] = command.id;
            it->commands++;
        }
        if (it->open_count == 0 || (until_ready && tide_manager_ready(it->of.manager)))
            return;
        end_one(it);
    }
}

static void run_step(tight *it)
{
    tide_manager *manager = it->of.manager;
    bench_check(tide_manager_step_begin(manager, true, false), "step begin");
    for (tide_op op = 0; op < it->of.ops; op++) {
        bench_check(tide_manager_begin(manager, op), "begin");
        run_late(it, true);
        bench_check(tide_manager_end(manager), "end");
    }
    bench_check(tide_manager_step_end(manager), "step end");
    run_late(it, false);
}

/* Returns commands a second of CPU time: next and done of all commands, begin and end of the ops. */
static double measure_tight(uint32_t chunks, bool quick)
{
    enum { SETTLE_STEPS = 3, COMMANDS_TIMED = 400000 };
    uint64_t ignored;
    tight it = tight_open(chunks);
    const uint64_t wanted = COMMANDS_TIMED / (quick ? 10U : 1U);
    for (int i = 0; i < SETTLE_STEPS; i++)
        run_step(&it);
    it.commands = 0;
    uint32_t steps = 0;
    const double begin = bench_cpu_seconds();
    while (it.commands < wanted && ++steps)
        run_step(&it);
    const double rate = (double)it.commands / (bench_cpu_seconds() - begin);
    bench_figure(bench_name("commands a second, tight, %" PRIu32 " chunks", chunks), rate, "1/s",
                 BENCH_NO_BOUND, 0,
                 "%" PRIu64 " commands in %" PRIu32 " steps of %" PRIu32 " ops; stream so far %016" PRIx64,
                 it.commands, steps, it.of.ops, stream_hash(&ignored));
    managed_close(&it.of);
    return rate;
}

/* --- a large model's step --- */

typedef struct large_model {
    const char *name;
    uint32_t layers, width, heads;
    uint64_t chunk_bytes;
    double seconds_max;
} large_model;

static void measure_model(const large_model *of, bool quick)
{
    enum { SETTLE_STEPS = 4, STEPS_TIMED = 8, STEPS_QUICK = 2 };
    tide_trainer *trainer;
    tide_trainer_options options;
    tide_trainer_options_default(&options);
    options.model = gpt2_of(of->layers, of->width, of->heads, 2048, 50257);
    snprintf(options.model.name, sizeof options.model.name, "%s", of->name);
    options.recompute = TIDE_RECOMPUTE_ALL;
    options.pool.device = "null";
    options.pool.chunk_bytes = of->chunk_bytes;
    options.pool.threads = 1;
    options.pool.link_bytes_per_second = 50e9;
    const tide_pool_plan plan = bench_plan(&options);
    options.pool.device_memory_bytes = plan.region_bytes + plan.model_bytes / 4;
    bench_check(tide_trainer_create(&options, &trainer), of->name);
    for (int i = 0; i < SETTLE_STEPS; i++)
        bench_check(tide_trainer_step(trainer, NULL), of->name);
    const int steps = quick ? STEPS_QUICK : STEPS_TIMED;
    uint64_t before, after;
    (void)stream_hash(&before);
    const double begin = bench_cpu_seconds();
    for (int i = 0; i < steps; i++)
        bench_check(tide_trainer_step(trainer, NULL), of->name);
    const double seconds = (bench_cpu_seconds() - begin) / steps;
    const uint64_t hash = stream_hash(&after);
    bench_figure(
        bench_name("step on the null device, %s, %" PRIu64 " MiB chunks", of->name, of->chunk_bytes >> 20),
        seconds, "s", BENCH_AT_MOST, of->seconds_max,
        "a quarter of the model data on the device; %" PRIu64 " commands a step; stream so far %016" PRIx64,
        (after - before) / (uint64_t)steps, hash);
    tide_trainer_destroy(trainer);
}

/* --- the public API --- */

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
static double run_pool_pass(tide_pool *pool, uint32_t ops, uint64_t *slept)
{
    const tide_step_options forward_only = {.training = false};
    bench_check(tide_step_begin(pool, &forward_only), "step begin");
    const uint64_t before = sleeps();
    const double begin = bench_seconds();
    for (tide_op op = 0; op < ops; op++) {
        bench_check(tide_op_begin(pool, op), "op begin");
        bench_check(tide_op_end(pool), "op end");
    }
    const double seconds = bench_seconds() - begin;
    *slept += sleeps() - before;
    bench_check(tide_step_end(pool), "step end");
    return seconds;
}

static uint64_t device_allocations(tide_pool *pool)
{
    tide_pool_counters counters;
    bench_check(tide_pool_counters_get(pool, &counters), "counters");
    return counters.device_allocations + counters.host_allocations;
}

static void measure_pool(const char *device, uint32_t chunks, bool quick)
{
    enum { CHUNK_BYTES = 256 << 10, OPS_TIMED = 100000, POOL_PASSES_MAX = 2000, PASSES_MIN = 5 };
    /* sleeps of the caller per op; the first op of a pass may wait for the end of the step before */
    const double sleeps_max = 0.01;
    static double nanoseconds[POOL_PASSES_MAX];
    const uint32_t ops = chunks / (CHUNKS_A_PARAM_CHUNK * BLOCK_CHUNKS);
    const uint32_t wanted = OPS_TIMED / (quick ? 10U : 1U) / ops + PASSES_MIN;
    const uint32_t passes = wanted < POOL_PASSES_MAX ? wanted : POOL_PASSES_MAX;
    tide_description *description = describe_row(ops, BLOCK_PARAMS, CHUNK_BYTES / 4);
    tide_pool *pool;
    tide_pool_options options;
    tide_pool_options_default(&options);
    options.device = device;
    options.chunk_bytes = CHUNK_BYTES;
    /* Budgets are 0: every chunk lies where it is used. */
    bench_check(tide_pool_create(&options, description, &pool), "pool");
    uint64_t slept = 0;
    for (int i = 0; i < 3; i++)
        (void)run_pool_pass(pool, ops, &slept);
    slept = 0;
    const uint64_t before = device_allocations(pool);
    interpose_arm();
    for (uint32_t i = 0; i < passes; i++)
        nanoseconds[i] = run_pool_pass(pool, ops, &slept) * 1e9 / ops;
    interpose_disarm();
    const uint64_t allocations = interpose_read().allocations + device_allocations(pool) - before;
    tide_pool_destroy(pool);
    tide_description_destroy(description);
    bench_figure(bench_name("public API, %s device, %" PRIu32 " chunks", device, chunks),
                 bench_median(nanoseconds, passes), "ns", BENCH_AT_MOST, 1000,
                 "tide_op_begin + tide_op_end of a block, all resident, median of %" PRIu32 " passes",
                 passes);
    bench_figure(bench_name("sleeps an op, %s device, %" PRIu32 " chunks", device, chunks),
                 (double)slept / ((double)passes * ops), "count", BENCH_AT_MOST, sleeps_max,
                 "voluntary context switches of the calling thread: a lock found taken is one");
    bench_figure(bench_name("allocations, %s device, %" PRIu32 " chunks", device, chunks),
                 (double)allocations, "count", BENCH_AT_MOST, 0,
                 "malloc and its family in all threads, and the device's own, in %" PRIu32
                 " passes of %" PRIu32 " ops",
                 passes, ops);
}

/* --- the time to plan a step --- */

enum { STEP_CHUNKS = BLOCK_CHUNKS + 1 };

static void add_block(tide_use_trace *trace, uint32_t block, uint32_t param_flags, uint32_t activation_flags)
{
    const tide_chunk first = block * STEP_CHUNKS;
    for (uint32_t i = 0; i < BLOCK_CHUNKS; i++)
        trace->uses[trace->use_count++] = (tide_trace_use){.schedule_step = trace->schedule_step_count,
                                                           .chunk = first + i,
                                                           .flags = param_flags,
                                                           .held_schedule_steps = 1};
    trace->uses[trace->use_count++] = (tide_trace_use){.schedule_step = trace->schedule_step_count + 1,
                                                       .chunk = first + BLOCK_CHUNKS,
                                                       .flags = activation_flags};
    trace->schedule_step_count += 2;
}

/* A GPT's step: blocks of 4 PARAM chunks and one ACTIVATION chunk, forward, then backward.
 *
 *     forward of a block    reads the params, which stay through the schedule step that writes the
 *                           activation
 *     backward of a block   replaces params by gradients, which leave for their update; reads the
 *                           activation a last time */
static tide_use_trace make_trace(uint32_t chunks)
{
    const uint32_t blocks = chunks / STEP_CHUNKS;
    tide_use_trace trace = {.chunk_count = chunks, .uses = calloc(2 * (size_t)chunks, sizeof *trace.uses)};
    if (trace.uses == NULL)
        bench_die("no memory for a trace of %" PRIu32 " chunks", chunks);
    for (uint32_t block = 0; block < blocks; block++)
        add_block(&trace, block, 0, TIDE_TRACE_CREATES | TIDE_TRACE_MODIFIES);
    for (uint32_t block = blocks; block-- > 0;)
        add_block(&trace, block, TIDE_TRACE_MODIFIES | TIDE_TRACE_LEAVES, TIDE_TRACE_ENDS);
    return trace;
}

static void measure_plan(uint32_t chunks, bool quick)
{
    enum { ROUNDS = 5, ROUNDS_QUICK = 3 };
    double seconds[ROUNDS];
    const int rounds = quick ? ROUNDS_QUICK : ROUNDS;
    tide_planner *planner;
    const tide_plan *plan = NULL;
    tide_use_trace trace = make_trace(chunks);
    bench_check(tide_planner_create(chunks, trace.use_count, &planner), "planner");
    for (int round = 0; round < rounds; round++) {
        const double begin = bench_cpu_seconds();
        plan = tide_planner_build(planner, &trace, chunks / 4);
        seconds[round] = bench_cpu_seconds() - begin;
    }
    bench_figure(
        bench_name("plan, %" PRIu32 " chunks", chunks), bench_median(seconds, (size_t)rounds), "s",
        BENCH_AT_MOST, 1, "%" PRIu32 " uses, %" PRIu32 " slots: %" PRIu64 " chunks in, %" PRIu64 " out%s",
        trace.use_count, chunks / 4, plan->copies_in, plan->copies_out, plan->steady ? "" : "; not steady");
    tide_planner_destroy(planner);
    free(trace.uses);
}

int main(int argc, char **argv)
{
    static const large_model models[] = {{"7B", 32, 4096, 32, 1 << 20, 0.3},
                                         {"70B", 86, 8192, 64, 64 << 20, 0.03}};
    const bool quick = bench_options(argc, argv);
    double rates[CHUNK_COUNTS];
    bench_begin("manager");
    for (size_t i = 0; i < CHUNK_COUNTS; i++) {
        measure_row(chunk_counts[i], BLOCK_PARAMS, quick);
        measure_row(chunk_counts[i], 1, quick);
    }
    for (size_t i = 0; i < CHUNK_COUNTS; i++)
        rates[i] = measure_tight(chunk_counts[i], quick);
    bench_figure("a command's cost, 100000 chunks over 1000", rates[0] / rates[2], "ratio", BENCH_AT_MOST, 2,
                 "of the tight step above");
    for (size_t i = 0; i < sizeof models / sizeof models[0]; i++)
        measure_model(&models[i], quick);
    measure_pool("host", 1000, quick);
    measure_pool("null", 1000, quick);
    measure_pool("null", 10000, quick);
    for (size_t i = 0; i < CHUNK_COUNTS; i++)
        measure_plan(chunk_counts[i], quick);
    bench_end();
    return 0;
}
