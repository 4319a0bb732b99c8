/* Passes with cached keys and values, against full forward passes (tide_decoder_logits) of the same
 * values: the tiny models of every family in families.golden, whatever the passes' sizes. Then a larger
 * model: every budget and chunk size gives the same bits. */
#include "src/model/decoder_cached.h"
#include "tests/model/family_fixture.h"
#include "tests/support/assert_ok.h"
#include "tests/support/test_thin.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static family_golden golden;

/* A decoder that generates, on a pool of its own. */
typedef struct cached_fixture {
    tide_decoder *model;
    tide_pool *pool;
} cached_fixture;

static void cached_open(cached_fixture *r, const tide_decoder_options *options, tide_pool_options *pool)
{
    pool->threads = 1;
    pool->checks.hazard_check = true;
    pool->checks.guard = true;
    tide_kernels_cpu_configure(1);
    assert_ok(tide_decoder_create(options, &r->model));
    assert_ok(tide_pool_create(pool, tide_decoder_description(r->model), &r->pool));
    tide_decoder_attach(r->model, r->pool);
}

static void cached_close(cached_fixture *r)
{
    tide_pool_destroy(r->pool);
    tide_decoder_destroy(r->model);
}

static void cached_pass(cached_fixture *r, const int32_t *tokens, uint32_t count, uint32_t first,
                        float *logits)
{
    assert_ok(tide_step_begin(r->pool, &(tide_step_options){.training = false}));
    assert_ok(tide_decoder_cached_pass(r->model, tokens + first, count, first, logits));
    assert_ok(tide_step_end(r->pool));
}

static tide_decoder_options cached_options(const tide_model_config *config, tide_dtype dtype, uint32_t tokens,
                                           uint32_t piece)
{
    return (tide_decoder_options){.config = *config,
                                  .dtype = dtype,
                                  .seq_len = 1,
                                  .micro_batch_sequences = piece,
                                  .micro_batches = 1,
                                  .cache_tokens = tokens,
                                  .sum_groups = 1,
                                  .kernels = tide_kernels_cpu()};
}

/* --- against full passes --- */

/* The logits after each token of the case's first sequence, by a full pass each: [seq_len, vocab_size]. */
static float *full_logits(const family_case *of, int32_t *tokens)
{
    const size_t vocab = of->config.vocab_size;
    float *logits = malloc(of->seq_len * vocab * sizeof *logits);
    family_fixture r;
    assert_non_null(logits);
    family_fixture_open(&r, of, true, 8, 1);
    memcpy(tokens, r.tokens, of->seq_len * sizeof *tokens);
    for (uint32_t position = 0; position < of->seq_len; position++) {
        assert_ok(tide_step_begin(r.pool, &(tide_step_options){.training = false}));
        assert_ok(tide_decoder_logits(r.model, tokens, position, logits + position * vocab));
        assert_ok(tide_step_end(r.pool));
    }
    family_fixture_close(&r);
    return logits;
}

static void check_logits(const family_case *of, const float *logits, const float *truth, uint32_t position)
{
    float largest = 0;
    for (uint32_t i = 0; i < of->config.vocab_size; i++)
        largest = fmaxf(largest, fabsf(truth[i]));
    for (uint32_t i = 0; i < of->config.vocab_size; i++)
        if (!(fabsf(logits[i] - truth[i]) <= 2e-5f * largest))
            fail_msg("%s: logit %u after position %u is %.9g, in a full pass %.9g", of->name, i, position,
                     (double)logits[i], (double)truth[i]);
}

static void set_values(cached_fixture *r, const family_case *of)
{
    for (size_t i = 0; i < of->tensors; i++) {
        tide_model_tensor tensor;
        tide_model_tensor_describe(&of->config, i, &tensor);
        float *values = malloc(tensor.elements * sizeof *values);
        assert_non_null(values);
        family_case_values(of, i, values);
        assert_ok(tide_decoder_values_set(r->model, i, TIDE_VALUE_MASTER, 0, tensor.elements, values));
        free(values);
    }
}

/* Passes the case's first sequence, in `pieces` long passes and then token by token. */
static void check_pieces(const family_case *of, const int32_t *tokens, const float *truth, uint32_t piece,
                         uint32_t pieces)
{
    const tide_decoder_options options = cached_options(&of->config, TIDE_DTYPE_FP32, of->seq_len, piece);
    const size_t vocab = of->config.vocab_size;
    float *logits = malloc(vocab * sizeof *logits);
    tide_pool_options pool;
    cached_fixture r;
    assert_non_null(logits);
    tide_pool_options_default(&pool);
    pool.chunk_bytes = 256 * 1024;
    cached_open(&r, &options, &pool);
    set_values(&r, of);
    for (uint32_t first = 0, passes = 0; first < of->seq_len; passes++) {
        const uint32_t count = passes < pieces ? piece : 1;
        cached_pass(&r, tokens, count, first, logits);
        first += count;
        check_logits(of, logits, truth + (first - 1) * vocab, first - 1);
    }
    cached_close(&r);
    free(logits);
}

static void every_familys_logits_are_those_of_full_passes(void **state)
{
    (void)state;
    for (unsigned i = 0; i < FAMILY_CASES; i += test_thin(4)) {
        const family_case *of = &golden.cases[i];
        int32_t *tokens = malloc(of->seq_len * sizeof *tokens);
        assert_non_null(tokens);
        float *truth = full_logits(of, tokens);
        assert_true(of->seq_len > 6);
        check_pieces(of, tokens, truth, of->seq_len, 1);
        check_pieces(of, tokens, truth, 3, 2);
        check_pieces(of, tokens, truth, 1, 0);
        free(truth);
        free(tokens);
    }
}

/* A token that passes again replaces its keys and values. */
static void a_position_may_pass_again(void **state)
{
    const family_case *of = &golden.cases[0];
    const size_t vocab = of->config.vocab_size;
    const tide_decoder_options options = cached_options(&of->config, TIDE_DTYPE_FP32, of->seq_len, 3);
    int32_t tokens[8], others[8];
    tide_pool_options pool;
    cached_fixture r;
    (void)state;
    float *once = malloc(vocab * sizeof *once), *again = malloc(vocab * sizeof *again);
    assert_true(once && again && of->seq_len >= 8);
    for (int i = 0; i < 8; i++) {
        tokens[i] = i + 1;
        others[i] = 2 * i + 3;
    }
    tide_pool_options_default(&pool);
    pool.chunk_bytes = 256 * 1024;
    cached_open(&r, &options, &pool);
    set_values(&r, of);
    cached_pass(&r, tokens, 3, 0, NULL);
    cached_pass(&r, tokens, 3, 3, once);
    cached_pass(&r, others, 3, 0, NULL);
    cached_pass(&r, others, 3, 3, again);
    assert_memory_not_equal(once, again, vocab * sizeof *once);
    cached_pass(&r, tokens, 3, 0, NULL);
    cached_pass(&r, tokens, 3, 2, NULL);
    cached_pass(&r, tokens, 3, 3, again);
    assert_memory_equal(once, again, vocab * sizeof *once);
    cached_close(&r);
    free(once);
    free(again);
}

/* --- budgets --- */

enum { TOKENS = 24, PIECE = 9 };

/* The logits after the piece and after each further token: [TOKENS - PIECE + 1, vocab_size]. */
static float *logits_with(const tide_model_config *config, uint64_t chunk_bytes, uint64_t device_bytes,
                          tide_pool_plan *plan)
{
    const tide_decoder_options options = cached_options(config, TIDE_DTYPE_BF16, TOKENS, PIECE);
    const size_t vocab = config->vocab_size;
    float *logits = malloc((TOKENS - PIECE + 1) * vocab * sizeof *logits);
    int32_t tokens[TOKENS];
    tide_pool_options pool;
    cached_fixture r;
    assert_non_null(logits);
    for (int32_t i = 0; i < TOKENS; i++)
        tokens[i] = (i * 37 + 11) % (int32_t)vocab;
    tide_pool_options_default(&pool);
    pool.chunk_bytes = chunk_bytes;
    pool.device_memory_bytes = device_bytes;
    cached_open(&r, &options, &pool);
    assert_ok(tide_decoder_init(r.model, 5, NULL, NULL));
    assert_ok(tide_pool_plan_get(r.pool, plan));
    cached_pass(&r, tokens, PIECE, 0, logits);
    for (uint32_t i = PIECE; i < TOKENS; i++)
        cached_pass(&r, tokens, 1, i, logits + (i - PIECE + 1) * vocab);
    cached_close(&r);
    return logits;
}

static void every_budget_and_chunk_size_gives_the_same_bits(void **state)
{
    static const uint64_t chunks[] = {256 << 10, 1 << 20, 8 << 20};
    tide_model_config config;
    tide_pool_plan plan;
    (void)state;
    assert_ok(tide_model_config_open("llama-nano", &config));
    const size_t bytes = (TOKENS - PIECE + 1) * config.vocab_size * sizeof(float);
    float *first = logits_with(&config, 64 << 20, 0, &plan);
    for (size_t i = 0; i < sizeof chunks / sizeof chunks[0]; i++) {
        float *full = logits_with(&config, chunks[i], 0, &plan);
        assert_memory_equal(first, full, bytes);
        float *least = logits_with(&config, chunks[i], plan.least_device_bytes, &plan);
        assert_memory_equal(first, least, bytes);
        assert_true(plan.device_memory_bytes < plan.full_device_bytes || chunks[i] == 8 << 20);
        assert_int_equal(plan.model_bytes, 2 * plan.params);
        assert_int_equal(plan.chunks[TIDE_SPACE_STATE], 0);
        free(full);
        free(least);
    }
    free(first);
}

/* The cache and everything else is in the plan before the pool exists. */
static void the_plan_counts_the_cache(void **state)
{
    tide_model_config config;
    tide_pool_options pool;
    tide_pool_plan plan;
    tide_decoder *model;
    (void)state;
    assert_ok(tide_model_config_open("llama-nano", &config));
    tide_pool_options_default(&pool);
    for (uint32_t tokens = 64; tokens <= 256; tokens *= 2) {
        const tide_decoder_options options = cached_options(&config, TIDE_DTYPE_BF16, tokens, 1);
        assert_int_equal(tide_decoder_cache_bytes(&options),
                         2 * (uint64_t)config.layers * tokens * config.kv_heads * config.head_width * 2);
        assert_ok(tide_decoder_create(&options, &model));
        assert_ok(tide_pool_plan_make(&pool, tide_decoder_description(model), &plan));
        assert_int_equal(plan.nonmodel_bytes, tide_decoder_region_layout(&options).bytes);
        assert_true(plan.nonmodel_bytes > tide_decoder_cache_bytes(&options));
        plan.largest_op = NULL;
        tide_decoder_destroy(model);
    }
}

static int load(void **state)
{
    (void)state;
    family_golden_load(&golden);
    return 0;
}

static int unload(void **state)
{
    (void)state;
    family_golden_free(&golden);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_familys_logits_are_those_of_full_passes),
        cmocka_unit_test(a_position_may_pass_again),
        cmocka_unit_test(every_budget_and_chunk_size_gives_the_same_bits),
        cmocka_unit_test(the_plan_counts_the_cache),
    };
    return cmocka_run_group_tests(tests, load, unload);
}
