/* The struct behind tide_weights, which reader.c and values.c share. */
#ifndef TIDE_WEIGHTS_READER_INTERNAL_H
#define TIDE_WEIGHTS_READER_INTERNAL_H

#include "src/safetensors/file.h"
#include "src/weights/reader.h"

/* Where a tensor's values lie. */
typedef struct tide_weights_place {
    const tide_file *file; /* NULL: not found yet */
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
    /* where the duplicate of tensor `duplicate_of` lies; file NULL: there is none, or its place has become
     * the tensor's own */
    tide_weights_place duplicate;
    /* `named`: the files have a name that decided `named_otherwise` (tide_weights_named_otherwise) */
    bool named, named_otherwise;
    tide_file *opened;
    size_t opened_count; /* how many of `opened` are open */
};

#endif
