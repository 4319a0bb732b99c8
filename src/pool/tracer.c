#include "src/pool/tracer.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

enum { ID_STREAMS = 8 }; /* id = number on the stream * ID_STREAMS + stream */

static_assert((int)TIDE_STREAM_COUNT < (int)ID_STREAMS, "a remainder for each stream and for none");

/* --- create, destroy --- */

static const tide_trace_event nowhere = {.op = TIDE_TRACE_NONE,
                                         .slice = TIDE_TRACE_NONE,
                                         .chunk = TIDE_TRACE_NONE,
                                         .state_chunk = TIDE_TRACE_NONE,
                                         .device_slot = TIDE_TRACE_NONE,
                                         .host_slot = TIDE_TRACE_NONE,
                                         .param = TIDE_TRACE_NONE};

/* Forget the traced states of all chunks: they count as on neither tier. */
static void forget_chunks(tide_tracer *tracer)
{
    const uint32_t count = tide_layout_chunk_count(tracer->context->packing->layout);
    for (tide_chunk chunk = 0; tracer->seen != NULL && chunk < count; chunk++)
        tracer->seen[chunk] = (tide_chunk_view){.device_slot = TIDE_SLOT_NONE, .host_slot = TIDE_SLOT_NONE};
}

tide_status tide_tracer_create(tide_tracer *tracer)
{
    const tide_layout *layout = tracer->context->packing->layout;
    tracer->here = nowhere;
    if (tracer->context->options.trace == NULL)
        return TIDE_OK;
    bool made = true;
    for (int stream = 0; stream < TIDE_STREAM_COUNT; stream++) {
        tracer->issued[stream] = calloc(TIDE_TRACER_RING, sizeof *tracer->issued[stream]);
        made = made && tracer->issued[stream] != NULL;
    }
    tracer->seen = calloc(tide_layout_chunk_count(layout), sizeof *tracer->seen);
    tracer->has_gradient = calloc(tide_layout_params(layout), sizeof *tracer->has_gradient);
    forget_chunks(tracer);
    (void)pthread_mutex_init(&tracer->running_lock, NULL);
    tracer->on = true;
    if (!made || tracer->seen == NULL || tracer->has_gradient == NULL)
        return tide_fail(TIDE_ERROR_NO_MEMORY, "pool: no memory to trace %u chunks",
                         tide_layout_chunk_count(layout));
    return TIDE_OK;
}

void tide_tracer_destroy(tide_tracer *tracer)
{
    if (!tracer->on)
        return;
    tide_tracer_flush(tracer);
    tracer->on = false;
    for (int stream = 0; stream < TIDE_STREAM_COUNT; stream++)
        free(tracer->issued[stream]);
    free(tracer->seen);
    free(tracer->has_gradient);
    pthread_mutex_destroy(&tracer->running_lock);
}

/* --- events --- */

static uint64_t now_ns(const tide_tracer *tracer)
{
    tide_device *device = tracer->context->device;
    return device->ops->now_ns(device);
}

tide_trace_event tide_tracer_event(const tide_tracer *tracer, tide_trace_kind kind)
{
    tide_trace_event event = tracer->here;
    event.kind = kind;
    event.step = tracer->counted;
    return event;
}

void tide_tracer_tell(const tide_tracer *tracer, const tide_trace_event *event)
{
    const tide_pool_options *options = &tracer->context->options;
    assert(tracer->on && event->begin_ns <= event->end_ns);
    options->trace(options->trace_context, event);
}

static void tell_now(const tide_tracer *tracer, tide_trace_event *event)
{
    event->begin_ns = event->end_ns = now_ns(tracer);
    tide_tracer_tell(tracer, event);
}

/* --- progress of the caller --- */

void tide_tracer_pass_begins(tide_tracer *tracer, bool training, bool clips)
{
    if (!tracer->on)
        return;
    tracer->here = nowhere;
    tracer->here.pass = ++tracer->pass;
    tracer->here_id = 0;
    tide_trace_event event = tide_tracer_event(tracer, TIDE_TRACE_PASS);
    event.training = training;
    event.clips = training && clips;
    event.number = training ? tracer->step : 0;
    tell_now(tracer, &event);
}

static void tell_plan(tide_tracer *tracer, const tide_manager *manager, bool training)
{
    tide_manager_plan plan;
    tide_trace_event event = tide_tracer_event(tracer, TIDE_TRACE_PLAN);
    if (!tide_manager_plan_get(manager, training, &plan) || plan.number == tracer->plans[training])
        return;
    tide_manager_plan_least(manager, training, &plan);
    tracer->plans[training] = plan.number;
    event.training = training;
    event.planned_in = (uint32_t)plan.copies_in;
    event.planned_out = (uint32_t)plan.copies_out;
    event.least_in = (uint32_t)plan.least_in;
    event.least_out = (uint32_t)plan.least_out;
    tell_now(tracer, &event);
}

void tide_tracer_pass_ends(tide_tracer *tracer, const tide_manager *manager)
{
    if (!tracer->on)
        return;
    tide_trace_event event = tide_tracer_event(tracer, TIDE_TRACE_PASS_END);
    tell_now(tracer, &event);
    tell_plan(tracer, manager, true);
    tell_plan(tracer, manager, false);
}

void tide_tracer_given_up(tide_tracer *tracer)
{
    if (!tracer->on)
        return;
    tide_tracer_flush(tracer);
    tide_trace_event event = tide_tracer_event(tracer, TIDE_TRACE_GIVEN_UP);
    event.step = tracer->step;
    tell_now(tracer, &event);
}

void tide_tracer_stand(tide_tracer *tracer, tide_op op, uint32_t slice, bool predicted)
{
    if (!tracer->on)
        return;
    tracer->here.op = op;
    tracer->here.slice = slice;
    tracer->here.schedule_step += op != TIDE_OP_NONE;
    tracer->here.predicted = predicted;
    tracer->here_id = 0;
}

uint32_t tide_tracer_lacking(tide_tracer *tracer, tide_manager *manager)
{
    static const tide_trace_awaited awaited[] = {[TIDE_REQUEST_PENDING] = TIDE_TRACE_AWAITS_UPDATE,
                                                 [TIDE_REQUEST_SLOT] = TIDE_TRACE_AWAITS_SLOT,
                                                 [TIDE_REQUEST_MOVE] = TIDE_TRACE_AWAITS_MOVE};
    uint32_t count = 0;
    tide_chunk chunk;
    tide_request_wait wait;
    if (!tracer->on)
        return 0;
    for (uint32_t i = 0; tide_manager_lacks(manager, &i, &chunk, &wait); count++) {
        tide_trace_event event = tide_tracer_event(tracer, TIDE_TRACE_WAIT);
        event.chunk = chunk;
        event.awaits = awaited[wait];
        tell_now(tracer, &event);
    }
    return count;
}

void tide_tracer_ready(tide_tracer *tracer, uint32_t chunks, uint32_t lacked, uint64_t asked_ns)
{
    if (!tracer->on)
        return;
    tide_trace_event event = tide_tracer_event(tracer, TIDE_TRACE_REQUEST);
    event.chunks = chunks;
    event.lacked = lacked;
    event.begin_ns = asked_ns;
    event.end_ns = now_ns(tracer);
    tide_tracer_tell(tracer, &event);
}

/* --- chunks and params --- */

static bool same(const tide_chunk_view *a, const tide_chunk_view *b)
{
    return a->device == b->device && a->host == b->host && a->device_slot == b->device_slot &&
           a->host_slot == b->host_slot && a->pinned == b->pinned && a->pending == b->pending &&
           a->content == b->content;
}

static void tell_chunk(const tide_tracer *tracer, tide_chunk chunk, const tide_chunk_view *view)
{
    tide_trace_event event = tide_tracer_event(tracer, TIDE_TRACE_CHUNK);
    event.chunk = chunk;
    event.device = view->device;
    event.host = view->host;
    event.device_slot = view->device_slot;
    event.host_slot = view->host_slot;
    event.pinned = view->pinned;
    event.pending = view->pending;
    event.content = view->content;
    tell_now(tracer, &event);
}

/* Trace the chunk's params that have got or lost a gradient since they were last traced. */
static void tell_params(tide_tracer *tracer, const tide_manager *manager, tide_chunk chunk)
{
    const tide_layout *layout = tracer->context->packing->layout;
    for (uint32_t i = 0; i < tide_layout_chunk_params(layout, chunk); i++) {
        const uint32_t param = tide_layout_chunk_param(layout, chunk, i);
        const bool has_gradient = tide_manager_has_gradient(manager, param);
        if (tracer->has_gradient[param] == has_gradient)
            continue;
        tracer->has_gradient[param] = has_gradient;
        tide_trace_event event = tide_tracer_event(tracer, TIDE_TRACE_PARAM);
        event.param = param;
        event.holds = has_gradient ? TIDE_TRACE_HOLDS_GRADIENT : TIDE_TRACE_HOLDS_PARAMETER;
        tell_now(tracer, &event);
    }
}

void tide_tracer_look(tide_tracer *tracer, tide_manager *manager)
{
    tide_chunk chunk;
    tide_chunk_view view;
    while (tracer->on && tide_manager_changed_chunk(manager, &chunk, &view)) {
        tide_chunk_view *seen = &tracer->seen[chunk];
        if (seen->closed != view.closed)
            tell_params(tracer, manager, chunk);
        if (!same(seen, &view))
            tell_chunk(tracer, chunk, &view);
        *seen = view;
    }
}

void tide_tracer_look_at_all(tide_tracer *tracer, tide_manager *manager)
{
    if (!tracer->on)
        return;
    forget_chunks(tracer);
    tide_manager_changed_all(manager);
    tide_tracer_look(tracer, manager);
}

/* --- commands --- */

static tide_trace_event *entry(const tide_tracer *tracer, uint64_t id)
{
    return &tracer->issued[id % ID_STREAMS][id / ID_STREAMS % TIDE_TRACER_RING];
}

uint64_t tide_tracer_number(tide_tracer *tracer, tide_stream stream)
{
    assert(stream <= TIDE_STREAM_COUNT);
    return tracer->on ? ++tracer->numbers[stream] * ID_STREAMS + (uint64_t)stream : 0;
}

void tide_tracer_issue(tide_tracer *tracer, uint64_t id, const tide_trace_event *event)
{
    if (id == 0 || id % ID_STREAMS == TIDE_STREAM_COUNT)
        return;
    *entry(tracer, id) = *event;
    entry(tracer, id)->id = id;
}

const tide_trace_event *tide_tracer_issued(const tide_tracer *tracer, uint64_t id)
{
    if (!tracer->on || id == 0 || id % ID_STREAMS == TIDE_STREAM_COUNT)
        return NULL;
    const tide_trace_event *found = entry(tracer, id);
    return found->id == id ? found : NULL;
}

uint64_t tide_tracer_launch(tide_tracer *tracer)
{
    if (tracer->on && tracer->here_id == 0) {
        tracer->here_id = tide_tracer_number(tracer, TIDE_STREAM_COMPUTE);
        tide_tracer_issue(tracer, tracer->here_id, &tracer->here);
    }
    return tracer->here_id;
}

uint64_t tide_tracer_wait(tide_tracer *tracer, tide_stream stream, uint64_t awaited)
{
    if (!tracer->on || stream != TIDE_STREAM_COMPUTE)
        return 0;
    const tide_trace_event *of = tide_tracer_issued(tracer, awaited);
    tide_trace_event wait = tracer->here;
    wait.ended_by = awaited;
    wait.chunk = of == NULL ? TIDE_TRACE_NONE : of->chunk;
    const uint64_t id = tide_tracer_number(tracer, stream);
    tide_tracer_issue(tracer, id, &wait);
    return id;
}

/* Send the collected span and begin an empty one. With running_lock. */
static void flush(tide_tracer *tracer)
{
    if (tracer->running.busy_ns > 0)
        tide_tracer_tell(tracer, &tracer->running);
    tracer->running.busy_ns = 0;
}

void tide_tracer_flush(tide_tracer *tracer)
{
    if (!tracer->on)
        return;
    pthread_mutex_lock(&tracer->running_lock);
    flush(tracer);
    pthread_mutex_unlock(&tracer->running_lock);
}

/* Add a command of the compute stream to the span, or send the span and begin another. Skips commands that
 * took no time. The device's own commands (guards) belong to no op. */
static void compute(tide_tracer *tracer, const tide_observed *command)
{
    const tide_trace_event *of = tide_tracer_issued(tracer, command->id);
    const uint64_t counted = tracer->counted;
    tide_trace_event *running = &tracer->running;
    if (command->begin_ns == command->end_ns)
        return;
    pthread_mutex_lock(&tracer->running_lock);
    if (running->id != command->id || running->step != counted)
        flush(tracer);
    if (running->busy_ns == 0) {
        *running = of == NULL ? nowhere : *of;
        running->id = command->id;
        running->pass = of == NULL ? (uint64_t)tracer->pass : of->pass;
        running->kind = TIDE_TRACE_OP;
        running->step = counted;
        running->begin_ns = command->begin_ns;
    }
    running->end_ns = command->end_ns;
    running->busy_ns += command->end_ns - command->begin_ns;
    pthread_mutex_unlock(&tracer->running_lock);
}

void tide_tracer_over(tide_tracer *tracer, const tide_observed *command, bool of_norm, bool zeroes)
{
    tide_trace_event event;
    assert(!command->is_wait);
    if (!tracer->on)
        return;
    if (of_norm) {
        tide_tracer_flush(tracer);
        event = nowhere;
        event.kind = TIDE_TRACE_NORM;
        event.step = tracer->counted;
        event.pass = tracer->pass;
    } else if (command->stream == TIDE_STREAM_COMPUTE) {
        compute(tracer, command);
        return;
    } else {
        const tide_trace_event *of = tide_tracer_issued(tracer, command->id);
        if (of == NULL)
            return;
        event = *of;
        event.kind = zeroes ? TIDE_TRACE_ZERO : event.kind;
    }
    event.begin_ns = command->begin_ns;
    event.end_ns = command->end_ns;
    tide_tracer_tell(tracer, &event);
}

void tide_tracer_stall(const tide_tracer *tracer, tide_stall_cause cause, uint64_t begin_ns, uint64_t end_ns,
                       const tide_trace_event *where)
{
    if (!tracer->on)
        return;
    tide_trace_event event = where == NULL ? nowhere : *where;
    event.kind = TIDE_TRACE_STALL;
    event.pass = where == NULL ? tracer->pass : where->pass;
    event.step = tracer->counted;
    event.begin_ns = begin_ns;
    event.end_ns = end_ns;
    event.cause = cause;
    tide_tracer_tell(tracer, &event);
}
