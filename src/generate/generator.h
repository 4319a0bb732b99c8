/* A generator: a trained model that continues a prompt, one token at a time.
 *
 *     tide_generator_options_default    sets every option to its default
 *     tide_generator_create             opens the model, checks the prompt, makes the pool, reads the weights
 *     tide_generator_next               makes the next token, until one is the last
 *     tide_generator_destroy
 *
 * A token costs a pass of one row, whatever stands before it: the keys and values of all tokens before it are
 * kept (src/model/decoder_cached.h). The first token costs the prompt's passes too, each of
 * TIDE_GENERATOR_PIECE_TOKENS tokens. Params are frozen: 2 bytes each, or 4 in fp32, and they stream through
 * whatever budget the pool has.
 *
 * The tokens are a function of model, prompt, dtype, sampling options and seed, on one machine with one
 * thread count: budgets and the chunk size change none.
 *
 * The generator prints nothing. One thread makes all calls. */
#ifndef TIDE_GENERATE_GENERATOR_H
#define TIDE_GENERATE_GENERATOR_H

#include "src/generate/end_tokens.h"
#include "src/model/config.h"
#include "tidepool/pool.h"

/* How many tokens of a prompt pass at once; of a shorter prompt all. The last pass of a longer one begins
 * earlier, with tokens that have passed already, so that it has the same number. More tokens a pass read the
 * params less often; so many need less workspace than most models' caches. A constant, since it decides the
 * bits of matmuls. */
enum { TIDE_GENERATOR_PIECE_TOKENS = 512 };

typedef struct tide_generator tide_generator;

typedef struct tide_generator_options {
    /* exactly one of them: a folder of Hugging Face weights; a folder of checkpoints, of which the newest
     * counts, or one of them (DIR/step-N) */
    const char *model;
    const char *checkpoint;
    bool own_dtype; /* the checkpoint's run's dtype, of a folder bf16; `dtype` is not read */
    tide_dtype dtype;
    const int32_t *prompt; /* [prompt_tokens], at least one; read during create only */
    uint64_t prompt_tokens;
    uint32_t tokens;    /* the most to make, at least 1 */
    double temperature; /* 0: always the likeliest token */
    uint32_t top_k;     /* 0: all tokens */
    uint64_t seed;      /* of sampling */
    tide_pool_options pool;
} tide_generator_options;

/* No model and no prompt; 256 tokens, temperature 0, top_k 0, seed 1, own_dtype,
 * tide_pool_options_default. */
void tide_generator_options_default(tide_generator_options *options);

/* A generator's model, limits and memory. */
typedef struct tide_generator_plan {
    tide_pool_plan pool;
    tide_model_config model;
    tide_dtype dtype;
    uint32_t prompt_tokens;
    uint32_t tokens;       /* the most that it makes: those of the options, or what the context leaves */
    uint64_t params;       /* elements, as in files */
    uint64_t cache_bytes;  /* non-model region: keys and values of prompt_tokens + tokens positions */
    uint64_t logits_bytes; /* non-model region: logits, tokens and residual of a pass, rotary positions */
    size_t end_tokens;
} tide_generator_plan;

/* Create a generator.
 *   ARGUMENT     an option: both or neither of model and checkpoint, a model that is a preset, no prompt, a
 *                token outside the vocabulary, a prompt that the context leaves no place behind, prompt and
 *                tokens longer than the model's sliding window, a device that computes nothing
 *   IO, CORRUPT, MISMATCH   the model's files or the checkpoint
 *   BUDGET       as tide_pool_create says
 *   NO_MEMORY, UNSUPPORTED, DEVICE
 * On failure *generator is unchanged and nothing is left behind. */
TIDE_NODISCARD tide_status tide_generator_create(const tide_generator_options *options,
                                                 tide_generator **generator);
/* NULL is allowed. */
void tide_generator_destroy(tide_generator *generator);

const tide_generator_plan *tide_generator_plan_get(const tide_generator *generator);

/* The generator's pool, to read its counters. */
const tide_pool *tide_generator_pool(const tide_generator *generator);

/* Make the next token. *last: it is an end token of the model, or the plan's last. STATE: the last one has
 * been made. NONFINITE: the model's logits are not finite. Others: those of a step; the generator can't go
 * on. */
TIDE_NODISCARD tide_status tide_generator_next(tide_generator *generator, int32_t *token, bool *last);

#endif
