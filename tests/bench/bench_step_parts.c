/* Measures the parts of a step alone: plain copies of chunks, maps and unmaps, and Adam over memory that
 * no cache holds.
 *
 * They use memory as a pool does: a host device of their own with slots in both tiers. Adam gets all
 * segments in one call, so that the limit does not depend on chunks. */
#include "tests/bench/bench_step.h"
#include "tests/support/bench.h"
#include "tests/support/bench_memory.h"

#include <stdlib.h>
#include <string.h>

enum {
    /* slots of each tier: 8 for bf16 params and 16 for each of the three fp32 arrays (master, momentum,
     * variance) */
    SLOTS = 56,
    PARAM_SLOTS = 8,
    STATE_SLOTS = 16,
    SEGMENT_ELEMENTS = STEP_CHUNK_BYTES / 4,
    REPETITIONS = 3,
};

struct step_parts_fixture {
    tide_device *device;
    char *places;
    tide_adamw_segment segments[STATE_SLOTS];
};

static char *host_slot(const step_parts_fixture *fixture, uint32_t slot)
{
    return fixture->device->ops->slot_address(fixture->device, TIDE_TIER_HOST, slot);
}

static void fill_segments(step_parts_fixture *fixture)
{
    for (uint32_t i = 0; i < STATE_SLOTS; i++) {
        const uint32_t state = PARAM_SLOTS + i;
        fixture->segments[i] = (tide_adamw_segment){
            .param = host_slot(fixture, i / 2) + i % 2 * (STEP_CHUNK_BYTES / 2),
            .master = (float *)(void *)host_slot(fixture, state),
            .momentum = (float *)(void *)host_slot(fixture, state + STATE_SLOTS),
            .variance = (float *)(void *)host_slot(fixture, state + 2 * STATE_SLOTS),
            .elements = SEGMENT_ELEMENTS,
            .decays = true,
        };
    }
}

step_parts_fixture *step_parts_open(void)
{
    step_parts_fixture *fixture = calloc(1, sizeof *fixture);
    if (fixture == NULL)
        bench_die("no memory for the parts");
    const tide_device_options options = {.device_memory_bytes = (uint64_t)SLOTS * STEP_CHUNK_BYTES,
                                         .host_memory_bytes = (uint64_t)SLOTS * STEP_CHUNK_BYTES,
                                         .chunk_bytes = STEP_CHUNK_BYTES,
                                         .threads = bench_threads()};
    step_ok(tide_device_host_open(&options, &fixture->device), "parts");
    const tide_device_ops *ops = fixture->device->ops;
    step_ok(ops->slots_create(fixture->device, TIDE_TIER_DEVICE, SLOTS), "parts");
    step_ok(ops->slots_create(fixture->device, TIDE_TIER_HOST, SLOTS), "parts");
    void *places;
    step_ok(ops->reserve(fixture->device, (uint64_t)SLOTS * STEP_CHUNK_BYTES, &places), "parts");
    fixture->places = places;
    fill_segments(fixture);
    return fixture;
}

void step_parts_close(step_parts_fixture *fixture)
{
    fixture->device->ops->close(fixture->device);
    free(fixture);
}

static char *place(const step_parts_fixture *fixture, uint32_t slot)
{
    return fixture->places + (uint64_t)slot * STEP_CHUNK_BYTES;
}

static double map_all(step_parts_fixture *fixture)
{
    const double begin = bench_seconds();
    for (uint32_t i = 0; i < SLOTS; i++)
        step_ok(fixture->device->ops->map(fixture->device, i, place(fixture, i)), "map");
    return bench_seconds() - begin;
}

static double unmap_all(step_parts_fixture *fixture)
{
    const double begin = bench_seconds();
    for (uint32_t i = 0; i < SLOTS; i++)
        step_ok(fixture->device->ops->unmap(fixture->device, i, place(fixture, i)), "unmap");
    return bench_seconds() - begin;
}

static double copy_all(const step_parts_fixture *fixture, bool to_device)
{
    const double begin = bench_seconds();
    for (uint32_t i = 0; i < SLOTS; i++) {
        if (to_device)
            memcpy(place(fixture, i), host_slot(fixture, i), STEP_CHUNK_BYTES);
        else
            memcpy(host_slot(fixture, i), place(fixture, i), STEP_CHUNK_BYTES);
    }
    return bench_seconds() - begin;
}

static double adam_all(step_parts_fixture *fixture)
{
    const tide_adamw_args adamw = {.segments = fixture->segments,
                                   .segment_count = STATE_SLOTS,
                                   .factors =
                                       tide_adam_factors_make(1e-3F, 0.9F, 0.95F, 1e-8F, 0.1F, 1, 1.0F),
                                   .dtype = TIDE_DTYPE_BF16};
    const double begin = bench_seconds();
    step_ok(tide_kernels_cpu()->adamw(NULL, &adamw), "adam");
    return bench_seconds() - begin;
}

void step_parts_measure(step_parts_fixture *fixture, step_parts *parts)
{
    double in[REPETITIONS], out[REPETITIONS], map[REPETITIONS], adam[REPETITIONS];
    for (int i = 0; i < REPETITIONS; i++) {
        map[i] = map_all(fixture);
        in[i] = copy_all(fixture, true);
        out[i] = copy_all(fixture, false);
        map[i] += unmap_all(fixture);
        adam[i] = adam_all(fixture);
    }
    const double bytes = (double)SLOTS * STEP_CHUNK_BYTES;
    parts->copy_seconds_per_byte[0] = bench_median(in, REPETITIONS) / bytes;
    parts->copy_seconds_per_byte[1] = bench_median(out, REPETITIONS) / bytes;
    parts->map_seconds = bench_median(map, REPETITIONS) / SLOTS;
    parts->adam_seconds_per_param =
        bench_median(adam, REPETITIONS) / ((double)STATE_SLOTS * SEGMENT_ELEMENTS);
}

/* Measures reading alone, writing alone and Adam, all over the host's slots, which lie one after the other
 * and hold all arrays of Adam. */
double step_parts_agreement(step_parts_fixture *fixture, const char **relation)
{
    double reads[REPETITIONS], writes[REPETITIONS], adam[REPETITIONS];
    const size_t bytes = (size_t)SLOTS * STEP_CHUNK_BYTES;
    for (int i = 0; i < REPETITIONS; i++) {
        const bench_memory_times alone =
            bench_memory_measure(host_slot(fixture, 0), host_slot(fixture, 0), bytes, (int)bench_threads());
        reads[i] = alone.read_seconds;
        writes[i] = alone.write_seconds;
        adam[i] = adam_all(fixture);
    }
    const bench_memory_times alone = {bench_median(reads, REPETITIONS), bench_median(writes, REPETITIONS)};
    return bench_memory_agreement(&alone, bytes, bench_median(adam, REPETITIONS), (double)bytes, relation);
}
