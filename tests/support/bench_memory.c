/* Each thread reads or writes a contiguous share of the memory, at LANES places in turn: a core keeps more
 * memory requests in flight when it walks at several places. */
#include "tests/support/bench_memory.h"

#include "tests/support/bench.h"

#include <math.h>
#include <string.h>

#if defined(__x86_64__)
#include <immintrin.h>
#define EACH_ISA __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define EACH_ISA
#endif

enum { LANES = 4, LINE_WORDS = 8, AHEAD_WORDS = 256, SHARE_UNIT_BYTES = 4096, MEASURED_MAX = 64 };

static const uint64_t ordinary = UINT64_C(0x3c233c233c233c23); /* 0.00995 as fp32 and as bf16 */
/* Keeps the compiler from dropping the reads. */
static _Atomic uint64_t read_sum;

EACH_ISA static uint64_t read_lanes(const uint64_t *from, size_t lane_words, size_t ahead)
{
    uint64_t sums[LINE_WORDS] = {0}, sum = 0;
    for (size_t line = 0; line < lane_words; line += LINE_WORDS) {
        if (ahead > 0)
            for (size_t lane = 0; lane < LANES; lane++)
                __builtin_prefetch(from + lane * lane_words + line + ahead);
        for (size_t i = 0; i < LINE_WORDS; i++)
            sums[i] += (from[line + i] ^ from[lane_words + line + i]) +
                       (from[2 * lane_words + line + i] ^ from[3 * lane_words + line + i]);
    }
    for (size_t i = 0; i < LINE_WORDS; i++)
        sum += sums[i];
    return sum;
}

static void read_share(char *share, size_t bytes)
{
    read_sum = read_lanes((const uint64_t *)(void *)share, bytes / sizeof(uint64_t) / LANES, 0);
}

static void read_share_ahead(char *share, size_t bytes)
{
    read_sum = read_lanes((const uint64_t *)(void *)share, bytes / sizeof(uint64_t) / LANES, AHEAD_WORDS);
}

/* Ordinary stores with a prefetch of each line, as a kernel that works in place writes. */
EACH_ISA static void write_lanes(uint64_t *to, size_t lane_words)
{
    for (size_t line = 0; line < lane_words; line += LINE_WORDS)
        for (size_t lane = 0; lane < LANES; lane++) {
            uint64_t *words = to + lane * lane_words + line;
            __builtin_prefetch(words + AHEAD_WORDS, 1);
            for (size_t i = 0; i < LINE_WORDS; i++)
                words[i] = ordinary;
        }
}

static void write_share(char *share, size_t bytes)
{
    write_lanes((uint64_t *)(void *)share, bytes / sizeof(uint64_t) / LANES);
}

static void stream_share(char *share, size_t bytes)
{
#if defined(__x86_64__)
    const __m128i value = _mm_set1_epi64x((long long)ordinary);
    for (size_t i = 0; i < bytes; i += sizeof value)
        _mm_stream_si128((__m128i *)(void *)(share + i), value);
    _mm_sfence();
#else
    write_share(share, bytes);
#endif
}

static double seconds_of(void (*of_share)(char *share, size_t bytes), char *memory, size_t bytes, int threads)
{
    const size_t share = bytes / (size_t)threads / SHARE_UNIT_BYTES * SHARE_UNIT_BYTES;
    const double begin = bench_seconds();
#pragma omp parallel for num_threads(threads) schedule(static, 1)
    for (int t = 0; t < threads; t++)
        of_share(memory + (size_t)t * share, t + 1 == threads ? bytes - (size_t)t * share : share);
    return bench_seconds() - begin;
}

bench_memory_times bench_memory_measure(void *from, void *to, size_t bytes, int threads)
{
    return (bench_memory_times){.read_seconds = fmin(seconds_of(read_share, from, bytes, threads),
                                                     seconds_of(read_share_ahead, from, bytes, threads)),
                                .write_seconds = fmin(seconds_of(stream_share, to, bytes, threads),
                                                      seconds_of(write_share, to, bytes, threads))};
}

bench_memory_times bench_memory_median(const bench_memory_times *measured, size_t count)
{
    double reads[MEASURED_MAX], writes[MEASURED_MAX];
    if (count > MEASURED_MAX)
        bench_die("medians of more than %d measurements", MEASURED_MAX);
    for (size_t i = 0; i < count; i++) {
        reads[i] = measured[i].read_seconds;
        writes[i] = measured[i].write_seconds;
    }
    return (bench_memory_times){bench_median(reads, count), bench_median(writes, count)};
}

double bench_memory_claim(const bench_memory_times *alone, size_t alone_bytes, double seconds, double bytes,
                          const char **relation)
{
    const double part = bytes / (double)alone_bytes / seconds;
    const double reads = alone->read_seconds * part, writes = alone->write_seconds * part;
    *relation = reads > writes ? "reads faster than reading alone" : "writes faster than writing alone";
    return fmax(reads, writes);
}

double bench_memory_agreement(const bench_memory_times *alone, size_t alone_bytes, double seconds,
                              double bytes, const char **relation)
{
    const double claim = bench_memory_claim(alone, alone_bytes, seconds, bytes, relation);
    const double both_seconds = (alone->read_seconds + alone->write_seconds) * bytes / (double)alone_bytes;
    if (seconds / both_seconds <= claim)
        return claim;
    *relation = "slower than reading, then writing";
    return seconds / both_seconds;
}
