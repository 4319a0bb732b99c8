/* Checks of a run's checkpoint folder before training: can it be written, is there enough free space, and
 * does it hold checkpoints that forbid this run? */
#ifndef TIDE_TOOLS_TRAIN_FOLDER_H
#define TIDE_TOOLS_TRAIN_FOLDER_H

#include "tools/train/train_options.h"

#include <stdio.h>

typedef struct tide_train_folder {
    bool made;   /* the check created it */
    bool locked; /* `lock`, a descriptor of the folder, holds a lock */
    int lock;
    const char *path;  /* of --checkpoint; set if `damaged` is */
    uint64_t *damaged; /* [damaged_count]: steps of damaged checkpoints later than that of --resume-from */
    size_t damaged_count;
    bool finished;  /* the checkpoint to resume from is of the run's last step */
    bool elsewhere; /* the checkpoint to resume from is in another folder than `path` */
    char source
        /* the copy of the source model's files beside the checkpoint to resume from (export.h); "": none */
        [TIDE_CHECKPOINT_PATH_BYTES];
} tide_train_folder;

/* Checks the folder and locks it: no other run on this host can save to it until tide_train_folder_close.
 *
 * Without --resume and --resume-from the folder must hold no checkpoint, because it would be another run's.
 * With --resume-from the folder must hold that checkpoint or none; later checkpoints in it must be damaged,
 * which the call finds out by reading every byte of them. The free space must suffice for every checkpoint
 * that the run saves, minus those that --keep removes, plus `export` (NULL: none) if it is on the same disk.
 * The export's path must not be a name that runs use in the folder.
 *
 * Creates the folder if it does not exist and changes nothing else. *folder must be zeroed before, and closed
 * after success and failure alike. STATE, IO, CORRUPT (the checkpoint to resume from), ARGUMENT, NO_MEMORY,
 * UNSUPPORTED.
 */
TIDE_NODISCARD tide_status tide_train_folder_check(const tide_train_settings *settings,
                                                   const tide_trainer_options *options,
                                                   const tide_export *export, tide_train_folder *folder);

/* Rename the later damaged checkpoints and print their new names. Call it when the checkpoint to resume from
 * is loaded. IO. */
TIDE_NODISCARD tide_status tide_train_folder_begin(const tide_train_folder *folder, FILE *out);

/* Returns `status` and may add advice to its message: if --resume found a damaged checkpoint, the name of an
 * earlier one; if the data differ from the checkpoint's, the option that allows it. */
tide_status tide_train_folder_advise(const tide_train_settings *settings, tide_status status);

void tide_train_folder_close(tide_train_folder *folder);

#endif
