/* Checks a checkpoint without a model to load it into, and renames a damaged one. */
#ifndef TIDE_CHECKPOINT_CHECK_H
#define TIDE_CHECKPOINT_CHECK_H

#include "src/checkpoint/checkpoint.h"

typedef struct tide_checkpoint_file_check {
    const char *name; /* static storage */
    uint64_t bytes;   /* the file's size; 0: it can't be opened */
    /* CORRUPT: damaged. IO: it can't be read, as on a failing disk. The manifest's may be UNSUPPORTED,
     * too. */
    tide_status status;
    char message[512]; /* the fault, or "" */
} tide_checkpoint_file_check;

typedef struct tide_checkpoint_check {
    bool sound;     /* no file has a fault */
    bool damaged;   /* a file is CORRUPT or gives IO */
    bool has_state; /* the manifest could be read, so `state` up to `weights_only` are known */
    tide_train_state state;
    uint64_t params; /* elements in model.safetensors, from its size; 0: unknown */
    size_t frozen_tensors;
    bool weights_only;
    uint64_t bytes;      /* sum of the files' sizes */
    unsigned file_count; /* entries of `files`, of which the manifest is the first */
    /* the manifest, and the files that it lists */
    tide_checkpoint_file_check files[1 + TIDE_CHECKPOINT_FILES];
} tide_checkpoint_check;

/* How much of a checkpoint a check reads. */
typedef enum tide_checkpoint_depth {
    TIDE_CHECKPOINT_SIZES,  /* the manifest, and the sizes of all files */
    TIDE_CHECKPOINT_PARAMS, /* also the checksum of model.safetensors */
    TIDE_CHECKPOINT_BYTES,  /* the checksums of all files */
} tide_checkpoint_depth;

/* Check the checkpoint at `path` (DIR/step-N) to this depth. *check tells for each file what is wrong with
 * it. Calls `progress`, if not NULL, with the number of bytes read so far. NO_MEMORY, ARGUMENT (path too
 * long). */
TIDE_NODISCARD tide_status tide_checkpoint_check_run(const tide_files *files, const char *path,
                                                     tide_checkpoint_depth depth,
                                                     tide_checkpoint_progress progress, void *context,
                                                     tide_checkpoint_check *check);

/* The first file that has a fault; NULL: none has. */
const tide_checkpoint_file_check *tide_checkpoint_check_first(const tide_checkpoint_check *check);

/* Rename the checkpoint at `path` to step-N.damaged, or to step-N.damaged-2, ... if that name is taken.
 * Saves, loads and removals ignore such names. IO. */
TIDE_NODISCARD tide_status tide_checkpoint_set_aside(const tide_files *files, const char *path,
                                                     char aside[TIDE_CHECKPOINT_PATH_BYTES]);

#endif
