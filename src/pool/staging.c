/* tide_write and tide_read: copy bytes into and out of the region, in order with kernels, through the two
 * halves of a pinned buffer on the host. */
#include "src/pool/internal.h"

#include "base/minmax.h"

#include <assert.h>
#include <string.h>

static size_t half_bytes(const tide_pool *pool)
{
    return pool->context.options.staging_bytes / 2;
}

tide_status tide_staging_create(tide_pool *pool)
{
    static const char *const names[] = {"staging a", "staging b"};
    tide_device *device = pool->context.device;
    tide_status status = TIDE_OK;
    for (int i = 0; i < 2 && status == TIDE_OK; i++) {
        void *address = NULL;
        status = device->ops->buffer_create(device, names[i], half_bytes(pool), &address,
                                            &pool->staging.objects[i]);
        pool->staging.halves[i] = address;
        pool->staging.numbers[i] = 0;
    }
    return status;
}

static tide_status wait_for(tide_pool *pool, uint64_t number, tide_wait_site site)
{
    assert(number > 0);
    tide_monitor_lock(&pool->monitor);
    const tide_event event = tide_order_event(&pool->order, TIDE_STREAM_COMPUTE, number);
    tide_monitor_unlock(&pool->monitor);
    return pool->context.device->ops->event_wait(pool->context.device, event, site);
}

static tide_status touch(const tide_pool *pool, uint32_t half, bool write)
{
    const tide_access access = {TIDE_OBJECT_BUFFER, pool->staging.objects[half], write};
    const tide_work work = {
        .label = write ? "fill staging" : "read staging", .accesses = &access, .access_count = 1};
    return pool->context.device->ops->host_touch(pool->context.device, &work);
}

static tide_status copy(tide_pool *pool, uint32_t half, char *region, size_t bytes, bool to_region,
                        uint64_t *number)
{
    tide_device *device = pool->context.device;
    char *buffer = pool->staging.halves[half];
    const tide_access accesses[] = {
        {TIDE_OBJECT_REGION, pool->context.region_objects[TIDE_REGION_NONMODEL], to_region},
        {TIDE_OBJECT_BUFFER, pool->staging.objects[half], !to_region}};
    const tide_work work = {.label = to_region ? "write" : "read",
                            .tag = tide_launch_tag(pool),
                            .timer = tide_launch_timer(pool, to_region ? TIDE_PART_WRITE : TIDE_PART_OP),
                            .id = tide_tracer_launch(&pool->telemetry.tracer),
                            .accesses = accesses,
                            .access_count = 2};
    assert(half < 2 && bytes > 0 && bytes <= half_bytes(pool));
    tide_status status =
        device->ops->copy_bytes(device, TIDE_STREAM_COMPUTE, &work, to_region ? region : buffer,
                                to_region ? buffer : region, bytes, to_region);
    if (status != TIDE_OK)
        return status;
    tide_monitor_lock(&pool->monitor);
    status = tide_order_record(&pool->order, TIDE_STREAM_COMPUTE, 0, number);
    tide_monitor_unlock(&pool->monitor);
    return status;
}

static tide_status write_piece(tide_pool *pool, char *region, const char *source, size_t bytes)
{
    tide_staging *staging = &pool->staging;
    const uint32_t half = staging->next;
    assert(!tide_monitor_is_held(NULL) && half < 2);
    tide_status status = TIDE_OK;
    if (staging->numbers[half] != 0)
        status = wait_for(pool, staging->numbers[half], TIDE_SITE_STAGING_COMPUTE);
    if (status == TIDE_OK)
        status = touch(pool, half, true);
    if (status != TIDE_OK)
        return status;
    if (pool->context.device->ops->has_data)
        memcpy(staging->halves[half], source, bytes);
    staging->next = 1 - half;
    return copy(pool, half, region, bytes, true, &staging->numbers[half]);
}

static tide_status read_piece(tide_pool *pool, char *target, char *region, size_t bytes)
{
    tide_device *device = pool->context.device;
    uint64_t number;
    assert(!tide_monitor_is_held(NULL));
    tide_status status = copy(pool, 0, region, bytes, false, &number);
    if (status == TIDE_OK)
        status = wait_for(pool, number, TIDE_SITE_READ_COMPUTE);
    if (status == TIDE_OK)
        status = touch(pool, 0, false);
    if (status == TIDE_OK)
        status = device->ops->failure(device);
    if (status != TIDE_OK)
        return status;
    if (device->ops->has_data)
        memcpy(target, pool->staging.halves[0], bytes);
    else
        memset(target, 0, bytes);
    return TIDE_OK;
}

/* Copy `bytes` from `memory` to `region` with `to_region`, else from `region` to `memory`, in pieces of half
 * the buffer. */
static tide_status transfer(tide_pool *pool, const void *region, const void *memory, size_t bytes,
                            bool to_region)
{
    char *inside = (char *)(uintptr_t)region, *outside = (char *)(uintptr_t)memory;
    tide_status status = TIDE_OK;
    for (size_t done = 0, piece; done < bytes && status == TIDE_OK; done += piece) {
        piece = tide_min_u64(bytes - done, half_bytes(pool));
        status = to_region ? write_piece(pool, inside + done, outside + done, piece)
                           : read_piece(pool, outside + done, inside + done, piece);
    }
    return status;
}

tide_status tide_staging_read(tide_pool *pool, void *target, const void *region, size_t bytes)
{
    return transfer(pool, region, target, bytes, false);
}

/* --- the public calls --- */

/* Transfer, but refuse bytes outside the caller's part of the region; the rest has the pool's gradients and
 * norms. */
static tide_status transfer_checked(tide_pool *pool, const char *call, const void *region, const void *memory,
                                    size_t bytes, bool to_region)
{
    const tide_status status = tide_pool_callable(pool, call);
    if (status != TIDE_OK)
        return status;
    const uint64_t at = (uint64_t)((uintptr_t)region - (uintptr_t)pool->context.region);
    const uint64_t most = pool->context.packing->description->nonmodel_bytes;
    assert(most <= pool->context.plan.region_bytes);
    if (at > most || bytes > most - at)
        return tide_fail(TIDE_ERROR_ARGUMENT,
                         "%s: %zu bytes at %p are not inside the %llu nonmodel_bytes of the region", call,
                         bytes, region, (unsigned long long)most);
    return tide_monitor_keep(&pool->monitor, transfer(pool, region, memory, bytes, to_region));
}

tide_status tide_write(tide_pool *pool, void *region, const void *source, size_t bytes)
{
    if (region == NULL || source == NULL)
        return tide_pool_given("tide_write", region == NULL ? "region" : "source");
    return transfer_checked(pool, "tide_write", region, source, bytes, true);
}

tide_status tide_read(tide_pool *pool, void *target, const void *region, size_t bytes)
{
    if (target == NULL || region == NULL)
        return tide_pool_given("tide_read", target == NULL ? "target" : "region");
    return transfer_checked(pool, "tide_read", region, target, bytes, false);
}
