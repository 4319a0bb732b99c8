/* AdamW and restore: one pass over segments.
 *
 * The loop is plain C over adam_math.h, which the compiler turns into the variant's vectors: every operation
 * in it is an IEEE operation rounded once, so 16 lanes, 4 lanes and one give the same bits. A parameter's
 * update depends on nothing beside it, so any cut into shares and blocks gives the same bits too.
 *
 * The pass is bound by memory: it reads and writes each array once, 28 bytes a bf16 parameter. What was tried
 * to bring it nearer to the machine's bandwidth, on a Xeon of the Cascade Lake family (2.5 GHz, 2 cores, huge
 * pages), 32 Mi bf16 parameters, AVX-512, GB/s with 2 threads and with 1, medians of passes in turn; reading
 * and writing the four arrays in place without any arithmetic does 41.2 and 21.5:
 *
 *   Prefetch into the nearest cache, so many elements ahead of the one worked on:
 *
 *       ahead   none    32    64   128   192   256   384   512   768  1024  2048
 *       2       40.4  41.8  43.5  43.3  44.4  44.5  44.6  44.2  44.4  43.7  40.8
 *       1       21.9  22.6  23.0  23.0  23.3  24.1  24.1  24.1  23.8  22.9  21.5
 *
 *     Five to ten percent, and flat from 192 to 768 (fp32 and AVX2: likewise, 3 to 6%; what the
 *     hardware fetches by itself begins anew at each 4 KiB page of each array). 512 stands in the middle. Into the second
 *     cache only: 40.8 and 22.0, nothing gained. Past all caches (non-temporal hint): 19.2 and 10.3. Asking for
 *     the lines to write: 42.7 where asking to read gave 43.4. Each array's next 4 KiB in one go, so that memory
 *     serves one row at a time: 28.4 and 14.7.
 *   Streaming stores. In a pass in place every line has been read when it is written, the 16-bit parameter's as
 *     well (it was the gradient): the store evicts the line it hits. All stores streaming: 30.1 and 16.7; only
 *     the parameter's: 38.6 and 20.4. None are used.
 *   Dealing. Each thread gets one contiguous share of all the elements: 43.4 with 2 threads. Runs of 4 Ki, 16 Ki,
 *     64 Ki, 256 Ki, 1 Mi elements dealt in turn: 37.0, 41.5, 41.5, 41.3, 40.8; at a run's end the prefetches fetch
 *     what belongs to another thread, and four streams begin anew. A share is taken in pieces of 32 Ki, and who is
 *     done with its own helps with another's: copies and kernels of other streams take a core now and then, and the
 *     thread that lost it must not be waited for.
 */
#include "kernels/costs.h"
#include "kernels/cpu/lanes.h"
#include "kernels/cpu/team.h"
#include "kernels/cpu/variant.h"

#include <stdatomic.h>

enum {
    CACHE_LINE_BYTES = 64,
    BLOCK_ELEMENTS = 64,        /* updated between two rounds of prefetches */
    PREFETCH_ELEMENTS = 512,    /* ahead of the block; measured, see above */
    SHARE_UNIT_ELEMENTS = 1024, /* shares are multiples of it, so that two threads seldom meet in a line */
    PIECE_ELEMENTS = 32768,     /* of a share, taken at a time */
    SHARES_MAX = 256,
};

typedef void (*segment_run)(const tide_adamw_segment *segment, size_t begin, size_t end, tide_dtype dtype,
                            const tide_adam_factors *factors);

/* Update elements begin to end - 1. The arrays do not overlap: the pragma says so to the compiler. */
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

/* A block of BLOCK_ELEMENTS. The compiler finds the shifts of bf16 by itself but not the instructions for fp16, so those
 * pass through a block of fp32, which stays in the nearest cache. */
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

/* Ask for a block of an array from element i on. Past the array's end nothing bad happens: a prefetch never faults, and
 * the address is computed as a number because no pointer may point there. */
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

/* A pass over segments, as its tasks see it: of all the segments' elements, counted through, share n are those from
 * n x share_elements on. It is taken piece by piece, by its own task and by those that are done with theirs. */
typedef struct segments_pass {
    const tide_adamw_args *args;
    segment_run run;
    size_t share_elements;
    size_t shares;
    _Atomic size_t *taken; /* per share: pieces */
} segments_pass;

static size_t least(size_t a, size_t b)
{
    return a < b ? a : b;
}

/* Elements [first, first + count) of all the segments'. */
static void run_piece(const segments_pass *pass, size_t first, size_t count)
{
    const tide_adamw_args *args = pass->args;
    size_t skip = first, left = count;
    for (size_t s = 0; s < args->segment_count && left > 0; s++) {
        const size_t elements = args->segments[s].elements;
        const size_t begin = least(skip, elements), end = begin + least(left, elements - begin);
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
                      least(PIECE_ELEMENTS, pass->share_elements - first));
        }
    }
}

static size_t up_to_multiple(size_t value, size_t unit)
{
    return (value + unit - 1) / unit * unit;
}

static void run_segments(const tide_adamw_args *args, segment_run run)
{
    _Atomic size_t taken[SHARES_MAX];
    const size_t shares = least((size_t)tide_kernels_cpu_threads(), SHARES_MAX);
    assert(args->segment_count == 0 || args->segments);
    const size_t elements = (size_t)tide_adamw_segments_elements(args->segments, args->segment_count);
    const size_t share_elements =
        up_to_multiple(up_to_multiple(elements, shares) / shares, SHARE_UNIT_ELEMENTS);
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
