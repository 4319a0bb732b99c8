/* RMS norm of whole rows and of every head in a row, in matrices with gaps between the rows. Results are
 * compared with float64, also at sizes that make kernels loop once more. The gaps are poisoned: a kernel that
 * reads one computes a NaN, and the checks find each write to one. */
#include "tests/kernels/test_kernels.h"
#include "tests/support/test_thin.h"

typedef struct shape {
    size_t rows, heads, width;
    /* in_gap: elements behind each row of `in`; out_gap: behind each row of out, dout and din */
    size_t in_gap, out_gap;
    double epsilon;
} shape;

/* Widths that are multiples of a vector and others, rows that begin at multiples of a vector and others;
 * epsilons large enough to change the results, and epsilons that models use. The last shapes have heads wider
 * than a block of the GPU holds, more heads than its grid has rows, and several wide heads for each row of
 * partial sums. */
static const shape shapes[] = {
    {1, 1, 1, 0, 0, 0.05},     {1, 1, 17, 3, 0, 0.05},    {3, 2, 2, 1, 5, 0.05},
    {5, 4, 64, 8, 16, 0.05},   {20, 3, 33, 0, 7, 0.5},    {33, 1, 100, 4, 4, 1e-5},
    {7, 5, 128, 128, 64, 0.5}, {9, 3, 24, 160, 1, 1e-6},  {4, 1, 513, 0, 0, 0.05},
    {6, 2, 257, 2, 0, 1e-5},   {40, 1, 8, 0, 0, 0.05},    {37, 1, 1040, 0, 0, 1e-5},
    {9, 1, 8200, 0, 0, 1e-5},  {2, 1, 16401, 0, 0, 1e-5}, {1100, 3, 20, 0, 0, 1e-5},
    {66001, 1, 2, 0, 0, 1e-5}};
enum { SHAPES = sizeof shapes / sizeof shapes[0], SMALL_SHAPES = SHAPES - 1, LARGE_SHAPES = SHAPES - 4 };

/* A matrix of rows of heads, with gaps between the rows. */
typedef struct strided {
    buffer data;
    /* used: elements of a row without its gap; row: with it */
    size_t rows, used, row;
} strided;

static strided strided_of(const shape *s, size_t gap, tide_dtype dtype)
{
    const size_t used = s->heads * s->width;
    return (strided){buffer_of(s->rows * (used + gap), dtype), s->rows, used, used + gap};
}

static strided strided_random(const shape *s, size_t gap, tide_dtype dtype, double scale)
{
    strided made = strided_of(s, gap, dtype);
    for (size_t i = 0; i < made.rows * made.used; i++)
        buffer_set(made.data, i / made.used * made.row + i % made.used, scale * random_value());
    return made;
}

/* The elements outside the gaps, without gaps, in float64; free() it. */
static double *strided_values(strided from)
{
    double *values = malloc(from.rows * from.used * sizeof *values);
    assert_non_null(values);
    for (size_t i = 0; i < from.rows * from.used; i++)
        values[i] = buffer_get(from.data, i / from.used * from.row + i % from.used);
    return values;
}

/* Checks that the values are near the expected ones and that no kernel has written to the gaps. */
static void assert_strided_close(strided actual, const double *expected, double tolerance)
{
    const size_t element_bytes = tide_dtype_bytes(actual.data.dtype);
    double largest = 0.0;
    for (size_t i = 0; i < actual.rows * actual.used; i++)
        largest = fmax(largest, fabs(expected[i]));
    for (size_t i = 0; i < actual.rows * actual.used; i++)
        assert_near(actual.data, i / actual.used * actual.row + i % actual.used, expected[i],
                    tolerance * largest);
    for (size_t row = 0; row < actual.rows; row++)
        for (size_t i = (row * actual.row + actual.used) * element_bytes;
             i < (row + 1) * actual.row * element_bytes; i++)
            assert_int_equal(((const unsigned char *)actual.data.data)[i], POISON);
}

/* An RMS norm's operands in buffers, the same in float64 (x, w, and g for dout), its results, and their
 * expected values. The expected gradient of the weight begins at zero. */
typedef struct norm_case {
    shape shape;
    size_t heads; /* of all rows */
    strided in, dout, out;
    buffer weight, rstd;
    double *x, *w, *g;
    double *y, *rstds, *dx, *dw;
} norm_case;

static void norm_reference(const norm_case *c)
{
    const size_t width = c->shape.width;
    memset(c->dw, 0, width * sizeof *c->dw);
    for (size_t head = 0; head < c->heads; head++) {
        double squares = 0.0, weighted_sum = 0.0;
        for (size_t i = head * width; i < (head + 1) * width; i++) {
            squares += c->x[i] * c->x[i];
            weighted_sum += c->g[i] * c->w[i % width] * c->x[i];
        }
        const double r = c->rstds[head] = 1.0 / sqrt(squares / (double)width + c->shape.epsilon);
        for (size_t i = head * width; i < (head + 1) * width; i++) {
            c->y[i] = c->x[i] * r * c->w[i % width];
            c->dx[i] = r * (c->g[i] * c->w[i % width] - c->x[i] * r * r * weighted_sum / (double)width);
            c->dw[i % width] += c->g[i] * c->x[i] * r;
        }
    }
}

static norm_case case_make(shape s, tide_dtype dtype)
{
    norm_case made = {.shape = s, .heads = s.rows * s.heads};
    made.in = strided_random(&s, s.in_gap, dtype, 2.0);
    made.dout = strided_random(&s, s.out_gap, dtype, 1.0);
    made.out = strided_of(&s, s.out_gap, dtype);
    made.weight = buffer_random(s.width, dtype, 1.5);
    made.rstd = buffer_of(made.heads, TIDE_DTYPE_FP32);
    made.x = strided_values(made.in);
    made.w = buffer_values(made.weight);
    made.g = strided_values(made.dout);
    made.y = doubles(made.heads * s.width);
    made.rstds = doubles(made.heads);
    made.dx = doubles(made.heads * s.width);
    made.dw = doubles(s.width);
    norm_reference(&made);
    return made;
}

static void case_free(norm_case *freed)
{
    double *values[] = {freed->x, freed->w, freed->g, freed->y, freed->rstds, freed->dx, freed->dw};
    for (size_t i = 0; i < sizeof values / sizeof values[0]; i++)
        free(values[i]);
    buffers_free(freed->in.data, freed->dout.data, freed->out.data, freed->weight, freed->rstd);
}

/* sum(dout x out): the gradients are its slopes. */
static double objective(const void *of)
{
    const norm_case *c = of;
    double sum = 0.0;
    norm_reference(c);
    for (size_t i = 0; i < c->heads * c->shape.width; i++)
        sum += c->g[i] * c->y[i];
    return sum;
}

static void the_references_gradients_are_finite_differences(void **state)
{
    enum { WIDTH = 5, ELEMENTS = 2 * 3 * WIDTH };
    norm_case c = case_make((shape){2, 3, WIDTH, 0, 0, 0.05}, TIDE_DTYPE_FP32);
    for (size_t i = 0; i < ELEMENTS + WIDTH; i++) {
        const bool of_x = i < ELEMENTS;
        const double slope = slope_of(objective, &c, of_x ? c.x + i : c.w + i - ELEMENTS);
        norm_reference(&c);
        assert_true(fabs(slope - (of_x ? c.dx[i] : c.dw[i - ELEMENTS])) < 1e-6);
    }
    case_free(&c);
}

/* The tolerance of a kernel: where sums are long, no terms cancel, since they are squares; a head that lacks
 * one of 16401 terms is off by 3e-5. */
static double tolerance_of(const norm_case *c, double usual)
{
    return c->shape.width > 1000 || c->heads > 1000 ? 1e-5 : usual;
}

static tide_rms_norm_args forward_args(const norm_case *c)
{
    return (tide_rms_norm_args){.in = c->in.data.data,
                                .weight = c->weight.data,
                                .out = c->out.data.data,
                                .rstd = c->rstd.data,
                                .rows = c->shape.rows,
                                .heads = c->shape.heads,
                                .width = c->shape.width,
                                .in_row = c->in.row,
                                .out_row = c->out.row,
                                .epsilon = (float)c->shape.epsilon,
                                .dtype = c->weight.dtype};
}

static void rms_norm_matches_float64_with_and_without_statistics(const tide_kernels *kernels,
                                                                 tide_dtype dtype)
{
    for (size_t s = 0; s < (test_large() ? SHAPES : SMALL_SHAPES); s++) {
        norm_case c = case_make(shapes[s], dtype);
        tide_rms_norm_args args = forward_args(&c);
        run_kernel(kernels->rms_norm, &args);
        assert_strided_close(c.out, c.y, tolerance_of(&c, 1e-6));
        assert_close(c.rstd, c.rstds, c.heads, tolerance_of(&c, 1e-6));
        const buffer out = buffer_copy(c.out.data);
        memset(c.out.data.data, POISON, c.out.data.bytes);
        args.rstd = NULL;
        run_kernel(kernels->rms_norm, &args);
        assert_same_bits(c.out.data, out);
        buffer_free(out);
        case_free(&c);
    }
}

/* A head of zeros, where only epsilon prevents a division by zero, and a head of large numbers, whose
 * squares fp32 holds and fp16 does not. */
static void zeros_stay_zeros_and_large_numbers_become_ones(const tide_kernels *kernels, tide_dtype dtype)
{
    norm_case c = case_make((shape){2, 1, 40, 0, 0, 1e-6}, dtype);
    for (size_t i = 0; i < 40; i++) {
        buffer_set(c.in.data, i, 0.0);
        buffer_set(c.in.data, 40 + i, 6e4);
        buffer_set(c.weight, i, 1.0);
    }
    const tide_rms_norm_args args = forward_args(&c);
    run_kernel(kernels->rms_norm, &args);
    for (size_t i = 0; i < 40; i++) {
        assert_true(buffer_get(c.out.data, i) == 0.0);
        assert_near(c.out.data, 40 + i, 1.0, 1e-6);
    }
    assert_near(c.rstd, 0, 1e3, 1e-3);
    case_free(&c);
}

/* ---- backward ---- */

/* Runs forward, since backward reads its rstd, then backward, which makes the gradients that are not NULL. */
static void run_backward(const tide_kernels *kernels, const norm_case *c, const buffer *din,
                         const buffer *dweight, bool accumulate)
{
    const tide_rms_norm_args forward = forward_args(c);
    run_kernel(kernels->rms_norm, &forward);
    run_rms_norm_backward(kernels, &(tide_rms_norm_backward_args){.in = c->in.data.data,
                                                                  .weight = c->weight.data,
                                                                  .dout = c->dout.data.data,
                                                                  .rstd = c->rstd.data,
                                                                  .din = din ? din->data : NULL,
                                                                  .dweight = dweight ? dweight->data : NULL,
                                                                  .rows = c->shape.rows,
                                                                  .heads = c->shape.heads,
                                                                  .width = c->shape.width,
                                                                  .in_row = c->in.row,
                                                                  .dout_row = c->dout.row,
                                                                  .accumulate = accumulate,
                                                                  .dtype = c->weight.dtype});
}

/* Both gradients at once; each alone, which must have the same bits; din added to other values; din in place
 * of dout. The large shapes follow case_is_taken(): heads too wide for a block of the GPU are in fp32, and in
 * fp16 twice as wide. Sums of many numbers around 0 may come near 0; their rounding errors do not. */
static void rms_norm_backward_matches_float64_together_alone_added_and_in_place(const tide_kernels *kernels,
                                                                                tide_dtype dtype)
{
    for (size_t s = 0; s < (test_large() ? SHAPES : SMALL_SHAPES); s++) {
        if (s >= LARGE_SHAPES && !case_is_taken(s, dtype))
            continue;
        norm_case c = case_make(shapes[s], dtype);
        const shape of = c.shape;
        const double tolerance = of.width == 1 ? 1e-4 : tolerance_of(&c, 5e-6);
        strided din = strided_of(&of, of.out_gap, dtype), alone = strided_of(&of, of.out_gap, dtype);
        strided joined = strided_random(&of, of.out_gap, dtype, 1.0);
        buffer dweight[4] = {buffer_random(of.width, TIDE_DTYPE_FP32, 1.0)};
        for (size_t i = 1; i < 4; i++)
            dweight[i] = buffer_copy(dweight[0]);
        double *dw = buffer_values(dweight[0]), *sum = strided_values(joined), scale = sqrt((double)c.heads);
        run_backward(kernels, &c, &din.data, &dweight[0], false);
        assert_strided_close(din, c.dx, tolerance);
        for (size_t i = 0; i < of.width; i++)
            scale = fmax(scale, fabs(dw[i] += c.dw[i]));
        for (size_t i = 0; i < of.width; i++)
            assert_near(dweight[0], i, dw[i], tolerance_of(&c, 2e-6) * scale);

        run_backward(kernels, &c, NULL, &dweight[1], false);
        run_backward(kernels, &c, &alone.data, NULL, false);
        assert_same_bits(alone.data, din.data);
        for (size_t i = 0; i < c.heads * of.width; i++)
            sum[i] += c.dx[i];
        run_backward(kernels, &c, &joined.data, &dweight[2], true);
        assert_strided_close(joined, sum, tolerance);
        run_backward(kernels, &c, &c.dout.data, &dweight[3], false);
        assert_same_bits(c.dout.data, din.data);
        for (size_t i = 1; i < 4; i++)
            assert_same_bits(dweight[i], dweight[0]);

        buffers_free(din.data, alone.data, joined.data);
        buffer_array_free(dweight, 4);
        free(dw);
        free(sum);
        case_free(&c);
    }
}

#if TEST_ON_CPU

typedef struct threads_case {
    norm_case norm;
    buffer din, dweight;
} threads_case;

static void run_with_threads(const void *of)
{
    const threads_case *c = of;
    memset(c->dweight.data, 0, c->dweight.bytes);
    run_backward(tide_kernels_cpu(), &c->norm, &c->din, &c->dweight, false);
}

static void rms_norm_keeps_its_bits_for_any_thread_count(void **state)
{
    threads_case c = {.norm = case_make((shape){300, 3, 111, 5, 2, 1e-5}, TIDE_DTYPE_BF16)};
    c.din = buffer_copy(c.norm.out.data);
    c.dweight = buffer_of(c.norm.shape.width, TIDE_DTYPE_FP32);
    check_thread_counts(run_with_threads, &c,
                        (const buffer[]){c.norm.out.data, c.norm.rstd, c.din, c.dweight}, 4);
    buffers_free(c.din, c.dweight);
    case_free(&c.norm);
}

#endif

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_references_gradients_are_finite_differences),
        each_configuration(rms_norm_matches_float64_with_and_without_statistics),
        each_configuration(zeros_stay_zeros_and_large_numbers_become_ones),
        each_configuration(rms_norm_backward_matches_float64_together_alone_added_and_in_place),
#if TEST_ON_CPU
        cmocka_unit_test(rms_norm_keeps_its_bits_for_any_thread_count),
#endif
    };
    return RUN_KERNEL_TESTS(tests);
}
