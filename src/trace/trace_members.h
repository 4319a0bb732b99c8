/* What reads a trace, and how it takes the members of a line that are more than a number: texts, kept as long as the
 * model, numbers of what the trace has tables of, lists that grow.
 */
#ifndef TIDE_TRACE_TRACE_MEMBERS_H
#define TIDE_TRACE_TRACE_MEMBERS_H

#include "src/trace/trace_model.h"
#include "src/trace/trace_scan.h"

/* Memory that is given back all at once. Zeroed: empty. */
typedef struct tide_trace_block tide_trace_block;
typedef struct tide_trace_memory {
    tide_trace_block *blocks;
} tide_trace_memory;

/* NULL: no memory. Aligned for anything. */
void *tide_trace_memory_take(tide_trace_memory *memory, size_t bytes);
void tide_trace_memory_free(tide_trace_memory *memory);

typedef struct tide_trace_reader {
    tide_trace_model *model;
    tide_trace_memory *memory;
    tide_trace_scan scan;
    bool has_begun;              /* the line `trace` has been read */
    bool has_ended;              /* the line `end`: nothing may follow */
    uint64_t dropped;            /* told by events */
    uint32_t passes_before_drop; /* as the last event `dropped` was read */
    uint32_t activations_used;   /* by ops: the highest number plus one */
    uint64_t activations_used_line;
} tide_trace_reader;

/* Room for one more of `count`, whose items have `bytes`; the list may have moved. False, and the line refused: no
 * memory. */
bool tide_trace_reserve(tide_trace_reader *reader, void *list, uint64_t count, size_t bytes);
/* A text member, kept as long as the model; "" once the line is refused. */
const char *tide_trace_text(tide_trace_reader *reader, const char *name);
/* A number below `count`, of which there are `what`. */
uint32_t tide_trace_number(tide_trace_reader *reader, const char *name, uint32_t count, const char *what);
/* Refuse the line if `number` is not below `count`. `name` NULL: it stands in a list. */
void tide_trace_number_check(tide_trace_reader *reader, const char *name, uint32_t number, uint32_t count,
                             const char *what);

#endif
