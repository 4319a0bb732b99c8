/* Values in and out: params and optimizer state through the host tier, region bytes through the staging
 * buffer. */
#include "src/pool/internal.h"

#include <assert.h>
#include <string.h>

const char tide_label_write[] = "write";

/* --- region bytes --- */

static tide_status staging_free(tide_pool *pool, uint32_t half)
{
    const uint64_t number = pool->staging.numbers[half];
    if (number == 0)
        return TIDE_OK;
    tide_monitor_lock(&pool->monitor);
    const tide_event event = tide_order_event(&pool->order, TIDE_STREAM_COMPUTE, number);
    tide_monitor_unlock(&pool->monitor);
    return pool->ground.device->ops->event_wait(pool->ground.device, event, TIDE_SITE_STAGING_COMPUTE);
}

static tide_status touch_staging(tide_pool *pool, uint32_t half, bool write)
{
    const tide_access access = {TIDE_OBJECT_BUFFER, pool->staging.objects[half], write};
    const tide_work work = {
        .label = write ? "fill staging" : "read staging", .accesses = &access, .access_count = 1};
    return pool->ground.device->ops->host_touch(pool->ground.device, &work);
}

static tide_status staging_copy(tide_pool *pool, const char *label, uint32_t half, void *to, const void *from,
                                size_t bytes, bool to_device, uint64_t *number)
{
    const tide_access accesses[] = {{TIDE_OBJECT_REGION, pool->ground.region_object, to_device},
                                    {TIDE_OBJECT_BUFFER, pool->staging.objects[half], !to_device}};
    const tide_work work = {
        .label = label, .tag = tide_pool_compute_tag(pool), .accesses = accesses, .access_count = 2};
    assert(tide_order_may_enqueue(&pool->order, TIDE_STREAM_COMPUTE));
    tide_status status = pool->ground.device->ops->copy_bytes(pool->ground.device, TIDE_STREAM_COMPUTE, &work,
                                                              to, from, bytes, to_device);
    if (status != TIDE_OK)
        return status;
    tide_monitor_lock(&pool->monitor);
    status = tide_order_record(&pool->order, TIDE_STREAM_COMPUTE, number);
    tide_monitor_unlock(&pool->monitor);
    return status;
}

/* The caller's part of the region only, as declared: behind it the pool keeps gradients and norms. */
static tide_status check_region(tide_pool *pool, const char *call, const void *address, size_t bytes)
{
    const tide_status status = tide_pool_callable(pool, call);
    if (status != TIDE_OK)
        return status;
    const uint64_t at = (uint64_t)((uintptr_t)address - (uintptr_t)pool->ground.region);
    const uint64_t most = pool->ground.options.nonmodel_bytes;
    if (at <= most && bytes <= most - at)
        return TIDE_OK;
    return tide_fail(TIDE_ERROR_ARGUMENT,
                     "%s: %zu bytes at %p are not inside the %llu nonmodel_bytes of the region", call, bytes,
                     address, (unsigned long long)most);
}

static tide_status write_region(tide_pool *pool, void *region, const void *source, size_t bytes)
{
    const size_t half_bytes = pool->ground.options.staging_bytes / 2;
    tide_status status = TIDE_OK;
    for (size_t done = 0; done < bytes && status == TIDE_OK;) {
        const size_t piece = bytes - done < half_bytes ? bytes - done : half_bytes;
        const uint32_t half = pool->staging.next;
        char *staging = pool->staging.halves[half];
        status = staging_free(pool, half);
        if (status == TIDE_OK)
            status = touch_staging(pool, half, true);
        if (status != TIDE_OK)
            return status;
        if (pool->ground.device->ops->has_data)
            memcpy(staging, (const char *)source + done, piece);
        status = staging_copy(pool, tide_label_write, half, (char *)region + done, staging, piece, true,
                              &pool->staging.numbers[half]);
        pool->staging.next = 1 - half;
        done += piece;
    }
    return status;
}

tide_status tide_write(tide_pool *pool, void *region, const void *source, size_t bytes)
{
    tide_status status = tide_pool_given("tide_write", region == NULL   ? "region"
                                                       : source == NULL ? "source"
                                                                        : NULL);
    if (status == TIDE_OK)
        status = check_region(pool, "tide_write", region, bytes);
    return status == TIDE_OK ? tide_monitor_keep(&pool->monitor, write_region(pool, region, source, bytes))
                             : status;
}

tide_status tide_pool_read_region(tide_pool *pool, void *target, const void *region, size_t bytes)
{
    const size_t half_bytes = pool->ground.options.staging_bytes / 2;
    for (size_t done = 0; done < bytes;) {
        const size_t piece = bytes - done < half_bytes ? bytes - done : half_bytes;
        uint64_t number;
        tide_status status = staging_copy(pool, "read", 0, pool->staging.halves[0],
                                          (const char *)region + done, piece, false, &number);
        if (status != TIDE_OK)
            return status;
        tide_monitor_lock(&pool->monitor);
        const tide_event event = tide_order_event(&pool->order, TIDE_STREAM_COMPUTE, number);
        tide_monitor_unlock(&pool->monitor);
        status = pool->ground.device->ops->event_wait(pool->ground.device, event, TIDE_SITE_READ_COMPUTE);
        if (status == TIDE_OK)
            status = touch_staging(pool, 0, false);
        if (status == TIDE_OK)
            status = pool->ground.device->ops->failure(pool->ground.device);
        if (status != TIDE_OK)
            return status;
        if (pool->ground.device->ops->has_data)
            memcpy((char *)target + done, pool->staging.halves[0], piece);
        else
            memset((char *)target + done, 0, piece);
        done += piece;
    }
    return TIDE_OK;
}

tide_status tide_read(tide_pool *pool, void *target, const void *region, size_t bytes)
{
    tide_status status = tide_pool_given("tide_read", target == NULL   ? "target"
                                                      : region == NULL ? "region"
                                                                       : NULL);
    if (status == TIDE_OK)
        status = check_region(pool, "tide_read", region, bytes);
    return status == TIDE_OK
               ? tide_monitor_keep(&pool->monitor, tide_pool_read_region(pool, target, region, bytes))
               : status;
}

/* --- params --- */

/* One piece inside one chunk of the space. */
static tide_status access_piece(tide_pool *pool, tide_access_request *request, tide_chunk chunk)
{
    tide_use uses[2] = {{chunk, request->set ? TIDE_ACCESS_READ | TIDE_ACCESS_WRITE : TIDE_ACCESS_READ}};
    uint32_t count = 1;
    if (request->set && request->space == TIDE_SPACE_MASTER) {
        const uint32_t parts = tide_pool_parts(pool),
                       index = tide_layout_chunk_index(pool->ground.layout, chunk);
        const uint64_t part_elements = pool->ground.plan.chunk_bytes / sizeof(float);
        uses[count++] = (tide_use){tide_layout_chunk(pool->ground.layout, TIDE_SPACE_PARAM, index / parts),
                                   TIDE_ACCESS_READ | TIDE_ACCESS_WRITE};
        request->param_offset_elements = index % parts * part_elements + request->offset_elements;
    }
    const tide_status status = tide_manager_host_request(pool->engine.manager, uses, count);
    if (status != TIDE_OK)
        return status;
    pool->jobs.request = request;
    tide_engine_ring(&pool->engine, false);
    const tide_status waited = tide_engine_wait(&pool->engine, tide_engine_access_done);
    if (waited == TIDE_OK)
        return TIDE_OK;
    /* The request is on this stack: the engine lets go of it before we return, and is clean for the next
     * call. */
    (void)tide_pool_give_up(pool);
    pool->jobs.request = NULL;
    return tide_fail(waited, "%s", pool->monitor.last_message);
}

static tide_status access_range(tide_pool *pool, tide_param param, tide_space space, uint64_t first,
                                uint64_t count, float *values, bool set)
{
    const uint64_t element_bytes =
        space == TIDE_SPACE_PARAM ? tide_dtype_bytes(pool->ground.options.dtype) : sizeof(float);
    const uint64_t chunk_elements = pool->ground.plan.chunk_bytes / element_bytes;
    const uint64_t begin = tide_layout_param_offset_elements(pool->ground.layout, param) + first;
    for (uint64_t done = 0; done < count;) {
        const uint64_t at = begin + done, room = chunk_elements - at % chunk_elements;
        tide_access_request request = {.set = set,
                                       .space = space,
                                       .offset_elements = at % chunk_elements,
                                       .count = count - done < room ? count - done : room,
                                       .values = values + done};
        const tide_chunk chunk =
            tide_layout_chunk(pool->ground.layout, space, (uint32_t)(at / chunk_elements));
        const tide_status status = access_piece(pool, &request, chunk);
        if (status != TIDE_OK)
            return status;
        done += request.count;
    }
    return TIDE_OK;
}

static tide_status access_check(const tide_pool *pool, const char *what, tide_param param, tide_space space,
                                uint64_t first, uint64_t count, bool set)
{
    if (param >= pool->model.param_count)
        return tide_fail(TIDE_ERROR_ARGUMENT, "%s: there is no param %u", what, param);
    const uint64_t elements = pool->model.params[param].elements;
    if (first > elements || count > elements - first)
        return tide_fail(TIDE_ERROR_ARGUMENT, "%s: elements %llu to %llu of param %s, which has %llu", what,
                         (unsigned long long)first, (unsigned long long)(first + count),
                         pool->model.params[param].name, (unsigned long long)elements);
    const bool state = space == TIDE_SPACE_MASTER ||
                       (space == TIDE_SPACE_MOMENTUM && pool->ground.options.update_states >= 1) ||
                       (space == TIDE_SPACE_VARIANCE && pool->ground.options.update_states >= 2);
    if (!state && (set || space != TIDE_SPACE_PARAM))
        return tide_fail(TIDE_ERROR_ARGUMENT, "%s: param %s can't be %s in space %d", what,
                         pool->model.params[param].name, set ? "set" : "read", (int)space);
    if (!pool->sealed)
        return tide_fail(TIDE_ERROR_STATE, "%s: the pool is not sealed", what);
    return TIDE_OK;
}

static bool covers_all(const tide_pool *pool)
{
    for (uint32_t i = 0; i < pool->model.param_count; i++) {
        for (uint32_t space = 0; space < 1 + pool->ground.options.update_states; space++) {
            if (pool->access.covered[i][space] < pool->model.params[i].elements)
                return false;
        }
    }
    return true;
}

/* A torn pool heals when every value has been set anew, each param's in order. */
static void note_coverage(tide_pool *pool, tide_param param, tide_space space, uint64_t first, uint64_t count)
{
    uint64_t *covered = &pool->access.covered[param][space - TIDE_SPACE_MASTER];
    if (!pool->engine.torn)
        return;
    if (pool->access.tear != pool->engine.tears)
        memset(pool->access.covered, 0, pool->model.param_count * sizeof *pool->access.covered);
    pool->access.tear = pool->engine.tears;
    if (first > *covered)
        return;
    if (*covered < first + count)
        *covered = first + count;
    if (*covered == pool->model.params[param].elements && covers_all(pool))
        pool->engine.torn = false;
}

/* Between steps, with the last one's updates done. With the lock. */
static tide_status settle_between_steps(tide_pool *pool, const char *call)
{
    if (pool->step.is_open)
        return tide_fail(TIDE_ERROR_STATE, "%s: a step is open", call);
    return tide_engine_settle(&pool->engine);
}

static tide_status access_params(tide_pool *pool, const char *call, tide_param param, tide_space space,
                                 uint64_t first, uint64_t count, float *values, bool set)
{
    tide_monitor_lock(&pool->monitor);
    /* On a pool that failed the step is given up first, as an abort does. */
    tide_status status = tide_engine_failure(&pool->engine) == TIDE_OK ? TIDE_OK : tide_pool_give_up(pool);
    if (status == TIDE_OK && pool->engine.torn && !set)
        status = tide_pool_say_torn(call);
    if (status == TIDE_OK)
        status = settle_between_steps(pool, call);
    if (status == TIDE_OK && !pool->ground.device->ops->has_data && !set)
        memset(values, 0, count * sizeof *values);
    if (status == TIDE_OK)
        status = access_range(pool, param, space, first, count, values, set);
    if (status == TIDE_OK && set)
        note_coverage(pool, param, space, first, count);
    tide_monitor_unlock(&pool->monitor);
    return status;
}

tide_status tide_param_set(tide_pool *pool, tide_param param, tide_space space, uint64_t first,
                           uint64_t count, const float *values)
{
    tide_status status = tide_pool_given("tide_param_set", pool == NULL     ? "pool"
                                                           : values == NULL ? "values"
                                                                            : NULL);
    if (status == TIDE_OK)
        status = access_check(pool, "tide_param_set", param, space, first, count, true);
    if (status == TIDE_OK)
        status = access_params(pool, "tide_param_set", param, space, first, count, (float *)(uintptr_t)values,
                               true);
    return status;
}

tide_status tide_param_get(tide_pool *pool, tide_param param, tide_space space, uint64_t first,
                           uint64_t count, float *values)
{
    tide_status status = tide_pool_given("tide_param_get", pool == NULL     ? "pool"
                                                           : values == NULL ? "values"
                                                                            : NULL);
    if (status == TIDE_OK)
        status = access_check(pool, "tide_param_get", param, space, first, count, false);
    if (status == TIDE_OK)
        status = access_params(pool, "tide_param_get", param, space, first, count, values, false);
    return status;
}

tide_status tide_update_count_set(tide_pool *pool, uint64_t updates)
{
    if (pool == NULL)
        return tide_pool_given("tide_update_count_set", "pool");
    if (updates > TIDE_UPDATES_MAX)
        return tide_fail(TIDE_ERROR_ARGUMENT, "tide_update_count_set: %llu updates, at most 2^53 are counted",
                         (unsigned long long)updates);
    if (!pool->sealed)
        return tide_fail(TIDE_ERROR_STATE, "tide_update_count_set: the pool is not sealed");
    tide_monitor_lock(&pool->monitor);
    tide_status status = tide_engine_failure(&pool->engine);
    if (status == TIDE_OK)
        status = settle_between_steps(pool, "tide_update_count_set");
    if (status == TIDE_OK) {
        pool->engine.updates = updates;
        tide_norm_forgive(&pool->norm);
    }
    tide_monitor_unlock(&pool->monitor);
    return status;
}
