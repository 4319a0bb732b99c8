/* Measures the cost of a command where most chunks have to move: a training step whose ops use random
 * params, with a quarter of the PARAM chunks on the device and all state and updates on the host. Commands
 * end late and in random order, as on a link.
 *
 * The figure is the manager's CPU time for a step (next and done of all commands, begin and end of the ops)
 * over the number of commands. Its next hands a command out; the caller of its done has carried the command
 * out. */
#include "tests/bench/bench_manager.h"

#include "tests/support/bench.h"
#include "tests/support/stream_hash.h"

#include "chunk/manager.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

enum {
    CHUNK_BYTES = 1 << 20,
    CHUNKS_A_PARAM = 4, /* PARAM, MASTER, MOMENTUM, VARIANCE */
    PARAMS_AN_OP = 8,
    /* While so many commands are under way, the benchmark completes one before it takes the next. */
    COMMANDS_OPEN_MAX = 24,
    SETTLE_STEPS = 3,
    COMMANDS_TIMED = 400000,
};

typedef struct tight {
    tide_description *description;
    tide_layout *layout;
    tide_manager *manager;
    /* half of the ops are forward, half backward */
    uint32_t params, ops;
    uint64_t random;
    uint32_t open[COMMANDS_OPEN_MAX];
    uint32_t open_count;
    uint64_t commands;
} tight;

static uint32_t below(tight *it, uint32_t limit)
{
    it->random = it->random * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (uint32_t)((it->random >> 33) % limit);
}

static void add_params(tight *it)
{
    const uint64_t elements = CHUNK_BYTES / 4;
    bench_check(tide_description_create(TIDE_DTYPE_FP32, 0, &it->description), "description");
    for (uint32_t i = 0; i < it->params; i++) {
        char name[32];
        tide_param number;
        snprintf(name, sizeof name, "p%" PRIu32, i);
        bench_check(tide_description_add_param(it->description, name, &elements, 1, NULL, &number), "param");
    }
}

/* Adds ops that use the params in random order; forward and backward ops get different orders. */
static void add_ops(tight *it, tide_pass pass, uint32_t access)
{
    uint32_t *order = calloc(it->params, sizeof *order);
    if (order == NULL)
        bench_die("no memory for %" PRIu32 " params", it->params);
    for (uint32_t i = 0; i < it->params; i++) {
        const uint32_t at = below(it, i + 1);
        order[i] = order[at];
        order[at] = i;
    }
    for (uint32_t first = 0; first + PARAMS_AN_OP <= it->params; first += PARAMS_AN_OP) {
        tide_use uses[PARAMS_AN_OP];
        tide_op op;
        for (uint32_t i = 0; i < PARAMS_AN_OP; i++)
            uses[i] = (tide_use){order[first + i], access};
        const tide_op_description description = {
            .name = "random", .pass = pass, .params = uses, .param_count = PARAMS_AN_OP};
        bench_check(tide_description_add_op(it->description, &description, &op), "op");
        it->ops++;
    }
    free(order);
}

static tight tight_open(uint32_t chunks)
{
    tight it = {.params = chunks / CHUNKS_A_PARAM / PARAMS_AN_OP * PARAMS_AN_OP, .random = chunks};
    add_params(&it);
    add_ops(&it, TIDE_PASS_FORWARD, TIDE_ACCESS_READ);
    add_ops(&it, TIDE_PASS_BACKWARD, TIDE_ACCESS_READ | TIDE_ACCESS_GRAD);
    bench_check(tide_layout_create(it.description, CHUNK_BYTES, &it.layout), "layout");
    bench_check(tide_manager_create(it.layout, &it.manager), "manager");
    const tide_manager_options options = {.device_slots = it.params / 4,
                                          .host_slots = tide_layout_chunk_count(it.layout),
                                          .placement = TIDE_PLACEMENT_HOST,
                                          .prefetch = true};
    bench_check(tide_manager_seal(it.manager, &options), "seal");
    return it;
}

static void end_one(tight *it)
{
    const uint32_t at = below(it, it->open_count);
    const uint32_t id = it->open[at];
    it->open[at] = it->open[--it->open_count];
    tide_manager_done(it->manager, id, TIDE_OK);
}

/* Runs commands until none is under way or, with `until_ready`, until the begun op is ready. */
static void run_commands(tight *it, bool until_ready)
{
    tide_command command;
    for (;;) {
        while (it->open_count < COMMANDS_OPEN_MAX && tide_manager_next(it->manager, &command)) {
            it->open[it->open_count++] = command.id;
            it->commands++;
        }
        if (it->open_count == 0 || (until_ready && tide_manager_ready(it->manager)))
            return;
        end_one(it);
    }
}

static void run_step(tight *it)
{
    bench_check(tide_manager_step_begin(it->manager, true, false), "step begin");
    for (tide_op op = 0; op < it->ops; op++) {
        bench_check(tide_manager_begin(it->manager, op), "begin");
        run_commands(it, true);
        bench_check(tide_manager_end(it->manager), "end");
    }
    bench_check(tide_manager_step_end(it->manager), "step end");
    run_commands(it, false);
}

double bench_manager_tight(uint32_t chunks, bool quick)
{
    uint64_t ignored;
    char name[64];
    tight it = tight_open(chunks);
    const uint64_t wanted = COMMANDS_TIMED / (quick ? 10U : 1U);
    for (int i = 0; i < SETTLE_STEPS; i++)
        run_step(&it);
    it.commands = 0;
    uint32_t steps = 0;
    const double begin = bench_cpu_seconds();
    while (it.commands < wanted && ++steps)
        run_step(&it);
    const double seconds = bench_cpu_seconds() - begin;
    snprintf(name, sizeof name, "commands a second, tight, %" PRIu32 " chunks", chunks);
    bench_figure(name, (double)it.commands / seconds, "1/s", BENCH_NO_BOUND, 0,
                 "%" PRIu64 " commands in %" PRIu32 " steps of %" PRIu32 " ops; stream so far %016" PRIx64,
                 it.commands, steps, it.ops, stream_hash(&ignored));
    tide_manager_destroy(it.manager);
    tide_layout_destroy(it.layout);
    tide_description_destroy(it.description);
    return (double)it.commands / seconds;
}
