/* tidepool trace diff: how a second run (B) differs from a first one (A), on one screen. */
#include "tools/trace/trace_diff.h"
#include "src/trace/trace_fields.h"
#include "tools/command.h"
#include "tools/trace/trace.h"
#include "tools/trace/trace_compare.h"
#include "tools/trace/trace_files.h"
#include "tools/trace/trace_text.h"
#include "tools/units.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { EXIT_SLOWER = 3 };
enum { CHUNKS_SHOWN = 5, STALLS_SHOWN = 8, OPS_SHOWN = 3, STEPS_SHOWN = 8 };
enum { STALLED_COLUMN = 61, TEXT_COLUMN = 70 }; /* where texts begin, to the right of the figures */

/* A difference of less than this part of A's median step is not worth a line. */
static const double telling_part = 1e-3;

/* Smaller values are printed as none. */
static const double seconds_least = 5e-10, bytes_least = 0.5;

static void line_print(tide_text_line *line)
{
    tide_text_print(line, TIDE_TEXT_COLUMNS, stdout);
}

/* ---- time ---- */

static double step_of(const tide_step_account *account, const void *of)
{
    (void)of;
    return account->line->step_seconds;
}

static double compute_of(const tide_step_account *account, const void *of)
{
    (void)of;
    return account->line->compute_seconds;
}

static double stall_of(const tide_step_account *account, const void *of)
{
    return account->line->stall_seconds_by[*(const int *)of];
}

static double rest_of(const tide_step_account *account, const void *of)
{
    (void)of;
    return account->rest_seconds;
}

static double updates_of(const tide_step_account *account, const void *of)
{
    return *(const int *)of == TIDE_TIER_HOST ? account->line->adam_host_seconds
                                              : account->line->adam_device_seconds;
}

/* "12.3 us", "-" for none. Returns `text`. */
static const char *seconds_or_none(double seconds, char text[TIDE_TEXT_NAME_BYTES])
{
    if (seconds >= seconds_least)
        return tide_seconds_format(seconds, text);
    snprintf(text, TIDE_TEXT_NAME_BYTES, "-");
    return text;
}

/* Add the change as "+84.8%", or as "x 12.3" if `second` is at least ten times `first`; nothing if `first` is
 * less than `least` or the change rounds to 0.0%. */
static void change_add(tide_text_line *line, double first, double second, double least)
{
    if (first < least || fabs(second - first) < 5e-4 * first)
        return;
    if (second >= 10 * first)
        tide_text_add(line, "  x %.*f", second < 100 * first ? 1 : 0, second / first);
    else
        tide_text_add(line, " %+7.1f%%", 100 * (second - first) / first);
}

/* Add both sides' seconds and their difference: "12.3 us  13.8 us  +1.50 us". */
static void seconds_add(tide_text_line *line, double first, double second)
{
    char text[TIDE_TEXT_NAME_BYTES], apart[TIDE_TEXT_NAME_BYTES + 1];
    tide_text_add(line, " %11s", seconds_or_none(first, text));
    tide_text_add(line, " %11s", seconds_or_none(second, text));
    if (fabs(second - first) < seconds_least)
        snprintf(apart, sizeof apart, "=");
    else
        snprintf(apart, sizeof apart, "%s%s", second < first ? "-" : "+",
                 tide_seconds_format(fabs(second - first), text));
    tide_text_add(line, " %11s", apart);
}

static void seconds_print(const tide_comparison *c, const char *name, tide_step_figure figure, const void *of)
{
    tide_text_line line = {.length = 0};
    const double first = tide_comparison_median(c, 0, figure, of),
                 second = tide_comparison_median(c, 1, figure, of);
    if (first <= 0 && second <= 0)
        return;
    tide_text_add(&line, "  %-20s", name);
    seconds_add(&line, first, second);
    change_add(&line, first, second, seconds_least);
    line_print(&line);
}

static void time_print(const tide_comparison *c)
{
    char name[40];
    printf("%-22s %11s %11s %11s\n", "a step's median", "A", "B", "B - A");
    seconds_print(c, "step", step_of, NULL);
    seconds_print(c, "compute", compute_of, NULL);
    for (int cause = 0; cause < TIDE_STALL_CAUSE_COUNT; cause++) {
        snprintf(name, sizeof name, "stall: %s", tide_stall_cause_name((tide_stall_cause)cause));
        seconds_print(c, name, stall_of, &cause);
    }
    seconds_print(c, "neither", rest_of, NULL);
    const int host = TIDE_TIER_HOST, device = TIDE_TIER_DEVICE;
    seconds_print(c, "updates on the host", updates_of, &host);
    seconds_print(c, "updates on the device", updates_of, &device);
}

/* ---- moves ---- */

typedef struct share {
    tide_tier to;
    int part; /* a space; TIDE_SPACE_COUNT plus a reason; -1: all bytes */
} share;

static double bytes_of(const tide_step_account *account, const void *of)
{
    const share *which = of;
    if (which->part < 0)
        return (double)account->bytes[which->to];
    if (which->part < TIDE_SPACE_COUNT)
        return (double)account->bytes_by_space[which->to][which->part];
    return (double)account->bytes_by_reason[which->to][which->part - TIDE_SPACE_COUNT];
}

static void size_apart_add(tide_text_line *line, const char *format, double apart)
{
    char text[TIDE_UNITS_TEXT_BYTES], whole[TIDE_UNITS_TEXT_BYTES + 1];
    snprintf(whole, sizeof whole, "%s%s", apart < 0 ? "-" : "+", tide_bytes_format(fabs(apart), text));
    tide_text_add(line, format, fabs(apart) < bytes_least ? "=" : whole);
}

/* Add how the bytes copied to the tier differ by space and by reason: "params -16 KiB; prefetch -16 KiB". */
static void parts_add(tide_text_line *line, const tide_comparison *c, tide_tier to)
{
    static const char *const spaces[TIDE_SPACE_COUNT] = {"params", "state", "activations"};
    const char *between = "    ";
    for (int part = 0; part < TIDE_SPACE_COUNT + TIDE_REASON_COUNT; part++) {
        const share which = {to, part};
        const double apart =
            tide_comparison_mean(c, 1, bytes_of, &which) - tide_comparison_mean(c, 0, bytes_of, &which);
        if (part == TIDE_SPACE_COUNT && between[0] == ',')
            between = "; ";
        if (fabs(apart) < bytes_least)
            continue;
        tide_text_add(line, "%s%s", between,
                      part < TIDE_SPACE_COUNT ? spaces[part]
                                              : tide_trace_reason_word((uint32_t)(part - TIDE_SPACE_COUNT)));
        size_apart_add(line, " %s", apart);
        between = ", ";
    }
}

static void way_print(const tide_comparison *c, tide_tier to, const char *name)
{
    char text[TIDE_UNITS_TEXT_BYTES];
    tide_text_line line = {.length = 0};
    const share all = {to, -1};
    const double first = tide_comparison_mean(c, 0, bytes_of, &all),
                 second = tide_comparison_mean(c, 1, bytes_of, &all);
    tide_text_add(&line, "  %-20s %11s", name, tide_bytes_format(first, text));
    tide_text_add(&line, " %11s", tide_bytes_format(second, text));
    size_apart_add(&line, " %11s", second - first);
    change_add(&line, first, second, bytes_least);
    line_print(&line);
    parts_add(&line, c, to);
    if (line.length > 0)
        line_print(&line);
}

static double there_of(const tide_step_account *account, const void *of)
{
    (void)of;
    return account->asked > 0 ? 100 * (1 - (double)account->lacked / (double)account->asked) : 100;
}

static void there_print(const tide_comparison *c)
{
    tide_text_line line = {.length = 0};
    const double first = tide_comparison_median(c, 0, there_of, NULL),
                 second = tide_comparison_median(c, 1, there_of, NULL);
    tide_text_add(&line, "  %-20s %10.1f%% %10.1f%%", "chunks there in time", first, second);
    if (fabs(second - first) < 0.05)
        tide_text_add(&line, " %11s", "=");
    else
        tide_text_add(&line, " %+10.1f%%", second - first);
    line_print(&line);
}

static void chunk_print(const tide_comparison *c, uint32_t chunk)
{
    char text[TIDE_TEXT_NAME_BYTES], bytes[TIDE_UNITS_TEXT_BYTES];
    tide_text_line line = {.length = 0};
    const double count = c->pair_count;
    const double first = (double)c->moved_bytes[0][chunk] / count,
                 second = (double)c->moved_bytes[1][chunk] / count;
    tide_text_add(&line, "  %5" PRIu32 " %4.1fx %4.1fx    %11s", chunk, (double)c->moves[0][chunk] / count,
                  (double)c->moves[1][chunk] / count, tide_bytes_format(first, bytes));
    tide_text_add(&line, " %11s", tide_bytes_format(second, bytes));
    size_apart_add(&line, " %11s", second - first);
    tide_text_add(&line, "  %s", tide_chunk_content(c->steps[0].model, chunk, 32, text));
    line_print(&line);
}

static void moves_print(const tide_comparison *c)
{
    uint32_t chunks[CHUNKS_SHOWN];
    printf("%-22s %11s %11s %11s\n", "copied a step", "A", "B", "B - A");
    way_print(c, TIDE_TIER_DEVICE, "to the device");
    way_print(c, TIDE_TIER_HOST, "to the host");
    there_print(c);
    if (!c->same_chunks) {
        puts("chunks are not the same in both: not compared one by one");
        return;
    }
    const uint32_t count = tide_comparison_chunks(c, chunks, CHUNKS_SHOWN);
    puts(count > 0 ? "chunks whose copies differ most: number, copies and bytes a step, what lies in it"
                   : "every chunk is copied as often in both");
    for (uint32_t i = 0; i < count; i++)
        chunk_print(c, chunks[i]);
}

/* ---- stalls and ops ---- */

typedef enum stall_change {
    STALL_APPEARED = 0,
    STALL_GONE,
    STALL_LONGER,
    STALL_SHORTER,
    STALL_CHANGES,
} stall_change;

static stall_change change_of(const tide_compared_stall *stall)
{
    if (stall->seconds[0] <= 0)
        return STALL_APPEARED;
    if (stall->seconds[1] <= 0)
        return STALL_GONE;
    return stall->seconds[1] > stall->seconds[0] ? STALL_LONGER : STALL_SHORTER;
}

static const char *op_name(const tide_comparison *c, const uint32_t op[TIDE_SIDES])
{
    for (int side = 0; side < TIDE_SIDES; side++)
        if (op[side] != TIDE_TRACE_NONE)
            return c->steps[side].model->ops[op[side]].name;
    return "between ops";
}

/* Add the op, the slice and the chunk of the stall. The chunk's content takes at most `params` letters; 0: it
 * is not shown. */
static void stalled_add(tide_text_line *line, const tide_comparison *c, const tide_compared_stall *stall,
                        size_t op_letters, size_t params)
{
    char text[TIDE_TEXT_NAME_BYTES];
    /* the side where the stalls took longer; its longest stall is shown */
    const int side = stall->seconds[1] > stall->seconds[0];
    const tide_trace_event *longest = stall->longest[side];
    tide_text_add(line, "%s", tide_text_shorten(op_name(c, stall->op), op_letters, text));
    if (stall->slice != TIDE_TRACE_NONE)
        tide_text_add(line, "/%" PRIu32, stall->slice);
    if (longest == NULL || longest->chunk == TIDE_TRACE_NONE)
        return;
    tide_text_add(line, ": chunk %" PRIu32, longest->chunk);
    if (params > 0)
        tide_text_add(line, " (%s)", tide_chunk_content(c->steps[side].model, longest->chunk, params, text));
}

static void stall_print(const tide_comparison *c, const tide_compared_stall *stall)
{
    static const struct {
        size_t op, params;
    } letters[] = {{24, 20}, {24, 12}, {24, 8}, {24, 0}, {16, 0}, {8, 0}};
    static const char *const names[STALL_CHANGES] = {"appeared", "gone", "longer", "shorter"};
    tide_text_line begun = {.length = 0}, line;
    tide_text_add(&begun, "  %-10s %-9s", names[change_of(stall)], stall->cause);
    seconds_add(&begun, stall->seconds[0], stall->seconds[1]);
    tide_text_pad(&begun, STALLED_COLUMN);
    for (size_t i = 0; i < sizeof letters / sizeof letters[0]; i++) {
        line = begun;
        stalled_add(&line, c, stall, letters[i].op, letters[i].params);
        if (tide_text_fits(&line, TIDE_TEXT_COLUMNS))
            break;
    }
    line_print(&line);
}

static bool is_apart(const double seconds[TIDE_SIDES], double step)
{
    return fabs(seconds[1] - seconds[0]) >= telling_part * step;
}

static void stalls_print(const tide_comparison *c, double step)
{
    uint32_t changes[STALL_CHANGES] = {0}, count = 0;
    while (count < c->stall_count && is_apart(c->stalls[count].seconds, step))
        changes[change_of(&c->stalls[count++])]++;
    if (count == 0) {
        puts("stalls: the same");
        return;
    }
    printf("stalls: %" PRIu32 " appeared, %" PRIu32 " gone, %" PRIu32 " longer, %" PRIu32
           " shorter, by at least 0.1%% of a step\n",
           changes[STALL_APPEARED], changes[STALL_GONE], changes[STALL_LONGER], changes[STALL_SHORTER]);
    for (uint32_t i = 0; i < count && i < STALLS_SHOWN; i++)
        stall_print(c, &c->stalls[i]);
}

static void ops_print(const tide_comparison *c, double step)
{
    char name[TIDE_TEXT_NAME_BYTES];
    tide_text_line line = {.length = 0};
    for (uint32_t i = 0; i < c->op_count && i < OPS_SHOWN && is_apart(c->ops[i].seconds, step); i++) {
        if (i == 0)
            puts("ops whose kernels differ most");
        tide_text_add(&line, "  %s", tide_text_shorten(op_name(c, c->ops[i].op), 20, name));
        tide_text_pad(&line, 22);
        seconds_add(&line, c->ops[i].seconds[0], c->ops[i].seconds[1]);
        change_add(&line, c->ops[i].seconds[0], c->ops[i].seconds[1], seconds_least);
        line_print(&line);
    }
}

/* ---- step by step ---- */

static double apart_of(const tide_comparison *c, uint32_t pair)
{
    return c->paired[1][pair]->line->step_seconds - c->paired[0][pair]->line->step_seconds;
}

/* Is the pair one of the STEPS_SHOWN pairs whose step times differ most? */
static bool is_among_furthest(const tide_comparison *c, uint32_t pair)
{
    uint32_t further = 0;
    for (uint32_t i = 0; i < c->pair_count && further < STEPS_SHOWN; i++)
        further += fabs(apart_of(c, i)) > fabs(apart_of(c, pair)) ||
                   (i < pair && fabs(apart_of(c, i)) >= fabs(apart_of(c, pair)));
    return further < STEPS_SHOWN;
}

/* Add the part of the step that differs most. */
static void mostly_add(tide_text_line *line, const tide_traced_step *first, const tide_traced_step *second)
{
    char text[TIDE_TEXT_NAME_BYTES];
    double most = second->compute_seconds - first->compute_seconds;
    int which = -1;
    for (int cause = 0; cause < TIDE_STALL_CAUSE_COUNT; cause++) {
        const double apart = second->stall_seconds_by[cause] - first->stall_seconds_by[cause];
        if (fabs(apart) > fabs(most)) {
            most = apart;
            which = cause;
        }
    }
    if (fabs(most) < telling_part * first->step_seconds)
        return;
    tide_text_add(line, "%s%s %s%s", which < 0 ? "compute" : "stall: ",
                  which < 0 ? "" : tide_stall_cause_name((tide_stall_cause)which), most < 0 ? "-" : "+",
                  tide_seconds_format(fabs(most), text));
}

static void step_print(const tide_comparison *c, uint32_t pair)
{
    char name[48];
    tide_text_line line = {.length = 0};
    const tide_traced_step *first = c->paired[0][pair]->line, *second = c->paired[1][pair]->line;
    if (first->step == second->step)
        snprintf(name, sizeof name, "%" PRIu64, first->step);
    else
        snprintf(name, sizeof name, "%" PRIu64 " and %" PRIu64, first->step, second->step);
    tide_text_add(&line, "  %-20s", name);
    seconds_add(&line, first->step_seconds, second->step_seconds);
    change_add(&line, first->step_seconds, second->step_seconds, seconds_least);
    tide_text_pad(&line, TEXT_COLUMN);
    mostly_add(&line, first, second);
    line_print(&line);
}

static void steps_print(const tide_comparison *c, double step)
{
    uint32_t slower = 0, faster = 0;
    for (uint32_t i = 0; i < c->pair_count; i++) {
        slower += apart_of(c, i) >= telling_part * step;
        faster += -apart_of(c, i) >= telling_part * step;
    }
    printf("step by step: %" PRIu32 " slower, %" PRIu32 " faster, %" PRIu32 " as fast\n", slower, faster,
           c->pair_count - slower - faster);
    for (uint32_t i = 0; i < c->pair_count; i++)
        if (fabs(apart_of(c, i)) >= telling_part * step && is_among_furthest(c, i))
            step_print(c, i);
    if (slower + faster > STEPS_SHOWN)
        printf("  and %" PRIu32 " that differ less\n", slower + faster - STEPS_SHOWN);
}

/* ---- the command ---- */

/* Print whether B is slower than `tolerance` percent allows; the exit status says so, too. */
static int verdict_print(double first, double second, double tolerance)
{
    const double percent = first > 0 ? 100 * (second - first) / first : second > 0 ? INFINITY : 0;
    const bool slower = percent > tolerance;
    char apart[32] = "";
    if (!slower && fabs(percent) < 0.05) {
        puts("B's median step is as fast as A's");
        return TIDE_EXIT_OK;
    }
    if (fabs(percent) < 0.05)
        snprintf(apart, sizeof apart, "less than 0.1%% ");
    else if (isfinite(percent))
        snprintf(apart, sizeof apart, "%.1f%% ", fmin(fabs(percent), 1e15));
    printf("B's median step is %s%s than A's%s\n", apart, percent > 0 ? "slower" : "faster",
           slower        ? ": more than --tolerance allows"
           : percent > 0 ? ", which --tolerance allows"
                         : "");
    return slower ? EXIT_SLOWER : TIDE_EXIT_OK;
}

static int diff_print(const tide_comparison *c, double tolerance)
{
    const double first = tide_comparison_median(c, 0, step_of, NULL),
                 second = tide_comparison_median(c, 1, step_of, NULL);
    tide_diff_settings_print(c);
    time_print(c);
    moves_print(c);
    stalls_print(c, first);
    ops_print(c, first);
    steps_print(c, first);
    return verdict_print(first, second, tolerance);
}

/* Read both files. On failure both models are freed. */
static int models_read(const tide_trace_diff_settings *settings, tide_trace_model *models[TIDE_SIDES])
{
    int exit_status =
        tide_trace_read_or_tell(tide_trace_diff_options.command, settings->files[0], &models[0]);
    if (exit_status != TIDE_EXIT_OK)
        return exit_status;
    exit_status = tide_trace_read_or_tell(tide_trace_diff_options.command, settings->files[1], &models[1]);
    if (exit_status != TIDE_EXIT_OK)
        tide_trace_model_free(models[0]);
    return exit_status;
}

int tide_trace_diff_command(int count, char *const *arguments)
{
    const tide_option_table *table = &tide_trace_diff_options;
    tide_trace_diff_settings settings = {.tolerance = 0};
    tide_trace_model *models[TIDE_SIDES] = {NULL, NULL};
    tide_comparison comparison;
    if (tide_options_asked(count, arguments, "--help") || tide_options_asked(count, arguments, "-h")) {
        tide_options_help(table, stdout);
        return TIDE_EXIT_OK;
    }
    tide_status status = tide_options_parse(table, count, arguments, &settings, NULL);
    if (status != TIDE_OK)
        return tide_command_failed(table->command, status);
    int exit_status = models_read(&settings, models);
    if (exit_status != TIDE_EXIT_OK)
        return exit_status;
    status = tide_comparison_make(models[0], models[1], &comparison);
    if (status == TIDE_OK) {
        exit_status = diff_print(&comparison, settings.tolerance);
    } else {
        (void)tide_command_failed(table->command, status); /* the files are at fault, not the command line */
        exit_status = TIDE_EXIT_FAILURE;
    }
    tide_comparison_free(&comparison);
    tide_trace_model_free(models[0]);
    tide_trace_model_free(models[1]);
    return exit_status;
}
