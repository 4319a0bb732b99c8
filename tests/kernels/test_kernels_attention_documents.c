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

static void documents_match_float64_forward_and_backward(const tide_kernels *kernels, tide_dtype dtype)
{
    for (size_t s = 0; s < SHAPES; s++)
        if (case_is_taken(s, dtype))
            case_check_shape(kernels, shapes[s], dtype);
}

static void gradients_of_documents_match_finite_differences(const tide_kernels *kernels, tide_dtype dtype)
{
    const size_t documents[] = {1, 7, 12, 0};
    case_check_slopes(kernels, (attention_shape){2, 20, 4, 2, 6, 0, false, documents}, dtype);
}

/* A list that says of each token that its document began with the sequence gives the bits of a run without
 * a list. */
static void no_starts_and_starts_of_zero_give_the_same_bits(const tide_kernels *kernels, tide_dtype dtype)
{
    const size_t none[] = {0};
    attention_case c = case_make((attention_shape){1, 70, 2, 1, 24, 0, false, none}, dtype, 1.0);
    run_both(kernels, &c);
    const attention_results with_list = results_copy(&c);
    attention_case without = c;
    without.starts.data = NULL;
    case_check_again(kernels, &without, &with_list);
    results_free(&with_list);
    case_free(&c);
}

/* ---- independent documents ---- */

enum { DOCUMENTS = 3 };
static unsigned spoilt; /* the number of the document that a test spoils; 0: the sequence's first */

/* The case has one sequence. */
static bool is_in_spoilt(const attention_case *c, bool of_queries, size_t row, size_t column)
{
    unsigned document = 0;
    (void)of_queries, (void)column;
    while (c->shape.documents[document] && c->shape.documents[document] <= row)
        document++;
    return document == spoilt;
}

/* Large numbers in every tensor of one document, and the large results of forward there, change no bit of
 * the documents before and behind it. */
static void a_document_sees_nothing_of_the_others(const tide_kernels *kernels, tide_dtype dtype)
{
    const size_t documents[] = {30, 75, 0};
    const attention_shape shape = {1, 100, 2, 1, 24, 0, false, documents};
    for (spoilt = 0; spoilt < DOCUMENTS; spoilt++)
        if (case_is_taken(spoilt, dtype))
            case_check_spoilt(kernels, shape, dtype, is_in_spoilt, 50.0);
}

/* NaNs in one document change no bit of the others either, where documents end with tiles; within a tile a
 * weight of zero times a NaN is a NaN. */
static void a_nan_stays_in_the_tiles_of_its_document(const tide_kernels *kernels, tide_dtype dtype)
{
    const size_t documents[] = {128, 256, 0};
    const attention_shape shape = {1, 270, 1, 1, 24, 0, false, documents};
    for (spoilt = 0; spoilt < DOCUMENTS; spoilt++)
        if (case_is_taken(spoilt, dtype))
            case_check_spoilt(kernels, shape, dtype, is_in_spoilt, (double)NAN);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        each_configuration(documents_match_float64_forward_and_backward),
        each_configuration(gradients_of_documents_match_finite_differences),
        each_configuration(no_starts_and_starts_of_zero_give_the_same_bits),
        each_configuration(a_document_sees_nothing_of_the_others),
        each_configuration(a_nan_stays_in_the_tiles_of_its_document),
    };
    return RUN_KERNEL_TESTS(tests);
}
