/* Steps of all kinds in random order, on pools with hardly any free slots and a slow link: good steps with
 * and without clipping in all dtypes, skipped steps, failed steps that are given up, evaluations, and steps
 * that are left in the middle. The final values must equal those of a pool that has memory for everything
 * and made only the good and the skipped steps. A second test adds up the counters of all steps and compares
 * the sums with the pool's own. */
#include "tests/support/pool_fixture.h"
#include "tests/support/test_thin.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#define assert_ok(call)                                                                                      \
    do {                                                                                                     \
        const tide_status status_ = (call);                                                                  \
        if (status_ != TIDE_OK)                                                                              \
            fail_msg("seed %u: %s: %s: %s", seed, #call, tide_status_name(status_), tide_message());         \
    } while (0)

enum { SEEDS = 9, MOVES = 14 };

typedef enum move { GOOD, UNCLIPPED, SKIPPED, FAILED, EVALUATED, LEFT, MOVE_KINDS } move;

typedef struct course {
    tide_dtype dtype;
    pool_fixture_options tight;
    move moves[MOVES];
} course;

static course draw(unsigned seed)
{
    course drawn = {.tight = pool_fixture_options_default()};
    srand(seed);
    drawn.dtype = (tide_dtype)(rand() % 3);
    drawn.tight.device_share = rand() % 4 / 10.0;
    drawn.tight.least_host = rand() % 4 > 0;
    drawn.tight.pool.placement = rand() % 2 ? TIDE_PLACEMENT_HOST : TIDE_PLACEMENT_AUTO;
    drawn.tight.pool.checks.guard = rand() % 2;
    drawn.tight.pool.prefetch = rand() % 4 > 0;
    drawn.tight.pool.link_bytes_per_second = rand() % 3 ? 60e6 : 400e6;
    drawn.tight.pool.checks.delay_max_us = rand() % 2 ? 200 : 0;
    drawn.tight.pool.checks.delay_seed = seed;
    for (int i = 0; i < MOVES; i++)
        drawn.moves[i] = rand() % 3 ? (move)(rand() % MOVE_KINDS) : SKIPPED;
    return drawn;
}

static void leave_in_the_middle(pool_fixture *fixture, unsigned seed)
{
    const tide_step_options options = pool_fixture_step_options(1);
    assert_ok(tide_step_begin(fixture->pool, &options));
    assert_ok(tide_op_begin(fixture->pool, fixture->forward[0]));
    assert_ok(tide_op_slice(fixture->pool, 0));
    assert_ok(tide_step_abort(fixture->pool));
}

static void fail_and_give_up(pool_fixture *fixture, unsigned seed)
{
    tide_step_result result;
    if (pool_fixture_step(fixture, 1, true) == TIDE_OK)
        assert_int_not_equal(tide_step_result_get(fixture->pool, &result), TIDE_OK);
    assert_ok(tide_step_abort(fixture->pool));
}

/* `all`: also make the steps that must not change the values: those that fail or are given up, and
 * evaluations. */
static void make(pool_fixture *fixture, move kind, bool all, unsigned seed)
{
    if (kind == GOOD || kind == UNCLIPPED)
        assert_ok(pool_fixture_step(fixture, kind == GOOD ? 1.0F : 0.0F, false));
    else if (kind == SKIPPED)
        /* Both pools make it, because a skipped step counts as a step. */
        assert_ok(pool_fixture_step_not_finite(fixture));
    else if (all && kind == FAILED)
        fail_and_give_up(fixture, seed);
    else if (all && kind == EVALUATED)
        assert_ok(pool_fixture_evaluate(fixture));
    else if (all)
        leave_in_the_middle(fixture, seed);
}

static uint64_t run(const course *drawn, bool tight, unsigned seed)
{
    pool_fixture_options options = tight ? drawn->tight : pool_fixture_options_default();
    pool_fixture fixture;
    uint64_t masters, params;
    options.dtype = drawn->dtype;
    assert_ok(pool_fixture_create(&options, &fixture));
    for (int i = 0; i < MOVES; i++)
        make(&fixture, drawn->moves[i], tight, seed);
    assert_ok(pool_fixture_hash(&fixture, TIDE_VALUE_MASTER, &masters));
    assert_ok(pool_fixture_hash(&fixture, TIDE_VALUE_PARAM, &params));
    pool_fixture_destroy(&fixture);
    return masters * 31 + params;
}

static unsigned first_seed = 1, seeds;

static void what_goes_wrong_between_good_steps_leaves_no_trace(void **state)
{
    (void)state;
    for (unsigned seed = first_seed; seed < first_seed + seeds; seed++) {
        const course drawn = draw(seed);
        const uint64_t alone = run(&drawn, false, seed), mixed = run(&drawn, true, seed);
        if (alone != mixed)
            fail_msg("seed %u: other bits", seed);
    }
}

/* --- counters --- */

static void add(tide_pool_counters *sum, pool_fixture *fixture)
{
    uint64_t step;
    tide_pool_counters of;
    while (tide_pool_step_counters_take(fixture->pool, &step, &of)) {
        sum->h2d_bytes += of.h2d_bytes;
        sum->d2h_bytes += of.d2h_bytes;
        sum->evictions += of.evictions;
    }
}

static void what_steps_moved_adds_up_to_what_the_pool_moved(void **state)
{
    (void)state;
    for (unsigned seed = 0; seed < 4; seed++) {
        pool_fixture_options options = pool_fixture_options_default();
        pool_fixture fixture;
        tide_pool_counters before, after, sum = {0};
        options.device_share = seed < 2 ? 0 : 0.3;
        options.pool.placement = TIDE_PLACEMENT_HOST;
        assert_ok(pool_fixture_create(&options, &fixture));
        assert_ok(tide_pool_counters_get(fixture.pool, &before));
        for (int i = 0; i < 6; i++) {
            assert_ok(pool_fixture_step(&fixture, seed % 2 ? 1.0F : 0.0F, false));
            add(&sum, &fixture);
        }
        assert_ok(tide_pool_drain(fixture.pool));
        add(&sum, &fixture);
        assert_ok(tide_pool_counters_get(fixture.pool, &after));
        assert_true(sum.d2h_bytes > 0);
        assert_int_equal(sum.d2h_bytes, after.d2h_bytes - before.d2h_bytes);
        assert_int_equal(sum.h2d_bytes, after.h2d_bytes - before.h2d_bytes);
        assert_int_equal(sum.evictions, after.evictions - before.evictions);
        pool_fixture_destroy(&fixture);
    }
}

/* usage: test_pool_mixed [SEEDS [FIRST_SEED]] */
int main(int count, char **arguments)
{
    seeds = count > 1 ? (unsigned)strtoul(arguments[1], NULL, 10) : SEEDS / test_every(2, 5);
    if (count > 2)
        first_seed = (unsigned)strtoul(arguments[2], NULL, 10);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_goes_wrong_between_good_steps_leaves_no_trace),
        cmocka_unit_test(what_steps_moved_adds_up_to_what_the_pool_moved),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
