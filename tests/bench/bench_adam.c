/* Host Adam against the machine.
 *
 *     bench_adam [--params MI] [--rounds N | --quick] [--threads N]    the figures, as JSON
 *     bench_adam --ours-only MI [--rounds N] [--threads N]             parameters a second of one bf16 update, a number
 *
 * An update reads and writes param, master, momentum and variance once: 28 bytes a bf16 parameter, 32 an fp32 one. The
 * limit is the time in which this machine reads and writes so many bytes doing next to nothing with them, in the same
 * memory (made as the pool makes its host slots), by the same number of threads. Nobody knows beforehand which access
 * pattern a machine likes best, so several simple ones are tried and the fastest is the limit:
 *
 *     together   the four arrays side by side in one loop, each thread a contiguous share: Adam without its arithmetic
 *     ahead      the same, asking for the memory some lines ahead by prefetch instructions
 *     dealt      as together, in runs dealt to the threads in turn
 *     apart      one array after the other
 *     copied     half of each array onto the other half by streaming stores, which spare the write its read
 *
 * All patterns and the update itself take turns, round after round. The figure of a pattern is the median over the rounds
 * of its time over the update's time in that round: a machine that slows down for a while slows both. The least over the
 * patterns is told.
 */
#include "kernels/cpu/cpu.h"
#include "offload/host_slots.h"
#include "tests/bench/bench.h"

#include <stdio.h>
#include <stdlib.h>

#if defined(__x86_64__)
#include <immintrin.h>
#define EACH_ISA __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define EACH_ISA
#endif

enum {
    MI = 1 << 20,
    RUN_ELEMENTS = 16384,
    ROUNDS_MAX = 200,
    BLOCK_ELEMENTS = 64,
    AHEAD_ELEMENTS = 384,
    ARRAYS = 4,
};

/* The arrays of one pass, in slots of their own: param, then master, momentum, variance. */
typedef struct arrays {
    tide_host_slots slots[ARRAYS];
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

/* ---- patterns of the limit ---- */

/* In place, one array: 16-bit elements change a bit, floats are multiplied by a one that the compiler does not know. */
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

/* The four of a pass side by side, in blocks of which each asks for those `ahead` elements further on; 0: for none. */
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

static void *at(const arrays *a, int array, size_t element)
{
    return (char *)tide_host_slots_address(&a->slots[array], 0) + element * element_bytes(a, array);
}

static const volatile float one = 1.0f;

/* `count` is a multiple of the block. */
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

/* Run `share` on equal contiguous parts, one a thread. */
static void run_shares(const arrays *a, int threads,
                       void (*share)(const arrays *, size_t begin, size_t count))
{
    const size_t part = a->elements / (size_t)threads / 256 * 256;
#pragma omp parallel for num_threads(threads) schedule(static, 1)
    for (int t = 0; t < threads; t++)
        share(a, (size_t)t * part, t + 1 == threads ? a->elements - (size_t)t * part : part);
}

static void limit_together(const arrays *a, int threads)
{
    run_shares(a, threads, share_together);
}

static void limit_ahead(const arrays *a, int threads)
{
    run_shares(a, threads, share_ahead);
}

static void limit_dealt(const arrays *a, int threads)
{
    (void)threads; /* a build without OpenMP has one */
#pragma omp parallel for num_threads(threads) schedule(static, 1)
    for (size_t run = 0; run < a->elements / RUN_ELEMENTS; run++)
        touch_four(a, run * RUN_ELEMENTS, RUN_ELEMENTS, 0);
}

static void limit_apart(const arrays *a, int threads)
{
    run_shares(a, threads, share_apart);
}

static void limit_copied(const arrays *a, int threads)
{
    run_shares(a, threads, share_copied);
}

/* ---- ours ---- */

static void ours(const arrays *a, int threads)
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
    tide_kernels_cpu_configure(threads);
    if (tide_kernels_cpu()->adamw(NULL, &args) != TIDE_OK)
        bench_die("adamw: %s", tide_message());
}

typedef struct pattern {
    const char *name;
    void (*run)(const arrays *a, int threads);
} pattern;

static const pattern patterns[] = {{"together", limit_together},
                                   {"ahead", limit_ahead},
                                   {"dealt", limit_dealt},
                                   {"apart", limit_apart},
                                   {"copied", limit_copied}};
enum { PATTERNS = sizeof patterns / sizeof patterns[0] };

/* ---- measuring ---- */

static double seconds_of(void (*run)(const arrays *, int), const arrays *a, int threads)
{
    const double begin = bench_seconds();
    run(a, threads);
    return bench_seconds() - begin;
}

/* Ordinary values: neither denormals nor infinities, which some machines work on more slowly. */
static void fill(const arrays *a)
{
    for (size_t i = 0; i < a->elements; i++) {
        const float value = 0.001f * (float)(1 + i % 997) * (i % 2 ? 1.0f : -1.0f);
        if (a->dtype == TIDE_DTYPE_BF16)
            *(tide_bf16 *)at(a, 0, i) = tide_bf16_from_float(value);
        else
            *(float *)at(a, 0, i) = value;
        *(float *)at(a, 1, i) = value;
        *(float *)at(a, 2, i) = 0.1f * value;
        *(float *)at(a, 3, i) = value * value;
    }
}

static arrays arrays_make(tide_dtype dtype, size_t elements, int threads)
{
    arrays made = {.dtype = dtype, .elements = elements};
    for (int i = 0; i < ARRAYS; i++)
        if (tide_host_slots_create(&made.slots[i], 1, elements * element_bytes(&made, i),
                                   (uint32_t)threads) != TIDE_OK)
            bench_die("%s", tide_message());
    fill(&made);
    return made;
}

static void arrays_free(arrays *a)
{
    for (int i = 0; i < ARRAYS; i++)
        tide_host_slots_destroy(&a->slots[i]);
}

typedef struct rounds {
    int count;
    double ours[ROUNDS_MAX];
    double pattern[PATTERNS][ROUNDS_MAX];
} rounds;

/* One round more than is kept: the first wakes threads and fills translation caches. */
static void measure(const arrays *a, int threads, rounds *r)
{
    for (int round = -1; round < r->count; round++) {
        const int kept = round < 0 ? 0 : round;
        r->ours[kept] = seconds_of(ours, a, threads);
        for (int p = 0; p < PATTERNS; p++)
            r->pattern[p][kept] = seconds_of(patterns[p].run, a, threads);
    }
}

static double median_ratio(const rounds *r, int p)
{
    double ratios[ROUNDS_MAX];
    for (int i = 0; i < r->count; i++)
        ratios[i] = r->pattern[p][i] / r->ours[i];
    return bench_median(ratios, (size_t)r->count);
}

static void figure(const arrays *a, int threads, int round_count, const char *name, bench_bound bound)
{
    rounds r = {.count = round_count};
    measure(a, threads, &r);
    int best = 0;
    double ratio[PATTERNS], gigabytes[PATTERNS];
    for (int p = 0; p < PATTERNS; p++) {
        ratio[p] = median_ratio(&r, p);
        gigabytes[p] = bytes_moved(a) / bench_median(r.pattern[p], (size_t)round_count) / 1e9;
        best = ratio[p] < ratio[best] ? p : best;
    }
    char shapes[256] = "";
    for (int p = 0, length = 0; p < PATTERNS; p++)
        length += snprintf(shapes + length, sizeof shapes - (size_t)length, "%s%s %.2f", p > 0 ? ", " : "",
                           patterns[p].name, gigabytes[p]);
    const double seconds = bench_median(r.ours, (size_t)round_count);
    bench_figure(
        name, ratio[best], "ratio", bound, 0.90,
        "%d threads, %.0f Mi parameters of %.0f bytes: %.3g parameters/s, %.2f GB/s; limit %s (GB/s: %s)",
        threads, (double)a->elements / MI, bytes_moved(a) / (double)a->elements,
        (double)a->elements / seconds, bytes_moved(a) / seconds / 1e9, patterns[best].name, shapes);
}

static void print_figures(size_t elements, int threads, int round_count)
{
    static const struct {
        tide_dtype dtype;
        const char *all, *single;
    } kinds[] = {{TIDE_DTYPE_BF16, "bf16 all threads", "bf16 1 thread"},
                 {TIDE_DTYPE_FP32, "fp32 all threads", "fp32 1 thread"}};
    bench_begin("adam");
    for (size_t k = 0; k < sizeof kinds / sizeof kinds[0]; k++) {
        arrays a = arrays_make(kinds[k].dtype, elements, threads);
        figure(&a, threads, round_count, kinds[k].all, BENCH_AT_LEAST);
        figure(&a, 1, round_count, kinds[k].single, BENCH_NO_BOUND);
        arrays_free(&a);
    }
    bench_end();
}

static void print_ours_only(size_t elements, int threads, int round_count)
{
    arrays a = arrays_make(TIDE_DTYPE_BF16, elements, threads);
    double seconds[ROUNDS_MAX];
    (void)seconds_of(ours, &a, threads);
    for (int i = 0; i < round_count; i++)
        seconds[i] = seconds_of(ours, &a, threads);
    printf("%.6g\n", (double)elements / bench_median(seconds, (size_t)round_count));
    arrays_free(&a);
}

typedef struct options {
    long params_mi, rounds, threads;
    bool ours_only;
} options;

static long number_of(const char *name, const char *text, long most)
{
    char *end = NULL;
    const long number = text ? strtol(text, &end, 10) : 0;
    if (!text || *end || number < 1 || number > most)
        bench_die("%s: %s is not a number from 1 to %ld", name, text ? text : "nothing", most);
    return number;
}

static options options_read(int count, char **arguments)
{
    options read = {.params_mi = 32, .rounds = 21, .threads = (long)bench_threads()};
    for (int i = 1; i < count; i++) {
        const char *name = arguments[i];
        if (!strcmp(name, "--quick")) {
            read.rounds = 3;
            continue;
        }
        const char *value = ++i < count ? arguments[i] : NULL;
        if (!strcmp(name, "--params") || !strcmp(name, "--ours-only")) {
            read.params_mi = number_of(name, value, 4096);
            read.ours_only = !strcmp(name, "--ours-only");
        } else if (!strcmp(name, "--rounds")) {
            read.rounds = number_of(name, value, ROUNDS_MAX);
        } else if (!strcmp(name, "--threads")) {
            read.threads = number_of(name, value, (long)bench_threads());
        } else {
            bench_die("%s is unknown; --params MI, --ours-only MI, --rounds N, --quick, --threads N are not",
                      name);
        }
    }
    return read;
}

int main(int count, char **arguments)
{
    const options o = options_read(count, arguments);
    const size_t elements = (size_t)o.params_mi * MI;
    if (o.ours_only)
        print_ours_only(elements, (int)o.threads, (int)o.rounds);
    else
        print_figures(elements, (int)o.threads, (int)o.rounds);
    return 0;
}
