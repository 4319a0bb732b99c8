/* Measures speeds on a GPU. Prints each figure as a JSON object on its own line as soon as it is measured
 * (bench_section in tests/support/bench.h). Needs the GPU to itself. Figures are ratios to plain CUDA
 * calls on the same GPU in the same run. Exit status 77, with the reason, where there is no GPU.
 *
 *     copies      chunks through the device's streams, and mappings
 *     launches    the cost of an event behind a kernel
 *     matmuls     every matrix product of a step
 *     candidates  the same products with each of cuBLASLt's algorithms (kernels/cuda/matmul_choice.h)
 *     attention   forward and backward
 *     memory      all other kernels
 *
 * usage: bench_gpu [--quick] [--only SECTION ...]      the GPU is number 0 (CUDA_VISIBLE_DEVICES chooses)
 *
 * --quick uses tiny sizes, only to see that everything runs; its figures mean nothing. */
#include "tests/bench/gpu/bench_gpu.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ORDINAL = 0, NOTHING_TO_RUN_ON = 77, USAGE = 2 };
enum { COPIES, LAUNCHES, MATMULS, CANDIDATES, ATTENTION, MEMORY, SECTIONS };

static const char *const names[SECTIONS] = {"copies",     "launches",  "matmuls",
                                            "candidates", "attention", "memory"};

typedef struct request {
    bool quick, only;
    bool wanted[SECTIONS];
} request;

static int section_find(const char *name)
{
    int section = 0;
    while (section < SECTIONS && strcmp(names[section], name) != 0)
        section++;
    return section;
}

static request request_read(int argc, char **argv)
{
    request made = {0};
    for (int i = 1; i < argc; i++) {
        const int section = made.only ? section_find(argv[i]) : SECTIONS;
        if (section < SECTIONS)
            made.wanted[section] = true;
        else if (strcmp(argv[i], "--quick") == 0)
            made.quick = true;
        else if (strcmp(argv[i], "--only") == 0)
            made.only = true;
        else {
            fprintf(stderr,
                    "%s: %s? usage: [--quick] [--only "
                    "copies|launches|matmuls|candidates|attention|memory ...]\n",
                    argv[0], argv[i]);
            exit(USAGE);
        }
    }
    for (int i = 0; i < SECTIONS && !made.only; i++)
        made.wanted[i] = true;
    return made;
}

static bool begins(const request *asked, int section)
{
    bench_section("gpu", names[section]);
    return asked->wanted[section];
}

static void kernels_run(const request *asked, const bench_gpu_sizes *sizes)
{
    bench_gpu_fixture fixture = bench_gpu_open(sizes);
    if (begins(asked, MATMULS))
        bench_gpu_matmuls(&fixture);
    if (begins(asked, CANDIDATES))
        bench_gpu_candidates(&fixture);
    if (begins(asked, ATTENTION))
        bench_gpu_attention(&fixture);
    if (begins(asked, MEMORY))
        bench_gpu_memory(&fixture);
    bench_gpu_close(&fixture);
}

int main(int argc, char **argv)
{
    const request asked = request_read(argc, argv);
    const bench_gpu_sizes sizes = bench_gpu_sizes_make(asked.quick);
    int count = 0;
    const cudaError_t error = cudaGetDeviceCount(&count);
    if (error != cudaSuccess || count == 0) {
        fprintf(stderr, "no GPU: %s\n", error != cudaSuccess ? cudaGetErrorString(error) : "none is visible");
        return NOTHING_TO_RUN_ON;
    }
    struct cudaDeviceProp properties;
    BENCH_CUDA(cudaGetDeviceProperties(&properties, ORDINAL));
    BENCH_CUDA(cudaSetDevice(ORDINAL));
    if (begins(&asked, COPIES))
        bench_gpu_copies(properties.name, ORDINAL, &sizes);
    if (begins(&asked, LAUNCHES))
        bench_gpu_launches(ORDINAL, &sizes);
    if (memchr(&asked.wanted[MATMULS], true, SECTIONS - MATMULS))
        kernels_run(&asked, &sizes);
    return 0;
}
