/* The bias' gradient: sums down the columns of dout. */
#include "kernels/cpu/columns.h"
#include "kernels/cpu/variant.h"

LANES_INLINE void sum_columns(const tide_bias_backward_args *args, size_t begin, tide_dtype dtype)
{
    const size_t width = args->width;
    lanes total[BITE_LANES] = {0};
    for (size_t group = 0; group < args->rows; group += ROW_GROUP) {
        lanes sum[BITE_LANES] = {0};
        for (size_t row = group; row < args->rows && row < group + ROW_GROUP; row++) {
            lanes dout[BITE_LANES];
            columns_load(dout, (const char *)args->dout + row * width * tide_dtype_bytes(dtype), begin, width,
                         dtype);
            for (size_t bite = 0; bite < BITE_LANES; bite++)
                sum[bite] += dout[bite];
        }
        for (size_t bite = 0; bite < BITE_LANES; bite++)
            total[bite] += sum[bite];
    }
    columns_add(args->dbias, begin, width, total);
}

tide_status VARIANT(bias_backward)(void *stream, const void *arguments)
{
    const tide_bias_backward_args *args = arguments;
    (void)stream;
    assert(args->rows * args->width == 0 || (args->dout && args->dbias));
#pragma omp parallel for num_threads(tide_kernels_cpu_threads()) if (args->rows * args->width >=             \
                                                                     PARALLEL_ELEMENTS_MIN)
    for (size_t begin = 0; begin < args->width; begin += BITE_COLUMNS)
        BY_DTYPE(args->dtype, sum_columns, args, begin);
    return TIDE_OK;
}
