/* The HOST tier's slots for a GPU: one extent, exact size, on the GPU's NUMA node, in huge pages where there are any,
 * touched and then registered with CUDA, so that copies run at the link's speed and beside everything else.
 *
 *   extent   [ slot 0 | slot 1 | ... | ............. | slot H-1 ]
 *   pieces   [      piece 0       |      piece 1     |   ...    ]   whole slots, at most 1 GiB, one registration each
 *
 * A forked child does not get the extent (MADV_DONTFORK); its addresses are nothing there.
 *
 * A copy is of a slot or a part of it and so never spans two registrations, which CUDA refuses. Pieces are made by
 * several threads on that node, each touching and then registering one at a time: touching first makes the pages
 * there where they belong (registering would make them one by one, on whichever node), and in 4 to 32 threads both
 * together are 2 to 3 times as fast as cudaHostAlloc by others' measurements. Touching goes in steps, each when the machine
 * has room for it: its memory may still be growing (free_memory.h).
 */
#ifndef TIDE_OFFLOAD_CUDA_PINNED_H
#define TIDE_OFFLOAD_CUDA_PINNED_H

#include "offload/device.h"

typedef struct tide_cuda_pinned {
    char *base;
    uint64_t chunk_bytes;
    uint32_t count;
    uint32_t slots_per_piece;
    tide_pinning_times times;
} tide_cuda_pinned;

/* Where and how to pin: the GPU, its node (topology.h), threads that may help, a callback for progress. */
typedef struct tide_cuda_pinning {
    uint32_t ordinal;
    int32_t node;
    uint32_t threads; /* > 0 */
    /* may be NULL; the first call is before anything is touched: 0 bytes are there */
    tide_device_progress progress;
    void *progress_context;
} tide_cuda_pinning;

/* NO_MEMORY, DEVICE: nothing is left; the message says how far it came and which limits there are. More than the control
 * groups have left is refused at once; more than the machine has, when it was waited for (free_memory.h). */
tide_status tide_cuda_pinned_create(tide_cuda_pinned *slots, uint32_t count, uint64_t chunk_bytes,
                                    const tide_cuda_pinning *how);
/* By as many threads as made them. No copy runs. */
void tide_cuda_pinned_destroy(tide_cuda_pinned *slots, const tide_cuda_pinning *how);

static inline void *tide_cuda_pinned_slot(const tide_cuda_pinned *slots, uint32_t slot)
{
    return slots->base + slot * slots->chunk_bytes;
}

/* One registration of pages that are there already, for buffers (host_arena.h). `what` is for the message. */
tide_status tide_cuda_pin(const char *what, void *address, uint64_t bytes);
void tide_cuda_unpin(void *address);

#endif
