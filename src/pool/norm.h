/* The gradient norm: summed on the device, read once a step, and what it says of the step's updates.
 *
 * With clipping, and in fp16, the updates wait for it: the clip factor is computed here, once, in float64, and a step whose
 * norm is not finite is skipped (params rewritten from MASTER). Otherwise the updates run during backward already; a norm that
 * is not finite then means that params may be spoilt: the pool is poisoned.
 *
 * Loss scale. Stored gradients are the loss scale times too large. It is a power of two, so taking it out again is exact: of
 * the norm here, of the gradients in the factor that an update multiplies them by anyway. Where nothing over- or underflows,
 * any loss scale gives the same bits.
 *
 * Skipped in a row. A dynamic loss scale begins high and falls by half with each overflow, 16 times from 65536 to 1; those
 * steps do not say that training can't go on. So a step that is skipped at a lower scale than the one skipped before it begins
 * the count anew: ten in a row are ten that found no lower scale, at the least scale there is or with a scale that does not
 * move. (PyTorch's scaler has no end; Megatron-LM's stops falling at its least scale and goes on.)
 *
 * Owns the mailbox, the way of the norm there, and the step's result; all [lock]. Who gives up or loads sets `skipped_in_row`
 * to 0 (engine, values). Calls order and the device, and nobody who would act on it: the engine does.
 */
#ifndef TIDE_POOL_NORM_H
#define TIDE_POOL_NORM_H

#include "src/pool/order.h"
#include "src/pool/sealed_context.h"

enum {
    TIDE_SKIPS_MAX = 10
}; /* skipped steps in a row, none at a lower loss scale than the one before, that end a run */

typedef enum tide_norm_phase {
    TIDE_NORM_KNOWN = 0, /* or lost: none is on its way */
    TIDE_NORM_DEFERRED,  /* a training step has ended, nothing is enqueued yet */
    TIDE_NORM_ASKED,     /* its sum is enqueued */
    TIDE_NORM_PENDING,   /* its copy to the host, too */
} tide_norm_phase;

typedef enum tide_norm_verdict {
    TIDE_NORM_WAIT = 0, /* nothing yet */
    TIDE_NORM_GO,       /* updates may go, or go already */
    TIDE_NORM_SKIP,     /* none of them may */
    TIDE_NORM_TORN,     /* none might have */
} tide_norm_verdict;

typedef struct tide_norm {
    const tide_sealed_context *context;
    tide_order *order;
    double *mailbox;         /* [fixed] */
    uint32_t mailbox_object; /* [fixed] */
    tide_norm_phase phase;
    uint64_t number;         /* piece of the compute stream: the sum, then its copy */
    tide_step_options step;  /* the training step that ended last */
    tide_step_result result; /* of that step, */
    bool has_result;         /* once its norm is known, until another begins or it is given up */
    uint32_t skipped_in_row; /* whoever gives up or loads begins anew */
    double skipped_scale;    /* loss scale of the last step skipped */
} tide_norm;

/* Do a step's updates wait for its norm? With clipping; and always in fp16, where gradients overflow now and then. */
static inline bool tide_norm_is_awaited(const tide_sealed_context *context, const tide_step_options *step)
{
    return step->clip_norm > 0 || context->options.dtype == TIDE_DTYPE_FP16;
}

static inline float tide_norm_loss_scale(const tide_step_options *step)
{
    return step->loss_scale > 0 ? step->loss_scale : 1;
}

/* Makes the mailbox. NO_MEMORY, BUDGET. The device's close frees it. */
tide_status tide_norm_create(tide_norm *norm);

/* --- [lock] --- */

/* A training step has ended; the sum follows. */
void tide_norm_defer(tide_norm *norm, const tide_step_options *step, uint64_t zero_gradients);
/* Its sum is all that the compute stream has been given so far. */
tide_status tide_norm_ask(tide_norm *norm);
/* If the sum is there and the stream has room: copy it; if that has arrived: judge. On failure `verdict` is WAIT, or what it
 * says has been judged and cannot be done. The engine's thread. */
tide_status tide_norm_poll(tide_norm *norm, tide_norm_verdict *verdict);
/* Is none on its way? */
bool tide_norm_is_known(const tide_norm *norm);
/* What was on its way is lost. Returns whether anything was. */
bool tide_norm_lose(tide_norm *norm);
bool tide_norm_is_valid(const tide_norm *norm);

#endif
