/* The small GPT-2 of make_gpt2_golden.py: its sizes, its params and tokens, which come from the same integer
 * hash, and PyTorch's results for it. */
#ifndef TIDE_TESTS_GOLDEN_GPT2_GOLDEN_H
#define TIDE_TESTS_GOLDEN_GPT2_GOLDEN_H

#include "src/model/params.h"

enum { GOLDEN_SEQUENCES = 8, GOLDEN_SEQ_LEN = 32, GOLDEN_STEPS = 20, GOLDEN_WARMUP = 4, GOLDEN_PARAMS = 28 };
enum { GOLDEN_TOKENS = GOLDEN_SEQUENCES * GOLDEN_SEQ_LEN };

typedef struct golden_track {
    double losses[GOLDEN_STEPS];
    double norms[GOLDEN_STEPS]; /* before clipping */
} golden_track;

typedef struct gpt2_golden {
    golden_track track;
    float *gradients[GOLDEN_PARAMS]; /* of step 0; params in creation order */
} gpt2_golden;

enum { GOLDEN_FROZEN_SETS = 4, GOLDEN_PATTERNS_MAX = 3, GOLDEN_SAMPLES = 64 };

/* A run with some params frozen. */
typedef struct golden_frozen {
    const char *patterns[GOLDEN_PATTERNS_MAX];
    uint32_t pattern_count;
    bool is_frozen[GOLDEN_PARAMS];
    golden_track track;
    /* after the last step, every (elements / SAMPLES)-th; zeros for frozen params */
    float weights[GOLDEN_PARAMS][GOLDEN_SAMPLES];
} golden_frozen;

tide_model_config golden_config(void);

/* Initial values of the `index`-th param of golden_config(), or of the same model with a smaller vocabulary,
 * whose wte has the first rows. `values` has space for its elements. */
void golden_param_values(const tide_model_config *config, size_t index, float *values);

/* The GOLDEN_TOKENS + 1 tokens: sequence s reads tokens 32 s to 32 s + 31 and predicts the ones after
 * each. */
void golden_token_stream(int32_t tokens[GOLDEN_TOKENS + 1]);

/* Fails the test if the file is missing or incomplete. */
void golden_load(gpt2_golden *golden);
void golden_free(gpt2_golden *golden);
void golden_frozen_load(golden_frozen sets[GOLDEN_FROZEN_SETS]);

#endif
