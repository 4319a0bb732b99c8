/* Sums down the columns of a matrix, for gradients of biases and partial sums of norms' gradients (row_part.h).
 *
 * No partial sums of rows go through memory: a block takes some columns and goes down all rows. It takes 32
 * bytes of columns, two packs: the least that memory moves. Its 512 threads are 256 row lanes: lane l adds rows l,
 * l + 256, ... in order, several of them under way at a time. Then the lanes are folded through shared memory: each
 * thread adds a pack's worth of lanes that stand apart, a thread a column adds those. The order depends on the
 * number of rows and the type only. (A butterfly of shuffles instead takes 32 of them a thread and costs a short
 * matrix more than its loads.)
 *
 * Width 768 in bf16 is 48 blocks, 8192 are 512; an H200 has 132 SMs. With 48 the SMs in use must each draw 70 GB/s
 * or more to come near half of the memory's 4.8 TB/s: that takes 50 KB under way on each, and 512 threads x 8 packs
 * of 16 bytes are 64. Narrower strips would leave fewer SMs idle and fetch each 32-byte sector twice.
 */
#ifndef TIDEPOOL_KERNELS_CUDA_COLUMNS_H
#define TIDEPOOL_KERNELS_CUDA_COLUMNS_H

#include "kernels/cuda/pack.h"

enum {
    COLUMNS_THREADS = 512,
    COLUMNS_PACKS = 2, /* side by side, a block's */
    COLUMNS_ROW_LANES = COLUMNS_THREADS / COLUMNS_PACKS,
    COLUMNS_PARTIALS = COLUMNS_THREADS * 8, /* shared floats of a fold, for the widest pack */
};

template <typename T> static inline unsigned columns_blocks(size_t width)
{
    return (pack_count<T>(width) + COLUMNS_PACKS - 1) / COLUMNS_PACKS;
}

/* Where this thread works: its pack's first column, and its first row. */
template <typename T> static __device__ __forceinline__ size_t columns_begin(void)
{
    return ((size_t)blockIdx.x * COLUMNS_PACKS + threadIdx.x % COLUMNS_PACKS) * T::per_16_bytes;
}

static __device__ __forceinline__ size_t columns_row_lane(void)
{
    return threadIdx.x / COLUMNS_PACKS;
}

/* accumulator[column] += all row lanes' sums of it. Every thread of the block calls it. The two arrays may serve one
 * fold after another: what a fold reads last is behind the next one's first barrier when it is written again. */
template <typename T, typename Partials, typename Groups>
static __device__ __forceinline__ void columns_fold(const float *sums, Partials &partials, Groups &groups,
                                                    float *accumulator, size_t width)
{
    const unsigned across = COLUMNS_PACKS * T::per_16_bytes;
    for (unsigned e = 0; e < T::per_16_bytes; e++) /* which is row lane x across + column */
        partials[threadIdx.x * T::per_16_bytes + e] = sums[e];
    TIDE_CUDA_BARRIER();
    float group = 0.0f;
    for (unsigned k = 0; k < T::per_16_bytes; k++)
        group += partials[k * COLUMNS_THREADS + threadIdx.x];
    groups[threadIdx.x] = group;
    TIDE_CUDA_BARRIER();
    const size_t column = (size_t)blockIdx.x * across + threadIdx.x;
    if (threadIdx.x >= across || column >= width)
        return;
    float total = 0.0f;
    for (unsigned at = threadIdx.x; at < COLUMNS_THREADS; at += across)
        total += groups[at];
    accumulator[column] += total;
}

#endif
