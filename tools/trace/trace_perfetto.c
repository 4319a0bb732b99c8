/* tidepool trace perfetto: a file for ui.perfetto.dev. */
#include "base/atomic_file.h"
#include "tools/command.h"
#include "tools/trace/trace.h"
#include "tools/trace/trace_files.h"
#include "tools/trace/trace_picture.h"

static tide_status picture_write(const tide_trace_model *model, const char *path)
{
    char why[256];
    tide_atomic_file file;
    tide_status status = tide_atomic_file_open("timeline", path, &file);
    if (status != TIDE_OK)
        return status;
    status = tide_trace_picture_write(model, file.stream);
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
    tide_trace_model *model = NULL;
    if (tide_options_asked(count, arguments, "--help") || tide_options_asked(count, arguments, "-h")) {
        tide_options_help(table, stdout);
        return TIDE_EXIT_OK;
    }
    tide_status status = tide_options_parse(table, count, arguments, &settings, NULL);
    if (status == TIDE_OK)
        status = tide_trace_output_check(table->command, settings.file, settings.out);
    if (status != TIDE_OK)
        return tide_command_failed(table->command, status);
    int exit_status = tide_trace_read_or_tell(table->command, settings.file, &model);
    if (exit_status != TIDE_EXIT_OK)
        return exit_status;
    status = picture_write(model, settings.out);
    tide_trace_model_free(model);
    return status == TIDE_OK ? TIDE_EXIT_OK : tide_command_failed(table->command, status);
}
