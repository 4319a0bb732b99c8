/* Types and functions that the decoder's files share.
 *
 *   decoder.c                  registers params and activations; initial values; the run of a step
 *   decoder_ops.c              ops: the accesses of each, and the order in which they run
 *   op_builder.c               launches: prepared and counted in a dry run, made in a real run
 *   decoder_block.c            a transformer block, forward and backward
 *   decoder_parts.c            activation function and attention, where families differ
 *   decoder_embedding_head.c   embedding, head, logits
 *   decoder_cached.c           the passes of a decoder that generates; calls decoder.c
 *
 * An op builder runs one op's code for one micro-batch. The code runs first as a dry run, when the op is
 * described: it launches nothing, prepares matmuls, and counts operations and workspace. Later the same code
 * runs for real. So every launched shape has been prepared, and all workspace in use has been declared. In a
 * dry run addresses are offsets from zero, through which nothing is read or written.
 *
 *     workspace of an op   | buffers that its code takes, each 256-byte aligned | scratch of its kernels |
 */
#ifndef TIDE_MODEL_DECODER_INTERNAL_H
#define TIDE_MODEL_DECODER_INTERNAL_H

#include "src/model/decoder.h"

#include "kernels/kernels.h"
#include "src/model/family.h"

typedef struct tide_op_builder tide_op_builder;
typedef void (*tide_decoder_op_code)(tide_op_builder *builder);

typedef struct tide_decoder_op {
    tide_op handle;
    uint32_t layer;
    tide_decoder_op_code code;
    uint64_t workspace_bytes;
    double flops; /* for all micro-batches together */
} tide_decoder_op;

/* Indices into the array of ops. */
typedef struct tide_decoder_order {
    uint32_t embedding, first_block, head, first_backward; /* training, in this order */
    uint32_t last_trained;                                 /* the last op of a training step */
    uint32_t first_evaluation_block, evaluation_head, logits;
    uint32_t count;
} tide_decoder_order;

struct tide_decoder {
    tide_description *description; /* owned */
    tide_pool *pool;               /* NULL before tide_decoder_attach */
    tide_decoder_options options;  /* `recompute` and `frozen` point at the model's own copies */
    tide_decoder_region region;
    float loss_scale; /* of the training step that is running */
    /* of the batch that was uploaded last; sampling has neither documents nor targets */
    uint64_t learned;
    bool has_documents;
    bool *recompute; /* [layers] */
    bool *frozen;    /* [param_count] */
    /* the lowest block that backward reaches; `layers`: backward ends with the head */
    uint32_t lowest_trained;
    bool trains_embedding;      /* is the token or position embedding trained? Backward then goes on to it */
    tide_param *params;         /* [param_count], creation order */
    tide_activation *residuals; /* [layers + 1] */
    tide_activation *saved;     /* [layers]; unset if the block recomputes */
    tide_decoder_op *ops;       /* [order.count] */
    tide_decoder_order order;
    /* index of each role's param, for a per-layer role that of layer 0; -1: the model has none */
    int indices[TIDE_ROLES];
    int layer_params; /* how many params a layer has */
    /* the table of rotary positions, [seq_len, head_width], until the first pass has written it to the
     * region; NULL after that, and in a model without rotary positions */
    float *rope_table;
    /* of the step whose loss was read last: this rank's, [micro_batches], then those of all ranks */
    double *loss_sums;
};

struct tide_op_builder {
    tide_decoder *model;
    uint32_t layer;
    uint32_t micro_batch;
    uint32_t sequences; /* of the micro-batch; 1 when sampling; a generating pass's tokens, one a sequence */
    uint32_t first;     /* of a generating pass: the position of its first token; otherwise 0 */
    uint32_t position;  /* of the op for logits only: the row whose logits it computes */
    bool dry_run;
    tide_status status; /* of the first launch that failed; the builder launches nothing after it */

    uintptr_t workspace, cursor; /* the workspace's start, and the first byte not taken yet */
    uint64_t workspace_bytes;    /* in a real run: the op's declared size */
    /* dry run: the most scratch that a kernel has asked for; real run: the bytes left for scratch */
    uint64_t scratch_bytes;
    double flops; /* dry run: operations counted so far */
    /* dry run: in how many of the step's micro-batches the launches that follow are made */
    uint32_t times;
};

/* Where a block's activations are: all that backward needs, [rows, ...] each, NULL for those that the
 * family does not have. */
typedef struct tide_decoder_activations {
    void *norm_1, *qkv;         /* WIDTH, QKV */
    void *qk;                   /* queries and keys after their norms: QUERY + KV */
    void *attention;            /* QUERY */
    void *middle;               /* WIDTH: the residual between attention and MLP */
    void *norm_2, *fc, *act;    /* WIDTH; FC, the activation function's input; MLP, its output */
    uintptr_t overwritable_end; /* norm_2, fc and act lie one after the other up to here */
    float *logsumexp;           /* [sequences, heads, seq_len] */
    float *mean_1, *rstd_1, *mean_2, *rstd_2; /* [rows] each */
    float *q_rstd, *k_rstd;                   /* [rows, heads], [rows, kv_heads] */
} tide_decoder_activations;

/* A linear layer from [rows, in] to [rows, out], with a bias if the model has that param. */
typedef struct tide_decoder_linear {
    const char *forward_name, *weight_name, *bias_name, *input_name; /* names of its launches */
    tide_role weight, bias;
    tide_dimension in, out;
} tide_decoder_linear;

/* A norm of a block or of the head: layer norm or RMS norm. */
typedef struct tide_decoder_norm {
    tide_role weight, bias;
} tide_decoder_norm;

/* --- describing --- */

/* Describe all ops, after params and activations. Fills model->ops and model->order. */
TIDE_NODISCARD tide_status tide_decoder_describe_ops(tide_decoder *model);

/* An op builder for a real run of the op's first micro-batch. */
tide_op_builder tide_op_builder_of(tide_decoder *model, const tide_decoder_op *op);

/* --- running --- */

/* Write the table of rotary positions to the region, once, before the first pass. */
TIDE_NODISCARD tide_status tide_decoder_write_rope(tide_decoder *model);
/* Run op `index` for one micro-batch: for as many sequences, with the first position and the position, that
 * `builder` has. */
TIDE_NODISCARD tide_status tide_decoder_run_one(tide_decoder *model, uint32_t index,
                                                const tide_op_builder *shape);

/* --- sizes and addresses --- */

static inline bool tide_decoder_generates(const tide_decoder_options *options)
{
    return options->cache_tokens > 0;
}

static inline size_t tide_decoder_rows(const tide_op_builder *builder)
{
    return (size_t)builder->sequences * builder->model->options.seq_len;
}

/* After how many rows positions begin anew. */
static inline size_t tide_decoder_row_positions(const tide_op_builder *builder)
{
    const tide_decoder_options *options = &builder->model->options;
    return tide_decoder_generates(options) ? tide_decoder_rows(builder) : options->seq_len;
}

/* Bytes of the cached keys of one layer, or of its values. */
static inline uint64_t tide_decoder_cache_layer_bytes(const tide_decoder_options *options)
{
    return tide_align_up((uint64_t)options->cache_tokens * tide_model_kv_width(&options->config) *
                         tide_dtype_bytes(options->dtype));
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

/* Bytes of so many elements of the pool's dtype. */
static inline size_t tide_decoder_bytes(const tide_op_builder *builder, size_t elements)
{
    return elements * tide_dtype_bytes(builder->model->options.dtype);
}

static inline bool tide_decoder_has(const tide_decoder *model, tide_role role)
{
    return model->indices[role] >= 0;
}

/* The index of a role's param, which the model must have; `layer` matters for per-layer roles only. */
static inline size_t tide_decoder_index(const tide_decoder *model, tide_role role, uint32_t layer)
{
    const bool per_layer = role >= TIDE_ROLE_NORM_1_WEIGHT && role <= TIDE_ROLE_MLP_BIAS;
    return (size_t)model->indices[role] + (per_layer ? layer * (size_t)model->layer_params : 0);
}

/* The role of the head's weight: HEAD, or that of the token embedding if the model has no other. */
static inline tide_role tide_decoder_head_role(const tide_decoder *model)
{
    return tide_decoder_has(model, TIDE_ROLE_HEAD) ? TIDE_ROLE_HEAD : TIDE_ROLE_TOKEN_EMBEDDING;
}

/* Does the model have the param, and is it trained? */
bool tide_decoder_is_trained(const tide_decoder *model, tide_role role, uint32_t layer);
/* Does backward need the gradient of a block's input, or of the embedding's output? */
static inline bool tide_decoder_passes_on(const tide_decoder *model, uint32_t layer)
{
    return layer > model->lowest_trained || model->trains_embedding;
}

/* The address of a param's values, NULL if the model has no such param; and of the param's gradient
 * accumulator, NULL also if the param is frozen. For a per-layer role both mean the builder's layer. A dry
 * run must not read or write there. */
void *tide_decoder_weight(const tide_op_builder *builder, tide_role role);
float *tide_decoder_gradient(const tide_op_builder *builder, tide_role role);
/* This micro-batch's part of residual `index`. A decoder that generates has one residual, which every block
 * overwrites. */
void *tide_decoder_residual(const tide_op_builder *builder, uint32_t index);
/* The address `offset` bytes into the region. */
void *tide_decoder_region_at(const tide_op_builder *builder, uint64_t offset);
/* This micro-batch's part of one of the region's int32 arrays of the local batch. */
const int32_t *tide_decoder_batch_part(const tide_op_builder *builder, uint64_t offset);
/* This micro-batch's starts of documents; NULL if each sequence is one document. */
static inline const int32_t *tide_decoder_starts(const tide_op_builder *builder)
{
    const tide_decoder *model = builder->model;
    return model->has_documents ? tide_decoder_batch_part(builder, model->region.starts_offset) : NULL;
}

/* Take `bytes` of the op's workspace, or of other memory through which *cursor moves. */
void *tide_decoder_take(uintptr_t *cursor, size_t bytes);

/* Lay out a block's activations for so many sequences, from *cursor on, and move *cursor behind them. */
void tide_decoder_activations_place(const tide_decoder_options *options, uint32_t sequences,
                                    uintptr_t *cursor, tide_decoder_activations *activations);

/* --- launches; each may use scratch, so an op must take its workspace before its first launch --- */

void tide_decoder_launch(tide_op_builder *builder, const char *name, tide_kernel kernel,
                         const void *arguments, size_t argument_bytes, double flops, double bytes);
/* mean and rstd may be NULL; RMS norm does not use mean. */
void tide_decoder_norm_forward(tide_op_builder *builder, const tide_decoder_norm *norm, size_t rows,
                               const void *in, void *out, float *mean, float *rstd);
/* The gradient of the norm's input goes to din, or is added to din with `accumulate`; din NULL: it is not
 * computed. */
void tide_decoder_norm_backward(tide_op_builder *builder, const tide_decoder_norm *norm, const void *in,
                                const void *dout, const float *mean, const float *rstd, void *din,
                                bool accumulate);
/* Launch RMS norm's backward, with scratch as its workspace; the caller leaves the workspace of `norm`
 * unset. */
void tide_decoder_rms_norm_backward(tide_op_builder *builder, const char *name,
                                    const tide_rms_norm_backward_args *norm);
/* Scratch of `bytes` for one kernel, behind all workspace that the op has taken. */
void *tide_decoder_scratch(tide_op_builder *builder, size_t bytes);
void tide_decoder_matmul(tide_op_builder *builder, const char *name, const tide_matmul_args *product);
/* A matmul into the whole gradient of `role`, which must be trained. Overwrites the gradient if it is new to
 * the op (tide_param_gradient_is_new), the micro-batch is the first of its sum group, and the caller says
 * with `is_first` that this is the slice's first matmul into it; otherwise adds to it. A dry run prepares
 * both. The caller leaves c and accumulate of `product` unset. */
void tide_decoder_gradient_matmul(tide_op_builder *builder, const char *name, tide_role role, bool is_first,
                                  const tide_matmul_args *product);
/* Finish the gradient of `role`, if it is trained, in the op that closes it: call this behind the last launch
 * of the op's code that reads the param or adds to its gradient. Does so in the last micro-batch, and only
 * with several sum groups; with one there is nothing to add, and the op's end rounds as well. */
void tide_decoder_finish(tide_op_builder *builder, tide_role role);
void tide_decoder_linear_forward(tide_op_builder *builder, const tide_decoder_linear *linear, const void *in,
                                 void *out);
/* A linear layer fused with the GELU after it; in backward, with the GELU before it. Only if
 * kernels->fuses_gelu. */
void tide_decoder_linear_gelu(tide_op_builder *builder, const tide_decoder_linear *linear, const void *in,
                              void *gelu_in, void *out);
void tide_decoder_linear_gelu_backward(tide_op_builder *builder, const tide_decoder_linear *linear,
                                       const void *in, const void *dout, void *gelu_in, void *din);
/* The gradients of weight and bias, but not of the layer's input. */
void tide_decoder_linear_params_backward(tide_op_builder *builder, const tide_decoder_linear *linear,
                                         const void *in, const void *dout);
void tide_decoder_linear_backward(tide_op_builder *builder, const tide_decoder_linear *linear, const void *in,
                                  const void *dout, void *din);
/* The MLP's first layer and the activation function: act = gelu(fc), or silu(gate) x up of fc's two
 * halves. */
void tide_decoder_activate(tide_op_builder *builder, const tide_decoder_linear *linear, const void *in,
                           const tide_decoder_activations *at);
/* Backward of the MLP's last layer and the activation function. Returns the gradient of the activation
 * function's input, which overwrites act or fc; the other one's content is lost. */
void *tide_decoder_activate_backward(tide_op_builder *builder, const tide_decoder_linear *linear,
                                     const tide_decoder_activations *at, const void *dout);
/* Attention, after the norms and rotary positions of queries and keys if the family has them. Backward writes
 * the gradient of qkv to dqkv. */
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
