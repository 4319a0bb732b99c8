/* Where data lies never changes a bit of any result. Loss, norm, weights and optimizer state of a small
 * model must be equal in all bits for all budgets, chunk sizes, placements, with and without prefetch and
 * recompute, wherever the run was saved and resumed, and whether or not it was evaluated and sampled in
 * between.
 *
 * Every run uses the hazard checker and the guard, must stay within its budgets (by the device's own
 * high-water marks) and must allocate nothing after its second step. The rows of `variants` are a pairwise
 * selection: any two values of two columns occur together in some row. tools/campaign.sh runs all
 * combinations.
 */
#include "tests/support/test_thin.h"
#include "tests/support/test_trainer_fixture.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include <cmocka.h>

/* Step 1 is recorded, step 2 is the first with a plan, and step 3 the first after a planned step. Runs are
 * saved after STEPS / 2 steps. A batch has 4 sequences of 32 tokens in 4 micro-batches. */
enum { STEPS = 4, BATCH_TOKENS = 128 };

#define AUTO_PLACED TIDE_PLACEMENT_AUTO
#define ON_HOST     TIDE_PLACEMENT_HOST
#define ON_DEVICE   TIDE_PLACEMENT_DEVICE

static const variant variants[] = {
    {ALL, 256, false, TIDE_RECOMPUTE_ALL, ON_HOST, 0},
    {ALL, 1024, true, TIDE_RECOMPUTE_ALL, ON_DEVICE, 0},
    {ALL, 4096, true, TIDE_RECOMPUTE_NONE, ON_HOST, 0},
    {ALL, 4096, false, TIDE_RECOMPUTE_AUTO, AUTO_PLACED, 0},
    {LEAST, 256, true, TIDE_RECOMPUTE_ALL, ON_DEVICE, 5},
    {LEAST, 4096, true, TIDE_RECOMPUTE_AUTO, AUTO_PLACED, 0},
    {LEAST, 1024, false, TIDE_RECOMPUTE_NONE, ON_HOST, 0},
    {LEAST, 256, false, TIDE_RECOMPUTE_NONE, AUTO_PLACED, 0},
    {HALF, 256, false, TIDE_RECOMPUTE_AUTO, ON_DEVICE, 0},
    {HALF, 512, true, TIDE_RECOMPUTE_ALL, AUTO_PLACED, 6},
    {HALF, 256, true, TIDE_RECOMPUTE_NONE, ON_HOST, 0},
    {HALF, 1024, true, TIDE_RECOMPUTE_AUTO, ON_HOST, 0},
    {QUARTER, 256, true, TIDE_RECOMPUTE_AUTO, ON_HOST, 7},
    {QUARTER, 256, false, TIDE_RECOMPUTE_ALL, AUTO_PLACED, 0},
    {QUARTER, 256, true, TIDE_RECOMPUTE_NONE, ON_DEVICE, 0},
};

enum { VARIANTS = sizeof variants / sizeof variants[0] };

static tide_trainer_options variant_options(const variant *v, tide_dtype dtype, double clip)
{
    tide_trainer_options options = small_options(text, dtype);
    options.clip = clip;
    options.batch_tokens = BATCH_TOKENS;
    options.micro_batch_sequences = 1;
    variant_apply(v, &options);
    return options;
}

/* --- runs --- */

static tide_pool_counters counters_of(tide_trainer *trainer)
{
    tide_pool_counters counters;
    ok(tide_pool_counters_get(tide_trainer_pool(trainer), &counters));
    return counters;
}

static uint64_t allocations(tide_trainer *trainer)
{
    const tide_pool_counters counters = counters_of(trainer);
    return counters.device_allocations + counters.host_allocations;
}

static void run(const tide_trainer_options *options, const char *what, track *made)
{
    tide_trainer *trainer;
    ok(tide_trainer_create(options, &trainer));
    *made = (track){0};
    track_steps(trainer, 2, made);
    const uint64_t at_two = allocations(trainer);
    track_steps(trainer, STEPS, made);
    ok(tide_pool_drain(tide_trainer_pool(trainer)));
    if (allocations(trainer) != at_two)
        fail_msg("%s: allocations after the second step", what);
    track_values(trainer, made);
    check_budgets(trainer, what);
    tide_trainer_destroy(trainer);
}

static void run_variant(const variant *v, tide_dtype dtype, double clip, track *made)
{
    char what[160];
    variant_describe(v, what);
    const tide_trainer_options options = variant_options(v, dtype, clip);
    run(&options, what, made);
}

/* Compare one in `thin` of the variants, from `first` on. With `thin` 2, the two calls with `first` 0 and 1
 * cover all variants, and each half has the least budget with and without prefetch. */
static void compare_some_variants(tide_dtype dtype, double clip, unsigned first, unsigned thin)
{
    const variant base = {ALL, 256, true, TIDE_RECOMPUTE_NONE, TIDE_PLACEMENT_AUTO, 0};
    track truth;
    run_variant(&base, dtype, clip, &truth);
    for (size_t i = first % thin; i < VARIANTS; i += thin) {
        char what[160];
        track other;
        variant_describe(&variants[i], what);
        run_variant(&variants[i], dtype, clip, &other);
        track_compare(&truth, &other, what);
        track_free(&other);
    }
    track_free(&truth);
}

static void compare_variants(tide_dtype dtype, double clip, unsigned first)
{
    compare_some_variants(dtype, clip, first, test_every(2, 2));
}

static void no_variant_changes_a_bit_with_clipping(void **state)
{
    (void)state;
    compare_variants(TIDE_DTYPE_BF16, 0.5, 0);
}

static void no_variant_changes_a_bit_without_clipping(void **state)
{
    (void)state;
    compare_variants(TIDE_DTYPE_BF16, 0, 1);
}

static void no_variant_changes_a_bit_in_fp32(void **state)
{
    (void)state;
    compare_variants(TIDE_DTYPE_FP32, 0.5, 1);
}

/* With fp16 updates wait even without clipping, and at loss scale 65536 some step overflows. A third of the
 * rows (a ninth under a sanitizer) has each budget and each placement. */
static void no_variant_changes_a_bit_in_fp16(void **state)
{
    (void)state;
    compare_some_variants(TIDE_DTYPE_FP16, 0, 1, test_thin(2) == 1 ? 3 : 9);
}

/* Checks the comparison itself: it must notice a different seed. */
static void another_seed_gives_other_bits(void **state)
{
    (void)state;
    const variant base = {ALL, 256, true, TIDE_RECOMPUTE_NONE, TIDE_PLACEMENT_AUTO, 0};
    tide_trainer_options options = variant_options(&base, TIDE_DTYPE_BF16, 0.5);
    track one, other;
    run(&options, "seed 1", &one);
    options.seed = 2;
    run(&options, "seed 2", &other);
    assert_memory_not_equal(one.losses, other.losses, STEPS * sizeof one.losses[0]);
    assert_memory_not_equal(one.values, other.values, one.elements * sizeof one.values[0]);
    track_free(&one);
    track_free(&other);
}

/* Random delays in the streams make commands overtake each other wherever they can. One of the runs also has
 * a link as slow as PCIe. */
static void adversarial_delays_change_no_bit(void **state)
{
    (void)state;
    const variant tight = {LEAST, 256, true, TIDE_RECOMPUTE_ALL, TIDE_PLACEMENT_AUTO, 0};
    const variant half = {HALF, 256, true, TIDE_RECOMPUTE_NONE, TIDE_PLACEMENT_HOST, 0};
    track truth;
    run_variant(&tight, TIDE_DTYPE_BF16, 0.5, &truth);
    for (uint64_t seed = 1; seed <= 4; seed++) {
        track other;
        tide_trainer_options options = variant_options(seed % 2 ? &tight : &half, TIDE_DTYPE_BF16, 0.5);
        options.pool.checks.delay_seed = seed;
        options.pool.checks.delay_max_us = 100;
        options.pool.link_bytes_per_second = seed == 4 ? 2e9 : 0;
        run(&options, "delays", &other);
        track_compare(&truth, &other, "delays");
        track_free(&other);
    }
    track_free(&truth);
}

static void evaluation_and_sampling_in_between_change_no_bit(void **state)
{
    (void)state;
    const variant tight = {QUARTER, 256, true, TIDE_RECOMPUTE_AUTO, TIDE_PLACEMENT_AUTO, 0};
    const tide_trainer_options options = variant_options(&tight, TIDE_DTYPE_BF16, 0.5);
    track truth, other = {0};
    run(&options, "straight", &truth);
    tide_trainer *trainer;
    ok(tide_trainer_create(&options, &trainer));
    for (uint64_t step = 1; step <= STEPS; step++) {
        double loss;
        char *sampled;
        tide_sample_options sample;
        tide_sample_options_default(&sample);
        sample.tokens = 3;
        ok(tide_trainer_evaluate(trainer, &loss));
        track_steps(trainer, step, &other);
        ok(tide_trainer_sample(trainer, &sample, &sampled));
        free(sampled);
    }
    track_values(trainer, &other);
    check_budgets(trainer, "evaluated and sampled");
    track_compare(&truth, &other, "evaluated and sampled");
    tide_trainer_destroy(trainer);
    track_free(&truth);
    track_free(&other);
}

/* --- save and resume --- */

static void save_folder(char path[96])
{
    static int number;
    snprintf(path, 96, "%s/save-%d", folder, number++);
    assert_int_equal(mkdir(path, 0777), 0);
}

/* Run the first half of the steps under one variant and, after a save and resume, the rest under another. */
static void run_in_two(const variant *first, const variant *second, double clip, track *made)
{
    char path[96];
    save_folder(path);
    tide_trainer_options options = variant_options(first, TIDE_DTYPE_BF16, clip);
    tide_trainer *trainer;
    ok(tide_trainer_create(&options, &trainer));
    *made = (track){0};
    track_steps(trainer, STEPS / 2, made);
    ok(tide_trainer_save(trainer, path, 0, NULL));
    tide_trainer_destroy(trainer);

    options = variant_options(second, TIDE_DTYPE_BF16, clip);
    options.resume_dir = path;
    ok(tide_trainer_create(&options, &trainer));
    const tide_trainer_resumed *resumed = tide_trainer_resumed_get(trainer);
    assert_true(resumed->resumed);
    assert_int_equal(resumed->from.step, STEPS / 2);
    assert_int_equal(resumed->changes.count, 0);
    track_steps(trainer, STEPS, made);
    track_values(trainer, made);
    assert_int_equal(tide_trainer_state(trainer)->tokens, STEPS * BATCH_TOKENS);
    tide_trainer_destroy(trainer);
}

static void a_run_resumed_elsewhere_goes_on_to_the_same_bits(void **state)
{
    (void)state;
    const variant base = {ALL, 256, true, TIDE_RECOMPUTE_NONE, TIDE_PLACEMENT_AUTO, 0};
    const variant tight = {LEAST, 256, true, TIDE_RECOMPUTE_ALL, TIDE_PLACEMENT_HOST, 0};
    const variant large = {ALL, 1024, false, TIDE_RECOMPUTE_AUTO, TIDE_PLACEMENT_DEVICE, 0};
    for (int clipped = 0; clipped < 2; clipped++) {
        track truth, there, back;
        run_variant(&base, TIDE_DTYPE_BF16, clipped, &truth);
        run_in_two(&tight, &large, clipped, &there);
        run_in_two(&large, &tight, clipped, &back);
        track_compare(&truth, &there, "resumed with larger budget and chunks");
        track_compare(&truth, &back, "resumed with smaller budget and chunks");
        track_free(&truth);
        track_free(&there);
        track_free(&back);
    }
}

static void save_after_one_step(const tide_trainer_options *options, const char *path)
{
    tide_trainer *trainer;
    ok(tide_trainer_create(options, &trainer));
    ok(tide_trainer_step(trainer, NULL));
    ok(tide_trainer_save(trainer, path, 0, NULL));
    tide_trainer_destroy(trainer);
}

/* Here most of the optimizer's state is on the device, and the host has no slots that could hold a copy of
 * it. */
static void a_save_sweeps_the_optimizers_state_once(void **state)
{
    (void)state;
    const variant on_device = {ALL, 1024, true, TIDE_RECOMPUTE_NONE, TIDE_PLACEMENT_DEVICE, 0};
    tide_trainer_options options = variant_options(&on_device, TIDE_DTYPE_BF16, 1.0);
    char path[96];
    save_folder(path);
    options.model.layers = 12;
    tide_trainer *trainer;
    ok(tide_trainer_create(&options, &trainer));
    options.pool.device_memory_bytes = tide_trainer_plan_get(trainer)->pool.full_device_bytes;
    tide_trainer_destroy(trainer);
    options.pool.host_memory_bytes = 0;
    ok(tide_trainer_create(&options, &trainer));
    options.pool.host_memory_bytes = tide_trainer_plan_get(trainer)->pool.least_host_bytes;
    tide_trainer_destroy(trainer);
    ok(tide_trainer_create(&options, &trainer));
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
    (void)state;
    char path[96];
    save_folder(path);
    tide_trainer_options options = small_options(text, TIDE_DTYPE_BF16);
    save_after_one_step(&options, path);
    options.resume_dir = path;
    options.lr = 1e-4;
    options.clip = 2;
    options.steps = 50;
    tide_trainer *trainer;
    ok(tide_trainer_create(&options, &trainer));
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
    (void)state;
    char path[96];
    save_folder(path);
    tide_trainer_options options = small_options(text, TIDE_DTYPE_BF16);
    save_after_one_step(&options, path);
    options.resume_dir = path;
    const tide_trainer_options right = options;
    options.seed = 9;
    check_mismatch(&options, "seed");
    options = right;
    options.batch_tokens = 512;
    check_mismatch(&options, "batch");
    options = right;
    options.micro_batch_sequences = 4;
    check_mismatch(&options, "micro");
    options = right;
    options.model.layers = 5;
    check_mismatch(&options, "layers");
}

static void a_folder_without_a_checkpoint_starts_anew(void **state)
{
    (void)state;
    char path[96];
    save_folder(path);
    tide_trainer_options options = small_options(text, TIDE_DTYPE_BF16);
    options.resume_dir = path;
    tide_trainer *trainer;
    ok(tide_trainer_create(&options, &trainer));
    assert_false(tide_trainer_resumed_get(trainer)->resumed);
    assert_int_equal(tide_trainer_state(trainer)->step, 0);
    tide_trainer_destroy(trainer);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(no_variant_changes_a_bit_with_clipping),
        cmocka_unit_test(no_variant_changes_a_bit_without_clipping),
        cmocka_unit_test(no_variant_changes_a_bit_in_fp32),
        cmocka_unit_test(no_variant_changes_a_bit_in_fp16),
        cmocka_unit_test(another_seed_gives_other_bits),
        cmocka_unit_test(adversarial_delays_change_no_bit),
        cmocka_unit_test(evaluation_and_sampling_in_between_change_no_bit),
        cmocka_unit_test(a_run_resumed_elsewhere_goes_on_to_the_same_bits),
        cmocka_unit_test(a_save_sweeps_the_optimizers_state_once),
        cmocka_unit_test(hyperparameters_may_change_at_a_resume_and_are_named),
        cmocka_unit_test(another_model_seed_or_batch_is_refused_at_a_resume),
        cmocka_unit_test(a_folder_without_a_checkpoint_starts_anew),
    };
    return cmocka_run_group_tests(tests, fixture_set_up, fixture_tear_down);
}
