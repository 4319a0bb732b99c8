/* Attention of a few new tokens to all tokens before them, whose keys and values are in a cache, on the GPU.
 *
 * A block computes one query: one head of one token. Its warps take the keys in turn, warp w the positions w,
 * w + WARPS, ..., and each keeps a running maximum, sum and output in registers (online softmax); lane l has
 * the elements l, l + 32, ... of a head. At the end the block combines its warps' results in the order of the
 * warps. So a query's bits depend on its position alone.
 *
 * The block of a group's first query head also copies the token's key and value to the cache. No block of the
 * same launch reads them there.
 *
 * The kernel is simple rather than fast, and no GPU has run it yet. A model's new token has one block for
 * each head (32 in llama-3.1-8b), which leave most of an H100 idle, and each reads two bytes a lane at a
 * time; the cache of 4096 tokens is 512 MiB there, beside 15 GiB of params that the token reads too. */
#include "kernels/cuda/reduce.h"

enum { CACHED_WARPS = 4, CACHED_THREADS = CACHED_WARPS * WARP_LANES, CACHED_WIDTH_MAX = 256 };

/* Sizes of a launch, in elements. */
struct cached_shape {
    size_t first, qk_row, v_row, kv_width;
    unsigned heads, group, width;
    float scale;
};

/* The element at which a head of keys or of values begins: in the cache, or in the model's rows. */
template <typename E>
static __device__ __forceinline__ const E *cached_row(const E *cache, const E *made, size_t made_row,
                                                      size_t position, const cached_shape &shape,
                                                      size_t column)
{
    return (position < shape.first ? cache + position * shape.kv_width
                                   : made + (position - shape.first) * made_row) +
           column;
}

/* e^x, but 1 for x = NaN that comes from two maxima of minus infinity. */
static __device__ __forceinline__ float cached_shrink(float old_maximum, float new_maximum)
{
    return old_maximum == new_maximum ? 1.0f : expf(old_maximum - new_maximum);
}

template <typename T, int PARTS>
static __global__ void __launch_bounds__(CACHED_THREADS)
    attend_cached(const typename T::stored *q, const typename T::stored *k, const typename T::stored *v,
                  typename T::stored *keys, typename T::stored *values, typename T::stored *out,
                  cached_shape shape)
{
    typedef typename T::stored stored;
    TIDE_CUDA_SHARED(float, outs, (CACHED_WARPS * PARTS * WARP_LANES));
    TIDE_CUDA_SHARED(float, maxima, CACHED_WARPS);
    TIDE_CUDA_SHARED(float, sums, CACHED_WARPS);
    const unsigned warp = threadIdx.x / WARP_LANES, lane = threadIdx.x % WARP_LANES;
    const unsigned head = blockIdx.x % shape.heads;
    const size_t row = blockIdx.x / shape.heads, end = shape.first + row + 1;
    const size_t column = (size_t)(head / shape.group) * shape.width;
    if (head % shape.group == 0)
        for (unsigned i = threadIdx.x; i < shape.width; i += CACHED_THREADS) {
            keys[(end - 1) * shape.kv_width + column + i] = k[row * shape.qk_row + column + i];
            values[(end - 1) * shape.kv_width + column + i] = v[row * shape.v_row + column + i];
        }

    float query[PARTS], sum_out[PARTS], maximum = -INFINITY, sum = 0.0f;
    const stored *const own = q + row * shape.qk_row + (size_t)head * shape.width;
#pragma unroll
    for (int part = 0; part < PARTS; part++) {
        const unsigned i = lane + (unsigned)part * WARP_LANES;
        query[part] = i < shape.width ? T::load(own[i]) * shape.scale : 0.0f;
        sum_out[part] = 0.0f;
    }
    for (size_t position = warp; position < end; position += CACHED_WARPS) {
        const stored *const key = cached_row<stored>(keys, k, shape.qk_row, position, shape, column);
        const stored *const value = cached_row<stored>(values, v, shape.v_row, position, shape, column);
        float dot = 0.0f;
#pragma unroll
        for (int part = 0; part < PARTS; part++) {
            const unsigned i = lane + (unsigned)part * WARP_LANES;
            dot = fmaf(query[part], i < shape.width ? T::load(key[i]) : 0.0f, dot);
        }
        const float score = warp_sum(dot), most = fmaxf(maximum, score);
        const float shrink = cached_shrink(maximum, most), weight = cached_shrink(score, most);
        maximum = most;
        sum = fmaf(sum, shrink, weight);
#pragma unroll
        for (int part = 0; part < PARTS; part++) {
            const unsigned i = lane + (unsigned)part * WARP_LANES;
            sum_out[part] = fmaf(sum_out[part], shrink, i < shape.width ? weight * T::load(value[i]) : 0.0f);
        }
    }

#pragma unroll
    for (int part = 0; part < PARTS; part++)
        outs[(warp * PARTS + (unsigned)part) * WARP_LANES + lane] = sum_out[part];
    if (lane == 0) {
        maxima[warp] = maximum;
        sums[warp] = sum;
    }
    TIDE_CUDA_BARRIER();
    float most = maxima[0], whole = 0.0f;
    for (unsigned w = 1; w < CACHED_WARPS; w++)
        most = fmaxf(most, maxima[w]);
    for (unsigned w = 0; w < CACHED_WARPS; w++)
        whole = fmaf(sums[w], cached_shrink(maxima[w], most), whole);
    for (unsigned i = threadIdx.x; i < shape.width; i += CACHED_THREADS) {
        float total = 0.0f;
        for (unsigned w = 0; w < CACHED_WARPS; w++)
            total = fmaf(outs[w * PARTS * WARP_LANES + i], cached_shrink(maxima[w], most), total);
        out[(row * shape.heads + head) * shape.width + i] = T::store(total / whole);
    }
}

template <typename T, int PARTS>
static tide_status attend_cached_launch(void *stream, const tide_attention_cached_args *args)
{
    typedef typename T::stored stored;
    const cached_shape shape = {args->first,
                                args->qk_row,
                                args->v_row,
                                args->kv_heads * args->head_width,
                                (unsigned)args->heads,
                                (unsigned)(args->heads / args->kv_heads),
                                (unsigned)args->head_width,
                                1.0f / sqrtf((float)args->head_width)};
    return TIDE_CUDA_LAUNCH("attention to a cache", (attend_cached<T, PARTS>),
                            (unsigned)(args->rows * args->heads), CACHED_THREADS, stream,
                            (const stored *)args->q, (const stored *)args->k, (const stored *)args->v,
                            (stored *)args->keys, (stored *)args->values, (stored *)args->out, shape);
}

template <typename T>
static tide_status attend_cached_wide(void *stream, const tide_attention_cached_args *args)
{
    return args->head_width <= 64    ? attend_cached_launch<T, 2>(stream, args)
           : args->head_width <= 128 ? attend_cached_launch<T, 4>(stream, args)
                                     : attend_cached_launch<T, CACHED_WIDTH_MAX / WARP_LANES>(stream, args);
}

tide_status tide_cuda_attention_cached(void *stream, const void *arguments)
{
    const tide_attention_cached_args *args = (const tide_attention_cached_args *)arguments;
    if (args->rows * args->heads == 0)
        return TIDE_OK;
    assert(args->q && args->k && args->v && args->keys && args->values && args->out);
    assert(args->kv_heads > 0 && args->heads % args->kv_heads == 0);
    if (args->head_width > CACHED_WIDTH_MAX)
        return tide_fail(TIDE_ERROR_ARGUMENT, "attention to a cache: heads of width %zu; on CUDA at most %d",
                         args->head_width, (int)CACHED_WIDTH_MAX);
    if (args->rows * args->heads > 0x7fffffffu)
        return tide_fail(TIDE_ERROR_ARGUMENT,
                         "attention to a cache: %zu rows x %zu heads are more than a grid", args->rows,
                         args->heads);
    return TIDE_CUDA_BY_DTYPE(args->dtype, attend_cached_wide, stream, args);
}

size_t tide_cuda_attention_cached_workspace_bytes(const tide_attention_cached_args *shape)
{
    (void)shape;
    return 0;
}
