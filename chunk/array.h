/* Arrays that grow by doubling, an element at a time. Owns nothing, calls nobody. */
#ifndef TIDE_CHUNK_ARRAY_H
#define TIDE_CHUNK_ARRAY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Room for one more element behind `count`. *array begins as NULL with *capacity 0 and is freed by the caller. False: no
 * memory, array and capacity unchanged. */
bool tide_array_grow(void **array, uint32_t count, uint32_t *capacity, size_t element_bytes);

#endif
