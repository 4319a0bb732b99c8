/* Checks a checkpoint's files. A load ends at the first fault; the check reports the faults of every file, so
 * that a user can see how much of a damaged checkpoint is left. It does not interpret values: if a file's
 * checksum is that of the manifest, every byte is as it was saved. */
#include "src/checkpoint/check.h"

#include "src/checkpoint/folder.h"
#include "src/checkpoint/manifest.h"
#include "src/safetensors/safetensors.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BUFFER_BYTES = 4 << 20, ASIDE_MAX = 1000 };

typedef struct looking {
    const tide_files *files;
    const char *path;
    tide_checkpoint_depth depth;
    void *buffer; /* NULL: only sizes are checked */
    tide_checkpoint_progress progress;
    void *context;
    uint64_t read_bytes, total_bytes;
    tide_checkpoint_check *check;
} looking;

static void tell(void *context, uint64_t bytes)
{
    looking *look = context;
    look->read_bytes += bytes;
    if (look->progress != NULL)
        look->progress(look->context, look->read_bytes, look->total_bytes);
}

static tide_checkpoint_file_check *entry_add(looking *look, const char *name)
{
    assert(look->check->file_count < sizeof look->check->files / sizeof look->check->files[0]);
    tide_checkpoint_file_check *entry = &look->check->files[look->check->file_count++];
    *entry = (tide_checkpoint_file_check){.name = name};
    return entry;
}

static void entry_end(tide_checkpoint_file_check *entry, tide_status status)
{
    entry->status = status;
    if (status != TIDE_OK)
        snprintf(entry->message, sizeof entry->message, "%s", tide_message());
}

/* If the folder is called step-N, the manifest must be that of step N. */
static tide_status step_check(const looking *look, const tide_manifest *manifest)
{
    uint64_t step;
    if (!tide_folder_step_of(look->path, &step) || step == manifest->state.step)
        return TIDE_OK;
    return tide_fail(TIDE_ERROR_CORRUPT, "checkpoint %.900s: its manifest is that of step %" PRIu64,
                     look->path, manifest->state.step);
}

static bool look_at_manifest(looking *look, tide_manifest *manifest)
{
    tide_checkpoint_check *check = look->check;
    tide_checkpoint_file_check *entry = entry_add(look, TIDE_MANIFEST_NAME);
    tide_file file;
    tide_status status = tide_manifest_open(look->files, look->path, TIDE_MANIFEST_NAME, &file);
    if (status == TIDE_OK) {
        entry->bytes = file.bytes;
        tide_file_close(&file);
        status = tide_manifest_read(look->files, look->path, manifest);
    }
    check->has_state = status == TIDE_OK;
    if (status == TIDE_OK)
        status = step_check(look, manifest);
    entry_end(entry, status);
    check->bytes += entry->bytes;
    return check->has_state;
}

/* The number of fp32 elements in model.safetensors, by its size: before them it has the header's length and
 * the header. */
static uint64_t elements_of(const tide_file *file)
{
    uint64_t header_bytes = 0;
    if (tide_safetensors_length(file, &header_bytes) != TIDE_OK)
        return 0;
    return (file->bytes - TIDE_SAFETENSORS_LENGTH_BYTES - header_bytes) / sizeof(float);
}

/* Does the check read the value's whole file, for its checksum? */
static bool reads(const looking *look, tide_value value)
{
    return look->depth == TIDE_CHECKPOINT_BYTES ||
           (look->depth == TIDE_CHECKPOINT_PARAMS && value == TIDE_VALUE_MASTER);
}

static void look_at_value(looking *look, tide_value value, const tide_manifest_file *expected)
{
    tide_checkpoint_file_check *entry = entry_add(look, tide_checkpoint_file(value));
    tide_file file;
    tide_status status = tide_manifest_open(look->files, look->path, entry->name, &file);
    if (status == TIDE_OK) {
        entry->bytes = file.bytes;
        status = tide_manifest_size_check(&file, expected);
    }
    if (status == TIDE_OK && reads(look, value))
        status = tide_manifest_checksum_check(&file, expected, look->buffer, BUFFER_BYTES, tell, look);
    if (status == TIDE_OK && value == TIDE_VALUE_MASTER)
        look->check->params = elements_of(&file);
    tide_file_close(&file);
    entry_end(entry, status);
    look->check->bytes += entry->bytes;
}

static void look_at_all(looking *look)
{
    tide_checkpoint_check *check = look->check;
    tide_manifest manifest = {.frozen = NULL};
    if (!look_at_manifest(look, &manifest))
        return;
    check->state = manifest.state;
    check->weights_only = manifest.weights_only;
    check->frozen_tensors = manifest.frozen_count;
    for (tide_value value = TIDE_VALUE_MASTER; value < TIDE_VALUE_COUNT; value++)
        look->total_bytes += reads(look, value) ? manifest.files[value].bytes : 0;
    for (tide_value value = TIDE_VALUE_MASTER; value < tide_manifest_end(&manifest); value++)
        look_at_value(look, value, &manifest.files[value]);
    free(manifest.frozen);
}

const tide_checkpoint_file_check *tide_checkpoint_check_first(const tide_checkpoint_check *check)
{
    for (unsigned i = 0; i < check->file_count; i++)
        if (check->files[i].status != TIDE_OK)
            return &check->files[i];
    return NULL;
}

/* Summarizes the files' results. A lack of memory is no fault of the checkpoint: then the whole check
 * fails. */
static tide_status verdict(tide_checkpoint_check *check)
{
    check->sound = tide_checkpoint_check_first(check) == NULL;
    for (unsigned i = 0; i < check->file_count; i++) {
        const tide_checkpoint_file_check *file = &check->files[i];
        if (file->status == TIDE_ERROR_NO_MEMORY)
            return tide_fail(file->status, "%s", file->message);
        check->damaged |= file->status == TIDE_ERROR_CORRUPT || file->status == TIDE_ERROR_IO;
    }
    return TIDE_OK;
}

tide_status tide_checkpoint_check_run(const tide_files *files, const char *path, tide_checkpoint_depth depth,
                                      tide_checkpoint_progress progress, void *context,
                                      tide_checkpoint_check *check)
{
    tide_checkpoint_check made = {.sound = false};
    looking look = {.files = files,
                    .path = path,
                    .depth = depth,
                    .progress = progress,
                    .context = context,
                    .check = &made};
    const bool quick = depth == TIDE_CHECKPOINT_SIZES;
    if (strlen(path) + 64 > TIDE_CHECKPOINT_PATH_BYTES)
        return tide_fail(TIDE_ERROR_ARGUMENT, "checkpoint: its path must have at most %d bytes, not %zu",
                         TIDE_CHECKPOINT_PATH_BYTES - 64, strlen(path));
    look.buffer = quick ? NULL : malloc(BUFFER_BYTES);
    if (!quick && look.buffer == NULL)
        return tide_fail(TIDE_ERROR_NO_MEMORY, "checkpoint %.900s: no memory for a buffer of %d bytes", path,
                         BUFFER_BYTES);
    look_at_all(&look);
    free(look.buffer);
    const tide_status status = verdict(&made);
    if (status == TIDE_OK)
        *check = made;
    return status;
}

/* ---- out of the way ---- */

/* Tries step-N.damaged, step-N.damaged-2, ...: the system refuses to rename onto a folder that has files. */
tide_status tide_checkpoint_set_aside(const tide_files *files, const char *path,
                                      char aside[TIDE_CHECKPOINT_PATH_BYTES])
{
    char to[TIDE_CHECKPOINT_PATH_BYTES], folder[TIDE_CHECKPOINT_PATH_BYTES];
    int error = EEXIST;
    for (unsigned n = 1; n <= ASIDE_MAX && (error == EEXIST || error == ENOTEMPTY); n++) {
        char tail[16] = "";
        if (n > 1)
            snprintf(tail, sizeof tail, "-%u", n);
        if ((size_t)snprintf(to, sizeof to, "%s.damaged%s", path, tail) >= sizeof to)
            return tide_fail(TIDE_ERROR_ARGUMENT, "checkpoint: the path %.900s is too long", path);
        error = files->rename(files->context, path, to);
    }
    if (error == 0) {
        tide_folder_parent(path, folder);
        error = files->sync_folder(files->context, folder);
    }
    if (error != 0)
        return tide_fail(TIDE_ERROR_IO, "checkpoint %.900s: can't be set aside: %s", path, strerror(error));
    memcpy(aside, to, sizeof to);
    return TIDE_OK;
}
