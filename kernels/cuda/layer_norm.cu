/* Layer norm.
 *
 * Rows (forward, and din) are held by groups of lanes (row_part.h), so a row is read from memory once, although forward
 * needs it three times (mean, variance, output: the two-pass variance does not cancel) and backward twice.
 *
 * Forward moves 4 bytes a bf16 element and computes about 10 operations on it: bound by memory, 10 microseconds for
 * 16384 rows of 768 on an H200. Each lane has three or four loads of 16 bytes under way, 50 KB an SM at 1024 lanes,
 * twice what 4.8 TB/s need at a latency of 700 ns.
 *
 * Backward is two kernels: columns first, since din may overwrite dout, for dweight and dbias (columns.h), with the
 * rows' mean and rstd; then rows for din. `in` and `dout` are read twice, 10 bytes a bf16 element in all instead of
 * 6; what it would take to read them once, partial sums of all blocks, has no place to stand. While the two tensors
 * fit in the second cache (50 MB: 16384 rows of 768) the second reading is not memory's.
 *
 * A lane's sums run over its packs in order, lanes and warps are joined as in reduce.h: an order that depends on
 * the width only. The fused operations are written out.
 */
#include "kernels/cuda/columns.h"
#include "kernels/cuda/row_part.h"

enum { COLUMNS_IN_FLIGHT = 4 };

/* ---- rows ---- */

template <typename T, bool WHOLE>
static __global__ void __launch_bounds__(ROW_LANES_MAX)
    norm_rows(const typename T::stored *__restrict__ in, const typename T::stored *__restrict__ weight,
              const typename T::stored *__restrict__ bias, typename T::stored *out, float *means, float *rstds,
              size_t rows, size_t width, float epsilon, unsigned lanes)
{
    TIDE_CUDA_SHARED(float, sum_partial, ROW_WARPS_MAX);
    TIDE_CUDA_SHARED(float, square_partial, ROW_WARPS_MAX);
    const size_t row = row_index(lanes);
    row_part<T, WHOLE> x;
    x.hold(in + row * width, row < rows ? width : 0, lanes);

    float sum = 0.0f;
    x.each([&](size_t, const tide_cuda_vector<T> &pack) {
        for (unsigned e = 0; e < T::per_16_bytes; e++)
            sum += T::load(pack.element[e]);
    });
    const float mean = lanes_sum(sum, sum_partial, lanes) / (float)width;

    float squares = 0.0f;
    x.each([&](size_t begin, const tide_cuda_vector<T> &pack) {
        for (unsigned e = 0; e < T::per_16_bytes; e++) {
            const float deviation = T::load(pack.element[e]) - mean;
            if (WHOLE || begin + e < width)
                squares = fmaf(deviation, deviation, squares);
        }
    });
    const float variance = lanes_sum(squares, square_partial, lanes) / (float)width;
    const float rstd = 1.0f / sqrtf(variance + epsilon);

    x.each([&](size_t begin, const tide_cuda_vector<T> &pack) {
        const tide_cuda_vector<T> w = pack_load<T, WHOLE>(weight, begin, width);
        const tide_cuda_vector<T> b = pack_load<T, WHOLE>(bias, begin, width);
        tide_cuda_vector<T> result;
        for (unsigned e = 0; e < T::per_16_bytes; e++)
            result.element[e] = T::store(
                fmaf((T::load(pack.element[e]) - mean) * rstd, T::load(w.element[e]), T::load(b.element[e])));
        pack_store<T, WHOLE>(out + row * width, begin, width, result);
    });
    if (means && x.lane == 0 && row < rows) {
        means[row] = mean;
        rstds[row] = rstd;
    }
}

template <typename T, bool WHOLE> static tide_status forward_launch(void *stream, const tide_layer_norm_args *args)
{
    typedef const typename T::stored *elements;
    const unsigned lanes = row_lanes(pack_count<T>(args->width));
    return TIDE_CUDA_LAUNCH("layer_norm", (norm_rows<T, WHOLE>), row_grid(args->rows, lanes), row_threads(lanes),
                            stream, (elements)args->in, (elements)args->weight, (elements)args->bias,
                            (typename T::stored *)args->out, args->mean, args->rstd, args->rows, args->width,
                            args->epsilon, lanes);
}

template <typename T> static tide_status forward(void *stream, const tide_layer_norm_args *args)
{
    const bool whole = row_is_whole<T>(args->in, args->width) && pack_whole_rows<T>(args->out, args->width) &&
                       pack_whole_rows<T>(args->weight, args->width) && pack_whole_rows<T>(args->bias, args->width);
    return whole ? forward_launch<T, true>(stream, args) : forward_launch<T, false>(stream, args);
}

tide_status tide_cuda_layer_norm(void *stream, const void *arguments)
{
    const tide_layer_norm_args *args = (const tide_layer_norm_args *)arguments;
    if (args->rows == 0)
        return TIDE_OK;
    assert(args->in && args->weight && args->bias && args->out && args->width > 0);
    assert(!args->mean == !args->rstd);
    return TIDE_CUDA_BY_DTYPE(args->dtype, forward, stream, args);
}

/* ---- backward: din ---- */

/* din = rstd (g - mean(g) - normal mean(g normal)) for g = weight dout. din may be dout: a lane reads a pack of dout
 * before it writes that pack, and no lane reads another's. */
template <typename T, bool WHOLE>
static __global__ void __launch_bounds__(ROW_LANES_MAX)
    norm_backward_rows(const typename T::stored *__restrict__ in, const typename T::stored *__restrict__ weight,
                       const typename T::stored *dout, const float *__restrict__ means,
                       const float *__restrict__ rstds, typename T::stored *din, size_t rows, size_t width,
                       bool accumulate, unsigned lanes)
{
    TIDE_CUDA_SHARED(float, sum_partial, ROW_WARPS_MAX);
    TIDE_CUDA_SHARED(float, product_partial, ROW_WARPS_MAX);
    const size_t row = row_index(lanes);
    const float mean = row < rows ? means[row] : 0.0f, rstd = row < rows ? rstds[row] : 0.0f;
    row_part<T, WHOLE> x, dy;
    x.hold(in + row * width, row < rows ? width : 0, lanes);
    dy.hold(dout + row * width, row < rows ? width : 0, lanes);

    float sum = 0.0f, products = 0.0f;
    x.each_with(dy, [&](size_t begin, const tide_cuda_vector<T> &values, const tide_cuda_vector<T> &gradients) {
        const tide_cuda_vector<T> w = pack_load<T, WHOLE>(weight, begin, width);
        for (unsigned e = 0; e < T::per_16_bytes; e++) { /* where an element is absent g is 0 */
            const float normal = (T::load(values.element[e]) - mean) * rstd;
            const float g = T::load(w.element[e]) * T::load(gradients.element[e]);
            sum += g;
            products = fmaf(g, normal, products);
        }
    });
    const float g_mean = lanes_sum(sum, sum_partial, lanes) / (float)width;
    const float product_mean = lanes_sum(products, product_partial, lanes) / (float)width;

    typename T::stored *to = din + row * width;
    x.each_with(dy, [&](size_t begin, const tide_cuda_vector<T> &values, const tide_cuda_vector<T> &gradients) {
        const tide_cuda_vector<T> w = pack_load<T, WHOLE>(weight, begin, width);
        tide_cuda_vector<T> before = {}, result;
        if (accumulate)
            before = pack_load<T, WHOLE>(to, begin, width);
        for (unsigned e = 0; e < T::per_16_bytes; e++) {
            const float normal = (T::load(values.element[e]) - mean) * rstd;
            const float g = T::load(w.element[e]) * T::load(gradients.element[e]);
            const float gradient = fmaf(-normal, product_mean, g - g_mean) * rstd;
            result.element[e] = T::store(accumulate ? gradient + T::load(before.element[e]) : gradient);
        }
        pack_store<T, WHOLE>(to, begin, width, result);
    });
}

/* ---- backward: dweight and dbias ---- */

template <typename T, bool WHOLE>
static __global__ void __launch_bounds__(COLUMNS_THREADS)
    norm_backward_columns(const typename T::stored *__restrict__ in, const typename T::stored *__restrict__ dout,
                          const float *__restrict__ means, const float *__restrict__ rstds, float *dweight,
                          float *dbias, size_t rows, size_t width)
{
    TIDE_CUDA_SHARED(float, partials, COLUMNS_PARTIALS);
    TIDE_CUDA_SHARED(float, groups, COLUMNS_THREADS);
    const size_t begin = columns_begin<T>();
    float weight_sums[T::per_16_bytes] = {}, bias_sums[T::per_16_bytes] = {};
    for (size_t first = columns_row_lane(); first < rows; first += COLUMNS_IN_FLIGHT * COLUMNS_ROW_LANES) {
        tide_cuda_vector<T> x[COLUMNS_IN_FLIGHT], dy[COLUMNS_IN_FLIGHT];
        float mean[COLUMNS_IN_FLIGHT], rstd[COLUMNS_IN_FLIGHT];
#pragma unroll
        for (unsigned i = 0; i < COLUMNS_IN_FLIGHT; i++) {
            const size_t row = first + i * COLUMNS_ROW_LANES, end = row < rows ? width : 0;
            x[i] = pack_load<T, WHOLE>(in + row * width, begin, end);
            dy[i] = pack_load<T, WHOLE>(dout + row * width, begin, end);
            mean[i] = row < rows ? means[row] : 0.0f;
            rstd[i] = row < rows ? rstds[row] : 0.0f;
        }
#pragma unroll
        for (unsigned i = 0; i < COLUMNS_IN_FLIGHT; i++)
            for (unsigned e = 0; e < T::per_16_bytes; e++) {
                const float normal = (T::load(x[i].element[e]) - mean[i]) * rstd[i];
                weight_sums[e] = fmaf(normal, T::load(dy[i].element[e]), weight_sums[e]);
                bias_sums[e] += T::load(dy[i].element[e]);
            }
    }
    if (dweight)
        columns_fold<T>(weight_sums, partials, groups, dweight, width);
    if (dbias)
        columns_fold<T>(bias_sums, partials, groups, dbias, width);
}

template <typename T, bool WHOLE>
static tide_status backward_launch(void *stream, const tide_layer_norm_backward_args *args)
{
    typedef const typename T::stored *elements;
    const unsigned lanes = row_lanes(pack_count<T>(args->width));
    const elements in = (elements)args->in, weight = (elements)args->weight, dout = (elements)args->dout;
    tide_status status = TIDE_OK;
    if (args->dweight || args->dbias)
        status = TIDE_CUDA_LAUNCH("layer_norm_backward columns", (norm_backward_columns<T, WHOLE>),
                                  columns_blocks<T>(args->width), COLUMNS_THREADS, stream, in, dout, args->mean,
                                  args->rstd, args->dweight, args->dbias, args->rows, args->width);
    if (status != TIDE_OK || !args->din)
        return status;
    return TIDE_CUDA_LAUNCH("layer_norm_backward rows", (norm_backward_rows<T, WHOLE>), row_grid(args->rows, lanes),
                            row_threads(lanes), stream, in, weight, dout, args->mean, args->rstd,
                            (typename T::stored *)args->din, args->rows, args->width, args->accumulate, lanes);
}

template <typename T> static tide_status backward(void *stream, const tide_layer_norm_backward_args *args)
{
    const bool whole = row_is_whole<T>(args->in, args->width) && pack_whole_rows<T>(args->dout, args->width) &&
                       pack_whole_rows<T>(args->din, args->width) && pack_whole_rows<T>(args->weight, args->width);
    return whole ? backward_launch<T, true>(stream, args) : backward_launch<T, false>(stream, args);
}

tide_status tide_cuda_layer_norm_backward(void *stream, const void *arguments)
{
    const tide_layer_norm_backward_args *args = (const tide_layer_norm_backward_args *)arguments;
    if (args->rows == 0)
        return TIDE_OK;
    assert(args->in && args->weight && args->dout && args->mean && args->rstd);
    assert(args->width > 0);
    assert(!args->accumulate || args->din != args->dout);
    return TIDE_CUDA_BY_DTYPE(args->dtype, backward, stream, args);
}
