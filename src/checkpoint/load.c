/* Finds and loads a checkpoint.
 *
 * Load opens the three tensor files and keeps them open. It reads each to the end for its size and checksum
 * and checks its header against the model's tensors (for a file of moments, against those that the manifest
 * does not list as frozen; which ones the run freezes matters only later, when values are written). It writes
 * values only if all three files are sound. So load reads every file twice, the second time mostly from the
 * page cache: the price of changing nothing before everything is known to be good.
 *
 * Finding. A folder called step-N was complete when it got its name (save.c), so damage found now came later,
 * from a user or from the storage. To ignore the folder would lose work that may be recoverable and hide a
 * failing disk, so damage is an error that names the folder; a user who wants an earlier checkpoint names
 * that one. A folder without a manifest is ignored: an interrupted removal or copy leaves such folders, and
 * they never claim to be checkpoints.
 */
#include "src/checkpoint/checkpoint.h"

#include "base/hash.h"
#include "base/text.h"
#include "src/checkpoint/folder.h"
#include "src/checkpoint/manifest.h"
#include "src/checkpoint/tensors.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { NAMES_TOLD = 2 };

static tide_status path_check(const char *path)
{
    size_t length = strlen(path);
    if (length > 0 && length + 64 <= TIDE_CHECKPOINT_PATH_BYTES)
        return TIDE_OK;
    return tide_fail(TIDE_ERROR_ARGUMENT, "checkpoint: its path must have 1 to %d bytes, not %zu",
                     TIDE_CHECKPOINT_PATH_BYTES - 64, length);
}

tide_status tide_checkpoint_peek(const tide_files *files, const char *path, tide_train_state *state)
{
    tide_manifest manifest;
    tide_status status = path_check(path);
    if (status == TIDE_OK)
        status = tide_manifest_read(files, path, &manifest);
    if (status != TIDE_OK)
        return status;
    *state = manifest.state;
    free(manifest.frozen);
    return TIDE_OK;
}

/* ---- finding ---- */

static tide_status sizes_check(const tide_files *files, const char *path, const tide_manifest *manifest)
{
    tide_status status = TIDE_OK;
    for (tide_value value = TIDE_VALUE_MASTER; value < tide_manifest_end(manifest) && status == TIDE_OK;
         value++) {
        tide_file file;
        status = tide_manifest_open(files, path, tide_checkpoint_file(value), &file);
        if (status == TIDE_OK)
            status = tide_manifest_size_check(&file, &manifest->files[value]);
        tide_file_close(&file);
    }
    return status;
}

/* The manifest must be that of step N, if the folder is called step-N, and the files must have their
 * sizes. */
static tide_status found_check(const tide_files *files, tide_checkpoint_found *found)
{
    uint64_t step;
    tide_manifest manifest = {.frozen = NULL};
    tide_status status = tide_manifest_read(files, found->path, &manifest);
    if (status == TIDE_OK && tide_folder_step_of(found->path, &step) && manifest.state.step != step)
        status = tide_fail(TIDE_ERROR_CORRUPT, "checkpoint %.900s: its manifest is that of step %" PRIu64,
                           found->path, manifest.state.step);
    if (status == TIDE_OK)
        status = sizes_check(files, found->path, &manifest);
    if (status == TIDE_OK)
        found->step = manifest.state.step;
    found->weights_only = manifest.weights_only;
    for (tide_value value = TIDE_VALUE_MASTER; value < tide_manifest_end(&manifest); value++)
        found->hash = tide_hash_u64(found->hash, manifest.files[value].crc32c);
    free(manifest.frozen);
    return status;
}

static tide_status newest_in(const tide_folder *folder, tide_checkpoint_found *found)
{
    found->exists = folder->step_count > 0;
    for (size_t i = 0; i < folder->remain_count; i++)
        found->passed_over += !found->exists || folder->remains[i] > folder->steps[0];
    if (!found->exists)
        return TIDE_OK;
    found->step = folder->steps[0];
    tide_folder_step_path(folder, found->step, found->path);
    return found_check(folder->files, found);
}

tide_status tide_checkpoint_newest(const tide_files *files, const char *dir, tide_checkpoint_found *found)
{
    tide_folder folder;
    tide_checkpoint_found result = {.exists = false};
    tide_status status = tide_folder_open(files, dir, &folder);
    if (status != TIDE_OK)
        return status;
    status = newest_in(&folder, &result);
    tide_folder_close(&folder);
    if (status == TIDE_OK)
        *found = result;
    return status;
}

tide_status tide_checkpoint_at(const tide_files *files, const char *path, tide_checkpoint_found *found)
{
    tide_checkpoint_found result = {.exists = true};
    tide_status status = path_check(path);
    if (status != TIDE_OK)
        return status;
    snprintf(result.path, sizeof result.path, "%s", path);
    status = found_check(files, &result);
    if (status == TIDE_OK)
        *found = result;
    return status;
}

tide_status tide_checkpoint_choose(const tide_files *files, const char *path, tide_checkpoint_found *found)
{
    uint64_t step;
    tide_checkpoint_found result;
    if (tide_folder_step_of(path, &step))
        return tide_checkpoint_at(files, path, found);
    const tide_status status = tide_checkpoint_newest(files, path, &result);
    if (status == TIDE_OK && !result.exists)
        return tide_fail(TIDE_ERROR_IO, "--checkpoint %.900s: it holds no checkpoint", path);
    if (status == TIDE_OK)
        *found = result;
    return status;
}

/* ---- loading ---- */

typedef struct loading {
    const tide_checkpoint_tensors *tensors;
    tide_checkpoint_tensor *saved; /* the same tensors, with `frozen` as it was when they were saved */
    tide_checkpoint_write write;
    tide_checkpoint_progress progress; /* the callback, or NULL */
    void *context;
    /* read so far (in the end twice files_bytes), and the size of all files */
    uint64_t read_bytes, files_bytes;
    tide_file files[TIDE_VALUE_COUNT];
    uint64_t *offsets; /* [value][tensor], in the value's file */
    float *buffer;
    size_t buffer_elements;
} loading;

static void load_tell(loading *load, uint64_t bytes)
{
    load->read_bytes += bytes;
    if (load->progress != NULL)
        load->progress(load->context, load->read_bytes / 2, load->files_bytes);
}

static void tell_checked(void *context, uint64_t bytes)
{
    load_tell(context, bytes);
}

/* Checks the header of a value's file. MASTER's is checked first, against the model. In a file of moments, a
 * tensor too few or too many is then damage, unless the manifest lists it as frozen. */
static tide_status header_check(loading *load, tide_value value)
{
    const tide_file *file = &load->files[value];
    const size_t count = load->tensors->count;
    const tide_checkpoint_tensors saved = {load->saved, count};
    tide_safetensors_header header;
    char message[1024];
    tide_status status = tide_safetensors_read(file, count, &header);
    if (status != TIDE_OK)
        return status;
    status =
        tide_checkpoint_header_check(file, &header, &saved, value, load->offsets + (size_t)value * count);
    if (status == TIDE_OK)
        load_tell(load, header.data_start);
    tide_safetensors_free(&header);
    if (status != TIDE_ERROR_MISMATCH || value == TIDE_VALUE_MASTER)
        return status;
    snprintf(message, sizeof message, "%s", tide_message());
    return tide_fail(TIDE_ERROR_CORRUPT, "%s, which its manifest does not say", message);
}

static tide_status value_check(loading *load, const tide_files *files, const char *path, tide_value value,
                               const tide_manifest_file *expected)
{
    tide_file *file = &load->files[value];
    tide_status status = tide_manifest_open(files, path, tide_checkpoint_file(value), file);
    if (status == TIDE_OK)
        status = tide_manifest_size_check(file, expected);
    if (status == TIDE_OK)
        status = tide_manifest_checksum_check(
            file, expected, load->buffer, load->buffer_elements * sizeof *load->buffer, tell_checked, load);
    return status == TIDE_OK ? header_check(load, value) : status;
}

/* Reads a range of a tensor from the value's file and passes it on. Moments that the checkpoint lacks are
 * zero. */
static tide_status push_value(loading *load, size_t tensor, tide_value value, uint64_t first, uint64_t count)
{
    const size_t bytes = (size_t)count * sizeof(float);
    const uint64_t start = load->offsets[(size_t)value * load->tensors->count + tensor];
    tide_status status = TIDE_OK;
    if (tide_checkpoint_tensor_has(&load->saved[tensor], value))
        status = tide_file_get(&load->files[value], start + first * sizeof(float), load->buffer, bytes);
    else
        memset(load->buffer, 0, bytes);
    return status == TIDE_OK ? load->write(load->context, tensor, value, first, count, load->buffer) : status;
}

static tide_status push_range(loading *load, size_t tensor, uint64_t first, uint64_t count)
{
    tide_status status = TIDE_OK;
    for (tide_value value = TIDE_VALUE_MASTER; value < TIDE_VALUE_COUNT && status == TIDE_OK; value++) {
        if (tide_checkpoint_tensor_has(&load->tensors->tensors[tensor], value))
            status = push_value(load, tensor, value, first, count);
        if (status == TIDE_OK && tide_checkpoint_tensor_has(&load->saved[tensor], value))
            load_tell(load, count * sizeof(float));
    }
    return status;
}

static tide_status push_tensor(loading *load, size_t tensor)
{
    const uint64_t elements = tide_checkpoint_tensor_elements(&load->tensors->tensors[tensor]);
    tide_status status = TIDE_OK;
    for (uint64_t first = 0; first < elements && status == TIDE_OK; first += load->buffer_elements) {
        const uint64_t left = elements - first;
        status = push_range(load, tensor, first, left < load->buffer_elements ? left : load->buffer_elements);
    }
    return status;
}

static tide_status check_and_push(loading *load, const tide_files *files, const char *path,
                                  const tide_manifest *manifest)
{
    tide_status status = TIDE_OK;
    for (tide_value value = TIDE_VALUE_MASTER; value < TIDE_VALUE_COUNT; value++)
        load->files_bytes += manifest->files[value].bytes;
    load_tell(load, 0);
    for (tide_value value = TIDE_VALUE_MASTER; value < tide_manifest_end(manifest) && status == TIDE_OK;
         value++)
        status = value_check(load, files, path, value, &manifest->files[value]);
    for (size_t tensor = 0; tensor < load->tensors->count && status == TIDE_OK; tensor++)
        status = push_tensor(load, tensor);
    return status;
}

/* ---- frozen tensors, then and now ---- */

/* Finds the tensor of that name. The search begins behind the last one found, since names mostly come in
 * order. */
static tide_checkpoint_tensor *find_saved(const loading *load, const char *name, size_t *from)
{
    const size_t count = load->tensors->count;
    for (size_t i = 0; i < count; i++) {
        const size_t at = (*from + i) % count;
        if (strcmp(load->saved[at].name, name) == 0) {
            *from = at + 1;
            return &load->saved[at];
        }
    }
    return NULL;
}

static tide_status mark_saved(loading *load, const char *path, const tide_manifest *manifest)
{
    size_t from = 0;
    for (size_t i = 0; i < load->tensors->count; i++)
        load->saved[i].frozen = manifest->weights_only; /* weights alone have no moments */
    for (size_t i = 0; i < manifest->frozen_count; i++) {
        tide_checkpoint_tensor *tensor = find_saved(load, manifest->frozen[i], &from);
        if (tensor == NULL)
            return tide_fail(TIDE_ERROR_MISMATCH,
                             "checkpoint %.900s: its frozen tensor %s is none of the model's", path,
                             tide_printable(manifest->frozen[i]).text);
        if (tensor->frozen)
            return tide_fail(TIDE_ERROR_CORRUPT,
                             "checkpoint %.900s: its manifest says twice that %s is frozen", path,
                             tensor->name);
        tensor->frozen = true;
    }
    return TIDE_OK;
}

/* Appends, for example, "frozen -> trained, with zero moments: 3 params (a, b, ...)" to the line. */
static void note_changed(const loading *load, bool frozen_now, const char *what, char *line)
{
    char names[128] = "";
    size_t changed = 0;
    for (size_t i = 0; i < load->tensors->count; i++) {
        const tide_checkpoint_tensor *now = &load->tensors->tensors[i];
        const size_t length = strlen(names);
        if (now->frozen == load->saved[i].frozen || now->frozen != frozen_now)
            continue;
        if (changed++ < NAMES_TOLD)
            snprintf(names + length, sizeof names - length, "%s%.48s", length > 0 ? ", " : "", now->name);
    }
    const size_t at = strlen(line);
    if (changed > 0)
        snprintf(line + at, TIDE_TRAIN_CHANGE_BYTES - at, "%s%s: %zu %s (%s%s)", at > 0 ? "; " : "", what,
                 changed, changed == 1 ? "param" : "params", names, changed > NAMES_TOLD ? ", ..." : "");
}

static void note_frozen(const loading *load, tide_train_changes *changes)
{
    assert(changes->count < TIDE_TRAIN_CHANGES_MAX);
    char *line = changes->lines[changes->count];
    line[0] = '\0';
    note_changed(load, false, "frozen -> trained, with zero moments", line);
    note_changed(load, true, "trained -> frozen, moments ignored", line);
    changes->count += line[0] != '\0';
}

static void note_weights(tide_train_changes *changes)
{
    assert(changes->count < TIDE_TRAIN_CHANGES_MAX);
    snprintf(changes->lines[changes->count++], TIDE_TRAIN_CHANGE_BYTES,
             "weights alone were saved: the optimizer begins anew, with zero moments and no updates done");
}

/* ---- all of it ---- */

static void loading_free(loading *load)
{
    if (load == NULL)
        return;
    for (tide_value value = TIDE_VALUE_MASTER; value < TIDE_VALUE_COUNT; value++)
        tide_file_close(&load->files[value]);
    free(load->saved);
    free(load->offsets);
    free(load->buffer);
    free(load);
}

static tide_status loading_make(const char *path, const tide_checkpoint_tensors *tensors, loading **made)
{
    loading *load = calloc(1, sizeof *load);
    if (load == NULL)
        return tide_fail(TIDE_ERROR_NO_MEMORY, "checkpoint %.900s: no memory to load it", path);
    for (tide_value value = TIDE_VALUE_MASTER; value < TIDE_VALUE_COUNT; value++)
        load->files[value].handle = TIDE_FILE_CLOSED;
    load->tensors = tensors;
    load->buffer_elements = tide_checkpoint_buffer_elements(tensors);
    load->buffer = malloc(load->buffer_elements * sizeof *load->buffer);
    load->offsets = calloc(TIDE_VALUE_COUNT * tensors->count, sizeof *load->offsets);
    load->saved = calloc(tensors->count, sizeof *load->saved);
    if (load->buffer == NULL || load->offsets == NULL || load->saved == NULL) {
        const size_t bytes = load->buffer_elements * sizeof *load->buffer;
        loading_free(load);
        return tide_fail(TIDE_ERROR_NO_MEMORY, "checkpoint %.900s: no memory for a buffer of %zu bytes", path,
                         bytes);
    }
    memcpy(load->saved, tensors->tensors, tensors->count * sizeof *load->saved);
    *made = load;
    return TIDE_OK;
}

tide_status tide_checkpoint_load(const tide_files *files, const char *path, const tide_train_state *current,
                                 const tide_checkpoint_tensors *tensors, tide_checkpoint_write write,
                                 tide_checkpoint_progress progress, void *context, tide_train_state *state,
                                 tide_train_changes *changes)
{
    tide_manifest manifest = {.frozen = NULL};
    tide_train_changes differences = {0};
    loading *load = NULL;
    tide_status status = path_check(path);
    if (status == TIDE_OK)
        status = tide_checkpoint_tensors_check(tensors);
    if (status == TIDE_OK)
        status = tide_manifest_read(files, path, &manifest);
    if (status == TIDE_OK && current != NULL)
        status = tide_train_state_compare(&manifest.state, current, path, &differences);
    if (status == TIDE_OK)
        status = loading_make(path, tensors, &load);
    if (status == TIDE_OK) {
        load->write = write;
        load->progress = progress;
        load->context = context;
        status = mark_saved(load, path, &manifest);
    }
    if (status == TIDE_OK)
        status = check_and_push(load, files, path, &manifest);
    if (status == TIDE_OK) {
        *state = manifest.state;
        if (manifest.weights_only) {
            note_weights(&differences);
            state->adam_step = 0; /* like the moments, the count of updates begins anew */
        } else {
            note_frozen(load, &differences);
        }
        if (changes != NULL)
            *changes = differences;
    }
    loading_free(load);
    free(manifest.frozen);
    return status;
}
