/* A model's params in creation order, the tensors of its files, and their initial values; from its family's roles.
 *
 * A param is what the pool creates: one matrix or vector that one product or kernel uses. A tensor is what files hold, under
 * Hugging Face's names and shapes. A param is one tensor, or several whose rows stand one after another in it: queries, keys
 * and values, or gate and up. Both are counted in the same order, which is that of the forward pass.
 *
 * In memory a vocabulary has more rows than in a file: to the next multiple of 64, so that no product of the head has an odd
 * size. (On the CPU a step of gpt2 in bf16 takes 0.8 of the time that it took with 50257 rows, and oneDNN no longer up to 15 MB
 * of its own at each call; no GPU has been asked.) The padded rows are zeros, and stay zeros: no token names them, the loss
 * does not read their logits and makes their gradient zero, and AdamW leaves a zero without a gradient where it is. They are in
 * the pool's bytes and in the head's operations, and nowhere else: not in a file, a loss, a norm, a sample or a count of params.
 */
#ifndef TIDE_MODEL_PARAMS_H
#define TIDE_MODEL_PARAMS_H

#include "src/model/family.h"

enum { TIDE_MODEL_VOCABULARY_MULTIPLE = 64, TIDE_MODEL_NAME_BYTES = 64 };

typedef struct tide_model_param {
    char name
        [TIDE_MODEL_NAME_BYTES]; /* its tensor's, or its first one's: "model.layers.0.self_attn.q_proj.weight" */
    tide_role role;
    uint32_t layer;    /* 0 for roles outside the layers */
    uint32_t rank;     /* 1 or 2 */
    uint64_t shape[2]; /* all its tensors' rows, and columns */
    uint64_t elements;
    uint64_t memory_rows; /* in the pool: shape[0], but for a vocabulary's padding, which comes last */
    uint64_t memory_elements;
    bool decays;         /* weight decay applies: matrices and embeddings, not biases and norms */
    size_t first_tensor; /* its tensors are this one and the next ones */
    uint32_t tensors;
} tide_model_param;

typedef struct tide_model_tensor {
    char name[TIDE_MODEL_NAME_BYTES]; /* e.g. "h.11.attn.c_attn.weight" */
    size_t param;
    uint64_t first; /* its first element's place in the param */
    tide_role role;
    uint32_t layer;
    uint32_t rank; /* 1 or 2 */
    uint64_t shape[2];
    uint64_t elements;
    double init_deviation; /* of its initial values, around 0; 0: they are all init_value */
    float init_value;
} tide_model_tensor;

/* The config must be valid, here and below. */
size_t tide_model_param_count(const tide_model_config *config);
size_t tide_model_tensor_count(const tide_model_config *config);

/* Number of elements of all tensors. */
uint64_t tide_model_element_count(const tide_model_config *config);

/* Rows of the token embedding, and of a head of its own, in memory; and the columns of a row of logits: vocab_size to the next
 * multiple. */
uint64_t tide_model_vocabulary_rows(const tide_model_config *config);

bool tide_model_has(const tide_model_config *config, tide_role role);

/* Creation-order index of the param of a role that the model has; `layer` is 0 for roles outside the layers. */
size_t tide_model_param_index(const tide_model_config *config, tide_role role, uint32_t layer);

/* Requires index < param_count, or tensor_count. */
void tide_model_param_describe(const tide_model_config *config, size_t index, tide_model_param *param);
void tide_model_tensor_describe(const tide_model_config *config, size_t index, tide_model_tensor *tensor);

/* Initial values of elements [first, first + count) of a tensor: a pure function of (seed, tensor, element), so any range may be
 * made in any order on any thread. Requires the range to lie inside the tensor. */
void tide_model_init_range(const tide_model_config *config, uint64_t seed, size_t tensor, uint64_t first,
                           uint64_t count, float *values);

#endif
