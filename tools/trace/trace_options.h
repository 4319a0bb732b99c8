/* The options of each subcommand of `tidepool trace`. */
#ifndef TIDE_TOOLS_TRACE_OPTIONS_H
#define TIDE_TOOLS_TRACE_OPTIONS_H

#include "tools/options.h"

typedef struct tide_trace_summary_settings {
    tide_option_texts files;
} tide_trace_summary_settings;

typedef struct tide_trace_html_settings {
    const char *file, *output, *steps;
} tide_trace_html_settings;

typedef struct tide_trace_perfetto_settings {
    tide_option_texts files;
    const char *out;
} tide_trace_perfetto_settings;

typedef struct tide_trace_diff_settings {
    const char *files[2]; /* A and B */
    double tolerance;
} tide_trace_diff_settings;

extern const tide_option_table tide_trace_summary_options;
extern const tide_option_table tide_trace_html_options;
extern const tide_option_table tide_trace_perfetto_options;
extern const tide_option_table tide_trace_diff_options;

#endif
