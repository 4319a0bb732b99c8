/* The parts of tidepool trace diff. */
#ifndef TIDE_TOOLS_TRACE_DIFF_H
#define TIDE_TOOLS_TRACE_DIFF_H

#include "tools/trace/trace_compare.h"

/* Print the files, the settings that differ, and the steps that are compared. */
void tide_diff_settings_print(const tide_comparison *comparison);

#endif
