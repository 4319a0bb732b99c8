/* The operating system's files, as a tide_files table. Handles are file descriptors. Interrupted calls are
 * repeated. */
#include "base/files.h"

#include <assert.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

static int open_descriptor(const char *path, int flags, int *handle)
{
    int descriptor = open(path, flags | O_CLOEXEC, 0666);
    if (descriptor < 0)
        return errno;
    *handle = descriptor;
    return 0;
}

static int posix_open(void *context, const char *path, int *handle)
{
    (void)context;
    /* O_NONBLOCK: if a fifo has the file's name, reading fails instead of waiting for the fifo's writer. */
    return open_descriptor(path, O_RDONLY | O_NONBLOCK, handle);
}

static int posix_create(void *context, const char *path, int *handle)
{
    (void)context;
    return open_descriptor(path, O_WRONLY | O_CREAT | O_EXCL, handle);
}

static int posix_read(void *context, int handle, uint64_t offset, void *buffer, size_t bytes, size_t *done)
{
    (void)context;
    ssize_t got;
    do {
        got = pread(handle, buffer, bytes, (off_t)offset);
    } while (got < 0 && errno == EINTR);
    if (got < 0)
        return errno;
    *done = (size_t)got;
    return 0;
}

static int posix_write(void *context, int handle, const void *buffer, size_t bytes, size_t *done)
{
    (void)context;
    ssize_t put;
    do {
        put = write(handle, buffer, bytes);
    } while (put < 0 && errno == EINTR);
    if (put < 0)
        return errno;
    if (put == 0 && bytes > 0)
        return EIO;
    *done = (size_t)put;
    return 0;
}

static int posix_size(void *context, int handle, uint64_t *bytes)
{
    (void)context;
    struct stat about;
    if (fstat(handle, &about) != 0)
        return errno;
    if (!S_ISREG(about.st_mode))
        return S_ISDIR(about.st_mode) ? EISDIR : EINVAL;
    *bytes = (uint64_t)about.st_size;
    return 0;
}

static int posix_sync(void *context, int handle)
{
    (void)context;
    int result;
    do {
        result = fsync(handle);
    } while (result != 0 && errno == EINTR);
    return result == 0 ? 0 : errno;
}

static int posix_close(void *context, int handle)
{
    (void)context;
    /* Never repeat close: after EINTR Linux has closed the descriptor already. */
    return close(handle) == 0 || errno == EINTR ? 0 : errno;
}

static int lock_descriptor(int handle, int operation)
{
    int result;
    do {
        result = flock(handle, operation);
    } while (result != 0 && errno == EINTR);
    return result == 0 ? 0 : errno;
}

/* Does the file still have a name? Another process may have removed the name between this process's open
 * and lock; a lock on the file then protects nothing. */
static bool is_named(int handle)
{
    struct stat about;
    return fstat(handle, &about) != 0 || about.st_nlink > 0;
}

/* Creates a file and locks it. Between the two another process, which looks for stale files, may lock the
 * file for an instant to test it: this process then waits. Or it may remove the file: this process then
 * creates the file again. */
static int lock_created(const char *path, int *handle)
{
    for (;;) {
        const int error = open_descriptor(path, O_RDWR | O_CREAT | O_EXCL, handle);
        if (error != 0)
            return error;
        if (lock_descriptor(*handle, LOCK_EX) != 0 || is_named(*handle))
            return 0; /* also if the file system has no locks: the process id then decides (owner.h) */
        (void)close(*handle);
    }
}

static int posix_lock(void *context, const char *path, bool create, int *handle)
{
    (void)context;
    int found = -1;
    if (create)
        return lock_created(path, handle);
    int error = open_descriptor(path, O_RDWR | O_NONBLOCK, &found);
    if (error != 0)
        return error;
    error = lock_descriptor(found, LOCK_EX | LOCK_NB);
    if (error == 0 && !is_named(found))
        error = ENOENT;
    if (error != 0) {
        (void)close(found);
        return error;
    }
    *handle = found;
    return 0;
}

static int posix_sync_folder(void *context, const char *path)
{
    int handle = -1;
    int error = open_descriptor(path, O_RDONLY | O_DIRECTORY, &handle);
    if (error != 0)
        return error;
    error = posix_sync(context, handle);
    int close_error = posix_close(context, handle);
    return error != 0 ? error : close_error;
}

static int posix_rename(void *context, const char *from, const char *to)
{
    (void)context;
    return rename(from, to) == 0 ? 0 : errno;
}

static int posix_make_folder(void *context, const char *path)
{
    (void)context;
    return mkdir(path, 0777) == 0 ? 0 : errno;
}

static int posix_remove_file(void *context, const char *path)
{
    (void)context;
    return unlink(path) == 0 ? 0 : errno;
}

static int posix_remove_folder(void *context, const char *path)
{
    (void)context;
    return rmdir(path) == 0 ? 0 : errno;
}

static int posix_list(void *context, const char *path, tide_files_visit visit, void *visitor)
{
    (void)context;
    DIR *folder = opendir(path);
    if (folder == NULL)
        return errno;
    int error = 0;
    while (error == 0) {
        errno = 0;
        const struct dirent *entry = readdir(folder);
        if (entry == NULL) {
            error = errno;
            break;
        }
        if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0)
            error = visit(visitor, entry->d_name);
    }
    closedir(folder); /* opened for reading only: closing can lose nothing */
    return error;
}

static int posix_free_space(void *context, const char *path, uint64_t *bytes)
{
    (void)context;
    struct statvfs found;
    if (statvfs(path, &found) != 0)
        return errno;
    *bytes = (uint64_t)found.f_bavail * found.f_frsize;
    return 0;
}

static uint64_t posix_process_id(void *context)
{
    (void)context;
    return (uint64_t)getpid();
}

/* EPERM: the process belongs to another user, but is alive. */
static bool posix_process_is_alive(void *context, uint64_t process_id)
{
    (void)context;
    if (process_id == 0 || process_id > INT32_MAX)
        return false;
    return kill((pid_t)process_id, 0) == 0 || errno == EPERM;
}

const tide_files *tide_files_posix(void)
{
    static const tide_files files = {
        .open = posix_open,
        .create = posix_create,
        .read = posix_read,
        .write = posix_write,
        .size = posix_size,
        .sync = posix_sync,
        .close = posix_close,
        .lock = posix_lock,
        .sync_folder = posix_sync_folder,
        .rename = posix_rename,
        .make_folder = posix_make_folder,
        .remove_file = posix_remove_file,
        .remove_folder = posix_remove_folder,
        .list = posix_list,
        .free_space = posix_free_space,
        .process_id = posix_process_id,
        .process_is_alive = posix_process_is_alive,
    };
    return &files;
}
