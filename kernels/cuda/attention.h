/* Code that attention's kernels share: which rows a block owns, how a warp holds them, how the block streams
 * the other rows through shared memory.
 *
 * The three kernels (forward; dQ; dK and dV) have the same structure:
 *
 *     a block of 4 warps owns rows of one head (queries, or keys); each warp 16 x M of them, as A fragments;
 *     it streams the other rows through shared memory, two tensors side by side (K and V, or Q and dO),
 *     in two stages: while the warps multiply one pair of tiles, the block copies the next (cp.async);
 *     scores and their gradients, 16 x ROWS of a warp, stay in registers and become the next product's A.
 *
 *     shared memory, at most 32 KiB:
 *     | stage 0: first tensor [ROWS, W] | second tensor [ROWS, W] | stage 1: first | second |
 *
 * Each warp computes the scores that it uses, so warps exchange nothing; a pair of tiles takes two barriers,
 * for shared memory.
 *
 * W is the head's width padded to 64, 128 or 256. Columns beyond the width are zeros in shared memory and in
 * fragments; the kernels do not access them, or rows beyond the sequence, in global memory. If widths,
 * strides and addresses are all multiples of 16 bytes, the kernels access 16 bytes of a row at once,
 * otherwise single elements. For 16-bit types these are two kernels (VECTORS), since a test at every copy
 * would cost a third of a tile's instructions. For fp32, whose kernels are five times as long, there is one
 * kernel, which tests.
 *
 * Several query heads, a group, attend to one key head. A block that owns keys therefore works for the
 * whole group: it streams Q and dO of one head of the group after the other and sums dK and dV in that
 * order. If there are few key heads, several blocks divide the query heads of a group among them; the
 * shape alone decides how many (tide_gpu_attention_splits in kernels/gpu_sizes.h).
 *
 * Documents: a query attends to the keys from its start on, and starts never decrease. The keys to which a
 * block's queries attend are thus one range, and so are the queries that attend to a block's keys. The block
 * streams only the tiles in this range, each warp skips the steps outside its own range, and the rest is
 * masked.
 *
 * If a warp's rows do not fit into registers (in fp32, and always at W = 256), the warp reads them again from
 * global memory, through the first-level cache, 32 columns at a time. At W = 256 two blocks share the work of
 * one, and each computes half of the output's columns. Both make the kernel slower but do not change its
 * results.
 *
 * Order of blocks: those with most work first, so that the last to finish are short; heads are taken in sets
 * whose streamed rows fit into the second-level cache together. The order does not change results, since no
 * block depends on another. */
#ifndef TIDEPOOL_KERNELS_CUDA_ATTENTION_H
#define TIDEPOOL_KERNELS_CUDA_ATTENTION_H

#include "kernels/cuda/tile.h"

enum { TIDE_ATTENTION_WARPS = 4, TIDE_ATTENTION_THREADS = TIDE_ATTENTION_WARPS * TIDE_WARP };

/* Bytes that a set of heads may stream: about half of the second-level cache of an A100 (40 MiB) or H200
 * (50 MiB). On the CPU, where tests run the kernels, so few that a few heads make several sets. */
#if defined(__CUDACC__)
#define TIDE_ATTENTION_CACHE_BYTES ((size_t)24 << 20)
#else
#define TIDE_ATTENTION_CACHE_BYTES ((size_t)16 << 10)
#endif

/* The problem that one kernel solves; passed by value. */
struct tide_attention_shape {
    const int32_t *starts;   /* per token the begin of its document; NULL: all begin at 0 */
    size_t q_row, v_row;     /* of q and k; of v */
    size_t out_row;          /* of out and dout: heads x width */
    size_t gradient_row;     /* of dq, dk and dv */
    unsigned sequence_heads; /* batch x heads that own rows: query heads or, for dK and dV, key heads */
    unsigned together;       /* how many of these heads make a set (see "Order of blocks" above) */
    int heads, kv_heads;
    int group; /* heads / kv_heads: query heads that attend to one key head */
    /* kernel of dK and dV: the number of blocks among which the query heads of a group are divided */
    int splits;
    int length, width;
    bool vectors; /* every row of every head begins at a multiple of 16 bytes and consists of whole vectors */
    float scale;  /* 1 / sqrt(width) */
    float scale_log2; /* scale / ln 2: exponentials are powers of two */
};

/* Make the shape from the arguments of forward or backward. `addresses`: those of all matrices, or-ed. */
template <typename T, typename Args>
static tide_attention_shape tide_attention_shape_of(const Args *args, size_t gradient_row,
                                                    uintptr_t addresses)
{
    const size_t columns = args->head_width | args->qk_row | args->v_row | gradient_row;
    tide_attention_shape shape = {};
    assert(args->kv_heads > 0 && args->heads % args->kv_heads == 0);
    assert(columns < (size_t)1 << 25); /* so that offsets within a tile of 64 rows fit 32 bits */
    shape.starts = args->starts;
    shape.q_row = args->qk_row;
    shape.v_row = args->v_row;
    shape.out_row = args->heads * args->head_width;
    shape.gradient_row = gradient_row;
    shape.heads = (int)args->heads;
    shape.kv_heads = (int)args->kv_heads;
    shape.group = (int)(args->heads / args->kv_heads);
    shape.length = (int)args->sequence_length;
    shape.width = (int)args->head_width;
    shape.vectors = columns % T::per_16_bytes == 0 && addresses % 16 == 0;
    shape.scale = 1.0f / sqrtf((float)args->head_width);
    shape.scale_log2 = shape.scale * 1.44269504088896340736f;
    return shape;
}

/* Compute the number of blocks of one launch: for each head that owns rows, `parts` blocks for each tile of
 * `own` rows. Also sets how many heads make a set (shape->together): if queries are owned, the heads of a
 * group stream the same keys; if keys are owned, each head streams the queries of its whole group. ARGUMENT:
 * heads wider than 256, or more blocks than a grid can have (2^31 - 1: more tokens than any GPU holds). */
template <typename T>
static tide_status tide_attention_blocks(tide_attention_shape *shape, size_t batch, bool owns_queries,
                                         int own, int parts, unsigned *blocks)
{
    const size_t rows = (size_t)shape->length, group = (size_t)shape->group;
    const size_t heads = (size_t)(owns_queries ? shape->heads : shape->kv_heads);
    const size_t streamed =
        2 * rows * (size_t)shape->width * sizeof(typename T::stored) * (owns_queries ? 1 : group);
    const size_t fitting = TIDE_ATTENTION_CACHE_BYTES / (streamed ? streamed : 1);
    const size_t together = (fitting < 1 ? 1 : fitting) * (owns_queries ? group : 1);
    const size_t tiles = (rows + (size_t)own - 1) / (size_t)own;
    const size_t all = batch * heads * tiles * (size_t)parts;
    if (shape->width > 256)
        return tide_fail(TIDE_ERROR_ARGUMENT, "attention: heads of width %d; on CUDA at most 256",
                         shape->width);
    if (all > 0x7fffffffu)
        return tide_fail(TIDE_ERROR_ARGUMENT,
                         "attention: %zu sequences x %zu heads x %zu tiles are more than a grid", batch,
                         heads, tiles);
    shape->sequence_heads = (unsigned)(batch * heads);
    shape->together = (unsigned)(together < batch * heads ? together : batch * heads);
    *blocks = (unsigned)all;
    return TIDE_OK;
}

/* The part of the problem that a block computes. */
struct tide_attention_place {
    unsigned head; /* sequence x heads + head, counting heads that own rows */
    int order;     /* number of its tile among the head's, the tile with most work first */
    int part;      /* which part of the output's columns */
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

/* A head's rows [0, length) and columns [0, width) in a matrix. */
template <typename Stored> struct tide_head_rows {
    Stored *first;
    size_t row_elements;
    int length, width;
    bool vectors;
};

/* Head `head` (sequence x heads + number) of a matrix with `heads` heads per row; rows begin `row` elements
 * apart. */
template <typename Stored>
static __device__ __forceinline__ tide_head_rows<Stored>
tide_head_of(Stored *matrix, unsigned head, int heads, size_t row, const tide_attention_shape &shape)
{
    const size_t sequence = head / (unsigned)heads, number = head % (unsigned)heads;
    return {matrix + sequence * (size_t)shape.length * row + number * (size_t)shape.width, row, shape.length,
            shape.width, shape.vectors};
}

/* ---- documents ---- */

/* The starts of a sequence's tokens, which never decrease. */
struct tide_starts {
    const int32_t *first; /* NULL: all are 0 */
    int length;

    static __device__ __forceinline__ tide_starts of(const tide_attention_shape &shape, unsigned sequence)
    {
        const size_t before = sequence * (size_t)shape.length;
        return {shape.starts ? shape.starts + before : NULL, shape.length};
    }
    /* The start of the token, or of the last token if `token` is past the end. */
    __device__ __forceinline__ int at(int token) const
    {
        return first ? first[min(token, length - 1)] : 0;
    }
    /* The first of the tokens [begin, length) whose document begins after `key`; length if there is none. All
     * lanes of a warp must call this with the same arguments; each round narrows the search to a 32nd of the
     * range. */
    __device__ __forceinline__ int end_of(int key, int begin) const
    {
        int low = min(begin, length), high = length; /* the answer is in [low, high] */
        if (!first)
            return high;
        while (low < high) {
            const int stride = (high - low + TIDE_WARP - 1) / TIDE_WARP, token = low + tide_lane() * stride;
            const int before = __popc(__ballot_sync(0xffffffffu, token < high && first[token] <= key));
            high = min(high, low + before * stride);
            low = before > 0 ? low + (before - 1) * stride + 1 : high;
        }
        return low;
    }
};

/* Load a vector: the first `inside` elements at `from`, zeros after them, one element at a time, so that
 * `from` may be any address. */
template <typename T>
static __device__ __forceinline__ tide_cuda_vector<T> tide_vector_load(const typename T::stored *from,
                                                                       int inside)
{
    tide_cuda_vector<T> value = {};
#pragma unroll
    for (int i = 0; i < T::per_16_bytes; i++)
        if (i < inside)
            value.element[i] = from[i];
    return value;
}

/* Load eight successive elements of a row, zeros outside the head. */
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
                                                          const tide_head_rows<typename T::stored> &rows,
                                                          int row, int column)
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

/* Load two As: 32 columns of 16 rows from `first_row`, lane 0's row, on. */
template <typename T>
static __device__ __forceinline__ void
tide_fragments_load(tide_pair<T> (&a)[2][4], const tide_head_rows<const typename T::stored> &rows,
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

/* Do a warp's own rows of two tensors fit into registers beside the sums? */
template <typename T, int W> struct tide_own_kept {
    enum { kept = W <= 128 && sizeof(typename T::stored) == 2 };
};

/* A warp's own rows as fragments, 32 columns at a time: kept in registers or, unless KEPT, read again each
 * time. */
template <typename T, int W, bool KEPT> struct tide_own_rows {
    enum { unrolled = W / 32 }; /* unrolled whole, since an index of registers must be a constant */
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

/* Write rows = factor x sums, for 16 rows from first_row on and COLUMNS columns from `column` on; `factor`
 * holds those of rows g and g + 8. */
template <typename T, int COLUMNS>
static __device__ __forceinline__ void
tide_sums_store(const float (&sums)[COLUMNS / 8][4], const float (&factor)[2],
                const tide_head_rows<typename T::stored> &rows, int first_row, int column)
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

/* Rows of a streamed tile: 8 KiB, but at least 16 rows, the k of one product. */
template <typename T, int W> struct tide_stream_rows {
    enum { fitting = 8192 / (W * (int)sizeof(typename T::stored)), rows = fitting < 16 ? 16 : fitting };
};

/* Stages and layout of shared memory, in elements. Without opting in for more a block has 48 KiB. */
template <typename T, int W, int ROWS> struct tide_stream {
    enum {
        tile = ROWS * W,
        stages = 4 * tile * sizeof(typename T::stored) <= 48 * 1024 ? 2 : 1,
        elements = 2 * tile * stages,
    };
};

/* Copy a vector from any address: the first `inside` elements, zeros after them. Not unrolled, since this
 * rare case must not need more registers than copies of whole vectors. */
template <typename T>
static __device__ __forceinline__ void tide_elements_copy(tide_tile<T> tile, int at,
                                                          const typename T::stored *from, int inside)
{
#pragma unroll 1
    for (int i = 0; i < T::per_16_bytes; i++)
        tile[at + i] = i < inside ? from[i] : (typename T::stored)0;
}

/* The part of a tensor's tiles that a thread copies, one tile after the other: vectors of one column, some
 * rows apart. */
template <typename T, int W, int ROWS> struct tide_tile_source {
    enum { row_vectors = W / T::per_16_bytes, step = TIDE_ATTENTION_THREADS / row_vectors };
    static_assert(TIDE_ATTENTION_THREADS % row_vectors == 0 && ROWS % step == 0, "threads copy alike");
    const typename T::stored *from; /* the first row of the tile to copy next; the same for all threads */
    size_t row_elements;
    bool vectors;

    static __device__ __forceinline__ int row(void)
    {
        return (int)threadIdx.x / row_vectors;
    }
    static __device__ __forceinline__ int column(void)
    {
        return (int)threadIdx.x % row_vectors * T::per_16_bytes;
    }
    static __device__ __forceinline__ tide_tile_source
    of(const tide_head_rows<const typename T::stored> &rows, int tile)
    {
        return {rows.first + (size_t)(tile * ROWS) * rows.row_elements, rows.row_elements, rows.vectors};
    }
    /* Copy to `at` and the rows below it, and advance to the next tile. From the thread's first element on
     * the head has `left` rows of `inside` elements; nothing beyond them is read. */
    __device__ __forceinline__ void copy(tide_async_copies<T> &copies, int at, int left, int inside)
    {
        /* the thread's offset as one number, which the thread keeps in one register from tile to tile */
        const unsigned before = (unsigned)row() * (unsigned)row_elements + (unsigned)column();
        const typename T::stored *own = from + before;
        if (vectors)
#pragma unroll
            for (int down = 0; down < ROWS; down += step, own += step * row_elements)
                copies.copy((at ^ (down % 8 * TIDE_GRANULE)) + down * W, own, down < left);
        else
#pragma unroll 1
            for (int down = 0; down < ROWS; down += step, own += step * row_elements)
                tide_elements_copy<T>(copies.tile, (at ^ (down % 8 * TIDE_GRANULE)) + down * W, own,
                                      down < left ? inside : 0);
        from += ROWS * row_elements;
    }
};

/* Call use(first tensor's base, second's base, first row, head) for the tiles `begin` to `end` - 1 of both
 * tensors (at least one), STEP rows at a time, for `heads` heads: the given one, number 0, and those after
 * it. All threads of the block take part. For each pair of tiles the block 1. starts the copies of the next
 * pair into the stage that the last barrier freed; 2. waits for this pair's copies, and a barrier makes them
 * visible to all threads; 3. uses the pair; 4. waits at a barrier, which frees the pair's stage. With one
 * stage, 1 comes last. */
template <typename T, int W, int ROWS, int STEP, typename Use>
static __device__ __forceinline__ void
tide_stream_tiles(tide_tile<T> tile, const tide_head_rows<const typename T::stored> &first,
                  const tide_head_rows<const typename T::stored> &second, int begin, int end, int heads,
                  const Use &use)
{
    typedef tide_tile_source<T, W, ROWS> source;
    static_assert((tide_stream<T, W, ROWS>::tile & (tide_stream<T, W, ROWS>::tile - 1)) == 0, "added by ^");
    const int one = tide_stream<T, W, ROWS>::tile, stages = tide_stream<T, W, ROWS>::stages;
    const int column = source::column(), inside = first.width - column;
    const int own = tide_tile_at<W>(source::row(), column / TIDE_GRANULE) + column % TIDE_GRANULE;
    tide_async_copies<T> copies{tile};
    source sources[2] = {source::of(first, begin), source::of(second, begin)};
    /* the head and the tile that the block uses next, and where that tile is in shared memory */
    int head = 0, number = begin, base = 0;
    int rows_left = first.length - begin * ROWS; /* rows from the first row of the next copied tile on */
    const auto send = [&](int to) {
        const int at = to + own, left = inside > 0 ? rows_left - source::row() : 0;
        sources[0].copy(copies, at, left, inside);
        /* ^ instead of +, for which the compiler would keep a second register */
        sources[1].copy(copies, at ^ one, left, inside);
        rows_left -= ROWS;
    };
    const auto send_next = [&](int to) {
        if (number + 1 >= end && head + 1 < heads) { /* go on with the next head's first tile */
            const int rows = (end - begin) * ROWS;
            rows_left += rows;
            sources[0].from -= (size_t)rows * first.row_elements - (size_t)first.width;
            sources[1].from -= (size_t)rows * second.row_elements - (size_t)second.width;
        }
        if (number + 1 < end || head + 1 < heads)
            send(to);
        copies.commit();
    };
    send(base);
    copies.commit();
#pragma unroll 1
    while (head < heads) {
        const int other = stages == 2 ? 2 * one - base : base;
        if (stages == 2)
            send_next(other);
        copies.template wait<stages - 1>();
        TIDE_CUDA_BARRIER();
#pragma unroll 1
        for (int step = 0; step < ROWS; step += STEP) {
            const int at = base + step * W;
            use(at, at + one, number * ROWS + step, head);
        }
        TIDE_CUDA_BARRIER();
        if (stages == 1)
            send_next(other);
        base = other;
        if (++number >= end) {
            number = begin;
            head++;
        }
    }
}

/* ---- powers of two ---- */

/* 2^x within 2 ulp; for 16-bit types by the GPU's instruction, which flushes denormals. */
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
