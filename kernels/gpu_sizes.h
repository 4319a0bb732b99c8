/* Sizes of a GPU's kernels. A machine without a GPU needs them to plan for one (planned_gpu.c). */
#ifndef TIDEPOOL_KERNELS_GPU_SIZES_H
#define TIDEPOOL_KERNELS_GPU_SIZES_H

#include "kernels/arguments.h"

/* tide_kernels.logit_rows on a GPU */
#define TIDE_GPU_LOGIT_ROWS 4096
/* The largest workspace that a product gets; cuBLASLt may use less. */
#define TIDE_GPU_MATMUL_WORKSPACE_LIMIT_BYTES (UINT64_C(32) << 20)

/* Workspace for the copy of a bias that is converted to the type of the result. */
static inline size_t tide_gpu_matmul_bias_bytes(const tide_matmul_args *shape)
{
    return shape->has_bias && shape->in_dtype != shape->out_dtype
               ? (size_t)tide_align_up(shape->n * sizeof(float))
               : 0;
}

/* The number of rows of partial sums in a norm's backward. The gradients of its params are sums over `count`
 * rows; each partial sum has `width` numbers for all params together. A power of two from 4 (a block of
 * narrow rows makes four) to 2048, such that the partial sums take at most 8 MiB in fp32 and each sums at
 * least four rows if there are so many. The number depends on the shape alone, since it decides an order of
 * sums. */
static inline size_t tide_gpu_norm_parts(size_t count, size_t width)
{
    const size_t most_elements = (size_t)2 << 20, most_parts = 2048;
    size_t parts = 4;
    while (parts < most_parts && 2 * parts * width <= most_elements && 8 * parts <= count)
        parts *= 2;
    return parts;
}

/* Workspace: the partial sums of dweight, then those of dbias. */
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

/* Into how many parts, each for a block, attention's backward splits a sum of dK or dV over the query heads
 * of a group. Without a split a block computes 64 keys of one key head, and an H100 holds 264 blocks at once:
 * with few key heads most of it would be idle. With 512 blocks or more nothing is split, although the blocks
 * of the first keys work longest. The bits depend on the number of parts, so the shape alone decides it,
 * never the GPU. */
static inline size_t tide_gpu_attention_splits(const tide_attention_backward_args *shape)
{
    const size_t enough = 512, most = 4, group = shape->heads / shape->kv_heads;
    const size_t blocks = shape->batch * shape->kv_heads * ((shape->sequence_length + 63) / 64);
    size_t splits = 1;
    while (2 * splits <= most && 2 * splits <= group && splits * blocks < enough)
        splits *= 2;
    return splits;
}

/* Workspace of attention's backward: D of each query and head (attention_backward.cu); then, if sums are
 * split, dK and dV of each part in fp32, which take less than 64 MiB for heads of width 128, since a split
 * makes fewer than 1,024 blocks. */
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
