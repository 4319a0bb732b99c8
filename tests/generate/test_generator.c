/* Texts of a generator: the likeliest tokens are those of full forward passes, budgets and chunk sizes
 * change no token, sampling is a function of the seed, end tokens and the context end a text. The last
 * test is of refusals. */
#include "src/generate/generator.h"
#include "src/train/trainer_internal.h"
#include "tests/support/assert_ok.h"
#include "tests/support/test_trainer_fixture.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { TOKENS = 40, PROMPT = 9 };

static const int32_t prompt[] = {116, 104, 101, 32, 99, 97, 116, 32, 115};
static char run[96];         /* a folder of checkpoints, of a run in fp32 */
static int32_t full[TOKENS]; /* the likeliest tokens by full passes */
static uint32_t sure;        /* how many of them are no near ties */

/* The likeliest token after the first `count` of `tokens`; *lead: its logit's distance from the next one. */
static int32_t likeliest(tide_trainer *trainer, const int32_t *tokens, uint32_t count, float *lead)
{
    const uint32_t vocab = trainer->state.model.vocab_size, length = trainer->plan.seq_len;
    float *logits = malloc(vocab * sizeof *logits), second = -INFINITY;
    int32_t *window = calloc(length, sizeof *window), best = 0;
    assert_true(logits && window && count <= length);
    memcpy(window, tokens, count * sizeof *window);
    ok(tide_step_begin(trainer->pool, &(tide_step_options){.training = false}));
    ok(tide_decoder_logits(trainer->model, window, count - 1, logits));
    ok(tide_step_end(trainer->pool));
    for (uint32_t i = 1; i < vocab; i++)
        best = logits[i] > logits[best] ? (int32_t)i : best;
    for (uint32_t i = 0; i < vocab; i++)
        second = (int32_t)i != best && logits[i] > second ? logits[i] : second;
    *lead = logits[best] - second;
    free(logits);
    free(window);
    return best;
}

/* Trains a little, saves, and continues the prompt by full passes. */
static int set_up(void **state)
{
    int32_t tokens[PROMPT + TOKENS];
    const int failed = fixture_set_up(state);
    if (failed)
        return failed;
    tide_trainer_options options = small_options(text, TIDE_DTYPE_FP32);
    options.seq_len = 64;
    tide_trainer *trainer = trainer_open(&options);
    snprintf(run, sizeof run, "%s/run", folder);
    for (int i = 0; i < 6; i++)
        ok(tide_trainer_step(trainer, NULL));
    ok(tide_trainer_save(trainer, run, 0, NULL));
    memcpy(tokens, prompt, sizeof prompt);
    sure = TOKENS;
    for (uint32_t i = 0; i < TOKENS; i++) {
        float lead;
        full[i] = tokens[PROMPT + i] = likeliest(trainer, tokens, PROMPT + i, &lead);
        if (lead < 1e-4f && sure == TOKENS)
            sure = i;
    }
    tide_trainer_destroy(trainer);
    return 0;
}

static tide_generator_options options_of_run(void)
{
    tide_generator_options options;
    tide_generator_options_default(&options);
    options.checkpoint = run;
    options.prompt = prompt;
    options.prompt_tokens = PROMPT;
    options.tokens = TOKENS;
    options.pool.chunk_bytes = 256 * 1024;
    options.pool.threads = 2;
    options.pool.checks.hazard_check = true;
    options.pool.checks.guard = true;
    return options;
}

/* Generates a whole text; returns its length. */
static uint32_t text_of(const tide_generator_options *options, int32_t *tokens, tide_generator_plan *plan)
{
    tide_generator *generator = NULL;
    uint32_t count = 0;
    bool last = false;
    ok(tide_generator_create(options, &generator));
    if (plan != NULL)
        *plan = *tide_generator_plan_get(generator);
    while (!last)
        ok(tide_generator_next(generator, &tokens[count++], &last));
    assert_int_equal(tide_generator_next(generator, &(int32_t){0}, &last), TIDE_ERROR_STATE);
    tide_generator_destroy(generator);
    return count;
}

static void the_likeliest_tokens_are_those_of_full_passes(void **state)
{
    const tide_generator_options options = options_of_run();
    int32_t tokens[TOKENS];
    (void)state;
    assert_int_equal(text_of(&options, tokens, NULL), TOKENS);
    assert_true(sure > 10);
    assert_memory_equal(tokens, full, sure * sizeof *tokens);
}

static void budgets_and_chunk_sizes_change_no_token(void **state)
{
    tide_generator_options options = options_of_run();
    int32_t drawn[TOKENS], tokens[TOKENS];
    tide_generator_plan plan;
    (void)state;
    for (tide_dtype dtype = TIDE_DTYPE_FP32; dtype <= TIDE_DTYPE_FP16; dtype++) {
        options = options_of_run();
        options.own_dtype = false;
        options.dtype = dtype;
        options.temperature = 1.5; /* so that every bit of the logits counts */
        text_of(&options, drawn, &plan);
        assert_int_equal(plan.dtype, dtype);
        assert_int_equal(plan.pool.model_bytes, plan.pool.params * tide_dtype_bytes(dtype));
        assert_true(plan.cache_bytes == 2 * plan.model.layers *
                                            tide_align_up((uint64_t)(PROMPT + TOKENS) * plan.model.width *
                                                          tide_dtype_bytes(dtype)));
        options.pool.device_memory_bytes = plan.pool.least_device_bytes;
        for (uint64_t chunk = 256 << 10; chunk <= 4 << 20; chunk *= 4) {
            options.pool.chunk_bytes = chunk;
            options.pool.prefetch = chunk != 1 << 20;
            options.pool.device_memory_bytes = chunk == 256 << 10 ? plan.pool.least_device_bytes : 0;
            text_of(&options, tokens, NULL);
            assert_memory_equal(tokens, drawn, sizeof drawn);
        }
    }
}

static void a_budget_that_is_too_small_is_refused_with_the_least(void **state)
{
    tide_generator_options options = options_of_run();
    tide_generator *generator = NULL;
    tide_generator_plan plan;
    int32_t tokens[TOKENS];
    (void)state;
    text_of(&options, tokens, &plan);
    assert_int_equal(plan.dtype, TIDE_DTYPE_FP32); /* the run's, not a folder's */
    options.pool.device_memory_bytes = plan.pool.least_device_bytes - 1;
    assert_int_equal(tide_generator_create(&options, &generator), TIDE_ERROR_BUDGET);
    assert_int_equal(number_in_message("the least budget is "), plan.pool.least_device_bytes);
    assert_null(generator);
}

static void a_seed_fixes_the_text_and_another_gives_another(void **state)
{
    tide_generator_options options = options_of_run();
    int32_t first[TOKENS], again[TOKENS], other[TOKENS];
    (void)state;
    options.temperature = 1;
    options.seed = 3;
    text_of(&options, first, NULL);
    text_of(&options, again, NULL);
    assert_memory_equal(first, again, sizeof first);
    options.seed = 4;
    text_of(&options, other, NULL);
    assert_memory_not_equal(first, other, sizeof first);
    options.temperature = 1000; /* nearly all tokens are alike, so each number drawn gives another */
    text_of(&options, other, NULL);
    int changes = 0;
    for (int i = 1; i < TOKENS; i++)
        changes += other[i] != other[i - 1];
    assert_true(changes > TOKENS / 2);
    options.top_k = 1; /* only the likeliest is left to draw */
    text_of(&options, other, NULL);
    assert_memory_equal(other, full, sure * sizeof *other);
}

/* 56 prompt tokens of a context of 64 leave 8. */
static void a_text_ends_where_the_context_is_full(void **state)
{
    tide_generator_options options = options_of_run();
    int32_t longest[64], tokens[TOKENS];
    tide_generator_plan plan;
    tide_generator *generator = NULL;
    (void)state;
    for (int i = 0; i < 64; i++)
        longest[i] = prompt[i % PROMPT];
    options.prompt = longest;
    options.prompt_tokens = 56;
    assert_int_equal(text_of(&options, tokens, &plan), 8);
    assert_int_equal(plan.tokens, 8);
    options.prompt_tokens = 63;
    assert_int_equal(text_of(&options, tokens, NULL), 1);
    options.prompt_tokens = 64;
    assert_int_equal(tide_generator_create(&options, &generator), TIDE_ERROR_ARGUMENT);
    assert_non_null(strstr(tide_message(), "leaves no place"));
}

/* --- end tokens --- */

static void file_write(const char *path, const char *content)
{
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    assert_true(fputs(content, file) >= 0);
    assert_int_equal(fclose(file), 0);
}

static void source_write(const char *name, const char *content)
{
    char path[160];
    snprintf(path, sizeof path, "%s/tidepool-origin", run);
    (void)mkdir(path, 0777);
    snprintf(path, sizeof path, "%s/tidepool-origin/%s", run, name);
    file_write(path, content);
}

/* The end tokens are in the folder that the run began with, of which the checkpoints have a copy. */
static void an_end_token_ends_the_text_and_is_its_last(void **state)
{
    static const char *const forms[] = {"{\"eos_token_id\": %d}", "{\"eos_token_id\": [300, %d]}"};
    const tide_generator_options options = options_of_run();
    int32_t tokens[TOKENS];
    char content[64];
    uint32_t first = 0;
    (void)state;
    while (full[first] != full[5])
        first++;
    for (int file = 0; file < 2; file++)
        for (int form = 0; form < 2; form++) {
            snprintf(content, sizeof content, forms[form], full[5]);
            source_write("config.json", file == 0 ? content : "{\"eos_token_id\": null}");
            source_write("generation_config.json", file == 1 ? content : "{}");
            assert_int_equal(text_of(&options, tokens, NULL), first + 1);
            assert_int_equal(tokens[first], full[5]);
        }
    source_write("config.json", "{}");
    source_write("generation_config.json", "{}");
    assert_int_equal(text_of(&options, tokens, NULL), TOKENS);
}

static void end_tokens_are_those_of_both_files(void **state)
{
    tide_end_tokens tokens = {.tokens = NULL};
    (void)state;
    assert_ok(tide_end_tokens_read(tide_files_posix(), "/nonexistent", &tokens));
    assert_int_equal(tokens.count, 0);
    char path[96];
    snprintf(path, sizeof path, "%s/config.json", folder);
    file_write(path, "{\"eos_token_id\": 7}");
    snprintf(path, sizeof path, "%s/generation_config.json", folder);
    file_write(path, "{\"eos_token_id\": [9, 7, 8]}");
    assert_ok(tide_end_tokens_read(tide_files_posix(), folder, &tokens));
    assert_int_equal(tokens.count, 3);
    assert_true(tide_end_tokens_have(&tokens, 7) && tide_end_tokens_have(&tokens, 8));
    assert_true(tide_end_tokens_have(&tokens, 9) && !tide_end_tokens_have(&tokens, 300));
    tide_end_tokens_free(&tokens);
    static const char *const bad[] = {"{\"eos_token_id\": -1}",  "{\"eos_token_id\": \"a\"}",
                                      "{\"eos_token_id\": 1.5}", "{\"eos_token_id\": [1, null]}",
                                      "{\"eos_token_id\": ",     "{\"eos_token_id\": 2147483648}"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        file_write(path, bad[i]);
        assert_int_equal(tide_end_tokens_read(tide_files_posix(), folder, &tokens), TIDE_ERROR_CORRUPT);
        assert_non_null(strstr(tide_message(), "generation_config.json"));
        assert_null(tokens.tokens);
    }
}

/* --- refusals --- */

static void assert_refused(const tide_generator_options *options, tide_status status, const char *words)
{
    tide_generator *generator = NULL;
    assert_int_equal(tide_generator_create(options, &generator), status);
    assert_null(generator);
    if (strstr(tide_message(), words) == NULL)
        fail_msg("\"%s\" is not about %s", tide_message(), words);
}

static void what_makes_no_sense_is_refused(void **state)
{
    static const int32_t outside[] = {1, 2, 257}, below[] = {1, -1};
    tide_generator_options options = options_of_run();
    (void)state;
    options.prompt_tokens = 0;
    assert_refused(&options, TIDE_ERROR_ARGUMENT, "the prompt is empty");
    options.prompt = outside;
    options.prompt_tokens = 3;
    assert_refused(&options, TIDE_ERROR_ARGUMENT, "token 3 of the prompt is 257");
    options.prompt = below;
    options.prompt_tokens = 2;
    assert_refused(&options, TIDE_ERROR_ARGUMENT, "token 2 of the prompt is -1");
    options = options_of_run();
    options.tokens = 0;
    assert_refused(&options, TIDE_ERROR_ARGUMENT, "0 tokens");
    options = options_of_run();
    options.model = folder;
    assert_refused(&options, TIDE_ERROR_ARGUMENT, "give one of");
    options.checkpoint = NULL;
    options.model = "gpt2-nano";
    assert_refused(&options, TIDE_ERROR_ARGUMENT, "preset");
    options = options_of_run();
    options.pool.device = "null";
    assert_refused(&options, TIDE_ERROR_ARGUMENT, "null device");
    options = options_of_run();
    options.checkpoint = folder;
    assert_refused(&options, TIDE_ERROR_IO, "holds no checkpoint");
    options = options_of_run();
    options.temperature = -1;
    assert_refused(&options, TIDE_ERROR_ARGUMENT, "temperature");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_likeliest_tokens_are_those_of_full_passes),
        cmocka_unit_test(budgets_and_chunk_sizes_change_no_token),
        cmocka_unit_test(a_budget_that_is_too_small_is_refused_with_the_least),
        cmocka_unit_test(a_seed_fixes_the_text_and_another_gives_another),
        cmocka_unit_test(a_text_ends_where_the_context_is_full),
        cmocka_unit_test(an_end_token_ends_the_text_and_is_its_last),
        cmocka_unit_test(end_tokens_are_those_of_both_files),
        cmocka_unit_test(what_makes_no_sense_is_refused),
    };
    return cmocka_run_group_tests(tests, set_up, fixture_tear_down);
}
