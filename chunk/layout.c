/* Where tensors lie: see layout.h for the picture.
 *
 * Everything is a sum: a param's offset is the aligned end of the one before it in its class, a chunk's
 * number is its class' first number plus its place in the class, a piece begins where its PARAM chunk does or
 * where its STATE chunk does. Only one thing is stored per PARAM chunk: the first param that overlaps it and
 * how many do, so that walking a chunk's segments needs no search.
 *
 * A param's end is not aligned, the next one's start is; the gap (less than 256 bytes) belongs to no param
 * and is never larger than a chunk, so every PARAM chunk overlaps at least one param.
 */
#include "chunk/layout_inside.h"

#include "base/align.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

enum {
    CHUNK_BYTES_LEAST = 4096,
    PIECE_ELEMENTS = 256, /* a STATE chunk holds a multiple of so many elements */
};
#define SPACE_BYTES_MOST (UINT64_C(1) << 50) /* a bound on a space, so that no sum below overflows */
#define ELEMENTS_MOST    (SPACE_BYTES_MOST / sizeof(float))

const char *tide_space_name(tide_space space)
{
    static const char *const names[TIDE_SPACE_COUNT] = {"param", "state", "activation"};
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
    created->activations.kind = "activation";
    *layout = created;
    return TIDE_OK;
}

void tide_layout_destroy(tide_layout *layout)
{
    if (!layout)
        return;
    tide_names_destroy(&layout->params);
    tide_names_destroy(&layout->activations);
    free(layout->order);
    free(layout->overlaps);
    free(layout);
}

/* --- classes --- */

/* E of layout.h: the most elements whose planes fit into a STATE chunk. */
static uint64_t most_elements(const tide_state_format *format, uint64_t chunk_bytes)
{
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < format->planes; i++)
        bytes += format->bytes[i];
    uint64_t elements = chunk_bytes * TIDE_PLANE_ELEMENTS / bytes / PIECE_ELEMENTS * PIECE_ELEMENTS;
    while (elements > 0 && tide_plane_offset(format, format->planes, elements) > chunk_bytes)
        elements -= PIECE_ELEMENTS;
    return elements;
}

static tide_status check_format(const tide_layout *layout, const tide_state_format *format)
{
    if (format->planes > TIDE_STATE_PLANES_MAX)
        return tide_fail(TIDE_ERROR_ARGUMENT, "layout: a state format of %u planes, it has at most %d",
                         format->planes, TIDE_STATE_PLANES_MAX);
    for (uint32_t i = 0; i < format->planes; i++)
        if (format->bytes[i] == 0 || format->bytes[i] > layout->options.chunk_bytes)
            return tide_fail(TIDE_ERROR_ARGUMENT,
                             "layout: plane %u of a state format has %u bytes for %d elements; it has at "
                             "least 1 and fits into a chunk of %llu",
                             i, format->bytes[i], TIDE_PLANE_ELEMENTS,
                             (unsigned long long)layout->options.chunk_bytes);
    if (format->planes > 0 && most_elements(format, layout->options.chunk_bytes) == 0)
        return tide_fail(TIDE_ERROR_ARGUMENT,
                         "layout: the state of %d elements does not fit into a chunk of %llu bytes",
                         PIECE_ELEMENTS, (unsigned long long)layout->options.chunk_bytes);
    return TIDE_OK;
}

tide_status tide_layout_add_class(tide_layout *layout, const tide_state_format *format, uint32_t *number)
{
    if (layout->sealed)
        return tide_fail(TIDE_ERROR_STATE, "layout: a class comes after seal");
    if (layout->class_count == TIDE_CLASSES_MAX)
        return tide_fail(TIDE_ERROR_ARGUMENT, "layout: more than %d classes", TIDE_CLASSES_MAX);
    const tide_status status = check_format(layout, format);
    if (status != TIDE_OK)
        return status;
    layout->classes[layout->class_count] = (tide_layout_class){
        .format = *format,
        .state_elements = format->planes ? most_elements(format, layout->options.chunk_bytes) : 0};
    *number = layout->class_count++;
    return TIDE_OK;
}

/* --- params and activations --- */

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

tide_status tide_layout_add_param(tide_layout *layout, uint32_t of_class, const char *name, uint64_t elements,
                                  uint32_t *param)
{
    tide_status status = check_name(layout, &layout->params, name);
    if (status != TIDE_OK)
        return status;
    if (of_class >= layout->class_count)
        return tide_fail(TIDE_ERROR_ARGUMENT, "param %s: there is no class %u", name, of_class);
    tide_layout_class *its = &layout->classes[of_class];
    const uint64_t element_bytes = tide_dtype_bytes(layout->options.dtype);
    const uint64_t offset = tide_align_up(its->elements * element_bytes) / element_bytes;
    if (elements == 0 || elements > ELEMENTS_MOST || offset + elements > ELEMENTS_MOST)
        return tide_fail(
            TIDE_ERROR_ARGUMENT,
            "param %s: %llu elements behind %llu of others; it has at least 1, and all have at most 2^48",
            name, (unsigned long long)elements, (unsigned long long)offset);
    const tide_named what = {
        .name = (char *)name, .of_class = of_class, .parts = 1, .size = elements, .offset = offset};
    status = tide_names_add(&layout->params, &what, param);
    if (status != TIDE_OK)
        return status;
    its->elements = offset + elements;
    its->params++;
    return TIDE_OK;
}

static bool is_same(const tide_state_format *a, const tide_state_format *b)
{
    return a->planes == b->planes && memcmp(a->bytes, b->bytes, a->planes * sizeof *a->bytes) == 0;
}

tide_status tide_layout_add_param_of(tide_layout *layout, const tide_state_format *format, const char *name,
                                     uint64_t elements, uint32_t *param)
{
    uint32_t number = 0;
    while (number < layout->class_count && !is_same(&layout->classes[number].format, format))
        number++;
    const bool is_new = number == layout->class_count;
    if (number == TIDE_CLASSES_MAX && name != NULL && !layout->sealed)
        return tide_fail(TIDE_ERROR_ARGUMENT,
                         "param %s: its state is of one kind too many; a model's params have at most %d, "
                         "frozen ones are one",
                         name, TIDE_CLASSES_MAX);
    tide_status status = is_new ? tide_layout_add_class(layout, format, &number) : TIDE_OK;
    if (status == TIDE_OK)
        status = tide_layout_add_param(layout, number, name, elements, param);
    if (status != TIDE_OK && is_new)
        layout->class_count = number;
    assert(status != TIDE_OK || layout->classes[number].params > 0);
    return status;
}

tide_status tide_layout_add_activation(tide_layout *layout, const char *name, uint32_t parts,
                                       uint64_t part_bytes, uint32_t *activation)
{
    tide_status status = check_name(layout, &layout->activations, name);
    if (status != TIDE_OK)
        return status;
    uint64_t offset = tide_align_up(layout->activation_bytes), end = SPACE_BYTES_MOST + 1;
    if (parts > 0 && part_bytes > 0 && part_bytes <= SPACE_BYTES_MOST / parts)
        end = offset + (parts - 1) * tide_align_up(part_bytes) + part_bytes;
    if (end > SPACE_BYTES_MOST || parts > UINT32_MAX - layout->activations.parts)
        return tide_fail(
            TIDE_ERROR_ARGUMENT,
            "activation %s: %u parts of %llu bytes behind %llu bytes of others; it has at least 1 "
            "of 1 byte, and all have at most 2^50 bytes and 2^32 parts",
            name, parts, (unsigned long long)part_bytes, (unsigned long long)offset);
    const tide_named what = {.name = (char *)name, .parts = parts, .size = part_bytes, .offset = offset};
    status = tide_names_add(&layout->activations, &what, activation);
    if (status != TIDE_OK)
        return status;
    layout->activation_bytes = end;
    return TIDE_OK;
}

/* --- seal --- */

/* Number all chunks: each class's PARAM chunks, then each class's STATE chunks, then the ACTIVATION
 * chunks. */
static tide_status count_chunks(tide_layout *layout)
{
    uint64_t total = 0, state = 0;
    for (uint32_t i = 0; i < layout->class_count; i++) {
        tide_layout_class *its = &layout->classes[i];
        its->param_first = (tide_chunk)total;
        total += tide_ceil_div(its->elements, tide_layout_param_elements(layout));
        its->param_end = (tide_chunk)total;
        state += its->state_elements ? tide_ceil_div(its->elements, its->state_elements) : 0;
    }
    const uint64_t activations = tide_ceil_div(layout->activation_bytes, layout->options.chunk_bytes);
    if (total + state + activations >= TIDE_CHUNK_NONE)
        return tide_fail(TIDE_ERROR_ARGUMENT,
                         "more than 2^32 chunks of %llu bytes: larger ones would be fewer",
                         (unsigned long long)layout->options.chunk_bytes);
    layout->space_first[TIDE_SPACE_STATE] = (uint32_t)total;
    for (uint32_t i = 0; i < layout->class_count; i++) {
        tide_layout_class *its = &layout->classes[i];
        its->state_first = (tide_chunk)total;
        total += its->state_elements ? tide_ceil_div(its->elements, its->state_elements) : 0;
        its->state_end = (tide_chunk)total;
    }
    layout->space_first[TIDE_SPACE_ACTIVATION] = (uint32_t)total;
    layout->space_first[TIDE_SPACE_COUNT] = (uint32_t)(total + activations);
    return TIDE_OK;
}

/* Find for each PARAM chunk of a class the params that overlap it, in one walk over both; the class's params
 * are `order` from `first` on. */
static void fill_overlaps(tide_layout *layout, const tide_layout_class *its, uint32_t first)
{
    const uint32_t end_param = first + its->params;
    const uint64_t elements = tide_layout_param_elements(layout);
    uint32_t param = first;
    for (tide_chunk chunk = its->param_first; chunk < its->param_end; chunk++) {
        const uint64_t begin = chunk * elements, end = begin + elements;
        while (tide_layout_ordered(layout, param)->offset + tide_layout_ordered(layout, param)->size <= begin)
            param++;
        uint32_t last = param;
        while (last + 1 < end_param && tide_layout_ordered(layout, last + 1)->offset < end)
            last++;
        layout->overlaps[chunk] = (tide_layout_overlap){.first = param, .count = last - param + 1};
        assert(tide_layout_ordered(layout, param)->offset < end);
    }
}

static void order_params(tide_layout *layout)
{
    uint32_t ordered = 0;
    for (uint32_t i = 0; i < layout->class_count; i++) {
        const uint32_t first = ordered;
        for (uint32_t param = 0; param < layout->params.count; param++) {
            if (layout->params.list[param]->of_class != i)
                continue;
            layout->params.list[param]->offset +=
                layout->classes[i].param_first * tide_layout_param_elements(layout);
            layout->order[ordered++] = param;
        }
        assert(ordered == first + layout->classes[i].params);
        fill_overlaps(layout, &layout->classes[i], first);
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
    const uint32_t chunks = layout->space_first[TIDE_SPACE_STATE];
    layout->order = calloc(layout->params.count, sizeof *layout->order);
    layout->overlaps = calloc(chunks, sizeof *layout->overlaps);
    if (!layout->order || !layout->overlaps) {
        free(layout->order);
        free(layout->overlaps);
        layout->order = NULL;
        layout->overlaps = NULL;
        return tide_fail(TIDE_ERROR_NO_MEMORY, "layout: no memory for tables of %u params and %u chunks",
                         layout->params.count, chunks);
    }
    order_params(layout);
    layout->sealed = true;
    return TIDE_OK;
}

/* --- params and activations, as they are --- */

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

bool tide_layout_param_is_frozen(const tide_layout *layout, uint32_t param)
{
    return layout->classes[tide_names_at(&layout->params, param)->of_class].state_elements == 0;
}

uint32_t tide_layout_activations(const tide_layout *layout)
{
    return layout->activations.count;
}

const tide_named *tide_layout_activation(const tide_layout *layout, uint32_t activation)
{
    return tide_names_at(&layout->activations, activation);
}

uint32_t tide_layout_parts(const tide_layout *layout)
{
    return layout->activations.parts;
}
