#include "offload/host_arena.h"

#include "offload/device_common.h"
#include "offload/host_extent.h"
#include "offload/topology.h"
#include "tide_config.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

#if TIDE_HAVE_JEMALLOC

#include <jemalloc/jemalloc.h>

/* Weak symbols: NULL in a process without jemalloc. */
extern __typeof__(mallctl) mallctl __attribute__((weak));
extern __typeof__(mallocx) mallocx __attribute__((weak));
extern __typeof__(dallocx) dallocx __attribute__((weak));

struct tide_host_arena {
    extent_hooks_t hooks; /* the first field, so that a hook, which gets their address, finds its arena */
    tide_host_pinning pinning;
    bool uses_jemalloc;
    unsigned index;
};

/* Give jemalloc memory to cut buffers from. It is not touched here; tide_host_arena_allocate touches each
 * buffer's pages. */
static void *extent_alloc(extent_hooks_t *hooks, void *wanted, size_t bytes, size_t alignment_bytes,
                          bool *zero, bool *commit, unsigned index)
{
    const tide_host_arena *arena = (const tide_host_arena *)hooks;
    (void)index;
    void *base;
    if (wanted != NULL || tide_host_extent_back("extent of buffers", bytes, alignment_bytes,
                                                arena->pinning.node, &base) != TIDE_OK)
        return NULL;
    *zero = true;
    *commit = true;
    return base;
}

static bool extent_dalloc(extent_hooks_t *hooks, void *base, size_t bytes, bool committed, unsigned index)
{
    (void)hooks;
    (void)committed;
    (void)index;
    return munmap(base, bytes) != 0;
}

static void extent_destroy(extent_hooks_t *hooks, void *base, size_t bytes, bool committed, unsigned index)
{
    (void)extent_dalloc(hooks, base, bytes, committed, index);
}

/* Allow jemalloc to split and merge extents anywhere: the kernel allows it for mappings. */
static bool extent_split(extent_hooks_t *hooks, void *base, size_t bytes, size_t left_bytes,
                         size_t right_bytes, bool committed, unsigned index)
{
    (void)hooks, (void)base, (void)bytes, (void)left_bytes, (void)right_bytes, (void)committed, (void)index;
    return false;
}

static bool extent_merge(extent_hooks_t *hooks, void *left, size_t left_bytes, void *right,
                         size_t right_bytes, bool committed, unsigned index)
{
    (void)hooks, (void)left, (void)left_bytes, (void)right, (void)right_bytes, (void)committed, (void)index;
    return false;
}

static bool arena_open(tide_host_arena *arena)
{
    if (mallctl == NULL || mallocx == NULL || dallocx == NULL)
        return false;
    arena->hooks = (extent_hooks_t){
        .alloc = extent_alloc,
        .dalloc = extent_dalloc,
        .destroy = extent_destroy,
        .split = extent_split,
        .merge = extent_merge,
    };
    extent_hooks_t *hooks = &arena->hooks;
    size_t index_bytes = sizeof arena->index;
    return mallctl("arenas.create", &arena->index, &index_bytes, &hooks, sizeof hooks) == 0;
}

static void arena_close(tide_host_arena *arena)
{
    char name[40];
    (void)snprintf(name, sizeof name, "arena.%u.destroy", arena->index);
    int error = mallctl(name, NULL, NULL, NULL, 0);
    assert(error == 0);
    (void)error;
}

static void *arena_allocate(tide_host_arena *arena, uint64_t bytes)
{
    int flags = MALLOCX_ARENA(arena->index) | MALLOCX_TCACHE_NONE | MALLOCX_ALIGN((size_t)TIDE_PAGE_BYTES) |
                MALLOCX_ZERO;
    return mallocx(bytes, flags);
}

static void arena_free(tide_host_arena *arena, void *address)
{
    dallocx(address, (int)MALLOCX_ARENA(arena->index) | MALLOCX_TCACHE_NONE);
}

#else

struct tide_host_arena {
    tide_host_pinning pinning;
    bool uses_jemalloc; /* always false in this build */
};

static bool arena_open(tide_host_arena *arena)
{
    (void)arena;
    return false;
}

static void arena_close(tide_host_arena *arena)
{
    (void)arena;
}

static void *arena_allocate(tide_host_arena *arena, uint64_t bytes)
{
    (void)arena;
    (void)bytes;
    return NULL;
}

static void arena_free(tide_host_arena *arena, void *address)
{
    (void)arena;
    (void)address;
}

#endif

tide_status tide_host_arena_create(const tide_host_pinning *pinning, tide_host_arena **arena)
{
    tide_host_arena *made = calloc(1, sizeof *made);
    if (made == NULL)
        return tide_fail(TIDE_ERROR_NO_MEMORY, "no memory for the arena of host buffers (%zu bytes)",
                         sizeof *made);
    made->pinning = pinning != NULL ? *pinning : (tide_host_pinning){.node = TIDE_NODE_NEAREST};
    made->uses_jemalloc = arena_open(made);
    *arena = made;
    return TIDE_OK;
}

void tide_host_arena_destroy(tide_host_arena *arena)
{
    if (arena == NULL)
        return;
    if (arena->uses_jemalloc)
        arena_close(arena);
    free(arena);
}

bool tide_host_arena_uses_jemalloc(const tide_host_arena *arena)
{
    return arena->uses_jemalloc;
}

/* Get addresses for a buffer, with memory that is not touched yet. */
static tide_status addresses_take(tide_host_arena *arena, const char *name, uint64_t bytes, void **address)
{
    if (!arena->uses_jemalloc)
        return tide_host_extent_back(name, bytes, TIDE_PAGE_BYTES, arena->pinning.node, address);
    void *base = arena_allocate(arena, bytes);
    if (base == NULL)
        return tide_fail(TIDE_ERROR_NO_MEMORY, "buffer %s: jemalloc has no %" PRIu64 " bytes", name, bytes);
    *address = base;
    return TIDE_OK;
}

static void addresses_give(tide_host_arena *arena, void *address, uint64_t bytes)
{
    if (arena->uses_jemalloc)
        arena_free(arena, address);
    else
        tide_host_extent_destroy(address, bytes);
}

tide_status tide_host_arena_allocate(tide_host_arena *arena, const char *name, uint64_t bytes,
                                     uint32_t threads, void **address)
{
    assert(bytes > 0);
    void *base;
    uint64_t whole_bytes = tide_page_up(bytes);
    tide_status status = tide_host_extent_check_available(name, whole_bytes);
    if (status == TIDE_OK)
        status = addresses_take(arena, name, whole_bytes, &base);
    if (status != TIDE_OK)
        return status;
    status = tide_host_extent_touch(name, base, whole_bytes, &(tide_first_touch){.threads = threads});
    if (status == TIDE_OK && arena->pinning.pin != NULL)
        status = arena->pinning.pin(arena->pinning.context, name, base, whole_bytes);
    if (status != TIDE_OK)
        goto undo_take;
    *address = base;
    return TIDE_OK;

undo_take:
    addresses_give(arena, base, whole_bytes);
    return status;
}

void tide_host_arena_free(tide_host_arena *arena, void *address, uint64_t bytes)
{
    const uint64_t whole_bytes = tide_page_up(bytes);
    if (arena->pinning.unpin != NULL)
        arena->pinning.unpin(arena->pinning.context, address, whole_bytes);
    addresses_give(arena, address, whole_bytes);
}
