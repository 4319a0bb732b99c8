/* The header of a safetensors file, which says what tensors the file holds:
 *
 *     | header bytes, uint64 LE | JSON, padded with spaces | data, offsets count from here |
 *
 * The parser checks that a header agrees with itself and with the file's size. Its caller checks that the
 * tensors are the wanted ones. */
#ifndef TIDE_WEIGHTS_HEADER_H
#define TIDE_WEIGHTS_HEADER_H

#include "src/weights/tensor.h"

enum { TIDE_WEIGHTS_LENGTH_BYTES = 8, TIDE_WEIGHTS_SHAPE_SHOWN = 4 };

typedef struct tide_weights_entry {
    const char *name, *dtype; /* as they stand in the file */
    uint64_t rank;
    uint64_t shape[TIDE_WEIGHTS_SHAPE_SHOWN]; /* of a higher rank only the first dimensions */
    uint64_t begin, end;                      /* bytes, from the data's start */
} tide_weights_entry;

typedef struct tide_weights_header {
    tide_weights_entry *entries; /* in the order of their data, which they cover without gap and overlap */
    size_t count;
    void *json; /* owns the names */
} tide_weights_header;

/* Parse a header's text, which `data_bytes` of data follow; messages call the file `origin`. CORRUPT: not
 * JSON, no table of tensors, a key twice, tensors that do not cover the data or whose sizes do not fit their
 * shapes. NO_MEMORY. On success free it with tide_weights_header_free. */
TIDE_NODISCARD tide_status tide_weights_header_parse(const char *text, size_t bytes, uint64_t data_bytes,
                                                     const char *label, tide_weights_header *header);
void tide_weights_header_free(tide_weights_header *header);

bool tide_weights_header_has(const tide_weights_header *header, const char *name);

#endif
