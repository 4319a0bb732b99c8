/* Qwen3, dense (Yang et al. 2025): Llama's blocks, with an RMS norm of every query and key head and a head
 * width that does not depend on width. */
#include "src/model/llama.h"

static const tide_config_field fields[] = {
    TIDE_LLAMA_COMMON_FIELDS,
    {.key = "use_sliding_window", .kind = TIDE_FIELD_WINDOW},
    {"attention_bias", NULL, TIDE_FIELD_FLAG, false, offsetof(tide_model_config, attention_bias), 0, NULL},
};

static const tide_model_config presets[] = {
    {.name = "qwen3-8b",
     .family = &tide_family_qwen3,
     .layers = 36,
     .width = 4096,
     .heads = 32,
     .kv_heads = 8,
     .head_width = 128,
     .mlp_width = 12288,
     .context = 40960,
     .vocab_size = 151936,
     .norm_epsilon = 1e-6,
     .rope = {.theta = 1000000}},
    {.name = "qwen3-32b",
     .family = &tide_family_qwen3,
     .layers = 64,
     .width = 5120,
     .heads = 64,
     .kv_heads = 8,
     .head_width = 128,
     .mlp_width = 25600,
     .context = 40960,
     .vocab_size = 151936,
     .norm_epsilon = 1e-6,
     .rope = {.theta = 1000000}},
    {.family = NULL},
};

const tide_family tide_family_qwen3 = {
    TIDE_LLAMA_FAMILY,
    .name = "qwen3",
    .architecture = "Qwen3ForCausalLM",
    .presets = presets,
    .fields = fields,
    .field_count = sizeof fields / sizeof fields[0],
    .window = TIDE_WINDOW_UPPER,
    .defaults =
        {.context = 32768, .norm_epsilon = 1e-6, .kv_heads = 32, .head_width = 128, .rope = {.theta = 10000}},
    .head_norms = true,
    .complete = tide_llama_complete,
};
