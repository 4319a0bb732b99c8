/* Which chunks there are, and which tensors lie in them. Reads a sealed layout. */
#include "chunk/layout_inside.h"

#ifndef NDEBUG
static bool is_state_space(tide_space space)
{
    return space == TIDE_SPACE_MASTER || space == TIDE_SPACE_MOMENTUM || space == TIDE_SPACE_VARIANCE;
}
#endif

uint64_t tide_layout_chunk_bytes(const tide_layout *layout)
{
    return layout->options.chunk_bytes;
}

uint32_t tide_layout_parts_per_chunk(const tide_layout *layout)
{
    return (uint32_t)(4 / tide_dtype_bytes(layout->options.dtype));
}

uint32_t tide_layout_chunk_count(const tide_layout *layout)
{
    assert(layout->sealed);
    return layout->space_first[TIDE_SPACE_COUNT];
}

uint32_t tide_layout_space_chunks(const tide_layout *layout, tide_space space)
{
    assert(layout->sealed && (unsigned)space < TIDE_SPACE_COUNT);
    return layout->space_chunks[space];
}

tide_chunk tide_layout_chunk(const tide_layout *layout, tide_space space, uint32_t index)
{
    assert(layout->sealed && index < layout->space_chunks[space]);
    return layout->space_first[space] + index;
}

tide_space tide_layout_chunk_space(const tide_layout *layout, tide_chunk chunk)
{
    assert(layout->sealed && chunk < layout->space_first[TIDE_SPACE_COUNT]);
    int space = 0;
    while (chunk >= layout->space_first[space + 1])
        space++;
    return (tide_space)space;
}

uint32_t tide_layout_chunk_index(const tide_layout *layout, tide_chunk chunk)
{
    return chunk - layout->space_first[tide_layout_chunk_space(layout, chunk)];
}

uint64_t tide_layout_chunk_used_bytes(const tide_layout *layout, tide_chunk chunk)
{
    tide_space space = tide_layout_chunk_space(layout, chunk);
    uint64_t begin = tide_layout_chunk_index(layout, chunk) * layout->options.chunk_bytes;
    uint64_t left = layout->space_bytes[space] - begin;
    assert(left > 0);
    return left < layout->options.chunk_bytes ? left : layout->options.chunk_bytes;
}

tide_chunk tide_layout_state_chunk(const tide_layout *layout, tide_chunk param_chunk, tide_space space,
                                   uint32_t part)
{
    uint32_t parts = tide_layout_parts_per_chunk(layout);
    assert(is_state_space(space) && part < parts);
    assert(tide_layout_chunk_space(layout, param_chunk) == TIDE_SPACE_PARAM);
    uint64_t index = (uint64_t)param_chunk * parts + part;
    return index < layout->space_chunks[space] ? layout->space_first[space] + (uint32_t)index
                                               : TIDE_CHUNK_NONE;
}

uint32_t tide_layout_group(const tide_layout *layout, tide_chunk param_chunk)
{
    assert(tide_layout_chunk_space(layout, param_chunk) == TIDE_SPACE_PARAM);
    return param_chunk / layout->options.group_size;
}

uint32_t tide_layout_owner(const tide_layout *layout, tide_chunk param_chunk)
{
    assert(tide_layout_chunk_space(layout, param_chunk) == TIDE_SPACE_PARAM);
    return param_chunk % layout->options.group_size;
}

bool tide_layout_is_local(const tide_layout *layout, tide_chunk param_chunk)
{
    return tide_layout_owner(layout, param_chunk) == layout->options.rank % layout->options.group_size;
}

/* --- what lies in them --- */

void tide_layout_param_chunks(const tide_layout *layout, uint32_t param, tide_space space, tide_chunk *first,
                              tide_chunk *last)
{
    const param_entry *entry = param_at(layout, param);
    uint64_t elements = chunk_elements(layout, space);
    assert(layout->sealed);
    *first = layout->space_first[space] + (uint32_t)(entry->offset_elements / elements);
    *last =
        layout->space_first[space] + (uint32_t)((entry->offset_elements + entry->elements - 1) / elements);
    assert(*first <= *last && *last < layout->space_first[space + 1]);
}

static const overlap *chunk_overlap(const tide_layout *layout, tide_chunk chunk)
{
    tide_space space = tide_layout_chunk_space(layout, chunk);
    assert(space != TIDE_SPACE_CHECKPOINT);
    uint32_t index = tide_layout_chunk_index(layout, chunk);
    return space == TIDE_SPACE_PARAM ? &layout->param_overlaps[index] : &layout->state_overlaps[index];
}

uint32_t tide_layout_chunk_segments(const tide_layout *layout, tide_chunk chunk)
{
    return chunk_overlap(layout, chunk)->count;
}

tide_segment tide_layout_chunk_segment(const tide_layout *layout, tide_chunk chunk, uint32_t i)
{
    const overlap *over = chunk_overlap(layout, chunk);
    assert(i < over->count);
    const param_entry *entry = param_at(layout, over->first + i);
    uint64_t elements = chunk_elements(layout, tide_layout_chunk_space(layout, chunk));
    uint64_t begin = tide_layout_chunk_index(layout, chunk) * elements, end = begin + elements;
    uint64_t from = entry->offset_elements > begin ? entry->offset_elements : begin;
    uint64_t param_end = entry->offset_elements + entry->elements;
    uint64_t to = param_end < end ? param_end : end;
    assert(from < to);
    return (tide_segment){.param = over->first + i,
                          .param_offset_elements = from - entry->offset_elements,
                          .chunk_offset_elements = from - begin,
                          .elements = to - from};
}

void tide_layout_checkpoint_chunks(const tide_layout *layout, uint32_t tensor, uint32_t part,
                                   tide_chunk *first, tide_chunk *last)
{
    uint64_t begin = tide_layout_checkpoint_offset_bytes(layout, tensor, part);
    uint64_t end = begin + checkpoint_at(layout, tensor)->part_bytes;
    assert(layout->sealed);
    *first = layout->space_first[TIDE_SPACE_CHECKPOINT] + (uint32_t)(begin / layout->options.chunk_bytes);
    *last = layout->space_first[TIDE_SPACE_CHECKPOINT] + (uint32_t)((end - 1) / layout->options.chunk_bytes);
    assert(*first <= *last && *last < layout->space_first[TIDE_SPACE_COUNT]);
}
