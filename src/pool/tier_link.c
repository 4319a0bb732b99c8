#include "src/pool/tier_link.h"

#include <assert.h>

enum { COMMANDS_AHEAD = 2 }; /* enough copies on a stream: one that runs and one that follows it at once */

bool tide_link_is_valid(const tide_link *link)
{
    const tide_pool_context *context = link->context;
    return link->left_place == NULL ||
           (link->left_slot < context->plan.device_slots && context->device->ops->remap != NULL);
}

void *tide_link_reach(const tide_link *link, tide_tier tier, uint32_t slot, tide_chunk chunk)
{
    const tide_pool_context *context = link->context;
    if (tier == TIDE_TIER_DEVICE && !context->options.checks.guard)
        return tide_context_place(context, chunk);
    return context->device->ops->slot_address(context->device, tier, slot);
}

bool tide_link_has_capacity(const tide_link *link)
{
    assert(tide_monitor_is_held(link->monitor));
    return tide_order_may_enqueue(link->order, TIDE_STREAM_IN) &&
           tide_order_may_enqueue(link->order, TIDE_STREAM_OUT);
}

void tide_link_look(tide_link *link, bool *in_busy, bool *out_busy)
{
    tide_device *device = link->context->device;
    const uint64_t ahead = device->ops->asynchronous ? COMMANDS_AHEAD : 1;
    tide_device_statistics statistics;
    assert(tide_monitor_is_held(link->monitor));
    device->ops->statistics(device, &statistics);
    const uint64_t in = statistics.pending[TIDE_STREAM_IN], out = statistics.pending[TIDE_STREAM_OUT];
    *in_busy = in >= ahead;
    *out_busy = out >= ahead;
    link->used = in > 0 || out > 0;
}

/* --- reports to the tracer --- */

uint64_t tide_link_number(tide_link *link, const tide_command *command)
{
    const bool in = command->kind == TIDE_COMMAND_FETCH, streams = command->copy || command->zero;
    return tide_tracer_number(&link->telemetry->tracer, !streams ? TIDE_STREAM_COUNT
                                                        : in     ? TIDE_STREAM_IN
                                                                 : TIDE_STREAM_OUT);
}

/* Store the trace event of a copy or zeroing just before it is enqueued, while the counters can say for which
 * step it counts. */
static void issue(tide_link *link, const tide_command *command, uint64_t id)
{
    tide_tracer *tracer = &link->telemetry->tracer;
    if (!tracer->on)
        return;
    tide_trace_event event = tide_tracer_event(tracer, command->copy ? TIDE_TRACE_COPY : TIDE_TRACE_ZERO);
    event.step = tide_counters_step(&link->telemetry->counters, command->reason);
    event.chunk = command->chunk;
    event.reason = command->reason;
    event.tier = command->kind == TIDE_COMMAND_FETCH ? TIDE_TIER_DEVICE : TIDE_TIER_HOST;
    event.bytes = tide_layout_chunk_used_bytes(link->context->packing->layout, command->chunk);
    event.device_slot = command->device_slot;
    event.host_slot = command->host_slot;
    tide_tracer_issue(tracer, id, &event);
}

/* --- copies --- */

static const char copy_labels[][TIDE_REASON_COUNT][24] = {
    [TIDE_COMMAND_FETCH] = {"fetch", "fetch ahead", "fetch to update", "fetch to restore", "fetch to access",
                            "fetch to promote"},
    [TIDE_COMMAND_EVICT] = {"evict", "evict ahead", "evict to update", "evict to restore", "evict to access",
                            "evict to promote"},
    [TIDE_COMMAND_WRITE_BACK] = {"write back", "write back ahead", "write back to update",
                                 "write back to restore", "write back to access", "write back to promote"},
};

tide_status tide_link_copy(tide_link *link, const tide_command *command, uint64_t id, uint64_t *number)
{
    tide_device *device = link->context->device;
    const bool in = command->kind == TIDE_COMMAND_FETCH;
    assert(command->copy && command->kind <= TIDE_COMMAND_WRITE_BACK && command->reason < TIDE_REASON_COUNT);
    const tide_stream stream = in ? TIDE_STREAM_IN : TIDE_STREAM_OUT;
    const tide_tier to_tier = in ? TIDE_TIER_DEVICE : TIDE_TIER_HOST,
                    from_tier = in ? TIDE_TIER_HOST : TIDE_TIER_DEVICE;
    const uint32_t to_slot = in ? command->device_slot : command->host_slot,
                   from_slot = in ? command->host_slot : command->device_slot;
    tide_marks *to = &link->order->marks[to_tier][to_slot], *from = &link->order->marks[from_tier][from_slot];
    const uint64_t bytes = tide_layout_chunk_used_bytes(link->context->packing->layout, command->chunk);
    const tide_work work = {.label = copy_labels[command->kind][command->reason],
                            .tag = command->chunk,
                            .timer = TIDE_TIMER_COPY + (uint32_t)command->reason,
                            .id = id};
    tide_needs needs = {0};
    tide_needs_add(&needs, to, true);
    tide_needs_add(&needs, from, false);
    to->filled = true;
    issue(link, command, id);
    tide_status status = tide_order_wait(link->order, stream, &needs);
    if (status == TIDE_OK)
        status = device->ops->copy_slot(device, stream, &work, to_tier, to_slot, from_slot, bytes);
    if (status == TIDE_OK)
        status = tide_order_record(link->order, stream, id, number);
    if (status != TIDE_OK)
        return status;
    tide_marks_set(to, stream, *number, true);
    tide_marks_set(from, stream, *number, false);
    link->used = true;
    const tide_pool_counters moved = {.h2d_bytes = in ? bytes : 0, .d2h_bytes = in ? 0 : bytes};
    tide_counters_count(&link->telemetry->counters, command->reason, &moved);
    return TIDE_OK;
}

static tide_status zero_in(tide_link *link, const tide_command *command, uint64_t id)
{
    const tide_pool_context *context = link->context;
    tide_marks *marks = &link->order->marks[TIDE_TIER_DEVICE][command->device_slot];
    const tide_access accesses[] = {tide_writes(TIDE_OBJECT_DEVICE_SLOT, command->device_slot),
                                    tide_writes(TIDE_OBJECT_SLOT_GRADIENTS, command->device_slot)};
    assert(command->zero && !command->copy);
    const tide_zero_args zero = {
        .data = tide_link_reach(link, TIDE_TIER_DEVICE, command->device_slot, command->chunk),
        .bytes = tide_layout_chunk_used_bytes(context->packing->layout, command->chunk)};
    const tide_work work = {.label = "zero chunk",
                            .tag = command->chunk,
                            .id = id,
                            .bytes = (double)zero.bytes,
                            .accesses = accesses,
                            .access_count = 2};
    tide_needs needs = {0};
    uint64_t number;
    tide_needs_add(&needs, marks, true);
    issue(link, command, id);
    tide_status status = tide_order_wait(link->order, TIDE_STREAM_IN, &needs);
    if (status == TIDE_OK)
        status = context->device->ops->launch(context->device, TIDE_STREAM_IN, &work, context->kernels->zero,
                                              &zero, sizeof zero);
    if (status == TIDE_OK)
        status = tide_order_record(link->order, TIDE_STREAM_IN, id, &number);
    if (status == TIDE_OK)
        tide_marks_set(marks, TIDE_STREAM_IN, number, true);
    return status;
}

/* --- places --- */

/* For the trace of a change of mapping: the chunk, and the id of its fetch or eviction. */
typedef struct change_of {
    tide_chunk chunk;
    uint64_t id;
} change_of;

static void tell_change(tide_link *link, uint32_t slot, tide_trace_mapping mapping, change_of of,
                        uint64_t begin_ns, uint64_t end_ns)
{
    tide_tracer *tracer = &link->telemetry->tracer;
    tide_tracer_brought_on(tracer, of.id);
    if (!tracer->on)
        return;
    tide_trace_event event = tide_tracer_event(tracer, TIDE_TRACE_MAP);
    event.begin_ns = begin_ns;
    event.end_ns = end_ns;
    event.map = mapping;
    event.chunk = of.chunk;
    event.id = of.id;
    event.device_slot = slot;
    tide_tracer_tell(tracer, &event);
}

/* Move the slot's mapping from address `from` (NULL: it is not mapped yet) to address `to` (NULL: only
 * unmap). Releases the lock meanwhile. */
static tide_status change_place(tide_link *link, uint32_t slot, char *from, char *to, change_of of)
{
    tide_device *device = link->context->device;
    assert(from != to && slot < link->context->plan.device_slots);
    tide_stalls_mapping(&link->telemetry->stalls, true);
    tide_monitor_unlock(link->monitor);
    const uint64_t begin_ns = device->ops->now_ns(device);
    const tide_status status = to == NULL     ? device->ops->unmap(device, slot, from)
                               : from == NULL ? device->ops->map(device, slot, to)
                                              : device->ops->remap(device, slot, from, to);
    const uint64_t end_ns = device->ops->now_ns(device), ns = end_ns - begin_ns;
    const uint64_t each_ns = from != NULL && to != NULL ? ns / 2 : ns; /* remap: half for each */
    if (status == TIDE_OK && from != NULL)
        tide_measure_add(&link->telemetry->measure, TIDE_SERIES_UNMAP, each_ns, 1);
    if (status == TIDE_OK && to != NULL)
        tide_measure_add(&link->telemetry->measure, TIDE_SERIES_MAP, each_ns, 1);
    tide_monitor_lock(link->monitor);
    tide_order_ask_anew(link->order);
    if (status == TIDE_OK)
        tell_change(link, slot,
                    to == NULL     ? TIDE_TRACE_UNMAPPED
                    : from == NULL ? TIDE_TRACE_MAPPED
                                   : TIDE_TRACE_REMAPPED,
                    of, begin_ns, end_ns);
    tide_stalls_mapping(&link->telemetry->stalls, false);
    return status;
}

static tide_status unmap_left(tide_link *link)
{
    if (link->left_place == NULL)
        return TIDE_OK;
    const change_of of = {link->left_chunk, link->left_id};
    const tide_status status = change_place(link, link->left_slot, link->left_place, NULL, of);
    if (status == TIDE_OK)
        link->left_place = NULL;
    return status;
}

/* Does the command fetch into the slot that was left mapped? */
static bool takes_left(const tide_link *link, const tide_command *command)
{
    return command != NULL && link->left_place != NULL && command->kind == TIDE_COMMAND_FETCH &&
           !command->in_place && command->device_slot == link->left_slot &&
           tide_context_place(link->context, command->chunk) != link->left_place;
}

void tide_link_settle(tide_link *link, const tide_command *next)
{
    if (link->left_place == NULL || takes_left(link, next))
        return;
    assert(tide_link_is_valid(link));
    /* The request may be ready: wake the caller before the unmap, which takes time. */
    tide_monitor_progress(link->monitor);
    const tide_status status = unmap_left(link);
    if (status != TIDE_OK)
        tide_monitor_fail(link->monitor, status);
}

tide_status tide_link_leave(tide_link *link, const tide_command *command, uint64_t id)
{
    const tide_pool_context *context = link->context;
    char *place = tide_context_place(context, command->chunk);
    tide_status status = TIDE_OK;
    assert(command->kind == TIDE_COMMAND_EVICT);
    /* With a skipped wait site unmap at once, so that the hazard checker sees an unmap that comes too
     * early. */
    if (context->device->ops->remap == NULL || context->options.checks.skip_wait_site > 0)
        status = change_place(link, command->device_slot, place, NULL, (change_of){command->chunk, id});
    else {
        status = unmap_left(link);
        if (status == TIDE_OK) {
            link->left_place = place;
            link->left_slot = command->device_slot;
            link->left_chunk = command->chunk;
            link->left_id = id;
        }
    }
    assert(tide_link_is_valid(link));
    return status;
}

tide_status tide_link_unused(tide_link *link, uint32_t slot, bool *unused)
{
    static const tide_wait_site sites[TIDE_STREAM_COUNT] = {[TIDE_STREAM_COMPUTE] = TIDE_SITE_UNMAP_COMPUTE,
                                                            [TIDE_STREAM_IN] = TIDE_SITE_UNMAP_IN,
                                                            [TIDE_STREAM_OUT] = TIDE_SITE_UNMAP_OUT,
                                                            [TIDE_STREAM_UPDATE] = TIDE_SITE_UNMAP_UPDATE};
    const tide_marks *marks = &link->order->marks[TIDE_TIER_DEVICE][slot];
    tide_status status = TIDE_OK;
    assert(tide_monitor_is_held(link->monitor) && slot < link->context->plan.device_slots);
    *unused = true;
    for (int stream = 0; stream < TIDE_STREAM_COUNT && *unused && status == TIDE_OK; stream++) {
        if (sites[stream] != 0)
            status = tide_order_query(link->order, (tide_stream)stream, marks->used[stream], sites[stream],
                                      unused);
    }
    return status;
}

/* --- fetch --- */

/* Undo the mapping of a fetch of which a later call failed with `status`. Make that the pool's failure first,
 * before the device can report another; then wait for the commands already enqueued, which may touch the
 * mapped address, and unmap. */
static tide_status fetch_undo(tide_link *link, const tide_command *command, char *place, tide_status status)
{
    tide_device *device = link->context->device;
    tide_monitor_fail(link->monitor, status);
    tide_monitor_unlock(link->monitor);
    device->ops->synchronize(device);
    const tide_status undone = device->ops->unmap(device, command->device_slot, place);
    tide_monitor_lock(link->monitor);
    return undone == TIDE_OK ? status : undone;
}

tide_status tide_link_fetch(tide_link *link, const tide_command *command, uint64_t id)
{
    char *place = tide_context_place(link->context, command->chunk);
    uint64_t number;
    assert(command->kind == TIDE_COMMAND_FETCH && !(command->copy && command->zero));
    if (command->in_place)
        return tide_link_copy(link, command, id, &number);
    const bool goes_on = takes_left(link, command);
    tide_status status = change_place(link, command->device_slot, goes_on ? link->left_place : NULL, place,
                                      (change_of){command->chunk, id});
    if (status != TIDE_OK)
        return status;
    if (goes_on)
        link->left_place = NULL;
    assert(link->left_place == NULL || link->monitor->failure != TIDE_OK);
    if (command->copy)
        status = tide_link_copy(link, command, id, &number);
    else if (command->zero)
        status = zero_in(link, command, id);
    return status == TIDE_OK ? TIDE_OK : fetch_undo(link, command, place, status);
}
