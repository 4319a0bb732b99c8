/* RMS norm, of whole rows or of each head of a row.
 *
 * Forward, and din: a head is held by a group of lanes (row_part.h), so it is read from memory once. Each lane of a
 * head of 128 bf16 numbers has two loads of 16 bytes under way, eight lanes a head; a row of 4096 is 128 lanes', four
 * loads each. 4 bytes a bf16 element and five operations: bound by memory.
 *
 * Backward is two kernels: dweight first, since din may overwrite dout, by columns (columns.h), the heads of all rows
 * one below the other; then din. `in` and `dout` are read twice, as in the layer norm. A weight of a head's width has
 * few columns: 8 blocks for 128 of bf16, which draw what 8 multiprocessors can.
 *
 * A lane's sums run over its packs in order, lanes and warps are joined as in reduce.h: an order that depends on the
 * width only, dweight's on the number of heads and the type. The fused operations are written out.
 */
#include "kernels/cuda/columns.h"
#include "kernels/cuda/row_part.h"

enum { COLUMNS_IN_FLIGHT = 4 };

/* Heads of a matrix: `heads` a row, rows `row` elements apart. */
struct head_places {
    size_t row;
    unsigned heads, width;
};

/* Where head `index` begins, counted over all rows. */
static __device__ __forceinline__ size_t head_begin(const head_places &places, unsigned index)
{
    return index / places.heads * places.row + index % places.heads * (size_t)places.width;
}

/* The sum over a head's lanes. */
template <typename Shared>
static __device__ __forceinline__ float head_sum(float value, Shared &partial, unsigned lanes)
{
    if (lanes < WARP_LANES)
        return part_sum(value, lanes);
    return lanes_sum(value, partial, lanes);
}

/* Are all heads whole packs at multiples of 16? */
template <typename T> static bool whole_heads(const void *base, size_t row, size_t width)
{
    return pack_whole_rows<T>(base, width) && row % T::per_16_bytes == 0;
}

/* ---- forward ---- */

template <typename T, bool WHOLE>
static __global__ void __launch_bounds__(ROW_LANES_MAX)
    rms_heads(const typename T::stored *__restrict__ in, const typename T::stored *__restrict__ weight,
              typename T::stored *out, float *rstds, unsigned count, head_places from, head_places to, float epsilon,
              unsigned lanes)
{
    TIDE_CUDA_SHARED(float, partial, ROW_WARPS_MAX);
    const unsigned head = (unsigned)row_index(lanes);
    row_part<T, WHOLE> x;
    x.hold(in + head_begin(from, head), head < count ? from.width : 0, lanes);

    float squares = 0.0f;
    x.each([&](size_t, const tide_cuda_vector<T> &pack) {
        for (unsigned e = 0; e < T::per_16_bytes; e++) {
            const float value = T::load(pack.element[e]);
            squares = fmaf(value, value, squares);
        }
    });
    const float rstd = 1.0f / sqrtf(head_sum(squares, partial, lanes) / (float)from.width + epsilon);

    typename T::stored *const result_row = out + head_begin(to, head);
    x.each([&](size_t begin, const tide_cuda_vector<T> &pack) {
        const tide_cuda_vector<T> w = pack_load<T, WHOLE>(weight, begin, from.width);
        tide_cuda_vector<T> result;
        for (unsigned e = 0; e < T::per_16_bytes; e++)
            result.element[e] = T::store(T::load(pack.element[e]) * rstd * T::load(w.element[e]));
        pack_store<T, WHOLE>(result_row, begin, from.width, result);
    });
    if (rstds && x.lane == 0 && head < count)
        rstds[head] = rstd;
}

template <typename T, bool WHOLE> static tide_status forward_launch(void *stream, const tide_rms_norm_args *args)
{
    typedef const typename T::stored *elements;
    const unsigned lanes = head_lanes(pack_count<T>(args->width)), heads = (unsigned)args->heads;
    const size_t count = args->rows * args->heads;
    const head_places from = {args->in_row, heads, (unsigned)args->width};
    const head_places to = {args->out_row, heads, (unsigned)args->width};
    return TIDE_CUDA_LAUNCH("rms_norm", (rms_heads<T, WHOLE>), row_grid(count, lanes), row_threads(lanes), stream,
                            (elements)args->in, (elements)args->weight, (typename T::stored *)args->out, args->rstd,
                            (unsigned)count, from, to, args->epsilon, lanes);
}

template <typename T> static tide_status forward(void *stream, const tide_rms_norm_args *args)
{
    const bool whole = whole_heads<T>(args->in, args->in_row, args->width) &&
                       whole_heads<T>(args->out, args->out_row, args->width) &&
                       pack_whole_rows<T>(args->weight, args->width);
    return whole ? forward_launch<T, true>(stream, args) : forward_launch<T, false>(stream, args);
}

/* A block's last heads, which are not there, have numbers too. */
[[maybe_unused]] static bool is_countable(size_t rows, size_t heads)
{
    return rows * heads <= UINT32_MAX - COLUMNS_IN_FLIGHT * COLUMNS_ROW_LANES;
}

tide_status tide_cuda_rms_norm(void *stream, const void *arguments)
{
    const tide_rms_norm_args *args = (const tide_rms_norm_args *)arguments;
    if (args->rows * args->heads == 0)
        return TIDE_OK;
    assert(args->in && args->weight && args->out && args->width > 0 && is_countable(args->rows, args->heads));
    assert(args->in_row >= args->heads * args->width && args->out_row >= args->heads * args->width);
    return TIDE_CUDA_BY_DTYPE(args->dtype, forward, stream, args);
}

/* ---- backward: din ---- */

/* din = rstd (g - normal mean(g normal)) for g = weight dout, normal = in rstd. din may be dout: a lane reads a pack of
 * dout before it writes that pack, and no lane reads another's. */
template <typename T, bool WHOLE>
static __global__ void __launch_bounds__(ROW_LANES_MAX)
    rms_backward_heads(const typename T::stored *__restrict__ in, const typename T::stored *__restrict__ weight,
                       const typename T::stored *dout, const float *__restrict__ rstds, typename T::stored *din,
                       unsigned count, head_places from, head_places to, bool accumulate, unsigned lanes)
{
    TIDE_CUDA_SHARED(float, partial, ROW_WARPS_MAX);
    const unsigned head = (unsigned)row_index(lanes);
    const float rstd = head < count ? rstds[head] : 0.0f;
    row_part<T, WHOLE> x, dy;
    x.hold(in + head_begin(from, head), head < count ? from.width : 0, lanes);
    dy.hold(dout + head_begin(to, head), head < count ? from.width : 0, lanes);

    float products = 0.0f;
    x.each_with(dy, [&](size_t begin, const tide_cuda_vector<T> &values, const tide_cuda_vector<T> &gradients) {
        const tide_cuda_vector<T> w = pack_load<T, WHOLE>(weight, begin, from.width);
        for (unsigned e = 0; e < T::per_16_bytes; e++) { /* where an element is absent g is 0 */
            const float g = T::load(w.element[e]) * T::load(gradients.element[e]);
            products = fmaf(g, T::load(values.element[e]) * rstd, products);
        }
    });
    const float product_mean = head_sum(products, partial, lanes) / (float)from.width;

    typename T::stored *const result_row = din + head_begin(to, head);
    x.each_with(dy, [&](size_t begin, const tide_cuda_vector<T> &values, const tide_cuda_vector<T> &gradients) {
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

/* ---- backward: dweight ---- */

template <typename T, bool WHOLE>
static __global__ void __launch_bounds__(COLUMNS_THREADS)
    rms_backward_columns(const typename T::stored *__restrict__ in, const typename T::stored *__restrict__ dout,
                         const float *__restrict__ rstds, float *dweight, unsigned count, head_places from,
                         head_places to)
{
    TIDE_CUDA_SHARED(float, partials, COLUMNS_PARTIALS);
    TIDE_CUDA_SHARED(float, groups, COLUMNS_THREADS);
    const size_t begin = columns_begin<T>();
    float sums[T::per_16_bytes] = {};
    for (unsigned first = (unsigned)columns_row_lane(); first < count; first += COLUMNS_IN_FLIGHT * COLUMNS_ROW_LANES) {
        tide_cuda_vector<T> x[COLUMNS_IN_FLIGHT], dy[COLUMNS_IN_FLIGHT];
        float rstd[COLUMNS_IN_FLIGHT];
#pragma unroll
        for (unsigned i = 0; i < COLUMNS_IN_FLIGHT; i++) {
            const unsigned head = first + i * COLUMNS_ROW_LANES, end = head < count ? from.width : 0;
            x[i] = pack_load<T, WHOLE>(in + head_begin(from, head), begin, end);
            dy[i] = pack_load<T, WHOLE>(dout + head_begin(to, head), begin, end);
            rstd[i] = head < count ? rstds[head] : 0.0f;
        }
#pragma unroll
        for (unsigned i = 0; i < COLUMNS_IN_FLIGHT; i++)
            for (unsigned e = 0; e < T::per_16_bytes; e++)
                sums[e] = fmaf(T::load(x[i].element[e]) * rstd[i], T::load(dy[i].element[e]), sums[e]);
    }
    columns_fold<T>(sums, partials, groups, dweight, from.width);
}

template <typename T, bool WHOLE>
static tide_status backward_launch(void *stream, const tide_rms_norm_backward_args *args)
{
    typedef const typename T::stored *elements;
    const unsigned lanes = head_lanes(pack_count<T>(args->width)), heads = (unsigned)args->heads;
    const size_t count = args->rows * args->heads;
    const head_places from = {args->in_row, heads, (unsigned)args->width};
    const head_places to = {args->dout_row, heads, (unsigned)args->width};
    const elements in = (elements)args->in, weight = (elements)args->weight, dout = (elements)args->dout;
    tide_status status = TIDE_OK;
    if (args->dweight)
        status = TIDE_CUDA_LAUNCH("rms_norm_backward columns", (rms_backward_columns<T, WHOLE>),
                                  columns_blocks<T>(args->width), COLUMNS_THREADS, stream, in, dout, args->rstd,
                                  args->dweight, (unsigned)count, from, to);
    if (status != TIDE_OK || !args->din)
        return status;
    return TIDE_CUDA_LAUNCH("rms_norm_backward heads", (rms_backward_heads<T, WHOLE>), row_grid(count, lanes),
                            row_threads(lanes), stream, in, weight, dout, args->rstd, (typename T::stored *)args->din,
                            (unsigned)count, from, to, args->accumulate, lanes);
}

template <typename T> static tide_status backward(void *stream, const tide_rms_norm_backward_args *args)
{
    const bool whole = whole_heads<T>(args->in, args->in_row, args->width) &&
                       whole_heads<T>(args->dout, args->dout_row, args->width) &&
                       pack_whole_rows<T>(args->din, args->width) && pack_whole_rows<T>(args->weight, args->width);
    return whole ? backward_launch<T, true>(stream, args) : backward_launch<T, false>(stream, args);
}

tide_status tide_cuda_rms_norm_backward(void *stream, const void *arguments)
{
    const tide_rms_norm_backward_args *args = (const tide_rms_norm_backward_args *)arguments;
    if (args->rows * args->heads == 0)
        return TIDE_OK;
    assert(args->in && args->weight && args->dout && args->rstd && args->width > 0);
    assert(args->in_row >= args->heads * args->width && args->dout_row >= args->heads * args->width);
    assert(!args->accumulate || args->din != args->dout);
    assert(is_countable(args->rows, args->heads));
    return TIDE_CUDA_BY_DTYPE(args->dtype, backward, stream, args);
}
