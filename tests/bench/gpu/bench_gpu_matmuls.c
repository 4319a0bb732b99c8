/* Times the matmuls of a step at their real shapes, against the large product: for gpt2-xl and
 * llama-3.1-8b the four of a block (forward, gradient of the input, gradient of the weight) and the three
 * of the head's tile; for gpt2 the weight gradients, which have the fewest tiles and the longest sums.
 * They run as in a step, with GELU's launch if the product does not fuse it. */
#include "tests/bench/gpu/bench_gpu.h"

#include <stdio.h>

/* --- the shapes, as src/model/ makes them --- */

static void product_add(bench_gpu_matmul_list *to, const char *model, const char *name,
                        const tide_matmul_args *shape)
{
    if (to->count == BENCH_GPU_MATMULS_MOST)
        bench_die("more than %d matmuls", BENCH_GPU_MATMULS_MOST);
    bench_gpu_matmul *added = &to->list[to->count++];
    (void)snprintf(added->name, sizeof added->name, "%s %s%s, %zu x %zu x %zu", model, name,
                   shape->gelu == TIDE_MATMUL_GELU_NONE ? "" : " with GELU", shape->m, shape->n, shape->k);
    added->args = *shape;
    added->args.a = bench_gpu_part(to->fixture, 0);
    added->args.b = bench_gpu_part(to->fixture, 1);
    /* The gradient of llama's head is larger than a part of the arena and goes on into part 7. */
    added->args.c = bench_gpu_part(to->fixture, 6);
    added->args.gelu_in = shape->gelu == TIDE_MATMUL_GELU_NONE ? NULL : bench_gpu_part(to->fixture, 3);
    added->args.workspace = bench_gpu_part(to->fixture, 4);
    added->args.bias = shape->has_bias ? bench_gpu_part(to->fixture, 5) : NULL;
    added->args.in_dtype = TIDE_DTYPE_BF16;
    added->args.out_dtype = shape->accumulate ? TIDE_DTYPE_FP32 : TIDE_DTYPE_BF16;
}

typedef struct linear {
    const char *forward, *input, *weight;
    /* multiples of the model's width */
    size_t in, out;
    tide_matmul_gelu forward_gelu, input_gelu;
} linear;

static const linear linears[] = {
    {"qkv", "qkv input gradient", "qkv weight gradient", 1, 3, 0, 0},
    {"projection", "projection input gradient", "projection weight gradient", 1, 1, 0, 0},
    {"up", "up input gradient", "up weight gradient", 1, 4, TIDE_MATMUL_GELU_FORWARD, 0},
    {"down", "down input gradient", "down weight gradient", 4, 1, 0, TIDE_MATMUL_GELU_BACKWARD},
};
enum { LINEARS = sizeof linears / sizeof linears[0] };

static void passes_add(bench_gpu_matmul_list *to, const char *model, size_t rows, size_t width)
{
    for (int i = 0; i < LINEARS; i++) {
        const size_t in = linears[i].in * width, out = linears[i].out * width;
        const tide_matmul_args forward = {.m = rows,
                                          .n = out,
                                          .k = in,
                                          .lda = in,
                                          .ldb = out,
                                          .ldc = out,
                                          .has_bias = true,
                                          .gelu = linears[i].forward_gelu};
        const tide_matmul_args input = {.m = rows,
                                        .n = in,
                                        .k = out,
                                        .lda = out,
                                        .ldb = out,
                                        .ldc = in,
                                        .transpose_b = true,
                                        .gelu = linears[i].input_gelu};
        product_add(to, model, linears[i].forward, &forward);
        product_add(to, model, linears[i].input, &input);
    }
}

static void weights_add(bench_gpu_matmul_list *to, const char *model, size_t rows, size_t width)
{
    for (int i = 0; i < LINEARS; i++) {
        const size_t in = linears[i].in * width, out = linears[i].out * width;
        const tide_matmul_args weight = {.m = in,
                                         .n = out,
                                         .k = rows,
                                         .lda = in,
                                         .ldb = out,
                                         .ldc = out,
                                         .transpose_a = true,
                                         .accumulate = true};
        product_add(to, model, linears[i].weight, &weight);
    }
}

static void head_add(bench_gpu_matmul_list *to, const char *model, size_t width, size_t logits)
{
    const size_t rows = to->fixture->sizes.logit_rows;
    const tide_matmul_args forward = {
        .m = rows, .n = logits, .k = width, .lda = width, .ldb = width, .ldc = logits, .transpose_b = true};
    const tide_matmul_args weight = {.m = logits,
                                     .n = width,
                                     .k = rows,
                                     .lda = logits,
                                     .ldb = width,
                                     .ldc = width,
                                     .transpose_a = true,
                                     .accumulate = true};
    const tide_matmul_args input = {
        .m = rows, .n = width, .k = logits, .lda = logits, .ldb = width, .ldc = width};
    product_add(to, model, "head logits", &forward);
    product_add(to, model, "head weight gradient", &weight);
    product_add(to, model, "head input gradient", &input);
}

/* A layer of llama, without bias, whose weights are stored transposed. One product makes queries, keys and
 * values, and one the MLP's gate and up. */
static void llama_linear_add(bench_gpu_matmul_list *to, const char *name, size_t rows, size_t in, size_t out)
{
    const tide_matmul_args forward = {
        .m = rows, .n = out, .k = in, .lda = in, .ldb = in, .ldc = out, .transpose_b = true};
    const tide_matmul_args input = {.m = rows, .n = in, .k = out, .lda = out, .ldb = in, .ldc = in};
    const tide_matmul_args weight = {.m = out,
                                     .n = in,
                                     .k = rows,
                                     .lda = out,
                                     .ldb = in,
                                     .ldc = in,
                                     .transpose_a = true,
                                     .accumulate = true};
    const struct {
        const char *kind;
        const tide_matmul_args *shape;
    } passes[] = {{"", &forward}, {" input gradient", &input}, {" weight gradient", &weight}};
    for (int i = 0; i < 3; i++) {
        char both[64];
        (void)snprintf(both, sizeof both, "%s%s", name, passes[i].kind);
        product_add(to, "llama-3.1-8b", both, passes[i].shape);
    }
}

static void llama_add(bench_gpu_matmul_list *to, size_t rows)
{
    const bench_gpu_llama *llama = &to->fixture->sizes.llama;
    const size_t query = llama->heads * llama->head_width, kv = llama->kv_heads * llama->head_width;
    llama_linear_add(to, "qkv", rows, llama->width, query + 2 * kv);
    llama_linear_add(to, "projection", rows, query, llama->width);
    llama_linear_add(to, "gate and up", rows, llama->width, 2 * llama->mlp);
    llama_linear_add(to, "down", rows, llama->mlp, llama->width);
}

bench_gpu_matmul_list bench_gpu_matmuls_list(const bench_gpu_fixture *fixture)
{
    const bench_gpu_sizes *sizes = &fixture->sizes;
    bench_gpu_matmul_list made = {.fixture = fixture};
    weights_add(&made, "gpt2", sizes->narrow_rows, sizes->narrow_width);
    weights_add(&made, "gpt2-xl", sizes->rows, sizes->width);
    head_add(&made, "gpt2-xl", sizes->width, sizes->padded);
    passes_add(&made, "gpt2-xl", sizes->rows, sizes->width);
    llama_add(&made, sizes->llama.few_rows);
    head_add(&made, "llama-3.1-8b", sizes->llama.width, sizes->llama.vocabulary);
    return made;
}

/* --- timing --- */

void bench_gpu_matmuls(const bench_gpu_fixture *fixture)
{
    bench_gpu_matmul_list all = bench_gpu_matmuls_list(fixture);
    llama_add(&all, fixture->sizes.llama.rows);
    for (int i = 0; i < all.count; i++) {
        tide_matmul_args *args = &all.list[i].args;
        bench_check(fixture->kernels->matmul_prepare(args, &args->workspace_bytes), "prepare");
        bench_gpu_flops_figure(fixture, all.list[i].name, fixture->kernels->matmul, args,
                               tide_matmul_flops(args));
    }
}
