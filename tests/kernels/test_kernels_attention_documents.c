/* Attention in sequences of several documents: a token attends only to tokens of its own document. */
#include "tests/kernels/attention_case.h"

/* Lists of the tokens at which documents begin (attention_shape.documents): within a tile of 64 or 128
 * tokens and on its border, documents of one token next to a border, many documents in one tile, one
 * document over many tiles, and documents of one token each. */
static const size_t at_borders[] = {1, 64, 65, 100, 128, 0};
static const size_t in_first_tile[] = {33, 0};
static const size_t on_border[] = {128, 0};
static const size_t many[] = {3, 4, 10, 17, 18, 31, 50, 63, 64, 66, 90, 127, 129, 0};
static const size_t short_then_long[] = {5, 6, 250, 0};
static const size_t each[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 0};
static const size_t last_alone[] = {69, 0};

static const attention_shape shapes[] = {
    {1, 150, 2, 1, 16, 0, false, at_borders},     {2, 70, 4, 2, 64, 8, true, in_first_tile},
    {1, 140, 1, 1, 128, 0, false, on_border},     {2, 140, 2, 2, 14, 0, false, many},
    {1, 260, 2, 1, 8, 1, false, short_then_long}, {1, 16, 2, 1, 24, 0, false, each},
    {1, 70, 3, 1, 200, 0, true, last_alone},      {1, 140, 2, 1, 80, 0, false, many}};
enum { SHAPES = sizeof shapes / sizeof shapes[0] };

static void check_documents(const tide_kernels *kernels, tide_dtype dtype)
{
    for (size_t s = 0; s < SHAPES; s++) {
        if (!case_is_taken(s, dtype))
            continue;
        attention_case c = case_make(shapes[s], dtype, 1.0);
        case_reference(&c);
        run_both(kernels, &c);
        assert_close(c.out, c.y, c.rows * c.width, tolerance_with(3e-6, dtype, 1.0));
        assert_close(c.logsumexp, c.l, c.rows * c.shape.heads, 3e-6);
        case_check_gradients(&c, tolerance_with(1e-5, dtype, 4.0));
        case_check_gaps(&c);
        case_free(&c);
    }
}

static void documents_match_float64_forward_and_backward(void **state)
{
    (void)state;
    for_each_configuration(check_documents);
}

static void check_slopes(const tide_kernels *kernels, tide_dtype dtype)
{
    const size_t documents[] = {1, 7, 12, 0};
    attention_case c = case_make((attention_shape){2, 20, 4, 2, 6, 0, false, documents}, dtype, 1.0);
    /* Forward rounds the saved output, from which backward computes the softmax's mean. */
    const double tolerances[TEST_DTYPES] = {1e-5, 4e-3, 5e-4};
    run_both(kernels, &c);
    case_check_slopes(&c, 1, tolerance_with(tolerances[dtype], dtype, 4.0));
    case_free(&c);
}

static void gradients_of_documents_match_finite_differences(void **state)
{
    (void)state;
    for_each_configuration(check_slopes);
}

/* A list that says of each token that its document began with the sequence gives the bits of a run without
 * a list. */
static void check_zeros(const tide_kernels *kernels, tide_dtype dtype)
{
    const size_t none[] = {0};
    attention_case c = case_make((attention_shape){1, 70, 2, 1, 24, 0, false, none}, dtype, 1.0);
    run_both(kernels, &c);
    buffer out = buffer_copy(c.out), logsumexp = buffer_copy(c.logsumexp), dqkv = buffer_copy(c.dqkv);
    attention_case without = c;
    without.starts.data = NULL;
    case_forget_results(&without);
    run_both(kernels, &without);
    assert_same_bits(c.out, out);
    assert_same_bits(c.logsumexp, logsumexp);
    assert_same_bits(c.dqkv, dqkv);
    buffer buffers[] = {out, logsumexp, dqkv};
    for (size_t i = 0; i < sizeof buffers / sizeof buffers[0]; i++)
        buffer_free(buffers[i]);
    case_free(&c);
}

static void no_starts_and_starts_of_zero_give_the_same_bits(void **state)
{
    (void)state;
    for_each_configuration(check_zeros);
}

/* ---- independent documents ---- */

enum { FIRST = 1 << 0, SECOND = 1 << 1, THIRD = 1 << 2 };

/* Whether the row's document (number 0 for the sequence's first) is in the set `spoilt`. The case has one
 * sequence. */
static bool is_spoilt(const attention_case *c, size_t row, unsigned spoilt)
{
    unsigned document = 0;
    while (c->shape.documents[document] && c->shape.documents[document] <= row)
        document++;
    return spoilt >> document & 1;
}

/* Overwrites the rows of the documents in the set `spoilt` with 0, `with` and -`with`. */
static void spoil(const attention_case *c, buffer matrix, attention_part part, unsigned spoilt, double with)
{
    for (size_t i = 0; i < c->rows * part.width; i++)
        if (is_spoilt(c, i / part.width, spoilt))
            buffer_set(matrix, part_index(part, i), with * ((double)(i * 7 % 3) - 1.0));
}

static void assert_others_same(const attention_case *c, buffer after, buffer before, attention_part part,
                               unsigned spoilt)
{
    for (size_t i = 0; i < c->rows * part.width; i++) {
        const size_t at = part_index(part, i);
        if (!is_spoilt(c, i / part.width, spoilt) && !(buffer_get(after, at) == buffer_get(before, at)))
            fail_msg("row %zu, column %zu: %g, was %g", i / part.width, i % part.width, buffer_get(after, at),
                     buffer_get(before, at));
    }
}

static void check_spoilt(const tide_kernels *kernels, tide_dtype dtype, attention_shape shape,
                         unsigned spoilt, double with)
{
    attention_case c = case_make(shape, dtype, 1.0);
    const attention_part dense = {0, c.width, c.width};
    run_both(kernels, &c);
    buffer out = buffer_copy(c.out), dqkv = buffer_copy(c.dqkv);
    for (int tensor = Q; tensor < TENSORS; tensor++)
        spoil(&c, case_matrix(&c, tensor), c.x[tensor], spoilt, with);
    spoil(&c, c.dout, dense, spoilt, with);
    case_forget_results(&c);
    run_both(kernels, &c);
    assert_others_same(&c, c.out, out, dense, spoilt);
    for (int tensor = Q; tensor < TENSORS; tensor++)
        assert_others_same(&c, c.dqkv, dqkv, c.dx[tensor], spoilt);
    buffer_free(out);
    buffer_free(dqkv);
    case_free(&c);
}

/* Whether the test spoils this document with this dtype (case_is_taken()). */
static bool spoilt_is_taken(unsigned spoilt, tide_dtype dtype)
{
    return case_is_taken(spoilt == FIRST ? 0 : spoilt == SECOND ? 1 : 2, dtype);
}

/* Large numbers in every tensor of one document, and the large results of forward there, change no bit of
 * the documents before and behind it. */
static void check_loud(const tide_kernels *kernels, tide_dtype dtype)
{
    const size_t documents[] = {30, 75, 0};
    const attention_shape shape = {1, 100, 2, 1, 24, 0, false, documents};
    for (unsigned spoilt = FIRST; spoilt <= THIRD; spoilt <<= 1)
        if (spoilt_is_taken(spoilt, dtype))
            check_spoilt(kernels, dtype, shape, spoilt, 50.0);
}

static void a_document_sees_nothing_of_the_others(void **state)
{
    (void)state;
    for_each_configuration(check_loud);
}

/* NaNs in one document change no bit of the others either, where documents end with tiles; within a tile a
 * weight of zero times a NaN is a NaN. */
static void check_nan(const tide_kernels *kernels, tide_dtype dtype)
{
    const size_t documents[] = {128, 256, 0};
    const attention_shape shape = {1, 270, 1, 1, 24, 0, false, documents};
    for (unsigned spoilt = FIRST; spoilt <= THIRD; spoilt <<= 1)
        if (spoilt_is_taken(spoilt, dtype))
            check_spoilt(kernels, dtype, shape, spoilt, (double)NAN);
}

static void a_nan_stays_in_the_tiles_of_its_document(void **state)
{
    (void)state;
    for_each_configuration(check_nan);
}

/* A document gets the results that it gets as a sequence of its own. */
static void check_alone(const tide_kernels *kernels, tide_dtype dtype)
{
    enum { BEGIN = 64, LENGTH = 70 };
    const size_t documents[] = {BEGIN, 0};
    attention_case both =
        case_make((attention_shape){1, BEGIN + LENGTH, 2, 1, 32, 0, false, documents}, dtype, 1.0);
    attention_case alone = case_make((attention_shape){1, LENGTH, 2, 1, 32, 0, false, NULL}, dtype, 1.0);
    memcpy(alone.qk.data, (char *)both.qk.data + BEGIN * both.qk.bytes / both.rows, alone.qk.bytes);
    memcpy(alone.dout.data, (char *)both.dout.data + BEGIN * both.dout.bytes / both.rows, alone.dout.bytes);
    run_both(kernels, &both);
    run_both(kernels, &alone);
    double *out = buffer_values(alone.out), *dqkv = buffer_values(alone.dqkv);
    const double tolerance = 2e-6 + (dtype == TIDE_DTYPE_FP32 ? 0.0 : 2 * half_unit(dtype));
    for (size_t i = 0; i < LENGTH * both.width; i++)
        assert_near(both.out, BEGIN * both.width + i, out[i], tolerance);
    for (size_t i = 0; i < LENGTH * both.dx[Q].row; i++)
        assert_near(both.dqkv, BEGIN * both.dx[Q].row + i, dqkv[i], tolerance);
    free(out);
    free(dqkv);
    case_free(&both);
    case_free(&alone);
}

static void a_document_has_the_results_that_it_has_alone(void **state)
{
    (void)state;
    for_each_configuration(check_alone);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(documents_match_float64_forward_and_backward),
        cmocka_unit_test(gradients_of_documents_match_finite_differences),
        cmocka_unit_test(no_starts_and_starts_of_zero_give_the_same_bits),
        cmocka_unit_test(a_document_sees_nothing_of_the_others),
        cmocka_unit_test(a_nan_stays_in_the_tiles_of_its_document),
        cmocka_unit_test(a_document_has_the_results_that_it_has_alone),
    };
    return RUN_KERNEL_TESTS(tests);
}
