/* AdamW and restore, each in one pass over all segments.
 *
 * The loop is plain C with the functions of adam_math.h; the compiler vectorizes it. Every operation in it is
 * an IEEE operation rounded once, so 16 lanes, 4 lanes and one lane give the same bits. A parameter's update
 * does not depend on other parameters, so any division into shares and blocks gives the same bits, too.
 *
 * The pass is bound by memory: it reads and writes each array once, 28 bytes per bf16 parameter. The
 * following was tried to bring it nearer to the machine's bandwidth: on a Xeon of the Cascade Lake family
 * (2.5 GHz, 2 cores, huge pages), with 32 Mi bf16 parameters and AVX-512. Numbers are GB/s with 2 threads and
 * with 1, medians of passes that took turns. A loop that reads and writes the four arrays in place without
 * any arithmetic reaches 41.2 and 21.5.
 *
 * Prefetch into the first-level cache, some elements ahead of the element being updated:
 *
 *     ahead        none    32    64   128   192   256   384   512   768  1024  2048
 *     2 threads    40.4  41.8  43.5  43.3  44.4  44.5  44.6  44.2  44.4  43.7  40.8
 *     1 thread     21.9  22.6  23.0  23.0  23.3  24.1  24.1  24.1  23.8  22.9  21.5
 *
 * This gains five to ten percent, with little difference from 192 to 768 elements (fp32 and AVX2 gain 3 to
 * 6%): the hardware's own prefetcher starts anew at each 4 KiB page of each array. The code uses 512, the
 * middle. Variants: into the second-level cache only: 40.8 and 22.0, no gain. Non-temporal, past all caches:
 * 19.2 and 10.3. Prefetch for writing: 42.7, where prefetch for reading gave 43.4. The next 4 KiB of each
 * array at once, so that memory serves one row at a time: 28.4 and 14.7.
 *
 * Streaming stores are not used. The pass works in place, so every line is already in the cache when it is
 * written, and a streaming store evicts it; this includes the 16-bit parameter's line, which held the
 * gradient. All stores streaming: 30.1 and 16.7; only the parameter's: 38.6 and 20.4.
 *
 * Distribution over threads. Each thread gets one contiguous share of all elements: 43.4 with 2 threads. Runs
 * of 4 Ki, 16 Ki, 64 Ki, 256 Ki, 1 Mi elements given to the threads in turn: 37.0, 41.5, 41.5, 41.3, 40.8; at
 * the end of a run the prefetches fetch elements of another thread, and the hardware starts four streams
 * anew. A thread takes its share in pieces of 32 Ki elements and, when it has finished, takes pieces of other
 * shares: copies and kernels of other streams occupy a core now and then, and the pass should not have to
 * wait for the thread that lost its core.
 */
#include "base/align.h"
#include "base/minmax.h"
#include "base/team.h"
#include "kernels/cpu/lanes.h"
#include "kernels/cpu/variant.h"
#include "kernels/kernels.h"

#include <stdatomic.h>

enum {
    CACHE_LINE_BYTES = 64,
    BLOCK_ELEMENTS = 64,     /* elements updated between two rounds of prefetches */
    PREFETCH_ELEMENTS = 512, /* distance of the prefetch from the block; measured, see above */
    /* shares are multiples of this, so that two threads seldom write to one cache line */
    SHARE_UNIT_ELEMENTS = 1024,
    PIECE_ELEMENTS = 32768, /* how much of a share a thread takes at a time */
    SHARES_MAX = 256,
};

typedef void (*segment_run)(const tide_adamw_segment *segment, size_t begin, size_t end, tide_dtype dtype,
                            const tide_adam_factors *factors);

/* Update elements begin to end - 1. The pragma tells the compiler that the arrays do not overlap. */
LANES_INLINE void update_range(const tide_adamw_segment *segment, size_t begin, size_t end,
                               const tide_adam_factors *factors, float decay, tide_dtype dtype)
{
    void *param = segment->param;
    float *restrict master = segment->master;
    float *restrict momentum = segment->momentum;
    float *restrict variance = segment->variance;
#pragma omp simd
    for (size_t i = begin; i < end; i++) {
        float m = momentum[i], v = variance[i];
        const float weight =
            tide_adam_update(factors, decay, element_get(param, i, dtype), master[i], &m, &v);
        master[i] = weight;
        momentum[i] = m;
        variance[i] = v;
        element_set(param, i, weight, dtype);
    }
}

/* Update BLOCK_ELEMENTS elements. The compiler vectorizes the conversion of bf16 but not that of fp16; the
 * code therefore converts fp16 to and from an fp32 block, which stays in the first-level cache. */
LANES_INLINE void update_block(const tide_adamw_segment *segment, size_t begin,
                               const tide_adam_factors *factors, float decay, tide_dtype dtype)
{
    if (dtype != TIDE_DTYPE_FP16) {
        update_range(segment, begin, begin + BLOCK_ELEMENTS, factors, decay, dtype);
        return;
    }
    float values[BLOCK_ELEMENTS];
    const tide_adamw_segment block = {.param = values,
                                      .master = segment->master + begin,
                                      .momentum = segment->momentum + begin,
                                      .variance = segment->variance + begin};
    for (size_t i = 0; i < BLOCK_ELEMENTS; i += LANES)
        lanes_store(values, i, lanes_load(segment->param, begin + i, dtype), TIDE_DTYPE_FP32);
    update_range(&block, 0, BLOCK_ELEMENTS, factors, decay, TIDE_DTYPE_FP32);
    for (size_t i = 0; i < BLOCK_ELEMENTS; i += LANES)
        lanes_store(segment->param, begin + i, lanes_load(values, i, TIDE_DTYPE_FP32), dtype);
}

/* Prefetch a block of an array from element i on. It may lie past the array's end: a prefetch never faults,
 * and the address is computed as an integer because C allows no pointer there. */
LANES_INLINE void prefetch_block(const void *array, size_t i, size_t element_bytes)
{
    const uintptr_t block = (uintptr_t)array + i * element_bytes;
    for (size_t line = 0; line < BLOCK_ELEMENTS * element_bytes; line += CACHE_LINE_BYTES)
        __builtin_prefetch((const void *)(block + line));
}

LANES_INLINE void adamw_blocks(const tide_adamw_segment *segment, size_t begin, size_t end,
                               const tide_adam_factors *factors, tide_dtype dtype)
{
    const tide_adamw_segment at = *segment;
    const tide_adam_factors local = *factors;
    const float decay = at.decays ? local.decay : 1.0f;
    size_t i = begin;
    for (; end - i >= BLOCK_ELEMENTS; i += BLOCK_ELEMENTS) {
        const size_t ahead = i + PREFETCH_ELEMENTS;
        prefetch_block(at.param, ahead, tide_dtype_bytes(dtype));
        prefetch_block(at.master, ahead, sizeof(float));
        prefetch_block(at.momentum, ahead, sizeof(float));
        prefetch_block(at.variance, ahead, sizeof(float));
        update_block(&at, i, &local, decay, dtype);
    }
    update_range(&at, i, end, &local, decay, dtype);
}

static void adamw_run(const tide_adamw_segment *segment, size_t begin, size_t end, tide_dtype dtype,
                      const tide_adam_factors *factors)
{
    BY_DTYPE(dtype, adamw_blocks, segment, begin, end, factors);
}

LANES_INLINE void restore_lanes(const tide_adamw_segment *segment, size_t begin, size_t end, tide_dtype dtype)
{
    for (size_t i = begin; i < end; i += LANES)
        lanes_store_until(segment->param, i, end, lanes_load_until(segment->master, i, end, TIDE_DTYPE_FP32),
                          dtype);
}

static void restore_run(const tide_adamw_segment *segment, size_t begin, size_t end, tide_dtype dtype,
                        const tide_adam_factors *factors)
{
    (void)factors;
    BY_DTYPE(dtype, restore_lanes, segment, begin, end);
}

/* A pass over segments. Its tasks number the elements of all segments together; share n begins at element n x
 * share_elements. Task n takes the pieces of share n, and then pieces of the other tasks' shares. */
typedef struct segments_pass {
    const tide_adamw_args *args;
    segment_run run;
    size_t share_elements;
    size_t shares;
    _Atomic size_t *taken; /* per share: how many pieces are taken */
} segments_pass;

/* Process elements [first, first + count), numbered over all segments. */
static void run_piece(const segments_pass *pass, size_t first, size_t count)
{
    const tide_adamw_args *args = pass->args;
    size_t skip = first, left = count;
    for (size_t s = 0; s < args->segment_count && left > 0; s++) {
        const size_t elements = args->segments[s].elements;
        const size_t begin = tide_min_u64(skip, elements), end = begin + tide_min_u64(left, elements - begin);
        if (begin < end)
            pass->run(&args->segments[s], begin, end, args->dtype, &args->factors);
        skip -= begin;
        left -= end - begin;
    }
}

static void share_task(const void *arguments, size_t share)
{
    const segments_pass *pass = arguments;
    for (size_t i = 0; i < pass->shares; i++) {
        const size_t whose = (share + i) % pass->shares;
        for (;;) {
            const size_t first =
                PIECE_ELEMENTS * atomic_fetch_add_explicit(&pass->taken[whose], 1, memory_order_relaxed);
            if (first >= pass->share_elements)
                break;
            run_piece(pass, whose * pass->share_elements + first,
                      tide_min_u64(PIECE_ELEMENTS, pass->share_elements - first));
        }
    }
}

static void run_segments(const tide_adamw_args *args, segment_run run)
{
    _Atomic size_t taken[SHARES_MAX];
    const size_t shares = tide_min_u64((size_t)tide_team_threads(), SHARES_MAX);
    assert(args->segment_count == 0 || args->segments);
    const size_t elements = (size_t)tide_adamw_segments_elements(args->segments, args->segment_count);
    const size_t share_elements = tide_round_up(tide_ceil_div(elements, shares), SHARE_UNIT_ELEMENTS);
    for (size_t i = 0; i < shares; i++)
        atomic_init(&taken[i], 0);
    const segments_pass pass = {
        .args = args, .run = run, .share_elements = share_elements, .shares = shares, .taken = taken};
    tide_team_run(shares, elements, share_task, &pass);
}

tide_status VARIANT(adamw)(void *stream, const void *arguments)
{
    (void)stream;
    run_segments(arguments, adamw_run);
    return TIDE_OK;
}

tide_status VARIANT(restore)(void *stream, const void *arguments)
{
    const tide_restore_args *args = arguments;
    (void)stream;
    const tide_adamw_args all = {
        .segments = args->segments, .segment_count = args->segment_count, .dtype = args->dtype};
    run_segments(&all, restore_run);
    return TIDE_OK;
}
