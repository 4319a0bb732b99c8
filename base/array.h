/* Arrays that grow by doubling, an element at a time; and arrays of fixed length that one call frees
 * together. Owns nothing and calls no other object. */
#ifndef TIDE_BASE_ARRAY_H
#define TIDE_BASE_ARRAY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Makes space for one more element behind `count`. The caller sets *array to NULL and *capacity to 0 before
 * the first call, and frees the array. False: there was no memory; array and capacity are unchanged. */
bool tide_array_grow(void **array, uint32_t count, uint32_t *capacity, size_t element_bytes);

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
