/* Commands and events. Every call that enqueues does the same steps: it locks the streams, waits for space in
 * the ring, refuses if the device has failed, or if a test has injected a fault into this command, asks the
 * hazard checker, and only then fills the next place of the ring.
 */
#include "offload/host/host_device.h"

#include "base/clock.h"

#include <assert.h>
#include <inttypes.h>
#include <string.h>

/* --- hazards; the streams' lock is held --- */

static tide_status host_actor(tide_host_device *device, tide_hazard_actor *actor)
{
    return tide_hazard_host_find(device->hazard, tide_thread_number(), actor);
}

/* A hazard is a bug in the order of the caller's commands: no later result can be trusted, so the device
 * fails. */
static tide_status hazard_result(tide_host_device *device, tide_status status)
{
    if (status == TIDE_ERROR_HAZARD)
        tide_host_streams_fail(&device->streams, status, tide_message());
    return status;
}

static tide_status check_command(tide_host_device *device, tide_stream stream, const tide_work *work)
{
    tide_hazard_actor actor;
    if (device->hazard == NULL)
        return TIDE_OK;
    tide_status status = host_actor(device, &actor);
    if (status == TIDE_OK)
        status = hazard_result(device, tide_hazard_command(device->hazard, stream, actor, work));
    return status;
}

tide_status tide_host_check_touch(tide_host_device *device, const tide_work *work)
{
    tide_hazard_actor actor;
    if (device->hazard == NULL || device->streams.failure != TIDE_OK)
        return TIDE_OK;
    tide_status status = host_actor(device, &actor);
    if (status == TIDE_OK)
        status = hazard_result(device, tide_hazard_touch(device->hazard, actor, work));
    return status;
}

tide_status tide_host_check_unmap(tide_host_device *device, uint32_t slot)
{
    tide_hazard_actor actor;
    if (device->hazard == NULL || device->streams.failure != TIDE_OK)
        return TIDE_OK;
    tide_status status = host_actor(device, &actor);
    if (status == TIDE_OK)
        status = hazard_result(device, tide_hazard_unmap(device->hazard, actor, slot));
    return status;
}

/* --- enqueuing --- */

/* Lock the streams and wait for space. On TIDE_OK the streams' lock is held and the ring has space. */
static tide_status enqueue_begin(tide_host_device *device, tide_stream stream)
{
    tide_host_streams_lock(&device->streams);
    (void)tide_host_stream_has_capacity(&device->streams, stream, 1, true);
    tide_status status = tide_host_streams_failure(&device->streams);
    if (status != TIDE_OK)
        tide_host_streams_unlock(&device->streams);
    return status;
}

static void push(tide_host_device *device, tide_stream stream, const tide_work *work, bool kernel,
                 tide_kernel fn, const void *arguments, size_t argument_bytes)
{
    tide_host_command *command = tide_host_stream_next(&device->streams, stream);
    command->kernel = kernel;
    command->run = fn;
    command->name = tide_command_name_of(work);
    if (argument_bytes > 0)
        memcpy(command->arguments, arguments, argument_bytes);
    tide_host_stream_push(&device->streams, stream);
}

/* A counter (may be NULL) that grows by `count` when the command is enqueued. */
typedef struct command_counter {
    uint64_t *counter;
    uint64_t count;
} command_counter;

static tide_status enqueue(tide_host_device *device, tide_stream stream, const tide_work *work,
                           uint32_t fault_kind, tide_kernel fn, const void *arguments, size_t argument_bytes,
                           command_counter counter)
{
    assert(argument_bytes <= TIDE_LAUNCH_ARGUMENTS_MAX_BYTES);
    tide_status status = enqueue_begin(device, stream);
    if (status != TIDE_OK)
        return status;
    status = tide_fault_count(&device->account.fault, fault_kind, work->label);
    if (status == TIDE_OK)
        status = check_command(device, stream, work);
    if (status == TIDE_OK) {
        push(device, stream, work, fault_kind == TIDE_FAULT_LAUNCH, fn, arguments, argument_bytes);
        if (counter.counter != NULL)
            *counter.counter += counter.count;
    }
    tide_host_streams_unlock(&device->streams);
    return status;
}

tide_status tide_host_launch(tide_device *device, tide_stream stream, const tide_work *work, tide_kernel fn,
                             const void *arguments, size_t argument_bytes)
{
    tide_status status = tide_launch_check(stream, work, fn, arguments, argument_bytes);
    if (status != TIDE_OK)
        return status;
    return enqueue(tide_host_device_of(device), stream, work, TIDE_FAULT_LAUNCH, fn, arguments,
                   argument_bytes, (command_counter){NULL, 0});
}

tide_status tide_host_enqueue_internal(tide_host_device *device, tide_stream stream, const char *label,
                                       uint32_t tag, tide_kernel fn, const void *arguments,
                                       size_t argument_bytes)
{
    tide_work work = {.label = label, .tag = tag};
    return enqueue(device, stream, &work, 0, fn, arguments, argument_bytes, (command_counter){NULL, 0});
}

/* --- copies --- */

typedef struct copy_arguments {
    tide_host_link *link;
    const tide_host_stream *stream; /* the stream whose thread copies */
    uint64_t enqueued_ns;
    void *to;
    const void *from;
    uint64_t bytes;
    bool to_device;
} copy_arguments;

static tide_status copy_run(void *stream, const void *arguments)
{
    (void)stream;
    const copy_arguments *it = arguments;
    uint64_t ready_ns = it->stream->ready_ns > it->enqueued_ns ? it->stream->ready_ns : it->enqueued_ns;
    tide_host_link_copy(it->link, it->to, it->from, it->bytes, it->to_device, ready_ns);
    return TIDE_OK;
}

static tide_status enqueue_copy(tide_host_device *device, tide_stream stream, const tide_work *work, void *to,
                                const void *from, uint64_t bytes, bool to_device)
{
    copy_arguments arguments = {.link = &device->link,
                                .stream = &device->streams.streams[stream],
                                .enqueued_ns = tide_clock_ns(),
                                .to = to,
                                .from = from,
                                .bytes = bytes,
                                .to_device = to_device};
    tide_device_statistics *statistics = &device->statistics;
    command_counter moved = {to_device ? &statistics->h2d_bytes : &statistics->d2h_bytes, bytes};
    return enqueue(device, stream, work, TIDE_FAULT_COPY, copy_run, &arguments, sizeof arguments, moved);
}

tide_status tide_host_copy_slot(tide_device *device, tide_stream stream, const tide_work *work,
                                tide_tier to_tier, uint32_t to_slot, uint32_t from_slot, uint64_t bytes)
{
    tide_host_device *host = tide_host_device_of(device);
    tide_slot_counts counts = {{host->memory.slot_count, host->host_slots.count}, host->options.chunk_bytes};
    tide_status status = tide_copy_check(stream, work);
    if (status == TIDE_OK)
        status = tide_copy_slot_check(&counts, to_tier, to_slot, from_slot, bytes);
    if (status != TIDE_OK)
        return status;
    bool to_device = to_tier == TIDE_TIER_DEVICE;
    tide_tier from_tier = to_device ? TIDE_TIER_HOST : TIDE_TIER_DEVICE;
    const tide_access accesses[] = {
        tide_reads(to_device ? TIDE_OBJECT_HOST_SLOT : TIDE_OBJECT_DEVICE_SLOT, from_slot),
        tide_writes(to_device ? TIDE_OBJECT_DEVICE_SLOT : TIDE_OBJECT_HOST_SLOT, to_slot),
        {TIDE_OBJECT_SLOT_GRADIENTS, to_device ? to_slot : from_slot, to_device},
    };
    tide_work whole = *work;
    whole.accesses = accesses;
    whole.access_count = 3;
    return enqueue_copy(host, stream, &whole, tide_host_slot_reach(host, to_tier, to_slot),
                        tide_host_slot_reach(host, from_tier, from_slot), bytes, to_device);
}

tide_status tide_host_copy_bytes(tide_device *device, tide_stream stream, const tide_work *work, void *to,
                                 const void *from, uint64_t bytes, bool to_device)
{
    tide_host_device *host = tide_host_device_of(device);
    tide_status status = tide_copy_check(stream, work);
    if (status != TIDE_OK)
        return status;
    status = tide_account_copy_check(&host->account, work, to, from, bytes, to_device);
    if (status != TIDE_OK)
        return status;
    return enqueue_copy(host, stream, work, to, from, bytes, to_device);
}

/* --- space in the rings --- */

bool tide_host_has_capacity(tide_device *device, tide_stream stream, bool wait)
{
    tide_host_streams *streams = &tide_host_device_of(device)->streams;
    tide_host_streams_lock(streams);
    const bool has_capacity = tide_host_stream_has_capacity(streams, stream, TIDE_CAPACITY_COMMANDS, wait);
    tide_host_streams_unlock(streams);
    return has_capacity;
}

/* --- events --- */

/* The streams' lock is held. */
static tide_status event_check(const tide_host_device *device, tide_event event)
{
    return tide_event_check(event, device->account.event_count);
}

static tide_status record_locked(tide_host_device *device, tide_event event, tide_stream stream)
{
    tide_hazard_actor actor = 0;
    tide_status status = event_check(device, event);
    if (status == TIDE_OK && device->hazard != NULL)
        status = host_actor(device, &actor);
    if (status != TIDE_OK)
        return status;
    device->account.events[event - 1] = tide_host_stream_record(&device->streams, stream);
    if (device->hazard != NULL)
        tide_hazard_record(device->hazard, event, stream, actor);
    return TIDE_OK;
}

tide_status tide_host_event_record(tide_device *device, tide_event event, tide_stream stream)
{
    tide_host_device *host = tide_host_device_of(device);
    tide_status status = tide_stream_check(stream);
    if (status != TIDE_OK)
        return status;
    tide_host_streams_lock(&host->streams);
    status = record_locked(host, event, stream);
    tide_host_streams_unlock(&host->streams);
    return status;
}

static void push_wait(tide_host_device *device, tide_stream stream, tide_stream_point moment,
                      tide_wait_site site, uint64_t id)
{
    if (moment.stream == stream || tide_host_streams_passed(&device->streams, moment))
        return;
    tide_host_command *command = tide_host_stream_next(&device->streams, stream);
    command->run = NULL;
    command->awaited = moment;
    command->name = (tide_command_name){.label = "wait", .tag = site, .id = id};
    tide_host_stream_push(&device->streams, stream);
}

static tide_status stream_wait_locked(tide_host_device *device, tide_stream stream, tide_event event,
                                      tide_wait_site site, uint64_t id)
{
    tide_hazard_actor actor = 0;
    tide_status status = event_check(device, event);
    if (status == TIDE_OK)
        status = tide_stream_wait_check(stream, event, device->account.events[event - 1].stream);
    if (status == TIDE_OK && device->hazard != NULL)
        status = host_actor(device, &actor);
    if (status != TIDE_OK)
        return status;
    device->statistics.waits[site]++;
    if (site == device->options.checks.skip_wait_site)
        return TIDE_OK;
    if (device->hazard != NULL)
        tide_hazard_stream_wait(device->hazard, stream, actor, event);
    push_wait(device, stream, device->account.events[event - 1], site, id);
    return TIDE_OK;
}

tide_status tide_host_stream_wait(tide_device *device, tide_stream stream, tide_event event,
                                  tide_wait_site site, uint64_t id)
{
    tide_host_device *host = tide_host_device_of(device);
    tide_status status = tide_stream_check(stream);
    if (status == TIDE_OK)
        status = tide_wait_site_check(site);
    if (status == TIDE_OK)
        status = enqueue_begin(host, stream);
    if (status != TIDE_OK)
        return status;
    status = stream_wait_locked(host, stream, event, site, id);
    tide_host_streams_unlock(&host->streams);
    return status;
}

/* Check and count a wait of the calling thread for the event. The streams' lock is held. */
static tide_status host_wait_begin(tide_host_device *device, tide_event event, tide_wait_site site,
                                   tide_hazard_actor *actor)
{
    tide_status status = event_check(device, event);
    if (status == TIDE_OK && device->hazard != NULL)
        status = host_actor(device, actor);
    if (status == TIDE_OK)
        device->statistics.waits[site]++;
    return status;
}

tide_status tide_host_event_query(tide_device *device, tide_event event, tide_wait_site site, bool *done)
{
    tide_host_device *host = tide_host_device_of(device);
    tide_hazard_actor actor = 0;
    tide_status status = tide_wait_site_check(site);
    if (status != TIDE_OK)
        return status;
    tide_host_streams_lock(&host->streams);
    status = host_wait_begin(host, event, site, &actor);
    if (status == TIDE_OK) {
        bool skipped = site == host->options.checks.skip_wait_site;
        *done = skipped || tide_host_streams_passed(&host->streams, host->account.events[event - 1]);
        if (*done && !skipped && host->hazard != NULL)
            tide_hazard_host_wait(host->hazard, actor, event);
    }
    tide_host_streams_unlock(&host->streams);
    return status;
}

tide_status tide_host_event_wait(tide_device *device, tide_event event, tide_wait_site site)
{
    tide_host_device *host = tide_host_device_of(device);
    tide_hazard_actor actor = 0;
    tide_status status = tide_wait_site_check(site);
    if (status != TIDE_OK)
        return status;
    tide_host_streams_lock(&host->streams);
    status = host_wait_begin(host, event, site, &actor);
    if (status == TIDE_OK && site != host->options.checks.skip_wait_site) {
        /* Tell the checker first, since another thread may record the event again while this one waits
         * without the lock. */
        if (host->hazard != NULL)
            tide_hazard_host_wait(host->hazard, actor, event);
        tide_host_streams_wait(&host->streams, host->account.events[event - 1]);
    }
    tide_host_streams_unlock(&host->streams);
    return status;
}

tide_status tide_host_touch(tide_device *device, const tide_work *work)
{
    tide_host_device *host = tide_host_device_of(device);
    tide_status status = tide_work_check(work);
    if (status != TIDE_OK)
        return status;
    tide_host_streams_lock(&host->streams);
    status = tide_host_check_touch(host, work);
    tide_host_streams_unlock(&host->streams);
    return status;
}
