/* A folder of shards: its *.bin files in name order, and which of them are for validation. */
#ifndef TIDE_DATA_SHARD_FOLDER_H
#define TIDE_DATA_SHARD_FOLDER_H

#include "tidepool/status.h"

#include <dirent.h>
#include <stdbool.h>
#include <stddef.h>

typedef struct tide_shard_folder {
    struct dirent **entries; /* sorted bytewise, not by locale: the order must be the same for everybody */
    size_t count;            /* at least 1 */
    bool is_split;           /* does every name have the word train or the word val, and do both occur? */
} tide_shard_folder;

/* IO. CORRUPT: the folder has no *.bin, or a split folder has a name with neither or both of the words. On
 * failure *folder is unchanged. */
TIDE_NODISCARD tide_status tide_shard_folder_open(const char *path, tide_shard_folder *folder);

void tide_shard_folder_close(tide_shard_folder *folder);

/* Is entry `index` for validation: is the folder split, and does the name have the word val? */
bool tide_shard_folder_validates(const tide_shard_folder *folder, size_t index);

#endif
