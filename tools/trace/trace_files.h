/* The files that a subcommand of `tidepool trace` reads and writes. */
#ifndef TIDE_TOOLS_TRACE_FILES_H
#define TIDE_TOOLS_TRACE_FILES_H

#include "src/trace/trace_model.h"
#include "tools/options.h"

/* Read the trace. TIDE_EXIT_OK; TIDE_EXIT_FAILURE: it can't be read or is no trace, and one line on stderr
 * says why. */
int tide_trace_read_or_tell(const char *command, const char *path, tide_trace_model **model);

/* The traces of ranks of one run, in order of the ranks; or one trace. */
typedef struct tide_traces {
    tide_trace_model *models[TIDE_OPTION_TEXTS_MAX];
    uint32_t count;
} tide_traces;

/* Read the traces. Of several, all must be of one run's ranks, each of another. TIDE_EXIT_OK;
 * TIDE_EXIT_FAILURE or, if they are no ranks of one run, TIDE_EXIT_USAGE: one line on stderr says why. */
int tide_traces_read_or_tell(const char *command, const tide_option_texts *files, tide_traces *traces);
void tide_traces_free(tide_traces *traces);

/* ARGUMENT: `out` is one of the traces or a segment of one. IO, NO_MEMORY. */
TIDE_NODISCARD tide_status tide_trace_output_check(const char *command, const tide_option_texts *files,
                                                   const char *out);

#endif
