/* An extent: private memory straight from the system, of exactly the size asked for, aligned, placed on a NUMA node, in
 * huge pages when the machine offers them, and touched, so that it is really there.
 *
 * For the host device "pinned" means just that, touched and never given back. A GPU's driver needs its pages locked, too
 * (cuda_pinned.h).
 */
#ifndef TIDE_OFFLOAD_HOST_EXTENT_H
#define TIDE_OFFLOAD_HOST_EXTENT_H

#include "offload/device.h"

/* Threads that touch memory, and a callback for their progress. */
typedef struct tide_first_touch {
    uint32_t threads;              /* at least 1; at most 16 of them, and only for much memory */
    tide_device_progress progress; /* may be NULL */
    void *progress_context;
} tide_first_touch;

/* Reserve addresses, nothing behind them: any touch faults. `bytes` is a multiple of the page size,
 * `alignment_bytes` a power of two. NO_MEMORY. */
tide_status tide_host_extent_reserve(uint64_t bytes, uint64_t alignment_bytes, void **address);
/* Memory of zeros that is not touched yet, on `node` (topology.h) when it will be. NO_MEMORY. */
tide_status tide_host_extent_back(const char *what, uint64_t bytes, uint64_t alignment_bytes, int32_t node,
                                  void **address);
/* Memory of zeros on the nearest node. `what` names it in messages and in progress. NO_MEMORY. */
tide_status tide_host_extent_create(const char *what, uint64_t bytes, uint64_t alignment_bytes,
                                    const tide_first_touch *how, void **address);
/* Touch zeroed memory that lies behind addresses already. NO_MEMORY. */
tide_status tide_host_extent_touch(const char *what, void *address, uint64_t bytes,
                                   const tide_first_touch *how);
void tide_host_extent_destroy(void *address, uint64_t bytes);

/* NO_MEMORY if the system says that it can't have that many bytes now: a message instead of the killer's
 * visit. */
tide_status tide_host_extent_check_available(const char *what, uint64_t bytes);

#endif
