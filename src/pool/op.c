/* Ops and slices, and the gradients' way into the params' own places.
 *
 * An op begins when all its chunks are mapped and their copies enqueued: the compute stream, not the caller,
 * waits for the copies. An op ends by enqueuing, for each gradient that it closes (chunk/gradients.h), the rounding of the
 * accumulator into the param's place and the norm of what then stands there; then a record closes the op's work, and its
 * number is the mark that evictions and updates of the op's chunks wait for.
 */
#include "src/pool/internal.h"

#include <assert.h>
#include <string.h>

const char tide_label_gradient_rounding[] = "gradient rounding", tide_label_gradient_norm[] = "gradient norm";

/* --- an op's chunks --- */

/* Tables of seal's, so that an op's begin and end ask chunk/ for nothing but residency. */
static void param_chunks(const tide_pool *pool, tide_param param, tide_chunk *first, tide_chunk *last)
{
    *first = pool->model.params[param].first_chunk;
    *last = pool->model.params[param].last_chunk;
}

static void checkpoint_chunks(const tide_pool *pool, tide_checkpoint number, uint32_t part, tide_chunk *first,
                              tide_chunk *last)
{
    const tide_pool_checkpoint *checkpoint = &pool->model.checkpoints[number];
    const uint64_t begin = checkpoint->offset_bytes + part * tide_align_up(checkpoint->part_bytes);
    *first =
        pool->ground.first_chunk[TIDE_SPACE_CHECKPOINT] + (tide_chunk)(begin / pool->ground.plan.chunk_bytes);
    *last = pool->ground.first_chunk[TIDE_SPACE_CHECKPOINT] +
            (tide_chunk)((begin + checkpoint->part_bytes - 1) / pool->ground.plan.chunk_bytes);
}

/* Where a chunk that the open op holds is. */
static uint32_t device_slot(const tide_pool *pool, tide_chunk chunk)
{
    tide_residency residency;
    tide_manager_residency(pool->engine.manager, chunk, &residency);
    assert(residency.device_valid && residency.pinned);
    return residency.device_slot;
}

static void *place_of(const tide_pool *pool, tide_chunk chunk)
{
    const tide_space space = chunk >= pool->ground.first_chunk[TIDE_SPACE_CHECKPOINT] &&
                                     pool->ground.plan.chunks[TIDE_SPACE_CHECKPOINT] > 0
                                 ? TIDE_SPACE_CHECKPOINT
                                 : TIDE_SPACE_PARAM;
    return pool->ground.space_address[space] +
           (chunk - pool->ground.first_chunk[space]) * pool->ground.plan.chunk_bytes;
}

/* Does the open op hold the chunk already, for as much as this? Params that lie in one chunk follow each other. */
static bool is_acquired(const tide_pool *pool, const tide_pool_op *op, tide_chunk chunk, bool write)
{
    const uint32_t last = pool->op.access_count - 1;
    return op->held[last] == chunk && (!write || op->accesses[last].write);
}

/* Note the access for launches, and whom the op's work must follow: whoever used the chunk's slot. */
static void acquire_chunk(tide_pool *pool, tide_pool_op *op, tide_chunk chunk, bool write, tide_needs *needs)
{
    if (is_acquired(pool, op, chunk, write))
        return;
    const uint32_t slot = device_slot(pool, chunk);
    tide_needs_add(needs, &pool->order.marks[TIDE_TIER_DEVICE][slot], write);
    for (uint32_t i = 0; i < pool->op.access_count; i++) {
        if (op->held[i] != chunk)
            continue;
        op->accesses[i].write = op->accesses[i].write || write;
        return;
    }
    assert(pool->op.access_count < op->access_capacity);
    op->held[pool->op.access_count] = chunk;
    op->accesses[pool->op.access_count++] = (tide_access){TIDE_OBJECT_DEVICE_SLOT, slot, write};
    tide_tracer_chunk(&pool->journal.tracer, "pin", chunk, "", "device", "");
}

static tide_status acquire_params(tide_pool *pool, tide_pool_op *op)
{
    tide_needs needs = {0};
    pool->op.access_count = 0;
    op->held[0] = TIDE_CHUNK_NONE;
    op->accesses[pool->op.access_count++] = tide_writes(TIDE_OBJECT_REGION, pool->ground.region_object);
    for (uint32_t i = 0; i < op->description.param_count; i++) {
        tide_chunk first, last;
        param_chunks(pool, op->description.params[i].tensor, &first, &last);
        for (tide_chunk chunk = first; chunk <= last; chunk++)
            acquire_chunk(pool, op, chunk, false, &needs);
    }
    pool->op.param_accesses = pool->op.access_count;
    return tide_order_wait(&pool->order, TIDE_STREAM_COMPUTE, &needs);
}

static tide_status acquire_slice(tide_pool *pool, tide_pool_op *op, uint32_t slice)
{
    tide_needs needs = {0};
    for (uint32_t i = 0; i < op->description.checkpoint_count; i++) {
        const tide_use use = op->description.checkpoints[i];
        tide_chunk first, last;
        checkpoint_chunks(pool, use.tensor, slice, &first, &last);
        for (tide_chunk chunk = first; chunk <= last; chunk++)
            acquire_chunk(pool, op, chunk, (use.access & TIDE_ACCESS_WRITE) != 0, &needs);
    }
    return tide_order_wait(&pool->order, TIDE_STREAM_COMPUTE, &needs);
}

/* With guards on, chunks of accesses [from, to) of the open op can't be used but while it holds them. Without the lock:
 * these are many commands. */
static tide_status guard_chunks(tide_pool *pool, const tide_pool_op *op, uint32_t from, uint32_t to,
                                bool accessible)
{
    tide_status status = TIDE_OK;
    for (uint32_t i = from; i < to && pool->ground.options.guard && status == TIDE_OK; i++) {
        if (op->held[i] != TIDE_CHUNK_NONE)
            status = pool->ground.device->ops->guard(pool->ground.device, TIDE_STREAM_COMPUTE,
                                                     place_of(pool, op->held[i]), accessible);
    }
    return status;
}

/* The compute stream is done with the chunks of accesses [from, to) of the open op: close the work so far; mark their
 * slots with it. */
static tide_status release_chunks(tide_pool *pool, const tide_pool_op *op, uint32_t from, uint32_t to)
{
    uint64_t number;
    const tide_status status = tide_order_record(&pool->order, TIDE_STREAM_COMPUTE, &number);
    for (uint32_t i = from; i < to && status == TIDE_OK; i++) {
        const tide_access access = op->accesses[i];
        if (op->held[i] == TIDE_CHUNK_NONE)
            continue;
        tide_marks_set(&pool->order.marks[TIDE_TIER_DEVICE][access.index], TIDE_STREAM_COMPUTE, number,
                       access.write);
        tide_tracer_chunk(&pool->journal.tracer, "unpin", op->held[i], "device", "", "");
    }
    return status;
}

static tide_status wait_request(tide_pool *pool)
{
    const bool ready = tide_engine_request_ready(&pool->engine);
    if (!ready || tide_manager_may_act(pool->engine.manager))
        tide_engine_ring(&pool->engine, true);
    return ready ? tide_monitor_failure(&pool->monitor)
                 : tide_engine_wait_held(&pool->engine, tide_engine_request_ready);
}

/* --- begin, slice --- */

/* Without clipping this step's updates begin as its gradients complete: the ones before have to be over by
 * then. */
tide_status tide_pool_begin_backward(tide_pool *pool)
{
    if (pool->step.backward_begun || !pool->step.options.training ||
        tide_norm_is_awaited(&pool->ground, &pool->step.options))
        return TIDE_OK;
    pool->step.backward_begun = true;
    const tide_status status = tide_engine_wait_held(&pool->engine, tide_engine_updates_done);
    if (status != TIDE_OK)
        return status;
    (void)tide_jobs_zero_gradients(&pool->jobs, NULL);
    tide_engine_let_go(&pool->engine, &pool->step.options, 1 / tide_norm_loss_scale(&pool->step.options));
    return TIDE_OK;
}

/* What an accumulator holds when it is first touched in a step. */
static tide_status zero_accumulators(tide_pool *pool, const tide_pool_op *op)
{
    const tide_gradients *gradients = tide_manager_gradients(pool->engine.manager);
    tide_status status = TIDE_OK;
    for (uint32_t i = 0; i < op->description.param_count && status == TIDE_OK; i++) {
        const tide_use use = op->description.params[i];
        if (use.access & TIDE_ACCESS_GRAD && !gradients->params[use.tensor].is_added)
            status = tide_pool_zero_region(pool, op->accumulator_offsets[i],
                                           pool->model.params[use.tensor].elements * sizeof(float));
    }
    return status;
}

static tide_status begin_op_locked(tide_pool *pool, tide_op op)
{
    tide_pool_op *opened = &pool->model.ops[op];
    tide_status status = TIDE_OK;
    if (!pool->step.first_op_begun && pool->step.options.training) {
        tide_engine_record_begin(&pool->engine);
        tide_stalls_ops_begin(&pool->journal.stalls);
    }
    pool->step.first_op_begun = true;
    if (opened->description.pass != TIDE_PASS_FORWARD)
        status = tide_gradients_check(tide_manager_gradients(pool->engine.manager), op);
    if (status == TIDE_OK && opened->description.pass != TIDE_PASS_FORWARD)
        status = tide_pool_begin_backward(pool);
    if (status == TIDE_OK)
        status = tide_manager_begin(pool->engine.manager, op);
    if (status != TIDE_OK)
        return status;
    pool->op.is_open = true;
    pool->op.number = op;
    pool->op.access_count = pool->op.param_accesses = 0;
    pool->journal.tracer.op = opened->description.name;
    pool->op.slice = UINT32_MAX;
    pool->journal.tracer.moment++;
    tide_measure_op(&pool->journal.measure, op, TIDE_SCRIPT_OP);
    status = wait_request(pool);
    return status == TIDE_OK ? acquire_params(pool, opened) : status;
}

tide_status tide_op_begin(tide_pool *pool, tide_op op)
{
    tide_status status = tide_pool_callable(pool, "tide_op_begin");
    if (status != TIDE_OK)
        return status;
    if (op >= pool->model.op_count)
        return tide_fail(TIDE_ERROR_ARGUMENT, "tide_op_begin: op %u is not registered", op);
    if (!pool->step.is_open || pool->op.is_open)
        return tide_fail(TIDE_ERROR_STATE, "tide_op_begin of %s: %s", pool->model.ops[op].description.name,
                         pool->op.is_open ? "an op is open" : "no step is open");
    if (pool->model.ops[op].description.pass != TIDE_PASS_FORWARD && !pool->step.options.training)
        return tide_fail(TIDE_ERROR_STATE,
                         "tide_op_begin of %s: it goes backward, and the pass is forward-only",
                         pool->model.ops[op].description.name);
    tide_pool_make_room(pool);
    tide_monitor_lock(&pool->monitor);
    status = begin_op_locked(pool, op);
    tide_monitor_unlock(&pool->monitor);
    if (status == TIDE_OK)
        status = guard_chunks(pool, &pool->model.ops[op], 0, pool->op.param_accesses, true);
    if (status == TIDE_OK)
        status = zero_accumulators(pool, &pool->model.ops[op]);
    return tide_monitor_keep(&pool->monitor, status);
}

/* The open slice's chunks are the accesses behind the params'; without one there are none. */
static tide_status guard_slice(tide_pool *pool, bool accessible)
{
    return guard_chunks(pool, &pool->model.ops[pool->op.number], pool->op.param_accesses,
                        pool->op.access_count, accessible);
}

static tide_status release_slice(tide_pool *pool, const tide_pool_op *op)
{
    if (pool->op.slice == UINT32_MAX)
        return TIDE_OK;
    const tide_status status = release_chunks(pool, op, pool->op.param_accesses, pool->op.access_count);
    if (status != TIDE_OK)
        return status;
    pool->op.access_count = pool->op.param_accesses;
    pool->op.slice = UINT32_MAX;
    return TIDE_OK;
}

/* The manager refuses before anything changes; what it releases stays where it is while we hold the lock. */
static tide_status slice_locked(tide_pool *pool, tide_pool_op *op, uint32_t slice, bool *refused)
{
    tide_status status = tide_manager_slice(pool->engine.manager, slice);
    *refused = status != TIDE_OK;
    if (status == TIDE_OK)
        status = release_slice(pool, op);
    if (status != TIDE_OK)
        return status;
    pool->journal.tracer.moment++;
    tide_measure_op(&pool->journal.measure, pool->op.number, (int32_t)slice);
    status = wait_request(pool);
    if (status != TIDE_OK)
        return status;
    pool->op.slice = slice;
    return acquire_slice(pool, op, slice);
}

tide_status tide_op_slice(tide_pool *pool, uint32_t slice)
{
    tide_status status = tide_pool_callable(pool, "tide_op_slice");
    if (status != TIDE_OK)
        return status;
    if (!pool->op.is_open)
        return tide_fail(TIDE_ERROR_STATE, "tide_op_slice: no op is open");
    tide_pool_op *op = &pool->model.ops[pool->op.number];
    if (slice >= op->description.slices)
        return tide_fail(TIDE_ERROR_ARGUMENT, "tide_op_slice of %s: it has %u slices, no slice %u",
                         op->description.name, op->description.slices, slice);
    bool refused = false;
    status = guard_slice(pool, false);
    if (status != TIDE_OK)
        return tide_monitor_keep(&pool->monitor, status);
    tide_pool_make_room(pool);
    tide_monitor_lock(&pool->monitor);
    status = slice_locked(pool, op, slice, &refused);
    tide_monitor_unlock(&pool->monitor);
    if (status == TIDE_OK || refused) { /* the new slice, or the one before as it was */
        const tide_status guarded = guard_slice(pool, true);
        status = status == TIDE_OK ? guarded : status;
    }
    return tide_monitor_keep(&pool->monitor, status);
}

/* --- gradients into place --- */

/* The op's gradients go where its params are, behind whoever else uses those slots: their accesses write from now on. With
 * the lock. */
static tide_status rounding_accesses(tide_pool *pool, tide_pool_op *op)
{
    const tide_gradients *gradients = tide_manager_gradients(pool->engine.manager);
    tide_needs needs = {0};
    for (uint32_t i = 0; i < op->description.param_count; i++) {
        tide_chunk first, last;
        if (!tide_gradients_closes(gradients, pool->op.number, &op->description.params[i]))
            continue;
        param_chunks(pool, op->description.params[i].tensor, &first, &last);
        for (tide_chunk chunk = first; chunk <= last; chunk++)
            acquire_chunk(pool, op, chunk, true, &needs);
    }
    return tide_order_wait(&pool->order, TIDE_STREAM_COMPUTE, &needs);
}

/* The accumulator into the param's place, and the norm of what stands there then. */
static tide_status launch_rounding(tide_pool *pool, const tide_pool_op *op, const tide_pool_param *param,
                                   tide_param number, uint64_t accumulator_offset)
{
    const tide_cast_args rounding = {.in = pool->ground.region + accumulator_offset,
                                     .out = tide_param_data(pool, number),
                                     .elements = param->elements,
                                     .in_dtype = TIDE_DTYPE_FP32,
                                     .out_dtype = pool->ground.options.dtype};
    const tide_gradient_norm_args norm = {
        .gradient = rounding.out,
        .blocks = (double *)(void *)(pool->ground.region + pool->ground.region_layout.blocks_offset) +
                  param->first_block,
        .first_element = 0,
        .elements = param->elements,
        .dtype = pool->ground.options.dtype};
    const tide_status rounded = tide_pool_compute_launch(
        pool, tide_label_gradient_rounding, pool->ground.kernels->cast, &rounding, sizeof rounding, 0,
        (double)tide_cast_bytes(&rounding), op->accesses, pool->op.param_accesses);
    if (rounded != TIDE_OK)
        return rounded;
    return tide_pool_compute_launch(pool, tide_label_gradient_norm, pool->ground.kernels->gradient_norm,
                                    &norm, sizeof norm, (double)tide_gradient_norm_flops(&norm),
                                    (double)tide_gradient_norm_bytes(&norm), op->accesses,
                                    pool->op.param_accesses);
}

static tide_status close_gradients(tide_pool *pool, const tide_pool_op *op)
{
    const tide_gradients *gradients = tide_manager_gradients(pool->engine.manager);
    tide_status status = TIDE_OK;
    for (uint32_t i = 0; i < op->description.param_count && status == TIDE_OK; i++) {
        const tide_use *use = &op->description.params[i];
        if (tide_gradients_closes(gradients, pool->op.number, use))
            status = launch_rounding(pool, op, &pool->model.params[use->tensor], use->tensor,
                                     op->accumulator_offsets[i]);
    }
    return status;
}

static tide_status end_op(tide_pool *pool)
{
    const tide_status status = tide_manager_end(pool->engine.manager);
    if (status == TIDE_OK)
        tide_engine_op_ended(&pool->engine);
    return status;
}

/* Everything that the op still enqueues, but for what ends its slice. */
static tide_status finish_op(tide_pool *pool, tide_pool_op *op)
{
    const bool backward = op->description.pass != TIDE_PASS_FORWARD;
    tide_pool_make_room(pool);
    tide_monitor_lock(&pool->monitor);
    tide_status status = release_slice(pool, op);
    if (status == TIDE_OK && backward)
        status = rounding_accesses(pool, op);
    tide_monitor_unlock(&pool->monitor);
    if (status == TIDE_OK && backward)
        status = close_gradients(pool, op);
    return status == TIDE_OK ? guard_chunks(pool, op, 0, pool->op.param_accesses, false) : status;
}

tide_status tide_op_end(tide_pool *pool)
{
    tide_status status = tide_pool_callable(pool, "tide_op_end");
    if (status != TIDE_OK)
        return status;
    if (!pool->op.is_open)
        return tide_fail(TIDE_ERROR_STATE, "tide_op_end: no op is open");
    tide_pool_op *op = &pool->model.ops[pool->op.number];
    status = guard_slice(pool, false);
    if (status == TIDE_OK)
        status = finish_op(pool, op);
    if (status != TIDE_OK)
        return tide_monitor_keep(&pool->monitor, status);
    tide_monitor_lock(&pool->monitor);
    status = release_chunks(pool, op, 0, pool->op.param_accesses);
    if (status == TIDE_OK)
        status = end_op(pool);
    if (status == TIDE_OK) {
        tide_measure_op(&pool->journal.measure, pool->op.number, TIDE_SCRIPT_END);
        pool->op.is_open = false;
        pool->journal.tracer.op = NULL;
        if (tide_manager_may_act(pool->engine.manager))
            tide_engine_ring(&pool->engine, true);
    }
    tide_monitor_unlock(&pool->monitor);
    return tide_monitor_keep(&pool->monitor, status);
}
