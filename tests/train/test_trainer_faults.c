/* Failures of a device operation, of a token in the data, or of a gradient. Afterwards either the step can
 * be repeated or the last checkpoint can be resumed, and both must give the bits of an undisturbed run. */
#include "offload/device.h"
#include "src/pool/inspect.h"
#include "src/pool/internal.h"
#include "src/train/trainer_internal.h"
#include "tests/support/small_model.h"
#include "tests/support/test_thin.h"
#include "tests/support/test_trainer_fixture.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

enum { STEPS = 4, SHARD_TOKENS = 32 * 40 + 1 };

/* The device holds two fifths of the model data, and a step has few operations, so that each of them can be
 * made to fail. */
static tide_trainer_options tight_options(double clip)
{
    tide_trainer_options options = small_options(text, TIDE_DTYPE_BF16);
    options.model.layers = 4;
    options.global_batch_tokens = 64;
    options.micro_batch_sequences = 1;
    options.hyper.clip = clip;
    options.pool.device_memory_bytes = 2560 << 10;
    return options;
}

static void undisturbed(const tide_trainer_options *options, track *made)
{
    tide_trainer *trainer;
    *made = (track){0};
    trainer = trainer_open(options);
    track_steps(trainer, STEPS, made);
    track_values(trainer, made);
    tide_trainer_destroy(trainer);
}

/* --- device operations --- */

static void set_fault(tide_trainer *trainer, uint32_t mask, uint64_t countdown)
{
    tide_device *device = tide_trainer_pool(trainer)->context.device;
    device->ops->set_fault(device, mask, countdown);
}

/* After the trainer gave its step up: make the next step or, if updates had begun and the pool is poisoned,
 * resume the checkpoint of step 1 and count that in *poisoned. */
static tide_trainer *go_on(tide_trainer *trainer, const tide_trainer_options *options, const char *saved,
                           uint32_t *poisoned)
{
    assert_true(strlen(tide_message()) > 0);
    const uint64_t done = tide_trainer_state(trainer)->step;
    tide_trainer_report report;
    if (tide_trainer_step(trainer, &report) == TIDE_OK) {
        assert_int_equal(report.step, done + 1);
        return trainer;
    }
    assert_non_null(strstr(tide_message(), "poisoned"));
    ++*poisoned;
    tide_trainer_destroy(trainer);
    tide_trainer_options resumed = *options;
    resumed.resume_dir = saved;
    trainer = trainer_open(&resumed);
    assert_int_equal(tide_trainer_state(trainer)->step, 1);
    return trainer;
}

/* Make the n-th operation after step 1 fail. Returns whether there were n operations. */
static bool run_with_fault(const tide_trainer_options *options, uint64_t n, const track *truth)
{
    char saved[96];
    snprintf(saved, sizeof saved, "%s/fault-%llu-%g-%u", folder, (unsigned long long)n, options->hyper.clip,
             options->freeze_count);
    tide_trainer *trainer;
    track made = {0};
    trainer = trainer_open(options);
    track_steps(trainer, 1, &made);
    ok(tide_trainer_save(trainer, saved, 0, NULL));
    set_fault(trainer, TIDE_FAULT_ANY, n);
    bool met = false;
    uint32_t poisoned = 0;
    while (!met && tide_trainer_state(trainer)->step < 3)
        met = tide_trainer_step(trainer, NULL) != TIDE_OK;
    set_fault(trainer, 0, 0);
    if (met)
        trainer = go_on(trainer, options, saved, &poisoned);
    /* The losses and norms of steps that ran with the fault armed were not recorded; only the later ones are
     * compared. */
    track_steps(trainer, STEPS, &made);
    memcpy(made.losses, truth->losses, 3 * sizeof made.losses[0]);
    memcpy(made.norms, truth->norms, 3 * sizeof made.norms[0]);
    track_values(trainer, &made);
    track_compare(truth, &made, "after a fault");
    track_free(&made);
    tide_trainer_destroy(trainer);
    return met;
}

/* Let each of the first operations fail, then operation `first` and, from there on, one in 141 (fewer under a
 * sanitizer; one in 47 in a campaign). */
static void faults_of_the_device_change_no_bit(const tide_trainer_options *options, uint64_t first)
{
    track truth;
    undisturbed(options, &truth);
    uint64_t n = 1, met = 0;
    while (run_with_fault(options, n, &truth)) {
        met++;
        const uint64_t firsts = 8 / test_every(2, 4);
        n = n < firsts ? n + 1 : n == firsts ? first : n + 47 * test_every(3, 9);
    }
    assert_true(met > 15 / test_every(2, 5));
    track_free(&truth);
}

static void faults_of_the_device_change_no_bit_with_and_without_clipping(void **state)
{
    for (int clipped = 0; clipped < 2; clipped++) {
        const tide_trainer_options options = tight_options(clipped);
        faults_of_the_device_change_no_bit(&options, clipped ? 20 : 50);
    }
}

/* The trained tensors are blocks 1 and 3 and, if the family has them, the position embedding or the head. */
static void faults_of_the_device_change_no_bit_with_frozen_params(void **state)
{
    const char *const frozen[] = {family_word("wte.*", "model.embed_tokens.*"),
                                  family_word("h.[02].*", "model.layers.[02].*"),
                                  family_word("ln_f.*", "model.norm.*")};
    for (int clipped = 0; clipped < 2; clipped++) {
        tide_trainer_options options = tight_options(clipped);
        options.freeze = frozen;
        options.freeze_count = 3;
        faults_of_the_device_change_no_bit(&options, clipped ? 35 : 10);
    }
}

/* --- a failed evaluation --- */

/* The link is so slow that updates of the step before still run when the evaluation begins. */
static tide_trainer_options slow_options(double clip)
{
    tide_trainer_options options = tight_options(clip);
    options.pool.placement = TIDE_PLACEMENT_HOST;
    options.pool.link_bytes_per_second = 400e6;
    return options;
}

static bool updates_wait(tide_trainer *trainer)
{
    tide_pool *pool = tide_trainer_pool(trainer);
    tide_monitor_lock(&pool->monitor);
    const bool waits = !tide_engine_updates_done(&pool->engine);
    tide_monitor_unlock(&pool->monitor);
    return waits;
}

/* Give a forward-only pass up, before its first op or after all ops were enqueued. */
static void give_an_evaluation_up(tide_trainer *trainer, bool computed)
{
    ok(tide_step_begin(trainer->pool, &(tide_step_options){.training = false}));
    ok(tide_trainer_upload(trainer));
    if (computed)
        ok(tide_decoder_evaluate(trainer->model));
    (void)tide_fail(TIDE_ERROR_CORRUPT, "given up");
    assert_int_equal(tide_trainer_abort(trainer, TIDE_ERROR_CORRUPT), TIDE_ERROR_CORRUPT);
    assert_string_equal(tide_message(), "given up"); /* the message of the failure, not one of the abort */
}

static void an_evaluation_given_up_leaves_waiting_updates_alone(double clip)
{
    const tide_trainer_options options = slow_options(clip);
    track truth;
    undisturbed(&options, &truth);
    for (int computed = 0; computed < 2; computed++) {
        track made = {0};
        tide_trainer *trainer;
        bool waited = false;
        trainer = trainer_open(&options);
        for (uint64_t step = 1; step <= STEPS; step++) {
            track_steps(trainer, step, &made);
            waited |= updates_wait(trainer);
            give_an_evaluation_up(trainer, computed);
        }
        assert_true(waited);
        track_values(trainer, &made);
        track_compare(&truth, &made, "after evaluations given up");
        track_free(&made);
        tide_trainer_destroy(trainer);
    }
    track_free(&truth);
}

static void an_evaluation_given_up_leaves_waiting_updates_alone_with_and_without_clipping(void **state)
{
    an_evaluation_given_up_leaves_waiting_updates_alone(1);
    an_evaluation_given_up_leaves_waiting_updates_alone(0);
}

/* Make the n-th operation after step 2 fail: one of the evaluation that follows, or of the updates that run
 * meanwhile. Returns whether there were n operations. */
static bool evaluate_with_fault(const tide_trainer_options *options, uint64_t n, const track *truth,
                                uint32_t *poisoned)
{
    char saved[96];
    snprintf(saved, sizeof saved, "%s/evaluation-%llu-%g", folder, (unsigned long long)n,
             options->hyper.clip);
    tide_trainer *trainer;
    track made = {0};
    double loss;
    trainer = trainer_open(options);
    track_steps(trainer, 1, &made);
    ok(tide_trainer_save(trainer, saved, 0, NULL));
    track_steps(trainer, 2, &made);
    set_fault(trainer, TIDE_FAULT_ANY, n);
    const bool met = tide_trainer_evaluate(trainer, &loss) != TIDE_OK;
    set_fault(trainer, 0, 0);
    if (met)
        trainer = go_on(trainer, options, saved, poisoned);
    track_steps(trainer, STEPS, &made);
    /* the step that go_on made was not recorded */
    memcpy(made.losses, truth->losses, 3 * sizeof made.losses[0]);
    memcpy(made.norms, truth->norms, 3 * sizeof made.norms[0]);
    track_values(trainer, &made);
    track_compare(truth, &made, "after a fault in an evaluation");
    track_free(&made);
    tide_trainer_destroy(trainer);
    return met;
}

static void faults_in_an_evaluation_change_no_bit(double clip, uint64_t first)
{
    const tide_trainer_options options = tight_options(clip);
    track truth;
    undisturbed(&options, &truth);
    uint32_t met = 0, poisoned = 0;
    for (uint64_t n = first; evaluate_with_fault(&options, n, &truth, &poisoned); n += 11 * test_every(3, 9))
        met++;
    assert_true(met > 10 / test_every(2, 6));
    assert_true(poisoned <
                met / 2); /* an evaluation changes nothing, so only a fault in an update itself poisons */
    track_free(&truth);
}

static void faults_in_an_evaluation_change_no_bit_with_and_without_clipping(void **state)
{
    faults_in_an_evaluation_change_no_bit(1, 1);
    faults_in_an_evaluation_change_no_bit(0, 6);
}

/* --- tokens --- */

static void write_token(const char *path, long index, uint16_t token)
{
    FILE *file = fopen(path, "r+b");
    assert_non_null(file);
    assert_int_equal(fseek(file, TIDE_DATA_SHARD_HEADER_BYTES + index * (long)sizeof token, SEEK_SET), 0);
    assert_int_equal(fwrite(&token, sizeof token, 1, file), 1);
    assert_int_equal(fclose(file), 0);
}

static void tokens_write(const char *path)
{
    int32_t tokens[SHARD_TOKENS];
    for (int i = 0; i < SHARD_TOKENS; i++)
        tokens[i] = i * i % 251;
    shard_write(path, tokens, SHARD_TOKENS);
}

/* The last 2 of the 40 sequences are for validation. The other 38 are all in every batch. */
static tide_trainer_options shard_options(char path[96])
{
    snprintf(path, 96, "%s/tokens.bin", folder);
    tokens_write(path);
    tide_trainer_options options = small_options(path, TIDE_DTYPE_BF16);
    options.model.layers = 2;
    options.global_batch_tokens = 32 * 38;
    options.micro_batch_sequences = 2;
    return options;
}

static tide_status step(tide_trainer *trainer)
{
    return tide_trainer_step(trainer, NULL);
}

static tide_status evaluate(tide_trainer *trainer)
{
    double loss;
    return tide_trainer_evaluate(trainer, &loss);
}

enum { CUT_SHORT = -1 };

/* After step 2 a fault comes into the data file: an invalid token that `action` reads or, with CUT_SHORT, an
 * end after 2000 bytes. `action` fails and changes nothing; the trainer can be saved, and once the file is
 * written again in place it goes on to the same bits. */
static void a_fault_in_the_data_stops(tide_status (*action)(tide_trainer *), long token)
{
    char path[96], saved[96], sizes[96];
    const tide_trainer_options options = shard_options(path);
    track truth, made = {0};
    undisturbed(&options, &truth);
    tide_trainer *trainer = trainer_open(&options);
    track_steps(trainer, 2, &made);
    if (token == CUT_SHORT)
        assert_int_equal(truncate(path, 2000), 0);
    else
        write_token(path, token, 300);
    assert_int_equal(action(trainer), TIDE_ERROR_CORRUPT);
    snprintf(sizes, sizeof sizes, "tokens.bin: it had %d bytes when it was opened and has 2000 now",
             TIDE_DATA_SHARD_HEADER_BYTES + 2 * SHARD_TOKENS);
    if (token == CUT_SHORT)
        assert_non_null(strstr(tide_message(), sizes));
    assert_int_equal(tide_trainer_state(trainer)->step, 2);
    snprintf(saved, sizeof saved, "%s/data-%ld-%d", folder, token, action == step);
    ok(tide_trainer_save(trainer, saved, 0, NULL));
    tokens_write(path);
    track_steps(trainer, STEPS, &made);
    track_values(trainer, &made);
    track_compare(&truth, &made, "after a fault in the data");
    track_free(&made);
    track_free(&truth);
    tide_trainer_destroy(trainer);
}

static void a_token_that_goes_bad_stops_the_step_or_evaluation_and_nothing_else(void **state)
{
    a_fault_in_the_data_stops(step, 40);
    a_fault_in_the_data_stops(evaluate, SHARD_TOKENS - 40);
}

static void a_file_cut_short_stops_the_step_or_evaluation_and_nothing_else(void **state)
{
    a_fault_in_the_data_stops(step, CUT_SHORT);
    a_fault_in_the_data_stops(evaluate, CUT_SHORT);
}

/* --- gradients --- */

static tide_param param_of(tide_trainer *trainer, const char *name)
{
    tide_param param;
    assert_true(tide_description_find_param(tide_pool_packing(tide_trainer_pool(trainer))->description, name,
                                            &param));
    return param;
}

static float master_at(tide_trainer *trainer, const char *name, uint64_t element)
{
    float value;
    ok(tide_param_get(tide_trainer_pool(trainer), param_of(trainer, name), TIDE_VALUE_MASTER, element, 1,
                      &value));
    return value;
}

static void set_master(tide_trainer *trainer, const char *name, uint64_t element, float value)
{
    ok(tide_param_set(tide_trainer_pool(trainer), param_of(trainer, name), TIDE_VALUE_MASTER, element, 1,
                      &value));
}

/* A weight of the last norm. If it is not finite, the loss is not finite either. */
static const char *last_norm(void)
{
    return family_word("ln_f.bias", "model.norm.weight");
}

static void a_norm_that_is_not_finite_skips_the_step(void **state)
{
    const char *inner = family_word("h.0.mlp.c_fc.weight", "model.layers.0.mlp.gate_proj.weight");
    const tide_trainer_options options = tight_options(1);
    tide_trainer *trainer = trainer_open(&options);
    const float before = master_at(trainer, last_norm(), 3), other = master_at(trainer, inner, 7);
    set_master(trainer, last_norm(), 3, INFINITY);
    tide_trainer_report report;
    ok(tide_trainer_step(trainer, &report));
    assert_true(report.skipped);
    assert_int_equal(report.skipped_in_row, 1);
    assert_int_equal(report.step, 1);
    assert_true(isfinite(report.gradient_norm) == 0);
    assert_true(master_at(trainer, inner, 7) == other);
    set_master(trainer, last_norm(), 3, before);
    ok(tide_trainer_step(trainer, &report));
    assert_false(report.skipped);
    assert_true(isfinite(report.loss) != 0);
    assert_int_equal(tide_trainer_state(trainer)->step, 2);
    assert_int_equal(tide_trainer_state(trainer)->skipped, 1);
    assert_int_equal(tide_trainer_state(trainer)->adam_step, 1);
    tide_trainer_destroy(trainer);
}

static void ten_skipped_steps_in_a_row_end_the_run(void **state)
{
    const tide_trainer_options options = tight_options(1);
    tide_trainer *trainer = trainer_open(&options);
    set_master(trainer, last_norm(), 3, INFINITY);
    for (int step = 1; step < 10; step++)
        ok(tide_trainer_step(trainer, NULL));
    assert_int_equal(tide_trainer_step(trainer, NULL), TIDE_ERROR_NONFINITE);
    tide_trainer_destroy(trainer);
}

tide_status __real_tide_decoder_read_losses(tide_decoder *model);
tide_status __wrap_tide_decoder_read_losses(tide_decoder *model);

/* the pool whose updates must end before the loss is read; NULL: no wait */
static tide_pool *judged_first;

/* the trainer whose device fails when it reads a step's loss, after the step's updates; NULL: none */
static tide_trainer *failing_late;

tide_status __wrap_tide_decoder_read_losses(tide_decoder *model)
{
    if (judged_first != NULL)
        assert_int_equal(tide_pool_drain(judged_first), TIDE_ERROR_NONFINITE);
    if (failing_late != NULL) {
        ok(tide_pool_drain(tide_trainer_pool(failing_late)));
        set_fault(failing_late, TIDE_FAULT_ANY, 1);
    }
    return __real_tide_decoder_read_losses(model);
}

static void a_step_whose_updates_are_done_before_it_fails_counts(void **state)
{
    for (int clipped = 0; clipped < 2; clipped++) {
        const tide_trainer_options options = tight_options(clipped);
        track truth, made = {0};
        undisturbed(&options, &truth);
        tide_trainer *trainer = trainer_open(&options);
        track_steps(trainer, 1, &made);
        failing_late = trainer;
        assert_int_not_equal(tide_trainer_step(trainer, NULL), TIDE_OK);
        failing_late = NULL;
        assert_non_null(strstr(tide_message(), "(the step has taken place)"));
        set_fault(trainer, 0, 0);
        assert_int_equal(tide_trainer_state(trainer)->step, 2);
        track_steps(trainer, STEPS, &made);
        made.losses[1] = truth.losses[1];
        made.norms[1] = truth.norms[1];
        track_values(trainer, &made);
        track_compare(&truth, &made, "after a failure behind the updates");
        track_free(&made);
        track_free(&truth);
        tide_trainer_destroy(trainer);
    }
}

/* The trainer reads the loss before it knows the norm or, with is_late, after the norm has failed the
 * pool. */
static void a_gradient_that_is_not_finite_ends_a_run_without_clipping(void **state)
{
    const tide_trainer_options options = tight_options(0);
    for (int is_late = 0; is_late <= 1; is_late++) {
        tide_trainer *trainer = trainer_open(&options);
        set_master(trainer, last_norm(), 3, INFINITY);
        judged_first = is_late ? tide_trainer_pool(trainer) : NULL;
        assert_int_equal(tide_trainer_step(trainer, NULL), TIDE_ERROR_NONFINITE);
        judged_first = NULL;
        assert_non_null(strstr(tide_message(), "step 1: the gradient of param "));
        assert_null(strstr(tide_message(), "(unknown)"));
        const char *end = strstr(tide_message(), "params are undefined (the pool is poisoned)");
        assert_non_null(end);
        assert_string_equal(end, "params are undefined (the pool is poisoned)");
        assert_int_equal(tide_trainer_state(trainer)->step, 0);
        tide_trainer_destroy(trainer);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(faults_of_the_device_change_no_bit_with_and_without_clipping),
        cmocka_unit_test(faults_of_the_device_change_no_bit_with_frozen_params),
        cmocka_unit_test(an_evaluation_given_up_leaves_waiting_updates_alone_with_and_without_clipping),
        cmocka_unit_test(faults_in_an_evaluation_change_no_bit_with_and_without_clipping),
        cmocka_unit_test(a_token_that_goes_bad_stops_the_step_or_evaluation_and_nothing_else),
        cmocka_unit_test(a_file_cut_short_stops_the_step_or_evaluation_and_nothing_else),
        cmocka_unit_test(a_norm_that_is_not_finite_skips_the_step),
        cmocka_unit_test(ten_skipped_steps_in_a_row_end_the_run),
        cmocka_unit_test(a_gradient_that_is_not_finite_ends_a_run_without_clipping),
        cmocka_unit_test(a_step_whose_updates_are_done_before_it_fails_counts),
    };
    return cmocka_run_group_tests(tests, fixture_set_up, fixture_tear_down);
}
