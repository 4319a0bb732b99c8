/* A row in the registers of a group of lanes, for norms.
 *
 * A row belongs to a group of 32 to 512 lanes, as few as can hold it with HELD packs each: 32 for 768 bf16 numbers
 * (three packs of four are used; four rows share a block then), 256 for 8192. So a row is read from memory once,
 * however often it is gone through. What is longer than 512 lanes hold (16384 bf16 numbers) is read anew each time, and
 * still comes out right.
 *
 * A head is a short row: it may do with a part of a warp (head_lanes), a power of two.
 */
#ifndef TIDEPOOL_KERNELS_CUDA_ROW_PART_H
#define TIDEPOOL_KERNELS_CUDA_ROW_PART_H

#include "kernels/cuda/pack.h"
#include "kernels/cuda/reduce.h"

enum {
    HELD = 4, /* packs a lane keeps */
    ROW_LANES_MAX = 512,
    ROW_WARPS_MAX = ROW_LANES_MAX / WARP_LANES,
    NARROW_THREADS = 128, /* of a block of rows of one warp or less */
};

/* Lanes for a row: whole warps, enough to hold it where that many there are. */
static inline unsigned row_lanes(unsigned packs)
{
    const unsigned lanes = (packs + HELD * WARP_LANES - 1) / (HELD * WARP_LANES) * WARP_LANES;
    if (lanes > ROW_LANES_MAX)
        return ROW_LANES_MAX;
    return lanes;
}

/* Lanes for a head: at most two packs for each while that takes less than a warp. */
static inline unsigned head_lanes(unsigned packs)
{
    unsigned lanes = 1;
    while (lanes < WARP_LANES && 2 * lanes < packs)
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

/* The row of this thread's group; past the last in what a block has left over. */
static __device__ __forceinline__ size_t row_index(unsigned lanes)
{
    return (size_t)blockIdx.x * (blockDim.x / lanes) + threadIdx.x / lanes;
}

/* A lane's part of a row: of its packs, lane, lane + lanes, ..., the first HELD stay in registers. */
template <typename T, bool WHOLE> struct row_part {
    const typename T::stored *row;
    size_t width;
    unsigned lane, lanes;
    tide_cuda_vector<T> held[HELD];

    /* `columns` is 0 past the last row: for a lane that only comes to the barriers. */
    __device__ __forceinline__ void hold(const typename T::stored *from, size_t columns, unsigned of_lanes)
    {
        row = from;
        width = columns;
        lanes = of_lanes;
        lane = threadIdx.x % of_lanes;
#pragma unroll
        for (unsigned k = 0; k < HELD; k++)
            held[k] = pack_load<T, WHOLE>(row, first(k), width);
    }
    /* The first element of this lane's pack k. */
    __device__ __forceinline__ size_t first(unsigned k) const
    {
        return (size_t)(lane + k * lanes) * T::per_16_bytes;
    }
    /* visit(first element, pack k) for each of this lane's packs, in order. */
    template <typename Visit> __device__ __forceinline__ void each(Visit visit) const
    {
#pragma unroll
        for (unsigned k = 0; k < HELD; k++)
            if (first(k) < width)
                visit(first(k), held[k]);
        for (unsigned k = HELD; first(k) < width; k++)
            visit(first(k), pack_load<T, WHOLE>(row, first(k), width));
    }
    /* The same with the packs of a second row of the same shape. */
    template <typename Visit> __device__ __forceinline__ void each_with(const row_part &other, Visit visit) const
    {
#pragma unroll
        for (unsigned k = 0; k < HELD; k++)
            if (first(k) < width)
                visit(first(k), held[k], other.held[k]);
        for (unsigned k = HELD; first(k) < width; k++)
            visit(first(k), pack_load<T, WHOLE>(row, first(k), width),
                  pack_load<T, WHOLE>(other.row, first(k), width));
    }
};

#endif
