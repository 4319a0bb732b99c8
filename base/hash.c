#include "base/hash.h"

#include <assert.h>

/* splitmix64's finalizer: a bijection of 64 bits. */
static uint64_t mix64(uint64_t value)
{
    value = (value ^ value >> 30) * 0xBF58476D1CE4E5B9u;
    value = (value ^ value >> 27) * 0x94D049BB133111EBu;
    return value ^ value >> 31;
}

uint64_t tide_hash_u64(uint64_t hash, uint64_t value)
{
    return mix64((hash ^ value) + 0x9E3779B97F4A7C15u);
}

/* One multiplication per eight bytes mixes little; tide_hash_end's finalizer mixes the result well.
 */
uint64_t tide_hash_words(uint64_t hash, const void *bytes, size_t count)
{
    assert(count % 8 == 0);
    for (const uint8_t *at = bytes, *end = at + count; at < end; at += 8) {
        uint64_t word = 0;
        for (int i = 7; i >= 0; i--)
            word = word << 8 | at[i];
        hash = (hash ^ word) * 0x9E3779B97F4A7C15u;
        hash ^= hash >> 32;
    }
    return hash;
}

uint64_t tide_hash_end(uint64_t hash, const void *bytes, size_t count, uint64_t total)
{
    const uint8_t *at = bytes;
    uint64_t tail = 0;
    const size_t in_words = count / 8 * 8;
    hash = tide_hash_words(hash, bytes, in_words);
    for (size_t i = count; i > in_words; i--)
        tail = tail << 8 | at[i - 1];
    return tide_hash_u64(tide_hash_u64(hash, tail), total);
}
