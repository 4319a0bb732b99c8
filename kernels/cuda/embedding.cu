/* Embedding, forward and backward: the row of wte for each token, plus the row of wpe for its position if the
 * model has a wpe.
 *
 * Forward: a warp computes a row; its lanes take packs in turn. An element needs 6 bytes in bf16 (rows of wte
 * and wpe mostly from the second-level cache) and one addition, so the kernel is bound by memory: some 10
 * microseconds for 16384 rows of 768.
 *
 * Backward, dwpe: where every sequence is one document, a thread sums one pack of a position over the batch,
 * with IN_FLIGHT loads in flight. Else rows have any position, as they have any token, and dwpe is summed
 * like dwte, with the row's position in the token's place.
 *
 * Backward, dwte: many rows may have the same token, but the kernel may not use float atomics and has no
 * workspace in which to sort. Tokens are therefore divided into classes, by token modulo a power of two. A
 * block owns one class in up to 8 slices of columns; a slice is one pack wide for every lane of a warp.
 *
 *   1. collect  the block goes through all tokens, a tile at a time, and lists those of its class in shared
 *               memory in the order of their rows (ballots, then the warps' counts)
 *   2. sum      a warp takes an entry of the list and a slice. If the token is also earlier in the list, the
 *               warp of that entry sums it, and this warp has nothing to do. Otherwise the warp adds up dout
 *               over all entries of the token in order, with IN_FLIGHT loads in flight, and adds the sum to
 *               dwte's row: no other warp accesses this row and slice
 *
 * If the list is full before the last token, step 2 runs, and the two steps alternate. The order in which a
 * token's rows are summed depends only on the tokens and sizes.
 *
 * Cost for 65536 rows of width 768 in bf16. dout is read twice: 0.2 GB, 40 microseconds of an H200's memory.
 * There are 2048 classes, so that a list has at least 32 entries on average. Each block reads the 256 KB of
 * tokens from the second-level cache, 0.5 GB for all blocks, 0.1 ms; it goes through 32 tiles in 15
 * microseconds, and an SM runs two or three blocks one after another. If 5% of all rows, 3277, have the same
 * token, this token decides the time of its class: one warp sums each slice in 410 rounds of 8 rows at 0.7
 * microseconds, 0.3 ms, while the other blocks finish. A step with so many tokens takes over 100 ms even for
 * the smallest GPT-2. At width 8192 a class has four blocks (32 slices, 8 per block), and all blocks read 2
 * GB of tokens, 0.4 ms. The alternative, one block for each first occurrence of a token, which scans all
 * tokens, would read 15000 x 256 KB.
 */
#include "kernels/cuda/pack.h"
#include "kernels/cuda/reduce.h"

enum {
    THREADS = 256,
    WARPS = THREADS / WARP_LANES,
    IN_FLIGHT = 8,
    TILE_PER_LANE = 8, /* tokens that a lane looks at in a tile */
    TILE_PER_WARP = TILE_PER_LANE * WARP_LANES,
    TILE = WARPS * TILE_PER_WARP,
    LIST = 2 * TILE,
    SLICES = 8, /* slices of columns of a block */
    CLASSES_MAX = 2048,
    ROWS_PER_CLASS = 32, /* at least, so that many blocks do not scan few rows */
    POSITION_THREADS = 128,
};

/* ---- forward ---- */

template <typename T, bool WHOLE>
static __global__ void __launch_bounds__(THREADS)
    embed_rows(const int32_t *__restrict__ tokens, const int32_t *__restrict__ starts,
               const typename T::stored *__restrict__ wte, const typename T::stored *__restrict__ wpe,
               typename T::stored *out, size_t rows, size_t sequence_length, size_t width)
{
    const size_t row = (size_t)blockIdx.x * WARPS + threadIdx.x / WARP_LANES;
    if (row >= rows)
        return;
    const typename T::stored *token_row = wte + (size_t)tokens[row] * width;
    const typename T::stored *position_row = NULL;
    if (wpe)
        position_row = wpe + (row % sequence_length - (starts ? (size_t)starts[row] : 0)) * width;
    for (size_t begin = threadIdx.x % WARP_LANES * T::per_16_bytes; begin < width;
         begin += WARP_LANES * T::per_16_bytes) {
        const tide_cuda_vector<T> token = pack_load<T, WHOLE>(token_row, begin, width);
        tide_cuda_vector<T> result = token;
        if (position_row) {
            const tide_cuda_vector<T> position = pack_load<T, WHOLE>(position_row, begin, width);
            for (unsigned e = 0; e < T::per_16_bytes; e++)
                result.element[e] = T::store(T::load(token.element[e]) + T::load(position.element[e]));
        }
        pack_store<T, WHOLE>(out + row * width, begin, width, result);
    }
}

template <typename T, bool WHOLE>
static tide_status forward_launch(void *stream, const tide_embedding_args *args)
{
    typedef const typename T::stored *elements;
    return TIDE_CUDA_LAUNCH("embedding", (embed_rows<T, WHOLE>), (unsigned)((args->rows + WARPS - 1) / WARPS),
                            THREADS, stream, args->tokens, args->starts, (elements)args->wte,
                            (elements)args->wpe, (typename T::stored *)args->out, args->rows,
                            args->sequence_length, args->width);
}

template <typename T> static tide_status forward(void *stream, const tide_embedding_args *args)
{
    const bool whole = pack_whole_rows<T>(args->wte, args->width) &&
                       pack_whole_rows<T>(args->wpe, args->width) &&
                       pack_whole_rows<T>(args->out, args->width);
    return whole ? forward_launch<T, true>(stream, args) : forward_launch<T, false>(stream, args);
}

tide_status tide_cuda_embedding(void *stream, const void *arguments)
{
    const tide_embedding_args *args = (const tide_embedding_args *)arguments;
    if (args->rows * args->width == 0)
        return TIDE_OK;
    assert(args->tokens && args->wte && args->out && (!args->wpe || args->sequence_length > 0));
    return TIDE_CUDA_BY_DTYPE(args->dtype, forward, stream, args);
}

/* ---- backward: positions ---- */

template <typename T, bool WHOLE>
static __global__ void __launch_bounds__(POSITION_THREADS)
    add_to_positions(const typename T::stored *__restrict__ dout, float *dwpe, size_t rows,
                     size_t sequence_length, size_t width)
{
    const size_t position = blockIdx.x;
    const size_t begin = ((size_t)blockIdx.y * POSITION_THREADS + threadIdx.x) * T::per_16_bytes;
    if (begin >= width)
        return;
    float sums[T::per_16_bytes] = {};
    for (size_t first = position; first < rows; first += IN_FLIGHT * sequence_length) {
        uint4 packs[IN_FLIGHT];
#pragma unroll
        for (unsigned i = 0; i < IN_FLIGHT; i++) {
            const size_t row = first + i * sequence_length;
            packs[i] = pack_words<T, WHOLE>(dout + row * width, begin, row < rows ? width : 0);
        }
#pragma unroll
        for (unsigned i = 0; i < IN_FLIGHT; i++)
            pack_add<T>(sums, packs[i]);
    }
    pack_accumulate<T, WHOLE>(dwpe + position * width, begin, width, sums);
}

/* ---- backward: tokens, and positions in documents ---- */

/* The index of the sum to which a row is added: its token, or its position in its document. */
struct token_keys {
    const int32_t *tokens;

    __device__ __forceinline__ int32_t of(size_t row) const
    {
        return tokens[row];
    }
};

struct position_keys {
    const int32_t *starts;
    unsigned sequence_length;

    __device__ __forceinline__ int32_t of(size_t row) const
    {
        return (int32_t)((unsigned)row % sequence_length) - starts[row];
    }
};

/* Step 1 for one tile, from row `begin` on: append the rows of this block's class to the list, except those
 * with the token `padding` (-1: no such token). Returns the list's new length. A warp looks at TILE_PER_WARP
 * successive rows, so that rows stay in order. */
template <typename Keys, typename Rows, typename Tokens, typename Counts>
static __device__ __forceinline__ unsigned collect_tile(const Keys &keys, size_t begin, size_t rows,
                                                        unsigned classes, int32_t padding, unsigned listed,
                                                        Rows &list_rows, Tokens &list_tokens, Counts &counts)
{
    const unsigned lane = threadIdx.x % WARP_LANES, warp = threadIdx.x / WARP_LANES;
    int32_t token[TILE_PER_LANE];
    unsigned votes[TILE_PER_LANE], mine = 0;
#pragma unroll
    for (unsigned i = 0; i < TILE_PER_LANE; i++) {
        const size_t row = begin + warp * TILE_PER_WARP + i * WARP_LANES + lane;
        token[i] = row < rows ? keys.of(row) : -1;
        if (token[i] == padding)
            token[i] = -1;
    }
#pragma unroll
    for (unsigned i = 0; i < TILE_PER_LANE; i++) {
        votes[i] =
            __ballot_sync(WARP_ALL, token[i] >= 0 && ((unsigned)token[i] & (classes - 1)) == blockIdx.x);
        mine += (unsigned)__popc(votes[i]);
    }
    if (lane == 0)
        counts[warp] = mine;
    TIDE_CUDA_BARRIER();
    unsigned place = listed, total = listed;
    for (unsigned w = 0; w < WARPS; w++) {
        const unsigned count = counts[w];
        place += w < warp ? count : 0;
        total += count;
    }
#pragma unroll
    for (unsigned i = 0; i < TILE_PER_LANE; i++) {
        if (votes[i] >> lane & 1u) {
            const unsigned at = place + (unsigned)__popc(votes[i] & ((1u << lane) - 1u));
            list_rows[at] = (unsigned)(begin + warp * TILE_PER_WARP + i * WARP_LANES + lane);
            list_tokens[at] = token[i];
        }
        place += (unsigned)__popc(votes[i]);
    }
    TIDE_CUDA_BARRIER();
    return total;
}

/* Bits of the warp's lanes whose entry, in [from, from + 32) and before `end`, has this token. */
template <typename Tokens>
static __device__ __forceinline__ unsigned entries_of(int32_t token, Tokens &list_tokens, unsigned from,
                                                      unsigned end)
{
    const unsigned at = from + threadIdx.x % WARP_LANES;
    int32_t there = -1;
    if (at < end)
        there = list_tokens[at];
    return __ballot_sync(WARP_ALL, there == token);
}

template <typename Tokens>
static __device__ __forceinline__ bool stands_before(unsigned entry, int32_t token, Tokens &list_tokens)
{
    for (unsigned from = 0; from < entry; from += WARP_LANES)
        if (entries_of(token, list_tokens, from, entry))
            return true;
    return false;
}

/* sums += the pack at `begin` of the rows that `found` marks among the entries from `from` on, in order. */
template <typename T, bool WHOLE, typename Rows>
static __device__ __forceinline__ void add_found(float *sums, const typename T::stored *__restrict__ dout,
                                                 size_t width, size_t begin, unsigned found, unsigned from,
                                                 Rows &list_rows)
{
    while (found != 0) {
        uint4 packs[IN_FLIGHT];
#pragma unroll
        for (unsigned i = 0; i < IN_FLIGHT; i++) {
            size_t row = 0;
            if (found != 0)
                row = list_rows[from + (unsigned)__ffs((int)found) - 1u];
            packs[i] = pack_words<T, WHOLE>(dout + row * width, begin, found != 0 ? width : 0);
            found &= found - 1u;
        }
#pragma unroll
        for (unsigned i = 0; i < IN_FLIGHT; i++)
            pack_add<T>(sums, packs[i]);
    }
}

/* Step 2 for one entry and slice, by one warp. */
template <typename T, bool WHOLE, typename Rows, typename Tokens>
static __device__ __forceinline__ void add_to_token(const typename T::stored *__restrict__ dout, float *dwte,
                                                    size_t width, unsigned entry, unsigned slice,
                                                    unsigned listed, Rows &list_rows, Tokens &list_tokens)
{
    const int32_t token = list_tokens[entry];
    const size_t begin = ((size_t)slice * WARP_LANES + threadIdx.x % WARP_LANES) * T::per_16_bytes;
    if (stands_before(entry, token, list_tokens))
        return;
    float sums[T::per_16_bytes] = {};
    for (unsigned from = entry; from < listed; from += WARP_LANES)
        add_found<T, WHOLE>(sums, dout, width, begin, entries_of(token, list_tokens, from, listed), from,
                            list_rows);
    pack_accumulate<T, WHOLE>(dwte + (size_t)token * width, begin, width, sums);
}

template <typename T, bool WHOLE, typename Keys>
static __global__ void __launch_bounds__(THREADS)
    add_to_tokens(Keys keys, const typename T::stored *__restrict__ dout, float *dwte, size_t rows,
                  size_t width, unsigned classes, unsigned slices, int32_t padding)
{
    TIDE_CUDA_SHARED(unsigned, list_rows, LIST);
    TIDE_CUDA_SHARED(int32_t, list_tokens, LIST);
    TIDE_CUDA_SHARED(unsigned, counts, WARPS);
    const unsigned first_slice = blockIdx.y * SLICES;
    const unsigned here = min(slices - first_slice, (unsigned)SLICES);
    for (size_t begin = 0; begin < rows;) {
        unsigned listed = 0;
        for (; begin < rows && listed + TILE <= LIST; begin += TILE)
            listed =
                collect_tile(keys, begin, rows, classes, padding, listed, list_rows, list_tokens, counts);
        for (unsigned item = threadIdx.x / WARP_LANES; item < listed * here; item += WARPS)
            add_to_token<T, WHOLE>(dout, dwte, width, item / here, first_slice + item % here, listed,
                                   list_rows, list_tokens);
        /* The first barrier of collect_tile comes before the next list is written and dwte is read again. */
    }
}

static unsigned class_count(size_t rows)
{
    unsigned classes = 1;
    while (classes < CLASSES_MAX && classes * (size_t)ROWS_PER_CLASS < rows)
        classes *= 2;
    return classes;
}

template <typename T, bool WHOLE, typename Keys>
static tide_status backward_launch_by(void *stream, const char *name,
                                      const tide_embedding_backward_args *args, Keys keys, float *sums,
                                      int32_t padding)
{
    const unsigned classes = class_count(args->rows);
    const unsigned slices = (pack_count<T>(args->width) + WARP_LANES - 1) / WARP_LANES;
    return TIDE_CUDA_LAUNCH(name, (add_to_tokens<T, WHOLE, Keys>),
                            dim3(classes, (slices + SLICES - 1) / SLICES), THREADS, stream, keys,
                            (const typename T::stored *)args->dout, sums, args->rows, args->width, classes,
                            slices, padding);
}

template <typename T, bool WHOLE>
static tide_status backward_launch(void *stream, const tide_embedding_backward_args *args)
{
    const unsigned packs = pack_count<T>(args->width);
    const size_t positions = args->rows < args->sequence_length ? args->rows : args->sequence_length;
    tide_status status = TIDE_OK;
    if (args->dwte)
        status =
            backward_launch_by<T, WHOLE>(stream, "embedding_backward tokens", args, token_keys{args->tokens},
                                         args->dwte, (int32_t)args->padding_row - 1);
    if (status != TIDE_OK || !args->dwpe)
        return status;
    if (args->starts)
        return backward_launch_by<T, WHOLE>(stream, "embedding_backward positions", args,
                                            position_keys{args->starts, (unsigned)args->sequence_length},
                                            args->dwpe, -1);
    return TIDE_CUDA_LAUNCH("embedding_backward positions", (add_to_positions<T, WHOLE>),
                            dim3((unsigned)positions, (packs + POSITION_THREADS - 1) / POSITION_THREADS),
                            POSITION_THREADS, stream, (const typename T::stored *)args->dout, args->dwpe,
                            args->rows, args->sequence_length, args->width);
}

template <typename T> static tide_status backward(void *stream, const tide_embedding_backward_args *args)
{
    const bool whole = pack_whole_rows<T>(args->dout, args->width) && (uintptr_t)args->dwte % 16 == 0 &&
                       (uintptr_t)args->dwpe % 16 == 0;
    return whole ? backward_launch<T, true>(stream, args) : backward_launch<T, false>(stream, args);
}

tide_status tide_cuda_embedding_backward(void *stream, const void *arguments)
{
    const tide_embedding_backward_args *args = (const tide_embedding_backward_args *)arguments;
    if (args->rows * args->width == 0)
        return TIDE_OK;
    assert(args->tokens && args->dout && args->sequence_length > 0);
    return TIDE_CUDA_BY_DTYPE(args->dtype, backward, stream, args);
}
