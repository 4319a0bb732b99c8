/* The tensors of a checkpoint's files. A value's file has the tensors in their order, as fp32, without a
 * gap. */
#ifndef TIDE_CHECKPOINT_TENSORS_H
#define TIDE_CHECKPOINT_TENSORS_H

#include "src/checkpoint/checkpoint.h"
#include "src/safetensors/safetensors.h"

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
 * ARGUMENT (the same name twice, header too large), NO_MEMORY, also for a name that is not UTF-8. */
TIDE_NODISCARD tide_status tide_checkpoint_header_make(const tide_checkpoint_tensors *tensors,
                                                       tide_value value, char **header, size_t *header_bytes);

/* Check that a value's file has exactly the tensors that it must have, all F32, with these shapes, in any
 * order. On success offsets[i] is where tensors[i] begins in the file, if the file has it. MISMATCH: the file
 * has other tensors; the message names the tensor. UNSUPPORTED: a dtype that is not F32. */
TIDE_NODISCARD tide_status tide_checkpoint_header_check(const tide_file *file,
                                                        const tide_safetensors_header *header,
                                                        const tide_checkpoint_tensors *tensors,
                                                        tide_value value, uint64_t *offsets);

#endif
