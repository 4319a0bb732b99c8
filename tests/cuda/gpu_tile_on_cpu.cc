/* The same file for the CPU (the build includes tests/cuda_on_cpu.h first). */
#include "tests/cuda/gpu_tile.cu"
