/* See the header. One lock guards what is counted; objects are their creator's, as the library's are. */
#include "tests/fake_cublaslt.h"

#include "kernels/bf16.h"
#include "kernels/fp16.h"

#include <cublasLt.h>
#include <cuda_runtime_api.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SPLIT_K = 128, SPLITS_MAX = 4, WORKSPACE_ALIGNMENT = 256 };

/* ---- objects ---- */

enum {
    HANDLE = 0x48414e44,
    OPERATION = 0x4f504552,
    LAYOUT = 0x4c41594f,
    PREFERENCE = 0x50524546,
    ALGORITHM = 0x414c474f
};

typedef struct object {
    uint32_t kind;
} object;

typedef struct operation {
    object head;
    cublasComputeType_t compute;
    cudaDataType_t scale;
    int32_t turn_a, turn_b;
    uint32_t epilogue;
    const void *bias;
    void *aux;
    int64_t aux_ld;
} operation;

typedef struct layout {
    object head;
    cudaDataType type;
    uint64_t rows, columns;
    int64_t ld;
} layout;

typedef struct preference {
    object head;
    uint64_t workspace_bytes;
    uint32_t reductions;
    uint32_t alignment[4]; /* A, B, C, D */
} preference;

/* What hides in a cublasLtMatmulAlgo_t. */
typedef struct algorithm {
    uint32_t kind;
    uint32_t product;      /* a hash of all that it was chosen for */
    uint16_t alignment[6]; /* A, B, C, D, bias, aux */
    uint16_t reduction, splits;
    uint64_t workspace_bytes;
} algorithm;

_Static_assert(sizeof(algorithm) <= sizeof(cublasLtMatmulAlgo_t), "it has to fit");

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
/* all guarded by lock */
static size_t live, misuses;
static char first_misuse[256];
static uint64_t countdown, queries_made, products_made, gelus_made;
static int failure, declines;
static bool has_failed;

void (*fake_cublaslt_enqueue)(void *stream, const char *label, void (*run)(void *closure), void *closure);

void fake_cublaslt_start(void)
{
    pthread_mutex_lock(&lock);
    misuses = 0;
    countdown = queries_made = products_made = gelus_made = 0;
    declines = 0;
    has_failed = false;
    pthread_mutex_unlock(&lock);
}

void fake_cublaslt_fail(uint64_t calls, int status)
{
    pthread_mutex_lock(&lock);
    countdown = calls;
    failure = status;
    has_failed = false;
    pthread_mutex_unlock(&lock);
}

bool fake_cublaslt_has_failed(void)
{
    return has_failed;
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

void fake_cublaslt_counts(uint64_t *queries, uint64_t *products, uint64_t *with_gelu)
{
    pthread_mutex_lock(&lock);
    *queries = queries_made;
    *products = products_made;
    *with_gelu = gelus_made;
    pthread_mutex_unlock(&lock);
}

/* What the call at hand has to return at once: an injected failure. */
static cublasStatus_t enter(void)
{
    pthread_mutex_lock(&lock);
    const bool now = countdown > 0 && --countdown == 0;
    has_failed = has_failed || now;
    const cublasStatus_t status = now ? (cublasStatus_t)failure : CUBLAS_STATUS_SUCCESS;
    pthread_mutex_unlock(&lock);
    return status;
}

static cublasStatus_t misuse(const char *text)
{
    pthread_mutex_lock(&lock);
    if (misuses++ == 0)
        (void)snprintf(first_misuse, sizeof first_misuse, "%s", text);
    pthread_mutex_unlock(&lock);
    return CUBLAS_STATUS_INVALID_VALUE;
}

static bool is(const void *thing, uint32_t kind)
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
    if (!is(thing, kind))
        return misuse("destroying what is not there");
    ((object *)thing)->kind = 0;
    free(thing);
    pthread_mutex_lock(&lock);
    live--;
    pthread_mutex_unlock(&lock);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtCreate(cublasLtHandle_t *handle)
{
    const cublasStatus_t status = enter();
    return status == CUBLAS_STATUS_SUCCESS ? make(handle, sizeof(object), HANDLE) : status;
}

cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle)
{
    return drop(handle, HANDLE);
}

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t *made, cublasComputeType_t compute,
                                        cudaDataType_t scale)
{
    cublasStatus_t status = enter();
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
        return misuse("an attribute of another size");
    memcpy(field, value, bytes);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t made, cublasLtMatmulDescAttributes_t name,
                                              const void *value, size_t bytes)
{
    operation *op = (operation *)made;
    const cublasStatus_t status = enter();
    if (status != CUBLAS_STATUS_SUCCESS)
        return status;
    if (!is(op, OPERATION))
        return misuse("setting an attribute of what is no operation");
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
        return misuse("an attribute that this fake does not know");
    }
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t *made, cudaDataType type, uint64_t rows,
                                          uint64_t columns, int64_t ld)
{
    cublasStatus_t status = enter();
    if (status == CUBLAS_STATUS_SUCCESS && (ld < 0 || (uint64_t)ld < rows || rows == 0 || columns == 0))
        status = misuse("a layout whose columns overlap, or an empty one");
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
    cublasStatus_t status = enter();
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
    const cublasStatus_t status = enter();
    if (status != CUBLAS_STATUS_SUCCESS)
        return status;
    if (!is(wanted, PREFERENCE))
        return misuse("setting an attribute of what is no preference");
    switch (name) {
    case CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES:
        return put(&wanted->workspace_bytes, sizeof wanted->workspace_bytes, value, bytes);
    case CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK:
        return put(&wanted->reductions, sizeof wanted->reductions, value, bytes);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES:
        return put(&wanted->alignment[0], sizeof wanted->alignment[0], value, bytes);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES:
        return put(&wanted->alignment[1], sizeof wanted->alignment[1], value, bytes);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES:
        return put(&wanted->alignment[2], sizeof wanted->alignment[2], value, bytes);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES:
        return put(&wanted->alignment[3], sizeof wanted->alignment[3], value, bytes);
    default:
        return misuse("a preference that this fake does not know");
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

/* ---- a product: D [m, n] = op(A) [m, k] op(B) [k, n], the library's letters ---- */

typedef struct product {
    operation op;
    layout a, b, c, d;
    uint64_t m, n, k;
} product;

static bool is_known_epilogue(uint32_t epilogue)
{
    return epilogue == CUBLASLT_EPILOGUE_DEFAULT || epilogue == CUBLASLT_EPILOGUE_BIAS ||
           epilogue == CUBLASLT_EPILOGUE_GELU_AUX || epilogue == CUBLASLT_EPILOGUE_GELU_AUX_BIAS ||
           epilogue == CUBLASLT_EPILOGUE_DGELU;
}

static bool has_bias(const product *p)
{
    return p->op.epilogue == CUBLASLT_EPILOGUE_BIAS || p->op.epilogue == CUBLASLT_EPILOGUE_GELU_AUX_BIAS;
}

static bool has_gelu(const product *p)
{
    return p->op.epilogue != CUBLASLT_EPILOGUE_DEFAULT && p->op.epilogue != CUBLASLT_EPILOGUE_BIAS;
}

static const char *product_fault(const product *p)
{
    const bool narrow = p->a.type == CUDA_R_16BF || p->a.type == CUDA_R_16F;
    if (p->op.compute != CUBLAS_COMPUTE_32F || p->op.scale != CUDA_R_32F)
        return "not summed in fp32";
    if (p->a.type != p->b.type || (!narrow && p->a.type != CUDA_R_32F))
        return "inputs of types that do not go together";
    if (p->c.type != p->d.type || (p->d.type != p->a.type && p->d.type != CUDA_R_32F))
        return "an output of a type that does not go with the inputs";
    if (p->m != p->d.rows || p->n != p->d.columns || p->c.rows != p->d.rows || p->c.columns != p->d.columns ||
        p->c.ld != p->d.ld)
        return "matrices that do not fit together";
    if (!is_known_epilogue(p->op.epilogue))
        return "an epilogue that this fake does not know";
    if (has_bias(p) && !p->op.bias)
        return "a bias that is nowhere";
    if (has_gelu(p) &&
        (!p->op.aux || p->op.aux_ld % 8 != 0 || p->op.aux_ld < (int64_t)p->m || p->d.type != p->a.type))
        return "an aux matrix that is nowhere, or whose columns are no multiple of 8 or too short, or not of "
               "D's type";
    return NULL;
}

static cublasStatus_t product_read(product *p, cublasLtMatmulDesc_t op, cublasLtMatrixLayout_t a,
                                   cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t c,
                                   cublasLtMatrixLayout_t d)
{
    if (!is(op, OPERATION) || !is(a, LAYOUT) || !is(b, LAYOUT) || !is(c, LAYOUT) || !is(d, LAYOUT))
        return misuse("a product of what is not there");
    *p = (product){
        .op = *(operation *)op, .a = *(layout *)a, .b = *(layout *)b, .c = *(layout *)c, .d = *(layout *)d};
    const bool turn_a = p->op.turn_a == CUBLAS_OP_T, turn_b = p->op.turn_b == CUBLAS_OP_T;
    p->m = turn_a ? p->a.columns : p->a.rows;
    p->k = turn_a ? p->a.rows : p->a.columns;
    p->n = turn_b ? p->b.rows : p->b.columns;
    const bool meets = p->k == (turn_b ? p->b.columns : p->b.rows);
    const char *fault = meets ? product_fault(p) : "inner dimensions that differ";
    return fault ? misuse(fault) : CUBLAS_STATUS_SUCCESS;
}

static uint32_t product_hash(const product *p)
{
    const uint64_t fields[] = {p->m,
                               p->n,
                               p->k,
                               (uint64_t)p->a.ld,
                               (uint64_t)p->b.ld,
                               (uint64_t)p->d.ld,
                               p->a.type,
                               p->d.type,
                               p->op.epilogue,
                               (uint64_t)(p->op.turn_a * 4 + p->op.turn_b)};
    uint64_t hash = 17;
    for (size_t i = 0; i < sizeof fields / sizeof fields[0]; i++)
        hash = hash * UINT64_C(1099511628211) + fields[i];
    return (uint32_t)(hash ^ hash >> 32);
}

/* ---- the heuristic ---- */

static uint16_t alignment_of(const void *address)
{
    const uintptr_t bits = (uintptr_t)address | 256;
    return (uint16_t)(bits & (~bits + 1));
}

static algorithm algorithm_for(const product *p, const preference *wanted)
{
    algorithm chosen = {.kind = ALGORITHM, .product = product_hash(p), .splits = 1};
    for (int i = 0; i < 4; i++)
        chosen.alignment[i] = (uint16_t)wanted->alignment[i];
    chosen.alignment[4] = has_bias(p) ? alignment_of(p->op.bias) : 1;
    chosen.alignment[5] = has_gelu(p) ? alignment_of(p->op.aux) : 1;
    const uint32_t ways = wanted->reductions;
    const uint64_t workspace_bytes = p->m * p->n * SPLITS_MAX * sizeof(float);
    if (p->k >= SPLIT_K && ways != 0 && workspace_bytes <= wanted->workspace_bytes) {
        chosen.splits = SPLITS_MAX;
        chosen.workspace_bytes = workspace_bytes;
        chosen.reduction =
            (uint16_t)(ways & CUBLASLT_REDUCTION_SCHEME_INPLACE ? CUBLASLT_REDUCTION_SCHEME_INPLACE
                       : ways & CUBLASLT_REDUCTION_SCHEME_OUTPUT_TYPE
                           ? CUBLASLT_REDUCTION_SCHEME_OUTPUT_TYPE
                           : CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE);
    }
    return chosen;
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t handle, cublasLtMatmulDesc_t op,
                                              cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                              cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                              cublasLtMatmulPreference_t wanted, int requested,
                                              cublasLtMatmulHeuristicResult_t results[], int *found)
{
    product p;
    cublasStatus_t status = enter();
    if (status == CUBLAS_STATUS_SUCCESS && (!is(handle, HANDLE) || !is(wanted, PREFERENCE) || requested < 1))
        status = misuse("a heuristic asked without handle, preference or room");
    if (status == CUBLAS_STATUS_SUCCESS)
        status = product_read(&p, op, a, b, c, d);
    if (status != CUBLAS_STATUS_SUCCESS)
        return status;
    pthread_mutex_lock(&lock);
    queries_made++;
    pthread_mutex_unlock(&lock);
    if (declines && has_gelu(&p)) {
        *found = 0;
        return declines == 1 ? CUBLAS_STATUS_NOT_SUPPORTED : CUBLAS_STATUS_SUCCESS;
    }
    const algorithm chosen = algorithm_for(&p, (const preference *)wanted);
    memset(&results[0], 0, sizeof results[0]);
    memcpy(&results[0].algo, &chosen, sizeof chosen);
    results[0].workspaceSize = chosen.workspace_bytes;
    results[0].state = CUBLAS_STATUS_SUCCESS;
    *found = 1;
    return CUBLAS_STATUS_SUCCESS;
}

/* ---- running ---- */

typedef struct call {
    product p;
    algorithm chosen;
    float alpha, beta;
    const void *a, *b, *c;
    void *d;
    float *workspace;
} call;

static float load(const void *data, cudaDataType type, uint64_t i)
{
    return type == CUDA_R_16BF  ? tide_bf16_to_float(((const tide_bf16 *)data)[i])
           : type == CUDA_R_16F ? tide_fp16_to_float(((const tide_fp16 *)data)[i])
                                : ((const float *)data)[i];
}

static void store(void *data, cudaDataType type, uint64_t i, float value)
{
    if (type == CUDA_R_16BF)
        ((tide_bf16 *)data)[i] = tide_bf16_from_float(value);
    else if (type == CUDA_R_16F)
        ((tide_fp16 *)data)[i] = tide_fp16_from_float(value);
    else
        ((float *)data)[i] = value;
}

/* A row of op(A), or a column of op(B), of k numbers, gathered for the sums. */
static float *gather(const void *data, const layout *matrix, bool by_columns, uint64_t lines, uint64_t k)
{
    float *gathered = malloc(lines * k * sizeof *gathered);
    if (!gathered)
        abort();
    for (uint64_t line = 0; line < lines; line++)
        for (uint64_t q = 0; q < k; q++) {
            const uint64_t row = by_columns ? q : line, column = by_columns ? line : q;
            gathered[line * k + q] = load(data, matrix->type, row + column * (uint64_t)matrix->ld);
        }
    return gathered;
}

static double dot(const float *a, const float *b, uint64_t count)
{
    double sums[4] = {0};
    for (uint64_t q = 0; q < count; q++)
        sums[q % 4] += (double)a[q] * b[q];
    return sums[0] + sums[1] + (sums[2] + sums[3]);
}

static float rounded_to(cudaDataType type, float value)
{
    float place;
    store(&place, type, 0, value);
    return load(&place, type, 0);
}

/* One element's sum, in parts through the workspace where the algorithm splits it. */
static float sum(const call *run, const float *a, const float *b, uint64_t place, uint64_t turn)
{
    const uint64_t k = run->p.k, splits = run->chosen.splits, part = (k + splits - 1) / splits;
    if (splits == 1)
        return (float)dot(a, b, k);
    float *parts = run->workspace + place * splits;
    for (uint64_t s = 0; s < splits; s++) {
        const uint64_t first = s * part < k ? s * part : k, last = first + part < k ? first + part : k;
        parts[s] = (float)dot(a + first, b + first, last - first);
        if (run->chosen.reduction == CUBLASLT_REDUCTION_SCHEME_OUTPUT_TYPE)
            parts[s] = rounded_to(run->p.d.type, parts[s]);
    }
    const uint64_t start = run->chosen.reduction == CUBLASLT_REDUCTION_SCHEME_INPLACE ? turn : 0;
    float total = 0.0f;
    for (uint64_t s = 0; s < splits; s++)
        total += parts[(start + s) % splits];
    return total;
}

static double gelu(double x)
{
    return x / 2 * (1 + tanh(0.79788456080286535588 * (x + 0.044715 * x * x * x)));
}

static double gelu_slope(double x)
{
    const double t = tanh(0.79788456080286535588 * (x + 0.044715 * x * x * x));
    return (1 + t) / 2 + x / 2 * (1 - t * t) * 0.79788456080286535588 * (1 + 3 * 0.044715 * x * x);
}

static float epilogue(const call *run, float value, uint64_t row, uint64_t column)
{
    const product *p = &run->p;
    const uint64_t aux = row + column * (uint64_t)p->op.aux_ld;
    if (has_bias(p))
        value += load(p->op.bias, p->d.type, row);
    if (p->op.epilogue == CUBLASLT_EPILOGUE_DGELU)
        return (float)(value * gelu_slope(load(p->op.aux, p->d.type, aux)));
    if (!has_gelu(p))
        return value;
    store(p->op.aux, p->d.type, aux, value);
    return (float)gelu(value);
}

static void run_product(void *closure)
{
    static uint64_t turns;
    call *run = closure;
    const product *p = &run->p;
    const uint64_t turn = __atomic_fetch_add(&turns, 1, __ATOMIC_RELAXED);
    float *a = gather(run->a, &p->a, p->op.turn_a == CUBLAS_OP_T, p->m, p->k);
    float *b = gather(run->b, &p->b, p->op.turn_b == CUBLAS_OP_N, p->n, p->k);
    for (uint64_t column = 0; column < p->n; column++)
        for (uint64_t row = 0; row < p->m; row++) {
            const uint64_t place = row + column * (uint64_t)p->d.ld;
            float value = run->alpha * sum(run, a + row * p->k, b + column * p->k, row + column * p->m, turn);
            if (run->beta != 0.0f)
                value += run->beta * load(run->c, p->c.type, place);
            store(run->d, p->d.type, place, epilogue(run, value, row, column));
        }
    free(a);
    free(b);
    free(run);
}

static bool overlap(const void *x, const layout *x_is, const void *y, const layout *y_is)
{
    const size_t x_item = x_is->type == CUDA_R_32F ? 4 : 2, y_item = y_is->type == CUDA_R_32F ? 4 : 2;
    const uintptr_t x_end = (uintptr_t)x + ((x_is->columns - 1) * (uint64_t)x_is->ld + x_is->rows) * x_item;
    const uintptr_t y_end = (uintptr_t)y + ((y_is->columns - 1) * (uint64_t)y_is->ld + y_is->rows) * y_item;
    return (uintptr_t)x < y_end && (uintptr_t)y < x_end;
}

static const char *call_fault(const call *run, size_t workspace_bytes)
{
    const product *p = &run->p;
    const void *addresses[6] = {
        run->a, run->b, run->c, run->d, has_bias(p) ? p->op.bias : NULL, has_gelu(p) ? p->op.aux : NULL};
    if (run->chosen.kind != ALGORITHM || run->chosen.product != product_hash(p))
        return "an algorithm of another product";
    for (int i = 0; i < 6; i++)
        if ((uintptr_t)addresses[i] % run->chosen.alignment[i] != 0)
            return "an address less aligned than was promised";
    if (workspace_bytes < run->chosen.workspace_bytes ||
        (uintptr_t)run->workspace % WORKSPACE_ALIGNMENT != 0 ||
        (run->chosen.workspace_bytes > 0 && !run->workspace))
        return "a workspace that is too small or not aligned";
    if (run->c != run->d || overlap(run->d, &p->d, run->a, &p->a) || overlap(run->d, &p->d, run->b, &p->b))
        return "D over A or B, or apart from C";
    return NULL;
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t op, const void *alpha,
                              const void *a, cublasLtMatrixLayout_t a_is, const void *b,
                              cublasLtMatrixLayout_t b_is, const void *beta, const void *c,
                              cublasLtMatrixLayout_t c_is, void *d, cublasLtMatrixLayout_t d_is,
                              const cublasLtMatmulAlgo_t *algo, void *workspace, size_t workspace_bytes,
                              cudaStream_t stream)
{
    call made = {.a = a, .b = b, .c = c, .d = d, .workspace = workspace};
    cublasStatus_t status = enter();
    if (status == CUBLAS_STATUS_SUCCESS &&
        (!is(handle, HANDLE) || !algo || !alpha || !beta || !a || !b || !c || !d))
        status = misuse("a product without all it needs");
    if (status == CUBLAS_STATUS_SUCCESS)
        status = product_read(&made.p, op, a_is, b_is, c_is, d_is);
    if (status != CUBLAS_STATUS_SUCCESS)
        return status;
    memcpy(&made.chosen, algo, sizeof made.chosen);
    memcpy(&made.alpha, alpha, sizeof made.alpha);
    memcpy(&made.beta, beta, sizeof made.beta);
    const char *fault = call_fault(&made, workspace_bytes);
    if (fault)
        return misuse(fault);
    call *run = malloc(sizeof *run);
    if (!run)
        return CUBLAS_STATUS_ALLOC_FAILED;
    *run = made;
    pthread_mutex_lock(&lock);
    products_made++;
    gelus_made += has_gelu(&made.p);
    pthread_mutex_unlock(&lock);
    if (fake_cublaslt_enqueue)
        fake_cublaslt_enqueue(stream, "matmul", run_product, run);
    else
        run_product(run);
    return CUBLAS_STATUS_SUCCESS;
}

/* ---- what matmul.c asks the runtime ---- */

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
