#include "kernels/gpu_sizes.h"
#include "kernels/kernels.h"
#include "kernels/matmul_shape.h"

#include <pthread.h>

static tide_kernels planned;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static tide_status prepare(const tide_matmul_args *shape, size_t *workspace_bytes)
{
    const char *fault = tide_matmul_shape_fault(shape);
    if (fault != NULL)
        return tide_fail(TIDE_ERROR_ARGUMENT, "a product for a GPU: %s", fault);
    *workspace_bytes = tide_gpu_matmul_bias_bytes(shape) + TIDE_GPU_MATMUL_WORKSPACE_LIMIT_BYTES;
    return TIDE_OK;
}

static size_t no_bytes(const tide_attention_args *shape)
{
    (void)shape;
    return 0;
}

static size_t no_bytes_cached(const tide_attention_cached_args *shape)
{
    (void)shape;
    return 0;
}

static void make(void)
{
    planned = *tide_kernels_cpu();
    planned.fuses_gelu = true;
    planned.logit_rows = TIDE_GPU_LOGIT_ROWS;
    planned.matmul_prepare = prepare;
    planned.layer_norm_backward_workspace_bytes = tide_gpu_layer_norm_backward_bytes;
    planned.rms_norm_backward_workspace_bytes = tide_gpu_rms_norm_backward_bytes;
    planned.attention_workspace_bytes = no_bytes;
    planned.attention_backward_workspace_bytes = tide_gpu_attention_backward_bytes;
    planned.attention_cached_workspace_bytes = no_bytes_cached;
}

const tide_kernels *tide_kernels_planned_gpu(void)
{
    (void)pthread_once(&once, make);
    return &planned;
}
