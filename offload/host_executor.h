/* The host executor of a device that has streams of its own: one thread that runs functions in order.
 *
 *   push ->  [ . | c+1 | c+2 | ... | e ]  -> the thread
 *                  ^completed+1       ^enqueued
 *
 * As a stream of the host device (host_stream.h): a moment is a sequence, and has passed when `completed` has reached
 * it; the ring holds copies of the arguments, nothing is allocated after start, a full ring makes the caller wait;
 * after a function has failed the following ones are not run, but completed. The thread, and an OpenMP team its
 * functions make, stay on the processors of one NUMA node: that of the host slots they work on.
 */
#ifndef TIDE_OFFLOAD_HOST_EXECUTOR_H
#define TIDE_OFFLOAD_HOST_EXECUTOR_H

#include "offload/device_common.h"

#include <pthread.h>
#include <stdalign.h>

enum { TIDE_HOST_EXECUTOR_COMMANDS = 256 };

typedef struct tide_host_executor_options {
    uint32_t threads;         /* for parallel regions inside functions; > 0 */
    void (*threads_set)(int); /* omp_set_num_threads; NULL: the one found here, if any */
    int32_t node;             /* topology.h */
    tide_device_observer observer;
    void *observer_context;
    /* On the executor's thread, which holds no lock then: a recorded moment has passed; a function has failed, and
     * tide_message() says how. */
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
    /* guards the rest; a command between completed and enqueued is the thread's to read */
    pthread_mutex_t lock;
    pthread_cond_t work;
    pthread_cond_t progress;
    tide_host_executor_command ring[TIDE_HOST_EXECUTOR_COMMANDS];
    uint64_t enqueued;
    uint64_t completed;
    uint64_t busy_ns;
    uint32_t threads; /* of a team that a function makes */
    bool failed;
    bool closing;
} tide_host_executor;

/* NO_MEMORY: there is no thread to be had, and nothing is left. */
tide_status tide_host_executor_start(tide_host_executor *executor, const tide_host_executor_options *options);
/* Run what is enqueued, then end the thread. */
void tide_host_executor_stop(tide_host_executor *executor);
bool tide_host_executor_is_valid(const tide_host_executor *executor);

/* Enqueue run(NULL, copy of the arguments), at most TIDE_LAUNCH_ARGUMENTS_MAX_BYTES. Waits for room. */
void tide_host_executor_push(tide_host_executor *executor, const tide_work *work, tide_kernel run,
                             const void *arguments, size_t argument_bytes);
/* Is there room for `commands` more? `oldest`, if not: the moment that has to pass first. */
bool tide_host_executor_has_capacity(tide_host_executor *executor, uint64_t commands, uint64_t *oldest);
/* The moment behind the last one pushed; `passed` is called when it has passed, unless it has already. */
uint64_t tide_host_executor_record(tide_host_executor *executor);
bool tide_host_executor_passed(tide_host_executor *executor, uint64_t sequence);
/* Block until it has. */
void tide_host_executor_wait(tide_host_executor *executor, uint64_t sequence);
/* Block until all that was pushed has passed. */
void tide_host_executor_drain(tide_host_executor *executor);
bool tide_host_executor_idle(tide_host_executor *executor);
/* Run functions again after one has failed. */
void tide_host_executor_forgive(tide_host_executor *executor);
/* Of a team that a function makes: those asked for, or as many as the node has processors if there are fewer. */
uint32_t tide_host_executor_threads(const tide_host_executor *executor);
void tide_host_executor_statistics(tide_host_executor *executor, uint64_t *busy_ns, uint64_t *commands,
                                   uint64_t *pending);

#endif
