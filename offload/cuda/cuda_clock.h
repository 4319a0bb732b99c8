/* Finds out when the commands of a GPU stream began and ended, and how far the stream has come, without
 * waiting for the stream.
 *
 * Each command (and each wait) has a place in a ring, with a CUDA event that takes a time stamp:
 *
 *   enter ->  [ . | h | h+1 | ... | m | ... | e ]  -> harvest, in order, while cudaEventQuery succeeds
 *                   ^harvested      ^marked   ^enqueued
 *
 * The comments call a point on a stream, right after a command, a moment: it is the command's number
 * (sequence), as on the host device. The moment has passed when the command is harvested. Another stream
 * waits for a moment by waiting for the CUDA event in the command's place. All CUDA events are made at open.
 * None of them lets a thread sleep on it (cudaEventBlockingSync), since such an event costs an interrupt each
 * time it passes, even if no thread waits. A thread that has to wait polls the event and sleeps between
 * polls. (One blocking event, only for such waits, would come after all enqueued commands, so a thread that
 * needs the oldest command would wait until the GPU is idle.)
 *
 * Runs. A timed event delays the next kernel by two microseconds (on an H200; an untimed one by none).
 * Therefore successive kernels that may coalesce (device.h) share one event, after the last of them: they are
 * a run, which is timed and reported as one command. The caller marks the end of a run (records its event)
 * before it enqueues a command that does not join the run, and where it needs a moment. Every 64th command
 * also ends a run, so that a caller with a full ring has a moment to wait for. Gaps inside a run count as
 * busy. A command that does not coalesce is a run of its own.
 *
 * Times. The GPU's clock is not the host's, and CUDA gives only the time between two events, in milliseconds
 * as a float: exact to half a microsecond within ten seconds, useless over hours. So each end is measured
 * from the end of the run before,
 *
 *   end = end before + elapsed(event before, this event),     then limited, on the host's clock, so that
 *   enqueued, last seen unfinished <= end <= seen finished
 *
 * so that errors do not add up. A command begins when the one before has ended, or when it is enqueued if
 * that is later. A wait for another stream is an entry of its own. A run costs one event record, and two CUDA
 * calls when it is harvested.
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

/* CUDA's own queue holds about a thousand entries per stream; when it is full, a launch blocks inside the
 * driver. Each of our commands takes at least two of them. Our ring is full well before, so that callers wait
 * here and not in the driver. */
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
    _Atomic bool recorded;  /* tide_cuda_clock_record returned this command's moment */
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
    uint32_t event_count; /* CUDA events made; during open perhaps fewer than entries */
    _Atomic uint64_t enqueued;
    _Atomic uint64_t marked; /* the last entry with an event */
    _Atomic uint64_t harvested;

    pthread_mutex_t harvest;
    uint64_t end_ns;        /* [harvest] the end of the entry harvested last */
    uint64_t unfinished_ns; /* [harvest] when the next entry was last seen unfinished */
    _Atomic uint64_t busy_ns, wait_ns, commands;
} tide_cuda_clock;

/* Make the events and measure the first time on an idle stream. The GPU must be current on this thread.
 * NO_MEMORY, DEVICE: then there is nothing to close. */
tide_status tide_cuda_clock_open(tide_cuda_clock *clock, tide_stream role, cudaStream_t stream,
                                 const tide_device_options *options);
/* Destroy the events. The stream must be idle. */
void tide_cuda_clock_close(tide_cuda_clock *clock);
/* Check that harvested <= marked <= enqueued. */
bool tide_cuda_clock_is_valid(const tide_cuda_clock *clock);

/* Has the ring space for this many more entries? If not, sets `oldest` to the moment that has to pass first.
 * Any thread. */
bool tide_cuda_clock_has_capacity(const tide_cuda_clock *clock, uint64_t entries, uint64_t *oldest);
/* Make space for one entry: if the ring is full, wait for the oldest. Adds to `events` as
 * tide_cuda_clock_harvest does. DEVICE. */
tide_status tide_cuda_clock_reserve(tide_cuda_clock *clock, uint64_t *events);
/* Is the last run not marked: are the last commands enqueued without an event after them? */
bool tide_cuda_clock_has_run(const tide_cuda_clock *clock);
/* Would the command join the last run? If not, the caller must mark that run before it enqueues the
 * command. */
bool tide_cuda_clock_joins(const tide_cuda_clock *clock, const tide_work *work);
/* Enter the command that was just enqueued on the stream; the caller began to enqueue it at `enqueued_ns`.
 * The ring must have space. DEVICE: as tide_cuda_clock_mark. */
tide_status tide_cuda_clock_enter(tide_cuda_clock *clock, const tide_work *work, bool is_wait,
                                  uint64_t enqueued_ns);
/* Record a CUDA event after the last run, if it is not marked yet. DEVICE: the clock has dropped the run's
 * entries. */
tide_status tide_cuda_clock_mark(tide_cuda_clock *clock);
/* Return the moment at the end of the last marked run, and count it as recorded: the harvest in which it
 * passes adds 1 to `events`. */
uint64_t tide_cuda_clock_record(tide_cuda_clock *clock);

/* Remove the entries that the GPU has finished from the ring, report them to the observer, and add the number
 * of recorded moments among them to `events`. DEVICE: the remaining entries stay. */
tide_status tide_cuda_clock_harvest(tide_cuda_clock *clock, uint64_t *events);
/* Drop all entries, without reporting them, so that nothing is pending. For a stream that runs nothing more
 * after an error. */
void tide_cuda_clock_drop(tide_cuda_clock *clock);

bool tide_cuda_clock_passed(const tide_cuda_clock *clock, uint64_t sequence);
uint64_t tide_cuda_clock_pending(const tide_cuda_clock *clock);
/* Is there a marked entry that was not harvested yet? */
bool tide_cuda_clock_awaits_event(const tide_cuda_clock *clock);
/* Make the stream `waiter` wait for the moment. `entered`: whether a wait was enqueued; if not, the moment
 * had passed. DEVICE. */
tide_status tide_cuda_clock_hold(tide_cuda_clock *clock, uint64_t sequence, cudaStream_t waiter,
                                 bool *entered);
/* Block the calling thread until the moment has passed. DEVICE. */
tide_status tide_cuda_clock_wait(tide_cuda_clock *clock, uint64_t sequence);

#endif
