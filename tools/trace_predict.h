/* What a change would do to the run of a trace: the same model and steps, played on the null device. */
#ifndef TIDE_TOOLS_TRACE_PREDICT_H
#define TIDE_TOOLS_TRACE_PREDICT_H

#include "tools/trace_steps.h"

enum { TIDE_ADVICE_BYTES = 256 };

/* One sentence, if a change is worth it; else false. */
bool tide_trace_advise(const tide_trace_steps *steps, char advice[TIDE_ADVICE_BYTES]);

#endif
