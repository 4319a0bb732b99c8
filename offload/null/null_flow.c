/* Between the ends of two commands no stream's slowdown changes, so time is moved from one end of a command
 * to the next. */
#include "offload/null/null_flow.h"

#include "base/array.h"

#include <assert.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { CAPACITY_AT_FIRST = 64 };

void tide_null_flow_destroy(tide_null_flow *flow)
{
    for (int stream = 0; stream < TIDE_STREAM_COUNT; stream++)
        free(flow->queues[stream].entries);
    free(flow->events);
    memset(flow, 0, sizeof *flow);
}

/* --- queues --- */

static tide_null_entry *entry_at(const tide_null_queue *queue, uint64_t place)
{
    assert(place > queue->passed && place <= queue->end);
    return &queue->entries[place & (queue->capacity - 1)];
}

static bool is_empty(const tide_null_queue *queue)
{
    return queue->passed == queue->end;
}

static tide_status queue_grow(tide_null_queue *queue, uint32_t count)
{
    uint32_t capacity = queue->capacity > 0 ? queue->capacity : CAPACITY_AT_FIRST;
    while (capacity < count)
        capacity *= 2;
    if (capacity == queue->capacity)
        return TIDE_OK;
    tide_null_entry *entries = calloc(capacity, sizeof *entries);
    if (entries == NULL)
        return tide_fail(TIDE_ERROR_NO_MEMORY, "no memory for %" PRIu32 " commands of the null device",
                         capacity);
    for (uint64_t place = queue->passed + 1; place <= queue->end; place++)
        entries[place & (capacity - 1)] = *entry_at(queue, place);
    free(queue->entries);
    queue->entries = entries;
    queue->capacity = capacity;
    return TIDE_OK;
}

tide_status tide_null_flow_reserve(tide_null_flow *flow, uint32_t count)
{
    tide_status status = TIDE_OK;
    for (int stream = 0; stream < TIDE_STREAM_COUNT && status == TIDE_OK; stream++)
        status = queue_grow(&flow->queues[stream], count);
    return status;
}

bool tide_null_flow_passed(const tide_null_flow *flow, tide_null_place place)
{
    return place.index <= flow->queues[place.stream].passed;
}

bool tide_null_flow_is_idle(const tide_null_flow *flow, tide_stream stream)
{
    return is_empty(&flow->queues[stream]);
}

/* --- heads --- */

static void tell(const tide_null_flow *flow, const tide_observed *told)
{
    if (flow->observer != NULL)
        flow->observer(flow->observer_context, told);
}

static bool is_command(const tide_null_entry *entry)
{
    return !entry->is_record && !entry->told.is_wait;
}

static bool may_pass(const tide_null_flow *flow, const tide_null_entry *head)
{
    if (head->is_record)
        return true;
    return head->told.is_wait ? tide_null_flow_passed(flow, head->until) : head->left_ns <= 0;
}

/* Let the stream's head pass, and tell the observer, except of a wait that took no time. */
static void pass(tide_null_flow *flow, tide_stream stream)
{
    tide_null_queue *queue = &flow->queues[stream];
    tide_null_entry *head = entry_at(queue, queue->passed + 1);
    head->told.end_ns = flow->now_ns;
    const uint64_t lasted_ns = flow->now_ns - head->told.begin_ns;
    queue->passed++;
    queue->has_begun = false;
    if (head->is_record) {
        flow->records--;
        flow->doorbell++;
        return;
    }
    uint64_t *spent_ns = head->told.is_wait ? flow->statistics->wait_ns : flow->statistics->busy_ns;
    spent_ns[stream] += lasted_ns;
    if (!head->told.is_wait || lasted_ns > 0)
        tell(flow, &head->told);
}

/* Begin the stream's head, and let it pass if it can. True if it has passed. */
static bool head_settle(tide_null_flow *flow, tide_stream stream)
{
    tide_null_queue *queue = &flow->queues[stream];
    if (is_empty(queue))
        return false;
    tide_null_entry *head = entry_at(queue, queue->passed + 1);
    if (!queue->has_begun)
        head->told.begin_ns = flow->now_ns;
    queue->has_begun = true;
    if (!may_pass(flow, head))
        return false;
    pass(flow, stream);
    return true;
}

/* Let every head pass that can: entries that take no time, and the waits that a passed record of another
 * stream allows. */
static void settle(tide_null_flow *flow)
{
    bool any = true;
    while (any) {
        any = false;
        for (int stream = 0; stream < TIDE_STREAM_COUNT; stream++)
            while (head_settle(flow, (tide_stream)stream))
                any = true;
    }
}

bool tide_null_flow_is_valid(const tide_null_flow *flow)
{
    uint64_t records = 0;
    for (int stream = 0; stream < TIDE_STREAM_COUNT; stream++) {
        const tide_null_queue *queue = &flow->queues[stream];
        if (queue->passed > queue->end || queue->end - queue->passed > queue->capacity)
            return false;
        if (!is_empty(queue) && may_pass(flow, entry_at(queue, queue->passed + 1)))
            return false;
        for (uint64_t place = queue->passed + 1; place <= queue->end; place++)
            records += entry_at(queue, place)->is_record;
    }
    if (records != flow->records)
        return false;
    for (uint32_t i = 0; i < flow->event_count; i++)
        if (flow->events[i].index > flow->queues[flow->events[i].stream].end)
            return false;
    return true;
}

/* --- enqueueing --- */

static tide_status enqueue(tide_null_flow *flow, tide_stream stream, const tide_null_entry *entry)
{
    tide_null_queue *queue = &flow->queues[stream];
    const tide_status status = queue_grow(queue, (uint32_t)(queue->end - queue->passed) + 1);
    if (status != TIDE_OK)
        return status;
    queue->end++;
    flow->records += entry->is_record;
    *entry_at(queue, queue->end) = *entry;
    if (queue->end == queue->passed + 1) /* otherwise the stream has the same head as before */
        settle(flow);
    return TIDE_OK;
}

tide_status tide_null_flow_command(tide_null_flow *flow, tide_stream stream, const tide_work *work,
                                   uint64_t lasts_ns)
{
    const tide_null_entry entry = {.told = {stream, false, work->label, work->tag, work->timer, work->id, 0,
                                            0, work->flops, work->bytes},
                                   .left_ns = (double)lasts_ns};
    flow->statistics->commands[stream]++;
    const tide_status status = enqueue(flow, stream, &entry);
    if (status != TIDE_OK)
        flow->statistics->commands[stream]--;
    return status;
}

tide_status tide_null_flow_wait(tide_null_flow *flow, tide_stream stream, tide_event event,
                                tide_wait_site site, uint64_t id)
{
    const tide_null_entry entry = {.told = {stream, true, "wait", site, 0, id, 0, 0, 0, 0},
                                   .until = flow->events[event - 1]};
    return enqueue(flow, stream, &entry);
}

tide_status tide_null_flow_record(tide_null_flow *flow, tide_stream stream, tide_event event)
{
    const tide_null_entry entry = {.is_record = true};
    const tide_null_place before = flow->events[event - 1];
    flow->events[event - 1] = (tide_null_place){stream, flow->queues[stream].end + 1};
    const tide_status status = enqueue(flow, stream, &entry);
    if (status != TIDE_OK)
        flow->events[event - 1] = before;
    return status;
}

tide_status tide_null_flow_event(tide_null_flow *flow, tide_event *event)
{
    if (!tide_array_grow(&flow->events, flow->event_count, sizeof *flow->events))
        return tide_fail(TIDE_ERROR_NO_MEMORY, "no memory for %" PRIu32 " events", flow->event_count + 1);
    flow->events[flow->event_count] = (tide_null_place){TIDE_STREAM_COMPUTE, 0};
    *event = ++flow->event_count;
    return TIDE_OK;
}

/* --- time --- */

static unsigned running_set(const tide_null_flow *flow)
{
    unsigned set = 0;
    for (int stream = 0; stream < TIDE_STREAM_COUNT; stream++) {
        const tide_null_queue *queue = &flow->queues[stream];
        if (!is_empty(queue) && is_command(entry_at(queue, queue->passed + 1)))
            set |= 1u << stream;
    }
    return set;
}

static double slowdown_of(const tide_null_flow *flow, int stream, unsigned set)
{
    const double slowdown = flow->slowdowns == NULL ? 0 : flow->slowdowns->of[stream][set];
    return slowdown > 0 ? slowdown : 1;
}

/* Round up to a whole number; numbers from 2^63 on are whole. */
static double whole_up(double x)
{
    const double whole = x < (double)INT64_MAX ? (double)(int64_t)x : x;
    return whole < x ? whole + 1 : whole;
}

/* The time `by_ns` later, at most UINT64_MAX, at which every command counts as ended. */
static uint64_t later(uint64_t now_ns, double by_ns)
{
    return by_ns < (double)(UINT64_MAX - now_ns) ? now_ns + (uint64_t)by_ns : UINT64_MAX;
}

/* Move time to the next end of a command, at most by `most_ns`; the commands that end then pass. */
static void go_on(tide_null_flow *flow, unsigned set, double most_ns)
{
    double by_ns = most_ns;
    for (int stream = 0; stream < TIDE_STREAM_COUNT; stream++) {
        const tide_null_queue *queue = &flow->queues[stream];
        if ((set >> stream & 1u) == 0)
            continue;
        const double left_ns =
            whole_up(entry_at(queue, queue->passed + 1)->left_ns / slowdown_of(flow, stream, set));
        by_ns = left_ns < by_ns ? left_ns : by_ns;
    }
    flow->now_ns = later(flow->now_ns, by_ns);
    for (int stream = 0; stream < TIDE_STREAM_COUNT; stream++) {
        tide_null_queue *queue = &flow->queues[stream];
        if (set >> stream & 1u)
            entry_at(queue, queue->passed + 1)->left_ns -=
                flow->now_ns == UINT64_MAX ? INFINITY : by_ns * slowdown_of(flow, stream, set);
    }
    settle(flow);
}

void tide_null_flow_advance(tide_null_flow *flow, uint64_t by_ns)
{
    const uint64_t to_ns = later(flow->now_ns, (double)by_ns);
    for (unsigned set = running_set(flow); set != 0 && flow->now_ns < to_ns; set = running_set(flow))
        go_on(flow, set, (double)(to_ns - flow->now_ns));
    flow->now_ns = to_ns;
}

bool tide_null_flow_next(tide_null_flow *flow)
{
    const uint64_t rung = flow->doorbell;
    for (unsigned set = running_set(flow); set != 0 && flow->records > 0 && flow->doorbell == rung;
         set = running_set(flow))
        go_on(flow, set, INFINITY);
    return flow->doorbell != rung;
}

void tide_null_flow_until(tide_null_flow *flow, tide_null_place place)
{
    for (unsigned set = running_set(flow); set != 0 && !tide_null_flow_passed(flow, place);
         set = running_set(flow))
        go_on(flow, set, INFINITY);
}

void tide_null_flow_drain(tide_null_flow *flow)
{
    for (unsigned set = running_set(flow); set != 0; set = running_set(flow))
        go_on(flow, set, INFINITY);
}
