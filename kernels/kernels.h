/* The kernels: all arithmetic of a decoder-only transformer, forward and backward, behind one table.
 *
 * A kernel is a `tide_kernel`: it goes through a device's launch, which copies its argument struct (at most
 * 256 bytes) and runs it later on a stream. The CPU's table and the GPU's share the structs below, so a
 * trainer written against the table does not know where it runs.
 *
 * Rules that hold for every kernel:
 * - `dtype` is the type of activations and params; statistics (mean, rstd, logsumexp, losses) and the
 *   gradient accumulators of params are always fp32. All arithmetic inside is fp32 or better; a bf16 or
 *   fp16 result is rounded once. Two exceptions on a GPU, for a dtype of 16 bits: attention rounds softmax's
 *   weights to the dtype, in backward the scores' gradients too (in fp16 they overflow beyond 65504), since
 *   tensor cores multiply nothing wider; and exponentials, and quotients of GELU and SwiGLU, have relative errors of up to 1e-5.
 * - In attention a number that is not finite reaches the rows beside it, at most 128 of them, also those that do not look at it.
 * - Gradients of params are ADDED to their accumulators (micro-batches pass one after another), but for a matmul's, which may
 *   write; gradients of activations are written, unless a flag says added.
 * - Matrices are row-major. Pointers are aligned to 256 bytes unless said otherwise, or point at a row
 *   inside.
 * - Nothing allocates. Scratch comes in `workspace`, whose constant size the table's queries give.
 * - Results have the same bits at every call: they depend on the arguments and, at most, on the thread count;
 *   never on addresses or timing. Only a matmul depends on the thread count (oneDNN chooses its splits by it).
 * - Inputs and outputs do not overlap unless said ("may be ..."): a kernel is free to read twice.
 * - One kernel of a stream at a time. Status other than TIDE_OK: from matmul, as said there; on a GPU also
 *   TIDE_ERROR_DEVICE where a launch is refused, and TIDE_ERROR_ARGUMENT for heads that attention can't take.
 *
 * What a launch declares, floating-point operations and bytes, is in costs.h. Counts of elements and leading
 * dimensions are in elements, sizes in bytes.
 */
#ifndef TIDEPOOL_KERNELS_KERNELS_H
#define TIDEPOOL_KERNELS_KERNELS_H

#include "kernels/adam_math.h"
#include "tidepool/types.h"

#include <assert.h>
#include <stdbool.h>

/* ---- embedding ---- */

/* out[r] = wte[tokens[r]] (+ wpe[r % sequence_length]). Every token is in [0, vocabulary): the caller checks
 * data. */
typedef struct tide_embedding_args {
    const int32_t *tokens; /* [rows]; alignment 4 */
    const void *wte;       /* [vocabulary, width] */
    const void *wpe;       /* [>= sequence_length, width]; NULL: a model without positions of its own */
    void *out;             /* [rows, width] */
    size_t rows, sequence_length, width, vocabulary;
    tide_dtype dtype;
} tide_embedding_args;

/* dwte[tokens[r]] += dout[r]; dwpe[r % sequence_length] += dout[r]. Rows of no token are not touched, nor is the row of a padding
 * token in dwte (torch's padding_idx), whose positions get theirs. */
typedef struct tide_embedding_backward_args {
    const int32_t *tokens; /* [rows]; alignment 4 */
    const void *dout;      /* [rows, width] */
    float *dwte;           /* [vocabulary, width]; NULL: not wanted, */
    float *dwpe;           /* [>= sequence_length, width]; likewise */
    size_t rows, sequence_length, width, vocabulary;
    tide_dtype dtype;
    size_t padding_row; /* 1 + the padding token; 0: none */
} tide_embedding_backward_args;

/* ---- layer norm ---- */

/* out = (in - mean) rstd weight + bias per row, rstd = 1 / sqrt(variance + epsilon), variance over `width`.
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
    void *din;                      /* [rows, width]; may be dout unless accumulating; NULL: not wanted */
    float *dweight, *dbias;         /* [width] each, added to; NULL: not wanted */
    void *workspace;                /* layer_norm_backward_workspace_bytes(these) */
    size_t workspace_bytes;
    size_t rows, width;
    bool accumulate; /* din += instead of din = : joins the residual's gradient */
    tide_dtype dtype;
} tide_layer_norm_backward_args;

/* ---- RMS norm ---- */

/* out = in rstd weight per head, rstd = 1 / sqrt(mean of in^2 + epsilon) over the head's `width` (Zhang and Sennrich 2019,
 * "Root Mean Square Layer Normalization"). A row holds `heads` heads one after another, all with the same weight: 1 for a
 * norm of whole rows, the attention's heads for the norm of queries or keys. Rows are in_row, out_row apart, at least heads x
 * width; what lies between is not touched. */
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
    void *din;                      /* [rows, dout_row]; may be dout unless accumulating; NULL: not wanted */
    float *dweight;                 /* [width], added to; NULL: not wanted */
    void *workspace;                /* rms_norm_backward_workspace_bytes(these) */
    size_t workspace_bytes;
    size_t rows, heads, width;
    size_t in_row, dout_row;
    bool accumulate; /* din += instead of din = : joins the residual's gradient */
    tide_dtype dtype;
} tide_rms_norm_backward_args;

/* ---- rotary positions ---- */

/* In every head of width d the pairs (x[i], x[i + d / 2]), i < d / 2, become (x[i] c - x[i + d / 2] s, x[i + d / 2] c + x[i] s)
 * with (c, s) of the row's position, r % sequence_length (Su et al. 2021, "RoFormer", in the form of Hugging Face's Llama).
 * With `backward` the turn goes back: that is its own gradient. In place. */
typedef struct tide_rope_args {
    void *data;         /* [rows, row]: a row's heads one after another, from its first element on */
    const float *table; /* [sequence_length, head_width]: of a position all c, then all s */
    size_t rows, sequence_length;
    size_t heads, head_width; /* head_width even */
    size_t row;               /* from one row to the next, at least heads x head_width */
    bool backward;
    tide_dtype dtype;
} tide_rope_args;

/* ---- matrix product ---- */

/* C[m, n] = op(A)[m, k] op(B)[k, n] (+ bias[n]), or C += without bias when `accumulate`.
 * op(A) is A, stored [m, k] with leading dimension lda; with transpose_a A is stored [k, m]. B alike: [k, n]
 * or, with transpose_b, [n, k]. Leading dimensions are those of the stored matrix: at least its row length.
 * Types: a, b, bias FP32, BF16 or FP16 alike (one of them per product); C the same, or FP32 from narrow inputs.
 * accumulate needs an FP32 C.
 *
 * GELU joins a product only on a table with fuses_gelu; any other refuses it. It needs dense rows (ldc = n), a
 * C of the inputs' type, and no accumulate; BACKWARD takes no bias. gelu_in is a matrix like C. Whether gelu
 * sees the product in fp32 or rounded as gelu_in holds it, and whether BACKWARD rounds the product before it
 * multiplies, is the table's choice, the same at every launch of a shape.
 *
 * The table's matmul_prepare must have seen the same shape (all but the pointers and workspace_bytes) since
 * the last tide_kernels_cpu_configure; otherwise the kernel fails with TIDE_ERROR_STATE. A workspace smaller
 * than prepare asked for is TIDE_ERROR_ARGUMENT; a failing library TIDE_ERROR_DEVICE. */
typedef enum tide_matmul_gelu {
    TIDE_MATMUL_GELU_NONE = 0,
    TIDE_MATMUL_GELU_FORWARD,  /* gelu_in = op(A) op(B) (+ bias), written too; C = gelu(gelu_in) */
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

/* Rows are tokens: batch x sequence_length of them. A row of q holds its `heads` heads one after another, each head_width
 * wide; a row of k and of v holds kv_heads of them, and query head h looks at head h / (heads / kv_heads) (Ainslie et al. 2023,
 * "GQA"; heads is a multiple of kv_heads). Scores are scaled by 1 / sqrt(head_width). q and k lie in rows qk_row apart, v in rows
 * v_row apart: they may be parts of one matrix. logsumexp[b, h, t] is kept for backward; no T x T matrix is.
 *
 * starts[b, t] is the first position of the sequence that token t may look at: where its document begins. 0 <= starts[t] <= t,
 * and starts never falls within a sequence. NULL: 0 everywhere. */
typedef struct tide_attention_args {
    const void *q, *k, *v; /* [batch x sequence_length, qk_row], likewise, [.., v_row] */
    const int32_t *starts; /* [batch, sequence_length] or NULL; alignment 4 */
    void *out;             /* [batch x sequence_length, heads x head_width] */
    float *logsumexp;      /* [batch, heads, sequence_length] */
    void *workspace;       /* attention_workspace_bytes(these) */
    size_t workspace_bytes;
    size_t batch, sequence_length, heads, kv_heads, head_width;
    size_t qk_row, v_row;
    tide_dtype dtype;
} tide_attention_args;

typedef struct tide_attention_backward_args {
    const void *q, *k, *v, *out, *dout; /* as in forward; dout like out */
    const int32_t *starts;
    const float *logsumexp;
    void *dq, *dk, *dv; /* rows dqkv_row apart, else like q, k, v */
    void *workspace;    /* attention_backward_workspace_bytes(these) */
    size_t workspace_bytes;
    size_t batch, sequence_length, heads, kv_heads, head_width;
    size_t qk_row, v_row, dqkv_row;
    tide_dtype dtype;
} tide_attention_backward_args;

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

/* SwiGLU's gate (Shazeer 2020, "GLU Variants Improve Transformer"): out = silu(gate) up, silu(x) = x / (1 + e^-x). A row of
 * `in` holds `width` of gate, then `width` of up. */
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

/* out = a + b. out may be a or b: then it is the residual's add in place. */
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

/* out = in, rounded to nearest even where it narrows. Alignment: the element's. */
typedef struct tide_cast_args {
    const void *in;
    void *out;
    size_t elements;
    tide_dtype in_dtype, out_dtype;
} tide_cast_args;

/* ---- loss ---- */

/* losses[r] = logsumexp(logits[r, :vocabulary]) - logits[r, targets[r]]. With `gradient` the logits are
 * replaced by their gradient (softmax - onehot) x gradient_scale, and columns from vocabulary to
 * leading_dimension by 0; without, they stay. Every target is in [0, vocabulary). */
typedef struct tide_cross_entropy_args {
    void *logits;           /* [rows, leading_dimension] */
    const int32_t *targets; /* [rows]; alignment 4 */
    float *losses;          /* [rows] */
    size_t rows, vocabulary, leading_dimension;
    float gradient_scale; /* loss scale / tokens of the whole batch */
    bool gradient;
    tide_dtype dtype;
} tide_cross_entropy_args;

/* *sum += the losses, in float64: leaves of 64 in order, then the leaves in order. */
typedef struct tide_loss_sum_args {
    const float *losses; /* [rows] */
    double *sum;
    size_t rows;
} tide_loss_sum_args;

/* ---- gradients of params ---- */

enum { TIDE_NORM_LEAF_ELEMENTS = 64, TIDE_NORM_BLOCK_ELEMENTS = 4096, TIDE_NORM_SUM_LANES = 1024 };

/* Sums of squares of a tensor's stored gradient, one float64 a block of 4096 elements:
 *     lane[j]  = sum over i = 0..7 of x[8 i + j]^2, i in order     (a leaf: 64 elements, 8 lanes; past the
 * end: 0) leaf     = ((lane0 + lane4) + (lane2 + lane6)) + ((lane1 + lane5) + (lane3 + lane7)) block    =
 * leaf0 + leaf1 + ... in order The range [first_element, first_element + elements) of the tensor is summed;
 * first_element is a multiple of 64. A block whose beginning is in the range is set, one whose beginning is
 * not is added to: a tensor summed in pieces, in order, has the bits of the tensor summed whole. */
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
    return (elements + TIDE_NORM_BLOCK_ELEMENTS - 1) / TIDE_NORM_BLOCK_ELEMENTS;
}

/* ---- optimizer ---- */

/* A run of elements of one param within one chunk. Alignments: the element's. */
typedef struct tide_adamw_segment {
    void *param;   /* in: the gradient; out: the new parameter, rounded from the master. restore: out only */
    float *master; /* restore: in */
    float *momentum; /* restore: not used */
    float *variance; /* restore: not used */
    size_t elements;
    bool decays; /* weight decay applies; restore: not used */
} tide_adamw_segment;

/* One fused pass over every segment (adam_math.h). The table stays valid until the kernel has run. The bits
 * are the same for any thread count and instruction set. */
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

/* ---- the table ---- */

typedef struct tide_kernels {
    const char *name; /* "cpu avx512", "cpu avx2", "cpu portable"; "cuda" */
    bool fuses_gelu;  /* matmul takes GELU along; otherwise it is a launch of its own */

    tide_kernel embedding;          /* tide_embedding_args */
    tide_kernel embedding_backward; /* and so on: each kernel's struct is named after it */
    tide_kernel layer_norm;
    tide_kernel layer_norm_backward;
    tide_kernel rms_norm;
    tide_kernel rms_norm_backward;
    tide_kernel rope;
    tide_kernel matmul;
    tide_kernel bias_backward;
    tide_kernel attention;
    tide_kernel attention_backward;
    tide_kernel gelu;
    tide_kernel gelu_backward;
    tide_kernel swiglu;
    tide_kernel swiglu_backward;
    tide_kernel add;
    tide_kernel zero;
    tide_kernel copy;
    tide_kernel cast;
    tide_kernel cross_entropy;
    tide_kernel loss_sum;
    tide_kernel gradient_norm;
    tide_kernel norm_sum;
    tide_kernel adamw;
    tide_kernel restore;

    /* How many rows of logits a head does best to make at once: many enough that the weight's gradient, which every such
     * piece reads and writes whole, does not take longer than the products. A constant: it decides an order of sums. */
    size_t logit_rows;

    /* Make ready for matmuls of this shape (pointers and workspace_bytes are not read) and set
     * *workspace_bytes, may be 0, to what each needs. Before training, not in the middle of it: it allocates.
     * The same shape again costs nothing. TIDE_ERROR_ARGUMENT for a shape against the rules above,
     * TIDE_ERROR_NO_MEMORY, TIDE_ERROR_DEVICE, TIDE_ERROR_UNSUPPORTED where the library has no such product;
     * *workspace_bytes is set only on success. Any thread. */
    tide_status (*matmul_prepare)(const tide_matmul_args *shape, size_t *workspace_bytes);

    /* Constant sizes of the workspaces for this shape (pointers and workspace_bytes are not read); on the CPU
     * attention's depend on the configured thread count. */
    size_t (*layer_norm_backward_workspace_bytes)(const tide_layer_norm_backward_args *shape);
    size_t (*rms_norm_backward_workspace_bytes)(const tide_rms_norm_backward_args *shape);
    size_t (*attention_workspace_bytes)(const tide_attention_args *shape);
    size_t (*attention_backward_workspace_bytes)(const tide_attention_backward_args *shape);
} tide_kernels;

/* The CPU's kernels for the best instruction set that this machine has. Never NULL, static storage. */
const tide_kernels *tide_kernels_cpu(void);

/* Threads inside each CPU kernel, 1 or more (a build without OpenMP computes with one). Once, at start,
 * before any workspace query or matmul_prepare; again only while no kernel runs: it forgets the prepared
 * products, and sizes must be queried again. Until the first call it is 1. */
void tide_kernels_cpu_configure(int threads);

/* The configured thread count. */
int tide_kernels_cpu_threads(void);

/* What the CPU kernels run on, for `tidepool info`. The strings stay until this thread asks again. */
typedef struct tide_cpu_info {
    const char *processor; /* the processor's own name, e.g. "AMD EPYC 9355"; "unknown" where it has none */
    const char *instructions; /* our kernels': "avx512", "avx2" or "portable" */
    /* who multiplies matrices: "oneDNN 2.6.0 (bf16, fp32), built-in (fp16)", "built-in" ... */
    const char *matmul;
    /* what oneDNN may use: "avx2", "avx512_core_bf16", "amx" ...; or as `instructions` */
    const char *matmul_isa;
    bool bf16_matmuls; /* products of bf16 run as they are; false: through fp32 in the workspace */
    bool bf16_native;  /* and the machine has instructions for them */
} tide_cpu_info;

const tide_cpu_info *tide_kernels_cpu_info(void);

static_assert(sizeof(tide_embedding_args) <= TIDE_LAUNCH_ARGUMENTS_MAX_BYTES,
              "a launch copies the arguments");
static_assert(sizeof(tide_rms_norm_backward_args) <= TIDE_LAUNCH_ARGUMENTS_MAX_BYTES, "as above");
static_assert(sizeof(tide_layer_norm_backward_args) <= TIDE_LAUNCH_ARGUMENTS_MAX_BYTES, "as above");
static_assert(sizeof(tide_matmul_args) <= TIDE_LAUNCH_ARGUMENTS_MAX_BYTES, "as above");
static_assert(sizeof(tide_attention_backward_args) <= TIDE_LAUNCH_ARGUMENTS_MAX_BYTES, "as above");
static_assert(sizeof(tide_adamw_args) <= TIDE_LAUNCH_ARGUMENTS_MAX_BYTES, "as above");

#endif
