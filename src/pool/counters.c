/* Counters, traces and durations: what the pool did, step by step.
 *
 * A step lasts from its first op to the next step's first op. Sums that the device keeps (busy and waiting
 * streams) are read at those two points; moves are counted as they are enqueued, those made for updates to
 * the step whose gradients they use. Updates of two steps never overlap, so the optimizer's seconds are cut
 * where one step's updates are over.
 */
#include "src/pool/internal.h"

#include <assert.h>
#include <string.h>

static tide_step_record *record(tide_pool *pool, uint64_t number)
{
    return number == 0 ? NULL : &pool->journal.records.ring[number % TIDE_STEP_RECORDS_MAX];
}

/* --- traces --- */

/* A copy's label tells the checker's reader what it is, and the observer why it was made: the observer compares
 * pointers. */
enum { COPY_KINDS = TIDE_COMMAND_WRITE_BACK + 1, REASONS = TIDE_REASON_SPILL + 1 };

static const char copy_labels[COPY_KINDS][REASONS][24] = {
    [TIDE_COMMAND_FETCH] = {"fetch", "fetch ahead", "fetch to update", "fetch to restore", "fetch to access",
                            "fetch to spill"},
    [TIDE_COMMAND_EVICT] = {"evict", "evict ahead", "evict to update", "evict to restore", "evict to access",
                            "evict to spill"},
    [TIDE_COMMAND_WRITE_BACK] = {"write back", "write back ahead", "write back to update",
                                 "write back to restore", "write back to access", "write back to spill"},
};

const char *tide_pool_copy_label(const tide_command *command)
{
    assert((int)command->kind < (int)COPY_KINDS && (int)command->reason < (int)REASONS);
    return copy_labels[command->kind][command->reason];
}

static const char *copy_reason(const char *label)
{
    for (int kind = 0; kind < COPY_KINDS; kind++) {
        for (int reason = 0; reason < REASONS; reason++) {
            if (label == copy_labels[kind][reason])
                return tide_reason_name((tide_reason)reason);
        }
    }
    return "";
}

/* What is done for an update belongs to the step whose gradients it uses. (A stall is the step's that it holds up.) */
static bool is_of_update(const char *reason)
{
    return strcmp(reason, tide_reason_name(TIDE_REASON_UPDATE)) == 0 ||
           strcmp(reason, tide_reason_name(TIDE_REASON_RESTORE)) == 0;
}

static void trace_at(tide_pool *pool, uint64_t t_ns, const char *event, tide_chunk chunk, const char *from,
                     const char *to, uint64_t bytes, const char *reason)
{
    const char *op = pool->journal.tracer.op;
    const bool of_chunk = chunk != TIDE_CHUNK_NONE;
    const tide_trace_event traced = {
        .t_ns = t_ns,
        .step =
            of_chunk && is_of_update(reason) ? pool->journal.tracer.let_go_step : pool->journal.tracer.step,
        .moment = pool->journal.tracer.moment,
        .op = op == NULL ? "" : op,
        .event = event,
        .chunk = of_chunk ? tide_layout_chunk_index(pool->ground.layout, chunk) : UINT32_MAX,
        .space = of_chunk ? tide_layout_chunk_space(pool->ground.layout, chunk) : TIDE_SPACE_PARAM,
        .from = from,
        .to = to,
        .bytes = bytes,
        .reason = reason,
    };
    pool->ground.options.trace(pool->ground.options.trace_context, &traced);
}

void tide_pool_trace(tide_pool *pool, const char *event, tide_chunk chunk, const char *from, const char *to,
                     uint64_t bytes, const char *reason)
{
    if (pool->ground.options.trace != NULL)
        trace_at(pool, pool->ground.device->ops->now_ns(pool->ground.device), event, chunk, from, to, bytes,
                 reason);
}

static void trace_copy(tide_pool *pool, tide_stream stream, const char *label, uint32_t tag,
                       uint64_t begin_ns, uint64_t end_ns)
{
    const char *reason = copy_reason(label);
    const char *from = stream == TIDE_STREAM_IN ? "host" : "device",
               *to = stream == TIDE_STREAM_IN ? "device" : "host";
    const uint64_t bytes = tide_layout_chunk_used_bytes(pool->ground.layout, tag);
    trace_at(pool, begin_ns, "copy begin", tag, from, to, bytes, reason);
    trace_at(pool, end_ns, "copy end", tag, from, to, bytes, reason);
}

void tide_pool_trace_stall(tide_pool *pool, tide_stall_cause cause, uint64_t begin_ns, uint64_t end_ns)
{
    if (pool->ground.options.trace == NULL)
        return;
    trace_at(pool, begin_ns, "stall begin", TIDE_CHUNK_NONE, "", "", 0, tide_stall_cause_name(cause));
    trace_at(pool, end_ns, "stall end", TIDE_CHUNK_NONE, "", "", 0, tide_stall_cause_name(cause));
}

/* --- durations --- */

/* By address: a label that is a copy's is one of the table. */
static bool is_copy(const char *label)
{
    const uintptr_t at = (uintptr_t)label, table = (uintptr_t)copy_labels;
    return at >= table && at < table + sizeof copy_labels;
}

/* Memory traffic of one of a PARAM chunk's updates, its parts taken as equal: over a step that is exact. */
static uint64_t update_bytes(const tide_pool *pool, tide_chunk param_chunk)
{
    const uint64_t bytes_each = 24 + 2 * tide_dtype_bytes(pool->ground.options.dtype);
    uint64_t parts = 0, elements = 0;
    for (uint32_t part = 0; part < tide_pool_parts(pool); part++) {
        const tide_chunk master =
            tide_layout_state_chunk(pool->ground.layout, param_chunk, TIDE_SPACE_MASTER, part);
        if (master == TIDE_CHUNK_NONE)
            continue;
        elements += tide_layout_chunk_used_bytes(pool->ground.layout, master) / sizeof(float);
        parts++;
    }
    return parts == 0 ? 0 : elements * bytes_each / parts;
}

/* What the pool does itself, at the begin of steps and ops and at the end of ops, is known by its labels. */
static uint32_t compute_series(const tide_pool *pool, const char *label, uint32_t tag)
{
    const bool begins = label == tide_label_zero_region || label == tide_label_write;
    if (tag == pool->model.op_count)
        return begins ? TIDE_SERIES_BEFORE : TIDE_SERIES_AFTER;
    if (label == tide_label_gradient_rounding || label == tide_label_gradient_norm)
        return tide_series_of_end(&pool->journal.measure, tag);
    return label == tide_label_zero_region ? tide_series_of_begin(&pool->journal.measure, tag)
                                           : tide_series_of_op(tag);
}

static void measure_command(tide_pool *pool, tide_stream stream, const char *label, uint32_t tag, uint64_t ns)
{
    tide_measure *measure = &pool->journal.measure;
    if (stream == TIDE_STREAM_COMPUTE && tag <= pool->model.op_count)
        tide_measure_add(measure, compute_series(pool, label, tag), ns, 0);
    else if ((stream == TIDE_STREAM_IN || stream == TIDE_STREAM_OUT) && is_copy(label))
        tide_measure_add(measure, stream == TIDE_STREAM_IN ? TIDE_SERIES_COPY_IN : TIDE_SERIES_COPY_OUT, ns,
                         tide_layout_chunk_used_bytes(pool->ground.layout, tag));
    else if (label == tide_label_adam_host || label == tide_label_adam_device)
        tide_measure_add(measure,
                         label == tide_label_adam_host ? TIDE_SERIES_ADAM_HOST : TIDE_SERIES_ADAM_DEVICE, ns,
                         update_bytes(pool, tag));
}

/* On the streams' threads. */
void tide_pool_observe(void *context, tide_stream stream, const char *label, uint32_t tag, uint64_t begin_ns,
                       uint64_t end_ns)
{
    tide_pool *pool = context;
    const bool wait = strcmp(label, "wait") == 0;
    if (stream == TIDE_STREAM_COMPUTE)
        tide_stall_observe(pool, label, tag, wait, begin_ns, end_ns);
    if (label == tide_label_adam_host)
        pool->journal.records.adam_ns[0] += end_ns - begin_ns;
    else if (label == tide_label_adam_device)
        pool->journal.records.adam_ns[1] += end_ns - begin_ns;
    if (!wait)
        measure_command(pool, stream, label, tag, end_ns - begin_ns);
    if (pool->ground.options.trace != NULL && !wait &&
        (stream == TIDE_STREAM_IN || stream == TIDE_STREAM_OUT))
        trace_copy(pool, stream, label, tag, begin_ns, end_ns);
}

/* --- moves --- */

static void count(tide_pool *pool, tide_reason reason, const tide_pool_counters *more)
{
    const bool of_update = reason == TIDE_REASON_UPDATE || reason == TIDE_REASON_RESTORE;
    tide_step_record *of =
        record(pool, of_update ? pool->journal.records.updating : pool->journal.records.begun);
    tide_pool_counters *sums[2] = {&pool->journal.records.sums, of == NULL ? NULL : &of->counters};
    for (int i = 0; i < 2; i++) {
        if (sums[i] == NULL)
            continue;
        sums[i]->h2d_bytes += more->h2d_bytes;
        sums[i]->d2h_bytes += more->d2h_bytes;
        sums[i]->evictions += more->evictions;
        sums[i]->demand_fetches += more->demand_fetches;
        sums[i]->prefetches += more->prefetches;
    }
}

void tide_pool_count_bytes(tide_pool *pool, const tide_command *command, uint64_t h2d_bytes,
                           uint64_t d2h_bytes)
{
    const tide_pool_counters more = {.h2d_bytes = h2d_bytes, .d2h_bytes = d2h_bytes};
    count(pool, command->reason, &more);
}

void tide_pool_count_command(tide_pool *pool, const tide_command *command)
{
    const bool fetch = command->kind == TIDE_COMMAND_FETCH;
    const tide_pool_counters more = {.evictions = command->kind == TIDE_COMMAND_EVICT,
                                     .demand_fetches = fetch && command->reason == TIDE_REASON_DEMAND,
                                     .prefetches = fetch && command->reason == TIDE_REASON_PREFETCH};
    count(pool, command->reason, &more);
}

/* --- sums and records --- */

static void stalls_sum(tide_pool_counters *counters)
{
    counters->stall_seconds = 0;
    for (int cause = 0; cause < TIDE_STALL_CAUSE_COUNT; cause++)
        counters->stall_seconds += counters->stall_seconds_by[cause];
}

void tide_pool_counters_sum(tide_pool *pool, tide_pool_counters *sums)
{
    tide_device_statistics device;
    tide_memory_usage device_memory, host_memory;
    tide_manager_counters manager;
    const uint64_t norm_copy_ns = pool->journal.stalls.norm_copy_ns;
    pool->ground.device->ops->statistics(pool->ground.device, &device);
    pool->ground.device->ops->usage(pool->ground.device, TIDE_TIER_DEVICE, &device_memory);
    pool->ground.device->ops->usage(pool->ground.device, TIDE_TIER_HOST, &host_memory);
    tide_manager_counters_get(pool->engine.manager, &manager);
    *sums = pool->journal.records.sums;
    sums->steps = pool->journal.tracer.step;
    sums->seconds = (double)pool->ground.device->ops->now_ns(pool->ground.device) * 1e-9;
    /* On the host device the copy is told of before it counts as busy. */
    const uint64_t busy_ns = device.busy_ns[TIDE_STREAM_COMPUTE];
    sums->compute_seconds = busy_ns > norm_copy_ns ? (double)(busy_ns - norm_copy_ns) * 1e-9 : 0;
    for (int cause = 0; cause < TIDE_STALL_CAUSE_COUNT; cause++)
        sums->stall_seconds_by[cause] = (double)pool->journal.stalls.ns[cause] * 1e-9;
    stalls_sum(sums);
    sums->adam_host_seconds = (double)pool->journal.records.adam_ns[0] * 1e-9;
    sums->adam_device_seconds = (double)pool->journal.records.adam_ns[1] * 1e-9;
    sums->re_recordings = manager.re_recordings;
    sums->zero_gradients = manager.zero_gradients;
    sums->device_bytes_peak = device_memory.peak_bytes;
    sums->host_bytes_peak = host_memory.peak_bytes;
    sums->device_allocations = device_memory.allocations;
    sums->host_allocations = host_memory.allocations;
}

/* What a record takes from the sums' growth since its begin. */
static void close_record(tide_step_record *closing, const tide_pool_counters *now)
{
    tide_pool_counters *of = &closing->counters;
    of->steps = 1;
    of->seconds = now->seconds - closing->begin.seconds;
    of->compute_seconds = now->compute_seconds - closing->begin.compute_seconds;
    for (int cause = 0; cause < TIDE_STALL_CAUSE_COUNT; cause++)
        of->stall_seconds_by[cause] = now->stall_seconds_by[cause] - closing->begin.stall_seconds_by[cause];
    stalls_sum(of);
    of->re_recordings = now->re_recordings - closing->begin.re_recordings;
    of->zero_gradients = now->zero_gradients - closing->begin.zero_gradients;
    of->skipped = now->skipped - closing->begin.skipped;
    of->manager_calls = now->manager_calls - closing->begin.manager_calls;
    of->device_bytes_peak = now->device_bytes_peak;
    of->host_bytes_peak = now->host_bytes_peak;
    of->device_allocations = now->device_allocations;
    of->host_allocations = now->host_allocations;
    closing->closed = true;
}

void tide_pool_record_close(tide_pool *pool)
{
    tide_step_record *last = record(pool, pool->journal.records.begun);
    if (last != NULL && !last->closed) {
        tide_pool_counters now;
        tide_pool_counters_sum(pool, &now);
        close_record(last, &now);
    }
    tide_pool_record_updated(pool, false);
}

void tide_pool_record_begin(tide_pool *pool)
{
    tide_pool_record_close(pool);
    pool->journal.records.begun++;
    /* Nobody takes them: the oldest goes. */
    if (pool->journal.records.begun - pool->journal.records.taken > TIDE_STEP_RECORDS_MAX)
        pool->journal.records.taken = pool->journal.records.begun - TIDE_STEP_RECORDS_MAX;
    tide_step_record *opened = record(pool, pool->journal.records.begun);
    memset(opened, 0, sizeof *opened);
    opened->step = pool->journal.tracer.step;
    tide_pool_counters_sum(pool, &opened->begin);
}

void tide_pool_record_updated(tide_pool *pool, bool over)
{
    tide_step_record *of = record(pool, pool->journal.records.updating);
    if (of == NULL || of->updated || !(over || (of->closed && tide_pool_updates_ended(pool))))
        return;
    const uint64_t host_ns = pool->journal.records.adam_ns[0], device_ns = pool->journal.records.adam_ns[1];
    of->counters.adam_host_seconds = (double)(host_ns - pool->journal.records.adam_counted_ns[0]) * 1e-9;
    of->counters.adam_device_seconds = (double)(device_ns - pool->journal.records.adam_counted_ns[1]) * 1e-9;
    pool->journal.records.adam_counted_ns[0] = host_ns;
    pool->journal.records.adam_counted_ns[1] = device_ns;
    of->updated = true;
}

void tide_pool_record_drop(tide_pool *pool)
{
    const tide_step_record *last = record(pool, pool->journal.records.begun);
    if (last == NULL || last->step != pool->journal.tracer.step ||
        pool->journal.records.taken == pool->journal.records.begun)
        return;
    pool->journal.records.begun--;
    if (pool->journal.records.updating > pool->journal.records.begun)
        pool->journal.records.updating = pool->journal.records.begun;
}

tide_status tide_pool_counters_get(const tide_pool *pool, tide_pool_counters *counters)
{
    const tide_status given = tide_pool_given("tide_pool_counters_get", pool == NULL       ? "pool"
                                                                        : counters == NULL ? "counters"
                                                                                           : NULL);
    if (given != TIDE_OK)
        return given;
    if (!pool->sealed)
        return tide_fail(TIDE_ERROR_STATE, "tide_pool_counters_get: the pool is not sealed");
    tide_pool *shared = (tide_pool *)(uintptr_t)pool; /* the lock is not part of the value */
    tide_monitor_lock(&shared->monitor);
    tide_pool_counters_sum(shared, counters);
    tide_monitor_unlock(&shared->monitor);
    return TIDE_OK;
}

bool tide_pool_step_counters_take(tide_pool *pool, uint64_t *step, tide_pool_counters *counters)
{
    if (pool == NULL || step == NULL || counters == NULL || !pool->sealed)
        return false;
    bool taken = false;
    tide_monitor_lock(&pool->monitor);
    tide_pool_record_updated(pool, false);
    if (pool->journal.records.taken < pool->journal.records.begun) {
        const tide_step_record *oldest = record(pool, pool->journal.records.taken + 1);
        taken = oldest->closed && oldest->updated;
        if (taken) {
            *step = oldest->step;
            *counters = oldest->counters;
            pool->journal.records.taken++;
        }
    }
    tide_monitor_unlock(&pool->monitor);
    return taken;
}

void tide_pool_waits(const tide_pool *pool, uint64_t waits[TIDE_WAIT_SITE_COUNT])
{
    tide_device_statistics device = {0};
    if (pool->ground.device != NULL)
        pool->ground.device->ops->statistics(pool->ground.device, &device);
    memcpy(waits, device.waits, sizeof device.waits);
}
