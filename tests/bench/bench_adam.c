/* Compares the host's Adam update with the machine's memory bandwidth.
 *
 *     bench_adam [--quick]                        the figures, as JSON
 *     bench_adam --ours-only MI ROUNDS THREADS    parameters a second of one bf16 update, a number
 *
 * An update reads and writes param, master, momentum and variance once: 28 bytes a bf16 parameter, 32 an
 * fp32 one. The limit is the time in which the machine reads and writes as many bytes with hardly any
 * arithmetic, in the same memory (made as the pool makes its host slots) and with the same number of
 * threads. Machines differ in the fastest access pattern, so the benchmark runs several simple ones, and
 * the fastest is the limit:
 *
 *     together   the four arrays side by side in one loop, each thread a contiguous share: Adam without
 *                its arithmetic
 *     ahead      as together, with instructions that prefetch memory some lines ahead
 *     dealt      as together, but the threads take short stretches of the arrays in turn
 *     apart      one array after the other
 *     copied     half of each array copied to the other half by streaming stores, which do not read what
 *                they overwrite; so only half of the bytes move
 *     memcpy     as copied, by the C library
 *
 * The benchmark counts which bytes a pattern moves: it runs the pattern once on small arrays, where every
 * moved element changes, since it was read (or its other half was) and written. It doubles the time of a
 * pattern that moves half of the bytes.
 *
 * Reading alone and writing alone run in turn with the patterns, as second yardsticks. bench_memory.h
 * states relations between them and the limit that hold on any machine; the figure `limits agree` is the
 * worst of these.
 *
 * All patterns and the update itself run in turn, round after round. A pattern's figure is the median over
 * the rounds of its time over the update's time in the same round, since a machine that slows down for a
 * while slows both. The benchmark prints the least figure of all patterns. */
#include "kernels/cpu/cpu.h"
#include "offload/host/host_slots.h"
#include "tests/support/bench.h"
#include "tests/support/bench_memory.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#if defined(__x86_64__)
#include <immintrin.h>
#define EACH_ISA __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define EACH_ISA
#endif

enum {
    MI = 1 << 20,
    PARAMS_MI = 32,
    ROUNDS = 21,
    QUICK_ROUNDS = 3,
    ROUNDS_MAX = 64,
    ARRAYS = 4, /* param, master, momentum, variance */
    RUN_ELEMENTS = 16384,
    BLOCK_ELEMENTS = 64,
    AHEAD_ELEMENTS = 384,
    LINE_BYTES = 64,
    COUNTED_ELEMENTS = 64 * RUN_ELEMENTS,
};

/* --- the arrays of an update --- */

typedef struct arrays {
    tide_host_slots slots[ARRAYS]; /* made as a pool makes its host slots */
    tide_dtype dtype;
    size_t elements;
} arrays;

static size_t element_bytes(const arrays *a, int array)
{
    return array == 0 ? tide_dtype_bytes(a->dtype) : sizeof(float);
}

static double bytes_moved(const arrays *a)
{
    double bytes = 0;
    for (int i = 0; i < ARRAYS; i++)
        bytes += 2.0 * (double)element_bytes(a, i) * (double)a->elements;
    return bytes;
}

static void *at(const arrays *a, int array, size_t element)
{
    return (char *)tide_host_slots_address(&a->slots[array], 0) + element * element_bytes(a, array);
}

static arrays arrays_make(tide_dtype dtype, size_t elements, int threads)
{
    arrays made = {.dtype = dtype, .elements = elements};
    for (int i = 0; i < ARRAYS; i++)
        bench_check(tide_host_slots_create(&made.slots[i], 1, elements * element_bytes(&made, i),
                                           &(tide_first_touch){.threads = (uint32_t)threads}),
                    "arrays");
    return made;
}

static void arrays_free(arrays *a)
{
    for (int i = 0; i < ARRAYS; i++)
        tide_host_slots_destroy(&a->slots[i]);
}

static void set(const arrays *a, size_t i, float value, float momentum, float variance)
{
    if (a->dtype == TIDE_DTYPE_BF16)
        *(tide_bf16 *)at(a, 0, i) = tide_bf16_from_float(value);
    else
        *(float *)at(a, 0, i) = value;
    *(float *)at(a, 1, i) = value;
    *(float *)at(a, 2, i) = momentum;
    *(float *)at(a, 3, i) = variance;
}

/* Fills the arrays with ordinary values, as some machines are slower with denormals or infinities. */
static void fill(const arrays *a)
{
    for (size_t i = 0; i < a->elements; i++) {
        const float value = 0.001f * (float)(1 + i % 997) * (i % 2 ? 1.0f : -1.0f);
        set(a, i, value, 0.1f * value, value * value);
    }
}

/* --- the update --- */

static double update_seconds(const arrays *a, int threads)
{
    const tide_adamw_segment segment = {.param = at(a, 0, 0),
                                        .master = at(a, 1, 0),
                                        .momentum = at(a, 2, 0),
                                        .variance = at(a, 3, 0),
                                        .elements = a->elements,
                                        .decays = true};
    const tide_adamw_args args = {.segments = &segment,
                                  .segment_count = 1,
                                  .factors = tide_adam_factors_make(1e-4, 0.9, 0.95, 1e-8, 0.1, 1000, 0.5),
                                  .dtype = a->dtype};
    const double begin = bench_seconds();
    tide_kernels_cpu_configure(threads);
    bench_check(tide_kernels_cpu()->adamw(NULL, &args), "adamw");
    return bench_seconds() - begin;
}

/* --- patterns of the limit --- */

/* Rewrite one array in place: floats are multiplied by a 1 that the compiler does not know, 16-bit elements
 * change a bit. */
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

__attribute__((always_inline)) static inline void ask_for(const void *from, size_t bytes)
{
    for (size_t line = 0; line < bytes; line += LINE_BYTES)
        __builtin_prefetch((const char *)from + line);
}

/* Rewrite the four arrays of an update side by side, in blocks. Each block prefetches the block that lies
 * `ahead` elements further on; 0: none. */
EACH_ISA static void touch_four_bf16(uint16_t *restrict param, float *restrict master,
                                     float *restrict momentum, float *restrict variance, size_t count,
                                     size_t ahead, float one)
{
    for (size_t block = 0; block < count; block += BLOCK_ELEMENTS) {
        if (ahead > 0) {
            ask_for(param + block + ahead, BLOCK_ELEMENTS * sizeof *param);
            ask_for(master + block + ahead, BLOCK_ELEMENTS * sizeof *master);
            ask_for(momentum + block + ahead, BLOCK_ELEMENTS * sizeof *momentum);
            ask_for(variance + block + ahead, BLOCK_ELEMENTS * sizeof *variance);
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
            ask_for(param + block + ahead, BLOCK_ELEMENTS * sizeof *param);
            ask_for(master + block + ahead, BLOCK_ELEMENTS * sizeof *master);
            ask_for(momentum + block + ahead, BLOCK_ELEMENTS * sizeof *momentum);
            ask_for(variance + block + ahead, BLOCK_ELEMENTS * sizeof *variance);
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
static void touch_four(const arrays *a, size_t begin, size_t count, size_t ahead)
{
    if (a->dtype == TIDE_DTYPE_BF16)
        touch_four_bf16(at(a, 0, begin), at(a, 1, begin), at(a, 2, begin), at(a, 3, begin), count, ahead,
                        one);
    else
        touch_four_fp32(at(a, 0, begin), at(a, 1, begin), at(a, 2, begin), at(a, 3, begin), count, ahead,
                        one);
}

static void share_together(const arrays *a, size_t begin, size_t count)
{
    touch_four(a, begin, count, 0);
}

static void share_ahead(const arrays *a, size_t begin, size_t count)
{
    touch_four(a, begin, count, AHEAD_ELEMENTS);
}

static void share_apart(const arrays *a, size_t begin, size_t count)
{
    for (int i = 0; i < ARRAYS; i++)
        if (element_bytes(a, i) == sizeof(float))
            touch_floats(at(a, i, begin), count, one);
        else
            touch_halves(at(a, i, begin), count, 1);
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

static void share_copied(const arrays *a, size_t begin, size_t count)
{
    for (int i = 0; i < ARRAYS; i++)
        stream_copy(at(a, i, (begin + a->elements) / 2), at(a, i, begin / 2),
                    count / 2 * element_bytes(a, i));
}

static void share_memcpy(const arrays *a, size_t begin, size_t count)
{
    for (int i = 0; i < ARRAYS; i++)
        memcpy(at(a, i, (begin + a->elements) / 2), at(a, i, begin / 2), count / 2 * element_bytes(a, i));
}

typedef struct pattern {
    const char *name;
    void (*share)(const arrays *a, size_t begin, size_t count);
    bool dealt; /* the threads take short stretches in turn; false: one contiguous share each */
} pattern;

static const pattern patterns[] = {{"together", share_together, false}, {"ahead", share_ahead, false},
                                   {"dealt", share_together, true},     {"apart", share_apart, false},
                                   {"copied", share_copied, false},     {"memcpy", share_memcpy, false}};
enum { PATTERNS = sizeof patterns / sizeof patterns[0] };

static double pattern_seconds(const pattern *of, const arrays *a, int threads)
{
    const size_t parts = of->dealt ? a->elements / RUN_ELEMENTS : (size_t)threads;
    const size_t part = a->elements / parts / 256 * 256;
    const double begin = bench_seconds();
#pragma omp parallel for num_threads(threads) schedule(static, 1)
    for (size_t i = 0; i < parts; i++)
        of->share(a, i * part, i + 1 == parts ? a->elements - i * part : part);
    return bench_seconds() - begin;
}

/* --- counting the bytes that a pattern moves --- */

/* Fills the two halves with different values, so that a copy of one to the other shows. */
static void fill_halves(const arrays *a)
{
    for (size_t i = 0; i < a->elements; i++) {
        const float value = i < a->elements / 2 ? 1 : 3;
        set(a, i, value, value, value);
    }
}

static double changed_bytes(const arrays *now, const arrays *before)
{
    double bytes = 0;
    for (int i = 0; i < ARRAYS; i++)
        for (size_t e = 0; e < now->elements; e++)
            if (memcmp(at(now, i, e), at(before, i, e), element_bytes(now, i)) != 0)
                bytes += (double)element_bytes(now, i);
    return bytes;
}

/* Sets which part of an update's bytes each pattern moves. */
static void count_parts(tide_dtype dtype, int threads, double parts[PATTERNS])
{
    arrays now = arrays_make(dtype, COUNTED_ELEMENTS, threads);
    arrays before = arrays_make(dtype, COUNTED_ELEMENTS, threads);
    fill_halves(&before);
    one = 2;
    for (int p = 0; p < PATTERNS; p++) {
        fill_halves(&now);
        (void)pattern_seconds(&patterns[p], &now, threads);
        parts[p] = 2 * changed_bytes(&now, &before) / bytes_moved(&now);
    }
    one = 1;
    arrays_free(&before);
    arrays_free(&now);
}

/* --- rounds --- */

typedef struct rounds {
    size_t count;
    double ours[ROUNDS_MAX];
    /* seconds for all bytes of an update, at the pattern's rate */
    double pattern[PATTERNS][ROUNDS_MAX];
    /* seconds to only read, and to only write, all bytes once */
    bench_memory_times alone[ROUNDS_MAX];
} rounds;

/* Measures reading alone and writing alone, each over all bytes of the arrays. */
static bench_memory_times measure_alone(const arrays *a, int threads)
{
    bench_memory_times sum = {0};
    for (int i = 0; i < ARRAYS; i++) {
        const bench_memory_times one_array =
            bench_memory_measure(at(a, i, 0), at(a, i, 0), a->elements * element_bytes(a, i), threads);
        sum.read_seconds += one_array.read_seconds;
        sum.write_seconds += one_array.write_seconds;
    }
    return sum;
}

/* Discards the first round, which wakes threads and fills translation caches. */
static void measure(const arrays *a, int threads, rounds *r)
{
    double parts[PATTERNS];
    count_parts(a->dtype, threads, parts);
    for (size_t round = 0; round <= r->count; round++) {
        const size_t kept = round == 0 ? 0 : round - 1;
        r->ours[kept] = update_seconds(a, threads);
        for (int p = 0; p < PATTERNS; p++)
            r->pattern[p][kept] = pattern_seconds(&patterns[p], a, threads) / parts[p];
        r->alone[kept] = measure_alone(a, threads);
    }
}

static double median_ratio(const rounds *r, int p)
{
    double ratios[ROUNDS_MAX];
    for (size_t i = 0; i < r->count; i++)
        ratios[i] = r->pattern[p][i] / r->ours[i];
    return bench_median(ratios, r->count);
}

static int limit_of(const rounds *r)
{
    int best = 0;
    for (int p = 1; p < PATTERNS; p++)
        best = median_ratio(r, p) < median_ratio(r, best) ? p : best;
    return best;
}

/* --- figures --- */

/* Compares the limit with reading alone and writing alone. */
static void print_agreement(const arrays *a, const rounds *r, const pattern *limit, double seconds,
                            const char *name)
{
    const double bytes = bytes_moved(a) / 2;
    const bench_memory_times alone = bench_memory_median(r->alone, r->count);
    const char *relation;
    const double agreement = bench_memory_agreement(&alone, (size_t)bytes, seconds, bytes, &relation);
    bench_figure(bench_name("%s, limits agree", name), agreement, "ratio", BENCH_AT_MOST, BENCH_AGREEMENT,
                 "GB/s: reading alone %.2f, writing alone %.2f, the limit (%s) each way %.2f; above 1: %s",
                 bytes / alone.read_seconds / 1e9, bytes / alone.write_seconds / 1e9, limit->name,
                 bytes / seconds / 1e9, relation);
}

static void print_figures(const arrays *a, int threads, size_t round_count, const char *name,
                          bench_bound bound)
{
    static rounds r;
    char rates[256] = "";
    double seconds[PATTERNS];
    r.count = round_count;
    measure(a, threads, &r);
    const int limit = limit_of(&r);
    const double ratio = median_ratio(&r, limit), bytes = bytes_moved(a);
    for (int p = 0, length = 0; p < PATTERNS; p++) {
        seconds[p] = bench_median(r.pattern[p], r.count);
        length += snprintf(rates + length, sizeof rates - (size_t)length, "%s%s %.2f", p > 0 ? ", " : "",
                           patterns[p].name, bytes / seconds[p] / 1e9);
    }
    const double ours = bench_median(r.ours, r.count);
    bench_figure(
        name, ratio, "ratio", bound, 0.90,
        "%d threads, %.0f Mi parameters of %.0f bytes: %.3g parameters/s, %.2f GB/s; limit %s (GB/s: %s)",
        threads, (double)a->elements / MI, bytes / (double)a->elements, (double)a->elements / ours,
        bytes / ours / 1e9, patterns[limit].name, rates);
    print_agreement(a, &r, &patterns[limit], seconds[limit], name);
}

static void print_all(size_t round_count)
{
    static const struct {
        tide_dtype dtype;
        const char *all, *single;
    } kinds[] = {{TIDE_DTYPE_BF16, "bf16 all threads", "bf16 1 thread"},
                 {TIDE_DTYPE_FP32, "fp32 all threads", "fp32 1 thread"}};
    const int threads = (int)bench_threads();
    bench_begin("adam");
    for (size_t k = 0; k < sizeof kinds / sizeof kinds[0]; k++) {
        arrays a = arrays_make(kinds[k].dtype, (size_t)PARAMS_MI * MI, threads);
        fill(&a);
        print_figures(&a, threads, round_count, kinds[k].all, BENCH_AT_LEAST);
        print_figures(&a, 1, round_count, kinds[k].single, BENCH_NO_BOUND);
        arrays_free(&a);
    }
    bench_end();
}

static void print_ours_only(size_t elements, size_t round_count, int threads)
{
    double seconds[ROUNDS_MAX];
    arrays a = arrays_make(TIDE_DTYPE_BF16, elements, threads);
    fill(&a);
    (void)update_seconds(&a, threads);
    for (size_t i = 0; i < round_count; i++)
        seconds[i] = update_seconds(&a, threads);
    printf("%.6g\n", (double)elements / bench_median(seconds, round_count));
    arrays_free(&a);
}

static size_t number_of(const char *text, unsigned long most)
{
    char *end;
    const unsigned long number = strtoul(text, &end, 10);
    if (*end != '\0' || number < 1 || number > most)
        bench_die("%s is not a number from 1 to %lu", text, most);
    return number;
}

int main(int argc, char **argv)
{
    if (argc == 5 && strcmp(argv[1], "--ours-only") == 0)
        print_ours_only(number_of(argv[2], 4096) * MI, number_of(argv[3], ROUNDS_MAX),
                        (int)number_of(argv[4], bench_threads()));
    else
        print_all(bench_options(argc, argv) ? QUICK_ROUNDS : ROUNDS);
    return 0;
}
