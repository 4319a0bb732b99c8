/* Measures the time to plan a GPT's step: blocks of 4 PARAM chunks and one ACTIVATION chunk, forward, then
 * backward.
 *
 *     forward of a block    reads the params, which stay through the schedule step that writes the
 *                           activation
 *     backward of a block   replaces params by gradients, which leave for their update; reads the
 *                           activation a last time */
#include "tests/bench/bench_manager.h"

#include "chunk/planner.h"
#include "tests/support/bench.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

enum { STEP_CHUNKS = BLOCK_CHUNKS + 1, ROUNDS = 5 };

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

void bench_manager_plan(uint32_t chunks, bool quick)
{
    double seconds[ROUNDS];
    const int rounds = quick ? 3 : ROUNDS;
    char name[64];
    tide_planner *planner;
    const tide_plan *plan = NULL;
    tide_use_trace trace = make_trace(chunks);
    bench_check(tide_planner_create(chunks, trace.use_count, &planner), "planner");
    for (int round = 0; round < rounds; round++) {
        const double begin = bench_cpu_seconds();
        plan = tide_planner_build(planner, &trace, chunks / 4);
        seconds[round] = bench_cpu_seconds() - begin;
    }
    snprintf(name, sizeof name, "plan, %" PRIu32 " chunks", chunks);
    bench_figure(name, bench_median(seconds, (size_t)rounds), "s", BENCH_AT_MOST, 1,
                 "%" PRIu32 " uses, %" PRIu32 " slots: %" PRIu64 " chunks in, %" PRIu64 " out%s",
                 trace.use_count, chunks / 4, plan->copies_in, plan->copies_out,
                 plan->steady ? "" : "; not steady");
    tide_planner_destroy(planner);
    free(trace.uses);
}
