/* The GPU's kernels: a launcher with the signature of tide_kernel for each member of tide_kernels. A launcher
 * takes the cudaStream_t, enqueues the kernel and returns OK, or DEVICE with CUDA's message if CUDA refuses
 * the launch. Launchers do not block or allocate and do not read their arguments after they have returned.
 * The segments of adamw and restore are in host memory, and the launcher reads them before it returns.
 *
 * All functions here are in the module libtidepool_cuda.so and have C linkage.
 */
#ifndef TIDEPOOL_KERNELS_CUDA_LAUNCHERS_H
#define TIDEPOOL_KERNELS_CUDA_LAUNCHERS_H

#ifdef __cplusplus
extern "C" {
#endif

#include "kernels/kernels.h"

tide_status tide_cuda_embedding(void *stream, const void *arguments);
tide_status tide_cuda_embedding_backward(void *stream, const void *arguments);
tide_status tide_cuda_layer_norm(void *stream, const void *arguments);
tide_status tide_cuda_layer_norm_backward(void *stream, const void *arguments);
tide_status tide_cuda_rms_norm(void *stream, const void *arguments);
tide_status tide_cuda_rms_norm_backward(void *stream, const void *arguments);
tide_status tide_cuda_rope(void *stream, const void *arguments);
tide_status tide_cuda_bias_backward(void *stream, const void *arguments);
tide_status tide_cuda_attention(void *stream, const void *arguments);
tide_status tide_cuda_attention_backward(void *stream, const void *arguments);
tide_status tide_cuda_attention_cached(void *stream, const void *arguments);
tide_status tide_cuda_gelu(void *stream, const void *arguments);
tide_status tide_cuda_gelu_backward(void *stream, const void *arguments);
tide_status tide_cuda_swiglu(void *stream, const void *arguments);
tide_status tide_cuda_swiglu_backward(void *stream, const void *arguments);
tide_status tide_cuda_add(void *stream, const void *arguments);
tide_status tide_cuda_zero(void *stream, const void *arguments);
tide_status tide_cuda_copy(void *stream, const void *arguments);
tide_status tide_cuda_cast(void *stream, const void *arguments);
tide_status tide_cuda_round(void *stream, const void *arguments);
tide_status tide_cuda_cross_entropy(void *stream, const void *arguments);
tide_status tide_cuda_loss_sum(void *stream, const void *arguments);
tide_status tide_cuda_gradient_norm(void *stream, const void *arguments);
tide_status tide_cuda_norm_sum(void *stream, const void *arguments);
tide_status tide_cuda_adamw(void *stream, const void *arguments);
tide_status tide_cuda_restore(void *stream, const void *arguments);
size_t tide_cuda_attention_workspace_bytes(const tide_attention_args *shape);
size_t tide_cuda_attention_backward_workspace_bytes(const tide_attention_backward_args *shape);
size_t tide_cuda_attention_cached_workspace_bytes(const tide_attention_cached_args *shape);

/* Matrix products by cuBLASLt (matmul.c). open() initializes the library on the current GPU, once per
 * process; prepare(), which any thread may call, caches the descriptors and the chosen algorithm of a shape
 * (matmul_choice.h). UNSUPPORTED, DEVICE with cuBLASLt's status. */
tide_status tide_cuda_matmul_open(void);
tide_status tide_cuda_matmul(void *stream, const void *arguments);
tide_status tide_cuda_matmul_prepare(const tide_matmul_args *shape, size_t *workspace_bytes);
void tide_cuda_matmul_close(void);

/* The GPU's table of kernels (table.c). Static storage. */
const tide_kernels *tide_kernels_cuda(void);

/* OK if `error` (a cudaError_t) is cudaSuccess, else DEVICE with a message naming `label` (status.c of this
 * folder). */
tide_status tide_cuda_launched(const char *label, int error);

#ifdef __cplusplus
}
#endif

#endif
