/* The gradient of a bias: the sums over the columns of dout. */
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

static void sum_task(const void *arguments, size_t bite)
{
    const tide_bias_backward_args *args = arguments;
    BY_DTYPE(args->dtype, sum_columns, args, bite * BITE_COLUMNS);
}

tide_status VARIANT(bias_backward)(void *stream, const void *arguments)
{
    const tide_bias_backward_args *args = arguments;
    (void)stream;
    assert(args->rows * args->width == 0 || (args->dout && args->dbias));
    tide_team_run(columns_bites(args->width), args->rows * args->width, sum_task, args);
    return TIDE_OK;
}
