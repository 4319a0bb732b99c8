/* The arguments of the kernels (kernels.h, which has the rules that hold for all of them). */
#ifndef TIDEPOOL_KERNELS_ARGUMENTS_H
#define TIDEPOOL_KERNELS_ARGUMENTS_H

#include "base/align.h"
#include "kernels/adam_math.h"
#include "tidepool/types.h"

#include <assert.h>
#include <stdbool.h>

/* ---- documents ---- */

/* A sequence may hold several documents. starts[r] is the place in the sequence at which the document of row
 * r begins: 0 <= starts[r] <= r % sequence_length, and within a sequence starts never decreases. Positions
 * count from the document's begin, and attention does not look across it. starts NULL: 0 everywhere. */
static inline size_t tide_row_position(const int32_t *starts, size_t row, size_t sequence_length)
{
    return row % sequence_length - (starts ? (size_t)starts[row] : 0);
}

/* ---- embedding ---- */

/* out[r] = wte[tokens[r]] (+ wpe[position of row r]). Every token must be in [0, vocabulary); the caller
 * checks this. */
typedef struct tide_embedding_args {
    const int32_t *tokens; /* [rows]; alignment 4 */
    const int32_t *starts; /* [rows] or NULL; alignment 4; read only with a wpe */
    const void *wte;       /* [vocabulary, width] */
    const void *wpe;       /* [>= sequence_length, width]; NULL: the model has no position embedding */
    void *out;             /* [rows, width] */
    size_t rows, sequence_length, width, vocabulary;
    tide_dtype dtype;
} tide_embedding_args;

/* dwte[tokens[r]] += dout[r]; dwpe[position of row r] += dout[r]. Rows of dwte that no token names stay as
 * they are, and so does the row of the padding token (PyTorch's padding_idx); dwpe gets the gradients of
 * padding tokens, too. */
typedef struct tide_embedding_backward_args {
    const int32_t *tokens; /* [rows]; alignment 4 */
    const int32_t *starts; /* [rows] or NULL; alignment 4; read only with a dwpe */
    const void *dout;      /* [rows, width] */
    float *dwte;           /* [vocabulary, width]; NULL: not computed */
    float *dwpe;           /* [>= sequence_length, width]; NULL: not computed */
    size_t rows, sequence_length, width, vocabulary;
    tide_dtype dtype;
    size_t padding_row; /* 1 + the padding token; 0: there is none */
} tide_embedding_backward_args;

/* ---- layer norm ---- */

/* out = (in - mean) rstd weight + bias for each row; rstd = 1 / sqrt(variance + epsilon); mean and variance
 * over `width`.
 */
typedef struct tide_layer_norm_args {
    const void *in, *weight, *bias; /* [rows, width], [width], [width] */
    void *out;                      /* [rows, width] */
    float *mean, *rstd;             /* [rows] each, for backward; or both NULL */
    size_t rows, width;
    float epsilon;
    tide_dtype dtype;
} tide_layer_norm_args;

typedef struct tide_layer_norm_backward_args {
    const void *in, *weight, *dout; /* [rows, width], [width], [rows, width] */
    const float *mean, *rstd;       /* [rows] each, of forward */
    void *din;                      /* [rows, width]; may be dout unless accumulating; NULL: not computed */
    float *dweight, *dbias;         /* [width] each, added to; NULL: not computed */
    void *workspace;                /* size: layer_norm_backward_workspace_bytes(this struct) */
    size_t workspace_bytes;
    size_t rows, width;
    bool accumulate; /* din += instead of din =; for a residual, whose gradient is in din already */
    tide_dtype dtype;
} tide_layer_norm_backward_args;

/* ---- RMS norm ---- */

/* out = in rstd weight for each head; rstd = 1 / sqrt(mean of in^2 + epsilon), the mean over the head's
 * `width` (Zhang and Sennrich 2019, "Root Mean Square Layer Normalization"). A row holds `heads` heads one
 * after another, which all use the same weight. To norm whole rows `heads` is 1; to norm queries or keys it
 * is attention's number of heads. Rows begin in_row and out_row elements apart, at least heads x width; the
 * kernel does not access the elements between them. */
typedef struct tide_rms_norm_args {
    const void *in, *weight; /* [rows, in_row], [width] */
    void *out;               /* [rows, out_row] */
    float *rstd;             /* [rows, heads], for backward; or NULL */
    size_t rows, heads, width;
    size_t in_row, out_row;
    float epsilon;
    tide_dtype dtype;
} tide_rms_norm_args;

typedef struct tide_rms_norm_backward_args {
    const void *in, *weight, *dout; /* [rows, in_row], [width], [rows, dout_row] */
    const float *rstd;              /* [rows, heads], of forward */
    void *din;       /* [rows, dout_row]; may be dout unless accumulating; NULL: not computed */
    float *dweight;  /* [width], added to; NULL: not computed */
    void *workspace; /* size: rms_norm_backward_workspace_bytes(this struct) */
    size_t workspace_bytes;
    size_t rows, heads, width;
    size_t in_row, dout_row;
    bool accumulate; /* din += instead of din =; for a residual, whose gradient is in din already */
    tide_dtype dtype;
} tide_rms_norm_backward_args;

/* ---- rotary positions ---- */

/* Rotates in place. In every head of width d each pair (x[i], x[i + d / 2]), i < d / 2, becomes (x[i] c - x[i
 * + d / 2] s, x[i + d / 2] c + x[i] s), where c and s are cosine and sine of pair i at the row's position (Su
 * et al. 2021, "RoFormer", in the form of Hugging Face's Llama). With `backward` the kernel rotates by the
 * negative angle, which turns the gradient of the result into that of x. */
typedef struct tide_rope_args {
    void *data;            /* [rows, row]: the heads one after another from the row's first element on */
    const float *table;    /* [sequence_length, head_width]: for each position all c, then all s */
    const int32_t *starts; /* [rows] or NULL; alignment 4 */
    size_t rows, sequence_length;
    size_t heads, head_width; /* head_width even */
    size_t row;               /* elements from one row's begin to the next's, at least heads x head_width */
    bool backward;
    tide_dtype dtype;
} tide_rope_args;

/* ---- matrix product ---- */

/* C[m, n] = op(A)[m, k] op(B)[k, n] (+ bias[n]), or C += without bias when `accumulate`. A is stored as [m,
 * k] or, with transpose_a, as [k, m]; B as [k, n] or, with transpose_b, as [n, k]. Leading dimensions are
 * those of the stored matrices, at least their row lengths. a, b and bias have the same type, FP32, BF16 or
 * FP16; C has this type, too, or FP32. accumulate needs an FP32 C.
 *
 * Only a table with fuses_gelu fuses GELU with the product; others refuse it. It needs dense rows (ldc = n),
 * a C of the inputs' type and no accumulate; BACKWARD needs a product without bias. gelu_in is a matrix like
 * C. Each table decides whether gelu reads the product in fp32 or rounded, as gelu_in holds it, and whether
 * BACKWARD rounds the product before it multiplies; it decides the same at every launch of a shape.
 *
 * The caller must have called matmul_prepare with the same shape (all but the pointers and workspace_bytes)
 * since the last tide_kernels_cpu_configure; otherwise the kernel fails with TIDE_ERROR_STATE. If the
 * workspace is smaller than matmul_prepare said, it fails with TIDE_ERROR_ARGUMENT; if the library fails,
 * with TIDE_ERROR_DEVICE. */
typedef enum tide_matmul_gelu {
    TIDE_MATMUL_GELU_NONE = 0,
    TIDE_MATMUL_GELU_FORWARD,  /* gelu_in = op(A) op(B) (+ bias), an output too; C = gelu(gelu_in) */
    TIDE_MATMUL_GELU_BACKWARD, /* C = op(A) op(B) x gelu'(gelu_in) */
} tide_matmul_gelu;

typedef struct tide_matmul_args {
    const void *a, *b;
    const void *bias; /* [n] if has_bias, else NULL */
    void *c;
    void *gelu_in; /* [m, n] if gelu, else NULL */
    void *workspace;
    size_t workspace_bytes;
    size_t m, n, k;
    size_t lda, ldb, ldc;
    tide_dtype in_dtype, out_dtype;
    bool transpose_a, transpose_b;
    bool has_bias;
    bool accumulate;
    tide_matmul_gelu gelu;
} tide_matmul_args;

/* dbias[j] += sum over r of dout[r, j], in fp32, rows in a fixed order. */
typedef struct tide_bias_backward_args {
    const void *dout; /* [rows, width] */
    float *dbias;     /* [width] */
    size_t rows, width;
    tide_dtype dtype;
} tide_bias_backward_args;

/* ---- causal attention ---- */

/* Each of the batch x sequence_length rows is a token. A row of q holds `heads` heads one after another, each
 * head_width wide; rows of k and v hold kv_heads heads, and query head h attends to head h / (heads /
 * kv_heads) (Ainslie et al. 2023, "GQA"; heads is a multiple of kv_heads). Scores are scaled by 1 /
 * sqrt(head_width). Rows of q and k begin qk_row elements apart, rows of v v_row: q, k and v may be parts of
 * one matrix. Forward keeps logsumexp[b, h, t] for backward, but no T x T matrix.
 *
 * Token t of sequence b attends to tokens starts[b, t] .. t. */
typedef struct tide_attention_args {
    const void *q, *k, *v; /* q, k: [batch x sequence_length, qk_row]; v: [.., v_row] */
    const int32_t *starts; /* [batch, sequence_length] or NULL; alignment 4 */
    void *out;             /* [batch x sequence_length, heads x head_width] */
    float *logsumexp;      /* [batch, heads, sequence_length] */
    void *workspace;       /* size: attention_workspace_bytes(this struct) */
    size_t workspace_bytes;
    size_t batch, sequence_length, heads, kv_heads, head_width;
    size_t qk_row, v_row;
    tide_dtype dtype;
} tide_attention_args;

typedef struct tide_attention_backward_args {
    const void *q, *k, *v, *out, *dout; /* as in forward; dout like out */
    const int32_t *starts;
    const float *logsumexp;
    void *dq, *dk, *dv; /* like q, k, v, but all with rows dqkv_row apart */
    void *workspace;    /* size: attention_backward_workspace_bytes(this struct) */
    size_t workspace_bytes;
    size_t batch, sequence_length, heads, kv_heads, head_width;
    size_t qk_row, v_row, dqkv_row;
    tide_dtype dtype;
} tide_attention_backward_args;

/* ---- causal attention to a cache ---- */

/* Attention of the tokens at positions first .. first + rows - 1 of one sequence, with heads, scale and
 * rows as above. Keys and values of earlier positions are in the cache, and the kernel adds those of its
 * own tokens to it. Each token attends to all positions up to its own. A token's bits do not depend on
 * `first` and `rows`: the tokens of one launch or of several give the same. */
typedef struct tide_attention_cached_args {
    const void *q, *k, *v; /* q, k: [rows, qk_row]; v: [rows, v_row] */
    /* [>= first + rows, kv_heads x head_width]: the kernel reads rows below `first` and writes the next
     * `rows` */
    void *keys, *values;
    void *out;       /* [rows, heads x head_width] */
    void *workspace; /* size: attention_cached_workspace_bytes(this struct) */
    size_t workspace_bytes;
    size_t rows, first, heads, kv_heads, head_width;
    size_t qk_row, v_row;
    tide_dtype dtype;
} tide_attention_cached_args;

/* ---- element by element ---- */

/* GELU in GPT-2's form, x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))). out may be in. */
typedef struct tide_gelu_args {
    const void *in;
    void *out;
    size_t elements;
    tide_dtype dtype;
} tide_gelu_args;

/* din = dout x gelu'(in). din may be dout or in. */
typedef struct tide_gelu_backward_args {
    const void *in, *dout;
    void *din;
    size_t elements;
    tide_dtype dtype;
} tide_gelu_backward_args;

/* SwiGLU's gate (Shazeer 2020, "GLU Variants Improve Transformer"): out = silu(gate) up, silu(x) = x / (1 +
 * e^-x). A row of `in` holds `width` elements of gate, then `width` of up. */
typedef struct tide_swiglu_args {
    const void *in; /* [rows, 2 x width] */
    void *out;      /* [rows, width] */
    size_t rows, width;
    tide_dtype dtype;
} tide_swiglu_args;

/* d gate = dout up silu'(gate), d up = dout silu(gate). din may be in. */
typedef struct tide_swiglu_backward_args {
    const void *in, *dout; /* [rows, 2 x width], [rows, width] */
    void *din;             /* [rows, 2 x width] */
    size_t rows, width;
    tide_dtype dtype;
} tide_swiglu_backward_args;

/* out = a + b. out may be a or b, to add to a residual in place. */
typedef struct tide_add_args {
    const void *a, *b;
    void *out;
    size_t elements;
    tide_dtype dtype;
} tide_add_args;

typedef struct tide_zero_args {
    void *data; /* any alignment */
    size_t bytes;
} tide_zero_args;

typedef struct tide_copy_args {
    const void *in; /* any alignment */
    void *out;
    size_t bytes;
} tide_copy_args;

/* out = in, rounded to nearest even if the new type is narrower. Alignment: the element's. */
typedef struct tide_cast_args {
    const void *in;
    void *out;
    size_t elements;
    tide_dtype in_dtype, out_dtype;
} tide_cast_args;

/* data = data, each number rounded to nearest even as `dtype` would store it, but kept in fp32. */
typedef struct tide_round_args {
    float *data; /* [elements] */
    size_t elements;
    tide_dtype dtype;
} tide_round_args;

/* ---- loss ---- */

/* losses[r] = logsumexp(logits[r, :vocabulary]) - logits[r, targets[r]]. With `gradient` the kernel replaces
 * the logits by their gradient (softmax - onehot) x gradient_scale and writes 0 to the columns from
 * vocabulary to leading_dimension; without it the logits stay as they are. A row with a target below 0 is not
 * learned: its loss and gradient are 0, whatever its logits are. Every target must be below vocabulary. */
typedef struct tide_cross_entropy_args {
    void *logits;           /* [rows, leading_dimension] */
    const int32_t *targets; /* [rows]; alignment 4 */
    float *losses;          /* [rows] */
    size_t rows, vocabulary, leading_dimension;
    float gradient_scale; /* loss scale / learned tokens of the global batch */
    bool gradient;
    tide_dtype dtype;
} tide_cross_entropy_args;

/* *sum = the losses, in float64: first the losses of each leaf of 64 in order, then the leaves in order. */
typedef struct tide_loss_sum_args {
    const float *losses; /* [rows] */
    double *sum;
    size_t rows;
} tide_loss_sum_args;

/* ---- gradients of params ---- */

enum { TIDE_NORM_LEAF_ELEMENTS = 64, TIDE_NORM_BLOCK_ELEMENTS = 4096, TIDE_NORM_SUM_LANES = 1024 };

/* Sums of squares of a tensor's stored gradient, one float64 for each block of 4096 elements. A block
 * consists of leaves of 64 elements, each with 8 lanes; elements past the tensor's end count as zeros.
 *
 *     lane[j]  = sum over i = 0..7 of x[8 i + j]^2, i in order
 *     leaf     = ((lane0 + lane4) + (lane2 + lane6)) + ((lane1 + lane5) + (lane3 + lane7))
 *     block    = leaf0 + leaf1 + ... in order
 *
 * A call sums elements [first_element, first_element + elements) of the tensor; first_element is a multiple
 * of 64. If a block begins in this range, the call sets its sum, otherwise it adds to the sum: calls for
 * successive ranges give the same bits as one call for the whole tensor. */
typedef struct tide_gradient_norm_args {
    const void *gradient; /* the element first_element */
    double *blocks;       /* the tensor's: [tide_norm_blocks(elements of the tensor)] */
    size_t first_element, elements;
    tide_dtype dtype;
} tide_gradient_norm_args;

/* The sum of the blocks, which is the square of the gradient's norm:
 *     lane[j] = blocks[j] + blocks[1024 + j] + blocks[2048 + j] + ..., in order
 *     *sum    = lane[0] + lane[1] + ... + lane[1023], in order
 * Not finite if any gradient is not. */
typedef struct tide_norm_sum_args {
    const double *blocks;
    double *sum;
    size_t blocks_count;
} tide_norm_sum_args;

static inline size_t tide_norm_blocks(size_t elements)
{
    return tide_ceil_div(elements, TIDE_NORM_BLOCK_ELEMENTS);
}

/* ---- optimizer ---- */

/* Consecutive elements of one param within one chunk. Alignments: the element's. */
typedef struct tide_adamw_segment {
    void *param;     /* in: the gradient; out: the new master, rounded. restore writes it only */
    float *master;   /* restore reads it */
    float *momentum; /* restore: not used */
    float *variance; /* restore: not used */
    size_t elements;
    bool decays; /* weight decay applies to it; restore: not used */
} tide_adamw_segment;

/* Updates all segments in one pass (adam_math.h). The array `segments` must stay valid until the kernel has
 * run. The result has the same bits with any thread count and instruction set. */
typedef struct tide_adamw_args {
    const tide_adamw_segment *segments;
    size_t segment_count;
    tide_adam_factors factors;
    tide_dtype dtype;
} tide_adamw_args;

/* param = round(master) for every segment. */
typedef struct tide_restore_args {
    const tide_adamw_segment *segments;
    size_t segment_count;
    tide_dtype dtype;
} tide_restore_args;

/* ---- on the CPU alone, and not launched ---- */

/* A stream of random numbers, and the standard deviation of the normals made from it (normals.c). */
typedef struct tide_normals_args {
    uint32_t key[2];    /* Philox's key */
    uint32_t stream[2]; /* the last two words of Philox's counter; the first two are the block's number */
    double deviation;
} tide_normals_args;

/* A copy of values into memory that is not read soon. out[0] and, unless NULL, out[1] get all values, rounded
 * to nearest even to out_dtype. If the instruction set has streaming stores, they bypass the caches.
 * Alignment: the element's. */
typedef struct tide_place_args {
    const void *in;
    void *out[2];
    size_t elements;
    tide_dtype in_dtype, out_dtype[2];
} tide_place_args;

static_assert(sizeof(tide_embedding_args) <= TIDE_LAUNCH_ARGUMENTS_MAX_BYTES,
              "a launch copies the arguments");
static_assert(sizeof(tide_rms_norm_backward_args) <= TIDE_LAUNCH_ARGUMENTS_MAX_BYTES, "as above");
static_assert(sizeof(tide_layer_norm_backward_args) <= TIDE_LAUNCH_ARGUMENTS_MAX_BYTES, "as above");
static_assert(sizeof(tide_matmul_args) <= TIDE_LAUNCH_ARGUMENTS_MAX_BYTES, "as above");
static_assert(sizeof(tide_attention_backward_args) <= TIDE_LAUNCH_ARGUMENTS_MAX_BYTES, "as above");
static_assert(sizeof(tide_adamw_args) <= TIDE_LAUNCH_ARGUMENTS_MAX_BYTES, "as above");

#endif
