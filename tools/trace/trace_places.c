/* Where chunks are: a track for each slot of both tiers, with a span for each chunk that was in the slot
 * and, below it, spans for the chunk's states; and counters of the slots in use and the bytes in them. */
#include "src/trace/trace_fields.h"
#include "tools/trace/trace_picture.h"

#include <assert.h>

/* Slots are drawn below all other tracks. */
enum { DEVICE_SLOTS_RANK = 10 };

/* A slot while a chunk is in it. */
typedef struct slot {
    uint32_t track; /* NONE until it is used */
    uint32_t chunk; /* NONE: free */
    uint64_t since_ns;
    const tide_trace_event *state; /* the first event of the chunk's present state */
} slot;

typedef struct place_tier {
    tide_tier tier;
    slot *slots;
    uint32_t *slot_of; /* each chunk's slot, NONE without */
    uint32_t slot_count, used;
    uint64_t used_bytes;
} place_tier;

static void counters_tell(tide_picture *p, const place_tier *of, uint64_t t_ns)
{
    const int first = (int)of->tier * TIDE_COUNTERS_OF_TIER;
    tide_picture_value_add(p, (tide_picture_counter)(first + TIDE_COUNTER_SLOTS), t_ns, of->used);
    tide_picture_value_add(p, (tide_picture_counter)(first + TIDE_COUNTER_BYTES), t_ns, of->used_bytes);
}

static void span_add(tide_picture *p, const slot *in, uint64_t begin_ns, uint64_t end_ns,
                     tide_picture_label label)
{
    (void)tide_picture_span_add(p, &(tide_picture_span){.begin_ns = begin_ns,
                                                        .end_ns = end_ns,
                                                        .event = (uint64_t)(in->state - p->model->events),
                                                        .track = in->track,
                                                        .label = label});
}

static void state_end(tide_picture *p, const place_tier *of, const slot *in, uint64_t t_ns)
{
    span_add(p, in, in->state->begin_ns, t_ns,
             of->tier == TIDE_TIER_DEVICE ? TIDE_LABEL_DEVICE_STATE : TIDE_LABEL_HOST_STATE);
}

static bool is_same_state(tide_tier tier, const tide_trace_event *a, const tide_trace_event *b)
{
    if (tier == TIDE_TIER_HOST)
        return a->host == b->host;
    return a->device == b->device && a->content == b->content && a->pinned == b->pinned &&
           a->pending == b->pending;
}

static void slot_clear(tide_picture *p, place_tier *of, uint32_t number, uint64_t t_ns)
{
    slot *cleared = &of->slots[number];
    const uint32_t chunk = cleared->chunk;
    assert(chunk != TIDE_TRACE_NONE && of->slot_of[chunk] == number);
    span_add(p, cleared, cleared->since_ns, t_ns, TIDE_LABEL_CHUNK);
    state_end(p, of, cleared, t_ns);
    cleared->chunk = TIDE_TRACE_NONE;
    of->slot_of[chunk] = TIDE_TRACE_NONE;
    of->used--;
    of->used_bytes -= p->model->chunks[chunk].bytes;
}

static void slot_fill(tide_picture *p, place_tier *of, uint32_t number, const tide_trace_event *event)
{
    slot *filled = &of->slots[number];
    char name[32];
    if (filled->track == TIDE_TRACE_NONE) {
        (void)snprintf(name, sizeof name, "%s slot %u", tide_trace_tier_word(of->tier), number);
        filled->track =
            tide_picture_track_add(p, name, (DEVICE_SLOTS_RANK + (uint64_t)of->tier) << 32 | number, true);
    }
    filled->chunk = event->chunk;
    filled->since_ns = event->begin_ns;
    filled->state = event;
    of->slot_of[event->chunk] = number;
    of->used++;
    of->used_bytes += p->model->chunks[event->chunk].bytes;
}

/* From this event on, its chunk is in the slot `number` (NONE: in no slot of the tier). If another chunk was
 * there, it has been evicted. */
static void place_set(tide_picture *p, place_tier *of, uint32_t number, const tide_trace_event *event)
{
    const uint32_t before = of->slot_of[event->chunk];
    if (before == number) {
        slot *in = number != TIDE_TRACE_NONE ? &of->slots[number] : NULL;
        if (in == NULL || is_same_state(of->tier, in->state, event))
            return;
        state_end(p, of, in, event->begin_ns);
        in->state = event;
        return;
    }
    if (before != TIDE_TRACE_NONE)
        slot_clear(p, of, before, event->begin_ns);
    if (number != TIDE_TRACE_NONE && of->slots[number].chunk != TIDE_TRACE_NONE)
        slot_clear(p, of, number, event->begin_ns);
    if (number != TIDE_TRACE_NONE)
        slot_fill(p, of, number, event);
    counters_tell(p, of, event->begin_ns);
}

static void tier_end(tide_picture *p, place_tier *of, uint64_t t_ns)
{
    for (uint32_t i = 0; i < of->slot_count; i++)
        if (of->slots[i].chunk != TIDE_TRACE_NONE)
            slot_clear(p, of, i, t_ns);
    counters_tell(p, of, t_ns);
}

static bool tells_place(const tide_trace_event *event)
{
    return event->kind == TIDE_TRACE_SNAPSHOT || event->kind == TIDE_TRACE_CHUNK;
}

static uint32_t slot_of(const tide_trace_event *event, tide_tier tier)
{
    const tide_stand stand = tier == TIDE_TIER_DEVICE ? event->device : event->host;
    if (stand == TIDE_STAND_NONE)
        return TIDE_TRACE_NONE;
    return tier == TIDE_TIER_DEVICE ? event->device_slot : event->host_slot;
}

/* Go through the events that say where a chunk is. Snapshots say it of every chunk. If the trace lacks the
 * passes just before a snapshot, all places known until then end with the last event before the gap. */
static void places_draw(tide_picture *p, place_tier *of)
{
    const tide_trace_model *model = p->model;
    uint64_t pass = 0, last_ns = p->begin_ns;
    for (uint64_t i = 0; i < model->event_count; i++) {
        const tide_trace_event *event = &model->events[i];
        if (event->kind == TIDE_TRACE_SNAPSHOT && event->pass > pass + 1)
            tier_end(p, of, last_ns < event->begin_ns ? last_ns : event->begin_ns);
        if (tells_place(event))
            place_set(p, of, slot_of(event, of->tier), event);
        pass = event->pass > pass ? event->pass : pass;
        last_ns = event->end_ns > last_ns ? event->end_ns : last_ns;
    }
    tier_end(p, of, p->end_ns);
}

/* The number of slots that events name. A damaged first line of the trace may give a number for which there
 * is no memory. */
static uint32_t slots_named(const tide_trace_model *model, tide_tier tier)
{
    uint32_t count = 0;
    for (uint64_t i = 0; i < model->event_count; i++) {
        const uint32_t named =
            tells_place(&model->events[i]) ? slot_of(&model->events[i], tier) : TIDE_TRACE_NONE;
        if (named != TIDE_TRACE_NONE && named >= count)
            count = named + 1;
    }
    return count;
}

static void tier_draw(tide_picture *p, tide_tier tier, uint64_t budget_bytes)
{
    const uint32_t slots = slots_named(p->model, tier);
    const tide_picture_counter budget =
        (tide_picture_counter)((int)tier * TIDE_COUNTERS_OF_TIER + TIDE_COUNTER_BUDGET);
    place_tier drawn = {.tier = tier, .slot_count = slots};
    drawn.slots = tide_arrays_add(&p->memory, slots, sizeof *drawn.slots);
    drawn.slot_of = tide_arrays_add(&p->memory, p->model->chunk_count, sizeof *drawn.slot_of);
    if (p->memory.lacks)
        return;
    for (uint32_t i = 0; i < slots; i++)
        drawn.slots[i] = (slot){.track = TIDE_TRACE_NONE, .chunk = TIDE_TRACE_NONE};
    for (uint32_t i = 0; i < p->model->chunk_count; i++)
        drawn.slot_of[i] = TIDE_TRACE_NONE;
    tide_picture_value_add(p, budget, p->begin_ns, budget_bytes);
    tide_picture_value_add(p, budget, p->end_ns, budget_bytes);
    places_draw(p, &drawn);
}

void tide_picture_places(tide_picture *p)
{
    tier_draw(p, TIDE_TIER_DEVICE, p->model->device_memory_bytes);
    tier_draw(p, TIDE_TIER_HOST, p->model->host_memory_bytes);
}
