/* Causal attention, forward and backward. */
#include "tests/test_kernels.h"

typedef struct shape {
    size_t batch, length, heads, head_width;
} shape;

/* Head sizes that fill vectors and that do not, of each width that tiles are padded to; lengths within a tile, of one, past
 * one, of several; heads that do not fill groups (kernels/cuda/attention.h). */
static const shape shapes[] = {{1, 1, 1, 1},   {1, 5, 2, 3},     {2, 33, 2, 32},  {1, 64, 1, 64},
                               {1, 65, 2, 16}, {1, 130, 1, 100}, {1, 70, 1, 200}, {3, 70, 1, 14}};
enum { SHAPES = sizeof shapes / sizeof shapes[0] };

/* What is added to `tolerance` where the GPU's tensor cores take the weights, and in backward the scores' gradients, rounded to
 * the operands' type: half a unit of 1/256 or 1/2048 of each, and weights sum to one. `times` as many roundings go into it. */
static double tolerance_with(double tolerance, tide_dtype dtype, double times)
{
    const double units[TEST_DTYPES] = {0.0, ldexp(1.0, -9), ldexp(1.0, -12)};
    return tolerance + (TEST_ON_CPU ? 0.0 : times * units[dtype]);
}

/* A problem in both worlds. */
typedef struct attention_case {
    shape shape;
    size_t rows, width;
    buffer qkv, out, logsumexp, workspace;
    double *x, *y, *l;
} attention_case;

static double score(const attention_case *c, size_t b, size_t h, size_t query, size_t key)
{
    const size_t d = c->shape.head_width, length = c->shape.length;
    const double *q = c->x + (b * length + query) * 3 * c->width + h * d;
    const double *k = c->x + (b * length + key) * 3 * c->width + c->width + h * d;
    double sum = 0.0;
    for (size_t i = 0; i < d; i++)
        sum += q[i] * k[i];
    return sum / sqrt((double)d);
}

/* One query's row of one head: y and l, written as the formula reads. */
static void attend_reference(const attention_case *c, size_t b, size_t h, size_t query, double *y, double *l)
{
    const size_t d = c->shape.head_width, length = c->shape.length;
    double sum = 0.0;
    for (size_t i = 0; i < d; i++)
        y[i] = 0.0;
    for (size_t key = 0; key <= query; key++) {
        const double weight = exp(score(c, b, h, query, key));
        const double *v = c->x + (b * length + key) * 3 * c->width + 2 * c->width + h * d;
        sum += weight;
        for (size_t i = 0; i < d; i++)
            y[i] += weight * v[i];
    }
    for (size_t i = 0; i < d; i++)
        y[i] /= sum;
    *l = log(sum);
}

static void case_reference(const attention_case *c)
{
    const shape s = c->shape;
    for (size_t b = 0; b < s.batch; b++)
        for (size_t h = 0; h < s.heads; h++)
            for (size_t t = 0; t < s.length; t++)
                attend_reference(c, b, h, t, c->y + (b * s.length + t) * c->width + h * s.head_width,
                                 c->l + (b * s.heads + h) * s.length + t);
}

static attention_case case_make(shape s, tide_dtype dtype, double size)
{
    attention_case made = {.shape = s, .rows = s.batch * s.length, .width = s.heads * s.head_width};
    made.qkv = buffer_random(made.rows * 3 * made.width, dtype, size);
    made.out = buffer_of(made.rows * made.width, dtype);
    made.logsumexp = buffer_of(made.rows * s.heads, TIDE_DTYPE_FP32);
    made.x = buffer_values(made.qkv);
    made.y = buffer_values(made.out);
    made.l = buffer_values(made.logsumexp);
    case_reference(&made);
    return made;
}

static void case_free(attention_case *freed)
{
    buffer_free(freed->qkv);
    buffer_free(freed->out);
    buffer_free(freed->logsumexp);
    free(freed->x);
    free(freed->y);
    free(freed->l);
}

/* The workspace is poisoned and guarded as well. */
static void run_forward(const tide_kernels *kernels, const attention_case *c, buffer out, buffer logsumexp)
{
    const shape s = c->shape;
    tide_attention_args args = {.qkv = c->qkv.data,
                                .out = out.data,
                                .logsumexp = logsumexp.data,
                                .batch = s.batch,
                                .sequence_length = s.length,
                                .heads = s.heads,
                                .head_width = s.head_width,
                                .dtype = c->qkv.dtype};
    buffer workspace = buffer_bytes(kernels->attention_workspace_bytes(&args));
    args.workspace = workspace.data;
    args.workspace_bytes = workspace.bytes;
    run_kernel(kernels->attention, &args);
    buffer_free(workspace);
}

static void run_backward(const tide_kernels *kernels, const attention_case *c, buffer dout, void *dqkv)
{
    const shape s = c->shape;
    tide_attention_backward_args args = {.qkv = c->qkv.data,
                                         .out = c->out.data,
                                         .dout = dout.data,
                                         .logsumexp = c->logsumexp.data,
                                         .dqkv = dqkv,
                                         .batch = s.batch,
                                         .sequence_length = s.length,
                                         .heads = s.heads,
                                         .head_width = s.head_width,
                                         .dtype = c->qkv.dtype};
    buffer workspace = buffer_bytes(kernels->attention_backward_workspace_bytes(&args));
    args.workspace = workspace.data;
    args.workspace_bytes = workspace.bytes;
    run_kernel(kernels->attention_backward, &args);
    buffer_free(workspace);
}

static void check_forward(const tide_kernels *kernels, tide_dtype dtype)
{
    for (size_t s = 0; s < SHAPES; s++) {
        attention_case c = case_make(shapes[s], dtype, 2.0);
        run_forward(kernels, &c, c.out, c.logsumexp);
        assert_close(c.out, c.y, c.rows * c.width, tolerance_with(3e-6, dtype, 1.0));
        assert_close(c.logsumexp, c.l, c.rows * c.shape.heads, 3e-6);
        case_free(&c);
    }
}

static void attention_matches_float64(void **state)
{
    (void)state;
    for_each_configuration(check_forward);
}

/* Scores of hundreds: the exponentials overflow unless the maximum is taken off, also from tile to tile. */
static void check_large_scores(const tide_kernels *kernels, tide_dtype dtype)
{
    attention_case c = case_make((shape){1, 150, 1, 8}, dtype, 9.0);
    run_forward(kernels, &c, c.out, c.logsumexp);
    assert_close(c.out, c.y, c.rows * c.width, tolerance_with(1e-4, dtype, 1.0));
    assert_close(c.logsumexp, c.l, c.rows, 1e-6);
    case_free(&c);
}

static void attention_survives_large_scores(void **state)
{
    (void)state;
    for_each_configuration(check_large_scores);
}

/* ---- backward ---- */

/* sum(dout x out) of the rows that token `from` of sequence b and head h can reach. */
static double objective(const attention_case *c, const double *dout, size_t b, size_t h, size_t from)
{
    const shape s = c->shape;
    double y[256], l, sum = 0.0;
    for (size_t t = from; t < s.length; t++) {
        attend_reference(c, b, h, t, y, &l);
        for (size_t i = 0; i < s.head_width; i++)
            sum += dout[(b * s.length + t) * c->width + h * s.head_width + i] * y[i];
    }
    return sum;
}

static double slope(const attention_case *c, const double *dout, size_t at)
{
    const shape s = c->shape;
    const size_t token = at / (3 * c->width), h = at % c->width / s.head_width;
    const double step = 1e-4, kept = c->x[at];
    c->x[at] = kept + step;
    const double above = objective(c, dout, token / s.length, h, token % s.length);
    c->x[at] = kept - step;
    const double below = objective(c, dout, token / s.length, h, token % s.length);
    c->x[at] = kept;
    return (above - below) / (2 * step);
}

/* Compare some of the gradient with slopes: every `stride`-th element. The stride, modulo a row, must lead to all of a row's
 * thirds (q, k, v) and, of a wide head's columns, to both halves, which are different blocks' on a GPU. */
static void check_slopes(const attention_case *c, buffer dqkv, const double *dout, size_t stride,
                         double tolerance)
{
    const size_t elements = c->rows * 3 * c->width, count = (elements + stride - 1) / stride;
    double *expected = malloc(count * sizeof *expected);
    buffer some = buffer_of(count, dqkv.dtype);
    for (size_t i = 0; i < count; i++) {
        expected[i] = slope(c, dout, i * stride);
        buffer_set(some, i, buffer_get(dqkv, i * stride));
    }
    assert_close(some, expected, count, tolerance);
    buffer_free(some);
    free(expected);
}

static void check_backward(const tide_kernels *kernels, tide_dtype dtype)
{
    const size_t strides[SHAPES] = {1, 1, 101, 211, 89, 1009, 1741, 211};
    for (size_t s = 0; s < SHAPES; s++) {
        attention_case c = case_make(shapes[s], dtype, 1.0);
        buffer dout = buffer_random(c.rows * c.width, dtype, 1.0),
               dqkv = buffer_of(c.rows * 3 * c.width, dtype);
        double *g = buffer_values(dout);
        run_forward(kernels, &c, c.out, c.logsumexp);
        run_backward(kernels, &c, dout, dqkv.data);
        for (size_t i = 0; i < c.rows * 3 * c.width; i++)
            assert_true(isfinite(buffer_get(dqkv, i)));
        /* In bf16 the saved output is rounded, and with it the softmax's mean D: half a unit of 1/256 of it. In fp16 of 1/2048.
         */
        const double tolerances[TEST_DTYPES] = {1e-5, 4e-3, 5e-4};
        check_slopes(&c, dqkv, g, strides[s], tolerance_with(tolerances[dtype], dtype, 4.0));
        free(g);
        buffer_free(dout);
        buffer_free(dqkv);
        case_free(&c);
    }
}

static void attention_backward_matches_finite_differences(void **state)
{
    (void)state;
    for_each_configuration(check_backward);
}

/* ---- the same bits ---- */

#if TEST_ON_CPU
static void attention_keeps_its_bits_for_any_thread_count(void **state)
{
    (void)state;
    const tide_kernels *kernels = tide_kernels_cpu();
    attention_case c = case_make((shape){2, 150, 3, 24}, TIDE_DTYPE_BF16, 1.0);
    buffer dout = buffer_random(c.rows * c.width, TIDE_DTYPE_BF16, 1.0);
    buffer first_out = {0}, first_dqkv = {0};
    for (int threads = 1; threads <= 4; threads++) {
        buffer dqkv = buffer_of(c.rows * 3 * c.width, TIDE_DTYPE_BF16);
        tide_kernels_cpu_configure(threads);
        run_forward(kernels, &c, c.out, c.logsumexp);
        run_backward(kernels, &c, dout, dqkv.data);
        if (threads == 1) {
            first_out = buffer_copy(c.out);
            first_dqkv = dqkv;
            continue;
        }
        assert_same_bits(c.out, first_out);
        assert_same_bits(dqkv, first_dqkv);
        buffer_free(dqkv);
    }
    buffer_free(first_out);
    buffer_free(first_dqkv);
    buffer_free(dout);
    case_free(&c);
}

#endif

/* Twice the whole: three launches, so where the emulation of a GPU runs a launch's blocks forwards it runs them backwards the
 * second time, and a GPU takes them in whatever order it likes. */
static void check_twice(const tide_kernels *kernels, tide_dtype dtype)
{
    attention_case c = case_make((shape){1, 70, 2, 24}, dtype, 1.0);
    buffer dout = buffer_random(c.rows * c.width, dtype, 1.0), out = buffer_copy(c.out);
    buffer logsumexp = buffer_copy(c.logsumexp);
    buffer dqkv = buffer_of(c.rows * 3 * c.width, dtype), again = buffer_copy(dqkv);
    run_forward(kernels, &c, c.out, c.logsumexp);
    run_backward(kernels, &c, dout, dqkv.data);
    run_forward(kernels, &c, out, logsumexp);
    run_backward(kernels, &c, dout, again.data);
    assert_same_bits(out, c.out);
    assert_same_bits(logsumexp, c.logsumexp);
    assert_same_bits(again, dqkv);
    buffer buffers[] = {dout, out, logsumexp, dqkv, again};
    for (size_t i = 0; i < sizeof buffers / sizeof buffers[0]; i++)
        buffer_free(buffers[i]);
    case_free(&c);
}

static void attention_has_the_same_bits_in_every_run(void **state)
{
    (void)state;
    for_each_configuration(check_twice);
}

/* ---- what a head does not see ---- */

/* Is element i, of rows of one head's width or three (q, k, v) a head, of the second head or the second sequence? */
static bool is_spoilt(const attention_case *c, size_t i, size_t tensors)
{
    return i / (tensors * c->width) >= c->shape.length || i % c->width / c->shape.head_width == 1;
}

static void spoil(const attention_case *c, buffer spoilt, size_t tensors)
{
    for (size_t i = 0; i < c->rows * tensors * c->width; i++)
        if (is_spoilt(c, i, tensors))
            buffer_set(spoilt, i, (double)NAN);
}

/* What is not spoilt is as it was, where there is anything to compare with. */
static void assert_others_same(const attention_case *c, buffer after, buffer before, size_t tensors)
{
    for (size_t i = 0; i < c->rows * tensors * c->width; i++)
        if (!is_spoilt(c, i, tensors) && !(buffer_get(after, i) == buffer_get(before, i)))
            fail_msg("width %zu, element %zu: %g, was %g", c->shape.head_width, i, buffer_get(after, i),
                     buffer_get(before, i));
}

static void check_other_heads(const tide_kernels *kernels, tide_dtype dtype, shape of)
{
    attention_case c = case_make(of, dtype, 1.0);
    buffer dout = buffer_random(c.rows * c.width, dtype, 1.0);
    buffer dqkv = buffer_of(c.rows * 3 * c.width, dtype), spoilt_dqkv = buffer_copy(dqkv);
    run_forward(kernels, &c, c.out, c.logsumexp);
    run_backward(kernels, &c, dout, dqkv.data);
    buffer out = buffer_copy(c.out), logsumexp = buffer_copy(c.logsumexp);
    spoil(&c, c.qkv, 3);
    spoil(&c, dout, 1);
    run_forward(kernels, &c, c.out, c.logsumexp);
    run_backward(kernels, &c, dout, spoilt_dqkv.data);
    assert_others_same(&c, c.out, out, 1);
    assert_others_same(&c, spoilt_dqkv, dqkv, 3);
    assert_memory_equal(c.logsumexp.data, logsumexp.data, of.length * sizeof(float)); /* the first head's */
    buffer buffers[] = {dout, dqkv, spoilt_dqkv, out, logsumexp};
    for (size_t i = 0; i < sizeof buffers / sizeof buffers[0]; i++)
        buffer_free(buffers[i]);
    case_free(&c);
}

/* Rows and columns beyond a head's own are those of others: NaNs there show whether one is used, if only times zero. Widths of
 * whole vectors, of vectors that end within eight elements (fp32), and of none. */
static void check_neighbours(const tide_kernels *kernels, tide_dtype dtype)
{
    check_other_heads(kernels, dtype, (shape){2, 20, 2, 24});
    check_other_heads(kernels, dtype, (shape){2, 20, 2, 20});
    check_other_heads(kernels, dtype, (shape){2, 20, 2, 14});
}

static void a_nan_stays_in_its_sequence_and_head(void **state)
{
    (void)state;
    for_each_configuration(check_neighbours);
}

/* The future cannot be seen: what stands in later rows changes nothing in earlier ones. */
static void check_causality(const tide_kernels *kernels, tide_dtype dtype)
{
    attention_case c = case_make((shape){1, 100, 1, 16}, dtype, 1.0);
    run_forward(kernels, &c, c.out, c.logsumexp);
    buffer before = buffer_copy(c.out);
    for (size_t i = 70 * 3 * c.width; i < 100 * 3 * c.width; i++)
        buffer_set(c.qkv, i, 5.0);
    run_forward(kernels, &c, c.out, c.logsumexp);
    const size_t past_bytes = 70 * c.width * tide_dtype_bytes(dtype);
    assert_memory_equal(c.out.data, before.data, past_bytes);
    assert_memory_not_equal((char *)c.out.data + past_bytes, (char *)before.data + past_bytes,
                            c.out.bytes - past_bytes);
    buffer_free(before);
    case_free(&c);
}

static void a_query_does_not_see_the_future(void **state)
{
    (void)state;
    for_each_configuration(check_causality);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(attention_matches_float64),
        cmocka_unit_test(attention_survives_large_scores),
        cmocka_unit_test(attention_backward_matches_finite_differences),
#if TEST_ON_CPU
        cmocka_unit_test(attention_keeps_its_bits_for_any_thread_count),
#endif
        cmocka_unit_test(attention_has_the_same_bits_in_every_run),
        cmocka_unit_test(a_nan_stays_in_its_sequence_and_head),
        cmocka_unit_test(a_query_does_not_see_the_future),
    };
    return RUN_KERNEL_TESTS(tests);
}
