/* Checks for results too large to be compared whole: random places spread all over them, expected values
 * in float64, and bounds for the error of a sum in fp32.
 *
 * The error of a long sum is compared with the root of the sum of its terms' squares, the typical size of
 * a sum of terms with random signs and of its partial sums. Compared with the largest result of all, an
 * error as large as a missing block of keys or columns might pass. */
#ifndef TIDEPOOL_TESTS_TEST_KERNELS_LONG_H
#define TIDEPOOL_TESTS_TEST_KERNELS_LONG_H

#include "tests/kernels/test_kernels.h"

/* A sum in float64, and the means to bound the error of the same sum in fp32. */
typedef struct truth {
    double value;
    double squares; /* sum of the terms' squares */
    double noise;   /* sum of the squares of the errors that the terms already have */
} truth;

static inline void truth_add(truth *to, double part, double noise)
{
    to->value += part;
    to->squares += part * part;
    to->noise += noise * noise;
}

/* A bound for the error of an fp32 sum of `parts` terms, relative to the root of their squares' sum. Where
 * each addition rounds to nearest, it errs at random by up to 2^-24 of a partial sum, in all by about 0.4
 * sqrt(parts) 2^-24; five times that is rare among the thousands of sums that a test checks. A tensor core
 * adds 16 products at a time and may truncate towards zero at a unit of 2^-23 of the partial sum: parts /
 * 16 units. The bound is twice the sum of both: 1e-4 for 4096 terms and 9e-4 for 50304 terms, where a
 * single term is about 4e-3. */
static inline double sum_rounding(size_t parts)
{
    return ldexp((double)parts / 16 + 2 * sqrt((double)parts), -22);
}

/* Checks that element i is near the expected sum: within `relative` times the root of the terms' squares,
 * plus the terms' own errors and one rounding. */
static inline void assert_true_at(buffer actual, size_t i, truth expected, double relative)
{
    assert_near(actual, i, expected.value, relative * sqrt(expected.squares) + sqrt(expected.noise));
}

/* A random number from 0 to count - 1. */
static inline size_t random_below(size_t count)
{
    return (size_t)((random_value() + 1.0) / 2.0 * (double)count);
}

/* Cuts 0 to count - 1 into `stretches` equal parts and returns a random number of part i; of the first
 * part always the first number, of the last part the last. */
static inline size_t random_in_stretch(size_t i, size_t stretches, size_t count)
{
    const size_t begin = i * count / stretches, end = (i + 1) * count / stretches;
    return i == 0 ? 0 : i + 1 == stretches ? count - 1 : begin + random_below(end - begin);
}

#endif
