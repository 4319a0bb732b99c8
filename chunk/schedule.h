/* Records the order of schedule steps, and finds from it when each chunk is used next.
 *
 * A schedule step is an op's begin (its params) or one of its slices (its activations). A recording is the
 * sequence of schedule steps of one step; training steps and forward-only passes have one each. The first
 * step of a kind is recorded. In later steps of the kind a cursor follows the recording. Where a step first
 * differs from it, the rest of the recording is replaced by the rest of this step, so that the next step of
 * the kind can follow it.
 *
 *   steps     op0  op0/0  op0/1  op1 ...          length
 *                          ^ cursor: the next schedule step expected; the present one is before it
 *   chunk c's uses:  3 17 40     next use at cursor 18: 40 - 18 = 22 schedule steps away;
 *                                at cursor 41: 3 + length - 41, in the next step
 *
 * The uses of a step have numbers in the order of schedule steps and, in each, of its chunks.
 *
 * All memory is allocated at create. A step with more than twice the schedule steps of all ops of the
 * description is not recorded.
 */
#ifndef TIDE_CHUNK_SCHEDULE_H
#define TIDE_CHUNK_SCHEDULE_H

#include "base/array.h"
#include "chunk/bitset.h"
#include "chunk/ops.h"

typedef struct tide_recording {
    tide_schedule_step *schedule_steps;
    uint32_t length;
    uint32_t *schedule_step_first; /* for each schedule step, and for the end: the number of the first use */
    uint32_t *schedule_step_of;    /* for each use: its schedule step */
    uint32_t *uses;                /* the numbers of all uses, sorted by chunk, then by number */
    uint32_t *first;               /* for each chunk, and for the end: the index in `uses` of its first use */
    /* counts all recordings made; differs from those of earlier ones */
    uint32_t number;
    bool valid; /* the recording is complete and its index is built */
} tide_recording;

enum { TIDE_SCHEDULE_FORWARD = 0, TIDE_SCHEDULE_TRAINING, TIDE_SCHEDULE_KINDS };

typedef enum tide_schedule_mode {
    TIDE_SCHEDULE_BETWEEN = 0, /* no step is open; a training step is expected */
    TIDE_SCHEDULE_RECORDING,
    TIDE_SCHEDULE_FOLLOWING,
    TIDE_SCHEDULE_LOST, /* the open step is too long to be recorded */
} tide_schedule_mode;

typedef struct tide_schedule {
    tide_arrays arrays;
    tide_recording recordings[TIDE_SCHEDULE_KINDS];
    const tide_ops *ops;
    uint32_t chunk_count;
    uint32_t schedule_step_capacity;
    uint32_t use_capacity;
    tide_schedule_mode mode;
    uint32_t kind; /* of the open step */
    uint32_t cursor;
} tide_schedule;

/* Create a schedule for steps of these ops; no op may be added later. NO_MEMORY; then there is nothing to
 * free. */
tide_status tide_schedule_create(tide_schedule *schedule, const tide_ops *ops);
void tide_schedule_destroy(tide_schedule *schedule);

void tide_schedule_begin(tide_schedule *schedule, bool training);
/* Call when a schedule step begins. True if the step differs from its recording here for the first time. */
bool tide_schedule_advance(tide_schedule *schedule, tide_schedule_step schedule_step);
/* Call when the step has ended. True if it was shorter than the recording. */
bool tide_schedule_end(tide_schedule *schedule);
/* Call when the step is given up: a recording in progress is dropped; a recording that was followed stays
 * valid. */
void tide_schedule_abort(tide_schedule *schedule);

/* The recording that the open step follows; between steps that of training steps, else that of forward-only
 * passes. NULL if there is none. */
const tide_recording *tide_schedule_active(const tide_schedule *schedule);
/* The number of the chunk's next use, in this step or the next; of its last use in a step. TIDE_USE_NONE: it
 * is never used. Both need an active recording. */
uint32_t tide_schedule_next(const tide_schedule *schedule, tide_chunk chunk);
uint32_t tide_schedule_last(const tide_schedule *schedule, tide_chunk chunk);
/* The number of schedule steps from the cursor to a use, in this step or the next (0: the use is in the
 * schedule step at the cursor). For TIDE_USE_NONE: twice the recording's length. */
uint32_t tide_schedule_distance(const tide_schedule *schedule, uint32_t use);

#endif
