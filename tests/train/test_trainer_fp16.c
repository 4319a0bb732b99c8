/* Training in fp16: the loss scale adapts, it is saved and resumed to the last bit, and when it can't become
 * smaller, repeated skips end the run.
 *
 * The tests make a step overflow by an infinity in the last norm's weights, which works with any loss scale.
 */
#include "src/pool/inspect.h"
#include "tests/support/small_model.h"
#include "tests/support/test_trainer_fixture.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { STEPS = 6, BATCH_TOKENS = 128 };

static tide_trainer_options fp16_options(double clip)
{
    tide_trainer_options options = small_options(text, TIDE_DTYPE_FP16);
    options.hyper.clip = clip;
    options.global_batch_tokens = BATCH_TOKENS;
    options.micro_batch_sequences = 1;
    return options;
}

static float last_norm(tide_trainer *trainer, bool set, float value)
{
    tide_param param;
    assert_true(tide_description_find_param(tide_pool_packing(tide_trainer_pool(trainer))->description,
                                            family_word("ln_f.bias", "model.norm.weight"), &param));
    if (set)
        ok(tide_param_set(tide_trainer_pool(trainer), param, TIDE_VALUE_MASTER, 3, 1, &value));
    else
        ok(tide_param_get(tide_trainer_pool(trainer), param, TIDE_VALUE_MASTER, 3, 1, &value));
    return value;
}

static tide_trainer_report overflow(tide_trainer *trainer)
{
    tide_trainer_report report;
    const float before = last_norm(trainer, false, 0);
    (void)last_norm(trainer, true, INFINITY);
    ok(tide_trainer_step(trainer, &report));
    (void)last_norm(trainer, true, before);
    assert_true(report.skipped);
    return report;
}

static tide_trainer_report good_step(tide_trainer *trainer)
{
    tide_trainer_report report;
    ok(tide_trainer_step(trainer, &report));
    assert_false(report.skipped);
    return report;
}

static void an_overflow_halves_the_loss_scale_and_moves_no_weight(void **state)
{
    for (int clipped = 0; clipped < 2; clipped++) {
        const tide_trainer_options options = fp16_options(clipped);
        tide_trainer *trainer = trainer_open(&options);
        track before = {0}, after = {0};
        assert_true(good_step(trainer).loss_scale == 65536);
        track_values(trainer, &before);
        const tide_trainer_report skipped = overflow(trainer);
        assert_true(skipped.loss_scale == 65536 && !isfinite(skipped.gradient_norm));
        track_values(trainer, &after);
        assert_memory_equal(before.values, after.values, 4 * before.elements * sizeof *before.values);
        assert_int_equal(tide_trainer_state(trainer)->skipped, 1);
        assert_int_equal(tide_trainer_state(trainer)->adam_step, 1);
        const tide_trainer_report next = good_step(trainer);
        assert_true(next.loss_scale == 32768 && next.gradient_norm < 100);
        track_free(&before);
        track_free(&after);
        tide_trainer_destroy(trainer);
    }
}

/* A loss scale that is far too large for this model: steps are skipped until it fits. */
static void a_loss_scale_that_is_too_large_falls_until_it_fits(void **state)
{
    const tide_trainer_options first = fp16_options(0);
    tide_trainer_options options = first;
    options.hyper.loss_scale_fixed = 16777216;
    tide_trainer *trainer = trainer_open(&options);
    char path[96];
    snprintf(path, sizeof path, "%s/too-large", folder);
    tide_trainer_report report;
    ok(tide_trainer_step(trainer, &report));
    assert_true(report.skipped && report.loss_scale == 16777216 && isfinite(report.loss));
    ok(tide_trainer_save(trainer, path, 0, NULL));
    tide_trainer_destroy(trainer);

    options = first; /* the loss scale is dynamic from here on */
    options.resume_dir = path;
    trainer = trainer_open(&options);
    assert_int_equal(tide_trainer_resumed_get(trainer)->changes.count, 1);
    assert_non_null(strstr(tide_trainer_resumed_get(trainer)->changes.lines[0], "loss_scale_fixed"));
    double scale = 16777216;
    do {
        ok(tide_trainer_step(trainer, &report));
        assert_true(report.loss_scale == scale);
        scale /= 2;
    } while (report.skipped && tide_trainer_state(trainer)->step < options.hyper.schedule.steps);
    assert_false(report.skipped);
    assert_true(report.loss_scale >= 1024 && report.loss_scale <= 1048576);
    tide_trainer_destroy(trainer);

    options.hyper.loss_scale_fixed = 256; /* fixed, whatever the checkpoint has */
    trainer = trainer_open(&options);
    assert_true(tide_trainer_state(trainer)->loss_scale == 256);
    tide_trainer_destroy(trainer);
}

static void a_run_whose_loss_scale_can_fall_no_more_ends_after_ten_skips(void **state)
{
    const tide_trainer_options options = fp16_options(1);
    tide_trainer *trainer = trainer_open(&options);
    (void)last_norm(trainer, true, INFINITY);
    for (int step = 0; step < 16 + 9; step++) { /* 65536 down to 2, then nine steps at 1 */
        tide_trainer_report report;
        ok(tide_trainer_step(trainer, &report));
        assert_true(report.loss_scale == (step < 16 ? ldexp(1, 16 - step) : 1));
        assert_int_equal(report.skipped_in_row, step < 16 ? 1 : step - 15);
    }
    assert_int_equal(tide_trainer_step(trainer, NULL), TIDE_ERROR_NONFINITE);
    tide_trainer_destroy(trainer);
}

static void a_fixed_loss_scale_stays_and_ten_skips_end_the_run(void **state)
{
    tide_trainer_options options = fp16_options(1);
    options.hyper.loss_scale_fixed = 512;
    tide_trainer *trainer = trainer_open(&options);
    assert_true(good_step(trainer).loss_scale == 512);
    assert_true(overflow(trainer).loss_scale == 512);
    assert_true(good_step(trainer).loss_scale == 512);
    (void)last_norm(trainer, true, INFINITY);
    for (int step = 1; step < 10; step++)
        ok(tide_trainer_step(trainer, NULL));
    assert_int_equal(tide_trainer_step(trainer, NULL), TIDE_ERROR_NONFINITE);
    tide_trainer_destroy(trainer);
}

/* Run some steps of which the second is skipped and the third is not, so that a resume could lose a loss
 * scale and a count. With `stop` 3 the run is saved and resumed after step 3. Returns the state at the
 * end. */
static tide_train_state run(const tide_trainer_options *options, uint64_t stop, track *made)
{
    tide_trainer *trainer = trainer_open(options);
    char path[96];
    snprintf(path, sizeof path, "%s/stop-%llu", folder, (unsigned long long)stop);
    *made = (track){0};
    track_steps(trainer, 1, made);
    made->losses[1] = made->norms[1] = 0; /* not finite, so not compared */
    (void)overflow(trainer);
    track_steps(trainer, 3, made);
    if (stop == 3) {
        ok(tide_trainer_save(trainer, path, 0, NULL));
        tide_trainer_destroy(trainer);
        tide_trainer_options resumed = *options;
        resumed.resume_dir = path;
        trainer = trainer_open(&resumed);
        assert_true(tide_trainer_resumed_get(trainer)->resumed);
        assert_int_equal(tide_trainer_resumed_get(trainer)->changes.count, 0);
    }
    assert_true(tide_trainer_state(trainer)->loss_scale == 32768);
    assert_int_equal(tide_trainer_state(trainer)->loss_scale_good_steps, 1);
    track_steps(trainer, STEPS, made);
    track_values(trainer, made);
    const tide_train_state at_end = *tide_trainer_state(trainer);
    tide_trainer_destroy(trainer);
    return at_end;
}

static void a_resumed_run_goes_on_with_its_loss_scale_to_the_same_bits(void **state)
{
    const tide_trainer_options options = fp16_options(0.5);
    track truth, resumed;
    const tide_train_state straight = run(&options, 0, &truth), in_two = run(&options, 3, &resumed);
    track_compare(&truth, &resumed, "resumed");
    assert_true(straight.loss_scale == in_two.loss_scale);
    assert_int_equal(straight.loss_scale_good_steps, in_two.loss_scale_good_steps);
    assert_int_equal(straight.skipped, in_two.skipped);
    track_free(&truth);
    track_free(&resumed);
}

/* Loss scales 1024 and 8192 give the same gradients unless some under- or overflow. A gradient that
 * underflows in one run hardly changes the norm, but Adam divides each gradient by its own size, so from the
 * second step on the runs differ. Measured: norms differ by 5e-7, 1.5e-4 and 2.7e-4, losses by 0, 4e-6 and
 * 3.5e-4. */
static void a_run_hardly_depends_on_its_loss_scale(void **state)
{
    double losses[2][3], norms[2][3];
    for (int i = 0; i < 2; i++) {
        tide_trainer_options options = fp16_options(1);
        options.hyper.loss_scale_fixed = i == 0 ? 1024 : 8192;
        tide_trainer *trainer = trainer_open(&options);
        for (int step = 0; step < 3; step++) {
            const tide_trainer_report report = good_step(trainer);
            losses[i][step] = report.loss;
            norms[i][step] = report.gradient_norm;
        }
        tide_trainer_destroy(trainer);
    }
    assert_true(losses[0][0] == losses[1][0]);
    assert_true(fabs(norms[0][0] / norms[1][0] - 1) < 1e-5);
    for (int step = 1; step < 3; step++) {
        assert_true(fabs(losses[0][step] - losses[1][step]) < 2e-3);
        assert_true(fabs(norms[0][step] / norms[1][step] - 1) < 2e-3);
    }
}

static void loss_scales_that_make_no_sense_are_refused(void **state)
{
    const double wrong[] = {-1, 0.5, 3, 33554432, (double)NAN};
    tide_trainer *trainer = NULL;
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        tide_trainer_options options = fp16_options(1);
        options.hyper.loss_scale_fixed = wrong[i];
        assert_int_equal(tide_trainer_create(&options, &trainer), TIDE_ERROR_ARGUMENT);
        assert_non_null(strstr(tide_message(), "loss scale"));
    }
    tide_trainer_options options = small_options(text, TIDE_DTYPE_BF16);
    options.hyper.loss_scale_fixed = 1024;
    assert_int_equal(tide_trainer_create(&options, &trainer), TIDE_ERROR_ARGUMENT);
    assert_non_null(strstr(tide_message(), "only fp16"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_overflow_halves_the_loss_scale_and_moves_no_weight),
        cmocka_unit_test(a_loss_scale_that_is_too_large_falls_until_it_fits),
        cmocka_unit_test(a_run_whose_loss_scale_can_fall_no_more_ends_after_ten_skips),
        cmocka_unit_test(a_fixed_loss_scale_stays_and_ten_skips_end_the_run),
        cmocka_unit_test(a_resumed_run_goes_on_with_its_loss_scale_to_the_same_bits),
        cmocka_unit_test(a_run_hardly_depends_on_its_loss_scale),
        cmocka_unit_test(loss_scales_that_make_no_sense_are_refused),
    };
    return cmocka_run_group_tests_name("trainer fp16", tests, fixture_set_up, fixture_tear_down);
}
