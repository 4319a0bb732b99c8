/* Cross entropy, and the two sums whose order is fixed: the loss and the gradient norm. */
#include "tests/kernels/test_kernels.h"
#include "tests/support/test_thin.h"

/* ---- cross entropy ---- */

typedef struct loss_shape {
    size_t rows, vocabulary, leading_dimension;
} loss_shape;

/* The last vocabularies have several tiles of the GPU's kernel. */
static const loss_shape shapes[] = {
    {1, 1, 1},       {2, 2, 3},         {3, 17, 17},       {5, 50, 64},       {4, 256, 256},
    {3, 5003, 5056}, {2, 50257, 50257}, {2, 50257, 50304}, {3, 16384, 16392}, {1, 128256, 128256}};
enum { SHAPES = sizeof shapes / sizeof shapes[0], SMALL_SHAPES = SHAPES - 4 };

/* A row of logits, and its loss, its gradients with the factor `scale` and zeros behind them. */
typedef struct loss_row {
    double *logits, *gradients;
    size_t vocabulary, leading_dimension, target;
    double scale;
} loss_row;

static double loss_reference(const void *of)
{
    const loss_row *row = of;
    double largest = -INFINITY, sum = 0.0;
    for (size_t i = 0; i < row->vocabulary; i++)
        largest = fmax(largest, row->logits[i]);
    for (size_t i = 0; i < row->vocabulary; i++)
        sum += exp(row->logits[i] - largest);
    memset(row->gradients, 0, row->leading_dimension * sizeof *row->gradients);
    for (size_t i = 0; i < row->vocabulary; i++)
        row->gradients[i] =
            row->scale * (exp(row->logits[i] - largest) / sum - (i == row->target ? 1.0 : 0.0));
    return log(sum) + largest - row->logits[row->target];
}

static void the_references_gradients_are_finite_differences(void **state)
{
    double logits[] = {1.5, -2.0, 0.3, 4.0, NAN}, gradients[5];
    const loss_row row = {logits, gradients, 4, 5, 2, 0.25};
    for (size_t i = 0; i < 5; i++) {
        const double slope = i < 4 ? slope_of(loss_reference, &row, &logits[i]) : 0.0;
        (void)loss_reference(&row);
        assert_true(fabs(0.25 * slope - gradients[i]) < 1e-7);
    }
}

static void cross_entropy_and_its_gradient_match_float64(const tide_kernels *kernels, tide_dtype dtype)
{
    for (const loss_shape *s = shapes; s < shapes + (test_large() ? SHAPES : SMALL_SHAPES); s++) {
        const size_t elements = s->rows * s->leading_dimension;
        buffer logits = buffer_random(elements, dtype, 8.0), losses = buffer_of(s->rows, TIDE_DTYPE_FP32);
        /* A kernel that reads the padding computes a NaN. */
        for (size_t i = 0; i < elements; i++)
            if (i % s->leading_dimension >= s->vocabulary)
                buffer_set(logits, i, (double)NAN);
        double *before = buffer_values(logits), *gradient = doubles(elements), *expected = doubles(s->rows);
        buffer targets = buffer_bytes(s->rows * sizeof(int32_t));
        for (size_t row = 0; row < s->rows; row++) {
            /* the first logit, the last, and others */
            const size_t target = row == 1 ? s->vocabulary - 1 : row * 7 % s->vocabulary;
            const size_t begin = row * s->leading_dimension;
            ((int32_t *)targets.data)[row] = (int32_t)target;
            expected[row] = loss_reference(&(loss_row){before + begin, gradient + begin, s->vocabulary,
                                                       s->leading_dimension, target, 0.25});
            if (row == 2) { /* not learned, and its first logit is not finite */
                ((int32_t *)targets.data)[row] = -1;
                buffer_set(logits, begin, (double)NAN);
                memset(gradient + begin, 0, s->leading_dimension * sizeof *gradient);
                expected[row] = 0.0;
            }
        }
        tide_cross_entropy_args args = {logits.data, targets.data,  losses.data,
                                        s->rows,     s->vocabulary, s->leading_dimension,
                                        0.25f,       false,         dtype};
        const buffer unchanged = buffer_copy(logits);
        run_kernel(kernels->cross_entropy, &args);
        for (size_t row = 0; row < s->rows; row++)
            assert_near(losses, row, expected[row], row == 2 ? 0.0 : 1e-6 * (1.0 + expected[row]));
        assert_same_bits(logits, unchanged);

        const buffer loss_only = buffer_copy(losses);
        args.gradient = true;
        run_kernel(kernels->cross_entropy, &args);
        assert_same_bits(losses, loss_only);
        for (size_t i = 0; i < elements; i++)
            assert_near(logits, i, gradient[i], 1e-6 * 0.25);
        buffers_free(logits, losses, unchanged, loss_only, targets);
        free(before);
        free(gradient);
        free(expected);
    }
}

static void a_logit_that_is_not_finite_makes_loss_and_gradient_nan(const tide_kernels *kernels,
                                                                   tide_dtype dtype)
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
    buffers_free(target, loss);
}

static void far_apart_logits_neither_overflow_nor_leave_crumbs(const tide_kernels *kernels, tide_dtype dtype)
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
    buffers_free(target, loss, logits);
}

/* A kernel may keep a row in shared memory if it begins at a multiple of 16 bytes. With a leading
 * dimension one wider than the vocabulary it can't, and reads the row element by element: the losses must
 * have the same bits. */
static void a_row_has_the_same_bits_at_any_address(const tide_kernels *kernels, tide_dtype dtype)
{
    const size_t vocabularies[] = {50256, 128256};
    for (size_t v = 0; v < (test_large() ? 2 : 1); v++) {
        const size_t vocabulary = vocabularies[v], wider = vocabulary + 1;
        buffer logits = buffer_random(vocabulary, dtype, 8.0), losses = buffer_of(2, TIDE_DTYPE_FP32);
        buffer loose = buffer_of(wider, dtype), target = buffer_bytes(sizeof(int32_t));
        for (size_t i = 0; i < vocabulary; i++)
            buffer_set(loose, i, buffer_get(logits, i));
        *(int32_t *)target.data = (int32_t)vocabulary - 3;
        tide_cross_entropy_args args = {logits.data, target.data, losses.data, 1,    vocabulary,
                                        vocabulary,  0.25f,       true,        dtype};
        run_kernel(kernels->cross_entropy, &args);
        args.logits = loose.data;
        args.losses = (float *)losses.data + 1;
        args.leading_dimension = wider;
        run_kernel(kernels->cross_entropy, &args);
        assert_memory_equal(losses.data, args.losses, sizeof(float));
        assert_memory_equal(logits.data, loose.data, vocabulary * tide_dtype_bytes(dtype));
        buffers_free(logits, losses, loose, target);
    }
}

static void losses_are_summed_in_leaves_of_64(void **state)
{
    static const size_t sizes[] = {0, 67, 134, 16384, 16385, 40000};
    buffer sum = buffer_bytes(sizeof(double));
    for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; s++) {
        buffer losses = buffer_random(sizes[s], TIDE_DTYPE_FP32, 5.0);
        double expected = 0.0;
        for (size_t begin = 0; begin < sizes[s]; begin += 64) {
            double leaf = 0.0;
            for (size_t row = begin; row < sizes[s] && row < begin + 64; row++)
                leaf += buffer_get(losses, row);
            expected += leaf;
        }
        run_kernel(test_table()->loss_sum, &(tide_loss_sum_args){losses.data, sum.data, sizes[s]});
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

static void the_norm_has_the_stated_order_on_every_instruction_set(const tide_kernels *kernels,
                                                                   tide_dtype dtype)
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
        buffers_free(sum, gradient, blocks);
    }
}

/* Checks many single leaves, since the sum of a whole block hides an error in the last bit of one leaf. */
static void a_leaf_is_folded_in_the_stated_order(const tide_kernels *kernels, tide_dtype dtype)
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

static void a_norm_summed_in_pieces_has_the_bits_of_the_whole(const tide_kernels *kernels, tide_dtype dtype)
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
    buffers_free(gradient, whole, pieces);
}

static void a_gradient_that_is_not_finite_shows_in_the_norm(const tide_kernels *kernels, tide_dtype dtype)
{
    buffer gradient = buffer_random(5000, dtype, 1.0);
    buffer results = buffer_bytes(3 * sizeof(double));
    double *blocks = results.data, *sum = blocks + 2;
    buffer_set(gradient, 4999, (double)NAN);
    run_kernel(kernels->gradient_norm, &(tide_gradient_norm_args){gradient.data, blocks, 0, 5000, dtype});
    run_kernel(kernels->norm_sum, &(tide_norm_sum_args){blocks, sum, 2});
    assert_true(isfinite(blocks[0]) && isnan(*sum));
    buffers_free(results, gradient);
}

static void blocks_are_summed_in_1024_lanes(void **state)
{
    const size_t counts[] = {0, 1, 1023, 1024, 1025, 2048, 5001, 8193, 20000};
    for (size_t c = 0; c < sizeof counts / sizeof counts[0]; c++) {
        buffer blocks = buffer_bytes(counts[c] * sizeof(double)), sum = buffer_bytes(sizeof(double));
        double lanes[1024] = {0}, expected = 0.0;
        for (size_t i = 0; i < counts[c]; i++)
            lanes[i % 1024] += ((double *)blocks.data)[i] = random_value() * random_value();
        for (size_t lane = 0; lane < 1024; lane++)
            expected += lanes[lane];
        run_kernel(test_table()->norm_sum, &(tide_norm_sum_args){blocks.data, sum.data, counts[c]});
        assert_memory_equal(sum.data, &expected, sizeof expected);
        buffers_free(blocks, sum);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_references_gradients_are_finite_differences),
        each_configuration(cross_entropy_and_its_gradient_match_float64),
        each_configuration(a_logit_that_is_not_finite_makes_loss_and_gradient_nan),
        each_configuration(far_apart_logits_neither_overflow_nor_leave_crumbs),
        each_configuration(a_row_has_the_same_bits_at_any_address),
        cmocka_unit_test(losses_are_summed_in_leaves_of_64),
        each_configuration(the_norm_has_the_stated_order_on_every_instruction_set),
        each_configuration(a_leaf_is_folded_in_the_stated_order),
        each_configuration(a_norm_summed_in_pieces_has_the_bits_of_the_whole),
        each_configuration(a_gradient_that_is_not_finite_shows_in_the_norm),
        cmocka_unit_test(blocks_are_summed_in_1024_lanes),
    };
    return RUN_KERNEL_TESTS(tests);
}
