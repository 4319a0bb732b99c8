/* The host device's streams: one thread each, fed by a ring of commands.
 *
 *   enqueue ->  [ . | c+1 | c+2 | ... | e ]  -> the stream's thread runs them in order
 *                   ^completed+1       ^enqueued
 *
 * A command's sequence is its number on its stream, from 1; a command is done when the stream's `completed`
 * has reached it. So a moment on a stream, which an event records, is a pair, stream and sequence; one
 * comparison tells whether it has passed. Waits are commands as well: they hold the stream's thread until
 * another stream's moment has passed. Rings are fixed arrays that hold copies of the arguments: nothing is
 * allocated after start, and a full ring makes the enqueuing thread wait.
 *
 * One lock guards all streams, because the hazard checker wants one program order over them; kernels and
 * copies run outside it. Lock order: the device's memory lock, then this one.
 *
 * After a failure the kernels left on that stream are completed without being run, and nothing new is enqueued; copies
 * and the other streams go on, so whoever waits returns and what is on its way arrives whole.
 */
#ifndef TIDE_OFFLOAD_HOST_STREAM_H
#define TIDE_OFFLOAD_HOST_STREAM_H

#include "offload/device_common.h"

#include <pthread.h>
#include <stdalign.h>

enum { TIDE_HOST_RING_COMMANDS = 256, TIDE_HOST_MESSAGE_BYTES = 1024 };

typedef struct tide_host_command {
    alignas(16) unsigned char arguments[TIDE_LAUNCH_ARGUMENTS_MAX_BYTES];
    tide_kernel run; /* NULL: a wait for `awaited` */
    tide_stream_point awaited;
    tide_command_name name;
    bool kernel;   /* a launch: skipped after an earlier one of its stream failed */
    bool recorded; /* an event stands behind this command: its completion rings the doorbell */
} tide_host_command;

typedef struct tide_host_streams tide_host_streams;

typedef struct tide_host_stream {
    tide_host_streams *owner;
    tide_stream role;
    pthread_t thread;
    uint64_t random;   /* of the stream's delays; its thread's own */
    uint64_t ready_ns; /* when a kernel or a wait last held the stream; its thread's own */

    /* guarded by the owner's lock; a command between completed and enqueued is its thread's to read */
    tide_host_command ring[TIDE_HOST_RING_COMMANDS];
    bool failed; /* a command of it failed: its kernels would compute from missing content */
    uint64_t enqueued;
    uint64_t completed;
    pthread_cond_t work;     /* a command came, or closing */
    uint64_t awaited;        /* the least sequence that somebody sleeps for; UINT64_MAX: none */
    pthread_cond_t progress; /* completed reached it */
    uint64_t busy_ns;
    uint64_t wait_ns;
    uint64_t commands;
} tide_host_stream;

struct tide_host_streams {
    uint32_t threads; /* for parallel regions inside kernels */
    uint64_t delay_max_us;
    tide_device_observer observer;
    void *observer_context;

    pthread_mutex_t lock;
    pthread_cond_t rung;
    uint64_t doorbell; /* grows when an event completes and at every ring */
    uint64_t ringing;  /* `doorbell` as of the last ring */
    uint32_t watching; /* threads parked that events wake, too */
    bool closing;
    tide_status failure;
    char failure_message[TIDE_HOST_MESSAGE_BYTES];
    tide_host_stream streams[TIDE_STREAM_COUNT];
};

/* Start the threads. `threads` > 0. NO_MEMORY if one can't be made: then none is left. */
tide_status tide_host_streams_start(tide_host_streams *streams, const tide_device_options *options,
                                    uint32_t threads);
/* Run what is enqueued, then end the threads. */
void tide_host_streams_stop(tide_host_streams *streams);
/* Cheap: every ring is within its bounds. The lock is held. */
bool tide_host_streams_is_valid(const tide_host_streams *streams);

/* The command that the stream runs or waits for, NULL if none. For the fault handler: without the lock, as
 * the process is ending. */
const tide_command_name *tide_host_stream_running(const tide_host_streams *streams, tide_stream stream);

void tide_host_streams_lock(tide_host_streams *streams);
void tide_host_streams_unlock(tide_host_streams *streams);

/* --- all below: the lock is held --- */

/* Has the stream's ring room for so many commands? With `wait` waits (giving up the lock) until it has. */
bool tide_host_stream_has_capacity(tide_host_streams *streams, tide_stream stream, uint64_t commands,
                                   bool wait);
/* The next command, to be filled by the caller; then push makes it the stream's. There must be room. */
tide_host_command *tide_host_stream_next(tide_host_streams *streams, tide_stream stream);
void tide_host_stream_push(tide_host_streams *streams, tide_stream stream);

/* The moment behind the last command enqueued so far; its passing will ring the doorbell. */
tide_stream_point tide_host_stream_record(tide_host_streams *streams, tide_stream stream);
bool tide_host_streams_passed(const tide_host_streams *streams, tide_stream_point moment);
/* Wait (giving up the lock) until the moment has passed. */
void tide_host_streams_wait(tide_host_streams *streams, tide_stream_point moment);
bool tide_host_streams_idle(const tide_host_streams *streams);
/* Wait (giving up the lock) until all that is enqueued now has passed. */
void tide_host_streams_drain(tide_host_streams *streams);

void tide_host_streams_ring(tide_host_streams *streams);
/* Wait (giving up the lock) until rung, or with `events` until an event completes, since `ticket` was the doorbell. */
void tide_host_streams_park(tide_host_streams *streams, uint64_t ticket, bool events);

/* The first failure stays until it is cleared. */
void tide_host_streams_fail(tide_host_streams *streams, tide_status status, const char *message);
/* The failure, with its message set on the calling thread; TIDE_OK if none. */
tide_status tide_host_streams_failure(const tide_host_streams *streams);

#endif
