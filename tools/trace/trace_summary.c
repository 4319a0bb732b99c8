/* tidepool trace summary: one screen. Figures are means over the steady steps (trace_steps.h).
 */
#include "src/trace/trace_fields.h"
#include "src/trace/trace_steps.h"
#include "tools/command.h"
#include "tools/plan/proposal_text.h"
#include "tools/trace/trace.h"
#include "tools/trace/trace_advice.h"
#include "tools/trace/trace_files.h"
#include "tools/trace/trace_plot.h"
#include "tools/trace/trace_ranks.h"
#include "tools/trace/trace_slow.h"
#include "tools/trace/trace_text.h"
#include "tools/units.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

enum { CHUNKS_SHOWN = 10, STALLS_SHOWN = 5, SLOW_SHOWN = 3, WORKS_MAX = 8, OP_LETTERS = 24 };

static void line_print(tide_text_line *line)
{
    tide_text_print(line, TIDE_TEXT_COLUMNS, stdout);
}

/* ---- what was run ---- */

static void run_print(const tide_trace_model *model)
{
    char memory[TIDE_UNITS_TEXT_BYTES], chunk[TIDE_UNITS_TEXT_BYTES], host[TIDE_UNITS_TEXT_BYTES];
    char machine[TIDE_TEXT_NAME_BYTES], shortened[TIDE_TEXT_NAME_BYTES];
    tide_text_line line = {.length = 0};
    const char *name = tide_trace_model_setting(model, "model");
    tide_text_add(&line, "%s in %s on %s",
                  name != NULL && *name != '\0' ? tide_path_shorten(name, 40, shortened) : "a model",
                  tide_dtype_name(model->dtype), model->device);
    if (model->machine.name[0] != '\0')
        tide_text_add(&line, " (%s)", tide_text_shorten(model->machine.name, 48, machine));
    if (model->ranks > 1)
        tide_text_add(&line, ", rank %" PRIu32 " of %" PRIu32, model->rank, model->ranks);
    line_print(&line);
    tide_text_add(&line, "budgets: device %s, %" PRIu32 " slots of %s; host %s, %" PRIu32 " slots",
                  tide_size_format(model->device_memory_bytes, memory), model->device_slots,
                  tide_size_format(model->chunk_bytes, chunk),
                  tide_size_format(model->host_memory_bytes, host), model->host_slots);
    line_print(&line);
}

static void steps_range_add(tide_text_line *line, const tide_trace_steps *steps)
{
    const tide_step_account *first = &steps->steps[steps->steady],
                            *last = &steps->steps[steps->steady_end - 1];
    if (first == last)
        tide_text_add(line, "step %" PRIu64, first->line->step);
    else
        tide_text_add(line, "steps %" PRIu64 " to %" PRIu64, first->line->step, last->line->step);
}

static void trace_print(const tide_trace_steps *steps)
{
    char count[TIDE_UNITS_TEXT_BYTES];
    tide_text_line line = {.length = 0};
    const tide_trace_model *model = steps->model;
    if (steps->count > 0) {
        steps_range_add(&line, steps);
        tide_text_add(&line, ", of %" PRIu32 " whole ones in the trace", steps->count);
    } else {
        tide_text_add(&line, "no whole step in the trace");
    }
    tide_text_add(&line, "; %s event%s", tide_count_format(model->event_count, count),
                  model->event_count == 1 ? "" : "s");
    if (model->dropped > 0)
        tide_text_add(&line, ", %s dropped", tide_count_format(model->dropped, count));
    if (model->is_cut)
        tide_text_add(&line, "; the run was killed");
    line_print(&line);
}

/* ---- time ---- */

/* Means over the steady steps. `moved`, `planned` and `least` (the bound below which no plan gets) count the
 * bytes of chunks of params and activations as plans do, each as if it were full; so `least` stays below the
 * others although the last chunk of a space is not full. */
typedef struct summary_means {
    double step, compute, stalls[TIDE_STALL_CAUSE_COUNT], rest, updates[TIDE_TIER_COUNT], predicted;
    double moved[TIDE_TIER_COUNT], planned[TIDE_TIER_COUNT], least[TIDE_TIER_COUNT], state[TIDE_TIER_COUNT];
    double reasons[TIDE_TIER_COUNT][TIDE_REASON_COUNT];
    double asked, lacked;
    bool planned_all; /* every step had a plan */
} summary_means;

static void step_add(summary_means *means, const tide_step_account *account, double chunk_bytes, double share)
{
    const tide_traced_step *line = account->line;
    means->step += share * line->step_seconds;
    means->compute += share * line->compute_seconds;
    for (int cause = 0; cause < TIDE_STALL_CAUSE_COUNT; cause++)
        means->stalls[cause] += share * line->stall_seconds_by[cause];
    means->rest += share * account->rest_seconds;
    means->updates[TIDE_TIER_HOST] += share * line->adam_host_seconds;
    means->updates[TIDE_TIER_DEVICE] += share * line->adam_device_seconds;
    means->predicted += share * line->predicted_step_seconds;
    for (int to = 0; to < TIDE_TIER_COUNT; to++) {
        double state = (double)account->bytes_by_space[to][TIDE_SPACE_STATE];
        means->state[to] += share * state;
        means->moved[to] += share * chunk_bytes * (double)account->planned_copies[to];
        for (int reason = 0; reason < TIDE_REASON_COUNT; reason++)
            means->reasons[to][reason] += share * (double)account->bytes_by_reason[to][reason];
    }
    means->asked += share * (double)account->asked;
    means->lacked += share * (double)account->lacked;
    means->planned_all &= account->plan != NULL;
    if (account->plan == NULL)
        return;
    means->planned[TIDE_TIER_DEVICE] += share * chunk_bytes * account->plan->planned_in;
    means->planned[TIDE_TIER_HOST] += share * chunk_bytes * account->plan->planned_out;
    means->least[TIDE_TIER_DEVICE] += share * chunk_bytes * account->plan->least_in;
    means->least[TIDE_TIER_HOST] += share * chunk_bytes * account->plan->least_out;
}

static summary_means means_of(const tide_trace_steps *steps)
{
    summary_means means = {.planned_all = true};
    uint32_t count = steps->steady_end - steps->steady;
    for (uint32_t i = steps->steady; i < steps->steady_end; i++)
        step_add(&means, &steps->steps[i], (double)steps->model->chunk_bytes, 1.0 / count);
    return means;
}

/* Smaller parts would be printed as 0.0%. */
#define PART_LEAST 0.0005

static void part_print(const char *name, double seconds, double step)
{
    enum { BAR = 60 };
    static const char bar[] = "############################################################";
    char text[TIDE_TEXT_NAME_BYTES];
    tide_text_line line = {.length = 0};
    double share = step > 0 ? seconds / step : 0;
    if (share < PART_LEAST)
        return;
    int length = (int)(fmin(share, 1) * BAR + 0.5);
    tide_text_add(&line, "  %-18s%10s %6.1f%%  %.*s", name, tide_seconds_format(seconds, text), 100 * share,
                  length, bar);
    line_print(&line);
}

static void time_print(const summary_means *means)
{
    char text[TIDE_TEXT_NAME_BYTES], name[40];
    tide_text_line line = {.length = 0};
    tide_text_add(&line, "a step took %s", tide_seconds_format(means->step, text));
    if (isfinite(means->predicted) && means->predicted > 0)
        tide_text_add(&line, " (predicted: %s)", tide_seconds_format(means->predicted, text));
    if (means->updates[TIDE_TIER_HOST] > 0)
        tide_text_add(&line, "; its updates %s on the host",
                      tide_seconds_format(means->updates[TIDE_TIER_HOST], text));
    if (means->updates[TIDE_TIER_DEVICE] > 0)
        tide_text_add(&line, "; %supdates %s on the device", means->updates[TIDE_TIER_HOST] > 0 ? "" : "its ",
                      tide_seconds_format(means->updates[TIDE_TIER_DEVICE], text));
    line_print(&line);
    part_print("compute", means->compute, means->step);
    for (int cause = 0; cause < TIDE_STALL_CAUSE_COUNT; cause++) {
        (void)snprintf(name, sizeof name, "stall: %s", tide_stall_cause_name((tide_stall_cause)cause));
        part_print(name, means->stalls[cause], means->step);
    }
    part_print("neither", means->rest, means->step);
}

/* ---- moves ---- */

static void way_print(const summary_means *means, tide_tier to)
{
    char text[TIDE_UNITS_TEXT_BYTES];
    tide_text_line line = {.length = 0};
    tide_text_add(&line, "  %-14s %10s", to == TIDE_TIER_DEVICE ? "to the device" : "to the host",
                  tide_bytes_format(means->moved[to], text));
    if (means->planned_all) {
        tide_text_add(&line, " %10s", tide_bytes_format(means->planned[to], text));
        tide_text_add(&line, " %10s", tide_bytes_format(means->least[to], text));
    } else {
        tide_text_add(&line, " %10s %10s", "-", "-");
    }
    tide_text_add(&line, " %10s  ", tide_bytes_format(means->state[to], text));
    for (int reason = 0; reason < TIDE_REASON_COUNT; reason++)
        if (means->reasons[to][reason] > 0)
            tide_text_add(&line, " %s %s", tide_trace_reason_word((uint32_t)reason),
                          tide_bytes_format(means->reasons[to][reason], text));
    line_print(&line);
}

static void moves_print(const summary_means *means)
{
    tide_text_line line = {.length = 0};
    tide_text_add(&line, "%-16s %10s %10s %10s %10s   reasons (bytes)", "copied a step", "moved", "planned",
                  "least", "state");
    line_print(&line);
    way_print(means, TIDE_TIER_DEVICE);
    way_print(means, TIDE_TIER_HOST);
    if (means->asked > 0)
        tide_text_add(&line, "  of %.4g chunks asked for a step, %.1f%% were there", means->asked,
                      100 * (means->asked - means->lacked) / means->asked);
    else
        tide_text_add(&line, "  no chunk was asked for");
    line_print(&line);
}

static void chunk_cell_add(tide_text_line *line, const tide_trace_steps *steps, uint32_t chunk)
{
    char name[TIDE_TEXT_NAME_BYTES], bytes[TIDE_UNITS_TEXT_BYTES];
    uint32_t count = steps->steady_end - steps->steady;
    tide_text_add(line, "%5" PRIu32 " %5.1fx %9s %s", chunk, (double)steps->moves[chunk] / count,
                  tide_bytes_format((double)steps->moved_bytes[chunk] / count, bytes),
                  tide_chunk_content(steps->model, chunk, 25, name));
}

static void chunks_print(const tide_trace_steps *steps)
{
    uint32_t chunks[CHUNKS_SHOWN];
    tide_text_line line = {.length = 0};
    uint32_t count = tide_trace_most_moved(steps, chunks, CHUNKS_SHOWN), rows = (count + 1) / 2;
    if (count == 0)
        return;
    puts("chunks that moved most: number, copies and bytes a step, what lies in it");
    for (uint32_t row = 0; row < rows; row++) {
        tide_text_add(&line, "  ");
        chunk_cell_add(&line, steps, chunks[row]);
        tide_text_pad(&line, 51);
        if (row + rows < count)
            chunk_cell_add(&line, steps, chunks[row + rows]);
        line_print(&line);
    }
}

/* ---- stalls ---- */

/* The rank of an event as the description of its command, for which the highest is shown; 0: it never is. */
static int telling(const tide_trace_event *event)
{
    switch (event->kind) {
    case TIDE_TRACE_UPDATE:
    case TIDE_TRACE_RESTORE:
    case TIDE_TRACE_MOVE:
        return 4;
    case TIDE_TRACE_ACCESS:
        return 3;
    case TIDE_TRACE_COPY:
        return 2;
    case TIDE_TRACE_MAP:
    case TIDE_TRACE_ZERO:
        return 1;
    default:
        return 0;
    }
}

static const tide_trace_event *command_find(const tide_trace_model *model, uint64_t id)
{
    const tide_trace_event *found = NULL;
    for (uint64_t i = 0; i < model->event_count && id != 0; i++)
        if (model->events[i].id == id && telling(&model->events[i]) > (found != NULL ? telling(found) : 0))
            found = &model->events[i];
    return found;
}

static void command_add(tide_text_line *line, const tide_trace_event *command)
{
    switch (command->kind) {
    case TIDE_TRACE_MOVE:
        tide_text_add(line, "%s of %" PRIu32 " (%s)", tide_trace_move_word(command->move), command->chunk,
                      tide_trace_reason_word(command->reason));
        break;
    case TIDE_TRACE_UPDATE:
    case TIDE_TRACE_RESTORE:
        tide_text_add(line, "%s of %" PRIu32 ", %s",
                      command->kind == TIDE_TRACE_UPDATE ? "update" : "restore", command->chunk,
                      tide_trace_tier_word(command->tier));
        break;
    case TIDE_TRACE_COPY:
        tide_text_add(line, "copy of %" PRIu32 " to %s", command->chunk, tide_trace_tier_word(command->tier));
        break;
    default:
        tide_text_add(line, "%s of %" PRIu32,
                      command->kind == TIDE_TRACE_MAP    ? tide_trace_mapping_word(command->map)
                      : command->kind == TIDE_TRACE_ZERO ? "zeroing"
                                                         : "access",
                      command->chunk);
        break;
    }
}

/* The op's name takes at most `letters` letters. */
static void op_add(tide_text_line *line, const tide_trace_model *model, uint32_t op, uint32_t slice,
                   size_t letters)
{
    char name[TIDE_TEXT_NAME_BYTES];
    if (op == TIDE_TRACE_NONE)
        tide_text_add(line, "between ops");
    else
        tide_text_add(line, "%s", tide_text_shorten(model->ops[op].name, letters, name));
    if (slice != TIDE_TRACE_NONE)
        tide_text_add(line, "/%" PRIu32, slice);
}

/* The content of the stall's chunk takes at most `params` letters; 0: it is not shown. */
static void stall_add(tide_text_line *line, const tide_trace_model *model, const tide_stall_series *series,
                      const tide_trace_event *command, size_t op_letters, size_t params)
{
    char text[TIDE_TEXT_NAME_BYTES];
    const tide_trace_event *stall = series->longest;
    tide_text_add(line, "%9s %-6s step %" PRIu64,
                  tide_seconds_format((double)(stall->end_ns - stall->begin_ns) * 1e-9, text),
                  tide_stall_cause_name(stall->cause), stall->step);
    if (series->count > 1)
        tide_text_add(line, ", 1 of %" PRIu64, series->count);
    tide_text_add(line, ", ");
    op_add(line, model, stall->op, stall->slice, op_letters);
    if (stall->chunk != TIDE_TRACE_NONE)
        tide_text_add(line, ": chunk %" PRIu32, stall->chunk);
    if (stall->chunk != TIDE_TRACE_NONE && params > 0)
        tide_text_add(line, " (%s)", tide_chunk_content(model, stall->chunk, params, text));
    if (!stall->predicted)
        tide_text_add(line, ", not predicted");
    if (command != NULL) {
        tide_text_add(line, "; until ");
        command_add(line, command);
    }
}

/* Shorten the names until the command that ended the stall fits on the line, too. */
static void stall_print(const tide_trace_model *model, const tide_stall_series *series)
{
    static const struct {
        size_t op, params;
    } letters[] = {{OP_LETTERS, 30}, {OP_LETTERS, 24}, {OP_LETTERS, 18}, {OP_LETTERS, 12},
                   {OP_LETTERS, 8},  {OP_LETTERS, 0},  {16, 0},          {8, 0}};
    const tide_trace_event *command = command_find(model, series->longest->ended_by);
    tide_text_line line = {.length = 0};
    for (size_t i = 0; i < sizeof letters / sizeof letters[0]; i++) {
        line = (tide_text_line){.length = 0};
        stall_add(&line, model, series, command, letters[i].op, letters[i].params);
        if (tide_text_fits(&line, TIDE_TEXT_COLUMNS))
            break;
    }
    line_print(&line);
}

static tide_status stalls_print(const tide_trace_steps *steps)
{
    tide_stall_series longest[STALLS_SHOWN];
    uint32_t count = 0;
    tide_status status = tide_trace_longest_stalls(steps, longest, STALLS_SHOWN, &count);
    if (status != TIDE_OK)
        return status;
    puts(count > 0 ? "longest stalls: cause, step (1 of so many like it), op, chunk waited for, what ended it"
                   : "no stalls");
    for (uint32_t i = 0; i < count; i++)
        stall_print(steps->model, &longest[i]);
    return TIDE_OK;
}

/* ---- slow ops, work between steps ---- */

static tide_status slow_print(const tide_trace_steps *steps)
{
    tide_slow_op slow[SLOW_SHOWN];
    char took[TIDE_TEXT_NAME_BYTES], usual[TIDE_TEXT_NAME_BYTES];
    tide_text_line line = {.length = 0};
    uint64_t all = 0;
    tide_status status = tide_trace_slow_ops(steps, slow, SLOW_SHOWN, &all);
    if (status != TIDE_OK || all == 0)
        return status;
    printf("ops that took longer than 1.5 times their median: %" PRIu64 "\n", all);
    for (uint32_t i = 0; i < SLOW_SHOWN && i < all; i++) {
        const tide_trace_event *event = slow[i].event;
        tide_text_add(&line, "%9s, not %s, step %" PRIu64 ", ",
                      tide_seconds_format((double)event->busy_ns * 1e-9, took),
                      tide_seconds_format(slow[i].median_seconds, usual), event->step);
        op_add(&line, steps->model, event->op, event->slice, OP_LETTERS);
        line_print(&line);
    }
    return TIDE_OK;
}

typedef struct work_sum {
    const char *work;
    uint64_t count;
    double seconds;
} work_sum;

/* Sums over the whole trace, since some work, such as saving, is rare. */
static void works_print(const tide_trace_model *model)
{
    work_sum works[WORKS_MAX];
    char text[TIDE_TEXT_NAME_BYTES], name[TIDE_TEXT_NAME_BYTES];
    tide_text_line line = {.length = 0};
    uint32_t count = 0;
    for (uint64_t i = 0; i < model->event_count; i++) {
        const tide_trace_event *event = &model->events[i];
        uint32_t at = 0;
        if (event->kind != TIDE_TRACE_WORK)
            continue;
        while (at < count && strcmp(works[at].work, event->work) != 0)
            at++;
        if (at == WORKS_MAX)
            continue;
        if (at == count)
            works[count++] = (work_sum){.work = event->work};
        works[at].count++;
        works[at].seconds += (double)(event->end_ns - event->begin_ns) * 1e-9;
    }
    for (uint32_t i = 0; i < count; i++)
        tide_text_add(&line, "%s%s %" PRIu64 " x %s", i == 0 ? "between steps: " : ", ",
                      tide_text_shorten(works[i].work, OP_LETTERS, name), works[i].count,
                      tide_seconds_format(works[i].seconds / (double)works[i].count, text));
    if (count > 0)
        line_print(&line);
}

/* ---- the screen ---- */

static void differences_print(const tide_trace_steps *steps)
{
    uint32_t count = 0;
    const tide_step_account *first = NULL;
    for (uint32_t i = 0; i < steps->count; i++)
        if (steps->steps[i].difference.member != NULL && count++ == 0)
            first = &steps->steps[i];
    if (count == 0)
        return;
    tide_text_line line = {.length = 0};
    tide_text_add(&line,
                  "warning: %" PRIu32 " of %" PRIu32 " steps don't add up to their lines: step %" PRIu64
                  ", %s %.5g, not %.5g",
                  count, steps->count, first->line->step, first->difference.member, first->difference.told,
                  first->difference.said);
    line_print(&line);
}

static tide_status plot_print(const tide_trace_steps *steps)
{
    const tide_trace_model *model = steps->model;
    uint64_t begin = model->passes[steps->steps[steps->steady].line->pass].begin_ns;
    uint64_t end = model->passes[steps->steps[steps->steady_end - 1].line->pass].end_ns;
    if (end == UINT64_MAX || end < begin)
        end = model->events[model->event_count - 1].end_ns;
    return tide_trace_plot(model, begin, end < begin ? begin : end, stdout);
}

static void advice_print(const tide_trace_steps *steps)
{
    char what[TIDE_PROPOSAL_TEXT_BYTES], option[TIDE_PROPOSAL_OPTION_BYTES];
    tide_text_line line = {.length = 0};
    tide_proposal best;
    if (!tide_trace_advise(steps, &best))
        return;
    tide_proposal_what(&best, NULL, what);
    tide_proposal_option(&best, NULL, option);
    tide_text_add(&line, "advice: %s%s%s: about %+.0f%% tokens/s", what, option[0] != '\0' ? ", " : "",
                  option, 100 * best.gain);
    line_print(&line);
}

static tide_status steps_print(const tide_trace_steps *steps)
{
    summary_means means = means_of(steps);
    time_print(&means);
    moves_print(&means);
    chunks_print(steps);
    tide_status status = stalls_print(steps);
    return status == TIDE_OK ? slow_print(steps) : status;
}

static tide_status summary_print(const tide_trace_model *model)
{
    tide_trace_steps steps;
    tide_status status = tide_trace_steps_make(model, &steps);
    if (status != TIDE_OK)
        return status;
    run_print(model);
    trace_print(&steps);
    if (steps.count > 0)
        status = steps_print(&steps);
    works_print(model);
    if (steps.count > 0 && status == TIDE_OK)
        status = plot_print(&steps);
    differences_print(&steps);
    if (steps.count > 0 && status == TIDE_OK)
        advice_print(&steps);
    tide_trace_steps_free(&steps);
    return status;
}

int tide_trace_summary_command(int count, char *const *arguments)
{
    const char *command = tide_trace_summary_options.command;
    tide_trace_summary_settings settings = {0};
    tide_traces traces;
    if (tide_options_asked(count, arguments, "--help") || tide_options_asked(count, arguments, "-h")) {
        tide_options_help(&tide_trace_summary_options, stdout);
        return TIDE_EXIT_OK;
    }
    tide_status status = tide_options_parse(&tide_trace_summary_options, count, arguments, &settings, NULL);
    if (status != TIDE_OK)
        return tide_command_failed(command, status);
    const int exit_status = tide_traces_read_or_tell(command, &settings.files, &traces);
    if (exit_status != TIDE_EXIT_OK)
        return exit_status;
    status = traces.count == 1 ? summary_print(traces.models[0]) : tide_trace_ranks_print(&traces, stdout);
    tide_traces_free(&traces);
    return status == TIDE_OK ? TIDE_EXIT_OK : tide_command_failed(command, status);
}
