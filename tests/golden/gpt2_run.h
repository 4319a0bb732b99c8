/* A trainer with the golden GPT-2, ready to make the same steps as PyTorch, optionally with frozen params.
 * Needs the folder of test_trainer_fixture.h. A failure fails the test. */
#ifndef TIDE_TESTS_GOLDEN_GPT2_RUN_H
#define TIDE_TESTS_GOLDEN_GPT2_RUN_H

#include "src/train/trainer.h"
#include "tests/golden/gpt2_golden.h"

tide_trainer *golden_run_open(tide_dtype dtype, const char *const *freeze, uint32_t freeze_count);

#endif
