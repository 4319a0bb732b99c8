/* Kernels for random tests of a pool. They compare the bytes they find with those that a reference model
 * expects, and add, fill and copy. A kernel that finds a difference does not fail: it stores a message,
 * which the test reads with ref_difference(). */
#ifndef TIDE_TESTS_REF_KERNELS_H
#define TIDE_TESTS_REF_KERNELS_H

#include "tidepool/tidepool.h"

#include <stdbool.h>

/* Arguments of ref_expect_kernel: the `bytes` at `found` must equal those at `expected` or, if that is NULL,
 * the pattern of `seed`. */
typedef struct ref_expect_args {
    const char *what; /* a string that lives as long as the pool */
    const void *found, *expected;
    uint64_t bytes;
    uint32_t seed;
} ref_expect_args;
tide_status ref_expect_kernel(void *stream, const void *arguments);

/* Arguments of ref_add_kernel: it adds ref_amount(seed, i) x factor to each element i, or writes it there if
 * `overwrite`. It then adds `special` to one element. */
typedef struct ref_add_args {
    float *accumulator;
    uint64_t elements;
    uint32_t seed;
    float factor, special;
    bool overwrite;
} ref_add_args;
tide_status ref_add_kernel(void *stream, const void *arguments);

/* Arguments of ref_fill_kernel: it copies `from` or, if that is NULL, writes the pattern of `seed`. */
typedef struct ref_fill_args {
    void *to;
    const void *from;
    uint64_t bytes;
    uint32_t seed;
} ref_fill_args;
tide_status ref_fill_kernel(void *stream, const void *arguments);

/* Returns IO. */
tide_status ref_failing_kernel(void *stream, const void *arguments);

/* The first difference that a kernel found; NULL: none so far. Complete only when all kernels are over. */
const char *ref_difference(void);

#endif
