#include "chunk/eviction_queue.h"

#include <assert.h>
#include <stdlib.h>

/* When an evicted chunk needs a host slot, do not take the slot of a chunk with one of these marks: that
 * chunk would have to be copied out again. */
enum { SPARED_DUPLICATES = TIDE_MARK_ASSEMBLE_HOST | TIDE_MARKS_QUEUED | TIDE_MARK_KEPT };

enum {
    CLEAN = 0,  /* the chunk needs no copy */
    URGENT,     /* a request waits for the chunk's update */
    LEAVES,     /* evict: the chunk's use has ended */
    WRITES,     /* copy out only: the chunk's update is pending */
    WRITES_OFF, /* copy out only: the chunk can't be updated yet */
    BUCKETS,
};

/* The rings of chunks whose uses have not ended on the device: chunks to evict, and chunks only to copy
 * out. */
enum { LATE_EVICTING = 0, LATE_WRITING, LATE_RINGS };

tide_status tide_eviction_queue_create(tide_eviction_queue *queue, tide_victims *victims)
{
    const uint32_t chunks = victims->places->chunk_count;
    *queue = (tide_eviction_queue){.places = victims->places,
                                   .future = victims->future,
                                   .pending = victims->pending,
                                   .victims = victims,
                                   .passed = UINT64_MAX};
    queue->late = malloc((chunks + LATE_RINGS) * sizeof *queue->late);
    if (!queue->late)
        return tide_fail(TIDE_ERROR_NO_MEMORY, "manager: no memory for the uses of %u chunks", chunks);
    for (uint32_t at = 0; at < chunks + LATE_RINGS; at++)
        queue->late[at] = (tide_late_use){.next = at, .previous = at};
    return tide_priority_buckets_create(&queue->buckets, victims->places, BUCKETS,
                                        tide_future_keys(queue->future));
}

void tide_eviction_queue_destroy(tide_eviction_queue *queue)
{
    free(queue->late);
    queue->late = NULL;
    tide_priority_buckets_destroy(&queue->buckets);
}

/* --- queueing --- */

static bool is_late(const tide_eviction_queue *l, tide_chunk chunk)
{
    return l->late[chunk].next != chunk;
}

static void unlink_late(tide_eviction_queue *l, tide_chunk chunk)
{
    tide_late_use *use = &l->late[chunk];
    l->late[use->previous].next = use->next;
    l->late[use->next].previous = use->previous;
    use->next = use->previous = chunk;
}

static uint32_t head_of(const tide_eviction_queue *l, int ring)
{
    return l->places->chunk_count + (uint32_t)ring;
}

static void link_late(tide_eviction_queue *l, tide_chunk chunk, int ring, uint64_t ends)
{
    const uint32_t head = head_of(l, ring), last = l->late[head].previous;
    assert(!is_late(l, chunk));
    assert(last == head || l->late[last].ends <= ends);
    l->late[chunk] = (tide_late_use){.ends = ends, .next = head, .previous = last};
    l->late[last].next = l->late[head].previous = chunk;
}

/* Queue a chunk with the mark EVICTING, or WRITING to copy it out only. An eviction includes the copy out, so
 * a chunk with EVICTING has no WRITING. */
static void let_go(tide_eviction_queue *l, tide_chunk chunk, uint32_t marks, uint64_t ends)
{
    const bool leaves = (marks | tide_place_of(l->places, chunk)->marks) & TIDE_MARK_EVICTING;
    assert(ends <= l->ended + 1);
    tide_places_change_marks(l->places, chunk, marks, leaves ? TIDE_MARK_WRITING : 0);
    unlink_late(l, chunk);
    if (ends > l->passed)
        link_late(l, chunk, leaves ? LATE_EVICTING : LATE_WRITING, ends);
}

void tide_eviction_queue_use_ended(tide_eviction_queue *queue, const tide_chunk *chunks, uint32_t count,
                                   uint32_t first_use, uint64_t ends)
{
    const tide_step_plan *step = first_use == TIDE_USE_NONE ? NULL : tide_future_plan(queue->future);
    for (uint32_t i = 0; i < count; i++) {
        assert(!step || step->trace.uses[first_use + i].chunk == chunks[i]);
        if (step && step->plan->leaves[first_use + i])
            let_go(queue, chunks[i], TIDE_MARK_EVICTING, ends);
        else if (tide_pending_must_leave(queue->pending, chunks[i]))
            let_go(queue, chunks[i], step ? TIDE_MARK_WRITING | TIDE_MARK_KEPT : TIDE_MARK_EVICTING, ends);
    }
}

void tide_eviction_queue_let_stay(tide_eviction_queue *queue, const tide_chunk *chunks, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++)
        if (tide_place_of(queue->places, chunks[i])->marks & TIDE_MARKS_QUEUED &&
            !tide_pending_must_leave(queue->pending, chunks[i]))
            tide_places_unmark(queue->places, chunks[i], TIDE_MARKS_QUEUED);
}

void tide_eviction_queue_set_passed(tide_eviction_queue *queue, uint64_t ends)
{
    assert(ends <= queue->ended && (ends >= queue->passed || queue->passed == UINT64_MAX));
    queue->passed = ends;
}

/* --- buckets --- */

/* Must a queued chunk stay on the device, because a task or a request needs it there or it is pinned
 * there? */
static bool stays(const tide_eviction_queue *l, tide_chunk chunk)
{
    const tide_place *place = tide_place_of(l->places, chunk);
    return place->marks & TIDE_MARK_ASSEMBLE_DEVICE ||
           (place->marks & TIDE_MARK_REQUESTED && !tide_pending_must_leave(l->pending, chunk)) ||
           (!place->busy && !tide_place_is_movable(place));
}

static uint32_t bucket_of(const tide_eviction_queue *l, tide_chunk chunk)
{
    const tide_place *place = tide_place_of(l->places, chunk);
    if (!(place->marks & TIDE_MARKS_QUEUED) || place->busy)
        return TIDE_BUCKET_NONE;
    if (!tide_place_is_dirty(place))
        return CLEAN;
    if (is_late(l, chunk))
        return TIDE_BUCKET_NONE;
    if (place->marks & TIDE_MARK_REQUESTED)
        return URGENT;
    if (place->marks & TIDE_MARK_EVICTING)
        return LEAVES;
    return tide_pending_has(l->pending, chunk) ? WRITES : WRITES_OFF;
}

static uint32_t key_of(const tide_eviction_queue *l, tide_chunk chunk)
{
    return l->future->active ? tide_future_use_key(l->future, chunk)
                             : tide_future_never_key(l->future, chunk);
}

static void sort(tide_eviction_queue *l, tide_chunk chunk)
{
    const tide_place *place = tide_place_of(l->places, chunk);
    const bool goes = place->marks & TIDE_MARKS_QUEUED;
    if (goes && stays(l, chunk))
        tide_places_unmark(l->places, chunk, TIDE_MARKS_QUEUED | TIDE_MARK_KEPT);
    else if (goes && place->marks & TIDE_MARK_WRITING && !place->busy && !tide_place_is_dirty(place))
        /* the host has a copy already */
        tide_places_unmark(l->places, chunk, TIDE_MARK_WRITING);
    if (!(place->marks & TIDE_MARKS_QUEUED))
        unlink_late(l, chunk);
    const uint32_t bucket = bucket_of(l, chunk);
    assert(bucket == TIDE_BUCKET_NONE || tide_place_is_movable(place));
    tide_priority_buckets_put(&l->buckets, chunk, bucket, bucket == TIDE_BUCKET_NONE ? 0 : key_of(l, chunk));
}

/* Sort into buckets those chunks of a ring whose uses have ended on the device. */
static void sort_passed(tide_eviction_queue *l, int ring)
{
    const uint32_t head = head_of(l, ring);
    while (l->late[head].next != head && l->late[l->late[head].next].ends <= l->passed) {
        const tide_chunk oldest = l->late[head].next;
        unlink_late(l, oldest);
        sort(l, oldest);
    }
}

/* The chunk in a ring whose use will end first, of those that can be moved. */
static tide_chunk first_late(const tide_eviction_queue *l, int ring)
{
    uint32_t at = l->late[head_of(l, ring)].next;
    while (at != head_of(l, ring) && tide_place_of(l->places, at)->busy)
        at = l->late[at].next;
    return at != head_of(l, ring) ? at : TIDE_CHUNK_NONE;
}

static void look_again(tide_eviction_queue *l)
{
    tide_chunk chunk;
    if (l->epoch != l->future->epoch) {
        l->epoch = l->future->epoch;
        tide_priority_buckets_clear(&l->buckets);
        tide_places_notify_all(l->places, TIDE_SUBSCRIBER_EVICTION_QUEUE);
    }
    while ((chunk = tide_places_next_changed(l->places, TIDE_SUBSCRIBER_EVICTION_QUEUE)) != TIDE_CHUNK_NONE)
        sort(l, chunk);
    sort_passed(l, LATE_EVICTING);
    sort_passed(l, LATE_WRITING);
}

/* --- the next chunk --- */

static tide_chunk nearest(const tide_eviction_queue *l, uint32_t among, uint32_t spared)
{
    return tide_priority_buckets_nearest(&l->buckets, among, tide_future_horizon(l->future), spared);
}

/* The next chunk that needs a copy out and has one of the marks. */
static tide_chunk choose_with_copy(const tide_eviction_queue *l, uint32_t marks)
{
    const bool writes = marks & TIDE_MARK_WRITING;
    tide_chunk chosen = nearest(l, 1u << URGENT, TIDE_MARKS_QUEUED & ~marks);
    if (chosen == TIDE_CHUNK_NONE)
        chosen = nearest(l, 1u << LEAVES | (writes ? 1u << WRITES : 0), 0);
    if (chosen == TIDE_CHUNK_NONE && writes)
        chosen = nearest(l, 1u << WRITES_OFF, 0);
    if (chosen != TIDE_CHUNK_NONE)
        return chosen;
    const tide_chunk leaves = first_late(l, LATE_EVICTING),
                     written = writes ? first_late(l, LATE_WRITING) : TIDE_CHUNK_NONE;
    if (leaves == TIDE_CHUNK_NONE || written == TIDE_CHUNK_NONE)
        return leaves == TIDE_CHUNK_NONE ? written : leaves;
    return l->late[written].ends < l->late[leaves].ends ? written : leaves;
}

bool tide_eviction_queue_next(tide_eviction_queue *queue, uint32_t marks, bool with_copy,
                              tide_command *command)
{
    if (queue->places->queued == 0)
        return false;
    look_again(queue);
    tide_chunk chunk = nearest(queue, 1u << CLEAN, 0);
    const bool copy = chunk == TIDE_CHUNK_NONE;
    if (copy && with_copy)
        chunk = choose_with_copy(queue, marks);
    if (chunk == TIDE_CHUNK_NONE || (copy && !tide_victims_free_host_slot(queue->victims, SPARED_DUPLICATES)))
        return false;
    /* The reason UPDATE counts the move for the step whose gradients are updated, PREFETCH for the open step.
     * Before the update is pending, both are the same step. */
    const tide_reason reason =
        tide_pending_has(queue->pending, chunk) ? TIDE_REASON_UPDATE : TIDE_REASON_PREFETCH;
    const bool leaves = tide_place_of(queue->places, chunk)->marks & TIDE_MARK_EVICTING;
    assert(copy || leaves);
    tide_moves_out(queue->victims->moves, leaves ? TIDE_COMMAND_EVICT : TIDE_COMMAND_WRITE_BACK, chunk, copy,
                   reason, command);
    tide_places_unmark(queue->places, chunk, TIDE_MARKS_QUEUED);
    return true;
}

/* --- validity --- */

bool tide_eviction_queue_is_valid(const tide_eviction_queue *queue)
{
    if (queue->epoch != queue->future->epoch)
        return true; /* look_again will sort all chunks again */
    for (tide_chunk chunk = 0; chunk < queue->places->chunk_count; chunk++) {
        const tide_place *place = tide_place_of(queue->places, chunk);
        if (place->changed & 1u << TIDE_SUBSCRIBER_EVICTION_QUEUE)
            continue;
        const uint32_t bucket = bucket_of(queue, chunk);
        if ((place->marks & TIDE_MARKS_QUEUED && stays(queue, chunk)) ||
            !tide_priority_buckets_has(&queue->buckets, chunk, bucket,
                                       bucket == TIDE_BUCKET_NONE ? 0 : key_of(queue, chunk)))
            return false;
    }
    return true;
}
