/* The gradient norm: the device sums it, the engine reads it once a step, and it decides about the step's
 * updates.
 *
 * With clipping, and in fp16, the updates wait for the norm. Then the norm computes the clip factor here,
 * once, in float64, and the engine skips a step whose norm is not finite (it restores the params from
 * MASTER). Otherwise the updates already run during backward; a norm that is not finite then means that
 * params may be wrong: the engine poisons the pool.
 *
 * Loss scale. Stored gradients are too large by the loss scale, a power of two, so dividing by it is exact:
 * the norm does so here, an update in the factor by which it multiplies gradients anyway. Where nothing over-
 * or underflows, every loss scale gives the same bits.
 *
 * Skipped in a row. A dynamic loss scale begins high and falls by half with each overflow, 16 times from
 * 65536 to 1; those skips do not mean that training cannot go on. So a step that is skipped at a lower scale
 * than the step skipped before it restarts the count. Ten in a row are then ten steps without a lower scale,
 * at the least scale or with a fixed one. (PyTorch's scaler goes on for ever; Megatron-LM's stops falling at
 * its least scale and goes on.)
 *
 * Owns the mailbox, the norm's copy to it, and the step's result; all [lock]. Giving up and loading set
 * `skipped_in_row` to 0 (engine, values). Calls order and the device alone; the engine acts on the verdict.
 */
#ifndef TIDE_POOL_NORM_H
#define TIDE_POOL_NORM_H

#include "src/pool/context.h"
#include "src/pool/order.h"

enum {
    TIDE_SKIPS_MAX = 10
}; /* steps skipped in a row, none at a lower loss scale than before, that end a run */

typedef enum tide_norm_phase {
    TIDE_NORM_KNOWN = 0, /* no norm is awaited: it is known, or lost */
    TIDE_NORM_DEFERRED,  /* a training step has ended, nothing is enqueued yet */
    TIDE_NORM_ASKED,     /* the sum is enqueued */
    TIDE_NORM_PENDING,   /* the copy to the host, too */
} tide_norm_phase;

typedef enum tide_norm_verdict {
    TIDE_NORM_WAIT = 0, /* no verdict yet */
    TIDE_NORM_GO,       /* the updates may begin, or have begun */
    TIDE_NORM_SKIP,     /* the engine drops the updates */
    TIDE_NORM_POISONS,  /* the pool is poisoned: no update should have begun */
} tide_norm_verdict;

typedef struct tide_norm {
    const tide_pool_context *context;
    tide_order *order;
    double *mailbox;         /* [fixed] */
    uint32_t mailbox_object; /* [fixed] */
    tide_norm_phase phase;
    uint64_t number;         /* submission of the compute stream with the sum, then the copy */
    tide_step_options step;  /* the training step that ended last */
    tide_step_result result; /* the result of that step */
    bool has_result;         /* `result` counts: from its norm until the next begins or it is given up */
    uint32_t skipped_in_row; /* 0 again when a step is given up or a state is loaded */
    double skipped_scale;    /* loss scale of the last step skipped */
} tide_norm;

/* Do a step's updates wait for its norm? With clipping, and always in fp16, whose gradients overflow now and
 * then. */
static inline bool tide_norm_is_awaited(const tide_pool_context *context, const tide_step_options *step)
{
    return step->clip_norm > 0 || context->packing->description->dtype == TIDE_DTYPE_FP16;
}

static inline float tide_norm_loss_scale(const tide_step_options *step)
{
    return step->loss_scale > 0 ? step->loss_scale : 1;
}

/* Make the mailbox; the device frees it at close. NO_MEMORY, BUDGET. */
tide_status tide_norm_create(tide_norm *norm);

/* --- [lock] --- */

/* A training step has ended; its sum will be enqueued. */
void tide_norm_defer(tide_norm *norm, const tide_step_options *step, uint64_t zero_gradients);
/* The caller has enqueued the sum, as the last work of the compute stream. */
tide_status tide_norm_ask(tide_norm *norm);
/* If the sum is enqueued and the stream has space, enqueue the copy to the host; if the copy has arrived,
 * judge the norm. On failure `verdict` is WAIT. The engine's thread. */
tide_status tide_norm_poll(tide_norm *norm, tide_norm_verdict *verdict);
/* Is no norm awaited? */
bool tide_norm_is_known(const tide_norm *norm);
/* Give up the awaited norm. Returns whether there was one. */
bool tide_norm_lose(tide_norm *norm);
bool tide_norm_is_valid(const tide_norm *norm);

#endif
