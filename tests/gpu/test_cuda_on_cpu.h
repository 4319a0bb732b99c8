/* The kernels of test_cuda_on_cpu_kernels.cc, as test_cuda_on_cpu.c calls them. */
#ifndef TIDEPOOL_TESTS_TEST_CUDA_ON_CPU_H
#define TIDEPOOL_TESTS_TEST_CUDA_ON_CPU_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#include "tidepool/status.h"

enum { TEST_SHUFFLES = 11, TEST_ORDER_THREADS = 64 };

/* Mistakes that wrong_kernel() can make. Thread 77 of block 2 makes them, or every thread does. */
typedef enum test_mistake {
    TEST_RETURNS_BEFORE_BARRIER,
    TEST_OTHER_BARRIER,
    TEST_BARRIER_AGAINST_SHUFFLE,
    TEST_LANE_MISSING,
    TEST_OTHER_SHUFFLE,
    TEST_PARTIAL_MASK,
    TEST_READS_BEYOND,
    TEST_WRITES_BEFORE,
    TEST_TWO_WRITE,
    TEST_READS_UNORDERED,
    TEST_WRITES_UNORDERED,
    TEST_TOO_MUCH_SHARED,
} test_mistake;

/* Launches of the test kernels. A block has 256 threads unless a parameter gives another number. */
tide_status test_where(uint32_t *out, const unsigned *grid, const unsigned *block);
tide_status test_sum(const uint32_t *in, uint32_t *out, unsigned blocks);
tide_status test_sum_float(const float *in, float *out, unsigned blocks);
tide_status test_sum_without_barriers(const uint32_t *in, uint32_t *out);
tide_status test_shuffles(uint32_t *out, unsigned threads);
tide_status test_warp_order(uint32_t *out, int ordered);
tide_status test_count(const uint32_t *in, uint32_t *counts, uint32_t *largest, unsigned blocks);
tide_status test_vectors(const uint32_t *in, uint32_t *out, unsigned first);
tide_status test_poison(uint32_t *out, unsigned blocks);
tide_status test_order(uint32_t *out, uint32_t *next, unsigned blocks);
tide_status test_wrong(test_mistake mistake, uint32_t *out);
tide_status test_barriers(uint32_t *out, unsigned blocks, unsigned barriers);

#ifdef __cplusplus
}
#endif

#endif
