/* The pool: the list of its objects, and the caller's side of it.
 *
 * Arrows point down; README.md has them as a figure. What the engine shares has a struct and a header of its own each, which
 * says what it owns, which thread or lock guards it, and whom it may call. What only the caller's thread works with stands
 * here, and its functions take the pool; these files share the open step and op, and call only downwards.
 *
 * [caller] only the caller's thread; [lock] under the monitor's lock; [fixed] not changed after seal. The open step and op are
 * the caller's, who changes them with the lock and reads them without.
 */
#ifndef TIDE_POOL_INTERNAL_H
#define TIDE_POOL_INTERNAL_H

#include "src/pool/engine.h"

/* The open step. Changed by step.c. */
typedef struct tide_step {
    bool is_open;
    bool first_op_begun;       /* in the open step */
    bool backward_begun;       /* likewise */
    tide_step_options options; /* of the step begun last */
    uint64_t calls_at_begin;   /* into the manager */
} tide_step;

/* What kernels may touch: the region, the open op's params' chunks, and behind them its slice's. Launches declare them.
 * Changed by op.c, and closed by step.c. */
typedef struct tide_open_op {
    tide_op number;        /* TIDE_OP_NONE: no op is open */
    uint32_t slice;        /* while an op is open; UINT32_MAX: none */
    tide_access *accesses; /* [fixed] the tables */
    tide_chunk *chunks;    /* [fixed] behind each access; TIDE_CHUNK_NONE: the region, which is the first */
    uint32_t capacity;     /* [fixed] */
    uint32_t count;        /* 1 if no op is open: the region */
    uint32_t param_count;  /* of those, the region and the params */
} tide_open_op;

/* A buffer on the host of two halves. [caller], without the lock. */
typedef struct tide_staging {
    char *halves[2]; /* [fixed] used in turn by writes; reads take the first */
    uint32_t objects[2];
    uint64_t numbers[2]; /* pieces of the compute stream: the last write of each */
    uint32_t next;
} tide_staging;

typedef struct tide_predict {
    tide_pool *shadow;  /* NULL: not made */
    double *played_ns;  /* per series, the means that the answer was made with */
    double device_rate; /* bytes per second of the shadow's device memory */
    uint64_t version;   /* of the script played */
    bool answered;
    tide_pool_prediction answer;
} tide_predict;

struct tide_pool {
    bool sealed;
    tide_sealed_context context;
    tide_model model;
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
    uint64_t covered_poisoning; /* [caller] the params' `covered` counts since this poisoning */
    tide_predict predict;       /* [caller] */
    bool is_shadow; /* [fixed] it plays another pool's steps (predict.c): kernels of its own last no time, */
    double shadow_bytes; /* [caller] but for the next one, which has this traffic */
};

/* --- call.c: what each public call looks at first --- */

/* ARGUMENT if a public call was given a NULL: `missing` is the first such parameter's name, NULL if there is none. */
static inline tide_status tide_pool_given(const char *call, const char *missing)
{
    return missing == NULL ? TIDE_OK : tide_fail(TIDE_ERROR_ARGUMENT, "%s: %s is NULL", call, missing);
}

/* OK if the pool is there (ARGUMENT) and sealed; `call` is named in the message. */
tide_status tide_pool_sealed(const tide_pool *pool, const char *call);
/* And has not failed and is not poisoned. */
tide_status tide_pool_callable(tide_pool *pool, const char *call);
/* STATE: the pool is poisoned. */
tide_status tide_pool_say_poisoned(const char *call);

/* --- launch.c: the compute stream, as the caller fills it ---
 *
 * Nobody else enqueues on it but for the norm's copy, between steps. Without the lock.
 */

/* Whose time it is: the op's own, or the pool's at an op's begin or end. Between ops the first and the last are what follows
 * them, zeroing and writing what precedes. */
typedef enum tide_launch_part {
    TIDE_PART_OP = 0,
    TIDE_PART_WRITE, /* bytes for it; in an op its own */
    TIDE_PART_BEGIN, /* touches the region alone */
    TIDE_PART_END,
} tide_launch_part;

/* What a kernel does. */
typedef struct tide_kernel_work {
    const char *label;
    tide_kernel kernel;
    const void *arguments;
    size_t argument_bytes;
    double flops, bytes;
    tide_launch_part
        part; /* whose time it is; and what it may touch: BEGIN the region, others all that is held */
} tide_kernel_work;

/* Sleep until the compute stream has room for TIDE_CAPACITY_COMMANDS, which are enqueued with the lock; then take it. */
void tide_launch_lock(tide_pool *pool);
/* Of work that is enqueued now: tide_work.tag. In a training step the open op, or the number of ops where none is open. */
uint32_t tide_launch_tag(const tide_pool *pool);
/* And tide_work.timer. Only training is measured. */
uint32_t tide_launch_timer(const tide_pool *pool, tide_launch_part part);
tide_status tide_launch_kernel(tide_pool *pool, const tide_kernel_work *kernel);
/* Zeros in the region. */
tide_status tide_launch_zero(tide_pool *pool, uint64_t offset_bytes, uint64_t bytes);
/* fp32 NaNs in the region. On the host device alone: options.hazard_check. */
tide_status tide_launch_nan(tide_pool *pool, uint64_t offset_bytes, uint64_t bytes);

/* --- staging.c: bytes of the region in and out, in order with kernels; without the lock --- */

/* NO_MEMORY, BUDGET. The device's close frees it. */
tide_status tide_staging_create(tide_pool *pool);
tide_status tide_staging_read(tide_pool *pool, void *target, const void *region, size_t bytes);

/* --- step.c: with the lock --- */

/* An op begins. */
void tide_step_op_begins(tide_pool *pool);
/* A backward op begins, or a training step that had none ends. Without clipping its updates begin as its gradients complete:
 * the ones before have to be over by then. */
tide_status tide_step_backward_begins(tide_pool *pool);
/* An op has ended, or is given up: launches are nobody's. */
void tide_step_op_ends(tide_pool *pool);
/* Close the step and the op in it, and have the engine give them up. */
tide_status tide_step_give_up(tide_pool *pool);
bool tide_step_is_valid(const tide_pool *pool);

/* --- op.c --- */

static inline bool tide_op_is_open(const tide_pool *pool)
{
    return pool->op.number != TIDE_OP_NONE;
}

/* The open one, as registered. */
static inline const tide_pool_op *tide_op_open(const tide_pool *pool)
{
    assert(tide_op_is_open(pool));
    return &pool->model.ops[pool->op.number];
}

/* With plan and region: room for what the largest op holds. NO_MEMORY, leaving what destroy frees. */
tide_status tide_op_create(tide_pool *pool);
void tide_op_destroy(tide_pool *pool);
bool tide_op_is_valid(const tide_pool *pool);

/* --- make.c --- */

/* tide_pool_create; a shadow leaves the kernels' thread count alone. */
tide_status tide_pool_make(const tide_pool_options *options, bool is_shadow, tide_pool **pool);
/* Everything but predictions, which have a pool of their own. NULL: nothing. */
void tide_pool_unmake(tide_pool *pool);

/* --- plan.c --- */

/* STATE, naming the call, if there is nothing to plan for: no op, or no param that is not frozen. */
tide_status tide_pool_described(const tide_pool *pool, const char *call);
/* Layout and manager of what is registered, for any chunk size. The caller destroys both. */
tide_status tide_pool_policy_build(const tide_pool *pool, uint64_t chunk_bytes, tide_layout **layout,
                                   tide_manager **manager);
/* Budgets in force, slots and refusals; fills `plan` whole, the region's layout and the accumulators' offsets. */
tide_status tide_pool_plan_make(tide_pool *pool, const tide_layout *layout, tide_manager *manager,
                                uint64_t device_memory_bytes, uint64_t host_memory_bytes, bool refuse,
                                tide_pool_plan *plan);

/* --- predict.c --- */

/* Make the shadow of a sealed pool. Statuses of tide_pool_create and tide_pool_seal; nothing is left behind then. */
tide_status tide_predict_create(tide_pool *pool);
void tide_predict_destroy(tide_predict *predict); /* zeroed: allowed */

/* --- seal.c --- */

/* tide_pool_seal without predictions. After a failure nothing is left. */
tide_status tide_pool_build(tide_pool *pool);
/* Undo it, and what of it there is. */
void tide_pool_unseal(tide_pool *pool);

#endif
