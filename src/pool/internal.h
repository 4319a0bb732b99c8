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
#include "src/pool/engine.h"
#include "src/pool/monitor.h"
#include "src/pool/order.h"
#include "src/pool/predict.h"
#include "tidepool/pool.h"

struct tide_pool {
    tide_ground ground;
    tide_model model;
    bool sealed;
    tide_monitor monitor;
    tide_order order; /* [lock] */

    tide_journal journal;

    tide_link link;

    tide_jobs jobs;

    tide_norm norm;
    tide_engine engine;

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

    struct {
        uint64_t (*covered)[3]; /* [lock] per param: elements set anew, per fp32 space, */
        uint64_t tear;          /* [lock] since this tear of the pool's */
    } access;

    tide_predict predict; /* [caller] */
};

/* --- pool.c --- */

/* tide_pool_create; a shadow leaves the kernels' thread count alone. */
tide_status tide_pool_make(const tide_pool_options *options, bool shadow, tide_pool **pool);

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

/* Give up the open step and every request, wait for what runs, clear the failure if the device can go on, and set the
 * pool's own counts right. OK if the engine is clean again: then either `torn` is set (params are undefined), or
 * the training step given up, if any, is as if it had not begun, with its restores under way. With the lock. */
tide_status tide_pool_give_up(tide_pool *pool);

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
/* Enqueue the zeroing of a part of the region on the compute stream; caller's thread. */
tide_status tide_pool_zero_region(tide_pool *pool, uint64_t offset_bytes, uint64_t bytes);

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
