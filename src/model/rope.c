#include "src/model/rope.h"

#include <math.h>

static const double pi = 3.14159265358979323846;

/* The dimension whose angle makes `turns` full turns within the original context. */
static double yarn_dimension(const tide_model_config *config, double turns)
{
    const tide_rope *rope = &config->rope;
    return config->head_width * log(rope->original_context / (turns * 2 * pi)) / (2 * log(rope->theta));
}

static double yarn(const tide_model_config *config, uint32_t i, double frequency)
{
    const tide_rope *rope = &config->rope;
    double low = yarn_dimension(config, rope->beta_fast), high = yarn_dimension(config, rope->beta_slow);
    if (!rope->exact) {
        low = floor(low);
        high = ceil(high);
    }
    low = fmax(low, 0);
    high = fmin(high, config->head_width - 1.0);
    if (low == high)
        high += 0.001; /* the ramp becomes a step */
    const double ramp = fmin(fmax((i - low) / (high - low), 0), 1);
    return frequency / rope->factor * ramp + frequency * (1 - ramp);
}

static double llama3(const tide_rope *rope, double frequency)
{
    const double wavelength = 2 * pi / frequency;
    if (wavelength > rope->original_context / rope->low_factor)
        return frequency / rope->factor;
    if (wavelength < rope->original_context / rope->high_factor)
        return frequency;
    const double share =
        (rope->original_context / wavelength - rope->low_factor) / (rope->high_factor - rope->low_factor);
    return (1 - share) * frequency / rope->factor + share * frequency;
}

void tide_rope_frequencies(const tide_model_config *config, float *frequencies)
{
    const tide_rope *rope = &config->rope;
    for (uint32_t i = 0; i < config->head_width / 2; i++) {
        const double plain = (float)pow(rope->theta, -2.0 * i / config->head_width);
        frequencies[i] = (float)(rope->kind == TIDE_ROPE_LINEAR   ? plain / rope->factor
                                 : rope->kind == TIDE_ROPE_LLAMA3 ? llama3(rope, plain)
                                 : rope->kind == TIDE_ROPE_YARN   ? yarn(config, i, plain)
                                                                  : plain);
    }
}

void tide_rope_table(const tide_model_config *config, uint64_t positions, float *table)
{
    const uint32_t half = config->head_width / 2;
    const double size = config->rope.kind == TIDE_ROPE_YARN ? config->rope.attention_factor : 1;
    if (positions == 0)
        return;
    tide_rope_frequencies(config, table + (positions - 1) * config->head_width);
    for (uint64_t position = 0; position < positions; position++) {
        /* The last row, which is filled last, holds the frequencies until then. */
        float *row = table + position * config->head_width;
        const float *frequencies = table + (positions - 1) * config->head_width;
        for (uint32_t i = 0; i < half; i++) {
            const float angle = frequencies[i] * (float)position;
            row[half + i] = (float)(sin(angle) * size);
            row[i] = (float)(cos(angle) * size);
        }
    }
}

/* 1 for a factor of 1 or less; above that it grows with the factor's logarithm. */
static double yarn_scale(double factor, double mscale)
{
    return factor <= 1 ? 1 : 0.1 * mscale * log(factor) + 1;
}

double tide_rope_yarn_attention(double factor, double mscale, double mscale_all_dim)
{
    if (mscale != 0 && mscale_all_dim != 0)
        return yarn_scale(factor, mscale) / yarn_scale(factor, mscale_all_dim);
    return yarn_scale(factor, 1);
}
