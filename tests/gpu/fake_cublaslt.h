/* A cuBLASLt without a GPU: the calls of kernels/cuda/matmul.c, computed on the CPU, and more suspicious than the library.
 *
 * Link it in libcublasLt's place. Matrices are column-major as the library's are, and matmuls are computed from that alone.
 * The heuristic answers like the library's: an algorithm belongs to one product, its types, its alignments and its epilogue, and
 * to no other; long sums are split over k when the preferences allow a way to join the parts, in the workspace: in fp32
 * (COMPUTE_TYPE), in D's type (OUTPUT_TYPE), or in an order that differs from call to call (INPLACE). A sum that was split is
 * rounded to D's type before a bias is added, as the library's was on an H200 (13.1.0). Behind its best it names one that does
 * not split, and one that does not work. A test may have it answer anything.
 *
 * What the library may punish only on a GPU is recorded as misuse and refused: an address less aligned than was promised, a
 * workspace that is too small or not aligned, an algorithm of another product, D over A or B, objects that are no more.
 *
 * It brings weak fakes for the four calls of the CUDA runtime that matmul.c makes; tests/gpu/fake_cudart.c overrides them.
 */
#ifndef TIDE_TESTS_FAKE_CUBLASLT_H
#define TIDE_TESTS_FAKE_CUBLASLT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Forget counts, faults and misuse; objects that live stay. */
void fake_cublaslt_start(void);

/* The N-th call from now, of those that give a status (destroying apart), returns `status`, a cublasStatus_t, once, and does
 * nothing else. */
void fake_cublaslt_fail(uint64_t countdown, int status);
bool fake_cublaslt_has_failed(void);
/* The call that failed was reading an attribute. */
bool fake_cublaslt_failed_reading(void);

/* From now on the heuristic knows no algorithm for GELU epilogues: 0 does, 1 says NOT_SUPPORTED, 2 finds none. */
void fake_cublaslt_decline_gelu(int how);

/* An algorithm as the heuristic answers it. */
typedef struct fake_cublaslt_candidate {
    int state; /* cublasStatus_t */
    int algorithm, tile, stages;
    int splits, reduction; /* cublasLtReductionScheme_t */
    float waves;
    size_t workspace_bytes; /* at least; it is what the splits need, if that is more */
    uint32_t untold;        /* bits 1 << attribute: asked for these the library says INVALID_VALUE */
} fake_cublaslt_candidate;

/* From now on the heuristic answers every product with the first of these, as many as it is asked for, whatever the preferences
 * say; NULL: with its own again. The list stays the caller's and has to live. */
void fake_cublaslt_offer(const fake_cublaslt_candidate *list, size_t count);

/* Handles, descriptors, layouts and preferences that live. */
size_t fake_cublaslt_live(void);
/* How often rules were broken since the start; `text` gets the first case. */
size_t fake_cublaslt_misuse(char *text, size_t text_bytes);
/* Since the start: queries of the heuristic, matmuls, and among those the ones with a GELU epilogue. */
void fake_cublaslt_counts(uint64_t *queries, uint64_t *matmuls, uint64_t *with_gelu);
/* Since the start: the most candidates that a query had room for, attributes of algorithms that were read, and the algorithm of
 * the last product. */
int fake_cublaslt_most_wanted(void);
uint64_t fake_cublaslt_attributes(void);
int fake_cublaslt_last_algorithm(void);

/* Where matmuls go; NULL: they run at once. run(closure) is called once, later, on the stream. Returns 0, or the cudaError_t
 * of the launch: then the product fails. */
extern int (*fake_cublaslt_enqueue)(void *stream, const char *label, void (*run)(void *closure),
                                    void *closure);

#endif
