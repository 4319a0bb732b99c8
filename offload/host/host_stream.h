/* The host device's streams: one thread each, with a ring of commands.
 *
 *   enqueue ->  [ . | c+1 | c+2 | ... | e ]  -> the stream's thread runs them in order
 *                   ^completed+1       ^enqueued
 *
 * A command's sequence is its number on its stream, from 1; the command is done when the stream's `completed`
 * has reached that. A moment is a pair of stream and sequence, and means the point right after that command:
 * it has passed when `completed` has reached the sequence. An event records a moment. A wait is a command,
 * too: it blocks the stream's thread until a moment of another stream has passed. Rings are fixed arrays that
 * hold copies of the arguments, so nothing is allocated after start, and a full ring makes the enqueuing
 * thread wait.
 *
 * One lock guards all streams, because the hazard checker needs one program order over them; kernels and
 * copies run without it. Lock order: the device's memory lock, then this one.
 *
 * After a command has failed, its stream completes the kernels that follow without running them, and the
 * device enqueues nothing new. Enqueued copies and the other streams still run, so that waiting threads
 * return and copies are complete.
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
    /* the command is a launch: it is skipped if its stream has failed */
    bool kernel;
    bool recorded; /* an event was recorded after this command: its completion rings the doorbell */
} tide_host_command;

typedef struct tide_host_streams tide_host_streams;

typedef struct tide_host_stream {
    tide_host_streams *owner;
    tide_stream role;
    pthread_t thread;
    uint64_t random; /* state of the random delays; only the stream's thread uses it */
    /* when the stream's last kernel or wait ended; only the stream's thread uses it */
    uint64_t ready_ns;

    /* The streams' lock guards the fields below, except that the stream's thread reads commands in the ring
     * without it. */
    tide_host_command ring[TIDE_HOST_RING_COMMANDS];
    bool failed; /* a command of the stream has failed */
    uint64_t enqueued;
    uint64_t completed;
    pthread_cond_t work;     /* signals a new command, or closing */
    uint64_t awaited;        /* the lowest sequence for which a thread sleeps; UINT64_MAX: none */
    pthread_cond_t progress; /* signals that `completed` has reached `awaited` */
    uint64_t busy_ns;
    uint64_t wait_ns;
    uint64_t commands;
} tide_host_stream;

struct tide_host_streams {
    uint32_t threads; /* of an OpenMP parallel region in a kernel */
    uint64_t delay_max_us;
    tide_device_observer observer;
    void *observer_context;

    pthread_mutex_t lock;
    pthread_cond_t rung;
    uint64_t doorbell; /* grows when an event completes and at every ring */
    uint64_t ringing;  /* the value of `doorbell` at the last ring */
    uint32_t watching; /* how many parked threads a completed event wakes */
    bool closing;
    tide_status failure;
    char failure_message[TIDE_HOST_MESSAGE_BYTES];
    tide_host_stream streams[TIDE_STREAM_COUNT];
};

/* Start the threads of the streams. `threads` > 0. NO_MEMORY: one could not be made, and none is left. */
tide_status tide_host_streams_start(tide_host_streams *streams, const tide_device_options *options,
                                    uint32_t threads);
/* Wait until all enqueued commands have run, then end the threads. */
void tide_host_streams_stop(tide_host_streams *streams);
/* Check, cheaply, that every ring is within its bounds. The lock is held. */
bool tide_host_streams_is_valid(const tide_host_streams *streams);

/* The command that the stream is running (or the wait in which it is); NULL: none. Takes no lock, since the
 * fault handler calls it and the process is ending. */
const tide_command_name *tide_host_stream_running(const tide_host_streams *streams, tide_stream stream);

void tide_host_streams_lock(tide_host_streams *streams);
void tide_host_streams_unlock(tide_host_streams *streams);

/* --- the lock is held for all functions below --- */

/* Has the stream's ring space for `commands` more commands? With `wait`, sleep (without the lock) until it
 * has. */
bool tide_host_stream_has_capacity(tide_host_streams *streams, tide_stream stream, uint64_t commands,
                                   bool wait);
/* The place of the next command. The caller fills it in, then push hands it to the stream. The ring must have
 * space. */
tide_host_command *tide_host_stream_next(tide_host_streams *streams, tide_stream stream);
void tide_host_stream_push(tide_host_streams *streams, tide_stream stream);

/* The moment after the last command enqueued so far. When it passes, the doorbell rings. */
tide_stream_point tide_host_stream_record(tide_host_streams *streams, tide_stream stream);
bool tide_host_streams_passed(const tide_host_streams *streams, tide_stream_point moment);
/* Wait (without the lock) until the moment has passed. */
void tide_host_streams_wait(tide_host_streams *streams, tide_stream_point moment);
bool tide_host_streams_idle(const tide_host_streams *streams);
/* Wait (without the lock) until all commands enqueued so far are done. */
void tide_host_streams_drain(tide_host_streams *streams);

void tide_host_streams_ring(tide_host_streams *streams);
/* Wait (without the lock) until, since the doorbell had the value `ticket`, a ring came or, with `events`, an
 * event completed. */
void tide_host_streams_park(tide_host_streams *streams, uint64_t ticket, bool events);

/* Make the device fail. The first failure stays until it is cleared. */
void tide_host_streams_fail(tide_host_streams *streams, tide_status status, const char *message);
/* The failure, with its message set on the calling thread; TIDE_OK: there is none. */
tide_status tide_host_streams_failure(const tide_host_streams *streams);

#endif
