/* How a trace's chunks and ops are called in front of people. */
#ifndef TIDE_TOOLS_TRACE_NAMES_H
#define TIDE_TOOLS_TRACE_NAMES_H

#include "src/trace/trace_model.h"

enum { TIDE_TRACE_NAME_BYTES = 160 };

/* "param 12: h.3.attn.w +2" (its first param and how many more), "state 4", "activation 0". Returns `text`. */
const char *tide_trace_chunk_name(const tide_trace_model *model, uint32_t chunk,
                                  char text[TIDE_TRACE_NAME_BYTES]);

/* "h.3 slice 2", "h.3", "between ops". Returns `text`. */
const char *tide_trace_op_name(const tide_trace_model *model, uint32_t op, uint32_t slice,
                               char text[TIDE_TRACE_NAME_BYTES]);

#endif
