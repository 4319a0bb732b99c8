/* Makes an extent in three steps: reserves addresses, puts memory there, touches every page. Several threads
 * touch a large extent at once, since zeroing pages takes most of the time at start.
 */
#include "offload/host_extent.h"

#include "base/align.h"
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
    TOUCH_PIECE_BYTES = 32 << 20, /* for less memory, starting a thread costs more than it saves */
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
    assert(bytes > 0 && alignment_bytes >= PAGE_BYTES && tide_is_power_of_two(alignment_bytes));
    uint64_t slack_bytes = alignment_bytes - PAGE_BYTES;
    char *base = MAP_FAILED;
    if (bytes <= UINT64_MAX - slack_bytes)
        base = mmap(NULL, bytes + slack_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (base == MAP_FAILED)
        return tide_fail(TIDE_ERROR_NO_MEMORY, "no range of %" PRIu64 " bytes of addresses: %s", bytes,
                         strerror(errno));
    uint64_t head_bytes = -(uintptr_t)base & (alignment_bytes - 1);
    /* munmap of the rest outside the aligned part fails only when the process has too many mappings; then the
     * addresses stay reserved. */
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

/* The work that threads share when they touch an extent: each thread that is free takes the next piece. */
typedef struct touching {
    char *base;
    uint64_t bytes;
    const char *what;
    const tide_first_touch *how;

    pthread_mutex_t lock; /* guards the fields below */
    uint64_t next_bytes;  /* offset of the next piece */
    uint64_t done_bytes;
    int error; /* errno of the first failure */
} touching;

/* Ask the kernel to make the pages, since it reports an error where touching would kill the process. Older
 * kernels can't, so touch each page there. */
static int touch_piece(char *base, uint64_t bytes)
{
#ifdef MADV_POPULATE_WRITE
    if (madvise(base, bytes, MADV_POPULATE_WRITE) == 0)
        return 0;
    if (errno != EINVAL)
        return errno;
#endif
    for (uint64_t offset = 0; offset < bytes; offset += PAGE_BYTES)
        *(volatile char *)(base + offset) = 0;
    return 0;
}

/* Take the next piece; returns its bytes, 0 if none is left or a piece has failed. */
static uint64_t piece_take(touching *work, uint64_t *offset)
{
    pthread_mutex_lock(&work->lock);
    *offset = work->error == 0 ? work->next_bytes : work->bytes;
    const uint64_t left = work->bytes - *offset, bytes = left < TOUCH_PIECE_BYTES ? left : TOUCH_PIECE_BYTES;
    work->next_bytes = *offset + bytes;
    pthread_mutex_unlock(&work->lock);
    return bytes;
}

static void piece_done(touching *work, uint64_t bytes, int error)
{
    const tide_first_touch *how = work->how;
    pthread_mutex_lock(&work->lock);
    work->done_bytes += bytes;
    if (work->error == 0)
        work->error = error;
    if (error == 0 && how->progress != NULL)
        how->progress(how->progress_context, work->what, work->done_bytes, work->bytes);
    pthread_mutex_unlock(&work->lock);
}

static void *touch_pieces(void *argument)
{
    touching *work = argument;
    uint64_t offset;
    for (uint64_t bytes; (bytes = piece_take(work, &offset)) > 0;)
        piece_done(work, bytes, touch_piece(work->base + offset, bytes));
    return NULL;
}

/* How many threads touch `bytes`, the caller's included. If no other can be made, the caller's does all the
 * work. */
static uint32_t touch_threads(uint64_t bytes, uint32_t threads)
{
    const uint64_t pieces = tide_ceil_div(bytes, TOUCH_PIECE_BYTES);
    const uint64_t count = pieces < threads ? pieces : threads;
    return count < TOUCH_THREADS_MAX ? (uint32_t)count : TOUCH_THREADS_MAX;
}

tide_status tide_host_extent_touch(const char *what, void *address, uint64_t bytes,
                                   const tide_first_touch *how)
{
    assert(how->threads > 0);
    touching work = {.base = address, .bytes = bytes, .what = what, .how = how};
    pthread_t helpers[TOUCH_THREADS_MAX];
    const uint32_t threads = touch_threads(bytes, how->threads);
    uint32_t started = 0;
    (void)pthread_mutex_init(&work.lock, NULL);
    if (how->progress != NULL)
        how->progress(how->progress_context, what, 0, bytes);
    while (started + 1 < threads && pthread_create(&helpers[started], NULL, touch_pieces, &work) == 0)
        started++;
    (void)touch_pieces(&work);
    for (uint32_t i = 0; i < started; i++)
        (void)pthread_join(helpers[i], NULL);
    pthread_mutex_destroy(&work.lock);
    if (work.error == 0)
        return TIDE_OK;
    return tide_fail(TIDE_ERROR_NO_MEMORY, "%s: the system has no %" PRIu64 " bytes: %s", what, bytes,
                     strerror(work.error));
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
        (void)madvise(base, bytes, MADV_HUGEPAGE);      /* it may fail: small pages work as well */
    (void)tide_topology_bind_memory(base, bytes, node); /* it may fail, too */
    *address = base;
    return TIDE_OK;

undo_reserve:
    tide_host_extent_destroy(base, bytes);
    return status;
}

tide_status tide_host_extent_create(const char *what, uint64_t bytes, uint64_t alignment_bytes,
                                    const tide_first_touch *how, void **address)
{
    void *base = NULL;
    tide_status status = tide_host_extent_check_available(what, bytes);
    if (status == TIDE_OK)
        status = tide_host_extent_back(what, bytes, alignment_bytes, TIDE_NODE_NEAREST, &base);
    if (status != TIDE_OK)
        return status;
    status = tide_host_extent_touch(what, base, bytes, how);
    if (status != TIDE_OK)
        goto undo_back;
    *address = base;
    return TIDE_OK;

undo_back:
    tide_host_extent_destroy(base, bytes);
    return status;
}
