/* When the commands of a GPU stream began and ended, and how far the stream has come, without waiting for the
 * stream.
 *
 * Each command (and each wait) has a place in a ring, with a CUDA event that takes a time stamp:
 *
 *   enter ->  [ . | h | h+1 | ... | m | ... | e ]  -> harvest, in order, while cudaEventQuery succeeds
 *                   ^harvested      ^marked   ^enqueued
 *
 * So a moment on a stream is a sequence, as on the host device. It has passed when it is harvested, and
 * another stream waits for it by waiting for the CUDA event in its place. All CUDA events are made at open.
 * None is of the kind that a thread can sleep on (cudaEventBlockingSync), since such an event costs an
 * interrupt each time it passes, even if no thread waits. A thread that has to wait polls the event and
 * sleeps between. (One more event, only for such waits, would stand behind all enqueued commands, and a
 * thread that needs the oldest would wait until the GPU is idle.)
 *
 * Runs. A timed event delays the next kernel by two microseconds (on an H200; an untimed one by none).
 * Therefore kernels that may coalesce (device.h) and follow each other share the event behind the last of
 * them: they are a run, which is timed and reported as one command. The caller marks the end of a run before
 * it enqueues a command that does not join the run, and where it needs a moment; every 64th command ends a
 * run, so that a full ring has a moment to wait for. Gaps inside a run count as busy. A command that does not
 * coalesce is a run of its own.
 *
 * Times. The GPU's clock is not the host's, and CUDA gives only the time between two events, in milliseconds
 * as a float: exact to half a microsecond within ten seconds, useless over hours. So each end is measured
 * from the end before it,
 *
 *   end = end before + elapsed(event before, this event),     then limited, on the host's clock, so that
 *   enqueued, last seen unfinished <= end <= seen finished
 *
 * which stops the sum from drifting. A command begins when the one before has ended, or when it is enqueued
 * if that is later. If it waits for another stream, that wait is an entry of its own before it. A run costs
 * one event record, and two calls when it is harvested.
 *
 * Locks. The caller of reserve, joins, enter, mark, record and drop holds its lock of that stream. Any thread
 * may call the rest. The functions take the harvest lock themselves; they call the observer under it, and
 * take no other lock of the device under it.
 */
#ifndef TIDE_OFFLOAD_CUDA_CLOCK_H
#define TIDE_OFFLOAD_CUDA_CLOCK_H

#include "offload/device.h"

#include <cuda_runtime_api.h>
#include <pthread.h>
#include <stdatomic.h>

/* CUDA's own queue takes about a thousand entries for each stream before a launch blocks inside the driver,
 * and each of our commands is two of them or more. Our ring is full well before that, so that a caller who
 * has to wait waits here. */
enum { TIDE_CUDA_RING_ENTRIES = 256 };

typedef struct tide_cuda_entry {
    cudaEvent_t done;
    const char *label;
    uint64_t enqueued_ns;
    uint32_t tag, timer;
    uint64_t id;
    double flops, bytes;
    bool is_wait;
    _Atomic bool has_event; /* the entry ends a run */
    _Atomic bool recorded; /* an event was recorded behind this command: when it passes, the doorbell rings */
} tide_cuda_entry;

typedef struct tide_cuda_clock {
    tide_stream role;
    cudaStream_t stream;
    tide_device_observer observer;
    void *observer_context;

    /* The stream's lock is held to write `enqueued`, `marked` and the entries beyond `marked`; the harvest
     * lock to write `harvested`. Entries between `harvested` and `marked` are only read; the time of the next
     * one is measured from the one at `harvested`. */
    tide_cuda_entry ring[TIDE_CUDA_RING_ENTRIES];
    uint32_t event_count; /* events made so far; after open all of them */
    _Atomic uint64_t enqueued;
    _Atomic uint64_t marked; /* the last entry with an event */
    _Atomic uint64_t harvested;

    pthread_mutex_t harvest;
    uint64_t end_ns;        /* [harvest] the end of the entry harvested last */
    uint64_t unfinished_ns; /* [harvest] when the next entry was last seen unfinished */
    _Atomic uint64_t busy_ns, wait_ns, commands;
} tide_cuda_clock;

/* Make the events and take the first time on an idle stream. The GPU is current on this thread. NO_MEMORY,
 * DEVICE: nothing is left to close. */
tide_status tide_cuda_clock_open(tide_cuda_clock *clock, tide_stream role, cudaStream_t stream,
                                 const tide_device_options *options);
/* Destroy the events. The stream is idle. */
void tide_cuda_clock_close(tide_cuda_clock *clock);
/* Check: harvested <= marked <= enqueued. */
bool tide_cuda_clock_is_valid(const tide_cuda_clock *clock);

/* Has the ring space for this many more entries? If not, sets `oldest` to the moment that has to pass first.
 * Any thread. */
bool tide_cuda_clock_has_capacity(const tide_cuda_clock *clock, uint64_t entries, uint64_t *oldest);
/* Make space for one entry; in a full ring that means to wait for the oldest. Adds to `events` as harvest
 * does. DEVICE. */
tide_status tide_cuda_clock_reserve(tide_cuda_clock *clock, uint64_t *events);
/* Does the stream end in commands that have no event behind them yet: a run that is not marked? */
bool tide_cuda_clock_has_run(const tide_cuda_clock *clock);
/* Does the command continue the run at the stream's end? If not, the caller marks that run before it enqueues
 * the command. */
bool tide_cuda_clock_joins(const tide_cuda_clock *clock, const tide_work *work);
/* Enter the command that was just enqueued on the stream. `enqueued_ns` is when its enqueuing began. The ring
 * has space. DEVICE: as tide_cuda_clock_mark. */
tide_status tide_cuda_clock_enter(tide_cuda_clock *clock, const tide_work *work, bool is_wait,
                                  uint64_t enqueued_ns);
/* Record an event behind the run at the stream's end, if there is one. DEVICE: the clock has dropped the
 * run's entries. */
tide_status tide_cuda_clock_mark(tide_cuda_clock *clock);
/* Record the moment at the end of the last marked run, and return it. When it passes, harvest adds one to
 * `events`. */
uint64_t tide_cuda_clock_record(tide_cuda_clock *clock);

/* Take the entries that have passed off the ring. Adds to `events` the number of recorded moments among them.
 * DEVICE: the entries not harvested stay. */
tide_status tide_cuda_clock_harvest(tide_cuda_clock *clock, uint64_t *events);
/* After an error, when the stream runs nothing any more: drop all entries, so that nothing is pending. The
 * observer does not hear of them. */
void tide_cuda_clock_drop(tide_cuda_clock *clock);

bool tide_cuda_clock_passed(const tide_cuda_clock *clock, uint64_t sequence);
uint64_t tide_cuda_clock_pending(const tide_cuda_clock *clock);
/* Has the ring an event that has not been seen to pass? */
bool tide_cuda_clock_awaits_event(const tide_cuda_clock *clock);
/* Make the stream `waiter` wait for the moment. `entered` is false if the moment had passed already, so that
 * nothing was enqueued. DEVICE. */
tide_status tide_cuda_clock_hold(tide_cuda_clock *clock, uint64_t sequence, cudaStream_t waiter,
                                 bool *entered);
/* Block the calling thread until the moment has passed. DEVICE. */
tide_status tide_cuda_clock_wait(tide_cuda_clock *clock, uint64_t sequence);

#endif
