/* The chunks of a sealed layout, the pieces that PARAM and STATE chunks have in common, and the tensors that
 * lie in them. */
#include "chunk/layout_inside.h"

#include "base/minmax.h"

#include <assert.h>

/* --- chunks --- */

uint64_t tide_layout_chunk_bytes(const tide_layout *layout)
{
    return layout->options.chunk_bytes;
}

uint32_t tide_layout_chunk_count(const tide_layout *layout)
{
    assert(layout->sealed);
    return layout->space_first[TIDE_SPACE_COUNT];
}

uint32_t tide_layout_space_chunks(const tide_layout *layout, tide_space space)
{
    assert(layout->sealed && (unsigned)space < TIDE_SPACE_COUNT);
    return layout->space_first[space + 1] - layout->space_first[space];
}

tide_chunk tide_layout_chunk(const tide_layout *layout, tide_space space, uint32_t index)
{
    assert(layout->sealed && index < tide_layout_space_chunks(layout, space));
    return layout->space_first[space] + index;
}

tide_space tide_layout_chunk_space(const tide_layout *layout, tide_chunk chunk)
{
    assert(layout->sealed && chunk < layout->space_first[TIDE_SPACE_COUNT]);
    if (chunk < layout->space_first[TIDE_SPACE_STATE])
        return TIDE_SPACE_PARAM;
    return chunk < layout->space_first[TIDE_SPACE_ACTIVATION] ? TIDE_SPACE_STATE : TIDE_SPACE_ACTIVATION;
}

uint32_t tide_layout_chunk_index(const tide_layout *layout, tide_chunk chunk)
{
    return chunk - layout->space_first[tide_layout_chunk_space(layout, chunk)];
}

static const tide_layout_class *class_of(const tide_layout *layout, tide_chunk chunk)
{
    const tide_layout_class *its = layout->classes;
    const bool is_state = tide_layout_chunk_space(layout, chunk) == TIDE_SPACE_STATE;
    assert(chunk < layout->space_first[TIDE_SPACE_ACTIVATION]);
    while (chunk >= (is_state ? its->state_end : its->param_end))
        its++;
    assert(its < layout->classes + layout->class_count);
    return its;
}

const tide_state_format *tide_layout_chunk_format(const tide_layout *layout, tide_chunk chunk)
{
    return &class_of(layout, chunk)->format;
}

/* The elements [begin, end) that a PARAM or STATE chunk covers, counted from the start of the PARAM space. */
typedef struct range {
    uint64_t begin, end;
} range;

static range range_of(const tide_layout *layout, const tide_layout_class *its, tide_chunk chunk)
{
    const bool is_state = tide_layout_chunk_space(layout, chunk) == TIDE_SPACE_STATE;
    const uint64_t class_begin = its->param_first * tide_layout_param_elements(layout);
    const uint64_t elements = is_state ? its->state_elements : tide_layout_param_elements(layout);
    const uint64_t begin =
        class_begin + (chunk - (is_state ? its->state_first : its->param_first)) * elements;
    assert(begin < class_begin + its->elements);
    return (range){begin, tide_min_u64(begin + elements, class_begin + its->elements)};
}

uint64_t tide_layout_plane_offset_bytes(const tide_layout *layout, tide_chunk state_chunk, uint32_t plane)
{
    const tide_layout_class *its = class_of(layout, state_chunk);
    const range covered = range_of(layout, its, state_chunk);
    assert(tide_layout_chunk_space(layout, state_chunk) == TIDE_SPACE_STATE && plane < its->format.planes);
    return tide_plane_offset(&its->format, plane, covered.end - covered.begin);
}

uint64_t tide_layout_chunk_used_bytes(const tide_layout *layout, tide_chunk chunk)
{
    const uint64_t chunk_bytes = layout->options.chunk_bytes;
    if (tide_layout_chunk_space(layout, chunk) == TIDE_SPACE_ACTIVATION)
        return tide_min_u64(layout->activation_bytes - tide_layout_chunk_index(layout, chunk) * chunk_bytes,
                            chunk_bytes);
    const tide_layout_class *its = class_of(layout, chunk);
    const range covered = range_of(layout, its, chunk);
    const uint64_t elements = covered.end - covered.begin;
    if (tide_layout_chunk_space(layout, chunk) == TIDE_SPACE_PARAM)
        return elements * tide_dtype_bytes(layout->options.dtype);
    const uint32_t last = its->format.planes - 1;
    return tide_plane_offset(&its->format, last, elements) + tide_plane_bytes(&its->format, last, elements);
}

/* --- pieces --- */

uint32_t tide_layout_pieces(const tide_layout *layout, tide_chunk param_chunk)
{
    const tide_layout_class *its = class_of(layout, param_chunk);
    const range covered = range_of(layout, its, param_chunk);
    assert(tide_layout_chunk_space(layout, param_chunk) == TIDE_SPACE_PARAM);
    const uint64_t class_begin = its->param_first * tide_layout_param_elements(layout);
    if (its->state_elements == 0)
        return 0;
    return (uint32_t)((covered.end - 1 - class_begin) / its->state_elements -
                      (covered.begin - class_begin) / its->state_elements + 1);
}

tide_piece tide_layout_piece(const tide_layout *layout, tide_chunk param_chunk, uint32_t i)
{
    const tide_layout_class *its = class_of(layout, param_chunk);
    const range params = range_of(layout, its, param_chunk);
    assert(i < tide_layout_pieces(layout, param_chunk));
    const uint64_t class_begin = its->param_first * tide_layout_param_elements(layout);
    const tide_chunk state_chunk =
        its->state_first + (uint32_t)((params.begin - class_begin) / its->state_elements) + i;
    const range states = range_of(layout, its, state_chunk);
    const uint64_t begin = i == 0 ? params.begin : states.begin;
    return (tide_piece){.param_chunk = param_chunk,
                        .state_chunk = state_chunk,
                        .param_offset_elements = begin - params.begin,
                        .state_offset_elements = begin - states.begin,
                        .elements = tide_min_u64(params.end, states.end) - begin};
}

uint32_t tide_layout_pieces_most(const tide_layout *layout)
{
    uint32_t most = 0;
    for (tide_chunk chunk = 0; chunk < tide_layout_space_chunks(layout, TIDE_SPACE_PARAM); chunk++) {
        const uint32_t pieces = tide_layout_pieces(layout, chunk);
        most = tide_max_u32(most, pieces);
    }
    return most;
}

void tide_layout_state_owners(const tide_layout *layout, tide_chunk state_chunk, tide_chunk *first,
                              tide_chunk *last)
{
    const tide_layout_class *its = class_of(layout, state_chunk);
    const range covered = range_of(layout, its, state_chunk);
    assert(tide_layout_chunk_space(layout, state_chunk) == TIDE_SPACE_STATE);
    *first = (tide_chunk)(covered.begin / tide_layout_param_elements(layout));
    *last = (tide_chunk)((covered.end - 1) / tide_layout_param_elements(layout));
}

/* --- what lies in them --- */

void tide_layout_param_chunks(const tide_layout *layout, uint32_t param, tide_chunk *first, tide_chunk *last)
{
    const tide_named *it = tide_names_at(&layout->params, param);
    assert(layout->sealed);
    *first = (tide_chunk)(it->offset / tide_layout_param_elements(layout));
    *last = (tide_chunk)((it->offset + it->size - 1) / tide_layout_param_elements(layout));
    assert(*first <= *last && *last < layout->classes[it->of_class].param_end);
}

uint32_t tide_layout_chunk_segments(const tide_layout *layout, tide_chunk chunk)
{
    assert(tide_layout_chunk_space(layout, chunk) == TIDE_SPACE_PARAM);
    return layout->overlaps[chunk].count;
}

uint32_t tide_layout_chunk_param(const tide_layout *layout, tide_chunk chunk, uint32_t i)
{
    assert(i < layout->overlaps[chunk].count);
    return layout->order[layout->overlaps[chunk].first + i];
}

/* The part of a chunk's i-th param that lies in `covered`, a range of its class; chunk offsets count from
 * chunk_begin. */
static tide_segment segment_in(const tide_layout *layout, tide_chunk chunk, uint32_t i, uint64_t chunk_begin,
                               range covered)
{
    assert(i < layout->overlaps[chunk].count);
    const tide_named *param = tide_layout_ordered(layout, layout->overlaps[chunk].first + i);
    const uint64_t from = tide_max_u64(param->offset, covered.begin);
    const uint64_t to = tide_min_u64(param->offset + param->size, covered.end);
    assert(from < to);
    return (tide_segment){.param = param->number,
                          .param_offset_elements = from - param->offset,
                          .chunk_offset_elements = from - chunk_begin,
                          .elements = to - from};
}

tide_segment tide_layout_chunk_segment(const tide_layout *layout, tide_chunk chunk, uint32_t i)
{
    const range covered = range_of(layout, class_of(layout, chunk), chunk);
    return segment_in(layout, chunk, i, covered.begin, covered);
}

/* The number, among the chunk's params, of the first one that ends after `element` of the class. Uses binary
 * search. */
static uint32_t first_behind(const tide_layout *layout, tide_chunk chunk, uint64_t element)
{
    uint32_t low = 0, high = layout->overlaps[chunk].count;
    while (low < high) {
        const uint32_t middle = low + (high - low) / 2;
        const tide_named *param = tide_layout_ordered(layout, layout->overlaps[chunk].first + middle);
        if (param->offset + param->size > element)
            high = middle;
        else
            low = middle + 1;
    }
    return low;
}

static range range_of_piece(const tide_layout *layout, const tide_piece *piece, uint64_t *chunk_begin)
{
    *chunk_begin = range_of(layout, class_of(layout, piece->param_chunk), piece->param_chunk).begin;
    const uint64_t begin = *chunk_begin + piece->param_offset_elements;
    return (range){begin, begin + piece->elements};
}

uint32_t tide_layout_piece_segments(const tide_layout *layout, const tide_piece *piece, uint32_t *first)
{
    const tide_chunk chunk = piece->param_chunk;
    uint64_t chunk_begin;
    const range covered = range_of_piece(layout, piece, &chunk_begin);
    uint32_t end = first_behind(layout, chunk, covered.end - 1);
    *first = first_behind(layout, chunk, covered.begin);
    /* that param may also begin after the piece */
    if (end < layout->overlaps[chunk].count &&
        tide_layout_ordered(layout, layout->overlaps[chunk].first + end)->offset < covered.end)
        end++;
    return end - *first;
}

tide_segment tide_layout_piece_segment(const tide_layout *layout, const tide_piece *piece, uint32_t i)
{
    uint64_t chunk_begin;
    const range covered = range_of_piece(layout, piece, &chunk_begin);
    return segment_in(layout, piece->param_chunk, i, chunk_begin, covered);
}

void tide_layout_activation_chunks(const tide_layout *layout, uint32_t activation, uint32_t part,
                                   tide_chunk *first, tide_chunk *last)
{
    const tide_named *it = tide_names_at(&layout->activations, activation);
    const uint64_t begin = it->offset + part * tide_align_up(it->size), end = begin + it->size;
    assert(layout->sealed && part < it->parts);
    *first = layout->space_first[TIDE_SPACE_ACTIVATION] + (uint32_t)(begin / layout->options.chunk_bytes);
    *last = layout->space_first[TIDE_SPACE_ACTIVATION] + (uint32_t)((end - 1) / layout->options.chunk_bytes);
    assert(*first <= *last && *last < layout->space_first[TIDE_SPACE_COUNT]);
}
