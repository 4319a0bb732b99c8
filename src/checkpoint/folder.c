/* Lists and removes the contents of a folder of checkpoints.
 *
 *     DIR/step-100             always complete
 *     DIR/step-200
 *     DIR/.tmp-300-4711        process 4711 is writing or removing it
 *     DIR/.tmp-300-4711.lock   exists while the process writes it (base/owner.h)
 *
 * A removal could easily break the promise that a folder called step-N is complete. If it removed the files
 * first, or before the rename to .tmp-N-PID is on disk, a power cut would leave an incomplete step-N. So a
 * removal renames the folder, syncs DIR, and then removes the files. A .tmp folder found later may come from
 * such a rename by a process that died before its sync, so DIR is synced before such a folder is removed,
 * too.
 *
 * A .tmp folder is stale if its owner is gone. The lock tells this, whichever machine the owner ran on. A
 * folder that is being removed has no lock; then its process id decides, and it does no harm if two machines
 * remove it at once.
 */
#include "src/checkpoint/folder.h"

#include "base/array.h"
#include "base/owner.h"
#include "src/checkpoint/manifest.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Bytes that names inside the folder need: "/.tmp-<20 digits>-<20 digits>/momentum.safetensors". */
enum { NAMES_MAX_BYTES = 96 };

/* ---- names ---- */

/* Parses a decimal number without sign or leading zero that the character `end` follows, and moves *text
 * behind `end`. */
static bool number_parse(const char **text, char end, uint64_t *number)
{
    const char *at = *text;
    uint64_t value = 0;
    if (*at == '0' && at[1] != end)
        return false;
    for (; *at >= '0' && *at <= '9'; at++) {
        uint64_t digit = (uint64_t)(*at - '0');
        if (value > (UINT64_MAX - digit) / 10)
            return false;
        value = value * 10 + digit;
    }
    if (at == *text || *at != end)
        return false;
    *text = at + (end != '\0');
    *number = value;
    return true;
}

static bool step_name_parse(const char *name, uint64_t *step)
{
    if (strncmp(name, "step-", 5) != 0)
        return false;
    name += 5;
    return number_parse(&name, '\0', step);
}

/* Parses the name of a .tmp folder or of its lock. */
static bool tmp_name_parse(const char *name, tide_folder_stale *tmp)
{
    char folder[64];
    const size_t length = strlen(name), suffix = strlen(TIDE_OWNER_SUFFIX);
    const bool locks = length > suffix && strcmp(name + length - suffix, TIDE_OWNER_SUFFIX) == 0;
    if (strncmp(name, ".tmp-", 5) != 0 || length - 5 >= sizeof folder)
        return false;
    snprintf(folder, sizeof folder, "%.*s", (int)(locks ? length - 5 - suffix : length - 5), name + 5);
    const char *at = folder;
    return number_parse(&at, '-', &tmp->step) && number_parse(&at, '\0', &tmp->process_id);
}

static void path_format(char path[TIDE_CHECKPOINT_PATH_BYTES], const char *format, ...) TIDE_PRINTF(2, 3);

static void path_format(char path[TIDE_CHECKPOINT_PATH_BYTES], const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    int length = vsnprintf(path, TIDE_CHECKPOINT_PATH_BYTES, format, arguments);
    va_end(arguments);
    assert(length > 0 && length < TIDE_CHECKPOINT_PATH_BYTES);
    (void)length;
}

static size_t length_without_slashes(const char *path)
{
    size_t length = strlen(path);
    while (length > 1 && path[length - 1] == '/')
        length--;
    return length;
}

bool tide_folder_step_of(const char *path, uint64_t *step)
{
    char name[32];
    size_t end = length_without_slashes(path), begin = end;
    while (begin > 0 && path[begin - 1] != '/')
        begin--;
    if (end - begin >= sizeof name)
        return false;
    memcpy(name, path + begin, end - begin);
    name[end - begin] = '\0';
    return step_name_parse(name, step);
}

void tide_folder_parent(const char *path, char parent[TIDE_CHECKPOINT_PATH_BYTES])
{
    path_format(parent, "%.*s", (int)length_without_slashes(path), path);
    char *slash = strrchr(parent, '/');
    if (slash == NULL)
        memcpy(parent, ".", 2);
    else
        slash[slash == parent] = '\0'; /* the parent of "/x" is "/" */
}

void tide_folder_step_path(const tide_folder *folder, uint64_t step, char path[TIDE_CHECKPOINT_PATH_BYTES])
{
    path_format(path, "%s/step-%" PRIu64, folder->path, step);
}

void tide_folder_tmp_path(const tide_folder *folder, uint64_t step, uint64_t process_id,
                          char path[TIDE_CHECKPOINT_PATH_BYTES])
{
    path_format(path, "%s/.tmp-%" PRIu64 "-%" PRIu64, folder->path, step, process_id);
}

/* ---- listing ---- */

static int append(void **items, size_t *count, const void *item, size_t item_bytes)
{
    if (!tide_array_grow(items, *count, item_bytes))
        return ENOMEM;
    memcpy((char *)*items + *count * item_bytes, item, item_bytes);
    *count += 1;
    return 0;
}

/* Tries to open the manifest; returns 0 or an errno. ENOENT: step-N has no manifest; ENOTDIR: step-N is no
 * folder. After any other error step-N counts as a checkpoint, so that its reader gets the error. */
static int manifest_open(const tide_folder *folder, uint64_t step)
{
    char step_path[TIDE_CHECKPOINT_PATH_BYTES], path[TIDE_CHECKPOINT_PATH_BYTES];
    int handle;
    tide_folder_step_path(folder, step, step_path);
    path_format(path, "%s/" TIDE_MANIFEST_NAME, step_path);
    int error = folder->files->open(folder->files->context, path, &handle);
    if (error == 0)
        /* opened for reading only: closing can lose nothing */
        folder->files->close(folder->files->context, handle);
    return error;
}

static int append_step(tide_folder *folder, uint64_t step)
{
    const int error = manifest_open(folder, step);
    if (error == ENOTDIR)
        return append((void **)&folder->plain, &folder->plain_count, &step, sizeof step);
    if (error == ENOENT)
        return append((void **)&folder->remains, &folder->remain_count, &step, sizeof step);
    return append((void **)&folder->steps, &folder->step_count, &step, sizeof step);
}

/* Adds a stale folder once, though the listing has both the folder and its lock. */
static int stale_visit(tide_folder *folder, const tide_folder_stale *tmp)
{
    char path[TIDE_CHECKPOINT_PATH_BYTES];
    for (size_t i = 0; i < folder->stale_count; i++)
        if (folder->stale[i].step == tmp->step && folder->stale[i].process_id == tmp->process_id)
            return 0;
    tide_folder_tmp_path(folder, tmp->step, tmp->process_id, path);
    if (!tide_owner_is_gone(folder->files, path, tmp->process_id))
        return 0;
    return append((void **)&folder->stale, &folder->stale_count, tmp, sizeof *tmp);
}

static int visit_name(void *visitor, const char *name)
{
    tide_folder *folder = visitor;
    uint64_t step;
    tide_folder_stale tmp;
    if (step_name_parse(name, &step))
        return append_step(folder, step);
    return tmp_name_parse(name, &tmp) ? stale_visit(folder, &tmp) : 0;
}

static int newest_first(const void *a, const void *b)
{
    uint64_t step_a = *(const uint64_t *)a, step_b = *(const uint64_t *)b;
    return (step_a < step_b) - (step_a > step_b);
}

static tide_status path_take(tide_folder *folder, const char *path)
{
    const size_t length = length_without_slashes(path);
    if (length == 0 || length + NAMES_MAX_BYTES > TIDE_CHECKPOINT_PATH_BYTES)
        return tide_fail(TIDE_ERROR_ARGUMENT, "checkpoint folder: its path must have 1 to %d bytes, not %zu",
                         TIDE_CHECKPOINT_PATH_BYTES - NAMES_MAX_BYTES, length);
    memcpy(folder->path, path, length);
    folder->path[length] = '\0';
    return TIDE_OK;
}

tide_status tide_folder_open(const tide_files *files, const char *path, tide_folder *folder)
{
    memset(folder, 0, sizeof *folder);
    folder->files = files;
    tide_status status = path_take(folder, path);
    if (status != TIDE_OK)
        return status;
    int error = files->list(files->context, folder->path, visit_name, folder);
    folder->exists = error == 0;
    if (error == 0 && folder->step_count > 0)
        qsort(folder->steps, folder->step_count, sizeof *folder->steps, newest_first);
    if (error == 0 && folder->remain_count > 0)
        qsort(folder->remains, folder->remain_count, sizeof *folder->remains, newest_first);
    if (error == 0 && folder->plain_count > 0)
        qsort(folder->plain, folder->plain_count, sizeof *folder->plain, newest_first);
    if (error == 0 || error == ENOENT)
        return TIDE_OK;
    tide_folder_close(folder);
    if (error == ENOMEM)
        return tide_fail(TIDE_ERROR_NO_MEMORY, "checkpoint folder %.900s: no memory to list it", path);
    return tide_fail(TIDE_ERROR_IO, "checkpoint folder %.900s: can't be read: %s", path, strerror(error));
}

void tide_folder_close(tide_folder *folder)
{
    free(folder->steps);
    free(folder->remains);
    free(folder->plain);
    free(folder->stale);
    folder->steps = folder->remains = folder->plain = NULL;
    folder->stale = NULL;
    folder->step_count = folder->remain_count = folder->plain_count = folder->stale_count = 0;
}

tide_status tide_folder_way_check(const tide_folder *folder, uint64_t first, uint64_t last)
{
    char path[TIDE_CHECKPOINT_PATH_BYTES];
    for (size_t i = folder->plain_count; i-- > 0;) {
        if (folder->plain[i] < first || folder->plain[i] > last)
            continue;
        tide_folder_step_path(folder, folder->plain[i], path);
        return tide_fail(
            TIDE_ERROR_STATE,
            "checkpoint %.900s: it is no folder, and in the way of that step's checkpoint; move it away",
            path);
    }
    return TIDE_OK;
}

/* ---- removing ---- */

typedef struct name_list {
    char (*names)[256];
    size_t count;
} name_list;

static int visit_file(void *visitor, const char *name)
{
    name_list *list = visitor;
    char item[256];
    if (strlen(name) >= sizeof item)
        return ENAMETOOLONG;
    memset(item, 0, sizeof item);
    memcpy(item, name, strlen(name));
    return append((void **)&list->names, &list->count, item, sizeof item);
}

/* Collects the names first, since a folder must not change while it is being listed. */
static int remove_contents(const tide_files *files, const char *path)
{
    name_list list = {0};
    int error = files->list(files->context, path, visit_file, &list);
    for (size_t i = 0; i < list.count && error == 0; i++) {
        char file_path[TIDE_CHECKPOINT_PATH_BYTES + 256];
        snprintf(file_path, sizeof file_path, "%s/%s", path, list.names[i]);
        error = files->remove_file(files->context, file_path);
    }
    free(list.names);
    return error;
}

tide_status tide_folder_remove_tmp(const tide_folder *folder, uint64_t step, uint64_t process_id,
                                   bool was_named)
{
    const tide_files *files = folder->files;
    char path[TIDE_CHECKPOINT_PATH_BYTES];
    tide_folder_tmp_path(folder, step, process_id, path);
    int error = was_named ? files->sync_folder(files->context, folder->path) : 0;
    if (error == 0)
        error = remove_contents(files, path);
    if (error == 0)
        error = files->remove_folder(files->context, path);
    if (error != 0 && error != ENOENT)
        return tide_fail(TIDE_ERROR_IO, "checkpoint %.900s: can't be removed: %s", path, strerror(error));
    return TIDE_OK;
}

tide_status tide_folder_remove_stale(const tide_folder *folder, const tide_folder_stale *stale)
{
    const tide_files *files = folder->files;
    char path[TIDE_CHECKPOINT_PATH_BYTES];
    int lock;
    tide_folder_tmp_path(folder, stale->step, stale->process_id, path);
    if (tide_owner_inherit(files, path, stale->process_id, false, &lock) != 0)
        return TIDE_OK; /* another process has taken the folder over */
    const tide_status status = tide_folder_remove_tmp(folder, stale->step, stale->process_id, true);
    if (status == TIDE_OK)
        tide_owner_release(files, path, lock);
    else
        tide_owner_leave(files, lock);
    return status;
}

tide_status tide_folder_remove_step(const tide_folder *folder, uint64_t step)
{
    const tide_files *files = folder->files;
    uint64_t process_id = files->process_id(files->context);
    char named[TIDE_CHECKPOINT_PATH_BYTES], unnamed[TIDE_CHECKPOINT_PATH_BYTES];
    tide_folder_step_path(folder, step, named);
    tide_folder_tmp_path(folder, step, process_id, unnamed);
    int error = files->rename(files->context, named, unnamed);
    if (error != 0)
        return tide_fail(TIDE_ERROR_IO, "checkpoint %.900s: can't be renamed for removal: %s", named,
                         strerror(error));
    return tide_folder_remove_tmp(folder, step, process_id, true);
}

tide_status tide_folder_sync_parent(const tide_folder *folder, bool may_be_unreadable)
{
    char parent[TIDE_CHECKPOINT_PATH_BYTES];
    tide_folder_parent(folder->path, parent);
    int error = folder->files->sync_folder(folder->files->context, parent);
    if (error == 0 || (error == EACCES && may_be_unreadable))
        return TIDE_OK;
    return tide_fail(TIDE_ERROR_IO, "checkpoint folder %.900s: its parent can't be synced: %s", folder->path,
                     strerror(error));
}
