/* Launches, copies and events. Every call that enqueues does the same steps. It locks the stream and refuses
 * if the device has failed. If the command does not belong to the run at the stream's end (commands that the
 * stream's clock times together, cuda_clock.h), it records a CUDA event that ends that run. It makes space
 * for the command in the clock, refuses if a test has injected a fault into this command, enqueues the
 * command, and enters it in the clock.
 *
 * Launchers of kernels run in the calling thread, which therefore pays for CUDA's launch, a few microseconds.
 * The stream's lock keeps together all that one launcher enqueues; nothing else waits for it. Copies use the
 * slots' own addresses, not the chunks' places that kernels use: two mappings of the same memory, which is
 * safe since an event always lies between (cuda_memory.h).
 */
#include "offload/cuda/cuda_inside.h"

#include "base/clock.h"
#include "offload/host_link.h"

#include <assert.h>
#include <inttypes.h>
#include <stdalign.h>
#include <string.h>

/* --- enqueuing --- */

/* Lock the stream and make space in its clock. On TIDE_OK the stream's lock is held. */
static tide_status enqueue_begin(tide_cuda_device *device, tide_stream stream, const tide_work *work)
{
    uint64_t events = 0;
    /* tide_cuda_use may return the error of a kernel that failed earlier. */
    tide_status status = tide_cuda_break(device, tide_cuda_use(device->ordinal));
    if (status != TIDE_OK)
        return status;
    pthread_mutex_lock(&device->streams[stream].lock);
    status = tide_cuda_failure(device);
    if (status == TIDE_OK && !tide_cuda_clock_joins(&device->streams[stream].clock, work))
        status = tide_cuda_mark(device, stream);
    if (status == TIDE_OK)
        status = tide_cuda_break(device, tide_cuda_clock_reserve(&device->streams[stream].clock, &events));
    tide_cuda_events_completed(device, events);
    if (status != TIDE_OK)
        pthread_mutex_unlock(&device->streams[stream].lock);
    return status;
}

/* Enter the work enqueued since `begin_ns` in the clock, and unlock the stream. Work that could not be
 * entered runs all the same, but this code can't see its end, so the device breaks. */
static tide_status enqueue_end(tide_cuda_device *device, tide_stream stream, const tide_work *work,
                               bool is_wait, uint64_t begin_ns)
{
    tide_cuda_stream *it = &device->streams[stream];
    const tide_status status =
        tide_cuda_break(device, tide_cuda_clock_enter(&it->clock, work, is_wait, begin_ns));
    it->failed = it->failed || status != TIDE_OK;
    pthread_mutex_unlock(&it->lock);
    return status;
}

/* --- launches --- */

/* Call a launcher with a copy of its arguments that is aligned for any type. */
static tide_status launcher_run(const tide_work *work, tide_stream stream, cudaStream_t on, tide_kernel fn,
                                const void *arguments, size_t argument_bytes)
{
    alignas(16) unsigned char copy[TIDE_LAUNCH_ARGUMENTS_MAX_BYTES];
    if (argument_bytes > 0)
        memcpy(copy, arguments, argument_bytes);
    const tide_command_name name = tide_command_name_of(work);
    return tide_command_call(&name, stream, on, fn, copy);
}

/* Launch a kernel. A launcher that fails may have enqueued a part of its work, so the device fails as if the
 * kernel itself had failed. */
static tide_status launch_on_gpu(tide_cuda_device *device, tide_stream stream, const tide_work *work,
                                 tide_kernel fn, const void *arguments, size_t argument_bytes)
{
    tide_cuda_stream *it = &device->streams[stream];
    tide_status status = enqueue_begin(device, stream, work);
    if (status != TIDE_OK)
        return status;
    const uint64_t begin_ns = tide_clock_ns();
    status = tide_fault_count(&device->account.fault, TIDE_FAULT_LAUNCH, work->label);
    if (status != TIDE_OK)
        goto unlock;
    status = launcher_run(work, stream, it->stream, fn, arguments, argument_bytes);
    if (status != TIDE_OK) {
        it->failed = true;
        (void)tide_cuda_fail(device, status);
        goto unlock;
    }
    return enqueue_end(device, stream, work, false, begin_ns);

unlock:
    pthread_mutex_unlock(&it->lock);
    return status;
}

static tide_status launch_on_executor(tide_cuda_device *device, const tide_work *work, tide_kernel fn,
                                      const void *arguments, size_t argument_bytes)
{
    tide_status status = tide_cuda_failure(device);
    if (status == TIDE_OK)
        status = tide_fault_count(&device->account.fault, TIDE_FAULT_LAUNCH, work->label);
    if (status == TIDE_OK)
        tide_host_executor_push(&device->executor, work, fn, arguments, argument_bytes);
    return status;
}

tide_status tide_cuda_launch(tide_device *device, tide_stream stream, const tide_work *work, tide_kernel fn,
                             const void *arguments, size_t argument_bytes)
{
    tide_cuda_device *cuda = tide_cuda_device_of(device);
    const tide_status status = tide_launch_check(stream, work, fn, arguments, argument_bytes);
    if (status != TIDE_OK)
        return status;
    if (stream == TIDE_STREAM_HOST)
        return launch_on_executor(cuda, work, fn, arguments, argument_bytes);
    return launch_on_gpu(cuda, stream, work, fn, arguments, argument_bytes);
}

/* --- copies --- */

static tide_status copy_check(tide_stream stream, const tide_work *work)
{
    const tide_status status = tide_copy_check(stream, work);
    if (status != TIDE_OK || stream != TIDE_STREAM_HOST)
        return status;
    return tide_fail(TIDE_ERROR_ARGUMENT, "%s %" PRIu32 ": a GPU's copies do not run on the host executor",
                     work->label, work->tag);
}

static void count_copied(tide_cuda_device *device, uint64_t bytes, bool to_device)
{
    tide_cuda_state_lock(device);
    *(to_device ? &device->h2d_bytes : &device->d2h_bytes) += bytes;
    tide_cuda_state_unlock(device);
}

static tide_status enqueue_copy(tide_cuda_device *device, tide_stream stream, const tide_work *work, void *to,
                                const void *from, uint64_t bytes, bool to_device)
{
    tide_cuda_stream *it = &device->streams[stream];
    tide_status status = enqueue_begin(device, stream, work);
    if (status != TIDE_OK)
        return status;
    const uint64_t begin_ns = tide_clock_ns();
    status = tide_fault_count(&device->account.fault, TIDE_FAULT_COPY, work->label);
    if (status != TIDE_OK)
        goto unlock;
    const enum cudaMemcpyKind way = to_device ? cudaMemcpyHostToDevice : cudaMemcpyDeviceToHost;
    status = tide_cuda_break(
        device, tide_cuda_check(cudaMemcpyAsync(to, from, bytes, way, it->stream), "cudaMemcpyAsync"));
    if (status != TIDE_OK)
        goto unlock;
    status = enqueue_end(device, stream, work, false, begin_ns);
    if (status == TIDE_OK)
        count_copied(device, bytes, to_device);
    return status;

unlock:
    pthread_mutex_unlock(&it->lock);
    return status;
}

tide_status tide_cuda_copy_slot(tide_device *device, tide_stream stream, const tide_work *work,
                                tide_tier to_tier, uint32_t to_slot, uint32_t from_slot, uint64_t bytes)
{
    tide_cuda_device *cuda = tide_cuda_device_of(device);
    const tide_slot_counts counts = {{cuda->memory.slot_count, cuda->host_slots.count},
                                     cuda->options.chunk_bytes};
    tide_status status = copy_check(stream, work);
    if (status == TIDE_OK)
        status = tide_copy_slot_check(&counts, to_tier, to_slot, from_slot, bytes);
    if (status != TIDE_OK)
        return status;
    const bool to_device = to_tier == TIDE_TIER_DEVICE;
    const tide_tier from_tier = to_device ? TIDE_TIER_HOST : TIDE_TIER_DEVICE;
    return enqueue_copy(cuda, stream, work, tide_cuda_slot_address(device, to_tier, to_slot),
                        tide_cuda_slot_address(device, from_tier, from_slot), bytes, to_device);
}

tide_status tide_cuda_copy_bytes(tide_device *device, tide_stream stream, const tide_work *work, void *to,
                                 const void *from, uint64_t bytes, bool to_device)
{
    tide_cuda_device *cuda = tide_cuda_device_of(device);
    tide_status status = copy_check(stream, work);
    if (status != TIDE_OK)
        return status;
    status = tide_account_copy_check(&cuda->account, work, to, from, bytes, to_device);
    if (status != TIDE_OK)
        return status;
    return enqueue_copy(cuda, stream, work, to, from, bytes, to_device);
}

/* --- events --- */

static bool has_passed(tide_cuda_device *device, tide_stream_point moment)
{
    if (moment.stream == TIDE_STREAM_HOST)
        return tide_host_executor_passed(&device->executor, moment.sequence);
    return tide_cuda_clock_passed(&device->streams[moment.stream].clock, moment.sequence);
}

/* Record the moment after the last command that is enqueued on the stream so far. */
static tide_status moment_take(tide_cuda_device *device, tide_stream_point *moment)
{
    if (moment->stream == TIDE_STREAM_HOST) {
        moment->sequence = tide_host_executor_record(&device->executor);
        return TIDE_OK;
    }
    tide_cuda_stream *it = &device->streams[moment->stream];
    pthread_mutex_lock(&it->lock);
    const tide_status status = tide_cuda_mark(device, moment->stream);
    moment->sequence = tide_cuda_clock_record(&it->clock);
    pthread_mutex_unlock(&it->lock);
    return status;
}

tide_status tide_cuda_event_record(tide_device *device, tide_event event, tide_stream stream)
{
    tide_cuda_device *cuda = tide_cuda_device_of(device);
    tide_status status = tide_stream_check(stream);
    if (status != TIDE_OK)
        return status;
    tide_stream_point moment = {.stream = stream};
    status = moment_take(cuda, &moment);
    if (status != TIDE_OK)
        return status;
    const bool passed = has_passed(cuda, moment); /* if so, no later harvest rings for this event */
    tide_cuda_state_lock(cuda);
    status = tide_event_check(event, cuda->account.event_count);
    if (status == TIDE_OK) {
        cuda->account.events[event - 1] = moment;
        tide_cuda_event_recorded(cuda);
    }
    tide_cuda_state_unlock(cuda);
    tide_cuda_events_completed(cuda, status == TIDE_OK && passed);
    return status;
}

/* Get the event's latest record for a wait at `site`, and count the wait. `stream` is the stream that is to
 * wait, or STREAM_COUNT for the calling thread. `skipped`: a test skips this site. */
static tide_status moment_find(tide_cuda_device *device, tide_stream stream, tide_event event,
                               tide_wait_site site, tide_stream_point *moment, bool *skipped)
{
    tide_cuda_state_lock(device);
    tide_status status = tide_event_check(event, device->account.event_count);
    if (status == TIDE_OK && stream != TIDE_STREAM_COUNT)
        status = tide_stream_wait_check(stream, event, device->account.events[event - 1].stream);
    if (status == TIDE_OK) {
        device->waits[site]++;
        *moment = device->account.events[event - 1];
        *skipped = site == device->options.checks.skip_wait_site;
    }
    tide_cuda_state_unlock(device);
    return status;
}

/* Make the stream wait until the moment has passed. The wait is an entry of its own in the clock, since it
 * may take time. */
static tide_status hold(tide_cuda_device *device, tide_stream stream, tide_stream_point moment,
                        tide_wait_site site, uint64_t id)
{
    tide_cuda_stream *it = &device->streams[stream];
    const tide_work wait = {.label = "wait", .tag = site, .id = id};
    tide_status status = enqueue_begin(device, stream, &wait);
    if (status != TIDE_OK)
        return status;
    bool entered = false;
    const uint64_t begin_ns = tide_clock_ns();
    status = tide_cuda_break(device, tide_cuda_clock_hold(&device->streams[moment.stream].clock,
                                                          moment.sequence, it->stream, &entered));
    if (entered)
        return enqueue_end(device, stream, &wait, true, begin_ns);
    pthread_mutex_unlock(&it->lock);
    return status;
}

tide_status tide_cuda_stream_wait(tide_device *device, tide_stream stream, tide_event event,
                                  tide_wait_site site, uint64_t id)
{
    tide_cuda_device *cuda = tide_cuda_device_of(device);
    tide_stream_point moment;
    bool skipped;
    tide_status status = tide_stream_check(stream);
    if (status == TIDE_OK)
        status = tide_wait_site_check(site);
    if (status == TIDE_OK)
        status = tide_cuda_failure(cuda);
    if (status == TIDE_OK)
        status = moment_find(cuda, stream, event, site, &moment, &skipped);
    if (status != TIDE_OK || skipped || moment.stream == stream)
        return status;
    tide_cuda_look(cuda, moment.stream); /* most moments have passed by now, and need no wait */
    return has_passed(cuda, moment) ? TIDE_OK : hold(cuda, stream, moment, site, id);
}

tide_status tide_cuda_event_query(tide_device *device, tide_event event, tide_wait_site site, bool *done)
{
    tide_cuda_device *cuda = tide_cuda_device_of(device);
    tide_stream_point moment;
    bool skipped;
    tide_status status = tide_wait_site_check(site);
    if (status == TIDE_OK)
        status = moment_find(cuda, TIDE_STREAM_COUNT, event, site, &moment, &skipped);
    if (status != TIDE_OK)
        return status;
    bool passed = skipped || has_passed(cuda, moment);
    if (!passed && moment.stream != TIDE_STREAM_HOST) {
        tide_cuda_look(cuda, moment.stream);
        passed = has_passed(cuda, moment);
        if (!passed && atomic_load(&cuda->broken))
            return tide_cuda_failure(cuda);
    }
    *done = passed;
    return TIDE_OK;
}

static tide_status gpu_wait(tide_cuda_device *device, tide_stream_point moment)
{
    tide_status status = tide_cuda_break(device, tide_cuda_use(device->ordinal));
    if (status != TIDE_OK)
        return status;
    tide_cuda_look(device, moment.stream);
    if (has_passed(device, moment))
        return TIDE_OK;
    if (atomic_load(&device->broken))
        return tide_cuda_failure(device);
    status =
        tide_cuda_break(device, tide_cuda_clock_wait(&device->streams[moment.stream].clock, moment.sequence));
    tide_cuda_look(device, moment.stream); /* so that the times of the command are exact */
    return status;
}

tide_status tide_cuda_event_wait(tide_device *device, tide_event event, tide_wait_site site)
{
    tide_cuda_device *cuda = tide_cuda_device_of(device);
    tide_stream_point moment;
    bool skipped;
    tide_status status = tide_wait_site_check(site);
    if (status == TIDE_OK)
        status = moment_find(cuda, TIDE_STREAM_COUNT, event, site, &moment, &skipped);
    if (status != TIDE_OK || skipped)
        return status;
    if (moment.stream != TIDE_STREAM_HOST)
        return gpu_wait(cuda, moment);
    tide_host_executor_wait(&cuda->executor, moment.sequence);
    return TIDE_OK;
}

/* --- space on the streams --- */

static bool has_capacity(tide_cuda_device *device, tide_stream stream, uint64_t *oldest)
{
    if (stream == TIDE_STREAM_HOST)
        return tide_host_executor_has_capacity(&device->executor, TIDE_CAPACITY_COMMANDS, oldest);
    return tide_cuda_clock_has_capacity(&device->streams[stream].clock, TIDE_CAPACITY_COMMANDS, oldest);
}

bool tide_cuda_has_capacity(tide_device *device, tide_stream stream, bool wait)
{
    tide_cuda_device *cuda = tide_cuda_device_of(device);
    tide_stream_point moment = {stream, 0};
    if (has_capacity(cuda, stream, &moment.sequence))
        return true;
    if (stream != TIDE_STREAM_HOST)
        tide_cuda_look(cuda, stream); /* most commands have passed by now */
    if (has_capacity(cuda, stream, &moment.sequence) || atomic_load(&cuda->broken))
        return true;
    if (!wait)
        return false;
    if (stream == TIDE_STREAM_HOST)
        tide_host_executor_wait(&cuda->executor, moment.sequence);
    else
        (void)gpu_wait(cuda, moment); /* if it fails, the next call returns the failure */
    return true;
}
