/* The pool: params, gradients, optimizer state and activations of one model, on one device and its host.
 *
 * A training loop of your own. You bring the model (params, ops, kernels) and the loop; the pool decides where every byte
 * lies, moves it and runs the optimizer. This page is in the order in which you need it; docs/own_loop.md walks through a
 * whole program.
 *
 *     1  options       tide_pool_options_default, tide_pool_create
 *     2  the model     tide_param_register, tide_activation_register, tide_op_register
 *     3  memory        tide_pool_plan_get, tide_pool_set_budgets, tide_pool_seal
 *     4  values        tide_param_set, tide_param_set_as, tide_param_get
 *     5  a step        tide_step_begin ... tide_step_end
 *     6  an op         tide_op_begin, tide_op_slice, tide_launch, tide_op_end; gradients; activations
 *     7  the region    tide_region, tide_workspace, tide_write, tide_read
 *     8  afterwards    tide_step_result_get, tide_pool_drain
 *     9  failures      tide_step_abort
 *    10  an optimizer of your own
 *    11  what it did   counters, traces, predictions
 *
 * Results never depend on budgets, chunk size, prefetch or placement: not by one bit.
 *
 * Threads. One thread drives a pool: all calls but tide_message are its. Kernels and callbacks run on the pool's threads.
 *
 * Errors. Every call returns a status and leaves a message (tide_message). ARGUMENT: an argument is wrong, or
 * NULL where that is not allowed. STATE: the call is not allowed now. Neither has changed anything. Any call
 * may return these two, and any that allocates NO_MEMORY. A call that returns no status gives NULL, false or
 * 0 for a NULL pool. Section 9 has the state after a failed step.
 *
 * Sizes are in bytes, counts in elements, times in seconds or, where the name says so, nanoseconds.
 */
#ifndef TIDEPOOL_POOL_H
#define TIDEPOOL_POOL_H

#include "tidepool/types.h"

#include <stdbool.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct tide_pool tide_pool;
typedef uint32_t tide_param; /* numbers that registration gives */
typedef uint32_t tide_activation;
typedef uint32_t tide_op;

/* ==== 1  Options ==== */

typedef struct tide_step_options tide_step_options;     /* section 5 */
typedef struct tide_update_segment tide_update_segment; /* section 10 */
typedef struct tide_trace_event tide_trace_event;       /* section 11 */

/* Your optimizer: section 10. */
typedef tide_status (*tide_update_callback)(void *context, const tide_step_options *step, uint64_t update,
                                            float gradient_scale, const tide_update_segment *segments,
                                            uint32_t count);

/* Section 11. From the caller's and the pool's threads, several at once, some with the pool's lock; must be short, and
 * must not call the pool. */
typedef void (*tide_trace_callback)(void *context, const tide_trace_event *event);

/* Reports work that takes seconds: memory that tide_pool_seal allocates ("host slots", say); the trainer
 * reports the values that it loads. Of `total_bytes` of `what`, a constant string, `done_bytes` are done.
 * Called from threads of the pool, too, one call at a time; must not call the pool. */
typedef void (*tide_progress_callback)(void *context, const char *what, uint64_t done_bytes,
                                       uint64_t total_bytes);

/* Rates of the machine that the null device imitates; its link is tide_pool_options.link_bytes_per_second.
 * Finite. With a rate of 0 that work takes no time. */
typedef struct tide_machine {
    double flops_per_second;
    double device_bytes_per_second;
    double host_bytes_per_second;
    uint64_t map_ns;
    uint64_t unmap_ns;                /* 0: as map_ns */
    double link_out_bytes_per_second; /* device to host; 0: as the other way */
} tide_machine;

enum {
    TIDE_THREADS_MAX = 1024,
    TIDE_DELAY_MAX_US = 1000000,
};

typedef struct tide_pool_options {
    const char *device;           /* "host", "null", "cuda:N"; copied */
    uint64_t device_memory_bytes; /* hard budgets; 0: enough to keep everything where it is used, on a GPU at
                                     most its free memory when the pool is created */
    uint64_t host_memory_bytes;
    uint64_t chunk_bytes;    /* a power of two, 256 KiB (host, null; CUDA 2 MiB) to 1 GiB; 0: 64 MiB */
    tide_dtype dtype;        /* of all params */
    uint64_t nonmodel_bytes; /* of the region, for you (tide_region) */
    uint64_t staging_bytes;  /* host buffer for tide_write and tide_read, at most 1 TiB; 0: 1 MiB */
    bool prefetch;
    bool predict; /* make ready for tide_pool_predict at seal; otherwise its first call allocates */
    tide_placement placement; /* never DEVICE with `update` */
    /* of kernels and of the host optimizer, at most TIDE_THREADS_MAX; 0: one per core, of the optimizer
     * beside a GPU two fewer, at least one */
    uint32_t threads;
    /* throttle of copies, each way; null: the link's rate. Finite; 0: no limit */
    double link_bytes_per_second;
    tide_machine machine; /* null device only */
    /* NULL: the built-in AdamW. It runs on the host, whatever AUTO would choose; with TIDE_PLACEMENT_DEVICE
     * create refuses it, ARGUMENT */
    tide_update_callback update;
    void *update_context;
    tide_trace_callback trace; /* may be NULL */
    void *trace_context;
    tide_progress_callback progress; /* may be NULL */
    void *progress_context;

    /* Checks, for tests and debugging: all off by default, and worth turning on while you write a model. Host device; a GPU
     * refuses these, and link_bytes_per_second, at seal. */
    /* prove every ordering between streams, and that OVERWRITE writes all; costs host time */
    bool hazard_check;
    bool guard;              /* a use after the last holder's end faults at once */
    bool fault_handler;      /* a fault first names the chunk, param, op and kernel */
    uint64_t delay_seed;     /* adversarial delays on every stream */
    uint32_t delay_max_us;   /* 0: none; at most TIDE_DELAY_MAX_US */
    uint32_t skip_wait_site; /* break the ordering at this site on purpose */
} tide_pool_options;

/* Host device, 64 MiB chunks, bf16, prefetch, automatic placement, budgets 0. NULL: nothing. */
TIDE_API void tide_pool_options_default(tide_pool_options *options);

/* A pool with copied options. ARGUMENT naming the option, or a GPU that is not there; UNSUPPORTED for a device that this
 * machine can't offer, with the reason; NO_MEMORY. A GPU is made ready here: its context and libraries exist afterwards,
 * and stay for the life of the process, which can use one GPU. Sets the thread count of the CPU's kernels, which is the
 * process's: one pool at a time may run. */
TIDE_API tide_status tide_pool_create(const tide_pool_options *options, tide_pool **pool);
/* Waits for running work, frees everything. In any state; NULL allowed. Never fails. */
TIDE_API void tide_pool_destroy(tide_pool *pool);

/* ==== 2  The model: described once, before seal ====
 *
 * Register params in the order in which forward first uses them, since neighbours share chunks, and ops in
 * the order in which a training step runs them. A call that fails registers nothing; nothing can be
 * unregistered. STATE after seal.
 */

/* A param of `rank` dimensions (1 to 4), each at least 1, of which the pool uses the product. The name is
 * copied, and unique. `of_class` (types.h) is copied; NULL: trained with AdamW's state, without decay. A step
 * updates every param that is not frozen; one at least is not. A frozen one has neither decay nor state. A
 * state that is not AdamW's needs an optimizer of your own: section 10. Params with the same state share
 * chunks, frozen params share others; there are at most 8 such groups, each of at most 2^48 elements. */
TIDE_API tide_status tide_param_register(tide_pool *pool, const char *name, const uint64_t *shape,
                                         uint32_t rank, const tide_param_class *of_class, tide_param *param);

/* An activation tensor that outlives an op, of `parts` parts (micro-batches; 1 to 2^20) of `part_bytes` (at least 1)
 * each; all together have at most 2^50 bytes. The name is copied, and unique among activations. */
TIDE_API tide_status tide_activation_register(tide_pool *pool, const char *name, uint32_t parts,
                                              uint64_t part_bytes, tide_activation *activation);

/* An op (tide_op_description in types.h: pass, params and activations with access, slices, workspace). ARGUMENT, naming
 * op and tensor: no name; an unknown pass; a tensor that is not registered or named twice; an access that does not fit;
 * GRAD in a FORWARD op or of a frozen param; slices that are not the parts of every activation.
 *
 * Ops for evaluation or sampling alone (FORWARD) may be registered anywhere, after the others, too. */
TIDE_API tide_status tide_op_register(tide_pool *pool, const tide_op_description *description, tide_op *op);

TIDE_API bool tide_param_find(const tide_pool *pool, const char *name, tide_param *param);
TIDE_API uint64_t tide_param_elements(const tide_pool *pool, tide_param param); /* 0 for an unknown number */

/* ==== 3  Memory ==== */

/* Where every byte goes. Device budget >= slots x chunk + region; host budget >= slots x chunk + buffers. */
typedef struct tide_pool_plan {
    uint64_t params; /* elements of all params */
    /* of their values and state: AdamW's 14 (bf16, fp16) or 16 (fp32) an element, frozen 2 or 4 */
    uint64_t model_bytes;
    uint64_t chunk_bytes;
    uint32_t chunks[TIDE_SPACE_COUNT];
    uint64_t space_bytes[TIDE_SPACE_COUNT]; /* used by tensors */
    uint64_t region_bytes;                  /* all of it */
    uint64_t nonmodel_bytes;                /* of the region: declared */
    uint64_t workspace_bytes;               /* of the region: largest op's workspace and accumulators */
    uint64_t shared_accumulator_bytes;      /* of the region: accumulators that several ops share */
    uint64_t scalar_bytes;                  /* of the region: norm blocks and scalars */
    uint64_t buffer_bytes;                  /* host buffers */
    uint64_t least_device_bytes;            /* smallest device budget that works */
    uint64_t least_host_bytes;              /* smallest host budget that works with this device budget */
    uint64_t full_device_bytes;             /* device budget with which everything is resident */
    uint64_t full_host_bytes;               /* host budget that a run uses up beside this device budget, where
                                               the device updates what it has room for */
    /* the largest default device budget: a GPU's free memory, less the part that pinning the host budget
     * takes. UINT64_MAX: no memory of its own */
    uint64_t device_available_bytes;
    const char *largest_op;       /* the op that decides least_device_bytes; pool's string */
    uint64_t largest_op_bytes;    /* its chunks */
    uint64_t device_memory_bytes; /* budgets in force */
    uint64_t host_memory_bytes;
    uint32_t device_slots;
    uint32_t host_slots;
    /* PARAM chunks whose optimizer state lives on the device, at seal: measured steps may move some of it to
     * the host */
    uint32_t device_updates;
} tide_pool_plan;

/* The plan for the params and ops registered so far; after seal, the plan in force. `device_memory_bytes` is
 * the device budget to plan for, 0 for the options' own (after seal the call ignores it); least_ and
 * full_host_bytes depend on it. STATE if no op is registered, or no param that is not frozen. ARGUMENT if the
 * sizes are too large to count. */
TIDE_API tide_status tide_pool_plan_get(tide_pool *pool, uint64_t device_memory_bytes, tide_pool_plan *plan);
/* Choose budgets after all and before seal (as the options' fields). */
TIDE_API tide_status tide_pool_set_budgets(tide_pool *pool, uint64_t device_memory_bytes,
                                           uint64_t host_memory_bytes);
/* Fix every address and every byte, allocate everything, start the engine: nothing is allocated afterwards. STATE as for
 * the plan, or sealed already. BUDGET names the op, its need, the budget, the least budget that works and, where there is
 * one, a chunk size with which the given one would. UNSUPPORTED: a check that this device has not. NO_MEMORY, DEVICE.
 * After a failure nothing is left, and it can be tried again, with other budgets. */
TIDE_API tide_status tide_pool_seal(tide_pool *pool);

/* ==== 4  Values, when no step is open ==== */

/* Copy `count` values from element `first` of a param, whatever the budget, rounded to the dtype of the
 * stored ones. MASTER: the param; setting it sets PARAM, too. PARAM: the values that ops read; set it for
 * frozen params only, which have no other values. MOMENTUM, VARIANCE: the rest of the optimizer's state, as
 * far as the param has any. All are zero until set. Waits for the last step's updates. ARGUMENT: elements or
 * a value that the param has not. On a pool that has failed the step is given up first, as tide_step_abort
 * does; on a poisoned one (section 9) get is STATE, and sets of everything recover it. A set that fails otherwise may
 * have set a part of the range: repeat it. tide_param_set_as takes values of another dtype, as files of
 * weights have them. */
TIDE_API tide_status tide_param_set(tide_pool *pool, tide_param param, tide_value value, uint64_t first,
                                    uint64_t count, const float *values);
TIDE_API tide_status tide_param_set_as(tide_pool *pool, tide_param param, tide_value value, uint64_t first,
                                       uint64_t count, tide_dtype dtype, const void *values);
TIDE_API tide_status tide_param_get(tide_pool *pool, tide_param param, tide_value value, uint64_t first,
                                    uint64_t count, float *values);

/* How many updates the params have seen: bias correction counts from it. Part of a saved run, like the values. The step
 * that ended last counts once its norm is known (tide_step_result_get). Setting it (at most TIDE_UPDATES_MAX) waits for
 * the last step's updates, and begins the count of skipped steps anew. */
#define TIDE_UPDATES_MAX (UINT64_C(1) << 53)
TIDE_API tide_status tide_update_count_set(tide_pool *pool, uint64_t updates);
TIDE_API uint64_t tide_update_count(const tide_pool *pool);

/* ==== 5  A step ====
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
 *     norm  = sqrt(sum over all params of gradient^2) / loss_scale       in float64, of the gradients as rounded
 *     scale = min(1, clip_norm / (norm + 1e-6)) / loss_scale             without clipping 1 / loss_scale
 *
 *     g  = gradient scale
 *     m' = beta1 m + (1 - beta1) g
 *     v' = beta2 v + (1 - beta2) g^2
 *     w' = w - learning_rate weight_decay w - learning_rate (m' / (1 - beta1^t)) / (sqrt(v' / (1 - beta2^t)) + epsilon)
 *
 * which is AdamW (Loshchilov and Hutter 2019; clipping as PyTorch's clip_grad_norm_) of update t = 1, 2, ... in fp32, w
 * being MASTER; the param is w' rounded. The decay term is for params registered with decay. A param that no op gave a
 * gradient is updated, too, with gradient 0: it decays, and its moments fade.
 *
 * When updates run. With clipping, and always in fp16, they wait for the norm: a step whose norm is not finite is skipped
 * (params as before, the update is not counted). Without, each begins as soon as its gradients are complete, beside the
 * rest of backward; a norm that is not finite then poisons the pool (section 9). In either case an op of the next step
 * waits for those of its own params only.
 */
struct tide_step_options {
    bool training;       /* false: a forward-only pass (FORWARD ops, no updates); the rest is not looked at */
    float learning_rate; /* finite, at least 0 */
    float beta1, beta2, epsilon; /* [0, 1), [0, 1), above 0 and finite */
    float weight_decay;          /* decoupled; finite, at least 0 */
    /* global gradient norm to clip to, at least 0. 0: no clipping. INFINITY: no clipping, but updates wait
     * for the norm, so that a step that is not finite is skipped */
    float clip_norm;
    /* the factor by which you have multiplied the gradient of your loss, so that small gradients keep their
     * digits in fp16: a power of two up to 2^32, any dtype. 0: as 1, none */
    float loss_scale;
}; /* where the optimizer is your own, all but training, clip_norm and loss_scale are its own: handed on unlooked-at */

/* ARGUMENT naming the value that is out of range and its range; STATE: a step is open; NONFINITE: ten steps in a row were
 * skipped (tide_step_result_get). Waits until the last step's norm is known. */
TIDE_API tide_status tide_step_begin(tide_pool *pool, const tide_step_options *options);
/* STATE, and the step stays open: an op is open; or a gradient waits for an op that has not run (section 6, named). */
TIDE_API tide_status tide_step_end(tide_pool *pool);

/* ==== 6  An op ====
 *
 * Ops may run in another order than they are registered in, more than once, or not at all, from step to step, as far as
 * the rules of gradients and activations allow. (An order that repeats is planned; another is carried out on demand.)
 *
 * Gradients. Of the BACKWARD and BOTH ops that use a param (READ or GRAD), the last one registered is its closing op.
 *
 *     its place holds     from                          an op may
 *     the values          the update, or set            READ them; GRAD: add to tide_param_gradient, which is fp32, shared
 *                                                       by all ops of the step, and begins as zeros (but for OVERWRITE)
 *     the gradient        the end of its closing op,    nothing
 *                         if anything was added
 *     the values          the step's update
 *
 * So a gradient is summed in fp32, over micro-batches and over the ops of a tied param alike, and rounded once. With
 * access GRAD alone an op does not see the values.
 *
 * An op whose first kernel writes every element of a gradient (a matrix product does) saves the zeroing, and the reading of
 * the zeros, with OVERWRITE beside GRAD, where its matmul can write without reading (cuBLASLt's beta 0; oneDNN's, for the
 * same bits, zeroes and adds). It asks tide_param_gradient_is_new: if so, the accumulator holds anything, and the
 * op has to write all of it before it ends; otherwise it adds as ever. options.hazard_check lets such an accumulator begin
 * as NaN. (Zero plus x has the bits of x, but for x = -0, which OVERWRITE keeps.)
 *
 * The rules are kept by tide_op_begin, with STATE, naming op and param:
 *
 *     - after its closing op has ended with a gradient, no op may use the param in this step;
 *     - the step must stay able to end: no op may begin that would leave a gradient waiting for a closing op which could
 *       not run any more, by the rule before. If all run, in the order in which they are registered, none is refused.
 *
 * A gradient whose closing op has not run keeps tide_step_end from ending the step; the closing ops that it names can
 * still run.
 *
 * Activations. An op's slice m holds part m of each of its activations, for this slice only. Slices may be taken in any
 * order, again, or left out. A part is dead at the begin of a step, alive once a slice with WRITE was taken, and dead
 * after one with LAST and at the step's end; READ of a dead part is STATE. WRITE without READ finds anything there.
 *
 * Kernels. On a stream, in order. Inside an op they may touch its params (places to read, tide_param_gradient to add to),
 * the current slice's activations, the workspace and the region; between ops the region alone. Of what is outside nothing
 * is checked but by options.guard and options.hazard_check.
 */

/* Blocks until the op's params are mapped and their copies enqueued, not until they have arrived: kernels wait for them
 * on the device. STATE: no step is open, or an op is; an op that is not FORWARD in a forward-only pass; the rules of
 * gradients. */
TIDE_API tide_status tide_op_begin(tide_pool *pool, tide_op op);
/* Take slice `slice` of the open op and release the slice before. ARGUMENT: the op has no such slice. STATE:
 * no op is open, or it READs a part that is dead (named). */
TIDE_API tide_status tide_op_slice(tide_pool *pool, uint32_t slice);
/* STATE if no op is open. */
TIDE_API tide_status tide_op_end(tide_pool *pool);

/* Enqueue a kernel; returns before it has run. `arguments` (at most TIDE_LAUNCH_ARGUMENTS_MAX_BYTES) are
 * copied; `name` is not, and lives as long as the pool. From `flops` and `bytes` of memory traffic, finite
 * and at least 0, the null device computes the kernel's time; other devices measure it, and 0 will do. This
 * call or a later one returns a kernel's failure, with the names of the kernel and its op. STATE: no step is
 * open. */
TIDE_API tide_status tide_launch(tide_pool *pool, const char *name, tide_kernel kernel, const void *arguments,
                                 size_t argument_bytes, double flops, double bytes);

/* Device addresses, fixed at seal. NULL for an unknown number or before seal. Only kernels of ops that hold a
 * param or an activation's part may touch it. */
TIDE_API void *tide_param_data(const tide_pool *pool, tide_param param);
TIDE_API void *tide_activation_data(const tide_pool *pool, tide_activation activation, uint32_t part);
/* The fp32 accumulator of a param of which the open op has GRAD; NULL otherwise. */
TIDE_API float *tide_param_gradient(const tide_pool *pool, tide_param param);
/* True if the open op has OVERWRITE of the param and no op that has ended in this step has GRAD of it: the open op is to write
 * every element. The same for all of the op's slices: after the first write the op adds. */
TIDE_API bool tide_param_gradient_is_new(const tide_pool *pool, tide_param param);

/* ==== 7  The region: device memory that never moves ==== */

/* Your nonmodel_bytes, 256-byte aligned; NULL before seal. */
TIDE_API void *tide_region(const tide_pool *pool);
/* The open op's workspace_bytes, content undefined; NULL where no op is open. */
TIDE_API void *tide_workspace(const tide_pool *pool);
/* Copy `bytes` between your memory and your nonmodel_bytes of the region, in order with kernels. A write's source may be
 * reused at once; a read waits for the kernels before it. ARGUMENT: not inside. A write enqueued behind a kernel that
 * fails may be dropped with it: the failure is met by a later call. In or between steps. */
TIDE_API tide_status tide_write(tide_pool *pool, void *region, const void *source, size_t bytes);
TIDE_API tide_status tide_read(tide_pool *pool, void *target, const void *region, size_t bytes);

/* ==== 8  Afterwards ==== */

typedef struct tide_step_result {
    double gradient_norm; /* global, before clipping; of the gradients without the loss scale */
    /* factor of all gradients in the update: clip factor over loss scale; 0 if skipped */
    float gradient_scale;
    float loss_scale; /* as given at the step's begin; 1 if none */
    bool skipped;     /* the norm was not finite: params unchanged */
    /* counted anew when a step is skipped at a lower loss scale than the one before */
    uint32_t skipped_in_row;
    uint64_t zero_gradients; /* params, not frozen, that no op gave a gradient in this step */
} tide_step_result;

/* Wait until the norm of the training step that ended last is known. NONFINITE, naming step and param, if a gradient was
 * not finite and updates had begun (no clipping, not fp16: the pool is poisoned), or if ten steps in a row were skipped, none
 * of them at a lower loss scale than the one before; tide_step_abort begins that count anew. STATE: a step is open, none
 * has ended yet, or the last was given up. */
TIDE_API tide_status tide_step_result_get(tide_pool *pool, tide_step_result *result);
/* Wait until all updates of the step that ended last are done, on the device, too. STATE inside an op: an update may be
 * waiting for its params. */
TIDE_API tide_status tide_pool_drain(tide_pool *pool);

/* ==== 9  Failures ====
 *
 * After a failure that is not ARGUMENT or STATE (a kernel's, a copy's, memory, an optimizer's, a norm that is not finite
 * where updates did not wait) every call of sections 4 to 8 returns it, but for
 *
 *     tide_step_abort          gives the step up and, if the device can go on, clears the failure; else returns it
 *     tide_param_set, _get     do the same first
 *
 * The NONFINITE of ten skipped steps is an answer, not a failure.
 *
 * Giving up. The open step, or the last one if its updates are not over, is as if it had not begun: repeated, it gives
 * the bits of an undisturbed run. That is exact while none of its updates has begun. If one has, or one of the step
 * before failed, the pool is poisoned: STATE says so, as do all calls of sections 5 to 8 from then on, until all state has been
 * set anew: of every param that is not frozen, each plane's elements in order, from 0 on. Set the update count, too: it may
 * have counted the poisoned step. A step whose norm is known and whose updates are all done has taken place
 * (tide_update_count tells). Giving up a forward-only pass leaves the updates of the step before alone.
 */

/* Give up the open step or, between steps, the last training step if its updates are not over (whatever forward-only
 * passes came behind it); waits for running work. On a sound pool, too: after tide_pool_drain, between steps, there is
 * nothing to give up, while a step whose updates are running would be poisoned. Begins the count of skipped steps anew. OK
 * also if there was nothing to give up. STATE: the step is given up, and the pool is poisoned. */
TIDE_API tide_status tide_step_abort(tide_pool *pool);

/* ==== 10  An optimizer of your own ====
 *
 * options.update is called once a step for each piece of a chunk, from one thread of the pool at a time, on
 * the host, beside kernels and the next step; it must not call the pool. `update` is t, counted from 1;
 * multiply gradients by `gradient_scale`. A status other than OK fails the step, and the pool is poisoned. Chunk
 * size decides how params are cut into segments: let no result depend on it.
 *
 * A param's class (section 2) says what state the optimizer keeps of it, which may differ from param to
 * param: one to three planes, each of 128 bytes for 32 elements (fp32) or, in a bf16 or fp16 pool, of 64
 * (that dtype). The first is the param itself, because gradients overwrite its values: a step that is skipped
 * or given up rewrites them from it. AdamW's {3, {128, 128, 128}} is the default. Momentum SGD has
 * {2, {128, 128}}, or {2, {64, 64}} if it does without an fp32 master: 4 bytes an element.
 */
struct tide_update_segment { /* consecutive elements of a param. All pointers are `elements` long. */
    tide_param param;
    uint64_t first_element; /* counted from the param's start */
    uint64_t elements;
    void *values; /* pool dtype: the gradient on entry, the new param on return */
    void *state
        [TIDE_STATE_PLANES_MAX]; /* its planes, read and written, fp32 or pool dtype; NULL: it has no more. MASTER is
                                           as set, the others are zero before the first update. On return `values` is
                                           the first plane, rounded */
    bool zero_gradient;          /* no op made a gradient: take it as zero, `values` holds the param */
    bool decay;                  /* the param was registered with weight decay */
};

/* ==== 11  What it did ==== */

/* Why compute stood still within steps. */
typedef enum tide_stall_cause {
    TIDE_STALL_LINK = 0, /* a copy of the chunk that it needs was under way */
    TIDE_STALL_SLOT,     /* no device slot was free for the chunk that it needs: one was being emptied */
    TIDE_STALL_UPDATE,   /* the chunk that it needs had not been updated or restored */
    TIDE_STALL_NORM,     /* the step before was not over until its gradient norm was on the host */
    TIDE_STALL_MAP,      /* the chunk that it needs was being mapped, or a slot for it unmapped */
    TIDE_STALL_CALLER, /* nothing held it: within a training step the caller was late to enqueue an op's next kernel (on the
                            host device including the time in which its threads wake) */
    TIDE_STALL_CAUSE_COUNT,
} tide_stall_cause;

/* As metrics, traces and the console spell it. */
static inline const char *tide_stall_cause_name(tide_stall_cause cause)
{
    static const char *const names[] = {"link", "slot", "update", "norm", "map", "caller"};
    return (unsigned)cause < TIDE_STALL_CAUSE_COUNT ? names[cause] : "unknown";
}

/* Kinds of events for options.trace. docs/trace.md describes each kind and the fields that it fills; its
 * other fields are 0, NULL or TIDE_TRACE_NONE. */
typedef enum tide_trace_kind {
    TIDE_TRACE_PASS = 0, /* a step, or forward-only pass, begins; ends; is given up */
    TIDE_TRACE_PASS_END,
    TIDE_TRACE_GIVEN_UP,
    TIDE_TRACE_PLAN,    /* a recorded pass has been planned (anew) */
    TIDE_TRACE_REQUEST, /* an op or slice asked for its chunks, and had them */
    TIDE_TRACE_WAIT,    /* one of those was not there */
    TIDE_TRACE_OP, /* kernels of an op or slice, of the pool's own work around ops, or launched between ops */
    TIDE_TRACE_NORM,     /* the gradient norm's way to the host */
    TIDE_TRACE_MOVE,     /* a chunk was fetched, evicted or written back */
    TIDE_TRACE_MAP,      /* a slot was mapped, unmapped, or both at once */
    TIDE_TRACE_COPY,     /* over the link */
    TIDE_TRACE_ZERO,     /* of a chunk without content */
    TIDE_TRACE_UPDATE,   /* the optimizer, on one piece of a chunk */
    TIDE_TRACE_RESTORE,  /* params from their state, one piece of a chunk */
    TIDE_TRACE_ACCESS,   /* values set or read on the host */
    TIDE_TRACE_STALL,    /* compute stood still */
    TIDE_TRACE_CHUNK,    /* where a chunk is, and what it holds, from now on */
    TIDE_TRACE_PARAM,    /* content of a param's place from now on: values or gradient */
    TIDE_TRACE_WORK,     /* the caller's own: tide_pool_trace_work */
    TIDE_TRACE_SNAPSHOT, /* in files alone, as is the next: where a chunk is as a segment begins */
    TIDE_TRACE_DROPPED,  /* events were lost */
    TIDE_TRACE_KIND_COUNT,
} tide_trace_kind;

#define TIDE_TRACE_NONE UINT32_MAX /* no chunk, slot, op, ... */

/* Strings are static; tide_pool_trace_work's are the caller's. Times are the device's clock's; an instant's two are the same. */
struct tide_trace_event {
    tide_trace_kind kind;
    uint64_t step; /* whose counters count it (tide_pool_step_counters_take); 0: none's */
    uint64_t pass; /* training steps and forward-only passes begun when it happened or was requested */
    uint64_t begin_ns, end_ns;
    uint64_t id;       /* the command's: all events of one move or task have the same */
    uint64_t ended_by; /* of a stall: the id of the command that ended it; 0: none did */
    uint64_t bytes;
    uint64_t busy_ns; /* of the span, in which kernels ran */
    uint64_t number;  /* of a training step; of events lost */
    uint32_t op, slice;
    uint32_t schedule_step;      /* ops and slices begun in the pass so far */
    uint32_t chunk;              /* numbered through all spaces: PARAM, STATE, ACTIVATION */
    uint32_t state_chunk, piece; /* of a task */
    uint32_t device_slot, host_slot;
    uint32_t param;
    uint32_t chunks, lacked;                               /* asked for; of those not there */
    uint32_t planned_in, planned_out, least_in, least_out; /* chunks a step */
    const char *what;
    const char *reason;
    const char *device, *host, *content;
    bool training, clips, predicted, copied, zeroed, in_place, pinned, pending;
};

/* The device's clock; null: virtual. 0 before seal. Any thread. */
TIDE_API uint64_t tide_pool_now_ns(const tide_pool *pool);
/* Tell options.trace, if anybody listens, that the caller did `what` ("data", say) from `begin_ns` until now. `what` lives as long
 * as whoever listens keeps it. The caller's thread. */
TIDE_API void tide_pool_trace_work(const tide_pool *pool, const char *what, uint64_t begin_ns);

/* Sums since seal. Seconds of the null device are virtual. */
typedef struct tide_pool_counters {
    uint64_t steps;
    double seconds;         /* the device's clock, for differences */
    double compute_seconds; /* its stream's, without the norm's copy to the host, which is a stall */
    /* in which compute stood still though a step was on: the sum of the next, exactly */
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
    uint64_t manager_calls; /* into chunk/, between step begin and step end */
    uint64_t device_bytes_peak;
    uint64_t host_bytes_peak;
    uint64_t device_allocations; /* constant in steady state */
    uint64_t host_allocations;
} tide_pool_counters;

TIDE_API tide_status tide_pool_counters_get(const tide_pool *pool, tide_pool_counters *counters);
/* One finished training step's share of the counters, oldest first: from its first op to the next step's
 * first op, and its updates' seconds, bytes and moves even where they ran inside the next step. False if none
 * is finished; tide_pool_drain finishes the last. Peaks and allocations are the pool's so far. At most 8
 * wait; older are dropped. */
TIDE_API bool tide_pool_step_counters_take(tide_pool *pool, uint64_t *step, tide_pool_counters *counters);

typedef struct tide_pool_prediction {
    double step_seconds;
    double stall_seconds;  /* of it: as counted in tide_pool_counters, all causes but the caller */
    uint64_t times_played; /* so far, by this pool: grows when the answer was worked out anew */
} tide_pool_prediction;

/* Predict a training step's time under the present plan: the pool's own manager and engine play steps with
 * the last step's ops and slices in virtual time, with measured durations of ops, copies, mappings and
 * updates. The pool plays them anew when the ops have changed or a duration that matters has moved by more
 * than a tenth; in between it keeps its answer, and the call costs little.
 *
 * The prediction leaves out the caller's own time between calls, and that streams which share the machine's
 * cores and memory may slow each other more, or less, than while they were measured. On the host device,
 * where kernels, copies and the optimizer share cores, a step can therefore take longer than predicted.
 *
 * The caller's thread, between ops or steps. STATE until a training step with its updates has been measured
 * (after its drain, or two steps later), and if the last one ran no op. UNSUPPORTED for a step of more than
 * twice all registered ops and slices. NO_MEMORY at the first call without options.predict. A failure changes
 * nothing but the answer kept. */
TIDE_API tide_status tide_pool_predict(tide_pool *pool, tide_pool_prediction *prediction);

#ifdef __cplusplus
}
#endif

#endif
