/* tidepool trace: reads the trace of a run (docs/trace.md). Each subcommand has a file of its own,
 * trace_NAME.c, and a table of options in trace_table.c; `tide_trace_NAME_command` is called as the commands
 * in command.h are.
 */
#ifndef TIDE_TOOLS_TRACE_H
#define TIDE_TOOLS_TRACE_H

#include "tools/trace/trace_options.h"

int tide_trace_summary_command(int count, char *const *arguments);
int tide_trace_html_command(int count, char *const *arguments);
int tide_trace_perfetto_command(int count, char *const *arguments);
int tide_trace_diff_command(int count, char *const *arguments);

#endif
