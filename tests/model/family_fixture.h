/* A model of a case of families.golden, in fp32 on the host device, on a pool whose update callback catches every stored gradient
 * and leaves the weights alone. Failures fail the test. */
#ifndef TIDE_TESTS_FAMILY_FIXTURE_H
#define TIDE_TESTS_FAMILY_FIXTURE_H

#include "src/model/decoder.h"
#include "tests/golden/family_golden.h"

typedef struct family_fixture {
    const family_case *of;
    tide_pool *pool;
    tide_decoder *model;
    float *values[FAMILY_TENSORS_MAX];    /* as set, tensor by tensor */
    float *gradients[FAMILY_TENSORS_MAX]; /* [memory_elements], by the pool's number of a param */
    uint64_t caught[FAMILY_TENSORS_MAX];  /* elements, likewise */
    int32_t *tokens;
} family_fixture;

void family_fixture_open(family_fixture *r, const family_case *of, bool recompute,
                         uint32_t micro_batch_sequences);
void family_fixture_close(family_fixture *r);

/* One training step without clipping: the loss, and all gradients caught. */
double family_fixture_step(family_fixture *r);
double family_fixture_evaluate(family_fixture *r);

/* The caught gradient of a tensor: its elements. */
const float *family_fixture_gradient(const family_fixture *r, size_t tensor);

/* One element of a tensor, as long as the fixture lasts. */
void family_fixture_set(family_fixture *r, size_t tensor, uint64_t element, float value);

#endif
