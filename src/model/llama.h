/* The params and the fields of config.json that Llama, Mistral and Qwen share. */
#ifndef TIDE_MODEL_LLAMA_H
#define TIDE_MODEL_LLAMA_H

#include "src/model/family.h"

enum { TIDE_LLAMA_ROLES = 15 };

/* The params of all these families. Biases and norms of heads are only there if the config or family has
 * them. */
extern const tide_role_entry tide_llama_roles[TIDE_LLAMA_ROLES];

/* The fields of config.json that all these families have: sizes, tied embeddings, and fields of which
 * tidepool supports only one value. */
#define TIDE_LLAMA_COMMON_FIELDS                                                                              \
    {.key = "hidden_act", .kind = TIDE_FIELD_WORD, .word = "silu"},                                           \
        {"num_hidden_layers", NULL, TIDE_FIELD_SIZE, true, offsetof(tide_model_config, layers), 1024, NULL},  \
        {"hidden_size", NULL, TIDE_FIELD_SIZE, true, offsetof(tide_model_config, width), 65536, NULL},        \
        {"num_attention_heads", NULL, TIDE_FIELD_SIZE, true, offsetof(tide_model_config, heads), 1024, NULL}, \
        {"num_key_value_heads",                                                                               \
         NULL,                                                                                                \
         TIDE_FIELD_SIZE,                                                                                     \
         false,                                                                                               \
         offsetof(tide_model_config, kv_heads),                                                               \
         1024,                                                                                                \
         NULL},                                                                                               \
        {"head_dim", NULL, TIDE_FIELD_SIZE, false, offsetof(tide_model_config, head_width), 4096, NULL},      \
        {"intermediate_size",                                                                                 \
         NULL,                                                                                                \
         TIDE_FIELD_SIZE,                                                                                     \
         true,                                                                                                \
         offsetof(tide_model_config, mlp_width),                                                              \
         1048576,                                                                                             \
         NULL},                                                                                               \
        {"max_position_embeddings",                                                                           \
         NULL,                                                                                                \
         TIDE_FIELD_SIZE,                                                                                     \
         false,                                                                                               \
         offsetof(tide_model_config, context),                                                                \
         16777216,                                                                                            \
         NULL},                                                                                               \
        {"vocab_size", NULL, TIDE_FIELD_SIZE, true, offsetof(tide_model_config, vocab_size), 16777216, NULL}, \
        {.key = "pad_token_id",                                                                               \
         .kind = TIDE_FIELD_TOKEN,                                                                            \
         .offset = offsetof(tide_model_config, padding_row)},                                                 \
        {.key = "attention_dropout",                                                                          \
         .kind = TIDE_FIELD_RATE,                                                                             \
         .offset = offsetof(tide_model_config, attention_dropout)},                                           \
        {"rms_norm_eps", NULL, TIDE_FIELD_REAL, false, offsetof(tide_model_config, norm_epsilon), 0, NULL},   \
        {"tie_word_embeddings", NULL, TIDE_FIELD_FLAG, false, offsetof(tide_model_config, tied), 0, NULL},    \
        {.key = "num_experts", .kind = TIDE_FIELD_NO_COUNT},                                                  \
        {.key = "num_local_experts", .kind = TIDE_FIELD_NO_COUNT},                                            \
        {.key = "attn_logit_softcapping", .kind = TIDE_FIELD_NOTHING},                                        \
        {.key = "final_logit_softcapping", .kind = TIDE_FIELD_NOTHING},                                       \
        {.key = "quantization_config", .kind = TIDE_FIELD_NOTHING},                                           \
        {.key = "compression_config", .kind = TIDE_FIELD_NOTHING},                                            \
    {                                                                                                         \
        .key = "is_causal", .kind = TIDE_FIELD_NOT_FALSE                                                      \
    }

/* The members of tide_family that are the same in all these families. */
#define TIDE_LLAMA_FAMILY                                                                                    \
    .layer_name = "model.layers.", .optional_prefix = "model.", .ignored = tide_llama_ignored,               \
    .head_name = "lm_head.weight", .roles = tide_llama_roles, .role_count = TIDE_LLAMA_ROLES,                \
    .rms_norm = true, .mlp = TIDE_MLP_SWIGLU, .rotary = true

/* complete() of these families. Without head_dim a head is width / heads wide; without num_key_value_heads
 * there are as many heads of keys as of queries. Attention's projection has a bias if queries, keys and
 * values have biases. */
void tide_llama_complete(tide_model_config *config);

/* Names of buffers that old files hold besides the params. */
extern const char *const tide_llama_ignored[];

#endif
