/* Kernels for a random test of a pool: they compare what they find with what a plain model expects, at once, and add, fill
 * and copy. A difference does not fail the kernel: it is kept in plain_difference, and the test asks for it.
 */
#ifndef TIDE_TESTS_PLAIN_KERNELS_H
#define TIDE_TESTS_PLAIN_KERNELS_H

#include "tidepool/tidepool.h"

#include <stdbool.h>

/* Expect `bytes` at `found` to be those at `expected`, or, where that is NULL, the pattern of `seed`. */
typedef struct plain_expect_args {
    const char *what; /* lives as long as the pool */
    const void *found, *expected;
    uint64_t bytes;
    uint32_t seed;
} plain_expect_args;
tide_status plain_expect_kernel(void *stream, const void *arguments);

/* Add plain_amount(seed, i) x factor to each, or with `overwrite` to zero, and `special` to one. */
typedef struct plain_add_args {
    float *accumulator;
    uint64_t elements;
    uint32_t seed;
    float factor, special;
    bool overwrite;
} plain_add_args;
tide_status plain_add_kernel(void *stream, const void *arguments);

/* `from`, or where that is NULL the pattern of `seed`. */
typedef struct plain_fill_args {
    void *to;
    const void *from;
    uint64_t bytes;
    uint32_t seed;
} plain_fill_args;
tide_status plain_fill_kernel(void *stream, const void *arguments);

/* Fails with IO. */
tide_status plain_failing_kernel(void *stream, const void *arguments);

/* The first difference that a kernel found; NULL: none. Call it where all kernels are over, or to stop early. */
const char *plain_difference(void);

#endif
