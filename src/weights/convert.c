/* All functions work on the bits of numbers: a float that passes through an x87 register or a call might lose
 * a NaN's payload.
 *
 * Widening in place: after i of n numbers the result takes 4 i bytes, and the next number to read stands at
 * byte 2 n + 2 i, which is never before that. Each block is copied out first, so that the compiler sees two
 * arrays. */
#include "src/weights/convert.h"

#include "base/fp16.h"

#include <assert.h>
#include <string.h>

enum { BLOCK = 1024 };

static void bf16_widen(const uint16_t *restrict raw, uint32_t *restrict bits, size_t count)
{
    for (size_t i = 0; i < count; i++)
        bits[i] = (uint32_t)raw[i] << 16;
}

/* tide_fp16_to_float without its conversion of an integer. A denormal counts units of 2^-24, which is also
 * the unit of floats from 0.5 on: adding its bits to those of 0.5 makes the float 0.5 + its value, from which
 * 0.5 is subtracted. Conditions are masks, -1 if true, because gcc does not vectorize the same code with
 * conditional expressions. */
static inline uint32_t f16_bits(uint16_t half)
{
    const int32_t size = half & 0x7fff;
    const int32_t is_normal = -(size >= 0x0400), is_special = -(size >= 0x7c00), is_nan = -(size > 0x7c00);
    const int32_t normal = (size << 13) + 0x38000000 + (is_special & 0x38000000);
    const int32_t sum_bits = size + 0x3f000000;
    float sum;
    int32_t denormal;
    memcpy(&sum, &sum_bits, sizeof sum);
    sum -= 0.5f;
    memcpy(&denormal, &sum, sizeof denormal);
    const int32_t bits = (normal & is_normal) | (denormal & ~is_normal) | (is_nan & 0x00400000);
    return (uint32_t)bits | (uint32_t)(half & 0x8000u) << 16;
}

static void f16_widen_portable(const uint16_t *restrict raw, uint32_t *restrict bits, size_t count)
{
    for (size_t i = 0; i < count; i++)
        bits[i] = f16_bits(raw[i]);
}

/* f16_widen_portable with vectors twice as long: for F16, unlike BF16, those of the x86-64 baseline are
 * slower than memory. */
#if defined(__x86_64__)
__attribute__((target("avx2"))) static void f16_widen_avx2(const uint16_t *restrict raw,
                                                           uint32_t *restrict bits, size_t count)
{
    for (size_t i = 0; i < count; i++)
        bits[i] = f16_bits(raw[i]);
}
#endif

static void f16_widen(const uint16_t *restrict raw, uint32_t *restrict bits, size_t count)
{
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx2")) {
        f16_widen_avx2(raw, bits, count);
        return;
    }
#endif
    f16_widen_portable(raw, bits, count);
}

void tide_weights_widen(tide_weights_dtype dtype, float *values, size_t count)
{
    assert(dtype != TIDE_WEIGHTS_F32);
    const char *raw = (const char *)values + count * sizeof(uint16_t);
    uint32_t bits[BLOCK];
    uint16_t block[BLOCK];
    for (size_t first = 0; first < count; first += BLOCK) {
        const size_t some = count - first < BLOCK ? count - first : BLOCK;
        memcpy(block, raw + first * sizeof(uint16_t), some * sizeof(uint16_t));
        if (dtype == TIDE_WEIGHTS_BF16)
            bf16_widen(block, bits, some);
        else
            f16_widen(block, bits, some);
        memcpy(values + first, bits, some * sizeof *bits);
    }
}

static void bf16_narrow(const float *restrict values, uint16_t *restrict raw, size_t count)
{
    for (size_t i = 0; i < count; i++)
        raw[i] = tide_bf16_from_float(values[i]);
}

/* tide_fp16_from_float without its shift by a variable. Floats from 0.5 on have the unit 2^-24, that of
 * denormals: when 0.5 is added, the processor rounds a denormal to this unit, and the sum's last bits count
 * the units. */
static inline uint16_t f16_from_float(float value)
{
    int32_t bits, sum_bits;
    memcpy(&bits, &value, sizeof bits);
    const int32_t sign = (bits >> 16) & 0x8000;
    const int32_t size = bits & 0x7fffffff;
    float sum;
    memcpy(&sum, &size, sizeof sum);
    sum += 0.5f;
    memcpy(&sum_bits, &sum, sizeof sum_bits);
    const int32_t denormal = sum_bits - 0x3f000000;
    const int32_t normal =
        (int32_t)((uint32_t)size - 0x38000000u + 0xfffu + ((uint32_t)size >> 13 & 1u)) >> 13;
    int32_t half = (size >= 0x38800000 ? normal : denormal) & 0x7fff;
    half = size >= 0x477ff000 ? 0x7c00 : half;
    half |= sign;
    half = size > 0x7f800000 ? 0x7fff : half;
    return (uint16_t)half;
}

static void f16_narrow(const float *restrict values, uint16_t *restrict raw, size_t count)
{
    for (size_t i = 0; i < count; i++)
        raw[i] = f16_from_float(values[i]);
}

void tide_weights_narrow(tide_weights_dtype dtype, const float *restrict values, uint16_t *restrict raw,
                         size_t count)
{
    assert(dtype != TIDE_WEIGHTS_F32);
    if (dtype == TIDE_WEIGHTS_BF16)
        bf16_narrow(values, raw, count);
    else
        f16_narrow(values, raw, count);
}

static inline bool overflows(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    const uint32_t size = bits & 0x7fffffffu;
    return (size >= 0x477ff000u) & (size < 0x7f800000u); /* finite and at least 65520 */
}

size_t tide_weights_f16_overflow(const float *values, size_t count)
{
    uint32_t any = 0;
    for (size_t i = 0; i < count; i++)
        any |= overflows(values[i]);
    size_t first = 0;
    while (any != 0 && !overflows(values[first]))
        first++;
    return any != 0 ? first : count;
}
