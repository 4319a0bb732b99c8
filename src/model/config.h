/* What a model is: its family and sizes, from a preset or a config.json. */
#ifndef TIDE_MODEL_CONFIG_H
#define TIDE_MODEL_CONFIG_H

#include "tidepool/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct tide_family tide_family;

/* How the frequencies of rotary positions are made of theta (rope.h has the formulas). */
typedef enum tide_rope_kind {
    TIDE_ROPE_DEFAULT = 0, /* "default" */
    TIDE_ROPE_LINEAR,
    TIDE_ROPE_LLAMA3,
    TIDE_ROPE_YARN,
    TIDE_ROPE_KINDS,
} tide_rope_kind;

/* Fields that a kind has not are 0. */
typedef struct tide_rope {
    /* 1 or more, so that no frequency is above 1; 0: the family has positions of another kind */
    double theta;
    tide_rope_kind kind;
    double factor;                  /* all but PLAIN; 1 or more */
    double low_factor, high_factor; /* LLAMA3 */
    double original_context;        /* LLAMA3, YARN */
    double attention_factor;        /* YARN: of cosine and sine */
    double beta_fast, beta_slow;    /* YARN */
    bool exact; /* YARN: the ramp's ends are not rounded to whole dimensions ("truncate": false) */
} tide_rope;

typedef struct tide_model_config {
    char name[64]; /* a preset's name, or what config.json is called; for people only, never compared */
    const tide_family *family;
    uint32_t layers;     /* 1 .. 1024 */
    uint32_t width;      /* 1 .. 65536 */
    uint32_t heads;      /* 1 .. 1024 */
    uint32_t kv_heads;   /* heads of keys and values, divide `heads` */
    uint32_t head_width; /* 1 .. 4096; heads x head_width need not be width; even with rotary positions */
    uint32_t mlp_width;  /* 1 .. 1048576 */
    uint32_t context;    /* positions, 1 .. 16777216 */
    uint32_t vocab_size; /* 1 .. 16777216 */
    double norm_epsilon; /* in (0, 1) */
    bool tied;           /* the head is the token embedding */
    bool attention_bias; /* queries, keys and values have biases, */
    bool output_bias;    /* attention's projection, */
    bool mlp_bias;       /* and the MLP's layers */
    tide_rope rope;

    /* Of config.json; presets have none of it. */
    /* positions that some layer's attention sees at most; 0: all. Only sequences that fit into it are
     * built */
    uint32_t window;
    bool context_assumed; /* it has no field of `context`, which is transformers' default */
    /* 1 + the token (pad_token_id) whose embedding gets no gradient from inputs; 0: none */
    uint32_t padding_row;
    double attention_dropout, residual_dropout, embedding_dropout; /* asked for, and not done */
    /* set by whoever opens its weights: their names have the family's optional_prefix where `roles` have
     * none, or none where those have it */
    bool names_otherwise;
} tide_model_config;

/* A preset's name (tide_model_preset_name), or else the path of a Hugging Face config.json of a family that is built, or of a
 * folder with one, whose name the model then has. On failure *config is unchanged.
 *
 *   IO           no preset and no readable file; the message lists the presets
 *   CORRUPT      not JSON, a duplicate key, a field missing, of the wrong type or out of range
 *   UNSUPPORTED  a network that is not built (another activation, a sliding window, experts, ...: the field and
 *                its value), or another model type */
TIDE_NODISCARD tide_status tide_model_config_open(const char *model, tide_model_config *config);

/* The same from a config.json's text; `label` names it in messages. CORRUPT, UNSUPPORTED, NO_MEMORY as above. */
TIDE_NODISCARD tide_status tide_model_config_parse(const char *text, size_t bytes, const char *label,
                                                   tide_model_config *config);

/* The name of the preset with this shape and vocabulary; NULL: none has it. */
const char *tide_model_shape_name(const tide_model_config *config);

bool tide_model_is_preset(const char *name);

/* Whether `model`, which is no preset, is a folder; what is not there is none. IO: that can't be found out. */
TIDE_NODISCARD tide_status tide_model_is_folder(const char *model, bool *is_folder);

/* The n-th preset's name, NULL past the last. */
const char *tide_model_preset_name(size_t index);

/* Of config.json's model_type: "gpt2", "llama", "mistral", "qwen2", "qwen3". */
const char *tide_model_family_name(const tide_family *family);

/* NULL: no such family. */
const tide_family *tide_model_family_find(const char *name);

/* Fill in what the family says of a config whose other fields are set: GPT-2's head width, MLP and biases. */
void tide_model_config_complete(tide_model_config *config);

/* Ranges and divisibility, as the fields' comments say; call it after changing a field (--vocab-size).
 *   ARGUMENT     names the field, its value and what would be right; `label` says where the config came from */
TIDE_NODISCARD tide_status tide_model_config_check(const tide_model_config *config, const char *label);

bool tide_model_config_is_valid(const tide_model_config *config);

/* heads x head_width, and with kv_heads those of keys or of values. */
static inline uint32_t tide_model_query_width(const tide_model_config *config)
{
    return config->heads * config->head_width;
}

static inline uint32_t tide_model_kv_width(const tide_model_config *config)
{
    return config->kv_heads * config->head_width;
}

#endif
