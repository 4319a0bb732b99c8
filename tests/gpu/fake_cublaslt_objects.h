/* The fake's objects and the functions that its two files share: fake_cublaslt.c (counts, failures,
 * objects) and fake_cublaslt_matmul.c (heuristic, matmuls). */
#ifndef TIDE_TESTS_FAKE_CUBLASLT_OBJECTS_H
#define TIDE_TESTS_FAKE_CUBLASLT_OBJECTS_H

#include "tests/gpu/fake_cublaslt.h"

#include <cublasLt.h>

/* The first word of an object, by its kind; a destroyed object has another. */
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
    uint32_t alignment[4]; /* of A, B, C, D */
} preference;

/* Counts a call and returns the status with which it has to fail, or success. */
cublasStatus_t fake_cublaslt_enter(void);

/* Records a broken rule and returns the status with which the call has to fail. */
cublasStatus_t fake_cublaslt_refuse(const char *text);

bool fake_cublaslt_is(const void *thing, uint32_t kind);

/* Counts a query and returns the present choice of fake_cublaslt_decline_gelu(). */
int fake_cublaslt_count_query(int wanted);
void fake_cublaslt_count_matmul(bool with_gelu, int algorithm);
/* Like fake_cublaslt_enter(), for a call that reads an attribute. */
cublasStatus_t fake_cublaslt_enter_reading(void);
/* The list of fake_cublaslt_offer(), or NULL. */
const fake_cublaslt_candidate *fake_cublaslt_offered(size_t *count);

#endif
