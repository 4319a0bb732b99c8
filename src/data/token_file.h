/* One open file of tokens: a text, a shard with or without documents, or tokens without a header.
 *
 * The file's content must stay as it was at open; tide_token_file_verify checks this. The fingerprint of a
 * file over 64 MiB is only a sample, so verify also checks when such a file was last written to. The file may
 * be unlinked or renamed while it is open.
 */
#ifndef TIDE_DATA_TOKEN_FILE_H
#define TIDE_DATA_TOKEN_FILE_H

#include "src/data/data.h"

#include <time.h>

typedef struct tide_token_file {
    char *path; /* owned; used in messages */
    int descriptor;
    tide_data_format format;
    uint64_t file_bytes;               /* at open */
    struct timespec modified, changed; /* the file's times when verify last found its content unchanged */
    uint64_t first_byte;               /* offset of token 0 */
    uint64_t token_count;              /* at least 1 */
    uint32_t token_bytes;              /* of each token: 1, 2 or 4 */
    uint64_t content_bytes;            /* from first_byte on: the tokens and all that belongs to them */
    uint64_t documents;                /* 0: the file does not say where documents begin */
    uint64_t mask_byte, starts_byte;   /* offsets; mask_byte 0: every token is learned */
    uint8_t tokenizer[TIDE_DATA_TOKENIZER_BYTES]; /* of the tokenizer's hash; zeros: not known */
    uint64_t hash_before, hash_behind;            /* *hash before and after tide_token_file_fingerprint */
} tide_token_file;

/* Open and validate, see tide_data_open: IO, CORRUPT, NO_MEMORY. On failure *file is unchanged. */
TIDE_NODISCARD tide_status tide_token_file_open(const char *path, tide_data_encoding encoding,
                                                tide_token_file *file);

/* Would tide_token_file_open take the file as text, if its encoding is AUTO? Reads its begin only. IO,
 * CORRUPT (it is empty), NO_MEMORY. */
TIDE_NODISCARD tide_status tide_token_file_is_text(const char *path, bool *is_text);

void tide_token_file_close(tide_token_file *file);

/* Copy tokens [first, first + count) as int32. CORRUPT: one is not below vocab_size (the message names file,
 * position and token), or the file has become too short. IO. */
TIDE_NODISCARD tide_status tide_token_file_copy(const tide_token_file *file, uint64_t first, uint64_t count,
                                                uint32_t vocab_size, int32_t *tokens);

/* Copy tokens as targets: -1 in the place of those that are not learned. Statuses of tide_token_file_copy. */
TIDE_NODISCARD tide_status tide_token_file_targets(const tide_token_file *file, uint64_t first,
                                                   uint64_t count, uint32_t vocab_size, int32_t *targets);

/* How many of these tokens are learned. IO, CORRUPT (the file has become too short). */
TIDE_NODISCARD tide_status tide_token_file_learned(const tide_token_file *file, uint64_t first,
                                                   uint64_t count, uint64_t *learned);

/* Where documents [first, first + count) begin. Statuses of tide_token_file_learned. */
TIDE_NODISCARD tide_status tide_token_file_starts(const tide_token_file *file, uint64_t first, uint64_t count,
                                                  uint64_t *starts);

/* Check these tokens as tide_token_file_copy does, without copying them. */
TIDE_NODISCARD tide_status tide_token_file_check(const tide_token_file *file, uint64_t first, uint64_t count,
                                                 uint32_t vocab_size);

/* Chain *hash with the number of tokens and their content: all of it up to 64 MiB, else 64 windows. IO,
 * CORRUPT (the file has become too short): *hash is unchanged. */
TIDE_NODISCARD tide_status tide_token_file_hash(const tide_token_file *file, uint64_t *hash);

/* Like tide_token_file_hash, but keeps the result for tide_token_file_verify. Call it once, after open. */
TIDE_NODISCARD tide_status tide_token_file_fingerprint(tide_token_file *file, uint64_t *hash);

/* Check that the file is as it was at open. CORRUPT: its size or hash differs, or it is larger than 64 MiB
 * and was written to; data read before this call can't be trusted then. IO. Takes one fstat, and one hash if
 * the file's times have changed. */
TIDE_NODISCARD tide_status tide_token_file_verify(tide_token_file *file);

#endif
