/* Correct and faulty kernels for test_cuda_on_cpu.c, compiled like the real kernels with cuda_on_cpu.h
 * included first. */
#include "tests/gpu/test_cuda_on_cpu.h"

enum { THREADS = 256, WARPS = THREADS / 32 };

/* ---- correct kernels ---- */

/* Writes each thread's block and thread number to out[global thread]. */
__global__ void where_kernel(uint32_t *out)
{
    const unsigned block = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
    const unsigned thread = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
    out[block * blockDim.x * blockDim.y * blockDim.z + thread] = block << 16 | thread;
}

tide_status test_where(uint32_t *out, const unsigned *grid, const unsigned *block)
{
    return TIDE_CUDA_LAUNCH("where", (where_kernel), dim3(grid[0], grid[1], grid[2]),
                            dim3(block[0], block[1], block[2]), NULL, out);
}

/* Sums the integers of each block through shared memory by halving. */
template <typename T> __global__ void sum_kernel(const T *in, T *out, int barriers)
{
    TIDE_CUDA_SHARED(T, partial, THREADS);
    partial[threadIdx.x] = in[blockIdx.x * THREADS + threadIdx.x];
    for (unsigned half = THREADS / 2; half > 0; half /= 2) {
        if (barriers)
            TIDE_CUDA_BARRIER();
        if (threadIdx.x < half)
            partial[threadIdx.x] += partial[threadIdx.x + half];
    }
    /* No barrier follows, so the other threads may return. */
    if (threadIdx.x == 0)
        out[blockIdx.x] = partial[0];
}

tide_status test_sum(const uint32_t *in, uint32_t *out, unsigned blocks)
{
    return TIDE_CUDA_LAUNCH("sum", (sum_kernel<uint32_t>), blocks, THREADS, NULL, in, out, 1);
}

tide_status test_sum_float(const float *in, float *out, unsigned blocks)
{
    return TIDE_CUDA_LAUNCH("sum of floats", (sum_kernel<float>), blocks, THREADS, NULL, in, out, 1);
}

tide_status test_sum_without_barriers(const uint32_t *in, uint32_t *out)
{
    return TIDE_CUDA_LAUNCH("sum without barriers", (sum_kernel<uint32_t>), 1, THREADS, NULL, in, out, 0);
}

/* Calls every shuffle and vote once; results go to out[which x 32 + lane]. */
__global__ void shuffles_kernel(uint32_t *out)
{
    const unsigned lane = threadIdx.x % 32, full = 0xffffffffu;
    const unsigned own = 100 + lane;
    unsigned *const mine = out + threadIdx.x / 32 * TEST_SHUFFLES * 32 + lane;
    mine[0 * 32] = __shfl_sync(full, own, 5);
    mine[1 * 32] = __shfl_xor_sync(full, own, 16);
    mine[2 * 32] = __shfl_up_sync(full, own, 3);
    mine[3 * 32] = __shfl_down_sync(full, own, 3);
    mine[4 * 32] = __shfl_sync(full, own, 9, 8);
    mine[5 * 32] = __shfl_down_sync(full, own, 3, 8);
    mine[6 * 32] = __shfl_up_sync(full, own, 3, 8);
    mine[7 * 32] = __ballot_sync(full, lane % 3 == 0);
    mine[8 * 32] = (unsigned)__any_sync(full, lane == 7) << 1 | (unsigned)__any_sync(full, 0);
    mine[9 * 32] = (unsigned)__all_sync(full, 1) << 1 | (unsigned)__all_sync(full, lane != 7);
    mine[10 * 32] = (unsigned)__shfl_xor_sync(full, (double)own, 1);
}

tide_status test_shuffles(uint32_t *out, unsigned threads)
{
    return TIDE_CUDA_LAUNCH("shuffles", (shuffles_kernel), 1, threads, NULL, out);
}

/* One lane writes, and all lanes of its warp read: with __syncwarp between them that is no race, without
 * it it is. */
__global__ void warp_kernel(uint32_t *out, int ordered)
{
    TIDE_CUDA_SHARED(uint32_t, cell, WARPS);
    const unsigned warp = threadIdx.x / 32;
    for (unsigned round = 0; round < 3; round++) {
        if (threadIdx.x % 32 == round)
            cell[warp] = round + warp;
        if (ordered)
            __syncwarp();
        out[threadIdx.x] = cell[warp];
        if (ordered)
            __syncwarp();
    }
}

tide_status test_warp_order(uint32_t *out, int ordered)
{
    return TIDE_CUDA_LAUNCH("warp order", (warp_kernel), 1, THREADS, NULL, out, ordered);
}

/* Counts with atomics in shared and in global memory. */
__global__ void count_kernel(const uint32_t *in, uint32_t *counts, uint32_t *largest)
{
    TIDE_CUDA_SHARED(uint32_t, count, 4);
    if (threadIdx.x < 4)
        count[threadIdx.x] = 0;
    TIDE_CUDA_BARRIER();
    atomicAdd(&count[in[blockIdx.x * THREADS + threadIdx.x] % 4], 1u);
    atomicMax(largest, in[blockIdx.x * THREADS + threadIdx.x]);
    TIDE_CUDA_BARRIER();
    if (threadIdx.x < 4)
        atomicAdd(counts + threadIdx.x, count[threadIdx.x]);
}

tide_status test_count(const uint32_t *in, uint32_t *counts, uint32_t *largest, unsigned blocks)
{
    return TIDE_CUDA_LAUNCH("count", (count_kernel), blocks, THREADS, NULL, in, counts, largest);
}

/* Copies in -> shared -> out with 16 bytes an access, from element `first` on, and reverses each four. */
template <typename E>
__device__ __forceinline__ void reverse(tide_cuda_shared<E> to, unsigned at, uint4 value)
{
    tide_cuda_shared_store(to, at, make_uint4(value.w, value.z, value.y, value.x));
}
__global__ void vectors_kernel(const uint4 *in, uint4 *out, unsigned first)
{
    TIDE_CUDA_SHARED(uint32_t, tile, 4 * 32);
    reverse(tile + 0, 4 * threadIdx.x, in[threadIdx.x]);
    TIDE_CUDA_BARRIER();
    out[threadIdx.x] = tide_cuda_shared_load<uint4>(tile, first + 4 * (31 - threadIdx.x));
}

tide_status test_vectors(const uint32_t *in, uint32_t *out, unsigned first)
{
    return TIDE_CUDA_LAUNCH("vectors", (vectors_kernel), 1, 32, NULL, (const uint4 *)in, (uint4 *)out, first);
}

/* Writes to out the contents of a shared array before its first write. */
__global__ void poison_kernel(uint32_t *out)
{
    TIDE_CUDA_SHARED(uint32_t, unwritten, 8);
    out[blockIdx.x] = unwritten[threadIdx.x];
    TIDE_CUDA_BARRIER();
    unwritten[threadIdx.x] = 0;
}

tide_status test_poison(uint32_t *out, unsigned blocks)
{
    return TIDE_CUDA_LAUNCH("poison", (poison_kernel), blocks, 1, NULL, out);
}

/* Writes to out the order in which the threads of each block ran, before and after a barrier. */
__global__ void order_kernel(uint32_t *out, uint32_t *next)
{
    out[atomicAdd(next, 1u)] = threadIdx.x;
    TIDE_CUDA_BARRIER();
    out[atomicAdd(next, 1u)] = threadIdx.x;
}

tide_status test_order(uint32_t *out, uint32_t *next, unsigned blocks)
{
    return TIDE_CUDA_LAUNCH("order", (order_kernel), blocks, TEST_ORDER_THREADS, NULL, out, next);
}

/* ---- faulty kernels ---- */

enum { WRONG_BLOCK = 2, WRONG_THREAD = 77 };

__global__ void wrong_kernel(test_mistake mistake, uint32_t *out)
{
    const bool wrong = blockIdx.x == WRONG_BLOCK && threadIdx.x == WRONG_THREAD;
    const unsigned i = threadIdx.x;
    TIDE_CUDA_SHARED(uint32_t, cells, THREADS);
    switch (mistake) {
    case TEST_RETURNS_BEFORE_BARRIER:
        if (wrong)
            return;
        TIDE_CUDA_BARRIER(); /* the error names this line */
        break;
    case TEST_OTHER_BARRIER:
        if (wrong)
            TIDE_CUDA_BARRIER();
        else
            TIDE_CUDA_BARRIER();
        break;
    case TEST_BARRIER_AGAINST_SHUFFLE:
        if (wrong)
            TIDE_CUDA_BARRIER();
        else
            out[i] = __shfl_sync(0xffffffffu, i, 0);
        break;
    case TEST_LANE_MISSING:
        if (wrong)
            return;
        out[i] = __shfl_xor_sync(0xffffffffu, i, 1);
        break;
    case TEST_OTHER_SHUFFLE:
        if (wrong)
            out[i] = __shfl_sync(0xffffffffu, i, 0);
        else
            out[i] = __shfl_sync(0xffffffffu, i, 1);
        break;
    case TEST_PARTIAL_MASK:
        if (blockIdx.x == WRONG_BLOCK)
            out[i] = __shfl_sync(0x0000ffffu, i, 0);
        break;
    case TEST_READS_BEYOND:
        out[i] = cells[wrong ? THREADS : 0];
        break;
    case TEST_WRITES_BEFORE:
        cells[wrong ? -1 : (int)i] = i;
        break;
    case TEST_TWO_WRITE:
        cells[wrong ? i - 1 : i] = i;
        break;
    case TEST_READS_UNORDERED:
        cells[i] = i;
        if (wrong)
            out[i] = cells[3];
        break;
    case TEST_WRITES_UNORDERED:
        out[i] = cells[i / 64];
        if (wrong)
            cells[3] = 1;
        break;
    case TEST_TOO_MUCH_SHARED: {
        TIDE_CUDA_SHARED(double, large, 6100);
        large[i] = i;
        break;
    }
    }
}

tide_status test_wrong(test_mistake mistake, uint32_t *out)
{
    return TIDE_CUDA_LAUNCH("wrong", (wrong_kernel), 4, THREADS, NULL, mistake, out);
}

/* ---- a kernel to measure barriers ---- */

__global__ void barriers_kernel(uint32_t *out, unsigned barriers)
{
    for (unsigned i = 0; i < barriers; i++)
        TIDE_CUDA_BARRIER();
    out[threadIdx.x] = barriers;
}

tide_status test_barriers(uint32_t *out, unsigned blocks, unsigned barriers)
{
    return TIDE_CUDA_LAUNCH("barriers", (barriers_kernel), blocks, THREADS, NULL, out, barriers);
}
