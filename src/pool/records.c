#include "src/pool/records.h"

#include "src/pool/monitor.h"

#include <assert.h>

static tide_step_record *record(tide_records *records, uint64_t number)
{
    assert(number <= records->begun);
    return &records->ring[number % TIDE_STEP_RECORDS_MAX];
}

bool tide_records_is_valid(const tide_records *records)
{
    const uint64_t waiting = records->begun - records->taken;
    return records->taken <= records->begun && records->updating <= records->begun &&
           waiting <= TIDE_STEP_RECORDS_MAX && records->ending <= records->updating;
}

/* --- moves --- */

/* NULL: none takes it. */
static tide_step_record *counting(tide_records *records, tide_reason reason)
{
    const bool of_update = reason == TIDE_REASON_UPDATE || reason == TIDE_REASON_RESTORE;
    tide_step_record *of = record(records, of_update ? records->updating : records->begun);
    assert(tide_monitor_is_held(NULL));
    return (of_update ? of->updates_pending : of->is_open) ? of : NULL;
}

uint64_t tide_records_step(tide_records *records, tide_reason reason)
{
    const tide_step_record *of = counting(records, reason);
    return of == NULL ? 0 : of->step;
}

void tide_records_count(tide_records *records, tide_reason reason, const tide_pool_counters *more)
{
    tide_step_record *of = counting(records, reason);
    tide_pool_counters *sums[2] = {&records->sums, of == NULL ? NULL : &of->counters};
    for (int i = 0; i < 2 && sums[i] != NULL; i++) {
        sums[i]->h2d_bytes += more->h2d_bytes;
        sums[i]->d2h_bytes += more->d2h_bytes;
        sums[i]->evictions += more->evictions;
        sums[i]->demand_fetches += more->demand_fetches;
        sums[i]->prefetches += more->prefetches;
    }
}

void tide_records_count_command(tide_records *records, const tide_command *command)
{
    const bool fetch = command->kind == TIDE_COMMAND_FETCH;
    const tide_pool_counters more = {.evictions = command->kind == TIDE_COMMAND_EVICT,
                                     .demand_fetches = fetch && command->reason == TIDE_REASON_DEMAND,
                                     .prefetches = fetch && command->reason == TIDE_REASON_PREFETCH};
    tide_records_count(records, command->reason, &more);
}

/* --- sums and records --- */

static void stalls_sum(tide_pool_counters *counters)
{
    counters->stall_seconds = 0;
    for (int cause = 0; cause < TIDE_STALL_CAUSE_COUNT; cause++)
        counters->stall_seconds += counters->stall_seconds_by[cause];
}

void tide_records_sum(const tide_records *records, tide_pool_counters *sums)
{
    tide_device *device = records->tracer->context->device;
    assert(tide_monitor_is_held(NULL));
    tide_manager_counters manager;
    tide_device_statistics statistics;
    tide_memory_usage device_memory, host_memory;
    const uint64_t norm_copy_ns = records->stalls->norm_copy_ns;
    tide_manager_counters_get(records->manager, &manager);
    device->ops->statistics(device, &statistics);
    device->ops->usage(device, TIDE_TIER_DEVICE, &device_memory);
    device->ops->usage(device, TIDE_TIER_HOST, &host_memory);
    *sums = records->sums;
    sums->steps = records->tracer->step;
    sums->seconds = (double)device->ops->now_ns(device) * 1e-9;
    /* On the host device the copy is told of before it counts as busy. */
    const uint64_t busy_ns = statistics.busy_ns[TIDE_STREAM_COMPUTE];
    sums->compute_seconds = busy_ns > norm_copy_ns ? (double)(busy_ns - norm_copy_ns) * 1e-9 : 0;
    for (int cause = 0; cause < TIDE_STALL_CAUSE_COUNT; cause++)
        sums->stall_seconds_by[cause] = (double)records->stalls->ns[cause] * 1e-9;
    stalls_sum(sums);
    sums->adam_host_seconds = (double)records->adam_ns[0] * 1e-9;
    sums->adam_device_seconds = (double)records->adam_ns[1] * 1e-9;
    sums->re_recordings = manager.re_recordings;
    sums->zero_gradients = manager.zero_gradients;
    sums->device_bytes_peak = device_memory.peak_bytes;
    sums->host_bytes_peak = host_memory.peak_bytes;
    sums->device_allocations = device_memory.allocations;
    sums->host_allocations = host_memory.allocations;
}

/* What a record takes from the sums' growth since its begin. */
void tide_records_close(tide_records *records)
{
    tide_step_record *closing = record(records, records->begun);
    if (!closing->is_open)
        return;
    const tide_pool_counters *begin = &closing->begin;
    tide_pool_counters now, *of = &closing->counters;
    tide_records_sum(records, &now);
    of->steps = 1;
    of->seconds = now.seconds - begin->seconds;
    of->compute_seconds = now.compute_seconds - begin->compute_seconds;
    for (int cause = 0; cause < TIDE_STALL_CAUSE_COUNT; cause++)
        of->stall_seconds_by[cause] = now.stall_seconds_by[cause] - begin->stall_seconds_by[cause];
    stalls_sum(of);
    of->re_recordings = now.re_recordings - begin->re_recordings;
    of->zero_gradients = now.zero_gradients - begin->zero_gradients;
    of->skipped = now.skipped - begin->skipped;
    of->manager_calls = now.manager_calls - begin->manager_calls;
    of->device_bytes_peak = now.device_bytes_peak;
    of->host_bytes_peak = now.host_bytes_peak;
    of->device_allocations = now.device_allocations;
    of->host_allocations = now.host_allocations;
    closing->is_open = false;
    records->tracer->counted = 0;
}

void tide_records_begin(tide_records *records)
{
    tide_records_close(records);
    records->begun++;
    /* Nobody takes them: the oldest goes. */
    if (records->begun - records->taken > TIDE_STEP_RECORDS_MAX)
        records->taken = records->begun - TIDE_STEP_RECORDS_MAX;
    tide_step_record *opened = record(records, records->begun);
    *opened = (tide_step_record){.step = records->tracer->step, .is_open = true, .updates_pending = true};
    tide_records_sum(records, &opened->begin);
    records->tracer->counted = opened->step;
    assert(tide_records_is_valid(records));
}

/* --- updates --- */

uint32_t tide_records_meter(const tide_records *records, tide_tier tier)
{
    assert(tide_monitor_is_held(NULL));
    return (uint32_t)(records->updating % TIDE_STEP_RECORDS_MAX) * 2 + (tier == TIDE_TIER_DEVICE);
}

void tide_records_updated(tide_records *records, uint32_t meter, uint64_t ns)
{
    assert(meter < TIDE_ADAM_METERS);
    records->adam_ns[meter % 2] += ns;
    records->ring[meter / 2].adam_ns[meter % 2] += ns;
}

static void end_updates(tide_step_record *of)
{
    of->counters.adam_host_seconds = (double)of->adam_ns[0] * 1e-9;
    of->counters.adam_device_seconds = (double)of->adam_ns[1] * 1e-9;
    of->updates_pending = false;
}

void tide_records_ended(tide_records *records)
{
    assert(tide_monitor_is_held(NULL));
    if (records->ending > 0)
        end_updates(record(records, records->ending));
    records->ending = 0;
}

void tide_records_updates_ended(tide_records *records)
{
    tide_step_record *of = record(records, records->updating);
    tide_records_ended(records);
    if (of->updates_pending && !of->is_open)
        end_updates(of);
}

void tide_records_let_go(tide_records *records)
{
    const tide_step_record *of = record(records, records->updating);
    tide_records_ended(records); /* two steps' updates at once are as many as are told apart */
    if (of->updates_pending)
        records->ending = records->updating;
    records->updating = records->begun;
    assert(tide_records_is_valid(records));
}

void tide_records_drop(tide_records *records)
{
    const tide_step_record *last = record(records, records->begun);
    assert(tide_monitor_is_held(NULL));
    if (last->step != records->tracer->step || records->taken == records->begun)
        return;
    if (last->is_open)
        records->tracer->counted = 0;
    records->begun--;
    if (records->updating > records->begun)
        records->updating = records->begun;
    assert(tide_records_is_valid(records));
}

bool tide_records_take(tide_records *records, uint64_t *step, tide_pool_counters *counters)
{
    assert(tide_monitor_is_held(NULL));
    if (records->taken == records->begun)
        return false;
    const tide_step_record *oldest = record(records, records->taken + 1);
    if (oldest->is_open || oldest->updates_pending)
        return false;
    *step = oldest->step;
    *counters = oldest->counters;
    records->taken++;
    assert(tide_records_is_valid(records));
    return true;
}
