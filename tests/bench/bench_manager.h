/* Shared by the manager benchmark's files: a block's params, and the parts that use a pool, a model and
 * the planner. */
#ifndef TIDE_TESTS_BENCH_MANAGER_H
#define TIDE_TESTS_BENCH_MANAGER_H

#include "tidepool/tidepool.h"

enum { BLOCK_PARAMS = 12, BLOCK_CHUNKS = 4 };

/* Ends the program with the thread's message if `status` is not TIDE_OK. */
void bench_check(tide_status status, const char *what);

/* Elements of param `param` of a block. A block's params together take exactly BLOCK_CHUNKS chunks. */
uint64_t bench_block_elements(uint32_t param, uint64_t chunk_elements);

/* Runs blocks through tide_op_begin and tide_op_end on a pool that keeps everything resident. Prints
 * nanoseconds and how often the caller slept (waiting for a lock or anything else); requires that nothing
 * is allocated. */
void bench_manager_pool(const char *device, uint32_t chunks, bool quick);

/* Commands per second of one thread's CPU time, in a step that moves most chunks. */
double bench_manager_tight(uint32_t chunks, bool quick);

typedef struct bench_model {
    const char *name;
    uint32_t layers, width, heads;
    uint64_t chunk_bytes;
} bench_model;

/* Measures the CPU seconds of a training step of a large GPT-2 on the null device; at most `seconds_max`
 * is required. */
void bench_manager_model(const bench_model *of, double seconds_max, bool quick);

/* Measures the seconds to plan a training step of so many chunks with a quarter as many slots. */
void bench_manager_plan(uint32_t chunks, bool quick);

#endif
