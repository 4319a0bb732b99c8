/* --trace FILE: the history of every chunk, as JSON Lines (docs/trace.md).
 *
 *     pool's threads --record--> [ ring of events ] --writer thread--> FILE | FILE.step-N
 *                                                        |
 *                                                     places: each chunk's last event, for snapshots
 *
 * Recording copies an event under a mutex: it allocates nothing and never waits for the disk. If the ring is
 * full, the event is dropped, and a later event tells how many were. In virtual time (`waits`; the null
 * device computes all times) a recorder waits for space instead, which changes no time. If the disk fails,
 * all later events are dropped. Events recorded before `begin` stay in the ring until the first line is
 * written.
 *
 * With `keep_steps`, the lines after the warm-up go to segments, files FILE.step-NUMBER of one step each. The
 * newest are kept; finish appends them to FILE. If FILE is not a regular file (a pipe), all lines go to it.
 */
#ifndef TIDE_TRACE_TRACE_H
#define TIDE_TRACE_TRACE_H

#include "src/train/metrics.h"
#include "tidepool/pool.h"

/* The warm-up: the step that records the schedule, and the step in which its updates end. */
enum { TIDE_TRACE_RING_EVENTS = 1 << 15, TIDE_TRACE_WARMUP_STEPS = 2 };

typedef struct tide_trace tide_trace;

typedef struct tide_trace_options {
    uint32_t ring_events; /* a power of two, at least 8 */
    uint64_t keep_steps;  /* steps to keep besides the warm-up; 0: all */
    bool waits;           /* recorders wait for space in the ring (virtual time) */
} tide_trace_options;

typedef struct tide_trace_setting {
    const char *name;
    const char *value;
} tide_trace_setting;

/* The contents of the first lines; must live until begin returns. */
typedef struct tide_trace_head {
    const char *version;
    const tide_trace_setting *settings;
    uint32_t setting_count;
    const tide_pool *pool; /* made with `options` */
    const tide_pool_options *options;
    const tide_pool_plan *plan;
    const char *machine;   /* the machine's name */
    uint64_t steps_before; /* steps before this run resumed; the pool counts only its own */
    uint64_t run;          /* of several ranks: a number that they share with no other run */
} tide_trace_head;

/* Open the file without changing its content, and make the ring. IO names the path; NO_MEMORY. */
TIDE_NODISCARD tide_status tide_trace_open(const char *path, const tide_trace_options *options,
                                           tide_trace **trace);

/* Record an event; a tide_trace_callback whose `context` is the tide_trace. Any thread. The event's strings
 * must live until finish. */
void tide_trace_record(void *context, const tide_trace_event *event);

/* Call once: empties the file, removes segments that an earlier run left, writes the first line and the
 * tables and starts the writer thread. IO, NO_MEMORY. */
TIDE_NODISCARD tide_status tide_trace_begin(tide_trace *trace, const tide_trace_head *head);

/* Queue the metrics line of a step that has ended (tide_metrics_line). One thread; sleeps if the writer is
 * many steps behind. */
void tide_trace_step(tide_trace *trace, const tide_trainer_report *report, const tide_slowest_rank *slowest,
                     uint64_t tokens, const tide_pool_counters *counters);

/* Call once, after the pool is destroyed, so that the trace has its last events: writes the events in the
 * ring and the last line, appends the segments to the file, and closes it. Later events are ignored. NULL is
 * allowed. *dropped, if not NULL, is the number of lost events. Without a begin the file's content is the
 * same as before open. IO if the file could not be written; the segments then keep their lines. */
tide_status tide_trace_finish(tide_trace *trace, uint64_t *dropped);

/* Free the trace, once no thread can record any more. Lines that `finish` has not written are lost. NULL is
 * allowed. */
void tide_trace_destroy(tide_trace *trace);

#endif
