/* Checks a header before any of it is used: numbers are not negative, a tensor's bytes are as many as its
 * shape and dtype need, and the tensors cover the data without gap and overlap, as safetensors itself
 * demands. */
#include "src/safetensors/safetensors.h"

#include "base/text.h"
#include "src/safetensors/json.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define METADATA "__metadata__" /* texts about the file, not a tensor */

/* Parsing a header takes 13 times its bytes of memory, and 90 ns per byte. So the reader refuses a header
 * that is larger than a model of so many tensors can need. An entry has some 150 bytes and a name of at most
 * 255 bytes, each of which may take 6 bytes as an escape. "__metadata__" has some 100 bytes, in some files
 * some 100 KB. */
enum { ENTRY_BYTES = 2048, FREE_BYTES = 4 << 20 };

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
static bool shape_parse(const json_t *shape, tide_safetensors_entry *entry, uint64_t *elements)
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
        if (i < TIDE_SAFETENSORS_SHAPE_SHOWN)
            entry->shape[i] = dimension;
        none = none || dimension == 0;
        too_many = too_many || __builtin_mul_overflow(product, dimension, &product);
    }
    *elements = none ? 0 : product;
    return none || !too_many;
}

static tide_status entry_parse(const char *name, const json_t *item, const tide_file *file,
                               tide_safetensors_entry *entry)
{
    const json_t *range = json_object_get(item, "data_offsets");
    uint64_t elements, bytes;
    *entry =
        (tide_safetensors_entry){.name = name, .dtype = json_string_value(json_object_get(item, "dtype"))};
    if (entry->dtype == NULL || !shape_parse(json_object_get(item, "shape"), entry, &elements) ||
        json_array_size(range) != 2 || !json_u64(json_array_get(range, 0), &entry->begin) ||
        !json_u64(json_array_get(range, 1), &entry->end) || entry->begin > entry->end)
        return tide_fail(TIDE_ERROR_CORRUPT,
                         "%s %.800s: tensor %s lacks a sound dtype, shape or data_offsets", file->noun,
                         file->path, tide_printable(name).text);
    const uint64_t one = element_bytes(entry->dtype);
    if (one != 0 && (__builtin_mul_overflow(elements, one, &bytes) || bytes != entry->end - entry->begin))
        return tide_fail(TIDE_ERROR_CORRUPT,
                         "%s %.800s: tensor %s has %" PRIu64 " bytes, its shape and dtype %s need %" PRIu64,
                         file->noun, file->path, tide_printable(name).text, entry->end - entry->begin,
                         entry->dtype, bytes);
    return TIDE_OK;
}

static tide_status entries_parse(json_t *root, const tide_file *file, tide_safetensors_header *header)
{
    const char *name;
    json_t *item;
    json_object_foreach(root, name, item)
    {
        if (strcmp(name, METADATA) == 0)
            continue;
        const tide_status status = entry_parse(name, item, file, &header->entries[header->count]);
        if (status != TIDE_OK)
            return status;
        header->count++;
    }
    return TIDE_OK;
}

static int compare_places(const void *a, const void *b)
{
    const tide_safetensors_entry *one = a, *other = b;
    if (one->begin != other->begin)
        return one->begin < other->begin ? -1 : 1;
    return (one->end > other->end) - (one->end < other->end);
}

static tide_status coverage_check(const tide_safetensors_header *header, const tide_file *file)
{
    const uint64_t data_bytes = file->bytes - header->data_start;
    uint64_t described = 0, covered = 0;
    for (size_t i = 0; i < header->count; i++) {
        if (header->entries[i].end > described)
            described = header->entries[i].end;
    }
    if (described != data_bytes)
        return tide_fail(
            TIDE_ERROR_CORRUPT,
            "%s %.800s: %s, its header describes %" PRIu64 " bytes of data and there are %" PRIu64,
            file->noun, file->path, described > data_bytes ? "truncated" : "too long", described, data_bytes);
    for (size_t i = 0; i < header->count; i++) {
        const tide_safetensors_entry *entry = &header->entries[i];
        if (entry->begin < covered)
            return tide_fail(TIDE_ERROR_CORRUPT,
                             "%s %.800s: tensors %s and %s overlap at byte %" PRIu64 " of its data",
                             file->noun, file->path, tide_printable(header->entries[i - 1].name).text,
                             tide_printable(entry->name).text, entry->begin);
        if (entry->begin > covered)
            return tide_fail(TIDE_ERROR_CORRUPT,
                             "%s %.800s: a gap of %" PRIu64 " bytes before tensor %s at byte %" PRIu64
                             " of its data",
                             file->noun, file->path, entry->begin - covered, tide_printable(entry->name).text,
                             entry->begin);
        covered = entry->end;
    }
    return TIDE_OK;
}

static int compare_names(const void *a, const void *b)
{
    return strcmp(((const tide_safetensors_entry *)a)->name, ((const tide_safetensors_entry *)b)->name);
}

tide_status tide_safetensors_parse(const tide_file *file, const char *text, size_t bytes,
                                   tide_safetensors_header *header)
{
    json_t *root = NULL;
    tide_status status = tide_json_object_parse(text, bytes, file->noun, file->path, "its header", &root);
    if (status != TIDE_OK)
        return status;
    tide_safetensors_header parsed = {.json = root, .data_start = TIDE_SAFETENSORS_LENGTH_BYTES + bytes};
    assert(file->bytes >= parsed.data_start);
    parsed.entries = calloc(json_object_size(root) + 1, sizeof *parsed.entries);
    if (parsed.entries == NULL)
        status = tide_fail(TIDE_ERROR_NO_MEMORY, "%s %.800s: no memory for its %zu tensors", file->noun,
                           file->path, json_object_size(root));
    if (status == TIDE_OK)
        status = entries_parse(root, file, &parsed);
    if (status == TIDE_OK) {
        qsort(parsed.entries, parsed.count, sizeof *parsed.entries, compare_places);
        status = coverage_check(&parsed, file);
    }
    if (status != TIDE_OK) {
        tide_safetensors_free(&parsed);
        return status;
    }
    qsort(parsed.entries, parsed.count, sizeof *parsed.entries, compare_names);
    *header = parsed;
    return TIDE_OK;
}

void tide_safetensors_free(tide_safetensors_header *header)
{
    free(header->entries);
    json_decref(header->json);
    *header = (tide_safetensors_header){0};
}

/* ---- reading ---- */

uint64_t tide_safetensors_most_bytes(size_t tensors)
{
    const uint64_t most = FREE_BYTES + (uint64_t)ENTRY_BYTES * tensors;
    return most < TIDE_SAFETENSORS_MAX_BYTES ? most : TIDE_SAFETENSORS_MAX_BYTES;
}

tide_status tide_safetensors_length(const tide_file *file, uint64_t *header_bytes)
{
    unsigned char raw[TIDE_SAFETENSORS_LENGTH_BYTES];
    uint64_t length = 0;
    if (file->bytes < sizeof raw)
        return tide_fail(TIDE_ERROR_CORRUPT, "%s %.800s: truncated, it has %" PRIu64 " bytes", file->noun,
                         file->path, file->bytes);
    const tide_status status = tide_file_get(file, 0, raw, sizeof raw);
    if (status != TIDE_OK)
        return status;
    if (memcmp(raw, "version ", sizeof raw) == 0)
        return tide_fail(
            TIDE_ERROR_CORRUPT,
            "%s %.800s: this is Git LFS's pointer to the file, get the file itself (git lfs pull)",
            file->noun, file->path);
    for (size_t i = sizeof raw; i-- > 0;)
        length = length << 8 | raw[i];
    if (length > TIDE_SAFETENSORS_MAX_BYTES)
        return tide_fail(TIDE_ERROR_CORRUPT,
                         "%s %.800s: not a safetensors file, its header would have %" PRIu64
                         " bytes, at most %d may be",
                         file->noun, file->path, length, TIDE_SAFETENSORS_MAX_BYTES);
    if (length > file->bytes - sizeof raw)
        return tide_fail(TIDE_ERROR_CORRUPT,
                         "%s %.800s: truncated, its header needs %" PRIu64 " bytes and there are %" PRIu64,
                         file->noun, file->path, length, file->bytes - sizeof raw);
    *header_bytes = length;
    return TIDE_OK;
}

tide_status tide_safetensors_read(const tide_file *file, size_t tensors, tide_safetensors_header *header)
{
    uint64_t length = 0;
    char *text;
    tide_status status = tide_safetensors_length(file, &length);
    if (status == TIDE_OK && length > tide_safetensors_most_bytes(tensors))
        return tide_fail(TIDE_ERROR_CORRUPT,
                         "%s %.800s: its header would have %" PRIu64
                         " bytes, of a model of %zu tensors at most %" PRIu64 " may be",
                         file->noun, file->path, length, tensors, tide_safetensors_most_bytes(tensors));
    if (status == TIDE_OK)
        status = tide_file_text(file, TIDE_SAFETENSORS_LENGTH_BYTES, (size_t)length, &text);
    if (status != TIDE_OK)
        return status;
    status = tide_safetensors_parse(file, text, (size_t)length, header);
    free(text);
    return status;
}

static int compare_name(const void *name, const void *entry)
{
    return strcmp(name, ((const tide_safetensors_entry *)entry)->name);
}

const tide_safetensors_entry *tide_safetensors_find(const tide_safetensors_header *header, const char *name)
{
    return bsearch(name, header->entries, header->count, sizeof *header->entries, compare_name);
}

void tide_safetensors_shape_text(uint64_t rank, const uint64_t *shape,
                                 char text[TIDE_SAFETENSORS_SHAPE_BYTES])
{
    size_t length = (size_t)snprintf(text, TIDE_SAFETENSORS_SHAPE_BYTES, "[");
    for (uint64_t i = 0; i < rank && i < TIDE_SAFETENSORS_SHAPE_SHOWN; i++)
        length += (size_t)snprintf(text + length, TIDE_SAFETENSORS_SHAPE_BYTES - length, "%s%" PRIu64,
                                   i > 0 ? ", " : "", shape[i]);
    snprintf(text + length, TIDE_SAFETENSORS_SHAPE_BYTES - length, "%s]",
             rank > TIDE_SAFETENSORS_SHAPE_SHOWN ? ", ..." : "");
}

tide_status tide_safetensors_shape_check(const tide_file *file, const tide_safetensors_entry *entry,
                                         uint32_t rank, const uint64_t *shape)
{
    assert(rank <= TIDE_SAFETENSORS_SHAPE_SHOWN);
    if (entry->rank == rank && memcmp(entry->shape, shape, rank * sizeof *shape) == 0)
        return TIDE_OK;
    char found[TIDE_SAFETENSORS_SHAPE_BYTES], wanted[TIDE_SAFETENSORS_SHAPE_BYTES];
    tide_safetensors_shape_text(entry->rank, entry->shape, found);
    tide_safetensors_shape_text(rank, shape, wanted);
    return tide_fail(TIDE_ERROR_MISMATCH, "%s %.800s: tensor %s has shape %s, it must be %s", file->noun,
                     file->path, tide_printable(entry->name).text, found, wanted);
}

/* ---- writing ---- */

tide_safetensors_draft tide_safetensors_draft_begin(void)
{
    return (tide_safetensors_draft){.json = json_pack("{s:{s:s}}", METADATA, "format", "pt")};
}

/* After a failure the draft has no JSON, and adding to it does nothing. */
void tide_safetensors_draft_add(tide_safetensors_draft *draft, const char *name, const char *dtype,
                                uint32_t rank, const uint64_t *shape)
{
    const uint64_t begin = draft->data_bytes;
    uint64_t bytes = element_bytes(dtype);
    json_t *dimensions = json_array();
    int failed = 0;
    for (uint32_t i = 0; i < rank; i++) {
        failed |= json_array_append_new(dimensions, json_integer((json_int_t)shape[i]));
        bytes *= shape[i];
    }
    draft->data_bytes += bytes;
    if (json_object_get(draft->json, name) != NULL)
        draft->twice = name;
    json_t *entry = json_pack("{s:s, s:o, s:[I,I]}", "dtype", dtype, "shape", dimensions, "data_offsets",
                              (json_int_t)begin, (json_int_t)draft->data_bytes);
    if (json_object_set_new(draft->json, name, entry) != 0 || failed) {
        json_decref(draft->json);
        draft->json = NULL;
    }
}

/* Puts the length in front of the text and pads the text, so that the data starts at a multiple of 8. */
static tide_status header_frame(const char *text, const char *noun, char **header, size_t *header_bytes)
{
    const size_t text_bytes = strlen(text), padded_bytes = (text_bytes + 7) / 8 * 8;
    if (padded_bytes > TIDE_SAFETENSORS_MAX_BYTES)
        return tide_fail(TIDE_ERROR_ARGUMENT, "%s: a header of %zu bytes, at most %d may be", noun,
                         padded_bytes, TIDE_SAFETENSORS_MAX_BYTES);
    char *framed = malloc(TIDE_SAFETENSORS_LENGTH_BYTES + padded_bytes);
    if (framed == NULL)
        return tide_fail(TIDE_ERROR_NO_MEMORY, "%s: no memory for a header of %zu bytes", noun, padded_bytes);
    for (int i = 0; i < TIDE_SAFETENSORS_LENGTH_BYTES; i++)
        framed[i] = (char)((uint64_t)padded_bytes >> (8 * i) & 0xff);
    memcpy(framed + TIDE_SAFETENSORS_LENGTH_BYTES, text, text_bytes);
    memset(framed + TIDE_SAFETENSORS_LENGTH_BYTES + text_bytes, ' ', padded_bytes - text_bytes);
    *header = framed;
    *header_bytes = TIDE_SAFETENSORS_LENGTH_BYTES + padded_bytes;
    return TIDE_OK;
}

tide_status tide_safetensors_draft_end(tide_safetensors_draft *draft, const char *noun, char **header,
                                       size_t *header_bytes)
{
    tide_status status = TIDE_OK;
    char *text = tide_json_object_text(draft->json, JSON_COMPACT);
    if (draft->twice != NULL)
        status = tide_fail(TIDE_ERROR_ARGUMENT, "%s: the tensor name %s is taken twice", noun,
                           tide_printable(draft->twice).text);
    else if (text == NULL)
        status = tide_fail(TIDE_ERROR_NO_MEMORY,
                           "%s: no memory for the names in a header, or they are not UTF-8", noun);
    else
        status = header_frame(text, noun, header, header_bytes);
    free(text);
    json_decref(draft->json);
    return status;
}
