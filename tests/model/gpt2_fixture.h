/* The golden GPT-2, of any vocabulary, on a pool whose update callback catches every stored gradient and leaves the
 * weights alone. Failures fail the test. */
#ifndef TIDE_TESTS_GPT2_FIXTURE_H
#define TIDE_TESTS_GPT2_FIXTURE_H

#include "src/model/decoder.h"
#include "tests/golden/gpt2_golden.h"

/* Of every step in fp16; its gradients are caught without it. */
#define GPT2_FIXTURE_FP16_LOSS_SCALE 4096.0F

typedef struct gpt2_fixture {
    tide_pool *pool;
    tide_decoder *model;
    tide_model_config config;
    tide_dtype dtype;
    uint64_t elements[GOLDEN_PARAMS];        /* in files */
    uint64_t memory_elements[GOLDEN_PARAMS]; /* in the pool */
    float *values[GOLDEN_PARAMS];            /* [elements] */
    float *gradients[GOLDEN_PARAMS];         /* [memory_elements] */
    uint64_t caught[GOLDEN_PARAMS];          /* elements */
    bool update_fails;                       /* as a callback's failure: it poisons the pool */
    int32_t tokens[GOLDEN_TOKENS + 1];
} gpt2_fixture;

void ok(tide_status status);

/* Its vocabulary is golden_config()'s, and its values too. */
void gpt2_fixture_open(gpt2_fixture *r, tide_dtype dtype, bool recompute, uint32_t micro_batch_sequences);
void gpt2_fixture_open_on(gpt2_fixture *r, const tide_kernels *kernels, tide_dtype dtype, bool recompute,
                          uint32_t micro_batch_sequences);
/* Of a smaller vocabulary: the first of the golden wte's rows, and tokens modulo it; micro-batches of 2 sequences. */
void gpt2_fixture_open_small(gpt2_fixture *r, const tide_kernels *kernels, tide_dtype dtype, bool recompute,
                             uint32_t vocabulary);
void gpt2_fixture_close(gpt2_fixture *r);

/* All params' masters, and zero moments, through the model. */
void gpt2_fixture_set_values(gpt2_fixture *r);

/* One training step without clipping: the loss, and all gradients caught. */
double gpt2_fixture_step(gpt2_fixture *r);
double gpt2_fixture_evaluate(gpt2_fixture *r);

#endif
