/* Declares the kernels of one variant (cpu.h). */
#ifndef TIDEPOOL_KERNELS_CPU_VARIANT_H
#define TIDEPOOL_KERNELS_CPU_VARIANT_H

#include "kernels/cpu/cpu.h"

#define TIDE_PASTE_(name, suffix) tide_cpu_##name##_##suffix
#define TIDE_PASTE(name, suffix)  TIDE_PASTE_(name, suffix)
#define VARIANT(name)             TIDE_PASTE(name, TIDE_CPU_VARIANT)

tide_status VARIANT(embedding)(void *stream, const void *arguments);
tide_status VARIANT(embedding_backward)(void *stream, const void *arguments);
tide_status VARIANT(layer_norm)(void *stream, const void *arguments);
tide_status VARIANT(layer_norm_backward)(void *stream, const void *arguments);
tide_status VARIANT(rms_norm)(void *stream, const void *arguments);
tide_status VARIANT(rms_norm_backward)(void *stream, const void *arguments);
tide_status VARIANT(rope)(void *stream, const void *arguments);
tide_status VARIANT(blocked)(void *stream, const void *arguments);
tide_status VARIANT(bias_backward)(void *stream, const void *arguments);
tide_status VARIANT(attention)(void *stream, const void *arguments);
tide_status VARIANT(attention_backward)(void *stream, const void *arguments);
tide_status VARIANT(attention_cached)(void *stream, const void *arguments);
tide_status VARIANT(gelu)(void *stream, const void *arguments);
tide_status VARIANT(gelu_backward)(void *stream, const void *arguments);
tide_status VARIANT(swiglu)(void *stream, const void *arguments);
tide_status VARIANT(swiglu_backward)(void *stream, const void *arguments);
tide_status VARIANT(add)(void *stream, const void *arguments);
tide_status VARIANT(zero)(void *stream, const void *arguments);
tide_status VARIANT(copy)(void *stream, const void *arguments);
tide_status VARIANT(cast)(void *stream, const void *arguments);
tide_status VARIANT(round)(void *stream, const void *arguments);
tide_status VARIANT(cross_entropy)(void *stream, const void *arguments);
tide_status VARIANT(loss_sum)(void *stream, const void *arguments);
tide_status VARIANT(gradient_norm)(void *stream, const void *arguments);
tide_status VARIANT(norm_sum)(void *stream, const void *arguments);
tide_status VARIANT(adamw)(void *stream, const void *arguments);
tide_status VARIANT(restore)(void *stream, const void *arguments);

void VARIANT(normals)(const tide_normals_args *args, uint64_t first_block, size_t blocks, float *values);
void VARIANT(place)(const tide_place_args *args);
size_t VARIANT(blocked_workspace_bytes)(void);
/* A product with one row (row_matmul.c), which takes neither preparation nor workspace, and whether it
 * makes the product of these arguments. */
bool VARIANT(row_matmul_takes)(const tide_matmul_args *args);
tide_status VARIANT(row_matmul)(const tide_matmul_args *args);
tide_status VARIANT(blocked_prepare)(const tide_matmul_args *shape, size_t *workspace_bytes);
size_t VARIANT(attention_workspace_bytes)(const tide_attention_args *shape);
size_t VARIANT(attention_backward_workspace_bytes)(const tide_attention_backward_args *shape);
size_t VARIANT(attention_cached_workspace_bytes)(const tide_attention_cached_args *shape);

extern const tide_cpu_variant VARIANT(variant);

#endif
