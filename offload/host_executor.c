#include "offload/host_executor.h"

#include "base/clock.h"
#include "offload/host_link.h"
#include "offload/stream_thread.h"

#include <assert.h>
#include <string.h>

bool tide_host_executor_is_valid(const tide_host_executor *executor)
{
    return executor->completed <= executor->enqueued &&
           executor->enqueued - executor->completed <= TIDE_HOST_EXECUTOR_COMMANDS;
}

static void lock(tide_host_executor *executor)
{
    pthread_mutex_lock(&executor->lock);
}

static void unlock(tide_host_executor *executor)
{
    assert(tide_host_executor_is_valid(executor));
    pthread_mutex_unlock(&executor->lock);
}

static tide_host_executor_command *command_at(tide_host_executor *executor, uint64_t sequence)
{
    return &executor->ring[sequence % TIDE_HOST_EXECUTOR_COMMANDS];
}

/* --- the caller's side --- */

void tide_host_executor_push(tide_host_executor *executor, const tide_work *work, tide_kernel run,
                             const void *arguments, size_t argument_bytes)
{
    assert(argument_bytes <= TIDE_LAUNCH_ARGUMENTS_MAX_BYTES);
    lock(executor);
    while (executor->enqueued - executor->completed == TIDE_HOST_EXECUTOR_COMMANDS)
        pthread_cond_wait(&executor->progress, &executor->lock);
    tide_host_executor_command *command = command_at(executor, executor->enqueued + 1);
    command->run = run;
    command->name = tide_command_name_of(work);
    command->recorded = false;
    if (argument_bytes > 0)
        memcpy(command->arguments, arguments, argument_bytes);
    executor->enqueued++;
    pthread_cond_signal(&executor->work);
    unlock(executor);
}

bool tide_host_executor_has_capacity(tide_host_executor *executor, uint64_t commands, uint64_t *oldest)
{
    const uint64_t most = TIDE_HOST_EXECUTOR_COMMANDS - commands;
    lock(executor);
    const bool has_capacity = executor->enqueued - executor->completed <= most;
    if (!has_capacity)
        *oldest = executor->enqueued - most;
    unlock(executor);
    return has_capacity;
}

uint64_t tide_host_executor_record(tide_host_executor *executor)
{
    lock(executor);
    const uint64_t sequence = executor->enqueued;
    if (executor->completed < sequence)
        command_at(executor, sequence)->recorded = true;
    unlock(executor);
    return sequence;
}

bool tide_host_executor_passed(tide_host_executor *executor, uint64_t sequence)
{
    lock(executor);
    const bool passed = executor->completed >= sequence;
    unlock(executor);
    return passed;
}

void tide_host_executor_wait(tide_host_executor *executor, uint64_t sequence)
{
    lock(executor);
    while (executor->completed < sequence)
        pthread_cond_wait(&executor->progress, &executor->lock);
    unlock(executor);
}

void tide_host_executor_drain(tide_host_executor *executor)
{
    lock(executor);
    const uint64_t last = executor->enqueued;
    unlock(executor);
    tide_host_executor_wait(executor, last);
}

bool tide_host_executor_idle(tide_host_executor *executor)
{
    lock(executor);
    const bool idle = executor->completed == executor->enqueued;
    unlock(executor);
    return idle;
}

void tide_host_executor_forgive(tide_host_executor *executor)
{
    lock(executor);
    executor->failed = false;
    unlock(executor);
}

/* The number does not change after tide_host_executor_start has returned, so no lock is needed. */
uint32_t tide_host_executor_threads(const tide_host_executor *executor)
{
    return executor->threads;
}

void tide_host_executor_statistics(tide_host_executor *executor, uint64_t *busy_ns, uint64_t *commands,
                                   uint64_t *pending)
{
    lock(executor);
    *busy_ns = executor->busy_ns;
    *commands = executor->enqueued;
    *pending = executor->enqueued - executor->completed;
    unlock(executor);
}

/* --- the thread --- */

/* Run a command without the lock held. Returns how long the command ran, in ns. */
static uint64_t command_do(tide_host_executor *executor, const tide_host_executor_command *command,
                           tide_status *status)
{
    const tide_host_executor_options *options = &executor->options;
    const uint64_t begin_ns = tide_clock_ns();
    *status = tide_command_call(&command->name, TIDE_STREAM_HOST, NULL, command->run, command->arguments);
    const uint64_t end_ns = tide_clock_ns();
    const tide_command_name *name = &command->name;
    const tide_observed observed = {TIDE_STREAM_HOST, false,    name->label, name->tag,   name->timer,
                                    name->id,         begin_ns, end_ns,      name->flops, name->bytes};
    if (options->observer != NULL)
        options->observer(options->observer_context, &observed);
    if (*status != TIDE_OK)
        options->failed(options->context, *status);
    return end_ns - begin_ns;
}

/* Run the next command, or skip it after a failure. The lock is held at call and return. */
static void command_next(tide_host_executor *executor)
{
    const tide_host_executor_command *command = command_at(executor, executor->completed + 1);
    if (!executor->failed) {
        tide_status status;
        unlock(executor);
        const uint64_t ran_ns = command_do(executor, command, &status);
        lock(executor);
        executor->busy_ns += ran_ns;
        executor->failed = status != TIDE_OK;
    }
    const bool recorded = command->recorded; /* push may overwrite the command once it is completed */
    executor->completed++;
    pthread_cond_broadcast(&executor->progress);
    if (!recorded)
        return;
    unlock(executor);
    executor->options.passed(executor->options.context);
    lock(executor);
}

static void executor_main(void *argument)
{
    tide_host_executor *executor = argument;
    lock(executor);
    for (;;) {
        while (executor->completed == executor->enqueued && !executor->closing)
            pthread_cond_wait(&executor->work, &executor->lock);
        if (executor->completed == executor->enqueued)
            break;
        command_next(executor);
    }
    unlock(executor);
}

/* --- start and stop --- */

static void executor_destroy(tide_host_executor *executor)
{
    pthread_cond_destroy(&executor->progress);
    pthread_cond_destroy(&executor->work);
    pthread_mutex_destroy(&executor->lock);
}

tide_status tide_host_executor_start(tide_host_executor *executor, const tide_host_executor_options *options)
{
    memset(executor, 0, sizeof *executor);
    executor->options = *options;
    (void)pthread_mutex_init(&executor->lock, NULL);
    (void)pthread_cond_init(&executor->work, NULL);
    (void)pthread_cond_init(&executor->progress, NULL);
    const tide_stream_thread_options thread = {.role = TIDE_STREAM_HOST,
                                               .bound = true,
                                               .node = options->node,
                                               .threads = options->threads,
                                               .threads_set = options->threads_set,
                                               .run = executor_main,
                                               .context = executor};
    const tide_status status = tide_stream_thread_start(&thread, &executor->thread, &executor->threads);
    if (status != TIDE_OK)
        executor_destroy(executor);
    return status;
}

void tide_host_executor_stop(tide_host_executor *executor)
{
    lock(executor);
    executor->closing = true;
    pthread_cond_signal(&executor->work);
    unlock(executor);
    (void)pthread_join(executor->thread, NULL);
    assert(executor->completed == executor->enqueued);
    executor_destroy(executor);
}
