#include "src/weights/tensor.h"

#include "base/text.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ELEMENTS_MAX (1ull << 60)

size_t tide_weights_dtype_bytes(tide_weights_dtype dtype)
{
    return dtype == TIDE_WEIGHTS_F32 ? 4 : 2;
}

const char *tide_weights_dtype_name(tide_weights_dtype dtype)
{
    static const char *const names[TIDE_WEIGHTS_DTYPES] = {"BF16", "F16", "F32"};
    assert(dtype < TIDE_WEIGHTS_DTYPES);
    return names[dtype];
}

uint64_t tide_weights_elements(const tide_weights_tensor *tensor)
{
    uint64_t elements = 1;
    for (uint32_t i = 0; i < tensor->rank; i++)
        elements *= tensor->shape[i];
    return elements;
}

/* Is the tensor valid, with at most *left_elements elements? If so, subtracts them from *left_elements. */
static bool tensor_is_valid(const tide_weights_tensor *tensor, uint64_t *left_elements)
{
    if (tensor->name == NULL || tensor->name[0] == '\0' || tensor->rank < 1 ||
        tensor->rank > TIDE_WEIGHTS_RANK_MAX)
        return false;
    uint64_t left = *left_elements;
    for (uint32_t i = 0; i < tensor->rank; i++) {
        if (tensor->shape[i] == 0 || tensor->shape[i] > left)
            return false;
        left /= tensor->shape[i];
    }
    *left_elements -= tide_weights_elements(tensor);
    return true;
}

static int compare_names(const void *a, const void *b)
{
    return strcmp(((const tide_weights_named *)a)->name, ((const tide_weights_named *)b)->name);
}

tide_status tide_weights_by_name(const tide_weights_tensor *tensors, size_t count,
                                 tide_weights_named **by_name)
{
    if (count == 0)
        return tide_fail(TIDE_ERROR_ARGUMENT, "weights: no tensors");
    uint64_t left_elements = ELEMENTS_MAX;
    for (size_t i = 0; i < count; i++) {
        if (!tensor_is_valid(&tensors[i], &left_elements))
            return tide_fail(TIDE_ERROR_ARGUMENT, "weights: tensor %zu (%s) has no valid name or shape", i,
                             tide_printable(tensors[i].name != NULL ? tensors[i].name : "NULL").text);
    }
    tide_weights_named *sorted = malloc(count * sizeof *sorted);
    if (sorted == NULL)
        return tide_fail(TIDE_ERROR_NO_MEMORY, "weights: no memory for the names of %zu tensors", count);
    for (size_t i = 0; i < count; i++)
        sorted[i] = (tide_weights_named){tensors[i].name, i};
    qsort(sorted, count, sizeof *sorted, compare_names);
    for (size_t i = 1; i < count; i++) {
        if (strcmp(sorted[i - 1].name, sorted[i].name) == 0) {
            const tide_status status =
                tide_fail(TIDE_ERROR_ARGUMENT, "weights: tensors %zu and %zu are both called %s",
                          sorted[i - 1].tensor, sorted[i].tensor, tide_printable(sorted[i].name).text);
            free(sorted);
            return status;
        }
    }
    *by_name = sorted;
    return TIDE_OK;
}
