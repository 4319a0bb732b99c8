/* The DEVICE tier's memory on the host device.
 *
 *   memfd     [ slot 0 | slot 1 | ... ]            the physical memory, all pages present from the start, huge ones where
 *                                                  the system has them for shared memory
 *   own       [ slot 0 | slot 1 | ... ]            mapped for ever: the slots' own places
 *   range     [ . . | chunk | . . . | chunk ]      PROT_NONE, with slots of the memfd at chunks' places
 *   region    private memory
 *
 * A slot's page tables are filled once and then move with it. map() is one mremap from its own place to the chunk's, over
 * the PROT_NONE there, that leaves the own place mapped without tables (MREMAP_DONTUNMAP; who touches it still finds the
 * slot); unmap() is one mremap back, and PROT_NONE over the chunk's place. Both lie at multiples of a chunk, so from chunks
 * of 2 MiB on Linux moves whole tables: 4 MiB take 3 us to map and 5 to unmap, 64 MiB 9 and 11. (Mapping the memfd anew and
 * filling its tables each time takes 150 and 55, 2800 and 1250.) And as Linux counts shared pages once a mapping, a process
 * does not seem to hold its device twice.
 *
 * That is while no other thread of the process runs. Else Linux, after each table of 2 MiB, interrupts every processor that
 * runs one, to drop what it has cached: 17 us each on a virtual machine. Beside a copy 64 MiB take 560 us to map and as
 * much to unmap, and the copy 7% longer. So remap() moves the tables from place to place: half of the interrupts.
 * (Closing the old place with mprotect and moving later: one interrupt, but 1000 us for 64 MiB of page table entries.)
 *
 * No place is a hole that somebody else's mmap could fall into, unless the system fails half way. Where it refuses to move
 * (it does five mappings below its limit, and shared memory before Linux 5.13), map() maps the file anew, and unmap()
 * leaves the own place without tables.
 */
#ifndef TIDE_OFFLOAD_HOST_MEMORY_H
#define TIDE_OFFLOAD_HOST_MEMORY_H

#include "offload/host_extent.h"

typedef struct tide_host_memory {
    uint64_t chunk_bytes;
    int memfd; /* -1: no slots yet */
    char *own;
    uint32_t slot_count;
    bool moves; /* mremap works */
    char *region;
    uint64_t region_bytes; /* whole pages */
} tide_host_memory;

void tide_host_memory_init(tide_host_memory *memory, uint64_t chunk_bytes);
void tide_host_memory_destroy(tide_host_memory *memory);

/* Once each. NO_MEMORY, UNSUPPORTED (no memfd): nothing changed. */
tide_status tide_host_memory_slots_create(tide_host_memory *memory, uint32_t count,
                                          const tide_first_touch *how);
void tide_host_memory_slots_destroy(tide_host_memory *memory);
tide_status tide_host_memory_region_create(tide_host_memory *memory, uint64_t bytes,
                                           const tide_first_touch *how);

/* Callers have checked slot and place. NO_MEMORY (the system's limit of mappings): the place is as before. INTERNAL: a place
 * or the slot's own is lost. */
tide_status tide_host_memory_map(tide_host_memory *memory, uint32_t slot, void *place);
tide_status tide_host_memory_unmap(tide_host_memory *memory, uint32_t slot, void *place);
/* From one place to another. On failure, but INTERNAL, the slot is where it was. */
tide_status tide_host_memory_remap(tide_host_memory *memory, uint32_t slot, void *from, void *to);
/* Make a mapped place accessible or not. */
tide_status tide_host_memory_protect(tide_host_memory *memory, void *place, bool accessible);

static inline void *tide_host_memory_slot(const tide_host_memory *memory, uint32_t slot)
{
    return memory->own + slot * memory->chunk_bytes;
}

#endif
