/* The padded rows of the embedding wte in a training run. The vocabulary has 257 tokens, and wte has 320
 * rows in memory. The padded rows must be zeros from the first step to the last. If a test sets them to
 * other numbers, no loss, norm, value, sample or byte of a checkpoint may change. Files have only the 257
 * rows. */
#include "chunk/layout.h"
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

enum { VOCABULARY = 257, ROWS = 320, WIDTH = 96, PADDING = (ROWS - VOCABULARY) * WIDTH };

static const tide_value kinds[] = {TIDE_VALUE_PARAM, TIDE_VALUE_MASTER, TIDE_VALUE_MOMENTUM,
                                   TIDE_VALUE_VARIANCE};

static tide_param param_of(tide_trainer *trainer, const char *name)
{
    tide_param param;
    assert_true(tide_description_find_param(tide_pool_packing(tide_trainer_pool(trainer))->description, name,
                                            &param));
    return param;
}

static void padding_get(tide_trainer *trainer, tide_value kind, float values[PADDING])
{
    tide_pool *pool = tide_trainer_pool(trainer);
    const tide_param wte = param_of(trainer, "wte.weight");
    assert_int_equal(tide_description_param_elements(tide_pool_packing(pool)->description, wte),
                     ROWS * WIDTH);
    ok(tide_param_get(pool, wte, kind, VOCABULARY * WIDTH, PADDING, values));
}

/* The padding must be +0 in every bit, both in the values and in everything that the optimizer keeps. */
static void check_zeros(tide_trainer *trainer, const char *when)
{
    static const float zeros[PADDING];
    float values[PADDING];
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
        padding_get(trainer, kinds[i], values);
        if (memcmp(values, zeros, sizeof zeros) != 0)
            fail_msg("%s: padded rows are not zeros in %s", when, tide_value_name(kinds[i]));
    }
}

static void set_bias(tide_trainer *trainer, float value)
{
    ok(tide_param_set(tide_trainer_pool(trainer), param_of(trainer, "ln_f.bias"), TIDE_VALUE_MASTER, 3, 1,
                      &value));
}

/* --- the padding stays zero --- */

/* With weight decay, and a learning rate that changes all other values. */
static tide_trainer_options decaying_options(tide_dtype dtype, bool clipped)
{
    tide_trainer_options options = small_options(text, dtype);
    options.model.layers = 2;
    options.hyper.clip = clipped ? 0.5 : 0;
    options.hyper.weight_decay = 0.5;
    options.hyper.schedule.lr = 1e-2;
    options.global_batch_tokens = 128;
    options.pool.placement = clipped ? TIDE_PLACEMENT_HOST : TIDE_PLACEMENT_DEVICE;
    return options;
}

/* Skip a step, as is possible when updates wait. No logit of this step is finite, nor is any gradient of
 * wte, that of the padding included. */
static void skip_step(tide_trainer *trainer)
{
    tide_trainer_report report;
    set_bias(trainer, INFINITY);
    ok(tide_trainer_step(trainer, &report));
    assert_true(report.skipped);
    set_bias(trainer, 0);
}

static void run_through_everything(tide_dtype dtype, bool clipped)
{
    char path[96];
    snprintf(path, sizeof path, "%s/zeros-%d-%d", folder, dtype, clipped);
    tide_trainer_options options = decaying_options(dtype, clipped);
    tide_trainer *trainer = trainer_open(&options);
    track made = {0};
    check_zeros(trainer, "at start");
    track_steps(trainer, 4, &made);
    check_zeros(trainer, "after four steps");
    if (clipped || dtype == TIDE_DTYPE_FP16) {
        skip_step(trainer);
        check_zeros(trainer, "after a skipped step");
    }
    track_steps(trainer, 8, &made);
    ok(tide_trainer_save(trainer, path, 0, NULL));
    check_zeros(trainer, "after saving");
    tide_trainer_destroy(trainer);

    options.resume_dir = path;
    trainer = trainer_open(&options);
    check_zeros(trainer, "after resuming");
    track_steps(trainer, 12, &made);
    check_zeros(trainer, "at the end");
    tide_trainer_destroy(trainer);
}

static void padded_rows_are_zeros_from_the_first_step_to_the_last(void **state)
{
    const tide_dtype dtypes[] = {TIDE_DTYPE_BF16, TIDE_DTYPE_FP16, TIDE_DTYPE_FP32};
    for (int i = 0; i < 6; i++)
        run_through_everything(dtypes[i % 3], i < 3);
}

/* --- poisoned padding --- */

static void poison(tide_trainer *trainer, float value)
{
    float values[PADDING];
    for (int i = 0; i < PADDING; i++)
        values[i] = i % 3 == 0 ? -value : value;
    ok(tide_param_set(tide_trainer_pool(trainer), param_of(trainer, "wte.weight"), TIDE_VALUE_MASTER,
                      VOCABULARY * WIDTH, PADDING, values));
}

static char *sample(tide_trainer *trainer)
{
    tide_sample_options options;
    char *made;
    tide_sample_options_default(&options);
    options.tokens = 24;
    options.top_k = 0; /* so that any token can be drawn */
    ok(tide_trainer_sample(trainer, &options, &made));
    return made;
}

static char *file_bytes(const char *path, const char *name, size_t *bytes)
{
    char whole[256];
    snprintf(whole, sizeof whole, "%s/%s", path, name);
    FILE *file = fopen(whole, "rb");
    if (file == NULL)
        fail_msg("no %s", whole);
    char *content = NULL;
    FILE *out = open_memstream(&content, bytes);
    assert_non_null(out);
    for (int c = fgetc(file); c != EOF; c = fgetc(file))
        assert_int_equal(fputc(c, out), c);
    assert_int_equal(fclose(out), 0);
    assert_int_equal(fclose(file), 0);
    return content;
}

static void compare_checkpoints(const char *one, const char *other)
{
    static const char *const names[] = {"model.safetensors", "momentum.safetensors", "variance.safetensors",
                                        "manifest.json"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        size_t bytes, other_bytes;
        char *content = file_bytes(one, names[i], &bytes),
             *others = file_bytes(other, names[i], &other_bytes);
        assert_int_equal(bytes, other_bytes);
        assert_memory_equal(content, others, bytes);
        free(content);
        free(others);
    }
}

/* Everything that a run leaves behind. The evaluation and the sample come last and make no gradient, so even
 * NAN in the padding must not change them. */
typedef struct traces {
    track made;
    double loss;
    char *text;
    tide_checkpoint_saved saved;
} traces;

static void run_poisoned(tide_dtype dtype, float value, traces *left)
{
    enum { STEPS = 5 };
    char path[96];
    snprintf(path, sizeof path, "%s/poison-%d-%d", folder, dtype, value != 0);
    tide_trainer_options options = decaying_options(dtype, true);
    tide_trainer *trainer = trainer_open(&options);
    float padding[PADDING];
    *left = (traces){0};
    if (value != 0)
        poison(trainer, value);
    track_steps(trainer, STEPS, &left->made);
    track_values(trainer, &left->made);
    padding_get(trainer, TIDE_VALUE_MASTER, padding);
    /* the run has not reset the padding */
    assert_true((fabsf(padding[0]) > fabsf(value) / 2) == (value != 0));
    padding_get(trainer, TIDE_VALUE_VARIANCE, padding);
    assert_true(padding[0] == 0 && padding[PADDING - 1] == 0);
    ok(tide_trainer_save(trainer, path, 0, &left->saved));
    if (value != 0)
        poison(trainer, NAN);
    ok(tide_trainer_evaluate(trainer, &left->loss));
    left->text = sample(trainer);
    tide_trainer_destroy(trainer);
}

static void padded_rows_reach_nothing_that_a_run_leaves_behind(void **state)
{
    const tide_dtype dtypes[] = {TIDE_DTYPE_BF16, TIDE_DTYPE_FP16, TIDE_DTYPE_FP32};
    for (int i = 0; i < 3; i++) {
        traces clean, poisoned;
        run_poisoned(dtypes[i], 0, &clean);
        run_poisoned(dtypes[i], dtypes[i] == TIDE_DTYPE_FP16 ? 60000 : 1e30F, &poisoned);
        track_compare(&clean.made, &poisoned.made, "poisoned");
        assert_memory_equal(&clean.loss, &poisoned.loss, sizeof clean.loss);
        assert_string_equal(clean.text, poisoned.text);
        compare_checkpoints(clean.saved.path, poisoned.saved.path);
        track_free(&clean.made);
        track_free(&poisoned.made);
        free(clean.text);
        free(poisoned.text);
    }
}

/* --- checkpoint files --- */

static void files_have_the_vocabularys_rows_and_their_bytes(void **state)
{
    const tide_trainer_options options = small_options(text, TIDE_DTYPE_BF16);
    tide_trainer *trainer = trainer_open(&options);
    char path[96];
    snprintf(path, sizeof path, "%s/shape", folder);
    tide_checkpoint_saved saved;
    ok(tide_trainer_save(trainer, path, 0, &saved));
    size_t bytes;
    char *content = file_bytes(saved.path, "model.safetensors", &bytes);
    uint64_t header_bytes;
    memcpy(&header_bytes, content, sizeof header_bytes);
    assert_int_equal(bytes, 8 + header_bytes + 4 * tide_model_element_count(&options.model));
    assert_non_null(strstr(
        content + 8, "\"wte.weight\":{\"dtype\":\"F32\",\"shape\":[257,96],\"data_offsets\":[0,98688]}"));
    assert_non_null(
        strstr(content + 8, "\"wpe.weight\":{\"dtype\":\"F32\",\"shape\":[64,96],\"data_offsets\":[98688,"));
    float *wte = malloc(VOCABULARY * WIDTH * sizeof *wte);
    assert_non_null(wte);
    tide_model_init_range(&options.model, options.seed, TIDE_ROLE_TOKEN_EMBEDDING, 0, VOCABULARY * WIDTH,
                          wte);
    assert_memory_equal(content + 8 + header_bytes, wte, VOCABULARY * WIDTH * sizeof *wte);
    free(wte);
    free(content);
    tide_trainer_destroy(trainer);
}

static tide_status no_values(void *context, size_t tensor, tide_value value, uint64_t first, uint64_t count,
                             float *values)
{
    (void)context, (void)tensor, (void)value, (void)first;
    memset(values, 0, count * sizeof *values);
    return TIDE_OK;
}

/* Write a checkpoint with the run's state but with tensors of the size in memory: the resume must refuse
 * it. */
static void a_file_of_padded_rows_is_refused(void **state)
{
    tide_trainer_options options = small_options(text, TIDE_DTYPE_BF16);
    tide_trainer *trainer = trainer_open(&options);
    const size_t count = tide_model_param_count(&options.model);
    tide_model_param *params = calloc(count, sizeof *params);
    tide_checkpoint_tensor *tensors = calloc(count, sizeof *tensors);
    assert_true(params && tensors);
    for (size_t i = 0; i < count; i++) {
        tide_model_param_describe(&options.model, i, &params[i]);
        tensors[i] = (tide_checkpoint_tensor){.name = params[i].name,
                                              .rank = params[i].rank,
                                              .shape = {params[i].memory_rows, params[i].shape[1]}};
    }
    char path[96];
    snprintf(path, sizeof path, "%s/padded", folder);
    ok(tide_checkpoint_save(tide_files_posix(), path, tide_trainer_state(trainer),
                            &(tide_checkpoint_tensors){tensors, count}, 0, no_values, NULL, NULL));
    tide_trainer_destroy(trainer);
    free(params);
    free(tensors);
    options.resume_dir = path;
    assert_int_equal(tide_trainer_create(&options, &trainer), TIDE_ERROR_MISMATCH);
    if (strstr(tide_message(), "wte.weight has shape [320, 96], it must be [257, 96]") == NULL)
        fail_msg("refused for another reason: %s", tide_message());
}

/* --- sizes in the plan --- */

static void the_plan_counts_the_models_params_and_says_what_padding_costs(void **state)
{
    const tide_trainer_options options = small_options(text, TIDE_DTYPE_BF16);
    tide_trainer *trainer = trainer_open(&options);
    const tide_trainer_plan *plan = tide_trainer_plan_get(trainer);
    assert_int_equal(plan->params, tide_model_element_count(&options.model));
    assert_int_equal(plan->pool.params, plan->params + PADDING);
    assert_int_equal(plan->padding_bytes, 14 * PADDING);
    assert_int_equal(plan->pool.model_bytes, 14 * plan->params + plan->padding_bytes);
    tide_trainer_destroy(trainer);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(padded_rows_are_zeros_from_the_first_step_to_the_last),
        cmocka_unit_test(padded_rows_reach_nothing_that_a_run_leaves_behind),
        cmocka_unit_test(files_have_the_vocabularys_rows_and_their_bytes),
        cmocka_unit_test(a_file_of_padded_rows_is_refused),
        cmocka_unit_test(the_plan_counts_the_models_params_and_says_what_padding_costs),
    };
    return cmocka_run_group_tests_name("trainer vocabulary", tests, fixture_set_up, fixture_tear_down);
}
