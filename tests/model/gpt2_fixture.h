/* The GPT-2 of gpt2.golden, with its own vocabulary or a smaller one. Its update callback records every
 * gradient and leaves the weights unchanged. A failure fails the test. */
#ifndef TIDE_TESTS_GPT2_FIXTURE_H
#define TIDE_TESTS_GPT2_FIXTURE_H

#include "src/model/decoder.h"
#include "tests/golden/gpt2_golden.h"

/* The loss scale of every fp16 step. The recorded gradients don't include it. */
#define GPT2_FIXTURE_FP16_LOSS_SCALE 4096.0F

typedef struct gpt2_fixture {
    tide_pool *pool;
    tide_decoder *model;
    tide_model_config config;
    tide_dtype dtype;
    uint64_t elements[GOLDEN_PARAMS];        /* elements in files */
    uint64_t memory_elements[GOLDEN_PARAMS]; /* elements in the pool's memory */
    float *values[GOLDEN_PARAMS];            /* [elements] */
    float *gradients[GOLDEN_PARAMS];         /* [memory_elements] */
    uint64_t caught[GOLDEN_PARAMS];          /* elements whose gradient was recorded */
    bool update_fails;                       /* the update callback fails, which poisons the pool */
    int32_t tokens[GOLDEN_TOKENS + 1];
    tide_decoder_batch batch; /* these tokens, all learned */
} gpt2_fixture;

void ok(tide_status status);

/* Open the model with the vocabulary and values of golden_config(). */
void gpt2_fixture_open(gpt2_fixture *r, tide_dtype dtype, bool recompute, uint32_t micro_batch_sequences);
void gpt2_fixture_open_on(gpt2_fixture *r, const tide_kernels *kernels, tide_dtype dtype, bool recompute,
                          uint32_t micro_batch_sequences);
/* Open it with a smaller vocabulary: the first rows of the golden wte, and tokens modulo the vocabulary.
 * Micro-batches have 2 sequences. */
void gpt2_fixture_open_small(gpt2_fixture *r, const tide_kernels *kernels, tide_dtype dtype, bool recompute,
                             uint32_t vocabulary);
void gpt2_fixture_close(gpt2_fixture *r);

/* Set all params' masters, and their moments to zero, through the model. */
void gpt2_fixture_set_values(gpt2_fixture *r);

/* Make a training step without clipping: records all gradients and returns the loss. */
double gpt2_fixture_step(gpt2_fixture *r);
double gpt2_fixture_evaluate(gpt2_fixture *r);

#endif
