/* Host buffers of varying size: a jemalloc arena of our own, whose memory comes from our extent hooks (placed
 * on the nearest NUMA node, in huge pages where there are any), when the process has jemalloc; otherwise an
 * extent each.
 *
 * The library never links jemalloc: Debian's replaces malloc in whatever links it. It looks for mallctl and
 * mallocx through weak references, which the dynamic linker resolves when the program brought them along.
 *
 * Either way a buffer takes its size in whole pages, which are touched at once; what an arena reserves beyond
 * that is addresses only. So the budget's equation does not depend on the allocator.
 */
#ifndef TIDE_OFFLOAD_HOST_ARENA_H
#define TIDE_OFFLOAD_HOST_ARENA_H

#include "tidepool/types.h"

#include <stdbool.h>

typedef struct tide_host_arena tide_host_arena;

/* NO_MEMORY. Falls back to extents when jemalloc refuses an arena. */
tide_status tide_host_arena_create(tide_host_arena **arena);
/* All buffers must have been freed. */
void tide_host_arena_destroy(tide_host_arena *arena);
bool tide_host_arena_uses_jemalloc(const tide_host_arena *arena);

/* Zeroed, touched, aligned to a page. `bytes` > 0. NO_MEMORY: nothing changed. */
tide_status tide_host_arena_allocate(tide_host_arena *arena, const char *name, uint64_t bytes,
                                     uint32_t threads, void **address);
void tide_host_arena_free(tide_host_arena *arena, void *address, uint64_t bytes);

#endif
