/* Compiles gpu_tile.cu for the CPU; the build includes tests/gpu/cuda_on_cpu.h first. */
#include "tests/gpu/gpu_tile.cu"
