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

#include "kernels/cuda/launchers.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ROUNDS_MOST = 7 };
/* A new round of a kernel begins only within so many seconds. */
static const double kernel_seconds_most = 0.5;

void bench_cuda(cudaError_t error, const char *call)
{
    if (error != cudaSuccess)
        bench_die("%s: %s", call, cudaGetErrorString(error));
}

static bench_gpu_sizes sizes_make(bool quick)
{
    const bench_gpu_sizes whole = {.rows = 32768,
                                   .width = 1600,
                                   .heads = 25,
                                   .narrow_rows = 65536,
                                   .narrow_width = 768,
                                   .length = 1024,
                                   .long_length = 4096,
                                   .wide_heads = 12,
                                   .vocabulary = 50257,
                                   .padded = 50304,
                                   .logit_rows = tide_kernels_cuda()->logit_rows,
                                   .square = 8192,
                                   .adam_elements = 32 << 20,
                                   .norm_blocks = 2 << 20,
                                   .llama = {.rows = 16384,
                                             .few_rows = 4096,
                                             .width = 4096,
                                             .heads = 32,
                                             .kv_heads = 8,
                                             .head_width = 128,
                                             .mlp = 14336,
                                             .vocabulary = 128256},
                                   .part_bytes = (size_t)1 << 30,
                                   .chunk_bytes = UINT64_C(64) << 20,
                                   .rounds = ROUNDS_MOST,
                                   .runs = 4};
    const bench_gpu_sizes little = {.rows = 64,
                                    .width = 128,
                                    .heads = 2,
                                    .narrow_rows = 128,
                                    .narrow_width = 64,
                                    .length = 32,
                                    .long_length = 64,
                                    .wide_heads = 1,
                                    .vocabulary = 250,
                                    .padded = 256,
                                    .logit_rows = 64,
                                    .square = 64,
                                    .adam_elements = 1 << 14,
                                    .norm_blocks = 256,
                                    .llama = {.rows = 64,
                                              .few_rows = 32,
                                              .width = 64,
                                              .heads = 2,
                                              .kv_heads = 1,
                                              .head_width = 16,
                                              .mlp = 96,
                                              .vocabulary = 512},
                                    .part_bytes = (size_t)1 << 20,
                                    .chunk_bytes = UINT64_C(2) << 20,
                                    .rounds = 1,
                                    .runs = 1};
    return quick ? little : whole;
}

/* --- the arena --- */

void *bench_gpu_part(const bench_gpu_fixture *fixture, int index)
{
    return fixture->arena + (size_t)index * fixture->sizes.part_bytes;
}

/* Fills the arena with bf16 numbers of both signs and absolute values 0.5 to 2. */
void bench_gpu_refill(bench_gpu_fixture *fixture)
{
    const size_t bytes = fixture->sizes.part_bytes < (2 << 20) ? fixture->sizes.part_bytes : 2 << 20;
    void *pinned;
    uint32_t state = 12345;
    BENCH_CUDA(cudaHostAlloc(&pinned, bytes, cudaHostAllocDefault));
    uint16_t *some = pinned;
    for (size_t i = 0; i < bytes / sizeof *some; i++) {
        state = state * 1664525u + 1013904223u;
        some[i] = (uint16_t)(((state >> 31) << 15) | (0x3f00u + ((state >> 20) & 0xffu)));
    }
    for (size_t at = 0; at < BENCH_GPU_PARTS * fixture->sizes.part_bytes; at += bytes)
        BENCH_CUDA(
            cudaMemcpyAsync(fixture->arena + at, some, bytes, cudaMemcpyHostToDevice, fixture->stream));
    BENCH_CUDA(cudaStreamSynchronize(fixture->stream));
    BENCH_CUDA(cudaFreeHost(pinned));
}

/* Opens the fixture on the current GPU. */
static bench_gpu_fixture fixture_open(const bench_gpu_sizes *sizes)
{
    bench_gpu_fixture fixture = {.sizes = *sizes, .kernels = tide_kernels_cuda()};
    void *arena;
    BENCH_CUDA(cudaMalloc(&arena, BENCH_GPU_PARTS * sizes->part_bytes));
    BENCH_CUDA(cudaStreamCreateWithFlags(&fixture.stream, cudaStreamNonBlocking));
    BENCH_CUDA(cudaEventCreateWithFlags(&fixture.begin, cudaEventDefault));
    BENCH_CUDA(cudaEventCreateWithFlags(&fixture.end, cudaEventDefault));
    bench_check(tide_cuda_matmul_open(), "cuBLASLt");
    fixture.arena = arena;
    bench_gpu_refill(&fixture);
    return fixture;
}

static void fixture_close(bench_gpu_fixture *fixture)
{
    tide_cuda_matmul_close();
    BENCH_CUDA(cudaEventDestroy(fixture->end));
    BENCH_CUDA(cudaEventDestroy(fixture->begin));
    BENCH_CUDA(cudaStreamDestroy(fixture->stream));
    BENCH_CUDA(cudaFree(fixture->arena));
}

/* --- time --- */

double bench_gpu_round(const bench_gpu_fixture *fixture, tide_kernel kernel, const void *arguments)
{
    float milliseconds;
    BENCH_CUDA(cudaEventRecord(fixture->begin, fixture->stream));
    for (int i = 0; i < fixture->sizes.runs; i++)
        bench_check(kernel(fixture->stream, arguments), "kernel");
    BENCH_CUDA(cudaEventRecord(fixture->end, fixture->stream));
    BENCH_CUDA(cudaEventSynchronize(fixture->end));
    BENCH_CUDA(cudaEventElapsedTime(&milliseconds, fixture->begin, fixture->end));
    return fmax((double)milliseconds, 1e-6) * 1e-3 / fixture->sizes.runs;
}

double bench_gpu_time(const bench_gpu_fixture *fixture, tide_kernel kernel, const void *arguments)
{
    double seconds[ROUNDS_MOST];
    const double start = bench_seconds();
    int rounds = 0;
    bench_check(kernel(fixture->stream, arguments), "kernel");
    BENCH_CUDA(cudaStreamSynchronize(fixture->stream));
    do
        seconds[rounds++] = bench_gpu_round(fixture, kernel, arguments);
    while (rounds < fixture->sizes.rounds && bench_seconds() - start < kernel_seconds_most);
    return bench_median(seconds, (size_t)rounds);
}

/* --- limits --- */

static tide_status copy_plainly(void *stream, const void *arguments)
{
    const tide_copy_args *args = arguments;
    BENCH_CUDA(cudaMemcpyAsync(args->out, args->in, args->bytes, cudaMemcpyDeviceToDevice, stream));
    return TIDE_OK;
}

double bench_gpu_copy_rate(const bench_gpu_fixture *fixture)
{
    static double rate;
    const tide_copy_args copy = {.in = bench_gpu_part(fixture, 0),
                                 .out = bench_gpu_part(fixture, 4),
                                 .bytes = 2 * fixture->sizes.part_bytes};
    if (rate > 0)
        return rate;
    rate = 2.0 * (double)copy.bytes / bench_gpu_time(fixture, copy_plainly, &copy);
    bench_figure("limit: copy on the GPU", rate * 1e-9, "GB/s", BENCH_NO_BOUND, 0,
                 "cudaMemcpyAsync, %zu bytes, read and write", copy.bytes);
    return rate;
}

double bench_gpu_matmul_rate(const bench_gpu_fixture *fixture)
{
    static double rate;
    const size_t edge = fixture->sizes.square;
    tide_matmul_args square = {.a = bench_gpu_part(fixture, 0),
                               .b = bench_gpu_part(fixture, 1),
                               .c = bench_gpu_part(fixture, 2),
                               .workspace = bench_gpu_part(fixture, 4),
                               .m = edge,
                               .n = edge,
                               .k = edge,
                               .lda = edge,
                               .ldb = edge,
                               .ldc = edge,
                               .in_dtype = TIDE_DTYPE_BF16,
                               .out_dtype = TIDE_DTYPE_BF16,
                               .transpose_b = true};
    if (rate > 0)
        return rate;
    bench_check(fixture->kernels->matmul_prepare(&square, &square.workspace_bytes), "prepare");
    rate = (double)tide_matmul_flops(&square) / bench_gpu_time(fixture, fixture->kernels->matmul, &square);
    bench_figure("limit: product", rate * 1e-12, "TFLOP/s", BENCH_NO_BOUND, 0, "bf16, %zu cubed", edge);
    return rate;
}

void bench_gpu_flops_figure(const bench_gpu_fixture *fixture, const char *name, tide_kernel kernel,
                            const void *arguments, uint64_t flops)
{
    const double limit = bench_gpu_matmul_rate(fixture), seconds = bench_gpu_time(fixture, kernel, arguments);
    const double rate = (double)flops / seconds;
    bench_also("\"us\": %.3f, \"tflops\": %.2f", seconds * 1e6, rate * 1e-12);
    bench_figure(name, rate / limit, "x product", BENCH_NO_BOUND, 0, "%.0f us, %.0f TFLOP/s", seconds * 1e6,
                 rate * 1e-12);
}

/* --- the program --- */

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
    bench_gpu_fixture fixture = fixture_open(sizes);
    if (begins(asked, MATMULS))
        bench_gpu_matmuls(&fixture);
    if (begins(asked, CANDIDATES))
        bench_gpu_candidates(&fixture);
    if (begins(asked, ATTENTION))
        bench_gpu_attention(&fixture);
    if (begins(asked, MEMORY))
        bench_gpu_memory(&fixture);
    fixture_close(&fixture);
}

int main(int argc, char **argv)
{
    const request asked = request_read(argc, argv);
    const bench_gpu_sizes sizes = sizes_make(asked.quick);
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
