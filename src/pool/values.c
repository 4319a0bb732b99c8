/* tide_param_set and tide_param_get: write and read values of params and optimizer state through the host
 * tier. Counts the values set since the pool was poisoned. */
#include "src/pool/internal.h"

#include "base/minmax.h"

#include <assert.h>
#include <string.h>

/* The arguments of a call. */
typedef struct range {
    const char *call;
    bool set;
    tide_param param;
    tide_value value;
    uint64_t first, count;
    tide_dtype dtype; /* of the caller's values */
    void *buffer;     /* set only reads it */
} range;

/* --- poisoned pools --- */

/* Have all values been set since the pool was poisoned? Frozen params do not count, since no step changes
 * them. */
static bool covers_all(const tide_pool *pool)
{
    const tide_packing *packing = pool->context.packing;
    for (tide_param i = 0; i < packing->param_count; i++)
        for (uint32_t plane = 0; plane < packing->params[i].state.planes; plane++)
            if (pool->covered[i][plane] < packing->params[i].elements)
                return false;
    return true;
}

/* Count the values that a call has set. A poisoned pool recovers when the caller has set all values anew,
 * those of each param from first to last. */
static void note_coverage(tide_pool *pool, const range *set)
{
    const tide_packing *packing = pool->context.packing;
    if (!pool->engine.poisoned || set->value == TIDE_VALUE_PARAM)
        return;
    if (pool->covered_poisoning != pool->engine.poisonings)
        memset(pool->covered, 0, packing->param_count * sizeof *pool->covered);
    pool->covered_poisoning = pool->engine.poisonings;
    uint64_t *covered = &pool->covered[set->param][set->value - TIDE_VALUE_MASTER];
    if (set->first > *covered)
        return;
    if (*covered < set->first + set->count)
        *covered = set->first + set->count;
    assert(*covered <= packing->params[set->param].elements);
    if (covers_all(pool))
        tide_engine_recovered(&pool->engine);
}

/* --- chunk by chunk --- */

/* Fill in the request for the value of element `at` of the PARAM space and the chunk uses to ask for: one, or
 * two if a MASTER is set, which also sets its param. Lowers `*count` to the elements from there on that lie
 * in the same chunk. Returns the number of uses. */
static uint32_t find_value(const tide_pool_context *context, uint64_t at, tide_access_request *request,
                           uint64_t *count, tide_use uses[2])
{
    const uint64_t element_bytes = tide_context_element_bytes(context),
                   chunk_elements = context->plan.chunk_bytes / element_bytes;
    const uint32_t access = request->set ? TIDE_ACCESS_READ | TIDE_ACCESS_WRITE : TIDE_ACCESS_READ;
    const tide_chunk param_chunk = (tide_chunk)(at / chunk_elements);
    const uint64_t in_chunk = at % chunk_elements;
    *count = chunk_elements - in_chunk;
    request->offset_bytes = request->param_offset_bytes = in_chunk * element_bytes;
    request->dtype = context->packing->description->dtype;
    uses[0] = uses[1] = (tide_use){param_chunk, access};
    if (request->value == TIDE_VALUE_PARAM)
        return 1;
    tide_piece piece = tide_layout_piece(context->packing->layout, param_chunk, 0);
    for (uint32_t i = 1; in_chunk >= piece.param_offset_elements + piece.elements; i++)
        piece = tide_layout_piece(context->packing->layout, param_chunk, i);
    const uint64_t in_piece = in_chunk - piece.param_offset_elements;
    const uint32_t plane = request->value - TIDE_VALUE_MASTER;
    const uint64_t plane_bytes = tide_context_plane_bytes(
        tide_layout_chunk_format(context->packing->layout, piece.state_chunk), plane);
    *count = piece.elements - in_piece;
    uses[0].tensor = piece.state_chunk;
    if (plane_bytes == sizeof(float))
        request->dtype = TIDE_DTYPE_FP32;
    request->offset_bytes =
        tide_layout_plane_offset_bytes(context->packing->layout, piece.state_chunk, plane) +
        (piece.state_offset_elements + in_piece) * plane_bytes;
    return request->set && request->value == TIDE_VALUE_MASTER ? 2 : 1;
}

static tide_status access_chunk(tide_pool *pool, tide_access_request *request, const tide_use *uses,
                                uint32_t count)
{
    tide_status status = tide_manager_host_request(pool->engine.manager, uses, count);
    if (status != TIDE_OK)
        return status;
    status = tide_engine_access(&pool->engine, request);
    if (status == TIDE_OK)
        return TIDE_OK;
    /* The request is on this function's stack: giving up makes the engine drop it before this returns, and
     * makes the engine ready for the next call. */
    (void)tide_step_give_up(pool);
    return tide_fail(status, "%s", pool->monitor.message);
}

static tide_status access_range(tide_pool *pool, const range *all)
{
    const tide_pool_context *context = &pool->context;
    const uint64_t begin = tide_layout_param_offset(context->packing->layout, all->param) + all->first;
    tide_status status = TIDE_OK;
    for (uint64_t done = 0, count; done < all->count && status == TIDE_OK; done += count) {
        tide_access_request request = {.context = context,
                                       .set = all->set,
                                       .value = all->value,
                                       .values = (char *)all->buffer + done * tide_dtype_bytes(all->dtype),
                                       .values_dtype = all->dtype};
        tide_use uses[2];
        const uint32_t chunks = find_value(context, begin + done, &request, &count, uses);
        count = tide_min_u64(all->count - done, count);
        request.count = count;
        assert(count > 0);
        status = access_chunk(pool, &request, uses, chunks);
    }
    return status;
}

/* Wait until the updates of the last step are done; STATE if a step is open. */
static tide_status settle(tide_pool *pool, const char *call)
{
    if (pool->step.is_open)
        return tide_fail(TIDE_ERROR_STATE, "%s: a step is open", call);
    return tide_engine_settle(&pool->engine);
}

static tide_status access_locked(tide_pool *pool, const range *asked)
{
    assert(tide_monitor_is_held(&pool->monitor));
    /* On a failed pool, give the step up first, as an abort does. */
    tide_status status = tide_engine_failure(&pool->engine) == TIDE_OK ? TIDE_OK : tide_step_give_up(pool);
    if (status == TIDE_OK && pool->engine.poisoned && !asked->set)
        status = tide_pool_say_poisoned(asked->call);
    if (status == TIDE_OK)
        status = settle(pool, asked->call);
    if (status == TIDE_OK && !pool->context.device->ops->has_data && !asked->set)
        memset(asked->buffer, 0, asked->count * tide_dtype_bytes(asked->dtype));
    if (status == TIDE_OK)
        status = access_range(pool, asked);
    if (status == TIDE_OK && asked->set)
        note_coverage(pool, asked);
    return status;
}

/* --- the public calls --- */

static tide_status refuse_value(const range *asked, const tide_packed_param *param)
{
    static const char *const names[TIDE_VALUE_COUNT] = {"PARAM", "MASTER", "MOMENTUM", "VARIANCE"};
    if ((unsigned)asked->value >= TIDE_VALUE_COUNT)
        return tide_fail(TIDE_ERROR_ARGUMENT, "%s: param %s: there is no value %d", asked->call, param->name,
                         (int)asked->value);
    if (asked->value == TIDE_VALUE_PARAM)
        return tide_fail(TIDE_ERROR_ARGUMENT, "%s: param %s: PARAM is not set itself, set MASTER",
                         asked->call, param->name);
    return tide_fail(TIDE_ERROR_ARGUMENT, "%s: param %s has no %s to be %s%s", asked->call, param->name,
                     names[asked->value], asked->set ? "set" : "read",
                     tide_packed_param_is_frozen(param) ? ": it is frozen" : "");
}

static tide_status check(const tide_pool *pool, const range *asked)
{
    if (asked->param >= pool->context.packing->param_count)
        return tide_fail(TIDE_ERROR_ARGUMENT, "%s: there is no param %u", asked->call, asked->param);
    const tide_packed_param *param = &pool->context.packing->params[asked->param];
    if (asked->first > param->elements || asked->count > param->elements - asked->first)
        return tide_fail(TIDE_ERROR_ARGUMENT, "%s: elements %llu to %llu of param %s, which has %llu",
                         asked->call, (unsigned long long)asked->first,
                         (unsigned long long)(asked->first + asked->count), param->name,
                         (unsigned long long)param->elements);
    const bool is_state =
        asked->value >= TIDE_VALUE_MASTER && asked->value - TIDE_VALUE_MASTER < param->state.planes;
    if (!is_state &&
        (asked->value != TIDE_VALUE_PARAM || (asked->set && !tide_packed_param_is_frozen(param))))
        return refuse_value(asked, param);
    return TIDE_OK;
}

static tide_status access(tide_pool *pool, const range *asked)
{
    if (pool == NULL || asked->buffer == NULL)
        return tide_pool_given(asked->call, pool == NULL ? "pool" : "values");
    tide_status status = check(pool, asked);
    if (status != TIDE_OK)
        return status;
    tide_monitor_lock(&pool->monitor);
    status = access_locked(pool, asked);
    tide_monitor_unlock(&pool->monitor);
    return status;
}

tide_status tide_param_set(tide_pool *pool, tide_param param, tide_value value, uint64_t first,
                           uint64_t count, const float *values)
{
    void *unwritten = (void *)(uintptr_t)values;
    const range asked = {"tide_param_set", true, param, value, first, count, TIDE_DTYPE_FP32, unwritten};
    return access(pool, &asked);
}

tide_status tide_param_set_as(tide_pool *pool, tide_param param, tide_value value, uint64_t first,
                              uint64_t count, tide_dtype dtype, const void *values)
{
    void *unwritten = (void *)(uintptr_t)values;
    const range asked = {"tide_param_set_as", true, param, value, first, count, dtype, unwritten};
    if (dtype != TIDE_DTYPE_BF16 && dtype != TIDE_DTYPE_FP16 && dtype != TIDE_DTYPE_FP32)
        return tide_fail(TIDE_ERROR_ARGUMENT, "tide_param_set_as: there is no dtype %d", (int)dtype);
    return access(pool, &asked);
}

tide_status tide_param_get(tide_pool *pool, tide_param param, tide_value value, uint64_t first,
                           uint64_t count, float *values)
{
    const range asked = {"tide_param_get", false, param, value, first, count, TIDE_DTYPE_FP32, values};
    return access(pool, &asked);
}

tide_status tide_update_count_set(tide_pool *pool, uint64_t updates)
{
    if (pool == NULL)
        return tide_pool_given("tide_update_count_set", "pool");
    if (updates > TIDE_UPDATES_MAX)
        return tide_fail(TIDE_ERROR_ARGUMENT, "tide_update_count_set: %llu updates, at most 2^53 are counted",
                         (unsigned long long)updates);
    tide_monitor_lock(&pool->monitor);
    tide_status status = tide_engine_failure(&pool->engine);
    if (status == TIDE_OK)
        status = settle(pool, "tide_update_count_set");
    if (status == TIDE_OK) {
        pool->engine.updates = updates;
        pool->norm.skipped_in_row = 0;
    }
    tide_monitor_unlock(&pool->monitor);
    tide_ranks_call(pool, TIDE_CALL_UPDATE_COUNT_SET, updates);
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
