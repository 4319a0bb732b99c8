/* Philox 4x32-10 (Salmon et al., SC'11), for callers that need one block and for kernels that make many at
 * once. */
#ifndef TIDE_BASE_PHILOX_H
#define TIDE_BASE_PHILOX_H

#include <stdint.h>

enum { TIDE_PHILOX_ROUNDS = 10 };

/* Apply round `round`, counted from 0, to a block: before the first round the four words are the block's
 * counter, after the last round its random words. */
static inline void tide_philox_round(uint32_t *word0, uint32_t *word1, uint32_t *word2, uint32_t *word3,
                                     const uint32_t key[2], uint32_t round)
{
    const uint64_t product0 = (uint64_t)0xD2511F53u * *word0, product1 = (uint64_t)0xCD9E8D57u * *word2;
    *word0 = (uint32_t)(product1 >> 32) ^ *word1 ^ (key[0] + round * 0x9E3779B9u);
    *word1 = (uint32_t)product1;
    *word2 = (uint32_t)(product0 >> 32) ^ *word3 ^ (key[1] + round * 0xBB67AE85u);
    *word3 = (uint32_t)product0;
}

#endif
