#include "base/atomic_file.h"

#include "base/files.h"
#include "base/write_error.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static tide_status failed(const tide_atomic_file *file, int error)
{
    return tide_fail(error == ENOMEM ? TIDE_ERROR_NO_MEMORY : TIDE_ERROR_IO, "%s %s: can't be written: %s",
                     file->kind, file->given, tide_write_error(error));
}

/* The stream's own write function: stdio forgets why a write failed, and the file keeps the errno. */
static ssize_t stream_write(void *cookie, const char *bytes, size_t count)
{
    tide_atomic_file *file = cookie;
    const tide_files *files = tide_files_posix();
    for (size_t at = 0; at < count;) {
        size_t done = 0;
        const int error = files->write(files->context, file->descriptor, bytes + at, count - at, &done);
        if (error != 0) {
            file->error = file->error != 0 ? file->error : error;
            return 0; /* by fopencookie's contract 0 is a failure */
        }
        at += done;
    }
    return (ssize_t)count;
}

/* Does this errno say that the file system or the user may not set an owner or a mode? A vfat and an ordinary
 * user get EPERM, an owner that a user namespace lacks EINVAL, some network file systems the others. */
static bool is_refused(int error)
{
    return error == EPERM || error == EINVAL || error == EOPNOTSUPP || error == ENOSYS;
}

/* Gives the new file the old one's owner and mode, as far as the system allows. The mode comes last, since a
 * change of the owner takes bits from it. */
static int mode_keep(int descriptor, const struct stat *old)
{
    if ((fchown(descriptor, old->st_uid, old->st_gid) != 0 && !is_refused(errno)) ||
        (fchmod(descriptor, old->st_mode & 07777) != 0 && !is_refused(errno)))
        return errno;
    return 0;
}

/* If a file of the new name exists, it may belong to another process: the next number gives another name. */
static int create_beside(tide_atomic_file *file, const struct stat *old)
{
    enum { TRIES = 100, SUFFIX_BYTES = 32 };
    const size_t bytes = strlen(file->path) + SUFFIX_BYTES;
    char *name = malloc(bytes);
    if (name == NULL)
        return ENOMEM;
    for (int i = 0; i < TRIES; i++) {
        (void)snprintf(name, bytes, "%s.tmp-%ld-%d", file->path, (long)getpid(), i);
        file->descriptor = open(name, O_CREAT | O_EXCL | O_RDWR | O_CLOEXEC, 0666);
        if (file->descriptor >= 0 || errno != EEXIST)
            break;
    }
    if (file->descriptor < 0) {
        const int error = errno;
        free(name);
        return error;
    }
    file->written_path = name;
    return old != NULL ? mode_keep(file->descriptor, old) : 0;
}

static int open_at_once(tide_atomic_file *file)
{
    file->descriptor = open(file->path, O_WRONLY | O_CLOEXEC);
    return file->descriptor >= 0 ? 0 : errno;
}

static int open_descriptor(tide_atomic_file *file)
{
    struct stat old;
    const int error = stat(file->given, &old) == 0 ? 0 : errno;
    if (error != 0 && !tide_files_is_absent(error))
        return error;
    file->path = error == 0 ? realpath(file->given, NULL) : strdup(file->given);
    if (file->path == NULL)
        return error == 0 ? errno : ENOMEM;
    return error != 0             ? create_beside(file, NULL)
           : S_ISREG(old.st_mode) ? create_beside(file, &old)
                                  : open_at_once(file);
}

/* Closes and frees everything; removes the new file if it still has its temporary name. */
static void release(tide_atomic_file *file)
{
    if (file->stream != NULL)
        (void)fclose(file->stream);
    if (file->descriptor >= 0)
        (void)close(file->descriptor);
    if (file->written_path != NULL)
        (void)unlink(file->written_path);
    free(file->written_path);
    free(file->path);
    *file = (tide_atomic_file){.descriptor = -1};
}

tide_status tide_atomic_file_open(const char *kind, const char *path, tide_atomic_file *file)
{
    const cookie_io_functions_t calls = {.write = stream_write};
    *file = (tide_atomic_file){.kind = kind, .given = path, .descriptor = -1};
    int error = open_descriptor(file);
    if (error == 0) {
        file->stream = fopencookie(file, "wb", calls);
        error = file->stream == NULL ? ENOMEM : 0;
    }
    if (error == 0)
        return TIDE_OK;
    const tide_status status = failed(file, error);
    release(file);
    return status;
}

/* Writes the bytes that the stream still buffers, and closes the stream. Returns 0 or an errno. */
static int stream_end(tide_atomic_file *file)
{
    const bool lacks = ferror(file->stream) != 0, unflushed = fclose(file->stream) != 0;
    file->stream = NULL;
    return file->error != 0 ? file->error : lacks || unflushed ? EIO : 0;
}

/* Makes the new name survive a power cut. Some folders can't be opened or synced; finish ignores this, since
 * the file is whole under its name. */
static void folder_sync(const tide_files *files, char *path)
{
    char *slash = strrchr(path, '/');
    if (slash != NULL)
        slash[slash == path] = '\0';
    (void)files->sync_folder(files->context, slash != NULL ? path : ".");
}

tide_status tide_atomic_file_finish(tide_atomic_file *file)
{
    const tide_files *files = tide_files_posix();
    int error = stream_end(file);
    if (error == 0 && file->written_path != NULL)
        error = files->sync(files->context, file->descriptor);
    const int closed = files->close(files->context, file->descriptor);
    file->descriptor = -1;
    error = error != 0 ? error : closed;
    if (error == 0 && file->written_path != NULL) {
        error = files->rename(files->context, file->written_path, file->path);
        if (error == 0) {
            free(file->written_path);
            file->written_path = NULL;
            folder_sync(files, file->path);
        }
    }
    const tide_status status = error == 0 ? TIDE_OK : failed(file, error);
    release(file);
    return status;
}

void tide_atomic_file_abandon(tide_atomic_file *file)
{
    release(file);
}
