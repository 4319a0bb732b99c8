/* The list of all families, the length of each dimension in a model, and the check of a config. */
#include "src/model/family.h"

#include <stdio.h>
#include <string.h>

static const tide_family *const families[] = {&tide_family_gpt2, &tide_family_llama, &tide_family_mistral,
                                              &tide_family_qwen2, &tide_family_qwen3};

enum { FAMILIES = sizeof families / sizeof families[0] };

const tide_family *tide_model_family_at(size_t index)
{
    return index < FAMILIES ? families[index] : NULL;
}

const char *tide_model_family_name(const tide_family *family)
{
    return family->name;
}

const tide_family *tide_model_family_find(const char *name)
{
    for (size_t i = 0; i < FAMILIES; i++)
        if (strcmp(families[i]->name, name) == 0)
            return families[i];
    return NULL;
}

void tide_model_config_complete(tide_model_config *config)
{
    if (config->family->complete)
        config->family->complete(config);
}

uint64_t tide_model_dimension(const tide_model_config *config, tide_dimension dimension)
{
    switch (dimension) {
    case TIDE_DIMENSION_VOCABULARY:
        return config->vocab_size;
    case TIDE_DIMENSION_CONTEXT:
        return config->context;
    case TIDE_DIMENSION_WIDTH:
        return config->width;
    case TIDE_DIMENSION_QUERY:
        return tide_model_query_width(config);
    case TIDE_DIMENSION_KV:
        return tide_model_kv_width(config);
    case TIDE_DIMENSION_QKV:
        return tide_model_query_width(config) + 2ull * tide_model_kv_width(config);
    case TIDE_DIMENSION_HEAD:
        return config->head_width;
    case TIDE_DIMENSION_MLP:
        return config->mlp_width;
    case TIDE_DIMENSION_FC:
        return (tide_mlp_is_gated(config->family->mlp) ? 2ull : 1ull) * config->mlp_width;
    case TIDE_DIMENSION_NONE:
        break;
    }
    return 1;
}

/* ---- checks ---- */

const tide_config_field *tide_model_config_field(const tide_family *family, size_t offset)
{
    for (size_t i = 0; i < family->field_count; i++)
        if (family->fields[i].kind == TIDE_FIELD_SIZE && family->fields[i].offset == offset)
            return &family->fields[i];
    return NULL;
}

/* The field's key in config.json, for messages; `otherwise` if the family has none, as for GPT-2's head
 * width. */
static const char *key_of(const tide_model_config *config, size_t offset, const char *otherwise)
{
    const tide_config_field *field = tide_model_config_field(config->family, offset);
    return field ? field->key : otherwise;
}

/* NULL: the rotary positions are valid. Otherwise the fault, in `text`. */
static const char *rope_fault_of(const tide_rope *rope, char *text, size_t bytes)
{
    const bool llama3 = rope->kind == TIDE_ROPE_LLAMA3, yarn = rope->kind == TIDE_ROPE_YARN;
    if (!(rope->theta >= 1))
        snprintf(text, bytes, "rope_theta is %g, it must be 1 or more", rope->theta);
    else if ((unsigned)rope->kind >= TIDE_ROPE_KINDS)
        snprintf(text, bytes, "no kind of rotary positions is number %d", (int)rope->kind);
    else if (rope->kind != TIDE_ROPE_DEFAULT && !(rope->factor >= 1))
        snprintf(text, bytes, "the positions' factor is %g, it must be 1 or more", rope->factor);
    else if ((llama3 || yarn) && !(rope->original_context >= 1))
        snprintf(text, bytes, "original_max_position_embeddings is %g, it must be 1 or more",
                 rope->original_context);
    else if (llama3 && !(rope->low_factor > 0 && rope->high_factor > rope->low_factor))
        snprintf(text, bytes,
                 "low_freq_factor is %g and high_freq_factor %g, they must be above 0 and the latter above "
                 "the former",
                 rope->low_factor, rope->high_factor);
    else if (yarn && !(rope->attention_factor > 0 && rope->beta_fast > 0 && rope->beta_slow > 0))
        snprintf(text, bytes, "attention_factor is %g, beta_fast %g and beta_slow %g, they must be above 0",
                 rope->attention_factor, rope->beta_fast, rope->beta_slow);
    else
        return NULL;
    return text;
}

/* NULL: the config is valid. Otherwise the fault, in `text`. */
static const char *fault_of(const tide_model_config *config, char *text, size_t bytes)
{
    const size_t heads_at = offsetof(tide_model_config, heads);
    for (size_t i = 0; i < config->family->field_count; i++) {
        const tide_config_field *field = &config->family->fields[i];
        const uint32_t value =
            field->kind == TIDE_FIELD_SIZE ? *(const uint32_t *)((const char *)config + field->offset) : 1;
        if (value >= 1 && (field->kind != TIDE_FIELD_SIZE || value <= field->most))
            continue;
        if (value == 0 && field->offset == offsetof(tide_model_config, head_width) &&
            config->width % config->heads != 0)
            continue; /* reported below: width is no multiple of heads */
        snprintf(text, bytes, "%s is %u, it must be in 1 .. %u", field->key, value, field->most);
        return text;
    }
    if (!tide_model_config_field(config->family, offsetof(tide_model_config, head_width)) ||
        config->head_width == 0) {
        if (config->width % config->heads != 0) {
            snprintf(text, bytes, "%s is %u, it must be a multiple of %s, which is %u",
                     key_of(config, offsetof(tide_model_config, width), "width"), config->width,
                     key_of(config, heads_at, "heads"), config->heads);
            return text;
        }
    }
    if (config->heads % config->kv_heads != 0)
        snprintf(text, bytes, "%s is %u, it must be a multiple of %s, which is %u",
                 key_of(config, heads_at, "heads"), config->heads,
                 key_of(config, offsetof(tide_model_config, kv_heads), "kv_heads"), config->kv_heads);
    else if (config->family->rotary && config->head_width % 2 != 0)
        snprintf(text, bytes, "heads of width %u (head_dim): it must be even, for rotary positions",
                 config->head_width);
    else if ((uint64_t)config->heads * config->head_width > 1u << 20)
        snprintf(text, bytes, "%u heads of width %u: they must hold %u together at the most", config->heads,
                 config->head_width, 1u << 20);
    else if (!(config->norm_epsilon > 0 && config->norm_epsilon < 1))
        snprintf(text, bytes, "the norms' epsilon is %g, it must be between 0 and 1", config->norm_epsilon);
    else
        return config->family->rotary ? rope_fault_of(&config->rope, text, bytes) : NULL;
    return text;
}

tide_status tide_model_config_check(const tide_model_config *config, const char *label)
{
    char text[256];
    const char *fault = fault_of(config, text, sizeof text);
    return fault ? tide_fail(TIDE_ERROR_ARGUMENT, "model %s: %s", label, fault) : TIDE_OK;
}

bool tide_model_config_is_valid(const tide_model_config *config)
{
    char text[256];
    return config->family != NULL && !fault_of(config, text, sizeof text);
}
