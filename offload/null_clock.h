/* Virtual time: the present, and when each event's latest record completes.
 *
 * The present moves only when somebody waits. Events that are still to come stand in a heap, earliest first;
 * each is in it at most once, so recording anew moves it and nothing is allocated after its creation.
 */
#ifndef TIDE_OFFLOAD_NULL_CLOCK_H
#define TIDE_OFFLOAD_NULL_CLOCK_H

#include "offload/device.h"

typedef struct tide_null_event {
    uint64_t completion_ns;
    uint32_t heap_position; /* from 1; 0: passed, or never recorded */
    tide_stream stream;     /* of the latest record */
} tide_null_event;

typedef struct tide_null_clock {
    uint64_t now_ns;
    uint64_t doorbell;       /* grows when an event completes, and at every ring */
    uint64_t ringing;        /* what `doorbell` became at the last ring */
    tide_null_event *events; /* [event - 1] */
    tide_event *heap;        /* [position - 1], smallest completion first */
    uint32_t event_count;
    uint32_t capacity; /* of both tables */
    uint32_t heap_count;
} tide_null_clock;

/* Time has an end: what would be later is then. */
static inline uint64_t tide_null_clock_after(uint64_t begin_ns, uint64_t lasts_ns)
{
    return lasts_ns < UINT64_MAX - begin_ns ? begin_ns + lasts_ns : UINT64_MAX;
}

void tide_null_clock_destroy(tide_null_clock *clock);
/* The heap is one, and holds exactly the events that are still to come. Walks everything. */
bool tide_null_clock_is_valid(const tide_null_clock *clock);

/* NO_MEMORY: nothing changed. */
tide_status tide_null_clock_add(tide_null_clock *clock, tide_event *event);
/* The event's latest record is on `stream` and completes at `completion_ns`; at once if that is not to come.
 */
void tide_null_clock_record(tide_null_clock *clock, tide_event event, tide_stream stream,
                            uint64_t completion_ns);
/* Let the present be `to_ns`, unless it is past; events on the way complete. */
void tide_null_clock_advance(tide_null_clock *clock, uint64_t to_ns);
/* The earliest completion to come. False if there is none. */
bool tide_null_clock_next(const tide_null_clock *clock, uint64_t *completion_ns);

#endif
