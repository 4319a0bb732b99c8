/* The HOST tier's slots for a GPU: one extent of exact size, on the GPU's NUMA node, in huge pages where
 * there are any, touched and then registered with CUDA, so that copies run at the link's speed and alongside
 * other work.
 *
 *   extent   [ slot 0 | slot 1 | ... | ............. | slot H-1 ]
 *   pieces   [      piece 0       |      piece 1     |   ...    ]   whole slots, at most 1 GiB, one
 *                                                                   registration each
 *
 * A forked child does not get the extent (MADV_DONTFORK): its addresses are not mapped in the child.
 *
 * A copy covers one slot or a part of it, so it never spans two registrations, which CUDA would refuse.
 * Several threads on that node make the pieces; each touches one and then registers it. Touching first puts
 * the pages on the right node; registering would make them one by one, on any node. With 4 to 32 threads both
 * together are 2 to 3 times as fast as cudaHostAlloc, by measurements that others published. Touching goes in
 * steps, each when the machine has memory for it, since its memory may still be growing (free_memory.h).
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

/* Where and how to pin: the GPU, its node (topology.h), how many threads may help, a callback for
 * progress. */
typedef struct tide_cuda_pinning {
    uint32_t ordinal;
    int32_t node;
    uint32_t threads; /* > 0 */
    /* may be NULL; the first call, with 0 bytes, comes before anything is touched */
    tide_device_progress progress;
    void *progress_context;
} tide_cuda_pinning;

/* Make the slots. NO_MEMORY, DEVICE: nothing is left; the message says how much was pinned and which limits
 * there are. A request for more than the control groups have left fails at once; one for more than the
 * machine has fails after waiting for its memory to grow (free_memory.h). */
tide_status tide_cuda_pinned_create(tide_cuda_pinned *slots, uint32_t count, uint64_t chunk_bytes,
                                    const tide_cuda_pinning *how);
/* Free the slots, with as many threads as made them. No copy runs. */
void tide_cuda_pinned_destroy(tide_cuda_pinned *slots, const tide_cuda_pinning *how);

static inline void *tide_cuda_pinned_slot(const tide_cuda_pinned *slots, uint32_t slot)
{
    return slots->base + slot * slots->chunk_bytes;
}

/* Register touched pages with one call, for buffers (host_arena.h). `what` is for the message. */
tide_status tide_cuda_pin(const char *what, void *address, uint64_t bytes);
void tide_cuda_unpin(void *address);

#endif
