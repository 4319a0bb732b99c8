/* Makes a running pool from a planned context, and allocates all memory that the pool will ever use. */
#include "src/pool/internal.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>

static tide_status open_device(tide_pool *pool)
{
    const tide_pool_options *options = &pool->context.options;
    const tide_device_options device = {
        .device_memory_bytes = pool->context.plan.device_memory_bytes,
        .host_memory_bytes = pool->context.plan.host_memory_bytes,
        .chunk_bytes = options->chunk_bytes,
        .threads = options->threads,
        .link_bytes_per_second = options->link_bytes_per_second,
        .checks = options->checks,
        .machine = options->machine,
        .observer = tide_telemetry_observe,
        .observer_context = &pool->telemetry,
        .progress = options->progress,
        .progress_context = options->progress_context,
    };
    return tide_device_factory_open(&pool->context.factory, &device, &pool->context.device);
}

static tide_status create_region(tide_pool_context *context)
{
    static const char *const names[TIDE_REGION_PARTS] = {
        [TIDE_REGION_NONMODEL] = "region",       [TIDE_REGION_SHARED] = "shared accumulators",
        [TIDE_REGION_NORM] = "norm sums",        [TIDE_REGION_WORKSPACE] = "workspace",
        [TIDE_REGION_LOW] = "accumulators, low", [TIDE_REGION_HIGH] = "accumulators, high"};
    tide_device *device = context->device;
    void *address;
    tide_status status = device->ops->region_create(device, context->plan.region_bytes, &address);
    if (status == TIDE_OK)
        context->region = address;
    for (int part = 0; part < TIDE_REGION_PARTS && status == TIDE_OK; part++) {
        const tide_region_range range = tide_packing_part(context->packing, (tide_region_part)part);
        context->region_objects[part] = UINT32_MAX;
        if (range.begin < range.end)
            status = device->ops->region_object(device, names[part], range.begin, range.end - range.begin,
                                                &context->region_objects[part]);
    }
    return status;
}

static tide_status create_memory(tide_pool *pool)
{
    tide_pool_context *context = &pool->context;
    const tide_pool_plan *plan = &context->plan;
    tide_device *device = context->device;
    void *address;
    tide_status status = create_region(context);
    if (status == TIDE_OK)
        status = tide_staging_create(pool);
    if (status == TIDE_OK)
        status = tide_norm_create(&pool->norm);
    if (status == TIDE_OK)
        status = tide_running_tasks_create(&pool->running_tasks);
    if (status == TIDE_OK)
        status = device->ops->slots_create(device, TIDE_TIER_DEVICE, plan->device_slots);
    if (status == TIDE_OK)
        status = device->ops->slots_create(device, TIDE_TIER_HOST, plan->host_slots);
    for (int space = 0; space < TIDE_SPACE_COUNT && status == TIDE_OK; space++) {
        if (plan->chunks[space] == 0)
            continue;
        status = device->ops->reserve(device, plan->chunks[space] * plan->chunk_bytes, &address);
        if (status == TIDE_OK)
            context->space_address[space] = address;
        context->first_chunk[space] = tide_layout_chunk(context->packing->layout, (tide_space)space, 0);
    }
    return status;
}

/* How many lines of a script a step may have: twice all ops and slices of the description, which is the limit
 * of the manager's recording, too, and the ends of those ops. */
static uint32_t script_lines(const tide_pool *pool)
{
    uint64_t lines = 0;
    for (uint32_t i = 0; i < pool->context.packing->op_count; i++)
        lines += 2 * (UINT64_C(2) + pool->context.packing->ops[i].description->slices);
    return lines < INT32_MAX ? (uint32_t)lines : INT32_MAX;
}

static tide_status create_tables(tide_pool *pool)
{
    const uint32_t slots[TIDE_TIER_COUNT] = {[TIDE_TIER_DEVICE] = pool->context.plan.device_slots,
                                             [TIDE_TIER_HOST] = pool->context.plan.host_slots};
    tide_tracer *tracer = &pool->telemetry.tracer;
    tide_status status = tide_order_create(&pool->order, pool->context.device, tracer, slots);
    if (status == TIDE_OK)
        status = tide_tracer_create(tracer);
    if (status == TIDE_OK && tracer->on)
        status = tide_manager_watch(pool->engine.manager);
    if (status == TIDE_OK)
        status = tide_op_create(pool);
    if (status == TIDE_OK)
        status = tide_ranks_create(pool);
    pool->covered = calloc(pool->context.packing->param_count, sizeof *pool->covered);
    if (status == TIDE_OK && pool->covered == NULL)
        status = tide_fail(TIDE_ERROR_NO_MEMORY, "pool: no memory for %u params",
                           pool->context.packing->param_count);
    if (status == TIDE_OK)
        status = tide_measure_create(&pool->telemetry.measure, pool->context.packing->op_count,
                                     script_lines(pool));
    return status;
}

/* Describe an address to the fault handler: its space, chunk and param. */
static void describe(void *of_pool, const void *address, char *text, size_t text_bytes)
{
    const tide_pool *pool = of_pool;
    const tide_pool_context *context = &pool->context;
    for (int space = 0; space < TIDE_SPACE_COUNT; space++) {
        const char *begin = context->space_address[space];
        const uint64_t bytes = context->plan.chunks[space] * context->plan.chunk_bytes;
        if (begin == NULL || (const char *)address < begin || (const char *)address >= begin + bytes)
            continue;
        const uint64_t offset = (uint64_t)((const char *)address - begin);
        const uint64_t element_bytes = tide_context_element_bytes(context);
        const uint64_t element = offset / (space == TIDE_SPACE_PARAM ? element_bytes : sizeof(float));
        const char *param = "none";
        const tide_packing *packing = context->packing;
        for (tide_param i = 0; i < packing->param_count && space != TIDE_SPACE_ACTIVATION; i++)
            if (packing->params[i].data_offset_bytes <= element * element_bytes)
                param = packing->params[i].name;
        snprintf(text, text_bytes, "%s chunk %u, param %s", tide_space_name((tide_space)space),
                 (uint32_t)(offset / context->plan.chunk_bytes), param);
        return;
    }
    snprintf(text, text_bytes, "no chunk of the pool");
}

void tide_pool_unbuild(tide_pool *pool)
{
    tide_pool_context *context = &pool->context;
    if (pool->step.is_open) /* else the collectives that are under way end */
        tide_context_abort(context, "the pool was destroyed within a step");
    tide_engine_stop(&pool->engine);
    assert(!tide_monitor_is_held(NULL));
    if (context->device != NULL)
        context->device->ops->close(context->device);
    tide_tracer_destroy(&pool->telemetry.tracer);
    tide_manager_destroy(pool->engine.manager);
    tide_order_destroy(&pool->order);
    tide_running_tasks_destroy(&pool->running_tasks);
    tide_op_destroy(pool);
    tide_ranks_destroy(pool);
    tide_measure_destroy(&pool->telemetry.measure);
}

static tide_status create_manager(tide_pool *pool)
{
    const tide_pool_context *context = &pool->context;
    const tide_manager_options options = {.device_slots = context->plan.device_slots,
                                          .host_slots = context->plan.host_slots,
                                          .placement = context->options.placement,
                                          .prefetch = context->options.prefetch};
    const tide_status status = tide_manager_create(context->packing->layout, &options, &pool->engine.manager);
    pool->engine.commands.manager = pool->engine.manager;
    pool->telemetry.counters.manager = pool->engine.manager;
    return status;
}

static void finish(tide_pool *pool)
{
    tide_pool_context *context = &pool->context;
    const tide_layout *layout = context->packing->layout;
    for (uint32_t i = 0; i < tide_layout_space_chunks(layout, TIDE_SPACE_PARAM); i++)
        context->plan.device_updates += tide_manager_updates_on_device(
            pool->engine.manager, tide_layout_chunk(layout, TIDE_SPACE_PARAM, i));
    assert(tide_pool_context_is_valid(context) && tide_order_is_valid(&pool->order));
    assert(!tide_op_is_open(pool));
    context->device->ops->set_describe(context->device, describe, pool);
}

tide_status tide_pool_build(tide_pool *pool)
{
    tide_status status = create_manager(pool);
    if (status == TIDE_OK)
        status = open_device(pool);
    if (status == TIDE_OK)
        status = create_memory(pool);
    if (status == TIDE_OK)
        status = create_tables(pool);
    if (status != TIDE_OK)
        return status;
    finish(pool);
    return tide_engine_start(&pool->engine);
}
