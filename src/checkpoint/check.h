/* Looking at a checkpoint without a model to load it into, and moving a damaged one out of the way. */
#ifndef TIDE_CHECKPOINT_CHECK_H
#define TIDE_CHECKPOINT_CHECK_H

#include "src/checkpoint/checkpoint.h"

typedef struct tide_checkpoint_file_check {
    const char *name; /* static storage */
    uint64_t bytes;   /* as found; 0: it can't be opened */
    /* CORRUPT: damaged; IO: it can't be read, which a failing disk says too; of the manifest also
     * UNSUPPORTED */
    tide_status status;
    char message[512]; /* "" or what is wrong */
} tide_checkpoint_file_check;

typedef struct tide_checkpoint_check {
    bool sound;     /* every file is */
    bool damaged;   /* a file is CORRUPT or can't be read */
    bool has_state; /* its manifest could be read: the next four are known */
    tide_train_state state;
    uint64_t params; /* elements in model.safetensors, as its size says; 0: not known */
    size_t frozen_tensors;
    bool weights_only;
    uint64_t bytes;                                              /* of all files, as found */
    unsigned file_count;                                         /* the manifest is the first */
    tide_checkpoint_file_check files[1 + TIDE_CHECKPOINT_FILES]; /* those that the manifest names */
} tide_checkpoint_check;

/* How much of it is read. */
typedef enum tide_checkpoint_depth {
    TIDE_CHECKPOINT_SIZES,  /* the manifest, and the files' sizes */
    TIDE_CHECKPOINT_PARAMS, /* also the checksum of model.safetensors */
    TIDE_CHECKPOINT_BYTES,  /* of every file */
} tide_checkpoint_depth;

/* Look at the checkpoint at `path` (DIR/step-N), so deep; `progress` (may be NULL) is told of the bytes that are read. What is wrong is in *check, each file by itself. NO_MEMORY, ARGUMENT (path too long). */
TIDE_NODISCARD tide_status tide_checkpoint_check_run(const tide_files *files, const char *path,
                                                     tide_checkpoint_depth depth,
                                                     tide_checkpoint_progress progress, void *context,
                                                     tide_checkpoint_check *check);

/* The first file that is not sound, NULL: all are. */
const tide_checkpoint_file_check *tide_checkpoint_check_first(const tide_checkpoint_check *check);

/* Rename the checkpoint at `path` to step-N.damaged, or step-N.damaged-2 ... where there is one already: no save, load or
 * removal looks at it again. IO. */
TIDE_NODISCARD tide_status tide_checkpoint_set_aside(const tide_files *files, const char *path,
                                                     char aside[TIDE_CHECKPOINT_PATH_BYTES]);

#endif
