/* The pool: params, gradients, optimizer state and activations of one model, on one device and its host.
 *
 * A training loop of your own. You bring the model (params, ops, kernels) and the loop; the pool decides
 * where every byte lies, moves it and runs the optimizer. This page is in the order in which you need it;
 * docs/own_loop.md walks through a whole program.
 *
 *        the model     description.h: params, activations, ops
 *     1  options       tide_pool_options_default, tide_pool_create
 *     2  memory        tide_pool_plan_make, tide_pool_plan_get
 *     3  values        tide_param_set, tide_param_set_as, tide_param_get
 *     4  a step        tide_step_begin ... tide_step_end
 *     5  an op         tide_op_begin, tide_op_slice, tide_launch, tide_op_end; gradients; activations
 *     6  the region    tide_region, tide_workspace, tide_write, tide_read
 *     7  afterwards    tide_step_result_get, tide_pool_drain
 *     8  failures      tide_step_abort
 *     9  an optimizer of your own
 *    10  what it did   counters, traces, predictions
 *
 * Results never depend on budgets, chunk size, prefetch or placement: not by one bit.
 *
 * Threads. One thread, the caller's, drives a pool and makes all calls but tide_message. Kernels and
 * callbacks run on the pool's threads.
 *
 * Errors. A call that fails returns a status and leaves a message (tide_message). ARGUMENT: an argument is
 * wrong, or NULL where that is not allowed. STATE: the call is not allowed now. A call that returns ARGUMENT
 * or STATE has changed nothing. Any call may return these two, and any call that allocates may return
 * NO_MEMORY. A call whose result is no status returns NULL, false or 0 for a NULL pool. Section 8 describes
 * the pool after a failed step.
 *
 * Sizes are in bytes, counts in elements, times in seconds or, where the name says so, nanoseconds.
 */
#ifndef TIDEPOOL_POOL_H
#define TIDEPOOL_POOL_H

#include "tidepool/description.h"

#include <stdbool.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct tide_pool tide_pool;

/* ==== 1  Options ==== */

typedef struct tide_step_options tide_step_options;     /* section 4 */
typedef struct tide_update_segment tide_update_segment; /* section 9 */
typedef struct tide_trace_event tide_trace_event;       /* section 10 */

/* An optimizer of your own: section 9 says when the pool calls it. */
typedef tide_status (*tide_update_callback)(void *context, const tide_step_options *step, uint64_t update,
                                            float gradient_scale, const tide_update_segment *segments,
                                            uint32_t count);

/* Receives trace events (section 10). The caller's and the pool's threads call it, several at once, some
 * while they hold the pool's lock: it must be short and must not call the pool. */
typedef void (*tide_trace_callback)(void *context, const tide_trace_event *event);

/* Reports work that takes seconds: tide_pool_create the memory that it allocates ("host slots", say), the
 * trainer the values that it loads. `done_bytes` of `total_bytes` of `what`, a constant string, are done.
 * Threads of the pool may call it, too, one call at a time; it must not call the pool. */
typedef void (*tide_progress_callback)(void *context, const char *what, uint64_t done_bytes,
                                       uint64_t total_bytes);

enum {
    TIDE_THREADS_MAX = 1024,
    TIDE_DELAY_MAX_US = 1000000,
};

typedef struct tide_pool_options {
    const char *device; /* "host", "null", "cuda:N"; copied */
    /* hard budgets. 0: enough to keep everything where it is used, but on a GPU at most the memory that is
     * free when the pool is created, and no more than free_memory_bytes allows */
    uint64_t device_memory_bytes;
    uint64_t host_memory_bytes;
    /* the host's free memory, of which budgets of 0 are shares: 1/4 for the device if it has no memory of its
     * own (but at least what it needs), 4/5 of the rest for the host. 0: no limit */
    uint64_t free_memory_bytes;
    uint64_t chunk_bytes;   /* a power of two, 256 KiB (host, null; CUDA 2 MiB) to 1 GiB; 0: 64 MiB */
    uint64_t staging_bytes; /* host buffer for tide_write and tide_read, at most 1 TiB; 0: 1 MiB */
    bool prefetch;
    bool predict; /* create allocates for tide_pool_predict; otherwise that call's first use does */
    tide_placement placement; /* not DEVICE if `update` is set */
    /* threads of kernels and of the host optimizer, at most TIDE_THREADS_MAX. 0: one per core; for the
     * optimizer beside a GPU two fewer, but at least one */
    uint32_t threads;
    /* limit for copies in each direction; on the null device the speed of the link. Finite; 0: no limit */
    double link_bytes_per_second;
    tide_machine machine; /* null device only */
    /* NULL: the built-in AdamW. An optimizer of your own runs on the host, whatever AUTO would choose; with
     * TIDE_PLACEMENT_DEVICE tide_pool_create returns ARGUMENT */
    tide_update_callback update;
    void *update_context;
    tide_trace_callback trace; /* may be NULL */
    void *trace_context;
    tide_progress_callback progress; /* may be NULL */
    void *progress_context;

    tide_checks checks;
} tide_pool_options;

/* Sets host device, 64 MiB chunks, bf16, prefetch, automatic placement, budgets 0. With NULL it does
 * nothing. */
TIDE_API void tide_pool_options_default(tide_pool_options *options);

/* Make a pool of a described model: fix every address and every byte, allocate everything, start the engine;
 * nothing is allocated afterwards. The options are copied; the description, which the call fixes, must outlive
 * the pool. ARGUMENT, naming the option, a state that the optimizer does not have, or a GPU that does not exist;
 * STATE: the description has no op, or no param that is not frozen. BUDGET names the op, the bytes it needs, the
 * budget, the least budget that works and, if there is one, a chunk size with which the given budget would work.
 * UNSUPPORTED, with the reason: a device that this machine can't offer, or a check that the device does not have.
 * NO_MEMORY, DEVICE. For a GPU the call creates the context and loads the libraries; both stay for the life of
 * the process, which can use one GPU only. The call also sets the thread count of the CPU kernels, which all
 * pools of a process share: only one pool at a time may run. */
TIDE_API tide_status tide_pool_create(const tide_pool_options *options, tide_description *description,
                                      tide_pool **pool);
/* Wait for running work and free everything. Allowed in any state, and with NULL. Never fails. */
TIDE_API void tide_pool_destroy(tide_pool *pool);

/* ==== 2  Memory ==== */

/* Where every byte goes. Device budget >= slots x chunk + region; host budget >= slots x chunk + buffers. */
typedef struct tide_pool_plan {
    uint64_t params; /* elements of all params */
    /* of all values and state. With AdamW 14 (bf16, fp16) or 16 (fp32) per element; of a frozen param 2 or
     * 4 */
    uint64_t model_bytes;
    uint64_t chunk_bytes;
    uint32_t chunks[TIDE_SPACE_COUNT];
    uint64_t space_bytes[TIDE_SPACE_COUNT]; /* used by tensors */
    uint64_t region_bytes;                  /* the whole region */
    uint64_t nonmodel_bytes;                /* part of the region: as in the options */
    uint64_t workspace_bytes; /* part of the region: workspace and accumulators of the op that needs most */
    uint64_t shared_accumulator_bytes; /* part of the region: accumulators that several ops share */
    uint64_t scalar_bytes;             /* part of the region: norm blocks and scalars */
    uint64_t buffer_bytes;             /* host buffers */
    uint64_t least_device_bytes;       /* smallest device budget that works */
    uint64_t least_host_bytes;         /* smallest host budget that works with this device budget */
    uint64_t full_device_bytes;        /* device budget that holds everything at once */
    /* host budget that a run uses up with this device budget, if the device makes the updates for which it
     * has free space */
    uint64_t full_host_bytes;
    /* the largest default device budget: a GPU's free memory less the part that pinning the host budget
     * takes. UINT64_MAX: the device has no memory of its own */
    uint64_t device_available_bytes;
    const char *largest_op;    /* the op that decides least_device_bytes; the string is the description's */
    uint64_t largest_op_bytes; /* of that op's chunks */
    uint64_t device_memory_bytes; /* the budgets in force */
    uint64_t host_memory_bytes;
    uint32_t device_slots;
    uint32_t host_slots;
    /* of a pool's plan: PARAM chunks whose optimizer state is on the device at first; after the pool has
     * measured some steps it may move a part of the state to the host. tide_pool_plan_make sets 0 */
    uint32_t device_updates;
} tide_pool_plan;

/* Plan a pool without making one: a pure function of description, options and machine, which allocates no memory
 * of the model's. Fixes the description. Budgets that are too small are no error: the plan says which ones work.
 * Statuses of tide_pool_create but BUDGET. ARGUMENT also if the sizes are too large to count. */
TIDE_API tide_status tide_pool_plan_make(const tide_pool_options *options, tide_description *description,
                                         tide_pool_plan *plan);
/* The plan in force. */
TIDE_API tide_status tide_pool_plan_get(const tide_pool *pool, tide_pool_plan *plan);

/* ==== 3  Values, when no step is open ==== */

/* Copy `count` values from or to a param, beginning at element `first`, rounded to the dtype in which they
 * are stored. This works with every budget. MASTER: the param; setting it sets PARAM, too. PARAM: the values
 * that ops read; it can be set only for frozen params, which have no other values. MOMENTUM, VARIANCE: the
 * rest of the optimizer's state, as far as the param has any. All are zero until set. These calls wait for
 * the last step's updates. ARGUMENT: the param does not have these elements or this value. After a failure of
 * the pool they first give up the step, as tide_step_abort does. On a poisoned pool (section 8) get returns
 * STATE; the pool recovers when the caller has set all state. If a set fails with another status, a part of
 * the range may have been set: repeat the call. tide_param_set_as takes values of another dtype, as files of
 * weights have them. */
TIDE_API tide_status tide_param_set(tide_pool *pool, tide_param param, tide_value value, uint64_t first,
                                    uint64_t count, const float *values);
TIDE_API tide_status tide_param_set_as(tide_pool *pool, tide_param param, tide_value value, uint64_t first,
                                       uint64_t count, tide_dtype dtype, const void *values);
TIDE_API tide_status tide_param_get(tide_pool *pool, tide_param param, tide_value value, uint64_t first,
                                    uint64_t count, float *values);

/* The number of updates so far, t in AdamW's bias correction. A saved run contains it, like the values. The
 * step that ended last counts once its norm is known (tide_step_result_get). Setting the number (at most
 * TIDE_UPDATES_MAX) waits for the last step's updates and resets the count of skipped steps to 0. */
#define TIDE_UPDATES_MAX (UINT64_C(1) << 53)
TIDE_API tide_status tide_update_count_set(tide_pool *pool, uint64_t updates);
TIDE_API uint64_t tide_update_count(const tide_pool *pool);

/* ==== 4  A step ====
 *
 *     tide_step_begin
 *         tide_write ...            the batch, into the region
 *         tide_op_begin             an op: its params are mapped, their copies enqueued
 *             tide_op_slice(m)      one micro-batch's part of the op's activations
 *                 tide_launch ...   kernels, in order
 *         tide_op_end               gradients that are complete are rounded into the params' own places
 *         ...
 *     tide_step_end                 backward is over; returns without waiting for the updates
 *
 * A training step updates every param that is not frozen, by
 *
 *     norm  = sqrt(sum over all params of gradient^2) / loss_scale    in float64, of the rounded gradients
 *     scale = min(1, clip_norm / (norm + 1e-6)) / loss_scale          without clipping 1 / loss_scale
 *
 *     g  = gradient scale
 *     m' = beta1 m + (1 - beta1) g
 *     v' = beta2 v + (1 - beta2) g^2
 *     w' = w - learning_rate weight_decay w
 *            - learning_rate (m' / (1 - beta1^t)) / (sqrt(v' / (1 - beta2^t)) + epsilon)
 *
 * This is AdamW (Loshchilov and Hutter 2019; clipping as in PyTorch's clip_grad_norm_) in fp32; t = 1, 2, ...
 * is the number of the update, w is MASTER, and PARAM becomes w' rounded. The decay term applies to params
 * that were added with decay. A param for which no op made a gradient is updated with gradient 0: it decays, and
 * its moments shrink.
 *
 * When updates run. With clipping, and always in fp16, updates wait for the norm; if the norm is not finite,
 * the pool skips the step: params stay as before, and the update is not counted. Without clipping an update
 * begins as soon as its gradients are complete, while backward goes on; a norm that is not finite then
 * poisons the pool (section 8). In both cases an op of the next step waits only for the updates of its own
 * params.
 */
struct tide_step_options {
    bool training; /* false: a forward-only pass (FORWARD ops, no updates), which ignores all other fields */
    float learning_rate;         /* finite, at least 0 */
    float beta1, beta2, epsilon; /* [0, 1), [0, 1), above 0 and finite */
    float weight_decay;          /* decoupled; finite, at least 0 */
    /* global gradient norm to clip to, at least 0. 0: no clipping. INFINITY: no clipping, but updates wait
     * for the norm, so that the pool can skip a step whose norm is not finite */
    float clip_norm;
    /* the factor by which you have multiplied the gradient of your loss so that small gradients keep their
     * digits in fp16: a power of two up to 2^32, with any dtype. 0 means 1 */
    float loss_scale;
    /* with an optimizer of your own the pool reads training, clip_norm and loss_scale only; it passes the
 * other fields on unchecked */
};

/* Begin a step; waits until the last step's norm is known. ARGUMENT names the value that is out of range and
 * its range; STATE: a step is open; NONFINITE: ten steps in a row were skipped (tide_step_result_get). */
TIDE_API tide_status tide_step_begin(tide_pool *pool, const tide_step_options *options);
/* End the step. STATE, and the step stays open, if an op is open, or if a gradient waits for an op that has
 * not run (section 5; the message names it). */
TIDE_API tide_status tide_step_end(tide_pool *pool);

/* ==== 5  An op ====
 *
 * In each step ops may run in any order, more than once, or not at all, as far as the rules for gradients and
 * activations allow. If the order repeats, the pool plans and prefetches; otherwise it fetches chunks on
 * demand.
 *
 * Gradients. Of the BACKWARD and BOTH ops that use a param (READ or GRAD), the last one added is its
 * closing op.
 *
 *     its place holds    from                       an op may
 *     the values         the update, or set         with READ: read them
 *                                                   with GRAD: add to tide_param_gradient, the fp32 sum
 *                                                   that all ops of the step share; it begins as zeros
 *                                                   (but see OVERWRITE)
 *     the gradient       the end of its closing     not use the param
 *                        op, if an op added to it
 *     the values         the step's update
 *
 * A gradient is thus summed in fp32 over all micro-batches, and over all ops if several use the param, and
 * rounded once. With access GRAD alone an op may not read the values.
 *
 * Access OVERWRITE with GRAD is for an op whose first kernel writes every element of a gradient, as a matrix
 * product does: the pool then need not zero the accumulator, nor the kernel read the zeros. (cuBLASLt does so
 * with beta 0; with oneDNN the kernel zeroes and adds, for the same bits.) The op calls
 * tide_param_gradient_is_new. If the result is true, the accumulator's content is undefined, and the op has
 * to write every element before it ends; otherwise the op adds. With options.hazard_check such an accumulator
 * begins as NaN. (Zero plus x has the bits of x, but for x = -0, which OVERWRITE keeps.)
 *
 * tide_op_begin enforces two rules; it returns STATE, naming op and param, where one is broken:
 *
 *     - after a param's closing op has ended with a gradient, no op may use the param in this step;
 *     - no op may begin that would leave a gradient waiting for a closing op which the rule before would
 *       refuse: the step could not end. If all ops run in the order in which they were added, none is
 *       refused.
 *
 * While a gradient waits for its closing op, tide_step_end refuses to end the step; the closing ops that its
 * message names can still run.
 *
 * Activations. While slice m of an op is open, the op holds part m of each of its activations. An op may open
 * its slices in any order, repeat or leave out some. A part is dead when a step begins, alive once a slice
 * with WRITE was opened, and dead again after a slice with LAST and at the step's end; READ of a dead part is
 * STATE. With WRITE alone a slice finds undefined content there.
 *
 * Kernels run on one stream, in order. Inside an op they may access its params (tide_param_data to read,
 * tide_param_gradient to add to), the open slice's activations, the workspace and the region; between ops
 * only the region. Only options.guard and options.hazard_check detect accesses to other memory.
 */

/* Begin an op. The call blocks until the op's params are mapped and their copies enqueued; it does not wait
 * for the copies, since kernels wait for them on the device. STATE: no step is open; an op is open; the op is
 * not FORWARD in a forward-only pass; a rule for gradients is broken. */
TIDE_API tide_status tide_op_begin(tide_pool *pool, tide_op op);
/* Open slice `slice` of the open op and close the slice before. ARGUMENT: the op has no such slice. STATE: no
 * op is open, or it READs a dead part, which the message names. */
TIDE_API tide_status tide_op_slice(tide_pool *pool, uint32_t slice);
/* End the open op. STATE: no op is open. */
TIDE_API tide_status tide_op_end(tide_pool *pool);

/* Enqueue a kernel; returns before the kernel has run. `arguments` (at most TIDE_LAUNCH_ARGUMENTS_MAX_BYTES)
 * are copied; `name` is not copied and must live as long as the pool. The null device computes the kernel's
 * time from `flops` and `bytes` of memory traffic, finite and at least 0; other devices measure it and accept
 * 0. If the kernel fails, this call or a later one returns the failure, with the names of kernel and op.
 * STATE: no step is open. */
TIDE_API tide_status tide_launch(tide_pool *pool, const char *name, tide_kernel kernel, const void *arguments,
                                 size_t argument_bytes, double flops, double bytes);

/* Device addresses, which never change. NULL for an unknown number. Only kernels of an op that uses
 * the param, or of a slice that uses the part, may access the memory. */
TIDE_API void *tide_param_data(const tide_pool *pool, tide_param param);
TIDE_API void *tide_activation_data(const tide_pool *pool, tide_activation activation, uint32_t part);
/* The fp32 accumulator of a param's gradient; NULL unless the open op has GRAD for this param. */
TIDE_API float *tide_param_gradient(const tide_pool *pool, tide_param param);
/* True if the open op has OVERWRITE for the param and no op that has ended in this step has GRAD for it: the
 * open op must then write every element. The answer is the same for all slices of the op, which adds after
 * its first write. */
TIDE_API bool tide_param_gradient_is_new(const tide_pool *pool, tide_param param);

/* ==== 6  The region: device memory that never moves ==== */

/* Your nonmodel_bytes, 256-byte aligned. */
TIDE_API void *tide_region(const tide_pool *pool);
/* The workspace of the open op, workspace_bytes long, with undefined content; NULL if no op is open. */
TIDE_API void *tide_workspace(const tide_pool *pool);
/* Copy `bytes` between your memory and your nonmodel_bytes of the region, in order with kernels. After
 * tide_write the caller may reuse `source` at once; tide_read waits for the kernels before it. ARGUMENT: the
 * range is not inside your part of the region. If a kernel before a write fails, the write may be dropped; a
 * later call then returns the failure. Allowed in and between steps. */
TIDE_API tide_status tide_write(tide_pool *pool, void *region, const void *source, size_t bytes);
TIDE_API tide_status tide_read(tide_pool *pool, void *target, const void *region, size_t bytes);

/* ==== 7  Afterwards ==== */

typedef struct tide_step_result {
    double gradient_norm; /* global norm before clipping, without the loss scale */
    /* factor of all gradients in the update: clip factor / loss scale; 0 if the step was skipped */
    float gradient_scale;
    float loss_scale; /* as given to tide_step_begin; 1 if it was 0 */
    bool skipped;     /* the norm was not finite: params are unchanged */
    /* steps skipped in a row; the count begins anew when a step is skipped at a lower loss scale than the one
     * before */
    uint32_t skipped_in_row;
    uint64_t zero_gradients; /* params, not frozen, for which no op made a gradient in this step */
} tide_step_result;

/* Wait until the norm of the training step that ended last is known, and get the step's result. NONFINITE,
 * naming step and param: a gradient was not finite and updates had begun (without clipping and not in fp16),
 * so that the pool is poisoned; or ten steps in a row were skipped, none of them at a lower loss scale than
 * the one before. tide_step_abort resets this count to 0. STATE: a step is open, none has ended yet, or the
 * last was given up. */
TIDE_API tide_status tide_step_result_get(tide_pool *pool, tide_step_result *result);
/* Wait until host and device have made all updates of the step that ended last. STATE inside an op, since an
 * update may wait for chunks that the op holds. */
TIDE_API tide_status tide_pool_drain(tide_pool *pool);

/* ==== 8  Failures ====
 *
 * After any other failure than ARGUMENT or STATE (of a kernel, a copy, an allocation, an optimizer; a norm
 * that is not finite when updates did not wait for it) every call of sections 4 to 8 returns this failure,
 * except
 *
 *     tide_step_abort         gives the step up and clears the failure if the device can go on, or returns it
 *     tide_param_set, _get    do the same first
 *
 * NONFINITE because of ten skipped steps is not such a failure: later calls do not return it.
 *
 * Giving up. The pool undoes the open step or, if its updates are not done, the last one: the caller can
 * repeat the step and gets the same bits as in a run without the failure. This works only while none of the
 * step's updates has begun. If one has begun, or an update of the step before failed, the pool is poisoned:
 * tide_step_abort returns STATE, and so do all calls of sections 5 to 8, until the caller has set all state
 * anew: of every param that is not frozen, the elements of each plane in order, from 0 on. Set the update
 * count as well, since it may count the poisoned step. A step whose norm is known and whose updates are all
 * done is not undone (tide_update_count tells). Giving up a forward-only pass does not affect the updates of
 * the step before.
 */

/* Give up the open step or, between steps, the last training step if its updates are not done, even if
 * forward-only passes followed it; waits for running work. Allowed on a pool that has not failed, too: call
 * tide_pool_drain first if the last step is to count, because giving up a step whose updates are running
 * poisons the pool. Resets the count of skipped steps to 0. OK also if there was nothing to give up. STATE:
 * the step is given up, and the pool is poisoned. */
TIDE_API tide_status tide_step_abort(tide_pool *pool);

/* ==== 9  An optimizer of your own ====
 *
 * The pool calls options.update once per step for each piece of a chunk, from one of its threads at a time,
 * on the host, while kernels and the next step run; the callback must not call the pool. `update` is t,
 * counted from 1; multiply gradients by `gradient_scale`. If the callback returns another status than OK, the
 * step fails and the pool is poisoned. The chunk size decides how params are cut into segments: no result may
 * depend on that.
 *
 * A param's class (types.h) says which state the optimizer keeps for it; params may differ in this. The
 * state is one to three planes, each with 128 bytes for 32 elements (fp32) or, in a bf16 or fp16 pool, 64
 * (the pool's dtype). The first plane is the param itself: since gradients overwrite PARAM, the pool restores
 * PARAM from this plane when a step is skipped or given up. The default is AdamW's {3, {128, 128, 128}}.
 * Momentum SGD has {2, {128, 128}}, or without an fp32 master {2, {64, 64}}: 4 bytes per element.
 */
struct tide_update_segment { /* consecutive elements of a param; every array has `elements` of them */
    tide_param param;
    uint64_t first_element; /* counted from the param's start */
    uint64_t elements;
    void *values; /* in the pool's dtype: on entry the gradient, on return the new param */
    void *state
        /* the planes, to read and write, in fp32 or the pool's dtype; NULL behind the last. Before the
         * first update MASTER is as set and the others are zero. On return `values` must be the first
         * plane, rounded */
        [TIDE_STATE_PLANES_MAX];
    bool zero_gradient; /* no op made a gradient: `values` holds the param, use 0 as gradient */
    bool decay;         /* the param was added with weight decay */
};

/* ==== 10  What it did ==== */

/* Why the compute stream was idle within a step. */
typedef enum tide_stall_cause {
    TIDE_STALL_LINK = 0, /* a chunk that the op needs was being copied */
    TIDE_STALL_SLOT, /* no device slot was free for a chunk that the op needs, until an eviction freed one */
    TIDE_STALL_UPDATE, /* a chunk that the op needs had not been updated or restored */
    TIDE_STALL_NORM,   /* the gradient norm of the step before was not on the host yet */
    TIDE_STALL_MAP,    /* a chunk that the op needs was being mapped, or a slot for it unmapped */
    /* none of these: within a training step the caller enqueued the next kernel late (on the host device
     * this includes the time in which threads wake) */
    TIDE_STALL_CALLER,
    TIDE_STALL_CAUSE_COUNT,
} tide_stall_cause;

/* The cause's name, as metrics, traces and the console spell it. */
static inline const char *tide_stall_cause_name(tide_stall_cause cause)
{
    static const char *const names[] = {"link", "slot", "update", "norm", "map", "caller"};
    return (unsigned)cause < TIDE_STALL_CAUSE_COUNT ? names[cause] : "unknown";
}

/* Kinds of events for options.trace. docs/trace.md describes each kind and the fields that it fills; its
 * other fields are 0, NULL or TIDE_TRACE_NONE. */
typedef enum tide_trace_kind {
    TIDE_TRACE_PASS = 0, /* a training step or forward-only pass begins; then: ends, is given up */
    TIDE_TRACE_PASS_END,
    TIDE_TRACE_GIVEN_UP,
    TIDE_TRACE_PLAN,    /* a recorded pass has been planned (anew) */
    TIDE_TRACE_REQUEST, /* the time from an op's or slice's request until its chunks were there */
    TIDE_TRACE_WAIT,    /* the op or slice waited for one of these chunks */
    TIDE_TRACE_OP, /* kernels of an op or slice, of the pool's own work around ops, or launched between ops */
    TIDE_TRACE_NORM,     /* the copy of the gradient norm to the host */
    TIDE_TRACE_MOVE,     /* a chunk was fetched, evicted or written back */
    TIDE_TRACE_MAP,      /* a slot was mapped, unmapped, or both at once */
    TIDE_TRACE_COPY,     /* a copy over the link */
    TIDE_TRACE_ZERO,     /* a chunk without content was zeroed */
    TIDE_TRACE_UPDATE,   /* the update of one piece of a chunk */
    TIDE_TRACE_RESTORE,  /* one piece of a chunk: params restored from their state */
    TIDE_TRACE_ACCESS,   /* values set or read on the host */
    TIDE_TRACE_STALL,    /* the compute stream was idle */
    TIDE_TRACE_CHUNK,    /* where a chunk is, and what it holds, from now on */
    TIDE_TRACE_PARAM,    /* content of a param's place from now on: values or gradient */
    TIDE_TRACE_WORK,     /* work of the caller: tide_pool_trace_work */
    TIDE_TRACE_SNAPSHOT, /* only in trace files, like DROPPED: where a chunk is when a segment begins */
    TIDE_TRACE_DROPPED,  /* events were lost */
    TIDE_TRACE_KIND_COUNT,
} tide_trace_kind;

#define TIDE_TRACE_NONE UINT32_MAX /* no chunk, slot, op, ... */

typedef enum tide_trace_move {
    TIDE_TRACE_FETCH = 0,
    TIDE_TRACE_EVICT,
    TIDE_TRACE_WRITE_BACK,
} tide_trace_move;

typedef enum tide_trace_mapping {
    TIDE_TRACE_MAPPED = 0,
    TIDE_TRACE_UNMAPPED,
    TIDE_TRACE_REMAPPED, /* taken from one place and mapped at another in one call */
} tide_trace_mapping;

typedef enum tide_trace_awaited {
    TIDE_TRACE_AWAITS_UPDATE = 0, /* of the chunk, or its restore */
    TIDE_TRACE_AWAITS_SLOT,       /* on the device */
    TIDE_TRACE_AWAITS_MOVE,
} tide_trace_awaited;

typedef enum tide_trace_holding {
    TIDE_TRACE_HOLDS_PARAMETER = 0,
    TIDE_TRACE_HOLDS_GRADIENT,
} tide_trace_holding;

/* Times are of the device's clock; an event without duration has begin_ns = end_ns. */
struct tide_trace_event {
    tide_trace_kind kind;
    uint64_t step; /* the step whose counters include the event (tide_pool_step_counters_take); 0: none */
    /* how many training steps and forward-only passes had begun when the event happened or was requested */
    uint64_t pass;
    uint64_t begin_ns, end_ns;
    uint64_t id;       /* of the command; all events of one move or task have the same id */
    uint64_t ended_by; /* of a stall: the id of the command that ended it; 0: no command did */
    uint64_t bytes;
    uint64_t busy_ns; /* the part of begin_ns to end_ns in which kernels ran */
    uint64_t number;  /* number of the training step; of a DROPPED event: how many events were lost */
    uint32_t op, slice;
    uint32_t schedule_step;      /* ops and slices begun in the pass so far */
    uint32_t chunk;              /* numbered through all spaces: PARAM, STATE, ACTIVATION */
    uint32_t state_chunk, piece; /* of a task */
    uint32_t device_slot, host_slot;
    uint32_t param;
    uint32_t chunks, lacked; /* chunks requested; those of them that were not there */
    uint32_t planned_in, planned_out, least_in, least_out; /* chunks per step */
    tide_reason reason;                                    /* of a MOVE, a COPY */
    tide_trace_move move;                                  /* of a MOVE */
    tide_trace_mapping map;                                /* of a MAP */
    tide_trace_awaited awaits;                             /* of a WAIT */
    tide_tier tier;         /* of a COPY: where the bytes go; of an UPDATE, a RESTORE: where it runs */
    tide_stall_cause cause; /* of a STALL */
    /* of a CHUNK, a SNAPSHOT */
    tide_stand device, host;
    tide_content content;
    tide_trace_holding holds; /* of a PARAM */
    const char *work;         /* of a WORK: the text that was given to tide_pool_trace_work */
    bool training, clips, predicted, copied, zeroed, in_place, pinned, pending;
};

/* The device's clock; null: virtual. Any thread. */
TIDE_API uint64_t tide_pool_now_ns(const tide_pool *pool);
/* Report to options.trace, if set, that the caller did `what` ("data", say) from `begin_ns` until now. `what`
 * must live as long as the trace callback keeps it. Caller's thread. */
TIDE_API void tide_pool_trace_work(const tide_pool *pool, const char *what, uint64_t begin_ns);

/* Sums since create. With the null device seconds are virtual. */
typedef struct tide_pool_counters {
    uint64_t steps;
    double seconds; /* the time on the device's clock; only differences mean something */
    /* busy time of the compute stream, without the norm's copy to the host, which counts as a stall */
    double compute_seconds;
    /* time within steps in which the compute stream was idle: exactly the sum of stall_seconds_by */
    double stall_seconds;
    double stall_seconds_by[TIDE_STALL_CAUSE_COUNT];
    double adam_host_seconds;
    double adam_device_seconds;
    uint64_t h2d_bytes;
    uint64_t d2h_bytes;
    uint64_t collective_bytes;
    uint64_t evictions;
    uint64_t demand_fetches;
    uint64_t prefetches;
    uint64_t re_recordings;
    uint64_t zero_gradients;
    uint64_t skipped;
    uint64_t manager_calls; /* calls into chunk/ between the begin and the end of a step */
    uint64_t device_bytes_peak;
    uint64_t host_bytes_peak;
    uint64_t device_allocations; /* constant in steady state */
    uint64_t host_allocations;
} tide_pool_counters;

TIDE_API tide_status tide_pool_counters_get(const tide_pool *pool, tide_pool_counters *counters);
/* Take the counters of one finished training step, the oldest first. They count from the step's first op to
 * the next step's first op; the step's updates (seconds, bytes, moves) are included even if they ran during
 * the next step. Peaks and allocations are those of the pool so far. False if no step is finished;
 * tide_pool_drain finishes the last one. The pool keeps at most 8 finished steps and drops older ones. */
TIDE_API bool tide_pool_step_counters_take(tide_pool *pool, uint64_t *step, tide_pool_counters *counters);

typedef struct tide_pool_prediction {
    double step_seconds;
    /* part of step_seconds: stalls as in tide_pool_counters, of all causes but the caller */
    double stall_seconds;
    uint64_t times_played; /* how often this pool has computed a prediction; grows when this one is new */
} tide_pool_prediction;

/* Predict a training step's time under the present plan: copies of the pool's manager and engine simulate
 * steps with the last step's ops and slices in virtual time, with measured durations of ops, copies, mappings
 * and updates. The pool simulates again when the ops have changed, or a duration that matters has changed by
 * more than a tenth; otherwise it returns the last prediction, and the call costs little.
 *
 * The prediction leaves out the time that the caller spends between calls. It also assumes that streams which
 * share cores and memory slow each other as much as while they were measured. On the host device, where
 * kernels, copies and the optimizer share cores, a step can therefore take longer than predicted.
 *
 * Caller's thread, between ops or steps. STATE until a training step with its updates has been measured
 * (after its drain, or two steps later), and if the last step ran no op. UNSUPPORTED: the step has more than
 * twice all ops and slices of the description. NO_MEMORY: at the first call without options.predict. After a failure
 * the last prediction is lost, nothing else. */
TIDE_API tide_status tide_pool_predict(tide_pool *pool, tide_pool_prediction *prediction);

#ifdef __cplusplus
}
#endif

#endif
