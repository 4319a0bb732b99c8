/* Declarations that the files of token_file.h share.
 *
 *     token_file.c -> token_documents.c -> token_read.c
 */
#ifndef TIDE_DATA_TOKEN_FILE_INTERNAL_H
#define TIDE_DATA_TOKEN_FILE_INTERNAL_H

#include "src/data/token_file.h"

/* A shard with documents begins with these bytes. */
#define TIDE_TOKEN_DOCUMENTS_MAGIC "TIDETOK1"

enum { TIDE_TOKEN_PIECE_BYTES = 8192 /* read at once, into a buffer on the stack */ };

/* Little-endian integers, read byte by byte, so that the host's byte order does not matter (compilers turn
 * the loads into one). */
static inline uint32_t tide_load_u32(const uint8_t *bytes)
{
    return (uint32_t)bytes[0] | (uint32_t)bytes[1] << 8 | (uint32_t)bytes[2] << 16 | (uint32_t)bytes[3] << 24;
}

static inline uint64_t tide_load_u64(const uint8_t *bytes)
{
    return tide_load_u32(bytes) | (uint64_t)tide_load_u32(bytes + 4) << 32;
}

/* Read exactly these bytes of the file. IO; CORRUPT: it has become too short. */
TIDE_NODISCARD tide_status tide_token_file_read(const tide_token_file *file, uint64_t at, void *bytes,
                                                size_t count);

/* Describe and check a shard with documents, whose path, descriptor and size are set. IO, CORRUPT. */
TIDE_NODISCARD tide_status tide_token_documents_open(tide_token_file *file);

#endif
