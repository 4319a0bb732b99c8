/* Which calls the pool refuses, with which message, and which it accepts. Uses only the public header. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/bf16.h"
#include "base/fp16.h"
#include "tests/support/assert_ok.h"
#include "tests/support/pool_fixture.h"

#define assert_refused(call, status, words)                                                                  \
    do {                                                                                                     \
        assert_int_equal((call), (status));                                                                  \
        if (strstr(tide_message(), (words)) == NULL)                                                         \
            fail_msg("%s: \"%s\" lacks \"%s\"", #call, tide_message(), (words));                             \
    } while (0)

static pool_fixture pool_fixture_of(const pool_fixture_options *options)
{
    pool_fixture fixture;
    assert_ok(pool_fixture_create(options, &fixture));
    return fixture;
}

static tide_step_result result_of(const pool_fixture *fixture)
{
    tide_step_result result;
    assert_ok(tide_step_result_get(fixture->pool, &result));
    return result;
}

/* --- description and create --- */

static void refuse_option(const tide_pool_options *options, const char *name)
{
    tide_description *description;
    tide_pool *pool = NULL;
    tide_pool_plan plan;
    assert_ok(tide_description_create(TIDE_DTYPE_BF16, 0, &description));
    assert_refused(tide_pool_plan_make(options, description, &plan), TIDE_ERROR_ARGUMENT, name);
    assert_refused(tide_pool_create(options, description, &pool), TIDE_ERROR_ARGUMENT, name);
    assert_null(pool);
    tide_description_destroy(description);
}

static void an_option_out_of_range_is_named_at_create(void **state)
{
    (void)state;
    const tide_pool_options good = pool_fixture_options_default().pool;
    tide_pool_options bad = good;
    const uint32_t threads[] = {TIDE_THREADS_MAX + 1, 30000, UINT32_MAX};
    for (size_t i = 0; i < sizeof threads / sizeof threads[0]; i++) {
        bad.threads = threads[i];
        refuse_option(&bad, "threads");
    }
    bad = good;
    bad.checks.delay_max_us = TIDE_DELAY_MAX_US + 1;
    refuse_option(&bad, "delay_max_us");
    bad = good;
    bad.staging_bytes = UINT64_MAX;
    refuse_option(&bad, "staging_bytes");
    const double rates[] = {-1, NAN, INFINITY, -INFINITY};
    for (size_t i = 0; i < sizeof rates / sizeof rates[0]; i++) {
        bad = good;
        bad.link_bytes_per_second = rates[i];
        refuse_option(&bad, "link_bytes_per_second");
        bad = good;
        bad.machine.host_bytes_per_second = rates[i];
        refuse_option(&bad, "machine.host_bytes_per_second");
    }
}

static tide_status add_shape(tide_description *description, const char *name, uint64_t a, uint64_t b)
{
    const uint64_t shape[] = {a, b};
    tide_param param;
    return tide_description_add_param(description, name, shape, 2, NULL, &param);
}

static void a_param_or_activation_that_is_too_large_is_told_so_when_it_is_added(void **state)
{
    (void)state;
    const uint64_t much = UINT64_C(1) << 40, half = UINT64_C(1) << 47;
    tide_description *description = NULL;
    tide_activation number;
    assert_refused(tide_description_create((tide_dtype)3, 0, &description), TIDE_ERROR_ARGUMENT, "dtype 3");
    assert_refused(tide_description_create(TIDE_DTYPE_BF16, (UINT64_C(1) << 50) + 1, &description),
                   TIDE_ERROR_ARGUMENT, "nonmodel_bytes");
    assert_null(description);
    assert_ok(tide_description_create(TIDE_DTYPE_BF16, 0, &description));
    assert_refused(add_shape(description, "w", 3, 0), TIDE_ERROR_ARGUMENT, "dimension 1 is 0");
    assert_refused(add_shape(description, "w", much, much), TIDE_ERROR_ARGUMENT,
                   "dimension 1 is 1099511627776, too");
    assert_ok(add_shape(description, "w", half, 1));
    assert_refused(add_shape(description, "w", 1, 1), TIDE_ERROR_ARGUMENT,
                   "param w: there is one of this name");
    assert_refused(add_shape(description, "v", half, 2), TIDE_ERROR_ARGUMENT, "param v");
    assert_int_equal(tide_description_param_elements(description, 0), half);
    assert_int_equal(tide_description_param_elements(description, 1),
                     0); /* the refused shape was not added */
    assert_refused(tide_description_add_activation(description, "s", 1 << 20, UINT64_C(1) << 31, &number),
                   TIDE_ERROR_ARGUMENT, "activation s");
    assert_refused(tide_description_add_activation(description, "s", (1 << 20) + 1, 1, &number),
                   TIDE_ERROR_ARGUMENT, "2^20");
    assert_refused(tide_description_add_activation(description, "s", 0, 1, &number), TIDE_ERROR_ARGUMENT,
                   "0 parts");
    /* activations and params may have the same name */
    assert_ok(tide_description_add_activation(description, "w", 2, 1, &number));
    assert_refused(tide_description_add_activation(description, "w", 2, 1, &number), TIDE_ERROR_ARGUMENT,
                   "there is one");
    tide_description_destroy(description);
}

/* Each op below is wrong in one way. The correct one added afterwards is still number 0, and a pool can
 * be made. */
static void an_op_that_is_wrong_is_refused_when_it_is_added(void **state)
{
    (void)state;
    enum { READ = TIDE_ACCESS_READ, GRAD = TIDE_ACCESS_GRAD, WRITE = TIDE_ACCESS_WRITE };
    const tide_pool_options options = pool_fixture_options_default().pool;
    const uint64_t elements = 10;
    tide_description *description;
    tide_pool *pool;
    tide_param param;
    tide_activation activation;
    tide_op op;
    assert_ok(tide_description_create(TIDE_DTYPE_BF16, 0, &description));
    assert_ok(tide_description_add_param(description, "w", &elements, 1, NULL, &param));
    assert_ok(tide_description_add_activation(description, "s", 2, 4, &activation));
    const tide_use read = {param, READ}, write = {activation, WRITE}, unknown = {7, READ}, none = {param, 0},
                   overwrite = {param, READ | TIDE_ACCESS_OVERWRITE},
                   part = {activation, WRITE | TIDE_ACCESS_OVERWRITE};
    const tide_use twice[] = {{param, READ}, {param, READ}}, grad = {param, GRAD},
                   last = {0, TIDE_ACCESS_LAST};
    const struct {
        tide_op_description op;
        const char *words;
    } wrong[] = {
        {{.name = NULL}, "needs a name"},
        {{.name = ""}, "needs a name"},
        {{.name = "o", .pass = (tide_pass)3}, "pass 3"},
        {{.name = "o", .params = NULL, .param_count = 1}, "params is NULL"},
        {{.name = "o", .activations = NULL, .activation_count = 1, .slices = 2}, "activations is NULL"},
        {{.name = "o", .params = &read, .param_count = UINT32_MAX}, "4294967295 params"},
        {{.name = "o", .params = twice, .param_count = 2}, "2 params, of which there are 1"},
        {{.name = "o", .params = &unknown, .param_count = 1}, "no param 7"},
        {{.name = "o", .params = &none, .param_count = 1}, "w: a param's access"},
        {{.name = "o", .pass = TIDE_PASS_BACKWARD, .params = &overwrite, .param_count = 1},
         "OVERWRITE beside GRAD"},
        {{.name = "o", .params = &grad, .param_count = 1}, "w: a forward op makes no gradient"},
        {{.name = "o", .activations = &unknown, .activation_count = 1, .slices = 2}, "no activation 7"},
        {{.name = "o", .activations = &last, .activation_count = 1, .slices = 2},
         "s: an activation's access"},
        {{.name = "o", .activations = &part, .activation_count = 1, .slices = 2},
         "s: an activation's access"},
        {{.name = "o", .activations = &write, .activation_count = 1, .slices = 1}, "1 slices"},
        {{.name = "o", .slices = 1}, "1 slices of no activation"},
        {{.name = "o", .workspace_bytes = UINT64_MAX}, "workspace"},
    };
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++)
        assert_refused(tide_description_add_op(description, &wrong[i].op, &op), TIDE_ERROR_ARGUMENT,
                       wrong[i].words);
    const tide_op_description right = {.name = "o", .params = &read, .param_count = 1};
    assert_ok(tide_description_add_op(description, &right, &op));
    assert_int_equal(op, 0);
    assert_ok(tide_pool_create(&options, description, &pool));
    tide_pool_destroy(pool);
    tide_description_destroy(description);
}

/* --- steps --- */

static void a_step_option_out_of_range_is_named_alone_with_its_range(void **state)
{
    (void)state;
    const pool_fixture_options options = pool_fixture_options_default();
    pool_fixture fixture = pool_fixture_of(&options);
    tide_step_options step = pool_fixture_step_options(1);
    const struct {
        float *value;
        const char *name, *range;
        float wrong[4];
    } cases[] = {
        {&step.learning_rate, "learning_rate", "finite and at least 0", {-1, NAN, INFINITY, -INFINITY}},
        {&step.beta1, "beta1", "at least 0 and below 1", {-1, NAN, INFINITY, 1}},
        {&step.beta2, "beta2", "at least 0 and below 1", {-1, NAN, INFINITY, 1}},
        {&step.epsilon, "epsilon", "finite and above 0", {0, NAN, INFINITY, -1}},
        {&step.weight_decay, "weight_decay", "finite and at least 0", {-1, NAN, INFINITY, -INFINITY}},
        {&step.clip_norm, "clip_norm", "at least 0", {-1, NAN, -INFINITY, -0.5F}},
        {&step.loss_scale, "loss_scale", "power of two", {3, NAN, INFINITY, -1}},
    };
    enum { CASES = sizeof cases / sizeof cases[0] };
    for (size_t i = 0; i < CASES; i++) {
        const float right = *cases[i].value;
        for (size_t j = 0; j < 4; j++) {
            *cases[i].value = cases[i].wrong[j];
            assert_refused(tide_step_begin(fixture.pool, &step), TIDE_ERROR_ARGUMENT, cases[i].name);
            assert_non_null(strstr(tide_message(), cases[i].range));
            for (size_t other = 0; other < CASES; other++)
                assert_true(other == i || strstr(tide_message(), cases[other].name) == NULL);
        }
        *cases[i].value = right;
    }
    step.clip_norm = INFINITY;
    assert_ok(tide_step_begin(fixture.pool, &step));
    pool_fixture_destroy(&fixture);
}

static tide_status own_update(void *context, const tide_step_options *step, uint64_t update, float scale,
                              const tide_update_segment *segments, uint32_t count)
{
    (void)context, (void)step, (void)update, (void)scale, (void)segments, (void)count;
    return TIDE_OK;
}

static void an_optimizer_of_ones_own_gets_its_step_options_unlooked_at(void **state)
{
    (void)state;
    pool_fixture_options options = pool_fixture_options_default();
    options.pool.update = own_update;
    pool_fixture fixture = pool_fixture_of(&options);
    tide_step_options step = {
        .training = true, .learning_rate = NAN, .beta1 = 2, .epsilon = -1, .clip_norm = -1};
    assert_refused(tide_step_begin(fixture.pool, &step), TIDE_ERROR_ARGUMENT, "clip_norm");
    step.clip_norm = 0;
    step.loss_scale = 3;
    assert_refused(tide_step_begin(fixture.pool, &step), TIDE_ERROR_ARGUMENT, "loss_scale");
    step.loss_scale = 0;
    assert_ok(tide_step_begin(fixture.pool, &step));
    pool_fixture_destroy(&fixture);
}

static void an_update_count_that_would_wrap_is_refused(void **state)
{
    (void)state;
    const pool_fixture_options options = pool_fixture_options_default();
    pool_fixture fixture = pool_fixture_of(&options);
    assert_refused(tide_update_count_set(fixture.pool, UINT64_MAX), TIDE_ERROR_ARGUMENT, "2^53");
    assert_refused(tide_update_count_set(fixture.pool, TIDE_UPDATES_MAX + 1), TIDE_ERROR_ARGUMENT, "2^53");
    assert_int_equal(tide_update_count(fixture.pool), 0);
    assert_ok(tide_update_count_set(fixture.pool, TIDE_UPDATES_MAX));
    assert_ok(pool_fixture_step(&fixture, 1, false));
    assert_ok(tide_pool_drain(fixture.pool));
    assert_int_equal(tide_update_count(fixture.pool), TIDE_UPDATES_MAX + 1);
    float value;
    assert_ok(tide_param_get(fixture.pool, fixture.params[0], TIDE_VALUE_MASTER, 0, 1, &value));
    assert_true(isfinite(value));
    pool_fixture_destroy(&fixture);
}

/* The caller's bytes are the first part of the region. The norms, and gradients that several ops share, lie
 * directly behind them. */
static void writes_and_reads_stay_inside_the_callers_bytes(void **state)
{
    (void)state;
    const pool_fixture_options options = pool_fixture_options_default();
    double norms[2];
    for (int disturbed = 0; disturbed < 2; disturbed++) {
        pool_fixture fixture = pool_fixture_of(&options);
        char *region = tide_region(fixture.pool), bytes[8704];
        const uint64_t own = FIXTURE_REGION_BYTES;
        memset(bytes, 0x7f, sizeof bytes);
        const tide_step_options step = pool_fixture_step_options(1);
        assert_ok(tide_step_begin(fixture.pool, &step));
        assert_ok(pool_fixture_ops(&fixture, false));
        if (disturbed) {
            assert_refused(tide_write(fixture.pool, region + own, bytes, sizeof bytes), TIDE_ERROR_ARGUMENT,
                           "not inside");
            assert_refused(tide_write(fixture.pool, region + own - 1, bytes, 2), TIDE_ERROR_ARGUMENT,
                           "not inside");
            assert_refused(tide_write(fixture.pool, region - 1, bytes, 1), TIDE_ERROR_ARGUMENT, "not inside");
            assert_refused(tide_write(fixture.pool, region, bytes, SIZE_MAX), TIDE_ERROR_ARGUMENT,
                           "not inside");
            assert_refused(tide_read(fixture.pool, bytes, region + own, 1), TIDE_ERROR_ARGUMENT,
                           "not inside");
            assert_refused(tide_read(fixture.pool, bytes, region + own + 1, 0), TIDE_ERROR_ARGUMENT,
                           "not inside");
            assert_ok(tide_read(fixture.pool, bytes, region + own, 0));
            assert_ok(tide_write(fixture.pool, region + own - 1, bytes, 1));
        }
        assert_ok(tide_step_end(fixture.pool));
        norms[disturbed] = result_of(&fixture).gradient_norm;
        pool_fixture_destroy(&fixture);
    }
    assert_memory_equal(&norms[0], &norms[1], sizeof norms[0]);
}

static void there_is_no_prediction_of_steps_that_run_no_op(void **state)
{
    (void)state;
    const pool_fixture_options options = pool_fixture_options_default();
    pool_fixture fixture = pool_fixture_of(&options);
    tide_pool_prediction prediction;
    const tide_step_options step = pool_fixture_step_options(1);
    for (int round = 0; round < 2; round++) {
        for (int i = 0; i < 3; i++) {
            assert_ok(tide_step_begin(fixture.pool, &step));
            assert_ok(tide_step_end(fixture.pool));
        }
        assert_ok(tide_pool_drain(fixture.pool));
        assert_refused(tide_pool_predict(fixture.pool, &prediction), TIDE_ERROR_STATE, "ran no op");
        assert_ok(pool_fixture_step(&fixture, 1, false));
        assert_ok(tide_pool_drain(fixture.pool));
        assert_ok(tide_pool_predict(fixture.pool, &prediction));
        assert_true(prediction.step_seconds > 0);
    }
    pool_fixture_destroy(&fixture);
}

/* --- failed and poisoned pools, steps given up --- */

/* Leaves a step open in which a kernel has failed. */
static void fail_inside_a_step(pool_fixture *fixture)
{
    const tide_step_options step = pool_fixture_step_options(1);
    float value;
    assert_ok(tide_step_begin(fixture->pool, &step));
    (void)pool_fixture_ops(fixture, true);
    assert_refused(tide_read(fixture->pool, &value, tide_region(fixture->pool), sizeof value),
                   TIDE_ERROR_DEVICE,
                   "kernel fixture backward of op b2 failed: fixture backward failed on purpose");
}

/* The step before the failed one has made its updates on the device. They must remain, although the engine
 * may not have seen their end. */
static void on_a_failed_pool_set_and_get_give_the_open_step_up(void **state)
{
    (void)state;
    pool_fixture_options options = pool_fixture_options_default();
    options.pool.placement = TIDE_PLACEMENT_DEVICE;
    uint64_t hashes[3];
    for (int way = 0; way < 3; way++) {
        pool_fixture fixture = pool_fixture_of(&options);
        assert_ok(pool_fixture_step(&fixture, 1, false));
        const float before = 0.25F;
        float after = 0;
        assert_ok(tide_param_set(fixture.pool, fixture.params[2], TIDE_VALUE_MASTER, 0, 1, &before));
        if (way > 0)
            fail_inside_a_step(&fixture);
        if (way == 1)
            assert_ok(tide_param_get(fixture.pool, fixture.params[2], TIDE_VALUE_MASTER, 0, 1, &after));
        else
            assert_ok(tide_param_set(fixture.pool, fixture.params[2], TIDE_VALUE_MASTER, 0, 1, &before));
        assert_true(way != 1 || after == before);
        assert_int_equal(tide_update_count(fixture.pool), 1);
        assert_ok(pool_fixture_step(&fixture, 1, false));
        assert_ok(pool_fixture_hash(&fixture, TIDE_VALUE_MASTER, &hashes[way]));
        pool_fixture_destroy(&fixture);
    }
    assert_int_equal(hashes[0], hashes[1]);
    assert_int_equal(hashes[0], hashes[2]);
}

static void values_of_any_dtype_are_what_they_are_as_floats(void **state)
{
    (void)state;
    enum { COUNT = 199999 };
    static uint16_t halves[COUNT];
    static float values[COUNT], got[COUNT];
    pool_fixture_options options = pool_fixture_options_default();
    pool_fixture fixture = pool_fixture_of(&options);
    for (int dtype = 0; dtype < 3; dtype++) {
        const tide_dtype as = (const tide_dtype[]){TIDE_DTYPE_BF16, TIDE_DTYPE_FP16, TIDE_DTYPE_FP32}[dtype];
        for (uint32_t i = 0; i < COUNT; i++) {
            halves[i] = (uint16_t)(0x2000 + i % 0x5000 + (uint32_t)dtype);
            values[i] = as == TIDE_DTYPE_FP16 ? tide_fp16_to_float(halves[i]) : tide_bf16_to_float(halves[i]);
        }
        const void *source = as == TIDE_DTYPE_FP32 ? (const void *)values : halves;
        assert_ok(
            tide_param_set_as(fixture.pool, fixture.params[1], TIDE_VALUE_MASTER, 1, COUNT, as, source));
        assert_ok(tide_param_get(fixture.pool, fixture.params[1], TIDE_VALUE_MASTER, 1, COUNT, got));
        assert_memory_equal(got, values, sizeof got);
    }
    assert_refused(
        tide_param_set_as(fixture.pool, fixture.params[1], TIDE_VALUE_MASTER, 0, 1, (tide_dtype)3, values),
        TIDE_ERROR_ARGUMENT, "tide_param_set_as: there is no dtype 3");
    pool_fixture_destroy(&fixture);
}

static void a_result_is_of_the_last_step_or_says_why_there_is_none(void **state)
{
    (void)state;
    const pool_fixture_options options = pool_fixture_options_default();
    pool_fixture fixture = pool_fixture_of(&options);
    tide_step_result result;
    assert_refused(tide_step_result_get(fixture.pool, &result), TIDE_ERROR_STATE,
                   "no training step has ended");
    assert_ok(pool_fixture_step(&fixture, 1, false));
    const double norm = result_of(&fixture).gradient_norm;
    const tide_step_options forward = {.training = false}, step = pool_fixture_step_options(1);
    assert_ok(tide_step_begin(fixture.pool, &forward));
    assert_refused(tide_step_result_get(fixture.pool, &result), TIDE_ERROR_STATE, "a step is open");
    assert_ok(tide_step_abort(fixture.pool)); /* aborts a forward-only pass, which has no result */
    assert_true(result_of(&fixture).gradient_norm == norm);
    assert_ok(tide_step_begin(fixture.pool, &step));
    assert_ok(tide_step_abort(fixture.pool));
    assert_refused(tide_step_result_get(fixture.pool, &result), TIDE_ERROR_STATE, "given up");
    fail_inside_a_step(&fixture);
    assert_refused(tide_step_result_get(fixture.pool, &result), TIDE_ERROR_DEVICE, "on purpose");
    assert_ok(tide_step_abort(fixture.pool));
    assert_refused(tide_step_result_get(fixture.pool, &result), TIDE_ERROR_STATE, "given up");
    pool_fixture_destroy(&fixture);
}

/* The step's norm is known when the abort comes. Over the slow link it depends on timing whether an update
 * has begun: the abort may drop the step, let it take place, or poison the pool. */
static void a_step_given_up_after_its_end_takes_its_result_along(void **state)
{
    (void)state;
    pool_fixture_options options = pool_fixture_options_default();
    options.pool.placement = TIDE_PLACEMENT_HOST;
    options.pool.link_bytes_per_second = 10e6;
    for (int i = 0; i < 5; i++) {
        pool_fixture fixture = pool_fixture_of(&options);
        tide_step_result result;
        assert_ok(pool_fixture_step(&fixture, 1, false));
        assert_true(result_of(&fixture).gradient_norm > 0);
        assert_int_equal(tide_update_count(fixture.pool), 1);
        if (tide_step_abort(fixture.pool) != TIDE_OK)
            assert_refused(tide_step_result_get(fixture.pool, &result), TIDE_ERROR_STATE, "poisoned");
        else if (tide_update_count(fixture.pool) == 0)
            assert_refused(tide_step_result_get(fixture.pool, &result), TIDE_ERROR_STATE, "given up");
        else
            assert_true(result_of(&fixture).gradient_norm > 0);
        pool_fixture_destroy(&fixture);
    }
}

static void giving_up_begins_the_count_of_skipped_steps_anew(void **state)
{
    (void)state;
    const pool_fixture_options options = pool_fixture_options_default();
    pool_fixture fixture = pool_fixture_of(&options);
    const tide_step_options step = pool_fixture_step_options(1);
    for (int i = 0; i < 10; i++)
        assert_ok(pool_fixture_step_not_finite(&fixture));
    assert_int_equal(tide_step_begin(fixture.pool, &step), TIDE_ERROR_NONFINITE);
    assert_ok(tide_step_abort(fixture.pool));
    assert_ok(pool_fixture_step_not_finite(&fixture));
    assert_int_equal(result_of(&fixture).skipped_in_row, 1);
    pool_fixture_destroy(&fixture);
}

/* Without clipping the pool counts a step when its norm turns out finite. Here it never does, so the count
 * stays 0 although updates may have begun. */
static void a_step_that_is_not_finite_is_never_counted(void **state)
{
    (void)state;
    for (int placement = TIDE_PLACEMENT_AUTO; placement <= TIDE_PLACEMENT_DEVICE; placement++) {
        pool_fixture_options options = pool_fixture_options_default();
        options.pool.placement = (tide_placement)placement;
        options.pool.link_bytes_per_second = 50e6; /* slow, so that updates are late */
        for (int i = 0; i < 8; i++) {
            pool_fixture fixture = pool_fixture_of(&options);
            const float not_finite = NAN;
            tide_step_result result;
            assert_ok(tide_param_set(fixture.pool, fixture.params[1], TIDE_VALUE_MASTER, 5, 1, &not_finite));
            assert_ok(pool_fixture_step(&fixture, 0, false));
            assert_refused(tide_step_result_get(fixture.pool, &result), TIDE_ERROR_NONFINITE, "param w");
            assert_refused(tide_step_abort(fixture.pool), TIDE_ERROR_STATE, "poisoned");
            assert_int_equal(tide_update_count(fixture.pool), 0);
            pool_fixture_destroy(&fixture);
        }
    }
}

static void a_poisoned_pool_says_so_whatever_it_is_asked(void **state)
{
    (void)state;
    const pool_fixture_options options = pool_fixture_options_default();
    pool_fixture fixture = pool_fixture_of(&options);
    const float not_finite = NAN;
    float value;
    tide_step_result result;
    assert_ok(tide_param_set(fixture.pool, fixture.params[3], TIDE_VALUE_MASTER, 5, 1, &not_finite));
    assert_ok(pool_fixture_step(&fixture, 0, false));
    assert_refused(tide_step_result_get(fixture.pool, &result), TIDE_ERROR_NONFINITE, "param w");
    assert_refused(tide_step_abort(fixture.pool), TIDE_ERROR_STATE, "poisoned");
    const tide_step_options step = pool_fixture_step_options(1);
    assert_refused(tide_step_begin(fixture.pool, &step), TIDE_ERROR_STATE, "poisoned");
    assert_refused(tide_step_end(fixture.pool), TIDE_ERROR_STATE, "poisoned");
    assert_refused(tide_op_begin(fixture.pool, fixture.head), TIDE_ERROR_STATE, "poisoned");
    assert_refused(tide_write(fixture.pool, tide_region(fixture.pool), &value, sizeof value),
                   TIDE_ERROR_STATE, "poisoned");
    assert_refused(tide_read(fixture.pool, &value, tide_region(fixture.pool), sizeof value), TIDE_ERROR_STATE,
                   "poisoned");
    assert_refused(tide_step_result_get(fixture.pool, &result), TIDE_ERROR_STATE, "poisoned");
    assert_refused(tide_pool_drain(fixture.pool), TIDE_ERROR_STATE, "poisoned");
    assert_refused(tide_param_get(fixture.pool, fixture.params[0], TIDE_VALUE_MASTER, 0, 1, &value),
                   TIDE_ERROR_STATE, "poisoned");
    assert_ok(tide_param_set(fixture.pool, fixture.params[0], TIDE_VALUE_MASTER, 0, 1, &value));
    pool_fixture_destroy(&fixture);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_option_out_of_range_is_named_at_create),
        cmocka_unit_test(a_param_or_activation_that_is_too_large_is_told_so_when_it_is_added),
        cmocka_unit_test(an_op_that_is_wrong_is_refused_when_it_is_added),
        cmocka_unit_test(a_step_option_out_of_range_is_named_alone_with_its_range),
        cmocka_unit_test(an_optimizer_of_ones_own_gets_its_step_options_unlooked_at),
        cmocka_unit_test(an_update_count_that_would_wrap_is_refused),
        cmocka_unit_test(writes_and_reads_stay_inside_the_callers_bytes),
        cmocka_unit_test(there_is_no_prediction_of_steps_that_run_no_op),
        cmocka_unit_test(on_a_failed_pool_set_and_get_give_the_open_step_up),
        cmocka_unit_test(values_of_any_dtype_are_what_they_are_as_floats),
        cmocka_unit_test(a_result_is_of_the_last_step_or_says_why_there_is_none),
        cmocka_unit_test(a_step_given_up_after_its_end_takes_its_result_along),
        cmocka_unit_test(giving_up_begins_the_count_of_skipped_steps_anew),
        cmocka_unit_test(a_step_that_is_not_finite_is_never_counted),
        cmocka_unit_test(a_poisoned_pool_says_so_whatever_it_is_asked),
    };
    return cmocka_run_group_tests_name("pool_calls", tests, NULL, NULL);
}
