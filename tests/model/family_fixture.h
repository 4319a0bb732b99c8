/* The model of a case in families.golden, in fp32 on the host device. Its update callback records every
 * gradient and leaves the weights unchanged. A failure fails the test. */
#ifndef TIDE_TESTS_FAMILY_FIXTURE_H
#define TIDE_TESTS_FAMILY_FIXTURE_H

#include "src/model/decoder.h"
#include "tests/golden/family_golden.h"

typedef struct family_fixture {
    const family_case *of;
    tide_pool *pool;
    tide_decoder *model;
    float *values[FAMILY_TENSORS_MAX];    /* the values set, by tensor */
    float *gradients[FAMILY_TENSORS_MAX]; /* by the pool's number of a param [memory_elements] */
    /* by the pool's number of a param: elements whose gradient was recorded */
    uint64_t caught[FAMILY_TENSORS_MAX];
    int32_t *tokens;
    tide_decoder_batch
        batch; /* of family_fixture_step and _evaluate; at first the golden tokens, all learned */
} family_fixture;

void family_fixture_open(family_fixture *r, const family_case *of, bool recompute,
                         uint32_t micro_batch_sequences, uint32_t sum_groups);
void family_fixture_close(family_fixture *r);

/* Make a training step without clipping: records all gradients and returns the loss. */
double family_fixture_step(family_fixture *r);
double family_fixture_evaluate(family_fixture *r);

/* The recorded gradient of a tensor. */
const float *family_fixture_gradient(const family_fixture *r, size_t tensor);

/* Set one element of a tensor. */
void family_fixture_set(family_fixture *r, size_t tensor, uint64_t element, float value);

#endif
