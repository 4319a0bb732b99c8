/* What the device tests share: a small host device with every check on, and kernels that are easy to observe.
 */
#ifndef TIDE_TESTS_TEST_OFFLOAD_FIXTURE_H
#define TIDE_TESTS_TEST_OFFLOAD_FIXTURE_H

#include "offload/device.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum {
    CHUNK_BYTES = 256 << 10,
    DEVICE_SLOTS = 4,
    HOST_SLOTS = 6,
    RANGE_CHUNKS = 8,
    REGION_BYTES = 10000,
    BUFFER_BYTES = 5000,
    SITE = 1,
    OTHER_SITE = 2,
};

#define assert_ok(call)                                                                                      \
    do {                                                                                                     \
        tide_status status_of_call = (call);                                                                 \
        if (status_of_call != TIDE_OK)                                                                       \
            fail_msg("%s: %s", tide_status_name(status_of_call), tide_message());                            \
    } while (0)

typedef struct fixture {
    tide_device *device;
    const tide_device_ops *ops;
    char *range;
    char *region;
    char *buffer;
    uint32_t region_object;
    uint32_t buffer_object;
    tide_event events[8];
} fixture;

static inline tide_device_options options_small(void)
{
    return (tide_device_options){
        .device_memory_bytes = DEVICE_SLOTS * CHUNK_BYTES + REGION_BYTES,
        .host_memory_bytes = HOST_SLOTS * CHUNK_BYTES + 8192,
        .chunk_bytes = CHUNK_BYTES,
        .threads = 1,
        .hazard_check = true,
        .guard = true,
    };
}

/* Exactly fills both budgets. */
static inline void fixture_fill(fixture *it)
{
    const tide_device_ops *ops = it->ops;
    void *address;
    assert_ok(ops->slots_create(it->device, TIDE_TIER_DEVICE, DEVICE_SLOTS));
    assert_ok(ops->slots_create(it->device, TIDE_TIER_HOST, HOST_SLOTS));
    assert_ok(ops->reserve(it->device, RANGE_CHUNKS * CHUNK_BYTES, &address));
    it->range = address;
    assert_ok(ops->region_create(it->device, REGION_BYTES, &address));
    it->region = address;
    assert_ok(ops->region_object(it->device, "region", 0, REGION_BYTES, &it->region_object));
    assert_ok(ops->buffer_create(it->device, "batch", BUFFER_BYTES, &address, &it->buffer_object));
    it->buffer = address;
    for (size_t i = 0; i < sizeof it->events / sizeof it->events[0]; i++)
        assert_ok(ops->event_create(it->device, &it->events[i]));
}

static inline fixture fixture_open(const tide_device_options *options)
{
    fixture it = {0};
    assert_ok(tide_device_host_open(options, &it.device));
    it.ops = it.device->ops;
    fixture_fill(&it);
    return it;
}

static inline fixture fixture_small(void)
{
    tide_device_options options = options_small();
    return fixture_open(&options);
}

static inline void fixture_close(fixture *it)
{
    it->ops->close(it->device);
}

static inline char *place(const fixture *it, uint32_t chunk)
{
    return it->range + (size_t)chunk * CHUNK_BYTES;
}

static inline char *own(const fixture *it, tide_tier tier, uint32_t slot)
{
    return it->ops->slot_address(it->device, tier, slot);
}

static inline tide_work work_of(const char *label, uint32_t tag)
{
    return (tide_work){.label = label, .tag = tag};
}

static inline tide_work work_on(const char *label, uint32_t tag, const tide_access *access)
{
    return (tide_work){.label = label, .tag = tag, .accesses = access, .access_count = 1};
}

/* A kernel that says that it began, and goes on when the gate is opened. */
typedef struct gate {
    atomic_bool began;
    atomic_bool open;
} gate;

static inline tide_status gate_kernel(void *stream, const void *arguments)
{
    (void)stream;
    gate *it = *(gate *const *)arguments;
    atomic_store(&it->began, true);
    while (!atomic_load(&it->open))
        ;
    return TIDE_OK;
}

static inline tide_status launch_gate(fixture *it, tide_stream stream, gate *held)
{
    tide_work work = work_of("gate", 0);
    return it->ops->launch(it->device, stream, &work, gate_kernel, &held, sizeof held);
}

/* Adds one to an atomic counter. */
static inline tide_status count_kernel(void *stream, const void *arguments)
{
    (void)stream;
    atomic_fetch_add(*(atomic_int *const *)arguments, 1);
    return TIDE_OK;
}

static inline tide_status launch_count(fixture *it, tide_stream stream, atomic_int *counter)
{
    tide_work work = work_of("count", 0);
    return it->ops->launch(it->device, stream, &work, count_kernel, &counter, sizeof counter);
}

/* Sets an int in memory: memory = value. */
typedef struct store_arguments {
    int *memory;
    int value;
} store_arguments;

static inline tide_status store_kernel(void *stream, const void *arguments)
{
    (void)stream;
    const store_arguments *it = arguments;
    *it->memory = it->value;
    return TIDE_OK;
}

/* memory = 3 * memory + value: no two orders of such steps give the same. */
static inline tide_status mix_kernel(void *stream, const void *arguments)
{
    (void)stream;
    const store_arguments *it = arguments;
    *it->memory = (int)(3u * (unsigned)*it->memory + (unsigned)it->value);
    return TIDE_OK;
}

static inline bool is_done(fixture *it, tide_event event)
{
    bool done;
    assert_ok(it->ops->event_query(it->device, event, SITE, &done));
    return done;
}

#endif
