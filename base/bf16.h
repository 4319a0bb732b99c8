/* bfloat16, in integer arithmetic.
 *
 * A bf16 number is the upper half of an fp32 number. The conversion from fp32 rounds to nearest, ties to
 * even: it adds 0x7fff plus the lowest bit that stays, then drops the lower half. It uses integer arithmetic,
 * so that every instruction set and the GPU give the same bits and denormals survive. A NaN is truncated and
 * made quiet instead of rounded, since the carry could turn it into an infinity.
 */
#ifndef TIDE_BASE_BF16_H
#define TIDE_BASE_BF16_H

#include <stdint.h>
#include <string.h>

#if defined(__CUDACC__)
#define TIDE_ARITHMETIC static __host__ __device__ __forceinline__
#else
#define TIDE_ARITHMETIC static inline __attribute__((always_inline, unused))
#endif

typedef uint16_t tide_bf16;

/* The fp32 number whose upper half is `value`. Exact. */
TIDE_ARITHMETIC float tide_bf16_to_float(tide_bf16 value)
{
    const uint32_t bits = (uint32_t)value << 16;
    float result;
    memcpy(&result, &bits, sizeof result);
    return result;
}

/* Nearest bf16, ties to even; overflow gives infinity, NaN stays NaN. */
TIDE_ARITHMETIC tide_bf16 tide_bf16_from_float(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    const uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
    const uint32_t quiet = (bits >> 16) | 0x40u;
    return (tide_bf16)((bits & 0x7fffffffu) > 0x7f800000u ? quiet : rounded);
}

#endif
