/* A model of a case of families.golden, in fp32 on the host device, on a pool whose update callback catches every stored gradient
 * and leaves the weights alone. Failures fail the test. */
#ifndef TIDE_TESTS_FAMILY_RIG_H
#define TIDE_TESTS_FAMILY_RIG_H

#include "src/model/decoder.h"
#include "tests/golden/family_golden.h"

typedef struct family_rig {
    const family_case *of;
    tide_pool *pool;
    tide_decoder *model;
    float *values[FAMILY_TENSORS_MAX];    /* as set, tensor by tensor */
    float *gradients[FAMILY_TENSORS_MAX]; /* [memory_elements], by the pool's number of a param */
    uint64_t caught[FAMILY_TENSORS_MAX];  /* elements, likewise */
    int32_t *tokens;
} family_rig;

void family_rig_open(family_rig *r, const family_case *of, bool recompute, uint32_t micro_batch_sequences);
void family_rig_close(family_rig *r);

/* One training step without clipping: the loss, and all gradients caught. */
double family_rig_step(family_rig *r);
double family_rig_evaluate(family_rig *r);

/* The caught gradient of a tensor: its elements. */
const float *family_rig_gradient(const family_rig *r, size_t tensor);

/* One element of a tensor, as long as the rig lasts. */
void family_rig_set(family_rig *r, size_t tensor, uint64_t element, float value);

#endif
