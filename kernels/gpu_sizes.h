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

static inline size_t tide_gpu_attention_backward_bytes(const tide_attention_backward_args *shape)
{
    return (size_t)tide_align_up(shape->batch * shape->heads * shape->sequence_length * sizeof(float));
}

#endif
