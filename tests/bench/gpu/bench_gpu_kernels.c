/* Times the kernels of the GPU's table other than matmuls. */
#include "tests/bench/gpu/bench_gpu.h"

#include <stdio.h>

/* --- attention ---
 *
 * Times attention forward and backward, against the large product: short and long sequences, heads of both
 * widths, a key head for each query head as in gpt2-xl and for four query heads as in llama-3.1-8b. For
 * llama's heads one row is a single sequence, which gives the sums of dK and dV few blocks. */

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
    char heads[32] = "";
    if (of->heads != of->kv_heads)
        (void)snprintf(heads, sizeof heads, "%zu/%zu ", of->heads, of->kv_heads);
    forward_measure(
        fixture, bench_name("attention, %sT = %zu, %sheads of %zu", of->what, of->length, heads, of->width),
        of);
    backward_measure(
        fixture,
        bench_name("attention backward, %sT = %zu, %sheads of %zu", of->what, of->length, heads, of->width),
        of);
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

/* --- memory ---
 *
 * Times every kernel of the GPU's table that is bound by memory, alone, with the sizes of a real model. A
 * figure is the kernel's rate, by the bytes that it must move (tide_<op>_bytes), over the rate of
 * cudaMemcpyAsync on the GPU, reads and writes counted. */

static void memory_figure(const bench_gpu_fixture *it, const char *name, tide_kernel kernel,
                          const void *arguments, uint64_t bytes)
{
    const double limit = bench_gpu_copy_rate(it), seconds = bench_gpu_time(it, kernel, arguments);
    const double rate = (double)bytes / seconds;
    bench_also("\"us\": %.3f, \"gb_per_second\": %.1f", seconds * 1e6, rate * 1e-9);
    bench_figure(name, rate / limit, "x copy", BENCH_NO_BOUND, 0, "%.0f us, %.0f GB/s", seconds * 1e6,
                 rate * 1e-9);
}

static void pointwise_measure(const bench_gpu_fixture *it)
{
    const size_t elements = it->sizes.rows * it->sizes.width;
    const tide_gelu_args gelu = {.in = bench_gpu_part(it, 0),
                                 .out = bench_gpu_part(it, 1),
                                 .elements = elements,
                                 .dtype = TIDE_DTYPE_BF16};
    memory_figure(it, "gelu", it->kernels->gelu, &gelu, tide_gelu_bytes(&gelu));
    const tide_gelu_backward_args gelu_backward = {.in = bench_gpu_part(it, 0),
                                                   .dout = bench_gpu_part(it, 1),
                                                   .din = bench_gpu_part(it, 2),
                                                   .elements = elements,
                                                   .dtype = TIDE_DTYPE_BF16};
    memory_figure(it, "gelu backward", it->kernels->gelu_backward, &gelu_backward,
                  tide_gelu_backward_bytes(&gelu_backward));
    const tide_add_args add = {.a = bench_gpu_part(it, 0),
                               .b = bench_gpu_part(it, 1),
                               .out = bench_gpu_part(it, 2),
                               .elements = elements,
                               .dtype = TIDE_DTYPE_BF16};
    memory_figure(it, "add", it->kernels->add, &add, tide_add_bytes(&add));
    const tide_copy_args copy = {
        .in = bench_gpu_part(it, 0), .out = bench_gpu_part(it, 1), .bytes = 2 * elements};
    memory_figure(it, "copy", it->kernels->copy, &copy, tide_copy_bytes(&copy));
    const tide_zero_args zero = {.data = bench_gpu_part(it, 2), .bytes = it->sizes.part_bytes};
    memory_figure(it, "zero", it->kernels->zero, &zero, tide_zero_bytes(&zero));
    const tide_cast_args rounding = {.in = bench_gpu_part(it, 0),
                                     .out = bench_gpu_part(it, 1),
                                     .elements = it->sizes.adam_elements,
                                     .in_dtype = TIDE_DTYPE_FP32,
                                     .out_dtype = TIDE_DTYPE_BF16};
    memory_figure(it, "gradient rounding", it->kernels->cast, &rounding, tide_cast_bytes(&rounding));
    const tide_round_args round = {.data = (float *)bench_gpu_part(it, 0),
                                   .elements = it->sizes.adam_elements,
                                   .dtype = TIDE_DTYPE_BF16};
    memory_figure(it, "round", it->kernels->round, &round, tide_round_bytes(&round));
    const tide_gradient_norm_args norm = {.gradient = bench_gpu_part(it, 1),
                                          .blocks = bench_gpu_part(it, 2),
                                          .elements = it->sizes.adam_elements,
                                          .dtype = TIDE_DTYPE_BF16};
    memory_figure(it, "gradient norm", it->kernels->gradient_norm, &norm, tide_gradient_norm_bytes(&norm));
}

static void layer_norm_measure(const bench_gpu_fixture *it)
{
    float *mean = bench_gpu_part(it, 4), *rstd = mean + it->sizes.rows, *sums = rstd + it->sizes.rows;
    const tide_layer_norm_args forward = {.in = bench_gpu_part(it, 0),
                                          .weight = bench_gpu_part(it, 1),
                                          .bias = bench_gpu_part(it, 1),
                                          .out = bench_gpu_part(it, 2),
                                          .mean = mean,
                                          .rstd = rstd,
                                          .rows = it->sizes.rows,
                                          .width = it->sizes.width,
                                          .epsilon = 1e-5f,
                                          .dtype = TIDE_DTYPE_BF16};
    memory_figure(it, "layer norm", it->kernels->layer_norm, &forward, tide_layer_norm_bytes(&forward));
    tide_layer_norm_backward_args backward = {.in = bench_gpu_part(it, 0),
                                              .weight = bench_gpu_part(it, 1),
                                              .dout = bench_gpu_part(it, 2),
                                              .mean = mean,
                                              .rstd = rstd,
                                              .din = bench_gpu_part(it, 3),
                                              .dweight = sums,
                                              .dbias = sums + it->sizes.width,
                                              .workspace = bench_gpu_part(it, 5),
                                              .rows = it->sizes.rows,
                                              .width = it->sizes.width,
                                              .dtype = TIDE_DTYPE_BF16};
    backward.workspace_bytes = it->kernels->layer_norm_backward_workspace_bytes(&backward);
    memory_figure(it, "layer norm backward", it->kernels->layer_norm_backward, &backward,
                  tide_layer_norm_backward_bytes(&backward));
    const tide_bias_backward_args bias = {.dout = bench_gpu_part(it, 0),
                                          .dbias = sums,
                                          .rows = it->sizes.rows,
                                          .width = 4 * it->sizes.width,
                                          .dtype = TIDE_DTYPE_BF16};
    memory_figure(it, "bias backward", it->kernels->bias_backward, &bias, tide_bias_backward_bytes(&bias));
}

/* Fills the tokens as text has them: a few tokens are frequent, one of them has five rows in a hundred. */
static void tokens_fill(const bench_gpu_fixture *it)
{
    uint32_t state = 99;
    void *pinned;
    const size_t bytes = it->sizes.rows * sizeof(int32_t);
    BENCH_CUDA(cudaHostAlloc(&pinned, bytes, cudaHostAllocDefault));
    int32_t *tokens = pinned;
    for (size_t i = 0; i < it->sizes.rows; i++) {
        state = state * 1664525u + 1013904223u;
        const double u = (double)(state >> 8) / 16777216.0;
        tokens[i] = u < 0.05 ? 11 : (int32_t)((double)it->sizes.vocabulary * u * u * u);
    }
    BENCH_CUDA(cudaMemcpyAsync(bench_gpu_part(it, 5), tokens, bytes, cudaMemcpyHostToDevice, it->stream));
    BENCH_CUDA(cudaStreamSynchronize(it->stream));
    BENCH_CUDA(cudaFreeHost(pinned));
}

/* Call this after tokens_fill(). */
static void loss_measure(const bench_gpu_fixture *it, const char *name, size_t vocabulary, size_t padded)
{
    const tide_cross_entropy_args loss = {.logits = bench_gpu_part(it, 0),
                                          .targets = bench_gpu_part(it, 5),
                                          .losses = bench_gpu_part(it, 6),
                                          .rows = it->sizes.logit_rows,
                                          .vocabulary = vocabulary,
                                          .leading_dimension = padded,
                                          .gradient_scale = 1.0f,
                                          .gradient = true,
                                          .dtype = TIDE_DTYPE_BF16};
    memory_figure(it, name, it->kernels->cross_entropy, &loss, tide_cross_entropy_bytes(&loss));
}

static void ends_measure(const bench_gpu_fixture *it)
{
    tokens_fill(it);
    const tide_embedding_args embedding = {.tokens = bench_gpu_part(it, 5),
                                           .wte = bench_gpu_part(it, 0),
                                           .wpe = bench_gpu_part(it, 1),
                                           .out = bench_gpu_part(it, 2),
                                           .rows = it->sizes.rows,
                                           .sequence_length = it->sizes.length,
                                           .width = it->sizes.width,
                                           .vocabulary = it->sizes.vocabulary,
                                           .dtype = TIDE_DTYPE_BF16};
    memory_figure(it, "embedding", it->kernels->embedding, &embedding, tide_embedding_bytes(&embedding));
    const tide_embedding_backward_args backward = {.tokens = bench_gpu_part(it, 5),
                                                   .dout = bench_gpu_part(it, 2),
                                                   .dwte = bench_gpu_part(it, 3),
                                                   .dwpe = bench_gpu_part(it, 4),
                                                   .rows = it->sizes.rows,
                                                   .sequence_length = it->sizes.length,
                                                   .width = it->sizes.width,
                                                   .vocabulary = it->sizes.vocabulary,
                                                   .dtype = TIDE_DTYPE_BF16};
    memory_figure(it, "embedding backward", it->kernels->embedding_backward, &backward,
                  tide_embedding_backward_bytes(&backward));
    loss_measure(it, "cross entropy with gradient", it->sizes.vocabulary, it->sizes.padded);
    loss_measure(it, "cross entropy with gradient, llama-3.1-8b", it->sizes.llama.vocabulary,
                 it->sizes.llama.vocabulary);
}

/* --- kernels of llama-3.1-8b --- */

typedef struct norm {
    const char *name;
    size_t heads, width, in_row, out_row, dout_row;
    int dout_part;
} norm;

static void rms_norm_measure(const bench_gpu_fixture *it, const norm *of)
{
    const size_t rows = it->sizes.llama.rows;
    float *rstd = bench_gpu_part(it, 4);
    const tide_rms_norm_args forward = {.in = bench_gpu_part(it, 0),
                                        .weight = bench_gpu_part(it, 1),
                                        .out = bench_gpu_part(it, 2),
                                        .rstd = rstd,
                                        .rows = rows,
                                        .heads = of->heads,
                                        .width = of->width,
                                        .in_row = of->in_row,
                                        .out_row = of->out_row,
                                        .epsilon = 1e-5f,
                                        .dtype = TIDE_DTYPE_BF16};
    memory_figure(it, of->name, it->kernels->rms_norm, &forward, tide_rms_norm_bytes(&forward));
    tide_rms_norm_backward_args backward = {.in = bench_gpu_part(it, 0),
                                            .weight = bench_gpu_part(it, 1),
                                            .dout = bench_gpu_part(it, of->dout_part),
                                            .rstd = rstd,
                                            .din = bench_gpu_part(it, 3),
                                            .dweight = rstd + rows * of->heads,
                                            .workspace = bench_gpu_part(it, 5),
                                            .rows = rows,
                                            .heads = of->heads,
                                            .width = of->width,
                                            .in_row = of->in_row,
                                            .dout_row = of->dout_row,
                                            .dtype = TIDE_DTYPE_BF16};
    backward.workspace_bytes = it->kernels->rms_norm_backward_workspace_bytes(&backward);
    memory_figure(it, bench_name("%s backward", of->name), it->kernels->rms_norm_backward, &backward,
                  tide_rms_norm_backward_bytes(&backward));
}

/* One new token of a long sequence, in rows that hold queries, keys and values: the time is the cache's. */
static void cached_measure(const bench_gpu_fixture *it)
{
    const bench_gpu_llama *llama = &it->sizes.llama;
    const char *qkv = bench_gpu_part(it, 2);
    const size_t head_bytes = llama->head_width * tide_dtype_bytes(TIDE_DTYPE_BF16);
    const size_t row = (llama->heads + 2 * llama->kv_heads) * llama->head_width;
    tide_attention_cached_args args = {.q = qkv,
                                       .k = qkv + llama->heads * head_bytes,
                                       .v = qkv + (llama->heads + llama->kv_heads) * head_bytes,
                                       .keys = bench_gpu_part(it, 0),
                                       .values = bench_gpu_part(it, 1),
                                       .out = bench_gpu_part(it, 3),
                                       .workspace = bench_gpu_part(it, 5),
                                       .rows = 1,
                                       .first = it->sizes.long_length,
                                       .heads = llama->heads,
                                       .kv_heads = llama->kv_heads,
                                       .head_width = llama->head_width,
                                       .qk_row = row,
                                       .v_row = row,
                                       .dtype = TIDE_DTYPE_BF16};
    args.workspace_bytes = it->kernels->attention_cached_workspace_bytes(&args);
    memory_figure(it, "attention cached", it->kernels->attention_cached, &args,
                  tide_attention_cached_bytes(&args));
}

static void llama_measure(const bench_gpu_fixture *it)
{
    const bench_gpu_llama *llama = &it->sizes.llama;
    const size_t qk = (llama->heads + llama->kv_heads) * llama->head_width,
                 qkv = qk + llama->kv_heads * llama->head_width;
    const norm whole = {"rms norm", 1, llama->width, llama->width, llama->width, llama->width, 2};
    /* The norm of each query head in rows that hold queries, keys and values, as in Qwen3. */
    const norm of_heads = {"head norm", llama->heads, llama->head_width, qkv, qk, qkv, 3};
    rms_norm_measure(it, &whole);
    rms_norm_measure(it, &of_heads);
    const tide_rope_args rope = {.data = bench_gpu_part(it, 3),
                                 .table = bench_gpu_part(it, 1),
                                 .rows = llama->rows,
                                 .sequence_length = it->sizes.long_length,
                                 .heads = llama->heads + llama->kv_heads,
                                 .head_width = llama->head_width,
                                 .row = qkv,
                                 .dtype = TIDE_DTYPE_BF16};
    memory_figure(it, "rope", it->kernels->rope, &rope, tide_rope_bytes(&rope));
    const tide_swiglu_args swiglu = {.in = bench_gpu_part(it, 0),
                                     .out = bench_gpu_part(it, 2),
                                     .rows = llama->rows,
                                     .width = llama->mlp,
                                     .dtype = TIDE_DTYPE_BF16};
    memory_figure(it, "swiglu", it->kernels->swiglu, &swiglu, tide_swiglu_bytes(&swiglu));
    const tide_swiglu_backward_args swiglu_backward = {.in = bench_gpu_part(it, 0),
                                                       .dout = bench_gpu_part(it, 2),
                                                       .din = bench_gpu_part(it, 0),
                                                       .rows = llama->rows,
                                                       .width = llama->mlp,
                                                       .dtype = TIDE_DTYPE_BF16};
    memory_figure(it, "swiglu backward", it->kernels->swiglu_backward, &swiglu_backward,
                  tide_swiglu_backward_bytes(&swiglu_backward));
    const tide_norm_sum_args norm_sum = {
        .blocks = bench_gpu_part(it, 1), .sum = bench_gpu_part(it, 6), .blocks_count = it->sizes.norm_blocks};
    memory_figure(it, "norm sum", it->kernels->norm_sum, &norm_sum, tide_norm_sum_bytes(&norm_sum));
}

static void adam_measure(const bench_gpu_fixture *it)
{
    const tide_adamw_segment segment = {.param = bench_gpu_part(it, 0),
                                        .master = bench_gpu_part(it, 1),
                                        .momentum = bench_gpu_part(it, 2),
                                        .variance = bench_gpu_part(it, 3),
                                        .elements = it->sizes.adam_elements,
                                        .decays = true};
    /* variances must not be negative */
    BENCH_CUDA(cudaMemsetAsync(bench_gpu_part(it, 3), 0, it->sizes.part_bytes, it->stream));
    const tide_adamw_args args = {.segments = &segment,
                                  .segment_count = 1,
                                  .factors = tide_adam_factors_make(1e-4, 0.9, 0.95, 1e-8, 0.1, 10, 1.0),
                                  .dtype = TIDE_DTYPE_BF16};
    memory_figure(it, "adamw", it->kernels->adamw, &args, tide_adamw_bytes(&args));
    const tide_restore_args restore = {.segments = &segment, .segment_count = 1, .dtype = TIDE_DTYPE_BF16};
    memory_figure(it, "restore", it->kernels->restore, &restore, tide_restore_bytes(&restore));
}

void bench_gpu_memory(bench_gpu_fixture *fixture)
{
    pointwise_measure(fixture);
    layer_norm_measure(fixture);
    ends_measure(fixture);
    bench_gpu_refill(fixture);
    llama_measure(fixture);
    cached_measure(fixture);
    bench_gpu_refill(fixture);
    adam_measure(fixture);
}
