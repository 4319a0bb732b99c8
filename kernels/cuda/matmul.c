/* Matrix products on the GPU, through cuBLASLt.
 *
 * Row-major and column-major. cuBLASLt's matrices are column-major. A row-major [r, c] with leading dimension
 * ld is, byte for byte, the transposed matrix, a column-major [c, r] with the same ld. For C = op(A) op(B)
 * the code therefore asks cuBLASLt for
 *
 *     C^T [n, m]  =  op(B)^T [n, k]  op(A)^T [k, m]        the library's A is our B, its B is our A
 *
 * No data is moved: cuBLASLt transposes an operand exactly if we do. The library's rows of D are our columns,
 * so its bias, one value per row of D, is our bias, one per column of C.
 *
 * A plan holds all that the products of a shape need (matmul_plan.h). prepare() makes the plan, and launches
 * find it by a hash of the shape: they allocate nothing and choose nothing.
 *
 * The library loads a kernel's code when the kernel is first launched, into memory of the module's reserve
 * (module.c).
 *
 * One lock guards plans and the library's handle. A launch holds it while it enqueues the product, since the
 * plan's operation contains the call's addresses: this takes a few microseconds, and only one stream
 * multiplies anyway.
 */
#include "base/hash.h"
#include "kernels/cuda/launchers.h"
#include "kernels/cuda/matmul_plan.h"
#include "kernels/matmul_shape.h"

#include <cublasLt.h>
#include <cuda_runtime_api.h>
#include <pthread.h>

enum { BUCKETS = 64 };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static cublasLtHandle_t library;                /* guarded by lock; made by open */
static int gpu;                                 /* guarded by lock; the GPU on which `library` was made */
static tide_cuda_matmul_plan *buckets[BUCKETS]; /* guarded by lock */

/* ---- the library ---- */

/* Report a CUDA error, and clear it so that a later launch does not find it as the thread's last error. */
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
    return tide_fail(tide_cuda_matmul_status(status), "cuBLASLt can't start on cuda:%d: %s", gpu,
                     cublasLtGetStatusName(status));
}

tide_status tide_cuda_matmul_open(void)
{
    pthread_mutex_lock(&lock);
    const tide_status status = library ? TIDE_OK : library_create();
    pthread_mutex_unlock(&lock);
    return status;
}

/* A failure is ignored: nothing can be done about it any more. */
static void library_destroy(void)
{
    const cublasStatus_t status = library ? cublasLtDestroy(library) : CUBLAS_STATUS_SUCCESS;
    (void)status;
    library = NULL;
}

void tide_cuda_matmul_close(void)
{
    pthread_mutex_lock(&lock);
    for (size_t i = 0; i < BUCKETS; i++)
        while (buckets[i]) {
            tide_cuda_matmul_plan *plan = buckets[i];
            buckets[i] = plan->next;
            tide_cuda_matmul_plan_destroy(plan);
        }
    library_destroy();
    pthread_mutex_unlock(&lock);
}

/* ---- plans ---- */

static tide_cuda_matmul_plan **bucket_of(const tide_matmul_args *shape)
{
    const uint64_t flags = (uint64_t)shape->in_dtype | (uint64_t)shape->out_dtype << 2 |
                           (uint64_t)shape->transpose_a << 4 | (uint64_t)shape->transpose_b << 5 |
                           (uint64_t)shape->has_bias << 6 | (uint64_t)shape->accumulate << 7 |
                           (uint64_t)shape->gelu << 8;
    const uint64_t fields[] = {shape->m, shape->n, shape->k, shape->lda, shape->ldb, shape->ldc, flags};
    return &buckets[tide_hash_words(0, fields, sizeof fields) % BUCKETS];
}

static tide_cuda_matmul_plan *plan_find(const tide_matmul_args *shape)
{
    tide_cuda_matmul_plan *plan = *bucket_of(shape);
    while (plan && !tide_matmul_shapes_equal(&plan->shape, shape))
        plan = plan->next;
    return plan;
}

/* Make the GPU current: this may be the thread's first CUDA call. */
static tide_status use_gpu(const tide_matmul_args *shape)
{
    if (!library)
        return tide_cuda_matmul_fail(TIDE_ERROR_STATE, shape, "the GPU was not made ready");
    const cudaError_t error = cudaSetDevice(gpu);
    return error == cudaSuccess ? TIDE_OK : runtime_fail(error, "making the GPU current");
}

static tide_status plan_add(const tide_matmul_args *shape, tide_cuda_matmul_plan **result)
{
    tide_status status = use_gpu(shape);
    if (status == TIDE_OK)
        status = tide_cuda_matmul_plan_create(library, shape, result);
    if (status == TIDE_OK) {
        tide_cuda_matmul_plan **bucket = bucket_of(shape);
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
        return tide_cuda_matmul_fail(TIDE_ERROR_ARGUMENT, shape, fault);
    tide_status status = TIDE_OK;
    pthread_mutex_lock(&lock);
    tide_cuda_matmul_plan *plan = plan_find(shape);
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
    const uint32_t a = tide_cuda_matmul_row_alignment(args->lda, args->in_dtype),
                   b = tide_cuda_matmul_row_alignment(args->ldb, args->in_dtype);
    const uint32_t c = tide_cuda_matmul_row_alignment(args->ldc, args->out_dtype);
    return args->a && args->b && args->c && is_aligned(args->a, a) && is_aligned(args->b, b) &&
           is_aligned(args->c, c) && is_aligned(args->gelu_in, c) &&
           is_aligned(args->bias, TIDE_ALIGNMENT_BYTES) &&
           is_aligned(args->workspace, TIDE_ALIGNMENT_BYTES) && args->has_bias == (args->bias != NULL) &&
           (args->gelu != TIDE_MATMUL_GELU_NONE) == (args->gelu_in != NULL);
}

tide_status tide_cuda_matmul(void *stream, const void *arguments)
{
    const tide_matmul_args *args = arguments;
    tide_status status;
    assert(addresses_are_valid(args));
    pthread_mutex_lock(&lock);
    const tide_cuda_matmul_plan *plan = plan_find(args);
    if (!plan)
        status = tide_cuda_matmul_fail(TIDE_ERROR_STATE, args, "it was not prepared");
    else if (args->workspace_bytes < plan->bias_bytes + plan->library_bytes)
        status = tide_cuda_matmul_fail(TIDE_ERROR_ARGUMENT, args, "its workspace is smaller than it needs");
    else
        status = tide_cuda_matmul_plan_run(library, plan, args, stream);
    pthread_mutex_unlock(&lock);
    return status;
}
