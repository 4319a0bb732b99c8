/* The GPU's table of kernels. */
#include "kernels/cuda/launchers.h"
#include "kernels/gpu_sizes.h"

static const tide_kernels table = {
    .name = "cuda",
    .fuses_gelu = true,
    /* With 50257 columns and width 768 in bf16, so many rows take 1.3 ms of arithmetic on an H200, 64 us for
     * reading and writing the weight's gradient, and 412 MB. */
    .logit_rows = TIDE_GPU_LOGIT_ROWS,
    .embedding = tide_cuda_embedding,
    .embedding_backward = tide_cuda_embedding_backward,
    .layer_norm = tide_cuda_layer_norm,
    .layer_norm_backward = tide_cuda_layer_norm_backward,
    .rms_norm = tide_cuda_rms_norm,
    .rms_norm_backward = tide_cuda_rms_norm_backward,
    .rope = tide_cuda_rope,
    .matmul = tide_cuda_matmul,
    .bias_backward = tide_cuda_bias_backward,
    .attention = tide_cuda_attention,
    .attention_backward = tide_cuda_attention_backward,
    .attention_cached = tide_cuda_attention_cached,
    .gelu = tide_cuda_gelu,
    .gelu_backward = tide_cuda_gelu_backward,
    .swiglu = tide_cuda_swiglu,
    .swiglu_backward = tide_cuda_swiglu_backward,
    .add = tide_cuda_add,
    .zero = tide_cuda_zero,
    .copy = tide_cuda_copy,
    .cast = tide_cuda_cast,
    .round = tide_cuda_round,
    .cross_entropy = tide_cuda_cross_entropy,
    .loss_sum = tide_cuda_loss_sum,
    .gradient_norm = tide_cuda_gradient_norm,
    .norm_sum = tide_cuda_norm_sum,
    .adamw = tide_cuda_adamw,
    .restore = tide_cuda_restore,
    .matmul_prepare = tide_cuda_matmul_prepare,
    .layer_norm_backward_workspace_bytes = tide_gpu_layer_norm_backward_bytes,
    .rms_norm_backward_workspace_bytes = tide_gpu_rms_norm_backward_bytes,
    .attention_workspace_bytes = tide_cuda_attention_workspace_bytes,
    .attention_backward_workspace_bytes = tide_cuda_attention_backward_workspace_bytes,
    .attention_cached_workspace_bytes = tide_cuda_attention_cached_workspace_bytes,
};

const tide_kernels *tide_kernels_cuda(void)
{
    return &table;
}
