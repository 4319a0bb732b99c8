/* One variant's table. Matrix products are oneDNN's where the build has it. */
#include "kernels/cpu/variant.h"

const tide_cpu_variant VARIANT(variant) = {
    .kernels =
        {
            .name = "cpu " TIDE_CPU_VARIANT_NAME,
            .embedding = VARIANT(embedding),
            .embedding_backward = VARIANT(embedding_backward),
            .layer_norm = VARIANT(layer_norm),
            .layer_norm_backward = VARIANT(layer_norm_backward),
#if TIDE_HAVE_ONEDNN
            .matmul = tide_onednn_matmul,
            .matmul_prepare = tide_onednn_prepare,
#else
            .matmul = VARIANT(blocked),
            .matmul_prepare = VARIANT(blocked_prepare),
#endif
            .logit_rows = 256,
            .bias_backward = VARIANT(bias_backward),
            .attention = VARIANT(attention),
            .attention_backward = VARIANT(attention_backward),
            .gelu = VARIANT(gelu),
            .gelu_backward = VARIANT(gelu_backward),
            .add = VARIANT(add),
            .zero = VARIANT(zero),
            .copy = VARIANT(copy),
            .cast = VARIANT(cast),
            .cross_entropy = VARIANT(cross_entropy),
            .loss_sum = VARIANT(loss_sum),
            .gradient_norm = VARIANT(gradient_norm),
            .norm_sum = VARIANT(norm_sum),
            .adamw = VARIANT(adamw),
            .restore = VARIANT(restore),
            .attention_workspace_bytes = VARIANT(attention_workspace_bytes),
            .attention_backward_workspace_bytes = VARIANT(attention_backward_workspace_bytes),
        },
    .blocked = VARIANT(blocked),
    .blocked_workspace_bytes = VARIANT(blocked_workspace_bytes),
    .normals = VARIANT(normals),
};
