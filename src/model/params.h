/* A model's params in creation order, the tensors of its files, and their initial values, all derived from
 * its family's roles.
 *
 * A param is one matrix or vector of the pool, which one matmul or kernel uses. A tensor is a matrix or
 * vector of the files, with Hugging Face's name and shape. A param consists of one tensor, or of several, row
 * after row: queries, keys and values, or gate and up. Params and tensors are numbered in the same order,
 * that of the forward pass.
 *
 * In memory the token embedding and the head have more rows than in a file: vocab_size is rounded up to a
 * multiple of 64, so that no matmul of the head has an odd size. (On the CPU a step of gpt2 in bf16 takes 0.8
 * of the time that it took with 50257 rows, and oneDNN no longer allocates up to 15 MB at each call; this has
 * not been measured on a GPU.) The padded rows are zeros and stay zeros: no token names them, the loss does
 * not read their logits and sets their gradient to zero, and AdamW does not change a zero whose gradient is
 * zero. They count in the pool's bytes and in the head's operations, and nowhere else: not in a file, a loss,
 * a norm, a sample or a count of params.
 */
#ifndef TIDE_MODEL_PARAMS_H
#define TIDE_MODEL_PARAMS_H

#include "src/model/family.h"

enum { TIDE_MODEL_VOCABULARY_MULTIPLE = 64, TIDE_MODEL_NAME_BYTES = 64 };

typedef struct tide_model_param {
    /* the name of its first tensor: "model.layers.0.self_attn.q_proj.weight" */
    char name[TIDE_MODEL_NAME_BYTES];
    tide_role role;
    uint32_t layer;    /* 0 for roles outside the layers */
    uint32_t rank;     /* 1 or 2 */
    uint64_t shape[2]; /* rows of all its tensors together, and columns */
    uint64_t elements;
    uint64_t memory_rows; /* in the pool: shape[0], and behind them a vocabulary's padding */
    uint64_t memory_elements;
    bool decays;         /* does weight decay apply? To matrices and embeddings, not to biases and norms */
    size_t first_tensor; /* index of its first tensor; the others follow */
    uint32_t tensors;
} tide_model_param;

typedef struct tide_model_tensor {
    char name[TIDE_MODEL_NAME_BYTES]; /* e.g. "h.11.attn.c_attn.weight" */
    size_t param;
    uint64_t first; /* the element of the param that is its first */
    tide_role role;
    uint32_t layer;
    uint32_t rank; /* 1 or 2 */
    uint64_t shape[2];
    uint64_t elements;
    /* standard deviation of its initial values, whose mean is 0; 0: all are init_value */
    double init_deviation;
    float init_value;
} tide_model_tensor;

/* How many params and tensors a model has. The config must be valid, here and below. */
size_t tide_model_param_count(const tide_model_config *config);
size_t tide_model_tensor_count(const tide_model_config *config);

/* Number of elements of all tensors. */
uint64_t tide_model_element_count(const tide_model_config *config);

/* vocab_size rounded up to the next multiple: how many rows the token embedding and a head of its own have in
 * memory, and how many columns the logits have. */
uint64_t tide_model_vocabulary_rows(const tide_model_config *config);

bool tide_model_has(const tide_model_config *config, tide_role role);

/* The creation-order index of a role's param, which the model must have; `layer` is 0 for roles outside the
 * layers. */
size_t tide_model_param_index(const tide_model_config *config, tide_role role, uint32_t layer);

/* Describe a param or a tensor. Requires index < tide_model_param_count, or tide_model_tensor_count. */
void tide_model_param_describe(const tide_model_config *config, size_t index, tide_model_param *param);
void tide_model_tensor_describe(const tide_model_config *config, size_t index, tide_model_tensor *tensor);

/* Initial values of elements [first, first + count) of a tensor: a pure function of (seed, tensor, element),
 * so any range may be made in any order on any thread. Requires the range to lie inside the tensor. */
void tide_model_init_range(const tide_model_config *config, uint64_t seed, size_t tensor, uint64_t first,
                           uint64_t count, float *values);

#endif
