#include "base/owner.h"

#include <errno.h>
#include <stdio.h>

enum { PATH_BYTES = 4096 };

static int lock_path(const char *path, char lock[PATH_BYTES])
{
    return (size_t)snprintf(lock, PATH_BYTES, "%s" TIDE_OWNER_SUFFIX, path) < PATH_BYTES ? 0 : ENAMETOOLONG;
}

int tide_owner_claim(const tide_files *files, const char *path, int *lock)
{
    char name[PATH_BYTES];
    const int error = lock_path(path, name);
    return error != 0 ? error : files->lock(files->context, name, true, lock);
}

static bool process_is_gone(const tide_files *files, uint64_t process_id)
{
    return process_id == files->process_id(files->context) ||
           !files->process_is_alive(files->context, process_id);
}

int tide_owner_inherit(const tide_files *files, const char *path, uint64_t process_id, bool lock_proves,
                       int *lock)
{
    char name[PATH_BYTES];
    int error = lock_path(path, name);
    if (error == 0)
        error = files->lock(files->context, name, false, lock);
    if (error == 0 || error == EWOULDBLOCK || (error == ENOENT && lock_proves))
        return error;
    if (!process_is_gone(files, process_id))
        return EWOULDBLOCK;
    *lock = TIDE_OWNER_NO_LOCK;
    return 0;
}

void tide_owner_leave(const tide_files *files, int lock)
{
    if (lock != TIDE_OWNER_NO_LOCK)
        (void)files->close(files->context, lock); /* nothing was written, so closing can lose nothing */
}

void tide_owner_release(const tide_files *files, const char *path, int lock)
{
    char name[PATH_BYTES];
    if (lock_path(path, name) == 0)
        /* a failure is ignored: the next search for stale folders finds the lock file */
        (void)files->remove_file(files->context, name);
    tide_owner_leave(files, lock);
}

bool tide_owner_is_gone(const tide_files *files, const char *path, uint64_t process_id)
{
    int lock;
    if (tide_owner_inherit(files, path, process_id, false, &lock) != 0)
        return false;
    tide_owner_leave(files, lock);
    return true;
}
