#include "src/weights/index.h"

#include "base/text.h"
#include "src/safetensors/json.h"

#include <stdlib.h>
#include <string.h>

enum { NAME_MAX_BYTES = 255 };

/* Is this a file's name inside the folder, not a path to another one, and can messages print it? */
static bool name_is_plain(const char *name)
{
    return name[0] != '\0' && strchr(name, '/') == NULL && strcmp(name, ".") != 0 &&
           strcmp(name, "..") != 0 && strlen(name) <= NAME_MAX_BYTES && tide_is_printable(name);
}

static int compare_texts(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static tide_status files_collect(json_t *map, const char *label, tide_weights_index *index)
{
    const char *name;
    json_t *item;
    size_t count = 0;
    json_object_foreach(map, name, item)
    {
        const char *file = json_string_value(item);
        if (file == NULL || !name_is_plain(file))
            return tide_fail(
                TIDE_ERROR_CORRUPT,
                "weights %.600s: the file of tensor %s is %s, it must be a name inside the folder", label,
                tide_printable(name).text, file == NULL ? "not a text" : tide_printable(file).text);
        index->files[count++] = file;
    }
    qsort(index->files, count, sizeof *index->files, compare_texts);
    for (size_t i = 0; i < count; i++) {
        if (i == 0 || strcmp(index->files[i], index->files[index->file_count - 1]) != 0)
            index->files[index->file_count++] = index->files[i];
    }
    return TIDE_OK;
}

tide_status tide_weights_index_parse(const char *text, size_t bytes, const char *label,
                                     tide_weights_index *index)
{
    json_t *root = NULL;
    tide_status status = tide_json_object_parse(text, bytes, "weights", label, "it", &root);
    if (status != TIDE_OK)
        return status;
    tide_weights_index parsed = {.json = root};
    json_t *map = json_object_get(root, "weight_map");
    if (json_object_size(map) == 0) {
        status =
            tide_fail(TIDE_ERROR_CORRUPT, "weights %.600s: it has no weight_map of tensors and files", label);
        goto free_parsed;
    }
    parsed.files = malloc(json_object_size(map) * sizeof *parsed.files);
    if (parsed.files == NULL) {
        status = tide_fail(TIDE_ERROR_NO_MEMORY, "weights %.600s: no memory for its %zu tensors", label,
                           json_object_size(map));
        goto free_parsed;
    }
    status = files_collect(map, label, &parsed);
    if (status != TIDE_OK)
        goto free_parsed;
    *index = parsed;
    return TIDE_OK;
free_parsed:
    tide_weights_index_free(&parsed);
    return status;
}

void tide_weights_index_free(tide_weights_index *index)
{
    free(index->files);
    json_decref(index->json);
    *index = (tide_weights_index){0};
}

const char *tide_weights_index_file(const tide_weights_index *index, const char *name)
{
    return json_string_value(json_object_get(json_object_get(index->json, "weight_map"), name));
}

const char *tide_weights_index_lacking(const tide_weights_index *index, const char *file,
                                       const tide_safetensors_header *header)
{
    const char *name;
    json_t *item;
    json_object_foreach(json_object_get(index->json, "weight_map"), name, item)
    {
        if (strcmp(json_string_value(item), file) == 0 && tide_safetensors_find(header, name) == NULL)
            return name;
    }
    return NULL;
}
