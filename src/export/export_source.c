/* The source model that a folder of checkpoints keeps: what an export of them copies from the folder that the run began with. */
#include "src/export/export_internal.h"

#include "src/files/printable.h"
#include "src/files/whole.h"

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

/* Take away the folder that may have borne the kept one's name: that it does no more is made sure first. */
static int old_remove(const tide_files *files, const char *dir, const char *old)
{
    int error = files->sync_folder(files->context, dir);
    if (error == 0 && files->remove_file(files->context, old) == 0)
        return 0; /* it was a link to somebody's own folder */
    if (error == 0)
        error = tide_files_remove_folder(files, old);
    return error == ENOENT ? 0 : error;
}

/* An empty folder under a temporary name that is nobody else's; what a forerunner left there goes. */
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

/* The first name that no run keeps there, and the end of the listing. */
static int foreign_visit(void *visitor, const char *name)
{
    looking *it = visitor;
    if (tide_export_is_sidecar(name, true))
        return 0;
    it->status = tide_fail(TIDE_ERROR_STATE, "%.900s holds %s, which no run has kept there: move it away",
                           it->folder, tide_printable(name).text);
    return ECANCELED;
}

/* What is replaced or removed must be what a run has kept. */
static tide_status kept_check(const tide_files *files, const char *kept)
{
    looking it = {.folder = kept};
    const int error = files->list(files->context, kept, foreign_visit, &it);
    if (it.status != TIDE_OK || error == 0 || error == ENOENT)
        return it.status;
    return tide_export_folder_fail(kept, "listed", error);
}

/*   1  a new folder, complete, as DIR/.tmp-tidepool-origin
 *   2  DIR/tidepool-origin, where there is one, becomes DIR/.tmp-tidepool-origin-old
 *   3  the new one becomes DIR/tidepool-origin; the folder is synced
 *   4  the old one goes
 * A power cut at any time leaves the old one, the new one or none under the name, whole. */
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
