/* The roll: the one order in which a rank issues its collectives. It is the same on every rank.
 *
 * Each rank appends the same entries: at an op's begin and end, at tide_manager_finish, and at a step's begin
 * and end, from the ops, the recordings, the layout and the frames (frames.h) alone. Free slots, pending
 * updates and time, which differ between ranks, decide only when a rank issues the first entry (its head). So
 * no rank sends another one a decision, and the ranks' collectives match.
 *
 * `hash` is a hash of all these program events and entries. Ranks compare it once a step, to find a program
 * whose ranks run different ops.
 *
 * Owns the entries that are not issued yet. Calls only hash and array.
 */
#ifndef TIDE_CHUNK_ROLL_H
#define TIDE_CHUNK_ROLL_H

#include "base/array.h"
#include "chunk/layout.h"

typedef enum tide_collective_kind {
    TIDE_COLLECTIVE_GATHER = 0, /* all-gather the members of `group` into its range of addresses, in place */
    TIDE_COLLECTIVE_REDUCE,     /* sum gradients of all ranks, each rounded sum into its owner's chunk */
    TIDE_COLLECTIVE_NORM,       /* add up the gradient norm of the step */
    TIDE_COLLECTIVE_KINDS,
} tide_collective_kind;

typedef struct tide_collective {
    tide_collective_kind kind;
    /* of a GATHER: the group, which has the number of the rank's PARAM chunk in it; the frame for the other
     * members; and the group whose members the frame was mapped for, which are unmapped first
     * (TIDE_CHUNK_NONE: none; the group itself: they stay mapped) */
    tide_chunk group, replaced;
    uint32_t frame;
    /* of a REDUCE: the op whose gradients it sums. With `param` TIDE_PARAM_NONE, at the op's end, all that
     * the op closes and that no REDUCE has summed before; else `count` elements of the param from `first` */
    tide_op op;
    uint32_t param;
    uint64_t first, count;
} tide_collective;

#define TIDE_PARAM_NONE UINT32_MAX

typedef struct tide_roll {
    tide_collective *entries; /* a ring: entry number n is at n % capacity */
    uint32_t capacity;
    uint64_t issued, appended; /* numbers: entries [issued, appended) are not issued */
    uint64_t hash;
} tide_roll;

/* Make an empty roll with space for `capacity` entries in `arrays`, whose `lacks` is true afterwards if there
 * was no memory. */
void tide_roll_create(tide_roll *roll, uint32_t capacity, tide_arrays *arrays);

static inline uint32_t tide_roll_count(const tide_roll *roll)
{
    return (uint32_t)(roll->appended - roll->issued);
}

/* The entry to issue next; NULL: there is none. */
static inline const tide_collective *tide_roll_head(const tide_roll *roll)
{
    return roll->issued < roll->appended ? &roll->entries[roll->issued % roll->capacity] : NULL;
}

/* Append an entry, for which there must be space. Returns its number. */
uint64_t tide_roll_append(tide_roll *roll, const tide_collective *entry);
/* Call when the head has been issued. */
void tide_roll_pop(tide_roll *roll);
/* Drop all entries that are not issued. */
void tide_roll_clear(tide_roll *roll);

/* Add an event of the program to the hash. */
typedef enum tide_program_event {
    TIDE_EVENT_STEP_BEGIN = 0, /* value: 1 for a training step */
    TIDE_EVENT_STEP_END,
    TIDE_EVENT_OP_BEGIN, /* value: the op */
    TIDE_EVENT_OP_END,
    TIDE_EVENT_VALUES_SET,
} tide_program_event;

void tide_roll_note(tide_roll *roll, tide_program_event event, uint64_t value);

#endif
