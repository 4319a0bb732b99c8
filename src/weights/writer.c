/* Writes one file after the other: creates it, writes the header and the tensors' values through the buffer,
 * syncs and closes it. Then it writes the index, and syncs the folder. The index comes last, so that a folder
 * with an index has all files that the index names.
 *
 * The buffer holds a part of a tensor as fp32 and, behind that, the same values rounded. */
#include "src/weights/writer.h"

#include "base/align.h"
#include "base/team.h"
#include "base/text.h"
#include "src/safetensors/safetensors.h"
#include "src/weights/convert.h"
#include "src/weights/shards.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum {
    BUFFER_BYTES = 4 << 20,
    SLICE_ELEMENTS = 64 << 10,
    /* an upper bound of the text of a tensor's entries in header and index, without its name; also of the
     * text around a header's entries */
    ENTRY_TEXT_BYTES = 320,
    NAME_ESCAPED_BYTES = 6, /* of one byte of a name, if it must be escaped */
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
    tide_team_run(tide_ceil_div(count, SLICE_ELEMENTS), count, slice_round, &round);
    return TIDE_OK;
}

static tide_status tensor_write(writing *it, size_t number, tide_file *file)
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
            status = tide_file_put(file, it->rounded != NULL ? (const void *)it->rounded : it->values,
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

static tide_status header_write(const writing *it, size_t shard, tide_file *file)
{
    const tide_weights_output *output = it->output;
    tide_safetensors_draft draft = tide_safetensors_draft_begin();
    char *header;
    size_t header_bytes;
    for (size_t i = it->shards.first[shard]; i < it->shards.first[shard + 1]; i++) {
        const tide_weights_tensor *tensor = &output->tensors[it->shards.tensors[i]];
        tide_safetensors_draft_add(&draft, tensor->name, tide_weights_dtype_name(output->dtype), tensor->rank,
                                   tensor->shape);
    }
    tide_status status = tide_safetensors_draft_end(&draft, "weights", &header, &header_bytes);
    if (status != TIDE_OK)
        return status;
    status = tide_file_put(file, header, header_bytes);
    free(header);
    return status;
}

static tide_status shard_write(writing *it, size_t shard)
{
    char name[TIDE_WEIGHTS_SHARD_NAME_BYTES];
    tide_file file;
    tide_weights_shard_name(&it->shards, shard, name);
    tide_status status = tide_file_create(it->files, "weights", it->folder, name, &file);
    if (status != TIDE_OK)
        return status;
    status = header_write(it, shard, &file);
    for (size_t i = it->shards.first[shard]; i < it->shards.first[shard + 1] && status == TIDE_OK; i++)
        status = tensor_write(it, it->shards.tensors[i], &file);
    return tide_file_finish(&file, status);
}

static tide_status index_write(const writing *it)
{
    char *index;
    tide_file file;
    tide_status status = tide_weights_shards_index(&it->shards, it->output->tensors, &index);
    if (status != TIDE_OK)
        return status;
    status = tide_file_create(it->files, "weights", it->folder, TIDE_WEIGHTS_INDEX_NAME, &file);
    if (status == TIDE_OK) {
        status = tide_file_put(&file, index, strlen(index));
        if (status == TIDE_OK)
            status = tide_file_put(&file, "\n", 1);
        status = tide_file_finish(&file, status);
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
    if (error != 0)
        return tide_fail(TIDE_ERROR_IO, "weights %.800s: can't be synced: %s", it->folder, strerror(error));
    return TIDE_OK;
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
