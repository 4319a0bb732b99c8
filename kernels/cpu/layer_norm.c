/* Layer norm.
 *
 * Forward reads a row three times (mean, variance, output); the row stays in the first-level cache, and the
 * two-pass variance avoids cancellation. Backward consists of two parts: din, whose tasks are rows, and
 * dweight and dbias, whose tasks are strips of columns (columns.h). Reading `in` and `dout` twice costs less
 * than keeping partial sums per thread, and the bits do not depend on the thread count.
 */
#include "kernels/cpu/columns.h"
#include "kernels/cpu/variant.h"

LANES_INLINE float row_mean(const void *row, size_t width, tide_dtype dtype)
{
    lanes sum = lanes_all(0.0f);
    for (size_t i = 0; i < width; i += LANES)
        sum += lanes_load_until(row, i, width, dtype);
    return lanes_sum(sum) / (float)width;
}

LANES_INLINE float row_variance(const void *row, float mean, size_t width, tide_dtype dtype)
{
    lanes sum = lanes_all(0.0f);
    for (size_t i = 0; i < width; i += LANES) {
        const lanes deviation = lanes_clip(lanes_load_until(row, i, width, dtype) - mean, i, width);
        sum = lanes_fma(deviation, deviation, sum);
    }
    return lanes_sum(sum) / (float)width;
}

LANES_INLINE void norm_row(const tide_layer_norm_args *args, size_t row, tide_dtype dtype)
{
    const size_t width = args->width;
    const size_t offset = row * width * tide_dtype_bytes(dtype);
    const void *in = (const char *)args->in + offset;
    void *out = (char *)args->out + offset;
    const float mean = row_mean(in, width, dtype);
    const float rstd = 1.0f / sqrtf(row_variance(in, mean, width, dtype) + args->epsilon);
    for (size_t i = 0; i < width; i += LANES) {
        const lanes normal = (lanes_load_until(in, i, width, dtype) - mean) * rstd;
        const lanes scaled = lanes_fma(normal, lanes_load_until(args->weight, i, width, dtype),
                                       lanes_load_until(args->bias, i, width, dtype));
        lanes_store_until(out, i, width, scaled, dtype);
    }
    if (args->mean) {
        args->mean[row] = mean;
        args->rstd[row] = rstd;
    }
}

static void norm_task(const void *arguments, size_t row)
{
    const tide_layer_norm_args *args = arguments;
    BY_DTYPE(args->dtype, norm_row, args, row);
}

tide_status VARIANT(layer_norm)(void *stream, const void *arguments)
{
    const tide_layer_norm_args *args = arguments;
    (void)stream;
    assert(args->rows == 0 || (args->in && args->weight && args->bias && args->out && args->width > 0));
    assert(!args->mean == !args->rstd);
    tide_team_run(args->rows, args->rows * args->width, norm_task, args);
    return TIDE_OK;
}

/* din = rstd (g - mean(g) - normal mean(g normal)) for g = weight dout. */
LANES_INLINE void norm_backward_row(const tide_layer_norm_backward_args *args, size_t row, tide_dtype dtype)
{
    const size_t width = args->width;
    const size_t offset = row * width * tide_dtype_bytes(dtype);
    const void *in = (const char *)args->in + offset;
    const void *dout = (const char *)args->dout + offset;
    void *din = (char *)args->din + offset;
    const float mean = args->mean[row], rstd = args->rstd[row];

    lanes sum = lanes_all(0.0f), product_sum = lanes_all(0.0f);
    for (size_t i = 0; i < width; i += LANES) {
        const lanes normal = (lanes_load_until(in, i, width, dtype) - mean) * rstd;
        const lanes g =
            lanes_load_until(args->weight, i, width, dtype) * lanes_load_until(dout, i, width, dtype);
        sum += g;
        product_sum = lanes_fma(g, normal, product_sum);
    }
    const float g_mean = lanes_sum(sum) / (float)width;
    const float product_mean = lanes_sum(product_sum) / (float)width;

    for (size_t i = 0; i < width; i += LANES) {
        const lanes normal = (lanes_load_until(in, i, width, dtype) - mean) * rstd;
        const lanes g =
            lanes_load_until(args->weight, i, width, dtype) * lanes_load_until(dout, i, width, dtype);
        lanes gradient = lanes_fma(-normal, lanes_all(product_mean), g - g_mean) * rstd;
        if (args->accumulate)
            gradient += lanes_load_until(din, i, width, dtype);
        lanes_store_until(din, i, width, gradient, dtype);
    }
}

LANES_INLINE void norm_backward_columns(const tide_layer_norm_backward_args *args, size_t begin,
                                        tide_dtype dtype)
{
    const size_t width = args->width;
    lanes weight_total[BITE_LANES] = {0}, bias_total[BITE_LANES] = {0};
    for (size_t group = 0; group < args->rows; group += ROW_GROUP) {
        lanes weight_sum[BITE_LANES] = {0}, bias_sum[BITE_LANES] = {0};
        for (size_t row = group; row < args->rows && row < group + ROW_GROUP; row++) {
            const size_t offset = row * width * tide_dtype_bytes(dtype);
            lanes in[BITE_LANES], dout[BITE_LANES];
            columns_load(in, (const char *)args->in + offset, begin, width, dtype);
            columns_load(dout, (const char *)args->dout + offset, begin, width, dtype);
            for (size_t bite = 0; bite < BITE_LANES; bite++) {
                const lanes normal = (in[bite] - args->mean[row]) * args->rstd[row];
                weight_sum[bite] = lanes_fma(normal, dout[bite], weight_sum[bite]);
                bias_sum[bite] += dout[bite];
            }
        }
        for (size_t bite = 0; bite < BITE_LANES; bite++) {
            weight_total[bite] += weight_sum[bite];
            bias_total[bite] += bias_sum[bite];
        }
    }
    if (args->dweight)
        columns_add(args->dweight, begin, width, weight_total);
    if (args->dbias)
        columns_add(args->dbias, begin, width, bias_total);
}

static void columns_task(const void *arguments, size_t bite)
{
    const tide_layer_norm_backward_args *args = arguments;
    BY_DTYPE(args->dtype, norm_backward_columns, args, bite * BITE_COLUMNS);
}

static void row_task(const void *arguments, size_t row)
{
    const tide_layer_norm_backward_args *args = arguments;
    BY_DTYPE(args->dtype, norm_backward_row, args, row);
}

tide_status VARIANT(layer_norm_backward)(void *stream, const void *arguments)
{
    const tide_layer_norm_backward_args *args = arguments;
    (void)stream;
    assert(args->rows == 0 || (args->in && args->weight && args->dout && args->mean && args->rstd));
    assert(args->rows == 0 || args->width > 0);
    assert(!args->accumulate || args->din != args->dout);
    /* Columns first: din may overwrite dout. */
    if (args->dweight || args->dbias)
        tide_team_run(columns_bites(args->width), args->rows * args->width, columns_task, args);
    if (args->din)
        tide_team_run(args->rows, args->rows * args->width, row_task, args);
    return TIDE_OK;
}
