/* Which of cuBLASLt's candidates a product takes: the first that is allowed.
 *
 * Asked about a product, the library names algorithms in its own order, the one that it holds for the fastest
 * first. A weight's gradient has few rows and columns and a long sum, so few tiles: 768 x 768 are 18 of
 * 128 x 256, for the 132 multiprocessors of an H200. A rule that preferred a split sum there took 1.04 to
 * 1.22 times as long as the first answer wherever it took another (H200, cuBLASLt 13.1.0, gpt2's widths, sums
 * of 65536 terms). To split the first answer's sum by force gained 0.4% at most.
 */
#ifndef TIDEPOOL_KERNELS_CUDA_MATMUL_CHOICE_H
#define TIDEPOOL_KERNELS_CUDA_MATMUL_CHOICE_H

#include <cublasLt.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { TIDE_CUDA_MATMUL_CANDIDATES = 8, TIDE_CUDA_MATMUL_UNKNOWN = -1 };

/* What the library says of an algorithm; TIDE_CUDA_MATMUL_UNKNOWN where it does not. */
typedef struct tide_cuda_matmul_candidate {
    cublasStatus_t state;      /* all that follows is said only of CUBLAS_STATUS_SUCCESS */
    int32_t algorithm;         /* its number */
    int32_t tile, stages;      /* cublasLtMatmulTile_t, cublasLtMatmulStages_t */
    int32_t splits, reduction; /* parts of the sum; how they are joined, cublasLtReductionScheme_t */
    float waves;               /* over all multiprocessors; 0: unknown */
    size_t workspace_bytes;
} tide_cuda_matmul_candidate;

/* The library declines by one of these; what else it says is a failure. */
bool tide_cuda_matmul_declined(cublasStatus_t status);

/* What the library says of one of the heuristic's results. An attribute that it declines to tell is unknown; any other
 * failure is returned. */
cublasStatus_t tide_cuda_matmul_candidate_read(const cublasLtMatmulHeuristicResult_t *result,
                                               tide_cuda_matmul_candidate *candidate);

/* The library offers it, within the limit of workspace, and joins parts in fp32 in a fixed order if it splits at all: the
 * heuristic was asked for no others, and here they are refused. (matmul_plan.c says why.) Where it does not split (0 or 1
 * parts) its way to join them means nothing; one that does not say whether it splits is taken to. */
bool tide_cuda_matmul_candidate_is_allowed(const tide_cuda_matmul_candidate *candidate);

/* "128x256", or an empty text where the tile is not one of the common ones. Static storage. */
const char *tide_cuda_matmul_tile_name(int32_t tile);

#endif
