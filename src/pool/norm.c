#include "src/pool/norm.h"

#include "src/pool/monitor.h"
#include "src/pool/telemetry.h"

#include <assert.h>
#include <math.h>

tide_status tide_norm_create(tide_norm *norm)
{
    tide_device *device = norm->context->device;
    void *address;
    const tide_status status = device->ops->buffer_create(device, "norm mailbox", TIDE_ALIGNMENT_BYTES,
                                                          &address, &norm->mailbox_object);
    if (status == TIDE_OK)
        norm->mailbox = address;
    return status;
}

bool tide_norm_is_valid(const tide_norm *norm)
{
    const bool under_way = norm->phase == TIDE_NORM_ASKED || norm->phase == TIDE_NORM_PENDING;
    return (!under_way || (norm->number > 0 && !norm->has_result)) &&
           norm->skipped_in_row <= TIDE_SKIPS_MAX && (!norm->has_result || norm->result.loss_scale >= 1);
}

bool tide_norm_is_known(const tide_norm *norm)
{
    return norm->phase == TIDE_NORM_KNOWN;
}

void tide_norm_defer(tide_norm *norm, const tide_step_options *step, uint64_t zero_gradients)
{
    assert(tide_monitor_is_held(NULL));
    assert(tide_norm_is_known(norm) && !norm->has_result);
    norm->phase = TIDE_NORM_DEFERRED;
    norm->step = *step;
    norm->result = (tide_step_result){.zero_gradients = zero_gradients};
}

tide_status tide_norm_ask(tide_norm *norm)
{
    assert(norm->phase == TIDE_NORM_DEFERRED);
    const tide_status status = tide_order_record(norm->order, TIDE_STREAM_COMPUTE, 0, &norm->number);
    if (status == TIDE_OK)
        norm->phase = TIDE_NORM_ASKED;
    assert(tide_norm_is_valid(norm));
    return status;
}

bool tide_norm_lose(tide_norm *norm)
{
    const bool lost = !tide_norm_is_known(norm);
    assert(tide_monitor_is_held(NULL));
    norm->phase = TIDE_NORM_KNOWN;
    return lost;
}

/* --- on the engine's thread --- */

/* Enqueue the copy of the norm to the mailbox. This thread, the engine's, also reads the mailbox, so no later
 * copy overwrites a norm that was not read. No op's work comes between sum and copy, since the next step
 * begins only after the norm is known. */
static tide_status copy_to_host(tide_norm *norm)
{
    const tide_pool_context *context = norm->context;
    const tide_access accesses[] = {tide_reads(TIDE_OBJECT_REGION, context->region_objects[TIDE_REGION_NORM]),
                                    tide_writes(TIDE_OBJECT_BUFFER, norm->mailbox_object)};
    const tide_work work = {.label = "norm to host",
                            .tag = UINT32_MAX,
                            .timer = TIDE_TIMER_NORM,
                            .accesses = accesses,
                            .access_count = 2};
    tide_status status = context->device->ops->copy_bytes(
        context->device, TIDE_STREAM_COMPUTE, &work, norm->mailbox,
        context->region + context->packing->region.scalars_offset, sizeof(double), false);
    if (status == TIDE_OK)
        status = tide_order_record(norm->order, TIDE_STREAM_COMPUTE, 0, &norm->number);
    if (status == TIDE_OK)
        norm->phase = TIDE_NORM_PENDING;
    return status;
}

/* The factor of PyTorch's clip_grad_norm_: max / (norm + 1e-6), at most 1. If max is 0, 1: no clipping. */
static float clip_factor(double norm, double max)
{
    if (!(max > 0))
        return 1.0F;
    const double factor = max / (norm + 1e-6);
    return factor < 1.0 ? (float)factor : 1.0F;
}

static tide_norm_verdict skip(tide_norm *norm)
{
    const double scale = (double)norm->result.loss_scale;
    const bool lower = norm->skipped_in_row > 0 && scale < norm->skipped_scale;
    norm->result.skipped = true;
    norm->skipped_in_row = lower ? 1 : norm->skipped_in_row + 1;
    norm->skipped_scale = scale;
    return TIDE_NORM_SKIP;
}

static tide_norm_verdict judge(tide_norm *norm, double square)
{
    const bool finite = isfinite(square), awaited = tide_norm_is_awaited(norm->context, &norm->step);
    tide_step_result *result = &norm->result;
    tide_norm_verdict verdict = finite ? TIDE_NORM_GO : TIDE_NORM_POISONS;
    norm->has_result = true;
    result->loss_scale = tide_norm_loss_scale(&norm->step);
    result->gradient_norm = sqrt(square) / (double)result->loss_scale;
    if (finite) {
        norm->skipped_in_row = 0;
        result->gradient_scale =
            clip_factor(result->gradient_norm, norm->step.clip_norm) / result->loss_scale;
    } else if (awaited)
        verdict = skip(norm);
    result->skipped_in_row = awaited ? norm->skipped_in_row : 0;
    assert(tide_norm_is_valid(norm));
    return verdict;
}

static tide_status read_mailbox(tide_norm *norm, double *square)
{
    tide_device *device = norm->context->device;
    const tide_access access = tide_reads(TIDE_OBJECT_BUFFER, norm->mailbox_object);
    const tide_work work = {.label = "norm on host", .accesses = &access, .access_count = 1};
    const tide_status status = device->ops->host_touch(device, &work);
    if (status == TIDE_OK)
        *square = device->ops->has_data ? norm->mailbox[0] : 0.0;
    return status;
}

tide_status tide_norm_poll(tide_norm *norm, tide_norm_verdict *verdict)
{
    tide_device *device = norm->context->device;
    tide_status status = TIDE_OK;
    bool arrived = false;
    double square = 0;
    *verdict = TIDE_NORM_WAIT;
    assert(tide_monitor_is_held(NULL));
    /* If the stream has no space, the sum has not ended yet; the engine calls this again when it has. */
    if (norm->phase == TIDE_NORM_ASKED && tide_order_may_enqueue(norm->order, TIDE_STREAM_COMPUTE))
        status = copy_to_host(norm);
    if (status == TIDE_OK && norm->phase == TIDE_NORM_PENDING)
        status = tide_order_query(norm->order, TIDE_STREAM_COMPUTE, norm->number, TIDE_SITE_NORM_COMPUTE,
                                  &arrived);
    if (status != TIDE_OK || !arrived)
        return status;
    status = device->ops->failure(device);
    if (status == TIDE_OK)
        status = read_mailbox(norm, &square);
    if (status != TIDE_OK)
        return status;
    norm->phase = TIDE_NORM_KNOWN;
    *verdict = judge(norm, square);
    return TIDE_OK;
}
