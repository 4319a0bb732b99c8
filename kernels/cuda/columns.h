/* Sums over the columns of a matrix, for gradients of biases and for the partial sums of norms' gradients
 * (row_part.h).
 *
 * No partial sums go through global memory: a block sums all rows of a strip of columns. The strip is 32
 * bytes wide, two packs, the smallest unit that memory transfers. The 512 threads of the block are 256 row
 * lanes with two packs each: lane l adds rows l, l + 256, ... in order, with several loads in flight. Then
 * the block adds the lanes' sums through shared memory: each thread adds one column's sums of as many lanes
 * as a pack has elements, then one thread per column adds the results. The order depends only on the number
 * of rows and the type. (A butterfly of shuffles would take 32 shuffles per thread, which for a short matrix
 * cost more than its loads.)
 *
 * A width of 768 in bf16 makes 48 blocks, 8192 make 512; an H200 has 132 SMs. With 48 blocks each busy SM
 * must read 70 GB/s or more to reach nearly half of the memory's 4.8 TB/s. This needs 50 KB in flight on each
 * SM; 512 threads with 8 packs of 16 bytes each have 64 KB. Narrower strips would leave fewer SMs idle but
 * fetch each 32-byte sector twice.
 */
#ifndef TIDEPOOL_KERNELS_CUDA_COLUMNS_H
#define TIDEPOOL_KERNELS_CUDA_COLUMNS_H

#include "kernels/cuda/pack.h"

enum {
    COLUMNS_THREADS = 512,
    COLUMNS_PACKS = 2, /* width of a block's strip */
    COLUMNS_ROW_LANES = COLUMNS_THREADS / COLUMNS_PACKS,
    COLUMNS_PARTIALS = COLUMNS_THREADS * 8, /* floats of shared memory for a fold, for the widest pack */
};

template <typename T> static inline unsigned columns_blocks(size_t width)
{
    return (pack_count<T>(width) + COLUMNS_PACKS - 1) / COLUMNS_PACKS;
}

/* The first column of this thread's pack. */
template <typename T> static __device__ __forceinline__ size_t columns_begin(void)
{
    return ((size_t)blockIdx.x * COLUMNS_PACKS + threadIdx.x % COLUMNS_PACKS) * T::per_16_bytes;
}

static __device__ __forceinline__ size_t columns_row_lane(void)
{
    return threadIdx.x / COLUMNS_PACKS;
}

/* accumulator[column] += the sums of this column in all row lanes. Every thread of the block must call this.
 * Several folds may use the same two arrays: the next fold writes to the array that the last one reads at the
 * end only after its own first barrier. */
template <typename T, typename Partials, typename Groups>
static __device__ __forceinline__ void columns_fold(const float *sums, Partials &partials, Groups &groups,
                                                    float *accumulator, size_t width)
{
    const unsigned across = COLUMNS_PACKS * T::per_16_bytes;
    for (unsigned e = 0; e < T::per_16_bytes; e++) /* the index is row lane x across + column */
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
