/* The pool's inside: what its files share.
 *
 *   pool.c      options, registration, destroy, addresses
 *   target.c    what the device's name means
 *   plan.c      the region's layout, budgets, slots, refusals
 *   seal.c      opens the device, allocates everything, starts the engine
 *   engine.c    executes the manager's commands
 *   tasks.c     updates, restores and host accesses on the host lane and the update stream
 *   step.c      steps: begin, end, abort; launches
 *   op.c        ops, slices, gradients into place
 *   norm.c      the gradient norm, clipping, skipped steps
 *   access.c    param_set, param_get, read, write
 *   order.c     which stream waits for which
 *   counters.c  what the caller may ask of the journal
 *   predict.c   plays steps with those durations in virtual time, on a shadow: a pool of its own
 *
 * Threads and locks: monitor.h. The engine sleeps in the device's park() and is rung awake. On a device that is not
 * asynchronous (null) there is no engine thread: the caller runs engine steps inline wherever it would wait.
 *
 * Fields: [caller] only the caller's thread; [lock] under the lock; [fixed] not changed after seal.
 */
#ifndef TIDE_POOL_INTERNAL_H
#define TIDE_POOL_INTERNAL_H

#include "chunk/manager.h"
#include "src/pool/ground.h"
#include "src/pool/journal.h"
#include "src/pool/jobs.h"
#include "src/pool/monitor.h"
#include "src/pool/order.h"
#include "src/pool/predict.h"
#include "tidepool/pool.h"

enum {
    TIDE_COMMANDS_OPEN_MAX = 64, /* handed out by the manager and not done */
    TIDE_OP_ENDS_MAX = 256, /* ops that the caller is ahead of the device; older ones count as the oldest */
    TIDE_SKIPS_MAX = 10,    /* skipped steps in a row, none at a lower loss scale than the one before, that end a run */
};

/* A command that waits for something before it is done. */
typedef enum tide_pool_command_phase {
    TIDE_OPEN_NONE = 0,
    TIDE_OPEN_COPY,  /* for its copy out */
    TIDE_OPEN_UNMAP, /* for the last use of its slot */
    TIDE_OPEN_READY, /* a task, for a free job and for its slots' copies */
    TIDE_OPEN_LANE,  /* for the host lane to finish it */
} tide_pool_command_phase;

typedef struct tide_pool_command {
    tide_command command;
    tide_pool_command_phase phase;
    uint64_t number; /* of its copy out, if it has one */
    tide_task task;
} tide_pool_command;

typedef enum tide_norm_phase {
    TIDE_NORM_IDLE = 0,
    TIDE_NORM_OWED,    /* a training step has ended, nothing is enqueued yet */
    TIDE_NORM_ASKED,   /* its sum is enqueued */
    TIDE_NORM_PENDING, /* its copy to the host, too */
    TIDE_NORM_KNOWN,
} tide_norm_phase;

struct tide_pool {
    tide_ground ground;
    tide_model model;
    bool sealed;
    tide_monitor monitor;
    tide_order order; /* [lock] */

    tide_journal journal;

    tide_link link;

    tide_jobs jobs;

    struct {
        tide_norm_phase phase; /* [lock] */
        uint64_t number;       /* [lock] */
        double *mailbox;
        uint32_t mailbox_object;
        uint64_t zero_gradients; /* [lock] params without one in the training step that ended last */
        tide_step_result result; /* [lock] of that step, */
        bool has_result;         /* [lock] once its norm is known, until another begins or it is given up */
        uint32_t skipped_in_row; /* [lock] */
        double skipped_scale;    /* [lock] loss scale of the last step skipped */
    } norm;

    struct {
        tide_pool_command open[TIDE_COMMANDS_OPEN_MAX]; /* [lock] */
        uint32_t count;                                 /* [lock] */
    } commands;

    struct {
        tide_manager *manager; /* [lock]; its gradients change in the caller's calls alone, which may read them without */
        pthread_t thread;
        bool started;
        bool stopping; /* [lock] */
        struct {
            bool asked;    /* [lock] the engine gives the step up and answers by clearing it */
            bool training; /* [lock] a training step is open when the abort is asked for */
            bool torn;     /* [lock] its answer: updates had begun, params are undefined */
            bool gave_up;  /* [lock] its answer: a training step is as if it had not begun */
        } abort;
        struct {                                 /* [lock] of ops, as the manager counts them */
            uint64_t count;                      /* since seal */
            uint64_t passed;                     /* of those, seen to be over on the compute stream */
            uint64_t numbers[TIDE_OP_ENDS_MAX];  /* a ring: their last pieces of the compute stream */
        } ends;
        bool torn;        /* [lock] */
        uint64_t updates; /* [lock] of steps whose norms are known */
        bool is_counted;  /* [lock] the step that ended last is one of them */
    } engine;

    struct {
        bool shadow;         /* [fixed] it plays another pool's steps (predict.h): kernels of its own last no time, */
        double shadow_bytes; /* [caller] but for the next one, which has this traffic */
    } launch;

    struct {
        bool is_open; /* [caller] */
        bool first_op_begun;
        bool backward_begun;
        tide_step_options options; /* [caller] of the open step */
        uint64_t calls_at_begin;   /* [lock] */
    } step;

    struct {
        bool is_open; /* [caller] */
        tide_op number;
        uint32_t slice;          /* UINT32_MAX: none */
        uint32_t access_count;   /* of the open op's accesses */
        uint32_t param_accesses; /* of those, the region and the params */
    } op;

    struct {
        char *halves[2]; /* used in turn */
        uint32_t objects[2];
        uint64_t numbers[2]; /* [caller] last use of each */
        uint32_t next;       /* [caller] */
    } staging;

    tide_predict predict; /* [caller] */
};

/* --- pool.c --- */

/* tide_pool_create; a shadow leaves the kernels' thread count alone. */
tide_status tide_pool_make(const tide_pool_options *options, bool shadow, tide_pool **pool);

/* Updates have begun that will not all take place: params are undefined until all is set anew. With the lock. */
void tide_pool_tear(tide_pool *pool);
/* Sleep until the compute stream has room. Without the lock. */
void tide_pool_make_room(tide_pool *pool);

/* ARGUMENT if a public call was given a NULL: `missing` is the first such parameter's name, NULL if there is none. */
static inline tide_status tide_pool_given(const char *call, const char *missing)
{
    return missing == NULL ? TIDE_OK : tide_fail(TIDE_ERROR_ARGUMENT, "%s: %s is NULL", call, missing);
}

/* --- plan.c --- */

/* An empty layout for the pool's params. ARGUMENT, NO_MEMORY. */
tide_status tide_pool_layout_create(const tide_pool *pool, uint64_t chunk_bytes, tide_layout **layout);
/* Layout and manager of what is registered, for any chunk size. The caller destroys both. */
tide_status tide_pool_policy_build(const tide_pool *pool, uint64_t chunk_bytes, tide_layout **layout,
                                   tide_manager **manager);
/* The region's layout; sets accumulator offsets of ops and params. Needs a manager with all ops. */
void tide_pool_region_plan(tide_pool *pool, tide_manager *manager, tide_region_layout *region);
/* Budgets in force, slots and refusals; fills `plan` whole. */
tide_status tide_pool_plan_make(tide_pool *pool, const tide_layout *layout, tide_manager *manager,
                                uint64_t device_memory_bytes, uint64_t host_memory_bytes, bool refuse,
                                tide_pool_plan *plan);
/* A caller's optimizer runs on the host. */
tide_placement tide_pool_placement(const tide_pool *pool);
uint64_t tide_pool_buffer_bytes(const tide_pool *pool, const tide_layout *layout);

/* --- engine.c --- */

void *tide_pool_engine_main(void *pool);
/* One round: poll what is open, hand out what is next. True if something moved. With the lock, which it may
 * drop and take again. */
bool tide_pool_engine_step(tide_pool *pool);
/* Something holds the caller up from here to release: idle time is that one's. With the lock. */
void tide_engine_hold(tide_pool *pool);
void tide_engine_release(tide_pool *pool);
/* tide_engine_wait, during which the caller is held up. */
tide_status tide_engine_wait_held(tide_pool *pool, bool (*ready)(const tide_pool *pool));
/* If no update is open or runs, records know it. With the lock. */
void tide_engine_tell_updates(tide_pool *pool);
/* Wait, with the lock, until `ready(pool)` or a failure; runs the engine inline where it has no thread. */
tide_status tide_engine_wait(tide_pool *pool, bool (*ready)(const tide_pool *pool));
/* There may be something to do: wake the engine, or run it here where it has no thread. With the lock. */
void tide_engine_ring(tide_pool *pool);
/* Give up the open step and every request, wait for what runs, clear the failure if the device can go on, and set the
 * pool's own counts right. OK if the engine is clean again: then either `torn` is set (params are undefined), or
 * the training step given up, if any, is as if it had not begun, with its restores under way. With the lock. */
tide_status tide_pool_give_up(tide_pool *pool);
/* Mark a command done and tell whoever waits. With the lock. */
void tide_pool_command_done(tide_pool *pool, const tide_command *command, tide_status status);

/* Every update of the last step is over, those enqueued on the device included. With the lock. */
bool tide_pool_updates_ended(const tide_pool *pool);

/* --- norm.c --- */

/* Enqueue the norm of the ended backward; the engine copies it to the host. Caller's thread, with the lock. */
tide_status tide_pool_norm_enqueue(tide_pool *pool);
/* If the norm has arrived: decide on clipping or skipping and let the updates go. Engine. True if it did. */
bool tide_pool_norm_poll(tide_pool *pool);
/* Updates of the step before are over, those of this one may begin: fix what they use. With the lock. */
void tide_pool_updates_let_go(tide_pool *pool, float gradient_scale);
/* No norm is on its way. */
bool tide_pool_norm_known(const tide_pool *pool);
/* Wait until the last step's norm is known and its updates are done. With the lock. */
tide_status tide_pool_settle(tide_pool *pool);
/* No update of the last step is open. */
bool tide_pool_updates_done(const tide_pool *pool);

/* --- access.c --- */

/* tide_read without its checks. Caller's thread, without the lock. */
tide_status tide_pool_read_region(tide_pool *pool, void *target, const void *region, size_t bytes);

/* --- op.c --- */

/* Without clipping this step's updates begin as its gradients complete: the ones before have to be over by then. With
 * the lock; at the first backward op, or at the end of a step that has none. */
tide_status tide_pool_begin_backward(tide_pool *pool);

/* --- step.c --- */

/* OK if the pool is there (ARGUMENT), sealed, has not failed and is not torn; `call` is named in the message. */
tide_status tide_pool_callable(tide_pool *pool, const char *call);
/* STATE: the pool is torn. */
tide_status tide_pool_say_torn(const char *call);
/* As tide_monitor_failure, a failure included that the device alone knows of so far. With the lock. */
tide_status tide_pool_ask_failure(tide_pool *pool);
/* Enqueue the zeroing of a part of the region on the compute stream; caller's thread. */
tide_status tide_pool_zero_region(tide_pool *pool, uint64_t offset_bytes, uint64_t bytes);

/* Do a step's updates wait for its norm? With clipping; and always in fp16, where gradients overflow now and then. */
static inline bool tide_pool_step_waits(const tide_pool *pool, const tide_step_options *step)
{
    return step->clip_norm > 0 || pool->ground.options.dtype == TIDE_DTYPE_FP16;
}

static inline float tide_pool_loss_scale(const tide_step_options *step)
{
    return step->loss_scale > 0 ? step->loss_scale : 1;
}

/* Tag of work on the compute stream: in a training step the open op, or the number of ops where none is open; else
 * UINT32_MAX, which is not measured. */
uint32_t tide_pool_compute_tag(const tide_pool *pool);
/* Enqueue on the compute stream what this file and norm.c need; caller's thread. */
tide_status tide_pool_compute_launch(tide_pool *pool, const char *label, tide_kernel kernel,
                                     const void *arguments, size_t argument_bytes, double flops, double bytes,
                                     const tide_access *accesses, uint32_t access_count);

static inline uint32_t tide_pool_parts(const tide_pool *pool)
{
    return tide_layout_parts_per_chunk(pool->ground.layout);
}

#endif
