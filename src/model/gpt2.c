/* GPT-2 (Radford et al. 2019) with Hugging Face's names and shapes: its matrices (Conv1D) are stored as [in,
 * out]. */
#include "src/model/family.h"

static const tide_role_entry roles[] = {
    {.role = TIDE_ROLE_TOKEN_EMBEDDING,
     .tensors = {{"wte.weight", TIDE_DIMENSION_VOCABULARY}},
     .columns = TIDE_DIMENSION_WIDTH},
    {.role = TIDE_ROLE_POSITION_EMBEDDING,
     .tensors = {{"wpe.weight", TIDE_DIMENSION_CONTEXT}},
     .columns = TIDE_DIMENSION_WIDTH,
     .init = TIDE_INIT_RULE_POSITION},
    {.role = TIDE_ROLE_NORM_1_WEIGHT,
     .tensors = {{"ln_1.weight", TIDE_DIMENSION_WIDTH}},
     .init = TIDE_INIT_RULE_SCALE},
    {.role = TIDE_ROLE_NORM_1_BIAS,
     .tensors = {{"ln_1.bias", TIDE_DIMENSION_WIDTH}},
     .init = TIDE_INIT_RULE_BIAS},
    {.role = TIDE_ROLE_QKV_WEIGHT,
     .tensors = {{"attn.c_attn.weight", TIDE_DIMENSION_WIDTH}},
     .columns = TIDE_DIMENSION_QKV},
    {.role = TIDE_ROLE_QKV_BIAS,
     .tensors = {{"attn.c_attn.bias", TIDE_DIMENSION_QKV}},
     .init = TIDE_INIT_RULE_BIAS},
    {.role = TIDE_ROLE_ATTENTION_WEIGHT,
     .tensors = {{"attn.c_proj.weight", TIDE_DIMENSION_WIDTH}},
     .columns = TIDE_DIMENSION_WIDTH,
     .init = TIDE_INIT_RULE_RESIDUAL},
    {.role = TIDE_ROLE_ATTENTION_BIAS,
     .tensors = {{"attn.c_proj.bias", TIDE_DIMENSION_WIDTH}},
     .init = TIDE_INIT_RULE_BIAS},
    {.role = TIDE_ROLE_NORM_2_WEIGHT,
     .tensors = {{"ln_2.weight", TIDE_DIMENSION_WIDTH}},
     .init = TIDE_INIT_RULE_SCALE},
    {.role = TIDE_ROLE_NORM_2_BIAS,
     .tensors = {{"ln_2.bias", TIDE_DIMENSION_WIDTH}},
     .init = TIDE_INIT_RULE_BIAS},
    {.role = TIDE_ROLE_FC_WEIGHT,
     .tensors = {{"mlp.c_fc.weight", TIDE_DIMENSION_WIDTH}},
     .columns = TIDE_DIMENSION_FC},
    {.role = TIDE_ROLE_FC_BIAS,
     .tensors = {{"mlp.c_fc.bias", TIDE_DIMENSION_FC}},
     .init = TIDE_INIT_RULE_BIAS},
    {.role = TIDE_ROLE_MLP_WEIGHT,
     .tensors = {{"mlp.c_proj.weight", TIDE_DIMENSION_MLP}},
     .columns = TIDE_DIMENSION_WIDTH,
     .init = TIDE_INIT_RULE_RESIDUAL},
    {.role = TIDE_ROLE_MLP_BIAS,
     .tensors = {{"mlp.c_proj.bias", TIDE_DIMENSION_WIDTH}},
     .init = TIDE_INIT_RULE_BIAS},
    {.role = TIDE_ROLE_NORM_F_WEIGHT,
     .tensors = {{"ln_f.weight", TIDE_DIMENSION_WIDTH}},
     .init = TIDE_INIT_RULE_SCALE},
    {.role = TIDE_ROLE_NORM_F_BIAS,
     .tensors = {{"ln_f.bias", TIDE_DIMENSION_WIDTH}},
     .init = TIDE_INIT_RULE_BIAS},
};

/* n_inner must be null or the width that complete() sets. pad_token_id is not read, since GPT-2's wte has
 * no padding_idx in transformers. */
static const tide_config_field fields[] = {
    {.key = "activation_function", .kind = TIDE_FIELD_WORD, .word = "gelu_new"},
    {.key = "tie_word_embeddings", .kind = TIDE_FIELD_TRUE},
    {.key = "scale_attn_weights", .kind = TIDE_FIELD_TRUE},
    {.key = "scale_attn_by_inverse_layer_idx", .kind = TIDE_FIELD_FALSE},
    {.key = "reorder_and_upcast_attn", .kind = TIDE_FIELD_FALSE},
    {.key = "add_cross_attention", .kind = TIDE_FIELD_FALSE},
    {.key = "quantization_config", .kind = TIDE_FIELD_NOTHING},
    {.key = "compression_config", .kind = TIDE_FIELD_NOTHING},
    {.key = "is_causal", .kind = TIDE_FIELD_NOT_FALSE},
    {"n_layer", NULL, TIDE_FIELD_SIZE, true, offsetof(tide_model_config, layers), 1024, NULL},
    {"n_embd", NULL, TIDE_FIELD_SIZE, true, offsetof(tide_model_config, width), 65536, NULL},
    {"n_head", NULL, TIDE_FIELD_SIZE, true, offsetof(tide_model_config, heads), 1024, NULL},
    {"n_positions", "n_ctx", TIDE_FIELD_SIZE, false, offsetof(tide_model_config, context), 1048576, NULL},
    {"vocab_size", NULL, TIDE_FIELD_SIZE, true, offsetof(tide_model_config, vocab_size), 16777216, NULL},
    {"n_inner", NULL, TIDE_FIELD_SIZE, false, offsetof(tide_model_config, mlp_width), 1048576, NULL},
    {"layer_norm_epsilon", NULL, TIDE_FIELD_REAL, false, offsetof(tide_model_config, norm_epsilon), 0, NULL},
    {.key = "attn_pdrop", .kind = TIDE_FIELD_RATE, .offset = offsetof(tide_model_config, attention_dropout)},
    {.key = "embd_pdrop", .kind = TIDE_FIELD_RATE, .offset = offsetof(tide_model_config, embedding_dropout)},
    {.key = "resid_pdrop", .kind = TIDE_FIELD_RATE, .offset = offsetof(tide_model_config, residual_dropout)},
};

static void complete(tide_model_config *config)
{
    config->kv_heads = config->heads;
    config->head_width = config->heads == 0 ? 0 : config->width / config->heads;
    if (config->mlp_width == 0)
        config->mlp_width = 4 * config->width;
    config->tied = config->attention_bias = config->output_bias = config->mlp_bias = true;
}

#define PRESET(label, of_layers, of_width, of_heads, positions, vocabulary)                                  \
    {                                                                                                        \
        .name = label, .family = &tide_family_gpt2, .layers = (of_layers), .width = (of_width),              \
        .heads = (of_heads), .context = (positions), .vocab_size = (vocabulary), .norm_epsilon = 1e-5        \
    }

static const tide_model_config presets[] = {
    PRESET("gpt2-nano", 6, 256, 8, 256, 256),
    PRESET("gpt2", 12, 768, 12, 1024, 50257),
    PRESET("gpt2-medium", 24, 1024, 16, 1024, 50257),
    PRESET("gpt2-large", 36, 1280, 20, 1024, 50257),
    PRESET("gpt2-xl", 48, 1600, 25, 1024, 50257),
    PRESET("gpt-1t", 128, 25600, 200, 2048, 50257),
    {.family = NULL},
};

/* Attention masks, which some files hold as tensors. */
static const char *const ignored[] = {"*h.*.attn.bias", "*h.*.attn.masked_bias", NULL};

const tide_family tide_family_gpt2 = {
    .name = "gpt2",
    .mlp = TIDE_MLP_GELU,
    .architecture = "GPT2LMHeadModel",
    .layer_name = "h.",
    .optional_prefix = "transformer.",
    .ignored = ignored,
    .head_name = "lm_head.weight",
    .presets = presets,
    .roles = roles,
    .role_count = sizeof roles / sizeof roles[0],
    .fields = fields,
    .field_count = sizeof fields / sizeof fields[0],
    .defaults = {.context = 1024,
                 .norm_epsilon = 1e-5,
                 .attention_dropout = 0.1,
                 .embedding_dropout = 0.1,
                 .residual_dropout = 0.1},
    .mlp_widths = 4,
    .stored_in_out = true,
    .complete = complete,
};
