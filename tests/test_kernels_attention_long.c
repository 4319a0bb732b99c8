/* Causal attention over thousands of tokens, as models have it: rows at random places all over the sequence against float64.
 *
 * Every tile of 64 rows at T = 4096 has a row that is looked at, so a tile left out anywhere is seen, and a key left out by the
 * rows behind it. Backward is compared with its formula for the output and logsumexp that it was given, which forward made.
 */
#include "tests/test_kernels_long.h"

typedef struct shape {
    size_t batch, length, heads, head_width;
    unsigned dtypes; /* 1 << each that it is tried with */
} shape;

enum { ALL = 1 << TIDE_DTYPE_FP32 | 1 << TIDE_DTYPE_BF16 | 1 << TIDE_DTYPE_FP16 };

/* A CPU takes seconds for some hundred tokens of a GPU: past several tiles, the last one cut. */
#if TEST_ON_CPU
static const shape shapes[] = {{1, 4096, 1, 64, ALL}};
#elif defined(TEST_CUDA_ON_CPU)
static const shape shapes[] = {{1, 300, 1, 64, 1 << TIDE_DTYPE_FP32},
                               {1, 700, 1, 64, 1 << TIDE_DTYPE_BF16},
                               {2, 200, 2, 128, 1 << TIDE_DTYPE_FP16}};
#else
static const shape shapes[] = {{2, 1024, 3, 64, ALL},
                               {2, 1024, 3, 128, ALL},
                               {1, 4096, 2, 64, ALL},
                               {1, 4096, 2, 128, ALL},
                               {1, 4001, 1, 80, ALL}};
#endif
enum { SHAPES = sizeof shapes / sizeof shapes[0], WIDEST = 128, SAMPLES = 64 };

/* A problem in both worlds. */
typedef struct attention_case {
    shape shape;
    size_t rows, width;
    buffer qkv, out, logsumexp, dout, dqkv;
    double *x, *y, *g; /* qkv, the kernel's out, dout */
} attention_case;

/* One head of one sequence. */
typedef struct place {
    size_t sequence, head;
} place;

enum { Q, K, V };

static size_t row_of(const attention_case *c, place at, size_t token)
{
    return at.sequence * c->shape.length + token;
}

static size_t index_in_qkv(const attention_case *c, place at, size_t token, size_t tensor)
{
    return (row_of(c, at, token) * 3 + tensor) * c->width + at.head * c->shape.head_width;
}

static size_t index_in_out(const attention_case *c, place at, size_t token)
{
    return row_of(c, at, token) * c->width + at.head * c->shape.head_width;
}

static size_t index_in_logsumexp(const attention_case *c, place at, size_t token)
{
    return (at.sequence * c->shape.heads + at.head) * c->shape.length + token;
}

static double dot(const double *a, const double *b, size_t count)
{
    double sum = 0.0;
    for (size_t i = 0; i < count; i++)
        sum += a[i] * b[i];
    return sum;
}

static double scale_of(const attention_case *c)
{
    return 1.0 / sqrt((double)c->shape.head_width);
}

static double score(const attention_case *c, place at, size_t query, size_t key)
{
    return scale_of(c) *
           dot(c->x + index_in_qkv(c, at, query, Q), c->x + index_in_qkv(c, at, key, K), c->shape.head_width);
}

/* ---- the case ---- */

static attention_case case_make(shape s, tide_dtype dtype)
{
    attention_case made = {.shape = s, .rows = s.batch * s.length, .width = s.heads * s.head_width};
    made.qkv = buffer_random(made.rows * 3 * made.width, dtype, 2.0);
    made.dout = buffer_random(made.rows * made.width, dtype, 1.0);
    made.out = buffer_of(made.rows * made.width, dtype);
    made.dqkv = buffer_of(made.rows * 3 * made.width, dtype);
    made.logsumexp = buffer_of(made.rows * s.heads, TIDE_DTYPE_FP32);
    made.x = buffer_values(made.qkv);
    made.g = buffer_values(made.dout);
    return made;
}

static void case_free(attention_case *freed)
{
    buffer buffers[] = {freed->qkv, freed->out, freed->logsumexp, freed->dout, freed->dqkv};
    for (size_t i = 0; i < sizeof buffers / sizeof buffers[0]; i++)
        buffer_free(buffers[i]);
    free(freed->x);
    free(freed->y);
    free(freed->g);
}

static void run_forward(const tide_kernels *kernels, const attention_case *c)
{
    tide_attention_args args = {.qkv = c->qkv.data,
                                .out = c->out.data,
                                .logsumexp = c->logsumexp.data,
                                .batch = c->shape.batch,
                                .sequence_length = c->shape.length,
                                .heads = c->shape.heads,
                                .head_width = c->shape.head_width,
                                .dtype = c->qkv.dtype};
    buffer workspace = buffer_bytes(kernels->attention_workspace_bytes(&args));
    args.workspace = workspace.data;
    args.workspace_bytes = workspace.bytes;
    run_kernel(kernels->attention, &args);
    buffer_free(workspace);
}

static void run_backward(const tide_kernels *kernels, const attention_case *c)
{
    tide_attention_backward_args args = {.qkv = c->qkv.data,
                                         .out = c->out.data,
                                         .dout = c->dout.data,
                                         .logsumexp = c->logsumexp.data,
                                         .dqkv = c->dqkv.data,
                                         .batch = c->shape.batch,
                                         .sequence_length = c->shape.length,
                                         .heads = c->shape.heads,
                                         .head_width = c->shape.head_width,
                                         .dtype = c->qkv.dtype};
    buffer workspace = buffer_bytes(kernels->attention_backward_workspace_bytes(&args));
    args.workspace = workspace.data;
    args.workspace_bytes = workspace.bytes;
    run_kernel(kernels->attention_backward, &args);
    buffer_free(workspace);
}

/* ---- what must come out ---- */

/* Of one query's output and logsumexp. */
static void forward_truth(const attention_case *c, place at, size_t query, truth *out, double *logsumexp)
{
    double sum = 0.0;
    for (size_t key = 0; key <= query; key++)
        sum += exp(score(c, at, query, key));
    *logsumexp = log(sum);
    for (size_t key = 0; key <= query; key++) {
        const double weight = exp(score(c, at, query, key)) / sum;
        const double *v = c->x + index_in_qkv(c, at, key, V);
        for (size_t i = 0; i < c->shape.head_width; i++)
            truth_add(&out[i], weight * v[i], 0.0);
    }
}

/* A query's weight of a key, and the gradient of their score; the latter is a difference of two sums in fp32, whose errors
 * stay when they cancel. */
typedef struct tie {
    double weight, gradient, noise;
} tie;

static tie tie_of(const attention_case *c, place at, size_t query, size_t key)
{
    const size_t d = c->shape.head_width;
    const double *g = c->g + index_in_out(c, at, query), *y = c->y + index_in_out(c, at, query);
    const double *v = c->x + index_in_qkv(c, at, key, V);
    const double logsumexp = buffer_get(c->logsumexp, index_in_logsumexp(c, at, query));
    truth difference = {0};
    for (size_t i = 0; i < d; i++) {
        truth_add(&difference, g[i] * v[i], 0.0);
        truth_add(&difference, -g[i] * y[i], 0.0);
    }
    const double weight = exp(score(c, at, query, key) - logsumexp);
    return (tie){weight, weight * difference.value, weight * sum_rounding(d) * sqrt(difference.squares)};
}

static void dq_truth(const attention_case *c, place at, size_t query, truth *dq)
{
    for (size_t key = 0; key <= query; key++) {
        const tie it = tie_of(c, at, query, key);
        const double *k = c->x + index_in_qkv(c, at, key, K);
        for (size_t i = 0; i < c->shape.head_width; i++)
            truth_add(&dq[i], scale_of(c) * it.gradient * k[i], scale_of(c) * it.noise * k[i]);
    }
}

static void dkv_truth(const attention_case *c, place at, size_t key, truth *dk, truth *dv)
{
    for (size_t query = key; query < c->shape.length; query++) {
        const tie it = tie_of(c, at, query, key);
        const double *q = c->x + index_in_qkv(c, at, query, Q), *g = c->g + index_in_out(c, at, query);
        for (size_t i = 0; i < c->shape.head_width; i++) {
            truth_add(&dk[i], scale_of(c) * it.gradient * q[i], scale_of(c) * it.noise * q[i]);
            truth_add(&dv[i], it.weight * g[i], 0.0);
        }
    }
}

/* Sums over the sequence; exponentials are right to 1e-5 (kernels.h), and exponents to a few units of 2^-23; and tensor cores
 * take weights and the scores' gradients rounded to the operands' type. Such a rounding errs by 0.4 of a half unit, root mean
 * square, at random: three half units are seven times that, and also more than the worst of a few keys. */
static double tolerance_of(const attention_case *c)
{
    const bool rounds = !TEST_ON_CPU && c->qkv.dtype != TIDE_DTYPE_FP32;
    return sum_rounding(c->shape.length) + 2e-5 + (rounds ? 3 * half_unit(c->qkv.dtype) : 0.0);
}

static void check_row(buffer actual, size_t first, const truth *expected, size_t count, double tolerance)
{
    for (size_t i = 0; i < count; i++)
        assert_true_at(actual, first + i, expected[i], tolerance);
}

static void check_sample(const attention_case *c, place at, size_t token)
{
    const size_t d = c->shape.head_width;
    const double tolerance = tolerance_of(c);
    truth out[WIDEST] = {0}, dq[WIDEST] = {0}, dk[WIDEST] = {0}, dv[WIDEST] = {0};
    double logsumexp;
    forward_truth(c, at, token, out, &logsumexp);
    check_row(c->out, index_in_out(c, at, token), out, d, tolerance);
    assert_near(c->logsumexp, index_in_logsumexp(c, at, token), logsumexp, 2e-5); /* exponentials, as above */
    dq_truth(c, at, token, dq);
    dkv_truth(c, at, token, dk, dv);
    check_row(c->dqkv, index_in_qkv(c, at, token, Q), dq, d, tolerance);
    check_row(c->dqkv, index_in_qkv(c, at, token, K), dk, d, tolerance);
    check_row(c->dqkv, index_in_qkv(c, at, token, V), dv, d, tolerance);
}

static void check_shape(shape s, tide_dtype dtype)
{
    attention_case c = case_make(s, dtype);
    run_forward(test_table(), &c);
    c.y = buffer_values(c.out);
    run_backward(test_table(), &c);
    for (size_t i = 0; i < c.rows * 3 * c.width; i++)
        assert_true(isfinite(buffer_get(c.dqkv, i)));
    for (size_t i = 0; i < SAMPLES; i++)
        check_sample(&c, (place){random_below(s.batch), random_below(s.heads)},
                     random_in_stretch(i, SAMPLES, s.length));
    case_free(&c);
}

static void check_all(tide_dtype dtype)
{
    for (size_t s = 0; s < SHAPES; s++)
        if (shapes[s].dtypes >> dtype & 1)
            check_shape(shapes[s], dtype);
}

static void thousands_of_tokens_attend_as_in_float64_fp32(void **state)
{
    (void)state;
    check_all(TIDE_DTYPE_FP32);
}

static void thousands_of_tokens_attend_as_in_float64_bf16(void **state)
{
    (void)state;
    check_all(TIDE_DTYPE_BF16);
}

static void thousands_of_tokens_attend_as_in_float64_fp16(void **state)
{
    (void)state;
    check_all(TIDE_DTYPE_FP16);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(thousands_of_tokens_attend_as_in_float64_fp32),
        cmocka_unit_test(thousands_of_tokens_attend_as_in_float64_bf16),
        cmocka_unit_test(thousands_of_tokens_attend_as_in_float64_fp16),
    };
    return RUN_KERNEL_TESTS(tests);
}
