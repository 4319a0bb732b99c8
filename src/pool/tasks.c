/* Tasks: updates, restores and host accesses.
 *
 * A task's chunks are in slots of one tier, pinned there by the manager. No stream waits for the host: copies into its slots
 * have been seen to end before the manager hands a task out, and the engine sees those out of them end. Then it gives the
 * host lane one function that does the whole part of the chunk in one pass. On the device the update stream waits for the
 * slots' marks and gets a few kernels.
 *
 * A job is what the function reads: a table of segments in a buffer that device and host reach. Jobs are few;
 * a task waits for a free one.
 */
#include "src/pool/internal.h"

#include <assert.h>
#include <string.h>

const char tide_label_adam_host[] = "adam host", tide_label_adam_device[] = "adam device";
static const char label_restore[] = "restore", label_access[] = "access", label_zero[] = "zero gradient";

typedef struct job_args {
    tide_job *job;
} job_args;

typedef struct access_args {
    tide_access_request request;
    const tide_kernels *kernels;
    tide_dtype dtype;
    uint64_t chunk_bytes;
} access_args;

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
            zero_slot(job->fresh[i], job->pool->ground.plan.chunk_bytes);
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
    const tide_pool *pool = job->pool;
    if (pool->ground.options.update != NULL)
        return pool->ground.options.update(pool->ground.options.update_context, &job->step, job->update,
                                           job->factors.gradient_scale, job->update_segments,
                                           job->segment_count);
    for (uint32_t i = 0; i < job->zero_count; i++) {
        const tide_adamw_segment *segment = &job->segments[job->zero_segments[i]];
        memset(segment->param, 0, segment->elements * tide_dtype_bytes(pool->ground.options.dtype));
    }
    const tide_adamw_args adamw = {.segments = job->segments,
                                   .segment_count = job->segment_count,
                                   .factors = job->factors,
                                   .dtype = pool->ground.options.dtype};
    return tide_kernels_cpu()->adamw(NULL, &adamw);
}

static tide_status run_update(void *stream, const void *arguments)
{
    (void)stream;
    tide_job *job = ((const job_args *)arguments)->job;
    zero_fresh(job);
    answer(job, update_segments(job));
    return TIDE_OK;
}

static tide_status run_restore(void *stream, const void *arguments)
{
    (void)stream;
    tide_job *job = ((const job_args *)arguments)->job;
    zero_fresh(job);
    const tide_restore_args restore = {.segments = job->segments,
                                       .segment_count = job->segment_count,
                                       .dtype = job->pool->ground.options.dtype};
    answer(job, tide_kernels_cpu()->restore(NULL, &restore));
    return TIDE_OK;
}

static tide_status access_param(const access_args *arguments)
{
    const tide_access_request *request = &arguments->request;
    const size_t element_bytes = tide_dtype_bytes(arguments->dtype);
    char *param = (char *)request->slots[request->set ? 1 : 0];
    if (request->set) {
        /* The 16-bit param follows its master, rounded by the same kernel that restores it. */
        tide_adamw_segment segment = {.param = param + request->param_offset_elements * element_bytes,
                                      .master = (float *)request->slots[0] + request->offset_elements,
                                      .elements = request->count};
        const tide_restore_args restore = {
            .segments = &segment, .segment_count = 1, .dtype = arguments->dtype};
        return arguments->kernels->restore(NULL, &restore);
    }
    const tide_cast_args cast = {.in = param + request->offset_elements * element_bytes,
                                 .out = request->values,
                                 .elements = request->count,
                                 .in_dtype = arguments->dtype,
                                 .out_dtype = TIDE_DTYPE_FP32};
    return arguments->kernels->cast(NULL, &cast);
}

static tide_status run_access(void *stream, const void *arguments)
{
    (void)stream;
    const access_args *access = arguments;
    const tide_access_request *request = &access->request;
    for (int i = 0; i < 2; i++) {
        if (request->fresh[i])
            zero_slot(request->slots[i], access->chunk_bytes);
    }
    if (request->space == TIDE_SPACE_PARAM)
        return access_param(access);
    float *values = (float *)request->slots[0] + request->offset_elements;
    const tide_copy_args copy = {.in = request->set ? request->values : values,
                                 .out = request->set ? values : request->values,
                                 .bytes = request->count * sizeof *values};
    const tide_status status = access->kernels->copy(NULL, &copy);
    const bool rounds = request->set && request->space == TIDE_SPACE_MASTER;
    return status == TIDE_OK && rounds ? access_param(access) : status;
}

/* --- building a job --- */

static tide_job *free_job(tide_pool *pool, uint32_t *number)
{
    for (uint32_t i = 0; i < TIDE_JOBS_MAX; i++) {
        if (!pool->jobs.table[i].busy) {
            *number = i;
            return &pool->jobs.table[i];
        }
    }
    return NULL;
}

bool tide_pool_jobs_busy(const tide_pool *pool)
{
    for (uint32_t i = 0; i < TIDE_JOBS_MAX; i++) {
        if (pool->jobs.table[i].busy)
            return true;
    }
    return false;
}

bool tide_pool_jobs_poll(tide_pool *pool)
{
    bool moved = false;
    for (uint32_t i = 0; i < TIDE_JOBS_MAX; i++) {
        tide_job *job = &pool->jobs.table[i];
        bool passed = false;
        if (!job->busy || job->update_number == 0)
            continue;
        const tide_status status = tide_order_query(&pool->order, TIDE_STREAM_UPDATE, job->update_number,
                                                    TIDE_SITE_JOB_UPDATE, &passed);
        if (status != TIDE_OK)
            tide_monitor_fail(&pool->monitor, status);
        if (!passed)
            continue;
        job->busy = false;
        tide_tracer_chunk(&pool->journal.tracer, "update end", job->chunk, "UPDATING", "HOLD", "update");
        moved = true;
    }
    if (moved) {
        tide_engine_tell_updates(pool);
        tide_monitor_progress(&pool->monitor);
    }
    return moved;
}

static void *slot_of(const tide_pool *pool, const tide_command *command, uint32_t i)
{
    return tide_link_reach(&pool->link, command->tier, command->task[i].slot, command->task[i].chunk);
}

/* Is a task to zero its i-th slot first? Not a host slot that has the zeros it was made of; from now on it has not. */
static bool zeroes(tide_pool *pool, const tide_command *command, uint32_t i)
{
    const tide_task_chunk *item = &command->task[i];
    if (command->tier == TIDE_TIER_DEVICE)
        return item->fresh;
    tide_marks *marks = &pool->order.marks[TIDE_TIER_HOST][item->slot];
    const bool zeroed = item->fresh && marks->filled;
    marks->filled = true;
    return zeroed;
}

/* Where the part's params, masters and states lie. */
typedef struct part_places {
    char *param;
    float *fp32[3]; /* master and states; NULL: none of that */
} part_places;

static part_places places_of(const tide_pool *pool, const tide_command *command)
{
    const uint64_t part_bytes =
        pool->ground.plan.chunk_bytes / sizeof(float) * tide_dtype_bytes(pool->ground.options.dtype);
    part_places places = {.param = (char *)slot_of(pool, command, 0) + command->part * part_bytes};
    for (uint32_t i = 1; i < command->task_count; i++)
        places.fp32[i - 1] = slot_of(pool, command, i);
    return places;
}

static float *offset(float *base, uint64_t elements)
{
    return base == NULL ? NULL : base + elements;
}

static void fill_segment(const tide_pool *pool, tide_job *job, uint32_t i, tide_segment segment,
                         const part_places *places)
{
    const tide_pool_param *param = &pool->model.params[segment.param];
    const uint64_t at = segment.chunk_offset_elements;
    const tide_adamw_segment filled = {.param =
                                           places->param + at * tide_dtype_bytes(pool->ground.options.dtype),
                                       .master = offset(places->fp32[0], at),
                                       .momentum = offset(places->fp32[1], at),
                                       .variance = offset(places->fp32[2], at),
                                       .elements = segment.elements,
                                       .decays = param->decay};
    job->segments[i] = filled;
    if (job->update_segments != NULL)
        job->update_segments[i] = (tide_update_segment){.param = segment.param,
                                                        .first_element = segment.param_offset_elements,
                                                        .elements = segment.elements,
                                                        .values = filled.param,
                                                        .master = filled.master,
                                                        .states = {filled.momentum, filled.variance},
                                                        .zero_gradient = param->zero_gradient,
                                                        .decay = param->decay};
    if (param->zero_gradient)
        job->zero_segments[job->zero_count++] = i;
}

/* Segment tables of the part: params where they lie in the PARAM slot, states where they lie in theirs. */
static tide_status job_fill(tide_pool *pool, const tide_command *command, tide_job *job)
{
    const tide_access access = tide_writes(TIDE_OBJECT_BUFFER, job->segments_object);
    const tide_work work = {
        .label = "fill segments", .tag = command->chunk, .accesses = &access, .access_count = 1};
    const tide_status status = pool->ground.device->ops->host_touch(pool->ground.device, &work);
    if (status != TIDE_OK)
        return status;
    const part_places places = places_of(pool, command);
    const tide_chunk master = command->task[1].chunk;
    job->segment_count = tide_layout_chunk_segments(pool->ground.layout, master);
    job->zero_count = 0;
    assert(job->segment_count <= pool->jobs.segments_max);
    for (uint32_t i = 0; i < job->segment_count; i++)
        fill_segment(pool, job, i, tide_layout_chunk_segment(pool->ground.layout, master, i), &places);
    for (uint32_t i = 0; i < TIDE_TASK_CHUNKS_MAX; i++)
        job->fresh[i] =
            i < command->task_count && zeroes(pool, command, i) ? slot_of(pool, command, i) : NULL;
    job->step = pool->jobs.terms.step;
    job->update = pool->jobs.terms.update;
    job->factors =
        tide_adam_factors_make(job->step.learning_rate, job->step.beta1, job->step.beta2, job->step.epsilon,
                               job->step.weight_decay, job->update, pool->jobs.terms.scale);
    return TIDE_OK;
}

/* --- starting --- */

static bool task_writes(const tide_pool *pool, const tide_command *command, uint32_t i)
{
    if (command->kind == TIDE_COMMAND_ACCESS)
        return pool->jobs.request->set || command->task[i].fresh;
    return command->kind == TIDE_COMMAND_UPDATE || i == 0 || command->task[i].fresh;
}

/* Have the copies that matter to a host task been seen to pass? Those into its slots have: their commands are done. */
static tide_status host_slots_ready(tide_pool *pool, const tide_command *command, bool *ready)
{
    tide_status status = TIDE_OK;
    *ready = true;
    for (uint32_t i = 0; i < command->task_count && *ready && status == TIDE_OK; i++) {
        if (task_writes(pool, command, i))
            status = tide_order_query(
                &pool->order, TIDE_STREAM_IN,
                pool->order.marks[TIDE_TIER_HOST][command->task[i].slot].used[TIDE_STREAM_IN],
                TIDE_SITE_LANE_IN, ready);
    }
    return status;
}

/* What a task touches: its chunks' slots, and the job's table if it has a job. */
static uint32_t task_accesses(const tide_pool *pool, const tide_command *command, const tide_job *job,
                              tide_access accesses[TIDE_TASK_CHUNKS_MAX + 1])
{
    const tide_object_kind kind =
        command->tier == TIDE_TIER_HOST ? TIDE_OBJECT_HOST_SLOT : TIDE_OBJECT_DEVICE_SLOT;
    for (uint32_t i = 0; i < command->task_count; i++)
        accesses[i] = (tide_access){kind, command->task[i].slot, task_writes(pool, command, i)};
    if (job == NULL)
        return command->task_count;
    accesses[command->task_count] = tide_reads(TIDE_OBJECT_BUFFER, job->segments_object);
    return command->task_count + 1;
}

static tide_status launch_on_lane(tide_pool *pool, tide_pool_command *open, const tide_job *job,
                                  const char *label, tide_kernel fn, const void *arguments,
                                  size_t argument_bytes, bool *started)
{
    const tide_command *command = &open->command;
    tide_access accesses[TIDE_TASK_CHUNKS_MAX + 1];
    const uint32_t count = task_accesses(pool, command, job, accesses);
    /* 28 bytes an updated bf16 param (32 fp32); a restore or an access moves less. */
    const double bytes =
        (double)tide_layout_chunk_used_bytes(pool->ground.layout,
                                             command->task[command->task_count > 1 ? 1 : 0].chunk) /
        4 *
        (double)(command->kind == TIDE_COMMAND_UPDATE ? 24 + 2 * tide_dtype_bytes(pool->ground.options.dtype)
                                                      : 4 + tide_dtype_bytes(pool->ground.options.dtype));
    const tide_work work = {
        .label = label, .tag = command->chunk, .bytes = bytes, .accesses = accesses, .access_count = count};
    assert(tide_order_may_enqueue(&pool->order, TIDE_STREAM_HOST));
    tide_status status = pool->ground.device->ops->launch(pool->ground.device, TIDE_STREAM_HOST, &work, fn,
                                                          arguments, argument_bytes);
    *started = status == TIDE_OK;
    if (status == TIDE_OK)
        status = tide_order_record(&pool->order, TIDE_STREAM_HOST, &open->number);
    return status;
}

static tide_status start_on_host(tide_pool *pool, tide_pool_command *open, tide_job *job, bool *started)
{
    const bool update = open->command.kind == TIDE_COMMAND_UPDATE;
    const job_args arguments = {.job = job};
    const tide_status status = job_fill(pool, &open->command, job);
    if (status != TIDE_OK)
        return status;
    return launch_on_lane(pool, open, job, update ? tide_label_adam_host : label_restore,
                          update ? run_update : run_restore, &arguments, sizeof arguments, started);
}

static tide_status launch_zero(tide_pool *pool, const tide_work *work, void *data, uint64_t bytes)
{
    const tide_zero_args zero = {.data = data, .bytes = bytes};
    tide_work labelled = *work;
    labelled.label = label_zero;
    labelled.bytes = (double)bytes;
    return pool->ground.device->ops->launch(pool->ground.device, TIDE_STREAM_UPDATE, &labelled,
                                            pool->ground.kernels->zero, &zero, sizeof zero);
}

static tide_status launch_adamw(tide_pool *pool, const tide_work *work, const tide_job *job)
{
    const tide_adamw_args adamw = {.segments = job->segments,
                                   .segment_count = job->segment_count,
                                   .factors = job->factors,
                                   .dtype = pool->ground.options.dtype};
    tide_work sized = *work;
    sized.bytes = (double)tide_adamw_bytes(&adamw);
    sized.flops = (double)tide_adamw_flops(&adamw);
    return pool->ground.device->ops->launch(pool->ground.device, TIDE_STREAM_UPDATE, &sized,
                                            pool->ground.kernels->adamw, &adamw, sizeof adamw);
}

static tide_status launch_restore(tide_pool *pool, const tide_work *work, const tide_job *job)
{
    const tide_restore_args restore = {
        .segments = job->segments, .segment_count = job->segment_count, .dtype = pool->ground.options.dtype};
    tide_work sized = *work;
    sized.bytes = (double)tide_restore_bytes(&restore);
    return pool->ground.device->ops->launch(pool->ground.device, TIDE_STREAM_UPDATE, &sized,
                                            pool->ground.kernels->restore, &restore, sizeof restore);
}

/* What a job does on the update stream. `started`: some of it is there. Without the lock: a job may be many launches, and
 * sleep for room. */
static tide_status launch_job(tide_pool *pool, const tide_work *work, const tide_job *job, bool update,
                              bool *started)
{
    tide_status status = TIDE_OK;
    for (uint32_t i = 0; i < TIDE_TASK_CHUNKS_MAX && status == TIDE_OK; i++) {
        if (job->fresh[i] == NULL)
            continue;
        status = launch_zero(pool, work, job->fresh[i], pool->ground.plan.chunk_bytes);
        *started = *started || status == TIDE_OK;
    }
    for (uint32_t i = 0; update && i < job->zero_count && status == TIDE_OK; i++) {
        const tide_adamw_segment *segment = &job->segments[job->zero_segments[i]];
        status = launch_zero(pool, work, segment->param,
                             segment->elements * tide_dtype_bytes(pool->ground.options.dtype));
        *started = *started || status == TIDE_OK;
    }
    if (status == TIDE_OK) {
        status = update ? launch_adamw(pool, work, job) : launch_restore(pool, work, job);
        *started = *started || status == TIDE_OK;
    }
    return status;
}

/* The job is busy, its slots are pinned, and only the engine ends either: the lock may be given up meanwhile. */
static tide_status start_on_device(tide_pool *pool, tide_pool_command *open, tide_job *job, bool *started)
{
    const tide_command *command = &open->command;
    const bool update = command->kind == TIDE_COMMAND_UPDATE;
    assert(pool->ground.options.update == NULL);
    tide_access accesses[TIDE_TASK_CHUNKS_MAX + 1];
    const uint32_t count = task_accesses(pool, command, job, accesses);
    const tide_work work = {.label = update ? tide_label_adam_device : label_restore,
                            .tag = command->chunk,
                            .accesses = accesses,
                            .access_count = count};
    tide_needs needs = {0};
    for (uint32_t i = 0; i < command->task_count; i++)
        tide_needs_add(&needs, &pool->order.marks[TIDE_TIER_DEVICE][command->task[i].slot], true);
    tide_status status = job_fill(pool, command, job);
    if (status != TIDE_OK)
        return status;
    tide_order_enqueue_from_engine(&pool->order, TIDE_STREAM_UPDATE);
    status = tide_order_wait(&pool->order, TIDE_STREAM_UPDATE, &needs);
    if (status != TIDE_OK)
        return status;
    tide_monitor_unlock(&pool->monitor);
    status = launch_job(pool, &work, job, update, started);
    tide_monitor_lock(&pool->monitor);
    if (status == TIDE_OK)
        status = tide_order_record(&pool->order, TIDE_STREAM_UPDATE, &job->update_number);
    for (uint32_t i = 0; i < command->task_count && status == TIDE_OK; i++)
        tide_marks_set(&pool->order.marks[TIDE_TIER_DEVICE][command->task[i].slot], TIDE_STREAM_UPDATE,
                       job->update_number, true);
    return status;
}

static tide_status start_access(tide_pool *pool, tide_pool_command *open, bool *started)
{
    tide_access_request *request = pool->jobs.request;
    assert(request != NULL && open->command.task_count <= 2);
    for (uint32_t i = 0; i < open->command.task_count; i++) {
        request->slots[i] = slot_of(pool, &open->command, i);
        request->fresh[i] = zeroes(pool, &open->command, i);
    }
    const access_args arguments = {.request = *request,
                                   .kernels = tide_kernels_cpu(),
                                   .dtype = pool->ground.options.dtype,
                                   .chunk_bytes = pool->ground.plan.chunk_bytes};
    return launch_on_lane(pool, open, NULL, label_access, run_access, &arguments, sizeof arguments, started);
}

tide_status tide_pool_task_start(tide_pool *pool, tide_pool_command *open, bool *started)
{
    const tide_command *command = &open->command;
    tide_status status = TIDE_OK;
    bool ready = true;
    if (command->tier == TIDE_TIER_HOST)
        status = host_slots_ready(pool, command, &ready);
    else
        ready = pool->ground.device->ops->room(pool->ground.device, TIDE_STREAM_UPDATE,
                                               false); /* else a job's end there brings the engine back */
    if (status != TIDE_OK || !ready)
        return status;
    if (command->kind == TIDE_COMMAND_ACCESS)
        return start_access(pool, open, started);
    tide_job *job = free_job(pool, &open->job);
    if (job == NULL)
        return TIDE_OK;
    job->busy = true;
    job->chunk = command->chunk;
    job->update_number = 0;
    job->status = TIDE_OK;
    status = command->tier == TIDE_TIER_HOST ? start_on_host(pool, open, job, started)
                                             : start_on_device(pool, open, job, started);
    if (status != TIDE_OK) {
        job->busy = false;
        open->job = UINT32_MAX;
        return status;
    }
    tide_tracer_chunk(&pool->journal.tracer, command->kind == TIDE_COMMAND_UPDATE ? "update begin" : "state",
                      command->chunk, "HOLD_AFTER_BWD", "UPDATING", tide_reason_name(command->reason));
    return TIDE_OK;
}

tide_status tide_pool_task_status(const tide_pool *pool, const tide_pool_command *open)
{
    if (open->job == UINT32_MAX)
        return TIDE_OK;
    const tide_job *job = &pool->jobs.table[open->job];
    if (job->status == TIDE_OK)
        return TIDE_OK;
    return tide_fail(job->status, "%s of param chunk %u: %s", tide_command_kind_name(open->command.kind),
                     tide_layout_chunk_index(pool->ground.layout, open->command.chunk), job->message);
}

void tide_pool_task_finish(tide_pool *pool, tide_pool_command *open)
{
    if (open->command.kind == TIDE_COMMAND_ACCESS || open->job == UINT32_MAX)
        return;
    tide_job *job = &pool->jobs.table[open->job];
    if (job->update_number != 0)
        return; /* the update stream has it; tide_pool_jobs_poll sees its end */
    job->busy = false;
    tide_tracer_chunk(&pool->journal.tracer,
                      open->command.kind == TIDE_COMMAND_UPDATE ? "update end" : "state", open->command.chunk,
                      "UPDATING", "HOLD", tide_reason_name(open->command.reason));
}
