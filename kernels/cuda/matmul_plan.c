/* Describes a shape to cuBLASLt, limits the choice of its heuristic, and runs the chosen algorithm:
 *
 * - Arithmetic is CUBLAS_COMPUTE_32F: sums in fp32, and fp32 inputs are multiplied as such (TF32 has a type
 *   of its own).
 * - A sum may be split over k only if a separate pass adds the parts in fp32, in the workspace
 *   (COMPUTE_TYPE). INPLACE adds to C in the order in which blocks finish, and OUTPUT_TYPE rounds each part
 *   to bf16: both break a rule of kernels.h (the same bits, rounded once). A split sum with a bias in bf16 or
 *   fp16 also breaks it, since the pass that adds the parts rounds before it adds the bias (seen on an H200,
 *   cuBLASLt 13.1.0); such a product is not split. With GELU the library has algorithms for odd shapes that
 *   do the same; GELU is then a launch of its own.
 * - The caller passes the workspace, of at most 32 MiB, NVIDIA's advice for Hopper. The library would choose
 *   a workspace of its own by stream, which makes cuBLAS's results depend on the other work that runs.
 * - Addresses have the alignment that kernels.h promises: 256 bytes, or some rows after such an address, so
 *   the largest power of two that divides 256 and the row's bytes. The code tells the heuristic the alignment
 *   of each matrix. For bias and gelu_in it sets made-up addresses, since the heuristic reads their alignment
 *   from the pointers.
 *
 * Epilogues. A bias uses BIAS; GELU forward uses GELU_AUX(_BIAS), which also writes its input, backward
 * DGELU, which reads this input (the library's GELU is GPT-2's form, with tanh). If the library has no
 * algorithm for a shape with GELU, or gelu_in's rows are not multiples of 8 elements as it requires, the plan
 * runs the product without GELU and then GELU's own kernel; the contract for the caller stays the same. In
 * fp32 the plan always does so, since fp32 serves as the reference and the library does not document how
 * exact its tanh is. The library needs a bias in C's type: the plan first converts a 16-bit bias for an fp32
 * C to fp32 in the workspace. bias_backward computes gradients of biases: the BGRAD epilogues would save a
 * pass over dout, but they overwrite the gradient instead of adding to it, and give C's type.
 */
#include "kernels/cuda/matmul_plan.h"

#include "kernels/cuda/launchers.h"
#include "kernels/cuda/log.h"

#include <stdlib.h>

enum { AUX_MULTIPLE = 8, ROUNDING_ALGORITHM = 56 };

/* ---- messages ---- */

static const char *type_name(tide_dtype dtype)
{
    return dtype == TIDE_DTYPE_BF16 ? "bf16" : dtype == TIDE_DTYPE_FP16 ? "fp16" : "fp32";
}

tide_status tide_cuda_matmul_fail(tide_status status, const tide_matmul_args *shape, const char *text)
{
    return tide_fail(status, "matmul of %zu x %zu x %zu (lda %zu, ldb %zu, ldc %zu, %s to %s): %s", shape->m,
                     shape->n, shape->k, shape->lda, shape->ldb, shape->ldc, type_name(shape->in_dtype),
                     type_name(shape->out_dtype), text);
}

tide_status tide_cuda_matmul_status(cublasStatus_t status)
{
    switch (status) {
    case CUBLAS_STATUS_SUCCESS:
        return TIDE_OK;
    case CUBLAS_STATUS_ALLOC_FAILED:
        return TIDE_ERROR_NO_MEMORY;
    case CUBLAS_STATUS_NOT_SUPPORTED:
    case CUBLAS_STATUS_ARCH_MISMATCH:
        return TIDE_ERROR_UNSUPPORTED;
    default:
        return TIDE_ERROR_DEVICE;
    }
}

tide_status tide_cuda_matmul_library_fail(const tide_matmul_args *shape, cublasStatus_t status,
                                          const char *doing)
{
    return tide_fail(
        tide_cuda_matmul_status(status),
        "matmul of %zu x %zu x %zu (lda %zu, ldb %zu, ldc %zu, %s to %s): cuBLASLt failed %s it: %s",
        shape->m, shape->n, shape->k, shape->lda, shape->ldb, shape->ldc, type_name(shape->in_dtype),
        type_name(shape->out_dtype), doing, cublasLtGetStatusName(status));
}

/* ---- the parts of a plan ---- */

static cudaDataType_t type_of(tide_dtype dtype)
{
    return dtype == TIDE_DTYPE_BF16 ? CUDA_R_16BF : dtype == TIDE_DTYPE_FP16 ? CUDA_R_16F : CUDA_R_32F;
}

uint32_t tide_cuda_matmul_row_alignment(size_t ld, tide_dtype dtype)
{
    const size_t bits = (ld * tide_dtype_bytes(dtype)) | TIDE_ALIGNMENT_BYTES;
    return (uint32_t)(bits & (~bits + 1));
}

static cublasLtEpilogue_t epilogue_of(const tide_cuda_matmul_plan *plan)
{
    const bool has_bias = plan->shape.has_bias;
    if (plan->shape.gelu == TIDE_MATMUL_GELU_NONE || plan->gelu_apart)
        return has_bias ? CUBLASLT_EPILOGUE_BIAS : CUBLASLT_EPILOGUE_DEFAULT;
    if (plan->shape.gelu == TIDE_MATMUL_GELU_BACKWARD)
        return CUBLASLT_EPILOGUE_DGELU;
    return has_bias ? CUBLASLT_EPILOGUE_GELU_AUX_BIAS : CUBLASLT_EPILOGUE_GELU_AUX;
}

static bool has_aux(const tide_cuda_matmul_plan *plan)
{
    return plan->shape.gelu != TIDE_MATMUL_GELU_NONE && !plan->gelu_apart;
}

/* Set the addresses of a launch's bias and gelu_in in the operation, if the product uses them. */
static cublasStatus_t operation_point(const tide_cuda_matmul_plan *plan, const void *bias,
                                      const void *gelu_in)
{
    cublasStatus_t status = CUBLAS_STATUS_SUCCESS;
    if (plan->shape.has_bias)
        status = cublasLtMatmulDescSetAttribute(plan->operation, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &bias,
                                                sizeof bias);
    if (status == CUBLAS_STATUS_SUCCESS && has_aux(plan))
        status = cublasLtMatmulDescSetAttribute(plan->operation, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER,
                                                &gelu_in, sizeof gelu_in);
    return status;
}

static cublasStatus_t operation_set(const tide_cuda_matmul_plan *plan)
{
    const tide_matmul_args *shape = &plan->shape;
    const int32_t turn_a = shape->transpose_b ? CUBLAS_OP_T : CUBLAS_OP_N;
    const int32_t turn_b = shape->transpose_a ? CUBLAS_OP_T : CUBLAS_OP_N;
    const uint32_t epilogue = (uint32_t)epilogue_of(plan);
    const int64_t aux_ld = (int64_t)shape->ldc;
    const struct {
        cublasLtMatmulDescAttributes_t name;
        const void *value;
        size_t bytes;
    } attributes[] = {
        {CUBLASLT_MATMUL_DESC_TRANSA, &turn_a, sizeof turn_a},
        {CUBLASLT_MATMUL_DESC_TRANSB, &turn_b, sizeof turn_b},
        {CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue, sizeof epilogue},
        {CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, &aux_ld, sizeof aux_ld}, /* last: left out without aux */
    };
    const size_t count = sizeof attributes / sizeof attributes[0] - !has_aux(plan);
    cublasStatus_t status = CUBLAS_STATUS_SUCCESS;
    for (size_t i = 0; i < count && status == CUBLAS_STATUS_SUCCESS; i++)
        status = cublasLtMatmulDescSetAttribute(plan->operation, attributes[i].name, attributes[i].value,
                                                attributes[i].bytes);
    return status;
}

/* Creates the operation with made-up addresses of bias and gelu_in: the heuristic reads their alignment,
 * and nothing accesses them. */
static cublasStatus_t operation_create(tide_cuda_matmul_plan *plan)
{
    const uintptr_t bias = TIDE_ALIGNMENT_BYTES;
    const uintptr_t gelu_in = tide_cuda_matmul_row_alignment(plan->shape.ldc, plan->shape.out_dtype);
    cublasStatus_t status = cublasLtMatmulDescCreate(&plan->operation, CUBLAS_COMPUTE_32F, CUDA_R_32F);
    if (status == CUBLAS_STATUS_SUCCESS)
        status = operation_set(plan);
    if (status == CUBLAS_STATUS_SUCCESS)
        status = operation_point(plan, (const void *)bias, (const void *)gelu_in);
    return status;
}

/* Describe to the library a stored row-major matrix of `rows` and `columns`. */
static cublasStatus_t layout_create(cublasLtMatrixLayout_t *layout, size_t rows, size_t columns, size_t ld,
                                    tide_dtype dtype)
{
    return cublasLtMatrixLayoutCreate(layout, type_of(dtype), columns, rows, (int64_t)ld);
}

static cublasStatus_t layouts_create(tide_cuda_matmul_plan *plan)
{
    const tide_matmul_args *shape = &plan->shape;
    const bool turn_a = shape->transpose_a, turn_b = shape->transpose_b;
    cublasStatus_t status = layout_create(&plan->a, turn_a ? shape->k : shape->m,
                                          turn_a ? shape->m : shape->k, shape->lda, shape->in_dtype);
    if (status == CUBLAS_STATUS_SUCCESS)
        status = layout_create(&plan->b, turn_b ? shape->n : shape->k, turn_b ? shape->k : shape->n,
                               shape->ldb, shape->in_dtype);
    if (status == CUBLAS_STATUS_SUCCESS)
        status = layout_create(&plan->c, shape->m, shape->n, shape->ldc, shape->out_dtype);
    return status;
}

/* May the sum be split? If it is, the library rounds the sum before it adds a bias or applies GELU. */
static bool may_split(const tide_matmul_args *shape)
{
    return !shape->has_bias || shape->out_dtype == TIDE_DTYPE_FP32;
}

static cublasStatus_t preference_set(cublasLtMatmulPreference_t preference, const tide_matmul_args *shape)
{
    const uint64_t workspace_bytes = TIDE_GPU_MATMUL_WORKSPACE_LIMIT_BYTES;
    const uint32_t reductions =
        may_split(shape) ? CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE : CUBLASLT_REDUCTION_SCHEME_NONE;
    const uint32_t a = tide_cuda_matmul_row_alignment(shape->ldb, shape->in_dtype),
                   b = tide_cuda_matmul_row_alignment(shape->lda, shape->in_dtype);
    const uint32_t c = tide_cuda_matmul_row_alignment(shape->ldc, shape->out_dtype);
    const struct {
        cublasLtMatmulPreferenceAttributes_t name;
        const void *value;
        size_t bytes;
    } attributes[] = {
        {CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace_bytes, sizeof workspace_bytes},
        {CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &reductions, sizeof reductions},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, &a, sizeof a},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, &b, sizeof b},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, &c, sizeof c},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, &c, sizeof c},
    };
    cublasStatus_t status = CUBLAS_STATUS_SUCCESS;
    for (size_t i = 0; i < sizeof attributes / sizeof attributes[0] && status == CUBLAS_STATUS_SUCCESS; i++)
        status = cublasLtMatmulPreferenceSetAttribute(preference, attributes[i].name, attributes[i].value,
                                                      attributes[i].bytes);
    return status;
}

/* ---- the choice ---- */

/* Would the candidate round the sum before the bias or GELU? Split sums do, and with GELU two kinds of
 * algorithm that the library has for shapes that no other can handle: those without a tile, which make the
 * product, round it and apply GELU in a second pass, and ROUNDING_ALGORITHM (seen in fp16; its products
 * with a bias alone are right). */
static bool rounds_before_bias(const tide_cuda_matmul_plan *plan, const tide_cuda_matmul_candidate *candidate)
{
    const bool is_split =
        candidate->splits > 1 || (candidate->splits == TIDE_CUDA_MATMUL_UNKNOWN &&
                                  candidate->reduction == CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE);
    const bool in_passes = has_aux(plan) && (candidate->tile == CUBLASLT_MATMUL_TILE_UNDEFINED ||
                                             candidate->algorithm == ROUNDING_ALGORITHM);
    return !may_split(&plan->shape) && (is_split || in_passes);
}

/* Ask the heuristic for candidates; they stay in its order. */
static cublasStatus_t candidates_ask(cublasLtHandle_t library, tide_cuda_matmul_plan *plan,
                                     cublasLtMatmulPreference_t preference)
{
    cublasLtMatmulHeuristicResult_t results[TIDE_CUDA_MATMUL_CANDIDATES] = {0};
    int found = 0;
    cublasStatus_t status =
        cublasLtMatmulAlgoGetHeuristic(library, plan->operation, plan->b, plan->a, plan->c, plan->c,
                                       preference, TIDE_CUDA_MATMUL_CANDIDATES, results, &found);
    assert(found >= 0 && found <= TIDE_CUDA_MATMUL_CANDIDATES);
    plan->candidate_count = status == CUBLAS_STATUS_SUCCESS ? found : 0;
    for (int i = 0; i < plan->candidate_count && status == CUBLAS_STATUS_SUCCESS; i++) {
        plan->algorithms[i] = results[i].algo;
        status = tide_cuda_matmul_candidate_read(&results[i], &plan->candidates[i]);
        if (rounds_before_bias(plan, &plan->candidates[i]))
            plan->candidates[i].state = CUBLAS_STATUS_NOT_SUPPORTED; /* although the library offers it */
    }
    return status;
}

/* Take the first candidate that is allowed. If there is none, returns the first candidate's error, or
 * NOT_SUPPORTED. */
static cublasStatus_t algorithm_choose(cublasLtHandle_t library, tide_cuda_matmul_plan *plan,
                                       cublasLtMatmulPreference_t preference)
{
    const cublasStatus_t status = candidates_ask(library, plan, preference);
    if (status != CUBLAS_STATUS_SUCCESS)
        return status;
    for (int i = 0; i < plan->candidate_count; i++)
        if (tide_cuda_matmul_candidate_is_allowed(&plan->candidates[i])) {
            tide_cuda_matmul_plan_take(plan, i);
            return CUBLAS_STATUS_SUCCESS;
        }
    const cublasStatus_t first =
        plan->candidate_count > 0 ? plan->candidates[0].state : CUBLAS_STATUS_SUCCESS;
    return first == CUBLAS_STATUS_SUCCESS ? CUBLAS_STATUS_NOT_SUPPORTED : first;
}

void tide_cuda_matmul_plan_take(tide_cuda_matmul_plan *plan, int candidate)
{
    assert(candidate >= 0 && candidate < plan->candidate_count);
    assert(tide_cuda_matmul_candidate_is_allowed(&plan->candidates[candidate]));
    plan->chosen = candidate;
    plan->library_bytes = plan->candidates[candidate].workspace_bytes;
}

static const char *gelu_name(const tide_cuda_matmul_plan *plan)
{
    const bool forward = plan->shape.gelu == TIDE_MATMUL_GELU_FORWARD;
    if (plan->shape.gelu == TIDE_MATMUL_GELU_NONE)
        return "";
    return plan->gelu_apart ? ", GELU apart" : forward ? ", GELU" : ", GELU backward";
}

static const char *reduction_name(int32_t reduction)
{
    return reduction == CUBLASLT_REDUCTION_SCHEME_NONE           ? "none"
           : reduction == CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE ? "fp32"
                                                                 : "unknown";
}

static void choice_log(const tide_cuda_matmul_plan *plan)
{
    const tide_matmul_args *shape = &plan->shape;
    const tide_cuda_matmul_candidate *taken = &plan->candidates[plan->chosen];
    const char *tile = tide_cuda_matmul_tile_name(taken->tile);
    tide_cuda_log(TIDE_CUDA_LOG_MATMUL,
                  "%zu x %zu x %zu, %s to %s%s%s%s%s%s: candidate %d of %d: algorithm %d, tile %d%s%s, "
                  "stages %d, splits %d, reduction %s, waves %.2f, workspace %zu",
                  shape->m, shape->n, shape->k, type_name(shape->in_dtype), type_name(shape->out_dtype),
                  shape->transpose_a ? ", A^T" : "", shape->transpose_b ? ", B^T" : "",
                  shape->has_bias ? ", bias" : "", shape->accumulate ? ", added to C" : "", gelu_name(plan),
                  plan->chosen + 1, plan->candidate_count, taken->algorithm, taken->tile, tile[0] ? " " : "",
                  tile, taken->stages, taken->splits, reduction_name(taken->reduction), (double)taken->waves,
                  taken->workspace_bytes);
}

/* ---- plans ---- */

/* Ignores the status of a clean-up call: nothing can be done about a failure there. */
static void undo(cublasStatus_t status)
{
    (void)status;
}

static void layout_destroy(cublasLtMatrixLayout_t layout)
{
    if (layout)
        undo(cublasLtMatrixLayoutDestroy(layout));
}

static void plan_destroy_parts(tide_cuda_matmul_plan *plan)
{
    layout_destroy(plan->c);
    layout_destroy(plan->b);
    layout_destroy(plan->a);
    if (plan->operation)
        undo(cublasLtMatmulDescDestroy(plan->operation));
    plan->a = plan->b = plan->c = NULL;
    plan->operation = NULL;
}

/* Make the library's objects of a plan. On failure no object is left. */
static cublasStatus_t plan_build(cublasLtHandle_t library, tide_cuda_matmul_plan *plan)
{
    cublasLtMatmulPreference_t preference = NULL;
    cublasStatus_t status = operation_create(plan);
    if (status == CUBLAS_STATUS_SUCCESS)
        status = layouts_create(plan);
    if (status == CUBLAS_STATUS_SUCCESS)
        status = cublasLtMatmulPreferenceCreate(&preference);
    if (status == CUBLAS_STATUS_SUCCESS)
        status = preference_set(preference, &plan->shape);
    if (status == CUBLAS_STATUS_SUCCESS)
        status = algorithm_choose(library, plan, preference);
    if (preference)
        undo(cublasLtMatmulPreferenceDestroy(preference));
    if (status != CUBLAS_STATUS_SUCCESS)
        plan_destroy_parts(plan);
    return status;
}

tide_status tide_cuda_matmul_plan_create(cublasLtHandle_t library, const tide_matmul_args *shape,
                                         tide_cuda_matmul_plan **result)
{
    const bool wants_gelu = shape->gelu != TIDE_MATMUL_GELU_NONE;
    tide_cuda_matmul_plan *plan = calloc(1, sizeof *plan);
    if (!plan)
        return tide_cuda_matmul_fail(TIDE_ERROR_NO_MEMORY, shape, "no memory for its plan");
    plan->shape = *shape;
    plan->bias_bytes = tide_gpu_matmul_bias_bytes(shape);
    plan->gelu_apart = wants_gelu && (shape->out_dtype == TIDE_DTYPE_FP32 || shape->ldc % AUX_MULTIPLE != 0);
    cublasStatus_t status = plan_build(library, plan);
    if (tide_cuda_matmul_declined(status) && has_aux(plan)) {
        plan->gelu_apart = true;
        status = plan_build(library, plan);
    }
    if (status != CUBLAS_STATUS_SUCCESS) {
        free(plan);
        return tide_cuda_matmul_library_fail(shape, status, "preparing");
    }
    choice_log(plan);
    *result = plan;
    return TIDE_OK;
}

void tide_cuda_matmul_plan_destroy(tide_cuda_matmul_plan *plan)
{
    plan_destroy_parts(plan);
    free(plan);
}

/* ---- running ---- */

/* 1. Convert the bias to C's type, if the library needs it. */
static tide_status bias_widen(const tide_matmul_args *args, void *stream)
{
    const tide_cast_args cast = {.in = args->bias,
                                 .out = args->workspace,
                                 .elements = args->n,
                                 .in_dtype = args->in_dtype,
                                 .out_dtype = TIDE_DTYPE_FP32};
    return tide_cuda_cast(stream, &cast);
}

/* 2. Enqueue the product; the result goes to C or, if GELU is a launch of its own, to GELU's input. */
static tide_status product_enqueue(cublasLtHandle_t library, const tide_cuda_matmul_plan *plan,
                                   const tide_matmul_args *args, void *stream)
{
    const float alpha = 1.0f, beta = args->accumulate ? 1.0f : 0.0f;
    const bool before_gelu = plan->gelu_apart && args->gelu == TIDE_MATMUL_GELU_FORWARD;
    void *out = before_gelu ? args->gelu_in : args->c;
    void *scratch = plan->library_bytes ? (char *)args->workspace + plan->bias_bytes : NULL;
    cublasStatus_t status =
        operation_point(plan, plan->bias_bytes ? args->workspace : args->bias, args->gelu_in);
    if (status == CUBLAS_STATUS_SUCCESS)
        status = cublasLtMatmul(library, plan->operation, &alpha, args->b, plan->b, args->a, plan->a, &beta,
                                out, plan->c, out, plan->c, &plan->algorithms[plan->chosen], scratch,
                                plan->library_bytes, (cudaStream_t)stream);
    return status == CUBLAS_STATUS_SUCCESS ? TIDE_OK : tide_cuda_matmul_library_fail(args, status, "running");
}

/* 3. Enqueue GELU, if it is not fused with the product. */
static tide_status gelu_enqueue(const tide_matmul_args *args, void *stream)
{
    const size_t elements = args->m * args->n;
    const tide_gelu_args forward = {
        .in = args->gelu_in, .out = args->c, .elements = elements, .dtype = args->out_dtype};
    const tide_gelu_backward_args backward = {
        .in = args->gelu_in, .dout = args->c, .din = args->c, .elements = elements, .dtype = args->out_dtype};
    return args->gelu == TIDE_MATMUL_GELU_FORWARD ? tide_cuda_gelu(stream, &forward)
                                                  : tide_cuda_gelu_backward(stream, &backward);
}

tide_status tide_cuda_matmul_plan_run(cublasLtHandle_t library, const tide_cuda_matmul_plan *plan,
                                      const tide_matmul_args *args, void *stream)
{
    tide_status status = plan->bias_bytes ? bias_widen(args, stream) : TIDE_OK;
    if (status == TIDE_OK)
        status = product_enqueue(library, plan, args, stream);
    if (status == TIDE_OK && plan->gelu_apart)
        status = gelu_enqueue(args, stream);
    return status;
}
