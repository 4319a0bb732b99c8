/* Causal attention, forward, on the GPU: one pass over the keys without a T x T matrix.
 *
 * A warp owns 16 x M queries. It goes through tiles of keys (attention.h) and computes for each
 *
 *     S = Q K^T   m' = the new maximum   w = 2^((m - m') c)   P = 2^((S - m') c)
 *     l = l w + sum of P   O = O w + P V
 *
 * with c = 1 / (sqrt(width) ln 2), so that q need not be scaled in memory and an exponential takes one fused
 * multiply-add and one more instruction. O, l and m are fp32 in registers; P is rounded to the element type
 * to become the second product's A. At the end the warp writes O / l, and m / sqrt(width) + ln l for
 * backward.
 *
 * A warp skips the tiles whose keys all come after its queries or before their documents, and masks only
 * tiles on the diagonal or in which a document begins. If a query's document begins behind the tile, the
 * query's maximum so far is minus infinity: the code subtracts 0 from its scores instead, so that its weights
 * are 0. Every query attends at least to itself (unless a product overflows: then the row is NaN, as on the
 * CPU).
 *
 * Speed, as estimated before it was measured; an H200 reached 190 TFLOP/s at T = 1024 and width 64, 274 at T
 * = 4096 and width 128 (docs/measurements). On an H200 mma.sync reaches some 60% of wgmma's rate, about 500
 * TFLOP/s in bf16. At width 64 the exponentials cost as many cycles as the products (a tile of 64 x 64 has
 * 4096 exponentials at 16 per cycle and processor, and 256 mma at one), and the two overlap only as far as
 * warps drift apart; each B fragment is loaded once for two mma (M = 2: 64 cycles of shared memory for 64 of
 * mma). This gives 200 to 250 TFLOP/s at T of some thousands; at T = 1024 a fifth of all products falls on
 * tiles of the diagonal. At width 128, M is 1 (M = 2 would need 128 registers for O alone), and shared memory
 * is the bound: 128 cycles for 64 of mma, near 250 TFLOP/s. wgmma with TMA would be twice as fast on this one
 * architecture, but needs other fragments and other tiles, and a CPU could not check the code; attention is
 * an eighth of a gpt2's step.
 */
#include "kernels/cuda/attention.h"

template <typename T, int W> struct forward_plan {
    enum {
        wide = sizeof(typename T::stored) == 4,
        parts = W > 128 ? 2 : 1,
        columns = W / parts,
        m = W == 64 && !wide ? 2 : 1,
        own = 16 * m * TIDE_ATTENTION_WARPS,
        rows = tide_stream_rows<T, W>::rows, /* keys of a tile */
        step = rows < 32 ? rows : 32,        /* keys whose scores are in registers at a time */
    };
};

/* A warp's state of online softmax, for each of a lane's two rows. A sum covers only the lane's columns of
 * the row. */
template <int M, int COLUMNS> struct forward_state {
    float out[M][COLUMNS / 8][4];
    float maximum[M][2], sum[M][2];
};

/* Set the scores of keys later than their query, or of an earlier document, to minus infinity. */
template <int ROWS>
static __device__ __forceinline__ void mask_unseen(float (&scores)[ROWS / 8][4], int first_query,
                                                   int first_key, const tide_starts &starts)
{
    const int query = first_query + tide_lane() / 4, key = first_key + tide_lane() % 4 * 2;
    const int start[2] = {starts.at(query), starts.at(query + 8)};
#pragma unroll
    for (int i = 0; i < ROWS / 8; i++)
#pragma unroll
        for (int e = 0; e < 4; e++) {
            const int here = key + 8 * i + e % 2;
            if (here > query + e / 2 * 8 || here < start[e / 2])
                scores[i][e] = -INFINITY;
        }
}

/* Online softmax of 16 rows over one tile: replaces scores by weights and scales the sums so far down to the
 * new maximum. If no row of the warp has a new maximum, every factor is 1, and `out` stays as it is. */
template <typename T, int ROWS, int COLUMNS>
static __device__ __forceinline__ void online_softmax(float (&scores)[ROWS / 8][4],
                                                      float (&out)[COLUMNS / 8][4], float (&maximum)[2],
                                                      float (&sum)[2], float scale_log2)
{
    float shrink[2];
#pragma unroll
    for (int half = 0; half < 2; half++) {
        float most = maximum[half];
#pragma unroll
        for (int i = 0; i < ROWS / 8; i++)
            most = fmaxf(most, fmaxf(scores[i][2 * half], scores[i][2 * half + 1]));
        most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, 1));
        most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, 2));
        const float seen = most == -INFINITY ? 0.0f : most; /* -INFINITY: the row has had no key yet */
        shrink[half] = tide_exp2<T>((maximum[half] - seen) * scale_log2);
        const float top = seen * scale_log2;
        float added = 0.0f;
#pragma unroll
        for (int i = 0; i < ROWS / 8; i++)
#pragma unroll
            for (int e = 2 * half; e < 2 * half + 2; e++) {
                scores[i][e] = tide_exp2<T>(fmaf(scores[i][e], scale_log2, -top));
                added += scores[i][e];
            }
        maximum[half] = most;
        sum[half] = fmaf(sum[half], shrink[half], added);
    }
    if (!__any_sync(0xffffffffu, shrink[0] != 1.0f || shrink[1] != 1.0f))
        return;
#pragma unroll
    for (int i = 0; i < COLUMNS / 8; i++)
#pragma unroll
        for (int e = 0; e < 4; e++)
            out[i][e] *= shrink[e / 2];
}

/* Write out = O / l and logsumexp of 16 rows. */
template <typename T, int COLUMNS>
static __device__ __forceinline__ void finish(const float (&out)[COLUMNS / 8][4], const float (&maximum)[2],
                                              const float (&sum)[2], const tide_attention_shape &shape,
                                              const tide_head_rows<typename T::stored> &rows, int first_row,
                                              int part, float *logsumexp)
{
    float factor[2];
#pragma unroll
    for (int half = 0; half < 2; half++) {
        float whole = sum[half];
        whole += __shfl_xor_sync(0xffffffffu, whole, 1);
        whole += __shfl_xor_sync(0xffffffffu, whole, 2);
        factor[half] = 1.0f / whole;
        const int row = first_row + tide_lane() / 4 + 8 * half;
        if (row < shape.length && part == 0 && tide_lane() % 4 == 0)
            logsumexp[row] = fmaf(maximum[half], shape.scale, logf(whole));
    }
    tide_sums_store<T, COLUMNS>(out, factor, rows, first_row, part * COLUMNS);
}

template <typename T, int W, bool VECTORS>
static __global__ void __launch_bounds__(TIDE_ATTENTION_THREADS, 2)
    attention_kernel(const typename T::stored *q, const typename T::stored *k, const typename T::stored *v,
                     typename T::stored *out, float *logsumexp, tide_attention_shape shape)
{
    typedef forward_plan<T, W> plan;
    if (!plan::wide)
        shape.vectors = VECTORS; /* from here on the compiler knows `vectors` as a constant */
    TIDE_CUDA_SHARED(typename T::stored, tile, (tide_stream<T, W, plan::rows>::elements));
    const tide_attention_place place = tide_attention_find(shape, plan::own, plan::parts);
    const int tiles = (shape.length + plan::own - 1) / plan::own;
    /* the last queries attend to the most keys, so their blocks begin first */
    const int block_first = (tiles - 1 - place.order) * plan::own;
    const int block_end = min(block_first + plan::own, shape.length);
    const int warp_first = block_first + tide_warp() * 16 * plan::m;
    const int warp_last = warp_first + 16 * plan::m - 1;
    /* the heads of one group have successive numbers */
    const unsigned kv_head = place.head / (unsigned)shape.group;
    const tide_starts starts = tide_starts::of(shape, place.head / (unsigned)shape.heads);
    const int warp_start = starts.at(warp_first); /* no query of the warp attends to an earlier key */

    tide_own_rows<T, W, tide_own_kept<T, W>::kept> own[plan::m];
    forward_state<plan::m, plan::columns> state;
#pragma unroll
    for (int m = 0; m < plan::m; m++) {
        own[m].take(tide_head_of(q, place.head, shape.heads, shape.q_row, shape), warp_first + 16 * m);
        state.maximum[m][0] = state.maximum[m][1] = -INFINITY;
        state.sum[m][0] = state.sum[m][1] = 0.0f;
#pragma unroll
        for (int i = 0; i < plan::columns / 8; i++)
            state.out[m][i][0] = state.out[m][i][1] = state.out[m][i][2] = state.out[m][i][3] = 0.0f;
    }

    const auto use = [&](int keys, int values, int first_key, int) {
        if (warp_first >= shape.length || first_key > warp_last || first_key + plan::step <= warp_start)
            return;
        float scores[plan::m][plan::step / 8][4];
        tide_multiply_rows<T, W, plan::m, plan::step>(scores, own, tile, keys);
#pragma unroll
        for (int m = 0; m < plan::m; m++) {
            const int first = warp_first + 16 * m;
            if (first_key + plan::step - 1 > first || first_key < starts.at(first + 15))
                mask_unseen<plan::step>(scores[m], first, first_key, starts);
            online_softmax<T, plan::step, plan::columns>(scores[m], state.out[m], state.maximum[m],
                                                         state.sum[m], shape.scale_log2);
        }
        tide_multiply_weights<T, W, plan::m, plan::step, plan::columns>(
            state.out, scores, tile, values, place.part * (plan::columns / TIDE_GRANULE));
    };
    tide_stream_tiles<T, W, plan::rows, plan::step>(
        tile, tide_head_of(k, kv_head, shape.kv_heads, shape.q_row, shape),
        tide_head_of(v, kv_head, shape.kv_heads, shape.v_row, shape), starts.at(block_first) / plan::rows,
        (block_end + plan::rows - 1) / plan::rows, 1, use);

    const tide_head_rows<typename T::stored> out_rows =
        tide_head_of(out, place.head, shape.heads, shape.out_row, shape);
#pragma unroll
    for (int m = 0; m < plan::m; m++)
        finish<T, plan::columns>(state.out[m], state.maximum[m], state.sum[m], shape, out_rows,
                                 warp_first + 16 * m, place.part,
                                 logsumexp + (size_t)place.head * (size_t)shape.length);
}

template <typename T, int W> static tide_status attend_padded(void *stream, const tide_attention_args *args)
{
    typedef forward_plan<T, W> plan;
    typedef const typename T::stored *elements;
    const uintptr_t addresses =
        (uintptr_t)args->q | (uintptr_t)args->k | (uintptr_t)args->v | (uintptr_t)args->out;
    tide_attention_shape shape = tide_attention_shape_of<T>(args, 0, addresses);
    unsigned blocks = 0;
    const tide_status status =
        tide_attention_blocks<T>(&shape, args->batch, true, plan::own, plan::parts, &blocks);
    if (status != TIDE_OK || blocks == 0)
        return status;
    const auto kernel = shape.vectors ? attention_kernel<T, W, !plan::wide> : attention_kernel<T, W, false>;
    return TIDE_CUDA_LAUNCH("attention", (kernel), blocks, TIDE_ATTENTION_THREADS, stream, (elements)args->q,
                            (elements)args->k, (elements)args->v, (typename T::stored *)args->out,
                            args->logsumexp, shape);
}

template <typename T> static tide_status attend(void *stream, const tide_attention_args *args)
{
    return args->head_width <= 64    ? attend_padded<T, 64>(stream, args)
           : args->head_width <= 128 ? attend_padded<T, 128>(stream, args)
                                     : attend_padded<T, 256>(stream, args);
}

tide_status tide_cuda_attention(void *stream, const void *arguments)
{
    const tide_attention_args *args = (const tide_attention_args *)arguments;
    return TIDE_CUDA_BY_DTYPE(args->dtype, attend, stream, args);
}

size_t tide_cuda_attention_workspace_bytes(const tide_attention_args *shape)
{
    (void)shape;
    return 0;
}
