/* One file of tokens, memory-mapped read-only: a text file or a shard. */
#ifndef TIDE_DATA_TOKEN_FILE_H
#define TIDE_DATA_TOKEN_FILE_H

#include "src/data/data.h"

typedef struct tide_token_file {
    char *path; /* owned; for messages */
    tide_data_format format;
    const uint8_t *map;
    size_t map_bytes;
    const uint8_t *tokens; /* in the map, past the header, little-endian */
    uint64_t token_count;  /* at least 1 */
    uint32_t token_bytes;  /* of each: 1, 2 or 4 */
} tide_token_file;

/* Map and validate, see tide_data_open: IO, CORRUPT, NO_MEMORY. On failure *file is unchanged. */
TIDE_NODISCARD tide_status tide_token_file_open(const char *path, tide_token_file *file);

void tide_token_file_close(tide_token_file *file);

/* Copy tokens [first, first + count) as int32. CORRUPT if one is not below vocab_size: names file, position,
 * token. */
TIDE_NODISCARD tide_status tide_token_file_copy(const tide_token_file *file, uint64_t first, uint64_t count,
                                                uint32_t vocab_size, int32_t *tokens);

/* Check the same without a copy. */
TIDE_NODISCARD tide_status tide_token_file_check(const tide_token_file *file, uint64_t first, uint64_t count,
                                                 uint32_t vocab_size);

/* Token at `position`, unchecked. */
static inline uint32_t tide_token_file_at(const tide_token_file *file, uint64_t position)
{
    const uint8_t *at = file->tokens + file->token_bytes * position;
    if (file->token_bytes == 1)
        return at[0];
    const uint32_t low = (uint32_t)at[0] | (uint32_t)at[1] << 8;
    return file->token_bytes == 2 ? low : low | (uint32_t)at[2] << 16 | (uint32_t)at[3] << 24;
}

#endif
