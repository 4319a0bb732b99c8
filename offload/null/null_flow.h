/* Virtual time: the commands on each stream, their speeds and their times.
 *
 * A stream is a queue of commands, waits and records. The first entry, the head, runs or waits; an entry that
 * takes no time passes at once. The speed of a command depends on which other streams run commands at the
 * same time, so its end is known only when it comes, not when it is enqueued. Time moves only when the
 * device's caller waits.
 *
 *   a place     of an entry: its number in its stream's queue, from 1, over all entries ever enqueued; it has
 *               passed when that many entries have
 *   an event    the place of its latest record
 *   a slowdown  the part of its full speed that a stream keeps while exactly the streams of a set run
 *               commands: [stream][set], bit s of a set is stream s; 0: all of it
 *
 * Not thread-safe: the device's lock guards it.
 */
#ifndef TIDE_OFFLOAD_NULL_FLOW_H
#define TIDE_OFFLOAD_NULL_FLOW_H

#include "offload/device.h"

typedef struct tide_null_place {
    tide_stream stream;
    uint64_t index; /* from 1; 0: never recorded, which counts as passed */
} tide_null_place;

typedef struct tide_null_entry {
    /* for the observer, of a command or a wait; begin_ns is set when the entry becomes the head */
    tide_observed told;
    double left_ns;        /* of a command: the time that it still takes at full speed */
    tide_null_place until; /* of a wait: the place that it waits for */
    bool is_record;
} tide_null_entry;

typedef struct tide_null_queue {
    tide_null_entry *entries; /* [place % capacity], capacity a power of two */
    uint64_t passed, end;     /* the queue holds the places passed + 1 to end */
    uint32_t capacity;
    bool has_begun; /* begin_ns of the head is set */
} tide_null_queue;

typedef struct tide_null_flow {
    uint64_t now_ns;
    uint64_t doorbell; /* grows when a record passes and at every ring */
    uint64_t ringing;  /* the value of `doorbell` at the last ring */
    tide_null_queue queues[TIDE_STREAM_COUNT];
    uint64_t records;        /* records in the queues */
    tide_null_place *events; /* [event - 1] */
    uint32_t event_count;
    const tide_slowdowns *slowdowns;    /* NULL: no stream slows another */
    tide_device_statistics *statistics; /* the flow counts busy_ns, wait_ns and commands here */
    tide_device_observer observer;      /* may be NULL */
    void *observer_context;
} tide_null_flow;

void tide_null_flow_destroy(tide_null_flow *flow);
/* Check: the queues hold exactly the entries that have not passed, and no head could pass. Walks
 * everything. */
bool tide_null_flow_is_valid(const tide_null_flow *flow);

/* Allocate each stream's queue for this many commands, waits and records. NO_MEMORY: the queues of some
 * streams may have grown. */
tide_status tide_null_flow_reserve(tide_null_flow *flow, uint32_t count);

/* Make an event that was never recorded. NO_MEMORY: nothing changed. */
tide_status tide_null_flow_event(tide_null_flow *flow, tide_event *event);

/* Enqueue an entry; entries that can pass at once do. NO_MEMORY: nothing changed. */
tide_status tide_null_flow_command(tide_null_flow *flow, tide_stream stream, const tide_work *work,
                                   uint64_t lasts_ns);
tide_status tide_null_flow_wait(tide_null_flow *flow, tide_stream stream, tide_event event,
                                tide_wait_site site, uint64_t id);
tide_status tide_null_flow_record(tide_null_flow *flow, tide_stream stream, tide_event event);

bool tide_null_flow_passed(const tide_null_flow *flow, tide_null_place place);
bool tide_null_flow_is_idle(const tide_null_flow *flow, tide_stream stream);

/* Move time forward by `by_ns`; commands that end by then pass. */
void tide_null_flow_advance(tide_null_flow *flow, uint64_t by_ns);
/* _next: move time forward until a record passes; false, with nothing changed, if none would. _until: move
 * time forward until `place` has passed. */
bool tide_null_flow_next(tide_null_flow *flow);
void tide_null_flow_until(tide_null_flow *flow, tide_null_place place);
/* Move time forward until all streams are idle. */
void tide_null_flow_drain(tide_null_flow *flow);

#endif
