/* The choice among cuBLASLt's candidates for a product: the first that is allowed.
 *
 * For a product the library's heuristic lists algorithms, beginning with the one that it expects to be
 * fastest. The gradient of a weight has few rows and columns and a long sum, and so few tiles: 768 x 768 are
 * 18 tiles of 128 x 256, for the 132 multiprocessors of an H200. Still, a rule that preferred a candidate
 * with a split sum took 1.04 to 1.22 times as long as the first candidate wherever it chose another (H200,
 * cuBLASLt 13.1.0, gpt2's widths, sums of 65536 terms). Forcing the first candidate to split its sum gained
 * 0.4% at most.
 */
#ifndef TIDEPOOL_KERNELS_CUDA_MATMUL_CHOICE_H
#define TIDEPOOL_KERNELS_CUDA_MATMUL_CHOICE_H

#include <cublasLt.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { TIDE_CUDA_MATMUL_CANDIDATES = 8, TIDE_CUDA_MATMUL_UNKNOWN = -1 };

/* The library's description of an algorithm; TIDE_CUDA_MATMUL_UNKNOWN for a value that it does not report. */
typedef struct tide_cuda_matmul_candidate {
    cublasStatus_t state;      /* the members below are set only with CUBLAS_STATUS_SUCCESS */
    int32_t algorithm;         /* the algorithm's number */
    int32_t tile, stages;      /* cublasLtMatmulTile_t, cublasLtMatmulStages_t */
    int32_t splits, reduction; /* parts of the sum; how they are combined, cublasLtReductionScheme_t */
    float waves;               /* over all multiprocessors; 0: unknown */
    size_t workspace_bytes;
} tide_cuda_matmul_candidate;

/* Does this status mean that the library does not have the algorithm or attribute? Other errors are
 * failures. */
bool tide_cuda_matmul_declined(cublasStatus_t status);

/* Read the library's description of one of the heuristic's results. An attribute that the library declines to
 * report becomes UNKNOWN; any other failure is returned. */
cublasStatus_t tide_cuda_matmul_candidate_read(const cublasLtMatmulHeuristicResult_t *result,
                                               tide_cuda_matmul_candidate *candidate);

/* Is the candidate available, within the workspace limit, and either without a split sum or with parts that
 * are combined in fp32 in a fixed order (matmul_plan.c says why)? matmul_plan.c asks the heuristic only for
 * such candidates; this check refuses others. Without a split (0 or 1 parts) `reduction` means nothing; a
 * candidate with an unknown number of parts counts as split. */
bool tide_cuda_matmul_candidate_is_allowed(const tide_cuda_matmul_candidate *candidate);

/* The tile's name, say "128x256"; an empty string for a tile that is not a common one. Static storage. */
const char *tide_cuda_matmul_tile_name(int32_t tile);

#endif
