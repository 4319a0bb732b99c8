/* When a GPU stream's commands began and ended, and how far the stream has come, without ever waiting for it.
 *
 * Each command (and each wait) has a place in a ring, and there a CUDA event with a time stamp:
 *
 *   enter ->  [ . | h | h+1 | ... | m | ... | e ]  -> harvest, in order, while cudaEventQuery succeeds
 *                   ^harvested      ^marked   ^enqueued
 *
 * So a moment on a stream is a sequence, as on the host device: it has passed when it is harvested, and
 * another stream waits for it by waiting for the CUDA event in its place. All CUDA events are made at open,
 * and not as ones that CUDA can sleep on (cudaEventBlockingSync): such an event costs an interrupt whenever
 * it passes, waited for or not. Where a thread has to wait it asks, and sleeps between. (One more event for
 * such waits alone would stand behind all that is enqueued, and who waits for the oldest would find an idle
 * GPU.)
 *
 * Runs. A timed event holds the next kernel back by two microseconds (an H200; an untimed one by none). So
 * kernels that may coalesce (device.h) and follow each other share the event behind the last of them: they
 * are a run, timed and told of as one command. The caller marks the end of a run before it enqueues a command
 * that does not join, and where it needs a moment; every 64th command ends a run, so that a full ring has a
 * moment to wait for. Gaps inside a run count as busy. A command that does not coalesce is a run of its own.
 *
 * Times. The GPU's clock is not the host's, and CUDA tells only the time between two events, in milliseconds as a
 * float: good to half a microsecond within ten seconds, bad over hours. So each end is measured from the end before
 * it,
 *
 *   end = end before + elapsed(event before, this event)     and then held within
 *   [enqueued, seen unfinished last] <= end <= seen finished  on the host's clock
 *
 * which stops the sum from drifting. A command begins when the one before has ended, or when it is enqueued
 * if that is later; a wait for another stream stands before it as an entry of its own. The cost is one event
 * record a run and two calls when it is harvested.
 *
 * Locks. reserve, joins, enter, mark, record and drop: under the caller's lock of that stream. The rest: any
 * thread. The harvest lock is taken inside; under it the observer is called, and no other lock of the device is
 * taken.
 */
#ifndef TIDE_OFFLOAD_CUDA_CLOCK_H
#define TIDE_OFFLOAD_CUDA_CLOCK_H

#include "offload/device.h"

#include <cuda_runtime_api.h>
#include <pthread.h>
#include <stdatomic.h>

/* CUDA's own queue takes about a thousand entries a stream before a launch makes its caller wait inside the driver, and a
 * command of ours is two of them or more. So the ring is full well before: who waits, waits here. */
enum { TIDE_CUDA_RING_ENTRIES = 256 };

typedef struct tide_cuda_entry {
    cudaEvent_t done;
    const char *label;
    uint64_t enqueued_ns;
    uint32_t tag, timer;
    uint64_t id;
    double flops, bytes;
    bool is_wait;
    _Atomic bool has_event; /* it ends a run */
    _Atomic bool recorded;  /* an event stands behind this command: its passing rings the doorbell */
} tide_cuda_entry;

typedef struct tide_cuda_clock {
    tide_stream role;
    cudaStream_t stream;
    tide_device_observer observer;
    void *observer_context;

    /* [stream's lock] writes `enqueued`, `marked` and the entries beyond `marked`; [harvest] writes
     * `harvested`. Entries between `harvested` and `marked` are read only, and the next is measured from the
     * one at `harvested`. */
    tide_cuda_entry ring[TIDE_CUDA_RING_ENTRIES];
    uint32_t event_count; /* made so far; all, after open */
    _Atomic uint64_t enqueued;
    _Atomic uint64_t marked; /* the last entry with an event */
    _Atomic uint64_t harvested;

    pthread_mutex_t harvest;
    uint64_t end_ns;        /* [harvest] of the entry harvested last */
    uint64_t unfinished_ns; /* [harvest] when the next one was last seen unfinished */
    _Atomic uint64_t busy_ns, wait_ns, commands;
} tide_cuda_clock;

/* Make the events and take the first time on an idle stream. The GPU is current. NO_MEMORY, DEVICE: nothing is left.
 * */
tide_status tide_cuda_clock_open(tide_cuda_clock *clock, tide_stream role, cudaStream_t stream,
                                 const tide_device_options *options);
/* The stream is idle. */
void tide_cuda_clock_close(tide_cuda_clock *clock);
/* harvested <= marked <= enqueued, and the ring holds what is between. */
bool tide_cuda_clock_is_valid(const tide_cuda_clock *clock);

/* Is there room for `entries` more? `oldest`, if not: the moment that has to pass first. Any thread. */
bool tide_cuda_clock_has_capacity(const tide_cuda_clock *clock, uint64_t entries, uint64_t *oldest);
/* Make room for one entry; in a full ring that means to wait for the oldest. `events` as harvest's. DEVICE. */
tide_status tide_cuda_clock_reserve(tide_cuda_clock *clock, uint64_t *events);
/* Are there commands at the stream's end with no event behind them? */
bool tide_cuda_clock_has_run(const tide_cuda_clock *clock);
/* Does the command continue the run at the stream's end? If not, mark that run before it is enqueued. */
bool tide_cuda_clock_joins(const tide_cuda_clock *clock, const tide_work *work);
/* Enter what was just enqueued on the stream. `enqueued_ns` is when that began. There must be room. DEVICE: as
 * mark. */
tide_status tide_cuda_clock_enter(tide_cuda_clock *clock, const tide_work *work, bool is_wait,
                                  uint64_t enqueued_ns);
/* Put an event behind the run at the stream's end, if there is one. DEVICE: the run is taken back. */
tide_status tide_cuda_clock_mark(tide_cuda_clock *clock);
/* The moment behind the last run; its passing counts as an event's. */
uint64_t tide_cuda_clock_record(tide_cuda_clock *clock);

/* Take passed entries off the ring. `events` grows by the number of recorded moments among them. DEVICE: the
 * entries not harvested stay. */
tide_status tide_cuda_clock_harvest(tide_cuda_clock *clock, uint64_t *events);
/* After an error: the stream does not run any more; nothing is pending, and the observer hears no more of its
 * commands. */
void tide_cuda_clock_drop(tide_cuda_clock *clock);

bool tide_cuda_clock_passed(const tide_cuda_clock *clock, uint64_t sequence);
uint64_t tide_cuda_clock_pending(const tide_cuda_clock *clock);
/* Is there an event that has not been seen to pass? */
bool tide_cuda_clock_awaits_event(const tide_cuda_clock *clock);
/* `waiter` goes on only after the moment. `entered` is false if it had passed already and nothing was enqueued.
 * DEVICE. */
tide_status tide_cuda_clock_hold(tide_cuda_clock *clock, uint64_t sequence, cudaStream_t waiter,
                                 bool *entered);
/* Block the calling thread until the moment has passed. DEVICE. */
tide_status tide_cuda_clock_wait(tide_cuda_clock *clock, uint64_t sequence);

#endif
