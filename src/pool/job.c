#include "src/pool/job.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

static const char label_zero[] = "zero gradient";

tide_status tide_job_create(tide_job *job, const tide_ground *ground, uint32_t segments_max,
                            tide_adamw_segment *segments)
{
    tide_device *device = ground->device;
    const bool updates = ground->options.update != NULL;
    void *address;
    *job = (tide_job){.ground = ground, .zero_segments = calloc(segments_max, sizeof *job->zero_segments)};
    if (updates)
        job->update_segments = calloc(segments_max, sizeof *job->update_segments);
    if (job->zero_segments == NULL || (updates && job->update_segments == NULL))
        return tide_fail(TIDE_ERROR_NO_MEMORY, "pool: no memory for %u segments", segments_max);
    const tide_status status = device->ops->buffer_create(
        device, "update segments", segments_max * sizeof *job->segments, &address, &job->segments_object);
    if (status == TIDE_OK)
        job->segments = segments != NULL ? segments : address;
    return status;
}

void tide_job_destroy(tide_job *job)
{
    free(job->update_segments);
    free(job->zero_segments);
    *job = (tide_job){0};
}

/* --- functions on the host lane --- */

/* By all threads of the lane; it can't fail. */
static void zero_slot(void *slot, uint64_t bytes)
{
    const tide_zero_args zero = {.data = slot, .bytes = bytes};
    (void)tide_kernels_cpu()->zero(NULL, &zero);
}

static void zero_fresh(const tide_job *job)
{
    for (int i = 0; i < TIDE_TASK_CHUNKS_MAX; i++) {
        if (job->fresh[i] != NULL)
            zero_slot(job->fresh[i], job->ground->plan.chunk_bytes);
    }
}

/* Keep what the lane has to say; the message is the lane's thread's. */
static void answer(tide_job *job, tide_status status)
{
    job->status = status;
    job->message[0] = 0;
    if (status == TIDE_OK)
        return;
    strncpy(job->message, tide_message(), sizeof job->message - 1);
    job->message[sizeof job->message - 1] = 0;
}

static tide_status update_segments(const tide_job *job)
{
    assert(job->segments != NULL && job->zero_count <= job->segment_count);
    const tide_pool_options *options = &job->ground->options;
    if (options->update != NULL)
        return options->update(options->update_context, &job->terms.step, job->terms.update,
                               job->factors.gradient_scale, job->update_segments, job->segment_count);
    for (uint32_t i = 0; i < job->zero_count; i++) {
        const tide_adamw_segment *segment = &job->segments[job->zero_segments[i]];
        memset(segment->param, 0, segment->elements * tide_dtype_bytes(options->dtype));
    }
    const tide_adamw_args adamw = {.segments = job->segments,
                                   .segment_count = job->segment_count,
                                   .factors = job->factors,
                                   .dtype = options->dtype};
    return tide_kernels_cpu()->adamw(NULL, &adamw);
}

tide_status tide_job_run_update(void *stream, const void *arguments)
{
    (void)stream;
    tide_job *job = ((const tide_job_args *)arguments)->job;
    assert(job->busy && job->terms.update > 0);
    zero_fresh(job);
    answer(job, update_segments(job));
    return TIDE_OK;
}

tide_status tide_job_run_restore(void *stream, const void *arguments)
{
    (void)stream;
    tide_job *job = ((const tide_job_args *)arguments)->job;
    assert(job->busy);
    zero_fresh(job);
    const tide_restore_args restore = {
        .segments = job->segments, .segment_count = job->segment_count, .dtype = job->ground->options.dtype};
    answer(job, tide_kernels_cpu()->restore(NULL, &restore));
    return TIDE_OK;
}

static tide_status access_param(const tide_access_args *arguments)
{
    const tide_access_request *request = &arguments->request;
    const tide_dtype dtype = arguments->ground->options.dtype;
    const size_t element_bytes = tide_dtype_bytes(dtype);
    char *param = (char *)request->slots[request->set ? 1 : 0];
    if (request->set) {
        /* The 16-bit param follows its master, rounded by the same kernel that restores it. */
        tide_adamw_segment segment = {.param = param + request->param_offset_elements * element_bytes,
                                      .master = (float *)request->slots[0] + request->offset_elements,
                                      .elements = request->count};
        const tide_restore_args restore = {.segments = &segment, .segment_count = 1, .dtype = dtype};
        return tide_kernels_cpu()->restore(NULL, &restore);
    }
    const tide_cast_args cast = {.in = param + request->offset_elements * element_bytes,
                                 .out = request->values,
                                 .elements = request->count,
                                 .in_dtype = dtype,
                                 .out_dtype = TIDE_DTYPE_FP32};
    return tide_kernels_cpu()->cast(NULL, &cast);
}

tide_status tide_job_run_access(void *stream, const void *arguments)
{
    (void)stream;
    const tide_access_args *access = arguments;
    const tide_access_request *request = &access->request;
    assert(request->slots[0] != NULL && request->count > 0);
    for (int i = 0; i < 2; i++) {
        if (request->fresh[i])
            zero_slot(request->slots[i], access->ground->plan.chunk_bytes);
    }
    if (request->space == TIDE_SPACE_PARAM)
        return access_param(access);
    float *values = (float *)request->slots[0] + request->offset_elements;
    const tide_copy_args copy = {.in = request->set ? request->values : values,
                                 .out = request->set ? values : request->values,
                                 .bytes = request->count * sizeof *values};
    const tide_status status = tide_kernels_cpu()->copy(NULL, &copy);
    const bool rounds = request->set && request->space == TIDE_SPACE_MASTER;
    return status == TIDE_OK && rounds ? access_param(access) : status;
}

/* --- kernels on the update stream --- */

static tide_status launch_zero(const tide_job *job, const tide_work *work, void *data, uint64_t bytes)
{
    tide_device *device = job->ground->device;
    const tide_zero_args zero = {.data = data, .bytes = bytes};
    tide_work labelled = *work;
    labelled.label = label_zero;
    labelled.meter = 0;
    labelled.bytes = (double)bytes;
    return device->ops->launch(device, TIDE_STREAM_UPDATE, &labelled, job->ground->kernels->zero, &zero,
                               sizeof zero);
}

static tide_status launch_adamw(const tide_job *job, const tide_work *work)
{
    tide_device *device = job->ground->device;
    const tide_adamw_args adamw = {.segments = job->segments,
                                   .segment_count = job->segment_count,
                                   .factors = job->factors,
                                   .dtype = job->ground->options.dtype};
    tide_work sized = *work;
    sized.bytes = (double)tide_adamw_bytes(&adamw);
    sized.flops = (double)tide_adamw_flops(&adamw);
    return device->ops->launch(device, TIDE_STREAM_UPDATE, &sized, job->ground->kernels->adamw, &adamw,
                               sizeof adamw);
}

static tide_status launch_restore(const tide_job *job, const tide_work *work)
{
    tide_device *device = job->ground->device;
    const tide_restore_args restore = {
        .segments = job->segments, .segment_count = job->segment_count, .dtype = job->ground->options.dtype};
    tide_work sized = *work;
    sized.bytes = (double)tide_restore_bytes(&restore);
    return device->ops->launch(device, TIDE_STREAM_UPDATE, &sized, job->ground->kernels->restore, &restore,
                               sizeof restore);
}

tide_status tide_job_launch(const tide_job *job, const tide_work *work, bool update, bool *started)
{
    tide_status status = TIDE_OK;
    for (uint32_t i = 0; i < TIDE_TASK_CHUNKS_MAX && status == TIDE_OK; i++) {
        if (job->fresh[i] == NULL)
            continue;
        status = launch_zero(job, work, job->fresh[i], job->ground->plan.chunk_bytes);
        *started = *started || status == TIDE_OK;
    }
    for (uint32_t i = 0; update && i < job->zero_count && status == TIDE_OK; i++) {
        const tide_adamw_segment *segment = &job->segments[job->zero_segments[i]];
        status = launch_zero(job, work, segment->param,
                             segment->elements * tide_dtype_bytes(job->ground->options.dtype));
        *started = *started || status == TIDE_OK;
    }
    if (status == TIDE_OK) {
        status = update ? launch_adamw(job, work) : launch_restore(job, work);
        *started = *started || status == TIDE_OK;
    }
    return status;
}
