/* The hazard checker finds two conflicting accesses to an object that neither a stream nor events order.
 *
 * Devices tell it of each command when they enqueue it, so it finds a missing wait in every run, whatever the
 * timing. It is a pure data structure: it has no threads and no clock, and never reads the objects
 * themselves. The caller holds one lock around every call.
 *
 * Actors are the streams and up to 16 host threads. Each actor has a vector clock (Lamport's
 * happened-before). For each object the checker keeps, like FastTrack, the last write and each actor's last
 * read since.
 *
 *   clock[actor][other]   the latest tick of `other` that comes before all that `actor` does from now on
 *
 *   command on a stream   the stream joins the enqueuing thread's clock and ticks
 *   touch by a thread     the thread ticks
 *   record                the event takes the stream's clock (joined with the recording thread's)
 *   stream wait           the stream joins the event's clock
 *   host wait             the thread joins the event's clock
 *
 * An access is ordered after an earlier one if the tick of the earlier one is within the clock of the later
 * one's actor. A read must be ordered after the last write; a write after the last write and after every read
 * since. That is enough to find the first race: until there is one, the writes of an object are totally
 * ordered.
 *
 * All uses of a slot must be ordered before it is unmapped from a chunk's place. Yet an unmap is no access to
 * the slot's content: whoever uses the slot at its next place is ordered by the copy that fills it.
 *
 * The checker ignores locks between host threads on purpose, since a mutex does not order streams.
 */
#ifndef TIDE_OFFLOAD_HAZARD_H
#define TIDE_OFFLOAD_HAZARD_H

#include "offload/device.h"

typedef struct tide_hazard tide_hazard;

enum {
    TIDE_HAZARD_HOST_THREADS_MAX = 16,
    TIDE_HAZARD_ACTOR_COUNT = TIDE_STREAM_COUNT + TIDE_HAZARD_HOST_THREADS_MAX,
};

/* An actor's number: a stream, or the number from tide_hazard_host_find. */
typedef uint32_t tide_hazard_actor;

tide_status tide_hazard_create(tide_hazard **hazard);
void tide_hazard_destroy(tide_hazard *hazard);
/* Check: no clock and no access has a later tick of an actor than the actor's own. Walks everything. */
bool tide_hazard_is_valid(const tide_hazard *hazard);

/* Add `count` objects of one kind, numbered after those that exist. `name` (may be NULL) must outlive the
 * checker. NO_MEMORY: nothing changed. */
tide_status tide_hazard_objects_add(tide_hazard *hazard, tide_object_kind kind, const char *name,
                                    uint32_t count);
/* Add events up to number `count`, not yet recorded. NO_MEMORY: nothing changed. */
tide_status tide_hazard_events_reserve(tide_hazard *hazard, uint32_t count);
/* The actor of a host thread, which the first call for the thread adds. STATE: there are too many. */
tide_status tide_hazard_host_find(tide_hazard *hazard, uint64_t thread_number, tide_hazard_actor *host);

/* `host` enqueues a command on `stream`. HAZARD, with both commands in the message: one of its accesses is
 * not ordered. ARGUMENT: an object does not exist. After a failure nothing has changed. */
tide_status tide_hazard_command(tide_hazard *hazard, tide_stream stream, tide_hazard_actor host,
                                const tide_work *work);
/* The host thread itself accesses objects. Statuses as of tide_hazard_command. */
tide_status tide_hazard_touch(tide_hazard *hazard, tide_hazard_actor host, const tide_work *work);

/* The host thread unmaps a device slot from its chunk's place: all accesses to the slot must be ordered
 * before, since any command may access a slot at its place. HAZARD as tide_hazard_command. Records no access,
 * since the content stays. */
tide_status tide_hazard_unmap(const tide_hazard *hazard, tide_hazard_actor host, uint32_t slot);

void tide_hazard_record(tide_hazard *hazard, tide_event event, tide_stream stream, tide_hazard_actor host);
void tide_hazard_stream_wait(tide_hazard *hazard, tide_stream stream, tide_hazard_actor host,
                             tide_event event);
void tide_hazard_host_wait(tide_hazard *hazard, tide_hazard_actor host, tide_event event);
/* Order the thread after everything that streams and other threads have done so far. */
void tide_hazard_host_wait_all(tide_hazard *hazard, tide_hazard_actor host);
/* Forget all accesses. The device is idle, so nothing later can conflict with them. */
void tide_hazard_forget(tide_hazard *hazard);

#endif
