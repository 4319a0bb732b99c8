/* What attention's kernels share: which rows a block owns, how a warp holds them, how the other rows stream past.
 *
 * Every one of the three kernels (forward; dQ; dK and dV) has the same shape:
 *
 *     a block of 4 warps owns rows of one head (queries, or keys); each warp 16 x M of them, as A fragments;
 *     the rows of the other kind stream through shared memory, two tensors side by side (K and V, or Q and dO),
 *     in two stages: while one pair of tiles is multiplied the next is on its way (cp.async);
 *     scores and their gradients, 16 x ROWS of a warp, live in registers and become the next product's A.
 *
 *     shared memory: | stage 0: first tensor [ROWS, W] | second [ROWS, W] | stage 1: first | second |  at most 32 KiB
 *
 * Every score is computed by the warp that uses it, so warps exchange nothing: two barriers a pair of tiles, for
 * shared memory.
 *
 * W is the head's width padded to 64, 128 or 256; columns beyond the width are zeros in shared memory and in
 * fragments, and are never read or written in global memory. Nor are rows beyond the sequence. A width that is a
 * multiple of 16 bytes is moved in accesses of 16 bytes, any other element by element.
 *
 * Where a warp's rows do not fit registers (fp32, and 256 always) they are read again from global memory, through the
 * first-level cache, chunk by chunk; and from 256 on two blocks share the work of one, each making half of the
 * output's columns. Slower, not different.
 *
 * Order of blocks: heavy tiles first, so that the last ones to finish are light; heads in groups whose streamed rows
 * fit the second-level cache together. It is an order of work only: each block's result depends on nothing but its
 * own rows.
 */
#ifndef TIDEPOOL_KERNELS_CUDA_ATTENTION_H
#define TIDEPOOL_KERNELS_CUDA_ATTENTION_H

#include "kernels/cuda/tile.h"

enum { TIDE_ATTENTION_WARPS = 4, TIDE_ATTENTION_THREADS = TIDE_ATTENTION_WARPS * TIDE_WARP };

/* What a group of heads may stream: about half of the second-level cache of an A100 (40 MiB) or H200 (50). In the
 * tests so little that a few heads make several groups. */
#if defined(__CUDACC__)
#define TIDE_ATTENTION_CACHE_BYTES ((size_t)24 << 20)
#else
#define TIDE_ATTENTION_CACHE_BYTES ((size_t)16 << 10)
#endif

/* A problem, the same for all three kernels. Passed to them by value. */
struct tide_attention_shape {
    size_t model_width;      /* heads x head_width: a row of out; three of them a row of qkv */
    unsigned sequence_heads; /* batch x heads */
    unsigned together;       /* heads in a group */
    int heads, length, width;
    bool vectors;     /* a row of a head begins on 16 bytes and is whole vectors */
    float scale;      /* 1 / sqrt(width) */
    float scale_log2; /* scale / ln 2: exponentials are powers of two */
};

template <typename T, typename Args> static tide_attention_shape tide_attention_shape_of(const Args *args)
{
    const float scale = 1.0f / sqrtf((float)args->head_width);
    const size_t streamed = 2 * args->sequence_length * args->head_width * sizeof(typename T::stored);
    const size_t fitting = TIDE_ATTENTION_CACHE_BYTES / (streamed ? streamed : 1);
    const size_t all = args->batch * args->heads;
    tide_attention_shape shape = {};
    shape.model_width = args->heads * args->head_width;
    shape.sequence_heads = (unsigned)all;
    shape.together = (unsigned)(fitting < 1 ? 1 : fitting < all ? fitting : all);
    shape.heads = (int)args->heads;
    shape.length = (int)args->sequence_length;
    shape.width = (int)args->head_width;
    shape.vectors = args->head_width % T::per_16_bytes == 0;
    shape.scale = scale;
    shape.scale_log2 = scale * 1.44269504088896340736f;
    return shape;
}

/* Blocks of one launch: every head's tiles of `own` rows, `parts` blocks each. ARGUMENT for what no kernel here can
 * do: heads wider than 256, and more blocks than a grid has (2^31 - 1: more tokens than any GPU holds). */
template <typename Args>
static tide_status tide_attention_blocks(const Args *args, size_t own, size_t parts, unsigned *blocks)
{
    const size_t tiles = (args->sequence_length + own - 1) / own;
    const size_t all = args->batch * args->heads * tiles * parts;
    if (args->head_width > 256)
        return tide_fail(TIDE_ERROR_ARGUMENT, "attention: heads of width %zu; on CUDA at most 256", args->head_width);
    if (all > 0x7fffffffu)
        return tide_fail(TIDE_ERROR_ARGUMENT, "attention: %zu sequences x %zu heads x %zu tiles are more than a grid",
                         args->batch, args->heads, tiles);
    *blocks = (unsigned)all;
    return TIDE_OK;
}

/* What a block works on. */
struct tide_attention_place {
    unsigned head; /* sequence x heads + head */
    int order;     /* of its tile among the head's, heaviest first */
    int part;      /* of the output's columns */
};

static __device__ __forceinline__ tide_attention_place tide_attention_find(const tide_attention_shape &shape,
                                                                           int own, int parts)
{
    const unsigned tiles = (unsigned)((shape.length + own - 1) / own);
    const unsigned group_blocks = shape.together * tiles * (unsigned)parts;
    const unsigned group = blockIdx.x / group_blocks, within = blockIdx.x % group_blocks;
    const unsigned first = group * shape.together, left = shape.sequence_heads - first;
    const unsigned heads = left < shape.together ? left : shape.together;
    const unsigned unit = within / (unsigned)parts;
    return {first + unit % heads, (int)(unit / heads), (int)(within % (unsigned)parts)};
}

/* ---- one head's part of a matrix in global memory ---- */

/* Rows [0, length), columns [0, width). */
template <typename Stored> struct tide_head_rows {
    Stored *first;
    size_t row_elements;
    int length, width;
    bool vectors;
};

/* The q (which = 0), k (1) or v (2) of a head in qkv or dqkv. */
template <typename Stored>
static __device__ __forceinline__ tide_head_rows<Stored> tide_head_in_qkv(Stored *qkv, unsigned head, int which,
                                                                          const tide_attention_shape &shape)
{
    const size_t sequence = head / (unsigned)shape.heads, number = head % (unsigned)shape.heads;
    const size_t row = 3 * shape.model_width;
    const size_t column = (size_t)which * shape.model_width + number * (size_t)shape.width;
    return {qkv + sequence * (size_t)shape.length * row + column, row, shape.length, shape.width, shape.vectors};
}

/* A head's part of out or dout. */
template <typename Stored>
static __device__ __forceinline__ tide_head_rows<Stored> tide_head_in_out(Stored *out, unsigned head,
                                                                          const tide_attention_shape &shape)
{
    const size_t sequence = head / (unsigned)shape.heads, number = head % (unsigned)shape.heads;
    const size_t row = shape.model_width;
    return {out + sequence * (size_t)shape.length * row + number * (size_t)shape.width, row, shape.length,
            shape.width, shape.vectors};
}

/* A vector of the first `inside` elements at `from`, zeros after them; one by one, for any address. */
template <typename T>
static __device__ __forceinline__ tide_cuda_vector<T> tide_vector_load(const typename T::stored *from, int inside)
{
    tide_cuda_vector<T> value = {};
#pragma unroll
    for (int i = 0; i < T::per_16_bytes; i++)
        if (i < inside)
            value.element[i] = from[i];
    return value;
}

/* Eight neighbours of a row, zeros outside. */
template <typename T>
static __device__ __forceinline__ void tide_granule_load(tide_pair<T> (&granule)[4],
                                                         const tide_head_rows<const typename T::stored> &rows,
                                                         int row, int column)
{
    const typename T::stored *from = rows.first + (size_t)row * rows.row_elements + column;
    const int inside = row < rows.length ? rows.width - column : 0;
    tide_cuda_vector<T> vectors[(TIDE_GRANULE / T::per_16_bytes)] = {};
#pragma unroll
    for (int v = 0; v < (TIDE_GRANULE / T::per_16_bytes); v++)
        if (rows.vectors) {
            if (v * T::per_16_bytes < inside)
                vectors[v] = *(const tide_cuda_vector<T> *)(from + v * T::per_16_bytes);
        } else {
            vectors[v] = tide_vector_load<T>(from + v * T::per_16_bytes, inside - v * T::per_16_bytes);
        }
    memcpy(granule, vectors, sizeof vectors);
}

template <typename T>
static __device__ __forceinline__ void tide_granule_store(const tide_pair<T> (&granule)[4],
                                                          const tide_head_rows<typename T::stored> &rows, int row,
                                                          int column)
{
    typename T::stored *to = rows.first + (size_t)row * rows.row_elements + column;
    const int inside = row < rows.length ? rows.width - column : 0;
    tide_cuda_vector<T> vectors[(TIDE_GRANULE / T::per_16_bytes)];
    memcpy(vectors, granule, sizeof vectors);
#pragma unroll
    for (int v = 0; v < (TIDE_GRANULE / T::per_16_bytes); v++)
        if (rows.vectors) {
            if (v * T::per_16_bytes < inside)
                *(tide_cuda_vector<T> *)(to + v * T::per_16_bytes) = vectors[v];
        } else {
#pragma unroll
            for (int i = 0; i < T::per_16_bytes; i++)
                if (v * T::per_16_bytes + i < inside)
                    to[v * T::per_16_bytes + i] = vectors[v].element[i];
        }
}

/* ---- a warp's own 16 rows ---- */

/* Two As: 32 columns of 16 rows, `first_row` being lane 0's. */
template <typename T>
static __device__ __forceinline__ void tide_fragments_load(tide_pair<T> (&a)[2][4],
                                                           const tide_head_rows<const typename T::stored> &rows,
                                                           int first_row, int chunk)
{
    const int g = tide_lane() / 4, t = tide_lane() % 4;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        tide_pair<T> granule[4];
        tide_granule_load<T>(granule, rows, first_row + g + 8 * half, 32 * chunk + TIDE_GRANULE * t);
        tide_quad_turn(granule);
#pragma unroll
        for (int i = 0; i < 4; i++)
            a[i / 2][i % 2 * 2 + half] = granule[i];
    }
}

/* Do two tensors' own rows fit registers, beside what is summed? */
template <typename T, int W> struct tide_own_kept {
    enum { kept = W <= 128 && sizeof(typename T::stored) == 2 };
};

/* The rows as fragments, chunk after chunk: kept in registers, or read again each time. */
template <typename T, int W, bool KEPT> struct tide_own_rows {
    enum { unrolled = W / 32 }; /* an index of registers is a constant */
    tide_pair<T> fragments[W / 32][2][4];

    __device__ __forceinline__ void take(const tide_head_rows<const typename T::stored> &rows, int first_row)
    {
#pragma unroll
        for (int chunk = 0; chunk < W / 32; chunk++)
            tide_fragments_load<T>(fragments[chunk], rows, first_row, chunk);
    }
    __device__ __forceinline__ void get(tide_pair<T> (&a)[2][4], int chunk) const
    {
#pragma unroll
        for (int i = 0; i < 8; i++)
            a[i / 4][i % 4] = fragments[chunk][i / 4][i % 4];
    }
};

template <typename T, int W> struct tide_own_rows<T, W, false> {
    enum { unrolled = 1 };
    tide_head_rows<const typename T::stored> rows;
    int first_row;

    __device__ __forceinline__ void take(const tide_head_rows<const typename T::stored> &taken, int first)
    {
        rows = taken;
        first_row = first;
    }
    __device__ __forceinline__ void get(tide_pair<T> (&a)[2][4], int chunk) const
    {
        tide_fragments_load<T>(a, rows, first_row, chunk);
    }
};

/* rows = factor x sums, for 16 rows from first_row and COLUMNS from `column` on; factors of rows g and g + 8. */
template <typename T, int COLUMNS>
static __device__ __forceinline__ void tide_sums_store(const float (&sums)[COLUMNS / 8][4], const float (&factor)[2],
                                                       const tide_head_rows<typename T::stored> &rows, int first_row,
                                                       int column)
{
    const int g = tide_lane() / 4, t = tide_lane() % 4;
#pragma unroll
    for (int chunk = 0; chunk < COLUMNS / 32; chunk++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            tide_pair<T> granule[4];
#pragma unroll
            for (int i = 0; i < 4; i++)
                granule[i] = tide_pair<T>::of(sums[4 * chunk + i][2 * half] * factor[half],
                                              sums[4 * chunk + i][2 * half + 1] * factor[half]);
            tide_quad_turn(granule);
            tide_granule_store<T>(granule, rows, first_row + g + 8 * half,
                                  column + 32 * chunk + TIDE_GRANULE * t);
        }
}

/* ---- the rows that stream past ---- */

/* Rows of a streamed tile: 8 KiB, but 16 rows at the least, which are one product's k. */
template <typename T, int W> struct tide_stream_rows {
    enum { fitting = 8192 / (W * (int)sizeof(typename T::stored)), rows = fitting < 16 ? 16 : fitting };
};

/* Stages of shared memory and what stands where, in elements. A block that asks for nothing special has 48 KiB. */
template <typename T, int W, int ROWS> struct tide_stream {
    enum {
        tile = ROWS * W,
        stages = 4 * tile * sizeof(typename T::stored) <= 48 * 1024 ? 2 : 1,
        elements = 2 * tile * stages,
    };
};

/* A vector for any address: the first `inside` elements, zeros after them. A loop, since it must not cost the other
 * case a register. */
template <typename T>
static __device__ __forceinline__ void tide_elements_copy(tide_tile<T> tile, int at, const typename T::stored *from,
                                                          int inside)
{
#pragma unroll 1
    for (int i = 0; i < T::per_16_bytes; i++)
        tile[at + i] = i < inside ? from[i] : (typename T::stored)0;
}

/* One tile from global memory, vector after vector over the block's threads: a thread's are of one column, some rows
 * apart. */
template <typename T, int W, int ROWS>
static __device__ __forceinline__ void tide_tile_copy(tide_async_copies<T> &copies, int base,
                                                      const tide_head_rows<const typename T::stored> &rows,
                                                      int first_row)
{
    const int row_vectors = W / T::per_16_bytes, step = TIDE_ATTENTION_THREADS / row_vectors;
    static_assert(TIDE_ATTENTION_THREADS % row_vectors == 0 && ROWS % step == 0, "threads copy alike");
    const int row = (int)threadIdx.x / row_vectors, column = (int)threadIdx.x % row_vectors * T::per_16_bytes;
    const int left = column < rows.width ? rows.length - first_row - row : 0;
    const typename T::stored *from = rows.first;
    if (left > 0)
        from += (size_t)(first_row + row) * rows.row_elements + (size_t)column;
#pragma unroll
    for (int down = 0; down < ROWS; down += step) {
        const int at = base + tide_tile_at<W>(row + down, column / TIDE_GRANULE) + column % TIDE_GRANULE;
        const typename T::stored *here = down < left ? from + (size_t)down * rows.row_elements : rows.first;
        if (rows.vectors)
            copies.copy(at, here, down < left);
        else
            tide_elements_copy<T>(copies.tile, at, here, down < left ? rows.width - column : 0);
    }
}

/* use(first tensor's base, second's base, first row) for tiles `begin` to `end` - 1 of both tensors, all the block's
 * threads together; STEP rows of a tile at a time. Steps: 1. the next pair is sent for, into the stage that the last
 * barrier freed; 2. this pair has arrived, and a barrier shows it to all; 3. it is used; 4. a barrier: its stage is
 * free. With one stage, 1 comes last. */
template <typename T, int W, int ROWS, int STEP, typename Use>
static __device__ __forceinline__ void tide_stream_tiles(tide_tile<T> tile,
                                                         const tide_head_rows<const typename T::stored> &first,
                                                         const tide_head_rows<const typename T::stored> &second,
                                                         int begin, int end, const Use &use)
{
    const int one = tide_stream<T, W, ROWS>::tile, stages = tide_stream<T, W, ROWS>::stages;
    tide_async_copies<T> copies{tile};
    const auto send = [&](int number) {
        const int base = (number - begin) % stages * 2 * one;
        if (number < end) {
            tide_tile_copy<T, W, ROWS>(copies, base, first, number * ROWS);
            tide_tile_copy<T, W, ROWS>(copies, base + one, second, number * ROWS);
        }
        copies.commit();
    };
    send(begin);
    for (int number = begin; number < end; number++) {
        const int base = (number - begin) % stages * 2 * one;
        if (stages == 2)
            send(number + 1);
        copies.template wait<stages - 1>();
        TIDE_CUDA_BARRIER();
#pragma unroll 1
        for (int step = 0; step < ROWS; step += STEP) {
            const int at = base + step * W;
            use(at, at + one, number * ROWS + step);
        }
        TIDE_CUDA_BARRIER();
        if (stages == 1)
            send(number + 1);
    }
}

/* ---- powers of two ---- */

/* 2^x, within 2 units in the last place; for 16-bit types the GPU's own instruction, which flushes denormals. */
template <typename T> static __device__ __forceinline__ float tide_exp2(float x)
{
#if TIDE_CUDA_TENSOR_CORES
    if constexpr (sizeof(typename T::stored) == 2) {
        float power;
        asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(x));
        return power;
    }
#endif
    return exp2f(x);
}

#endif
