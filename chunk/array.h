/* Arrays that grow by doubling, an element at a time; and arrays of fixed length that are freed together. Owns nothing, calls
 * nobody. */
#ifndef TIDE_CHUNK_ARRAY_H
#define TIDE_CHUNK_ARRAY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Room for one more element behind `count`. *array begins as NULL with *capacity 0 and is freed by the caller. False: no
 * memory, array and capacity unchanged. */
bool tide_array_grow(void **array, uint32_t count, uint32_t *capacity, size_t element_bytes);

/* All zero: none. */
typedef struct tide_arrays {
    struct tide_array *last;
    bool lacks; /* there was no memory for one of them */
} tide_arrays;

/* One of `count` zeroed elements, perhaps none, good until all are freed. NULL: no memory, as `lacks` says from then on. */
void *tide_arrays_add(tide_arrays *arrays, size_t count, size_t element_bytes);
void tide_arrays_free(tide_arrays *arrays);

#endif
