/* Matrix products for tests: random operands in any layout, the expected result in float64, and cuBLASLt, or
 * the fake of it, which the GPU's products need. */
#ifndef TIDEPOOL_TESTS_MATMUL_CASE_H
#define TIDEPOOL_TESTS_MATMUL_CASE_H

#include "tests/kernels/test_kernels.h"
#if defined(TEST_CUDA_ON_CPU)
#include "tests/gpu/fake_cublaslt.h"
#endif

/* ---- the library ---- */

static inline bool matmul_open(void)
{
#if !TEST_ON_CPU
    if (test_place_is_there() && tide_cuda_matmul_open() != TIDE_OK) {
        print_error("cuBLASLt: %s\n", tide_message());
        return false;
    }
#endif
    return true;
}

/* Closes the fake library and returns `failed`, or -1 if a call broke a rule of the library or an object is
 * left. */
static inline int matmul_close(int failed)
{
#if defined(TEST_CUDA_ON_CPU)
    char text[256] = "";
    tide_cuda_matmul_close();
    if (fake_cublaslt_misuse(text, sizeof text) > 0 || fake_cublaslt_live() > 0) {
        print_error("cuBLASLt: %s, %zu objects live\n", text, fake_cublaslt_live());
        return -1;
    }
#endif
    return failed;
}

#define RUN_MATMUL_TESTS(tests) (matmul_open() ? matmul_close(RUN_KERNEL_TESTS(tests)) : 1)

/* ---- a product ---- */

typedef struct product_shape {
    size_t m, n, k;
} product_shape;

/* The layout of the operands and the treatment of the result. */
typedef struct manner {
    bool transpose_a, transpose_b, has_bias, accumulate;
    tide_dtype in_dtype, out_dtype;
    size_t padding; /* leading dimensions are this many elements more than a row */
    tide_matmul_gelu gelu;
} manner;

typedef struct product {
    tide_matmul_args args;
    buffer a, b, bias, c, gelu_in, workspace;
    /* [m, ldc]: C after the product, before GELU, including its padding */
    double *expected;
} product;

static inline double gelu_of(double x)
{
    return x / 2 * (1 + tanh(0.79788456080286535588 * (x + 0.044715 * x * x * x)));
}

/* Sums in the order of k. */
static inline void product_reference(const product *p)
{
    const tide_matmul_args *args = &p->args;
    double *a = buffer_values(p->a), *b = buffer_values(p->b), *bias = buffer_values(p->bias);
    const size_t down_a = args->transpose_a ? 1 : args->lda, along_a = args->transpose_a ? args->lda : 1;
    const size_t down_b = args->transpose_b ? 1 : args->ldb, along_b = args->transpose_b ? args->ldb : 1;
    for (size_t i = 0; i < args->m; i++) {
        double *row = p->expected + i * args->ldc;
        for (size_t j = 0; !args->accumulate && j < args->n; j++)
            row[j] = 0;
        for (size_t q = 0; q < args->k; q++)
            for (size_t j = 0; j < args->n; j++)
                row[j] += a[i * down_a + q * along_a] * b[q * down_b + j * along_b];
        for (size_t j = 0; args->has_bias && j < args->n; j++)
            row[j] += bias[j];
    }
    free(a);
    free(b);
    free(bias);
}

static inline product product_make(product_shape s, const manner *how)
{
    product made = {.args = {.m = s.m,
                             .n = s.n,
                             .k = s.k,
                             .lda = (how->transpose_a ? s.m : s.k) + how->padding,
                             .ldb = (how->transpose_b ? s.k : s.n) + how->padding,
                             .ldc = s.n + how->padding,
                             .in_dtype = how->in_dtype,
                             .out_dtype = how->out_dtype,
                             .transpose_a = how->transpose_a,
                             .transpose_b = how->transpose_b,
                             .has_bias = how->has_bias,
                             .accumulate = how->accumulate,
                             .gelu = how->gelu}};
    tide_matmul_args *args = &made.args;
    made.a = buffer_random((how->transpose_a ? s.k : s.m) * args->lda, how->in_dtype, 1.0);
    made.b = buffer_random((how->transpose_b ? s.n : s.k) * args->ldb, how->in_dtype, 1.0);
    made.bias = buffer_random(s.n, how->in_dtype, 1.0);
    made.c = buffer_of(s.m * args->ldc, how->out_dtype);
    for (size_t i = 0; i < s.m * args->ldc; i++)
        if (how->accumulate || i % args->ldc >= s.n)
            buffer_set(made.c, i, random_value());
    if (how->gelu != TIDE_MATMUL_GELU_NONE)
        made.gelu_in = how->gelu == TIDE_MATMUL_GELU_FORWARD ? buffer_of(s.m * s.n, how->out_dtype)
                                                             : buffer_random(s.m * s.n, how->out_dtype, 3.0);
    args->gelu_in = made.gelu_in.data;
    args->a = made.a.data;
    args->b = made.b.data;
    args->bias = how->has_bias ? made.bias.data : NULL;
    args->c = made.c.data;
    made.expected = buffer_values(made.c);
    product_reference(&made);
    return made;
}

static inline void product_give_workspace(product *p, size_t bytes)
{
    p->workspace = buffer_bytes(bytes);
    p->args.workspace = p->workspace.data;
    p->args.workspace_bytes = bytes;
}

/* Prepares the product, gives it the workspace that it asks for, and runs it. */
static inline void product_run(product *p)
{
    size_t bytes = 12345;
    expect_run(test_table()->matmul_prepare(&p->args, &bytes));
    product_give_workspace(p, bytes);
    run_kernel(test_table()->matmul, &p->args);
}

static inline void product_free(product *freed)
{
    buffers_free(freed->a, freed->b, freed->bias, freed->c);
    if (freed->gelu_in.data)
        buffer_free(freed->gelu_in);
    if (freed->workspace.data)
        buffer_free(freed->workspace);
    free(freed->expected);
}

#endif
