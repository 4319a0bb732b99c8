/* What a GPU's kernels ask for that a plan must know where there is no GPU: the module's kernels are made with it, and the null
 * device that stands for a GPU. */
#ifndef TIDEPOOL_KERNELS_GPU_SIZES_H
#define TIDEPOOL_KERNELS_GPU_SIZES_H

#include "kernels/kernels.h"

/* Chunks are not mapped in smaller pieces. */
#define TIDE_GPU_CHUNK_BYTES_LEAST (UINT64_C(2) << 20)
/* tide_kernels.logit_rows */
#define TIDE_GPU_LOGIT_ROWS 4096
/* The most that a product is given; cuBLASLt may take less. */
#define TIDE_GPU_MATMUL_WORKSPACE_LIMIT_BYTES (UINT64_C(32) << 20)

/* Of a bias that is widened to the product's own type. */
static inline size_t tide_gpu_matmul_bias_bytes(const tide_matmul_args *shape)
{
    return shape->has_bias && shape->in_dtype != shape->out_dtype
               ? (size_t)tide_align_up(shape->n * sizeof(float))
               : 0;
}

/* Rows of partial sums that a norm's backward makes for its params' gradients, the sums over `count` rows of `width`
 * numbers for all params: a power of two from 4 (a block of narrow rows makes four) to 2048, at most 8 MiB in fp32, each
 * the sum of at least four rows if there are so many. A function of the shape alone: it decides an order of sums. */
static inline size_t tide_gpu_norm_parts(size_t count, size_t width)
{
    const size_t most_elements = (size_t)2 << 20, most_parts = 2048;
    size_t parts = 4;
    while (parts < most_parts && 2 * parts * width <= most_elements && 8 * parts <= count)
        parts *= 2;
    return parts;
}

/* dweight's partial sums, then dbias'. */
static inline size_t tide_gpu_layer_norm_backward_bytes(const tide_layer_norm_backward_args *shape)
{
    return (size_t)tide_align_up(tide_gpu_norm_parts(shape->rows, 2 * shape->width) * 2 * shape->width *
                                 sizeof(float));
}

static inline size_t tide_gpu_rms_norm_backward_bytes(const tide_rms_norm_backward_args *shape)
{
    return (size_t)tide_align_up(tide_gpu_norm_parts(shape->rows * shape->heads, shape->width) *
                                 shape->width * sizeof(float));
}

/* Into how many blocks' parts a sum over a group's query heads, dK's or dV's, is split. Each 64 keys of a head of
 * keys are a block's, and an H100 holds 264 blocks at once: with few heads of keys most of it would be idle. From 512
 * blocks on nothing is split; the blocks of the first keys work longest. The bits depend on the number of parts, so
 * the shape alone decides it, never the GPU. */
static inline size_t tide_gpu_attention_splits(const tide_attention_backward_args *shape)
{
    const size_t enough = 512, most = 4, group = shape->heads / shape->kv_heads;
    const size_t blocks = shape->batch * shape->kv_heads * ((shape->sequence_length + 63) / 64);
    size_t splits = 1;
    while (2 * splits <= most && 2 * splits <= group && splits * blocks < enough)
        splits *= 2;
    return splits;
}

/* Attention's workspace, backward: D of each query and head; then, where sums are split, each part's dK and dV in
 * fp32. With fewer than 1,024 blocks these are less than 64 MiB at width 128. */
static inline size_t tide_gpu_attention_means_bytes(const tide_attention_backward_args *shape)
{
    return (size_t)tide_align_up(shape->batch * shape->heads * shape->sequence_length * sizeof(float));
}

static inline size_t tide_gpu_attention_backward_bytes(const tide_attention_backward_args *shape)
{
    const size_t splits = tide_gpu_attention_splits(shape);
    const size_t keys = shape->batch * shape->sequence_length * shape->kv_heads * shape->head_width;
    return tide_gpu_attention_means_bytes(shape) +
           (splits > 1 ? (size_t)tide_align_up(splits * 2 * keys * sizeof(float)) : 0);
}

#endif
