/* Pending updates and restores: what has to be done to a PARAM chunk before an op may use it, and on which tier.
 *
 * The pieces (layout.h) of a pending update are done one after the other: ascending if they waited for the norm, descending during backward, so
 * that the STATE chunk on a border is used twice in a row. On which tier a chunk is updated changes only when none of its
 * pieces is pending. A frozen chunk has no pieces, and nothing of it is ever pending.
 *
 * Placement AUTO: as many chunks' state on the device as fits where nothing else wants to be, and as lets both sides end
 * together by the seconds that an update takes on each. The first chunks: their gradients come last and they are wanted first, so
 * theirs is the update that nothing else hides. A STATE chunk that two share counts with the later one.
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
    bool running; /* a piece's task is handed out */
    bool on_device;
    bool descends;   /* the last piece first */
    uint32_t done;   /* pieces */
    uint32_t pieces; /* 0: frozen */
    uint64_t step;   /* whose gradients; of the last one, when nothing is pending */
} tide_pending_update;

typedef struct tide_pending {
    tide_arrays arrays;
    const tide_layout *layout;
    tide_tensors *tensors;
    tide_pending_update *chunks; /* per PARAM chunk */
    uint32_t trained;            /* chunks that are not frozen */
    uint32_t count;              /* chunks with a pending update */
    uint32_t pieces_open;        /* tasks not done */
    uint64_t training_step;      /* whose gradients updates pending from now on are about */
    uint32_t begun;              /* updates of it that were handed out and not cancelled */
    bool failed;                 /* an update changed params without finishing */

    uint32_t slots[TIDE_TIER_COUNT];
    tide_placement placement;
    bool *on_device, *wanted_on_device; /* per PARAM chunk */
    uint32_t placements;                /* counts changes of on_device */
    uint32_t balanced;                  /* updates on the device that was placed for */
    double seconds[TIDE_TIER_COUNT];    /* of one update; 0: not known */
} tide_pending;

/* Nothing pending. NO_MEMORY. Zeroed ones may be destroyed, too. */
tide_status tide_pending_create(tide_pending *pending, const tide_layout *layout, tide_tensors *tensors);
void tide_pending_destroy(tide_pending *pending);
/* Slots and placement are fixed: place all updates. */
void tide_pending_seal(tide_pending *pending, const uint32_t slots[TIDE_TIER_COUNT],
                       tide_placement placement);

static inline bool tide_pending_is_param_chunk(const tide_pending *pending, tide_chunk chunk)
{
    return chunk < tide_layout_space_chunks(pending->layout, TIDE_SPACE_PARAM);
}

/* Do an update or a restore have to come before the chunk's values can be used? */
static inline bool tide_pending_has(const tide_pending *pending, tide_chunk chunk)
{
    return tide_pending_is_param_chunk(pending, chunk) && pending->chunks[chunk].kind != TIDE_PENDING_NONE;
}

/* The PARAM chunks whose updates use the chunk, first to last; false for an ACTIVATION chunk. */
bool tide_pending_owners(const tide_pending *pending, tide_chunk chunk, tide_chunk *first, tide_chunk *last);
/* The next, or running, piece of a PARAM chunk's pending update: its number in the layout. */
uint32_t tide_pending_piece(const tide_pending *pending, tide_chunk chunk);
/* The host will update it (its gradients are complete, or its update is pending): it has to leave the device, or stay away. */
bool tide_pending_must_leave(const tide_pending *pending, tide_chunk chunk);
/* Does any chunk have a pending update of `step`? One of another step, or a restore (`*older` says which)? */
bool tide_pending_has_step(const tide_pending *pending, uint64_t step);
bool tide_pending_has_older(const tide_pending *pending, uint64_t step, tide_chunk *older);

/* A training step begins. */
void tide_pending_step_begin(tide_pending *pending, uint64_t step);
/* Its chunk's gradients of the training step are complete, and its update has not begun: it begins. */
void tide_pending_start_complete(tide_pending *pending, uint32_t param);
/* The training step's update of all trained PARAM chunks is pending. */
void tide_pending_start_all(tide_pending *pending);
/* The training step is skipped or given up, none of its updates has begun: what holds its gradients is restored, the rest
 * has nothing pending for it. Marks of eviction go: what would be evicted is worth no copy. */
void tide_pending_restore(tide_pending *pending);
/* Nothing is pending any more, and no param has a gradient (the pool is poisoned). */
void tide_pending_forget(tide_pending *pending);

typedef enum tide_piece_end {
    TIDE_PIECE_DONE = 0,
    TIDE_PIECE_FAILED,    /* it may have changed params */
    TIDE_PIECE_CANCELLED, /* it was never started */
} tide_piece_end;

/* A piece's task is handed out; is over. */
void tide_pending_piece_begin(tide_pending *pending, tide_chunk chunk);
void tide_pending_piece_end(tide_pending *pending, tide_chunk chunk, tide_piece_end how);

/* --- placement --- */

/* Seconds that the update of one PARAM chunk takes on each tier: manager.h. */
void tide_pending_set_seconds(tide_pending *pending, double host_seconds, double device_seconds);
/* Slots that optimizer state takes on the device for good: what is updated there, and what the host has no room for. */
uint32_t tide_pending_state_slots(const tide_pending *pending);

/* Counts against the pending updates. Walks all PARAM chunks. */
bool tide_pending_is_valid(const tide_pending *pending);

#endif
