/* Rings, moments and the streams' threads: see the header. A command stays in the ring while its thread runs it,
 * outside the lock; nobody else touches its place until `completed` has passed it.
 */
#include "offload/host_stream.h"

#include "offload/host_link.h"
#include "offload/topology.h"

#include <assert.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>

/* The process may have an OpenMP runtime (the kernels' folder links it, this one does not). The number of
 * threads is a setting of each thread, so every stream sets its own. */
extern void omp_set_num_threads(int count) __attribute__((weak));

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

/* Sleep until the stream has completed `sequence`, or wakes somebody else. The lock is held. */
static void progress_wait(tide_host_stream *stream, uint64_t sequence)
{
    if (sequence < stream->awaited)
        stream->awaited = sequence;
    pthread_cond_wait(&stream->progress, &stream->owner->lock);
}

bool tide_host_stream_room(tide_host_streams *streams, tide_stream stream, uint64_t commands, bool wait)
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

bool tide_host_streams_passed(const tide_host_streams *streams, tide_moment moment)
{
    return streams->streams[moment.stream].completed >= moment.sequence;
}

void tide_host_streams_wait(tide_host_streams *streams, tide_moment moment)
{
    while (!tide_host_streams_passed(streams, moment))
        progress_wait(&streams->streams[moment.stream], moment.sequence);
}

/* Nobody is woken who sleeps until a ring. */
static void event_completed(tide_host_streams *streams)
{
    streams->doorbell++;
    if (streams->watching > 0)
        pthread_cond_broadcast(&streams->rung);
}

tide_moment tide_host_stream_record(tide_host_streams *streams, tide_stream stream)
{
    tide_host_stream *it = &streams->streams[stream];
    tide_moment moment = {stream, it->enqueued};
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
    tide_moment last[TIDE_STREAM_COUNT];
    for (int i = 0; i < TIDE_STREAM_COUNT; i++)
        last[i] = (tide_moment){(tide_stream)i, streams->streams[i].enqueued};
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

/* The splitmix64 generator: one addition and three mixes, any seed is good. */
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
        tide_host_sleep_until(tide_host_now_ns() + random_next(&stream->random) % (max_us * 1000 + 1));
}

static void observe(const tide_host_stream *stream, const tide_host_command *command, uint64_t begin_ns,
                    uint64_t end_ns)
{
    const tide_host_streams *owner = stream->owner;
    if (owner->observer != NULL)
        owner->observer(owner->observer_context, stream->role, command->name.label, command->name.tag,
                        begin_ns, end_ns);
}

/* Run a command, or skip a kernel after an earlier failure of this stream. Copies are always made and other
 * streams go on, so that what is on its way arrives whole and its owner can undo the failed step. Called and
 * returns with the lock held. */
static void kernel_do(tide_host_stream *stream, tide_host_command *command)
{
    tide_host_streams *owner = stream->owner;
    if (stream->failed && command->kernel)
        return;
    pthread_mutex_unlock(&owner->lock);
    uint64_t begin_ns = tide_host_now_ns();
    tide_status status =
        tide_command_call(&command->name, stream->role, NULL, command->run, command->arguments);
    uint64_t end_ns = tide_host_now_ns();
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

/* Hold the stream until the awaited moment has passed. Called and returns with the lock held. */
static void wait_do(tide_host_stream *stream, tide_host_command *command)
{
    tide_host_streams *owner = stream->owner;
    bool held = !tide_host_streams_passed(owner, command->awaited);
    uint64_t begin_ns = tide_host_now_ns();
    tide_host_streams_wait(owner, command->awaited);
    uint64_t end_ns = tide_host_now_ns();
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
    bool recorded = command->recorded; /* the ring's place may be reused from here on */
    stream->completed++;
    if (stream->completed >= stream->awaited) {
        stream->awaited = UINT64_MAX; /* who is not there yet says so again */
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

/* Copies and the host lane work on host slots, so their threads (and those that their kernels make) belong on
 * the slots' node. The compute, update and collective streams stand for a device of their own and may use the
 * whole machine. */
static bool works_on_host_memory(tide_stream role)
{
    return role == TIDE_STREAM_IN || role == TIDE_STREAM_OUT || role == TIDE_STREAM_HOST;
}

/* Bind a stream's thread where its work lies. Returns how many threads its kernels may use: those asked for, or as many as
 * the node has processors if binding left it fewer. */
static uint32_t thread_place(const tide_host_stream *stream)
{
    uint32_t threads = stream->owner->threads, before = tide_topology_processors();
    if (works_on_host_memory(stream->role))
        (void)tide_topology_bind_thread(TIDE_NODE_NEAREST); /* a wish: elsewhere it is only slower */
    uint32_t left = tide_topology_processors();
    return left < before && left < threads ? left : threads;
}

static void *stream_main(void *argument)
{
    tide_host_stream *stream = argument;
    tide_host_streams *owner = stream->owner;
    uint32_t threads = thread_place(stream);
    if (omp_set_num_threads != NULL)
        omp_set_num_threads((int)threads);
    pthread_mutex_lock(&owner->lock);
    stream->runs = true;
    pthread_cond_broadcast(&stream->progress);
    for (;;) {
        while (stream->completed == stream->enqueued && !owner->closing)
            pthread_cond_wait(&stream->work, &owner->lock);
        if (stream->completed == stream->enqueued)
            break;
        command_do(stream);
    }
    pthread_mutex_unlock(&owner->lock);
    return NULL;
}

/* --- start and stop --- */

/* Signals that people send belong to the program's own threads; faults must reach their handler on any. */
static void signals_block(sigset_t *before)
{
    sigset_t blocked;
    sigfillset(&blocked);
    const int faults[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, SIGTRAP};
    for (size_t i = 0; i < sizeof faults / sizeof faults[0]; i++)
        sigdelset(&blocked, faults[i]);
    (void)pthread_sigmask(SIG_SETMASK, &blocked, before);
}

static int stream_start(tide_host_streams *streams, tide_stream role, uint64_t seed)
{
    tide_host_stream *stream = &streams->streams[role];
    stream->owner = streams;
    stream->role = role;
    stream->awaited = UINT64_MAX;
    stream->random = seed ^ ((uint64_t)role << 32);
    (void)pthread_cond_init(&stream->work, NULL);
    (void)pthread_cond_init(&stream->progress, NULL);
    int error = pthread_create(&stream->thread, NULL, stream_main, stream);
    if (error != 0)
        goto undo_conditions;
    char name[16];
    (void)snprintf(name, sizeof name, "tide-%.10s", tide_stream_name(role));
    (void)pthread_setname_np(stream->thread, name); /* for debuggers only */
    /* A thread's beginning allocates: it belongs to the device's, however busy the machine. */
    pthread_mutex_lock(&streams->lock);
    while (!stream->runs)
        pthread_cond_wait(&stream->progress, &streams->lock);
    pthread_mutex_unlock(&streams->lock);
    return 0;

undo_conditions:
    pthread_cond_destroy(&stream->progress);
    pthread_cond_destroy(&stream->work);
    return error;
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
    streams->delay_max_us = options->delay_max_us;
    streams->observer = options->observer;
    streams->observer_context = options->observer_context;
    (void)pthread_mutex_init(&streams->lock, NULL);
    (void)pthread_cond_init(&streams->rung, NULL);

    sigset_t signals_before;
    signals_block(&signals_before);
    int error = 0, started = 0;
    while (started < TIDE_STREAM_COUNT && error == 0) {
        error = stream_start(streams, (tide_stream)started, options->delay_seed);
        started += error == 0;
    }
    (void)pthread_sigmask(SIG_SETMASK, &signals_before, NULL);
    if (error == 0)
        return TIDE_OK;

    streams_join(streams, started);
    pthread_cond_destroy(&streams->rung);
    pthread_mutex_destroy(&streams->lock);
    return tide_fail(TIDE_ERROR_NO_MEMORY, "no thread for stream %s: %s",
                     tide_stream_name((tide_stream)started), strerror(error));
}

void tide_host_streams_stop(tide_host_streams *streams)
{
    streams_join(streams, TIDE_STREAM_COUNT);
    assert(tide_host_streams_idle(streams));
    pthread_cond_destroy(&streams->rung);
    pthread_mutex_destroy(&streams->lock);
}
