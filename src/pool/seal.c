/* Seals a pool: makes a running pool from the registrations, and takes all memory that it will ever use. */
#include "src/pool/internal.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

static tide_status open_device(tide_pool *pool)
{
    const tide_pool_options *options = &pool->context.options;
    const tide_device_options device = {
        .device_memory_bytes = pool->context.plan.device_memory_bytes,
        .host_memory_bytes = pool->context.plan.host_memory_bytes,
        .chunk_bytes = options->chunk_bytes,
        .threads = options->threads,
        .link_bytes_per_second = options->link_bytes_per_second,
        .hazard_check = options->hazard_check,
        .guard = options->guard,
        .fault_handler = options->fault_handler,
        .delay_seed = options->delay_seed,
        .delay_max_us = options->delay_max_us,
        .skip_wait_site = options->skip_wait_site,
        .flops_per_second = options->machine.flops_per_second,
        .device_bytes_per_second = options->machine.device_bytes_per_second,
        .host_bytes_per_second = options->machine.host_bytes_per_second,
        .link_out_bytes_per_second = options->machine.link_out_bytes_per_second,
        .map_ns = options->machine.map_ns,
        .unmap_ns = options->machine.unmap_ns,
        .observer = tide_telemetry_observe,
        .observer_context = &pool->telemetry,
        .progress = options->progress,
        .progress_context = options->progress_context,
    };
    return tide_device_factory_open(&pool->context.factory, &device, &pool->context.device);
}

static tide_status create_memory(tide_pool *pool)
{
    tide_sealed_context *context = &pool->context;
    const tide_pool_plan *plan = &context->plan;
    tide_device *device = context->device;
    void *address;
    tide_status status = device->ops->region_create(device, plan->region_bytes, &address);
    if (status != TIDE_OK)
        return status;
    context->region = address;
    status = device->ops->region_object(device, "region", 0, plan->region_bytes, &context->region_object);
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
        context->first_chunk[space] = tide_layout_chunk(context->layout, (tide_space)space, 0);
    }
    return status;
}

/* Twice all registered ops and slices, as many as the manager's recording holds, and the ends of ops. */
static uint32_t script_lines(const tide_pool *pool)
{
    uint64_t lines = 0;
    for (uint32_t i = 0; i < pool->model.op_count; i++)
        lines += 2 * (UINT64_C(2) + pool->model.ops[i].description.slices);
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
        status = tide_measure_create(&pool->telemetry.measure, pool->model.op_count, script_lines(pool));
    return status;
}

/* Describe an address to the fault handler: its space, chunk and param. */
static void describe(void *of_pool, const void *address, char *text, size_t text_bytes)
{
    const tide_pool *pool = of_pool;
    const tide_sealed_context *context = &pool->context;
    for (int space = 0; space < TIDE_SPACE_COUNT; space++) {
        const char *begin = context->space_address[space];
        const uint64_t bytes = context->plan.chunks[space] * context->plan.chunk_bytes;
        if (begin == NULL || (const char *)address < begin || (const char *)address >= begin + bytes)
            continue;
        const uint64_t offset = (uint64_t)((const char *)address - begin);
        const uint64_t element_bytes = tide_sealed_element_bytes(context);
        const uint64_t element = offset / (space == TIDE_SPACE_PARAM ? element_bytes : sizeof(float));
        const char *param = "none";
        for (uint32_t i = 0; i < pool->model.param_count && space != TIDE_SPACE_ACTIVATION; i++) {
            if (pool->model.params[i].data_offset_bytes <= element * element_bytes)
                param = pool->model.params[i].name;
        }
        snprintf(text, text_bytes, "%s chunk %u, param %s", tide_space_name((tide_space)space),
                 (uint32_t)(offset / context->plan.chunk_bytes), param);
        return;
    }
    snprintf(text, text_bytes, "no chunk of the pool");
}

static void fill_places(tide_pool *pool)
{
    for (uint32_t i = 0; i < pool->model.param_count; i++) {
        tide_pool_param *param = &pool->model.params[i];
        tide_layout_param_chunks(pool->context.layout, i, &param->first_chunk, &param->last_chunk);
        assert(param->first_chunk <= param->last_chunk);
        param->data_offset_bytes = tide_layout_param(pool->context.layout, i)->offset *
                                   tide_dtype_bytes(pool->context.options.dtype);
    }
    for (uint32_t i = 0; i < pool->model.activation_count; i++)
        pool->model.activations[i].offset_bytes = tide_layout_activation(pool->context.layout, i)->offset;
}

void tide_pool_unseal(tide_pool *pool)
{
    tide_sealed_context *context = &pool->context;
    pool->sealed = false;
    tide_engine_stop(&pool->engine);
    assert(!tide_monitor_is_held(NULL));
    if (context->device != NULL)
        context->device->ops->close(context->device);
    context->device = NULL;
    tide_tracer_destroy(&pool->telemetry.tracer);
    tide_manager_destroy(pool->engine.manager);
    tide_layout_destroy(context->layout);
    pool->engine.manager = NULL;
    context->layout = NULL;
    tide_order_destroy(&pool->order);
    tide_running_tasks_destroy(&pool->running_tasks);
    tide_op_destroy(pool);
    tide_measure_destroy(&pool->telemetry.measure);
    memset(context->space_address, 0, sizeof context->space_address);
}

static tide_status plan(tide_pool *pool)
{
    tide_sealed_context *context = &pool->context;
    tide_manager **manager = &pool->engine.manager;
    tide_status status =
        tide_pool_policy_build(pool, context->options.chunk_bytes, &context->layout, manager);
    if (status == TIDE_OK)
        status = tide_pool_plan_make(pool, context->layout, *manager, context->options.device_memory_bytes,
                                     context->options.host_memory_bytes, true, &context->plan);
    if (status != TIDE_OK)
        return status;
    const tide_manager_options options = {.device_slots = context->plan.device_slots,
                                          .host_slots = context->plan.host_slots,
                                          .placement = context->options.placement,
                                          .prefetch = context->options.prefetch};
    pool->engine.commands.manager = *manager;
    pool->telemetry.counters.manager = *manager;
    return tide_manager_seal(*manager, &options);
}

static tide_status check(const tide_pool *pool)
{
    if (pool->sealed)
        return tide_fail(TIDE_ERROR_STATE, "tide_pool_seal: sealed already");
    return tide_pool_described(pool, "tide_pool_seal");
}

static void finish(tide_pool *pool)
{
    tide_sealed_context *context = &pool->context;
    for (uint32_t i = 0; i < tide_layout_space_chunks(context->layout, TIDE_SPACE_PARAM); i++)
        context->plan.device_updates += tide_manager_updates_on_device(
            pool->engine.manager, tide_layout_chunk(context->layout, TIDE_SPACE_PARAM, i));
    fill_places(pool);
    assert(tide_sealed_context_is_valid(context) && tide_order_is_valid(&pool->order));
    context->device->ops->set_describe(context->device, describe, pool);
    assert(!pool->sealed && !tide_op_is_open(pool));
    pool->sealed = true;
}

tide_status tide_pool_build(tide_pool *pool)
{
    tide_status status = check(pool);
    if (status != TIDE_OK)
        return status;
    status = plan(pool);
    if (status == TIDE_OK)
        status = open_device(pool);
    if (status == TIDE_OK)
        status = create_memory(pool);
    if (status == TIDE_OK)
        status = create_tables(pool);
    if (status == TIDE_OK) {
        finish(pool);
        status = tide_engine_start(&pool->engine);
    }
    if (status != TIDE_OK)
        tide_pool_unseal(pool);
    return status;
}
