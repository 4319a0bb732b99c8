/* The host device: an emulated accelerator, for programs without a GPU and for tests.
 *
 *      caller, engine                       six streams, a thread each
 *      launch, copy_*, guard  -> rings ->   [compute] [in] [out] [update] [collective] [host executor]
 *      event_record, stream_wait                |        |     |
 *      event_query, park      <- doorbell <-----+--------+-----+
 *
 *      map, unmap             -> memfd pages beneath fixed addresses
 *
 * It behaves like a GPU and gives no stronger guarantees: calls return when their command is enqueued, only
 * events order streams, a use of an unmapped chunk faults. In addition it has tools to find mistakes without
 * a GPU: the hazard checker (hazard.h), a link as slow as PCIe (host_link.h), random delays of every stream,
 * guards, injected faults.
 *
 * The files and the locks: see host_device.h.
 */
#include "offload/host/host_device.h"

#include "base/clock.h"
#include "offload/host/host_fault.h"
#include "offload/topology.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* --- sleep --- */

static uint64_t host_doorbell(tide_device *device)
{
    tide_host_device *host = tide_host_device_of(device);
    tide_host_streams_lock(&host->streams);
    uint64_t ticket = host->streams.doorbell;
    tide_host_streams_unlock(&host->streams);
    return ticket;
}

static tide_status host_park(tide_device *device, uint64_t ticket, bool events)
{
    tide_host_device *host = tide_host_device_of(device);
    tide_host_streams_lock(&host->streams);
    tide_host_streams_park(&host->streams, ticket, events);
    tide_host_streams_unlock(&host->streams);
    return TIDE_OK;
}

static void host_ring(tide_device *device)
{
    tide_host_device *host = tide_host_device_of(device);
    tide_host_streams_lock(&host->streams);
    tide_host_streams_ring(&host->streams);
    tide_host_streams_unlock(&host->streams);
}

/* --- failure --- */

static void host_synchronize(tide_device *device)
{
    tide_host_device *host = tide_host_device_of(device);
    tide_hazard_actor actor;
    tide_host_streams_lock(&host->streams);
    /* If the checker can't add an actor for this thread, this is not recorded; the thread's next checked call
     * fails with the reason. */
    if (host->hazard != NULL && tide_hazard_host_find(host->hazard, tide_thread_number(), &actor) == TIDE_OK)
        tide_hazard_host_wait_all(host->hazard, actor);
    tide_host_streams_drain(&host->streams);
    tide_host_streams_unlock(&host->streams);
}

static tide_status host_failure(tide_device *device)
{
    tide_host_device *host = tide_host_device_of(device);
    tide_host_streams_lock(&host->streams);
    tide_status status = tide_host_streams_failure(&host->streams);
    tide_host_streams_unlock(&host->streams);
    return status;
}

static bool host_stream_failed(tide_device *device, tide_stream stream)
{
    tide_host_device *host = tide_host_device_of(device);
    tide_host_streams_lock(&host->streams);
    const bool failed = host->streams.streams[stream].failed;
    tide_host_streams_unlock(&host->streams);
    return failed;
}

static tide_status recover_locked(tide_host_device *device)
{
    tide_host_streams *streams = &device->streams;
    if (!tide_host_streams_idle(streams))
        return tide_fail(TIDE_ERROR_STATE, "recovery while commands are running: synchronize first");
    if (device->place_lost)
        return tide_host_streams_failure(streams);
    streams->failure = TIDE_OK;
    for (int stream = 0; stream < TIDE_STREAM_COUNT; stream++)
        streams->streams[stream].failed = false;
    if (device->hazard != NULL)
        tide_hazard_forget(device->hazard);
    return TIDE_OK;
}

static tide_status host_recover(tide_device *device)
{
    tide_host_device *host = tide_host_device_of(device);
    tide_host_streams_lock(&host->streams);
    tide_status status = recover_locked(host);
    tide_host_streams_unlock(&host->streams);
    return status;
}

/* --- counters --- */

static uint64_t host_now_ns(tide_device *device)
{
    (void)device;
    return tide_clock_ns();
}

static void host_statistics(tide_device *device, tide_device_statistics *statistics)
{
    tide_host_device *host = tide_host_device_of(device);
    tide_host_streams_lock(&host->streams);
    *statistics = host->statistics;
    statistics->maps = host->account.maps;
    statistics->unmaps = host->account.unmaps;
    for (int i = 0; i < TIDE_STREAM_COUNT; i++) {
        const tide_host_stream *stream = &host->streams.streams[i];
        statistics->busy_ns[i] = stream->busy_ns;
        statistics->wait_ns[i] = stream->wait_ns;
        statistics->commands[i] = stream->commands;
        statistics->pending[i] = stream->enqueued - stream->completed;
    }
    tide_host_streams_unlock(&host->streams);
}

/* --- descriptions of addresses, for the fault handler --- */

static void host_set_describe(tide_device *device, tide_device_describe describe, void *context)
{
    tide_host_device *host = tide_host_device_of(device);
    atomic_store(&host->describe, NULL); /* so that no thread calls the new function with the old context */
    atomic_store(&host->describe_context, context);
    atomic_store(&host->describe, describe);
}

/* Write what the device knows of an address in a reserved range: which range and chunk, and whether a slot is
 * mapped there. Takes no lock, since the process is ending. */
static bool place_describe(const tide_host_device *device, const void *address, char *text, size_t text_bytes)
{
    uint64_t chunk_bytes = device->options.chunk_bytes;
    for (uint32_t i = 0; i < device->account.mappings.range_count; i++) {
        const tide_mappings_range *range = &device->account.mappings.ranges[i];
        uint64_t offset = (uintptr_t)address - (uintptr_t)range->base;
        if ((uintptr_t)address < (uintptr_t)range->base || offset >= range->chunk_count * chunk_bytes)
            continue;
        uint64_t chunk = offset / chunk_bytes;
        bool mapped = range->slot_of_chunk[chunk] < device->account.mappings.slot_count;
        (void)snprintf(text, text_bytes, "range %" PRIu32 ", chunk place %" PRIu64 " + %" PRIu64 " bytes, %s",
                       i, chunk, offset % chunk_bytes, mapped ? "guarded" : "not mapped");
        return true;
    }
    return false;
}

static bool host_locate(void *context, const void *address, char *text, size_t text_bytes)
{
    tide_host_device *device = context;
    if (!place_describe(device, address, text, text_bytes))
        return false;
    tide_device_describe describe = atomic_load(&device->describe);
    size_t length = strlen(text);
    if (describe != NULL && length + 2 < text_bytes) {
        memcpy(text + length, ": ", 3);
        describe(atomic_load(&device->describe_context), address, text + length + 2, text_bytes - length - 2);
        length = strlen(text);
    }
    const tide_command_name *running = tide_host_stream_running(&device->streams, TIDE_STREAM_COMPUTE);
    if (running != NULL)
        (void)snprintf(text + length, text_bytes - length, "; %s%s%s runs", running->label,
                       running->op == NULL ? "" : " of op ", running->op == NULL ? "" : running->op);
    return true;
}

/* --- open and close --- */

static void host_close(tide_device *device)
{
    if (device == NULL)
        return;
    tide_host_device *host = tide_host_device_of(device);
    tide_host_streams_stop(&host->streams);
    if (host->options.checks.fault_handler)
        tide_host_fault_unregister(host);
    tide_host_setup_undo(host);
    tide_hazard_destroy(host->hazard);
    tide_host_arena_destroy(host->arena);
    tide_host_link_destroy(&host->link);
    tide_account_destroy(&host->account);
    free(host);
}

static const tide_device_ops host_ops = {
    .kind = "host",
    .asynchronous = true,
    .has_data = true,
    .close = host_close,
    .slots_create = tide_account_slots_create,
    .reserve = tide_account_reserve,
    .region_create = tide_account_region_create,
    .region_object = tide_account_region_object,
    .buffer_create = tide_account_buffer_create,
    .event_create = tide_account_event_create,
    .slot_address = tide_host_slot_address,
    .map = tide_account_map,
    .unmap = tide_account_unmap,
    .remap = tide_host_remap,
    .guard = tide_host_guard,
    .has_capacity = tide_host_has_capacity,
    .launch = tide_host_launch,
    .copy_slot = tide_host_copy_slot,
    .copy_bytes = tide_host_copy_bytes,
    .event_record = tide_host_event_record,
    .stream_wait = tide_host_stream_wait,
    .event_query = tide_host_event_query,
    .event_wait = tide_host_event_wait,
    .doorbell = host_doorbell,
    .park = host_park,
    .ring = host_ring,
    .host_touch = tide_host_touch,
    .synchronize = host_synchronize,
    .failure = host_failure,
    .stream_failed = host_stream_failed,
    .recover = host_recover,
    .now_ns = host_now_ns,
    .usage = tide_account_usage,
    .statistics = host_statistics,
    .set_describe = host_set_describe,
    .set_fault = tide_account_set_fault,
};

static const tide_account_makers host_makers = {
    .slots = tide_host_slots_make,
    .range = tide_host_range_make,
    .range_undo = tide_host_range_undo,
    .region = tide_host_region_make,
    .part = tide_host_part_make,
    .buffer = tide_host_buffer_make,
    .events = tide_host_events_reserve,
    .map = tide_host_place_map,
    .unmap = tide_host_place_unmap,
    .place_lost = tide_host_place_lost,
};

/* The part of opening that can't fail. */
static void host_init(tide_host_device *host, const tide_device_options *options)
{
    tide_account_init(&host->account, &host_ops, &host_makers, options, &host->streams.lock);
    host->options = *options;
    host->threads = options->threads > 0 ? options->threads : tide_topology_processors();
    host->statistics.host_threads = host->threads;
    tide_host_memory_init(&host->memory, options->chunk_bytes);
}

tide_status tide_device_host_open(const tide_device_options *options, tide_device **device)
{
    tide_status status = tide_device_options_check(options);
    if (status != TIDE_OK)
        return status;
    tide_host_device *host = calloc(1, sizeof *host);
    if (host == NULL)
        return tide_fail(TIDE_ERROR_NO_MEMORY, "no memory for the host device (%zu bytes)", sizeof *host);
    host_init(host, options);
    status = tide_host_arena_create(NULL, &host->arena);
    if (status != TIDE_OK)
        goto undo_host;
    status = options->checks.hazard_check ? tide_hazard_create(&host->hazard) : TIDE_OK;
    if (status != TIDE_OK)
        goto undo_arena;
    status = options->checks.fault_handler ? tide_host_fault_register(host_locate, host) : TIDE_OK;
    if (status != TIDE_OK)
        goto undo_hazard;
    status = tide_host_streams_start(&host->streams, options, host->threads);
    if (status != TIDE_OK)
        goto undo_fault;
    tide_host_link_init(&host->link, options->link_bytes_per_second);
    *device = &host->account.base;
    return TIDE_OK;

undo_fault:
    if (options->checks.fault_handler)
        tide_host_fault_unregister(host);
undo_hazard:
    tide_hazard_destroy(host->hazard);
undo_arena:
    tide_host_arena_destroy(host->arena);
undo_host:
    tide_account_destroy(&host->account);
    free(host);
    return status;
}
