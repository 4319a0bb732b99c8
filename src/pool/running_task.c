/* The work of one task: the functions that run on the host executor, and the launches of kernels on the
 * update stream. */
#include "src/pool/running_tasks.h"

#include "kernels/kernels.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

tide_status tide_running_task_create(tide_running_task *running, const tide_pool_context *context,
                                     uint32_t segments_max)
{
    tide_device *device = context->device;
    const bool has_data = context->factory.has_data;
    void *address;
    *running =
        (tide_running_task){.context = context,
                            .update_segments = calloc(segments_max, sizeof *running->update_segments),
                            .segments = has_data ? NULL : calloc(segments_max, sizeof *running->segments)};
    if (running->update_segments == NULL || (!has_data && running->segments == NULL))
        return tide_fail(TIDE_ERROR_NO_MEMORY, "pool: no memory for %u segments", segments_max);
    const tide_status status =
        device->ops->buffer_create(device, "update segments", segments_max * sizeof *running->segments,
                                   &address, &running->segments_object);
    if (status == TIDE_OK && has_data)
        running->segments = address; /* the null device makes no memory for the buffer */
    return status;
}

void tide_running_task_destroy(tide_running_task *running)
{
    free(running->update_segments);
    if (running->context != NULL && !running->context->factory.has_data)
        free(running->segments);
    *running = (tide_running_task){0};
}

static tide_adamw_args adamw_args(const tide_running_task *running)
{
    const tide_step_options *step = &running->terms.step;
    return (tide_adamw_args){.segments = running->segments,
                             .segment_count = running->segment_count,
                             .factors = tide_adam_factors_make(step->learning_rate, step->beta1, step->beta2,
                                                               step->epsilon, step->weight_decay,
                                                               running->terms.update, running->terms.scale),
                             .dtype = running->context->packing->description->dtype};
}

static tide_restore_args restore_args(const tide_running_task *running)
{
    return (tide_restore_args){.segments = running->segments,
                               .segment_count = running->segment_count,
                               .dtype = running->context->packing->description->dtype};
}

/* --- functions on the host executor --- */

/* Zero the slot with all threads of the executor; this cannot fail. */
static void zero_slot(void *slot, uint64_t bytes)
{
    const tide_zero_args zero = {.data = slot, .bytes = bytes};
    (void)tide_kernels_cpu()->zero(NULL, &zero);
}

/* Store the task's status and message, since the message is this thread's and the engine reads it on its
 * own. */
static void answer(tide_running_task *running, tide_status status)
{
    running->status = status;
    snprintf(running->message, sizeof running->message, "%s", status == TIDE_OK ? "" : tide_message());
}

static tide_status update(const tide_running_task *running)
{
    const tide_pool_options *options = &running->context->options;
    assert(running->busy && running->terms.update > 0);
    if (options->update != NULL)
        return options->update(options->update_context, &running->terms.step, running->terms.update,
                               running->terms.scale, running->update_segments, running->segment_count);
    for (uint32_t i = 0; i < running->segment_count; i++) {
        const tide_update_segment *segment = &running->update_segments[i];
        if (segment->zero_gradient)
            memset(segment->values, 0, segment->elements * tide_context_element_bytes(running->context));
    }
    const tide_adamw_args adamw = adamw_args(running);
    return tide_kernels_cpu()->adamw(NULL, &adamw);
}

static tide_status restore(const tide_running_task *running)
{
    const tide_restore_args rounded = restore_args(running);
    if (!running->copies)
        return tide_kernels_cpu()->restore(NULL, &rounded);
    tide_status status = TIDE_OK;
    for (uint32_t i = 0; i < running->segment_count && status == TIDE_OK; i++) {
        const tide_update_segment *segment = &running->update_segments[i];
        const tide_copy_args copy = {.in = segment->state[0],
                                     .out = segment->values,
                                     .bytes =
                                         segment->elements * tide_context_element_bytes(running->context)};
        status = tide_kernels_cpu()->copy(NULL, &copy);
    }
    return status;
}

tide_status tide_running_task_run(void *stream, const void *address_of_running)
{
    (void)stream;
    tide_running_task *running = *(tide_running_task *const *)address_of_running;
    assert(running->busy && running->segments != NULL);
    for (int i = 0; i < TIDE_TASK_CHUNKS_MAX; i++) {
        if (running->needs_zero[i] != NULL)
            zero_slot(running->needs_zero[i], running->context->plan.chunk_bytes);
    }
    answer(running, running->updates ? update(running) : restore(running));
    return TIDE_OK;
}

/* Convert the stored values to the caller's dtype. */
static tide_status get_values(const tide_access_request *request, const void *kept)
{
    const tide_cast_args cast = {.in = kept,
                                 .out = request->values,
                                 .elements = request->count,
                                 .in_dtype = request->dtype,
                                 .out_dtype = request->values_dtype};
    return tide_kernels_cpu()->cast(NULL, &cast);
}

static tide_status set_values(const tide_access_request *request, void *kept)
{
    tide_place_args place = {.in = request->values,
                             .out = {kept},
                             .elements = request->count,
                             .in_dtype = request->values_dtype,
                             .out_dtype = {request->dtype}};
    if (request->value == TIDE_VALUE_MASTER) {
        place.out[1] = (char *)request->slots[1] + request->param_offset_bytes;
        place.out_dtype[1] = request->context->packing->description->dtype;
    }
    tide_kernels_cpu_place(&place);
    return TIDE_OK;
}

tide_status tide_running_task_run_access(void *stream, const void *access_request)
{
    (void)stream;
    const tide_access_request *request = access_request;
    assert(request->slots[0] != NULL && request->count > 0);
    for (int i = 0; i < 2; i++) {
        if (request->needs_zero[i])
            zero_slot(request->slots[i], request->context->plan.chunk_bytes);
    }
    void *kept = (char *)request->slots[0] + request->offset_bytes;
    return request->set ? set_values(request, kept) : get_values(request, kept);
}

/* --- kernels on the update stream --- */

static tide_status launch(const tide_running_task *running, const tide_work *work, tide_kernel kernel,
                          const void *arguments, size_t argument_bytes, bool *started)
{
    tide_device *device = running->context->device;
    const tide_status status =
        device->ops->launch(device, TIDE_STREAM_UPDATE, work, kernel, arguments, argument_bytes);
    *started = *started || status == TIDE_OK;
    return status;
}

static tide_status launch_zero(const tide_running_task *running, const tide_work *work, void *data,
                               uint64_t bytes, bool *started)
{
    const tide_zero_args zero = {.data = data, .bytes = bytes};
    tide_work labelled = *work;
    labelled.label = "zero gradient";
    labelled.timer = TIDE_TIMER_ZERO;
    labelled.bytes = (double)bytes;
    return launch(running, &labelled, running->context->kernels->zero, &zero, sizeof zero, started);
}

tide_status tide_running_task_launch(const tide_running_task *running, const tide_work *work, bool *started)
{
    const tide_kernels *kernels = running->context->kernels;
    tide_work sized = *work;
    tide_status status = TIDE_OK;
    for (uint32_t i = 0; i < TIDE_TASK_CHUNKS_MAX && status == TIDE_OK; i++) {
        if (running->needs_zero[i] != NULL)
            status = launch_zero(running, work, running->needs_zero[i], running->context->plan.chunk_bytes,
                                 started);
    }
    for (uint32_t i = 0; running->updates && i < running->segment_count && status == TIDE_OK; i++) {
        const tide_update_segment *segment = &running->update_segments[i];
        if (segment->zero_gradient)
            status = launch_zero(running, work, segment->values,
                                 segment->elements * tide_context_element_bytes(running->context), started);
    }
    if (status != TIDE_OK)
        return status;
    if (running->updates) {
        const tide_adamw_args adamw = adamw_args(running);
        sized.bytes = (double)tide_adamw_bytes(&adamw);
        sized.flops = (double)tide_adamw_flops(&adamw);
        return launch(running, &sized, kernels->adamw, &adamw, sizeof adamw, started);
    }
    const tide_restore_args restore = restore_args(running);
    sized.bytes = (double)tide_restore_bytes(&restore);
    return launch(running, &sized, kernels->restore, &restore, sizeof restore, started);
}
