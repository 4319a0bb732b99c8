/* Qwen2 and Qwen2.5 (Yang et al. 2024): Llama's blocks; queries, keys and values have biases, whatever
 * config.json says. */
#include "src/model/llama.h"

static void complete(tide_model_config *config)
{
    tide_llama_complete(config);
    config->attention_bias = true;
    config->output_bias = false;
}

static const tide_config_field fields[] = {
    TIDE_LLAMA_COMMON_FIELDS,
    {.key = "use_sliding_window", .kind = TIDE_FIELD_WINDOW},
};

static const tide_model_config presets[] = {
    {.name = "qwen2.5-7b",
     .family = &tide_family_qwen2,
     .layers = 28,
     .width = 3584,
     .heads = 28,
     .kv_heads = 4,
     .mlp_width = 18944,
     .context = 131072,
     .vocab_size = 152064,
     .norm_epsilon = 1e-6,
     .rope = {.theta = 1000000}},
    {.family = NULL},
};

const tide_family tide_family_qwen2 = {
    TIDE_LLAMA_FAMILY,
    .name = "qwen2",
    .architecture = "Qwen2ForCausalLM",
    .presets = presets,
    .fields = fields,
    .field_count = sizeof fields / sizeof fields[0],
    .window = TIDE_WINDOW_UPPER,
    .defaults = {.context = 32768, .norm_epsilon = 1e-6, .kv_heads = 32, .rope = {.theta = 10000}},
    .complete = complete,
};
