/* The products with the longest sums and the largest matrices: the head's three, as
 * src/model/decoder_embedding_head.c asks for them, and a block's weight gradient over a whole batch of
 * rows.
 *
 * Each product gets three checks. Elements at random places, some in each stretch of rows and of columns,
 * are compared with float64. Columns between the row's end and the leading dimension must be unchanged.
 * And each row of C, summed with random signs s, is compared with A (B s), which needs no product of
 * matrices in float64 and covers every element; a tile that is missing or of other rows makes this sum
 * wrong by a hundred times its rounding. */
#include "tests/kernels/matmul_case.h"
#include "tests/kernels/test_kernels_long.h"
#include "tests/support/assert_ok.h"
#include "tests/support/test_thin.h"

enum { SAMPLES = 256, CORNERS = 4 };

/* ---- random matrices ---- */

/* A buffer of hundreds of millions of elements that repeats a million random ones. The period is prime, so
 * that neither rows nor tiles repeat. */
static buffer buffer_periodic(size_t elements, tide_dtype dtype)
{
    const size_t period = 999983, bytes = tide_dtype_bytes(dtype);
    buffer made = buffer_of(elements, dtype);
    for (size_t i = 0; i < elements && i < period; i++)
        buffer_set(made, i, random_value());
    for (size_t have = period; have < elements; have += period)
        memcpy((char *)made.data + have * bytes, made.data,
               (elements - have < period ? elements - have : period) * bytes);
    return made;
}

/* Sets `row` to `count` elements from element `first` on, in float64. */
static void get_row(buffer from, size_t first, size_t count, double *row)
{
    for (size_t i = 0; i < count; i++)
        row[i] = buffer_get(from, first + i);
}

/* A stored matrix [rows, columns]; the product uses its transpose if `transposed`. */
typedef struct matrix {
    buffer of;
    size_t rows, columns, ld;
    bool transposed;
} matrix;

/* The product of the matrix, or its transpose, with a vector; free() it. */
static double *times(matrix m, const double *vector)
{
    double *made = doubles(m.transposed ? m.columns : m.rows), *row = doubles(m.columns);
    for (size_t r = 0; r < m.rows; r++) {
        get_row(m.of, r * m.ld, m.columns, row);
        double sum = 0.0;
        for (size_t i = 0; i < m.columns && !m.transposed; i++)
            sum += row[i] * vector[i];
        for (size_t i = 0; i < m.columns && m.transposed; i++)
            made[i] += row[i] * vector[r];
        if (!m.transposed)
            made[r] = sum;
    }
    free(row);
    return made;
}

/* ---- a product ---- */

typedef struct long_product {
    tide_matmul_args args;
    matrix a, b, c;
    size_t rows[SAMPLES], columns[SAMPLES];
    truth elements[SAMPLES];
    /* signs: one for each column of C; sums: of each row of C */
    double *signs, *sums;
} long_product;

static double a_at(const long_product *p, size_t i, size_t q)
{
    return buffer_get(p->a.of, p->a.transposed ? q * p->a.ld + i : i * p->a.ld + q);
}

static double b_at(const long_product *p, size_t q, size_t j)
{
    return buffer_get(p->b.of, p->b.transposed ? j * p->b.ld + q : q * p->b.ld + j);
}

/* Chooses the corners, and one element in each stretch of rows, with a column from another stretch. */
static void choose_places(long_product *p)
{
    for (size_t s = 0; s < SAMPLES; s++) {
        p->rows[s] = random_in_stretch(s, SAMPLES, p->args.m);
        p->columns[s] = random_in_stretch(s * 97 % SAMPLES, SAMPLES, p->args.n);
    }
    for (size_t s = 0; s < CORNERS; s++) {
        p->rows[s + 1] = s / 2 ? p->args.m - 1 : 0;
        p->columns[s + 1] = s % 2 ? p->args.n - 1 : 0;
    }
}

/* Sets the expected elements of C; reads C's present ones if the product is added to them. */
static void expect_elements(long_product *p)
{
    for (size_t s = 0; s < SAMPLES; s++) {
        const size_t i = p->rows[s], j = p->columns[s];
        if (p->args.accumulate)
            truth_add(&p->elements[s], buffer_get(p->c.of, i * p->c.ld + j), 0.0);
        for (size_t q = 0; q < p->args.k; q++)
            truth_add(&p->elements[s], a_at(p, i, q) * b_at(p, q, j), 0.0);
    }
}

static void expect_sums(long_product *p)
{
    p->signs = doubles(p->args.n);
    for (size_t j = 0; j < p->args.n; j++)
        p->signs[j] = random_value() < 0.0 ? -1.0 : 1.0;
    double *inner = times(p->b, p->signs);
    p->sums = times(p->a, inner);
    free(inner);
    if (!p->args.accumulate)
        return;
    double *before = times(p->c, p->signs);
    for (size_t i = 0; i < p->args.m; i++)
        p->sums[i] += before[i];
    free(before);
}

static matrix matrix_make(size_t rows, size_t columns, size_t ld, bool transposed, tide_dtype dtype)
{
    const size_t stored_rows = transposed ? columns : rows, stored_columns = transposed ? rows : columns;
    return (matrix){buffer_periodic(stored_rows * ld, dtype), stored_rows, stored_columns, ld, transposed};
}

static void long_product_make(long_product *p, const tide_matmul_args *shape)
{
    *p = (long_product){.args = *shape};
    p->a = matrix_make(shape->m, shape->k, shape->lda, shape->transpose_a, shape->in_dtype);
    p->b = matrix_make(shape->k, shape->n, shape->ldb, shape->transpose_b, shape->in_dtype);
    p->c = (matrix){.rows = shape->m, .columns = shape->n, .ld = shape->ldc};
    p->c.of = shape->accumulate ? buffer_periodic(shape->m * shape->ldc, shape->out_dtype)
                                : buffer_of(shape->m * shape->ldc, shape->out_dtype);
    p->args.a = p->a.of.data;
    p->args.b = p->b.of.data;
    p->args.c = p->c.of.data;
    choose_places(p);
    expect_elements(p);
    expect_sums(p);
}

static void long_product_free(long_product *p)
{
    buffers_free(p->a.of, p->b.of, p->c.of);
    free(p->signs);
    free(p->sums);
}

static void long_product_run(long_product *p)
{
    size_t bytes = 0;
    assert_int_equal(test_table()->matmul_prepare(&p->args, &bytes), TIDE_OK);
    buffer workspace = buffer_bytes(bytes);
    p->args.workspace = workspace.data;
    p->args.workspace_bytes = bytes;
    run_kernel(test_table()->matmul, &p->args);
    buffer_free(workspace);
}

/* ---- its checks ---- */

static void check_elements(const long_product *p)
{
    const size_t beyond = p->c.ld - p->c.columns, bytes = tide_dtype_bytes(p->args.out_dtype);
    for (size_t s = 0; s < SAMPLES; s++) {
        const size_t row = p->rows[s] * p->c.ld;
        assert_true_at(p->c.of, row + p->columns[s], p->elements[s], sum_rounding(p->args.k));
        const unsigned char *end = (const unsigned char *)p->c.of.data + (row + p->c.columns) * bytes;
        for (size_t i = 0; i < beyond * bytes; i++)
            assert_int_equal(end[i], POISON);
    }
}

/* The tolerance: an element errs at random, by its rounding, 0.4 of half a unit in the mean, and by its
 * sum's. A row's error is compared with the root of the elements' squares; four times the mean is allowed. */
static void check_sums(const long_product *p)
{
    const double tolerance = 4 * (0.5 * half_unit(p->args.out_dtype) + sum_rounding(p->args.k));
    double *row = doubles(p->c.columns);
    for (size_t i = 0; i < p->c.rows; i++) {
        truth sum = {0};
        get_row(p->c.of, i * p->c.ld, p->c.columns, row);
        for (size_t j = 0; j < p->c.columns; j++)
            truth_add(&sum, row[j] * p->signs[j], 0.0);
        if (!(fabs(sum.value - p->sums[i]) <= tolerance * sqrt(sum.squares)))
            fail_msg("row %zu of %zu x %zu x %zu: its sum with signs is %.9g, expected %.9g within %.2g", i,
                     p->args.m, p->args.n, p->args.k, sum.value, p->sums[i], tolerance * sqrt(sum.squares));
    }
    free(row);
}

static void check(const tide_matmul_args *shape)
{
    long_product p;
    long_product_make(&p, shape);
    long_product_run(&p);
    check_elements(&p);
    check_sums(&p);
    long_product_free(&p);
}

/* ---- the head ---- */

typedef struct head {
    /* stride: the logits' leading dimension */
    size_t rows, vocabulary, stride, width;
    tide_dtype dtype;
} head;

/* On the CPU a head of full size takes too long for a test, and the GPU's kernels run on the CPU are
 * slower still. */
#if TEST_ON_CPU
static const head heads[] = {{40, 50304, 50304, 768, TIDE_DTYPE_BF16},
                             {24, 50257, 50304, 768, TIDE_DTYPE_FP32},
                             {24, 50257, 50304, 200, TIDE_DTYPE_FP16}};
#elif defined(TEST_CUDA_ON_CPU)
static const head heads[] = {{1500, 1152, 1152, 96, TIDE_DTYPE_BF16},
                             {700, 1100, 1152, 96, TIDE_DTYPE_FP32},
                             {700, 1057, 1088, 96, TIDE_DTYPE_FP16}};
#else
static const head heads[] = {{4096, 50304, 50304, 768, TIDE_DTYPE_BF16},
                             {4096, 50257, 50304, 768, TIDE_DTYPE_BF16},
                             {4096, 50304, 50304, 1600, TIDE_DTYPE_BF16},
                             {4096, 50304, 50304, 768, TIDE_DTYPE_FP16},
                             {1024, 50304, 50304, 768, TIDE_DTYPE_FP32}};
#endif

static void for_each_head(tide_matmul_args (*shape_of)(const head *h))
{
    for (size_t i = 0; i < sizeof heads / sizeof heads[0]; i += test_thin(3)) {
        const tide_matmul_args shape = shape_of(&heads[i]);
        check(&shape);
    }
}

static tide_matmul_args logits_of(const head *h)
{
    return (tide_matmul_args){.m = h->rows,
                              .n = h->vocabulary,
                              .k = h->width,
                              .lda = h->width,
                              .ldb = h->width,
                              .ldc = h->stride,
                              .in_dtype = h->dtype,
                              .out_dtype = h->dtype,
                              .transpose_b = true};
}

static tide_matmul_args weight_gradient_of(const head *h)
{
    return (tide_matmul_args){.m = h->vocabulary,
                              .n = h->width,
                              .k = h->rows,
                              .lda = h->stride,
                              .ldb = h->width,
                              .ldc = h->width,
                              .in_dtype = h->dtype,
                              .out_dtype = TIDE_DTYPE_FP32,
                              .transpose_a = true,
                              .accumulate = true};
}

static tide_matmul_args input_gradient_of(const head *h)
{
    return (tide_matmul_args){.m = h->rows,
                              .n = h->width,
                              .k = h->vocabulary,
                              .lda = h->stride,
                              .ldb = h->width,
                              .ldc = h->width,
                              .in_dtype = h->dtype,
                              .out_dtype = h->dtype};
}

static void the_heads_logits_are_float64s(void **state)
{
    for_each_head(logits_of);
}

static void the_heads_weight_gradient_is_added_as_in_float64(void **state)
{
    for_each_head(weight_gradient_of);
}

static void the_heads_input_gradient_is_float64s(void **state)
{
    for_each_head(input_gradient_of);
}

/* ---- a block's weight gradient ---- */

typedef struct linear {
    size_t rows, in, out;
    tide_dtype dtype;
} linear;

#if TEST_ON_CPU
static const linear linears[] = {{32768, 64, 256, TIDE_DTYPE_BF16}, {32768, 48, 96, TIDE_DTYPE_FP32}};
#elif defined(TEST_CUDA_ON_CPU)
static const linear linears[] = {{32768, 32, 64, TIDE_DTYPE_BF16}, {8192, 40, 72, TIDE_DTYPE_FP32}};
#else
static const linear linears[] = {{32768, 768, 3072, TIDE_DTYPE_BF16},
                                 {32768, 1600, 6400, TIDE_DTYPE_BF16},
                                 {32768, 768, 768, TIDE_DTYPE_FP16},
                                 {32768, 768, 768, TIDE_DTYPE_FP32}};
#endif

static void a_weight_gradient_of_many_rows_is_added_as_in_float64(void **state)
{
    for (size_t i = 0; i < sizeof linears / sizeof linears[0]; i++) {
        const linear *l = &linears[i];
        check(&(tide_matmul_args){.m = l->in,
                                  .n = l->out,
                                  .k = l->rows,
                                  .lda = l->in,
                                  .ldb = l->out,
                                  .ldc = l->out,
                                  .in_dtype = l->dtype,
                                  .out_dtype = TIDE_DTYPE_FP32,
                                  .transpose_a = true,
                                  .accumulate = true});
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_heads_logits_are_float64s),
        cmocka_unit_test(the_heads_weight_gradient_is_added_as_in_float64),
        cmocka_unit_test(the_heads_input_gradient_is_float64s),
        cmocka_unit_test(a_weight_gradient_of_many_rows_is_added_as_in_float64),
    };
    return RUN_MATMUL_TESTS(tests);
}
