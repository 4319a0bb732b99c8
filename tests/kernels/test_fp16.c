/* The conversions between fp16 and fp32, compared with a reference that uses only arithmetic: the nearer
 * of two neighbours, the even one on a tie.
 *
 * The test converts all 2^16 fp16 numbers to fp32. Of the 2^32 fp32 numbers it converts every 2039th, a
 * stride prime to all powers of two, and every tie with its neighbours. The vector code of each
 * instruction set must give the bits of the scalar code, in whole vectors and in the few elements past the
 * last whole one. */
#include "tests/kernels/test_kernels.h"
#include "tests/support/test_thin.h"

#include "base/fp16.h"

/* The value of an fp16 by its format: sign, 5 bits of exponent biased by 15, 10 bits of fraction. The
 * caller excludes NaNs. */
static double fp16_value(uint32_t half)
{
    const int exponent = (int)(half >> 10 & 31u), fraction = (int)(half & 1023u);
    const double sign = half & 0x8000u ? -1.0 : 1.0;
    if (exponent == 31)
        return sign * (double)INFINITY;
    return sign * (exponent == 0 ? ldexp(fraction, -24) : ldexp(1024 + fraction, exponent - 25));
}

static bool fp16_is_nan(uint32_t half)
{
    return (half & 0x7fffu) > 0x7c00u;
}

static float fp32_of(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* The largest fp16 that is finite, at least 0 and at most `size`. */
static uint32_t fp16_not_above(double size)
{
    uint32_t low = 0, high = 0x7bffu;
    while (low < high) {
        const uint32_t middle = (low + high + 1) / 2;
        if (fp16_value(middle) <= size)
            low = middle;
        else
            high = middle - 1;
    }
    return low;
}

/* The nearest fp16, ties to even. Where 65536 is nearest, one step beyond the largest number, the format
 * rounds to infinity. */
static uint32_t fp16_nearest(float value)
{
    if (isnan(value))
        return 0x7fffu;
    const uint32_t sign = signbit(value) ? 0x8000u : 0u;
    const double size = fabs((double)value);
    const uint32_t below = fp16_not_above(size);
    const double next = below == 0x7bffu ? 65536.0 : fp16_value(below + 1);
    const double down = size - fp16_value(below), up = next - size;
    const bool rounds_up = up < down || (up == down && below % 2 == 1);
    return sign | (below + rounds_up);
}

static void every_fp16_number_becomes_the_fp32_number_it_is_and_comes_back(void **state)
{
    for (uint32_t half = 0; half <= 0xffffu; half++) {
        const float value = tide_fp16_to_float((tide_fp16)half);
        if (fp16_is_nan(half)) {
            assert_true(isnan(value));
            assert_int_equal(tide_fp16_from_float(value), 0x7fff);
            continue;
        }
        assert_true((double)value == fp16_value(half) && !signbit(value) == !(half & 0x8000u));
        assert_int_equal(tide_fp16_from_float(value), half);
    }
}

static void check_down(uint32_t bits)
{
    const float value = fp32_of(bits);
    const tide_fp16 rounded = tide_fp16_from_float(value);
    if (rounded != fp16_nearest(value))
        fail_msg("fp32 0x%08x became 0x%04x, the nearest is 0x%04x", bits, rounded, fp16_nearest(value));
}

static void fp32_rounds_to_the_nearest_fp16_ties_to_even(void **state)
{
    for (uint64_t bits = 0; bits <= UINT32_MAX; bits += 2039 * test_thin(8))
        check_down((uint32_t)bits);
    /* The tie between each number and the next, and the neighbours of the tie. */
    for (uint32_t half = 0; half < 0x7c00u; half++) {
        const double next = half == 0x7bffu ? 65536.0 : fp16_value(half + 1);
        const float tie = (float)((fp16_value(half) + next) / 2);
        uint32_t bits;
        memcpy(&bits, &tie, sizeof bits);
        for (uint32_t sign = 0; sign <= 1; sign++)
            for (uint32_t i = 0; i < 3; i++)
                check_down((bits - 1 + i) | sign << 31);
    }
}

/* fp32 bits that reach every branch of the conversion, in an order that mixes the branches within a
 * vector. */
static uint32_t difficult_bits(uint32_t i)
{
    static const uint32_t edges[] = {
        0x00000000, 0x80000000, 0x00000001, 0x33000000, 0x33000001, 0x32ffffff, 0xb3000001, 0x387fffff,
        0x387fe000, 0x38800000, 0xb87ff000, 0x477fefff, 0x477ff000, 0xc77ff000, 0x7f800000, 0xff800000,
        0x7f800001, 0x7fc00000, 0xffc00123, 0xff812345, 0x3f801000, 0x3f803000, 0x3f801001, 0x33800000,
    };
    const uint32_t count = sizeof edges / sizeof edges[0];
    return i % 3 == 0 ? edges[i / 3 % count] : i * 2654435761u;
}

static void check_vectors(const tide_cpu_variant *variant)
{
    enum { COUNT = 65536 + 13 };
    buffer in = buffer_of(COUNT, TIDE_DTYPE_FP32), out = buffer_of(COUNT, TIDE_DTYPE_FP16);
    buffer all = buffer_of(COUNT, TIDE_DTYPE_FP16), back = buffer_of(COUNT, TIDE_DTYPE_FP32);
    for (uint32_t i = 0; i < COUNT; i++) {
        const uint32_t bits = difficult_bits(i);
        memcpy((float *)in.data + i, &bits, sizeof bits);
        ((tide_fp16 *)all.data)[i] = (tide_fp16)(i & 0xffffu);
    }
    run_kernel(variant->kernels.cast,
               &(tide_cast_args){in.data, out.data, COUNT, TIDE_DTYPE_FP32, TIDE_DTYPE_FP16});
    run_kernel(variant->kernels.cast,
               &(tide_cast_args){all.data, back.data, COUNT, TIDE_DTYPE_FP16, TIDE_DTYPE_FP32});
    for (uint32_t i = 0; i < COUNT; i++) {
        assert_int_equal(((const tide_fp16 *)out.data)[i], tide_fp16_from_float(((const float *)in.data)[i]));
        const float up = tide_fp16_to_float((tide_fp16)(i & 0xffffu));
        assert_memory_equal(&up, (const float *)back.data + i, sizeof up);
    }
    buffers_free(in, out, all, back);
}

static void each_instruction_set_converts_with_the_same_bits(void **state)
{
    for (tide_cpu_isa isa = TIDE_CPU_ISA_PORTABLE; isa < TIDE_CPU_ISA_COUNT; isa++)
        if (tide_cpu_variant_get(isa))
            check_vectors(tide_cpu_variant_get(isa));
}

static void bf16_and_fp16_become_one_another_through_fp32(void **state)
{
    enum { COUNT = 65536 };
    buffer in = buffer_of(COUNT, TIDE_DTYPE_BF16), out = buffer_of(COUNT, TIDE_DTYPE_FP16);
    for (uint32_t i = 0; i < COUNT; i++)
        ((tide_bf16 *)in.data)[i] = (tide_bf16)i;
    for (tide_cpu_isa isa = TIDE_CPU_ISA_PORTABLE; isa < TIDE_CPU_ISA_COUNT; isa++) {
        if (!tide_cpu_variant_get(isa))
            continue;
        const tide_kernel cast = tide_cpu_variant_get(isa)->kernels.cast;
        run_kernel(cast, &(tide_cast_args){in.data, out.data, COUNT, TIDE_DTYPE_BF16, TIDE_DTYPE_FP16});
        for (uint32_t i = 0; i < COUNT; i++)
            assert_int_equal(((const tide_fp16 *)out.data)[i],
                             fp16_nearest(tide_bf16_to_float((tide_bf16)i)));
    }
    buffers_free(in, out);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_fp16_number_becomes_the_fp32_number_it_is_and_comes_back),
        cmocka_unit_test(fp32_rounds_to_the_nearest_fp16_ties_to_even),
        cmocka_unit_test(each_instruction_set_converts_with_the_same_bits),
        cmocka_unit_test(bf16_and_fp16_become_one_another_through_fp32),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
