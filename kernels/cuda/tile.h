/* Matrix products of a warp: what a tensor core computes, and everything around that one instruction.
 *
 * mma.m16n8k16 multiplies A [16 x 16] by B [16 x 8] and adds to C [16 x 8] in fp32. A warp's 32 lanes hold the
 * matrices in pieces. With g = lane / 4 ("which row") and t = lane % 4 ("which pair of columns") a lane holds, in
 * pairs of neighbours:
 *
 *     A   a[0] = row g,     k 2t, 2t+1        a[1] = row g + 8, k 2t, 2t+1
 *         a[2] = row g,     k 2t+8, 2t+9      a[3] = row g + 8, k 2t+8, 2t+9
 *     B   b[0] = column g,  k 2t, 2t+1        b[1] = column g,  k 2t+8, 2t+9
 *     C   c[0], c[1] = row g, columns 2t, 2t+1            c[2], c[3] = row g + 8, the same columns
 *
 * The four lanes of one g are a quad. Two facts make attention simple. A C of 16 columns is, rounded, the A of a next
 * product over those columns: weights never leave registers. And a pair of C, of B and of A lies at columns 8 i + 2t:
 * four of them (i = 0..3) turned within the quad are 8 whole neighbours for each lane, 16 bytes of bf16. So global
 * memory is read and written in granules of 8 elements, and fragments are made by four shuffles (tide_quad_turn).
 *
 * A tile in shared memory is rows of W elements; its granules are permuted, granule ^= row % 8, so that 8 rows of one
 * granule lie in 8 different groups of banks, as ldmatrix reads them. B comes from it by ldmatrix, plain when k runs
 * along the row, transposed (.trans) when k runs down the rows.
 *
 * Three things are instructions that only a GPU has: mma, ldmatrix, cp.async. Each has a plain path beside it which
 * does the same with shuffles and plain loads: same lanes, same addresses, same fragments. fp32, which has no mma of
 * its own precision, always takes it: one fmaf after another in the order of k. A product is then 64 shuffles and 64
 * fmaf a lane, and a multiprocessor shuffles a quarter as fast as it multiplies: some 14 TFLOP/s on an H200, enough
 * for the truth that the others are compared with, and the code is the same. For bf16 and fp16 the plain path runs in
 * the tests on the CPU, and on a GPU where TIDE_CUDA_PLAIN_MMA is defined, so that the two can be compared there: the
 * instruction may add its 16 products in another order and exponentials (attention.h) differ in their last bit,
 * nothing else may.
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

/* The warp's number in its block. It comes from one lane, so that the compiler knows it to be the same for the whole
 * warp and can hold what follows from it in uniform registers. */
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

/* As they stand in memory: four pairs are a granule's bytes. */
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

/* Between lanes 2^bit apart in a quad: the one without the bit gives `high`, the one with it gives `low`, each gets
 * the other's in that place. */
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

/* Lane t's pair i becomes lane i's pair t, within each quad. Its own inverse. */
template <typename T> static __device__ __forceinline__ void tide_quad_turn(tide_pair<T> (&pairs)[4])
{
    tide_quad_swap(pairs[0], pairs[1], 0);
    tide_quad_swap(pairs[2], pairs[3], 0);
    tide_quad_swap(pairs[0], pairs[2], 1);
    tide_quad_swap(pairs[1], pairs[3], 1);
}

/* ---- the product ---- */

/* c += A B, every number through shuffles: for each k, the two rows' pair from this quad's lane that holds it, the
 * two columns' from theirs. */
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

/* The instruction; volatile keeps the whole warp together at it. */
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

/* ---- a tile in shared memory ---- */

template <typename T> using tide_tile = tide_cuda_shared<typename T::stored>;

/* Where a granule begins in a tile of rows of W elements, W a power of two. Constants lead from one place, `own`, to
 * others: to granule + g by own ^ (g * TIDE_GRANULE), to row + r by (own ^ (r % 8 * TIDE_GRANULE)) + r * W, if g has
 * no bit in common with the granule, nor r % 8 with the row. `own` may include a base that is a multiple of W. */
template <int W> static __device__ __forceinline__ int tide_tile_at(int row, int granule)
{
    static_assert(W >= 64 && (W & (W - 1)) == 0, "a row's place has no bit of a granule's");
    return row * W + (granule ^ (row & 7)) * TIDE_GRANULE;
}

/* Four 8 x 8 matrices at once. `own` is the place of the granule that this lane names: row lane % 8 of matrix
 * lane / 8. Of each matrix a lane gets the pair at row g, columns 2t and 2t + 1; transposed: rows 2t and 2t + 1, column
 * g. */
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

/* ---- products of a warp's rows with a tile ---- */

/* c[m] = rows[m] tile^T: scores. c[m] is [16 x ROWS]; rows[m] gives 32 columns of 16 rows at a time, as two As. The
 * tile's row is B's column, k runs along it. */
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

/* c[m] += weights[m] tile, for COLUMNS of the tile from granule `first` on. weights[m] is [16 x ROWS] as products
 * leave it, rounded to T here; the tile's row is k. */
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

/* ---- copies into shared memory that run beside the arithmetic ---- */

/* A thread's cp.async: copy, commit what was copied since the last commit as a group, wait until at most PENDING (0
 * or 1) of the latest groups may still be on their way; then a barrier shows them to the block. Outside a GPU half of
 * the copies are made at once and half when they are waited for, so that a test sees both a wait and a barrier that
 * is missing. */
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
    int count, committed, latest; /* latest: where the last committed group begins */

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
