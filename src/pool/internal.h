/* The pool: the list of its objects, and the caller's side of it.
 *
 * Calls go down only; README.md has a figure. Each object that the engine shares has a struct and a header of
 * its own, which says what the object owns, which thread or lock guards it, and whom it may call. The objects
 * that only the caller's thread works with stand here, and their functions take the pool; their files share
 * the open step and op.
 *
 * [caller] only the caller's thread; [lock] under the monitor's lock; [fixed] not changed after create. The
 * caller's thread changes the open step and op with the lock and reads them without.
 */
#ifndef TIDE_POOL_INTERNAL_H
#define TIDE_POOL_INTERNAL_H

#include "src/pool/engine.h"
#include "src/pool/plan.h"

/* The open step; step.c alone changes it. */
typedef struct tide_step {
    bool is_open;
    bool first_op_begun;       /* in the open step */
    bool backward_begun;       /* in the open step */
    tide_step_options options; /* those of the step begun last */
    uint64_t calls_at_begin;   /* calls into the manager before the step */
} tide_step;

/* The memory that kernels may touch: the region, the chunks of the open op's params, then those of its open
 * slice's activations. Every launch declares it. op.c changes it, step.c closes it. */
typedef struct tide_open_op {
    tide_op number;        /* TIDE_OP_NONE: no op is open */
    uint32_t slice;        /* while an op is open; UINT32_MAX: none */
    tide_access *accesses; /* [fixed] the tables */
    tide_chunk *chunks;    /* [fixed] each access's chunk; TIDE_CHUNK_NONE: the region, the first */
    uint32_t capacity;     /* [fixed] */
    uint32_t count;        /* of accesses; 1 if no op is open: the region */
    uint32_t param_count;  /* of those, accesses to the region and the params */
} tide_open_op;

/* A buffer on the host of two halves. [caller], without the lock. */
typedef struct tide_staging {
    char *halves[2]; /* [fixed] used in turn by writes; reads take the first */
    uint32_t objects[2];
    uint64_t numbers[2]; /* the submission of the compute stream with the last write of each half */
    uint32_t next;
} tide_staging;

typedef struct tide_predict {
    tide_pool *shadow;  /* NULL: there is none */
    double *played_ns;  /* per series, the mean with which the shadow played the answer */
    double device_rate; /* bytes per second of the shadow's device memory */
    uint64_t version;   /* of the script played */
    bool answered;
    tide_pool_prediction answer;
} tide_predict;

struct tide_pool {
    tide_packing packing; /* all zero in a shadow, which shares the other pool's */
    tide_pool_context context;
    tide_monitor monitor;
    tide_order order;
    tide_telemetry telemetry;
    tide_link link;
    tide_running_tasks running_tasks;
    tide_norm norm;
    tide_engine engine; /* with the manager and its open commands */
    tide_step step;
    tide_open_op op;
    tide_staging staging;
    /* [caller] how many elements of each param and plane have been set since `covered_poisoning` */
    uint64_t (*covered)[TIDE_STATE_PLANES_MAX];
    uint64_t covered_poisoning;
    tide_predict predict; /* [caller] */
    bool is_shadow;       /* [fixed] it plays another pool's steps (predict.c) */
    double shadow_bytes;  /* [caller] traffic of a shadow's next own kernel; the others last no time */
};

/* --- call.c: checks that each public call makes first --- */

/* ARGUMENT if a public call was given a NULL: `missing` is the first such parameter's name, NULL if there is
 * none. */
static inline tide_status tide_pool_given(const char *call, const char *missing)
{
    return missing == NULL ? TIDE_OK : tide_fail(TIDE_ERROR_ARGUMENT, "%s: %s is NULL", call, missing);
}

/* OK if `pool` is not NULL (ARGUMENT), has not failed (its failure) and is not poisoned (STATE); `call` is named
 * in the message. */
tide_status tide_pool_callable(tide_pool *pool, const char *call);
/* Returns STATE with the message that the pool is poisoned. */
tide_status tide_pool_say_poisoned(const char *call);

/* --- launch.c: the compute stream, as the caller fills it ---
 *
 * Only the caller's thread enqueues on it, but for the norm's copy, which the engine enqueues between steps.
 * Without the lock.
 */

/* As what a kernel's time counts: as the op's own, or as the pool's at the begin or end of an op. Outside ops
 * BEGIN and WRITE count as the step's work before its ops, the others as its work after them. */
typedef enum tide_launch_part {
    TIDE_PART_OP = 0,
    TIDE_PART_WRITE, /* tide_write; within an op, the op's own time */
    TIDE_PART_BEGIN, /* touches the region alone */
    TIDE_PART_END,
} tide_launch_part;

/* A kernel to launch, with its size. */
typedef struct tide_kernel_work {
    const char *label;
    tide_kernel kernel;
    const void *arguments;
    size_t argument_bytes;
    double flops, bytes;
    tide_launch_part part; /* BEGIN: the kernel may touch the region alone; else all held memory */
} tide_kernel_work;

/* Sleep until the compute stream has space for the TIDE_CAPACITY_COMMANDS commands that the caller enqueues
 * with the lock; then take the lock. */
void tide_launch_lock(tide_pool *pool);
/* tide_work.tag of work that is enqueued now: in a training step the open op, or the number of ops where none
 * is open; outside training UINT32_MAX. */
uint32_t tide_launch_tag(const tide_pool *pool);
/* tide_work.timer of such work. The pool measures training steps only. */
uint32_t tide_launch_timer(const tide_pool *pool, tide_launch_part part);
tide_status tide_launch_kernel(tide_pool *pool, const tide_kernel_work *kernel);
/* Fill bytes of the region with zeros. */
tide_status tide_launch_zero(tide_pool *pool, uint64_t offset_bytes, uint64_t bytes);
/* Fill bytes of the region with fp32 NaNs. On the host device with options.checks.hazard_check only. */
tide_status tide_launch_nan(tide_pool *pool, uint64_t offset_bytes, uint64_t bytes);

/* --- staging.c: copies bytes of the region in and out, in order with kernels; without the lock --- */

/* Make the staging buffer; the device frees it at close. NO_MEMORY, BUDGET. */
tide_status tide_staging_create(tide_pool *pool);
tide_status tide_staging_read(tide_pool *pool, void *target, const void *region, size_t bytes);

/* --- step.c: with the lock --- */

/* An op begins. */
void tide_step_op_begins(tide_pool *pool);
/* A backward op begins, or a training step that had none ends. Where updates do not wait for the norm, those
 * of this step begin as its gradients complete: this call waits until no update of the step before is
 * open. */
tide_status tide_step_backward_begins(tide_pool *pool);
/* An op has ended, or is given up: launches belong to no op. */
void tide_step_op_ends(tide_pool *pool);
/* Close the step and the op in it, and have the engine give them up. */
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

/* Make the tables for the chunks of the largest op; plan and region must be there. NO_MEMORY; destroy frees
 * them then, too. */
tide_status tide_op_create(tide_pool *pool);
void tide_op_destroy(tide_pool *pool);
bool tide_op_is_valid(const tide_pool *pool);

/* --- make.c --- */

/* Make a pool, as tide_pool_create does, but without its shadow. */
tide_status tide_pool_make(const tide_pool_options *options, tide_description *description, tide_pool **pool);
/* Make the shadow of a pool, with other options: it shares the packing, which must outlive it, and leaves the CPU
 * kernels' thread count alone. */
tide_status tide_pool_make_shadow(const tide_pool *pool, const tide_pool_options *options,
                                  tide_pool **shadow);
/* Free the pool but for its shadow. NULL: nothing. */
void tide_pool_unmake(tide_pool *pool);

/* --- predict.c --- */

/* Make the pool's shadow. Statuses of tide_pool_create; on failure there is no shadow. */
tide_status tide_predict_create(tide_pool *pool);
void tide_predict_destroy(tide_predict *predict); /* zeroed: allowed */

/* --- build.c --- */

/* Make a running pool from a planned context, and take all memory that it will ever use. After a failure
 * tide_pool_unbuild undoes the part that was done. */
tide_status tide_pool_build(tide_pool *pool);
void tide_pool_unbuild(tide_pool *pool);

#endif
