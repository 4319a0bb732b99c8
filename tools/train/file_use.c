#include "tools/train/file_use.h"

#include "base/files.h"
#include "src/checkpoint/folder.h"
#include "src/export/export.h"

#include <assert.h>
#include <dirent.h>
#include <errno.h>
#include <fnmatch.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { LINKS_MAX = 40 /* the limit of Linux */ };

static tide_status look_fail(const char *name, const char *path, int error)
{
    if (error == ENOMEM)
        return tide_fail(TIDE_ERROR_NO_MEMORY, "%s %s: no memory to look at it", name, path);
    return tide_fail(TIDE_ERROR_IO, "%s %s: can't be looked at: %s", name, path, strerror(error));
}

/* ---- the place that a path leads to ---- */

typedef struct place {
    const tide_file_use *use;
    bool exists;
    struct stat about; /* only if the file exists */
    /* only if the file does not exist: the path at which it would be created; NULL: its folder does not exist
     * either */
    char *made;
} place;

/* Replaces a path whose last name is a symbolic link by the path that the link names. Returns 0 or an errno
 * value; ENOENT: the last name is no link, or does not exist. */
static int link_follow(char **path)
{
    char target[PATH_MAX];
    const ssize_t length = readlink(*path, target, sizeof target - 1);
    if (length < 0)
        return errno == EINVAL ? ENOENT : errno; /* EINVAL: it is no link */
    target[length] = '\0';
    char *followed = NULL, *slash = strrchr(*path, '/');
    *slash = '\0';
    if (target[0] == '/')
        followed = strdup(target);
    else if (asprintf(&followed, "%s/%s", *path, target) < 0)
        followed = NULL;
    free(*path);
    *path = followed;
    return followed != NULL ? 0 : ENOMEM;
}

/* Resolves all links in the folder part of the path and keeps the last name. Returns 0 or an errno value. */
static int folder_follow(char **path)
{
    size_t length = strlen(*path);
    while (length > 1 && (*path)[length - 1] == '/')
        (*path)[--length] = '\0';
    char *slash = strrchr(*path, '/'), *joined = NULL;
    if (slash != NULL)
        *slash = '\0';
    char *folder = realpath(slash == NULL ? "." : slash == *path ? "/" : *path, NULL);
    const int error = errno;
    if (folder == NULL)
        return error;
    if (asprintf(&joined, "%s/%s", folder, slash != NULL ? slash + 1 : *path) < 0)
        joined = NULL;
    free(folder);
    free(*path);
    *path = joined;
    return joined != NULL ? 0 : ENOMEM;
}

/* Finds the path at which opening `path` would create a file. Leaves *made as it is if the folder does not
 * exist. Returns 0 or an errno value. */
static int made_find(const char *path, char **made)
{
    char *at = strdup(path);
    int error = at != NULL ? 0 : ENOMEM;
    for (int links = 0; error == 0 && links <= LINKS_MAX; links++) {
        error = folder_follow(&at);
        if (error != 0)
            break;
        error = link_follow(&at);
        if (error == ENOENT) {
            *made = at;
            return 0;
        }
    }
    free(at);
    return error == 0 ? ELOOP : tide_files_is_absent(error) ? 0 : error;
}

static tide_status place_find(const tide_file_use *use, place *found)
{
    *found = (place){.use = use};
    if (use->path == NULL)
        return TIDE_OK;
    found->exists = stat(use->path, &found->about) == 0;
    int error = found->exists ? 0 : errno;
    if (tide_files_is_absent(error))
        error = made_find(use->path, &found->made);
    if (error == ENAMETOOLONG) /* the code that opens the file reports this */
        error = 0;
    return error == 0 ? TIDE_OK : look_fail(use->name, use->path, error);
}

static bool is_one(const struct stat *a, const struct stat *b)
{
    return a->st_dev == b->st_dev && a->st_ino == b->st_ino;
}

static bool is_kept(const struct stat *about)
{
    return S_ISREG(about->st_mode) || S_ISDIR(about->st_mode);
}

static bool is_same(const place *a, const place *b)
{
    if (a->exists && b->exists)
        return is_kept(&a->about) && is_one(&a->about, &b->about);
    return a->made != NULL && b->made != NULL && strcmp(a->made, b->made) == 0;
}

tide_status tide_file_is_same(const char *a, const char *b, bool *same)
{
    const char *const paths[] = {a, b};
    struct stat about[2];
    *same = false;
    for (int i = 0; i < 2; i++) {
        if (stat(paths[i], &about[i]) == 0)
            continue;
        return tide_files_is_absent(errno)
                   ? TIDE_OK
                   : tide_fail(TIDE_ERROR_IO, "%s: can't be looked at: %s", paths[i], strerror(errno));
    }
    *same = is_one(&about[0], &about[1]);
    return TIDE_OK;
}

/* ---- the files in a folder ---- */

/* Skips `word` and a number behind it at *text; false: they are not there, and *text stays. */
static bool skip_numbered(const char **text, const char *word)
{
    const size_t length = strlen(word);
    const size_t digits = strncmp(*text, word, length) == 0 ? strspn(*text + length, "0123456789") : 0;
    *text += digits > 0 ? length + digits : 0;
    return digits > 0;
}

/* Whether a trace's name with this ending is that of a file beside it. */
static bool is_trace_ending(const char *ending)
{
    const bool of_rank = skip_numbered(&ending, ".rank-"), of_step = skip_numbered(&ending, ".step-");
    return (of_rank || of_step) && *ending == '\0';
}

/* Whether a command that is given the folder (or the trace called `base`) also reads or writes the file
 * `name` in it. */
static bool takes(tide_file_kind kind, const char *base, const char *name)
{
    const size_t length = strlen(base);
    switch (kind) {
    case TIDE_FILE_TRACE:
        return strncmp(name, base, length) == 0 && is_trace_ending(name + length);
    case TIDE_FILE_LOGS:
        return skip_numbered(&name, "rank-") && strcmp(name, ".log") == 0;
    case TIDE_FILE_DATA:
        return fnmatch("?*.bin", name, FNM_PERIOD) == 0;
    case TIDE_FILE_MODEL:
        return tide_export_is_sidecar(name, true) || fnmatch("*.safetensors*", name, FNM_PERIOD) == 0;
    case TIDE_FILE_WHOLE:
        return true;
    default:
        return false;
    }
}

/* Whether a run's folder of checkpoints holds an entry of this name that the run uses as a whole: a
 * checkpoint, or the copy of the source model's files. */
static bool is_runs_own(const char *name)
{
    uint64_t step;
    return tide_folder_step_of(name, &step) || strcmp(name, TIDE_EXPORT_SOURCE_NAME) == 0;
}

typedef struct looking {
    const char *command;
    const place *places; /* the places that the command reads, then those that it writes */
    size_t read_count, count;
    size_t first;               /* index of the first place that is compared with the files of `owner` */
    const tide_file_use *owner; /* the use whose folder is searched */
    const char *folder, *base;
    tide_file_kind kind;
} looking;

static tide_status refuse(const looking *it, const tide_file_use *other, const char *path)
{
    return tide_fail(TIDE_ERROR_ARGUMENT, "%s: %s %s: that is %s itself (%s); name another", it->command,
                     other->name, other->path, it->owner->name, path);
}

/* Refuses a file of the folder that the command also uses under another option. */
static tide_status entry_check(const looking *it, int folder, const char *name)
{
    char path[PATH_MAX];
    struct stat about;
    (void)snprintf(path, sizeof path, "%s/%s", it->folder, name);
    if (fstatat(folder, name, &about, 0) != 0)
        return tide_files_is_absent(errno) ? TIDE_OK : look_fail(it->owner->name, path, errno);
    for (size_t i = it->first; i < it->count; i++)
        if (it->places[i].use != it->owner && it->places[i].exists && is_one(&it->places[i].about, &about))
            return refuse(it, it->places[i].use, path);
    return TIDE_OK;
}

/* Refuses an output that the command would create in this folder under a name that it later takes for one of
 * the folder's files. */
static tide_status newcomers_check(const looking *it)
{
    char *folder = realpath(it->folder, NULL);
    tide_status status = folder != NULL ? TIDE_OK : look_fail(it->owner->name, it->folder, errno);
    for (size_t i = it->read_count; i < it->count && status == TIDE_OK; i++) {
        const tide_file_use *write = it->places[i].use;
        const char *made = it->places[i].made, *slash = made != NULL ? strrchr(made, '/') : NULL;
        const size_t length = made != NULL ? (size_t)(slash - made) : 0;
        if (write != it->owner && made != NULL && strlen(folder) == length &&
            memcmp(made, folder, length) == 0 && takes(it->kind, it->base, slash + 1))
            status = tide_fail(TIDE_ERROR_ARGUMENT,
                               "%s: %s %s: it would be taken for a part of %s (%s); name another",
                               it->command, write->name, write->path, it->owner->name, it->owner->path);
    }
    free(folder);
    return status;
}

static tide_status folder_check(const looking *it);

static tide_status part_check(const looking *it, const char *name)
{
    looking part = *it;
    char *path = NULL;
    if (asprintf(&path, "%s/%s", it->folder, name) < 0)
        return look_fail(it->owner->name, it->folder, ENOMEM);
    part.folder = path;
    part.kind = TIDE_FILE_WHOLE;
    const tide_status status = folder_check(&part);
    free(path);
    return status;
}

static tide_status folder_check(const looking *it)
{
    DIR *folder = opendir(it->folder);
    if (folder == NULL)
        return tide_files_is_absent(errno) ? TIDE_OK : look_fail(it->owner->name, it->folder, errno);
    tide_status status = newcomers_check(it);
    while (status == TIDE_OK) {
        errno = 0;
        const struct dirent *entry = readdir(folder);
        if (entry == NULL) {
            status = errno == 0 ? TIDE_OK : look_fail(it->owner->name, it->folder, errno);
            break;
        }
        const char *name = entry->d_name;
        if (strcmp(name, ".") == 0 || strcmp(name, "..") == 0)
            continue;
        if (it->kind == TIDE_FILE_RUN && is_runs_own(name))
            status = part_check(it, name);
        else if (takes(it->kind, it->base, name))
            status = entry_check(it, dirfd(folder), name);
    }
    closedir(folder); /* the folder was only read, so closing loses nothing */
    return status;
}

/* Checks the files that belong to the place `owner`: a trace's segments, a folder's shards or logs. */
static tide_status parts_check(looking it, const place *owner)
{
    char folder[TIDE_CHECKPOINT_PATH_BYTES];
    const char *path = owner->use->path;
    it.owner = owner->use;
    it.kind = owner->use->kind;
    it.base = "";
    it.folder = path;
    if (path == NULL || it.kind == TIDE_FILE_PLAIN || strlen(path) >= sizeof folder)
        return TIDE_OK;
    if (it.kind != TIDE_FILE_TRACE)
        return folder_check(&it);
    if (owner->exists && !S_ISREG(owner->about.st_mode)) /* a pipe has no segments */
        return TIDE_OK;
    tide_folder_parent(path, folder);
    const char *slash = strrchr(path, '/');
    it.base = slash != NULL ? slash + 1 : path;
    it.folder = folder;
    return folder_check(&it);
}

/* ---- all uses together ---- */

/* Whether the place is a folder in which others may write, too. */
static bool is_shared(const place *one)
{
    return one->use->kind == TIDE_FILE_RUN || one->use->kind == TIDE_FILE_LOGS;
}

static tide_status place_check(looking it, const place *one)
{
    const size_t number = (size_t)(one - it.places);
    it.owner = one->use;
    for (size_t i = number < it.read_count ? it.read_count : number + 1; i < it.count; i++) {
        const place *write = &it.places[i];
        if (!is_shared(one) && !is_shared(write) && is_same(write, one))
            return refuse(&it, write->use, one->use->path);
    }
    it.first = number < it.read_count ? it.read_count : 0;
    return parts_check(it, one);
}

tide_status tide_file_uses_check(const char *command, const tide_file_use *reads, size_t read_count,
                                 const tide_file_use *writes, size_t write_count)
{
    place places[2 * TIDE_FILE_USES_MAX];
    const size_t count = read_count + write_count;
    tide_status status = TIDE_OK;
    size_t found = 0;
    assert(read_count <= TIDE_FILE_USES_MAX && write_count <= TIDE_FILE_USES_MAX);
    for (; found < count && status == TIDE_OK; found++)
        status = place_find(found < read_count ? &reads[found] : &writes[found - read_count], &places[found]);
    const looking it = {.command = command, .places = places, .read_count = read_count, .count = count};
    for (size_t i = 0; i < count && status == TIDE_OK; i++)
        status = place_check(it, &places[i]);
    for (size_t i = 0; i < found; i++)
        free(places[i].made);
    return status;
}
