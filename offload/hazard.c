/* Each actor and each event has a vector clock of 22 ticks, each object 23 marks (about 550 bytes). They are
 * allocated with the object or event, so checking allocates nothing.
 */
#include "offload/hazard.h"

#include "offload/device_common.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct clock_vector {
    uint64_t ticks[TIDE_HAZARD_ACTOR_COUNT];
} clock_vector;

/* Who accessed an object, and at which tick of that actor. tick 0: no access yet. */
typedef struct hazard_mark {
    uint64_t tick;
    const char *label;
    uint32_t tag;
    tide_hazard_actor actor;
} hazard_mark;

typedef struct hazard_object {
    const char *name;
    hazard_mark last_write;
    hazard_mark reads[TIDE_HAZARD_ACTOR_COUNT]; /* each actor's latest read since the last write */
} hazard_object;

typedef struct object_table {
    hazard_object *objects;
    uint32_t count;
} object_table;

struct tide_hazard {
    clock_vector clocks[TIDE_HAZARD_ACTOR_COUNT];
    object_table tables[TIDE_OBJECT_KIND_COUNT];
    clock_vector *events; /* [event - 1] */
    uint32_t event_count;
    uint64_t host_threads[TIDE_HAZARD_HOST_THREADS_MAX];
    uint32_t host_count;
};

static void clock_join(clock_vector *into, const clock_vector *from)
{
    for (uint32_t i = 0; i < TIDE_HAZARD_ACTOR_COUNT; i++)
        if (into->ticks[i] < from->ticks[i])
            into->ticks[i] = from->ticks[i];
}

static bool clock_is_within(const tide_hazard *hazard, const clock_vector *clock)
{
    for (uint32_t i = 0; i < TIDE_HAZARD_ACTOR_COUNT; i++)
        if (clock->ticks[i] > hazard->clocks[i].ticks[i])
            return false;
    return true;
}

static bool mark_is_within(const tide_hazard *hazard, const hazard_mark *mark)
{
    return mark->tick <= hazard->clocks[mark->actor].ticks[mark->actor];
}

static bool table_is_valid(const tide_hazard *hazard, const object_table *table)
{
    for (uint32_t i = 0; i < table->count; i++) {
        if (!mark_is_within(hazard, &table->objects[i].last_write))
            return false;
        for (uint32_t actor = 0; actor < TIDE_HAZARD_ACTOR_COUNT; actor++)
            if (!mark_is_within(hazard, &table->objects[i].reads[actor]))
                return false;
    }
    return true;
}

bool tide_hazard_is_valid(const tide_hazard *hazard)
{
    for (uint32_t i = 0; i < TIDE_HAZARD_ACTOR_COUNT; i++)
        if (!clock_is_within(hazard, &hazard->clocks[i]))
            return false;
    for (uint32_t i = 0; i < hazard->event_count; i++)
        if (!clock_is_within(hazard, &hazard->events[i]))
            return false;
    for (uint32_t kind = 0; kind < TIDE_OBJECT_KIND_COUNT; kind++)
        if (!table_is_valid(hazard, &hazard->tables[kind]))
            return false;
    return true;
}

tide_status tide_hazard_create(tide_hazard **hazard)
{
    tide_hazard *made = calloc(1, sizeof *made);
    if (made == NULL)
        return tide_fail(TIDE_ERROR_NO_MEMORY, "no memory for the hazard checker (%zu bytes)", sizeof *made);
    *hazard = made;
    return TIDE_OK;
}

void tide_hazard_destroy(tide_hazard *hazard)
{
    if (hazard == NULL)
        return;
    for (uint32_t kind = 0; kind < TIDE_OBJECT_KIND_COUNT; kind++)
        free(hazard->tables[kind].objects);
    free(hazard->events);
    free(hazard);
}

tide_status tide_hazard_objects_add(tide_hazard *hazard, tide_object_kind kind, const char *name,
                                    uint32_t count)
{
    assert((unsigned)kind < TIDE_OBJECT_KIND_COUNT);
    object_table *table = &hazard->tables[kind];
    size_t total = (size_t)table->count + count;
    hazard_object *objects = realloc(table->objects, (total > 0 ? total : 1) * sizeof *objects);
    if (objects == NULL)
        return tide_fail(TIDE_ERROR_NO_MEMORY, "no memory for the hazard checker's %zu objects of kind %s",
                         total, tide_object_kind_name(kind));
    memset(objects + table->count, 0, count * sizeof *objects);
    for (size_t i = table->count; i < total; i++)
        objects[i].name = name;
    table->objects = objects;
    table->count = (uint32_t)total;
    return TIDE_OK;
}

tide_status tide_hazard_events_reserve(tide_hazard *hazard, uint32_t count)
{
    if (count <= hazard->event_count)
        return TIDE_OK;
    clock_vector *events = realloc(hazard->events, count * sizeof *events);
    if (events == NULL)
        return tide_fail(TIDE_ERROR_NO_MEMORY, "no memory for the hazard checker's %" PRIu32 " events",
                         count);
    memset(events + hazard->event_count, 0, (count - hazard->event_count) * sizeof *events);
    hazard->events = events;
    hazard->event_count = count;
    return TIDE_OK;
}

tide_status tide_hazard_host_find(tide_hazard *hazard, uint64_t thread_number, tide_hazard_actor *host)
{
    uint32_t i = 0;
    while (i < hazard->host_count && hazard->host_threads[i] != thread_number)
        i++;
    if (i == TIDE_HAZARD_HOST_THREADS_MAX)
        return tide_fail(TIDE_ERROR_STATE, "the hazard checker follows %d host threads; this is one more",
                         TIDE_HAZARD_HOST_THREADS_MAX);
    if (i == hazard->host_count)
        hazard->host_threads[hazard->host_count++] = thread_number;
    *host = (tide_hazard_actor)TIDE_STREAM_COUNT + i;
    return TIDE_OK;
}

/* --- messages --- */

enum { TEXT_BYTES = 160 };

static void actor_text(tide_hazard_actor actor, char text[TEXT_BYTES])
{
    if (actor < TIDE_STREAM_COUNT)
        (void)snprintf(text, TEXT_BYTES, "stream %s", tide_stream_name((tide_stream)actor));
    else
        (void)snprintf(text, TEXT_BYTES, "host thread %" PRIu32, actor - (uint32_t)TIDE_STREAM_COUNT);
}

static void object_text(const hazard_object *object, tide_access access, char text[TEXT_BYTES])
{
    const char *kind = tide_object_kind_name((tide_object_kind)access.kind);
    if (object->name != NULL)
        (void)snprintf(text, TEXT_BYTES, "%s %s", kind, object->name);
    else
        (void)snprintf(text, TEXT_BYTES, "%s %" PRIu32, kind, access.index);
}

static tide_status violation(const hazard_object *object, tide_access access, const hazard_mark *now,
                             const hazard_mark *before, bool before_wrote)
{
    char now_actor[TEXT_BYTES], before_actor[TEXT_BYTES], what[TEXT_BYTES];
    actor_text(now->actor, now_actor);
    actor_text(before->actor, before_actor);
    object_text(object, access, what);
    return tide_fail(TIDE_ERROR_HAZARD,
                     "hazard: %s %" PRIu32 " on %s %s %s without being ordered after %s %" PRIu32
                     " on %s, which %s it",
                     now->label, now->tag, now_actor, access.write ? "writes" : "reads", what, before->label,
                     before->tag, before_actor, before_wrote ? "wrote" : "read");
}

/* --- checking --- */

static bool is_ordered(const clock_vector *clock, const hazard_mark *before)
{
    return before->tick <= clock->ticks[before->actor];
}

static tide_status access_check(const hazard_object *object, tide_access access, const clock_vector *clock,
                                const hazard_mark *now)
{
    if (!is_ordered(clock, &object->last_write))
        return violation(object, access, now, &object->last_write, true);
    if (!access.write)
        return TIDE_OK;
    for (uint32_t actor = 0; actor < TIDE_HAZARD_ACTOR_COUNT; actor++)
        if (!is_ordered(clock, &object->reads[actor]))
            return violation(object, access, now, &object->reads[actor], false);
    return TIDE_OK;
}

static void access_mark(hazard_object *object, tide_access access, const hazard_mark *now)
{
    if (access.write) {
        object->last_write = *now;
        memset(object->reads, 0, sizeof object->reads);
    } else {
        object->reads[now->actor] = *now;
    }
}

static hazard_object *object_find(const tide_hazard *hazard, tide_access access)
{
    if (access.kind >= TIDE_OBJECT_KIND_COUNT || access.index >= hazard->tables[access.kind].count)
        return NULL;
    return &hazard->tables[access.kind].objects[access.index];
}

/* Check the accesses of `work` by `actor`; `clock` is the actor's clock with the new tick. If all are
 * ordered, record the accesses and the clock. */
static tide_status act(tide_hazard *hazard, tide_hazard_actor actor, const clock_vector *clock,
                       const tide_work *work)
{
    hazard_mark now = {clock->ticks[actor], work->label, work->tag, actor};
    for (uint32_t i = 0; i < work->access_count; i++) {
        const hazard_object *object = object_find(hazard, work->accesses[i]);
        if (object == NULL)
            return tide_fail(TIDE_ERROR_ARGUMENT,
                             "%s %" PRIu32 " declares %s %" PRIu32 ", which does not exist", work->label,
                             work->tag, tide_object_kind_name((tide_object_kind)work->accesses[i].kind),
                             work->accesses[i].index);
        tide_status status = access_check(object, work->accesses[i], clock, &now);
        if (status != TIDE_OK)
            return status;
    }
    for (uint32_t i = 0; i < work->access_count; i++)
        access_mark(object_find(hazard, work->accesses[i]), work->accesses[i], &now);
    hazard->clocks[actor] = *clock;
    assert(clock_is_within(hazard, clock));
    return TIDE_OK;
}

tide_status tide_hazard_command(tide_hazard *hazard, tide_stream stream, tide_hazard_actor host,
                                const tide_work *work)
{
    assert((unsigned)stream < TIDE_STREAM_COUNT && host >= TIDE_STREAM_COUNT);
    clock_vector clock = hazard->clocks[stream];
    clock_join(&clock, &hazard->clocks[host]);
    clock.ticks[stream]++;
    return act(hazard, (tide_hazard_actor)stream, &clock, work);
}

tide_status tide_hazard_touch(tide_hazard *hazard, tide_hazard_actor host, const tide_work *work)
{
    assert(host >= TIDE_STREAM_COUNT && host < TIDE_HAZARD_ACTOR_COUNT);
    clock_vector clock = hazard->clocks[host];
    clock.ticks[host]++;
    return act(hazard, host, &clock, work);
}

tide_status tide_hazard_unmap(const tide_hazard *hazard, tide_hazard_actor host, uint32_t slot)
{
    static const tide_object_kind kinds[] = {TIDE_OBJECT_DEVICE_SLOT, TIDE_OBJECT_SLOT_GRADIENTS};
    const hazard_mark now = {hazard->clocks[host].ticks[host], "unmap", slot, host};
    tide_status status = TIDE_OK;
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0] && status == TIDE_OK; i++) {
        const tide_access access = tide_writes(kinds[i], slot);
        const hazard_object *object = object_find(hazard, access);
        if (object != NULL)
            status = access_check(object, access, &hazard->clocks[host], &now);
        else if (kinds[i] == TIDE_OBJECT_DEVICE_SLOT)
            status = tide_fail(TIDE_ERROR_ARGUMENT, "unmap of device slot %" PRIu32 ", which does not exist",
                               slot);
    }
    return status;
}

/* --- events --- */

void tide_hazard_record(tide_hazard *hazard, tide_event event, tide_stream stream, tide_hazard_actor host)
{
    assert(event > 0 && event <= hazard->event_count);
    clock_join(&hazard->clocks[stream], &hazard->clocks[host]);
    hazard->events[event - 1] = hazard->clocks[stream];
}

void tide_hazard_stream_wait(tide_hazard *hazard, tide_stream stream, tide_hazard_actor host,
                             tide_event event)
{
    assert(event > 0 && event <= hazard->event_count);
    clock_join(&hazard->clocks[stream], &hazard->clocks[host]);
    clock_join(&hazard->clocks[stream], &hazard->events[event - 1]);
    assert(clock_is_within(hazard, &hazard->clocks[stream]));
}

void tide_hazard_host_wait(tide_hazard *hazard, tide_hazard_actor host, tide_event event)
{
    assert(event > 0 && event <= hazard->event_count);
    clock_join(&hazard->clocks[host], &hazard->events[event - 1]);
    assert(clock_is_within(hazard, &hazard->clocks[host]));
}

void tide_hazard_host_wait_all(tide_hazard *hazard, tide_hazard_actor host)
{
    for (uint32_t actor = 0; actor < TIDE_HAZARD_ACTOR_COUNT; actor++)
        clock_join(&hazard->clocks[host], &hazard->clocks[actor]);
}

void tide_hazard_forget(tide_hazard *hazard)
{
    for (uint32_t kind = 0; kind < TIDE_OBJECT_KIND_COUNT; kind++)
        for (uint32_t i = 0; i < hazard->tables[kind].count; i++) {
            hazard_object *object = &hazard->tables[kind].objects[i];
            memset(&object->last_write, 0, sizeof object->last_write);
            memset(object->reads, 0, sizeof object->reads);
        }
    assert(tide_hazard_is_valid(hazard));
}
