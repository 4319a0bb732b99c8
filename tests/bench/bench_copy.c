/* Copies of chunks as the engine makes them (copy_slot on the in and the out stream, queued back to back with an event
 * behind each, one wait for the last) against plain memcpy between the very same addresses.
 *
 *   host slots    [ in: from here | out: to here   ]
 *   chunk places  [ in: to here   | out: from here ]     device slots of the memfd, mapped once
 *
 * Plain: one warm thread a direction, timed by its own clock, so that no wake-up counts. Engine: from the first call to
 * the return of the last wait, all wake-ups included. Both in turn, the first of a round changing, in short rounds, so
 * that what else the machine does meets both; a figure is the median of the rounds' ratios. A round copies half of what
 * there is, so nothing is in a cache that was not left there by what is compared.
 *
 * The throttled link is measured against what it is told to be, at a quarter and a half of the plain rate.
 */
#include "tests/bench/bench_copy.h"

#include "tests/bench/bench.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

enum {
    SITE = 1,
    DIRECTION_BYTES = 256 << 20, /* there are, a direction */
    ROUND_BYTES = 128 << 20,     /* copied a direction and measurement */
    EVENTS = ROUND_BYTES / (4 << 20),
    ROUNDS_MAX = 41,
};

typedef enum direction { IN = 0, OUT, DIRECTIONS } direction;

/* Sets of directions: bits 1 << direction. Mode m is the set m + 1. */
static const char *const direction_names[] = {"in", "out", "both"};
enum { MODES = 3 };

struct rig {
    tide_device *device;
    const tide_device_ops *ops;
    uint64_t chunk_bytes;
    uint32_t chunks; /* a direction and measurement */
    tide_event events[DIRECTIONS][EVENTS];
    char *device_side[DIRECTIONS], *host_side[DIRECTIONS]; /* contiguous */
    uint32_t half;                                         /* which the next measurement copies */
};

void bench_check(tide_status status, const char *what)
{
    if (status != TIDE_OK)
        bench_die("%s: %s", what, tide_message());
}

/* --- the rig --- */

static void rig_map(rig *it)
{
    void *range;
    bench_check(it->ops->reserve(it->device, 2 * (uint64_t)DIRECTION_BYTES, &range), "reserve");
    for (uint32_t slot = 0; slot < 4 * it->chunks; slot++)
        bench_check(it->ops->map(it->device, slot, (char *)range + slot * it->chunk_bytes), "map");
    for (int d = 0; d < DIRECTIONS; d++) {
        it->device_side[d] = (char *)range + (uint64_t)d * DIRECTION_BYTES;
        it->host_side[d] = it->ops->slot_address(it->device, TIDE_TIER_HOST, 2 * (uint32_t)d * it->chunks);
        memset(it->device_side[d], 1, DIRECTION_BYTES); /* warm: every page there, in both tables */
        memset(it->host_side[d], 2, DIRECTION_BYTES);
    }
}

static rig rig_open(uint64_t chunk_bytes, double link_bytes_per_second)
{
    const tide_device_options options = {.device_memory_bytes = 2 * (uint64_t)DIRECTION_BYTES,
                                         .host_memory_bytes = 2 * (uint64_t)DIRECTION_BYTES,
                                         .chunk_bytes = chunk_bytes,
                                         .link_bytes_per_second = link_bytes_per_second};
    rig it = {.chunk_bytes = chunk_bytes, .chunks = (uint32_t)(ROUND_BYTES / chunk_bytes)};
    bench_check(tide_device_host_open(&options, &it.device), "host device");
    it.ops = it.device->ops;
    bench_check(it.ops->slots_create(it.device, TIDE_TIER_DEVICE, 4 * it.chunks), "device slots");
    bench_check(it.ops->slots_create(it.device, TIDE_TIER_HOST, 4 * it.chunks), "host slots");
    for (int d = 0; d < DIRECTIONS; d++)
        for (uint32_t i = 0; i < it.chunks; i++)
            bench_check(it.ops->event_create(it.device, &it.events[d][i]), "event");
    rig_map(&it);
    return it;
}

static void rig_close(rig *it)
{
    it->ops->close(it->device);
}

/* --- the engine's way --- */

static void enqueue(rig *it, direction d, uint32_t i)
{
    const tide_stream stream = d == IN ? TIDE_STREAM_IN : TIDE_STREAM_OUT;
    const tide_tier to = d == IN ? TIDE_TIER_DEVICE : TIDE_TIER_HOST;
    const tide_work work = {.label = "bench copy", .tag = i};
    const uint32_t slot = (2 * (uint32_t)d + it->half) * it->chunks + i;
    bench_check(it->ops->copy_slot(it->device, stream, &work, to, slot, slot, it->chunk_bytes), "copy");
    bench_check(it->ops->event_record(it->device, it->events[d][i], stream), "record");
}

static double engine_seconds(rig *it, unsigned directions)
{
    const double begin = bench_seconds();
    for (uint32_t i = 0; i < it->chunks; i++)
        for (unsigned d = 0; d < DIRECTIONS; d++)
            if (directions & 1U << d)
                enqueue(it, (direction)d, i);
    for (unsigned d = 0; d < DIRECTIONS; d++)
        if (directions & 1U << d)
            bench_check(it->ops->event_wait(it->device, it->events[d][it->chunks - 1], SITE), "wait");
    it->half ^= 1;
    return bench_seconds() - begin;
}

/* --- the plain way --- */

typedef struct plain {
    const rig *rig;
    direction direction;
    pthread_barrier_t *start;
    double begin, end;
} plain;

static void *plain_main(void *argument)
{
    plain *it = argument;
    const rig *r = it->rig;
    const uint64_t offset = r->half * (uint64_t)ROUND_BYTES;
    char *to = (it->direction == IN ? r->device_side[IN] : r->host_side[OUT]) + offset;
    const char *from = (it->direction == IN ? r->host_side[IN] : r->device_side[OUT]) + offset;
    (void)pthread_barrier_wait(it->start);
    it->begin = bench_seconds();
    for (uint32_t i = 0; i < r->chunks; i++)
        memcpy(to + i * r->chunk_bytes, from + i * r->chunk_bytes, r->chunk_bytes);
    it->end = bench_seconds();
    return NULL;
}

/* From when the first thread begins to when the last ends. */
static double plain_seconds(rig *r, unsigned directions)
{
    plain work[DIRECTIONS];
    pthread_t threads[DIRECTIONS];
    pthread_barrier_t start;
    unsigned count = 0;
    for (unsigned d = 0; d < DIRECTIONS; d++)
        if (directions & 1U << d)
            work[count++] = (plain){.rig = r, .direction = (direction)d, .start = &start};
    (void)pthread_barrier_init(&start, NULL, count);
    for (unsigned i = 0; i < count; i++)
        if (pthread_create(&threads[i], NULL, plain_main, &work[i]) != 0)
            bench_die("no thread for a plain copy");
    double begin = 0, end = 0;
    for (unsigned i = 0; i < count; i++) {
        (void)pthread_join(threads[i], NULL);
        begin = i == 0 || work[i].begin < begin ? work[i].begin : begin;
        end = work[i].end > end ? work[i].end : end;
    }
    (void)pthread_barrier_destroy(&start);
    r->half ^= 1;
    return end - begin;
}

/* --- figures --- */

static double rate(unsigned directions, double seconds)
{
    return (double)ROUND_BYTES * __builtin_popcount(directions) / seconds;
}

double bench_copy_plain_rate(rig *it, bool both)
{
    const unsigned directions = both ? 1U << IN | 1U << OUT : 1U << IN;
    return rate(directions, plain_seconds(it, directions));
}

/* Engine's rate over plain rate for one chunk size and mode; the plain rate goes out, too. */
static void measure(rig *it, unsigned mode, int rounds, double *ratio, double *plain_rate)
{
    double ratios[ROUNDS_MAX], rates[ROUNDS_MAX];
    const unsigned directions = mode + 1;
    for (int round = 0; round < rounds; round++) {
        double engine = 0, other = 0;
        for (int turn = 0; turn < 2; turn++) {
            if ((turn + round) % 2)
                engine = engine_seconds(it, directions);
            else
                other = plain_seconds(it, directions);
        }
        ratios[round] = other / engine;
        rates[round] = rate(directions, other);
    }
    *ratio = bench_median(ratios, (size_t)rounds);
    *plain_rate = bench_median(rates, (size_t)rounds);
}

/* The plain rates go out, too. */
static void bench_streams(rig *it, int rounds, double plain_rates[MODES])
{
    static const double required[MODES] = {0.95, 0.95, 0.90};
    for (unsigned mode = 0; mode < MODES; mode++) {
        char name[32];
        double ratio;
        measure(it, mode, rounds, &ratio, &plain_rates[mode]);
        snprintf(name, sizeof name, "%s, %" PRIu64 " MiB", direction_names[mode], it->chunk_bytes >> 20);
        bench_figure(name, ratio, "ratio", BENCH_AT_LEAST, required[mode],
                     "queued copy_slot against memcpy between the same addresses, %.2f GB/s plain",
                     plain_rates[mode] * 1e-9);
    }
}

/* What a link of `share` of the plain rate each way carries, of what it should. */
static void bench_throttled(unsigned mode, double share, double plain_rate, int rounds)
{
    double ratios[ROUNDS_MAX];
    char name[48];
    const unsigned directions = mode + 1, ways = (unsigned)__builtin_popcount(directions);
    const double link_rate = share * plain_rate / ways;
    rig it = rig_open(4 << 20, link_rate);
    for (int round = 0; round < rounds; round++)
        ratios[round] = rate(directions, engine_seconds(&it, directions)) / (link_rate * ways);
    rig_close(&it);
    snprintf(name, sizeof name, "throttled to %.0f%%, %s", 100 * share, direction_names[mode]);
    bench_figure(name, bench_median(ratios, (size_t)rounds), "ratio", BENCH_AT_LEAST, 0.95,
                 "carried by a link of %.2f GB/s each way, 4 MiB chunks", link_rate * 1e-9);
}

static void bench_chunks(uint64_t chunk_bytes, bool throttled, bool quick)
{
    static const double shares[] = {0.25, 0.5};
    double plain_rates[MODES];
    const int few = quick ? 3 : 9;
    rig it = rig_open(chunk_bytes, 0);
    bench_streams(&it, quick ? 9 : ROUNDS_MAX, plain_rates);
    bench_copy_pool(&it, chunk_bytes, few);
    rig_close(&it);
    for (size_t i = 0; throttled && i < sizeof shares / sizeof shares[0]; i++)
        for (unsigned mode = 0; mode < MODES; mode++)
            bench_throttled(mode, shares[i], plain_rates[mode], few);
}

int main(int argc, char **argv)
{
    const bool quick = bench_options(argc, argv);
    bench_begin("copy");
    bench_chunks(4 << 20, true, quick);
    bench_chunks(64 << 20, false, quick);
    bench_end();
    return 0;
}
