/* The table of kernels of one variant. For each shape matmul_prepare decides which code makes the product:
 * oneDNN, if the build has oneDNN and oneDNN does not decline the shape (matmul_onednn.h), otherwise
 * blocked.c. */
#include "kernels/cpu/matmul_onednn.h"
#include "kernels/cpu/variant.h"

/* The CPU's norms need no workspace. */
static size_t layer_norm_backward_workspace_bytes(const tide_layer_norm_backward_args *shape)
{
    (void)shape;
    return 0;
}

static size_t rms_norm_backward_workspace_bytes(const tide_rms_norm_backward_args *shape)
{
    (void)shape;
    return 0;
}

static tide_status matmul_prepare(const tide_matmul_args *shape, size_t *workspace_bytes)
{
    size_t bytes;
    tide_status status = VARIANT(blocked_prepare)(shape, &bytes);
    if (status == TIDE_OK && VARIANT(row_matmul_takes)(shape))
        bytes = 0;
#if TIDE_HAVE_ONEDNN
    else if (status == TIDE_OK)
        status = tide_onednn_prepare(shape, &bytes);
#endif
    if (status == TIDE_OK)
        *workspace_bytes = bytes;
    return status;
}

static tide_status matmul(void *stream, const void *arguments)
{
    if (VARIANT(row_matmul_takes)(arguments))
        return VARIANT(row_matmul)(arguments);
#if TIDE_HAVE_ONEDNN
    bool declined;
    const tide_status status = tide_onednn_matmul(arguments, VARIANT(zero), &declined);
    if (status != TIDE_OK || !declined)
        return status;
#endif
    return VARIANT(blocked)(stream, arguments);
}

const tide_cpu_variant VARIANT(variant) = {
    .kernels =
        {
            .name = "cpu " TIDE_CPU_VARIANT_NAME,
            .embedding = VARIANT(embedding),
            .embedding_backward = VARIANT(embedding_backward),
            .layer_norm = VARIANT(layer_norm),
            .layer_norm_backward = VARIANT(layer_norm_backward),
            .rms_norm = VARIANT(rms_norm),
            .rms_norm_backward = VARIANT(rms_norm_backward),
            .rope = VARIANT(rope),
            .matmul = matmul,
            .matmul_prepare = matmul_prepare,
            .logit_rows = 256,
            .bias_backward = VARIANT(bias_backward),
            .attention = VARIANT(attention),
            .attention_backward = VARIANT(attention_backward),
            .attention_cached = VARIANT(attention_cached),
            .gelu = VARIANT(gelu),
            .gelu_backward = VARIANT(gelu_backward),
            .swiglu = VARIANT(swiglu),
            .swiglu_backward = VARIANT(swiglu_backward),
            .add = VARIANT(add),
            .zero = VARIANT(zero),
            .copy = VARIANT(copy),
            .cast = VARIANT(cast),
            .round = VARIANT(round),
            .cross_entropy = VARIANT(cross_entropy),
            .loss_sum = VARIANT(loss_sum),
            .gradient_norm = VARIANT(gradient_norm),
            .norm_sum = VARIANT(norm_sum),
            .adamw = VARIANT(adamw),
            .restore = VARIANT(restore),
            .layer_norm_backward_workspace_bytes = layer_norm_backward_workspace_bytes,
            .rms_norm_backward_workspace_bytes = rms_norm_backward_workspace_bytes,
            .attention_workspace_bytes = VARIANT(attention_workspace_bytes),
            .attention_backward_workspace_bytes = VARIANT(attention_backward_workspace_bytes),
            .attention_cached_workspace_bytes = VARIANT(attention_cached_workspace_bytes),
        },
    .blocked = VARIANT(blocked),
    .blocked_workspace_bytes = VARIANT(blocked_workspace_bytes),
    .normals = VARIANT(normals),
    .place = VARIANT(place),
};
