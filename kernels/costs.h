/* The costs that a launch declares: tide_<op>_flops counts floating-point operations, tide_<op>_bytes the
 * least bytes that must move. */
#ifndef TIDEPOOL_KERNELS_COSTS_H
#define TIDEPOOL_KERNELS_COSTS_H

#include "kernels/arguments.h"

static inline uint64_t tide_embedding_flops(const tide_embedding_args *args)
{
    return (uint64_t)args->rows * args->width;
}

static inline uint64_t tide_embedding_bytes(const tide_embedding_args *args)
{
    return (args->wpe ? 3u : 2u) * (uint64_t)args->rows * args->width * tide_dtype_bytes(args->dtype);
}

static inline uint64_t tide_embedding_backward_flops(const tide_embedding_backward_args *args)
{
    return 2 * (uint64_t)args->rows * args->width;
}

static inline uint64_t tide_embedding_backward_bytes(const tide_embedding_backward_args *args)
{
    return (uint64_t)args->rows * args->width * (tide_dtype_bytes(args->dtype) + 4 * sizeof(float));
}

static inline uint64_t tide_layer_norm_flops(const tide_layer_norm_args *args)
{
    return 8 * (uint64_t)args->rows * args->width;
}

static inline uint64_t tide_layer_norm_bytes(const tide_layer_norm_args *args)
{
    return 2 * (uint64_t)args->rows * args->width * tide_dtype_bytes(args->dtype);
}

static inline uint64_t tide_layer_norm_backward_flops(const tide_layer_norm_backward_args *args)
{
    return 16 * (uint64_t)args->rows * args->width;
}

static inline uint64_t tide_layer_norm_backward_bytes(const tide_layer_norm_backward_args *args)
{
    return (3 + (uint64_t)args->accumulate) * args->rows * args->width * tide_dtype_bytes(args->dtype);
}

static inline uint64_t tide_rms_norm_flops(const tide_rms_norm_args *args)
{
    return 4 * (uint64_t)args->rows * args->heads * args->width;
}

static inline uint64_t tide_rms_norm_bytes(const tide_rms_norm_args *args)
{
    return 2 * (uint64_t)args->rows * args->heads * args->width * tide_dtype_bytes(args->dtype);
}

static inline uint64_t tide_rms_norm_backward_flops(const tide_rms_norm_backward_args *args)
{
    return 11 * (uint64_t)args->rows * args->heads * args->width;
}

static inline uint64_t tide_rms_norm_backward_bytes(const tide_rms_norm_backward_args *args)
{
    return (3 + (uint64_t)args->accumulate) * args->rows * args->heads * args->width *
           tide_dtype_bytes(args->dtype);
}

static inline uint64_t tide_rope_flops(const tide_rope_args *args)
{
    return 3 * (uint64_t)args->rows * args->heads * args->head_width;
}

static inline uint64_t tide_rope_bytes(const tide_rope_args *args)
{
    return 2 * (uint64_t)args->rows * args->heads * args->head_width * tide_dtype_bytes(args->dtype);
}

static inline uint64_t tide_matmul_flops(const tide_matmul_args *args)
{
    const uint64_t gelu = args->gelu == TIDE_MATMUL_GELU_NONE      ? 0
                          : args->gelu == TIDE_MATMUL_GELU_FORWARD ? 20
                                                                   : 30;
    return (2 * (uint64_t)args->k + gelu) * args->m * args->n;
}

static inline uint64_t tide_matmul_bytes(const tide_matmul_args *args)
{
    const uint64_t in = (uint64_t)args->m * args->k + (uint64_t)args->k * args->n;
    const uint64_t passes = 1 + (uint64_t)args->accumulate + (args->gelu != TIDE_MATMUL_GELU_NONE);
    const uint64_t out = passes * args->m * args->n;
    return in * tide_dtype_bytes(args->in_dtype) + out * tide_dtype_bytes(args->out_dtype);
}

static inline uint64_t tide_bias_backward_flops(const tide_bias_backward_args *args)
{
    return (uint64_t)args->rows * args->width;
}

static inline uint64_t tide_bias_backward_bytes(const tide_bias_backward_args *args)
{
    return (uint64_t)args->rows * args->width * tide_dtype_bytes(args->dtype);
}

/* Multiplications and additions of one product with the causal half of a [T, T] matrix, over all heads. */
static inline uint64_t tide_attention_product_flops(size_t batch, size_t sequence_length, size_t heads,
                                                    size_t head_width)
{
    return (uint64_t)batch * heads * head_width * sequence_length * (sequence_length + 1);
}

static inline uint64_t tide_attention_flops(const tide_attention_args *args)
{
    return 2 *
           tide_attention_product_flops(args->batch, args->sequence_length, args->heads, args->head_width);
}

/* Reads q, k and v and writes out, each once. */
static inline uint64_t tide_attention_bytes(const tide_attention_args *args)
{
    return 2 * (uint64_t)args->batch * args->sequence_length * (args->heads + args->kv_heads) *
           args->head_width * tide_dtype_bytes(args->dtype);
}

static inline uint64_t tide_attention_backward_flops(const tide_attention_backward_args *args)
{
    return 5 *
           tide_attention_product_flops(args->batch, args->sequence_length, args->heads, args->head_width);
}

static inline uint64_t tide_attention_backward_bytes(const tide_attention_backward_args *args)
{
    return 4 * (uint64_t)args->batch * args->sequence_length * (args->heads + args->kv_heads) *
           args->head_width * tide_dtype_bytes(args->dtype);
}

/* How many keys all queries of a head attend to, together. */
static inline uint64_t tide_attention_cached_pairs(const tide_attention_cached_args *args)
{
    return (uint64_t)args->rows * args->first + (uint64_t)args->rows * (args->rows + 1) / 2;
}

static inline uint64_t tide_attention_cached_flops(const tide_attention_cached_args *args)
{
    return 4 * tide_attention_cached_pairs(args) * args->heads * args->head_width;
}

/* Reads the cache, q, k and v and writes out and the new rows of the cache, each once. */
static inline uint64_t tide_attention_cached_bytes(const tide_attention_cached_args *args)
{
    const uint64_t kv_rows = args->first + 2 * (uint64_t)args->rows;
    return 2 * (kv_rows * args->kv_heads + (uint64_t)args->rows * args->heads) * args->head_width *
           tide_dtype_bytes(args->dtype);
}

static inline uint64_t tide_gelu_flops(const tide_gelu_args *args)
{
    return 20 * (uint64_t)args->elements;
}

static inline uint64_t tide_gelu_bytes(const tide_gelu_args *args)
{
    return 2 * (uint64_t)args->elements * tide_dtype_bytes(args->dtype);
}

static inline uint64_t tide_gelu_backward_flops(const tide_gelu_backward_args *args)
{
    return 30 * (uint64_t)args->elements;
}

static inline uint64_t tide_gelu_backward_bytes(const tide_gelu_backward_args *args)
{
    return 3 * (uint64_t)args->elements * tide_dtype_bytes(args->dtype);
}

static inline uint64_t tide_swiglu_flops(const tide_swiglu_args *args)
{
    return 12 * (uint64_t)args->rows * args->width;
}

static inline uint64_t tide_swiglu_bytes(const tide_swiglu_args *args)
{
    return 3 * (uint64_t)args->rows * args->width * tide_dtype_bytes(args->dtype);
}

static inline uint64_t tide_swiglu_backward_flops(const tide_swiglu_backward_args *args)
{
    return 18 * (uint64_t)args->rows * args->width;
}

static inline uint64_t tide_swiglu_backward_bytes(const tide_swiglu_backward_args *args)
{
    return 5 * (uint64_t)args->rows * args->width * tide_dtype_bytes(args->dtype);
}

static inline uint64_t tide_add_flops(const tide_add_args *args)
{
    return (uint64_t)args->elements;
}

static inline uint64_t tide_add_bytes(const tide_add_args *args)
{
    return 3 * (uint64_t)args->elements * tide_dtype_bytes(args->dtype);
}

static inline uint64_t tide_zero_bytes(const tide_zero_args *args)
{
    return (uint64_t)args->bytes;
}

static inline uint64_t tide_copy_bytes(const tide_copy_args *args)
{
    return 2 * (uint64_t)args->bytes;
}

static inline uint64_t tide_cast_bytes(const tide_cast_args *args)
{
    return (uint64_t)args->elements * (tide_dtype_bytes(args->in_dtype) + tide_dtype_bytes(args->out_dtype));
}

static inline uint64_t tide_round_bytes(const tide_round_args *args)
{
    return 2 * (uint64_t)args->elements * sizeof(float);
}

static inline uint64_t tide_cross_entropy_flops(const tide_cross_entropy_args *args)
{
    return (args->gradient ? 30u : 15u) * (uint64_t)args->rows * args->vocabulary;
}

static inline uint64_t tide_cross_entropy_bytes(const tide_cross_entropy_args *args)
{
    return (args->gradient ? 2u : 1u) * (uint64_t)args->rows * args->vocabulary *
           tide_dtype_bytes(args->dtype);
}

static inline uint64_t tide_loss_sum_flops(const tide_loss_sum_args *args)
{
    return (uint64_t)args->rows;
}

static inline uint64_t tide_loss_sum_bytes(const tide_loss_sum_args *args)
{
    return (uint64_t)args->rows * sizeof(float);
}

static inline uint64_t tide_gradient_norm_flops(const tide_gradient_norm_args *args)
{
    return 2 * (uint64_t)args->elements;
}

static inline uint64_t tide_gradient_norm_bytes(const tide_gradient_norm_args *args)
{
    return (uint64_t)args->elements * tide_dtype_bytes(args->dtype);
}

static inline uint64_t tide_norm_sum_flops(const tide_norm_sum_args *args)
{
    return (uint64_t)args->blocks_count;
}

static inline uint64_t tide_norm_sum_bytes(const tide_norm_sum_args *args)
{
    return (uint64_t)args->blocks_count * sizeof(double);
}

static inline uint64_t tide_adamw_segments_elements(const tide_adamw_segment *segments, size_t segment_count)
{
    uint64_t elements = 0;
    for (size_t s = 0; s < segment_count; s++)
        elements += segments[s].elements;
    return elements;
}

static inline uint64_t tide_adamw_flops(const tide_adamw_args *args)
{
    return 14 * tide_adamw_segments_elements(args->segments, args->segment_count);
}

/* 28 bytes per bf16 parameter, 32 per fp32 one: reads the gradient, writes the parameter, reads and writes
 * three fp32 states. */
static inline uint64_t tide_adamw_bytes(const tide_adamw_args *args)
{
    return tide_adamw_segments_elements(args->segments, args->segment_count) *
           (2 * tide_dtype_bytes(args->dtype) + 6 * sizeof(float));
}

static inline uint64_t tide_restore_bytes(const tide_restore_args *args)
{
    return tide_adamw_segments_elements(args->segments, args->segment_count) *
           (tide_dtype_bytes(args->dtype) + sizeof(float));
}

#endif
