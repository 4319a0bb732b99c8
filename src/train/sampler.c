/* The sampler draws one uniform number and walks the cumulative distribution in token order, in float64. It
 * finds the top-k threshold, the k-th largest logit, by sorting a copy of the logits: this takes a few
 * milliseconds for 50257 tokens, little beside a forward pass of the whole model. */
#include "src/train/sampler.h"

#include "src/data/random.h"

#include <math.h>
#include <stdlib.h>

tide_status tide_sampler_init(tide_sampler *sampler, uint32_t vocab_size, uint32_t top_k, double temperature,
                              uint64_t seed, uint32_t sample)
{
    if (!isfinite(temperature) || temperature < 0)
        return tide_fail(TIDE_ERROR_ARGUMENT, "sampling temperature %g: it must be 0 or more", temperature);
    float *ranked = malloc(vocab_size * sizeof *ranked);
    if (!ranked)
        return tide_fail(TIDE_ERROR_NO_MEMORY, "no memory to sample from %u tokens", vocab_size);
    *sampler = (tide_sampler){.vocab_size = vocab_size,
                              .top_k = top_k,
                              .temperature = temperature,
                              .seed = seed,
                              .sample = sample,
                              .ranked = ranked};
    return TIDE_OK;
}

void tide_sampler_free(tide_sampler *sampler)
{
    free(sampler->ranked);
    sampler->ranked = NULL;
}

static float possible(float logit)
{
    return isfinite(logit) ? logit : -INFINITY;
}

static int compare_falling(const void *left, const void *right)
{
    const float a = *(const float *)left, b = *(const float *)right;
    return (a < b) - (a > b);
}

/* The smallest logit among the top k; tokens with smaller ones are not candidates. */
static float threshold(tide_sampler *sampler, const float *logits)
{
    if (sampler->top_k == 0 || sampler->top_k >= sampler->vocab_size)
        return -INFINITY;
    for (uint32_t i = 0; i < sampler->vocab_size; i++)
        sampler->ranked[i] = possible(logits[i]);
    qsort(sampler->ranked, sampler->vocab_size, sizeof *sampler->ranked, compare_falling);
    return sampler->ranked[sampler->top_k - 1];
}

static uint32_t likeliest(const tide_sampler *sampler, const float *logits)
{
    uint32_t best = 0;
    for (uint32_t i = 1; i < sampler->vocab_size; i++)
        best = possible(logits[i]) > possible(logits[best]) ? i : best;
    return best;
}

/* A token's unnormalised probability; the likeliest token's is 1. */
static double weight(const tide_sampler *sampler, float logit, float best, float least)
{
    if (!isfinite(logit) || logit < least)
        return 0;
    return exp(((double)logit - (double)best) / sampler->temperature);
}

int32_t tide_sampler_pick(tide_sampler *sampler, const float *logits, uint64_t position)
{
    const uint32_t best = likeliest(sampler, logits);
    if (sampler->temperature == 0 || !isfinite(logits[best]))
        return (int32_t)best;
    const float least = threshold(sampler, logits);
    double total = 0;
    for (uint32_t i = 0; i < sampler->vocab_size; i++)
        total += weight(sampler, logits[i], logits[best], least);
    const double uniform =
        tide_random_uniform(sampler->seed, TIDE_RANDOM_USE_SAMPLE, sampler->sample, position);
    double passed = 0;
    for (uint32_t i = 0; i < sampler->vocab_size; i++) {
        passed += weight(sampler, logits[i], logits[best], least);
        if (passed > uniform * total)
            return (int32_t)i;
    }
    return (int32_t)best;
}
