/* Times attention forward and backward, against the large product: short and long sequences, heads of both
 * widths, a key head for each query head as in gpt2-xl and for four query heads as in llama-3.1-8b. For
 * llama's heads one row is a single sequence, which gives the sums of dK and dV few blocks. */
#include "tests/bench/gpu/bench_gpu.h"

#include <stdio.h>

typedef struct shape {
    const char *what; /* the description in the figure's name */
    size_t rows, length, heads, kv_heads, width;
} shape;

/* Queries, keys and values lie side by side in the rows of one matrix. */
static size_t row_elements(const shape *of)
{
    return (of->heads + 2 * of->kv_heads) * of->width;
}

static size_t fitting(const bench_gpu_fixture *fixture, size_t workspace_bytes)
{
    if (workspace_bytes > fixture->sizes.part_bytes)
        bench_die("attention needs a workspace of %zu bytes, more than there is", workspace_bytes);
    return workspace_bytes;
}

static void forward_measure(const bench_gpu_fixture *fixture, const char *name, const shape *of)
{
    const char *qkv = bench_gpu_part(fixture, 0);
    const size_t head_bytes = of->width * tide_dtype_bytes(TIDE_DTYPE_BF16);
    tide_attention_args args = {.q = qkv,
                                .k = qkv + of->heads * head_bytes,
                                .v = qkv + (of->heads + of->kv_heads) * head_bytes,
                                .out = bench_gpu_part(fixture, 1),
                                .logsumexp = bench_gpu_part(fixture, 2),
                                .workspace = bench_gpu_part(fixture, 4),
                                .batch = of->rows / of->length,
                                .sequence_length = of->length,
                                .heads = of->heads,
                                .kv_heads = of->kv_heads,
                                .head_width = of->width,
                                .qk_row = row_elements(of),
                                .v_row = row_elements(of),
                                .dtype = TIDE_DTYPE_BF16};
    args.workspace_bytes = fitting(fixture, fixture->kernels->attention_workspace_bytes(&args));
    bench_gpu_flops_figure(fixture, name, fixture->kernels->attention, &args, tide_attention_flops(&args));
}

/* Call this after forward: backward reads its out and logsumexp. */
static void backward_measure(const bench_gpu_fixture *fixture, const char *name, const shape *of)
{
    const char *qkv = bench_gpu_part(fixture, 0);
    char *dqkv = bench_gpu_part(fixture, 5);
    const size_t head_bytes = of->width * tide_dtype_bytes(TIDE_DTYPE_BF16);
    const size_t k_bytes = of->heads * head_bytes, v_bytes = (of->heads + of->kv_heads) * head_bytes;
    tide_attention_backward_args args = {.q = qkv,
                                         .k = qkv + k_bytes,
                                         .v = qkv + v_bytes,
                                         .out = bench_gpu_part(fixture, 1),
                                         .dout = bench_gpu_part(fixture, 3),
                                         .logsumexp = bench_gpu_part(fixture, 2),
                                         .dq = dqkv,
                                         .dk = dqkv + k_bytes,
                                         .dv = dqkv + v_bytes,
                                         .workspace = bench_gpu_part(fixture, 4),
                                         .batch = of->rows / of->length,
                                         .sequence_length = of->length,
                                         .heads = of->heads,
                                         .kv_heads = of->kv_heads,
                                         .head_width = of->width,
                                         .qk_row = row_elements(of),
                                         .v_row = row_elements(of),
                                         .dqkv_row = row_elements(of),
                                         .dtype = TIDE_DTYPE_BF16};
    args.workspace_bytes = fitting(fixture, fixture->kernels->attention_backward_workspace_bytes(&args));
    bench_gpu_flops_figure(fixture, name, fixture->kernels->attention_backward, &args,
                           tide_attention_backward_flops(&args));
}

static void shape_measure(const bench_gpu_fixture *fixture, const shape *of)
{
    char heads[32] = "", name[96];
    if (of->heads != of->kv_heads)
        (void)snprintf(heads, sizeof heads, "%zu/%zu ", of->heads, of->kv_heads);
    (void)snprintf(name, sizeof name, "attention, %sT = %zu, %sheads of %zu", of->what, of->length, heads,
                   of->width);
    forward_measure(fixture, name, of);
    (void)snprintf(name, sizeof name, "attention backward, %sT = %zu, %sheads of %zu", of->what, of->length,
                   heads, of->width);
    backward_measure(fixture, name, of);
}

void bench_gpu_attention(const bench_gpu_fixture *fixture)
{
    const bench_gpu_sizes *sizes = &fixture->sizes;
    const bench_gpu_llama *llama = &sizes->llama;
    const size_t lengths[] = {sizes->length, sizes->long_length};
    const size_t heads[] = {sizes->heads, sizes->wide_heads}, widths[] = {64, 128};
    for (int i = 0; i < 4; i++) {
        const shape equal = {"", sizes->rows, lengths[i / 2], heads[i % 2], heads[i % 2], widths[i % 2]};
        const shape grouped = {"", llama->rows, lengths[i / 2], llama->heads, llama->kv_heads, widths[i % 2]};
        shape_measure(fixture, &equal);
        shape_measure(fixture, &grouped);
    }
    for (int i = 0; i < 2; i++) {
        const shape alone = {"one sequence, ", lengths[i], lengths[i], llama->heads, llama->kv_heads, 128};
        shape_measure(fixture, &alone);
    }
}
