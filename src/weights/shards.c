#include "src/weights/shards.h"

#include "src/safetensors/json.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { NONE = 0 };

/* Sets the file of each tensor, counted from 1, and returns the number of files. A file gets its number when
 * it is full. */
static size_t shards_deal(const tide_weights_tensor *tensors, size_t count, tide_weights_dtype dtype,
                          uint64_t max_shard_bytes, size_t *shard_of)
{
    size_t closed = 0;
    uint64_t filled = 0;
    for (size_t i = 0; i < count; i++)
        shard_of[i] = NONE;
    size_t open_from = 0; /* tensors [open_from, i) without a file are in the file being filled */
    for (size_t i = 0; i < count; i++) {
        const uint64_t bytes = tide_weights_elements(&tensors[i]) * tide_weights_dtype_bytes(dtype);
        if (bytes > max_shard_bytes) {
            shard_of[i] = ++closed;
            continue;
        }
        if (filled > 0 && filled + bytes > max_shard_bytes) {
            closed++;
            for (; open_from < i; open_from++) {
                if (shard_of[open_from] == NONE)
                    shard_of[open_from] = closed;
            }
            filled = 0;
        }
        filled += bytes;
    }
    closed += filled > 0 ? 1 : 0;
    for (; open_from < count; open_from++) {
        if (shard_of[open_from] == NONE)
            shard_of[open_from] = closed;
    }
    return closed;
}

tide_status tide_weights_shards_make(const tide_weights_tensor *tensors, size_t count,
                                     tide_weights_dtype dtype, uint64_t max_shard_bytes,
                                     tide_weights_shards *shards)
{
    tide_weights_named *by_name;
    const tide_status status = tide_weights_by_name(tensors, count, &by_name);
    if (status != TIDE_OK)
        return status;
    tide_weights_shards made = {.tensors = malloc(count * sizeof *made.tensors)};
    size_t *shard_of = malloc(count * sizeof *shard_of);
    if (made.tensors == NULL || shard_of == NULL)
        goto no_memory;
    made.count = shards_deal(tensors, count, dtype, max_shard_bytes, shard_of);
    made.first = calloc(made.count + 1, sizeof *made.first);
    if (made.first == NULL)
        goto no_memory;
    /* Sorts the tensors by file with a counting sort; by_name has sorted them by name. At the end first[k] is
     * the end of file k, counted from 1. */
    for (size_t i = 0; i < count; i++) {
        made.bytes += tide_weights_elements(&tensors[i]) * tide_weights_dtype_bytes(dtype);
        made.first[shard_of[i]]++;
    }
    for (size_t shard = 1; shard <= made.count; shard++)
        made.first[shard] += made.first[shard - 1];
    for (size_t i = 0; i < count; i++) {
        const size_t tensor = by_name[i].tensor;
        made.tensors[made.first[shard_of[tensor] - 1]++] = tensor;
    }
    for (size_t shard = made.count; shard > 0; shard--)
        made.first[shard] = made.first[shard - 1];
    made.first[0] = 0;
    free(shard_of);
    free(by_name);
    *shards = made;
    return TIDE_OK;
no_memory:
    free(shard_of);
    free(by_name);
    tide_weights_shards_free(&made);
    return tide_fail(TIDE_ERROR_NO_MEMORY, "weights: no memory to deal %zu tensors out to files", count);
}

void tide_weights_shards_free(tide_weights_shards *shards)
{
    free(shards->tensors);
    free(shards->first);
    *shards = (tide_weights_shards){0};
}

void tide_weights_shard_name(const tide_weights_shards *shards, size_t shard,
                             char name[TIDE_WEIGHTS_SHARD_NAME_BYTES])
{
    if (shards->count == 1)
        snprintf(name, TIDE_WEIGHTS_SHARD_NAME_BYTES, "%s", TIDE_WEIGHTS_SINGLE_NAME);
    else
        snprintf(name, TIDE_WEIGHTS_SHARD_NAME_BYTES, "model-%05zu-of-%05zu.safetensors", shard + 1,
                 shards->count);
}

static int map_fill(json_t *map, const tide_weights_shards *shards, const tide_weights_tensor *tensors)
{
    int failed = 0;
    for (size_t shard = 0; shard < shards->count; shard++) {
        char name[TIDE_WEIGHTS_SHARD_NAME_BYTES];
        tide_weights_shard_name(shards, shard, name);
        for (size_t i = shards->first[shard]; i < shards->first[shard + 1] && !failed; i++)
            failed = json_object_set_new(map, tensors[shards->tensors[i]].name, json_string(name));
    }
    return failed;
}

tide_status tide_weights_shards_index(const tide_weights_shards *shards, const tide_weights_tensor *tensors,
                                      char **index)
{
    json_t *root =
        json_pack("{s:{s:I}, s:{}}", "metadata", "total_size", (json_int_t)shards->bytes, "weight_map");
    char *text = NULL;
    if (root != NULL && map_fill(json_object_get(root, "weight_map"), shards, tensors) == 0)
        text = tide_json_object_text(root, JSON_INDENT(2) | JSON_SORT_KEYS | JSON_ENSURE_ASCII);
    json_decref(root);
    if (text == NULL)
        return tide_fail(TIDE_ERROR_NO_MEMORY, "weights: no memory for the names in " TIDE_WEIGHTS_INDEX_NAME
                                               ", or they are not UTF-8");
    *index = text;
    return TIDE_OK;
}
