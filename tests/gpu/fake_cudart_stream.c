/* Streams, events and commands. A stream is a thread and a ring of commands; command i is finished when
 * `done` is greater than i. CUDA's events follow from this: a record stores its command's number, a wait
 * captures stream and number of the latest record at the time of the call, and older records need no
 * memory. A caller that finds the ring full waits, as with CUDA.
 *
 * Destroyed handles stay marked until the next start, so that the fake notices their use. */
#include "tests/gpu/fake_cudart_state.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

enum { TIME_STEP_NS = 500 };

/* --- a stream's thread --- */

static uint64_t next_random(uint64_t *state)
{
    uint64_t x = *state += UINT64_C(0x9e3779b97f4a7c15);
    x = (x ^ (x >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ (x >> 27)) * UINT64_C(0x94d049bb133111eb);
    return x ^ (x >> 31);
}

/* Makes every other command sleep, so that some streams run far ahead. */
static void delay(cudaStream_t stream)
{
    const uint32_t max_us = fake.options.delay_max_us;
    const uint64_t random = next_random(&stream->random);
    if (max_us == 0 || random % 2 == 0)
        return;
    pthread_mutex_unlock(&fake.lock);
    fake_sleep_us((random >> 8) % max_us);
    pthread_mutex_lock(&fake.lock);
}

static bool ranges_are_live(const fake_command *command)
{
    for (int i = 0; i < 2; i++)
        if (command->ranges[i] != NULL && !command->ranges[i]->live)
            return false;
    return true;
}

static void ranges_run(fake_command *command, int change)
{
    for (int i = 0; i < 2; i++)
        if (command->ranges[i] != NULL)
            command->ranges[i]->running += (unsigned)change;
}

/* The caller does not hold the lock. */
static int command_work(fake_command *command)
{
    switch (command->kind) {
    case FAKE_KERNEL:
        command->run(command->closure);
        break;
    case FAKE_INLINE_KERNEL:
        return command->run_inline(command->arguments);
    case FAKE_COPY:
        memcpy(command->to, command->from, command->bytes);
        break;
    case FAKE_FILL:
        memset(command->to, command->value, command->bytes);
        break;
    default:
        break;
    }
    return 0;
}

/* Whether the command may run: not after a failure, and not if it is itself the command that fails. */
static bool command_may_run(const fake_command *command)
{
    if (fake.sticky != 0)
        return false;
    fake.commands++;
    if (fake.command_countdown > 0 && --fake.command_countdown == 0)
        fake.sticky = fake.command_error;
    else if (!ranges_are_live(command))
        fake.sticky = cudaErrorIllegalAddress;
    return fake.sticky == 0;
}

static void closure_keep(void *closure)
{
    fake_skipped *skipped = calloc(1, sizeof *skipped);
    if (skipped == NULL)
        return;
    *skipped = (fake_skipped){fake.skipped, closure};
    fake.skipped = skipped;
}

static void command_execute(fake_command *command)
{
    if (!command_may_run(command)) {
        if (command->kind == FAKE_KERNEL)
            closure_keep(command->closure);
        return;
    }
    ranges_run(command, 1);
    pthread_mutex_unlock(&fake.lock);
    const int error = command_work(command);
    pthread_mutex_lock(&fake.lock);
    ranges_run(command, -1);
    if (error != 0 && fake.sticky == 0)
        fake.sticky = error;
}

static void command_record(cudaStream_t stream, cudaEvent_t event)
{
    if (event->stream == stream && event->number == stream->done)
        event->time_ns = fake_now_ns() / TIME_STEP_NS * TIME_STEP_NS;
}

static void command_run(cudaStream_t stream, fake_command *command)
{
    if (command->kind == FAKE_RECORD)
        command_record(stream, command->event);
    else if (command->kind == FAKE_WAIT)
        while (command->waits_for->done <= command->number)
            fake_wait_changed();
    else
        command_execute(command);
    for (int i = 0; i < 2; i++)
        if (command->ranges[i] != NULL)
            fake_range_unqueue(command->ranges[i]);
}

static void *stream_main(void *argument)
{
    cudaStream_t stream = argument;
    pthread_mutex_lock(&fake.lock);
    for (;;) {
        while (stream->done == stream->enqueued && !stream->ending)
            fake_wait_changed();
        if (stream->done == stream->enqueued)
            break;
        delay(stream);
        command_run(stream, &stream->ring[stream->done % FAKE_RING]);
        stream->done++;
        pthread_cond_broadcast(&fake.changed);
    }
    pthread_mutex_unlock(&fake.lock);
    return NULL;
}

/* --- making and destroying streams --- */

static cudaStream_t stream_place(void)
{
    static fake_command rings[FAKE_STREAMS_MAX][FAKE_RING];
    if (fake.stream_count < FAKE_STREAMS_MAX) {
        fake.streams[fake.stream_count].ring = rings[fake.stream_count];
        return &fake.streams[fake.stream_count++];
    }
    for (size_t i = 0; i < FAKE_STREAMS_MAX; i++)
        if (fake.streams[i].dead)
            return &fake.streams[i];
    return NULL;
}

static cudaStream_t stream_create(int gpu, int priority)
{
    cudaStream_t stream = stream_place();
    if (stream == NULL)
        return NULL;
    stream->gpu = gpu;
    stream->priority = priority;
    stream->random = fake.options.delay_seed * FAKE_STREAMS_MAX + (uint64_t)(stream - fake.streams);
    stream->ending = false;
    stream->dead = pthread_create(&stream->thread, NULL, stream_main, stream) != 0;
    return stream->dead ? NULL : stream;
}

/* Commands already enqueued still run. */
static void stream_end(cudaStream_t stream)
{
    stream->ending = stream->dead = true;
    pthread_cond_broadcast(&fake.changed);
    pthread_mutex_unlock(&fake.lock);
    (void)pthread_join(stream->thread, NULL);
    pthread_mutex_lock(&fake.lock);
}

void fake_streams_destroy(void)
{
    pthread_mutex_lock(&fake.lock);
    for (size_t i = 0; i < fake.stream_count; i++)
        if (!fake.streams[i].dead)
            stream_end(&fake.streams[i]);
    memset(fake.default_stream, 0, sizeof fake.default_stream);
    fake.stream_count = fake.event_count = fake.event_next = 0;
    pthread_mutex_unlock(&fake.lock);
}

/* The stream that a call's argument means; NULL: none. */
static cudaStream_t stream_of(const char *what, cudaStream_t stream)
{
    const int gpu = fake_current_gpu();
    if (stream == NULL || stream == cudaStreamLegacy) {
        if (fake.default_stream[gpu] == NULL)
            fake.default_stream[gpu] = stream_create(gpu, 0);
        return fake.default_stream[gpu];
    }
    if (stream->dead) {
        fake_misused("%s of a stream that was destroyed", what);
        return NULL;
    }
    fake_check_gpu("a stream", stream->gpu);
    return stream;
}

cudaError_t fake_stream_enqueue(cudaStream_t stream, const fake_command *command)
{
    stream = stream_of("use", stream);
    if (stream == NULL)
        return cudaErrorInvalidResourceHandle;
    while (stream->enqueued - stream->done >= FAKE_RING)
        fake_wait_changed();
    for (int i = 0; i < 2; i++)
        if (command->ranges[i] != NULL)
            fake_range_queue(command->ranges[i]);
    fake_command *entry = &stream->ring[stream->enqueued % FAKE_RING];
    memcpy(entry, command, sizeof *entry);
    if (command->kind == FAKE_RECORD) {
        command->event->stream = stream;
        command->event->number = stream->enqueued;
    }
    stream->enqueued++;
    pthread_cond_broadcast(&fake.changed);
    return cudaSuccess;
}

cudaError_t cudaDeviceGetStreamPriorityRange(int *leastPriority, int *greatestPriority)
{
    fake_call call = fake_enter("cudaDeviceGetStreamPriorityRange", 0);
    if (!call.refused) {
        *leastPriority = 0;
        *greatestPriority = FAKE_CUDART_GREATEST_PRIORITY;
    }
    return fake_leave(call, cudaSuccess);
}

static cudaError_t stream_give(cudaStream_t *to, unsigned int flags, int priority)
{
    if (flags != cudaStreamNonBlocking)
        fake_misused("a stream that waits for the default stream");
    cudaStream_t stream = stream_create(fake_current_gpu(), priority);
    if (stream == NULL)
        return cudaErrorMemoryAllocation;
    *to = stream;
    return cudaSuccess;
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *pStream, unsigned int flags)
{
    fake_call call = fake_enter("cudaStreamCreateWithFlags", 0);
    return fake_leave(call, call.refused ? cudaSuccess : stream_give(pStream, flags, 0));
}

cudaError_t cudaStreamCreateWithPriority(cudaStream_t *pStream, unsigned int flags, int priority)
{
    fake_call call = fake_enter("cudaStreamCreateWithPriority", 0);
    if (priority > 0 || priority < FAKE_CUDART_GREATEST_PRIORITY)
        fake_misused("priority %d of a stream, which CUDA would change", priority);
    return fake_leave(call, call.refused ? cudaSuccess : stream_give(pStream, flags, priority));
}

cudaError_t cudaStreamGetPriority(cudaStream_t hStream, int *priority)
{
    fake_call call = fake_enter("cudaStreamGetPriority", 0);
    cudaStream_t stream = stream_of("the priority", hStream);
    if (stream != NULL)
        *priority = stream->priority;
    return fake_leave(call, stream != NULL ? cudaSuccess : cudaErrorInvalidResourceHandle);
}

cudaError_t cudaStreamDestroy(cudaStream_t stream)
{
    fake_call call = fake_enter("cudaStreamDestroy", FAKE_GIVES_BACK);
    cudaError_t error = stream == NULL ? cudaErrorInvalidResourceHandle : cudaSuccess;
    if (!call.refused && error == cudaSuccess) {
        if (stream_of("destruction", stream) == NULL)
            error = cudaErrorInvalidResourceHandle;
        else
            stream_end(stream);
    }
    return fake_leave(call, error);
}

static cudaError_t stream_wait_idle(cudaStream_t stream)
{
    const uint64_t until = stream->enqueued;
    while (stream->done < until)
        fake_wait_changed();
    return (cudaError_t)fake.sticky;
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream)
{
    fake_call call = fake_enter("cudaStreamSynchronize", FAKE_GIVES_BACK);
    cudaError_t error = cudaSuccess;
    if (!call.refused) {
        stream = stream_of("synchronization", stream);
        error = stream == NULL ? cudaErrorInvalidResourceHandle : stream_wait_idle(stream);
    }
    return fake_leave(call, error);
}

cudaError_t cudaStreamQuery(cudaStream_t stream)
{
    fake_call call = fake_enter("cudaStreamQuery", 0);
    cudaError_t error = cudaSuccess;
    if (!call.refused) {
        stream = stream_of("query", stream);
        if (stream == NULL)
            error = cudaErrorInvalidResourceHandle;
        else if (stream->done < stream->enqueued)
            error = cudaErrorNotReady;
    }
    return fake_leave(call, error);
}

cudaError_t cudaDeviceSynchronize(void)
{
    fake_call call = fake_enter("cudaDeviceSynchronize", FAKE_GIVES_BACK);
    const int gpu = fake_current_gpu();
    cudaError_t error = cudaSuccess;
    if (!call.refused) {
        for (size_t i = 0; i < fake.stream_count; i++)
            if (!fake.streams[i].dead && fake.streams[i].gpu == gpu)
                (void)stream_wait_idle(&fake.streams[i]);
        error = (cudaError_t)fake.sticky;
    }
    return fake_leave(call, error);
}

/* --- events --- */

static bool event_is_alive(const char *what, cudaEvent_t event)
{
    if (event != NULL && !event->dead) {
        fake_check_gpu("an event", event->gpu);
        return true;
    }
    fake_misused("%s of an event that is no more", what);
    return false;
}

static bool event_is_over(cudaEvent_t event)
{
    return event->stream == NULL || event->stream->done > event->number;
}

/* Takes a place for an event; if all are used, that of the event destroyed longest ago. */
static cudaEvent_t event_place(void)
{
    if (fake.event_count < FAKE_EVENTS_MAX)
        return &fake.events[fake.event_count++];
    for (size_t i = 0; i < FAKE_EVENTS_MAX; i++) {
        cudaEvent_t event = &fake.events[fake.event_next];
        fake.event_next = (fake.event_next + 1) % FAKE_EVENTS_MAX;
        if (event->dead)
            return event;
    }
    return NULL;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned int flags)
{
    fake_call call = fake_enter("cudaEventCreateWithFlags", 0);
    cudaError_t error = cudaSuccess;
    if ((flags & ~(unsigned)(cudaEventBlockingSync | cudaEventDisableTiming)) != 0)
        error = cudaErrorInvalidValue;
    if (!call.refused && error == cudaSuccess) {
        cudaEvent_t made = event_place();
        error = made == NULL ? cudaErrorMemoryAllocation : cudaSuccess;
        if (made != NULL) {
            *made = (struct CUevent_st){.gpu = fake_current_gpu(),
                                        .timed = (flags & cudaEventDisableTiming) == 0};
            *event = made;
        }
    }
    return fake_leave(call, error);
}

cudaError_t cudaEventDestroy(cudaEvent_t event)
{
    fake_call call = fake_enter("cudaEventDestroy", FAKE_GIVES_BACK);
    cudaError_t error = cudaSuccess;
    if (!call.refused) {
        if (event_is_alive("destruction", event))
            event->dead = true;
        else
            error = cudaErrorInvalidResourceHandle;
    }
    return fake_leave(call, error);
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream)
{
    fake_call call = fake_enter("cudaEventRecord", 0);
    cudaError_t error = cudaSuccess;
    if (!call.refused) {
        const fake_command command = {.kind = FAKE_RECORD, .event = event};
        if (stream == NULL)
            fake_misused("an event recorded on the default stream");
        error = !event_is_alive("record", event) || (stream != NULL && event->gpu != stream->gpu)
                    ? cudaErrorInvalidResourceHandle
                    : fake_stream_enqueue(stream, &command);
    }
    return fake_leave(call, error);
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned int flags)
{
    fake_call call = fake_enter("cudaStreamWaitEvent", 0);
    cudaError_t error = flags != cudaEventWaitDefault ? cudaErrorInvalidValue : cudaSuccess;
    if (!call.refused && error == cudaSuccess) {
        if (!event_is_alive("wait", event))
            error = cudaErrorInvalidResourceHandle;
        else if (event->stream != NULL) {
            const fake_command command = {
                .kind = FAKE_WAIT, .waits_for = event->stream, .number = event->number};
            error = fake_stream_enqueue(stream, &command);
        }
    }
    return fake_leave(call, error);
}

cudaError_t cudaEventQuery(cudaEvent_t event)
{
    fake_call call = fake_enter("cudaEventQuery", 0);
    cudaError_t error = cudaSuccess;
    if (!call.refused) {
        if (!event_is_alive("query", event))
            error = cudaErrorInvalidResourceHandle;
        else if (!event_is_over(event))
            error = cudaErrorNotReady;
    }
    return fake_leave(call, error);
}

cudaError_t cudaEventSynchronize(cudaEvent_t event)
{
    fake_call call = fake_enter("cudaEventSynchronize", FAKE_GIVES_BACK);
    cudaError_t error = cudaSuccess;
    if (!call.refused && !event_is_alive("synchronization", event))
        error = cudaErrorInvalidResourceHandle;
    else if (!call.refused) {
        cudaStream_t stream = event->stream;
        const uint64_t number = event->number;
        while (stream != NULL && stream->done <= number)
            fake_wait_changed();
        error = (cudaError_t)fake.sticky;
    }
    return fake_leave(call, error);
}

static cudaError_t elapsed(float *ms, cudaEvent_t start, cudaEvent_t end)
{
    if (!event_is_alive("time", start) || !event_is_alive("time", end))
        return cudaErrorInvalidResourceHandle;
    if (!start->timed || !end->timed || start->stream == NULL || end->stream == NULL)
        return cudaErrorInvalidResourceHandle;
    if (!event_is_over(start) || !event_is_over(end))
        return cudaErrorNotReady;
    *ms = (float)(((double)end->time_ns - (double)start->time_ns) * 1e-6);
    return cudaSuccess;
}

cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t start, cudaEvent_t end)
{
    fake_call call = fake_enter("cudaEventElapsedTime", 0);
    cudaError_t error = call.refused ? cudaSuccess : elapsed(ms, start, end);
    return fake_leave(call, error);
}

/* --- kernels --- */

static cudaError_t launch(const fake_command *command, cudaStream_t stream)
{
    fake_call call = fake_enter("cudaLaunchKernel", 0);
    cudaError_t error = call.refused ? cudaSuccess : fake_stream_enqueue(stream, command);
    return fake_leave(call, error);
}

int fake_cudart_enqueue(void *stream, const char *label, void (*run)(void *closure), void *closure)
{
    const fake_command command = {.kind = FAKE_KERNEL, .run = run, .closure = closure};
    if (fake_last_error != 0) {
        pthread_mutex_lock(&fake.lock);
        fake_misused("%s would be blamed for an old error, %s", label,
                     cudaGetErrorName((cudaError_t)fake_last_error));
        pthread_mutex_unlock(&fake.lock);
    }
    if (launch(&command, stream) != cudaSuccess) {
        pthread_mutex_lock(&fake.lock);
        closure_keep(closure);
        pthread_mutex_unlock(&fake.lock);
    }
    return (int)cudaGetLastError();
}

int fake_cudart_launch(void *stream, int (*run)(void *arguments), const void *arguments, size_t bytes)
{
    fake_command command = {.kind = FAKE_INLINE_KERNEL, .run_inline = run};
    assert(bytes <= sizeof command.arguments);
    if (bytes > 0)
        memcpy(command.arguments, arguments, bytes);
    (void)launch(&command, stream);
    return (int)cudaGetLastError();
}
