/* Writes a folder of weights in Hugging Face's form: model.safetensors, or shards and their index (reader.h
 * shows both). */
#ifndef TIDE_WEIGHTS_WRITER_H
#define TIDE_WEIGHTS_WRITER_H

#include "base/files.h"
#include "src/weights/tensor.h"
#include "tidepool/pool.h"

/* Fill in elements [first, first + count) of the tensor with this number. The writer asks for tensors file by
 * file, within a file by name, and for each tensor's elements from start to end. A failure ends the writing;
 * tide_weights_write then returns its status. */
typedef tide_status (*tide_weights_get)(void *context, size_t tensor, uint64_t first, uint64_t count,
                                        float *values);

typedef struct tide_weights_output {
    const tide_weights_tensor *tensors; /* in the model's order, in which shards are filled */
    size_t count;
    tide_weights_dtype dtype; /* of all values in the files, which are rounded to nearest, ties to even */
    /* the most bytes of values in a shard; a tensor that is larger gets a shard of its own. 0: no limit */
    uint64_t max_shard_bytes;
    tide_weights_get get;
    void *context;
    tide_progress_callback progress; /* called with "weights" after each part; may be NULL */
    void *progress_context;
} tide_weights_output;

/* Write all tensors into `folder`, which must exist and hold none of the files, through a buffer of at most 4
 * MiB. On success every file and the folder survive a power cut. On failure some of the files may be there,
 * whole or in part: write to a folder that can be removed then. IO: the message names the file. ARGUMENT: a
 * tensor without a valid name or shape, a name twice, or a finite value beyond F16's range (the message names
 * the tensor). NO_MEMORY, or the status that `get` returned. */
TIDE_NODISCARD tide_status tide_weights_write(const tide_files *files, const char *folder,
                                              const tide_weights_output *output);

/* An upper bound, only a little too high, of the bytes of all files: callers check the free space with it. */
uint64_t tide_weights_output_bytes(const tide_weights_output *output);

#endif
