/* Reads packed.golden: the results of transformers for documents, each run alone, that tidepool trains packed
 * and masked. make_packed_golden.py writes and describes the file. */
#ifndef TIDE_TESTS_GOLDEN_PACKED_GOLDEN_H
#define TIDE_TESTS_GOLDEN_PACKED_GOLDEN_H

#include "tests/golden/family_golden.h"

enum { PACKED_CASES = 6 };

typedef struct packed_case {
    /* name, config, values and gradients, for the helpers of family_golden.h and family_fixture.h; losses and
     * norms are not set */
    family_case model;
    double loss;      /* mean over the learned tokens of the batch */
    uint32_t learned; /* targets that are not below 0 */
    /* [FAMILY_SEQUENCES x model.seq_len] */
    int32_t *inputs, *targets, *starts;
} packed_case;

typedef struct packed_golden {
    packed_case cases[PACKED_CASES];
} packed_golden;

/* Fails the test if the file is missing or incomplete, if tidepool refuses a config.json in it, or if a
 * model's tensors have other names or sizes than transformers'. */
void packed_golden_load(packed_golden *golden);
void packed_golden_free(packed_golden *golden);

/* The case with this name. Fails the test if there is none. */
const packed_case *packed_golden_find(const packed_golden *golden, const char *name);

#endif
