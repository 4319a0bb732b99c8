/* The files that a subcommand of `tidepool trace` reads and writes. */
#ifndef TIDE_TOOLS_TRACE_FILES_H
#define TIDE_TOOLS_TRACE_FILES_H

#include "src/trace/trace_model.h"

/* Read the trace. TIDE_EXIT_OK; or TIDE_EXIT_FAILURE, also where the file is no trace, and the reason is one line on stderr. */
int tide_trace_read_or_tell(const char *command, const char *path, tide_trace_model **model);

/* ARGUMENT: a file written to `out` would take the place of the trace itself, or of a segment of it. IO, NO_MEMORY. */
TIDE_NODISCARD tide_status tide_trace_output_check(const char *command, const char *file, const char *out);

#endif
