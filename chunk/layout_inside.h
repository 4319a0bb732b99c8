/* What a layout holds. Params and checkpoints are added and counted in layout.c, which alone writes here, up to seal;
 * layout_chunks.c reads where they lie.
 */
#ifndef TIDE_CHUNK_LAYOUT_INSIDE_H
#define TIDE_CHUNK_LAYOUT_INSIDE_H

#include "chunk/layout.h"
#include "chunk/names.h"

#include <assert.h>

typedef struct param_entry {
    uint64_t elements;
    uint64_t offset_elements;
} param_entry;

typedef struct checkpoint_entry {
    uint32_t parts;
    uint64_t part_bytes;
    uint64_t offset_bytes;
} checkpoint_entry;

/* The params that overlap a chunk: `count` of them from `first` on. */
typedef struct overlap {
    uint32_t first;
    uint32_t count;
} overlap;

struct tide_layout {
    tide_layout_options options;
    bool sealed;
    tide_names param_names; /* their count is the params' */
    param_entry *params;
    uint32_t param_capacity;
    tide_names checkpoint_names;
    checkpoint_entry *checkpoints;
    uint32_t checkpoint_capacity;
    uint64_t end_elements;     /* of the last param */
    uint64_t checkpoint_bytes; /* end of the last part */
    uint32_t part_count;       /* of all checkpoints */
    uint64_t space_bytes[TIDE_SPACE_COUNT];
    uint32_t space_chunks[TIDE_SPACE_COUNT];
    uint32_t space_first[TIDE_SPACE_COUNT + 1]; /* chunk number; the last one is the count of all */
    overlap *param_overlaps;                    /* one per PARAM chunk */
    overlap *state_overlaps;                    /* one per chunk of an fp32 space */
};

static inline uint64_t chunk_elements(const tide_layout *layout, tide_space space)
{
    assert(space != TIDE_SPACE_CHECKPOINT);
    return layout->options.chunk_bytes /
           (space == TIDE_SPACE_PARAM ? tide_dtype_bytes(layout->options.dtype) : 4u);
}

static inline const param_entry *param_at(const tide_layout *layout, uint32_t param)
{
    assert(param < layout->param_names.count);
    return &layout->params[param];
}

static inline const checkpoint_entry *checkpoint_at(const tide_layout *layout, uint32_t tensor)
{
    assert(tensor < layout->checkpoint_names.count);
    return &layout->checkpoints[tensor];
}

#endif
