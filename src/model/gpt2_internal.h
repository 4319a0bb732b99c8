/* What the GPT-2's files share.
 *
 *   gpt2.c         params and activations registered with the pool; initial values; the run of a step
 *   gpt2_ops.c     ops: what each may touch, in which order they run
 *   gpt2_tape.c    one launch each: prepared and counted while measuring, made while running
 *   gpt2_block.c   a transformer block, forward and backward
 *   gpt2_ends.c    embedding, head, logits
 *
 * A tape runs one op's code for one micro-batch. The same code runs twice in a model's life: measuring, when
 * the op is registered (nothing is launched; products are prepared, operations and workspace are
 * counted), and then for real. So no shape can be launched that was not prepared, and no workspace be used
 * that was not declared. While measuring, addresses are offsets from zero and are never followed.
 *
 *     workspace of an op   | what its code takes, each 256-byte aligned | scratch of its kernels |
 */
#ifndef TIDE_MODEL_GPT2_INTERNAL_H
#define TIDE_MODEL_GPT2_INTERNAL_H

#include "src/model/gpt2.h"

typedef struct tide_gpt2_tape tide_gpt2_tape;
typedef void (*tide_gpt2_op_code)(tide_gpt2_tape *tape);

typedef struct tide_gpt2_op {
    tide_op handle;
    uint32_t layer;
    tide_gpt2_op_code code;
    uint64_t workspace_bytes;
    double flops; /* of all micro-batches */
} tide_gpt2_op;

/* Which ops of the array belong to what. */
typedef struct tide_gpt2_order {
    uint32_t embedding, first_block, head, first_backward; /* training, in this order */
    uint32_t last_trained;                                 /* the last op of a training step */
    uint32_t first_evaluation_block, evaluation_head, logits;
    uint32_t count;
} tide_gpt2_order;

struct tide_gpt2 {
    tide_pool *pool;
    tide_gpt2_options options; /* `recompute` and `frozen` point at the model's own copies */
    tide_gpt2_region region;
    float loss_scale;           /* of the training step that runs */
    bool *recompute;            /* [layers] */
    bool *frozen;               /* [param_count] */
    uint32_t lowest_trained;    /* block; layers: backward ends with the head */
    bool trains_embedding;      /* wte or wpe: backward goes on to the embedding */
    tide_param *params;         /* [param_count], creation order */
    tide_checkpoint *residuals; /* [layers + 1] */
    tide_checkpoint *saved;     /* [layers]; unset where the block recomputes */
    tide_gpt2_op *ops;          /* [order.count] */
    tide_gpt2_order order;
};

struct tide_gpt2_tape {
    tide_gpt2 *model;
    uint32_t layer;
    uint32_t micro_batch;
    uint32_t sequences; /* of the micro-batch; 1 when sampling */
    uint32_t position;  /* logits: of which row */
    bool measuring;
    tide_status status; /* of the first launch that failed; none is made after it */

    uintptr_t workspace, cursor; /* start, and the first byte that nobody has taken */
    uint64_t workspace_bytes;    /* running: as declared */
    uint64_t scratch_bytes;      /* measuring: the most a kernel asked for; running: what is left */
    double flops;                /* measuring: counted */
};

/* A block's activations, all that backward needs. */
typedef struct tide_gpt2_activations {
    void *norm_1, *qkv, *attention;           /* [rows, width], [rows, 3 width], [rows, width] */
    void *middle;                             /* [rows, width]: the residual between attention and MLP */
    void *norm_2, *fc, *gelu;                 /* [rows, width], [rows, 4 width] twice */
    float *logsumexp;                         /* [sequences, heads, seq_len] */
    float *mean_1, *rstd_1, *mean_2, *rstd_2; /* [rows] each */
} tide_gpt2_activations;

/* A linear layer: in [rows, in_widths x width] to out [rows, out_widths x width]. */
typedef struct tide_gpt2_linear {
    const char *forward_name, *weight_name, *bias_name, *input_name; /* of its launches */
    tide_gpt2_role weight, bias;
    uint32_t in_widths, out_widths;
} tide_gpt2_linear;

/* --- registering --- */

/* All ops, after params and activations: fills model->ops and model->order. */
TIDE_NODISCARD tide_status tide_gpt2_register_ops(tide_gpt2 *model);

/* A tape for the op's first micro-batch, running. */
tide_gpt2_tape tide_gpt2_tape_of(tide_gpt2 *model, const tide_gpt2_op *op);

/* --- sizes and addresses --- */

static inline size_t tide_gpt2_rows(const tide_gpt2_tape *tape)
{
    return (size_t)tape->sequences * tape->model->options.seq_len;
}

static inline size_t tide_gpt2_width(const tide_gpt2_tape *tape)
{
    return tape->model->options.config.width;
}

/* Bytes of `elements` activations. */
static inline size_t tide_gpt2_bytes(const tide_gpt2_tape *tape, size_t elements)
{
    return elements * tide_dtype_bytes(tape->model->options.dtype);
}

/* Has a param a gradient? `layer` counts for roles of a layer. */
bool tide_gpt2_is_trained(const tide_gpt2 *model, tide_gpt2_role role, uint32_t layer);
/* Does backward need the gradient of a block's input, or of the embedding's output? */
static inline bool tide_gpt2_passes_on(const tide_gpt2 *model, uint32_t layer)
{
    return layer > model->lowest_trained || model->trains_embedding;
}

/* A param's values and its gradient accumulator, NULL if it is frozen; `layer` is the tape's for roles of a layer. Followed by
 * nobody while measuring. */
void *tide_gpt2_weight(const tide_gpt2_tape *tape, tide_gpt2_role role);
float *tide_gpt2_gradient(const tide_gpt2_tape *tape, tide_gpt2_role role);
/* This micro-batch's part of residual `index`. */
void *tide_gpt2_residual(const tide_gpt2_tape *tape, uint32_t index);
/* `offset` bytes into the region. */
void *tide_gpt2_region_at(const tide_gpt2_tape *tape, uint64_t offset);

/* Take `bytes` of the op's workspace, or of any other memory that *cursor walks. */
void *tide_gpt2_take(uintptr_t *cursor, size_t bytes);

/* Lay a block's activations of `rows` rows out from *cursor on. */
void tide_gpt2_activations_place(const tide_gpt2_options *options, uint32_t sequences, uintptr_t *cursor,
                                 tide_gpt2_activations *activations);

/* --- launches; each may take scratch: call them after the op has taken its workspace --- */

void tide_gpt2_launch(tide_gpt2_tape *tape, const char *name, tide_kernel kernel, const void *arguments,
                      size_t argument_bytes, double flops, double bytes);
void tide_gpt2_layer_norm(tide_gpt2_tape *tape, tide_gpt2_role weight, tide_gpt2_role bias, size_t rows,
                          const void *in, void *out, float *mean, float *rstd);
void tide_gpt2_layer_norm_backward(tide_gpt2_tape *tape, tide_gpt2_role weight, tide_gpt2_role bias,
                                   const tide_layer_norm_backward_args *tensors);
void tide_gpt2_matmul(tide_gpt2_tape *tape, const char *name, const tide_matmul_args *product);
void tide_gpt2_linear_forward(tide_gpt2_tape *tape, const tide_gpt2_linear *linear, const void *in,
                              void *out);
void tide_gpt2_linear_gelu(tide_gpt2_tape *tape, const tide_gpt2_linear *linear, const void *in, void *gelu_in,
                           void *out);
/* Without the gradient of the layer's input. */
void tide_gpt2_linear_params_backward(tide_gpt2_tape *tape, const tide_gpt2_linear *linear, const void *in,
                                      const void *dout);
void tide_gpt2_linear_backward(tide_gpt2_tape *tape, const tide_gpt2_linear *linear, const void *in,
                               const void *dout, void *din);
void tide_gpt2_linear_gelu_backward(tide_gpt2_tape *tape, const tide_gpt2_linear *linear, const void *in,
                                    const void *dout, void *gelu_in, void *din);
void tide_gpt2_attention(tide_gpt2_tape *tape, const tide_gpt2_activations *at);
void tide_gpt2_attention_backward(tide_gpt2_tape *tape, const tide_gpt2_activations *at, const void *dout,
                                  void *dqkv);
void tide_gpt2_add_to(tide_gpt2_tape *tape, void *sum, const void *term, size_t elements);
void tide_gpt2_copy(tide_gpt2_tape *tape, void *out, const void *in, size_t bytes);

/* --- the ops' code --- */

void tide_gpt2_embedding(tide_gpt2_tape *tape);
void tide_gpt2_embedding_backward(tide_gpt2_tape *tape);
void tide_gpt2_block_forward(tide_gpt2_tape *tape);
void tide_gpt2_block_backward(tide_gpt2_tape *tape);
void tide_gpt2_block_evaluation(tide_gpt2_tape *tape);
void tide_gpt2_head(tide_gpt2_tape *tape);
void tide_gpt2_head_evaluation(tide_gpt2_tape *tape);
void tide_gpt2_head_logits(tide_gpt2_tape *tape);

#endif
