/* Compares the host's Adam update with the machine's memory bandwidth.
 *
 *     bench_adam [--params MI] [--rounds N | --quick] [--threads N]    the figures, as JSON
 *     bench_adam --ours-only MI [--rounds N] [--threads N]             parameters a second of one bf16
 *                                                                      update, a number
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
#include "tests/bench/bench_adam.h"
#include "kernels/cpu/cpu.h"
#include "tests/support/bench.h"
#include "tests/support/bench_memory.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MI = 1 << 20, ROUNDS_MAX = 200 };

/* ---- the update ---- */

static void ours(const adam_arrays *a, int threads)
{
    const tide_adamw_segment segment = {.param = adam_at(a, 0, 0),
                                        .master = adam_at(a, 1, 0),
                                        .momentum = adam_at(a, 2, 0),
                                        .variance = adam_at(a, 3, 0),
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

/* ---- measuring ---- */

static double seconds_of(void (*run)(const adam_arrays *, int), const adam_arrays *a, int threads)
{
    const double begin = bench_seconds();
    run(a, threads);
    return bench_seconds() - begin;
}

/* Fills the arrays with ordinary values, as some machines are slower with denormals or infinities. */
static void fill(const adam_arrays *a)
{
    for (size_t i = 0; i < a->elements; i++) {
        const float value = 0.001f * (float)(1 + i % 997) * (i % 2 ? 1.0f : -1.0f);
        if (a->dtype == TIDE_DTYPE_BF16)
            *(tide_bf16 *)adam_at(a, 0, i) = tide_bf16_from_float(value);
        else
            *(float *)adam_at(a, 0, i) = value;
        *(float *)adam_at(a, 1, i) = value;
        *(float *)adam_at(a, 2, i) = 0.1f * value;
        *(float *)adam_at(a, 3, i) = value * value;
    }
}

/* ---- rounds ---- */

typedef struct rounds {
    int count;
    double parts[ADAM_PATTERNS]; /* part of an update's bytes that each pattern moves */
    double ours[ROUNDS_MAX];
    /* seconds for all bytes of an update, at the pattern's rate */
    double pattern[ADAM_PATTERNS][ROUNDS_MAX];
    /* seconds to only read, and to only write, all bytes once */
    double read[ROUNDS_MAX], write[ROUNDS_MAX];
} rounds;

/* Measures reading alone and writing alone, each over all bytes of the arrays. */
static bench_memory_times measure_alone(const adam_arrays *a, int threads)
{
    bench_memory_times sum = {0};
    for (int i = 0; i < ADAM_ARRAYS; i++) {
        const bench_memory_times one_array = bench_memory_measure(
            adam_at(a, i, 0), adam_at(a, i, 0), a->elements * adam_element_bytes(a, i), threads);
        sum.read_seconds += one_array.read_seconds;
        sum.write_seconds += one_array.write_seconds;
    }
    return sum;
}

/* Discards the first round, which wakes threads and fills translation caches. */
static void measure(const adam_arrays *a, int threads, rounds *r)
{
    for (int round = -1; round < r->count; round++) {
        const int kept = round < 0 ? 0 : round;
        r->ours[kept] = seconds_of(ours, a, threads);
        for (int p = 0; p < ADAM_PATTERNS; p++)
            r->pattern[p][kept] = seconds_of(adam_patterns[p].run, a, threads) / r->parts[p];
        const bench_memory_times alone = measure_alone(a, threads);
        r->read[kept] = alone.read_seconds;
        r->write[kept] = alone.write_seconds;
    }
}

static double median_ratio(const rounds *r, int p)
{
    double ratios[ROUNDS_MAX];
    for (int i = 0; i < r->count; i++)
        ratios[i] = r->pattern[p][i] / r->ours[i];
    return bench_median(ratios, (size_t)r->count);
}

static int limit_of(const rounds *r)
{
    int best = 0;
    for (int p = 1; p < ADAM_PATTERNS; p++)
        best = median_ratio(r, p) < median_ratio(r, best) ? p : best;
    return best;
}

static double median_of(const double values[], int count)
{
    double sorted[ROUNDS_MAX];
    memcpy(sorted, values, (size_t)count * sizeof *values);
    return bench_median(sorted, (size_t)count);
}

static double gigabytes_of(const adam_arrays *a, const double seconds[], int count)
{
    return adam_bytes_moved(a) / median_of(seconds, count) / 1e9;
}

/* Compares the limit with reading alone and writing alone. */
static void print_agreement(const adam_arrays *a, const rounds *r, int limit, const char *name)
{
    const double bytes = adam_bytes_moved(a) / 2;
    const bench_memory_times alone = {.read_seconds = median_of(r->read, r->count),
                                      .write_seconds = median_of(r->write, r->count)};
    const double seconds = median_of(r->pattern[limit], r->count);
    const char *relation;
    const double agreement = bench_memory_agreement(&alone, (size_t)bytes, seconds, bytes, &relation);
    char full_name[64];
    snprintf(full_name, sizeof full_name, "%s, limits agree", name);
    bench_figure(full_name, agreement, "ratio", BENCH_AT_MOST, BENCH_AGREEMENT,
                 "GB/s: reading alone %.2f, writing alone %.2f, the limit (%s) each way %.2f; above 1: %s",
                 bytes / alone.read_seconds / 1e9, bytes / alone.write_seconds / 1e9,
                 adam_patterns[limit].name, bytes / seconds / 1e9, relation);
}

static void figure(const adam_arrays *a, const rounds *r, int threads, const char *name, bench_bound bound)
{
    const int limit = limit_of(r);
    char shapes[256] = "";
    for (int p = 0, length = 0; p < ADAM_PATTERNS; p++)
        length += snprintf(shapes + length, sizeof shapes - (size_t)length, "%s%s %.2f", p > 0 ? ", " : "",
                           adam_patterns[p].name, gigabytes_of(a, r->pattern[p], r->count));
    const double gigabytes = gigabytes_of(a, r->ours, r->count),
                 bytes = adam_bytes_moved(a) / (double)a->elements;
    bench_figure(
        name, median_ratio(r, limit), "ratio", bound, 0.90,
        "%d threads, %.0f Mi parameters of %.0f bytes: %.3g parameters/s, %.2f GB/s; limit %s (GB/s: %s)",
        threads, (double)a->elements / MI, bytes, gigabytes * 1e9 / bytes, gigabytes,
        adam_patterns[limit].name, shapes);
    print_agreement(a, r, limit, name);
}

static void measure_figures(const adam_arrays *a, int threads, int round_count, const char *name,
                            bench_bound bound)
{
    static rounds r;
    r.count = round_count;
    adam_count_parts(a->dtype, threads, r.parts);
    measure(a, threads, &r);
    figure(a, &r, threads, name, bound);
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
        adam_arrays a = adam_arrays_make(kinds[k].dtype, elements, threads);
        fill(&a);
        measure_figures(&a, threads, round_count, kinds[k].all, BENCH_AT_LEAST);
        measure_figures(&a, 1, round_count, kinds[k].single, BENCH_NO_BOUND);
        adam_arrays_free(&a);
    }
    bench_end();
}

static void print_ours_only(size_t elements, int threads, int round_count)
{
    adam_arrays a = adam_arrays_make(TIDE_DTYPE_BF16, elements, threads);
    fill(&a);
    double seconds[ROUNDS_MAX];
    (void)seconds_of(ours, &a, threads);
    for (int i = 0; i < round_count; i++)
        seconds[i] = seconds_of(ours, &a, threads);
    printf("%.6g\n", (double)elements / bench_median(seconds, (size_t)round_count));
    adam_arrays_free(&a);
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
