/* Causal attention, forward and backward: compared with float64, and bit by bit between thread counts and
 * repeated runs. (Finite differences: test_kernels_attention_groups.c.) */
#include "tests/kernels/attention_case.h"
#include "tests/support/assert_ok.h"

/* Head widths of whole vectors and others, one for each width that tiles are padded to; lengths within a
 * tile, of exactly one tile, one token more, and of several; numbers of heads that do not fill a group of
 * heads (kernels/cuda/attention.h). */
static const attention_shape shapes[] = {
    {1, 1, 1, 1, 1, 0, false, NULL},    {1, 5, 2, 2, 3, 0, false, NULL},
    {2, 33, 2, 2, 32, 0, false, NULL},  {1, 64, 1, 1, 64, 0, false, NULL},
    {1, 65, 2, 2, 16, 0, false, NULL},  {1, 130, 1, 1, 100, 0, false, NULL},
    {1, 70, 1, 1, 200, 0, false, NULL}, {3, 70, 1, 1, 14, 0, false, NULL}};
enum { SHAPES = sizeof shapes / sizeof shapes[0] };

static void attention_matches_float64_forward_and_backward(const tide_kernels *kernels, tide_dtype dtype)
{
    for (size_t s = 0; s < SHAPES; s++)
        if (case_is_taken(s, dtype))
            case_check_shape(kernels, shapes[s], dtype);
}

/* Scores of hundreds: their exponentials overflow unless the kernel subtracts the maximum, also between
 * tiles. */
static void attention_survives_large_scores(const tide_kernels *kernels, tide_dtype dtype)
{
    attention_case c = case_make((attention_shape){1, 150, 1, 1, 8, 0, false, NULL}, dtype, 9.0);
    case_reference(&c);
    run_forward(kernels, &c);
    assert_close(c.out, c.y, c.rows * c.width, tolerance_with(1e-4, dtype, 1.0));
    assert_close(c.logsumexp, c.l, c.rows, 1e-6);
    case_free(&c);
}

/* ---- same bits ---- */

#if TEST_ON_CPU
static void run_best(const void *of)
{
    run_both(tide_kernels_cpu(), of);
}

static void attention_keeps_its_bits_for_any_thread_count(void **state)
{
    const size_t documents[] = {40, 64, 65, 110, 0};
    const attention_shape threaded[] = {{2, 150, 3, 3, 24, 0, false, NULL},
                                        {2, 150, 6, 2, 24, 5, true, NULL},
                                        {2, 150, 6, 2, 24, 0, false, documents}};
    for (size_t s = 0; s < sizeof threaded / sizeof threaded[0]; s++) {
        attention_case c = case_make(threaded[s], TIDE_DTYPE_BF16, 1.0);
        check_thread_counts(run_best, &c, (const buffer[]){c.out, c.logsumexp, c.dqkv}, 3);
        case_free(&c);
    }
}

#endif

/* Runs forward and backward twice and compares the bits. A run makes three launches; the emulation of a
 * GPU alternates from launch to launch between running the blocks forwards and backwards, so it runs each
 * kernel in both orders. A GPU runs the blocks in any order. */
static void attention_has_the_same_bits_in_every_run(const tide_kernels *kernels, tide_dtype dtype)
{
    const size_t documents[] = {20, 65, 0};
    const attention_shape twice[] = {{1, 70, 2, 2, 24, 0, false, NULL},
                                     {1, 70, 4, 2, 24, 8, true, documents}};
    for (size_t s = 0; s < sizeof twice / sizeof twice[0]; s++) {
        if (s > 0 && !case_is_taken(s, dtype))
            continue;
        attention_case c = case_make(twice[s], dtype, 1.0);
        run_both(kernels, &c);
        const attention_results first = results_copy(&c);
        case_check_again(kernels, &c, &first);
        results_free(&first);
        case_free(&c);
    }
}

/* ---- independent heads and rows ---- */

/* Whether the element belongs to the second head of keys, to a head of queries that uses it, or to the
 * second sequence. */
static bool is_of_others(const attention_case *c, bool of_queries, size_t row, size_t column)
{
    const size_t head = column / c->shape.head_width;
    return row >= c->shape.length || (of_queries ? case_kv_head(c, head) : head) == 1;
}

/* Next to a head's rows and columns lie those of other heads and sequences. The test sets these to NaN,
 * which shows even if a kernel only multiplies them by zero. The widths are vectors that end within eight
 * elements (fp32), whole vectors, and no multiple of a vector; case_is_taken() gives them fp32, fp16 and
 * bf16 in this order. */
static void a_nan_stays_in_its_sequence_and_head(const tide_kernels *kernels, tide_dtype dtype)
{
    const attention_shape neighbours[] = {{2, 20, 2, 2, 20, 0, false, NULL},
                                          {2, 20, 2, 2, 24, 0, false, NULL},
                                          {2, 20, 2, 2, 14, 0, false, NULL},
                                          {2, 20, 4, 2, 24, 8, true, NULL},
                                          {2, 20, 6, 3, 14, 1, false, NULL}};
    for (size_t s = 0; s < sizeof neighbours / sizeof neighbours[0]; s++)
        if (case_is_taken(s, dtype))
            case_check_spoilt(kernels, neighbours[s], dtype, is_of_others, (double)NAN);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        each_configuration(attention_matches_float64_forward_and_backward),
        each_configuration(attention_survives_large_scores),
#if TEST_ON_CPU
        cmocka_unit_test(attention_keeps_its_bits_for_any_thread_count),
#endif
        each_configuration(attention_has_the_same_bits_in_every_run),
        each_configuration(a_nan_stays_in_its_sequence_and_head),
    };
    return RUN_KERNEL_TESTS(tests);
}
