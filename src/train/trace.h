/* --trace FILE: what happened to every chunk, as JSON Lines.
 *
 *     line 1      {"format":1, "tidepool":..., "configuration":{...}, "chunks":{space: {"chunks","bytes"}},
 *                  "params_per_chunk":[[{"name","first","elements"} ...] ...]}
 *     then        {"t_ns","step","moment","op","event","chunk","space","from","to","bytes","reason"} an event;
 *                 "chunk" and "space" are left out for an event of no chunk
 *     last line   {"events":N,"dropped":M}
 *
 *     pool's threads --record--> [ ring of 64 Ki events ] --writer thread--> file
 *
 * Recording copies one event under a mutex: it allocates nothing and never waits for the disk. A full ring, a
 * file that has TIDE_TRACE_EVENTS_MAX events, and a disk that fails drop events; they are counted and the
 * last line says how many. Events recorded before `begin` wait in the ring for the first line.
 */
#ifndef TIDE_TRAIN_TRACE_H
#define TIDE_TRAIN_TRACE_H

#include "chunk/layout.h"
#include "tidepool/pool.h"

enum { TIDE_TRACE_FORMAT = 1, TIDE_TRACE_RING_EVENTS = 1 << 16 };
#define TIDE_TRACE_EVENTS_MAX (1ull << 22) /* about 600 MiB of lines */

typedef struct tide_trace tide_trace;

typedef struct tide_trace_setting {
    const char *name;
    const char *value;
} tide_trace_setting;

typedef struct tide_trace_header {
    const char *version;
    const tide_trace_setting *configuration;
    uint32_t setting_count;
    const tide_pool_plan *plan;
    uint64_t model_params; /* elements of the model's params; what the plan's has beyond it is padding */
    const tide_layout *layout; /* the pool's own: which params lie in which chunk */
} tide_trace_header;

/* Open the file, whose content stays for now, and make the ring. `ring_events` is a power of two. IO names the
 * path; NO_MEMORY. */
TIDE_NODISCARD tide_status tide_trace_open(const char *path, uint32_t ring_events, tide_trace **trace);

/* A tide_trace_callback; `context` is the tide_trace. Any thread. The event's strings must live until finish.
 */
void tide_trace_record(void *context, const tide_trace_event *event);

/* Empty the file, write the first line and start the writer thread. Once. IO, NO_MEMORY. */
TIDE_NODISCARD tide_status tide_trace_begin(tide_trace *trace, const tide_trace_header *header);

/* Write what the ring holds and the last line, and close the file: before the pool, whose strings the events
 * hold, is destroyed. Events recorded afterwards are ignored. Once. NULL is allowed. *dropped, if not NULL,
 * is the number of lost events. Without a begin the file is as it was before open. IO if the file could not be
 * written. */
tide_status tide_trace_finish(tide_trace *trace, uint64_t *dropped);

/* Free it; nobody records any more. What `finish` has not written is lost. NULL is allowed. */
void tide_trace_destroy(tide_trace *trace);

#endif
