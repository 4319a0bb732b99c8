#include "tests/chunk/plan_replay.h"

#include <stdbool.h>

enum { EARLY_STEPS = 4 };

/* --- play a plan --- */

typedef struct replay {
    const planned *made;
    bool on_device[PLANNED_CHUNKS_MAX];
    bool modified[PLANNED_CHUNKS_MAX]; /* the host has no copy with the same content */
    bool dead[PLANNED_CHUNKS_MAX];
    bool stale[PLANNED_CHUNKS_MAX]; /* the host has changed it while it waits in its slot */
    bool listed[PLANNED_USES_MAX];  /* the plan's fetches include this use */
    uint32_t on_device_count;
    uint64_t in, out;
} replay;

static bool ends_at(const tide_trace_use *use, uint32_t schedule_step)
{
    return use->schedule_step + use->held_schedule_steps == schedule_step;
}

static void bring(replay *r, uint32_t u)
{
    const tide_trace_use *use = &r->made->trace.uses[u];
    const bool comes = !r->on_device[use->chunk], stale = r->stale[use->chunk];
    CHECK(r->listed[u] == (comes || stale), r->made);
    CHECK(r->made->plan->in_place[u] == stale, r->made);
    r->in += r->listed[u] && !(use->flags & TIDE_TRACE_CREATES);
    r->on_device[use->chunk] = true;
    r->stale[use->chunk] = false;
    r->on_device_count += comes;
}

static void finish(replay *r, uint32_t u)
{
    const tide_trace_use *use = &r->made->trace.uses[u];
    const uint32_t flags = use->flags, chunk = use->chunk;
    const bool leaves = r->made->plan->leaves[u];
    CHECK(r->on_device[chunk] && !r->stale[chunk], r->made);
    r->dead[chunk] = (flags & TIDE_TRACE_ENDS) != 0;
    if (flags & (TIDE_TRACE_MODIFIES | TIDE_TRACE_CREATES))
        r->modified[chunk] = true;
    if (leaves || flags & TIDE_TRACE_LEAVES) {
        r->out += r->modified[chunk] && !r->dead[chunk];
        r->modified[chunk] = false;
    }
    r->on_device[chunk] = !leaves;
    r->stale[chunk] = !leaves && flags & TIDE_TRACE_LEAVES;
    r->on_device_count -= leaves;
}

static void replay_step(replay *r)
{
    const tide_use_trace *trace = &r->made->trace;
    r->in = r->out = 0;
    for (uint32_t schedule_step = 0; schedule_step < trace->schedule_step_count; schedule_step++) {
        for (uint32_t u = 0; u < trace->use_count; u++)
            if (trace->uses[u].schedule_step == schedule_step)
                bring(r, u);
        CHECK(r->on_device_count <= r->made->slots, r->made);
        for (uint32_t u = 0; u < trace->use_count; u++)
            if (ends_at(&trace->uses[u], schedule_step))
                finish(r, u);
    }
}

/* Find the chunks that stay in their slots after their last use of a step and, of these, those that the host
 * then changes. */
static uint32_t find_kept(const planned *made, bool *kept, bool *stale)
{
    uint32_t count = 0;
    for (uint32_t u = 0; u < made->trace.use_count; u++) {
        const tide_trace_use *use = &made->trace.uses[u];
        kept[use->chunk] = !made->plan->leaves[u];
        stale[use->chunk] = kept[use->chunk] && use->flags & TIDE_TRACE_LEAVES;
    }
    for (uint32_t c = 0; c < made->trace.chunk_count; c++)
        count += kept[c];
    CHECK(count <= made->slots && made->plan->free_slots == made->slots - count, made);
    return count;
}

static void list_fetches(const planned *made, bool *listed)
{
    for (uint32_t i = 0; i < made->plan->fetch_count; i++) {
        CHECK(made->plan->fetches[i] < made->trace.use_count, made);
        CHECK(i == 0 || made->plan->fetches[i - 1] < made->plan->fetches[i], made);
        listed[made->plan->fetches[i]] = true;
    }
}

void check_by_replay(const planned *made)
{
    replay r = {.made = made};
    CHECK(made->plan->use_count == made->trace.use_count, made);
    list_fetches(made, r.listed);
    r.on_device_count = find_kept(made, r.on_device, r.stale);
    replay_step(&r);
    replay_step(&r);
    CHECK(r.in == made->plan->copies_in, made);
    CHECK(r.out == made->plan->copies_out, made);
}

/* --- fetch early --- */

/* Fetches are numbered through all steps: number n is fetch n % fetch_count of step n / fetch_count. */
typedef struct early {
    const planned *made;
    bool on_device[PLANNED_CHUNKS_MAX]; /* the chunk has a slot: it is there or being fetched */
    bool stale[PLANNED_CHUNKS_MAX];
    bool *started;
    uint32_t free_slots;
    uint32_t first_open; /* all fetches with lower numbers have started */
    uint32_t fetch_total;
    uint64_t before_need; /* fetches that started before the schedule step that needs them */
} early;

/* Does fetch number n start now? If it needs a slot and must wait for one, it is counted in `waiting`. */
static bool may_start(const early *e, uint32_t n, uint32_t *waiting)
{
    const tide_plan *plan = e->made->plan;
    const uint32_t u = plan->fetches[n % plan->fetch_count];
    const tide_chunk chunk = e->made->trace.uses[u].chunk;
    if (plan->in_place[u])
        return e->stale[chunk];
    if (!e->on_device[chunk] && e->free_slots > *waiting)
        return true;
    ++*waiting;
    return false;
}

/* Start all fetches that may start, looking one step ahead. A fetch starts when there are more free slots
 * than earlier fetches that still wait for one. A fetch in place starts as soon as the host has changed the
 * chunk. */
static void start_fetches(early *e)
{
    const tide_plan *plan = e->made->plan;
    uint32_t waiting = 0;
    while (e->first_open < e->fetch_total && e->started[e->first_open])
        e->first_open++;
    for (uint32_t n = e->first_open; n < e->fetch_total && n < e->first_open + plan->fetch_count; n++) {
        const tide_chunk chunk = e->made->trace.uses[plan->fetches[n % plan->fetch_count]].chunk;
        if (e->started[n] || !may_start(e, n, &waiting))
            continue;
        e->free_slots -= !e->on_device[chunk];
        e->on_device[chunk] = e->started[n] = true;
        e->stale[chunk] = false;
    }
}

static void play_early(early *e, uint32_t schedule_step)
{
    const tide_use_trace *trace = &e->made->trace;
    for (uint32_t u = 0; u < trace->use_count; u++)
        if (trace->uses[u].schedule_step == schedule_step)
            CHECK(e->on_device[trace->uses[u].chunk] && !e->stale[trace->uses[u].chunk], e->made);
    for (uint32_t u = 0; u < trace->use_count; u++) {
        const tide_trace_use *use = &trace->uses[u];
        if (!ends_at(use, schedule_step))
            continue;
        e->on_device[use->chunk] = !e->made->plan->leaves[u];
        e->stale[use->chunk] = e->on_device[use->chunk] && use->flags & TIDE_TRACE_LEAVES;
        e->free_slots += e->made->plan->leaves[u];
    }
    start_fetches(e);
}

void check_early_fetches(const planned *made)
{
    early e = {.made = made, .fetch_total = EARLY_STEPS * made->plan->fetch_count};
    bool *started = test_calloc(e.fetch_total + 1u, sizeof *started);
    e.started = started;
    e.free_slots = made->slots - find_kept(made, e.on_device, e.stale);
    start_fetches(&e);
    for (int step = 0; step < EARLY_STEPS; step++)
        for (uint32_t schedule_step = 0; schedule_step < made->trace.schedule_step_count; schedule_step++)
            play_early(&e, schedule_step);
    test_free(started);
}

void check_pairing(const planned *made)
{
    const tide_use_trace *trace = &made->trace;
    uint32_t taken = 0;
    for (uint32_t i = 0; i < made->plan->fetch_count; i++) {
        const uint32_t fetch = made->plan->fetches[i], needed_at = trace->uses[fetch].schedule_step;
        uint32_t released = 0;
        if (made->plan->in_place[fetch])
            continue;
        for (uint32_t u = 0; u < trace->use_count; u++)
            released += made->plan->leaves[u] &&
                        trace->uses[u].schedule_step + trace->uses[u].held_schedule_steps < needed_at;
        CHECK(taken < made->plan->free_slots + released, made);
        taken++;
    }
}
