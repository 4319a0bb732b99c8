/* The pool: the list of its objects, and those that only the caller's thread uses.
 *
 * Calls go only downwards in README.md's figure. Each object that the engine shares has a struct and a header
 * of its own, which says what the object owns, which thread or lock guards it, and whom it may call. The
 * objects that only the caller's thread works with stand here, and their functions take the pool; their files
 * share the open step and op.
 *
 * [caller] only the caller's thread; [lock] under the monitor's lock; [fixed] not changed after create. The
 * caller's thread holds the lock when it changes the open step and op, and reads them without the lock.
 */
#ifndef TIDE_POOL_INTERNAL_H
#define TIDE_POOL_INTERNAL_H

#include "src/pool/engine.h"
#include "src/pool/plan.h"
#include "src/pool/player.h"

/* The open step; step.c alone changes it. */
typedef struct tide_step {
    bool is_open;
    bool first_op_begun;       /* in the open step */
    bool backward_begun;       /* in the open step */
    tide_step_options options; /* those of the step begun last */
    uint64_t calls_at_begin;   /* calls into the manager before the step */
} tide_step;

/* The parts of a gradient that the open op has finished (tide_gradient_finish), in order; none touches the
 * next. gradient.c changes it. */
typedef struct tide_finished {
    uint32_t count;
    struct {
        uint64_t first, end;
    } ranges[TIDE_FINISHED_RANGES_MAX];
} tide_finished;

/* The memory that kernels may touch: parts of the region, then the chunks of the open op's params, then the
 * chunks of its open slice's activations. Every launch declares all of it to the device. op.c changes it,
 * step.c closes it. */
typedef struct tide_open_op {
    tide_op number;          /* TIDE_OP_NONE: no op is open */
    uint32_t slice;          /* while an op is open; UINT32_MAX: none */
    tide_access *accesses;   /* [fixed] the tables */
    tide_chunk *chunks;      /* [fixed] each access's chunk; TIDE_CHUNK_NONE for parts of the region */
    uint32_t capacity;       /* [fixed] */
    uint32_t region_count;   /* the first accesses are to parts of the region, so many of them */
    uint32_t count;          /* accesses in the tables; region_count if no op is open */
    uint32_t param_count;    /* how many of them are to the region and the params */
    uint32_t turn;           /* of the op begun last that has one (packing.h) */
    uint32_t group;          /* the sum group that is open; gradient.c changes it */
    uint32_t group_slices;   /* how many slices have been opened in it */
    tide_finished *finished; /* [fixed] the table, one for each param use */
    tide_access *finishing;  /* [fixed] the accesses of kernels that finish gradients */
    uint32_t finishing_count;
    tide_stream finishing_stream;
} tide_open_op;

/* Several ranks (ranks.c). [caller] */
typedef struct tide_pool_ranks {
    tide_comm_range *ranges; /* [fixed] the tables of all ops' collectives */
    uint64_t *numbers;       /* [fixed] one of each rank, to compare */
    uint32_t most_params;    /* [fixed] of an op */
    uint64_t pieces;         /* in the open op's table */
    uint64_t calls;          /* a hash of the calls so far */
} tide_pool_ranks;

/* A buffer on the host of two halves. [caller], without the lock. */
typedef struct tide_staging {
    char *halves[2]; /* [fixed] used in turn by writes; reads take the first */
    uint32_t objects[2];
    uint64_t numbers[2]; /* the submission of the compute stream with the last write of each half */
    uint32_t next;
} tide_staging;

typedef struct tide_predict {
    tide_player *player; /* NULL: there is none */
    double *played_ns;   /* per series, the mean duration used for `answer` */
    uint64_t version;    /* of the script (measure.h) used for `answer` */
    bool answered;
    tide_pool_prediction answer;
} tide_predict;

struct tide_pool {
    tide_packing packing; /* all zero in a pool that shares another's (tide_pool_make_sharing) */
    tide_pool_context context;
    tide_monitor monitor;
    tide_order order;
    tide_telemetry telemetry;
    tide_link link;
    tide_running_tasks running_tasks;
    tide_norm norm;
    tide_engine engine; /* owns the manager and the open commands */
    tide_step step;
    tide_open_op op;
    tide_staging staging;
    tide_pool_ranks ranks;
    /* [caller] how many elements of each param and plane have been set since `covered_poisoning` */
    uint64_t (*covered)[TIDE_STATE_PLANES_MAX];
    uint64_t covered_poisoning;
    tide_predict predict; /* [caller] */
};

/* --- call.c: checks that each public call makes first --- */

/* ARGUMENT if a public call was given a NULL: `missing` is the first such parameter's name, NULL if there is
 * none. */
static inline tide_status tide_pool_given(const char *call, const char *missing)
{
    return missing == NULL ? TIDE_OK : tide_fail(TIDE_ERROR_ARGUMENT, "%s: %s is NULL", call, missing);
}

/* ARGUMENT if `pool` is NULL; its failure if it has failed; STATE if it is poisoned; else TIDE_OK. The
 * message names `call`. */
tide_status tide_pool_callable(tide_pool *pool, const char *call);
/* Returns STATE with the message that the pool is poisoned. */
tide_status tide_pool_say_poisoned(const char *call);

/* --- launch.c: enqueues on the compute stream ---
 *
 * Only the caller's thread enqueues here, without the lock. The one exception is the norm's copy, which the
 * engine enqueues between steps.
 */

/* How the time of a kernel is counted. In an op: OP and WRITE as the op's own time, BEGIN and END as the
 * pool's work at the op's begin or end. Outside ops: BEGIN and WRITE as the step's work before its ops, OP
 * and END as its work after them. */
typedef enum tide_launch_part {
    TIDE_PART_OP = 0,
    TIDE_PART_WRITE, /* the copy of a tide_write */
    TIDE_PART_BEGIN, /* accesses only parts of the region that the open op uses */
    TIDE_PART_END,   /* finishes gradients; on the stream for that */
} tide_launch_part;

/* A kernel to launch, with its size. */
typedef struct tide_kernel_work {
    const char *label;
    tide_kernel kernel;
    const void *arguments;
    size_t argument_bytes;
    double flops, bytes;
    tide_launch_part part;
} tide_kernel_work;

/* Sleep until the caller's streams have space for the TIDE_CAPACITY_COMMANDS commands that he enqueues with
 * the lock; then take the lock. */
void tide_launch_lock(tide_pool *pool);
/* tide_work.tag for work about to be enqueued: in a training step the number of the open op, or the count of
 * ops if no op is open; outside training steps UINT32_MAX. */
uint32_t tide_launch_tag(const tide_pool *pool);
/* tide_work.timer for work about to be enqueued: the series of `part`, TIDE_TIMER_NONE outside training
 * steps. */
uint32_t tide_launch_timer(const tide_pool *pool, tide_launch_part part);
tide_status tide_launch_kernel(tide_pool *pool, const tide_kernel_work *kernel);
/* Launch a kernel that accesses the norm's part of the region. */
tide_status tide_launch_of_norm(tide_pool *pool, const tide_kernel_work *kernel);
/* Fill bytes of the open op's accumulators with zeros. */
tide_status tide_launch_zero(tide_pool *pool, uint64_t offset_bytes, uint64_t bytes);
/* Fill them with fp32 NaNs. Call only on the host device, with options.checks.hazard_check. */
tide_status tide_launch_nan(tide_pool *pool, uint64_t offset_bytes, uint64_t bytes);

/* --- staging.c: copies bytes into and out of the region, in order with kernels; without the lock --- */

/* Make the staging buffer; the device frees it at close. NO_MEMORY, BUDGET. */
tide_status tide_staging_create(tide_pool *pool);
tide_status tide_staging_read(tide_pool *pool, void *target, const void *region, size_t bytes);

/* --- step.c: with the lock --- */

/* An op begins. */
void tide_step_op_begins(tide_pool *pool);
/* Call when a backward op begins, or when a training step without backward ops ends. Where updates do not
 * wait for the norm, each update of this step begins when its gradients are complete; so this call first
 * waits until all updates of the step before are done. */
tide_status tide_step_backward_begins(tide_pool *pool);
/* An op has ended or was given up: later launches belong to no op. */
void tide_step_op_ends(tide_pool *pool);
/* Close the open step and op, and have the engine give them up. */
tide_status tide_step_give_up(tide_pool *pool);
bool tide_step_is_valid(const tide_pool *pool);

/* --- op.c --- */

static inline bool tide_op_is_open(const tide_pool *pool)
{
    return pool->op.number != TIDE_OP_NONE;
}

/* The open op. */
static inline const tide_packed_op *tide_op_open(const tide_pool *pool)
{
    assert(tide_op_is_open(pool));
    return &pool->context.packing->ops[pool->op.number];
}

/* Allocate the tables of tide_open_op for the op with the most chunks; plan and region must exist. NO_MEMORY:
 * call destroy then, too. */
tide_status tide_op_create(tide_pool *pool);
void tide_op_destroy(tide_pool *pool);
/* No op is open any more. */
void tide_op_close(tide_pool *pool);
bool tide_op_is_valid(const tide_pool *pool);

/* --- gradient.c: the open op's accumulators; without the lock --- */

/* The open sum group's accumulator, in the region, of the open op's use `use`, which has GRAD. */
uint64_t tide_gradient_offset(const tide_pool *pool, uint32_t use);
/* Call when an op has begun: open the first sum group, and zero its accumulators whose first use is in this
 * op. Those that the op overwrites are not zeroed; with options.checks.hazard_check they are filled with NaN,
 * so that an element which the op failed to write shows. */
tide_status tide_gradient_begin(tide_pool *pool);
/* May the slice be opened? STATE if its sum group is before the open one. */
tide_status tide_gradient_check_slice(const tide_pool *pool, uint32_t slice);
/* Call when the slice is open: end the sum groups before its own, and open that. */
tide_status tide_gradient_slice(tide_pool *pool, uint32_t slice);
/* May elements [first, first + count) of the param's gradient be finished? Statuses of tide_gradient_finish.
 * Sets `use` to the param's among those of the open op. */
tide_status tide_gradient_check_range(const tide_pool *pool, tide_param param, uint64_t first, uint64_t count,
                                      uint32_t *use);
/* Finish that range, with op->finishing set: add its sums, round them over the param and, if this completes
 * the gradient, compute the norms of its blocks. */
tide_status tide_gradient_range(tide_pool *pool, uint32_t use, uint64_t first, uint64_t count);
/* Call when the open op's work is enqueued: end its sum groups. */
tide_status tide_gradient_end_groups(tide_pool *pool);
/* Call then, with op->finishing set: finish the rest of each gradient that the op closes. */
tide_status tide_gradient_end(tide_pool *pool);

/* Round a part of a gradient, which begins at a norm block and ends at one or with the param, over the param,
 * and compute the norms of its blocks. */
tide_status tide_gradient_round(tide_pool *pool, uint32_t use, uint64_t first, uint64_t count);

/* --- ranks.c: with several ranks; the caller's thread, without the lock --- */

/* Make the tables, and compare the ranks' models and options; with one rank do nothing. PEER, NO_MEMORY: call
 * destroy then, too. */
tide_status tide_ranks_create(tide_pool *pool);
void tide_ranks_destroy(tide_pool *pool);

/* The calls that all ranks make in the same order. */
typedef enum tide_rank_call {
    TIDE_CALL_STEP_BEGIN = 1,
    TIDE_CALL_STEP_END,
    TIDE_CALL_OP_BEGIN,
    TIDE_CALL_OP_SLICE,
    TIDE_CALL_OP_END,
    TIDE_CALL_UPDATE_COUNT_SET,
} tide_rank_call;

/* Note a call with its most important argument, to compare it with the other ranks' at the next step's
 * begin. */
void tide_ranks_call(tide_pool *pool, tide_rank_call call, uint64_t number);
/* Compare the calls so far and the step's options with the other ranks'. PEER. */
tide_status tide_ranks_step_begins(tide_pool *pool, const tide_step_options *options);
/* Add the ranks' sums of all gradients that the open op closes, round them, and get them from their owners,
 * with op->finishing set. The rank's own sum groups have been added. */
tide_status tide_ranks_reduce(tide_pool *pool);

/* --- make.c --- */

/* Make a pool as tide_pool_create does, but without a player that predicts its steps (predict.c). */
tide_status tide_pool_make(const tide_pool_options *options, tide_description *description, tide_pool **pool);
/* Make a pool that shares another's packing, which must outlive it, with options of its own. Does not set the
 * CPU kernels' thread count. */
tide_status tide_pool_make_sharing(const tide_pool *pool, const tide_pool_options *options,
                                   tide_pool **result);
/* Free the pool, but not its player. NULL is allowed. */
void tide_pool_unmake(tide_pool *pool);

/* --- predict.c --- */

/* Make the pool's player. Statuses as tide_pool_create's; after a failure the pool has no player. */
tide_status tide_predict_create(tide_pool *pool);
void tide_predict_destroy(tide_predict *predict); /* zeroed: allowed */

/* --- build.c --- */

/* Make a running pool from a planned context, and take all memory that it will ever use. After a failure
 * tide_pool_unbuild undoes the part that was done. */
tide_status tide_pool_build(tide_pool *pool);
void tide_pool_unbuild(tide_pool *pool);

#endif
