#include "tests/support/test_trainer_fixture.h"

#include "src/data/random.h"
#include "src/train/trainer_internal.h"
#include "tests/support/small_model.h"

#include <ftw.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

void ok(tide_status status)
{
    if (status != TIDE_OK)
        fail_msg("%s: %s", tide_status_name(status), tide_message());
}

/* --- files --- */

char folder[64], text[96];

static int remove_one(const char *path, const struct stat *about, int kind, struct FTW *where)
{
    (void)about;
    (void)kind;
    (void)where;
    return remove(path);
}

int fixture_tear_down(void **state)
{
    return nftw(folder, remove_one, 16, FTW_DEPTH | FTW_PHYS);
}

static void text_write(void)
{
    static const char *const words[] = {"the ",  "tide ", "comes ", "and ",
                                        "goes ", "pool ", "chunk ", "moves\n"};
    FILE *file = fopen(text, "wb");
    assert_non_null(file);
    for (uint64_t i = 0; ftell(file) < 40000; i++) {
        const size_t word = (size_t)(tide_random_uniform(1, TIDE_RANDOM_USE_TEST, 0, i) * 8);
        assert_true(fputs(words[word], file) >= 0);
    }
    assert_int_equal(fclose(file), 0);
}

int fixture_set_up(void **state)
{
    snprintf(folder, sizeof folder, "/tmp/tide-trainer-XXXXXX");
    assert_non_null(mkdtemp(folder));
    snprintf(text, sizeof text, "%s/text", folder);
    text_write();
    return 0;
}

void shard_write(const char *path, const int32_t *tokens, uint32_t count)
{
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    const int32_t header[TIDE_DATA_SHARD_HEADER_BYTES / 4] = {TIDE_DATA_SHARD_MAGIC, TIDE_DATA_SHARD_VERSION,
                                                              (int32_t)count};
    assert_int_equal(fwrite(header, sizeof header, 1, file), 1);
    for (uint32_t i = 0; i < count; i++) {
        const uint16_t token = (uint16_t)tokens[i];
        assert_int_equal(fwrite(&token, sizeof token, 1, file), 1);
    }
    assert_int_equal(fclose(file), 0);
}

/* --- runs --- */

tide_trainer_options small_options(const char *data, tide_dtype dtype)
{
    tide_trainer_options options;
    tide_trainer_options_default(&options);
    options.model = model_of_family(test_family(), 6, 96, 4, 64, 257); /* 257 is padded to 320 rows */
    options.data = data;
    options.hyper.schedule.steps = 12;
    options.seq_len = 32;
    options.global_batch_tokens = 256;
    options.micro_batch_sequences = 2;
    options.hyper.schedule.lr = 3e-3;
    options.hyper.schedule.warmup_steps = 2;
    options.eval_batches = 2;
    options.dtype = dtype;
    options.pool.chunk_bytes = 256 * 1024;
    options.pool.threads = 2;
    options.pool.checks.hazard_check = true;
    options.pool.checks.guard = true;
    return options;
}

tide_trainer *trainer_open(const tide_trainer_options *options)
{
    tide_trainer *trainer = NULL;
    ok(tide_trainer_create(options, &trainer));
    return trainer;
}

void track_steps(tide_trainer *trainer, uint64_t until, track *made)
{
    while (tide_trainer_state(trainer)->step < until) {
        tide_trainer_report report;
        ok(tide_trainer_step(trainer, &report));
        assert_int_equal(report.step, tide_trainer_state(trainer)->step);
        assert_in_range(report.step, 1, TRACK_STEPS_MAX);
        made->losses[report.step - 1] = report.loss;
        made->norms[report.step - 1] = report.gradient_norm;
        made->steps = (uint32_t)report.step;
    }
}

void track_values(tide_trainer *trainer, track *made)
{
    static const tide_value kinds[] = {TIDE_VALUE_PARAM, TIDE_VALUE_MASTER, TIDE_VALUE_MOMENTUM,
                                       TIDE_VALUE_VARIANCE};
    const tide_model_config *config = &tide_trainer_state(trainer)->model;
    tide_pool *pool = tide_trainer_pool(trainer);
    made->elements = tide_model_element_count(config);
    made->values = malloc(4 * made->elements * sizeof *made->values);
    assert_non_null(made->values);
    float *at = made->values;
    for (size_t i = 0; i < tide_model_tensor_count(config); i++) {
        tide_model_tensor param;
        tide_model_tensor_describe(config, i, &param);
        const tide_param handle = tide_decoder_param_handle(trainer->model, param.param);
        const size_t values = tide_decoder_tensor_is_frozen(trainer->model, i) ? 1 : 4;
        memset(at, 0, 4 * param.elements * sizeof *at);
        for (size_t s = 0; s < values; s++)
            ok(tide_param_get(pool, handle, kinds[s], param.first, param.elements, at + s * param.elements));
        at += 4 * param.elements;
    }
}

void track_free(track *made)
{
    free(made->values);
    made->values = NULL;
}

void track_compare(const track *truth, const track *other, const char *what)
{
    assert_int_equal(truth->steps, other->steps);
    assert_int_equal(truth->elements, other->elements);
    for (uint32_t i = 0; i < truth->steps; i++) {
        if (memcmp(&truth->losses[i], &other->losses[i], sizeof truth->losses[i]) != 0)
            fail_msg("%s: loss of step %u is %.17g, not %.17g", what, i + 1, other->losses[i],
                     truth->losses[i]);
        if (memcmp(&truth->norms[i], &other->norms[i], sizeof truth->norms[i]) != 0)
            fail_msg("%s: norm of step %u is %.17g, not %.17g", what, i + 1, other->norms[i],
                     truth->norms[i]);
    }
    if (memcmp(truth->values, other->values, 4 * truth->elements * sizeof *truth->values) == 0)
        return;
    for (uint64_t i = 0; i < 4 * truth->elements; i++) {
        if (memcmp(&truth->values[i], &other->values[i], sizeof truth->values[i]) != 0)
            fail_msg("%s: value %llu is %.9g, not %.9g", what, (unsigned long long)i,
                     (double)other->values[i], (double)truth->values[i]);
    }
}

void check_budgets(tide_trainer *trainer, const char *what)
{
    const tide_pool_plan *plan = &tide_trainer_plan_get(trainer)->pool;
    tide_pool_counters counters;
    ok(tide_pool_counters_get(tide_trainer_pool(trainer), &counters));
    assert_true(counters.device_bytes_peak > 0);
    if (counters.device_bytes_peak > plan->device_memory_bytes)
        fail_msg("%s: %llu device bytes, budget %llu", what, (unsigned long long)counters.device_bytes_peak,
                 (unsigned long long)plan->device_memory_bytes);
    if (counters.host_bytes_peak > plan->host_memory_bytes)
        fail_msg("%s: %llu host bytes, budget %llu", what, (unsigned long long)counters.host_bytes_peak,
                 (unsigned long long)plan->host_memory_bytes);
}

uint64_t number_in_message(const char *words)
{
    const char *at = strstr(tide_message(), words);
    return at ? strtoull(at + strlen(words), NULL, 10) : 0;
}

/* --- a run's mechanics --- */

void variant_describe(const variant *v, char what[160])
{
    static const char *const memory_names[] = {"all", "least"};
    snprintf(what, 160, "memory %s, chunks %u KiB, prefetch %d, recompute %d, placement %d, delays %llu",
             memory_names[v->memory], v->chunk_kib, v->prefetch, v->recompute, v->placement,
             (unsigned long long)v->delays);
}

uint64_t least_budget(const tide_trainer_options *options, bool device)
{
    tide_trainer_options refused = *options;
    *(device ? &refused.pool.device_memory_bytes : &refused.pool.host_memory_bytes) = 1;
    tide_trainer *trainer = NULL;
    assert_int_equal(tide_trainer_create(&refused, &trainer), TIDE_ERROR_BUDGET);
    const uint64_t bytes = number_in_message("the least budget is ");
    assert_true(bytes > 0);
    return bytes;
}

void variant_apply(const variant *v, tide_trainer_options *options)
{
    options->recompute = v->recompute;
    options->pool.chunk_bytes = (uint64_t)v->chunk_kib * 1024;
    options->pool.prefetch = v->prefetch;
    options->pool.placement = v->placement;
    options->pool.checks.delay_seed = v->delays;
    options->pool.checks.delay_max_us = v->delays != 0 ? 50 : 0;
    if (v->memory == ALL)
        return;
    options->pool.device_memory_bytes = least_budget(options, true);
    options->pool.host_memory_bytes = least_budget(options, false);
}
