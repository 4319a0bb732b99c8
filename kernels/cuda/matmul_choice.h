/* Which of cuBLASLt's candidates a product takes.
 *
 * Asked about a product the library names algorithms in its own order, the one that it holds for the fastest first. That
 * order is kept but for one case. The gradient of a weight has few rows and columns (widths of the model) and a long sum
 * (all tokens of a micro-batch, up to 65536): 768 x 768 are 18 tiles of 128 x 256, where an H200 has 132 multiprocessors.
 * An algorithm that splits the sum has as many times the tiles, and joins the parts in a pass of its own; an answer without
 * may be 2 to 2.5 times slower.
 *
 *   fill   how much of the GPU a candidate keeps busy: its waves over the next whole number. 0.14 waves take as long as one,
 *          1.1 as long as two. The library counts waves for the GPU at hand; of some kernels it may not say
 *   long   a split sum whose parts are TIDE_CUDA_MATMUL_PART_TERMS terms or more: to write and read a part, 8 bytes an
 *          element, is little beside its products
 *
 * The rule: a product that is not added to C takes the first answer that is allowed. What is added to C is a weight's
 * gradient, in fp32, with neither bias nor GELU. Others may have long sums, too (the head's input gradient: the vocabulary),
 * or few rows; but their results are of 16 bits, some with an epilogue, and the arithmetic above is not theirs. Of a weight's
 * gradient, among the first answer and all that split a long sum: the first that fills the GPU nearly as well as the best of
 * these (TIDE_CUDA_MATMUL_NEARLY times its fill). It is a function of what the library says about shape, types, GPU and its
 * own version, never of timing or addresses: a shape has the same bits at every launch. Where the library does not say (a
 * split or waves that are unknown) it is the first answer.
 *
 * No GPU has run this: neither the rule nor its two figures have been measured. tests/bench/gpu times every candidate of
 * every product of a step and shows which the rule takes.
 */
#ifndef TIDEPOOL_KERNELS_CUDA_MATMUL_CHOICE_H
#define TIDEPOOL_KERNELS_CUDA_MATMUL_CHOICE_H

#include <cublasLt.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { TIDE_CUDA_MATMUL_CANDIDATES = 8, TIDE_CUDA_MATMUL_PART_TERMS = 2048, TIDE_CUDA_MATMUL_UNKNOWN = -1 };

#define TIDE_CUDA_MATMUL_NEARLY 0.8

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

/* The rule: an index into the candidates of a product with sums of k terms, added to C or not (tide_matmul_args); -1 if
 * none is allowed. */
int tide_cuda_matmul_choose(const tide_cuda_matmul_candidate *candidates, int count, size_t k, bool accumulate);

/* "128x256", or an empty text where the tile is not one of the common ones. Static storage. */
const char *tide_cuda_matmul_tile_name(int32_t tile);

#endif
