/* Sums and maxima over the lanes of a warp and the warps of a block, in one fixed order.
 *
 * In a warp, halves are joined with halves (a butterfly: every lane ends with the same bits, since a + b = b + a).
 * The warps' results go through shared memory and each thread joins them in the order of the warps. `partial` is a
 * shared array of a place a warp, used by no other reduction of the kernel: then one barrier is enough.
 */
#ifndef TIDEPOOL_KERNELS_CUDA_REDUCE_H
#define TIDEPOOL_KERNELS_CUDA_REDUCE_H

#include "kernels/cuda/launch.h"

enum { WARP_LANES = 32 };
#define WARP_ALL 0xffffffffu

template <typename Number> static __device__ __forceinline__ Number warp_sum(Number value)
{
    for (int distance = WARP_LANES / 2; distance > 0; distance /= 2)
        value += __shfl_xor_sync(WARP_ALL, value, distance);
    return value;
}

/* The sum over the neighbours that a warp's lanes form in groups of `lanes`, a power of two. */
template <typename Number> static __device__ __forceinline__ Number part_sum(Number value, unsigned lanes)
{
    for (unsigned distance = WARP_LANES / 2; distance > 0; distance /= 2) {
        const Number other = __shfl_xor_sync(WARP_ALL, value, distance);
        value += distance < lanes ? other : 0;
    }
    return value;
}

static __device__ __forceinline__ float warp_largest(float value)
{
    for (int distance = WARP_LANES / 2; distance > 0; distance /= 2)
        value = fmaxf(value, __shfl_xor_sync(WARP_ALL, value, distance));
    return value;
}

/* The sum over the block's `lanes` threads. With a warp's worth of lanes a block may hold several groups, each its
 * own warp; nothing is shared then. */
template <typename Number, typename Shared>
static __device__ __forceinline__ Number lanes_sum(Number value, Shared &partial, unsigned lanes)
{
    const Number sum = warp_sum(value);
    if (lanes == WARP_LANES)
        return sum;
    if (threadIdx.x % WARP_LANES == 0)
        partial[threadIdx.x / WARP_LANES] = sum;
    TIDE_CUDA_BARRIER();
    Number total = 0;
    for (unsigned warp = 0; warp < lanes / WARP_LANES; warp++)
        total += partial[warp];
    return total;
}

#endif
