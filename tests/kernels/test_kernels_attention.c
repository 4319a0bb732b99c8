/* Causal attention, forward and backward: compared with float64, with finite differences, and bit by bit
 * between thread counts and repeated runs. */
#include "tests/kernels/attention_case.h"

/* Head widths of whole vectors and others, one for each width that tiles are padded to; lengths within a
 * tile, of exactly one tile, one token more, and of several; numbers of heads that do not fill a group of
 * heads (kernels/cuda/attention.h). */
static const attention_shape shapes[] = {
    {1, 1, 1, 1, 1, 0, false, NULL},    {1, 5, 2, 2, 3, 0, false, NULL},
    {2, 33, 2, 2, 32, 0, false, NULL},  {1, 64, 1, 1, 64, 0, false, NULL},
    {1, 65, 2, 2, 16, 0, false, NULL},  {1, 130, 1, 1, 100, 0, false, NULL},
    {1, 70, 1, 1, 200, 0, false, NULL}, {3, 70, 1, 1, 14, 0, false, NULL}};
enum { SHAPES = sizeof shapes / sizeof shapes[0] };

static void check_forward(const tide_kernels *kernels, tide_dtype dtype)
{
    for (size_t s = 0; s < SHAPES; s++) {
        if (!case_is_taken(s, dtype))
            continue;
        attention_case c = case_make(shapes[s], dtype, 2.0);
        case_reference(&c);
        run_forward(kernels, &c);
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

/* Scores of hundreds: their exponentials overflow unless the kernel subtracts the maximum, also between
 * tiles. */
static void check_large_scores(const tide_kernels *kernels, tide_dtype dtype)
{
    attention_case c = case_make((attention_shape){1, 150, 1, 1, 8, 0, false, NULL}, dtype, 9.0);
    case_reference(&c);
    run_forward(kernels, &c);
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

/* Compares every `stride`-th element of the gradients of q, k and v with finite differences. The strides
 * are chosen to hit both halves of a wide head's columns, since a GPU computes them in different blocks. */
static void check_backward(const tide_kernels *kernels, tide_dtype dtype)
{
    const size_t strides[SHAPES] = {1, 1, 101, 211, 89, 1009, 1741, 211};
    for (size_t s = 0; s < SHAPES; s++) {
        if (!case_is_taken(s, dtype))
            continue;
        attention_case c = case_make(shapes[s], dtype, 1.0);
        run_both(kernels, &c);
        for (size_t i = 0; i < c.rows * 3 * c.width; i++)
            assert_true(isfinite(buffer_get(c.dqkv, i)));
        /* Forward rounds its output to bf16, by up to half of 1/256, or to fp16, by half of 1/2048;
         * backward computes the softmax's mean D from the rounded output. */
        const double tolerances[TEST_DTYPES] = {1e-5, 4e-3, 5e-4};
        case_check_slopes(&c, strides[s], tolerance_with(tolerances[dtype], dtype, 4.0));
        case_free(&c);
    }
}

static void attention_backward_matches_finite_differences(void **state)
{
    (void)state;
    for_each_configuration(check_backward);
}

/* ---- same bits ---- */

/* A copy of a case's results. */
typedef struct attention_results {
    buffer out, logsumexp, dqkv;
} attention_results;

static attention_results results_copy(const attention_case *c)
{
    return (attention_results){buffer_copy(c->out), buffer_copy(c->logsumexp), buffer_copy(c->dqkv)};
}

static void results_free(attention_results *freed)
{
    buffer_free(freed->out);
    buffer_free(freed->logsumexp);
    buffer_free(freed->dqkv);
}

static void assert_same_results(const attention_case *c, const attention_results *expected)
{
    assert_same_bits(c->out, expected->out);
    assert_same_bits(c->logsumexp, expected->logsumexp);
    assert_same_bits(c->dqkv, expected->dqkv);
}

#if TEST_ON_CPU
static void check_threads(attention_shape shape)
{
    const tide_kernels *kernels = tide_kernels_cpu();
    attention_case c = case_make(shape, TIDE_DTYPE_BF16, 1.0);
    attention_results first = {0};
    for (int threads = 1; threads <= 5; threads++) {
        tide_kernels_cpu_configure(threads);
        case_forget_results(&c);
        run_both(kernels, &c);
        if (threads == 1)
            first = results_copy(&c);
        assert_same_results(&c, &first);
    }
    results_free(&first);
    case_free(&c);
}

static void attention_keeps_its_bits_for_any_thread_count(void **state)
{
    (void)state;
    const size_t documents[] = {40, 64, 65, 110, 0};
    check_threads((attention_shape){2, 150, 3, 3, 24, 0, false, NULL});
    check_threads((attention_shape){2, 150, 6, 2, 24, 5, true, NULL});
    check_threads((attention_shape){2, 150, 6, 2, 24, 0, false, documents});
}

#endif

/* Runs forward and backward twice and compares the bits. A run makes three launches; the emulation of a
 * GPU alternates from launch to launch between running the blocks forwards and backwards, so it runs each
 * kernel in both orders. A GPU runs the blocks in any order. */
static void check_twice(const tide_kernels *kernels, tide_dtype dtype)
{
    const size_t documents[] = {20, 65, 0};
    const attention_shape twice[] = {{1, 70, 2, 2, 24, 0, false, NULL},
                                     {1, 70, 4, 2, 24, 8, true, documents}};
    for (size_t s = 0; s < sizeof twice / sizeof twice[0]; s++) {
        if (s > 0 && !case_is_taken(s, dtype))
            continue;
        attention_case c = case_make(twice[s], dtype, 1.0);
        run_both(kernels, &c);
        attention_results first = results_copy(&c);
        case_forget_results(&c);
        run_both(kernels, &c);
        assert_same_results(&c, &first);
        results_free(&first);
        case_free(&c);
    }
}

static void attention_has_the_same_bits_in_every_run(void **state)
{
    (void)state;
    for_each_configuration(check_twice);
}

/* ---- independent heads and rows ---- */

/* Whether the element belongs to the second head of keys, to a head of queries that uses it, or to the
 * second sequence. */
static bool is_spoilt(const attention_case *c, bool of_queries, size_t row, size_t column)
{
    const size_t head = column / c->shape.head_width;
    return row >= c->shape.length || (of_queries ? case_kv_head(c, head) : head) == 1;
}

static void spoil(const attention_case *c, buffer matrix, attention_part part, bool of_queries)
{
    for (size_t i = 0; i < c->rows * part.width; i++)
        if (is_spoilt(c, of_queries, i / part.width, i % part.width))
            buffer_set(matrix, part_index(part, i), (double)NAN);
}

/* Checks that every element outside the spoilt heads and sequences is unchanged. */
static void assert_others_same(const attention_case *c, buffer after, buffer before, attention_part part,
                               bool of_queries)
{
    for (size_t i = 0; i < c->rows * part.width; i++) {
        const size_t at = part_index(part, i);
        if (!is_spoilt(c, of_queries, i / part.width, i % part.width) &&
            !(buffer_get(after, at) == buffer_get(before, at)))
            fail_msg("width %zu, element %zu: %g, was %g", c->shape.head_width, at, buffer_get(after, at),
                     buffer_get(before, at));
    }
}

static void check_other_heads(const tide_kernels *kernels, tide_dtype dtype, attention_shape of)
{
    attention_case c = case_make(of, dtype, 1.0);
    const attention_part dense = {0, c.width, c.width};
    /* logsumexp elements of the heads of queries that use the first head of keys, in the first sequence */
    const size_t seen = of.heads / of.kv_heads * of.length;
    run_both(kernels, &c);
    attention_results before = results_copy(&c);
    for (int tensor = Q; tensor < TENSORS; tensor++)
        spoil(&c, case_matrix(&c, tensor), c.x[tensor], tensor == Q);
    spoil(&c, c.dout, dense, true);
    case_forget_results(&c);
    run_both(kernels, &c);
    assert_others_same(&c, c.out, before.out, dense, true);
    for (int tensor = Q; tensor < TENSORS; tensor++)
        assert_others_same(&c, c.dqkv, before.dqkv, c.dx[tensor], tensor == Q);
    assert_memory_equal(c.logsumexp.data, before.logsumexp.data, seen * sizeof(float));
    results_free(&before);
    case_free(&c);
}

/* Next to a head's rows and columns lie those of other heads and sequences. The test sets these to NaN,
 * which shows even if a kernel only multiplies them by zero. The widths are vectors that end within eight
 * elements (fp32), whole vectors, and no multiple of a vector; case_is_taken() gives them fp32, fp16 and
 * bf16 in this order. */
static void check_neighbours(const tide_kernels *kernels, tide_dtype dtype)
{
    const attention_shape neighbours[] = {{2, 20, 2, 2, 20, 0, false, NULL},
                                          {2, 20, 2, 2, 24, 0, false, NULL},
                                          {2, 20, 2, 2, 14, 0, false, NULL},
                                          {2, 20, 4, 2, 24, 8, true, NULL},
                                          {2, 20, 6, 3, 14, 1, false, NULL}};
    for (size_t s = 0; s < sizeof neighbours / sizeof neighbours[0]; s++)
        if (case_is_taken(s, dtype))
            check_other_heads(kernels, dtype, neighbours[s]);
}

static void a_nan_stays_in_its_sequence_and_head(void **state)
{
    (void)state;
    for_each_configuration(check_neighbours);
}

/* Changed values in later rows change nothing in the results of earlier rows. */
static void check_causality(const tide_kernels *kernels, tide_dtype dtype)
{
    attention_case c = case_make((attention_shape){1, 100, 2, 1, 16, 0, false, NULL}, dtype, 1.0);
    run_forward(kernels, &c);
    buffer before = buffer_copy(c.out);
    for (size_t i = 70 * c.x[Q].row; i < 100 * c.x[Q].row; i++)
        buffer_set(c.qk, i, 5.0);
    run_forward(kernels, &c);
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
