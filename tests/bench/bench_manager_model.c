/* A large model's step on the null device, which holds no data. Its engine runs on the caller's thread, so
 * CPU time is the cost of manager and engine. */
#include "tests/bench/bench_manager.h"

#include "src/train/trainer.h"
#include "tests/support/bench.h"
#include "tests/support/small_model.h"
#include "tests/support/stream_hash.h"

#include <inttypes.h>
#include <stdio.h>

enum { SETTLE_STEPS = 4, STEPS_TIMED = 8, STEPS_QUICK = 2 };

static tide_trainer_options options_of(const bench_model *of)
{
    tide_trainer_options options;
    tide_trainer_options_default(&options);
    options.model = gpt2_of(of->layers, of->width, of->heads, 2048, 50257);
    snprintf(options.model.name, sizeof options.model.name, "%s", of->name);
    options.recompute = TIDE_RECOMPUTE_ALL;
    options.pool.device = "null";
    options.pool.chunk_bytes = of->chunk_bytes;
    options.pool.threads = 1;
    options.pool.link_bytes_per_second = 50e9;
    return options;
}

/* Sets the device budget to a quarter of the model data. */
static void set_budget(tide_trainer_options *options, const char *name)
{
    tide_trainer *trainer;
    bench_check(tide_trainer_create(options, &trainer), name);
    const tide_pool_plan *plan = &tide_trainer_plan_get(trainer)->pool;
    options->pool.device_memory_bytes = plan->region_bytes + plan->model_bytes / 4;
    tide_trainer_destroy(trainer);
}

void bench_manager_model(const bench_model *of, double seconds_max, bool quick)
{
    char name[64];
    tide_trainer *trainer;
    tide_trainer_options options = options_of(of);
    set_budget(&options, of->name);
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
    snprintf(name, sizeof name, "step on the null device, %s, %" PRIu64 " MiB chunks", of->name,
             of->chunk_bytes >> 20);
    bench_figure(name, seconds, "s", BENCH_AT_MOST, seconds_max,
                 "a quarter of the model data on the device; %" PRIu64
                 " commands a step; stream so far %016" PRIx64,
                 (after - before) / (uint64_t)steps, hash);
    tide_trainer_destroy(trainer);
}
