/* A folder of weights as Hugging Face keeps them, for reading:
 *
 *     model.safetensors                                       all of them in one file, or
 *     model.safetensors.index.json, model-00001-of-00004.safetensors, ...     in shards that the index names
 *
 * Where both are there the one file counts, as transformers has it. Everything about the files is checked when the folder is
 * opened, before any value is read: that they are sound, and that they hold what the caller names and nothing else. Values are
 * read with pread, never mapped: a file that another process cuts short is an error, not a SIGBUS.
 */
#ifndef TIDE_WEIGHTS_READER_H
#define TIDE_WEIGHTS_READER_H

#include "src/files/files.h"
#include "src/weights/tensor.h"

/* What the folder must hold. Tensors and their names must stay until the weights are closed. */
typedef struct tide_weights_names {
    const tide_weights_tensor *tensors;
    size_t count;
    /* "transformer.", say: the names in the files have it in front, or none has, but for those that never
     * have it where the first tensor's name does; NULL: none */
    const char *optional_prefix;
    const char *const
        *ignored; /* patterns (fnmatch) of names that may be there too, with the prefix or without */
    size_t ignored_count;
    /* a name under which a tensor may be there once more, or instead, with the prefix or without; NULL:
     * none */
    const char *duplicate;
    size_t duplicate_of; /* that tensor */
} tide_weights_names;

typedef struct tide_weights tide_weights;

/* One line names the file and the tensor. IO: can't be opened or read, or nothing there. CORRUPT: a damaged file, or an index
 * that contradicts its shards. MISMATCH: sound files of another model: a tensor missing, too many, or of another shape.
 * UNSUPPORTED: a dtype that is not BF16, F16 or F32, weights in another format. ARGUMENT: names without
 * a valid shape or twice, a path too long. NO_MEMORY. On failure nothing stays open. */
TIDE_NODISCARD tide_status tide_weights_open(const char *folder, const tide_weights_names *names,
                                             tide_weights **weights);

/* The same on other files than the operating system's; `files` must stay. */
TIDE_NODISCARD tide_status tide_weights_open_on(const tide_files *files, const char *folder,
                                                const tide_weights_names *names, tide_weights **weights);

/* Elements [first, first + count) of a tensor, by its number in the names, as fp32. Exact; a NaN of F16 becomes quiet. Needs no
 * memory but `values`, and leaves anything there on failure. Works with the caller's team (kernels/cpu/team.h); any threads,
 * several at once. ARGUMENT: no such tensor or elements. IO, CORRUPT: the file can't be read any more, or has become shorter. */
TIDE_NODISCARD tide_status tide_weights_read(const tide_weights *weights, size_t tensor, uint64_t first,
                                             uint64_t count, float *values);
/* The same as the file has them, bit for bit: of the tensor's dtype. */
TIDE_NODISCARD tide_status tide_weights_read_raw(const tide_weights *weights, size_t tensor, uint64_t first,
                                                 uint64_t count, void *values);

/* Have the files the prefix where the names have none, or none where those have it? */
bool tide_weights_named_otherwise(const tide_weights *weights);

/* If the files have a tied tensor and its duplicate, compare their values. MISMATCH names both. IO, CORRUPT
 * as above; NO_MEMORY. */
TIDE_NODISCARD tide_status tide_weights_check_duplicate(const tide_weights *weights);

/* Bytes that all the named tensors have in the files. */
uint64_t tide_weights_bytes(const tide_weights *weights);

/* The dtype of most elements; of two with as many the first. And of one tensor. */
tide_weights_dtype tide_weights_most_dtype(const tide_weights *weights);
tide_weights_dtype tide_weights_tensor_dtype(const tide_weights *weights, size_t tensor);

/* NULL: nothing. */
void tide_weights_close(tide_weights *weights);

#endif
