/* Both policies evict the chunk with the largest `remoteness`, and of equal ones that with the lowest
 * number. They differ in the measure:
 *
 *   LRU          uses since the chunk's last use
 *   PATRICKSTAR  the schedule step of the next use in this step; the update counts as schedule step
 *                `schedule_step_count`, no further use as NEVER
 *
 * The search for a victim looks at every chunk, which is slow and simple.
 */
#include "tests/support/policies.h"

#include <assert.h>
#include <stdlib.h>

enum { WARM_STEPS = 4 };

#define NEVER UINT64_MAX

typedef struct place {
    bool on_device;
    bool modified;       /* the host's copy is older */
    bool update_pending; /* PATRICKSTAR: its gradients are complete */
    bool in_use;
    uint64_t remoteness;
    uint64_t first_in_step; /* schedule step of its first use in a step */
} place;

typedef struct machine {
    policy which;
    const tide_use_trace *trace;
    place *places; /* per chunk */
    /* Per use: the schedule step of its chunk's next use in the step, the update included. */
    uint64_t *next_in_step;
    uint32_t *open; /* uses that have begun and not ended, in order of their begin */
    uint32_t open_count;
    uint32_t free_slots;
    uint64_t clock; /* uses so far */
    policy_copies copies;
} machine;

const char *policy_name(policy which)
{
    static const char *const names[POLICY_COUNT] = {"LRU", "PatrickStar"};
    assert(which < POLICY_COUNT);
    return names[which];
}

/* --- eviction and fetch of a chunk --- */

static void release(machine *m, place *p)
{
    assert(p->on_device);
    p->on_device = p->modified = false;
    m->free_slots++;
}

static void evict(machine *m, place *p)
{
    m->copies.out += m->which == POLICY_PATRICKSTAR || p->modified;
    release(m, p);
}

static void evict_most_remote(machine *m)
{
    place *victim = NULL;
    for (uint32_t c = 0; c < m->trace->chunk_count; c++) {
        place *p = &m->places[c];
        if (p->on_device && !p->in_use && (!victim || p->remoteness > victim->remoteness))
            victim = p;
    }
    assert(victim); /* the slots are enough for every schedule step, so one chunk is not in use */
    evict(m, victim);
}

static void fetch(machine *m, place *p, const tide_trace_use *use)
{
    if (m->free_slots == 0)
        evict_most_remote(m);
    m->copies.in += !(use->flags & TIDE_TRACE_CREATES);
    p->on_device = true;
    m->free_slots--;
}

/* --- uses --- */

static void finish_use(machine *m, uint32_t u)
{
    const tide_trace_use *use = &m->trace->uses[u];
    place *p = &m->places[use->chunk];
    p->in_use = false;
    p->remoteness = m->which == POLICY_LRU ? NEVER - m->clock : m->next_in_step[u];
    m->clock++;
    p->modified |= (use->flags & (TIDE_TRACE_MODIFIES | TIDE_TRACE_CREATES)) != 0;
    if (use->flags & TIDE_TRACE_ENDS)
        release(m, p);
    else if (use->flags & TIDE_TRACE_LEAVES && m->which == POLICY_LRU)
        evict(m, p);
    else if (use->flags & TIDE_TRACE_LEAVES)
        p->update_pending = true;
}

static void finish_uses(machine *m, uint32_t schedule_step)
{
    uint32_t still_open = 0;
    for (uint32_t i = 0; i < m->open_count; i++) {
        const tide_trace_use *use = &m->trace->uses[m->open[i]];
        if (use->schedule_step + use->held_schedule_steps == schedule_step)
            finish_use(m, m->open[i]);
        else
            m->open[still_open++] = m->open[i];
    }
    m->open_count = still_open;
}

/* Marks all chunks of a schedule step as in use before it fetches the first, so that none of them is
 * evicted. Returns the index of the first use of a later schedule step. */
static uint32_t play_schedule_step(machine *m, uint32_t schedule_step, uint32_t first)
{
    const tide_use_trace *trace = m->trace;
    uint32_t end = first;
    for (; end < trace->use_count && trace->uses[end].schedule_step == schedule_step; end++) {
        m->places[trace->uses[end].chunk].in_use = true;
        m->open[m->open_count++] = end;
    }
    for (uint32_t u = first; u < end; u++)
        if (!m->places[trace->uses[u].chunk].on_device)
            fetch(m, &m->places[trace->uses[u].chunk], &trace->uses[u]);
    finish_uses(m, schedule_step);
    return end;
}

/* --- steps --- */

static void begin_step(machine *m)
{
    for (uint32_t c = 0; c < m->trace->chunk_count; c++)
        if (m->which == POLICY_PATRICKSTAR)
            m->places[c].remoteness = m->places[c].first_in_step;
}

/* All updates are one schedule step, on the host: chunks with pending updates leave the device. */
static void end_step(machine *m)
{
    for (uint32_t c = 0; c < m->trace->chunk_count; c++) {
        place *p = &m->places[c];
        if (p->update_pending && p->on_device)
            evict(m, p);
        p->update_pending = false;
    }
}

static void play_step(machine *m)
{
    uint32_t use = 0;
    begin_step(m);
    for (uint32_t schedule_step = 0; schedule_step < m->trace->schedule_step_count; schedule_step++)
        use = play_schedule_step(m, schedule_step, use);
    assert(m->open_count == 0);
    end_step(m);
}

/* Walks backwards, so that each use finds its chunk's next use. */
static void look_ahead(machine *m)
{
    for (uint32_t c = 0; c < m->trace->chunk_count; c++)
        m->places[c].first_in_step = NEVER;
    for (uint32_t u = m->trace->use_count; u-- > 0;) {
        const tide_trace_use *use = &m->trace->uses[u];
        place *p = &m->places[use->chunk];
        const bool updates = (use->flags & TIDE_TRACE_LEAVES) != 0;
        m->next_in_step[u] = updates ? m->trace->schedule_step_count : p->first_in_step;
        p->first_in_step = use->schedule_step;
    }
}

bool policy_play(policy which, const tide_use_trace *trace, uint32_t slots, policy_copies *copies)
{
    machine m = {.which = which, .trace = trace, .free_slots = slots};
    m.places = calloc(trace->chunk_count + 1u, sizeof *m.places);
    m.next_in_step = calloc(trace->use_count + 1u, sizeof *m.next_in_step);
    m.open = calloc(trace->chunk_count + 1u, sizeof *m.open);
    const bool enough = m.places && m.next_in_step && m.open;
    if (enough) {
        look_ahead(&m);
        for (int step = 0; step < WARM_STEPS; step++)
            play_step(&m);
        m.copies = (policy_copies){0};
        for (int step = 0; step < POLICY_STEPS; step++)
            play_step(&m);
        *copies = m.copies;
    }
    free(m.places);
    free(m.next_in_step);
    free(m.open);
    return enough;
}
