#include "offload/cuda/cuda_pinned.h"

#include "base/align.h"
#include "base/clock.h"
#include "base/minmax.h"
#include "offload/cuda/cuda_driver.h"
#include "offload/free_memory.h"
#include "offload/host_extent.h"
#include "offload/host_link.h"
#include "offload/topology.h"

#include <assert.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/resource.h>

enum {
    HUGE_PAGE_BYTES = 2 << 20,
    THREADS_MAX = 16,
    PIECE_MIN_BYTES = 64 << 20, /* smaller pieces would need many calls for little memory */
    PIECE_MAX_BYTES = 1 << 30,
    MESSAGE_BYTES = 512,
};

static const char host_slots[] = "host slots";

/* --- one registration --- */

/* Write how many bytes the GPU has free, since registered pages take page tables there; "unknown" if CUDA
 * does not answer. */
static void gpu_free_text(char text[32])
{
    size_t available = 0, total = 0;
    const tide_status status = tide_cuda_check(cudaMemGetInfo(&available, &total), "cudaMemGetInfo");
    (void)snprintf(text, 32, status == TIDE_OK ? "%zu" : "unknown", available);
}

/* Add to the message the limits of the system that may have caused the failure. */
static tide_status limits_add(tide_status status)
{
    struct rlimit locked;
    char limit[32] = "unlimited", message[MESSAGE_BYTES], gpu[32];
    (void)snprintf(message, sizeof message, "%s", tide_message());
    gpu_free_text(gpu);
    if (getrlimit(RLIMIT_MEMLOCK, &locked) == 0 && locked.rlim_cur != RLIM_INFINITY)
        (void)snprintf(limit, sizeof limit, "%" PRIu64, (uint64_t)locked.rlim_cur);
    return tide_fail(status,
                     "%s; the limit of locked memory (ulimit -l) is %s bytes, the machine has %" PRIu64
                     " bytes available, the GPU %s free",
                     message, limit, tide_topology_available_bytes(), gpu);
}

tide_status tide_cuda_pin(const char *what, void *address, uint64_t bytes)
{
    const tide_status status =
        tide_cuda_check(cudaHostRegister(address, bytes, cudaHostRegisterDefault), "cudaHostRegister");
    if (status == TIDE_OK)
        return TIDE_OK;
    return limits_add(
        tide_fail(status, "%s: %" PRIu64 " bytes could not be pinned: %s", what, bytes, tide_message()));
}

void tide_cuda_unpin(void *address)
{
    tide_cuda_undo(cudaHostUnregister(address), "cudaHostUnregister");
}

/* --- pieces --- */

static uint32_t piece_count(const tide_cuda_pinned *slots)
{
    return (uint32_t)tide_ceil_div(slots->count, slots->slots_per_piece);
}

static char *piece_address(const tide_cuda_pinned *slots, uint32_t piece)
{
    return slots->base + (uint64_t)piece * slots->slots_per_piece * slots->chunk_bytes;
}

static uint64_t piece_bytes(const tide_cuda_pinned *slots, uint32_t piece)
{
    const uint32_t left = slots->count - piece * slots->slots_per_piece;
    return (left < slots->slots_per_piece ? left : slots->slots_per_piece) * slots->chunk_bytes;
}

/* The slots of a piece: as many as give each thread one piece, but within the limits of a piece's size, and
 * at least one. */
static uint32_t slots_per_piece(uint32_t count, uint64_t chunk_bytes, uint32_t threads)
{
    const uint64_t most = PIECE_MAX_BYTES / chunk_bytes;
    assert(most > 0);
    const uint64_t least = PIECE_MIN_BYTES > chunk_bytes ? PIECE_MIN_BYTES / chunk_bytes : 1;
    uint64_t slots = tide_ceil_div(count, threads);
    slots = tide_max_u64(slots, least);
    return (uint32_t)(slots < most ? slots : most);
}

/* --- the work, shared by its threads --- */

typedef struct pinning_work {
    const tide_cuda_pinned *slots;
    const tide_cuda_pinning *how;
    void (*run)(struct pinning_work *work); /* each thread's loop over the pieces */
    tide_free_memory memory;

    pthread_mutex_t lock;    /* guards the fields below */
    uint32_t next;           /* the next piece to take */
    bool *pinned;            /* [piece]; NULL: all pieces are pinned */
    cudaError_t unpin_error; /* the first error of cudaHostUnregister */
    uint64_t done_bytes;
    tide_pinning_times times;
    tide_status status;
    char message[MESSAGE_BYTES]; /* the message of the first failure */
} pinning_work;

static bool piece_next(pinning_work *work, uint32_t *piece)
{
    pthread_mutex_lock(&work->lock);
    const bool more = work->status == TIDE_OK && work->next < piece_count(work->slots);
    if (more)
        *piece = work->next++;
    pthread_mutex_unlock(&work->lock);
    return more;
}

/* Add the time since `since_ns` to a sum; returns the time now. */
static uint64_t pass(uint64_t *sum_ns, uint64_t since_ns)
{
    const uint64_t now_ns = tide_clock_ns();
    *sum_ns += now_ns - since_ns;
    return now_ns;
}

/* Touch a piece in steps, each when the machine has memory for it. */
static tide_status piece_touch(tide_free_memory *memory, char *address, uint64_t bytes,
                               tide_pinning_times *times)
{
    const tide_first_touch alone = {.threads = 1};
    tide_status status = TIDE_OK;
    uint64_t now_ns = tide_clock_ns(), step_bytes = 0;
    for (uint64_t offset = 0; offset < bytes && status == TIDE_OK; offset += step_bytes) {
        status = tide_free_memory_take(memory, bytes - offset, &step_bytes);
        now_ns = pass(&times->wait_ns, now_ns);
        if (status != TIDE_OK)
            return status;
        status = tide_host_extent_touch(host_slots, address + offset, step_bytes, &alone);
        tide_free_memory_touched(memory, step_bytes);
        now_ns = pass(&times->touch_ns, now_ns);
    }
    return status;
}

/* Report the progress. The lock is held, or no other thread runs yet. */
static void work_tell(const pinning_work *work)
{
    const tide_cuda_pinning *how = work->how;
    if (how->progress != NULL)
        how->progress(how->progress_context, "pinned host slots", work->done_bytes,
                      work->slots->count * work->slots->chunk_bytes);
}

static void piece_done(pinning_work *work, uint32_t piece, const tide_pinning_times *times)
{
    pthread_mutex_lock(&work->lock);
    work->pinned[piece] = true;
    work->done_bytes += piece_bytes(work->slots, piece);
    work->times.touch_ns += times->touch_ns;
    work->times.register_ns += times->register_ns;
    work->times.wait_ns += times->wait_ns;
    work_tell(work);
    pthread_mutex_unlock(&work->lock);
}

static tide_status piece_pin(pinning_work *work, uint32_t piece)
{
    char *address = piece_address(work->slots, piece);
    const uint64_t bytes = piece_bytes(work->slots, piece);
    tide_pinning_times times = {0};
    tide_status status = piece_touch(&work->memory, address, bytes, &times);
    if (status != TIDE_OK)
        return status;
    const uint64_t touched_ns = tide_clock_ns();
    status = tide_cuda_pin(host_slots, address, bytes);
    (void)pass(&times.register_ns, touched_ns);
    if (status == TIDE_OK)
        piece_done(work, piece, &times);
    return status;
}

/* Store the first failure, and stop all threads that wait for memory. */
static void work_fail(pinning_work *work, tide_status status)
{
    pthread_mutex_lock(&work->lock);
    if (work->status == TIDE_OK) {
        work->status = status;
        (void)snprintf(work->message, sizeof work->message, "%s", tide_message());
    }
    pthread_mutex_unlock(&work->lock);
    tide_free_memory_stop(&work->memory);
}

static void pieces_make(pinning_work *work)
{
    uint32_t piece;
    tide_status status = tide_cuda_use(work->how->ordinal);
    while (status == TIDE_OK && piece_next(work, &piece))
        status = piece_pin(work, piece);
    if (status != TIDE_OK)
        work_fail(work, status);
}

static void *helper_main(void *argument)
{
    pinning_work *work = argument;
    (void)tide_topology_bind_thread(work->how->node); /* it may fail */
    work->run(work);
    return NULL;
}

/* Run the work on new threads of the node; if none can be made, on the caller, which is not moved to the
 * node. Returns how many threads ran it. */
static uint32_t work_do(pinning_work *work)
{
    pthread_t helpers[THREADS_MAX];
    const uint32_t pieces = piece_count(work->slots), threads = work->how->threads;
    uint32_t wanted = tide_min_u32(threads, pieces), started = 0;
    wanted = tide_min_u32(wanted, THREADS_MAX);
    while (started < wanted && pthread_create(&helpers[started], NULL, helper_main, work) == 0)
        started++;
    if (started == 0)
        work->run(work);
    for (uint32_t i = 0; i < started; i++)
        (void)pthread_join(helpers[i], NULL);
    return started > 0 ? started : 1;
}

static void pieces_unpin(pinning_work *work)
{
    uint32_t piece;
    (void)tide_cuda_use(work->how->ordinal); /* if it fails, the calls below fail, too */
    while (piece_next(work, &piece)) {
        if (work->pinned != NULL && !work->pinned[piece])
            continue;
        const cudaError_t error = cudaHostUnregister(piece_address(work->slots, piece));
        pthread_mutex_lock(&work->lock);
        work->unpin_error = work->unpin_error == cudaSuccess ? error : work->unpin_error;
        pthread_mutex_unlock(&work->lock);
    }
}

/* After a failure: unpin the pieces that were pinned before it. */
static void work_undo(pinning_work *work)
{
    work->run = pieces_unpin;
    work->next = 0;
    work->status = TIDE_OK;
    (void)work_do(work);
}

/* Touch and pin all pieces. Sets slots->times. */
static tide_status pieces_pin(tide_cuda_pinned *slots, const tide_cuda_pinning *how)
{
    const uint64_t bytes = slots->count * slots->chunk_bytes, begin_ns = tide_clock_ns();
    pinning_work work = {.slots = slots, .how = how, .run = pieces_make, .times = {.bytes = bytes}};
    tide_status status =
        tide_free_memory_open(&work.memory, host_slots, bytes, tide_free_memory_machine_system());
    if (status != TIDE_OK)
        return status;
    work.pinned = calloc(piece_count(slots), sizeof *work.pinned);
    if (work.pinned == NULL) {
        status = tide_fail(TIDE_ERROR_NO_MEMORY, "no memory for the table of %" PRIu32 " pinned pieces",
                           piece_count(slots));
        goto undo_memory;
    }
    (void)pthread_mutex_init(&work.lock, NULL);
    work_tell(&work); /* reports 0 bytes, so that the listener can measure from here */
    work.times.threads = work_do(&work);
    status = work.status;
    if (status != TIDE_OK) {
        work_undo(&work);
        status = tide_fail(status, "%" PRIu64 " of %" PRIu64 " bytes were pinned, then: %s", work.done_bytes,
                           bytes, work.message);
        tide_cuda_undo(work.unpin_error, "cudaHostUnregister");
    }
    pthread_mutex_destroy(&work.lock);
    assert(status != TIDE_OK || work.done_bytes == bytes);
    free(work.pinned);
    (void)pass(&work.times.wall_ns, begin_ns);
    slots->times = work.times;
undo_memory:
    tide_free_memory_close(&work.memory);
    return status;
}

/* --- slots --- */

tide_status tide_cuda_pinned_create(tide_cuda_pinned *slots, uint32_t count, uint64_t chunk_bytes,
                                    const tide_cuda_pinning *how)
{
    assert(how->threads > 0);
    void *base;
    const uint64_t bytes = count * chunk_bytes;
    tide_cuda_pinned made = {.chunk_bytes = chunk_bytes, .count = count};
    if (count == 0) {
        *slots = made;
        return TIDE_OK;
    }
    tide_status status = tide_host_extent_back(host_slots, bytes, HUGE_PAGE_BYTES, how->node, &base);
    if (status != TIDE_OK)
        return status;
    /* Without MADV_DONTFORK, which may fail, a fork would copy the whole extent page by page, since pinned
     * pages can't be shared copy-on-write. */
    (void)madvise(base, bytes, MADV_DONTFORK);
    made.base = base;
    made.slots_per_piece = slots_per_piece(count, chunk_bytes, how->threads);
    status = pieces_pin(&made, how);
    if (status != TIDE_OK)
        goto undo_back;
    *slots = made;
    return TIDE_OK;

undo_back:
    tide_host_extent_destroy(base, bytes);
    return status;
}

void tide_cuda_pinned_destroy(tide_cuda_pinned *slots, const tide_cuda_pinning *how)
{
    pinning_work work = {.slots = slots, .how = how, .run = pieces_unpin};
    if (slots->base == NULL)
        return;
    (void)pthread_mutex_init(&work.lock, NULL);
    (void)work_do(&work);
    pthread_mutex_destroy(&work.lock);
    tide_cuda_undo(work.unpin_error, "cudaHostUnregister");
    tide_host_extent_destroy(slots->base, slots->count * slots->chunk_bytes);
    *slots = (tide_cuda_pinned){0};
}
