/* Checkpoints of the trainer: a save copies the optimizer's state out once, a resume names changed
 * hyperparameters and refuses another model, seed or batch. test_trainer_matrix.c checks that a resumed run
 * goes on to the same bits. */
#include "tests/support/test_trainer_fixture.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include <cmocka.h>

static tide_pool_counters counters_of(tide_trainer *trainer)
{
    tide_pool_counters counters;
    ok(tide_pool_counters_get(tide_trainer_pool(trainer), &counters));
    return counters;
}

static void save_folder(char path[96])
{
    static int number;
    snprintf(path, 96, "%s/save-%d", folder, number++);
    assert_int_equal(mkdir(path, 0777), 0);
}

static void save_after_one_step(const tide_trainer_options *options, const char *path)
{
    tide_trainer *trainer = trainer_open(options);
    ok(tide_trainer_step(trainer, NULL));
    ok(tide_trainer_save(trainer, path, 0, NULL));
    tide_trainer_destroy(trainer);
}

/* Here most of the optimizer's state is on the device, and the host has no slots that could hold a copy of
 * it. */
static void a_save_sweeps_the_optimizers_state_once(void **state)
{
    tide_trainer_options options = small_options(text, TIDE_DTYPE_BF16);
    options.recompute = TIDE_RECOMPUTE_NONE;
    options.pool.chunk_bytes = 1024 * 1024;
    options.pool.placement = TIDE_PLACEMENT_DEVICE;
    char path[96];
    save_folder(path);
    options.model.layers = 12;
    tide_trainer *trainer = trainer_open(&options);
    options.pool.device_memory_bytes = tide_trainer_plan_get(trainer)->pool.full_device_bytes;
    tide_trainer_destroy(trainer);
    options.pool.host_memory_bytes = 0;
    trainer = trainer_open(&options);
    options.pool.host_memory_bytes = tide_trainer_plan_get(trainer)->pool.least_host_bytes;
    tide_trainer_destroy(trainer);
    trainer = trainer_open(&options);
    ok(tide_trainer_step(trainer, NULL));
    ok(tide_pool_drain(tide_trainer_pool(trainer)));
    const tide_pool_plan *plan = &tide_trainer_plan_get(trainer)->pool;
    const uint64_t before = counters_of(trainer).d2h_bytes;
    ok(tide_trainer_save(trainer, path, 0, NULL));
    const uint64_t moved = counters_of(trainer).d2h_bytes - before;
    assert_true(plan->chunks[TIDE_SPACE_STATE] >= 12 && plan->host_slots <= 4);
    assert_in_range(moved, plan->space_bytes[TIDE_SPACE_STATE] / 2,
                    plan->space_bytes[TIDE_SPACE_STATE] + 2 * plan->chunk_bytes);
    tide_trainer_destroy(trainer);
}

static void hyperparameters_may_change_at_a_resume_and_are_named(void **state)
{
    char path[96];
    save_folder(path);
    tide_trainer_options options = small_options(text, TIDE_DTYPE_BF16);
    save_after_one_step(&options, path);
    options.resume_dir = path;
    options.hyper.schedule.lr = 1e-4;
    options.hyper.clip = 2;
    options.hyper.schedule.steps = 50;
    tide_trainer *trainer = trainer_open(&options);
    const tide_trainer_resumed *resumed = tide_trainer_resumed_get(trainer);
    assert_int_equal(resumed->changes.count, 4); /* lr, lr_min, clip and steps */
    tide_trainer_report report;
    ok(tide_trainer_step(trainer, &report));
    assert_true(report.lr == 1e-4); /* the second of two warm-up steps */
    assert_int_equal(report.step, 2);
    tide_trainer_destroy(trainer);
}

static void check_mismatch(const tide_trainer_options *options, const char *words)
{
    tide_trainer *trainer = NULL;
    assert_int_equal(tide_trainer_create(options, &trainer), TIDE_ERROR_MISMATCH);
    if (!strstr(tide_message(), words))
        fail_msg("\"%s\" does not say \"%s\"", tide_message(), words);
}

static void another_model_seed_or_batch_is_refused_at_a_resume(void **state)
{
    char path[96];
    save_folder(path);
    tide_trainer_options options = small_options(text, TIDE_DTYPE_BF16);
    options.sum_groups = 4;
    save_after_one_step(&options, path);
    options.sum_groups = 0;
    options.resume_dir = path;
    const tide_trainer_options right = options;
    options.seed = 9;
    check_mismatch(&options, "seed");
    options = right;
    options.global_batch_tokens = 512;
    check_mismatch(&options, "batch");
    options = right;
    options.micro_batch_sequences = 4;
    check_mismatch(&options, "micro");
    options = right;
    options.model.layers = 5;
    check_mismatch(&options, "layers");
}

/* Steps 1 and 2 without an interruption, and step 2 after a resume that names no sums. */
static void sums_go_on_as_in_the_checkpoint(void **state)
{
    char path[96];
    save_folder(path);
    tide_trainer_options options = small_options(text, TIDE_DTYPE_BF16);
    track whole = {0}, resumed = {0};
    options.sum_groups = 4;
    options.reduce = TIDE_REDUCE_BF16;
    tide_trainer *trainer = trainer_open(&options);
    track_steps(trainer, 1, &whole);
    ok(tide_trainer_save(trainer, path, 0, NULL));
    track_steps(trainer, 2, &whole);
    track_values(trainer, &whole);
    tide_trainer_destroy(trainer);
    options.sum_groups = 0;
    options.reduce = TIDE_REDUCE_AUTO;
    options.resume_dir = path;
    trainer = trainer_open(&options);
    assert_int_equal(tide_trainer_resumed_get(trainer)->changes.count, 0);
    assert_int_equal(tide_trainer_plan_get(trainer)->sum_groups, 4);
    assert_int_equal(tide_trainer_plan_get(trainer)->reduce_dtype, TIDE_DTYPE_BF16);
    resumed.losses[0] = whole.losses[0];
    resumed.norms[0] = whole.norms[0];
    track_steps(trainer, 2, &resumed);
    track_values(trainer, &resumed);
    track_compare(&whole, &resumed, "resumed");
    tide_trainer_destroy(trainer);
    track_free(&whole);
    track_free(&resumed);
}

static void other_sums_may_be_given_at_a_resume_and_are_named(void **state)
{
    char path[96];
    save_folder(path);
    tide_trainer_options options = small_options(text, TIDE_DTYPE_BF16);
    options.sum_groups = 2;
    save_after_one_step(&options, path);
    options.sum_groups = 1;
    options.resume_dir = path;
    tide_trainer *trainer = trainer_open(&options);
    const tide_train_changes *changes = &tide_trainer_resumed_get(trainer)->changes;
    assert_int_equal(tide_trainer_plan_get(trainer)->sum_groups, 1);
    assert_int_equal(changes->count, 1);
    assert_string_equal(changes->lines[0], "sum_groups 2 -> 1: gradients are summed otherwise from here on");
    tide_trainer_destroy(trainer);
}

static void the_default_micro_batch_leaves_one_for_each_sum_group(void **state)
{
    tide_trainer_options options = small_options(text, TIDE_DTYPE_BF16);
    options.micro_batch_sequences = 0;
    for (uint32_t groups = 1; groups <= 8; groups *= 2) {
        options.sum_groups = groups;
        tide_trainer *trainer = trainer_open(&options);
        assert_int_equal(tide_trainer_plan_get(trainer)->micro_batches, groups);
        tide_trainer_destroy(trainer);
    }
}

static void sum_groups_that_do_not_divide_the_micro_batches_are_refused(void **state)
{
    tide_trainer_options options = small_options(text, TIDE_DTYPE_BF16);
    tide_trainer *trainer = NULL;
    options.sum_groups = 3;
    assert_int_equal(tide_trainer_create(&options, &trainer), TIDE_ERROR_ARGUMENT);
    assert_string_equal(
        tide_message(),
        "3 sum groups: the batch's 4 micro-batches of 2 sequences do not divide into so many; 2 would do");
    options.sum_groups = 5;
    assert_int_equal(tide_trainer_create(&options, &trainer), TIDE_ERROR_ARGUMENT);
    assert_non_null(strstr(tide_message(), "; 4 would do"));
}

static void a_folder_without_a_checkpoint_starts_anew(void **state)
{
    char path[96];
    save_folder(path);
    tide_trainer_options options = small_options(text, TIDE_DTYPE_BF16);
    options.resume_dir = path;
    tide_trainer *trainer = trainer_open(&options);
    assert_false(tide_trainer_resumed_get(trainer)->resumed);
    assert_int_equal(tide_trainer_state(trainer)->step, 0);
    tide_trainer_destroy(trainer);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_save_sweeps_the_optimizers_state_once),
        cmocka_unit_test(hyperparameters_may_change_at_a_resume_and_are_named),
        cmocka_unit_test(another_model_seed_or_batch_is_refused_at_a_resume),
        cmocka_unit_test(sums_go_on_as_in_the_checkpoint),
        cmocka_unit_test(other_sums_may_be_given_at_a_resume_and_are_named),
        cmocka_unit_test(the_default_micro_batch_leaves_one_for_each_sum_group),
        cmocka_unit_test(sum_groups_that_do_not_divide_the_micro_batches_are_refused),
        cmocka_unit_test(a_folder_without_a_checkpoint_starts_anew),
    };
    return cmocka_run_group_tests(tests, fixture_set_up, fixture_tear_down);
}
