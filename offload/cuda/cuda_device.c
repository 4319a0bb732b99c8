/* The CUDA device: a GPU behind the table of offload/device.h.
 *
 *      caller, engine                          the GPU                                      host threads
 *      launch, copy_*      -> CUDA streams ->  [compute] [in] [out] [update] [collective]   [host executor]
 *      stream_wait            a clock each <-       |      |     |                               |
 *      event_query, park   <- looks there  <--------+------+-----+             doorbell <--------+
 *
 *      map, unmap          -> cuMemMap, cuMemUnmap of the slots' handles
 *
 * This device has little code of its own, on purpose: account.h checks calls as on the other devices, and
 * moments (a stream and a sequence, cuda_clock.h) work as on the host device, where tests check the order of
 * streams.
 *
 * The files and the locks: see cuda_inside.h.
 */
#include "offload/cuda/cuda_device.h"

#include "base/clock.h"
#include "offload/cuda/cuda_inside.h"
#include "offload/topology.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

/* --- small operations --- */

static tide_status cuda_guard(tide_device *device, tide_stream stream, void *place, bool accessible)
{
    (void)device, (void)place,
        (void)accessible; /* open refused options.checks.guard, so there is nothing to do */
    return tide_stream_check(stream);
}

static tide_status cuda_host_touch(tide_device *device, const tide_work *work)
{
    (void)device;
    return tide_work_check(work);
}

/* Ignores `describe`, since there is no fault handler that would call it: a GPU's faults come as statuses. */
static void cuda_set_describe(tide_device *device, tide_device_describe describe, void *context)
{
    (void)device, (void)describe, (void)context;
}

/* Returns the failure that the device knows of, without a query of the streams: that would cost time in every
 * op, and calls that enqueue, query or park query often enough. */
static tide_status cuda_failure(tide_device *device)
{
    return tide_cuda_failure(tide_cuda_device_of(device));
}

static bool cuda_stream_failed(tide_device *device, tide_stream stream)
{
    tide_cuda_stream *it = &tide_cuda_device_of(device)->streams[stream];
    pthread_mutex_lock(&it->lock);
    const bool failed = it->failed;
    pthread_mutex_unlock(&it->lock);
    return failed;
}

/* --- open and close --- */

static void stream_close(tide_cuda_stream *stream)
{
    tide_cuda_clock_close(&stream->clock);
    tide_cuda_undo(cudaStreamDestroy(stream->stream), "cudaStreamDestroy");
    pthread_mutex_destroy(&stream->lock);
}

/* Create a stream. The update stream has the lowest priority, so that its kernels use what other kernels
 * leave free: ops wait for the others. Priorities do not affect copies. */
static tide_status stream_create(tide_cuda_stream *stream, tide_stream role)
{
    int least = 0, greatest = 0;
    const tide_status status = tide_cuda_check(cudaDeviceGetStreamPriorityRange(&least, &greatest),
                                               "cudaDeviceGetStreamPriorityRange");
    if (status != TIDE_OK)
        return status;
    const int priority = role == TIDE_STREAM_UPDATE ? least : greatest;
    /* Non-blocking, so that only events order it with other streams. */
    return tide_cuda_check(cudaStreamCreateWithPriority(&stream->stream, cudaStreamNonBlocking, priority),
                           "cudaStreamCreateWithPriority");
}

static tide_status stream_open(tide_cuda_stream *stream, tide_stream role, const tide_device_options *options)
{
    tide_status status = stream_create(stream, role);
    if (status != TIDE_OK)
        return status;
    status = tide_cuda_clock_open(&stream->clock, role, stream->stream, options);
    if (status != TIDE_OK)
        goto undo_stream;
    (void)pthread_mutex_init(&stream->lock, NULL);
    return TIDE_OK;

undo_stream:
    tide_cuda_undo(cudaStreamDestroy(stream->stream), "cudaStreamDestroy");
    return status;
}

static void streams_close(tide_cuda_device *device, int count)
{
    for (int i = 0; i < count; i++)
        stream_close(&device->streams[i]);
}

static tide_status streams_open(tide_cuda_device *device)
{
    int opened = 0;
    tide_status status = TIDE_OK;
    while (opened < TIDE_CUDA_STREAMS && status == TIDE_OK) {
        status = stream_open(&device->streams[opened], (tide_stream)opened, &device->options);
        opened += status == TIDE_OK;
    }
    if (status != TIDE_OK)
        streams_close(device, opened);
    return status;
}

static void cuda_close(tide_device *device)
{
    if (device == NULL)
        return;
    tide_cuda_device *cuda = tide_cuda_device_of(device);
    tide_cuda_synchronize(device);
    tide_host_executor_stop(&cuda->executor);
    tide_cuda_setup_undo(cuda);
    streams_close(cuda, TIDE_CUDA_STREAMS);
    tide_host_arena_destroy(cuda->arena);
    pthread_cond_destroy(&cuda->rung);
    pthread_mutex_destroy(&cuda->state_lock);
    tide_account_destroy(&cuda->account);
    free(cuda);
}

static const tide_device_ops cuda_ops = {
    .kind = "cuda",
    .asynchronous = true,
    .has_data = true,
    .close = cuda_close,
    .slots_create = tide_account_slots_create,
    .reserve = tide_account_reserve,
    .region_create = tide_account_region_create,
    .region_object = tide_account_region_object,
    .buffer_create = tide_account_buffer_create,
    .event_create = tide_account_event_create,
    .slot_address = tide_cuda_slot_address,
    .map = tide_account_map,
    .unmap = tide_account_unmap,
    .guard = cuda_guard,
    .has_capacity = tide_cuda_has_capacity,
    .launch = tide_cuda_launch,
    .copy_slot = tide_cuda_copy_slot,
    .copy_bytes = tide_cuda_copy_bytes,
    .event_record = tide_cuda_event_record,
    .stream_wait = tide_cuda_stream_wait,
    .event_query = tide_cuda_event_query,
    .event_wait = tide_cuda_event_wait,
    .doorbell = tide_cuda_doorbell,
    .park = tide_cuda_park,
    .ring = tide_cuda_ring,
    .host_touch = cuda_host_touch,
    .synchronize = tide_cuda_synchronize,
    .failure = cuda_failure,
    .stream_failed = cuda_stream_failed,
    .recover = tide_cuda_recover,
    .now_ns = tide_cuda_now_ns,
    .usage = tide_account_usage,
    .statistics = tide_cuda_statistics,
    .set_describe = cuda_set_describe,
    .set_fault = tide_account_set_fault,
};

/* Refuse the options that only an emulated device can serve, instead of ignoring them. */
static tide_status options_check(const tide_device_options *options)
{
    const struct {
        bool asked;
        const char *what;
    } refused[] = {
        {options != NULL && options->checks.hazard_check, "the hazard checker"},
        {options != NULL && options->checks.guard, "guards over chunks"},
        {options != NULL && options->checks.fault_handler, "the fault handler"},
        {options != NULL && options->link_bytes_per_second > 0, "a throttled link"},
        {options != NULL && options->checks.delay_max_us > 0, "delays of streams"},
        {options != NULL && options->checks.finish_beside, "gradients finished beside the next op"},
    };
    tide_status status = tide_device_options_check(options);
    for (size_t i = 0; i < sizeof refused / sizeof refused[0] && status == TIDE_OK; i++)
        if (refused[i].asked)
            status = tide_fail(TIDE_ERROR_UNSUPPORTED, "a GPU has no %s: that is for device host",
                               refused[i].what);
    return status;
}

/* Find out the GPU's name, for messages, and its NUMA node. */
static tide_status gpu_name(tide_cuda_device *device)
{
    int count = 0;
    char bus_id[32];
    struct cudaDeviceProp properties;
    tide_status status = tide_cuda_check(cudaGetDeviceCount(&count), "cudaGetDeviceCount");
    if (status != TIDE_OK)
        return status;
    if (device->ordinal >= (uint32_t)count)
        return tide_fail(TIDE_ERROR_ARGUMENT, "there is no GPU %" PRIu32 ", there are %d", device->ordinal,
                         count);
    status = tide_cuda_check(cudaGetDeviceProperties(&properties, (int)device->ordinal),
                             "cudaGetDeviceProperties");
    if (status == TIDE_OK)
        status = tide_cuda_check(cudaDeviceGetPCIBusId(bus_id, sizeof bus_id, (int)device->ordinal),
                                 "cudaDeviceGetPCIBusId");
    if (status != TIDE_OK)
        return status;
    (void)snprintf(device->name, sizeof device->name, "GPU %" PRIu32 " (%.80s)", device->ordinal,
                   properties.name);
    device->node = tide_topology_pci_node(bus_id);
    return TIDE_OK;
}

static tide_status chunk_bytes_check(const tide_cuda_device *device)
{
    uint64_t granularity = 0;
    const uint64_t chunk_bytes = device->options.chunk_bytes;
    const tide_status status = tide_cuda_granularity(&device->driver, device->ordinal, &granularity);
    if (status != TIDE_OK)
        return status;
    if (granularity == 0)
        return tide_fail(TIDE_ERROR_UNSUPPORTED, "%s has no virtual memory management (cuMemMap)",
                         device->name);
    if (chunk_bytes % granularity != 0)
        return tide_fail(TIDE_ERROR_ARGUMENT,
                         "chunk size of %" PRIu64 " bytes: %s maps memory in multiples of %" PRIu64 " bytes",
                         chunk_bytes, device->name, granularity);
    return TIDE_OK;
}

/* Check that this device can use the GPU, and fill in the GPU's properties. */
static tide_status gpu_check(tide_cuda_device *device)
{
    tide_status status = gpu_name(device);
    if (status == TIDE_OK)
        status = tide_cuda_driver_find(device->name, &device->driver);
    if (status == TIDE_OK)
        status = tide_cuda_use(device->ordinal);
    if (status == TIDE_OK)
        status = chunk_bytes_check(device);
    return status;
}

static tide_status pin(void *context, const char *what, void *address, uint64_t bytes)
{
    (void)context;
    return tide_cuda_pin(what, address, bytes);
}

static void unpin(void *context, void *address, uint64_t bytes)
{
    (void)context, (void)bytes;
    tide_cuda_unpin(address);
}

static tide_status arena_open(tide_cuda_device *device)
{
    const tide_host_pinning pinning = {.pin = pin, .unpin = unpin, .node = device->node};
    return tide_host_arena_create(&pinning, &device->arena);
}

static void executor_passed(void *context)
{
    tide_cuda_events_completed(context, 1);
}

static void executor_failed(void *context, tide_status status)
{
    (void)tide_cuda_fail(context, status);
}

uint32_t tide_cuda_executor_threads(uint32_t asked, uint32_t processors)
{
    const uint32_t others = 2;
    if (asked > 0)
        return asked;
    return processors > others ? processors - others : 1;
}

static tide_status executor_open(tide_cuda_device *device)
{
    const uint32_t threads = tide_cuda_executor_threads(device->options.threads, tide_topology_processors());
    const tide_host_executor_options executor = {.threads = threads,
                                                 .threads_set = device->options.threads_set,
                                                 .node = device->node,
                                                 .observer = device->options.observer,
                                                 .observer_context = device->options.observer_context,
                                                 .passed = executor_passed,
                                                 .failed = executor_failed,
                                                 .context = device};
    return tide_host_executor_start(&device->executor, &executor);
}

static const tide_account_makers cuda_makers = {
    .slots = tide_cuda_slots_make,
    .range = tide_cuda_range_make,
    .range_undo = tide_cuda_range_undo,
    .region = tide_cuda_region_make,
    .buffer = tide_cuda_buffer_make,
    .map = tide_cuda_place_map,
    .unmap = tide_cuda_place_unmap,
    .place_lost = tide_cuda_place_lost,
};

/* The part of opening that can't fail. The GPU has been checked. */
static void device_init(tide_cuda_device *device)
{
    const tide_device_options *options = &device->options;
    pthread_condattr_t monotonic;
    tide_account_init(&device->account, &cuda_ops, &cuda_makers, options, &device->state_lock);
    device->threads = options->threads > 0 ? options->threads : tide_topology_processors();
    tide_cuda_memory_init(&device->memory, &device->driver, device->ordinal, options->chunk_bytes);
    (void)pthread_mutex_init(&device->state_lock, NULL);
    (void)pthread_condattr_init(&monotonic);
    /* the clock of tide_clock_ns(), by which park() sleeps */
    (void)pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    (void)pthread_cond_init(&device->rung, &monotonic);
    (void)pthread_condattr_destroy(&monotonic);
}

tide_status tide_device_cuda_open(const tide_device_options *options, uint32_t ordinal, tide_device **device)
{
    tide_status status = options_check(options);
    if (status != TIDE_OK)
        return status;
    tide_cuda_device *cuda = calloc(1, sizeof *cuda);
    if (cuda == NULL)
        return tide_fail(TIDE_ERROR_NO_MEMORY, "no memory for the CUDA device (%zu bytes)", sizeof *cuda);
    cuda->options = *options;
    cuda->ordinal = ordinal;
    status = gpu_check(cuda);
    if (status != TIDE_OK)
        goto undo_cuda;
    device_init(cuda);
    status = arena_open(cuda);
    if (status != TIDE_OK)
        goto undo_init;
    status = streams_open(cuda);
    if (status != TIDE_OK)
        goto undo_arena;
    status = executor_open(cuda);
    if (status != TIDE_OK)
        goto undo_streams;
    *device = &cuda->account.base;
    return TIDE_OK;

undo_streams:
    streams_close(cuda, TIDE_CUDA_STREAMS);
undo_arena:
    tide_host_arena_destroy(cuda->arena);
undo_init:
    pthread_cond_destroy(&cuda->rung);
    pthread_mutex_destroy(&cuda->state_lock);
    tide_account_destroy(&cuda->account);
undo_cuda:
    free(cuda);
    return status;
}
