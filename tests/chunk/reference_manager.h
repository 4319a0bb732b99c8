/* A reference model of the chunk manager: an executor that carries out its commands on version numbers, and the
 * truth.
 *
 * Every chunk has a true version; every slot of both tiers holds some version of some chunk. Commands move
 * versions between slots, ops and tasks make new ones. There is no policy here and no cleverness: liveness,
 * gradients and pending updates are recomputed from the registered ops by plain loops. So whatever
 * the manager decides, the model can say whether an access sees the version it must see, whether a slot is
 * overwritten that held the last copy of something, whether a pinned chunk moved, a clean one was copied, or
 * an update was lost or done twice.
 *
 * Gradients are kept chunk by chunk: an op's end puts them into every chunk of its param, an update or a
 * restore of a chunk ends all that the chunk holds, and nothing else does. A param has a gradient while any
 * of its chunks holds some. (Whether anything of its chunks is pending is another question: after an abort a chunk may
 * have a pending restore for a neighbour's gradient, when the older update has long ended this param's.)
 *
 * What can be asked of the manager is compared with what follows from this: tensor and chunk states,
 * gradients, pending work, pins, and where every chunk is.
 *
 * The first contradiction is written to `problem`; everything after it is of no interest.
 */
#ifndef TIDE_TESTS_REFERENCE_MANAGER_H
#define TIDE_TESTS_REFERENCE_MANAGER_H

#include "chunk/manager.h"

enum {
    REFERENCE_CHUNKS_MAX = 1024,
    REFERENCE_SLOTS_MAX = 2048,
    REFERENCE_PARAMS_MAX = 64,
    REFERENCE_OPS_MAX = 64,
    REFERENCE_USES_MAX = 8,
    REFERENCE_TENSORS_MAX = 8,
    REFERENCE_PARTS_MAX = 4,
    REFERENCE_OPEN_MAX = 512,
};

#define REFERENCE_GARBAGE UINT64_MAX /* content that nobody may read */

/* What a chunk holds of a param's gradient. */
typedef enum reference_gradient {
    REFERENCE_GRADIENT_NONE = 0,
    REFERENCE_GRADIENT_ZERO, /* none was made; taken as zero at step end, until the update */
    REFERENCE_GRADIENT_REAL,
} reference_gradient;

typedef enum reference_outcome {
    REFERENCE_DONE = 0,
    REFERENCE_FAILED,    /* and changed nothing that can be relied on */
    REFERENCE_CANCELLED, /* a task that was never started */
} reference_outcome;

typedef struct reference_op {
    tide_pass pass;
    tide_use params[REFERENCE_USES_MAX];
    uint32_t param_count;
    tide_use activations[REFERENCE_USES_MAX];
    uint32_t activation_count;
    uint32_t slices;
} reference_op;

typedef struct reference_slot {
    tide_chunk chunk; /* device: mapped at this chunk's place; host: whose bytes lie there */
    uint64_t version;
    bool busy; /* named by an open command */
} reference_slot;

typedef struct reference_manager {
    const tide_layout *layout;
    tide_manager *manager;
    bool compares_always; /* everything, after every call; else see compare() */
    uint32_t params, param_chunks, chunks;
    tide_chunk first[REFERENCE_PARAMS_MAX], last[REFERENCE_PARAMS_MAX]; /* per param */
    bool frozen[REFERENCE_PARAMS_MAX];
    bool is_activation[REFERENCE_CHUNKS_MAX];
    uint32_t slot_count[TIDE_TIER_COUNT];
    reference_slot slots[TIDE_TIER_COUNT][REFERENCE_SLOTS_MAX];
    uint32_t mapped[REFERENCE_CHUNKS_MAX]; /* device slot, UINT32_MAX: none */
    uint64_t truth[REFERENCE_CHUNKS_MAX];  /* 0: zeros */
    bool busy[REFERENCE_CHUNKS_MAX];
    uint64_t versions; /* made so far */

    reference_op ops[REFERENCE_OPS_MAX];
    uint32_t op_count;
    bool part_live[REFERENCE_TENSORS_MAX][REFERENCE_PARTS_MAX];

    /* gradients */
    bool added_now[REFERENCE_PARAMS_MAX];   /* in the open step: its accumulator holds something */
    bool closed_now[REFERENCE_PARAMS_MAX];  /* and that went into its place */
    bool is_zero_now[REFERENCE_PARAMS_MAX]; /* or zero is taken for it */
    uint8_t gradient[REFERENCE_PARAMS_MAX]
                    [REFERENCE_CHUNKS_MAX];     /* reference_gradient, in the param's PARAM chunks */
    bool stands_complete[REFERENCE_PARAMS_MAX]; /* some chunk of it still waits for its update or restore */
    bool used_now[REFERENCE_PARAMS_MAX];        /* by an op of the open step that has ended */
    bool has_value[REFERENCE_PARAMS_MAX];

    /* pending work, per PARAM chunk: pieces */
    tide_command_kind pending_kind[REFERENCE_CHUNKS_MAX]; /* UPDATE or RESTORE */
    uint64_t pending[REFERENCE_CHUNKS_MAX];               /* bit i: piece i */
    bool updated_early[REFERENCE_CHUNKS_MAX];             /* its update of the open step is pending or done */
    uint64_t pending_step[REFERENCE_CHUNKS_MAX];

    bool step_open, training, updates_wait, release_pending, update_failed;
    uint32_t updates_begun; /* of the last training step, and not cancelled */
    uint64_t step, training_step;
    tide_op open_op; /* UINT32_MAX: none */
    uint32_t open_slice;

    tide_use host_uses[TIDE_TASK_CHUNKS_MAX];
    uint32_t host_count;

    tide_command open[REFERENCE_OPEN_MAX];
    uint32_t open_count;
    uint64_t copied_in, copied_out; /* chunks */
    uint64_t zero_gradients;        /* taken at step ends */
    /* tasks on a STATE chunk that a neighbour's task of the other tier wants, too */
    uint64_t among_neighbours;
    char problem[256];
} reference_manager;

/* A model of a sealed manager whose ops are `ops`, and of whose params some are frozen. */
void reference_create(reference_manager *reference, const tide_layout *layout, tide_manager *manager,
                      const tide_manager_options *options, const reference_op *ops, uint32_t op_count,
                      const bool *frozen);

/* Take one command from the manager, check it and keep it open. False if there is none. */
bool reference_take(reference_manager *reference);
/* Complete open command `at`; only tasks can be cancelled. */
void reference_complete(reference_manager *reference, uint32_t at, reference_outcome outcome);

/* The caller's side: each calls the manager, and checks its answer and all consequences. True if it went
 * through. */
void reference_step_begin(reference_manager *reference, bool training, bool updates_wait);
bool reference_begin(reference_manager *reference, tide_op op);
bool reference_slice(reference_manager *reference, uint32_t slice);
/* The request has become ready: what it sees must be the truth. */
void reference_check_ready(reference_manager *reference);
void reference_end(reference_manager *reference);
bool reference_step_end(reference_manager *reference);
/* The op that was registered first of those that gradients wait for; UINT32_MAX if none does. */
tide_op reference_waited_for(const reference_manager *reference);
void reference_release(reference_manager *reference, bool skip);
void reference_abort(reference_manager *reference, bool *poisoned);
void reference_host_request(reference_manager *reference, const tide_use *uses, uint32_t count);
/* Pending updates and restores, in pieces. */
uint32_t reference_pieces_pending(const reference_manager *reference);
/* Does any chunk have pending work of a step before the open one? */
bool reference_has_older_pending(const reference_manager *reference);
/* Does the place of any param hold a gradient made by the last training step? */
bool reference_has_new_gradient(const reference_manager *reference);
/* Ask for all that the manager has to refuse at present. */
void reference_ask_wrongly(reference_manager *reference);

#endif
