/* RMS norm of whole rows or of each head of a row.
 *
 * A group of lanes holds a head in registers (row_part.h), so that forward and din read it from memory once.
 * A head of 128 bf16 numbers takes eight lanes with two loads of 16 bytes in flight each; a row of 4096 takes
 * 128 lanes with four loads each. Forward moves 4 bytes per bf16 element and makes five operations: it is
 * bound by memory.
 *
 * Backward reads `in` and `dout` once: each group goes through every n-th head, where n is the number of
 * groups, writes din and keeps sums for dweight (row_part.h); a second kernel adds the partial sums, at most
 * 8 MiB. This moves 6 bytes per bf16 element, 8 if din is added to.
 *
 * A lane sums its packs in order, and reduce.h combines lanes and warps. The order of a head's sums depends
 * only on the width; that of dweight also on the number of heads and the type. The code calls fused
 * multiply-adds explicitly.
 */
#include "kernels/cuda/row_part.h"

/* Where the heads of a matrix are: `heads` per row; rows begin `row` elements apart. */
struct head_places {
    size_t row;
    unsigned heads, width;
};

/* Where head `index` begins; heads are numbered through all rows. */
static __device__ __forceinline__ size_t head_begin(const head_places &places, unsigned index)
{
    return index / places.heads * places.row + index % places.heads * (size_t)places.width;
}

/* The sum over the lanes of a head. */
template <typename Shared>
static __device__ __forceinline__ float head_sum(float value, Shared &partial, unsigned lanes)
{
    if (lanes < WARP_LANES)
        return part_sum(value, lanes);
    return lanes_sum(value, partial, lanes);
}

/* Do all heads consist of whole packs at multiples of 16 bytes, which their lanes hold in registers? */
template <typename T> static bool whole_heads(const void *base, size_t row, size_t width)
{
    return row_is_whole<T>(base, width) && row % T::per_16_bytes == 0;
}

/* ---- forward ---- */

template <typename T, bool WHOLE>
static __global__ void __launch_bounds__(ROW_LANES_MAX)
    rms_heads(const typename T::stored *__restrict__ in, const typename T::stored *__restrict__ weight,
              typename T::stored *out, float *rstds, unsigned count, head_places from, head_places to,
              float epsilon, unsigned lanes)
{
    TIDE_CUDA_SHARED(float, partial, ROW_WARPS_MAX);
    const unsigned head = (unsigned)row_index(lanes);
    row_part<T, WHOLE> x;
    x.hold(in + head_begin(from, head), head < count ? from.width : 0, lanes);

    float squares = 0.0f;
    x.each([&](unsigned, const uint4 &words) {
        float values[T::per_16_bytes];
        pack_values<T>(words, values);
        for (unsigned e = 0; e < T::per_16_bytes; e++)
            squares = fmaf(values[e], values[e], squares);
    });
    const float rstd = 1.0f / sqrtf(head_sum(squares, partial, lanes) / (float)from.width + epsilon);

    typename T::stored *const result_row = out + head_begin(to, head);
    x.each([&](unsigned begin, const uint4 &words) {
        float values[T::per_16_bytes], w[T::per_16_bytes];
        pack_values<T>(words, values);
        pack_values<T>(pack_words<T, WHOLE>(weight, begin, x.width), w);
        for (unsigned e = 0; e < T::per_16_bytes; e++)
            values[e] = values[e] * rstd * w[e];
        pack_store<T, WHOLE>(result_row, begin, x.width, pack_of_values<T>(values));
    });
    if (rstds && x.lane == 0 && head < count)
        rstds[head] = rstd;
}

template <typename T, bool WHOLE>
static tide_status forward_launch(void *stream, const tide_rms_norm_args *args)
{
    typedef const typename T::stored *elements;
    const unsigned lanes = head_lanes(pack_count<T>(args->width)), heads = (unsigned)args->heads;
    const size_t count = args->rows * args->heads;
    const head_places from = {args->in_row, heads, (unsigned)args->width};
    const head_places to = {args->out_row, heads, (unsigned)args->width};
    return TIDE_CUDA_LAUNCH("rms_norm", (rms_heads<T, WHOLE>), row_grid(count, lanes), row_threads(lanes),
                            stream, (elements)args->in, (elements)args->weight,
                            (typename T::stored *)args->out, args->rstd, (unsigned)count, from, to,
                            args->epsilon, lanes);
}

template <typename T> static tide_status forward(void *stream, const tide_rms_norm_args *args)
{
    const bool whole = whole_heads<T>(args->in, args->in_row, args->width) &&
                       whole_heads<T>(args->out, args->out_row, args->width) &&
                       pack_whole_rows<T>(args->weight, args->width);
    return whole ? forward_launch<T, true>(stream, args) : forward_launch<T, false>(stream, args);
}

tide_status tide_cuda_rms_norm(void *stream, const void *arguments)
{
    const tide_rms_norm_args *args = (const tide_rms_norm_args *)arguments;
    if (args->rows * args->heads == 0)
        return TIDE_OK;
    assert(args->in && args->weight && args->out && args->width > 0);
    assert(args->rows * args->heads <=
           UINT32_MAX - NARROW_THREADS); /* so that numbers past the last head do not overflow */
    assert(args->in_row >= args->heads * args->width && args->out_row >= args->heads * args->width);
    return TIDE_CUDA_BY_DTYPE(args->dtype, forward, stream, args);
}

/* ---- backward ---- */

/* din = rstd (g - normal mean(g normal)) for g = weight dout, normal = in rstd, unless din is NULL; and the
 * partial sums of normal dout for dweight. din may be dout: a lane reads a pack of dout before it writes that
 * pack, and no lane reads another's packs. Successive heads use two places in `partial` in turn, so that one
 * barrier per head is enough. */
template <typename T, bool WHOLE, unsigned PACKS>
static __global__ void __launch_bounds__(ROW_LANES_MAX)
    rms_backward_heads(const typename T::stored *__restrict__ in,
                       const typename T::stored *__restrict__ weight, const typename T::stored *dout,
                       const float *__restrict__ rstds, typename T::stored *din, float *parts, unsigned count,
                       head_places from, head_places to, bool accumulate, unsigned lanes)
{
    TIDE_CUDA_SHARED(float, partial, 2 * ROW_WARPS_MAX);
    row_sums<T, WHOLE, PACKS> sums;
    sums.begin(parts, from.width, lanes);
    const unsigned groups = blockDim.x / lanes;
    unsigned turn = 0;
    for (size_t first = blockIdx.x * groups; first < count; first += gridDim.x * groups) {
        const unsigned head = (unsigned)first + threadIdx.x / lanes;
        const float rstd = head < count ? rstds[head] : 0.0f;
        row_part<T, WHOLE, PACKS> x, dy;
        x.hold(in + head_begin(from, head), head < count ? from.width : 0, lanes);
        dy.hold(dout + head_begin(to, head), head < count ? from.width : 0, lanes);

        float product_sum = 0.0f;
        x.each_summed(dy, sums,
                      [&](size_t begin, const tide_cuda_vector<T> &values,
                          const tide_cuda_vector<T> &gradients, float *columns) {
                          const tide_cuda_vector<T> w = pack_load<T, WHOLE>(weight, begin, from.width);
                          for (unsigned e = 0; e < T::per_16_bytes; e++) { /* 0 where an element is absent */
                              const float product =
                                  T::load(values.element[e]) * rstd * T::load(gradients.element[e]);
                              columns[e] += product;
                              product_sum = fmaf(product, T::load(w.element[e]), product_sum);
                          }
                      });
        const tide_cuda_shared<float> place = partial + turn;
        const float product_mean = head_sum(product_sum, place, lanes) / (float)from.width;
        turn ^= ROW_WARPS_MAX;
        if (!din)
            continue;

        typename T::stored *const result_row = din + head_begin(to, head);
        x.each_with(dy, [&](size_t begin, const tide_cuda_vector<T> &values,
                            const tide_cuda_vector<T> &gradients) {
            const tide_cuda_vector<T> w = pack_load<T, WHOLE>(weight, begin, from.width);
            tide_cuda_vector<T> before = {}, result;
            if (accumulate)
                before = pack_load<T, WHOLE>(result_row, begin, from.width);
            for (unsigned e = 0; e < T::per_16_bytes; e++) {
                const float normal = T::load(values.element[e]) * rstd;
                const float g = T::load(w.element[e]) * T::load(gradients.element[e]);
                const float gradient = fmaf(-normal, product_mean, g) * rstd;
                result.element[e] = T::store(accumulate ? gradient + T::load(before.element[e]) : gradient);
            }
            pack_store<T, WHOLE>(result_row, begin, from.width, result);
        });
    }
    sums.end();
}

template <typename T, bool WHOLE, unsigned PACKS>
static tide_status backward_launch(void *stream, const tide_rms_norm_backward_args *args, unsigned lanes)
{
    typedef const typename T::stored *elements;
    const unsigned heads = (unsigned)args->heads;
    const size_t count = args->rows * args->heads, parts = tide_gpu_norm_parts(count, args->width);
    const head_places from = {args->in_row, heads, (unsigned)args->width};
    const head_places to = {args->dout_row, heads, (unsigned)args->width};
    const tide_status status =
        TIDE_CUDA_LAUNCH("rms_norm_backward", (rms_backward_heads<T, WHOLE, PACKS>), part_grid(parts, lanes),
                         row_threads(lanes), stream, (elements)args->in, (elements)args->weight,
                         (elements)args->dout, args->rstd, (typename T::stored *)args->din,
                         (float *)args->workspace, (unsigned)count, from, to, args->accumulate, lanes);
    if (status != TIDE_OK || !args->dweight)
        return status;
    const tide_bias_backward_args sum = {.dout = args->workspace,
                                         .dbias = args->dweight,
                                         .rows = parts,
                                         .width = args->width,
                                         .dtype = TIDE_DTYPE_FP32};
    return tide_cuda_bias_backward(stream, &sum);
}

template <typename T> static tide_status backward(void *stream, const tide_rms_norm_backward_args *args)
{
    const unsigned lanes = head_lanes(pack_count<T>(args->width));
    const bool whole = whole_heads<T>(args->in, args->in_row, args->width) &&
                       whole_heads<T>(args->dout, args->dout_row, args->width) &&
                       pack_whole_rows<T>(args->din, args->width) &&
                       pack_whole_rows<T>(args->weight, args->width);
    if (lanes < WARP_LANES)
        return whole ? backward_launch<T, true, HELD_HALF>(stream, args, lanes)
                     : backward_launch<T, false, HELD_HALF>(stream, args, lanes);
    return whole ? backward_launch<T, true, HELD>(stream, args, lanes)
                 : backward_launch<T, false, HELD>(stream, args, lanes);
}

tide_status tide_cuda_rms_norm_backward(void *stream, const void *arguments)
{
    const tide_rms_norm_backward_args *args = (const tide_rms_norm_backward_args *)arguments;
    if (args->rows * args->heads == 0)
        return TIDE_OK;
    assert(args->in && args->weight && args->dout && args->rstd && args->width > 0 && args->workspace);
    assert(args->in_row >= args->heads * args->width && args->dout_row >= args->heads * args->width);
    assert(!args->accumulate || args->din != args->dout);
    assert(args->workspace_bytes >= tide_gpu_rms_norm_backward_bytes(args));
    assert(args->rows * args->heads <= UINT32_MAX - NARROW_THREADS);
    return TIDE_CUDA_BY_DTYPE(args->dtype, backward, stream, args);
}
