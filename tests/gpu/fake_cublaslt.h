/* A fake cuBLASLt that needs no GPU: the functions that kernels/cuda/matmul.c calls, computed on the CPU,
 * with stricter checks than the library's.
 *
 * Link it in libcublasLt's place. It reads matrices column-major, as the library does. Its heuristic answers
 * like the library's: an algorithm is valid only for one product, its types, its alignments and its
 * epilogue. It splits long sums over k if the preferences allow a way to join the parts in the workspace: in
 * fp32 (COMPUTE_TYPE), in D's type (OUTPUT_TYPE), or in an order that differs from call to call (INPLACE).
 * It rounds a sum to D's type before it adds a bias where the library did so on an H200 (13.1.0): split
 * sums, and with GELU those of algorithm 56 and of algorithms without a tile. After its best algorithm it
 * lists one that does not split and one that does not work. A test may choose the list instead
 * (fake_cublaslt_offer).
 *
 * Some errors the library may punish only on a GPU. The fake records them as misuse and refuses the call:
 * an address less aligned than promised, a workspace too small or not aligned, an algorithm of another
 * product, D over A or B, objects already destroyed.
 *
 * It defines fakes of the four CUDA runtime functions that matmul.c calls as weak symbols; a program that
 * links tests/gpu/fake_cudart.c gets the functions of that file instead. */
#ifndef TIDE_TESTS_FAKE_CUBLASLT_H
#define TIDE_TESTS_FAKE_CUBLASLT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Resets counts, injected failures and misuse; live objects stay. */
void fake_cublaslt_start(void);

/* Injects a failure: the N-th call from now, counting calls that return a status other than destroy calls,
 * returns `status`, a cublasStatus_t, once, and does nothing else. */
void fake_cublaslt_fail(uint64_t countdown, int status);
bool fake_cublaslt_has_failed(void);
/* Whether the call that failed was to read an attribute. */
bool fake_cublaslt_failed_reading(void);

/* Chooses how the heuristic answers for GELU epilogues from now on: 0 finds an algorithm, 1 returns
 * NOT_SUPPORTED, 2 finds none. */
void fake_cublaslt_decline_gelu(int how);

/* An algorithm that the heuristic lists. */
typedef struct fake_cublaslt_candidate {
    int state; /* a cublasStatus_t */
    int algorithm, tile, stages;
    /* reduction: a cublasLtReductionScheme_t */
    int splits, reduction;
    float waves;
    /* size of the workspace; if the splits need more, the candidate gets what they need */
    size_t workspace_bytes;
    /* a bit 1 << attribute for each attribute whose reading returns INVALID_VALUE */
    uint32_t untold;
} fake_cublaslt_candidate;

/* From now on the heuristic lists for every product the first of these candidates, as many as the call has
 * room for, and ignores the preferences. NULL: it lists its own again. The caller keeps the list alive. */
void fake_cublaslt_offer(const fake_cublaslt_candidate *list, size_t count);

/* Number of live handles, descriptors, layouts and preferences. */
size_t fake_cublaslt_live(void);
/* Number of broken rules since the start; `text` gets a description of the first. */
size_t fake_cublaslt_misuse(char *text, size_t text_bytes);
/* Numbers since the start: queries of the heuristic, matmuls, and matmuls with a GELU epilogue. */
void fake_cublaslt_counts(uint64_t *queries, uint64_t *matmuls, uint64_t *with_gelu);
/* Since the start: the most candidates that a query had room for, and the last product's algorithm. */
int fake_cublaslt_most_wanted(void);
int fake_cublaslt_last_algorithm(void);

/* Gets each matmul; if NULL, matmuls run at once. It must call run(closure) once, later, on the stream.
 * Returns 0, or the cudaError_t of the launch, with which the product fails. */
extern int (*fake_cublaslt_enqueue)(void *stream, const char *label, void (*run)(void *closure),
                                    void *closure);

#endif
