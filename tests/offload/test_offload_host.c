/* Tests of device.h's promises: memory and budgets, places, streams, events, sleep. Built for the host
 * device and, with TEST_ON_CUDA, for the CUDA device on a fake runtime; that build leaves out the tests of
 * the host device's own features. */
#include "offload/host/host_device.h"
#include "test_offload_fixture.h"
#include "tests/support/interpose.h"

#include <pthread.h>
#include <stdint.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#ifdef _OPENMP
#include <omp.h>
#endif

static uint64_t peak(const fixture *it, tide_tier tier)
{
    tide_memory_usage usage;
    it->ops->usage(it->device, tier, &usage);
    assert_true(usage.peak_bytes >= usage.used_bytes);
    return usage.peak_bytes;
}

/* --- options --- */

static void expect_refused(tide_device_options options, const char *words)
{
    tide_device *device = NULL;
    assert_fails(device_open(&options, &device), TIDE_ERROR_ARGUMENT, words);
    assert_null(device);
    assert_int_equal(tide_device_null_open(&options, &device), TIDE_ERROR_ARGUMENT);
    assert_null(device);
}

static void options_out_of_range_are_refused(void **state)
{
    tide_device_options options = options_small();
    options.chunk_bytes = 3 << 18;
    expect_refused(options, "chunk size of 786432 bytes");
    options.chunk_bytes = 128 << 10;
    expect_refused(options, "power of two");
    options = options_small();
    options.device_memory_bytes = CHUNK_BYTES - 1;
    char words[80];
    (void)snprintf(words, sizeof words, "device memory budget of %d bytes is below one chunk",
                   CHUNK_BYTES - 1);
    expect_refused(options, words);
    options = options_small();
    options.host_memory_bytes = 0;
    expect_refused(options, "host memory budget");
    options = options_small();
    options.link_bytes_per_second = -1;
    expect_refused(options, "link bandwidth");
    options = options_small();
    options.checks.skip_wait_site = TIDE_WAIT_SITE_COUNT;
    expect_refused(options, "wait site 64");
    options = options_small();
    options.fault_mask = 16;
    expect_refused(options, "fault mask");
}

/* --- memory and budgets --- */

static void both_budgets_can_be_filled_to_the_last_byte(fixture *it)
{
    tide_memory_usage usage;
    it->ops->usage(it->device, TIDE_TIER_DEVICE, &usage);
    assert_int_equal(usage.used_bytes, usage.budget_bytes);
    assert_int_equal(usage.peak_bytes, DEVICE_SLOTS * CHUNK_BYTES + REGION_BYTES);
    it->ops->usage(it->device, TIDE_TIER_HOST, &usage);
    assert_int_equal(usage.used_bytes, usage.budget_bytes);
    assert_int_equal(usage.allocations, 2);
}

static void one_byte_or_slot_over_budget_is_refused_and_leaves_no_trace(void **state)
{
    tide_device_options options = options_small();
    void *address = NULL;
    uint32_t object = 77;
    char words[80];
    fixture it = fixture_empty(&options);
    assert_int_equal(it.ops->slots_create(it.device, TIDE_TIER_DEVICE, DEVICE_SLOTS + 1), TIDE_ERROR_BUDGET);
    (void)snprintf(words, sizeof words, "a budget of %d would do", (DEVICE_SLOTS + 1) * CHUNK_BYTES);
    expect_words(words);
    assert_int_equal(it.ops->slots_create(it.device, TIDE_TIER_HOST, HOST_SLOTS + 1), TIDE_ERROR_BUDGET);
    assert_int_equal(peak(&it, TIDE_TIER_DEVICE) + peak(&it, TIDE_TIER_HOST), 0);
    assert_ok(it.ops->slots_create(it.device, TIDE_TIER_DEVICE, DEVICE_SLOTS));
    assert_ok(it.ops->slots_create(it.device, TIDE_TIER_HOST, HOST_SLOTS));
    assert_int_equal(it.ops->region_create(it.device, REGION_BYTES + 1, &address), TIDE_ERROR_BUDGET);
    assert_ok(it.ops->region_create(it.device, REGION_BYTES, &address));
    address = NULL;
    assert_int_equal(it.ops->buffer_create(it.device, "b", 8193, &address, &object), TIDE_ERROR_BUDGET);
    assert_null(address);
    assert_int_equal(object, 77);
    assert_ok(it.ops->buffer_create(it.device, "b", 1, &address, &object));
    assert_int_equal(peak(&it, TIDE_TIER_HOST), HOST_SLOTS * CHUNK_BYTES + 4096);
    fixture_close(&it);
}

static void what_exists_once_cannot_be_made_twice(fixture *it)
{
    void *address;
    assert_int_equal(it->ops->slots_create(it->device, TIDE_TIER_DEVICE, 0), TIDE_ERROR_STATE);
    assert_int_equal(it->ops->slots_create(it->device, TIDE_TIER_HOST, 0), TIDE_ERROR_STATE);
    assert_int_equal(it->ops->region_create(it->device, 0, &address), TIDE_ERROR_STATE);
}

static void memory_the_machine_does_not_have_is_refused_before_it_is_touched(void **state)
{
    tide_device_options options = options_small();
    options.chunk_bytes = 1 << 30;
    options.device_memory_bytes = options.host_memory_bytes = UINT64_C(1) << 50;
    tide_device *device;
    assert_ok(device_open(&options, &device));
    assert_int_equal(device->ops->slots_create(device, TIDE_TIER_DEVICE, 1 << 16), TIDE_ERROR_NO_MEMORY);
#ifndef TEST_ON_CUDA /* on CUDA host memory may grow; test_cuda_guest.c tests that on simulated machines */
    assert_fails(device->ops->slots_create(device, TIDE_TIER_HOST, 1 << 16), TIDE_ERROR_NO_MEMORY,
                 "available");
#endif
    device->ops->close(device);
}

static void memory_begins_aligned_and_zeroed(fixture *it)
{
    assert_int_equal((uintptr_t)it->region % TIDE_ALIGNMENT_BYTES, 0);
    assert_int_equal((uintptr_t)it->buffer % TIDE_ALIGNMENT_BYTES, 0);
    assert_int_equal((uintptr_t)it->range % CHUNK_BYTES, 0);
    for (int i = 0; i < REGION_BYTES; i++)
        assert_int_equal(it->region[i], 0);
    for (int i = 0; i < BUFFER_BYTES; i++)
        assert_int_equal(it->buffer[i], 0);
}

static void ranges_are_whole_chunks_and_parts_lie_inside_the_region(fixture *it)
{
    void *address = NULL;
    uint32_t object, other;
    assert_int_equal(it->ops->reserve(it->device, CHUNK_BYTES + 4096, &address), TIDE_ERROR_ARGUMENT);
    assert_int_equal(it->ops->reserve(it->device, 0, &address), TIDE_ERROR_ARGUMENT);
    assert_null(address);
    assert_int_equal(it->ops->region_object(it->device, "x", 1, REGION_BYTES, &object), TIDE_ERROR_ARGUMENT);
    assert_int_equal(it->ops->region_object(it->device, "x", UINT64_MAX, 2, &object), TIDE_ERROR_ARGUMENT);
    assert_ok(it->ops->region_object(it->device, "x", REGION_BYTES - 1, 1, &object));
    assert_ok(it->ops->region_object(it->device, "y", REGION_BYTES - 1, 1, &other));
    assert_int_equal(other, object + 1);
}

/* --- places --- */

static void slot_has_one_content_at_its_own_place_and_the_chunks(fixture *it)
{
    memset(own(it, TIDE_TIER_DEVICE, 1), 0, CHUNK_BYTES);
    memset(own(it, TIDE_TIER_DEVICE, 2), 7, CHUNK_BYTES);
    assert_ok(it->ops->map(it->device, 2, place(it, 5)));
    assert_int_equal(place(it, 5)[0], 7);
    assert_int_equal(place(it, 5)[CHUNK_BYTES - 1], 7);
    place(it, 5)[10] = 8;
    assert_int_equal(own(it, TIDE_TIER_DEVICE, 2)[10], 8);
    assert_int_equal(own(it, TIDE_TIER_DEVICE, 1)[10], 0);
    assert_ok(it->ops->unmap(it->device, 2, place(it, 5)));
    assert_ok(it->ops->map(it->device, 2, place(it, 0)));
    assert_int_equal(place(it, 0)[10], 8);
}

static void misplacing_is_refused(fixture *it)
{
    assert_ok(it->ops->map(it->device, 1, place(it, 3)));
    assert_fails(it->ops->map(it->device, 1, place(it, 4)), TIDE_ERROR_ARGUMENT,
                 "device slot 1 is mapped at");
    assert_fails(it->ops->map(it->device, 2, place(it, 3)), TIDE_ERROR_ARGUMENT,
                 "holds device slot 1 already");
    assert_int_equal(it->ops->map(it->device, 2, place(it, 2) + 4096), TIDE_ERROR_ARGUMENT);
    assert_int_equal(it->ops->map(it->device, 2, place(it, RANGE_CHUNKS)), TIDE_ERROR_ARGUMENT);
    assert_int_equal(it->ops->map(it->device, 2, it->range - CHUNK_BYTES), TIDE_ERROR_ARGUMENT);
    assert_int_equal(it->ops->map(it->device, 2, NULL), TIDE_ERROR_ARGUMENT);
    assert_int_equal(it->ops->map(it->device, DEVICE_SLOTS, place(it, 2)), TIDE_ERROR_ARGUMENT);
    assert_int_equal(it->ops->unmap(it->device, 1, place(it, 2)), TIDE_ERROR_ARGUMENT);
    assert_int_equal(it->ops->unmap(it->device, 2, place(it, 3)), TIDE_ERROR_ARGUMENT);
    assert_ok(it->ops->unmap(it->device, 1, place(it, 3)));
    assert_int_equal(it->ops->unmap(it->device, 1, place(it, 3)), TIDE_ERROR_ARGUMENT);
}

static void a_placing_and_a_taking_away_are_counted_once_a_refused_one_is_not(fixture *it)
{
    for (int i = 0; i < 3; i++) {
        assert_ok(it->ops->map(it->device, 1, place(it, 2)));
        assert_int_equal(it->ops->map(it->device, 1, place(it, 3)), TIDE_ERROR_ARGUMENT);
        if (i < 2)
            assert_ok(it->ops->unmap(it->device, 1, place(it, 2)));
    }
    assert_int_equal(it->ops->unmap(it->device, 1, place(it, 3)), TIDE_ERROR_ARGUMENT);
    const tide_device_statistics statistics = statistics_of(it);
    assert_int_equal(statistics.maps, 3);
    assert_int_equal(statistics.unmaps, 2);
}

static tide_status lose(tide_device *device, uint32_t slot, void *place)
{
    return tide_fail(TIDE_ERROR_INTERNAL, "the place was lost");
}

/* A place is lost if the system unmaps it and can't map it again. Tests can't cause that, so a fake
 * reports it. */
static void a_lost_place_fails_the_device_for_good(void **state)
{
    for (int mapping = 0; mapping <= 1; mapping++) {
        fixture it = fixture_small();
        tide_account *account = tide_account_of(it.device);
        tide_account_makers makers = *account->makers;
        assert_ok(it.ops->map(it.device, 1, place(&it, 2)));
        *(mapping ? &makers.map : &makers.unmap) = lose;
        account->makers = &makers;
        assert_int_equal(mapping ? it.ops->map(it.device, 2, place(&it, 3))
                                 : it.ops->unmap(it.device, 1, place(&it, 2)),
                         TIDE_ERROR_INTERNAL);
        assert_int_equal(it.ops->failure(it.device), TIDE_ERROR_INTERNAL);
        assert_string_equal(tide_message(), "the place was lost");
        it.ops->synchronize(it.device);
        assert_int_equal(it.ops->recover(it.device), TIDE_ERROR_INTERNAL);
        fixture_close(&it);
    }
}

#ifndef TEST_ON_CUDA
/* Whether the address can be read. A system call finds out, since a read would end the test. */
static bool is_accessible(const char *address)
{
    int ends[2];
    assert_int_equal(pipe(ends), 0);
    const bool accessible = write(ends[1], address, 1) == 1;
    assert_int_equal(close(ends[0]) | close(ends[1]), 0);
    return accessible;
}

/* The test runs both with mremap and without it, as on systems that can't move such mappings. */
static void a_slot_goes_from_place_to_place_in_one_call(void **state)
{
    for (int moves = 1; moves >= 0; moves--) {
        fixture it = fixture_small();
        tide_host_device_of(it.device)->memory.moves &= moves != 0;
        assert_ok(it.ops->map(it.device, 2, place(&it, 5)));
        memset(place(&it, 5), 7, CHUNK_BYTES);
        assert_ok(it.ops->remap(it.device, 2, place(&it, 5), place(&it, 1)));
        assert_int_equal(place(&it, 1)[CHUNK_BYTES - 1], 7);
        assert_false(is_accessible(place(&it, 5)));
        place(&it, 1)[0] = 8;
        assert_int_equal(own(&it, TIDE_TIER_DEVICE, 2)[0], 8);
        assert_ok(it.ops->map(it.device, 1, place(&it, 5)));
        assert_ok(it.ops->unmap(it.device, 2, place(&it, 1)));
        assert_false(is_accessible(place(&it, 1)));
        assert_int_equal(own(&it, TIDE_TIER_DEVICE, 2)[CHUNK_BYTES - 1], 7);
        fixture_close(&it);
    }
}

static void a_slot_that_cannot_go_elsewhere_stays(fixture *it)
{
    assert_ok(it->ops->map(it->device, 1, place(it, 3)));
    assert_ok(it->ops->map(it->device, 2, place(it, 4)));
    memset(place(it, 3), 7, CHUNK_BYTES);
    assert_int_equal(it->ops->remap(it->device, 1, place(it, 3), place(it, 4)), TIDE_ERROR_ARGUMENT);
    assert_int_equal(it->ops->remap(it->device, 1, place(it, 3), place(it, 3)), TIDE_ERROR_ARGUMENT);
    assert_int_equal(it->ops->remap(it->device, 1, place(it, 5), place(it, 6)), TIDE_ERROR_ARGUMENT);
    assert_int_equal(it->ops->remap(it->device, 3, place(it, 3), place(it, 5)), TIDE_ERROR_ARGUMENT);
    it->ops->set_fault(it->device, TIDE_FAULT_MAP, 1);
    assert_int_equal(it->ops->remap(it->device, 1, place(it, 3), place(it, 5)), TIDE_ERROR_DEVICE);
    assert_int_equal(place(it, 3)[10], 7);
    assert_false(is_accessible(place(it, 5)));
    assert_ok(it->ops->remap(it->device, 1, place(it, 3), place(it, 5)));
    assert_int_equal(place(it, 5)[10], 7);
}

static void guard_of_a_mapping_that_is_gone_leaves_the_next_one_alone(fixture *it)
{
    gate late = {0};
    assert_ok(it->ops->map(it->device, 1, place(it, 3)));
    assert_ok(launch_gate(it, TIDE_STREAM_COMPUTE, &late));
    assert_ok(it->ops->guard(it->device, TIDE_STREAM_COMPUTE, place(it, 3), false));
    assert_ok(it->ops->unmap(it->device, 1, place(it, 3)));
    assert_ok(it->ops->map(it->device, 1, place(it, 3)));
    atomic_store(&late.open, true);
    it->ops->synchronize(it->device);
    place(it, 3)[0] = 1; /* faults if the guard took effect */
    assert_int_equal(it->ops->guard(it->device, TIDE_STREAM_COMPUTE, place(it, 4), false),
                     TIDE_ERROR_ARGUMENT);
}
#endif

/* --- launches --- */

static void launch_returns_before_its_kernel_has_started(fixture *it)
{
    gate first = {0}, second = {0};
    assert_ok(launch_gate(it, TIDE_STREAM_COMPUTE, &first));
    assert_ok(launch_gate(it, TIDE_STREAM_COMPUTE, &second));
    assert_ok(it->ops->event_record(it->device, it->events[0], TIDE_STREAM_COMPUTE));
    assert_false(atomic_load(&second.began)); /* the first kernel holds the stream */
    assert_false(is_done(it, it->events[0]));
    atomic_store(&first.open, true);
    atomic_store(&second.open, true);
    assert_ok(it->ops->event_wait(it->device, it->events[0], SITE));
    assert_true(atomic_load(&second.began));
    assert_true(is_done(it, it->events[0]));
}

typedef struct wide_arguments {
    _Alignas(16) unsigned char bytes[TIDE_LAUNCH_ARGUMENTS_MAX_BYTES - 16];
    unsigned *sum; /* set to 1000000 if the arguments are misaligned */
} wide_arguments;

static tide_status sum_kernel_work(const wide_arguments *it)
{
    unsigned sum = (uintptr_t)it % 16 == 0 ? 0 : 1000000;
    for (size_t i = 0; i < sizeof it->bytes; i++)
        sum += it->bytes[i];
    *it->sum = sum;
    return TIDE_OK;
}
TEST_KERNEL(sum_kernel, wide_arguments)

static void arguments_are_copied_and_aligned(fixture *it)
{
    gate hold = {0};
    unsigned sum = 0;
    wide_arguments arguments;
    tide_work work = work_of("sum", 0);
    assert_int_equal(sizeof arguments, TIDE_LAUNCH_ARGUMENTS_MAX_BYTES);
    memset(arguments.bytes, 1, sizeof arguments.bytes);
    arguments.sum = &sum;
    assert_ok(launch_gate(it, TIDE_STREAM_UPDATE, &hold));
    assert_ok(
        it->ops->launch(it->device, TIDE_STREAM_UPDATE, &work, sum_kernel, &arguments, sizeof arguments));
    memset(&arguments, 0xee, sizeof arguments);
    atomic_store(&hold.open, true);
    it->ops->synchronize(it->device);
    assert_int_equal(sum, TIDE_LAUNCH_ARGUMENTS_MAX_BYTES - 16);
}

static void launches_that_cannot_be_meant_are_refused(fixture *it)
{
    char bytes[TIDE_LAUNCH_ARGUMENTS_MAX_BYTES + 1] = {0};
    tide_work work = work_of("w", 3), nameless = {0};
    assert_int_equal(it->ops->launch(it->device, TIDE_STREAM_IN, &work, count_kernel, bytes, sizeof bytes),
                     TIDE_ERROR_ARGUMENT);
    assert_string_equal(tide_message(), "w 3 has 257 bytes of arguments, more than 256");
    assert_int_equal(it->ops->launch(it->device, TIDE_STREAM_IN, &work, NULL, bytes, 1), TIDE_ERROR_ARGUMENT);
    assert_int_equal(it->ops->launch(it->device, TIDE_STREAM_IN, &nameless, count_kernel, bytes, 1),
                     TIDE_ERROR_ARGUMENT);
    assert_int_equal(it->ops->launch(it->device, TIDE_STREAM_COUNT, &work, count_kernel, bytes, 1),
                     TIDE_ERROR_ARGUMENT);
#ifndef TEST_ON_CUDA /* only the checker looks at accesses */
    tide_access nowhere = tide_reads(TIDE_OBJECT_DEVICE_SLOT, DEVICE_SLOTS);
    work = work_on("w", 3, &nowhere);
    assert_int_equal(it->ops->launch(it->device, TIDE_STREAM_IN, &work, count_kernel, NULL, 0),
                     TIDE_ERROR_ARGUMENT);
#endif
    assert_ok(it->ops->failure(it->device));
}

static void commands_of_a_stream_run_in_order(fixture *it)
{
    for (int stream = 0; stream < TIDE_STREAM_COUNT; stream++) {
        int memory = 1;
        unsigned expected = 1;
        for (int i = 0; i < 50; i++) {
            store_arguments arguments = {&memory, i};
            tide_work work = work_of("mix", (uint32_t)i);
            expected = 3 * expected + (unsigned)i;
            assert_ok(it->ops->launch(it->device, (tide_stream)stream, &work, mix_kernel, &arguments,
                                      sizeof arguments));
        }
        it->ops->synchronize(it->device);
        assert_int_equal((unsigned)memory, expected);
    }
}

typedef struct flood {
    fixture *it;
    atomic_int *ran;
    atomic_int launched;
} flood;

enum { FLOOD_LAUNCHES = 600 };

static void *flood_main(void *argument)
{
    flood *it = argument;
    for (int i = 0; i < FLOOD_LAUNCHES; i++) {
        if (launch_count(it->it, TIDE_STREAM_COMPUTE, it->ran) != TIDE_OK)
            break;
        atomic_fetch_add(&it->launched, 1);
    }
    return NULL;
}

static void full_ring_makes_the_caller_wait_and_goes_on(fixture *it)
{
    gate hold = {0};
    atomic_int ran = 0;
    flood all = {it, &ran, 0};
    pthread_t thread;
    assert_ok(launch_gate(it, TIDE_STREAM_COMPUTE, &hold));
    assert_int_equal(pthread_create(&thread, NULL, flood_main, &all), 0);
    int before = -1;
    while (atomic_load(&all.launched) != before || before == 0) {
        before = atomic_load(&all.launched);
        nanosleep(&(struct timespec){.tv_nsec = 50000000}, NULL);
    }
    assert_in_range(before, 1, FLOOD_LAUNCHES - 1);
    assert_int_equal(atomic_load(&ran), 0);
    atomic_store(&hold.open, true);
    assert_int_equal(pthread_join(thread, NULL), 0);
    it->ops->synchronize(it->device);
    assert_int_equal(atomic_load(&ran), FLOOD_LAUNCHES);
}

typedef struct capacity_waiter {
    fixture *it;
    tide_stream stream;
    atomic_bool has_capacity;
} capacity_waiter;

static void *capacity_waiter_main(void *argument)
{
    capacity_waiter *it = argument;
    atomic_store(&it->has_capacity, it->it->ops->has_capacity(it->it->device, it->stream, true));
    return NULL;
}

/* Enqueues commands behind a closed gate until has_capacity() returns false. TIDE_CAPACITY_COMMANDS more
 * must still fit without a wait. */
static void fill_until_no_capacity(fixture *it, tide_stream stream, atomic_int *ran)
{
    int launched = 0;
    while (it->ops->has_capacity(it->device, stream, false)) {
        assert_ok(launch_count(it, stream, ran));
        assert_in_range(++launched, 1, FLOOD_LAUNCHES);
    }
    assert_true(launched > TIDE_CAPACITY_COMMANDS);
    for (int i = 1; i < TIDE_CAPACITY_COMMANDS; i++) /* one less, since the last launch above took one */
        assert_ok(launch_count(it, stream, ran));
}

static void capacity_is_told_and_waited_for(void **state)
{
    for (tide_stream stream = 0; stream < TIDE_STREAM_COUNT; stream++) {
        fixture it = fixture_small();
        gate hold = {0};
        atomic_int ran = 0;
        capacity_waiter waiter = {&it, stream, false};
        pthread_t thread;
        assert_true(it.ops->has_capacity(it.device, stream, false));
        assert_ok(launch_gate(&it, stream, &hold));
        fill_until_no_capacity(&it, stream, &ran);
        assert_int_equal(pthread_create(&thread, NULL, capacity_waiter_main, &waiter), 0);
        nanosleep(&(struct timespec){.tv_nsec = 30000000}, NULL);
        assert_false(atomic_load(&waiter.has_capacity));
        assert_false(it.ops->has_capacity(it.device, stream, false));
        atomic_store(&hold.open, true);
        assert_int_equal(pthread_join(thread, NULL), 0);
        assert_true(atomic_load(&waiter.has_capacity));
        it.ops->synchronize(it.device);
        assert_true(it.ops->has_capacity(it.device, stream, false));
        fixture_close(&it);
    }
}

/* --- copies --- */

static void copies_move_the_first_bytes_of_a_slot_both_ways(fixture *it)
{
    tide_work work = work_of("copy", 0);
    memset(own(it, TIDE_TIER_HOST, 4), 5, CHUNK_BYTES);
    memset(own(it, TIDE_TIER_DEVICE, 3), 0, CHUNK_BYTES);
    assert_ok(it->ops->copy_slot(it->device, TIDE_STREAM_IN, &work, TIDE_TIER_DEVICE, 3, 4, 1000));
    it->ops->synchronize(it->device);
    assert_int_equal(own(it, TIDE_TIER_DEVICE, 3)[999], 5);
    assert_int_equal(own(it, TIDE_TIER_DEVICE, 3)[1000], 0);
    assert_ok(it->ops->copy_slot(it->device, TIDE_STREAM_OUT, &work, TIDE_TIER_HOST, 0, 3, CHUNK_BYTES));
    it->ops->synchronize(it->device);
    assert_int_equal(own(it, TIDE_TIER_HOST, 0)[999], 5);
    assert_int_equal(own(it, TIDE_TIER_HOST, 0)[1000], 0);
    const tide_device_statistics statistics = statistics_of(it);
    assert_int_equal(statistics.h2d_bytes, 1000);
    assert_int_equal(statistics.d2h_bytes, CHUNK_BYTES);
    assert_int_equal(statistics.commands[TIDE_STREAM_IN], 1);
}

static void copies_outside_slots_region_and_buffers_are_refused(fixture *it)
{
    tide_work work = work_of("copy", 0);
    const tide_device_ops *ops = it->ops;
    tide_device *device = it->device;
    assert_int_equal(ops->copy_slot(device, TIDE_STREAM_IN, &work, TIDE_TIER_DEVICE, DEVICE_SLOTS, 0, 1),
                     TIDE_ERROR_ARGUMENT);
    assert_int_equal(ops->copy_slot(device, TIDE_STREAM_IN, &work, TIDE_TIER_DEVICE, 0, HOST_SLOTS, 1),
                     TIDE_ERROR_ARGUMENT);
    assert_int_equal(ops->copy_slot(device, TIDE_STREAM_IN, &work, TIDE_TIER_DEVICE, 0, 0, CHUNK_BYTES + 1),
                     TIDE_ERROR_ARGUMENT);
    assert_fails(
        ops->copy_bytes(device, TIDE_STREAM_IN, &work, it->region + 1, it->buffer, REGION_BYTES, true),
        TIDE_ERROR_ARGUMENT, "not inside the region");
    assert_fails(
        ops->copy_bytes(device, TIDE_STREAM_IN, &work, it->region, it->buffer, BUFFER_BYTES + 1, true),
        TIDE_ERROR_ARGUMENT, "not inside a host buffer");
    assert_int_equal(ops->copy_bytes(device, TIDE_STREAM_IN, &work, it->region, it->buffer, 1, false),
                     TIDE_ERROR_ARGUMENT);
    it->buffer[0] = 9;
    assert_ok(ops->copy_bytes(device, TIDE_STREAM_IN, &work, it->region + 5, it->buffer, 2, true));
    assert_ok(ops->copy_bytes(device, TIDE_STREAM_IN, &work, it->buffer + 7, it->region + 5, 1, false));
    ops->synchronize(device);
    assert_int_equal(it->buffer[7], 9);
}

#ifndef TEST_ON_CUDA /* a GPU's link has its own rate */
/* Returns the time of `count` copies each way, with both ways at the same time. */
static uint64_t copies_ns(fixture *it, int count)
{
    tide_work work = work_of("copy", 0);
    uint64_t begin_ns = it->ops->now_ns(it->device);
    for (int i = 0; i < count; i++) {
        assert_ok(it->ops->copy_slot(it->device, TIDE_STREAM_IN, &work, TIDE_TIER_DEVICE, 0, 0, CHUNK_BYTES));
        assert_ok(it->ops->copy_slot(it->device, TIDE_STREAM_OUT, &work, TIDE_TIER_HOST, 1, 1, CHUNK_BYTES));
    }
    it->ops->synchronize(it->device);
    return it->ops->now_ns(it->device) - begin_ns;
}

/* Returns the shortest time of several tries. On a busy machine some tries are late; a link whose lateness
 * adds up is late in all. */
static uint64_t copies_least_ns(fixture *it, int count, uint64_t enough_ns)
{
    uint64_t least_ns = UINT64_MAX;
    for (int i = 0; i < 10 && least_ns > enough_ns; i++) {
        const uint64_t took_ns = copies_ns(it, count);
        least_ns = took_ns < least_ns ? took_ns : least_ns;
    }
    return least_ns;
}

static void link_carries_its_rate_each_way(void **state)
{
    tide_device_options options = options_small();
    options.link_bytes_per_second = 10.0 * CHUNK_BYTES; /* 100 ms per chunk */
    fixture it = fixture_open(&options);
    const uint64_t enough_ns = 590000000; /* with a link shared by both ways: 600 ms */
    assert_in_range(copies_least_ns(&it, 3, enough_ns), 299000000, enough_ns);
    const tide_device_statistics statistics = statistics_of(&it);
    /* Under load the first copy may begin late. */
    assert_true(statistics.busy_ns[TIDE_STREAM_IN] >= 200000000);
    fixture_close(&it);
}

/* The link's thread wakes up 5 ms late on average; each copy takes 10 ms. */
static void link_goes_on_while_its_sender_sleeps_in(void **state)
{
    tide_device_options options = options_small();
    options.link_bytes_per_second = 100.0 * CHUNK_BYTES;
    options.checks.delay_seed = 1;
    options.checks.delay_max_us = 10000;
    fixture it = fixture_open(&options);
    const uint64_t enough_ns = 500000000; /* if lateness added up: 600 ms */
    assert_in_range(copies_least_ns(&it, 40, enough_ns), 399000000, enough_ns);
    fixture_close(&it);
}

/* Returns the time from the gate's opening to the end of a copy of 50 ms that was enqueued 60 ms before
 * the opening. */
static uint64_t held_copy_ns(fixture *it, tide_stream gated)
{
    gate held = {0};
    tide_work work = work_of("copy", 0);
    assert_ok(launch_gate(it, gated, &held));
    assert_ok(it->ops->event_record(it->device, it->events[0], gated));
    assert_ok(it->ops->stream_wait(it->device, TIDE_STREAM_IN, it->events[0], SITE, 0));
    assert_ok(it->ops->copy_slot(it->device, TIDE_STREAM_IN, &work, TIDE_TIER_DEVICE, 0, 0, CHUNK_BYTES));
    nanosleep(&(struct timespec){.tv_nsec = 60000000}, NULL);
    uint64_t begin_ns = it->ops->now_ns(it->device);
    atomic_store(&held.open, true);
    it->ops->synchronize(it->device);
    return it->ops->now_ns(it->device) - begin_ns;
}

static void link_does_not_begin_what_a_wait_or_a_kernel_holds_back(void **state)
{
    tide_device_options options = options_small();
    options.link_bytes_per_second = 20.0 * CHUNK_BYTES;
    fixture it = fixture_open(&options);
    assert_in_range(held_copy_ns(&it, TIDE_STREAM_COMPUTE), 49000000, 10000000000);
    assert_in_range(held_copy_ns(&it, TIDE_STREAM_IN), 49000000, 10000000000);
    fixture_close(&it);
}

#endif

/* --- events --- */

static void wait_captures_the_latest_record_at_the_time_of_the_call(fixture *it)
{
    gate in = {0}, out = {0};
    atomic_int ran = 0;
    tide_event event = it->events[0];
    assert_ok(launch_gate(it, TIDE_STREAM_IN, &in));
    assert_ok(launch_gate(it, TIDE_STREAM_OUT, &out));
    assert_ok(it->ops->event_record(it->device, event, TIDE_STREAM_IN));
    assert_ok(it->ops->stream_wait(it->device, TIDE_STREAM_COMPUTE, event, SITE, 0));
    /* This record does not concern the wait. */
    assert_ok(it->ops->event_record(it->device, event, TIDE_STREAM_OUT));
    assert_ok(launch_count(it, TIDE_STREAM_COMPUTE, &ran));
    assert_ok(it->ops->event_record(it->device, it->events[1], TIDE_STREAM_COMPUTE));
    atomic_store(&in.open, true);
    assert_ok(it->ops->event_wait(it->device, it->events[1], SITE));
    assert_int_equal(atomic_load(&ran), 1);
    assert_false(is_done(it, event)); /* a query sees the new record, and the out stream is still held */
    atomic_store(&out.open, true);
    assert_ok(it->ops->event_wait(it->device, event, SITE));
}

enum { LINKS = 6 };

/* On one stream: gate 0, event 0, gate 1, event 1, and so on. Waiter i waits for event i and then opens
 * gate i + 1. */
typedef struct chain {
    fixture *it;
    gate gates[LINKS + 1];
} chain;

typedef struct chain_waiter {
    chain *chain;
    int link;
} chain_waiter;

static void *chain_waiter_main(void *argument)
{
    chain_waiter *waiter = argument;
    fixture *it = waiter->chain->it;
    assert_ok(it->ops->event_wait(it->device, it->events[waiter->link], SITE));
    atomic_store(&waiter->chain->gates[waiter->link + 1].open, true);
    return NULL;
}

static void whoever_waits_for_a_moment_wakes_at_it(fixture *it)
{
    static chain all;
    chain_waiter waiters[LINKS];
    pthread_t threads[LINKS];
    all = (chain){.it = it};
    for (int i = 0; i < LINKS; i++) {
        assert_ok(launch_gate(it, TIDE_STREAM_IN, &all.gates[i]));
        assert_ok(it->ops->event_record(it->device, it->events[i], TIDE_STREAM_IN));
    }
    for (int i = LINKS - 1; i >= 0; i--) { /* the waiter of the last event waits first */
        waiters[i] = (chain_waiter){&all, i};
        assert_int_equal(pthread_create(&threads[i], NULL, chain_waiter_main, &waiters[i]), 0);
        nanosleep(&(struct timespec){.tv_nsec = 5000000}, NULL);
    }
    atomic_store(&all.gates[0].open, true);
    for (int i = 0; i < LINKS; i++) {
        struct timespec deadline;
        clock_gettime(CLOCK_REALTIME, &deadline);
        deadline.tv_sec += 20;
        assert_int_equal(pthread_timedjoin_np(threads[i], NULL, &deadline), 0);
    }
}

static void wait_for_an_event_holds_the_stream(fixture *it)
{
    gate in = {0};
    atomic_int ran = 0;
    assert_ok(launch_gate(it, TIDE_STREAM_IN, &in));
    assert_ok(it->ops->event_record(it->device, it->events[0], TIDE_STREAM_IN));
    assert_ok(it->ops->stream_wait(it->device, TIDE_STREAM_COMPUTE, it->events[0], OTHER_SITE, 0));
    assert_ok(launch_count(it, TIDE_STREAM_COMPUTE, &ran));
    nanosleep(&(struct timespec){.tv_nsec = 30000000}, NULL);
    assert_int_equal(atomic_load(&ran), 0);
    atomic_store(&in.open, true);
    it->ops->synchronize(it->device);
    assert_int_equal(atomic_load(&ran), 1);
    const tide_device_statistics statistics = statistics_of(it);
    assert_true(statistics.wait_ns[TIDE_STREAM_COMPUTE] > 0);
    assert_int_equal(statistics.wait_ns[TIDE_STREAM_IN], 0);
    assert_int_equal(statistics.waits[OTHER_SITE], 1);
    assert_int_equal(statistics.waits[SITE], 0);
}

static void event_never_recorded_means_no_wait(fixture *it)
{
    atomic_int ran = 0;
    assert_true(is_done(it, it->events[3]));
    assert_ok(it->ops->event_wait(it->device, it->events[3], SITE));
    assert_ok(it->ops->stream_wait(it->device, TIDE_STREAM_OUT, it->events[3], SITE, 0));
    assert_ok(launch_count(it, TIDE_STREAM_OUT, &ran));
    it->ops->synchronize(it->device);
    assert_int_equal(atomic_load(&ran), 1);
}

static void no_stream_waits_for_the_host_executor(fixture *it)
{
    atomic_int ran = 0;
    assert_ok(launch_count(it, TIDE_STREAM_HOST, &ran));
    assert_ok(it->ops->event_record(it->device, it->events[0], TIDE_STREAM_HOST));
    assert_int_equal(it->ops->stream_wait(it->device, TIDE_STREAM_IN, it->events[0], SITE, 0),
                     TIDE_ERROR_ARGUMENT);
    assert_int_equal(it->ops->stream_wait(it->device, TIDE_STREAM_HOST, it->events[1], SITE, 0),
                     TIDE_ERROR_ARGUMENT);
    assert_ok(it->ops->event_wait(it->device, it->events[0], SITE));
    assert_int_equal(atomic_load(&ran), 1);
}

static void waits_name_a_site_and_an_event_that_exist(fixture *it)
{
    bool done;
    assert_int_equal(it->ops->stream_wait(it->device, TIDE_STREAM_IN, it->events[0], 0, 0),
                     TIDE_ERROR_ARGUMENT);
    assert_int_equal(it->ops->event_query(it->device, it->events[0], TIDE_WAIT_SITE_COUNT, &done),
                     TIDE_ERROR_ARGUMENT);
    assert_int_equal(it->ops->event_wait(it->device, 0, SITE), TIDE_ERROR_ARGUMENT);
    assert_int_equal(it->ops->event_record(it->device, 99, TIDE_STREAM_IN), TIDE_ERROR_ARGUMENT);
}

/* --- sleep --- */

static void *ring_main(void *argument)
{
    fixture *it = argument;
    nanosleep(&(struct timespec){.tv_nsec = 20000000}, NULL);
    it->ops->ring(it->device);
    return NULL;
}

static void park_ends_with_a_ring_a_completion_or_at_once(fixture *it)
{
    pthread_t thread;
    uint64_t ticket = it->ops->doorbell(it->device);
    assert_int_equal(pthread_create(&thread, NULL, ring_main, it), 0);
    assert_ok(it->ops->park(it->device, ticket, true));
    assert_int_equal(pthread_join(thread, NULL), 0);
    /* The thread has rung the doorbell since the ticket was taken, so park returns at once. */
    assert_ok(it->ops->park(it->device, ticket, true));

    atomic_int ran = 0;
    ticket = it->ops->doorbell(it->device);
    assert_ok(launch_count(it, TIDE_STREAM_IN, &ran));
    assert_ok(it->ops->event_record(it->device, it->events[0], TIDE_STREAM_IN));
    assert_ok(it->ops->park(it->device, ticket, true));
    assert_int_equal(atomic_load(&ran), 1);

    ticket = it->ops->doorbell(it->device); /* the event below is complete as soon as it is recorded */
    assert_ok(it->ops->event_record(it->device, it->events[1], TIDE_STREAM_OUT));
    assert_ok(it->ops->park(it->device, ticket, true));
}

static tide_status failing_kernel_work(const int *unused)
{
    return TIDE_ERROR_INTERNAL;
}
TEST_KERNEL(failing_kernel, int)

typedef struct sleeper {
    fixture *it;
    uint64_t ticket;
    tide_status status;
    atomic_bool woken;
} sleeper;

static void *sleep_until_rung(void *argument)
{
    sleeper *me = argument;
    me->status = me->it->ops->park(me->it->device, me->ticket, false);
    me->woken = true;
    return NULL;
}

static sleeper sleeper_of(fixture *it)
{
    return (sleeper){.it = it, .ticket = it->ops->doorbell(it->device), .status = TIDE_ERROR_INTERNAL};
}

static void who_parks_without_events_is_woken_by_rings_and_failures_alone(fixture *it)
{
    pthread_t thread;
    atomic_int ran = 0;
    sleeper me = sleeper_of(it);
    assert_int_equal(pthread_create(&thread, NULL, sleep_until_rung, &me), 0);
    for (int i = 0; i < 50; i++) {
        assert_ok(launch_count(it, TIDE_STREAM_IN, &ran));
        assert_ok(it->ops->event_record(it->device, it->events[0], TIDE_STREAM_IN));
        assert_ok(it->ops->event_wait(it->device, it->events[0], SITE));
        assert_false(me.woken);
    }
    it->ops->ring(it->device);
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_ok(me.status);

    sleeper other = sleeper_of(it);
    assert_int_equal(pthread_create(&thread, NULL, sleep_until_rung, &other), 0);
    const tide_work work = work_of("fails", 0);
    const int unused = 0;
    const tide_status launched =
        it->ops->launch(it->device, TIDE_STREAM_COMPUTE, &work, failing_kernel, &unused, sizeof unused);
    /* On a GPU the launch may return the failure. */
    assert_true(launched == TIDE_OK || it->device->ops->kind[0] == 'c');
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_ok(other.status);
    assert_int_not_equal(it->ops->failure(it->device), TIDE_OK);
}

/* --- observer --- */

typedef struct seen {
    atomic_int kernels, waits;
} seen;

static void observer(void *context, const tide_observed *command)
{
    seen *it = context;
    assert_true(command->begin_ns <= command->end_ns);
    if (command->stream == TIDE_STREAM_COMPUTE && strcmp(command->label, "count") == 0)
        atomic_fetch_add(&it->kernels, 1);
    if (command->stream == TIDE_STREAM_COMPUTE && strcmp(command->label, "wait") == 0 &&
        command->tag == OTHER_SITE)
        atomic_fetch_add(&it->waits, 1);
}

static void observer_sees_commands_and_waits(void **state)
{
    seen observed = {0};
    gate hold = {0};
    atomic_int ran = 0;
    tide_device_options options = options_small();
    options.observer = observer;
    options.observer_context = &observed;
    fixture it = fixture_open(&options);
    assert_ok(launch_gate(&it, TIDE_STREAM_IN, &hold));
    assert_ok(it.ops->event_record(it.device, it.events[0], TIDE_STREAM_IN));
    assert_ok(it.ops->stream_wait(it.device, TIDE_STREAM_COMPUTE, it.events[0], OTHER_SITE, 0));
    assert_ok(launch_count(&it, TIDE_STREAM_COMPUTE, &ran));
    atomic_store(&hold.open, true);
    it.ops->synchronize(it.device);
    assert_int_equal(atomic_load(&observed.kernels), 1);
    assert_int_equal(atomic_load(&observed.waits), 1);
    fixture_close(&it);
}

/* --- results do not depend on timing --- */

/* Fetches a chunk into a slot, computes on it at its place and enqueues its eviction. Two slots take
 * turns, so fetches run ahead of the computation. Every wait is for an event of one chunk. */
static void chunk_round(fixture *it, uint32_t round)
{
    uint32_t slot = round % 2, host_slot = round % 3, chunk = round % RANGE_CHUNKS;
    tide_event fetched = it->events[slot], used = it->events[2 + slot], evicted = it->events[4 + slot];
    tide_access access = tide_writes(TIDE_OBJECT_DEVICE_SLOT, slot);
    tide_work fetch = work_of("fetch", chunk), evict = work_of("evict", chunk);
    tide_work compute = work_on("compute", chunk, &access);
    store_arguments mix = {(int *)(void *)place(it, chunk), (int)round};
    if (round >= 2) { /* two rounds before, an eviction ended the last use of the slot */
        assert_ok(it->ops->event_wait(it->device, evicted, SITE));
        assert_ok(it->ops->unmap(it->device, slot, place(it, (round - 2) % RANGE_CHUNKS)));
    }
    assert_ok(it->ops->map(it->device, slot, place(it, chunk)));
    for (uint32_t other = 0; other < 2; other++) /* an eviction wrote the host slot last */
        assert_ok(it->ops->stream_wait(it->device, TIDE_STREAM_IN, it->events[4 + other], OTHER_SITE, 0));
    assert_ok(it->ops->copy_slot(it->device, TIDE_STREAM_IN, &fetch, TIDE_TIER_DEVICE, slot, host_slot,
                                 CHUNK_BYTES));
    assert_ok(it->ops->event_record(it->device, fetched, TIDE_STREAM_IN));
    assert_ok(it->ops->stream_wait(it->device, TIDE_STREAM_COMPUTE, fetched, OTHER_SITE, 0));
    assert_ok(it->ops->launch(it->device, TIDE_STREAM_COMPUTE, &compute, mix_kernel, &mix, sizeof mix));
    assert_ok(it->ops->event_record(it->device, used, TIDE_STREAM_COMPUTE));
    assert_ok(it->ops->stream_wait(it->device, TIDE_STREAM_OUT, used, OTHER_SITE, 0));
    assert_ok(it->ops->copy_slot(it->device, TIDE_STREAM_OUT, &evict, TIDE_TIER_HOST, (host_slot + 1) % 3,
                                 slot, CHUNK_BYTES));
    assert_ok(it->ops->event_record(it->device, evicted, TIDE_STREAM_OUT));
}

static unsigned rounds_run(uint64_t delay_seed, uint32_t delay_max_us)
{
    tide_device_options options = options_small();
#ifdef TEST_ON_CUDA
    fake_cudart_options gpu = fake_cudart_defaults();
    gpu.delay_seed = delay_seed;
    gpu.delay_max_us = delay_max_us;
    fake_cudart_start(&gpu);
#else
    options.checks.delay_seed = delay_seed;
    options.checks.delay_max_us = delay_max_us;
#endif
    fixture it = fixture_open(&options);
    for (uint32_t slot = 0; slot < 3; slot++)
        memset(own(&it, TIDE_TIER_HOST, slot), 0, CHUNK_BYTES);
    for (uint32_t round = 0; round < 40; round++)
        chunk_round(&it, round);
    it.ops->synchronize(it.device);
    unsigned result = 0;
    for (uint32_t slot = 0; slot < 3; slot++) {
        int value;
        memcpy(&value, own(&it, TIDE_TIER_HOST, slot), sizeof value);
        result = result * 31 + (unsigned)value;
    }
    fixture_close(&it);
    return result;
}

static void delays_change_nothing_in_results(void **state)
{
    unsigned expected = rounds_run(0, 0);
    assert_int_not_equal(expected, 0);
    for (uint64_t seed = 1; seed <= 6; seed++)
        assert_int_equal(rounds_run(seed, 300), expected);
}

static void steady_state_allocates_nothing(void **state)
{
    if (!interpose_active()) {
        print_message(INTERPOSE_SKIPPED);
        skip();
    }
    fixture it = fixture_small();
    for (uint32_t round = 0; round < 10; round++)
        chunk_round(&it, round);
    tide_memory_usage before, after;
    it.ops->usage(it.device, TIDE_TIER_DEVICE, &before);
    interpose_arm();
    for (uint32_t round = 10; round < 200; round++)
        chunk_round(&it, round);
    it.ops->synchronize(it.device);
    interpose_disarm();
    interpose_counts counts = interpose_read();
    it.ops->usage(it.device, TIDE_TIER_DEVICE, &after);
    assert_int_equal(counts.allocations, 0);
    assert_int_equal(counts.new_maps, 0);
#ifdef TEST_ON_CUDA
    const unsigned calls = 0;
#else
    /* Calls of mmap and mremap per round. */
    const unsigned calls = tide_host_device_of(it.device)->memory.moves ? 3 : 2;
#endif
    assert_int_equal(counts.fixed_maps, calls * 190);
    assert_int_equal(before.allocations, after.allocations);
    fixture_close(&it);
}

#ifndef TEST_ON_CUDA
/* --- the system's limit of mappings --- */

enum { PAGE = 4096, PAGES_MAX = 400000 };

static long mappings_allowed(void)
{
    long allowed = 0;
    FILE *file = fopen("/proc/sys/vm/max_map_count", "r");
    if (file != NULL && fscanf(file, "%ld", &allowed) != 1)
        allowed = 0;
    if (file != NULL)
        fclose(file);
    return allowed;
}

/* Makes mappings until the system allows no more. */
static char *fill_mappings(void)
{
    char *all =
        mmap(NULL, (size_t)PAGES_MAX * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    size_t page = 1;
    assert_true(all != MAP_FAILED);
    while (page < PAGES_MAX && mprotect(all + page * PAGE, PAGE, PROT_READ) == 0)
        page += 2;
    assert_true(page < PAGES_MAX);
    return all;
}

static void at_the_limit_of_mappings_a_call_may_fail_and_nothing_is_lost(void **state)
{
    const long allowed = mappings_allowed();
    if (!interpose_active() || allowed <= 0 || allowed > PAGES_MAX / 4) {
        print_message("skipped: a sanitizer needs mappings of its own, or the limit (%ld) is far\n", allowed);
        skip();
    }
    fixture it = fixture_small();
    assert_ok(it.ops->map(it.device, 0, place(&it, 0)));
    memset(place(&it, 0), 7, CHUNK_BYTES);
    char *all = fill_mappings();
    const tide_status unmapped = it.ops->unmap(it.device, 0, place(&it, 0));
    const tide_status mapped = it.ops->map(it.device, 1, place(&it, 2));
    const tide_status failure = it.ops->failure(it.device);
    assert_int_equal(munmap(all, (size_t)PAGES_MAX * PAGE), 0);
    assert_true(unmapped == TIDE_OK || unmapped == TIDE_ERROR_NO_MEMORY);
    assert_true(mapped == TIDE_OK || mapped == TIDE_ERROR_NO_MEMORY);
    assert_ok(failure);
    if (unmapped != TIDE_OK)
        assert_ok(it.ops->unmap(it.device, 0, place(&it, 0)));
    if (mapped != TIDE_OK)
        assert_ok(it.ops->map(it.device, 1, place(&it, 2)));
    assert_int_equal(own(&it, TIDE_TIER_DEVICE, 0)[CHUNK_BYTES - 1], 7);
    assert_ok(it.ops->map(it.device, 0, place(&it, 1)));
    assert_int_equal(place(&it, 1)[CHUNK_BYTES - 1], 7);
    fixture_close(&it);
}

#endif

/* --- many threads --- */

enum { CLIENTS = 3, CLIENT_ROUNDS = 200 };

typedef struct client {
    fixture *it;
    tide_stream stream;
    atomic_int ran;
} client;

static void *client_main(void *argument)
{
    client *me = argument;
    fixture *it = me->it;
    tide_event event = it->events[me->stream];
    for (int round = 0; round < CLIENT_ROUNDS; round++) {
        bool done = false;
        tide_status status = launch_count(it, me->stream, &me->ran);
        if (status == TIDE_OK)
            status = it->ops->event_record(it->device, event, me->stream);
        while (status == TIDE_OK && !done) {
            uint64_t ticket = it->ops->doorbell(it->device);
            status = it->ops->event_query(it->device, event, SITE, &done);
            if (status == TIDE_OK && !done)
                status = it->ops->park(it->device, ticket, true);
        }
        if (status != TIDE_OK)
            return me;
    }
    return NULL;
}

static void operations_may_be_called_from_any_thread(void **state)
{
    tide_device_options options = options_small();
#ifndef TEST_ON_CUDA
    options.checks.delay_seed = 11;
    options.checks.delay_max_us = 20;
#endif
    fixture it = fixture_open(&options);
    client clients[CLIENTS] = {
        {&it, TIDE_STREAM_COMPUTE, 0}, {&it, TIDE_STREAM_IN, 0}, {&it, TIDE_STREAM_HOST, 0}};
    pthread_t threads[CLIENTS];
    for (int i = 0; i < CLIENTS; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, client_main, &clients[i]), 0);
    for (int i = 0; i < CLIENTS; i++) {
        void *failed;
        assert_int_equal(pthread_join(threads[i], &failed), 0);
        assert_null(failed);
        assert_int_equal(atomic_load(&clients[i].ran), CLIENT_ROUNDS);
    }
    fixture_close(&it);
}

#if defined(_OPENMP) && !defined(TEST_ON_CUDA)
static tide_status threads_kernel(void *stream, const void *arguments)
{
    **(int *const *)arguments = omp_get_max_threads();
    return TIDE_OK;
}

static void kernels_get_the_number_of_threads_that_was_asked_for(void **state)
{
    tide_device_options options = options_small();
    options.threads = 3;
    fixture it = fixture_open(&options);
    int counts[TIDE_STREAM_COUNT] = {0};
    for (int i = 0; i < TIDE_STREAM_COUNT; i++) {
        tide_work work = work_of("threads", 0);
        int *count = &counts[i];
        assert_ok(it.ops->launch(it.device, (tide_stream)i, &work, threads_kernel, &count, sizeof count));
    }
    it.ops->synchronize(it.device);
    for (int i = 0; i < TIDE_STREAM_COUNT; i++)
        assert_int_equal(counts[i], 3);
    fixture_close(&it);
}
#endif

static void *exempt_main(void *argument)
{
    interpose_exempt("metrics writer");
    interpose_arm();
    void *volatile kept = malloc(100);
    free(kept);
    *(interpose_counts *)argument = interpose_read();
    interpose_disarm();
    return NULL;
}

static void interposer_counts_all_threads_but_the_exempt(void **state)
{
    if (!interpose_active()) {
        print_message(INTERPOSE_SKIPPED);
        skip();
    }
    pthread_t thread;
    const char *name;
    void *volatile kept; /* volatile keeps the compiler from removing malloc and free */
    interpose_arm();
    kept = malloc(100);
    interpose_counts one = interpose_read(), none = {.allocations = 1};
    free(kept);
    interpose_disarm();
    assert_int_equal(one.allocations, 1);
    assert_int_equal(one.live, 1);
    assert_int_equal(pthread_create(&thread, NULL, exempt_main, &none), 0);
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_int_equal(none.allocations, 0);
    assert_int_equal(interpose_exemptions(&name), 1);
    assert_string_equal(name, "metrics writer");
}

static void closing_waits_for_all_commands(void **state)
{
    fixture it = fixture_small();
    atomic_int ran = 0;
    for (int i = 0; i < 100; i++)
        assert_ok(launch_count(&it, (tide_stream)(i % TIDE_STREAM_COUNT), &ran));
    const tide_device_ops *ops = it.ops;
    ops->close(it.device);
    assert_int_equal(atomic_load(&ran), 100);
    ops->close(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(options_out_of_range_are_refused),
        device_test(both_budgets_can_be_filled_to_the_last_byte),
        cmocka_unit_test(one_byte_or_slot_over_budget_is_refused_and_leaves_no_trace),
        device_test(what_exists_once_cannot_be_made_twice),
        cmocka_unit_test(memory_the_machine_does_not_have_is_refused_before_it_is_touched),
        device_test(memory_begins_aligned_and_zeroed),
        device_test(ranges_are_whole_chunks_and_parts_lie_inside_the_region),
        device_test(slot_has_one_content_at_its_own_place_and_the_chunks),
        device_test(misplacing_is_refused),
        device_test(a_placing_and_a_taking_away_are_counted_once_a_refused_one_is_not),
        cmocka_unit_test(a_lost_place_fails_the_device_for_good),
#ifndef TEST_ON_CUDA
        cmocka_unit_test(a_slot_goes_from_place_to_place_in_one_call),
        device_test(a_slot_that_cannot_go_elsewhere_stays),
#endif
#ifndef TEST_ON_CUDA
        device_test(guard_of_a_mapping_that_is_gone_leaves_the_next_one_alone),
#endif
        device_test(launch_returns_before_its_kernel_has_started),
        device_test(arguments_are_copied_and_aligned),
        device_test(launches_that_cannot_be_meant_are_refused),
        device_test(commands_of_a_stream_run_in_order),
        device_test(full_ring_makes_the_caller_wait_and_goes_on),
        cmocka_unit_test(capacity_is_told_and_waited_for),
        device_test(copies_move_the_first_bytes_of_a_slot_both_ways),
        device_test(copies_outside_slots_region_and_buffers_are_refused),
#ifndef TEST_ON_CUDA
        cmocka_unit_test(link_carries_its_rate_each_way),
        cmocka_unit_test(link_goes_on_while_its_sender_sleeps_in),
        cmocka_unit_test(link_does_not_begin_what_a_wait_or_a_kernel_holds_back),
#endif
        device_test(wait_captures_the_latest_record_at_the_time_of_the_call),
        device_test(whoever_waits_for_a_moment_wakes_at_it),
        device_test(wait_for_an_event_holds_the_stream),
        device_test(event_never_recorded_means_no_wait),
        device_test(no_stream_waits_for_the_host_executor),
        device_test(waits_name_a_site_and_an_event_that_exist),
        device_test(park_ends_with_a_ring_a_completion_or_at_once),
        device_test(who_parks_without_events_is_woken_by_rings_and_failures_alone),
        cmocka_unit_test(observer_sees_commands_and_waits),
        cmocka_unit_test(delays_change_nothing_in_results),
        cmocka_unit_test(steady_state_allocates_nothing),
#ifndef TEST_ON_CUDA
        cmocka_unit_test(at_the_limit_of_mappings_a_call_may_fail_and_nothing_is_lost),
#endif
        cmocka_unit_test(operations_may_be_called_from_any_thread),
#if defined(_OPENMP) && !defined(TEST_ON_CUDA)
        cmocka_unit_test(kernels_get_the_number_of_threads_that_was_asked_for),
#endif
        cmocka_unit_test(interposer_counts_all_threads_but_the_exempt),
        cmocka_unit_test(closing_waits_for_all_commands),
    };
#ifdef TEST_ON_CUDA
    return cmocka_run_group_tests_name("CUDA device as a device", tests, NULL, NULL);
#else
    return cmocka_run_group_tests_name("host device", tests, NULL, NULL);
#endif
}
