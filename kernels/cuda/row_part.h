/* A row in the registers of a group of lanes, for norms.
 *
 * A row belongs to a group of 32 to 512 lanes, as few as can hold it with HELD packs each: 32 for 768 bf16 numbers
 * (three packs of four are used; four rows share a block then), 256 for 8192. So a row is read from memory once,
 * however often it is gone through. A row longer than 512 lanes hold (16384 bf16 numbers) is read anew each time, by the
 * kernels that move single elements.
 *
 * A head is a short row: it may do with a part of a warp (head_lanes), a power of two; HELD_HALF packs a lane hold it.
 *
 * Sums down the columns, for gradients of params, are made on the way (row_sums): a group goes through rows that stand a
 * grid apart and keeps a sum for each element that it holds. The sums of a warp or, where a row takes several, of a
 * block are one row of partial sums in the workspace; how many rows these are (tide_gpu_norm_parts), and so which rows
 * are added to which, depends on the shape only. bias_backward adds the partial sums.
 */
#ifndef TIDEPOOL_KERNELS_CUDA_ROW_PART_H
#define TIDEPOOL_KERNELS_CUDA_ROW_PART_H

#include "kernels/cuda/pack.h"
#include "kernels/cuda/reduce.h"
#include "kernels/gpu_sizes.h"

enum {
    HELD = 4,      /* packs a lane keeps */
    HELD_HALF = 2, /* of a head in less than a warp, or beside sums for two gradients */
    ROW_LANES_MAX = 512,
    ROW_WARPS_MAX = ROW_LANES_MAX / WARP_LANES,
    NARROW_THREADS = 128, /* of a block of rows of one warp or less */
};

/* Lanes for a row: whole warps, enough to hold it where that many there are. */
static inline unsigned row_lanes(unsigned packs, unsigned held = HELD)
{
    const unsigned lanes = (packs + held * WARP_LANES - 1) / (held * WARP_LANES) * WARP_LANES;
    if (lanes > ROW_LANES_MAX)
        return ROW_LANES_MAX;
    return lanes;
}

/* Lanes for a head: at most HELD_HALF packs for each while that takes less than a warp. */
static inline unsigned head_lanes(unsigned packs)
{
    unsigned lanes = 1;
    while (lanes < WARP_LANES && HELD_HALF * lanes < packs)
        lanes *= 2;
    return lanes < WARP_LANES ? lanes : row_lanes(packs);
}

static inline unsigned row_threads(unsigned lanes)
{
    if (lanes <= WARP_LANES)
        return NARROW_THREADS;
    return lanes;
}

static inline unsigned row_grid(size_t rows, unsigned lanes)
{
    const unsigned each = row_threads(lanes) / lanes;
    return (unsigned)((rows + each - 1) / each);
}

/* Blocks that make `parts` rows of partial sums. */
static inline unsigned part_grid(size_t parts, unsigned lanes)
{
    return (unsigned)(lanes <= WARP_LANES ? parts / (NARROW_THREADS / WARP_LANES) : parts);
}

/* The row of this thread's group; past the last in what a block has left over. */
static __device__ __forceinline__ size_t row_index(unsigned lanes)
{
    return (size_t)blockIdx.x * (blockDim.x / lanes) + threadIdx.x / lanes;
}

/* Are rows of `width` from `base` on whole packs (pack_whole_rows), all of them held? */
template <typename T> static inline bool row_is_whole(const void *base, size_t width, unsigned held = HELD)
{
    return pack_whole_rows<T>(base, width) && width <= (size_t)held * ROW_LANES_MAX * T::per_16_bytes;
}

/* A lane's sums of the rows that its group goes through: in registers, but in memory for packs that it does not hold. */
template <typename T, bool WHOLE, unsigned PACKS> struct row_sums {
    float *row; /* of partial sums, `width` of them */
    unsigned width;
    unsigned lanes;
    float held[PACKS][T::per_16_bytes];

    __device__ __forceinline__ unsigned first(unsigned k) const
    {
        return (threadIdx.x % lanes + k * lanes) * T::per_16_bytes;
    }
    __device__ __forceinline__ void begin(float *parts, size_t columns, unsigned of_lanes)
    {
        const unsigned joined = of_lanes < WARP_LANES ? (unsigned)WARP_LANES : of_lanes;
        width = (unsigned)columns;
        lanes = of_lanes;
        row = parts + (blockIdx.x * blockDim.x + threadIdx.x) / joined * (size_t)width;
#pragma unroll
        for (unsigned k = 0; k < PACKS; k++)
            for (unsigned e = 0; e < T::per_16_bytes; e++)
                held[k][e] = 0.0f;
        for (unsigned k = PACKS; !WHOLE && first(k) < width; k++)
            store(k, held[0]);
    }
    __device__ __forceinline__ void store(unsigned k, const float *sums)
    {
        for (unsigned part = 0; part < T::per_16_bytes; part += tide_cuda_fp32::per_16_bytes) {
            tide_cuda_vector<tide_cuda_fp32> pack;
            for (unsigned e = 0; e < tide_cuda_fp32::per_16_bytes; e++)
                pack.element[e] = sums[part + e];
            pack_store<tide_cuda_fp32, WHOLE>(row, first(k) + part, width, pack);
        }
    }
    /* Every thread of the block calls it. A warp's groups are joined as in reduce.h. */
    __device__ __forceinline__ void end(void)
    {
        for (unsigned distance = WARP_LANES / 2; distance >= lanes; distance /= 2)
            for (unsigned k = 0; k < PACKS; k++)
                for (unsigned e = 0; e < T::per_16_bytes; e++)
                    held[k][e] += __shfl_xor_sync(WARP_ALL, held[k][e], distance);
        if (lanes < WARP_LANES && threadIdx.x % WARP_LANES >= lanes)
            return;
#pragma unroll
        for (unsigned k = 0; k < PACKS; k++)
            store(k, held[k]);
    }
};

/* A lane's part of a row: of its packs, lane, lane + lanes, ..., the first PACKS stay in registers. */
template <typename T, bool WHOLE, unsigned PACKS = HELD> struct row_part {
    const typename T::stored *row;
    unsigned width;
    unsigned lane, lanes;
    /* The held packs. As elements, nvcc would take each apart where it is loaded, and the loads would wait for one
     * another. */
    uint4 words[PACKS];

    /* `columns` is 0 past the last row: for a lane that only comes to the barriers. */
    __device__ __forceinline__ void hold(const typename T::stored *from, size_t columns, unsigned of_lanes)
    {
        row = from;
        width = (unsigned)columns;
        lanes = of_lanes;
        lane = threadIdx.x % of_lanes;
#pragma unroll
        for (unsigned k = 0; k < PACKS; k++)
            words[k] = pack_words<T, WHOLE>(row, first(k), width);
    }
    __device__ __forceinline__ tide_cuda_vector<T> held(unsigned k) const
    {
        tide_cuda_vector<T> pack;
        memcpy(&pack, &words[k], sizeof pack);
        return pack;
    }
    /* The first element of this lane's pack k. */
    __device__ __forceinline__ unsigned first(unsigned k) const
    {
        return (lane + k * lanes) * T::per_16_bytes;
    }
    /* visit(first element, the words of pack k) for each of this lane's packs, in order. */
    template <typename Visit> __device__ __forceinline__ void each(Visit visit) const
    {
#pragma unroll
        for (unsigned k = 0; k < PACKS; k++)
            if (first(k) < width)
                visit(first(k), words[k]);
        for (unsigned k = PACKS; !WHOLE && first(k) < width; k++)
            visit(first(k), pack_words<T, WHOLE>(row, first(k), width));
    }
    /* The same as packs, with those of a second row of the same shape. */
    template <typename Visit>
    __device__ __forceinline__ void each_with(const row_part &other, Visit visit) const
    {
#pragma unroll
        for (unsigned k = 0; k < PACKS; k++)
            if (first(k) < width)
                visit(first(k), held(k), other.held(k));
        for (unsigned k = PACKS; !WHOLE && first(k) < width; k++)
            visit(first(k), pack_load<T, WHOLE>(row, first(k), width),
                  pack_load<T, WHOLE>(other.row, first(k), width));
    }
    /* The same with the pack's sums as well, which visit adds to. */
    template <typename Visit>
    __device__ __forceinline__ void each_summed(const row_part &other, row_sums<T, WHOLE, PACKS> &sums,
                                                Visit visit) const
    {
#pragma unroll
        for (unsigned k = 0; k < PACKS; k++)
            if (first(k) < width)
                visit(first(k), held(k), other.held(k), sums.held[k]);
        for (unsigned k = PACKS; !WHOLE && first(k) < width; k++) {
            float row_alone[T::per_16_bytes] = {};
            visit(first(k), pack_load<T, WHOLE>(row, first(k), width),
                  pack_load<T, WHOLE>(other.row, first(k), width), row_alone);
            pack_accumulate<T, WHOLE>(sums.row, first(k), width, row_alone);
        }
    }
};

#endif
