/* A step played out on a small model of the device, under a rule that says which chunk leaves. The planner
 * makes its plans from such plays.
 *
 * Per chunk there is a state (absent, dead, stale, clean, dirty) and the use that comes next. Uses are
 * numbered through a step, so "needed farthest" among the resident chunks of one state is the highest number
 * below the present one (that is in the next step), else the highest of all. With the ends of uses numbered
 * downwards that is "used longest ago". Each state keeps its chunks' numbers in a set with constant-time find
 * (bitset.h).
 *
 * Owns the model. Calls bitset, array.
 */
#ifndef TIDE_CHUNK_PLAY_H
#define TIDE_CHUNK_PLAY_H

#include "chunk/array.h"
#include "chunk/bitset.h"
#include "chunk/use_trace.h"

/* How the play chooses between a clean chunk and a dirty one that is farther (planner.h, step 3). */
typedef enum tide_play_rule {
    TIDE_PLAY_CLEAN_AT_HALF = 0,
    TIDE_PLAY_CLEAN_ALWAYS,
    TIDE_PLAY_LOOK_AHEAD,
    TIDE_PLAY_LEAST_RECENT,
    TIDE_PLAY_RULES,
} tide_play_rule;

enum { TIDE_PLAY_ABSENT = 0, TIDE_PLAY_SETS = 5 }; /* the states whose chunks may leave are [1, SETS) */

typedef struct tide_play {
    uint32_t chunk_capacity, use_capacity;
    const tide_use_trace *trace;
    uint32_t *schedule_step_first; /* per schedule step: its first use */
    uint32_t *following;           /* per use: its chunk's next one, in this step or the next */
    /* Uses by the schedule step in which they end; and where the uses of each schedule step begin there. */
    uint32_t *ending, *ending_first;
    uint32_t *rank, *ranked; /* per next use: its place in the rule's order; per place: the use */
    uint32_t slots;
    tide_play_rule rule;

    uint8_t *states;                  /* per chunk */
    uint32_t *next;                   /* per chunk: its next use */
    tide_bitset sets[TIDE_PLAY_SETS]; /* per state, but for ABSENT: ranks of next uses */
    uint32_t resident;                /* chunks */
    uint32_t absent;                  /* chunks that will have to be copied in again */
    uint64_t copies_in, copies_out;   /* in the step played last */
    bool *fetched, *refreshed;        /* per use, in that step: into a slot, or in place */
    bool contested;                   /* the rule has made a choice, so another one may do better */
    uint32_t look_ahead_left;         /* uses */
    struct tide_play_change *undo;    /* changes to be undone after looking ahead */
    uint32_t undo_capacity, undo_length;
    bool logs_undo;
} tide_play;

/* Take memory for traces of at most so many chunks and uses; `arrays` may lack some then. */
void tide_play_create(tide_play *play, uint32_t chunk_count, uint32_t use_count, tide_arrays *arrays);
/* Take another step and index its uses. */
void tide_play_set_step(tide_play *play, const tide_use_trace *trace, uint32_t slots);
/* Take another rule; the device is empty again. */
void tide_play_set_rule(tide_play *play, tide_play_rule rule);
/* Play the step once more, with so many uses played out for decisions. */
void tide_play_step(tide_play *play, uint32_t look_ahead_uses);

/* The next schedule step, in this step or the next. */
static inline uint32_t tide_play_schedule_step_after(const tide_play *play, uint32_t schedule_step)
{
    return schedule_step + 1 < play->trace->schedule_step_count ? schedule_step + 1 : 0;
}

#endif
