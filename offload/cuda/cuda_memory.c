/* Makes the driver's calls for slots, places and the region. The callers check whether a call is allowed. */
#include "offload/cuda/cuda_memory.h"

#include <assert.h>
#include <inttypes.h>
#include <stdlib.h>

void tide_cuda_memory_init(tide_cuda_memory *memory, const tide_cuda_driver *driver, uint32_t ordinal,
                           uint64_t chunk_bytes)
{
    *memory = (tide_cuda_memory){.driver = driver, .ordinal = ordinal, .chunk_bytes = chunk_bytes};
}

/* Device addresses are passed as the host's kind of pointers, so that all devices have one table of
 * operations; this code never dereferences one. */
static CUdeviceptr device_address(const void *address)
{
    return (CUdeviceptr)(uintptr_t)address;
}

static CUdeviceptr own_place(const tide_cuda_memory *memory, uint32_t slot)
{
    return memory->own + slot * memory->chunk_bytes;
}

void *tide_cuda_memory_slot(const tide_cuda_memory *memory, uint32_t slot)
{
    assert(slot < memory->slot_count);
    return (void *)(uintptr_t)own_place(memory, slot);
}

/* --- mapping a handle at a place --- */

static tide_status place_fill(const tide_cuda_memory *memory, CUdeviceptr place,
                              CUmemGenericAllocationHandle handle)
{
    const tide_cuda_driver *driver = memory->driver;
    const CUmemAccessDesc access = {.location = tide_cuda_allocation(memory->ordinal).location,
                                    .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    tide_status status =
        tide_cuda_driver_check(driver, driver->map(place, memory->chunk_bytes, 0, handle, 0), "cuMemMap");
    if (status != TIDE_OK)
        return status;
    status = tide_cuda_driver_check(driver, driver->set_access(place, memory->chunk_bytes, &access, 1),
                                    "cuMemSetAccess");
    if (status == TIDE_OK)
        return TIDE_OK;
    const CUresult undone = driver->unmap(place, memory->chunk_bytes);
    if (undone == CUDA_SUCCESS)
        return status;
    tide_cuda_driver_undo(driver, undone, "cuMemUnmap");
    return tide_fail(TIDE_ERROR_INTERNAL, "the place %p was lost: %s", (void *)(uintptr_t)place,
                     tide_message());
}

tide_status tide_cuda_memory_map(const tide_cuda_memory *memory, uint32_t slot, void *place)
{
    assert(slot < memory->slot_count);
    const tide_status status = place_fill(memory, device_address(place), memory->handles[slot]);
    if (status == TIDE_OK)
        return TIDE_OK;
    return tide_fail(status, "device slot %" PRIu32 " could not be mapped at %p: %s", slot, place,
                     tide_message());
}

tide_status tide_cuda_memory_unmap(const tide_cuda_memory *memory, uint32_t slot, void *place)
{
    const tide_status status = tide_cuda_driver_check(
        memory->driver, memory->driver->unmap(device_address(place), memory->chunk_bytes), "cuMemUnmap");
    if (status == TIDE_OK)
        return TIDE_OK;
    return tide_fail(status, "device slot %" PRIu32 " could not be unmapped from %p: %s", slot, place,
                     tide_message());
}

void tide_cuda_memory_unmap_undo(const tide_cuda_memory *memory, void *place)
{
    tide_cuda_driver_undo(memory->driver, memory->driver->unmap(device_address(place), memory->chunk_bytes),
                          "cuMemUnmap");
}

/* --- ranges --- */

tide_status tide_cuda_memory_reserve(const tide_cuda_memory *memory, uint64_t bytes, void **address)
{
    CUdeviceptr base = 0;
    /* Alignment 0: CUDA aligns as mapping needs, which is enough for all callers. */
    const tide_status status = tide_cuda_driver_check(
        memory->driver, memory->driver->address_reserve(&base, bytes, 0, 0, 0), "cuMemAddressReserve");
    if (status != TIDE_OK)
        return tide_fail(status, "no range of %" PRIu64 " bytes of device addresses: %s", bytes,
                         tide_message());
    *address = (void *)(uintptr_t)base;
    return TIDE_OK;
}

void tide_cuda_memory_unreserve(const tide_cuda_memory *memory, void *address, uint64_t bytes)
{
    tide_cuda_driver_undo(memory->driver, memory->driver->address_free(device_address(address), bytes),
                          "cuMemAddressFree");
}

/* --- slots --- */

static tide_status slot_make(tide_cuda_memory *memory, uint32_t slot)
{
    const tide_cuda_driver *driver = memory->driver;
    const CUmemAllocationProp wanted = tide_cuda_allocation(memory->ordinal);
    CUmemGenericAllocationHandle handle;
    tide_status status = tide_cuda_driver_check(
        driver, driver->create(&handle, memory->chunk_bytes, &wanted, 0), "cuMemCreate");
    if (status != TIDE_OK)
        return status;
    status = place_fill(memory, own_place(memory, slot), handle);
    if (status != TIDE_OK)
        goto undo_create;
    memory->handles[slot] = handle;
    return TIDE_OK;

undo_create:
    tide_cuda_driver_undo(driver, driver->release(handle), "cuMemRelease");
    return status;
}

static void slot_unmake(tide_cuda_memory *memory, uint32_t slot)
{
    const tide_cuda_driver *driver = memory->driver;
    tide_cuda_memory_unmap_undo(memory, (void *)(uintptr_t)own_place(memory, slot));
    tide_cuda_driver_undo(driver, driver->release(memory->handles[slot]), "cuMemRelease");
}

tide_status tide_cuda_memory_slots_create(tide_cuda_memory *memory, uint32_t count)
{
    assert(memory->handles == NULL);
    if (count == 0)
        return TIDE_OK;
    void *own = NULL;
    uint32_t made = 0;
    memory->handles = calloc(count, sizeof *memory->handles);
    if (memory->handles == NULL)
        return tide_fail(TIDE_ERROR_NO_MEMORY, "no memory for the table of %" PRIu32 " device slots", count);
    tide_status status = tide_cuda_memory_reserve(memory, count * memory->chunk_bytes, &own);
    if (status != TIDE_OK)
        goto undo_table;
    memory->own = device_address(own);
    while (made < count && status == TIDE_OK) {
        status = slot_make(memory, made);
        made += status == TIDE_OK;
    }
    if (status != TIDE_OK)
        goto undo_slots;
    memory->slot_count = count;
    return TIDE_OK;

undo_slots:
    status = tide_fail(status,
                       "device slots: %" PRIu32 " of %" PRIu32 ", of %" PRIu64 " bytes each, were made: %s",
                       made, count, memory->chunk_bytes, tide_message());
    while (made > 0)
        slot_unmake(memory, --made);
    tide_cuda_memory_unreserve(memory, own, count * memory->chunk_bytes);
    memory->own = 0;
undo_table:
    free(memory->handles);
    memory->handles = NULL;
    return status;
}

void tide_cuda_memory_slots_destroy(tide_cuda_memory *memory)
{
    if (memory->handles == NULL)
        return;
    const uint64_t own_bytes = memory->slot_count * memory->chunk_bytes;
    while (memory->slot_count > 0)
        slot_unmake(memory, --memory->slot_count);
    tide_cuda_memory_unreserve(memory, (void *)(uintptr_t)memory->own, own_bytes);
    memory->own = 0;
    free(memory->handles);
    memory->handles = NULL;
}

/* --- the region --- */

static tide_status region_zero(void *region, uint64_t bytes, cudaStream_t stream)
{
    tide_status status = tide_cuda_check(cudaMemsetAsync(region, 0, bytes, stream), "cudaMemsetAsync");
    if (status == TIDE_OK)
        status = tide_cuda_check(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
    return status;
}

tide_status tide_cuda_memory_region_create(tide_cuda_memory *memory, uint64_t bytes, cudaStream_t stream)
{
    assert(memory->region == NULL);
    void *region = NULL;
    tide_status status = tide_cuda_check(cudaMalloc(&region, bytes), "cudaMalloc");
    if (status != TIDE_OK)
        return tide_fail(status, "region of %" PRIu64 " bytes: %s", bytes, tide_message());
    status = region_zero(region, bytes, stream);
    if (status != TIDE_OK)
        goto undo_malloc;
    memory->region = region;
    return TIDE_OK;

undo_malloc:
    tide_cuda_undo(cudaFree(region), "cudaFree");
    return status;
}

void tide_cuda_memory_destroy(tide_cuda_memory *memory)
{
    tide_cuda_memory_slots_destroy(memory);
    if (memory->region != NULL)
        tide_cuda_undo(cudaFree(memory->region), "cudaFree");
    memory->region = NULL;
}
