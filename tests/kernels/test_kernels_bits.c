/* Kernels that must give the same bits wherever they run: sums, casts, copies, zeros. Casts are compared with
 * those of the CPU's portable table. (AdamW and restore: test_adam.c; the norm: test_kernels_loss.c.)
 *
 * The values include some that instruction sets might treat differently: denormals, infinities, ties,
 * extremes. Only cast gets NaNs, since the other kernels promise no payload of a NaN. Some addresses are
 * odd where the contract allows any address. */
#include "tests/kernels/test_kernels.h"

/* Sizes near a vector of 16 bytes and two of them, near the elements of one block of threads, and of more
 * than one block. */
static const size_t sizes[] = {0, 1, 3, 4, 7, 8, 9, 15, 16, 17, 2047, 2048, 2049, 5000, 33333};
enum { SIZES = sizeof sizes / sizeof sizes[0] };

static const tide_kernels *expected_table(void)
{
    use_threads(1);
    return &tide_cpu_variant_get(TIDE_CPU_ISA_PORTABLE)->kernels;
}

/* Random numbers, every third from the list below. */
static buffer difficult(size_t elements, tide_dtype dtype)
{
    const double values[] = {0.0,        -0.0,       1e-40,         -1.4e-45, 5.9604644775390625e-8,
                             2.98e-8,    65504.0,    65520.0,       3e38,     -3e38,
                             1.00390625, 1.01171875, 1.00048828125, -7e-6,    (double)INFINITY};
    buffer made = buffer_random(elements, dtype, 1.0);
    for (size_t i = 0; i < elements; i += 3)
        buffer_set(made, i, values[i / 3 % (sizeof values / sizeof values[0])]);
    return made;
}

/* Each sum is rounded to its type once; it may overwrite an operand. */
static void a_sum_is_that_of_float64_and_may_be_in_place(const tide_kernels *kernels, tide_dtype dtype)
{
    for (size_t s = 0; s < SIZES; s++) {
        const size_t n = sizes[s];
        buffer a = difficult(n, dtype), b = buffer_random(n, dtype, 1.0), out = buffer_of(n, dtype);
        buffer expected = buffer_of(n, dtype);
        for (size_t i = 0; i < n; i++)
            buffer_set(expected, i, buffer_get(a, i) + buffer_get(b, i));
        run_kernel(kernels->add, &(tide_add_args){a.data, b.data, out.data, n, dtype});
        assert_same_bits(out, expected);
        run_kernel(kernels->add, &(tide_add_args){a.data, b.data, a.data, n, dtype});
        assert_same_bits(a, expected);
        buffers_free(a, b, out, expected);
    }
}

/* A length at which each thread of the GPU's largest grid loops more than once, and the last loop is
 * incomplete. */
static void check_long(const tide_kernels *kernels, tide_dtype dtype)
{
    const size_t n = 2048 * 256 * 8 + 100013;
    buffer a = difficult(n, dtype), out = buffer_of(n, dtype), copied = buffer_of(n, dtype);
    buffer expected = buffer_of(n, dtype), sum = buffer_of(n, TIDE_DTYPE_FP32), widened = buffer_copy(sum);
    run_kernel(kernels->add, &(tide_add_args){a.data, a.data, out.data, n, dtype});
    run_on_cpu(expected_table()->add, &(tide_add_args){a.data, a.data, expected.data, n, dtype});
    assert_same_bits(out, expected);
    run_kernel(kernels->cast, &(tide_cast_args){out.data, sum.data, n, dtype, TIDE_DTYPE_FP32});
    run_on_cpu(expected_table()->cast, &(tide_cast_args){out.data, widened.data, n, dtype, TIDE_DTYPE_FP32});
    assert_same_bits(sum, widened);
    run_kernel(kernels->copy, &(tide_copy_args){out.data, copied.data, out.bytes});
    assert_same_bits(copied, out);
    buffers_free(a, out, copied, expected, sum, widened);
}

static void millions_of_elements_have_the_cpus_bits(void **state)
{
    use_threads(1);
    for (tide_dtype dtype = TIDE_DTYPE_FP32; dtype <= TIDE_DTYPE_FP16; dtype++)
        check_long(test_table(), dtype);
}

/* Casts `count` elements. Input and output begin shift_in and shift_out elements behind an aligned
 * address. */
static void check_one_cast(const tide_kernels *kernels, buffer in, tide_dtype out_dtype, size_t shift_in,
                           size_t shift_out, size_t count)
{
    buffer out = buffer_of(count + shift_out, out_dtype), expected = buffer_of(count + shift_out, out_dtype);
    tide_cast_args args = {(char *)in.data + shift_in * tide_dtype_bytes(in.dtype),
                           (char *)out.data + shift_out * tide_dtype_bytes(out_dtype), count, in.dtype,
                           out_dtype};
    run_kernel(kernels->cast, &args);
    args.out = (char *)expected.data + shift_out * tide_dtype_bytes(out_dtype);
    run_on_cpu(expected_table()->cast, &args);
    assert_same_bits(out, expected);
    buffers_free(out, expected);
}

static void a_cast_has_the_cpus_bits_at_any_alignment(const tide_kernels *kernels, tide_dtype dtype)
{
    for (size_t s = 0; s < SIZES; s++) {
        buffer in = difficult(sizes[s] + 8, dtype);
        buffer_set(in, 5, (double)NAN);
        for (tide_dtype to = TIDE_DTYPE_FP32; to <= TIDE_DTYPE_FP16; to++)
            for (size_t shift = 0; shift < 9; shift++)
                check_one_cast(kernels, in, to, shift % 3, shift / 3, sizes[s]);
        buffer_free(in);
    }
}

/* A number rounded and kept in fp32 is the number that a cast there and back gives. */
static void a_rounding_has_the_bits_of_two_casts(const tide_kernels *kernels, tide_dtype dtype)
{
    for (size_t s = 0; s < SIZES; s++) {
        const size_t n = sizes[s];
        buffer data = difficult(n + 8, TIDE_DTYPE_FP32), expected = buffer_copy(data);
        buffer_set(data, n / 2, (double)NAN);
        buffer_set(expected, n / 2, (double)NAN);
        buffer narrow = buffer_of(n, dtype);
        run_on_cpu(expected_table()->cast,
                   &(tide_cast_args){expected.data, narrow.data, n, TIDE_DTYPE_FP32, dtype});
        run_on_cpu(expected_table()->cast,
                   &(tide_cast_args){narrow.data, expected.data, n, dtype, TIDE_DTYPE_FP32});
        run_kernel(kernels->round, &(tide_round_args){data.data, n, dtype});
        assert_same_bits(data, expected);
        buffers_free(data, expected, narrow);
    }
}

/* Copies bytes from `from` + shift_in to `to` + shift_out, then zeroes them there, and checks that nothing
 * beside them changes. */
static void check_bytes_at(const tide_kernels *kernels, size_t bytes, size_t shift_in, size_t shift_out)
{
    buffer from = buffer_random(bytes + 16, TIDE_DTYPE_FP32, 1.0), to = buffer_bytes(bytes + 48);
    buffer expected = buffer_copy(to);
    memcpy((char *)expected.data + shift_out, (char *)from.data + shift_in, bytes);
    run_kernel(kernels->copy,
               &(tide_copy_args){(char *)from.data + shift_in, (char *)to.data + shift_out, bytes});
    assert_same_bits(to, expected);
    memset((char *)expected.data + shift_out, 0, bytes);
    run_kernel(kernels->zero, &(tide_zero_args){(char *)to.data + shift_out, bytes});
    assert_same_bits(to, expected);
    buffers_free(from, to, expected);
}

static void zero_and_copy_take_any_address_and_write_nothing_beside_it(const tide_kernels *kernels,
                                                                       tide_dtype dtype)
{
    const size_t lengths[] = {0, 1, 2, 5, 15, 16, 17, 31, 33, 64, 4097, 133332};
    const size_t shifts[] = {0, 1, 3, 4, 8, 12, 15};
    enum { SHIFTS = sizeof shifts / sizeof shifts[0] };
    if (dtype != TIDE_DTYPE_FP32)
        return; /* bytes have no type: one round is enough */
    for (size_t l = 0; l < sizeof lengths / sizeof lengths[0]; l++)
        for (size_t s = 0; s < SHIFTS * SHIFTS; s++)
            check_bytes_at(kernels, lengths[l], shifts[s % SHIFTS], shifts[s / SHIFTS]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        each_configuration(a_sum_is_that_of_float64_and_may_be_in_place),
        cmocka_unit_test(millions_of_elements_have_the_cpus_bits),
        each_configuration(a_cast_has_the_cpus_bits_at_any_alignment),
        each_configuration(a_rounding_has_the_bits_of_two_casts),
        each_configuration(zero_and_copy_take_any_address_and_write_nothing_beside_it),
    };
    return RUN_KERNEL_TESTS(tests);
}
