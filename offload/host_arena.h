/* Host buffers of varying size. If the process has jemalloc, they come from a jemalloc arena of our own,
 * whose memory our extent hooks make (on one NUMA node, in huge pages where there are any); otherwise each
 * buffer is an extent of its own.
 *
 * The library never links jemalloc, since Debian's replaces malloc in every program that links it. It looks
 * for mallctl and mallocx through weak references, which the dynamic linker resolves if the program has
 * loaded jemalloc.
 *
 * In both cases a buffer takes its size in whole pages, which are touched when it is made; an arena's other
 * addresses have no memory. So the memory counted to the budget does not depend on the allocator.
 *
 * For a GPU each buffer is also pinned: its whole pages are touched, then registered until the buffer is
 * freed. So every copy of a buffer lies inside one registration, exactly the budgeted bytes are pinned, and
 * jemalloc may split and merge freed addresses as it likes. (If the hooks registered whole extents, they
 * would pin also what jemalloc asks for beyond the buffers: its own tables, and extents whose size it
 * doubles.) jemalloc must not return pages of a live buffer to the system, so the hooks that could do that
 * (decommit, purge) are left out.
 */
#ifndef TIDE_OFFLOAD_HOST_ARENA_H
#define TIDE_OFFLOAD_HOST_ARENA_H

#include "tidepool/types.h"

#include <stdbool.h>

typedef struct tide_host_arena tide_host_arena;

/* How an arena pins its buffers, and on which node they lie. */
typedef struct tide_host_pinning {
    /* Pin whole pages that have been touched. On failure nothing is pinned, and the message names `what`. */
    tide_status (*pin)(void *context, const char *what, void *address, uint64_t bytes);
    void (*unpin)(void *context, void *address, uint64_t bytes);
    void *context;
    int32_t node; /* the buffers' NUMA node (topology.h) */
} tide_host_pinning;

/* Make an arena; `pinning` is copied, NULL: buffers are not pinned and lie on the nearest node. If jemalloc
 * refuses an arena, buffers become extents. NO_MEMORY. */
tide_status tide_host_arena_create(const tide_host_pinning *pinning, tide_host_arena **arena);
/* Destroy an arena; the caller has freed all its buffers. */
void tide_host_arena_destroy(tide_host_arena *arena);
bool tide_host_arena_uses_jemalloc(const tide_host_arena *arena);

/* Make a buffer of `bytes` > 0: zeroed, touched, pinned, aligned to a page. NO_MEMORY, or pin's status:
 * nothing changed. */
tide_status tide_host_arena_allocate(tide_host_arena *arena, const char *name, uint64_t bytes,
                                     uint32_t threads, void **address);
void tide_host_arena_free(tide_host_arena *arena, void *address, uint64_t bytes);

#endif
