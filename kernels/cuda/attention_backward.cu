/* Causal attention, backward, on the GPU: two or three kernels, no atomics, no T x T matrix.
 *
 *     P = 2^(S c - L / ln 2)      D = row sum of dO O      dP = dO V^T      dS = P (dP - D)
 *
 *     1. dQ, and D   a block owns queries and streams K and V      dQ = sum of dS K / sqrt(width)
 *     2. dK and dV   a block owns keys and streams Q and dO of     dV = sum of P^T dO
 *                    every query head of the group in turn         dK = sum of dS^T Q / sqrt(width)
 *     3. the sum     if several blocks divide a group, each writes its dK and dV to the workspace (fp32), and
 *                    this kernel adds them in the order of the heads
 *
 * Kernel 1 has its queries' dO in registers anyway, so that for D = dO . O it only reads O once; it writes D
 * to the workspace (fp32, one per query and head) for kernel 2. Kernel 2 computes transposed matrices, S^T =
 * K Q^T and dP^T = V dO^T: a warp's rows are keys, so that P^T and dS^T are in registers as the next
 * product's A, and no warp needs another's results.
 *
 * Both kernels compute S and dP: 7 products where 5 would suffice. The alternative is one kernel that owns
 * keys and adds its part of dQ to a sum in memory. It could use float atomics, as most implementations do,
 * but then the order of additions, and with it the bits, changes from run to run. Or the blocks of a head
 * could add in a fixed order, which keeps the bits, but then blocks wait for each other and read and write 4
 * bytes per query element for every key tile. 40% more products keep the bits and need no fp32 dQ in memory,
 * no waiting and no third pass that rounds dQ.
 *
 * Speed, as estimated before it was measured; an H200 reached 150 to 200 TFLOP/s (docs/measurements). A warp
 * owns 16 rows in both kernels, since dK, dV, K and V of 32 rows would fill the registers; each B fragment is
 * therefore loaded once for each mma, and shared memory is the bound: 128 cycles for 64 mma. On an H200 this
 * gives 330 TFLOP/s, counting five products; barriers, exponentials and the diagonal leave half of it. At
 * width 128 kernel 2 needs 192 registers for K, V, dK and dV, and 62 are left. These suffice on sm_90 because
 * the compiler keeps values in uniform registers if it can see that they are the same for a warp: the warp's
 * first key, its range of queries, the pointers to streamed rows. On sm_80 and sm_89, and in the kernels for
 * rows at any address, a few values that are used once per tile are in local memory. Reading V again would
 * cost more in shuffles than these cost in loads, and keeping K and V in shared memory as much in fragments.
 */
#include "kernels/cuda/attention.h"
#include "kernels/gpu_sizes.h"

template <typename T, int W> struct backward_plan {
    enum {
        wide = sizeof(typename T::stored) == 4,
        parts = W > 128 ? 2 : 1,
        columns = W / parts,
        own = 16 * TIDE_ATTENTION_WARPS,
        rows = tide_stream_rows<T, W>::rows,
        query_step =
            rows < 32 || (wide && W == 64) ? 16 : 32, /* columns of S computed at a time in kernel 1 */
        key_step = 16,                                /* columns of S^T computed at a time in kernel 2 */
        blocks = W == 64 && !wide ? 3 : 2, /* how many blocks a multiprocessor's registers must hold */
    };
};

#define LOG2_E 1.44269504088896340736f

template <int COLUMNS> static __device__ __forceinline__ void clear(float (&sums)[1][COLUMNS / 8][4])
{
#pragma unroll
    for (int i = 0; i < COLUMNS / 8; i++)
        sums[0][i][0] = sums[0][i][1] = sums[0][i][2] = sums[0][i][3] = 0.0f;
}

/* ---- 1. dQ and D ---- */

/* dO . O of a lane's two rows; every lane of the quad gets the whole sum. */
template <typename T, int W, typename Own>
static __device__ __forceinline__ void multiply_out(float (&means)[2], const Own &dout,
                                                    const tide_head_rows<const typename T::stored> &out,
                                                    int first_row)
{
    means[0] = means[1] = 0.0f;
#pragma unroll
    for (int chunk = 0; chunk < W / 32; chunk++) {
        tide_pair<T> a[2][4], b[2][4];
        dout.get(a, chunk);
        tide_fragments_load<T>(b, out, first_row, chunk);
#pragma unroll
        for (int i = 0; i < 8; i++) {
            const tide_pair<T> x = a[i / 4][i % 4], y = b[i / 4][i % 4];
            means[i % 2] = fmaf(x.second(), y.second(), fmaf(x.first(), y.first(), means[i % 2]));
        }
    }
#pragma unroll
    for (int half = 0; half < 2; half++) {
        means[half] += __shfl_xor_sync(0xffffffffu, means[half], 1);
        means[half] += __shfl_xor_sync(0xffffffffu, means[half], 2);
    }
}

/* Replace scores by dS. A lane's rows are queries; `start` holds the begins of their documents, `top` L / ln
 * 2. */
template <typename T, int STEP>
static __device__ __forceinline__ void
differentiate(float (&scores)[STEP / 8][4], const float (&dweights)[STEP / 8][4], const float (&top)[2],
              const float (&means)[2], const int (&start)[2], int first_query, int first_key,
              float scale_log2)
{
    const int query = first_query + tide_lane() / 4, key = first_key + tide_lane() % 4 * 2;
#pragma unroll
    for (int i = 0; i < STEP / 8; i++)
#pragma unroll
        for (int e = 0; e < 4; e++) {
            const int here = key + 8 * i + e % 2;
            const bool seen = here <= query + e / 2 * 8 && here >= start[e / 2];
            const float weight = seen ? tide_exp2<T>(fmaf(scores[i][e], scale_log2, -top[e / 2])) : 0.0f;
            scores[i][e] = weight * (dweights[i][e] - means[e / 2]);
        }
}

template <typename T, int W, bool VECTORS>
static __global__ void __launch_bounds__(TIDE_ATTENTION_THREADS, (backward_plan<T, W>::blocks))
    attention_dq_kernel(const typename T::stored *q, const typename T::stored *k, const typename T::stored *v,
                        const typename T::stored *out, const typename T::stored *dout, const float *logsumexp,
                        typename T::stored *dq, float *all_means, tide_attention_shape shape)
{
    typedef backward_plan<T, W> plan;
    if (!plan::wide)
        shape.vectors = VECTORS; /* from here on the compiler knows `vectors` as a constant */
    TIDE_CUDA_SHARED(typename T::stored, tile, (tide_stream<T, W, plan::rows>::elements));
    const tide_attention_place place = tide_attention_find(shape, plan::own, plan::parts);
    const int tiles = (shape.length + plan::own - 1) / plan::own;
    const int block_first = (tiles - 1 - place.order) * plan::own;
    const int block_end = min(block_first + plan::own, shape.length);
    const int first = block_first + tide_warp() * 16;
    const size_t statistics = (size_t)place.head * (size_t)shape.length;

    /* the heads of one group have successive numbers */
    const unsigned kv_head = place.head / (unsigned)shape.group;
    const tide_starts starts = tide_starts::of(shape, place.head / (unsigned)shape.heads);

    tide_own_rows<T, W, tide_own_kept<T, W>::kept> own_q[1], own_dout[1];
    float sums[1][plan::columns / 8][4], top[2], means[2];
    int start[2];
    own_q[0].take(tide_head_of(q, place.head, shape.heads, shape.q_row, shape), first);
    own_dout[0].take(tide_head_of(dout, place.head, shape.heads, shape.out_row, shape), first);
    clear<plan::columns>(sums);
    multiply_out<T, W>(means, own_dout[0], tide_head_of(out, place.head, shape.heads, shape.out_row, shape),
                       first);
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const int row = first + tide_lane() / 4 + 8 * half;
        top[half] = row < shape.length ? logsumexp[statistics + (size_t)row] * LOG2_E : INFINITY;
        start[half] = starts.at(row);
        if (row < shape.length && place.part == 0 && tide_lane() % 4 == 0)
            all_means[statistics + (size_t)row] = means[half];
    }

    const int warp_start = starts.at(first); /* no query of the warp attends to an earlier key */
    const auto use = [&](int keys, int values, int first_key, int) {
        if (first >= shape.length || first_key > first + 15 || first_key + plan::query_step <= warp_start)
            return;
        float scores[1][plan::query_step / 8][4], dweights[1][plan::query_step / 8][4];
        tide_multiply_rows<T, W, 1, plan::query_step>(scores, own_q, tile, keys);
        tide_multiply_rows<T, W, 1, plan::query_step>(dweights, own_dout, tile, values);
        differentiate<T, plan::query_step>(scores[0], dweights[0], top, means, start, first, first_key,
                                           shape.scale_log2);
        tide_multiply_weights<T, W, 1, plan::query_step, plan::columns>(
            sums, scores, tile, keys, place.part * (plan::columns / TIDE_GRANULE));
    };
    tide_stream_tiles<T, W, plan::rows, plan::query_step>(
        tile, tide_head_of(k, kv_head, shape.kv_heads, shape.q_row, shape),
        tide_head_of(v, kv_head, shape.kv_heads, shape.v_row, shape), starts.at(block_first) / plan::rows,
        (block_end + plan::rows - 1) / plan::rows, 1, use);

    const float factor[2] = {shape.scale, shape.scale};
    tide_sums_store<T, plan::columns>(sums[0], factor,
                                      tide_head_of(dq, place.head, shape.heads, shape.gradient_row, shape),
                                      first, place.part * plan::columns);
}

/* ---- 2. dK and dV ---- */

/* Load a statistic of the queries in a lane's columns; queries past the last get `beyond`. */
template <int STEP>
static __device__ __forceinline__ void load_statistics(float (&values)[STEP / 8][2], const float *statistics,
                                                       int first_query, int length, float beyond)
{
    const int query = first_query + tide_lane() % 4 * 2;
#pragma unroll
    for (int i = 0; i < STEP / 8; i++)
#pragma unroll
        for (int e = 0; e < 2; e++)
            values[i][e] = 8 * i + e < length - query ? statistics[query + 8 * i + e] : beyond;
}

/* Replace scores by weights. A lane's rows are keys. */
template <typename T, int STEP>
static __device__ __forceinline__ void weigh(float (&scores)[STEP / 8][4],
                                             const float (&logsumexp)[STEP / 8][2], int first_key,
                                             int first_query, const tide_starts &starts, float scale_log2)
{
    const int key = first_key + tide_lane() / 4, query = first_query + tide_lane() % 4 * 2;
#pragma unroll
    for (int i = 0; i < STEP / 8; i++)
#pragma unroll
        for (int e = 0; e < 4; e++) {
            const bool past = key - query <= 8 * i + e % 2 - e / 2 * 8;
            const float weight = tide_exp2<T>(fmaf(scores[i][e], scale_log2, -LOG2_E * logsumexp[i][e % 2]));
            scores[i][e] = past ? weight : 0.0f;
        }
    if (first_key >= starts.at(first_query + STEP - 1))
        return;
#pragma unroll
    for (int i = 0; i < STEP / 8; i++)
#pragma unroll
        for (int e = 0; e < 2; e++) {
            const int start = starts.at(query + 8 * i + e);
            scores[i][e] = key >= start ? scores[i][e] : 0.0f;
            scores[i][e + 2] = key + 8 >= start ? scores[i][e + 2] : 0.0f;
        }
}

template <typename T, int W, bool VECTORS>
static __global__ void __launch_bounds__(TIDE_ATTENTION_THREADS, (backward_plan<T, W>::blocks))
    attention_dkv_kernel(const typename T::stored *q, const typename T::stored *k,
                         const typename T::stored *v, const typename T::stored *dout, const float *logsumexp,
                         const float *all_means, typename T::stored *dk, typename T::stored *dv, float *parts,
                         tide_attention_shape shape)
{
    typedef backward_plan<T, W> plan;
    if (!plan::wide)
        shape.vectors = VECTORS; /* from here on the compiler knows `vectors` as a constant */
    TIDE_CUDA_SHARED(typename T::stored, tile, (tide_stream<T, W, plan::rows>::elements));
    const tide_attention_place place = tide_attention_find(shape, plan::own, plan::parts * shape.splits);
    const int part = place.part % plan::parts, split = place.part / plan::parts;
    /* the query heads of the group that this block sums over */
    const int begin_member = split * shape.group / shape.splits;
    const int end_member = (split + 1) * shape.group / shape.splits;
    /* most queries attend to the first keys, so their blocks begin first */
    const int block_first = place.order * plan::own;
    const int first = block_first + tide_warp() * 16;
    const tide_starts starts = tide_starts::of(shape, place.head / (unsigned)shape.kv_heads);
    const int queries_end = starts.end_of(block_first + plan::own - 1, block_first + plan::own);
    /* how many queries from `first` on attend to a key of the warp */
    const int seeing = first < shape.length ? starts.end_of(first + 15, first + 16) - first : 0;

    tide_own_rows<T, W, tide_own_kept<T, W>::kept> own_k[1], own_v[1];
    float key_sums[1][plan::columns / 8][4], value_sums[1][plan::columns / 8][4];
    own_k[0].take(tide_head_of(k, place.head, shape.kv_heads, shape.q_row, shape), first);
    own_v[0].take(tide_head_of(v, place.head, shape.kv_heads, shape.v_row, shape), first);
    clear<plan::columns>(key_sums);
    clear<plan::columns>(value_sums);

    const unsigned first_head = place.head * (unsigned)shape.group + (unsigned)begin_member;
    const auto use = [&](int queries, int streamed_dout, int first_query, int member) {
        if ((unsigned)(first_query - first) >= (unsigned)seeing)
            return;
        const int granule = part * (plan::columns / TIDE_GRANULE);
        const size_t statistics = (size_t)(first_head + (unsigned)member) * (size_t)shape.length;
        float weights[1][plan::key_step / 8][4], dscores[1][plan::key_step / 8][4];
        /* L and D of the queries; the loads run beside the products */
        float sums[plan::key_step / 8][2], means[plan::key_step / 8][2];
        load_statistics<plan::key_step>(sums, logsumexp + statistics, first_query, shape.length, INFINITY);
        load_statistics<plan::key_step>(means, all_means + statistics, first_query, shape.length, 0.0f);
        tide_multiply_rows<T, W, 1, plan::key_step>(weights, own_k, tile, queries);
        tide_multiply_rows<T, W, 1, plan::key_step>(dscores, own_v, tile, streamed_dout);
        weigh<T, plan::key_step>(weights[0], sums, first, first_query, starts, shape.scale_log2);
        tide_multiply_weights<T, W, 1, plan::key_step, plan::columns>(value_sums, weights, tile,
                                                                      streamed_dout, granule);
#pragma unroll
        for (int i = 0; i < plan::key_step / 8; i++)
#pragma unroll
            for (int e = 0; e < 4; e++)
                dscores[0][i][e] = weights[0][i][e] * (dscores[0][i][e] - means[i][e % 2]);
        tide_multiply_weights<T, W, 1, plan::key_step, plan::columns>(key_sums, dscores, tile, queries,
                                                                      granule);
    };
    tide_stream_tiles<T, W, plan::rows, plan::key_step>(
        tile, tide_head_of(q, first_head, shape.heads, shape.q_row, shape),
        tide_head_of(dout, first_head, shape.heads, shape.out_row, shape), block_first / plan::rows,
        (queries_end + plan::rows - 1) / plan::rows, end_member - begin_member, use);

    const float scale[2] = {shape.scale, shape.scale}, one[2] = {1.0f, 1.0f};
    const int column = part * plan::columns;
    if (shape.splits > 1) {
        const size_t row = (size_t)(shape.kv_heads * shape.width);
        const size_t elements = shape.sequence_heads * (size_t)(shape.length * shape.width);
        float *const dk_part = parts + 2 * (size_t)split * elements, *const dv_part = dk_part + elements;
        tide_sums_store<tide_cuda_fp32, plan::columns>(
            key_sums[0], scale, tide_head_of(dk_part, place.head, shape.kv_heads, row, shape), first, column);
        tide_sums_store<tide_cuda_fp32, plan::columns>(
            value_sums[0], one, tide_head_of(dv_part, place.head, shape.kv_heads, row, shape), first, column);
        return;
    }
    tide_sums_store<T, plan::columns>(key_sums[0], scale,
                                      tide_head_of(dk, place.head, shape.kv_heads, shape.gradient_row, shape),
                                      first, column);
    tide_sums_store<T, plan::columns>(value_sums[0], one,
                                      tide_head_of(dv, place.head, shape.kv_heads, shape.gradient_row, shape),
                                      first, column);
}

/* ---- 3. the sum of the splits ---- */

/* Add the parts of dK and dV of one token, in one block. */
template <typename T>
static __global__ void __launch_bounds__(TIDE_ATTENTION_THREADS)
    attention_add_splits_kernel(const float *parts, typename T::stored *dk, typename T::stored *dv,
                                int splits, unsigned columns, size_t gradient_row)
{
    const size_t elements = (size_t)gridDim.x * columns, token = blockIdx.x;
    for (unsigned column = threadIdx.x; column < columns; column += TIDE_ATTENTION_THREADS) {
        const float *part = parts + token * columns + column;
        float key_sum = part[0], value_sum = part[elements];
        for (int split = 1; split < splits; split++) {
            part += 2 * elements;
            key_sum += part[0];
            value_sum += part[elements];
        }
        dk[token * gradient_row + column] = T::store(key_sum);
        dv[token * gradient_row + column] = T::store(value_sum);
    }
}

/* ---- launch ---- */

template <typename T, int W>
static tide_status differentiate_padded(void *stream, const tide_attention_backward_args *args)
{
    typedef backward_plan<T, W> plan;
    typedef typename T::stored stored;
    const stored *q = (const stored *)args->q, *k = (const stored *)args->k, *v = (const stored *)args->v;
    const stored *out = (const stored *)args->out, *dout = (const stored *)args->dout;
    const uintptr_t read = (uintptr_t)q | (uintptr_t)k | (uintptr_t)v | (uintptr_t)out | (uintptr_t)dout;
    const uintptr_t written = (uintptr_t)args->dq | (uintptr_t)args->dk | (uintptr_t)args->dv;
    tide_attention_shape shape = tide_attention_shape_of<T>(args, args->dqkv_row, read | written);
    unsigned blocks = 0;
    tide_status status = tide_attention_blocks<T>(&shape, args->batch, true, plan::own, plan::parts, &blocks);
    if (status != TIDE_OK || blocks == 0)
        return status;
    float *const means = (float *)args->workspace;
    float *const parts = means + tide_gpu_attention_means_bytes(args) / sizeof(float);
    assert(args->workspace_bytes >= tide_cuda_attention_backward_workspace_bytes(args));
    const auto dq = shape.vectors ? attention_dq_kernel<T, W, !plan::wide> : attention_dq_kernel<T, W, false>;
    const auto dkv =
        shape.vectors ? attention_dkv_kernel<T, W, !plan::wide> : attention_dkv_kernel<T, W, false>;
    status = TIDE_CUDA_LAUNCH("attention backward (dq)", (dq), blocks, TIDE_ATTENTION_THREADS, stream, q, k,
                              v, out, dout, args->logsumexp, (stored *)args->dq, means, shape);
    shape.splits = (int)tide_gpu_attention_splits(args);
    if (status == TIDE_OK)
        status = tide_attention_blocks<T>(&shape, args->batch, false, plan::own, plan::parts * shape.splits,
                                          &blocks);
    if (status != TIDE_OK)
        return status;
    status = TIDE_CUDA_LAUNCH("attention backward (dk, dv)", (dkv), blocks, TIDE_ATTENTION_THREADS, stream, q,
                              k, v, dout, args->logsumexp, (const float *)means, (stored *)args->dk,
                              (stored *)args->dv, parts, shape);
    if (status != TIDE_OK || shape.splits == 1)
        return status;
    return TIDE_CUDA_LAUNCH("attention backward (splits)", (attention_add_splits_kernel<T>),
                            (unsigned)(args->batch * args->sequence_length), TIDE_ATTENTION_THREADS, stream,
                            (const float *)parts, (stored *)args->dk, (stored *)args->dv, shape.splits,
                            (unsigned)(args->kv_heads * args->head_width), shape.gradient_row);
}

template <typename T>
static tide_status differentiate_attention(void *stream, const tide_attention_backward_args *args)
{
    return args->head_width <= 64    ? differentiate_padded<T, 64>(stream, args)
           : args->head_width <= 128 ? differentiate_padded<T, 128>(stream, args)
                                     : differentiate_padded<T, 256>(stream, args);
}

tide_status tide_cuda_attention_backward(void *stream, const void *arguments)
{
    const tide_attention_backward_args *args = (const tide_attention_backward_args *)arguments;
    return TIDE_CUDA_BY_DTYPE(args->dtype, differentiate_attention, stream, args);
}

size_t tide_cuda_attention_backward_workspace_bytes(const tide_attention_backward_args *shape)
{
    return tide_gpu_attention_backward_bytes(shape);
}
