/* tidepool trace html: writes a page that draws the trace, in one file that any browser opens from the disk.
 *
 * The program holds the page (page/, with the d3 modules that it uses) as two texts. Between them this file
 * writes the trace's tables as JSON and its events as columns (trace_columns.h). A program that was built
 * without d3 has no page, and the command says so.
 */
#include "base/atomic_file.h"
#include "tide_config.h"
#include "tools/command.h"
#include "tools/trace/trace.h"
#include "tools/trace/trace_columns.h"
#include "tools/trace/trace_files.h"
#include "tools/trace/trace_text.h"
#if TIDE_HAVE_TRACE_PAGE
#include "tools/trace/page/page.h"
#endif

#include <assert.h>
#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- which part of the trace ---- */

static tide_status bad_steps(const char *text)
{
    return tide_fail(TIDE_ERROR_ARGUMENT, "%s: --steps %s: not a step's number, nor two like 3-7",
                     tide_trace_html_options.command, *text == '\0' ? "(empty)" : text);
}

/* Parse "7" or "3-7"; NULL: all steps. */
static tide_status steps_parse(const char *text, uint64_t *first, uint64_t *last)
{
    char *end = NULL;
    *first = 1, *last = UINT64_MAX;
    if (text == NULL)
        return TIDE_OK;
    errno = 0;
    if (!isdigit((unsigned char)*text))
        return bad_steps(text);
    *first = *last = strtoull(text, &end, 10);
    if (*end == '-' && isdigit((unsigned char)end[1]))
        *last = strtoull(end + 1, &end, 10);
    return *end != '\0' || errno != 0 || *first == 0 || *last < *first ? bad_steps(text) : TIDE_OK;
}

#if TIDE_HAVE_TRACE_PAGE

/* Find the part of the trace that --steps asks for: from the begin of the first step to the begin of the pass
 * after the last one. */
static tide_status window_find(const tide_trace_model *model, const tide_trace_html_settings *settings,
                               tide_trace_window *window)
{
    uint64_t first, last;
    tide_status status = steps_parse(settings->steps, &first, &last);
    if (status != TIDE_OK)
        return status;
    *window = (tide_trace_window){.begin_ns = UINT64_MAX, .end_ns = UINT64_MAX};
    if (settings->steps == NULL) {
        window->begin_ns = model->event_count > 0 ? model->events[0].begin_ns : 0;
        return TIDE_OK;
    }
    for (uint32_t i = 0; i < model->pass_count; i++) {
        const tide_traced_pass *pass = &model->passes[i];
        bool is_wanted = pass->training && pass->number >= first && pass->number <= last;
        if (is_wanted && window->begin_ns == UINT64_MAX)
            window->begin_ns = pass->begin_ns;
        if (is_wanted)
            window->end_ns = i + 1 < model->pass_count ? model->passes[i + 1].begin_ns : UINT64_MAX;
    }
    if (window->begin_ns == UINT64_MAX)
        return tide_fail(TIDE_ERROR_ARGUMENT, "%s: --steps %s: no such step is in %s",
                         tide_trace_html_options.command, settings->steps, model->path);
    return TIDE_OK;
}

/* ---- tables ---- */

static void real_write(double value, FILE *out)
{
    if (isfinite(value))
        fprintf(out, "%.9g", value);
    else
        fputs("null", out);
}

static void text_member(const char *name, const char *text, FILE *out)
{
    fprintf(out, "\"%s\":", name);
    tide_text_json_write(text == NULL ? "" : text, out);
}

static void made_write(const tide_trace_model *model, FILE *out)
{
    fputs("\"trace\":{", out);
    text_member("tidepool", model->version, out);
    fputc(',', out);
    text_member("device", model->device, out);
    fputc(',', out);
    text_member("dtype", tide_dtype_name(model->dtype), out);
    fprintf(out,
            ",\"rank\":%" PRIu32 ",\"ranks\":%" PRIu32 ",\"chunk_bytes\":%" PRIu64
            ",\"device_slots\":%" PRIu32 ",\"host_slots\":%" PRIu32,
            model->rank, model->ranks, model->chunk_bytes, model->device_slots, model->host_slots);
    fprintf(out,
            ",\"device_memory_bytes\":%" PRIu64 ",\"host_memory_bytes\":%" PRIu64 ",\"region_bytes\":%" PRIu64
            "}",
            model->device_memory_bytes, model->host_memory_bytes, model->region_bytes);
    fputs(",\"machine\":{", out);
    text_member("name", model->machine.name, out);
    fputs(",\"link_bytes_per_second\":", out);
    real_write(model->machine.link_bytes_per_second, out);
    fputs("},\"settings\":[", out);
    for (uint32_t i = 0; i < model->setting_count; i++) {
        fputs(i == 0 ? "[" : ",[", out);
        tide_text_json_write(model->settings[i].name, out);
        fputc(',', out);
        tide_text_json_write(model->settings[i].value, out);
        fputc(']', out);
    }
    fputc(']', out);
}

static void chunk_write(const tide_traced_chunk *chunk, FILE *out)
{
    fprintf(out, "[%d,%" PRIu32 ",%" PRIu64 ",[", (int)chunk->space, chunk->index, chunk->bytes);
    for (uint32_t i = 0; i < chunk->param_count; i++)
        fprintf(out, "%s%" PRIu32, i == 0 ? "" : ",", chunk->params[i].param);
    fputs("],[", out);
    for (uint32_t i = 0; i < chunk->of_count; i++)
        fprintf(out, "%s%" PRIu32, i == 0 ? "" : ",", chunk->of[i]);
    fputs("]]", out);
}

static void objects_write(const tide_trace_model *model, FILE *out)
{
    fputs(",\"params\":[", out);
    for (uint32_t i = 0; i < model->param_count; i++) {
        fputs(i == 0 ? "[" : ",[", out);
        tide_text_json_write(model->params[i].name, out);
        fprintf(out, ",%" PRIu64 ",%d]", model->params[i].elements, model->params[i].frozen);
    }
    fputs("],\"chunks\":[", out);
    for (uint32_t i = 0; i < model->chunk_count; i++) {
        fputs(i == 0 ? "" : ",", out);
        chunk_write(&model->chunks[i], out);
    }
    fputs("],\"ops\":[", out);
    for (uint32_t i = 0; i < model->op_count; i++) {
        fputs(i == 0 ? "[" : ",[", out);
        tide_text_json_write(model->ops[i].name, out);
        fprintf(out, ",%d,%" PRIu32 "]", (int)model->ops[i].pass, model->ops[i].slices);
    }
    fputs("],\"activations\":[", out);
    for (uint32_t i = 0; i < model->activation_count; i++) {
        const tide_traced_activation *activation = &model->activations[i];
        fputs(i == 0 ? "[" : ",[", out);
        tide_text_json_write(activation->name, out);
        fprintf(out, ",%" PRIu32 ",%" PRIu64 ",%" PRIu64 "]", activation->parts, activation->part_bytes,
                activation->offset_bytes);
    }
    fputc(']', out);
}

static void steps_write(const tide_trace_model *model, FILE *out)
{
    fputs(",\"steps\":[", out);
    for (uint32_t i = 0; i < model->step_count; i++) {
        const tide_traced_step *step = &model->steps[i];
        fprintf(out, "%s{\"step\":%" PRIu64 ",\"step_seconds\":", i == 0 ? "" : ",", step->step);
        real_write(step->step_seconds, out);
        fputs(",\"stall_seconds\":", out);
        real_write(step->stall_seconds, out);
        fprintf(out, ",\"h2d_bytes\":%" PRIu64 ",\"d2h_bytes\":%" PRIu64 "}", step->h2d_bytes,
                step->d2h_bytes);
    }
    fputc(']', out);
}

static void page_write(const tide_trace_model *model, const tide_trace_columns *columns, FILE *out)
{
    const char *slash = strrchr(model->path, '/');
    fwrite(tide_trace_page_head, 1, tide_trace_page_head_bytes, out);
    fputs("<script type=\"application/json\" id=\"tables\">{", out);
    text_member("file", slash == NULL ? model->path : slash + 1, out);
    fprintf(out, ",\"dropped\":%" PRIu64 ",\"is_cut\":%s,", model->dropped, model->is_cut ? "true" : "false");
    made_write(model, out);
    objects_write(model, out);
    steps_write(model, out);
    fputc(',', out);
    tide_trace_columns_description_write(columns, out);
    fputs("}</script>\n<script type=\"text/plain\" id=\"events\">", out);
    tide_trace_columns_events_write(columns, out);
    fputs("</script>\n", out);
    fwrite(tide_trace_page_tail, 1, tide_trace_page_tail_bytes, out);
}

static tide_status html_write(const tide_trace_model *model, const tide_trace_html_settings *settings)
{
    tide_trace_window window;
    tide_trace_columns *columns = NULL;
    tide_atomic_file file;
    tide_status status = window_find(model, settings, &window);
    if (status != TIDE_OK)
        return status;
    status = tide_trace_columns_plan(model, window, &columns);
    if (status != TIDE_OK)
        return status;
    status = tide_atomic_file_open("page", settings->output, &file);
    if (status == TIDE_OK) {
        page_write(model, columns, file.stream);
        status = tide_atomic_file_finish(&file);
    }
    tide_trace_columns_free(columns);
    return status;
}

#else

static tide_status html_write(const tide_trace_model *model, const tide_trace_html_settings *settings)
{
    (void)model, (void)settings;
    return TIDE_OK; /* page_check has refused the command */
}

#endif

/* ---- the command ---- */

static tide_status page_check(void)
{
    if (TIDE_HAVE_TRACE_PAGE)
        return TIDE_OK;
    return tide_fail(TIDE_ERROR_UNSUPPORTED,
                     "this build has no page: d3, which draws it (Debian's node-d3-scale, node-d3-axis, "
                     "node-d3-shape, node-d3-selection), was not there when it was made");
}

int tide_trace_html_command(int count, char *const *arguments)
{
    const tide_option_table *table = &tide_trace_html_options;
    tide_trace_html_settings settings = {0};
    tide_trace_model *model = NULL;
    uint64_t first, last;
    if (tide_options_asked(count, arguments, "--help") || tide_options_asked(count, arguments, "-h")) {
        tide_options_help(table, stdout);
        return TIDE_EXIT_OK;
    }
    tide_status status = tide_options_parse(table, count, arguments, &settings, NULL);
    if (status == TIDE_OK)
        status = steps_parse(settings.steps, &first, &last);
    if (status == TIDE_OK)
        status = tide_trace_output_check(
            table->command, &(tide_option_texts){.items = {settings.file}, .count = 1}, settings.output);
    if (status == TIDE_OK)
        status = page_check();
    if (status != TIDE_OK)
        return tide_command_failed(table->command, status);
    int exit_status = tide_trace_read_or_tell(table->command, settings.file, &model);
    if (exit_status != TIDE_EXIT_OK)
        return exit_status;
    status = html_write(model, &settings);
    tide_trace_model_free(model);
    return status == TIDE_OK ? TIDE_EXIT_OK : tide_command_failed(table->command, status);
}
