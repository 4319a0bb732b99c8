/* The fake's products: it reads a product from the objects, checks it against the library's rules, chooses
 * an algorithm and computes the result. A sum is computed in float64, in four partial sums, and rounded to
 * fp32 once; if the algorithm splits it, once for each part. */
#include "tests/gpu/fake_cublaslt_objects.h"

#include "base/bf16.h"
#include "base/fp16.h"

#include <cuda_runtime_api.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { SPLIT_K = 128, SPLITS_MAX = 4, WORKSPACE_ALIGNMENT = 256, MULTIPROCESSORS = 132 };

int (*fake_cublaslt_enqueue)(void *stream, const char *label, void (*run)(void *closure), void *closure);

/* The fake's contents of a cublasLtMatmulAlgo_t. */
typedef struct algorithm {
    uint32_t kind;
    uint32_t product;      /* a hash of everything for which it was chosen */
    uint16_t alignment[6]; /* A, B, C, D, bias, aux */
    uint16_t reduction, splits;
    uint64_t workspace_bytes;
    int32_t number, tile, stages;
    uint32_t untold;
} algorithm;

_Static_assert(sizeof(algorithm) <= sizeof(cublasLtMatmulAlgo_t), "it has to fit");

/* ---- a product: D [m, n] = op(A) [m, k] op(B) [k, n] in the library's notation ---- */

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
    if (!fake_cublaslt_is(op, OPERATION) || !fake_cublaslt_is(a, LAYOUT) || !fake_cublaslt_is(b, LAYOUT) ||
        !fake_cublaslt_is(c, LAYOUT) || !fake_cublaslt_is(d, LAYOUT))
        return fake_cublaslt_refuse("a product of what is not there");
    *p = (product){
        .op = *(operation *)op, .a = *(layout *)a, .b = *(layout *)b, .c = *(layout *)c, .d = *(layout *)d};
    const bool turn_a = p->op.turn_a == CUBLAS_OP_T, turn_b = p->op.turn_b == CUBLAS_OP_T;
    p->m = turn_a ? p->a.columns : p->a.rows;
    p->k = turn_a ? p->a.rows : p->a.columns;
    p->n = turn_b ? p->b.rows : p->b.columns;
    const bool meets = p->k == (turn_b ? p->b.columns : p->b.rows);
    const char *fault = meets ? product_fault(p) : "inner dimensions that differ";
    return fault ? fake_cublaslt_refuse(fault) : CUBLAS_STATUS_SUCCESS;
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

/* The way to join the parts of a split sum, chosen among the allowed ways; 0: splitting is not allowed. */
static int reduction_of(uint32_t ways)
{
    return ways & CUBLASLT_REDUCTION_SCHEME_INPLACE        ? CUBLASLT_REDUCTION_SCHEME_INPLACE
           : ways & CUBLASLT_REDUCTION_SCHEME_OUTPUT_TYPE  ? CUBLASLT_REDUCTION_SCHEME_OUTPUT_TYPE
           : ways & CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE ? CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE
                                                           : 0;
}

static uint64_t parts_bytes(const product *p, int splits)
{
    return splits > 1 ? p->m * p->n * (uint64_t)splits * sizeof(float) : 0;
}

/* The fake's own list of algorithms, the best first. */
static size_t candidates_make(const product *p, const preference *wanted, fake_cublaslt_candidate made[3])
{
    const float waves = (float)((p->m + 127) / 128 * ((p->n + 255) / 256)) / MULTIPROCESSORS;
    const fake_cublaslt_candidate usual = {
        .algorithm = 66, .tile = CUBLASLT_MATMUL_TILE_128x256, .stages = 36, .splits = 1, .waves = waves};
    size_t count = 0;
    if (p->k >= SPLIT_K && wanted->reductions != 0 && parts_bytes(p, SPLITS_MAX) <= wanted->workspace_bytes) {
        made[count] = usual;
        made[count].splits = SPLITS_MAX;
        made[count].waves *= SPLITS_MAX;
        made[count++].reduction = reduction_of(wanted->reductions);
    }
    made[count++] = usual;
    made[count++] = (fake_cublaslt_candidate){.state = CUBLAS_STATUS_NOT_SUPPORTED};
    return count;
}

static void result_make(const product *p, const preference *wanted, const fake_cublaslt_candidate *candidate,
                        cublasLtMatmulHeuristicResult_t *result)
{
    const uint64_t needed = parts_bytes(p, candidate->splits);
    algorithm made = {.kind = ALGORITHM,
                      .product = product_hash(p),
                      .splits = (uint16_t)(candidate->splits > 1 ? candidate->splits : 1),
                      .reduction = (uint16_t)candidate->reduction,
                      .workspace_bytes =
                          needed > candidate->workspace_bytes ? needed : candidate->workspace_bytes,
                      .number = candidate->algorithm,
                      .tile = candidate->tile,
                      .stages = candidate->stages,
                      .untold = candidate->untold};
    for (int i = 0; i < 4; i++)
        made.alignment[i] = (uint16_t)wanted->alignment[i];
    made.alignment[4] = has_bias(p) ? alignment_of(p->op.bias) : 1;
    made.alignment[5] = has_gelu(p) ? alignment_of(p->op.aux) : 1;
    memset(result, 0, sizeof *result);
    result->state = (cublasStatus_t)candidate->state;
    if (result->state != CUBLAS_STATUS_SUCCESS)
        return;
    memcpy(&result->algo, &made, sizeof made);
    result->workspaceSize = made.workspace_bytes;
    result->wavesCount = candidate->waves;
}

/* Knows the attributes that matmul.c reads, all of the size of an int32_t. */
cublasStatus_t cublasLtMatmulAlgoConfigGetAttribute(const cublasLtMatmulAlgo_t *algo,
                                                    cublasLtMatmulAlgoConfigAttributes_t name, void *value,
                                                    size_t bytes, size_t *written)
{
    algorithm asked;
    const cublasStatus_t status = fake_cublaslt_enter_reading();
    if (status != CUBLAS_STATUS_SUCCESS)
        return status;
    memcpy(&asked, algo, sizeof asked);
    const int32_t says[] = {[CUBLASLT_ALGO_CONFIG_ID] = asked.number,
                            [CUBLASLT_ALGO_CONFIG_TILE_ID] = asked.tile,
                            [CUBLASLT_ALGO_CONFIG_SPLITK_NUM] = asked.splits,
                            [CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME] = asked.reduction,
                            [CUBLASLT_ALGO_CONFIG_STAGES_ID] = asked.stages};
    if (asked.kind != ALGORITHM || bytes != sizeof(int32_t) || name > CUBLASLT_ALGO_CONFIG_STAGES_ID ||
        name == CUBLASLT_ALGO_CONFIG_CTA_SWIZZLING || name == CUBLASLT_ALGO_CONFIG_CUSTOM_OPTION)
        return fake_cublaslt_refuse(
            "reading what is no algorithm, or an attribute unknown or of another size");
    if (asked.untold & 1u << name)
        return CUBLAS_STATUS_INVALID_VALUE;
    memcpy(value, &says[name], bytes);
    *written = bytes;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t handle, cublasLtMatmulDesc_t op,
                                              cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                              cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                              cublasLtMatmulPreference_t wanted, int requested,
                                              cublasLtMatmulHeuristicResult_t results[], int *found)
{
    product p;
    cublasStatus_t status = fake_cublaslt_enter();
    if (status == CUBLAS_STATUS_SUCCESS &&
        (!fake_cublaslt_is(handle, HANDLE) || !fake_cublaslt_is(wanted, PREFERENCE) || requested < 1))
        status = fake_cublaslt_refuse("a heuristic asked without handle, preference or room");
    if (status == CUBLAS_STATUS_SUCCESS)
        status = product_read(&p, op, a, b, c, d);
    if (status != CUBLAS_STATUS_SUCCESS)
        return status;
    const int declines = fake_cublaslt_count_query(requested);
    *found = 0;
    if (declines && has_gelu(&p))
        return declines == 1 ? CUBLAS_STATUS_NOT_SUPPORTED : CUBLAS_STATUS_SUCCESS;
    fake_cublaslt_candidate own[3];
    size_t count;
    const fake_cublaslt_candidate *answers = fake_cublaslt_offered(&count);
    if (!answers) {
        count = candidates_make(&p, (const preference *)wanted, own);
        answers = own;
    }
    for (; (size_t)*found < count && *found < requested; ++*found)
        result_make(&p, (const preference *)wanted, &answers[*found], &results[*found]);
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

/* Copies the rows of op(A), or the columns of op(B), into dense lines of k floats for the sums. */
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
    uint64_t q = 0;
    /* The four partial sums stay in registers. */
    for (; q + 4 <= count; q += 4)
        for (uint64_t strand = 0; strand < 4; strand++)
            sums[strand] += (double)a[q + strand] * b[q + strand];
    for (uint64_t strand = 0; q < count; strand++, q++)
        sums[strand] += (double)a[q] * b[q];
    return sums[0] + sums[1] + (sums[2] + sums[3]);
}

static float rounded_to(cudaDataType type, float value)
{
    float place;
    store(&place, type, 0, value);
    return load(&place, type, 0);
}

/* The sum of one element; if the algorithm splits it, the parts go through the workspace. */
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

/* Whether the library rounds the sum before it adds the bias. */
static bool rounds_first(const call *run)
{
    return run->chosen.splits > 1 ||
           (has_gelu(&run->p) &&
            (run->chosen.tile == CUBLASLT_MATMUL_TILE_UNDEFINED || run->chosen.number == 56));
}

static float epilogue(const call *run, float value, uint64_t row, uint64_t column)
{
    const product *p = &run->p;
    const uint64_t aux = row + column * (uint64_t)p->op.aux_ld;
    if (has_bias(p))
        value = (rounds_first(run) ? rounded_to(p->d.type, value) : value) + load(p->op.bias, p->d.type, row);
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
        workspace_bytes < parts_bytes(p, run->chosen.splits) ||
        (uintptr_t)run->workspace % WORKSPACE_ALIGNMENT != 0 || (workspace_bytes > 0 && !run->workspace))
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
    cublasStatus_t status = fake_cublaslt_enter();
    if (status == CUBLAS_STATUS_SUCCESS &&
        (!fake_cublaslt_is(handle, HANDLE) || !algo || !alpha || !beta || !a || !b || !c || !d))
        status = fake_cublaslt_refuse("a product without all it needs");
    if (status == CUBLAS_STATUS_SUCCESS)
        status = product_read(&made.p, op, a_is, b_is, c_is, d_is);
    if (status != CUBLAS_STATUS_SUCCESS)
        return status;
    memcpy(&made.chosen, algo, sizeof made.chosen);
    memcpy(&made.alpha, alpha, sizeof made.alpha);
    memcpy(&made.beta, beta, sizeof made.beta);
    const char *fault = call_fault(&made, workspace_bytes);
    if (fault)
        return fake_cublaslt_refuse(fault);
    call *run = malloc(sizeof *run);
    if (!run)
        return CUBLAS_STATUS_ALLOC_FAILED;
    *run = made;
    fake_cublaslt_count_matmul(has_gelu(&made.p), made.chosen.number);
    int error = 0;
    if (fake_cublaslt_enqueue)
        error = fake_cublaslt_enqueue(stream, "matmul", run_product, run);
    else
        run_product(run);
    return error == 0 ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_EXECUTION_FAILED;
}
