/* step: a training step of gpt2 against its limit.
 *
 *   usage: bench_step [--quick] [--form real|timed|dma] [--budget PERCENT] [--link free|half|slow] [--share X]
 *                     [--clip 0|1] [--steps N] [--trace FILE]
 *
 * gpt2 (124M), bf16, chunks of 4 MiB, 256 tokens a step (32 without bf16 instructions), every block recomputed.
 * Device budgets are shares of the model data (14 bytes a param) and hard: the region (accumulators, workspace) is in
 * them. A share below the least that works is raised to it. --quick takes some required rows only, and fewer steps. The
 * other options are for looking into single rows: the rest is left out, and --trace writes what every stream and chunk
 * did in the measured steps (JSON Lines).
 *
 * Three forms
 *
 *   real   the trainer on the host device. Compute, Adam, copies and maps share the cores.
 *              limit = max(link in, link out, compute + Adam + (copies + maps) / cores)
 *   timed  the same ops on a device that takes time and no core (bench_step_timed.c); each lasts as long as its kernels
 *          did in the real form with everything resident. Host Adam, copies and maps are real.
 *              limit = max(compute, device updates, link in, link out, host Adam + maps / cores)
 *          Copies are not in that sum, though they take cores that Adam then lacks: a GPU's copy engines take none.
 *          `timed S Adam`: a faster device, all of whose compute takes S times what Adam takes for all params on the
 *          host alone, so that everything depends on overlap.
 *   dma    as timed, and copies take their time and no core: what a GPU's copy engines do. Nothing is moved. It says what
 *          of a timed row's excess is copies and Adam in each other's way on these cores.
 *
 * These limits know no order. A step has one: see bench_step_limit.c. Where it demands more than the limit there is a
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
 * Steps repeat without a pause; the median of those after the third counts. Machines' speed drifts by more than what is
 * looked for, so a required row is measured three times, its parts around each, and the round with the median ratio counts.
 * With clipping updates wait for the norm and
 * overlap the next forward; at 25% also without, when they run during backward.
 */
#include "tests/bench/bench_step.h"
#include "tests/bench/bench.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { SETTLE_STEPS = 3, ROUNDS_MAX = 3, REQUIRED_BUDGET = 25, BUDGETS = 4, LINKS = 3, DEVICE_SPEED = 20 };

static const unsigned budgets[BUDGETS] = {REQUIRED_BUDGET, 100, 50, 15};
static const char *const link_names[LINKS] = {"free", "half", "slow"};
static const double link_shares[LINKS] = {0, 0.5, 2}; /* of the limit without the link; 0: not throttled */

static const char *const form_names[STEP_FORMS] = {"real", "timed", "dma"};

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
    step_form form;
    double share;
    unsigned budget, link;
    double link_rate;
    double clip;
} row;

/* A row's figures, measured once. */
typedef struct sample {
    step_counts counts;
    step_limit limits;
} sample;

/* The one with the median ratio; what the others had. */
typedef struct rounds {
    sample median;
    unsigned count;
    double least, most;
} rounds;

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

static double rate_of(const step_counts *counts, const step_limit *free_limit, unsigned link)
{
    const double bytes = fmax(counts->h2d_bytes, counts->d2h_bytes);
    return link_shares[link] > 0 ? bytes / (link_shares[link] * free_limit->without_link) : 0;
}

static double ratio_of(const sample *of)
{
    return of->counts.seconds / of->limits.all;
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
    if (of->share > 0)
        snprintf(shape, sizeof shape, "%s %.1f Adam", form_names[of->form], of->share);
    else
        snprintf(shape, sizeof shape, "%s", form_names[of->form]);
    snprintf(name, 64, "%s, %u%%, link %s, %s", shape, of->budget, link_names[of->link],
             of->clip > 0 ? "clip" : "no clip");
}

static void print_parts(const char *name, bench_bound bound, double allowed, const rounds *of)
{
    const step_counts *counts = &of->median.counts;
    const step_limit *limits = &of->median.limits;
    const double *stall = counts->stall_seconds;
    double idle = counts->seconds - counts->compute_seconds;
    for (int i = 0; i < STEP_STALL_COUNT; i++)
        idle -= stall[i];
    bench_figure(
        name, ratio_of(&of->median), "ratio", bound, allowed,
        "median of %u (%.2f to %.2f); bound by %s; ms: step %.0f limit %.0f: compute %.0f device updates "
        "%.0f Adam %.0f maps %.0f copies "
        "%.0f "
        "in %.0f out %.0f; stalls: fetch %.0f update %.0f out %.0f begin %.0f, else idle %.0f; MB: in %.0f "
        "out %.0f; demand %.0f ahead %.0f evictions %.0f",
        of->count, of->least, of->most, limits->by, counts->seconds * 1e3, limits->all * 1e3,
        limits->compute * 1e3, limits->update * 1e3, limits->adam * 1e3, limits->maps * 1e3,
        limits->copies * 1e3, limits->in * 1e3, limits->out * 1e3, stall[STEP_STALL_FETCH] * 1e3,
        stall[STEP_STALL_UPDATE] * 1e3, stall[STEP_STALL_OUT] * 1e3, stall[STEP_STALL_BEGIN] * 1e3,
        idle * 1e3, counts->h2d_bytes * 1e-6, counts->d2h_bytes * 1e-6, counts->demand_fetches,
        counts->prefetches, counts->evictions);
}

/* The ratio that the project asks for; and, where the order of a step forbids it, what is left of it. */
static void print_row(const bench *it, const row *of, const rounds *found)
{
    const step_counts *counts = &found->median.counts;
    const step_limit *limits = &found->median.limits;
    char name[64], ordered_name[80];
    row_name(of, name);
    snprintf(ordered_name, sizeof ordered_name, "%s, in order", name);
    const bool required = of->budget == REQUIRED_BUDGET;
    const bool as_recorded = of->share <= 0 && of->form != STEP_FORM_DMA;
    const double allowed = strncmp(limits->by, "link", 4) == 0 ? 1.15 : 1.10;
    print_parts(name, required && as_recorded ? BENCH_AT_MOST : BENCH_NO_BOUND, allowed, found);
    if (limits->ordered <= limits->all)
        return;
    const double with_copies = fmax(limits->ordered, limits->adam + limits->maps + limits->copies);
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
    if (of->form == STEP_FORM_DMA)
        return is_required && !chosen->quick;
    const bool is_slow = link_shares[of->link] > 1;
    if (chosen->quick)
        return is_required && (of->link == 0 || (is_slow && of->form == STEP_FORM_TIMED && of->clip == 0));
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
static sample run_round(bench *it, step_session *session, const row *of)
{
    sample made;
    const step_parts before = it->parts;
    const double compute_before = it->compute_seconds;
    const bool is_required = of->budget == REQUIRED_BUDGET;
    const unsigned steps = it->chosen.steps;
    step_session_measure(session, of->clip, SETTLE_STEPS, is_required ? steps : (steps + 1) / 2,
                         &made.counts);
    step_ok(tide_pool_drain(step_session_pool(session)), "drain");
    measure_parts(it);
    const step_limit_inputs inputs = {.form = of->form,
                                      .clips = of->clip > 0,
                                      .link_rate = of->link_rate,
                                      .cores = it->cores,
                                      .params = (double)it->plan.params,
                                      .wte_params = (double)it->wte_elements,
                                      .shares = it->shares,
                                      .parts = mean_parts(&before, &it->parts),
                                      .compute_seconds = (compute_before + it->compute_seconds) / 2};
    made.limits = step_limit_of(&inputs, &made.counts);
    return made;
}

static rounds run_row(bench *it, step_session *session, const row *of)
{
    sample all[ROUNDS_MAX];
    const unsigned count = of->budget == REQUIRED_BUDGET && !it->chosen.quick ? ROUNDS_MAX : 1;
    for (unsigned i = 0; i < count; i++) {
        const sample made = run_round(it, session, of);
        unsigned place = i;
        for (; place > 0 && ratio_of(&all[place - 1]) > ratio_of(&made); place--)
            all[place] = all[place - 1];
        all[place] = made;
    }
    return (rounds){all[count / 2], count, ratio_of(&all[0]), ratio_of(&all[count - 1])};
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
    const step_session_options options = {.timed = of->form != STEP_FORM_REAL,
                                          .device_bytes = budget_of(it, of->budget),
                                          .link_rate = of->link_rate,
                                          .op_seconds = it->timed_seconds,
                                          .data = it->data,
                                          .trace = it->trace};
    step_session *session = step_session_open(&options);
    if (of->form != STEP_FORM_REAL)
        step_timed_install(step_session_pool(session), it->device_rate);
    if (of->form == STEP_FORM_DMA) {
        const double *plain = it->parts.copy_seconds_per_byte;
        const double seconds_per_byte[2] = {step_link_seconds(1, of->link_rate, plain[0]),
                                            step_link_seconds(1, of->link_rate, plain[1])};
        step_timed_install_copies(step_session_pool(session), seconds_per_byte);
    }
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
        if (!(first && i == 0) && !is_chosen(it, &wanted[i]))
            continue;
        const rounds found = run_row(it, session, &wanted[i]);
        if (is_chosen(it, &wanted[i]))
            print_row(it, &wanted[i], &found);
        for (unsigned link = 0; first && i == 0 && link < LINKS; link++)
            rates[link] = rate_of(&found.median.counts, &found.median.limits, link);
    }
    step_session_check(session);
    step_session_close(session);
}

static void run_form(bench *it, step_form form, double share)
{
    double rates[LINKS] = {0, 0, 0};
    measure_parts(it);
    if (form != STEP_FORM_REAL)
        scale_device(it, share);
    for (unsigned budget = 0; budget < BUDGETS; budget++) {
        for (unsigned link = 0; link < LINKS; link++)
            run_pair(it,
                     (row){.form = form,
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

static bool wants_form(const bench *it, step_form form)
{
    return it->chosen.form == NULL || strcmp(it->chosen.form, form_names[form]) == 0;
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
    if (wants_form(it, STEP_FORM_REAL))
        run_form(it, STEP_FORM_REAL, 0);
    step_session_close(it->reference);
    it->reference = NULL;
    for (step_form form = STEP_FORM_TIMED; form < STEP_FORMS; form++) {
        for (size_t i = 0; i < share_count && wants_form(it, form); i++) {
            if (it->chosen.share < 0 || it->chosen.share == shares[i])
                run_form(it, form, shares[i]);
        }
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

static bool is_form(const char *name)
{
    for (int i = 0; i < STEP_FORMS; i++) {
        if (strcmp(name, form_names[i]) == 0)
            return true;
    }
    return false;
}

static void parse_option(choice *chosen, const char *option, const char *value)
{
    if (strcmp(option, "--form") == 0 && is_form(value))
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
