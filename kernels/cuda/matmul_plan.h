/* The plan of a matrix product: the objects of cuBLASLt for a shape, made once; and messages for the
 * library's failures.
 *
 * A plan holds the operation, the three layouts, the algorithms that the library's heuristic lists and which
 * of them is chosen (matmul_choice.h). All this depends on shape, types, GPU and library version, never on
 * time, so a shape has the same bits at every launch; algorithms are not timed against each other for this
 * reason. matmul.c keeps the plans, under its lock; the functions here do not lock.
 */
#ifndef TIDEPOOL_KERNELS_CUDA_MATMUL_PLAN_H
#define TIDEPOOL_KERNELS_CUDA_MATMUL_PLAN_H

#include "kernels/cuda/matmul_choice.h"
#include "kernels/gpu_sizes.h"

#include <cublasLt.h>

typedef struct tide_cuda_matmul_plan {
    struct tide_cuda_matmul_plan *next; /* the next plan in its bucket of matmul.c */
    tide_matmul_args shape;             /* pointers and workspace_bytes not used */
    bool gelu_apart; /* the shape has GELU, which is a launch of its own after the product */
    /* size of the bias in fp32 at the workspace's begin; 0: the bias is used where it is */
    size_t bias_bytes;
    size_t library_bytes; /* size of the workspace behind the bias, for the chosen candidate */
    cublasLtMatmulDesc_t operation;
    cublasLtMatrixLayout_t a, b, c; /* of our matrices: the library's B, A, and both C and D */
    int candidate_count, chosen;    /* 0 <= chosen < candidate_count <= TIDE_CUDA_MATMUL_CANDIDATES */
    tide_cuda_matmul_candidate candidates[TIDE_CUDA_MATMUL_CANDIDATES]; /* in the heuristic's order */
    cublasLtMatmulAlgo_t algorithms[TIDE_CUDA_MATMUL_CANDIDATES];       /* the candidates' algorithms */
} tide_cuda_matmul_plan;

/* Create a plan, with `next` NULL, for a shape that keeps the rules of tide_matmul_args. Chooses the first
 * candidate that is allowed and logs it as topic `matmul`. TIDE_ERROR_NO_MEMORY; UNSUPPORTED if no candidate
 * is allowed; the statuses that tide_cuda_matmul_status makes of the library's failures. After a failure
 * nothing is left. */
tide_status tide_cuda_matmul_plan_create(cublasLtHandle_t library, const tide_matmul_args *shape,
                                         tide_cuda_matmul_plan **result);

void tide_cuda_matmul_plan_destroy(tide_cuda_matmul_plan *plan);

/* Make the plan run another candidate that is allowed, for a benchmark that tries them all. The workspace's
 * size may change. */
void tide_cuda_matmul_plan_take(tide_cuda_matmul_plan *plan, int candidate);

/* Enqueue the product and, if the plan needs them, the launches before and after it, with the addresses in
 * `args`, on a stream of the library's GPU. The workspace has bias_bytes + library_bytes. Returns the first
 * failure; launches enqueued before it stay. */
tide_status tide_cuda_matmul_plan_run(cublasLtHandle_t library, const tide_cuda_matmul_plan *plan,
                                      const tide_matmul_args *args, void *stream);

/* The largest power of two, at most 256, that divides the address of every row of a matrix. */
uint32_t tide_cuda_matmul_row_alignment(size_t ld, tide_dtype dtype);

/* ---- messages ---- */

/* Our status for the library's: TIDE_ERROR_NO_MEMORY if it is out of memory, TIDE_ERROR_UNSUPPORTED if the
 * GPU or the library can't do something, otherwise TIDE_ERROR_DEVICE. */
tide_status tide_cuda_matmul_status(cublasStatus_t status);

/* Both report and return the status. `doing` completes "cuBLASLt failed ... it". */
tide_status tide_cuda_matmul_fail(tide_status status, const tide_matmul_args *shape, const char *text);
tide_status tide_cuda_matmul_library_fail(const tide_matmul_args *shape, cublasStatus_t status,
                                          const char *doing);

#endif
