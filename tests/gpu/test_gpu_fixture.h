/* Shared by the tests of the CUDA device with the GPU's own kernels: a small device, and chunks of numbers
 * to which kernels add.
 *
 * Built with TEST_CUDA the device is a GPU. With TEST_CUDA_ON_CPU it is the fake runtime (fake_cudart.h),
 * whose streams run the emulated kernels (cuda_on_cpu.h) after random delays. The tests may do only what
 * works on both: kernels and copies alone access device memory, and the tests read results in host slots. */
#ifndef TIDEPOOL_TESTS_TEST_GPU_FIXTURE_H
#define TIDEPOOL_TESTS_TEST_GPU_FIXTURE_H

#include "tests/kernels/test_kernels.h"
#include "tests/support/assert_ok.h"

#include "offload/cuda/cuda_device.h"

#include <cuda_runtime_api.h>

#ifdef TEST_CUDA_ON_CPU
#include "tests/gpu/cuda_on_cpu.h"
#include "tests/gpu/fake_cudart.h"
#endif

enum {
    CHUNK_BYTES = 2 << 20,
    CHUNK_FLOATS = CHUNK_BYTES / 4,
    DEVICE_SLOTS = 8,
    HOST_SLOTS = 8,
    RANGE_CHUNKS = 16,
    /* The region: one chunk's bytes of ones, then free memory. */
    REGION_BYTES = 2 * CHUNK_BYTES,
    BUFFER_BYTES = CHUNK_BYTES,
    EVENTS = DEVICE_SLOTS + HOST_SLOTS + 1, /* one for each slot, and one more */
    SITE = 1,
#ifdef TEST_CUDA_ON_CPU /* the emulation takes a hundred nanoseconds for a thread of the GPU */
    WORK_FLOATS = 2048,
    CHAIN_LAUNCHES = 40,
#else
    WORK_FLOATS = CHUNK_FLOATS,
    CHAIN_LAUNCHES = 1000, /* takes milliseconds */
#endif
};

typedef struct fixture {
    tide_device *device;
    const tide_device_ops *ops;
    char *range;
    char *region;
    char *buffer;
    tide_event events[EVENTS];
} fixture;

/* --- open and close --- */

/* Starts the fake GPU, whose commands are delayed as the seed says. A real GPU needs no start. */
static inline void fixture_start(uint64_t seed)
{
    (void)seed;
#ifdef TEST_CUDA_ON_CPU
    fake_cudart_options gpu = fake_cudart_defaults();
    gpu.memory_bytes = 64u << 20;
    gpu.delay_seed = seed;
    gpu.delay_max_us = 300;
    fake_cudart_start(&gpu);
    cuda_on_cpu_enqueue = fake_cudart_enqueue;
#endif
}

/* A setup function for cmocka. */
static inline int fixture_begin(void **state)
{
    fixture_start(1);
    return 0;
}

static inline tide_device_options fixture_options(void)
{
    return (tide_device_options){
        .device_memory_bytes = DEVICE_SLOTS * CHUNK_BYTES + REGION_BYTES,
        .host_memory_bytes = HOST_SLOTS * CHUNK_BYTES + BUFFER_BYTES,
        .chunk_bytes = CHUNK_BYTES,
        .threads = 2,
    };
}

static inline fixture fixture_open(const tide_device_options *options)
{
    fixture it = {0};
    void *address;
    uint32_t object;
    assert_ok(tide_device_cuda_open(options, 0, &it.device));
    it.ops = it.device->ops;
    assert_ok(it.ops->slots_create(it.device, TIDE_TIER_DEVICE, DEVICE_SLOTS));
    assert_ok(it.ops->slots_create(it.device, TIDE_TIER_HOST, HOST_SLOTS));
    assert_ok(it.ops->reserve(it.device, (uint64_t)RANGE_CHUNKS * CHUNK_BYTES, &address));
    it.range = address;
    assert_ok(it.ops->region_create(it.device, REGION_BYTES, &address));
    it.region = address;
    assert_ok(it.ops->buffer_create(it.device, "batch", BUFFER_BYTES, &address, &object));
    it.buffer = address;
    for (int i = 0; i < EVENTS; i++)
        assert_ok(it.ops->event_create(it.device, &it.events[i]));
    return it;
}

static inline void fixture_close(fixture *it)
{
    assert_ok(it->ops->failure(it->device));
    it->ops->close(it->device);
#ifdef TEST_CUDA_ON_CPU
    char text[256];
    if (fake_cudart_live(text, sizeof text) > 0)
        fail_msg("left on the GPU: %s", text);
    if (fake_cudart_misuse(text, sizeof text) > 0)
        fail_msg("CUDA misused: %s", text);
#endif
}

/* --- places and commands --- */

static inline char *fixture_place(const fixture *it, uint32_t chunk)
{
    return it->range + (size_t)chunk * CHUNK_BYTES;
}

static inline float *fixture_host(const fixture *it, uint32_t slot)
{
    return it->ops->slot_address(it->device, TIDE_TIER_HOST, slot);
}

static inline void fixture_fetch(fixture *it, tide_stream stream, uint32_t slot, uint32_t host_slot)
{
    const tide_work work = {.label = "fetch", .tag = slot};
    assert_ok(it->ops->copy_slot(it->device, stream, &work, TIDE_TIER_DEVICE, slot, host_slot, CHUNK_BYTES));
}

static inline void fixture_evict(fixture *it, tide_stream stream, uint32_t host_slot, uint32_t slot)
{
    const tide_work work = {.label = "evict", .tag = slot};
    assert_ok(it->ops->copy_slot(it->device, stream, &work, TIDE_TIER_HOST, host_slot, slot, CHUNK_BYTES));
}

static inline void fixture_launch(fixture *it, tide_stream stream, tide_kernel kernel, const void *arguments,
                                  size_t bytes)
{
    const tide_work work = {.label = "kernel"};
    assert_ok(it->ops->launch(it->device, stream, &work, kernel, arguments, bytes));
}

static inline void fixture_record(fixture *it, int event, tide_stream stream)
{
    assert_ok(it->ops->event_record(it->device, it->events[event], stream));
}

/* Makes `later` wait for all commands that `earlier` has got so far. */
static inline void fixture_order(fixture *it, int event, tide_stream earlier, tide_stream later)
{
    fixture_record(it, event, earlier);
    assert_ok(it->ops->stream_wait(it->device, later, it->events[event], SITE, 0));
}

static inline void fixture_wait(fixture *it, int event)
{
    assert_ok(it->ops->event_wait(it->device, it->events[event], SITE));
}

/* --- numbers --- */

/* Fills the region's first WORK_FLOATS numbers with ones. */
static inline void fixture_make_ones(fixture *it)
{
    const tide_work work = {.label = "ones"};
    for (int i = 0; i < WORK_FLOATS; i++)
        ((float *)(void *)it->buffer)[i] = 1.0f;
    assert_ok(it->ops->copy_bytes(it->device, TIDE_STREAM_IN, &work, it->region, it->buffer,
                                  WORK_FLOATS * sizeof(float), true));
    fixture_record(it, 0, TIDE_STREAM_IN);
    fixture_wait(it, 0);
}

static inline tide_add_args fixture_add_ones(const fixture *it, void *to)
{
    return (tide_add_args){to, it->region, to, WORK_FLOATS, TIDE_DTYPE_FP32};
}

/* Fills the host slot with first, first + 1, ..., beginning again at `first` after 977 numbers. */
static inline void fixture_host_fill(fixture *it, uint32_t slot, float first)
{
    float *to = fixture_host(it, slot);
    for (int i = 0; i < CHUNK_FLOATS; i++)
        to[i] = first + (float)(i % 977);
}

/* Checks that the host slot holds the numbers of fixture_host_fill(), plus `added` in the part where
 * kernels work. */
static inline void fixture_host_expect(fixture *it, uint32_t slot, float first, float added)
{
    const float *from = fixture_host(it, slot);
    for (int i = 0; i < CHUNK_FLOATS; i++)
        if (from[i] != first + (float)(i % 977) + (i < WORK_FLOATS ? added : 0.0f))
            fail_msg("host slot %u, number %d is %g, not %g more than %g", slot, i, (double)from[i],
                     (double)added, (double)(first + (float)(i % 977)));
}

/* --- a kernel that takes long --- */

/* Launches `add` a number of times, between two of CUDA's own events if they are not NULL. */
typedef struct chain {
    tide_add_args add;
    uint32_t launches;
    cudaEvent_t begin, end;
} chain;

static inline tide_status chain_kernel(void *stream, const void *arguments)
{
    const chain *it = arguments;
    tide_status status = TIDE_OK;
    if (it->begin != NULL && cudaEventRecord(it->begin, stream) != cudaSuccess)
        return tide_fail(TIDE_ERROR_DEVICE, "the chain's begin");
    for (uint32_t i = 0; i < it->launches && status == TIDE_OK; i++)
        status = tide_kernels_cuda()->add(stream, &it->add);
    if (status == TIDE_OK && it->end != NULL && cudaEventRecord(it->end, stream) != cudaSuccess)
        return tide_fail(TIDE_ERROR_DEVICE, "the chain's end");
    return status;
}

static inline chain fixture_chain(const fixture *it, void *to)
{
    return (chain){.add = fixture_add_ones(it, to), .launches = CHAIN_LAUNCHES};
}

#endif
