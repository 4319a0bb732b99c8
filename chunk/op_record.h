/* What an op is once it is registered: its uses, and the chunks that they make of it.
 *
 * The ops own the records and fill them (ops.h); the rule of gradients reads them and marks what it finds needed.
 */
#ifndef TIDE_CHUNK_OP_RECORD_H
#define TIDE_CHUNK_OP_RECORD_H

#include "chunk/layout.h"

typedef uint32_t tide_op;

#define TIDE_OP_NONE UINT32_MAX

/* Chunks, each once. */
typedef struct tide_chunk_set {
    tide_chunk *list;
    uint32_t count;
} tide_chunk_set;

typedef struct tide_op_record {
    char *name;
    tide_pass pass;
    tide_use *params;
    uint32_t param_count;
    tide_use *activations;
    uint32_t activation_count;
    uint32_t slices;
    tide_chunk_set chunks; /* of all its params */
    bool *modifies; /* per one of them: a gradient is rounded into it at op end. Filled by tide_ops_seal */
    tide_chunk_set *slice_chunks;
    uint32_t needed; /* the gradients' own: found to be needed in this look of theirs */
} tide_op_record;

#endif
