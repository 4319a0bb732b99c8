/* The GPU's kernels: launchers with the signature of tide_kernel, one a member of tide_kernels. Each takes the
 * cudaStream_t, enqueues, and returns: OK, or DEVICE with CUDA's own words when the launch is refused. None blocks,
 * none allocates, none reads its arguments after it has returned. Arrays that launchers themselves read (adamw's and
 * restore's segments) are host memory and are read before the launcher returns.
 *
 * Everything here lives in the module libtidepool_cuda.so. C linkage.
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
tide_status tide_cuda_gelu(void *stream, const void *arguments);
tide_status tide_cuda_gelu_backward(void *stream, const void *arguments);
tide_status tide_cuda_swiglu(void *stream, const void *arguments);
tide_status tide_cuda_swiglu_backward(void *stream, const void *arguments);
tide_status tide_cuda_add(void *stream, const void *arguments);
tide_status tide_cuda_zero(void *stream, const void *arguments);
tide_status tide_cuda_copy(void *stream, const void *arguments);
tide_status tide_cuda_cast(void *stream, const void *arguments);
tide_status tide_cuda_cross_entropy(void *stream, const void *arguments);
tide_status tide_cuda_loss_sum(void *stream, const void *arguments);
tide_status tide_cuda_gradient_norm(void *stream, const void *arguments);
tide_status tide_cuda_norm_sum(void *stream, const void *arguments);
tide_status tide_cuda_adamw(void *stream, const void *arguments);
tide_status tide_cuda_restore(void *stream, const void *arguments);
size_t tide_cuda_attention_workspace_bytes(const tide_attention_args *shape);
size_t tide_cuda_attention_backward_workspace_bytes(const tide_attention_backward_args *shape);

/* Matrix products by cuBLASLt (matmul.c). open() makes the library ready on the current GPU, once a process;
 * prepare() caches descriptors and the algorithm chosen per shape (matmul_choice.h), any thread. UNSUPPORTED, DEVICE with
 * cuBLASLt's status. */
tide_status tide_cuda_matmul_open(void);
tide_status tide_cuda_matmul(void *stream, const void *arguments);
tide_status tide_cuda_matmul_prepare(const tide_matmul_args *shape, size_t *workspace_bytes);
void tide_cuda_matmul_close(void);

/* The table (table.c). Static storage. */
const tide_kernels *tide_kernels_cuda(void);

/* OK if `error` (a cudaError_t) is cudaSuccess, else DEVICE with a message naming `label` (status.c of this
 * folder). */
tide_status tide_cuda_launched(const char *label, int error);

#ifdef __cplusplus
}
#endif

#endif
