/* An op of the description: its uses, and the chunks that they touch.
 *
 * The ops own the records and fill them (ops.h); the gradients (gradients.h) read them and write `needed`.
 */
#ifndef TIDE_CHUNK_OP_RECORD_H
#define TIDE_CHUNK_OP_RECORD_H

#include "chunk/layout.h"

/* A list of chunks without duplicates. */
typedef struct tide_chunk_set {
    tide_chunk *list;
    uint32_t count;
} tide_chunk_set;

typedef struct tide_op_record {
    const char *name; /* names and uses belong to the description */
    tide_pass pass;
    const tide_use *params;
    uint32_t param_count;
    const tide_use *activations;
    uint32_t activation_count;
    uint32_t slices;
    tide_chunk_set chunks; /* the chunks of all its params */
    /* for each of these chunks: does the op's end round a gradient into it? */
    bool *modifies;
    /* for each of these chunks: does the op read a param of its group? NULL with one rank */
    bool *reads;
    tide_chunk_set *slice_chunks;
    uint32_t needed; /* number of the last search that found the op needed (gradients.h) */
} tide_op_record;

#endif
