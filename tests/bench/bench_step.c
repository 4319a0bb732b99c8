/* step: a training step of gpt2 against its limit.
 *
 *   usage: bench_step [--quick] [--form real|timed] [--budget PERCENT] [--link free|half|slow] [--share X]
 *                     [--clip 0|1] [--steps N] [--trace FILE]
 *
 * gpt2 (124M), bf16, chunks of 4 MiB, 256 tokens a step (32 without bf16 instructions), every block recomputed.
 * Device budgets are shares of the model data (14 bytes a param) and hard: the region (accumulators, workspace) is in
 * them. A share below the least that works is raised to it. --quick takes required rows only (25%, links free and
 * slow), and fewer steps. The other options are for looking into single rows: the rest is left out, and --trace writes
 * what every stream and chunk did in the measured steps (JSON Lines).
 *
 * Two forms
 *
 *   real   the trainer on the host device. Compute, Adam, copies and maps share the cores.
 *              limit = max(link in, link out, compute + Adam + (copies + maps) / cores)
 *   timed  the same ops on a device that takes time and no core (bench_step_timed.c); each lasts as long as its kernels
 *          did in the real form with everything resident, scaled so that all compute takes `share` of the time that
 *          Adam takes for all params on the host alone. Host Adam, copies and maps are real.
 *              limit = max(compute, device updates, link in, link out, host Adam + maps / cores)
 *          Copies are not in that sum, though they take cores that Adam then lacks: a GPU's copy engines take none. The
 *          ratio with them in is in the note.
 *
 * Parts are measured alone, by the clock, before and after each row: compute as what a step with everything resident
 * keeps the compute stream busy, on all cores and with nothing to update; copies by memcpy on one thread; Adam over all
 * params, all threads; maps as map and unmap of a chunk times the maps a step made. Bytes and maps are what the step
 * did: that it did no more than it had to is the benchmark `policy`'s business.
 *
 * Three links, the same for all budgets of a form, chosen by the first row (25%, not throttled): `free` is not
 * throttled; with `half` the link takes half of what the rest does, with `slow` twice. A throttled copy still takes its
 * core.
 *
 * Steps repeat without a pause; the median of those after the third counts. With clipping updates wait for the norm and
 * overlap the next forward; at 25% also without, when they run during backward.
 */
#include "tests/bench/bench_step.h"
#include "tests/bench/bench.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { SETTLE_STEPS = 3, REQUIRED_BUDGET = 25, BUDGETS = 4, LINKS = 3, DEVICE_SPEED = 20 };

static const unsigned budgets[BUDGETS] = {REQUIRED_BUDGET, 100, 50, 15};
static const char *const link_names[LINKS] = {"free", "half", "slow"};
static const double link_shares[LINKS] = {0, 0.5, 2}; /* of the limit without the link; 0: not throttled */

typedef struct choice {
    bool quick;
    const char *form, *link, *trace; /* NULL: all; no trace */
    unsigned budget;                 /* 0: all */
    int clip;                        /* -1: both */
    double share;                    /* 0: both */
    unsigned steps;
} choice;

/* Everything that rows share. */
typedef struct bench {
    choice chosen;
    char data[32];
    FILE *trace;
    uint32_t cores;
    tide_pool_plan plan; /* sizes; its budgets are not used */
    step_parts_rig *rig;
    step_session *reference;
    double op_seconds[STEP_OPS_MAX];    /* of the resident step */
    double timed_seconds[STEP_OPS_MAX]; /* of the timed device */
    double device_rate;                 /* likewise, bytes a second */
    step_parts parts;                   /* as last measured */
    double compute_seconds;             /* likewise; 0: no reference */
} bench;

typedef struct row {
    bool timed;
    double share;
    unsigned budget, link;
    double link_rate;
    double clip;
} row;

/* Seconds that each resource needs for a step. */
typedef struct limit {
    double compute, update, in, out, adam, maps, copies;
    double without_link, all;
    const char *by;
} limit;

void step_ok(tide_status status, const char *what)
{
    if (status != TIDE_OK)
        bench_die("%s: %s: %s", what, tide_status_name(status), tide_message());
}

/* --- parts --- */

static void measure_parts(bench *it)
{
    step_parts_measure(it->rig, &it->parts);
    if (it->reference != NULL)
        it->compute_seconds = step_session_compute(it->reference, NULL);
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

/* --- limits --- */

static double more(double a, double b)
{
    return a > b ? a : b;
}

static void raise_to(limit *of, double seconds, const char *by)
{
    if (of->all >= seconds)
        return;
    of->all = seconds;
    of->by = by;
}

/* A throttled copy takes its time on the link or its memcpy's, whichever is longer. */
static double link_seconds(double bytes, double rate, double copy_seconds_per_byte)
{
    return bytes * (rate > 0 ? more(1 / rate, copy_seconds_per_byte) : copy_seconds_per_byte);
}

static limit limit_of(const row *of, const step_counts *counts, const step_parts *parts,
                      double compute_seconds, uint32_t cores)
{
    limit made = {
        .compute = of->timed ? counts->compute_seconds : compute_seconds,
        .update = of->timed ? counts->update_seconds : 0,
        .in = link_seconds(counts->h2d_bytes, of->link_rate, parts->copy_seconds_per_byte[0]),
        .out = link_seconds(counts->d2h_bytes, of->link_rate, parts->copy_seconds_per_byte[1]),
        .adam = counts->host_params * parts->adam_seconds_per_param,
        .maps = counts->maps * parts->map_seconds / cores,
        .copies = (counts->h2d_bytes * parts->copy_seconds_per_byte[0] +
                   counts->d2h_bytes * parts->copy_seconds_per_byte[1]) /
                  cores,
    };
    if (of->timed) {
        raise_to(&made, made.adam + made.maps, "Adam");
        raise_to(&made, made.compute, "compute");
        raise_to(&made, made.update, "device updates");
    } else
        raise_to(&made, made.compute + made.adam + made.copies + made.maps, "cores");
    made.without_link = made.all;
    raise_to(&made, made.in, "link in");
    raise_to(&made, made.out, "link out");
    return made;
}

static double rate_of(const step_counts *counts, const limit *free_limit, unsigned link)
{
    const double bytes = more(counts->h2d_bytes, counts->d2h_bytes);
    return link_shares[link] > 0 ? bytes / (link_shares[link] * free_limit->without_link) : 0;
}

/* --- figures --- */

static void print_row(const row *of, const step_counts *counts, const limit *limits, uint64_t budget_bytes)
{
    char name[64], shape[24] = "real";
    if (of->timed)
        snprintf(shape, sizeof shape, "timed %.1f", of->share);
    snprintf(name, sizeof name, "%s, %u%%, link %s, %s", shape, of->budget, link_names[of->link],
             of->clip > 0 ? "clip" : "no clip");
    const bool by_link = strncmp(limits->by, "link", 4) == 0;
    const double *stall = counts->stall_seconds;
    const double held = stall[0] + stall[1] + stall[2] + stall[3];
    const double idle = counts->seconds - counts->compute_seconds - held;
    const double all_on_cores = more(limits->all, limits->adam + limits->maps + limits->copies);
    bench_figure(
        name, counts->seconds / limits->all, "ratio",
        of->budget == REQUIRED_BUDGET ? BENCH_AT_MOST : BENCH_NO_BOUND, by_link ? 1.15 : 1.10,
        "bound by %s; ms: step %.0f limit %.0f = compute %.0f device updates %.0f Adam %.0f maps %.0f copies "
        "%.0f "
        "in %.0f out %.0f (with copies on the cores: %.2f); stalls: fetch %.0f update %.0f out %.0f begin "
        "%.0f, else "
        "idle %.0f; MB: in %.0f out %.0f, budget %.0f; link %.2f GB/s; demand %.0f ahead %.0f evictions %.0f",
        limits->by, counts->seconds * 1e3, limits->all * 1e3, limits->compute * 1e3, limits->update * 1e3,
        limits->adam * 1e3, limits->maps * 1e3, limits->copies * 1e3, limits->in * 1e3, limits->out * 1e3,
        counts->seconds / all_on_cores, stall[STEP_STALL_FETCH] * 1e3, stall[STEP_STALL_UPDATE] * 1e3,
        stall[STEP_STALL_OUT] * 1e3, stall[STEP_STALL_BEGIN] * 1e3, idle * 1e3, counts->h2d_bytes * 1e-6,
        counts->d2h_bytes * 1e-6, (double)budget_bytes * 1e-6, of->link_rate * 1e-9, counts->demand_fetches,
        counts->prefetches, counts->evictions);
}

/* --- rows --- */

/* The rows of a run that chooses no budget. */
static bool is_of_budgets(const choice *chosen, const row *of)
{
    const bool is_required = of->budget == REQUIRED_BUDGET;
    if (chosen->budget != 0)
        return chosen->budget == of->budget;
    if (chosen->quick)
        return is_required && link_shares[of->link] != 0.5;
    return is_required || (of->clip > 0 && (!of->timed || of->share >= 1));
}

static bool is_chosen(const bench *it, const row *of)
{
    const choice *chosen = &it->chosen;
    return is_of_budgets(chosen, of) &&
           (chosen->link == NULL || strcmp(chosen->link, link_names[of->link]) == 0) &&
           (chosen->clip < 0 || (chosen->clip > 0) == (of->clip > 0));
}

static uint64_t budget_of(const bench *it, unsigned percent)
{
    const uint64_t bytes = it->plan.model_bytes / 100 * percent;
    return bytes < it->plan.least_device_bytes ? it->plan.least_device_bytes : bytes;
}

/* Measure one row on an open session, its parts around it. */
static limit run_row(bench *it, step_session *session, const row *of, step_counts *counts)
{
    const step_parts before = it->parts;
    const double compute_before = it->compute_seconds;
    const unsigned steps = it->chosen.steps;
    step_session_measure(session, of->clip, SETTLE_STEPS,
                         of->budget == REQUIRED_BUDGET ? steps : (steps + 1) / 2, counts);
    step_ok(tide_pool_drain(step_session_pool(session)), "drain");
    measure_parts(it);
    const step_parts parts = mean_parts(&before, &it->parts);
    return limit_of(of, counts, &parts, (compute_before + it->compute_seconds) / 2, it->cores);
}

/* A timed device, the same for all rows of a form: all compute together, the pool's own kernels included, takes share x
 * Adam for all params. */
static void scale_device(bench *it, double share)
{
    enum { OWN_BYTES = 12 }; /* a param: zeros, rounding and norm of its gradient */
    it->device_rate = DEVICE_SPEED * 28 / it->parts.adam_seconds_per_param;
    const double own = (double)it->plan.params * OWN_BYTES / it->device_rate;
    const double target = share * (double)it->plan.params * it->parts.adam_seconds_per_param;
    double sum = 0;
    for (int i = 0; i < STEP_OPS_MAX; i++)
        sum += it->op_seconds[i];
    for (int i = 0; i < STEP_OPS_MAX; i++)
        it->timed_seconds[i] = it->op_seconds[i] * (target - own) / sum;
}

static step_session *open_session(const bench *it, const row *of)
{
    const step_session_options options = {.timed = of->timed,
                                          .device_bytes = budget_of(it, of->budget),
                                          .link_rate = of->link_rate,
                                          .op_seconds = it->timed_seconds,
                                          .data = it->data,
                                          .trace = it->trace};
    step_session *session = step_session_open(&options);
    if (of->timed)
        step_timed_install(step_session_pool(session), it->device_rate);
    return session;
}

/* Rows that differ in clipping share a session. */
static void run_pair(bench *it, row of, double rates[LINKS])
{
    const bool first = of.budget == REQUIRED_BUDGET && of.link == 0;
    row wanted[2] = {of, of};
    wanted[0].clip = 1;
    if (!first && !is_chosen(it, &wanted[0]) && !is_chosen(it, &wanted[1]))
        return;
    step_session *session = open_session(it, &of);
    for (int i = 0; i < 2; i++) {
        step_counts counts;
        if (!(first && i == 0) && !is_chosen(it, &wanted[i]))
            continue;
        const limit limits = run_row(it, session, &wanted[i], &counts);
        if (is_chosen(it, &wanted[i]))
            print_row(&wanted[i], &counts, &limits, step_session_plan(session)->device_memory_bytes);
        for (unsigned link = 0; first && i == 0 && link < LINKS; link++)
            rates[link] = rate_of(&counts, &limits, link);
    }
    step_session_check(session);
    step_session_close(session);
}

static void run_form(bench *it, bool timed, double share)
{
    double rates[LINKS] = {0, 0, 0};
    measure_parts(it);
    if (timed)
        scale_device(it, share);
    for (unsigned budget = 0; budget < BUDGETS; budget++) {
        for (unsigned link = 0; link < LINKS; link++)
            run_pair(it,
                     (row){.timed = timed,
                           .share = share,
                           .budget = budgets[budget],
                           .link = link,
                           .link_rate = rates[link]},
                     rates);
    }
}

/* How long each op takes when nothing disturbs it: the least of a few steps. */
static void record_ops(bench *it)
{
    enum { RECORDED_STEPS = 3 };
    for (int step = 0; step < RECORDED_STEPS; step++) {
        double seconds[STEP_OPS_MAX];
        (void)step_session_compute(it->reference, seconds);
        for (int i = 0; i < STEP_OPS_MAX; i++) {
            if (step == 0 || it->op_seconds[i] > seconds[i])
                it->op_seconds[i] = seconds[i];
        }
    }
}

static bool wants_form(const bench *it, const char *form)
{
    return it->chosen.form == NULL || strcmp(it->chosen.form, form) == 0;
}

static void run(bench *it)
{
    static const double shares[] = {1.0, 0.5};
    const size_t share_count = it->chosen.quick ? 1 : 2;
    const step_session_options resident = {.manager_off = true, .data = it->data};
    it->rig = step_parts_open();
    it->reference = step_session_open(&resident);
    record_ops(it);
    bench_begin("step");
    if (wants_form(it, "real"))
        run_form(it, false, 0);
    step_session_close(it->reference);
    it->reference = NULL;
    for (size_t i = 0; i < share_count && wants_form(it, "timed"); i++) {
        if (it->chosen.share <= 0 || it->chosen.share == shares[i])
            run_form(it, true, shares[i]);
    }
    bench_end();
    step_parts_close(it->rig);
}

/* --- the program --- */

static void write_data(char path[32])
{
    enum { BYTES = 1 << 17 };
    snprintf(path, 32, "/tmp/tide-bench-XXXXXX");
    const int file = mkstemp(path);
    char text[BYTES];
    for (uint32_t i = 0, random = 1; i < BYTES; i++, random = random * 1664525 + 1013904223)
        text[i] = (char)(' ' + (random >> 24) % 95);
    if (file < 0 || write(file, text, sizeof text) != sizeof text || close(file) != 0)
        bench_die("no file %s", path);
}

static void refuse(const char *what)
{
    fprintf(stderr, "bench_step: %s; see the top of tests/bench/bench_step.c\n", what);
    exit(2);
}

static void parse_option(choice *chosen, const char *option, const char *value)
{
    if (strcmp(option, "--form") == 0 && (strcmp(value, "real") == 0 || strcmp(value, "timed") == 0))
        chosen->form = value;
    else if (strcmp(option, "--budget") == 0 && atoi(value) > 0)
        chosen->budget = (unsigned)atoi(value);
    else if (strcmp(option, "--link") == 0)
        chosen->link = value;
    else if (strcmp(option, "--share") == 0 && atof(value) > 0)
        chosen->share = atof(value);
    else if (strcmp(option, "--clip") == 0)
        chosen->clip = atoi(value);
    else if (strcmp(option, "--steps") == 0 && atoi(value) > 0)
        chosen->steps = (unsigned)atoi(value);
    else if (strcmp(option, "--trace") == 0)
        chosen->trace = value;
    else
        refuse("an option it does not know, or a value out of range");
}

static choice parse(int count, char **words)
{
    choice chosen = {.clip = -1, .steps = 5};
    int first = 1;
    if (count > 1 && strcmp(words[1], "--quick") == 0) {
        chosen.quick = true;
        chosen.steps = 3;
        first = 2;
    }
    for (int i = first; i < count; i += 2) {
        if (i + 1 == count)
            refuse("an unknown option, or one without its value");
        parse_option(&chosen, words[i], words[i + 1]);
    }
    return chosen;
}

int main(int count, char **words)
{
    static bench it;
    it.chosen = parse(count, words);
    it.cores = bench_threads();
    tide_kernels_cpu_configure((int)it.cores);
    write_data(it.data);
    if (it.chosen.trace != NULL && (it.trace = fopen(it.chosen.trace, "w")) == NULL)
        bench_die("no file %s", it.chosen.trace);
    step_plan(&it.plan);
    run(&it);
    if (it.trace != NULL && fclose(it.trace) != 0)
        bench_die("%s could not be written", it.chosen.trace);
    (void)unlink(it.data);
    return 0;
}
