/* For every table of kernels: the rules for the shape of a matrix product, and the comparison of two
 * shapes. */
#ifndef TIDEPOOL_KERNELS_MATMUL_SHAPE_H
#define TIDEPOOL_KERNELS_MATMUL_SHAPE_H

#include "kernels/arguments.h"

/* NULL if the shape keeps the rules of tide_matmul_args, except those for GELU; otherwise the broken rule, in
 * words. */
static inline const char *tide_matmul_shape_fault(const tide_matmul_args *args)
{
    if (args->m == 0 || args->n == 0 || args->k == 0)
        return "an empty dimension";
    if (args->lda < (args->transpose_a ? args->m : args->k))
        return "lda is less than a row of A";
    if (args->ldb < (args->transpose_b ? args->k : args->n))
        return "ldb is less than a row of B";
    if (args->ldc < args->n)
        return "ldc is less than a row of C";
    if (args->out_dtype != TIDE_DTYPE_FP32 && args->out_dtype != args->in_dtype)
        return "a narrow result (bf16, fp16) of matrices of another type";
    if (args->accumulate && (args->has_bias || args->out_dtype != TIDE_DTYPE_FP32))
        return "only an fp32 result without bias is added to";
    return NULL;
}

/* NULL if the shape keeps the rules for GELU of a table that fuses it; otherwise the broken rule, in
 * words. */
static inline const char *tide_matmul_gelu_fault(const tide_matmul_args *args)
{
    if (args->gelu == TIDE_MATMUL_GELU_NONE)
        return NULL;
    if (args->gelu != TIDE_MATMUL_GELU_FORWARD && args->gelu != TIDE_MATMUL_GELU_BACKWARD)
        return "no such way to take GELU along";
    if (args->ldc != args->n)
        return "GELU needs dense rows, ldc equal to n";
    if (args->out_dtype != args->in_dtype)
        return "GELU needs a result of the inputs' type";
    if (args->accumulate)
        return "a result with GELU is not added to";
    if (args->gelu == TIDE_MATMUL_GELU_BACKWARD && args->has_bias)
        return "GELU's backward takes no bias";
    return NULL;
}

static inline bool tide_matmul_shapes_equal(const tide_matmul_args *a, const tide_matmul_args *b)
{
    return a->m == b->m && a->n == b->n && a->k == b->k && a->lda == b->lda && a->ldb == b->ldb &&
           a->ldc == b->ldc && a->in_dtype == b->in_dtype && a->out_dtype == b->out_dtype &&
           a->transpose_a == b->transpose_a && a->transpose_b == b->transpose_b &&
           a->has_bias == b->has_bias && a->accumulate == b->accumulate && a->gelu == b->gelu;
}

#endif
