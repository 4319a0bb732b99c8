/* The padded rows of the embedding wte. No value in them may reach a loss, a gradient or a logit; they get
 * no gradient; and setting the params' values sets them to zero.
 *
 * As zeros would hide an error, the tests write numbers into them that are so large that a single one would
 * change any sum. (The numbers must be finite: the gradient of the head's input is a sum that contains
 * padded gradient x padded row, and 0 x infinity would not be zero. Tests without gradients also use numbers
 * that are not finite.) The results must be the same in all bits.
 */
#include "tests/model/gpt2_fixture.h"
#include "tests/support/assert_ok.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* The padded number of rows, 128, occurs nowhere else among the model's sizes: 65 rows of width 64, padded
 * to a multiple of 64. */
enum { VOCABULARY = 65, ROWS = 128 };

static const tide_dtype dtypes[] = {TIDE_DTYPE_FP32, TIDE_DTYPE_BF16, TIDE_DTYPE_FP16};

enum { DTYPES = sizeof dtypes / sizeof dtypes[0], WTE = TIDE_ROLE_TOKEN_EMBEDDING };

/* A large number that the dtype can represent. Its logits may be infinite. */
static float poison_of(tide_dtype dtype)
{
    return dtype == TIDE_DTYPE_FP16 ? 60000 : 1e30F;
}

/* Number of padded elements of wte. */
static uint64_t padding(const gpt2_fixture *r)
{
    return r->memory_elements[WTE] - r->elements[WTE];
}

static void poison(gpt2_fixture *r, float value)
{
    float *values = malloc(padding(r) * sizeof *values);
    assert_non_null(values);
    for (uint64_t i = 0; i < padding(r); i++)
        values[i] = i % 3 == 0 ? -value : value;
    ok(tide_param_set(r->pool, tide_decoder_param_handle(r->model, WTE), TIDE_VALUE_MASTER, r->elements[WTE],
                      padding(r), values));
    free(values);
}

static void open_poisoned(gpt2_fixture *r, tide_dtype dtype, bool recompute)
{
    gpt2_fixture_open_small(r, tide_kernels_cpu(), dtype, recompute, VOCABULARY);
    poison(r, poison_of(dtype));
}

/* A gradient of -0 is zero, too. */
static void assert_zeros(const float *values, uint64_t count)
{
    for (uint64_t i = 0; i < count; i++) {
        if (values[i] != 0)
            fail_msg("element %llu of the padding is %g", (unsigned long long)i, (double)values[i]);
    }
}

/* --- tests --- */

static void only_wte_is_padded_and_to_whole_multiples(void **state)
{
    gpt2_fixture r;
    gpt2_fixture_open_small(&r, tide_kernels_cpu(), TIDE_DTYPE_BF16, false, VOCABULARY);
    for (size_t i = 0; i < GOLDEN_PARAMS; i++)
        assert_int_equal(r.memory_elements[i], i == WTE ? ROWS * 64 : r.elements[i]);
    assert_int_equal(r.elements[WTE], 65 * 64);
    gpt2_fixture_close(&r);
}

static void padded_rows_reach_no_loss_and_no_gradient_and_get_none(void **state)
{
    for (size_t d = 0; d < DTYPES; d++) {
        gpt2_fixture clean, poisoned;
        gpt2_fixture_open_small(&clean, tide_kernels_cpu(), dtypes[d], d % 2, VOCABULARY);
        open_poisoned(&poisoned, dtypes[d], d % 2);
        const double loss = gpt2_fixture_step(&clean), other = gpt2_fixture_step(&poisoned);
        assert_true(isfinite(loss));
        assert_memory_equal(&loss, &other, sizeof loss);
        for (size_t i = 0; i < GOLDEN_PARAMS; i++)
            assert_memory_equal(clean.gradients[i], poisoned.gradients[i], clean.elements[i] * sizeof(float));
        assert_zeros(clean.gradients[WTE] + clean.elements[WTE], padding(&clean));
        assert_zeros(poisoned.gradients[WTE] + clean.elements[WTE], padding(&clean));
        gpt2_fixture_close(&clean);
        gpt2_fixture_close(&poisoned);
    }
}

/* --- comparison with matmuls without padding --- */

static tide_matmul_args without_padding(const tide_matmul_args *args)
{
    tide_matmul_args unpadded = *args;
    unpadded.m = args->m == ROWS ? VOCABULARY : args->m;
    unpadded.n = args->n == ROWS ? VOCABULARY : args->n;
    unpadded.k = args->k == ROWS ? VOCABULARY : args->k;
    return unpadded;
}

static tide_status unpadded_prepare(const tide_matmul_args *shape, size_t *workspace_bytes)
{
    const tide_matmul_args unpadded = without_padding(shape);
    return tide_kernels_cpu()->matmul_prepare(&unpadded, workspace_bytes);
}

static unsigned matmuls_cut;

static tide_status unpadded_matmul(void *stream, const void *arguments)
{
    const tide_matmul_args *padded = arguments, unpadded = without_padding(padded);
    matmuls_cut += unpadded.m != padded->m || unpadded.n != padded->n || unpadded.k != padded->k;
    if (padded->out_dtype == TIDE_DTYPE_FP32 && !padded->accumulate && unpadded.m != padded->m)
        /* the caller expects a whole gradient */
        memset((float *)padded->c + unpadded.m * padded->ldc, 0,
               (padded->m - unpadded.m) * padded->ldc * sizeof(float));
    return tide_kernels_cpu()->matmul(stream, &unpadded);
}

/* The test uses fp16, for which all machines have the built-in matmul, whose order of summation does not
 * depend on the size. (oneDNN may choose another order for another size, so its last bits may differ.) */
static void matmuls_over_the_padding_give_the_bits_of_matmuls_without_it(void **state)
{
    tide_kernels unpadded = *tide_kernels_cpu();
    unpadded.matmul_prepare = unpadded_prepare;
    unpadded.matmul = unpadded_matmul;
    gpt2_fixture padded, bare;
    gpt2_fixture_open_small(&padded, tide_kernels_cpu(), TIDE_DTYPE_FP16, false, VOCABULARY);
    const double loss = gpt2_fixture_step(&padded);
    gpt2_fixture_open_small(&bare, &unpadded, TIDE_DTYPE_FP16, false, VOCABULARY);
    matmuls_cut = 0;
    const double other = gpt2_fixture_step(&bare);
    assert_int_equal(matmuls_cut, 3 * 4); /* the head's three, in 4 micro-batches */
    assert_memory_equal(&loss, &other, sizeof loss);
    for (size_t i = 0; i < GOLDEN_PARAMS; i++)
        assert_memory_equal(padded.gradients[i], bare.gradients[i], padded.elements[i] * sizeof(float));
    gpt2_fixture_close(&padded);
    gpt2_fixture_close(&bare);
}

static void logits_of(gpt2_fixture *r, float logits[VOCABULARY])
{
    ok(tide_step_begin(r->pool, &(tide_step_options){.training = false}));
    ok(tide_decoder_logits(r->model, r->tokens, 11, logits));
    ok(tide_step_end(r->pool));
}

static void without_a_gradient_padded_rows_may_be_anything(void **state)
{
    for (size_t d = 0; d < DTYPES; d++) {
        const float poisons[] = {poison_of(dtypes[d]), NAN, INFINITY};
        float logits[VOCABULARY], others[VOCABULARY];
        gpt2_fixture r;
        gpt2_fixture_open_small(&r, tide_kernels_cpu(), dtypes[d], false, VOCABULARY);
        const double loss = gpt2_fixture_evaluate(&r);
        logits_of(&r, logits);
        for (size_t i = 0; i < sizeof poisons / sizeof poisons[0]; i++) {
            poison(&r, poisons[i]);
            const double other = gpt2_fixture_evaluate(&r);
            logits_of(&r, others);
            assert_memory_equal(&loss, &other, sizeof loss);
            assert_memory_equal(logits, others, sizeof logits);
        }
        gpt2_fixture_close(&r);
    }
}

/* Checks the other tests: the same poison in a row of the vocabulary must change the loss. */
static void poison_in_a_row_of_the_vocabulary_is_seen(void **state)
{
    gpt2_fixture r;
    gpt2_fixture_open_small(&r, tide_kernels_cpu(), TIDE_DTYPE_FP32, false, VOCABULARY);
    const double loss = gpt2_fixture_evaluate(&r);
    const float value = 1e30F;
    ok(tide_param_set(r.pool, tide_decoder_param_handle(r.model, WTE), TIDE_VALUE_MASTER, r.elements[WTE] - 1,
                      1, &value));
    assert_true(gpt2_fixture_evaluate(&r) != loss);
    gpt2_fixture_close(&r);
}

static void setting_the_last_value_sets_the_padding_to_zero(void **state)
{
    gpt2_fixture r;
    open_poisoned(&r, TIDE_DTYPE_BF16, false);
    const uint64_t last = r.elements[WTE] - 1;
    float values[2];
    for (int i = 0; i < 2; i++) {
        ok(tide_decoder_values_set(r.model, WTE, TIDE_VALUE_MASTER, last - 1 + (uint64_t)i, 1,
                                   r.values[WTE] + last - 1 + i));
        ok(tide_param_get(r.pool, tide_decoder_param_handle(r.model, WTE), TIDE_VALUE_MASTER, last + 1, 1,
                          values + i));
    }
    assert_true(values[0] != 0 && values[1] == 0);
    gpt2_fixture_close(&r);
}

static void values_of_all_params_recover_a_poisoned_pool(void **state)
{
    gpt2_fixture r;
    gpt2_fixture_open_small(&r, tide_kernels_cpu(), TIDE_DTYPE_BF16, false, VOCABULARY);
    const double loss = gpt2_fixture_step(&r);
    r.update_fails = true;
    const tide_step_options options = {.training = true,
                                       .learning_rate = 1e-3f,
                                       .beta1 = 0.9f,
                                       .beta2 = 0.95f,
                                       .epsilon = 1e-8f,
                                       .loss_scale = 1};
    ok(tide_step_begin(r.pool, &options));
    ok(tide_decoder_upload(r.model, &r.batch));
    if (tide_decoder_train(r.model, 1) == TIDE_OK)
        (void)tide_step_end(r.pool);
    assert_int_not_equal(tide_pool_drain(r.pool), TIDE_OK);
    (void)tide_step_abort(r.pool);
    assert_int_equal(tide_step_begin(r.pool, &options), TIDE_ERROR_STATE);
    assert_non_null(strstr(tide_message(), "poisoned"));
    r.update_fails = false;
    gpt2_fixture_set_values(&r);
    const double again = gpt2_fixture_step(&r);
    assert_memory_equal(&loss, &again, sizeof loss);
    gpt2_fixture_close(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(only_wte_is_padded_and_to_whole_multiples),
        cmocka_unit_test(padded_rows_reach_no_loss_and_no_gradient_and_get_none),
        cmocka_unit_test(matmuls_over_the_padding_give_the_bits_of_matmuls_without_it),
        cmocka_unit_test(without_a_gradient_padded_rows_may_be_anything),
        cmocka_unit_test(poison_in_a_row_of_the_vocabulary_is_seen),
        cmocka_unit_test(setting_the_last_value_sets_the_padding_to_zero),
        cmocka_unit_test(values_of_all_params_recover_a_poisoned_pool),
    };
    return cmocka_run_group_tests_name("gpt2 vocabulary", tests, NULL, NULL);
}
