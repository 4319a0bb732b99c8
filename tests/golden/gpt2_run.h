/* The golden GPT-2 in a trainer, about to make PyTorch's run, with some params frozen. For tests with test_trainer_fixture.h's
 * folder; failures fail the test. */
#ifndef TIDE_TESTS_GOLDEN_GPT2_RUN_H
#define TIDE_TESTS_GOLDEN_GPT2_RUN_H

#include "src/train/trainer.h"
#include "tests/golden/gpt2_golden.h"

tide_trainer *golden_run_open(tide_dtype dtype, const char *const *freeze, uint32_t freeze_count);

#endif
