/* Inside the copy benchmark: the half that goes through a whole pool. */
#ifndef TIDE_TESTS_BENCH_COPY_H
#define TIDE_TESTS_BENCH_COPY_H

#include "offload/device.h"

/* End the program with the thread's message if `status` is not TIDE_OK. */
void bench_check(tide_status status, const char *what);

/* A device with memory to copy between. */
typedef struct fixture fixture;

/* Seconds that memcpy of so many bytes, whole chunks, takes now: each way by a thread of its own, both at once. */
double bench_copy_reference_seconds(fixture *it, uint64_t in_bytes, uint64_t out_bytes);

/* Ops that stream params through the least device budget, without and with ACTIVATION tensors that stream out: bytes
 * moved over wall seconds, maps and unmaps included, against memcpy of as many bytes each way. */
void bench_copy_pool(fixture *reference, uint64_t chunk_bytes, int rounds);

#endif
