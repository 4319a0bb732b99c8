/* The gradient of a bias: the sums over the columns of dout (columns.h).
 *
 * The kernel reads each element once, makes one addition and is bound by memory. 16384 rows of 768 bf16
 * numbers are 25 MB and take some 10 microseconds, since so narrow a matrix keeps only 48 SMs busy; from a
 * width of 2112 on all 132 SMs of an H200 work, at the memory's speed.
 */
#include "kernels/cuda/columns.h"

enum { IN_FLIGHT = 8 };

template <typename T, bool WHOLE>
static __global__ void __launch_bounds__(COLUMNS_THREADS, WHOLE ? 2 : 1)
    bias_columns(const typename T::stored *__restrict__ dout, float *dbias, size_t rows, size_t width)
{
    TIDE_CUDA_SHARED(float, partials, COLUMNS_PARTIALS);
    TIDE_CUDA_SHARED(float, groups, COLUMNS_THREADS);
    const size_t begin = columns_begin<T>();
    float sums[T::per_16_bytes] = {};
    for (size_t first = columns_row_lane(); first < rows; first += IN_FLIGHT * COLUMNS_ROW_LANES) {
        uint4 packs[IN_FLIGHT];
#pragma unroll
        for (unsigned i = 0; i < IN_FLIGHT; i++) {
            const size_t row = first + i * COLUMNS_ROW_LANES;
            packs[i] = pack_words<T, WHOLE>(dout + row * width, begin, row < rows ? width : 0);
        }
#pragma unroll
        for (unsigned i = 0; i < IN_FLIGHT; i++)
            pack_add<T>(sums, packs[i]);
    }
    columns_fold<T>(sums, partials, groups, dbias, width);
}

template <typename T> static tide_status bias_backward(void *stream, const tide_bias_backward_args *args)
{
    const typename T::stored *dout = (const typename T::stored *)args->dout;
    const unsigned grid = columns_blocks<T>(args->width);
    if (pack_whole_rows<T>(dout, args->width))
        return TIDE_CUDA_LAUNCH("bias_backward", (bias_columns<T, true>), grid, COLUMNS_THREADS, stream, dout,
                                args->dbias, args->rows, args->width);
    return TIDE_CUDA_LAUNCH("bias_backward", (bias_columns<T, false>), grid, COLUMNS_THREADS, stream, dout,
                            args->dbias, args->rows, args->width);
}

tide_status tide_cuda_bias_backward(void *stream, const void *arguments)
{
    const tide_bias_backward_args *args = (const tide_bias_backward_args *)arguments;
    if (args->rows * args->width == 0)
        return TIDE_OK;
    assert(args->dout && args->dbias);
    return TIDE_CUDA_BY_DTYPE(args->dtype, bias_backward, stream, args);
}
