/* Cross entropy, and the two sums whose order is fixed: the loss and the gradient norm. */
#include "tests/kernels/test_kernels.h"

/* ---- cross entropy ---- */

typedef struct loss_shape {
    size_t rows, vocabulary, leading_dimension;
} loss_shape;

static const loss_shape shapes[] = {{1, 1, 1},   {2, 2, 3},     {3, 17, 17},
                                    {5, 50, 64}, {4, 256, 256}, {3, 5003, 5056}};
enum { SHAPES = sizeof shapes / sizeof shapes[0] };

static double loss_reference(const double *logits, size_t vocabulary, size_t target)
{
    double largest = -INFINITY, sum = 0.0;
    for (size_t i = 0; i < vocabulary; i++)
        largest = fmax(largest, logits[i]);
    for (size_t i = 0; i < vocabulary; i++)
        sum += exp(logits[i] - largest);
    return log(sum) + largest - logits[target];
}

/* The slope of one row's loss along one logit, by a finite difference. */
static double loss_slope(double *logits, size_t vocabulary, size_t target, size_t i)
{
    const double step = 1e-4, kept = logits[i];
    logits[i] = kept + step;
    const double above = loss_reference(logits, vocabulary, target);
    logits[i] = kept - step;
    const double below = loss_reference(logits, vocabulary, target);
    logits[i] = kept;
    return (above - below) / (2 * step);
}

static void check_gradient(buffer logits, double *before, const loss_shape *shape, const int32_t *targets,
                           double scale)
{
    double *expected = calloc(shape->rows * shape->leading_dimension, sizeof *expected);
    for (size_t row = 0; row < shape->rows; row++) {
        const size_t start = row * shape->leading_dimension;
        /* Finite differences along every logit of a small vocabulary, along every 97th of a large one. */
        const size_t stride = shape->vocabulary > 300 ? 97 : 1;
        for (size_t i = 0; i < shape->vocabulary; i += stride)
            expected[start + i] =
                scale * loss_slope(before + start, shape->vocabulary, (size_t)targets[row], i);
        for (size_t i = 0; i < shape->vocabulary; i++)
            if (i % stride != 0)
                expected[start + i] = buffer_get(logits, start + i);
    }
    assert_close(logits, expected, shape->rows * shape->leading_dimension, 1e-6);
    free(expected);
}

static void check_cross_entropy(const tide_kernels *kernels, tide_dtype dtype)
{
    for (size_t s = 0; s < SHAPES; s++) {
        const loss_shape *shape = &shapes[s];
        const size_t elements = shape->rows * shape->leading_dimension;
        buffer logits = buffer_random(elements, dtype, 10.0),
               losses = buffer_of(shape->rows, TIDE_DTYPE_FP32);
        /* A kernel that reads the padding computes a NaN. */
        for (size_t i = 0; i < elements; i++)
            if (i % shape->leading_dimension >= shape->vocabulary)
                buffer_set(logits, i, (double)NAN);
        double *before = buffer_values(logits), *expected = malloc(shape->rows * sizeof *expected);
        buffer target_buffer = buffer_bytes(shape->rows * sizeof(int32_t));
        int32_t *targets = target_buffer.data;
        for (size_t row = 0; row < shape->rows; row++) {
            targets[row] = (int32_t)(row * 7 % shape->vocabulary);
            expected[row] = loss_reference(before + row * shape->leading_dimension, shape->vocabulary,
                                           (size_t)targets[row]);
        }
        tide_cross_entropy_args args = {
            logits.data, targets, losses.data, shape->rows, shape->vocabulary, shape->leading_dimension,
            0.25f,       false,   dtype};
        const buffer unchanged = buffer_copy(logits);
        run_kernel(kernels->cross_entropy, &args);
        assert_close(losses, expected, shape->rows, 1e-6);
        assert_same_bits(logits, unchanged);

        const buffer loss_only = buffer_copy(losses);
        args.gradient = true;
        run_kernel(kernels->cross_entropy, &args);
        assert_same_bits(losses, loss_only);
        check_gradient(logits, before, shape, targets, 0.25);
        buffer buffers[] = {logits, losses, unchanged, loss_only, target_buffer};
        for (size_t i = 0; i < 5; i++)
            buffer_free(buffers[i]);
        free(before);
        free(expected);
    }
}

static void cross_entropy_matches_float64_and_its_gradient_finite_differences(void **state)
{
    (void)state;
    for_each_configuration(check_cross_entropy);
}

static void check_nonfinite(const tide_kernels *kernels, tide_dtype dtype)
{
    const double bad[] = {(double)NAN, (double)INFINITY};
    buffer target = buffer_bytes(sizeof(int32_t)), loss = buffer_of(1, TIDE_DTYPE_FP32);
    *(int32_t *)target.data = 2;
    for (size_t b = 0; b < 2; b++)
        for (size_t place = 0; place < 37; place++) {
            buffer logits = buffer_random(37, dtype, 1.0);
            buffer_set(logits, place, bad[b]);
            buffer_set(loss, 0, 0.0);
            run_kernel(kernels->cross_entropy, &(tide_cross_entropy_args){logits.data, target.data, loss.data,
                                                                          1, 37, 37, 1.0f, true, dtype});
            assert_true(isnan(buffer_get(loss, 0)) && isnan(buffer_get(logits, 0)));
            buffer_free(logits);
        }
    buffer_free(target);
    buffer_free(loss);
}

static void a_logit_that_is_not_finite_makes_loss_and_gradient_nan(void **state)
{
    (void)state;
    for_each_configuration(check_nonfinite);
}

static void check_very_different_logits(const tide_kernels *kernels, tide_dtype dtype)
{
    buffer target = buffer_bytes(sizeof(int32_t)), loss = buffer_of(1, TIDE_DTYPE_FP32);
    buffer logits = buffer_of(20, dtype);
    *(int32_t *)target.data = 1;
    for (size_t i = 0; i < 20; i++)
        buffer_set(logits, i, i == 0 ? 1000.0 : -1000.0);
    run_kernel(kernels->cross_entropy,
               &(tide_cross_entropy_args){logits.data, target.data, loss.data, 1, 20, 20, 1.0f, true, dtype});
    assert_true(buffer_get(loss, 0) == 2000.0);
    assert_true(buffer_get(logits, 0) == 1.0 && buffer_get(logits, 1) == -1.0 &&
                buffer_get(logits, 2) == 0.0);
    buffer_free(target);
    buffer_free(loss);
    buffer_free(logits);
}

static void far_apart_logits_neither_overflow_nor_leave_crumbs(void **state)
{
    (void)state;
    for_each_configuration(check_very_different_logits);
}

static void losses_are_summed_in_leaves_of_64(void **state)
{
    (void)state;
    buffer sum = buffer_bytes(sizeof(double));
    for (size_t rows = 0; rows <= 200; rows += 67) {
        buffer losses = buffer_random(rows, TIDE_DTYPE_FP32, 5.0);
        double expected = *(double *)sum.data = 1.5;
        for (size_t begin = 0; begin < rows; begin += 64) {
            double leaf = 0.0;
            for (size_t row = begin; row < rows && row < begin + 64; row++)
                leaf += buffer_get(losses, row);
            expected += leaf;
        }
        run_kernel(test_table()->loss_sum, &(tide_loss_sum_args){losses.data, sum.data, rows});
        assert_memory_equal(sum.data, &expected, sizeof expected);
        buffer_free(losses);
    }
    buffer_free(sum);
}

/* ---- gradient norm ---- */

/* The sum of a leaf, the up to 64 elements from `begin` on, in the order of additions that kernels.h states;
 * volatile keeps the compiler from changing it. */
static double leaf_reference(buffer gradient, size_t begin, size_t elements)
{
    volatile double lane[8] = {0};
    for (size_t i = 0; i < 64; i++)
        if (begin + i < elements) {
            const volatile double square = buffer_get(gradient, begin + i) * buffer_get(gradient, begin + i);
            lane[i % 8] = lane[i % 8] + square;
        }
    return ((lane[0] + lane[4]) + (lane[2] + lane[6])) + ((lane[1] + lane[5]) + (lane[3] + lane[7]));
}

static double block_reference(buffer gradient, size_t block, size_t elements)
{
    double sum = 0.0;
    for (size_t leaf = block * 4096; leaf < elements && leaf < (block + 1) * 4096; leaf += 64)
        sum += leaf_reference(gradient, leaf, elements);
    return sum;
}

static void check_norm(const tide_kernels *kernels, tide_dtype dtype)
{
    const size_t sizes[] = {1, 7, 63, 64, 65, 4095, 4096, 4097, 50000};
    for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; s++) {
        const size_t n = sizes[s], count = tide_norm_blocks(n);
        buffer gradient = buffer_random(n, dtype, 1e-3), blocks = buffer_bytes(count * sizeof(double));
        run_kernel(kernels->gradient_norm,
                   &(tide_gradient_norm_args){gradient.data, blocks.data, 0, n, dtype});
        double expected = 0.0;
        buffer sum = buffer_bytes(sizeof(double));
        for (size_t block = 0; block < count; block++) {
            const double reference = block_reference(gradient, block, n);
            assert_memory_equal((double *)blocks.data + block, &reference, sizeof reference);
            expected += reference;
        }
        run_kernel(kernels->norm_sum, &(tide_norm_sum_args){blocks.data, sum.data, count});
        assert_memory_equal(sum.data, &expected, sizeof expected);
        buffer_free(sum);
        buffer_free(gradient);
        buffer_free(blocks);
    }
}

static void the_norm_has_the_stated_order_on_every_instruction_set(void **state)
{
    (void)state;
    for_each_configuration(check_norm);
}

/* Checks many single leaves, since the sum of a whole block hides an error in the last bit of one leaf. */
static void check_leaves(const tide_kernels *kernels, tide_dtype dtype)
{
    buffer block = buffer_bytes(sizeof(double));
    for (size_t leaf = 0; leaf < 60; leaf++) {
        const size_t elements = leaf % 2 == 0 ? 64 : 55;
        buffer gradient = buffer_random(elements, dtype, 1e-3);
        const double reference = leaf_reference(gradient, 0, elements);
        run_kernel(kernels->gradient_norm,
                   &(tide_gradient_norm_args){gradient.data, block.data, 0, elements, dtype});
        assert_memory_equal(block.data, &reference, sizeof reference);
        buffer_free(gradient);
    }
    buffer_free(block);
}

static void a_leaf_is_folded_in_the_stated_order(void **state)
{
    (void)state;
    for_each_configuration(check_leaves);
}

static void check_norm_in_pieces(const tide_kernels *kernels, tide_dtype dtype)
{
    enum { COUNT = 20000, BLOCKS = (COUNT + 4095) / 4096 };
    const size_t cuts[] = {0, 64, 4096, 4160, 12224, COUNT};
    buffer whole = buffer_bytes(BLOCKS * sizeof(double)), pieces = buffer_bytes(BLOCKS * sizeof(double));
    buffer gradient = buffer_random(COUNT, dtype, 1.0);
    run_kernel(kernels->gradient_norm,
               &(tide_gradient_norm_args){gradient.data, whole.data, 0, COUNT, dtype});
    for (size_t c = 0; c + 1 < sizeof cuts / sizeof cuts[0]; c++)
        run_kernel(kernels->gradient_norm,
                   &(tide_gradient_norm_args){(char *)gradient.data + cuts[c] * tide_dtype_bytes(dtype),
                                              pieces.data, cuts[c], cuts[c + 1] - cuts[c], dtype});
    assert_same_bits(whole, pieces);
    buffer_free(gradient);
    buffer_free(whole);
    buffer_free(pieces);
}

static void a_norm_summed_in_pieces_has_the_bits_of_the_whole(void **state)
{
    (void)state;
    for_each_configuration(check_norm_in_pieces);
}

static void check_norm_nonfinite(const tide_kernels *kernels, tide_dtype dtype)
{
    buffer gradient = buffer_random(5000, dtype, 1.0);
    buffer results = buffer_bytes(3 * sizeof(double));
    double *blocks = results.data, *sum = blocks + 2;
    buffer_set(gradient, 4999, (double)NAN);
    run_kernel(kernels->gradient_norm, &(tide_gradient_norm_args){gradient.data, blocks, 0, 5000, dtype});
    run_kernel(kernels->norm_sum, &(tide_norm_sum_args){blocks, sum, 2});
    assert_true(isfinite(blocks[0]) && isnan(*sum));
    buffer_free(results);
    buffer_free(gradient);
}

static void a_gradient_that_is_not_finite_shows_in_the_norm(void **state)
{
    (void)state;
    for_each_configuration(check_norm_nonfinite);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(cross_entropy_matches_float64_and_its_gradient_finite_differences),
        cmocka_unit_test(a_logit_that_is_not_finite_makes_loss_and_gradient_nan),
        cmocka_unit_test(far_apart_logits_neither_overflow_nor_leave_crumbs),
        cmocka_unit_test(losses_are_summed_in_leaves_of_64),
        cmocka_unit_test(the_norm_has_the_stated_order_on_every_instruction_set),
        cmocka_unit_test(a_leaf_is_folded_in_the_stated_order),
        cmocka_unit_test(a_norm_summed_in_pieces_has_the_bits_of_the_whole),
        cmocka_unit_test(a_gradient_that_is_not_finite_shows_in_the_norm),
    };
    return RUN_KERNEL_TESTS(tests);
}
