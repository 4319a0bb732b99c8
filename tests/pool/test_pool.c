/* The pool on the host device with every check on: delays change no bit, and an abort restores everything.
 * tests/train/test_trainer_matrix.c checks that budgets, chunk sizes and placements change no bit. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/assert_ok.h"
#include "tests/support/pool_fixture.h"

enum { STEPS = 4 };

typedef struct outcome {
    uint64_t masters, params, variances;
    double norms[STEPS];
} outcome;

static outcome train(const pool_fixture_options *options, float clip_norm)
{
    pool_fixture fixture;
    outcome result = {0};
    assert_ok(pool_fixture_create(options, &fixture));
    uint64_t allocations = 0;
    for (int step = 0; step < STEPS; step++) {
        assert_ok(pool_fixture_step(&fixture, clip_norm, false));
        tide_step_result stepped;
        assert_ok(tide_step_result_get(fixture.pool, &stepped));
        result.norms[step] = stepped.gradient_norm;
        tide_pool_counters counters;
        assert_ok(tide_pool_counters_get(fixture.pool, &counters));
        if (step == 2)
            allocations = counters.device_allocations + counters.host_allocations;
    }
    assert_ok(tide_pool_drain(fixture.pool));
    tide_pool_counters counters;
    tide_pool_plan plan;
    assert_ok(tide_pool_counters_get(fixture.pool, &counters));
    assert_ok(tide_pool_plan_get(fixture.pool, &plan));
    assert_true(counters.device_bytes_peak <= plan.device_memory_bytes);
    assert_true(counters.host_bytes_peak <= plan.host_memory_bytes);
    assert_int_equal(counters.device_allocations + counters.host_allocations, allocations);
    assert_ok(pool_fixture_hash(&fixture, TIDE_VALUE_MASTER, &result.masters));
    assert_ok(pool_fixture_hash(&fixture, TIDE_VALUE_PARAM, &result.params));
    assert_ok(pool_fixture_hash(&fixture, TIDE_VALUE_VARIANCE, &result.variances));
    pool_fixture_destroy(&fixture);
    return result;
}

static void assert_same(const outcome *a, const outcome *b)
{
    for (int step = 0; step < STEPS; step++)
        assert_memory_equal(&a->norms[step], &b->norms[step], sizeof(double));
    assert_int_equal(a->masters, b->masters);
    assert_int_equal(a->params, b->params);
    assert_int_equal(a->variances, b->variances);
}

/* The matrix has delays too; this case runs under ThreadSanitizer. */
static void adversarial_delays_change_nothing(void **state)
{
    (void)state;
    pool_fixture_options options = pool_fixture_options_default();
    options.device_share = 0.2;
    const outcome reference = train(&options, 1.0F);
    for (uint64_t seed = 1; seed <= 3; seed++) {
        options.pool.checks.delay_seed = seed;
        options.pool.checks.delay_max_us = 300;
        const outcome result = train(&options, 1.0F);
        assert_same(&reference, &result);
    }
}

static void an_aborted_step_leaves_no_trace(void **state)
{
    (void)state;
    pool_fixture_options options = pool_fixture_options_default();
    options.device_share = 0.3;
    pool_fixture fixture;
    assert_ok(pool_fixture_create(&options, &fixture));
    assert_ok(pool_fixture_step(&fixture, 1.0F, false));
    uint64_t before, after;
    assert_ok(pool_fixture_hash(&fixture, TIDE_VALUE_PARAM, &before));
    tide_status status = pool_fixture_step(&fixture, 1.0F, true);
    tide_step_result result;
    if (status == TIDE_OK)
        status = tide_step_result_get(fixture.pool, &result);
    assert_int_equal(status, TIDE_ERROR_DEVICE);
    assert_non_null(strstr(tide_message(), "on purpose"));
    assert_int_equal(tide_op_begin(fixture.pool, fixture.forward[0]), TIDE_ERROR_DEVICE);
    assert_ok(tide_step_abort(fixture.pool));
    assert_ok(pool_fixture_hash(&fixture, TIDE_VALUE_PARAM, &after));
    assert_int_equal(before, after);
    assert_ok(pool_fixture_step(&fixture, 1.0F, false));
    assert_ok(pool_fixture_hash(&fixture, TIDE_VALUE_MASTER, &after));
    pool_fixture_destroy(&fixture);

    assert_ok(pool_fixture_create(&options, &fixture));
    assert_ok(pool_fixture_step(&fixture, 1.0F, false));
    assert_ok(pool_fixture_step(&fixture, 1.0F, false));
    assert_ok(pool_fixture_hash(&fixture, TIDE_VALUE_MASTER, &before));
    pool_fixture_destroy(&fixture);
    assert_int_equal(before, after);
}

/* In one case the state lies in host slots that held other values, in the other in slots that were never
 * used. */
static void state_that_was_never_set_is_zero(void **state)
{
    (void)state;
    for (int least = 0; least < 2; least++) {
        pool_fixture_options options = pool_fixture_options_default();
        options.device_share = 1;
        options.least_host = least;
        options.pool.placement = least ? TIDE_PLACEMENT_AUTO : TIDE_PLACEMENT_HOST;
        pool_fixture fixture;
        assert_ok(pool_fixture_create(&options, &fixture));
        for (int l = 0; l < FIXTURE_LAYERS; l++) {
            static float values[200000];
            assert_true(fixture.elements[l] <= 200000);
            assert_ok(tide_param_get(fixture.pool, fixture.params[l], TIDE_VALUE_MOMENTUM, 0,
                                     fixture.elements[l], values));
            for (uint64_t i = 0; i < fixture.elements[l]; i++)
                assert_true(values[i] == 0);
        }
        pool_fixture_destroy(&fixture);
    }
}

static void a_budget_below_the_least_is_refused_with_what_would_do(void **state)
{
    (void)state;
    pool_fixture_options options = pool_fixture_options_default();
    options.pool.chunk_bytes = 1 << 20;
    pool_fixture fixture;
    tide_pool_plan plan;
    assert_ok(pool_fixture_create(&options, &fixture));
    assert_ok(tide_pool_plan_get(fixture.pool, &plan));
    char op[16];
    snprintf(op, sizeof op, "op %s ", plan.largest_op);
    pool_fixture_destroy(&fixture);
    options.pool.device_memory_bytes = plan.least_device_bytes;
    assert_ok(pool_fixture_create(&options, &fixture));
    pool_fixture_destroy(&fixture);
    options.pool.device_memory_bytes = plan.least_device_bytes - 1;
    assert_int_equal(pool_fixture_create(&options, &fixture), TIDE_ERROR_BUDGET);
    char least[32];
    snprintf(least, sizeof least, "%llu", (unsigned long long)plan.least_device_bytes);
    assert_non_null(strstr(tide_message(), op));
    assert_non_null(strstr(tide_message(), least));
    assert_non_null(strstr(tide_message(), "with chunks of"));
    const uint64_t chunk =
        strtoull(strstr(tide_message(), "with chunks of") + strlen("with chunks of"), NULL, 10);
    assert_true(chunk > 0 && chunk < options.pool.chunk_bytes);
    options.pool.chunk_bytes = chunk;
    /* the chunk size that the message names is large enough */
    assert_ok(pool_fixture_create(&options, &fixture));
    pool_fixture_destroy(&fixture);
    options.pool.host_memory_bytes = 1 << 20;
    assert_int_equal(pool_fixture_create(&options, &fixture), TIDE_ERROR_BUDGET);
    assert_non_null(strstr(tide_message(), "host budget"));
}

static void the_null_device_runs_the_same_step(void **state)
{
    (void)state;
    pool_fixture_options options = pool_fixture_options_default();
    options.pool.device = "null";
    options.device_share = 0.2;
    options.pool.link_bytes_per_second = 25e9;
    pool_fixture fixture;
    assert_ok(pool_fixture_create(&options, &fixture));
    for (int step = 0; step < 4; step++)
        assert_ok(pool_fixture_step(&fixture, 1.0F, false));
    assert_ok(tide_pool_drain(fixture.pool));
    tide_pool_counters counters;
    uint64_t step;
    for (uint64_t expected = 1; expected <= 4; expected++) {
        assert_true(tide_pool_step_counters_take(fixture.pool, &step, &counters));
        assert_int_equal(step, expected);
        assert_true(counters.seconds > 0);
    }
    assert_true(counters.h2d_bytes > 0);
    assert_true(counters.d2h_bytes > 0);
    assert_true(counters.adam_host_seconds > 0);
    assert_false(tide_pool_step_counters_take(fixture.pool, &step, &counters));
    pool_fixture_destroy(&fixture);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(adversarial_delays_change_nothing),
        cmocka_unit_test(an_aborted_step_leaves_no_trace),
        cmocka_unit_test(state_that_was_never_set_is_zero),
        cmocka_unit_test(a_budget_below_the_least_is_refused_with_what_would_do),
        cmocka_unit_test(the_null_device_runs_the_same_step),
    };
    return cmocka_run_group_tests_name("pool", tests, NULL, NULL);
}
