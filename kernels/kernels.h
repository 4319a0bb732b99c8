/* The kernels: all arithmetic of a decoder-only transformer, forward and backward, behind one table.
 *
 * Each kernel is a function `tide_kernel`. A device's launch copies the argument struct (at most 256 bytes)
 * and runs the kernel later on a stream. The CPU's table and the GPU's use the same structs, so that a
 * trainer can use either without knowing which.
 *
 * Rules that hold for every kernel:
 * - `dtype` is the type of activations and params; statistics (mean, rstd, logsumexp, losses) and the
 *   gradient accumulators of params are always fp32. Kernels compute in fp32 or better and round a bf16 or
 *   fp16 result once. There are two exceptions on a GPU with a dtype of 16 bits. Attention rounds softmax's
 *   weights to the dtype, and in backward the gradients of the scores (in fp16 these overflow beyond 65504),
 *   since tensor cores multiply no wider numbers. Exponentials, and the quotients in GELU and SwiGLU, have
 *   relative errors of up to 1e-5.
 * - In attention a number that is not finite also spoils rows near its own, at most 128 of them, even if they
 *   do not attend to it.
 * - Kernels ADD gradients of params to the accumulators, since micro-batches run one after another; only
 *   matmul may write them instead. Kernels write gradients of activations, unless a flag says that they add.
 * - Matrices are row-major. Pointers are aligned to 256 bytes, or point at a row of such a matrix, unless a
 *   struct says otherwise.
 * - No kernel allocates. The caller passes scratch memory in `workspace`; the table's queries give its size,
 *   which is constant for a shape.
 * - A kernel gives the same bits at every call with the same arguments, whatever the addresses and the
 *   timing. Only matmul's bits depend on the thread count, by which oneDNN splits the sums.
 * - Inputs and outputs do not overlap, since a kernel may read an input twice; where they may, the struct
 *   says "may be ...".
 * - A stream runs one kernel at a time. Statuses other than TIDE_OK: those of matmul, see there; on a GPU
 *   also TIDE_ERROR_DEVICE if CUDA refuses a launch, and TIDE_ERROR_ARGUMENT for heads that attention can't
 *   handle.
 *
 * arguments.h has the structs, costs.h the floating-point operations and bytes that a launch declares. Sizes
 * are in bytes, leading dimensions in elements. Code outside this folder includes this header alone.
 */
#ifndef TIDEPOOL_KERNELS_KERNELS_H
#define TIDEPOOL_KERNELS_KERNELS_H

#include "kernels/arguments.h"
#include "kernels/costs.h"

typedef struct tide_kernels {
    const char *name; /* "cpu avx512", "cpu avx2", "cpu portable"; "cuda" */
    bool fuses_gelu;  /* matmul can fuse GELU; otherwise GELU is a launch of its own */

    tide_kernel embedding;          /* tide_embedding_args */
    tide_kernel embedding_backward; /* and so on: the arguments of kernel X are tide_X_args */
    tide_kernel layer_norm;
    tide_kernel layer_norm_backward;
    tide_kernel rms_norm;
    tide_kernel rms_norm_backward;
    tide_kernel rope;
    tide_kernel matmul;
    tide_kernel bias_backward;
    tide_kernel attention;
    tide_kernel attention_backward;
    tide_kernel attention_cached;
    tide_kernel gelu;
    tide_kernel gelu_backward;
    tide_kernel swiglu;
    tide_kernel swiglu_backward;
    tide_kernel add;
    tide_kernel zero;
    tide_kernel copy;
    tide_kernel cast;
    tide_kernel round;
    tide_kernel cross_entropy;
    tide_kernel loss_sum;
    tide_kernel gradient_norm;
    tide_kernel norm_sum;
    tide_kernel adamw;
    tide_kernel restore;

    /* How many rows of logits a head should compute at once. For each such batch of rows, the head reads
     * and writes the whole gradient of its weight; the batch should be so large that this takes no longer
     * than the matmuls. A constant, since it decides an order of sums. */
    size_t logit_rows;

    /* Prepare matmuls of this shape (pointers and workspace_bytes are not read) and set *workspace_bytes to
     * the size of the workspace that each needs, which may be 0. Call this before training, since it
     * allocates. Another call with the same shape costs nothing. TIDE_ERROR_ARGUMENT: the shape breaks the
     * rules above; TIDE_ERROR_UNSUPPORTED: the library has no such product; TIDE_ERROR_NO_MEMORY,
     * TIDE_ERROR_DEVICE. *workspace_bytes is set only on success. Any thread. */
    tide_status (*matmul_prepare)(const tide_matmul_args *shape, size_t *workspace_bytes);

    /* Size of a kernel's workspace for a shape (pointers and workspace_bytes are not read). It depends on the
     * shape alone; only for attention on the CPU also on the configured thread count. */
    size_t (*layer_norm_backward_workspace_bytes)(const tide_layer_norm_backward_args *shape);
    size_t (*rms_norm_backward_workspace_bytes)(const tide_rms_norm_backward_args *shape);
    size_t (*attention_workspace_bytes)(const tide_attention_args *shape);
    size_t (*attention_backward_workspace_bytes)(const tide_attention_backward_args *shape);
    size_t (*attention_cached_workspace_bytes)(const tide_attention_cached_args *shape);
} tide_kernels;

/* The CPU's kernels for the best instruction set that this machine has. Never NULL, static storage. */
const tide_kernels *tide_kernels_cpu(void);

/* Set the number of threads of each CPU kernel, 1 or more (a build without OpenMP uses one). Call this once,
 * at start, before any workspace query or matmul_prepare, and again only while no kernel runs: it discards
 * the prepared products, and the caller has to query sizes again. Before the first call the number is 1. */
void tide_kernels_cpu_configure(int threads);

/* Make four values per block of the random stream, from `first_block` on: standard normals times the
 * deviation, rounded once, with the same bits on every machine. Runs in the calling thread. */
void tide_kernels_cpu_normals(const tide_normals_args *args, uint64_t first_block, size_t blocks,
                              float *values);

/* Copy values. Runs in the calling thread and its team. */
void tide_kernels_cpu_place(const tide_place_args *args);

/* A table with a GPU's sizes, to plan for a GPU that is not here; a matmul's workspace is the largest
 * possible. Its kernels must not be called. Static storage. */
const tide_kernels *tide_kernels_planned_gpu(void);

/* The processor and libraries that the CPU kernels use, for `tidepool info`. The strings stay valid until
 * this thread calls tide_kernels_cpu_info again. */
typedef struct tide_cpu_info {
    const char *processor;    /* the name that the processor reports, e.g. "AMD EPYC 9355", or "unknown" */
    const char *instructions; /* of our kernels: "avx512", "avx2" or "portable" */
    /* the code that multiplies matrices: "oneDNN 2.6.0 (bf16, fp32), built-in (fp16)", "built-in" ... */
    const char *matmul;
    /* the instruction set that oneDNN uses: "avx512", "avx512_bf16", "amx"; without oneDNN as
     * `instructions` */
    const char *matmul_isa;
    bool bf16_matmuls; /* matmuls of bf16 multiply bf16; false: they convert to fp32 in the workspace first */
    bool bf16_native;  /* the machine has instructions for bf16 products */
} tide_cpu_info;

const tide_cpu_info *tide_kernels_cpu_info(void);

#endif
