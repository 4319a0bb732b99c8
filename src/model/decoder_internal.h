/* What the decoder's files share.
 *
 *   decoder.c                 params and activations registered with the pool; initial values; the run of a step
 *   decoder_ops.c             ops: what each may touch, in which order they run
 *   op_builder.c              one launch each: prepared and counted in a dry run, launched in a real one
 *   decoder_block.c           a transformer block, forward and backward
 *   decoder_parts.c           the MLP's activation and attention, where families differ
 *   decoder_embedding_head.c  embedding, head, logits
 *
 * An op builder runs one op's code for one micro-batch. The same code runs twice in a model's life: as a dry run, when
 * the op is registered (nothing is launched; matmuls are prepared, operations and workspace are
 * counted), and then for real. So no shape can be launched that was not prepared, and no workspace be used
 * that was not declared. In a dry run addresses are offsets from zero and are never followed.
 *
 *     workspace of an op   | what its code takes, each 256-byte aligned | scratch of its kernels |
 */
#ifndef TIDE_MODEL_DECODER_INTERNAL_H
#define TIDE_MODEL_DECODER_INTERNAL_H

#include "src/model/decoder.h"

#include "kernels/costs.h"
#include "src/model/family.h"

typedef struct tide_op_builder tide_op_builder;
typedef void (*tide_decoder_op_code)(tide_op_builder *builder);

typedef struct tide_decoder_op {
    tide_op handle;
    uint32_t layer;
    tide_decoder_op_code code;
    uint64_t workspace_bytes;
    double flops; /* of all micro-batches */
} tide_decoder_op;

/* Which ops of the array belong to what. */
typedef struct tide_decoder_order {
    uint32_t embedding, first_block, head, first_backward; /* training, in this order */
    uint32_t last_trained;                                 /* the last op of a training step */
    uint32_t first_evaluation_block, evaluation_head, logits;
    uint32_t count;
} tide_decoder_order;

struct tide_decoder {
    tide_pool *pool;
    tide_decoder_options options; /* `recompute` and `frozen` point at the model's own copies */
    tide_decoder_region region;
    float loss_scale;           /* of the training step that runs */
    bool *recompute;            /* [layers] */
    bool *frozen;               /* [param_count] */
    uint32_t lowest_trained;    /* block; layers: backward ends with the head */
    bool trains_embedding;      /* of tokens or positions: backward goes on to the embedding */
    tide_param *params;         /* [param_count], creation order */
    tide_activation *residuals; /* [layers + 1] */
    tide_activation *saved;     /* [layers]; unset where the block recomputes */
    tide_decoder_op *ops;       /* [order.count] */
    tide_decoder_order order;
    int indices
        [TIDE_ROLES]; /* of a role's param, in layer 0 for those of the layers; -1: the model has none */
    int layer_params; /* params of a layer */
    /* [seq_len, head_width], until it is in the region; NULL: there already, or no rotary positions */
    float *rope_table;
};

struct tide_op_builder {
    tide_decoder *model;
    uint32_t layer;
    uint32_t micro_batch;
    uint32_t sequences; /* of the micro-batch; 1 when sampling */
    uint32_t position;  /* logits: of which row */
    bool dry_run;
    tide_status status; /* of the first launch that failed; none is made after it */

    uintptr_t workspace, cursor; /* start, and the first byte that nobody has taken */
    uint64_t workspace_bytes;    /* running: as declared */
    uint64_t scratch_bytes;      /* dry run: the most a kernel asked for; running: what is left */
    double flops;                /* dry run: counted */
};

/* A block's activations, all that backward needs. [rows, ...] each; what its family has not is NULL. */
typedef struct tide_decoder_activations {
    void *norm_1, *qkv;         /* WIDTH, QKV */
    void *qk;                   /* queries and keys behind their norms: QUERY + KV */
    void *attention;            /* QUERY */
    void *middle;               /* WIDTH: the residual between attention and MLP */
    void *norm_2, *fc, *act;    /* WIDTH, FC, MLP: what goes into the activation and what comes out */
    uintptr_t overwritable_end; /* norm_2, fc and act lie one behind the other up to here */
    float *logsumexp;           /* [sequences, heads, seq_len] */
    float *mean_1, *rstd_1, *mean_2, *rstd_2; /* [rows] each */
    float *q_rstd, *k_rstd;                   /* [rows, heads], [rows, kv_heads] */
} tide_decoder_activations;

/* A linear layer: in [rows, in] to out [rows, out]; its bias counts where the model has it. */
typedef struct tide_decoder_linear {
    const char *forward_name, *weight_name, *bias_name, *input_name; /* of its launches */
    tide_role weight, bias;
    tide_dimension in, out;
} tide_decoder_linear;

/* A norm of a block or of the head: layer norm or RMS norm. */
typedef struct tide_decoder_norm {
    tide_role weight, bias;
} tide_decoder_norm;

/* --- registering --- */

/* All ops, after params and activations: fills model->ops and model->order. */
TIDE_NODISCARD tide_status tide_decoder_register_ops(tide_decoder *model);

/* An op builder for the op's first micro-batch, running. */
tide_op_builder tide_op_builder_of(tide_decoder *model, const tide_decoder_op *op);

/* --- sizes and addresses --- */

static inline size_t tide_decoder_rows(const tide_op_builder *builder)
{
    return (size_t)builder->sequences * builder->model->options.seq_len;
}

static inline size_t tide_decoder_width(const tide_op_builder *builder)
{
    return builder->model->options.config.width;
}

/* The length of a dimension. */
static inline size_t tide_decoder_length(const tide_op_builder *builder, tide_dimension dimension)
{
    return (size_t)tide_model_dimension(&builder->model->options.config, dimension);
}

/* Bytes of `elements` activations. */
static inline size_t tide_decoder_bytes(const tide_op_builder *builder, size_t elements)
{
    return elements * tide_dtype_bytes(builder->model->options.dtype);
}

static inline bool tide_decoder_has(const tide_decoder *model, tide_role role)
{
    return model->indices[role] >= 0;
}

/* The param of a role that the model has; `layer` counts for roles of a layer. */
static inline size_t tide_decoder_index(const tide_decoder *model, tide_role role, uint32_t layer)
{
    const bool per_layer = role >= TIDE_ROLE_NORM_1_WEIGHT && role <= TIDE_ROLE_MLP_BIAS;
    return (size_t)model->indices[role] + (per_layer ? layer * (size_t)model->layer_params : 0);
}

/* The head's weight: its own, or the token embedding. */
static inline tide_role tide_decoder_head_role(const tide_decoder *model)
{
    return tide_decoder_has(model, TIDE_ROLE_HEAD) ? TIDE_ROLE_HEAD : TIDE_ROLE_TOKEN_EMBEDDING;
}

/* Is there such a param, with a gradient? */
bool tide_decoder_is_trained(const tide_decoder *model, tide_role role, uint32_t layer);
/* Does backward need the gradient of a block's input, or of the embedding's output? */
static inline bool tide_decoder_passes_on(const tide_decoder *model, uint32_t layer)
{
    return layer > model->lowest_trained || model->trains_embedding;
}

/* A param's values, NULL if the model has none; and its gradient accumulator, NULL also if it is frozen. Of the builder's layer
 * for roles of a layer. Followed by nobody in a dry run. */
void *tide_decoder_weight(const tide_op_builder *builder, tide_role role);
float *tide_decoder_gradient(const tide_op_builder *builder, tide_role role);
/* This micro-batch's part of residual `index`. */
void *tide_decoder_residual(const tide_op_builder *builder, uint32_t index);
/* `offset` bytes into the region. */
void *tide_decoder_region_at(const tide_op_builder *builder, uint64_t offset);

/* Take `bytes` of the op's workspace, or of any other memory that *cursor walks. */
void *tide_decoder_take(uintptr_t *cursor, size_t bytes);

/* Lay a block's activations of `rows` rows out from *cursor on. */
void tide_decoder_activations_place(const tide_decoder_options *options, uint32_t sequences,
                                    uintptr_t *cursor, tide_decoder_activations *activations);

/* --- launches; each may take scratch: call them after the op has taken its workspace --- */

void tide_decoder_launch(tide_op_builder *builder, const char *name, tide_kernel kernel,
                         const void *arguments, size_t argument_bytes, double flops, double bytes);
/* mean and rstd may be NULL, mean is not used by RMS norm. */
void tide_decoder_norm_forward(tide_op_builder *builder, const tide_decoder_norm *norm, size_t rows,
                               const void *in, void *out, float *mean, float *rstd);
/* din NULL: not wanted; += with `accumulate`. */
void tide_decoder_norm_backward(tide_op_builder *builder, const tide_decoder_norm *norm, const void *in,
                                const void *dout, const float *mean, const float *rstd, void *din,
                                bool accumulate);
/* With a workspace, which `norm` does not name. */
void tide_decoder_rms_norm_backward(tide_op_builder *builder, const char *name,
                                    const tide_rms_norm_backward_args *norm);
/* Scratch for a kernel that needs `bytes`: behind all that the op has taken. */
void *tide_decoder_scratch(tide_op_builder *builder, size_t bytes);
void tide_decoder_matmul(tide_op_builder *builder, const char *name, const tide_matmul_args *product);
/* A product into the whole gradient of `role`, which is trained: added to it, or written where the gradient is new and the
 * product the first of this op's and micro-batch's into it (`is_first`). Measuring prepares both. `product` has neither C nor
 * `accumulate`. */
void tide_decoder_gradient_matmul(tide_op_builder *builder, const char *name, tide_role role, bool is_first,
                                  const tide_matmul_args *product);
void tide_decoder_linear_forward(tide_op_builder *builder, const tide_decoder_linear *linear, const void *in,
                                 void *out);
/* With GELU behind the layer, or before it in backward, where the kernels' table takes it along. */
void tide_decoder_linear_gelu(tide_op_builder *builder, const tide_decoder_linear *linear, const void *in,
                              void *gelu_in, void *out);
void tide_decoder_linear_gelu_backward(tide_op_builder *builder, const tide_decoder_linear *linear,
                                       const void *in, const void *dout, void *gelu_in, void *din);
/* Without the gradient of the layer's input. */
void tide_decoder_linear_params_backward(tide_op_builder *builder, const tide_decoder_linear *linear,
                                         const void *in, const void *dout);
void tide_decoder_linear_backward(tide_op_builder *builder, const tide_decoder_linear *linear, const void *in,
                                  const void *dout, void *din);
/* The layer into the MLP, and its activation: act = gelu(fc), or silu(gate) up of fc's two halves. */
void tide_decoder_activate(tide_op_builder *builder, const tide_decoder_linear *linear, const void *in,
                           const tide_decoder_activations *at);
/* The layer out of the MLP and the activation, backward: act and fc are no longer needed. Gives the gradient of what went into the
 * activation, which stands in one of them. */
void *tide_decoder_activate_backward(tide_op_builder *builder, const tide_decoder_linear *linear,
                                     const tide_decoder_activations *at, const void *dout);
/* Norms of queries and keys and rotary positions, where the family has them, then attention. Backward leaves the gradient of
 * qkv in dqkv. */
void tide_decoder_attention(tide_op_builder *builder, const tide_decoder_activations *at);
void tide_decoder_attention_backward(tide_op_builder *builder, const tide_decoder_activations *at,
                                     const void *dout, void *dqkv);
void tide_decoder_add_to(tide_op_builder *builder, void *sum, const void *term, size_t elements);
void tide_decoder_copy(tide_op_builder *builder, void *out, const void *in, size_t bytes);

/* --- the ops' code --- */

void tide_decoder_embedding(tide_op_builder *builder);
void tide_decoder_embedding_backward(tide_op_builder *builder);
void tide_decoder_block_forward(tide_op_builder *builder);
void tide_decoder_block_backward(tide_op_builder *builder);
void tide_decoder_block_evaluation(tide_op_builder *builder);
void tide_decoder_head(tide_op_builder *builder);
void tide_decoder_head_evaluation(tide_op_builder *builder);
void tide_decoder_head_logits(tide_op_builder *builder);

#endif
