/* The files that a subcommand of `tidepool trace` reads and writes. */
#ifndef TIDE_TOOLS_TRACE_FILES_H
#define TIDE_TOOLS_TRACE_FILES_H

#include "src/trace/trace_model.h"

/* Read the trace. TIDE_EXIT_OK; TIDE_EXIT_FAILURE: it can't be read or is no trace, and one line on stderr
 * says why. */
int tide_trace_read_or_tell(const char *command, const char *path, tide_trace_model **model);

/* ARGUMENT: `out` is the trace itself or a segment of it. IO, NO_MEMORY. */
TIDE_NODISCARD tide_status tide_trace_output_check(const char *command, const char *file, const char *out);

#endif
