/* The access patterns of the Adam benchmark; bench_adam.c describes each. */
#include "tests/bench/bench_adam.h"

#include "tests/support/bench.h"

#include <string.h>

#if defined(__x86_64__)
#include <immintrin.h>
#define EACH_ISA __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define EACH_ISA
#endif

enum {
    RUN_ELEMENTS = 16384,
    BLOCK_ELEMENTS = 64,
    AHEAD_ELEMENTS = 384,
    COUNTED_ELEMENTS = 64 * RUN_ELEMENTS
};

/* ---- patterns of the limit ---- */

/* Rewrites one array in place: floats are multiplied by a 1 that the compiler does not know, 16-bit
 * elements change a bit. */
EACH_ISA static void touch_floats(float *values, size_t count, float one)
{
    for (size_t i = 0; i < count; i++)
        values[i] *= one;
}

EACH_ISA static void touch_halves(uint16_t *values, size_t count, uint16_t bits)
{
    for (size_t i = 0; i < count; i++)
        values[i] ^= bits;
}

/* Rewrites the four arrays of an update side by side, in blocks. Each block prefetches the block that lies
 * `ahead` elements further on; 0: none. */
#define ASK_FOR(array, line_elements)                                                                        \
    for (size_t line = 0; line < BLOCK_ELEMENTS; line += (line_elements))                                    \
    __builtin_prefetch(&(array)[block + ahead + line])

EACH_ISA static void touch_four_bf16(uint16_t *restrict param, float *restrict master,
                                     float *restrict momentum, float *restrict variance, size_t count,
                                     size_t ahead, float one)
{
    for (size_t block = 0; block < count; block += BLOCK_ELEMENTS) {
        if (ahead > 0) {
            ASK_FOR(param, 32);
            ASK_FOR(master, 16);
            ASK_FOR(momentum, 16);
            ASK_FOR(variance, 16);
        }
        for (size_t i = block; i < block + BLOCK_ELEMENTS; i++) {
            param[i] ^= 1;
            master[i] *= one;
            momentum[i] *= one;
            variance[i] *= one;
        }
    }
}

EACH_ISA static void touch_four_fp32(float *restrict param, float *restrict master, float *restrict momentum,
                                     float *restrict variance, size_t count, size_t ahead, float one)
{
    for (size_t block = 0; block < count; block += BLOCK_ELEMENTS) {
        if (ahead > 0) {
            ASK_FOR(param, 16);
            ASK_FOR(master, 16);
            ASK_FOR(momentum, 16);
            ASK_FOR(variance, 16);
        }
        for (size_t i = block; i < block + BLOCK_ELEMENTS; i++) {
            param[i] *= one;
            master[i] *= one;
            momentum[i] *= one;
            variance[i] *= one;
        }
    }
}

/* The factor of the patterns in place: one, or two while the moved elements are counted. */
static volatile float one = 1.0f;

/* `count` is a multiple of a block's elements. */
static void touch_four(const adam_arrays *a, size_t begin, size_t count, size_t ahead)
{
    if (a->dtype == TIDE_DTYPE_BF16)
        touch_four_bf16(adam_at(a, 0, begin), adam_at(a, 1, begin), adam_at(a, 2, begin),
                        adam_at(a, 3, begin), count, ahead, one);
    else
        touch_four_fp32(adam_at(a, 0, begin), adam_at(a, 1, begin), adam_at(a, 2, begin),
                        adam_at(a, 3, begin), count, ahead, one);
}

static void share_together(const adam_arrays *a, size_t begin, size_t count)
{
    touch_four(a, begin, count, 0);
}

static void share_ahead(const adam_arrays *a, size_t begin, size_t count)
{
    touch_four(a, begin, count, AHEAD_ELEMENTS);
}

static void share_apart(const adam_arrays *a, size_t begin, size_t count)
{
    for (int i = 0; i < ADAM_ARRAYS; i++)
        if (adam_element_bytes(a, i) == sizeof(float))
            touch_floats(adam_at(a, i, begin), count, one);
        else
            touch_halves(adam_at(a, i, begin), count, 1);
}

/* `bytes` is a multiple of 64. */
static void stream_copy(char *to, const char *from, size_t bytes)
{
#if defined(__x86_64__)
    for (size_t i = 0; i < bytes; i += 64)
        for (size_t part = 0; part < 64; part += 16)
            _mm_stream_si128((__m128i *)(to + i + part), _mm_load_si128((const __m128i *)(from + i + part)));
    _mm_sfence();
#else
    memcpy(to, from, bytes);
#endif
}

static void share_copied(const adam_arrays *a, size_t begin, size_t count)
{
    for (int i = 0; i < ADAM_ARRAYS; i++)
        stream_copy(adam_at(a, i, (begin + a->elements) / 2), adam_at(a, i, begin / 2),
                    count / 2 * adam_element_bytes(a, i));
}

static void share_memcpy(const adam_arrays *a, size_t begin, size_t count)
{
    for (int i = 0; i < ADAM_ARRAYS; i++)
        memcpy(adam_at(a, i, (begin + a->elements) / 2), adam_at(a, i, begin / 2),
               count / 2 * adam_element_bytes(a, i));
}

/* Runs `share` on equal contiguous parts, one for each thread. */
static void run_shares(const adam_arrays *a, int threads,
                       void (*share)(const adam_arrays *, size_t begin, size_t count))
{
    const size_t part = a->elements / (size_t)threads / 256 * 256;
#pragma omp parallel for num_threads(threads) schedule(static, 1)
    for (int t = 0; t < threads; t++)
        share(a, (size_t)t * part, t + 1 == threads ? a->elements - (size_t)t * part : part);
}

static void limit_together(const adam_arrays *a, int threads)
{
    run_shares(a, threads, share_together);
}

static void limit_ahead(const adam_arrays *a, int threads)
{
    run_shares(a, threads, share_ahead);
}

static void limit_dealt(const adam_arrays *a, int threads)
{
    /* not used by a build without OpenMP */
    (void)threads;
#pragma omp parallel for num_threads(threads) schedule(static, 1)
    for (size_t run = 0; run < a->elements / RUN_ELEMENTS; run++)
        touch_four(a, run * RUN_ELEMENTS, RUN_ELEMENTS, 0);
}

static void limit_apart(const adam_arrays *a, int threads)
{
    run_shares(a, threads, share_apart);
}

static void limit_copied(const adam_arrays *a, int threads)
{
    run_shares(a, threads, share_copied);
}

static void limit_memcpy(const adam_arrays *a, int threads)
{
    run_shares(a, threads, share_memcpy);
}

const adam_pattern adam_patterns[ADAM_PATTERNS] = {{"together", limit_together}, {"ahead", limit_ahead},
                                                   {"dealt", limit_dealt},       {"apart", limit_apart},
                                                   {"copied", limit_copied},     {"memcpy", limit_memcpy}};

/* ---- arrays ---- */

adam_arrays adam_arrays_make(tide_dtype dtype, size_t elements, int threads)
{
    adam_arrays made = {.dtype = dtype, .elements = elements};
    for (int i = 0; i < ADAM_ARRAYS; i++)
        if (tide_host_slots_create(&made.slots[i], 1, elements * adam_element_bytes(&made, i),
                                   &(tide_first_touch){.threads = (uint32_t)threads}) != TIDE_OK)
            bench_die("%s", tide_message());
    return made;
}

void adam_arrays_free(adam_arrays *a)
{
    for (int i = 0; i < ADAM_ARRAYS; i++)
        tide_host_slots_destroy(&a->slots[i]);
}

/* ---- counting the bytes that a pattern moves ---- */

/* Fills the two halves with different values, so that a copy of one to the other shows. */
static void fill_halves(const adam_arrays *a)
{
    for (size_t i = 0; i < a->elements; i++) {
        const float value = i < a->elements / 2 ? 1 : 3;
        if (a->dtype == TIDE_DTYPE_BF16)
            *(tide_bf16 *)adam_at(a, 0, i) = tide_bf16_from_float(value);
        else
            *(float *)adam_at(a, 0, i) = value;
        for (int array = 1; array < ADAM_ARRAYS; array++)
            *(float *)adam_at(a, array, i) = value;
    }
}

static double changed_bytes(const adam_arrays *now, const adam_arrays *before)
{
    double bytes = 0;
    for (int i = 0; i < ADAM_ARRAYS; i++)
        for (size_t e = 0; e < now->elements; e++)
            if (memcmp(adam_at(now, i, e), adam_at(before, i, e), adam_element_bytes(now, i)) != 0)
                bytes += (double)adam_element_bytes(now, i);
    return bytes;
}

void adam_count_parts(tide_dtype dtype, int threads, double parts[ADAM_PATTERNS])
{
    adam_arrays now = adam_arrays_make(dtype, COUNTED_ELEMENTS, threads);
    adam_arrays before = adam_arrays_make(dtype, COUNTED_ELEMENTS, threads);
    fill_halves(&before);
    one = 2;
    for (int p = 0; p < ADAM_PATTERNS; p++) {
        fill_halves(&now);
        adam_patterns[p].run(&now, threads);
        parts[p] = 2 * changed_bytes(&now, &before) / adam_bytes_moved(&now);
    }
    one = 1;
    adam_arrays_free(&before);
    adam_arrays_free(&now);
}
