/* The fake driver's functions, found by cudaGetDriverEntryPointByVersion: virtual memory management and
 * properties of a GPU. fake_cudart_memory.c states the rules; this file checks each of them and names it
 * in a message. */
#include "tests/gpu/fake_cudart_state.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { POISON = 0xA5 };

static CUresult refuse(const char *what, const char *rule)
{
    fake_misused("%s: %s", what, rule);
    return CUDA_ERROR_INVALID_VALUE;
}

static bool is_whole(uint64_t value)
{
    return value % FAKE_CUDART_GRANULARITY == 0;
}

static char *address_of(CUdeviceptr address)
{
    return (char *)(uintptr_t)address;
}

/* --- reservations --- */

static CUresult reserve(CUdeviceptr *address, uint64_t bytes, uint64_t alignment, unsigned long long flags)
{
    if (bytes == 0 || !is_whole(bytes))
        return refuse("cuMemAddressReserve", "the size is not a multiple of the granularity");
    if ((alignment & (alignment - 1)) != 0 || flags != 0)
        return refuse("cuMemAddressReserve", "the alignment is no power of two, or there are flags");
    if (alignment < FAKE_CUDART_GRANULARITY)
        alignment = FAKE_CUDART_GRANULARITY;
    const uint64_t whole_bytes = bytes + alignment;
    char *whole = fake_mmap(NULL, whole_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1);
    if (whole == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    char *base = whole + (alignment - (uintptr_t)whole % alignment) % alignment;
    fake_range *range = fake_range_add(FAKE_RESERVATION, base, bytes);
    range->whole = whole;
    range->whole_bytes = whole_bytes;
    *address = (CUdeviceptr)(uintptr_t)base;
    return CUDA_SUCCESS;
}

static CUresult address_reserve(CUdeviceptr *ptr, size_t size, size_t alignment, CUdeviceptr addr,
                                unsigned long long flags)
{
    fake_call call = fake_enter("cuMemAddressReserve", 0);
    (void)addr; /* only a wish, which the fake ignores */
    return fake_leave_driver(call, call.refused ? CUDA_SUCCESS : reserve(ptr, size, alignment, flags));
}

static CUresult reservation_free(char *address, uint64_t bytes)
{
    fake_range *range = fake_range_find(FAKE_RESERVATION, address, 1);
    if (range == NULL || range->base != address || range->bytes != bytes)
        return refuse("cuMemAddressFree", "this is not a whole reservation");
    if (fake_range_overlaps(FAKE_MAPPING, range->base, range->bytes))
        return refuse("cuMemAddressFree", "something is still mapped there");
    fake_munmap(range->whole, range->whole_bytes);
    fake_range_remove(range, "cuMemAddressFree");
    return CUDA_SUCCESS;
}

static CUresult address_free(CUdeviceptr ptr, size_t size)
{
    fake_call call = fake_enter("cuMemAddressFree", FAKE_GIVES_BACK);
    return fake_leave_driver(call, call.refused ? CUDA_SUCCESS : reservation_free(address_of(ptr), size));
}

/* --- handles --- */

static int poisoned_file(uint64_t bytes)
{
    int memfd = memfd_create("fake-gpu", MFD_CLOEXEC);
    if (memfd < 0)
        return -1;
    void *all = ftruncate(memfd, (off_t)bytes) == 0
                    ? fake_mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, memfd)
                    : NULL;
    if (all == NULL) {
        (void)close(memfd);
        return -1;
    }
    memset(all, POISON, bytes);
    fake_munmap(all, bytes);
    return memfd;
}

/* Takes a handle from the pool; a place without a file is free. */
static fake_handle *handle_place(void)
{
    static fake_handle pool[FAKE_HANDLES_MAX];
    static size_t used;
    for (size_t i = 0; i < used; i++)
        if (pool[i].memfd < 0)
            return &pool[i];
    return used < FAKE_HANDLES_MAX ? &pool[used++] : NULL;
}

static bool is_memory_of_a_gpu(const CUmemLocation *location)
{
    return location->type == CU_MEM_LOCATION_TYPE_DEVICE && location->id >= 0 &&
           location->id < fake.options.gpus;
}

static CUresult create(CUmemGenericAllocationHandle *number, uint64_t bytes, const CUmemAllocationProp *prop,
                       unsigned long long flags)
{
    if (fake.options.no_vmm)
        return CUDA_ERROR_NOT_SUPPORTED;
    if (bytes == 0 || !is_whole(bytes) || flags != 0)
        return refuse("cuMemCreate", "the size is not a multiple of the granularity, or there are flags");
    if (prop->type != CU_MEM_ALLOCATION_TYPE_PINNED || !is_memory_of_a_gpu(&prop->location))
        return refuse("cuMemCreate", "these properties are not a GPU's memory");
    const int gpu = prop->location.id;
    fake_handle *handle = fake_memory_take(gpu, bytes) ? handle_place() : NULL;
    if (handle == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    *handle = (fake_handle){.next = fake.handles, .bytes = bytes, .gpu = gpu};
    handle->number = *number = ++fake.last_handle;
    handle->memfd = poisoned_file(bytes);
    /* The test's machine, not the GPU, is out of memory. */
    if (handle->memfd < 0)
        abort();
    fake.handles = handle;
    return CUDA_SUCCESS;
}

static CUresult memory_create(CUmemGenericAllocationHandle *handle, size_t size,
                              const CUmemAllocationProp *prop, unsigned long long flags)
{
    fake_call call = fake_enter("cuMemCreate", 0);
    return fake_leave_driver(call, call.refused ? CUDA_SUCCESS : create(handle, size, prop, flags));
}

static fake_handle *handle_find(CUmemGenericAllocationHandle number)
{
    fake_handle *handle = fake.handles;
    while (handle != NULL && (handle->number != number || handle->released))
        handle = handle->next;
    return handle;
}

static CUresult release(fake_handle *handle)
{
    if (handle == NULL)
        return refuse("cuMemRelease", "there is no such handle");
    handle->released = true;
    fake_handle_unref(handle);
    return CUDA_SUCCESS;
}

static CUresult memory_release(CUmemGenericAllocationHandle number)
{
    fake_call call = fake_enter("cuMemRelease", FAKE_GIVES_BACK);
    return fake_leave_driver(call, call.refused ? CUDA_SUCCESS : release(handle_find(number)));
}

static CUresult granularity(size_t *bytes, const CUmemAllocationProp *prop,
                            CUmemAllocationGranularity_flags option)
{
    fake_call call = fake_enter("cuMemGetAllocationGranularity", 0);
    CUresult error = CUDA_SUCCESS;
    (void)option;
    if (!call.refused &&
        (prop->type != CU_MEM_ALLOCATION_TYPE_PINNED || !is_memory_of_a_gpu(&prop->location)))
        error = refuse("cuMemGetAllocationGranularity", "these properties are not a GPU's memory");
    else if (!call.refused)
        *bytes = FAKE_CUDART_GRANULARITY;
    return fake_leave_driver(call, error);
}

/* --- mappings --- */

static CUresult map(char *place, uint64_t bytes, uint64_t offset_bytes, fake_handle *handle,
                    unsigned long long flags)
{
    if (flags != 0)
        return refuse("cuMemMap", "there are flags");
    if (!is_whole((uintptr_t)place) || bytes == 0 || !is_whole(bytes))
        return refuse("cuMemMap", "address or size is not a multiple of the granularity");
    if (offset_bytes != 0)
        return refuse("cuMemMap", "the offset is not 0");
    if (handle == NULL)
        return refuse("cuMemMap", "there is no such handle");
    if (bytes > handle->bytes)
        return refuse("cuMemMap", "the handle is smaller");
    if (fake_range_find(FAKE_RESERVATION, place, bytes) == NULL)
        return refuse("cuMemMap", "these addresses are not reserved");
    if (fake_range_overlaps(FAKE_MAPPING, place, bytes))
        return refuse("cuMemMap", "something is mapped there already");
    fake_range *range = fake_range_add(FAKE_MAPPING, place, bytes);
    range->handle = handle;
    handle->mappings++;
    return CUDA_SUCCESS;
}

static CUresult memory_map(CUdeviceptr ptr, size_t size, size_t offset, CUmemGenericAllocationHandle handle,
                           unsigned long long flags)
{
    fake_call call = fake_enter("cuMemMap", 0);
    return fake_leave_driver(
        call, call.refused ? CUDA_SUCCESS : map(address_of(ptr), size, offset, handle_find(handle), flags));
}

/* Whether whole mappings fill [place, place + bytes) without a gap. Mappings lie at multiples of the
 * granularity. */
static bool is_filled_by_whole_mappings(char *place, uint64_t bytes)
{
    char *const end = place + bytes;
    while (place < end) {
        const fake_range *range = fake_range_find(FAKE_MAPPING, place, 1);
        if (range == NULL || range->base != place || range->bytes > (uint64_t)(end - place))
            return false;
        place += range->bytes;
    }
    return bytes > 0;
}

static CUresult give_access(char *place, uint64_t bytes, const CUmemAccessDesc *access, size_t count)
{
    if (count != 1 || !is_memory_of_a_gpu(&access->location) ||
        access->flags == CU_MEM_ACCESS_FLAGS_PROT_NONE)
        return refuse("cuMemSetAccess", "this is no access for a GPU");
    if (!is_filled_by_whole_mappings(place, bytes))
        return refuse("cuMemSetAccess", "the addresses are not those of whole mappings");
    const int protection =
        access->flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE ? PROT_READ | PROT_WRITE : PROT_READ;
    for (char *const end = place + bytes; place < end;) {
        fake_range *range = fake_range_find(FAKE_MAPPING, place, 1);
        /* The test's machine has no mappings left. */
        if (fake_mmap(place, range->bytes, protection, MAP_SHARED | MAP_FIXED, range->handle->memfd) == NULL)
            abort();
        range->accessible = true;
        place += range->bytes;
    }
    return CUDA_SUCCESS;
}

static CUresult set_access(CUdeviceptr ptr, size_t size, const CUmemAccessDesc *desc, size_t count)
{
    fake_call call = fake_enter("cuMemSetAccess", 0);
    return fake_leave_driver(call,
                             call.refused ? CUDA_SUCCESS : give_access(address_of(ptr), size, desc, count));
}

static void unmap(fake_range *range)
{
    fake_handle *handle = range->handle;
    char *base = range->base;
    const uint64_t bytes = range->bytes;
    fake_range_remove(range, "cuMemUnmap");
    if (fake_mmap(base, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1) ==
        NULL)
        abort();
    handle->mappings--;
    fake_handle_unref(handle);
}

static CUresult unmap_all(char *place, uint64_t bytes)
{
    /* After a sticky error the caller can't know whether its first call unmapped the range, so it may call
     * again. */
    if (fake.sticky != 0 && fake_range_find(FAKE_MAPPING, place, 1) == NULL)
        return CUDA_SUCCESS;
    if (!is_filled_by_whole_mappings(place, bytes))
        return refuse("cuMemUnmap", "the addresses are not those of whole mappings");
    for (char *const end = place + bytes; place < end;) {
        fake_range *range = fake_range_find(FAKE_MAPPING, place, 1);
        place += range->bytes;
        unmap(range);
    }
    return CUDA_SUCCESS;
}

static CUresult memory_unmap(CUdeviceptr ptr, size_t size)
{
    fake_call call = fake_enter("cuMemUnmap", FAKE_GIVES_BACK);
    return fake_leave_driver(call, call.refused ? CUDA_SUCCESS : unmap_all(address_of(ptr), size));
}

/* --- GPUs --- */

static CUresult device_attribute(int *value, CUdevice_attribute attribute, CUdevice device)
{
    fake_call call = fake_enter("cuDeviceGetAttribute", FAKE_ANY_GPU);
    CUresult error = device >= 0 && device < fake.options.gpus ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
    if (attribute != CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED)
        error = CUDA_ERROR_INVALID_VALUE;
    if (!call.refused && error == CUDA_SUCCESS)
        *value = !fake.options.no_vmm;
    return fake_leave_driver(call, error);
}

static CUresult error_name(CUresult error, const char **name)
{
    static const struct {
        CUresult error;
        const char *name;
    } names[] = {
        {CUDA_SUCCESS, "CUDA_SUCCESS"},
        {CUDA_ERROR_INVALID_VALUE, "CUDA_ERROR_INVALID_VALUE"},
        {CUDA_ERROR_OUT_OF_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY"},
        {CUDA_ERROR_NOT_SUPPORTED, "CUDA_ERROR_NOT_SUPPORTED"},
        {CUDA_ERROR_INVALID_DEVICE, "CUDA_ERROR_INVALID_DEVICE"},
        {CUDA_ERROR_ILLEGAL_ADDRESS, "CUDA_ERROR_ILLEGAL_ADDRESS"},
        {CUDA_ERROR_UNKNOWN, "CUDA_ERROR_UNKNOWN"},
    };
    *name = NULL;
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        if (names[i].error == error)
            *name = names[i].name;
    return *name != NULL ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

typedef void (*entry)(void);

void *fake_driver_entry(const char *symbol)
{
    static const struct {
        const char *name;
        entry function;
    } entries[] = {
        {"cuMemAddressReserve", (entry)address_reserve},
        {"cuMemAddressFree", (entry)address_free},
        {"cuMemCreate", (entry)memory_create},
        {"cuMemRelease", (entry)memory_release},
        {"cuMemMap", (entry)memory_map},
        {"cuMemUnmap", (entry)memory_unmap},
        {"cuMemSetAccess", (entry)set_access},
        {"cuMemGetAllocationGranularity", (entry)granularity},
        {"cuDeviceGetAttribute", (entry)device_attribute},
        {"cuGetErrorName", (entry)error_name},
    };
    for (size_t i = 0; i < sizeof entries / sizeof entries[0]; i++)
        if (strcmp(entries[i].name, symbol) == 0) {
            void *address;
            /* converts the function pointer to void *, as callers of dlsym do */
            memcpy(&address, &entries[i].function, sizeof address);
            return address;
        }
    return NULL;
}
