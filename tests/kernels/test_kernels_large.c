/* Kernels at sizes that make them loop once more: rows wider than a block of the GPU holds, more rows than
 * its grid, a token so frequent that the list of its rows overflows, sums over several tiles. The expected
 * results are float64 sums in the plainest order or, where a kernel promises an order, sums in that order. */
#include "tests/kernels/test_kernels.h"

/* ---- embedding ---- */

typedef struct embedding_shape {
    size_t rows, width;
} embedding_shape;

enum { VOCABULARY = 3000, LENGTH = 100, FREQUENT = 1234 };

/* Random tokens of which six in ten are FREQUENT. */
static buffer skewed_tokens(size_t rows)
{
    buffer made = buffer_bytes(rows * sizeof(int32_t));
    int32_t *tokens = made.data;
    for (size_t row = 0; row < rows; row++) {
        const double any = (random_value() + 1.0) / 2.0 * VOCABULARY;
        tokens[row] = random_value() < 0.2 ? FREQUENT : (int32_t)any;
    }
    return made;
}

static void check_embedding_backward(const tide_kernels *kernels, tide_dtype dtype)
{
    const embedding_shape shapes[] = {{5003, 17}, {7003, 24}, {40, 2112}, {40, 2113}};
    for (size_t s = 0; s < sizeof shapes / sizeof shapes[0]; s++) {
        const size_t rows = shapes[s].rows, width = shapes[s].width;
        buffer tokens = skewed_tokens(rows), dout = buffer_random(rows * width, dtype, 1.0);
        buffer dwte = buffer_random(VOCABULARY * width, TIDE_DTYPE_FP32, 1.0);
        buffer dwpe = buffer_random(LENGTH * width, TIDE_DTYPE_FP32, 1.0);
        double *wte_expected = buffer_values(dwte), *wpe_expected = buffer_values(dwpe);
        for (size_t i = 0; i < rows * width; i++) {
            const size_t token = (size_t)((const int32_t *)tokens.data)[i / width];
            wte_expected[token * width + i % width] += buffer_get(dout, i);
            wpe_expected[i / width % LENGTH * width + i % width] += buffer_get(dout, i);
        }
        run_kernel(kernels->embedding_backward,
                   &(tide_embedding_backward_args){tokens.data, dout.data, dwte.data, dwpe.data, rows, LENGTH,
                                                   width, VOCABULARY, dtype, 0});
        assert_close(dwte, wte_expected, VOCABULARY * width, 1e-5);
        assert_close(dwpe, wpe_expected, LENGTH * width, 1e-6);
        free(wte_expected);
        free(wpe_expected);
        buffer buffers[] = {tokens, dout, dwte, dwpe};
        for (size_t i = 0; i < 4; i++)
            buffer_free(buffers[i]);
    }
}

static void a_token_of_thousands_of_rows_gets_every_one_of_them(void **state)
{
    (void)state;
    for_each_configuration(check_embedding_backward);
}

/* ---- layer norm and the bias' gradient ---- */

typedef struct norm_shape {
    size_t rows, width;
} norm_shape;

static const norm_shape norm_shapes[] = {{37, 1040}, {2, 1041},  {9, 8200},
                                         {2, 16400}, {1100, 20}, {1030, 24}};
enum { NORM_SHAPES = sizeof norm_shapes / sizeof norm_shapes[0] };

/* Operands and results of a layer norm in float64. truth_row() replaces `x` by the normalized values. */
typedef struct norm_truth {
    double *x, *w, *b, *g; /* in, weight, bias, dout */
    double *y, *mean, *rstd, *dx, *dw, *db;
} norm_truth;

static double *doubles(size_t count)
{
    double *made = calloc(count, sizeof *made);
    assert_non_null(made);
    return made;
}

static void truth_row(const norm_truth *t, size_t row, size_t width)
{
    double *x = t->x + row * width, *g = t->g + row * width;
    double sum = 0.0, squares = 0.0, g_sum = 0.0, product_sum = 0.0;
    for (size_t i = 0; i < width; i++)
        sum += x[i];
    const double mean = t->mean[row] = sum / (double)width;
    for (size_t i = 0; i < width; i++)
        squares += (x[i] - mean) * (x[i] - mean);
    const double rstd = t->rstd[row] = 1.0 / sqrt(squares / (double)width + 1e-5);
    for (size_t i = 0; i < width; i++) {
        x[i] = (x[i] - mean) * rstd;
        t->y[row * width + i] = x[i] * t->w[i] + t->b[i];
        t->dw[i] += g[i] * x[i];
        t->db[i] += g[i];
        g_sum += g[i] * t->w[i];
        product_sum += g[i] * t->w[i] * x[i];
    }
    for (size_t i = 0; i < width; i++)
        t->dx[row * width + i] = rstd * (g[i] * t->w[i] - (g_sum + x[i] * product_sum) / (double)width);
}

/* Random values between -1 and 3, so that the mean of a row is near 1, not 0. */
static buffer random_around_one(size_t elements, tide_dtype dtype)
{
    buffer made = buffer_of(elements, dtype);
    for (size_t i = 0; i < elements; i++)
        buffer_set(made, i, 1.0 + 2.0 * random_value());
    return made;
}

static void truth_free(norm_truth *t)
{
    double *all[] = {t->x, t->w, t->b, t->g, t->y, t->mean, t->rstd, t->dx, t->dw, t->db};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        free(all[i]);
}

static void check_norm_shape(const tide_kernels *kernels, tide_dtype dtype, size_t rows, size_t width)
{
    const size_t elements = rows * width;
    buffer in = random_around_one(elements, dtype), weight = buffer_random(width, dtype, 1.5);
    buffer bias = buffer_random(width, dtype, 0.5), dout = buffer_random(elements, dtype, 1.0);
    buffer out = buffer_of(elements, dtype), din = buffer_of(elements, dtype);
    buffer mean = buffer_of(rows, TIDE_DTYPE_FP32), rstd = buffer_of(rows, TIDE_DTYPE_FP32);
    buffer dweight = buffer_random(width, TIDE_DTYPE_FP32, 1.0),
           dbias = buffer_random(width, TIDE_DTYPE_FP32, 1.0);
    norm_truth t = {.x = buffer_values(in),
                    .w = buffer_values(weight),
                    .b = buffer_values(bias),
                    .g = buffer_values(dout),
                    .y = doubles(elements),
                    .mean = doubles(rows),
                    .rstd = doubles(rows),
                    .dx = doubles(elements),
                    .dw = buffer_values(dweight),
                    .db = buffer_values(dbias)};
    for (size_t row = 0; row < rows; row++)
        truth_row(&t, row, width);
    run_kernel(kernels->layer_norm, &(tide_layer_norm_args){in.data, weight.data, bias.data, out.data,
                                                            mean.data, rstd.data, rows, width, 1e-5f, dtype});
    assert_close(out, t.y, elements, 2e-6);
    assert_close(mean, t.mean, rows, 1e-6);
    assert_close(rstd, t.rstd, rows, 2e-6);
    run_layer_norm_backward(kernels, &(tide_layer_norm_backward_args){
                                         in.data, weight.data, dout.data, mean.data, rstd.data, din.data,
                                         dweight.data, dbias.data, NULL, 0, rows, width, false, dtype});
    assert_close(din, t.dx, elements, 2e-6);
    assert_close(dweight, t.dw, width, 2e-6);
    assert_close(dbias, t.db, width, 2e-6);
    truth_free(&t);
    buffer buffers[] = {in, weight, bias, dout, out, din, mean, rstd, dweight, dbias};
    for (size_t i = 0; i < sizeof buffers / sizeof buffers[0]; i++)
        buffer_free(buffers[i]);
}

static void check_norms(const tide_kernels *kernels, tide_dtype dtype)
{
    for (size_t s = 0; s < NORM_SHAPES; s++)
        check_norm_shape(kernels, dtype, norm_shapes[s].rows, norm_shapes[s].width);
}

static void wide_rows_and_many_rows_are_normed_as_in_float64(void **state)
{
    (void)state;
    for_each_configuration(check_norms);
}

static void check_bias(const tide_kernels *kernels, tide_dtype dtype)
{
    const norm_shape shapes[] = {{4100, 24}, {4100, 33}, {2049, 40}};
    for (size_t s = 0; s < sizeof shapes / sizeof shapes[0]; s++) {
        const size_t rows = shapes[s].rows, width = shapes[s].width;
        buffer dout = buffer_random(rows * width, dtype, 1.0),
               dbias = buffer_random(width, TIDE_DTYPE_FP32, 1.0);
        double *expected = buffer_values(dbias);
        for (size_t i = 0; i < rows * width; i++)
            expected[i % width] += buffer_get(dout, i);
        run_kernel(kernels->bias_backward,
                   &(tide_bias_backward_args){dout.data, dbias.data, rows, width, dtype});
        assert_close(dbias, expected, width, 2e-6);
        free(expected);
        buffer_free(dout);
        buffer_free(dbias);
    }
}

static void columns_of_thousands_of_rows_are_summed(void **state)
{
    (void)state;
    for_each_configuration(check_bias);
}

/* ---- RMS norm, SwiGLU, RoPE ---- */

/* Heads wider than a block holds, more heads than the grid has rows, and several wide heads for each row
 * of partial sums. */
static void check_rms_norm_shape(const tide_kernels *kernels, tide_dtype dtype, size_t rows, size_t heads,
                                 size_t width)
{
    const size_t all = rows * heads, elements = all * width;
    /* The terms are squares, so neither they nor their roundings cancel; a head that lacks one of 16401
     * terms is off by 3e-5. */
    const double tolerance = 1e-5;
    buffer in = buffer_random(elements, dtype, 2.0), weight = buffer_random(width, dtype, 1.5);
    buffer dout = buffer_random(elements, dtype, 1.0), out = buffer_of(elements, dtype),
           din = buffer_of(elements, dtype);
    buffer rstd = buffer_of(all, TIDE_DTYPE_FP32), dweight = buffer_random(width, TIDE_DTYPE_FP32, 1.0);
    double *x = buffer_values(in), *w = buffer_values(weight), *g = buffer_values(dout),
           *y = doubles(elements);
    double *rstds = doubles(all), *dx = doubles(elements), *dw = buffer_values(dweight);
    for (size_t head = 0; head < all; head++) {
        double squares = 0.0, weighted_sum = 0.0;
        for (size_t i = head * width; i < (head + 1) * width; i++) {
            squares += x[i] * x[i];
            weighted_sum += g[i] * w[i % width] * x[i];
        }
        const double r = rstds[head] = 1.0 / sqrt(squares / (double)width + 1e-5);
        for (size_t i = head * width; i < (head + 1) * width; i++) {
            y[i] = x[i] * r * w[i % width];
            dx[i] = r * (g[i] * w[i % width] - x[i] * r * r * weighted_sum / (double)width);
            dw[i % width] += g[i] * x[i] * r;
        }
    }
    run_kernel(kernels->rms_norm,
               &(tide_rms_norm_args){in.data, weight.data, out.data, rstd.data, rows, heads, width,
                                     heads * width, heads * width, 1e-5f, dtype});
    assert_close(out, y, elements, tolerance);
    assert_close(rstd, rstds, all, tolerance);
    run_rms_norm_backward(kernels, &(tide_rms_norm_backward_args){.in = in.data,
                                                                  .weight = weight.data,
                                                                  .dout = dout.data,
                                                                  .rstd = rstd.data,
                                                                  .din = din.data,
                                                                  .dweight = dweight.data,
                                                                  .rows = rows,
                                                                  .heads = heads,
                                                                  .width = width,
                                                                  .in_row = heads * width,
                                                                  .dout_row = heads * width,
                                                                  .dtype = dtype});
    assert_close(din, dx, elements, tolerance);
    /* Sums of `all` numbers around 0 may come near 0; their rounding errors do not. */
    double scale = sqrt((double)all);
    for (size_t i = 0; i < width; i++)
        scale = fmax(scale, fabs(dw[i]));
    for (size_t i = 0; i < width; i++)
        assert_near(dweight, i, dw[i], tolerance * scale);
    double *values[] = {x, w, g, y, rstds, dx, dw};
    buffer buffers[] = {in, weight, dout, out, din, rstd, dweight};
    for (size_t i = 0; i < sizeof buffers / sizeof buffers[0]; i++) {
        free(values[i]);
        buffer_free(buffers[i]);
    }
}

static void check_rms_norms(const tide_kernels *kernels, tide_dtype dtype)
{
    check_rms_norm_shape(kernels, dtype, 37, 1, 1040);
    check_rms_norm_shape(kernels, dtype, 9, 1, 8200);
    check_rms_norm_shape(kernels, dtype, 2, 1, 16401);
    check_rms_norm_shape(kernels, dtype, 1100, 3, 20);
    check_rms_norm_shape(kernels, dtype, 66001, 1, 2);
}

static void wide_heads_and_many_heads_are_rms_normed_as_in_float64(void **state)
{
    (void)state;
    for_each_configuration(check_rms_norms);
}

/* More rows than the grid has, and rows longer than the grid is wide. */
static void check_gates(const tide_kernels *kernels, tide_dtype dtype)
{
    const norm_shape shapes[] = {{66001, 3}, {2, 700001}};
    for (size_t s = 0; s < sizeof shapes / sizeof shapes[0]; s++) {
        const size_t rows = shapes[s].rows, width = shapes[s].width;
        buffer in = buffer_random(rows * 2 * width, dtype, 4.0),
               dout = buffer_random(rows * width, dtype, 1.0);
        buffer out = buffer_of(rows * width, dtype), din = buffer_of(rows * 2 * width, dtype);
        run_kernel(kernels->swiglu, &(tide_swiglu_args){in.data, out.data, rows, width, dtype});
        run_kernel(kernels->swiglu_backward,
                   &(tide_swiglu_backward_args){in.data, dout.data, din.data, rows, width, dtype});
        for (size_t i = 0; i < rows * width; i++) {
            const size_t gate = i / width * 2 * width + i % width;
            const double x = buffer_get(in, gate), up = buffer_get(in, gate + width), g = buffer_get(dout, i);
            const double sigmoid = 1.0 / (1.0 + exp(-x));
            assert_near(out, i, x * sigmoid * up, 1e-4);
            assert_near(din, gate, g * up * sigmoid * (1.0 + x * (1.0 - sigmoid)), 1e-4);
            assert_near(din, gate + width, g * x * sigmoid, 1e-4);
        }
        buffer buffers[] = {in, dout, out, din};
        for (size_t i = 0; i < sizeof buffers / sizeof buffers[0]; i++)
            buffer_free(buffers[i]);
    }
}

static void many_rows_and_long_rows_pass_the_gate(void **state)
{
    (void)state;
    for_each_configuration(check_gates);
}

/* One pair (3, 4) a row, rotated by 2 pi / 5 times the row's position in the sequence. */
static void check_rope(const tide_kernels *kernels, tide_dtype dtype)
{
    enum { ROWS = 66001, PERIOD = 5 };
    const double angle = 2.0 * acos(-1.0) / PERIOD;
    buffer data = buffer_of(ROWS * 2, dtype), table = buffer_of(PERIOD * 2, TIDE_DTYPE_FP32);
    for (size_t i = 0; i < ROWS * 2; i++)
        buffer_set(data, i, i % 2 == 0 ? 3.0 : 4.0);
    for (size_t position = 0; position < PERIOD; position++) {
        buffer_set(table, 2 * position, cos(angle * (double)position));
        buffer_set(table, 2 * position + 1, sin(angle * (double)position));
    }
    run_kernel(kernels->rope, &(tide_rope_args){data.data, table.data, ROWS, PERIOD, 1, 2, 2, false, dtype});
    for (size_t row = 0; row < ROWS; row++) {
        const double c = cos(angle * (double)(row % PERIOD)), s = sin(angle * (double)(row % PERIOD));
        assert_near(data, 2 * row, 3.0 * c - 4.0 * s, 1e-5);
        assert_near(data, 2 * row + 1, 4.0 * c + 3.0 * s, 1e-5);
    }
    buffer_free(data);
    buffer_free(table);
}

static void every_one_of_many_rows_is_rotated(void **state)
{
    (void)state;
    for_each_configuration(check_rope);
}

/* ---- cross entropy ---- */

typedef struct loss_shape {
    size_t rows, vocabulary, leading_dimension;
} loss_shape;

/* Returns the loss of one row and replaces `logits` by their gradients. */
static double loss_truth(double *logits, size_t vocabulary, size_t leading_dimension, size_t target,
                         double scale)
{
    double largest = -INFINITY, sum = 0.0;
    for (size_t i = 0; i < vocabulary; i++)
        largest = fmax(largest, logits[i]);
    for (size_t i = 0; i < vocabulary; i++)
        sum += exp(logits[i] - largest);
    const double loss = log(sum) + largest - logits[target];
    for (size_t i = 0; i < leading_dimension; i++)
        logits[i] =
            i < vocabulary ? scale * (exp(logits[i] - largest) / sum - (i == target ? 1.0 : 0.0)) : 0.0;
    return loss;
}

static void check_cross_entropy(const tide_kernels *kernels, tide_dtype dtype)
{
    const loss_shape shapes[] = {
        {2, 50257, 50257}, {2, 50257, 50304}, {3, 16384, 16392}, {1, 128256, 128256}};
    for (size_t s = 0; s < sizeof shapes / sizeof shapes[0]; s++) {
        const size_t rows = shapes[s].rows, vocabulary = shapes[s].vocabulary,
                     stride = shapes[s].leading_dimension;
        buffer logits = buffer_random(rows * stride, dtype, 8.0), losses = buffer_of(rows, TIDE_DTYPE_FP32);
        buffer targets = buffer_bytes(rows * sizeof(int32_t));
        double *gradient = buffer_values(logits), *expected = doubles(rows);
        /* The targets are the first logit, the last, and one in the middle. */
        for (size_t row = 0; row < rows; row++) {
            const size_t target = row == 0 ? 0 : row == 1 ? vocabulary - 1 : vocabulary / 2 + 1;
            ((int32_t *)targets.data)[row] = (int32_t)target;
            expected[row] = loss_truth(gradient + row * stride, vocabulary, stride, target, 0.25);
        }
        run_kernel(kernels->cross_entropy,
                   &(tide_cross_entropy_args){logits.data, targets.data, losses.data, rows, vocabulary,
                                              stride, 0.25f, true, dtype});
        assert_close(losses, expected, rows, 1e-6);
        assert_close(logits, gradient, rows * stride, 1e-6);
        free(gradient);
        free(expected);
        buffer_free(logits);
        buffer_free(losses);
        buffer_free(targets);
    }
}

static void a_vocabulary_of_several_tiles_has_its_loss_and_gradient(void **state)
{
    (void)state;
    for_each_configuration(check_cross_entropy);
}

/* A kernel may keep a row in shared memory if it begins at a multiple of 16 bytes. With a leading
 * dimension one wider than the vocabulary it can't, and reads the row element by element: the losses must
 * have the same bits. */
static void check_held_rows(const tide_kernels *kernels, tide_dtype dtype)
{
    const size_t vocabularies[] = {50256, 128256};
    for (size_t v = 0; v < 2; v++) {
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
        buffer_free(logits);
        buffer_free(losses);
        buffer_free(loose);
        buffer_free(target);
    }
}

static void a_row_has_the_same_bits_at_any_address(void **state)
{
    (void)state;
    for_each_configuration(check_held_rows);
}

/* ---- sums with a promised order ---- */

static void losses_of_several_tiles_are_summed_in_order(void **state)
{
    (void)state;
    const size_t sizes[] = {16384, 16385, 40000};
    for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; s++) {
        buffer losses = buffer_random(sizes[s], TIDE_DTYPE_FP32, 5.0), sum = buffer_bytes(sizeof(double));
        double expected = *(double *)sum.data = 1.5;
        for (size_t begin = 0; begin < sizes[s]; begin += TIDE_NORM_LEAF_ELEMENTS) {
            double leaf = 0.0;
            for (size_t row = begin; row < sizes[s] && row < begin + TIDE_NORM_LEAF_ELEMENTS; row++)
                leaf += buffer_get(losses, row);
            expected += leaf;
        }
        run_kernel(test_table()->loss_sum, &(tide_loss_sum_args){losses.data, sum.data, sizes[s]});
        assert_memory_equal(sum.data, &expected, sizeof expected);
        buffer_free(losses);
        buffer_free(sum);
    }
}

static void blocks_are_summed_in_1024_lanes(void **state)
{
    (void)state;
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
        buffer_free(blocks);
        buffer_free(sum);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_token_of_thousands_of_rows_gets_every_one_of_them),
        cmocka_unit_test(wide_rows_and_many_rows_are_normed_as_in_float64),
        cmocka_unit_test(wide_heads_and_many_heads_are_rms_normed_as_in_float64),
        cmocka_unit_test(many_rows_and_long_rows_pass_the_gate),
        cmocka_unit_test(every_one_of_many_rows_is_rotated),
        cmocka_unit_test(columns_of_thousands_of_rows_are_summed),
        cmocka_unit_test(a_vocabulary_of_several_tiles_has_its_loss_and_gradient),
        cmocka_unit_test(a_row_has_the_same_bits_at_any_address),
        cmocka_unit_test(losses_of_several_tiles_are_summed_in_order),
        cmocka_unit_test(blocks_are_summed_in_1024_lanes),
    };
    return RUN_KERNEL_TESTS(tests);
}
