/* Makes extents. An extent is private memory directly from the system, of exactly the size asked for:
 * aligned, placed on a NUMA node, in huge pages if the system has them, and touched, so that all its pages
 * are present.
 *
 * For the host device "pinned" means only that: touched and never given back. A GPU's driver also needs the
 * pages locked (cuda_pinned.h).
 */
#ifndef TIDE_OFFLOAD_HOST_EXTENT_H
#define TIDE_OFFLOAD_HOST_EXTENT_H

#include "offload/device.h"

/* Threads that touch memory, and a callback for their progress. */
typedef struct tide_first_touch {
    uint32_t threads;              /* at least 1; at most 16, and at most one per 32 MiB, are used */
    tide_device_progress progress; /* may be NULL */
    void *progress_context;
} tide_first_touch;

/* Reserve addresses without memory: any access faults. `bytes` is a multiple of the page size,
 * `alignment_bytes` a power of two. NO_MEMORY. */
tide_status tide_host_extent_reserve(uint64_t bytes, uint64_t alignment_bytes, void **address);
/* Make zeroed memory that is not touched yet; its pages will lie on `node` (topology.h) once touched.
 * NO_MEMORY. */
tide_status tide_host_extent_back(const char *what, uint64_t bytes, uint64_t alignment_bytes, int32_t node,
                                  void **address);
/* Make zeroed, touched memory on the nearest node. `what` names it in messages and in progress. NO_MEMORY. */
tide_status tide_host_extent_create(const char *what, uint64_t bytes, uint64_t alignment_bytes,
                                    const tide_first_touch *how, void **address);
/* Touch zeroed memory that is mapped already. NO_MEMORY. */
tide_status tide_host_extent_touch(const char *what, void *address, uint64_t bytes,
                                   const tide_first_touch *how);
void tide_host_extent_destroy(void *address, uint64_t bytes);

/* NO_MEMORY if the system does not have `bytes` bytes available, so that the caller gets a message and is not
 * killed by the out-of-memory killer. */
tide_status tide_host_extent_check_available(const char *what, uint64_t bytes);

#endif
