/* Arrays that grow by doubling, an element at a time; and arrays of fixed length that one call frees
 * together. */
#ifndef TIDE_BASE_ARRAY_H
#define TIDE_BASE_ARRAY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Makes space for one more element after the first `count`. `array` points at the caller's pointer to the
 * elements, which is NULL before the first call and which the caller frees. Only this function may allocate
 * the array, since the capacity follows from the count. False: there was no memory, and the array is
 * unchanged.
 *
 *     if (!tide_array_grow(&list->names, list->count, sizeof *list->names)) ...
 */
bool tide_array_grow(void *array, size_t count, size_t element_bytes);

/* A list of arrays of fixed length. A zeroed list holds none. */
typedef struct tide_arrays {
    struct tide_array *last;
    bool lacks; /* there was no memory for one of the arrays */
} tide_arrays;

/* Adds an array of `count` zeroed elements (0 is allowed), which lives until tide_arrays_free. NULL: there
 * was no memory, and `lacks` is true from then on. */
void *tide_arrays_add(tide_arrays *arrays, size_t count, size_t element_bytes);
void tide_arrays_free(tide_arrays *arrays);

#endif
