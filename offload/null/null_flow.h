/* The virtual clock of the null device: queues of commands, and when each begins and ends.
 *
 * A stream is a queue of commands, waits and event records. Its first entry, the head, runs or waits; an
 * entry that takes no time passes (leaves the queue) at once. A command's speed depends on which other
 * streams run commands at the same time, so its end can't be computed when it is enqueued. Time moves only
 * when the device's caller waits.
 *
 *   a place     an entry's number among all entries ever enqueued on its stream, from 1; it has passed when
 *               the entry has
 *   an event    stands for the place of its latest record
 *   a slowdown  the factor by which a stream's speed is reduced while exactly the streams of a set run
 *               commands: [stream][set], bit s of a set is stream s; 0 means 1
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
    /* the report to the observer on a command or a wait; begin_ns is set when the entry becomes the head */
    tide_observed told;
    double left_ns;        /* of a command: how much longer it takes at full speed */
    tide_null_place until; /* of a wait: the place for which it waits */
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
    tide_device_statistics *statistics; /* where busy_ns, wait_ns and commands are counted */
    tide_device_observer observer;      /* may be NULL */
    void *observer_context;
} tide_null_flow;

void tide_null_flow_destroy(tide_null_flow *flow);
/* Check that the queues hold exactly the entries that have not passed, and that no head could pass. Walks all
 * entries. */
bool tide_null_flow_is_valid(const tide_null_flow *flow);

/* Allocate each stream's queue for this many commands, waits and records. NO_MEMORY: the queues of some
 * streams may have grown. */
tide_status tide_null_flow_reserve(tide_null_flow *flow, uint32_t count);

/* Make an event that was never recorded. NO_MEMORY: nothing changed. */
tide_status tide_null_flow_event(tide_null_flow *flow, tide_event *event);

/* Enqueue a command, a wait, or a record; then let all heads pass that can. NO_MEMORY: nothing changed. */
tide_status tide_null_flow_command(tide_null_flow *flow, tide_stream stream, const tide_work *work,
                                   uint64_t lasts_ns);
tide_status tide_null_flow_wait(tide_null_flow *flow, tide_stream stream, tide_event event,
                                tide_wait_site site, uint64_t id);
tide_status tide_null_flow_record(tide_null_flow *flow, tide_stream stream, tide_event event);

bool tide_null_flow_passed(const tide_null_flow *flow, tide_null_place place);
bool tide_null_flow_is_idle(const tide_null_flow *flow, tide_stream stream);

/* Move time forward by `by_ns`; commands that end by then pass. */
void tide_null_flow_advance(tide_null_flow *flow, uint64_t by_ns);
/* Move time forward: tide_null_flow_next until a record passes (false, with nothing changed, if none would);
 * tide_null_flow_until until `place` has passed. */
bool tide_null_flow_next(tide_null_flow *flow);
void tide_null_flow_until(tide_null_flow *flow, tide_null_place place);
/* Move time forward until all streams are idle. */
void tide_null_flow_drain(tide_null_flow *flow);

#endif
