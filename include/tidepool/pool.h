/* The pool: params, gradients, optimizer state and activations of one model, on one device and its host.
 *
 * For a training loop of your own: you write the model (params, ops, kernels) and the loop; the pool decides
 * where every byte lies, moves it and runs the optimizer. The sections are in the order in which you need
 * them; docs/own_loop.md walks through a whole program.
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
 * Results have the same bits for all budgets, chunk sizes, placements, with and without prefetch.
 *
 * Threads. One thread, the caller's, makes all calls for a pool. (tide_message may be called on any thread.)
 * Kernels and callbacks run on the pool's threads.
 *
 * Errors. A call that fails returns a status and leaves a message (tide_message). ARGUMENT: an argument is
 * wrong, or NULL where that is not allowed. STATE: the call is not allowed in the pool's present state. A
 * call that returns ARGUMENT or STATE has changed nothing. Any call may return these two, and any call that
 * allocates may return NO_MEMORY. A call that returns something other than a status returns NULL, false or 0
 * if the pool is NULL. Section 8 says what the pool does after a failed step.
 *
 * Sizes are in bytes, counts in elements, times in seconds or, where the name says so, nanoseconds.
 */
#ifndef TIDEPOOL_POOL_H
#define TIDEPOOL_POOL_H

#include "tidepool/comm.h"
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

/* The update function of an optimizer of your own (section 9). */
typedef tide_status (*tide_update_callback)(void *context, const tide_step_options *step, uint64_t update,
                                            float gradient_scale, const tide_update_segment *segments,
                                            uint32_t count);

/* Receives trace events (section 10). The caller's thread and the pool's threads call it, perhaps several at
 * the same time and while they hold the pool's lock: it must return quickly and must not call the pool. */
typedef void (*tide_trace_callback)(void *context, const tide_trace_event *event);

/* Reports the progress of work that takes seconds: `done_bytes` of `total_bytes` are done of `what`, a
 * constant string ("host slots", say). tide_pool_create reports the memory that it allocates, the trainer the
 * values that it loads. Any thread of the pool may call it, one call at a time; it must not call the pool. */
typedef void (*tide_progress_callback)(void *context, const char *what, uint64_t done_bytes,
                                       uint64_t total_bytes);

enum {
    TIDE_THREADS_MAX = 1024,
    TIDE_DELAY_MAX_US = 1000000,
    TIDE_SUM_GROUPS_MAX = 1024,
    TIDE_FINISHED_RANGES_MAX = 16,
    TIDE_FINISHED_ALIGNMENT = 64,
};

/* Whether the params of other ranks, gathered for an op, are dropped afterwards (of ZeRO stage 3). */
typedef enum tide_reshard {
    TIDE_RESHARD_AUTO = 0, /* as memory allows: those that are needed latest */
    TIDE_RESHARD_ON,       /* kept are only those of one op, and of the next where gathers run ahead */
    TIDE_RESHARD_OFF,      /* none, until the step ends */
} tide_reshard;

/* How ranks, each with a pool and a device of its own, divide a model (ZeRO, Rajbhandari et al. 2020).
 * tide_pool_create takes several ranks on the host device only, and only at stage 0 so far;
 * tide_pool_plan_make all. */
typedef struct tide_ranks_options {
    uint32_t count; /* at most TIDE_RANKS_MAX; 0 or, with a comm, 1: the comm's, else 1 */
    /* connects this rank with the others (comm.h); must outlive the pool. NULL: one rank, or only a plan. If
     * tide_pool_create fails on a rank, it fails on all, and the comm is of no more use */
    tide_comm *comm;
    /* 0: every rank has all params and state. 1, 2: each has its share of state and gradients, and gathers
     * all params once a step. Both are one, since gradients use the params' memory. 3: as 2, but params may
     * be dropped and gathered again */
    uint32_t zero_stage;
    tide_reshard reshard;
} tide_ranks_options;

typedef struct tide_pool_options {
    const char *device; /* "host", "null", "cuda:N"; copied */
    /* hard limits. 0: as much as keeps everything where it is used, but on a GPU at most the memory that is
     * free when the pool is created, and no more than free_memory_bytes allows */
    uint64_t device_memory_bytes;
    uint64_t host_memory_bytes;
    /* the host's free memory, which limits budgets of 0: the device's, if the device has no memory of its
     * own, to 1/4 of it (but to no less than the least that works), the host's to 4/5 of the rest. 0: no
     * limit */
    uint64_t free_memory_bytes;
    /* a power of two, 256 KiB (host, null; CUDA 2 MiB) to 1 GiB. 0: 64 MiB; with several ranks the largest up
     * to that with which gathers run ahead of the ops that need them, else with which the run fits */
    uint64_t chunk_bytes;
    uint64_t staging_bytes; /* host buffer for tide_write and tide_read, at most 1 TiB; 0: 1 MiB */
    bool prefetch;
    bool predict;             /* allocate memory for tide_pool_predict at create, not at its first call */
    tide_placement placement; /* not DEVICE if `update` is set */
    /* threads of CPU kernels and of the host optimizer, at most TIDE_THREADS_MAX. 0: one per core, but two
     * fewer (at least one) for the optimizer if the device is a GPU */
    uint32_t threads;
    /* in how many sum groups gradients are summed (section 5); of several ranks each has as many, a power of
     * two. 0: one a rank. With more than one a rank every op with GRAD must have slices, a multiple of a
     * rank's groups */
    uint32_t sum_groups;
    /* FP32 or BF16: the type to which each sum group's sum is rounded before the sums are added */
    tide_dtype reduce_dtype;
    tide_ranks_options ranks;
    /* host device: limit for copies in each direction; null device: speed of the link. Finite; 0: no limit */
    double link_bytes_per_second;
    tide_machine machine; /* null device only */
    /* NULL: the built-in AdamW. An optimizer of your own always runs on the host; with TIDE_PLACEMENT_DEVICE
     * tide_pool_create returns ARGUMENT */
    tide_update_callback update;
    void *update_context;
    tide_trace_callback trace; /* may be NULL */
    void *trace_context;
    tide_progress_callback progress; /* may be NULL */
    void *progress_context;

    tide_checks checks;
} tide_pool_options;

/* Set the defaults: host device, 64 MiB chunks, prefetch, automatic placement, budgets 0. Does nothing if
 * `options` is NULL. */
TIDE_API void tide_pool_options_default(tide_pool_options *options);

/* Make a pool of a described model: choose all addresses, allocate all memory that the pool will use, start
 * its threads. The options are copied. The call fixes the description, which must outlive the pool. ARGUMENT,
 * naming the option, a state that the optimizer does not have, or a GPU that does not exist; STATE: the
 * description has no op or no param. BUDGET names the op, the bytes it needs, the budget, the least budget
 * that works and, if there is one, a chunk size with which the given budget would work. UNSUPPORTED, with the
 * reason: this machine does not have the device, or the device does not have a check. NO_MEMORY, DEVICE. For
 * a GPU the call creates the CUDA context and loads libraries; both stay until the process ends, and a
 * process can use only one GPU. The call also sets the thread count of the CPU kernels, which all pools of a
 * process share: only one pool at a time may run. */
TIDE_API tide_status tide_pool_create(const tide_pool_options *options, tide_description *description,
                                      tide_pool **pool);
/* Wait for running work and free everything. Allowed in any state, and with NULL. Never fails. */
TIDE_API void tide_pool_destroy(tide_pool *pool);

/* ==== 2  Memory ==== */

/* The memory of a pool. Device budget >= device_slots x chunk_bytes + region_bytes; host budget >= host_slots
 * x chunk_bytes + buffer_bytes. */
typedef struct tide_pool_plan {
    uint64_t params; /* elements of all params */
    /* bytes of all values and optimizer state: per element 14 (bf16, fp16) or 16 (fp32) with AdamW, 2 or 4
     * for a frozen param */
    uint64_t model_bytes;
    uint64_t chunk_bytes;
    uint32_t chunks[TIDE_SPACE_COUNT];
    uint64_t space_bytes[TIDE_SPACE_COUNT]; /* used by tensors */
    uint64_t region_bytes;                  /* the whole region */
    uint64_t nonmodel_bytes;                /* part of the region: yours (tide_description_create) */
    uint64_t workspace_bytes;          /* part of the region: the largest op's workspace and accumulators */
    uint64_t shared_accumulator_bytes; /* part of the region: accumulators that several ops share */
    uint64_t scalar_bytes;             /* part of the region: norm blocks and scalars */
    uint64_t sum_group_bytes;          /* in both kinds of accumulators: the share of sum groups beyond one */
    uint64_t buffer_bytes;             /* host buffers */
    uint64_t least_device_bytes;       /* smallest device budget that works */
    uint64_t least_host_bytes;         /* smallest host budget that works with this device budget */
    uint64_t full_device_bytes;        /* device budget with which nothing ever leaves the device */
    /* host budget beyond which more is useless with this device budget, if the device makes all updates for
     * which it has space */
    uint64_t full_host_bytes;
    /* the largest default device budget: a GPU's free memory, less what pinning the host memory takes there.
     * UINT64_MAX: the device has no memory of its own */
    uint64_t device_available_bytes;
    const char *largest_op;    /* the op that decides least_device_bytes; the string is the description's */
    uint64_t largest_op_bytes; /* bytes of that op's chunks */
    uint64_t device_memory_bytes; /* the budgets used */
    uint64_t host_memory_bytes;
    uint32_t device_slots;
    uint32_t host_slots;
    /* in the plan of a pool: how many PARAM chunks have their optimizer state on the device at first; after
     * some steps the pool may move part of it to the host, as measured times suggest. tide_pool_plan_make
     * sets 0 */
    uint32_t device_updates;
    /* of several ranks; the plan is that of rank 0, which holds as much as any. Device budget >= device_slots
     * x chunk_bytes + frame_bytes + region_bytes */
    uint32_t frames;         /* groups of chunks of which the other ranks' members stand on the device */
    bool gathers_ahead;      /* an op's gathers run beside the op before it */
    uint64_t frame_bytes;    /* frames x (ranks - 1) x chunk_bytes */
    uint64_t ring_bytes;     /* part of the region: gradients that arrive from other ranks */
    uint64_t gathered_bytes; /* params that the rank receives in a step; sent as much, up to a tail */
    uint64_t reduced_bytes;  /* gradients, likewise */
} tide_pool_plan;

/* Plan a pool without making one and without allocating the model's memory. The plan depends only on
 * description, options and machine: for a GPU the call creates its context, as tide_pool_create does, and
 * asks how much memory is free now. Fixes the description. Budgets may be too small: the plan says which ones
 * work. Statuses as of tide_pool_create, without BUDGET. ARGUMENT also if sizes overflow. */
TIDE_API tide_status tide_pool_plan_make(const tide_pool_options *options, tide_description *description,
                                         tide_pool_plan *plan);
/* The plan of a pool. */
TIDE_API tide_status tide_pool_plan_get(const tide_pool *pool, tide_pool_plan *plan);

/* ==== 3  Values, when no step is open ==== */

/* Copy `count` values to or from a param, from element `first` on. Setting rounds to the dtype in which the
 * values are stored. The values move through host slots, so this works with every budget. MASTER: the param;
 * setting it sets PARAM, too. PARAM: the values that ops read; it can be set only for frozen params, which
 * have no other values. MOMENTUM, VARIANCE: the rest of the optimizer's state, if the param has it. All are
 * zero until set. These calls wait for the last step's updates. ARGUMENT: the param does not have these
 * elements or this value. After a failure of the pool they first give the step up, as tide_step_abort does.
 * On a poisoned pool (section 8) get returns STATE; the pool recovers when the caller has set all state. If a
 * set fails with another status, a part of the range may have been set: repeat the call. tide_param_set_as
 * takes values of dtype `dtype`. */
TIDE_API tide_status tide_param_set(tide_pool *pool, tide_param param, tide_value value, uint64_t first,
                                    uint64_t count, const float *values);
TIDE_API tide_status tide_param_set_as(tide_pool *pool, tide_param param, tide_value value, uint64_t first,
                                       uint64_t count, tide_dtype dtype, const void *values);
TIDE_API tide_status tide_param_get(tide_pool *pool, tide_param param, tide_value value, uint64_t first,
                                    uint64_t count, float *values);

/* The number of updates so far: t in AdamW's bias correction. To save a run, save it with the values. The
 * last step is counted when its norm is known (tide_step_result_get). Setting the number (at most
 * TIDE_UPDATES_MAX) waits for the last step's updates and resets the count of skipped steps to 0. */
#define TIDE_UPDATES_MAX (UINT64_C(1) << 53)
TIDE_API tide_status tide_update_count_set(tide_pool *pool, uint64_t updates);
TIDE_API uint64_t tide_update_count(const tide_pool *pool);

/* ==== 4  A step ====
 *
 *     tide_step_begin
 *         tide_write ...            the batch, into the region
 *         tide_op_begin             an op: maps its params, enqueues copies of them
 *             tide_op_slice(m)      one micro-batch's part of the op's activations
 *                 tide_launch ...   kernels, in order
 *         tide_op_end               rounds complete gradients; they overwrite the params
 *         ...
 *     tide_step_end                 after backward; does not wait for the updates
 *
 * The pool does not divide gradients by the size of a batch: the ops' kernels do, by the rows of the global
 * batch, of which a step may run a part.
 *
 * A training step updates every param that is not frozen, by
 *
 *     norm  = sqrt(sum over all params of gradient^2) / loss_scale    in float64, from the rounded gradients
 *     scale = min(1, clip_norm / (norm + 1e-6)) / loss_scale          without clipping 1 / loss_scale
 *
 *     g  = gradient scale
 *     m' = beta1 m + (1 - beta1) g
 *     v' = beta2 v + (1 - beta2) g^2
 *     w' = w - learning_rate weight_decay w
 *            - learning_rate (m' / (1 - beta1^t)) / (sqrt(v' / (1 - beta2^t)) + epsilon)
 *
 * This is AdamW (Loshchilov and Hutter 2019; clipping as in PyTorch's clip_grad_norm_) in fp32; t = 1, 2, ...
 * is the number of the update, w is MASTER, and PARAM becomes w' rounded. The decay term is only for params
 * that were added with decay. A param for which no op made a gradient is updated with gradient 0: it decays,
 * and its moments shrink.
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
    /* the factor by which you multiplied the loss, so that small gradients do not underflow in fp16: a power
     * of two up to 2^32, allowed with any dtype. 0 means 1 */
    float loss_scale;
    /* With an optimizer of your own the pool uses only training, clip_norm and loss_scale; it passes the
     * other fields to the optimizer unchecked. */
};

/* Begin a step; waits until the last step's norm is known. ARGUMENT names the value that is out of range and
 * its range; STATE: a step is open, or a training step would train nothing, since every param is frozen;
 * NONFINITE: ten steps in a row were skipped (tide_step_result_get). */
TIDE_API tide_status tide_step_begin(tide_pool *pool, const tide_step_options *options);
/* End the step. STATE, and the step stays open, if an op is open, or if a gradient waits for an op that has
 * not run (section 5); the message names the op. */
TIDE_API tide_status tide_step_end(tide_pool *pool);

/* ==== 5  An op ====
 *
 * In each step ops may run in any order, more than once, or not at all, unless a rule for gradients or
 * activations forbids it. If the order is the same as in the step before, the pool prefetches chunks as
 * planned; otherwise it fetches them on demand.
 *
 * Gradients. A param's closing op is the BACKWARD or BOTH op that was added last of those that use the param
 * (READ or GRAD).
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
 * rounded once. With access GRAD and no READ an op may not read the values.
 *
 * Access OVERWRITE with GRAD is for an op whose first kernel writes every element of a gradient, as a matrix
 * product does: then the pool need not zero the accumulator and the kernel need not read it. (cuBLASLt does
 * this with beta 0; with oneDNN the kernel zeroes and adds, with the same result.) The op calls
 * tide_param_gradient_is_new. If the result is true, the accumulator's content is undefined, and the op has
 * to write every element before it ends; otherwise the op adds. With options.checks.hazard_check the
 * accumulator is filled with NaN before. (Results have the same bits with and without OVERWRITE, except that
 * OVERWRITE keeps -0, which 0 + -0 makes 0.)
 *
 * Sum groups. With V = options.sum_groups above 1 a gradient is the sum of V sums, as V processes make it of
 * which each runs a V-th of the slices: slice m of an op with S slices belongs to sum group m / (S / V). Each
 * group has accumulators of its own, in which its slices are summed as described above (with OVERWRITE the
 * group's first slice writes). When the closing op has ended, the V sums are added in fp32 and the result is
 * rounded. They are added as a tree: the sum of several groups is the sum of the first 2^k of them, the most
 * that leave one over, and the sum of the rest. With options.reduce_dtype BF16 each group's sum is rounded to
 * bf16 before. An op with GRAD opens its slices in an order in which their groups ascend; the sum of a group
 * that it leaves out is zero.
 *
 * tide_op_begin enforces two rules; it returns STATE, naming op and param, if one is broken:
 *
 *     - after a param's closing op has ended with a gradient, no op may use the param in this step;
 *     - no op may begin after which a gradient would wait for a closing op that the first rule forbids, since
 *       the step could never end. If all ops run in the order in which they were added, none is refused.
 *
 * While a gradient waits for its closing op, tide_step_end returns STATE; the closing op that its message
 * names can still run.
 *
 * Activations. While slice m of an op is open, the op holds part m of each of its activations. An op may open
 * its slices in any order that its sum groups allow, and open some more than once or not at all. A part is
 * dead when a step begins, alive after a slice with WRITE was opened, and dead again after a slice with LAST
 * and at the step's end. Opening a slice that would READ a dead part returns STATE. With WRITE and no READ a
 * slice finds undefined content in the part.
 *
 * Kernels run on one stream, in order. Inside an op they may access its params (read tide_param_data, add to
 * tide_param_gradient), the open slice's activations, the workspace and the region; between ops only the
 * region. Accesses to other memory are detected only with options.checks.guard or hazard_check.
 */

/* Begin an op. The call blocks until the op's params are mapped and their copies enqueued; it does not wait
 * for the copies, since kernels wait for them on the device. STATE: no step is open; an op is open; the op is
 * not FORWARD in a forward-only pass; a rule for gradients is broken. */
TIDE_API tide_status tide_op_begin(tide_pool *pool, tide_op op);
/* Open slice `slice` of the open op, and close its open slice, if any. ARGUMENT: the op has no such slice.
 * STATE: no op is open; the slice READs a dead part, which the message names; or the op has GRAD and has
 * opened a slice of a later sum group. */
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

/* The device address of a param, or of a part of an activation; it never changes. NULL for an unknown number.
 * Only kernels of an op that uses the param, or of a slice that uses the part, may access the memory. */
TIDE_API void *tide_param_data(const tide_pool *pool, tide_param param);
TIDE_API void *tide_activation_data(const tide_pool *pool, tide_activation activation, uint32_t part);
/* The fp32 accumulator of a param's gradient; NULL unless the open op has GRAD for this param. With more than
 * one sum group it is the open slice's, so ask in each slice, and NULL while no slice is open. */
TIDE_API float *tide_param_gradient(const tide_pool *pool, tide_param param);
/* True if the open op has OVERWRITE for the param and no op that has ended in this step has GRAD for it: the
 * open op must then write every element, in each sum group. The result is the same in all slices of a group,
 * so remember in its first one that you have written, and add afterwards. With more than one group it is
 * false while no slice is open. */
TIDE_API bool tide_param_gradient_is_new(const tide_pool *pool, tide_param param);

/* Finish elements [first, first + count) of a gradient that the open op closes, before the op ends: enqueue
 * the kernels that add the sum groups' sums and put the rounded gradient into the param's place. From then on
 * the op's kernels may neither read these values nor add to these sums. The op's end does the same for all
 * other elements, and the results have the same bits. Ranges may be finished in any order. `first` is a
 * multiple of TIDE_FINISHED_ALIGNMENT, and so is `count` if the range does not end with the param. ARGUMENT:
 * the param has no such range. STATE: no op is open; the open op does not close the param's gradient; with
 * more than one sum group, the op has GRAD and no slice of the last group has been opened; an element is
 * finished already; or more than TIDE_FINISHED_RANGES_MAX finished ranges of the param would lie apart from
 * each other. */
TIDE_API tide_status tide_gradient_finish(tide_pool *pool, tide_param param, uint64_t first, uint64_t count);

/* ==== 6  The region: device memory that never moves ==== */

/* The address of your part of the region (nonmodel_bytes long), 256-byte aligned. */
TIDE_API void *tide_region(const tide_pool *pool);
/* The workspace of the open op, workspace_bytes long, with undefined content; NULL if no op is open. */
TIDE_API void *tide_workspace(const tide_pool *pool);
/* Copy `bytes` from your memory to your part of the region, or from there to your memory, in order with
 * kernels. After tide_write the caller may reuse `source` at once; tide_read waits for the kernels before it.
 * ARGUMENT: the range is not inside your part of the region. If a kernel before a write fails, the write may
 * be dropped; a later call then returns the failure. Allowed in and between steps. */
TIDE_API tide_status tide_write(tide_pool *pool, void *region, const void *source, size_t bytes);
TIDE_API tide_status tide_read(tide_pool *pool, void *target, const void *region, size_t bytes);

/* ==== 7  Afterwards ==== */

typedef struct tide_step_result {
    double gradient_norm; /* global norm before clipping, divided by the loss scale */
    /* by which the update multiplies gradients: clip factor / loss scale; 0 if the step was skipped */
    float gradient_scale;
    float loss_scale; /* as given to tide_step_begin; 1 if it was 0 */
    bool skipped;     /* the norm was not finite: params are unchanged */
    /* steps skipped in a row; restarts at 1 when a step is skipped at a lower loss scale than the last
     * skipped one */
    uint32_t skipped_in_row;
    uint64_t zero_gradients; /* trained params for which no op made a gradient in this step */
} tide_step_result;

/* Wait until the norm of the last ended training step is known, and get that step's result. NONFINITE, naming
 * step and param: a gradient was not finite and updates had begun (without clipping and not in fp16), so that
 * the pool is poisoned; or ten steps in a row were skipped, none of them at a lower loss scale than the one
 * before. tide_step_abort resets this count to 0. STATE: a step is open, no training step has ended yet, or
 * the last one was given up. */
TIDE_API tide_status tide_step_result_get(tide_pool *pool, tide_step_result *result);
/* Wait until host and device have made all updates of the last ended step. STATE if an op is open, since an
 * update may wait for chunks that the op holds. */
TIDE_API tide_status tide_pool_drain(tide_pool *pool);

/* ==== 8  Failures ====
 *
 * After a failure other than ARGUMENT or STATE (a kernel, a copy, an allocation or an optimizer fails, or a
 * norm is not finite and updates did not wait for it) every call of sections 4 to 8 returns this failure,
 * except
 *
 *     tide_step_abort         gives the step up and, if the device can go on, clears the failure
 *     tide_param_set, _get    do the same before their own work
 *
 * NONFINITE after ten skipped steps is not such a failure: later calls work.
 *
 * Several ranks. A failure of one rank is a failure of all, which get PEER. It is final, and so is giving a
 * step up: tide_step_abort returns the failure, and so do tide_param_set and tide_param_get. A run goes on
 * from its last checkpoint, in new pools. A rank whose call returns ARGUMENT or STATE keeps the others
 * waiting until it makes the right call.
 *
 * Giving up. The pool undoes the open step or, if no step is open and its updates are not done, the last one.
 * The caller can then repeat the step and gets the same bits as in a run without the failure. This is
 * possible only while none of the step's updates has begun. If one has begun, or an update of the step before
 * failed, the pool is poisoned: tide_step_abort returns STATE, and so do all calls of sections 5 to 8, until
 * the caller has set all state again: for every param that is not frozen the elements of each plane in order,
 * from 0 on. Set the update count as well, since it may include the poisoned step. A step whose updates are
 * all done is not undone; tide_update_count says whether it counts. Giving up a forward-only pass does not
 * affect the updates of the step before.
 */

/* Give up the open step or, between steps, the last training step if its updates are not done, even if
 * forward-only passes followed it; waits for running work. Also allowed if the pool has not failed: then call
 * tide_pool_drain first to keep the last step, because giving up a step whose updates are running poisons the
 * pool. Resets the count of skipped steps to 0. OK also if there was nothing to give up. STATE: the step is
 * given up, and the pool is poisoned. */
TIDE_API tide_status tide_step_abort(tide_pool *pool);

/* ==== 9  An optimizer of your own ====
 *
 * In each step the pool calls options.update once for each piece of a chunk, on a thread of its own and one
 * call at a time, while kernels and the next step run; the callback must not call the pool. `update` is the
 * number of the update (t, from 1); multiply gradients by `gradient_scale`. If the callback returns a status
 * other than TIDE_OK, the step fails and the pool is poisoned. How params are cut into segments depends on
 * the chunk size: the result must not depend on the cuts.
 *
 * A param's class (types.h) says which state the optimizer keeps for it; params may differ in this. The
 * state is one to three planes, each with 128 bytes for 32 elements (fp32) or, in a bf16 or fp16 pool, 64
 * (the pool's dtype). The first plane is the param itself: since gradients overwrite PARAM, the pool restores
 * PARAM from this plane when a step is skipped or given up. The default is AdamW's {3, {128, 128, 128}}.
 * Momentum SGD has {2, {128, 128}}, or without an fp32 master {2, {64, 64}}: 4 bytes per element.
 */
struct tide_update_segment { /* consecutive elements of a param: each array below has `elements` */
    tide_param param;
    uint64_t first_element; /* counted from the param's start */
    uint64_t elements;
    void *values; /* in the pool's dtype: on entry the gradient, on return the new param */
    void *state
        /* the planes, to read and write, in fp32 or the pool's dtype; NULL if there are fewer. Before the
         * first update the first plane is as set, the others are zero. On return `values` must be the first
         * plane, rounded */
        [TIDE_STATE_PLANES_MAX];
    bool zero_gradient; /* no op made a gradient: use 0; `values` has the param on entry */
    bool decay;         /* the param was added with weight decay */
};

/* ==== 10  What it did ==== */

/* Why the compute stream was idle within a step. */
typedef enum tide_stall_cause {
    TIDE_STALL_LINK = 0, /* a chunk that the op needs was being copied */
    TIDE_STALL_SLOT, /* no device slot was free for a chunk that the op needs, until an eviction freed one */
    TIDE_STALL_UPDATE, /* the update or restore of a chunk that the op needs was not done */
    TIDE_STALL_NORM,   /* the gradient norm of the step before was not on the host yet */
    TIDE_STALL_MAP,    /* a slot was being mapped for a chunk that the op needs, or unmapped before */
    TIDE_STALL_PEER,   /* the ranks were adding their gradients (or checks.finish_beside finished them) */
    /* none of these: within a training step the caller enqueued the next kernel late. On the host device this
     * includes the time in which threads wake up */
    TIDE_STALL_CALLER,
    TIDE_STALL_CAUSE_COUNT,
} tide_stall_cause;

/* The cause's name in metrics, traces and on the console. */
static inline const char *tide_stall_cause_name(tide_stall_cause cause)
{
    static const char *const names[] = {"link", "slot", "update", "norm", "map", "peer", "caller"};
    return (unsigned)cause < TIDE_STALL_CAUSE_COUNT ? names[cause] : "unknown";
}

/* Kinds of events for options.trace. docs/trace.md describes each kind and the fields that it sets; the
 * others are 0, NULL or TIDE_TRACE_NONE. */
typedef enum tide_trace_kind {
    TIDE_TRACE_PASS = 0, /* a training step or forward-only pass has begun, ended, was given up */
    TIDE_TRACE_PASS_END,
    TIDE_TRACE_GIVEN_UP,
    TIDE_TRACE_PLAN,    /* the pool has made a plan for the recorded order of ops */
    TIDE_TRACE_REQUEST, /* the time from an op's or slice's request for its chunks until they were ready */
    TIDE_TRACE_WAIT,    /* the op or slice waited for this chunk */
    TIDE_TRACE_OP, /* kernels of an op or slice, of the pool's own work around ops, or launched between ops */
    TIDE_TRACE_NORM,     /* the copy of the gradient norm to the host */
    TIDE_TRACE_MOVE,     /* a chunk was fetched, evicted or written back */
    TIDE_TRACE_MAP,      /* a slot was mapped, unmapped or remapped */
    TIDE_TRACE_COPY,     /* a copy over the link */
    TIDE_TRACE_ZERO,     /* a chunk without content was zeroed */
    TIDE_TRACE_UPDATE,   /* the update of one piece of a chunk */
    TIDE_TRACE_RESTORE,  /* the restore of one piece of a chunk: params from their state */
    TIDE_TRACE_ACCESS,   /* values set or read on the host */
    TIDE_TRACE_STALL,    /* the compute stream was idle */
    TIDE_TRACE_CHUNK,    /* the new place and content of a chunk */
    TIDE_TRACE_PARAM,    /* the new content of a param's place: values or gradient */
    TIDE_TRACE_WORK,     /* work of the caller: tide_pool_trace_work */
    TIDE_TRACE_SNAPSHOT, /* only in trace files: the place of a chunk when a segment of the file begins */
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
    TIDE_TRACE_REMAPPED, /* moved from one chunk's address to another's in one call */
} tide_trace_mapping;

typedef enum tide_trace_awaited {
    TIDE_TRACE_AWAITS_UPDATE = 0, /* the update or restore of the chunk */
    TIDE_TRACE_AWAITS_SLOT,       /* a device slot */
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
    uint64_t id;       /* the command's; all events of one move or task have the same id */
    uint64_t ended_by; /* a stall's: the id of the command that ended it; 0: none */
    uint64_t bytes;
    uint64_t busy_ns; /* the part of begin_ns to end_ns in which kernels ran */
    uint64_t number;  /* of the training step; of a DROPPED event: how many events were lost */
    uint32_t op, slice;
    uint32_t schedule_step;      /* ops and slices begun in the pass so far */
    uint32_t chunk;              /* numbered across all spaces: PARAM, then STATE, then ACTIVATION */
    uint32_t state_chunk, piece; /* of a task */
    uint32_t device_slot, host_slot;
    uint32_t param;
    uint32_t chunks, lacked; /* how many chunks were requested; how many of them were not ready */
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

/* The present time on the device's clock, which is virtual on the null device. Any thread. */
TIDE_API uint64_t tide_pool_now_ns(const tide_pool *pool);
/* Send to options.trace, if set, an event that says that the caller did `what` ("data", say) from `begin_ns`
 * to the time of this call. `what` must live as long as the trace callback uses it. Caller's thread. */
TIDE_API void tide_pool_trace_work(const tide_pool *pool, const char *what, uint64_t begin_ns);

/* Sums since create. With the null device seconds are virtual. */
typedef struct tide_pool_counters {
    uint64_t steps;
    double seconds; /* the time on the device's clock, whose zero is arbitrary: use differences */
    /* busy time of the compute stream, without the copy of the norm to the host, which is a stall */
    double compute_seconds;
    /* time within steps in which the compute stream was idle: exactly the sum of stall_seconds_by */
    double stall_seconds;
    double stall_seconds_by[TIDE_STALL_CAUSE_COUNT];
    double adam_host_seconds;
    double adam_device_seconds;
    uint64_t h2d_bytes;
    uint64_t d2h_bytes;
    uint64_t collective_bytes; /* received from other ranks for gradients */
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
/* Take the counters of the oldest finished training step that was not taken yet. They count from the step's
 * first op to the next step's first op, and include the step's updates (seconds, bytes, moves) even if these
 * ran during the next step. Peaks and allocations are those since create. False if no step is finished;
 * tide_pool_drain finishes the last one. The pool keeps at most 8 finished steps and drops older ones. */
TIDE_API bool tide_pool_step_counters_take(tide_pool *pool, uint64_t *step, tide_pool_counters *counters);

typedef struct tide_pool_prediction {
    double step_seconds;
    /* the part of step_seconds in stalls (as in tide_pool_counters) of all causes except the caller */
    double stall_seconds;
    uint64_t times_played; /* predictions computed by this pool so far; larger if this one is new */
} tide_pool_prediction;

/* Predict how long a training step takes with the pool's plan. A second manager and engine simulate steps
 * with the last step's ops and slices in virtual time, with the measured durations of ops, copies, mappings
 * and updates. If since the last prediction the ops are the same and no important duration has changed by
 * more than a tenth, the call returns the last prediction and takes little time.
 *
 * The prediction leaves out the time that the caller spends between calls. It also assumes that streams which
 * share cores and memory slow each other down as much as during the measurement. On the host device, where
 * kernels, copies and the optimizer share cores, a step can therefore take longer than predicted.
 *
 * Caller's thread, between ops or steps. STATE until a training step with its updates has been measured
 * (after tide_pool_drain, or two steps later), and if the last step ran no op. UNSUPPORTED: the step ran more
 * than twice as many ops and slices as the description has. NO_MEMORY, only at the first call without
 * options.predict. After a failure the next call simulates again. */
TIDE_API tide_status tide_pool_predict(tide_pool *pool, tide_pool_prediction *prediction);

#ifdef __cplusplus
}
#endif

#endif
