/* The smaller and the larger of two numbers. The functions for uint64_t also serve size_t. */
#ifndef TIDE_BASE_MINMAX_H
#define TIDE_BASE_MINMAX_H

#include <stdint.h>

static inline uint64_t tide_min_u64(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

static inline uint64_t tide_max_u64(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

static inline uint32_t tide_min_u32(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

static inline uint32_t tide_max_u32(uint32_t a, uint32_t b)
{
    return a > b ? a : b;
}

/* Where a number is NaN, the result is `b`. */
static inline double tide_min_f64(double a, double b)
{
    return a < b ? a : b;
}

static inline double tide_max_f64(double a, double b)
{
    return a > b ? a : b;
}

#endif
