/* The header of a safetensors file, which says what tensors the file holds:
 *
 *     | header bytes, uint64 LE | JSON, padded with spaces to 8 bytes | data, offsets count from here |
 *
 * Checkpoints and folders of weights read and write their headers here. The reader checks that a header
 * agrees with itself and with the file's size. Its caller checks that the tensors are the wanted ones. */
#ifndef TIDE_SAFETENSORS_SAFETENSORS_H
#define TIDE_SAFETENSORS_SAFETENSORS_H

#include "src/safetensors/file.h"

enum {
    TIDE_SAFETENSORS_LENGTH_BYTES = 8,
    TIDE_SAFETENSORS_MAX_BYTES = 100000000, /* safetensors' own limit */
    TIDE_SAFETENSORS_SHAPE_SHOWN = 4,
    TIDE_SAFETENSORS_SHAPE_BYTES = 160,
};

typedef struct tide_safetensors_entry {
    const char *name, *dtype; /* as they stand in the file */
    uint64_t rank;
    uint64_t shape[TIDE_SAFETENSORS_SHAPE_SHOWN]; /* of a higher rank only the first dimensions */
    uint64_t begin, end;                          /* bytes, from the data's start */
} tide_safetensors_entry;

/* ---- reading ---- */

typedef struct tide_safetensors_header {
    /* sorted bytewise by name; together they cover the data without gap and overlap */
    tide_safetensors_entry *entries;
    size_t count;
    uint64_t data_start; /* offset in the file */
    void *json;          /* owns the names */
} tide_safetensors_header;

/* The most bytes of JSON that may describe a model of so many tensors. */
uint64_t tide_safetensors_most_bytes(size_t tensors);

/* Read the length of an open file's header. CORRUPT: the file ends before the header does, has a longer one
 * than the format allows, or is Git LFS's pointer to the file. IO. */
TIDE_NODISCARD tide_status tide_safetensors_length(const tide_file *file, uint64_t *header_bytes);

/* Read the header of an open file of a model of so many tensors. CORRUPT: as for tide_safetensors_length and
 * tide_safetensors_parse, or the header is too long for the model. IO, NO_MEMORY. On success free it with
 * tide_safetensors_free. */
TIDE_NODISCARD tide_status tide_safetensors_read(const tide_file *file, size_t tensors,
                                                 tide_safetensors_header *header);

/* Parse the text of the file's header. Uses the names and the size in `file`, and opens nothing. CORRUPT: not
 * JSON, no table of tensors, a key twice, tensors that do not cover the data or whose sizes do not fit their
 * shapes. NO_MEMORY. On success free it with tide_safetensors_free. */
TIDE_NODISCARD tide_status tide_safetensors_parse(const tide_file *file, const char *text, size_t bytes,
                                                  tide_safetensors_header *header);
void tide_safetensors_free(tide_safetensors_header *header);

/* The tensor of this name; NULL: the file lacks it. */
const tide_safetensors_entry *tide_safetensors_find(const tide_safetensors_header *header, const char *name);

/* MISMATCH: the tensor has another shape; the message has both. */
TIDE_NODISCARD tide_status tide_safetensors_shape_check(const tide_file *file,
                                                        const tide_safetensors_entry *entry, uint32_t rank,
                                                        const uint64_t *shape);

/* "[2, 3]"; of a rank over TIDE_SAFETENSORS_SHAPE_SHOWN the first dimensions. */
void tide_safetensors_shape_text(uint64_t rank, const uint64_t *shape,
                                 char text[TIDE_SAFETENSORS_SHAPE_BYTES]);

/* ---- writing ---- */

/* A header to which tensors are added, in the order of their data. */
typedef struct tide_safetensors_draft {
    void *json; /* NULL: no memory */
    uint64_t data_bytes;
    const char *twice; /* a name that was added twice; or NULL */
} tide_safetensors_draft;

tide_safetensors_draft tide_safetensors_draft_begin(void);

/* Add a tensor. `dtype` is the format's name of a dtype, such as "F32". The name must stay until
 * tide_safetensors_draft_end, which also reports a failure of this call. */
void tide_safetensors_draft_add(tide_safetensors_draft *draft, const char *name, const char *dtype,
                                uint32_t rank, const uint64_t *shape);

/* Make the header, preceded by its length, a block that the caller frees. Ends the draft in any case. `noun`
 * is the first word of messages. ARGUMENT: a name twice, or the header is longer than the format allows.
 * NO_MEMORY, also for a name that is not UTF-8. */
TIDE_NODISCARD tide_status tide_safetensors_draft_end(tide_safetensors_draft *draft, const char *noun,
                                                      char **header, size_t *header_bytes);

#endif
