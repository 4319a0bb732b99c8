/* The result of a launch, in CUDA's own words. An error of an earlier, asynchronous command can come up here too:
 * CUDA reports it at whatever call is next, so the label names where it was noticed. */
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
