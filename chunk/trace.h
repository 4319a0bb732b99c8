/* From a recorded step to the planner's trace: what each use does to its chunk.
 *
 * Owns scratch memory alone. Calls ops, dues (which side updates a chunk) and layout.
 */
#ifndef TIDE_CHUNK_TRACE_H
#define TIDE_CHUNK_TRACE_H

#include "chunk/dues.h"
#include "chunk/ops.h"
#include "chunk/planner.h"

typedef struct tide_trace_maker {
    const tide_layout *layout;
    const tide_ops *ops;
    const tide_dues *dues;
    uint32_t *live_parts; /* per chunk: CHECKPOINT parts with content */
    uint8_t *part_live;   /* per part, as tide_tensors numbers them */
    bool *seen;           /* per chunk */
} tide_trace_maker;

/* NO_MEMORY. Zeroed ones may be destroyed, too. */
tide_status tide_trace_maker_create(tide_trace_maker *tracer, const tide_ops *ops, const tide_dues *dues);
void tide_trace_maker_destroy(tide_trace_maker *tracer);

/* Make the trace of a recording: its uses, as they are numbered. `trace` has room for them. */
void tide_trace_maker_make(tide_trace_maker *tracer, const tide_recording *recording, bool training, tide_use_trace *trace);

#endif
