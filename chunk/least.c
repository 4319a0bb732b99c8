/* How the lower bounds on copies are found; least.h says what they mean.
 *
 * A stretch is a run of schedule steps between two uses of a chunk, without those of the uses. A policy keeps
 * the stretch if the chunk stays on the device all the time, or gives it up, which costs one copy. At each
 * schedule step a slot is needed by every kept stretch and by every chunk in use that is in no kept stretch
 * (`crowd`). The question is: how few stretches can be given up so that there are always enough slots?
 *
 * Walk. Go through the schedule steps in order; whenever slots are too few, give up the kept stretch that
 * ends last. No other choice gives up fewer: one of the stretches at this schedule step has to be given up;
 * all schedule steps before have enough slots already, whichever it is; and at every later schedule step
 * where one of the others takes a slot, the one that ends last takes one, too. This also holds if the number
 * of slots differs from one schedule step to another.
 *
 * Endless repetition of the step. Let D(n) be the number of stretches that the walk gives up in n steps, if
 * no stretch is kept at the begin. D(n) does not count stretches that began before these steps or are given
 * up after them, so any policy gives up at least D(n) stretches in any n steps in a row. Hence D(m + n) >=
 * D(m) + D(n), D(n) / n is at most its limit for large n, and that limit is a lower bound on every policy's
 * average. When a step begins with the same kept stretches as an earlier step, the walk repeats from there
 * on, and the limit is the number of stretches given up between these two begins divided by the number of
 * steps between them. If that does not happen within STEPS_MAX steps, the largest D(n) / n is used, which is
 * at most the limit.
 *
 * A policy makes the copy for a stretch that it gives up before the stretch ends, which is less than a step
 * after it began. So it makes D(n) copies in n + 1 steps, which is the same average for large n.
 */
#include "chunk/least.h"

#include "base/array.h"
#include "chunk/bitset.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

/* The most steps of a walk. Two or three are usually enough; of 120,000 walks on random steps one needed more
 * than 8. A walk over 8 steps takes 0.4 microseconds per use. */
enum { STEPS_MAX = 8 };

struct tide_least {
    tide_arrays arrays;
    uint32_t chunk_capacity, use_capacity, schedule_step_capacity;
    const tide_use_trace *trace;
    uint32_t slots;
    uint32_t *next;                /* scratch: one entry for each chunk */
    uint32_t *following;           /* for each use: the next use of its chunk, in this step or the next */
    uint32_t *schedule_step_first; /* for each schedule step: its first use */
    /* `ending`: all uses, sorted by the schedule step in which they end; `ending_first`: for each schedule
     * step, the index of its first use in `ending` */
    uint32_t *ending, *ending_first;

    /* for each use: if a stretch follows it, the use with which that stretch ends, else TIDE_USE_NONE */
    uint32_t *until;
    uint32_t *crowd;  /* for each schedule step: the chunks in use that are in no stretch */
    uint64_t certain; /* copies per step that every policy makes, besides those for stretches given up */

    tide_bitset kept; /* the kept stretches, each as the number of the use with which it ends */
    uint32_t kept_count;
    uint64_t *words; /* the words of `kept`, then copies of them at each step's begin */
    size_t word_count;
};

/* --- the walk --- */

static bool is_kept(const tide_least *l, uint32_t end)
{
    return tide_bitset_below(&l->kept, end + 1) == end;
}

/* The kept stretch that ends last. A stretch is shorter than a step, and the use with which it ends is
 * numbered within its step. So an end lower than this schedule step's first use is in the next step and comes
 * after all higher ends. Therefore the result is the highest of these lower ends or, if there are none, the
 * highest of all. */
static uint32_t ends_last(const tide_least *l, uint32_t schedule_step)
{
    const uint32_t in_next_step = tide_bitset_below(&l->kept, l->schedule_step_first[schedule_step]);
    return in_next_step != TIDE_USE_NONE ? in_next_step : tide_bitset_below(&l->kept, l->trace->use_count);
}

/* Walk over one schedule step: end stretches, give up as many as needed (their number is returned), begin new
 * ones. */
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

/* For step 0 the words of `kept` itself; for n > 0 the copy made when the walk's n-th step began. */
static uint64_t *words_at(const tide_least *l, uint32_t step)
{
    return l->words + step * l->word_count;
}

/* The number of the first step before step `now` that began with the same kept stretches as there are at
 * present; `now` if there is none. */
static uint32_t step_alike(const tide_least *l, uint32_t now)
{
    uint32_t step = 0;
    while (step < now && memcmp(words_at(l, step + 1), words_at(l, 0), l->word_count * sizeof *l->words) != 0)
        step++;
    return step;
}

/* Walk step after step until the walk repeats or STEPS_MAX is reached. Returns the bound: the certain copies
 * and the average number of stretches given up per step, rounded down. */
static uint64_t walk_steps(tide_least *l)
{
    uint64_t given_up[STEPS_MAX + 1] = {0}, most = 0; /* given_up[n]: in the first n steps */
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

/* Add `by` to the crowd at all schedule steps of a use: 1, or UINT32_MAX to subtract 1. Until sum_crowd an
 * entry of `crowd` is the difference to the entry before. */
static void add_to_crowd(tide_least *l, uint32_t use, uint32_t by)
{
    const tide_trace_use *u = &l->trace->uses[use];
    l->crowd[u->schedule_step] += by;
    l->crowd[u->schedule_step + u->held_schedule_steps + 1] -= by;
}

/* Reset to no stretches, with every chunk in the crowd while it is in use. */
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

/* The bound on copies in. A use with the flag CREATES needs no copy. After a use with the flag LEAVES the
 * chunk's next use always needs one. Any other two successive uses of a chunk have a stretch between them,
 * which costs a copy if it is given up. Since these are all copies, the bound is exact. */
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

/* A span of uses of a chunk: from one that modifies its content to the last one that needs that content,
 * which is the next use that modifies or the use with which the content ends. */
typedef struct span {
    uint32_t first, last;
    /* the use before the span's widest gap, and the number of schedule steps in that gap */
    uint32_t widest, widest_schedule_steps;
    bool goes; /* the chunk must go to the host before the span ends, so every policy copies it out */
} span;

static bool modifies(const tide_trace_use *use)
{
    return (use->flags & (TIDE_TRACE_MODIFIES | TIDE_TRACE_CREATES)) != 0;
}

/* The span that begins with the use `first`, which modifies. It ends at `first` in the next step at the
 * latest. The gap before a use with the flag CREATES does not belong to it: the content counts as dead after
 * its last use, which can only lower the bound. */
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

/* The bound on copies out. A span costs one copy, after which the chunk is clean until it is modified again;
 * it costs none if the chunk stays on the device through all gaps of the span. A stretch has only one gap, so
 * there are two ways to make a stretch of a span, each of which gives a bound at most the true one:
 *
 *   whole false  the span's widest gap is the stretch. A chunk that stays through all gaps stays through that
 *                one, too.
 *   whole true   the whole span is the stretch. Its uses in between are taken out of the crowd, since the
 *                kept
 *                stretch has their slot. If the stretch is given up, they stay out of the crowd, so that the
 *                walk counts more free slots than there are.
 */
static uint64_t least_out(tide_least *l, bool whole)
{
    begin_stretches(l);
    for (uint32_t use = 0; use < l->trace->use_count; use++) {
        if (!modifies(&l->trace->uses[use]) || l->trace->uses[use].flags & TIDE_TRACE_ENDS)
            continue;
        const span s = span_from(l, use);
        l->certain += s.goes;
        /* a gap without schedule steps can't be given up */
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
 * is the index at which the next use of schedule step m is put; after the sort it is where schedule step m +
 * 1 begins. */
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
