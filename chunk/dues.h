/* What each PARAM chunk owes before an op may use it, an update or a restore, and on which tier it is done.
 *
 * A due's pieces (layout.h) are done one after the other: ascending if they waited for the norm, descending during backward, so
 * that the STATE chunk on a border is used twice in a row. On which tier a chunk is updated changes only when none of its
 * pieces is owed. A frozen chunk has no pieces and owes nothing.
 *
 * Placement AUTO: as many chunks' state on the device as fits where nothing else wants to be, and as lets both sides end
 * together by the seconds that an update takes on each. The first chunks: their gradients come last and they are wanted first, so
 * theirs is the update that nothing else hides. A STATE chunk that two share counts with the later one.
 *
 * Owns the dues and the placement. Calls tensors, whose gradients it settles.
 */
#ifndef TIDE_CHUNK_DUES_H
#define TIDE_CHUNK_DUES_H

#include "chunk/tensors.h"

typedef enum tide_due_kind { TIDE_DUE_NONE = 0, TIDE_DUE_UPDATE, TIDE_DUE_RESTORE } tide_due_kind;

typedef struct tide_due {
    tide_due_kind kind;
    bool running; /* a piece's task is handed out */
    bool on_device;
    bool descends;   /* the last piece first */
    uint32_t done;   /* pieces */
    uint32_t pieces; /* 0: frozen */
    uint64_t step;  /* whose gradients; of the last one, when nothing is owed */
} tide_due;

typedef struct tide_dues {
    tide_arrays arrays;
    const tide_layout *layout;
    tide_tensors *tensors;
    tide_due *chunks;       /* per PARAM chunk */
    uint32_t trained;       /* chunks that are not frozen */
    uint32_t count;         /* chunks that owe */
    uint32_t pieces_open;   /* tasks not done */
    uint64_t training_step; /* whose gradients dues begun from now on are about */
    uint32_t begun;         /* updates of it that were handed out and not cancelled */
    bool failed;            /* an update changed params without finishing */

    uint32_t slots[TIDE_TIER_COUNT];
    tide_placement placement;
    bool *on_device, *wanted_on_device; /* per PARAM chunk */
    uint32_t placements;                /* counts changes of on_device */
    uint32_t balanced;                  /* updates on the device that was placed for */
    double seconds[TIDE_TIER_COUNT];    /* of one update; 0: not known */
} tide_dues;

/* Nothing owed. NO_MEMORY. Zeroed ones may be destroyed, too. */
tide_status tide_dues_create(tide_dues *dues, const tide_layout *layout, tide_tensors *tensors);
void tide_dues_destroy(tide_dues *dues);
/* Slots and placement are fixed: place all updates. */
void tide_dues_seal(tide_dues *dues, const uint32_t slots[TIDE_TIER_COUNT], tide_placement placement);

static inline bool tide_dues_is_param_chunk(const tide_dues *dues, tide_chunk chunk)
{
    return chunk < tide_layout_space_chunks(dues->layout, TIDE_SPACE_PARAM);
}

/* Do an update or a restore have to come before the chunk's values can be used? */
static inline bool tide_dues_has(const tide_dues *dues, tide_chunk chunk)
{
    return tide_dues_is_param_chunk(dues, chunk) && dues->chunks[chunk].kind != TIDE_DUE_NONE;
}

/* The PARAM chunks whose updates use the chunk, first to last; false for an ACTIVATION chunk. */
bool tide_dues_owners(const tide_dues *dues, tide_chunk chunk, tide_chunk *first, tide_chunk *last);
/* The next, or running, piece of what a PARAM chunk owes: its number in the layout. */
uint32_t tide_dues_piece(const tide_dues *dues, tide_chunk chunk);
/* The host will update it (its gradients are complete, or its due is on): it has to leave the device, or stay away. */
bool tide_dues_must_leave(const tide_dues *dues, tide_chunk chunk);
/* Does any chunk owe an update of `step`? Of another step than `step`, anything (`*owing` says which)? */
bool tide_dues_owes(const tide_dues *dues, uint64_t step);
bool tide_dues_owes_older(const tide_dues *dues, uint64_t step, tide_chunk *owing);

/* A training step begins. */
void tide_dues_step_begin(tide_dues *dues, uint64_t step);
/* Its chunk's gradients of the training step are complete, and its update has not begun: it begins. */
void tide_dues_start_complete(tide_dues *dues, uint32_t param);
/* All trained PARAM chunks owe the training step's update. */
void tide_dues_start_all(tide_dues *dues);
/* The training step is skipped or given up, none of its updates has begun: what holds its gradients is restored, the rest
 * owes nothing for it. Marks of leaving go: what would leave is worth no copy. */
void tide_dues_restore(tide_dues *dues);
/* Nothing is owed any more, and no param has a gradient (the pool is torn). */
void tide_dues_forget(tide_dues *dues);

typedef enum tide_piece_end {
    TIDE_PIECE_DONE = 0,
    TIDE_PIECE_FAILED,    /* it may have changed params */
    TIDE_PIECE_CANCELLED, /* it was never started */
} tide_piece_end;

/* A piece's task is handed out; is over. */
void tide_dues_piece_begin(tide_dues *dues, tide_chunk chunk);
void tide_dues_piece_end(tide_dues *dues, tide_chunk chunk, tide_piece_end how);

/* --- placement --- */

/* Seconds that the update of one PARAM chunk takes on each tier: manager.h. */
void tide_dues_set_seconds(tide_dues *dues, double host_seconds, double device_seconds);
/* Slots that optimizer state takes on the device for good: what is updated there, and what the host has no room for. */
uint32_t tide_dues_state_slots(const tide_dues *dues);

/* Counts against dues. Walks all PARAM chunks. */
bool tide_dues_is_valid(const tide_dues *dues);

#endif
