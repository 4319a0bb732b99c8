/* The comparison: pairs of steps, then figures by chunk, by op and by stall. */
#include "tools/trace/trace_compare.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static int compare_reals(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* The median of `count` values that are at least 0: the first `given` are in the array, which the function
 * sorts; the others are 0. */
static double median_of(double *values, uint32_t given, uint32_t count)
{
    assert(given <= count && count > 0);
    qsort(values, given, sizeof *values, compare_reals);
    const uint32_t zeros = count - given, low = (count - 1) / 2, high = count / 2;
    return ((low < zeros ? 0 : values[low - zeros]) + (high < zeros ? 0 : values[high - zeros])) / 2;
}

/* ---- steps ---- */

static uint32_t steady_count(const tide_trace_steps *steps)
{
    return steps->steady_end - steps->steady;
}

static void pair_add(tide_comparison *c, const tide_step_account *first, const tide_step_account *second)
{
    c->paired[0][c->pair_count] = first;
    c->paired[1][c->pair_count++] = second;
}

static void pairs_make(tide_comparison *c)
{
    const tide_trace_steps *first = &c->steps[0], *second = &c->steps[1];
    const uint32_t least =
        steady_count(first) < steady_count(second) ? steady_count(first) : steady_count(second);
    for (uint32_t i = first->steady; i < first->steady_end; i++) {
        const tide_step_account *other = tide_trace_steps_find(second, first->steps[i].line->step);
        if (other != NULL && other >= second->steps + second->steady &&
            other < second->steps + second->steady_end)
            pair_add(c, &first->steps[i], other);
    }
    c->by_number = 2 * c->pair_count >= least;
    if (c->by_number)
        return;
    c->pair_count = 0;
    for (uint32_t i = 0; i < least; i++)
        pair_add(c, &first->steps[first->steady + i], &second->steps[second->steady + i]);
}

/* The number of the pair that has the event's step; NONE: no pair has it. */
static uint32_t pair_of(const tide_comparison *c, int side, const tide_trace_event *event)
{
    const tide_step_account *account =
        event->step != 0 ? tide_trace_steps_find(&c->steps[side], event->step) : NULL;
    uint32_t from = 0, to = account != NULL ? c->pair_count : 0;
    while (from < to) { /* pairs are in the order of the array of accounts */
        const uint32_t middle = from + (to - from) / 2;
        if (c->paired[side][middle] == account)
            return middle;
        if (c->paired[side][middle] < account)
            from = middle + 1;
        else
            to = middle;
    }
    return TIDE_TRACE_NONE;
}

double tide_comparison_median(const tide_comparison *c, int side, tide_step_figure figure, const void *of)
{
    for (uint32_t i = 0; i < c->pair_count; i++)
        c->scratch[i] = figure(c->paired[side][i], of);
    return median_of(c->scratch, c->pair_count, c->pair_count);
}

double tide_comparison_mean(const tide_comparison *c, int side, tide_step_figure figure, const void *of)
{
    double sum = 0;
    for (uint32_t i = 0; i < c->pair_count; i++)
        sum += figure(c->paired[side][i], of);
    return sum / c->pair_count;
}

/* ---- chunks ---- */

static bool chunk_is_same(const tide_trace_model *const models[TIDE_SIDES], uint32_t number)
{
    const tide_traced_chunk *x = &models[0]->chunks[number], *y = &models[1]->chunks[number];
    if (x->space != y->space || x->index != y->index || x->bytes != y->bytes ||
        x->param_count != y->param_count)
        return false;
    for (uint32_t i = 0; i < x->param_count; i++)
        if (strcmp(models[0]->params[x->params[i].param].name, models[1]->params[y->params[i].param].name) !=
            0)
            return false;
    return true;
}

static bool chunks_are_same(const tide_trace_model *const models[TIDE_SIDES])
{
    bool same = models[0]->chunk_count == models[1]->chunk_count;
    for (uint32_t i = 0; same && i < models[0]->chunk_count; i++)
        same = chunk_is_same(models, i);
    return same;
}

static void moves_count(tide_comparison *c, int side)
{
    const tide_trace_model *model = c->steps[side].model;
    for (uint64_t i = 0; i < model->event_count; i++) {
        const tide_trace_event *event = &model->events[i];
        if (event->kind != TIDE_TRACE_COPY || pair_of(c, side, event) == TIDE_TRACE_NONE)
            continue;
        c->moves[side][event->chunk]++;
        c->moved_bytes[side][event->chunk] += event->bytes;
    }
}

static uint64_t bytes_apart(const tide_comparison *c, uint32_t chunk)
{
    const uint64_t first = c->moved_bytes[0][chunk], second = c->moved_bytes[1][chunk];
    return first > second ? first - second : second - first;
}

uint32_t tide_comparison_chunks(const tide_comparison *c, uint32_t *chunks, uint32_t most)
{
    uint32_t count = 0;
    for (uint32_t i = 0; c->same_chunks && i < c->steps[0].model->chunk_count; i++) {
        if (bytes_apart(c, i) == 0)
            continue;
        uint32_t at = count < most ? count++ : most;
        for (; at > 0 && bytes_apart(c, chunks[at - 1]) < bytes_apart(c, i); at--)
            if (at < most)
                chunks[at] = chunks[at - 1];
        if (at < most)
            chunks[at] = i;
    }
    return count;
}

/* ---- ops ---- */

typedef struct op_keys {
    uint32_t *of_second; /* each op's key, for the ops of the second trace */
    /* for each op of the first trace the op of the same name in the second; NONE: there is none */
    uint32_t *second_of;
} op_keys;

/* Order by name, then by number. */
static int compare_ops(const void *a, const void *b, void *of)
{
    const uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    const tide_trace_model *model = of;
    const int names = strcmp(model->ops[x].name, model->ops[y].name);
    return names != 0 ? names : (x > y) - (x < y);
}

/* Give ops of the same name the same key. `in_order` is an array for each side's ops, sorted by name. */
static void keys_give(tide_comparison *c, const tide_trace_model *const models[TIDE_SIDES],
                      uint32_t *const in_order[TIDE_SIDES], const op_keys *keys)
{
    uint32_t i = 0, j = 0;
    for (int side = 0; side < TIDE_SIDES; side++) {
        for (uint32_t k = 0; k < models[side]->op_count; k++)
            in_order[side][k] = k;
        qsort_r(in_order[side], models[side]->op_count, sizeof **in_order, compare_ops, (void *)models[side]);
    }
    while (j < models[1]->op_count) {
        const bool left = i < models[0]->op_count;
        const int names =
            left ? strcmp(models[0]->ops[in_order[0][i]].name, models[1]->ops[in_order[1][j]].name) : 1;
        if (names < 0) {
            keys->second_of[in_order[0][i++]] = TIDE_TRACE_NONE;
            c->lone_ops[0]++;
        } else if (names > 0) {
            keys->of_second[in_order[1][j]] = models[0]->op_count + in_order[1][j];
            c->lone_ops[1]++;
            j++;
        } else {
            keys->of_second[in_order[1][j]] = in_order[0][i];
            keys->second_of[in_order[0][i++]] = in_order[1][j++];
        }
    }
    c->lone_ops[0] += models[0]->op_count - i;
    while (i < models[0]->op_count)
        keys->second_of[in_order[0][i++]] = TIDE_TRACE_NONE;
}

/* ---- stalls and ops ---- */

/* The time of one stall or of an op's kernels, in a step of one side. Entries with the same op, slice and
 * cause are of one place. */
typedef struct entry {
    uint64_t ns;
    const tide_trace_event *event;
    const char *cause; /* of a stall; NULL: the time of kernels */
    uint32_t op, slice, pair;
    int side;
} entry;

static int compare_places(const entry *x, const entry *y)
{
    if ((x->cause != NULL) != (y->cause != NULL))
        return x->cause != NULL ? -1 : 1;
    if (x->op != y->op)
        return x->op < y->op ? -1 : 1;
    if (x->slice != y->slice)
        return x->slice < y->slice ? -1 : 1;
    return x->cause != NULL ? strcmp(x->cause, y->cause) : 0;
}

static int compare_entries(const void *a, const void *b)
{
    const entry *x = a, *y = b;
    const int places = compare_places(x, y);
    if (places != 0)
        return places;
    if (x->side != y->side)
        return x->side < y->side ? -1 : 1;
    return (x->pair > y->pair) - (x->pair < y->pair);
}

/* Make the event's entry. False: the event belongs to no pair, or is neither a stall nor an op's kernels. */
static bool entry_make(const tide_comparison *c, int side, const op_keys *keys, const tide_trace_event *event,
                       entry *made)
{
    const bool stalls = event->kind == TIDE_TRACE_STALL;
    if (!stalls && (event->kind != TIDE_TRACE_OP || event->op == TIDE_TRACE_NONE))
        return false;
    *made = (entry){.ns = stalls ? event->end_ns - event->begin_ns : event->busy_ns,
                    .event = event,
                    .cause = stalls ? tide_stall_cause_name(event->cause) : NULL,
                    .op = event->op == TIDE_TRACE_NONE || side == 0 ? event->op : keys->of_second[event->op],
                    .slice = stalls ? event->slice : TIDE_TRACE_NONE,
                    .pair = pair_of(c, side, event),
                    .side = side};
    return made->pair != TIDE_TRACE_NONE;
}

/* The median over all pairs of the time that one place of one side took in a pair. The entries are of that
 * place and side; *longest is the longest one's event. */
static double place_median(const tide_comparison *c, const entry *entries, uint64_t count,
                           const tide_trace_event **longest)
{
    double *sums = c->scratch;
    uint32_t given = 0;
    uint64_t most = 0;
    for (uint64_t i = 0; i < count; i++) {
        if (i == 0 || entries[i].pair != entries[i - 1].pair)
            sums[given++] = 0;
        sums[given - 1] += (double)entries[i].ns * 1e-9;
        if (*longest == NULL || entries[i].ns > most) {
            *longest = entries[i].event;
            most = entries[i].ns;
        }
    }
    return median_of(sums, given, c->pair_count);
}

/* Find the key's op in each trace, NONE where a trace does not have it. */
static void ops_of_key(const tide_comparison *c, const op_keys *keys, uint32_t key, uint32_t op[TIDE_SIDES])
{
    const uint32_t of_first = c->steps[0].model->op_count;
    op[0] = op[1] = TIDE_TRACE_NONE;
    if (key == TIDE_TRACE_NONE)
        return;
    if (key < of_first)
        op[0] = key;
    op[1] = key < of_first ? keys->second_of[key] : key - of_first;
}

/* Add the entries of one place, of both sides, as a stall or an op of the comparison. */
static void place_add(tide_comparison *c, const op_keys *keys, const entry *entries, uint64_t count)
{
    tide_compared_stall place = {.slice = entries->slice, .cause = entries->cause};
    uint64_t of_first = 0;
    while (of_first < count && entries[of_first].side == 0)
        of_first++;
    place.seconds[0] = place_median(c, entries, of_first, &place.longest[0]);
    place.seconds[1] = place_median(c, entries + of_first, count - of_first, &place.longest[1]);
    ops_of_key(c, keys, entries->op, place.op);
    if (place.cause != NULL)
        c->stalls[c->stall_count++] = place;
    else if (place.op[0] != TIDE_TRACE_NONE && place.op[1] != TIDE_TRACE_NONE)
        c->ops[c->op_count++] = (tide_compared_op){.op = {place.op[0], place.op[1]},
                                                   .seconds = {place.seconds[0], place.seconds[1]}};
}

static int compare_differences(double x, double y)
{
    return (fabs(x) < fabs(y)) - (fabs(x) > fabs(y));
}

static int compare_stalls(const void *a, const void *b)
{
    const tide_compared_stall *x = a, *y = b;
    return compare_differences(x->seconds[1] - x->seconds[0], y->seconds[1] - y->seconds[0]);
}

static int compare_kernels(const void *a, const void *b)
{
    const tide_compared_op *x = a, *y = b;
    return compare_differences(x->seconds[1] - x->seconds[0], y->seconds[1] - y->seconds[0]);
}

/* Make stalls and ops from all entries, which are sorted. */
static void places_make(tide_comparison *c, const op_keys *keys, const entry *entries, uint64_t count)
{
    uint64_t begin = 0;
    for (uint64_t i = 1; i <= count; i++)
        if (i == count || compare_places(&entries[i], &entries[begin]) != 0) {
            place_add(c, keys, &entries[begin], i - begin);
            begin = i;
        }
    qsort(c->stalls, c->stall_count, sizeof *c->stalls, compare_stalls);
    qsort(c->ops, c->op_count, sizeof *c->ops, compare_kernels);
}

static bool is_stall_or_op(const tide_trace_event *event)
{
    return event->kind == TIDE_TRACE_STALL || event->kind == TIDE_TRACE_OP;
}

static bool times_compare(tide_comparison *c, const tide_trace_model *const models[TIDE_SIDES])
{
    uint64_t capacity = 0, count = 0;
    for (int side = 0; side < TIDE_SIDES; side++)
        for (uint64_t i = 0; i < models[side]->event_count; i++)
            capacity += is_stall_or_op(&models[side]->events[i]);
    const op_keys keys = {tide_arrays_add(&c->memory, models[1]->op_count, sizeof *keys.of_second),
                          tide_arrays_add(&c->memory, models[0]->op_count, sizeof *keys.second_of)};
    uint32_t *const in_order[TIDE_SIDES] = {
        tide_arrays_add(&c->memory, models[0]->op_count, sizeof **in_order),
        tide_arrays_add(&c->memory, models[1]->op_count, sizeof **in_order)};
    entry *entries = tide_arrays_add(&c->memory, capacity, sizeof *entries);
    c->stalls = tide_arrays_add(&c->memory, capacity, sizeof *c->stalls);
    c->ops = tide_arrays_add(&c->memory, models[0]->op_count, sizeof *c->ops);
    if (c->memory.lacks)
        return false;
    keys_give(c, models, in_order, &keys);
    for (int side = 0; side < TIDE_SIDES; side++)
        for (uint64_t i = 0; i < models[side]->event_count; i++)
            count += entry_make(c, side, &keys, &models[side]->events[i], &entries[count]);
    qsort(entries, count, sizeof *entries, compare_entries);
    places_make(c, &keys, entries, count);
    return true;
}

/* ---- the comparison ---- */

static tide_status parts_make(tide_comparison *c, const tide_trace_model *const models[TIDE_SIDES])
{
    const uint32_t steps = c->steps[0].count > c->steps[1].count ? c->steps[0].count : c->steps[1].count;
    for (int side = 0; side < TIDE_SIDES; side++) {
        c->paired[side] = tide_arrays_add(&c->memory, steps, sizeof **c->paired);
        c->moves[side] = tide_arrays_add(&c->memory, models[side]->chunk_count, sizeof **c->moves);
        c->moved_bytes[side] =
            tide_arrays_add(&c->memory, models[side]->chunk_count, sizeof **c->moved_bytes);
    }
    c->scratch = tide_arrays_add(&c->memory, steps, sizeof *c->scratch);
    if (c->memory.lacks)
        return tide_fail(TIDE_ERROR_NO_MEMORY, "no memory to compare steps");
    pairs_make(c);
    c->same_chunks = chunks_are_same(models);
    moves_count(c, 0);
    moves_count(c, 1);
    return times_compare(c, models) ? TIDE_OK
                                    : tide_fail(TIDE_ERROR_NO_MEMORY, "no memory to compare stalls");
}

tide_status tide_comparison_make(const tide_trace_model *first, const tide_trace_model *second,
                                 tide_comparison *c)
{
    const tide_trace_model *const models[TIDE_SIDES] = {first, second};
    *c = (tide_comparison){.pair_count = 0};
    for (int side = 0; side < TIDE_SIDES; side++) {
        tide_status status = tide_trace_steps_make(models[side], &c->steps[side]);
        if (status != TIDE_OK)
            return status;
        if (c->steps[side].count == 0)
            return tide_fail(TIDE_ERROR_ARGUMENT, "%s: no whole step to compare", models[side]->path);
    }
    return parts_make(c, models);
}

void tide_comparison_free(tide_comparison *c)
{
    tide_trace_steps_free(&c->steps[0]);
    tide_trace_steps_free(&c->steps[1]);
    tide_arrays_free(&c->memory);
}
