/* Computes where tensors lie, as layout.h shows it.
 *
 * Offsets and numbers follow from a few sums: a param's offset is the start of its class's first group plus
 * the param's offset in the class (description.h); a chunk's number is the number of its class's first chunk
 * plus its index in the class; a piece begins where its PARAM chunk or its STATE chunk begins. Only one table
 * is stored per PARAM chunk, to save searches: which params overlap its group.
 *
 * Between a param's end and the next one's start is a gap of less than 256 bytes, since only the start is
 * aligned. The gap is smaller than a chunk, so every group overlaps at least one param.
 */
#include "chunk/layout.h"

#include "base/align.h"
#include "base/minmax.h"

#include <assert.h>
#include <stdlib.h>

enum {
    CHUNK_BYTES_LEAST = 4096,
    PIECE_ELEMENTS = 256, /* the number of elements in a STATE chunk is a multiple of it */
    PLANE_ELEMENTS = 32,  /* tide_state_format.bytes are per so many elements */
};

/* Where a class of the description lies. */
typedef struct tide_layout_class {
    uint64_t owned;                    /* how many of its elements are this rank's (owned_elements) */
    uint64_t state_elements;           /* E; 0: frozen */
    tide_chunk param_first, param_end; /* its PARAM chunks */
    tide_chunk state_first, state_end; /* its STATE chunks */
} tide_layout_class;

/* The params that overlap a group: `count` of them, from index `first` of `order` on. */
typedef struct tide_layout_overlap {
    uint32_t first;
    uint32_t count;
} tide_layout_overlap;

struct tide_layout {
    const tide_description *description;
    uint64_t chunk_bytes;
    tide_shard shard;
    tide_layout_class classes[TIDE_CLASSES_MAX]; /* in the description's order */
    uint32_t *order;                             /* numbers of all params, class by class */
    tide_layout_overlap *overlaps;               /* per PARAM chunk */
    uint32_t space_first[TIDE_SPACE_COUNT + 1];  /* each space's first chunk, then the count of all */
};

/* The number of elements in a PARAM chunk (P in layout.h). */
static uint64_t param_elements(const tide_layout *layout)
{
    return layout->chunk_bytes / tide_dtype_bytes(layout->description->dtype);
}

/* The number of elements of a group (G P in layout.h). */
static uint64_t group_elements(const tide_layout *layout)
{
    return layout->shard.ranks * param_elements(layout);
}

static uint64_t plane_bytes(const tide_state_format *format, uint32_t plane, uint64_t elements)
{
    return tide_ceil_div(elements, PLANE_ELEMENTS) * format->bytes[plane];
}

/* The offset of a plane in a STATE chunk if each plane has `elements` elements. With `plane` = the number of
 * planes: the aligned end of the last one. */
static uint64_t plane_offset(const tide_state_format *format, uint32_t plane, uint64_t elements)
{
    uint64_t offset = 0;
    for (uint32_t i = 0; i < plane; i++)
        offset += tide_align_up(plane_bytes(format, i, elements));
    return offset;
}

const char *tide_space_name(tide_space space)
{
    static const char *const names[TIDE_SPACE_COUNT] = {"param", "state", "activation"};
    return (unsigned)space < TIDE_SPACE_COUNT ? names[space] : "unknown";
}

/* begin_of and end_of: the number of a param's first element, and the one after its last, counted from the
 * PARAM space's start. */
static uint64_t begin_of(const tide_layout *layout, const tide_named *param)
{
    return layout->classes[param->of_class].param_first * group_elements(layout) + param->offset;
}

static uint64_t end_of(const tide_layout *layout, const tide_named *param)
{
    return begin_of(layout, param) + param->size;
}

static const tide_state_format *format_of(const tide_layout *layout, const tide_layout_class *its)
{
    return &layout->description->classes[its - layout->classes].format;
}

/* The number of elements of the class that are this rank's; in the last group at least PIECE_ELEMENTS, even
 * if it has none there. */
static uint64_t owned_elements(const tide_layout *layout, uint64_t elements)
{
    const uint64_t each = param_elements(layout), rest = (elements - 1) % group_elements(layout) + 1;
    const uint64_t before = layout->shard.rank * each; /* elements of the last group that others own */
    const uint64_t last = rest <= before ? PIECE_ELEMENTS : tide_min_u64(rest - before, each);
    assert(elements > 0);
    return (elements - rest) / layout->shard.ranks + last;
}

/* The i-th param of `order`. */
static const tide_named *ordered(const tide_layout *layout, uint32_t i)
{
    return tide_names_at(&layout->description->params, layout->order[i]);
}

/* The number of elements whose planes fit into a STATE chunk (E in layout.h). */
static uint64_t most_elements(const tide_state_format *format, uint64_t chunk_bytes)
{
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < format->planes; i++)
        bytes += format->bytes[i];
    uint64_t elements = chunk_bytes * PLANE_ELEMENTS / bytes / PIECE_ELEMENTS * PIECE_ELEMENTS;
    while (elements > 0 && plane_offset(format, format->planes, elements) > chunk_bytes)
        elements -= PIECE_ELEMENTS;
    return elements;
}

/* --- creation --- */

/* Can the chunks hold the state of PIECE_ELEMENTS elements of each class? */
static tide_status check(const tide_description *description, uint64_t chunk_bytes)
{
    if (chunk_bytes < CHUNK_BYTES_LEAST || !tide_is_power_of_two(chunk_bytes))
        return tide_fail(TIDE_ERROR_ARGUMENT,
                         "layout: chunk size %llu bytes is not a power of two of at least %d",
                         (unsigned long long)chunk_bytes, CHUNK_BYTES_LEAST);
    if (description->params.count == 0)
        return tide_fail(TIDE_ERROR_ARGUMENT, "layout: there is no param");
    for (uint32_t i = 0; i < description->class_count; i++) {
        const tide_state_format *format = &description->classes[i].format;
        if (format->planes > 0 && most_elements(format, chunk_bytes) == 0)
            return tide_fail(TIDE_ERROR_ARGUMENT,
                             "layout: the state of %d elements does not fit into a chunk of %llu bytes",
                             PIECE_ELEMENTS, (unsigned long long)chunk_bytes);
    }
    return TIDE_OK;
}

/* Number all chunks: each class's PARAM chunks, then each class's STATE chunks, then the ACTIVATION
 * chunks. */
static tide_status count_chunks(tide_layout *layout)
{
    const tide_description *d = layout->description;
    uint64_t total = 0, state = 0, states[TIDE_CLASSES_MAX] = {0};
    for (uint32_t i = 0; i < d->class_count; i++) {
        tide_layout_class *its = &layout->classes[i];
        its->state_elements =
            d->classes[i].format.planes ? most_elements(&d->classes[i].format, layout->chunk_bytes) : 0;
        its->owned = owned_elements(layout, d->classes[i].elements);
        its->param_first = (tide_chunk)total;
        total += tide_ceil_div(d->classes[i].elements, group_elements(layout));
        its->param_end = (tide_chunk)total;
        if (its->state_elements > 0)
            states[i] = tide_ceil_div(its->owned, its->state_elements);
        state += states[i];
    }
    const uint64_t activations = tide_ceil_div(d->activation_bytes, layout->chunk_bytes);
    if (total + state + activations >= TIDE_CHUNK_NONE)
        return tide_fail(TIDE_ERROR_ARGUMENT,
                         "more than 2^32 chunks of %llu bytes: larger ones would be fewer",
                         (unsigned long long)layout->chunk_bytes);
    layout->space_first[TIDE_SPACE_STATE] = (uint32_t)total;
    for (uint32_t i = 0; i < d->class_count; i++) {
        tide_layout_class *its = &layout->classes[i];
        its->state_first = (tide_chunk)total;
        total += states[i];
        its->state_end = (tide_chunk)total;
    }
    layout->space_first[TIDE_SPACE_ACTIVATION] = (uint32_t)total;
    layout->space_first[TIDE_SPACE_COUNT] = (uint32_t)(total + activations);
    return TIDE_OK;
}

/* Fill the overlaps of a class's PARAM chunks. Its params are `order`[first, end_param); one loop walks over
 * the params and the chunks at the same time. */
static void fill_overlaps(tide_layout *layout, const tide_layout_class *its, uint32_t first,
                          uint32_t end_param)
{
    const uint64_t elements = group_elements(layout);
    uint32_t param = first;
    for (tide_chunk chunk = its->param_first; chunk < its->param_end; chunk++) {
        const uint64_t begin = chunk * elements, end = begin + elements;
        while (end_of(layout, ordered(layout, param)) <= begin)
            param++;
        uint32_t last = param;
        while (last + 1 < end_param && begin_of(layout, ordered(layout, last + 1)) < end)
            last++;
        layout->overlaps[chunk] = (tide_layout_overlap){.first = param, .count = last - param + 1};
        assert(begin_of(layout, ordered(layout, param)) < end);
    }
}

static void order_params(tide_layout *layout)
{
    const tide_description *d = layout->description;
    uint32_t count = 0;
    for (uint32_t i = 0; i < d->class_count; i++) {
        const uint32_t first = count;
        for (uint32_t param = 0; param < d->params.count; param++)
            if (tide_names_at(&d->params, param)->of_class == i)
                layout->order[count++] = param;
        assert(count == first + d->classes[i].params);
        fill_overlaps(layout, &layout->classes[i], first, count);
    }
}

tide_status tide_layout_create(tide_description *description, uint64_t chunk_bytes, tide_shard shard,
                               tide_layout **layout)
{
    assert(shard.ranks > 0 && shard.rank < shard.ranks);
    tide_status status = check(description, chunk_bytes);
    if (status != TIDE_OK)
        return status;
    tide_layout *made = calloc(1, sizeof *made);
    if (!made)
        return tide_fail(TIDE_ERROR_NO_MEMORY, "layout: no memory for %zu bytes", sizeof *made);
    made->description = description;
    made->chunk_bytes = chunk_bytes;
    made->shard = shard;
    status = count_chunks(made);
    const uint32_t params = description->params.count, chunks = made->space_first[TIDE_SPACE_STATE];
    if (status == TIDE_OK) {
        made->order = calloc(params, sizeof *made->order);
        made->overlaps = calloc(chunks, sizeof *made->overlaps);
        if (!made->order || !made->overlaps)
            status = tide_fail(TIDE_ERROR_NO_MEMORY,
                               "layout: no memory for tables of %u params and %u chunks", params, chunks);
    }
    if (status != TIDE_OK) {
        tide_layout_destroy(made);
        return status;
    }
    order_params(made);
    description->is_fixed = true;
    *layout = made;
    return TIDE_OK;
}

void tide_layout_destroy(tide_layout *layout)
{
    if (!layout)
        return;
    free(layout->order);
    free(layout->overlaps);
    free(layout);
}

const tide_description *tide_layout_description(const tide_layout *layout)
{
    return layout->description;
}

tide_shard tide_layout_shard(const tide_layout *layout)
{
    return layout->shard;
}

/* --- chunks --- */

uint64_t tide_layout_chunk_bytes(const tide_layout *layout)
{
    return layout->chunk_bytes;
}

uint32_t tide_layout_chunk_count(const tide_layout *layout)
{
    return layout->space_first[TIDE_SPACE_COUNT];
}

uint32_t tide_layout_space_chunks(const tide_layout *layout, tide_space space)
{
    assert((unsigned)space < TIDE_SPACE_COUNT);
    return layout->space_first[space + 1] - layout->space_first[space];
}

tide_chunk tide_layout_chunk(const tide_layout *layout, tide_space space, uint32_t index)
{
    assert(index < tide_layout_space_chunks(layout, space));
    return layout->space_first[space] + index;
}

tide_space tide_layout_chunk_space(const tide_layout *layout, tide_chunk chunk)
{
    assert(chunk < layout->space_first[TIDE_SPACE_COUNT]);
    if (chunk < layout->space_first[TIDE_SPACE_STATE])
        return TIDE_SPACE_PARAM;
    return chunk < layout->space_first[TIDE_SPACE_ACTIVATION] ? TIDE_SPACE_STATE : TIDE_SPACE_ACTIVATION;
}

uint32_t tide_layout_chunk_index(const tide_layout *layout, tide_chunk chunk)
{
    return chunk - layout->space_first[tide_layout_chunk_space(layout, chunk)];
}

uint64_t tide_layout_chunk_offset_bytes(const tide_layout *layout, tide_chunk chunk)
{
    const uint64_t index = tide_layout_chunk_index(layout, chunk);
    const bool is_param = tide_layout_chunk_space(layout, chunk) == TIDE_SPACE_PARAM;
    return (is_param ? index * layout->shard.ranks + layout->shard.rank : index) * layout->chunk_bytes;
}

static const tide_layout_class *class_of(const tide_layout *layout, tide_chunk chunk)
{
    const tide_layout_class *its = layout->classes;
    const bool is_state = tide_layout_chunk_space(layout, chunk) == TIDE_SPACE_STATE;
    assert(chunk < layout->space_first[TIDE_SPACE_ACTIVATION]);
    while (chunk >= (is_state ? its->state_end : its->param_end))
        its++;
    assert(its < layout->classes + layout->description->class_count);
    return its;
}

const tide_state_format *tide_layout_chunk_format(const tide_layout *layout, tide_chunk chunk)
{
    return format_of(layout, class_of(layout, chunk));
}

typedef struct range {
    uint64_t begin, end;
} range;

/* The elements that a PARAM or STATE chunk covers, numbered among those of its class that this rank owns. */
static range range_of(const tide_layout *layout, const tide_layout_class *its, tide_chunk chunk)
{
    const bool is_state = tide_layout_chunk_space(layout, chunk) == TIDE_SPACE_STATE;
    const uint64_t elements = is_state ? its->state_elements : param_elements(layout);
    const uint64_t begin = (chunk - (is_state ? its->state_first : its->param_first)) * elements;
    assert(begin < its->owned);
    return (range){begin, tide_min_u64(begin + elements, its->owned)};
}

uint64_t tide_layout_plane_offset_bytes(const tide_layout *layout, tide_chunk state_chunk, uint32_t plane)
{
    const tide_layout_class *its = class_of(layout, state_chunk);
    const range covered = range_of(layout, its, state_chunk);
    assert(tide_layout_chunk_space(layout, state_chunk) == TIDE_SPACE_STATE &&
           plane < format_of(layout, its)->planes);
    return plane_offset(format_of(layout, its), plane, covered.end - covered.begin);
}

uint64_t tide_layout_chunk_used_bytes(const tide_layout *layout, tide_chunk chunk)
{
    const uint64_t chunk_bytes = layout->chunk_bytes;
    if (tide_layout_chunk_space(layout, chunk) == TIDE_SPACE_ACTIVATION)
        return tide_min_u64(layout->description->activation_bytes -
                                tide_layout_chunk_index(layout, chunk) * chunk_bytes,
                            chunk_bytes);
    const tide_layout_class *its = class_of(layout, chunk);
    const range covered = range_of(layout, its, chunk);
    const uint64_t elements = covered.end - covered.begin;
    if (tide_layout_chunk_space(layout, chunk) == TIDE_SPACE_PARAM)
        return elements * tide_dtype_bytes(layout->description->dtype);
    const uint32_t last = format_of(layout, its)->planes - 1;
    return plane_offset(format_of(layout, its), last, elements) +
           plane_bytes(format_of(layout, its), last, elements);
}

/* --- pieces --- */

uint32_t tide_layout_pieces(const tide_layout *layout, tide_chunk param_chunk)
{
    const tide_layout_class *its = class_of(layout, param_chunk);
    const range covered = range_of(layout, its, param_chunk);
    assert(tide_layout_chunk_space(layout, param_chunk) == TIDE_SPACE_PARAM);
    if (its->state_elements == 0)
        return 0;
    return (uint32_t)((covered.end - 1) / its->state_elements - covered.begin / its->state_elements + 1);
}

tide_piece tide_layout_piece(const tide_layout *layout, tide_chunk param_chunk, uint32_t i)
{
    const tide_layout_class *its = class_of(layout, param_chunk);
    const range params = range_of(layout, its, param_chunk);
    assert(i < tide_layout_pieces(layout, param_chunk));
    const tide_chunk state_chunk = its->state_first + (uint32_t)(params.begin / its->state_elements) + i;
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
    *first = its->param_first + (tide_chunk)(covered.begin / param_elements(layout));
    *last = its->param_first + (tide_chunk)((covered.end - 1) / param_elements(layout));
}

/* --- params in groups --- */

void tide_layout_param_chunks(const tide_layout *layout, uint32_t param, tide_chunk *first, tide_chunk *last)
{
    const tide_named *it = tide_names_at(&layout->description->params, param);
    *first = (tide_chunk)(begin_of(layout, it) / group_elements(layout));
    *last = (tide_chunk)((end_of(layout, it) - 1) / group_elements(layout));
    assert(*first <= *last && *last < layout->classes[it->of_class].param_end);
}

uint32_t tide_layout_chunk_params(const tide_layout *layout, tide_chunk chunk)
{
    assert(tide_layout_chunk_space(layout, chunk) == TIDE_SPACE_PARAM);
    return layout->overlaps[chunk].count;
}

uint32_t tide_layout_chunk_param(const tide_layout *layout, tide_chunk chunk, uint32_t i)
{
    assert(i < layout->overlaps[chunk].count);
    return layout->order[layout->overlaps[chunk].first + i];
}

/* --- the parts of params in a chunk, numbered like the params of its group --- */

/* The number of the chunk's first element, counted from the PARAM space's start. */
static uint64_t chunk_begin(const tide_layout *layout, tide_chunk chunk)
{
    return (uint64_t)chunk * group_elements(layout) + layout->shard.rank * param_elements(layout);
}

/* `elements` elements of the chunk from `offset` on, counted from the PARAM space's start. Those behind the
 * class's last param are in no segment, since no param of the group has them. */
static range elements_in(const tide_layout *layout, tide_chunk chunk, uint64_t offset, uint64_t elements)
{
    const uint64_t begin = chunk_begin(layout, chunk) + offset;
    return (range){begin, begin + elements};
}

static range elements_of_chunk(const tide_layout *layout, tide_chunk chunk)
{
    return elements_in(layout, chunk, 0, param_elements(layout));
}

/* The number of the first param of the chunk's group that ends after `element`, by binary search. */
static uint32_t first_behind(const tide_layout *layout, tide_chunk chunk, uint64_t element)
{
    uint32_t low = 0, high = layout->overlaps[chunk].count;
    while (low < high) {
        const uint32_t middle = low + (high - low) / 2;
        const tide_named *param = ordered(layout, layout->overlaps[chunk].first + middle);
        if (end_of(layout, param) > element)
            high = middle;
        else
            low = middle + 1;
    }
    return low;
}

/* How many params of the chunk's group have a part in `covered`; *first is the number of the first. */
static uint32_t segments_in(const tide_layout *layout, tide_chunk chunk, range covered, uint32_t *first)
{
    uint32_t end = first_behind(layout, chunk, covered.end - 1);
    *first = first_behind(layout, chunk, covered.begin);
    /* the param at `end` ends after `covered`; count it if it begins before the end of `covered` */
    if (end < layout->overlaps[chunk].count &&
        begin_of(layout, ordered(layout, layout->overlaps[chunk].first + end)) < covered.end)
        end++;
    return end - *first;
}

/* The part of the i-th param of a chunk's group that lies in `covered`. */
static tide_segment segment_in(const tide_layout *layout, tide_chunk chunk, uint32_t i, range covered)
{
    assert(i < layout->overlaps[chunk].count);
    const tide_named *param = ordered(layout, layout->overlaps[chunk].first + i);
    const uint64_t param_begin = begin_of(layout, param);
    const uint64_t from = tide_max_u64(param_begin, covered.begin);
    const uint64_t to = tide_min_u64(end_of(layout, param), covered.end);
    assert(from < to);
    return (tide_segment){.param = param->number,
                          .param_offset_elements = from - param_begin,
                          .chunk_offset_elements = from - chunk_begin(layout, chunk),
                          .elements = to - from};
}

uint32_t tide_layout_chunk_segments(const tide_layout *layout, tide_chunk chunk, uint32_t *first)
{
    return segments_in(layout, chunk, elements_of_chunk(layout, chunk), first);
}

tide_segment tide_layout_chunk_segment(const tide_layout *layout, tide_chunk chunk, uint32_t i)
{
    return segment_in(layout, chunk, i, elements_of_chunk(layout, chunk));
}

static range elements_of_piece(const tide_layout *layout, const tide_piece *piece)
{
    return elements_in(layout, piece->param_chunk, piece->param_offset_elements, piece->elements);
}

uint32_t tide_layout_piece_segments(const tide_layout *layout, const tide_piece *piece, uint32_t *first)
{
    return segments_in(layout, piece->param_chunk, elements_of_piece(layout, piece), first);
}

tide_segment tide_layout_piece_segment(const tide_layout *layout, const tide_piece *piece, uint32_t i)
{
    return segment_in(layout, piece->param_chunk, i, elements_of_piece(layout, piece));
}

/* --- activations in chunks --- */

void tide_layout_activation_chunks(const tide_layout *layout, uint32_t activation, uint32_t part,
                                   tide_chunk *first, tide_chunk *last)
{
    const tide_named *it = tide_names_at(&layout->description->activations, activation);
    const uint64_t begin = it->offset + part * tide_align_up(it->size), end = begin + it->size;
    assert(part < it->parts);
    *first = layout->space_first[TIDE_SPACE_ACTIVATION] + (uint32_t)(begin / layout->chunk_bytes);
    *last = layout->space_first[TIDE_SPACE_ACTIVATION] + (uint32_t)((end - 1) / layout->chunk_bytes);
    assert(*first <= *last && *last < layout->space_first[TIDE_SPACE_COUNT]);
}

/* --- the description's params and activations --- */

uint32_t tide_layout_params(const tide_layout *layout)
{
    return layout->description->params.count;
}

const tide_named *tide_layout_param(const tide_layout *layout, uint32_t param)
{
    return tide_names_at(&layout->description->params, param);
}

uint64_t tide_layout_param_offset(const tide_layout *layout, uint32_t param)
{
    return begin_of(layout, tide_layout_param(layout, param));
}

uint32_t tide_layout_activations(const tide_layout *layout)
{
    return layout->description->activations.count;
}

const tide_named *tide_layout_activation(const tide_layout *layout, uint32_t activation)
{
    return tide_names_at(&layout->description->activations, activation);
}

uint32_t tide_layout_parts(const tide_layout *layout)
{
    return layout->description->activations.parts;
}
