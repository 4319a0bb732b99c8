/* Copies a model's sidecar files: those that belong to it besides the weights. */
#include "src/export/export_internal.h"

#include "base/whole.h"
#include "base/write_error.h"
#include "src/checkpoint/folder.h"

#include <errno.h>
#include <fnmatch.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { COPY_MAX_BYTES = 64 << 20 };

/* The names of sidecar files, for all kinds of tokenizers. */
static const char *const copied[] = {
    "tokenizer*",  "vocab.*",    "merges.txt",        "special_tokens_map.json", "*.tiktoken",
    "tekken.json", "LICENSE*",   "added_tokens.json", "generation_config.json",  "chat_template*",
    "NOTICE*",     "USE_POLICY*"};

enum { COPIED = sizeof copied / sizeof copied[0] };

tide_status tide_export_path(const char *folder, const char *name, char path[TIDE_CHECKPOINT_PATH_BYTES])
{
    if ((size_t)snprintf(path, TIDE_CHECKPOINT_PATH_BYTES, "%s/%s", folder, name) <
        TIDE_CHECKPOINT_PATH_BYTES)
        return TIDE_OK;
    return tide_fail(TIDE_ERROR_ARGUMENT, "export: the path %.200s... is too long", folder);
}

tide_status tide_export_read_fail(const char *path, int most, const char *what, int error)
{
    if (error == ENOMEM)
        return tide_fail(TIDE_ERROR_NO_MEMORY, "export: no memory to read %.900s", path);
    if (error == EFBIG)
        return tide_fail(TIDE_ERROR_IO, "export: %.900s has more than %d bytes: that is not %s", path, most,
                         what);
    return tide_fail(TIDE_ERROR_IO, "export: %.900s can't be read: %s", path, strerror(error));
}

tide_status tide_export_folder_fail(const char *path, const char *what, int error)
{
    return tide_fail(TIDE_ERROR_IO, "%.900s can't be %s: %s", path, what, tide_write_error(error));
}

typedef struct copying {
    const tide_files *files;
    const char *from, *to;
    bool config_too;
    tide_status status;
} copying;

bool tide_export_is_sidecar(const char *name, bool config_too)
{
    if (config_too && strcmp(name, TIDE_EXPORT_CONFIG_NAME) == 0)
        return true;
    for (size_t i = 0; i < COPIED; i++)
        if (fnmatch(copied[i], name, FNM_PERIOD) == 0)
            return true;
    return false;
}

static tide_status file_copy(const copying *it, const char *name)
{
    char from[TIDE_CHECKPOINT_PATH_BYTES], to[TIDE_CHECKPOINT_PATH_BYTES], *text = NULL;
    size_t bytes = 0;
    tide_status status = tide_export_path(it->from, name, from);
    if (status == TIDE_OK)
        status = tide_export_path(it->to, name, to);
    if (status != TIDE_OK)
        return status;
    int error = tide_files_read_whole(it->files, from, COPY_MAX_BYTES, &text, &bytes);
    if (error == EISDIR)
        return TIDE_OK; /* a folder is no sidecar file */
    if (error != 0)
        return tide_export_read_fail(from, COPY_MAX_BYTES, "a tokenizer's file; move it away", error);
    error = tide_files_write_whole(it->files, to, text, bytes);
    free(text);
    return error == 0
               ? TIDE_OK
               : tide_fail(TIDE_ERROR_IO, "export: %.900s can't be written: %s", to, tide_write_error(error));
}

static int name_visit(void *visitor, const char *name)
{
    copying *it = visitor;
    if (tide_export_is_sidecar(name, it->config_too))
        it->status = file_copy(it, name);
    return it->status == TIDE_OK ? 0 : ECANCELED;
}

tide_status tide_export_copy_sidecars(const tide_files *files, const char *from, const char *to,
                                      bool config_too)
{
    copying it = {.files = files, .from = from, .to = to, .config_too = config_too};
    const int error = files->list(files->context, from, name_visit, &it);
    if (it.status != TIDE_OK || error == 0)
        return it.status;
    return tide_fail(error == ENOMEM ? TIDE_ERROR_NO_MEMORY : TIDE_ERROR_IO, "%.900s can't be listed: %s",
                     from, strerror(error));
}

tide_status tide_export_name_folder(const tide_files *files, const char *path, const char *name, bool *named)
{
    char parent[TIDE_CHECKPOINT_PATH_BYTES];
    tide_folder_parent(name, parent);
    int error = files->sync_folder(files->context, path);
    if (error != 0)
        return tide_export_folder_fail(path, "synced", error);
    error = files->rename(files->context, path, name);
    if (error != 0)
        return tide_export_folder_fail(name, "made", error);
    *named = true;
    error = files->sync_folder(files->context, parent);
    return error == 0 ? TIDE_OK : tide_export_folder_fail(parent, "synced", error);
}
