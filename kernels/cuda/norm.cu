/* The gradient's norm, with the same bits as on the CPU: sums are in the order that kernels.h states.
 *
 * gradient_norm: a block of 64 threads for each block of 4096 elements. The threads together copy the
 * elements into shared memory, each 16 bytes beside the next thread's; then each thread sums one leaf of
 * 64 elements in eight float64 lanes, and one thread adds the leaves in order. There is a gap of one pack
 * between leaves in shared memory, so that threads have no bank conflicts when all read the same position
 * of their leaves.
 *
 * Speed. Memory delivers 21 bytes per clock to an SM (4.8 TB/s, 132 SMs). Conversion to float64 could handle
 * 32 (bf16; 64 in fp32), and 24 blocks of 8 KB, each in flight for some 3000 clocks, could read 65. Memory is
 * thus the bound: 20 microseconds for 50 million bf16 elements. (On GPUs with few float64 units, sm_86 and
 * sm_89, these are the bound.)
 *
 * The square of a bf16, fp16 or fp32 number is exact in float64, so that fusing it with the addition would
 * not change the bits; the file is compiled without fusing all the same.
 *
 * norm_sum: a plain sum in float64 would be a chain of additions of some ten clocks each: 11 to 18 ms for the
 * two million blocks of 8 billion params. Therefore each of 1024 threads adds one lane, and one thread adds
 * the 1024 lanes. The bound is then the loads of one block: 0.2 ms for these 16 MB at 80 GB/s, the rate of a
 * multiprocessor with 64 KB in flight. */
#include "kernels/cuda/pack.h"

enum {
    NORM_LANES = 8,
    LEAVES = TIDE_NORM_BLOCK_ELEMENTS / TIDE_NORM_LEAF_ELEMENTS, /* leaves of a block, one per thread */
    SUM_IN_FLIGHT = 8, /* blocks that a thread of norm_sum fetches at once */
};

/* Packs from the begin of one leaf to the next in shared memory. */
template <typename T> struct leaf_stride {
    enum { packs = TIDE_NORM_LEAF_ELEMENTS / T::per_16_bytes, stride = packs + 1 };
};

/* Sum of squares of the leaf that begins at pack `first` of shared memory. */
template <typename T, typename Shared>
static __device__ __forceinline__ double leaf_squares(Shared &packs, unsigned first)
{
    double lane[NORM_LANES] = {};
#pragma unroll
    for (unsigned p = 0; p < leaf_stride<T>::packs; p++) {
        const tide_cuda_vector<T> pack = packs[first + p];
#pragma unroll
        for (unsigned e = 0; e < T::per_16_bytes; e++) {
            const double x = (double)T::load(pack.element[e]);
            lane[(p * T::per_16_bytes + e) % NORM_LANES] += x * x;
        }
    }
    return ((lane[0] + lane[4]) + (lane[2] + lane[6])) + ((lane[1] + lane[5]) + (lane[3] + lane[7]));
}

/* `gradient` is the range's first element, element `first` of the tensor; the range ends before `last`. */
template <typename T, bool WHOLE>
static __global__ void __launch_bounds__(LEAVES)
    block_squares(const typename T::stored *__restrict__ gradient, double *blocks, size_t first, size_t last)
{
    TIDE_CUDA_SHARED(tide_cuda_vector<T>, packs, LEAVES * leaf_stride<T>::stride);
    TIDE_CUDA_SHARED(double, leaves, LEAVES);
    const size_t block = first / TIDE_NORM_BLOCK_ELEMENTS + blockIdx.x;
    const size_t block_begin = block * TIDE_NORM_BLOCK_ELEMENTS;
    const size_t begin = block_begin > first ? block_begin : first;
    const size_t end = min(block_begin + TIDE_NORM_BLOCK_ELEMENTS, last);
    const unsigned count = (unsigned)((end - begin + TIDE_NORM_LEAF_ELEMENTS - 1) / TIDE_NORM_LEAF_ELEMENTS);
#pragma unroll
    for (unsigned i = 0; i < leaf_stride<T>::packs; i++) {
        const unsigned p = i * LEAVES + threadIdx.x, leaf = p / leaf_stride<T>::packs;
        packs[leaf * leaf_stride<T>::stride + p % leaf_stride<T>::packs] =
            pack_load<T, WHOLE>(gradient, begin - first + (size_t)p * T::per_16_bytes, end - first);
    }
    TIDE_CUDA_BARRIER();
    leaves[threadIdx.x] = leaf_squares<T>(packs, threadIdx.x * leaf_stride<T>::stride);
    TIDE_CUDA_BARRIER();
    if (threadIdx.x != 0)
        return;
    double sum = begin == block_begin ? 0.0 : blocks[block];
    for (unsigned leaf = 0; leaf < count; leaf++)
        sum += leaves[leaf];
    blocks[block] = sum;
}

template <typename T> static tide_status gradient_norm(void *stream, const tide_gradient_norm_args *args)
{
    const typename T::stored *gradient = (const typename T::stored *)args->gradient;
    const size_t first = args->first_element, last = first + args->elements;
    const unsigned grid = (unsigned)(tide_norm_blocks(last) - first / TIDE_NORM_BLOCK_ELEMENTS);
    if (pack_whole_rows<T>(gradient, args->elements))
        return TIDE_CUDA_LAUNCH("gradient_norm", (block_squares<T, true>), grid, LEAVES, stream, gradient,
                                args->blocks, first, last);
    return TIDE_CUDA_LAUNCH("gradient_norm", (block_squares<T, false>), grid, LEAVES, stream, gradient,
                            args->blocks, first, last);
}

tide_status tide_cuda_gradient_norm(void *stream, const void *arguments)
{
    const tide_gradient_norm_args *args = (const tide_gradient_norm_args *)arguments;
    assert(args->first_element % TIDE_NORM_LEAF_ELEMENTS == 0);
    if (args->elements == 0)
        return TIDE_OK;
    assert(args->gradient && args->blocks);
    return TIDE_CUDA_BY_DTYPE(args->dtype, gradient_norm, stream, args);
}

/* ---- the sum of the blocks ---- */

static __global__ void __launch_bounds__(TIDE_NORM_SUM_LANES)
    sum_blocks(const double *__restrict__ blocks, double *sum, size_t blocks_count)
{
    TIDE_CUDA_SHARED(double, lanes, TIDE_NORM_SUM_LANES);
    double lane = 0.0;
    for (size_t first = threadIdx.x; first < blocks_count;
         first += (size_t)SUM_IN_FLIGHT * TIDE_NORM_SUM_LANES) {
        double next[SUM_IN_FLIGHT];
#pragma unroll
        for (unsigned i = 0; i < SUM_IN_FLIGHT; i++) {
            const size_t block = first + (size_t)i * TIDE_NORM_SUM_LANES;
            next[i] = block < blocks_count ? blocks[block] : 0.0;
        }
#pragma unroll
        for (unsigned i = 0; i < SUM_IN_FLIGHT; i++)
            lane += next[i];
    }
    lanes[threadIdx.x] = lane;
    TIDE_CUDA_BARRIER();
    if (threadIdx.x != 0)
        return;
    double total = 0.0;
    for (unsigned i = 0; i < TIDE_NORM_SUM_LANES; i++)
        total += lanes[i];
    *sum = total;
}

tide_status tide_cuda_norm_sum(void *stream, const void *arguments)
{
    const tide_norm_sum_args *args = (const tide_norm_sum_args *)arguments;
    assert(args->sum && (args->blocks_count == 0 || args->blocks));
    return TIDE_CUDA_LAUNCH("norm_sum", (sum_blocks), 1, TIDE_NORM_SUM_LANES, stream, args->blocks, args->sum,
                            args->blocks_count);
}
