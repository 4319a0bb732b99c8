/* The temporary folder in which an export is made: OUT.tmp-PID. This process owns it by the lock
 * OUT.tmp-PID.lock (base/owner.h) until the folder is renamed to OUT. A folder of such a name without a lock
 * is the user's, or a complete model that could not be renamed: it is never removed. */
#include "src/export/export_internal.h"

#include "base/owner.h"
#include "base/whole.h"
#include "src/checkpoint/folder.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PATH_BYTES = TIDE_CHECKPOINT_PATH_BYTES, TEMPORARIES_MAX = 100 };

static const char infix[] = ".tmp-";

static size_t length_without_slashes(const char *path)
{
    size_t length = strlen(path);
    while (length > 1 && path[length - 1] == '/')
        length--;
    return length;
}

void tide_export_name_of(const char *path, char name[TIDE_CHECKPOINT_PATH_BYTES])
{
    const size_t end = length_without_slashes(path);
    size_t begin = end;
    while (begin > 0 && path[begin - 1] != '/')
        begin--;
    (void)snprintf(name, PATH_BYTES, "%.*s", (int)(end - begin), path + begin);
}

static int try_make(const tide_files *files, tide_export_place *place)
{
    int error = tide_owner_claim(files, place->path, &place->lock);
    if (error != 0)
        return error;
    error = files->make_folder(files->context, place->path);
    if (error != 0)
        tide_owner_release(files, place->path, place->lock);
    return error;
}

/* If something has the name already, it stays, and the next number gives a new name. */
tide_status tide_export_place_make(const tide_export *export, tide_export_place *place)
{
    const int length = (int)length_without_slashes(export->out);
    const uint64_t process = export->files->process_id(export->files->context);
    int error = EEXIST;
    for (unsigned number = 0; error == EEXIST && number < TEMPORARIES_MAX; number++) {
        char more[16] = "";
        if (number > 0)
            (void)snprintf(more, sizeof more, "-%u", number);
        if ((size_t)snprintf(place->path, PATH_BYTES, "%.*s%s%" PRIu64 "%s", length, export->out, infix,
                             process, more) >= PATH_BYTES)
            error = ENAMETOOLONG;
        else
            error = try_make(export->files, place);
    }
    if (error == 0)
        return TIDE_OK;
    const tide_status status = tide_export_folder_fail(place->path, "made", error);
    place->path[0] = '\0';
    return status;
}

void tide_export_place_release(const tide_files *files, tide_export_place *place)
{
    tide_owner_release(files, place->path, place->lock);
    place->path[0] = '\0';
}

/* If the folder can't be removed, its lock file stays, so that the next export to OUT tries again. */
static int remove_owned(const tide_files *files, const char *path, int lock)
{
    const int error = tide_files_remove_folder(files, path);
    if (error == 0 || error == ENOENT)
        tide_owner_release(files, path, lock);
    else
        tide_owner_leave(files, lock);
    return error == ENOENT ? 0 : error;
}

void tide_export_abandon(const tide_files *files, tide_export_place *place)
{
    if (place->path[0] != '\0')
        (void)remove_owned(files, place->path, place->lock);
    *place = (tide_export_place){.path = ""};
}

typedef struct search {
    const tide_files *files;
    const char *out;
    char name[PATH_BYTES]; /* the last name of `out` */
    char path[PATH_BYTES]; /* of a folder that was found and that this process owns now */
    int lock;
} search;

/* Ends the listing at the first lock whose owner is gone, because a folder must not change while it is
 * listed. */
static int left_visit(void *visitor, const char *name)
{
    search *it = visitor;
    const size_t begin = strlen(it->name), suffix = strlen(TIDE_OWNER_SUFFIX), length = strlen(name);
    if (length <= begin + strlen(infix) + suffix || strncmp(name, it->name, begin) != 0 ||
        strncmp(name + begin, infix, strlen(infix)) != 0 ||
        strcmp(name + length - suffix, TIDE_OWNER_SUFFIX) != 0)
        return 0;
    if ((size_t)snprintf(it->path, sizeof it->path, "%.*s%.*s", (int)length_without_slashes(it->out), it->out,
                         (int)(length - suffix - begin), name + begin) >= sizeof it->path)
        return 0;
    const uint64_t process = strtoull(name + begin + strlen(infix), NULL, 10);
    return tide_owner_inherit(it->files, it->path, process, true, &it->lock) == 0 ? EEXIST : 0;
}

void tide_export_tidy(const tide_files *files, const char *out)
{
    char parent[PATH_BYTES];
    search it = {.files = files, .out = out};
    if (strlen(out) >= sizeof parent)
        return;
    tide_folder_parent(out, parent);
    tide_export_name_of(out, it.name);
    for (unsigned number = 0; number < TEMPORARIES_MAX; number++)
        if (files->list(files->context, parent, left_visit, &it) != EEXIST ||
            remove_owned(files, it.path, it.lock) != 0)
            return;
}
