#include "offload/mappings.h"

#include <assert.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum { NO_SLOT = UINT32_MAX };

void tide_mappings_init(tide_mappings *mappings, uint64_t chunk_bytes)
{
    memset(mappings, 0, sizeof *mappings);
    mappings->chunk_bytes = chunk_bytes;
}

void tide_mappings_destroy(tide_mappings *mappings)
{
    assert(tide_mappings_is_valid(mappings)); /* walks everything, but only once in a device's life */
    for (uint32_t i = 0; i < mappings->range_count; i++)
        free(mappings->ranges[i].slot_of_chunk);
    free(mappings->slots);
    memset(mappings, 0, sizeof *mappings);
}

/* The entry of slot_of_chunk for a chunk's place; NULL if `place` is not the address of a chunk. */
static uint32_t *cell_find(const tide_mappings *mappings, const void *place)
{
    uintptr_t address = (uintptr_t)place;
    for (uint32_t i = 0; i < mappings->range_count; i++) {
        const tide_mappings_range *range = &mappings->ranges[i];
        uintptr_t base = (uintptr_t)range->base;
        uint64_t offset = address - base;
        if (address < base || offset >= range->chunk_count * mappings->chunk_bytes)
            continue;
        return offset % mappings->chunk_bytes == 0 ? &range->slot_of_chunk[offset / mappings->chunk_bytes]
                                                   : NULL;
    }
    return NULL;
}

bool tide_mappings_is_valid(const tide_mappings *mappings)
{
    uint32_t placed_slots = 0;
    for (uint32_t slot = 0; slot < mappings->slot_count; slot++) {
        const char *place = mappings->slots[slot].place;
        if (place == NULL)
            continue;
        const uint32_t *cell = cell_find(mappings, place);
        if (cell == NULL || *cell != slot)
            return false;
        placed_slots++;
    }
    uint32_t held_places = 0;
    for (uint32_t i = 0; i < mappings->range_count; i++)
        for (uint32_t chunk = 0; chunk < mappings->ranges[i].chunk_count; chunk++)
            held_places += mappings->ranges[i].slot_of_chunk[chunk] != NO_SLOT;
    return placed_slots == held_places && placed_slots == mappings->mapped_count;
}

tide_status tide_mappings_range_check(const tide_mappings *mappings, uint64_t bytes)
{
    if (bytes == 0 || bytes % mappings->chunk_bytes != 0 || bytes / mappings->chunk_bytes >= NO_SLOT)
        return tide_fail(TIDE_ERROR_ARGUMENT,
                         "a range of %" PRIu64 " bytes is not a positive multiple of the chunk size, %" PRIu64
                         " bytes",
                         bytes, mappings->chunk_bytes);
    if (mappings->range_count == TIDE_MAPPINGS_RANGES_MAX)
        return tide_fail(TIDE_ERROR_STATE, "more than %d address ranges", TIDE_MAPPINGS_RANGES_MAX);
    return TIDE_OK;
}

tide_status tide_mappings_range_add(tide_mappings *mappings, void *base, uint64_t bytes)
{
    assert(mappings->range_count < TIDE_MAPPINGS_RANGES_MAX);
    uint32_t chunk_count = (uint32_t)(bytes / mappings->chunk_bytes);
    uint32_t *slot_of_chunk = malloc(chunk_count * sizeof *slot_of_chunk);
    if (slot_of_chunk == NULL)
        return tide_fail(TIDE_ERROR_NO_MEMORY, "no memory for the table of %" PRIu32 " chunk places",
                         chunk_count);
    for (uint32_t chunk = 0; chunk < chunk_count; chunk++)
        slot_of_chunk[chunk] = NO_SLOT;
    mappings->ranges[mappings->range_count++] = (tide_mappings_range){base, chunk_count, slot_of_chunk};
    return TIDE_OK;
}

tide_status tide_mappings_slots_add(tide_mappings *mappings, uint32_t count)
{
    if (mappings->slots != NULL)
        return tide_fail(TIDE_ERROR_STATE, "the device slots exist already");
    tide_mappings_slot *slots = calloc(count > 0 ? count : 1, sizeof *slots);
    if (slots == NULL)
        return tide_fail(TIDE_ERROR_NO_MEMORY, "no memory for the table of %" PRIu32 " device slots", count);
    mappings->slots = slots;
    mappings->slot_count = count;
    return TIDE_OK;
}

void tide_mappings_slots_remove(tide_mappings *mappings)
{
    assert(mappings->mapped_count == 0);
    free(mappings->slots);
    mappings->slots = NULL;
    mappings->slot_count = 0;
}

static tide_status slot_and_place_check(const tide_mappings *mappings, uint32_t slot, const void *place)
{
    if (slot >= mappings->slot_count)
        return tide_fail(TIDE_ERROR_ARGUMENT, "device slot %" PRIu32 " does not exist, there are %" PRIu32,
                         slot, mappings->slot_count);
    if (cell_find(mappings, place) == NULL)
        return tide_fail(TIDE_ERROR_ARGUMENT, "%p is not a chunk's place in a reserved range", place);
    return TIDE_OK;
}

tide_status tide_mappings_put_check(const tide_mappings *mappings, uint32_t slot, const void *place)
{
    tide_status status = slot_and_place_check(mappings, slot, place);
    if (status != TIDE_OK)
        return status;
    if (mappings->slots[slot].place != NULL)
        return tide_fail(TIDE_ERROR_ARGUMENT, "device slot %" PRIu32 " is mapped at %p already", slot,
                         (void *)mappings->slots[slot].place);
    uint32_t holder = *cell_find(mappings, place);
    if (holder != NO_SLOT)
        return tide_fail(TIDE_ERROR_ARGUMENT, "the place %p holds device slot %" PRIu32 " already", place,
                         holder);
    return TIDE_OK;
}

void tide_mappings_put(tide_mappings *mappings, uint32_t slot, void *place)
{
    uint32_t *cell = cell_find(mappings, place);
    assert(cell != NULL && *cell == NO_SLOT && mappings->slots[slot].place == NULL);
    *cell = slot;
    mappings->slots[slot] = (tide_mappings_slot){place, ++mappings->last_serial};
    mappings->mapped_count++;
    assert(mappings->mapped_count <= mappings->slot_count);
}

tide_status tide_mappings_take_check(const tide_mappings *mappings, uint32_t slot, const void *place)
{
    tide_status status = slot_and_place_check(mappings, slot, place);
    if (status != TIDE_OK)
        return status;
    if (mappings->slots[slot].place != place)
        return tide_fail(TIDE_ERROR_ARGUMENT, "device slot %" PRIu32 " is not mapped at %p", slot, place);
    return TIDE_OK;
}

void tide_mappings_take(tide_mappings *mappings, uint32_t slot, void *place)
{
    uint32_t *cell = cell_find(mappings, place);
    assert(cell != NULL && *cell == slot && mappings->slots[slot].place == place);
    *cell = NO_SLOT;
    mappings->slots[slot].place = NULL;
    assert(mappings->mapped_count > 0);
    mappings->mapped_count--;
}

tide_status tide_mappings_find(const tide_mappings *mappings, const void *place, uint32_t *slot)
{
    const uint32_t *cell = cell_find(mappings, place);
    if (cell == NULL || *cell == NO_SLOT)
        return tide_fail(TIDE_ERROR_ARGUMENT, "nothing is mapped at %p", place);
    *slot = *cell;
    return TIDE_OK;
}
