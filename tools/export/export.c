/* tidepool export: writes a checkpoint's model as a Hugging Face folder.
 *
 * After a SIGINT or SIGTERM every read and write fails. So the export ends as with any other failure and
 * leaves no files. A second signal ends the process at once.
 */
#include "src/export/export.h"
#include "tools/command.h"
#include "tools/export/export_options.h"
#include "tools/train/stop.h"
#include "tools/train/train_report.h"
#include "tools/units.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

static const char command_name[] = "tidepool export";

/* ---- files that fail after a signal ---- */

static bool was_stopped; /* a read or write has failed because of a signal */

static bool stops(void)
{
    was_stopped = was_stopped || tide_stop_wanted();
    return was_stopped;
}

static int read_unless_stopped(void *context, int handle, uint64_t offset, void *buffer, size_t bytes,
                               size_t *done)
{
    return stops() ? ECANCELED : tide_files_posix()->read(context, handle, offset, buffer, bytes, done);
}

static int write_unless_stopped(void *context, int handle, const void *buffer, size_t bytes, size_t *done)
{
    return stops() ? ECANCELED : tide_files_posix()->write(context, handle, buffer, bytes, done);
}

static tide_files files_unless_stopped(void)
{
    tide_files files = *tide_files_posix();
    files.read = read_unless_stopped;
    files.write = write_unless_stopped;
    return files;
}

static tide_status stopped_fail(const char *out)
{
    return tide_fail(TIDE_ERROR_IO, "stopped by %s: nothing is in %.900s", tide_stop_name(), out);
}

/* ---- the export ---- */

static tide_status run(const tide_export_settings *settings)
{
    static const tide_weights_dtype dtypes[] = {TIDE_WEIGHTS_DTYPES, TIDE_WEIGHTS_BF16, TIDE_WEIGHTS_F16,
                                                TIDE_WEIGHTS_F32};
    tide_checkpoint_found found;
    tide_train_state state;
    tide_making making;
    const tide_files files = files_unless_stopped();
    tide_status status = tide_checkpoint_choose(tide_files_posix(), settings->checkpoint, &found);
    if (status == TIDE_OK)
        status = tide_checkpoint_peek(tide_files_posix(), found.path, &state);
    if (status != TIDE_OK)
        return status;
    tide_export export = {.files = &files,
                          .out = settings->out,
                          .dtype = dtypes[settings->dtype],
                          .max_shard_bytes = settings->max_shard_bytes,
                          .progress = tide_making_show,
                          .progress_context = &making};
    if (export.dtype == TIDE_WEIGHTS_DTYPES)
        export.dtype = tide_export_dtype_of(state.dtype);
    tide_making_begin(&making, stderr);
    status = tide_export_checkpoint(&export, found.path);
    tide_making_end(&making);
    if (status != TIDE_OK && was_stopped)
        return stopped_fail(settings->out);
    if (status == TIDE_OK)
        printf("%s: the model of %s, in %s\n", settings->out, found.path,
               tide_weights_dtype_name(export.dtype));
    return status;
}

int tide_command_export(int count, char *const *arguments)
{
    if (tide_options_asked(count, arguments, "--help") || tide_options_asked(count, arguments, "-h")) {
        tide_options_help(&tide_export_table, stdout);
        return TIDE_EXIT_OK;
    }
    tide_export_settings settings;
    tide_stop_install();
    tide_status status = tide_options_parse(&tide_export_table, count, arguments, &settings, NULL);
    if (status == TIDE_OK)
        status = run(&settings);
    return status == TIDE_OK ? TIDE_EXIT_OK : tide_command_failed(command_name, status);
}
