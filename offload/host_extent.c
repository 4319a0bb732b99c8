/* Addresses first, then memory behind them, then every page touched, large extents by several threads at once:
 * zeroing pages is what takes the time at start.
 */
#include "offload/host_extent.h"

#include "offload/topology.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <string.h>
#include <sys/mman.h>

enum {
    HUGE_PAGE_BYTES = 2 << 20,
    PAGE_BYTES = 4096,
    TOUCH_THREADS_MAX = 16,
    TOUCH_STRIPE_MIN_BYTES = 32 << 20, /* below that a thread costs more than it saves */
};

tide_status tide_host_extent_check_available(const char *what, uint64_t bytes)
{
    uint64_t available_bytes = tide_topology_available_bytes();
    if (bytes <= available_bytes)
        return TIDE_OK;
    return tide_fail(TIDE_ERROR_NO_MEMORY,
                     "%s: %" PRIu64 " bytes wanted, the machine has %" PRIu64 " available", what, bytes,
                     available_bytes);
}

tide_status tide_host_extent_reserve(uint64_t bytes, uint64_t alignment_bytes, void **address)
{
    assert(bytes > 0 && alignment_bytes >= PAGE_BYTES && (alignment_bytes & (alignment_bytes - 1)) == 0);
    uint64_t slack_bytes = alignment_bytes - PAGE_BYTES;
    char *base = MAP_FAILED;
    if (bytes <= UINT64_MAX - slack_bytes)
        base = mmap(NULL, bytes + slack_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (base == MAP_FAILED)
        return tide_fail(TIDE_ERROR_NO_MEMORY, "no range of %" PRIu64 " bytes of addresses: %s", bytes,
                         strerror(errno));
    uint64_t head_bytes = -(uintptr_t)base & (alignment_bytes - 1);
    /* Giving back what is beyond the aligned part can fail only for want of a mapping count; then it is just
     * kept. */
    if (head_bytes > 0)
        (void)munmap(base, head_bytes);
    if (slack_bytes > head_bytes)
        (void)munmap(base + head_bytes + bytes, slack_bytes - head_bytes);
    *address = base + head_bytes;
    return TIDE_OK;
}

void tide_host_extent_destroy(void *address, uint64_t bytes)
{
    if (address != NULL && bytes > 0)
        (void)munmap(address, bytes);
}

/* --- first touch --- */

typedef struct stripe {
    char *base;
    uint64_t bytes;
    int error;
} stripe;

/* Ask the kernel for the pages, which reports where touching would kill; older kernels can't, so touch there.
 */
static void *stripe_touch(void *argument)
{
    stripe *it = argument;
#ifdef MADV_POPULATE_WRITE
    if (madvise(it->base, it->bytes, MADV_POPULATE_WRITE) == 0)
        return NULL;
    if (errno != EINVAL) {
        it->error = errno;
        return NULL;
    }
#endif
    for (uint64_t offset = 0; offset < it->bytes; offset += PAGE_BYTES)
        *(volatile char *)(it->base + offset) = 0;
    return NULL;
}

static uint32_t stripe_count(uint64_t bytes, uint32_t threads)
{
    uint64_t count = bytes / TOUCH_STRIPE_MIN_BYTES;
    count = count < threads ? count : threads;
    count = count < TOUCH_THREADS_MAX ? count : TOUCH_THREADS_MAX;
    return count > 0 ? (uint32_t)count : 1;
}

tide_status tide_host_extent_touch(const char *what, void *address, uint64_t bytes, uint32_t threads)
{
    stripe stripes[TOUCH_THREADS_MAX];
    pthread_t helpers[TOUCH_THREADS_MAX];
    uint32_t count = stripe_count(bytes, threads);
    uint64_t stripe_bytes = bytes / count / HUGE_PAGE_BYTES * HUGE_PAGE_BYTES;
    uint32_t started = 0;
    for (uint32_t i = 0; i < count; i++) {
        bool last = i + 1 == count;
        stripes[i] =
            (stripe){(char *)address + i * stripe_bytes, last ? bytes - i * stripe_bytes : stripe_bytes, 0};
    }
    while (started + 1 < count &&
           pthread_create(&helpers[started], NULL, stripe_touch, &stripes[started]) == 0)
        started++;
    for (uint32_t i = started; i < count; i++) /* the last stripe, and those no thread could be had for */
        (void)stripe_touch(&stripes[i]);
    int error = 0;
    for (uint32_t i = 0; i < started; i++)
        (void)pthread_join(helpers[i], NULL);
    for (uint32_t i = 0; i < count; i++)
        error = stripes[i].error != 0 ? stripes[i].error : error;
    if (error == 0)
        return TIDE_OK;
    return tide_fail(TIDE_ERROR_NO_MEMORY, "%s: the system has no %" PRIu64 " bytes: %s", what, bytes,
                     strerror(error));
}

tide_status tide_host_extent_back(const char *what, uint64_t bytes, uint64_t alignment_bytes, int32_t node,
                                  void **address)
{
    void *base = NULL;
    tide_status status = tide_host_extent_reserve(bytes, alignment_bytes, &base);
    if (status != TIDE_OK)
        return status;
    if (mprotect(base, bytes, PROT_READ | PROT_WRITE) != 0) {
        status = tide_fail(TIDE_ERROR_NO_MEMORY, "%s: the system has no %" PRIu64 " bytes: %s", what, bytes,
                           strerror(errno));
        goto undo_reserve;
    }
    if (bytes >= HUGE_PAGE_BYTES && tide_topology_has_huge_pages())
        (void)madvise(base, bytes, MADV_HUGEPAGE);      /* a wish: small pages do as well */
    (void)tide_topology_bind_memory(base, bytes, node); /* a wish, too */
    *address = base;
    return TIDE_OK;

undo_reserve:
    tide_host_extent_destroy(base, bytes);
    return status;
}

tide_status tide_host_extent_create(const char *what, uint64_t bytes, uint64_t alignment_bytes,
                                    uint32_t threads, void **address)
{
    void *base = NULL;
    tide_status status = tide_host_extent_check_available(what, bytes);
    if (status == TIDE_OK)
        status = tide_host_extent_back(what, bytes, alignment_bytes, TIDE_NODE_NEAREST, &base);
    if (status != TIDE_OK)
        return status;
    status = tide_host_extent_touch(what, base, bytes, threads);
    if (status != TIDE_OK)
        goto undo_back;
    *address = base;
    return TIDE_OK;

undo_back:
    tide_host_extent_destroy(base, bytes);
    return status;
}
