/* Shared by the device tests: a small device with all checks on, and kernels with results that are easy to
 * check. The device is the host device or, with TEST_ON_CUDA, the CUDA device on the fake runtime
 * (fake_cudart.h). */
#ifndef TIDE_TESTS_TEST_OFFLOAD_FIXTURE_H
#define TIDE_TESTS_TEST_OFFLOAD_FIXTURE_H

#include "offload/device.h"
#include "tests/support/assert_ok.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifdef TEST_ON_CUDA
#include "offload/cuda/cuda_device.h"
#include "tests/gpu/fake_cudart.h"

#include <cuda_runtime_api.h>
#endif

enum {
#ifdef TEST_ON_CUDA
    CHUNK_BYTES = FAKE_CUDART_GRANULARITY,
#else
    CHUNK_BYTES = 256 << 10,
#endif
    DEVICE_SLOTS = 4,
    HOST_SLOTS = 6,
    RANGE_CHUNKS = 8,
    REGION_BYTES = 10000,
    BUFFER_BYTES = 5000,
    SITE = 1,
    OTHER_SITE = 2,
};

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
#ifndef TEST_ON_CUDA /* only the host device checks the order of commands */
        .checks.hazard_check = true,
        .checks.guard = true,
#endif
    };
}

static inline tide_status device_open(const tide_device_options *options, tide_device **device)
{
#ifdef TEST_ON_CUDA
    return tide_device_cuda_open(options, 0, device);
#else
    return tide_device_host_open(options, device);
#endif
}

/* Creates slots, region, buffer and events that exactly fill both budgets. Stops at the first failure. */
static inline tide_status fixture_fill_status(fixture *it)
{
    const tide_device_ops *ops = it->ops;
    tide_status status = ops->slots_create(it->device, TIDE_TIER_DEVICE, DEVICE_SLOTS);
    if (status == TIDE_OK)
        status = ops->slots_create(it->device, TIDE_TIER_HOST, HOST_SLOTS);
    if (status == TIDE_OK)
        status = ops->reserve(it->device, RANGE_CHUNKS * CHUNK_BYTES, (void **)&it->range);
    if (status == TIDE_OK)
        status = ops->region_create(it->device, REGION_BYTES, (void **)&it->region);
    if (status == TIDE_OK)
        status = ops->region_object(it->device, "region", 0, REGION_BYTES, &it->region_object);
    if (status == TIDE_OK)
        status =
            ops->buffer_create(it->device, "batch", BUFFER_BYTES, (void **)&it->buffer, &it->buffer_object);
    for (size_t i = 0; i < sizeof it->events / sizeof it->events[0] && status == TIDE_OK; i++)
        status = ops->event_create(it->device, &it->events[i]);
    return status;
}

static inline void fixture_fill(fixture *it)
{
    assert_ok(fixture_fill_status(it));
}

/* A device without memory and events. */
static inline fixture fixture_empty(const tide_device_options *options)
{
    fixture it = {0};
    assert_ok(device_open(options, &it.device));
    it.ops = it.device->ops;
    return it;
}

static inline fixture fixture_open(const tide_device_options *options)
{
    fixture it = fixture_empty(options);
    fixture_fill(&it);
    return it;
}

static inline fixture fixture_small(void)
{
    tide_device_options options = options_small();
    return fixture_open(&options);
}

#ifdef TEST_ON_CUDA
static inline void expect_nothing_left(void)
{
    char text[256];
    if (fake_cudart_live(text, sizeof text) > 0)
        fail_msg("left on the GPU: %s", text);
    if (fake_cudart_misuse(text, sizeof text) > 0)
        fail_msg("CUDA misused: %s", text);
}
#endif

static inline void fixture_close(fixture *it)
{
    it->ops->close(it->device);
#ifdef TEST_ON_CUDA
    expect_nothing_left();
    const fake_cudart_options options = fake_cudart_defaults();
    fake_cudart_start(&options); /* restarts the fake runtime without failures */
#endif
}

/* device_test(name) is the case `name(fixture *)`, for which a small device is opened and closed. The case
 * must wait for commands that use its variables. */
typedef struct device_case {
    void (*run)(fixture *it);
} device_case;

static inline void device_case_run(void **state)
{
    fixture it = fixture_small();
    ((const device_case *)*state)->run(&it);
    fixture_close(&it);
}
#define device_test(name) ((struct CMUnitTest){#name, device_case_run, NULL, NULL, &(device_case){name}})

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

/* TEST_KERNEL(name, type) defines the kernel `name` by the function tide_status name_work(const type *).
 * Given a stream, the kernel enqueues the work there, as a GPU's launchers do. Without one (host device,
 * host executor) it does the work itself. */
#ifdef TEST_ON_CUDA
typedef struct enqueued_work {
    tide_status (*work)(const void *arguments);
    _Alignas(16) unsigned char arguments[TIDE_LAUNCH_ARGUMENTS_MAX_BYTES];
} enqueued_work;

static inline int enqueued_work_do(void *arguments)
{
    const enqueued_work *it = arguments;
    return it->work(it->arguments) == TIDE_OK ? 0 : cudaErrorLaunchFailure;
}

static inline tide_status work_run(void *stream, tide_status (*work)(const void *), const void *arguments,
                                   size_t bytes)
{
    enqueued_work enqueued = {.work = work};
    if (stream == NULL)
        return work(arguments);
    memcpy(enqueued.arguments, arguments, bytes);
    const int error = fake_cudart_launch(stream, enqueued_work_do, &enqueued, sizeof enqueued);
    return error == 0 ? TIDE_OK
                      : tide_fail(TIDE_ERROR_DEVICE, "launch: %s", cudaGetErrorName((cudaError_t)error));
}
#else
static inline tide_status work_run(void *stream, tide_status (*work)(const void *), const void *arguments,
                                   size_t bytes)
{
    return work(arguments);
}
#endif
#define TEST_KERNEL(name, type)                                                                              \
    static inline tide_status name##_any(const void *arguments)                                              \
    {                                                                                                        \
        return name##_work(arguments);                                                                       \
    }                                                                                                        \
    static inline tide_status name(void *stream, const void *arguments)                                      \
    {                                                                                                        \
        return work_run(stream, name##_any, arguments, sizeof(type));                                        \
    }

/* A kernel that reports that it has begun and then runs until the gate is opened. */
typedef struct gate {
    atomic_bool began;
    atomic_bool open;
} gate;

static inline tide_status gate_kernel_work(gate *const *arguments)
{
    gate *it = *arguments;
    atomic_store(&it->began, true);
    while (!atomic_load(&it->open))
        ;
    return TIDE_OK;
}
TEST_KERNEL(gate_kernel, gate *)

static inline tide_status launch_gate(fixture *it, tide_stream stream, gate *held)
{
    tide_work work = work_of("gate", 0);
    return it->ops->launch(it->device, stream, &work, gate_kernel, &held, sizeof held);
}

/* A kernel that adds one to an atomic counter. */
static inline tide_status count_kernel_work(atomic_int *const *arguments)
{
    atomic_fetch_add(*arguments, 1);
    return TIDE_OK;
}
TEST_KERNEL(count_kernel, atomic_int *)

static inline tide_status launch_count(fixture *it, tide_stream stream, atomic_int *counter)
{
    tide_work work = work_of("count", 0);
    return it->ops->launch(it->device, stream, &work, count_kernel, &counter, sizeof counter);
}

/* A kernel that sets an int in memory. */
typedef struct store_arguments {
    int *memory;
    int value;
} store_arguments;

static inline tide_status store_kernel_work(const store_arguments *it)
{
    *it->memory = it->value;
    return TIDE_OK;
}
TEST_KERNEL(store_kernel, store_arguments)

/* A kernel that computes memory = 3 * memory + value, so that any other order of such kernels gives
 * another result. */
static inline tide_status mix_kernel_work(const store_arguments *it)
{
    *it->memory = (int)(3u * (unsigned)*it->memory + (unsigned)it->value);
    return TIDE_OK;
}
TEST_KERNEL(mix_kernel, store_arguments)

static inline tide_device_statistics statistics_of(const fixture *it)
{
    tide_device_statistics statistics;
    it->ops->statistics(it->device, &statistics);
    return statistics;
}

static inline bool is_done(fixture *it, tide_event event)
{
    bool done;
    assert_ok(it->ops->event_query(it->device, event, SITE, &done));
    return done;
}

#endif
