/* Weights into a folder as Hugging Face keeps them: model.safetensors, or shards and their index (reader.h shows both). */
#ifndef TIDE_WEIGHTS_WRITER_H
#define TIDE_WEIGHTS_WRITER_H

#include "src/files/files.h"
#include "src/weights/tensor.h"
#include "tidepool/pool.h"

/* Fill in elements [first, first + count) of a tensor, by its number. Tensors come file by file, in a file by name, each from
 * its start to its end. A failure ends the writing and is passed on. */
typedef tide_status (*tide_weights_get)(void *context, size_t tensor, uint64_t first, uint64_t count,
                                        float *values);

typedef struct tide_weights_output {
    const tide_weights_tensor *tensors; /* in the model's order, in which shards are filled */
    size_t count;
    tide_weights_dtype dtype; /* of all the files: rounded to nearest, ties to even */
    /* of a shard's values; a tensor that is larger has a shard of its own. 0 counts as no limit */
    uint64_t max_shard_bytes;
    tide_weights_get get;
    void *context;
    tide_progress_callback progress; /* told "weights", after each part; may be NULL */
    void *progress_context;
} tide_weights_output;

/* Write all of it into `folder`, which is there and has none of the files, through a buffer of at most 4 MiB. When this is OK
 * every file and the folder survive a power cut. On failure any part of it may be there: write to a folder that is thrown
 * away then. IO: names the file. ARGUMENT: tensors without a valid name or shape, names twice, or values that are finite but
 * beyond F16 (names the tensor). NO_MEMORY, or what `get` returned. */
TIDE_NODISCARD tide_status tide_weights_write(const tide_files *files, const char *folder,
                                              const tide_weights_output *output);

/* Bytes that the files will have together, or a few more: to see beforehand whether there is room. */
uint64_t tide_weights_output_bytes(const tide_weights_output *output);

#endif
