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

/* Element types of parameters, gradients and activations. AdamW's state and accumulators are always fp32, and
 * kernels compute in fp32 or better and round to the type when they write a tensor; on a GPU, attention also
 * rounds softmax's weights to the type, for the tensor cores. FP16 holds only numbers from 6e-8 to 65504:
 * fp16 gradients need a loss scale.
 */
typedef enum tide_dtype {
    TIDE_DTYPE_FP32 = 0,
    TIDE_DTYPE_BF16 = 1,
    TIDE_DTYPE_FP16 = 2,
} tide_dtype;

/* Bytes of one element: 4 or 2. */
static inline size_t tide_dtype_bytes(tide_dtype dtype)
{
    return dtype == TIDE_DTYPE_FP32 ? 4u : 2u;
}

/* The type's name, as options and files spell it. */
static inline const char *tide_dtype_name(tide_dtype dtype)
{
    return dtype == TIDE_DTYPE_FP32 ? "fp32" : dtype == TIDE_DTYPE_BF16 ? "bf16" : "fp16";
}

/* The address of every tensor, in every space and in the region, is a multiple of this. */
enum { TIDE_ALIGNMENT_BYTES = 256 };

static inline uint64_t tide_align_up(uint64_t bytes)
{
    return (bytes + TIDE_ALIGNMENT_BYTES - 1) / TIDE_ALIGNMENT_BYTES * TIDE_ALIGNMENT_BYTES;
}

/* Whose memory: the device's or the host's. */
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

/* Why a chunk moves from tier to tier. */
typedef enum tide_reason {
    TIDE_REASON_DEMAND = 0, /* an op waits for the chunk */
    TIDE_REASON_PREFETCH,
    TIDE_REASON_UPDATE,
    TIDE_REASON_RESTORE,
    TIDE_REASON_ACCESS,
    TIDE_REASON_PROMOTE, /* host memory is full: the chunk moves to the device, or stays there */
    TIDE_REASON_COUNT,
} tide_reason;

/* Where a chunk is in a tier. */
typedef enum tide_stand {
    TIDE_STAND_NONE = 0,
    TIDE_STAND_COMING, /* the chunk has a slot, but not its content yet */
    TIDE_STAND_THERE,
    TIDE_STAND_EVICTING, /* on the device only: the chunk is being evicted or copied out */
    TIDE_STAND_STALE,    /* on the device only: the chunk keeps its slot while the host changes its content */
} tide_stand;

/* The content of a chunk. */
typedef enum tide_content {
    TIDE_CONTENT_NOTHING = 0,
    TIDE_CONTENT_PARAMS,
    TIDE_CONTENT_GRADIENTS,
    TIDE_CONTENT_BOTH, /* some of its params have been replaced by their gradients */
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
    TIDE_VALUE_PARAM = 0, /* MASTER rounded to the pool's dtype; all that a frozen param has */
    TIDE_VALUE_MASTER,    /* the first plane: the param as updates read and write it */
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
    TIDE_PASS_BOTH, /* a head: loss and gradient in one op */
} tide_pass;

/* How an op accesses a param or its part of an ACTIVATION tensor. */
enum {
    TIDE_ACCESS_READ = 1u << 0, /* the op needs the values */
    TIDE_ACCESS_GRAD = 1u << 1, /* params of BACKWARD and BOTH ops: the op adds to the gradient */
    /* activations: the op overwrites the part; without READ it finds undefined content there */
    TIDE_ACCESS_WRITE = 1u << 2,
    /* activations, with READ or WRITE: the part is dead after this use and is never copied out */
    TIDE_ACCESS_LAST = 1u << 3,
    /* params, with GRAD: if no op before it in the step made this gradient, the op writes every element of
     * it */
    TIDE_ACCESS_OVERWRITE = 1u << 4,
};

typedef struct tide_use {
    uint32_t tensor; /* a param, or an ACTIVATION tensor */
    uint32_t access; /* TIDE_ACCESS_... */
} tide_use;

/* An op of a description (tide_description_add_op, which copies all of it). pool.h, section 5, says what
 * an op may do with each access and when. */
typedef struct tide_op_description {
    const char *name; /* for messages and traces; need not be unique */
    tide_pass pass;
    const tide_use *params; /* each param once; none: NULL allowed */
    uint32_t param_count;
    /* each activation once; each has `slices` parts, and slice m of the op uses part m of each */
    const tide_use *activations;
    uint32_t activation_count;
    uint32_t slices;          /* micro-batches; 0 if activation_count is 0 */
    uint64_t workspace_bytes; /* part of the region for this op's kernels; at most 2^50 */
} tide_op_description;

/* Where the optimizer runs and keeps its state. Never changes a bit of the result. */
typedef enum tide_placement {
    /* on the device as far as it fits there beside everything else, the rest on the host */
    TIDE_PLACEMENT_AUTO = 0,
    TIDE_PLACEMENT_HOST,
    TIDE_PLACEMENT_DEVICE,
} tide_placement;

/* Speeds of the machine that the null device imitates; the speed of its link is
 * tide_pool_options.link_bytes_per_second. Each is finite. Work whose speed is 0 takes no time. */
typedef struct tide_machine {
    double flops_per_second;
    double device_bytes_per_second;
    double host_bytes_per_second;
    uint64_t map_ns;
    uint64_t unmap_ns;                /* 0: the same as map_ns */
    double link_out_bytes_per_second; /* device to host; 0: the same as host to device */
    /* memory for slots and region of the GPU that the null device stands for, whose workspaces and least chunks
     * it then has. 0: it stands for the host */
    uint64_t gpu_memory_bytes;
} tide_machine;

/* Checks for tests and debugging, all off by default: turn them on while you write a model. Only the host device
 * has them; a GPU refuses them, and a limit for the link as well. */
typedef struct tide_checks {
    /* check that accesses by different streams are ordered, and that OVERWRITE writes every element; costs
     * host time */
    bool hazard_check;
    bool guard;         /* an access to a slot that no op or task holds any more faults at once */
    bool fault_handler; /* a fault's handler prints the chunk, param, op and kernel before the process ends */
    uint64_t delay_seed;     /* of the random delays before the commands of every stream */
    uint32_t delay_max_us;   /* 0: none; at most TIDE_DELAY_MAX_US */
    uint32_t skip_wait_site; /* leave out the waits at this site, to test the hazard checker */
} tide_checks;

/* A kernel, or a function that launches one. On the host device the stream's thread calls it with `stream`
 * NULL, and it does the work. On a CUDA device the launching thread calls it at once with the cudaStream_t,
 * and it enqueues the work. `arguments` points at a copy of the caller's struct, aligned to 16 bytes, valid
 * during the call only. The function must not block. If it returns a status other than TIDE_OK, the device
 * fails with the message that the function set (tide_fail). */
typedef tide_status (*tide_kernel)(void *stream, const void *arguments);

/* Size of the largest argument struct that a launch copies. */
enum { TIDE_LAUNCH_ARGUMENTS_MAX_BYTES = 256 };

#ifdef __cplusplus
}
#endif

#endif
