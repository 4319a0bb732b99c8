#include "src/checkpoint/tensors.h"

#include "base/text.h"

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

/* ---- headers ---- */

tide_status tide_checkpoint_header_make(const tide_checkpoint_tensors *tensors, tide_value value,
                                        char **header, size_t *header_bytes)
{
    tide_safetensors_draft draft = tide_safetensors_draft_begin();
    for (size_t i = 0; i < tensors->count; i++) {
        const tide_checkpoint_tensor *tensor = &tensors->tensors[i];
        if (tide_checkpoint_tensor_has(tensor, value))
            tide_safetensors_draft_add(&draft, tensor->name, "F32", tensor->rank, tensor->shape);
    }
    return tide_safetensors_draft_end(&draft, "checkpoint", header, header_bytes);
}

tide_status tide_checkpoint_header_check(const tide_file *file, const tide_safetensors_header *header,
                                         const tide_checkpoint_tensors *tensors, tide_value value,
                                         uint64_t *offsets)
{
    size_t wanted = 0;
    for (size_t i = 0; i < tensors->count; i++) {
        const tide_checkpoint_tensor *tensor = &tensors->tensors[i];
        if (!tide_checkpoint_tensor_has(tensor, value))
            continue;
        const tide_safetensors_entry *entry = tide_safetensors_find(header, tensor->name);
        if (entry == NULL)
            return tide_fail(TIDE_ERROR_MISMATCH, "checkpoint %.800s: tensor %s is missing", file->path,
                             tensor->name);
        if (strcmp(entry->dtype, "F32") != 0)
            return tide_fail(TIDE_ERROR_UNSUPPORTED,
                             "checkpoint %.800s: tensor %s has dtype %s, it must be F32", file->path,
                             tensor->name, tide_printable(entry->dtype).text);
        const tide_status status = tide_safetensors_shape_check(file, entry, tensor->rank, tensor->shape);
        if (status != TIDE_OK)
            return status;
        offsets[i] = header->data_start + entry->begin;
        wanted++;
    }
    if (header->count == wanted)
        return TIDE_OK;
    return tide_fail(TIDE_ERROR_MISMATCH, "checkpoint %.800s: %zu tensors, the model %s %zu", file->path,
                     header->count, value == TIDE_VALUE_MASTER ? "has" : "trained", wanted);
}
