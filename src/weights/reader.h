/* Reads a folder of weights in Hugging Face's form:
 *
 *     model.safetensors                                       all of them in one file, or
 *     model.safetensors.index.json, model-00001-of-00004.safetensors, ...     in shards that the index names
 *
 * If both are there, the single file counts, as in transformers. Opening a folder checks its files completely
 * before any value is read: they must be sound, and hold the tensors that the caller names and no others.
 * Values are read with pread, never through a mapping: if another process truncates a file, the caller gets
 * an error and no SIGBUS.
 */
#ifndef TIDE_WEIGHTS_READER_H
#define TIDE_WEIGHTS_READER_H

#include "base/files.h"
#include "src/weights/tensor.h"

/* The tensors that the folder must hold. They and their names must stay until the weights are closed. */
typedef struct tide_weights_names {
    const tide_weights_tensor *tensors;
    size_t count;
    /* "transformer.", for example: either all names in the files have this prefix or none has. The rule
     * leaves out a tensor that differs in this from the first one already in `tensors`, as the head does.
     * NULL: no prefix */
    const char *optional_prefix;
    /* patterns (fnmatch) of names that the files may hold, too, with or without the prefix */
    const char *const *ignored;
    size_t ignored_count;
    /* a second name of a tensor: the files may hold its values under this name, too, or only under it, with
     * or without the prefix; NULL: none */
    const char *duplicate;
    size_t duplicate_of; /* the number of that tensor */
} tide_weights_names;

typedef struct tide_weights tide_weights;

/* Open a folder. Messages name the file and the tensor. IO: a file can't be opened or read, or there is none.
 * CORRUPT: a file is damaged, or the index contradicts its shards. MISMATCH: the files are sound but of
 * another model: a tensor is missing, unknown or of another shape. UNSUPPORTED: a dtype that is not BF16, F16
 * or F32, weights in another format. ARGUMENT: `names` has a tensor without a valid shape or a name twice.
 * NO_MEMORY. On failure nothing stays open. */
TIDE_NODISCARD tide_status tide_weights_open(const char *folder, const tide_weights_names *names,
                                             tide_weights **weights);

/* Like tide_weights_open, but reads through `files`, which must stay until the weights are closed. */
TIDE_NODISCARD tide_status tide_weights_open_on(const tide_files *files, const char *folder,
                                                const tide_weights_names *names, tide_weights **weights);

/* Read elements [first, first + count) of a tensor as fp32; `tensor` is its number in the names. Exact; a NaN
 * of F16 becomes quiet. Allocates nothing. On failure the content of `values` is undefined. Runs on the
 * caller's team of threads (base/team.h); several threads may call it at once. ARGUMENT: no such
 * tensor or elements. IO, CORRUPT: the file can't be read any more, or has become shorter. */
TIDE_NODISCARD tide_status tide_weights_read(const tide_weights *weights, size_t tensor, uint64_t first,
                                             uint64_t count, float *values);
/* Read elements bit for bit as the file has them, in the tensor's dtype; otherwise like tide_weights_read. */
TIDE_NODISCARD tide_status tide_weights_read_raw(const tide_weights *weights, size_t tensor, uint64_t first,
                                                 uint64_t count, void *values);

/* Do the names in the files have the optional prefix although those of the caller lack it, or the other way
 * round? */
bool tide_weights_named_otherwise(const tide_weights *weights);

/* If the files hold both a tensor and its duplicate, check that their values are equal. MISMATCH: they
 * differ; the message names both. IO, CORRUPT as above; NO_MEMORY. */
TIDE_NODISCARD tide_status tide_weights_check_duplicate(const tide_weights *weights);

/* Bytes of all named tensors in the files. */
uint64_t tide_weights_bytes(const tide_weights *weights);

/* The dtype that most elements have (of two with equally many the first in the enum), and the dtype of one
 * tensor. */
tide_weights_dtype tide_weights_most_dtype(const tide_weights *weights);
tide_weights_dtype tide_weights_tensor_dtype(const tide_weights *weights, size_t tensor);

/* `weights` may be NULL. */
void tide_weights_close(tide_weights *weights);

#endif
