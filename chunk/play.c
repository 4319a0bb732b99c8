/* The model. To look ahead, the same model plays on twice, once without a clean chunk and once without a
 * dirty one that is needed later; a log then undoes these changes.
 */
#include "chunk/play.h"

#include <assert.h>
#include <string.h>

enum { LOOK_AHEAD_USES = 4096 }; /* most uses played to look ahead for one decision */

/* for each rule: a clean chunk leaves, if the play does not look ahead, when its next use is at least this
 * many quarters as far as the dirty chunk's */
enum { QUARTERS = 4 };
static const uint32_t clean_quarters[TIDE_PLAY_RULES] = {2, 0, 3, QUARTERS};

/* A chunk's state on the model device. A chunk that may leave is in the set of its state. While an op uses a
 * chunk, it is held and in no set. */
typedef enum chunk_state {
    ABSENT = TIDE_PLAY_ABSENT,
    DEAD,  /* the next use overwrites the whole content */
    STALE, /* the host has changed the content; the slot has the old one */
    CLEAN,
    DIRTY,
    SETS = TIDE_PLAY_SETS,
    HELD_DEAD = SETS,
    HELD_STALE, /* unused: when an op holds a stale chunk, it is copied in and so clean */
    HELD_CLEAN,
    HELD_DIRTY,
} chunk_state;

enum { HELD = HELD_DEAD - DEAD };

struct tide_play_change {
    tide_chunk chunk;
    uint32_t next;
    uint8_t state;
};

void tide_play_create(tide_play *play, uint32_t chunk_count, uint32_t use_count, tide_arrays *arrays)
{
    const size_t chunks = chunk_count + 1u, uses = use_count + 1u;
    tide_play *p = play;
    *p = (tide_play){.chunk_capacity = chunk_count, .use_capacity = use_count};
    p->undo_capacity = 4u * (use_count + LOOK_AHEAD_USES);
    p->states = tide_arrays_add(arrays, chunks, sizeof *p->states);
    p->next = tide_arrays_add(arrays, chunks, sizeof *p->next);
    p->following = tide_arrays_add(arrays, uses, sizeof *p->following);
    p->rank = tide_arrays_add(arrays, uses, sizeof *p->rank);
    p->ranked = tide_arrays_add(arrays, uses, sizeof *p->ranked);
    p->schedule_step_first = tide_arrays_add(arrays, uses + 1, sizeof *p->schedule_step_first);
    p->ending = tide_arrays_add(arrays, uses, sizeof *p->ending);
    p->ending_first = tide_arrays_add(arrays, uses + 1, sizeof *p->ending_first);
    p->fetched = tide_arrays_add(arrays, uses, sizeof *p->fetched);
    p->refreshed = tide_arrays_add(arrays, uses, sizeof *p->refreshed);
    p->undo = tide_arrays_add(arrays, p->undo_capacity, sizeof *p->undo);
    uint64_t *words = tide_arrays_add(arrays, (SETS - 1) * tide_bitset_words(use_count), sizeof *words);
    for (int state = DEAD; state < SETS && words; state++)
        words = tide_bitset_place(&p->sets[state], use_count, words);
}

/* --- the model of the device --- */

static bool comes_with_a_copy(const tide_play *p, uint32_t use)
{
    return !(p->trace->uses[use].flags & TIDE_TRACE_CREATES);
}

static void put(tide_play *p, tide_chunk chunk, chunk_state state, uint32_t next)
{
    const chunk_state was = (chunk_state)p->states[chunk];
    if (p->logs_undo)
        p->undo[p->undo_length++] = (struct tide_play_change){chunk, p->next[chunk], (uint8_t)was};
    if (was != ABSENT && was < SETS)
        tide_bitset_erase(&p->sets[was], p->rank[p->next[chunk]]);
    if (state != ABSENT && state < SETS)
        tide_bitset_insert(&p->sets[state], p->rank[next]);
    p->resident += state != ABSENT;
    p->resident -= was != ABSENT;
    p->absent += (state == ABSENT || state == STALE) && comes_with_a_copy(p, next);
    p->absent -= (was == ABSENT || was == STALE) && comes_with_a_copy(p, p->next[chunk]);
    p->states[chunk] = (uint8_t)state;
    p->next[chunk] = next;
}

static void leave(tide_play *p, tide_chunk chunk)
{
    p->copies_out += p->states[chunk] == DIRTY;
    put(p, chunk, ABSENT, p->next[chunk]);
}

/* The state of a chunk after a use with these flags, if it was held in state `before`. */
static chunk_state state_after(chunk_state before, uint32_t flags)
{
    if (flags & TIDE_TRACE_ENDS)
        return DEAD;
    if (flags & (TIDE_TRACE_MODIFIES | TIDE_TRACE_CREATES))
        return DIRTY;
    assert(before == HELD_CLEAN || before == HELD_DIRTY);
    return before - HELD;
}

static void end_use(tide_play *p, uint32_t use)
{
    const tide_trace_use *u = &p->trace->uses[use];
    chunk_state after = state_after((chunk_state)p->states[u->chunk], u->flags);
    if (u->flags & TIDE_TRACE_LEAVES) {
        p->copies_out += after == DIRTY;
        after = STALE;
    }
    put(p, u->chunk, after, p->following[use]);
}

/* --- victims --- */

/* The rank that is nearest at a schedule step. Distance grows with the rank up to the highest one, and then
 * further from the lowest rank up to this one. */
static uint32_t first_rank(const tide_play *p, uint32_t schedule_step)
{
    return p->rule == TIDE_PLAY_LEAST_RECENT ? p->trace->use_count - p->ending_first[schedule_step]
                                             : p->schedule_step_first[schedule_step];
}

/* The rank of the farthest chunk in a state, with `first` from first_rank; TIDE_USE_NONE: there is none. */
static uint32_t farthest(const tide_play *p, chunk_state state, uint32_t first)
{
    const uint32_t rank = tide_bitset_below(&p->sets[state], first);
    return rank != TIDE_USE_NONE ? rank : tide_bitset_below(&p->sets[state], p->trace->use_count);
}

static uint32_t distance(const tide_play *p, uint32_t from, uint32_t use)
{
    return use >= from ? use - from : use + p->trace->use_count - from;
}

static bool look_ahead(tide_play *p, uint32_t schedule_step, tide_chunk clean, tide_chunk dirty,
                       bool *dirty_goes);

/* The rank of the chunk that leaves. With `deciding` (only if ranks are next uses) the play looks ahead to
 * choose between a clean and a dirty chunk. */
static uint32_t victim(tide_play *p, uint32_t schedule_step, bool deciding)
{
    const uint32_t first = first_rank(p, schedule_step);
    const uint32_t dead = farthest(p, DEAD, first), stale = farthest(p, STALE, first);
    if (dead != TIDE_USE_NONE &&
        (stale == TIDE_USE_NONE || distance(p, first, dead) > distance(p, first, stale)))
        return dead;
    if (stale != TIDE_USE_NONE)
        return stale;
    const uint32_t clean = farthest(p, CLEAN, first), dirty = farthest(p, DIRTY, first);
    assert(clean != TIDE_USE_NONE || dirty != TIDE_USE_NONE);
    if (clean == TIDE_USE_NONE || dirty == TIDE_USE_NONE)
        return clean == TIDE_USE_NONE ? dirty : clean;
    const uint64_t clean_far = distance(p, first, clean), dirty_far = distance(p, first, dirty);
    if (clean_far >= dirty_far)
        return clean;
    p->contested = true;
    bool dirty_goes;
    if (deciding && p->rule == TIDE_PLAY_LOOK_AHEAD &&
        look_ahead(p, schedule_step, p->trace->uses[clean].chunk, p->trace->uses[dirty].chunk, &dirty_goes))
        return dirty_goes ? dirty : clean;
    return clean_far * QUARTERS >= dirty_far * clean_quarters[p->rule] ? clean : dirty;
}

/* --- playing --- */

/* Hold those chunks of the schedule step that are on the device. Returns how many are missing. */
static uint32_t hold_present(tide_play *p, uint32_t schedule_step, bool deciding)
{
    uint32_t missing = 0;
    for (uint32_t use = p->schedule_step_first[schedule_step];
         use < p->schedule_step_first[schedule_step + 1]; use++) {
        const tide_chunk chunk = p->trace->uses[use].chunk;
        const chunk_state state = (chunk_state)p->states[chunk];
        missing += state == ABSENT;
        if (deciding)
            p->refreshed[use] = state == STALE;
        p->copies_in += state == STALE;
        if (state != ABSENT && state < SETS)
            put(p, chunk, state == STALE ? HELD_CLEAN : state + HELD, use);
    }
    return missing;
}

static void play_schedule_step(tide_play *p, uint32_t schedule_step, bool deciding)
{
    const uint32_t missing = hold_present(p, schedule_step, deciding);
    while (p->resident + missing > p->slots)
        leave(p, p->trace->uses[p->ranked[victim(p, schedule_step, deciding)]].chunk);
    for (uint32_t use = p->schedule_step_first[schedule_step];
         use < p->schedule_step_first[schedule_step + 1]; use++) {
        const tide_trace_use *u = &p->trace->uses[use];
        const bool fetch = p->states[u->chunk] == ABSENT;
        if (deciding)
            p->fetched[use] = fetch;
        if (!fetch)
            continue;
        p->copies_in += !(u->flags & TIDE_TRACE_CREATES);
        put(p, u->chunk, HELD_CLEAN, use);
    }
    for (uint32_t i = p->ending_first[schedule_step]; i < p->ending_first[schedule_step + 1]; i++)
        end_use(p, p->ending[i]);
}

typedef struct future {
    uint64_t copies; /* copies up to the end of the look ahead */
    uint32_t absent; /* chunks that are not on the device then and have to be copied in again */
} future;

static future play_without(tide_play *p, tide_chunk chunk, uint32_t schedule_step, uint32_t until)
{
    const uint64_t in = p->copies_in, out = p->copies_out;
    p->logs_undo = true;
    p->undo_length = 0;
    leave(p, chunk);
    bool seen = false;
    for (uint32_t m = schedule_step; !seen; m = tide_play_schedule_step_after(p, m)) {
        seen = until >= p->schedule_step_first[m] && until < p->schedule_step_first[m + 1];
        play_schedule_step(p, m, false);
    }
    const future result = {p->copies_in - in + p->copies_out - out, p->absent};
    p->logs_undo = false;
    while (p->undo_length > 0) {
        const struct tide_play_change *entry = &p->undo[--p->undo_length];
        put(p, entry->chunk, (chunk_state)entry->state, entry->next);
    }
    p->copies_in = in;
    p->copies_out = out;
    return result;
}

/* Play from here until the next use of `clean`, once without `clean` and once without `dirty`. Sets
 * *dirty_goes to whether the second costs fewer copies. False if that use is too far ahead to play to. */
static bool look_ahead(tide_play *p, uint32_t schedule_step, tide_chunk clean, tide_chunk dirty,
                       bool *dirty_goes)
{
    const uint32_t until = p->next[clean];
    const uint32_t uses = 2 * distance(p, p->schedule_step_first[schedule_step], until);
    if (uses > LOOK_AHEAD_USES || uses > p->look_ahead_left)
        return false;
    p->look_ahead_left -= uses;
    const future without_clean = play_without(p, clean, schedule_step, until),
                 without_dirty = play_without(p, dirty, schedule_step, until);
    *dirty_goes = without_dirty.copies + without_dirty.absent < without_clean.copies + without_clean.absent;
    return true;
}

void tide_play_step(tide_play *play, uint32_t look_ahead_uses)
{
    play->look_ahead_left = look_ahead_uses;
    play->copies_in = play->copies_out = 0;
    for (uint32_t schedule_step = 0; schedule_step < play->trace->schedule_step_count; schedule_step++)
        play_schedule_step(play, schedule_step, true);
}

/* --- step and rule --- */

/* Find the first use of each schedule step. */
static void index_schedule_steps(tide_play *p)
{
    const tide_use_trace *trace = p->trace;
    uint32_t schedule_step = 0;
    for (uint32_t use = 0; use < trace->use_count; use++) {
        assert(trace->uses[use].schedule_step < trace->schedule_step_count &&
               trace->uses[use].chunk < trace->chunk_count);
        for (; schedule_step <= trace->uses[use].schedule_step; schedule_step++)
            p->schedule_step_first[schedule_step] = use;
    }
    for (; schedule_step <= trace->schedule_step_count; schedule_step++)
        p->schedule_step_first[schedule_step] = trace->use_count;
}

/* Sort the uses by the schedule step in which they end (a counting sort). During the sort ending_first[m] is
 * the index at which the next use of schedule step m is put; after the sort that is where step m + 1 begins,
 * so the array is shifted by one. */
static void index_endings(tide_play *p)
{
    const tide_use_trace *trace = p->trace;
    memset(p->ending_first, 0, (trace->schedule_step_count + 1u) * sizeof *p->ending_first);
    for (uint32_t use = 0; use < trace->use_count; use++) {
        assert(trace->uses[use].schedule_step + trace->uses[use].held_schedule_steps <
               trace->schedule_step_count);
        p->ending_first[trace->uses[use].schedule_step + trace->uses[use].held_schedule_steps + 1]++;
    }
    for (uint32_t schedule_step = 0; schedule_step < trace->schedule_step_count; schedule_step++)
        p->ending_first[schedule_step + 1] += p->ending_first[schedule_step];
    for (uint32_t use = 0; use < trace->use_count; use++)
        p->ending[p->ending_first[trace->uses[use].schedule_step + trace->uses[use].held_schedule_steps]++] =
            use;
    for (uint32_t schedule_step = trace->schedule_step_count; schedule_step > 0; schedule_step--)
        p->ending_first[schedule_step] = p->ending_first[schedule_step - 1];
    p->ending_first[0] = 0;
}

/* Find for each use the next use of its chunk, in a loop from the last use to the first. */
static void link_uses(tide_play *p)
{
    const tide_use_trace *trace = p->trace;
    for (uint32_t chunk = 0; chunk < trace->chunk_count; chunk++)
        p->next[chunk] = TIDE_USE_NONE;
    /* the second pass links each chunk's last use to its first use in the next step */
    for (int pass = 0; pass < 2; pass++) {
        for (uint32_t use = trace->use_count; use-- > 0;) {
            p->following[use] = p->next[trace->uses[use].chunk];
            p->next[trace->uses[use].chunk] = use;
        }
    }
}

/* Rank the uses by their numbers or, for the rule "least recently used", by the ends of their chunks'
 * previous uses, latest first. */
static void rank_uses(tide_play *p)
{
    const uint32_t count = p->trace->use_count;
    for (uint32_t i = 0; i < count; i++) {
        const uint32_t use = p->rule == TIDE_PLAY_LEAST_RECENT ? p->following[p->ending[i]] : i;
        p->rank[use] = p->rule == TIDE_PLAY_LEAST_RECENT ? count - 1 - i : i;
        p->ranked[p->rank[use]] = use;
    }
}

void tide_play_set_step(tide_play *play, const tide_use_trace *trace, uint32_t slots)
{
    assert(trace->chunk_count <= play->chunk_capacity && trace->use_count <= play->use_capacity);
    assert(trace->schedule_step_count <= play->use_capacity);
    play->trace = trace;
    play->slots = slots;
    index_schedule_steps(play);
    index_endings(play);
    link_uses(play);
}

static void clear_device(tide_play *p)
{
    for (int state = DEAD; state < SETS; state++)
        tide_bitset_clear(&p->sets[state]);
    memset(p->states, ABSENT, p->chunk_capacity);
    p->resident = p->absent = 0;
    for (tide_chunk chunk = 0; chunk < p->trace->chunk_count; chunk++)
        p->absent += p->next[chunk] != TIDE_USE_NONE && comes_with_a_copy(p, p->next[chunk]);
    p->logs_undo = false;
}

void tide_play_set_rule(tide_play *play, tide_play_rule rule)
{
    assert((unsigned)rule < TIDE_PLAY_RULES && play->trace);
    play->rule = rule;
    play->contested = false;
    rank_uses(play);
    clear_device(play);
}
