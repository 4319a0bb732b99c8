/* Attention of a few new tokens to all tokens before them, whose keys and values are in a cache.
 *
 * A task computes one query: one head of one token. It goes through the keys in tiles of TILE positions and
 * keeps a running maximum and sum (online softmax):
 *
 *     w = e^(q k - maximum)        out = out e^(old - new maximum) + w v
 *
 * The task of a group's first query head also copies the token's key and value to the cache. No task of the
 * same launch reads them there: the keys and values of all new tokens are read where the model made them. A
 * query's products, its tiles and their order depend on its position alone, so that its bits do not depend on
 * how many tokens one launch takes.
 *
 * A new token of a model reads each cached key once for each query head of the group; the cache is small
 * beside the params that the token reads anyway. Queries of a whole prompt are faster in the tiles of
 * attention.c, but only matmuls count then, too.
 */
#include "base/align.h"
#include "base/minmax.h"
#include "base/team.h"
#include "kernels/cpu/lanes.h"
#include "kernels/cpu/tile.h"
#include "kernels/cpu/variant.h"

#include <float.h>

enum { TILE = 64 };

/* A thread's workspace, in fp32; each part is a whole number of vectors, zero past the head's width. */
typedef struct query_buffers {
    float *query;   /* [padded]: scaled by 1 / sqrt(head_width) */
    float *out;     /* [padded] */
    float *weights; /* [TILE]: scores, then weights */
} query_buffers;

static size_t buffers_bytes(size_t head_width)
{
    return (size_t)tide_align_up((2 * tile_pad(head_width) + TILE) * sizeof(float));
}

/* A head of keys or of values: in the cache below `first`, from there on in the model's rows. */
typedef struct head_rows {
    const void *cached, *made;
    size_t cached_row, made_row; /* elements from a row to the next */
    size_t column;               /* of the head's first element */
    size_t first;
} head_rows;

static const void *row_of(const head_rows *of, size_t position, size_t *index)
{
    const bool cached = position < of->first;
    *index = of->column + (cached ? position * of->cached_row : (position - of->first) * of->made_row);
    return cached ? of->cached : of->made;
}

LANES_INLINE float score_of(const query_buffers *buffers, const head_rows *keys, size_t position,
                            size_t width, tide_dtype dtype)
{
    size_t index;
    const void *matrix = row_of(keys, position, &index);
    lanes sum = lanes_all(0.0f);
    for (size_t i = 0; i < width; i += LANES)
        sum = lanes_fma(lanes_load(buffers->query, i, TIDE_DTYPE_FP32),
                        lanes_load_until(matrix, index + i, index + width, dtype), sum);
    return lanes_sum(sum);
}

LANES_INLINE void add_value(const query_buffers *buffers, const head_rows *values, size_t position,
                            float weight, size_t width, tide_dtype dtype)
{
    size_t index;
    const void *matrix = row_of(values, position, &index);
    for (size_t i = 0; i < width; i += LANES)
        lanes_store(buffers->out, i,
                    lanes_fma(lanes_load_until(matrix, index + i, index + width, dtype), lanes_all(weight),
                              lanes_load(buffers->out, i, TIDE_DTYPE_FP32)),
                    TIDE_DTYPE_FP32);
}

static void scale_out(const query_buffers *buffers, size_t width, float factor)
{
    for (size_t i = 0; i < width; i += LANES)
        lanes_store(buffers->out, i, lanes_load(buffers->out, i, TIDE_DTYPE_FP32) * factor, TIDE_DTYPE_FP32);
}

/* Replaces a tile's scores by weights. Scores past the last key are minus infinity. */
static void online_softmax_tile(float *weights, float *maximum, float *sum, float *shrink)
{
    lanes most = lanes_all(*maximum);
    for (size_t key = 0; key < TILE; key += LANES)
        most = lanes_max(lanes_load(weights, key, TIDE_DTYPE_FP32), most);
    const float new_maximum = lanes_largest(most);
    lanes added = lanes_all(0.0f);
    for (size_t key = 0; key < TILE; key += LANES) {
        const lanes weight = lanes_exp(lanes_load(weights, key, TIDE_DTYPE_FP32) - new_maximum);
        lanes_store(weights, key, weight, TIDE_DTYPE_FP32);
        added += weight;
    }
    float each[LANES];
    lanes_store(each, 0, lanes_exp(lanes_all(*maximum - new_maximum)), TIDE_DTYPE_FP32);
    *shrink = each[0];
    *sum = *sum * *shrink + lanes_sum(added);
    *maximum = new_maximum;
}

LANES_INLINE void load_query(const tide_attention_cached_args *args, const query_buffers *buffers, size_t row,
                             size_t head, tide_dtype dtype)
{
    const size_t width = args->head_width, index = row * args->qk_row + head * width;
    const float scale = 1.0f / sqrtf((float)width);
    for (size_t i = 0; i < width; i += LANES) {
        lanes_store(buffers->query, i, lanes_load_until(args->q, index + i, index + width, dtype) * scale,
                    TIDE_DTYPE_FP32);
        lanes_store(buffers->out, i, lanes_all(0.0f), TIDE_DTYPE_FP32);
    }
}

LANES_INLINE void attend_query(const tide_attention_cached_args *args, const query_buffers *buffers,
                               size_t row, size_t head, tide_dtype dtype)
{
    const size_t width = args->head_width, kv_width = args->kv_heads * width;
    const size_t column = head / (args->heads / args->kv_heads) * width, end = args->first + row + 1;
    const head_rows keys = {args->keys, args->k, kv_width, args->qk_row, column, args->first};
    const head_rows values = {args->values, args->v, kv_width, args->v_row, column, args->first};
    float maximum = -FLT_MAX, sum = 0.0f, shrink;
    load_query(args, buffers, row, head, dtype);
    for (size_t begin = 0; begin < end; begin += TILE) {
        const size_t count = tide_min_u64(end - begin, TILE);
        for (size_t key = 0; key < TILE; key++)
            buffers->weights[key] =
                key < count ? score_of(buffers, &keys, begin + key, width, dtype) : -INFINITY;
        online_softmax_tile(buffers->weights, &maximum, &sum, &shrink);
        scale_out(buffers, width, shrink);
        for (size_t key = 0; key < count; key++)
            add_value(buffers, &values, begin + key, buffers->weights[key], width, dtype);
    }
    scale_out(buffers, width, 1.0f / sum);
    const size_t index = (row * args->heads + head) * width;
    for (size_t i = 0; i < width; i += LANES)
        lanes_store_until(args->out, index + i, index + width, lanes_load(buffers->out, i, TIDE_DTYPE_FP32),
                          dtype);
}

/* Copies one head of a new token's key, or of its value, to the cache. */
static void append(void *cache, const void *made, size_t made_row, const tide_attention_cached_args *args,
                   size_t row, size_t kv_head)
{
    const size_t bytes = args->head_width * tide_dtype_bytes(args->dtype);
    const size_t element_bytes = tide_dtype_bytes(args->dtype);
    memcpy((char *)cache + ((args->first + row) * args->kv_heads + kv_head) * bytes,
           (const char *)made + row * made_row * element_bytes + kv_head * bytes, bytes);
}

static void attend_task(const void *arguments, size_t task, size_t member)
{
    const tide_attention_cached_args *args = arguments;
    const size_t row = task / args->heads, head = task % args->heads, group = args->heads / args->kv_heads;
    float *own = (float *)((char *)args->workspace + member * buffers_bytes(args->head_width));
    const size_t padded = tile_pad(args->head_width);
    const query_buffers buffers = {own, own + padded, own + 2 * padded};
    if (head % group == 0) {
        append(args->keys, args->k, args->qk_row, args, row, head / group);
        append(args->values, args->v, args->v_row, args, row, head / group);
    }
    BY_DTYPE(args->dtype, attend_query, args, &buffers, row, head);
}

size_t VARIANT(attention_cached_workspace_bytes)(const tide_attention_cached_args *shape)
{
    return (size_t)tide_team_threads() * buffers_bytes(shape->head_width);
}

tide_status VARIANT(attention_cached)(void *stream, const void *arguments)
{
    const tide_attention_cached_args *args = arguments;
    const size_t tasks = args->rows * args->heads;
    (void)stream;
    assert(tasks == 0 || (args->q && args->k && args->v && args->out && args->workspace));
    assert(tasks == 0 || (args->keys && args->values));
    assert(tasks == 0 || (args->head_width > 0 && args->kv_heads > 0 && args->heads % args->kv_heads == 0));
    assert(args->workspace_bytes >= VARIANT(attention_cached_workspace_bytes)(args));
    tide_team_run_uneven(tasks, attend_task, args);
    return TIDE_OK;
}
