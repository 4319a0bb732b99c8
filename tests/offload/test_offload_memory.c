/* Sources of memory: extents, host slots, the arena of buffers, the machine's topology. Built twice, with
 * jemalloc in the process and without; one of the tests checks which. */
#include "offload/host/host_slots.h"
#include "offload/host_arena.h"
#include "offload/host_extent.h"
#include "offload/topology.h"
#include "tests/support/assert_ok.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { KIB = 1024, MIB = 1024 * KIB };

/* Returns how many pages of [address, address + bytes) are in memory. */
static size_t pages_present(void *address, size_t bytes)
{
    size_t pages = bytes / 4096, present = 0;
    unsigned char *flags = malloc(pages);
    assert_non_null(flags);
    assert_int_equal(mincore(address, bytes, flags), 0);
    for (size_t i = 0; i < pages; i++)
        present += flags[i] & 1;
    free(flags);
    return present;
}

static void extent_is_present_aligned_zeroed_and_exact(void **state)
{
    void *address;
    size_t bytes = 70 * MIB + 4096; /* enough for three threads' pieces, and no multiple of a huge page */
    assert_ok(tide_host_extent_create("test", bytes, 2 * MIB, &(tide_first_touch){.threads = 4}, &address));
    assert_int_equal((uintptr_t)address % (2 * MIB), 0);
    assert_int_equal(pages_present(address, bytes), bytes / 4096);
    for (size_t i = 0; i < bytes; i += 512)
        assert_int_equal(((char *)address)[i], 0);
    tide_host_extent_destroy(address, bytes);
}

/* Records the calls of a touch's progress function. */
typedef struct told {
    uint64_t calls, done_bytes, total_bytes;
    atomic_int inside; /* threads in the function now */
    bool in_order;
} told;

static void tell(void *context, const char *what, uint64_t done_bytes, uint64_t total_bytes)
{
    told *it = context;
    const bool first = it->calls++ == 0;
    it->in_order &= atomic_fetch_add(&it->inside, 1) == 0 && strcmp(what, "test") == 0 &&
                    (first ? done_bytes == 0 : done_bytes > it->done_bytes);
    usleep(1000);
    it->done_bytes = done_bytes;
    it->total_bytes = total_bytes;
    atomic_fetch_sub(&it->inside, 1);
}

static void touching_tells_from_nothing_to_all_one_call_at_a_time(void **state)
{
    void *address;
    const size_t bytes = 200 * MIB;
    told it = {.in_order = true};
    const tide_first_touch how = {.threads = 4, .progress = tell, .progress_context = &it};
    assert_ok(tide_host_extent_create("test", bytes, 2 * MIB, &how, &address));
    assert_true(it.in_order);
    assert_true(it.calls > 4);
    assert_int_equal(it.done_bytes, bytes);
    assert_int_equal(it.total_bytes, bytes);
    tide_host_extent_destroy(address, bytes);
}

/* A touch behind the last page of a file would raise SIGBUS. Since Linux 5.14 madvise reports that as an
 * error instead. */
static void touching_what_is_not_there_is_a_status(void **state)
{
#ifdef MADV_POPULATE_WRITE
    const size_t bytes = 100 * MIB;
    const int file = memfd_create("half", MFD_CLOEXEC);
    assert_true(file >= 0);
    assert_int_equal(ftruncate(file, (off_t)bytes / 2), 0);
    void *address = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    assert_true(address != MAP_FAILED);
    assert_int_equal(madvise(address, 4096, MADV_POPULATE_WRITE), 0);
    told it = {.in_order = true};
    const tide_first_touch how = {.threads = 3, .progress = tell, .progress_context = &it};
    assert_fails(tide_host_extent_touch("test", address, bytes, &how), TIDE_ERROR_NO_MEMORY,
                 "test: the system has no 104857600 bytes: ");
    assert_true(it.done_bytes < bytes);
    munmap(address, bytes);
    close(file);
#else
    skip();
#endif
}

static void reserved_addresses_hold_no_memory(void **state)
{
    void *address = NULL;
    assert_ok(tide_host_extent_reserve(UINT64_C(1) << 36, 1 << 30, &address));
    assert_int_equal((uintptr_t)address % (1 << 30), 0);
    tide_host_extent_destroy(address, UINT64_C(1) << 36);
    assert_int_equal(tide_host_extent_reserve(UINT64_C(1) << 60, 4096, &address), TIDE_ERROR_NO_MEMORY);
}

static void host_slots_lie_one_after_the_other(void **state)
{
    tide_host_slots slots = {0};
    assert_ok(tide_host_slots_create(&slots, 5, 256 * KIB, &(tide_first_touch){.threads = 2}));
    char *first = tide_host_slots_address(&slots, 0), *last = tide_host_slots_address(&slots, 4);
    assert_int_equal(last - first, MIB);
    assert_int_equal(pages_present(first, 5 * 256 * KIB), 5 * 64);
    for (size_t i = 0; i < 5 * 256 * KIB; i++)
        assert_int_equal(first[i], 0);
    tide_host_slots_destroy(&slots);
    assert_ok(tide_host_slots_create(&slots, 0, 256 * KIB, &(tide_first_touch){.threads = 2}));
    tide_host_slots_destroy(&slots);
}

enum { BUFFERS = 40 };

static size_t buffer_bytes(int i)
{
    return (size_t)(i * 7919 + 1);
}

static void buffers_of_all_sizes_are_zeroed_apart_and_kept(void **state)
{
    tide_host_arena *arena;
    char *buffers[BUFFERS];
    assert_ok(tide_host_arena_create(NULL, &arena));
    for (int i = 0; i < BUFFERS; i++) {
        void *address;
        assert_ok(tide_host_arena_allocate(arena, "buffer", buffer_bytes(i), 1, &address));
        buffers[i] = address;
        assert_int_equal((uintptr_t)address % 4096, 0);
        for (size_t k = 0; k < buffer_bytes(i); k++)
            assert_int_equal(buffers[i][k], 0);
        memset(buffers[i], i + 1, buffer_bytes(i));
    }
    for (int i = 0; i < BUFFERS; i++)
        for (size_t k = 0; k < buffer_bytes(i); k++)
            assert_int_equal(buffers[i][k], i + 1);
    for (int i = 0; i < BUFFERS; i++)
        tide_host_arena_free(arena, buffers[i], buffer_bytes(i));
    tide_host_arena_destroy(arena);
}

static void buffer_freed_and_made_again_is_zeroed(void **state)
{
    tide_host_arena *arena;
    void *address;
    assert_ok(tide_host_arena_create(NULL, &arena));
    for (int round = 0; round < 20; round++) {
        assert_ok(tide_host_arena_allocate(arena, "buffer", 100 * KIB, 1, &address));
        for (size_t k = 0; k < 100 * KIB; k++)
            assert_int_equal(((char *)address)[k], 0);
        memset(address, 255, 100 * KIB);
        tide_host_arena_free(arena, address, 100 * KIB);
    }
    tide_host_arena_destroy(arena);
}

static uint64_t address_space_bytes(void)
{
    unsigned long pages = 0;
    FILE *file = fopen("/proc/self/statm", "r");
    assert_non_null(file);
    assert_int_equal(fscanf(file, "%lu", &pages), 1);
    fclose(file);
    return pages * 4096;
}

static void arenas_give_their_memory_back(void **state)
{
    uint64_t settled_bytes = 0;
    for (int round = 0; round < 30; round++) {
        tide_host_arena *arena;
        void *address;
        assert_ok(tide_host_arena_create(NULL, &arena));
        assert_ok(tide_host_arena_allocate(arena, "buffer", 8 * MIB, 1, &address));
        tide_host_arena_free(arena, address, 8 * MIB);
        tide_host_arena_destroy(arena);
        if (round == 10)
            settled_bytes = address_space_bytes();
    }
    assert_true(address_space_bytes() < settled_bytes + 20 * MIB); /* a leak would be 19 x 8 MiB */
}

/* Counts the pins of an arena. */
typedef struct pins {
    uint64_t bytes, pins;
    int refuse; /* this pin fails, counted from now; 0: none */
} pins;

static tide_status pin(void *context, const char *what, void *address, uint64_t bytes)
{
    pins *it = context;
    assert_string_equal(what, "buffer");
    assert_int_equal((uintptr_t)address % 4096, 0);
    assert_int_equal(pages_present(address, bytes), bytes / 4096); /* the pages are present before the pin */
    if (it->refuse > 0 && --it->refuse == 0)
        return tide_fail(TIDE_ERROR_NO_MEMORY, "no more pins");
    it->bytes += bytes;
    it->pins++;
    return TIDE_OK;
}

static void unpin(void *context, void *address, uint64_t bytes)
{
    pins *it = context;
    assert_int_equal(pages_present(address, bytes), bytes / 4096);
    it->bytes -= bytes;
    it->pins--;
}

static void pinned_buffers_are_pinned_page_for_page_and_no_more(void **state)
{
    pins it = {0};
    const tide_host_pinning pinning = {.pin = pin, .unpin = unpin, .context = &it, .node = TIDE_NODE_NEAREST};
    tide_host_arena *arena;
    void *buffers[BUFFERS];
    uint64_t expected_bytes = 0;
    assert_ok(tide_host_arena_create(&pinning, &arena));
    assert_int_equal(it.bytes, 0);
    for (int i = 0; i < BUFFERS; i++) {
        assert_ok(tide_host_arena_allocate(arena, "buffer", buffer_bytes(i), 1, &buffers[i]));
        expected_bytes += (buffer_bytes(i) + 4095) / 4096 * 4096;
        assert_int_equal(it.bytes, expected_bytes);
        assert_int_equal(it.pins, i + 1);
    }
    for (int i = 0; i < BUFFERS; i++)
        tide_host_arena_free(arena, buffers[i], buffer_bytes(i));
    assert_int_equal(it.bytes, 0);
    assert_int_equal(it.pins, 0);
    tide_host_arena_destroy(arena);
}

static void buffer_that_cannot_be_pinned_is_not_kept(void **state)
{
    uint64_t settled_bytes = 0;
    pins it = {0};
    const tide_host_pinning pinning = {.pin = pin, .unpin = unpin, .context = &it, .node = TIDE_NODE_NEAREST};
    for (int round = 0; round < 30; round++) {
        tide_host_arena *arena;
        void *address = NULL, *untouched = &it;
        assert_ok(tide_host_arena_create(&pinning, &arena));
        it.refuse = 1;
        assert_int_equal(tide_host_arena_allocate(arena, "buffer", 8 * MIB, 1, &untouched),
                         TIDE_ERROR_NO_MEMORY);
        assert_string_equal(tide_message(), "no more pins");
        assert_ptr_equal(untouched, &it);
        assert_ok(tide_host_arena_allocate(arena, "buffer", 8 * MIB, 1, &address));
        tide_host_arena_free(arena, address, 8 * MIB);
        tide_host_arena_destroy(arena);
        if (round == 10)
            settled_bytes = address_space_bytes();
    }
    assert_true(address_space_bytes() < settled_bytes + 20 * MIB);
}

static void arena_is_jemallocs_when_the_process_has_it(void **state)
{
    tide_host_arena *arena;
    assert_ok(tide_host_arena_create(NULL, &arena));
    assert_int_equal(tide_host_arena_uses_jemalloc(arena), TEST_WITH_JEMALLOC);
    tide_host_arena_destroy(arena);
}

static void topology_agrees_with_the_system(void **state)
{
    tide_topology topology;
    assert_ok(tide_topology_read(&topology));
    assert_int_equal(topology.memory_bytes / MIB,
                     (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE) / MIB);
    assert_in_range(topology.available_bytes, 1, topology.memory_bytes);
    assert_int_equal(topology.dormant_bytes, tide_topology_dormant_bytes(""));
    assert_in_range(topology.processors, 1, (uintmax_t)sysconf(_SC_NPROCESSORS_CONF));
    assert_int_equal(topology.processors, tide_topology_processors());
    assert_int_equal(topology.page_bytes, sysconf(_SC_PAGESIZE));
    assert_in_range(topology.node_count, 1, TIDE_TOPOLOGY_NODES_MAX);
    uint64_t node_bytes = 0, node_processors = 0;
    for (uint32_t i = 0; i < topology.node_count; i++) {
        node_bytes += topology.nodes[i].memory_bytes;
        node_processors += topology.nodes[i].processors;
        assert_true(topology.nodes[i].free_bytes <= topology.nodes[i].memory_bytes);
    }
    /* Nodes may have less than all: virtual machines whose memory grew count less per node. */
    assert_in_range(node_bytes, 1, topology.memory_bytes);
    assert_in_range(node_processors, topology.processors, (uintmax_t)sysconf(_SC_NPROCESSORS_CONF));
    assert_true(strlen(topology.processor) > 0 && strchr(topology.processor, '\n') == NULL);
    assert_true(strlen(topology.transparent_huge_pages) > 0);
}

static void binding_is_never_in_the_way(void **state)
{
    void *address;
    assert_ok(tide_host_extent_reserve(MIB, 4096, &address));
    tide_topology topology;
    assert_ok(tide_topology_read(&topology));
    /* There is no such node, and binding is only a wish. */
    (void)tide_topology_bind_memory(address, MIB, TIDE_TOPOLOGY_NODES_MAX + 1);
    if (topology.node_count == 1) {
        assert_true(tide_topology_bind_memory(address, MIB, TIDE_NODE_NEAREST));
        assert_true(tide_topology_bind_thread(TIDE_NODE_NEAREST));
    }
    tide_host_extent_destroy(address, MIB);
}

static void pci_device_that_the_system_does_not_know_is_near_to_nothing(void **state)
{
    assert_int_equal(tide_topology_pci_node("ffff:ff:1f.7"), TIDE_NODE_NEAREST);
    assert_int_equal(tide_topology_pci_node(""), TIDE_NODE_NEAREST);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(extent_is_present_aligned_zeroed_and_exact),
        cmocka_unit_test(touching_tells_from_nothing_to_all_one_call_at_a_time),
        cmocka_unit_test(touching_what_is_not_there_is_a_status),
        cmocka_unit_test(reserved_addresses_hold_no_memory),
        cmocka_unit_test(host_slots_lie_one_after_the_other),
        cmocka_unit_test(buffers_of_all_sizes_are_zeroed_apart_and_kept),
        cmocka_unit_test(buffer_freed_and_made_again_is_zeroed),
        cmocka_unit_test(arenas_give_their_memory_back),
        cmocka_unit_test(pinned_buffers_are_pinned_page_for_page_and_no_more),
        cmocka_unit_test(buffer_that_cannot_be_pinned_is_not_kept),
        cmocka_unit_test(arena_is_jemallocs_when_the_process_has_it),
        cmocka_unit_test(topology_agrees_with_the_system),
        cmocka_unit_test(binding_is_never_in_the_way),
        cmocka_unit_test(pci_device_that_the_system_does_not_know_is_near_to_nothing),
    };
    return cmocka_run_group_tests_name("memory of the host device", tests, NULL, NULL);
}
