/* What a GPT-2 is: its sizes, from a preset or a config.json. */
#ifndef TIDE_MODEL_CONFIG_H
#define TIDE_MODEL_CONFIG_H

#include "tidepool/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct tide_gpt2_config {
    char name[64];             /* a preset's name, or "config.json"; for people only, never compared */
    uint32_t layers;           /* 1 .. 1024 */
    uint32_t width;            /* 1 .. 65536, a multiple of heads */
    uint32_t heads;            /* 1 .. 1024 */
    uint32_t context;          /* positions, 1 .. 1048576 */
    uint32_t vocab_size;       /* 1 .. 16777216 */
    double layer_norm_epsilon; /* in (0, 1); 1e-5 in every GPT-2 */
} tide_gpt2_config;

/* A preset's name (gpt2-nano, gpt2, gpt2-medium, gpt2-large, gpt2-xl), or else the path of a Hugging Face
 * config.json of type gpt2. The dropout fields (resid_pdrop, embd_pdrop, attn_pdrop, summary_first_dropout)
 * are ignored: tidepool trains without dropout. On failure *config is unchanged.
 *
 *   IO           no preset and no readable file; the message lists the presets
 *   CORRUPT      not JSON, a duplicate key, a field missing, of the wrong type or out of range
 *   UNSUPPORTED  a GPT-2 variant that is not built (another activation, untied head, scaled attention, n_inner), another
 *                model type, or a build without jansson */
TIDE_NODISCARD tide_status tide_gpt2_config_open(const char *model, tide_gpt2_config *config);

/* The same from a config.json's text; `origin` names it in messages. CORRUPT, UNSUPPORTED, NO_MEMORY as
 * above. */
TIDE_NODISCARD tide_status tide_gpt2_config_parse(const char *text, size_t bytes, const char *origin,
                                                  tide_gpt2_config *config);

/* The name of the preset with this shape and vocabulary; NULL: none has it. */
const char *tide_model_shape_name(const tide_gpt2_config *config);

/* The n-th preset's name, NULL past the last. */
const char *tide_gpt2_preset_name(size_t index);

/* Ranges and divisibility, as the fields' comments say; call it after changing a field (--vocab-size).
 *   ARGUMENT     names the field, its value and what would be right; `origin` says where it came from */
TIDE_NODISCARD tide_status tide_gpt2_config_check(const tide_gpt2_config *config, const char *origin);

bool tide_gpt2_config_is_valid(const tide_gpt2_config *config);

#endif
