/* fp16 (IEEE binary16), in integer arithmetic: the reference whose bits every vector path and the GPU's
 * conversions must give.
 *
 * The conversion from fp32 rounds to nearest, ties to even, with denormals; 65520 and more becomes infinity.
 * Every NaN, whatever its sign and payload, becomes 0x7fff, as the GPU's conversion gives it, so that an
 * update has the same bits wherever it runs. The conversion to fp32 is exact; a NaN keeps sign and payload
 * and becomes quiet, as with F16C.
 */
#ifndef TIDE_BASE_FP16_H
#define TIDE_BASE_FP16_H

#include "base/bf16.h"

typedef uint16_t tide_fp16;

/* The fp32 number that equals `value`. Exact. */
TIDE_ARITHMETIC float tide_fp16_to_float(tide_fp16 value)
{
    const uint32_t sign = (uint32_t)(value & 0x8000u) << 16;
    uint32_t bits = (uint32_t)(value & 0x7fffu) << 13;
    float result;
    if (bits >= 0x0f800000u) { /* infinity, NaN */
        bits = (bits + 0x70000000u) | (bits > 0x0f800000u ? 0x00400000u : 0u);
    } else if (bits >= 0x00800000u) { /* normal: the exponent's bias goes from 15 to 127 */
        bits += 0x38000000u;
    } else { /* denormal: a count of 2^-24, exact in fp32 */
        result = (float)(value & 0x7fffu) * 5.9604644775390625e-8f;
        memcpy(&bits, &result, sizeof bits);
    }
    bits |= sign;
    memcpy(&result, &bits, sizeof result);
    return result;
}

/* Nearest fp16, ties to even; overflow gives infinity, NaN 0x7fff. */
TIDE_ARITHMETIC tide_fp16 tide_fp16_from_float(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    const uint32_t sign = (bits >> 16) & 0x8000u;
    const uint32_t size = bits & 0x7fffffffu;
    if (size > 0x7f800000u)
        return (tide_fp16)0x7fffu;
    if (size >= 0x477ff000u) /* 65520 and more */
        return (tide_fp16)(sign | 0x7c00u);
    if (size >= 0x38800000u) /* normal: 2^-14 and more */
        return (tide_fp16)(sign | ((size - 0x38000000u + 0xfffu + ((size >> 13) & 1u)) >> 13));
    if (size < 0x33000000u) /* below half of 2^-24 */
        return (tide_fp16)sign;
    const uint32_t shift = 126u - (size >> 23); /* 14 to 24: the fraction becomes a count of 2^-24 */
    const uint32_t fraction = (size & 0x7fffffu) | 0x800000u;
    const uint32_t half = 1u << (shift - 1u);
    return (tide_fp16)(sign | ((fraction + half - 1u + ((fraction >> shift) & 1u)) >> shift));
}

#endif
