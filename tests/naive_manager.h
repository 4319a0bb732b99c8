/* A naive model of the chunk manager: an executor that carries out its commands on version numbers, and the
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
#ifndef TIDE_TESTS_NAIVE_MANAGER_H
#define TIDE_TESTS_NAIVE_MANAGER_H

#include "chunk/manager.h"

enum {
    NAIVE_CHUNKS_MAX = 1024,
    NAIVE_SLOTS_MAX = 2048,
    NAIVE_PARAMS_MAX = 64,
    NAIVE_OPS_MAX = 64,
    NAIVE_USES_MAX = 8,
    NAIVE_TENSORS_MAX = 8,
    NAIVE_PARTS_MAX = 4,
    NAIVE_OPEN_MAX = 512,
};

#define NAIVE_GARBAGE UINT64_MAX /* content that nobody may read */

/* What a chunk holds of a param's gradient. */
typedef enum naive_gradient {
    NAIVE_GRADIENT_NONE = 0,
    NAIVE_GRADIENT_ZERO, /* none was made; taken as zero at step end, until the update */
    NAIVE_GRADIENT_REAL,
} naive_gradient;

typedef enum naive_outcome {
    NAIVE_DONE = 0,
    NAIVE_FAILED,    /* and changed nothing that can be relied on */
    NAIVE_CANCELLED, /* a task that was never started */
} naive_outcome;

typedef struct naive_op {
    tide_pass pass;
    tide_use params[NAIVE_USES_MAX];
    uint32_t param_count;
    tide_use activations[NAIVE_USES_MAX];
    uint32_t activation_count;
    uint32_t slices;
} naive_op;

typedef struct naive_slot {
    tide_chunk chunk; /* device: mapped at this chunk's place; host: whose bytes lie there */
    uint64_t version;
    bool busy; /* named by an open command */
} naive_slot;

typedef struct naive_manager {
    const tide_layout *layout;
    tide_manager *manager;
    bool compares_always; /* everything, after every call; else see compare() */
    uint32_t params, param_chunks, chunks;
    tide_chunk first[NAIVE_PARAMS_MAX], last[NAIVE_PARAMS_MAX]; /* per param */
    bool frozen[NAIVE_PARAMS_MAX];
    bool is_activation[NAIVE_CHUNKS_MAX];
    uint32_t slot_count[TIDE_TIER_COUNT];
    naive_slot slots[TIDE_TIER_COUNT][NAIVE_SLOTS_MAX];
    uint32_t mapped[NAIVE_CHUNKS_MAX]; /* device slot, UINT32_MAX: none */
    uint64_t truth[NAIVE_CHUNKS_MAX];  /* 0: zeros */
    bool busy[NAIVE_CHUNKS_MAX];
    uint64_t versions; /* made so far */

    naive_op ops[NAIVE_OPS_MAX];
    uint32_t op_count;
    bool part_live[NAIVE_TENSORS_MAX][NAIVE_PARTS_MAX];

    /* gradients */
    bool added_now[NAIVE_PARAMS_MAX];  /* in the open step: its accumulator holds something */
    bool closed_now[NAIVE_PARAMS_MAX]; /* and that went into its place */
    bool is_zero_now[NAIVE_PARAMS_MAX]; /* or zero is taken for it */
    uint8_t gradient[NAIVE_PARAMS_MAX][NAIVE_CHUNKS_MAX]; /* naive_gradient, in the param's PARAM chunks */
    bool stands_complete[NAIVE_PARAMS_MAX]; /* some chunk of it still waits for its update or restore */
    bool used_now[NAIVE_PARAMS_MAX]; /* by an op of the open step that has ended */
    bool has_value[NAIVE_PARAMS_MAX];

    /* pending work, per PARAM chunk: pieces */
    tide_command_kind pending_kind[NAIVE_CHUNKS_MAX]; /* UPDATE or RESTORE */
    uint64_t pending[NAIVE_CHUNKS_MAX]; /* bit i: piece i */
    bool updated_early[NAIVE_CHUNKS_MAX]; /* its update of the open step is pending or done */
    uint64_t pending_step[NAIVE_CHUNKS_MAX];

    bool step_open, training, updates_wait, release_pending, update_failed;
    uint32_t updates_begun; /* of the last training step, and not cancelled */
    uint64_t step, training_step;
    tide_op open_op; /* UINT32_MAX: none */
    uint32_t open_slice;

    tide_use host_uses[TIDE_TASK_CHUNKS_MAX];
    uint32_t host_count;

    tide_command open[NAIVE_OPEN_MAX];
    uint32_t open_count;
    uint64_t copied_in, copied_out; /* chunks */
    uint64_t zero_gradients;        /* taken at step ends */
    uint64_t among_neighbours;      /* tasks on a STATE chunk that a neighbour's task of the other tier wants, too */
    char problem[256];
} naive_manager;

/* A model of a sealed manager whose ops are `ops`, and of whose params some are frozen. */
void naive_create(naive_manager *naive, const tide_layout *layout, tide_manager *manager,
                  const tide_manager_options *options, const naive_op *ops, uint32_t op_count, const bool *frozen);

/* Take one command from the manager, check it and keep it open. False if there is none. */
bool naive_take(naive_manager *naive);
/* Complete open command `at`; only tasks can be cancelled. */
void naive_complete(naive_manager *naive, uint32_t at, naive_outcome outcome);

/* The caller's side: each calls the manager, and checks its answer and all consequences. True if it went
 * through. */
void naive_step_begin(naive_manager *naive, bool training, bool updates_wait);
bool naive_begin(naive_manager *naive, tide_op op);
bool naive_slice(naive_manager *naive, uint32_t slice);
/* The request has become ready: what it sees must be the truth. */
void naive_check_ready(naive_manager *naive);
void naive_end(naive_manager *naive);
bool naive_step_end(naive_manager *naive);
/* The op that was registered first of those that gradients wait for; UINT32_MAX if none does. */
tide_op naive_waited_for(const naive_manager *naive);
void naive_release(naive_manager *naive, bool skip);
void naive_abort(naive_manager *naive, bool *poisoned);
void naive_host_request(naive_manager *naive, const tide_use *uses, uint32_t count);
/* Pending updates and restores, in pieces. */
uint32_t naive_pieces_pending(const naive_manager *naive);
/* Does any chunk have pending work of a step before the open one? */
bool naive_has_older_pending(const naive_manager *naive);
/* Does the place of any param hold a gradient made by the last training step? */
bool naive_has_new_gradient(const naive_manager *naive);
/* Ask for all that the manager has to refuse at present. */
void naive_ask_wrongly(naive_manager *naive);

#endif
