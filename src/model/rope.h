/* Rotary positions: the frequencies that a config asks for, and their table of cosines and sines.
 *
 *     default  f(i) = theta^(-2 i / d), i < d / 2, where d is the head's width
 *     linear   f(i) / factor
 *     llama3   by the wavelength L = 2 pi / f: f if L is short, f / factor if it is long, else a mixture
 *     yarn     by the dimension: f for the first, f / factor for the last, a ramp in between; cosine and sine
 *              are multiplied by attention_factor (Peng et al. 2023, "YaRN")
 *
 * Frequencies and angles are computed in fp32, as transformers does, so that far positions have the same
 * angles, too. */
#ifndef TIDE_MODEL_ROPE_H
#define TIDE_MODEL_ROPE_H

#include "src/model/config.h"

/* Fill frequencies[head_width / 2]. */
void tide_rope_frequencies(const tide_model_config *config, float *frequencies);

/* Fill table[positions, head_width] as tide_rope_args expects it: a row has a position's cosines, then its
 * sines. */
void tide_rope_table(const tide_model_config *config, uint64_t positions, float *table);

/* YaRN's attention_factor for a config.json that gives none; pass 0 for an mscale that it does not give. */
double tide_rope_yarn_attention(double factor, double mscale, double mscale_all_dim);

#endif
