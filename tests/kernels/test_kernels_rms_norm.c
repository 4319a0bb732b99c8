/* RMS norm of whole rows and of every head in a row, in matrices with gaps between the rows. Results are
 * compared with float64 and finite differences. The gaps are poisoned: a kernel that reads one computes a
 * NaN, and the checks find each write to one. */
#include "tests/kernels/test_kernels.h"

typedef struct shape {
    size_t rows, heads, width;
    /* in_gap: elements behind each row of `in`; out_gap: behind each row of out, dout and din */
    size_t in_gap, out_gap;
    double epsilon;
} shape;

/* Widths that are multiples of a vector and others, rows that begin at multiples of a vector and others;
 * epsilons large enough to change the results, and epsilons that models use. */
static const shape shapes[] = {{1, 1, 1, 0, 0, 0.05},     {1, 1, 17, 3, 0, 0.05},   {3, 2, 2, 1, 5, 0.05},
                               {5, 4, 64, 8, 16, 0.05},   {20, 3, 33, 0, 7, 0.5},   {33, 1, 100, 4, 4, 1e-5},
                               {7, 5, 128, 128, 64, 0.5}, {9, 3, 24, 160, 1, 1e-6}, {4, 1, 513, 0, 0, 0.05},
                               {6, 2, 257, 2, 0, 1e-5},   {40, 1, 8, 0, 0, 0.05}};
enum { SHAPES = sizeof shapes / sizeof shapes[0] };

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

/* An RMS norm's operands and results in buffers, and its inputs in float64. */
typedef struct norm_case {
    shape shape;
    strided in, out;
    buffer weight, rstd;
    double *x, *w;
} norm_case;

static norm_case case_make(shape s, tide_dtype dtype)
{
    norm_case made = {.shape = s};
    made.in = strided_random(&s, s.in_gap, dtype, 2.0);
    made.out = strided_of(&s, s.out_gap, dtype);
    made.weight = buffer_random(s.width, dtype, 1.5);
    made.rstd = buffer_of(s.rows * s.heads, TIDE_DTYPE_FP32);
    made.x = strided_values(made.in);
    made.w = buffer_values(made.weight);
    return made;
}

static void case_free(norm_case *freed)
{
    buffer_free(freed->in.data);
    buffer_free(freed->out.data);
    buffer_free(freed->weight);
    buffer_free(freed->rstd);
    free(freed->x);
    free(freed->w);
}

static double rstd_reference(const norm_case *c, size_t head)
{
    const double *x = c->x + head * c->shape.width;
    double squares = 0.0;
    for (size_t i = 0; i < c->shape.width; i++)
        squares += x[i] * x[i];
    return 1.0 / sqrt(squares / (double)c->shape.width + c->shape.epsilon);
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

static void check_forward(const tide_kernels *kernels, tide_dtype dtype)
{
    for (size_t s = 0; s < SHAPES; s++) {
        norm_case c = case_make(shapes[s], dtype);
        const size_t width = c.shape.width, heads = c.shape.rows * c.shape.heads;
        double *y = malloc(heads * width * sizeof *y), *rstds = malloc(heads * sizeof *rstds);
        assert_true(y && rstds);
        for (size_t i = 0; i < heads * width; i++)
            y[i] = c.x[i] * (rstds[i / width] = rstd_reference(&c, i / width)) * c.w[i % width];
        tide_rms_norm_args args = forward_args(&c);
        run_kernel(kernels->rms_norm, &args);
        assert_strided_close(c.out, y, 1e-6);
        assert_close(c.rstd, rstds, heads, 1e-6);
        const buffer out = buffer_copy(c.out.data);
        memset(c.out.data.data, POISON, c.out.data.bytes);
        args.rstd = NULL;
        run_kernel(kernels->rms_norm, &args);
        assert_same_bits(c.out.data, out);
        buffer_free(out);
        free(y);
        free(rstds);
        case_free(&c);
    }
}

static void rms_norm_matches_float64_with_and_without_statistics(void **state)
{
    (void)state;
    for_each_configuration(check_forward);
}

/* A head of zeros, where only epsilon prevents a division by zero, and a head of large numbers, whose
 * squares fp32 holds and fp16 does not. */
static void check_extremes(const tide_kernels *kernels, tide_dtype dtype)
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

static void zeros_stay_zeros_and_large_numbers_become_ones(void **state)
{
    (void)state;
    for_each_configuration(check_extremes);
}

/* ---- backward ---- */

/* sum(dout x out) of one head; the expected gradients are the slopes of this sum. */
static double objective(const norm_case *c, size_t head, const double *g)
{
    const size_t width = c->shape.width;
    double sum = 0.0;
    for (size_t i = 0; i < width; i++)
        sum += g[head * width + i] * c->x[head * width + i] * c->w[i];
    return sum * rstd_reference(c, head);
}

static double slope(const norm_case *c, size_t head, const double *g, double *variable)
{
    const double step = 1e-4, kept = *variable;
    *variable = kept + step;
    const double above = objective(c, head, g);
    *variable = kept - step;
    const double below = objective(c, head, g);
    *variable = kept;
    return (above - below) / (2 * step);
}

/* Sets dx and adds to dw the expected gradients, by finite differences. */
static void slopes(const norm_case *c, const double *g, double *dx, double *dw)
{
    const size_t width = c->shape.width;
    for (size_t i = 0; i < c->shape.rows * c->shape.heads * width; i++) {
        dx[i] = slope(c, i / width, g, c->x + i);
        dw[i % width] += slope(c, i / width, g, c->w + i % width);
    }
}

/* Runs forward, since backward reads its rstd, and returns backward's arguments. */
static tide_rms_norm_backward_args backward_args(const tide_kernels *kernels, const norm_case *c,
                                                 strided dout)
{
    const tide_rms_norm_args forward = forward_args(c);
    run_kernel(kernels->rms_norm, &forward);
    return (tide_rms_norm_backward_args){.in = c->in.data.data,
                                         .weight = c->weight.data,
                                         .dout = dout.data.data,
                                         .rstd = c->rstd.data,
                                         .rows = c->shape.rows,
                                         .heads = c->shape.heads,
                                         .width = c->shape.width,
                                         .in_row = c->in.row,
                                         .dout_row = dout.row,
                                         .dtype = c->weight.dtype};
}

static void check_backward(const tide_kernels *kernels, tide_dtype dtype)
{
    for (size_t s = 0; s < SHAPES; s++) {
        norm_case c = case_make(shapes[s], dtype);
        const shape of = c.shape;
        const size_t elements = of.rows * of.heads * of.width;
        strided dout = strided_random(&of, of.out_gap, dtype, 1.0), din = strided_of(&of, of.out_gap, dtype);
        strided joined = strided_random(&of, of.out_gap, dtype, 1.0);
        buffer dweight = buffer_random(of.width, TIDE_DTYPE_FP32, 1.0), twice = buffer_copy(dweight);
        double *g = strided_values(dout), *dx = malloc(elements * sizeof *dx), *sum = strided_values(joined);
        double *dw = buffer_values(dweight);
        assert_non_null(dx);
        slopes(&c, g, dx, dw);
        tide_rms_norm_backward_args args = backward_args(kernels, &c, dout);
        args.din = din.data.data;
        args.dweight = dweight.data;
        run_rms_norm_backward(kernels, &args);
        assert_strided_close(din, dx, of.width == 1 ? 1e-4 : 5e-6);
        assert_close(dweight, dw, of.width, 2e-6);

        for (size_t i = 0; i < elements; i++)
            sum[i] += dx[i];
        args.din = joined.data.data;
        args.dweight = twice.data;
        args.accumulate = true;
        run_rms_norm_backward(kernels, &args);
        assert_strided_close(joined, sum, of.width == 1 ? 1e-4 : 5e-6);
        assert_same_bits(twice, dweight);

        buffer buffers[] = {dout.data, din.data, joined.data, dweight, twice};
        for (size_t i = 0; i < sizeof buffers / sizeof buffers[0]; i++)
            buffer_free(buffers[i]);
        double *values[] = {g, dx, sum, dw};
        for (size_t i = 0; i < sizeof values / sizeof values[0]; i++)
            free(values[i]);
        case_free(&c);
    }
}

static void rms_norm_backward_matches_finite_differences(void **state)
{
    (void)state;
    for_each_configuration(check_backward);
}

/* Asks for only one of the two gradients: its bits must be those that it gets where the kernel computes both.
 * The same holds for din where it overwrites dout. */
static void check_one_gradient(const tide_kernels *kernels, tide_dtype dtype)
{
    for (size_t s = 0; s < SHAPES; s++) {
        norm_case c = case_make(shapes[s], dtype);
        strided dout = strided_random(&c.shape, c.shape.out_gap, dtype, 1.0);
        buffer din[2] = {buffer_of(dout.rows * dout.row, dtype), buffer_of(dout.rows * dout.row, dtype)};
        buffer dweight[3] = {buffer_random(c.shape.width, TIDE_DTYPE_FP32, 1.0)};
        dweight[1] = buffer_copy(dweight[0]);
        dweight[2] = buffer_copy(dweight[0]);
        tide_rms_norm_backward_args args = backward_args(kernels, &c, dout);
        args.din = din[0].data;
        args.dweight = dweight[0].data;
        run_rms_norm_backward(kernels, &args);
        args.din = NULL;
        args.dweight = dweight[1].data;
        run_rms_norm_backward(kernels, &args);
        args.din = din[1].data;
        args.dweight = NULL;
        run_rms_norm_backward(kernels, &args);
        args.din = dout.data.data;
        args.dweight = dweight[2].data;
        run_rms_norm_backward(kernels, &args);
        assert_same_bits(dweight[1], dweight[0]);
        assert_same_bits(din[1], din[0]);
        assert_same_bits(dweight[2], dweight[0]);
        assert_same_bits(dout.data, din[0]);
        buffer buffers[] = {dout.data, din[0], din[1], dweight[0], dweight[1], dweight[2]};
        for (size_t i = 0; i < sizeof buffers / sizeof buffers[0]; i++)
            buffer_free(buffers[i]);
        case_free(&c);
    }
}

static void rms_norm_backward_makes_one_gradient_without_the_other_and_overwrites_dout(void **state)
{
    (void)state;
    for_each_configuration(check_one_gradient);
}

#if TEST_ON_CPU

static void rms_norm_keeps_its_bits_for_any_thread_count(void **state)
{
    (void)state;
    const tide_kernels *kernels = tide_kernels_cpu();
    norm_case c = case_make((shape){300, 3, 111, 5, 2, 1e-5}, TIDE_DTYPE_BF16);
    strided dout = strided_random(&c.shape, 2, TIDE_DTYPE_BF16, 1.0),
            din = strided_of(&c.shape, 2, TIDE_DTYPE_BF16);
    buffer dweight = buffer_of(c.shape.width, TIDE_DTYPE_FP32),
           results[] = {c.out.data, c.rstd, din.data, dweight};
    enum { RESULTS = sizeof results / sizeof results[0] };
    buffer first[RESULTS];
    for (int threads = 1; threads <= 5; threads++) {
        tide_kernels_cpu_configure(threads);
        memset(dweight.data, 0, dweight.bytes);
        tide_rms_norm_backward_args args = backward_args(kernels, &c, dout);
        args.din = din.data.data;
        args.dweight = dweight.data;
        run_rms_norm_backward(kernels, &args);
        for (size_t i = 0; i < RESULTS; i++) {
            if (threads == 1)
                first[i] = buffer_copy(results[i]);
            assert_same_bits(results[i], first[i]);
        }
    }
    for (size_t i = 0; i < RESULTS; i++)
        buffer_free(first[i]);
    buffer_free(dout.data);
    buffer_free(din.data);
    buffer_free(dweight);
    case_free(&c);
}

#endif

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rms_norm_matches_float64_with_and_without_statistics),
        cmocka_unit_test(zeros_stay_zeros_and_large_numbers_become_ones),
        cmocka_unit_test(rms_norm_backward_matches_finite_differences),
        cmocka_unit_test(rms_norm_backward_makes_one_gradient_without_the_other_and_overwrites_dout),
#if TEST_ON_CPU
        cmocka_unit_test(rms_norm_keeps_its_bits_for_any_thread_count),
#endif
    };
    return RUN_KERNEL_TESTS(tests);
}
