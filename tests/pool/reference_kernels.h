/* Kernels for a random test of a pool: they compare what they find with what a plain model expects, at once, and add, fill
 * and copy. A difference does not fail the kernel: it is kept in ref_difference, and the test asks for it.
 */
#ifndef TIDE_TESTS_REF_KERNELS_H
#define TIDE_TESTS_REF_KERNELS_H

#include "tidepool/tidepool.h"

#include <stdbool.h>

/* Expect `bytes` at `found` to be those at `expected`, or, where that is NULL, the pattern of `seed`. */
typedef struct ref_expect_args {
    const char *what; /* lives as long as the pool */
    const void *found, *expected;
    uint64_t bytes;
    uint32_t seed;
} ref_expect_args;
tide_status ref_expect_kernel(void *stream, const void *arguments);

/* Add ref_amount(seed, i) x factor to each, or with `overwrite` to zero, and `special` to one. */
typedef struct ref_add_args {
    float *accumulator;
    uint64_t elements;
    uint32_t seed;
    float factor, special;
    bool overwrite;
} ref_add_args;
tide_status ref_add_kernel(void *stream, const void *arguments);

/* `from`, or where that is NULL the pattern of `seed`. */
typedef struct ref_fill_args {
    void *to;
    const void *from;
    uint64_t bytes;
    uint32_t seed;
} ref_fill_args;
tide_status ref_fill_kernel(void *stream, const void *arguments);

/* Fails with IO. */
tide_status ref_failing_kernel(void *stream, const void *arguments);

/* The first difference that a kernel found; NULL: none. Call it where all kernels are over, or to stop early. */
const char *ref_difference(void);

#endif
