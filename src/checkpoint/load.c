/* Finding and loading a checkpoint.
 *
 * Load opens the three tensor files and keeps them open; reads each one to the end for its size and checksum;
 * checks its header against the model's tensors (a moments' file's against those that the manifest does not call frozen:
 * what is frozen now is asked only when values are pushed); and only when all three are sound begins to push. So a file
 * is read twice, the second time mostly from the page cache: that is the price of changing nothing before
 * everything is known to be good.
 *
 * Finding: a folder called step-N was complete when it got its name (save.c), so what is damaged now was
 * damaged later, by hand or by the storage. Passing over it silently would lose work that may be recoverable
 * and hide a failing disk, so it is an error that names the folder and the way out. The exception is a folder
 * without a manifest: a removal or a copy that was interrupted leaves that, and it never claims to be a
 * checkpoint.
 */
#include "src/checkpoint/checkpoint.h"

#include "src/checkpoint/crc32c.h"
#include "src/checkpoint/folder.h"
#include "src/checkpoint/manifest.h"
#include "src/checkpoint/safetensors.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { NO_HANDLE = -1, NAMES_TOLD = 2 };

/* ---- one file ---- */

typedef struct file_reader {
    const tide_files *files;
    char path[TIDE_CHECKPOINT_PATH_BYTES];
    int handle;
    uint64_t bytes;
} file_reader;

static tide_status reader_fail(const file_reader *reader, const char *what, int error)
{
    if (error == ENOENT)
        return tide_fail(TIDE_ERROR_CORRUPT, "checkpoint %.900s: the file is missing", reader->path);
    return tide_fail(TIDE_ERROR_IO, "checkpoint %.900s: can't be %s: %s", reader->path, what,
                     strerror(error));
}

static void reader_close(file_reader *reader)
{
    if (reader->handle != NO_HANDLE)
        reader->files->close(reader->files->context, reader->handle); /* read only: nothing can be lost */
    reader->handle = NO_HANDLE;
}

static tide_status reader_open(const tide_files *files, const char *step_path, const char *name,
                               file_reader *reader)
{
    reader->files = files;
    reader->handle = NO_HANDLE;
    tide_folder_file_path(step_path, name, reader->path);
    int error = files->open(files->context, reader->path, &reader->handle);
    if (error == 0)
        error = files->size(files->context, reader->handle, &reader->bytes);
    if (error == 0)
        return TIDE_OK;
    reader_close(reader);
    return reader_fail(reader, "opened", error);
}

/* All of [offset, offset + count), or a failure. */
static tide_status reader_get(const file_reader *reader, uint64_t offset, void *bytes, size_t count)
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

static tide_status reader_size_check(const file_reader *reader, const tide_manifest_file *file)
{
    if (reader->bytes == file->bytes)
        return TIDE_OK;
    return tide_fail(TIDE_ERROR_CORRUPT,
                     "checkpoint %.900s: %s, it has %" PRIu64 " bytes instead of %" PRIu64, reader->path,
                     reader->bytes < file->bytes ? "truncated" : "too long", reader->bytes, file->bytes);
}

/* ---- the manifest ---- */

static tide_status manifest_read(const tide_files *files, const char *step_path, tide_manifest *manifest)
{
    file_reader reader;
    tide_status status = reader_open(files, step_path, TIDE_MANIFEST_NAME, &reader);
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
    status = reader_get(&reader, 0, text, (size_t)reader.bytes);
    if (status == TIDE_OK)
        status = tide_manifest_parse(text, (size_t)reader.bytes, reader.path, manifest);
close_reader:
    free(text);
    reader_close(&reader);
    return status;
}

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
        status = manifest_read(files, path, &manifest);
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
    for (tide_value value = TIDE_VALUE_MASTER; value < TIDE_VALUE_COUNT && status == TIDE_OK; value++) {
        file_reader reader;
        status = reader_open(files, path, tide_checkpoint_file(value), &reader);
        if (status == TIDE_OK)
            status = reader_size_check(&reader, &manifest->files[value]);
        reader_close(&reader);
    }
    return status;
}

/* The damage, and the way out. */
static tide_status refuse_damaged(tide_status status, const char *path)
{
    char message[1024];
    if (status != TIDE_ERROR_CORRUPT)
        return status;
    snprintf(message, sizeof message, "%s", tide_message());
    return tide_fail(status, "%.600s (to go on from an earlier one, move %.300s away)", message, path);
}

static tide_status newest_check(const tide_folder *folder, const char *path)
{
    tide_manifest manifest = {.frozen = NULL};
    tide_status status = manifest_read(folder->files, path, &manifest);
    if (status == TIDE_OK && manifest.state.step != folder->steps[0])
        status = tide_fail(TIDE_ERROR_CORRUPT, "checkpoint %.900s: its manifest is that of step %" PRIu64,
                           path, manifest.state.step);
    if (status == TIDE_OK)
        status = sizes_check(folder->files, path, &manifest);
    free(manifest.frozen);
    return refuse_damaged(status, path);
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
    return newest_check(folder, found->path);
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

/* ---- loading ---- */

typedef struct loading {
    const tide_checkpoint_tensors *tensors;
    tide_checkpoint_tensor *saved; /* the same, but frozen where they were when they were saved */
    tide_checkpoint_write write;
    tide_checkpoint_progress progress; /* or NULL */
    void *context;
    uint64_t read_bytes, files_bytes; /* so far, in the end twice; of all files */
    file_reader readers[TIDE_VALUE_COUNT];
    uint64_t data_starts[TIDE_VALUE_COUNT]; /* where a file's data begins */
    uint64_t *offsets;                      /* [value][tensor], from data_starts */
    float *buffer;
    size_t buffer_elements;
} loading;

static void load_tell(loading *load, uint64_t bytes)
{
    load->read_bytes += bytes;
    if (load->progress != NULL)
        load->progress(load->context, load->read_bytes / 2, load->files_bytes);
}

static tide_status checksum_check(loading *load, const file_reader *reader, const tide_manifest_file *file)
{
    uint32_t crc = 0;
    size_t buffer_bytes = load->buffer_elements * sizeof *load->buffer;
    for (uint64_t offset = 0; offset < reader->bytes; offset += buffer_bytes) {
        uint64_t left = reader->bytes - offset;
        size_t count = left < buffer_bytes ? (size_t)left : buffer_bytes;
        tide_status status = reader_get(reader, offset, load->buffer, count);
        if (status != TIDE_OK)
            return status;
        crc = tide_crc32c(crc, load->buffer, count);
        load_tell(load, count);
    }
    if (crc != file->crc32c)
        return tide_fail(TIDE_ERROR_CORRUPT,
                         "checkpoint %.900s: damaged, its checksum is %08" PRIx32 " instead of %08" PRIx32,
                         reader->path, crc, file->crc32c);
    return TIDE_OK;
}

/* The header of a value's file. That of MASTER comes first and is of this model: what the others lack or have too much beside
 * what the manifest calls frozen is damage. */
static tide_status text_check(const loading *load, tide_value value, const char *text, size_t bytes)
{
    const file_reader *reader = &load->readers[value];
    const size_t count = load->tensors->count;
    const tide_checkpoint_tensors saved = {load->saved, count};
    char message[1024];
    const tide_status status =
        tide_safetensors_header_check(text, bytes, reader->bytes - load->data_starts[value], reader->path,
                                      &saved, value, load->offsets + (size_t)value * count);
    if (status != TIDE_ERROR_MISMATCH || value == TIDE_VALUE_MASTER)
        return status;
    snprintf(message, sizeof message, "%s", tide_message());
    return tide_fail(TIDE_ERROR_CORRUPT, "%s, which its manifest does not say", message);
}

static tide_status header_check(loading *load, tide_value value)
{
    const file_reader *reader = &load->readers[value];
    uint8_t length[TIDE_SAFETENSORS_LENGTH_BYTES];
    tide_status status = reader_get(reader, 0, length, sizeof length);
    if (status != TIDE_OK)
        return status;
    uint64_t header_bytes = 0;
    for (int i = TIDE_SAFETENSORS_LENGTH_BYTES - 1; i >= 0; i--)
        header_bytes = header_bytes << 8 | length[i];
    if (header_bytes > TIDE_SAFETENSORS_HEADER_MAX_BYTES || header_bytes > reader->bytes - sizeof length)
        return tide_fail(TIDE_ERROR_CORRUPT,
                         "checkpoint %.900s: a header of %" PRIu64 " bytes in a file of %" PRIu64,
                         reader->path, header_bytes, reader->bytes);
    char *text = malloc((size_t)header_bytes + 1);
    if (text == NULL)
        return tide_fail(TIDE_ERROR_NO_MEMORY,
                         "checkpoint %.900s: no memory for its header of %" PRIu64 " bytes", reader->path,
                         header_bytes);
    load->data_starts[value] = sizeof length + header_bytes;
    status = reader_get(reader, sizeof length, text, (size_t)header_bytes);
    if (status == TIDE_OK)
        status = text_check(load, value, text, (size_t)header_bytes);
    free(text);
    return status;
}

static tide_status value_check(loading *load, const tide_files *files, const char *path, tide_value value,
                               const tide_manifest_file *file)
{
    file_reader *reader = &load->readers[value];
    tide_status status = reader_open(files, path, tide_checkpoint_file(value), reader);
    if (status == TIDE_OK)
        status = reader_size_check(reader, file);
    if (status == TIDE_OK)
        status = checksum_check(load, reader, file);
    if (status == TIDE_OK)
        status = header_check(load, value);
    if (status == TIDE_OK)
        load_tell(load, load->data_starts[value]);
    return status;
}

/* A range of one of a tensor's values from that value's file; of one that was frozen the moments are zero. */
static tide_status push_value(loading *load, size_t tensor, tide_value value, uint64_t first, uint64_t count)
{
    const size_t bytes = (size_t)count * sizeof(float);
    const uint64_t start =
        load->data_starts[value] + load->offsets[(size_t)value * load->tensors->count + tensor];
    tide_status status = TIDE_OK;
    if (tide_checkpoint_tensor_has(&load->saved[tensor], value))
        status = reader_get(&load->readers[value], start + first * sizeof(float), load->buffer, bytes);
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
    for (tide_value value = TIDE_VALUE_MASTER; value < TIDE_VALUE_COUNT && status == TIDE_OK; value++)
        status = value_check(load, files, path, value, &manifest->files[value]);
    for (size_t tensor = 0; tensor < load->tensors->count && status == TIDE_OK; tensor++)
        status = push_tensor(load, tensor);
    return status;
}

/* ---- what was frozen, and what is now ---- */

/* Names mostly come in the order of the tensors: the search begins behind the last one found. */
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
        load->saved[i].frozen = false;
    for (size_t i = 0; i < manifest->frozen_count; i++) {
        tide_checkpoint_tensor *tensor = find_saved(load, manifest->frozen[i], &from);
        if (tensor == NULL)
            return tide_fail(TIDE_ERROR_MISMATCH,
                             "checkpoint %.900s: its frozen tensor %.255s is none of the model's", path,
                             manifest->frozen[i]);
        if (tensor->frozen)
            return tide_fail(TIDE_ERROR_CORRUPT,
                             "checkpoint %.900s: its manifest says twice that %s is frozen", path,
                             tensor->name);
        tensor->frozen = true;
    }
    return TIDE_OK;
}

/* "frozen -> trained, with zero moments: 3 params (a, b, ...)" behind what the line says already. */
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

/* ---- all of it ---- */

static void loading_free(loading *load)
{
    if (load == NULL)
        return;
    for (tide_value value = TIDE_VALUE_MASTER; value < TIDE_VALUE_COUNT; value++)
        reader_close(&load->readers[value]);
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
        load->readers[value].handle = NO_HANDLE;
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
        status = manifest_read(files, path, &manifest);
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
        note_frozen(load, &differences);
        *state = manifest.state;
        if (changes != NULL)
            *changes = differences;
    }
    loading_free(load);
    free(manifest.frozen);
    return status;
}
