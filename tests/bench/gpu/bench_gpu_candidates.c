/* Times each algorithm that cuBLASLt's heuristic lists for a step's matmuls
 * (kernels/cuda/matmul_choice.h). The candidates of a product run in turn, round by round, so that the
 * GPU's clock is the same for all. The figure is how much longer the chosen algorithm takes than the
 * fastest. */
#include "tests/bench/gpu/bench_gpu.h"

#include "kernels/cuda/matmul_plan.h"

#include <math.h>
#include <stdio.h>

enum { ROUNDS_MOST = 5, NAME_BYTES = 224 };
/* A new round of a product's candidates begins only within so many seconds. */
static const double product_seconds_most = 1.0;

/* --- timing --- */

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

/* --- printing --- */

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

static void candidates_try(const bench_gpu_fixture *fixture, cublasLtHandle_t library,
                           const bench_gpu_matmul *of)
{
    timing it = {.library = library, .args = of->args};
    char name[NAME_BYTES];
    bench_check(tide_cuda_matmul_plan_create(library, &it.args, &it.plan), "plan");
    const int taken = it.plan->chosen;
    timing_run(fixture, &it);
    for (int i = 0; i < it.plan->candidate_count; i++) {
        (void)snprintf(name, sizeof name, "%s, candidate %d", of->name, i + 1);
        candidate_tell(&it, name, i, i == taken);
    }
    (void)snprintf(name, sizeof name, "%s: taken / best", of->name);
    choice_tell(&it, name, taken);
    tide_cuda_matmul_plan_destroy(it.plan);
}

void bench_gpu_candidates(const bench_gpu_fixture *fixture)
{
    const bench_gpu_matmul_list all = bench_gpu_matmuls_list(fixture);
    cublasLtHandle_t library;
    if (cublasLtCreate(&library) != CUBLAS_STATUS_SUCCESS)
        bench_die("cuBLASLt does not start");
    for (int i = 0; i < all.count; i++)
        candidates_try(fixture, library, &all.list[i]);
    if (cublasLtDestroy(library) != CUBLAS_STATUS_SUCCESS)
        bench_die("cuBLASLt does not end");
}
