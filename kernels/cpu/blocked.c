/* The built-in matrix product, for builds without oneDNN and for the products that matmul_onednn.c declines:
 * all of fp16, and others depending on the processor.
 *
 * C is cut into blocks of BLOCK_M x BLOCK_N. A thread computes one block at a time. For each stretch of
 * BLOCK_K along k it packs the parts of A and B into its own workspace, as fp32 and with op() applied, and
 * multiplies them (tile.h) into an fp32 tile. At the end it adds the bias or, with accumulate, the old C, and
 * rounds.
 *
 *     workspace of a thread:   A [BLOCK_M, BLOCK_K] | B [BLOCK_K, BLOCK_N] | C [BLOCK_M, BLOCK_N]
 *
 * Every element of C is summed in the order of k, so any thread count gives the same bits.
 */
#include "base/align.h"
#include "base/minmax.h"
#include "base/team.h"
#include "kernels/cpu/tile.h"
#include "kernels/cpu/variant.h"
#include "kernels/matmul_shape.h"

enum { BLOCK_M = 128, BLOCK_N = 256, BLOCK_K = 256 };
enum {
    A_ELEMENTS = BLOCK_M * BLOCK_K,
    B_ELEMENTS = BLOCK_K * BLOCK_N,
    C_ELEMENTS = BLOCK_M * BLOCK_N,
    THREAD_ELEMENTS = A_ELEMENTS + B_ELEMENTS + C_ELEMENTS,
};

/* The block of C that a thread is computing. */
typedef struct matmul_block {
    size_t row, column;   /* where the block begins in C */
    size_t rows, columns; /* the block's size: up to BLOCK_M, BLOCK_N */
    float *a, *b, *c;     /* the thread's workspace */
} matmul_block;

/* to[r][c] = from[row + r][column + c]. Rows of `to` begin to_row elements apart, with zeros from `columns`
 * to the padded width. */
LANES_INLINE void pack_straight(float *to, size_t to_row, const void *from, size_t ld, size_t row,
                                size_t column, size_t rows, size_t columns, tide_dtype dtype)
{
    for (size_t r = 0; r < rows; r++) {
        const size_t start = (row + r) * ld + column;
        for (size_t c = 0; c < columns; c += LANES) {
            const lanes part = lanes_load_until(from, start + c, start + columns, dtype);
            lanes_store(to, r * to_row + c, part, TIDE_DTYPE_FP32);
        }
    }
}

/* to[c][r] = from[row + r][column + c]. Rows of `to` begin to_row elements apart, with zeros from `rows` to
 * the padded width. */
LANES_INLINE void pack_transposed(float *to, size_t to_row, const void *from, size_t ld, size_t row,
                                  size_t column, size_t rows, size_t columns, tide_dtype dtype)
{
    for (size_t c = 0; c < columns; c += LANES)
        for (size_t r = 0; r < tile_pad(rows); r++) {
            const size_t start = (row + r) * ld + column;
            float each[LANES] = {0};
            if (r < rows)
                lanes_store(each, 0, lanes_load_until(from, start + c, start + columns, dtype),
                            TIDE_DTYPE_FP32);
            for (size_t lane = 0; lane < LANES && c + lane < columns; lane++)
                to[(c + lane) * to_row + r] = each[lane];
        }
}

LANES_INLINE void pack_stretch(const tide_matmul_args *args, const matmul_block *block, size_t k,
                               size_t depth, tide_dtype dtype)
{
    if (args->transpose_a)
        pack_transposed(block->a, BLOCK_K, args->a, args->lda, k, block->row, depth, block->rows, dtype);
    else
        pack_straight(block->a, BLOCK_K, args->a, args->lda, block->row, k, block->rows, depth, dtype);
    if (args->transpose_b)
        pack_transposed(block->b, BLOCK_N, args->b, args->ldb, block->column, k, block->columns, depth,
                        dtype);
    else
        pack_straight(block->b, BLOCK_N, args->b, args->ldb, k, block->column, depth, block->columns, dtype);
}

LANES_INLINE lanes load_bias(const tide_matmul_args *args, size_t column, tide_dtype dtype)
{
    return lanes_load_until(args->bias, column, args->n, dtype);
}

LANES_INLINE void unpack_row(const tide_matmul_args *args, const matmul_block *block, size_t r,
                             tide_dtype out_dtype)
{
    const size_t start = (block->row + r) * args->ldc + block->column;
    const size_t end = start + block->columns;
    for (size_t c = 0; c < block->columns; c += LANES) {
        lanes sum = lanes_load(block->c, r * BLOCK_N + c, TIDE_DTYPE_FP32);
        if (args->has_bias)
            sum += BY_DTYPE(args->in_dtype, load_bias, args, block->column + c);
        if (args->accumulate)
            sum += lanes_load_until(args->c, start + c, end, out_dtype);
        lanes_store_until(args->c, start + c, end, sum, out_dtype);
    }
}

static void multiply_block(const tide_matmul_args *args, const matmul_block *block)
{
    for (size_t k = 0; k < args->k; k += BLOCK_K) {
        const size_t depth = tide_min_u64(args->k - k, BLOCK_K);
        BY_DTYPE(args->in_dtype, pack_stretch, args, block, k, depth);
        tile_multiply(&(tile_product){.a = block->a,
                                      .a_row = BLOCK_K,
                                      .a_column = 1,
                                      .b = block->b,
                                      .b_row = BLOCK_N,
                                      .c = block->c,
                                      .c_row = BLOCK_N,
                                      .m = block->rows,
                                      .n = tile_pad(block->columns),
                                      .k = depth,
                                      .accumulate = k > 0});
    }
    for (size_t r = 0; r < block->rows; r++)
        BY_DTYPE(args->out_dtype, unpack_row, args, block, r);
}

static size_t block_rows(const tide_matmul_args *args)
{
    return tide_ceil_div(args->m, BLOCK_M);
}

static void block_task(const void *arguments, size_t index, size_t member)
{
    const tide_matmul_args *args = arguments;
    const size_t row = index % block_rows(args) * BLOCK_M, column = index / block_rows(args) * BLOCK_N;
    float *own = (float *)args->workspace + member * THREAD_ELEMENTS;
    multiply_block(args, &(matmul_block){.row = row,
                                         .column = column,
                                         .rows = tide_min_u64(args->m - row, BLOCK_M),
                                         .columns = tide_min_u64(args->n - column, BLOCK_N),
                                         .a = own,
                                         .b = own + A_ELEMENTS,
                                         .c = own + A_ELEMENTS + B_ELEMENTS});
}

static tide_status check_shape(const tide_matmul_args *args)
{
    const char *fault = tide_matmul_shape_fault(args);
    if (!fault && args->gelu != TIDE_MATMUL_GELU_NONE)
        fault = "the CPU's products do not take GELU along";
    if (!fault)
        return TIDE_OK;
    return tide_fail(TIDE_ERROR_ARGUMENT, "matmul of %zu x %zu x %zu (lda %zu, ldb %zu, ldc %zu): %s",
                     args->m, args->n, args->k, args->lda, args->ldb, args->ldc, fault);
}

tide_status VARIANT(blocked)(void *stream, const void *arguments)
{
    const tide_matmul_args *args = arguments;
    const tide_status status = check_shape(args);
    (void)stream;
    if (status != TIDE_OK)
        return status;
    if (args->workspace_bytes < VARIANT(blocked_workspace_bytes)())
        return tide_fail(TIDE_ERROR_ARGUMENT,
                         "matmul of %zu x %zu x %zu: a workspace of %zu bytes, it needs %zu", args->m,
                         args->n, args->k, args->workspace_bytes, VARIANT(blocked_workspace_bytes)());
    tide_team_run_uneven(block_rows(args) * tide_ceil_div(args->n, BLOCK_N), block_task, args);
    return TIDE_OK;
}

size_t VARIANT(blocked_workspace_bytes)(void)
{
    return (size_t)tide_team_threads() * THREAD_ELEMENTS * sizeof(float);
}

tide_status VARIANT(blocked_prepare)(const tide_matmul_args *shape, size_t *workspace_bytes)
{
    const tide_status status = check_shape(shape);
    if (status == TIDE_OK)
        *workspace_bytes = VARIANT(blocked_workspace_bytes)();
    return status;
}
