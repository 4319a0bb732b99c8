/* A row in the registers of a group of lanes, for norms.
 *
 * A row belongs to a group of 32 to 512 lanes, as few as can hold it with HELD packs each: 32 lanes for 768
 * bf16 numbers (three of four packs are used; four rows then share a block), 256 for 8192. A row is thus read
 * from memory once, however often the kernel goes through it. A row longer than 512 lanes can hold (16384
 * bf16 numbers) is read again each time, by the kernels that access single elements.
 *
 * A head is a short row: its group may be a part of a warp (head_lanes), a power of two, with HELD_HALF packs
 * per lane.
 *
 * Gradients of params are sums over columns, which the kernels make in the same pass (row_sums): a group goes
 * through every n-th row, where n is the number of groups, and keeps a sum for each element that it holds. A
 * warp or, if a row takes several warps, a block writes its sums as one row of partial sums to the workspace.
 * The number of these rows (tide_gpu_norm_parts), and with it the order of the sums, depends only on the
 * shape. bias_backward adds the partial sums.
 */
#ifndef TIDEPOOL_KERNELS_CUDA_ROW_PART_H
#define TIDEPOOL_KERNELS_CUDA_ROW_PART_H

#include "kernels/cuda/pack.h"
#include "kernels/cuda/reduce.h"
#include "kernels/gpu_sizes.h"

enum {
    HELD = 4, /* packs that a lane keeps */
    /* packs that a lane keeps of a head in less than a warp, or beside sums for two gradients */
    HELD_HALF = 2,
    ROW_LANES_MAX = 512,
    ROW_WARPS_MAX = ROW_LANES_MAX / WARP_LANES,
    NARROW_THREADS = 128, /* threads of a block if a row takes one warp or less */
};

/* Lanes for a row: whole warps, as many as can hold it, up to ROW_LANES_MAX. */
static inline unsigned row_lanes(unsigned packs, unsigned held = HELD)
{
    const unsigned lanes = (packs + held * WARP_LANES - 1) / (held * WARP_LANES) * WARP_LANES;
    if (lanes > ROW_LANES_MAX)
        return ROW_LANES_MAX;
    return lanes;
}

/* Lanes for a head: as few as hold it with HELD_HALF packs each if these are less than a warp. */
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

/* The number of blocks that make `parts` rows of partial sums. */
static inline unsigned part_grid(size_t parts, unsigned lanes)
{
    return (unsigned)(lanes <= WARP_LANES ? parts / (NARROW_THREADS / WARP_LANES) : parts);
}

/* The row of this thread's group; may be past the last row in the last block. */
static __device__ __forceinline__ size_t row_index(unsigned lanes)
{
    return (size_t)blockIdx.x * (blockDim.x / lanes) + threadIdx.x / lanes;
}

/* Do rows of `width` from `base` on consist of whole packs (pack_whole_rows), and can lanes hold all of
 * these? */
template <typename T> static inline bool row_is_whole(const void *base, size_t width, unsigned held = HELD)
{
    return pack_whole_rows<T>(base, width) && width <= (size_t)held * ROW_LANES_MAX * T::per_16_bytes;
}

/* A lane's sums over the rows of its group. Sums for the packs that the lane holds are in registers,
 * others in memory. */
template <typename T, bool WHOLE, unsigned PACKS> struct row_sums {
    float *row; /* the row of partial sums, `width` of them */
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
    /* Write the sums to the workspace. Every thread of the block must call this. The groups of a warp are
     * added as in reduce.h. */
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

/* A lane's part of a row: the packs with numbers lane, lane + lanes, ..., of which the first PACKS stay in
 * registers. */
template <typename T, bool WHOLE, unsigned PACKS = HELD> struct row_part {
    const typename T::stored *row;
    unsigned width;
    unsigned lane, lanes;
    /* The held packs. With an array of elements nvcc would unpack each pack right after its load, and the
     * loads would wait for one another. */
    uint4 words[PACKS];

    /* Load the held packs of a row. `columns` is 0 past the last row: such a lane only takes part in
     * barriers. */
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
    /* visit(first element, pack k, pack k of a second row of the same shape) for each of this lane's packs,
     * in order. */
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
    /* Like each_with; visit also gets the sums of pack k, to which it adds. */
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
