/* model.safetensors.index.json: which file holds which tensor, {"weight_map": {name: file}}. Its metadata is
 * not read, because the sizes there are often wrong. */
#ifndef TIDE_WEIGHTS_INDEX_H
#define TIDE_WEIGHTS_INDEX_H

#include "src/safetensors/safetensors.h"

typedef struct tide_weights_index {
    const char **files; /* each once, sorted bytewise */
    size_t file_count;
    void *json; /* owns the names */
} tide_weights_index;

/* Parse an index's text; messages call the file `label`. CORRUPT: not JSON, no weight_map, a key twice, a
 * file that is not a plain name inside the folder. NO_MEMORY. On success free it with
 * tide_weights_index_free. */
TIDE_NODISCARD tide_status tide_weights_index_parse(const char *text, size_t bytes, const char *label,
                                                    tide_weights_index *index);
void tide_weights_index_free(tide_weights_index *index);

/* The file that holds the tensor of this name; NULL: the index does not name it. */
const char *tide_weights_index_file(const tide_weights_index *index, const char *name);

/* The first tensor that the index places in the file although the file's header lacks it; NULL: there is
 * none. */
const char *tide_weights_index_lacking(const tide_weights_index *index, const char *file,
                                       const tide_safetensors_header *header);

#endif
