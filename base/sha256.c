/* SHA-256 by the letters of FIPS 180-4, section 6.2. It hashes one file of some MB when a run starts, so it
 * is written to be read. */
#include "base/sha256.h"

#include "base/minmax.h"

#include <string.h>

/* The first 32 bits of the fractional parts of the cube roots of the first 64 primes (section 4.2.2). */
static const uint32_t constants[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

static uint32_t rotate(uint32_t word, unsigned bits)
{
    return word >> bits | word << (32 - bits);
}

/* W of section 6.2.2, step 1. */
static void schedule(const uint8_t *block, uint32_t w[64])
{
    for (int t = 0; t < 16; t++)
        w[t] = (uint32_t)block[4 * t] << 24 | (uint32_t)block[4 * t + 1] << 16 |
               (uint32_t)block[4 * t + 2] << 8 | (uint32_t)block[4 * t + 3];
    for (int t = 16; t < 64; t++) {
        const uint32_t near = w[t - 2], far = w[t - 15];
        const uint32_t near_sigma = rotate(near, 17) ^ rotate(near, 19) ^ near >> 10;
        const uint32_t far_sigma = rotate(far, 7) ^ rotate(far, 18) ^ far >> 3;
        w[t] = near_sigma + w[t - 7] + far_sigma + w[t - 16];
    }
}

static void block_add(uint32_t state[8], const uint8_t *block)
{
    uint32_t w[64], v[8]; /* v: the working variables a to h */
    schedule(block, w);
    memcpy(v, state, sizeof v);
    for (int t = 0; t < 64; t++) {
        const uint32_t a = v[0], e = v[4];
        const uint32_t choice = (e & v[5]) ^ (~e & v[6]), majority = (a & v[1]) ^ (a & v[2]) ^ (v[1] & v[2]);
        const uint32_t first =
            v[7] + (rotate(e, 6) ^ rotate(e, 11) ^ rotate(e, 25)) + choice + constants[t] + w[t];
        const uint32_t second = (rotate(a, 2) ^ rotate(a, 13) ^ rotate(a, 22)) + majority;
        memmove(v + 1, v, 7 * sizeof *v);
        v[4] += first;
        v[0] = first + second;
    }
    for (int i = 0; i < 8; i++)
        state[i] += v[i];
}

void tide_sha256_begin(tide_sha256 *hash)
{
    *hash = (tide_sha256){.state = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c,
                                    0x1f83d9ab, 0x5be0cd19}};
}

void tide_sha256_add(tide_sha256 *hash, const void *bytes, size_t count)
{
    const uint8_t *from = bytes;
    while (count > 0) {
        const size_t filled = hash->bytes % TIDE_SHA256_BLOCK_BYTES;
        const size_t part = tide_min_u64(count, TIDE_SHA256_BLOCK_BYTES - filled);
        memcpy(hash->block + filled, from, part);
        if (filled + part == TIDE_SHA256_BLOCK_BYTES)
            block_add(hash->state, hash->block);
        hash->bytes += part;
        from += part;
        count -= part;
    }
}

void tide_sha256_end(tide_sha256 *hash, uint8_t digest[TIDE_SHA256_BYTES])
{
    static const uint8_t padding[TIDE_SHA256_BLOCK_BYTES] = {0x80};
    const uint64_t bits = 8 * hash->bytes;
    const size_t filled = hash->bytes % TIDE_SHA256_BLOCK_BYTES;
    uint8_t length[8];
    for (int i = 0; i < 8; i++)
        length[i] = (uint8_t)(bits >> (56 - 8 * i));
    tide_sha256_add(hash, padding, filled < 56 ? 56 - filled : 120 - filled);
    tide_sha256_add(hash, length, sizeof length);
    for (int i = 0; i < TIDE_SHA256_BYTES; i++)
        digest[i] = (uint8_t)(hash->state[i / 4] >> (24 - i % 4 * 8));
}
