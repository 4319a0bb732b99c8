/* step: compares a training step of gpt2 with its limit.
 *
 *     usage: bench_step [--quick] [--form resident|real|timed|dma] [--budget PERCENT]
 *                       [--link free|half|even|slow] [--share X] [--clip 0|1] [--steps N]
 *
 * The model is gpt2 (124M) in bf16, with chunks of 4 MiB, 256 tokens a step (32 without bf16 instructions)
 * and every block recomputed. Device budgets are shares of the model data (14 bytes a param) and include
 * the region (accumulators, workspace). A share below the least budget that works is raised to it. --quick
 * runs only some of the required rows, one round of one step each. The other options run single rows and
 * omit the rest.
 *
 * Three forms
 *
 *   real   the trainer on the host device. Compute, Adam, copies and maps share the cores.
 *              limit = max(link in, link out, compute + Adam + (copies + maps) / cores)
 *          Updates on the device are Adam on the same cores too, counted apart since they move nothing.
 *   timed  the same ops on a device that takes time and no core (bench_step_timed.c). Each op lasts as long
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
 * the same launches, replayed in the same order on the bare device (bench_step_replay.c). The excess over
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
 * `slow`. A throttled copy still takes its core. Other budgets and faster devices run `even` only on
 * request.
 *
 * Steps run without a pause. A round has some steps to settle and some that count, timed from the first
 * one's begin to the last one's end; their mean is the step of all figures, so that a long step counts
 * with the bytes it moved. The median is printed too. The speed of machines drifts by more than the
 * differences of interest, so a required row has three rounds, its parts are measured around each, and
 * each figure is the median of the rounds' ratios. With clipping, updates wait for the norm and overlap
 * the next forward. At 25% there are rows without clipping too, whose updates run during backward. */
#include "tests/bench/bench_step.h"
#include "tests/support/bench.h"
#include "tests/support/bench_memory.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { SETTLE_STEPS = 3, SETTLED_STEPS = 1, BUDGETS = 4, DEVICE_SPEED = 20 };
static const char resident_name[] = "resident"; /* a row of its own */
static const unsigned budget_percents[BUDGETS] = {STEP_REQUIRED_BUDGET, 100, 50, 15};
/* How long a step's copies take, as a share of the limit without the link; 0: not throttled. */
static const double link_shares[STEP_LINKS] = {0, 0.5, 1, 2};

typedef struct choice {
    bool quick;
    /* NULL: all */
    const char *form, *link;
    unsigned budget; /* 0: all */
    int clip;        /* -1: both */
    double share;    /* -1: all */
    unsigned steps;
} choice;

/* State shared by all rows. */
typedef struct bench {
    choice chosen;
    const char *data;
    uint32_t cores;
    /* a plan of gpt2: the rows use its sizes, not its budgets */
    tide_pool_plan plan;
    step_parts_fixture *fixture;
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

void step_ok(tide_status status, const char *what)
{
    if (status != TIDE_OK)
        bench_die("%s: %s: %s", what, tide_status_name(status), tide_message());
}

/* --- parts --- */

static void measure_parts(bench *it)
{
    enum { COMPUTE_STEPS = 3 };
    step_parts_measure(it->fixture, &it->parts);
    if (it->reference == NULL)
        return;
    double seconds[COMPUTE_STEPS];
    const size_t count = it->chosen.quick ? 1 : COMPUTE_STEPS;
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

/* --- limits --- */

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

/* --- rows --- */

static bool is_even(const step_row *of)
{
    return link_shares[of->link] == 1;
}

/* Whether the row runs, judged by its budget, form and link; the default run leaves out some. */
static bool is_of_budgets(const choice *chosen, const step_row *of)
{
    const bool is_required = of->budget == STEP_REQUIRED_BUDGET;
    if (chosen->budget != 0)
        return chosen->budget == of->budget;
    if (chosen->link == NULL && is_even(of) && (of->share > 0 || !is_required))
        return false;
    if (of->form == STEP_FORM_DMA)
        return is_required && !chosen->quick;
    const bool is_slow = link_shares[of->link] > 1;
    if (chosen->quick)
        return is_required && (of->link == 0 || (is_slow && of->form == STEP_FORM_TIMED && of->clip == 0));
    return is_required || (of->clip > 0 && of->share <= 0);
}

static bool is_chosen(const bench *it, const step_row *of)
{
    const choice *chosen = &it->chosen;
    return is_of_budgets(chosen, of) &&
           (chosen->link == NULL || strcmp(chosen->link, step_link_names[of->link]) == 0) &&
           (chosen->clip < 0 || (chosen->clip > 0) == (of->clip > 0));
}

/* Plays the row in virtual time, with the same durations that its limits are computed from. Cores are not
 * shared there, so its limits are those of the dma form, whose copies take no core. */
static void play(const bench *it, const step_row *of, const tide_pool_plan *budgets,
                 const step_limit_inputs *inputs, step_sample *made)
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
static step_sample run_round(bench *it, step_session *session, const step_row *of, unsigned settle)
{
    step_sample made;
    const step_parts before = it->parts;
    const double compute_before = it->compute_seconds;
    step_session_measure(session, of->clip, settle, it->chosen.steps, &made.counts);
    step_ok(tide_pool_drain(step_session_pool(session)), "drain");
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
    play(it, of, step_session_plan(session), &inputs, &made);
    return made;
}

/* Later rounds need fewer steps to settle than the first, since between two rounds the session only pauses
 * while the parts are measured. */
static step_rounds run_row(bench *it, step_session *session, const step_row *of)
{
    const bool required = of->budget == STEP_REQUIRED_BUDGET && is_chosen(it, of);
    step_rounds made = {.count = required && !it->chosen.quick ? STEP_ROUNDS_MAX : 1};
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
    const step_session_options options = {.timed = of->form != STEP_FORM_REAL,
                                          .device_bytes = budget_of(it, of->budget),
                                          .link_rate = of->link_rate,
                                          .op_seconds = it->timed_seconds,
                                          .data = it->data};
    step_session *session = step_session_open(&options);
    if (of->form != STEP_FORM_REAL)
        step_timed_install(step_session_pool(session), it->device_rate);
    if (of->form == STEP_FORM_DMA) {
        link_seconds(&it->parts, of->link_rate, it->dma_seconds_per_byte);
        step_timed_install_copies(step_session_pool(session), it->dma_seconds_per_byte);
    }
    return session;
}

/* Runs the rows with and without clipping, which share a session. */
static void run_pair(bench *it, step_row of, double rates[STEP_LINKS])
{
    const bool first = of.budget == STEP_REQUIRED_BUDGET && of.link == 0;
    step_row wanted[2] = {of, of};
    wanted[0].clip = 1;
    if (!first && !is_chosen(it, &wanted[0]) && !is_chosen(it, &wanted[1]))
        return;
    step_session *session = open_session(it, &of);
    for (int i = 0; i < 2; i++) {
        if (!(first && i == 0) && !is_chosen(it, &wanted[i]))
            continue;
        const step_rounds found = run_row(it, session, &wanted[i]);
        const step_sample *median = step_rounds_median(&found);
        if (is_chosen(it, &wanted[i]))
            step_row_print(&wanted[i], &found, (double)it->plan.params, budget_of(it, of.budget));
        for (unsigned link = 0; first && i == 0 && link < STEP_LINKS; link++)
            rates[link] = rate_of(&median->counts, &median->limits, link);
    }
    step_session_check(session);
    step_session_close(session);
}

static void run_form(bench *it, step_form form, double share)
{
    double rates[STEP_LINKS] = {0};
    measure_parts(it);
    if (form != STEP_FORM_REAL)
        scale_device(it, share);
    else
        it->shares = step_shares_beside(it->op_shares, sum_of(it->op_seconds), it->own_seconds, &it->sizes);
    for (unsigned budget = 0; budget < BUDGETS; budget++) {
        for (unsigned link = 0; link < STEP_LINKS; link++)
            run_pair(it,
                     (step_row){.form = form,
                                .share = share,
                                .budget = budget_percents[budget],
                                .link = link,
                                .link_rate = rates[link]},
                     rates);
    }
}

static bool wants_form(const bench *it, const char *form)
{
    return it->chosen.form == NULL || strcmp(it->chosen.form, form) == 0;
}

/* Measures the overhead with everything resident. */
static void run_resident(const bench *it)
{
    enum { ROUNDS = 5 };
    const choice *chosen = &it->chosen;
    if (!wants_form(it, resident_name) || chosen->budget != 0 || chosen->link != NULL || chosen->share >= 0)
        return;
    for (int clip = 1; clip >= 0; clip--) {
        if (chosen->clip < 0 || (chosen->clip > 0) == (clip > 0))
            step_replay_print(it->reference, clip, chosen->quick ? 1 : ROUNDS, chosen->steps);
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

static void print_parts_agreement(bench *it)
{
    const char *relation;
    const double value = step_parts_agreement(it->fixture, &relation);
    bench_figure("limits agree, Adam", value, "ratio", BENCH_AT_MOST, BENCH_AGREEMENT,
                 "Adam alone against reading and writing its bytes alone; above 1: %s", relation);
}

static void run(bench *it)
{
    static const double shares[] = {0, 1.0};
    const size_t share_count = it->chosen.quick ? 1 : sizeof shares / sizeof shares[0];
    const step_session_options resident = {.data = it->data};
    it->fixture = step_parts_open();
    it->reference = step_session_open(&resident);
    record_ops(it);
    const tide_decoder *model = step_session_model(it->reference);
    it->op_shares = step_shares_of(model, it->op_seconds);
    it->sizes = step_sizes_of(&model->options.config, (double)it->plan.params);
    bench_begin("step");
    run_resident(it);
    if (wants_form(it, step_form_names[STEP_FORM_REAL]))
        run_form(it, STEP_FORM_REAL, 0);
    step_session_close(it->reference);
    it->reference = NULL;
    for (step_form form = STEP_FORM_TIMED; form < STEP_FORMS; form++) {
        for (size_t i = 0; i < share_count && wants_form(it, step_form_names[form]); i++) {
            if (it->chosen.share < 0 || it->chosen.share == shares[i])
                run_form(it, form, shares[i]);
        }
    }
    step_limits_print();
    print_parts_agreement(it);
    bench_end();
    step_parts_close(it->fixture);
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
    /* removed also when the benchmark fails */
    (void)atexit(remove_data);
}

static void refuse(const char *what)
{
    fprintf(stderr, "bench_step: %s; see the top of tests/bench/bench_step.c\n", what);
    exit(2);
}

static bool is_form(const char *name)
{
    for (int i = 0; i < STEP_FORMS; i++) {
        if (strcmp(name, step_form_names[i]) == 0)
            return true;
    }
    return strcmp(name, resident_name) == 0;
}

static bool is_link(const char *name)
{
    for (int i = 0; i < STEP_LINKS; i++) {
        if (strcmp(name, step_link_names[i]) == 0)
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
    else if (strcmp(option, "--link") == 0 && is_link(value))
        chosen->link = value;
    else if (strcmp(option, "--share") == 0 && atof(value) >= 0)
        chosen->share = atof(value);
    else if (strcmp(option, "--clip") == 0)
        chosen->clip = atoi(value);
    else if (strcmp(option, "--steps") == 0 && atoi(value) > 0)
        chosen->steps = (unsigned)atoi(value);
    else
        refuse("an option it does not know, or a value out of range");
}

static choice parse(int count, char **words)
{
    choice chosen = {.clip = -1, .share = -1, .steps = 3};
    int first = 1;
    if (count > 1 && strcmp(words[1], "--quick") == 0) {
        chosen.quick = true;
        chosen.steps = 1;
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
    step_plan(&it.plan);
    run(&it);
    return 0;
}
