#include "base/array.h"

#include "base/align.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

enum { FIRST_CAPACITY = 16 };

/* An array has room for FIRST_CAPACITY elements and then for the next power of two, so only a count of 0 or
 * of such a power fills it. */
bool tide_array_grow(void *array, size_t count, size_t element_bytes)
{
    void *elements;
    assert(element_bytes > 0);
    if (count != 0 && (count < FIRST_CAPACITY || !tide_is_power_of_two(count)))
        return true;
    const size_t capacity = count != 0 ? 2 * count : FIRST_CAPACITY;
    if (capacity > SIZE_MAX / element_bytes)
        return false;
    memcpy(&elements, array, sizeof elements); /* memcpy, since the caller's pointer may have any type */
    elements = realloc(elements, capacity * element_bytes);
    if (!elements)
        return false;
    memcpy(array, &elements, sizeof elements);
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
