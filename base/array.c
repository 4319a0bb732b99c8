#include "base/array.h"

#include <assert.h>
#include <stdlib.h>

enum { FIRST_CAPACITY = 16 };

bool tide_array_grow(void **array, uint32_t count, uint32_t *capacity, size_t element_bytes)
{
    assert(element_bytes > 0 && (*array != NULL) == (*capacity > 0));
    assert(count <= *capacity && *capacity <= UINT32_MAX / 4);
    if (count < *capacity)
        return true;
    const uint32_t larger = *capacity ? 2 * *capacity : FIRST_CAPACITY;
    void *moved = realloc(*array, larger * element_bytes);
    if (!moved)
        return false;
    *array = moved;
    *capacity = larger;
    return true;
}

struct tide_array {
    struct tide_array *before;
    max_align_t elements[];
};

void *tide_arrays_add(tide_arrays *arrays, size_t count, size_t element_bytes)
{
    assert(element_bytes > 0 && count < SIZE_MAX / 2 / element_bytes);
    struct tide_array *added = calloc(1, sizeof *added + count * element_bytes);
    if (!added) {
        arrays->lacks = true;
        return NULL;
    }
    added->before = arrays->last;
    arrays->last = added;
    return added->elements;
}

void tide_arrays_free(tide_arrays *arrays)
{
    for (struct tide_array *array = arrays->last; array; array = arrays->last) {
        arrays->last = array->before;
        free(array);
    }
}
