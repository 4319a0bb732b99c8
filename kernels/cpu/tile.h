/* Products of small fp32 tiles, used by attention and the built-in matmul.
 *
 *     C[m, n] (+)= A[m, k] B[k, n]
 *
 * The code reads A one element at a time and copies the element to all lanes of a vector, so A may have any
 * strides and may be transposed. It reads B and C in vectors: n is a multiple of LANES (callers pad with
 * zeros). A block of TILE_ROWS x 2 vectors of C stays in registers during the loop over k: 16 of AVX-512's 32
 * registers, 8 of AVX2's 16. Each element of C is one chain of fused multiply-adds in the order of k, so its
 * bits do not depend on the blocks.
 */
#ifndef TIDEPOOL_KERNELS_CPU_TILE_H
#define TIDEPOOL_KERNELS_CPU_TILE_H

#include "kernels/cpu/lanes.h"

#include "base/align.h"

#include <stdbool.h>

enum { TILE_ROWS = LANES == 16 ? 8 : 4, TILE_VECTORS = 2 };

typedef struct tile_product {
    const float *a;
    size_t a_row, a_column; /* element (i, p) of A is a[i a_row + p a_column] */
    const float *b;
    size_t b_row; /* row p of B starts at b + p b_row */
    float *c;
    size_t c_row;
    size_t m, n, k;
    bool accumulate; /* C += A B instead of C = A B */
} tile_product;

/* Compute `rows` x `vectors` of C from row i and column j on; inlining makes both numbers constants. */
LANES_INLINE void tile_block(const tile_product *t, size_t i, size_t j, const size_t rows,
                             const size_t vectors)
{
    lanes sum[TILE_ROWS][TILE_VECTORS];
    const float *a = t->a + i * t->a_row;
    const float *b = t->b + j;
    float *c = t->c + i * t->c_row + j;
    const size_t a_row = t->a_row, a_column = t->a_column, b_row = t->b_row, c_row = t->c_row, k = t->k;
#pragma GCC unroll 8 /* unrolled so that gcc keeps the sums in registers from -O1 on, even with a sanitizer */
    for (size_t r = 0; r < rows; r++)
#pragma GCC unroll 2
        for (size_t v = 0; v < vectors; v++)
            sum[r][v] =
                t->accumulate ? lanes_load(c, r * c_row + v * LANES, TIDE_DTYPE_FP32) : lanes_all(0.0f);
    for (size_t p = 0; p < k; p++) {
        lanes b_part[TILE_VECTORS];
#pragma GCC unroll 2
        for (size_t v = 0; v < vectors; v++)
            b_part[v] = lanes_load(b, p * b_row + v * LANES, TIDE_DTYPE_FP32);
#pragma GCC unroll 8
        for (size_t r = 0; r < rows; r++) {
            const lanes spread = lanes_all(a[r * a_row + p * a_column]);
#pragma GCC unroll 2
            for (size_t v = 0; v < vectors; v++)
                sum[r][v] = lanes_fma(spread, b_part[v], sum[r][v]);
        }
    }
#pragma GCC unroll 8
    for (size_t r = 0; r < rows; r++)
#pragma GCC unroll 2
        for (size_t v = 0; v < vectors; v++)
            lanes_store(c, r * c_row + v * LANES, sum[r][v], TIDE_DTYPE_FP32);
}

LANES_INLINE void tile_rows(const tile_product *t, size_t i, const size_t rows)
{
    size_t j = 0;
    for (; t->n - j >= TILE_VECTORS * LANES; j += TILE_VECTORS * LANES)
        tile_block(t, i, j, rows, TILE_VECTORS);
    for (; j < t->n; j += LANES)
        tile_block(t, i, j, rows, 1);
}

static inline void tile_multiply(const tile_product *t)
{
    size_t i = 0;
    for (; t->m - i >= TILE_ROWS; i += TILE_ROWS)
        tile_rows(t, i, TILE_ROWS);
    for (; t->m - i >= 2; i += 2)
        tile_rows(t, i, 2);
    if (i < t->m)
        tile_rows(t, i, 1);
}

/* `width` rounded up to whole vectors. */
static inline size_t tile_pad(size_t width)
{
    return tide_round_up(width, LANES);
}

#endif
