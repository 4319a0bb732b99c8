/* Does an existing folder hold the files that an export would write? The export runs as usual, but on a
 * tide_files table that compares with the folder's files instead of writing. So equal means equal to the
 * byte: config.json, tokenizer, weights and index, whoever wrote them. Files that an export does not write
 * do not count. Nothing is changed. */
#include "src/export/export_internal.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

enum { COMPARED_BYTES = 16 << 10, NO_FILE = -1 };

static int differ(tide_export_same *same)
{
    same->differs = true;
    return ECANCELED;
}

static int same_create(void *context, const char *path, int *handle)
{
    tide_export_same *same = context;
    assert(same->created == NO_FILE); /* an export writes one file after the other */
    (void)snprintf(same->path, sizeof same->path, "%s", path);
    const int error = same->under->open(same->under->context, path, &same->created);
    if (error == ENOENT || error == EISDIR || error == ENOTDIR)
        return differ(same);
    if (error != 0)
        return error;
    same->at = 0;
    *handle = same->created;
    return 0;
}

static int same_write(void *context, int handle, const void *buffer, size_t bytes, size_t *done)
{
    tide_export_same *same = context;
    char found[COMPARED_BYTES];
    size_t got = 0;
    assert(handle == same->created);
    const int error = same->under->read(same->under->context, handle, same->at, found,
                                        bytes < sizeof found ? bytes : sizeof found, &got);
    if (error != 0)
        return error == EISDIR ? differ(same) : error;
    if ((got == 0 && bytes > 0) || memcmp(found, buffer, got) != 0)
        return differ(same);
    same->at += got;
    *done = got;
    return 0;
}

/* The writer's last call before close: all its bytes have been compared, and the existing file may have no
 * more. */
static int same_sync(void *context, int handle)
{
    tide_export_same *same = context;
    uint64_t bytes = 0;
    assert(handle == same->created);
    const int error = same->under->size(same->under->context, handle, &bytes);
    return error != 0 ? error : bytes != same->at ? differ(same) : 0;
}

static int same_close(void *context, int handle)
{
    tide_export_same *same = context;
    if (handle == same->created)
        same->created = NO_FILE;
    return same->under->close(same->under->context, handle);
}

static int same_open(void *context, const char *path, int *handle)
{
    const tide_export_same *same = context;
    return same->under->open(same->under->context, path, handle);
}

static int same_read(void *context, int handle, uint64_t offset, void *buffer, size_t bytes, size_t *done)
{
    const tide_export_same *same = context;
    return same->under->read(same->under->context, handle, offset, buffer, bytes, done);
}

static int same_size(void *context, int handle, uint64_t *bytes)
{
    const tide_export_same *same = context;
    return same->under->size(same->under->context, handle, bytes);
}

static int same_list(void *context, const char *path, tide_files_visit visit, void *visitor)
{
    const tide_export_same *same = context;
    return same->under->list(same->under->context, path, visit, visitor);
}

static int same_sync_folder(void *context, const char *path)
{
    (void)context, (void)path;
    return 0;
}

/* A writer removes a file that it could not write. Here that file existed before, so it stays. */
static int same_remove_file(void *context, const char *path)
{
    (void)context, (void)path;
    return 0;
}

void tide_export_same_begin(const tide_files *files, tide_export_same *same)
{
    *same = (tide_export_same){.under = files, .created = NO_FILE};
    same->files = (tide_files){.context = same,
                               .open = same_open,
                               .create = same_create,
                               .read = same_read,
                               .write = same_write,
                               .size = same_size,
                               .sync = same_sync,
                               .close = same_close,
                               .sync_folder = same_sync_folder,
                               .remove_file = same_remove_file,
                               .list = same_list};
}
