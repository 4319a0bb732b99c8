/* The CUDA device on a fake CUDA runtime, as far as only CUDA is concerned: test_offload_host.c and
 * test_offload_faults.c, built with TEST_ON_CUDA, test what device.h promises of every device.
 *
 * The tests check which options it refuses, which CUDA functions it calls and when, failures of the N-th
 * CUDA call for N = 1, 2, 3..., commands that fail while they run, times, several GPUs, and random
 * schedules with random delays against a reference model of all contents. After each test nothing may be
 * left on the fake GPU, and no rule of CUDA's may have been broken. */
#include "test_offload_fixture.h"
#include "tests/support/test_thin.h"

#include <cuda_runtime_api.h>
#include <pthread.h>
#include <stdint.h>
#include <time.h>

static fake_cudart_options gpu_small(void)
{
    fake_cudart_options gpu = fake_cudart_defaults();
    gpu.memory_bytes = 64u << 20;
    return gpu;
}

static int begin(void **state)
{
    const fake_cudart_options gpu = gpu_small();
    fake_cudart_start(&gpu);
    return 0;
}

/* --- open --- */

static void expect_open_refused(const tide_device_options *options, uint32_t ordinal, tide_status status,
                                const char *words)
{
    tide_device *device = NULL;
    assert_int_equal(tide_device_cuda_open(options, ordinal, &device), status);
    assert_null(device);
    expect_words(words);
    expect_nothing_left();
}

static void options_that_only_the_host_device_has_are_refused_by_name(void **state)
{
    tide_device_options options = options_small();
    options.checks.hazard_check = true;
    expect_open_refused(&options, 0, TIDE_ERROR_UNSUPPORTED, "hazard");
    options = options_small();
    options.checks.guard = true;
    expect_open_refused(&options, 0, TIDE_ERROR_UNSUPPORTED, "guard");
    options = options_small();
    options.checks.fault_handler = true;
    expect_open_refused(&options, 0, TIDE_ERROR_UNSUPPORTED, "fault");
    options = options_small();
    options.link_bytes_per_second = 1e9;
    expect_open_refused(&options, 0, TIDE_ERROR_UNSUPPORTED, "link");
    options = options_small();
    options.checks.delay_max_us = 10;
    expect_open_refused(&options, 0, TIDE_ERROR_UNSUPPORTED, "delay");
}

static void gpu_or_chunk_size_that_does_not_exist_is_refused(void **state)
{
    tide_device_options options = options_small();
    expect_open_refused(&options, 1, TIDE_ERROR_ARGUMENT, "1");
    options.chunk_bytes = CHUNK_BYTES / 2;
    expect_open_refused(&options, 0, TIDE_ERROR_ARGUMENT, "1048576");
}

static void machine_without_a_usable_driver_is_told_so(void **state)
{
    const tide_device_options options = options_small();
    fake_cudart_options gpu = gpu_small();
    gpu.driver = 0;
    fake_cudart_start(&gpu);
    expect_open_refused(&options, 0, TIDE_ERROR_UNSUPPORTED, "driver");
    gpu.driver = 11080;
    fake_cudart_start(&gpu);
    expect_open_refused(&options, 0, TIDE_ERROR_UNSUPPORTED, "driver");
    gpu = gpu_small();
    gpu.missing_symbol = "cuMemSetAccess";
    fake_cudart_start(&gpu);
    expect_open_refused(&options, 0, TIDE_ERROR_UNSUPPORTED, "cuMemSetAccess");
    expect_words("Fake GPU 0");
}

static void gpu_without_virtual_memory_management_is_refused_by_name(void **state)
{
    const tide_device_options options = options_small();
    fake_cudart_options gpu = gpu_small();
    gpu.no_vmm = true;
    fake_cudart_start(&gpu);
    expect_open_refused(&options, 0, TIDE_ERROR_UNSUPPORTED, "Fake GPU 0");
    expect_words("virtual memory");
}

/* --- streams --- */

static tide_status ask_priority(void *stream, const void *arguments)
{
    int *const *priority = arguments;
    return cudaStreamGetPriority(stream, *priority) == cudaSuccess ? TIDE_OK : TIDE_ERROR_DEVICE;
}

static void updates_give_way_to_all_other_kernels(fixture *it)
{
    const tide_work work = work_of("ask", 0);
    for (tide_stream stream = 0; stream < TIDE_STREAM_HOST; stream++) {
        int priority = 1, *asked = &priority;
        assert_ok(it->ops->launch(it->device, stream, &work, ask_priority, &asked, sizeof asked));
        assert_int_equal(priority, stream == TIDE_STREAM_UPDATE ? 0 : FAKE_CUDART_GREATEST_PRIORITY);
    }
}

/* --- memory that is not there --- */

static void device_memory_that_runs_out_leaves_nothing_and_fewer_slots_fit(void **state)
{
    fake_cudart_options gpu = gpu_small();
    gpu.memory_bytes = 3 * CHUNK_BYTES + REGION_BYTES;
    fake_cudart_start(&gpu);
    const tide_device_options options = options_small();
    void *region;
    size_t free_bytes, total_bytes;
    fixture it = fixture_empty(&options);
    assert_fails(it.ops->slots_create(it.device, TIDE_TIER_DEVICE, 4), TIDE_ERROR_NO_MEMORY, "3 of 4");
    assert_int_equal(cudaMemGetInfo(&free_bytes, &total_bytes), cudaSuccess);
    assert_int_equal(free_bytes, total_bytes);
    assert_ok(it.ops->slots_create(it.device, TIDE_TIER_DEVICE, 3));
    assert_ok(it.ops->region_create(it.device, REGION_BYTES, &region));
    fixture_close(&it);
}

static void pinning_that_meets_a_limit_says_how_far_it_got_and_leaves_nothing(void **state)
{
    const tide_device_options options = options_small();
    char text[256], clean[256];
    fixture it = fixture_empty(&options);
    (void)fake_cudart_live(clean, sizeof clean);
    fake_cudart_fail("cudaHostRegister", 1, cudaErrorMemoryAllocation, false);
    assert_fails(it.ops->slots_create(it.device, TIDE_TIER_HOST, HOST_SLOTS), TIDE_ERROR_NO_MEMORY,
                 "0 of 12582912 bytes");
    expect_words("limit of locked memory");
    expect_words("available");
    expect_words("the GPU 67108864 free");
    (void)fake_cudart_live(text, sizeof text);
    assert_string_equal(text, clean);
    assert_ok(it.ops->slots_create(it.device, TIDE_TIER_HOST, HOST_SLOTS));
    fixture_close(&it);
}

static void region_is_zero_when_it_is_given_however_late_the_gpu_is(void **state)
{
    for (uint64_t seed = 1; seed <= 4; seed++) {
        fake_cudart_options gpu = gpu_small();
        gpu.delay_seed = seed;
        gpu.delay_max_us = 20000;
        fake_cudart_start(&gpu);
        const tide_device_options options = options_small();
        void *region;
        fixture it = fixture_empty(&options);
        assert_ok(it.ops->region_create(it.device, REGION_BYTES, &region));
        for (int i = 0; i < REGION_BYTES; i++)
            assert_int_equal(((const char *)region)[i], 0);
        fixture_close(&it);
    }
}

/* --- residency --- */

static void map_that_gets_no_access_leaves_the_place_free(fixture *it)
{
    assert_ok(it->ops->map(it->device, 0, place(it, 1)));
    fake_cudart_fail("cuMemSetAccess", 1, cudaErrorUnknown, true);
    assert_fails(it->ops->map(it->device, 1, place(it, 3)), TIDE_ERROR_DEVICE, "cuMemSetAccess");
    expect_words("device slot 1");
    assert_ok(it->ops->failure(it->device));
    assert_ok(it->ops->map(it->device, 2, place(it, 3)));
    assert_ok(it->ops->map(it->device, 1, place(it, 4)));
    place(it, 4)[0] = 7;
    assert_int_equal(own(it, TIDE_TIER_DEVICE, 1)[0], 7);
}

static void unmap_that_is_refused_changes_nothing(fixture *it)
{
    assert_ok(it->ops->map(it->device, 1, place(it, 3)));
    fake_cudart_fail("cuMemUnmap", 1, cudaErrorUnknown, true);
    assert_int_equal(it->ops->unmap(it->device, 1, place(it, 3)), TIDE_ERROR_DEVICE);
    place(it, 3)[0] = 7; /* the slot is still mapped */
    assert_int_equal(own(it, TIDE_TIER_DEVICE, 1)[0], 7);
    assert_ok(it->ops->unmap(it->device, 1, place(it, 3)));
    assert_ok(it->ops->map(it->device, 0, place(it, 3)));
}

/* --- CUDA calls of a schedule --- */

/* Maps a chunk, fetches it, adds `value` in a kernel, evicts and unmaps it. Only events order the streams. */
static tide_status round_status(fixture *it, uint32_t slot, uint32_t host_slot, uint32_t chunk, int value)
{
    const tide_device_ops *ops = it->ops;
    tide_device *device = it->device;
    tide_work work = work_of("round", chunk);
    store_arguments mix = {(int *)(void *)place(it, chunk), value};
    tide_status status = ops->map(device, slot, place(it, chunk));
    if (status != TIDE_OK)
        return status;
    status = ops->copy_slot(device, TIDE_STREAM_IN, &work, TIDE_TIER_DEVICE, slot, host_slot, CHUNK_BYTES);
    if (status == TIDE_OK)
        status = ops->event_record(device, it->events[0], TIDE_STREAM_IN);
    if (status == TIDE_OK)
        status = ops->stream_wait(device, TIDE_STREAM_COMPUTE, it->events[0], SITE, 0);
    if (status == TIDE_OK)
        status = ops->launch(device, TIDE_STREAM_COMPUTE, &work, mix_kernel, &mix, sizeof mix);
    if (status == TIDE_OK)
        status = ops->event_record(device, it->events[1], TIDE_STREAM_COMPUTE);
    if (status == TIDE_OK)
        status = ops->stream_wait(device, TIDE_STREAM_OUT, it->events[1], SITE, 0);
    if (status == TIDE_OK)
        status = ops->copy_slot(device, TIDE_STREAM_OUT, &work, TIDE_TIER_HOST, host_slot, slot, CHUNK_BYTES);
    if (status == TIDE_OK)
        status = ops->event_record(device, it->events[2], TIDE_STREAM_OUT);
    if (status == TIDE_OK)
        status = ops->event_wait(device, it->events[2], SITE);
    if (status == TIDE_OK)
        status = ops->unmap(device, slot, place(it, chunk));
    return status;
}

static void steady_state_makes_nothing_and_waits_for_no_stream(fixture *it)
{
    static const char *const never[] = {
        "cuMemCreate",
        "cuMemAddressReserve",
        "cudaMalloc",
        "cudaHostRegister",
        "cudaHostAlloc",
        "cudaEventCreateWithFlags",
        "cudaStreamCreateWithPriority",
        "cudaDeviceSynchronize",
        "cudaStreamSynchronize",
        "cudaMemset",
        "cudaFree",
        "cudaHostUnregister",
    };
    enum { NEVER = sizeof never / sizeof never[0] };
    uint64_t before[NEVER];
    memset(own(it, TIDE_TIER_HOST, 1), 0, CHUNK_BYTES);
    assert_ok(round_status(it, 0, 1, 2, 5));
    for (size_t i = 0; i < NEVER; i++)
        before[i] = fake_cudart_count(never[i]);
    const uint64_t maps = fake_cudart_count("cuMemMap");
    for (int i = 0; i < 100; i++)
        assert_ok(round_status(it, (uint32_t)i % DEVICE_SLOTS, 1, (uint32_t)i % RANGE_CHUNKS, 1));
    for (size_t i = 0; i < NEVER; i++)
        if (fake_cudart_count(never[i]) != before[i])
            fail_msg("%s is called in steady state", never[i]);
    assert_int_equal(fake_cudart_count("cuMemMap"), maps + 100);
    assert_int_equal(fake_cudart_count("cudaDeviceSynchronize"), 0);
}

/* --- the N-th CUDA call fails --- */

enum {
    LIFE_ROUNDS = 3,
#if defined(__SANITIZE_THREAD__)
    FIRST_CALLS = 1, /* ThreadSanitizer makes every life of a device slow */
    NAMES_EVERY = 3, /* one function in so many fails */
#else
    FIRST_CALLS = 6,
    NAMES_EVERY = 1,
#endif
    LAST_CALLS = FIRST_CALLS / 2 + 1,
};

/* The result of mix_kernel LIFE_ROUNDS times: x = 3 x + round. */
static int life_result(void)
{
    unsigned x = 1;
    for (int i = 0; i < LIFE_ROUNDS; i++)
        x = 3u * x + (unsigned)i;
    return (int)x;
}

static tide_status stage_status(fixture *it, tide_device_statistics *statistics)
{
    const tide_work work = work_of("stage", 0);
    tide_status status =
        it->ops->copy_bytes(it->device, TIDE_STREAM_IN, &work, it->region, it->buffer, 100, true);
    if (status == TIDE_OK)
        status = it->ops->event_record(it->device, it->events[0], TIDE_STREAM_IN);
    if (status == TIDE_OK) {
        bool done;
        const uint64_t ticket = it->ops->doorbell(it->device);
        status = it->ops->event_query(it->device, it->events[0], SITE, &done);
        if (status == TIDE_OK && !done)
            status = it->ops->park(it->device, ticket, true);
    }
    it->ops->statistics(it->device, statistics);
    return status;
}

/* Opens a device, uses it and closes it. Returns the first failure and its message in `text`; if there was
 * none, the contents must be right. */
static tide_status life(char *text, size_t text_bytes)
{
    fixture it = {0};
    const tide_device_options options = options_small();
    tide_device_statistics statistics;
    tide_status status = device_open(&options, &it.device);
    (void)snprintf(text, text_bytes, "%s", tide_message());
    if (status != TIDE_OK)
        return status;
    it.ops = it.device->ops;
    status = fixture_fill_status(&it);
    if (status == TIDE_OK) {
        memset(own(&it, TIDE_TIER_HOST, 2), 0, CHUNK_BYTES);
        *(int *)(void *)own(&it, TIDE_TIER_HOST, 2) = 1;
        status = stage_status(&it, &statistics);
    }
    for (int i = 0; i < LIFE_ROUNDS && status == TIDE_OK; i++)
        status = round_status(&it, (uint32_t)i % DEVICE_SLOTS, 2, (uint32_t)i, i);
    (void)snprintf(text, text_bytes, "%s", tide_message());
    it.ops->synchronize(it.device);
    if (status == TIDE_OK) {
        status = it.ops->failure(it.device);
        (void)snprintf(text, text_bytes, "%s", tide_message());
    }
    if (status == TIDE_OK)
        assert_int_equal(*(int *)(void *)own(&it, TIDE_TIER_HOST, 2), life_result());
    it.ops->close(it.device);
    return status;
}

/* Whether a failing call does nothing. The schedule's unmaps are like that. At the device's end cuMemUnmap
 * does its work and returns an earlier command's failure. */
static bool refuses(const char *name, uint64_t countdown)
{
    return strcmp(name, "cuMemUnmap") == 0 && countdown <= LIFE_ROUNDS;
}

/* Runs a life in which one call fails; returns false if there were fewer calls. */
static bool life_with_fault(const char *name, uint64_t countdown, int error)
{
    char text[1024];
    const fake_cudart_options gpu = gpu_small();
    fake_cudart_start(&gpu);
    fake_cudart_fail(name, countdown, error, refuses(name, countdown));
    const tide_status status = life(text, sizeof text);
    const bool failed = fake_cudart_has_failed();
    if (!failed)
        assert_int_equal(status, TIDE_OK);
    if (status != TIDE_OK && (text[0] == '\0' || status == TIDE_ERROR_INTERNAL))
        fail_msg("%s %d: status %s, \"%s\"", name, (int)countdown, tide_status_name(status), text);
    expect_nothing_left();
    if (cudaPeekAtLastError() != cudaSuccess)
        fail_msg("%s %d: %s waits for the next launch", name, (int)countdown,
                 cudaGetErrorName(cudaPeekAtLastError()));
    if (failed && life(text, sizeof text) != TIDE_OK) /* after the failure a new device must work */
        fail_msg("%s %d, then the next life: \"%s\"", name, (int)countdown, text);
    expect_nothing_left();
    return failed;
}

/* Fails every call of the function in turn; if there are hundreds, only the first and last few. Returns
 * how many failed. */
static int name_fails(const char *name, uint64_t count, int error)
{
    int strikes = 0;
    for (uint64_t i = 1; i <= count; i++) {
        if (i > FIRST_CALLS && i + LAST_CALLS <= count)
            i = count - LAST_CALLS + 1;
        strikes += life_with_fault(name, i, error);
    }
    return strikes;
}

static void each_cuda_call_may_fail(void **state)
{
    struct {
        const char *name;
        uint64_t count;
    } calls[64];
    size_t names = 0;
    char text[1024];
    int strikes = 0;
    assert_int_equal(life(text, sizeof text), TIDE_OK);
    for (const char *name; (name = fake_cudart_called(names)) != NULL; names++) {
        calls[names].name = name;
        calls[names].count = fake_cudart_count(name);
    }
    assert_true(names > 20);
    for (size_t i = 0; i < names; i += NAMES_EVERY)
        strikes += name_fails(calls[i].name, calls[i].count, cudaErrorUnknown);
    assert_true(strikes > (FIRST_CALLS > 1 ? 80 : 12));
    print_message("%d calls of %d functions failed once each\n", strikes, (int)names);
}

static void no_memory_is_said_where_cuda_has_none(void **state)
{
    static const char *const takers[] = {"cuMemCreate", "cudaMalloc", "cudaHostRegister",
                                         "cudaStreamCreateWithPriority", "cudaEventCreateWithFlags"};
    char text[1024];
    for (size_t i = 0; i < sizeof takers / sizeof takers[0]; i++) {
        begin(state);
        fake_cudart_fail(takers[i], 1, cudaErrorMemoryAllocation, false);
        assert_int_equal(life(text, sizeof text), TIDE_ERROR_NO_MEMORY);
        assert_true(fake_cudart_has_failed());
        expect_nothing_left();
    }
}

/* --- commands that fail while they run --- */

static void each_command_may_fail_while_it_runs_and_the_device_says_so(void **state)
{
    char text[1024];
    int strikes = 0;
    if (life(text, sizeof text) != TIDE_OK)
        fail_msg("%s", text);
    const uint64_t commands = fake_cudart_commands();
    for (uint64_t i = 1; i <= commands; i++) {
        begin(state);
        fake_cudart_fail_command(i, cudaErrorIllegalAddress);
        assert_int_equal(life(text, sizeof text), TIDE_ERROR_DEVICE);
        /* The error's name in the runtime, or in the driver if a mapping call meets the error first. */
        if (strstr(text, "cudaErrorIllegalAddress") == NULL &&
            strstr(text, "CUDA_ERROR_ILLEGAL_ADDRESS") == NULL)
            fail_msg("command %d: \"%s\"", (int)i, text);
        expect_nothing_left();
        strikes++;
    }
    assert_true(strikes >= 2 + 3 * LIFE_ROUNDS);
}

static void failed_gpu_refuses_everything_and_does_not_recover(fixture *it)
{
    const tide_work work = work_of("copy", 1);
    atomic_int ran = 0;
    fake_cudart_fail_command(1, cudaErrorLaunchFailure);
    (void)launch_count(it, TIDE_STREAM_COMPUTE, &ran);
    it->ops->synchronize(it->device);
    assert_fails(it->ops->failure(it->device), TIDE_ERROR_DEVICE, "cudaErrorLaunchFailure");
    assert_int_equal(launch_count(it, TIDE_STREAM_IN, &ran), TIDE_ERROR_DEVICE);
    assert_int_equal(launch_count(it, TIDE_STREAM_HOST, &ran), TIDE_ERROR_DEVICE);
    assert_int_equal(it->ops->copy_slot(it->device, TIDE_STREAM_IN, &work, TIDE_TIER_DEVICE, 0, 0, 1),
                     TIDE_ERROR_DEVICE);
    assert_int_equal(it->ops->copy_bytes(it->device, TIDE_STREAM_IN, &work, it->region, it->buffer, 1, true),
                     TIDE_ERROR_DEVICE);
    assert_ok(it->ops->event_record(it->device, it->events[0], TIDE_STREAM_IN));
    assert_int_equal(it->ops->stream_wait(it->device, TIDE_STREAM_IN, it->events[0], SITE, 0),
                     TIDE_ERROR_DEVICE);
    assert_int_equal(it->ops->recover(it->device), TIDE_ERROR_DEVICE);
    assert_int_equal(it->ops->failure(it->device), TIDE_ERROR_DEVICE);
    assert_int_equal(atomic_load(&ran), 0);
}

static tide_status failing_function(void *stream, const void *arguments)
{
    return tide_fail(TIDE_ERROR_NONFINITE, "gradient of wte is not finite");
}

/* A launcher may have enqueued a part of its work before it failed. So its stream counts as failed, and no
 * other does. */
static void failed_launcher_fails_its_stream_until_recovery(fixture *it)
{
    const tide_work work = work_of("adam", 1);
    assert_int_equal(it->ops->launch(it->device, TIDE_STREAM_UPDATE, &work, failing_function, NULL, 0),
                     TIDE_ERROR_NONFINITE);
    it->ops->synchronize(it->device);
    assert_true(it->ops->stream_failed(it->device, TIDE_STREAM_UPDATE));
    assert_false(it->ops->stream_failed(it->device, TIDE_STREAM_COMPUTE));
    assert_ok(it->ops->recover(it->device));
    assert_false(it->ops->stream_failed(it->device, TIDE_STREAM_UPDATE));
    atomic_int ran = 0;
    assert_ok(launch_count(it, TIDE_STREAM_UPDATE, &ran));
    it->ops->synchronize(it->device);
    assert_int_equal(atomic_load(&ran), 1);
}

static void launched_but_not_marked_fails_its_stream_too(fixture *it)
{
    atomic_int ran = 0;
    fake_cudart_fail("cudaEventRecord", 1, cudaErrorInvalidValue, false);
    assert_int_equal(launch_count(it, TIDE_STREAM_UPDATE, &ran), TIDE_ERROR_DEVICE);
    it->ops->synchronize(it->device);
    assert_int_equal(atomic_load(&ran), 1);
    assert_true(it->ops->stream_failed(it->device, TIDE_STREAM_UPDATE));
}

static void failed_function_of_the_host_executor_is_recovered_from(fixture *it)
{
    const tide_work work = work_of("update", 1);
    atomic_int ran = 0;
    assert_ok(it->ops->launch(it->device, TIDE_STREAM_HOST, &work, failing_function, NULL, 0));
    it->ops->synchronize(it->device);
    assert_int_equal(it->ops->failure(it->device), TIDE_ERROR_NONFINITE);
    assert_int_equal(launch_count(it, TIDE_STREAM_COMPUTE, &ran), TIDE_ERROR_NONFINITE);
    assert_string_equal(tide_message(), "update 1 on stream host failed: gradient of wte is not finite");
    assert_ok(it->ops->recover(it->device));
    assert_ok(it->ops->failure(it->device));
    assert_ok(launch_count(it, TIDE_STREAM_COMPUTE, &ran));
    assert_ok(launch_count(it, TIDE_STREAM_HOST, &ran));
    it->ops->synchronize(it->device);
    assert_int_equal(atomic_load(&ran), 2);
}

/* --- wait sites --- */

static void skipped_site_neither_waits_nor_asks(void **state)
{
    tide_device_options options = options_small();
    options.checks.skip_wait_site = OTHER_SITE;
    fixture it = fixture_open(&options);
    gate held = {0};
    atomic_int ran = 0;
    bool done = false;
    assert_ok(launch_gate(&it, TIDE_STREAM_IN, &held));
    assert_ok(it.ops->event_record(it.device, it.events[0], TIDE_STREAM_IN));
    assert_ok(it.ops->event_query(it.device, it.events[0], OTHER_SITE, &done));
    assert_true(done);
    assert_ok(it.ops->event_wait(it.device, it.events[0], OTHER_SITE));
    assert_ok(it.ops->stream_wait(it.device, TIDE_STREAM_COMPUTE, it.events[0], OTHER_SITE, 0));
    assert_ok(launch_count(&it, TIDE_STREAM_COMPUTE, &ran));
    assert_ok(it.ops->event_record(it.device, it.events[1], TIDE_STREAM_COMPUTE));
    assert_ok(it.ops->event_wait(it.device, it.events[1], SITE));
    assert_int_equal(atomic_load(&ran), 1);
    assert_false(is_done(&it, it.events[0]));
    const tide_device_statistics statistics = statistics_of(&it);
    assert_int_equal(statistics.waits[OTHER_SITE], 3);
    atomic_store(&held.open, true);
    fixture_close(&it);
}

/* --- times --- */

enum { SPANS_MAX = 4096 };

typedef struct span {
    tide_stream stream;
    const char *label;
    uint32_t tag;
    uint64_t begin_ns, end_ns;
} span;

typedef struct spans {
    pthread_mutex_t lock;
    size_t count;
    span list[SPANS_MAX];
} spans;

static void spans_add(void *context, const tide_observed *command)
{
    spans *it = context;
    pthread_mutex_lock(&it->lock);
    if (it->count < SPANS_MAX)
        it->list[it->count++] =
            (span){command->stream, command->label, command->tag, command->begin_ns, command->end_ns};
    pthread_mutex_unlock(&it->lock);
}

/* Checks that every span lies within [first_ns, last_ns] and that the spans of the stream follow each
 * other in order of their tags. */
static void expect_ordered(const spans *it, tide_stream stream, uint64_t first_ns, uint64_t last_ns)
{
    uint64_t before_ns = first_ns;
    uint32_t tag = 0;
    for (size_t i = 0; i < it->count; i++) {
        const span *at = &it->list[i];
        if (at->stream != stream)
            continue;
        assert_true(at->begin_ns >= before_ns && at->begin_ns <= at->end_ns && at->end_ns <= last_ns);
        assert_true(strcmp(at->label, "wait") == 0 || at->tag >= tag);
        before_ns = at->end_ns;
        tag = strcmp(at->label, "wait") == 0 ? tag : at->tag;
    }
}

static int kernel_nap_ms;

static tide_status nap_kernel_work(const int *unused)
{
    return nanosleep(&(struct timespec){.tv_nsec = kernel_nap_ms * 1000000L}, NULL) == 0 ? TIDE_OK
                                                                                         : TIDE_ERROR_DEVICE;
}
TEST_KERNEL(nap_kernel, int)

static tide_status launch_nap(fixture *it, tide_stream stream, uint32_t tag)
{
    const tide_work work = work_of("nap", tag);
    const int unused = 0;
    return it->ops->launch(it->device, stream, &work, nap_kernel, &unused, sizeof unused);
}

static void observer_is_told_times_that_follow_each_other_and_last_as_long_as_the_kernels(void **state)
{
    static spans seen;
    seen = (spans){.lock = PTHREAD_MUTEX_INITIALIZER};
    tide_device_options options = options_small();
    options.observer = spans_add;
    options.observer_context = &seen;
    fixture it = fixture_open(&options);
    const uint64_t first_ns = it.ops->now_ns(it.device);
    gate held = {0}; /* holds the stream until everything is enqueued */
    kernel_nap_ms = 5;
    assert_ok(launch_gate(&it, TIDE_STREAM_IN, &held));
    for (uint32_t i = 0; i < 4; i++) {
        assert_ok(launch_nap(&it, TIDE_STREAM_IN, i));
        assert_ok(it.ops->event_record(it.device, it.events[0], TIDE_STREAM_IN));
        assert_ok(it.ops->stream_wait(it.device, TIDE_STREAM_COMPUTE, it.events[0], SITE, 0));
        assert_ok(launch_nap(&it, TIDE_STREAM_COMPUTE, i));
    }
    atomic_store(&held.open, true);
    it.ops->synchronize(it.device);
    const uint64_t last_ns = it.ops->now_ns(it.device);
    assert_int_equal(seen.count, 1 + 4 + 4 + 4);
    expect_ordered(&seen, TIDE_STREAM_IN, first_ns, last_ns);
    expect_ordered(&seen, TIDE_STREAM_COMPUTE, first_ns, last_ns);
    uint64_t waited_ns = 0, in_ns = 0, napped_until_ns = 0, began_ns = last_ns;
    for (size_t i = 0; i < seen.count; i++) {
        const span *at = &seen.list[i];
        const uint64_t took_ns = at->end_ns - at->begin_ns;
        waited_ns += strcmp(at->label, "wait") == 0 ? took_ns : 0;
        in_ns += at->stream == TIDE_STREAM_IN ? took_ns : 0;
        if (at->stream == TIDE_STREAM_IN) {
            began_ns = at->begin_ns < began_ns ? at->begin_ns : began_ns;
            napped_until_ns = at->end_ns;
        }
    }
    assert_true(napped_until_ns - began_ns >= 4 * 4900000);
    assert_true(waited_ns >= 4900000); /* compute waits at least for the first nap */
    const tide_device_statistics statistics = statistics_of(&it);
    assert_int_equal(statistics.wait_ns[TIDE_STREAM_COMPUTE], waited_ns);
    assert_int_equal(statistics.busy_ns[TIDE_STREAM_IN], in_ns);
    fixture_close(&it);
}

static void commands_are_pending_until_they_have_passed(fixture *it)
{
    gate held = {0};
    atomic_int ran = 0;
    assert_ok(launch_gate(it, TIDE_STREAM_OUT, &held));
    assert_ok(launch_count(it, TIDE_STREAM_OUT, &ran));
    tide_device_statistics statistics = statistics_of(it);
    assert_int_equal(statistics.pending[TIDE_STREAM_OUT], 2);
    assert_int_equal(statistics.pending[TIDE_STREAM_IN], 0);
    atomic_store(&held.open, true);
    it->ops->synchronize(it->device);
    statistics = statistics_of(it);
    assert_int_equal(statistics.pending[TIDE_STREAM_OUT], 0);
    assert_int_equal(statistics.commands[TIDE_STREAM_OUT], 2);
}

/* The commands go around the ring of time stamps many times, while the test never looks. */
static void thousands_of_commands_are_all_told_of_in_order(void **state)
{
    static spans seen;
    seen = (spans){.lock = PTHREAD_MUTEX_INITIALIZER};
    tide_device_options options = options_small();
    options.observer = spans_add;
    options.observer_context = &seen;
    fixture it = fixture_open(&options);
    const uint64_t first_ns = it.ops->now_ns(it.device);
    atomic_int ran = 0, *counter = &ran;
    for (uint32_t i = 0; i < 3000; i++) {
        const tide_work work = work_of("count", i);
        assert_ok(
            it.ops->launch(it.device, TIDE_STREAM_UPDATE, &work, count_kernel, &counter, sizeof counter));
    }
    it.ops->synchronize(it.device);
    assert_int_equal(atomic_load(&ran), 3000);
    assert_int_equal(seen.count, 3000);
    expect_ordered(&seen, TIDE_STREAM_UPDATE, first_ns, it.ops->now_ns(it.device));
    fixture_close(&it);
}

static tide_status launch_of_run(fixture *it, uint32_t timer, atomic_int *counter)
{
    tide_work work = work_of("count", 1);
    work.timer = timer;
    work.may_coalesce = true;
    return it->ops->launch(it->device, TIDE_STREAM_COMPUTE, &work, count_kernel, &counter, sizeof counter);
}

static void expect_records(uint64_t *before, uint64_t more)
{
    const uint64_t now = fake_cudart_count("cudaEventRecord");
    assert_int_equal(now - *before, more);
    *before = now;
}

/* Each timed event keeps the GPU idle for a moment, so kernels that may coalesce share one. */
static void kernels_that_coalesce_share_an_event_until_something_needs_one(fixture *it)
{
    atomic_int ran = 0;
    uint64_t records = fake_cudart_count("cudaEventRecord");
    for (int i = 0; i < 10; i++)
        assert_ok(launch_of_run(it, 1, &ran));
    expect_records(&records, 0);
    assert_ok(launch_of_run(it, 2, &ran)); /* another timer: a new run begins */
    expect_records(&records, 1);
    assert_ok(it->ops->event_record(it->device, it->events[0], TIDE_STREAM_COMPUTE));
    expect_records(&records, 1);
    /* Nothing was enqueued in between. */
    assert_ok(it->ops->event_record(it->device, it->events[0], TIDE_STREAM_COMPUTE));
    expect_records(&records, 0);
    assert_ok(launch_of_run(it, 2, &ran));
    assert_ok(launch_count(it, TIDE_STREAM_COMPUTE, &ran)); /* this kernel may not coalesce */
    expect_records(&records, 2);
    assert_ok(launch_of_run(it, 2, &ran));
    tide_device_statistics statistics = statistics_of(it);
    expect_records(&records, 1);
    assert_ok(launch_of_run(it, 2, &ran));
    it->ops->synchronize(it->device);
    expect_records(&records, 1);
    statistics = statistics_of(it);
    expect_records(&records, 0);
    assert_int_equal(statistics.commands[TIDE_STREAM_COMPUTE], 15);
    assert_int_equal(statistics.pending[TIDE_STREAM_COMPUTE], 0);
    assert_int_equal(atomic_load(&ran), 15);
}

static void event_behind_a_run_waits_for_all_of_it(fixture *it)
{
    gate held = {0};
    atomic_int ran = 0;
    assert_ok(launch_gate(it, TIDE_STREAM_COMPUTE, &held));
    assert_ok(launch_of_run(it, 1, &ran));
    assert_ok(launch_of_run(it, 1, &ran));
    assert_ok(it->ops->event_record(it->device, it->events[0], TIDE_STREAM_COMPUTE));
    assert_false(is_done(it, it->events[0]));
    atomic_store(&held.open, true);
    assert_ok(it->ops->event_wait(it->device, it->events[0], SITE));
    assert_int_equal(atomic_load(&ran), 2);
}

/* The launches returned OK already, so event_record reports the failure; after recover the stream works
 * again. */
static void run_that_gets_no_event_fails_the_record_until_recovery(fixture *it)
{
    atomic_int ran = 0;
    fake_cudart_fail("cudaEventRecord", 1, cudaErrorInvalidValue, false);
    assert_ok(launch_of_run(it, 1, &ran));
    assert_ok(launch_of_run(it, 1, &ran));
    assert_int_equal(it->ops->event_record(it->device, it->events[0], TIDE_STREAM_COMPUTE),
                     TIDE_ERROR_DEVICE);
    assert_int_equal(launch_of_run(it, 1, &ran), TIDE_ERROR_DEVICE);
    it->ops->synchronize(it->device);
    assert_true(it->ops->stream_failed(it->device, TIDE_STREAM_COMPUTE));
    assert_int_equal(atomic_load(&ran), 2);
    assert_ok(it->ops->recover(it->device));
    assert_ok(launch_of_run(it, 1, &ran));
    it->ops->synchronize(it->device);
    assert_ok(it->ops->failure(it->device));
}

/* --- many GPUs, many threads --- */

typedef struct client {
    fixture *it;
    uint32_t number;
    tide_status status;
} client;

static void *client_main(void *argument)
{
    client *me = argument;
    fixture *it = me->it;
    atomic_int ran = 0;
    for (int i = 0; i < 50 && me->status == TIDE_OK; i++) {
        const uint32_t slot = me->number, chunk = me->number;
        const tide_event event = it->events[me->number];
        me->status = it->ops->map(it->device, slot, place(it, chunk));
        if (me->status == TIDE_OK)
            me->status = launch_count(it, (tide_stream)me->number, &ran);
        if (me->status == TIDE_OK)
            me->status = it->ops->event_record(it->device, event, (tide_stream)me->number);
        if (me->status == TIDE_OK)
            me->status = it->ops->event_wait(it->device, event, SITE);
        if (me->status == TIDE_OK)
            me->status = it->ops->unmap(it->device, slot, place(it, chunk));
    }
    return NULL;
}

static void any_thread_reaches_the_devices_own_gpu(void **state)
{
    enum { CLIENTS = 3 };
    fake_cudart_options gpu = gpu_small();
    gpu.gpus = 2;
    gpu.gpu = 1;
    gpu.delay_seed = 3;
    gpu.delay_max_us = 50;
    fake_cudart_start(&gpu);
    const tide_device_options options = options_small();
    fixture it = {0};
    assert_ok(tide_device_cuda_open(&options, 1, &it.device));
    it.ops = it.device->ops;
    fixture_fill(&it);
    client clients[CLIENTS];
    pthread_t threads[CLIENTS];
    for (uint32_t i = 0; i < CLIENTS; i++) {
        clients[i] = (client){&it, i, TIDE_OK};
        assert_int_equal(pthread_create(&threads[i], NULL, client_main, &clients[i]), 0);
    }
    for (int i = 0; i < CLIENTS; i++) {
        assert_int_equal(pthread_join(threads[i], NULL), 0);
        assert_int_equal(clients[i].status, TIDE_OK);
    }
    fixture_close(&it);
}

/* --- random schedules against a reference model of contents --- */

enum { MODEL_STEPS = 400, WORDS = 4 }; /* the model follows the first WORDS words of every slot */

typedef struct model {
    int device[DEVICE_SLOTS][WORDS], host[HOST_SLOTS][WORDS];
    int place_of_slot[DEVICE_SLOTS]; /* the chunk at whose place the slot is mapped; -1: none */
    uint64_t random;
} model;

static uint32_t pick(model *it, uint32_t below)
{
    it->random = it->random * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (uint32_t)(it->random >> 33) % below;
}

/* Any stream may do any of these commands, so each command waits for all streams' last ones; only events
 * order them. */
static void order_after_all(fixture *it, tide_stream stream)
{
    for (uint32_t other = 0; other < 4; other++)
        assert_ok(it->ops->stream_wait(it->device, stream, it->events[other], SITE, 0));
}

static void record_after(fixture *it, tide_stream stream)
{
    assert_ok(it->ops->event_record(it->device, it->events[stream], stream));
}

static void model_move(fixture *it, model *m, uint32_t slot)
{
    const int chunk = m->place_of_slot[slot];
    if (chunk >= 0) {
        for (uint32_t other = 0; other < 4; other++) /* unmapping requires that all commands have ended */
            assert_ok(it->ops->event_wait(it->device, it->events[other], SITE));
        assert_ok(it->ops->unmap(it->device, slot, place(it, (uint32_t)chunk)));
        m->place_of_slot[slot] = -1;
        return;
    }
    const uint32_t wanted = pick(m, RANGE_CHUNKS);
    for (uint32_t other = 0; other < DEVICE_SLOTS; other++)
        if (m->place_of_slot[other] == (int)wanted)
            return;
    assert_ok(it->ops->map(it->device, slot, place(it, wanted)));
    m->place_of_slot[slot] = (int)wanted;
}

static void model_step(fixture *it, model *m)
{
    const uint32_t slot = pick(m, DEVICE_SLOTS), host_slot = pick(m, HOST_SLOTS), word = pick(m, WORDS);
    const tide_stream stream = (tide_stream)pick(m, 4);
    const tide_work work = work_of("step", slot);
    const uint32_t what = pick(m, 4);
    if (what == 0) {
        model_move(it, m, slot);
        return;
    }
    order_after_all(it, stream);
    if (what == 1) {
        assert_ok(
            it->ops->copy_slot(it->device, stream, &work, TIDE_TIER_DEVICE, slot, host_slot, CHUNK_BYTES));
        memcpy(m->device[slot], m->host[host_slot], sizeof m->device[slot]);
    } else if (what == 2) {
        assert_ok(
            it->ops->copy_slot(it->device, stream, &work, TIDE_TIER_HOST, host_slot, slot, CHUNK_BYTES));
        memcpy(m->host[host_slot], m->device[slot], sizeof m->host[host_slot]);
    } else {
        char *at = m->place_of_slot[slot] >= 0 ? place(it, (uint32_t)m->place_of_slot[slot])
                                               : own(it, TIDE_TIER_DEVICE, slot);
        const store_arguments mix = {(int *)(void *)at + word, (int)pick(m, 1000)};
        assert_ok(it->ops->launch(it->device, stream, &work, mix_kernel, &mix, sizeof mix));
        m->device[slot][word] = (int)(3u * (unsigned)m->device[slot][word] + (unsigned)mix.value);
    }
    record_after(it, stream);
}

static void model_begin(fixture *it, model *m, uint64_t seed)
{
    *m = (model){.random = seed};
    for (uint32_t slot = 0; slot < DEVICE_SLOTS; slot++) {
        m->place_of_slot[slot] = -1;
        memset(own(it, TIDE_TIER_DEVICE, slot), 0, sizeof m->device[slot]);
    }
    for (uint32_t slot = 0; slot < HOST_SLOTS; slot++) {
        for (int word = 0; word < WORDS; word++)
            m->host[slot][word] = (int)pick(m, 1000000);
        memcpy(own(it, TIDE_TIER_HOST, slot), m->host[slot], sizeof m->host[slot]);
    }
}

static void random_schedules_under_delays_have_the_contents_of_a_reference_model(void **state)
{
    for (uint64_t seed = 1; seed <= 12; seed += test_thin(6)) {
        fake_cudart_options gpu = gpu_small();
        gpu.delay_seed = seed;
        gpu.delay_max_us = 40;
        fake_cudart_start(&gpu);
        model m;
        fixture it = fixture_small();
        model_begin(&it, &m, seed);
        for (int step = 0; step < MODEL_STEPS; step++)
            model_step(&it, &m);
        it.ops->synchronize(it.device);
        for (uint32_t slot = 0; slot < DEVICE_SLOTS; slot++)
            assert_memory_equal(own(&it, TIDE_TIER_DEVICE, slot), m.device[slot], sizeof m.device[slot]);
        for (uint32_t slot = 0; slot < HOST_SLOTS; slot++)
            assert_memory_equal(own(&it, TIDE_TIER_HOST, slot), m.host[slot], sizeof m.host[slot]);
        fixture_close(&it);
    }
}

#define gpu_test(name)        cmocka_unit_test_setup(name, begin)
#define gpu_device_test(name) ((struct CMUnitTest){#name, device_case_run, begin, NULL, &(device_case){name}})

int main(void)
{
    const struct CMUnitTest tests[] = {
        gpu_test(options_that_only_the_host_device_has_are_refused_by_name),
        gpu_test(gpu_or_chunk_size_that_does_not_exist_is_refused),
        gpu_test(machine_without_a_usable_driver_is_told_so),
        gpu_test(gpu_without_virtual_memory_management_is_refused_by_name),
        gpu_device_test(updates_give_way_to_all_other_kernels),
        gpu_test(device_memory_that_runs_out_leaves_nothing_and_fewer_slots_fit),
        gpu_test(pinning_that_meets_a_limit_says_how_far_it_got_and_leaves_nothing),
        gpu_test(region_is_zero_when_it_is_given_however_late_the_gpu_is),
        gpu_device_test(map_that_gets_no_access_leaves_the_place_free),
        gpu_device_test(unmap_that_is_refused_changes_nothing),
        gpu_device_test(steady_state_makes_nothing_and_waits_for_no_stream),
        gpu_test(each_cuda_call_may_fail),
        gpu_test(no_memory_is_said_where_cuda_has_none),
        gpu_test(each_command_may_fail_while_it_runs_and_the_device_says_so),
        gpu_device_test(failed_gpu_refuses_everything_and_does_not_recover),
        gpu_device_test(failed_launcher_fails_its_stream_until_recovery),
        gpu_device_test(launched_but_not_marked_fails_its_stream_too),
        gpu_device_test(failed_function_of_the_host_executor_is_recovered_from),
        gpu_test(skipped_site_neither_waits_nor_asks),
        gpu_test(observer_is_told_times_that_follow_each_other_and_last_as_long_as_the_kernels),
        gpu_device_test(commands_are_pending_until_they_have_passed),
        gpu_test(thousands_of_commands_are_all_told_of_in_order),
        gpu_device_test(kernels_that_coalesce_share_an_event_until_something_needs_one),
        gpu_device_test(event_behind_a_run_waits_for_all_of_it),
        gpu_device_test(run_that_gets_no_event_fails_the_record_until_recovery),
        gpu_test(any_thread_reaches_the_devices_own_gpu),
        gpu_test(random_schedules_under_delays_have_the_contents_of_a_reference_model),
    };
    return cmocka_run_group_tests_name("CUDA device", tests, NULL, NULL);
}
