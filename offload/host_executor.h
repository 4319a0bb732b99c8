/* The host executor of a device whose other streams run on a GPU: one thread that runs functions in order.
 *
 *   push ->  [ . | c+1 | c+2 | ... | e ]  -> the thread
 *                  ^completed+1       ^enqueued
 *
 * It works like a stream of the host device (host_stream.h). A moment on it is a command's number, means the
 * point right after that command, and has passed when `completed` has reached it. The ring holds copies of
 * the arguments, so nothing is allocated after start; a full ring makes the caller wait. After a function has
 * failed, the thread skips the following ones but counts them as completed. The thread, and an OpenMP team
 * that its functions make, are bound to the processors of one NUMA node: the one with the host slots.
 */
#ifndef TIDE_OFFLOAD_HOST_EXECUTOR_H
#define TIDE_OFFLOAD_HOST_EXECUTOR_H

#include "offload/device_common.h"

#include <pthread.h>
#include <stdalign.h>

enum { TIDE_HOST_EXECUTOR_COMMANDS = 256 };

typedef struct tide_host_executor_options {
    uint32_t threads;         /* threads of a parallel region inside a function; > 0 */
    void (*threads_set)(int); /* the process's omp_set_num_threads; NULL: look it up */
    int32_t node;             /* the NUMA node to run on (topology.h) */
    tide_device_observer observer;
    void *observer_context;
    /* Called on the executor's thread, without a lock: `passed` when a recorded moment has passed; `failed`
     * when a function has failed, with its message in tide_message(). */
    void (*passed)(void *context);
    void (*failed)(void *context, tide_status status);
    void *context;
} tide_host_executor_options;

typedef struct tide_host_executor_command {
    alignas(16) unsigned char arguments[TIDE_LAUNCH_ARGUMENTS_MAX_BYTES];
    tide_kernel run;
    tide_command_name name;
    bool recorded;
} tide_host_executor_command;

typedef struct tide_host_executor {
    tide_host_executor_options options;
    pthread_t thread;
    /* Guards the fields below, except that the executor's thread reads commands in the ring without it. */
    pthread_mutex_t lock;
    pthread_cond_t work;
    pthread_cond_t progress;
    tide_host_executor_command ring[TIDE_HOST_EXECUTOR_COMMANDS];
    uint64_t enqueued;
    uint64_t completed;
    uint64_t busy_ns;
    uint32_t threads; /* threads of the team that a function makes */
    bool failed;
    bool closing;
} tide_host_executor;

/* Start the thread. NO_MEMORY: no thread can be made, and nothing is left to stop. */
tide_status tide_host_executor_start(tide_host_executor *executor, const tide_host_executor_options *options);
/* Wait until all enqueued functions have run, then end the thread. */
void tide_host_executor_stop(tide_host_executor *executor);
bool tide_host_executor_is_valid(const tide_host_executor *executor);

/* Enqueue run(NULL, copy of the arguments), at most TIDE_LAUNCH_ARGUMENTS_MAX_BYTES of them. Waits while the
 * ring is full. */
void tide_host_executor_push(tide_host_executor *executor, const tide_work *work, tide_kernel run,
                             const void *arguments, size_t argument_bytes);
/* Has the ring space for this many more commands? If not, sets `oldest` to the moment that has to pass
 * first. */
bool tide_host_executor_has_capacity(tide_host_executor *executor, uint64_t commands, uint64_t *oldest);
/* The moment after the last command pushed. When it passes, the executor calls `passed`, unless it has passed
 * already. */
uint64_t tide_host_executor_record(tide_host_executor *executor);
bool tide_host_executor_passed(tide_host_executor *executor, uint64_t sequence);
/* Block until the moment has passed. */
void tide_host_executor_wait(tide_host_executor *executor, uint64_t sequence);
/* Block until all commands pushed so far have completed. */
void tide_host_executor_drain(tide_host_executor *executor);
bool tide_host_executor_idle(tide_host_executor *executor);
/* Clear a failure, so that functions run again. */
void tide_host_executor_forgive(tide_host_executor *executor);
/* How many threads a function's OpenMP team has: the number asked for, but at most the number of the node's
 * processors. */
uint32_t tide_host_executor_threads(const tide_host_executor *executor);
void tide_host_executor_statistics(tide_host_executor *executor, uint64_t *busy_ns, uint64_t *commands,
                                   uint64_t *pending);

#endif
