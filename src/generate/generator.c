#include "src/generate/generator.h"

#include "base/align.h"
#include "base/minmax.h"
#include "src/checkpoint/check.h"
#include "src/checkpoint/folder.h"
#include "src/export/export.h"
#include "src/model/decoder_cached.h"
#include "src/pool/device_factory.h"
#include "src/train/pool_memory.h"
#include "src/train/sampler.h"
#include "src/train/weights_import.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct tide_generator {
    tide_generator_plan plan;
    tide_pool *pool;
    tide_decoder *model;
    tide_end_tokens ends;
    tide_sampler sampler;
    int32_t *tokens; /* [prompt_tokens + plan.tokens]: the prompt, then those made */
    float *logits;   /* [vocab_size] */
    uint32_t piece;  /* tokens of a pass of the prompt */
    uint32_t made;
    bool ended;
};

/* Where the model comes from, found before anything is built. */
typedef struct model_source {
    char weights[TIDE_CHECKPOINT_PATH_BYTES];  /* the folder with the weights' files */
    char sidecars[TIDE_CHECKPOINT_PATH_BYTES]; /* the folder with generation_config.json; "": none */
    tide_model_config config;
    tide_dtype dtype;
} model_source;

void tide_generator_options_default(tide_generator_options *options)
{
    *options = (tide_generator_options){.own_dtype = true, .tokens = 256, .seed = 1};
    tide_pool_options_default(&options->pool);
}

/* --- the model --- */

static tide_status path_keep(char to[TIDE_CHECKPOINT_PATH_BYTES], const char *path)
{
    if ((size_t)snprintf(to, TIDE_CHECKPOINT_PATH_BYTES, "%s", path) < TIDE_CHECKPOINT_PATH_BYTES)
        return TIDE_OK;
    return tide_fail(TIDE_ERROR_ARGUMENT, "model %.200s...: the path is too long", path);
}

static tide_status folder_find(const char *model, model_source *source)
{
    bool is_folder = false;
    if (tide_model_is_preset(model))
        return tide_fail(TIDE_ERROR_ARGUMENT,
                         "model %s is a preset and has no weights: give a folder or a checkpoint", model);
    tide_status status = tide_model_config_open(model, &source->config);
    if (status == TIDE_OK)
        status = tide_model_is_folder(model, &is_folder);
    if (status == TIDE_OK && !is_folder)
        return tide_fail(TIDE_ERROR_ARGUMENT,
                         "model %.900s is no folder and has no weights: give a folder or a checkpoint",
                         model);
    source->dtype = TIDE_DTYPE_BF16;
    if (status == TIDE_OK)
        status = path_keep(source->weights, model);
    return status == TIDE_OK ? path_keep(source->sidecars, model) : status;
}

typedef struct checksum_teller {
    tide_progress_callback progress;
    void *context;
} checksum_teller;

static void tell_checksum(void *context, uint64_t done_bytes, uint64_t total_bytes)
{
    const checksum_teller *teller = context;
    if (teller->progress != NULL)
        teller->progress(teller->context, "checksum", done_bytes, total_bytes);
}

/* Checks every byte of the checkpoint's params. Its model.safetensors is read like a folder's. */
static tide_status checkpoint_find(const tide_generator_options *options, model_source *source)
{
    tide_checkpoint_found found;
    tide_checkpoint_check check;
    char dir[TIDE_CHECKPOINT_PATH_BYTES];
    bool kept = false;
    checksum_teller teller = {options->pool.progress, options->pool.progress_context};
    tide_status status = tide_checkpoint_choose(tide_files_posix(), options->checkpoint, &found);
    if (status == TIDE_OK)
        status = tide_checkpoint_check_run(tide_files_posix(), found.path, TIDE_CHECKPOINT_PARAMS,
                                           tell_checksum, &teller, &check);
    if (status != TIDE_OK)
        return status;
    const tide_checkpoint_file_check *fault = tide_checkpoint_check_first(&check);
    if (fault != NULL)
        return tide_fail(fault->status, "%s", fault->message);
    source->config = check.state.model;
    source->dtype = check.state.dtype;
    tide_folder_parent(found.path, dir);
    status = tide_export_source_kept(tide_files_posix(), dir, source->sidecars, &kept);
    if (!kept)
        source->sidecars[0] = '\0';
    return status == TIDE_OK ? path_keep(source->weights, found.path) : status;
}

static tide_status source_find(const tide_generator_options *options, model_source *source)
{
    if ((options->model == NULL) == (options->checkpoint == NULL))
        return tide_fail(TIDE_ERROR_ARGUMENT, "give one of model and checkpoint");
    const tide_status status =
        options->model != NULL ? folder_find(options->model, source) : checkpoint_find(options, source);
    if (status == TIDE_OK && !options->own_dtype)
        source->dtype = options->dtype;
    return status;
}

/* --- the prompt --- */

static tide_status prompt_check(const tide_generator_options *options, const tide_model_config *config)
{
    const unsigned long long length = options->prompt_tokens;
    if (options->prompt == NULL || length == 0)
        return tide_fail(TIDE_ERROR_ARGUMENT, "the prompt is empty: it needs a token at least");
    for (uint64_t i = 0; i < length; i++)
        if (options->prompt[i] < 0 || (uint32_t)options->prompt[i] >= config->vocab_size)
            return tide_fail(
                TIDE_ERROR_ARGUMENT, "token %llu of the prompt is %lld: the vocabulary has tokens 0 to %u",
                (unsigned long long)i + 1, (long long)options->prompt[i], config->vocab_size - 1);
    if (length >= config->context)
        return tide_fail(
            TIDE_ERROR_ARGUMENT,
            "the prompt has %llu tokens: the model's context of %u leaves no place for a new one", length,
            config->context);
    return TIDE_OK;
}

/* Sets how many tokens are made at most. */
static tide_status tokens_find(const tide_generator_options *options, const tide_model_config *config,
                               uint32_t *tokens)
{
    const uint32_t length = (uint32_t)options->prompt_tokens, window = config->window;
    const uint32_t wanted = tide_min_u32(options->tokens, config->context - length);
    if (options->tokens == 0)
        return tide_fail(TIDE_ERROR_ARGUMENT, "0 tokens to make: at least 1");
    if (window != 0 && length >= window)
        return tide_fail(
            TIDE_ERROR_ARGUMENT,
            "the prompt has %u tokens: the model's attention has a sliding window of %u positions, "
            "only shorter texts, which need none, are built",
            length, window);
    if (window != 0 && length + wanted > window)
        return tide_fail(
            TIDE_ERROR_ARGUMENT,
            "a prompt of %u tokens and %u new ones: the model's attention has a sliding window of "
            "%u positions, only texts that need none are built; %u new tokens would do",
            length, wanted, window, window - length);
    *tokens = wanted;
    return TIDE_OK;
}

static tide_status prompt_take(const tide_generator_options *options, const model_source *source,
                               tide_generator *made)
{
    tide_generator_plan *plan = &made->plan;
    tide_status status = prompt_check(options, &source->config);
    if (status == TIDE_OK)
        status = tokens_find(options, &source->config, &plan->tokens);
    if (status != TIDE_OK)
        return status;
    plan->prompt_tokens = (uint32_t)options->prompt_tokens;
    made->piece = tide_min_u32(plan->prompt_tokens, TIDE_GENERATOR_PIECE_TOKENS);
    made->tokens = malloc(((size_t)plan->prompt_tokens + plan->tokens) * sizeof *made->tokens);
    made->logits = malloc(source->config.vocab_size * sizeof *made->logits);
    if (made->tokens == NULL || made->logits == NULL)
        return tide_fail(TIDE_ERROR_NO_MEMORY, "no memory for a text of %llu tokens",
                         (unsigned long long)plan->prompt_tokens + plan->tokens);
    memcpy(made->tokens, options->prompt, plan->prompt_tokens * sizeof *made->tokens);
    return TIDE_OK;
}

/* --- the pool --- */

static tide_status pool_make(const tide_generator_options *options, const model_source *source,
                             tide_generator *made)
{
    tide_pool_options pool = options->pool;
    tide_device_factory factory;
    tide_generator_plan *plan = &made->plan;
    if (tide_device_factory_is_null(pool.device))
        return tide_fail(TIDE_ERROR_ARGUMENT, "the null device computes nothing: it can't generate");
    tide_status status = tide_device_factory_find(pool.device, 0, &factory);
    if (status != TIDE_OK)
        return status;
    tide_kernels_cpu_configure(tide_device_factory_threads(&pool));
    status = tide_pool_memory_find(&factory, false, &pool);
    if (status != TIDE_OK)
        return status;
    const tide_decoder_options model = {.config = source->config,
                                        .dtype = source->dtype,
                                        .seq_len = 1,
                                        .micro_batch_sequences = made->piece,
                                        .micro_batches = 1,
                                        .cache_tokens = plan->prompt_tokens + plan->tokens,
                                        .sum_groups = 1,
                                        .kernels = factory.kernels};
    status = tide_decoder_create(&model, &made->model);
    if (status == TIDE_OK)
        status = tide_pool_create(&pool, tide_decoder_description(made->model), &made->pool);
    if (status == TIDE_OK)
        status = tide_pool_plan_get(made->pool, &plan->pool);
    if (status != TIDE_OK)
        return status;
    tide_decoder_attach(made->model, made->pool);
    plan->model = source->config;
    plan->dtype = source->dtype;
    plan->params = tide_model_element_count(&source->config);
    plan->cache_bytes = tide_decoder_cache_bytes(&model);
    plan->logits_bytes = plan->pool.nonmodel_bytes - plan->cache_bytes;
    return TIDE_OK;
}

static tide_status make(const tide_generator_options *options, tide_generator *made)
{
    model_source source = {.sidecars = ""};
    tide_weights_import *import = NULL;
    tide_status status = source_find(options, &source);
    if (status == TIDE_OK && source.sidecars[0] != '\0')
        status = tide_end_tokens_read(tide_files_posix(), source.sidecars, &made->ends);
    if (status == TIDE_OK)
        status = prompt_take(options, &source, made);
    if (status == TIDE_OK)
        status = tide_sampler_init(&made->sampler, source.config.vocab_size, options->top_k,
                                   options->temperature, options->seed, 0);
    if (status == TIDE_OK)
        status = tide_weights_import_open(&source.config, source.weights, &import);
    if (status == TIDE_OK)
        status = pool_make(options, &source, made);
    if (status == TIDE_OK)
        status = tide_weights_import_run(import, made->model, options->pool.progress,
                                         options->pool.progress_context, NULL);
    tide_weights_import_close(import);
    made->plan.end_tokens = made->ends.count;
    return status;
}

tide_status tide_generator_create(const tide_generator_options *options, tide_generator **generator)
{
    tide_generator *made = calloc(1, sizeof *made);
    if (made == NULL)
        return tide_fail(TIDE_ERROR_NO_MEMORY, "no memory for a generator");
    const tide_status status = make(options, made);
    if (status == TIDE_OK)
        *generator = made;
    else
        tide_generator_destroy(made);
    return status;
}

void tide_generator_destroy(tide_generator *generator)
{
    if (generator == NULL)
        return;
    tide_pool_destroy(generator->pool);
    tide_decoder_destroy(generator->model);
    tide_end_tokens_free(&generator->ends);
    tide_sampler_free(&generator->sampler);
    free(generator->tokens);
    free(generator->logits);
    free(generator);
}

const tide_generator_plan *tide_generator_plan_get(const tide_generator *generator)
{
    return &generator->plan;
}

const tide_pool *tide_generator_pool(const tide_generator *generator)
{
    return generator->pool;
}

/* --- tokens --- */

/* Gives up the open step, if one is open, and keeps the failure's message. */
static tide_status give_up(tide_generator *generator, tide_status status)
{
    char message[1024];
    (void)snprintf(message, sizeof message, "%s", tide_message());
    const tide_status aborted = tide_step_abort(generator->pool);
    (void)aborted; /* the generator can't go on in any case */
    generator->ended = true;
    return tide_fail(status, "%s", message);
}

static tide_status pass(tide_generator *generator, uint32_t first, uint32_t count, bool reads_logits)
{
    tide_status status = tide_step_begin(generator->pool, &(tide_step_options){.training = false});
    if (status == TIDE_OK)
        status = tide_decoder_cached_pass(generator->model, generator->tokens + first, count, first,
                                          reads_logits ? generator->logits : NULL);
    if (status == TIDE_OK)
        status = tide_step_end(generator->pool);
    return status == TIDE_OK ? TIDE_OK : give_up(generator, status);
}

/* Passes the prompt, in pieces; the last piece ends with the prompt. */
static tide_status pass_prompt(tide_generator *generator)
{
    const uint32_t length = generator->plan.prompt_tokens, piece = generator->piece;
    tide_status status = TIDE_OK;
    for (uint32_t first = 0; status == TIDE_OK && first < length; first += piece)
        status = pass(generator, tide_min_u32(first, length - piece), piece, first + piece >= length);
    return status;
}

tide_status tide_generator_next(tide_generator *generator, int32_t *token, bool *last)
{
    tide_generator_plan *plan = &generator->plan;
    if (generator->ended)
        return tide_fail(TIDE_ERROR_STATE, "the text has ended");
    const tide_status status = generator->made == 0
                                   ? pass_prompt(generator)
                                   : pass(generator, plan->prompt_tokens + generator->made - 1, 1, true);
    if (status != TIDE_OK)
        return status;
    const int32_t picked = tide_sampler_pick(&generator->sampler, generator->logits, generator->made);
    if (!isfinite(generator->logits[picked])) {
        generator->ended = true;
        return tide_fail(
            TIDE_ERROR_NONFINITE,
            "no logit of new token %u is finite: look for values that are not finite, or far too "
            "large for the dtype, in the model",
            generator->made + 1);
    }
    generator->tokens[plan->prompt_tokens + generator->made++] = picked;
    generator->ended = generator->made == plan->tokens || tide_end_tokens_have(&generator->ends, picked);
    *token = picked;
    *last = generator->ended;
    return TIDE_OK;
}
