#include "tools/trace/trace_ranks.h"

#include "src/trace/trace_steps.h"
#include "tools/trace/trace_text.h"

#include <inttypes.h>
#include <stdlib.h>

/* The parts of a step: compute, stalls by cause, and the rest. */
enum { COMPUTE, STALLS, REST = STALLS + TIDE_STALL_CAUSE_COUNT, PARTS };

/* The steady steps of a rank. */
typedef struct rank_row {
    uint64_t first, last; /* numbers of the steps; 0: it has none */
    uint32_t steps, slowest;
    double step, parts[PARTS]; /* seconds, means */
    uint64_t dropped;
    bool is_cut, differs; /* its events do not add up to its steps' lines */
} rank_row;

static void account_add(rank_row *row, const tide_step_account *account, uint32_t rank)
{
    const tide_traced_step *line = account->line;
    const double share = 1.0 / row->steps;
    row->step += share * line->step_seconds;
    row->parts[COMPUTE] += share * line->compute_seconds;
    for (int cause = 0; cause < TIDE_STALL_CAUSE_COUNT; cause++)
        row->parts[STALLS + cause] += share * line->stall_seconds_by[cause];
    row->parts[REST] += share * account->rest_seconds;
    row->slowest += line->slowest_rank == rank;
    row->differs = row->differs || account->difference.member != NULL;
}

static tide_status row_make(const tide_trace_model *model, rank_row *row)
{
    tide_trace_steps steps;
    const tide_status status = tide_trace_steps_make(model, &steps);
    *row = (rank_row){.dropped = model->dropped, .is_cut = model->is_cut};
    if (status != TIDE_OK)
        return status;
    if (steps.steady < steps.steady_end) {
        row->steps = steps.steady_end - steps.steady;
        row->first = steps.steps[steps.steady].line->step;
        row->last = steps.steps[steps.steady_end - 1].line->step;
    }
    for (uint32_t i = steps.steady; i < steps.steady_end; i++)
        account_add(row, &steps.steps[i], model->rank);
    tide_trace_steps_free(&steps);
    return TIDE_OK;
}

static const char *part_name(int part)
{
    return part == COMPUTE ? "compute"
           : part == REST  ? "neither"
                           : tide_stall_cause_name((tide_stall_cause)(part - STALLS));
}

/* Is the part on some rank large enough to be printed as more than 0.0%? */
static bool is_shown(const rank_row *rows, uint32_t count, int part)
{
    for (uint32_t i = 0; i < count; i++)
        if (rows[i].parts[part] >= 0.0005 * rows[i].step && rows[i].parts[part] > 0)
            return true;
    return false;
}

static void head_print(const tide_traces *traces, const rank_row *rows, FILE *out)
{
    char shortened[TIDE_TEXT_NAME_BYTES];
    const tide_trace_model *model = traces->models[0];
    const char *name = tide_trace_model_setting(model, "model");
    tide_text_line line = {.length = 0};
    tide_text_add(&line, "%s in %s on %s, ",
                  name != NULL && *name != '\0' ? tide_path_shorten(name, 40, shortened) : "a model",
                  tide_dtype_name(model->dtype), model->device);
    if (traces->count < model->ranks)
        tide_text_add(&line, "%" PRIu32 " of ", traces->count);
    tide_text_add(&line, "%" PRIu32 " ranks", model->ranks);
    tide_text_print(&line, TIDE_TEXT_COLUMNS, out);
    tide_text_add(&line, "rank     steps    a step");
    for (int part = 0; part < PARTS; part++)
        if (is_shown(rows, traces->count, part))
            tide_text_add(&line, "%8s", part_name(part));
    tide_text_add(&line, "  slowest");
    tide_text_print(&line, TIDE_TEXT_COLUMNS, out);
}

static void row_print(const tide_traces *traces, const rank_row *rows, uint32_t at, FILE *out)
{
    char text[TIDE_TEXT_NAME_BYTES];
    const rank_row *row = &rows[at];
    tide_text_line line = {.length = 0};
    snprintf(text, sizeof text, row->first == row->last ? "%" PRIu64 : "%" PRIu64 "-%" PRIu64, row->first,
             row->last);
    tide_text_add(&line, "%4" PRIu32 " %9s", traces->models[at]->rank, row->steps > 0 ? text : "none");
    if (row->steps > 0)
        tide_text_add(&line, "%10s", tide_seconds_format(row->step, text));
    for (int part = 0; part < PARTS && row->steps > 0; part++)
        if (is_shown(rows, traces->count, part))
            tide_text_add(&line, "%7.1f%%", row->step > 0 ? 100 * row->parts[part] / row->step : 0);
    if (row->steps > 0)
        tide_text_add(&line, "  in %" PRIu32, row->slowest);
    if (row->is_cut || row->dropped > 0 || row->differs)
        tide_text_add(&line, "%s",
                      row->is_cut        ? ", killed"
                      : row->dropped > 0 ? ", lost events"
                                         : ", differs");
    tide_text_print(&line, TIDE_TEXT_COLUMNS, out);
}

tide_status tide_trace_ranks_print(const tide_traces *traces, FILE *out)
{
    rank_row *rows = calloc(traces->count, sizeof *rows);
    tide_status status = rows != NULL ? TIDE_OK : tide_fail(TIDE_ERROR_NO_MEMORY, "no memory for the ranks");
    for (uint32_t i = 0; i < traces->count && status == TIDE_OK; i++)
        status = row_make(traces->models[i], &rows[i]);
    if (status == TIDE_OK)
        head_print(traces, rows, out);
    for (uint32_t i = 0; i < traces->count && status == TIDE_OK; i++)
        row_print(traces, rows, i, out);
    free(rows);
    return status;
}
