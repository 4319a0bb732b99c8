/* Picks a token from logits by temperature, top-k and a random number. The random number depends only on
 * seed, sample and position, so the same model always writes the same text.
 */
#ifndef TIDE_TRAIN_SAMPLER_H
#define TIDE_TRAIN_SAMPLER_H

#include "tidepool/status.h"

#include <stdint.h>

typedef struct tide_sampler {
    uint32_t vocab_size;
    uint32_t top_k;     /* 0: all tokens */
    double temperature; /* 0: always the likeliest token; above 0: logits are divided by it */
    uint64_t seed;
    uint32_t sample;
    float *ranked; /* [vocab_size], scratch space that the sampler owns */
} tide_sampler;

/* NO_MEMORY; ARGUMENT for a temperature that is negative or not finite. */
TIDE_NODISCARD tide_status tide_sampler_init(tide_sampler *sampler, uint32_t vocab_size, uint32_t top_k,
                                             double temperature, uint64_t seed, uint32_t sample);
void tide_sampler_free(tide_sampler *sampler);

/* Pick the token at `position` (0, 1, ...) of the sample, in [0, vocab_size). Tokens that tie for the last
 * place of top_k are all candidates. A logit that is not finite counts as impossible; if all are, the result
 * is token 0. */
int32_t tide_sampler_pick(tide_sampler *sampler, const float *logits, uint64_t position);

#endif
