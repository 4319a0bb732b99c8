/* Shared by the copy benchmark's files: bench_copy.c, and bench_copy_pool.c with the part that uses a
 * whole pool. */
#ifndef TIDE_TESTS_BENCH_COPY_H
#define TIDE_TESTS_BENCH_COPY_H

#include "offload/device.h"

/* Ends the program with the thread's message if `status` is not TIDE_OK. */
void bench_check(tide_status status, const char *what);

/* A device and memory for copies. */
typedef struct fixture fixture;

/* Seconds that memcpy takes for these bytes, in whole chunks; one thread copies each way, both at once. */
double bench_copy_reference_seconds(fixture *it, uint64_t in_bytes, uint64_t out_bytes);

/* Measures ops that stream params through the least device budget, without and with activations that
 * stream out. The figure is the bytes moved per second of wall time, maps and unmaps included, over
 * memcpy's rate for as many bytes each way. */
void bench_copy_pool(fixture *reference, uint64_t chunk_bytes, int rounds);

#endif
