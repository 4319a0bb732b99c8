/* A reference model of the chunk manager. It carries out the manager's commands on version numbers and knows
 * the truth.
 *
 * Every chunk has a true version, and every slot of both tiers holds a version of some chunk. Commands copy
 * versions between slots; ops and tasks make new ones. The model makes no choices. It recomputes liveness,
 * gradients and pending updates from the described ops by plain loops. It can therefore see whether an
 * access finds the true version, whether a command overwrites the last copy of a chunk, moves a pinned chunk
 * or copies a clean one, and whether an update is lost or made twice.
 *
 * Gradients are kept per chunk. An op's end puts a gradient into every chunk of its param, and only an
 * update or a restore of a chunk ends all gradients in that chunk. A param has a gradient while any of its
 * chunks has one. (Its chunks may have pending work without it: after an abort a chunk may have a restore
 * pending for a neighbour's gradient, although an older update has ended this param's.)
 *
 * After each call the model compares tensor and chunk states, gradients, pending work, pins and places with
 * the manager's.
 *
 * It writes the first contradiction to `problem`; later ones mean nothing.
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

#define REFERENCE_GARBAGE UINT64_MAX /* undefined content */

/* The gradient of a param that a chunk holds. */
typedef enum reference_gradient {
    REFERENCE_GRADIENT_NONE = 0,
    REFERENCE_GRADIENT_ZERO, /* no op made one; step end counts it as zero until the update */
    REFERENCE_GRADIENT_REAL,
} reference_gradient;

typedef enum reference_outcome {
    REFERENCE_DONE = 0,
    REFERENCE_FAILED,    /* the command failed; the content that it writes is undefined */
    REFERENCE_CANCELLED, /* the task was never started */
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
    tide_chunk chunk; /* device: the chunk mapped to the slot; host: the chunk whose bytes the slot has */
    uint64_t version;
    bool busy; /* an open command uses it */
} reference_slot;

typedef struct reference_manager {
    const tide_layout *layout;
    tide_manager *manager;
    bool compares_always; /* compare all chunks after every call; otherwise see compare() */
    uint32_t params, param_chunks, chunks;
    tide_chunk first[REFERENCE_PARAMS_MAX], last[REFERENCE_PARAMS_MAX]; /* per param: its chunks */
    bool frozen[REFERENCE_PARAMS_MAX];
    bool is_activation[REFERENCE_CHUNKS_MAX];
    uint32_t slot_count[TIDE_TIER_COUNT];
    reference_slot slots[TIDE_TIER_COUNT][REFERENCE_SLOTS_MAX];
    uint32_t mapped[REFERENCE_CHUNKS_MAX]; /* per chunk: its device slot, UINT32_MAX: none */
    uint64_t truth[REFERENCE_CHUNKS_MAX];  /* per chunk: its true version; 0: zeros */
    bool busy[REFERENCE_CHUNKS_MAX];
    uint64_t versions; /* number of versions made so far */

    reference_op ops[REFERENCE_OPS_MAX];
    uint32_t op_count;
    bool part_live[REFERENCE_TENSORS_MAX][REFERENCE_PARTS_MAX];

    /* gradients */
    bool added_now[REFERENCE_PARAMS_MAX]; /* an op of the open step has added to its accumulator */
    /* an op of the open step has put the sum into the param's place */
    bool closed_now[REFERENCE_PARAMS_MAX];
    bool is_zero_now[REFERENCE_PARAMS_MAX]; /* step end counted it as zero */
    /* a reference_gradient, of each param in each of its chunks */
    uint8_t gradient[REFERENCE_PARAMS_MAX][REFERENCE_CHUNKS_MAX];
    /* some chunk of the param still waits for its update or restore */
    bool stands_complete[REFERENCE_PARAMS_MAX];
    bool used_now[REFERENCE_PARAMS_MAX]; /* an op of the open step used it and has ended */
    bool has_value[REFERENCE_PARAMS_MAX];

    /* pending work per PARAM chunk, in pieces */
    tide_command_kind pending_kind[REFERENCE_CHUNKS_MAX]; /* UPDATE or RESTORE */
    uint64_t pending[REFERENCE_CHUNKS_MAX];               /* bit i: piece i is pending */
    bool updated_early[REFERENCE_CHUNKS_MAX];             /* its update of the open step is pending or done */
    uint64_t pending_step[REFERENCE_CHUNKS_MAX];

    bool step_open, training, updates_wait, release_pending, update_failed;
    uint32_t updates_begun; /* of the last training step, without cancelled ones */
    uint64_t step, training_step;
    tide_op open_op; /* UINT32_MAX: none */
    uint32_t open_slice;

    tide_use host_uses[TIDE_TASK_CHUNKS_MAX];
    uint32_t host_count;

    tide_command open[REFERENCE_OPEN_MAX];
    uint32_t open_count;
    uint64_t copied_in, copied_out; /* chunks copied in and out */
    uint64_t zero_gradients;        /* number of gradients that step ends counted as zero */
    /* tasks on a STATE chunk that a pending piece of the other tier needs, too */
    uint64_t among_neighbours;
    char problem[256];
} reference_manager;

/* Make a model of a manager with the ops `ops`. `frozen` says of each param whether it is frozen. */
void reference_create(reference_manager *reference, const tide_layout *layout, tide_manager *manager,
                      const tide_manager_options *options, const reference_op *ops, uint32_t op_count,
                      const bool *frozen);

/* Take one command from the manager, check it and keep it open. False if there is none. */
bool reference_take(reference_manager *reference);
/* Complete open command `at`. Only tasks may be cancelled. */
void reference_complete(reference_manager *reference, uint32_t at, reference_outcome outcome);

/* The caller's calls: each calls the manager and checks its answer and all consequences. Those that return
 * bool return whether the manager accepted the call. */
void reference_step_begin(reference_manager *reference, bool training, bool updates_wait);
bool reference_begin(reference_manager *reference, tide_op op);
bool reference_slice(reference_manager *reference, uint32_t slice);
/* The request is ready: the chunks that it pinned must have their true versions. */
void reference_check_ready(reference_manager *reference);
void reference_end(reference_manager *reference);
bool reference_step_end(reference_manager *reference);
/* Among the ops that gradients wait for, the first of the description; UINT32_MAX if there is none. */
tide_op reference_waited_for(const reference_manager *reference);
void reference_release(reference_manager *reference, bool skip);
void reference_abort(reference_manager *reference, bool *poisoned);
void reference_host_request(reference_manager *reference, const tide_use *uses, uint32_t count);
/* The number of pieces of all pending updates and restores. */
uint32_t reference_pieces_pending(const reference_manager *reference);
/* Does any chunk have pending work of a step before the open one? */
bool reference_has_older_pending(const reference_manager *reference);
/* Does the place of any param hold a gradient made by the last training step? */
bool reference_has_new_gradient(const reference_manager *reference);
/* Make all calls that the manager must refuse at present. */
void reference_ask_wrongly(reference_manager *reference);

#endif
