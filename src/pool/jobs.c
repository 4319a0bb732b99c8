#include "src/pool/jobs.h"

#include <assert.h>
#include <stdlib.h>

/* --- the table --- */

static uint32_t segments_max(const tide_layout *layout)
{
    uint32_t most = 1, first;
    for (tide_chunk chunk = 0; chunk < tide_layout_space_chunks(layout, TIDE_SPACE_PARAM); chunk++)
        for (uint32_t i = 0; i < tide_layout_pieces(layout, chunk); i++) {
            const tide_piece piece = tide_layout_piece(layout, chunk, i);
            const uint32_t count = tide_layout_piece_segments(layout, &piece, &first);
            most = most < count ? count : most;
        }
    return most;
}

uint64_t tide_jobs_table_bytes(const tide_layout *layout)
{
    return segments_max(layout) * sizeof(tide_adamw_segment);
}

tide_status tide_jobs_create(tide_jobs *jobs)
{
    tide_status status = TIDE_OK;
    jobs->segments_max = segments_max(jobs->ground->layout);
    jobs->zero_gradient = calloc(jobs->model->param_count, sizeof *jobs->zero_gradient);
    if (jobs->zero_gradient == NULL)
        return tide_fail(TIDE_ERROR_NO_MEMORY, "pool: no memory for %u params", jobs->model->param_count);
    for (uint32_t i = 0; i < TIDE_JOBS_MAX && status == TIDE_OK; i++)
        status = tide_job_create(&jobs->table[i], jobs->ground, jobs->segments_max);
    return status;
}

void tide_jobs_destroy(tide_jobs *jobs)
{
    for (uint32_t i = 0; i < TIDE_JOBS_MAX; i++)
        tide_job_destroy(&jobs->table[i]);
    free(jobs->zero_gradient);
    jobs->zero_gradient = NULL;
}

/* What a busy job reads is in its table. */
bool tide_jobs_is_valid(const tide_jobs *jobs)
{
    for (uint32_t i = 0; i < TIDE_JOBS_MAX; i++) {
        const tide_job *job = &jobs->table[i];
        if (job->segment_count > jobs->segments_max || (job->busy && job->segments == NULL))
            return false;
    }
    return jobs->request == NULL || jobs->request->count > 0;
}

/* The first from there on; TIDE_JOBS_MAX: none. */
static uint32_t first(const tide_jobs *jobs, uint32_t from, bool busy)
{
    uint32_t i = from;
    while (i < TIDE_JOBS_MAX && jobs->table[i].busy != busy)
        i++;
    return i;
}

bool tide_jobs_busy(const tide_jobs *jobs)
{
    assert(tide_monitor_is_held(jobs->monitor));
    return first(jobs, 0, true) < TIDE_JOBS_MAX;
}

bool tide_jobs_busy_for(const tide_jobs *jobs, uint64_t record)
{
    uint32_t i = 0;
    while (i < TIDE_JOBS_MAX && !(jobs->table[i].busy && jobs->table[i].record == record))
        i++;
    return i < TIDE_JOBS_MAX;
}

/* It is over. */
static void let_go(tide_job *job)
{
    assert(job->busy);
    job->busy = false;
}

bool tide_jobs_poll(tide_jobs *jobs)
{
    bool moved = false;
    for (uint32_t i = 0; i < TIDE_JOBS_MAX; i++) {
        tide_job *job = &jobs->table[i];
        bool passed = false;
        if (!job->busy || job->update_number == 0)
            continue;
        const tide_status status = tide_order_query(jobs->order, TIDE_STREAM_UPDATE, job->update_number,
                                                    TIDE_SITE_JOB_UPDATE, &passed);
        if (status != TIDE_OK)
            tide_monitor_fail(jobs->monitor, status);
        if (!passed)
            continue;
        assert(job->status == TIDE_OK);
        let_go(job);
        moved = true;
    }
    return moved;
}

/* --- filling a job --- */

static void *slot_of(const tide_jobs *jobs, const tide_command *command, uint32_t i)
{
    assert(i < command->task_count && command->task_count <= TIDE_TASK_CHUNKS_MAX);
    return tide_link_reach(jobs->link, command->tier, command->task[i].slot, command->task[i].chunk);
}

/* Is a task to zero its i-th slot first? Not a host slot that has the zeros it was made of; from now on it has not. */
static bool zeroes(tide_jobs *jobs, const tide_command *command, uint32_t i)
{
    const tide_task_chunk *item = &command->task[i];
    if (command->tier == TIDE_TIER_DEVICE)
        return item->needs_zero;
    tide_marks *marks = &jobs->order->marks[TIDE_TIER_HOST][item->slot];
    const bool zeroed = item->needs_zero && marks->filled;
    marks->filled = true;
    return zeroed;
}

/* Where a piece lies: its PARAM chunk's slot; and of each plane its STATE chunk's, where its elements begin. NULL: no such
 * plane. */
typedef struct piece_places {
    char *param;
    char *planes[TIDE_STATE_PLANES_MAX];
    const tide_state_format *format;
    uint64_t first; /* its first element in the PARAM chunk */
} piece_places;

static void fill_segment(const tide_jobs *jobs, tide_job *job, uint32_t i, tide_segment segment,
                         const piece_places *places)
{
    const uint64_t at = segment.chunk_offset_elements, in_piece = at - places->first;
    tide_update_segment *filled = &job->update_segments[i];
    *filled = (tide_update_segment){.param = segment.param,
                                    .first_element = segment.param_offset_elements,
                                    .elements = segment.elements,
                                    .values = places->param + at * tide_ground_element_bytes(jobs->ground),
                                    .zero_gradient = jobs->zero_gradient[segment.param],
                                    .decay = jobs->model->params[segment.param].of_class.decay};
    for (uint32_t plane = 0; plane < places->format->planes; plane++)
        filled->state[plane] =
            places->planes[plane] + in_piece * tide_ground_plane_bytes(places->format, plane);
    job->segments[i] = (tide_adamw_segment){.param = filled->values,
                                            .master = filled->state[0],
                                            .momentum = filled->state[1],
                                            .variance = filled->state[2],
                                            .elements = filled->elements,
                                            .decays = filled->decay};
}

/* Segment tables of the piece: params where they lie in the PARAM slot, their state where it lies in the STATE slot. */
static tide_status job_fill(tide_jobs *jobs, const tide_command *command, tide_job *job)
{
    const tide_ground *ground = jobs->ground;
    const tide_access access = tide_writes(TIDE_OBJECT_BUFFER, job->segments_object);
    const tide_work work = {
        .label = "fill segments", .tag = command->chunk, .accesses = &access, .access_count = 1};
    const tide_status status = ground->device->ops->host_touch(ground->device, &work);
    if (status != TIDE_OK)
        return status;
    const tide_piece piece = tide_layout_piece(ground->layout, command->chunk, command->piece);
    char *state = slot_of(jobs, command, 1);
    piece_places places = {.param = slot_of(jobs, command, 0),
                           .format = tide_layout_chunk_format(ground->layout, piece.state_chunk),
                           .first = piece.param_offset_elements};
    for (uint32_t plane = 0; plane < places.format->planes; plane++)
        places.planes[plane] = state +
                               tide_layout_plane_offset_bytes(ground->layout, piece.state_chunk, plane) +
                               piece.state_offset_elements * tide_ground_plane_bytes(places.format, plane);
    job->copies = tide_ground_plane_bytes(places.format, 0) < sizeof(float);
    uint32_t first;
    job->segment_count = tide_layout_piece_segments(ground->layout, &piece, &first);
    assert(job->segment_count <= jobs->segments_max);
    for (uint32_t i = 0; i < job->segment_count; i++)
        fill_segment(jobs, job, i, tide_layout_piece_segment(ground->layout, &piece, first + i), &places);
    for (uint32_t i = 0; i < TIDE_TASK_CHUNKS_MAX; i++)
        job->needs_zero[i] =
            i < command->task_count && zeroes(jobs, command, i) ? slot_of(jobs, command, i) : NULL;
    job->terms = jobs->terms;
    return TIDE_OK;
}

/* --- starting --- */

static bool task_writes(const tide_jobs *jobs, const tide_command *command, uint32_t i)
{
    if (command->kind == TIDE_COMMAND_ACCESS)
        return jobs->request->set || command->task[i].needs_zero;
    return command->kind == TIDE_COMMAND_UPDATE || i == 0 || command->task[i].needs_zero;
}

/* Have the copies that matter to a host task been seen to pass? Those into its slots have: their commands are done. */
static tide_status host_slots_ready(tide_jobs *jobs, const tide_command *command, bool *ready)
{
    tide_status status = TIDE_OK;
    *ready = true;
    for (uint32_t i = 0; i < command->task_count && *ready && status == TIDE_OK; i++) {
        if (task_writes(jobs, command, i))
            status = tide_order_query(
                jobs->order, TIDE_STREAM_IN,
                jobs->order->marks[TIDE_TIER_HOST][command->task[i].slot].used[TIDE_STREAM_IN],
                TIDE_SITE_LANE_IN, ready);
    }
    return status;
}

/* What the device is told of a task: it touches its chunks' slots, and its job's table if it has a job. */
static tide_work task_work(const tide_jobs *jobs, const tide_pending_command *task,
                           tide_access accesses[TIDE_TASK_CHUNKS_MAX + 1])
{
    const tide_command *command = &task->command;
    const bool on_host = command->tier == TIDE_TIER_HOST;
    tide_work work = {.label = command->kind == TIDE_COMMAND_ACCESS ? "access" : "restore",
                      .tag = command->chunk,
                      .id = task->id,
                      .accesses = accesses};
    if (command->kind == TIDE_COMMAND_UPDATE) {
        work.label = on_host ? "adam host" : "adam device";
        work.meter = TIDE_METER_ADAM + tide_records_meter(&jobs->journal->records, command->tier);
    }
    for (; work.access_count < command->task_count; work.access_count++)
        accesses[work.access_count] = (tide_access){on_host ? TIDE_OBJECT_HOST_SLOT : TIDE_OBJECT_DEVICE_SLOT,
                                                    command->task[work.access_count].slot,
                                                    task_writes(jobs, command, work.access_count)};
    if (task->job != NULL)
        accesses[work.access_count++] = tide_reads(TIDE_OBJECT_BUFFER, task->job->segments_object);
    return work;
}

static uint64_t issue(const tide_jobs *jobs, const tide_command *command)
{
    static const tide_trace_kind kinds[] = {[TIDE_COMMAND_UPDATE] = TIDE_TRACE_UPDATE,
                                            [TIDE_COMMAND_RESTORE] = TIDE_TRACE_RESTORE,
                                            [TIDE_COMMAND_ACCESS] = TIDE_TRACE_ACCESS};
    const bool on_host = command->tier == TIDE_TIER_HOST, access = command->kind == TIDE_COMMAND_ACCESS;
    tide_tracer *tracer = &jobs->journal->tracer;
    if (!tracer->on)
        return 0;
    tide_trace_event event = tide_tracer_event(tracer, kinds[command->kind]);
    event.step = access ? 0 : tide_records_step(&jobs->journal->records, TIDE_REASON_UPDATE);
    event.chunk = command->task[0].chunk;
    event.state_chunk = access ? TIDE_TRACE_NONE : command->task[1].chunk;
    event.piece = command->piece;
    event.what = on_host ? "host" : "device";
    const uint64_t id = tide_tracer_number(tracer, on_host ? TIDE_STREAM_HOST : TIDE_STREAM_UPDATE);
    tide_tracer_issue(tracer, id, &event);
    return id;
}

static tide_status launch_on_lane(tide_jobs *jobs, tide_pending_command *task, tide_kernel fn,
                                  const void *arguments, size_t argument_bytes, bool *started)
{
    const tide_ground *ground = jobs->ground;
    const tide_command *command = &task->command;
    tide_access accesses[TIDE_TASK_CHUNKS_MAX + 1];
    task->id = issue(jobs, command);
    tide_work work = task_work(jobs, task, accesses);
    const uint64_t elements =
        command->kind == TIDE_COMMAND_ACCESS
            ? jobs->request->count
            : tide_layout_piece(ground->layout, command->chunk, command->piece).elements;
    work.bytes = (double)(elements * (command->kind == TIDE_COMMAND_UPDATE
                                          ? tide_ground_update_bytes(ground, command->chunk)
                                          : sizeof(float) + tide_ground_element_bytes(ground)));
    assert(tide_order_may_enqueue(jobs->order, TIDE_STREAM_HOST));
    tide_status status =
        ground->device->ops->launch(ground->device, TIDE_STREAM_HOST, &work, fn, arguments, argument_bytes);
    *started = status == TIDE_OK;
    if (status == TIDE_OK)
        status = tide_order_record(jobs->order, TIDE_STREAM_HOST, task->id, &task->number);
    return status;
}

/* The job is busy, its slots are pinned, and only the engine ends either: the lock may be given up meanwhile. */
static tide_status launch_on_device(tide_jobs *jobs, tide_pending_command *task, bool *started)
{
    const tide_command *command = &task->command;
    tide_job *job = task->job;
    assert(jobs->ground->options.update == NULL);
    tide_access accesses[TIDE_TASK_CHUNKS_MAX + 1];
    task->id = issue(jobs, command);
    const tide_work work = task_work(jobs, task, accesses);
    tide_marks *marks = jobs->order->marks[TIDE_TIER_DEVICE];
    tide_needs needs = {0};
    for (uint32_t i = 0; i < command->task_count; i++)
        tide_needs_add(&needs, &marks[command->task[i].slot], task_writes(jobs, command, i));
    tide_status status = tide_order_wait(jobs->order, TIDE_STREAM_UPDATE, &needs);
    if (status != TIDE_OK)
        return status;
    tide_monitor_unlock(jobs->monitor);
    status = tide_job_launch(job, &work, started);
    tide_monitor_lock(jobs->monitor);
    if (status == TIDE_OK)
        status = tide_order_record(jobs->order, TIDE_STREAM_UPDATE, task->id, &job->update_number);
    for (uint32_t i = 0; i < command->task_count && status == TIDE_OK; i++)
        tide_marks_set(&marks[command->task[i].slot], TIDE_STREAM_UPDATE, job->update_number,
                       task_writes(jobs, command, i));
    return status;
}

static tide_status start_access(tide_jobs *jobs, tide_pending_command *task, bool *started)
{
    const tide_command *command = &task->command;
    tide_access_request *request = jobs->request;
    assert(request != NULL && command->task_count <= 2);
    for (uint32_t i = 0; i < command->task_count; i++) {
        request->slots[i] = slot_of(jobs, command, i);
        request->needs_zero[i] = zeroes(jobs, command, i);
    }
    return launch_on_lane(jobs, task, tide_job_run_access, request, sizeof *request, started);
}

static tide_status start_job(tide_jobs *jobs, tide_pending_command *task, bool *started)
{
    const tide_command *command = &task->command;
    const bool on_host = command->tier == TIDE_TIER_HOST;
    /* On the device jobs may wait for all of backward: the host's go on meanwhile. */
    const uint32_t number = first(jobs, on_host ? 0 : TIDE_JOBS_HOST, false);
    if (number == TIDE_JOBS_MAX)
        return TIDE_OK;
    tide_job *job = &jobs->table[number];
    job->busy = true;
    job->chunk = command->chunk;
    job->record = jobs->journal->records.updating;
    job->updates = command->kind == TIDE_COMMAND_UPDATE;
    job->update_number = 0;
    job->status = TIDE_OK;
    task->job = job;
    tide_status status = job_fill(jobs, command, job);
    if (status == TIDE_OK)
        status = on_host ? launch_on_lane(jobs, task, tide_job_run, &job, sizeof job, started)
                         : launch_on_device(jobs, task, started);
    if (status != TIDE_OK) {
        job->busy = false;
        task->job = NULL;
        return status;
    }
    assert(tide_jobs_is_valid(jobs));
    return TIDE_OK;
}

tide_status tide_jobs_start(tide_jobs *jobs, tide_pending_command *task, bool *started)
{
    tide_status status = TIDE_OK;
    bool ready = true;
    assert(tide_monitor_is_held(jobs->monitor));
    if (task->command.tier == TIDE_TIER_HOST)
        status = host_slots_ready(jobs, &task->command, &ready);
    else /* without room a job's end there brings the engine back */
        ready = tide_order_may_enqueue(jobs->order, TIDE_STREAM_UPDATE);
    if (status != TIDE_OK || !ready)
        return status;
    return task->command.kind == TIDE_COMMAND_ACCESS ? start_access(jobs, task, started)
                                                     : start_job(jobs, task, started);
}

tide_status tide_jobs_passed(tide_jobs *jobs, const tide_pending_command *task, bool *passed)
{
    const tide_job *job = task->job;
    const tide_chunk chunk = task->command.chunk;
    const tide_status status =
        tide_order_query(jobs->order, TIDE_STREAM_HOST, task->number, TIDE_SITE_LANE_DONE, passed);
    if (status != TIDE_OK || !*passed || job == NULL)
        return status;
    assert(job->busy && job->chunk == chunk);
    if (job->status == TIDE_OK)
        return TIDE_OK;
    return tide_fail(job->status, "%s of param chunk %u: %s", tide_command_kind_name(task->command.kind),
                     tide_layout_chunk_index(jobs->ground->layout, chunk), job->message);
}

void tide_jobs_finish(tide_jobs *jobs, const tide_pending_command *task)
{
    tide_job *job = task->job;
    assert(tide_monitor_is_held(jobs->monitor));
    if (task->command.kind == TIDE_COMMAND_ACCESS)
        jobs->request = NULL;
    if (job == NULL || job->update_number != 0)
        return; /* the update stream has it; tide_jobs_poll sees its end */
    let_go(job);
}

uint64_t tide_jobs_zero_gradients(tide_jobs *jobs, const tide_gradients *gradients)
{
    uint64_t count = 0;
    assert(tide_monitor_is_held(jobs->monitor));
    for (uint32_t i = 0; i < jobs->model->param_count; i++) {
        jobs->zero_gradient[i] = gradients != NULL && !gradients->params[i].is_closed &&
                                 !tide_pool_param_is_frozen(&jobs->model->params[i]);
        count += jobs->zero_gradient[i];
    }
    return count;
}
