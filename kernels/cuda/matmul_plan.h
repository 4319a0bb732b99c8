/* The plan of a matrix product: what a shape needs of cuBLASLt, made once, and what failures of the library say.
 *
 * A plan holds the operation, the three layouts, the algorithms that the library's own heuristic names and which of them
 * is taken (matmul_choice.h). All that depends on shape, types, GPU and library version, never on time, so a shape has the
 * same bits at every launch. Products are not tried out against each other for that reason. matmul.c keeps the plans, under
 * its lock; nothing here locks.
 */
#ifndef TIDEPOOL_KERNELS_CUDA_MATMUL_PLAN_H
#define TIDEPOOL_KERNELS_CUDA_MATMUL_PLAN_H

#include "kernels/cuda/matmul_choice.h"
#include "kernels/gpu_sizes.h"

#include <cublasLt.h>

typedef struct tide_cuda_matmul_plan {
    struct tide_cuda_matmul_plan *next; /* of its bucket: matmul.c's */
    tide_matmul_args shape;             /* pointers and workspace_bytes not used */
    bool gelu_apart;                    /* the shape has GELU, the product does not: a launch of its own */
    size_t bias_bytes;    /* at the workspace's beginning: the bias in fp32; 0: it is used where it is */
    size_t library_bytes; /* behind it: what the chosen candidate needs */
    cublasLtMatmulDesc_t operation;
    cublasLtMatrixLayout_t a, b, c; /* ours: the library's B, A, and both C and D */
    int candidate_count, chosen;    /* 0 <= chosen < candidate_count <= TIDE_CUDA_MATMUL_CANDIDATES */
    tide_cuda_matmul_candidate candidates[TIDE_CUDA_MATMUL_CANDIDATES]; /* in the heuristic's order */
    cublasLtMatmulAlgo_t algorithms[TIDE_CUDA_MATMUL_CANDIDATES];       /* theirs */
} tide_cuda_matmul_plan;

/* A plan for a shape that keeps the rules of tide_matmul_args, with its first candidate that is allowed, logged
 * as topic `matmul`; with `next` NULL. TIDE_ERROR_NO_MEMORY, and what tide_cuda_matmul_status makes of the library's failures;
 * UNSUPPORTED, too, where it has no candidate that is allowed; nothing stays then. */
tide_status tide_cuda_matmul_plan_create(cublasLtHandle_t library, const tide_matmul_args *shape,
                                         tide_cuda_matmul_plan **result);

void tide_cuda_matmul_plan_destroy(tide_cuda_matmul_plan *plan);

/* From now on the plan runs that candidate, one that is allowed: for a benchmark that tries them all. It may need
 * another workspace. */
void tide_cuda_matmul_plan_take(tide_cuda_matmul_plan *plan, int candidate);

/* Enqueue the product with `args`' addresses, with all that belongs to it, on a stream of the library's GPU. The workspace
 * holds bias_bytes + library_bytes. What enqueuing says; what was enqueued before stays. */
tide_status tide_cuda_matmul_plan_run(cublasLtHandle_t library, const tide_cuda_matmul_plan *plan,
                                      const tide_matmul_args *args, void *stream);

/* The largest power of two, 256 at the most, that divides the address of every row of a matrix. */
uint32_t tide_cuda_matmul_row_alignment(size_t ld, tide_dtype dtype);

/* ---- messages ---- */

/* Out of memory TIDE_ERROR_NO_MEMORY, what this GPU or the library can't do TIDE_ERROR_UNSUPPORTED, all else
 * TIDE_ERROR_DEVICE. */
tide_status tide_cuda_matmul_status(cublasStatus_t status);

/* Both report and return the status. `doing` completes "cuBLASLt failed ... it". */
tide_status tide_cuda_matmul_fail(tide_status status, const tide_matmul_args *shape, const char *text);
tide_status tide_cuda_matmul_library_fail(const tide_matmul_args *shape, cublasStatus_t status,
                                          const char *doing);

#endif
