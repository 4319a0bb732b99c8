/* Picks a token from logits: temperature, top-k, and a random number that is a function of seed, sample and
 * position alone, so the same model writes the same text whatever happened before.
 */
#ifndef TIDE_TRAIN_SAMPLER_H
#define TIDE_TRAIN_SAMPLER_H

#include "tidepool/status.h"

#include <stdint.h>

typedef struct tide_sampler {
    uint32_t vocab_size;
    uint32_t top_k;     /* 0: all tokens */
    double temperature; /* 0: the likeliest token; above 0: logits are divided by it */
    uint64_t seed;
    uint32_t sample;
    float *ranked; /* [vocab_size], the sampler's own */
} tide_sampler;

/* NO_MEMORY; ARGUMENT for a temperature that is negative or not finite. */
TIDE_NODISCARD tide_status tide_sampler_init(tide_sampler *sampler, uint32_t vocab_size, uint32_t top_k,
                                             double temperature, uint64_t seed, uint32_t sample);
void tide_sampler_free(tide_sampler *sampler);

/* The token at `position`, 0, 1, ... of the sample, in [0, vocab_size). Of equally likely tokens at the edge
 * of top_k all stay in. A logit that is not finite counts as impossible; if all are, token 0. */
int32_t tide_sampler_pick(tide_sampler *sampler, const float *logits, uint64_t position);

#endif
