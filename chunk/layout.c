/* Where every tensor lies. See layout.h for the picture.
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

#include <assert.h>
#include <stdlib.h>
#include <string.h>

enum { CHUNK_BYTES_LEAST = 4096 };
#define SPACE_BYTES_MOST (UINT64_C(1) << 50) /* so that no sum below overflows */
#define ELEMENTS_MOST    (SPACE_BYTES_MOST / sizeof(float))

typedef struct named {
    char *name;
    uint64_t hash;
} named;

typedef struct param_entry {
    named id;
    uint64_t elements;
    uint64_t offset_elements;
} param_entry;

typedef struct checkpoint_entry {
    named id;
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
    param_entry *params;
    uint32_t param_count;
    uint32_t param_capacity;
    checkpoint_entry *checkpoints;
    uint32_t checkpoint_count;
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

const char *tide_space_name(tide_space space)
{
    static const char *const names[TIDE_SPACE_COUNT] = {"param", "master", "momentum", "variance",
                                                        "checkpoint"};
    return (unsigned)space < TIDE_SPACE_COUNT ? names[space] : "unknown";
}

#ifndef NDEBUG
static bool is_state_space(tide_space space)
{
    return space == TIDE_SPACE_MASTER || space == TIDE_SPACE_MOMENTUM || space == TIDE_SPACE_VARIANCE;
}
#endif

/* FNV-1a: names are compared by hash first, so that thousands of params are added quickly. */
static uint64_t name_hash(const char *name)
{
    uint64_t hash = UINT64_C(14695981039346656037);
    for (; *name; name++)
        hash = (hash ^ (uint8_t)*name) * UINT64_C(1099511628211);
    return hash;
}

static bool is_named(const named *id, const char *name, uint64_t hash)
{
    return id->hash == hash && strcmp(id->name, name) == 0;
}

/* --- creation --- */

static bool is_power_of_two(uint64_t value)
{
    return value && (value & (value - 1)) == 0;
}

static tide_status check_options(const tide_layout_options *o)
{
    if (!is_power_of_two(o->chunk_bytes) || o->chunk_bytes < CHUNK_BYTES_LEAST)
        return tide_fail(TIDE_ERROR_ARGUMENT,
                         "layout: chunk size %llu bytes is not a power of two of at least %d",
                         (unsigned long long)o->chunk_bytes, CHUNK_BYTES_LEAST);
    if (o->dtype != TIDE_DTYPE_FP32 && o->dtype != TIDE_DTYPE_BF16 && o->dtype != TIDE_DTYPE_FP16)
        return tide_fail(TIDE_ERROR_ARGUMENT, "layout: dtype %d is unknown", (int)o->dtype);
    if (o->ranks == 0 || o->group_size == 0 || o->ranks % o->group_size || o->rank >= o->ranks)
        return tide_fail(TIDE_ERROR_ARGUMENT,
                         "layout: rank %u of %u in groups of %u: the group must divide the ranks", o->rank,
                         o->ranks, o->group_size);
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
    *layout = created;
    return TIDE_OK;
}

void tide_layout_destroy(tide_layout *layout)
{
    if (!layout)
        return;
    for (uint32_t i = 0; i < layout->param_count; i++)
        free(layout->params[i].id.name);
    for (uint32_t i = 0; i < layout->checkpoint_count; i++)
        free(layout->checkpoints[i].id.name);
    free(layout->params);
    free(layout->checkpoints);
    free(layout->param_overlaps);
    free(layout->state_overlaps);
    free(layout);
}

/* Room for one more entry; the array is unchanged on failure. */
static tide_status grow(void **array, uint32_t count, uint32_t *capacity, size_t entry_bytes)
{
    if (count < *capacity)
        return TIDE_OK;
    uint32_t larger = *capacity ? *capacity * 2 : 16;
    void *moved = realloc(*array, larger * entry_bytes);
    if (!moved)
        return tide_fail(TIDE_ERROR_NO_MEMORY, "layout: no memory for %u tensors", larger);
    *array = moved;
    *capacity = larger;
    return TIDE_OK;
}

static tide_status copy_name(const char *name, named *id)
{
    char *copy = strdup(name);
    if (!copy)
        return tide_fail(TIDE_ERROR_NO_MEMORY, "layout: no memory for the name %s", name);
    *id = (named){.name = copy, .hash = name_hash(name)};
    return TIDE_OK;
}

static bool find_checkpoint(const tide_layout *layout, const char *name)
{
    uint64_t hash = name_hash(name);
    for (uint32_t i = 0; i < layout->checkpoint_count; i++)
        if (is_named(&layout->checkpoints[i].id, name, hash))
            return true;
    return false;
}

static bool is_taken(const tide_layout *layout, bool is_param, const char *name)
{
    uint32_t other;
    return is_param ? tide_layout_find_param(layout, name, &other) : find_checkpoint(layout, name);
}

static tide_status check_name(const tide_layout *layout, bool is_param, const char *name)
{
    const char *kind = is_param ? "param" : "checkpoint";
    if (layout->sealed)
        return tide_fail(TIDE_ERROR_STATE, "%s %s comes after seal", kind, name ? name : "(no name)");
    if (!name || !*name)
        return tide_fail(TIDE_ERROR_ARGUMENT, "a %s needs a name", kind);
    if (is_taken(layout, is_param, name))
        return tide_fail(TIDE_ERROR_ARGUMENT, "%s %s: there is one of this name", kind, name);
    return TIDE_OK;
}

tide_status tide_layout_add_param(tide_layout *layout, const char *name, uint64_t elements, uint32_t *param)
{
    tide_status status = check_name(layout, true, name);
    if (status != TIDE_OK)
        return status;
    uint64_t alignment_elements = TIDE_ALIGNMENT_BYTES / tide_dtype_bytes(layout->options.dtype);
    uint64_t offset =
        (layout->end_elements + alignment_elements - 1) / alignment_elements * alignment_elements;
    if (elements == 0 || elements > ELEMENTS_MOST || offset + elements > ELEMENTS_MOST)
        return tide_fail(
            TIDE_ERROR_ARGUMENT,
            "param %s: %llu elements behind %llu of others; it has at least 1, and all have at most 2^48",
            name, (unsigned long long)elements, (unsigned long long)offset);
    status =
        grow((void **)&layout->params, layout->param_count, &layout->param_capacity, sizeof(param_entry));
    if (status != TIDE_OK)
        return status;
    param_entry *entry = &layout->params[layout->param_count];
    status = copy_name(name, &entry->id);
    if (status != TIDE_OK)
        return status;
    entry->elements = elements;
    entry->offset_elements = offset;
    layout->end_elements = offset + elements;
    *param = layout->param_count++;
    return TIDE_OK;
}

tide_status tide_layout_add_checkpoint(tide_layout *layout, const char *name, uint32_t parts,
                                       uint64_t part_bytes, uint32_t *tensor)
{
    tide_status status = check_name(layout, false, name);
    if (status != TIDE_OK)
        return status;
    uint64_t offset = tide_align_up(layout->checkpoint_bytes), end = SPACE_BYTES_MOST + 1;
    if (parts > 0 && part_bytes > 0 && part_bytes <= SPACE_BYTES_MOST / parts)
        end = offset + (parts - 1) * tide_align_up(part_bytes) + part_bytes;
    if (end > SPACE_BYTES_MOST || parts > UINT32_MAX - layout->part_count)
        return tide_fail(
            TIDE_ERROR_ARGUMENT,
            "checkpoint %s: %u parts of %llu bytes behind %llu bytes of others; it has at least 1 "
            "of 1 byte, and all have at most 2^50 bytes and 2^32 parts",
            name, parts, (unsigned long long)part_bytes, (unsigned long long)offset);
    status = grow((void **)&layout->checkpoints, layout->checkpoint_count, &layout->checkpoint_capacity,
                  sizeof(checkpoint_entry));
    if (status != TIDE_OK)
        return status;
    checkpoint_entry *entry = &layout->checkpoints[layout->checkpoint_count];
    status = copy_name(name, &entry->id);
    if (status != TIDE_OK)
        return status;
    entry->parts = parts;
    entry->part_bytes = part_bytes;
    entry->offset_bytes = offset;
    layout->checkpoint_bytes = end;
    layout->part_count += parts;
    *tensor = layout->checkpoint_count++;
    return TIDE_OK;
}

/* --- seal --- */

static uint64_t chunk_elements(const tide_layout *layout, tide_space space)
{
    assert(space != TIDE_SPACE_CHECKPOINT);
    return layout->options.chunk_bytes /
           (space == TIDE_SPACE_PARAM ? tide_dtype_bytes(layout->options.dtype) : 4u);
}

/* One walk over params and chunks side by side. */
static void fill_overlaps(const tide_layout *layout, overlap *overlaps, uint32_t chunks, uint64_t elements)
{
    uint32_t param = 0;
    for (uint32_t i = 0; i < chunks; i++) {
        uint64_t begin = i * elements, end = begin + elements;
        while (layout->params[param].offset_elements + layout->params[param].elements <= begin)
            param++;
        uint32_t last = param;
        while (last + 1 < layout->param_count && layout->params[last + 1].offset_elements < end)
            last++;
        overlaps[i] = (overlap){.first = param, .count = last - param + 1};
        assert(layout->params[param].offset_elements < end);
    }
}

/* The spaces of optimizer states that nobody uses are empty. */
static bool has_space(const tide_layout *layout, tide_space space)
{
    return !(space == TIDE_SPACE_MOMENTUM && layout->options.states < 1) &&
           !(space == TIDE_SPACE_VARIANCE && layout->options.states < 2);
}

static tide_status count_chunks(tide_layout *layout)
{
    uint64_t total = 0;
    for (int space = 0; space < TIDE_SPACE_COUNT; space++) {
        uint64_t bytes = layout->checkpoint_bytes;
        if (!has_space(layout, (tide_space)space))
            bytes = 0;
        else if (space != TIDE_SPACE_CHECKPOINT)
            bytes = layout->end_elements *
                    (layout->options.chunk_bytes / chunk_elements(layout, (tide_space)space));
        uint64_t chunks = (bytes + layout->options.chunk_bytes - 1) / layout->options.chunk_bytes;
        layout->space_bytes[space] = bytes;
        layout->space_chunks[space] = (uint32_t)chunks;
        layout->space_first[space] = (uint32_t)total;
        total += chunks;
        if (total >= TIDE_CHUNK_NONE)
            return tide_fail(TIDE_ERROR_ARGUMENT,
                             "more than 2^32 chunks of %llu bytes: larger ones would be fewer",
                             (unsigned long long)layout->options.chunk_bytes);
    }
    layout->space_first[TIDE_SPACE_COUNT] = (uint32_t)total;
    return TIDE_OK;
}

tide_status tide_layout_seal(tide_layout *layout)
{
    if (layout->sealed)
        return tide_fail(TIDE_ERROR_STATE, "layout: sealed twice");
    if (layout->param_count == 0)
        return tide_fail(TIDE_ERROR_ARGUMENT, "layout: there is no param");
    tide_status status = count_chunks(layout);
    if (status != TIDE_OK)
        return status;
    uint32_t params = layout->space_chunks[TIDE_SPACE_PARAM],
             states = layout->space_chunks[TIDE_SPACE_MASTER];
    overlap *param_overlaps = calloc(params, sizeof *param_overlaps);
    overlap *state_overlaps = calloc(states, sizeof *state_overlaps);
    if (!param_overlaps || !state_overlaps) {
        free(param_overlaps);
        free(state_overlaps);
        return tide_fail(TIDE_ERROR_NO_MEMORY, "layout: no memory for tables of %u chunks", params + states);
    }
    fill_overlaps(layout, param_overlaps, params, chunk_elements(layout, TIDE_SPACE_PARAM));
    fill_overlaps(layout, state_overlaps, states, chunk_elements(layout, TIDE_SPACE_MASTER));
    layout->param_overlaps = param_overlaps;
    layout->state_overlaps = state_overlaps;
    layout->sealed = true;
    return TIDE_OK;
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

/* --- params --- */

static const param_entry *param_at(const tide_layout *layout, uint32_t param)
{
    assert(param < layout->param_count);
    return &layout->params[param];
}

uint32_t tide_layout_params(const tide_layout *layout)
{
    return layout->param_count;
}

const char *tide_layout_param_name(const tide_layout *layout, uint32_t param)
{
    return param_at(layout, param)->id.name;
}

bool tide_layout_find_param(const tide_layout *layout, const char *name, uint32_t *param)
{
    uint64_t hash = name_hash(name);
    for (uint32_t i = 0; i < layout->param_count; i++)
        if (is_named(&layout->params[i].id, name, hash)) {
            *param = i;
            return true;
        }
    return false;
}

uint64_t tide_layout_param_elements(const tide_layout *layout, uint32_t param)
{
    return param_at(layout, param)->elements;
}

uint64_t tide_layout_param_offset_elements(const tide_layout *layout, uint32_t param)
{
    return param_at(layout, param)->offset_elements;
}

void tide_layout_param_chunks(const tide_layout *layout, uint32_t param, tide_space space, tide_chunk *first,
                              tide_chunk *last)
{
    const param_entry *entry = param_at(layout, param);
    uint64_t elements = chunk_elements(layout, space);
    assert(layout->sealed);
    *first = layout->space_first[space] + (uint32_t)(entry->offset_elements / elements);
    *last =
        layout->space_first[space] + (uint32_t)((entry->offset_elements + entry->elements - 1) / elements);
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

/* --- checkpoints --- */

static const checkpoint_entry *checkpoint_at(const tide_layout *layout, uint32_t tensor)
{
    assert(tensor < layout->checkpoint_count);
    return &layout->checkpoints[tensor];
}

uint32_t tide_layout_checkpoints(const tide_layout *layout)
{
    return layout->checkpoint_count;
}

const char *tide_layout_checkpoint_name(const tide_layout *layout, uint32_t tensor)
{
    return checkpoint_at(layout, tensor)->id.name;
}

uint32_t tide_layout_checkpoint_parts(const tide_layout *layout, uint32_t tensor)
{
    return checkpoint_at(layout, tensor)->parts;
}

uint64_t tide_layout_checkpoint_offset_bytes(const tide_layout *layout, uint32_t tensor, uint32_t part)
{
    const checkpoint_entry *entry = checkpoint_at(layout, tensor);
    assert(part < entry->parts);
    return entry->offset_bytes + part * tide_align_up(entry->part_bytes);
}

void tide_layout_checkpoint_chunks(const tide_layout *layout, uint32_t tensor, uint32_t part,
                                   tide_chunk *first, tide_chunk *last)
{
    uint64_t begin = tide_layout_checkpoint_offset_bytes(layout, tensor, part);
    uint64_t end = begin + checkpoint_at(layout, tensor)->part_bytes;
    assert(layout->sealed);
    *first = layout->space_first[TIDE_SPACE_CHECKPOINT] + (uint32_t)(begin / layout->options.chunk_bytes);
    *last = layout->space_first[TIDE_SPACE_CHECKPOINT] + (uint32_t)((end - 1) / layout->options.chunk_bytes);
}
