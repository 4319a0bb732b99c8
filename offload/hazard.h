/* The hazard checker: does every two conflicting accesses' order follow from streams and events?
 *
 * Devices ask it when they enqueue, in program order, so it finds a missing wait on every run, whatever the
 * timing. A pure data structure: no threads, no clock, no memory of the objects themselves. The caller holds
 * one lock around every call.
 *
 * Actors are the streams and up to 16 host threads. Order is kept as vector clocks (Lamport's
 * happened-before; of an object it keeps as much as FastTrack: the last write, and each actor's last read
 * since):
 *
 *   clock[actor][other]   the latest tick of `other` that everything `actor` does from now on comes after
 *
 *   command on a stream   the stream joins the enqueuing thread's clock and ticks
 *   touch by a thread     the thread ticks
 *   record                the event takes the stream's clock (joined with the recording thread's)
 *   stream wait           the stream joins the event's clock
 *   host wait             the thread joins it
 *
 * An access is ordered after an earlier one when the earlier one's tick is within the clock. A read must be
 * ordered after the last write; a write after the last write and after every read since. That is enough to
 * find the first race: until there is one, writes of an object are totally ordered.
 *
 * Unmapping a slot from a chunk's place needs all uses of the slot ordered before, but is no access to its content:
 * whoever uses the slot through its next place is ordered by the copy that fills it.
 *
 * Locks between host threads are not modelled, on purpose: a mutex orders no streams.
 */
#ifndef TIDE_OFFLOAD_HAZARD_H
#define TIDE_OFFLOAD_HAZARD_H

#include "offload/device.h"

typedef struct tide_hazard tide_hazard;

enum {
    TIDE_HAZARD_HOST_THREADS_MAX = 16,
    TIDE_HAZARD_ACTOR_COUNT = TIDE_STREAM_COUNT + TIDE_HAZARD_HOST_THREADS_MAX,
};

/* An actor number: a stream, or what tide_hazard_host_find gave. */
typedef uint32_t tide_hazard_actor;

tide_status tide_hazard_create(tide_hazard **hazard);
void tide_hazard_destroy(tide_hazard *hazard);
/* No clock has a later tick of an actor than the actor's own, and neither has an access to an object. Walks
 * everything. */
bool tide_hazard_is_valid(const tide_hazard *hazard);

/* Add `count` objects of one kind, numbered on from those that exist; `name` (may be NULL) must outlive the
 * checker. NO_MEMORY: nothing changed. */
tide_status tide_hazard_objects_add(tide_hazard *hazard, tide_object_kind kind, const char *name,
                                    uint32_t count);
/* Make events 1 .. count known, not yet recorded. NO_MEMORY: nothing changed. */
tide_status tide_hazard_events_reserve(tide_hazard *hazard, uint32_t count);
/* The actor of a host thread, made at its first use. STATE when there are too many. */
tide_status tide_hazard_host_find(tide_hazard *hazard, uint64_t thread_number, tide_hazard_actor *host);

/* A command enqueued on `stream` by `host`. HAZARD, naming both commands, if one of its accesses is not
 * ordered; ARGUMENT for an object that does not exist. On failure nothing changed. */
tide_status tide_hazard_command(tide_hazard *hazard, tide_stream stream, tide_hazard_actor host,
                                const tide_work *work);
/* Accesses of the host thread itself. Statuses as above. */
tide_status tide_hazard_touch(tide_hazard *hazard, tide_hazard_actor host, const tide_work *work);

/* The host thread takes a device slot's chunk place away: all that was done to the slot must be ordered
 * before, for any command may reach it there. HAZARD as above; records no access, since the content is not
 * touched. */
tide_status tide_hazard_unmap(const tide_hazard *hazard, tide_hazard_actor host, uint32_t slot);

void tide_hazard_record(tide_hazard *hazard, tide_event event, tide_stream stream, tide_hazard_actor host);
void tide_hazard_stream_wait(tide_hazard *hazard, tide_stream stream, tide_hazard_actor host,
                             tide_event event);
void tide_hazard_host_wait(tide_hazard *hazard, tide_hazard_actor host, tide_event event);
/* The thread is ordered after all that was done so far, by streams and by other threads. */
void tide_hazard_host_wait_all(tide_hazard *hazard, tide_hazard_actor host);
/* Everything is idle and whatever happened before is settled: forget all accesses. */
void tide_hazard_forget(tide_hazard *hazard);

#endif
