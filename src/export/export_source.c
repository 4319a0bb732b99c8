/* Keeps the source model's config.json and sidecar files in a folder of checkpoints, so that exports of the
 * checkpoints can copy them. */
#include "src/export/export_internal.h"

#include "base/text.h"
#include "base/whole.h"

#include <errno.h>
#include <string.h>

#define SOURCE_NAME TIDE_EXPORT_SOURCE_NAME

tide_status tide_export_source_kept(const tide_files *files, const char *dir,
                                    char source[TIDE_CHECKPOINT_PATH_BYTES], bool *kept)
{
    char config[TIDE_CHECKPOINT_PATH_BYTES];
    int handle;
    tide_status status = tide_export_path(dir, SOURCE_NAME, source);
    if (status == TIDE_OK)
        status = tide_export_path(source, TIDE_EXPORT_CONFIG_NAME, config);
    if (status != TIDE_OK)
        return status;
    const int error = files->open(files->context, config, &handle);
    if (error != 0 && error != ENOENT && error != ENOTDIR)
        return tide_export_folder_fail(config, "opened", error);
    if (error == 0)
        (void)files->close(files->context, handle);
    *kept = error == 0;
    return TIDE_OK;
}

/* Removes the old folder, after a sync of `dir` has made its renaming durable. */
static int old_remove(const tide_files *files, const char *dir, const char *old)
{
    int error = files->sync_folder(files->context, dir);
    if (error == 0 && files->remove_file(files->context, old) == 0)
        return 0; /* the old name was the user's link to a folder; only the link is removed */
    if (error == 0)
        error = tide_files_remove_folder(files, old);
    return error == ENOENT ? 0 : error;
}

/* Makes an empty folder under a temporary name that only this file uses; removes a folder that an earlier
 * process left there. */
static tide_status temporary_make(const tide_files *files, const char *path)
{
    int error = files->make_folder(files->context, path);
    if (error == EEXIST) {
        error = tide_files_remove_folder(files, path);
        if (error == 0)
            error = files->make_folder(files->context, path);
    }
    return error == 0 ? TIDE_OK : tide_export_folder_fail(path, "made", error);
}

typedef struct looking {
    const char *folder;
    tide_status status;
} looking;

/* Ends the listing at the first name that no run keeps there. */
static int foreign_visit(void *visitor, const char *name)
{
    looking *it = visitor;
    if (tide_export_is_sidecar(name, true))
        return 0;
    it->status = tide_fail(TIDE_ERROR_STATE, "%.900s holds %s, which no run has kept there: move it away",
                           it->folder, tide_printable(name).text);
    return ECANCELED;
}

/* Fails unless a run has kept all files in the folder: others must not be replaced or removed. */
static tide_status kept_check(const tide_files *files, const char *kept)
{
    looking it = {.folder = kept};
    const int error = files->list(files->context, kept, foreign_visit, &it);
    if (it.status != TIDE_OK || error == 0 || error == ENOENT)
        return it.status;
    return tide_export_folder_fail(kept, "listed", error);
}

/* The steps:
 *
 *   1  make the new folder, complete, as DIR/.tmp-tidepool-origin
 *   2  rename DIR/tidepool-origin, if it exists, to DIR/.tmp-tidepool-origin-old
 *   3  rename the new folder to DIR/tidepool-origin and sync DIR
 *   4  remove the old folder
 *
 * After a power cut at any time the name has the old folder, the new one or none, never a part of one. */
tide_status tide_export_keep_source(const tide_files *files, const char *dir, const char *source)
{
    char kept[TIDE_CHECKPOINT_PATH_BYTES], path[TIDE_CHECKPOINT_PATH_BYTES], old[TIDE_CHECKPOINT_PATH_BYTES];
    tide_status status = tide_export_path(dir, SOURCE_NAME, kept);
    if (status == TIDE_OK)
        status = kept_check(files, kept);
    if (status == TIDE_OK)
        status = tide_export_path(dir, ".tmp-" SOURCE_NAME, path);
    if (status == TIDE_OK)
        status = tide_export_path(dir, ".tmp-" SOURCE_NAME "-old", old);
    if (status != TIDE_OK)
        return status;
    int error = old_remove(files, dir, old);
    if (error != 0)
        return tide_export_folder_fail(old, "removed", error);
    if (source != NULL)
        status = temporary_make(files, path);
    if (status != TIDE_OK)
        return status;
    if (source != NULL)
        status = tide_export_copy_sidecars(files, source, path, true);
    if (status == TIDE_OK) {
        error = files->rename(files->context, kept, old);
        if (error != 0 && error != ENOENT)
            status = tide_export_folder_fail(kept, "replaced", error);
    }
    bool named = false;
    if (source != NULL && status == TIDE_OK)
        status = tide_export_name_folder(files, path, kept, &named);
    if (source != NULL && !named)
        (void)tide_files_remove_folder(files, path);
    if (status != TIDE_OK)
        return status;
    error = old_remove(files, dir, old);
    return error == 0 ? TIDE_OK : tide_export_folder_fail(old, "removed", error);
}
