#include "src/pool/staging.h"

#include "src/pool/internal.h"

#include <assert.h>
#include <string.h>

static size_t half_bytes(const tide_staging *staging)
{
    return staging->ground->options.staging_bytes / 2;
}

tide_status tide_staging_create(tide_staging *staging)
{
    static const char *const names[] = {"staging a", "staging b"};
    tide_device *device = staging->ground->device;
    tide_status status = TIDE_OK;
    for (int i = 0; i < 2 && status == TIDE_OK; i++) {
        void *address = NULL;
        status =
            device->ops->buffer_create(device, names[i], half_bytes(staging), &address, &staging->objects[i]);
        staging->halves[i] = address;
        staging->numbers[i] = 0;
    }
    return status;
}

static tide_status wait_for(const tide_staging *staging, uint64_t number, tide_wait_site site)
{
    tide_device *device = staging->ground->device;
    assert(number > 0);
    tide_monitor_lock(staging->monitor);
    const tide_event event = tide_order_event(staging->order, TIDE_STREAM_COMPUTE, number);
    tide_monitor_unlock(staging->monitor);
    return device->ops->event_wait(device, event, site);
}

static tide_status touch(const tide_staging *staging, uint32_t half, bool write)
{
    tide_device *device = staging->ground->device;
    const tide_access access = {TIDE_OBJECT_BUFFER, staging->objects[half], write};
    const tide_work work = {
        .label = write ? "fill staging" : "read staging", .accesses = &access, .access_count = 1};
    return device->ops->host_touch(device, &work);
}

static tide_status copy(const tide_staging *staging, uint32_t half, char *region, size_t bytes,
                        bool to_region, uint64_t *number)
{
    tide_device *device = staging->ground->device;
    char *buffer = staging->halves[half];
    const tide_access accesses[] = {{TIDE_OBJECT_REGION, staging->ground->region_object, to_region},
                                    {TIDE_OBJECT_BUFFER, staging->objects[half], !to_region}};
    const tide_work work = {
        .label = to_region ? "write" : "read",
        .tag = tide_launcher_tag(staging->launcher),
        .meter = tide_launcher_meter(staging->launcher, to_region ? TIDE_PART_WRITE : TIDE_PART_OP),
        .accesses = accesses,
        .access_count = 2};
    assert(half < 2 && bytes > 0 && bytes <= half_bytes(staging));
    tide_status status =
        device->ops->copy_bytes(device, TIDE_STREAM_COMPUTE, &work, to_region ? region : buffer,
                                to_region ? buffer : region, bytes, to_region);
    if (status != TIDE_OK)
        return status;
    tide_monitor_lock(staging->monitor);
    status = tide_order_record(staging->order, TIDE_STREAM_COMPUTE, number);
    tide_monitor_unlock(staging->monitor);
    return status;
}

static tide_status write_piece(tide_staging *staging, char *region, const char *source, size_t bytes)
{
    const uint32_t half = staging->next;
    assert(!tide_monitor_is_held(NULL) && half < 2);
    tide_status status = TIDE_OK;
    if (staging->numbers[half] != 0)
        status = wait_for(staging, staging->numbers[half], TIDE_SITE_STAGING_COMPUTE);
    if (status == TIDE_OK)
        status = touch(staging, half, true);
    if (status != TIDE_OK)
        return status;
    if (staging->ground->device->ops->has_data)
        memcpy(staging->halves[half], source, bytes);
    staging->next = 1 - half;
    return copy(staging, half, region, bytes, true, &staging->numbers[half]);
}

static tide_status read_piece(const tide_staging *staging, char *target, char *region, size_t bytes)
{
    tide_device *device = staging->ground->device;
    uint64_t number;
    assert(!tide_monitor_is_held(NULL));
    tide_status status = copy(staging, 0, region, bytes, false, &number);
    if (status == TIDE_OK)
        status = wait_for(staging, number, TIDE_SITE_READ_COMPUTE);
    if (status == TIDE_OK)
        status = touch(staging, 0, false);
    if (status == TIDE_OK)
        status = device->ops->failure(device);
    if (status != TIDE_OK)
        return status;
    if (device->ops->has_data)
        memcpy(target, staging->halves[0], bytes);
    else
        memset(target, 0, bytes);
    return TIDE_OK;
}

static size_t piece_bytes(const tide_staging *staging, size_t left)
{
    return left < half_bytes(staging) ? left : half_bytes(staging);
}

tide_status tide_staging_write(tide_staging *staging, char *region, const char *source, size_t bytes)
{
    tide_status status = TIDE_OK;
    for (size_t done = 0, piece; done < bytes && status == TIDE_OK; done += piece) {
        piece = piece_bytes(staging, bytes - done);
        status = write_piece(staging, region + done, source + done, piece);
    }
    return status;
}

tide_status tide_staging_read(tide_staging *staging, char *target, const char *region, size_t bytes)
{
    tide_status status = TIDE_OK;
    for (size_t done = 0, piece; done < bytes && status == TIDE_OK; done += piece) {
        piece = piece_bytes(staging, bytes - done);
        status = read_piece(staging, target + done, (char *)(uintptr_t)region + done, piece);
    }
    return status;
}

/* --- the caller's --- */

/* His part of the region only, as declared: behind it the pool keeps gradients and norms. */
static tide_status check_region(tide_pool *pool, const char *call, const void *address, size_t bytes)
{
    const tide_status status = tide_pool_callable(pool, call);
    if (status != TIDE_OK)
        return status;
    const uint64_t at = (uint64_t)((uintptr_t)address - (uintptr_t)pool->ground.region);
    const uint64_t most = pool->ground.options.nonmodel_bytes;
    assert(most <= pool->ground.plan.region_bytes);
    if (at <= most && bytes <= most - at)
        return TIDE_OK;
    return tide_fail(TIDE_ERROR_ARGUMENT,
                     "%s: %zu bytes at %p are not inside the %llu nonmodel_bytes of the region", call, bytes,
                     address, (unsigned long long)most);
}

tide_status tide_write(tide_pool *pool, void *region, const void *source, size_t bytes)
{
    tide_status status = tide_pool_given("tide_write", region == NULL   ? "region"
                                                       : source == NULL ? "source"
                                                                        : NULL);
    if (status == TIDE_OK)
        status = check_region(pool, "tide_write", region, bytes);
    if (status != TIDE_OK)
        return status;
    return tide_monitor_keep(&pool->monitor, tide_staging_write(&pool->staging, region, source, bytes));
}

tide_status tide_read(tide_pool *pool, void *target, const void *region, size_t bytes)
{
    tide_status status = tide_pool_given("tide_read", target == NULL   ? "target"
                                                      : region == NULL ? "region"
                                                                       : NULL);
    if (status == TIDE_OK)
        status = check_region(pool, "tide_read", region, bytes);
    if (status != TIDE_OK)
        return status;
    return tide_monitor_keep(&pool->monitor, tide_staging_read(&pool->staging, target, region, bytes));
}
