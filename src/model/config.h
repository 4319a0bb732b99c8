/* What a GPT-2 is: its sizes, its params in creation order, and their initial values.
 *
 * Params carry Hugging Face's names and shapes (its Conv1D stores [in, out]), in forward order, which is also
 * the order in which the pool creates them: wte, wpe, per layer ln_1, c_attn, c_proj, ln_2, c_fc, mlp.c_proj,
 * then ln_f. The head is tied to wte and has no param of its own.
 *
 * In memory wte has more rows than in a file: the vocabulary to the next multiple of 64, so that no product of the
 * head has an odd size. (On the CPU a step of gpt2 in bf16 takes 0.8 of the time that it took with 50257 rows, and oneDNN no
 * longer up to 15 MB of its own at each call; no GPU has been asked.) The padded rows are zeros, and stay zeros: no token
 * names them, the loss does not read their logits and makes their gradient zero, and AdamW leaves a zero without a gradient
 * where it is. They are in the pool's bytes and in the head's operations, and nowhere else: not in a file, a loss, a norm,
 * a sample or a count of params.
 */
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

/* A param's part in the model. The per-layer ones come once a layer. */
typedef enum tide_gpt2_role {
    TIDE_GPT2_WTE = 0,
    TIDE_GPT2_WPE,
    TIDE_GPT2_LN_1_WEIGHT, /* first of the per-layer roles */
    TIDE_GPT2_LN_1_BIAS,
    TIDE_GPT2_ATTN_QKV_WEIGHT, /* h.N.attn.c_attn.weight [width, 3 x width] */
    TIDE_GPT2_ATTN_QKV_BIAS,
    TIDE_GPT2_ATTN_PROJ_WEIGHT,
    TIDE_GPT2_ATTN_PROJ_BIAS,
    TIDE_GPT2_LN_2_WEIGHT,
    TIDE_GPT2_LN_2_BIAS,
    TIDE_GPT2_MLP_FC_WEIGHT, /* [width, 4 x width] */
    TIDE_GPT2_MLP_FC_BIAS,
    TIDE_GPT2_MLP_PROJ_WEIGHT, /* [4 x width, width] */
    TIDE_GPT2_MLP_PROJ_BIAS,   /* last of the per-layer roles */
    TIDE_GPT2_LN_F_WEIGHT,
    TIDE_GPT2_LN_F_BIAS,
    TIDE_GPT2_ROLES,
} tide_gpt2_role;

enum { TIDE_GPT2_LAYER_ROLES = TIDE_GPT2_MLP_PROJ_BIAS - TIDE_GPT2_LN_1_WEIGHT + 1 };

typedef enum tide_init_kind {
    TIDE_INIT_NORMAL, /* mean 0, deviation `init_deviation` */
    TIDE_INIT_ZEROS,
    TIDE_INIT_ONES,
} tide_init_kind;

enum { TIDE_GPT2_VOCABULARY_MULTIPLE = 64 };

typedef struct tide_gpt2_param {
    char name[48]; /* e.g. "h.11.attn.c_attn.weight" */
    tide_gpt2_role role;
    uint32_t layer; /* 0 for roles outside the layers */
    uint32_t rank;  /* 1 or 2 */
    uint64_t shape[2]; /* in files */
    uint64_t elements;
    uint64_t memory_rows; /* in the pool: shape[0], but for wte's padding, which comes last */
    uint64_t memory_elements;
    bool decays; /* weight decay applies: matrices and embeddings, not biases and norms */
    tide_init_kind init;
    double init_deviation; /* 0 unless NORMAL */
} tide_gpt2_param;

/* A preset's name (gpt2-nano, gpt2, gpt2-medium, gpt2-large, gpt2-xl), or else the path of a Hugging Face
 * config.json of type gpt2. The dropout fields (resid_pdrop, embd_pdrop, attn_pdrop, summary_first_dropout)
 * are ignored: tidepool trains without dropout. On failure *config is unchanged. IO           no preset and
 * no readable file; the message lists the presets CORRUPT      not JSON, a duplicate key, a field missing, of
 * the wrong type or out of range UNSUPPORTED  a GPT-2 variant that is not built (another activation, untied
 * head, scaled attention, n_inner), another model type, or a build without jansson */
TIDE_NODISCARD tide_status tide_gpt2_config_open(const char *model, tide_gpt2_config *config);

/* The same from a config.json's text; `origin` names it in messages. CORRUPT, UNSUPPORTED, NO_MEMORY as
 * above. */
TIDE_NODISCARD tide_status tide_gpt2_config_parse(const char *text, size_t bytes, const char *origin,
                                                  tide_gpt2_config *config);

/* The n-th preset's name, NULL past the last. */
const char *tide_gpt2_preset_name(size_t index);

/* Ranges and divisibility, as the fields' comments say; call it after changing a field (--vocab-size).
 *   ARGUMENT     names the field, its value and what would be right; `origin` says where it came from */
TIDE_NODISCARD tide_status tide_gpt2_config_check(const tide_gpt2_config *config, const char *origin);

bool tide_gpt2_config_is_valid(const tide_gpt2_config *config);

/* Number of params (tensors): 4 + 12 x layers. The config must be valid, here and below. */
size_t tide_gpt2_param_count(const tide_gpt2_config *config);

/* Number of elements of all params, in files. */
uint64_t tide_gpt2_element_count(const tide_gpt2_config *config);

/* wte's rows in memory, and the columns of a row of logits: vocab_size to the next multiple. */
uint64_t tide_gpt2_vocabulary_rows(const tide_gpt2_config *config);

/* Creation-order index of a role's param; `layer` is 0 for roles outside the layers. */
size_t tide_gpt2_param_index(const tide_gpt2_config *config, tide_gpt2_role role, uint32_t layer);

/* Requires index < param_count. */
void tide_gpt2_param_describe(const tide_gpt2_config *config, size_t index, tide_gpt2_param *param);

/* Initial values of elements [first, first + count) of a param: a pure function of (seed, param, element), so
 * any range may be made in any order on any thread. Requires the range to lie inside the param. */
void tide_gpt2_init_range(const tide_gpt2_config *config, uint64_t seed, size_t param, uint64_t first,
                          uint64_t count, float *values);

#endif
