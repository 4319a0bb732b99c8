#include "tools/model_text.h"

#include "tools/units.h"

#include <stdio.h>

const char *tide_model_text(const tide_model_config *config, char text[TIDE_MODEL_TEXT_BYTES])
{
    char layers[TIDE_UNITS_TEXT_BYTES], heads[TIDE_UNITS_TEXT_BYTES], of[32] = "", keys[48] = "",
                                                                      mlp[32] = "";
    if ((uint64_t)config->heads * config->head_width != config->width)
        snprintf(of, sizeof of, " of %u", config->head_width);
    if (config->kv_heads != config->heads)
        snprintf(keys, sizeof keys, " (%u of keys and values)", config->kv_heads);
    if (config->mlp_width != 4 * (uint64_t)config->width)
        snprintf(mlp, sizeof mlp, ", MLP %u", config->mlp_width);
    snprintf(text, TIDE_MODEL_TEXT_BYTES, "%s, width %u, %s%s%s%s, context %u, vocabulary %u",
             tide_count_noun(config->layers, "layer", layers), config->width,
             tide_count_noun(config->heads, "head", heads), of, keys, mlp, config->context,
             config->vocab_size);
    return text;
}
