/* Speeds on a GPU, one JSON object (tests/bench/bench.h). Needs the GPU to itself; figures are ratios to what the same GPU does
 * in plain CUDA calls in the same run. Exit status 77, saying why, where there is no GPU.
 *
 * usage: bench_gpu [--quick]      the GPU is number 0 (CUDA_VISIBLE_DEVICES chooses)
 */
#include "tests/bench/gpu/bench_gpu.h"

#include "kernels/cuda/launchers.h"
#include "offload/cuda_device.h"

#include <stdio.h>
#include <stdlib.h>

enum { ORDINAL = 0, NOTHING_TO_RUN_ON = 77 };

void bench_cuda(cudaError_t error, const char *call)
{
    if (error != cudaSuccess)
        bench_die("%s: %s", call, cudaGetErrorString(error));
}

void bench_check(tide_status status, const char *what)
{
    if (status != TIDE_OK)
        bench_die("%s: %s", what, tide_message());
}

int main(int argc, char **argv)
{
    const bool quick = bench_options(argc, argv);
    int count = 0;
    const cudaError_t error = cudaGetDeviceCount(&count);
    if (error != cudaSuccess || count == 0) {
        fprintf(stderr, "no GPU: %s\n", error != cudaSuccess ? cudaGetErrorString(error) : "none is visible");
        return NOTHING_TO_RUN_ON;
    }
    struct cudaDeviceProp properties;
    BENCH_CUDA(cudaGetDeviceProperties(&properties, ORDINAL));
    BENCH_CUDA(cudaSetDevice(ORDINAL));
    bench_begin("gpu");
    bench_gpu_copies(properties.name, ORDINAL, quick);
    bench_gpu_kernels(ORDINAL, quick);
    bench_end();
    return 0;
}
