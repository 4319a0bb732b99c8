#include "src/pool/running_tasks.h"

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

uint64_t tide_running_tasks_table_bytes(const tide_layout *layout)
{
    return segments_max(layout) * sizeof(tide_adamw_segment);
}

tide_status tide_running_tasks_create(tide_running_tasks *running_tasks)
{
    tide_status status = TIDE_OK;
    running_tasks->segments_max = segments_max(running_tasks->context->packing->layout);
    running_tasks->zero_gradient =
        calloc(running_tasks->context->packing->param_count, sizeof *running_tasks->zero_gradient);
    if (running_tasks->zero_gradient == NULL)
        return tide_fail(TIDE_ERROR_NO_MEMORY, "pool: no memory for %u params",
                         running_tasks->context->packing->param_count);
    for (uint32_t i = 0; i < TIDE_RUNNING_TASKS_MAX && status == TIDE_OK; i++)
        status = tide_running_task_create(&running_tasks->table[i], running_tasks->context,
                                          running_tasks->segments_max);
    return status;
}

void tide_running_tasks_destroy(tide_running_tasks *running_tasks)
{
    for (uint32_t i = 0; i < TIDE_RUNNING_TASKS_MAX; i++)
        tide_running_task_destroy(&running_tasks->table[i]);
    free(running_tasks->zero_gradient);
    running_tasks->zero_gradient = NULL;
}

/* Checks that no task has more segments than its table holds, and that a busy task has a table. */
bool tide_running_tasks_is_valid(const tide_running_tasks *running_tasks)
{
    for (uint32_t i = 0; i < TIDE_RUNNING_TASKS_MAX; i++) {
        const tide_running_task *running = &running_tasks->table[i];
        if (running->segment_count > running_tasks->segments_max ||
            (running->busy && running->segments == NULL))
            return false;
    }
    return running_tasks->request == NULL || running_tasks->request->count > 0;
}

/* The number of the first entry from `from` on whose `busy` is `busy`; TIDE_RUNNING_TASKS_MAX: none. */
static uint32_t first(const tide_running_tasks *running_tasks, uint32_t from, bool busy)
{
    uint32_t i = from;
    while (i < TIDE_RUNNING_TASKS_MAX && running_tasks->table[i].busy != busy)
        i++;
    return i;
}

bool tide_running_tasks_busy(const tide_running_tasks *running_tasks)
{
    assert(tide_monitor_is_held(running_tasks->monitor));
    return first(running_tasks, 0, true) < TIDE_RUNNING_TASKS_MAX;
}

bool tide_running_tasks_busy_for(const tide_running_tasks *running_tasks, uint64_t record)
{
    uint32_t i = 0;
    while (i < TIDE_RUNNING_TASKS_MAX &&
           !(running_tasks->table[i].busy && running_tasks->table[i].record == record))
        i++;
    return i < TIDE_RUNNING_TASKS_MAX;
}

/* Free the entry of a task whose work has ended. */
static void let_go(tide_running_task *running)
{
    assert(running->busy);
    running->busy = false;
}

bool tide_running_tasks_poll(tide_running_tasks *running_tasks)
{
    bool moved = false;
    for (uint32_t i = 0; i < TIDE_RUNNING_TASKS_MAX; i++) {
        tide_running_task *running = &running_tasks->table[i];
        bool passed = false;
        if (!running->busy || running->update_number == 0)
            continue;
        const tide_status status = tide_order_query(running_tasks->order, TIDE_STREAM_UPDATE,
                                                    running->update_number, TIDE_SITE_TASK_UPDATE, &passed);
        if (status != TIDE_OK)
            tide_monitor_fail(running_tasks->monitor, status);
        if (!passed)
            continue;
        assert(running->status == TIDE_OK);
        let_go(running);
        moved = true;
    }
    return moved;
}

/* --- filling a running task --- */

static void *slot_of(const tide_running_tasks *running_tasks, const tide_command *command, uint32_t i)
{
    assert(i < command->task_count && command->task_count <= TIDE_TASK_CHUNKS_MAX);
    return tide_link_reach(running_tasks->link, command->tier, command->task[i].slot, command->task[i].chunk);
}

/* Must the task zero its i-th slot before it works there? A host slot that was not written since create is
 * still zero. Marks a host slot as written. */
static bool zeroes(tide_running_tasks *running_tasks, const tide_command *command, uint32_t i)
{
    const tide_task_chunk *item = &command->task[i];
    if (command->tier == TIDE_TIER_DEVICE)
        return item->needs_zero;
    tide_marks *marks = &running_tasks->order->marks[TIDE_TIER_HOST][item->slot];
    const bool zeroed = item->needs_zero && marks->filled;
    marks->filled = true;
    return zeroed;
}

/* The addresses of a piece: of its PARAM chunk's slot, and of its first element in each plane of the STATE
 * chunk's slot. NULL: the state has fewer planes. */
typedef struct piece_places {
    char *param;
    char *planes[TIDE_STATE_PLANES_MAX];
    const tide_state_format *format;
    uint64_t first; /* the piece's first element in the PARAM chunk */
} piece_places;

static void fill_segment(const tide_running_tasks *running_tasks, tide_running_task *running, uint32_t i,
                         tide_segment segment, const piece_places *places)
{
    const uint64_t at = segment.chunk_offset_elements, in_piece = at - places->first;
    tide_update_segment *filled = &running->update_segments[i];
    *filled = (tide_update_segment){.param = segment.param,
                                    .first_element = segment.param_offset_elements,
                                    .elements = segment.elements,
                                    .values = places->param +
                                              at * tide_context_element_bytes(running_tasks->context),
                                    .zero_gradient = running_tasks->zero_gradient[segment.param],
                                    .decay = running_tasks->context->packing->params[segment.param].decays};
    for (uint32_t plane = 0; plane < places->format->planes; plane++)
        filled->state[plane] =
            places->planes[plane] + in_piece * tide_context_plane_bytes(places->format, plane);
    running->segments[i] = (tide_adamw_segment){.param = filled->values,
                                                .master = filled->state[0],
                                                .momentum = filled->state[1],
                                                .variance = filled->state[2],
                                                .elements = filled->elements,
                                                .decays = filled->decay};
}

/* Fill the task's entry: the segment tables with addresses in the piece's slots, the slots to zero, and the
 * terms. */
static tide_status running_fill(tide_running_tasks *running_tasks, const tide_command *command,
                                tide_running_task *running)
{
    const tide_pool_context *context = running_tasks->context;
    const tide_access access = tide_writes(TIDE_OBJECT_BUFFER, running->segments_object);
    const tide_work work = {
        .label = "fill segments", .tag = command->chunk, .accesses = &access, .access_count = 1};
    const tide_status status = context->device->ops->host_touch(context->device, &work);
    if (status != TIDE_OK)
        return status;
    const tide_piece piece = tide_layout_piece(context->packing->layout, command->chunk, command->piece);
    char *state = slot_of(running_tasks, command, 1);
    piece_places places = {.param = slot_of(running_tasks, command, 0),
                           .format = tide_layout_chunk_format(context->packing->layout, piece.state_chunk),
                           .first = piece.param_offset_elements};
    for (uint32_t plane = 0; plane < places.format->planes; plane++)
        places.planes[plane] =
            state + tide_layout_plane_offset_bytes(context->packing->layout, piece.state_chunk, plane) +
            piece.state_offset_elements * tide_context_plane_bytes(places.format, plane);
    running->copies = tide_context_plane_bytes(places.format, 0) < sizeof(float);
    uint32_t first;
    running->segment_count = tide_layout_piece_segments(context->packing->layout, &piece, &first);
    assert(running->segment_count <= running_tasks->segments_max);
    for (uint32_t i = 0; i < running->segment_count; i++)
        fill_segment(running_tasks, running, i,
                     tide_layout_piece_segment(context->packing->layout, &piece, first + i), &places);
    for (uint32_t i = 0; i < TIDE_TASK_CHUNKS_MAX; i++)
        running->needs_zero[i] = i < command->task_count && zeroes(running_tasks, command, i)
                                     ? slot_of(running_tasks, command, i)
                                     : NULL;
    running->terms = running_tasks->terms;
    return TIDE_OK;
}

/* --- starting --- */

static bool task_writes(const tide_running_tasks *running_tasks, const tide_command *command, uint32_t i)
{
    if (command->kind == TIDE_COMMAND_ACCESS)
        return running_tasks->request->set || command->task[i].needs_zero;
    return command->kind == TIDE_COMMAND_UPDATE || i == 0 || command->task[i].needs_zero;
}

/* Has the engine seen all copies from the slots that the host task writes end? Copies into its slots have
 * ended before the manager handed the task out. */
static tide_status host_slots_ready(tide_running_tasks *running_tasks, const tide_command *command,
                                    bool *ready)
{
    tide_status status = TIDE_OK;
    *ready = true;
    for (uint32_t i = 0; i < command->task_count && *ready && status == TIDE_OK; i++) {
        if (task_writes(running_tasks, command, i))
            status = tide_order_query(
                running_tasks->order, TIDE_STREAM_IN,
                running_tasks->order->marks[TIDE_TIER_HOST][command->task[i].slot].used[TIDE_STREAM_IN],
                TIDE_SITE_LANE_IN, ready);
    }
    return status;
}

/* Two a device slot, and the segment table. */
enum { TASK_ACCESSES_MAX = 2 * TIDE_TASK_CHUNKS_MAX + 1 };

/* Describe a task to the device: its accesses are to its chunks' slots and, if it has one, to its segment
 * table. */
static tide_work task_work(const tide_running_tasks *running_tasks, const tide_open_command *task,
                           tide_access accesses[TASK_ACCESSES_MAX])
{
    const tide_command *command = &task->command;
    const bool on_host = command->tier == TIDE_TIER_HOST;
    tide_work work = {.label = command->kind == TIDE_COMMAND_ACCESS ? "access" : "restore",
                      .tag = command->chunk,
                      .id = task->id,
                      .accesses = accesses};
    if (command->kind == TIDE_COMMAND_UPDATE) {
        work.label = on_host ? "adam host" : "adam device";
        work.timer =
            TIDE_TIMER_ADAM + tide_counters_timer(&running_tasks->telemetry->counters, command->tier);
    }
    for (uint32_t i = 0; i < command->task_count; i++) {
        const uint32_t slot = command->task[i].slot;
        const bool writes = task_writes(running_tasks, command, i);
        accesses[work.access_count++] =
            (tide_access){on_host ? TIDE_OBJECT_HOST_SLOT : TIDE_OBJECT_DEVICE_SLOT, slot, writes};
        if (!on_host)
            accesses[work.access_count++] = (tide_access){TIDE_OBJECT_SLOT_GRADIENTS, slot, writes};
    }
    if (task->running != NULL)
        accesses[work.access_count++] = tide_reads(TIDE_OBJECT_BUFFER, task->running->segments_object);
    return work;
}

static uint64_t issue(const tide_running_tasks *running_tasks, const tide_command *command)
{
    static const tide_trace_kind kinds[] = {[TIDE_COMMAND_UPDATE] = TIDE_TRACE_UPDATE,
                                            [TIDE_COMMAND_RESTORE] = TIDE_TRACE_RESTORE,
                                            [TIDE_COMMAND_ACCESS] = TIDE_TRACE_ACCESS};
    const bool on_host = command->tier == TIDE_TIER_HOST, access = command->kind == TIDE_COMMAND_ACCESS;
    tide_tracer *tracer = &running_tasks->telemetry->tracer;
    if (!tracer->on)
        return 0;
    tide_trace_event event = tide_tracer_event(tracer, kinds[command->kind]);
    event.step = access ? 0 : tide_counters_step(&running_tasks->telemetry->counters, TIDE_REASON_UPDATE);
    event.chunk = command->task[0].chunk;
    event.state_chunk = access ? TIDE_TRACE_NONE : command->task[1].chunk;
    event.piece = command->piece;
    event.tier = command->tier;
    const uint64_t id = tide_tracer_number(tracer, on_host ? TIDE_STREAM_HOST : TIDE_STREAM_UPDATE);
    tide_tracer_issue(tracer, id, &event);
    return id;
}

static tide_status launch_on_executor(tide_running_tasks *running_tasks, tide_open_command *task,
                                      tide_kernel fn, const void *arguments, size_t argument_bytes,
                                      bool *started)
{
    const tide_pool_context *context = running_tasks->context;
    const tide_command *command = &task->command;
    tide_access accesses[TASK_ACCESSES_MAX];
    task->id = issue(running_tasks, command);
    tide_work work = task_work(running_tasks, task, accesses);
    const uint64_t elements =
        command->kind == TIDE_COMMAND_ACCESS
            ? running_tasks->request->count
            : tide_layout_piece(context->packing->layout, command->chunk, command->piece).elements;
    work.bytes = (double)(elements * (command->kind == TIDE_COMMAND_UPDATE
                                          ? tide_context_update_bytes(context, command->chunk)
                                          : sizeof(float) + tide_context_element_bytes(context)));
    assert(tide_order_may_enqueue(running_tasks->order, TIDE_STREAM_HOST));
    tide_status status =
        context->device->ops->launch(context->device, TIDE_STREAM_HOST, &work, fn, arguments, argument_bytes);
    *started = status == TIDE_OK;
    if (status == TIDE_OK)
        status = tide_order_record(running_tasks->order, TIDE_STREAM_HOST, task->id, &task->number);
    return status;
}

/* Enqueue a task on the update stream. Releases the lock during the launches: only the engine, on this
 * thread, could free the busy entry or unpin its slots. */
static tide_status launch_on_device(tide_running_tasks *running_tasks, tide_open_command *task, bool *started)
{
    const tide_command *command = &task->command;
    tide_running_task *running = task->running;
    assert(running_tasks->context->options.update == NULL);
    tide_access accesses[TASK_ACCESSES_MAX];
    task->id = issue(running_tasks, command);
    const tide_work work = task_work(running_tasks, task, accesses);
    tide_marks *marks = running_tasks->order->marks[TIDE_TIER_DEVICE];
    tide_needs needs = {0};
    for (uint32_t i = 0; i < command->task_count; i++)
        tide_needs_add(&needs, &marks[command->task[i].slot], task_writes(running_tasks, command, i));
    tide_status status = tide_order_wait(running_tasks->order, TIDE_STREAM_UPDATE, &needs);
    if (status != TIDE_OK)
        return status;
    tide_monitor_unlock(running_tasks->monitor);
    status = tide_running_task_launch(running, &work, started);
    tide_monitor_lock(running_tasks->monitor);
    if (status == TIDE_OK)
        status =
            tide_order_record(running_tasks->order, TIDE_STREAM_UPDATE, task->id, &running->update_number);
    for (uint32_t i = 0; i < command->task_count && status == TIDE_OK; i++)
        tide_marks_set(&marks[command->task[i].slot], TIDE_STREAM_UPDATE, running->update_number,
                       task_writes(running_tasks, command, i));
    return status;
}

static tide_status start_access(tide_running_tasks *running_tasks, tide_open_command *task, bool *started)
{
    const tide_command *command = &task->command;
    tide_access_request *request = running_tasks->request;
    assert(request != NULL && command->task_count <= 2);
    for (uint32_t i = 0; i < command->task_count; i++) {
        request->slots[i] = slot_of(running_tasks, command, i);
        request->needs_zero[i] = zeroes(running_tasks, command, i);
    }
    return launch_on_executor(running_tasks, task, tide_running_task_run_access, request, sizeof *request,
                              started);
}

static tide_status start_running(tide_running_tasks *running_tasks, tide_open_command *task, bool *started)
{
    const tide_command *command = &task->command;
    const bool on_host = command->tier == TIDE_TIER_HOST;
    /* Device tasks may occupy their entries during all of backward, so the first entries are only for host
     * tasks. */
    const uint32_t number = first(running_tasks, on_host ? 0 : TIDE_RUNNING_TASKS_HOST, false);
    if (number == TIDE_RUNNING_TASKS_MAX)
        return TIDE_OK;
    tide_running_task *running = &running_tasks->table[number];
    running->busy = true;
    running->chunk = command->chunk;
    running->record = running_tasks->telemetry->counters.updating;
    running->updates = command->kind == TIDE_COMMAND_UPDATE;
    running->update_number = 0;
    running->status = TIDE_OK;
    task->running = running;
    tide_status status = running_fill(running_tasks, command, running);
    if (status == TIDE_OK)
        status = on_host ? launch_on_executor(running_tasks, task, tide_running_task_run, &running,
                                              sizeof running, started)
                         : launch_on_device(running_tasks, task, started);
    if (status != TIDE_OK) {
        running->busy = false;
        task->running = NULL;
        return status;
    }
    assert(tide_running_tasks_is_valid(running_tasks));
    return TIDE_OK;
}

tide_status tide_running_tasks_start(tide_running_tasks *running_tasks, tide_open_command *task,
                                     bool *started)
{
    tide_status status = TIDE_OK;
    bool ready = true;
    assert(tide_monitor_is_held(running_tasks->monitor));
    if (task->command.tier == TIDE_TIER_HOST)
        status = host_slots_ready(running_tasks, &task->command, &ready);
    else /* if it has no space, the engine tries again when a task there has ended */
        ready = tide_order_may_enqueue(running_tasks->order, TIDE_STREAM_UPDATE);
    if (status != TIDE_OK || !ready)
        return status;
    return task->command.kind == TIDE_COMMAND_ACCESS ? start_access(running_tasks, task, started)
                                                     : start_running(running_tasks, task, started);
}

tide_status tide_running_tasks_passed(tide_running_tasks *running_tasks, const tide_open_command *task,
                                      bool *passed)
{
    const tide_running_task *running = task->running;
    const tide_chunk chunk = task->command.chunk;
    const tide_status status =
        tide_order_query(running_tasks->order, TIDE_STREAM_HOST, task->number, TIDE_SITE_LANE_DONE, passed);
    if (status != TIDE_OK || !*passed || running == NULL)
        return status;
    assert(running->busy && running->chunk == chunk);
    if (running->status == TIDE_OK)
        return TIDE_OK;
    return tide_fail(running->status, "%s of param chunk %u: %s", tide_command_kind_name(task->command.kind),
                     tide_layout_chunk_index(running_tasks->context->packing->layout, chunk),
                     running->message);
}

void tide_running_tasks_finish(tide_running_tasks *running_tasks, const tide_open_command *task)
{
    tide_running_task *running = task->running;
    assert(tide_monitor_is_held(running_tasks->monitor));
    if (task->command.kind == TIDE_COMMAND_ACCESS)
        running_tasks->request = NULL;
    if (running == NULL || running->update_number != 0)
        return; /* the update stream still reads the entry; tide_running_tasks_poll frees it */
    let_go(running);
}

uint64_t tide_running_tasks_zero_gradients(tide_running_tasks *running_tasks, const tide_gradients *gradients)
{
    uint64_t count = 0;
    assert(tide_monitor_is_held(running_tasks->monitor));
    for (uint32_t i = 0; i < running_tasks->context->packing->param_count; i++) {
        running_tasks->zero_gradient[i] =
            gradients != NULL && !gradients->params[i].is_closed &&
            !tide_packed_param_is_frozen(&running_tasks->context->packing->params[i]);
        count += running_tasks->zero_gradient[i];
    }
    return count;
}
