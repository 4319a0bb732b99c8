/* --trace FILE: what happened to every chunk, as JSON Lines (docs/trace.md).
 *
 *     pool's threads --record--> [ ring of events ] --writer thread--> FILE | FILE.step-N
 *                                                        |
 *                                                     places: each chunk's last event, for snapshots
 *
 * Recording copies one event under a mutex: it allocates nothing and never waits for the disk; where the ring is full
 * the event is dropped, and counted in its place. In virtual time (`waits`) nobody is held up by waiting: there
 * nothing is dropped. A disk that fails drops all that follows. Events recorded before `begin` wait in the ring for
 * the first line.
 *
 * With `keep_steps` the lines behind the warm-up go to a segment a step, FILE.step-NUMBER, of which the newest are
 * kept; finish appends them to FILE. A FILE that is no regular file (a pipe) gets everything.
 */
#ifndef TIDE_TRACE_TRACE_H
#define TIDE_TRACE_TRACE_H

#include "src/train/trainer.h"
#include "tidepool/pool.h"

/* The warm-up: the step that is recorded, and the one in which its updates end. */
enum { TIDE_TRACE_RING_EVENTS = 1 << 15, TIDE_TRACE_WARMUP_STEPS = 2 };

typedef struct tide_trace tide_trace;

typedef struct tide_trace_options {
    uint32_t ring_events; /* a power of two, at least 8 */
    uint64_t keep_steps;  /* beside the warm-up; 0: all */
    bool waits;           /* for room in the ring: in virtual time */
} tide_trace_options;

typedef struct tide_trace_setting {
    const char *name;
    const char *value;
} tide_trace_setting;

/* What the first lines say; lives until begin returns. */
typedef struct tide_trace_head {
    const char *version;
    const tide_trace_setting *settings;
    uint32_t setting_count;
    const tide_pool *pool; /* sealed, with `options` */
    const tide_pool_options *options;
    const tide_pool_plan *plan;
    const char *machine;   /* its name */
    uint64_t steps_before; /* of the run that this one resumes: the pool counts its own */
} tide_trace_head;

/* Open the file, whose content stays for now, and make the ring. IO names the path; NO_MEMORY. */
TIDE_NODISCARD tide_status tide_trace_open(const char *path, const tide_trace_options *options,
                                           tide_trace **trace);

/* A tide_trace_callback; `context` is the tide_trace. Any thread. The event's strings must live until finish. */
void tide_trace_record(void *context, const tide_trace_event *event);

/* Empty the file, remove segments that a killed run left, write the first line and the tables and start the writer
 * thread. Once. IO, NO_MEMORY. */
TIDE_NODISCARD tide_status tide_trace_begin(tide_trace *trace, const tide_trace_head *head);

/* A step is over: its metrics line. One thread; sleeps if the writer is many steps behind. */
void tide_trace_step(tide_trace *trace, const tide_trainer_report *report, uint64_t tokens,
                     const tide_pool_counters *counters);

/* Write what the ring holds and the last line, bring the segments into the file, and close it: after the pool is
 * destroyed, so that what was on its way to the last is told. Events recorded afterwards are ignored. Once. NULL is
 * allowed. *dropped, if not NULL, is the number of lost events. Without a begin the file is as it was before open. IO
 * if the file could not be written: what segments hold is left in them. */
tide_status tide_trace_finish(tide_trace *trace, uint64_t *dropped);

/* Free it; nobody records any more. What `finish` has not written is lost. NULL is allowed. */
void tide_trace_destroy(tide_trace *trace);

#endif
