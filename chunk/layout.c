/* Params and checkpoints added, counted and sealed. See layout.h for the picture.
 *
 * Everything is a sum: a param's offset is the aligned end of the one before it, a chunk's number is its
 * space's first number plus its place in the space. Only one thing is stored per chunk: the first param that
 * overlaps it and how many do, so that walking a chunk's segments needs no search. PARAM and fp32 chunks have
 * tables of their own because an fp32 chunk covers 1 / parts_per_chunk of its PARAM chunk's elements.
 *
 * A param's end is not aligned, the next one's start is; the gap (less than 256 bytes) belongs to nobody and
 * is never larger than a chunk, so every PARAM and fp32 chunk overlaps at least one param.
 */
#include "chunk/array.h"
#include "chunk/layout_inside.h"

#include <stdlib.h>
#include <string.h>

enum { CHUNK_BYTES_LEAST = 4096 };
#define SPACE_BYTES_MOST (UINT64_C(1) << 50) /* so that no sum below overflows */
#define ELEMENTS_MOST    (SPACE_BYTES_MOST / sizeof(float))

const char *tide_space_name(tide_space space)
{
    static const char *const names[TIDE_SPACE_COUNT] = {"param", "master", "momentum", "variance",
                                                        "checkpoint"};
    return (unsigned)space < TIDE_SPACE_COUNT ? names[space] : "unknown";
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
    tide_names_destroy(&layout->param_names);
    tide_names_destroy(&layout->checkpoint_names);
    free(layout->params);
    free(layout->checkpoints);
    free(layout->param_overlaps);
    free(layout->state_overlaps);
    free(layout);
}

static tide_status check_name(const tide_layout *layout, const tide_names *names, const char *name)
{
    const char *kind = names == &layout->param_names ? "param" : "checkpoint";
    uint32_t other;
    if (layout->sealed)
        return tide_fail(TIDE_ERROR_STATE, "%s %s comes after seal", kind, name ? name : "(no name)");
    if (!name || !*name)
        return tide_fail(TIDE_ERROR_ARGUMENT, "a %s needs a name", kind);
    if (tide_names_find(names, name, &other))
        return tide_fail(TIDE_ERROR_ARGUMENT, "%s %s: there is one of this name", kind, name);
    return TIDE_OK;
}

tide_status tide_layout_add_param(tide_layout *layout, const char *name, uint64_t elements, uint32_t *param)
{
    tide_status status = check_name(layout, &layout->param_names, name);
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
    assert(offset % alignment_elements == 0 && offset >= layout->end_elements);
    const uint32_t number = layout->param_names.count;
    if (!tide_array_grow((void **)&layout->params, number, &layout->param_capacity, sizeof *layout->params))
        return tide_fail(TIDE_ERROR_NO_MEMORY, "layout: no memory for param %s, behind %u others", name,
                         number);
    status = tide_names_add(&layout->param_names, name);
    if (status != TIDE_OK)
        return status;
    assert(layout->param_names.count == number + 1);
    layout->params[number] = (param_entry){.elements = elements, .offset_elements = offset};
    layout->end_elements = offset + elements;
    *param = number;
    return TIDE_OK;
}

tide_status tide_layout_add_checkpoint(tide_layout *layout, const char *name, uint32_t parts,
                                       uint64_t part_bytes, uint32_t *tensor)
{
    tide_status status = check_name(layout, &layout->checkpoint_names, name);
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
    assert(offset % TIDE_ALIGNMENT_BYTES == 0 && end > offset);
    const uint32_t number = layout->checkpoint_names.count;
    if (!tide_array_grow((void **)&layout->checkpoints, number, &layout->checkpoint_capacity,
                         sizeof *layout->checkpoints))
        return tide_fail(TIDE_ERROR_NO_MEMORY, "layout: no memory for checkpoint %s, behind %u others", name,
                         number);
    status = tide_names_add(&layout->checkpoint_names, name);
    if (status != TIDE_OK)
        return status;
    assert(layout->checkpoint_names.count == number + 1);
    layout->checkpoints[number] =
        (checkpoint_entry){.parts = parts, .part_bytes = part_bytes, .offset_bytes = offset};
    layout->checkpoint_bytes = end;
    layout->part_count += parts;
    *tensor = number;
    return TIDE_OK;
}

/* --- seal --- */

/* One walk over params and chunks side by side. */
static void fill_overlaps(const tide_layout *layout, overlap *overlaps, uint32_t chunks, uint64_t elements)
{
    uint32_t param = 0;
    for (uint32_t i = 0; i < chunks; i++) {
        uint64_t begin = i * elements, end = begin + elements;
        while (layout->params[param].offset_elements + layout->params[param].elements <= begin)
            param++;
        assert(param < layout->param_names.count);
        uint32_t last = param;
        while (last + 1 < layout->param_names.count && layout->params[last + 1].offset_elements < end)
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
    if (layout->param_names.count == 0)
        return tide_fail(TIDE_ERROR_ARGUMENT, "layout: there is no param");
    tide_status status = count_chunks(layout);
    if (status != TIDE_OK)
        return status;
    uint32_t params = layout->space_chunks[TIDE_SPACE_PARAM],
             states = layout->space_chunks[TIDE_SPACE_MASTER];
    assert(params > 0 && params <= states);
    assert(layout->space_chunks[TIDE_SPACE_VARIANCE] <= layout->space_chunks[TIDE_SPACE_MOMENTUM]);
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

/* --- params and checkpoints --- */

uint32_t tide_layout_params(const tide_layout *layout)
{
    return layout->param_names.count;
}

const char *tide_layout_param_name(const tide_layout *layout, uint32_t param)
{
    return tide_names_at(&layout->param_names, param);
}

bool tide_layout_find_param(const tide_layout *layout, const char *name, uint32_t *param)
{
    return tide_names_find(&layout->param_names, name, param);
}

uint64_t tide_layout_param_elements(const tide_layout *layout, uint32_t param)
{
    return param_at(layout, param)->elements;
}

uint64_t tide_layout_param_offset_elements(const tide_layout *layout, uint32_t param)
{
    return param_at(layout, param)->offset_elements;
}

uint32_t tide_layout_checkpoints(const tide_layout *layout)
{
    return layout->checkpoint_names.count;
}

const char *tide_layout_checkpoint_name(const tide_layout *layout, uint32_t tensor)
{
    return tide_names_at(&layout->checkpoint_names, tensor);
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
