/* Opens, empties and closes an output file. O_EXCL tells whether open created it; only then may close remove
 * it. */
#include "base/output_file.h"

#include "base/files.h"
#include "base/write_error.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

tide_status tide_output_file_failed(const tide_output_file *file, const char *what, int error)
{
    return tide_fail(TIDE_ERROR_IO, "%s %s: %s: %s", file->kind, file->path, what, tide_write_error(error));
}

/* Is the path a pipe? A pipe must be opened for writing only: if this process could read from it, too, a
 * write would wait for ever, instead of failing, once the other reader has left. */
static int pipe_find(const char *path, bool *is_pipe)
{
    struct stat about;
    const int error = stat(path, &about) == 0 ? 0 : errno;
    *is_pipe = error == 0 && S_ISFIFO(about.st_mode);
    return tide_files_is_absent(error) ? 0 : error;
}

tide_status tide_output_file_open(const char *kind, const char *path, int access, tide_output_file *file)
{
    bool is_pipe;
    const int error = pipe_find(path, &is_pipe), flags = (is_pipe ? O_WRONLY : access) | O_CREAT | O_CLOEXEC;
    tide_output_file opened = {.kind = kind, .path = strdup(path)};
    if (opened.path == NULL)
        return tide_fail(TIDE_ERROR_NO_MEMORY, "%s %s: no memory for its name", kind, path);
    if (error != 0) {
        const tide_status status = tide_output_file_failed(&opened, "can't be examined", error);
        free(opened.path);
        return status;
    }
    opened.descriptor = open(path, flags | O_EXCL, 0666);
    opened.made = opened.descriptor >= 0;
    if (opened.descriptor < 0 && errno == EEXIST)
        opened.descriptor = open(path, flags, 0666);
    if (opened.descriptor < 0) {
        tide_status status = tide_output_file_failed(&opened, "can't be written", errno);
        free(opened.path);
        return status;
    }
    *file = opened;
    return TIDE_OK;
}

tide_status tide_output_file_begin(tide_output_file *file, bool keep_content)
{
    struct stat about;
    assert(!file->begun && file->descriptor >= 0);
    if (fstat(file->descriptor, &about) != 0)
        return tide_output_file_failed(file, "can't be examined", errno);
    if (S_ISREG(about.st_mode) && !keep_content && ftruncate(file->descriptor, 0) != 0)
        return tide_output_file_failed(file, "can't be emptied", errno);
    file->begun = true;
    return TIDE_OK;
}

tide_status tide_output_file_close(tide_output_file *file)
{
    tide_status status = TIDE_OK;
    if (file->descriptor >= 0 && close(file->descriptor) != 0)
        status = tide_output_file_failed(file, "can't be closed", errno);
    file->descriptor = -1;
    if (file->made && !file->begun)
        (void)unlink(file->path); /* a failure is ignored: the file may be gone already */
    free(file->path);
    file->path = NULL;
    return status;
}
