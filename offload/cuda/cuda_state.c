/* The failure, the sleep of threads and the counters of a CUDA device.
 *
 * Sleeping. The engine's sleep has to end when an event completes, and CUDA offers two ways to learn of that.
 * cudaLaunchHostFunc calls a function in stream order, but the stream's later commands wait until the
 * function has returned on a thread of the driver: each event would leave the GPU idle for tens of
 * microseconds. Therefore park() polls: it queries the oldest command of each stream (a query reads a word of
 * memory, in less than a microsecond), a few times at once and then every 20 to 50 microseconds. Between
 * queries it sleeps on the doorbell, which ring(), the host executor and a failure ring. By default Linux may
 * wake a thread 50 microseconds late: a sleep of 20 microseconds lasts 78 (median in a virtual machine of 2
 * cores; 97 in another run) and one of 50 lasts 107. With punctual sleeps (tide_host_sleep_sharply) they last
 * 26 (43) and 58. If nothing is on the streams, or events are not to wake the caller, park() polls every 10
 * milliseconds, for errors of kernels that no other call may notice. The engine sees an event at most one
 * period late, which is 5% of the time that a copy of 64 MiB takes.
 *
 * Failure. The device fails when a call that enqueues returns an error, and when a query returns the error of
 * a command that ran. After the latter CUDA's context is dead: recover() finds that out by another query, and
 * only a new process helps.
 */
#include "offload/cuda/cuda_inside.h"

#include "base/clock.h"
#include "offload/host_link.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

enum { LOOKS_AT_ONCE = 8, SLEEP_LEAST_NS = 20000, SLEEP_MOST_NS = 50000, SLEEP_ELSE_NS = 10000000 };

/* --- state --- */

void tide_cuda_state_lock(tide_cuda_device *device)
{
    pthread_mutex_lock(&device->state_lock);
}

void tide_cuda_state_unlock(tide_cuda_device *device)
{
    assert(device->ringing <= device->doorbell &&
           device->account.event_count <= device->account.event_capacity);
    pthread_mutex_unlock(&device->state_lock);
}

static void ring_locked(tide_cuda_device *device)
{
    device->ringing = ++device->doorbell;
    pthread_cond_broadcast(&device->rung);
}

tide_status tide_cuda_fail(tide_cuda_device *device, tide_status status)
{
    assert(status != TIDE_OK);
    tide_cuda_state_lock(device);
    if (device->failure == TIDE_OK) {
        device->failure = status;
        (void)snprintf(device->failure_message, sizeof device->failure_message, "%s", tide_message());
        ring_locked(device);
    }
    tide_cuda_state_unlock(device);
    return status;
}

tide_status tide_cuda_break(tide_cuda_device *device, tide_status status)
{
    if (status == TIDE_OK)
        return TIDE_OK;
    atomic_store(&device->broken, true);
    return tide_cuda_fail(device, status);
}

static tide_status failure_locked(const tide_cuda_device *device)
{
    if (device->failure == TIDE_OK)
        return TIDE_OK;
    return tide_fail(device->failure, "%s", device->failure_message);
}

tide_status tide_cuda_failure(tide_cuda_device *device)
{
    tide_cuda_state_lock(device);
    const tide_status status = failure_locked(device);
    tide_cuda_state_unlock(device);
    return status;
}

void tide_cuda_events_completed(tide_cuda_device *device, uint64_t count)
{
    if (count == 0)
        return;
    tide_cuda_state_lock(device);
    device->doorbell += count;
    pthread_cond_broadcast(&device->rung);
    tide_cuda_state_unlock(device);
}

void tide_cuda_event_recorded(tide_cuda_device *device)
{
    if (device->asleep > 0)
        pthread_cond_broadcast(&device->rung);
}

/* --- polling --- */

tide_status tide_cuda_mark(tide_cuda_device *device, tide_stream stream)
{
    tide_cuda_stream *it = &device->streams[stream];
    tide_status status = TIDE_OK;
    if (tide_cuda_clock_has_run(&it->clock))
        status = tide_cuda_break(device, tide_cuda_use(device->ordinal));
    if (status == TIDE_OK)
        status = tide_cuda_break(device, tide_cuda_clock_mark(&it->clock));
    it->failed = it->failed || status != TIDE_OK;
    return status;
}

static void mark_all(tide_cuda_device *device)
{
    for (int i = 0; i < TIDE_CUDA_STREAMS && !atomic_load(&device->broken); i++) {
        if (!tide_cuda_clock_has_run(&device->streams[i].clock))
            continue; /* skipped, since another thread may hold its lock for long */
        pthread_mutex_lock(&device->streams[i].lock);
        (void)tide_cuda_mark(device, (tide_stream)i); /* the device keeps the failure */
        pthread_mutex_unlock(&device->streams[i].lock);
    }
}

void tide_cuda_look(tide_cuda_device *device, tide_stream stream)
{
    uint64_t events = 0;
    if (atomic_load(&device->broken) || tide_cuda_clock_pending(&device->streams[stream].clock) == 0)
        return;
    tide_status status = tide_cuda_use(device->ordinal);
    if (status == TIDE_OK)
        status = tide_cuda_clock_harvest(&device->streams[stream].clock, &events);
    (void)tide_cuda_break(device, status); /* the device keeps the failure */
    tide_cuda_events_completed(device, events);
}

void tide_cuda_look_at_all(tide_cuda_device *device)
{
    for (int i = 0; i < TIDE_CUDA_STREAMS; i++)
        tide_cuda_look(device, (tide_stream)i);
}

/* Is on any stream a CUDA event pending whose query may find that it has passed? */
static bool something_to_look_at(const tide_cuda_device *device)
{
    for (int i = 0; i < TIDE_CUDA_STREAMS; i++)
        if (tide_cuda_clock_awaits_event(&device->streams[i].clock))
            return !atomic_load(&device->broken);
    return false;
}

/* --- sleep --- */

uint64_t tide_cuda_doorbell(tide_device *device)
{
    tide_cuda_device *cuda = tide_cuda_device_of(device);
    tide_cuda_state_lock(cuda);
    const uint64_t ticket = cuda->doorbell;
    tide_cuda_state_unlock(cuda);
    return ticket;
}

static bool is_rung(const tide_cuda_device *device, uint64_t ticket, bool events)
{
    return (events ? device->doorbell : device->ringing) > ticket;
}

static struct timespec after_ns(uint64_t ns)
{
    const uint64_t at_ns = tide_clock_ns() + ns;
    return (struct timespec){.tv_sec = (time_t)(at_ns / 1000000000u), .tv_nsec = (long)(at_ns % 1000000000u)};
}

static void sleep_for(tide_cuda_device *device, uint64_t ns)
{
    const struct timespec until = after_ns(ns);
    (void)pthread_cond_timedwait(&device->rung, &device->state_lock,
                                 &until); /* the caller checks whether it was rung */
}

/* Sleep between two polls for events; the state lock is held, and released during the sleep. If nothing is on
 * the streams, recording an event ends the sleep. */
static void sleep_between(tide_cuda_device *device, uint32_t looks, uint64_t *sleep_ns)
{
    if (!something_to_look_at(device)) {
        device->asleep++;
        sleep_for(device, SLEEP_ELSE_NS);
        device->asleep--;
    } else if (looks >= LOOKS_AT_ONCE) {
        sleep_for(device, *sleep_ns);
        *sleep_ns = *sleep_ns * 5 / 4 < SLEEP_MOST_NS ? *sleep_ns * 5 / 4 : SLEEP_MOST_NS;
    }
}

tide_status tide_cuda_park(tide_device *device, uint64_t ticket, bool events)
{
    tide_cuda_device *cuda = tide_cuda_device_of(device);
    uint64_t sleep_ns = SLEEP_LEAST_NS;
    tide_host_sleep_sharply();
    tide_cuda_state_lock(cuda);
    for (uint32_t looks = 0; !is_rung(cuda, ticket, events); looks++) {
        tide_cuda_state_unlock(cuda);
        tide_cuda_look_at_all(cuda);
        tide_cuda_state_lock(cuda);
        if (is_rung(cuda, ticket, events))
            break;
        if (events)
            sleep_between(cuda, looks, &sleep_ns);
        else
            sleep_for(cuda, SLEEP_ELSE_NS); /* only to notice failures */
    }
    tide_cuda_state_unlock(cuda);
    return TIDE_OK;
}

void tide_cuda_ring(tide_device *device)
{
    tide_cuda_device *cuda = tide_cuda_device_of(device);
    tide_cuda_state_lock(cuda);
    ring_locked(cuda);
    tide_cuda_state_unlock(cuda);
}

/* --- failure --- */

void tide_cuda_synchronize(tide_device *device)
{
    tide_cuda_device *cuda = tide_cuda_device_of(device);
    (void)tide_cuda_break(cuda, tide_cuda_use(cuda->ordinal));
    mark_all(cuda);
    for (int i = 0; i < TIDE_CUDA_STREAMS; i++)
        (void)tide_cuda_break(
            cuda, tide_cuda_check(cudaStreamSynchronize(cuda->streams[i].stream), "cudaStreamSynchronize"));
    tide_cuda_look_at_all(cuda);
    for (int i = 0; i < TIDE_CUDA_STREAMS && atomic_load(&cuda->broken); i++) {
        pthread_mutex_lock(&cuda->streams[i].lock);
        tide_cuda_clock_drop(&cuda->streams[i].clock);
        pthread_mutex_unlock(&cuda->streams[i].lock);
    }
    tide_host_executor_drain(&cuda->executor);
}

/* Query every stream: each must answer and be idle. If a stream returns an error again that was reported
 * before, the CUDA context is dead. */
static tide_status streams_ask(tide_cuda_device *device)
{
    tide_status status = tide_cuda_use(device->ordinal);
    for (int i = 0; i < TIDE_CUDA_STREAMS && status == TIDE_OK; i++) {
        const cudaError_t answer = cudaStreamQuery(device->streams[i].stream);
        if (tide_cuda_is_pending(answer) || tide_cuda_clock_pending(&device->streams[i].clock) > 0)
            return tide_fail(TIDE_ERROR_STATE, "recovery while commands are running: synchronize first");
        status = tide_cuda_check(answer, "cudaStreamQuery");
    }
    return status;
}

static void streams_forgive(tide_cuda_device *device)
{
    for (int i = 0; i < TIDE_CUDA_STREAMS; i++) {
        pthread_mutex_lock(&device->streams[i].lock);
        device->streams[i].failed = false;
        pthread_mutex_unlock(&device->streams[i].lock);
    }
}

tide_status tide_cuda_recover(tide_device *device)
{
    tide_cuda_device *cuda = tide_cuda_device_of(device);
    if (!tide_host_executor_idle(&cuda->executor))
        return tide_fail(TIDE_ERROR_STATE, "recovery while commands are running: synchronize first");
    tide_status status = streams_ask(cuda);
    if (status == TIDE_ERROR_STATE)
        return status;
    if (status != TIDE_OK)
        (void)tide_cuda_break(cuda, status);
    tide_cuda_state_lock(cuda);
    if (status != TIDE_OK || cuda->place_lost) {
        status = failure_locked(cuda);
    } else {
        cuda->failure = TIDE_OK;
        atomic_store(&cuda->broken, false);
    }
    tide_cuda_state_unlock(cuda);
    if (status != TIDE_OK)
        return status;
    tide_host_executor_forgive(&cuda->executor);
    streams_forgive(cuda);
    return TIDE_OK;
}

/* --- counters --- */

uint64_t tide_cuda_now_ns(tide_device *device)
{
    (void)device;
    return tide_clock_ns();
}

void tide_cuda_statistics(tide_device *device, tide_device_statistics *statistics)
{
    tide_cuda_device *cuda = tide_cuda_device_of(device);
    mark_all(cuda);
    tide_cuda_look_at_all(cuda);
    tide_device_statistics sum = {0};
    for (int i = 0; i < TIDE_CUDA_STREAMS; i++) {
        const tide_cuda_clock *clock = &cuda->streams[i].clock;
        sum.busy_ns[i] = atomic_load(&clock->busy_ns);
        sum.wait_ns[i] = atomic_load(&clock->wait_ns);
        sum.commands[i] = atomic_load(&clock->commands);
        sum.pending[i] = tide_cuda_clock_pending(clock);
    }
    tide_host_executor_statistics(&cuda->executor, &sum.busy_ns[TIDE_STREAM_HOST],
                                  &sum.commands[TIDE_STREAM_HOST], &sum.pending[TIDE_STREAM_HOST]);
    sum.host_threads = tide_host_executor_threads(&cuda->executor);
    sum.pinning = cuda->host_slots.times;
    tide_cuda_state_lock(cuda);
    sum.h2d_bytes = cuda->h2d_bytes;
    sum.d2h_bytes = cuda->d2h_bytes;
    sum.maps = cuda->account.maps;
    sum.unmaps = cuda->account.unmaps;
    memcpy(sum.waits, cuda->waits, sizeof sum.waits);
    tide_cuda_state_unlock(cuda);
    *statistics = sum;
}
