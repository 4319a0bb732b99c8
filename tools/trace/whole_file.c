#include "tools/trace/whole_file.h"

#include "base/files.h"
#include "base/write_error.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { SUFFIX_BYTES = 32 };

static tide_status failed(const char *path, const char *what, int error)
{
    return tide_fail(TIDE_ERROR_IO, "%s: %s: %s", path, what, tide_write_error(error));
}

/* Will a new file take the path's place? Returns 0 or an errno. */
static int is_replaced(const char *path, bool *replaced)
{
    struct stat about;
    const int error = stat(path, &about) == 0 ? 0 : errno;
    *replaced = error != 0 || S_ISREG(about.st_mode);
    return tide_files_is_absent(error) ? 0 : error;
}

/* The path with links followed, since the file is replaced, not a link to it. NULL: see errno. */
static char *target_path(const char *path)
{
    char *target = realpath(path, NULL);
    return target != NULL || !tide_files_is_absent(errno) ? target : strdup(path);
}

/* Writes a stream's bytes and keeps the errno of the first failure, which stdio loses. */
struct tide_file_sink {
    int descriptor;
    int error; /* the first one */
};

static ssize_t sink_write(void *cookie, const char *bytes, size_t count)
{
    struct tide_file_sink *sink = cookie;
    size_t done = 0;
    while (done < count) {
        ssize_t wrote = write(sink->descriptor, bytes + done, count - done);
        if (wrote < 0 && errno == EINTR)
            continue;
        if (wrote <= 0) {
            if (sink->error == 0)
                sink->error = wrote < 0 ? errno : EIO;
            return 0; /* fopencookie takes 0 for a failure */
        }
        done += (size_t)wrote;
    }
    return (ssize_t)count;
}

static int sink_close(void *cookie)
{
    struct tide_file_sink *sink = cookie;
    if (close(sink->descriptor) != 0 && sink->error == 0)
        sink->error = errno;
    return 0;
}

/* Make the stream, which then owns the descriptor. */
static tide_status stream_make(tide_whole_file *file, int descriptor)
{
    const cookie_io_functions_t calls = {.write = sink_write, .close = sink_close};
    file->sink = malloc(sizeof *file->sink);
    if (file->sink != NULL) {
        *file->sink = (struct tide_file_sink){.descriptor = descriptor};
        file->stream = fopencookie(file->sink, "wb", calls);
    }
    if (file->stream != NULL)
        return TIDE_OK;
    close(descriptor);
    return tide_fail(TIDE_ERROR_NO_MEMORY, "%s: no memory to write it", file->named);
}

/* Create a new file beside the place, under a name that no file has yet, and keep its name in written_path,
 * which stays NULL on failure. */
static tide_status beside_open(tide_whole_file *file)
{
    enum { TRIES = 100 };
    size_t bytes = strlen(file->path) + SUFFIX_BYTES;
    int descriptor = -1;
    char *name = malloc(bytes);
    if (name == NULL)
        return tide_fail(TIDE_ERROR_NO_MEMORY, "%s: no memory for its name", file->named);
    for (int i = 0; i < TRIES && descriptor < 0; i++) {
        snprintf(name, bytes, "%s.tmp-%ld-%d", file->path, (long)getpid(), i);
        descriptor = open(name, O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, 0666);
        if (descriptor < 0 && errno != EEXIST)
            break;
    }
    if (descriptor < 0) {
        int error = errno;
        free(name);
        return failed(file->named, "can't be written", error);
    }
    file->written_path = name;
    return stream_make(file, descriptor);
}

static tide_status at_once_open(tide_whole_file *file)
{
    int descriptor = open(file->path, O_WRONLY | O_CLOEXEC);
    return descriptor < 0 ? failed(file->named, "can't be written", errno) : stream_make(file, descriptor);
}

static void file_free(tide_whole_file *file)
{
    free(file->sink);
    free(file->named);
    free(file->written_path);
    free(file->path);
    *file = (tide_whole_file){0};
}

tide_status tide_whole_file_open(const char *path, tide_whole_file *file)
{
    bool replaced = false;
    int error = is_replaced(path, &replaced);
    if (error != 0)
        return failed(path, "can't be written", error);
    tide_whole_file opened = {.path = target_path(path)};
    error = opened.path == NULL ? errno : 0;
    opened.named = strdup(path);
    tide_status status = error == ENOMEM || opened.named == NULL
                             ? tide_fail(TIDE_ERROR_NO_MEMORY, "%s: no memory for its name", path)
                         : error != 0 ? failed(path, "can't be written", error)
                         : replaced   ? beside_open(&opened)
                                      : at_once_open(&opened);
    if (status == TIDE_OK) {
        *file = opened;
        return TIDE_OK;
    }
    if (opened.written_path != NULL)
        (void)unlink(opened.written_path);
    file_free(&opened);
    return status;
}

/* Close the stream. Returns 0 if every byte was written, else an errno. */
static int stream_close(tide_whole_file *file)
{
    bool lacks = ferror(file->stream) != 0;
    lacks |= fclose(file->stream) != 0;
    file->stream = NULL;
    return file->sink->error != 0 ? file->sink->error : lacks ? EIO : 0;
}

tide_status tide_whole_file_finish(tide_whole_file *file)
{
    int error = stream_close(file);
    if (error == 0 && file->written_path != NULL && rename(file->written_path, file->path) != 0)
        error = errno;
    tide_status status = error == 0 ? TIDE_OK : failed(file->named, "can't be written", error);
    if (error != 0 && file->written_path != NULL)
        (void)unlink(file->written_path);
    file_free(file);
    return status;
}

void tide_whole_file_abandon(tide_whole_file *file)
{
    (void)stream_close(file);
    if (file->written_path != NULL)
        (void)unlink(file->written_path);
    file_free(file);
}
