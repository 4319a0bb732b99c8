/* What the GPU's benchmarks share: CUDA calls that end the program with a line when they fail, and the fixture on which kernels
 * are timed.
 *
 * Operands are random bf16 numbers of size 0.5 to 2 (zeros would be faster than life) in one arena of eight parts, 8 GiB. Most
 * kernels use a few hundred megabytes of it, more than the L2 cache holds. A figure is from the median of rounds of a few
 * launches between two events; rounds end early where they take long.
 */
#ifndef TIDE_TESTS_BENCH_GPU_H
#define TIDE_TESTS_BENCH_GPU_H

#include "kernels/costs.h"
#include "tests/support/bench.h"

#include <cuda_runtime_api.h>

#define BENCH_CUDA(call) bench_cuda((call), #call)

void bench_cuda(cudaError_t error, const char *call);
void bench_check(tide_status status, const char *what);

enum { BENCH_GPU_PARTS = 8 };

/* Llama-3.1-8B's, or something small of the same form. */
typedef struct bench_gpu_llama {
    size_t rows, few_rows; /* tokens of a micro-batch */
    size_t width, heads, kv_heads, head_width, mlp, vocabulary;
} bench_gpu_llama;

/* What is measured: gpt2-xl at 32768 tokens and llama-3.1-8b at 16384, or, to see that all runs, next to nothing. */
typedef struct bench_gpu_sizes {
    size_t rows, width, heads;        /* tokens of a micro-batch; heads of width 64 */
    size_t narrow_rows, narrow_width; /* gpt2's, whose weights have the fewest tiles for the longest sums */
    size_t length, long_length;       /* of a sequence */
    size_t wide_heads;                /* of width 128 */
    size_t vocabulary, padded, logit_rows; /* of the head; rows of a tile of logits */
    size_t square;                         /* the product whose rate is the limit */
    size_t adam_elements, norm_blocks;
    bench_gpu_llama llama;
    size_t part_bytes;
    uint64_t chunk_bytes;
    int rounds, runs;
} bench_gpu_sizes;

typedef struct bench_gpu_fixture {
    bench_gpu_sizes sizes;
    const tide_kernels *kernels;
    cudaStream_t stream;
    cudaEvent_t begin, end;
    char *arena;
} bench_gpu_fixture;

bench_gpu_sizes bench_gpu_sizes_make(bool quick);

/* On the current GPU. refill writes the whole arena anew. */
bench_gpu_fixture bench_gpu_open(const bench_gpu_sizes *sizes);
void bench_gpu_close(bench_gpu_fixture *fixture);
void bench_gpu_refill(bench_gpu_fixture *fixture);
void *bench_gpu_part(const bench_gpu_fixture *fixture, int index);

/* A launch's seconds: in one round, and the median of all rounds behind a launch to warm up. */
double bench_gpu_round(const bench_gpu_fixture *fixture, tide_kernel kernel, const void *arguments);
double bench_gpu_time(const bench_gpu_fixture *fixture, tide_kernel kernel, const void *arguments);

/* What the GPU does in plain calls, measured and told at the first call: bytes a second of a copy, read and write counted;
 * operations a second of one large square product of cuBLASLt's. */
double bench_gpu_copy_rate(const bench_gpu_fixture *fixture);
double bench_gpu_matmul_rate(const bench_gpu_fixture *fixture);

/* A kernel bound by arithmetic, against the large product. */
void bench_gpu_flops_figure(const bench_gpu_fixture *fixture, const char *name, tide_kernel kernel,
                            const void *arguments, uint64_t flops);

/* A product of a step: what it is and its shape, and operands in the arena. */
typedef struct bench_gpu_matmul {
    char name[176];
    tide_matmul_args args;
} bench_gpu_matmul;

enum { BENCH_GPU_MATMULS_MOST = 56 };

typedef struct bench_gpu_matmul_list {
    const bench_gpu_fixture *fixture;
    int count;
    bench_gpu_matmul list[BENCH_GPU_MATMULS_MOST];
} bench_gpu_matmul_list;

/* Of llama-3.1-8b's matmuls those of few_rows alone. */
bench_gpu_matmul_list bench_gpu_matmuls_list(const bench_gpu_fixture *fixture);

/* --- the sections --- */

/* Chunks through the device's own streams against plain copies of pinned memory, and what mapping costs meanwhile. */
void bench_gpu_copies(const char *gpu, uint32_t ordinal, const bench_gpu_sizes *sizes);

/* Small kernels in a row, with CUDA's events between them and without: what an event costs the GPU. */
void bench_gpu_launches(uint32_t ordinal, const bench_gpu_sizes *sizes);

/* Every product of a step as it runs in one. */
void bench_gpu_matmuls(const bench_gpu_fixture *fixture);

/* The same with each of cuBLASLt's candidates. */
void bench_gpu_candidates(const bench_gpu_fixture *fixture);

void bench_gpu_attention(const bench_gpu_fixture *fixture);

/* Every kernel that is bound by memory: bytes that must move against a plain copy on the GPU. */
void bench_gpu_memory(bench_gpu_fixture *fixture);

#endif
