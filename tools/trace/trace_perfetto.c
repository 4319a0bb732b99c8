/* tidepool trace perfetto: a file for ui.perfetto.dev. */
#include "base/atomic_file.h"
#include "tools/command.h"
#include "tools/trace/trace.h"
#include "tools/trace/trace_files.h"
#include "tools/trace/trace_picture.h"

static tide_status picture_write(const tide_traces *traces, const char *path)
{
    char why[256];
    tide_atomic_file file;
    tide_status status = tide_atomic_file_open("timeline", path, &file);
    if (status != TIDE_OK)
        return status;
    status = tide_trace_pictures_write((const tide_trace_model *const *)traces->models, traces->count,
                                       file.stream);
    if (status == TIDE_OK)
        return tide_atomic_file_finish(&file);
    snprintf(why, sizeof why, "%s", tide_message());
    tide_atomic_file_abandon(&file);
    return tide_fail(status, "timeline %s: %s", path, why);
}

int tide_trace_perfetto_command(int count, char *const *arguments)
{
    const tide_option_table *table = &tide_trace_perfetto_options;
    tide_trace_perfetto_settings settings = {0};
    tide_traces traces;
    if (tide_options_asked(count, arguments, "--help") || tide_options_asked(count, arguments, "-h")) {
        tide_options_help(table, stdout);
        return TIDE_EXIT_OK;
    }
    tide_status status = tide_options_parse(table, count, arguments, &settings, NULL);
    if (status == TIDE_OK)
        status = tide_trace_output_check(table->command, &settings.files, settings.out);
    if (status != TIDE_OK)
        return tide_command_failed(table->command, status);
    const int exit_status = tide_traces_read_or_tell(table->command, &settings.files, &traces);
    if (exit_status != TIDE_EXIT_OK)
        return exit_status;
    status = picture_write(&traces, settings.out);
    tide_traces_free(&traces);
    return status == TIDE_OK ? TIDE_EXIT_OK : tide_command_failed(table->command, status);
}
