/* Writes one file after the other: creates it, writes the header and the tensors' values through the buffer,
 * syncs and closes it. Then it writes the index, and syncs the folder. The index comes last, so that a folder
 * with an index has all files that the index names.
 *
 * The buffer holds a part of a tensor as fp32 and, behind that, the same values rounded. */
#include "src/weights/writer.h"

#include "base/write_error.h"
#include "kernels/cpu/team.h"
#include "src/files/printable.h"
#include "src/weights/convert.h"
#include "src/weights/shards.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    PATH_BYTES = 4096,
    BUFFER_BYTES = 4 << 20,
    SLICE_ELEMENTS = 64 << 10,
    /* Upper bounds of text: of a tensor's entries in header and index without its name, and of a header's
     * frame. */
    ENTRY_TEXT_BYTES = 320,
    NAME_ESCAPED_BYTES = 6, /* of one byte of a name, when escaped */
};

typedef struct writing {
    const tide_files *files;
    const char *folder;
    const tide_weights_output *output;
    tide_weights_shards shards;
    float *values;
    uint16_t *rounded; /* behind the values; NULL for F32 */
    size_t buffer_elements;
    uint64_t done_bytes;
} writing;

/* ---- a file ---- */

static tide_status write_fail(const char *path, const char *what, int error)
{
    return tide_fail(TIDE_ERROR_IO, "weights %.600s: can't be %s: %s", path, what, tide_write_error(error));
}

static tide_status write_all(const writing *it, int handle, const char *path, const void *bytes, size_t count)
{
    while (count > 0) {
        size_t done = 0;
        const int error = it->files->write(it->files->context, handle, bytes, count, &done);
        if (error != 0)
            return write_fail(path, "written", error);
        bytes = (const char *)bytes + done;
        count -= done;
    }
    return TIDE_OK;
}

static tide_status file_create(const writing *it, const char *name, char path[PATH_BYTES], int *handle)
{
    const int length = snprintf(path, PATH_BYTES, "%s/%s", it->folder, name);
    if (length < 0 || length >= PATH_BYTES)
        return tide_fail(TIDE_ERROR_ARGUMENT, "weights %.600s: the path is longer than %d bytes", it->folder,
                         PATH_BYTES - 1);
    const int error = it->files->create(it->files->context, path, handle);
    return error == 0 ? TIDE_OK : write_fail(path, "created", error);
}

/* Syncs and closes the file. If something failed before, `status` is that failure: the file is only closed,
 * and the failure returned. */
static tide_status file_finish(const writing *it, int handle, const char *path, tide_status status)
{
    const int sync_error = status == TIDE_OK ? it->files->sync(it->files->context, handle) : 0;
    const int close_error = it->files->close(it->files->context, handle);
    if (status != TIDE_OK)
        return status;
    if (sync_error != 0)
        return write_fail(path, "synced", sync_error);
    return close_error == 0 ? TIDE_OK : write_fail(path, "closed", close_error);
}

/* ---- values ---- */

typedef struct rounding {
    tide_weights_dtype dtype;
    const float *values;
    uint16_t *rounded;
    size_t count;
} rounding;

static void slice_round(const void *arguments, size_t index)
{
    const rounding *it = arguments;
    const size_t first = index * SLICE_ELEMENTS;
    const size_t count = it->count - first < SLICE_ELEMENTS ? it->count - first : SLICE_ELEMENTS;
    tide_weights_narrow(it->dtype, it->values + first, it->rounded + first, count);
}

static tide_status values_round(const writing *it, const tide_weights_tensor *tensor, uint64_t first,
                                size_t count)
{
    const tide_weights_dtype dtype = it->output->dtype;
    const size_t bad = dtype == TIDE_WEIGHTS_F16 ? tide_weights_f16_overflow(it->values, count) : count;
    if (bad < count)
        return tide_fail(TIDE_ERROR_ARGUMENT,
                         "weights: element %" PRIu64
                         " of tensor %s is %g, fp16 ends at 65504: use bf16 or fp32",
                         first + bad, tide_printable(tensor->name).text, (double)it->values[bad]);
    const rounding round = {dtype, it->values, it->rounded, count};
    tide_team_run((count + SLICE_ELEMENTS - 1) / SLICE_ELEMENTS, count, slice_round, &round);
    return TIDE_OK;
}

static tide_status tensor_write(writing *it, size_t number, int handle, const char *path)
{
    const tide_weights_output *output = it->output;
    const tide_weights_tensor *tensor = &output->tensors[number];
    const uint64_t elements = tide_weights_elements(tensor);
    const size_t element_bytes = tide_weights_dtype_bytes(output->dtype);
    for (uint64_t first = 0; first < elements; first += it->buffer_elements) {
        const uint64_t left = elements - first;
        const size_t count = left < it->buffer_elements ? (size_t)left : it->buffer_elements;
        tide_status status = output->get(output->context, number, first, count, it->values);
        if (status == TIDE_OK && it->rounded != NULL)
            status = values_round(it, tensor, first, count);
        if (status == TIDE_OK)
            status = write_all(it, handle, path, it->rounded != NULL ? (const void *)it->rounded : it->values,
                               count * element_bytes);
        if (status != TIDE_OK)
            return status;
        it->done_bytes += count * element_bytes;
        if (output->progress != NULL)
            output->progress(output->progress_context, "weights", it->done_bytes, it->shards.bytes);
    }
    return TIDE_OK;
}

/* ---- files ---- */

static tide_status shard_write(writing *it, size_t shard)
{
    const tide_weights_output *output = it->output;
    char name[TIDE_WEIGHTS_SHARD_NAME_BYTES], path[PATH_BYTES];
    char *header;
    size_t header_bytes;
    int handle;
    tide_status status =
        tide_weights_shard_header(&it->shards, shard, output->tensors, output->dtype, &header, &header_bytes);
    if (status != TIDE_OK)
        return status;
    tide_weights_shard_name(&it->shards, shard, name);
    status = file_create(it, name, path, &handle);
    if (status != TIDE_OK)
        goto free_header;
    status = write_all(it, handle, path, header, header_bytes);
    for (size_t i = it->shards.first[shard]; i < it->shards.first[shard + 1] && status == TIDE_OK; i++)
        status = tensor_write(it, it->shards.tensors[i], handle, path);
    status = file_finish(it, handle, path, status);
free_header:
    free(header);
    return status;
}

static tide_status index_write(const writing *it)
{
    char path[PATH_BYTES];
    char *index;
    int handle;
    tide_status status = tide_weights_shards_index(&it->shards, it->output->tensors, &index);
    if (status != TIDE_OK)
        return status;
    status = file_create(it, TIDE_WEIGHTS_INDEX_NAME, path, &handle);
    if (status == TIDE_OK) {
        status = write_all(it, handle, path, index, strlen(index));
        if (status == TIDE_OK)
            status = write_all(it, handle, path, "\n", 1);
        status = file_finish(it, handle, path, status);
    }
    free(index);
    return status;
}

static tide_status files_write(writing *it)
{
    for (size_t shard = 0; shard < it->shards.count; shard++) {
        const tide_status status = shard_write(it, shard);
        if (status != TIDE_OK)
            return status;
    }
    if (it->shards.count > 1) {
        const tide_status status = index_write(it);
        if (status != TIDE_OK)
            return status;
    }
    const int error = it->files->sync_folder(it->files->context, it->folder);
    return error == 0 ? TIDE_OK : write_fail(it->folder, "synced", error);
}

static uint64_t most_elements(const tide_weights_output *output)
{
    uint64_t most = 0;
    for (size_t i = 0; i < output->count; i++) {
        const uint64_t elements = tide_weights_elements(&output->tensors[i]);
        most = elements > most ? elements : most;
    }
    return most;
}

static uint64_t shard_limit(const tide_weights_output *output)
{
    return output->max_shard_bytes != 0 ? output->max_shard_bytes : UINT64_MAX;
}

tide_status tide_weights_write(const tide_files *files, const char *folder, const tide_weights_output *output)
{
    writing it = {.files = files, .folder = folder, .output = output};
    if (output->dtype >= TIDE_WEIGHTS_DTYPES)
        return tide_fail(TIDE_ERROR_ARGUMENT, "weights %.600s: %d is no dtype", folder, (int)output->dtype);
    tide_status status = tide_weights_shards_make(output->tensors, output->count, output->dtype,
                                                  shard_limit(output), &it.shards);
    if (status != TIDE_OK)
        return status;
    const bool rounds = output->dtype != TIDE_WEIGHTS_F32;
    const size_t value_bytes = sizeof *it.values + (rounds ? sizeof *it.rounded : 0);
    const uint64_t most = most_elements(output);
    it.buffer_elements = most < BUFFER_BYTES / value_bytes ? (size_t)most : BUFFER_BYTES / value_bytes;
    it.values = malloc(it.buffer_elements * value_bytes);
    if (it.values == NULL) {
        status = tide_fail(TIDE_ERROR_NO_MEMORY, "weights %.600s: no memory for a buffer of %zu elements",
                           folder, it.buffer_elements);
        goto free_shards;
    }
    it.rounded = rounds ? (uint16_t *)(void *)(it.values + it.buffer_elements) : NULL;
    status = files_write(&it);
    free(it.values);
free_shards:
    tide_weights_shards_free(&it.shards);
    return status;
}

uint64_t tide_weights_output_bytes(const tide_weights_output *output)
{
    uint64_t bytes = ENTRY_TEXT_BYTES;
    for (size_t i = 0; i < output->count; i++) {
        const tide_weights_tensor *tensor = &output->tensors[i];
        /* The name is written twice, in a header and in the index. */
        bytes += tide_weights_elements(tensor) * tide_weights_dtype_bytes(output->dtype) + ENTRY_TEXT_BYTES +
                 2 * NAME_ESCAPED_BYTES * strlen(tensor->name);
    }
    return bytes;
}
