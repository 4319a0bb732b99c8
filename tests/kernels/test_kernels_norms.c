/* Kernels over rows and columns: embedding, layer norm, the bias' gradient. They are compared with float64,
 * also at sizes that make them loop once more: rows wider than a block of the GPU holds, more rows than its
 * grid, a token so frequent that the list of its rows overflows. Gradients computed alone and together are
 * compared bit by bit. */
#include "tests/kernels/test_kernels.h"
#include "tests/support/test_thin.h"

typedef struct shape {
    size_t rows, width;
} shape;

/* ---- embedding ---- */

typedef struct embedding_shape {
    size_t rows, width, vocabulary, length;
    bool skewed; /* six in ten tokens are one token */
} embedding_shape;

static const embedding_shape embeddings[] = {
    {1, 1, 11, 7, false},        {1, 17, 11, 7, false},       {3, 2, 11, 7, false},
    {5, 64, 11, 7, false},       {70, 33, 11, 7, false},      {33, 100, 11, 7, false},
    {40, 513, 11, 7, false},     {5003, 17, 3000, 100, true}, {7003, 24, 3000, 100, true},
    {40, 2112, 3000, 100, true}, {40, 2113, 3000, 100, true}};
enum { EMBEDDINGS = sizeof embeddings / sizeof embeddings[0], SMALL_EMBEDDINGS = 7 };

static buffer random_tokens(const embedding_shape *s)
{
    buffer tokens = buffer_bytes(s->rows * sizeof(int32_t));
    for (size_t row = 0; row < s->rows; row++) {
        const double any = (random_value() + 1.0) / 2.0 * (double)s->vocabulary;
        ((int32_t *)tokens.data)[row] =
            (int32_t)(s->skewed && random_value() < 0.2 ? (double)s->vocabulary / 2 : any);
    }
    return tokens;
}

/* The index in the token embedding, or its gradient, of element i of the rows. */
static size_t index_in_wte(buffer tokens, size_t i, size_t width)
{
    return (size_t)((const int32_t *)tokens.data)[i / width] * width + i % width;
}

/* `starts` may have no data. */
static size_t index_in_wpe(const embedding_shape *s, buffer starts, size_t i)
{
    return tide_row_position(starts.data, i / s->width, s->length) * s->width + i % s->width;
}

static void embedding_adds_token_and_position_or_takes_the_token_alone(const tide_kernels *kernels,
                                                                       tide_dtype dtype)
{
    for (size_t e = 0; e < 2 * SMALL_EMBEDDINGS; e++) {
        const embedding_shape *s = &embeddings[e / 2];
        const size_t elements = s->rows * s->width;
        buffer starts = e % 2 == 0 ? (buffer){0} : some_starts(s->rows, s->length);
        buffer tokens = random_tokens(s), out = buffer_of(elements, dtype);
        buffer wte = buffer_random(s->vocabulary * s->width, dtype, 1.0);
        buffer wpe = buffer_random(s->length * s->width, dtype, 1.0);
        double *expected = doubles(elements);
        for (size_t i = 0; i < elements; i++)
            expected[i] = buffer_get(wte, index_in_wte(tokens, i, s->width)) +
                          buffer_get(wpe, index_in_wpe(s, starts, i));
        tide_embedding_args args = {tokens.data, starts.data, wte.data, wpe.data,      out.data,
                                    s->rows,     s->length,   s->width, s->vocabulary, dtype};
        run_kernel(kernels->embedding, &args);
        assert_close(out, expected, elements, 0.0);
        memset(out.data, POISON, out.bytes);
        args.wpe = NULL;
        run_kernel(kernels->embedding, &args);
        /* Without positions nothing is added, so nothing is rounded. */
        for (size_t i = 0; i < elements; i++)
            assert_true(buffer_get(out, i) == buffer_get(wte, index_in_wte(tokens, i, s->width)));
        free(expected);
        buffers_free(tokens, starts, wte, wpe, out);
    }
}

static void embedding_backward_adds_rows_that_tokens_share(const tide_kernels *kernels, tide_dtype dtype)
{
    for (size_t e = 0; e < 2 * (test_large() ? EMBEDDINGS : SMALL_EMBEDDINGS); e++) {
        const embedding_shape *s = &embeddings[e / 2];
        const size_t elements = s->rows * s->width;
        buffer starts = e % 2 == 0 ? (buffer){0} : some_starts(s->rows, s->length);
        buffer tokens = random_tokens(s), dout = buffer_random(elements, dtype, 1.0);
        buffer dwte = buffer_random(s->vocabulary * s->width, TIDE_DTYPE_FP32, 1.0);
        buffer dwpe = buffer_random(s->length * s->width, TIDE_DTYPE_FP32, 1.0);
        double *wte_expected = buffer_values(dwte), *wpe_expected = buffer_values(dwpe);
        for (size_t i = 0; i < elements; i++) {
            wte_expected[index_in_wte(tokens, i, s->width)] += buffer_get(dout, i);
            wpe_expected[index_in_wpe(s, starts, i)] += buffer_get(dout, i);
        }
        run_kernel(kernels->embedding_backward,
                   &(tide_embedding_backward_args){tokens.data, starts.data, dout.data, dwte.data, dwpe.data,
                                                   s->rows, s->length, s->width, s->vocabulary, dtype, 0});
        assert_close(dwte, wte_expected, s->vocabulary * s->width, s->skewed ? 1e-5 : 1e-6);
        assert_close(dwpe, wpe_expected, s->length * s->width, s->skewed ? 1e-5 : 1e-6);
        free(wte_expected);
        free(wpe_expected);
        buffers_free(tokens, starts, dout, dwte, dwpe);
    }
}

/* Asks for only one of the two gradients: its bits must be those that it gets where the kernel computes both.
 * Then asks for both with a padding token: as in torch's nn.Embedding(padding_idx), that token's row gets
 * nothing; other rows, and the position gradients, get all of their terms. */
static void embedding_backward_makes_one_gradient_alone_and_skips_a_padding_token(const tide_kernels *kernels,
                                                                                  tide_dtype dtype)
{
    const embedding_shape *s = &embeddings[SMALL_EMBEDDINGS - 1];
    const buffer tokens = random_tokens(s), dout = buffer_random(s->rows * s->width, dtype, 1.0);
    const size_t padding = (size_t)((const int32_t *)tokens.data)[s->rows / 2];
    buffer begin[2] = {buffer_random(s->vocabulary * s->width, TIDE_DTYPE_FP32, 1.0),
                       buffer_random(s->length * s->width, TIDE_DTYPE_FP32, 1.0)};
    buffer both[2], one[2], padded[2];
    for (int i = 0; i < 2; i++) {
        both[i] = buffer_copy(begin[i]);
        one[i] = buffer_copy(begin[i]);
        padded[i] = buffer_copy(begin[i]);
    }
    tide_embedding_backward_args args = {tokens.data,   NULL,    dout.data, both[0].data,
                                         both[1].data,  s->rows, s->length, s->width,
                                         s->vocabulary, dtype,   0};
    run_kernel(kernels->embedding_backward, &args);
    args.dwte = NULL;
    args.dwpe = one[1].data;
    run_kernel(kernels->embedding_backward, &args);
    args.dwte = one[0].data;
    args.dwpe = NULL;
    run_kernel(kernels->embedding_backward, &args);
    assert_same_bits(one[0], both[0]);
    assert_same_bits(one[1], both[1]);

    args.dwte = padded[0].data;
    args.dwpe = padded[1].data;
    args.padding_row = padding + 1;
    run_kernel(kernels->embedding_backward, &args);
    float *of_both = (float *)both[0].data + padding * s->width,
          *before = (float *)begin[0].data + padding * s->width;
    assert_memory_not_equal(of_both, before, s->width * sizeof *before);
    memcpy(of_both, before, s->width * sizeof *before);
    assert_same_bits(padded[0], both[0]);
    assert_same_bits(padded[1], both[1]);
    for (int i = 0; i < 2; i++)
        buffers_free(begin[i], both[i], one[i], padded[i]);
    buffers_free(tokens, dout);
}

/* ---- layer norm ---- */

static const shape norms[] = {{1, 1},     {1, 17},   {3, 2},    {5, 64},    {70, 33},   {33, 100}, {40, 513},
                              {37, 1040}, {2, 1041}, {9, 8200}, {2, 16400}, {1100, 20}, {1030, 24}};
enum { NORMS = sizeof norms / sizeof norms[0], WIDE = 8200 };

static const double epsilon = 1e-5;

/* A layer norm's operands in buffers, the same in float64 (x, w, b and g for dout), and its results. The
 * gradients of weight and bias begin at zero. */
typedef struct norm_case {
    size_t rows, width;
    tide_dtype dtype;
    buffer in, weight, bias, dout;
    double *x, *w, *b, *g;
    double *y, *mean, *rstd, *dx, *dw, *db;
} norm_case;

static void norm_reference_row(const norm_case *c, size_t row)
{
    const size_t width = c->width, at = row * width;
    const double *x = c->x + at, *g = c->g + at;
    double sum = 0.0, squares = 0.0, weighted_sum = 0.0, product_sum = 0.0;
    for (size_t i = 0; i < width; i++)
        sum += x[i];
    const double mean = c->mean[row] = sum / (double)width;
    for (size_t i = 0; i < width; i++)
        squares += (x[i] - mean) * (x[i] - mean);
    const double rstd = c->rstd[row] = 1.0 / sqrt(squares / (double)width + epsilon);
    for (size_t i = 0; i < width; i++) {
        const double normal = (x[i] - mean) * rstd;
        c->y[at + i] = normal * c->w[i] + c->b[i];
        c->dw[i] += g[i] * normal;
        c->db[i] += g[i];
        weighted_sum += g[i] * c->w[i];
        product_sum += g[i] * c->w[i] * normal;
    }
    for (size_t i = 0; i < width; i++)
        c->dx[at + i] =
            rstd * (g[i] * c->w[i] - (weighted_sum + (x[i] - mean) * rstd * product_sum) / (double)width);
}

static void norm_reference(const norm_case *c)
{
    memset(c->dw, 0, c->width * sizeof *c->dw);
    memset(c->db, 0, c->width * sizeof *c->db);
    for (size_t row = 0; row < c->rows; row++)
        norm_reference_row(c, row);
}

static norm_case norm_make(shape s, tide_dtype dtype)
{
    const size_t elements = s.rows * s.width;
    norm_case made = {.rows = s.rows, .width = s.width, .dtype = dtype};
    made.in = buffer_of(elements, dtype);
    for (size_t i = 0; i < elements; i++)
        buffer_set(made.in, i, 1.0 + 2.0 * random_value()); /* so that a row's mean is near 1, not 0 */
    made.weight = buffer_random(s.width, dtype, 1.5);
    made.bias = buffer_random(s.width, dtype, 0.5);
    made.dout = buffer_random(elements, dtype, 1.0);
    made.x = buffer_values(made.in);
    made.w = buffer_values(made.weight);
    made.b = buffer_values(made.bias);
    made.g = buffer_values(made.dout);
    made.y = doubles(elements);
    made.mean = doubles(s.rows);
    made.rstd = doubles(s.rows);
    made.dx = doubles(elements);
    made.dw = doubles(s.width);
    made.db = doubles(s.width);
    norm_reference(&made);
    return made;
}

static void norm_free(norm_case *freed)
{
    double *values[] = {freed->x,    freed->w,    freed->b,  freed->g,  freed->y,
                        freed->mean, freed->rstd, freed->dx, freed->dw, freed->db};
    for (size_t i = 0; i < sizeof values / sizeof values[0]; i++)
        free(values[i]);
    buffers_free(freed->in, freed->weight, freed->bias, freed->dout);
}

/* sum(dout x out): the gradients are its slopes. */
static double norm_objective(const void *of)
{
    const norm_case *c = of;
    double sum = 0.0;
    norm_reference(c);
    for (size_t i = 0; i < c->rows * c->width; i++)
        sum += c->g[i] * c->y[i];
    return sum;
}

static void the_references_gradients_are_finite_differences(void **state)
{
    norm_case c = norm_make((shape){3, 5}, TIDE_DTYPE_FP32);
    const struct {
        double *variables, *gradients;
        size_t count;
    } parts[] = {{c.x, c.dx, 15}, {c.w, c.dw, 5}, {c.b, c.db, 5}};
    for (size_t part = 0; part < 3; part++)
        for (size_t i = 0; i < parts[part].count; i++) {
            const double slope = slope_of(norm_objective, &c, &parts[part].variables[i]);
            norm_reference(&c);
            assert_true(fabs(slope - parts[part].gradients[i]) < 1e-6);
        }
    norm_free(&c);
}

static void layer_norm_matches_float64_with_and_without_statistics(const tide_kernels *kernels,
                                                                   tide_dtype dtype)
{
    for (size_t s = 0; s < NORMS; s++) {
        norm_case c = norm_make(norms[s], dtype);
        const size_t elements = c.rows * c.width;
        buffer out = buffer_of(elements, dtype), again = buffer_of(elements, dtype);
        buffer mean = buffer_of(c.rows, TIDE_DTYPE_FP32), rstd = buffer_of(c.rows, TIDE_DTYPE_FP32);
        tide_layer_norm_args args = {c.in.data, c.weight.data, c.bias.data, out.data,       mean.data,
                                     rstd.data, c.rows,        c.width,     (float)epsilon, dtype};
        /* Two elements may be close together, and then their difference has few right digits. A lane's sum
         * over a wide row has thousands of roundings. */
        const double tolerance = c.width <= 2 ? 4e-5 : c.width > 8000 ? 1e-5 : 2e-6;
        run_kernel(kernels->layer_norm, &args);
        assert_close(out, c.y, elements, tolerance);
        assert_close(mean, c.mean, c.rows, tolerance / 2);
        assert_close(rstd, c.rstd, c.rows, tolerance);
        args.out = again.data;
        args.mean = args.rstd = NULL;
        run_kernel(kernels->layer_norm, &args);
        assert_same_bits(again, out);
        buffers_free(out, again, mean, rstd);
        norm_free(&c);
    }
}

enum { DIN, DWEIGHT, DBIAS, GRADIENTS };

static void run_backward(const tide_kernels *kernels, const norm_case *c, const buffer statistics[2],
                         buffer *const gradients[GRADIENTS], bool accumulate)
{
    void *to[GRADIENTS];
    for (int i = 0; i < GRADIENTS; i++)
        to[i] = gradients[i] ? gradients[i]->data : NULL;
    run_layer_norm_backward(kernels, &(tide_layer_norm_backward_args){
                                         c->in.data, c->weight.data, c->dout.data, statistics[0].data,
                                         statistics[1].data, to[DIN], to[DWEIGHT], to[DBIAS], NULL, 0,
                                         c->rows, c->width, accumulate, c->dtype});
}

static void assert_sum_close(buffer actual, double *begin, const double *added, size_t elements,
                             double tolerance)
{
    for (size_t i = 0; i < elements; i++)
        begin[i] += added[i];
    assert_close(actual, begin, elements, tolerance);
    free(begin);
}

/* All gradients at once; each alone, which must have the same bits; added to other values; and din in place
 * of dout. Rows too wide for a GPU's block follow case_is_taken(): in fp32, and twice as wide in fp16. */
static void layer_norm_backward_matches_float64_together_alone_added_and_in_place(const tide_kernels *kernels,
                                                                                  tide_dtype dtype)
{
    for (size_t s = 0; s < NORMS; s++) {
        if (norms[s].width >= WIDE && !case_is_taken(s, dtype))
            continue;
        norm_case c = norm_make(norms[s], dtype);
        const size_t elements = c.rows * c.width;
        buffer statistics[2] = {buffer_of(c.rows, TIDE_DTYPE_FP32), buffer_of(c.rows, TIDE_DTYPE_FP32)};
        for (size_t row = 0; row < c.rows; row++) {
            buffer_set(statistics[0], row, c.mean[row]);
            buffer_set(statistics[1], row, c.rstd[row]);
        }
        buffer all[GRADIENTS] = {buffer_of(elements, dtype), buffer_random(c.width, TIDE_DTYPE_FP32, 1.0),
                                 buffer_random(c.width, TIDE_DTYPE_FP32, 1.0)};
        buffer one[GRADIENTS] = {buffer_of(elements, dtype), buffer_copy(all[DWEIGHT]),
                                 buffer_copy(all[DBIAS])};
        buffer joined = buffer_random(elements, dtype, 1.0);
        double *dw = buffer_values(all[DWEIGHT]), *db = buffer_values(all[DBIAS]);
        /* The normalized values of a row of one or two elements are constant in theory; the computed slope
         * is a difference of large numbers and consists of rstd's errors. */
        const double tolerance = c.width <= 2 ? 1e-1 : c.width <= 17 ? 2e-5 : c.width > 8000 ? 1e-5 : 2e-6;
        const double sums = c.rows > 1000 ? 5e-6 : 2e-6;
        run_backward(kernels, &c, statistics, (buffer *[]){&all[DIN], &all[DWEIGHT], &all[DBIAS]}, false);
        assert_close(all[DIN], c.dx, elements, tolerance);
        assert_sum_close(all[DWEIGHT], dw, c.dw, c.width, c.width <= 2 ? 1e-4 : sums);
        assert_sum_close(all[DBIAS], db, c.db, c.width, sums);
        for (int i = 0; i < GRADIENTS; i++) {
            buffer *alone[GRADIENTS] = {NULL};
            alone[i] = &one[i];
            run_backward(kernels, &c, statistics, alone, false);
            assert_same_bits(one[i], all[i]);
        }
        double *sum = buffer_values(joined);
        run_backward(kernels, &c, statistics, (buffer *[]){&joined, NULL, NULL}, true);
        assert_sum_close(joined, sum, c.dx, elements, tolerance);
        run_backward(kernels, &c, statistics, (buffer *[]){&c.dout, NULL, NULL}, false);
        assert_same_bits(c.dout, all[DIN]);
        for (int i = 0; i < GRADIENTS; i++)
            buffers_free(all[i], one[i]);
        buffers_free(statistics[0], statistics[1], joined);
        norm_free(&c);
    }
}

/* ---- the bias' gradient ---- */

static void bias_backward_adds_the_column_sums(const tide_kernels *kernels, tide_dtype dtype)
{
    static const shape shapes[] = {{1, 1},    {1, 17},    {3, 2},     {5, 64},    {70, 33},
                                   {33, 100}, {4100, 24}, {4100, 33}, {2049, 40}, {40, 513}};
    for (size_t s = 0; s < sizeof shapes / sizeof shapes[0]; s++) {
        const size_t rows = shapes[s].rows, width = shapes[s].width;
        buffer dout = buffer_random(rows * width, dtype, 1.0),
               dbias = buffer_random(width, TIDE_DTYPE_FP32, 1.0);
        double *expected = buffer_values(dbias);
        for (size_t i = 0; i < rows * width; i++)
            expected[i % width] += buffer_get(dout, i);
        run_kernel(kernels->bias_backward,
                   &(tide_bias_backward_args){dout.data, dbias.data, rows, width, dtype});
        assert_close(dbias, expected, width, rows > 1000 ? 2e-6 : 1e-6);
        free(expected);
        buffers_free(dout, dbias);
    }
}

#if TEST_ON_CPU

/* ---- same bits with any number of threads ---- */

enum { ROWS = 300, WIDTH = 333, VOCABULARY = 50, LENGTH = 100 };

typedef struct sums_case {
    buffer tokens, in, dout, din, sums;
} sums_case;

/* Runs the kernels that sum over rows, one after another; their sums begin at zero. */
static void make_sums(const void *of)
{
    const sums_case *c = of;
    const tide_kernels *kernels = tide_kernels_cpu();
    float *dbias = c->sums.data, *norm = dbias + WIDTH, *dwte = norm + 2 * WIDTH;
    float mean[ROWS], rstd[ROWS];
    for (size_t row = 0; row < ROWS; row++) {
        mean[row] = 0.01f;
        rstd[row] = 0.9f;
    }
    memset(c->sums.data, 0, c->sums.bytes);
    run_kernel(kernels->bias_backward,
               &(tide_bias_backward_args){c->dout.data, dbias, ROWS, WIDTH, TIDE_DTYPE_BF16});
    run_layer_norm_backward(kernels, &(tide_layer_norm_backward_args){
                                         c->in.data, c->in.data, c->dout.data, mean, rstd, c->din.data, norm,
                                         norm + WIDTH, NULL, 0, ROWS, WIDTH, false, TIDE_DTYPE_BF16});
    run_kernel(kernels->embedding_backward,
               &(tide_embedding_backward_args){c->tokens.data, NULL, c->dout.data, dwte,
                                               dwte + VOCABULARY * WIDTH, ROWS, LENGTH, WIDTH, VOCABULARY,
                                               TIDE_DTYPE_BF16, 0});
}

static void sums_over_rows_keep_their_bits_for_any_thread_count(void **state)
{
    const sums_case c = {.tokens = random_tokens(&(embedding_shape){ROWS, WIDTH, VOCABULARY, LENGTH, false}),
                         .in = buffer_random(ROWS * WIDTH, TIDE_DTYPE_BF16, 1.0),
                         .dout = buffer_random(ROWS * WIDTH, TIDE_DTYPE_BF16, 1.0),
                         .din = buffer_of(ROWS * WIDTH, TIDE_DTYPE_BF16),
                         .sums = buffer_of((3 + VOCABULARY + LENGTH) * WIDTH, TIDE_DTYPE_FP32)};
    check_thread_counts(make_sums, &c, &c.sums, 1);
    buffers_free(c.tokens, c.in, c.dout, c.din, c.sums);
}

#endif

int main(void)
{
    const struct CMUnitTest tests[] = {
        each_configuration(embedding_adds_token_and_position_or_takes_the_token_alone),
        each_configuration(embedding_backward_adds_rows_that_tokens_share),
        each_configuration(embedding_backward_makes_one_gradient_alone_and_skips_a_padding_token),
        cmocka_unit_test(the_references_gradients_are_finite_differences),
        each_configuration(layer_norm_matches_float64_with_and_without_statistics),
        each_configuration(layer_norm_backward_matches_float64_together_alone_added_and_in_place),
        each_configuration(bias_backward_adds_the_column_sums),
#if TEST_ON_CPU
        cmocka_unit_test(sums_over_rows_keep_their_bits_for_any_thread_count),
#endif
    };
    return RUN_KERNEL_TESTS(tests);
}
