/* Causal attention in tiles of TILE queries x TILE keys; no T x T matrix is stored.
 *
 * Scores are computed transposed: rows are keys, and the lanes of a vector are queries. The largest score and
 * the sum of exponentials of 16 queries are then plain vector operations over rows, without a sum across
 * lanes. All products are fp32 tiles (tile.h).
 *
 * Forward: a task computes one query tile. It goes through the key tiles and keeps a running maximum and sum
 * for each query (online softmax); when the maximum grows, it scales the sum and the output so far down.
 *
 *     S^T = K Q^T        P^T = e^(S^T - maximum)        O = O e^(old - new maximum) + P V
 *
 * Backward: a task computes one head of keys and values. For each query head that attends to it the task goes
 * through the query tiles, and for each of them through the key tiles up to the diagonal, and recomputes P
 * from the saved logsumexp L. It keeps dK and dV of the whole head in fp32 and writes them at the end. D is
 * the row sum of dO x O, which equals the mean of the gradients of P, weighted by P.
 *
 *     P^T = e^(S^T - L)      dV += P^T dO      dS^T = P^T (V dO^T - D)      dK += dS^T Q      dQ += dS K
 *
 * q is scaled by 1 / sqrt(head_width) when its tile is loaded; dK therefore needs no scaling, and dQ is
 * scaled when it is stored. Tasks write to different places, and each runs in one thread: any thread count
 * gives the same bits.
 */
#include "base/align.h"
#include "base/minmax.h"
#include "base/team.h"
#include "kernels/cpu/tile.h"
#include "kernels/cpu/variant.h"

#include <float.h>

enum { TILE = 64 };

/* One query head of one sequence and the head of keys and values to which it attends: where their elements
 * are in the rows of q, k, v and out. Inside tiles `width` is padded to whole vectors. */
typedef struct attention_head {
    size_t width, padded;
    size_t length;                 /* tokens */
    size_t qk_row, v_row, out_row; /* leading dimensions */
    size_t q, k, v;                /* index of the head's first element in q, k and v */
    size_t out;                    /* index of the head's first element in out */
    size_t statistics;             /* index of the head's first element in logsumexp */
    const int32_t *starts;         /* [length] or NULL */
    float scale;
} attention_head;

/* The `number`-th query head of a sequence. */
static attention_head head_at(const tide_attention_args *shape, size_t sequence, size_t number)
{
    const size_t width = shape->head_width, length = shape->sequence_length;
    const size_t out_row = shape->heads * width, first = sequence * length;
    const size_t kv_number = number / (shape->heads / shape->kv_heads);
    return (attention_head){.width = width,
                            .padded = tile_pad(width),
                            .length = length,
                            .qk_row = shape->qk_row,
                            .v_row = shape->v_row,
                            .out_row = out_row,
                            .q = first * shape->qk_row + number * width,
                            .k = first * shape->qk_row + kv_number * width,
                            .v = first * shape->v_row + kv_number * width,
                            .out = first * out_row + number * width,
                            .statistics = (sequence * shape->heads + number) * length,
                            .starts = shape->starts ? shape->starts + first : NULL,
                            .scale = 1.0f / sqrtf((float)width)};
}

/* The first position to which a query may attend. */
static size_t start_of(const attention_head *head, size_t query)
{
    return head->starts ? (size_t)head->starts[query] : 0;
}

/* The begin of the first key tile that a query from `first_query` on may need: starts never decreases. */
static size_t first_key_tile(const attention_head *head, size_t first_query)
{
    return start_of(head, first_query) / TILE * TILE;
}

static size_t tile_count(size_t begin, size_t length)
{
    return tide_min_u64(length - begin, TILE);
}

/* ---- between the model's rows and fp32 tiles ---- */

/* tile[r][0, padded) = scale x row r of a matrix, zero past the width. */
LANES_INLINE void load_rows(float *tile, const attention_head *head, const void *matrix, size_t start,
                            size_t ld, size_t rows, float scale, tide_dtype dtype)
{
    for (size_t r = 0; r < rows; r++) {
        const size_t row = start + r * ld;
        for (size_t i = 0; i < head->width; i += LANES)
            lanes_store(tile, r * head->padded + i,
                        lanes_load_until(matrix, row + i, row + head->width, dtype) * scale, TIDE_DTYPE_FP32);
    }
}

/* Row r of a matrix = scale x tile[r][0, width). */
LANES_INLINE void store_rows(void *matrix, const attention_head *head, size_t start, size_t ld,
                             const float *tile, size_t rows, float scale, tide_dtype dtype)
{
    for (size_t r = 0; r < rows; r++) {
        const size_t row = start + r * ld;
        for (size_t i = 0; i < head->width; i += LANES)
            lanes_store_until(matrix, row + i, row + head->width,
                              lanes_load(tile, r * head->padded + i, TIDE_DTYPE_FP32) * scale, dtype);
    }
}

/* transposed[i][r] = tile[r][i]; zeros for queries from `rows` on. */
static void transpose_rows(float *transposed, const float *tile, const attention_head *head, size_t rows)
{
    for (size_t i = 0; i < head->width; i++)
        for (size_t r = 0; r < TILE; r++)
            transposed[i * TILE + r] = r < rows ? tile[r * head->padded + i] : 0.0f;
}

/* scores[key][query] = keys[key] . queries[query]; `transposed` holds the queries (transpose_rows). */
static void multiply_transposed(float *scores, const float *keys, const float *transposed,
                                const attention_head *head, size_t key_count)
{
    tile_multiply(&(tile_product){.a = keys,
                                  .a_row = head->padded,
                                  .a_column = 1,
                                  .b = transposed,
                                  .b_row = TILE,
                                  .c = scores,
                                  .c_row = TILE,
                                  .m = key_count,
                                  .n = TILE,
                                  .k = head->width});
}

/* sum[query][] += weights[key][query] x values[key][] */
static void add_weighted_values(float *sum, const float *weights, const float *values,
                                const attention_head *head, size_t key_count, size_t query_count)
{
    tile_multiply(&(tile_product){.a = weights,
                                  .a_row = 1,
                                  .a_column = TILE,
                                  .b = values,
                                  .b_row = head->padded,
                                  .c = sum,
                                  .c_row = head->padded,
                                  .m = query_count,
                                  .n = head->padded,
                                  .k = key_count,
                                  .accumulate = true});
}

/* sum[key][] += weights[key][query] x values[query][] */
static void add_weighted_queries(float *sum, const float *weights, const float *values,
                                 const attention_head *head, size_t key_count, size_t query_count)
{
    tile_multiply(&(tile_product){.a = weights,
                                  .a_row = TILE,
                                  .a_column = 1,
                                  .b = values,
                                  .b_row = head->padded,
                                  .c = sum,
                                  .c_row = head->padded,
                                  .m = key_count,
                                  .n = head->padded,
                                  .k = query_count,
                                  .accumulate = true});
}

/* Set the scores of keys to which a query may not attend to minus infinity: in the diagonal tile the keys
 * after the query, and the keys before its document. */
static void mask_scores(float *scores, const attention_head *head, size_t first_query, size_t query_count,
                        size_t first_key, size_t key_count)
{
    for (size_t key = 0; first_key == first_query && key < key_count; key++)
        for (size_t query = 0; query < key; query++)
            scores[key * TILE + query] = -INFINITY;
    if (start_of(head, first_query + query_count - 1) <= first_key)
        return;
    for (size_t query = 0; query < query_count; query++) {
        const size_t start = start_of(head, first_query + query);
        for (size_t key = 0; key < key_count && first_key + key < start; key++)
            scores[key * TILE + query] = -INFINITY;
    }
}

/* ---- forward ---- */

/* A thread's workspace. Sizes are in floats; each part is a whole number of vectors. */
typedef struct forward_tiles {
    float *rows;       /* [TILE, padded]: the tile of q, k or v that was loaded last */
    float *transposed; /* [width, TILE]: q transposed */
    float *scores;     /* [TILE keys, TILE queries] */
    float *out;        /* [TILE, padded] */
    float *maximum;    /* [TILE]: largest score of each query so far */
    float *sum;        /* [TILE]: sum of e^(score - maximum) so far */
    float *shrink;     /* [TILE]: e^(old maximum - new maximum) */
} forward_tiles;

static size_t forward_elements(size_t padded)
{
    return TILE * (3 * padded + TILE + 3);
}

static forward_tiles forward_tiles_at(float *workspace, size_t padded)
{
    forward_tiles tiles = {.rows = workspace};
    tiles.transposed = tiles.rows + TILE * padded;
    tiles.scores = tiles.transposed + TILE * padded;
    tiles.out = tiles.scores + TILE * TILE;
    tiles.maximum = tiles.out + TILE * padded;
    tiles.sum = tiles.maximum + TILE;
    tiles.shrink = tiles.sum + TILE;
    return tiles;
}

/* Online softmax over one key tile: replaces the scores by e^(score - maximum). */
static void online_softmax_scores(const forward_tiles *tiles, size_t key_count)
{
    for (size_t query = 0; query < TILE; query += LANES) {
        const lanes before = lanes_load(tiles->maximum, query, TIDE_DTYPE_FP32);
        lanes maximum = before;
        for (size_t key = 0; key < key_count; key++)
            maximum = lanes_max(lanes_load(tiles->scores, key * TILE + query, TIDE_DTYPE_FP32), maximum);
        const lanes shrink = lanes_exp(before - maximum);
        lanes sum = lanes_load(tiles->sum, query, TIDE_DTYPE_FP32) * shrink;
        for (size_t key = 0; key < key_count; key++) {
            const lanes score = lanes_load(tiles->scores, key * TILE + query, TIDE_DTYPE_FP32);
            const lanes weight = lanes_exp(score - maximum);
            lanes_store(tiles->scores, key * TILE + query, weight, TIDE_DTYPE_FP32);
            sum += weight;
        }
        lanes_store(tiles->maximum, query, maximum, TIDE_DTYPE_FP32);
        lanes_store(tiles->sum, query, sum, TIDE_DTYPE_FP32);
        lanes_store(tiles->shrink, query, shrink, TIDE_DTYPE_FP32);
    }
}

static void scale_rows(float *tile, const float *factor, size_t padded, size_t rows)
{
    for (size_t r = 0; r < rows; r++)
        for (size_t i = 0; i < padded; i += LANES)
            lanes_store(tile, r * padded + i, lanes_load(tile, r * padded + i, TIDE_DTYPE_FP32) * factor[r],
                        TIDE_DTYPE_FP32);
}

LANES_INLINE void attend_tile(const tide_attention_args *args, const attention_head *head, size_t first_query,
                              const forward_tiles *tiles, tide_dtype dtype)
{
    const size_t query_count = tile_count(first_query, head->length);
    load_rows(tiles->rows, head, args->q, head->q + first_query * head->qk_row, head->qk_row, query_count,
              head->scale, dtype);
    transpose_rows(tiles->transposed, tiles->rows, head, query_count);
    memset(tiles->out, 0, TILE * head->padded * sizeof(float));
    for (size_t query = 0; query < TILE; query++) {
        tiles->maximum[query] = -FLT_MAX; /* finite, since a query may attend to no key of its first tiles */
        tiles->sum[query] = 0.0f;
    }
    for (size_t first_key = first_key_tile(head, first_query); first_key <= first_query; first_key += TILE) {
        const size_t key_count = tile_count(first_key, head->length);
        load_rows(tiles->rows, head, args->k, head->k + first_key * head->qk_row, head->qk_row, key_count,
                  1.0f, dtype);
        multiply_transposed(tiles->scores, tiles->rows, tiles->transposed, head, key_count);
        mask_scores(tiles->scores, head, first_query, query_count, first_key, key_count);
        online_softmax_scores(tiles, key_count);
        scale_rows(tiles->out, tiles->shrink, head->padded, query_count);
        load_rows(tiles->rows, head, args->v, head->v + first_key * head->v_row, head->v_row, key_count, 1.0f,
                  dtype);
        add_weighted_values(tiles->out, tiles->scores, tiles->rows, head, key_count, query_count);
    }
    for (size_t query = 0; query < query_count; query++) {
        args->logsumexp[head->statistics + first_query + query] =
            tiles->maximum[query] + logf(tiles->sum[query]);
        tiles->shrink[query] = 1.0f / tiles->sum[query];
    }
    scale_rows(tiles->out, tiles->shrink, head->padded, query_count);
    store_rows(args->out, head, head->out + first_query * head->out_row, head->out_row, tiles->out,
               query_count, 1.0f, dtype);
}

static size_t whole_bytes(size_t elements)
{
    return (size_t)tide_align_up(elements * sizeof(float));
}

size_t VARIANT(attention_workspace_bytes)(const tide_attention_args *shape)
{
    return (size_t)tide_team_threads() * whole_bytes(forward_elements(tile_pad(shape->head_width)));
}

static size_t query_tiles(size_t sequence_length)
{
    return tide_ceil_div(sequence_length, TILE);
}

static void attend_task(const void *arguments, size_t task, size_t member)
{
    const tide_attention_args *args = arguments;
    const size_t tiles_per_head = query_tiles(args->sequence_length);
    const size_t index = task / tiles_per_head;
    const attention_head head = head_at(args, index / args->heads, index % args->heads);
    char *own = (char *)args->workspace + member * whole_bytes(forward_elements(head.padded));
    const forward_tiles tiles = forward_tiles_at((float *)own, head.padded);
    BY_DTYPE(args->dtype, attend_tile, args, &head, task % tiles_per_head * TILE, &tiles);
}

tide_status VARIANT(attention)(void *stream, const void *arguments)
{
    const tide_attention_args *args = arguments;
    const size_t tasks = args->batch * args->heads * query_tiles(args->sequence_length);
    (void)stream;
    assert(tasks == 0 || (args->q && args->k && args->v && args->out && args->logsumexp && args->workspace));
    assert(tasks == 0 || (args->head_width > 0 && args->kv_heads > 0 && args->heads % args->kv_heads == 0));
    assert(args->workspace_bytes >= VARIANT(attention_workspace_bytes)(args));
    tide_team_run_uneven(tasks, attend_task, args);
    return TIDE_OK;
}

/* ---- backward ---- */

typedef struct backward_tiles {
    float *k, *v, *dk, *dv; /* [length, padded]: the whole head */
    float *q, *dout, *dq;   /* [TILE, padded] */
    float *q_transposed;    /* [width, TILE] */
    float *dout_transposed; /* [width, TILE] */
    float *weights;         /* [TILE keys, TILE queries]: P^T */
    float *dscores;         /* [TILE keys, TILE queries]: V dO^T, then dS^T */
    float *logsumexp; /* [TILE]; 0 past the last query, as q and dO are; the code uses no results there */
    float *mean;      /* [TILE]: D */
} backward_tiles;

static size_t backward_elements(size_t length, size_t padded)
{
    return 4 * length * padded + TILE * (5 * padded + 2 * TILE + 2);
}

static backward_tiles backward_tiles_at(float *workspace, size_t length, size_t padded)
{
    backward_tiles tiles = {.k = workspace};
    tiles.v = tiles.k + length * padded;
    tiles.dk = tiles.v + length * padded;
    tiles.dv = tiles.dk + length * padded;
    tiles.q = tiles.dv + length * padded;
    tiles.dout = tiles.q + TILE * padded;
    tiles.dq = tiles.dout + TILE * padded;
    tiles.q_transposed = tiles.dq + TILE * padded;
    tiles.dout_transposed = tiles.q_transposed + TILE * padded;
    tiles.weights = tiles.dout_transposed + TILE * padded;
    tiles.dscores = tiles.weights + TILE * TILE;
    tiles.logsumexp = tiles.dscores + TILE * TILE;
    tiles.mean = tiles.logsumexp + TILE;
    return tiles;
}

/* D[query] = dO[query] . O[query]; O is loaded into the dQ tile, which is not in use yet. */
LANES_INLINE void load_means(const tide_attention_backward_args *args, const attention_head *head,
                             size_t first_query, size_t query_count, const backward_tiles *tiles,
                             tide_dtype dtype)
{
    const size_t padded = head->padded;
    load_rows(tiles->dq, head, args->out, head->out + first_query * head->out_row, head->out_row, query_count,
              1.0f, dtype);
    for (size_t query = 0; query < TILE; query++) {
        tiles->mean[query] = 0.0f;
        tiles->logsumexp[query] = 0.0f;
    }
    for (size_t query = 0; query < query_count; query++) {
        lanes sum = lanes_all(0.0f);
        for (size_t i = 0; i < padded; i += LANES)
            sum = lanes_fma(lanes_load(tiles->dout, query * padded + i, TIDE_DTYPE_FP32),
                            lanes_load(tiles->dq, query * padded + i, TIDE_DTYPE_FP32), sum);
        tiles->mean[query] = lanes_sum(sum);
        tiles->logsumexp[query] = args->logsumexp[head->statistics + first_query + query];
    }
}

/* From scores and V dO^T: the weights P^T and dS^T = P^T (V dO^T - D). */
static void differentiate_scores(const backward_tiles *tiles, size_t key_count)
{
    for (size_t query = 0; query < TILE; query += LANES) {
        const lanes logsumexp = lanes_load(tiles->logsumexp, query, TIDE_DTYPE_FP32);
        const lanes mean = lanes_load(tiles->mean, query, TIDE_DTYPE_FP32);
        for (size_t key = 0; key < key_count; key++) {
            const size_t at = key * TILE + query;
            const lanes weight = lanes_exp(lanes_load(tiles->weights, at, TIDE_DTYPE_FP32) - logsumexp);
            const lanes dscore = weight * (lanes_load(tiles->dscores, at, TIDE_DTYPE_FP32) - mean);
            lanes_store(tiles->weights, at, weight, TIDE_DTYPE_FP32);
            lanes_store(tiles->dscores, at, dscore, TIDE_DTYPE_FP32);
        }
    }
}

static void key_tile_backward(const attention_head *head, const backward_tiles *tiles, size_t first_query,
                              size_t query_count, size_t first_key)
{
    const size_t key_count = tile_count(first_key, head->length);
    const size_t at = first_key * head->padded;
    multiply_transposed(tiles->weights, tiles->k + at, tiles->q_transposed, head, key_count);
    multiply_transposed(tiles->dscores, tiles->v + at, tiles->dout_transposed, head, key_count);
    mask_scores(tiles->weights, head, first_query, query_count, first_key, key_count);
    differentiate_scores(tiles, key_count);
    add_weighted_queries(tiles->dv + at, tiles->weights, tiles->dout, head, key_count, query_count);
    add_weighted_queries(tiles->dk + at, tiles->dscores, tiles->q, head, key_count, query_count);
    add_weighted_values(tiles->dq, tiles->dscores, tiles->k + at, head, key_count, query_count);
}

LANES_INLINE void query_tile_backward(const tide_attention_backward_args *args, const attention_head *head,
                                      size_t dq, size_t first_query, const backward_tiles *tiles,
                                      tide_dtype dtype)
{
    const size_t query_count = tile_count(first_query, head->length);
    load_rows(tiles->q, head, args->q, head->q + first_query * head->qk_row, head->qk_row, query_count,
              head->scale, dtype);
    load_rows(tiles->dout, head, args->dout, head->out + first_query * head->out_row, head->out_row,
              query_count, 1.0f, dtype);
    load_means(args, head, first_query, query_count, tiles, dtype);
    transpose_rows(tiles->q_transposed, tiles->q, head, query_count);
    transpose_rows(tiles->dout_transposed, tiles->dout, head, query_count);
    memset(tiles->dq, 0, TILE * head->padded * sizeof(float));
    for (size_t first_key = first_key_tile(head, first_query); first_key <= first_query; first_key += TILE)
        key_tile_backward(head, tiles, first_query, query_count, first_key);
    store_rows(args->dq, head, dq + first_query * args->dqkv_row, args->dqkv_row, tiles->dq, query_count,
               head->scale, dtype);
}

static tide_attention_args forward_shape(const tide_attention_backward_args *args)
{
    return (tide_attention_args){.starts = args->starts,
                                 .sequence_length = args->sequence_length,
                                 .heads = args->heads,
                                 .kv_heads = args->kv_heads,
                                 .head_width = args->head_width,
                                 .qk_row = args->qk_row,
                                 .v_row = args->v_row};
}

/* Backward for one head of keys and values: goes through all the query heads that attend to it. */
LANES_INLINE void attend_backward(const tide_attention_backward_args *args, size_t sequence, size_t kv_number,
                                  const backward_tiles *tiles, tide_dtype dtype)
{
    const size_t length = args->sequence_length, width = args->head_width, row = args->dqkv_row;
    const size_t group = args->heads / args->kv_heads, first_row = sequence * length * row;
    const tide_attention_args shape = forward_shape(args);
    const attention_head kv = head_at(&shape, sequence, kv_number * group);
    load_rows(tiles->k, &kv, args->k, kv.k, kv.qk_row, length, 1.0f, dtype);
    load_rows(tiles->v, &kv, args->v, kv.v, kv.v_row, length, 1.0f, dtype);
    memset(tiles->dk, 0, 2 * length * kv.padded * sizeof(float)); /* dv follows dk, so this zeroes both */
    for (size_t number = kv_number * group; number < (kv_number + 1) * group; number++) {
        const attention_head head = head_at(&shape, sequence, number);
        for (size_t first_query = 0; first_query < length; first_query += TILE)
            query_tile_backward(args, &head, first_row + number * width, first_query, tiles, dtype);
    }
    store_rows(args->dk, &kv, first_row + kv_number * width, row, tiles->dk, length, 1.0f, dtype);
    store_rows(args->dv, &kv, first_row + kv_number * width, row, tiles->dv, length, 1.0f, dtype);
}

size_t VARIANT(attention_backward_workspace_bytes)(const tide_attention_backward_args *shape)
{
    const size_t elements = backward_elements(shape->sequence_length, tile_pad(shape->head_width));
    return (size_t)tide_team_threads() * whole_bytes(elements);
}

static void attend_backward_task(const void *arguments, size_t task, size_t member)
{
    const tide_attention_backward_args *args = arguments;
    const size_t length = args->sequence_length, padded = tile_pad(args->head_width);
    char *own = (char *)args->workspace + member * whole_bytes(backward_elements(length, padded));
    const backward_tiles tiles = backward_tiles_at((float *)own, length, padded);
    BY_DTYPE(args->dtype, attend_backward, args, task / args->kv_heads, task % args->kv_heads, &tiles);
}

tide_status VARIANT(attention_backward)(void *stream, const void *arguments)
{
    const tide_attention_backward_args *args = arguments;
    const size_t tasks = args->batch * args->kv_heads;
    (void)stream;
    assert(tasks == 0 || (args->q && args->k && args->v && args->out && args->dout && args->logsumexp));
    assert(tasks == 0 || (args->dq && args->dk && args->dv && args->workspace));
    assert(tasks == 0 || (args->head_width > 0 && args->heads % args->kv_heads == 0));
    assert(args->workspace_bytes >= VARIANT(attention_backward_workspace_bytes)(args));
    tide_team_run_uneven(tasks, attend_backward_task, args);
    return TIDE_OK;
}
