/* Matrix products on the GPU, through cuBLASLt.
 *
 * Row-major and column-major. cuBLASLt's matrices stand column by column. A row-major [r, c] with leading dimension ld is, byte
 * for byte, the column-major [c, r] with the same ld: the transposed one. So C = op(A) op(B) is asked for as
 *
 *     C^T [n, m]  =  op(B)^T [n, k]  op(A)^T [k, m]        the library's A is our B, its B is our A
 *
 * and nothing is moved: an operand that we do not turn over is not turned over there either. The library's rows of D are our
 * columns, which is why its bias, one value a row of D, is ours, one a column of C.
 *
 * A plan holds what a shape needs: the operation, the three layouts and the algorithm, the first that the library's own
 * heuristic names. prepare() makes it, launches find it by a hash of the shape: they allocate nothing and choose nothing.
 * The heuristic depends on shape, types, GPU and library version, never on time, so a shape has the same bits at every launch.
 * Products are not tried out against each other for that reason.
 *
 * What the heuristic may choose from:
 * - Arithmetic is CUBLAS_COMPUTE_32F: sums in fp32, and fp32 inputs are multiplied as such (TF32 has a type of its own).
 * - Sums that are split over k are joined in fp32, in the workspace, by a pass of their own (COMPUTE_TYPE), or not split at
 *   all. INPLACE adds to C in the order in which blocks come; OUTPUT_TYPE rounds each part to bf16: both break a rule of
 *   kernels.h (the same bits, rounded once).
 * - The workspace is ours and at most 32 MiB, which is what NVIDIA advises for Hopper. A workspace of the library's own
 *   would be chosen by stream, and is what makes cuBLAS's results vary with what else runs.
 * - Addresses are as aligned as kernels.h promises: 256 bytes, or a row further on, so the largest power of two that divides
 *   256 and the row. The heuristic is told per matrix, and by made-up addresses for bias and gelu_in, as it reads
 *   their alignment from the pointers themselves.
 *
 * Epilogues. A bias is BIAS; GELU forward is GELU_AUX(_BIAS), which writes what went in, backward DGELU, which reads it (the
 * library's GELU is GPT-2's form, with tanh). Where it has no algorithm for a shape with GELU, or gelu_in's rows are not
 * multiples of 8 elements as it wants them, the plan runs the product plainly and GELU's own kernel behind it; the caller sees
 * the same contract. So it is in fp32 always: that type is for truth, and how exact the library's tanh is it does not
 * say. With a bias the library wants it in C's type: a narrow one for an fp32 C is first widened into
 * the workspace. Gradients of biases stay with bias_backward: the BGRAD epilogues would save a pass over dout, but they
 * overwrite where ours are added to, and come in C's type.
 *
 * The library loads a kernel's code when it is first launched; the module's reserve is for that too.
 *
 * One lock guards plans and the library's handle. It is held while a product is enqueued, since a plan's operation carries the
 * call's addresses: a few microseconds, and one stream multiplies anyway.
 */
#include "kernels/cuda/launchers.h"
#include "kernels/matmul_shape.h"

#include <cublasLt.h>
#include <cuda_runtime_api.h>
#include <pthread.h>
#include <stdlib.h>

enum { BUCKETS = 64, AUX_MULTIPLE = 8 };

#define WORKSPACE_LIMIT_BYTES (UINT64_C(32) << 20)

typedef struct matmul_plan {
    struct matmul_plan *next; /* of its bucket */
    tide_matmul_args shape;   /* pointers and workspace_bytes not used */
    bool gelu_apart;          /* the shape has GELU, the product does not: a launch of its own */
    size_t bias_bytes;        /* at the workspace's beginning: the bias in fp32; 0: it is used where it is */
    size_t library_bytes;     /* behind it */
    cublasLtMatmulDesc_t operation;
    cublasLtMatrixLayout_t a, b, c; /* ours: the library's B, A, and both C and D */
    cublasLtMatmulAlgo_t algorithm;
} matmul_plan;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static cublasLtHandle_t library;      /* guarded by lock; made by open */
static int gpu;                       /* as library: the one it was made on */
static matmul_plan *buckets[BUCKETS]; /* guarded by lock */

/* ---- messages ---- */

static const char *type_name(tide_dtype dtype)
{
    return dtype == TIDE_DTYPE_BF16 ? "bf16" : dtype == TIDE_DTYPE_FP16 ? "fp16" : "fp32";
}

static tide_status shape_fail(tide_status status, const tide_matmul_args *shape, const char *text)
{
    return tide_fail(status, "matmul of %zu x %zu x %zu (lda %zu, ldb %zu, ldc %zu, %s to %s): %s", shape->m,
                     shape->n, shape->k, shape->lda, shape->ldb, shape->ldc, type_name(shape->in_dtype),
                     type_name(shape->out_dtype), text);
}

static tide_status status_of(cublasStatus_t status)
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

static tide_status library_fail(const tide_matmul_args *shape, cublasStatus_t status, const char *doing)
{
    return tide_fail(
        status_of(status),
        "matmul of %zu x %zu x %zu (lda %zu, ldb %zu, ldc %zu, %s to %s): cuBLASLt failed %s it: %s",
        shape->m, shape->n, shape->k, shape->lda, shape->ldb, shape->ldc, type_name(shape->in_dtype),
        type_name(shape->out_dtype), doing, cublasLtGetStatusName(status));
}

/* ---- the library ---- */

/* The error is reported here: nobody's launch is to find it as the thread's last one. */
static tide_status runtime_fail(cudaError_t error, const char *what)
{
    const cudaError_t forgotten = cudaGetLastError();
    (void)forgotten;
    return tide_fail(TIDE_ERROR_DEVICE, "cuBLASLt: %s: %s", what, cudaGetErrorName(error));
}

static tide_status library_create(void)
{
    const cudaError_t error = cudaGetDevice(&gpu);
    if (error != cudaSuccess)
        return runtime_fail(error, "no GPU is current");
    const cublasStatus_t status = cublasLtCreate(&library);
    if (status == CUBLAS_STATUS_SUCCESS)
        return TIDE_OK;
    library = NULL;
    return tide_fail(status_of(status), "cuBLASLt can't start on cuda:%d: %s", gpu,
                     cublasLtGetStatusName(status));
}

tide_status tide_cuda_matmul_open(void)
{
    pthread_mutex_lock(&lock);
    const tide_status status = library ? TIDE_OK : library_create();
    pthread_mutex_unlock(&lock);
    return status;
}

/* On ways back: a failure there follows from one that was reported, and changes nothing any more. */
static void undo(cublasStatus_t status)
{
    (void)status;
}

static void layout_destroy(cublasLtMatrixLayout_t layout)
{
    if (layout)
        undo(cublasLtMatrixLayoutDestroy(layout));
}

static void plan_destroy_parts(matmul_plan *plan)
{
    layout_destroy(plan->c);
    layout_destroy(plan->b);
    layout_destroy(plan->a);
    if (plan->operation)
        undo(cublasLtMatmulDescDestroy(plan->operation));
    plan->a = plan->b = plan->c = NULL;
    plan->operation = NULL;
}

void tide_cuda_matmul_close(void)
{
    pthread_mutex_lock(&lock);
    for (size_t i = 0; i < BUCKETS; i++)
        while (buckets[i]) {
            matmul_plan *plan = buckets[i];
            buckets[i] = plan->next;
            plan_destroy_parts(plan);
            free(plan);
        }
    if (library)
        undo(cublasLtDestroy(library));
    library = NULL;
    pthread_mutex_unlock(&lock);
}

/* ---- what a plan is made of ---- */

static cudaDataType_t type_of(tide_dtype dtype)
{
    return dtype == TIDE_DTYPE_BF16 ? CUDA_R_16BF : dtype == TIDE_DTYPE_FP16 ? CUDA_R_16F : CUDA_R_32F;
}

/* The largest power of two, 256 at the most, that divides every row's address. */
static uint32_t row_alignment(size_t ld, tide_dtype dtype)
{
    const size_t bits = (ld * tide_dtype_bytes(dtype)) | TIDE_ALIGNMENT_BYTES;
    return (uint32_t)(bits & (~bits + 1));
}

static cublasLtEpilogue_t epilogue_of(const matmul_plan *plan)
{
    const bool has_bias = plan->shape.has_bias;
    if (plan->shape.gelu == TIDE_MATMUL_GELU_NONE || plan->gelu_apart)
        return has_bias ? CUBLASLT_EPILOGUE_BIAS : CUBLASLT_EPILOGUE_DEFAULT;
    if (plan->shape.gelu == TIDE_MATMUL_GELU_BACKWARD)
        return CUBLASLT_EPILOGUE_DGELU;
    return has_bias ? CUBLASLT_EPILOGUE_GELU_AUX_BIAS : CUBLASLT_EPILOGUE_GELU_AUX;
}

static bool has_aux(const matmul_plan *plan)
{
    return plan->shape.gelu != TIDE_MATMUL_GELU_NONE && !plan->gelu_apart;
}

static cublasStatus_t operation_point(const matmul_plan *plan, const void *bias, const void *gelu_in)
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

static cublasStatus_t operation_set(const matmul_plan *plan)
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

/* Never followed, but the heuristic reads their alignment. */
static cublasStatus_t operation_create(matmul_plan *plan)
{
    const uintptr_t bias = TIDE_ALIGNMENT_BYTES;
    const uintptr_t gelu_in = row_alignment(plan->shape.ldc, plan->shape.out_dtype);
    cublasStatus_t status = cublasLtMatmulDescCreate(&plan->operation, CUBLAS_COMPUTE_32F, CUDA_R_32F);
    if (status == CUBLAS_STATUS_SUCCESS)
        status = operation_set(plan);
    if (status == CUBLAS_STATUS_SUCCESS)
        status = operation_point(plan, (const void *)bias, (const void *)gelu_in);
    return status;
}

/* A stored row-major matrix of so many rows and columns, as the library sees it. */
static cublasStatus_t layout_create(cublasLtMatrixLayout_t *layout, size_t rows, size_t columns, size_t ld,
                                    tide_dtype dtype)
{
    return cublasLtMatrixLayoutCreate(layout, type_of(dtype), columns, rows, (int64_t)ld);
}

static cublasStatus_t layouts_create(matmul_plan *plan)
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

static cublasStatus_t preference_set(cublasLtMatmulPreference_t preference, const tide_matmul_args *shape)
{
    const uint64_t workspace_bytes = WORKSPACE_LIMIT_BYTES;
    const uint32_t reductions = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
    const uint32_t a = row_alignment(shape->ldb, shape->in_dtype),
                   b = row_alignment(shape->lda, shape->in_dtype);
    const uint32_t c = row_alignment(shape->ldc, shape->out_dtype);
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

/* NOT_SUPPORTED where the heuristic knows no algorithm, however it says so. */
static cublasStatus_t algorithm_choose(matmul_plan *plan, cublasLtMatmulPreference_t preference)
{
    cublasLtMatmulHeuristicResult_t best = {0};
    int found = 0;
    cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(library, plan->operation, plan->b, plan->a,
                                                           plan->c, plan->c, preference, 1, &best, &found);
    if (status == CUBLAS_STATUS_SUCCESS)
        status = found > 0 ? best.state : CUBLAS_STATUS_NOT_SUPPORTED;
    if (status != CUBLAS_STATUS_SUCCESS)
        return status;
    assert(best.workspaceSize <= WORKSPACE_LIMIT_BYTES);
    plan->algorithm = best.algo;
    plan->library_bytes = best.workspaceSize;
    return CUBLAS_STATUS_SUCCESS;
}

/* The library's part of a plan; nothing of it stays on failure. */
static cublasStatus_t plan_build(matmul_plan *plan)
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
        status = algorithm_choose(plan, preference);
    if (preference)
        undo(cublasLtMatmulPreferenceDestroy(preference));
    if (status != CUBLAS_STATUS_SUCCESS)
        plan_destroy_parts(plan);
    return status;
}

/* ---- plans ---- */

static matmul_plan **bucket_of(const tide_matmul_args *shape)
{
    const uint64_t flags = (uint64_t)shape->in_dtype | (uint64_t)shape->out_dtype << 2 |
                           (uint64_t)shape->transpose_a << 4 | (uint64_t)shape->transpose_b << 5 |
                           (uint64_t)shape->has_bias << 6 | (uint64_t)shape->accumulate << 7 |
                           (uint64_t)shape->gelu << 8;
    const uint64_t fields[] = {shape->m, shape->n, shape->k, shape->lda, shape->ldb, shape->ldc, flags};
    uint64_t hash = 0;
    for (size_t i = 0; i < sizeof fields / sizeof fields[0]; i++) {
        hash = (hash ^ fields[i]) * UINT64_C(0x9e3779b97f4a7c15);
        hash ^= hash >> 32;
    }
    return &buckets[hash % BUCKETS];
}

static matmul_plan *plan_find(const tide_matmul_args *shape)
{
    matmul_plan *plan = *bucket_of(shape);
    while (plan && !tide_matmul_shapes_equal(&plan->shape, shape))
        plan = plan->next;
    return plan;
}

/* The library declines a product by one of these; what else it says is a failure. */
static bool declined(cublasStatus_t status)
{
    return status == CUBLAS_STATUS_NOT_SUPPORTED || status == CUBLAS_STATUS_INVALID_VALUE;
}

static tide_status plan_create(const tide_matmul_args *shape, matmul_plan **result)
{
    const bool wants_gelu = shape->gelu != TIDE_MATMUL_GELU_NONE;
    const bool bias_widened = shape->has_bias && shape->in_dtype != shape->out_dtype;
    matmul_plan *plan = calloc(1, sizeof *plan);
    if (!plan)
        return shape_fail(TIDE_ERROR_NO_MEMORY, shape, "no memory for its plan");
    plan->shape = *shape;
    plan->bias_bytes = bias_widened ? tide_align_up(shape->n * sizeof(float)) : 0;
    plan->gelu_apart = wants_gelu && (shape->out_dtype == TIDE_DTYPE_FP32 || shape->ldc % AUX_MULTIPLE != 0);
    cublasStatus_t status = plan_build(plan);
    if (declined(status) && has_aux(plan)) {
        plan->gelu_apart = true;
        status = plan_build(plan);
    }
    if (status != CUBLAS_STATUS_SUCCESS) {
        free(plan);
        return library_fail(shape, status, "preparing");
    }
    *result = plan;
    return TIDE_OK;
}

/* The thread may not have met CUDA yet. */
static tide_status use_gpu(const tide_matmul_args *shape)
{
    if (!library)
        return shape_fail(TIDE_ERROR_STATE, shape, "the GPU was not made ready");
    const cudaError_t error = cudaSetDevice(gpu);
    return error == cudaSuccess ? TIDE_OK : runtime_fail(error, "making the GPU current");
}

static tide_status plan_add(const tide_matmul_args *shape, matmul_plan **result)
{
    tide_status status = use_gpu(shape);
    if (status == TIDE_OK)
        status = plan_create(shape, result);
    if (status == TIDE_OK) {
        matmul_plan **bucket = bucket_of(shape);
        (*result)->next = *bucket;
        *bucket = *result;
    }
    return status;
}

tide_status tide_cuda_matmul_prepare(const tide_matmul_args *shape, size_t *workspace_bytes)
{
    const char *fault = tide_matmul_shape_fault(shape);
    if (!fault)
        fault = tide_matmul_gelu_fault(shape);
    if (fault)
        return shape_fail(TIDE_ERROR_ARGUMENT, shape, fault);
    tide_status status = TIDE_OK;
    pthread_mutex_lock(&lock);
    matmul_plan *plan = plan_find(shape);
    if (!plan)
        status = plan_add(shape, &plan);
    if (status == TIDE_OK)
        *workspace_bytes = plan->bias_bytes + plan->library_bytes;
    pthread_mutex_unlock(&lock);
    return status;
}

/* ---- running ---- */

static bool is_aligned(const void *address, uint32_t alignment)
{
    return (uintptr_t)address % alignment == 0;
}

static bool addresses_are_valid(const tide_matmul_args *args)
{
    const uint32_t a = row_alignment(args->lda, args->in_dtype), b = row_alignment(args->ldb, args->in_dtype);
    const uint32_t c = row_alignment(args->ldc, args->out_dtype);
    return args->a && args->b && args->c && is_aligned(args->a, a) && is_aligned(args->b, b) &&
           is_aligned(args->c, c) && is_aligned(args->gelu_in, c) &&
           is_aligned(args->bias, TIDE_ALIGNMENT_BYTES) &&
           is_aligned(args->workspace, TIDE_ALIGNMENT_BYTES) && args->has_bias == (args->bias != NULL) &&
           (args->gelu != TIDE_MATMUL_GELU_NONE) == (args->gelu_in != NULL);
}

/* 1. The bias in C's type, if the library needs it. */
static tide_status bias_widen(const tide_matmul_args *args, void *stream)
{
    const tide_cast_args cast = {.in = args->bias,
                                 .out = args->workspace,
                                 .elements = args->n,
                                 .in_dtype = args->in_dtype,
                                 .out_dtype = TIDE_DTYPE_FP32};
    return tide_cuda_cast(stream, &cast);
}

/* 2. The product, into C or, where GELU comes apart, into what GELU reads. */
static tide_status product_enqueue(const matmul_plan *plan, const tide_matmul_args *args, void *stream)
{
    const float alpha = 1.0f, beta = args->accumulate ? 1.0f : 0.0f;
    const bool before_gelu = plan->gelu_apart && args->gelu == TIDE_MATMUL_GELU_FORWARD;
    void *out = before_gelu ? args->gelu_in : args->c;
    void *scratch = plan->library_bytes ? (char *)args->workspace + plan->bias_bytes : NULL;
    cublasStatus_t status =
        operation_point(plan, plan->bias_bytes ? args->workspace : args->bias, args->gelu_in);
    if (status == CUBLAS_STATUS_SUCCESS)
        status = cublasLtMatmul(library, plan->operation, &alpha, args->b, plan->b, args->a, plan->a, &beta,
                                out, plan->c, out, plan->c, &plan->algorithm, scratch, plan->library_bytes,
                                (cudaStream_t)stream);
    return status == CUBLAS_STATUS_SUCCESS ? TIDE_OK : library_fail(args, status, "running");
}

/* 3. GELU, where the product did not take it along. */
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

static tide_status plan_run(const matmul_plan *plan, const tide_matmul_args *args, void *stream)
{
    tide_status status = plan->bias_bytes ? bias_widen(args, stream) : TIDE_OK;
    if (status == TIDE_OK)
        status = product_enqueue(plan, args, stream);
    if (status == TIDE_OK && plan->gelu_apart)
        status = gelu_enqueue(args, stream);
    return status;
}

tide_status tide_cuda_matmul(void *stream, const void *arguments)
{
    const tide_matmul_args *args = arguments;
    tide_status status;
    assert(addresses_are_valid(args));
    pthread_mutex_lock(&lock);
    const matmul_plan *plan = plan_find(args);
    if (!plan)
        status = shape_fail(TIDE_ERROR_STATE, args, "it was not prepared");
    else if (args->workspace_bytes < plan->bias_bytes + plan->library_bytes)
        status = shape_fail(TIDE_ERROR_ARGUMENT, args, "its workspace is smaller than it needs");
    else
        status = plan_run(plan, args, stream);
    pthread_mutex_unlock(&lock);
    return status;
}
