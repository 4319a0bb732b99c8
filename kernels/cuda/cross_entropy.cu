/* Softmax cross entropy, the logits becoming their own gradient; and the losses' sum.
 *
 * A block takes a row, in tiles of IN_FLIGHT packs a thread. The first pass keeps, per thread, the largest logit so
 * far and the sum of exponentials relative to it, lowered when a larger one comes (once a tile: the tile's largest
 * is found first). The threads' sums are brought to the block's largest and joined in float64. The second pass
 * reads the row again, computes the exponentials again and writes the gradient in place: a row of 50257 bf16 logits
 * is 100 KB, and the two rows under way on each of an H200's 132 SMs are 26 MB of its 50 MB of second cache. So
 * memory sees each logit once on the way in and once on the way out, 4 bytes a bf16 element: 0.35 ms for 8192 rows
 * at 4.8 TB/s.
 *
 * At that rate an SM has about 24 instructions and 3 exponentials for an element, two of them ours. In 16 bits the
 * exponential is therefore the fast one (its error, 1e-5 at the worst, is far below the result's own rounding, 4e-3
 * for bf16); in fp32 it is expf.
 *
 * A lane's largest begins at the lowest finite number, not at minus infinity: then what is absent, a logit of minus
 * infinity, is an exponential of 0 and never a difference of infinities. A NaN is passed over by the maximum and
 * makes the sum NaN, as plus infinity does.
 *
 * Rows that do not begin at multiples of 16 bytes (a leading dimension that is none) are read and written element by
 * element, in the same order.
 */
#include "kernels/cuda/pack.h"
#include "kernels/cuda/reduce.h"

#include <float.h>

enum { THREADS = 512, WARPS = THREADS / WARP_LANES, IN_FLIGHT = 4 };

template <typename T> static __device__ __forceinline__ float exponential(float x)
{
    return __expf(x);
}
template <> __device__ __forceinline__ float exponential<tide_cuda_fp32>(float x)
{
    return expf(x);
}

/* The elements from `end` on replaced by `value`. */
template <typename T>
static __device__ __forceinline__ void fill_from(tide_cuda_vector<T> &pack, size_t begin, size_t end, float value)
{
    if (begin + T::per_16_bytes <= end)
        return;
    for (unsigned e = 0; e < T::per_16_bytes; e++)
        if (begin + e >= end)
            pack.element[e] = T::store(value);
}

/* First element of this thread's pack i of a tile. */
template <typename T> static __device__ __forceinline__ size_t tile_element(size_t tile, unsigned i)
{
    return tile + ((size_t)i * THREADS + threadIdx.x) * T::per_16_bytes;
}

/* The largest of the logits that this thread sees, and the sum of e^(logit - largest) over them. */
template <typename T, bool WHOLE>
static __device__ __forceinline__ void scan_row(const typename T::stored *logits, size_t vocabulary,
                                                size_t leading_dimension, float *largest, float *sum)
{
    for (size_t tile = 0; tile < vocabulary; tile += (size_t)IN_FLIGHT * THREADS * T::per_16_bytes) {
        tide_cuda_vector<T> packs[IN_FLIGHT];
        float above = *largest;
#pragma unroll
        for (unsigned i = 0; i < IN_FLIGHT; i++)
            packs[i] = pack_load<T, WHOLE>(logits, tile_element<T>(tile, i), leading_dimension);
#pragma unroll
        for (unsigned i = 0; i < IN_FLIGHT; i++) {
            fill_from<T>(packs[i], tile_element<T>(tile, i), vocabulary, -INFINITY);
            for (unsigned e = 0; e < T::per_16_bytes; e++)
                above = fmaxf(above, T::load(packs[i].element[e]));
        }
        float total = *sum * exponential<T>(*largest - above);
#pragma unroll
        for (unsigned i = 0; i < IN_FLIGHT; i++)
            for (unsigned e = 0; e < T::per_16_bytes; e++)
                total += exponential<T>(T::load(packs[i].element[e]) - above);
        *largest = above;
        *sum = total;
    }
}

/* logits = e^(logit - largest) x scale, less gradient_scale at the target; zeros in the padding. */
template <typename T, bool WHOLE>
static __device__ __forceinline__ void write_gradient(typename T::stored *logits, size_t vocabulary,
                                                      size_t leading_dimension, size_t target, float largest,
                                                      float scale, float gradient_scale)
{
    for (size_t tile = 0; tile < leading_dimension; tile += (size_t)IN_FLIGHT * THREADS * T::per_16_bytes) {
        tide_cuda_vector<T> packs[IN_FLIGHT];
#pragma unroll
        for (unsigned i = 0; i < IN_FLIGHT; i++)
            packs[i] = pack_load<T, WHOLE>(logits, tile_element<T>(tile, i), leading_dimension);
#pragma unroll
        for (unsigned i = 0; i < IN_FLIGHT; i++) {
            const size_t begin = tile_element<T>(tile, i);
            for (unsigned e = 0; e < T::per_16_bytes; e++) {
                const float share = exponential<T>(T::load(packs[i].element[e]) - largest) * scale;
                packs[i].element[e] = T::store(begin + e == target ? share - gradient_scale : share);
            }
            fill_from<T>(packs[i], begin, vocabulary, 0.0f);
            pack_store<T, WHOLE>(logits, begin, leading_dimension, packs[i]);
        }
    }
}

template <typename T, bool WHOLE>
static __global__ void __launch_bounds__(THREADS)
    cross_entropy_rows(typename T::stored *all_logits, const int32_t *__restrict__ targets, float *losses,
                       size_t vocabulary, size_t leading_dimension, float gradient_scale, bool gradient)
{
    TIDE_CUDA_SHARED(float, largest_partial, WARPS);
    TIDE_CUDA_SHARED(double, sum_partial, WARPS);
    typename T::stored *logits = all_logits + (size_t)blockIdx.x * leading_dimension;
    const size_t target = (size_t)targets[blockIdx.x];
    const float target_logit = T::load(logits[target]); /* before the second pass writes it */
    float mine = -FLT_MAX, my_sum = 0.0f;
    scan_row<T, WHOLE>(logits, vocabulary, leading_dimension, &mine, &my_sum);
    const float largest = lanes_largest(mine, largest_partial, THREADS);
    const double sum = lanes_sum((double)(my_sum * exponential<T>(mine - largest)), sum_partial, THREADS);
    if (threadIdx.x == 0)
        losses[blockIdx.x] = (float)(log(sum) + (double)largest - (double)target_logit);
    if (gradient)
        write_gradient<T, WHOLE>(logits, vocabulary, leading_dimension, target, largest,
                                 (float)((double)gradient_scale / sum), gradient_scale);
}

template <typename T> static tide_status cross_entropy(void *stream, const tide_cross_entropy_args *args)
{
    typename T::stored *logits = (typename T::stored *)args->logits;
    if (pack_whole_rows<T>(logits, args->leading_dimension))
        return TIDE_CUDA_LAUNCH("cross_entropy", (cross_entropy_rows<T, true>), (unsigned)args->rows, THREADS, stream,
                                logits, args->targets, args->losses, args->vocabulary, args->leading_dimension,
                                args->gradient_scale, args->gradient);
    return TIDE_CUDA_LAUNCH("cross_entropy", (cross_entropy_rows<T, false>), (unsigned)args->rows, THREADS, stream,
                            logits, args->targets, args->losses, args->vocabulary, args->leading_dimension,
                            args->gradient_scale, args->gradient);
}

tide_status tide_cuda_cross_entropy(void *stream, const void *arguments)
{
    const tide_cross_entropy_args *args = (const tide_cross_entropy_args *)arguments;
    if (args->rows == 0)
        return TIDE_OK;
    assert(args->logits && args->targets && args->losses && args->vocabulary > 0);
    assert(args->leading_dimension >= args->vocabulary);
    return TIDE_CUDA_BY_DTYPE(args->dtype, cross_entropy, stream, args);
}

/* ---- the losses' sum ---- */

enum { LEAVES = 256 }; /* at a time, a thread each */

/* One block: threads sum leaves, one thread adds the leaves in order. A quarter of a megabyte for 65536 rows; what it
 * takes, some 10 microseconds once a batch, is 1024 additions one after another. */
static __global__ void __launch_bounds__(LEAVES)
    sum_losses(const float *__restrict__ losses, double *sum, size_t rows)
{
    TIDE_CUDA_SHARED(double, leaves, LEAVES);
    double total = *sum;
    for (size_t first = 0; first < rows; first += (size_t)LEAVES * TIDE_NORM_LEAF_ELEMENTS) {
        const size_t begin = first + (size_t)threadIdx.x * TIDE_NORM_LEAF_ELEMENTS;
        double leaf = 0.0;
        for (size_t row = begin; row < rows && row < begin + TIDE_NORM_LEAF_ELEMENTS; row++)
            leaf += (double)losses[row];
        leaves[threadIdx.x] = leaf;
        TIDE_CUDA_BARRIER();
        for (size_t i = 0; threadIdx.x == 0 && i < LEAVES && first + i * TIDE_NORM_LEAF_ELEMENTS < rows; i++)
            total += leaves[i];
        TIDE_CUDA_BARRIER();
    }
    if (threadIdx.x == 0)
        *sum = total;
}

tide_status tide_cuda_loss_sum(void *stream, const void *arguments)
{
    const tide_loss_sum_args *args = (const tide_loss_sum_args *)arguments;
    if (args->rows == 0)
        return TIDE_OK;
    assert(args->sum && args->losses);
    return TIDE_CUDA_LAUNCH("loss_sum", (sum_losses), 1, LEAVES, stream, args->losses, args->sum, args->rows);
}
