/* The lane's ring and its thread: see the header. */
#include "offload/lane.h"

#include "offload/host_link.h"
#include "offload/stream_thread.h"

#include <assert.h>
#include <string.h>

bool tide_lane_is_valid(const tide_lane *lane)
{
    return lane->completed <= lane->enqueued && lane->enqueued - lane->completed <= TIDE_LANE_COMMANDS;
}

static void lock(tide_lane *lane)
{
    pthread_mutex_lock(&lane->lock);
}

static void unlock(tide_lane *lane)
{
    assert(tide_lane_is_valid(lane));
    pthread_mutex_unlock(&lane->lock);
}

static tide_lane_command *command_at(tide_lane *lane, uint64_t sequence)
{
    return &lane->ring[sequence % TIDE_LANE_COMMANDS];
}

/* --- the caller's side --- */

void tide_lane_push(tide_lane *lane, const tide_work *work, tide_kernel run, const void *arguments,
                    size_t argument_bytes)
{
    assert(argument_bytes <= TIDE_LAUNCH_ARGUMENTS_MAX_BYTES);
    lock(lane);
    while (lane->enqueued - lane->completed == TIDE_LANE_COMMANDS)
        pthread_cond_wait(&lane->progress, &lane->lock);
    tide_lane_command *command = command_at(lane, lane->enqueued + 1);
    command->run = run;
    command->name = tide_command_name_of(work);
    command->recorded = false;
    if (argument_bytes > 0)
        memcpy(command->arguments, arguments, argument_bytes);
    lane->enqueued++;
    pthread_cond_signal(&lane->work);
    unlock(lane);
}

bool tide_lane_has_room(tide_lane *lane, uint64_t commands, uint64_t *oldest)
{
    const uint64_t most = TIDE_LANE_COMMANDS - commands;
    lock(lane);
    const bool has_room = lane->enqueued - lane->completed <= most;
    if (!has_room)
        *oldest = lane->enqueued - most;
    unlock(lane);
    return has_room;
}

uint64_t tide_lane_record(tide_lane *lane)
{
    lock(lane);
    const uint64_t sequence = lane->enqueued;
    if (lane->completed < sequence)
        command_at(lane, sequence)->recorded = true;
    unlock(lane);
    return sequence;
}

bool tide_lane_passed(tide_lane *lane, uint64_t sequence)
{
    lock(lane);
    const bool passed = lane->completed >= sequence;
    unlock(lane);
    return passed;
}

void tide_lane_wait(tide_lane *lane, uint64_t sequence)
{
    lock(lane);
    while (lane->completed < sequence)
        pthread_cond_wait(&lane->progress, &lane->lock);
    unlock(lane);
}

void tide_lane_drain(tide_lane *lane)
{
    lock(lane);
    const uint64_t last = lane->enqueued;
    unlock(lane);
    tide_lane_wait(lane, last);
}

bool tide_lane_idle(tide_lane *lane)
{
    lock(lane);
    const bool idle = lane->completed == lane->enqueued;
    unlock(lane);
    return idle;
}

void tide_lane_forgive(tide_lane *lane)
{
    lock(lane);
    lane->failed = false;
    unlock(lane);
}

/* Does not change once tide_lane_start has returned. */
uint32_t tide_lane_threads(const tide_lane *lane)
{
    return lane->threads;
}

void tide_lane_statistics(tide_lane *lane, uint64_t *busy_ns, uint64_t *commands, uint64_t *pending)
{
    lock(lane);
    *busy_ns = lane->busy_ns;
    *commands = lane->enqueued;
    *pending = lane->enqueued - lane->completed;
    unlock(lane);
}

/* --- the thread --- */

/* Without the lock. Returns how long it ran. */
static uint64_t command_do(tide_lane *lane, const tide_lane_command *command, tide_status *status)
{
    const tide_lane_options *options = &lane->options;
    const uint64_t begin_ns = tide_host_now_ns();
    *status = tide_command_call(&command->name, TIDE_STREAM_HOST, NULL, command->run, command->arguments);
    const uint64_t end_ns = tide_host_now_ns();
    const tide_command_name *name = &command->name;
    const tide_observed observed = {TIDE_STREAM_HOST, false,    name->label, name->tag,   name->meter,
                                    name->id,         begin_ns, end_ns,      name->flops, name->bytes};
    if (options->observer != NULL)
        options->observer(options->observer_context, &observed);
    if (*status != TIDE_OK)
        options->failed(options->context, *status);
    return end_ns - begin_ns;
}

/* Run the next command, or skip it. Called and returns with the lock held. */
static void command_next(tide_lane *lane)
{
    const tide_lane_command *command = command_at(lane, lane->completed + 1);
    if (!lane->failed) {
        tide_status status;
        unlock(lane);
        const uint64_t ran_ns = command_do(lane, command, &status);
        lock(lane);
        lane->busy_ns += ran_ns;
        lane->failed = status != TIDE_OK;
    }
    const bool recorded = command->recorded; /* the ring's place may be used anew from here on */
    lane->completed++;
    pthread_cond_broadcast(&lane->progress);
    if (!recorded)
        return;
    unlock(lane);
    lane->options.passed(lane->options.context);
    lock(lane);
}

static void lane_main(void *argument)
{
    tide_lane *lane = argument;
    lock(lane);
    for (;;) {
        while (lane->completed == lane->enqueued && !lane->closing)
            pthread_cond_wait(&lane->work, &lane->lock);
        if (lane->completed == lane->enqueued)
            break;
        command_next(lane);
    }
    unlock(lane);
}

/* --- start and stop --- */

static void lane_destroy(tide_lane *lane)
{
    pthread_cond_destroy(&lane->progress);
    pthread_cond_destroy(&lane->work);
    pthread_mutex_destroy(&lane->lock);
}

tide_status tide_lane_start(tide_lane *lane, const tide_lane_options *options)
{
    memset(lane, 0, sizeof *lane);
    lane->options = *options;
    (void)pthread_mutex_init(&lane->lock, NULL);
    (void)pthread_cond_init(&lane->work, NULL);
    (void)pthread_cond_init(&lane->progress, NULL);
    const tide_stream_thread_options thread = {.role = TIDE_STREAM_HOST,
                                               .bound = true,
                                               .node = options->node,
                                               .threads = options->threads,
                                               .threads_set = options->threads_set,
                                               .run = lane_main,
                                               .context = lane};
    const tide_status status = tide_stream_thread_start(&thread, &lane->thread, &lane->threads);
    if (status != TIDE_OK)
        lane_destroy(lane);
    return status;
}

void tide_lane_stop(tide_lane *lane)
{
    lock(lane);
    lane->closing = true;
    pthread_cond_signal(&lane->work);
    unlock(lane);
    (void)pthread_join(lane->thread, NULL);
    assert(lane->completed == lane->enqueued);
    lane_destroy(lane);
}
