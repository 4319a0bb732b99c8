/* Embedding: the row of wte for each token, plus the row of wpe for its position if the model has a wpe.
 *
 * Backward adds each row of dout to the row of dwte that its token names. Several rows may have the same
 * token, so each task gets a strip of columns instead of rows and goes through all rows in order: any thread
 * count gives the same bits. Backward accesses only the rows of dwte that tokens name; the rest of the
 * vocabulary costs nothing.
 */
#include "base/align.h"
#include "base/team.h"
#include "kernels/cpu/lanes.h"
#include "kernels/cpu/variant.h"

/* Columns of one task: one cache line of bf16 or two of fp32. */
enum { BITE_COLUMNS = 32 };

static size_t token_row(const int32_t *tokens, size_t row, size_t vocabulary)
{
    const int32_t token = tokens[row];
    assert(token >= 0 && (size_t)token < vocabulary);
    (void)vocabulary;
    return (size_t)token;
}

LANES_INLINE void embed_row(const tide_embedding_args *args, size_t row, tide_dtype dtype)
{
    const size_t width = args->width;
    const size_t bytes = width * tide_dtype_bytes(dtype);
    const char *wte = (const char *)args->wte + token_row(args->tokens, row, args->vocabulary) * bytes;
    char *out = (char *)args->out + row * bytes;
    if (!args->wpe) {
        memcpy(out, wte, bytes);
        return;
    }
    const char *wpe =
        (const char *)args->wpe + tide_row_position(args->starts, row, args->sequence_length) * bytes;
    for (size_t i = 0; i < width; i += LANES) {
        const lanes sum = lanes_load_until(wte, i, width, dtype) + lanes_load_until(wpe, i, width, dtype);
        lanes_store_until(out, i, width, sum, dtype);
    }
}

static void embed_task(const void *arguments, size_t row)
{
    const tide_embedding_args *args = arguments;
    BY_DTYPE(args->dtype, embed_row, args, row);
}

tide_status VARIANT(embedding)(void *stream, const void *arguments)
{
    const tide_embedding_args *args = arguments;
    (void)stream;
    assert(args->rows == 0 || (args->tokens && args->wte && args->out && args->sequence_length > 0));
    tide_team_run(args->rows, args->rows * args->width, embed_task, args);
    return TIDE_OK;
}

/* sum[begin, end) += addend[begin, end) */
LANES_INLINE void add_columns(float *sum, const void *addend, size_t begin, size_t end, tide_dtype dtype)
{
    for (size_t i = begin; i < end; i += LANES) {
        const lanes total =
            lanes_load_until(sum, i, end, TIDE_DTYPE_FP32) + lanes_load_until(addend, i, end, dtype);
        lanes_store_until(sum, i, end, total, TIDE_DTYPE_FP32);
    }
}

LANES_INLINE void embed_backward_columns(const tide_embedding_backward_args *args, size_t begin, size_t end,
                                         tide_dtype dtype)
{
    const size_t width = args->width;
    for (size_t row = 0; row < args->rows; row++) {
        const char *dout = (const char *)args->dout + row * width * tide_dtype_bytes(dtype);
        const size_t token = token_row(args->tokens, row, args->vocabulary);
        if (args->dwte && token + 1 != args->padding_row)
            add_columns(args->dwte + token * width, dout, begin, end, dtype);
        const size_t position = tide_row_position(args->starts, row, args->sequence_length);
        if (args->dwpe)
            add_columns(args->dwpe + position * width, dout, begin, end, dtype);
    }
}

static void embed_backward_task(const void *arguments, size_t bite)
{
    const tide_embedding_backward_args *args = arguments;
    const size_t begin = bite * BITE_COLUMNS, left = args->width - begin;
    const size_t end = left > BITE_COLUMNS ? begin + BITE_COLUMNS : args->width;
    BY_DTYPE(args->dtype, embed_backward_columns, args, begin, end);
}

tide_status VARIANT(embedding_backward)(void *stream, const void *arguments)
{
    const tide_embedding_backward_args *args = arguments;
    const size_t width = args->width;
    (void)stream;
    assert(args->rows == 0 || (args->tokens && args->dout && args->sequence_length > 0));
    tide_team_run(tide_ceil_div(width, BITE_COLUMNS), args->rows * width, embed_backward_task, args);
    return TIDE_OK;
}
