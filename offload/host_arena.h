/* Host buffers of varying size: a jemalloc arena of our own, whose memory comes from our extent hooks (placed
 * on one NUMA node, in huge pages where there are any), when the process has jemalloc; otherwise an extent each.
 *
 * The library never links jemalloc: Debian's replaces malloc in whatever links it. It looks for mallctl and
 * mallocx through weak references, which the dynamic linker resolves when the program brought them along.
 *
 * Either way a buffer takes its size in whole pages, which are touched at once; beyond that an arena reserves
 * addresses only. So the budget's equation does not depend on the allocator.
 *
 * For a GPU buffers are pinned as well, each by itself: its whole pages, touched and then registered, until
 * it is freed. So a copy of a buffer lies inside one registration, exactly the budgeted bytes are pinned, and
 * jemalloc may cut and join freed addresses as it likes. (Registering the extents in the hooks instead pins
 * what jemalloc asks for beyond the buffers: its own tables, and extents that it doubles.) jemalloc must not
 * give pages of a live buffer back: the hooks that could (decommit, purge) are left out.
 */
#ifndef TIDE_OFFLOAD_HOST_ARENA_H
#define TIDE_OFFLOAD_HOST_ARENA_H

#include "tidepool/types.h"

#include <stdbool.h>

typedef struct tide_host_arena tide_host_arena;

/* How buffers are pinned, and where they lie. */
typedef struct tide_host_pinning {
    /* Whole pages that are there already. A failure's message names `what`; nothing is pinned then. */
    tide_status (*pin)(void *context, const char *what, void *address, uint64_t bytes);
    void (*unpin)(void *context, void *address, uint64_t bytes);
    void *context;
    int32_t node; /* topology.h */
} tide_host_pinning;

/* `pinning` is copied; NULL: not pinned, on the nearest node. NO_MEMORY. Falls back to extents when jemalloc refuses an
 * arena. */
tide_status tide_host_arena_create(const tide_host_pinning *pinning, tide_host_arena **arena);
/* All buffers must have been freed. */
void tide_host_arena_destroy(tide_host_arena *arena);
bool tide_host_arena_uses_jemalloc(const tide_host_arena *arena);

/* Zeroed, touched, pinned, aligned to a page. `bytes` > 0. NO_MEMORY, or pin's status: nothing changed. */
tide_status tide_host_arena_allocate(tide_host_arena *arena, const char *name, uint64_t bytes,
                                     uint32_t threads, void **address);
void tide_host_arena_free(tide_host_arena *arena, void *address, uint64_t bytes);

#endif
