/* Param classes: frozen or trained, with one to three state planes of sizes that the pool knows, in at most
 * eight formats. The tests see how many bytes and chunks each class costs and which classes a description
 * or a plan refuses. They use only the public headers; test_pool_states trains with such params. */
#include "tests/support/assert_ok.h"

#include "tidepool/tidepool.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static tide_status never_called(void *context, const tide_step_options *step, uint64_t update, float scale,
                                const tide_update_segment *segments, uint32_t count)
{
    (void)context, (void)step, (void)update, (void)scale, (void)segments, (void)count;
    return tide_fail(TIDE_ERROR_INTERNAL, "there is no step to update after");
}

static tide_description *description_of(tide_dtype dtype)
{
    tide_description *description;
    assert_ok(tide_description_create(dtype, 0, &description));
    return description;
}

static tide_status add_one(tide_description *description, const char *name, uint64_t elements,
                           const tide_param_class *of_class)
{
    tide_param param;
    return tide_description_add_param(description, name, &elements, 1, of_class, &param);
}

static void add_op(tide_description *description)
{
    const tide_op_description op = {.name = "op", .pass = TIDE_PASS_FORWARD};
    tide_op number;
    assert_ok(tide_description_add_op(description, &op, &number));
}

static tide_pool_options options_of(bool adamw)
{
    tide_pool_options options;
    tide_pool_options_default(&options);
    options.update = adamw ? NULL : never_called;
    return options;
}

/* Plans with an optimizer of the caller's own and destroys the description. */
static tide_pool_plan plan_of(tide_description *description)
{
    const tide_pool_options options = options_of(false);
    tide_pool_plan plan;
    add_op(description);
    assert_ok(tide_pool_plan_make(&options, description, &plan));
    tide_description_destroy(description);
    plan.largest_op = NULL;
    return plan;
}

static tide_pool *pool_of(tide_description *description, bool adamw)
{
    const tide_pool_options options = options_of(adamw);
    tide_pool *pool;
    assert_ok(tide_pool_create(&options, description, &pool));
    return pool;
}

static const tide_param_class frozen = {.frozen = true}, half = {.state = {2, {64, 64}}},
                              momentum = {.decay = true, .state = {2, {128, 128}}},
                              adamw = {.decay = true, .state = {3, {128, 128, 128}}};

/* --- bytes and chunks --- */

static void a_plan_counts_the_bytes_of_each_params_planes(void **state)
{
    tide_description *description = description_of(TIDE_DTYPE_BF16);
    assert_ok(add_one(description, "w", 256000, &half));
    const tide_pool_plan plan = plan_of(description);
    assert_int_equal(plan.model_bytes, 256000 * 6);
    assert_int_equal(plan.space_bytes[TIDE_SPACE_STATE], 256000 * 4);
}

/* Each distinct format gets a PARAM and a STATE chunk of its own, in order of first use. Decay makes no
 * difference. */
static void params_share_chunks_with_their_like(void **state)
{
    static const uint64_t elements = 50000;
    const tide_param_class *const of[] = {&momentum, &adamw, &momentum, NULL, &frozen, &frozen};
    for (int fp32 = 0; fp32 < 2; fp32++) {
        tide_description *description = description_of(fp32 ? TIDE_DTYPE_FP32 : TIDE_DTYPE_FP16);
        const uint64_t value_bytes = fp32 ? 4 : 2;
        char name[16];
        for (size_t i = 0; i < sizeof of / sizeof of[0]; i++) {
            snprintf(name, sizeof name, "w%zu", i);
            assert_ok(add_one(description, name, elements, of[i]));
        }
        const tide_pool_plan plan = plan_of(description);
        assert_int_equal(plan.params, 6 * elements);
        assert_int_equal(plan.model_bytes, elements * (6 * value_bytes + 2 * 8 + 2 * 12));
        assert_int_equal(plan.chunks[TIDE_SPACE_PARAM], 3);
        assert_int_equal(plan.chunks[TIDE_SPACE_STATE], 2);
    }
}

/* --- refusals --- */

static void assert_says(const char *words)
{
    if (strstr(tide_message(), words) == NULL)
        fail_msg("\"%s\" is not about %s", tide_message(), words);
}

/* Neither a plan nor a pool can be made. */
static void assert_unplannable(tide_description *description, bool adamw_is, tide_status status,
                               const char *words)
{
    const tide_pool_options options = options_of(adamw_is);
    tide_pool *pool = NULL;
    tide_pool_plan plan;
    assert_int_equal(tide_pool_plan_make(&options, description, &plan), status);
    assert_says(words);
    assert_int_equal(tide_pool_create(&options, description, &pool), status);
    assert_says(words);
    assert_null(pool);
}

static void without_an_op_or_a_param_there_is_nothing_to_plan(void **state)
{
    tide_description *description = description_of(TIDE_DTYPE_BF16);
    add_op(description);
    assert_unplannable(description, true, TIDE_ERROR_STATE, "a param");
    assert_ok(add_one(description, "q", 10, NULL)); /* nothing has fixed the description */
    assert_int_equal(plan_of(description).params, 10);
    description = description_of(TIDE_DTYPE_BF16);
    assert_ok(add_one(description, "q", 10, NULL));
    assert_unplannable(description, true, TIDE_ERROR_STATE, "an op");
    tide_description_destroy(description);
}

/* A pool whose params are all frozen has no state, makes forward-only passes and refuses training steps. */
static void a_pool_of_frozen_params_runs_forward_and_does_not_train(void **state)
{
    const tide_use grad = {0, TIDE_ACCESS_GRAD}, read = {0, TIDE_ACCESS_READ};
    const float value = 2.5f;
    float kept = 0;
    tide_op_description op = {.name = "op", .pass = TIDE_PASS_BOTH, .params = &grad, .param_count = 1};
    tide_op number;
    tide_description *description = description_of(TIDE_DTYPE_BF16);
    assert_ok(add_one(description, "p", 10, &frozen));
    assert_int_equal(tide_description_add_op(description, &op, &number), TIDE_ERROR_ARGUMENT);
    assert_says("frozen");
    op.pass = TIDE_PASS_FORWARD;
    op.params = &read;
    assert_ok(tide_description_add_op(description, &op, &number));
    tide_pool *pool = pool_of(description, true);
    tide_pool_plan plan;
    assert_ok(tide_pool_plan_get(pool, &plan));
    assert_int_equal(plan.chunks[TIDE_SPACE_STATE], 0);
    assert_int_equal(plan.model_bytes, 20);
    assert_ok(tide_param_set(pool, 0, TIDE_VALUE_PARAM, 3, 1, &value));
    for (int pass = 0; pass < 3; pass++) {
        assert_ok(tide_step_begin(pool, &(tide_step_options){.training = false}));
        assert_ok(tide_op_begin(pool, number));
        assert_ok(tide_op_end(pool));
        assert_ok(tide_step_end(pool));
    }
    assert_int_equal(tide_step_begin(pool, &(tide_step_options){.training = true,
                                                                .learning_rate = 1e-3f,
                                                                .beta1 = 0.9f,
                                                                .beta2 = 0.95f,
                                                                .epsilon = 1e-8f}),
                     TIDE_ERROR_STATE);
    assert_says("every param is frozen");
    assert_ok(tide_param_get(pool, 0, TIDE_VALUE_PARAM, 3, 1, &kept));
    assert_true(kept == value);
    tide_pool_destroy(pool);
    tide_description_destroy(description);
}

static void a_description_takes_nothing_more_once_it_is_planned(void **state)
{
    const tide_pool_options options = options_of(true);
    const tide_op_description op = {.name = "op"};
    tide_description *description = description_of(TIDE_DTYPE_BF16);
    tide_pool_plan first, again;
    uint32_t number = 77;
    assert_ok(add_one(description, "p", 10, NULL));
    add_op(description);
    assert_ok(tide_pool_plan_make(&options, description, &first));
    assert_int_equal(add_one(description, "q", 10, NULL), TIDE_ERROR_STATE);
    assert_says("tide_description_add_param: a plan or a pool has been made");
    assert_int_equal(tide_description_add_activation(description, "a", 1, 1, &number), TIDE_ERROR_STATE);
    assert_says("tide_description_add_activation");
    assert_int_equal(tide_description_add_op(description, &op, &number), TIDE_ERROR_STATE);
    assert_says("tide_description_add_op");
    assert_int_equal(number, 77);
    assert_ok(tide_pool_plan_make(&options, description, &again));
    assert_int_equal(again.device_memory_bytes, first.device_memory_bytes);
    assert_int_equal(again.params, 10);
    tide_description_destroy(description);
}

static void refuse(tide_dtype dtype, bool adamw_is, tide_param_class of_class, const char *words)
{
    tide_description *description = description_of(dtype);
    assert_ok(add_one(description, "o", 10, adamw_is ? NULL : &adamw));
    assert_ok(add_one(description, "p", 10, &of_class));
    add_op(description);
    assert_unplannable(description, adamw_is, TIDE_ERROR_ARGUMENT, words);
    tide_description_destroy(description);
}

static void states_that_the_optimizer_does_not_have_are_refused_when_they_are_planned(void **state)
{
    refuse(TIDE_DTYPE_BF16, false, (tide_param_class){.state = {2, {64, 32}}},
           "param p: plane 1 of its state has 32 bytes for 32 elements; in a pool of bf16 it has 64 or 128");
    refuse(TIDE_DTYPE_FP32, false, (tide_param_class){.state = {1, {64}}}, "in a pool of fp32 it has 128");
    refuse(TIDE_DTYPE_BF16, true, half, "param p: AdamW's state is three planes of 128 bytes");
    refuse(TIDE_DTYPE_BF16, true, momentum, "options.update");
    refuse(TIDE_DTYPE_BF16, true, (tide_param_class){.state = {3, {128, 128, 64}}}, "options.update");
}

static void a_description_has_eight_formats_and_what_is_refused_is_none_of_them(void **state)
{
    static const tide_param_class of[] = {{.state = {1, {64}}},         {.frozen = true},
                                          {.state = {2, {64, 64}}},     {.state = {2, {64, 128}}},
                                          {.state = {2, {128, 64}}},    {.state = {2, {128, 128}}},
                                          {.state = {3, {64, 64, 64}}}, {.state = {3, {64, 64, 128}}},
                                          {.state = {3, {64, 128, 64}}}};
    tide_description *description = description_of(TIDE_DTYPE_FP16);
    char name[16];
    assert_ok(add_one(description, "p0", 10, &of[0]));
    for (int i = 8; i > 0; i--)
        /* for its name, before the format is counted */
        assert_int_equal(add_one(description, "p0", 10, &of[i]), TIDE_ERROR_ARGUMENT);
    for (int i = 1; i < 8; i++) {
        snprintf(name, sizeof name, "p%d", i);
        assert_ok(add_one(description, name, 10, &of[i]));
    }
    assert_int_equal(add_one(description, "p8", 10, &of[8]), TIDE_ERROR_ARGUMENT);
    assert_says("param p8: its state is of one kind too many");
    assert_says("at most 8");
    assert_ok(add_one(description, "p8", 10, &of[3]));
    assert_int_equal(plan_of(description).chunks[TIDE_SPACE_PARAM], 8);
}

static void refuse_set(tide_pool *pool, tide_param param, tide_value value, const char *words)
{
    const float zeros[4] = {0};
    assert_int_equal(tide_param_set(pool, param, value, 0, 4, zeros), TIDE_ERROR_ARGUMENT);
    assert_says(words);
}

static void a_value_that_a_param_has_not_is_named(void **state)
{
    float values[4];
    tide_description *description = description_of(TIDE_DTYPE_BF16);
    assert_ok(add_one(description, "f", 10, &frozen));
    assert_ok(add_one(description, "h", 10, &half));
    add_op(description);
    tide_pool *pool = pool_of(description, false);
    refuse_set(pool, 0, TIDE_VALUE_MASTER, "param f has no MASTER to be set: it is frozen");
    refuse_set(pool, 1, TIDE_VALUE_VARIANCE, "param h has no VARIANCE to be set");
    refuse_set(pool, 1, TIDE_VALUE_PARAM, "param h: PARAM is not set itself, set MASTER");
    refuse_set(pool, 1, (tide_value)7, "param h: there is no value 7");
    assert_int_equal(tide_param_get(pool, 0, TIDE_VALUE_MOMENTUM, 0, 4, values), TIDE_ERROR_ARGUMENT);
    assert_says("param f has no MOMENTUM to be read: it is frozen");
    tide_pool_destroy(pool);
    tide_description_destroy(description);
}

/* --- a gradient that is not finite --- */

static tide_status make_infinite(void *stream, const void *address_of_gradient)
{
    (void)stream;
    **(float *const *)address_of_gradient = INFINITY;
    return TIDE_OK;
}

/* Frozen params lie before and behind the trained one. The message must name the trained one. */
static void who_is_frozen_is_not_named_for_what_a_trained_param_did(void **state)
{
    static const char *const names[] = {"before", "trained", "behind"};
    const tide_use grad = {1, TIDE_ACCESS_GRAD};
    const tide_op_description op = {.name = "op", .pass = TIDE_PASS_BOTH, .params = &grad, .param_count = 1};
    tide_description *description = description_of(TIDE_DTYPE_BF16);
    const tide_step_options options = {.training = true, .learning_rate = 0.1F, .epsilon = 1e-8F};
    tide_step_result result;
    tide_op number;
    for (int i = 0; i < 3; i++)
        assert_ok(add_one(description, names[i], 5000, i == 1 ? NULL : &frozen));
    assert_ok(tide_description_add_op(description, &op, &number));
    tide_pool *pool = pool_of(description, true);
    assert_ok(tide_step_begin(pool, &options));
    assert_ok(tide_op_begin(pool, number));
    const float *gradient = tide_param_gradient(pool, 1);
    assert_ok(tide_launch(pool, "make infinite", make_infinite, &gradient, sizeof gradient, 0, 0));
    assert_ok(tide_op_end(pool));
    assert_ok(tide_step_end(pool));
    assert_int_equal(tide_step_result_get(pool, &result), TIDE_ERROR_NONFINITE);
    assert_says("param trained");
    tide_pool_destroy(pool);
    tide_description_destroy(description);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_plan_counts_the_bytes_of_each_params_planes),
        cmocka_unit_test(params_share_chunks_with_their_like),
        cmocka_unit_test(without_an_op_or_a_param_there_is_nothing_to_plan),
        cmocka_unit_test(a_pool_of_frozen_params_runs_forward_and_does_not_train),
        cmocka_unit_test(a_description_takes_nothing_more_once_it_is_planned),
        cmocka_unit_test(states_that_the_optimizer_does_not_have_are_refused_when_they_are_planned),
        cmocka_unit_test(a_value_that_a_param_has_not_is_named),
        cmocka_unit_test(who_is_frozen_is_not_named_for_what_a_trained_param_did),
        cmocka_unit_test(a_description_has_eight_formats_and_what_is_refused_is_none_of_them),
    };
    return cmocka_run_group_tests_name("pool_classes", tests, NULL, NULL);
}
