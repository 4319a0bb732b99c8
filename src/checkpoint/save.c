/* Saves a checkpoint, in these steps:
 *
 *   1  list DIR, create it if it is missing, refuse if it has a checkpoint of this step or a later one
 *   2  remove stale folders, and a folder without a manifest that has the new checkpoint's name
 *   3  create the lock of DIR/.tmp-STEP-PID, which is held until the save ends, then the folder itself
 *   4  write the three tensor files together, sync and close them; then write the manifest with their sizes
 *      and checksums
 *   5  sync the .tmp folder, so that the names of its files are on disk
 *   6  rename it to DIR/step-N: if step-N exists after a power cut, it is complete
 *   7  sync DIR, so that step-N survives a power cut; for the first checkpoint also DIR's parent
 *   8  remove the oldest checkpoints beyond `keep`
 *
 * Each sync prevents a fault that no other prevents (tests/files/test_checkpoint_crash.c leaves them out one
 * by one). Steps 2 and 8 only tidy up: if they fail, save gives a warning. A failure in steps 3 to 7 removes
 * the .tmp folder. If DIR can't be synced after the rename, save renames step-N back and removes it too, so
 * that the call can be repeated.
 *
 * Values go from the caller's callback into one buffer of at most 4 MiB and from there to the file. The
 * buffer is so large that the cost of calls into the pool and the system does not matter, and small beside
 * any budget.
 */
#include "src/checkpoint/checkpoint.h"

#include "base/crc32c.h"
#include "base/owner.h"
#include "src/checkpoint/folder.h"
#include "src/checkpoint/manifest.h"
#include "src/checkpoint/tensors.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "values are written as they lie in memory");

/* Most bytes of a manifest without the names of frozen tensors, and of the JSON around each such name. */
enum { MANIFEST_BYTES = 4096, NAME_BYTES = 16 };

typedef struct saving {
    tide_folder folder;
    const tide_files *files;
    const tide_checkpoint_tensors *tensors;
    tide_checkpoint_read read;
    void *read_context;
    char tmp_path[TIDE_CHECKPOINT_PATH_BYTES];
    float *buffer;
    size_t buffer_elements;
    tide_manifest manifest;
    bool created_folder; /* this save has created DIR */
} saving;

/* ---- the files ---- */

/* A file that is being written, and the checksum of all its bytes so far. */
typedef struct file_writer {
    tide_file file;
    uint32_t crc32c;
} file_writer;

static tide_status writer_put(file_writer *writer, const void *bytes, size_t count)
{
    writer->crc32c = tide_crc32c(writer->crc32c, bytes, count);
    return tide_file_put(&writer->file, bytes, count);
}

/* Write a range of a tensor: each value to its own file, if that file has the tensor. */
static tide_status put_range(const saving *save, file_writer *writers, size_t tensor, uint64_t first,
                             uint64_t count)
{
    tide_status status = TIDE_OK;
    for (tide_value value = TIDE_VALUE_MASTER;
         value < tide_manifest_end(&save->manifest) && status == TIDE_OK; value++) {
        if (!tide_checkpoint_tensor_has(&save->tensors->tensors[tensor], value))
            continue;
        status = save->read(save->read_context, tensor, value, first, count, save->buffer);
        if (status == TIDE_OK)
            status = writer_put(&writers[value], save->buffer, (size_t)count * sizeof(float));
    }
    return status;
}

static tide_status put_tensor(const saving *save, file_writer *writers, size_t tensor)
{
    const uint64_t elements = tide_checkpoint_tensor_elements(&save->tensors->tensors[tensor]);
    tide_status status = TIDE_OK;
    for (uint64_t first = 0; first < elements && status == TIDE_OK; first += save->buffer_elements) {
        const uint64_t left = elements - first;
        status = put_range(save, writers, tensor, first,
                           left < save->buffer_elements ? left : save->buffer_elements);
    }
    return status;
}

static tide_status put_header(const saving *save, file_writer *writer, tide_value value)
{
    char *header;
    size_t header_bytes;
    tide_status status = tide_checkpoint_header_make(save->tensors, value, &header, &header_bytes);
    if (status != TIDE_OK)
        return status;
    status = writer_put(writer, header, header_bytes);
    free(header);
    return status;
}

/* Opens the files of all values at once, so that values that lie together in memory can be read together. */
static tide_status save_values(saving *save)
{
    file_writer writers[TIDE_VALUE_COUNT];
    tide_value open = TIDE_VALUE_MASTER; /* the files of the values before this one are open */
    tide_status status = TIDE_OK;
    for (; open < tide_manifest_end(&save->manifest) && status == TIDE_OK; open++) {
        writers[open].crc32c = 0;
        status = tide_file_create(save->files, "checkpoint", save->tmp_path, tide_checkpoint_file(open),
                                  &writers[open].file);
        if (status != TIDE_OK)
            break;
        status = put_header(save, &writers[open], open);
    }
    for (size_t i = 0; i < save->tensors->count && status == TIDE_OK; i++)
        status = put_tensor(save, writers, i);
    for (tide_value value = TIDE_VALUE_MASTER; value < open; value++) {
        status = tide_file_finish(&writers[value].file, status);
        save->manifest.files[value] = (tide_manifest_file){writers[value].file.bytes, writers[value].crc32c};
    }
    return status;
}

/* Lists the names of the frozen tensors in the manifest. */
static tide_status name_frozen(saving *save)
{
    tide_manifest *manifest = &save->manifest;
    const size_t count = save->tensors->count;
    manifest->frozen = malloc(count * sizeof *manifest->frozen);
    if (manifest->frozen == NULL)
        return tide_fail(TIDE_ERROR_NO_MEMORY, "checkpoint: no memory for the names of %zu tensors", count);
    for (size_t i = 0; i < count; i++) {
        if (save->tensors->tensors[i].frozen && !manifest->weights_only)
            manifest->frozen[manifest->frozen_count++] = save->tensors->tensors[i].name;
    }
    return TIDE_OK;
}

static tide_status save_manifest(const saving *save, uint64_t *manifest_bytes)
{
    char *text;
    size_t bytes;
    tide_status status = tide_manifest_make(&save->manifest, &text, &bytes);
    if (status != TIDE_OK)
        return status;
    tide_file file;
    status = tide_file_create(save->files, "checkpoint", save->tmp_path, TIDE_MANIFEST_NAME, &file);
    if (status == TIDE_OK)
        status = tide_file_finish(&file, tide_file_put(&file, text, bytes));
    free(text);
    *manifest_bytes = bytes;
    return status;
}

/* Step 4. */
static tide_status save_files(saving *save, tide_checkpoint_saved *saved)
{
    uint64_t manifest_bytes = 0;
    tide_status status = save_values(save);
    for (tide_value value = TIDE_VALUE_MASTER; value < TIDE_VALUE_COUNT; value++)
        saved->bytes += save->manifest.files[value].bytes;
    if (status == TIDE_OK)
        status = save_manifest(save, &manifest_bytes);
    saved->bytes += manifest_bytes;
    return status;
}

/* ---- the steps ---- */

/* Step 1. */
static tide_status prepare_folder(saving *save, uint64_t step)
{
    tide_folder *folder = &save->folder;
    if (folder->step_count > 0 && folder->steps[0] >= step)
        return tide_fail(TIDE_ERROR_STATE,
                         "checkpoint folder %.800s: it holds step-%" PRIu64 ", so step %" PRIu64
                         " can't be saved there: resume from it or take another folder",
                         folder->path, folder->steps[0], step);
    if (folder->exists)
        return tide_folder_way_check(folder, step, step);
    int error = save->files->make_folder(save->files->context, folder->path);
    if (error != 0)
        return tide_fail(TIDE_ERROR_IO, "checkpoint folder %.900s: can't be created: %s", folder->path,
                         strerror(error));
    save->created_folder = true;
    return TIDE_OK;
}

static void warn(tide_checkpoint_saved *saved)
{
    if (saved->warning[0] == '\0')
        snprintf(saved->warning, sizeof saved->warning, "%s", tide_message());
}

/* Step 2. Of the folders without a manifest, only one with the new checkpoint's name is removed. */
static void remove_stale(const saving *save, tide_checkpoint_saved *saved)
{
    const tide_folder *folder = &save->folder;
    for (size_t i = 0; i < folder->remain_count; i++) {
        uint64_t step = folder->remains[i];
        if (step == save->manifest.state.step && tide_folder_remove_step(folder, step) != TIDE_OK)
            warn(saved);
    }
    for (size_t i = 0; i < folder->stale_count; i++) {
        if (tide_folder_remove_stale(folder, &folder->stale[i]) != TIDE_OK)
            warn(saved);
    }
}

/* Step 7. */
static tide_status make_durable(const saving *save, const char *path)
{
    int error = save->files->sync_folder(save->files->context, save->folder.path);
    if (error != 0)
        return tide_fail(TIDE_ERROR_IO, "checkpoint %.900s: its folder can't be synced: %s", path,
                         strerror(error));
    if (save->folder.step_count > 0)
        return TIDE_OK;
    return tide_folder_sync_parent(&save->folder, !save->created_folder);
}

/* Steps 3 to 7, once the lock is held. Each label undoes a step. The message is that of the failure, even if
 * undoing fails too. */
static tide_status write_locked(saving *save, const char *path, tide_checkpoint_saved *saved)
{
    const tide_files *files = save->files;
    bool was_named = false;
    char message[1024];
    int error = files->make_folder(files->context, save->tmp_path);
    if (error != 0)
        return tide_fail(TIDE_ERROR_IO, "checkpoint %.900s: can't be created: %s", save->tmp_path,
                         strerror(error));
    tide_status status = save_files(save, saved);
    if (status != TIDE_OK)
        goto remove_tmp;
    error = files->sync_folder(files->context, save->tmp_path);
    if (error == 0)
        error = files->rename(files->context, save->tmp_path, path);
    if (error != 0) {
        status = tide_fail(TIDE_ERROR_IO, "checkpoint %.900s: can't be completed: %s", path, strerror(error));
        goto remove_tmp;
    }
    status = make_durable(save, path);
    if (status == TIDE_OK)
        return TIDE_OK;
    was_named = true;
    snprintf(message, sizeof message, "%s", tide_message());
    if (files->rename(files->context, path, save->tmp_path) != 0)
        return tide_fail(status, "%s", message); /* step-N is complete, but perhaps not durable */
remove_tmp:
    snprintf(message, sizeof message, "%s", tide_message());
    if (tide_folder_remove_tmp(&save->folder, save->manifest.state.step, files->process_id(files->context),
                               was_named) != TIDE_OK)
        return tide_fail(status, "%s", message); /* the next save removes the rest */
    return status;
}

static tide_status write_checkpoint(saving *save, const char *path, tide_checkpoint_saved *saved)
{
    int lock;
    const int error = tide_owner_claim(save->files, save->tmp_path, &lock);
    if (error != 0)
        return tide_fail(TIDE_ERROR_IO, "checkpoint %.900s: can't be locked: %s", save->tmp_path,
                         strerror(error));
    const tide_status status = write_locked(save, path, saved);
    tide_owner_release(save->files, save->tmp_path, lock);
    return status;
}

/* Step 8. `keep` includes the new checkpoint, which `folder` does not list, since the list is older, and not
 * the best one. */
static void remove_oldest(const saving *save, unsigned keep, tide_checkpoint_saved *saved)
{
    const tide_folder *folder = &save->folder;
    for (size_t i = folder->step_count; keep > 0 && i > keep - 1; i--) {
        if (folder->steps[i - 1] == save->manifest.state.best_step)
            continue;
        if (tide_folder_remove_step(folder, folder->steps[i - 1]) == TIDE_OK)
            saved->removed++;
        else
            warn(saved);
    }
}

static tide_status save_into(saving *save, unsigned keep, tide_checkpoint_saved *saved)
{
    uint64_t step = save->manifest.state.step;
    tide_status status = prepare_folder(save, step);
    if (status != TIDE_OK)
        return status;
    remove_stale(save, saved);
    tide_folder_tmp_path(&save->folder, step, save->files->process_id(save->files->context), save->tmp_path);
    tide_folder_step_path(&save->folder, step, saved->path);
    status = write_checkpoint(save, saved->path, saved);
    if (status == TIDE_OK)
        remove_oldest(save, keep, saved);
    return status;
}

static tide_status save_all(const tide_files *files, const char *dir, const tide_train_state *state,
                            const tide_checkpoint_tensors *tensors, bool weights_only, unsigned keep,
                            tide_checkpoint_read read, void *context, tide_checkpoint_saved *saved)
{
    if (!tide_train_state_is_valid(state))
        return tide_fail(TIDE_ERROR_ARGUMENT,
                         "checkpoint folder %.900s: the training state has values that can't be saved", dir);
    tide_status status = tide_checkpoint_tensors_check(tensors);
    if (status != TIDE_OK)
        return status;
    saving *save = calloc(1, sizeof *save);
    tide_checkpoint_saved result = {.bytes = 0};
    if (save == NULL)
        return tide_fail(TIDE_ERROR_NO_MEMORY, "checkpoint folder %.900s: no memory to save", dir);
    save->files = files;
    save->tensors = tensors;
    save->read = read;
    save->read_context = context;
    save->manifest.state = *state;
    save->manifest.weights_only = weights_only;
    save->buffer_elements = tide_checkpoint_buffer_elements(tensors);
    save->buffer = malloc(save->buffer_elements * sizeof *save->buffer);
    if (save->buffer == NULL) {
        status =
            tide_fail(TIDE_ERROR_NO_MEMORY, "checkpoint folder %.900s: no memory for a buffer of %zu bytes",
                      dir, save->buffer_elements * sizeof *save->buffer);
        goto free_save;
    }
    status = name_frozen(save);
    if (status == TIDE_OK)
        status = tide_folder_open(files, dir, &save->folder);
    if (status != TIDE_OK)
        goto free_buffer;
    status = save_into(save, keep, &result);
    if (status == TIDE_OK && saved != NULL)
        *saved = result;
    tide_folder_close(&save->folder);
free_buffer:
    free(save->manifest.frozen);
    free(save->buffer);
free_save:
    free(save);
    return status;
}

tide_status tide_checkpoint_save(const tide_files *files, const char *dir, const tide_train_state *state,
                                 const tide_checkpoint_tensors *tensors, unsigned keep,
                                 tide_checkpoint_read read, void *context, tide_checkpoint_saved *saved)
{
    return save_all(files, dir, state, tensors, false, keep, read, context, saved);
}

tide_status tide_checkpoint_save_weights(const tide_files *files, const char *dir,
                                         const tide_train_state *state,
                                         const tide_checkpoint_tensors *tensors, unsigned keep,
                                         tide_checkpoint_read read, void *context,
                                         tide_checkpoint_saved *saved)
{
    return save_all(files, dir, state, tensors, true, keep, read, context, saved);
}

/* ---- size ---- */

static tide_status value_bytes(const tide_checkpoint_tensors *tensors, tide_value value, uint64_t *bytes)
{
    char *header;
    size_t header_bytes;
    const tide_status status = tide_checkpoint_header_make(tensors, value, &header, &header_bytes);
    if (status != TIDE_OK)
        return status;
    free(header);
    *bytes += header_bytes;
    for (size_t i = 0; i < tensors->count; i++)
        if (tide_checkpoint_tensor_has(&tensors->tensors[i], value))
            *bytes += tide_checkpoint_tensor_elements(&tensors->tensors[i]) * sizeof(float);
    return TIDE_OK;
}

tide_status tide_checkpoint_bytes(const tide_checkpoint_tensors *tensors, bool weights_only, uint64_t *bytes)
{
    const tide_manifest manifest = {.weights_only = weights_only};
    uint64_t made = MANIFEST_BYTES;
    tide_status status = tide_checkpoint_tensors_check(tensors);
    for (size_t i = 0; i < tensors->count && status == TIDE_OK; i++)
        made += tensors->tensors[i].frozen ? strlen(tensors->tensors[i].name) + NAME_BYTES : 0;
    for (tide_value value = TIDE_VALUE_MASTER; value < tide_manifest_end(&manifest) && status == TIDE_OK;
         value++)
        status = value_bytes(tensors, value, &made);
    if (status == TIDE_OK)
        *bytes = made;
    return status;
}
