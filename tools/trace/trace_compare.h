/* Two traces beside each other: which steps are compared, and how they differ.
 *
 * Only whole, steady steps (trace_steps.h) are compared, in pairs of the same number. If the traces share
 * fewer than half of the shorter one's numbers, the pairs follow the steps' order instead. A time is a side's
 * median over the pairs, so that one slow step does not decide; bytes and counts are means, since a median
 * would hide that they alternate from step to step, as they may.
 */
#ifndef TIDE_TOOLS_TRACE_COMPARE_H
#define TIDE_TOOLS_TRACE_COMPARE_H

#include "base/array.h"
#include "src/trace/trace_steps.h"

enum { TIDE_SIDES = 2 }; /* 0: the first trace; 1: the second */

/* The stalls of one op (NONE: between ops), slice (NONE: none) and cause. */
typedef struct tide_compared_stall {
    uint32_t op[TIDE_SIDES]; /* also NONE if the side has no such op */
    uint32_t slice;
    const char *cause;
    double seconds[TIDE_SIDES];                  /* in a step; median over the pairs */
    const tide_trace_event *longest[TIDE_SIDES]; /* NULL: this side has none */
} tide_compared_stall;

typedef struct tide_compared_op {
    uint32_t op[TIDE_SIDES];
    double seconds[TIDE_SIDES]; /* time of its kernels and its slices' in a step; median over the pairs */
} tide_compared_op;

typedef struct tide_comparison {
    tide_trace_steps steps[TIDE_SIDES];
    const tide_step_account **paired[TIDE_SIDES]; /* [pair_count] each pair's steps */
    uint32_t pair_count;
    bool by_number;
    bool same_chunks;                                      /* same spaces, sizes and params */
    uint32_t lone_ops[TIDE_SIDES];                         /* ops that only this side has */
    uint64_t *moves[TIDE_SIDES], *moved_bytes[TIDE_SIDES]; /* by chunk, in the pairs' steps */
    tide_compared_stall *stalls;                           /* the largest difference first */
    tide_compared_op *ops; /* that both sides have, the largest difference first */
    uint32_t stall_count, op_count;
    double *scratch; /* one value for each pair */
    tide_arrays memory;
} tide_comparison;

/* ARGUMENT: one of the traces has no whole step. NO_MEMORY. The caller frees *comparison also after a
 * failure. */
TIDE_NODISCARD tide_status tide_comparison_make(const tide_trace_model *first, const tide_trace_model *second,
                                                tide_comparison *comparison);
void tide_comparison_free(tide_comparison *comparison);

typedef double (*tide_step_figure)(const tide_step_account *account, const void *of);

double tide_comparison_median(const tide_comparison *comparison, int side, tide_step_figure figure,
                              const void *of);
double tide_comparison_mean(const tide_comparison *comparison, int side, tide_step_figure figure,
                            const void *of);

/* Find the chunks whose copied bytes differ most between the traces, at most `most` of them. Returns how many
 * it found; 0 if the traces have different chunks. */
uint32_t tide_comparison_chunks(const tide_comparison *comparison, uint32_t *chunks, uint32_t most);

#endif
