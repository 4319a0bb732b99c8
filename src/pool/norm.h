/* The gradient norm of a step: the device sums it, the engine reads it and decides whether the step's updates
 * may run.
 *
 * With clipping, and in fp16, the updates wait for the norm. When the norm is there, norm.c computes the clip
 * factor from it, once, in float64. If the norm is not finite, the engine skips the step (restores the params
 * from MASTER). Otherwise the updates already run during backward; a norm that is not finite then means that
 * params may be wrong: the engine poisons the pool.
 *
 * Loss scale. The stored gradients are the true ones times the loss scale. The norm is divided by it here,
 * gradients in the update, whose gradient factor includes the division. The loss scale is a power of two, so
 * dividing is exact: where nothing over- or underflows, every loss scale gives the same bits.
 *
 * Skipped in a row. A dynamic loss scale begins high and falls by half with each overflow, 16 times from
 * 65536 to 1; such skips are no reason to end training. So a step skipped at a lower scale than the last
 * skipped step restarts the count of skipped steps at 1. The count reaches ten only if the scale stays: at
 * its least value, or fixed. (PyTorch's and Megatron-LM's scalers never end a run; Megatron-LM's keeps its
 * least scale.)
 *
 * Owns the mailbox, the norm's copy to it, and the step's result; all [lock]. The engine (giving up) and
 * values.c (loading) set `skipped_in_row` to 0. Calls only order and the device; the engine acts on the
 * verdict.
 */
#ifndef TIDE_POOL_NORM_H
#define TIDE_POOL_NORM_H

#include "src/pool/context.h"
#include "src/pool/order.h"

enum {
    TIDE_SKIPS_MAX = 10
}; /* a run ends after so many skips in a row, none of them at a lower loss scale than the one before */

typedef enum tide_norm_phase {
    TIDE_NORM_KNOWN = 0, /* no norm is awaited: it is known, or lost */
    TIDE_NORM_DEFERRED,  /* a training step has ended; its sum is not enqueued yet */
    TIDE_NORM_ASKED,     /* the kernel that sums the norm is enqueued */
    TIDE_NORM_PENDING,   /* the copy of the norm to the host is enqueued, too */
} tide_norm_phase;

typedef enum tide_norm_verdict {
    TIDE_NORM_WAIT = 0, /* no verdict yet */
    TIDE_NORM_GO,       /* the updates may begin, or have begun */
    TIDE_NORM_SKIP,     /* the engine drops the updates */
    TIDE_NORM_POISONS,  /* updates have begun that should not have: the pool is poisoned */
} tide_norm_verdict;

typedef struct tide_norm {
    const tide_pool_context *context;
    tide_order *order;
    double *mailbox;         /* [fixed] */
    uint32_t mailbox_object; /* [fixed] */
    tide_norm_phase phase;
    uint64_t number;         /* the compute stream's submission with the sum, later with the copy */
    tide_step_options step;  /* the training step that ended last */
    tide_step_result result; /* the result of that step */
    bool has_result;         /* `result` is valid: from the verdict until a step begins or is given up */
    uint32_t skipped_in_row; /* reset when a step is given up or a state is loaded */
    double skipped_scale;    /* loss scale of the last step skipped */
} tide_norm;

/* Do a step's updates wait for its norm? They do with clipping, and always in fp16, since its gradients may
 * overflow. */
static inline bool tide_norm_is_awaited(const tide_pool_context *context, const tide_step_options *step)
{
    return step->clip_norm > 0 || context->packing->description->dtype == TIDE_DTYPE_FP16;
}

static inline float tide_norm_loss_scale(const tide_step_options *step)
{
    return step->loss_scale > 0 ? step->loss_scale : 1;
}

/* Make the mailbox, the host buffer to which the device copies the norm. The device frees it at close.
 * NO_MEMORY, BUDGET. */
tide_status tide_norm_create(tide_norm *norm);

/* --- [lock] --- */

/* A training step has ended; the caller will enqueue the norm's sum next. */
void tide_norm_defer(tide_norm *norm, const tide_step_options *step, uint64_t zero_gradients);
/* The caller has enqueued the sum, as the last work of the compute stream. */
tide_status tide_norm_ask(tide_norm *norm);
/* If the sum is enqueued and the stream has space, enqueue the copy to the host; if the copy has arrived,
 * judge the norm. On failure `verdict` is WAIT. The engine's thread. */
tide_status tide_norm_poll(tide_norm *norm, tide_norm_verdict *verdict);
/* Is no norm awaited? */
bool tide_norm_is_known(const tide_norm *norm);
/* Stop waiting for the norm. Returns whether one was awaited. */
bool tide_norm_lose(tide_norm *norm);
bool tide_norm_is_valid(const tide_norm *norm);

#endif
