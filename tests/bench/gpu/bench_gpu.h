/* What the GPU's benchmarks share: the device under test, and CUDA calls that end the program with a line when they fail. */
#ifndef TIDE_TESTS_BENCH_GPU_H
#define TIDE_TESTS_BENCH_GPU_H

#include "offload/device.h"
#include "tests/bench/bench.h"

#include <cuda_runtime_api.h>

#define BENCH_CUDA(call) bench_cuda((call), #call)

void bench_cuda(cudaError_t error, const char *call);
void bench_check(tide_status status, const char *what);

/* Chunks through the device's own streams against plain copies of pinned memory, and what mapping costs meanwhile. */
void bench_gpu_copies(const char *gpu, uint32_t ordinal, bool quick);

/* Every kernel's rate: bytes against a plain copy on the GPU, operations against a large product. */
void bench_gpu_kernels(uint32_t ordinal, bool quick);

#endif
