/* A pool of fp16 params and with a loss scale: the scale changes no bit of any result, updates wait for the
 * norm, too many skipped steps end the run, and a fault in a skipped step leaves no trace. test_pool_random
 * checks that a skipped step changes nothing, and tests/train/test_trainer_matrix.c that budgets change no
 * bit. */
#include <math.h>
#include <string.h>

#include "src/pool/internal.h"
#include "tests/support/assert_ok.h"
#include "tests/support/pool_fixture.h"
#include "tests/support/test_thin.h"

/* a loss scale that overflows fp16: the fixture's gradients are about 0.1 */
static const float overflowing = 1 << 24;

static pool_fixture_options options_of(tide_dtype dtype)
{
    pool_fixture_options options = pool_fixture_options_default();
    options.dtype = dtype;
    options.device_share = 0.3;
    return options;
}

static tide_step_result step(pool_fixture *fixture, float clip_norm, float loss_scale)
{
    tide_step_result result;
    fixture->loss_scale = loss_scale;
    assert_ok(pool_fixture_step(fixture, clip_norm, false));
    assert_ok(tide_step_result_get(fixture->pool, &result));
    return result;
}

static uint64_t hash_of(pool_fixture *fixture, tide_value kind)
{
    uint64_t hash;
    assert_ok(pool_fixture_hash(fixture, kind, &hash));
    return hash;
}

/* Train three steps with the loss scale. Gets hashes of the masters and both moments, and the norms. */
static void train(const pool_fixture_options *options, float clip_norm, float loss_scale, uint64_t hashes[3],
                  double norms[3])
{
    pool_fixture fixture;
    assert_ok(pool_fixture_create(options, &fixture));
    for (int i = 0; i < 3; i++) {
        const tide_step_result result = step(&fixture, clip_norm, loss_scale);
        assert_false(result.skipped);
        assert_true(result.loss_scale == (loss_scale > 0 ? loss_scale : 1));
        if (clip_norm == 0)
            assert_true(result.gradient_scale == 1 / result.loss_scale);
        norms[i] = result.gradient_norm;
    }
    hashes[0] = hash_of(&fixture, TIDE_VALUE_MASTER);
    hashes[1] = hash_of(&fixture, TIDE_VALUE_MOMENTUM);
    hashes[2] = hash_of(&fixture, TIDE_VALUE_VARIANCE);
    pool_fixture_destroy(&fixture);
}

static void a_loss_scale_that_nothing_overflows_changes_no_bit(void **state)
{
    for (int dtype = TIDE_DTYPE_FP32; dtype <= TIDE_DTYPE_FP16; dtype++)
        for (int clip = 0; clip < 2; clip++) {
            const pool_fixture_options options = options_of((tide_dtype)dtype);
            /* With fp16 both scales are so large that no gradient is a denormal. */
            const float scales[2] = {dtype == TIDE_DTYPE_FP16 ? 4096 : 0, 16384};
            uint64_t hashes[2][3];
            double norms[2][3];
            for (int i = 0; i < 2; i++)
                train(&options, (float)clip, scales[i], hashes[i], norms[i]);
            assert_memory_equal(hashes[0], hashes[1], sizeof hashes[0]);
            assert_memory_equal(norms[0], norms[1], sizeof norms[0]);
            assert_true(norms[0][0] > 0 && norms[0][0] < 1e4);
        }
}

static void skips_at_falling_loss_scales_do_not_end_a_run(void **state)
{
    const pool_fixture_options options = options_of(TIDE_DTYPE_FP16);
    pool_fixture fixture;
    assert_ok(pool_fixture_create(&options, &fixture));
    int skipped = 0;
    for (float scale = 4294967296.0F; scale >= overflowing / 2; scale /= 2, skipped++) {
        const tide_step_result result = step(&fixture, 1, scale);
        assert_true(result.skipped && result.skipped_in_row == 1);
    }
    assert_true(skipped == 10);
    tide_pool_counters counters;
    assert_ok(tide_pool_counters_get(fixture.pool, &counters));
    assert_int_equal(counters.skipped, 10);
    assert_int_equal(step(&fixture, 1, 1024).skipped_in_row, 0);
    pool_fixture_destroy(&fixture);
}

static void ten_skips_without_a_lower_loss_scale_end_it(void **state)
{
    const pool_fixture_options options = options_of(TIDE_DTYPE_FP16);
    pool_fixture fixture;
    assert_ok(pool_fixture_create(&options, &fixture));
    assert_true(step(&fixture, 0, 2 * overflowing).skipped);
    for (uint32_t i = 1; i < 10; i++)
        assert_int_equal(step(&fixture, 0, overflowing).skipped_in_row, i);
    tide_step_result result;
    assert_ok(pool_fixture_step(&fixture, 0, false));
    assert_int_equal(tide_step_result_get(fixture.pool, &result), TIDE_ERROR_NONFINITE);
    assert_non_null(strstr(tide_message(), "ten steps in a row were skipped"));
    assert_non_null(strstr(tide_message(), "param w"));
    const tide_step_options next = pool_fixture_step_options(1);
    assert_int_equal(tide_step_begin(fixture.pool, &next), TIDE_ERROR_NONFINITE);
    pool_fixture_destroy(&fixture);
}

static void who_gives_up_or_sets_the_count_begins_the_count_of_skips_anew(void **state)
{
    const pool_fixture_options options = options_of(TIDE_DTYPE_FP16);
    const tide_step_options given_up = pool_fixture_step_options(1);
    pool_fixture fixture;
    assert_ok(pool_fixture_create(&options, &fixture));
    for (uint32_t i = 1; i < 10; i++)
        assert_int_equal(step(&fixture, 0, overflowing).skipped_in_row, i);
    assert_ok(tide_update_count_set(fixture.pool, tide_update_count(fixture.pool)));
    for (uint32_t i = 1; i < 10; i++)
        assert_int_equal(step(&fixture, 0, overflowing).skipped_in_row, i);
    assert_ok(tide_step_begin(fixture.pool, &given_up));
    assert_ok(tide_step_abort(fixture.pool));
    assert_int_equal(step(&fixture, 0, overflowing).skipped_in_row, 1);
    pool_fixture_destroy(&fixture);
}

/* A step without clipping that uses only the last layer's param. */
static void step_of_the_last_layer(pool_fixture *fixture)
{
    const tide_step_options options = pool_fixture_step_options(0);
    assert_ok(tide_step_begin(fixture->pool, &options));
    assert_ok(tide_op_begin(fixture->pool, fixture->backward[FIXTURE_LAYERS - 1]));
    assert_ok(tide_op_end(fixture->pool));
    assert_ok(tide_step_end(fixture->pool));
}

static uint64_t train_then_leave_params_out(uint32_t delay_max_us)
{
    pool_fixture_options options = options_of(TIDE_DTYPE_FP16);
    options.pool.placement = TIDE_PLACEMENT_HOST;
    options.pool.checks.delay_max_us = delay_max_us;
    options.pool.checks.delay_seed = 5;
    pool_fixture fixture;
    assert_ok(pool_fixture_create(&options, &fixture));
    fixture.loss_scale = 1024;
    for (int i = 0; i < 3; i++) {
        assert_ok(pool_fixture_step(&fixture, 0, false));
        step_of_the_last_layer(&fixture);
    }
    const uint64_t hash = hash_of(&fixture, TIDE_VALUE_MASTER);
    pool_fixture_destroy(&fixture);
    return hash;
}

/* With delays, updates of params that the next step does not use are still running when that step ends. The
 * norm of that step must not decide over them. */
static void updates_that_no_op_waits_for_are_over_before_the_next_ones(void **state)
{
    assert_int_equal(train_then_leave_params_out(0), train_then_leave_params_out(3000));
}

/* --- faults --- */

static tide_status scaled_step(pool_fixture *fixture, float loss_scale)
{
    fixture->loss_scale = loss_scale;
    return pool_fixture_step_and_settle(fixture, 0);
}

/* Make the second step's N-th operation fail, give the step up and, unless it has taken place, repeat it.
 * Returns whether no fault was met. A skipped step can't poison the pool, since none of its updates ever
 * begins. */
static bool second_step_with_fault(const pool_fixture_options *options, float loss_scale, uint64_t n,
                                   uint64_t expected, uint64_t *poisonings)
{
    pool_fixture fixture;
    assert_ok(pool_fixture_create(options, &fixture));
    assert_ok(scaled_step(&fixture, 1024));
    fixture.pool->context.device->ops->set_fault(fixture.pool->context.device, TIDE_FAULT_ANY, n);
    const bool met = scaled_step(&fixture, loss_scale) != TIDE_OK;
    fixture.pool->context.device->ops->set_fault(fixture.pool->context.device, 0, 0);
    if (met && tide_step_abort(fixture.pool) != TIDE_OK) {
        assert_true(loss_scale < overflowing);
        ++*poisonings;
    } else {
        if (met && tide_update_count(fixture.pool) == 1)
            assert_ok(scaled_step(&fixture, loss_scale));
        if (hash_of(&fixture, TIDE_VALUE_MASTER) * 31 + hash_of(&fixture, TIDE_VALUE_PARAM) != expected)
            fail_msg("fault %llu: other bits", (unsigned long long)n);
    }
    pool_fixture_destroy(&fixture);
    return !met;
}

/* Fail each of the first operations, then ever later ones: those of a good step, and those of a skipped step
 * and its restores. */
static void a_fault_in_a_step_leaves_no_trace(void **state)
{
    for (int skipped = 0; skipped < 2; skipped++) {
        const float loss_scale = skipped ? overflowing : 1024;
        pool_fixture_options options = options_of(TIDE_DTYPE_FP16);
        options.device_share = 0.1;
        pool_fixture fixture;
        assert_ok(pool_fixture_create(&options, &fixture));
        assert_ok(scaled_step(&fixture, 1024));
        assert_ok(scaled_step(&fixture, loss_scale));
        const uint64_t expected =
            hash_of(&fixture, TIDE_VALUE_MASTER) * 31 + hash_of(&fixture, TIDE_VALUE_PARAM);
        pool_fixture_destroy(&fixture);
        uint64_t n = 1, poisonings = 0;
        while (!second_step_with_fault(&options, loss_scale, n, expected, &poisonings))
            n += test_thin(4) + n / (4 / test_thin(2));
        print_message("%llu operations, %llu poisonings\n", (unsigned long long)n,
                      (unsigned long long)poisonings);
        assert_true(n > 60);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_loss_scale_that_nothing_overflows_changes_no_bit),
        cmocka_unit_test(skips_at_falling_loss_scales_do_not_end_a_run),
        cmocka_unit_test(ten_skips_without_a_lower_loss_scale_end_it),
        cmocka_unit_test(who_gives_up_or_sets_the_count_begins_the_count_of_skips_anew),
        cmocka_unit_test(updates_that_no_op_waits_for_are_over_before_the_next_ones),
        cmocka_unit_test(a_fault_in_a_step_leaves_no_trace),
    };
    return cmocka_run_group_tests_name("pool fp16", tests, NULL, NULL);
}
