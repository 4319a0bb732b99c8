/* Lower bounds on copies: see least.h for which copies are counted.
 *
 * A stretch is a run of schedule steps through which a policy may keep a chunk on the device; if it does not,
 * it has to make a copy. A stretch lies between two uses of the chunk and does not include their schedule
 * steps. At a schedule step, the stretches kept and the chunks in use that are in none of them (`crowd`) need
 * slots. So the question is which stretches to give up, as few as can be, so that slots never run short.
 *
 * Walk. From the left; whenever there are too many stretches, give up the one that ends last. No choice gives
 * up fewer: one of the stretches at this schedule step has to go; whichever it is, all schedule steps before
 * have enough slots already; and at the schedule steps after, the one that ends last takes a slot wherever
 * any of the others does. That holds for any number of slots at any schedule step.
 *
 * Steps without end. Let D(n) be the number of stretches that the walk gives up in n steps that begin with no
 * stretch kept. Stretches that began earlier are left out, and so are all that would be given up after the
 * n-th step: any policy gives up at least D(n) of the stretches of any n steps. So D(m + n) >= D(m) + D(n),
 * and D(n) / n is never above its limit, which is a bound on the average of every policy. As soon as a step
 * begins with the stretches with which an earlier one began, the walk repeats for ever, and the number given
 * up between the two, divided by the steps between them, is the limit. If STEPS_MAX steps do not come to
 * that, the largest D(n) / n is taken: not the limit, but not above it.
 *
 * The copy of a stretch given up is made before the stretch ends, less than a step after it began: a policy
 * makes D(n) copies in n + 1 steps, which is the same on average.
 */
#include "chunk/least.h"

#include "base/array.h"
#include "chunk/bitset.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

/* Two or three are enough as a rule: of 120,000 walks on random steps one needs more than 8. Where a step
 * goes round and round, each of 8 takes its time: 0.4 microseconds a use. */
enum { STEPS_MAX = 8 };

struct tide_least {
    tide_arrays arrays;
    uint32_t chunk_capacity, use_capacity, schedule_step_capacity;
    const tide_use_trace *trace;
    uint32_t slots;
    uint32_t *next;                /* scratch: one entry for each chunk */
    uint32_t *following;           /* for each use: the next use of its chunk, in this step or the next */
    uint32_t *schedule_step_first; /* for each schedule step: its first use */
    /* the uses sorted by the schedule step in which they end; and for each schedule step, where its uses
     * begin in that order */
    uint32_t *ending, *ending_first;

    /* for each use: the use with which the stretch after it ends; TIDE_USE_NONE: no stretch */
    uint32_t *until;
    uint32_t *crowd;  /* for each schedule step: chunks that need a slot and are in no stretch */
    uint64_t certain; /* copies of a step that no policy can avoid, besides those of stretches given up */

    tide_bitset kept; /* the stretches kept now, by the use with which each ends; no two end with the same */
    uint32_t kept_count;
    uint64_t *words; /* the words of `kept` at the begin of each step of the walk */
    size_t word_count;
};

/* --- the walk --- */

static bool is_kept(const tide_least *l, uint32_t end)
{
    return tide_bitset_below(&l->kept, end + 1) == end;
}

/* The kept stretch that ends last. Ends are numbered within a step, and every stretch is shorter than a step.
 * So an end below this schedule step's first use is in the next step, later than all ends above: the result
 * is the highest end below, or, if there is none, the highest of all. */
static uint32_t ends_last(const tide_least *l, uint32_t schedule_step)
{
    const uint32_t in_next_step = tide_bitset_below(&l->kept, l->schedule_step_first[schedule_step]);
    return in_next_step != TIDE_USE_NONE ? in_next_step : tide_bitset_below(&l->kept, l->trace->use_count);
}

/* Walk over one schedule step; returns how many stretches it gives up there. */
static uint64_t walk_schedule_step(tide_least *l, uint32_t schedule_step)
{
    uint64_t given_up = 0;
    for (uint32_t use = l->schedule_step_first[schedule_step];
         use < l->schedule_step_first[schedule_step + 1]; use++) {
        if (!is_kept(l, use))
            continue;
        tide_bitset_erase(&l->kept, use);
        l->kept_count--;
    }
    for (; l->kept_count + l->crowd[schedule_step] > l->slots; l->kept_count--, given_up++) {
        assert(l->kept_count > 0);
        tide_bitset_erase(&l->kept, ends_last(l, schedule_step));
    }
    for (uint32_t i = l->ending_first[schedule_step]; i < l->ending_first[schedule_step + 1]; i++) {
        const uint32_t until = l->until[l->ending[i]];
        if (until == TIDE_USE_NONE)
            continue;
        tide_bitset_insert(&l->kept, until);
        l->kept_count++;
    }
    return given_up;
}

/* The words of `kept` at the begin of a step; 0: the present ones. */
static uint64_t *words_at(const tide_least *l, uint32_t step)
{
    return l->words + step * l->word_count;
}

/* The earlier step that began with the stretches that are kept now; `now` if none did. */
static uint32_t step_alike(const tide_least *l, uint32_t now)
{
    uint32_t step = 0;
    while (step < now && memcmp(words_at(l, step + 1), words_at(l, 0), l->word_count * sizeof *l->words) != 0)
        step++;
    return step;
}

/* The number of stretches given up a step, rounded down. */
static uint64_t walk_steps(tide_least *l)
{
    uint64_t given_up[STEPS_MAX + 1] = {0}, most = 0; /* stretches given up before each step */
    tide_bitset_clear(&l->kept);
    l->kept_count = 0;
    for (uint32_t step = 0; step < STEPS_MAX; step++) {
        memcpy(words_at(l, step + 1), words_at(l, 0), l->word_count * sizeof *l->words);
        given_up[step + 1] = given_up[step];
        for (uint32_t schedule_step = 0; schedule_step < l->trace->schedule_step_count; schedule_step++)
            given_up[step + 1] += walk_schedule_step(l, schedule_step);
        const uint32_t alike = step_alike(l, step + 1);
        if (alike <= step)
            return l->certain + (given_up[step + 1] - given_up[alike]) / (step + 1 - alike);
        const uint64_t average = given_up[step + 1] / (step + 1);
        most = average > most ? average : most;
    }
    return l->certain + most;
}

/* --- stretches --- */

/* The number of schedule steps between a use and a later one of its chunk, in this step or the next. */
static uint32_t schedule_steps_between(const tide_least *l, uint32_t use, uint32_t later)
{
    const tide_trace_use *u = &l->trace->uses[use];
    const uint32_t from = u->schedule_step + u->held_schedule_steps + 1,
                   to = l->trace->uses[later].schedule_step;
    return to >= from ? to - from : to + l->trace->schedule_step_count - from;
}

/* Add one to the crowd at the schedule steps of a use, or take one away (`by` is UINT32_MAX); `crowd` holds
 * differences until sum_crowd. */
static void add_to_crowd(tide_least *l, uint32_t use, uint32_t by)
{
    const tide_trace_use *u = &l->trace->uses[use];
    l->crowd[u->schedule_step] += by;
    l->crowd[u->schedule_step + u->held_schedule_steps + 1] -= by;
}

/* Begin without stretches: every chunk that is used is in the crowd. */
static void begin_stretches(tide_least *l)
{
    l->certain = 0;
    memset(l->crowd, 0, (l->trace->schedule_step_count + 1u) * sizeof *l->crowd);
    for (uint32_t use = 0; use < l->trace->use_count; use++) {
        l->until[use] = TIDE_USE_NONE;
        add_to_crowd(l, use, 1);
    }
}

static void sum_crowd(tide_least *l)
{
    for (uint32_t schedule_step = 1; schedule_step < l->trace->schedule_step_count; schedule_step++)
        l->crowd[schedule_step] += l->crowd[schedule_step - 1];
    for (uint32_t schedule_step = 0; schedule_step < l->trace->schedule_step_count; schedule_step++)
        assert(l->crowd[schedule_step] <= l->slots);
}

/* Copies in. A use that creates needs none; after a use with the flag LEAVES, the next one needs a copy for
 * certain. Every other gap between two uses of a chunk is a stretch (above), which costs a copy if it is
 * given up. These are all the copies, so the least is exact. */
static uint64_t least_in(tide_least *l)
{
    begin_stretches(l);
    for (uint32_t use = 0; use < l->trace->use_count; use++) {
        const uint32_t next = l->following[use];
        if (l->trace->uses[next].flags & TIDE_TRACE_CREATES)
            continue;
        if (l->trace->uses[use].flags & TIDE_TRACE_LEAVES)
            l->certain++;
        else
            l->until[use] = next;
    }
    sum_crowd(l);
    return walk_steps(l);
}

/* A span of modified content: from the use that modified it to the last that needs it unchanged, which is the
 * next use that modifies, or the one with which the content ends. */
typedef struct span {
    uint32_t first, last;
    /* the use before the span's widest gap; the schedule steps in that gap */
    uint32_t widest, widest_schedule_steps;
    bool goes; /* the chunk has to go to the host before the span ends, so its copy is certain */
} span;

static bool modifies(const tide_trace_use *use)
{
    return (use->flags & (TIDE_TRACE_MODIFIES | TIDE_TRACE_CREATES)) != 0;
}

/* The span that begins with the use `first`, which modifies. It ends at the latest where it comes round to
 * `first` again. The gap before a use that creates is left out: content without an end counts as dead from
 * its last use on, which saves copies at most. */
static span span_from(const tide_least *l, uint32_t first)
{
    span s = {first, first, first, 0, false};
    for (;;) {
        if (l->trace->uses[s.last].flags & TIDE_TRACE_LEAVES) {
            s.goes = true;
            return s;
        }
        const uint32_t next = l->following[s.last], flags = l->trace->uses[next].flags;
        const uint32_t schedule_steps = schedule_steps_between(l, s.last, next);
        if (flags & TIDE_TRACE_CREATES)
            return s;
        if (schedule_steps > s.widest_schedule_steps) {
            s.widest = s.last;
            s.widest_schedule_steps = schedule_steps;
        }
        s.last = next;
        if (flags & (TIDE_TRACE_MODIFIES | TIDE_TRACE_ENDS))
            return s;
    }
}

/* Copies out. Each span is one copy unless its chunk stays through all of its gaps: after a copy out it is
 * clean, until it is modified again. Two ways to make stretches of spans with several gaps, each easier than
 * the truth:
 *
 *   whole false  the widest gap alone. To stay through all gaps is to stay through that one.
 *   whole true   the whole span. Its own uses in between are taken out of the crowd, for the stretch has
 *                their slot if it is kept; if it is given up, they should be in the crowd again, and are not,
 *                so that there seem to be more free slots.
 */
static uint64_t least_out(tide_least *l, bool whole)
{
    begin_stretches(l);
    for (uint32_t use = 0; use < l->trace->use_count; use++) {
        if (!modifies(&l->trace->uses[use]) || l->trace->uses[use].flags & TIDE_TRACE_ENDS)
            continue;
        const span s = span_from(l, use);
        l->certain += s.goes;
        /* such a gap has no schedule step at which a policy could give it up */
        if (s.goes || s.widest_schedule_steps == 0)
            continue;
        l->until[whole ? s.first : s.widest] = whole ? s.last : l->following[s.widest];
        for (uint32_t inside = l->following[use]; whole && inside != s.last; inside = l->following[inside])
            add_to_crowd(l, inside, UINT32_MAX);
    }
    sum_crowd(l);
    return walk_steps(l);
}

/* --- the trace --- */

/* Find the first use of each schedule step. */
static void index_schedule_steps(tide_least *l)
{
    uint32_t schedule_step = 0;
    for (uint32_t use = 0; use < l->trace->use_count; use++) {
        assert(l->trace->uses[use].chunk < l->trace->chunk_count);
        for (; schedule_step <= l->trace->uses[use].schedule_step; schedule_step++)
            l->schedule_step_first[schedule_step] = use;
    }
    for (; schedule_step <= l->trace->schedule_step_count; schedule_step++)
        l->schedule_step_first[schedule_step] = l->trace->use_count;
}

/* Sort the uses by the schedule step in which they end (a counting sort). During the sort ending_first[m + 1]
 * is the next free place for schedule step m; so it ends as the beginning of schedule step m + 1. */
static void index_endings(tide_least *l)
{
    memset(l->ending_first, 0, (l->trace->schedule_step_count + 2u) * sizeof *l->ending_first);
    for (uint32_t use = 0; use < l->trace->use_count; use++) {
        const uint32_t end = l->trace->uses[use].schedule_step + l->trace->uses[use].held_schedule_steps;
        assert(end < l->trace->schedule_step_count);
        l->ending_first[end + 2]++;
    }
    for (uint32_t schedule_step = 0; schedule_step < l->trace->schedule_step_count; schedule_step++)
        l->ending_first[schedule_step + 2] += l->ending_first[schedule_step + 1];
    for (uint32_t use = 0; use < l->trace->use_count; use++)
        l->ending[l->ending_first[l->trace->uses[use].schedule_step +
                                  l->trace->uses[use].held_schedule_steps + 1]++] = use;
}

/* Find for each use the next use of its chunk. */
static void link_uses(tide_least *l)
{
    for (uint32_t chunk = 0; chunk < l->trace->chunk_count; chunk++)
        l->next[chunk] = TIDE_USE_NONE;
    /* the second pass links each chunk's last use to its first use in the next step */
    for (int pass = 0; pass < 2; pass++) {
        for (uint32_t use = l->trace->use_count; use-- > 0;) {
            l->following[use] = l->next[l->trace->uses[use].chunk];
            l->next[l->trace->uses[use].chunk] = use;
        }
    }
}

void tide_least_find(tide_least *least, const tide_use_trace *trace, uint32_t slots, uint64_t *copies_in,
                     uint64_t *copies_out)
{
    assert(trace->chunk_count <= least->chunk_capacity && trace->use_count <= least->use_capacity);
    assert(trace->schedule_step_count <= least->schedule_step_capacity);
    least->trace = trace;
    least->slots = slots;
    index_schedule_steps(least);
    index_endings(least);
    link_uses(least);
    *copies_in = least_in(least);
    const uint64_t widest = least_out(least, false), whole = least_out(least, true);
    *copies_out = widest > whole ? widest : whole;
}

/* --- memory --- */

static void allocate(tide_least *l)
{
    const size_t uses = l->use_capacity, schedule_steps = l->schedule_step_capacity;
    l->next = tide_arrays_add(&l->arrays, l->chunk_capacity, sizeof *l->next);
    l->following = tide_arrays_add(&l->arrays, uses, sizeof *l->following);
    l->schedule_step_first = tide_arrays_add(&l->arrays, schedule_steps + 1, sizeof *l->schedule_step_first);
    l->ending = tide_arrays_add(&l->arrays, uses, sizeof *l->ending);
    l->ending_first = tide_arrays_add(&l->arrays, schedule_steps + 2, sizeof *l->ending_first);
    l->until = tide_arrays_add(&l->arrays, uses, sizeof *l->until);
    l->crowd = tide_arrays_add(&l->arrays, schedule_steps + 1, sizeof *l->crowd);
    l->word_count = tide_bitset_words(l->use_capacity);
    l->words = tide_arrays_add(&l->arrays, (STEPS_MAX + 1) * l->word_count, sizeof *l->words);
    if (l->words)
        (void)tide_bitset_place(&l->kept, l->use_capacity, l->words);
}

tide_status tide_least_create(uint32_t chunk_count, uint32_t use_count, uint32_t schedule_step_count,
                              tide_least **least)
{
    tide_least *l = calloc(1, sizeof *l);
    if (!l)
        return tide_fail(TIDE_ERROR_NO_MEMORY, "least copies: no memory for %zu bytes", sizeof *l);
    l->chunk_capacity = chunk_count;
    l->use_capacity = use_count;
    l->schedule_step_capacity = schedule_step_count;
    allocate(l);
    if (l->arrays.lacks) {
        tide_least_destroy(l);
        return tide_fail(TIDE_ERROR_NO_MEMORY,
                         "least copies: no memory for %u uses of %u chunks in %u schedule steps", use_count,
                         chunk_count, schedule_step_count);
    }
    *least = l;
    return TIDE_OK;
}

void tide_least_destroy(tide_least *least)
{
    if (!least)
        return;
    tide_arrays_free(&least->arrays);
    free(least);
}
