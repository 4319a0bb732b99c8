/* Divides tensors among files as transformers does (split_torch_state_dict_into_shards): it takes them in the
 * caller's order and begins a new file when the next tensor would make the current file larger than allowed.
 * A tensor that is too large by itself gets a file of its own, numbered before the current file. Within a
 * file tensors are sorted by name, as safetensors writes tensors of one dtype.
 */
#ifndef TIDE_WEIGHTS_SHARDS_H
#define TIDE_WEIGHTS_SHARDS_H

#include "src/weights/tensor.h"

typedef struct tide_weights_shards {
    size_t *tensors; /* sorted by file, within a file by name */
    size_t *first;   /* [count + 1]: where each file's tensors begin in `tensors` */
    size_t count;
    uint64_t bytes; /* of all tensors' values */
} tide_weights_shards;

enum { TIDE_WEIGHTS_SHARD_NAME_BYTES = 80 };

/* Divide the tensors. ARGUMENT: tensors without a valid name or shape (tide_weights_by_name). NO_MEMORY. */
TIDE_NODISCARD tide_status tide_weights_shards_make(const tide_weights_tensor *tensors, size_t count,
                                                    tide_weights_dtype dtype, uint64_t max_shard_bytes,
                                                    tide_weights_shards *shards);
void tide_weights_shards_free(tide_weights_shards *shards);

/* The name of a file: model.safetensors, or model-00001-of-00004.safetensors. */
void tide_weights_shard_name(const tide_weights_shards *shards, size_t shard,
                             char name[TIDE_WEIGHTS_SHARD_NAME_BYTES]);

/* The index of all files, a block that the caller frees. NO_MEMORY, also for a name that is not UTF-8. */
TIDE_NODISCARD tide_status tide_weights_shards_index(const tide_weights_shards *shards,
                                                     const tide_weights_tensor *tensors, char **index);

#endif
