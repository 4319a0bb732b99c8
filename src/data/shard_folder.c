/* '_', '-' and '.' split a shard's name into words. A folder is split if one name has the word "train" and
 * another "val", "valid", "validation" or "dev", in capitals or not: fineweb_train_000001.bin and
 * fineweb_val_000000.bin (llm.c), train.bin and val.bin (nanoGPT). A folder in which only one of the two
 * occurs is training data as a whole.
 */
#include "src/data/shard_folder.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

static int is_shard_name(const struct dirent *entry)
{
    size_t length = strlen(entry->d_name);
    return length > 4 && entry->d_name[0] != '.' && strcmp(entry->d_name + length - 4, ".bin") == 0;
}

static int by_name(const struct dirent **a, const struct dirent **b)
{
    return strcmp((*a)->d_name, (*b)->d_name);
}

static bool has_word(const char *name, const char *word)
{
    static const char ends[] = "_-.";
    const size_t length = strlen(word);
    for (const char *at = name; *at != '\0'; at += strspn(at, ends)) {
        const size_t found = strcspn(at, ends);
        if (found == length && strncasecmp(at, word, length) == 0)
            return true;
        at += found;
    }
    return false;
}

static bool trains(const char *name)
{
    return has_word(name, "train");
}

static bool validates(const char *name)
{
    static const char *const words[] = {"val", "valid", "validation", "dev"};
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++)
        if (has_word(name, words[i]))
            return true;
    return false;
}

static tide_status look(const char *path, tide_shard_folder *folder)
{
    size_t training = 0, validation = 0;
    if (folder->count == 0)
        return tide_fail(TIDE_ERROR_CORRUPT, "data %s: the folder holds no *.bin token shards", path);
    for (size_t i = 0; i < folder->count; i++) {
        training += trains(folder->entries[i]->d_name);
        validation += validates(folder->entries[i]->d_name);
    }
    folder->is_split = training > 0 && validation > 0;
    for (size_t i = 0; folder->is_split && i < folder->count; i++) {
        const char *name = folder->entries[i]->d_name;
        if (trains(name) == validates(name))
            return tide_fail(
                TIDE_ERROR_CORRUPT,
                "data %s/%s: other files of the folder are called train or val, and this name says "
                "%s: rename it or take it away",
                path, name, trains(name) ? "both" : "neither");
    }
    return TIDE_OK;
}

tide_status tide_shard_folder_open(const char *path, tide_shard_folder *folder)
{
    tide_shard_folder opened = {0};
    const int count = scandir(path, &opened.entries, is_shard_name, by_name);
    if (count < 0)
        return tide_fail(TIDE_ERROR_IO, "data %s: the folder can't be read: %s", path, strerror(errno));
    opened.count = (size_t)count;
    const tide_status status = look(path, &opened);
    if (status == TIDE_OK)
        *folder = opened;
    else
        tide_shard_folder_close(&opened);
    return status;
}

void tide_shard_folder_close(tide_shard_folder *folder)
{
    for (size_t i = 0; i < folder->count; i++)
        free(folder->entries[i]);
    free(folder->entries);
    *folder = (tide_shard_folder){0};
}

bool tide_shard_folder_validates(const tide_shard_folder *folder, size_t index)
{
    return folder->is_split && validates(folder->entries[index]->d_name);
}
