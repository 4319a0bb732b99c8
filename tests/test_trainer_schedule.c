#include "src/state/lr_schedule.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

static const tide_lr_schedule schedule = {.lr = 1e-3, .lr_min = 1e-4, .warmup_steps = 10, .steps = 101};

static void warm_up_rises_in_equal_steps_to_the_learning_rate(void **state)
{
    (void)state;
    for (uint64_t step = 0; step < 10; step++)
        assert_true(fabs(tide_lr_schedule_at(&schedule, step) - 1e-4 * (double)(step + 1)) < 1e-18);
}

static void the_cosine_starts_at_the_top_and_ends_at_the_floor(void **state)
{
    (void)state;
    assert_true(tide_lr_schedule_at(&schedule, 10) == 1e-3);
    assert_true(fabs(tide_lr_schedule_at(&schedule, 55) - 0.5 * (1e-3 + 1e-4)) < 1e-12);
    assert_true(tide_lr_schedule_at(&schedule, 100) == 1e-4);
    for (uint64_t step = 11; step <= 100; step++)
        assert_true(tide_lr_schedule_at(&schedule, step) < tide_lr_schedule_at(&schedule, step - 1));
}

static void steps_beyond_the_run_stay_at_the_floor(void **state)
{
    (void)state;
    assert_true(tide_lr_schedule_at(&schedule, 101) == 1e-4);
    assert_true(tide_lr_schedule_at(&schedule, UINT64_MAX) == 1e-4);
}

static void short_runs_divide_by_nothing(void **state)
{
    (void)state;
    const tide_lr_schedule one = {.lr = 1, .lr_min = 0.5, .warmup_steps = 0, .steps = 1};
    const tide_lr_schedule two = {.lr = 1, .lr_min = 0.5, .warmup_steps = 1, .steps = 2};
    const tide_lr_schedule all_warm_up = {.lr = 1, .lr_min = 0.5, .warmup_steps = 4, .steps = 2};
    assert_true(tide_lr_schedule_at(&one, 0) == 0.5);
    assert_true(tide_lr_schedule_at(&two, 0) == 1);
    assert_true(tide_lr_schedule_at(&two, 1) == 0.5);
    assert_true(tide_lr_schedule_at(&all_warm_up, 1) == 0.5);
}

/* Rates whose arithmetic is not exact in binary: 6e-4, the program's default, over many lengths. */
static void both_ends_are_reached_to_the_last_bit(void **state)
{
    (void)state;
    for (uint64_t warmup = 0; warmup <= 1000; warmup++) {
        const tide_lr_schedule rounded = {
            .lr = 6e-4, .lr_min = 6e-5, .warmup_steps = warmup, .steps = warmup + 50};
        if (warmup > 0)
            assert_true(tide_lr_schedule_at(&rounded, warmup - 1) == 6e-4);
        assert_true(tide_lr_schedule_at(&rounded, warmup) == 6e-4);
        assert_true(tide_lr_schedule_at(&rounded, warmup + 49) == 6e-5);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(warm_up_rises_in_equal_steps_to_the_learning_rate),
        cmocka_unit_test(the_cosine_starts_at_the_top_and_ends_at_the_floor),
        cmocka_unit_test(steps_beyond_the_run_stay_at_the_floor),
        cmocka_unit_test(short_runs_divide_by_nothing),
        cmocka_unit_test(both_ends_are_reached_to_the_last_bit),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
