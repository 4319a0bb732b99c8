/* A GPT-2's params in creation order, and their initial values.
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
#ifndef TIDE_MODEL_PARAMS_H
#define TIDE_MODEL_PARAMS_H

#include "src/model/config.h"

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
