/* An export has two phases. Before a run's first step, begin makes OUT.tmp-PID with config.json and all
 * sidecar files, so that most faults show before the training and not after it. At the run's end, finish
 * writes the weights and renames the folder. Complete weights are never removed: if the folder can't be
 * renamed, the message says where it is.
 */
#include "src/export/export_internal.h"

#include "base/whole.h"
#include "src/checkpoint/check.h"
#include "src/checkpoint/folder.h"
#include "src/checkpoint/manifest.h"
#include "src/export/weight_list.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PATH_BYTES = TIDE_CHECKPOINT_PATH_BYTES };

tide_weights_dtype tide_export_dtype_of(tide_dtype dtype)
{
    return dtype == TIDE_DTYPE_BF16   ? TIDE_WEIGHTS_BF16
           : dtype == TIDE_DTYPE_FP16 ? TIDE_WEIGHTS_F16
                                      : TIDE_WEIGHTS_F32;
}

/* ---- 1: may OUT be made there? ---- */

static int same_visit(void *visitor, const char *name)
{
    return strcmp(visitor, name) == 0 ? EEXIST : 0;
}

static tide_status there_fail(const char *out)
{
    return tide_fail(TIDE_ERROR_ARGUMENT, "export %.900s: it is there already; name a folder that is not",
                     out);
}

/* Fails if anything has this name, even a link that leads nowhere. */
static tide_status name_check(const tide_files *files, const char *out)
{
    int handle;
    char parent[PATH_BYTES], name[PATH_BYTES];
    int error = files->open(files->context, out, &handle);
    if (error == 0)
        (void)files->close(files->context, handle);
    tide_folder_parent(out, parent);
    tide_export_name_of(out, name);
    if (error == ENOENT && files->list(files->context, parent, same_visit, name) == EEXIST)
        error = 0;
    if (error == ENOENT)
        return TIDE_OK;
    if (error == 0 || error == EISDIR)
        return there_fail(out);
    return tide_fail(TIDE_ERROR_IO, "export %.900s: can't be looked at: %s", out, strerror(error));
}

bool tide_export_is_runs_own(const char *out)
{
    uint64_t step;
    char name[PATH_BYTES];
    tide_export_name_of(out, name);
    return tide_folder_step_of(name, &step) || strcmp(name, TIDE_EXPORT_SOURCE_NAME) == 0 ||
           strncmp(name, ".tmp-", 5) == 0;
}

static tide_status holds_checkpoints(const tide_files *files, const char *path, bool *holds)
{
    tide_folder folder;
    const tide_status status = tide_folder_open(files, path, &folder);
    if (status != TIDE_OK)
        return status;
    *holds = folder.step_count > 0;
    tide_folder_close(&folder);
    return TIDE_OK;
}

static tide_status is_checkpoint(const tide_files *files, const char *path, bool *is)
{
    char manifest[PATH_BYTES];
    int handle;
    uint64_t step;
    if (!tide_folder_step_of(path, &step) || tide_export_path(path, TIDE_MANIFEST_NAME, manifest) != TIDE_OK)
        return TIDE_OK;
    const int error = files->open(files->context, manifest, &handle);
    if (error == 0)
        (void)files->close(files->context, handle);
    else if (!tide_files_is_absent(error))
        return tide_export_folder_fail(manifest, "opened", error);
    *is = error == 0;
    return TIDE_OK;
}

/* Refuses a place where a later run would remove the export: in a checkpoint, which runs remove whole, or
 * in a folder of checkpoints under a name that runs use (step-N, .tmp-... and the like), which they may
 * replace or remove. */
static tide_status place_check(const tide_files *files, const char *out)
{
    char parent[PATH_BYTES];
    bool inside = false, beside = false;
    tide_folder_parent(out, parent);
    tide_status status = is_checkpoint(files, parent, &inside);
    if (status == TIDE_OK && tide_export_is_runs_own(out))
        status = holds_checkpoints(files, parent, &beside);
    if (status != TIDE_OK)
        return status;
    if (inside)
        return tide_fail(TIDE_ERROR_ARGUMENT,
                         "export %.900s: it would go with the checkpoint that it lies in", out);
    if (beside)
        return tide_fail(TIDE_ERROR_ARGUMENT,
                         "export %.900s: that name in a folder of checkpoints is a run's own; take another",
                         out);
    return TIDE_OK;
}

static tide_weights_output output_of(const tide_export *export, const tide_weight_list *list,
                                     tide_weights_get get, void *context)
{
    return (tide_weights_output){.tensors = list->tensors,
                                 .count = list->count,
                                 .dtype = export->dtype,
                                 .max_shard_bytes = export->max_shard_bytes,
                                 .get = get,
                                 .context = context,
                                 .progress = export->progress,
                                 .progress_context = export->progress_context};
}

tide_status tide_export_bytes(const tide_export *export, uint64_t *bytes)
{
    tide_weight_list list;
    const tide_status status = tide_weight_list_make(export->model, &list);
    if (status != TIDE_OK)
        return status;
    const tide_weights_output output = output_of(export, &list, NULL, NULL);
    *bytes = tide_weights_output_bytes(&output);
    tide_weight_list_free(&list);
    return TIDE_OK;
}

static tide_status free_space_check(const tide_export *export)
{
    char parent[PATH_BYTES];
    uint64_t needed = 0, free_bytes = 0;
    const tide_status status = tide_export_bytes(export, &needed);
    if (status != TIDE_OK)
        return status;
    tide_folder_parent(export->out, parent);
    const int error = export->files->free_space(export->files->context, parent, &free_bytes);
    if (error == ENOENT)
        return tide_export_folder_fail(parent, "opened", error);
    /* if the free space is unknown, a later write fails instead */
    if (error != 0 || needed <= free_bytes)
        return TIDE_OK;
    return tide_fail(TIDE_ERROR_IO,
                     "export %.700s: its weights have %" PRIu64 " bytes, %" PRIu64 " are free there",
                     export->out, needed, free_bytes);
}

/* ---- 2: begin ---- */

static tide_status fill(const tide_export *export, const char *path, const char *config, size_t bytes)
{
    char config_path[PATH_BYTES];
    const tide_status status = tide_export_path(path, TIDE_EXPORT_CONFIG_NAME, config_path);
    if (status != TIDE_OK)
        return status;
    const int error = tide_files_write_whole(export->files, config_path, config, bytes);
    if (error != 0)
        return tide_export_folder_fail(config_path, "written", error);
    if (export->source != NULL)
        return tide_export_copy_sidecars(export->files, export->source, path, false);
    return export->of_bytes && tide_export_takes_bytes(export->model)
               ? tide_export_bytes_write(export->files, path, export->model)
               : TIDE_OK;
}

/* Makes the folder with all but the weights. On failure nothing is left. */
static tide_status prepare(const tide_export *export, tide_export_place *place)
{
    char *config = NULL;
    size_t bytes = 0;
    tide_status status = tide_export_config(export, &config, &bytes);
    if (status == TIDE_OK)
        status = tide_export_place_make(export, place);
    if (status == TIDE_OK)
        status = fill(export, place->path, config, bytes);
    free(config);
    if (status != TIDE_OK)
        tide_export_abandon(export->files, place);
    return status;
}

/* The status at a comparison's end: ARGUMENT, naming the file, if one differs, otherwise `status`, which
 * the export returned that ran on the comparing files. */
static tide_status same_end(const tide_export *export, const tide_export_same *same, tide_status status)
{
    if (!same->differs)
        return status;
    return tide_fail(TIDE_ERROR_ARGUMENT,
                     "export %.400s: it is there already, and this run would not write %.500s so; name a "
                     "folder that is not",
                     export->out, same->path);
}

/* Compares all but the weights with a folder that exists, so that another model's folder is refused before
 * this model is loaded. */
static tide_status there_begin(const tide_export *export, tide_export_place *place)
{
    tide_export_same same;
    tide_export compared = *export;
    char *config = NULL;
    size_t bytes = 0;
    tide_status status = tide_export_config(export, &config, &bytes);
    if (status != TIDE_OK)
        return status;
    tide_export_same_begin(export->files, &same);
    compared.files = &same.files;
    status = same_end(export, &same, fill(&compared, export->out, config, bytes));
    free(config);
    place->is_there = status == TIDE_OK;
    return status;
}

tide_status tide_export_begin(const tide_export *export, tide_export_place *place)
{
    *place = (tide_export_place){.path = ""};
    if (strlen(export->out) >= PATH_BYTES)
        return tide_fail(TIDE_ERROR_ARGUMENT, "export: the path %.200s... is too long", export->out);
    tide_status status = name_check(export->files, export->out);
    if (status == TIDE_ERROR_ARGUMENT && export->may_be_there)
        return there_begin(export, place);
    if (status == TIDE_OK)
        status = place_check(export->files, export->out);
    if (status == TIDE_OK)
        tide_export_tidy(export->files, export->out);
    if (status == TIDE_OK)
        status = free_space_check(export);
    return status == TIDE_OK ? prepare(export, place) : status;
}

/* ---- 3: finish ---- */

static tide_status weights_write(const tide_export *export, const char *path, tide_weights_get get,
                                 void *context)
{
    tide_weight_list list;
    tide_status status = tide_weight_list_make(export->model, &list);
    if (status != TIDE_OK)
        return status;
    if (export->model->names_otherwise)
        tide_weight_list_rename(export->model, &list);
    const tide_weights_output output = output_of(export, &list, get, context);
    status = tide_weights_write(export->files, path, &output);
    tide_weight_list_free(&list);
    return status;
}

static bool is_there(const tide_files *files, const tide_export_place *place)
{
    char config[PATH_BYTES];
    int handle;
    if (tide_export_path(place->path, TIDE_EXPORT_CONFIG_NAME, config) != TIDE_OK ||
        files->open(files->context, config, &handle) != 0)
        return false;
    (void)files->close(files->context, handle);
    return true;
}

/* Makes the temporary folder again if something has removed it since begin, which may be days ago. If the
 * source model is gone, too, makes config.json anew and copies no sidecar files. */
static tide_status place_restore(const tide_export *export, tide_export_place *place)
{
    tide_export anew = *export;
    if (is_there(export->files, place))
        return TIDE_OK;
    tide_export_abandon(export->files, place);
    tide_status status = prepare(&anew, place);
    if (status == TIDE_OK || anew.source == NULL)
        return status;
    anew.source = NULL;
    return prepare(&anew, place);
}

/* Renames the folder to OUT, unless something else has that name by now. */
static tide_status place_name(const tide_export *export, const tide_export_place *place)
{
    char message[1024];
    bool named = false;
    tide_status status = name_check(export->files, export->out);
    if (status == TIDE_OK)
        status = tide_export_name_folder(export->files, place->path, export->out, &named);
    if (status == TIDE_OK)
        return TIDE_OK;
    (void)snprintf(message, sizeof message, "%s", tide_message());
    return tide_fail(status == TIDE_ERROR_ARGUMENT ? TIDE_ERROR_STATE : status,
                     "the model is whole in %.600s: %.400s", named ? export->out : place->path, message);
}

static tide_status there_finish(const tide_export *export, tide_export_place *place, tide_weights_get get,
                                void *context)
{
    tide_export_same same;
    tide_export compared = *export;
    tide_export_same_begin(export->files, &same);
    compared.files = &same.files;
    const tide_status status = weights_write(&compared, export->out, get, context);
    place->is_there = false;
    return same_end(export, &same, status);
}

tide_status tide_export_finish(const tide_export *export, tide_export_place *place, tide_weights_get get,
                               void *context)
{
    if (place->is_there)
        return there_finish(export, place, get, context);
    assert(place->path[0] != '\0');
    tide_status status = place_restore(export, place);
    if (status == TIDE_OK)
        status = weights_write(export, place->path, get, context);
    if (status != TIDE_OK) {
        tide_export_abandon(export->files, place);
        return status;
    }
    status = place_name(export, place);
    tide_export_place_release(export->files, place);
    return status;
}

tide_status tide_export_write(const tide_export *export, tide_weights_get get, void *context)
{
    tide_export_place place;
    const tide_status status = tide_export_begin(export, &place);
    return status == TIDE_OK ? tide_export_finish(export, &place, get, context) : status;
}

/* ---- from a checkpoint ---- */

static tide_status get_master(void *context, size_t tensor, uint64_t first, uint64_t count, float *values)
{
    return tide_weights_read(context, tensor, first, count, values);
}

static void tell_checksum(void *context, uint64_t done_bytes, uint64_t total_bytes)
{
    const tide_export *export = context;
    if (export->progress != NULL)
        export->progress(export->progress_context, "checksum", done_bytes, total_bytes);
}

/* Checks the checkpoint and reads its state. */
static tide_status checkpoint_look(const tide_export *export, const char *path, tide_train_state *state)
{
    tide_checkpoint_check check;
    tide_export told = *export;
    const tide_status status =
        tide_checkpoint_check_run(export->files, path, TIDE_CHECKPOINT_PARAMS, tell_checksum, &told, &check);
    if (status != TIDE_OK)
        return status;
    const tide_checkpoint_file_check *first = tide_checkpoint_check_first(&check);
    if (first != NULL)
        return tide_fail(first->status, "%s", first->message);
    *state = check.state;
    return TIDE_OK;
}

static tide_status weights_of(const tide_export *export, const char *path, tide_weight_list *list,
                              tide_weights **weights)
{
    tide_status status = tide_weight_list_make(export->model, list);
    if (status != TIDE_OK)
        return status;
    const tide_weights_names names = {.tensors = list->tensors, .count = list->count};
    status = tide_weights_open_on(export->files, path, &names, weights);
    if (status != TIDE_OK)
        tide_weight_list_free(list);
    return status;
}

tide_status tide_export_checkpoint(const tide_export *export, const char *path)
{
    tide_export whole = *export;
    tide_train_state state;
    tide_weight_list list;
    tide_weights *weights = NULL;
    char dir[PATH_BYTES], source[PATH_BYTES];
    bool found = false;
    tide_status status = checkpoint_look(export, path, &state);
    if (status == TIDE_OK && export->source == NULL) {
        tide_folder_parent(path, dir);
        status = tide_export_source_kept(export->files, dir, source, &found);
    }
    if (status != TIDE_OK)
        return status;
    whole.model = &state.model;
    whole.source = found ? source : export->source;
    status = weights_of(&whole, path, &list, &weights);
    if (status != TIDE_OK)
        return status;
    status = tide_export_write(&whole, get_master, weights);
    tide_weights_close(weights);
    tide_weight_list_free(&list);
    return status;
}
