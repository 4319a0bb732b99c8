#include "base/whole.h"

#include "base/array.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PATH_BYTES = 4096, NAMES_MAX = 65536 };

static int read_all(const tide_files *files, int handle, char *text, size_t bytes)
{
    for (size_t at = 0; at < bytes;) {
        size_t done = 0;
        const int error = files->read(files->context, handle, at, text + at, bytes - at, &done);
        if (error != 0 || done == 0)
            return error != 0 ? error : EIO;
        at += done;
    }
    text[bytes] = '\0';
    return 0;
}

int tide_files_read_whole(const tide_files *files, const char *path, size_t most, char **text, size_t *bytes)
{
    int handle;
    uint64_t size = 0;
    int error = files->open(files->context, path, &handle);
    if (error != 0)
        return error;
    error = files->size(files->context, handle, &size);
    if (error == 0 && size > most)
        error = EFBIG;
    char *made = error == 0 ? malloc((size_t)size + 1) : NULL;
    if (error == 0 && made == NULL)
        error = ENOMEM;
    if (error == 0)
        error = read_all(files, handle, made, (size_t)size);
    (void)files->close(files->context, handle); /* opened for reading only: closing can lose nothing */
    if (error != 0) {
        free(made);
        return error;
    }
    *text = made;
    *bytes = (size_t)size;
    return 0;
}

int tide_files_write_whole(const tide_files *files, const char *path, const void *bytes, size_t count)
{
    int handle;
    int error = files->create(files->context, path, &handle);
    if (error != 0)
        return error;
    for (size_t at = 0; at < count && error == 0;) {
        size_t done = 0;
        error = files->write(files->context, handle, (const char *)bytes + at, count - at, &done);
        at += done;
    }
    if (error == 0)
        error = files->sync(files->context, handle);
    const int closed = files->close(files->context, handle);
    error = error != 0 ? error : closed;
    if (error != 0)
        (void)files->remove_file(files->context, path);
    return error;
}

/* The names in a folder. Code that removes files collects the names first, since a listing may miss names
 * if files are removed meanwhile. */
typedef struct name_list {
    char **names;
    size_t count;
} name_list;

static int name_add(void *visitor, const char *name)
{
    name_list *list = visitor;
    if (list->count == NAMES_MAX || !tide_array_grow(&list->names, list->count, sizeof *list->names))
        return ENOMEM;
    list->names[list->count] = strdup(name);
    return list->names[list->count] != NULL ? (list->count++, 0) : ENOMEM;
}

int tide_files_remove_folder(const tide_files *files, const char *path)
{
    name_list list = {.names = NULL};
    int error = files->list(files->context, path, name_add, &list);
    for (size_t i = 0; i < list.count; i++) {
        char inside[PATH_BYTES];
        if (error == 0 &&
            (size_t)snprintf(inside, sizeof inside, "%s/%s", path, list.names[i]) >= sizeof inside)
            error = ENAMETOOLONG;
        if (error == 0)
            error = files->remove_file(files->context, inside);
        free(list.names[i]);
    }
    free(list.names);
    return error != 0 ? error : files->remove_folder(files->context, path);
}
