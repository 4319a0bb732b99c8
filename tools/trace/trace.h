/* tidepool trace: what a run's trace tells (docs/trace.md). Each subcommand has a file of its own,
 * trace_NAME.c, and its table of options in trace_table.c; `tide_trace_NAME_command` is a command like those of
 * command.h.
 */
#ifndef TIDE_TOOLS_TRACE_H
#define TIDE_TOOLS_TRACE_H

#include "tools/trace/trace_model.h"
#include "tools/trace/trace_options.h"

int tide_trace_summary_command(int count, char *const *arguments);
int tide_trace_html_command(int count, char *const *arguments);
int tide_trace_perfetto_command(int count, char *const *arguments);
int tide_trace_diff_command(int count, char *const *arguments);

/* Read the trace. TIDE_EXIT_OK; or TIDE_EXIT_FAILURE, a file that is none included, and its one line is on stderr. */
int tide_trace_read_or_tell(const char *command, const char *path, tide_trace_model **model);

/* ARGUMENT: what would be written to `out` would take the place of the trace itself, or of a segment of it. IO, NO_MEMORY. */
TIDE_NODISCARD tide_status tide_trace_output_check(const char *command, const char *file, const char *out);

#endif
