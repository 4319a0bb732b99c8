/* trace: measures the cost of --trace to a step.
 *
 *     usage: bench_trace [--quick]
 *
 * Two trainers with the same model, data and budgets step in turn. One of them is traced as the program does
 * it: the trace in /tmp keeps the warm-up and the last 8 steps. The order within a pair of steps alternates.
 * The figure is the median over the pairs of the traced step's time over the other's. A step ends with its
 * drain, so its time includes the writer's work; so does the CPU time, which covers all threads of the
 * process. The device budget is the least that works, which gives the most moves and the most events. */
#include "src/trace/trace.h"
#include "tests/support/bench.h"
#include "tests/support/bench_plan.h"

#include <stdio.h>
#include <string.h>

enum { SETTLE_STEPS = 4, PAIRS_MAX = 60, QUICK_PAIRS = 4 };

typedef struct side {
    tide_trainer_options options;
    tide_trainer *trainer;
    tide_trace *trace; /* NULL for the trainer without a trace */
} side;

typedef struct measured {
    double seconds, cpu_seconds;
} measured;

static char data_path[BENCH_PATH_BYTES], trace_path[BENCH_PATH_BYTES];

/* --- two sides --- */

static tide_trainer_options options_of(uint64_t device_bytes)
{
    tide_trainer_options options;
    tide_trainer_options_default(&options);
    bench_check(tide_model_config_open("gpt2-nano", &options.model), "gpt2-nano");
    options.data = data_path;
    options.seq_len = 128;
    options.global_batch_tokens = 512;
    options.micro_batch_sequences = 2;
    options.pool.device = "host";
    options.pool.chunk_bytes = 1 << 20;
    options.pool.threads = bench_threads();
    options.pool.device_memory_bytes = device_bytes;
    return options;
}

static void open_side(side *it, uint64_t device_bytes, bool traced)
{
    const tide_trace_options kept = {.ring_events = TIDE_TRACE_RING_EVENTS, .keep_steps = 8};
    it->options = options_of(device_bytes);
    if (traced) {
        bench_check(tide_trace_open(trace_path, &kept, &it->trace), "trace");
        it->options.pool.trace = tide_trace_record;
        it->options.pool.trace_context = it->trace;
    }
    bench_check(tide_trainer_create(&it->options, &it->trainer), "trainer");
    const tide_trace_head head = {.version = "bench",
                                  .pool = tide_trainer_pool(it->trainer),
                                  .options = &it->options.pool,
                                  .plan = &tide_trainer_plan_get(it->trainer)->pool,
                                  .machine = "bench"};
    if (traced)
        bench_check(tide_trace_begin(it->trace, &head), "trace");
}

static measured step(side *it)
{
    tide_trainer_report report;
    const double cpu = bench_cpu_seconds(), begin = bench_seconds();
    bench_check(tide_trainer_step(it->trainer, &report), "step");
    bench_check(tide_pool_drain(tide_trainer_pool(it->trainer)), "drain");
    return (measured){bench_seconds() - begin, bench_cpu_seconds() - cpu};
}

/* --- figures --- */

/* Ends the traced trainer and returns its events per step, read from the trace's last line. */
static double events_a_step(side *it, unsigned steps)
{
    uint64_t dropped;
    char line[4096], last[4096] = "";
    unsigned long long events = 0;
    tide_trainer_destroy(it->trainer);
    bench_check(tide_trace_finish(it->trace, &dropped), "trace");
    tide_trace_destroy(it->trace);
    FILE *file = fopen(trace_path, "r");
    while (file != NULL && fgets(line, sizeof line, file) != NULL)
        memcpy(last, line, sizeof last);
    if (file == NULL || sscanf(last, "{\"end\":true,\"events\":%llu", &events) != 1 || dropped > 0)
        bench_die("the trace has no last line, or %llu events were dropped", (unsigned long long)dropped);
    fclose(file);
    return (double)events / steps;
}

int main(int argc, char **argv)
{
    const unsigned pairs = bench_options(argc, argv) ? QUICK_PAIRS : PAIRS_MAX;
    double wall[PAIRS_MAX], cpu[PAIRS_MAX], untraced[PAIRS_MAX];
    side sides[2] = {{.trace = NULL}, {.trace = NULL}};
    bench_data(data_path);
    bench_path("trace", trace_path);
    const tide_trainer_options least = options_of(0);
    const uint64_t device_bytes = bench_plan(&least).least_device_bytes;
    for (int traced = 0; traced < 2; traced++)
        open_side(&sides[traced], device_bytes, traced);
    for (int i = 0; i < SETTLE_STEPS; i++)
        for (int traced = 0; traced < 2; traced++)
            (void)step(&sides[traced]);
    for (unsigned pair = 0; pair < pairs; pair++) {
        measured took[2];
        for (unsigned turn = 0; turn < 2; turn++) {
            const unsigned traced = (pair + turn) % 2;
            took[traced] = step(&sides[traced]);
        }
        wall[pair] = took[1].seconds / took[0].seconds;
        cpu[pair] = took[1].cpu_seconds / took[0].cpu_seconds;
        untraced[pair] = took[0].seconds;
    }
    const double events = events_a_step(&sides[1], SETTLE_STEPS + pairs);
    tide_trainer_destroy(sides[0].trainer);
    bench_begin("trace");
    const double seconds = bench_median(untraced, pairs);
    bench_figure("step", bench_median(wall, pairs), "ratio", BENCH_AT_MOST, 1.01,
                 "traced over not traced, median of %u pairs of steps of %.1f ms; %.0f events a step", pairs,
                 seconds * 1e3, events);
    bench_figure("processor", bench_median(cpu, pairs), "ratio", BENCH_NO_BOUND, 0,
                 "likewise, of all threads' time");
    bench_end();
    return 0;
}
