/* A stream's thread runs a command without the lock while the command is still in the ring; no other thread
 * reuses its place until `completed` has reached it.
 */
#include "offload/host/host_stream.h"

#include "base/clock.h"
#include "offload/host_link.h"
#include "offload/stream_thread.h"
#include "offload/topology.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

bool tide_host_streams_is_valid(const tide_host_streams *streams)
{
    for (int i = 0; i < TIDE_STREAM_COUNT; i++) {
        const tide_host_stream *stream = &streams->streams[i];
        if (stream->completed > stream->enqueued ||
            stream->enqueued - stream->completed > TIDE_HOST_RING_COMMANDS)
            return false;
    }
    return true;
}

void tide_host_streams_lock(tide_host_streams *streams)
{
    pthread_mutex_lock(&streams->lock);
}

void tide_host_streams_unlock(tide_host_streams *streams)
{
    assert(tide_host_streams_is_valid(streams));
    pthread_mutex_unlock(&streams->lock);
}

static tide_host_command *command_at(tide_host_stream *stream, uint64_t sequence)
{
    return &stream->ring[sequence % TIDE_HOST_RING_COMMANDS];
}

/* --- enqueuing --- */

/* Sleep until the stream has completed `sequence`; may return earlier, when the stream wakes another thread.
 * The lock is held. */
static void progress_wait(tide_host_stream *stream, uint64_t sequence)
{
    if (sequence < stream->awaited)
        stream->awaited = sequence;
    pthread_cond_wait(&stream->progress, &stream->owner->lock);
}

bool tide_host_stream_has_capacity(tide_host_streams *streams, tide_stream stream, uint64_t commands,
                                   bool wait)
{
    tide_host_stream *it = &streams->streams[stream];
    const uint64_t most = TIDE_HOST_RING_COMMANDS - commands;
    while (it->enqueued - it->completed > most && wait)
        progress_wait(it, it->enqueued - most);
    return it->enqueued - it->completed <= most;
}

tide_host_command *tide_host_stream_next(tide_host_streams *streams, tide_stream stream)
{
    tide_host_stream *it = &streams->streams[stream];
    assert(it->enqueued - it->completed < TIDE_HOST_RING_COMMANDS);
    return command_at(it, it->enqueued + 1);
}

const tide_command_name *tide_host_stream_running(const tide_host_streams *streams, tide_stream stream)
{
    const tide_host_stream *it = &streams->streams[stream];
    if (it->completed == it->enqueued)
        return NULL;
    return &it->ring[(it->completed + 1) % TIDE_HOST_RING_COMMANDS].name;
}

void tide_host_stream_push(tide_host_streams *streams, tide_stream stream)
{
    tide_host_stream *it = &streams->streams[stream];
    tide_host_command *command = tide_host_stream_next(streams, stream);
    command->recorded = false;
    if (command->run != NULL)
        it->commands++;
    it->enqueued++;
    pthread_cond_signal(&it->work);
}

/* --- moments --- */

bool tide_host_streams_passed(const tide_host_streams *streams, tide_stream_point moment)
{
    return streams->streams[moment.stream].completed >= moment.sequence;
}

void tide_host_streams_wait(tide_host_streams *streams, tide_stream_point moment)
{
    while (!tide_host_streams_passed(streams, moment))
        progress_wait(&streams->streams[moment.stream], moment.sequence);
}

/* Count a completed event for the doorbell. Wakes only threads that are parked for events, not those that
 * wait for a ring. */
static void event_completed(tide_host_streams *streams)
{
    streams->doorbell++;
    if (streams->watching > 0)
        pthread_cond_broadcast(&streams->rung);
}

tide_stream_point tide_host_stream_record(tide_host_streams *streams, tide_stream stream)
{
    tide_host_stream *it = &streams->streams[stream];
    tide_stream_point moment = {stream, it->enqueued};
    if (tide_host_streams_passed(streams, moment))
        event_completed(streams);
    else
        command_at(it, it->enqueued)->recorded = true;
    return moment;
}

bool tide_host_streams_idle(const tide_host_streams *streams)
{
    for (int i = 0; i < TIDE_STREAM_COUNT; i++)
        if (streams->streams[i].completed != streams->streams[i].enqueued)
            return false;
    return true;
}

void tide_host_streams_drain(tide_host_streams *streams)
{
    tide_stream_point last[TIDE_STREAM_COUNT];
    for (int i = 0; i < TIDE_STREAM_COUNT; i++)
        last[i] = (tide_stream_point){(tide_stream)i, streams->streams[i].enqueued};
    for (int i = 0; i < TIDE_STREAM_COUNT; i++)
        tide_host_streams_wait(streams, last[i]);
}

void tide_host_streams_ring(tide_host_streams *streams)
{
    streams->ringing = ++streams->doorbell;
    pthread_cond_broadcast(&streams->rung);
}

void tide_host_streams_park(tide_host_streams *streams, uint64_t ticket, bool events)
{
    streams->watching += events;
    while ((events ? streams->doorbell : streams->ringing) <= ticket)
        pthread_cond_wait(&streams->rung, &streams->lock);
    streams->watching -= events;
}

/* --- failure --- */

void tide_host_streams_fail(tide_host_streams *streams, tide_status status, const char *message)
{
    assert(status != TIDE_OK);
    if (streams->failure != TIDE_OK)
        return;
    streams->failure = status;
    (void)snprintf(streams->failure_message, sizeof streams->failure_message, "%s", message);
    tide_host_streams_ring(streams);
}

tide_status tide_host_streams_failure(const tide_host_streams *streams)
{
    if (streams->failure == TIDE_OK)
        return TIDE_OK;
    return tide_fail(streams->failure, "%s", streams->failure_message);
}

/* --- the stream's thread --- */

/* The splitmix64 generator: one addition and three mixes; any seed is good. */
static uint64_t random_next(uint64_t *state)
{
    uint64_t z = (*state += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

static void delay(tide_host_stream *stream)
{
    uint64_t max_us = stream->owner->delay_max_us;
    if (max_us > 0)
        tide_host_sleep_until(tide_clock_ns() + random_next(&stream->random) % (max_us * 1000 + 1));
}

static void observe(const tide_host_stream *stream, const tide_host_command *command, uint64_t begin_ns,
                    uint64_t end_ns)
{
    const tide_host_streams *owner = stream->owner;
    const tide_observed observed = {stream->role,
                                    command->run == NULL,
                                    command->name.label,
                                    command->name.tag,
                                    command->name.timer,
                                    command->name.id,
                                    begin_ns,
                                    end_ns,
                                    command->name.flops,
                                    command->name.bytes};
    if (owner->observer != NULL)
        owner->observer(owner->observer_context, &observed);
}

/* Run a command, but skip a kernel if its stream has failed before. Copies always run, and other streams go
 * on, so that data under way arrives complete and the caller can undo the failed step. The lock is held at
 * call and return. */
static void kernel_do(tide_host_stream *stream, tide_host_command *command)
{
    tide_host_streams *owner = stream->owner;
    if (stream->failed && command->kernel)
        return;
    pthread_mutex_unlock(&owner->lock);
    uint64_t begin_ns = tide_clock_ns();
    tide_status status =
        tide_command_call(&command->name, stream->role, NULL, command->run, command->arguments);
    uint64_t end_ns = tide_clock_ns();
    observe(stream, command, begin_ns, end_ns);
    if (command->kernel)
        stream->ready_ns = end_ns;
    pthread_mutex_lock(&owner->lock);
    stream->busy_ns += end_ns - begin_ns;
    if (status != TIDE_OK) {
        stream->failed = true;
        tide_host_streams_fail(owner, status, tide_message());
    }
}

/* Block the stream's thread until the awaited moment has passed. The lock is held at call and return. */
static void wait_do(tide_host_stream *stream, tide_host_command *command)
{
    tide_host_streams *owner = stream->owner;
    bool held = !tide_host_streams_passed(owner, command->awaited);
    uint64_t begin_ns = tide_clock_ns();
    tide_host_streams_wait(owner, command->awaited);
    uint64_t end_ns = tide_clock_ns();
    if (held)
        stream->ready_ns = end_ns;
    stream->wait_ns += end_ns - begin_ns;
    if (owner->observer == NULL)
        return;
    pthread_mutex_unlock(&owner->lock);
    observe(stream, command, begin_ns, end_ns);
    pthread_mutex_lock(&owner->lock);
}

static void complete(tide_host_stream *stream, const tide_host_command *command)
{
    bool recorded = command->recorded; /* push may overwrite the command once it is completed */
    stream->completed++;
    if (stream->completed >= stream->awaited) {
        stream->awaited = UINT64_MAX; /* a thread that has to wait longer sets it again */
        pthread_cond_broadcast(&stream->progress);
    }
    if (recorded)
        event_completed(stream->owner);
}

static void command_do(tide_host_stream *stream)
{
    tide_host_streams *owner = stream->owner;
    tide_host_command *command = command_at(stream, stream->completed + 1);
    if (owner->delay_max_us > 0) {
        pthread_mutex_unlock(&owner->lock);
        delay(stream);
        pthread_mutex_lock(&owner->lock);
    }
    if (command->run != NULL)
        kernel_do(stream, command);
    else
        wait_do(stream, command);
    complete(stream, command);
}

/* Should the stream's thread, with the threads that its functions make, be bound to the NUMA node of the host
 * slots? Copies and the host executor work on host slots, so these streams should. The compute, update and
 * collective streams emulate a device and may use the whole machine. */
static bool works_on_host_memory(tide_stream role)
{
    return role == TIDE_STREAM_IN || role == TIDE_STREAM_OUT || role == TIDE_STREAM_HOST;
}

static void stream_main(void *argument)
{
    tide_host_stream *stream = argument;
    tide_host_streams *owner = stream->owner;
    pthread_mutex_lock(&owner->lock);
    for (;;) {
        while (stream->completed == stream->enqueued && !owner->closing)
            pthread_cond_wait(&stream->work, &owner->lock);
        if (stream->completed == stream->enqueued)
            break;
        command_do(stream);
    }
    pthread_mutex_unlock(&owner->lock);
}

/* --- start and stop --- */

static tide_status stream_start(tide_host_streams *streams, tide_stream role, uint64_t seed)
{
    tide_host_stream *stream = &streams->streams[role];
    stream->owner = streams;
    stream->role = role;
    stream->awaited = UINT64_MAX;
    stream->random = seed ^ ((uint64_t)role << 32);
    (void)pthread_cond_init(&stream->work, NULL);
    (void)pthread_cond_init(&stream->progress, NULL);
    const tide_stream_thread_options thread = {.role = role,
                                               .bound = works_on_host_memory(role),
                                               .node = TIDE_NODE_NEAREST,
                                               .threads = streams->threads,
                                               .run = stream_main,
                                               .context = stream};
    const tide_status status = tide_stream_thread_start(&thread, &stream->thread, NULL);
    if (status == TIDE_OK)
        return TIDE_OK;
    pthread_cond_destroy(&stream->progress);
    pthread_cond_destroy(&stream->work);
    return status;
}

static void streams_join(tide_host_streams *streams, int count)
{
    pthread_mutex_lock(&streams->lock);
    streams->closing = true;
    for (int i = 0; i < count; i++)
        pthread_cond_signal(&streams->streams[i].work);
    pthread_mutex_unlock(&streams->lock);
    for (int i = 0; i < count; i++)
        (void)pthread_join(streams->streams[i].thread, NULL);
    for (int i = 0; i < count; i++) {
        pthread_cond_destroy(&streams->streams[i].progress);
        pthread_cond_destroy(&streams->streams[i].work);
    }
}

tide_status tide_host_streams_start(tide_host_streams *streams, const tide_device_options *options,
                                    uint32_t threads)
{
    assert(threads > 0);
    memset(streams, 0, sizeof *streams);
    streams->threads = threads;
    streams->delay_max_us = options->checks.delay_max_us;
    streams->observer = options->observer;
    streams->observer_context = options->observer_context;
    (void)pthread_mutex_init(&streams->lock, NULL);
    (void)pthread_cond_init(&streams->rung, NULL);

    tide_status status = TIDE_OK;
    int started = 0;
    while (started < TIDE_STREAM_COUNT && status == TIDE_OK) {
        status = stream_start(streams, (tide_stream)started, options->checks.delay_seed);
        started += status == TIDE_OK;
    }
    if (status == TIDE_OK)
        return TIDE_OK;
    streams_join(streams, started);
    pthread_cond_destroy(&streams->rung);
    pthread_mutex_destroy(&streams->lock);
    return status;
}

void tide_host_streams_stop(tide_host_streams *streams)
{
    streams_join(streams, TIDE_STREAM_COUNT);
    assert(tide_host_streams_idle(streams));
    pthread_cond_destroy(&streams->rung);
    pthread_mutex_destroy(&streams->lock);
}
