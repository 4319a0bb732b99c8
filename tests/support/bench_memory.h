/* Second yardsticks of memory: reading alone and writing alone. A limit that moves memory must agree with both, on any
 * machine, whether its cores or its memory's wires bound it:
 *
 *   what it reads a second    is no more than reading alone does: who writes, too, has more to do
 *   what it writes a second   likewise than writing alone, by streaming stores or by plain ones, whichever is faster
 *   its time                  is no more than reading's and writing's together: it could do one after the other
 *
 * That a pattern moves less than it is credited for, or that it is a poor one, shows itself as a ratio above 1.
 */
#ifndef TIDE_TESTS_BENCH_MEMORY_H
#define TIDE_TESTS_BENCH_MEMORY_H

#include <stddef.h>

/* Machines are not still: what the relations may be off by before a limit counts as wrong. */
#define BENCH_AGREEMENT 1.10

typedef struct bench_memory_times {
    double read_seconds, write_seconds; /* each by the faster of two ways */
} bench_memory_times;

/* Read `bytes` (a multiple of 4 KiB, and no fewer a thread) at `from`, and write as many at `to`, by so many threads: once
 * each way. What lies at `to` is overwritten by ordinary small floats of any width. */
bench_memory_times bench_memory_measure(void *from, void *to, size_t bytes, int threads);

/* For a pass that took `seconds` to read and write `bytes` each: the larger of the first two relations, which holds
 * for whoever moves memory, and which it is. */
double bench_memory_claim(const bench_memory_times *alone, size_t alone_bytes, double seconds, double bytes,
                          const char **relation);
/* The largest of all three: for what is to be the fastest that the machine can. */
double bench_memory_agreement(const bench_memory_times *alone, size_t alone_bytes, double seconds,
                              double bytes, const char **relation);

#endif
