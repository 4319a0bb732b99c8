/* Computes how many bytes the saves of a run need, by going through them one by one until the folder holds
 * only the run's own checkpoints; from then on each save adds one and removes one. The sizes of older
 * checkpoints are read from the files, since they may belong to another model. */
#include "src/checkpoint/free_space.h"

#include "src/checkpoint/folder.h"

#include <stdio.h>
#include <string.h>

typedef struct sizing {
    const tide_files *files;
    const char *path;
    uint64_t bytes;
} sizing;

/* Adds a file's size. A file that can't be opened counts 0, so that the sum never promises too much. */
static int add_file(void *visitor, const char *name)
{
    sizing *size = visitor;
    char path[TIDE_CHECKPOINT_PATH_BYTES + 256];
    int handle;
    uint64_t bytes = 0;
    snprintf(path, sizeof path, "%s/%.255s", size->path, name);
    if (size->files->open(size->files->context, path, &handle) != 0)
        return 0;
    if (size->files->size(size->files->context, handle, &bytes) == 0)
        size->bytes += bytes;
    size->files->close(size->files->context, handle); /* opened for reading only: closing can lose nothing */
    return 0;
}

static uint64_t folder_bytes(const tide_files *files, const char *path)
{
    sizing size = {.files = files, .path = path};
    (void)files->list(files->context, path, add_file, &size);
    return size.bytes;
}

static uint64_t stale_bytes(const tide_folder *folder)
{
    uint64_t bytes = 0;
    for (size_t i = 0; i < folder->stale_count; i++) {
        char path[TIDE_CHECKPOINT_PATH_BYTES];
        tide_folder_tmp_path(folder, folder->stale[i].step, folder->stale[i].process_id, path);
        bytes += folder_bytes(folder->files, path);
    }
    return bytes;
}

static uint64_t product(uint64_t a, uint64_t b)
{
    uint64_t made;
    return __builtin_mul_overflow(a, b, &made) ? UINT64_MAX : made;
}

/* The most bytes that the saves add at any moment. Steps are listed newest first; those after from_step
 * stay. */
static uint64_t most_added(const tide_folder *folder, const tide_checkpoint_saves *saves)
{
    size_t first = 0, old = folder->step_count;
    while (first < old && folder->steps[first] > saves->from_step)
        first++;
    uint64_t own = 0, freed = stale_bytes(folder), most = 0;
    while (own < saves->count) {
        own++;
        const uint64_t there = product(own, saves->bytes), added = there > freed ? there - freed : 0;
        most = added > most ? added : most;
        for (; old > first && own + (old - first) > saves->keep; old--) {
            char path[TIDE_CHECKPOINT_PATH_BYTES];
            tide_folder_step_path(folder, folder->steps[old - 1], path);
            freed += folder_bytes(folder->files, path);
        }
        if (own > saves->keep)
            break; /* the run has reached its peak: `keep` checkpoints of its own and one more */
    }
    return most;
}

tide_status tide_checkpoint_space_needed(const tide_files *files, const char *dir,
                                         const tide_checkpoint_saves *saves, uint64_t *bytes)
{
    tide_folder folder;
    const tide_status status = tide_folder_open(files, dir, &folder);
    if (status != TIDE_OK)
        return status;
    if (saves->keep > 0) {
        *bytes = most_added(&folder, saves);
    } else {
        const uint64_t all = product(saves->count, saves->bytes), stale = stale_bytes(&folder);
        *bytes = all > stale ? all - stale : 0;
    }
    tide_folder_close(&folder);
    return TIDE_OK;
}
