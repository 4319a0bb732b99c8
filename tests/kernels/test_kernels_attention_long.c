/* Causal attention over the thousands of tokens that models use: rows at random places of the sequence are
 * compared with float64.
 *
 * At T = 4096 the test checks a row in every tile of 64 rows, so it notices a tile that a kernel skips,
 * and a key that the rows behind it skip. The expected gradients are computed from the output and
 * logsumexp that the forward kernel made. */
#include "tests/kernels/attention_case.h"
#include "tests/kernels/test_kernels_long.h"
#include "tests/support/assert_ok.h"

typedef struct long_shape {
    attention_shape shape;
    /* the dtypes that it is tested with, as a bit set of 1 << dtype */
    unsigned dtypes;
} long_shape;

enum { ALL = 1 << TIDE_DTYPE_FP32 | 1 << TIDE_DTYPE_BF16 | 1 << TIDE_DTYPE_FP16 };

/* The tokens at which documents begin (attention_shape.documents). */
static const size_t documents[] = {1, 100, 250, 251, 640, 1000, 1300, 1301, 1302, 3000, 4095, 0};

/* The GPU's kernels run on the CPU take seconds for a few hundred tokens: enough for several tiles, the
 * last one partly filled. */
#if TEST_ON_CPU
static const long_shape shapes[] = {{{1, 4096, 1, 1, 64, 0, false, NULL}, ALL},
                                    {{1, 4096, 4, 2, 48, 0, true, documents}, ALL}};
#elif defined(TEST_CUDA_ON_CPU)
static const long_shape shapes[] = {{{1, 300, 1, 1, 64, 0, false, NULL}, 1 << TIDE_DTYPE_FP32},
                                    {{1, 700, 1, 1, 64, 0, false, documents}, 1 << TIDE_DTYPE_BF16},
                                    {{2, 200, 4, 2, 128, 0, false, NULL}, 1 << TIDE_DTYPE_FP16}};
#else
static const long_shape shapes[] = {
    {{2, 1024, 3, 3, 64, 0, false, NULL}, ALL},     {{2, 1024, 3, 3, 128, 0, false, NULL}, ALL},
    {{1, 4096, 2, 2, 64, 0, false, NULL}, ALL},     {{1, 4096, 2, 2, 128, 0, false, NULL}, ALL},
    {{1, 4001, 1, 1, 80, 0, false, NULL}, ALL},     {{2, 1024, 8, 1, 64, 0, true, NULL}, ALL},
    {{1, 4096, 4, 2, 128, 8, false, NULL}, ALL},    {{1, 4096, 4, 2, 128, 0, false, documents}, ALL},
    {{2, 4001, 3, 1, 64, 0, true, documents}, ALL}, {{1, 2000, 6, 2, 256, 0, false, documents}, ALL}};
#endif
enum { SHAPES = sizeof shapes / sizeof shapes[0], WIDEST = 256, SAMPLES = 64 };

/* One query head of one sequence. */
typedef struct place {
    size_t sequence, head;
} place;

static const double *values_of(const attention_case *c, int tensor, place at, size_t token)
{
    return case_values(c, tensor, at.sequence, at.head, token);
}

static size_t index_in_out(const attention_case *c, place at, size_t token)
{
    return case_index_in_out(c, at.sequence, at.head, token);
}

static size_t index_in_dqkv(const attention_case *c, int tensor, place at, size_t token)
{
    return part_index(c->dx[tensor], (size_t)(values_of(c, tensor, at, token) - c->values[tensor]));
}

static double score_of(const attention_case *c, place at, size_t query, size_t key)
{
    return score(c, at.sequence, at.head, query, key);
}

static double scale_of(const attention_case *c)
{
    return 1.0 / sqrt((double)c->shape.head_width);
}

/* ---- expected results ---- */

/* Sets one query's expected output and logsumexp. */
static void forward_truth(const attention_case *c, place at, size_t query, truth *out, double *logsumexp)
{
    const size_t start = case_start(c, at.sequence, query);
    double sum = 0.0;
    for (size_t key = start; key <= query; key++)
        sum += exp(score_of(c, at, query, key));
    *logsumexp = log(sum);
    for (size_t key = start; key <= query; key++) {
        const double weight = exp(score_of(c, at, query, key)) / sum;
        const double *v = values_of(c, V, at, key);
        for (size_t i = 0; i < c->shape.head_width; i++)
            truth_add(&out[i], weight * v[i], 0.0);
    }
}

/* A query's weight of a key, and the gradient of their score. The gradient is the difference of two fp32
 * sums, which may cancel; their errors do not, so `noise` holds them. */
typedef struct tie {
    double weight, gradient, noise;
} tie;

static tie tie_of(const attention_case *c, place at, size_t query, size_t key)
{
    const size_t d = c->shape.head_width;
    const double *g = c->g + index_in_out(c, at, query), *y = c->y + index_in_out(c, at, query);
    const double *v = values_of(c, V, at, key);
    const double logsumexp =
        buffer_get(c->logsumexp, case_index_in_logsumexp(c, at.sequence, at.head, query));
    truth difference = {0};
    for (size_t i = 0; i < d; i++) {
        truth_add(&difference, g[i] * v[i], 0.0);
        truth_add(&difference, -g[i] * y[i], 0.0);
    }
    const double weight = exp(score_of(c, at, query, key) - logsumexp);
    return (tie){weight, weight * difference.value, weight * sum_rounding(d) * sqrt(difference.squares)};
}

static void dq_truth(const attention_case *c, place at, size_t query, truth *dq)
{
    for (size_t key = case_start(c, at.sequence, query); key <= query; key++) {
        const tie it = tie_of(c, at, query, key);
        const double *k = values_of(c, K, at, key);
        for (size_t i = 0; i < c->shape.head_width; i++)
            truth_add(&dq[i], scale_of(c) * it.gradient * k[i], scale_of(c) * it.noise * k[i]);
    }
}

/* Adds the contributions of the queries of one head to dk and dv of a key that they attend to. */
static void dkv_truth_of_head(const attention_case *c, place at, size_t key, truth *dk, truth *dv)
{
    for (size_t query = key; query < c->shape.length; query++) {
        if (case_start(c, at.sequence, query) > key)
            return;
        const tie it = tie_of(c, at, query, key);
        const double *q = values_of(c, Q, at, query), *g = c->g + index_in_out(c, at, query);
        for (size_t i = 0; i < c->shape.head_width; i++) {
            truth_add(&dk[i], scale_of(c) * it.gradient * q[i], scale_of(c) * it.noise * q[i]);
            truth_add(&dv[i], it.weight * g[i], 0.0);
        }
    }
}

static void dkv_truth(const attention_case *c, place at, size_t key, truth *dk, truth *dv)
{
    for (size_t head = 0; head < c->shape.heads; head++)
        if (case_kv_head(c, head) == case_kv_head(c, at.head))
            dkv_truth_of_head(c, (place){at.sequence, head}, key, dk, dv);
}

/* The tolerance of a sum over the sequence. Exponentials are accurate to 1e-5 (kernels.h), exponents to a
 * few units of 2^-23. Tensor cores take weights and the scores' gradients rounded to the operands' type;
 * such a rounding errs at random by 0.4 of half a unit, root mean square. Three half units are seven times
 * that, and also more than the worst error of a sum of a few keys. */
static double tolerance_of(const attention_case *c)
{
    const bool rounds = !TEST_ON_CPU && c->qk.dtype != TIDE_DTYPE_FP32;
    return sum_rounding(c->shape.length * (c->shape.heads / c->shape.kv_heads)) + 2e-5 +
           (rounds ? 3 * half_unit(c->qk.dtype) : 0.0);
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
    /* errors of the exponentials, as in tolerance_of() */
    assert_near(c->logsumexp, case_index_in_logsumexp(c, at.sequence, at.head, token), logsumexp, 2e-5);
    dq_truth(c, at, token, dq);
    dkv_truth(c, at, token, dk, dv);
    check_row(c->dqkv, index_in_dqkv(c, Q, at, token), dq, d, tolerance);
    check_row(c->dqkv, index_in_dqkv(c, K, at, token), dk, d, tolerance);
    check_row(c->dqkv, index_in_dqkv(c, V, at, token), dv, d, tolerance);
}

static void check_shape(attention_shape s, tide_dtype dtype)
{
    attention_case c = case_make(s, dtype, 2.0);
    run_forward(test_table(), &c);
    c.y = buffer_values(c.out);
    run_backward(test_table(), &c);
    for (int tensor = Q; tensor < TENSORS; tensor++)
        for (size_t i = 0; i < c.rows * c.dx[tensor].width; i++)
            assert_true(isfinite(buffer_get(c.dqkv, part_index(c.dx[tensor], i))));
    for (size_t i = 0; i < SAMPLES; i++)
        check_sample(&c, (place){random_below(s.batch), random_below(s.heads)},
                     random_in_stretch(i, SAMPLES, s.length));
    case_free(&c);
}

static void thousands_of_tokens_attend_as_in_float64(void **state)
{
    for (size_t s = 0; s < SHAPES; s++)
        for (tide_dtype dtype = TIDE_DTYPE_FP32; dtype <= TIDE_DTYPE_FP16; dtype++)
            if (shapes[s].dtypes >> dtype & 1)
                check_shape(shapes[s].shape, dtype);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(thousands_of_tokens_attend_as_in_float64)};
    return RUN_KERNEL_TESTS(tests);
}
