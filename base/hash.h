/* A 64-bit hash of bytes, not cryptographic, independent of byte order. */
#ifndef TIDE_BASE_HASH_H
#define TIDE_BASE_HASH_H

#include <stddef.h>
#include <stdint.h>

/* Both hash bytes piece by piece: they return the hash of all pieces so far. `hash` is the result of the call
 * for the piece before; the first call takes any constant. tide_hash_words takes each piece but the last, a
 * multiple of 8 bytes; tide_hash_end takes the last piece, and the size of all pieces together as `total`.
 * The pieces into which the bytes are cut do not change the hash. */
uint64_t tide_hash_words(uint64_t hash, const void *bytes, size_t count);
uint64_t tide_hash_end(uint64_t hash, const void *bytes, size_t count, uint64_t total);

uint64_t tide_hash_u64(uint64_t hash, uint64_t value);

#endif
