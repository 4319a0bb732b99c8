/* Matrix products of a warp: the tensor core's instruction and the code that loads and stores its operands.
 *
 * mma.m16n8k16 multiplies A [16 x 16] by B [16 x 8] and adds to C [16 x 8] in fp32. A warp's 32 lanes hold
 * the matrices in pieces. With g = lane / 4 ("which row") and t = lane % 4 ("which pair of columns") a lane
 * holds, in pairs of neighbours:
 *
 *     A   a[0] = row g,     k 2t, 2t+1        a[1] = row g + 8, k 2t, 2t+1
 *         a[2] = row g,     k 2t+8, 2t+9      a[3] = row g + 8, k 2t+8, 2t+9
 *     B   b[0] = column g,  k 2t, 2t+1        b[1] = column g,  k 2t+8, 2t+9
 *     C   c[0], c[1] = row g, columns 2t, 2t+1            c[2], c[3] = row g + 8, the same columns
 *
 * The four lanes of one g are a quad. Two facts make attention simple. A C of 16 columns, rounded, is the A
 * of the next product, whose k runs over these columns: weights never leave registers. And a pair of C, of B
 * and of A is at columns 8 i + 2t: if a quad transposes four pairs (i = 0..3), each lane gets 8 successive
 * elements, 16 bytes of bf16. Global memory is therefore accessed in granules of 8 elements, and four
 * shuffles (tide_quad_turn) make fragments of them.
 *
 * A tile in shared memory consists of rows of W elements. Its granules are permuted, granule ^= row % 8, so
 * that the same granule of 8 rows, which ldmatrix reads at once, lies in 8 different groups of banks.
 * ldmatrix loads B from the tile: without .trans if k runs along a row, with .trans (transposed) if k runs
 * over the rows.
 *
 * The instructions mma, ldmatrix and cp.async exist only on a GPU. For each of them there is also a plain
 * path, which does the same with shuffles and plain loads: same lanes, same addresses, same fragments. On a
 * GPU fp32 always uses the plain path, since there is no mma of fp32 precision: one fmaf after another in the
 * order of k. A product then takes 64 shuffles and 64 fmaf per lane, and a multiprocessor shuffles at a
 * quarter of the speed at which it multiplies. This gives some 14 TFLOP/s on an H200, enough for the
 * reference with which the other types are compared, by the same code. bf16 and fp16 use the plain path if
 * TIDE_CUDA_PLAIN_MMA is defined, to compare it with the instructions: mma may add its 16 products in another
 * order, and exponentials (attention.h) may differ in their last bit; all else is equal.
 *
 * On the CPU the tests emulate mma and ldmatrix for all three types, by one exchange of the warp each. The
 * products have the bits of the plain path, which tests/gpu/test_gpu_tile.c compares with them.
 */
#ifndef TIDEPOOL_KERNELS_CUDA_TILE_H
#define TIDEPOOL_KERNELS_CUDA_TILE_H

#include "kernels/cuda/launch.h"

#if defined(__CUDA_ARCH__) && !defined(TIDE_CUDA_PLAIN_MMA)
#define TIDE_CUDA_TENSOR_CORES 1
#else
#define TIDE_CUDA_TENSOR_CORES 0
#endif

enum { TIDE_GRANULE = 8, TIDE_WARP = 32 };

static __device__ __forceinline__ int tide_lane(void)
{
    return (int)threadIdx.x % TIDE_WARP;
}

/* The warp's number in its block. A shuffle takes it from one lane, so that the compiler knows that it is the
 * same for the whole warp and can keep values derived from it in uniform registers. */
static __device__ __forceinline__ int tide_warp(void)
{
    return __shfl_sync(0xffffffffu, (int)threadIdx.x / TIDE_WARP, 0);
}

/* ---- two neighbours of a row ---- */

static __device__ __forceinline__ uint32_t tide_pack(tide_cuda_bf16, float first, float second)
{
#if TIDE_CUDA_TENSOR_CORES
    uint32_t bits;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(bits) : "f"(second), "f"(first));
    return bits;
#else
    return (uint32_t)tide_bf16_from_float(first) | (uint32_t)tide_bf16_from_float(second) << 16;
#endif
}

static __device__ __forceinline__ uint32_t tide_pack(tide_cuda_fp16, float first, float second)
{
#if TIDE_CUDA_TENSOR_CORES
    uint32_t bits;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(bits) : "f"(second), "f"(first));
    return bits;
#else
    return (uint32_t)tide_fp16_from_float(first) | (uint32_t)tide_fp16_from_float(second) << 16;
#endif
}

/* A pair as it is in memory: four pairs are the bytes of a granule. */
template <typename T> struct tide_pair {
    uint32_t bits;

    static __device__ __forceinline__ tide_pair of(float first, float second)
    {
        return {tide_pack(T(), first, second)};
    }
    __device__ __forceinline__ float first(void) const
    {
        return T::load((typename T::stored)(bits & 0xffffu));
    }
    __device__ __forceinline__ float second(void) const
    {
        return T::load((typename T::stored)(bits >> 16));
    }
    __device__ __forceinline__ tide_pair from_lane(int lane) const
    {
        return {__shfl_sync(0xffffffffu, bits, lane)};
    }
};

template <> struct tide_pair<tide_cuda_fp32> {
    float values[2];

    static __device__ __forceinline__ tide_pair of(float first, float second)
    {
        return {{first, second}};
    }
    __device__ __forceinline__ float first(void) const
    {
        return values[0];
    }
    __device__ __forceinline__ float second(void) const
    {
        return values[1];
    }
    __device__ __forceinline__ tide_pair from_lane(int lane) const
    {
        return {{__shfl_sync(0xffffffffu, values[0], lane), __shfl_sync(0xffffffffu, values[1], lane)}};
    }
};

/* Exchange between two lanes of a quad whose numbers differ in `bit`: the lane without the bit gives `high`,
 * the lane with it `low`, and each receives the other's value in the same variable. */
template <typename T>
static __device__ __forceinline__ void tide_quad_swap(tide_pair<T> &low, tide_pair<T> &high, int bit)
{
    const int lane = tide_lane();
    const bool upper = (lane >> bit) & 1;
    const tide_pair<T> given = upper ? low : high;
    const tide_pair<T> got = given.from_lane(lane ^ (1 << bit));
    low = upper ? got : low;
    high = upper ? high : got;
}

/* Transpose within each quad: lane t's pair i becomes lane i's pair t. A second call restores the pairs. */
template <typename T> static __device__ __forceinline__ void tide_quad_turn(tide_pair<T> (&pairs)[4])
{
    tide_quad_swap(pairs[0], pairs[1], 0);
    tide_quad_swap(pairs[2], pairs[3], 0);
    tide_quad_swap(pairs[0], pairs[2], 1);
    tide_quad_swap(pairs[1], pairs[3], 1);
}

/* ---- the product ---- */

/* c += A B, with shuffles: for each k a lane gets the pairs of its two rows from the lane of its quad that
 * holds them, and those of its two columns from the lanes that hold these. */
template <typename T>
static __device__ __forceinline__ void tide_multiply_reference(float (&c)[4], const tide_pair<T> (&a)[4],
                                                               const tide_pair<T> &b0, const tide_pair<T> &b1)
{
    const int lane = tide_lane(), quad = lane & ~3, columns = 8 * (lane & 3);
#pragma unroll
    for (int half = 0; half < 2; half++)
#pragma unroll
        for (int holder = 0; holder < 4; holder++) {
            const tide_pair<T> top = a[2 * half].from_lane(quad + holder);
            const tide_pair<T> bottom = a[2 * half + 1].from_lane(quad + holder);
            const tide_pair<T> left = (half ? b1 : b0).from_lane(columns + holder);
            const tide_pair<T> right = (half ? b1 : b0).from_lane(columns + 4 + holder);
            c[0] = fmaf(top.second(), left.second(), fmaf(top.first(), left.first(), c[0]));
            c[1] = fmaf(top.second(), right.second(), fmaf(top.first(), right.first(), c[1]));
            c[2] = fmaf(bottom.second(), left.second(), fmaf(bottom.first(), left.first(), c[2]));
            c[3] = fmaf(bottom.second(), right.second(), fmaf(bottom.first(), right.first(), c[3]));
        }
}

#if defined(__CUDACC__)
/* The mma instruction; volatile, so that the whole warp executes it together. */
#define TIDE_MMA(type)                                                                                       \
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32." type "." type ".f32 "                              \
                 "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"                           \
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])                                            \
                 : "r"(a[0].bits), "r"(a[1].bits), "r"(a[2].bits), "r"(a[3].bits), "r"(b0.bits),             \
                   "r"(b1.bits))

static __device__ __forceinline__ void tide_multiply(float (&c)[4], const tide_pair<tide_cuda_bf16> (&a)[4],
                                                     const tide_pair<tide_cuda_bf16> &b0,
                                                     const tide_pair<tide_cuda_bf16> &b1)
{
#if TIDE_CUDA_TENSOR_CORES
    TIDE_MMA("bf16");
#else
    tide_multiply_reference(c, a, b0, b1);
#endif
}

static __device__ __forceinline__ void tide_multiply(float (&c)[4], const tide_pair<tide_cuda_fp16> (&a)[4],
                                                     const tide_pair<tide_cuda_fp16> &b0,
                                                     const tide_pair<tide_cuda_fp16> &b1)
{
#if TIDE_CUDA_TENSOR_CORES
    TIDE_MMA("f16");
#else
    tide_multiply_reference(c, a, b0, b1);
#endif
}

static __device__ __forceinline__ void tide_multiply(float (&c)[4], const tide_pair<tide_cuda_fp32> (&a)[4],
                                                     const tide_pair<tide_cuda_fp32> &b0,
                                                     const tide_pair<tide_cuda_fp32> &b1)
{
    tide_multiply_reference(c, a, b0, b1);
}
#else
template <typename T>
static void tide_multiply(float (&c)[4], const tide_pair<T> (&a)[4], const tide_pair<T> &b0,
                          const tide_pair<T> &b1)
{
    const float given[6][2] = {{a[0].first(), a[0].second()}, {a[1].first(), a[1].second()},
                               {a[2].first(), a[2].second()}, {a[3].first(), a[3].second()},
                               {b0.first(), b0.second()},     {b1.first(), b1.second()}};
    tide_cuda_mma(c, given);
}
#endif

/* ---- a tile in shared memory ---- */

template <typename T> using tide_tile = tide_cuda_shared<typename T::stored>;

/* Index at which a granule begins in a tile of rows of W elements, W a power of two. From the index of one
 * granule, `own`, constants give those of others: granule + g is at own ^ (g * TIDE_GRANULE) if g has no bit
 * in common with the granule; row + r is at (own ^ (r % 8 * TIDE_GRANULE)) + r * W if r % 8 has no bit in
 * common with the row. `own` may include a base that is a multiple of W. */
template <int W> static __device__ __forceinline__ int tide_tile_at(int row, int granule)
{
    static_assert(W >= 64 && (W & (W - 1)) == 0, "a row's place has no bit of a granule's");
    return row * W + (granule ^ (row & 7)) * TIDE_GRANULE;
}

/* Load four 8 x 8 matrices at once. Each lane passes in `own` the index of one granule: row lane % 8 of
 * matrix lane / 8. A lane gets from each matrix the pair at row g, columns 2t and 2t + 1; if
 * TRANSPOSED, at rows 2t and 2t + 1, column g. */
template <typename T, bool TRANSPOSED>
static __device__ __forceinline__ void tide_load_matrices_reference(tide_pair<T> (&out)[4], tide_tile<T> tile,
                                                                    int own)
{
    const int lane = tide_lane(), g = lane / 4, t = lane % 4;
#pragma unroll
    for (int matrix = 0; matrix < 4; matrix++) {
        const int first_row = __shfl_sync(0xffffffffu, own, 8 * matrix + (TRANSPOSED ? 2 * t : g));
        const int second_row = TRANSPOSED ? __shfl_sync(0xffffffffu, own, 8 * matrix + 2 * t + 1) : first_row;
        const typename T::stored both[2] = {tile[first_row + (TRANSPOSED ? g : 2 * t)],
                                            tile[second_row + (TRANSPOSED ? g : 2 * t + 1)]};
        memcpy(&out[matrix], both, sizeof both);
    }
}

#if defined(__CUDACC__)
template <typename T, bool TRANSPOSED>
static __device__ __forceinline__ void tide_load_matrices(tide_pair<T> (&out)[4], tide_tile<T> tile, int own)
{
#if TIDE_CUDA_TENSOR_CORES
    if constexpr (sizeof(tide_pair<T>) == 4) {
        const uint32_t address = (uint32_t)__cvta_generic_to_shared(&tile[own]);
        if constexpr (TRANSPOSED)
            asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                         : "=r"(out[0].bits), "=r"(out[1].bits), "=r"(out[2].bits), "=r"(out[3].bits)
                         : "r"(address)
                         : "memory");
        else
            asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                         : "=r"(out[0].bits), "=r"(out[1].bits), "=r"(out[2].bits), "=r"(out[3].bits)
                         : "r"(address)
                         : "memory");
        return;
    }
#endif
    tide_load_matrices_reference<T, TRANSPOSED>(out, tile, own);
}
#else
template <typename T, bool TRANSPOSED>
static void tide_load_matrices(tide_pair<T> (&out)[4], tide_tile<T> tile, int own)
{
    const int lane = tide_lane(), g = lane / 4, t = lane % 4;
    const int *rows = tide_cuda_gather(own, "ldmatrix");
    for (int matrix = 0; matrix < 4; matrix++, rows += 8) {
        const typename T::stored both[2] = {tile[TRANSPOSED ? rows[2 * t] + g : rows[g] + 2 * t],
                                            tile[TRANSPOSED ? rows[2 * t + 1] + g : rows[g] + 2 * t + 1]};
        memcpy(&out[matrix], both, sizeof both);
    }
}
#endif

/* ---- products of a warp's rows with a tile ---- */

/* c[m] = rows[m] tile^T: scores. c[m] is [16 x ROWS]; rows[m] gives 32 columns of 16 rows at a time, as two
 * As. A row of the tile is a column of B, and k runs along it. */
template <typename T, int W, int M, int ROWS, typename Rows>
static __device__ __forceinline__ void tide_multiply_rows(float (&c)[M][ROWS / 8][4], const Rows (&rows)[M],
                                                          tide_tile<T> tile, int base)
{
    const int lane = tide_lane(), own = base + tide_tile_at<W>(lane % 8 + lane / 16 * 8, lane / 8 % 2);
#pragma unroll
    for (int m = 0; m < M; m++)
#pragma unroll
        for (int i = 0; i < ROWS / 8; i++)
            c[m][i][0] = c[m][i][1] = c[m][i][2] = c[m][i][3] = 0.0f;
#pragma unroll(Rows::unrolled)
    for (int chunk = 0; chunk < W / 32; chunk++) {
        tide_pair<T> a[M][2][4];
#pragma unroll
        for (int m = 0; m < M; m++)
            rows[m].get(a[m], chunk);
#pragma unroll
        for (int k = 0; k < 2; k++)
#pragma unroll
            for (int i = 0; i < ROWS / 16; i++) {
                tide_pair<T> b[4];
                const int beside = (4 * chunk + 2 * k) * TIDE_GRANULE;
                tide_load_matrices<T, false>(b, tile, (own ^ beside) + 16 * i * W);
#pragma unroll
                for (int m = 0; m < M; m++) {
                    tide_multiply(c[m][2 * i], a[m][k], b[0], b[1]);
                    tide_multiply(c[m][2 * i + 1], a[m][k], b[2], b[3]);
                }
            }
    }
}

/* c[m] += weights[m] tile, for COLUMNS columns of the tile from granule `first` on. weights[m] is [16 x
 * ROWS], the fp32 result of products, which this function rounds to T; k runs over the tile's rows. */
template <typename T, int W, int M, int ROWS, int COLUMNS>
static __device__ __forceinline__ void tide_multiply_weights(float (&c)[M][COLUMNS / 8][4],
                                                             const float (&weights)[M][ROWS / 8][4],
                                                             tide_tile<T> tile, int base, int first)
{
    const int lane = tide_lane(), own = base + tide_tile_at<W>(lane % 16, first + lane / 16);
#pragma unroll
    for (int i = 0; i < ROWS / 16; i++) {
        tide_pair<T> a[M][4];
#pragma unroll
        for (int m = 0; m < M; m++)
#pragma unroll
            for (int part = 0; part < 4; part++)
                a[m][part] = tide_pair<T>::of(weights[m][2 * i + part / 2][part % 2 * 2],
                                              weights[m][2 * i + part / 2][part % 2 * 2 + 1]);
#pragma unroll
        for (int j = 0; j < COLUMNS / 16; j++) {
            tide_pair<T> b[4];
            tide_load_matrices<T, true>(b, tile, (own ^ (2 * j * TIDE_GRANULE)) + 16 * i * W);
#pragma unroll
            for (int m = 0; m < M; m++) {
                tide_multiply(c[m][2 * j], a[m], b[0], b[1]);
                tide_multiply(c[m][2 * j + 1], a[m], b[2], b[3]);
            }
        }
    }
}

/* ---- asynchronous copies into shared memory ---- */

/* A thread's cp.async: copy() begins a copy; commit() makes the copies since the last commit a group; wait()
 * waits until at most the latest PENDING (0 or 1) groups are in flight; a barrier then makes the copies
 * visible to the block. Without a GPU half of the copies are made at once and half at wait(), so that a test
 * detects a missing wait and a missing barrier. */
#if defined(__CUDACC__)
template <typename T> struct tide_async_copies {
    tide_tile<T> tile;

    __device__ __forceinline__ void copy(int at, const typename T::stored *from, bool inside)
    {
#if TIDE_CUDA_TENSOR_CORES
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(
                         (uint32_t)__cvta_generic_to_shared(&tile[at])),
                     "l"(__cvta_generic_to_global(from)), "r"(inside ? 16 : 0)
                     : "memory");
#else
        tide_cuda_vector<T> value = {};
        if (inside)
            value = *(const tide_cuda_vector<T> *)from;
        tide_cuda_shared_store(tile, (size_t)at, value);
#endif
    }
    __device__ __forceinline__ void commit(void)
    {
#if TIDE_CUDA_TENSOR_CORES
        asm volatile("cp.async.commit_group;" ::: "memory");
#endif
    }
    template <int PENDING> __device__ __forceinline__ void wait(void)
    {
#if TIDE_CUDA_TENSOR_CORES
        asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
#endif
    }
};
#else
template <typename T> struct tide_async_copies {
    enum { MOST = 128 };
    struct pending {
        int at;
        const void *from; /* NULL: zeros */
    };
    tide_tile<T> tile;
    pending late[MOST];
    int count, committed, latest; /* latest: index at which the last committed group begins */

    explicit tide_async_copies(tide_tile<T> into) : tile(into), count(0), committed(0), latest(0) {}
    void copy(int at, const typename T::stored *from, bool inside)
    {
        const pending copy = {at, inside ? from : NULL};
        assert(count < MOST && (uintptr_t)from % 16 == 0);
        if (at / T::per_16_bytes % 2 == 0)
            make(copy);
        else
            late[count++] = copy;
    }
    void commit(void)
    {
        latest = committed;
        committed = count;
    }
    template <int PENDING> void wait(void)
    {
        const int complete = PENDING ? latest : committed;
        for (int i = 0; i < complete; i++)
            make(late[i]);
        for (int i = complete; i < count; i++)
            late[i - complete] = late[i];
        count -= complete;
        committed -= complete;
        latest = 0;
    }

  private:
    void make(const pending &copy)
    {
        tide_cuda_vector<T> value = {};
        if (copy.from)
            memcpy(&value, copy.from, sizeof value);
        tide_cuda_shared_store(tile, (size_t)copy.at, value);
    }
};
#endif

#endif
