/* A GPT-2's loss in float64, written from the formulas with plain loops and nothing of src/ but the sizes:
 * what finite differences need. */
#ifndef TIDE_TESTS_TEST_GPT2_FLOAT64_H
#define TIDE_TESTS_TEST_GPT2_FLOAT64_H

#include "src/model/params.h"

/* params[tide_model_param_index] in creation order; inputs and targets [sequences x seq_len]. Mean cross
 * entropy in nats. `logits` (may be NULL) gets [sequences x seq_len, vocab_size]. */
double float64_gpt2_loss(const tide_model_config *config, double *const *params, const int32_t *inputs,
                         const int32_t *targets, uint32_t sequences, uint32_t seq_len, double *logits);

#endif
