/* Virtual time: the commands on each stream, their speeds and their times.
 *
 * A stream is a queue of commands, waits and records. Its head runs or waits; an entry that takes no time
 * passes at once. How fast a command goes depends on the streams that run commands beside it, so that its end
 * is known when it comes, not when it is enqueued. The present moves only when somebody waits.
 *
 *   a place     of an entry in its stream's queue, counted from the first one ever on; it has passed once that many have
 *   an event    the place of its latest record
 *   a slowdown  the part of its speed alone that a stream keeps while just these streams run commands:
 *               [stream][set], bit s of a set is stream s; 0: all of it
 *
 * Not thread-safe: the device's lock guards it.
 */
#ifndef TIDE_OFFLOAD_NULL_FLOW_H
#define TIDE_OFFLOAD_NULL_FLOW_H

#include "offload/device.h"

typedef struct tide_null_place {
    tide_stream stream;
    uint64_t index; /* from 1; 0: never recorded, passed */
} tide_null_place;

typedef struct tide_null_entry {
    tide_observed told;    /* of a command and a wait, for the observer; begin_ns once it is the head */
    double left_ns;        /* of a command: at its speed alone */
    tide_null_place until; /* of a wait */
    bool is_record;
} tide_null_entry;

typedef struct tide_null_queue {
    tide_null_entry *entries; /* [place % capacity], capacity a power of two */
    uint64_t passed, end;     /* places in [passed + 1, end] stand */
    uint32_t capacity;
    bool has_begun; /* the head has its begin_ns */
} tide_null_queue;

typedef struct tide_null_flow {
    uint64_t now_ns;
    uint64_t doorbell; /* grows when a record passes, and at every ring */
    uint64_t ringing;  /* `doorbell` as of the last ring */
    tide_null_queue queues[TIDE_STREAM_COUNT];
    uint64_t records;        /* that stand */
    tide_null_place *events; /* [event - 1] */
    uint32_t event_count, event_capacity;
    const tide_slowdowns *slowdowns;    /* NULL: no stream slows another */
    tide_device_statistics *statistics; /* whose busy_ns, wait_ns and commands are counted here */
    tide_device_observer observer;      /* may be NULL */
    void *observer_context;
} tide_null_flow;

void tide_null_flow_destroy(tide_null_flow *flow);
/* The queues hold exactly the entries enqueued that have not passed, and no head could pass. Walks
 * everything. */
bool tide_null_flow_is_valid(const tide_null_flow *flow);

/* Let so many commands, waits and records stand on each stream without more memory. NO_MEMORY: some streams may take them. */
tide_status tide_null_flow_reserve(tide_null_flow *flow, uint32_t count);

/* NO_MEMORY: nothing changed. */
tide_status tide_null_flow_event(tide_null_flow *flow, tide_event *event);

/* Enqueue; entries that can pass at once do. NO_MEMORY: nothing changed. */
tide_status tide_null_flow_command(tide_null_flow *flow, tide_stream stream, const tide_work *work,
                                   uint64_t lasts_ns);
tide_status tide_null_flow_wait(tide_null_flow *flow, tide_stream stream, tide_event event,
                                tide_wait_site site, uint64_t id);
tide_status tide_null_flow_record(tide_null_flow *flow, tide_stream stream, tide_event event);

bool tide_null_flow_passed(const tide_null_flow *flow, tide_null_place place);
bool tide_null_flow_is_idle(const tide_null_flow *flow, tide_stream stream);

/* Let the present be so much later; commands that end on the way pass. */
void tide_null_flow_advance(tide_null_flow *flow, uint64_t by_ns);
/* Go on until a record passes, or this place has. False, and nothing changed, if nothing runs that would come to that. */
bool tide_null_flow_next(tide_null_flow *flow);
void tide_null_flow_until(tide_null_flow *flow, tide_null_place place);
/* Go on until all streams are idle. */
void tide_null_flow_drain(tide_null_flow *flow);

#endif
