/* The fake's counts, injected failures and objects. One lock guards counts and failures; objects belong to
 * their creator, as the library's do, and have no lock. */
#include "tests/gpu/fake_cublaslt_objects.h"

#include <cuda_runtime_api.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
/* lock guards all of these */
static size_t live, misuses;
static char first_misuse[256];
static uint64_t countdown, queries_made, matmuls_made, gelus_made;
static int failure, declines, most_wanted, last_algorithm;
static bool has_failed, failed_reading;
static const fake_cublaslt_candidate *offered;
static size_t offered_count;

void fake_cublaslt_start(void)
{
    pthread_mutex_lock(&lock);
    misuses = 0;
    countdown = queries_made = matmuls_made = gelus_made = 0;
    declines = most_wanted = last_algorithm = 0;
    has_failed = failed_reading = false;
    offered = NULL;
    pthread_mutex_unlock(&lock);
}

void fake_cublaslt_fail(uint64_t calls, int status)
{
    pthread_mutex_lock(&lock);
    countdown = calls;
    failure = status;
    has_failed = failed_reading = false;
    pthread_mutex_unlock(&lock);
}

bool fake_cublaslt_has_failed(void)
{
    return has_failed;
}

bool fake_cublaslt_failed_reading(void)
{
    return failed_reading;
}

void fake_cublaslt_offer(const fake_cublaslt_candidate *list, size_t count)
{
    offered = list;
    offered_count = count;
}

const fake_cublaslt_candidate *fake_cublaslt_offered(size_t *count)
{
    *count = offered_count;
    return offered;
}

void fake_cublaslt_decline_gelu(int how)
{
    declines = how;
}

size_t fake_cublaslt_live(void)
{
    return live;
}

size_t fake_cublaslt_misuse(char *text, size_t text_bytes)
{
    pthread_mutex_lock(&lock);
    const size_t count = misuses;
    (void)snprintf(text, text_bytes, "%s", count ? first_misuse : "");
    pthread_mutex_unlock(&lock);
    return count;
}

void fake_cublaslt_counts(uint64_t *queries, uint64_t *matmuls, uint64_t *with_gelu)
{
    pthread_mutex_lock(&lock);
    *queries = queries_made;
    *matmuls = matmuls_made;
    *with_gelu = gelus_made;
    pthread_mutex_unlock(&lock);
}

int fake_cublaslt_most_wanted(void)
{
    return most_wanted;
}

int fake_cublaslt_last_algorithm(void)
{
    return last_algorithm;
}

int fake_cublaslt_count_query(int wanted)
{
    pthread_mutex_lock(&lock);
    queries_made++;
    most_wanted = wanted > most_wanted ? wanted : most_wanted;
    const int how = declines;
    pthread_mutex_unlock(&lock);
    return how;
}

void fake_cublaslt_count_matmul(bool with_gelu, int algorithm)
{
    pthread_mutex_lock(&lock);
    last_algorithm = algorithm;
    matmuls_made++;
    gelus_made += with_gelu;
    pthread_mutex_unlock(&lock);
}

cublasStatus_t fake_cublaslt_enter(void)
{
    pthread_mutex_lock(&lock);
    const bool now = countdown > 0 && --countdown == 0;
    has_failed = has_failed || now;
    const cublasStatus_t status = now ? (cublasStatus_t)failure : CUBLAS_STATUS_SUCCESS;
    pthread_mutex_unlock(&lock);
    return status;
}

cublasStatus_t fake_cublaslt_enter_reading(void)
{
    const bool had_failed = has_failed;
    const cublasStatus_t status = fake_cublaslt_enter();
    pthread_mutex_lock(&lock);
    failed_reading = failed_reading || has_failed != had_failed;
    pthread_mutex_unlock(&lock);
    return status;
}

cublasStatus_t fake_cublaslt_refuse(const char *text)
{
    pthread_mutex_lock(&lock);
    if (misuses++ == 0)
        (void)snprintf(first_misuse, sizeof first_misuse, "%s", text);
    pthread_mutex_unlock(&lock);
    return CUBLAS_STATUS_INVALID_VALUE;
}

bool fake_cublaslt_is(const void *thing, uint32_t kind)
{
    return thing && ((const object *)thing)->kind == kind;
}

static cublasStatus_t make(void *slot, size_t bytes, uint32_t kind)
{
    object *made = calloc(1, bytes);
    if (!made)
        return CUBLAS_STATUS_ALLOC_FAILED;
    made->kind = kind;
    memcpy(slot, &made, sizeof made);
    pthread_mutex_lock(&lock);
    live++;
    pthread_mutex_unlock(&lock);
    return CUBLAS_STATUS_SUCCESS;
}

static cublasStatus_t drop(void *thing, uint32_t kind)
{
    if (!fake_cublaslt_is(thing, kind))
        return fake_cublaslt_refuse("destroying what is not there");
    ((object *)thing)->kind = 0;
    free(thing);
    pthread_mutex_lock(&lock);
    live--;
    pthread_mutex_unlock(&lock);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtCreate(cublasLtHandle_t *handle)
{
    const cublasStatus_t status = fake_cublaslt_enter();
    return status == CUBLAS_STATUS_SUCCESS ? make(handle, sizeof(object), HANDLE) : status;
}

cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle)
{
    return drop(handle, HANDLE);
}

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t *made, cublasComputeType_t compute,
                                        cudaDataType_t scale)
{
    cublasStatus_t status = fake_cublaslt_enter();
    if (status == CUBLAS_STATUS_SUCCESS)
        status = make(made, sizeof(operation), OPERATION);
    if (status != CUBLAS_STATUS_SUCCESS)
        return status;
    operation *op = (operation *)*made;
    op->compute = compute;
    op->scale = scale;
    op->turn_a = op->turn_b = CUBLAS_OP_N;
    op->epilogue = CUBLASLT_EPILOGUE_DEFAULT;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t made)
{
    return drop(made, OPERATION);
}

static cublasStatus_t put(void *field, size_t field_bytes, const void *value, size_t bytes)
{
    if (bytes != field_bytes || !value)
        return fake_cublaslt_refuse("an attribute of another size");
    memcpy(field, value, bytes);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t made, cublasLtMatmulDescAttributes_t name,
                                              const void *value, size_t bytes)
{
    operation *op = (operation *)made;
    const cublasStatus_t status = fake_cublaslt_enter();
    if (status != CUBLAS_STATUS_SUCCESS)
        return status;
    if (!fake_cublaslt_is(op, OPERATION))
        return fake_cublaslt_refuse("setting an attribute of what is no operation");
    switch (name) {
    case CUBLASLT_MATMUL_DESC_TRANSA:
        return put(&op->turn_a, sizeof op->turn_a, value, bytes);
    case CUBLASLT_MATMUL_DESC_TRANSB:
        return put(&op->turn_b, sizeof op->turn_b, value, bytes);
    case CUBLASLT_MATMUL_DESC_EPILOGUE:
        return put(&op->epilogue, sizeof op->epilogue, value, bytes);
    case CUBLASLT_MATMUL_DESC_BIAS_POINTER:
        return put(&op->bias, sizeof op->bias, value, bytes);
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER:
        return put(&op->aux, sizeof op->aux, value, bytes);
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD:
        return put(&op->aux_ld, sizeof op->aux_ld, value, bytes);
    default:
        return fake_cublaslt_refuse("an attribute that this fake does not know");
    }
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t *made, cudaDataType type, uint64_t rows,
                                          uint64_t columns, int64_t ld)
{
    cublasStatus_t status = fake_cublaslt_enter();
    if (status == CUBLAS_STATUS_SUCCESS && (ld < 0 || (uint64_t)ld < rows || rows == 0 || columns == 0))
        status = fake_cublaslt_refuse("a layout whose columns overlap, or an empty one");
    if (status == CUBLAS_STATUS_SUCCESS)
        status = make(made, sizeof(layout), LAYOUT);
    if (status != CUBLAS_STATUS_SUCCESS)
        return status;
    layout *matrix = (layout *)*made;
    *matrix = (layout){.head = matrix->head, .type = type, .rows = rows, .columns = columns, .ld = ld};
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t made)
{
    return drop(made, LAYOUT);
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t *made)
{
    cublasStatus_t status = fake_cublaslt_enter();
    if (status == CUBLAS_STATUS_SUCCESS)
        status = make(made, sizeof(preference), PREFERENCE);
    if (status != CUBLAS_STATUS_SUCCESS)
        return status;
    preference *wanted = (preference *)*made;
    wanted->reductions = CUBLASLT_REDUCTION_SCHEME_MASK;
    for (int i = 0; i < 4; i++)
        wanted->alignment[i] = 256;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t made)
{
    return drop(made, PREFERENCE);
}

cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t made,
                                                    cublasLtMatmulPreferenceAttributes_t name,
                                                    const void *value, size_t bytes)
{
    preference *wanted = (preference *)made;
    const cublasStatus_t status = fake_cublaslt_enter();
    if (status != CUBLAS_STATUS_SUCCESS)
        return status;
    if (!fake_cublaslt_is(wanted, PREFERENCE))
        return fake_cublaslt_refuse("setting an attribute of what is no preference");
    switch (name) {
    case CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES:
        return put(&wanted->workspace_bytes, sizeof wanted->workspace_bytes, value, bytes);
    case CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK:
        return put(&wanted->reductions, sizeof wanted->reductions, value, bytes);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES:
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES:
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES:
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES: {
        uint32_t *alignment = &wanted->alignment[name - CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES];
        return put(alignment, sizeof *alignment, value, bytes);
    }
    default:
        return fake_cublaslt_refuse("a preference that this fake does not know");
    }
}

const char *cublasLtGetStatusName(cublasStatus_t status)
{
    switch (status) {
    case CUBLAS_STATUS_SUCCESS:
        return "CUBLAS_STATUS_SUCCESS";
    case CUBLAS_STATUS_ALLOC_FAILED:
        return "CUBLAS_STATUS_ALLOC_FAILED";
    case CUBLAS_STATUS_INVALID_VALUE:
        return "CUBLAS_STATUS_INVALID_VALUE";
    case CUBLAS_STATUS_NOT_SUPPORTED:
        return "CUBLAS_STATUS_NOT_SUPPORTED";
    default:
        return "CUBLAS_STATUS_INTERNAL_ERROR";
    }
}

/* ---- fakes of the CUDA runtime's functions that matmul.c calls ---- */

__attribute__((weak)) cudaError_t cudaGetDevice(int *device)
{
    *device = 0;
    return cudaSuccess;
}

__attribute__((weak)) cudaError_t cudaSetDevice(int device)
{
    return device == 0 ? cudaSuccess : cudaErrorInvalidDevice;
}

__attribute__((weak)) cudaError_t cudaGetLastError(void)
{
    return cudaSuccess;
}

__attribute__((weak)) const char *cudaGetErrorName(cudaError_t error)
{
    return error == cudaSuccess ? "cudaSuccess" : "cudaErrorInvalidDevice";
}
