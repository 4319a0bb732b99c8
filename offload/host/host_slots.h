/* The slots of the HOST tier: one extent of exactly count x chunk size, slot after slot. */
#ifndef TIDE_OFFLOAD_HOST_SLOTS_H
#define TIDE_OFFLOAD_HOST_SLOTS_H

#include "offload/host_extent.h"

typedef struct tide_host_slots {
    char *base;
    uint64_t chunk_bytes;
    uint32_t count;
} tide_host_slots;

/* Make the slots. NO_MEMORY: nothing changed. */
tide_status tide_host_slots_create(tide_host_slots *slots, uint32_t count, uint64_t chunk_bytes,
                                   const tide_first_touch *how);
void tide_host_slots_destroy(tide_host_slots *slots);

static inline void *tide_host_slots_address(const tide_host_slots *slots, uint32_t slot)
{
    return slots->base + slot * slots->chunk_bytes;
}

#endif
