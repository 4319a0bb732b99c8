/* Reads the library's candidates and decides which are allowed (matmul_choice.h). */
#include "kernels/cuda/matmul_choice.h"

#include "kernels/gpu_sizes.h"

bool tide_cuda_matmul_declined(cublasStatus_t status)
{
    return status == CUBLAS_STATUS_NOT_SUPPORTED || status == CUBLAS_STATUS_INVALID_VALUE;
}

/* ---- reading the library's descriptions ---- */

/* Read an attribute of four bytes, signed or unsigned. If the library declines to report it
 * (tide_cuda_matmul_declined), the value is UNKNOWN. */
static cublasStatus_t attribute_read(const cublasLtMatmulAlgo_t *algorithm,
                                     cublasLtMatmulAlgoConfigAttributes_t name, int32_t *value)
{
    size_t written = 0;
    int32_t said = 0;
    const cublasStatus_t status =
        cublasLtMatmulAlgoConfigGetAttribute(algorithm, name, &said, sizeof said, &written);
    *value =
        status == CUBLAS_STATUS_SUCCESS && written == sizeof said ? said : (int32_t)TIDE_CUDA_MATMUL_UNKNOWN;
    return tide_cuda_matmul_declined(status) ? CUBLAS_STATUS_SUCCESS : status;
}

cublasStatus_t tide_cuda_matmul_candidate_read(const cublasLtMatmulHeuristicResult_t *result,
                                               tide_cuda_matmul_candidate *candidate)
{
    *candidate = (tide_cuda_matmul_candidate){.state = result->state};
    if (result->state != CUBLAS_STATUS_SUCCESS)
        return CUBLAS_STATUS_SUCCESS;
    candidate->waves = result->wavesCount;
    candidate->workspace_bytes = result->workspaceSize;
    const struct {
        cublasLtMatmulAlgoConfigAttributes_t name;
        int32_t *value;
    } attributes[] = {
        {CUBLASLT_ALGO_CONFIG_ID, &candidate->algorithm},
        {CUBLASLT_ALGO_CONFIG_TILE_ID, &candidate->tile},
        {CUBLASLT_ALGO_CONFIG_STAGES_ID, &candidate->stages},
        {CUBLASLT_ALGO_CONFIG_SPLITK_NUM, &candidate->splits},
        {CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME, &candidate->reduction},
    };
    cublasStatus_t status = CUBLAS_STATUS_SUCCESS;
    for (size_t i = 0; i < sizeof attributes / sizeof attributes[0] && status == CUBLAS_STATUS_SUCCESS; i++)
        status = attribute_read(&result->algo, attributes[i].name, attributes[i].value);
    return status;
}

bool tide_cuda_matmul_candidate_is_allowed(const tide_cuda_matmul_candidate *candidate)
{
    const int32_t splits = candidate->splits, reduction = candidate->reduction;
    const bool joins_right = reduction == TIDE_CUDA_MATMUL_UNKNOWN ||
                             reduction == CUBLASLT_REDUCTION_SCHEME_NONE ||
                             reduction == CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
    return candidate->state == CUBLAS_STATUS_SUCCESS &&
           candidate->workspace_bytes <= TIDE_GPU_MATMUL_WORKSPACE_LIMIT_BYTES &&
           (splits == 0 || splits == 1 || joins_right);
}

/* ---- words ---- */

#define TILE(m, n) [CUBLASLT_MATMUL_TILE_##m##x##n] = #m "x" #n

const char *tide_cuda_matmul_tile_name(int32_t tile)
{
    static const char *const names[] = {
        TILE(32, 64),   TILE(64, 32),   TILE(32, 128),  TILE(128, 32),  TILE(32, 256),  TILE(256, 32),
        TILE(64, 64),   TILE(64, 96),   TILE(96, 64),   TILE(64, 128),  TILE(128, 64),  TILE(64, 256),
        TILE(256, 64),  TILE(64, 512),  TILE(512, 64),  TILE(96, 128),  TILE(128, 96),  TILE(128, 128),
        TILE(128, 160), TILE(160, 128), TILE(128, 192), TILE(192, 128), TILE(128, 256), TILE(256, 128),
    };
    const bool known = tile >= 0 && (size_t)tile < sizeof names / sizeof names[0] && names[tile];
    return known ? names[tile] : "";
}
