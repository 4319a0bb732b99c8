/* Embedding: rows of wte picked by token, plus rows of wpe by position where a model has them; and back.
 *
 * Forward: a warp a row, lane by lane the row's packs. 6 bytes a bf16 element (wte's rows and wpe mostly from the
 * second cache), one addition: bound by memory, some 10 microseconds for 16384 rows of 768.
 *
 * Backward, dwpe: a thread a pack of a position, which it sums over the batch, IN_FLIGHT rows under way at a time.
 *
 * Backward, dwte: many rows may name one token, floats are not added atomically, and there is no workspace to sort
 * in. So tokens are dealt to classes, token modulo a power of two, and a block owns a class over up to 8 slices of
 * columns, each a pack wide for every lane of a warp:
 *
 *   1. collect  all tokens are gone through, a tile at a time; those of the class are listed in shared memory in the
 *               order of their rows (ballots, then the warps' counts)
 *   2. sum      a warp takes an entry and a slice. If the token stands earlier in the list, that entry's warp has it:
 *               done. Otherwise it adds up dout over all entries of the token in order, IN_FLIGHT rows under way, and
 *               adds the sum to dwte's row: nobody else touches this row and slice
 *
 * When the list is full step 2 comes before the end of the tokens and the two alternate. The order of a token's sum
 * depends on the tokens and sizes only.
 *
 * Cost for 65536 rows of width 768, bf16: dout is read twice, 0.2 GB, 40 microseconds of an H200's memory. 2048
 * classes, so that a list has 32 entries on average and more: each block reads the 256 KB of tokens from the second
 * cache, 0.5 GB in all, 0.1 ms, and looks at 32 tiles, 15 microseconds for a block and two or three blocks one
 * after another on an SM. A token that is 5% of all rows, 3277 of them, is its class' whole time: each slice is one
 * warp's, 410 rounds of 8 rows at 0.7 microseconds, 0.3 ms, while the other blocks finish. A step of so many tokens
 * takes over 100 ms for the smallest GPT-2. At width 8192 a class is four blocks (32 slices of 8 to a block), which
 * read 2 GB of tokens, 0.4 ms. One block to each first occurrence of a token, scanning by itself, would read 15000
 * x 256 KB.
 */
#include "kernels/cuda/pack.h"
#include "kernels/cuda/reduce.h"

enum {
    THREADS = 256,
    WARPS = THREADS / WARP_LANES,
    IN_FLIGHT = 8,
    TILE_PER_LANE = 8, /* tokens */
    TILE_PER_WARP = TILE_PER_LANE * WARP_LANES,
    TILE = WARPS * TILE_PER_WARP,
    LIST = 2 * TILE,
    SLICES = 8, /* of columns, a block's */
    CLASSES_MAX = 2048,
    ROWS_PER_CLASS = 32, /* at the least, so that few rows are not scanned by many blocks */
    POSITION_THREADS = 128,
};

/* ---- forward ---- */

template <typename T, bool WHOLE>
static __global__ void __launch_bounds__(THREADS)
    embed_rows(const int32_t *__restrict__ tokens, const typename T::stored *__restrict__ wte,
               const typename T::stored *__restrict__ wpe, typename T::stored *out, size_t rows,
               size_t sequence_length, size_t width)
{
    const size_t row = (size_t)blockIdx.x * WARPS + threadIdx.x / WARP_LANES;
    if (row >= rows)
        return;
    const typename T::stored *token_row = wte + (size_t)tokens[row] * width;
    const typename T::stored *position_row = wpe ? wpe + row % sequence_length * width : NULL;
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
                            THREADS, stream, args->tokens, (elements)args->wte, (elements)args->wpe,
                            (typename T::stored *)args->out, args->rows, args->sequence_length, args->width);
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

/* ---- backward: tokens ---- */

/* Step 1 for one tile, from row `begin` on: append the rows of this block's class to the list, but for those of `padding` (-1:
 * no token). Returns its new length. A warp looks at TILE_PER_WARP neighbours, so that rows come in order. */
template <typename Rows, typename Tokens, typename Counts>
static __device__ __forceinline__ unsigned
collect_tile(const int32_t *__restrict__ tokens, size_t begin, size_t rows, unsigned classes, int32_t padding,
             unsigned listed, Rows &list_rows, Tokens &list_tokens, Counts &counts)
{
    const unsigned lane = threadIdx.x % WARP_LANES, warp = threadIdx.x / WARP_LANES;
    int32_t token[TILE_PER_LANE];
    unsigned votes[TILE_PER_LANE], mine = 0;
#pragma unroll
    for (unsigned i = 0; i < TILE_PER_LANE; i++) {
        const size_t row = begin + warp * TILE_PER_WARP + i * WARP_LANES + lane;
        token[i] = row < rows ? tokens[row] : -1;
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

/* The warp's lanes with an entry in [from, from + 32), before `end`, of this token. */
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

template <typename T, bool WHOLE>
static __global__ void __launch_bounds__(THREADS)
    add_to_tokens(const int32_t *__restrict__ tokens, const typename T::stored *__restrict__ dout,
                  float *dwte, size_t rows, size_t width, unsigned classes, unsigned slices, int32_t padding)
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
                collect_tile(tokens, begin, rows, classes, padding, listed, list_rows, list_tokens, counts);
        for (unsigned item = threadIdx.x / WARP_LANES; item < listed * here; item += WARPS)
            add_to_token<T, WHOLE>(dout, dwte, width, item / here, first_slice + item % here, listed,
                                   list_rows, list_tokens);
        /* The next list is written, and dwte read again, behind the first barrier of collect_tile. */
    }
}

static unsigned class_count(size_t rows)
{
    unsigned classes = 1;
    while (classes < CLASSES_MAX && classes * (size_t)ROWS_PER_CLASS < rows)
        classes *= 2;
    return classes;
}

template <typename T, bool WHOLE>
static tide_status backward_launch(void *stream, const tide_embedding_backward_args *args)
{
    const typename T::stored *dout = (const typename T::stored *)args->dout;
    const unsigned packs = pack_count<T>(args->width), classes = class_count(args->rows);
    const unsigned slices = (packs + WARP_LANES - 1) / WARP_LANES;
    const size_t positions = args->rows < args->sequence_length ? args->rows : args->sequence_length;
    tide_status status = TIDE_OK;
    if (args->dwte)
        status = TIDE_CUDA_LAUNCH("embedding_backward tokens", (add_to_tokens<T, WHOLE>),
                                  dim3(classes, (slices + SLICES - 1) / SLICES), THREADS, stream,
                                  args->tokens, dout, args->dwte, args->rows, args->width, classes, slices,
                                  (int32_t)args->padding_row - 1);
    if (status != TIDE_OK || !args->dwpe)
        return status;
    return TIDE_CUDA_LAUNCH("embedding_backward positions", (add_to_positions<T, WHOLE>),
                            dim3((unsigned)positions, (packs + POSITION_THREADS - 1) / POSITION_THREADS),
                            POSITION_THREADS, stream, dout, args->dwpe, args->rows, args->sequence_length,
                            args->width);
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
