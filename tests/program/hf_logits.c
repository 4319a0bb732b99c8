/* Writes the logits that a Hugging Face folder's model computes for some tokens. tools/dev/hf_check.py
 * compares them with those of transformers.
 *
 *     hf_logits FOLDER fp32|bf16|fp16 DATA TOKENS OUT
 *
 * DATA is any text file, which the trainer needs to be opened; TOKENS is a file of int32, one sequence;
 * OUT receives float32 [tokens, vocabulary]. This is a helper and not a test: the program tidepool has no
 * command that prints logits. */
#include "src/train/trainer_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void ok(tide_status status)
{
    if (status == TIDE_OK)
        return;
    fprintf(stderr, "hf_logits: %s\n", tide_message());
    exit(1);
}

static void need(bool good, const char *what)
{
    if (good)
        return;
    fprintf(stderr, "hf_logits: %s\n", what);
    exit(1);
}

static tide_dtype dtype_named(const char *name)
{
    for (tide_dtype dtype = TIDE_DTYPE_FP32; dtype <= TIDE_DTYPE_FP16; dtype++)
        if (strcmp(name, tide_dtype_name(dtype)) == 0)
            return dtype;
    need(false, "the dtype is one of fp32, bf16, fp16");
    return TIDE_DTYPE_FP32;
}

static int32_t *tokens_read(const char *path, size_t *count)
{
    enum { MOST = 4096 };
    int32_t *tokens = malloc(MOST * sizeof *tokens);
    FILE *file = fopen(path, "rb");
    need(tokens && file, "the tokens can't be read");
    *count = fread(tokens, sizeof *tokens, MOST, file);
    need(fclose(file) == 0 && *count > 0, "there are no tokens");
    return tokens;
}

int main(int count, char **arguments)
{
    need(count == 6, "usage: hf_logits FOLDER DTYPE DATA TOKENS OUT");
    size_t tokens_count;
    int32_t *tokens = tokens_read(arguments[4], &tokens_count);
    tide_trainer_options options;
    tide_trainer_options_default(&options);
    ok(tide_model_config_open(arguments[1], &options.model));
    options.weights = arguments[1];
    options.data = arguments[3];
    options.seq_len = (uint32_t)tokens_count;
    options.global_batch_tokens = tokens_count;
    options.pool.device = "host";
    options.dtype = dtype_named(arguments[2]);
    options.pool.chunk_bytes = 1 << 20;
    tide_trainer *trainer;
    ok(tide_trainer_create(&options, &trainer));
    float *logits = malloc(options.model.vocab_size * sizeof *logits);
    FILE *out = fopen(arguments[5], "wb");
    need(logits && out, "the logits can't be written");
    for (uint32_t position = 0; position < tokens_count; position++) {
        ok(tide_step_begin(trainer->pool, &(tide_step_options){.training = false}));
        ok(tide_decoder_logits(trainer->model, tokens, position, logits));
        ok(tide_step_end(trainer->pool));
        need(fwrite(logits, sizeof *logits, options.model.vocab_size, out) == options.model.vocab_size,
             "the logits can't be written");
    }
    need(fclose(out) == 0, "the logits can't be written");
    tide_trainer_destroy(trainer);
    free(logits);
    free(tokens);
    return 0;
}
