/* Calls that depend on the steps before them: results, counts, and the calls that a failed pool still allows.
 * test_pool_misuse has the refusals of wrong arguments. Uses only the public header. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/bf16.h"
#include "base/fp16.h"
#include "tests/support/assert_ok.h"
#include "tests/support/pool_fixture.h"
#include "tests/support/test_thin.h"

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

/* --- steps --- */

static tide_status own_update(void *context, const tide_step_options *step, uint64_t update, float scale,
                              const tide_update_segment *segments, uint32_t count)
{
    (void)context, (void)step, (void)update, (void)scale, (void)segments, (void)count;
    return TIDE_OK;
}

static void an_optimizer_of_ones_own_gets_its_step_options_unlooked_at(void **state)
{
    pool_fixture_options options = pool_fixture_options_default();
    options.pool.update = own_update;
    pool_fixture fixture = pool_fixture_of(&options);
    tide_step_options step = {
        .training = true, .learning_rate = NAN, .beta1 = 2, .epsilon = -1, .clip_norm = -1};
    assert_fails(tide_step_begin(fixture.pool, &step), TIDE_ERROR_ARGUMENT, "clip_norm");
    step.clip_norm = 0;
    step.loss_scale = 3;
    assert_fails(tide_step_begin(fixture.pool, &step), TIDE_ERROR_ARGUMENT, "loss_scale");
    step.loss_scale = 0;
    assert_ok(tide_step_begin(fixture.pool, &step));
    pool_fixture_destroy(&fixture);
}

static void the_largest_update_count_trains(void **state)
{
    const pool_fixture_options options = pool_fixture_options_default();
    pool_fixture fixture = pool_fixture_of(&options);
    assert_ok(tide_update_count_set(fixture.pool, TIDE_UPDATES_MAX));
    assert_ok(pool_fixture_step(&fixture, 1, false));
    assert_ok(tide_pool_drain(fixture.pool));
    assert_int_equal(tide_update_count(fixture.pool), TIDE_UPDATES_MAX + 1);
    float value;
    assert_ok(tide_param_get(fixture.pool, fixture.params[0], TIDE_VALUE_MASTER, 0, 1, &value));
    assert_true(isfinite(value));
    pool_fixture_destroy(&fixture);
}

static void there_is_no_prediction_of_steps_that_run_no_op(void **state)
{
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
        assert_fails(tide_pool_predict(fixture.pool, &prediction), TIDE_ERROR_STATE, "ran no op");
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
    assert_fails(tide_read(fixture->pool, &value, tide_region(fixture->pool), sizeof value),
                 TIDE_ERROR_DEVICE,
                 "kernel fixture backward of op b2 failed: fixture backward failed on purpose");
}

/* The step before the failed one has made its updates on the device. They must remain, although the engine
 * may not have seen their end. */
static void on_a_failed_pool_set_and_get_give_the_open_step_up(void **state)
{
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
    pool_fixture_destroy(&fixture);
}

static void a_result_is_of_the_last_step_or_says_why_there_is_none(void **state)
{
    const pool_fixture_options options = pool_fixture_options_default();
    pool_fixture fixture = pool_fixture_of(&options);
    tide_step_result result;
    assert_fails(tide_step_result_get(fixture.pool, &result), TIDE_ERROR_STATE, "no training step has ended");
    assert_ok(pool_fixture_step(&fixture, 1, false));
    const double norm = result_of(&fixture).gradient_norm;
    const tide_step_options forward = {.training = false}, step = pool_fixture_step_options(1);
    assert_ok(tide_step_begin(fixture.pool, &forward));
    assert_fails(tide_step_result_get(fixture.pool, &result), TIDE_ERROR_STATE, "a step is open");
    assert_ok(tide_step_abort(fixture.pool)); /* aborts a forward-only pass, which has no result */
    assert_true(result_of(&fixture).gradient_norm == norm);
    assert_ok(tide_step_begin(fixture.pool, &step));
    assert_ok(tide_step_abort(fixture.pool));
    assert_fails(tide_step_result_get(fixture.pool, &result), TIDE_ERROR_STATE, "given up");
    fail_inside_a_step(&fixture);
    assert_fails(tide_step_result_get(fixture.pool, &result), TIDE_ERROR_DEVICE, "on purpose");
    assert_ok(tide_step_abort(fixture.pool));
    assert_fails(tide_step_result_get(fixture.pool, &result), TIDE_ERROR_STATE, "given up");
    pool_fixture_destroy(&fixture);
}

/* Without clipping the pool counts a step when its norm turns out finite. Here it never does, so the count
 * stays 0 although updates may have begun. */
static void a_step_that_is_not_finite_is_never_counted(void **state)
{
    for (int placement = TIDE_PLACEMENT_AUTO; placement <= TIDE_PLACEMENT_DEVICE; placement++) {
        pool_fixture_options options = pool_fixture_options_default();
        options.pool.placement = (tide_placement)placement;
        options.pool.link_bytes_per_second = 50e6; /* slow, so that updates are late */
        for (unsigned i = 0; i < 8; i += test_thin(4)) {
            pool_fixture fixture = pool_fixture_of(&options);
            const float not_finite = NAN;
            tide_step_result result;
            assert_ok(tide_param_set(fixture.pool, fixture.params[1], TIDE_VALUE_MASTER, 5, 1, &not_finite));
            assert_ok(pool_fixture_step(&fixture, 0, false));
            assert_fails(tide_step_result_get(fixture.pool, &result), TIDE_ERROR_NONFINITE, "param w");
            assert_fails(tide_step_abort(fixture.pool), TIDE_ERROR_STATE, "poisoned");
            assert_int_equal(tide_update_count(fixture.pool), 0);
            pool_fixture_destroy(&fixture);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_optimizer_of_ones_own_gets_its_step_options_unlooked_at),
        cmocka_unit_test(the_largest_update_count_trains),
        cmocka_unit_test(there_is_no_prediction_of_steps_that_run_no_op),
        cmocka_unit_test(on_a_failed_pool_set_and_get_give_the_open_step_up),
        cmocka_unit_test(values_of_any_dtype_are_what_they_are_as_floats),
        cmocka_unit_test(a_result_is_of_the_last_step_or_says_why_there_is_none),
        cmocka_unit_test(a_step_that_is_not_finite_is_never_counted),
    };
    return cmocka_run_group_tests_name("pool_calls", tests, NULL, NULL);
}
