/* Shared by the Adam benchmark's files: the arrays of an update and the memory access patterns of its
 * limit (bench_adam.c describes them). */
#ifndef TIDE_TESTS_BENCH_ADAM_H
#define TIDE_TESTS_BENCH_ADAM_H

#include "kernels/kernels.h"
#include "offload/host/host_slots.h"

enum { ADAM_ARRAYS = 4, ADAM_PATTERNS = 6 };

/* The arrays of one update, each in slots of its own: param, master, momentum, variance. */
typedef struct adam_arrays {
    tide_host_slots slots[ADAM_ARRAYS];
    tide_dtype dtype;
    size_t elements;
} adam_arrays;

static inline size_t adam_element_bytes(const adam_arrays *a, int array)
{
    return array == 0 ? tide_dtype_bytes(a->dtype) : sizeof(float);
}

static inline double adam_bytes_moved(const adam_arrays *a)
{
    double bytes = 0;
    for (int i = 0; i < ADAM_ARRAYS; i++)
        bytes += 2.0 * (double)adam_element_bytes(a, i) * (double)a->elements;
    return bytes;
}

static inline void *adam_at(const adam_arrays *a, int array, size_t element)
{
    return (char *)tide_host_slots_address(&a->slots[array], 0) + element * adam_element_bytes(a, array);
}

/* Allocates the arrays in memory made as a pool makes its host slots; contents are undefined. The program
 * ends if memory is lacking. */
adam_arrays adam_arrays_make(tide_dtype dtype, size_t elements, int threads);
void adam_arrays_free(adam_arrays *a);

typedef struct adam_pattern {
    const char *name;
    void (*run)(const adam_arrays *a, int threads);
} adam_pattern;

extern const adam_pattern adam_patterns[ADAM_PATTERNS];

/* Counts which part of an update's bytes each pattern moves. */
void adam_count_parts(tide_dtype dtype, int threads, double parts[ADAM_PATTERNS]);

#endif
