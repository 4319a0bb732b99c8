/* Inside the copy benchmark: the half that goes through a whole pool. */
#ifndef TIDE_TESTS_BENCH_COPY_H
#define TIDE_TESTS_BENCH_COPY_H

#include "offload/device.h"

/* End the program with the thread's message if `status` is not TIDE_OK. */
void bench_check(tide_status status, const char *what);

/* A device with memory to copy between. */
typedef struct rig rig;

/* Bytes a second that plain copies make now, in or both ways at once. */
double bench_copy_plain_rate(rig *it, bool both);

/* Ops that stream params through the least device budget, without and with CHECKPOINT tensors that stream out: bytes
 * moved over wall seconds, maps and unmaps included, against plain copies one way and both ways. */
void bench_copy_pool(rig *plain, uint64_t chunk_bytes, int rounds);

#endif
