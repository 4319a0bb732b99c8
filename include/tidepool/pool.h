/* The pool: params, gradients, optimizer state and activation checkpoints of one model, on one device and its
 * host.
 *
 * A caller with a training loop of its own describes the model once, then steps:
 *
 *     tide_pool_create            budgets, chunk size, dtype, declared non-model bytes
 *     tide_param_register ...     in creation order: the order in which forward uses them
 *     tide_checkpoint_register    activations that outlive an op, one part a micro-batch
 *     tide_op_register ...        in the order in which a training step runs them
 *     tide_pool_seal              fixes every address and every byte; nothing is allocated afterwards
 *     tide_param_set ...          initial values
 *
 *     tide_step_begin             hyperparameters of this step
 *       tide_op_begin             blocks until the op's params are mapped and their copies enqueued
 *         tide_op_slice(m)        one micro-batch's part of the op's checkpoints
 *           tide_launch ...       kernels, in order, on the compute stream
 *       tide_op_end               the op's gradients are rounded into the params' own places
 *     tide_step_end               backward is over; returns without waiting for the updates
 *     tide_step_result            loss of a step is the caller's; the norm and whether it was skipped is the
 * pool's
 *
 * Addresses. A param's device address (tide_param_data) never changes in the life of the pool, but it may be
 * touched only by kernels of ops that acquired it. Inside a BACKWARD or BOTH op with access GRAD the gradient
 * is an fp32 accumulator (tide_param_gradient), zero when first touched in a step, to which kernels add.
 *
 * Results never depend on budgets, chunk size, prefetch or placement: not by one bit.
 *
 * Threads. One thread drives a pool. Kernels and update callbacks run on the pool's threads.
 *
 * Errors. Every call returns a status and leaves a message (tide_message). After a failure inside the engine
 * every call but tide_step_abort, tide_param_set/get and tide_pool_destroy returns it; after tide_step_abort
 * the step can be repeated with the bits of an undisturbed run, unless the pool is torn (an update had
 * begun): then all params and states have to be set anew first.
 */
#ifndef TIDEPOOL_POOL_H
#define TIDEPOOL_POOL_H

#include "tidepool/types.h"

#include <stdbool.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct tide_pool tide_pool;
typedef uint32_t tide_param;
typedef uint32_t tide_checkpoint;
typedef uint32_t tide_op;

/* --- options --- */

/* One piece of a param inside a chunk, given to an update callback. All pointers are `elements` long. */
typedef struct tide_update_segment {
    tide_param param;
    uint64_t first_element; /* counted from the param's start */
    uint64_t elements;
    void *values;       /* pool dtype: the gradient on entry, the new param on return */
    float *master;      /* fp32 param, read and written */
    float *states[2];   /* momentum, variance: zero before the first update */
    bool zero_gradient; /* no op made a gradient: take it as zero, `values` holds the param */
    bool decay;         /* the param was registered with weight decay */
} tide_update_segment;

typedef struct tide_step_options {
    bool training; /* false: a forward-only pass; the rest is not used */
    float learning_rate;
    float beta1, beta2, epsilon;
    float weight_decay; /* decoupled; params registered with it */
    float clip_norm;    /* global gradient norm to clip to; 0: no clipping, and updates run during backward, but for fp16 */
    float loss_scale;   /* what the caller has multiplied the gradient of its loss by, so that small gradients keep their
                           digits in fp16: a power of two up to 2^32, any dtype. 0: as 1, none */
} tide_step_options;

/* An optimizer of the caller's: updates one chunk's segments. `gradient_scale` is what to multiply gradients
 * by, clip factor over loss scale; `update` counts from 1. Runs on a host thread; must not call the pool. A status other than OK
 * tears the pool. Results are the caller's to keep independent of how segments are cut: chunk size decides
 * that. */
typedef tide_status (*tide_update_callback)(void *context, const tide_step_options *step, uint64_t update,
                                            float gradient_scale, const tide_update_segment *segments,
                                            uint32_t count);

/* What happened to a chunk, for traces. Strings are static. */
typedef struct tide_trace_event {
    uint64_t t_ns;
    uint64_t step;
    uint32_t moment;   /* ops and slices begun in this step so far */
    const char *op;    /* name of the open op, "" if none */
    const char *event; /* "map", "unmap", "copy begin", "copy end", "pin", "unpin", "state", "stall begin",
                          "stall end", "update begin", "update end" */
    uint32_t chunk;    /* index inside its space; UINT32_MAX if the event is of no chunk */
    tide_space space;
    const char *from; /* tier or state left; "" if none */
    const char *to;
    uint64_t bytes;
    const char *reason; /* "demand", "prefetch", "update", "restore", "access", "spill" or ""; of a stall its
                           tide_stall_cause_name */
} tide_trace_event;

/* Called from the pool's threads, possibly several at once; must be short and must not call the pool. */
typedef void (*tide_trace_callback)(void *context, const tide_trace_event *event);

/* Called while something is made that takes seconds: memory, by tide_pool_seal ("host slots", say), or values, by who sets
 * them. Of `total_bytes` of `what`, a constant, `done_bytes` are there. From threads of the pool, too, one call at a time;
 * must not call the pool. */
typedef void (*tide_progress_callback)(void *context, const char *what, uint64_t done_bytes, uint64_t total_bytes);

/* Rates of the machine that the null device imitates; its link is tide_pool_options.link_bytes_per_second. */
typedef struct tide_machine {
    double flops_per_second;
    double device_bytes_per_second;
    double host_bytes_per_second;
    uint64_t map_ns;
    uint64_t unmap_ns;                /* 0: as map_ns */
    double link_out_bytes_per_second; /* device to host; 0: as the other way */
} tide_machine;

typedef struct tide_pool_options {
    const char *device; /* "host", "null", "cuda:N" */
    uint64_t device_memory_bytes; /* hard budgets; 0: what the pool needs to keep everything where it is used, on a GPU
                                     at most what it has free when the pool is created */
    uint64_t host_memory_bytes;
    uint64_t chunk_bytes;    /* a power of two, 256 KiB (host, null; CUDA 2 MiB) to 1 GiB; 0: 64 MiB */
    tide_dtype dtype;        /* of all params */
    uint64_t nonmodel_bytes; /* of the region, for the caller (tide_region) */
    uint64_t staging_bytes;  /* host buffer for tide_write and tide_read; 0: 1 MiB */
    bool prefetch;
    bool predict;     /* make ready for tide_pool_predict at seal; otherwise its first call allocates */
    bool manager_off; /* benchmarks: everything mapped once, op begin and end make no residency work;
                         needs a device budget that holds all */
    tide_placement placement;
    uint32_t threads;             /* of kernels and of the host optimizer; 0: one per core */
    double link_bytes_per_second; /* throttle of copies, each way; null: the link's rate. 0: no limit */
    tide_machine machine;         /* null device only */
    tide_update_callback update;  /* NULL: the built-in AdamW */
    void *update_context;
    uint32_t update_states;    /* fp32 states the callback uses, 0 to 2; AdamW: ignored, 2 */
    tide_trace_callback trace; /* may be NULL */
    void *trace_context;
    tide_progress_callback progress; /* may be NULL */
    void *progress_context;

    /* checks, for tests and debugging (host device; a GPU refuses them at seal, and a throttle of copies) */
    bool hazard_check;   /* prove every ordering between streams; costs host time */
    bool guard;          /* a use after the last holder's end faults at once */
    bool fault_handler;  /* a fault first names the chunk, param and op */
    uint64_t delay_seed; /* adversarial delays on every stream */
    uint32_t delay_max_us;
    uint32_t skip_wait_site; /* break the ordering at this site on purpose */
} tide_pool_options;

/* Host device, 64 MiB chunks, bf16, prefetch, automatic placement, budgets 0. */
TIDE_API void tide_pool_options_default(tide_pool_options *options);

/* --- set-up --- */

/* A pool with copied options. ARGUMENT naming the option, or a GPU that is not there; UNSUPPORTED for a device that this
 * machine can't offer, with the reason; NO_MEMORY. A GPU is made ready here: its context and libraries exist afterwards,
 * and stay for the life of the process, which can use one GPU. Sets the thread count of the CPU's kernels, which is the
 * process's: one pool at a time may run. */
TIDE_API tide_status tide_pool_create(const tide_pool_options *options, tide_pool **pool);
/* Waits for running work, frees everything. NULL allowed. Never fails. */
TIDE_API void tide_pool_destroy(tide_pool *pool);

/* Register a param of `rank` dimensions (1 to 4). The name is copied, unique. `decay`: weight decay applies.
 */
TIDE_API tide_status tide_param_register(tide_pool *pool, const char *name, const uint64_t *shape,
                                         uint32_t rank, bool decay, tide_param *param);
/* Register an activation tensor of `parts` parts (micro-batches) of `part_bytes` each. */
TIDE_API tide_status tide_checkpoint_register(tide_pool *pool, const char *name, uint32_t parts,
                                              uint64_t part_bytes, tide_checkpoint *checkpoint);
/* Register an op, in the order in which a training step runs them (see tide_op_description). */
TIDE_API tide_status tide_op_register(tide_pool *pool, const tide_op_description *description, tide_op *op);

/* Where every byte goes. Device budget >= slots x chunk + region; host budget >= slots x chunk + buffers. */
typedef struct tide_pool_plan {
    uint64_t params;      /* elements of all params */
    uint64_t model_bytes; /* 14 (bf16, fp16) or 16 (fp32) bytes a param */
    uint64_t chunk_bytes;
    uint32_t chunks[TIDE_SPACE_COUNT];
    uint64_t space_bytes[TIDE_SPACE_COUNT]; /* used by tensors */
    uint64_t region_bytes;                  /* all of it */
    uint64_t nonmodel_bytes;                /* of the region: declared */
    uint64_t workspace_bytes;               /* of the region: largest op's workspace and accumulators */
    uint64_t kept_accumulator_bytes;        /* of the region: accumulators kept between ops */
    uint64_t scalar_bytes;                  /* of the region: norm blocks and scalars */
    uint64_t buffer_bytes;                  /* host buffers */
    uint64_t least_device_bytes;            /* smallest device budget that works */
    uint64_t least_host_bytes;              /* smallest host budget that works with this device budget */
    uint64_t full_device_bytes;             /* device budget with which everything is resident */
    uint64_t full_host_bytes;               /* host budget that a run uses up beside this device budget, where
                                               the device updates what it has room for */
    uint64_t device_available_bytes;        /* most that a default device budget is: what a GPU has free, less what pinning
                                               the host budget takes there. UINT64_MAX: no memory of its own */
    const char *largest_op;                 /* the op that decides least_device_bytes; pool's string */
    uint64_t largest_op_bytes;              /* its chunks */
    uint64_t device_memory_bytes;           /* budgets in force */
    uint64_t host_memory_bytes;
    uint32_t device_slots;
    uint32_t host_slots;
    uint32_t device_updates; /* PARAM chunks whose optimizer state lives on the device, at seal: measured steps may
                                move some of it to the host */
} tide_pool_plan;

/* The plan of what is registered so far; after seal, the one in force. `device_memory_bytes` is the device
 * budget to plan for, 0 for the options' own (after seal it is not looked at); least_ and full_host_bytes depend on it.
 * STATE if no param or op is registered. */
TIDE_API tide_status tide_pool_plan_get(tide_pool *pool, uint64_t device_memory_bytes, tide_pool_plan *plan);
/* Choose budgets after all and before seal (as the options' fields). */
TIDE_API tide_status tide_pool_set_budgets(tide_pool *pool, uint64_t device_memory_bytes,
                                           uint64_t host_memory_bytes);
/* Fix everything, allocate everything, start the engine. BUDGET names the op, its need, the budget, the least
 * budget that works and, where there is one, a chunk size with which the given one would. Params are zero
 * until set. */
TIDE_API tide_status tide_pool_seal(tide_pool *pool);

/* --- values, when no step is open --- */

/* Copy `count` values from element `first` of a param, whatever the budget. Space MASTER: the fp32 value;
 * setting it also sets the param (rounded). MOMENTUM, VARIANCE: optimizer state. PARAM (get only): the
 * rounded value. Setting the whole range of every param in every fp32 space, each param's values in order
 * from element 0 on, heals a torn pool. Waits for the last step's updates. On a pool that failed, the step is
 * given up first, as tide_step_abort does. */
TIDE_API tide_status tide_param_set(tide_pool *pool, tide_param param, tide_space space, uint64_t first,
                                    uint64_t count, const float *values);
TIDE_API tide_status tide_param_get(tide_pool *pool, tide_param param, tide_space space, uint64_t first,
                                    uint64_t count, float *values);
/* How many updates the params have seen: bias correction counts from it. Part of a checkpoint. The step that
 * ended last counts once its norm is known (tide_step_result_get). */
TIDE_API tide_status tide_update_count_set(tide_pool *pool, uint64_t updates);
TIDE_API uint64_t tide_update_count(const tide_pool *pool);

/* --- a step --- */

TIDE_API tide_status tide_step_begin(tide_pool *pool, const tide_step_options *options);
/* Blocks until the op's params are mapped and their copies enqueued, not until they have arrived. STATE: see
 * tide_op_description (an op out of its pass, a READ after the param's place holds its gradient; both named).
 */
TIDE_API tide_status tide_op_begin(tide_pool *pool, tide_op op);
TIDE_API tide_status tide_op_slice(tide_pool *pool, uint32_t slice);
TIDE_API tide_status tide_op_end(tide_pool *pool);
TIDE_API tide_status tide_step_end(tide_pool *pool);
/* Give up the open step, or the last one if it has ended and its updates are not over: as if it had not begun.
 * Exact while no update has begun; otherwise the pool is torn and STATE says so. A step whose updates are all
 * done has taken place (tide_update_count tells). Giving up a forward-only pass leaves the updates of the step
 * before alone. Clears a sticky failure if the device can go on. Waits for running work. */
TIDE_API tide_status tide_step_abort(tide_pool *pool);

typedef struct tide_step_result {
    double gradient_norm; /* global, before clipping; of the gradients without the loss scale */
    float gradient_scale; /* what gradients were multiplied by: clip factor over loss scale; 0 if skipped */
    float loss_scale;     /* as given at the step's begin; 1 if none */
    bool skipped;         /* the norm was not finite: params unchanged */
    uint32_t skipped_in_row; /* counted anew when a step is skipped at a lower loss scale than the one before */
    uint64_t zero_gradients; /* trainable params that no op gave a gradient in this step */
} tide_step_result;

/* Wait until the norm of the last ended training step is known. NONFINITE, naming step and param, if a
 * gradient was not finite and updates had begun (no clipping, not fp16; the pool is torn), or ten steps in a row
 * were skipped, none of them at a lower loss scale than the one before. */
TIDE_API tide_status tide_step_result_get(tide_pool *pool, tide_step_result *result);
/* Wait until all updates are done, on the device too. STATE inside an op: an update may be waiting for its
 * params. */
TIDE_API tide_status tide_pool_drain(tide_pool *pool);

/* --- inside a step --- */

/* Enqueue a kernel on the compute stream; returns before it has run. Arguments (at most
 * TIDE_LAUNCH_ARGUMENTS_MAX_BYTES) are copied. Inside an op it may touch the op's params, the current slice's
 * checkpoints, the workspace and the region; between ops the region only. `name` is static. */
TIDE_API tide_status tide_launch(tide_pool *pool, const char *name, tide_kernel kernel, const void *arguments,
                                 size_t argument_bytes, double flops, double bytes);
/* Enqueue a copy from caller memory into the region (the source may be reused at once), in stream order. */
TIDE_API tide_status tide_write(tide_pool *pool, void *region, const void *source, size_t bytes);
/* Wait for the compute stream, copy from the region into caller memory. */
TIDE_API tide_status tide_read(tide_pool *pool, void *target, const void *region, size_t bytes);

/* Device addresses, fixed at seal. NULL for an unknown number or before seal. */
TIDE_API void *tide_param_data(const tide_pool *pool, tide_param param);
TIDE_API void *tide_checkpoint_data(const tide_pool *pool, tide_checkpoint checkpoint, uint32_t part);
TIDE_API void *tide_region(const tide_pool *pool); /* nonmodel_bytes, 256-byte aligned */
TIDE_API void *
tide_workspace(const tide_pool *pool); /* of the open op, its workspace_bytes; NULL between ops */
/* The fp32 accumulator of a param whose gradient the open op makes; NULL otherwise. */
TIDE_API float *tide_param_gradient(const tide_pool *pool, tide_param param);
TIDE_API bool tide_param_find(const tide_pool *pool, const char *name, tide_param *param);
TIDE_API uint64_t tide_param_elements(const tide_pool *pool, tide_param param);

/* --- what it did --- */

/* Why compute stood still within steps. */
typedef enum tide_stall_cause {
    TIDE_STALL_LINK = 0, /* the copy of what it needs was under way */
    TIDE_STALL_ROOM,     /* no device slot was free for what it needs: one was being emptied */
    TIDE_STALL_UPDATE,   /* what it needs was waiting for its optimizer step, or for being restored, or in it */
    TIDE_STALL_NORM,     /* the step before was not over until its gradient norm was on the host */
    TIDE_STALL_MAP,      /* what it needs was being mapped, or a slot for it unmapped */
    TIDE_STALL_CALLER,   /* nothing held it: within a training step the caller was late to enqueue an op's next kernel (on the
                            host device with what its threads take to wake) */
    TIDE_STALL_CAUSE_COUNT,
} tide_stall_cause;

/* As metrics, traces and the console spell it. */
static inline const char *tide_stall_cause_name(tide_stall_cause cause)
{
    static const char *const names[] = {"link", "room", "update", "norm", "map", "caller"};
    return (unsigned)cause < TIDE_STALL_CAUSE_COUNT ? names[cause] : "unknown";
}

/* Sums since seal. Seconds of the null device are virtual. */
typedef struct tide_pool_counters {
    uint64_t steps;
    double seconds; /* the device's clock, for differences */
    double compute_seconds; /* its stream's, without the norm's copy to the host, which is a stall */
    double stall_seconds; /* in which compute stood still though a step was on: the sum of the next, exactly */
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

/* What a training step takes as now planned: the pool's own manager and engine play steps with the last step's ops and
 * slices in virtual time, with measured durations of ops, copies, mappings and updates. Played anew when the ops are
 * others or a duration that matters has moved by more than a tenth; in between the answer is kept and costs little.
 *
 * Not in it: the caller's own time between calls, and how much streams that share the machine's cores and memory slow
 * each other more, or less, than they did while they were measured. On the host device, where kernels, copies and the
 * optimizer share cores, a step can so take longer than predicted.
 *
 * The caller's thread, between ops or steps. STATE until a training step with its updates has been measured: after its
 * drain, or two steps later. UNSUPPORTED for a step of more than twice all registered ops and slices. NO_MEMORY at the
 * first call without options.predict; what fails changes nothing but the answer kept. */
TIDE_API tide_status tide_pool_predict(tide_pool *pool, tide_pool_prediction *prediction);

#ifdef __cplusplus
}
#endif

#endif
