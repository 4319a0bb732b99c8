/* Rotary positions, in place: pairs of elements from a head's two halves are rotated by the position's
 * angles.
 *
 * A thread takes a pack of a head's first half and the pack half a head further on: it reads both before it
 * writes them, and no other thread accesses them. The kernel moves 4 bytes per bf16 element and is bound by
 * memory: the table's fp32 row is longer than a head, but all heads of a row share it, so that it comes from
 * the first-level cache. If the halves are not whole packs at multiples of 16 bytes, threads access single
 * elements; no element depends on another pair, so the results are the same.
 */
#include "kernels/cuda/pack.h"
#include "kernels/cuda/share.h"

template <typename T, bool WHOLE>
static __global__ void __launch_bounds__(SHARE_THREADS)
    turn_heads(typename T::stored *data, const float *__restrict__ table, const int32_t *__restrict__ starts,
               row_share share, size_t row_elements, size_t sequence_length, unsigned half, float direction)
{
    enum { N = T::per_16_bytes };
    const unsigned packs = pack_count<T>(half); /* packs of half a head */
    row_share_each(share, [&](size_t row, unsigned unit) {
        const unsigned head = unit / packs, begin = unit % packs * N;
        typename T::stored *const first = data + row * row_elements + head * 2 * (size_t)half;
        typename T::stored *const second = first + half;
        const size_t position = row % sequence_length - (starts ? (size_t)starts[row] : 0);
        const float *const cosines = table + position * 2 * half, *const sines = cosines + half;
        tide_cuda_vector<T> x = pack_load<T, WHOLE>(first, begin, half),
                            y = pack_load<T, WHOLE>(second, begin, half);
#pragma unroll
        for (unsigned part = 0; part < N; part += tide_cuda_fp32::per_16_bytes) {
            const tide_cuda_vector<tide_cuda_fp32> c =
                pack_load<tide_cuda_fp32, WHOLE>(cosines, begin + part, half);
            const tide_cuda_vector<tide_cuda_fp32> s =
                pack_load<tide_cuda_fp32, WHOLE>(sines, begin + part, half);
#pragma unroll
            for (unsigned e = 0; e < tide_cuda_fp32::per_16_bytes; e++) {
                const float a = T::load(x.element[part + e]), b = T::load(y.element[part + e]);
                const float sine = direction * s.element[e];
                x.element[part + e] = T::store(a * c.element[e] - b * sine);
                y.element[part + e] = T::store(b * c.element[e] + a * sine);
            }
        }
        pack_store<T, WHOLE>(first, begin, half, x);
        pack_store<T, WHOLE>(second, begin, half, y);
    });
}

template <typename T, bool WHOLE> static tide_status turn_launch(void *stream, const tide_rope_args *args)
{
    const size_t half = args->head_width / 2;
    const row_share share = row_share_of(args->rows, args->heads * pack_count<T>(half));
    return TIDE_CUDA_LAUNCH("rope", (turn_heads<T, WHOLE>), row_share_blocks(share), SHARE_THREADS, stream,
                            (typename T::stored *)args->data, args->table, args->starts, share, args->row,
                            args->sequence_length, (unsigned)half, args->backward ? -1.0f : 1.0f);
}

template <typename T> static tide_status turn(void *stream, const tide_rope_args *args)
{
    const bool whole = pack_whole_rows<T>(args->data, args->head_width / 2) &&
                       args->row % T::per_16_bytes == 0 && (uintptr_t)args->table % 16 == 0;
    return whole ? turn_launch<T, true>(stream, args) : turn_launch<T, false>(stream, args);
}

tide_status tide_cuda_rope(void *stream, const void *arguments)
{
    const tide_rope_args *args = (const tide_rope_args *)arguments;
    if (args->rows * args->heads * args->head_width == 0)
        return TIDE_OK;
    assert(args->data && args->table && args->sequence_length > 0 && args->head_width % 2 == 0);
    assert(args->row >= args->heads * args->head_width);
    return TIDE_CUDA_BY_DTYPE(args->dtype, turn, stream, args);
}
