/* See leaving.h. */
#include "chunk/leaving.h"

#include <assert.h>
#include <stdlib.h>

enum { GOES = TIDE_MARK_LEAVING | TIDE_MARK_WRITING };

/* Whose host copy is not given up for one that leaves: it would only have to be made again. */
enum { SPARED_DUPLICATES = TIDE_MARK_GATHER_HOST | GOES | TIDE_MARK_KEPT };

tide_status tide_leaving_create(tide_leaving *leaving, tide_victims *victims)
{
    const uint32_t chunks = victims->places->chunk_count;
    *leaving = (tide_leaving){.places = victims->places,
                              .moves = victims->moves,
                              .future = victims->future,
                              .dues = victims->dues,
                              .victims = victims,
                              .passed = UINT64_MAX};
    leaving->next = calloc(chunks, sizeof *leaving->next);
    leaving->ends = calloc(chunks, sizeof *leaving->ends);
    if (!leaving->next || !leaving->ends)
        return tide_fail(TIDE_ERROR_NO_MEMORY, "manager: no memory for a queue of %u chunks", chunks);
    return TIDE_OK;
}

void tide_leaving_destroy(tide_leaving *leaving)
{
    free(leaving->next);
    free(leaving->ends);
    *leaving = (tide_leaving){.count = 0};
}

static uint32_t marks_of(const tide_leaving *l, tide_chunk chunk)
{
    return tide_place_of(l->places, chunk)->marks;
}

/* --- the queue --- */

static void enqueue(tide_leaving *l, tide_chunk chunk, uint32_t marks)
{
    const bool queued = marks_of(l, chunk) & TIDE_MARK_QUEUED;
    tide_places_mark(l->places, chunk, TIDE_MARK_QUEUED | marks);
    if (queued)
        return;
    if (l->count++ == 0)
        l->head = chunk;
    else
        l->next[l->tail] = chunk;
    l->tail = chunk;
}

static tide_chunk dequeue(tide_leaving *l)
{
    const tide_chunk chunk = l->head;
    assert(l->count > 0);
    l->head = l->next[chunk];
    l->count--;
    tide_places_unmark(l->places, chunk, TIDE_MARK_QUEUED);
    return chunk;
}

void tide_leaving_use_ended(tide_leaving *leaving, const tide_chunk *chunks, uint32_t count,
                            uint32_t first_use, uint64_t ends)
{
    const tide_step_plan *step = first_use == TIDE_USE_NONE ? NULL : tide_future_plan(leaving->future);
    for (uint32_t i = 0; i < count; i++) {
        assert(!step || step->trace.uses[first_use + i].chunk == chunks[i]);
        leaving->ends[chunks[i]] = ends;
        if (step && step->plan->leaves[first_use + i])
            enqueue(leaving, chunks[i], TIDE_MARK_LEAVING);
        else if (tide_dues_must_leave(leaving->dues, chunks[i]))
            enqueue(leaving, chunks[i], step ? TIDE_MARK_WRITING | TIDE_MARK_KEPT : TIDE_MARK_LEAVING);
    }
}

void tide_leaving_let_stay(tide_leaving *leaving, const tide_chunk *chunks, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++)
        if (marks_of(leaving, chunks[i]) & GOES && !tide_dues_must_leave(leaving->dues, chunks[i]))
            tide_places_unmark(leaving->places, chunks[i], GOES);
}

/* --- who is next --- */

/* It is wanted again, or somebody holds it. */
static bool stays(const tide_leaving *l, tide_chunk chunk)
{
    const tide_place *place = tide_place_of(l->places, chunk);
    return place->marks & TIDE_MARK_GATHER_DEVICE ||
           (place->marks & TIDE_MARK_REQUESTED && !tide_dues_must_leave(l->dues, chunk)) ||
           (!place->busy && !tide_place_is_movable(place));
}

/* The smaller, the sooner it leaves: leaving.h. */
static uint64_t rank_of(const tide_leaving *l, tide_chunk chunk)
{
    const uint64_t band = (uint64_t)1 << 40;
    const tide_place *place = tide_place_of(l->places, chunk);
    if (!tide_place_is_dirty(place))
        return 0;
    if (l->ends[chunk] > l->passed)
        return 3 * band + l->ends[chunk];
    const bool no_hurry = !(place->marks & TIDE_MARK_LEAVING) && !tide_dues_has(l->dues, chunk);
    const bool requested = place->marks & TIDE_MARK_REQUESTED; /* its next use is the one after */
    return (no_hurry ? 2 : 1) * band + (requested ? 0 : tide_future_next_use(l->future, chunk));
}

/* Of the queue, by that rank, what a mark of `marks` is on. Chunks that stay, and those that nothing is left to do for,
 * drop out. TIDE_CHUNK_NONE if none may go now. */
static tide_chunk choose(tide_leaving *l, uint32_t marks, bool with_copy)
{
    tide_chunk best = TIDE_CHUNK_NONE;
    uint64_t best_rank = UINT64_MAX;
    const bool host_slot =
        l->count > 0 && with_copy && tide_victims_has_host_slot(l->victims, SPARED_DUPLICATES);
    for (uint32_t left = l->count; left > 0; left--) {
        const tide_chunk chunk = dequeue(l);
        const tide_place *place = tide_place_of(l->places, chunk);
        if (!(place->marks & GOES))
            continue;
        if (stays(l, chunk)) {
            tide_places_unmark(l->places, chunk, GOES | TIDE_MARK_KEPT);
            continue;
        }
        enqueue(l, chunk, 0);
        const bool now = !place->busy && (!tide_place_is_dirty(place) || host_slot);
        const uint64_t rank = rank_of(l, chunk);
        if (!now || !(place->marks & marks) || (rank > 0 && !with_copy) || rank >= best_rank)
            continue;
        best = chunk;
        best_rank = rank;
    }
    return best;
}

/* Do for a chunk what there is to do. False if nothing: it is clean, and stays. */
static bool let_go(tide_leaving *l, tide_chunk chunk, tide_command *command)
{
    const bool dirty = tide_place_is_dirty(tide_place_of(l->places, chunk));
    const bool leaves = marks_of(l, chunk) & TIDE_MARK_LEAVING;
    /* Before its update is let go, a chunk leaves because it is planned: the step that makes the gradient moves it. */
    const tide_reason reason = tide_dues_has(l->dues, chunk) ? TIDE_REASON_UPDATE : TIDE_REASON_PREFETCH;
    const bool room = !dirty || tide_victims_free_host_slot(l->victims, SPARED_DUPLICATES);
    assert(room);
    (void)room;
    if (leaves)
        tide_moves_evict(l->moves, chunk, dirty, reason, command);
    else if (dirty)
        tide_moves_write_back(l->moves, chunk, reason, command);
    tide_places_unmark(l->places, chunk, GOES);
    return leaves || dirty;
}

static bool next(tide_leaving *l, uint32_t marks, bool with_copy, tide_command *command)
{
    for (;;) {
        const tide_chunk chunk = choose(l, marks, with_copy);
        if (chunk == TIDE_CHUNK_NONE)
            return false;
        if (let_go(l, chunk, command))
            return true;
    }
}

bool tide_leaving_next(tide_leaving *leaving, const tide_turn *turn, tide_command *command)
{
    return next(leaving, GOES, !turn->out_busy, command);
}

bool tide_leaving_next_slot(tide_leaving *leaving, bool with_copy, tide_command *command)
{
    return next(leaving, TIDE_MARK_LEAVING, with_copy, command);
}
