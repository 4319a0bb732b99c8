/* The DEVICE tier's memory on the host device.
 *
 *   memfd     [ slot 0 | slot 1 | ... ]            the physical memory, all pages present from the start,
 *                                                  huge ones where the system has them for shared memory
 *   own       [ slot 0 | slot 1 | ... ]            always mapped: the slots' own places
 *   range     [ . . | chunk | . . . | chunk ]      PROT_NONE, with slots of the memfd at chunks' places
 *   region    private memory
 *
 * A slot's page tables are filled once and then move with its mapping. map() is one mremap from the slot's
 * own place to the chunk's place, over the PROT_NONE there; the own place stays mapped, but without page
 * tables (MREMAP_DONTUNMAP), and an access there still finds the slot. unmap() is one mremap back, and then
 * PROT_NONE over the chunk's place. Both places lie at multiples of a chunk, so for chunks of 2 MiB or more
 * Linux moves whole tables: 4 MiB take 3 us to map and 5 to unmap, 64 MiB take 9 and 11. (Mapping the memfd
 * anew and filling its tables each time takes 150 and 55 us, 2800 and 1250.) Linux counts a shared page once
 * for each mapping with page tables; so the process does not seem to hold its device's memory twice.
 *
 * These times hold while no other thread of the process runs. Otherwise Linux, after each table of 2 MiB,
 * interrupts every processor that runs one of its threads, to drop cached translations: 17 us each on a
 * virtual machine. Beside a copy, 64 MiB take 560 us to map and as long to unmap, and the copy takes 7%
 * longer. Therefore remap() moves the tables directly from place to place, with half of the interrupts. (To
 * close the old place with mprotect and move later takes one interrupt, but 1000 us for the page table
 * entries of 64 MiB.)
 *
 * No place ever becomes a hole that another mmap of the process could take, unless the system fails half way.
 * If the system refuses to move a mapping (it does five mappings below its limit, and for shared memory
 * before Linux 5.13), map() maps the file anew, and unmap() leaves the own place without page tables.
 */
#ifndef TIDE_OFFLOAD_HOST_MEMORY_H
#define TIDE_OFFLOAD_HOST_MEMORY_H

#include "offload/host_extent.h"

typedef struct tide_host_memory {
    uint64_t chunk_bytes;
    int memfd; /* -1: no slots yet */
    char *own;
    uint32_t slot_count;
    bool moves; /* mremap can move the mappings */
    char *region;
    uint64_t region_bytes; /* whole pages */
} tide_host_memory;

void tide_host_memory_init(tide_host_memory *memory, uint64_t chunk_bytes);
void tide_host_memory_destroy(tide_host_memory *memory);

/* Call each once. NO_MEMORY, UNSUPPORTED (no memfd): nothing changed. */
tide_status tide_host_memory_slots_create(tide_host_memory *memory, uint32_t count,
                                          const tide_first_touch *how);
void tide_host_memory_slots_destroy(tide_host_memory *memory);
tide_status tide_host_memory_region_create(tide_host_memory *memory, uint64_t bytes,
                                           const tide_first_touch *how);

/* Callers have checked slot and place. NO_MEMORY (the system's limit of mappings): the place is as before.
 * INTERNAL: the chunk's place or the slot's own is lost. */
tide_status tide_host_memory_map(tide_host_memory *memory, uint32_t slot, void *place);
tide_status tide_host_memory_unmap(tide_host_memory *memory, uint32_t slot, void *place);
/* Move the slot from one place to another. On failure other than INTERNAL, the slot is still at `from`. */
tide_status tide_host_memory_remap(tide_host_memory *memory, uint32_t slot, void *from, void *to);
/* Make a mapped place accessible, or inaccessible for a guard. DEVICE. */
tide_status tide_host_memory_protect(tide_host_memory *memory, void *place, bool accessible);

static inline void *tide_host_memory_slot(const tide_host_memory *memory, uint32_t slot)
{
    return memory->own + slot * memory->chunk_bytes;
}

#endif
