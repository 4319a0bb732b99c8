#include "chunk/array.h"

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
