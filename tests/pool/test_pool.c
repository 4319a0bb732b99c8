/* The pool on the host device with every check on: delays change no bit, and a budget that is too small is
 * refused. tests/train/test_trainer_matrix.c checks that budgets, chunk sizes and placements change no
 * bit. */
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

static outcome train(const pool_fixture_options *options)
{
    pool_fixture fixture;
    outcome result = {0};
    assert_ok(pool_fixture_create(options, &fixture));
    for (int step = 0; step < STEPS; step++) {
        tide_step_result stepped;
        assert_ok(pool_fixture_step(&fixture, 1, false));
        assert_ok(tide_step_result_get(fixture.pool, &stepped));
        result.norms[step] = stepped.gradient_norm;
    }
    assert_ok(pool_fixture_hash(&fixture, TIDE_VALUE_MASTER, &result.masters));
    assert_ok(pool_fixture_hash(&fixture, TIDE_VALUE_PARAM, &result.params));
    assert_ok(pool_fixture_hash(&fixture, TIDE_VALUE_VARIANCE, &result.variances));
    pool_fixture_destroy(&fixture);
    return result;
}

/* The matrix has delays too; this case runs under ThreadSanitizer. */
static void adversarial_delays_change_nothing(void **state)
{
    pool_fixture_options options = pool_fixture_options_default();
    options.device_share = 0.2;
    const outcome reference = train(&options);
    options.pool.checks.delay_max_us = 300;
    for (uint64_t seed = 1; seed <= 3; seed++) {
        options.pool.checks.delay_seed = seed;
        const outcome result = train(&options);
        assert_memory_equal(&result, &reference, sizeof reference);
    }
}

static void a_budget_below_the_least_is_refused_with_what_would_do(void **state)
{
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(adversarial_delays_change_nothing),
        cmocka_unit_test(a_budget_below_the_least_is_refused_with_what_would_do),
    };
    return cmocka_run_group_tests_name("pool", tests, NULL, NULL);
}
