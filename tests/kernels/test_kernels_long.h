/* For results too large to be compared whole: places chosen at random all over them, truths in float64, and how far from a truth
 * a sum in fp32 may be.
 *
 * Errors of a long sum are measured by the root of the sum of its parts' squares: that is what the sum of parts with random
 * signs, and each of its partial sums, is as large as. Measured by the largest result of all, a block of keys or of columns
 * that was left out might pass.
 */
#ifndef TIDEPOOL_TESTS_TEST_KERNELS_LONG_H
#define TIDEPOOL_TESTS_TEST_KERNELS_LONG_H

#include "tests/kernels/test_kernels.h"

/* A sum. */
typedef struct truth {
    double value;
    double squares; /* of its parts, summed */
    double noise;   /* squares of errors that the parts bring along, summed */
} truth;

static inline void truth_add(truth *to, double part, double noise)
{
    to->value += part;
    to->squares += part * part;
    to->noise += noise * noise;
}

/* What fp32 loses of a sum of so many parts, as a part of the root of their squares. Where each addition rounds to nearest, it
 * errs by up to 2^-24 of a partial sum, at random, which comes to 0.4 sqrt(parts) 2^-24; five times that is rarely met among
 * the thousands that a test looks at. A tensor core adds 16 products at a time and may cut what is below a unit, 2^-23 of the
 * partial sum, always towards zero: parts / 16 units. All that twice, to be sure: 1e-4 for 4096 parts, 9e-4 for 50304, of
 * which a single part is 4e-3 or so. */
static inline double sum_rounding(size_t parts)
{
    return ldexp((double)parts / 16 + 2 * sqrt((double)parts), -22);
}

/* Element i is the truth, but for `relative` of its parts' root, its parts' noise and one rounding. */
static inline void assert_true_at(buffer actual, size_t i, truth expected, double relative)
{
    assert_near(actual, i, expected.value, relative * sqrt(expected.squares) + sqrt(expected.noise));
}

/* 0 to count - 1. */
static inline size_t random_below(size_t count)
{
    return (size_t)((random_value() + 1.0) / 2.0 * (double)count);
}

/* A place in stretch i of so many that cover 0 to count - 1: the first of all, the last of all, any between. */
static inline size_t random_in_stretch(size_t i, size_t stretches, size_t count)
{
    const size_t begin = i * count / stretches, end = (i + 1) * count / stretches;
    return i == 0 ? 0 : i + 1 == stretches ? count - 1 : begin + random_below(end - begin);
}

#endif
