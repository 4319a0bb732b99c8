/* step: compares a training step of gpt2 with its limit.
 *
 *     usage: bench_step [--quick]
 *
 * The model is gpt2 (124M) in bf16, with chunks of 4 MiB, 256 tokens a step (32 without bf16 instructions)
 * and every block recomputed. Device budgets are shares of the model data (14 bytes a param) and include
 * the region (accumulators, workspace). A share below the least budget that works is raised to it. --quick
 * runs only some of the required rows, one round of one step each.
 *
 * Three forms
 *
 *   real   the trainer on the host device. Compute, Adam, copies and maps share the cores.
 *              limit = max(link in, link out, compute + Adam + (copies + maps) / cores)
 *          Updates on the device are Adam on the same cores too, counted apart since they move nothing.
 *   timed  the same ops on a device that takes time and no core (bench_step_session.c). Each op lasts as long
 *          as its kernels did in the real form with everything resident. Host Adam, copies and maps are real.
 *              limit = max(compute, device updates, link in, link out, host Adam + maps / cores)
 *          The sum leaves out copies. They take cores from Adam here, but a GPU's copy engines would not.
 *          `timed S Adam` is a faster device: its compute takes S times as long as Adam for all params
 *          alone on the host, so that everything depends on overlap.
 *   dma    as timed, but a copy only takes time, neither cores nor memory bandwidth, and moves nothing.
 *          (A GPU's copy engines take no core, but bandwidth of the host's memory.) The difference to the
 *          timed form shows how much copies and Adam slow each other. A copy lasts as long as memcpy did when
 *          the session was opened, and the limits use the same rate.
 *
 * The row `resident` has no limit. It divides a real step's time with everything resident by the time of
 * the same launches, replayed in the same order on the bare device (bench_step_session.c). The excess over
 * 1 is the cost of manager, engine, pool and trainer where they have nothing to move.
 *
 * The limits above ignore the order of a step's work. bench_step_limit.c computes the least time
 * that the order allows. Where that exceeds the limit, a row has a second figure, `in order`.
 *
 * Two more figures separate the losses of the schedule from those of the machine. `null device` plays the
 * row in virtual time with the durations of its limits (bench_step_null.c) and divides by the larger of
 * limit and ordered time: the schedule's loss, bounded in every row at 25% on any machine. `against the
 * null device` divides the measured step by the played one. Two cores with three jobs lack a core, so this
 * figure is bounded only where copies and maps take little of the cores. `limits agree`: no played step
 * beats its ordered time, and Adam alone agrees with reading and writing alone (bench_memory.h).
 *
 * The parts of a step are measured alone, in wall time, before and after each round. Compute is the time
 * that the compute stream is busy in a step with everything resident and nothing to update, on all cores
 * (the median of three steps). Copies are memcpy on one thread. Adam covers all params with all threads.
 * Maps are the time to map and unmap a chunk, times the maps of a step. The limits use the bytes, maps and
 * updates that the step really made; the benchmark `policy` checks that these are few. Next to the bytes a
 * note states `params`, 2 bytes a param: the bytes that no step avoids where the host updates everything.
 *
 * The first row of a form (25%, not throttled) sets the rates of its four links. `free` is not throttled;
 * the copies of a step take half as long as the rest with `half`, as long with `even`, twice as long with
 * `slow`. A throttled copy still takes its core. Only the required budget runs `even`, and not on the faster
 * device.
 *
 * Steps run without a pause. A round has some steps to settle and some that count, timed from the first
 * one's begin to the last one's end; their mean is the step of all figures, so that a long step counts
 * with the bytes it moved. The median is printed too. The speed of machines drifts by more than the
 * differences of interest, so a required row has three rounds, its parts are measured around each, and
 * each figure is the median of the rounds' ratios. With clipping, updates wait for the norm and overlap
 * the next forward. At 25% there are rows without clipping too, whose updates run during backward. */
#include "tests/bench/bench_step_session.h"
#include "tests/support/bench.h"
#include "tests/support/bench_memory.h"
#include "tests/support/bench_plan.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { LINKS = 4, BUDGETS = 4, ROUNDS_MAX = 3, REQUIRED_BUDGET = 25, SETTLE_STEPS = 3, SETTLED_STEPS = 1 };
enum { DEVICE_SPEED = 20 };

static const char *const form_names[STEP_FORMS] = {"real", "timed", "dma"};
static const char *const link_names[LINKS] = {"free", "half", "even", "slow"};
/* How long a step's copies take, as a share of the limit without the link; 0: not throttled. */
static const double link_shares[LINKS] = {0, 0.5, 1, 2};
static const unsigned budget_percents[BUDGETS] = {REQUIRED_BUDGET, 100, 50, 15};

typedef struct step_row {
    step_form form;
    double share; /* if above 0: all compute takes so many times as long as Adam */
    unsigned budget, link;
    double link_rate; /* bytes per second each way; 0: not throttled */
    double clip;
} step_row;

/* The figures of one round of a row. */
typedef struct sample {
    step_counts counts;
    step_limit limits;
    /* the same step in virtual time with the same durations, without shared resources */
    step_null_play played;
    step_limit played_limits;
} sample;

typedef struct step_rounds {
    sample samples[ROUNDS_MAX];
    unsigned count;
} step_rounds;

/* --- the parts of a step, each alone ---
 *
 * Plain copies of chunks, maps and unmaps, and Adam over memory that no cache holds. Adam gets all segments
 * in one call, so that the limit does not depend on chunks. */

enum {
    /* slots of each tier: 8 for bf16 params and 16 for each of the three fp32 arrays (master, momentum,
     * variance) */
    SLOTS = 56,
    PARAM_SLOTS = 8,
    STATE_SLOTS = 16,
    SEGMENT_ELEMENTS = STEP_CHUNK_BYTES / 4,
    REPETITIONS = 3,
};

/* Memory as a pool uses it: a host device with slots in both tiers, all of them mapped in turn. */
typedef struct parts_memory {
    tide_device *device;
    char *places;
    tide_adamw_segment segments[STATE_SLOTS];
} parts_memory;

static char *host_slot(const parts_memory *it, uint32_t slot)
{
    return it->device->ops->slot_address(it->device, TIDE_TIER_HOST, slot);
}

static void fill_segments(parts_memory *it)
{
    for (uint32_t i = 0; i < STATE_SLOTS; i++) {
        const uint32_t state = PARAM_SLOTS + i;
        it->segments[i] = (tide_adamw_segment){
            .param = host_slot(it, i / 2) + i % 2 * (STEP_CHUNK_BYTES / 2),
            .master = (float *)(void *)host_slot(it, state),
            .momentum = (float *)(void *)host_slot(it, state + STATE_SLOTS),
            .variance = (float *)(void *)host_slot(it, state + 2 * STATE_SLOTS),
            .elements = SEGMENT_ELEMENTS,
            .decays = true,
        };
    }
}

static void alone_open(parts_memory *it)
{
    const tide_device_options options = {.device_memory_bytes = (uint64_t)SLOTS * STEP_CHUNK_BYTES,
                                         .host_memory_bytes = (uint64_t)SLOTS * STEP_CHUNK_BYTES,
                                         .chunk_bytes = STEP_CHUNK_BYTES,
                                         .threads = bench_threads()};
    void *places;
    bench_check(tide_device_host_open(&options, &it->device), "parts");
    const tide_device_ops *ops = it->device->ops;
    bench_check(ops->slots_create(it->device, TIDE_TIER_DEVICE, SLOTS), "parts");
    bench_check(ops->slots_create(it->device, TIDE_TIER_HOST, SLOTS), "parts");
    bench_check(ops->reserve(it->device, (uint64_t)SLOTS * STEP_CHUNK_BYTES, &places), "parts");
    it->places = places;
    fill_segments(it);
}

static char *place(const parts_memory *it, uint32_t slot)
{
    return it->places + (uint64_t)slot * STEP_CHUNK_BYTES;
}

static double map_all(const parts_memory *it, bool mapped)
{
    const tide_device_ops *ops = it->device->ops;
    const double begin = bench_seconds();
    for (uint32_t i = 0; i < SLOTS; i++)
        bench_check((mapped ? ops->map : ops->unmap)(it->device, i, place(it, i)), "map");
    return bench_seconds() - begin;
}

static double copy_all(const parts_memory *it, bool to_device)
{
    const double begin = bench_seconds();
    for (uint32_t i = 0; i < SLOTS; i++) {
        if (to_device)
            memcpy(place(it, i), host_slot(it, i), STEP_CHUNK_BYTES);
        else
            memcpy(host_slot(it, i), place(it, i), STEP_CHUNK_BYTES);
    }
    return bench_seconds() - begin;
}

static double adam_all(const parts_memory *it)
{
    const tide_adamw_args adamw = {.segments = it->segments,
                                   .segment_count = STATE_SLOTS,
                                   .factors =
                                       tide_adam_factors_make(1e-3F, 0.9F, 0.95F, 1e-8F, 0.1F, 1, 1.0F),
                                   .dtype = TIDE_DTYPE_BF16};
    const double begin = bench_seconds();
    bench_check(tide_kernels_cpu()->adamw(NULL, &adamw), "adam");
    return bench_seconds() - begin;
}

/* Medians of a few repetitions. No pool may work meanwhile. */
static step_parts parts_measure(const parts_memory *it)
{
    double in[REPETITIONS], out[REPETITIONS], map[REPETITIONS], adam[REPETITIONS];
    const double bytes = (double)SLOTS * STEP_CHUNK_BYTES;
    for (int i = 0; i < REPETITIONS; i++) {
        map[i] = map_all(it, true);
        in[i] = copy_all(it, true);
        out[i] = copy_all(it, false);
        map[i] += map_all(it, false);
        adam[i] = adam_all(it);
    }
    return (step_parts){.copy_seconds_per_byte = {bench_median(in, REPETITIONS) / bytes,
                                                  bench_median(out, REPETITIONS) / bytes},
                        .map_seconds = bench_median(map, REPETITIONS) / SLOTS,
                        .adam_seconds_per_param =
                            bench_median(adam, REPETITIONS) / ((double)STATE_SLOTS * SEGMENT_ELEMENTS)};
}

/* Compares Adam, from which some limits are computed, with reading alone and writing alone (bench_memory.h),
 * all over the host's slots, which lie one after the other and hold all arrays of Adam. */
static void print_parts_agreement(const parts_memory *it)
{
    bench_memory_times measured[REPETITIONS];
    double adam[REPETITIONS];
    const char *relation;
    const size_t bytes = (size_t)SLOTS * STEP_CHUNK_BYTES;
    for (int i = 0; i < REPETITIONS; i++) {
        measured[i] = bench_memory_measure(host_slot(it, 0), host_slot(it, 0), bytes, (int)bench_threads());
        adam[i] = adam_all(it);
    }
    const bench_memory_times limit = bench_memory_median(measured, REPETITIONS);
    const double value =
        bench_memory_agreement(&limit, bytes, bench_median(adam, REPETITIONS), (double)bytes, &relation);
    bench_figure("limits agree, Adam", value, "ratio", BENCH_AT_MOST, BENCH_AGREEMENT,
                 "Adam alone against reading and writing its bytes alone; above 1: %s", relation);
}

/* --- figures ---
 *
 * A row's figures: the step over its limit, which the project bounds, or, where the order of a step forbids
 * that, the step over its ordered time. Each figure is the median of its own values over the rounds; its
 * note states numbers of the same round. A ratio a little below 1 means that the machine's speed changed
 * between the step and the measurement of its parts. If it is below TRUSTED_RATIO, the note begins with a
 * warning. */

#define TRUSTED_RATIO 0.97
#define LOST_MOST     1.05
#define SHARED_MOST   1.10
#define SHARED_PART   0.05
#define BEATEN_MOST   1.01

typedef double ratio_of(const sample *of);

static double limit_ratio(const sample *of)
{
    return of->counts.seconds / of->limits.all;
}

static double ordered_ratio(const sample *of)
{
    return of->counts.seconds / of->limits.ordered;
}

/* The ordered time over the limit that ignores the order of the work. */
static double demand_ratio(const sample *of)
{
    return of->limits.ordered / of->limits.all;
}

/* The schedule's loss: the step in virtual time over its bound. */
static double lost_ratio(const sample *of)
{
    return of->played.counts.seconds / fmax(of->played_limits.all, of->played_limits.ordered);
}

static double shared_ratio(const sample *of)
{
    return of->counts.seconds / of->played.counts.seconds;
}

typedef struct median {
    const sample *sample;
    double value;
    char spread[96]; /* the begin of a note */
} median;

static median median_of(const step_rounds *rounds, ratio_of *ratio)
{
    const sample *sorted[ROUNDS_MAX] = {&rounds->samples[0]};
    const unsigned count = rounds->count;
    for (unsigned i = 0; i < count; i++) {
        unsigned place = i;
        for (; place > 0 && ratio(sorted[place - 1]) > ratio(&rounds->samples[i]); place--)
            sorted[place] = sorted[place - 1];
        sorted[place] = &rounds->samples[i];
    }
    median made = {.sample = sorted[count / 2], .value = ratio(sorted[count / 2])};
    if (count > 1)
        snprintf(made.spread, sizeof made.spread, "median of %u (%.3f to %.3f); ", count, ratio(sorted[0]),
                 ratio(sorted[count - 1]));
    return made;
}

static const char *warning(const median *of)
{
    return of->value < TRUSTED_RATIO ? "below its limit: the machine's speed changed while it was measured; "
                                     : "";
}

static bench_bound at_most_if(bool bounded)
{
    return bounded ? BENCH_AT_MOST : BENCH_NO_BOUND;
}

static double allowed(const median *of)
{
    return strncmp(of->sample->limits.by, "link", 4) == 0 ? 1.15 : 1.10;
}

/* The stalls in milliseconds, by cause, and the rest of the compute stream's idle time. */
static const char *stalls_text(const step_counts *counts)
{
    static char text[160];
    double idle = counts->seconds - counts->compute_seconds;
    int length = 0;
    for (int i = 0; i < TIDE_STALL_CAUSE_COUNT; i++) {
        length += snprintf(text + length, sizeof text - (size_t)length, " %s %.0f",
                           tide_stall_cause_name((tide_stall_cause)i), counts->stall_seconds[i] * 1e3);
        idle -= counts->stall_seconds[i];
    }
    snprintf(text + length, sizeof text - (size_t)length, ", else idle %.0f", idle * 1e3);
    return text;
}

/* If the host updates every param, each param goes out and comes in once; copies under way at the begin and
 * the end of the measured steps change this by a few MB. */
static void print_limit(const char *name, const median *of, bool bounded, double params)
{
    const step_limit *limits = &of->sample->limits;
    const step_counts *counts = &of->sample->counts;
    bench_figure(
        name, of->value, "ratio", at_most_if(bounded), allowed(of),
        "%s%sbound by %s; ms: step %.0f (median %.0f) limit %.0f: compute %.0f device updates %.0f "
        "Adam %.0f maps %.0f copies %.0f in %.0f out %.0f; stalls:%s; MB: in %.0f out %.0f (params %.0f); "
        "demand %.0f ahead %.0f evictions %.0f; overslept %.1f",
        warning(of), of->spread, limits->by, counts->seconds * 1e3, counts->median_seconds * 1e3,
        limits->all * 1e3, limits->compute * 1e3, limits->update * 1e3, limits->adam * 1e3,
        limits->maps * 1e3, limits->copies * 1e3, limits->in * 1e3, limits->out * 1e3, stalls_text(counts),
        counts->h2d_bytes * 1e-6, counts->d2h_bytes * 1e-6, 2 * params * 1e-6, counts->demand_fetches,
        counts->prefetches, counts->evictions, counts->overslept_seconds * 1e3);
}

static void print_ordered(const step_row *row, const char *row_name, const median *of, bool bounded,
                          uint64_t budget_bytes)
{
    const step_limit *limits = &of->sample->limits;
    const double seconds = of->sample->counts.seconds;
    bench_figure(
        bench_name("%s, in order", row_name), of->value, "ratio", at_most_if(bounded), allowed(of),
        "%s%sstep %.0f ms against %.0f that its order demands, %.2f times the limit above (%.2f with copies "
        "on the cores); budget %.0f MB, link %.2f GB/s",
        warning(of), of->spread, seconds * 1e3, limits->ordered * 1e3, demand_ratio(of->sample),
        seconds / fmax(limits->ordered, limits->adam + limits->maps + limits->copies),
        (double)budget_bytes * 1e-6, row->link_rate * 1e-9);
}

/* Prints the schedule's loss, and the reasons why compute is idle in virtual time. */
static void print_lost(const char *row_name, const median *of, bool bounded)
{
    const step_null_play *played = &of->sample->played;
    const step_limit *limits = &of->sample->played_limits;
    const double *idle = played->idle_seconds;
    bench_figure(bench_name("%s, null device", row_name), of->value, "ratio", at_most_if(bounded), LOST_MOST,
                 "%sms in virtual time: step %.0f, its order demands %.0f, its slowest resource (%s) %.0f; "
                 "compute %.0f, idle while an update runs %.0f, else a copy out %.0f, in %.0f, else %.0f; "
                 "MB: in %.0f out %.0f",
                 of->spread, played->counts.seconds * 1e3, limits->ordered * 1e3, limits->by,
                 limits->all * 1e3, limits->compute * 1e3, idle[STEP_IDLE_UPDATE] * 1e3,
                 idle[STEP_IDLE_OUT] * 1e3, idle[STEP_IDLE_IN] * 1e3, idle[STEP_IDLE_ELSE] * 1e3,
                 played->counts.h2d_bytes * 1e-6, played->counts.d2h_bytes * 1e-6);
}

static void print_shared(const char *row_name, const median *of, bool bounded)
{
    bench_figure(bench_name("%s, against the null device", row_name), of->value, "ratio", at_most_if(bounded),
                 SHARED_MOST, "%smeasured %.0f ms, %.0f where nothing is shared: what the machine lacks",
                 of->spread, of->sample->counts.seconds * 1e3, of->sample->played.counts.seconds * 1e3);
}

/* The largest ratio of ordered time to played step so far, and its row. */
static double most_beaten;
static char most_beaten_name[64];

/* Prints by how much the largest limit exceeds the step played in virtual time, over all rows, since a limit
 * that a step beats is wrong. */
static void print_order_agreement(void)
{
    bench_figure("limits agree, order", most_beaten, "ratio", BENCH_AT_MOST, BEATEN_MOST,
                 "what a step's order demands over the step played on the null device, at most: %s",
                 most_beaten_name);
}

/* Whether copies and maps take so little of the cores that a measured step should lose no more than the
 * played one. In the real form the device computes on the same cores as Adam. */
static bool cores_suffice(const step_row *row, const sample *of)
{
    const double taken = of->limits.copies + of->limits.maps;
    return row->form == STEP_FORM_DMA ||
           (row->form == STEP_FORM_TIMED && taken <= SHARED_PART * of->played.counts.seconds);
}

/* Prints the figures. Those that must hold on any machine get a required limit: the schedule in virtual time;
 * the measured step where the cores suffice; the real form's measured step where its limit, which counts
 * shared cores, is not below the ordered time. */
static void print_row(const step_row *row, const step_rounds *found, double params, uint64_t budget_bytes)
{
    char share[16] = "", name[64];
    if (row->share > 0)
        snprintf(share, sizeof share, " %.1f Adam", row->share);
    snprintf(name, sizeof name, "%s%s, %u%%, link %s, %s", form_names[row->form], share, row->budget,
             link_names[row->link], row->clip > 0 ? "clip" : "no clip");
    const bool required = row->budget == REQUIRED_BUDGET;
    const bool demanded = median_of(found, demand_ratio).value > 1;
    const median limited = median_of(found, limit_ratio), ordered = median_of(found, ordered_ratio);
    const median lost = median_of(found, lost_ratio), shared = median_of(found, shared_ratio);
    const bool suffice = required && cores_suffice(row, limited.sample);
    print_limit(name, &limited, !demanded && (suffice || (required && row->form == STEP_FORM_REAL)), params);
    if (demanded)
        print_ordered(row, name, &ordered, suffice, budget_bytes);
    print_lost(name, &lost, required);
    print_shared(name, &shared, suffice);
    if (1 / lost.value > most_beaten) {
        most_beaten = 1 / lost.value;
        snprintf(most_beaten_name, sizeof most_beaten_name, "%s", name);
    }
}

/* --- rows --- */

/* State shared by all rows. */
typedef struct bench {
    bool quick;
    unsigned steps; /* measured in a round */
    char data[BENCH_PATH_BYTES];
    uint32_t cores;
    /* a plan of gpt2: the rows use its sizes, not its budgets */
    tide_pool_plan plan;
    parts_memory alone;
    step_session *reference;
    step_sizes sizes;
    /* seconds of each op's kernels in the resident step */
    double op_seconds[STEP_OPS_MAX];
    /* shares of the sum of op_seconds */
    step_shares op_shares;
    /* resident step: seconds of the pool's own kernels on the compute stream */
    double own_seconds;
    /* shares of this form's compute, the pool's own kernels included */
    step_shares shares;
    /* timed and dma forms: seconds that the device sleeps for each op */
    double timed_seconds[STEP_OPS_MAX];
    /* timed and dma forms: memory bandwidth of the sleeping device, bytes per second; the pool's own kernels
     * sleep as long as their bytes take at this rate */
    double device_rate;
    /* the latest measurement of the parts */
    step_parts parts;
    /* the latest measurement of a step's compute in the session `reference`; 0: that session is closed */
    double compute_seconds;
    /* seconds per byte of copies in the open session of the dma form */
    double dma_seconds_per_byte[2];
} bench;

static void measure_parts(bench *it)
{
    enum { COMPUTE_STEPS = 3 };
    it->parts = parts_measure(&it->alone);
    if (it->reference == NULL)
        return;
    double seconds[COMPUTE_STEPS];
    const size_t count = it->quick ? 1 : COMPUTE_STEPS;
    for (size_t i = 0; i < count; i++)
        seconds[i] = step_session_compute(it->reference, NULL);
    it->compute_seconds = bench_median(seconds, count);
}

static step_parts mean_parts(const step_parts *a, const step_parts *b)
{
    return (step_parts){
        .copy_seconds_per_byte = {(a->copy_seconds_per_byte[0] + b->copy_seconds_per_byte[0]) / 2,
                                  (a->copy_seconds_per_byte[1] + b->copy_seconds_per_byte[1]) / 2},
        .adam_seconds_per_param = (a->adam_seconds_per_param + b->adam_seconds_per_param) / 2,
        .map_seconds = (a->map_seconds + b->map_seconds) / 2,
    };
}

static double rate_of(const step_counts *counts, const step_limit *free_limit, unsigned link)
{
    const double bytes = fmax(counts->h2d_bytes, counts->d2h_bytes);
    return link_shares[link] > 0 ? bytes / (link_shares[link] * free_limit->without_link) : 0;
}

static void link_seconds(const step_parts *parts, double rate, double seconds_per_byte[2])
{
    for (int direction = 0; direction < 2; direction++)
        seconds_per_byte[direction] = step_link_seconds(1, rate, parts->copy_seconds_per_byte[direction]);
}

static double sum_of(const double op_seconds[STEP_OPS_MAX])
{
    double sum = 0;
    for (int i = 0; i < STEP_OPS_MAX; i++)
        sum += op_seconds[i];
    return sum;
}

static uint64_t budget_of(const bench *it, unsigned percent)
{
    const uint64_t bytes = it->plan.model_bytes / 100 * percent;
    return bytes < it->plan.least_device_bytes ? it->plan.least_device_bytes : bytes;
}

/* Whether the row runs. */
static bool is_chosen(const bench *it, const step_row *of)
{
    const bool is_required = of->budget == REQUIRED_BUDGET, is_slow = link_shares[of->link] > 1;
    if (link_shares[of->link] == 1 && (of->share > 0 || !is_required))
        return false;
    if (it->quick)
        return is_required && (of->link == 0 || (is_slow && of->form == STEP_FORM_TIMED && of->clip == 0));
    if (of->form == STEP_FORM_DMA)
        return is_required;
    return is_required || (of->clip > 0 && of->share <= 0);
}

/* Plays the row in virtual time, with the same durations that its limits are computed from. Cores are not
 * shared there, so its limits are those of the dma form, whose copies take no core. */
static void play(const bench *it, const step_row *of, const tide_pool_plan *budgets,
                 const step_limit_inputs *inputs, sample *made)
{
    const bool real = of->form == STEP_FORM_REAL;
    const double scale = real ? inputs->compute_seconds / (sum_of(it->op_seconds) + it->own_seconds) : 1;
    double op_seconds[STEP_OPS_MAX];
    for (int i = 0; i < STEP_OPS_MAX; i++)
        op_seconds[i] = real ? it->op_seconds[i] * scale : it->timed_seconds[i];
    tide_trainer_options trainer = step_trainer_options(budgets->device_memory_bytes, it->data);
    trainer.pool.host_memory_bytes = budgets->host_memory_bytes;
    const step_null_options options = {
        .trainer = &trainer,
        .clips = inputs->clips,
        .op_seconds = op_seconds,
        .device_rate = real ? inputs->sizes.own_bytes / (it->own_seconds * scale) : it->device_rate,
        .link_seconds_per_byte = {inputs->link_seconds_per_byte[0], inputs->link_seconds_per_byte[1]},
        .adam_seconds_per_param = inputs->parts.adam_seconds_per_param,
        .map_seconds = inputs->parts.map_seconds,
        .params = inputs->sizes.params};
    made->played = step_null_played(&options);
    step_limit_inputs alone = *inputs;
    alone.form = STEP_FORM_DMA;
    made->played_limits = step_limit_of(&alone, &made->played.counts);
}

/* Measures one round of a row on an open session, and its parts before and after. */
static sample run_round(bench *it, step_session *session, const step_row *of, unsigned settle)
{
    sample made;
    const step_parts before = it->parts;
    const double compute_before = it->compute_seconds;
    made.counts = step_session_measure(session, of->clip, settle, it->steps);
    measure_parts(it);
    step_limit_inputs inputs = {.form = of->form,
                                .clips = of->clip > 0,
                                .cores = it->cores,
                                .sizes = it->sizes,
                                .shares = it->shares,
                                .parts = mean_parts(&before, &it->parts),
                                .compute_seconds = (compute_before + it->compute_seconds) / 2};
    if (of->form == STEP_FORM_DMA)
        memcpy(inputs.link_seconds_per_byte, it->dma_seconds_per_byte, sizeof inputs.link_seconds_per_byte);
    else
        link_seconds(&inputs.parts, of->link_rate, inputs.link_seconds_per_byte);
    made.limits = step_limit_of(&inputs, &made.counts);
    play(it, of, &session->plan.pool, &inputs, &made);
    return made;
}

/* Later rounds need fewer steps to settle than the first, since between two rounds the session only pauses
 * while the parts are measured. */
static step_rounds run_row(bench *it, step_session *session, const step_row *of)
{
    step_rounds made = {.count = of->budget == REQUIRED_BUDGET && !it->quick ? ROUNDS_MAX : 1};
    for (unsigned i = 0; i < made.count; i++)
        made.samples[i] = run_round(it, session, of, i == 0 ? SETTLE_STEPS : SETTLED_STEPS);
    return made;
}

/* Sets the durations of the timed and dma forms' sleeping device for all rows of a form. Ops last as
 * recorded; if share is above 0, all compute, the pool's own kernels included, takes share times as long as
 * Adam for all params. */
static void scale_device(bench *it, double share)
{
    it->device_rate = DEVICE_SPEED * 28 / it->parts.adam_seconds_per_param;
    const double own = it->sizes.own_bytes / it->device_rate;
    const double target = share * (double)it->plan.params * it->parts.adam_seconds_per_param;
    const double sum = sum_of(it->op_seconds);
    for (int i = 0; i < STEP_OPS_MAX; i++)
        it->timed_seconds[i] = it->op_seconds[i] * (share > 0 ? (target - own) / sum : 1);
    it->shares = step_shares_beside(it->op_shares, sum_of(it->timed_seconds), own, &it->sizes);
}

static step_session *open_session(bench *it, const step_row *of)
{
    step_session_options options = {.form = of->form,
                                    .device_bytes = budget_of(it, of->budget),
                                    .link_rate = of->link_rate,
                                    .data = it->data,
                                    .op_seconds = it->timed_seconds,
                                    .device_rate = it->device_rate};
    link_seconds(&it->parts, of->link_rate, it->dma_seconds_per_byte);
    memcpy(options.copy_seconds_per_byte, it->dma_seconds_per_byte, sizeof options.copy_seconds_per_byte);
    return step_session_open(&options);
}

/* Runs the rows with and without clipping, which share a session. The first pair of a form sets the rates of
 * its links. */
static void run_pair(bench *it, step_row of, double rates[LINKS])
{
    step_session *session = NULL;
    for (int clip = 1; clip >= 0; clip--) {
        of.clip = clip;
        if (!is_chosen(it, &of))
            continue;
        if (session == NULL)
            session = open_session(it, &of);
        const step_rounds found = run_row(it, session, &of);
        const sample *middle = median_of(&found, limit_ratio).sample;
        print_row(&of, &found, (double)it->plan.params, budget_of(it, of.budget));
        for (unsigned link = 0; of.budget == REQUIRED_BUDGET && of.link == 0 && clip && link < LINKS; link++)
            rates[link] = rate_of(&middle->counts, &middle->limits, link);
    }
    if (session != NULL)
        step_session_close(session);
}

static void run_form(bench *it, step_form form, double share)
{
    double rates[LINKS] = {0};
    measure_parts(it);
    if (form != STEP_FORM_REAL)
        scale_device(it, share);
    else
        it->shares = step_shares_beside(it->op_shares, sum_of(it->op_seconds), it->own_seconds, &it->sizes);
    for (unsigned budget = 0; budget < BUDGETS; budget++)
        for (unsigned link = 0; link < LINKS; link++) {
            const step_row of = {.form = form,
                                 .share = share,
                                 .budget = budget_percents[budget],
                                 .link = link,
                                 .link_rate = rates[link]};
            run_pair(it, of, rates);
        }
}

/* Sets the time of each op in a step with everything resident: the least of a few steps. */
static void record_ops(bench *it)
{
    enum { RECORDED_STEPS = 3 };
    for (int step = 0; step < RECORDED_STEPS; step++) {
        double seconds[STEP_OPS_MAX];
        const double compute = step_session_compute(it->reference, seconds);
        const double own = compute - sum_of(seconds);
        if (step == 0 || it->own_seconds > own)
            it->own_seconds = own;
        for (int i = 0; i < STEP_OPS_MAX; i++) {
            if (step == 0 || it->op_seconds[i] > seconds[i])
                it->op_seconds[i] = seconds[i];
        }
    }
}

static void run(bench *it)
{
    enum { RESIDENT_ROUNDS = 5 };
    const step_session_options resident = {.data = it->data};
    alone_open(&it->alone);
    it->reference = step_session_open(&resident);
    record_ops(it);
    it->op_shares = step_shares_of(it->reference->model, it->op_seconds);
    it->sizes = step_sizes_of(&it->reference->model->options.config, (double)it->plan.params);
    for (int clip = 1; clip >= 0; clip--)
        step_replay_print(it->reference, clip, it->quick ? 1 : RESIDENT_ROUNDS, it->steps);
    run_form(it, STEP_FORM_REAL, 0);
    step_session_close(it->reference);
    it->reference = NULL;
    for (step_form form = STEP_FORM_TIMED; form < (it->quick ? STEP_FORM_DMA : STEP_FORMS); form++) {
        run_form(it, form, 0);
        if (!it->quick)
            run_form(it, form, 1);
    }
    print_order_agreement();
    print_parts_agreement(&it->alone);
    it->alone.device->ops->close(it->alone.device);
}

int main(int argc, char **argv)
{
    static bench it;
    it.quick = bench_options(argc, argv);
    it.steps = it.quick ? 1 : 3;
    it.cores = bench_threads();
    tide_kernels_cpu_configure((int)it.cores);
    bench_data(it.data);
    tide_trainer_options options = step_trainer_options(0, NULL);
    options.pool.device = "null";
    it.plan = bench_plan(&options);
    bench_begin("step");
    run(&it);
    bench_end();
    return 0;
}
