/* Where tensors lie: see layout.h for the picture.
 *
 * Everything is a sum: a param's offset is the aligned end of the one before it, a chunk's number is its
 * space's first number plus its place in the space. Only one thing is stored per chunk: the first param that
 * overlaps it and how many do, so that walking a chunk's segments needs no search. PARAM and fp32 chunks have
 * tables of their own because an fp32 chunk covers 1 / parts_per_chunk of its PARAM chunk's elements.
 *
 * A param's end is not aligned, the next one's start is; the gap (less than 256 bytes) belongs to nobody and
 * is never larger than a chunk, so every PARAM and fp32 chunk overlaps at least one param.
 */
#include "chunk/layout.h"

#include "chunk/names.h"

#include <assert.h>
#include <stdlib.h>

enum { CHUNK_BYTES_LEAST = 4096 };
#define SPACE_BYTES_MOST (UINT64_C(1) << 50) /* so that no sum below overflows */
#define ELEMENTS_MOST    (SPACE_BYTES_MOST / sizeof(float))

/* The params that overlap a chunk: `count` of them from `first` on. */
typedef struct overlap {
    uint32_t first;
    uint32_t count;
} overlap;

struct tide_layout {
    tide_layout_options options;
    bool sealed;
    tide_names params, checkpoints;
    uint32_t space_first[TIDE_SPACE_COUNT + 1]; /* chunk number; the last one is the count of all */
    overlap *overlaps; /* one per PARAM chunk, then one per chunk of an fp32 space, numbered as MASTER's */
};

const char *tide_space_name(tide_space space)
{
    static const char *const names[TIDE_SPACE_COUNT] = {"param", "master", "momentum", "variance",
                                                        "checkpoint"};
    return (unsigned)space < TIDE_SPACE_COUNT ? names[space] : "unknown";
}

/* --- creation --- */

static tide_status check_options(const tide_layout_options *o)
{
    if (o->chunk_bytes < CHUNK_BYTES_LEAST || o->chunk_bytes & (o->chunk_bytes - 1))
        return tide_fail(TIDE_ERROR_ARGUMENT,
                         "layout: chunk size %llu bytes is not a power of two of at least %d",
                         (unsigned long long)o->chunk_bytes, CHUNK_BYTES_LEAST);
    if (o->dtype != TIDE_DTYPE_FP32 && o->dtype != TIDE_DTYPE_BF16 && o->dtype != TIDE_DTYPE_FP16)
        return tide_fail(TIDE_ERROR_ARGUMENT, "layout: dtype %d is unknown", (int)o->dtype);
    if (o->states > 2)
        return tide_fail(TIDE_ERROR_ARGUMENT, "layout: %u optimizer states, 0 to 2 are known", o->states);
    return TIDE_OK;
}

tide_status tide_layout_create(const tide_layout_options *options, tide_layout **layout)
{
    tide_status status = check_options(options);
    if (status != TIDE_OK)
        return status;
    tide_layout *created = calloc(1, sizeof *created);
    if (!created)
        return tide_fail(TIDE_ERROR_NO_MEMORY, "layout: no memory for %zu bytes", sizeof *created);
    created->options = *options;
    created->params.kind = "param";
    created->checkpoints.kind = "checkpoint";
    *layout = created;
    return TIDE_OK;
}

void tide_layout_destroy(tide_layout *layout)
{
    if (!layout)
        return;
    tide_names_destroy(&layout->params);
    tide_names_destroy(&layout->checkpoints);
    free(layout->overlaps);
    free(layout);
}

static tide_status check_name(const tide_layout *layout, const tide_names *names, const char *name)
{
    if (layout->sealed)
        return tide_fail(TIDE_ERROR_STATE, "%s %s comes after seal", names->kind, name ? name : "(no name)");
    if (!name || !*name)
        return tide_fail(TIDE_ERROR_ARGUMENT, "a %s needs a name", names->kind);
    if (tide_names_find(names, name))
        return tide_fail(TIDE_ERROR_ARGUMENT, "%s %s: there is one of this name", names->kind, name);
    return TIDE_OK;
}

tide_status tide_layout_add_param(tide_layout *layout, const char *name, uint64_t elements, uint32_t *param)
{
    tide_status status = check_name(layout, &layout->params, name);
    if (status != TIDE_OK)
        return status;
    const uint64_t element_bytes = tide_dtype_bytes(layout->options.dtype);
    const uint64_t offset = tide_align_up(layout->params.end * element_bytes) / element_bytes;
    if (elements == 0 || elements > ELEMENTS_MOST || offset + elements > ELEMENTS_MOST)
        return tide_fail(
            TIDE_ERROR_ARGUMENT,
            "param %s: %llu elements behind %llu of others; it has at least 1, and all have at most 2^48",
            name, (unsigned long long)elements, (unsigned long long)offset);
    const tide_named what = {.name = (char *)name, .parts = 1, .size = elements, .offset = offset};
    return tide_names_add(&layout->params, &what, offset + elements, param);
}

tide_status tide_layout_add_checkpoint(tide_layout *layout, const char *name, uint32_t parts,
                                       uint64_t part_bytes, uint32_t *checkpoint)
{
    tide_status status = check_name(layout, &layout->checkpoints, name);
    if (status != TIDE_OK)
        return status;
    uint64_t offset = tide_align_up(layout->checkpoints.end), end = SPACE_BYTES_MOST + 1;
    if (parts > 0 && part_bytes > 0 && part_bytes <= SPACE_BYTES_MOST / parts)
        end = offset + (parts - 1) * tide_align_up(part_bytes) + part_bytes;
    if (end > SPACE_BYTES_MOST || parts > UINT32_MAX - layout->checkpoints.parts)
        return tide_fail(
            TIDE_ERROR_ARGUMENT,
            "checkpoint %s: %u parts of %llu bytes behind %llu bytes of others; it has at least 1 "
            "of 1 byte, and all have at most 2^50 bytes and 2^32 parts",
            name, parts, (unsigned long long)part_bytes, (unsigned long long)offset);
    const tide_named what = {.name = (char *)name, .parts = parts, .size = part_bytes, .offset = offset};
    return tide_names_add(&layout->checkpoints, &what, end, checkpoint);
}

/* --- seal --- */

static uint64_t chunk_elements(const tide_layout *layout, tide_space space)
{
    assert(space != TIDE_SPACE_CHECKPOINT);
    return layout->options.chunk_bytes /
           (space == TIDE_SPACE_PARAM ? tide_dtype_bytes(layout->options.dtype) : 4u);
}

/* The spaces of optimizer states that nobody uses are empty. */
static uint64_t space_bytes(const tide_layout *layout, tide_space space)
{
    if (space == TIDE_SPACE_CHECKPOINT)
        return layout->checkpoints.end;
    if (space >= TIDE_SPACE_MASTER + tide_layout_fp32_spaces(layout))
        return 0;
    return layout->params.end * (layout->options.chunk_bytes / chunk_elements(layout, space));
}

static tide_status count_chunks(tide_layout *layout)
{
    const uint64_t chunk_bytes = layout->options.chunk_bytes;
    uint64_t total = 0;
    for (int space = 0; space < TIDE_SPACE_COUNT; space++) {
        total += (space_bytes(layout, (tide_space)space) + chunk_bytes - 1) / chunk_bytes;
        if (total >= TIDE_CHUNK_NONE)
            return tide_fail(TIDE_ERROR_ARGUMENT,
                             "more than 2^32 chunks of %llu bytes: larger ones would be fewer",
                             (unsigned long long)chunk_bytes);
        layout->space_first[space + 1] = (uint32_t)total;
    }
    return TIDE_OK;
}

/* One walk over params and chunks side by side. */
static void fill_overlaps(tide_layout *layout, tide_space space)
{
    const tide_names *params = &layout->params;
    const uint64_t elements = chunk_elements(layout, space);
    overlap *overlaps = layout->overlaps + layout->space_first[space];
    uint32_t param = 0;
    for (uint32_t i = 0; i < tide_layout_space_chunks(layout, space); i++) {
        const uint64_t begin = i * elements, end = begin + elements;
        while (tide_names_at(params, param)->offset + tide_names_at(params, param)->size <= begin)
            param++;
        uint32_t last = param;
        while (last + 1 < params->count && tide_names_at(params, last + 1)->offset < end)
            last++;
        overlaps[i] = (overlap){.first = param, .count = last - param + 1};
        assert(tide_names_at(params, param)->offset < end);
    }
}

tide_status tide_layout_seal(tide_layout *layout)
{
    if (layout->sealed)
        return tide_fail(TIDE_ERROR_STATE, "layout: sealed twice");
    if (layout->params.count == 0)
        return tide_fail(TIDE_ERROR_ARGUMENT, "layout: there is no param");
    tide_status status = count_chunks(layout);
    if (status != TIDE_OK)
        return status;
    const uint32_t chunks = layout->space_first[TIDE_SPACE_MASTER + 1];
    assert(tide_layout_space_chunks(layout, TIDE_SPACE_PARAM) <=
           tide_layout_space_chunks(layout, TIDE_SPACE_MASTER));
    assert(tide_layout_space_chunks(layout, TIDE_SPACE_VARIANCE) <=
           tide_layout_space_chunks(layout, TIDE_SPACE_MOMENTUM));
    layout->overlaps = calloc(chunks, sizeof *layout->overlaps);
    if (!layout->overlaps)
        return tide_fail(TIDE_ERROR_NO_MEMORY, "layout: no memory for tables of %u chunks", chunks);
    fill_overlaps(layout, TIDE_SPACE_PARAM);
    fill_overlaps(layout, TIDE_SPACE_MASTER);
    layout->sealed = true;
    return TIDE_OK;
}

/* --- params and checkpoints --- */

uint32_t tide_layout_params(const tide_layout *layout)
{
    return layout->params.count;
}

const tide_named *tide_layout_param(const tide_layout *layout, uint32_t param)
{
    return tide_names_at(&layout->params, param);
}

bool tide_layout_find_param(const tide_layout *layout, const char *name, uint32_t *param)
{
    const tide_named *found = tide_names_find(&layout->params, name);
    if (found)
        *param = found->number;
    return found != NULL;
}

uint32_t tide_layout_checkpoints(const tide_layout *layout)
{
    return layout->checkpoints.count;
}

const tide_named *tide_layout_checkpoint(const tide_layout *layout, uint32_t checkpoint)
{
    return tide_names_at(&layout->checkpoints, checkpoint);
}

uint32_t tide_layout_parts(const tide_layout *layout)
{
    return layout->checkpoints.parts;
}

/* --- chunks --- */

uint64_t tide_layout_chunk_bytes(const tide_layout *layout)
{
    return layout->options.chunk_bytes;
}

uint32_t tide_layout_parts_per_chunk(const tide_layout *layout)
{
    return (uint32_t)(4 / tide_dtype_bytes(layout->options.dtype));
}

uint32_t tide_layout_fp32_spaces(const tide_layout *layout)
{
    return 1 + layout->options.states;
}

uint32_t tide_layout_chunk_count(const tide_layout *layout)
{
    assert(layout->sealed);
    return layout->space_first[TIDE_SPACE_COUNT];
}

uint32_t tide_layout_space_chunks(const tide_layout *layout, tide_space space)
{
    assert((unsigned)space < TIDE_SPACE_COUNT && layout->space_first[TIDE_SPACE_COUNT] > 0);
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
    uint64_t left = space_bytes(layout, space) - begin;
    assert(left > 0);
    return left < layout->options.chunk_bytes ? left : layout->options.chunk_bytes;
}

tide_chunk tide_layout_state_chunk(const tide_layout *layout, tide_chunk param_chunk, tide_space space,
                                   uint32_t part)
{
    uint32_t parts = tide_layout_parts_per_chunk(layout);
    assert(space >= TIDE_SPACE_MASTER && space <= TIDE_SPACE_VARIANCE && part < parts);
    assert(tide_layout_chunk_space(layout, param_chunk) == TIDE_SPACE_PARAM);
    uint64_t index = (uint64_t)param_chunk * parts + part;
    return index < tide_layout_space_chunks(layout, space) ? layout->space_first[space] + (uint32_t)index
                                                           : TIDE_CHUNK_NONE;
}

/* --- what lies in them --- */

void tide_layout_param_chunks(const tide_layout *layout, uint32_t param, tide_chunk *first, tide_chunk *last)
{
    const tide_named *it = tide_names_at(&layout->params, param);
    const uint64_t elements = chunk_elements(layout, TIDE_SPACE_PARAM);
    assert(layout->sealed && layout->space_first[TIDE_SPACE_PARAM] == 0);
    *first = (tide_chunk)(it->offset / elements);
    *last = (tide_chunk)((it->offset + it->size - 1) / elements);
    assert(*first <= *last && *last < layout->space_first[TIDE_SPACE_PARAM + 1]);
}

static const overlap *chunk_overlap(const tide_layout *layout, tide_chunk chunk)
{
    const tide_space space = tide_layout_chunk_space(layout, chunk);
    assert(space != TIDE_SPACE_CHECKPOINT);
    if (space > TIDE_SPACE_MASTER)
        chunk -= layout->space_first[space] - layout->space_first[TIDE_SPACE_MASTER];
    return &layout->overlaps[chunk];
}

uint32_t tide_layout_chunk_segments(const tide_layout *layout, tide_chunk chunk)
{
    return chunk_overlap(layout, chunk)->count;
}

tide_segment tide_layout_chunk_segment(const tide_layout *layout, tide_chunk chunk, uint32_t i)
{
    const overlap *over = chunk_overlap(layout, chunk);
    assert(i < over->count);
    const tide_named *param = tide_names_at(&layout->params, over->first + i);
    uint64_t elements = chunk_elements(layout, tide_layout_chunk_space(layout, chunk));
    uint64_t begin = tide_layout_chunk_index(layout, chunk) * elements, end = begin + elements;
    uint64_t from = param->offset > begin ? param->offset : begin;
    uint64_t param_end = param->offset + param->size;
    uint64_t to = param_end < end ? param_end : end;
    assert(from < to);
    return (tide_segment){.param = over->first + i,
                          .param_offset_elements = from - param->offset,
                          .chunk_offset_elements = from - begin,
                          .elements = to - from};
}

void tide_layout_checkpoint_chunks(const tide_layout *layout, uint32_t checkpoint, uint32_t part,
                                   tide_chunk *first, tide_chunk *last)
{
    const tide_named *it = tide_names_at(&layout->checkpoints, checkpoint);
    const uint64_t begin = it->offset + part * tide_align_up(it->size), end = begin + it->size;
    assert(part < it->parts);
    assert(layout->sealed);
    *first = layout->space_first[TIDE_SPACE_CHECKPOINT] + (uint32_t)(begin / layout->options.chunk_bytes);
    *last = layout->space_first[TIDE_SPACE_CHECKPOINT] + (uint32_t)((end - 1) / layout->options.chunk_bytes);
    assert(*first <= *last && *last < layout->space_first[TIDE_SPACE_COUNT]);
}
