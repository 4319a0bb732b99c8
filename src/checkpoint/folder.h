/* The folder that holds checkpoints: what is in it, by name, and how something in it is taken away safely. */
#ifndef TIDE_CHECKPOINT_FOLDER_H
#define TIDE_CHECKPOINT_FOLDER_H

#include "src/checkpoint/checkpoint.h"

typedef struct tide_folder_stale {
    uint64_t step;
    uint64_t process_id;
} tide_folder_stale;

typedef struct tide_folder {
    const tide_files *files;
    char path[TIDE_CHECKPOINT_PATH_BYTES]; /* without slashes at the end */
    bool exists;
    uint64_t *steps; /* of its step-N folders with a manifest, newest first */
    size_t step_count;
    uint64_t *remains; /* of those without: left by an interrupted removal or copy, never a checkpoint; newest
                          first */
    size_t remain_count;
    /* of its step-N that are no folders: in the way of a checkpoint, and not ours to move; newest first */
    uint64_t *plain;
    size_t plain_count;
    tide_folder_stale *stale; /* .tmp-STEP-PID, or its lock alone, of processes that are gone */
    size_t stale_count;
} tide_folder;

/* List the folder. A missing one exists not, which is no failure. IO, NO_MEMORY, ARGUMENT (path too long or
 * empty). */
TIDE_NODISCARD tide_status tide_folder_open(const tide_files *files, const char *path, tide_folder *folder);
void tide_folder_close(tide_folder *folder);

/* Whether checkpoints of the steps from `first` to `last` can get their names. STATE: one is taken by what is no folder. */
TIDE_NODISCARD tide_status tide_folder_way_check(const tide_folder *folder, uint64_t first, uint64_t last);

/* Paths inside the folder; they fit, open saw to that. */
void tide_folder_step_path(const tide_folder *folder, uint64_t step, char path[TIDE_CHECKPOINT_PATH_BYTES]);
void tide_folder_tmp_path(const tide_folder *folder, uint64_t step, uint64_t process_id,
                          char path[TIDE_CHECKPOINT_PATH_BYTES]);

/* Is `path` called step-N? Slashes at its end do not count. */
bool tide_folder_step_of(const char *path, uint64_t *step);

/* The folder in which `path` lies. */
void tide_folder_parent(const char *path, char parent[TIDE_CHECKPOINT_PATH_BYTES]);

/* DIR/step-N and a file's name in it; the name must be one of a checkpoint's. */
void tide_folder_file_path(const char *step_path, const char *name, char path[TIDE_CHECKPOINT_PATH_BYTES]);

/* Take a .tmp-STEP-PID folder away with the files in it. With `was_named`, it may have borne the name step-N
 * in a past that a power cut could bring back, so the folder is synced first. One that is gone is no failure.
 * IO names what is left. */
TIDE_NODISCARD tide_status tide_folder_remove_tmp(const tide_folder *folder, uint64_t step,
                                                  uint64_t process_id, bool was_named);

/* Take what a process has left away with its lock, unless another process owns it by now. IO names what is
 * left. */
TIDE_NODISCARD tide_status tide_folder_remove_stale(const tide_folder *folder,
                                                    const tide_folder_stale *stale);

/* Take step-N away: renamed to .tmp-N-<own pid>, then as above. */
TIDE_NODISCARD tide_status tide_folder_remove_step(const tide_folder *folder, uint64_t step);

/* Make the folder's own name durable: sync its parent. */
TIDE_NODISCARD tide_status tide_folder_sync_parent(const tide_folder *folder, bool may_be_unreadable);

#endif
