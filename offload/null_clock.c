/* A binary heap that knows where each event stands in it, so that recording anew is a move, not a search. */
#include "offload/null_clock.h"

#include <assert.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum { CAPACITY_AT_FIRST = 64 };

void tide_null_clock_destroy(tide_null_clock *clock)
{
    free(clock->events);
    free(clock->heap);
    memset(clock, 0, sizeof *clock);
}

static uint64_t completion_at(const tide_null_clock *clock, uint32_t position)
{
    assert(position > 0 && position <= clock->heap_count);
    return clock->events[clock->heap[position - 1] - 1].completion_ns;
}

bool tide_null_clock_is_valid(const tide_null_clock *clock)
{
    for (uint32_t position = 2; position <= clock->heap_count; position++)
        if (completion_at(clock, position) < completion_at(clock, position / 2))
            return false;
    uint32_t to_come = 0;
    for (uint32_t i = 0; i < clock->event_count; i++) {
        const tide_null_event *event = &clock->events[i];
        if ((event->heap_position > 0) != (event->completion_ns > clock->now_ns))
            return false;
        if (event->heap_position > 0 && clock->heap[event->heap_position - 1] != i + 1)
            return false;
        to_come += event->heap_position > 0;
    }
    return to_come == clock->heap_count;
}

static tide_status tables_grow(tide_null_clock *clock)
{
    uint32_t capacity = clock->capacity > 0 ? clock->capacity * 2 : CAPACITY_AT_FIRST;
    tide_null_event *events = realloc(clock->events, capacity * sizeof *events);
    if (events != NULL)
        clock->events = events;
    tide_event *heap = events != NULL ? realloc(clock->heap, capacity * sizeof *heap) : NULL;
    if (heap == NULL)
        return tide_fail(TIDE_ERROR_NO_MEMORY, "no memory for %" PRIu32 " events", capacity);
    clock->heap = heap;
    clock->capacity = capacity;
    return TIDE_OK;
}

tide_status tide_null_clock_add(tide_null_clock *clock, tide_event *event)
{
    tide_status status = clock->event_count == clock->capacity ? tables_grow(clock) : TIDE_OK;
    if (status != TIDE_OK)
        return status;
    clock->events[clock->event_count] = (tide_null_event){0, 0, TIDE_STREAM_COMPUTE};
    *event = ++clock->event_count;
    return TIDE_OK;
}

/* --- the heap --- */

static void put(tide_null_clock *clock, uint32_t position, tide_event event)
{
    clock->heap[position - 1] = event;
    clock->events[event - 1].heap_position = position;
}

static void rise(tide_null_clock *clock, uint32_t position)
{
    tide_event event = clock->heap[position - 1];
    uint64_t completion_ns = clock->events[event - 1].completion_ns;
    while (position > 1 && completion_at(clock, position / 2) > completion_ns) {
        put(clock, position, clock->heap[position / 2 - 1]);
        position /= 2;
    }
    put(clock, position, event);
}

static void sink(tide_null_clock *clock, uint32_t position)
{
    tide_event event = clock->heap[position - 1];
    uint64_t completion_ns = clock->events[event - 1].completion_ns;
    for (uint32_t child = position * 2; child <= clock->heap_count; child = position * 2) {
        if (child < clock->heap_count && completion_at(clock, child + 1) < completion_at(clock, child))
            child++;
        if (completion_at(clock, child) >= completion_ns)
            break;
        put(clock, position, clock->heap[child - 1]);
        position = child;
    }
    put(clock, position, event);
}

static void heap_remove(tide_null_clock *clock, tide_event event)
{
    uint32_t position = clock->events[event - 1].heap_position;
    tide_event last = clock->heap[clock->heap_count - 1];
    clock->events[event - 1].heap_position = 0;
    clock->heap_count--;
    if (last == event)
        return;
    put(clock, position, last);
    rise(clock, position);
    sink(clock, clock->events[last - 1].heap_position);
}

/* --- time --- */

void tide_null_clock_record(tide_null_clock *clock, tide_event event, tide_stream stream,
                            uint64_t completion_ns)
{
    assert(event > 0 && event <= clock->event_count);
    tide_null_event *it = &clock->events[event - 1];
    if (it->heap_position > 0)
        heap_remove(clock, event);
    it->stream = stream;
    it->completion_ns = completion_ns;
    if (completion_ns <= clock->now_ns) {
        clock->doorbell++;
        return;
    }
    put(clock, ++clock->heap_count, event);
    rise(clock, clock->heap_count);
}

void tide_null_clock_advance(tide_null_clock *clock, uint64_t to_ns)
{
    if (to_ns > clock->now_ns)
        clock->now_ns = to_ns;
    while (clock->heap_count > 0 && completion_at(clock, 1) <= clock->now_ns) {
        heap_remove(clock, clock->heap[0]);
        clock->doorbell++;
    }
}

bool tide_null_clock_next(const tide_null_clock *clock, uint64_t *completion_ns)
{
    if (clock->heap_count == 0)
        return false;
    *completion_ns = completion_at(clock, 1);
    return true;
}
