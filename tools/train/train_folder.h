/* A run's checkpoint folder, before anything is trained: can it be written, is there room, does what it holds stand in the way? */
#ifndef TIDE_TOOLS_TRAIN_FOLDER_H
#define TIDE_TOOLS_TRAIN_FOLDER_H

#include "tools/train/train_options.h"

#include <stdio.h>

typedef struct tide_train_folder {
    bool made;   /* it did not exist */
    bool locked; /* by `lock`, a descriptor of the folder */
    int lock;
    const char *path;  /* --checkpoint's; set where `damaged` is */
    uint64_t *damaged; /* [damaged_count]: steps after that of --resume-from */
    size_t damaged_count;
    bool finished;  /* the checkpoint to go on from is of the run's last step */
    bool elsewhere; /* the checkpoint to go on from lies in another folder than `path` */
    char source
        [TIDE_CHECKPOINT_PATH_BYTES]; /* what the checkpoint to go on from has kept (export.h); "": nothing */
} tide_train_folder;

/* No other run of this host may save to the folder until it is closed. Without --resume and --resume-from the folder must hold no checkpoint: this run's would be older, or of another run. With
 * --resume-from it must be the folder of that checkpoint, or hold none; and what is later there must be damaged, which reads
 * every byte of it. Room must be there for every checkpoint that the run makes, beside what --keep removes and what
 * `export` (NULL: none) needs on the same disk; and that must not have a name in the folder that runs use.
 * STATE, IO, CORRUPT (the checkpoint to resume from), ARGUMENT, NO_MEMORY, UNSUPPORTED. Nothing is changed but that the folder
 * is made. *folder begins zeroed and is closed in any case. */
TIDE_NODISCARD tide_status tide_train_folder_check(const tide_train_settings *settings,
                                                   const tide_trainer_options *options,
                                                   const tide_export *export, tide_train_folder *folder);

/* The checkpoint is loaded: set the damaged later ones aside, and say so. IO. */
TIDE_NODISCARD tide_status tide_train_folder_begin(const tide_train_folder *folder, FILE *out);

/* `status`. Of a damaged checkpoint that --resume found its message then names an earlier one; of other data
 * than the checkpoint's, the option that takes it. */
tide_status tide_train_folder_advise(const tide_train_settings *settings, tide_status status);

void tide_train_folder_close(tide_train_folder *folder);

#endif
