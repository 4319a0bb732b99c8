/* The DEVICE tier's memory on the host device.
 *
 *   memfd     [ slot 0 | slot 1 | ... ]            the physical memory, all pages present from the start
 *   own       [ slot 0 | slot 1 | ... ]            mapped once for ever: the slots' own places. Without page tables
 *                                                  until touched: Linux counts shared pages once a mapping, so a
 *                                                  process that used both places would seem to hold its device twice
 *   range     [ . . | chunk | . . . | chunk ]      PROT_NONE, with slots of the memfd at chunks' places
 *   region    private memory
 *
 * map() replaces the PROT_NONE pages by the memfd's in one mmap(MAP_FIXED), unmap() puts PROT_NONE back in
 * one: a place is never a hole that somebody else's mmap could fall into. MAP_POPULATE fills the page tables
 * at once: 64 MiB take about 3 ms with it and 10 without.
 */
#ifndef TIDE_OFFLOAD_HOST_MEMORY_H
#define TIDE_OFFLOAD_HOST_MEMORY_H

#include "tidepool/types.h"

#include <stdbool.h>

typedef struct tide_host_memory {
    uint64_t chunk_bytes;
    int memfd; /* -1: no slots yet */
    char *own;
    uint32_t slot_count;
    char *region;
    uint64_t region_bytes; /* whole pages */
} tide_host_memory;

void tide_host_memory_init(tide_host_memory *memory, uint64_t chunk_bytes);
void tide_host_memory_destroy(tide_host_memory *memory);

/* Once each. NO_MEMORY, UNSUPPORTED (no memfd): nothing changed. */
tide_status tide_host_memory_slots_create(tide_host_memory *memory, uint32_t count);
void tide_host_memory_slots_destroy(tide_host_memory *memory);
tide_status tide_host_memory_region_create(tide_host_memory *memory, uint64_t bytes, uint32_t threads);

/* Callers have checked slot and place. NO_MEMORY (the system's limit of mappings): the place is as before. */
tide_status tide_host_memory_map(tide_host_memory *memory, uint32_t slot, void *place);
tide_status tide_host_memory_unmap(tide_host_memory *memory, void *place);
/* Make a mapped place accessible or not. */
tide_status tide_host_memory_protect(tide_host_memory *memory, void *place, bool accessible);

static inline void *tide_host_memory_slot(const tide_host_memory *memory, uint32_t slot)
{
    return memory->own + slot * memory->chunk_bytes;
}

#endif
