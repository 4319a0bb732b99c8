/* `lanes`, a vector of floats as wide as the variant's registers, and its operations.
 *
 * The code uses the compilers' vector types rather than intrinsics, so that it is the same for every width:
 * 16 lanes for AVX-512, 8 for AVX2, 4 for SSE2 or NEON. Callers pass `dtype` as a constant (see BY_DTYPE) and
 * the functions are inlined, so that choosing by it costs nothing at run time. In lanes past a row's end
 * lanes_load_some gives zeros and lanes_store_some writes nothing.
 */
#ifndef TIDEPOOL_KERNELS_CPU_LANES_H
#define TIDEPOOL_KERNELS_CPU_LANES_H

#include "base/fp16.h"
#include "tidepool/types.h"

#include <math.h>

#if defined(__AVX2__)
#include <immintrin.h>
#endif

#if defined(__AVX512F__)
enum { LANES = 16 };
#elif defined(__AVX2__)
enum { LANES = 8 };
#else
enum { LANES = 4 };
#endif

typedef float lanes __attribute__((vector_size(4 * LANES)));
typedef int32_t lanes_mask __attribute__((vector_size(4 * LANES))); /* a comparison: each lane 0 or -1 */
typedef uint32_t lanes_bits __attribute__((vector_size(4 * LANES)));
typedef uint16_t lanes_half __attribute__((vector_size(2 * LANES))); /* bf16 or fp16 */

/* Call function(..., dtype) with `dtype` a constant, so that loads and stores are chosen at compile time. */
#define BY_DTYPE(dtype, function, ...)                                                                       \
    ((dtype) == TIDE_DTYPE_BF16   ? function(__VA_ARGS__, TIDE_DTYPE_BF16)                                   \
     : (dtype) == TIDE_DTYPE_FP16 ? function(__VA_ARGS__, TIDE_DTYPE_FP16)                                   \
                                  : function(__VA_ARGS__, TIDE_DTYPE_FP32))

#define LANES_INLINE static inline __attribute__((always_inline, unused))

LANES_INLINE lanes lanes_all(float value)
{
    return value - (lanes){0};
}

/* a b + c, rounded once if the machine has fused multiply-add, otherwise twice. */
LANES_INLINE lanes lanes_fma(lanes a, lanes b, lanes c)
{
#if defined(__AVX512F__)
    return (lanes)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif defined(__AVX2__)
    return (lanes)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#else
    return a * b + c;
#endif
}

/* mask ? a : b */
LANES_INLINE lanes lanes_select(lanes_mask mask, lanes a, lanes b)
{
    return (lanes)(((lanes_mask)a & mask) | ((lanes_mask)b & ~mask));
}

LANES_INLINE lanes lanes_max(lanes a, lanes b)
{
    return lanes_select(a > b, a, b);
}

/* Convert between 16 and 32 bits per lane. The code names the instruction that does this, since gcc 12 uses
 * four for a conversion written without it. */
LANES_INLINE lanes_bits lanes_widen(lanes_half half)
{
#if defined(__AVX512F__)
    return (lanes_bits)_mm512_cvtepu16_epi32((__m256i)half);
#elif defined(__AVX2__)
    return (lanes_bits)_mm256_cvtepu16_epi32((__m128i)half);
#else
    return __builtin_convertvector(half, lanes_bits);
#endif
}

LANES_INLINE lanes_half lanes_narrow(lanes_bits bits)
{
#if defined(__AVX512F__)
    return (lanes_half)_mm512_cvtepi32_epi16((__m512i)bits);
#else
    return __builtin_convertvector(bits, lanes_half);
#endif
}

/* Convert fp16 to fp32 and back, with the bits that fp16.h gives. The instruction that converts to fp16
 * would keep a NaN's payload, so the code replaces every NaN by 0x7fff. */
#if defined(__AVX512F__)
LANES_INLINE lanes lanes_from_fp16(lanes_half half)
{
    return (lanes)_mm512_cvtph_ps((__m256i)half);
}

LANES_INLINE lanes_half lanes_to_fp16(lanes value)
{
    const __m256i rounded = _mm512_cvtps_ph((__m512)value, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    const __mmask16 nan = _mm512_cmp_ps_mask((__m512)value, (__m512)value, _CMP_UNORD_Q);
    return (lanes_half)_mm256_mask_mov_epi16(rounded, nan, _mm256_set1_epi16(0x7fff));
}
#elif defined(__AVX2__)
LANES_INLINE lanes lanes_from_fp16(lanes_half half)
{
    return (lanes)_mm256_cvtph_ps((__m128i)half);
}

LANES_INLINE lanes_half lanes_to_fp16(lanes value)
{
    const __m128i rounded = _mm256_cvtps_ph((__m256)value, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    const __m256i nan = (__m256i)_mm256_cmp_ps((__m256)value, (__m256)value, _CMP_UNORD_Q);
    const __m128i mask = _mm_packs_epi32(_mm256_castsi256_si128(nan), _mm256_extracti128_si256(nan, 1));
    return (lanes_half)_mm_blendv_epi8(rounded, _mm_set1_epi16(0x7fff), mask);
}
#else
LANES_INLINE lanes_bits lanes_bits_select(lanes_bits mask, lanes_bits a, lanes_bits b)
{
    return (a & mask) | (b & ~mask);
}

LANES_INLINE lanes lanes_from_fp16(lanes_half half)
{
    const lanes_bits bits = lanes_widen(half), size = bits & 0x7fffu, wide = size << 13;
    const lanes denormal = __builtin_convertvector((lanes_mask)size, lanes) * 5.9604644775390625e-8f;
    const lanes_bits quiet = (lanes_bits)(size > 0x7c00u) & 0x400000u;
    lanes_bits result =
        lanes_bits_select((lanes_bits)(size < 0x400u), (lanes_bits)denormal, wide + 0x38000000u);
    result = lanes_bits_select((lanes_bits)(size >= 0x7c00u), (wide + 0x70000000u) | quiet, result);
    return (lanes)(result | (bits & 0x8000u) << 16);
}

/* The code rounds numbers below 2^-14 by adding 0.5, since the last place of that sum is 2^-24, as in
 * fp16. */
LANES_INLINE lanes_half lanes_to_fp16(lanes value)
{
    const lanes_bits bits = (lanes_bits)value, size = bits & 0x7fffffffu;
    const lanes_bits small =
        (lanes_bits)((lanes)lanes_bits_select((lanes_bits)(size < 0x38800000u), size, (lanes_bits){0}) +
                     0.5f) -
        0x3f000000u;
    const lanes_bits normal = (size - 0x38000000u + 0xfffu + ((size >> 13) & 1u)) >> 13;
    lanes_bits result = lanes_bits_select((lanes_bits)(size < 0x38800000u), small, normal);
    result = lanes_bits_select((lanes_bits)(size >= 0x477ff000u), (lanes_bits){0} + 0x7c00u, result);
    result |= (bits >> 16) & 0x8000u;
    result = lanes_bits_select((lanes_bits)(size > 0x7f800000u), (lanes_bits){0} + 0x7fffu, result);
    return lanes_narrow(result);
}
#endif

LANES_INLINE lanes_half lanes_round(lanes value)
{
    const lanes_bits bits = (lanes_bits)value;
    const lanes_bits rounded = bits + 0x7fffu + ((bits >> 16) & 1u);
    const lanes_bits quiet = bits | 0x400000u;
    const lanes_bits nan = (lanes_bits)((bits & 0x7fffffffu) > 0x7f800000u);
    return lanes_narrow(((quiet & nan) | (rounded & ~nan)) >> 16);
}

LANES_INLINE lanes lanes_load(const void *base, size_t index, tide_dtype dtype)
{
    if (dtype != TIDE_DTYPE_FP32) {
        lanes_half half;
        memcpy(&half, (const uint16_t *)base + index, sizeof half);
        return dtype == TIDE_DTYPE_BF16 ? (lanes)(lanes_widen(half) << 16) : lanes_from_fp16(half);
    }
    lanes value;
    memcpy(&value, (const float *)base + index, sizeof value);
    return value;
}

LANES_INLINE void lanes_store(void *base, size_t index, lanes value, tide_dtype dtype)
{
    if (dtype != TIDE_DTYPE_FP32) {
        const lanes_half half = dtype == TIDE_DTYPE_BF16 ? lanes_round(value) : lanes_to_fp16(value);
        memcpy((uint16_t *)base + index, &half, sizeof half);
    } else {
        memcpy((float *)base + index, &value, sizeof value);
    }
}

/* A single element. */
LANES_INLINE float element_get(const void *base, size_t index, tide_dtype dtype)
{
    if (dtype == TIDE_DTYPE_BF16)
        return tide_bf16_to_float(((const tide_bf16 *)base)[index]);
    return dtype == TIDE_DTYPE_FP16 ? tide_fp16_to_float(((const tide_fp16 *)base)[index])
                                    : ((const float *)base)[index];
}

LANES_INLINE void element_set(void *base, size_t index, float value, tide_dtype dtype)
{
    if (dtype == TIDE_DTYPE_BF16)
        ((tide_bf16 *)base)[index] = tide_bf16_from_float(value);
    else if (dtype == TIDE_DTYPE_FP16)
        ((tide_fp16 *)base)[index] = tide_fp16_from_float(value);
    else
        ((float *)base)[index] = value;
}

/* Load or store the first `count` < LANES lanes only. */
LANES_INLINE lanes lanes_load_some(const void *base, size_t index, size_t count, tide_dtype dtype)
{
    float some[LANES] = {0};
    for (size_t lane = 0; lane < count; lane++)
        some[lane] = element_get(base, index + lane, dtype);
    return lanes_load(some, 0, TIDE_DTYPE_FP32);
}

LANES_INLINE void lanes_store_some(void *base, size_t index, lanes value, size_t count, tide_dtype dtype)
{
    float some[LANES];
    lanes_store(some, 0, value, TIDE_DTYPE_FP32);
    for (size_t lane = 0; lane < count; lane++)
        element_set(base, index + lane, some[lane], dtype);
}

/* Load or store LANES elements from `index` on, or fewer if `end` comes first. */
LANES_INLINE lanes lanes_load_until(const void *base, size_t index, size_t end, tide_dtype dtype)
{
    return end - index >= LANES ? lanes_load(base, index, dtype)
                                : lanes_load_some(base, index, end - index, dtype);
}

LANES_INLINE void lanes_store_until(void *base, size_t index, size_t end, lanes value, tide_dtype dtype)
{
    if (end - index >= LANES)
        lanes_store(base, index, value, dtype);
    else
        lanes_store_some(base, index, value, end - index, dtype);
}

/* `value`, whose first lane has the index `index`, with zeros in the lanes from `end` on. */
LANES_INLINE lanes lanes_clip(lanes value, size_t index, size_t end)
{
    if (end - index >= LANES)
        return value;
    float some[LANES];
    lanes_store(some, 0, value, TIDE_DTYPE_FP32);
    return lanes_load_some(some, 0, end - index, TIDE_DTYPE_FP32);
}

/* Sum of the lanes: repeatedly adds the upper half to the lower half, so that every compiler gives the same
 * order. */
LANES_INLINE float lanes_sum(lanes value)
{
    float each[LANES];
    lanes_store(each, 0, value, TIDE_DTYPE_FP32);
    for (size_t half = LANES / 2; half > 0; half /= 2)
        for (size_t lane = 0; lane < half; lane++)
            each[lane] += each[lane + half];
    return each[0];
}

LANES_INLINE float lanes_largest(lanes value)
{
    float each[LANES];
    lanes_store(each, 0, value, TIDE_DTYPE_FP32);
    for (size_t lane = 1; lane < LANES; lane++)
        each[0] = each[lane] > each[0] ? each[lane] : each[0];
    return each[0];
}

/* e^x within 2 ulp for x in [-87.3, 88]; 0 below, e^88 above (not infinity, since sigmoids divide by the
 * result); NaN stays NaN. x = n ln 2 + r with |r| <= ln 2 / 2; a polynomial of degree 7 gives e^r, and 2^n is
 * put together from its exponent bits. Adding 1.5 x 2^23 rounds x / ln 2 to the integer n and leaves n in the
 * low bits. */
LANES_INLINE lanes lanes_exp(lanes x)
{
    const float round_magic = 12582912.0f;
    const lanes_mask vanishes = x < -87.33f;
    const lanes high = lanes_all(88.0f);
    const lanes clamped = lanes_select(x > 88.0f, high, x);
    const lanes shifted = lanes_fma(clamped, lanes_all(1.44269504f), lanes_all(round_magic));
    const lanes n = shifted - round_magic;
    const lanes r = lanes_fma(n, lanes_all(2.12194440e-4f), lanes_fma(n, lanes_all(-0.693359375f), clamped));
    lanes p = lanes_all(1.0f / 5040);
    p = lanes_fma(p, r, lanes_all(1.0f / 720));
    p = lanes_fma(p, r, lanes_all(1.0f / 120));
    p = lanes_fma(p, r, lanes_all(1.0f / 24));
    p = lanes_fma(p, r, lanes_all(1.0f / 6));
    p = lanes_fma(p, r, lanes_all(0.5f));
    p = lanes_fma(p, r, lanes_all(1.0f));
    p = lanes_fma(p, r, lanes_all(1.0f));
    const lanes power = (lanes)(((lanes_bits)shifted + 127u) << 23);
    return lanes_select(vanishes, lanes_all(0.0f), p * power);
}

#endif
