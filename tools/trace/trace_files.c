#include "tools/trace/trace_files.h"

#include "tools/command.h"
#include "tools/train/file_use.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int tide_trace_read_or_tell(const char *command, const char *path, tide_trace_model **model)
{
    tide_status status = tide_trace_model_read(path, model);
    if (status == TIDE_OK)
        return TIDE_EXIT_OK;
    (void)tide_command_failed(command, status); /* the file is at fault, not the command line */
    return TIDE_EXIT_FAILURE;
}

static int by_rank(const void *a, const void *b)
{
    const tide_trace_model *const *x = a, *const *y = b;
    return ((*x)->rank > (*y)->rank) - ((*x)->rank < (*y)->rank);
}

/* Refuses the traces that are not of the first one's run. A run of fewer ranks leaves such files of the one
 * before it, and FILE.rank-* names them, too. */
static tide_status strangers_refuse(const char *command, const tide_traces *traces)
{
    const tide_trace_model *first = traces->models[0];
    char names[512] = "", more[32] = "";
    size_t length = 0;
    uint32_t strangers = 0, unnamed = 0;
    for (uint32_t i = 1; i < traces->count; i++) {
        const tide_trace_model *other = traces->models[i];
        if (other->run == first->run && other->ranks == first->ranks)
            continue;
        const int added = snprintf(names + length, sizeof names - length, "%s%s (of %u ranks)",
                                   strangers++ > 0 ? ", " : "", other->path, other->ranks);
        /* the first is named even if its path must be cut */
        if (length == 0 || length + (size_t)added < sizeof names) {
            length = strlen(names);
        } else {
            names[length] = '\0';
            unnamed++;
        }
    }
    if (strangers == 0)
        return TIDE_OK;
    if (unnamed > 0)
        snprintf(more, sizeof more, " and %u more", unnamed);
    return tide_fail(TIDE_ERROR_ARGUMENT, "%s: %s%s %s of another run than %s (of %u ranks)", command, names,
                     more, strangers == 1 ? "is" : "are", first->path, first->ranks);
}

/* Of several sorted traces: are they of different ranks of one run? */
static tide_status ranks_check(const char *command, const tide_traces *traces)
{
    const tide_trace_model *first = traces->models[0];
    for (uint32_t i = 1; i < traces->count; i++)
        if (first->ranks == 1 || traces->models[i]->ranks == 1)
            return tide_fail(TIDE_ERROR_ARGUMENT,
                             "%s: %s and %s are no ranks of one run (to compare runs: tidepool trace diff)",
                             command, first->path, traces->models[i]->path);
    const tide_status status = strangers_refuse(command, traces);
    for (uint32_t i = 1; i < traces->count && status == TIDE_OK; i++)
        if (traces->models[i - 1]->rank == traces->models[i]->rank)
            return tide_fail(TIDE_ERROR_ARGUMENT, "%s: %s and %s are both of rank %u", command,
                             traces->models[i - 1]->path, traces->models[i]->path, traces->models[i]->rank);
    return status;
}

int tide_traces_read_or_tell(const char *command, const tide_option_texts *files, tide_traces *traces)
{
    *traces = (tide_traces){.count = 0};
    for (uint32_t i = 0; i < files->count; i++) {
        const int exit_status = tide_trace_read_or_tell(command, files->items[i], &traces->models[i]);
        if (exit_status != TIDE_EXIT_OK) {
            tide_traces_free(traces);
            return exit_status;
        }
        traces->count++;
    }
    qsort(traces->models, traces->count, sizeof(tide_trace_model *), by_rank);
    const tide_status status = ranks_check(command, traces);
    if (status == TIDE_OK)
        return TIDE_EXIT_OK;
    tide_traces_free(traces);
    return tide_command_failed(command, status);
}

void tide_traces_free(tide_traces *traces)
{
    for (uint32_t i = 0; i < traces->count; i++)
        tide_trace_model_free(traces->models[i]);
    traces->count = 0;
}

tide_status tide_trace_output_check(const char *command, const tide_option_texts *files, const char *out)
{
    const tide_file_use write = {"-o", out, TIDE_FILE_PLAIN};
    tide_status status = TIDE_OK;
    for (uint32_t i = 0; i < files->count && status == TIDE_OK; i++) {
        const tide_file_use read = {"the trace", files->items[i], TIDE_FILE_TRACE};
        status = tide_file_uses_check(command, &read, 1, &write, 1);
    }
    return status;
}
