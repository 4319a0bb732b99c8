#include "tests/support/small_traces.h"

#include "chunk/manager_internal.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

enum {
    LARGE_CHUNKS_MAX = 256,
    LARGE_USES_MAX = 2048,
    /* A state is two sets of chunks: on the device, and modified there. */
    STATES = 1 << (2 * SMALL_CHUNKS_MAX),
    /* The search ends when V has grown as much as in the period before so many times in a row. */
    SAME_GROWTHS = 2,
    PERIODS_MAX = 40,
};

typedef enum kind { READ_ONLY = 0, TRAINED, MIXED, KEPT, ACTIVATION, KINDS } kind;

const trace_limits small_limits = {SMALL_CHUNKS_MAX, SMALL_USES_MAX, 2};

/* --- drawing --- */

typedef struct drawing {
    uint64_t random;
    const trace_limits *limits;
    kind kinds[LARGE_CHUNKS_MAX];
    uint32_t uses[LARGE_CHUNKS_MAX]; /* the number of uses that the chunk gets */
    uint32_t done[LARGE_CHUNKS_MAX];
    bool twice[LARGE_CHUNKS_MAX]; /* it is an activation that is created and ended twice a step */
    uint32_t chunk_count;
    uint32_t count;
    tide_chunk order[LARGE_USES_MAX];
} drawing;

/* The generator splitmix64. */
static uint32_t draw(drawing *d, uint32_t below)
{
    d->random += UINT64_C(0x9e3779b97f4a7c15);
    uint64_t x = d->random;
    x = (x ^ x >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ x >> 27) * UINT64_C(0x94d049bb133111eb);
    return (uint32_t)((x ^ x >> 31) >> 32) % below;
}

static void draw_chunks(drawing *d)
{
    d->chunk_count = 3 + draw(d, d->limits->chunks - 2);
    for (uint32_t c = 0; c < d->chunk_count; c++) {
        d->kinds[c] = (kind)draw(d, KINDS);
        uint32_t uses = 1 + draw(d, 3) + (d->kinds[c] == ACTIVATION);
        d->twice[c] = uses == 4 && draw(d, 2);
        if (draw(d, 16) == 0 && d->count > 0)
            uses = 0;
        if (d->count + uses > d->limits->uses)
            uses = 0;
        d->uses[c] = uses;
        for (uint32_t i = 0; i < uses; i++)
            d->order[d->count++] = c;
    }
}

static void swap(drawing *d, uint32_t i, uint32_t k)
{
    const tide_chunk held = d->order[i];
    d->order[i] = d->order[k];
    d->order[k] = held;
}

static void order_at_random(drawing *d)
{
    for (uint32_t i = d->count; i > 1; i--)
        swap(d, i - 1, draw(d, i));
}

/* Orders the first uses by rising chunk number and the last ones by falling number; the others lie
 * anywhere between. */
static void order_as_a_step(drawing *d)
{
    uint32_t at = 0, middle = 0;
    for (tide_chunk c = 0; c < d->chunk_count; c++)
        if (d->uses[c] > 0)
            d->order[at++] = c;
    middle = at;
    for (tide_chunk c = 0; c < d->chunk_count; c++)
        for (uint32_t i = 2; i < d->uses[c]; i++)
            d->order[at++] = c;
    for (uint32_t i = at; i > middle + 1; i--)
        swap(d, i - 1, middle + draw(d, i - middle));
    for (tide_chunk c = d->chunk_count; c-- > 0;)
        if (d->uses[c] > 1)
            d->order[at++] = c;
    assert(at == d->count);
}

static uint32_t draw_flags(drawing *d, tide_chunk chunk)
{
    const uint32_t done = d->done[chunk];
    const bool first = done == 0 || (d->twice[chunk] && done == 2);
    const bool last = done + 1 == d->uses[chunk] || (d->twice[chunk] && done == 1);
    const uint32_t perhaps = draw(d, 2) ? TIDE_TRACE_MODIFIES : 0;
    switch (d->kinds[chunk]) {
    case TRAINED:
        return last ? TIDE_TRACE_MODIFIES | TIDE_TRACE_LEAVES : 0;
    case MIXED:
        return last ? TIDE_TRACE_MODIFIES | TIDE_TRACE_LEAVES : perhaps;
    case KEPT:
        return last ? TIDE_TRACE_MODIFIES : 0;
    case ACTIVATION:
        return (first ? TIDE_TRACE_CREATES | TIDE_TRACE_MODIFIES : perhaps) | (last ? TIDE_TRACE_ENDS : 0);
    default:
        return 0;
    }
}

static bool is_in_schedule_step(const tide_use_trace *trace, uint32_t schedule_step, tide_chunk chunk)
{
    for (uint32_t u = trace->use_count; u-- > 0 && trace->uses[u].schedule_step == schedule_step;)
        if (trace->uses[u].chunk == chunk)
            return true;
    return false;
}

static void cut_schedule_steps(drawing *d, tide_use_trace *trace)
{
    uint32_t width = 0, wanted = 0;
    trace->schedule_step_count = trace->use_count = 0;
    trace->chunk_count = d->chunk_count;
    for (uint32_t i = 0; i < d->count; i++) {
        const tide_chunk chunk = d->order[i];
        if (width == wanted || is_in_schedule_step(trace, trace->schedule_step_count - 1, chunk)) {
            trace->schedule_step_count++;
            width = 0;
            wanted = 1 + draw(d, d->limits->schedule_step_chunks);
        }
        const uint32_t schedule_step = trace->schedule_step_count - 1, flags = draw_flags(d, chunk);
        trace->uses[trace->use_count++] = (tide_trace_use){schedule_step, chunk, flags, 0};
        d->done[chunk]++;
        width++;
    }
}

static bool lasts_through(const tide_trace_use *use, uint32_t schedule_step)
{
    return use->schedule_step <= schedule_step &&
           schedule_step <= use->schedule_step + use->held_schedule_steps;
}

/* Returns the number of chunks in use at a schedule step; UINT32_MAX if `chunk` is one of them. */
static uint32_t crowd_at(const tide_use_trace *trace, uint32_t schedule_step, tide_chunk chunk)
{
    uint32_t crowd = 0;
    for (uint32_t u = 0; u < trace->use_count; u++) {
        if (!lasts_through(&trace->uses[u], schedule_step))
            continue;
        if (trace->uses[u].chunk == chunk)
            return UINT32_MAX;
        crowd++;
    }
    return crowd;
}

/* Lets some uses last several schedule steps, as far as the limits and their chunks' next uses allow. */
static void hold_some(drawing *d, tide_use_trace *trace)
{
    for (uint32_t u = 0; u < trace->use_count; u++) {
        tide_trace_use *use = &trace->uses[u];
        uint32_t wanted = draw(d, 4) ? 0 : 1 + draw(d, 3);
        for (; wanted > 0; wanted--) {
            const uint32_t then = use->schedule_step + use->held_schedule_steps + 1;
            if (then == trace->schedule_step_count ||
                crowd_at(trace, then, use->chunk) >= d->limits->schedule_step_chunks)
                break;
            use->held_schedule_steps++;
        }
    }
}

static uint32_t widest_crowd(const tide_use_trace *trace)
{
    uint32_t widest = 0;
    for (uint32_t m = 0; m < trace->schedule_step_count; m++) {
        const uint32_t crowd = crowd_at(trace, m, TIDE_CHUNK_NONE);
        widest = crowd > widest ? crowd : widest;
    }
    return widest;
}

void trace_draw(uint64_t seed, const trace_limits *limits, tide_use_trace *trace, uint32_t *slots)
{
    drawing d = {.random = seed, .limits = limits};
    assert(limits->chunks >= 3 && limits->chunks <= LARGE_CHUNKS_MAX && limits->uses <= LARGE_USES_MAX);
    draw_chunks(&d);
    if (draw(&d, 2))
        order_at_random(&d);
    else
        order_as_a_step(&d);
    cut_schedule_steps(&d, trace);
    if (draw(&d, 2))
        hold_some(&d, trace);
    const uint32_t widest = widest_crowd(trace), least = widest < 2 ? 2 : widest;
    const uint32_t most = limits->chunks <= SMALL_CHUNKS_MAX ? 3 : d.chunk_count + 1;
    *slots = least + draw(&d, most > least ? most - least + 1 : 1);
}

bool trace_rotate(const tide_use_trace *trace, uint32_t schedule_steps, tide_use_trace *rotated)
{
    uint32_t begin = 0;
    assert(schedule_steps < trace->schedule_step_count);
    for (uint32_t u = 0; u < trace->use_count; u++) {
        begin += trace->uses[u].schedule_step < schedule_steps;
        if (trace->uses[u].schedule_step < schedule_steps && lasts_through(&trace->uses[u], schedule_steps))
            return false;
    }
    rotated->schedule_step_count = trace->schedule_step_count;
    rotated->chunk_count = trace->chunk_count;
    rotated->use_count = trace->use_count;
    for (uint32_t i = 0; i < trace->use_count; i++) {
        tide_trace_use use = trace->uses[(begin + i) % trace->use_count];
        use.schedule_step =
            (use.schedule_step + trace->schedule_step_count - schedule_steps) % trace->schedule_step_count;
        rotated->uses[i] = use;
    }
    return true;
}

/* --- the optimum --- */

typedef struct search {
    const tide_use_trace *trace;
    uint32_t slots;
    uint32_t in, out;          /* the cost of a copy in and of a copy out */
    uint32_t possible[STATES]; /* the numbers of states that fit into the slots */
    uint32_t possible_count;
    uint32_t cost[2][STATES];
} search;

static uint32_t state_of(uint32_t device, uint32_t modified)
{
    return device << SMALL_CHUNKS_MAX | modified;
}

static void list_possible(search *s)
{
    for (uint32_t state = 0; state < STATES; state++) {
        const uint32_t device = state >> SMALL_CHUNKS_MAX, modified = state & ((1u << SMALL_CHUNKS_MAX) - 1);
        if ((uint32_t)__builtin_popcount(device) <= s->slots && (modified & ~device) == 0)
            s->possible[s->possible_count++] = state;
    }
}

/* A schedule step as sets of chunks. */
typedef struct schedule_step_sets {
    uint32_t begins, brings; /* chunks whose use begins; those of them that are copied in */
    uint32_t finishes;       /* chunks whose use ends; subsets of these: */
    uint32_t modifies, ends, leaves;
} schedule_step_sets;

static schedule_step_sets collect_schedule_step(const tide_use_trace *trace, uint32_t schedule_step)
{
    schedule_step_sets sets = {0};
    for (uint32_t u = 0; u < trace->use_count; u++) {
        const tide_trace_use *use = &trace->uses[u];
        const uint32_t bit = 1u << use->chunk;
        if (use->schedule_step == schedule_step) {
            sets.begins |= bit;
            sets.brings |= use->flags & TIDE_TRACE_CREATES ? 0 : bit;
        }
        if (use->schedule_step + use->held_schedule_steps == schedule_step) {
            sets.finishes |= bit;
            sets.modifies |= use->flags & (TIDE_TRACE_MODIFIES | TIDE_TRACE_CREATES) ? bit : 0;
            sets.ends |= use->flags & TIDE_TRACE_ENDS ? bit : 0;
            sets.leaves |= use->flags & TIDE_TRACE_LEAVES ? bit : 0;
        }
    }
    return sets;
}

/* Plays a schedule step from one state: tries each choice of chunks to evict among those whose use ends. */
static void branch(search *s, const schedule_step_sets *sets, uint32_t state, uint32_t cost)
{
    const uint32_t before = state >> SMALL_CHUNKS_MAX, device = before | sets->begins;
    if ((uint32_t)__builtin_popcount(device) > s->slots)
        return;
    cost += s->in * (uint32_t)__builtin_popcount(sets->brings & ~before);
    const uint32_t modified = ((state & ((1u << SMALL_CHUNKS_MAX) - 1)) | sets->modifies) & ~sets->ends;
    const uint32_t free_choice = sets->finishes & ~sets->leaves;
    for (uint32_t chosen = free_choice;; chosen = (chosen - 1) & free_choice) {
        const uint32_t evictions = chosen | sets->leaves;
        const uint32_t total = cost + s->out * (uint32_t)__builtin_popcount(modified & evictions);
        uint32_t *least = &s->cost[1][state_of(device & ~evictions, modified & ~evictions)];
        *least = total < *least ? total : *least;
        if (chosen == 0)
            return;
    }
}

static void search_step(search *s)
{
    for (uint32_t schedule_step = 0; schedule_step < s->trace->schedule_step_count; schedule_step++) {
        const schedule_step_sets sets = collect_schedule_step(s->trace, schedule_step);
        for (uint32_t i = 0; i < s->possible_count; i++)
            s->cost[1][s->possible[i]] = UINT32_MAX;
        for (uint32_t i = 0; i < s->possible_count; i++)
            if (s->cost[0][s->possible[i]] != UINT32_MAX)
                branch(s, &sets, s->possible[i], s->cost[0][s->possible[i]]);
        for (uint32_t i = 0; i < s->possible_count; i++)
            s->cost[0][s->possible[i]] = s->cost[1][s->possible[i]];
    }
}

static uint32_t search_period(search *s)
{
    uint32_t best = UINT32_MAX;
    for (int step = 0; step < OPTIMUM_PERIOD; step++)
        search_step(s);
    for (uint32_t i = 0; i < s->possible_count; i++)
        best = s->cost[0][s->possible[i]] < best ? s->cost[0][s->possible[i]] : best;
    return best;
}

bool optimum_find(const tide_use_trace *trace, uint32_t slots, optimum *found)
{
    return optimum_find_weighed(trace, slots, 1, 1, found);
}

bool optimum_find_weighed(const tide_use_trace *trace, uint32_t slots, uint32_t in, uint32_t out,
                          optimum *found)
{
    assert(trace->chunk_count <= SMALL_CHUNKS_MAX);
    search s = {.trace = trace, .slots = slots, .in = in, .out = out};
    list_possible(&s);
    uint32_t value = 0, growth = UINT32_MAX, same = 0;
    for (uint32_t period = 1; period <= PERIODS_MAX; period++) {
        const uint32_t next = search_period(&s), grown = next - value;
        same = grown == growth ? same + 1 : 0;
        value = next;
        growth = grown;
        if (same == SAME_GROWTHS) {
            *found = (optimum){.copies = grown, .at_least = value, .steps = period * OPTIMUM_PERIOD};
            return true;
        }
    }
    return false;
}

const tide_use_trace *trace_recorded(const tide_manager *manager)
{
    const tide_step_plan *step = &manager->future.plans[TIDE_SCHEDULE_TRAINING];
    return step->plan ? &step->trace : NULL;
}
