/* Text from the model, one token at a time. Each token takes a full forward pass over the window: there is no
 * key-value cache, since it would be activations that outlive a step. Sampling is meant to show how well the
 * model learns, not to serve it. */
#include "src/train/trainer_internal.h"

#include "src/train/sampler.h"

#include <stdlib.h>
#include <string.h>

/* All tokens so far, the prompt's and the model's, and the text of the model's. */
typedef struct sample {
    int32_t *tokens;
    size_t count;
    int32_t *window; /* [seq_len] */
    float *logits;   /* [vocab_size] */
    char *text;
    size_t text_bytes;
} sample;

void tide_sample_options_default(tide_sample_options *options)
{
    *options = (tide_sample_options){.tokens = 200, .temperature = 0.8, .top_k = 40};
}

static void sample_free(sample *made)
{
    free(made->tokens);
    free(made->window);
    free(made->logits);
    free(made->text);
}

/* An empty prompt becomes one token, since the model needs one to start from. */
static void set_prompt(const tide_trainer *trainer, const char *prompt, size_t length, sample *made)
{
    for (size_t i = 0; i < length; i++)
        made->tokens[i] = tide_data_byte_token(prompt[i]);
    made->count = length;
    if (length > 0)
        return;
    const bool text = tide_data_count(trainer->data).format == TIDE_DATA_FORMAT_BYTES;
    made->tokens[made->count++] = text ? tide_data_byte_token('\n') : 0;
}

static tide_status sample_make(const tide_trainer *trainer, const tide_sample_options *options, sample *made)
{
    const size_t length = options->prompt ? strlen(options->prompt) : 0;
    if (length > 0 && tide_data_count(trainer->data).format != TIDE_DATA_FORMAT_BYTES)
        return tide_fail(TIDE_ERROR_ARGUMENT, "a prompt needs text data: these are token shards");
    *made = (sample){
        .tokens = malloc((length + 1 + options->tokens) * sizeof *made->tokens),
        .window = malloc(trainer->plan.seq_len * sizeof *made->window),
        .logits = malloc(trainer->state.model.vocab_size * sizeof *made->logits),
        .text = malloc((size_t)options->tokens * TIDE_DATA_SHOWN_BYTES + 1),
    };
    if (!made->tokens || !made->window || !made->logits || !made->text) {
        sample_free(made);
        return tide_fail(TIDE_ERROR_NO_MEMORY, "no memory to sample %u tokens", options->tokens);
    }
    made->text[0] = '\0';
    set_prompt(trainer, options->prompt, length, made);
    return TIDE_OK;
}

/* Put the last tokens at the window's beginning and zeros after them, which causal attention never reads.
 * Returns the last token's position. */
static uint32_t fill_window(const tide_trainer *trainer, sample *made)
{
    const size_t seq_len = trainer->plan.seq_len;
    const size_t used = made->count < seq_len ? made->count : seq_len;
    memcpy(made->window, made->tokens + made->count - used, used * sizeof *made->window);
    memset(made->window + used, 0, (seq_len - used) * sizeof *made->window);
    return (uint32_t)(used - 1);
}

static tide_status forward(tide_trainer *trainer, sample *made)
{
    const uint32_t position = fill_window(trainer, made);
    tide_status status = tide_step_begin(trainer->pool, &(tide_step_options){.training = false});
    if (status == TIDE_OK)
        status = tide_decoder_logits(trainer->model, made->window, position, made->logits);
    if (status == TIDE_OK)
        status = tide_step_end(trainer->pool);
    return status == TIDE_OK ? TIDE_OK : tide_trainer_abort(trainer, status);
}

static void append(const tide_trainer *trainer, int32_t token, sample *made)
{
    made->tokens[made->count++] = token;
    char shown[TIDE_DATA_SHOWN_BYTES];
    const size_t bytes = tide_data_show(tide_data_count(trainer->data).format, token, shown);
    memcpy(made->text + made->text_bytes, shown, bytes + 1);
    made->text_bytes += bytes;
}

tide_status tide_trainer_sample(tide_trainer *trainer, const tide_sample_options *options, char **text)
{
    tide_status status = tide_trainer_check_computes(trainer, "sample");
    if (status != TIDE_OK)
        return status;
    tide_sampler sampler;
    status = tide_sampler_init(&sampler, trainer->state.model.vocab_size, options->top_k,
                               options->temperature, trainer->state.seed, options->sample);
    if (status != TIDE_OK)
        return status;
    sample made = {0};
    status = sample_make(trainer, options, &made);
    if (status != TIDE_OK)
        goto free_sampler;
    for (uint32_t i = 0; status == TIDE_OK && i < options->tokens; i++) {
        status = forward(trainer, &made);
        int32_t token = status == TIDE_OK ? tide_sampler_pick(&sampler, made.logits, i) : 0;
        if (status == TIDE_OK)
            status = tide_comm_broadcast(trainer->comm, &token, sizeof token);
        if (status == TIDE_OK)
            append(trainer, token, &made);
    }
    if (status == TIDE_OK) {
        *text = made.text;
        made.text = NULL;
    }
    sample_free(&made);
free_sampler:
    tide_sampler_free(&sampler);
    return status;
}
