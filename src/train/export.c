/* config.json first, which can be refused; then what is copied; the weights last, which take long. */
#include "src/train/export.h"

#include "src/checkpoint/check.h"
#include "src/checkpoint/folder.h"
#include "src/files/whole.h"
#include "src/model/config_json.h"
#include "src/train/config_text.h"
#include "src/train/weight_list.h"
#include "tide_config.h"

#include <errno.h>
#include <fnmatch.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CONFIG_NAME "config.json"
#define ORIGIN_NAME "tidepool-origin" /* a name that is nobody else's: what is there may be replaced */

enum { PATH_BYTES = TIDE_CHECKPOINT_PATH_BYTES, COPY_MAX_BYTES = 64 << 20, CONFIG_MAX_BYTES = 1 << 20 };

/* What goes along with a model, whatever its tokens are. */
static const char *const copied[] = {
    "tokenizer*",  "vocab.*",    "merges.txt",        "special_tokens_map.json", "*.tiktoken",
    "tekken.json", "LICENSE*",   "added_tokens.json", "generation_config.json",  "chat_template*",
    "NOTICE*",     "USE_POLICY*"};

enum { COPIED = sizeof copied / sizeof copied[0] };

tide_weights_dtype tide_export_dtype_of(tide_dtype dtype)
{
    return dtype == TIDE_DTYPE_BF16   ? TIDE_WEIGHTS_BF16
           : dtype == TIDE_DTYPE_FP16 ? TIDE_WEIGHTS_F16
                                      : TIDE_WEIGHTS_F32;
}

static tide_status path_join(const char *folder, const char *name, char path[PATH_BYTES])
{
    if ((size_t)snprintf(path, PATH_BYTES, "%s/%s", folder, name) < PATH_BYTES)
        return TIDE_OK;
    return tide_fail(TIDE_ERROR_ARGUMENT, "export: the path %.200s... is too long", folder);
}

/* Beside a folder's place: where it is made. */
static tide_status temporary_of(const tide_files *files, const char *out, char path[PATH_BYTES])
{
    size_t length = strlen(out);
    while (length > 1 && out[length - 1] == '/')
        length--;
    if ((size_t)snprintf(path, PATH_BYTES, "%.*s.tmp-%" PRIu64, (int)length, out,
                         files->process_id(files->context)) < PATH_BYTES)
        return TIDE_OK;
    return tide_fail(TIDE_ERROR_ARGUMENT, "export: the path %.200s... is too long", out);
}

static tide_status read_fail(const char *path, int most, const char *what, int error)
{
    if (error == ENOMEM)
        return tide_fail(TIDE_ERROR_NO_MEMORY, "export: no memory to read %.900s", path);
    if (error == EFBIG)
        return tide_fail(TIDE_ERROR_IO, "export: %.900s has more than %d bytes: that is not %s", path, most,
                         what);
    return tide_fail(TIDE_ERROR_IO, "export: %.900s can't be read: %s", path, strerror(error));
}

/* ---- config.json ---- */

#if TIDE_HAVE_JANSSON
#include "src/weights/json.h"

static const char *dtype_word(tide_weights_dtype dtype)
{
    return dtype == TIDE_WEIGHTS_BF16 ? "bfloat16" : dtype == TIDE_WEIGHTS_F16 ? "float16" : "float32";
}

/* Numbers with as few digits as give them back; and a line's end. NULL: no memory. */
static char *made_text(const json_t *root)
{
    char *text = tide_weights_json_text(root, JSON_INDENT(2) | JSON_REAL_PRECISION(15));
    json_t *back = text != NULL ? json_loads(text, 0, NULL) : NULL;
    if (back != NULL && !json_equal(back, (json_t *)root)) {
        free(text);
        text = tide_weights_json_text(root, JSON_INDENT(2));
    }
    const size_t length = text != NULL ? strlen(text) : 0;
    char *line = back != NULL && text != NULL ? realloc(text, length + 2) : NULL;
    json_decref(back);
    if (line == NULL)
        free(text);
    else
        memcpy(line + length, "\n", 2);
    return line;
}

static bool same_model(const tide_model_config *a, const tide_model_config *b)
{
    json_t *one = tide_model_config_to_json(a, ""), *other = tide_model_config_to_json(b, "");
    const bool same = one != NULL && other != NULL && json_equal(one, other);
    json_decref(one);
    json_decref(other);
    return same;
}

/* Is the dtype, under any key that it has, this word? */
static tide_status dtype_check(const char *text, const char *path, const char *word)
{
    static const char *const keys[] = {"dtype", "torch_dtype"};
    json_t *root = json_loads(text, 0, NULL);
    if (root == NULL)
        return tide_fail(TIDE_ERROR_NO_MEMORY, "export: no memory for %.900s", path);
    bool right = true;
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++) {
        const json_t *value = json_object_get(root, keys[i]);
        right = right &&
                (value == NULL || (json_is_string(value) && strcmp(json_string_value(value), word) == 0));
    }
    json_decref(root);
    return right ? TIDE_OK
                 : tide_fail(TIDE_ERROR_UNSUPPORTED, "export: %.900s spells its dtype with escapes", path);
}

/* The origin's, unchanged but for the dtype. */
static tide_status origin_text(const tide_export *export, char **made)
{
    char path[PATH_BYTES], *text = NULL, *edited = NULL;
    size_t bytes = 0;
    tide_model_config model;
    tide_status status = path_join(export->origin, CONFIG_NAME, path);
    if (status != TIDE_OK)
        return status;
    const int error = tide_files_read_whole(export->files, path, CONFIG_MAX_BYTES, &text, &bytes);
    if (error != 0)
        return read_fail(path, CONFIG_MAX_BYTES, "a config.json", error);
    status = tide_model_config_parse(text, bytes, path, &model);
    if (status == TIDE_OK && !same_model(&model, export->model))
        status =
            tide_fail(TIDE_ERROR_MISMATCH, "export: %.900s is of another model than the one to export", path);
    if (status == TIDE_OK) {
        edited = tide_config_text_with_dtype(text, bytes, dtype_word(export->dtype));
        status = edited != NULL ? dtype_check(edited, path, dtype_word(export->dtype))
                                : tide_fail(TIDE_ERROR_NO_MEMORY, "export: no memory for %.900s", path);
    }
    free(text);
    if (status != TIDE_OK) {
        free(edited);
        return status;
    }
    *made = edited;
    return TIDE_OK;
}

/* The text of config.json, so many bytes and a zero; the caller frees it. */
static tide_status config_make(const tide_export *export, char **text, size_t *bytes)
{
    if (export->origin != NULL) {
        const tide_status status = origin_text(export, text);
        *bytes = status == TIDE_OK ? strlen(*text) : 0;
        return status;
    }
    json_t *root = tide_model_config_to_json(export->model, dtype_word(export->dtype));
    char *made = root != NULL ? made_text(root) : NULL;
    json_decref(root);
    if (made == NULL)
        return tide_fail(TIDE_ERROR_NO_MEMORY, "export: no memory for a config.json");
    *text = made;
    *bytes = strlen(made);
    return TIDE_OK;
}

#else

static tide_status config_make(const tide_export *export, char **text, size_t *bytes)
{
    (void)text, (void)bytes;
    return tide_fail(TIDE_ERROR_UNSUPPORTED,
                     "export %.900s: this build has no jansson and can't write a config.json", export->out);
}

#endif

/* ---- what goes along ---- */

typedef struct copying {
    const tide_files *files;
    const char *from, *to;
    bool config_too;
    tide_status status;
} copying;

static bool goes_along(const copying *it, const char *name)
{
    if (it->config_too && strcmp(name, CONFIG_NAME) == 0)
        return true;
    for (size_t i = 0; i < COPIED; i++)
        if (fnmatch(copied[i], name, FNM_PERIOD) == 0)
            return true;
    return false;
}

static tide_status file_copy(const copying *it, const char *name)
{
    char from[PATH_BYTES], to[PATH_BYTES], *text = NULL;
    size_t bytes = 0;
    tide_status status = path_join(it->from, name, from);
    if (status == TIDE_OK)
        status = path_join(it->to, name, to);
    if (status != TIDE_OK)
        return status;
    int error = tide_files_read_whole(it->files, from, COPY_MAX_BYTES, &text, &bytes);
    if (error == EISDIR)
        return TIDE_OK; /* a folder is no file that goes along */
    if (error != 0)
        return read_fail(from, COPY_MAX_BYTES, "a tokenizer's file; move it away", error);
    error = tide_files_write_whole(it->files, to, text, bytes);
    free(text);
    return error == 0 ? TIDE_OK
                      : tide_fail(TIDE_ERROR_IO, "export: %.900s can't be written: %s", to, strerror(error));
}

static int name_visit(void *visitor, const char *name)
{
    copying *it = visitor;
    if (goes_along(it, name))
        it->status = file_copy(it, name);
    return it->status == TIDE_OK ? 0 : ECANCELED;
}

static tide_status copy_along(const tide_files *files, const char *from, const char *to, bool config_too)
{
    copying it = {.files = files, .from = from, .to = to, .config_too = config_too};
    const int error = files->list(files->context, from, name_visit, &it);
    if (it.status != TIDE_OK || error == 0)
        return it.status;
    return tide_fail(error == ENOMEM ? TIDE_ERROR_NO_MEMORY : TIDE_ERROR_IO, "%.900s can't be listed: %s",
                     from, strerror(error));
}

/* ---- folders ---- */

static tide_status folder_fail(const char *path, const char *what, int error)
{
    return tide_fail(TIDE_ERROR_IO, "%.900s can't be %s: %s", path, what, strerror(error));
}

/* An empty folder under a temporary name; what a forerunner left there goes. */
static tide_status temporary_make(const tide_files *files, const char *path)
{
    int error = files->make_folder(files->context, path);
    if (error == EEXIST) {
        error = tide_files_remove_folder(files, path);
        if (error == 0)
            error = files->make_folder(files->context, path);
    }
    return error == 0 ? TIDE_OK : folder_fail(path, "made", error);
}

/* It goes again, as far as that works. `named`: it bore the final name, which a power cut could bring back: then its files must
 * not go before that name has. */
static void temporary_withdraw(const tide_files *files, const char *path, const char *name, bool named)
{
    char parent[PATH_BYTES];
    if (named) {
        tide_folder_parent(name, parent);
        if (files->rename(files->context, name, path) != 0 || files->sync_folder(files->context, parent) != 0)
            return;
    }
    (void)tide_files_remove_folder(files, path);
}

/* Synced, renamed, and the new name synced; on failure it is withdrawn. */
static tide_status temporary_finish(const tide_files *files, const char *path, const char *name)
{
    char parent[PATH_BYTES];
    bool named = false;
    tide_folder_parent(name, parent);
    int error = files->sync_folder(files->context, path);
    tide_status status = error == 0 ? TIDE_OK : folder_fail(path, "synced", error);
    if (error == 0) {
        error = files->rename(files->context, path, name);
        named = error == 0;
        status = named ? TIDE_OK : folder_fail(name, "made", error);
    }
    if (named) {
        error = files->sync_folder(files->context, parent);
        status = error == 0 ? TIDE_OK : folder_fail(parent, "synced", error);
    }
    if (status != TIDE_OK)
        temporary_withdraw(files, path, name, named);
    return status;
}

/* Is there anything under this name? */
static tide_status name_check(const tide_files *files, const char *out)
{
    int handle;
    const int error = files->open(files->context, out, &handle);
    if (error == ENOENT)
        return TIDE_OK;
    if (error == 0)
        (void)files->close(files->context, handle);
    if (error == 0 || error == EISDIR)
        return tide_fail(TIDE_ERROR_ARGUMENT, "export %.900s: it is there already; name a folder that is not",
                         out);
    return tide_fail(TIDE_ERROR_IO, "export %.900s: can't be looked at: %s", out, strerror(error));
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

static tide_status room_check(const tide_export *export)
{
    tide_weight_list list;
    char parent[PATH_BYTES];
    uint64_t free_bytes = 0;
    tide_status status = tide_weight_list_make(export->model, &list);
    if (status != TIDE_OK)
        return status;
    const tide_weights_output output = output_of(export, &list, NULL, NULL);
    const uint64_t needed = tide_weights_output_bytes(&output);
    tide_weight_list_free(&list);
    tide_folder_parent(export->out, parent);
    const int error = export->files->room(export->files->context, parent, &free_bytes);
    if (error == ENOENT)
        return folder_fail(parent, "opened", error);
    if (error != 0 || needed <= free_bytes) /* where the system does not tell, writing will */
        return TIDE_OK;
    return tide_fail(TIDE_ERROR_IO,
                     "export %.700s: its weights have %" PRIu64 " bytes, %" PRIu64 " are free there",
                     export->out, needed, free_bytes);
}

tide_status tide_export_check(const tide_export *export)
{
    char path[PATH_BYTES], *text = NULL;
    size_t bytes = 0;
    tide_status status = temporary_of(export->files, export->out, path);
    if (status == TIDE_OK)
        status = name_check(export->files, export->out);
    if (status == TIDE_OK)
        status = config_make(export, &text, &bytes);
    free(text);
    if (status == TIDE_OK)
        status = room_check(export);
    if (status == TIDE_OK)
        status = temporary_make(export->files, path);
    if (status == TIDE_OK)
        (void)tide_files_remove_folder(export->files, path);
    return status;
}

static tide_status fill(const tide_export *export, const char *path, const char *config, size_t bytes,
                        tide_weights_get get, void *context)
{
    char config_path[PATH_BYTES];
    tide_weight_list list;
    tide_status status = path_join(path, CONFIG_NAME, config_path);
    if (status != TIDE_OK)
        return status;
    const int error = tide_files_write_whole(export->files, config_path, config, bytes);
    if (error != 0)
        return folder_fail(config_path, "written", error);
    if (export->origin != NULL)
        status = copy_along(export->files, export->origin, path, false);
    if (status == TIDE_OK)
        status = tide_weight_list_make(export->model, &list);
    if (status != TIDE_OK)
        return status;
    const tide_weights_output output = output_of(export, &list, get, context);
    status = tide_weights_write(export->files, path, &output);
    tide_weight_list_free(&list);
    return status;
}

tide_status tide_export_write(const tide_export *export, tide_weights_get get, void *context)
{
    char path[PATH_BYTES], *config = NULL;
    size_t bytes = 0;
    tide_status status = temporary_of(export->files, export->out, path);
    if (status == TIDE_OK)
        status = name_check(export->files, export->out);
    if (status == TIDE_OK)
        status = config_make(export, &config, &bytes);
    if (status == TIDE_OK)
        status = temporary_make(export->files, path);
    if (status == TIDE_OK) {
        status = fill(export, path, config, bytes, get, context);
        if (status == TIDE_OK)
            status = temporary_finish(export->files, path, export->out);
        else
            temporary_withdraw(export->files, path, export->out, false);
    }
    free(config);
    return status;
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

/* A sound checkpoint's state. */
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

tide_status tide_export_origin_kept(const tide_files *files, const char *dir,
                                    char origin[TIDE_CHECKPOINT_PATH_BYTES], bool *kept)
{
    char config[PATH_BYTES];
    int handle;
    tide_status status = path_join(dir, ORIGIN_NAME, origin);
    if (status == TIDE_OK)
        status = path_join(origin, CONFIG_NAME, config);
    if (status != TIDE_OK)
        return status;
    const int error = files->open(files->context, config, &handle);
    if (error != 0 && error != ENOENT && error != ENOTDIR)
        return folder_fail(config, "opened", error);
    if (error == 0)
        (void)files->close(files->context, handle);
    *kept = error == 0;
    return TIDE_OK;
}

tide_status tide_export_checkpoint(const tide_export *export, const char *path)
{
    tide_export whole = *export;
    tide_train_state state;
    tide_weight_list list;
    tide_weights *weights = NULL;
    char dir[PATH_BYTES], origin[PATH_BYTES];
    bool found = false;
    tide_status status = checkpoint_look(export, path, &state);
    if (status == TIDE_OK && export->origin == NULL) {
        tide_folder_parent(path, dir);
        status = tide_export_origin_kept(export->files, dir, origin, &found);
    }
    if (status != TIDE_OK)
        return status;
    whole.model = &state.model;
    whole.origin = found ? origin : export->origin;
    status = tide_export_check(&whole);
    if (status == TIDE_OK)
        status = weights_of(&whole, path, &list, &weights);
    if (status != TIDE_OK)
        return status;
    status = tide_export_write(&whole, get_master, weights);
    tide_weights_close(weights);
    tide_weight_list_free(&list);
    return status;
}

/* ---- the origin ---- */

/* Take away the folder that may have borne the kept one's name: that it does no more is made sure first. */
static int old_remove(const tide_files *files, const char *dir, const char *old)
{
    int error = files->sync_folder(files->context, dir);
    if (error == 0)
        error = tide_files_remove_folder(files, old);
    return error == ENOENT ? 0 : error;
}

/* The first name that no run keeps there, and the end of the listing. */
static int foreign_visit(void *visitor, const char *name)
{
    copying *it = visitor;
    if (goes_along(it, name))
        return 0;
    it->status = tide_fail(TIDE_ERROR_STATE, "%.900s holds %.200s, which no run has kept there: move it away",
                           it->from, name);
    return ECANCELED;
}

/* What is replaced or removed must be what a run has kept. */
static tide_status kept_check(const tide_files *files, const char *kept)
{
    copying it = {.files = files, .from = kept, .config_too = true};
    const int error = files->list(files->context, kept, foreign_visit, &it);
    if (it.status != TIDE_OK || error == 0 || error == ENOENT)
        return it.status;
    return folder_fail(kept, "listed", error);
}

/*   1  a new folder, complete, as DIR/.tmp-tidepool-origin
 *   2  DIR/tidepool-origin, where there is one, becomes DIR/.tmp-tidepool-origin-old
 *   3  the new one becomes DIR/tidepool-origin; the folder is synced
 *   4  the old one goes
 * A power cut at any time leaves the old one, the new one or none under the name, whole. */
tide_status tide_export_keep_origin(const tide_files *files, const char *dir, const char *origin)
{
    char kept[PATH_BYTES], path[PATH_BYTES], old[PATH_BYTES];
    tide_status status = path_join(dir, ORIGIN_NAME, kept);
    if (status == TIDE_OK)
        status = kept_check(files, kept);
    if (status == TIDE_OK)
        status = path_join(dir, ".tmp-" ORIGIN_NAME, path);
    if (status == TIDE_OK)
        status = path_join(dir, ".tmp-" ORIGIN_NAME "-old", old);
    if (status != TIDE_OK)
        return status;
    int error = old_remove(files, dir, old);
    if (error != 0)
        return folder_fail(old, "removed", error);
    if (origin != NULL)
        status = temporary_make(files, path);
    if (status != TIDE_OK)
        return status;
    if (origin != NULL)
        status = copy_along(files, origin, path, true);
    if (status == TIDE_OK) {
        error = files->rename(files->context, kept, old);
        if (error != 0 && error != ENOENT)
            status = folder_fail(kept, "replaced", error);
    }
    if (origin != NULL && status == TIDE_OK)
        status = temporary_finish(files, path, kept);
    else if (origin != NULL)
        temporary_withdraw(files, path, kept, false);
    if (status != TIDE_OK)
        return status;
    error = old_remove(files, dir, old);
    return error == 0 ? TIDE_OK : folder_fail(old, "removed", error);
}
