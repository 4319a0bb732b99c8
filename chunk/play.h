/* Simulates (plays) a step on a small model of the device, with a rule that decides which chunk leaves when a
 * slot is needed. The planner makes its plans from such plays.
 *
 * Each chunk has a state (absent, dead, stale, clean, dirty) and a next use. The uses of a step are numbered
 * in order. For each state a set (bitset.h) has the numbers of its chunks' next uses, so the chunk whose next
 * use is farthest is found in constant time: it has the highest number below the present use's, which is in
 * the next step, or, if there is none, the highest of all. For the rule "least recently used" the sets have
 * the numbers of the last uses' ends, counted downwards, so that the same search finds the chunk used longest
 * ago.
 *
 * Owns the model. Calls bitset and array.
 */
#ifndef TIDE_CHUNK_PLAY_H
#define TIDE_CHUNK_PLAY_H

#include "base/array.h"
#include "chunk/bitset.h"
#include "chunk/use_trace.h"

/* How to choose between the farthest clean chunk and a dirty one that is farther (planner.h, policy, 3). */
typedef enum tide_play_rule {
    TIDE_PLAY_CLEAN_AT_HALF = 0,
    TIDE_PLAY_CLEAN_ALWAYS,
    TIDE_PLAY_LOOK_AHEAD,
    TIDE_PLAY_LEAST_RECENT,
    TIDE_PLAY_RULES,
} tide_play_rule;

enum { TIDE_PLAY_ABSENT = 0, TIDE_PLAY_SETS = 5 }; /* chunks in states 1 to 4 may leave */

typedef struct tide_play {
    uint32_t chunk_capacity, use_capacity;
    const tide_use_trace *trace;
    uint32_t *schedule_step_first; /* for each schedule step: the number of its first use */
    uint32_t *following;           /* for each use: the next use of its chunk, in this step or the next */
    /* `ending`: all uses, sorted by the schedule step in which they end; `ending_first`: for each schedule
     * step, the index of its first use in `ending` */
    uint32_t *ending, *ending_first;
    uint32_t *rank, *ranked; /* for each use: its number (rank) in the rule's sets; for each rank: the use */
    uint32_t slots;
    tide_play_rule rule;

    uint8_t *states;                  /* one for each chunk */
    uint32_t *next;                   /* for each chunk: its next use */
    tide_bitset sets[TIDE_PLAY_SETS]; /* for each state but ABSENT: the ranks of its chunks' next uses */
    uint32_t resident;                /* chunks on the device */
    uint32_t absent;                  /* chunks that are not there and have to be copied in again */
    uint64_t copies_in, copies_out;   /* copies in the step played last */
    /* for each use in that step: whether its chunk was fetched into a slot; or copied in again into the slot
     * that it kept */
    bool *fetched, *refreshed;
    bool contested;                /* the rule had to choose between a clean and a dirty chunk */
    uint32_t look_ahead_left;      /* how many more uses the step may play to look ahead */
    struct tide_play_change *undo; /* log of changes, to undo them after looking ahead */
    uint32_t undo_capacity, undo_length;
    bool logs_undo;
} tide_play;

/* Allocate memory for traces with at most these numbers of chunks and uses in `arrays`, whose `lacks` is true
 * afterwards if there was none. */
void tide_play_create(tide_play *play, uint32_t chunk_count, uint32_t use_count, tide_arrays *arrays);
/* Set the step to play, and index its uses. */
void tide_play_set_step(tide_play *play, const tide_use_trace *trace, uint32_t slots);
/* Set the rule, and empty the device. */
void tide_play_set_rule(tide_play *play, tide_play_rule rule);
/* Play the step once more from the present state; play at most `look_ahead_uses` uses to look ahead. */
void tide_play_step(tide_play *play, uint32_t look_ahead_uses);

/* The schedule step after this one, which may be the first of the next step. */
static inline uint32_t tide_play_schedule_step_after(const tide_play *play, uint32_t schedule_step)
{
    return schedule_step + 1 < play->trace->schedule_step_count ? schedule_step + 1 : 0;
}

#endif
