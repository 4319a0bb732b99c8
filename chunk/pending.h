/* Pending updates and restores: which PARAM chunks need one before an op may use them, and the tier on which
 * each chunk is updated.
 *
 * The pieces (layout.h) of a pending update are done one after the other: ascending if the updates waited for
 * the norm, descending if they run during backward. So two successive updates share the STATE chunk in which
 * one's last piece and the other's first lie. The tier on which a chunk is updated changes only while no
 * piece of it is pending. Frozen chunks have no pieces and are never updated.
 *
 * Placement AUTO lets the device update as many chunks as have space for their state there, but no more than
 * are needed for both tiers to end their updates together (tide_pending_set_seconds). It chooses the first
 * chunks: backward completes their gradients last and forward needs their params first, so compute has the
 * least time to hide their updates. A STATE chunk that two PARAM chunks share is counted for the later one.
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
    bool running; /* a task for the next piece has been handed out */
    bool on_device;
    bool descends;   /* the last piece comes first */
    uint32_t done;   /* pieces that are done */
    uint32_t pieces; /* the chunk's number of pieces; 0: it is frozen */
    /* the step whose gradients the pending (else the last) update uses */
    uint64_t step;
} tide_pending_update;

typedef struct tide_pending {
    tide_arrays arrays;
    const tide_layout *layout;
    tide_tensors *tensors;
    tide_pending_update *chunks; /* one for each PARAM chunk */
    uint32_t trained;            /* chunks that are not frozen */
    uint32_t count;              /* chunks with a pending update */
    uint32_t pieces_open;        /* pieces of pending updates that are not done */
    uint64_t training_step;      /* the last training step begun: later updates use its gradients */
    /* how many pieces of that step's updates have been handed out and not cancelled */
    uint32_t begun;
    bool failed; /* an update failed and may have changed params */

    uint32_t slots[TIDE_TIER_COUNT];
    tide_placement placement;
    /* for each PARAM chunk: whether the device updates it at present; whether it shall when nothing of it is
     * pending */
    bool *on_device, *wanted_on_device;
    uint32_t placements;             /* grows when on_device changes */
    uint32_t balanced;               /* how many chunks the last placement wanted on the device */
    double seconds[TIDE_TIER_COUNT]; /* seconds of one update on each tier; 0: not known */
} tide_pending;

/* Create an object without pending updates, and choose the tier of each chunk's updates. Slots and placement
 * do not change afterwards. NO_MEMORY. A zeroed object may be destroyed, too. */
tide_status tide_pending_create(tide_pending *pending, const tide_layout *layout, tide_tensors *tensors,
                                const uint32_t slots[TIDE_TIER_COUNT], tide_placement placement);
void tide_pending_destroy(tide_pending *pending);

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
/* The index of the next or running piece of a PARAM chunk's pending update (tide_layout_piece). */
uint32_t tide_pending_piece(const tide_pending *pending, tide_chunk chunk);
/* Must the chunk be on the host next, because its gradients are complete or its update is pending, and the
 * host updates it? */
bool tide_pending_must_leave(const tide_pending *pending, tide_chunk chunk);
/* Is an update of `step` pending for any chunk? has_older: is an update or a restore of another step pending?
 * If so, sets *older to the first such chunk. */
bool tide_pending_has_step(const tide_pending *pending, uint64_t step);
bool tide_pending_has_older(const tide_pending *pending, uint64_t step, tide_chunk *older);

/* Call when a training step begins. */
void tide_pending_step_begin(tide_pending *pending, uint64_t step);
/* Call when the param's gradient is complete: start the update of each of its chunks in which all gradients
 * of the training step are complete, unless that update has started. */
void tide_pending_start_complete(tide_pending *pending, uint32_t param);
/* Start the update of every PARAM chunk that is not frozen. */
void tide_pending_start_all(tide_pending *pending);
/* Call when the training step is skipped or given up and none of its updates has begun: start a restore of
 * every chunk that holds gradients of the step, and drop the updates of the others. Clears the chunks'
 * eviction marks, since their gradients need no copy. */
void tide_pending_restore(tide_pending *pending);
/* Drop all pending updates and restores, and all gradients. For a poisoned pool. */
void tide_pending_forget(tide_pending *pending);

typedef enum tide_piece_end {
    TIDE_PIECE_DONE = 0,
    TIDE_PIECE_FAILED,    /* the piece's task failed and may have changed params */
    TIDE_PIECE_CANCELLED, /* the piece's task was never started */
} tide_piece_end;

/* Call when the task of the chunk's next piece is handed out, and when it has ended. */
void tide_pending_piece_begin(tide_pending *pending, tide_chunk chunk);
void tide_pending_piece_end(tide_pending *pending, tide_chunk chunk, tide_piece_end how);

/* --- placement --- */

/* See tide_manager_set_update_seconds. */
void tide_pending_set_seconds(tide_pending *pending, double host_seconds, double device_seconds);
/* The number of device slots with optimizer state that stays there: state that the device updates, and state
 * for which the host has no slots. */
uint32_t tide_pending_state_slots(const tide_pending *pending);

/* Do the counts agree with the pending updates? Walks all PARAM chunks. */
bool tide_pending_is_valid(const tide_pending *pending);

#endif
