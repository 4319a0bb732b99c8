/* The description of a model: its family and sizes, from a preset or a config.json. */
#ifndef TIDE_MODEL_CONFIG_H
#define TIDE_MODEL_CONFIG_H

#include "tidepool/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct tide_family tide_family;

/* How the frequencies of rotary positions are computed from theta (rope.h has the formulas). */
typedef enum tide_rope_kind {
    TIDE_ROPE_DEFAULT = 0, /* no scaling: "default" in config.json */
    TIDE_ROPE_LINEAR,
    TIDE_ROPE_LLAMA3,
    TIDE_ROPE_YARN,
    TIDE_ROPE_KINDS,
} tide_rope_kind;

/* A model's rotary positions. Fields that the kind does not use are 0. */
typedef struct tide_rope {
    /* 1 or more, so that no frequency is above 1; 0: the family has no rotary positions */
    double theta;
    tide_rope_kind kind;
    double factor;                  /* of all kinds but DEFAULT; 1 or more */
    double low_factor, high_factor; /* LLAMA3 */
    double original_context;        /* LLAMA3, YARN */
    double attention_factor;        /* YARN: multiplies cosine and sine */
    double beta_fast, beta_slow;    /* YARN */
    bool exact; /* YARN: the ramp's ends are not rounded to whole dimensions ("truncate": false) */
} tide_rope;

typedef struct tide_model_config {
    char name[64]; /* a preset's name, a folder's or "config.json"; only for messages, never compared */
    const tide_family *family;
    uint32_t layers;     /* 1 .. 1024 */
    uint32_t width;      /* 1 .. 65536 */
    uint32_t heads;      /* 1 .. 1024 */
    uint32_t kv_heads;   /* heads of keys and of values; must divide `heads` */
    uint32_t head_width; /* 1 .. 4096, even with rotary positions; heads x head_width may differ from width */
    uint32_t mlp_width;  /* 1 .. 1048576 */
    uint32_t context;    /* positions, 1 .. 16777216 */
    uint32_t vocab_size; /* 1 .. 16777216 */
    double norm_epsilon; /* in (0, 1) */
    bool tied;           /* the head is the token embedding */
    bool attention_bias; /* do queries, keys and values have biases? */
    bool output_bias;    /* does attention's projection have one? */
    bool mlp_bias;       /* do the MLP's layers have them? */
    tide_rope rope;

    /* Only a config.json sets the rest; in presets it is 0. */
    /* if some layers have a sliding window: how many positions a query sees there, its own included; 0:
     * none has. tidepool runs only sequences that fit into the window */
    uint32_t window;
    /* config.json does not have the field for `context`, so transformers' default applies */
    bool context_assumed;
    /* 1 + the token (pad_token_id) whose embedding gets no gradient from inputs; 0: none */
    uint32_t padding_row;
    /* config.json's dropout rates; tidepool drops nothing out */
    double attention_dropout, residual_dropout, embedding_dropout;
    /* set by the code that opens the weights: names in the weights' files have the family's
     * optional_prefix although those in `roles` lack it, or lack it although those in `roles` have it */
    bool names_otherwise;
} tide_model_config;

/* Find a model. `model` is a preset's name (tide_model_preset_name), or else the path of a Hugging Face
 * config.json of a supported family, or of a folder with one; a model from a folder gets the folder's name.
 * On failure *config is unchanged.
 *
 *   IO           no preset and no readable file; the message lists the presets
 *   CORRUPT      not JSON, a duplicate key, a field missing, of the wrong type or out of range
 *   UNSUPPORTED  a network that tidepool does not compute (another activation function, a sliding window,
 *                experts, ...; the message has the field and its value), or another model type */
TIDE_NODISCARD tide_status tide_model_config_open(const char *model, tide_model_config *config);

/* Read the model from the text of a config.json, which messages call `label`. CORRUPT, UNSUPPORTED as above;
 * NO_MEMORY. */
TIDE_NODISCARD tide_status tide_model_config_parse(const char *text, size_t bytes, const char *label,
                                                   tide_model_config *config);

/* The name of the preset with the same shape and vocabulary; NULL: no preset has them. */
const char *tide_model_shape_name(const tide_model_config *config);

bool tide_model_is_preset(const char *name);

/* Is `model`, which is no preset, a folder? False if the path does not exist. IO: the path can't be
 * examined. */
TIDE_NODISCARD tide_status tide_model_is_folder(const char *model, bool *is_folder);

/* The n-th preset's name, NULL past the last. */
const char *tide_model_preset_name(size_t index);

/* The family's model_type in config.json: "gpt2", "llama", "mistral", "qwen2", "qwen3". */
const char *tide_model_family_name(const tide_family *family);

/* The family of this name; NULL: there is none. */
const tide_family *tide_model_family_find(const char *name);

/* Set the fields that the family derives from others: GPT-2's head width, MLP width and biases, for
 * example. */
void tide_model_config_complete(tide_model_config *config);

/* Check the ranges and divisibility that the fields' comments state. Call it after changing a field
 * (--vocab-size). ARGUMENT: the message names the field, its value and the right values, and `label`, where
 * the config came from. */
TIDE_NODISCARD tide_status tide_model_config_check(const tide_model_config *config, const char *label);

bool tide_model_config_is_valid(const tide_model_config *config);

/* The width of a row's queries, heads x head_width, and of its keys or its values, kv_heads x head_width. */
static inline uint32_t tide_model_query_width(const tide_model_config *config)
{
    return config->heads * config->head_width;
}

static inline uint32_t tide_model_kv_width(const tide_model_config *config)
{
    return config->kv_heads * config->head_width;
}

#endif
