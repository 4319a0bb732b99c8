/* Softmax cross entropy, whose gradient overwrites the logits; and the sum of the losses.
 *
 * A block computes a row, in tiles of TILE packs per thread. In the first pass each thread keeps its largest
 * logit so far and the sum of exponentials relative to it; a larger logit scales the sum down (at most once
 * per tile, since the thread first finds the tile's largest). Then lanes and warps combine their results with
 * one barrier, the sums in float64. The second pass goes through the row again, recomputes the exponentials
 * and writes the gradient in place. Each logit is thus read from memory once and written once, 4 bytes per
 * bf16 element, if the second pass finds the row in a cache or in shared memory.
 *
 * The kernel therefore keeps the row in shared memory if the GPU has enough of it. A thread's first HELD
 * packs have places there, and all their copies start when the block starts: 112 KB in flight for a block
 * of 512 threads. This holds a row of 57344 bf16 logits, and two such rows fit into a Hopper SM. A wider
 * row gets 1024 threads and an SM of its own, which holds 114688 logits; of 128256 logits the second pass
 * reads a tenth again from the second-level cache, 4 MB on all SMs. On a GPU with less shared memory per
 * block (an Ada has 99 KB) the kernel reads the row twice; if 132 SMs did so, 26 MB would be in use, which
 * the second-level cache must hold. The bits depend on the number of threads, which the vocabulary
 * decides, and not on where the row is kept.
 *
 * At 4.3 TB/s an SM has time for 27 instructions and 3.5 exponentials per element. In bf16 the two passes
 * take 18 and 2: an exponential is one instruction and a product (its error of at most 1e-5 is far below the
 * rounding of the result, 4e-3), elements are unpacked and rounded in pairs, and separate code handles the
 * packs that a row's end cuts, the padding and the target. In fp32 the exponential is expf.
 *
 * A lane's maximum begins at the lowest finite number instead of minus infinity: a missing logit, which
 * counts as minus infinity, then has the exponential 0, and the code never subtracts infinities. The maximum
 * ignores a NaN, but NaN and plus infinity make the sum NaN.
 *
 * If rows do not begin at multiples of 16 bytes because of the leading dimension, the kernel reads and writes
 * them element by element, in the same order. */
#include "kernels/cuda/pack.h"
#include "kernels/cuda/reduce.h"

#include <float.h>
#include <type_traits>

enum {
    THREADS_SHORT = 512,
    THREADS_LONG = 1024, /* for a row that does not fit the shared memory of 512 threads */
    TILE = 4,            /* packs of a thread */
    HELD = 14, /* packs of a thread in shared memory: 112 KB for 512 threads, so two blocks fit a Hopper SM */
};

/* e^x. For 16-bit types 2^(x log2 e) by the GPU's instruction, which treats denormals as zeros. */
template <typename T> static __device__ __forceinline__ float exponential(float x)
{
    const float log2_e = 1.44269504f;
#if defined(__CUDA_ARCH__)
    float power;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(x * log2_e));
    return power;
#else
    return exp2f(x * log2_e);
#endif
}
template <> __device__ __forceinline__ float exponential<tide_cuda_fp32>(float x)
{
    return expf(x);
}

/* A thread's asynchronous copies into shared memory: begin (cp.async), commit a group, and wait until at most
 * PENDING of the committed groups are in flight. */
static __device__ __forceinline__ void copy_begin(tide_cuda_shared<uint4> to, unsigned index,
                                                  const uint4 *from)
{
#if defined(__CUDA_ARCH__)
    asm volatile(
        "cp.async.cg.shared.global [%0], [%1], 16;" ::"r"((uint32_t)__cvta_generic_to_shared(to + index)),
        "l"(__cvta_generic_to_global(from))
        : "memory");
#else
    to[index] = *from;
#endif
}
static __device__ __forceinline__ void copy_commit(void)
{
#if defined(__CUDA_ARCH__)
    asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}
template <int PENDING> static __device__ __forceinline__ void copy_wait(void)
{
#if defined(__CUDA_ARCH__)
    asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
#endif
}

/* A row of logits. The packs before element `whole` hold only logits; a thread has every THREADS-th of them.
 * The first `held` packs of a thread, HELD or none, are kept in shared memory. */
template <typename T, bool WHOLE, unsigned THREADS> struct logit_row {
    typename T::stored *logits;
    unsigned whole, vocabulary, leading_dimension; /* elements */
    tide_cuda_shared<uint4> places;
    unsigned held;

    /* The first element of this thread's pack `index`. */
    __device__ __forceinline__ unsigned first(unsigned index) const
    {
        return (index * THREADS + threadIdx.x) * T::per_16_bytes;
    }
    /* visit(count, index) for this thread's packs [index, index + count) before `whole`, in order; count is a
     * constant. */
    template <typename Visit> __device__ __forceinline__ void each_tile(Visit visit) const
    {
        unsigned index = 0;
        for (; first(index + TILE - 1) < whole; index += TILE)
            visit(std::integral_constant<unsigned, TILE>(), index);
        for (; first(index) < whole; index++)
            visit(std::integral_constant<unsigned, 1>(), index);
    }
    /* Begin the copies, in groups of one tile each; the last group is shorter. */
    __device__ __forceinline__ void hold(void) const
    {
        if (held == 0)
            return;
#pragma unroll
        for (unsigned i = 0; i < HELD; i++) {
            if (first(i) < whole)
                copy_begin(places, i * THREADS + threadIdx.x, (const uint4 *)(logits + first(i)));
            if (i % TILE == TILE - 1 || i == HELD - 1)
                copy_commit();
        }
    }
    /* Wait until the tile that contains pack `index` is in shared memory. */
    __device__ __forceinline__ void await(unsigned index) const
    {
        static_assert((HELD + TILE - 1) / TILE == 4, "groups");
        if (index < TILE)
            copy_wait<3>();
        else if (index < 2 * TILE)
            copy_wait<2>();
        else if (index < 3 * TILE)
            copy_wait<1>();
        else
            copy_wait<0>();
    }
    /* This thread's pack `index`. */
    __device__ __forceinline__ uint4 pack(unsigned index) const
    {
        if (index < held)
            return places[index * THREADS + threadIdx.x];
        return load(first(index));
    }
    __device__ __forceinline__ uint4 load(unsigned begin) const
    {
        return WHOLE ? *(const uint4 *)(logits + begin)
                     : pack_words<T, WHOLE>(logits, begin, leading_dimension);
    }

    /* The largest of this thread's logits, and the sum of e^(logit - largest) over them. */
    __device__ __forceinline__ void scan(float *largest, float *sum) const
    {
        each_tile([&](auto count, unsigned index) {
            constexpr unsigned COUNT = decltype(count)::value;
            uint4 packs[COUNT];
            await(index);
#pragma unroll
            for (unsigned i = 0; i < COUNT; i++)
                packs[i] = pack(index + i);
            float values[T::per_16_bytes], above = *largest, total = 0.0f;
#pragma unroll
            for (unsigned i = 0; i < COUNT; i++) {
                pack_values<T>(packs[i], values);
                for (unsigned e = 0; e < T::per_16_bytes; e++)
                    above = fmaxf(above, values[e]);
            }
#pragma unroll
            for (unsigned i = 0; i < COUNT; i++) {
                pack_values<T>(packs[i], values);
                for (unsigned e = 0; e < T::per_16_bytes; e++)
                    total += exponential<T>(values[e] - above);
            }
            *sum = *sum * exponential<T>(*largest - above) + total;
            *largest = above;
        });
        if (threadIdx.x > 0)
            return;
        for (unsigned i = whole; i < vocabulary; i++) { /* by thread 0, since they are less than a pack */
            const float value = T::load(logits[i]), above = fmaxf(*largest, value);
            *sum = *sum * exponential<T>(*largest - above) + exponential<T>(value - above);
            *largest = above;
        }
    }

    /* logits = e^(logit - largest) x scale, minus gradient_scale at the target; zeros in the padding. */
    __device__ __forceinline__ void write_gradient(unsigned target, float largest, float scale,
                                                   float gradient_scale) const
    {
        const auto change = [&](unsigned begin, const uint4 &pack, auto is_cut) {
            float values[T::per_16_bytes];
            pack_values<T>(pack, values);
            for (unsigned e = 0; e < T::per_16_bytes; e++)
                values[e] = exponential<T>(values[e] - largest) * scale;
            for (unsigned e = 0; decltype(is_cut)::value && e < T::per_16_bytes; e++)
                values[e] = begin + e < vocabulary ? values[e] : 0.0f;
            if (target - begin < T::per_16_bytes) /* target - begin wraps if the target is before the pack */
                for (unsigned e = 0; e < T::per_16_bytes; e++)
                    values[e] -= begin + e == target ? gradient_scale : 0.0f;
            pack_store<T, WHOLE>(logits, begin, leading_dimension, pack_of_values<T>(values));
        };
        each_tile([&](auto count, unsigned index) {
            constexpr unsigned COUNT = decltype(count)::value;
            uint4 packs[COUNT];
#pragma unroll
            for (unsigned i = 0; i < COUNT; i++)
                packs[i] = pack(index + i);
#pragma unroll
            for (unsigned i = 0; i < COUNT; i++)
                change(first(index + i), packs[i], std::false_type());
        });
        for (unsigned begin = whole + first(0); begin < leading_dimension; begin += THREADS * T::per_16_bytes)
            change(begin, load(begin), std::true_type());
    }
};

/* A row that is not learned. */
template <typename T, bool WHOLE>
static __device__ __forceinline__ void zero_row(typename T::stored *logits, unsigned leading_dimension,
                                                unsigned threads)
{
    for (unsigned begin = threadIdx.x * T::per_16_bytes; begin < leading_dimension;
         begin += threads * T::per_16_bytes)
        pack_store<T, WHOLE>(logits, begin, leading_dimension, tide_cuda_vector<T>{});
}

template <typename T, bool WHOLE, unsigned THREADS>
static __global__ void __launch_bounds__(THREADS, THREADS_LONG / THREADS)
    cross_entropy_rows(typename T::stored *all_logits, const int32_t *__restrict__ targets, float *losses,
                       unsigned vocabulary, unsigned leading_dimension, float gradient_scale, bool gradient,
                       unsigned held)
{
    constexpr unsigned WARPS = THREADS / WARP_LANES;
    TIDE_CUDA_SHARED(float, largest_partial, WARPS);
    TIDE_CUDA_SHARED(double, sum_partial, WARPS);
    TIDE_CUDA_SHARED_ASKED(uint4, places);
    const logit_row<T, WHOLE, THREADS> row = {all_logits + blockIdx.x * (size_t)leading_dimension,
                                              vocabulary / T::per_16_bytes * T::per_16_bytes,
                                              vocabulary,
                                              leading_dimension,
                                              places,
                                              held};
    const unsigned target = (unsigned)targets[blockIdx.x];
    if ((int32_t)target < 0) { /* the same for the whole block */
        if (gradient)
            zero_row<T, WHOLE>(row.logits, leading_dimension, THREADS);
        if (threadIdx.x == 0)
            losses[blockIdx.x] = 0.0f;
        return;
    }
    const float target_logit = T::load(row.logits[target]); /* read before the second pass overwrites it */
    float mine = -FLT_MAX, my_sum = 0.0f;
    row.hold();
    row.scan(&mine, &my_sum);

    /* Combine the lanes' results, then those of the warps; every warp does the latter for itself. */
    const unsigned lane = threadIdx.x % WARP_LANES;
    const float warps_largest = warp_largest(mine);
    const double warps_sum = warp_sum((double)(my_sum * exponential<T>(mine - warps_largest)));
    if (lane == 0) {
        largest_partial[threadIdx.x / WARP_LANES] = warps_largest;
        sum_partial[threadIdx.x / WARP_LANES] = warps_sum;
    }
    TIDE_CUDA_BARRIER();
    float of_warp = -FLT_MAX;
    double sum_of_warp = 0.0;
    if (lane < WARPS) {
        of_warp = largest_partial[lane];
        sum_of_warp = sum_partial[lane];
    }
    const float largest = warp_largest(of_warp);
    const double sum = warp_sum(sum_of_warp * (double)exponential<T>(of_warp - largest));

    if (gradient)
        row.write_gradient(target, largest, gradient_scale / (float)sum, gradient_scale);
    if (threadIdx.x == 0)
        losses[blockIdx.x] = (float)(log(sum) + (double)largest - (double)target_logit);
}

template <typename T, bool WHOLE, unsigned THREADS>
static tide_status cross_entropy_launch(void *stream, const tide_cross_entropy_args *args)
{
    const size_t bytes = HELD * THREADS * sizeof(uint4);
    const bool holds = WHOLE && tide_cuda_may_ask(cross_entropy_rows<T, WHOLE, THREADS>, bytes);
    return TIDE_CUDA_LAUNCH_ASKING("cross_entropy", (cross_entropy_rows<T, WHOLE, THREADS>),
                                   (unsigned)args->rows, THREADS, holds ? bytes : 0, stream,
                                   (typename T::stored *)args->logits, args->targets, args->losses,
                                   (unsigned)args->vocabulary, (unsigned)args->leading_dimension,
                                   args->gradient_scale, args->gradient, holds ? HELD : 0);
}

template <typename T> static tide_status cross_entropy(void *stream, const tide_cross_entropy_args *args)
{
    const bool whole = pack_whole_rows<T>(args->logits, args->leading_dimension);
    if (args->vocabulary <= (size_t)HELD * THREADS_SHORT * T::per_16_bytes)
        return whole ? cross_entropy_launch<T, true, THREADS_SHORT>(stream, args)
                     : cross_entropy_launch<T, false, THREADS_SHORT>(stream, args);
    return whole ? cross_entropy_launch<T, true, THREADS_LONG>(stream, args)
                 : cross_entropy_launch<T, false, THREADS_LONG>(stream, args);
}

tide_status tide_cuda_cross_entropy(void *stream, const void *arguments)
{
    const tide_cross_entropy_args *args = (const tide_cross_entropy_args *)arguments;
    if (args->rows == 0)
        return TIDE_OK;
    assert(args->logits && args->targets && args->losses && args->vocabulary > 0);
    assert(args->leading_dimension >= args->vocabulary && args->leading_dimension <= INT32_MAX);
    return TIDE_CUDA_BY_DTYPE(args->dtype, cross_entropy, stream, args);
}

/* ---- the losses' sum ---- */

enum { LEAVES = 256 }; /* leaves at a time, one per thread */

/* One block: each thread sums a leaf, one thread adds the leaves in order. 65536 rows are a quarter of a
 * megabyte and take some 10 microseconds once per micro-batch, mostly for 1024 successive additions. */
static __global__ void __launch_bounds__(LEAVES)
    sum_losses(const float *__restrict__ losses, double *sum, size_t rows)
{
    TIDE_CUDA_SHARED(double, leaves, LEAVES);
    double total = 0.0;
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
    assert(args->sum && (args->rows == 0 || args->losses));
    return TIDE_CUDA_LAUNCH("loss_sum", (sum_losses), 1, LEAVES, stream, args->losses, args->sum, args->rows);
}
