#include "src/pool/holds.h"

#include <assert.h>
#include <stdlib.h>

tide_status tide_holds_create(tide_holds *holds, uint32_t capacity)
{
    holds->capacity = capacity;
    holds->accesses = calloc(capacity, sizeof *holds->accesses);
    holds->chunks = calloc(capacity, sizeof *holds->chunks);
    if (holds->accesses == NULL || holds->chunks == NULL)
        return tide_fail(TIDE_ERROR_NO_MEMORY, "pool: no memory for an op of %u chunks", capacity);
    return TIDE_OK;
}

void tide_holds_destroy(tide_holds *holds)
{
    free(holds->accesses);
    free(holds->chunks);
    holds->accesses = NULL;
    holds->chunks = NULL;
}

bool tide_holds_is_valid(const tide_holds *holds)
{
    if (holds->count > holds->capacity || holds->param_count > holds->count ||
        holds->chunks[0] != TIDE_CHUNK_NONE)
        return false;
    for (uint32_t i = 1; i < holds->count; i++) {
        if (holds->chunks[i] >= tide_layout_chunk_count(holds->ground->layout) ||
            holds->accesses[i].index >= holds->ground->plan.device_slots)
            return false;
    }
    return true;
}

static void add_chunk(tide_holds *holds, tide_chunk chunk, bool write, tide_needs *needs)
{
    if (tide_holds_has_last(holds, chunk, write))
        return;
    const uint32_t slot = tide_manager_held_slot(holds->manager, chunk);
    tide_needs_add(needs, &holds->order->marks[TIDE_TIER_DEVICE][slot], write);
    for (uint32_t i = 0; i < holds->count; i++) {
        if (holds->chunks[i] != chunk)
            continue;
        holds->accesses[i].write = holds->accesses[i].write || write;
        return;
    }
    assert(holds->count < holds->capacity);
    holds->chunks[holds->count] = chunk;
    holds->accesses[holds->count++] = (tide_access){TIDE_OBJECT_DEVICE_SLOT, slot, write};
    tide_tracer_chunk(holds->tracer, "pin", chunk, "", "device", "");
}

void tide_holds_add(tide_holds *holds, tide_chunk first, tide_chunk last, bool write, tide_needs *needs)
{
    assert(tide_monitor_is_held(NULL) && first <= last && holds->count > 0);
    for (tide_chunk chunk = first; chunk <= last; chunk++)
        add_chunk(holds, chunk, write, needs);
}

tide_status tide_holds_release(const tide_holds *holds, uint32_t from)
{
    uint64_t number;
    const tide_status status = tide_order_record(holds->order, TIDE_STREAM_COMPUTE, &number);
    assert(tide_holds_is_valid(holds));
    for (uint32_t i = from; i < holds->count && status == TIDE_OK; i++) {
        const tide_access access = holds->accesses[i];
        if (holds->chunks[i] == TIDE_CHUNK_NONE)
            continue;
        tide_marks_set(&holds->order->marks[TIDE_TIER_DEVICE][access.index], TIDE_STREAM_COMPUTE, number,
                       access.write);
        tide_tracer_chunk(holds->tracer, "unpin", holds->chunks[i], "device", "", "");
    }
    return status;
}

tide_status tide_holds_guard(const tide_holds *holds, uint32_t from, uint32_t to, bool accessible)
{
    tide_device *device = holds->ground->device;
    tide_status status = TIDE_OK;
    assert(!tide_monitor_is_held(NULL) && to <= holds->count);
    for (uint32_t i = from; i < to && status == TIDE_OK; i++) {
        if (holds->chunks[i] != TIDE_CHUNK_NONE)
            status = device->ops->guard(device, TIDE_STREAM_COMPUTE,
                                        tide_ground_place(holds->ground, holds->chunks[i]), accessible);
    }
    return status;
}
