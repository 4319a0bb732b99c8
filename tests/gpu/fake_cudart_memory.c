/* Memory of the fake runtime: allocations, pinned memory, and the driver's virtual memory management.
 *
 *     handle         a memfd of its size, all bytes 0xA5
 *     reservation    PROT_NONE addresses; they stay PROT_NONE except in accessible mappings
 *     mapping        a record at cuMemMap; mmap(MAP_FIXED) of the memfd at cuMemSetAccess
 *     allocation     anonymous memory, all bytes 0xA5, that begins 256 bytes into a page, the least
 *                    alignment that CUDA promises
 *     registration   a record: the memory belongs to its owner
 *
 * The rules are those of cuda.h: sizes and addresses are multiples of the granularity, the offset is 0, a
 * range is mapped once, access is set on whole mappings, whole mappings are unmapped, a reservation is
 * freed as a whole and without mappings. A call that breaks a rule returns INVALID_VALUE, as the driver
 * does, and is recorded as misuse, since tidepool should keep the rules. */
#include "tests/gpu/fake_cudart_state.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { POISON = 0xA5, PAGE_BYTES = 4096, ALLOCATION_OFFSET_BYTES = 256 };

static fake_range range_pool[FAKE_RANGES_MAX];
static fake_range *range_free;
static size_t range_used;

/* --- ranges --- */

const char *fake_kind_name(fake_kind kind)
{
    static const char *const names[] = {"reservation", "mapping", "allocation", "registration",
                                        "host allocation"};
    return names[kind];
}

/* Takes a range from a pool, since tests forbid allocations while a pool of tidepool's runs. */
fake_range *fake_range_add(fake_kind kind, void *base, uint64_t bytes)
{
    fake_range *range = range_free;
    if (range != NULL)
        range_free = range->next;
    else
        range = &range_pool[range_used++];
    assert(range_used < FAKE_RANGES_MAX);
    *range = (fake_range){.next = fake.ranges[kind],
                          .base = base,
                          .bytes = bytes,
                          .kind = kind,
                          .gpu = fake_current_gpu(),
                          .live = true};
    fake.ranges[kind] = range;
    return range;
}

static void range_recycle(fake_range *range)
{
    range->next = range_free;
    range_free = range;
}

/* Makes the range unusable; a command that uses it afterwards fails. */
void fake_range_remove(fake_range *range, const char *what)
{
    fake_range **link = &fake.ranges[range->kind];
    if (range->queued > 0)
        fake_misused("%s under an enqueued copy: %s at %p, %llu bytes", what, fake_kind_name(range->kind),
                     (void *)range->base, (unsigned long long)range->bytes);
    while (*link != range)
        link = &(*link)->next;
    *link = range->next;
    range->live = false;
    /* Counted as queued here, so that the range is kept until its running commands have ended. */
    fake_range_queue(range);
    while (range->running > 0)
        fake_wait_changed();
    fake_range_unqueue(range);
}

void fake_range_queue(fake_range *range)
{
    range->queued++;
}

void fake_range_unqueue(fake_range *range)
{
    assert(range->queued > 0);
    if (--range->queued == 0 && !range->live)
        range_recycle(range);
}

static bool is_inside(const fake_range *range, const char *address, uint64_t bytes)
{
    return address >= range->base && bytes <= range->bytes &&
           (uint64_t)(address - range->base) <= range->bytes - bytes;
}

fake_range *fake_range_find(fake_kind kind, const void *address, uint64_t bytes)
{
    for (fake_range *range = fake.ranges[kind]; range != NULL; range = range->next)
        if (is_inside(range, address, bytes))
            return range;
    return NULL;
}

bool fake_range_overlaps(fake_kind kind, const char *address, uint64_t bytes)
{
    for (const fake_range *range = fake.ranges[kind]; range != NULL; range = range->next)
        if (address < range->base + range->bytes && range->base < address + bytes)
            return true;
    return false;
}

fake_range *fake_range_of_copy(const void *address, uint64_t bytes)
{
    for (int kind = FAKE_MAPPING; kind < FAKE_KIND_COUNT; kind++) {
        fake_range *range = fake_range_find((fake_kind)kind, address, bytes);
        if (range != NULL && (range->kind != FAKE_MAPPING || range->accessible))
            return range;
    }
    return NULL;
}

bool fake_range_is_device(const fake_range *range)
{
    return range->kind == FAKE_MAPPING || range->kind == FAKE_ALLOCATION;
}

bool fake_memory_take(int gpu, uint64_t bytes)
{
    if (bytes > fake.options.memory_bytes - fake.used_bytes[gpu])
        return false;
    fake.used_bytes[gpu] += bytes;
    return true;
}

/* --- allocations --- */

void *fake_mmap(void *wanted, uint64_t bytes, int protection, int flags, int fd)
{
    const long address = syscall(SYS_mmap, wanted, bytes, protection, flags, fd, 0L);
    return address == -1 ? NULL : (void *)address;
}

void fake_munmap(void *address, uint64_t bytes)
{
    if (syscall(SYS_munmap, address, bytes) != 0)
        abort();
}

static cudaError_t allocate(fake_kind kind, void **address, uint64_t bytes)
{
    const uint64_t offset_bytes = kind == FAKE_ALLOCATION ? ALLOCATION_OFFSET_BYTES : 0;
    const uint64_t whole_bytes = bytes + offset_bytes;
    if (bytes == 0) {
        *address = NULL;
        return cudaSuccess;
    }
    if (kind == FAKE_ALLOCATION && !fake_memory_take(fake_current_gpu(), bytes))
        return cudaErrorMemoryAllocation;
    char *whole = fake_mmap(NULL, whole_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1);
    if (whole == NULL)
        return cudaErrorMemoryAllocation;
    memset(whole, POISON, whole_bytes);
    fake_range *range = fake_range_add(kind, whole + offset_bytes, bytes);
    range->whole = whole;
    range->whole_bytes = whole_bytes;
    *address = range->base;
    return cudaSuccess;
}

static void allocation_free(fake_range *range, const char *what)
{
    char *whole = range->whole;
    const uint64_t whole_bytes = range->whole_bytes;
    if (range->kind == FAKE_ALLOCATION)
        fake.used_bytes[range->gpu] -= range->bytes;
    fake_range_remove(range, what);
    fake_munmap(whole, whole_bytes);
}

static cudaError_t give_back(fake_kind kind, void *address, const char *what)
{
    fake_range *range = address != NULL ? fake_range_find(kind, address, 1) : NULL;
    if (address == NULL)
        return cudaSuccess;
    if (range == NULL || range->base != address) {
        fake_misused("%s of %p, which is not allocated", what, address);
        return cudaErrorInvalidValue;
    }
    fake_check_gpu(fake_kind_name(kind), range->gpu);
    allocation_free(range, what);
    return cudaSuccess;
}

cudaError_t cudaMalloc(void **devPtr, size_t size)
{
    fake_call call = fake_enter("cudaMalloc", 0);
    return fake_leave(call, call.refused ? cudaSuccess : allocate(FAKE_ALLOCATION, devPtr, size));
}

cudaError_t cudaFree(void *devPtr)
{
    fake_call call = fake_enter("cudaFree", FAKE_GIVES_BACK);
    return fake_leave(call, call.refused ? cudaSuccess : give_back(FAKE_ALLOCATION, devPtr, "cudaFree"));
}

cudaError_t cudaHostAlloc(void **pHost, size_t size, unsigned int flags)
{
    fake_call call = fake_enter("cudaHostAlloc", 0);
    (void)flags;
    return fake_leave(call, call.refused ? cudaSuccess : allocate(FAKE_HOST_ALLOCATION, pHost, size));
}

cudaError_t cudaFreeHost(void *ptr)
{
    fake_call call = fake_enter("cudaFreeHost", FAKE_GIVES_BACK);
    return fake_leave(call,
                      call.refused ? cudaSuccess : give_back(FAKE_HOST_ALLOCATION, ptr, "cudaFreeHost"));
}

cudaError_t cudaMemGetInfo(size_t *free, size_t *total)
{
    fake_call call = fake_enter("cudaMemGetInfo", 0);
    if (!call.refused) {
        *total = fake.options.memory_bytes;
        *free = fake.options.memory_bytes - fake.used_bytes[fake_current_gpu()];
    }
    return fake_leave(call, cudaSuccess);
}

/* --- pinned memory --- */

/* Whether every page of the range is mapped. A mapped page counts also if no thread has touched it. */
static bool is_there(void *address, uint64_t bytes)
{
    const uintptr_t first = (uintptr_t)address / PAGE_BYTES * PAGE_BYTES;
    const uintptr_t end = (uintptr_t)address + bytes;
    return msync((void *)first, end - first, MS_ASYNC) == 0;
}

static cudaError_t host_register(void *address, uint64_t bytes, unsigned flags)
{
    const unsigned known = cudaHostRegisterPortable | cudaHostRegisterMapped | cudaHostRegisterReadOnly;
    if (address == NULL || bytes == 0 || (flags & ~known) != 0 || !is_there(address, bytes)) {
        fake_misused("registration of %p, %llu bytes, that can't be", address, (unsigned long long)bytes);
        return cudaErrorInvalidValue;
    }
    if (fake_range_overlaps(FAKE_REGISTRATION, address, bytes))
        return cudaErrorHostMemoryAlreadyRegistered;
    if (fake.options.pinned_bytes > 0 && bytes > fake.options.pinned_bytes - fake.pinned_bytes)
        return cudaErrorMemoryAllocation;
    fake.pinned_bytes += bytes;
    (void)fake_range_add(FAKE_REGISTRATION, address, bytes);
    return cudaSuccess;
}

static cudaError_t host_unregister(void *address)
{
    fake_range *range = fake_range_find(FAKE_REGISTRATION, address, 1);
    if (range == NULL || range->base != address) {
        fake_misused("cudaHostUnregister of %p, which is not registered", address);
        return cudaErrorHostMemoryNotRegistered;
    }
    if (!is_there(range->base, range->bytes))
        fake_misused("registered memory at %p was unmapped before it was unregistered", address);
    fake.pinned_bytes -= range->bytes;
    fake_range_remove(range, "cudaHostUnregister");
    return cudaSuccess;
}

cudaError_t cudaHostRegister(void *ptr, size_t size, unsigned int flags)
{
    fake_call call = fake_enter("cudaHostRegister", 0);
    return fake_leave(call, call.refused ? cudaSuccess : host_register(ptr, size, flags));
}

cudaError_t cudaHostUnregister(void *ptr)
{
    fake_call call = fake_enter("cudaHostUnregister", FAKE_GIVES_BACK);
    return fake_leave(call, call.refused ? cudaSuccess : host_unregister(ptr));
}

/* --- copies and fills --- */

static const char *side_name(bool device)
{
    return device ? "device" : "pinned host";
}

/* The range of one side of a copy; NULL: the address is not memory of that kind. */
static fake_range *side_find(const void *address, uint64_t bytes, bool device)
{
    fake_range *range = fake_range_of_copy(address, bytes);
    if (range != NULL && fake_range_is_device(range) == device)
        return range;
    fake_misused("a copy of %llu bytes at %p, which is not %s memory", (unsigned long long)bytes, address,
                 side_name(device));
    return NULL;
}

static cudaError_t copy(void *to, const void *from, uint64_t bytes, enum cudaMemcpyKind kind,
                        cudaStream_t stream)
{
    const bool to_device = kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDeviceToDevice;
    const bool from_device = kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyDeviceToDevice;
    if (kind == cudaMemcpyDefault || kind == cudaMemcpyHostToHost) {
        fake_misused("a copy that does not say where to");
        return cudaErrorInvalidValue;
    }
    if (bytes == 0)
        return cudaSuccess;
    const fake_command command = {
        .kind = FAKE_COPY,
        .to = to,
        .from = from,
        .bytes = bytes,
        .ranges = {side_find(to, bytes, to_device), side_find(from, bytes, from_device)}};
    if (command.ranges[0] == NULL || command.ranges[1] == NULL) {
        /* On a GPU the error would come later. */
        fake.sticky = cudaErrorIllegalAddress;
        return cudaSuccess;
    }
    return fake_stream_enqueue(stream, &command);
}

cudaError_t cudaMemcpyAsync(void *dst, const void *src, size_t count, enum cudaMemcpyKind kind,
                            cudaStream_t stream)
{
    fake_call call = fake_enter("cudaMemcpyAsync", 0);
    if (stream == NULL)
        fake_misused("a copy on the default stream");
    return fake_leave(call, call.refused ? cudaSuccess : copy(dst, src, count, kind, stream));
}

static cudaError_t fill(void *to, int value, uint64_t bytes, cudaStream_t stream)
{
    const fake_command command = {.kind = FAKE_FILL,
                                  .to = to,
                                  .value = value,
                                  .bytes = bytes,
                                  .ranges = {bytes > 0 ? side_find(to, bytes, true) : NULL, NULL}};
    if (bytes == 0)
        return cudaSuccess;
    if (command.ranges[0] == NULL)
        return cudaErrorInvalidValue;
    return fake_stream_enqueue(stream, &command);
}

/* The fill runs on the default stream. The caller does not wait for it, nor do non-blocking streams. */
cudaError_t cudaMemset(void *devPtr, int value, size_t count)
{
    fake_call call = fake_enter("cudaMemset", 0);
    return fake_leave(call, call.refused ? cudaSuccess : fill(devPtr, value, count, NULL));
}

cudaError_t cudaMemsetAsync(void *devPtr, int value, size_t count, cudaStream_t stream)
{
    fake_call call = fake_enter("cudaMemsetAsync", 0);
    return fake_leave(call, call.refused ? cudaSuccess : fill(devPtr, value, count, stream));
}

/* --- release --- */

static void handle_forget(fake_handle *handle)
{
    fake_handle **link = &fake.handles;
    while (*link != handle)
        link = &(*link)->next;
    *link = handle->next;
    (void)close(handle->memfd);
    handle->memfd = -1; /* marks its place in the pool as free */
}

void fake_handle_unref(fake_handle *handle)
{
    if (!handle->released || handle->mappings > 0)
        return;
    fake.used_bytes[handle->gpu] -= handle->bytes;
    handle_forget(handle);
}

void fake_memory_destroy(void)
{
    for (int kind = FAKE_KIND_COUNT; kind-- > 0;) /* a mapping before its reservation */
        while (fake.ranges[kind] != NULL) {
            fake_range *range = fake.ranges[kind];
            if (kind == FAKE_ALLOCATION || kind == FAKE_HOST_ALLOCATION || kind == FAKE_RESERVATION)
                fake_munmap(range->whole, range->whole_bytes);
            fake_range_remove(range, "start");
        }
    while (fake.handles != NULL)
        handle_forget(fake.handles);
    memset(fake.used_bytes, 0, sizeof fake.used_bytes);
    fake.pinned_bytes = 0;
}
