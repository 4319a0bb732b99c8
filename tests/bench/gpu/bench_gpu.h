/* Shared by the GPU's benchmarks: CUDA calls that end the program with a message when they fail, and the
 * fixture on which kernels are timed.
 *
 * Operands are random bf16 numbers of absolute value 0.5 to 2 (a GPU would be unusually fast on zeros) in
 * one arena of eight parts, 8 GiB. Most kernels use a few hundred megabytes of it, more than the L2 cache
 * holds. A figure comes from the median of several rounds, each of a few launches between two events; slow
 * kernels get fewer rounds. */
#ifndef TIDE_TESTS_BENCH_GPU_H
#define TIDE_TESTS_BENCH_GPU_H

#include "kernels/kernels.h"
#include "tests/support/bench.h"

#include <cuda_runtime_api.h>

#define BENCH_CUDA(call) bench_cuda((call), #call)

void bench_cuda(cudaError_t error, const char *call);

enum { BENCH_GPU_PARTS = 8 };

/* Sizes of Llama-3.1-8B, or of a small model of the same shape. */
typedef struct bench_gpu_llama {
    /* tokens of a micro-batch */
    size_t rows, few_rows;
    size_t width, heads, kv_heads, head_width, mlp, vocabulary;
} bench_gpu_llama;

/* Sizes of the measurements: gpt2-xl at 32768 tokens and llama-3.1-8b at 16384, or tiny ones for --quick. */
typedef struct bench_gpu_sizes {
    /* tokens of a micro-batch; heads have width 64 */
    size_t rows, width, heads;
    /* gpt2's; its weight gradients have the fewest tiles and the longest sums */
    size_t narrow_rows, narrow_width;
    /* tokens of a sequence */
    size_t length, long_length;
    size_t wide_heads; /* number of heads of width 128 */
    /* the head's; logit_rows: rows of a tile of logits */
    size_t vocabulary, padded, logit_rows;
    size_t square; /* size of the product whose rate is the limit */
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

/* Writes the whole arena again. */
void bench_gpu_refill(bench_gpu_fixture *fixture);
void *bench_gpu_part(const bench_gpu_fixture *fixture, int index);

/* Seconds of a launch: of one round, and the median of all rounds after a launch to warm up. */
double bench_gpu_round(const bench_gpu_fixture *fixture, tide_kernel kernel, const void *arguments);
double bench_gpu_time(const bench_gpu_fixture *fixture, tide_kernel kernel, const void *arguments);

/* Rates of plain calls, measured and printed at the first call: bytes a second of a copy on the GPU, reads
 * and writes counted; operations a second of one large square product of cuBLASLt's. */
double bench_gpu_copy_rate(const bench_gpu_fixture *fixture);
double bench_gpu_matmul_rate(const bench_gpu_fixture *fixture);

/* Prints a figure of a kernel bound by arithmetic: its rate over the large product's. */
void bench_gpu_flops_figure(const bench_gpu_fixture *fixture, const char *name, tide_kernel kernel,
                            const void *arguments, uint64_t flops);

/* --- the sections --- */

/* Compares chunk copies by the device's own streams with plain copies of pinned memory, and times mappings
 * while copies run. */
void bench_gpu_copies(const char *gpu, uint32_t ordinal, const bench_gpu_sizes *sizes);

/* Times small kernels in a row, with CUDA's events between them and without: the cost of an event to the
 * GPU. */
void bench_gpu_launches(uint32_t ordinal, const bench_gpu_sizes *sizes);

/* Times every product of a step as a step runs it. */
void bench_gpu_matmuls(const bench_gpu_fixture *fixture);

/* Times every product of a step with each of cuBLASLt's candidates. */
void bench_gpu_candidates(const bench_gpu_fixture *fixture);

void bench_gpu_attention(const bench_gpu_fixture *fixture);

/* Times every kernel that is bound by memory: the bytes that it must move over the rate of a plain copy on
 * the GPU. */
void bench_gpu_memory(bench_gpu_fixture *fixture);

#endif
