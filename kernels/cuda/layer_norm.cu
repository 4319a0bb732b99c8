/* Layer norm.
 *
 * A group of lanes holds a row in registers (row_part.h), so that a row is read from memory once, although
 * forward needs it three times (mean, variance, output: the two-pass variance avoids cancellation) and
 * backward twice.
 *
 * Forward moves 4 bytes per bf16 element and makes about 10 operations: it is bound by memory and takes 10
 * microseconds for 16384 rows of 768 on an H200. Each lane has three or four loads of 16 bytes in flight, 50
 * KB per SM with 1024 lanes: twice as much as 4.8 TB/s need at a latency of 700 ns.
 *
 * Backward reads `in` and `dout` once: each group goes through every n-th row, where n is the number of
 * groups, writes din and keeps sums for dweight and dbias (row_part.h), which leave registers for HELD_HALF
 * packs of each; a second kernel adds the partial sums, at most 8 MiB. This moves 6 bytes per bf16 element, 8
 * if din is added to.
 *
 * A lane sums its packs in order, and reduce.h combines lanes and warps. The order of a row's sums depends
 * only on the width; that of dweight and dbias also on the number of rows and the type. The code calls fused
 * multiply-adds explicitly.
 */
#include "kernels/cuda/row_part.h"

/* ---- rows ---- */

template <typename T, bool WHOLE>
static __global__ void __launch_bounds__(ROW_LANES_MAX)
    norm_rows(const typename T::stored *__restrict__ in, const typename T::stored *__restrict__ weight,
              const typename T::stored *__restrict__ bias, typename T::stored *out, float *means,
              float *rstds, size_t rows, size_t width, float epsilon, unsigned lanes)
{
    TIDE_CUDA_SHARED(float, sum_partial, ROW_WARPS_MAX);
    TIDE_CUDA_SHARED(float, square_partial, ROW_WARPS_MAX);
    const size_t row = row_index(lanes);
    row_part<T, WHOLE> x;
    x.hold(in + row * width, row < rows ? width : 0, lanes);

    float sum = 0.0f;
    x.each([&](unsigned, const uint4 &words) {
        float values[T::per_16_bytes];
        pack_values<T>(words, values);
        for (unsigned e = 0; e < T::per_16_bytes; e++)
            sum += values[e];
    });
    const float mean = lanes_sum(sum, sum_partial, lanes) / (float)width;

    float squares = 0.0f;
    x.each([&](unsigned begin, const uint4 &words) {
        float values[T::per_16_bytes];
        pack_values<T>(words, values);
        for (unsigned e = 0; e < T::per_16_bytes; e++) {
            const float deviation = values[e] - mean;
            if (WHOLE || begin + e < width)
                squares = fmaf(deviation, deviation, squares);
        }
    });
    const float variance = lanes_sum(squares, square_partial, lanes) / (float)width;
    const float rstd = 1.0f / sqrtf(variance + epsilon);

    x.each([&](unsigned begin, const uint4 &words) {
        float values[T::per_16_bytes], w[T::per_16_bytes], b[T::per_16_bytes];
        pack_values<T>(words, values);
        pack_values<T>(pack_words<T, WHOLE>(weight, begin, x.width), w);
        pack_values<T>(pack_words<T, WHOLE>(bias, begin, x.width), b);
        for (unsigned e = 0; e < T::per_16_bytes; e++)
            values[e] = fmaf((values[e] - mean) * rstd, w[e], b[e]);
        pack_store<T, WHOLE>(out + row * width, begin, x.width, pack_of_values<T>(values));
    });
    if (means && x.lane == 0 && row < rows) {
        means[row] = mean;
        rstds[row] = rstd;
    }
}

template <typename T, bool WHOLE>
static tide_status forward_launch(void *stream, const tide_layer_norm_args *args)
{
    typedef const typename T::stored *elements;
    const unsigned lanes = row_lanes(pack_count<T>(args->width));
    return TIDE_CUDA_LAUNCH("layer_norm", (norm_rows<T, WHOLE>), row_grid(args->rows, lanes),
                            row_threads(lanes), stream, (elements)args->in, (elements)args->weight,
                            (elements)args->bias, (typename T::stored *)args->out, args->mean, args->rstd,
                            args->rows, args->width, args->epsilon, lanes);
}

template <typename T> static tide_status forward(void *stream, const tide_layer_norm_args *args)
{
    const bool whole = row_is_whole<T>(args->in, args->width) && pack_whole_rows<T>(args->out, args->width) &&
                       pack_whole_rows<T>(args->weight, args->width) &&
                       pack_whole_rows<T>(args->bias, args->width);
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

/* ---- backward ---- */

/* din = rstd (g - mean(g) - normal mean(g normal)) for g = weight dout, unless din is NULL; and the partial
 * sums of normal dout for dweight and of dout for dbias. din may be dout: a lane reads a pack of dout before
 * it writes that pack, and no lane reads another's packs. The two sums of a row use two arrays, which all
 * rows share: the barrier of one sum is between two uses of the other's array. */
template <typename T, bool WHOLE>
static __global__ void __launch_bounds__(ROW_LANES_MAX)
    norm_backward_rows(const typename T::stored *__restrict__ in,
                       const typename T::stored *__restrict__ weight, const typename T::stored *dout,
                       const float *__restrict__ means, const float *__restrict__ rstds,
                       typename T::stored *din, float *weight_parts, float *bias_parts, size_t rows,
                       size_t width, bool accumulate, unsigned lanes)
{
    TIDE_CUDA_SHARED(float, sum_partial, ROW_WARPS_MAX);
    TIDE_CUDA_SHARED(float, product_partial, ROW_WARPS_MAX);
    row_sums<T, WHOLE, HELD_HALF> weight_sums, bias_sums;
    weight_sums.begin(weight_parts, width, lanes);
    bias_sums.begin(bias_parts, width, lanes);
    const unsigned groups = blockDim.x / lanes;
    for (size_t first = blockIdx.x * groups; first < rows; first += gridDim.x * groups) {
        const size_t row = first + threadIdx.x / lanes;
        const float mean = row < rows ? means[row] : 0.0f, rstd = row < rows ? rstds[row] : 0.0f;
        row_part<T, WHOLE, HELD_HALF> x, dy;
        x.hold(in + row * width, row < rows ? width : 0, lanes);
        dy.hold(dout + row * width, row < rows ? width : 0, lanes);

        float sum = 0.0f, product_sum = 0.0f;
        x.each_summed(dy, weight_sums,
                      [&](size_t begin, const tide_cuda_vector<T> &values,
                          const tide_cuda_vector<T> &gradients, float *columns) {
                          const tide_cuda_vector<T> w = pack_load<T, WHOLE>(weight, begin, width);
                          for (unsigned e = 0; e < T::per_16_bytes; e++) { /* 0 where an element is absent */
                              const float product =
                                  (T::load(values.element[e]) - mean) * rstd * T::load(gradients.element[e]);
                              columns[e] += product;
                              sum = fmaf(T::load(w.element[e]), T::load(gradients.element[e]), sum);
                              product_sum = fmaf(T::load(w.element[e]), product, product_sum);
                          }
                      });
        dy.each_summed(
            dy, bias_sums,
            [&](size_t, const tide_cuda_vector<T> &gradients, const tide_cuda_vector<T> &, float *columns) {
                for (unsigned e = 0; e < T::per_16_bytes; e++)
                    columns[e] += T::load(gradients.element[e]);
            });
        const float g_mean = lanes_sum(sum, sum_partial, lanes) / (float)width;
        const float product_mean = lanes_sum(product_sum, product_partial, lanes) / (float)width;
        if (!din)
            continue;

        typename T::stored *const to = din + row * width;
        x.each_with(dy, [&](size_t begin, const tide_cuda_vector<T> &values,
                            const tide_cuda_vector<T> &gradients) {
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
    weight_sums.end();
    bias_sums.end();
}

/* gradient += the partial sums, unless gradient is NULL. */
static tide_status add_parts(void *stream, const float *parts, float *gradient, size_t count, size_t width)
{
    if (!gradient)
        return TIDE_OK;
    const tide_bias_backward_args sum = {
        .dout = parts, .dbias = gradient, .rows = count, .width = width, .dtype = TIDE_DTYPE_FP32};
    return tide_cuda_bias_backward(stream, &sum);
}

template <typename T, bool WHOLE>
static tide_status backward_launch(void *stream, const tide_layer_norm_backward_args *args)
{
    typedef const typename T::stored *elements;
    const unsigned lanes = row_lanes(pack_count<T>(args->width), HELD_HALF);
    const size_t parts = tide_gpu_norm_parts(args->rows, 2 * args->width);
    float *const weight_parts = (float *)args->workspace, *const bias_parts =
                                                              weight_parts + parts * args->width;
    tide_status status =
        TIDE_CUDA_LAUNCH("layer_norm_backward", (norm_backward_rows<T, WHOLE>), part_grid(parts, lanes),
                         row_threads(lanes), stream, (elements)args->in, (elements)args->weight,
                         (elements)args->dout, args->mean, args->rstd, (typename T::stored *)args->din,
                         weight_parts, bias_parts, args->rows, args->width, args->accumulate, lanes);
    if (status == TIDE_OK)
        status = add_parts(stream, weight_parts, args->dweight, parts, args->width);
    if (status == TIDE_OK)
        status = add_parts(stream, bias_parts, args->dbias, parts, args->width);
    return status;
}

template <typename T> static tide_status backward(void *stream, const tide_layer_norm_backward_args *args)
{
    const bool whole =
        row_is_whole<T>(args->in, args->width, HELD_HALF) && pack_whole_rows<T>(args->dout, args->width) &&
        pack_whole_rows<T>(args->din, args->width) && pack_whole_rows<T>(args->weight, args->width);
    return whole ? backward_launch<T, true>(stream, args) : backward_launch<T, false>(stream, args);
}

tide_status tide_cuda_layer_norm_backward(void *stream, const void *arguments)
{
    const tide_layer_norm_backward_args *args = (const tide_layer_norm_backward_args *)arguments;
    if (args->rows == 0)
        return TIDE_OK;
    assert(args->in && args->weight && args->dout && args->mean && args->rstd);
    assert(args->width > 0 && args->workspace);
    assert(args->workspace_bytes >= tide_gpu_layer_norm_backward_bytes(args));
    assert(!args->accumulate || args->din != args->dout);
    return TIDE_CUDA_BY_DTYPE(args->dtype, backward, stream, args);
}
