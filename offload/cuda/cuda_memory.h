/* The DEVICE tier's memory on a GPU, by CUDA's virtual memory management.
 *
 *   handle    slot 0   slot 1   ...                physical memory, one handle each, made at start and never in a step
 *   own       [ slot 0 | slot 1 | ... ]            one reserved range, every handle mapped there for ever,
 *                                                  for copies
 *   range     [ . . | chunk | . . . | chunk ]      reserved once a space; map() puts a handle at a chunk's place, too
 *   region    plain device memory
 *
 * An address is of use after cuMemMap and cuMemSetAccess; cuMemUnmap takes both away and leaves the place reserved,
 * never a hole. One handle a slot, because each of these calls takes its time by the handle and not by its size.
 * cuMemUnmap does not wait for kernels: who unmaps has seen the slot's last use pass.
 *
 * Two mappings of one handle are two names of the same bytes: a read through one sees writes through the
 * other once an event lies between. That is CUDA's rule, and all that the pool needs.
 *
 * Who calls has checked slots and places and made the GPU current. Sizes are multiples of the GPU's granularity.
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
/* Slots and region. No slot is mapped at a chunk's place, and nothing runs. */
void tide_cuda_memory_destroy(tide_cuda_memory *memory);

/* Once. NO_MEMORY (saying how many slots the GPU had room for), DEVICE: nothing changed. */
tide_status tide_cuda_memory_slots_create(tide_cuda_memory *memory, uint32_t count);
void tide_cuda_memory_slots_destroy(tide_cuda_memory *memory);
/* Once. Zeroed, which `stream` does before this returns. */
tide_status tide_cuda_memory_region_create(tide_cuda_memory *memory, uint64_t bytes, cudaStream_t stream);

/* A range of addresses, with nothing behind them. */
tide_status tide_cuda_memory_reserve(const tide_cuda_memory *memory, uint64_t bytes, void **address);
/* Nothing is mapped in it. */
void tide_cuda_memory_unreserve(const tide_cuda_memory *memory, void *address, uint64_t bytes);

/* NO_MEMORY, DEVICE: the place is as before. INTERNAL: it is neither mapped nor free. */
tide_status tide_cuda_memory_map(const tide_cuda_memory *memory, uint32_t slot, void *place);
tide_status tide_cuda_memory_unmap(const tide_cuda_memory *memory, uint32_t slot, void *place);
/* On the way back: take what is mapped at a place away. */
void tide_cuda_memory_unmap_undo(const tide_cuda_memory *memory, void *place);

void *tide_cuda_memory_slot(const tide_cuda_memory *memory, uint32_t slot);

#endif
