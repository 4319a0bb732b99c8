/* Prints the figures of a row: the step over its limit, which the project bounds, or, where the order of a
 * step forbids that, the step over its ordered time. Each figure is the median of its own values over the
 * rounds; its note states numbers of the same round.
 *
 * A ratio a little below 1 means that the machine's speed changed between the step and the measurement of
 * its parts. If it is below TRUSTED_RATIO, the note begins with a warning. */
#include "tests/bench/bench_step.h"
#include "tests/support/bench.h"

#include <math.h>
#include <stdarg.h>
#include <string.h>

#define TRUSTED_RATIO 0.97
#define LOST_MOST     1.05
#define SHARED_MOST   1.10
#define SHARED_PART   0.05
#define BEATEN_MOST   1.01

const char *const step_form_names[STEP_FORMS] = {"real", "timed", "dma"};
const char *const step_link_names[STEP_LINKS] = {"free", "half", "even", "slow"};

/* --- the median of the rounds --- */

typedef double ratio_of(const step_sample *of);

static double limit_ratio(const step_sample *of)
{
    return of->counts.seconds / of->limits.all;
}

static double ordered_ratio(const step_sample *of)
{
    return of->counts.seconds / of->limits.ordered;
}

/* The ordered time over the limit that ignores the order of the work. */
static double demand_ratio(const step_sample *of)
{
    return of->limits.ordered / of->limits.all;
}

typedef struct median {
    const step_sample *sample;
    double value, least, most;
    unsigned count;
} median;

static median median_of(const step_rounds *rounds, ratio_of *ratio)
{
    const step_sample *sorted[STEP_ROUNDS_MAX] = {&rounds->samples[0]};
    const unsigned count = rounds->count;
    for (unsigned i = 0; i < count; i++) {
        unsigned place = i;
        for (; place > 0 && ratio(sorted[place - 1]) > ratio(&rounds->samples[i]); place--)
            sorted[place] = sorted[place - 1];
        sorted[place] = &rounds->samples[i];
    }
    const step_sample *middle = sorted[count / 2];
    return (median){middle, ratio(middle), ratio(sorted[0]), ratio(sorted[count - 1]), count};
}

const step_sample *step_rounds_median(const step_rounds *rounds)
{
    return median_of(rounds, limit_ratio).sample;
}

/* --- notes --- */

/* Text of a figure; bench_figure() prints no more. */
typedef struct note {
    char text[512];
    size_t length;
} note;

static void add(note *to, const char *format, ...) __attribute__((format(printf, 2, 3)));

static void add(note *to, const char *format, ...)
{
    const size_t capacity = sizeof to->text - to->length;
    va_list arguments;
    va_start(arguments, format);
    const int length = vsnprintf(to->text + to->length, capacity, format, arguments);
    va_end(arguments);
    if (length < 0 || (size_t)length >= capacity)
        bench_die("a note is longer than %zu bytes", sizeof to->text);
    to->length += (size_t)length;
}

static void add_rounds(note *to, const median *of)
{
    if (of->value < TRUSTED_RATIO)
        add(to, "below its limit: the machine's speed changed while it was measured; ");
    if (of->count > 1)
        add(to, "median of %u (%.2f to %.2f); ", of->count, of->least, of->most);
}

static void add_limits(note *to, const step_sample *of)
{
    const step_limit *limits = &of->limits;
    add(to,
        "bound by %s; ms: step %.0f (median %.0f) limit %.0f: compute %.0f device updates %.0f Adam %.0f ",
        limits->by, of->counts.seconds * 1e3, of->counts.median_seconds * 1e3, limits->all * 1e3,
        limits->compute * 1e3, limits->update * 1e3, limits->adam * 1e3);
    add(to, "maps %.0f copies %.0f in %.0f out %.0f; ", limits->maps * 1e3, limits->copies * 1e3,
        limits->in * 1e3, limits->out * 1e3);
}

static void add_stalls(note *to, const step_counts *counts)
{
    double idle = counts->seconds - counts->compute_seconds;
    add(to, "stalls:");
    for (int i = 0; i < TIDE_STALL_CAUSE_COUNT; i++) {
        add(to, " %s %.0f", tide_stall_cause_name((tide_stall_cause)i), counts->stall_seconds[i] * 1e3);
        idle -= counts->stall_seconds[i];
    }
    add(to, ", else idle %.0f; ", idle * 1e3);
}

/* Adds the bytes moved. If the host updates every param, each param goes out and comes in once; copies
 * under way at the begin and the end of the measured steps change this by a few MB. */
static void add_moves(note *to, const step_counts *counts, double params)
{
    add(to, "MB: in %.0f out %.0f (params %.0f); demand %.0f ahead %.0f evictions %.0f",
        counts->h2d_bytes * 1e-6, counts->d2h_bytes * 1e-6, 2 * params * 1e-6, counts->demand_fetches,
        counts->prefetches, counts->evictions);
}

/* --- figures --- */

static void row_name(const step_row *of, char name[64])
{
    char shape[24];
    if (of->share > 0)
        snprintf(shape, sizeof shape, "%s %.1f Adam", step_form_names[of->form], of->share);
    else
        snprintf(shape, sizeof shape, "%s", step_form_names[of->form]);
    snprintf(name, 64, "%s, %u%%, link %s, %s", shape, of->budget, step_link_names[of->link],
             of->clip > 0 ? "clip" : "no clip");
}

static void print_figure(const char *name, const median *of, bool bounded, const note *text)
{
    const double allowed = strncmp(of->sample->limits.by, "link", 4) == 0 ? 1.15 : 1.10;
    bench_figure(name, of->value, "ratio", bounded ? BENCH_AT_MOST : BENCH_NO_BOUND, allowed, "%s",
                 text->text);
}

static void print_limit(const step_row *row, const char *name, const median *of, bool bounded, double params)
{
    note text = {.length = 0};
    add_rounds(&text, of);
    add_limits(&text, of->sample);
    add_stalls(&text, &of->sample->counts);
    add_moves(&text, &of->sample->counts, params);
    if (row->form != STEP_FORM_REAL)
        add(&text, "; overslept %.1f", of->sample->counts.overslept_seconds * 1e3);
    print_figure(name, of, bounded, &text);
}

static void print_ordered(const step_row *row, const char *name, const median *of, bool bounded,
                          uint64_t budget_bytes)
{
    const step_limit *limits = &of->sample->limits;
    const double seconds = of->sample->counts.seconds;
    note text = {.length = 0};
    add_rounds(&text, of);
    add(&text, "step %.0f ms against %.0f that its order demands, %.2f times the limit above", seconds * 1e3,
        limits->ordered * 1e3, demand_ratio(of->sample));
    if (row->form != STEP_FORM_DMA)
        add(&text, " (%.2f with copies on the cores)",
            seconds / fmax(limits->ordered, limits->adam + limits->maps + limits->copies));
    add(&text, "; budget %.0f MB, link %.2f GB/s", (double)budget_bytes * 1e-6, row->link_rate * 1e-9);
    print_figure(name, of, bounded, &text);
}

/* --- in virtual time --- */

static double lost_ratio(const step_sample *of)
{
    return of->played.counts.seconds / fmax(of->played_limits.all, of->played_limits.ordered);
}

static double shared_ratio(const step_sample *of)
{
    return of->counts.seconds / of->played.counts.seconds;
}

static const char *largest_idle(const double idle[STEP_IDLE_COUNT])
{
    static const char *const names[STEP_IDLE_COUNT] = {"an update runs", "a copy out is under way",
                                                       "a copy in is under way", "nothing else is done"};
    int largest = 0;
    for (int i = 1; i < STEP_IDLE_COUNT; i++)
        largest = idle[i] > idle[largest] ? i : largest;
    return names[largest];
}

/* Prints the schedule's loss, that is the step in virtual time over its bound, and the reasons why compute
 * is idle there. */
static void print_lost(const char *row_name_of, const step_rounds *found, bool bounded)
{
    const median lost = median_of(found, lost_ratio);
    const step_null_play *played = &lost.sample->played;
    const step_limit *limits = &lost.sample->played_limits;
    const double *idle = played->idle_seconds;
    char name[96];
    note text = {.length = 0};
    snprintf(name, sizeof name, "%s, null device", row_name_of);
    if (lost.count > 1)
        add(&text, "median of %u (%.3f to %.3f); ", lost.count, lost.least, lost.most);
    add(&text, "ms in virtual time: step %.0f, its order demands %.0f, its slowest resource (%s) %.0f; ",
        played->counts.seconds * 1e3, limits->ordered * 1e3, limits->by, limits->all * 1e3);
    add(&text, "compute %.0f, idle while an update runs %.0f, else a copy out %.0f, in %.0f, else %.0f; ",
        limits->compute * 1e3, idle[STEP_IDLE_UPDATE] * 1e3, idle[STEP_IDLE_OUT] * 1e3,
        idle[STEP_IDLE_IN] * 1e3, idle[STEP_IDLE_ELSE] * 1e3);
    if (lost.value > LOST_MOST)
        add(&text, "it loses %.0f, and compute stands idle most while %s; ",
            (played->counts.seconds - fmax(limits->all, limits->ordered)) * 1e3, largest_idle(idle));
    add(&text, "MB: in %.0f out %.0f", played->counts.h2d_bytes * 1e-6, played->counts.d2h_bytes * 1e-6);
    bench_figure(name, lost.value, "ratio", bounded ? BENCH_AT_MOST : BENCH_NO_BOUND, LOST_MOST, "%s",
                 text.text);
}

static void print_shared(const char *row_name_of, const step_rounds *found, bool bounded)
{
    const median shared = median_of(found, shared_ratio);
    char name[96];
    note text = {.length = 0};
    snprintf(name, sizeof name, "%s, against the null device", row_name_of);
    if (shared.count > 1)
        add(&text, "median of %u (%.2f to %.2f); ", shared.count, shared.least, shared.most);
    add(&text, "measured %.0f ms, %.0f where nothing is shared: what the machine lacks",
        shared.sample->counts.seconds * 1e3, shared.sample->played.counts.seconds * 1e3);
    bench_figure(name, shared.value, "ratio", bounded ? BENCH_AT_MOST : BENCH_NO_BOUND, SHARED_MOST, "%s",
                 text.text);
}

/* --- rows --- */

/* the largest ratio of ordered time to played step so far */
static double most_beaten;
static char most_beaten_name[64];

static void remember_beaten(const char *name, const step_rounds *found)
{
    const double beaten = 1 / median_of(found, lost_ratio).value;
    if (beaten <= most_beaten)
        return;
    most_beaten = beaten;
    snprintf(most_beaten_name, sizeof most_beaten_name, "%s", name);
}

void step_limits_print(void)
{
    if (most_beaten > 0)
        bench_figure("limits agree, order", most_beaten, "ratio", BENCH_AT_MOST, BEATEN_MOST,
                     "what a step's order demands over the step played on the null device, at most: %s",
                     most_beaten_name);
}

/* Whether copies and maps take so little of the cores that a measured step should lose no more than the
 * played one. In the real form the device computes on the same cores as Adam. */
static bool cores_suffice(const step_row *row, const step_sample *of)
{
    const double taken = of->limits.copies + of->limits.maps;
    return row->form == STEP_FORM_DMA ||
           (row->form == STEP_FORM_TIMED && taken <= SHARED_PART * of->played.counts.seconds);
}

/* Prints the figures. Those that must hold on any machine get a required limit: the schedule in virtual time;
 * the measured step where the cores suffice; the real form's measured step where its limit, which counts
 * shared cores, is not below the ordered time. */
void step_row_print(const step_row *row, const step_rounds *found, double params, uint64_t budget_bytes)
{
    char name[64], ordered_name[80];
    row_name(row, name);
    snprintf(ordered_name, sizeof ordered_name, "%s, in order", name);
    const bool required = row->budget == STEP_REQUIRED_BUDGET;
    const bool demanded = median_of(found, demand_ratio).value > 1;
    const median limited = median_of(found, limit_ratio), ordered = median_of(found, ordered_ratio);
    const bool suffice = required && cores_suffice(row, limited.sample);
    print_limit(row, name, &limited, !demanded && (suffice || (required && row->form == STEP_FORM_REAL)),
                params);
    if (demanded)
        print_ordered(row, ordered_name, &ordered, suffice, budget_bytes);
    print_lost(name, found, required);
    print_shared(name, found, suffice);
    remember_beaten(name, found);
}
