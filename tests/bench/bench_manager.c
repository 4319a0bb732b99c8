/* Measures the cost of the manager's policy: begin, next (which hands out commands) and end of an op whose
 * chunks are all on the device, with a thousand, ten thousand and a hundred thousand chunks; commands a
 * second where most chunks move; steps of large models; the same ops through the public API; and the time to
 * plan a step.
 *
 * The model is a row of GPT blocks, each with 12 params on 4 PARAM chunks (8 small params, and 4 that
 * straddle chunks), in fp32 with two moments, so a block has 16 chunks. An op reads a block. Two variants
 * show where the time goes: ops of one param, and blocks through a pool. Single-threaded parts are
 * measured in the thread's CPU time, so that other processes do not count. */
#include "tests/bench/bench_manager.h"

#include "tests/support/bench.h"

#include "chunk/manager.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

enum {
    /* No memory is behind the chunks; this is the least size that the layout allows. */
    CHUNK_BYTES = 4096,
    CHUNK_ELEMENTS = CHUNK_BYTES / 4,
    /* PARAM, MASTER, MOMENTUM, VARIANCE */
    CHUNKS_A_PARAM_CHUNK = 4,
    PASSES_MAX = 4000,
    /* the least number of ops to time, in all passes together */
    OPS_TIMED = 250000,
};

void bench_check(tide_status status, const char *what)
{
    if (status != TIDE_OK)
        bench_die("%s: %s", what, tide_message());
}

uint64_t bench_block_elements(uint32_t param, uint64_t chunk_elements)
{
    /* Sizes in 64ths of a chunk, which add up to four chunks: eight small params (norms, biases), then
     * attention's two matrices and the MLP's two. */
    static const uint64_t units[BLOCK_PARAMS] = {4, 4, 4, 4, 4, 4, 4, 4, 56, 20, 72, 76};
    return units[param] * (chunk_elements / 64);
}

/* --- the manager alone --- */

typedef struct row {
    tide_description *description;
    tide_layout *layout;
    tide_manager *manager;
    uint32_t ops;
} row;

static void add_params(row *it, uint32_t blocks, uint32_t params_a_block)
{
    bench_check(tide_description_create(TIDE_DTYPE_FP32, 0, &it->description), "description");
    for (uint32_t i = 0; i < blocks * params_a_block; i++) {
        char name[32];
        uint32_t number;
        const uint64_t elements =
            params_a_block == 1 ? CHUNK_ELEMENTS : bench_block_elements(i % params_a_block, CHUNK_ELEMENTS);
        snprintf(name, sizeof name, "p%" PRIu32, i);
        bench_check(tide_description_add_param(it->description, name, &elements, 1, NULL, &number), "param");
    }
}

static void add_ops(row *it, uint32_t params_a_block)
{
    for (tide_op op = 0; op < it->ops; op++) {
        tide_use uses[BLOCK_PARAMS];
        tide_op number;
        for (uint32_t i = 0; i < params_a_block; i++)
            uses[i] = (tide_use){op * params_a_block + i, TIDE_ACCESS_READ};
        const tide_op_description description = {
            .name = "block", .pass = TIDE_PASS_FORWARD, .params = uses, .param_count = params_a_block};
        bench_check(tide_description_add_op(it->description, &description, &number), "op");
    }
}

static void run_commands(row *it)
{
    tide_command command;
    while (tide_manager_next(it->manager, &command))
        tide_manager_done(it->manager, command.id, TIDE_OK);
}

/* CPU seconds of a forward pass from the first begin to the last end. */
static double run_pass(row *it)
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

static row row_open(uint32_t chunks, uint32_t params_a_block)
{
    const uint32_t block_chunks = params_a_block == 1 ? 1 : BLOCK_CHUNKS;
    row it = {.ops = chunks / (CHUNKS_A_PARAM_CHUNK * block_chunks)};
    add_params(&it, it.ops, params_a_block);
    add_ops(&it, params_a_block);
    bench_check(tide_layout_create(it.description, CHUNK_BYTES, &it.layout), "layout");
    bench_check(tide_manager_create(it.layout, &it.manager), "manager");
    const tide_manager_options options = {
        .device_slots = tide_layout_chunk_count(it.layout) + 1, .host_slots = 4, .prefetch = true};
    bench_check(tide_manager_seal(it.manager, &options), "seal");
    /* The manager records the first pass and plans the second. The third begins where a planned pass ended,
     * as all later ones do. */
    for (int i = 0; i < 3; i++)
        (void)run_pass(&it);
    return it;
}

static void bench_row(uint32_t chunks, uint32_t params_a_block, bool quick)
{
    static double nanoseconds[PASSES_MAX];
    char name[64];
    row it = row_open(chunks, params_a_block);
    const uint32_t wanted = OPS_TIMED / (quick ? 10U : 1U) / it.ops + 3;
    const uint32_t passes = wanted < PASSES_MAX ? wanted : PASSES_MAX;
    for (uint32_t i = 0; i < passes; i++)
        nanoseconds[i] = run_pass(&it) * 1e9 / it.ops;
    snprintf(name, sizeof name, "op begin + end, %s, %" PRIu32 " chunks",
             params_a_block == 1 ? "1 param" : "block", chunks);
    bench_figure(name, bench_median(nanoseconds, passes), "ns", BENCH_AT_MOST, 1000,
                 "begin, next and end in the manager, all resident; %" PRIu32 " params an op, %" PRIu32
                 " ops a pass, median of %" PRIu32 " passes",
                 params_a_block, it.ops, passes);
    tide_manager_destroy(it.manager);
    tide_layout_destroy(it.layout);
    tide_description_destroy(it.description);
}

int main(int argc, char **argv)
{
    const bool quick = bench_options(argc, argv);
    static const uint32_t chunks[] = {1000, 10000, 100000};
    bench_begin("manager");
    for (size_t i = 0; i < sizeof chunks / sizeof chunks[0]; i++) {
        bench_row(chunks[i], BLOCK_PARAMS, quick);
        bench_row(chunks[i], 1, quick);
    }
    double rates[sizeof chunks / sizeof chunks[0]];
    for (size_t i = 0; i < sizeof chunks / sizeof chunks[0]; i++)
        rates[i] = bench_manager_tight(chunks[i], quick);
    bench_figure("a command's cost, 100000 chunks over 1000", rates[0] / rates[2], "ratio", BENCH_AT_MOST, 2,
                 "of the tight step above");
    const bench_model large = {"7B", 32, 4096, 32, 1 << 20}, huge = {"70B", 86, 8192, 64, 64 << 20};
    bench_manager_model(&large, 0.3, quick);
    bench_manager_model(&huge, 0.03, quick);
    bench_manager_pool("host", 1000, quick);
    bench_manager_pool("null", 1000, quick);
    bench_manager_pool("null", 10000, quick);
    for (size_t i = 0; i < sizeof chunks / sizeof chunks[0]; i++)
        bench_manager_plan(chunks[i], quick);
    bench_end();
    return 0;
}
