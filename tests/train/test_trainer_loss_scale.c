#include "src/checkpoint/loss_scale.h"
#include "tests/support/assert_ok.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

static const tide_loss_scale first = {.scale = TIDE_LOSS_SCALE_FIRST};

static tide_loss_scale after_good_steps(tide_loss_scale scale, uint64_t steps)
{
    for (uint64_t i = 0; i < steps; i++)
        scale = tide_loss_scale_after(scale, false);
    return scale;
}

static void it_begins_as_pytorchs_scaler_does(void **state)
{
    assert_true(first.scale == 65536 && first.good_steps == 0);
    assert_int_equal(TIDE_LOSS_SCALE_GROWTH_STEPS, 2000);
}

static void an_overflow_halves_it(void **state)
{
    const tide_loss_scale once = tide_loss_scale_after(first, true),
                          twice = tide_loss_scale_after(once, true);
    assert_true(once.scale == 32768 && twice.scale == 16384);
}

static void two_thousand_good_steps_double_it(void **state)
{
    assert_true(after_good_steps(first, 1999).scale == 65536);
    assert_true(after_good_steps(first, 2000).scale == 131072);
    assert_true(after_good_steps(first, 3999).scale == 131072);
    assert_true(after_good_steps(first, 4000).scale == 262144);
}

static void an_overflow_begins_the_count_anew(void **state)
{
    const tide_loss_scale skipped = tide_loss_scale_after(after_good_steps(first, 1999), true);
    assert_true(after_good_steps(skipped, 1999).scale == 32768);
    assert_true(after_good_steps(skipped, 2000).scale == 65536);
}

static void it_stays_within_its_bounds(void **state)
{
    tide_loss_scale low = first;
    for (int i = 0; i < 40; i++)
        low = tide_loss_scale_after(low, true);
    assert_true(low.scale == 1);
    assert_true(after_good_steps(low, 2000).scale == 2);
    assert_true(after_good_steps(first, 12 * 2000).scale == 16777216);
}

static void only_powers_of_two_within_the_bounds_are_valid(void **state)
{
    const double wrong[] = {0, -1, 0.5, 3, 65535, 33554432, (double)INFINITY, (double)NAN};
    for (double scale = 1; scale <= 16777216; scale *= 2)
        assert_true(tide_loss_scale_is_valid(scale));
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++)
        assert_false(tide_loss_scale_is_valid(wrong[i]));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(it_begins_as_pytorchs_scaler_does),
        cmocka_unit_test(an_overflow_halves_it),
        cmocka_unit_test(two_thousand_good_steps_double_it),
        cmocka_unit_test(an_overflow_begins_the_count_anew),
        cmocka_unit_test(it_stays_within_its_bounds),
        cmocka_unit_test(only_powers_of_two_within_the_bounds_are_valid),
    };
    return cmocka_run_group_tests_name("loss scale", tests, NULL, NULL);
}
