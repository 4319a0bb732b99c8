/* Pending updates and restores: the work that has to be done on a PARAM chunk before an op may use it, and
 * the tier on which it is done.
 *
 * The pieces (layout.h) of a pending update are done one after the other: ascending if they waited for the
 * norm, descending during backward, so that two updates in a row use the STATE chunk on a border. The tier on
 * which a chunk is updated changes only when none of its pieces is pending. A frozen chunk has no pieces, and
 * nothing of it is ever pending.
 *
 * Placement AUTO keeps the state of as many chunks on the device as fit beside everything else, and no more
 * than let both tiers end their updates together by the seconds that an update takes on each. It takes the
 * first chunks: backward completes their gradients last and forward needs their params first, so theirs are
 * the updates that nothing else hides. A STATE chunk that two PARAM chunks share counts with the later one.
 *
 * Owns the pending updates and the placement. Calls tensors, whose gradients it settles.
 */
#ifndef TIDE_CHUNK_PENDING_H
#define TIDE_CHUNK_PENDING_H

#include "chunk/tensors.h"

typedef enum tide_pending_kind {
    TIDE_PENDING_NONE = 0,
    TIDE_PENDING_UPDATE,
    TIDE_PENDING_RESTORE
} tide_pending_kind;

typedef struct tide_pending_update {
    tide_pending_kind kind;
    bool running; /* a task for one of the pieces has been handed out */
    bool on_device;
    bool descends;   /* the last piece is done first */
    uint32_t done;   /* pieces that are done */
    uint32_t pieces; /* all pieces of the chunk; 0: it is frozen */
    /* the step whose gradients the pending update takes; if nothing is pending, that of the last update */
    uint64_t step;
} tide_pending_update;

typedef struct tide_pending {
    tide_arrays arrays;
    const tide_layout *layout;
    tide_tensors *tensors;
    tide_pending_update *chunks; /* one for each PARAM chunk */
    uint32_t trained;            /* chunks that are not frozen */
    uint32_t count;              /* chunks with a pending update */
    uint32_t pieces_open;        /* pieces that are not done yet */
    uint64_t training_step;      /* the step whose gradients updates take that start from now on */
    /* pieces of that step's updates that have been handed out and not cancelled */
    uint32_t begun;
    bool failed; /* an update changed params without finishing */

    uint32_t slots[TIDE_TIER_COUNT];
    tide_placement placement;
    /* for each PARAM chunk: does the device update it now; shall the device update it */
    bool *on_device, *wanted_on_device;
    uint32_t placements;             /* grows whenever on_device changes */
    uint32_t balanced;               /* number of device updates that the last placement aimed at */
    double seconds[TIDE_TIER_COUNT]; /* seconds of one update on each tier; 0: not known */
} tide_pending;

/* Create an object without pending updates. NO_MEMORY. A zeroed one may be destroyed, too. */
tide_status tide_pending_create(tide_pending *pending, const tide_layout *layout, tide_tensors *tensors);
void tide_pending_destroy(tide_pending *pending);
/* Set the numbers of slots and the placement, which are now fixed, and choose the tier of each chunk's
 * updates. */
void tide_pending_seal(tide_pending *pending, const uint32_t slots[TIDE_TIER_COUNT],
                       tide_placement placement);

static inline bool tide_pending_is_param_chunk(const tide_pending *pending, tide_chunk chunk)
{
    return chunk < tide_layout_space_chunks(pending->layout, TIDE_SPACE_PARAM);
}

/* Is an update or a restore of the chunk pending, so that its values can't be used yet? */
static inline bool tide_pending_has(const tide_pending *pending, tide_chunk chunk)
{
    return tide_pending_is_param_chunk(pending, chunk) && pending->chunks[chunk].kind != TIDE_PENDING_NONE;
}

/* The first and the last PARAM chunk whose update uses the chunk; false for an ACTIVATION chunk. */
bool tide_pending_owners(const tide_pending *pending, tide_chunk chunk, tide_chunk *first, tide_chunk *last);
/* The number, in the layout, of the piece of a PARAM chunk's pending update that is next or runs now. */
uint32_t tide_pending_piece(const tide_pending *pending, tide_chunk chunk);
/* Will the host update the chunk, because its gradients are complete or its update is pending? Then the chunk
 * has to leave the device, or must not go there. */
bool tide_pending_must_leave(const tide_pending *pending, tide_chunk chunk);
/* Is an update of `step` pending for any chunk? The second call: is an update or a restore of another step
 * pending? Sets *older to the first such chunk. */
bool tide_pending_has_step(const tide_pending *pending, uint64_t step);
bool tide_pending_has_older(const tide_pending *pending, uint64_t step, tide_chunk *older);

/* Call when a training step begins. */
void tide_pending_step_begin(tide_pending *pending, uint64_t step);
/* Start the update of each chunk of the param whose gradients of the training step are complete and whose
 * update of that step has not started. */
void tide_pending_start_complete(tide_pending *pending, uint32_t param);
/* Start the training step's update of all trained PARAM chunks. */
void tide_pending_start_all(tide_pending *pending);
/* The caller skips or gives up the training step, none of whose updates has begun: start a restore of every
 * chunk that holds gradients of the step, and drop the updates of the others. The chunks lose their eviction
 * marks, for their gradients are not worth a copy. */
void tide_pending_restore(tide_pending *pending);
/* Drop everything that is pending, and all gradients. Used when the pool is poisoned. */
void tide_pending_forget(tide_pending *pending);

typedef enum tide_piece_end {
    TIDE_PIECE_DONE = 0,
    TIDE_PIECE_FAILED,    /* the piece's task failed and may have changed params */
    TIDE_PIECE_CANCELLED, /* the piece's task was never started */
} tide_piece_end;

/* The first call: a piece's task has been handed out. The second: a piece's task has ended. */
void tide_pending_piece_begin(tide_pending *pending, tide_chunk chunk);
void tide_pending_piece_end(tide_pending *pending, tide_chunk chunk, tide_piece_end how);

/* --- placement --- */

/* Set the seconds that the update of one PARAM chunk takes on each tier (manager.h). */
void tide_pending_set_seconds(tide_pending *pending, double host_seconds, double device_seconds);
/* The number of device slots that optimizer state takes permanently: state that the device updates, and state
 * for which the host has no slots. */
uint32_t tide_pending_state_slots(const tide_pending *pending);

/* Do the counts agree with the pending updates? Walks all PARAM chunks. */
bool tide_pending_is_valid(const tide_pending *pending);

#endif
