/* Each kernel of the GPU's table, alone, on sizes of a real model: how much of what the GPU can do it uses.
 *
 *   memory    bytes that must move (tide_<op>_bytes) over the rate at which cudaMemcpyAsync copies 1 GiB on the GPU, read and
 *             write counted
 *   products  operations over the rate of one large square product of cuBLASLt's
 *
 * Operands are random bf16 numbers around 1 (zeros would be faster than life) in one arena of which each kernel uses a few
 * hundred megabytes, more than the L2 cache holds. A figure is from the median of ROUNDS events' times around RUNS launches.
 */
#include "tests/bench/gpu/bench_gpu.h"

#include "kernels/cuda/launchers.h"

#include <stdlib.h>
#include <string.h>

enum {
    ROUNDS = 7,
    RUNS = 4,
    ROWS = 32768,
    WIDTH = 1600,
    HEADS = 25,
    HEAD_WIDTH = 64,
    LENGTH = 1024,
    VOCABULARY = 50257
};
enum { LOGIT_ROWS = 8192, LOGIT_COLUMNS = 50304, ADAM_ELEMENTS = 32 << 20, SQUARE = 8192 };
static const size_t arena_bytes = (size_t)4 << 30;
static const size_t part_bytes = (size_t)512 << 20; /* eight parts: a..h */

typedef struct kernel_bench {
    const tide_kernels *kernels;
    cudaStream_t stream;
    cudaEvent_t begin, end;
    char *arena;
    double copy_rate;    /* bytes a second */
    double product_rate; /* operations a second */
} kernel_bench;

static void *part(const kernel_bench *it, int index)
{
    return it->arena + (size_t)index * part_bytes;
}

static double launches_seconds(const kernel_bench *it, tide_kernel kernel, const void *arguments)
{
    double seconds[ROUNDS];
    bench_check(kernel(it->stream, arguments), "kernel");
    for (int round = 0; round < ROUNDS; round++) {
        float milliseconds;
        BENCH_CUDA(cudaEventRecord(it->begin, it->stream));
        for (int i = 0; i < RUNS; i++)
            bench_check(kernel(it->stream, arguments), "kernel");
        BENCH_CUDA(cudaEventRecord(it->end, it->stream));
        BENCH_CUDA(cudaEventSynchronize(it->end));
        BENCH_CUDA(cudaEventElapsedTime(&milliseconds, it->begin, it->end));
        seconds[round] = (double)milliseconds * 1e-3 / RUNS;
    }
    return bench_median(seconds, ROUNDS);
}

static void memory_figure(const kernel_bench *it, const char *name, tide_kernel kernel, const void *arguments,
                          uint64_t bytes)
{
    const double seconds = launches_seconds(it, kernel, arguments);
    bench_figure(name, (double)bytes / seconds / it->copy_rate, "x copy", BENCH_NO_BOUND, 0,
                 "%.0f us, %.0f GB/s", seconds * 1e6, (double)bytes / seconds * 1e-9);
}

static void product_figure(const kernel_bench *it, const char *name, tide_kernel kernel,
                           const void *arguments, uint64_t flops)
{
    const double seconds = launches_seconds(it, kernel, arguments);
    bench_figure(name, (double)flops / seconds / it->product_rate, "x product", BENCH_NO_BOUND, 0,
                 "%.0f us, %.0f TFLOP/s", seconds * 1e6, (double)flops / seconds * 1e-12);
}

/* --- the arena --- */

/* bf16 numbers of both signs, sizes 0.5 to 2. */
static void arena_fill(kernel_bench *it)
{
    const size_t count = (size_t)1 << 20;
    uint16_t *some = malloc(count * sizeof *some);
    uint32_t state = 12345;
    if (some == NULL)
        bench_die("no memory for %zu random numbers", count);
    for (size_t i = 0; i < count; i++) {
        state = state * 1664525u + 1013904223u;
        some[i] = (uint16_t)(((state >> 31) << 15) | (0x3f00u + ((state >> 20) & 0xffu)));
    }
    for (size_t at = 0; at < arena_bytes; at += count * sizeof *some)
        BENCH_CUDA(
            cudaMemcpyAsync(it->arena + at, some, count * sizeof *some, cudaMemcpyHostToDevice, it->stream));
    BENCH_CUDA(cudaStreamSynchronize(it->stream));
    free(some);
}

static tide_status copy_plainly(void *stream, const void *arguments)
{
    const tide_copy_args *args = arguments;
    BENCH_CUDA(cudaMemcpyAsync(args->out, args->in, args->bytes, cudaMemcpyDeviceToDevice, stream));
    return TIDE_OK;
}

static tide_matmul_args product_of(const kernel_bench *it, size_t m, size_t n, size_t k, bool transpose_b)
{
    tide_matmul_args args = {.a = part(it, 0),
                             .b = part(it, 1),
                             .c = part(it, 2),
                             .workspace = part(it, 4),
                             .m = m,
                             .n = n,
                             .k = k,
                             .lda = k,
                             .ldb = transpose_b ? k : n,
                             .ldc = n,
                             .in_dtype = TIDE_DTYPE_BF16,
                             .out_dtype = TIDE_DTYPE_BF16,
                             .transpose_b = transpose_b};
    bench_check(it->kernels->matmul_prepare(&args, &args.workspace_bytes), "prepare");
    return args;
}

static void limits_measure(kernel_bench *it)
{
    const tide_copy_args copy = {.in = part(it, 0), .out = part(it, 4), .bytes = (size_t)1 << 30};
    it->copy_rate = 2.0 * (double)copy.bytes / launches_seconds(it, copy_plainly, &copy);
    const tide_matmul_args square = product_of(it, SQUARE, SQUARE, SQUARE, true);
    it->product_rate =
        (double)tide_matmul_flops(&square) / launches_seconds(it, it->kernels->matmul, &square);
    bench_figure("limit: copy on the GPU", it->copy_rate * 1e-9, "GB/s", BENCH_NO_BOUND, 0,
                 "cudaMemcpyAsync, 1 GiB, read and write");
    bench_figure("limit: product", it->product_rate * 1e-12, "TFLOP/s", BENCH_NO_BOUND, 0, "bf16, %d cubed",
                 SQUARE);
}

/* --- kernels bound by memory --- */

static void pointwise_measure(const kernel_bench *it)
{
    const size_t elements = (size_t)ROWS * WIDTH;
    const tide_gelu_args gelu = {
        .in = part(it, 0), .out = part(it, 1), .elements = elements, .dtype = TIDE_DTYPE_BF16};
    memory_figure(it, "gelu", it->kernels->gelu, &gelu, tide_gelu_bytes(&gelu));
    const tide_gelu_backward_args gelu_backward = {.in = part(it, 0),
                                                   .dout = part(it, 1),
                                                   .din = part(it, 2),
                                                   .elements = elements,
                                                   .dtype = TIDE_DTYPE_BF16};
    memory_figure(it, "gelu backward", it->kernels->gelu_backward, &gelu_backward,
                  tide_gelu_backward_bytes(&gelu_backward));
    const tide_add_args add = {.a = part(it, 0),
                               .b = part(it, 1),
                               .out = part(it, 2),
                               .elements = elements,
                               .dtype = TIDE_DTYPE_BF16};
    memory_figure(it, "add", it->kernels->add, &add, tide_add_bytes(&add));
    const tide_copy_args copy = {.in = part(it, 0), .out = part(it, 1), .bytes = 2 * elements};
    memory_figure(it, "copy", it->kernels->copy, &copy, tide_copy_bytes(&copy));
    const tide_zero_args zero = {.data = part(it, 2), .bytes = part_bytes};
    memory_figure(it, "zero", it->kernels->zero, &zero, tide_zero_bytes(&zero));
    const tide_cast_args rounding = {.in = part(it, 0),
                                     .out = part(it, 1),
                                     .elements = ADAM_ELEMENTS,
                                     .in_dtype = TIDE_DTYPE_FP32,
                                     .out_dtype = TIDE_DTYPE_BF16};
    memory_figure(it, "gradient rounding", it->kernels->cast, &rounding, tide_cast_bytes(&rounding));
    const tide_gradient_norm_args norm = {
        .gradient = part(it, 1), .blocks = part(it, 2), .elements = ADAM_ELEMENTS, .dtype = TIDE_DTYPE_BF16};
    memory_figure(it, "gradient norm", it->kernels->gradient_norm, &norm, tide_gradient_norm_bytes(&norm));
}

static void layer_norm_measure(const kernel_bench *it)
{
    float *mean = part(it, 4), *rstd = mean + ROWS, *sums = rstd + ROWS;
    const tide_layer_norm_args forward = {.in = part(it, 0),
                                          .weight = part(it, 1),
                                          .bias = part(it, 1),
                                          .out = part(it, 2),
                                          .mean = mean,
                                          .rstd = rstd,
                                          .rows = ROWS,
                                          .width = WIDTH,
                                          .epsilon = 1e-5f,
                                          .dtype = TIDE_DTYPE_BF16};
    memory_figure(it, "layer norm", it->kernels->layer_norm, &forward, tide_layer_norm_bytes(&forward));
    const tide_layer_norm_backward_args backward = {.in = part(it, 0),
                                                    .weight = part(it, 1),
                                                    .dout = part(it, 2),
                                                    .mean = mean,
                                                    .rstd = rstd,
                                                    .din = part(it, 3),
                                                    .dweight = sums,
                                                    .dbias = sums + WIDTH,
                                                    .rows = ROWS,
                                                    .width = WIDTH,
                                                    .dtype = TIDE_DTYPE_BF16};
    memory_figure(it, "layer norm backward", it->kernels->layer_norm_backward, &backward,
                  tide_layer_norm_backward_bytes(&backward));
    const tide_bias_backward_args bias = {
        .dout = part(it, 0), .dbias = sums, .rows = ROWS, .width = 4 * WIDTH, .dtype = TIDE_DTYPE_BF16};
    memory_figure(it, "bias backward", it->kernels->bias_backward, &bias, tide_bias_backward_bytes(&bias));
}

/* Tokens as text has them: few of many kinds, one of them five rows in a hundred. */
static void tokens_fill(int32_t *tokens, size_t count)
{
    uint32_t state = 99;
    for (size_t i = 0; i < count; i++) {
        state = state * 1664525u + 1013904223u;
        const double u = (double)(state >> 8) / 16777216.0;
        tokens[i] = u < 0.05 ? 11 : (int32_t)((double)VOCABULARY * u * u * u);
    }
}

static void ends_measure(const kernel_bench *it)
{
    static int32_t tokens[ROWS];
    tokens_fill(tokens, ROWS);
    BENCH_CUDA(cudaMemcpy(part(it, 5), tokens, sizeof tokens, cudaMemcpyHostToDevice));
    const tide_embedding_args embedding = {.tokens = part(it, 5),
                                           .wte = part(it, 0),
                                           .wpe = part(it, 1),
                                           .out = part(it, 2),
                                           .rows = ROWS,
                                           .sequence_length = LENGTH,
                                           .width = WIDTH,
                                           .vocabulary = VOCABULARY,
                                           .dtype = TIDE_DTYPE_BF16};
    memory_figure(it, "embedding", it->kernels->embedding, &embedding, tide_embedding_bytes(&embedding));
    const tide_embedding_backward_args backward = {.tokens = part(it, 5),
                                                   .dout = part(it, 2),
                                                   .dwte = part(it, 3),
                                                   .dwpe = part(it, 4),
                                                   .rows = ROWS,
                                                   .sequence_length = LENGTH,
                                                   .width = WIDTH,
                                                   .vocabulary = VOCABULARY,
                                                   .dtype = TIDE_DTYPE_BF16};
    memory_figure(it, "embedding backward", it->kernels->embedding_backward, &backward,
                  tide_embedding_backward_bytes(&backward));
    const tide_cross_entropy_args loss = {.logits = part(it, 0),
                                          .targets = part(it, 5),
                                          .losses = part(it, 6),
                                          .rows = LOGIT_ROWS,
                                          .vocabulary = VOCABULARY,
                                          .leading_dimension = LOGIT_COLUMNS,
                                          .gradient_scale = 1.0f,
                                          .gradient = true,
                                          .dtype = TIDE_DTYPE_BF16};
    memory_figure(it, "cross entropy with gradient", it->kernels->cross_entropy, &loss,
                  tide_cross_entropy_bytes(&loss));
}

static void adam_measure(const kernel_bench *it)
{
    const tide_adamw_segment segment = {.param = part(it, 0),
                                        .master = part(it, 1),
                                        .momentum = part(it, 2),
                                        .variance = part(it, 3),
                                        .elements = ADAM_ELEMENTS,
                                        .decays = true};
    BENCH_CUDA(cudaMemset(part(it, 3), 0, part_bytes)); /* a variance is not negative */
    const tide_adamw_args args = {.segments = &segment,
                                  .segment_count = 1,
                                  .factors = tide_adam_factors_make(1e-4, 0.9, 0.95, 1e-8, 0.1, 10, 1.0),
                                  .dtype = TIDE_DTYPE_BF16};
    memory_figure(it, "adamw", it->kernels->adamw, &args, tide_adamw_bytes(&args));
}

/* --- kernels bound by arithmetic --- */

static void products_measure(const kernel_bench *it)
{
    const tide_matmul_args qkv = product_of(it, ROWS, 3 * WIDTH, WIDTH, false);
    product_figure(it, "product 32768 x 4800 x 1600", it->kernels->matmul, &qkv, tide_matmul_flops(&qkv));
    const tide_matmul_args down = product_of(it, ROWS, WIDTH, 4 * WIDTH, false);
    product_figure(it, "product 32768 x 1600 x 6400", it->kernels->matmul, &down, tide_matmul_flops(&down));
}

static void attention_measure(const kernel_bench *it)
{
    const size_t batch = ROWS / LENGTH;
    tide_attention_args forward = {.qkv = part(it, 0),
                                   .out = part(it, 1),
                                   .logsumexp = part(it, 2),
                                   .workspace = part(it, 4),
                                   .batch = batch,
                                   .sequence_length = LENGTH,
                                   .heads = HEADS,
                                   .head_width = HEAD_WIDTH,
                                   .dtype = TIDE_DTYPE_BF16};
    forward.workspace_bytes = it->kernels->attention_workspace_bytes(&forward);
    product_figure(it, "attention", it->kernels->attention, &forward, tide_attention_flops(&forward));
    tide_attention_backward_args backward = {.qkv = part(it, 0),
                                             .out = part(it, 1),
                                             .dout = part(it, 3),
                                             .logsumexp = part(it, 2),
                                             .dqkv = part(it, 5),
                                             .workspace = part(it, 4),
                                             .batch = batch,
                                             .sequence_length = LENGTH,
                                             .heads = HEADS,
                                             .head_width = HEAD_WIDTH,
                                             .dtype = TIDE_DTYPE_BF16};
    backward.workspace_bytes = it->kernels->attention_backward_workspace_bytes(&backward);
    product_figure(it, "attention backward", it->kernels->attention_backward, &backward,
                   tide_attention_backward_flops(&backward));
}

void bench_gpu_kernels(uint32_t ordinal, bool quick)
{
    kernel_bench it = {.kernels = tide_kernels_cuda()};
    void *arena;
    BENCH_CUDA(cudaSetDevice((int)ordinal));
    BENCH_CUDA(cudaMalloc(&arena, arena_bytes));
    BENCH_CUDA(cudaStreamCreateWithFlags(&it.stream, cudaStreamNonBlocking));
    BENCH_CUDA(cudaEventCreate(&it.begin));
    BENCH_CUDA(cudaEventCreate(&it.end));
    bench_check(tide_cuda_matmul_open(), "cuBLASLt");
    it.arena = arena;
    arena_fill(&it);
    limits_measure(&it);
    products_measure(&it);
    attention_measure(&it);
    if (!quick) {
        pointwise_measure(&it);
        layer_norm_measure(&it);
        ends_measure(&it);
        arena_fill(&it);
        adam_measure(&it);
    }
    tide_cuda_matmul_close();
    BENCH_CUDA(cudaEventDestroy(it.end));
    BENCH_CUDA(cudaEventDestroy(it.begin));
    BENCH_CUDA(cudaStreamDestroy(it.stream));
    BENCH_CUDA(cudaFree(arena));
}
