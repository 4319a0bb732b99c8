/* The layout's struct, shared by layout.c and layout_chunks.c. */
#ifndef TIDE_CHUNK_LAYOUT_INSIDE_H
#define TIDE_CHUNK_LAYOUT_INSIDE_H

#include "chunk/layout.h"

#include "base/align.h"

typedef struct tide_layout_class {
    tide_state_format format;
    uint64_t state_elements; /* E of layout.h; 0: the class is frozen */
    uint64_t elements;       /* the end of the class's last param, from the class's start */
    uint32_t params;
    tide_chunk param_first, param_end; /* the class's PARAM chunks */
    tide_chunk state_first, state_end; /* the class's STATE chunks */
} tide_layout_class;

/* The params that overlap a chunk: order[first] to order[first + count - 1]. */
typedef struct tide_layout_overlap {
    uint32_t first;
    uint32_t count;
} tide_layout_overlap;

struct tide_layout {
    tide_layout_options options;
    bool sealed;
    tide_names params, activations;
    uint64_t activation_bytes;
    tide_layout_class classes[TIDE_CLASSES_MAX];
    uint32_t class_count;
    uint32_t *order;               /* the numbers of all params, class by class */
    tide_layout_overlap *overlaps; /* one for each PARAM chunk */
    /* number of each space's first chunk; the last entry is the number of all chunks */
    uint32_t space_first[TIDE_SPACE_COUNT + 1];
};

/* P of layout.h: the elements of a PARAM chunk. */
static inline uint64_t tide_layout_param_elements(const tide_layout *layout)
{
    return layout->options.chunk_bytes / tide_dtype_bytes(layout->options.dtype);
}

/* The i-th param of `order`. */
static inline const tide_named *tide_layout_ordered(const tide_layout *layout, uint32_t i)
{
    return tide_names_at(&layout->params, layout->order[i]);
}

enum { TIDE_PLANE_ELEMENTS = 32 }; /* tide_state_format gives the bytes of a plane for so many elements */

static inline uint64_t tide_plane_bytes(const tide_state_format *format, uint32_t plane, uint64_t elements)
{
    return tide_ceil_div(elements, TIDE_PLANE_ELEMENTS) * format->bytes[plane];
}

/* The offset of `plane` in a STATE chunk whose planes hold so many elements; with plane = planes, the aligned
 * end of the last one. */
static inline uint64_t tide_plane_offset(const tide_state_format *format, uint32_t plane, uint64_t elements)
{
    uint64_t offset = 0;
    for (uint32_t i = 0; i < plane; i++)
        offset += tide_align_up(tide_plane_bytes(format, i, elements));
    return offset;
}

#endif
