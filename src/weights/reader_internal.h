/* Open weights, for the files of this folder. */
#ifndef TIDE_WEIGHTS_READER_INTERNAL_H
#define TIDE_WEIGHTS_READER_INTERNAL_H

#include "src/weights/reader.h"

typedef struct tide_weights_file {
    char *path;
    int handle;
    uint64_t bytes;
} tide_weights_file;

/* Where a tensor's values lie. */
typedef struct tide_weights_place {
    const tide_weights_file *file; /* NULL: not found yet */
    tide_weights_dtype dtype;
    uint64_t offset; /* in the file */
} tide_weights_place;

struct tide_weights {
    const tide_files *files;
    const tide_weights_tensor *tensors;
    size_t count;
    tide_weights_place *places;
    const char *duplicate_name;
    size_t duplicate_of;
    /* Like one of `places`, for the tensor `duplicate_of`. No file: the files have no duplicate, or they have
     * it alone, and then it stands in `places`. */
    tide_weights_place duplicate;
    bool named, named_otherwise; /* a name has told the latter (tide_weights_named_otherwise) */
    tide_weights_file *opened;
    size_t opened_count; /* of them are open */
};

/* Read exactly `bytes`. 0 or an errno value; ENODATA: the file ends before. */
int tide_weights_file_get(const tide_files *files, int handle, uint64_t offset, void *buffer, size_t bytes);

/* The failure of such a read. */
tide_status tide_weights_file_get_fail(const char *path, int error);

#endif
