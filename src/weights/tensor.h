/* Tensors of a folder of weights, as the caller names them, and the dtypes that their values have in
 * files. */
#ifndef TIDE_WEIGHTS_TENSOR_H
#define TIDE_WEIGHTS_TENSOR_H

#include "tidepool/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { TIDE_WEIGHTS_RANK_MAX = 2 };

#define TIDE_WEIGHTS_SINGLE_NAME "model.safetensors"
#define TIDE_WEIGHTS_INDEX_NAME  "model.safetensors.index.json"

typedef struct tide_weights_tensor {
    const char *name;
    uint32_t rank; /* 1 or 2 */
    uint64_t shape[TIDE_WEIGHTS_RANK_MAX];
} tide_weights_tensor;

typedef enum tide_weights_dtype {
    TIDE_WEIGHTS_BF16,
    TIDE_WEIGHTS_F16,
    TIDE_WEIGHTS_F32,
    TIDE_WEIGHTS_DTYPES,
} tide_weights_dtype;

/* The bytes of an element, 2 or 4; and the dtype's name, "BF16", "F16" or "F32". */
size_t tide_weights_dtype_bytes(tide_weights_dtype dtype);
const char *tide_weights_dtype_name(tide_weights_dtype dtype);

/* Elements of a tensor; its shape must be valid. */
uint64_t tide_weights_elements(const tide_weights_tensor *tensor);

typedef struct tide_weights_named {
    const char *name; /* points to the tensor's own name */
    size_t tensor;
} tide_weights_named;

/* Sort the tensors bytewise by name, in a block that the caller frees. ARGUMENT: a tensor has no name, no
 * valid shape or another's name (the message says which), or all together have more than 2^60 elements.
 * NO_MEMORY. */
TIDE_NODISCARD tide_status tide_weights_by_name(const tide_weights_tensor *tensors, size_t count,
                                                tide_weights_named **by_name);

#endif
