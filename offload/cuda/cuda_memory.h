/* The DEVICE tier's memory on a GPU, made with CUDA's virtual memory management.
 *
 *   handle    slot 0   slot 1   ...                physical memory, one handle each, made at start and
 *                                                  never in a step
 *   own       [ slot 0 | slot 1 | ... ]            one reserved range, every handle always mapped there,
 *                                                  for copies
 *   range     [ . . | chunk | . . . | chunk ]      reserved once per space; map() also maps a handle at a
 *                                                  chunk's place
 *   region    plain device memory
 *
 * An address is usable after cuMemMap and cuMemSetAccess. cuMemUnmap undoes both; the place stays reserved,
 * so that nothing else can take it. Each slot has one handle, because each of these calls takes its time by
 * the handle and not by its size. cuMemUnmap does not wait for kernels: its caller has already seen the
 * slot's last use pass.
 *
 * Two mappings of one handle are two addresses of the same bytes: a read through one sees the writes through
 * the other once an event lies between. CUDA guarantees that, and the pool needs no more.
 *
 * The caller has checked slots and places and made the GPU current. Sizes are multiples of the GPU's
 * granularity.
 */
#ifndef TIDE_OFFLOAD_CUDA_MEMORY_H
#define TIDE_OFFLOAD_CUDA_MEMORY_H

#include "offload/cuda/cuda_driver.h"

typedef struct tide_cuda_memory {
    const tide_cuda_driver *driver;
    uint32_t ordinal;
    uint64_t chunk_bytes;
    CUdeviceptr own; /* 0: no slots yet */
    CUmemGenericAllocationHandle *handles;
    uint32_t slot_count;
    void *region;
} tide_cuda_memory;

void tide_cuda_memory_init(tide_cuda_memory *memory, const tide_cuda_driver *driver, uint32_t ordinal,
                           uint64_t chunk_bytes);
/* Free slots and region. No slot is mapped at a chunk's place, and no command runs. */
void tide_cuda_memory_destroy(tide_cuda_memory *memory);

/* Make the slots, once. NO_MEMORY (the message says how many slots fitted on the GPU), DEVICE: nothing
 * changed. */
tide_status tide_cuda_memory_slots_create(tide_cuda_memory *memory, uint32_t count);
void tide_cuda_memory_slots_destroy(tide_cuda_memory *memory);
/* Make the region, once. `stream` zeroes it before this returns. */
tide_status tide_cuda_memory_region_create(tide_cuda_memory *memory, uint64_t bytes, cudaStream_t stream);

/* Reserve a range of addresses without memory. */
tide_status tide_cuda_memory_reserve(const tide_cuda_memory *memory, uint64_t bytes, void **address);
/* Give a range back. Nothing is mapped in it. */
void tide_cuda_memory_unreserve(const tide_cuda_memory *memory, void *address, uint64_t bytes);

/* NO_MEMORY, DEVICE: the place is as before. INTERNAL: the place is neither mapped nor free. */
tide_status tide_cuda_memory_map(const tide_cuda_memory *memory, uint32_t slot, void *place);
tide_status tide_cuda_memory_unmap(const tide_cuda_memory *memory, uint32_t slot, void *place);
/* Unmap a place while undoing; a failure is added to the message. */
void tide_cuda_memory_unmap_undo(const tide_cuda_memory *memory, void *place);

void *tide_cuda_memory_slot(const tide_cuda_memory *memory, uint32_t slot);

#endif
