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

/* Element types of parameters, gradients and activations. AdamW's state and accumulators are always fp32,
 * and arithmetic is fp32 or better, rounded to the type where a tensor is written; but a GPU's attention also
 * rounds softmax's weights to the type, for its tensor cores. FP16 reaches from 6e-8 to 65504 only: gradients
 * in it need a loss scale.
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

/* As options and files spell it. */
static inline const char *tide_dtype_name(tide_dtype dtype)
{
    return dtype == TIDE_DTYPE_FP32 ? "fp32" : dtype == TIDE_DTYPE_BF16 ? "bf16" : "fp16";
}

/* Every tensor starts on this many bytes, in every space and in the region. */
enum { TIDE_ALIGNMENT_BYTES = 256 };

static inline uint64_t tide_align_up(uint64_t bytes)
{
    return (bytes + TIDE_ALIGNMENT_BYTES - 1) / TIDE_ALIGNMENT_BYTES * TIDE_ALIGNMENT_BYTES;
}

/* Where memory is. */
typedef enum tide_tier {
    TIDE_TIER_DEVICE = 0,
    TIDE_TIER_HOST = 1,
    TIDE_TIER_COUNT,
} tide_tier;

/* Lists of chunks of one kind. PARAM holds `dtype` elements (and, after their last use in backward,
 * gradients); STATE the optimizer's state of each of them; ACTIVATION the activations that outlive an op. */
typedef enum tide_space {
    TIDE_SPACE_PARAM = 0,
    TIDE_SPACE_STATE,
    TIDE_SPACE_ACTIVATION,
    TIDE_SPACE_COUNT,
} tide_space;

enum { TIDE_STATE_PLANES_MAX = 3 };

/* The optimizer's state of a param: planes of numbers, each of `bytes` for 32 elements of the param. AdamW
 * has three of 128 (fp32), 12 bytes an element. */
typedef struct tide_state_format {
    uint32_t planes;
    uint32_t bytes[TIDE_STATE_PLANES_MAX];
} tide_state_format;

/* How a param is trained. Zeroed: with AdamW's state and without weight decay. */
typedef struct tide_param_class {
    bool frozen;             /* it has values alone: no gradient, no state, no update */
    bool decay;              /* the optimizer's weight decay applies to it */
    tide_state_format state; /* no planes: AdamW's; of an optimizer of your own: pool.h, section 10 */
} tide_param_class;

/* A param's numbers: the values that ops read and, unless it is frozen, its state, plane by plane. */
typedef enum tide_value {
    TIDE_VALUE_PARAM = 0, /* in the pool's dtype: MASTER, rounded; of a frozen param all there is */
    TIDE_VALUE_MASTER,    /* the first plane: the param as updates keep it */
    TIDE_VALUE_MOMENTUM,  /* the second */
    TIDE_VALUE_VARIANCE,  /* the third */
    TIDE_VALUE_COUNT,
} tide_value;

static inline const char *tide_value_name(tide_value value)
{
    static const char *const names[TIDE_VALUE_COUNT] = {"param", "master", "momentum", "variance"};
    return (unsigned)value < TIDE_VALUE_COUNT ? names[value] : "unknown";
}

/* The unit at which a computation acquires params: embedding, block, head; each forward, or recompute and
 * backward. */
typedef enum tide_pass {
    TIDE_PASS_FORWARD = 0,
    TIDE_PASS_BACKWARD,
    TIDE_PASS_BOTH, /* a head: loss and gradient in one op */
} tide_pass;

/* How an op accesses a param or its part of an ACTIVATION tensor. */
enum {
    TIDE_ACCESS_READ = 1u << 0, /* needs the values */
    TIDE_ACCESS_GRAD = 1u << 1, /* params of BACKWARD and BOTH ops: adds to the gradient */
    /* activations: overwrites the part; without READ its old content is not needed */
    TIDE_ACCESS_WRITE = 1u << 2,
    TIDE_ACCESS_LAST = 1u << 3, /* activations, beside READ or WRITE: dead afterwards, never copied out */
    /* params, beside GRAD: writes every element of a gradient that is new in the step */
    TIDE_ACCESS_OVERWRITE = 1u << 4,
};

typedef struct tide_use {
    uint32_t tensor; /* a param, or an ACTIVATION tensor */
    uint32_t access; /* TIDE_ACCESS_... */
} tide_use;

/* An op, described once before seal (tide_op_register, which copies all of it). pool.h, section 6, says what each access
 * gives and when. */
typedef struct tide_op_description {
    const char *name; /* for messages and traces; need not be unique */
    tide_pass pass;
    const tide_use *params; /* each param once; none: NULL allowed */
    uint32_t param_count;
    /* each once; every one has `slices` parts, and slice m acquires part m of each */
    const tide_use *activations;
    uint32_t activation_count;
    uint32_t slices;          /* micro-batches; 0 if activation_count is 0 */
    uint64_t workspace_bytes; /* of the region, for this op's kernels; at most 2^50 */
} tide_op_description;

/* Where the optimizer runs and keeps its state. Never changes a bit of the result. */
typedef enum tide_placement {
    TIDE_PLACEMENT_AUTO = 0, /* on the device as far as everything else fits there too, else on the host */
    TIDE_PLACEMENT_HOST,
    TIDE_PLACEMENT_DEVICE,
} tide_placement;

/* A kernel, or the launcher of one. Host device: called on the stream's thread with `stream` NULL, does the
 * work. CUDA device: called at once in the launching thread with the cudaStream_t, enqueues the work.
 * `arguments` points at a copy of the caller's struct, aligned to 16 bytes, valid during the call only. It
 * must not block on anything. A status other than TIDE_OK makes the device fail, with the message the kernel
 * set. */
typedef tide_status (*tide_kernel)(void *stream, const void *arguments);

/* The largest argument struct a launch copies, bytes. */
enum { TIDE_LAUNCH_ARGUMENTS_MAX_BYTES = 256 };

#ifdef __cplusplus
}
#endif

#endif
