/* Batches into which documents are packed, some of whose tokens are not learned, compared with transformers,
 * which ran every document alone (tests/golden/make_packed_golden.py): the loss and each tensor's gradient.
 * The masks are very uneven, so that a mean of means, over documents, sequences or micro-batches, differs.
 * gpt2's learned positions begin anew in each document. */
#include "tests/golden/packed_golden.h"
#include "tests/model/family_fixture.h"
#include "tests/support/assert_ok.h"
#include "tests/support/test_thin.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static packed_golden golden;

/* Ways to make a step. A batch has eight sequences; a sum group has one micro-batch or more. */
static const struct way {
    const char *name;
    bool recompute;
    uint32_t micro_batch_sequences, sum_groups;
} ways[] = {
    {"kept, one micro-batch", false, 8, 1},
    {"recomputed, micro-batches of 2", true, 2, 1},
    {"kept, micro-batches of 1", false, 1, 1},
    {"recomputed, one micro-batch", true, 8, 1},
    {"kept, micro-batches of 2", false, 2, 1},
    {"recomputed, micro-batches of 1", true, 1, 1},
    {"kept, micro-batches of 2 in two sum groups", false, 2, 2},
    {"recomputed, micro-batches of 1 in two sum groups", true, 1, 2},
};
enum { WAYS = sizeof ways / sizeof ways[0] };

static void open_way(family_fixture *r, const packed_case *of, const struct way *way)
{
    family_fixture_open(r, &of->model, way->recompute, way->micro_batch_sequences, way->sum_groups);
    r->batch = (tide_decoder_batch){
        .inputs = of->inputs, .targets = of->targets, .starts = of->starts, .learned = of->learned};
}

static uint64_t elements_of(const packed_case *of, size_t index)
{
    tide_model_tensor tensor;
    tide_model_tensor_describe(&of->model.config, index, &tensor);
    return tensor.elements;
}

/* --- loss and gradients --- */

/* The norm of the difference, relative to the norm of `right`. */
static double difference(const float *is, const float *right, uint64_t elements)
{
    double apart = 0, size = 0;
    for (uint64_t i = 0; i < elements; i++) {
        apart += pow((double)is[i] - right[i], 2);
        size += pow(right[i], 2);
    }
    return sqrt(apart / size);
}

/* The largest error measured is 1.7e-6, of qwen2's key bias, whose gradient mostly cancels
 * (test_family_golden.c), and 9.3e-7 of all others; between two ways it is 3.2e-7. */
static void check_gradients(const family_fixture *r, const packed_case *of, const float *const *right,
                            double most, const char *way)
{
    for (size_t i = 0; i < of->model.tensors; i++) {
        const double error = difference(family_fixture_gradient(r, i), right[i], elements_of(of, i));
        tide_model_tensor tensor;
        tide_model_tensor_describe(&of->model.config, i, &tensor);
        if (!(error < most))
            fail_msg("%s, %s: gradient of %s is off by %.3g", of->model.name, way, tensor.name, error);
    }
}

static void check_way(const packed_case *of, const struct way *way)
{
    family_fixture r;
    open_way(&r, of, way);
    const double evaluated = family_fixture_evaluate(&r), loss = family_fixture_step(&r);
    assert_memory_equal(&evaluated, &loss, sizeof loss);
    if (!(fabs(loss / of->loss - 1) < 1e-6)) /* measured: 2.1e-8 */
        fail_msg("%s, %s: loss %.9g, transformers' %.9g", of->model.name, way->name, loss, of->loss);
    check_gradients(&r, of, (const float *const *)of->model.gradients, 1e-5, way->name);
    family_fixture_close(&r);
}

static void loss_and_gradients_are_those_of_the_documents_alone(void **state)
{
    for (unsigned i = 0; i < PACKED_CASES * WAYS; i += test_thin(3))
        check_way(&golden.cases[i / WAYS], &ways[i % WAYS]);
}

/* --- micro-batches --- */

static void check_agreement(const packed_case *of, const struct way *one, const struct way *other)
{
    family_fixture a, b;
    const float *right[FAMILY_TENSORS_MAX];
    open_way(&a, of, one);
    open_way(&b, of, other);
    const double loss = family_fixture_step(&a), again = family_fixture_step(&b);
    if (!(fabs(again / loss - 1) < 1e-7)) /* measured: 0 */
        fail_msg("%s, %s: loss %.9g, with %s %.9g", of->model.name, other->name, again, one->name, loss);
    for (size_t i = 0; i < of->model.tensors; i++)
        right[i] = family_fixture_gradient(&a, i);
    check_gradients(&b, of, right, 1e-6, other->name);
    family_fixture_close(&b);
    family_fixture_close(&a);
}

static void micro_batch_size_changes_nothing_beyond_rounding(void **state)
{
    for (unsigned i = 0; i < PACKED_CASES; i++)
        for (unsigned other = 1; other < WAYS; other += test_thin(3))
            check_agreement(&golden.cases[i], &ways[0], &ways[other]);
}

/* --- positions --- */

/* Returns the loss of one document of so many rows that begins at row `begin` of the first sequence; all
 * other rows are padding. */
static double loss_at(const packed_case *of, uint32_t begin, uint32_t document_rows)
{
    const uint32_t rows = FAMILY_SEQUENCES * of->model.seq_len;
    int32_t *inputs = calloc(rows, sizeof *inputs), *targets = malloc(rows * sizeof *targets),
            *starts = malloc(rows * sizeof *starts);
    family_fixture r;
    assert_non_null(inputs);
    assert_non_null(targets);
    assert_non_null(starts);
    assert_true(begin + document_rows <= of->model.seq_len);
    for (uint32_t row = 0; row < rows; row++) {
        const bool is_learned = row >= begin && row < begin + document_rows;
        inputs[row] = is_learned ? of->inputs[row - begin] : 0;
        targets[row] = is_learned ? of->inputs[row - begin + 1] : -1;
        starts[row] = (int32_t)(is_learned ? begin : row % of->model.seq_len);
    }
    open_way(&r, of, &ways[0]);
    r.batch = (tide_decoder_batch){
        .inputs = inputs, .targets = targets, .starts = starts, .learned = document_rows};
    const double loss = family_fixture_evaluate(&r);
    family_fixture_close(&r);
    free(inputs);
    free(targets);
    free(starts);
    return loss;
}

/* Attention sees only differences of rotary positions, so that positions that do not begin anew in a document
 * change no more than the rounding of angles. Hence a comparison of bits; the document moves by a tile of the
 * CPU's attention (64 rows), which changes the order of no sum. */
static void a_document_has_the_same_positions_wherever_it_is_packed(void **state)
{
    const packed_case *of = packed_golden_find(&golden, "llama-long");
    const double first = loss_at(of, 0, 60), second = loss_at(of, 64, 60);
    assert_memory_equal(&first, &second, sizeof first);
}

/* --- rows that are not learned --- */

/* Micro-batches of one sequence, since those without a learned token are the hardest. */
static const struct way alone = {"kept, micro-batches of 1", false, 1, 1};

static void check_no_learned_token(const packed_case *of)
{
    const size_t bytes = (size_t)FAMILY_SEQUENCES * of->model.seq_len * sizeof(int32_t);
    int32_t *none = malloc(bytes);
    family_fixture r;
    assert_non_null(none);
    memset(none, 0xff, bytes); /* -1 */
    open_way(&r, of, &alone);
    r.batch.targets = none;
    r.batch.learned = 0;
    assert_true(family_fixture_evaluate(&r) == 0);
    assert_true(family_fixture_step(&r) == 0);
    for (size_t i = 0; i < of->model.tensors; i++)
        for (uint64_t e = 0; e < elements_of(of, i); e++)
            assert_true(family_fixture_gradient(&r, i)[e] == 0);
    family_fixture_close(&r);
    free(none);
}

static void a_batch_without_a_learned_token_has_loss_0_and_gradients_of_0(void **state)
{
    for (unsigned i = 0; i < PACKED_CASES; i++)
        check_no_learned_token(&golden.cases[i]);
}

/* Returns inputs that differ in padding. A padding row starts at its own position, the next row starts anew,
 * and it has no target; this also holds for a packed document of two tokens that are not learned. */
static int32_t *with_other_padding(const packed_case *of)
{
    const uint32_t seq_len = of->model.seq_len, rows = FAMILY_SEQUENCES * seq_len;
    int32_t *inputs = malloc(rows * sizeof *inputs);
    uint32_t changed = 0;
    assert_non_null(inputs);
    for (uint32_t row = 0; row < rows; row++) {
        const bool last = row % seq_len == seq_len - 1 || of->starts[row + 1] != of->starts[row];
        const bool alone_in_document = of->starts[row] == (int32_t)(row % seq_len) && last;
        const bool changes = alone_in_document && of->targets[row] < 0;
        inputs[row] = changes ? (int32_t)(1 + row % (of->model.config.vocab_size - 1)) : of->inputs[row];
        changed += changes;
    }
    assert_true(changed >= seq_len);
    return inputs;
}

static void check_other_padding(const packed_case *of)
{
    int32_t *inputs = with_other_padding(of);
    family_fixture a, b;
    open_way(&a, of, &ways[0]);
    open_way(&b, of, &ways[0]);
    b.batch.inputs = inputs;
    const double loss = family_fixture_step(&a), again = family_fixture_step(&b);
    assert_memory_equal(&loss, &again, sizeof loss);
    for (size_t i = 0; i < of->model.tensors; i++)
        for (uint64_t e = 0; e < elements_of(of, i); e++) /* 0 may change its sign */
            assert_true(family_fixture_gradient(&a, i)[e] == family_fixture_gradient(&b, i)[e]);
    family_fixture_close(&b);
    family_fixture_close(&a);
    free(inputs);
}

static void tokens_in_padding_change_nothing(void **state)
{
    for (unsigned i = 0; i < PACKED_CASES; i++)
        check_other_padding(&golden.cases[i]);
}

/* --- set-up --- */

static int set_up(void **state)
{
    packed_golden_load(&golden);
    return 0;
}

static int tear_down(void **state)
{
    packed_golden_free(&golden);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(loss_and_gradients_are_those_of_the_documents_alone),
        cmocka_unit_test(micro_batch_size_changes_nothing_beyond_rounding),
        cmocka_unit_test(a_document_has_the_same_positions_wherever_it_is_packed),
        cmocka_unit_test(a_batch_without_a_learned_token_has_loss_0_and_gradients_of_0),
        cmocka_unit_test(tokens_in_padding_change_nothing),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
