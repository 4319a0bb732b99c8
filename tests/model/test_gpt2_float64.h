/* The loss of GPT-2 in float64, as finite differences need it. It is written from the formulas with plain
 * loops, and uses of src/ only the sizes. */
#ifndef TIDE_TESTS_TEST_GPT2_FLOAT64_H
#define TIDE_TESTS_TEST_GPT2_FLOAT64_H

#include "src/model/params.h"

/* The mean cross entropy in nats. params[tide_model_param_index] are in creation order; inputs and targets
 * have [sequences x seq_len]. `logits` (may be NULL) gets [sequences x seq_len, vocab_size]. */
double float64_gpt2_loss(const tide_model_config *config, double *const *params, const int32_t *inputs,
                         const int32_t *targets, uint32_t sequences, uint32_t seq_len, double *logits);

#endif
