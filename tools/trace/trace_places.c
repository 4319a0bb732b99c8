/* Where chunks are: every slot of both tiers is a track. The chunk that is there is a span, its states are spans below it. */
#include "tools/trace/trace_picture.h"

#include <assert.h>
#include <stdio.h>

/* A slot, or a chunk's place in a tier, while somebody is there. */
typedef struct slot {
    uint32_t track; /* NONE until it is used */
    uint32_t chunk; /* NONE: free */
    uint64_t since_ns, state_since_ns;
    uint32_t state; /* a text */
} slot;

typedef struct tier {
    slot *slots;
    uint32_t *slot_of; /* each chunk's slot, NONE without */
    uint32_t slot_count, used;
    uint64_t used_bytes;
    uint32_t slots_counter, bytes_counter;
    tide_picture_lane group;
} tier;

typedef struct places {
    tide_picture *picture;
    tier tiers[TIDE_TIER_COUNT];
} places;

static void tier_count(tide_picture *p, const tier *of, uint64_t t_ns)
{
    tide_timeline_value(p->timeline, of->slots_counter, t_ns, of->used);
    tide_timeline_value(p->timeline, of->bytes_counter, t_ns, of->used_bytes);
}

static void state_end(tide_picture *p, const slot *in, uint64_t t_ns)
{
    tide_timeline_span(p->timeline, in->track, in->state_since_ns, t_ns, in->state, 0);
}

static void slot_leave(tide_picture *p, tier *of, uint32_t number, uint64_t t_ns)
{
    slot *left = &of->slots[number];
    const uint32_t chunk = left->chunk;
    assert(chunk != TIDE_TRACE_NONE && of->slot_of[chunk] == number);
    tide_timeline_span(p->timeline, left->track, left->since_ns, t_ns, tide_picture_chunk_text(p, chunk), 0);
    state_end(p, left, t_ns);
    left->chunk = TIDE_TRACE_NONE;
    of->slot_of[chunk] = TIDE_TRACE_NONE;
    of->used--;
    of->used_bytes -= p->model->chunks[chunk].bytes;
}

static void slot_enter(tide_picture *p, tier *of, uint32_t number, uint32_t chunk, uint64_t t_ns,
                       uint32_t state)
{
    slot *in = &of->slots[number];
    char text[32];
    if (in->track == TIDE_TRACE_NONE) {
        snprintf(text, sizeof text, "slot %u", number);
        in->track = tide_timeline_track(p->timeline, p->tracks[of->group], text, number, true);
    }
    in->chunk = chunk;
    in->since_ns = in->state_since_ns = t_ns;
    in->state = state;
    of->slot_of[chunk] = number;
    of->used++;
    of->used_bytes += p->model->chunks[chunk].bytes;
}

/* The chunk is in the slot (NONE: in none of the tier) in the state from now on. Who was there before has left. */
static void place_set(tide_picture *p, tier *of, uint32_t chunk, uint32_t number, uint64_t t_ns,
                      uint32_t state)
{
    const uint32_t before = of->slot_of[chunk];
    if (before != number && before != TIDE_TRACE_NONE)
        slot_leave(p, of, before, t_ns);
    if (number == TIDE_TRACE_NONE) {
        if (before != TIDE_TRACE_NONE)
            tier_count(p, of, t_ns);
        return;
    }
    slot *in = &of->slots[number];
    if (before != number) {
        if (in->chunk != TIDE_TRACE_NONE)
            slot_leave(p, of, number, t_ns);
        slot_enter(p, of, number, chunk, t_ns, state);
        tier_count(p, of, t_ns);
    } else if (in->state != state) {
        state_end(p, in, t_ns);
        in->state = state;
        in->state_since_ns = t_ns;
    }
}

static uint32_t device_state(tide_picture *p, const tide_trace_event *event)
{
    char text[96];
    snprintf(text, sizeof text, "%s: %s%s%s", tide_trace_stand_word(event->device),
             tide_trace_content_word(event->content), event->pinned ? ", pinned" : "",
             event->pending ? ", update to come" : "");
    return tide_timeline_text(p->timeline, text);
}

static void chunk_set(places *all, const tide_trace_event *event)
{
    tide_picture *p = all->picture;
    const uint32_t device_slot = event->device == TIDE_STAND_NONE ? TIDE_TRACE_NONE : event->device_slot;
    const uint32_t host_slot = event->host == TIDE_STAND_NONE ? TIDE_TRACE_NONE : event->host_slot;
    place_set(p, &all->tiers[TIDE_TIER_DEVICE], event->chunk, device_slot, event->begin_ns,
              device_state(p, event));
    place_set(p, &all->tiers[TIDE_TIER_HOST], event->chunk, host_slot, event->begin_ns,
              tide_timeline_text(p->timeline, tide_trace_stand_word(event->host)));
}

/* Nothing is known from now on. */
static void places_end(places *all, uint64_t t_ns)
{
    for (int i = 0; i < TIDE_TIER_COUNT; i++) {
        for (uint32_t j = 0; j < all->tiers[i].slot_count; j++)
            if (all->tiers[i].slots[j].chunk != TIDE_TRACE_NONE)
                slot_leave(all->picture, &all->tiers[i], j, t_ns);
        tier_count(all->picture, &all->tiers[i], t_ns);
    }
}

/* A snapshot says where every chunk is. Where passes are missing before it, what was told before holds no more from the last
 * thing that was told. */
static void places_draw(places *all)
{
    const tide_trace_model *model = all->picture->model;
    uint64_t pass = 0, told_ns = all->picture->begin_ns;
    for (uint64_t i = 0; i < model->event_count; i++) {
        const tide_trace_event *event = &model->events[i];
        if (event->kind == TIDE_TRACE_SNAPSHOT && event->pass > pass + 1)
            places_end(all, told_ns < event->begin_ns ? told_ns : event->begin_ns);
        if (event->kind == TIDE_TRACE_SNAPSHOT || event->kind == TIDE_TRACE_CHUNK)
            chunk_set(all, event);
        pass = event->pass > pass ? event->pass : pass;
        told_ns = event->end_ns > told_ns ? event->end_ns : told_ns;
    }
    places_end(all, all->picture->end_ns);
}

/* The counters are drawn to one scale. */
static void counters_add(tide_picture *p, tier *of, tide_picture_lane memory, uint64_t budget_bytes)
{
    const uint32_t parent = p->tracks[memory];
    const char *axis = memory == TIDE_LANE_DEVICE_MEMORY ? "device memory" : "host memory";
    of->slots_counter =
        tide_timeline_counter(p->timeline, parent, "slots in use", 0, TIDE_TIMELINE_COUNT, NULL);
    of->bytes_counter =
        tide_timeline_counter(p->timeline, parent, "bytes in slots", 1, TIDE_TIMELINE_BYTES, axis);
    uint32_t budget = tide_timeline_counter(p->timeline, parent, "budget", 2, TIDE_TIMELINE_BYTES, axis);
    tide_timeline_value(p->timeline, budget, p->begin_ns, budget_bytes);
    tide_timeline_value(p->timeline, budget, p->end_ns, budget_bytes);
}

/* How many slots events name: a trace may claim more than there could ever be. */
static uint32_t slots_named(const tide_trace_model *model, tide_tier of)
{
    uint32_t count = 0;
    for (uint64_t i = 0; i < model->event_count; i++) {
        const tide_trace_event *event = &model->events[i];
        const uint32_t named = of == TIDE_TIER_DEVICE ? event->device_slot : event->host_slot;
        const bool tells = event->kind == TIDE_TRACE_SNAPSHOT || event->kind == TIDE_TRACE_CHUNK;
        if (tells && named != TIDE_TRACE_NONE && named >= count)
            count = named + 1;
    }
    return count;
}

static bool tier_make(tide_picture *p, tier *made, uint32_t slots, tide_picture_lane group)
{
    *made = (tier){.slot_count = slots, .group = group};
    made->slots = tide_arrays_add(&p->memory, slots, sizeof *made->slots);
    made->slot_of = tide_arrays_add(&p->memory, p->model->chunk_count, sizeof *made->slot_of);
    if (p->memory.lacks)
        return false;
    for (uint32_t i = 0; i < slots; i++)
        made->slots[i] = (slot){.track = TIDE_TRACE_NONE, .chunk = TIDE_TRACE_NONE};
    for (uint32_t i = 0; i < p->model->chunk_count; i++)
        made->slot_of[i] = TIDE_TRACE_NONE;
    return true;
}

bool tide_picture_places(tide_picture *p)
{
    const tide_trace_model *model = p->model;
    places all = {.picture = p};
    if (!tier_make(p, &all.tiers[TIDE_TIER_DEVICE], slots_named(model, TIDE_TIER_DEVICE),
                   TIDE_LANE_DEVICE_SLOTS) ||
        !tier_make(p, &all.tiers[TIDE_TIER_HOST], slots_named(model, TIDE_TIER_HOST), TIDE_LANE_HOST_SLOTS))
        return false;
    counters_add(p, &all.tiers[TIDE_TIER_DEVICE], TIDE_LANE_DEVICE_MEMORY, model->device_memory_bytes);
    counters_add(p, &all.tiers[TIDE_TIER_HOST], TIDE_LANE_HOST_MEMORY, model->host_memory_bytes);
    places_draw(&all);
    return true;
}
