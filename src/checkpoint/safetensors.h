/* The header of a safetensors file of fp32 tensors:
 *
 *     | header bytes, uint64 LE | JSON, padded with spaces to 8 bytes | tensor 0 | tensor 1 | ...
 *
 * Data follows in the order of the tensors, without a gap; offsets count from the end of the header.
 */
#ifndef TIDE_CHECKPOINT_SAFETENSORS_H
#define TIDE_CHECKPOINT_SAFETENSORS_H

#include "src/checkpoint/checkpoint.h"

enum {
    TIDE_SAFETENSORS_LENGTH_BYTES = 8,
    TIDE_SAFETENSORS_HEADER_MAX_BYTES = 64 << 20,
    /* most bytes of a tensor's entry: a name of 255 escaped bytes, and the numbers */
    TIDE_SAFETENSORS_ENTRY_MAX_BYTES = 2048,
};

/* Is the tensor in the value's file? MASTER's file has all tensors, the others have those that are not
 * frozen. */
static inline bool tide_checkpoint_tensor_has(const tide_checkpoint_tensor *tensor, tide_value value)
{
    return value == TIDE_VALUE_MASTER || !tensor->frozen;
}

/* How many elements a tensor has; its shape must be valid. */
uint64_t tide_checkpoint_tensor_elements(const tide_checkpoint_tensor *tensor);

/* How many elements the buffer for these tensors has: as many as the largest tensor, at least 4 Ki, at most 1
 * Mi (4 MiB). */
size_t tide_checkpoint_buffer_elements(const tide_checkpoint_tensors *tensors);

/* Check that no name is empty, that ranks and dimensions are in range, and that all bytes are below 2^62.
 * ARGUMENT names the tensor. */
TIDE_NODISCARD tide_status tide_checkpoint_tensors_check(const tide_checkpoint_tensors *tensors);

/* Make the length and the header of a value's file of these tensors, one block that the caller frees.
 * ARGUMENT (the same name twice, not UTF-8, header too large), NO_MEMORY, UNSUPPORTED. */
TIDE_NODISCARD tide_status tide_safetensors_header_make(const tide_checkpoint_tensors *tensors,
                                                        tide_value value, char **header,
                                                        size_t *header_bytes);

/* Check a header's JSON text (without its length) against the tensors that a value's file must have and
 * against the size of the data behind the header. The file must have exactly these tensors, all F32, with
 * these shapes, in any order, covering the data without gap or overlap. On success offsets[i] is where
 * tensors[i] starts in the data, if the file has it. `label` names the file. CORRUPT: no valid header.
 * MISMATCH: a valid header of other tensors; the message names the tensor and both shapes. UNSUPPORTED: a
 * dtype that is not F32. NO_MEMORY. */
TIDE_NODISCARD tide_status tide_safetensors_header_check(const char *text, size_t bytes, uint64_t data_bytes,
                                                         const char *label,
                                                         const tide_checkpoint_tensors *tensors,
                                                         tide_value value, uint64_t *offsets);

#endif
