/* The result of a launch, with CUDA's message. CUDA reports the error of an earlier, asynchronous command at
 * the next call, so the label may name the kernel at which the error was noticed instead of the one that
 * caused it. */
#include "kernels/cuda/launchers.h"

#include <cuda_runtime_api.h>

tide_status tide_cuda_launched(const char *label, int error)
{
    const cudaError_t code = (cudaError_t)error;
    if (code == cudaSuccess)
        return TIDE_OK;
    return tide_fail(TIDE_ERROR_DEVICE, "%s: %s (%s)", label, cudaGetErrorString(code),
                     cudaGetErrorName(code));
}
