/* Rotary positions: the frequencies that a config asks for, and their table of cosines and sines.
 *
 *     plain    f(i) = theta^(-2 i / d)                            i < d / 2, d the head's width
 *     linear   f(i) / factor
 *     llama3   by the wavelength L = 2 pi / f: f where L is short, f / factor where it is long, between them a mixture
 *     yarn     by the dimension: f for the first, f / factor for the last, a ramp between; cosine and sine times
 *              attention_factor (Peng et al. 2023, "YaRN")
 *
 * As Hugging Face's transformers compute them: frequencies and angles in fp32, so that long positions have the same angles.
 */
#ifndef TIDE_MODEL_ROPE_H
#define TIDE_MODEL_ROPE_H

#include "src/model/config.h"

/* frequencies[head_width / 2] */
void tide_rope_frequencies(const tide_model_config *config, float *frequencies);

/* table[positions, head_width]: of a position all cosines, then all sines, as tide_rope_args wants it. */
void tide_rope_table(const tide_model_config *config, uint64_t positions, float *table);

/* YaRN's attention_factor where none is given; 0 for a mscale that is not given. */
double tide_rope_yarn_attention(double factor, double mscale, double mscale_all_dim);

#endif
