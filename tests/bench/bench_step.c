/* step: a training step of gpt2 against its limit.
 *
 *   usage: bench_step [--quick] [--form real|timed] [--budget PERCENT] [--link free|half|slow] [--share X]
 *                     [--clip 0|1] [--steps N] [--trace FILE]
 *
 * gpt2 (124M), bf16, chunks of 4 MiB, 256 tokens a step (32 without bf16 instructions), every block recomputed.
 * Device budgets are shares of the model data (14 bytes a param) and hard: the region (accumulators, workspace) is in
 * them. A share below the least that works is raised to it. --quick takes some required rows only, and fewer steps. The
 * other options are for looking into single rows: the rest is left out, and --trace writes what every stream and chunk
 * did in the measured steps (JSON Lines).
 *
 * Two forms
 *
 *   real   the trainer on the host device. Compute, Adam, copies and maps share the cores.
 *              limit = max(link in, link out, compute + Adam + (copies + maps) / cores)
 *   timed  the same ops on a device that takes time and no core (bench_step_timed.c); each lasts as long as its kernels
 *          did in the real form with everything resident. Host Adam, copies and maps are real.
 *              limit = max(compute, device updates, link in, link out, host Adam + maps / cores)
 *          Copies are not in that sum, though they take cores that Adam then lacks: a GPU's copy engines take none.
 *          `timed S Adam`: a faster device, all of whose compute takes S times what Adam takes for all params on the
 *          host alone, so that everything depends on overlap.
 *
 * These limits know no order. A step has one: see ordered_seconds. Where it demands more than the limit there is a
 * second figure, `in order`, which is what is left to be gained; the faster device has only that one bounded.
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
    double share;                    /* -1: all */
    unsigned steps;
} choice;

/* Everything that rows share. */
typedef struct bench {
    choice chosen;
    const char *data;
    FILE *trace;
    uint32_t cores;
    tide_pool_plan plan; /* sizes; its budgets are not used */
    step_parts_rig *rig;
    step_session *reference;
    uint64_t wte_elements;
    step_shares shares;                 /* of compute */
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
    double ordered; /* no order of moves and updates can be faster */
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

/* What the order of a step demands, however well the rest overlaps.
 *
 *   clipping   every update waits for the norm, and every param is used before the head is done with its forward:
 *              between a step's last op and the next one's head lie all host updates, and the way of what they wrote to
 *              the device. The head and backward come on top.
 *   none       wte's gradient is complete after the last op and wte is used by the first: its way out, its updates and
 *              its way back (one after the other chunk by chunk, so the slowest counts) come on top of all compute. And
 *              while the head runs, nothing comes in: what forward used is there, no gradient is complete.
 */
static double ordered_seconds(const bench *it, const row *of, const step_counts *counts,
                              const step_parts *parts, const limit *limits)
{
    const double wte = (double)it->wte_elements;
    const bool all_on_host = counts->host_params >= (double)it->plan.params;
    const double params = of->clip > 0 ? counts->host_params : all_on_host ? wte : 0;
    const double adam = params * parts->adam_seconds_per_param;
    const double in = link_seconds(2 * params, of->link_rate, parts->copy_seconds_per_byte[0]);
    const double out = link_seconds(2 * params, of->link_rate, parts->copy_seconds_per_byte[1]);
    if (of->clip > 0)
        return limits->compute * (1 - it->shares.forward) + more(adam, in);
    const double all_in =
        link_seconds(2 * counts->host_params, of->link_rate, parts->copy_seconds_per_byte[0]);
    return more(limits->compute + more(adam, more(in, out)),
                all_on_host ? limits->compute * it->shares.head + all_in : 0);
}

static double rate_of(const step_counts *counts, const limit *free_limit, unsigned link)
{
    const double bytes = more(counts->h2d_bytes, counts->d2h_bytes);
    return link_shares[link] > 0 ? bytes / (link_shares[link] * free_limit->without_link) : 0;
}

/* --- figures --- */

static uint64_t budget_of(const bench *it, unsigned percent)
{
    const uint64_t bytes = it->plan.model_bytes / 100 * percent;
    return bytes < it->plan.least_device_bytes ? it->plan.least_device_bytes : bytes;
}

static void row_name(const row *of, char name[64])
{
    char shape[24];
    if (of->timed && of->share > 0)
        snprintf(shape, sizeof shape, "timed %.1f Adam", of->share);
    else
        snprintf(shape, sizeof shape, "%s", of->timed ? "timed" : "real");
    snprintf(name, 64, "%s, %u%%, link %s, %s", shape, of->budget, link_names[of->link],
             of->clip > 0 ? "clip" : "no clip");
}

static void print_parts(const char *name, double ratio, bench_bound bound, const step_counts *counts,
                        const limit *limits, double allowed)
{
    const double *stall = counts->stall_seconds;
    double idle = counts->seconds - counts->compute_seconds;
    for (int i = 0; i < STEP_STALL_COUNT; i++)
        idle -= stall[i];
    bench_figure(
        name, ratio, "ratio", bound, allowed,
        "bound by %s; ms: step %.0f limit %.0f: compute %.0f device updates %.0f Adam %.0f maps %.0f copies "
        "%.0f "
        "in %.0f out %.0f; stalls: fetch %.0f update %.0f out %.0f begin %.0f, else idle %.0f; MB: in %.0f "
        "out %.0f; demand %.0f ahead %.0f evictions %.0f",
        limits->by, counts->seconds * 1e3, limits->all * 1e3, limits->compute * 1e3, limits->update * 1e3,
        limits->adam * 1e3, limits->maps * 1e3, limits->copies * 1e3, limits->in * 1e3, limits->out * 1e3,
        stall[STEP_STALL_FETCH] * 1e3, stall[STEP_STALL_UPDATE] * 1e3, stall[STEP_STALL_OUT] * 1e3,
        stall[STEP_STALL_BEGIN] * 1e3, idle * 1e3, counts->h2d_bytes * 1e-6, counts->d2h_bytes * 1e-6,
        counts->demand_fetches, counts->prefetches, counts->evictions);
}

/* The ratio that the project asks for; and, where the order of a step forbids it, what is left of it. */
static void print_row(const bench *it, const row *of, const step_counts *counts, const limit *limits)
{
    char name[64], ordered_name[80];
    row_name(of, name);
    snprintf(ordered_name, sizeof ordered_name, "%s, in order", name);
    const bool required = of->budget == REQUIRED_BUDGET, as_recorded = of->share <= 0;
    const double allowed = strncmp(limits->by, "link", 4) == 0 ? 1.15 : 1.10;
    print_parts(name, counts->seconds / limits->all, required && as_recorded ? BENCH_AT_MOST : BENCH_NO_BOUND,
                counts, limits, allowed);
    if (limits->ordered <= limits->all)
        return;
    const double with_copies = more(limits->ordered, limits->adam + limits->maps + limits->copies);
    bench_figure(ordered_name, counts->seconds / limits->ordered, "ratio",
                 required ? BENCH_AT_MOST : BENCH_NO_BOUND, allowed,
                 "step %.0f ms against %.0f that its order demands, %.2f times the limit above (%.2f with "
                 "copies on the "
                 "cores); budget %.0f MB, link %.2f GB/s",
                 counts->seconds * 1e3, limits->ordered * 1e3, limits->ordered / limits->all,
                 counts->seconds / with_copies, (double)budget_of(it, of->budget) * 1e-6,
                 of->link_rate * 1e-9);
}

/* --- rows --- */

/* The rows of a run that chooses no budget. */
static bool is_of_budgets(const choice *chosen, const row *of)
{
    const bool is_required = of->budget == REQUIRED_BUDGET;
    if (chosen->budget != 0)
        return chosen->budget == of->budget;
    const bool is_slow = link_shares[of->link] > 1;
    if (chosen->quick)
        return is_required && (of->link == 0 || (is_slow && of->timed && of->clip == 0));
    return is_required || (of->clip > 0 && of->share <= 0);
}

static bool is_chosen(const bench *it, const row *of)
{
    const choice *chosen = &it->chosen;
    return is_of_budgets(chosen, of) &&
           (chosen->link == NULL || strcmp(chosen->link, link_names[of->link]) == 0) &&
           (chosen->clip < 0 || (chosen->clip > 0) == (of->clip > 0));
}

/* Measure one row on an open session, its parts around it. */
static limit run_row(bench *it, step_session *session, const row *of, step_counts *counts)
{
    const step_parts before = it->parts;
    const double compute_before = it->compute_seconds;
    const bool is_required = of->budget == REQUIRED_BUDGET;
    const unsigned steps = it->chosen.steps;
    step_session_measure(session, of->clip, SETTLE_STEPS, is_required ? steps : (steps + 1) / 2, counts);
    step_ok(tide_pool_drain(step_session_pool(session)), "drain");
    measure_parts(it);
    const step_parts parts = mean_parts(&before, &it->parts);
    limit limits = limit_of(of, counts, &parts, (compute_before + it->compute_seconds) / 2, it->cores);
    limits.ordered = ordered_seconds(it, of, counts, &parts, &limits);
    return limits;
}

/* A timed device, the same for all rows of a form: ops as recorded, or (share above 0) so that all compute together,
 * the pool's own kernels included, takes share x Adam for all params. */
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
        it->timed_seconds[i] = it->op_seconds[i] * (share > 0 ? (target - own) / sum : 1);
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
            print_row(it, &wanted[i], &counts, &limits);
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
    static const double shares[] = {0, 1.0};
    const size_t share_count = it->chosen.quick ? 1 : sizeof shares / sizeof shares[0];
    const step_session_options resident = {.manager_off = true, .data = it->data};
    it->rig = step_parts_open();
    it->reference = step_session_open(&resident);
    record_ops(it);
    it->shares = step_session_shares(it->reference, it->op_seconds);
    it->wte_elements = tide_param_elements(step_session_pool(it->reference), 0);
    bench_begin("step");
    if (wants_form(it, "real"))
        run_form(it, false, 0);
    step_session_close(it->reference);
    it->reference = NULL;
    for (size_t i = 0; i < share_count && wants_form(it, "timed"); i++) {
        if (it->chosen.share < 0 || it->chosen.share == shares[i])
            run_form(it, true, shares[i]);
    }
    bench_end();
    step_parts_close(it->rig);
}

/* --- the program --- */

static char data_path[32];

static void remove_data(void)
{
    (void)unlink(data_path);
}

static void write_data(void)
{
    enum { BYTES = 1 << 17 };
    char *path = data_path;
    snprintf(path, sizeof data_path, "/tmp/tide-bench-XXXXXX");
    const int file = mkstemp(path);
    char text[BYTES];
    for (uint32_t i = 0, random = 1; i < BYTES; i++, random = random * 1664525 + 1013904223)
        text[i] = (char)(' ' + (random >> 24) % 95);
    if (file < 0 || write(file, text, sizeof text) != sizeof text || close(file) != 0)
        bench_die("no file %s", path);
    (void)atexit(remove_data); /* a benchmark that dies leaves nothing behind */
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
    else if (strcmp(option, "--share") == 0 && atof(value) >= 0)
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
    choice chosen = {.clip = -1, .share = -1, .steps = 5};
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
    write_data();
    it.data = data_path;
    if (it.chosen.trace != NULL && (it.trace = fopen(it.chosen.trace, "w")) == NULL)
        bench_die("no file %s", it.chosen.trace);
    step_plan(&it.plan);
    run(&it);
    if (it.trace != NULL && fclose(it.trace) != 0)
        bench_die("%s could not be written", it.chosen.trace);
    return 0;
}
