/* Finds the change that would have made a recorded run faster. */
#ifndef TIDE_TOOLS_TRACE_ADVICE_H
#define TIDE_TOOLS_TRACE_ADVICE_H

#include "src/perf/advice.h"
#include "src/trace/trace_steps.h"

/* Play the last steady step again (src/pool/player.h), with the times that its kernels, copies, mappings and
 * updates took, and try changes of device memory, chunk size, placement and prefetch. True, with the best
 * one, if it gains at least three hundredths. False also if the step as it was, played, is off by more than
 * 15%, so that the trace is not understood. The search ends after a million played ops and slices. */
bool tide_trace_advise(const tide_trace_steps *steps, tide_proposal *best);

#endif
