/* Llama 2 and 3 (Touvron et al. 2023; Grattafiori et al. 2024): RMS norm, rotary positions, grouped-query
 * attention, SwiGLU. */
#include "src/model/llama.h"

static bool has_attention_bias(const tide_model_config *config)
{
    return config->attention_bias;
}

static bool has_output_bias(const tide_model_config *config)
{
    return config->output_bias;
}

static bool has_mlp_bias(const tide_model_config *config)
{
    return config->mlp_bias;
}

static bool has_head_norms(const tide_model_config *config)
{
    return config->family->head_norms;
}

static bool has_head(const tide_model_config *config)
{
    return !config->tied;
}

const tide_role_entry tide_llama_roles[TIDE_LLAMA_ROLES] = {
    {.role = TIDE_ROLE_TOKEN_EMBEDDING,
     .tensors = {{"model.embed_tokens.weight", TIDE_DIMENSION_VOCABULARY}},
     .columns = TIDE_DIMENSION_WIDTH},
    {.role = TIDE_ROLE_NORM_1_WEIGHT,
     .tensors = {{"input_layernorm.weight", TIDE_DIMENSION_WIDTH}},
     .init = TIDE_INIT_RULE_SCALE},
    {.role = TIDE_ROLE_QKV_WEIGHT,
     .tensors = {{"self_attn.q_proj.weight", TIDE_DIMENSION_QUERY},
                 {"self_attn.k_proj.weight", TIDE_DIMENSION_KV},
                 {"self_attn.v_proj.weight", TIDE_DIMENSION_KV}},
     .columns = TIDE_DIMENSION_WIDTH},
    {.role = TIDE_ROLE_QKV_BIAS,
     .tensors = {{"self_attn.q_proj.bias", TIDE_DIMENSION_QUERY},
                 {"self_attn.k_proj.bias", TIDE_DIMENSION_KV},
                 {"self_attn.v_proj.bias", TIDE_DIMENSION_KV}},
     .init = TIDE_INIT_RULE_BIAS,
     .is_there = has_attention_bias},
    {.role = TIDE_ROLE_Q_NORM_WEIGHT,
     .tensors = {{"self_attn.q_norm.weight", TIDE_DIMENSION_HEAD}},
     .init = TIDE_INIT_RULE_SCALE,
     .is_there = has_head_norms},
    {.role = TIDE_ROLE_K_NORM_WEIGHT,
     .tensors = {{"self_attn.k_norm.weight", TIDE_DIMENSION_HEAD}},
     .init = TIDE_INIT_RULE_SCALE,
     .is_there = has_head_norms},
    {.role = TIDE_ROLE_ATTENTION_WEIGHT,
     .tensors = {{"self_attn.o_proj.weight", TIDE_DIMENSION_WIDTH}},
     .columns = TIDE_DIMENSION_QUERY,
     .init = TIDE_INIT_RULE_RESIDUAL},
    {.role = TIDE_ROLE_ATTENTION_BIAS,
     .tensors = {{"self_attn.o_proj.bias", TIDE_DIMENSION_WIDTH}},
     .init = TIDE_INIT_RULE_BIAS,
     .is_there = has_output_bias},
    {.role = TIDE_ROLE_NORM_2_WEIGHT,
     .tensors = {{"post_attention_layernorm.weight", TIDE_DIMENSION_WIDTH}},
     .init = TIDE_INIT_RULE_SCALE},
    {.role = TIDE_ROLE_FC_WEIGHT,
     .tensors = {{"mlp.gate_proj.weight", TIDE_DIMENSION_MLP}, {"mlp.up_proj.weight", TIDE_DIMENSION_MLP}},
     .columns = TIDE_DIMENSION_WIDTH},
    {.role = TIDE_ROLE_FC_BIAS,
     .tensors = {{"mlp.gate_proj.bias", TIDE_DIMENSION_MLP}, {"mlp.up_proj.bias", TIDE_DIMENSION_MLP}},
     .init = TIDE_INIT_RULE_BIAS,
     .is_there = has_mlp_bias},
    {.role = TIDE_ROLE_MLP_WEIGHT,
     .tensors = {{"mlp.down_proj.weight", TIDE_DIMENSION_WIDTH}},
     .columns = TIDE_DIMENSION_MLP,
     .init = TIDE_INIT_RULE_RESIDUAL},
    {.role = TIDE_ROLE_MLP_BIAS,
     .tensors = {{"mlp.down_proj.bias", TIDE_DIMENSION_WIDTH}},
     .init = TIDE_INIT_RULE_BIAS,
     .is_there = has_mlp_bias},
    {.role = TIDE_ROLE_NORM_F_WEIGHT,
     .tensors = {{"model.norm.weight", TIDE_DIMENSION_WIDTH}},
     .init = TIDE_INIT_RULE_SCALE},
    {.role = TIDE_ROLE_HEAD,
     .tensors = {{"lm_head.weight", TIDE_DIMENSION_VOCABULARY}},
     .columns = TIDE_DIMENSION_WIDTH,
     .is_there = has_head},
};

const char *const tide_llama_ignored[] = {"*.rotary_emb.inv_freq", NULL};

void tide_llama_complete(tide_model_config *config)
{
    if (config->kv_heads == 0)
        config->kv_heads = config->heads;
    if (config->head_width == 0 && config->heads != 0 && config->width % config->heads == 0)
        config->head_width = config->width / config->heads;
    config->output_bias = config->attention_bias;
}

static const tide_config_field fields[] = {
    TIDE_LLAMA_COMMON_FIELDS,
    {"attention_bias", NULL, TIDE_FIELD_FLAG, false, offsetof(tide_model_config, attention_bias), 0, NULL},
    {"mlp_bias", NULL, TIDE_FIELD_FLAG, false, offsetof(tide_model_config, mlp_bias), 0, NULL},
};

#define LLAMA3(label, of_layers, of_width, of_heads, mlp, scale)                                             \
    .name = label, .family = &tide_family_llama, .layers = (of_layers), .width = (of_width),                 \
    .heads = (of_heads), .kv_heads = 8, .mlp_width = (mlp), .context = 131072, .vocab_size = 128256,         \
    .norm_epsilon = 1e-5,                                                                                    \
    .rope = {.theta = 500000,                                                                                \
             .kind = TIDE_ROPE_LLAMA3,                                                                       \
             .factor = (scale),                                                                              \
             .low_factor = 1,                                                                                \
             .high_factor = 4,                                                                               \
             .original_context = 8192}

static const tide_model_config presets[] = {
    {.name = "llama-nano",
     .family = &tide_family_llama,
     .layers = 6,
     .width = 256,
     .heads = 8,
     .kv_heads = 2,
     .mlp_width = 768,
     .context = 256,
     .vocab_size = 256,
     .norm_epsilon = 1e-5,
     .rope = {.theta = 10000}},
    {LLAMA3("llama-3.2-1b", 16, 2048, 32, 8192, 32), .tied = true},
    {LLAMA3("llama-3.1-8b", 32, 4096, 32, 14336, 8)},
    {LLAMA3("llama-3.1-70b", 80, 8192, 64, 28672, 8)},
    {.family = NULL},
};

const tide_family tide_family_llama = {
    TIDE_LLAMA_FAMILY,
    .name = "llama",
    .architecture = "LlamaForCausalLM",
    .presets = presets,
    .fields = fields,
    .field_count = sizeof fields / sizeof fields[0],
    .window = TIDE_WINDOW_TYPES,
    .defaults = {.context = 2048, .norm_epsilon = 1e-6, .rope = {.theta = 10000}},
    .complete = tide_llama_complete,
};
