/* What the kernels' tests share: poisoned and guarded buffers, random values, float64 references to compare
 * with.
 *
 * A buffer begins as all ones bits, a NaN in every type, so that what a kernel fails to write shows; and
 * stands between guard bytes, checked when it is freed, so that what a kernel writes beside it shows too.
 */
#ifndef TIDEPOOL_TESTS_TEST_KERNELS_H
#define TIDEPOOL_TESTS_TEST_KERNELS_H

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

#include "kernels/cpu/cpu.h"
#include "kernels/fp16.h"

#if TIDE_HAVE_OPENMP
#include <omp.h>
#endif

enum { GUARD_BYTES = TIDE_ALIGNMENT_BYTES, GUARD = 0xa5, POISON = 0xff };

typedef struct buffer {
    void *data;
    size_t bytes;
    tide_dtype dtype;
} buffer;

static inline buffer buffer_bytes(size_t bytes)
{
    char *block = aligned_alloc(TIDE_ALIGNMENT_BYTES, tide_align_up(bytes) + 2 * GUARD_BYTES);
    assert_non_null(block);
    memset(block, GUARD, tide_align_up(bytes) + 2 * GUARD_BYTES);
    memset(block + GUARD_BYTES, POISON, bytes);
    return (buffer){.data = block + GUARD_BYTES, .bytes = bytes};
}

static inline buffer buffer_of(size_t elements, tide_dtype dtype)
{
    buffer made = buffer_bytes(elements * tide_dtype_bytes(dtype));
    made.dtype = dtype;
    return made;
}

static inline void buffer_check(buffer checked)
{
    const unsigned char *before = (const unsigned char *)checked.data - GUARD_BYTES;
    const unsigned char *after = (const unsigned char *)checked.data + checked.bytes;
    for (size_t i = 0; i < GUARD_BYTES; i++) {
        assert_int_equal(before[i], GUARD);
        assert_int_equal(after[i], GUARD);
    }
}

static inline void buffer_free(buffer freed)
{
    buffer_check(freed);
    free((char *)freed.data - GUARD_BYTES);
}

static inline double buffer_get(buffer from, size_t i)
{
    if (from.dtype == TIDE_DTYPE_BF16)
        return (double)tide_bf16_to_float(((const tide_bf16 *)from.data)[i]);
    if (from.dtype == TIDE_DTYPE_FP16)
        return (double)tide_fp16_to_float(((const tide_fp16 *)from.data)[i]);
    return (double)((const float *)from.data)[i];
}

static inline void buffer_set(buffer to, size_t i, double value)
{
    if (to.dtype == TIDE_DTYPE_BF16)
        ((tide_bf16 *)to.data)[i] = tide_bf16_from_float((float)value);
    else if (to.dtype == TIDE_DTYPE_FP16)
        ((tide_fp16 *)to.data)[i] = tide_fp16_from_float((float)value);
    else
        ((float *)to.data)[i] = (float)value;
}

/* Uniform in [-1, 1), the same sequence in every run. */
static inline double random_value(void)
{
    static uint64_t state = 0x9e3779b97f4a7c15u;
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return (double)(state >> 11) / 4503599627370496.0 - 1.0;
}

static inline buffer buffer_random(size_t elements, tide_dtype dtype, double scale)
{
    buffer made = buffer_of(elements, dtype);
    for (size_t i = 0; i < elements; i++)
        buffer_set(made, i, scale * random_value());
    return made;
}

static inline buffer buffer_copy(buffer from)
{
    buffer made = buffer_bytes(from.bytes);
    made.dtype = from.dtype;
    memcpy(made.data, from.data, from.bytes);
    return made;
}

/* The buffer's values in float64; free() them. */
static inline double *buffer_values(buffer from)
{
    const size_t elements = from.bytes / tide_dtype_bytes(from.dtype);
    double *values = malloc((elements + 1) * sizeof *values);
    assert_non_null(values);
    for (size_t i = 0; i < elements; i++)
        values[i] = buffer_get(from, i);
    return values;
}

/* Every element is within half a unit in the last place of its type (a bf16 keeps 8 bits: 1/256, an fp16 11) and
 * `tolerance` times the largest expected value of the expected one. */
static inline void assert_close(buffer actual, const double *expected, size_t elements, double tolerance)
{
    const double ulp = actual.dtype == TIDE_DTYPE_BF16   ? 1.01 / 256
                       : actual.dtype == TIDE_DTYPE_FP16 ? 1.01 / 2048
                                                         : 1e-7;
    double largest = 0.0;
    for (size_t i = 0; i < elements; i++)
        largest = fmax(largest, fabs(expected[i]));
    for (size_t i = 0; i < elements; i++) {
        const double value = buffer_get(actual, i);
        const double allowed = ulp * fabs(expected[i]) + tolerance * largest + 1e-30;
        if (!(fabs(value - expected[i]) <= allowed))
            fail_msg("element %zu of %zu: %.9g, expected %.9g within %.2g", i, elements, value, expected[i],
                     allowed);
    }
}

/* ||actual - expected|| <= tolerance ||expected|| */
static inline void assert_norm_close(buffer actual, const double *expected, size_t elements, double tolerance)
{
    double difference = 0.0, norm = 0.0;
    for (size_t i = 0; i < elements; i++) {
        difference += pow(buffer_get(actual, i) - expected[i], 2);
        norm += pow(expected[i], 2);
    }
    if (!(sqrt(difference) <= tolerance * sqrt(norm) + 1e-30))
        fail_msg("relative norm of the error %.3g, allowed %.3g", sqrt(difference / norm), tolerance);
}

static inline void assert_same_bits(buffer a, buffer b)
{
    assert_int_equal(a.bytes, b.bytes);
    assert_memory_equal(a.data, b.data, a.bytes);
}

static inline void run_kernel(tide_kernel kernel, const void *arguments)
{
    const tide_status status = kernel(NULL, arguments);
    if (status != TIDE_OK)
        fail_msg("%s: %s", tide_status_name(status), tide_message());
}

/* Teams of so many threads, also where the machine has fewer processors. */
static inline void use_threads(int threads)
{
    tide_kernels_cpu_configure(threads);
#if TIDE_HAVE_OPENMP
    omp_set_num_threads(threads);
#endif
}

/* Call check for each instruction set of this machine, both dtypes, one thread and three. */
static inline void for_each_configuration(void (*check)(const tide_cpu_variant *variant, tide_dtype dtype))
{
    for (tide_cpu_isa isa = TIDE_CPU_ISA_PORTABLE; isa < TIDE_CPU_ISA_COUNT; isa++)
        for (int threads = 1; tide_cpu_variant_get(isa) && threads <= 3; threads += 2) {
            use_threads(threads);
            check(tide_cpu_variant_get(isa), TIDE_DTYPE_FP32);
            check(tide_cpu_variant_get(isa), TIDE_DTYPE_BF16);
        }
}

#endif
