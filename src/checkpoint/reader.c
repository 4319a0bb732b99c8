/* Reads a checkpoint's file at offsets; the system may return fewer bytes than a read asks for. A missing
 * file is damage, since a folder called step-N had all its files when it got that name. */
#include "src/checkpoint/reader.h"

#include "src/checkpoint/crc32c.h"
#include "src/checkpoint/folder.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

static tide_status reader_fail(const tide_reader *reader, const char *what, int error)
{
    if (tide_files_is_absent(error))
        return tide_fail(TIDE_ERROR_CORRUPT, "checkpoint %.900s: the file is missing", reader->path);
    return tide_fail(TIDE_ERROR_IO, "checkpoint %.900s: can't be %s: %s", reader->path, what,
                     strerror(error));
}

void tide_reader_close(tide_reader *reader)
{
    if (reader->handle != TIDE_READER_NONE)
        /* opened for reading only: closing can lose nothing */
        reader->files->close(reader->files->context, reader->handle);
    reader->handle = TIDE_READER_NONE;
}

tide_status tide_reader_open(const tide_files *files, const char *step_path, const char *name,
                             tide_reader *reader)
{
    reader->files = files;
    reader->handle = TIDE_READER_NONE;
    tide_folder_file_path(step_path, name, reader->path);
    int error = files->open(files->context, reader->path, &reader->handle);
    if (error == 0)
        error = files->size(files->context, reader->handle, &reader->bytes);
    if (error == 0)
        return TIDE_OK;
    tide_reader_close(reader);
    return reader_fail(reader, "opened", error);
}

tide_status tide_reader_get(const tide_reader *reader, uint64_t offset, void *bytes, size_t count)
{
    size_t have = 0;
    while (have < count) {
        size_t done = 0;
        int error = reader->files->read(reader->files->context, reader->handle, offset + have,
                                        (char *)bytes + have, count - have, &done);
        if (error != 0)
            return reader_fail(reader, "read", error);
        if (done == 0)
            return tide_fail(TIDE_ERROR_CORRUPT, "checkpoint %.900s: it ends at byte %" PRIu64, reader->path,
                             offset + have);
        have += done;
    }
    return TIDE_OK;
}

tide_status tide_reader_size_check(const tide_reader *reader, const tide_manifest_file *file)
{
    if (reader->bytes == file->bytes)
        return TIDE_OK;
    return tide_fail(TIDE_ERROR_CORRUPT,
                     "checkpoint %.900s: %s, it has %" PRIu64 " bytes instead of %" PRIu64, reader->path,
                     reader->bytes < file->bytes ? "truncated" : "too long", reader->bytes, file->bytes);
}

tide_status tide_reader_checksum_check(const tide_reader *reader, const tide_manifest_file *file,
                                       void *buffer, size_t buffer_bytes, tide_reader_tell tell,
                                       void *context)
{
    uint32_t crc = 0;
    for (uint64_t offset = 0; offset < reader->bytes; offset += buffer_bytes) {
        const uint64_t left = reader->bytes - offset;
        const size_t count = left < buffer_bytes ? (size_t)left : buffer_bytes;
        const tide_status status = tide_reader_get(reader, offset, buffer, count);
        if (status != TIDE_OK)
            return status;
        crc = tide_crc32c(crc, buffer, count);
        tell(context, count);
    }
    if (crc != file->crc32c)
        return tide_fail(TIDE_ERROR_CORRUPT,
                         "checkpoint %.900s: damaged, its checksum is %08" PRIx32 " instead of %08" PRIx32,
                         reader->path, crc, file->crc32c);
    return TIDE_OK;
}

/* ---- the manifest ---- */

tide_status tide_manifest_read(const tide_files *files, const char *step_path, tide_manifest *manifest)
{
    tide_reader reader;
    tide_status status = tide_reader_open(files, step_path, TIDE_MANIFEST_NAME, &reader);
    if (status != TIDE_OK)
        return status;
    char *text = NULL;
    if (reader.bytes > TIDE_MANIFEST_MAX_BYTES) {
        status =
            tide_fail(TIDE_ERROR_CORRUPT, "checkpoint %.900s: %" PRIu64 " bytes are too many for a manifest",
                      reader.path, reader.bytes);
        goto close_reader;
    }
    text = malloc((size_t)reader.bytes + 1);
    if (text == NULL) {
        status = tide_fail(TIDE_ERROR_NO_MEMORY, "checkpoint %.900s: no memory to read it", reader.path);
        goto close_reader;
    }
    status = tide_reader_get(&reader, 0, text, (size_t)reader.bytes);
    if (status == TIDE_OK)
        status = tide_manifest_parse(text, (size_t)reader.bytes, reader.path, manifest);
close_reader:
    free(text);
    tide_reader_close(&reader);
    return status;
}
