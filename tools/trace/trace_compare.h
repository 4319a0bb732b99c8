/* Two traces beside each other: which steps are compared, and what differs between them.
 *
 * Compared are whole, steady steps (trace_steps.h). Those of one number stand in pairs; where the traces have less
 * than half of the shorter one's numbers in common, steps stand in pairs by their order. A figure of a side is its
 * median over the pairs, so that one noisy step does not decide; bytes and counts, which do not scatter but may
 * alternate, are means.
 */
#ifndef TIDE_TOOLS_TRACE_COMPARE_H
#define TIDE_TOOLS_TRACE_COMPARE_H

#include "chunk/array.h"
#include "src/trace/trace_steps.h"

enum { TIDE_SIDES = 2 }; /* 0: the first trace; 1: the second */

/* One stall's place: an op (NONE: between ops), a slice (NONE: none) and a cause. */
typedef struct tide_compared_stall {
    uint32_t op[TIDE_SIDES]; /* NONE also where the side has no such op */
    uint32_t slice;
    const char *cause;
    double seconds[TIDE_SIDES];                  /* median of a step */
    const tide_trace_event *longest[TIDE_SIDES]; /* NULL: there was none */
} tide_compared_stall;

typedef struct tide_compared_op {
    uint32_t op[TIDE_SIDES];
    double seconds[TIDE_SIDES]; /* in kernels, with its slices: median of a step */
} tide_compared_op;

typedef struct tide_comparison {
    tide_trace_steps steps[TIDE_SIDES];
    const tide_step_account **paired[TIDE_SIDES]; /* `pair_count` of each */
    uint32_t pair_count;
    bool by_number;
    bool same_chunks;                                      /* spaces, sizes and contents */
    uint32_t lone_ops[TIDE_SIDES];                         /* that the other has not */
    uint64_t *moves[TIDE_SIDES], *moved_bytes[TIDE_SIDES]; /* by chunk, in the pairs' steps */
    tide_compared_stall *stalls;                           /* what differs most first */
    tide_compared_op *ops;                                 /* of both sides; likewise */
    uint32_t stall_count, op_count;
    double *scratch; /* a value a pair */
    tide_arrays memory;
} tide_comparison;

/* ARGUMENT: one of them has no whole step. NO_MEMORY. *comparison is set in any case and to be freed. */
TIDE_NODISCARD tide_status tide_comparison_make(const tide_trace_model *first, const tide_trace_model *second,
                                                tide_comparison *comparison);
void tide_comparison_free(tide_comparison *comparison);

typedef double (*tide_step_figure)(const tide_step_account *account, const void *of);

double tide_comparison_median(const tide_comparison *comparison, int side, tide_step_figure figure,
                              const void *of);
double tide_comparison_mean(const tide_comparison *comparison, int side, tide_step_figure figure,
                            const void *of);

/* Chunks whose copied bytes differ most, if both have the same chunks; how many, at most `most`. */
uint32_t tide_comparison_chunks(const tide_comparison *comparison, uint32_t *chunks, uint32_t most);

#endif
