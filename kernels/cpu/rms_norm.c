/* RMS norm of whole rows or of every head in them.
 *
 * Forward reads a head twice; the head stays in the first-level cache. Backward consists of two parts, like
 * layer norm's: din, whose tasks are heads, and dweight, whose tasks are strips of columns (columns.h).
 */
#include "kernels/cpu/columns.h"
#include "kernels/cpu/variant.h"

/* Index of a head's first element in a matrix whose rows begin `row` elements apart. */
static size_t head_begin(size_t index, size_t heads, size_t width, size_t row)
{
    return index / heads * row + index % heads * width;
}

LANES_INLINE void norm_head(const tide_rms_norm_args *args, size_t index, tide_dtype dtype)
{
    const size_t width = args->width;
    const size_t in = head_begin(index, args->heads, width, args->in_row);
    const size_t out = head_begin(index, args->heads, width, args->out_row);
    lanes square = lanes_all(0.0f);
    for (size_t i = 0; i < width; i += LANES) {
        const lanes x = lanes_load_until(args->in, in + i, in + width, dtype);
        square = lanes_fma(x, x, square);
    }
    const float rstd = 1.0f / sqrtf(lanes_sum(square) / (float)width + args->epsilon);
    for (size_t i = 0; i < width; i += LANES) {
        const lanes normal = lanes_load_until(args->in, in + i, in + width, dtype) * rstd;
        lanes_store_until(args->out, out + i, out + width,
                          normal * lanes_load_until(args->weight, i, width, dtype), dtype);
    }
    if (args->rstd)
        args->rstd[index] = rstd;
}

static void norm_task(const void *arguments, size_t index)
{
    const tide_rms_norm_args *args = arguments;
    BY_DTYPE(args->dtype, norm_head, args, index);
}

tide_status VARIANT(rms_norm)(void *stream, const void *arguments)
{
    const tide_rms_norm_args *args = arguments;
    const size_t heads = args->rows * args->heads;
    (void)stream;
    assert(heads == 0 || (args->in && args->weight && args->out && args->width > 0));
    assert(args->in_row >= args->heads * args->width && args->out_row >= args->heads * args->width);
    tide_team_run(heads, heads * args->width, norm_task, args);
    return TIDE_OK;
}

/* din = rstd (g - normal mean(g normal)) for g = weight dout. */
LANES_INLINE void norm_backward_head(const tide_rms_norm_backward_args *args, size_t index, tide_dtype dtype)
{
    const size_t width = args->width;
    const size_t in = head_begin(index, args->heads, width, args->in_row);
    const size_t out = head_begin(index, args->heads, width, args->dout_row);
    const float rstd = args->rstd[index];
    lanes product_sum = lanes_all(0.0f);
    for (size_t i = 0; i < width; i += LANES) {
        const lanes normal = lanes_load_until(args->in, in + i, in + width, dtype) * rstd;
        const lanes g = lanes_load_until(args->weight, i, width, dtype) *
                        lanes_load_until(args->dout, out + i, out + width, dtype);
        product_sum = lanes_fma(g, normal, product_sum);
    }
    const float product_mean = lanes_sum(product_sum) / (float)width;
    for (size_t i = 0; i < width; i += LANES) {
        const lanes normal = lanes_load_until(args->in, in + i, in + width, dtype) * rstd;
        const lanes g = lanes_load_until(args->weight, i, width, dtype) *
                        lanes_load_until(args->dout, out + i, out + width, dtype);
        lanes gradient = lanes_fma(-normal, lanes_all(product_mean), g) * rstd;
        if (args->accumulate)
            gradient += lanes_load_until(args->din, out + i, out + width, dtype);
        lanes_store_until(args->din, out + i, out + width, gradient, dtype);
    }
}

LANES_INLINE void norm_backward_columns(const tide_rms_norm_backward_args *args, size_t begin,
                                        tide_dtype dtype)
{
    const size_t width = args->width, all = args->rows * args->heads, element = tide_dtype_bytes(dtype);
    lanes total[BITE_LANES] = {0};
    for (size_t group = 0; group < all; group += ROW_GROUP) {
        lanes sum[BITE_LANES] = {0};
        for (size_t index = group; index < all && index < group + ROW_GROUP; index++) {
            lanes in[BITE_LANES], dout[BITE_LANES];
            columns_load(
                in, (const char *)args->in + element * head_begin(index, args->heads, width, args->in_row),
                begin, width, dtype);
            columns_load(dout,
                         (const char *)args->dout +
                             element * head_begin(index, args->heads, width, args->dout_row),
                         begin, width, dtype);
            for (size_t bite = 0; bite < BITE_LANES; bite++)
                sum[bite] = lanes_fma(in[bite] * args->rstd[index], dout[bite], sum[bite]);
        }
        for (size_t bite = 0; bite < BITE_LANES; bite++)
            total[bite] += sum[bite];
    }
    columns_add(args->dweight, begin, width, total);
}

static void columns_task(const void *arguments, size_t bite)
{
    const tide_rms_norm_backward_args *args = arguments;
    BY_DTYPE(args->dtype, norm_backward_columns, args, bite * BITE_COLUMNS);
}

static void head_task(const void *arguments, size_t index)
{
    const tide_rms_norm_backward_args *args = arguments;
    BY_DTYPE(args->dtype, norm_backward_head, args, index);
}

tide_status VARIANT(rms_norm_backward)(void *stream, const void *arguments)
{
    const tide_rms_norm_backward_args *args = arguments;
    const size_t heads = args->rows * args->heads;
    (void)stream;
    assert(heads == 0 || (args->in && args->weight && args->dout && args->rstd && args->width > 0));
    assert(!args->accumulate || args->din != args->dout);
    /* Columns first: din may overwrite dout. */
    if (args->dweight)
        tide_team_run(columns_bites(args->width), heads * args->width, columns_task, args);
    if (args->din)
        tide_team_run(heads, heads * args->width, head_task, args);
    return TIDE_OK;
}
