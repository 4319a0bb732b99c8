#include "src/pool/values.h"

#include "src/pool/internal.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

/* What a call asks for. */
typedef struct range {
    const char *call;
    bool set;
    tide_param param;
    tide_space space;
    uint64_t first, count;
    float *buffer; /* read only for set */
} range;

tide_status tide_values_create(tide_values *values)
{
    values->covered = calloc(values->model->param_count, sizeof *values->covered);
    if (values->covered == NULL)
        return tide_fail(TIDE_ERROR_NO_MEMORY, "pool: no memory for %u params", values->model->param_count);
    return TIDE_OK;
}

void tide_values_destroy(tide_values *values)
{
    free(values->covered);
    values->covered = NULL;
}

/* --- torn pools --- */

static bool covers_all(const tide_values *values)
{
    for (uint32_t i = 0; i < values->model->param_count; i++) {
        for (uint32_t space = 0; space < 1 + values->ground->options.update_states; space++) {
            if (values->covered[i][space] < values->model->params[i].elements)
                return false;
        }
    }
    return true;
}

/* A torn pool heals when every value has been set anew, each param's in order. */
static void note_coverage(tide_values *values, const range *set)
{
    tide_engine *engine = values->engine;
    uint64_t *covered = &values->covered[set->param][set->space - TIDE_SPACE_MASTER];
    if (!engine->torn)
        return;
    if (values->tear != engine->tears)
        memset(values->covered, 0, values->model->param_count * sizeof *values->covered);
    values->tear = engine->tears;
    if (set->first > *covered)
        return;
    if (*covered < set->first + set->count)
        *covered = set->first + set->count;
    assert(*covered <= values->model->params[set->param].elements);
    if (covers_all(values))
        tide_engine_heal(engine);
}

/* --- chunk by chunk --- */

/* One piece inside one chunk of the space. Setting a MASTER sets its param, too. */
static tide_status access_piece(tide_values *values, tide_access_request *request, tide_chunk chunk)
{
    const tide_layout *layout = values->ground->layout;
    tide_use uses[2] = {{chunk, request->set ? TIDE_ACCESS_READ | TIDE_ACCESS_WRITE : TIDE_ACCESS_READ}};
    uint32_t count = 1;
    if (request->set && request->space == TIDE_SPACE_MASTER) {
        const uint32_t parts = tide_layout_parts_per_chunk(layout),
                       index = tide_layout_chunk_index(layout, chunk);
        const uint64_t part_elements = values->ground->plan.chunk_bytes / sizeof(float);
        uses[count++] = (tide_use){tide_layout_chunk(layout, TIDE_SPACE_PARAM, index / parts),
                                   TIDE_ACCESS_READ | TIDE_ACCESS_WRITE};
        request->param_offset_elements = index % parts * part_elements + request->offset_elements;
    }
    assert(tide_layout_chunk_space(layout, chunk) == request->space);
    bool begun;
    const tide_status status = tide_engine_access(values->engine, request, uses, count, &begun);
    if (status == TIDE_OK || !begun)
        return status;
    /* The request is on this stack: the engine lets go of it before we return, and is clean for the next call. */
    (void)tide_step_give_up(values->step);
    return tide_fail(status, "%s", values->engine->monitor->last_message);
}

static tide_status access_range(tide_values *values, const range *all)
{
    const tide_ground *ground = values->ground;
    const uint64_t element_bytes =
        all->space == TIDE_SPACE_PARAM ? tide_ground_element_bytes(ground) : sizeof(float);
    const uint64_t chunk_elements = ground->plan.chunk_bytes / element_bytes;
    const uint64_t begin = tide_layout_param(ground->layout, all->param)->offset + all->first;
    tide_status status = TIDE_OK;
    for (uint64_t done = 0, count; done < all->count && status == TIDE_OK; done += count) {
        const uint64_t at = begin + done, room = chunk_elements - at % chunk_elements;
        count = all->count - done < room ? all->count - done : room;
        assert(count > 0 && at % chunk_elements + count <= chunk_elements);
        tide_access_request request = {.set = all->set,
                                       .space = all->space,
                                       .offset_elements = at % chunk_elements,
                                       .count = count,
                                       .values = all->buffer + done};
        status = access_piece(values, &request,
                              tide_layout_chunk(ground->layout, all->space, (uint32_t)(at / chunk_elements)));
    }
    return status;
}

static tide_status access_locked(tide_values *values, const range *asked)
{
    tide_engine *engine = values->engine;
    assert(tide_monitor_is_held(engine->monitor));
    /* On a pool that failed the step is given up first, as an abort does. */
    tide_status status = tide_engine_failure(engine) == TIDE_OK ? TIDE_OK : tide_step_give_up(values->step);
    if (status == TIDE_OK && engine->torn && !asked->set)
        status = tide_pool_say_torn(asked->call);
    if (status == TIDE_OK)
        status = tide_step_settle(values->step, asked->call);
    if (status == TIDE_OK && !values->ground->device->ops->has_data && !asked->set)
        memset(asked->buffer, 0, asked->count * sizeof *asked->buffer);
    if (status == TIDE_OK)
        status = access_range(values, asked);
    if (status == TIDE_OK && asked->set)
        note_coverage(values, asked);
    return status;
}

/* --- the caller's --- */

static tide_status check(const tide_pool *pool, const range *asked)
{
    if (asked->param >= pool->model.param_count)
        return tide_fail(TIDE_ERROR_ARGUMENT, "%s: there is no param %u", asked->call, asked->param);
    const tide_pool_param *param = &pool->model.params[asked->param];
    if (asked->first > param->elements || asked->count > param->elements - asked->first)
        return tide_fail(TIDE_ERROR_ARGUMENT, "%s: elements %llu to %llu of param %s, which has %llu",
                         asked->call, (unsigned long long)asked->first,
                         (unsigned long long)(asked->first + asked->count), param->name,
                         (unsigned long long)param->elements);
    const uint32_t states = pool->ground.options.update_states;
    const bool state = asked->space == TIDE_SPACE_MASTER ||
                       (asked->space == TIDE_SPACE_MOMENTUM && states >= 1) ||
                       (asked->space == TIDE_SPACE_VARIANCE && states >= 2);
    if (!state && (asked->set || asked->space != TIDE_SPACE_PARAM))
        return tide_fail(TIDE_ERROR_ARGUMENT, "%s: param %s can't be %s in space %d", asked->call,
                         param->name, asked->set ? "set" : "read", (int)asked->space);
    return tide_pool_sealed(pool, asked->call);
}

static tide_status access(tide_pool *pool, const range *asked)
{
    tide_status status = tide_pool_given(asked->call, pool == NULL            ? "pool"
                                                      : asked->buffer == NULL ? "values"
                                                                              : NULL);
    if (status == TIDE_OK)
        status = check(pool, asked);
    if (status != TIDE_OK)
        return status;
    tide_monitor_lock(&pool->monitor);
    status = access_locked(&pool->values, asked);
    tide_monitor_unlock(&pool->monitor);
    return status;
}

tide_status tide_param_set(tide_pool *pool, tide_param param, tide_space space, uint64_t first,
                           uint64_t count, const float *values)
{
    const range asked = {"tide_param_set", true, param, space, first, count, (float *)(uintptr_t)values};
    return access(pool, &asked);
}

tide_status tide_param_get(tide_pool *pool, tide_param param, tide_space space, uint64_t first,
                           uint64_t count, float *values)
{
    const range asked = {"tide_param_get", false, param, space, first, count, values};
    return access(pool, &asked);
}

tide_status tide_update_count_set(tide_pool *pool, uint64_t updates)
{
    if (pool == NULL)
        return tide_pool_given("tide_update_count_set", "pool");
    if (updates > TIDE_UPDATES_MAX)
        return tide_fail(TIDE_ERROR_ARGUMENT, "tide_update_count_set: %llu updates, at most 2^53 are counted",
                         (unsigned long long)updates);
    tide_status status = tide_pool_sealed(pool, "tide_update_count_set");
    if (status != TIDE_OK)
        return status;
    tide_monitor_lock(&pool->monitor);
    status = tide_engine_failure(&pool->engine);
    if (status == TIDE_OK)
        status = tide_step_settle(&pool->step, "tide_update_count_set");
    if (status == TIDE_OK) {
        pool->engine.updates = updates;
        tide_norm_forgive(&pool->norm);
    }
    tide_monitor_unlock(&pool->monitor);
    return status;
}

uint64_t tide_update_count(const tide_pool *pool)
{
    if (pool == NULL)
        return 0;
    tide_pool *shared = (tide_pool *)(uintptr_t)pool; /* the lock is not part of the value */
    tide_monitor_lock(&shared->monitor);
    const uint64_t updates = pool->engine.updates;
    tide_monitor_unlock(&shared->monitor);
    return updates;
}
