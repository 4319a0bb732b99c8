/* The folder that holds checkpoints: lists its contents by name and removes them safely. */
#ifndef TIDE_CHECKPOINT_FOLDER_H
#define TIDE_CHECKPOINT_FOLDER_H

#include "src/checkpoint/checkpoint.h"

typedef struct tide_folder_stale {
    uint64_t step;
    uint64_t process_id;
} tide_folder_stale;

typedef struct tide_folder {
    const tide_files *files;
    char path[TIDE_CHECKPOINT_PATH_BYTES]; /* without trailing slashes */
    bool exists;
    uint64_t *steps; /* steps of the step-N folders that have a manifest, newest first */
    size_t step_count;
    /* steps of the step-N folders without one, newest first: left by an interrupted removal or copy */
    uint64_t *remains;
    size_t remain_count;
    /* steps of files called step-N, newest first: they block a checkpoint's name, and tidepool leaves them */
    uint64_t *plain;
    size_t plain_count;
    tide_folder_stale *stale; /* .tmp-STEP-PID folders, or only their locks, of processes that are gone */
    size_t stale_count;
} tide_folder;

/* List the folder. If it is missing, `exists` is false and the call succeeds. IO, NO_MEMORY, ARGUMENT (path
 * too long or empty). */
TIDE_NODISCARD tide_status tide_folder_open(const tide_files *files, const char *path, tide_folder *folder);
void tide_folder_close(tide_folder *folder);

/* Are the names of checkpoints from step `first` to `last` free of files? STATE: a file has one of them. */
TIDE_NODISCARD tide_status tide_folder_way_check(const tide_folder *folder, uint64_t first, uint64_t last);

/* Paths inside the folder. They always fit, since open has checked the folder's length. */
void tide_folder_step_path(const tide_folder *folder, uint64_t step, char path[TIDE_CHECKPOINT_PATH_BYTES]);
void tide_folder_tmp_path(const tide_folder *folder, uint64_t step, uint64_t process_id,
                          char path[TIDE_CHECKPOINT_PATH_BYTES]);

/* Is `path` called step-N? Trailing slashes are ignored. */
bool tide_folder_step_of(const char *path, uint64_t *step);

/* The folder in which `path` lies. */
void tide_folder_parent(const char *path, char parent[TIDE_CHECKPOINT_PATH_BYTES]);

/* Remove a .tmp-STEP-PID folder with its files. `was_named`: it may have been called step-N before, a name
 * that a power cut could bring back, so the call syncs DIR first. A folder that is gone is no failure. IO
 * names the folder that is left. */
TIDE_NODISCARD tide_status tide_folder_remove_tmp(const tide_folder *folder, uint64_t step,
                                                  uint64_t process_id, bool was_named);

/* Remove a stale folder and its lock, unless another process has taken it over. IO names the folder that is
 * left. */
TIDE_NODISCARD tide_status tide_folder_remove_stale(const tide_folder *folder,
                                                    const tide_folder_stale *stale);

/* Remove step-N: rename it to .tmp-N-<own pid>, then remove that with its files. */
TIDE_NODISCARD tide_status tide_folder_remove_step(const tide_folder *folder, uint64_t step);

/* Make the folder's own name durable by a sync of its parent. */
TIDE_NODISCARD tide_status tide_folder_sync_parent(const tide_folder *folder, bool may_be_unreadable);

#endif
