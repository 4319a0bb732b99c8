/* Measures the memory's speed by reading alone and writing alone. A limit measured by a pass that reads
 * and writes (such as a copy) must agree with both, on any machine:
 *
 *   its read rate     is at most that of reading alone, since the pass also writes
 *   its write rate    is at most that of writing alone, with the faster of streaming and ordinary stores
 *   its time          is at most the sum of both, since the pass could read first and write then
 *
 * A ratio above 1 means that the pass moves fewer bytes than it counts, or that it is slower than
 * necessary.
 */
#ifndef TIDE_TESTS_BENCH_MEMORY_H
#define TIDE_TESTS_BENCH_MEMORY_H

#include <stddef.h>

/* The ratio from which on a limit counts as wrong; up to it the difference may be noise of the machine. */
#define BENCH_AGREEMENT 1.10

typedef struct bench_memory_times {
    double read_seconds, write_seconds; /* each is the faster of two ways */
} bench_memory_times;

/* Reads `bytes` at `from` in two ways and writes `bytes` at `to` in two ways, once each, with so many
 * threads. `bytes` is a multiple of 4 KiB and at least 4 KiB per thread. Afterwards `to` holds small ordinary
 * floats, whatever their width. */
bench_memory_times bench_memory_measure(void *from, void *to, size_t bytes, int threads);

/* The medians of several measurements, at most 64, reading and writing each for itself. */
bench_memory_times bench_memory_median(const bench_memory_times *measured, size_t count);

/* Checks a pass that took `seconds` to read `bytes` and write `bytes`. Returns the larger ratio of its
 * read and write rate to the rate alone, and which relation that is. */
double bench_memory_claim(const bench_memory_times *alone, size_t alone_bytes, double seconds, double bytes,
                          const char **relation);
/* Checks a pass that should be the fastest possible on this machine: returns the largest ratio of all
 * three relations. */
double bench_memory_agreement(const bench_memory_times *alone, size_t alone_bytes, double seconds,
                              double bytes, const char **relation);

#endif
