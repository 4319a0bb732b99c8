/* Mistral (Jiang et al. 2023): Llama's blocks without biases. Its sliding window is not supported. */
#include "src/model/llama.h"

static const tide_config_field fields[] = {
    TIDE_LLAMA_COMMON_FIELDS,
    {.key = "sliding_window", .kind = TIDE_FIELD_WINDOW},
};

static const tide_model_config presets[] = {
    {.family = NULL},
};

const tide_family tide_family_mistral = {
    TIDE_LLAMA_FAMILY,
    .name = "mistral",
    .architecture = "MistralForCausalLM",
    .presets = presets,
    .fields = fields,
    .field_count = sizeof fields / sizeof fields[0],
    .window = TIDE_WINDOW_ALL,
    .defaults = {.context = 4096 * 32, .norm_epsilon = 1e-6, .kv_heads = 8, .rope = {.theta = 10000}},
    .complete = tide_llama_complete,
};
