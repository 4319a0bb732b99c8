/* The CUDA device with the GPU's own kernels: tests of everything that must work on a GPU before it trains
 * a model. test_cuda_device.c tests the device alone, on the fake runtime; test_kernels_*.c test the
 * kernels alone.
 *
 * The same code runs on a GPU (suite gpu) and on the fake runtime with emulated kernels. So the CPU never
 * follows a device address, and only the host executor runs plain functions in a kernel's place. A read
 * that comes too late or too early gives wrong numbers, because a chain of kernels takes milliseconds, or
 * because the fake delays commands. Stale address translations on the GPU give wrong numbers, because the
 * tests map places anew while kernels run. */
#include "tests/gpu/test_gpu_cases.h"
#include "tests/gpu/test_gpu_fixture.h"

#include <pthread.h>

/* --- chunks --- */

enum { FEW_SLOTS = 3, PASSES = 3 };

/* Fetches a chunk, adds one to each of its numbers at the chunk's place, and evicts it; the slot's event
 * follows. */
static void chunk_visit(fixture *it, uint32_t slot, uint32_t chunk)
{
    const tide_add_args add = fixture_add_ones(it, fixture_place(it, chunk));
    assert_ok(it->ops->map(it->device, slot, fixture_place(it, chunk)));
    fixture_fetch(it, TIDE_STREAM_IN, slot, chunk % HOST_SLOTS);
    fixture_order(it, FEW_SLOTS + (int)slot, TIDE_STREAM_IN, TIDE_STREAM_COMPUTE);
    fixture_launch(it, TIDE_STREAM_COMPUTE, tide_kernels_cuda()->add, &add, sizeof add);
    fixture_order(it, 2 * FEW_SLOTS + (int)slot, TIDE_STREAM_COMPUTE, TIDE_STREAM_OUT);
    fixture_evict(it, TIDE_STREAM_OUT, chunk % HOST_SLOTS, slot);
    fixture_record(it, (int)slot, TIDE_STREAM_OUT);
}

static void chunk_leave(fixture *it, uint32_t slot, uint32_t chunk)
{
    fixture_wait(it, (int)slot);
    assert_ok(it->ops->unmap(it->device, slot, fixture_place(it, chunk)));
}

static void chunks_pass_through_few_slots_and_each_meets_its_kernel_at_its_place(fixture *it)
{
    fixture_make_ones(it);
    for (uint32_t chunk = 0; chunk < HOST_SLOTS; chunk++)
        fixture_host_fill(it, chunk, 1000.0f * (float)chunk);
    for (uint32_t i = 0; i < PASSES * RANGE_CHUNKS; i++) {
        if (i >= FEW_SLOTS)
            chunk_leave(it, i % FEW_SLOTS, (i - FEW_SLOTS) % RANGE_CHUNKS);
        chunk_visit(it, i % FEW_SLOTS, i % RANGE_CHUNKS);
    }
    it->ops->synchronize(it->device);
    for (uint32_t chunk = 0; chunk < HOST_SLOTS; chunk++)
        fixture_host_expect(it, chunk, 1000.0f * (float)chunk, PASSES * RANGE_CHUNKS / HOST_SLOTS);
}

static void place_that_is_mapped_anew_shows_the_new_chunk(fixture *it)
{
    enum { ROUNDS = 100, PLACE = 3 };
    const tide_work work = {.label = "look"};
    const tide_copy_args copy = {fixture_place(it, PLACE), it->region, 4096};
    for (uint32_t slot = 0; slot < DEVICE_SLOTS; slot++) {
        fixture_host_fill(it, slot, 1000.0f * (float)(slot + 1));
        fixture_fetch(it, TIDE_STREAM_COMPUTE, slot, slot);
    }
    for (uint32_t round = 0; round < ROUNDS; round++) {
        const uint32_t slot = round * 5 % DEVICE_SLOTS;
        assert_ok(it->ops->map(it->device, slot, fixture_place(it, PLACE)));
        fixture_launch(it, TIDE_STREAM_COMPUTE, tide_kernels_cuda()->copy, &copy, sizeof copy);
        assert_ok(
            it->ops->copy_bytes(it->device, TIDE_STREAM_COMPUTE, &work, it->buffer, it->region, 4096, false));
        fixture_record(it, 0, TIDE_STREAM_COMPUTE);
        fixture_wait(it, 0);
        assert_memory_equal(it->buffer, fixture_host(it, slot), 4096);
        assert_ok(it->ops->unmap(it->device, slot, fixture_place(it, PLACE)));
    }
}

static void chunks_are_mapped_and_unmapped_while_kernels_run_on_others(fixture *it)
{
    enum { ROUNDS = 48, OTHERS = 3 };
    fixture_make_ones(it);
    const chain busy = fixture_chain(it, fixture_place(it, 0));
    for (uint32_t slot = 0; slot <= OTHERS; slot++) {
        fixture_host_fill(it, slot, 100.0f * (float)slot);
        fixture_fetch(it, slot == 0 ? TIDE_STREAM_COMPUTE : TIDE_STREAM_UPDATE, slot, slot);
    }
    assert_ok(it->ops->map(it->device, 0, fixture_place(it, 0)));
    fixture_launch(it, TIDE_STREAM_COMPUTE, chain_kernel, &busy, sizeof busy);
    for (uint32_t round = 0; round < ROUNDS; round++) {
        const uint32_t slot = 1 + round % OTHERS, chunk = 1 + round % (RANGE_CHUNKS - 1);
        const tide_add_args add = fixture_add_ones(it, fixture_place(it, chunk));
        assert_ok(it->ops->map(it->device, slot, fixture_place(it, chunk)));
        fixture_launch(it, TIDE_STREAM_UPDATE, tide_kernels_cuda()->add, &add, sizeof add);
        fixture_record(it, 1, TIDE_STREAM_UPDATE);
        fixture_wait(it, 1);
        assert_ok(it->ops->unmap(it->device, slot, fixture_place(it, chunk)));
    }
    for (uint32_t slot = 0; slot <= OTHERS; slot++)
        fixture_evict(it, slot == 0 ? TIDE_STREAM_COMPUTE : TIDE_STREAM_UPDATE, slot, slot);
    it->ops->synchronize(it->device);
    fixture_host_expect(it, 0, 0.0f, CHAIN_LAUNCHES);
    for (uint32_t slot = 1; slot <= OTHERS; slot++)
        fixture_host_expect(it, slot, 100.0f * (float)slot, ROUNDS / OTHERS);
}

/* --- order --- */

/* The copies and the chain of kernels wait for each other in turn; a command that begins too early gets
 * another round's numbers. */
static void stream_that_waits_for_an_event_sees_all_that_was_before_it(fixture *it)
{
    enum { ROUNDS = 4 };
    fixture_make_ones(it);
    assert_ok(it->ops->map(it->device, 2, fixture_place(it, 5)));
    const chain busy = fixture_chain(it, fixture_place(it, 5));
    fixture_host_fill(it, 0, 1.0f);
    fixture_fetch(it, TIDE_STREAM_IN, 2, 0);
    for (uint32_t round = 0; round < ROUNDS; round++) {
        fixture_order(it, 0, TIDE_STREAM_IN, TIDE_STREAM_COMPUTE);
        fixture_launch(it, TIDE_STREAM_COMPUTE, chain_kernel, &busy, sizeof busy);
        fixture_order(it, 1, TIDE_STREAM_COMPUTE, TIDE_STREAM_OUT);
        fixture_evict(it, TIDE_STREAM_OUT, 1 + round, 2);
        fixture_order(it, 2, TIDE_STREAM_OUT, TIDE_STREAM_IN);
        fixture_fetch(it, TIDE_STREAM_IN, 2, 1 + round);
    }
    it->ops->synchronize(it->device);
    for (uint32_t round = 0; round < ROUNDS; round++)
        fixture_host_expect(it, 1 + round, 1.0f, (float)((round + 1) * CHAIN_LAUNCHES));
}

typedef struct executor_step {
    float *numbers;
    float factor, term;
} executor_step;

static tide_status executor_step_run(void *stream, const void *arguments)
{
    const executor_step *it = arguments;
    assert_null(stream);
    for (int i = 0; i < CHUNK_FLOATS; i++)
        it->numbers[i] = it->factor * it->numbers[i] + it->term;
    return TIDE_OK;
}

static void functions_of_the_host_executor_run_in_order_between_copies(fixture *it)
{
    fixture_make_ones(it);
    const chain busy = fixture_chain(it, it->ops->slot_address(it->device, TIDE_TIER_DEVICE, 0));
    const executor_step twice = {fixture_host(it, 1), 2.0f, 0.0f}, less = {fixture_host(it, 1), 1.0f, -8.0f},
                        half = {fixture_host(it, 1), 0.5f, 0.0f};
    fixture_host_fill(it, 0, 0.0f);
    fixture_fetch(it, TIDE_STREAM_COMPUTE, 0, 0);
    fixture_launch(it, TIDE_STREAM_COMPUTE, chain_kernel, &busy, sizeof busy);
    fixture_evict(it, TIDE_STREAM_COMPUTE, 1, 0);
    fixture_record(it, 0, TIDE_STREAM_COMPUTE);
    /* No stream can wait for the host executor, nor the executor for a stream: this thread waits. */
    fixture_wait(it, 0);
    fixture_launch(it, TIDE_STREAM_HOST, executor_step_run, &twice, sizeof twice);
    fixture_launch(it, TIDE_STREAM_HOST, executor_step_run, &less, sizeof less);
    fixture_launch(it, TIDE_STREAM_HOST, executor_step_run, &half, sizeof half);
    fixture_record(it, 1, TIDE_STREAM_HOST);
    fixture_wait(it, 1);
    fixture_fetch(it, TIDE_STREAM_IN, 3, 1);
    fixture_order(it, 2, TIDE_STREAM_IN, TIDE_STREAM_OUT);
    fixture_evict(it, TIDE_STREAM_OUT, 2, 3);
    it->ops->synchronize(it->device);
    fixture_host_expect(it, 2, -4.0f, CHAIN_LAUNCHES);
}

static void park_wakes_when_an_event_passes(fixture *it)
{
    fixture_make_ones(it);
    const chain busy = fixture_chain(it, it->ops->slot_address(it->device, TIDE_TIER_DEVICE, 0));
    for (int round = 0; round < 5; round++) {
        bool done = false;
        fixture_launch(it, TIDE_STREAM_COMPUTE, chain_kernel, &busy, sizeof busy);
        fixture_record(it, 0, TIDE_STREAM_COMPUTE);
        while (!done) {
            const uint64_t ticket = it->ops->doorbell(it->device);
            assert_ok(it->ops->event_query(it->device, it->events[0], SITE, &done));
            if (!done)
                assert_ok(it->ops->park(it->device, ticket, true));
        }
    }
}

/* --- the region and the buffers --- */

/* Writes to GPU memory and frees it again, so that the region may be made of memory that is not zero. */
static void gpu_make_dirty(void)
{
    void *dirty;
    assert_int_equal(cudaMalloc(&dirty, 4 * REGION_BYTES), cudaSuccess);
    assert_int_equal(cudaMemset(dirty, 0xa5, 4 * REGION_BYTES), cudaSuccess);
    assert_int_equal(cudaDeviceSynchronize(), cudaSuccess);
    assert_int_equal(cudaFree(dirty), cudaSuccess);
}

static void region_is_zero_when_it_is_given(void **state)
{
    const tide_device_options options = fixture_options();
    const tide_work work = {.label = "look"};
    gpu_make_dirty();
    fixture it = fixture_open(&options);
    for (size_t at = 0; at < REGION_BYTES; at += BUFFER_BYTES) {
        memset(it.buffer, 0xff, BUFFER_BYTES);
        assert_ok(it.ops->copy_bytes(it.device, TIDE_STREAM_OUT, &work, it.buffer, it.region + at,
                                     BUFFER_BYTES, false));
        fixture_record(&it, 0, TIDE_STREAM_OUT);
        fixture_wait(&it, 0);
        for (size_t i = 0; i < BUFFER_BYTES; i++)
            if (it.buffer[i] != 0)
                fail_msg("byte %zu of the region is %d", at + i, it.buffer[i]);
    }
    fixture_close(&it);
}

static void bytes_of_a_buffer_reach_the_region_and_return(fixture *it)
{
    const struct {
        size_t from, to, bytes;
    } cases[] = {{0, 0, 1}, {3, 1, 5}, {7, 256, 4095}, {1, 77, 100001}};
    const tide_work work = {.label = "bytes"};
    char *half = it->buffer + BUFFER_BYTES / 2;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const tide_copy_args copy = {it->region + cases[i].to, it->region + CHUNK_BYTES + cases[i].from,
                                     cases[i].bytes};
        for (int b = 0; b < BUFFER_BYTES / 2; b++)
            it->buffer[b] = (char)(unsigned char)(7 * b + 1);
        memset(half, 0, BUFFER_BYTES / 2);
        assert_ok(it->ops->copy_bytes(it->device, TIDE_STREAM_COMPUTE, &work, it->region + cases[i].to,
                                      it->buffer + cases[i].from, cases[i].bytes, true));
        fixture_launch(it, TIDE_STREAM_COMPUTE, tide_kernels_cuda()->copy, &copy, sizeof copy);
        assert_ok(it->ops->copy_bytes(it->device, TIDE_STREAM_COMPUTE, &work, half,
                                      it->region + CHUNK_BYTES + cases[i].from, cases[i].bytes, false));
        it->ops->synchronize(it->device);
        assert_memory_equal(half, it->buffer + cases[i].from, cases[i].bytes);
        assert_int_equal(half[cases[i].bytes], 0);
    }
}

/* --- steady state --- */

static uint64_t gpu_free_bytes(void)
{
    size_t free_bytes, total_bytes;
    assert_int_equal(cudaMemGetInfo(&free_bytes, &total_bytes), cudaSuccess);
    return free_bytes;
}

/* Other processes may use the GPU at the same time, so its free memory may shrink by the size of up to
 * GRANTED slots. A leak of a slot in each round would shrink it by more. */
static void steady_state_allocates_nothing(fixture *it)
{
    enum { ROUNDS = 60, GRANTED = 16 };
    tide_memory_usage before[TIDE_TIER_COUNT], after[TIDE_TIER_COUNT];
    fixture_make_ones(it);
    chunk_visit(it, 0, 0);
    chunk_leave(it, 0, 0);
    const uint64_t free_bytes = gpu_free_bytes();
    for (tide_tier tier = 0; tier < TIDE_TIER_COUNT; tier++)
        it->ops->usage(it->device, tier, &before[tier]);
    for (uint32_t round = 0; round < ROUNDS; round++) {
        chunk_visit(it, round % FEW_SLOTS, round % RANGE_CHUNKS);
        chunk_leave(it, round % FEW_SLOTS, round % RANGE_CHUNKS);
    }
    for (tide_tier tier = 0; tier < TIDE_TIER_COUNT; tier++) {
        it->ops->usage(it->device, tier, &after[tier]);
        assert_int_equal(after[tier].allocations, before[tier].allocations);
        assert_int_equal(after[tier].used_bytes, after[tier].budget_bytes);
    }
    assert_true(gpu_free_bytes() + GRANTED * (uint64_t)CHUNK_BYTES >= free_bytes);
}

/* --- times --- */

enum { CHAINS = 6, SPANS_MAX = 64 };
#ifdef TEST_CUDA_ON_CPU
enum { TEST_ON_GPU = false };
#else
enum { TEST_ON_GPU = true };
#endif

typedef struct spans {
    pthread_mutex_t lock;
    int count;
    uint64_t begin_ns[SPANS_MAX], end_ns[SPANS_MAX];
} spans;

/* Records the spans of commands on the compute stream. */
static void spans_add(void *context, const tide_observed *command)
{
    spans *it = context;
    pthread_mutex_lock(&it->lock);
    if (command->stream == TIDE_STREAM_COMPUTE && it->count < SPANS_MAX) {
        it->begin_ns[it->count] = command->begin_ns;
        it->end_ns[it->count++] = command->end_ns;
    }
    pthread_mutex_unlock(&it->lock);
}

/* Checks that the device's time of a command is at least the time between CUDA's own events inside it, and
 * not much more. On the fake, another process may get the processor between the two measurements, so the
 * command may only not take longer than the whole did. */
static void expect_span(const spans *it, int i, float inside_ms, uint64_t wall_ns)
{
    const double took_ms = (double)(it->end_ns[i] - it->begin_ns[i]) * 1e-6, inside = (double)inside_ms;
    const double least_ms = TEST_ON_GPU ? 0.98 * inside - 0.002 : 0.0;
    const double most_ms =
        TEST_ON_GPU ? fmin((double)wall_ns * 1e-6, 1.3 * inside + 0.1) : (double)wall_ns * 1e-6;
    if (took_ms < least_ms || took_ms > most_ms)
        fail_msg("chain %d: %.3f ms of which CUDA finds %.3f; at most %.3f", i, took_ms, inside, most_ms);
}

static void chain_of_length(fixture *it, uint32_t launches, cudaEvent_t begin, cudaEvent_t end)
{
    chain timed = fixture_chain(it, it->ops->slot_address(it->device, TIDE_TIER_DEVICE, 0));
    timed.launches = launches;
    timed.begin = begin;
    timed.end = end;
    fixture_launch(it, TIDE_STREAM_COMPUTE, chain_kernel, &timed, sizeof timed);
}

static void times_of_commands_are_those_that_cuda_measures(void **state)
{
    static spans seen;
    cudaEvent_t events[CHAINS + 1][2];
    tide_device_statistics statistics;
    tide_device_options options = fixture_options();
    seen = (spans){.lock = PTHREAD_MUTEX_INITIALIZER};
    options.observer = spans_add;
    options.observer_context = &seen;
    fixture it = fixture_open(&options);
    fixture_make_ones(&it);
    const uint64_t first_ns = it.ops->now_ns(it.device);
    /* The first chain also pays for loading the kernel; its time is not checked. */
    for (int i = 0; i <= CHAINS; i++) {
        for (int end = 0; end < 2; end++)
            assert_int_equal(cudaEventCreateWithFlags(&events[i][end], cudaEventDefault), cudaSuccess);
        chain_of_length(&it, (uint32_t)(CHAIN_LAUNCHES * (i + 1) / (CHAINS + 1)), events[i][0], events[i][1]);
    }
    it.ops->synchronize(it.device);
    const uint64_t last_ns = it.ops->now_ns(it.device);
    uint64_t sum_ns = 0, before_ns = first_ns;
    assert_int_equal(seen.count, CHAINS + 1);
    for (int i = 0; i <= CHAINS; i++) {
        float inside_ms;
        assert_true(seen.begin_ns[i] >= before_ns && seen.end_ns[i] >= seen.begin_ns[i]);
        assert_int_equal(cudaEventElapsedTime(&inside_ms, events[i][0], events[i][1]), cudaSuccess);
        if (i > 0)
            expect_span(&seen, i, inside_ms, last_ns - first_ns);
        before_ns = seen.end_ns[i];
        sum_ns += seen.end_ns[i] - seen.begin_ns[i];
        for (int end = 0; end < 2; end++)
            assert_int_equal(cudaEventDestroy(events[i][end]), cudaSuccess);
    }
    assert_true(before_ns <= last_ns);
    it.ops->statistics(it.device, &statistics);
    assert_int_equal(statistics.busy_ns[TIDE_STREAM_COMPUTE], sum_ns);
    fixture_close(&it);
}

/* A case of a device that is opened and closed around it. */
typedef struct device_case {
    void (*run)(fixture *it);
} device_case;

static void device_case_run(void **state)
{
    const tide_device_options options = fixture_options();
    fixture it = fixture_open(&options);
    ((const device_case *)*state)->run(&it);
    fixture_close(&it);
}

#define gpu_test(name) cmocka_unit_test_setup(name, fixture_begin)
#define gpu_device_test(name)                                                                                \
    ((struct CMUnitTest){#name, device_case_run, fixture_begin, NULL, &(device_case){name}})

int main(void)
{
    const struct CMUnitTest tests[] = {
        gpu_device_test(chunks_pass_through_few_slots_and_each_meets_its_kernel_at_its_place),
        gpu_device_test(place_that_is_mapped_anew_shows_the_new_chunk),
        gpu_device_test(chunks_are_mapped_and_unmapped_while_kernels_run_on_others),
        gpu_device_test(stream_that_waits_for_an_event_sees_all_that_was_before_it),
        gpu_device_test(functions_of_the_host_executor_run_in_order_between_copies),
        gpu_device_test(park_wakes_when_an_event_passes),
        gpu_test(region_is_zero_when_it_is_given),
        gpu_device_test(bytes_of_a_buffer_reach_the_region_and_return),
        gpu_device_test(steady_state_allocates_nothing),
        gpu_test(times_of_commands_are_those_that_cuda_measures),
        gpu_test(update_through_chunks_has_the_cpus_bits),
        gpu_test(random_schedule_has_the_contents_of_a_reference_model),
        /* This test runs last: a process that caused an illegal access has lost its GPU. */
        gpu_test(matmuls_stay_within_their_operands),
    };
    return RUN_KERNEL_TESTS(tests);
}
