/* Sums and maxima over the lanes of a warp and the warps of a block, in one fixed order.
 *
 * Within a warp the code uses a butterfly (every lane gets the same bits, since a + b = b + a). The warps'
 * results go through shared memory, and each thread combines them in the order of the warps. `partial` is a
 * shared array with a place for each warp; no other reduction of the kernel may use it, so that one barrier
 * is enough.
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

/* The sum over this thread's group of `lanes` successive lanes of its warp; `lanes` is a power of two. */
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

/* The sum over a group of `lanes` threads, which is the whole block. If `lanes` is a warp's, the block may
 * hold several groups, one per warp, and the sum uses no shared memory. */
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
