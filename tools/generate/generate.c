/* tidepool generate: continues a prompt of token ids. Standard output gets the new tokens' ids and nothing
 * else; with --report standard error gets the rest. */
#include "base/clock.h"
#include "base/write_error.h"
#include "src/generate/generator.h"
#include "src/pool/device_factory.h"
#include "tools/command.h"
#include "tools/generate/generate_options.h"
#include "tools/generate/prompt_file.h"
#include "tools/train/train_report.h"
#include "tools/units.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

static const char command_name[] = "tidepool generate";

typedef struct generate_run {
    tide_generate_settings settings;
    tide_generator_options options;
    tide_generator *generator;
    int32_t *prompt;
    char device[TIDE_DEVICE_FACTORY_NAME_BYTES];
    char no_gpu[TIDE_DEVICE_FACTORY_REASON_BYTES];
    tide_making making;
    tide_pool_counters begin, first; /* before the first token, and after it */
    double begin_s, first_s, end_s;
    uint32_t made;
} generate_run;

static tide_status options_make(generate_run *run)
{
    static const tide_dtype dtypes[] = {TIDE_DTYPE_BF16, TIDE_DTYPE_BF16, TIDE_DTYPE_FP16, TIDE_DTYPE_FP32};
    const tide_generate_settings *settings = &run->settings;
    tide_generator_options *options = &run->options;
    if ((settings->model == NULL) == (settings->checkpoint == NULL))
        return tide_fail(TIDE_ERROR_ARGUMENT, "%s: %s", command_name,
                         settings->model == NULL ? "--model DIR or --checkpoint DIR is required"
                                                 : "give --model or --checkpoint, not both");
    tide_generator_options_default(options);
    options->model = settings->model;
    options->checkpoint = settings->checkpoint;
    options->own_dtype = settings->dtype == 0;
    options->dtype = dtypes[settings->dtype];
    options->tokens = settings->tokens;
    options->temperature = settings->temperature;
    options->top_k = settings->top_k;
    options->seed = settings->seed;
    options->pool.device_memory_bytes = settings->device_memory_bytes;
    options->pool.host_memory_bytes = settings->host_memory_bytes;
    options->pool.chunk_bytes = settings->chunk_bytes;
    options->pool.threads = settings->threads;
    options->pool.progress = tide_making_show;
    options->pool.progress_context = &run->making;
    const tide_status status =
        tide_prompt_file_read(settings->prompt_ids, &run->prompt, &options->prompt_tokens);
    options->prompt = run->prompt;
    return status;
}

static void device_find(generate_run *run)
{
    run->options.pool.device = run->settings.device;
    if (strcmp(run->settings.device, "auto") != 0)
        return;
    tide_device_factory_choose(run->settings.chunk_bytes, run->device, run->no_gpu);
    run->options.pool.device = run->device;
}

/* ---- the report ---- */

static void bytes_print(const char *name, uint64_t bytes, const char *note)
{
    char exact[TIDE_UNITS_TEXT_BYTES], human[TIDE_UNITS_TEXT_BYTES];
    fprintf(stderr, "  %-32s%18s B %12s%s%s\n", name, tide_count_format(bytes, exact),
            tide_size_format(bytes, human), note[0] != '\0' ? "   " : "", note);
}

/* INTERNAL if the parts of a budget are not exactly the whole. */
static tide_status plan_print(const generate_run *run)
{
    const tide_generator_plan *plan = tide_generator_plan_get(run->generator);
    const tide_pool_plan *pool = &plan->pool;
    const uint64_t other_bytes = pool->region_bytes - pool->nonmodel_bytes - pool->workspace_bytes;
    const uint64_t slots_bytes = pool->device_slots * pool->chunk_bytes;
    const uint64_t margin_bytes = pool->device_memory_bytes - slots_bytes - pool->region_bytes;
    char note[96], text[TIDE_UNITS_TEXT_BYTES], more[TIDE_UNITS_TEXT_BYTES], most[TIDE_UNITS_TEXT_BYTES],
        ends[TIDE_UNITS_TEXT_BYTES];
    fprintf(stderr, "%s, %s params in %s, on %s%s%s; prompt of %s, at most %s more, %s\n", plan->model.name,
            tide_count_format(plan->params, text), tide_dtype_name(plan->dtype), run->options.pool.device,
            run->no_gpu[0] != '\0' ? ": " : "", run->no_gpu,
            tide_count_noun(plan->prompt_tokens, "token", more), tide_count_format(plan->tokens, most),
            tide_count_noun(plan->end_tokens, "end token", ends));
    snprintf(note, sizeof note, "%u chunks of %s", pool->chunks[TIDE_SPACE_PARAM],
             tide_size_format_exact(pool->chunk_bytes, text));
    bytes_print("params", pool->model_bytes, note);
    bytes_print("device budget", pool->device_memory_bytes, "");
    snprintf(note, sizeof note, "%u x %s", pool->device_slots,
             tide_size_format_exact(pool->chunk_bytes, text));
    bytes_print("  slots", slots_bytes, note);
    snprintf(note, sizeof note, "of %llu positions", (unsigned long long)plan->prompt_tokens + plan->tokens);
    bytes_print("  keys and values", plan->cache_bytes, note);
    bytes_print("  tokens, residual, logits", plan->logits_bytes, "");
    bytes_print("  workspace", pool->workspace_bytes, pool->largest_op);
    bytes_print("  scalars", other_bytes, "");
    bytes_print("  unused", margin_bytes, "");
    bytes_print("host budget", pool->host_memory_bytes, "");
    fprintf(stderr, "  least device budget %s, everything resident with %s\n",
            tide_size_format(pool->least_device_bytes, text),
            tide_size_format(pool->full_device_bytes, more));
    if (slots_bytes + plan->cache_bytes + plan->logits_bytes + pool->workspace_bytes + other_bytes +
            margin_bytes !=
        pool->device_memory_bytes)
        return tide_fail(TIDE_ERROR_INTERNAL, "the plan does not add up: the device budget is %llu bytes",
                         (unsigned long long)pool->device_memory_bytes);
    return TIDE_OK;
}

static void speed_print(const generate_run *run)
{
    tide_pool_counters end;
    char tokens[TIDE_UNITS_TEXT_BYTES], moved[TIDE_UNITS_TEXT_BYTES];
    const uint32_t prompt = tide_generator_plan_get(run->generator)->prompt_tokens, later = run->made - 1;
    if (run->made == 0 || tide_pool_counters_get(tide_generator_pool(run->generator), &end) != TIDE_OK)
        return;
    const double prompt_s = run->first_s - run->begin_s, later_s = run->end_s - run->first_s;
    fprintf(stderr, "prompt of %s and the first new one in %.3f s, %.1f tokens/s; %s copied to the device\n",
            tide_count_noun(prompt, "token", tokens), prompt_s, prompt / prompt_s,
            tide_size_format(run->first.h2d_bytes - run->begin.h2d_bytes, moved));
    if (later > 0)
        fprintf(stderr, "%s more in %.3f s, %.1f tokens/s; %s copied to the device for each\n",
                tide_count_noun(later, "token", tokens), later_s, later / later_s,
                tide_size_format((end.h2d_bytes - run->first.h2d_bytes) / later, moved));
}

/* ---- the run ---- */

static tide_status counters_take(const generate_run *run, tide_pool_counters *counters, double *seconds)
{
    *seconds = tide_clock_seconds();
    return run->settings.report ? tide_pool_counters_get(tide_generator_pool(run->generator), counters)
                                : TIDE_OK;
}

static tide_status token_print(int32_t token)
{
    if (printf("%d\n", token) >= 0 && fflush(stdout) == 0)
        return TIDE_OK;
    return tide_fail(TIDE_ERROR_IO, "standard output could not be written: %s", tide_write_error(errno));
}

static tide_status tokens_make(generate_run *run)
{
    bool last = false;
    tide_status status = counters_take(run, &run->begin, &run->begin_s);
    while (status == TIDE_OK && !last) {
        int32_t token;
        status = tide_generator_next(run->generator, &token, &last);
        if (status == TIDE_OK && run->made++ == 0)
            status = counters_take(run, &run->first, &run->first_s);
        if (status == TIDE_OK)
            status = token_print(token);
    }
    run->end_s = tide_clock_seconds();
    return status;
}

static tide_status run_all(generate_run *run)
{
    tide_status status = options_make(run);
    if (status != TIDE_OK)
        return status;
    device_find(run);
    tide_making_begin(&run->making, stderr);
    status = tide_generator_create(&run->options, &run->generator);
    tide_making_end(&run->making);
    if (status == TIDE_OK && run->settings.report)
        status = plan_print(run);
    if (status == TIDE_OK)
        status = tokens_make(run);
    if (status == TIDE_OK && run->settings.report)
        speed_print(run);
    return status;
}

int tide_command_generate(int count, char *const *arguments)
{
    if (tide_options_asked(count, arguments, "--help") || tide_options_asked(count, arguments, "-h")) {
        tide_options_help(&tide_generate_table, stdout);
        return TIDE_EXIT_OK;
    }
    generate_run run = {.prompt = NULL};
    tide_status status = tide_options_parse(&tide_generate_table, count, arguments, &run.settings, NULL);
    if (status == TIDE_OK)
        status = run_all(&run);
    tide_generator_destroy(run.generator);
    free(run.prompt);
    return status == TIDE_OK ? TIDE_EXIT_OK : tide_command_failed(command_name, status);
}
