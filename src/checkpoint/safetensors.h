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
    /* of a tensor: a name of 255 bytes, all escaped, and its numbers */
    TIDE_SAFETENSORS_ENTRY_MAX_BYTES = 2048,
};

/* Is the tensor in that value's file? All are in MASTER's, the frozen ones in no other. */
static inline bool tide_checkpoint_tensor_has(const tide_checkpoint_tensor *tensor, tide_value value)
{
    return value == TIDE_VALUE_MASTER || !tensor->frozen;
}

/* Elements of a tensor; its shape must be valid. */
uint64_t tide_checkpoint_tensor_elements(const tide_checkpoint_tensor *tensor);

/* Elements of the buffer through which these tensors pass: the largest tensor's, between 4 Ki and 1 Mi (4 MiB). */
size_t tide_checkpoint_buffer_elements(const tide_checkpoint_tensors *tensors);

/* Names are not empty, ranks and dimensions in range, total bytes below 2^62. ARGUMENT names the tensor. */
TIDE_NODISCARD tide_status tide_checkpoint_tensors_check(const tide_checkpoint_tensors *tensors);

/* The length and the header of a value's file of these tensors, in one block that the caller frees. ARGUMENT (a name twice,
 * not UTF-8, header too large), NO_MEMORY, UNSUPPORTED. */
TIDE_NODISCARD tide_status tide_safetensors_header_make(const tide_checkpoint_tensors *tensors,
                                                        tide_value value, char **header,
                                                        size_t *header_bytes);

/* Check a header's JSON text (without its length) against the tensors that are wanted in a value's file and the bytes of
 * data that follow it: exactly these tensors, all F32, with these shapes, covering the data without gap or
 * overlap, in any order. On success offsets[i] is where tensors[i], if it is there, starts in the data. `label` names the
 * file. CORRUPT: no such header. MISMATCH: a sound header of other tensors; names the tensor and both shapes.
 * UNSUPPORTED: a dtype that is not F32. NO_MEMORY. */
TIDE_NODISCARD tide_status tide_safetensors_header_check(const char *text, size_t bytes, uint64_t data_bytes,
                                                         const char *label,
                                                         const tide_checkpoint_tensors *tensors,
                                                         tide_value value, uint64_t *offsets);

#endif
