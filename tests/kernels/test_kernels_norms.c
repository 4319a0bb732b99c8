/* Kernels over rows and columns: embedding, layer norm, the bias' gradient. They are compared with float64
 * and finite differences, and bit by bit between gradients computed alone and together. */
#include "tests/kernels/test_kernels.h"

typedef struct shape {
    size_t rows, width;
} shape;

static const shape shapes[] = {{1, 1}, {1, 17}, {3, 2}, {5, 64}, {70, 33}, {33, 100}, {40, 513}};
enum { SHAPES = sizeof shapes / sizeof shapes[0] };

/* ---- embedding ---- */

static buffer random_tokens(size_t rows, size_t vocabulary)
{
    buffer tokens = buffer_bytes(rows * sizeof(int32_t));
    for (size_t row = 0; row < rows; row++)
        ((int32_t *)tokens.data)[row] = (int32_t)((random_value() + 1.0) / 2.0 * (double)vocabulary);
    return tokens;
}

static void check_embedding(const tide_kernels *kernels, tide_dtype dtype)
{
    enum { VOCABULARY = 11, LENGTH = 7 };
    for (size_t s = 0; s < SHAPES; s++) {
        const size_t rows = shapes[s].rows, width = shapes[s].width;
        buffer token_buffer = random_tokens(rows, VOCABULARY);
        const int32_t *tokens = token_buffer.data;
        buffer wte = buffer_random(VOCABULARY * width, dtype, 1.0),
               wpe = buffer_random(LENGTH * width, dtype, 1.0);
        buffer out = buffer_of(rows * width, dtype);
        double *expected = malloc(rows * width * sizeof *expected);
        for (size_t i = 0; i < rows * width; i++)
            expected[i] = buffer_get(wte, (size_t)tokens[i / width] * width + i % width) +
                          buffer_get(wpe, i / width % LENGTH * width + i % width);
        run_kernel(kernels->embedding, &(tide_embedding_args){tokens, wte.data, wpe.data, out.data, rows,
                                                              LENGTH, width, VOCABULARY, dtype});
        assert_close(out, expected, rows * width, 0.0);
        memset(out.data, POISON, out.bytes);
        run_kernel(kernels->embedding, &(tide_embedding_args){tokens, wte.data, NULL, out.data, rows, LENGTH,
                                                              width, VOCABULARY, dtype});
        /* Without positions nothing is added, so nothing is rounded. */
        for (size_t i = 0; i < rows * width; i++)
            assert_true(buffer_get(out, i) == buffer_get(wte, (size_t)tokens[i / width] * width + i % width));
        free(expected);
        buffer_free(token_buffer);
        buffer_free(wte);
        buffer_free(wpe);
        buffer_free(out);
    }
}

static void embedding_adds_token_and_position_or_takes_the_token_alone(void **state)
{
    (void)state;
    for_each_configuration(check_embedding);
}

static void check_embedding_backward(const tide_kernels *kernels, tide_dtype dtype)
{
    enum { VOCABULARY = 11, LENGTH = 7 };
    for (size_t s = 0; s < SHAPES; s++) {
        const size_t rows = shapes[s].rows, width = shapes[s].width;
        buffer token_buffer = random_tokens(rows, VOCABULARY);
        const int32_t *tokens = token_buffer.data;
        buffer dout = buffer_random(rows * width, dtype, 1.0);
        buffer dwte = buffer_random(VOCABULARY * width, TIDE_DTYPE_FP32, 1.0);
        buffer dwpe = buffer_random(LENGTH * width, TIDE_DTYPE_FP32, 1.0);
        double *wte_expected = buffer_values(dwte), *wpe_expected = buffer_values(dwpe);
        for (size_t i = 0; i < rows * width; i++) {
            wte_expected[(size_t)tokens[i / width] * width + i % width] += buffer_get(dout, i);
            wpe_expected[i / width % LENGTH * width + i % width] += buffer_get(dout, i);
        }
        run_kernel(kernels->embedding_backward,
                   &(tide_embedding_backward_args){tokens, dout.data, dwte.data, dwpe.data, rows, LENGTH,
                                                   width, VOCABULARY, dtype, 0});
        assert_close(dwte, wte_expected, VOCABULARY * width, 1e-6);
        assert_close(dwpe, wpe_expected, LENGTH * width, 1e-6);
        free(wte_expected);
        free(wpe_expected);
        buffer_free(token_buffer);
        buffer_free(dout);
        buffer_free(dwte);
        buffer_free(dwpe);
    }
}

static void embedding_backward_adds_rows_that_tokens_share(void **state)
{
    (void)state;
    for_each_configuration(check_embedding_backward);
}

static void check_untouched_rows(const tide_kernels *kernels, tide_dtype dtype)
{
    const size_t vocabulary = 5, width = 40;
    buffer tokens = buffer_bytes(2 * sizeof(int32_t));
    ((int32_t *)tokens.data)[0] = ((int32_t *)tokens.data)[1] = 3;
    buffer dout = buffer_random(2 * width, dtype, 1.0);
    buffer dwte = buffer_of(vocabulary * width, TIDE_DTYPE_FP32),
           dwpe = buffer_of(2 * width, TIDE_DTYPE_FP32);
    buffer poisoned = buffer_copy(dwte);
    memset((float *)dwte.data + 3 * width, 0, width * sizeof(float));
    run_kernel(kernels->embedding_backward,
               &(tide_embedding_backward_args){tokens.data, dout.data, dwte.data, dwpe.data, 2, 2, width,
                                               vocabulary, dtype, 0});
    assert_memory_equal(dwte.data, poisoned.data, 3 * width * sizeof(float));
    assert_memory_equal((float *)dwte.data + 4 * width, poisoned.data, width * sizeof(float));
    assert_true(!isnan(buffer_get(dwte, 3 * width)));
    buffer_free(dout);
    buffer_free(dwte);
    buffer_free(dwpe);
    buffer_free(poisoned);
    buffer_free(tokens);
}

/* As in torch's nn.Embedding(padding_idx), the padding token's row of the token gradients gets nothing;
 * other rows, and the position gradients, get all of their terms. */
static void check_padding(const tide_kernels *kernels, tide_dtype dtype)
{
    enum { VOCABULARY = 11, LENGTH = 7 };
    const size_t rows = shapes[SHAPES - 1].rows, width = shapes[SHAPES - 1].width;
    buffer tokens = random_tokens(rows, VOCABULARY);
    const int32_t padding = ((int32_t *)tokens.data)[rows / 2];
    buffer dout = buffer_random(rows * width, dtype, 1.0);
    buffer dwte[2], dwpe[2];
    dwte[0] = buffer_random(VOCABULARY * width, TIDE_DTYPE_FP32, 1.0);
    dwpe[0] = buffer_random(LENGTH * width, TIDE_DTYPE_FP32, 1.0);
    dwte[1] = buffer_copy(dwte[0]);
    dwpe[1] = buffer_copy(dwpe[0]);
    buffer before = buffer_copy(dwte[0]);
    for (int i = 0; i < 2; i++)
        run_kernel(kernels->embedding_backward,
                   &(tide_embedding_backward_args){tokens.data, dout.data, dwte[i].data, dwpe[i].data, rows,
                                                   LENGTH, width, VOCABULARY, dtype,
                                                   i == 1 ? (size_t)padding + 1 : 0});
    assert_memory_not_equal((float *)dwte[0].data + (size_t)padding * width,
                            (float *)before.data + (size_t)padding * width, width * sizeof(float));
    memcpy((float *)dwte[0].data + (size_t)padding * width, (float *)before.data + (size_t)padding * width,
           width * sizeof(float));
    assert_same_bits(dwte[1], dwte[0]);
    assert_same_bits(dwpe[1], dwpe[0]);
    for (int i = 0; i < 2; i++) {
        buffer_free(dwte[i]);
        buffer_free(dwpe[i]);
    }
    buffer_free(before);
    buffer_free(tokens);
    buffer_free(dout);
}

static void embedding_backward_leaves_a_padding_tokens_row_alone(void **state)
{
    (void)state;
    for_each_configuration(check_padding);
}

/* Asks for only one of the two gradients: its bits must be those that it gets where the kernel computes
 * both. */
static void check_one_embedding_gradient(const tide_kernels *kernels, tide_dtype dtype)
{
    enum { VOCABULARY = 11, LENGTH = 7 };
    const size_t rows = shapes[SHAPES - 1].rows, width = shapes[SHAPES - 1].width;
    buffer tokens = random_tokens(rows, VOCABULARY);
    buffer dout = buffer_random(rows * width, dtype, 1.0);
    buffer dwte[2], dwpe[2];
    dwte[0] = buffer_random(VOCABULARY * width, TIDE_DTYPE_FP32, 1.0);
    dwpe[0] = buffer_random(LENGTH * width, TIDE_DTYPE_FP32, 1.0);
    dwte[1] = buffer_copy(dwte[0]);
    dwpe[1] = buffer_copy(dwpe[0]);
    tide_embedding_backward_args args = {tokens.data, dout.data, dwte[0].data, dwpe[0].data, rows,
                                         LENGTH,      width,     VOCABULARY,   dtype,        0};
    run_kernel(kernels->embedding_backward, &args);
    args.dwte = NULL;
    args.dwpe = dwpe[1].data;
    run_kernel(kernels->embedding_backward, &args);
    args.dwte = dwte[1].data;
    args.dwpe = NULL;
    run_kernel(kernels->embedding_backward, &args);
    assert_same_bits(dwte[1], dwte[0]);
    assert_same_bits(dwpe[1], dwpe[0]);
    for (int i = 0; i < 2; i++) {
        buffer_free(dwte[i]);
        buffer_free(dwpe[i]);
    }
    buffer_free(tokens);
    buffer_free(dout);
}

static void embedding_backward_makes_one_gradient_without_the_other(void **state)
{
    (void)state;
    for_each_configuration(check_one_embedding_gradient);
}

static void embedding_backward_leaves_unused_rows_alone(void **state)
{
    (void)state;
    for_each_configuration(check_untouched_rows);
}

/* ---- layer norm ---- */

static const double epsilon = 1e-5;

static void norm_reference(const double *in, const double *weight, const double *bias, size_t width,
                           double *out, double *mean, double *rstd)
{
    double sum = 0.0, squares = 0.0;
    for (size_t i = 0; i < width; i++)
        sum += in[i];
    *mean = sum / (double)width;
    for (size_t i = 0; i < width; i++)
        squares += (in[i] - *mean) * (in[i] - *mean);
    *rstd = 1.0 / sqrt(squares / (double)width + epsilon);
    for (size_t i = 0; i < width; i++)
        out[i] = (in[i] - *mean) * *rstd * weight[i] + bias[i];
}

/* A layer norm's operands and results in buffers, and the same in float64. */
typedef struct norm_case {
    size_t rows, width;
    buffer in, weight, bias, out, mean, rstd;
    double *x, *w, *b, *y, *means, *rstds;
} norm_case;

static norm_case norm_make(size_t rows, size_t width, tide_dtype dtype)
{
    norm_case made = {.rows = rows, .width = width};
    made.in = buffer_random(rows * width, dtype, 2.0);
    made.weight = buffer_random(width, dtype, 1.5);
    made.bias = buffer_random(width, dtype, 0.5);
    made.out = buffer_of(rows * width, dtype);
    made.mean = buffer_of(rows, TIDE_DTYPE_FP32);
    made.rstd = buffer_of(rows, TIDE_DTYPE_FP32);
    made.x = buffer_values(made.in);
    made.w = buffer_values(made.weight);
    made.b = buffer_values(made.bias);
    made.y = malloc(rows * width * sizeof(double));
    made.means = malloc(rows * sizeof(double));
    made.rstds = malloc(rows * sizeof(double));
    for (size_t row = 0; row < rows; row++)
        norm_reference(made.x + row * width, made.w, made.b, width, made.y + row * width, made.means + row,
                       made.rstds + row);
    return made;
}

static void norm_free(norm_case *freed)
{
    buffer buffers[] = {freed->in, freed->weight, freed->bias, freed->out, freed->mean, freed->rstd};
    double *values[] = {freed->x, freed->w, freed->b, freed->y, freed->means, freed->rstds};
    for (size_t i = 0; i < 6; i++) {
        buffer_free(buffers[i]);
        free(values[i]);
    }
}

static tide_layer_norm_args norm_args(const norm_case *c, tide_dtype dtype)
{
    return (tide_layer_norm_args){.in = c->in.data,
                                  .weight = c->weight.data,
                                  .bias = c->bias.data,
                                  .out = c->out.data,
                                  .mean = c->mean.data,
                                  .rstd = c->rstd.data,
                                  .rows = c->rows,
                                  .width = c->width,
                                  .epsilon = (float)epsilon,
                                  .dtype = dtype};
}

static void check_layer_norm(const tide_kernels *kernels, tide_dtype dtype)
{
    for (size_t s = 0; s < SHAPES; s++) {
        norm_case c = norm_make(shapes[s].rows, shapes[s].width, dtype);
        tide_layer_norm_args args = norm_args(&c, dtype);
        run_kernel(kernels->layer_norm, &args);
        assert_close(c.out, c.y, c.rows * c.width, 2e-6);
        assert_close(c.mean, c.means, c.rows, 1e-6);
        assert_close(c.rstd, c.rstds, c.rows, 2e-6);
        const buffer out = buffer_copy(c.out);
        args.mean = args.rstd = NULL;
        run_kernel(kernels->layer_norm, &args);
        assert_same_bits(out, c.out);
        buffer_free(out);
        norm_free(&c);
    }
}

static void layer_norm_matches_float64_with_and_without_statistics(void **state)
{
    (void)state;
    for_each_configuration(check_layer_norm);
}

/* sum(dout x norm(x, w, b)) of one row; the expected gradients are the slopes of this sum. */
static double norm_objective(const norm_case *c, size_t row, const double *dout)
{
    double *out = malloc(c->width * sizeof *out), mean, rstd, sum = 0.0;
    norm_reference(c->x + row * c->width, c->w, c->b, c->width, out, &mean, &rstd);
    for (size_t i = 0; i < c->width; i++)
        sum += dout[row * c->width + i] * out[i];
    free(out);
    return sum;
}

static double norm_slope(const norm_case *c, size_t row, const double *dout, double *variable)
{
    const double step = 1e-4, kept = *variable;
    *variable = kept + step;
    const double above = norm_objective(c, row, dout);
    *variable = kept - step;
    const double below = norm_objective(c, row, dout);
    *variable = kept;
    return (above - below) / (2 * step);
}

static void norm_slopes(const norm_case *c, const double *dout, double *dx, double *dw, double *db)
{
    for (size_t row = 0; row < c->rows; row++)
        for (size_t i = 0; i < c->width; i++) {
            dx[row * c->width + i] = norm_slope(c, row, dout, c->x + row * c->width + i);
            dw[i] += norm_slope(c, row, dout, c->w + i);
            db[i] += norm_slope(c, row, dout, c->b + i);
        }
}

static void check_layer_norm_backward(const tide_kernels *kernels, tide_dtype dtype)
{
    for (size_t s = 0; s < 6; s++) {
        norm_case c = norm_make(shapes[s].rows, shapes[s].width, dtype);
        const size_t elements = c.rows * c.width;
        buffer dout = buffer_random(elements, dtype, 1.0), din = buffer_of(elements, dtype);
        buffer dweight = buffer_random(c.width, TIDE_DTYPE_FP32, 1.0), dbias = buffer_random(c.width, 0, 1.0);
        double *g = buffer_values(dout), *dx = malloc(elements * sizeof *dx);
        double *dw = buffer_values(dweight), *db = buffer_values(dbias);
        norm_slopes(&c, g, dx, dw, db);
        const tide_layer_norm_args forward = norm_args(&c, dtype);
        run_kernel(kernels->layer_norm, &forward);
        tide_layer_norm_backward_args args = {c.in.data, c.weight.data, dout.data,  c.mean.data, c.rstd.data,
                                              din.data,  dweight.data,  dbias.data, NULL,        0,
                                              c.rows,    c.width,       false,      dtype};
        run_layer_norm_backward(kernels, &args);
        /* The normalized values of a row of one or two elements are constant in theory; the computed slope
         * is a difference of large numbers and consists of rstd's errors. */
        assert_close(din, dx, elements, c.width <= 2 ? 1e-1 : 2e-5);
        assert_close(dweight, dw, c.width, c.width <= 2 ? 1e-4 : 2e-6);
        assert_close(dbias, db, c.width, 2e-6);

        buffer joined = buffer_random(elements, dtype, 1.0);
        double *sum = buffer_values(joined);
        for (size_t i = 0; i < elements; i++)
            sum[i] += dx[i];
        args.din = joined.data;
        args.accumulate = true;
        run_layer_norm_backward(kernels, &args);
        assert_close(joined, sum, elements, c.width <= 2 ? 1e-1 : 2e-5);

        args.din = dout.data;
        args.accumulate = false;
        run_layer_norm_backward(kernels, &args);
        assert_same_bits(dout, din);

        double *values[] = {g, dx, dw, db, sum};
        buffer buffers[] = {dout, din, dweight, dbias, joined};
        for (size_t i = 0; i < 5; i++) {
            free(values[i]);
            buffer_free(buffers[i]);
        }
        norm_free(&c);
    }
}

/* Asks for only one of the three gradients: its bits must be those that it gets where the kernel computes
 * all. */
static void check_one_norm_gradient(const tide_kernels *kernels, tide_dtype dtype)
{
    for (size_t s = 0; s < 6; s++) {
        norm_case c = norm_make(shapes[s].rows, shapes[s].width, dtype);
        buffer dout = buffer_random(c.rows * c.width, dtype, 1.0);
        buffer all[3] = {buffer_of(c.rows * c.width, dtype), buffer_random(c.width, TIDE_DTYPE_FP32, 1.0),
                         buffer_random(c.width, TIDE_DTYPE_FP32, 1.0)};
        buffer one[3] = {buffer_of(c.rows * c.width, dtype), buffer_copy(all[1]), buffer_copy(all[2])};
        const tide_layer_norm_args forward = norm_args(&c, dtype);
        run_kernel(kernels->layer_norm, &forward);
        tide_layer_norm_backward_args args = {
            c.in.data,   c.weight.data, dout.data, c.mean.data, c.rstd.data, all[0].data, all[1].data,
            all[2].data, NULL,          0,         c.rows,      c.width,     false,       dtype};
        run_layer_norm_backward(kernels, &args);
        for (int i = 0; i < 3; i++) {
            args.din = i == 0 ? one[i].data : NULL;
            args.dweight = i == 1 ? one[i].data : NULL;
            args.dbias = i == 2 ? one[i].data : NULL;
            run_layer_norm_backward(kernels, &args);
            assert_same_bits(one[i], all[i]);
        }
        for (int i = 0; i < 3; i++) {
            buffer_free(all[i]);
            buffer_free(one[i]);
        }
        buffer_free(dout);
        norm_free(&c);
    }
}

static void layer_norm_backward_makes_one_gradient_without_the_others(void **state)
{
    (void)state;
    for_each_configuration(check_one_norm_gradient);
}

static void layer_norm_backward_matches_finite_differences(void **state)
{
    (void)state;
    for_each_configuration(check_layer_norm_backward);
}

/* ---- the bias' gradient ---- */

static void check_bias(const tide_kernels *kernels, tide_dtype dtype)
{
    for (size_t s = 0; s < SHAPES; s++) {
        const size_t rows = shapes[s].rows, width = shapes[s].width;
        buffer dout = buffer_random(rows * width, dtype, 1.0),
               dbias = buffer_random(width, TIDE_DTYPE_FP32, 1.0);
        double *expected = buffer_values(dbias);
        for (size_t i = 0; i < rows * width; i++)
            expected[i % width] += buffer_get(dout, i);
        run_kernel(kernels->bias_backward,
                   &(tide_bias_backward_args){dout.data, dbias.data, rows, width, dtype});
        assert_close(dbias, expected, width, 1e-6);
        free(expected);
        buffer_free(dout);
        buffer_free(dbias);
    }
}

static void bias_backward_adds_the_column_sums(void **state)
{
    (void)state;
    for_each_configuration(check_bias);
}

#if TEST_ON_CPU

/* ---- same bits with any number of threads ---- */

enum { ROWS = 300, WIDTH = 333, VOCABULARY = 50, LENGTH = 100 };

/* Runs the kernels that sum over rows, one after another, and returns their sums, which begin at zero. */
static buffer sums_with(int threads, buffer in, buffer dout, const int32_t *tokens)
{
    enum { EMBEDDING = (VOCABULARY + LENGTH) * WIDTH, ALL = 3 * WIDTH + EMBEDDING };
    const tide_kernels *kernels = tide_kernels_cpu();
    buffer sums = buffer_of(ALL, TIDE_DTYPE_FP32), din = buffer_of(ROWS * WIDTH, TIDE_DTYPE_BF16);
    float *dbias = sums.data, *norm = dbias + WIDTH, *dwte = norm + 2 * WIDTH;
    float mean[ROWS], rstd[ROWS];
    for (size_t row = 0; row < ROWS; row++) {
        mean[row] = 0.01f;
        rstd[row] = 0.9f;
    }
    memset(sums.data, 0, sums.bytes);
    tide_kernels_cpu_configure(threads);
    run_kernel(kernels->bias_backward,
               &(tide_bias_backward_args){dout.data, dbias, ROWS, WIDTH, TIDE_DTYPE_BF16});
    run_layer_norm_backward(kernels, &(tide_layer_norm_backward_args){in.data, in.data, dout.data, mean, rstd,
                                                                      din.data, norm, norm + WIDTH, NULL, 0,
                                                                      ROWS, WIDTH, false, TIDE_DTYPE_BF16});
    run_kernel(kernels->embedding_backward,
               &(tide_embedding_backward_args){tokens, dout.data, dwte, dwte + VOCABULARY * WIDTH, ROWS,
                                               LENGTH, WIDTH, VOCABULARY, TIDE_DTYPE_BF16, 0});
    buffer_free(din);
    return sums;
}

static void sums_over_rows_keep_their_bits_for_any_thread_count(void **state)
{
    (void)state;
    buffer in = buffer_random(ROWS * WIDTH, TIDE_DTYPE_BF16, 1.0);
    buffer dout = buffer_random(ROWS * WIDTH, TIDE_DTYPE_BF16, 1.0);
    buffer tokens = random_tokens(ROWS, VOCABULARY);
    buffer alone = sums_with(1, in, dout, tokens.data);
    for (int threads = 2; threads <= 5; threads++) {
        buffer shared = sums_with(threads, in, dout, tokens.data);
        assert_same_bits(shared, alone);
        buffer_free(shared);
    }
    buffer buffers[] = {in, dout, alone, tokens};
    for (size_t i = 0; i < 4; i++)
        buffer_free(buffers[i]);
}

#endif

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(embedding_adds_token_and_position_or_takes_the_token_alone),
        cmocka_unit_test(embedding_backward_adds_rows_that_tokens_share),
        cmocka_unit_test(embedding_backward_leaves_a_padding_tokens_row_alone),
        cmocka_unit_test(embedding_backward_makes_one_gradient_without_the_other),
        cmocka_unit_test(embedding_backward_leaves_unused_rows_alone),
        cmocka_unit_test(layer_norm_matches_float64_with_and_without_statistics),
        cmocka_unit_test(layer_norm_backward_matches_finite_differences),
        cmocka_unit_test(layer_norm_backward_makes_one_gradient_without_the_others),
        cmocka_unit_test(bias_backward_adds_the_column_sums),
#if TEST_ON_CPU
        cmocka_unit_test(sums_over_rows_keep_their_bits_for_any_thread_count),
#endif
    };
    return RUN_KERNEL_TESTS(tests);
}
