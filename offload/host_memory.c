/* Makes the system calls for slots, places and the region. The callers check whether a call is allowed. */
#include "offload/host_memory.h"

#include "base/align.h"
#include "base/write_error.h"
#include "offload/topology.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { PAGE_BYTES = 4096, HUGE_PAGE_BYTES = 2 << 20 };

void tide_host_memory_init(tide_host_memory *memory, uint64_t chunk_bytes)
{
    *memory = (tide_host_memory){.chunk_bytes = chunk_bytes, .memfd = -1};
}

void tide_host_memory_slots_destroy(tide_host_memory *memory)
{
    tide_host_extent_destroy(memory->own, memory->slot_count * memory->chunk_bytes);
    if (memory->memfd >= 0)
        (void)close(memory->memfd); /* the file is memory, so close has nothing to flush */
    memory->memfd = -1;
    memory->own = NULL;
    memory->slot_count = 0;
}

void tide_host_memory_destroy(tide_host_memory *memory)
{
    tide_host_memory_slots_destroy(memory);
    tide_host_extent_destroy(memory->region, memory->region_bytes);
    tide_host_memory_init(memory, memory->chunk_bytes);
}

/* Move the mapping at `from` to `to`, over the mapping or reservation there; `from` stays mapped, too. */
static bool move(const tide_host_memory *memory, void *from, void *to)
{
    const int flags = MREMAP_MAYMOVE | MREMAP_FIXED | MREMAP_DONTUNMAP;
    return mremap(from, memory->chunk_bytes, memory->chunk_bytes, flags, to) == to;
}

/* Map slots of the file at `address`, over anything mapped there; `populate` is MAP_POPULATE or 0. */
static bool map_file(int memfd, void *address, uint64_t bytes, uint64_t offset_bytes, int populate)
{
    const int flags = MAP_SHARED | MAP_FIXED | populate;
    return mmap(address, bytes, PROT_READ | PROT_WRITE, flags, memfd, (off_t)offset_bytes) == address;
}

static bool is_mapped(void *address)
{
    unsigned char in_core;
    return mincore(address, PAGE_BYTES, &in_core) == 0;
}

/* Make sure that the slot's own place is mapped: with some kernels a failed move has already removed the
 * mapping at its target. */
static bool own_is_there(const tide_host_memory *memory, uint32_t slot)
{
    void *own = tide_host_memory_slot(memory, slot);
    return is_mapped(own) ||
           map_file(memory->memfd, own, memory->chunk_bytes, slot * memory->chunk_bytes, MAP_POPULATE);
}

/* Find out whether this system can move mappings of shared memory, by moving the first slot there and back.
 * If it can't, map() and unmap() are slower. */
static tide_status try_to_move(tide_host_memory *memory)
{
    void *other;
    memory->moves = false;
    if (tide_host_extent_reserve(memory->chunk_bytes, memory->chunk_bytes, &other) != TIDE_OK)
        return TIDE_OK;
    memory->moves = move(memory, memory->own, other) && move(memory, other, memory->own);
    if (is_mapped(other)) /* else another thread's mapping may be there by now */
        tide_host_extent_destroy(other, memory->chunk_bytes);
    if (own_is_there(memory, 0))
        return TIDE_OK;
    return tide_fail(TIDE_ERROR_NO_MEMORY, "device slot 0 could not be mapped again: %s", strerror(errno));
}

/* Try to get huge pages. Where the system gives huge pages to shared memory only on request (madvise), they
 * come with the first touch, and madvise reports a touch that fails (Linux 5.14); pages that posix_fallocate
 * makes would be small. True: the touch makes the pages; false: posix_fallocate must. */
static bool touch_makes_pages(void *own, uint64_t bytes, uint64_t chunk_bytes)
{
#ifdef MADV_POPULATE_WRITE
    return chunk_bytes >= HUGE_PAGE_BYTES && tide_topology_has_shared_huge_pages() &&
           madvise(own, bytes, MADV_HUGEPAGE) == 0 && madvise(own, PAGE_BYTES, MADV_POPULATE_WRITE) == 0;
#else
    (void)own, (void)bytes, (void)chunk_bytes;
    return false;
#endif
}

/* Give the file all its pages. posix_fallocate makes them without clearing them, or reports that the system
 * has too few. */
static tide_status file_fill(int memfd, void *own, uint64_t bytes, uint64_t chunk_bytes,
                             const tide_first_touch *how)
{
    const int error =
        touch_makes_pages(own, bytes, chunk_bytes) ? 0 : posix_fallocate(memfd, 0, (off_t)bytes);
    if (error != 0)
        return tide_fail(TIDE_ERROR_NO_MEMORY, "device slots: the system has no %" PRIu64 " bytes: %s", bytes,
                         tide_write_error(error));
    return tide_host_extent_touch("device slots", own, bytes, how);
}

/* Set the file's size and map it, with all pages present, at the slots' own places. */
static tide_status slots_fill(int memfd, uint64_t bytes, uint64_t chunk_bytes, const tide_first_touch *how,
                              char **own)
{
    void *base;
    tide_status status = tide_host_extent_check_available("device slots", bytes);
    if (status == TIDE_OK)
        status = tide_host_extent_reserve(bytes, chunk_bytes, &base);
    if (status != TIDE_OK)
        return status;
    if (ftruncate(memfd, (off_t)bytes) == 0 && map_file(memfd, base, bytes, 0, 0))
        status = file_fill(memfd, base, bytes, chunk_bytes, how);
    else
        status = tide_fail(TIDE_ERROR_NO_MEMORY, "device slots: %" PRIu64 " bytes could not be mapped: %s",
                           bytes, tide_write_error(errno));
    if (status != TIDE_OK) {
        tide_host_extent_destroy(base, bytes);
        return status;
    }
    *own = base;
    return TIDE_OK;
}

tide_status tide_host_memory_slots_create(tide_host_memory *memory, uint32_t count,
                                          const tide_first_touch *how)
{
    assert(memory->memfd < 0);
    int memfd = memfd_create("tidepool-device-slots", MFD_CLOEXEC);
    if (memfd < 0)
        return tide_fail(errno == ENOSYS ? TIDE_ERROR_UNSUPPORTED : TIDE_ERROR_NO_MEMORY,
                         "no memory file for device slots: %s", strerror(errno));
    char *own = NULL;
    tide_status status =
        count > 0 ? slots_fill(memfd, count * memory->chunk_bytes, memory->chunk_bytes, how, &own) : TIDE_OK;
    if (status != TIDE_OK)
        goto undo_memfd;
    memory->memfd = memfd;
    memory->own = own;
    memory->slot_count = count;
    status = count > 0 ? try_to_move(memory) : TIDE_OK;
    if (status != TIDE_OK)
        tide_host_memory_slots_destroy(memory);
    return status;

undo_memfd:
    (void)close(memfd);
    return status;
}

tide_status tide_host_memory_region_create(tide_host_memory *memory, uint64_t bytes,
                                           const tide_first_touch *how)
{
    assert(memory->region == NULL);
    void *base;
    uint64_t whole_bytes = tide_round_up(bytes, PAGE_BYTES);
    tide_status status = tide_host_extent_create("region", whole_bytes, HUGE_PAGE_BYTES, how, &base);
    if (status != TIDE_OK)
        return status;
    memory->region = base;
    memory->region_bytes = whole_bytes;
    return TIDE_OK;
}

/* Map PROT_NONE over a chunk's place, over anything mapped there. */
static bool place_clear(const tide_host_memory *memory, void *place)
{
    return mmap(place, memory->chunk_bytes, PROT_NONE,
                MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0) == place;
}

tide_status tide_host_memory_map(tide_host_memory *memory, uint32_t slot, void *place)
{
    assert(slot < memory->slot_count);
    const bool mapped =
        (memory->moves && move(memory, tide_host_memory_slot(memory, slot), place)) ||
        map_file(memory->memfd, place, memory->chunk_bytes, slot * memory->chunk_bytes, MAP_POPULATE);
    if (mapped)
        return TIDE_OK;
    int error = errno;
    /* Some kernels remove the old mapping before they fail. */
    if (!place_clear(memory, place))
        return tide_fail(TIDE_ERROR_INTERNAL,
                         "the place %p was lost while mapping device slot %" PRIu32 ": %s", place, slot,
                         strerror(error));
    return tide_fail(TIDE_ERROR_NO_MEMORY,
                     "device slot %" PRIu32
                     " could not be mapped at %p: %s (vm.max_map_count may be too small)",
                     slot, place, strerror(error));
}

/* Move the page tables back to the slot's own place, after undoing what a guard has protected. If the move
 * fails, the own place fills new tables as it is accessed. */
static bool take_back(const tide_host_memory *memory, uint32_t slot, void *place)
{
    if (mprotect(place, memory->chunk_bytes, PROT_READ | PROT_WRITE) == 0)
        (void)move(memory, place, tide_host_memory_slot(memory, slot));
    return own_is_there(memory, slot);
}

tide_status tide_host_memory_unmap(tide_host_memory *memory, uint32_t slot, void *place)
{
    assert(slot < memory->slot_count);
    if (memory->moves && !take_back(memory, slot, place))
        return tide_fail(TIDE_ERROR_INTERNAL,
                         "the own place of device slot %" PRIu32 " was lost while unmapping %p: %s", slot,
                         place, strerror(errno));
    if (place_clear(memory, place))
        return TIDE_OK;
    return tide_fail(TIDE_ERROR_NO_MEMORY, "the place %p could not be unmapped: %s", place, strerror(errno));
}

tide_status tide_host_memory_remap(tide_host_memory *memory, uint32_t slot, void *from, void *to)
{
    if (memory->moves && mprotect(from, memory->chunk_bytes, PROT_READ | PROT_WRITE) == 0 &&
        move(memory, from, to)) {
        if (place_clear(memory, from))
            return TIDE_OK;
        return tide_fail(TIDE_ERROR_INTERNAL, "the place %p could not be unmapped: %s", from,
                         strerror(errno));
    }
    tide_status status = tide_host_memory_map(memory, slot, to);
    if (status != TIDE_OK)
        return status;
    status = tide_host_memory_unmap(memory, slot, from);
    if (status != TIDE_OK && !place_clear(memory, to))
        return tide_fail(TIDE_ERROR_INTERNAL, "the place %p was lost: %s", to, strerror(errno));
    return status;
}

tide_status tide_host_memory_protect(tide_host_memory *memory, void *place, bool accessible)
{
    if (mprotect(place, memory->chunk_bytes, accessible ? PROT_READ | PROT_WRITE : PROT_NONE) == 0)
        return TIDE_OK;
    return tide_fail(TIDE_ERROR_DEVICE, "the place %p could not be guarded: %s", place, strerror(errno));
}
