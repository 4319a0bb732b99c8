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

#include "base/array.h"
#include "chunk/bitset.h"
#include "chunk/use_trace.h"

/* How to choose between the farthest clean chunk and a dirty one that is farther (planner.h, step 3). */
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
    uint32_t *schedule_step_first; /* for each schedule step: its first use */
    uint32_t *following;           /* for each use: the next use of its chunk, in this step or the next */
    /* the uses sorted by the schedule step in which they end; and for each schedule step, where its uses
     * begin in that order */
    uint32_t *ending, *ending_first;
    uint32_t *rank, *ranked; /* for each use: its rank in the rule's order; for each rank: the use */
    uint32_t slots;
    tide_play_rule rule;

    uint8_t *states;                  /* one for each chunk */
    uint32_t *next;                   /* for each chunk: its next use */
    tide_bitset sets[TIDE_PLAY_SETS]; /* for each state but ABSENT: the ranks of its chunks' next uses */
    uint32_t resident;                /* chunks on the device */
    uint32_t absent;                  /* chunks that will have to be copied in again */
    uint64_t copies_in, copies_out;   /* copies in the step played last */
    /* for each use in that step: whether it was fetched into a slot, or copied in again in place */
    bool *fetched, *refreshed;
    bool contested;                /* the rule has made a choice that another rule may make better */
    uint32_t look_ahead_left;      /* uses that may still be played to look ahead */
    struct tide_play_change *undo; /* the changes that are undone after looking ahead */
    uint32_t undo_capacity, undo_length;
    bool logs_undo;
} tide_play;

/* Allocate memory for traces with at most so many chunks and uses. If there is none, `arrays` says so
 * (tide_arrays.lacks). */
void tide_play_create(tide_play *play, uint32_t chunk_count, uint32_t use_count, tide_arrays *arrays);
/* Take another step and index its uses. */
void tide_play_set_step(tide_play *play, const tide_use_trace *trace, uint32_t slots);
/* Take another rule; the device is empty again. */
void tide_play_set_rule(tide_play *play, tide_play_rule rule);
/* Play the step once more; at most so many uses are played to look ahead. */
void tide_play_step(tide_play *play, uint32_t look_ahead_uses);

/* The schedule step after this one, which may be the first of the next step. */
static inline uint32_t tide_play_schedule_step_after(const tide_play *play, uint32_t schedule_step)
{
    return schedule_step + 1 < play->trace->schedule_step_count ? schedule_step + 1 : 0;
}

#endif
