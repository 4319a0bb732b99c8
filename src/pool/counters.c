#include "src/pool/counters.h"

#include "src/pool/monitor.h"

#include <assert.h>

static tide_step_counters *step_counters_of(tide_counters *all, uint64_t number)
{
    assert(number <= all->begun);
    return &all->ring[number % TIDE_STEP_COUNTERS_MAX];
}

bool tide_counters_is_valid(const tide_counters *all)
{
    const uint64_t waiting = all->begun - all->taken;
    return all->taken <= all->begun && all->updating <= all->begun && waiting <= TIDE_STEP_COUNTERS_MAX &&
           all->ending <= all->updating;
}

/* --- moves --- */

/* The record that counts moves for this reason; NULL: only the sums count them. */
static tide_step_counters *counting(tide_counters *all, tide_reason reason)
{
    const bool of_update = reason == TIDE_REASON_UPDATE || reason == TIDE_REASON_RESTORE;
    tide_step_counters *of = step_counters_of(all, of_update ? all->updating : all->begun);
    assert(tide_monitor_is_held(NULL));
    return (of_update ? of->updates_pending : of->is_open) ? of : NULL;
}

uint64_t tide_counters_step(tide_counters *all, tide_reason reason)
{
    const tide_step_counters *of = counting(all, reason);
    return of == NULL ? 0 : of->step;
}

void tide_counters_count(tide_counters *all, tide_reason reason, const tide_pool_counters *more)
{
    tide_step_counters *of = counting(all, reason);
    tide_pool_counters *sums[2] = {&all->sums, of == NULL ? NULL : &of->counters};
    for (int i = 0; i < 2 && sums[i] != NULL; i++) {
        sums[i]->h2d_bytes += more->h2d_bytes;
        sums[i]->d2h_bytes += more->d2h_bytes;
        sums[i]->evictions += more->evictions;
        sums[i]->demand_fetches += more->demand_fetches;
        sums[i]->prefetches += more->prefetches;
    }
}

void tide_counters_count_command(tide_counters *all, const tide_command *command)
{
    const bool fetch = command->kind == TIDE_COMMAND_FETCH;
    const tide_pool_counters more = {.evictions = command->kind == TIDE_COMMAND_EVICT,
                                     .demand_fetches = fetch && command->reason == TIDE_REASON_DEMAND,
                                     .prefetches = fetch && command->reason == TIDE_REASON_PREFETCH};
    tide_counters_count(all, command->reason, &more);
}

/* --- sums and records --- */

static void stalls_sum(tide_pool_counters *counters)
{
    counters->stall_seconds = 0;
    for (int cause = 0; cause < TIDE_STALL_CAUSE_COUNT; cause++)
        counters->stall_seconds += counters->stall_seconds_by[cause];
}

void tide_counters_sum(const tide_counters *all, tide_pool_counters *sums)
{
    tide_device *device = all->tracer->context->device;
    assert(tide_monitor_is_held(NULL));
    tide_manager_counters manager;
    tide_device_statistics statistics;
    tide_memory_usage device_memory, host_memory;
    const uint64_t norm_copy_ns = all->stalls->norm_copy_ns;
    tide_manager_counters_get(all->manager, &manager);
    device->ops->statistics(device, &statistics);
    device->ops->usage(device, TIDE_TIER_DEVICE, &device_memory);
    device->ops->usage(device, TIDE_TIER_HOST, &host_memory);
    *sums = all->sums;
    sums->steps = all->tracer->step;
    sums->seconds = (double)device->ops->now_ns(device) * 1e-9;
    /* On the host device the observer reports the norm's copy before the device counts it as busy. */
    const uint64_t busy_ns = statistics.busy_ns[TIDE_STREAM_COMPUTE];
    sums->compute_seconds = busy_ns > norm_copy_ns ? (double)(busy_ns - norm_copy_ns) * 1e-9 : 0;
    for (int cause = 0; cause < TIDE_STALL_CAUSE_COUNT; cause++)
        sums->stall_seconds_by[cause] = (double)all->stalls->ns[cause] * 1e-9;
    stalls_sum(sums);
    sums->adam_host_seconds = (double)all->adam_ns[0] * 1e-9;
    sums->adam_device_seconds = (double)all->adam_ns[1] * 1e-9;
    sums->re_recordings = manager.re_recordings;
    sums->zero_gradients = manager.zero_gradients;
    sums->device_bytes_peak = device_memory.peak_bytes;
    sums->host_bytes_peak = host_memory.peak_bytes;
    sums->device_allocations = device_memory.allocations;
    sums->host_allocations = host_memory.allocations;
}

/* Set the record's counters to how much the sums have grown since the record began. */
void tide_counters_close(tide_counters *all)
{
    tide_step_counters *closing = step_counters_of(all, all->begun);
    if (!closing->is_open)
        return;
    const tide_pool_counters *begin = &closing->begin;
    tide_pool_counters now, *of = &closing->counters;
    tide_counters_sum(all, &now);
    of->steps = 1;
    of->seconds = now.seconds - begin->seconds;
    of->compute_seconds = now.compute_seconds - begin->compute_seconds;
    for (int cause = 0; cause < TIDE_STALL_CAUSE_COUNT; cause++)
        of->stall_seconds_by[cause] = now.stall_seconds_by[cause] - begin->stall_seconds_by[cause];
    stalls_sum(of);
    of->collective_bytes = now.collective_bytes - begin->collective_bytes;
    of->re_recordings = now.re_recordings - begin->re_recordings;
    of->zero_gradients = now.zero_gradients - begin->zero_gradients;
    of->skipped = now.skipped - begin->skipped;
    of->manager_calls = now.manager_calls - begin->manager_calls;
    of->device_bytes_peak = now.device_bytes_peak;
    of->host_bytes_peak = now.host_bytes_peak;
    of->device_allocations = now.device_allocations;
    of->host_allocations = now.host_allocations;
    closing->is_open = false;
    all->tracer->counted = 0;
}

void tide_counters_begin(tide_counters *all)
{
    tide_counters_close(all);
    all->begun++;
    /* If the caller has not taken the oldest record, the new one overwrites it. */
    if (all->begun - all->taken > TIDE_STEP_COUNTERS_MAX)
        all->taken = all->begun - TIDE_STEP_COUNTERS_MAX;
    tide_step_counters *opened = step_counters_of(all, all->begun);
    *opened = (tide_step_counters){.step = all->tracer->step, .is_open = true, .updates_pending = true};
    tide_counters_sum(all, &opened->begin);
    all->tracer->counted = opened->step;
    assert(tide_counters_is_valid(all));
}

/* --- updates --- */

uint32_t tide_counters_timer(const tide_counters *all, tide_tier tier)
{
    assert(tide_monitor_is_held(NULL));
    return (uint32_t)(all->updating % TIDE_STEP_COUNTERS_MAX) * 2 + (tier == TIDE_TIER_DEVICE);
}

void tide_counters_updated(tide_counters *all, uint32_t timer, uint64_t ns)
{
    assert(timer < TIDE_ADAM_TIMERS);
    all->adam_ns[timer % 2] += ns;
    all->ring[timer / 2].adam_ns[timer % 2] += ns;
}

static void end_updates(tide_step_counters *of)
{
    of->counters.adam_host_seconds = (double)of->adam_ns[0] * 1e-9;
    of->counters.adam_device_seconds = (double)of->adam_ns[1] * 1e-9;
    of->updates_pending = false;
}

void tide_counters_ended(tide_counters *all)
{
    assert(tide_monitor_is_held(NULL));
    if (all->ending > 0)
        end_updates(step_counters_of(all, all->ending));
    all->ending = 0;
}

void tide_counters_updates_ended(tide_counters *all)
{
    tide_step_counters *of = step_counters_of(all, all->updating);
    tide_counters_ended(all);
    if (of->updates_pending && !of->is_open)
        end_updates(of);
}

void tide_counters_let_go(tide_counters *all)
{
    const tide_step_counters *of = step_counters_of(all, all->updating);
    tide_counters_ended(all); /* only two steps' updates are told apart: the older ones end here */
    if (of->updates_pending)
        all->ending = all->updating;
    all->updating = all->begun;
    assert(tide_counters_is_valid(all));
}

void tide_counters_drop(tide_counters *all)
{
    const tide_step_counters *last = step_counters_of(all, all->begun);
    assert(tide_monitor_is_held(NULL));
    if (last->step != all->tracer->step || all->taken == all->begun)
        return;
    if (last->is_open)
        all->tracer->counted = 0;
    all->begun--;
    if (all->updating > all->begun)
        all->updating = all->begun;
    assert(tide_counters_is_valid(all));
}

bool tide_counters_take(tide_counters *all, uint64_t *step, tide_pool_counters *counters)
{
    assert(tide_monitor_is_held(NULL));
    if (all->taken == all->begun)
        return false;
    const tide_step_counters *oldest = step_counters_of(all, all->taken + 1);
    if (oldest->is_open || oldest->updates_pending)
        return false;
    *step = oldest->step;
    *counters = oldest->counters;
    all->taken++;
    assert(tide_counters_is_valid(all));
    return true;
}
