/* Which tensors go into which file, as transformers deals them out (split_torch_state_dict_into_shards): in the caller's order,
 * a new file where the next tensor would make this one larger than it may be; a tensor that is larger by itself has a file of
 * its own, before the one that was being filled. Within a file tensors lie by name, as safetensors writes those of one dtype.
 */
#ifndef TIDE_WEIGHTS_SHARDS_H
#define TIDE_WEIGHTS_SHARDS_H

#include "src/weights/tensor.h"

typedef struct tide_weights_shards {
    size_t *tensors; /* by file, in a file by name */
    size_t *first;   /* of a file's tensors in them; count + 1 of these */
    size_t count;
    uint64_t bytes; /* of all the tensors */
} tide_weights_shards;

enum { TIDE_WEIGHTS_SHARD_NAME_BYTES = 80 };

/* ARGUMENT: tensors without a valid name or shape (tide_weights_by_name). NO_MEMORY. */
TIDE_NODISCARD tide_status tide_weights_shards_make(const tide_weights_tensor *tensors, size_t count,
                                                    tide_weights_dtype dtype, uint64_t max_shard_bytes,
                                                    tide_weights_shards *shards);
void tide_weights_shards_free(tide_weights_shards *shards);

/* model.safetensors, or model-00001-of-00004.safetensors. */
void tide_weights_shard_name(const tide_weights_shards *shards, size_t shard,
                             char name[TIDE_WEIGHTS_SHARD_NAME_BYTES]);

/* A file's header with its length in front, and the index of all files: in blocks that the caller frees. ARGUMENT: a header
 * above the format's limit. NO_MEMORY (a name that is not UTF-8, too). */
TIDE_NODISCARD tide_status tide_weights_shard_header(const tide_weights_shards *shards, size_t shard,
                                                     const tide_weights_tensor *tensors,
                                                     tide_weights_dtype dtype, char **header,
                                                     size_t *header_bytes);
TIDE_NODISCARD tide_status tide_weights_shards_index(const tide_weights_shards *shards,
                                                     const tide_weights_tensor *tensors, char **index);

#endif
