/* Matrix products with a single row, which a model that generates makes for each token: C[1, n] = A[1, k]
 * op(B) (+ bias). Such a product reads each element of B once, so that the rate of memory bounds it. With
 * oneDNN 2.6 gpt2 in bf16 made 23 tokens a second on two cores, with this code 44: it reads its params at
 * 10.3 GiB/s, where `tidepool info` measures 13.9.
 *
 *     B [n, k] (transpose_b)   a task computes ROWS elements of C, each a row of B times A: STREAMS rows at a
 *                              time, so that several streams of memory are under way
 *     B [k, n]                 a task computes COLUMNS elements of C, whose sums stay in registers while it
 *                              goes down the rows of B
 *
 * One thread sums each element, in an order that neither n nor the thread count changes. */
#include "base/align.h"
#include "base/minmax.h"
#include "base/team.h"
#include "kernels/cpu/lanes.h"
#include "kernels/cpu/variant.h"

enum { ROWS = 16, STREAMS = 4, PAIRS = 4, COLUMNS = 2 * PAIRS * LANES };

bool VARIANT(row_matmul_takes)(const tide_matmul_args *args)
{
    return args->m == 1 && !args->transpose_a && !args->accumulate && args->gelu == TIDE_MATMUL_GELU_NONE;
}

LANES_INLINE void row_store(const tide_matmul_args *args, size_t column, float sum, tide_dtype dtype)
{
    const float result = args->has_bias ? sum + element_get(args->bias, column, dtype) : sum;
    if (args->out_dtype == TIDE_DTYPE_FP32)
        element_set(args->c, column, result, TIDE_DTYPE_FP32);
    else
        element_set(args->c, column, result, dtype);
}

/* Two vectors of elements from `index` on. Those of bf16 are the even and the odd ones, which takes a
 * shift and a mask in place of two conversions; others are the first and the last. */
LANES_INLINE void load_pair(const void *base, size_t index, lanes pair[2], tide_dtype dtype)
{
    if (dtype == TIDE_DTYPE_BF16) {
        lanes_bits bits;
        memcpy(&bits, (const tide_bf16 *)base + index, sizeof bits);
        pair[0] = (lanes)(bits << 16);
        pair[1] = (lanes)(bits & 0xffff0000u);
    } else {
        pair[0] = lanes_load(base, index, dtype);
        pair[1] = lanes_load(base, index + LANES, dtype);
    }
}

/* Elements column .. column + streams - 1 of C; inlining makes `streams` a constant. */
LANES_INLINE void multiply_rows(const tide_matmul_args *args, size_t column, const size_t streams,
                                tide_dtype dtype)
{
    lanes sum[STREAMS][2];
#pragma GCC unroll 4
    for (size_t s = 0; s < streams; s++)
        sum[s][0] = sum[s][1] = lanes_all(0.0f);
    size_t i = 0;
    for (; args->k - i >= 2 * LANES; i += 2 * LANES) {
        lanes a[2], b[2];
        load_pair(args->a, i, a, dtype);
#pragma GCC unroll 4
        for (size_t s = 0; s < streams; s++) {
            load_pair(args->b, (column + s) * args->ldb + i, b, dtype);
            sum[s][0] = lanes_fma(a[0], b[0], sum[s][0]);
            sum[s][1] = lanes_fma(a[1], b[1], sum[s][1]);
        }
    }
    for (; i < args->k; i += LANES) {
        const lanes a = lanes_load_until(args->a, i, args->k, dtype);
        for (size_t s = 0; s < streams; s++) {
            const size_t row = (column + s) * args->ldb;
            sum[s][0] = lanes_fma(a, lanes_load_until(args->b, row + i, row + args->k, dtype), sum[s][0]);
        }
    }
#pragma GCC unroll 4
    for (size_t s = 0; s < streams; s++)
        row_store(args, column + s, lanes_sum(sum[s][0] + sum[s][1]), dtype);
}

LANES_INLINE void rows_of_b(const tide_matmul_args *args, size_t task, tide_dtype dtype)
{
    const size_t end = tide_min_u64((task + 1) * ROWS, args->n);
    size_t column = task * ROWS;
    for (; end - column >= STREAMS; column += STREAMS)
        multiply_rows(args, column, STREAMS, dtype);
    for (; column < end; column++)
        multiply_rows(args, column, 1, dtype);
}

/* All COLUMNS of a task. */
LANES_INLINE void whole_columns(const tide_matmul_args *args, size_t column, tide_dtype dtype)
{
    lanes sum[PAIRS][2];
    float each[2 * LANES];
#pragma GCC unroll 8
    for (size_t v = 0; v < PAIRS; v++)
        sum[v][0] = sum[v][1] = lanes_all(0.0f);
    for (size_t p = 0; p < args->k; p++) {
        const lanes a = lanes_all(element_get(args->a, p, dtype));
#pragma GCC unroll 8
        for (size_t v = 0; v < PAIRS; v++) {
            lanes b[2];
            load_pair(args->b, p * args->ldb + column + v * 2 * LANES, b, dtype);
            sum[v][0] = lanes_fma(a, b[0], sum[v][0]);
            sum[v][1] = lanes_fma(a, b[1], sum[v][1]);
        }
    }
#pragma GCC unroll 8
    for (size_t v = 0; v < PAIRS; v++) {
        lanes_store(each, 0, sum[v][0], TIDE_DTYPE_FP32);
        lanes_store(each, LANES, sum[v][1], TIDE_DTYPE_FP32);
        for (size_t i = 0; i < 2 * LANES; i++) {
            const size_t from = dtype == TIDE_DTYPE_BF16 ? i % 2 * LANES + i / 2 : i;
            row_store(args, column + v * 2 * LANES + i, each[from], dtype);
        }
    }
}

LANES_INLINE void columns_of_b(const tide_matmul_args *args, size_t task, tide_dtype dtype)
{
    const size_t column = task * COLUMNS, end = tide_min_u64(column + COLUMNS, args->n);
    if (end - column == COLUMNS) {
        whole_columns(args, column, dtype);
        return;
    }
    for (size_t at = column; at < end; at++) {
        float sum = 0.0f;
        for (size_t p = 0; p < args->k; p++)
            sum += element_get(args->a, p, dtype) * element_get(args->b, p * args->ldb + at, dtype);
        row_store(args, at, sum, dtype);
    }
}

static void rows_task(const void *arguments, size_t task)
{
    const tide_matmul_args *args = arguments;
    BY_DTYPE(args->in_dtype, rows_of_b, args, task);
}

static void columns_task(const void *arguments, size_t task)
{
    const tide_matmul_args *args = arguments;
    BY_DTYPE(args->in_dtype, columns_of_b, args, task);
}

tide_status VARIANT(row_matmul)(const tide_matmul_args *args)
{
    if (args->transpose_b)
        tide_team_run(tide_ceil_div(args->n, ROWS), args->n * args->k, rows_task, args);
    else
        tide_team_run(tide_ceil_div(args->n, COLUMNS), args->n * args->k, columns_task, args);
    return TIDE_OK;
}
