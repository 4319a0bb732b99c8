#include "src/pool/op.h"

#include "src/pool/internal.h"

#include <assert.h>

/* Launches declare what is held; without a slice that is the region and params. */
bool tide_open_op_is_valid(const tide_open_op *open)
{
    if (!tide_open_op_is_there(open))
        return open->launcher->access_count == 0;
    const tide_op_description *op = &tide_open_op_registered(open)->description;
    return open->step->is_open && open->launcher->access_count == open->holds.count &&
           (open->slice < op->slices ||
            (open->slice == UINT32_MAX && open->holds.count == open->holds.param_count));
}

/* --- an op's chunks --- */

/* Tables of seal's, so that an op's begin and end ask chunk/ for nothing but residency. */
static void hold_param(tide_open_op *open, tide_param number, bool write, tide_needs *needs)
{
    const tide_pool_param *param = &open->model->params[number];
    assert(number < open->model->param_count);
    if (param->first_chunk != param->last_chunk ||
        !tide_holds_has_last(&open->holds, param->first_chunk, write))
        tide_holds_add(&open->holds, param->first_chunk, param->last_chunk, write, needs);
}

static void hold_checkpoint(tide_open_op *open, tide_use use, uint32_t part, tide_needs *needs)
{
    const tide_pool_checkpoint *checkpoint = &open->model->checkpoints[use.tensor];
    assert(part < checkpoint->parts);
    const uint64_t chunk_bytes = open->ground->plan.chunk_bytes;
    const uint64_t begin = checkpoint->offset_bytes + part * tide_align_up(checkpoint->part_bytes);
    const tide_chunk space = open->ground->first_chunk[TIDE_SPACE_CHECKPOINT];
    tide_holds_add(&open->holds, space + (tide_chunk)(begin / chunk_bytes),
                   space + (tide_chunk)((begin + checkpoint->part_bytes - 1) / chunk_bytes),
                   (use.access & TIDE_ACCESS_WRITE) != 0, needs);
}

/* The compute stream waits for what these need; launches declare what is held now. */
static tide_status go_on(tide_open_op *open, const tide_needs *needs)
{
    assert(tide_holds_is_valid(&open->holds));
    open->launcher->accesses = open->holds.accesses;
    open->launcher->access_count = open->holds.count;
    return tide_order_wait(open->engine->order, TIDE_STREAM_COMPUTE, needs);
}

static tide_status acquire_params(tide_open_op *open, const tide_op_description *op)
{
    tide_needs needs = {0};
    tide_holds_begin(&open->holds);
    for (uint32_t i = 0; i < op->param_count; i++)
        hold_param(open, op->params[i].tensor, false, &needs);
    open->holds.param_count = open->holds.count;
    return go_on(open, &needs);
}

static tide_status acquire_slice(tide_open_op *open, const tide_op_description *op, uint32_t slice)
{
    tide_needs needs = {0};
    open->slice = slice;
    for (uint32_t i = 0; i < op->checkpoint_count; i++)
        hold_checkpoint(open, op->checkpoints[i], slice, &needs);
    return go_on(open, &needs);
}

/* The open slice's chunks are the holds behind the params'; without one there are none. */
static tide_status guard_slice(const tide_open_op *open, bool accessible)
{
    if (!open->ground->options.guard)
        return TIDE_OK;
    return tide_holds_guard(&open->holds, open->holds.param_count, open->holds.count, accessible);
}

static tide_status guard_params(const tide_open_op *open, bool accessible)
{
    if (!open->ground->options.guard)
        return TIDE_OK;
    return tide_holds_guard(&open->holds, 0, open->holds.param_count, accessible);
}

static tide_status release_slice(tide_open_op *open)
{
    if (open->slice == UINT32_MAX)
        return TIDE_OK;
    const tide_status status = tide_holds_release(&open->holds, open->holds.param_count);
    if (status != TIDE_OK)
        return status;
    open->launcher->access_count = open->holds.count = open->holds.param_count;
    open->slice = UINT32_MAX;
    assert(tide_open_op_is_valid(open));
    return TIDE_OK;
}

static tide_status wait_request(tide_engine *engine)
{
    assert(tide_monitor_is_held(engine->monitor));
    const bool ready = tide_manager_ready(engine->manager);
    if (!ready || tide_manager_may_act(engine->manager))
        tide_engine_ring(engine, true);
    return ready ? tide_monitor_failure(engine->monitor)
                 : tide_engine_wait_held(engine, tide_engine_request_ready);
}

/* --- begin, slice --- */

/* What an accumulator holds when it is first touched in a step. */
static tide_status zero_accumulators(tide_open_op *open)
{
    const tide_gradients *gradients = tide_manager_gradients(open->engine->manager);
    const tide_pool_op *op = tide_open_op_registered(open);
    tide_status status = TIDE_OK;
    for (uint32_t i = 0; i < op->description.param_count && status == TIDE_OK; i++) {
        const tide_use use = op->description.params[i];
        if (use.access & TIDE_ACCESS_GRAD && !gradients->params[use.tensor].is_added)
            status = tide_launcher_zero_region(open->launcher, op->accumulator_offsets[i],
                                               open->model->params[use.tensor].elements * sizeof(float));
    }
    return status;
}

static void note_moment(tide_open_op *open, int32_t slice)
{
    open->engine->journal->tracer.moment++;
    tide_measure_op(&open->engine->journal->measure, open->launcher->op, slice);
}

static tide_status begin_locked(tide_open_op *open, tide_op op)
{
    const tide_op_description *description = &open->model->ops[op].description;
    tide_engine *engine = open->engine;
    tide_status status = TIDE_OK;
    tide_step_op_begins(open->step);
    if (description->pass != TIDE_PASS_FORWARD)
        status = tide_gradients_check(tide_manager_gradients(engine->manager), op);
    if (status == TIDE_OK && description->pass != TIDE_PASS_FORWARD)
        status = tide_step_backward_begins(open->step);
    if (status == TIDE_OK)
        status = tide_manager_begin(engine->manager, op);
    if (status != TIDE_OK)
        return status;
    assert(tide_open_op_is_valid(open));
    open->launcher->op = op;
    open->slice = UINT32_MAX;
    engine->journal->tracer.op = description->name;
    note_moment(open, TIDE_SCRIPT_OP);
    status = wait_request(engine);
    return status == TIDE_OK ? acquire_params(open, description) : status;
}

static tide_status check_begin(const tide_open_op *open, tide_op op)
{
    if (op >= open->model->op_count)
        return tide_fail(TIDE_ERROR_ARGUMENT, "tide_op_begin: op %u is not registered", op);
    const tide_op_description *description = &open->model->ops[op].description;
    if (!open->step->is_open || tide_open_op_is_there(open))
        return tide_fail(TIDE_ERROR_STATE, "tide_op_begin of %s: %s", description->name,
                         tide_open_op_is_there(open) ? "an op is open" : "no step is open");
    if (description->pass != TIDE_PASS_FORWARD && !open->step->options.training)
        return tide_fail(TIDE_ERROR_STATE,
                         "tide_op_begin of %s: it goes backward, and the pass is forward-only",
                         description->name);
    return TIDE_OK;
}

tide_status tide_op_begin(tide_pool *pool, tide_op op)
{
    tide_status status = tide_pool_callable(pool, "tide_op_begin");
    if (status == TIDE_OK)
        status = check_begin(&pool->op, op);
    if (status != TIDE_OK)
        return status;
    tide_launcher_make_room(&pool->launch);
    tide_monitor_lock(&pool->monitor);
    status = begin_locked(&pool->op, op);
    tide_monitor_unlock(&pool->monitor);
    if (status == TIDE_OK)
        status = guard_params(&pool->op, true);
    if (status == TIDE_OK)
        status = zero_accumulators(&pool->op);
    return tide_monitor_keep(&pool->monitor, status);
}

/* The manager refuses before anything changes; what it releases stays where it is while we hold the lock. */
static tide_status slice_locked(tide_open_op *open, uint32_t slice, bool *refused)
{
    tide_status status = tide_manager_slice(open->engine->manager, slice);
    *refused = status != TIDE_OK;
    if (status == TIDE_OK)
        status = release_slice(open);
    if (status != TIDE_OK)
        return status;
    note_moment(open, (int32_t)slice);
    status = wait_request(open->engine);
    return status == TIDE_OK ? acquire_slice(open, &tide_open_op_registered(open)->description, slice)
                             : status;
}

static tide_status check_slice(const tide_open_op *open, uint32_t slice)
{
    if (!tide_open_op_is_there(open))
        return tide_fail(TIDE_ERROR_STATE, "tide_op_slice: no op is open");
    const tide_op_description *op = &tide_open_op_registered(open)->description;
    if (slice >= op->slices)
        return tide_fail(TIDE_ERROR_ARGUMENT, "tide_op_slice of %s: it has %u slices, no slice %u", op->name,
                         op->slices, slice);
    return TIDE_OK;
}

tide_status tide_op_slice(tide_pool *pool, uint32_t slice)
{
    tide_status status = tide_pool_callable(pool, "tide_op_slice");
    if (status == TIDE_OK)
        status = check_slice(&pool->op, slice);
    if (status != TIDE_OK)
        return status;
    bool refused = false;
    status = guard_slice(&pool->op, false);
    if (status != TIDE_OK)
        return tide_monitor_keep(&pool->monitor, status);
    tide_launcher_make_room(&pool->launch);
    tide_monitor_lock(&pool->monitor);
    status = slice_locked(&pool->op, slice, &refused);
    tide_monitor_unlock(&pool->monitor);
    if (status == TIDE_OK || refused) { /* the new slice, or the one before as it was */
        const tide_status guarded = guard_slice(&pool->op, true);
        status = status == TIDE_OK ? guarded : status;
    }
    return tide_monitor_keep(&pool->monitor, status);
}

/* --- gradients into place --- */

/* The op's gradients go where its params are, behind whoever else uses those slots: their accesses write from now on. With
 * the lock. */
static tide_status rounding_accesses(tide_open_op *open)
{
    const tide_gradients *gradients = tide_manager_gradients(open->engine->manager);
    const tide_op_description *op = &tide_open_op_registered(open)->description;
    tide_needs needs = {0};
    for (uint32_t i = 0; i < op->param_count; i++) {
        if (tide_gradients_closes(gradients, open->launcher->op, &op->params[i]))
            hold_param(open, op->params[i].tensor, true, &needs);
    }
    return go_on(open, &needs);
}

/* The accumulator into the param's place, and the norm of what stands there then. */
static tide_status launch_rounding(const tide_open_op *open, const tide_pool_param *param,
                                   uint64_t accumulator_offset)
{
    const tide_ground *ground = open->ground;
    assert(accumulator_offset + param->elements * sizeof(float) <= ground->plan.region_bytes);
    const tide_cast_args rounding = {.in = ground->region + accumulator_offset,
                                     .out =
                                         ground->space_address[TIDE_SPACE_PARAM] + param->data_offset_bytes,
                                     .elements = param->elements,
                                     .in_dtype = TIDE_DTYPE_FP32,
                                     .out_dtype = ground->options.dtype};
    const tide_gradient_norm_args norm = {
        .gradient = rounding.out,
        .blocks =
            (double *)(void *)(ground->region + ground->region_layout.blocks_offset) + param->first_block,
        .first_element = 0,
        .elements = param->elements,
        .dtype = ground->options.dtype};
    const tide_kernel_work kernels[] = {
        {"gradient rounding", ground->kernels->cast, &rounding, sizeof rounding, 0,
         (double)tide_cast_bytes(&rounding), TIDE_PART_END},
        {"gradient norm", ground->kernels->gradient_norm, &norm, sizeof norm,
         (double)tide_gradient_norm_flops(&norm), (double)tide_gradient_norm_bytes(&norm), TIDE_PART_END}};
    tide_status status = TIDE_OK;
    for (int i = 0; i < 2 && status == TIDE_OK; i++)
        status =
            tide_launcher_kernel(open->launcher, &kernels[i], open->holds.accesses, open->holds.param_count);
    return status;
}

static tide_status close_gradients(const tide_open_op *open)
{
    const tide_gradients *gradients = tide_manager_gradients(open->engine->manager);
    const tide_pool_op *op = tide_open_op_registered(open);
    tide_status status = TIDE_OK;
    for (uint32_t i = 0; i < op->description.param_count && status == TIDE_OK; i++) {
        const tide_use *use = &op->description.params[i];
        if (tide_gradients_closes(gradients, open->launcher->op, use))
            status = launch_rounding(open, &open->model->params[use->tensor], op->accumulator_offsets[i]);
    }
    return status;
}

/* --- end --- */

/* Everything that the op still enqueues, but for what ends its slice. */
static tide_status finish(tide_open_op *open)
{
    const bool backward = tide_open_op_registered(open)->description.pass != TIDE_PASS_FORWARD;
    tide_monitor *monitor = open->engine->monitor;
    assert(tide_step_is_valid(open->step) && tide_open_op_is_valid(open));
    tide_launcher_make_room(open->launcher);
    tide_monitor_lock(monitor);
    tide_status status = release_slice(open);
    if (status == TIDE_OK && backward)
        status = rounding_accesses(open);
    tide_monitor_unlock(monitor);
    if (status == TIDE_OK && backward)
        status = close_gradients(open);
    return status == TIDE_OK ? guard_params(open, false) : status;
}

static tide_status end_locked(tide_open_op *open)
{
    tide_engine *engine = open->engine;
    tide_status status = tide_holds_release(&open->holds, 0);
    if (status == TIDE_OK)
        status = tide_manager_end(engine->manager);
    if (status != TIDE_OK)
        return status;
    assert(open->slice == UINT32_MAX);
    tide_engine_op_ended(engine);
    tide_measure_op(&engine->journal->measure, open->launcher->op, TIDE_SCRIPT_END);
    tide_step_op_ends(open->step);
    if (tide_manager_may_act(engine->manager))
        tide_engine_ring(engine, true);
    return TIDE_OK;
}

tide_status tide_op_end(tide_pool *pool)
{
    tide_status status = tide_pool_callable(pool, "tide_op_end");
    if (status != TIDE_OK)
        return status;
    if (!tide_open_op_is_there(&pool->op))
        return tide_fail(TIDE_ERROR_STATE, "tide_op_end: no op is open");
    status = guard_slice(&pool->op, false);
    if (status == TIDE_OK)
        status = finish(&pool->op);
    if (status != TIDE_OK)
        return tide_monitor_keep(&pool->monitor, status);
    tide_monitor_lock(&pool->monitor);
    status = end_locked(&pool->op);
    tide_monitor_unlock(&pool->monitor);
    return tide_monitor_keep(&pool->monitor, status);
}
