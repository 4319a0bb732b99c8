#include "src/checkpoint/lr_schedule.h"
#include "tests/support/assert_ok.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

static const tide_lr_schedule schedule = {.lr = 1e-3, .lr_min = 1e-4, .warmup_steps = 10, .steps = 101};

static void warm_up_rises_in_equal_steps_to_the_learning_rate(void **state)
{
    for (uint64_t step = 0; step < 10; step++)
        assert_true(fabs(tide_lr_schedule_at(&schedule, step) - 1e-4 * (double)(step + 1)) < 1e-18);
}

static void short_runs_divide_by_nothing(void **state)
{
    const tide_lr_schedule one = {.lr = 1, .lr_min = 0.5, .warmup_steps = 0, .steps = 1};
    const tide_lr_schedule two = {.lr = 1, .lr_min = 0.5, .warmup_steps = 1, .steps = 2};
    const tide_lr_schedule all_warm_up = {.lr = 1, .lr_min = 0.5, .warmup_steps = 4, .steps = 2};
    assert_true(tide_lr_schedule_at(&one, 0) == 0.5);
    assert_true(tide_lr_schedule_at(&two, 0) == 1);
    assert_true(tide_lr_schedule_at(&two, 1) == 0.5);
    assert_true(tide_lr_schedule_at(&all_warm_up, 1) == 0.5);
}

/* Uses 6e-4, the program's default, whose arithmetic is not exact in binary, with many lengths of warm-up. */
static void both_ends_are_reached_to_the_last_bit(void **state)
{
    for (uint64_t warmup = 0; warmup <= 1000; warmup++) {
        const tide_lr_schedule rounded = {
            .lr = 6e-4, .lr_min = 6e-5, .warmup_steps = warmup, .steps = warmup + 50};
        if (warmup > 0)
            assert_true(tide_lr_schedule_at(&rounded, warmup - 1) == 6e-4);
        assert_true(tide_lr_schedule_at(&rounded, warmup) == 6e-4);
        assert_true(tide_lr_schedule_at(&rounded, warmup + 49) == 6e-5);
        assert_true(tide_lr_schedule_at(&rounded, UINT64_MAX) == 6e-5);
    }
}

static tide_lr_schedule shaped(tide_lr_shape shape, uint64_t decay_steps)
{
    tide_lr_schedule made = schedule;
    made.shape = shape;
    made.decay_steps = decay_steps;
    return made;
}

/* The closed forms of PyTorch's schedulers and, for wsd, of transformers', over the steps that lr_schedule.h
 * names. `step` comes after warm-up. */
static double closed_form(const tide_lr_schedule *of, uint64_t step)
{
    const double warmup = (double)of->warmup_steps, steps = (double)of->steps, at = (double)step;
    const double most = steps - 1 - warmup, last = fmin(at - warmup, most), range = of->lr - of->lr_min;
    const double stable = steps - 1 - warmup - (double)of->decay_steps;
    switch (of->shape) {
    case TIDE_LR_COSINE: /* CosineAnnealingLR(T_max=most, eta_min=lr_min) */
        return of->lr_min + range * (1 + cos(acos(-1.0) * last / most)) / 2;
    case TIDE_LR_LINEAR: /* LinearLR(start_factor=1, end_factor=lr_min / lr, total_iters=most) */
        return of->lr * (1 + (of->lr_min / of->lr - 1) * last / most);
    case TIDE_LR_CONSTANT: /* ConstantLR(factor=1) */
        return of->lr;
    case TIDE_LR_WSD: /* get_wsd_schedule(num_decay_steps=decay_steps, decay_type="linear") */
        if (at < warmup + stable)
            return of->lr;
        return of->lr_min + range * fmax(0, 1 - (at - warmup - stable) / (double)of->decay_steps);
    }
    return NAN;
}

static void every_shape_is_what_its_name_means_to_pytorch(void **state)
{
    for (int shape = 0; shape < TIDE_LR_SHAPES; shape++)
        for (uint64_t warmup = 0; warmup <= 10; warmup += 5)
            for (uint64_t decay = 1; decay <= 90; decay++) {
                tide_lr_schedule of = shaped((tide_lr_shape)shape, decay);
                of.warmup_steps = warmup;
                for (uint64_t at = warmup; at <= 120; at++) {
                    const uint64_t step = at < 120 ? at : UINT64_MAX;
                    const double is = tide_lr_schedule_at(&of, step), right = closed_form(&of, step);
                    if (!(fabs(is - right) < 1e-15))
                        fail_msg("%s, warm-up %d, decay %d, step %d: %.17g, not %.17g",
                                 tide_lr_shape_name(of.shape), (int)warmup, (int)decay, (int)at, is, right);
                }
            }
}

static void all_shapes_warm_up_in_the_same_steps(void **state)
{
    for (int shape = 0; shape < TIDE_LR_SHAPES; shape++) {
        const tide_lr_schedule of = shaped((tide_lr_shape)shape, 20);
        for (uint64_t step = 0; step < 10; step++)
            assert_true(tide_lr_schedule_at(&of, step) == tide_lr_schedule_at(&schedule, step));
    }
}

static void a_decay_may_take_all_that_warm_up_leaves(void **state)
{
    const tide_lr_schedule whole = {
        .shape = TIDE_LR_WSD, .lr = 1, .lr_min = 0, .warmup_steps = 0, .decay_steps = 4, .steps = 4};
    const tide_lr_schedule none = {
        .shape = TIDE_LR_WSD, .lr = 1, .lr_min = 0.5, .warmup_steps = 4, .decay_steps = 0, .steps = 2};
    for (uint64_t step = 0; step < 4; step++)
        assert_true(tide_lr_schedule_at(&whole, step) == 0.75 - 0.25 * (double)step);
    assert_true(tide_lr_schedule_at(&none, 1) == 0.5); /* warm-up never ends in so few steps */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(warm_up_rises_in_equal_steps_to_the_learning_rate),
        cmocka_unit_test(short_runs_divide_by_nothing),
        cmocka_unit_test(both_ends_are_reached_to_the_last_bit),
        cmocka_unit_test(every_shape_is_what_its_name_means_to_pytorch),
        cmocka_unit_test(all_shapes_warm_up_in_the_same_steps),
        cmocka_unit_test(a_decay_may_take_all_that_warm_up_leaves),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
