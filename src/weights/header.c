/* Checks a header before any of it is used: numbers are not negative, a tensor's bytes are as many as its
 * shape and dtype need, and the tensors cover the data without gap and overlap, as safetensors itself
 * demands. */
#include "src/weights/header.h"

#include "src/files/printable.h"
#include "src/weights/json.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define METADATA "__metadata__" /* texts about the file, not a tensor */

/* Bytes of an element; 0 for a dtype that is unknown here. The sizes of such tensors are not checked. */
static uint64_t element_bytes(const char *dtype)
{
    static const struct {
        const char *name;
        uint64_t bytes;
    } known[] = {{"BF16", 2}, {"F16", 2},     {"F32", 4},     {"F64", 8},     {"I64", 8}, {"I32", 4},
                 {"I16", 2},  {"I8", 1},      {"U64", 8},     {"U32", 4},     {"U16", 2}, {"U8", 1},
                 {"BOOL", 1}, {"F8_E4M3", 1}, {"F8_E5M2", 1}, {"F8_E8M0", 1}, {"C64", 8}};
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
        if (strcmp(known[i].name, dtype) == 0)
            return known[i].bytes;
    }
    return 0;
}

static bool json_u64(const json_t *item, uint64_t *value)
{
    if (!json_is_integer(item) || json_integer_value(item) < 0)
        return false;
    *value = (uint64_t)json_integer_value(item);
    return true;
}

/* Parses the shape and counts its elements; false: it is no shape, or 64 bits can't count its elements. */
static bool shape_parse(const json_t *shape, tide_weights_entry *entry, uint64_t *elements)
{
    bool none = false, too_many = false;
    uint64_t product = 1;
    if (!json_is_array(shape))
        return false;
    entry->rank = json_array_size(shape);
    for (size_t i = 0; i < json_array_size(shape); i++) {
        uint64_t dimension;
        if (!json_u64(json_array_get(shape, i), &dimension))
            return false;
        if (i < TIDE_WEIGHTS_SHAPE_SHOWN)
            entry->shape[i] = dimension;
        none = none || dimension == 0;
        too_many = too_many || __builtin_mul_overflow(product, dimension, &product);
    }
    *elements = none ? 0 : product;
    return none || !too_many;
}

static tide_status entry_parse(const char *name, const json_t *item, const char *label,
                               tide_weights_entry *entry)
{
    const json_t *range = json_object_get(item, "data_offsets");
    uint64_t elements, bytes;
    *entry = (tide_weights_entry){.name = name, .dtype = json_string_value(json_object_get(item, "dtype"))};
    if (entry->dtype == NULL || !shape_parse(json_object_get(item, "shape"), entry, &elements) ||
        json_array_size(range) != 2 || !json_u64(json_array_get(range, 0), &entry->begin) ||
        !json_u64(json_array_get(range, 1), &entry->end) || entry->begin > entry->end)
        return tide_fail(TIDE_ERROR_CORRUPT,
                         "weights %.600s: tensor %s lacks a sound dtype, shape or data_offsets", label,
                         tide_printable(name).text);
    const uint64_t one = element_bytes(entry->dtype);
    if (one != 0 && (__builtin_mul_overflow(elements, one, &bytes) || bytes != entry->end - entry->begin))
        return tide_fail(TIDE_ERROR_CORRUPT,
                         "weights %.600s: tensor %s has %" PRIu64
                         " bytes, its shape and dtype %s need %" PRIu64,
                         label, tide_printable(name).text, entry->end - entry->begin, entry->dtype, bytes);
    return TIDE_OK;
}

static tide_status entries_parse(json_t *root, const char *label, tide_weights_header *header)
{
    const char *name;
    json_t *item;
    json_object_foreach(root, name, item)
    {
        if (strcmp(name, METADATA) == 0)
            continue;
        const tide_status status = entry_parse(name, item, label, &header->entries[header->count]);
        if (status != TIDE_OK)
            return status;
        header->count++;
    }
    return TIDE_OK;
}

static int compare_places(const void *a, const void *b)
{
    const tide_weights_entry *one = a, *other = b;
    if (one->begin != other->begin)
        return one->begin < other->begin ? -1 : 1;
    return (one->end > other->end) - (one->end < other->end);
}

static tide_status coverage_check(const tide_weights_header *header, uint64_t data_bytes, const char *label)
{
    uint64_t described = 0, covered = 0;
    for (size_t i = 0; i < header->count; i++) {
        if (header->entries[i].end > described)
            described = header->entries[i].end;
    }
    if (described != data_bytes)
        return tide_fail(TIDE_ERROR_CORRUPT,
                         "weights %.600s: %s, its header describes %" PRIu64
                         " bytes of data and there are %" PRIu64,
                         label, described > data_bytes ? "truncated" : "too long", described, data_bytes);
    for (size_t i = 0; i < header->count; i++) {
        const tide_weights_entry *entry = &header->entries[i];
        if (entry->begin < covered)
            return tide_fail(TIDE_ERROR_CORRUPT,
                             "weights %.600s: tensors %s and %s overlap at byte %" PRIu64 " of its data",
                             label, tide_printable(header->entries[i - 1].name).text,
                             tide_printable(entry->name).text, entry->begin);
        if (entry->begin > covered)
            return tide_fail(TIDE_ERROR_CORRUPT,
                             "weights %.600s: a gap of %" PRIu64 " bytes before tensor %s at byte %" PRIu64
                             " of its data",
                             label, entry->begin - covered, tide_printable(entry->name).text, entry->begin);
        covered = entry->end;
    }
    return TIDE_OK;
}

tide_status tide_weights_header_parse(const char *text, size_t bytes, uint64_t data_bytes, const char *label,
                                      tide_weights_header *header)
{
    json_t *root = NULL;
    tide_status status = tide_weights_json_parse(text, bytes, label, "its header", &root);
    if (status != TIDE_OK)
        return status;
    tide_weights_header parsed = {.json = root};
    parsed.entries = calloc(json_object_size(root) + 1, sizeof *parsed.entries);
    if (parsed.entries == NULL)
        status = tide_fail(TIDE_ERROR_NO_MEMORY, "weights %.600s: no memory for its %zu tensors", label,
                           json_object_size(root));
    if (status == TIDE_OK)
        status = entries_parse(root, label, &parsed);
    if (status == TIDE_OK) {
        qsort(parsed.entries, parsed.count, sizeof *parsed.entries, compare_places);
        status = coverage_check(&parsed, data_bytes, label);
    }
    if (status == TIDE_OK)
        *header = parsed;
    else
        tide_weights_header_free(&parsed);
    return status;
}

void tide_weights_header_free(tide_weights_header *header)
{
    free(header->entries);
    json_decref(header->json);
    *header = (tide_weights_header){0};
}

bool tide_weights_header_has(const tide_weights_header *header, const char *name)
{
    return strcmp(name, METADATA) != 0 && json_object_get(header->json, name) != NULL;
}
