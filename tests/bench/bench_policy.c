/* Counts the bytes that policies copy: our plan against the optimum on small steps, and against LRU and
 * PatrickStar's policy on steps recorded from real models.
 *
 * The trainer builds each model on the null device, which holds no data, and records one step: 8 sequences
 * of the model's context, recompute everywhere, all updates on the host. So the policy alone decides which
 * chunks the device keeps, and the same step serves all budgets. A budget of model data (14 bytes a param)
 * less the region gives the number of slots of 64 MiB. All 16-bit params fit from 15% on (2 of 14 bytes).
 * Policies differ most with the last budgets, which hold a tenth or a half of the params and the largest
 * op.
 *
 * Updates are copies that no policy avoids: each chunk that the host updates goes out and comes back. The
 * function tide_least_find() (chunk/least.h) gives a lower bound of the copies for a number of slots,
 * updates included. */
#include "chunk/least.h"
#include "src/pool/internal.h"
#include "src/train/trainer.h"
#include "tests/bench/bench_policy_frames.h"
#include "tests/support/bench.h"
#include "tests/support/policies.h"
#include "tests/support/small_model.h"
#include "tests/support/small_traces.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

enum { SMALL_CASES = 2000, SMALL_CASES_QUICK = 400, TIMED_BUILDS = 5 };

/* --- small steps --- */

typedef struct small_sums {
    /* chunks copied in OPTIMUM_PERIOD steps of each case, summed over the cases */
    uint64_t ours, optimum, policies[POLICY_COUNT];
    uint32_t optimal;
} small_sums;

static uint64_t plan_copies(const tide_plan *plan)
{
    return plan->copies_in + plan->copies_out;
}

static uint64_t policy_sum(policy which, const tide_use_trace *trace, uint32_t slots)
{
    policy_copies copies;
    if (!policy_play(which, trace, slots, &copies))
        bench_die("no memory to play %s", policy_name(which));
    return copies.in + copies.out;
}

static void add_small(tide_planner *planner, uint64_t seed, small_sums *sums)
{
    _Static_assert((int)POLICY_STEPS == (int)OPTIMUM_PERIOD, "sums are of the same steps");
    tide_trace_use uses[SMALL_USES_MAX];
    tide_use_trace trace = {.uses = uses};
    uint32_t slots;
    optimum best;
    trace_draw(seed, &small_limits, &trace, &slots);
    if (!optimum_find(&trace, slots, &best))
        bench_die("seed %" PRIu64 ": the optimum does not settle", seed);
    const uint64_t ours = plan_copies(tide_planner_build(planner, &trace, slots)) * OPTIMUM_PERIOD;
    if (ours < best.copies)
        bench_die("seed %" PRIu64 ": a plan below the optimum", seed);
    sums->ours += ours;
    sums->optimum += best.copies;
    sums->optimal += ours == best.copies;
    for (policy which = 0; which < POLICY_COUNT; which++)
        sums->policies[which] += policy_sum(which, &trace, slots);
}

static void measure_small(uint32_t cases)
{
    tide_planner *planner;
    small_sums sums = {0};
    bench_check(tide_planner_create(SMALL_CHUNKS_MAX, SMALL_USES_MAX, &planner), "planner");
    for (uint64_t seed = 0; seed < cases; seed++)
        add_small(planner, seed, &sums);
    tide_planner_destroy(planner);
    bench_figure("small steps, ours to optimum", (double)sums.ours / (double)sums.optimum, "ratio",
                 BENCH_AT_MOST, 1.02,
                 "%u of %u steps of up to %d chunks and %d uses, 2 or 3 slots, are optimal", sums.optimal,
                 cases, SMALL_CHUNKS_MAX, SMALL_USES_MAX);
    for (policy which = 0; which < POLICY_COUNT; which++) {
        bench_figure(bench_name("small steps, %s to ours", policy_name(which)),
                     (double)sums.policies[which] / (double)sums.ours, "ratio", BENCH_AT_LEAST, 1.0,
                     "%.3f times the optimum", (double)sums.policies[which] / (double)sums.optimum);
    }
}

/* --- recorded steps --- */

typedef struct model {
    const char *name;
    uint32_t layers, width, heads, context;
} model;

typedef struct budget {
    const char *name;
    /* The budget as a share of the model data. The slots get what the region leaves of it. */
    double model_data;
    /* If above 0, it replaces model_data: the slots are this share of the PARAM chunks plus the largest op's
     * chunks. */
    double params;
} budget;

static const model models[] = {
    {"gpt2-xl", 48, 1600, 25, 1024}, {"7B", 32, 4096, 32, 2048}, {"70B", 86, 8192, 64, 2048}};

static const budget budgets[] = {{"50%", 0.50, 0},
                                 {"25%", 0.25, 0},
                                 {"15%", 0.15, 0},
                                 {"half the params", 0, 0.5},
                                 {"a tenth of the params", 0, 0.1}};

static tide_trainer *record(const model *of)
{
    tide_trainer_options options;
    tide_trainer *trainer;
    tide_trainer_options_default(&options);
    options.model = gpt2_of(of->layers, of->width, of->heads, of->context, 50257);
    snprintf(options.model.name, sizeof options.model.name, "%s", of->name);
    options.recompute = TIDE_RECOMPUTE_ALL;
    options.pool.device = "null";
    options.pool.placement = TIDE_PLACEMENT_HOST;
    options.pool.threads = 1;
    options.pool.machine = (tide_machine){
        .flops_per_second = 1e14, .device_bytes_per_second = 1e12, .host_bytes_per_second = 1e11};
    bench_check(tide_trainer_create(&options, &trainer), of->name);
    bench_check(tide_trainer_step(trainer, NULL), of->name);
    return trainer;
}

static uint32_t slots_of(const budget *b, const tide_pool_plan *plan)
{
    const uint32_t largest_op = (uint32_t)(plan->largest_op_bytes / plan->chunk_bytes);
    if (b->params > 0)
        return largest_op + (uint32_t)(b->params * plan->chunks[TIDE_SPACE_PARAM]);
    const double bytes = b->model_data * (double)plan->model_bytes - (double)plan->region_bytes;
    const double slots = bytes / (double)plan->chunk_bytes;
    if (slots < largest_op)
        bench_die("%s of the model data is below the largest op", b->name);
    return (uint32_t)slots;
}

/* Copies of the updates, which every policy makes. */
static uint64_t update_copies(const tide_use_trace *trace)
{
    uint64_t copies = 0;
    for (uint32_t u = 0; u < trace->use_count; u++)
        if (trace->uses[u].flags & TIDE_TRACE_LEAVES)
            copies += trace->uses[u].flags & TIDE_TRACE_MODIFIES ? 2 : 1;
    return copies;
}

/* Compares our plan with the lower bound of copies each way. */
static void measure_least(const model *of, const budget *b, const tide_use_trace *trace, uint32_t slots,
                          const tide_plan *ours)
{
    tide_least *least;
    uint64_t in = 0, out = 0;
    double seconds[TIMED_BUILDS];
    bench_check(tide_least_create(trace->chunk_count, trace->use_count, trace->schedule_step_count, &least),
                "least");
    for (int i = 0; i < TIMED_BUILDS; i++) {
        const double began = bench_seconds();
        tide_least_find(least, trace, slots, &in, &out);
        seconds[i] = bench_seconds() - began;
    }
    tide_least_destroy(least);
    const double median = bench_median(seconds, TIMED_BUILDS);
    bench_figure(bench_name("%s, %s, ours to the least", of->name, b->name),
                 (double)plan_copies(ours) / (double)(in + out), "ratio", BENCH_AT_MOST, 1.02,
                 "%" PRIu64 " chunks in, at least %" PRIu64 "; %" PRIu64 " out, at least %" PRIu64
                 "; found in %.2f ms, %.0f ns a use",
                 ours->copies_in, in, ours->copies_out, out, median * 1e3, median * 1e9 / trace->use_count);
}

static double plan_seconds(tide_planner *planner, const tide_use_trace *trace, uint32_t slots)
{
    double seconds[TIMED_BUILDS];
    for (int i = 0; i < TIMED_BUILDS; i++) {
        const double began = bench_seconds();
        (void)tide_planner_build(planner, trace, slots);
        seconds[i] = bench_seconds() - began;
    }
    return bench_median(seconds, TIMED_BUILDS);
}

static void measure_budget(const model *of, const budget *b, const tide_pool_plan *plan,
                           const tide_use_trace *trace, tide_planner *planner)
{
    const uint32_t slots = slots_of(b, plan);
    const double seconds = plan_seconds(planner, trace, slots);
    const tide_plan *ours = tide_planner_build(planner, trace, slots);
    const double copies = (double)plan_copies(ours), gib = (double)plan->chunk_bytes / (1 << 30);
    measure_least(of, b, trace, slots, ours);
    for (policy which = 0; which < POLICY_COUNT; which++) {
        const double theirs = (double)policy_sum(which, trace, slots) / POLICY_STEPS;
        bench_figure(
            bench_name("%s, %s, %s to ours", of->name, b->name, policy_name(which)), theirs / copies, "ratio",
            BENCH_AT_LEAST, 1.0,
            "%u slots; ours %.1f GiB a step, updates %.1f, theirs %.1f; %u uses of %u chunks planned "
            "in %.2f ms",
            slots, copies * gib, (double)update_copies(trace) * gib, theirs * gib, trace->use_count,
            trace->chunk_count, seconds * 1e3);
    }
}

static void measure_model(const model *of)
{
    tide_trainer *trainer = record(of);
    const tide_pool_plan *plan = &tide_trainer_plan_get(trainer)->pool;
    const tide_use_trace *trace = trace_recorded(tide_trainer_pool(trainer)->engine.manager);
    tide_planner *planner;
    if (!trace)
        bench_die("%s: no step was recorded", of->name);
    const uint32_t most =
        trace->use_count > trace->schedule_step_count ? trace->use_count : trace->schedule_step_count;
    bench_check(tide_planner_create(trace->chunk_count, most, &planner), "planner");
    for (size_t i = 0; i < sizeof budgets / sizeof *budgets; i++)
        measure_budget(of, &budgets[i], plan, trace, planner);
    tide_planner_destroy(planner);
    tide_trainer_destroy(trainer);
}

int main(int argc, char **argv)
{
    const bool quick = bench_options(argc, argv);
    bench_begin("policy");
    measure_small(quick ? SMALL_CASES_QUICK : SMALL_CASES);
    for (size_t i = 0; i < sizeof models / sizeof *models; i++)
        measure_model(&models[i]);
    bench_policy_frames();
    bench_end();
    return 0;
}
