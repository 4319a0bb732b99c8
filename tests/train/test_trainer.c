/* The trainer: initial values, learning, samples, the options that it refuses, its plans, and a run on the
 * null device. */
#include "kernels/kernels.h"
#include "src/train/trainer_internal.h"
#include "tests/golden/gpt2_run.h"
#include "tests/support/small_model.h"
#include "tests/support/test_trainer_fixture.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* --- initial values --- */

static void check_initial_values(tide_trainer *trainer, size_t index)
{
    const tide_train_state *about = tide_trainer_state(trainer);
    tide_model_tensor param;
    tide_model_tensor_describe(&about->model, index, &param);
    const tide_param handle = tide_decoder_param_handle(trainer->model, param.param);
    float *values = malloc(param.elements * sizeof *values), *truth = malloc(param.elements * sizeof *truth);
    assert_true(values && truth);
    ok(tide_param_get(tide_trainer_pool(trainer), handle, TIDE_VALUE_MASTER, param.first, param.elements,
                      values));
    tide_model_init_range(&about->model, about->seed, index, 0, param.elements, truth);
    assert_memory_equal(values, truth, param.elements * sizeof *values);
    free(values);
    free(truth);
}

/* The trainer makes initial values in slices, with any number of threads. The largest tensors here have
 * three slices. */
static void initial_values_are_the_generators_for_any_thread_count(void **state)
{
    for (uint32_t threads = 1; threads <= 3; threads++) {
        tide_trainer_options options = small_options(text, TIDE_DTYPE_BF16);
        options.pool.threads = threads;
        tide_trainer *trainer = trainer_open(&options);
        for (size_t i = 0; i < tide_model_tensor_count(&options.model); i++)
            check_initial_values(trainer, i);
        tide_trainer_destroy(trainer);
    }
}

/* Bytes that the progress callback has reported, by kind. */
typedef struct told {
    uint64_t device_slots, host_slots, region, values, loaded, to_load;
} told;

static void tell(void *context, const char *what, uint64_t done_bytes, uint64_t total_bytes)
{
    told *it = context;
    uint64_t *kind = strcmp(what, "device slots") == 0                 ? &it->device_slots
                     : strcmp(what, "host slots") == 0                 ? &it->host_slots
                     : strcmp(what, "region") == 0                     ? &it->region
                     : strcmp(what, "initial values") == 0             ? &it->values
                     : strcmp(what, "values from the checkpoint") == 0 ? &it->loaded
                                                                       : NULL;
    assert_non_null(kind);
    assert_true(done_bytes <= total_bytes && (done_bytes == 0 || done_bytes > *kind));
    *kind = done_bytes;
    if (kind == &it->loaded)
        it->to_load = total_bytes;
}

static void all_that_is_made_at_start_is_told(void **state)
{
    told it = {0};
    tide_trainer_options options = small_options(text, TIDE_DTYPE_BF16);
    options.pool.progress = tell;
    options.pool.progress_context = &it;
    tide_trainer *trainer = trainer_open(&options);
    const tide_pool_plan *plan = &tide_trainer_plan_get(trainer)->pool;
    assert_int_equal(it.device_slots, plan->device_slots * plan->chunk_bytes);
    assert_int_equal(it.host_slots, plan->host_slots * plan->chunk_bytes);
    assert_true(it.region >= plan->region_bytes);
    assert_int_equal(it.values, 4 * tide_model_element_count(&options.model));
    assert_int_equal(it.loaded, 0);

    char path[96];
    snprintf(path, sizeof path, "%s/told", folder);
    tide_checkpoint_saved saved;
    ok(tide_trainer_save(trainer, path, 0, &saved));
    tide_trainer_destroy(trainer);
    it = (told){0};
    options.resume_dir = path;
    trainer = trainer_open(&options);
    assert_int_equal(it.values, 0);
    assert_in_range(it.loaded, 12 * tide_model_element_count(&options.model), saved.bytes);
    assert_int_equal(it.loaded, it.to_load);
    tide_trainer_destroy(trainer);
}

/* --- learning --- */

static void training_learns_and_evaluation_sees_it(void **state)
{
    tide_trainer_options options = small_options(text, TIDE_DTYPE_BF16);
    options.hyper.schedule.steps = 40;
    tide_trainer *trainer = trainer_open(&options);
    double before, after;
    ok(tide_trainer_evaluate(trainer, &before));
    for (int step = 0; step < 40; step++)
        ok(tide_trainer_step(trainer, NULL));
    ok(tide_trainer_evaluate(trainer, &after));
    assert_true(fabs(before - log(256)) < 0.2); /* the untrained model gives all bytes the same probability */
    assert_true(after < 3.0);                   /* it has learnt at least the frequencies of letters */
    assert_int_equal(tide_trainer_state(trainer)->tokens, 40 * 256);
    tide_trainer_destroy(trainer);
}

static void a_sample_is_a_function_of_model_and_seed(void **state)
{
    const tide_trainer_options options = small_options(text, TIDE_DTYPE_BF16);
    tide_trainer *trainer = trainer_open(&options);
    tide_sample_options sample;
    tide_sample_options_default(&sample);
    sample.tokens = 50; /* more than the window of 32 tokens */
    sample.prompt = "the tide ";
    char *first, *again, *other;
    ok(tide_trainer_sample(trainer, &sample, &first));
    ok(tide_trainer_sample(trainer, &sample, &again));
    sample.sample = 1;
    ok(tide_trainer_sample(trainer, &sample, &other));
    assert_string_equal(first, again);
    assert_string_not_equal(first, other);
    assert_true(strlen(first) >= 50);
    free(first);
    free(again);
    free(other);
    tide_trainer_destroy(trainer);
}

static void shards_take_no_prompt_and_show_token_numbers(void **state)
{
    tide_trainer *trainer = golden_run_open(TIDE_DTYPE_BF16, NULL, 0);
    tide_sample_options sample;
    tide_sample_options_default(&sample);
    sample.tokens = 3;
    sample.prompt = "the ";
    char *shown = NULL;
    assert_int_equal(tide_trainer_sample(trainer, &sample, &shown), TIDE_ERROR_ARGUMENT);
    assert_null(shown);
    sample.prompt = NULL;
    ok(tide_trainer_sample(trainer, &sample, &shown));
    int tokens[3];
    assert_int_equal(sscanf(shown, "<%d><%d><%d>", &tokens[0], &tokens[1], &tokens[2]), 3);
    free(shown);
    tide_trainer_destroy(trainer);
}

/* --- refusals --- */

static void check_refused(const tide_trainer_options *options, tide_status expected, const char *words)
{
    tide_trainer *trainer = NULL;
    assert_int_equal(tide_trainer_create(options, &trainer), expected);
    assert_null(trainer);
    if (!strstr(tide_message(), words))
        fail_msg("\"%s\" does not say \"%s\"", tide_message(), words);
}

/* Checks the refusal of small options with another value of a member. */
#define REFUSED_WITH(member, value, words)                                                                   \
    do {                                                                                                     \
        tide_trainer_options options = small_options(text, TIDE_DTYPE_BF16);                                 \
        options.member = (value);                                                                            \
        check_refused(&options, TIDE_ERROR_ARGUMENT, words);                                                 \
    } while (0)

static void numbers_out_of_range_are_refused(void **state)
{
    REFUSED_WITH(global_batch_tokens, 250, "250");
    REFUSED_WITH(micro_batch_sequences, 3, "micro-batches of 3");
    REFUSED_WITH(seq_len, 65, "context is 64");
    REFUSED_WITH(model.vocab_size, 200, "256"); /* a text's bytes */
    REFUSED_WITH(hyper.schedule.lr, NAN, "learning rate");
    REFUSED_WITH(hyper.clip, -1, "clip");
    REFUSED_WITH(pool.threads, TIDE_THREADS_MAX + 1, "1025 threads");
    REFUSED_WITH(hyper.beta2, 1, "beta2");
    REFUSED_WITH(hyper.schedule.steps, 0, "steps");
    REFUSED_WITH(data, NULL, "no data");
}

static void a_refused_device_budget_names_one_that_works(void **state)
{
    tide_trainer_options options = small_options(text, TIDE_DTYPE_BF16);
    options.pool.device_memory_bytes = 1;
    check_refused(&options, TIDE_ERROR_BUDGET, "the least budget is ");
    const uint64_t least = number_in_message("the least budget is ");
    options.pool.device_memory_bytes = least - 1;
    check_refused(&options, TIDE_ERROR_BUDGET, "the least budget is ");
    options.pool.device_memory_bytes = least;
    tide_trainer *trainer = trainer_open(&options);
    ok(tide_trainer_step(trainer, NULL));
    tide_trainer_destroy(trainer);
}

static void a_batch_whose_activations_do_not_fit_is_refused_with_the_largest_that_does(void **state)
{
    tide_trainer_options options = small_options(text, TIDE_DTYPE_BF16);
    options.recompute = TIDE_RECOMPUTE_ALL;
    options.global_batch_tokens = 64 * 1024;
    options.pool.device_memory_bytes = 8 << 20;
    options.pool.host_memory_bytes = 32 << 20;
    check_refused(&options, TIDE_ERROR_BUDGET, "the largest batch that fits is ");
    const uint64_t largest = number_in_message("the largest batch that fits is ");
    options.global_batch_tokens = largest + 64;
    check_refused(&options, TIDE_ERROR_BUDGET, "the largest batch that fits is ");
    options.global_batch_tokens = largest;
    tide_trainer *trainer = trainer_open(&options);
    tide_trainer_destroy(trainer);
}

/* --- plans --- */

/* Checks the equations that trainer.h states about a plan. */
static void check_plan(const tide_trainer_plan *plan)
{
    const uint64_t trained = plan->params - plan->frozen_params;
    assert_int_equal(plan->pool.space_bytes[TIDE_SPACE_ACTIVATION], plan->residual_bytes + plan->saved_bytes);
    assert_int_equal(plan->pool.space_bytes[TIDE_SPACE_PARAM], plan->trained_bytes + plan->frozen_bytes);
    assert_int_equal(plan->pool.nonmodel_bytes,
                     plan->token_bytes + plan->loss_bytes + plan->logits_bytes + plan->rope_bytes);
    assert_int_equal(plan->pool.model_bytes, trained * plan->element_bytes +
                                                 plan->frozen_params * plan->frozen_element_bytes +
                                                 plan->padding_bytes);
    assert_int_equal(plan->saved_bytes, (plan->blocks - plan->recomputed_blocks) * plan->saved_block_bytes);
    assert_int_equal(plan->micro_batches * plan->micro_batch_sequences, plan->global_batch_sequences);
    assert_true(plan->step_flops > 0);
}

static tide_trainer_plan plan_of(const tide_trainer_options *options)
{
    tide_trainer *trainer = trainer_open(options);
    const tide_trainer_plan plan = *tide_trainer_plan_get(trainer);
    check_plan(&plan);
    tide_trainer_destroy(trainer);
    return plan;
}

static void defaults_follow_from_the_model_and_the_run_alone(void **state)
{
    tide_trainer_options options = small_options(text, TIDE_DTYPE_BF16);
    options.seq_len = options.micro_batch_sequences = 0;
    options.global_batch_tokens = 0;
    options.hyper.schedule.warmup_steps = TIDE_TRAINER_WARMUP_DEFAULT;
    options.hyper.schedule.steps = 300;
    const tide_trainer_plan plan = plan_of(&options);
    assert_int_equal(plan.seq_len, 64);                 /* the model's context length */
    assert_int_equal(plan.global_batch_tokens, 8 * 64); /* eight sequences */
    assert_int_equal(plan.micro_batch_sequences, 8);
    assert_int_equal(plan.warmup_steps, 30);
    options.global_batch_tokens = 18 * 64;
    options.hyper.schedule.steps = 5000;
    options.pool.device_memory_bytes = 8 << 20;
    const tide_trainer_plan larger = plan_of(&options);
    /* 18 = 3 x 6; with 9 sequences a micro-batch would have more than 512 tokens */
    assert_int_equal(larger.micro_batch_sequences, 6);
    assert_int_equal(larger.warmup_steps, 100);
}

static uint32_t recomputed_at(tide_trainer_options *options, uint64_t device_memory_bytes)
{
    options->pool.device_memory_bytes = device_memory_bytes;
    return plan_of(options).recomputed_blocks;
}

static void auto_recomputes_only_what_the_budget_does_not_hold(void **state)
{
    tide_trainer_options options = small_options(text, TIDE_DTYPE_BF16);
    options.global_batch_tokens = 1024;
    const uint32_t all = recomputed_at(&options, 5 << 20), some = recomputed_at(&options, 10 << 20);
    const uint32_t none = recomputed_at(&options, 64 << 20);
    assert_int_equal(all, 6);
    assert_in_range(some, 1, 5);
    assert_int_equal(none, 0);
}

/* Matmuls that do not run in the params' own dtype convert their operands in the workspace, which for this
 * small model raises a quarter to three eighths. */
static void a_quarter_of_the_model_data_is_enough(void **state)
{
    static const tide_recompute recomputes[] = {TIDE_RECOMPUTE_AUTO, TIDE_RECOMPUTE_NONE, TIDE_RECOMPUTE_ALL};
    for (int i = 0; i < 6; i++) {
        const tide_dtype dtype = i % 2 == 0 ? TIDE_DTYPE_BF16 : TIDE_DTYPE_FP32;
        tide_trainer_options options = small_options(text, dtype);
        options.recompute = recomputes[i / 2];
        options.global_batch_tokens = 128;
        options.micro_batch_sequences = 1;
        const uint64_t model_bytes =
            (dtype == TIDE_DTYPE_FP32 ? 16 : 14) * tide_model_element_count(&options.model);
        const uint64_t eighths = tide_kernels_cpu_info()->bf16_matmuls ? 2 : 3;
        assert_true(least_budget(&options, true) <= eighths * model_bytes / 8);
    }
}

static void default_budgets_are_what_is_needed_up_to_their_share(void **state)
{
    tide_trainer_options options = small_options(text, TIDE_DTYPE_BF16);
    options.pool.free_memory_bytes = UINT64_C(1) << 34;
    const tide_trainer_plan ample = plan_of(&options);
    assert_int_equal(ample.pool.device_memory_bytes, ample.pool.full_device_bytes);
    options.pool.free_memory_bytes = 24 << 20;
    const tide_trainer_plan scarce = plan_of(&options);
    assert_int_equal(scarce.pool.device_memory_bytes, 6 << 20);
    assert_true(scarce.pool.host_memory_bytes <= (18 << 20) / 5 * 4);
    assert_true(scarce.default_device_budget && scarce.default_host_budget);
}

static void a_default_device_budget_is_raised_to_the_least_that_works(void **state)
{
    tide_trainer_options options = small_options(text, TIDE_DTYPE_BF16);
    options.pool.free_memory_bytes = 4 << 20;
    options.pool.host_memory_bytes = 64 << 20;
    const tide_trainer_plan plan = plan_of(&options);
    assert_true(plan.pool.least_device_bytes > 1 << 20);
    assert_int_equal(plan.pool.device_memory_bytes, plan.pool.least_device_bytes);
    assert_true(plan.default_device_budget && !plan.default_host_budget);
}

/* The default host budget is exactly 80% of the memory that the device leaves free. First this suffices for
 * the least host budget, then it is a little less and the trainer refuses. All blocks recompute here: `auto`
 * would answer to less host memory with a plan that needs less. */
static void a_default_host_budget_is_a_share_and_not_raised(void **state)
{
    tide_trainer_options options = small_options(text, TIDE_DTYPE_BF16);
    options.recompute = TIDE_RECOMPUTE_ALL;
    options.pool.device_memory_bytes = 4 << 20;
    options.pool.free_memory_bytes = UINT64_C(1) << 34;
    const uint64_t fifth = plan_of(&options).pool.least_host_bytes / 4 + 1;
    options.pool.free_memory_bytes = (4 << 20) + 5 * fifth;
    assert_int_equal(plan_of(&options).pool.host_memory_bytes, 4 * fifth);
    options.pool.free_memory_bytes -= 10;
    check_refused(&options, TIDE_ERROR_BUDGET, "host");
}

/* --- the null device --- */

static void the_null_device_steps_without_loss_and_saves_nothing(void **state)
{
    tide_trainer_options options = small_options(NULL, TIDE_DTYPE_BF16);
    options.pool.device = "null";
    options.pool.checks.hazard_check = options.pool.checks.guard = false;
    tide_trainer *trainer = trainer_open(&options);
    assert_false(tide_trainer_computes(trainer));
    for (uint64_t step = 1; step <= 3; step++) {
        tide_trainer_report report;
        ok(tide_trainer_step(trainer, &report));
        assert_int_equal(report.step, step);
        assert_true(isnan(report.loss) && isnan(report.gradient_norm));
    }
    double loss;
    char *sampled;
    tide_sample_options sample;
    tide_sample_options_default(&sample);
    assert_int_equal(tide_trainer_evaluate(trainer, &loss), TIDE_ERROR_STATE);
    assert_int_equal(tide_trainer_sample(trainer, &sample, &sampled), TIDE_ERROR_STATE);
    assert_int_equal(tide_trainer_save(trainer, folder, 0, NULL), TIDE_ERROR_STATE);
    tide_pool_counters counters;
    ok(tide_pool_drain(tide_trainer_pool(trainer)));
    ok(tide_pool_counters_get(tide_trainer_pool(trainer), &counters));
    assert_true(counters.compute_seconds > 0);
    tide_trainer_destroy(trainer);
}

static void the_plan_adds_up_at_any_size(void **state)
{
    static const char *const families[] = {"gpt2", "llama", "qwen3"};
    static const uint32_t widths[] = {20, 96, 252}, lengths[] = {1, 7, 33, 64};
    for (unsigned at = 0; at < 3 * 3 * 4 * 3; at++) {
        const uint32_t seq_len = lengths[at / 9 % 4], sequences = 1 + at % 2 * 2;
        tide_trainer_options options = small_options(NULL, (tide_dtype)(at % 3));
        options.model = model_of_family(families[at % 3], 3, widths[at / 3 % 3], 2, 64, 257 + at);
        options.pool.device = "null";
        options.pool.checks.hazard_check = options.pool.checks.guard = false;
        options.seq_len = seq_len;
        options.global_batch_tokens = seq_len * sequences;
        options.micro_batch_sequences = at % 4 < 2 ? 1 : sequences;
        options.recompute = (tide_recompute)(at / 36);
        (void)plan_of(&options); /* which checks it */
    }
}

/* Bytes that steps 3 to 8 move. */
static uint64_t moved_bytes(const tide_trainer_options *options, tide_pool_plan *plan)
{
    tide_trainer *trainer;
    tide_pool_counters before = {0}, after;
    trainer = trainer_open(options);
    tide_pool *pool = tide_trainer_pool(trainer);
    for (int step = 0; step < 8; step++) {
        if (step == 2)
            ok(tide_pool_counters_get(pool, &before));
        ok(tide_trainer_step(trainer, NULL));
    }
    ok(tide_pool_drain(pool));
    ok(tide_pool_counters_get(pool, &after));
    *plan = tide_trainer_plan_get(trainer)->pool;
    tide_trainer_destroy(trainer);
    return after.h2d_bytes + after.d2h_bytes - before.h2d_bytes - before.d2h_bytes;
}

/* Takes device budgets from one that is too small for the working set of the ops to one that holds
 * everything. Beside each, the default host budget must not move more bytes than unlimited host memory
 * would, although it has no slot too many. */
static void a_default_host_budget_moves_no_more_than_room_for_everything(void **state)
{
    enum { STRIDE = 3 };
    tide_pool_plan plan, ample;
    tide_trainer_options options = small_options(NULL, TIDE_DTYPE_BF16);
    options.pool.device = "null";
    options.pool.checks.hazard_check = options.pool.checks.guard = false;
    (void)moved_bytes(&options, &plan);
    const uint64_t least_bytes = plan.least_device_bytes, full_bytes = plan.full_device_bytes;
    for (tide_placement placement = TIDE_PLACEMENT_AUTO; placement <= TIDE_PLACEMENT_DEVICE; placement++) {
        options.pool.placement = placement;
        for (uint64_t bytes = least_bytes; bytes < full_bytes; bytes += STRIDE * plan.chunk_bytes) {
            options.pool.device_memory_bytes = bytes;
            options.pool.host_memory_bytes = 0;
            const uint64_t moved = moved_bytes(&options, &plan);
            options.pool.host_memory_bytes = UINT64_C(1) << 30;
            assert_int_equal(moved, moved_bytes(&options, &ample));
            assert_true(plan.host_slots <= ample.host_slots);
        }
    }
    assert_true(plan.host_slots * 4 < ample.host_slots); /* the last device budget holds nearly everything */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_that_is_made_at_start_is_told),
        cmocka_unit_test(initial_values_are_the_generators_for_any_thread_count),
        cmocka_unit_test(training_learns_and_evaluation_sees_it),
        cmocka_unit_test(a_sample_is_a_function_of_model_and_seed),
        cmocka_unit_test(shards_take_no_prompt_and_show_token_numbers),
        cmocka_unit_test(numbers_out_of_range_are_refused),
        cmocka_unit_test(a_refused_device_budget_names_one_that_works),
        cmocka_unit_test(a_batch_whose_activations_do_not_fit_is_refused_with_the_largest_that_does),
        cmocka_unit_test(defaults_follow_from_the_model_and_the_run_alone),
        cmocka_unit_test(auto_recomputes_only_what_the_budget_does_not_hold),
        cmocka_unit_test(a_quarter_of_the_model_data_is_enough),
        cmocka_unit_test(default_budgets_are_what_is_needed_up_to_their_share),
        cmocka_unit_test(a_default_device_budget_is_raised_to_the_least_that_works),
        cmocka_unit_test(a_default_host_budget_is_a_share_and_not_raised),
        cmocka_unit_test(the_null_device_steps_without_loss_and_saves_nothing),
        cmocka_unit_test(the_plan_adds_up_at_any_size),
        cmocka_unit_test(a_default_host_budget_moves_no_more_than_room_for_everything),
    };
    return cmocka_run_group_tests(tests, fixture_set_up, fixture_tear_down);
}
