/* Makes the head of the roll a command when it can be issued, and brings to the device the rank's own member
 * of the group that is to be gathered.
 *
 *   GATHER   waits until the own member is on the device with its values: no update of it is pending
 *   REDUCE   waits for nothing: the op that it is of has pinned its chunks until then
 *   NORM     waits for nothing
 *
 * Collectives are issued one after another, so at most one is an open command. If the open request cannot go
 * on before the head is issued, the head comes first: it may take the slots of the request's chunks, which
 * are not pinned yet.
 *
 * An op that closes gradients ends in two parts. At its end the op's REDUCE is appended, and the chunks into
 * which it sums stay pinned, since their slots have no mark yet of the collective that writes them. When the
 * REDUCE is issued they are released. The next op does not become ready before; its gathers stand behind the
 * REDUCE in the roll or were appended before it.
 *
 * Owns the roll, the frames, and the pins of the gathered chunk and of the op that closes. Calls roll,
 * frames, places, moves, pending, victims, tasks.
 */
#ifndef TIDE_CHUNK_COLLECTIVES_H
#define TIDE_CHUNK_COLLECTIVES_H

#include "chunk/frames.h"
#include "chunk/tasks.h"

/* REDUCEs of open ops that may wait in the roll. */
enum { TIDE_EARLY_REDUCES_MAX = 64 };

typedef struct tide_collectives {
    tide_arrays arrays;
    const tide_ops *ops;
    tide_places *places;
    tide_moves *moves;
    const tide_pending *pending;
    tide_tasks *tasks;
    tide_roll roll;
    tide_frames frames;
    bool running;           /* the head is an open command */
    tide_chunk marked;      /* the chunk with the mark FIRST because of the head; TIDE_CHUNK_NONE */
    uint32_t early_reduces; /* in the roll */
    tide_op closing;        /* the op whose chunks stay pinned until its REDUCE is issued; TIDE_OP_NONE */
    uint32_t closing_use;   /* number in the plan of its first use */
    bool stopped;           /* the step was given up: there is no next one (manager.h) */
} tide_collectives;

/* The most entries of the roll that wait to be issued at the same time. */
uint32_t tide_roll_capacity(const tide_ops *ops);

/* Make an empty roll and `frames` empty frames. NO_MEMORY. A zeroed object may be destroyed, too. */
tide_status tide_collectives_create(tide_collectives *collectives, const tide_ops *ops, tide_tasks *tasks,
                                    uint32_t frames, bool ahead);
void tide_collectives_destroy(tide_collectives *collectives);

/* Append a REDUCE of `count` elements of a param's gradient. False: TIDE_EARLY_REDUCES_MAX wait. */
bool tide_collectives_reduce(tide_collectives *collectives, tide_op op, uint32_t param, uint64_t first,
                             uint64_t count);
/* Call when an op ends that closes gradients: appends its REDUCE and pins the chunks that it modifies. */
void tide_collectives_close(tide_collectives *collectives, tide_op op, uint32_t first_use);
/* Release those chunks, when that REDUCE has been issued or the step is given up. */
void tide_collectives_closed(tide_collectives *collectives);

/* Make the head a command, if it can be issued and is not one yet. */
bool tide_collectives_next(tide_collectives *collectives, tide_command *command);
/* Make the next command that brings the head's chunk to the device, unless the open request needs the chunk
 * and so does it itself. `blocks`: the request waits for the head. Forbids prefetch in `turn` while the head
 * waits for a slot. */
bool tide_collectives_bring(tide_collectives *collectives, tide_turn *turn, bool blocks,
                            tide_command *command);
/* Is the update for which the head waits being assembled on the device, so that the request, which waits for
 * the head, must leave it the slots, and so must other tasks and prefetch? */
bool tide_collectives_needs_slots(const tide_collectives *collectives);
/* Call when the head's command is done (`ok`) or has failed. */
void tide_collectives_finish(tide_collectives *collectives, bool ok);
/* Drop the roll and the values in the frames, and release the chunks of an op that closes: the step is given
 * up. No command may be open. */
void tide_collectives_stop(tide_collectives *collectives);

#endif
