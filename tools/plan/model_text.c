#include "tools/plan/model_text.h"

#include "src/model/family.h"
#include "tools/units.h"

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

/* Warns about dropout rates in config.json: transformers would apply them in fine-tuning, tidepool does
 * not. */
static void dropout_note(const tide_model_config *config, FILE *out)
{
    const char *between = "transformers would train this model with dropout (";
    for (size_t i = 0; i < config->family->field_count; i++) {
        const tide_config_field *field = &config->family->fields[i];
        const double rate =
            field->kind == TIDE_FIELD_RATE ? *(const double *)((const char *)config + field->offset) : 0;
        if (rate == 0)
            continue;
        fprintf(out, "%s%s %g", between, field->key, rate);
        between = ", ";
    }
    if (between[0] == ',')
        fprintf(out, "); tidepool trains without\n");
}

void tide_model_notes(const tide_model_config *config, FILE *out)
{
    const char *family = tide_model_family_name(config->family);
    if (config->context_assumed)
        fprintf(out, "config.json has no %s: it is %u, transformers' default for %s\n",
                tide_model_config_field(config->family, offsetof(tide_model_config, context))->key,
                config->context, family);
    if (config->window != 0)
        fprintf(out,
                "attention has a sliding window of %u positions: sequences are at most that long, which "
                "need none\n",
                config->window);
    dropout_note(config, out);
    if (config->padding_row != 0)
        fprintf(out,
                "token %u is padding (pad_token_id): as in transformers its embedding gets no gradient from "
                "inputs%s\n",
                config->padding_row - 1, config->tied ? ", only from the head" : "");
}
