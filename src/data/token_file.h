/* One open file of tokens: a text, a shard, or tokens without a header.
 *
 * Its content must stay what it was at open: verify tells (of a large file, whose fingerprint is a sample, by its time of change). The file may be unlinked or renamed meanwhile.
 */
#ifndef TIDE_DATA_TOKEN_FILE_H
#define TIDE_DATA_TOKEN_FILE_H

#include "src/data/data.h"

#include <time.h>

typedef struct tide_token_file {
    char *path; /* owned; for messages */
    int descriptor;
    tide_data_format format;
    uint64_t file_bytes;               /* at open */
    struct timespec modified, changed; /* the file's times when its content was last seen to be as at open */
    uint64_t first_byte;               /* of token 0 */
    uint64_t token_count;              /* at least 1 */
    uint32_t token_bytes;              /* of each: 1, 2 or 4 */
    uint64_t hash_before, hash_behind; /* what tide_token_file_fingerprint was given, and gave */
} tide_token_file;

/* Open and validate, see tide_data_open: IO, CORRUPT, NO_MEMORY. On failure *file is unchanged. */
TIDE_NODISCARD tide_status tide_token_file_open(const char *path, tide_data_encoding encoding,
                                                tide_token_file *file);

void tide_token_file_close(tide_token_file *file);

/* Copy tokens [first, first + count) as int32. CORRUPT if one is not below vocab_size (names file, position,
 * token), or the file ends before; IO. */
TIDE_NODISCARD tide_status tide_token_file_copy(const tide_token_file *file, uint64_t first, uint64_t count,
                                                uint32_t vocab_size, int32_t *tokens);

/* Check the same without a copy. */
TIDE_NODISCARD tide_status tide_token_file_check(const tide_token_file *file, uint64_t first, uint64_t count,
                                                 uint32_t vocab_size);

/* Chain *hash with the number of tokens and their content: all of it up to 64 MiB, else 64 windows. IO,
 * CORRUPT (the file ends before): *hash is unchanged. */
TIDE_NODISCARD tide_status tide_token_file_hash(const tide_token_file *file, uint64_t *hash);

/* The same, and keep it for verify. Once, after open. */
TIDE_NODISCARD tide_status tide_token_file_fingerprint(tide_token_file *file, uint64_t *hash);

/* CORRUPT if the file has another size than at open, or was written to and has another hash: what was read
 * before this call is then not to be trusted. IO. Costs one fstat, and one hash after the file's times have
 * changed. */
TIDE_NODISCARD tide_status tide_token_file_verify(tide_token_file *file);

#endif
