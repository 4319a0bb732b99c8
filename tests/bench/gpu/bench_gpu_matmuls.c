/* Times the matmuls of a step at their real shapes, against the large product: for gpt2-xl and
 * llama-3.1-8b the four of a block (forward, gradient of the input, gradient of the weight) and the three
 * of the head's tile; for gpt2 the weight gradients, which have the fewest tiles and the longest sums.
 * They run as in a step, with GELU's launch if the product does not fuse it. */
#include "tests/bench/gpu/bench_gpu.h"

#include "kernels/cuda/matmul_plan.h"

#include <math.h>
#include <stdio.h>

/* A product of a step: its name with its shape, and its arguments with operands in the arena. */
typedef struct product {
    char name[176];
    tide_matmul_args args;
} product;

enum { MATMULS_MOST = 56 };

typedef struct product_list {
    const bench_gpu_fixture *fixture;
    int count;
    product list[MATMULS_MOST];
} product_list;

/* --- the shapes, as src/model/ makes them --- */

static void product_add(product_list *to, const char *model, const char *name, const tide_matmul_args *shape)
{
    if (to->count == MATMULS_MOST)
        bench_die("more than %d matmuls", MATMULS_MOST);
    product *added = &to->list[to->count++];
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

static void passes_add(product_list *to, const char *model, size_t rows, size_t width)
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

static void weights_add(product_list *to, const char *model, size_t rows, size_t width)
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

static void head_add(product_list *to, const char *model, size_t width, size_t logits)
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
static void llama_linear_add(product_list *to, const char *name, size_t rows, size_t in, size_t out)
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

static void llama_add(product_list *to, size_t rows)
{
    const bench_gpu_llama *llama = &to->fixture->sizes.llama;
    const size_t query = llama->heads * llama->head_width, kv = llama->kv_heads * llama->head_width;
    llama_linear_add(to, "qkv", rows, llama->width, query + 2 * kv);
    llama_linear_add(to, "projection", rows, query, llama->width);
    llama_linear_add(to, "gate and up", rows, llama->width, 2 * llama->mlp);
    llama_linear_add(to, "down", rows, llama->mlp, llama->width);
}

/* Lists the products; for llama-3.1-8b only those of a micro-batch of few_rows tokens. */
static product_list matmuls_list(const bench_gpu_fixture *fixture)
{
    const bench_gpu_sizes *sizes = &fixture->sizes;
    product_list made = {.fixture = fixture};
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
    product_list all = matmuls_list(fixture);
    llama_add(&all, fixture->sizes.llama.rows);
    for (int i = 0; i < all.count; i++) {
        tide_matmul_args *args = &all.list[i].args;
        bench_check(fixture->kernels->matmul_prepare(args, &args->workspace_bytes), "prepare");
        bench_gpu_flops_figure(fixture, all.list[i].name, fixture->kernels->matmul, args,
                               tide_matmul_flops(args));
    }
}

/* --- candidates ---
 *
 * Times each algorithm that cuBLASLt's heuristic lists for a step's matmuls (kernels/cuda/matmul_choice.h).
 * The candidates of a product run in turn, round by round, so that the GPU's clock is the same for all. The
 * figure is how much longer the chosen algorithm takes than the fastest. */

enum { ROUNDS_MOST = 5 };
/* A new round of a product's candidates begins only within so many seconds. */
static const double product_seconds_most = 1.0;

typedef struct timing {
    cublasLtHandle_t library;
    tide_cuda_matmul_plan *plan;
    tide_matmul_args args;
    double seconds[TIDE_CUDA_MATMUL_CANDIDATES]; /* infinite: not measured */
} timing;

static tide_status timing_launch(void *stream, const void *arguments)
{
    const timing *it = arguments;
    return tide_cuda_matmul_plan_run(it->library, it->plan, &it->args, stream);
}

/* Finds the candidates that are allowed and that run. */
static void timing_begin(const bench_gpu_fixture *fixture, timing *it, bool runs[TIDE_CUDA_MATMUL_CANDIDATES])
{
    for (int i = 0; i < it->plan->candidate_count; i++) {
        runs[i] = tide_cuda_matmul_candidate_is_allowed(&it->plan->candidates[i]);
        it->seconds[i] = INFINITY;
        if (runs[i]) {
            tide_cuda_matmul_plan_take(it->plan, i);
            runs[i] = timing_launch(fixture->stream, it) == TIDE_OK;
        }
    }
    BENCH_CUDA(cudaStreamSynchronize(fixture->stream));
}

static void timing_run(const bench_gpu_fixture *fixture, timing *it)
{
    double seconds[TIDE_CUDA_MATMUL_CANDIDATES][ROUNDS_MOST];
    bool runs[TIDE_CUDA_MATMUL_CANDIDATES];
    const int count = it->plan->candidate_count;
    int rounds = 0;
    timing_begin(fixture, it, runs);
    const double start = bench_seconds();
    do {
        for (int i = 0; i < count; i++)
            if (runs[i]) {
                tide_cuda_matmul_plan_take(it->plan, i);
                seconds[i][rounds] = bench_gpu_round(fixture, timing_launch, it);
            }
        rounds++;
    } while (rounds < ROUNDS_MOST && rounds < fixture->sizes.rounds &&
             bench_seconds() - start < product_seconds_most);
    for (int i = 0; i < count; i++)
        if (runs[i])
            it->seconds[i] = bench_median(seconds[i], (size_t)rounds);
}

/* Prints the reason why a candidate has no time. */
static void reason_tell(const char *name, const tide_cuda_matmul_candidate *one)
{
    if (one->state != CUBLAS_STATUS_SUCCESS)
        bench_missing(name, "us", "%s", cublasLtGetStatusName(one->state));
    else if (!tide_cuda_matmul_candidate_is_allowed(one))
        bench_missing(name, "us", "is not allowed to join its parts so, or to need so much workspace");
    else
        bench_missing(name, "us", "does not run");
}

static void candidate_tell(const timing *it, const char *name, int i, bool taken)
{
    const tide_cuda_matmul_candidate *one = &it->plan->candidates[i];
    bench_also("\"candidate\": %d, \"of\": %d, \"taken\": %s, \"algorithm\": %d, \"tile\": %d, "
               "\"tile_name\": \"%s\", "
               "\"stages\": %d, \"splits\": %d, \"reduction\": %d, \"waves\": %.4g, \"workspace_bytes\": %zu",
               i + 1, it->plan->candidate_count, taken ? "true" : "false", one->algorithm, one->tile,
               tide_cuda_matmul_tile_name(one->tile), one->stages, one->splits, one->reduction,
               isfinite(one->waves) ? (double)one->waves : 0.0, one->workspace_bytes);
    if (isfinite(it->seconds[i]))
        bench_figure(name, it->seconds[i] * 1e6, "us", BENCH_NO_BOUND, 0, "%.0f TFLOP/s%s",
                     (double)tide_matmul_flops(&it->args) / it->seconds[i] * 1e-12, taken ? ", taken" : "");
    else
        reason_tell(name, one);
}

static void choice_tell(const timing *it, const char *name, int taken)
{
    if (!isfinite(it->seconds[taken])) {
        bench_missing(name, "x", "the candidate that is taken does not run");
        return;
    }
    int best = taken;
    for (int i = 0; i < it->plan->candidate_count; i++)
        if (it->seconds[i] < it->seconds[best])
            best = i;
    bench_also("\"taken\": %d, \"best\": %d, \"gelu_apart\": %s", taken + 1, best + 1,
               it->plan->gelu_apart ? "true" : "false");
    bench_figure(name, it->seconds[taken] / it->seconds[best], "x", BENCH_NO_BOUND, 0,
                 "takes candidate %d of %d, %.0f us; the best is %d", taken + 1, it->plan->candidate_count,
                 it->seconds[taken] * 1e6, best + 1);
}

static void candidates_try(const bench_gpu_fixture *fixture, cublasLtHandle_t library, const product *of)
{
    timing it = {.library = library, .args = of->args};
    bench_check(tide_cuda_matmul_plan_create(library, &it.args, &it.plan), "plan");
    const int taken = it.plan->chosen;
    timing_run(fixture, &it);
    for (int i = 0; i < it.plan->candidate_count; i++)
        candidate_tell(&it, bench_name("%s, candidate %d", of->name, i + 1), i, i == taken);

    choice_tell(&it, bench_name("%s: taken / best", of->name), taken);
    tide_cuda_matmul_plan_destroy(it.plan);
}

void bench_gpu_candidates(const bench_gpu_fixture *fixture)
{
    const product_list all = matmuls_list(fixture);
    cublasLtHandle_t library;
    if (cublasLtCreate(&library) != CUBLAS_STATUS_SUCCESS)
        bench_die("cuBLASLt does not start");
    for (int i = 0; i < all.count; i++)
        candidates_try(fixture, library, &all.list[i]);
    if (cublasLtDestroy(library) != CUBLAS_STATUS_SUCCESS)
        bench_die("cuBLASLt does not end");
}
