/* The matrix products of a step at their real shapes: of gpt2-xl the four of a block forward, back to the input and to the
 * weight, and the three of the head's tile; of gpt2 those to the weights, which have the fewest tiles for the longest sums.
 *
 *   products    as a step runs it, GELU's own launch included where the product does not take it along, against the large
 *               product
 *   candidates  each algorithm that cuBLASLt names for it, in turn round by round, so that the GPU's clock is the same for all.
 *               Then how much longer the one that the rule takes needs than the best: more than a tenth, and the rule is to be
 *               mended
 */
#include "tests/bench/gpu/bench_gpu.h"

#include "kernels/cuda/launchers.h"
#include "kernels/cuda/matmul_plan.h"

#include <math.h>
#include <stdio.h>

enum { PRODUCTS_MOST = 24, ROUNDS_MOST = 5, NAME_BYTES = 96, LINE_BYTES = NAME_BYTES + 32 };
#define TAKEN_OVER_BEST_MOST 1.1
static const double product_seconds_most = 1.0; /* no round of its candidates begins later */

typedef struct product {
    char name[NAME_BYTES];
    tide_matmul_args args;
} product;

typedef struct products {
    const bench_gpu_rig *rig;
    int count;
    product list[PRODUCTS_MOST];
} products;

/* --- the shapes, as src/model/ makes them --- */

static void product_add(products *to, const char *model, const char *name, const tide_matmul_args *shape)
{
    product *added = &to->list[to->count++];
    if (to->count > PRODUCTS_MOST)
        bench_die("more than %d products", PRODUCTS_MOST);
    (void)snprintf(added->name, sizeof added->name, "%s %s, %zu x %zu x %zu", model, name, shape->m, shape->n,
                   shape->k);
    added->args = *shape;
    added->args.a = bench_gpu_part(to->rig, 0);
    added->args.b = bench_gpu_part(to->rig, 1);
    added->args.c = bench_gpu_part(to->rig, 2);
    added->args.gelu_in = shape->gelu == TIDE_MATMUL_GELU_NONE ? NULL : bench_gpu_part(to->rig, 3);
    added->args.workspace = bench_gpu_part(to->rig, 4);
    added->args.bias = shape->has_bias ? bench_gpu_part(to->rig, 5) : NULL;
    added->args.in_dtype = TIDE_DTYPE_BF16;
    added->args.out_dtype = shape->accumulate ? TIDE_DTYPE_FP32 : TIDE_DTYPE_BF16;
}

typedef struct linear {
    const char *forward, *input, *weight;
    size_t in, out; /* in widths of the model */
    tide_matmul_gelu forward_gelu, input_gelu;
} linear;

static const linear linears[] = {
    {"qkv", "qkv input gradient", "qkv weight gradient", 1, 3, 0, 0},
    {"projection", "projection input gradient", "projection weight gradient", 1, 1, 0, 0},
    {"up with GELU", "up input gradient", "up weight gradient", 1, 4, TIDE_MATMUL_GELU_FORWARD, 0},
    {"down", "down input gradient with GELU", "down weight gradient", 4, 1, 0, TIDE_MATMUL_GELU_BACKWARD},
};
enum { LINEARS = sizeof linears / sizeof linears[0] };

static void passes_add(products *to, const char *model, size_t rows, size_t width)
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

static void weights_add(products *to, const char *model, size_t rows, size_t width)
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

static void head_add(products *to, const char *model)
{
    const size_t rows = to->rig->sizes.logit_rows, width = to->rig->sizes.width,
                 logits = to->rig->sizes.padded;
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

static products products_list(const bench_gpu_rig *rig)
{
    const bench_gpu_sizes *sizes = &rig->sizes;
    products made = {.rig = rig};
    weights_add(&made, "gpt2", sizes->narrow_rows, sizes->narrow_width);
    weights_add(&made, "gpt2-xl", sizes->rows, sizes->width);
    head_add(&made, "gpt2-xl");
    passes_add(&made, "gpt2-xl", sizes->rows, sizes->width);
    return made;
}

/* --- as a step runs them --- */

void bench_gpu_products(const bench_gpu_rig *rig)
{
    products all = products_list(rig);
    for (int i = 0; i < all.count; i++) {
        tide_matmul_args *args = &all.list[i].args;
        bench_check(rig->kernels->matmul_prepare(args, &args->workspace_bytes), "prepare");
        bench_gpu_flops_figure(rig, all.list[i].name, rig->kernels->matmul, args, tide_matmul_flops(args));
    }
}

/* --- every candidate --- */

typedef struct trial {
    cublasLtHandle_t library;
    tide_cuda_matmul_plan *plan;
    tide_matmul_args args;
    double seconds[TIDE_CUDA_MATMUL_CANDIDATES]; /* infinite: not measured */
} trial;

static tide_status trial_launch(void *stream, const void *arguments)
{
    const trial *it = arguments;
    return tide_cuda_matmul_plan_run(it->library, it->plan, &it->args, stream);
}

static void trial_take(trial *it, int candidate)
{
    tide_cuda_matmul_plan_take(it->plan, candidate);
    it->args.workspace_bytes = it->plan->bias_bytes + it->plan->library_bytes;
}

/* Which candidates are allowed and run at all. */
static void trial_begin(const bench_gpu_rig *rig, trial *it, bool runs[TIDE_CUDA_MATMUL_CANDIDATES])
{
    for (int i = 0; i < it->plan->candidate_count; i++) {
        runs[i] = tide_cuda_matmul_candidate_is_allowed(&it->plan->candidates[i]);
        it->seconds[i] = INFINITY;
        if (runs[i]) {
            trial_take(it, i);
            runs[i] = trial_launch(rig->stream, it) == TIDE_OK;
        }
    }
    BENCH_CUDA(cudaStreamSynchronize(rig->stream));
}

static void trial_time(const bench_gpu_rig *rig, trial *it)
{
    double seconds[TIDE_CUDA_MATMUL_CANDIDATES][ROUNDS_MOST];
    bool runs[TIDE_CUDA_MATMUL_CANDIDATES];
    const int count = it->plan->candidate_count;
    int rounds = 0;
    trial_begin(rig, it, runs);
    const double start = bench_seconds();
    do {
        for (int i = 0; i < count; i++)
            if (runs[i]) {
                trial_take(it, i);
                seconds[i][rounds] = bench_gpu_round(rig, trial_launch, it);
            }
        rounds++;
    } while (rounds < ROUNDS_MOST && rounds < rig->sizes.rounds &&
             bench_seconds() - start < product_seconds_most);
    for (int i = 0; i < count; i++)
        if (runs[i])
            it->seconds[i] = bench_median(seconds[i], (size_t)rounds);
}

static void candidate_tell(const trial *it, const product *of, int i, int taken)
{
    const tide_cuda_matmul_candidate *one = &it->plan->candidates[i];
    const char *tile = tide_cuda_matmul_tile_name(one->tile);
    char name[LINE_BYTES];
    (void)snprintf(name, sizeof name, "%s, candidate %d", of->name, i + 1);
    bench_also("\"candidate\": %d, \"of\": %d, \"taken\": %s, \"algorithm\": %d, \"tile\": %d, "
               "\"tile_name\": \"%s\", "
               "\"stages\": %d, \"splits\": %d, \"reduction\": %d, \"waves\": %.4g, \"workspace_bytes\": %zu",
               i + 1, it->plan->candidate_count, i == taken ? "true" : "false", one->algorithm, one->tile,
               tile, one->stages, one->splits, one->reduction,
               isfinite(one->waves) ? (double)one->waves : 0.0, one->workspace_bytes);
    if (!isfinite(it->seconds[i])) {
        bench_missing(name, "us", "%s",
                      one->state == CUBLAS_STATUS_SUCCESS ? "does not run, or is not allowed" : "declined");
        return;
    }
    bench_figure(name, it->seconds[i] * 1e6, "us", BENCH_NO_BOUND, 0, "%.0f TFLOP/s%s",
                 (double)tide_matmul_flops(&it->args) / it->seconds[i] * 1e-12, i == taken ? ", taken" : "");
}

static void trial_tell(const trial *it, const product *of, int taken)
{
    int best = taken, first = -1;
    char name[LINE_BYTES];
    for (int i = 0; i < it->plan->candidate_count; i++) {
        candidate_tell(it, of, i, taken);
        if (it->seconds[i] < it->seconds[best])
            best = i;
        if (first < 0 && isfinite(it->seconds[i]))
            first = i;
    }
    (void)snprintf(name, sizeof name, "%s: taken / best", of->name);
    if (first < 0 || !isfinite(it->seconds[taken])) {
        bench_missing(name, "x", "what the rule takes does not run");
        return;
    }
    const double ratio = it->seconds[taken] / it->seconds[best];
    bench_also("\"taken\": %d, \"best\": %d, \"first_over_taken\": %.4g, \"gelu_apart\": %s", taken + 1,
               best + 1, it->seconds[first] / it->seconds[taken], it->plan->gelu_apart ? "true" : "false");
    bench_figure(name, ratio, "x", BENCH_AT_MOST, TAKEN_OVER_BEST_MOST,
                 "takes candidate %d of %d, %.0f us; the best is %d; the first takes %.2f times as long",
                 taken + 1, it->plan->candidate_count, it->seconds[taken] * 1e6, best + 1,
                 it->seconds[first] / it->seconds[taken]);
}

static void trial_run(const bench_gpu_rig *rig, cublasLtHandle_t library, const product *of)
{
    trial it = {.library = library, .args = of->args};
    bench_check(tide_cuda_matmul_plan_create(library, &it.args, &it.plan), "plan");
    const int taken = it.plan->chosen;
    trial_time(rig, &it);
    trial_tell(&it, of, taken);
    tide_cuda_matmul_plan_destroy(it.plan);
}

void bench_gpu_candidates(const bench_gpu_rig *rig)
{
    const products all = products_list(rig);
    cublasLtHandle_t library;
    if (cublasLtCreate(&library) != CUBLAS_STATUS_SUCCESS)
        bench_die("cuBLASLt does not start");
    for (int i = 0; i < all.count; i++)
        trial_run(rig, library, &all.list[i]);
    if (cublasLtDestroy(library) != CUBLAS_STATUS_SUCCESS)
        bench_die("cuBLASLt does not end");
}
