/* Writes and checks safetensors headers.
 *
 * The writer's text comes from jansson, which escapes names as JSON needs and keeps the order of the tensors.
 * "__metadata__" is {"format": "pt"}, without which some readers refuse the file.
 *
 * The checker trusts nothing. The header must list exactly the wanted tensors, each inside the data and with
 * its own size; sorted by offset, they must cover the data without gap or overlap.
 */
#include "src/checkpoint/safetensors.h"

#include "src/files/printable.h"

#include <assert.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DATA_MAX_BYTES (1ull << 62)

enum { BUFFER_MIN_ELEMENTS = 4 << 10, BUFFER_MAX_ELEMENTS = 1 << 20 };

uint64_t tide_checkpoint_tensor_elements(const tide_checkpoint_tensor *tensor)
{
    uint64_t elements = 1;
    for (uint32_t i = 0; i < tensor->rank; i++)
        elements *= tensor->shape[i];
    return elements;
}

size_t tide_checkpoint_buffer_elements(const tide_checkpoint_tensors *tensors)
{
    size_t elements = BUFFER_MIN_ELEMENTS;
    for (size_t i = 0; i < tensors->count; i++) {
        uint64_t needed = tide_checkpoint_tensor_elements(&tensors->tensors[i]);
        if (needed >= BUFFER_MAX_ELEMENTS)
            return BUFFER_MAX_ELEMENTS;
        if (needed > elements)
            elements = (size_t)needed;
    }
    return elements;
}

static bool tensor_is_valid(const tide_checkpoint_tensor *tensor)
{
    if (tensor->name == NULL || tensor->name[0] == '\0' || strlen(tensor->name) > 255 || tensor->rank < 1 ||
        tensor->rank > TIDE_CHECKPOINT_RANK_MAX)
        return false;
    uint64_t left_elements = DATA_MAX_BYTES / sizeof(float);
    for (uint32_t i = 0; i < tensor->rank; i++) {
        if (tensor->shape[i] == 0 || tensor->shape[i] > left_elements)
            return false;
        left_elements /= tensor->shape[i];
    }
    return true;
}

tide_status tide_checkpoint_tensors_check(const tide_checkpoint_tensors *tensors)
{
    uint64_t left_bytes = DATA_MAX_BYTES;
    for (size_t i = 0; i < tensors->count; i++) {
        const tide_checkpoint_tensor *tensor = &tensors->tensors[i];
        if (!tensor_is_valid(tensor))
            return tide_fail(TIDE_ERROR_ARGUMENT, "checkpoint: tensor %zu (%.64s) has no valid name or shape",
                             i, tensor->name != NULL ? tensor->name : "without a name");
        uint64_t bytes = tide_checkpoint_tensor_elements(tensor) * sizeof(float);
        if (bytes > left_bytes)
            return tide_fail(TIDE_ERROR_ARGUMENT, "checkpoint: the tensors up to %zu (%s) exceed 2^62 bytes",
                             i, tensor->name);
        left_bytes -= bytes;
    }
    if (tensors->count == 0)
        return tide_fail(TIDE_ERROR_ARGUMENT, "checkpoint: no tensors");
    return TIDE_OK;
}

/* ---- writing ---- */

static json_t *shape_json(const tide_checkpoint_tensor *tensor)
{
    json_t *shape = json_array();
    for (uint32_t i = 0; i < tensor->rank && shape != NULL; i++) {
        if (json_array_append_new(shape, json_integer((json_int_t)tensor->shape[i])) != 0) {
            json_decref(shape);
            return NULL;
        }
    }
    return shape;
}

static json_t *tensor_json(const tide_checkpoint_tensor *tensor, uint64_t offset)
{
    json_t *shape = shape_json(tensor);
    if (shape == NULL)
        return NULL;
    json_int_t end = (json_int_t)(offset + tide_checkpoint_tensor_elements(tensor) * sizeof(float));
    return json_pack("{s:s, s:o, s:[I,I]}", "dtype", "F32", "shape", shape, "data_offsets",
                     (json_int_t)offset, end);
}

static tide_status header_json(const tide_checkpoint_tensors *tensors, tide_value value, json_t *root)
{
    uint64_t offset = 0;
    if (json_object_set_new(root, "__metadata__", json_pack("{s:s}", "format", "pt")) != 0)
        return tide_fail(TIDE_ERROR_NO_MEMORY, "checkpoint: no memory for a header of %zu tensors",
                         tensors->count);
    for (size_t i = 0; i < tensors->count; i++) {
        const tide_checkpoint_tensor *tensor = &tensors->tensors[i];
        if (!tide_checkpoint_tensor_has(tensor, value))
            continue;
        if (json_object_get(root, tensor->name) != NULL)
            return tide_fail(TIDE_ERROR_ARGUMENT, "checkpoint: the tensor name %s is taken twice",
                             tensor->name);
        if (json_object_set_new(root, tensor->name, tensor_json(tensor, offset)) != 0)
            return tide_fail(TIDE_ERROR_NO_MEMORY,
                             "checkpoint: tensor %s can't be described (no memory, or not UTF-8)",
                             tensor->name);
        offset += tide_checkpoint_tensor_elements(tensor) * sizeof(float);
    }
    return TIDE_OK;
}

/* Puts the header's length before its text, and pads the text so that the data starts at a multiple of 8. */
static tide_status header_frame(const char *text, char **header, size_t *header_bytes)
{
    size_t text_bytes = strlen(text);
    size_t padded_bytes = (text_bytes + 7) / 8 * 8;
    if (padded_bytes > TIDE_SAFETENSORS_HEADER_MAX_BYTES)
        return tide_fail(TIDE_ERROR_ARGUMENT,
                         "checkpoint: a tensor header of %zu bytes is over the limit of %d", padded_bytes,
                         TIDE_SAFETENSORS_HEADER_MAX_BYTES);
    char *framed = malloc(TIDE_SAFETENSORS_LENGTH_BYTES + padded_bytes);
    if (framed == NULL)
        return tide_fail(TIDE_ERROR_NO_MEMORY, "checkpoint: no memory for a header of %zu bytes",
                         padded_bytes);
    for (int i = 0; i < TIDE_SAFETENSORS_LENGTH_BYTES; i++)
        framed[i] = (char)((uint64_t)padded_bytes >> (8 * i) & 0xff);
    memcpy(framed + TIDE_SAFETENSORS_LENGTH_BYTES, text, text_bytes);
    memset(framed + TIDE_SAFETENSORS_LENGTH_BYTES + text_bytes, ' ', padded_bytes - text_bytes);
    *header = framed;
    *header_bytes = TIDE_SAFETENSORS_LENGTH_BYTES + padded_bytes;
    return TIDE_OK;
}

tide_status tide_safetensors_header_make(const tide_checkpoint_tensors *tensors, tide_value value,
                                         char **header, size_t *header_bytes)
{
    json_t *root = json_object();
    if (root == NULL)
        return tide_fail(TIDE_ERROR_NO_MEMORY, "checkpoint: no memory for a header of %zu tensors",
                         tensors->count);
    tide_status status = header_json(tensors, value, root);
    char *text = NULL;
    if (status == TIDE_OK) {
        text = json_dumps(root, JSON_COMPACT);
        if (text == NULL)
            status = tide_fail(TIDE_ERROR_NO_MEMORY, "checkpoint: no memory for a header of %zu tensors",
                               tensors->count);
    }
    if (status == TIDE_OK)
        status = header_frame(text, header, header_bytes);
    free(text);
    json_decref(root);
    return status;
}

/* ---- checking ---- */

static bool json_u64(const json_t *item, uint64_t *value)
{
    if (!json_is_integer(item) || json_integer_value(item) < 0)
        return false;
    *value = (uint64_t)json_integer_value(item);
    return true;
}

static void shape_text(const json_t *shape, char *text, size_t text_bytes)
{
    size_t length = (size_t)snprintf(text, text_bytes, "[");
    for (size_t i = 0; i < json_array_size(shape) && length + 32 < text_bytes; i++)
        length += (size_t)snprintf(text + length, text_bytes - length, "%s%lld", i > 0 ? ", " : "",
                                   (long long)json_integer_value(json_array_get(shape, i)));
    snprintf(text + length, text_bytes - length, "]");
}

static tide_status shape_check(const json_t *shape, const char *label, const tide_checkpoint_tensor *tensor)
{
    bool same = json_array_size(shape) == tensor->rank;
    for (uint32_t i = 0; i < tensor->rank && same; i++) {
        uint64_t dimension;
        same = json_u64(json_array_get(shape, i), &dimension) && dimension == tensor->shape[i];
    }
    if (same)
        return TIDE_OK;
    char found[192], wanted[192];
    shape_text(shape, found, sizeof found);
    json_t *right = shape_json(tensor);
    shape_text(right, wanted, sizeof wanted);
    json_decref(right);
    return tide_fail(TIDE_ERROR_MISMATCH, "checkpoint %s: tensor %s has shape %s, the model needs %s", label,
                     tensor->name, found, wanted);
}

static tide_status entry_check(const json_t *entry, const char *label, const tide_checkpoint_tensor *tensor,
                               uint64_t data_bytes, uint64_t *offset)
{
    if (entry == NULL)
        return tide_fail(TIDE_ERROR_MISMATCH, "checkpoint %s: tensor %s is missing", label, tensor->name);
    const char *dtype = json_string_value(json_object_get(entry, "dtype"));
    const json_t *shape = json_object_get(entry, "shape");
    const json_t *range = json_object_get(entry, "data_offsets");
    uint64_t begin, end;
    if (dtype == NULL || !json_is_array(shape) || json_array_size(range) != 2 ||
        !json_u64(json_array_get(range, 0), &begin) || !json_u64(json_array_get(range, 1), &end))
        return tide_fail(TIDE_ERROR_CORRUPT, "checkpoint %s: tensor %s lacks a dtype, shape or data_offsets",
                         label, tensor->name);
    if (strcmp(dtype, "F32") != 0)
        return tide_fail(TIDE_ERROR_UNSUPPORTED, "checkpoint %s: tensor %s has dtype %s, it must be F32",
                         label, tensor->name, tide_printable(dtype).text);
    tide_status status = shape_check(shape, label, tensor);
    if (status != TIDE_OK)
        return status;
    uint64_t bytes = tide_checkpoint_tensor_elements(tensor) * sizeof(float);
    if (begin > end || end - begin != bytes || end > data_bytes)
        return tide_fail(TIDE_ERROR_CORRUPT,
                         "checkpoint %s: tensor %s at bytes %llu .. %llu of %llu needs %llu bytes", label,
                         tensor->name, (unsigned long long)begin, (unsigned long long)end,
                         (unsigned long long)data_bytes, (unsigned long long)bytes);
    *offset = begin;
    return TIDE_OK;
}

typedef struct tensor_span {
    uint64_t begin, end;
} tensor_span;

static int by_begin(const void *a, const void *b)
{
    uint64_t begin_a = ((const tensor_span *)a)->begin, begin_b = ((const tensor_span *)b)->begin;
    return (begin_a > begin_b) - (begin_a < begin_b);
}

/* Checks that the tensors, sorted by offset, cover the data without gap or overlap. */
static tide_status coverage_check(const char *label, const tide_checkpoint_tensors *tensors, tide_value value,
                                  const uint64_t *offsets, uint64_t data_bytes)
{
    tensor_span *spans = malloc(tensors->count * sizeof *spans);
    if (spans == NULL)
        return tide_fail(TIDE_ERROR_NO_MEMORY, "checkpoint %s: no memory to check %zu tensors", label,
                         tensors->count);
    size_t count = 0;
    for (size_t i = 0; i < tensors->count; i++) {
        const tide_checkpoint_tensor *tensor = &tensors->tensors[i];
        if (tide_checkpoint_tensor_has(tensor, value))
            spans[count++] = (tensor_span){offsets[i], offsets[i] + tide_checkpoint_tensor_elements(tensor) *
                                                                        sizeof(float)};
    }
    qsort(spans, count, sizeof *spans, by_begin);
    uint64_t covered = 0;
    size_t next = 0;
    while (next < count && spans[next].begin == covered)
        covered = spans[next++].end;
    free(spans);
    if (next < count || covered != data_bytes)
        return tide_fail(TIDE_ERROR_CORRUPT,
                         "checkpoint %s: the tensors leave a gap or overlap at byte %llu of %llu", label,
                         (unsigned long long)covered, (unsigned long long)data_bytes);
    return TIDE_OK;
}

static tide_status entries_check(const json_t *root, uint64_t data_bytes, const char *label,
                                 const tide_checkpoint_tensors *tensors, tide_value value, uint64_t *offsets)
{
    size_t wanted = 0;
    for (size_t i = 0; i < tensors->count; i++) {
        const tide_checkpoint_tensor *tensor = &tensors->tensors[i];
        if (!tide_checkpoint_tensor_has(tensor, value))
            continue;
        wanted++;
        tide_status status =
            entry_check(json_object_get(root, tensor->name), label, tensor, data_bytes, &offsets[i]);
        if (status != TIDE_OK)
            return status;
    }
    size_t metadata = json_object_get(root, "__metadata__") != NULL ? 1 : 0;
    if (json_object_size(root) != wanted + metadata)
        return tide_fail(TIDE_ERROR_MISMATCH, "checkpoint %s: %zu tensors, the model %s %zu", label,
                         json_object_size(root) - metadata, value == TIDE_VALUE_MASTER ? "has" : "trained",
                         wanted);
    return coverage_check(label, tensors, value, offsets, data_bytes);
}

tide_status tide_safetensors_header_check(const char *text, size_t bytes, uint64_t data_bytes,
                                          const char *label, const tide_checkpoint_tensors *tensors,
                                          tide_value value, uint64_t *offsets)
{
    json_error_t error;
    json_t *root = json_loadb(text, bytes, JSON_REJECT_DUPLICATES, &error);
    if (root == NULL && error.text[0] == '\0')
        return tide_fail(TIDE_ERROR_NO_MEMORY, "checkpoint %s: no memory to read its header of %zu bytes",
                         label, bytes);
    if (!json_is_object(root)) {
        json_decref(root);
        return tide_fail(TIDE_ERROR_CORRUPT, "checkpoint %s: its tensor header is not a JSON object", label);
    }
    tide_status status = entries_check(root, data_bytes, label, tensors, value, offsets);
    json_decref(root);
    return status;
}
