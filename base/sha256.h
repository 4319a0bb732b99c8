/* SHA-256 (FIPS 180-4), which names a tokenizer's file: a shard of tokens holds the hash of the
 * tokenizer.json that made it. */
#ifndef TIDE_BASE_SHA256_H
#define TIDE_BASE_SHA256_H

#include <stddef.h>
#include <stdint.h>

enum { TIDE_SHA256_BYTES = 32, TIDE_SHA256_BLOCK_BYTES = 64 };

typedef struct tide_sha256 {
    uint32_t state[8];
    uint64_t bytes;                         /* added so far */
    uint8_t block[TIDE_SHA256_BLOCK_BYTES]; /* the last bytes % 64 of them */
} tide_sha256;

void tide_sha256_begin(tide_sha256 *hash);
void tide_sha256_add(tide_sha256 *hash, const void *bytes, size_t count);
/* The hash of all bytes that were added. */
void tide_sha256_end(tide_sha256 *hash, uint8_t digest[TIDE_SHA256_BYTES]);

#endif
