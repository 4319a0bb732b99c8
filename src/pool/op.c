/* Ops and slices.
 *
 * tide_op_begin returns when all the op's chunks are mapped and the copies into them enqueued; the compute
 * stream waits for the copies, the caller does not. tide_op_end rounds the gradients that the op completes
 * (gradient.c). Then it records the op's submission (order.h), whose number becomes the mark of the op's
 * slots: evictions and updates of its chunks wait for it.
 */
#include "src/pool/internal.h"

#include <assert.h>
#include <stdlib.h>

/* Checks that the tables hold only parts of the region if no op is open, and only those and the params if no
 * slice is. */
bool tide_op_is_valid(const tide_pool *pool)
{
    const tide_open_op *op = &pool->op;
    if (!tide_op_is_open(pool) || op->count > op->capacity)
        return op->number == TIDE_OP_NONE && op->count == op->region_count &&
               op->param_count == op->region_count;
    for (uint32_t i = op->region_count; i < op->count; i++) {
        if (op->chunks[i] >= tide_layout_chunk_count(pool->context.packing->layout) ||
            op->accesses[i].index >= pool->context.plan.device_slots)
            return false;
    }
    return pool->step.is_open && (op->slice < tide_op_open(pool)->description->slices ||
                                  (op->slice == UINT32_MAX && op->count == op->param_count));
}

/* The most params of an op, at least 1. */
static uint32_t most_params(const tide_packing *packing)
{
    uint32_t most = 1;
    for (tide_op i = 0; i < packing->op_count; i++)
        if (packing->ops[i].description->param_count > most)
            most = packing->ops[i].description->param_count;
    return most;
}

/* Does the op use its end of the region? With one end its workspace is there. */
static bool has_end(const tide_pool *pool, const tide_packed_op *packed)
{
    return packed->turn > 0 || !pool->context.packing->two_ends;
}

/* May the accumulators of an op that begins overlap those of ops before it at the other end? Only a
 * neighbour's do not. */
static bool overlaps(const tide_pool *pool, const tide_packed_op *packed)
{
    return packed->turn > 0 && packed->turn != pool->op.turn + 1;
}

static tide_region_part other_end(const tide_packed_op *packed)
{
    return packed->end == TIDE_REGION_LOW ? TIDE_REGION_HIGH : TIDE_REGION_LOW;
}

/* Make the parts of the region that an op uses the first accesses, or with NULL those that kernels between
 * ops may use. */
static void set_region(tide_pool *pool, const tide_packed_op *packed)
{
    tide_open_op *op = &pool->op;
    const tide_pool_context *context = &pool->context;
    uint32_t count = tide_context_add_part(context, TIDE_REGION_NONMODEL, true, op->accesses, 0);
    if (packed != NULL)
        count = tide_context_add_part(context, TIDE_REGION_WORKSPACE, true, op->accesses, count);
    if (packed != NULL && has_end(pool, packed))
        count = tide_context_add_part(context, packed->end, true, op->accesses, count);
    if (packed != NULL && overlaps(pool, packed))
        count = tide_context_add_part(context, other_end(packed), true, op->accesses, count);
    if (packed != NULL && packed->uses_shared)
        count = tide_context_add_part(context, TIDE_REGION_SHARED, true, op->accesses, count);
    for (uint32_t i = 0; i < count; i++)
        op->chunks[i] = TIDE_CHUNK_NONE;
    op->region_count = op->count = op->param_count = count;
}

void tide_op_close(tide_pool *pool)
{
    pool->op.number = TIDE_OP_NONE;
    set_region(pool, NULL);
}

tide_status tide_op_create(tide_pool *pool)
{
    tide_open_op *op = &pool->op;
    op->capacity =
        TIDE_REGION_PARTS + (uint32_t)(pool->context.plan.largest_op_bytes / pool->context.plan.chunk_bytes);
    op->accesses = calloc(op->capacity, sizeof *op->accesses);
    op->chunks = calloc(op->capacity, sizeof *op->chunks);
    op->finished = calloc(most_params(pool->context.packing), sizeof *op->finished);
    op->finishing = calloc(op->capacity, sizeof *op->finishing);
    if (op->accesses == NULL || op->chunks == NULL || op->finished == NULL || op->finishing == NULL)
        return tide_fail(TIDE_ERROR_NO_MEMORY, "pool: no memory for an op of %u chunks", op->capacity);
    tide_op_close(pool);
    assert(tide_op_is_valid(pool));
    return TIDE_OK;
}

void tide_op_destroy(tide_pool *pool)
{
    free(pool->op.accesses);
    free(pool->op.chunks);
    free(pool->op.finished);
    free(pool->op.finishing);
    pool->op = (tide_open_op){.number = TIDE_OP_NONE};
}

/* --- held chunks --- */

/* Add a chunk, which is on the device and pinned, to the open op's accesses, and to `needs` the submissions
 * that used its slot. Returns at once if the last entry is the chunk, as it often is, since params of one
 * chunk follow each other. */
static void hold(tide_pool *pool, tide_chunk chunk, bool write, tide_needs *needs)
{
    tide_open_op *op = &pool->op;
    const uint32_t last = op->count - 1;
    if (op->count > op->region_count && op->chunks[last] == chunk && (!write || op->accesses[last].write))
        return;
    const uint32_t slot = tide_manager_held_slot(pool->engine.manager, chunk);
    const uint64_t collective = needs->numbers[TIDE_STREAM_COLLECTIVE];
    tide_needs_add(needs, &pool->order.marks[TIDE_TIER_DEVICE][slot], write);
    needs->numbers[TIDE_STREAM_COLLECTIVE] = collective; /* which finishes gradients of other params only */
    for (uint32_t i = op->region_count; i < op->count; i++) {
        if (op->chunks[i] != chunk)
            continue;
        op->accesses[i].write = op->accesses[i].write || write;
        return;
    }
    assert(op->count < op->capacity);
    op->chunks[op->count] = chunk;
    op->accesses[op->count++] = (tide_access){TIDE_OBJECT_DEVICE_SLOT, slot, write};
}

/* Hold each chunk of a param. The packing lists the chunks, so that an op's begin and end ask chunk/ only for
 * slots. */
static void hold_param(tide_pool *pool, tide_param number, bool write, tide_needs *needs)
{
    const tide_packed_param *param = &pool->context.packing->params[number];
    assert(number < pool->context.packing->param_count && param->first_chunk <= param->last_chunk);
    for (tide_chunk chunk = param->first_chunk; chunk <= param->last_chunk; chunk++)
        hold(pool, chunk, write, needs);
}

static void hold_activation(tide_pool *pool, tide_use use, uint32_t part, tide_needs *needs)
{
    const tide_named *activation = tide_layout_activation(pool->context.packing->layout, use.tensor);
    assert(part < activation->parts);
    const uint64_t chunk_bytes = pool->context.plan.chunk_bytes;
    const uint64_t begin = activation->offset + part * tide_align_up(activation->size);
    const uint64_t last = (begin + activation->size - 1) / chunk_bytes;
    for (uint64_t index = begin / chunk_bytes; index <= last; index++)
        hold(pool, pool->context.first_chunk[TIDE_SPACE_ACTIVATION] + (tide_chunk)index,
             (use.access & TIDE_ACCESS_WRITE) != 0, needs);
}

/* Make the compute stream wait for the submissions in `needs`. */
static tide_status go_on(tide_pool *pool, const tide_needs *needs)
{
    assert(tide_monitor_is_held(&pool->monitor) && tide_op_is_valid(pool));
    return tide_order_wait(&pool->order, TIDE_STREAM_COMPUTE, needs);
}

/* Add what must be finished before the op may use its parts of the region. */
static void need_region(tide_pool *pool, const tide_packed_op *packed, tide_needs *needs)
{
    const tide_marks *marks = pool->order.region_marks;
    if (packed->uses_shared)
        tide_needs_add(needs, &marks[TIDE_REGION_SHARED], true);
    if (has_end(pool, packed))
        tide_needs_add(needs, &marks[packed->end], true);
    if (overlaps(pool, packed))
        tide_needs_add(needs, &marks[other_end(packed)], true);
    if (packed->turn > 0)
        pool->op.turn = packed->turn;
}

static tide_status acquire_params(tide_pool *pool, const tide_op_description *op)
{
    tide_needs needs = {0};
    need_region(pool, tide_op_open(pool), &needs);
    for (uint32_t i = 0; i < op->param_count; i++)
        hold_param(pool, op->params[i].tensor, false, &needs);
    pool->op.param_count = pool->op.count;
    return go_on(pool, &needs);
}

static tide_status acquire_slice(tide_pool *pool, const tide_op_description *op, uint32_t slice)
{
    tide_needs needs = {0};
    pool->op.slice = slice;
    for (uint32_t i = 0; i < op->activation_count; i++)
        hold_activation(pool, op->activations[i], slice, &needs);
    return go_on(pool, &needs);
}

/* For options.checks.guard: make the addresses of the chunks held from `from` to `to` accessible or not.
 * Without the lock, since this enqueues many commands and may wait for space. */
static tide_status guard(tide_pool *pool, uint32_t from, uint32_t to, bool accessible)
{
    const tide_pool_context *context = &pool->context;
    tide_status status = TIDE_OK;
    assert(!tide_monitor_is_held(NULL) && from >= pool->op.region_count && to <= pool->op.count);
    for (uint32_t i = from; i < to && status == TIDE_OK && context->options.checks.guard; i++)
        status = context->device->ops->guard(context->device, TIDE_STREAM_COMPUTE,
                                             tide_context_place(context, pool->op.chunks[i]), accessible);
    return status;
}

/* Guard the chunks of the open slice; does nothing if no slice is open. */
static tide_status guard_slice(tide_pool *pool, bool accessible)
{
    return guard(pool, pool->op.param_count, pool->op.count, accessible);
}

/* Record the compute stream's work so far as a submission, and mark the slots held from `from` on as used by
 * it. The op enqueues no more work there that uses them. */
static tide_status release(tide_pool *pool, uint32_t from)
{
    tide_open_op *op = &pool->op;
    uint64_t number;
    const tide_status status = tide_order_record(&pool->order, TIDE_STREAM_COMPUTE, 0, &number);
    assert(tide_op_is_valid(pool) && from >= op->region_count);
    if (status != TIDE_OK)
        return status;
    for (uint32_t i = from; i < op->count; i++) {
        tide_marks_set(&pool->order.marks[TIDE_TIER_DEVICE][op->accesses[i].index], TIDE_STREAM_COMPUTE,
                       number, op->accesses[i].write);
    }
    return TIDE_OK;
}

static tide_status release_slice(tide_pool *pool)
{
    if (pool->op.slice == UINT32_MAX)
        return TIDE_OK;
    const tide_status status = release(pool, pool->op.param_count);
    if (status != TIDE_OK)
        return status;
    pool->op.count = pool->op.param_count;
    pool->op.slice = UINT32_MAX;
    assert(tide_op_is_valid(pool));
    return TIDE_OK;
}

/* --- begin, slice --- */

/* Wait until all chunks are ready that the op, or its slice, has requested from the manager. */
static tide_status wait_for_chunks(tide_pool *pool, tide_op op, uint32_t slice)
{
    tide_tracer *tracer = &pool->telemetry.tracer;
    tide_device *device = pool->context.device;
    tide_manager *manager = pool->engine.manager;
    const uint64_t asked_ns = tracer->on ? device->ops->now_ns(device) : 0;
    tide_tracer_stand(tracer, op, slice, tide_manager_follows(manager));
    const uint32_t lacked = tide_tracer_lacking(tracer, manager);
    const tide_status status = tide_engine_wait_request(&pool->engine);
    if (status == TIDE_OK && tracer->on) {
        tide_tracer_look(tracer, manager);
        tide_tracer_ready(tracer, tide_manager_requested(manager), lacked, asked_ns);
    }
    return status;
}

static tide_status begin_locked(tide_pool *pool, tide_op op)
{
    const tide_op_description *description = pool->context.packing->ops[op].description;
    tide_manager *manager = pool->engine.manager;
    tide_status status = TIDE_OK;
    tide_step_op_begins(pool);
    if (description->pass != TIDE_PASS_FORWARD)
        status = tide_gradients_check(tide_manager_gradients(manager), op);
    if (status == TIDE_OK && description->pass != TIDE_PASS_FORWARD)
        status = tide_step_backward_begins(pool);
    if (status == TIDE_OK)
        status = tide_manager_begin(manager, op);
    if (status != TIDE_OK)
        return status;
    assert(tide_op_is_valid(pool));
    pool->op.number = op;
    pool->op.slice = UINT32_MAX;
    set_region(pool, tide_op_open(pool));
    pool->telemetry.tracer.op = description->name;
    tide_measure_op(&pool->telemetry.measure, op, TIDE_SCRIPT_OP);
    status = wait_for_chunks(pool, op, TIDE_TRACE_NONE);
    return status == TIDE_OK ? acquire_params(pool, description) : status;
}

static tide_status check_begin(const tide_pool *pool, tide_op op)
{
    if (op >= pool->context.packing->op_count)
        return tide_fail(TIDE_ERROR_ARGUMENT, "tide_op_begin: there is no op %u", op);
    const tide_op_description *description = pool->context.packing->ops[op].description;
    if (!pool->step.is_open || tide_op_is_open(pool))
        return tide_fail(TIDE_ERROR_STATE, "tide_op_begin of %s: %s", description->name,
                         tide_op_is_open(pool) ? "an op is open" : "no step is open");
    if (description->pass != TIDE_PASS_FORWARD && !pool->step.options.training)
        return tide_fail(TIDE_ERROR_STATE,
                         "tide_op_begin of %s: it goes backward, and the pass is forward-only",
                         description->name);
    return TIDE_OK;
}

tide_status tide_op_begin(tide_pool *pool, tide_op op)
{
    tide_status status = tide_pool_callable(pool, "tide_op_begin");
    if (status == TIDE_OK)
        status = check_begin(pool, op);
    if (status != TIDE_OK)
        return status;
    tide_launch_lock(pool);
    status = begin_locked(pool, op);
    tide_monitor_unlock(&pool->monitor);
    if (status == TIDE_OK)
        status = guard(pool, pool->op.region_count, pool->op.param_count, true);
    if (status == TIDE_OK)
        status = tide_gradient_begin(pool);
    tide_ranks_call(pool, TIDE_CALL_OP_BEGIN, op);
    return tide_monitor_keep(&pool->monitor, status);
}

/* `refused`: the manager refused the slice and changed nothing. Chunks that it releases stay in their slots
 * while this holds the lock. */
static tide_status slice_locked(tide_pool *pool, uint32_t slice, bool *refused)
{
    tide_status status = tide_manager_slice(pool->engine.manager, slice);
    *refused = status != TIDE_OK;
    if (status == TIDE_OK)
        status = release_slice(pool);
    if (status != TIDE_OK)
        return status;
    tide_measure_op(&pool->telemetry.measure, pool->op.number, (int32_t)slice);
    status = wait_for_chunks(pool, pool->op.number, slice);
    return status == TIDE_OK ? acquire_slice(pool, tide_op_open(pool)->description, slice) : status;
}

static tide_status check_slice(const tide_pool *pool, uint32_t slice)
{
    if (!tide_op_is_open(pool))
        return tide_fail(TIDE_ERROR_STATE, "tide_op_slice: no op is open");
    const tide_op_description *op = tide_op_open(pool)->description;
    if (slice >= op->slices)
        return tide_fail(TIDE_ERROR_ARGUMENT, "tide_op_slice of %s: it has %u slices, no slice %u", op->name,
                         op->slices, slice);
    return tide_gradient_check_slice(pool, slice);
}

tide_status tide_op_slice(tide_pool *pool, uint32_t slice)
{
    tide_status status = tide_pool_callable(pool, "tide_op_slice");
    if (status == TIDE_OK)
        status = check_slice(pool, slice);
    if (status != TIDE_OK)
        return status;
    bool refused = false;
    status = guard_slice(pool, false);
    if (status != TIDE_OK)
        return tide_monitor_keep(&pool->monitor, status);
    tide_launch_lock(pool);
    status = slice_locked(pool, slice, &refused);
    tide_monitor_unlock(&pool->monitor);
    if (status == TIDE_OK)
        status = tide_gradient_slice(pool, slice);
    if (status == TIDE_OK ||
        refused) { /* open access to the new slice, or to the one before if the manager refused */
        const tide_status guarded = guard_slice(pool, true);
        status = status == TIDE_OK ? guarded : status;
    }
    if (!refused)
        tide_ranks_call(pool, TIDE_CALL_OP_SLICE, slice);
    return tide_monitor_keep(&pool->monitor, status);
}

/* --- finishing gradients --- */

/* Add a chunk to the accesses of kernels that finish gradients, unless it is there. */
static void finish_chunk(tide_pool *pool, tide_chunk chunk, tide_needs *needs)
{
    tide_open_op *op = &pool->op;
    const uint32_t slot = tide_manager_held_slot(pool->engine.manager, chunk);
    const tide_object_kind kind =
        op->finishing_stream == TIDE_STREAM_COMPUTE ? TIDE_OBJECT_DEVICE_SLOT : TIDE_OBJECT_SLOT_GRADIENTS;
    for (uint32_t i = 0; i < op->finishing_count; i++)
        if (op->finishing[i].kind == (uint32_t)kind && op->finishing[i].index == slot)
            return;
    assert(op->finishing_count < op->capacity);
    tide_needs_add(needs, &pool->order.marks[TIDE_TIER_DEVICE][slot], true);
    op->finishing[op->finishing_count++] = tide_writes(kind, slot);
}

/* Add each chunk of a param. On the compute stream the op itself then holds it for writing. */
static void finish_param(tide_pool *pool, tide_param number, tide_needs *needs)
{
    const tide_packed_param *param = &pool->context.packing->params[number];
    for (tide_chunk chunk = param->first_chunk; chunk <= param->last_chunk; chunk++)
        finish_chunk(pool, chunk, needs);
    if (pool->op.finishing_stream == TIDE_STREAM_COMPUTE)
        hold_param(pool, number, true, needs);
}

/* Before gradients are finished, with the lock: those of param `only`, or with UINT32_MAX all that the op
 * closes. The stream for that waits for the op's kernels so far, and for other uses of the memory that is
 * written. */
static tide_status finishing_begins(tide_pool *pool, tide_param only, tide_stream stream)
{
    tide_open_op *op = &pool->op;
    const tide_packed_op *packed = tide_op_open(pool);
    const struct {
        tide_region_part part;
        bool used;
    } parts[] = {{packed->end, has_end(pool, packed)},
                 {TIDE_REGION_SHARED, packed->uses_shared},
                 {TIDE_REGION_NORM, true}};
    tide_needs needs = {0};
    op->finishing_stream = stream;
    op->finishing_count = 0;
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++) {
        if (!parts[i].used)
            continue;
        op->finishing_count =
            tide_context_add_part(&pool->context, parts[i].part, true, op->finishing, op->finishing_count);
        tide_needs_add(&needs, &pool->order.region_marks[parts[i].part], true);
    }
    for (uint32_t i = 0; i < packed->description->param_count; i++) {
        const tide_use *use = &packed->description->params[i];
        if (only == use->tensor ||
            (only == UINT32_MAX &&
             tide_gradients_closes(tide_manager_gradients(pool->engine.manager), op->number, use)))
            finish_param(pool, use->tensor, &needs);
    }
    tide_status status = TIDE_OK;
    if (stream != TIDE_STREAM_COMPUTE) {
        const tide_needs copies = {.numbers = {[TIDE_STREAM_OUT] = needs.numbers[TIDE_STREAM_OUT]}};
        status = go_on(pool, &copies);
        if (status == TIDE_OK)
            status = release(pool, op->region_count);
        needs.numbers[TIDE_STREAM_OUT] = 0;
        needs.numbers[TIDE_STREAM_COMPUTE] = pool->order.recorded[TIDE_STREAM_COMPUTE];
    }
    return status == TIDE_OK ? tide_order_wait(&pool->order, stream, &needs) : status;
}

/* After that, with the lock, if the stream is not compute: mark the memory that was written as used by it. */
static tide_status finishing_ended(tide_pool *pool)
{
    const tide_open_op *op = &pool->op;
    const tide_stream stream = op->finishing_stream;
    uint64_t number;
    const tide_status status = tide_order_record(&pool->order, stream, 0, &number);
    for (uint32_t i = 0; i < op->finishing_count && status == TIDE_OK; i++) {
        const tide_access access = op->finishing[i];
        if (access.kind == TIDE_OBJECT_SLOT_GRADIENTS)
            tide_marks_set(&pool->order.marks[TIDE_TIER_DEVICE][access.index], stream, number, true);
        for (int part = 0; part < TIDE_REGION_PARTS && access.kind == TIDE_OBJECT_REGION; part++)
            if (pool->context.region_objects[part] == access.index)
                tide_marks_set(&pool->order.region_marks[part], stream, number, true);
    }
    return status;
}

tide_status tide_gradient_finish(tide_pool *pool, tide_param param, uint64_t first, uint64_t count)
{
    uint32_t use;
    tide_status status = tide_pool_callable(pool, "tide_gradient_finish");
    if (status == TIDE_OK)
        status = tide_gradient_check_range(pool, param, first, count, &use);
    if (status != TIDE_OK)
        return status;
    tide_launch_lock(pool);
    status = finishing_begins(pool, param, TIDE_STREAM_COMPUTE);
    tide_monitor_unlock(&pool->monitor);
    if (status == TIDE_OK)
        status = tide_gradient_range(pool, use, first, count);
    return tide_monitor_keep(&pool->monitor, status);
}

/* --- end --- */

/* Enqueue the rest of the op's work, before end_locked releases its params. */
static tide_status finish(tide_pool *pool)
{
    const bool backward = tide_op_open(pool)->description->pass != TIDE_PASS_FORWARD;
    tide_status status = guard_slice(pool, false);
    if (status != TIDE_OK)
        return status;
    assert(tide_step_is_valid(pool) && tide_op_is_valid(pool));
    status = tide_gradient_end_groups(pool);
    if (status != TIDE_OK)
        return status;
    tide_launch_lock(pool);
    status = release_slice(pool);
    if (status == TIDE_OK && backward)
        status = finishing_begins(pool, UINT32_MAX, tide_context_finish_stream(&pool->context));
    tide_monitor_unlock(&pool->monitor);
    if (status == TIDE_OK && backward)
        status = tide_gradient_end(pool);
    return status == TIDE_OK ? guard(pool, pool->op.region_count, pool->op.param_count, false) : status;
}

static tide_status end_locked(tide_pool *pool)
{
    tide_engine *engine = &pool->engine;
    const bool backward = tide_op_open(pool)->description->pass != TIDE_PASS_FORWARD;
    const bool beside = backward && pool->op.finishing_stream != TIDE_STREAM_COMPUTE;
    tide_status status = beside ? finishing_ended(pool) : release(pool, pool->op.region_count);
    if (status == TIDE_OK)
        status = tide_manager_end(engine->manager);
    if (status != TIDE_OK)
        return status;
    assert(pool->op.slice == UINT32_MAX);
    tide_engine_op_ended(engine);
    tide_measure_op(&pool->telemetry.measure, pool->op.number, TIDE_SCRIPT_END);
    tide_step_op_ends(pool);
    tide_tracer_look(&pool->telemetry.tracer, engine->manager);
    if (tide_manager_may_act(engine->manager))
        tide_engine_ring(engine, true);
    return TIDE_OK;
}

tide_status tide_op_end(tide_pool *pool)
{
    tide_status status = tide_pool_callable(pool, "tide_op_end");
    if (status != TIDE_OK)
        return status;
    if (!tide_op_is_open(pool))
        return tide_fail(TIDE_ERROR_STATE, "tide_op_end: no op is open");
    tide_ranks_call(pool, TIDE_CALL_OP_END, pool->op.number);
    status = finish(pool);
    if (status == TIDE_OK) {
        tide_launch_lock(pool);
        status = end_locked(pool);
        tide_monitor_unlock(&pool->monitor);
    }
    return tide_monitor_keep(&pool->monitor, status);
}
