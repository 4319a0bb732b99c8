/* Types that the pool, the devices and the kernels share. */
#ifndef TIDEPOOL_TYPES_H
#define TIDEPOOL_TYPES_H

#include "tidepool/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Element types of params, gradients and activations. AdamW's state and gradient accumulators are always
 * fp32. Kernels compute in fp32 or better and round to the element type when they write a tensor; on a GPU,
 * attention also rounds the softmax weights to it, for the tensor cores. FP16 can represent only magnitudes
 * from 6e-8 to 65504, so fp16 gradients need a loss scale.
 */
typedef enum tide_dtype {
    TIDE_DTYPE_FP32 = 0,
    TIDE_DTYPE_BF16 = 1,
    TIDE_DTYPE_FP16 = 2,
} tide_dtype;

/* The size of one element in bytes: 4 or 2. */
static inline size_t tide_dtype_bytes(tide_dtype dtype)
{
    return dtype == TIDE_DTYPE_FP32 ? 4u : 2u;
}

/* The type's name, as options and files spell it. */
static inline const char *tide_dtype_name(tide_dtype dtype)
{
    return dtype == TIDE_DTYPE_FP32 ? "fp32" : dtype == TIDE_DTYPE_BF16 ? "bf16" : "fp16";
}

/* The address of every tensor, in chunks and in the region, is a multiple of this. */
enum { TIDE_ALIGNMENT_BYTES = 256 };

static inline uint64_t tide_align_up(uint64_t bytes)
{
    return (bytes + TIDE_ALIGNMENT_BYTES - 1) / TIDE_ALIGNMENT_BYTES * TIDE_ALIGNMENT_BYTES;
}

/* The two memories: the device's and the host's. */
typedef enum tide_tier {
    TIDE_TIER_DEVICE = 0,
    TIDE_TIER_HOST = 1,
    TIDE_TIER_COUNT,
} tide_tier;

/* A space is an address range of chunks of one kind. PARAM: params in the pool's dtype and, after a param's
 * last use in backward, its gradient. STATE: the optimizer's state of the params. ACTIVATION: the activations
 * that outlive an op. */
typedef enum tide_space {
    TIDE_SPACE_PARAM = 0,
    TIDE_SPACE_STATE,
    TIDE_SPACE_ACTIVATION,
    TIDE_SPACE_COUNT,
} tide_space;

/* The reason why a chunk moves between the tiers. */
typedef enum tide_reason {
    TIDE_REASON_DEMAND = 0, /* an op waits for the chunk */
    TIDE_REASON_PREFETCH,
    TIDE_REASON_UPDATE,
    TIDE_REASON_RESTORE,
    TIDE_REASON_ACCESS,
    TIDE_REASON_PROMOTE, /* to move a chunk to the device, since host memory is full */
    TIDE_REASON_COUNT,
} tide_reason;

/* The state of a chunk in one tier. */
typedef enum tide_stand {
    TIDE_STAND_NONE = 0,
    TIDE_STAND_COMING, /* the chunk has a slot there, but not its content yet */
    TIDE_STAND_THERE,
    TIDE_STAND_EVICTING, /* on the device only: the chunk is being evicted or copied out */
    TIDE_STAND_STALE,    /* on the device only: the chunk keeps its slot while the host changes its content */
} tide_stand;

/* The content of a chunk. */
typedef enum tide_content {
    TIDE_CONTENT_NOTHING = 0,
    TIDE_CONTENT_PARAMS,
    TIDE_CONTENT_GRADIENTS,
    TIDE_CONTENT_BOTH, /* gradients have replaced some of its params, not all */
    TIDE_CONTENT_STATE,
    TIDE_CONTENT_ACTIVATIONS,
} tide_content;

enum { TIDE_STATE_PLANES_MAX = 3 };

/* How the optimizer's state of a param is stored: in planes, of which plane p takes bytes[p] for every 32
 * elements of the param. AdamW has three fp32 planes, {3, {128, 128, 128}}: 12 bytes per element. */
typedef struct tide_state_format {
    uint32_t planes;
    uint32_t bytes[TIDE_STATE_PLANES_MAX];
} tide_state_format;

/* How a param is trained. Zeroed: with AdamW's state and without weight decay. */
typedef struct tide_param_class {
    bool frozen;             /* the param has values only: no gradient, no state, no update */
    bool decay;              /* the optimizer's weight decay applies to it */
    tide_state_format state; /* 0 planes: AdamW's; for an optimizer of your own see pool.h, section 9 */
} tide_param_class;

/* The numbers that the pool stores for a param: the values that ops read and, unless the param is frozen, the
 * planes of its state. */
typedef enum tide_value {
    TIDE_VALUE_PARAM = 0, /* MASTER rounded to the pool's dtype; a frozen param has only this */
    TIDE_VALUE_MASTER,    /* the first plane of the state: the param as updates read and write it */
    TIDE_VALUE_MOMENTUM,  /* the second plane */
    TIDE_VALUE_VARIANCE,  /* the third plane */
    TIDE_VALUE_COUNT,
} tide_value;

static inline const char *tide_value_name(tide_value value)
{
    static const char *const names[TIDE_VALUE_COUNT] = {"param", "master", "momentum", "variance"};
    return (unsigned)value < TIDE_VALUE_COUNT ? names[value] : "unknown";
}

/* The part of a step to which an op belongs. A BACKWARD op may recompute its block's forward first. */
typedef enum tide_pass {
    TIDE_PASS_FORWARD = 0,
    TIDE_PASS_BACKWARD,
    TIDE_PASS_BOTH, /* one op computes both, such as the loss and its gradient */
} tide_pass;

/* How an op accesses a param or its part of an ACTIVATION tensor. */
enum {
    TIDE_ACCESS_READ = 1u << 0, /* the op reads the values */
    TIDE_ACCESS_GRAD = 1u << 1, /* params of BACKWARD and BOTH ops: the op adds to the gradient */
    /* activations: the op overwrites the part; without READ it finds undefined content there */
    TIDE_ACCESS_WRITE = 1u << 2,
    /* activations, with READ or WRITE: no op reads the part's content after this use, so it is never copied
     * out */
    TIDE_ACCESS_LAST = 1u << 3,
    /* params, with GRAD: if no earlier op of the step made this gradient, the op writes every element of it
     * (pool.h, section 5) */
    TIDE_ACCESS_OVERWRITE = 1u << 4,
};

typedef struct tide_use {
    uint32_t tensor; /* a param, or an ACTIVATION tensor */
    uint32_t access; /* TIDE_ACCESS_... */
} tide_use;

/* An op of a description (tide_description_add_op, which copies all of it). pool.h, section 5, says what
 * an op may do with each access and when. */
typedef struct tide_op_description {
    const char *name; /* for messages and traces; several ops may have the same name */
    tide_pass pass;
    const tide_use *params; /* each param at most once; may be NULL if param_count is 0 */
    uint32_t param_count;
    /* each activation at most once. Each must have `slices` parts: slice m of the op uses part m of it */
    const tide_use *activations;
    uint32_t activation_count;
    uint32_t slices;          /* micro-batches; 0 if activation_count is 0 */
    uint64_t workspace_bytes; /* scratch memory in the region for this op's kernels; at most 2^50 */
} tide_op_description;

/* Where the optimizer runs and keeps its state. Results have the same bits for each placement. */
typedef enum tide_placement {
    /* on the device for as many params as have space for their state there, on the host for the others */
    TIDE_PLACEMENT_AUTO = 0,
    TIDE_PLACEMENT_HOST,
    TIDE_PLACEMENT_DEVICE,
} tide_placement;

/* Speeds of the machine that the null device imitates; the speed of its link is
 * tide_pool_options.link_bytes_per_second. All are finite. A speed of 0 means that such work takes no
 * time. */
typedef struct tide_machine {
    double flops_per_second;
    double device_bytes_per_second;
    double host_bytes_per_second;
    uint64_t map_ns;
    uint64_t unmap_ns;                /* 0: the same as map_ns */
    double link_out_bytes_per_second; /* device to host; 0: the same as host to device */
    /* 0: the null device simulates the host. Otherwise it simulates a GPU, with that GPU's workspace sizes
     * and smallest chunk size, which has this much memory for slots and region */
    uint64_t gpu_memory_bytes;
} tide_machine;

/* Checks for tests and debugging, all off by default: turn them on while you write a model. Only the host
 * device has them. A GPU refuses them, and it also refuses link_bytes_per_second. */
typedef struct tide_checks {
    /* check that events order accesses by different streams, and that ops with OVERWRITE write every element;
     * slow */
    bool hazard_check;
    bool guard;         /* an access to a slot after the op or task that used it has ended faults */
    bool fault_handler; /* after a fault a signal handler prints chunk, param, op and kernel */
    /* finish gradients on a stream of their own beside the next op, as several ranks will; the accumulators
     * of neighbouring ops then lie at both ends of their part of the region. Not with `guard`; a trace
     * does not show this work as its op's */
    bool finish_beside;
    uint64_t delay_seed;     /* seed of random delays before each stream's commands */
    uint32_t delay_max_us;   /* the longest delay; 0: none; at most TIDE_DELAY_MAX_US */
    uint32_t skip_wait_site; /* leave out waits at this site, to test the hazard checker; 0: none */
} tide_checks;

/* A kernel, or a function that launches one. On the host device a thread of the stream calls it with `stream`
 * NULL, and it does the work itself. On a CUDA device the launching thread calls it at once with `stream` the
 * cudaStream_t, and it enqueues the work there. `arguments` points at a copy of the caller's struct, aligned
 * to 16 bytes, valid during the call only. The function must not block. If it returns a status other than
 * TIDE_OK, the device fails with the message that the function set (tide_fail). */
typedef tide_status (*tide_kernel)(void *stream, const void *arguments);

/* The largest size of a launch's argument struct. */
enum { TIDE_LAUNCH_ARGUMENTS_MAX_BYTES = 256 };

#ifdef __cplusplus
}
#endif

#endif
