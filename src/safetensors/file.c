#include "src/safetensors/file.h"

#include "base/write_error.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

tide_status tide_file_fail(const tide_file *file, const char *what, int error)
{
    if (error == ENODATA)
        return tide_fail(TIDE_ERROR_CORRUPT, "%s %.800s: it has become shorter while it was read", file->noun,
                         file->path);
    return tide_fail(TIDE_ERROR_IO, "%s %.800s: can't be %s: %s", file->noun, file->path, what,
                     tide_write_error(error));
}

/* Names the file. Returns 0 or ENAMETOOLONG. */
static int file_name(const tide_files *files, const char *noun, const char *folder, const char *name,
                     tide_file *file)
{
    file->files = files;
    file->noun = noun;
    file->handle = TIDE_FILE_CLOSED;
    file->bytes = 0;
    const int length = snprintf(file->path, sizeof file->path, "%s/%s", folder, name);
    return length >= 0 && (size_t)length < sizeof file->path ? 0 : ENAMETOOLONG;
}

/* ---- reading ---- */

int tide_file_open(const tide_files *files, const char *noun, const char *folder, const char *name,
                   tide_file *file)
{
    int error = file_name(files, noun, folder, name, file);
    if (error == 0)
        error = files->open(files->context, file->path, &file->handle);
    if (error == 0)
        error = files->size(files->context, file->handle, &file->bytes);
    if (error != 0)
        tide_file_close(file);
    return error;
}

void tide_file_close(tide_file *file)
{
    if (file->handle != TIDE_FILE_CLOSED) /* opened for reading only: closing can lose nothing */
        file->files->close(file->files->context, file->handle);
    file->handle = TIDE_FILE_CLOSED;
}

int tide_file_read(const tide_file *file, uint64_t offset, void *bytes, size_t count)
{
    for (size_t have = 0; have < count;) {
        size_t done = 0;
        const int error = file->files->read(file->files->context, file->handle, offset + have,
                                            (char *)bytes + have, count - have, &done);
        if (error != 0 || done == 0)
            return error != 0 ? error : ENODATA;
        have += done;
    }
    return 0;
}

tide_status tide_file_get(const tide_file *file, uint64_t offset, void *bytes, size_t count)
{
    const int error = tide_file_read(file, offset, bytes, count);
    return error == 0 ? TIDE_OK : tide_file_fail(file, "read", error);
}

tide_status tide_file_text(const tide_file *file, uint64_t offset, size_t count, char **text)
{
    char *block = malloc(count + 1);
    if (block == NULL)
        return tide_fail(TIDE_ERROR_NO_MEMORY, "%s %.800s: no memory to read %zu bytes of it", file->noun,
                         file->path, count);
    const tide_status status = tide_file_get(file, offset, block, count);
    if (status != TIDE_OK) {
        free(block);
        return status;
    }
    block[count] = '\0';
    *text = block;
    return TIDE_OK;
}

/* ---- writing ---- */

tide_status tide_file_create(const tide_files *files, const char *noun, const char *folder, const char *name,
                             tide_file *file)
{
    int error = file_name(files, noun, folder, name, file);
    if (error == 0)
        error = files->create(files->context, file->path, &file->handle);
    return error == 0 ? TIDE_OK : tide_file_fail(file, "created", error);
}

tide_status tide_file_put(tide_file *file, const void *bytes, size_t count)
{
    for (const char *at = bytes, *end = at + count; at < end;) {
        size_t done = 0;
        const int error =
            file->files->write(file->files->context, file->handle, at, (size_t)(end - at), &done);
        if (error != 0) {
            char what[48];
            snprintf(what, sizeof what, "written at byte %" PRIu64, file->bytes);
            return tide_file_fail(file, what, error);
        }
        assert(done > 0 && done <= (size_t)(end - at));
        at += done;
        file->bytes += done;
    }
    return TIDE_OK;
}

tide_status tide_file_finish(tide_file *file, tide_status status)
{
    int error = status == TIDE_OK ? file->files->sync(file->files->context, file->handle) : 0;
    if (error != 0)
        status = tide_file_fail(file, "synced", error);
    error = file->files->close(file->files->context, file->handle);
    file->handle = TIDE_FILE_CLOSED;
    return error == 0 || status != TIDE_OK ? status : tide_file_fail(file, "closed", error);
}
