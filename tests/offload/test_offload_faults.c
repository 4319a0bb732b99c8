/* Failures: kernels that fail, missing waits, uses of memory that is not mapped, and the N-th call failing
 * for N = 1, 2, 3..., injected at the device's interface and, by malloc and mmap, from outside. Built with
 * TEST_ON_CUDA only the last part remains, for the CUDA device on a fake runtime. */
#include "test_offload_fixture.h"
#include "tests/support/interpose.h"

#include <dirent.h>
#include <pthread.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

static const tide_access writes_slot_1 = {TIDE_OBJECT_DEVICE_SLOT, 1, true};

/* On CUDA a failed kernel breaks the GPU for good, the order is not checked, and faults are the driver's
 * matter. */
#ifndef TEST_ON_CUDA
/* --- kernels that fail --- */

static tide_status failing_kernel(void *stream, const void *arguments)
{
    return tide_fail(TIDE_ERROR_NONFINITE, "gradient of wte is not finite");
}

static tide_status silent_kernel(void *stream, const void *arguments)
{
    return TIDE_ERROR_DEVICE;
}

static void failed_kernel_makes_the_device_fail_until_it_recovers(fixture *it)
{
    tide_work work = work_of("check", 4);
    gate hold = {0};
    atomic_int ran = 0;
    assert_ok(launch_gate(it, TIDE_STREAM_COMPUTE, &hold));
    assert_ok(it->ops->launch(it->device, TIDE_STREAM_COMPUTE, &work, failing_kernel, NULL, 0));
    assert_ok(it->ops->event_record(it->device, it->events[0], TIDE_STREAM_COMPUTE));
    assert_ok(it->ops->failure(it->device));
    atomic_store(&hold.open, true);
    assert_ok(it->ops->event_wait(it->device, it->events[0], SITE));

    assert_int_equal(launch_count(it, TIDE_STREAM_IN, &ran), TIDE_ERROR_NONFINITE);
    assert_string_equal(tide_message(), "check 4 on stream compute failed: gradient of wte is not finite");
    assert_ok(it->ops->event_record(it->device, it->events[0], TIDE_STREAM_IN));
    assert_int_equal(it->ops->stream_wait(it->device, TIDE_STREAM_IN, it->events[0], SITE, 0),
                     TIDE_ERROR_NONFINITE);
    assert_int_equal(it->ops->copy_slot(it->device, TIDE_STREAM_IN, &work, TIDE_TIER_DEVICE, 0, 0, 1),
                     TIDE_ERROR_NONFINITE);
    assert_int_equal(it->ops->failure(it->device), TIDE_ERROR_NONFINITE);

    it->ops->synchronize(it->device);
    assert_ok(it->ops->recover(it->device));
    assert_ok(it->ops->failure(it->device));
    assert_ok(launch_count(it, TIDE_STREAM_COMPUTE, &ran));
    it->ops->synchronize(it->device);
    assert_int_equal(atomic_load(&ran), 1);
}

/* A kernel of another stream may fail between a launch and its record. The event still waits for the
 * running kernel. */
static void what_was_enqueued_before_a_failure_can_be_recorded_behind_it(fixture *it)
{
    tide_work work = work_of("check", 4);
    gate hold = {0};
    assert_ok(launch_gate(it, TIDE_STREAM_HOST, &hold));
    assert_ok(it->ops->launch(it->device, TIDE_STREAM_COMPUTE, &work, failing_kernel, NULL, 0));
    assert_ok(it->ops->event_record(it->device, it->events[0], TIDE_STREAM_COMPUTE));
    assert_ok(it->ops->event_wait(it->device, it->events[0], SITE));
    assert_int_equal(it->ops->failure(it->device), TIDE_ERROR_NONFINITE);
    assert_ok(it->ops->event_record(it->device, it->events[1], TIDE_STREAM_HOST));
    assert_false(is_done(it, it->events[1]));
    atomic_store(&hold.open, true);
    assert_ok(it->ops->event_wait(it->device, it->events[1], SITE));
    it->ops->synchronize(it->device);
    assert_ok(it->ops->recover(it->device));
}

static void after_a_failure_its_streams_kernels_are_skipped_and_all_else_goes_on(fixture *it)
{
    tide_work work = work_of("check", 4), evict = work_of("evict", 4);
    gate hold = {0};
    atomic_int skipped = 0, other = 0;
    memset(own(it, TIDE_TIER_DEVICE, 1), 6, CHUNK_BYTES);
    assert_ok(launch_gate(it, TIDE_STREAM_COMPUTE, &hold));
    assert_ok(it->ops->launch(it->device, TIDE_STREAM_COMPUTE, &work, failing_kernel, NULL, 0));
    assert_ok(launch_count(it, TIDE_STREAM_COMPUTE, &skipped));
    assert_ok(it->ops->copy_slot(it->device, TIDE_STREAM_COMPUTE, &evict, TIDE_TIER_HOST, 3, 1, CHUNK_BYTES));
    assert_ok(it->ops->event_record(it->device, it->events[0], TIDE_STREAM_COMPUTE));
    assert_ok(it->ops->stream_wait(it->device, TIDE_STREAM_OUT, it->events[0], SITE, 0));
    assert_ok(launch_count(it, TIDE_STREAM_OUT, &other));
    assert_ok(it->ops->event_record(it->device, it->events[1], TIDE_STREAM_OUT));
    atomic_store(&hold.open, true);
    assert_ok(it->ops->event_wait(it->device, it->events[1], SITE));
    assert_int_equal(it->ops->failure(it->device), TIDE_ERROR_NONFINITE);
    assert_int_equal(atomic_load(&skipped), 0);
    assert_int_equal(atomic_load(&other), 1);
    assert_int_equal(own(it, TIDE_TIER_HOST, 3)[CHUNK_BYTES - 1], 6);
}

static void failed_kernel_is_named_and_fails_its_stream_alone_until_recovery(fixture *it)
{
    const struct {
        tide_kernel kernel;
        tide_work work;
        tide_status status;
        const char *message;
    } cases[] = {
        {failing_kernel,
         {.label = "loss", .tag = 4, .op = "head"},
         TIDE_ERROR_NONFINITE,
         "kernel loss of op head failed: gradient of wte is not finite"},
        {silent_kernel,
         {.label = "mute", .tag = 6},
         TIDE_ERROR_DEVICE,
         "mute 6 on stream update failed: device"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        assert_ok(it->ops->launch(it->device, TIDE_STREAM_UPDATE, &cases[i].work, cases[i].kernel, NULL, 0));
        it->ops->synchronize(it->device);
        assert_int_equal(it->ops->failure(it->device), cases[i].status);
        assert_string_equal(tide_message(), cases[i].message);
        assert_true(it->ops->stream_failed(it->device, TIDE_STREAM_UPDATE));
        assert_false(it->ops->stream_failed(it->device, TIDE_STREAM_COMPUTE));
        assert_ok(it->ops->recover(it->device));
        assert_false(it->ops->stream_failed(it->device, TIDE_STREAM_UPDATE));
    }
}

static void recovery_while_commands_run_is_refused(fixture *it)
{
    gate hold = {0};
    assert_ok(launch_gate(it, TIDE_STREAM_IN, &hold));
    assert_int_equal(it->ops->recover(it->device), TIDE_ERROR_STATE);
    atomic_store(&hold.open, true);
    it->ops->synchronize(it->device);
    assert_ok(it->ops->recover(it->device));
}

/* --- missing waits --- */

static void missing_wait_is_named_and_the_command_not_run(fixture *it)
{
    tide_work fetch = work_of("fetch", 7), compute = work_on("block forward", 3, &writes_slot_1);
    store_arguments store = {(int *)(void *)own(it, TIDE_TIER_DEVICE, 1), 5};
    *(int *)(void *)own(it, TIDE_TIER_HOST, 0) = 4;
    assert_ok(it->ops->copy_slot(it->device, TIDE_STREAM_IN, &fetch, TIDE_TIER_DEVICE, 1, 0, CHUNK_BYTES));
    /* The event was never recorded, so the wait orders nothing. */
    it->ops->event_wait(it->device, it->events[7], SITE);
    assert_int_equal(
        it->ops->launch(it->device, TIDE_STREAM_COMPUTE, &compute, store_kernel, &store, sizeof store),
        TIDE_ERROR_HAZARD);
    assert_string_equal(tide_message(),
                        "hazard: block forward 3 on stream compute writes device slot 1 without "
                        "being ordered after fetch 7 on stream in, which wrote it");
    it->ops->synchronize(it->device);
    assert_int_not_equal(*store.memory, 5);
    assert_fails(it->ops->failure(it->device), TIDE_ERROR_HAZARD, "fetch 7 on stream in");
}

static void skipped_wait_site_is_found_by_the_checker(void **state)
{
    tide_device_options options = options_small();
    options.checks.skip_wait_site = OTHER_SITE;
    fixture it = fixture_open(&options);
    tide_work fetch = work_of("fetch", 7), compute = work_on("compute", 3, &writes_slot_1);
    atomic_int ran = 0, *counter = &ran;
    assert_ok(it.ops->copy_slot(it.device, TIDE_STREAM_IN, &fetch, TIDE_TIER_DEVICE, 1, 0, CHUNK_BYTES));
    assert_ok(it.ops->event_record(it.device, it.events[0], TIDE_STREAM_IN));
    assert_ok(it.ops->stream_wait(it.device, TIDE_STREAM_COMPUTE, it.events[0], OTHER_SITE, 0));
    assert_int_equal(
        it.ops->launch(it.device, TIDE_STREAM_COMPUTE, &compute, count_kernel, &counter, sizeof counter),
        TIDE_ERROR_HAZARD);
    const tide_device_statistics statistics = statistics_of(&it);
    assert_int_equal(statistics.waits[OTHER_SITE], 1);
    fixture_close(&it);
}

static void skipped_query_says_done_and_unmapping_in_use_is_found(void **state)
{
    tide_device_options options = options_small();
    options.checks.skip_wait_site = OTHER_SITE;
    fixture it = fixture_open(&options);
    gate hold = {0}, *held = &hold;
    tide_work compute = work_on("compute", 3, &writes_slot_1);
    bool done = false;
    assert_ok(it.ops->map(it.device, 1, place(&it, 2)));
    assert_ok(it.ops->launch(it.device, TIDE_STREAM_COMPUTE, &compute, gate_kernel, &held, sizeof held));
    assert_ok(it.ops->event_record(it.device, it.events[0], TIDE_STREAM_COMPUTE));
    assert_ok(it.ops->event_query(it.device, it.events[0], OTHER_SITE, &done));
    assert_true(done);
    assert_ok(it.ops->event_wait(it.device, it.events[0], OTHER_SITE));
    assert_int_equal(it.ops->unmap(it.device, 1, place(&it, 2)), TIDE_ERROR_HAZARD);
    assert_string_equal(tide_message(), "hazard: unmap 1 on host thread 0 writes device slot 1 without being "
                                        "ordered after compute 3 on stream compute, which wrote it");
    atomic_store(&hold.open, true);
    it.ops->synchronize(it.device);
    place(&it, 2)[0] = 1; /* the slot is still mapped */
    assert_ok(it.ops->recover(it.device));
    assert_ok(it.ops->unmap(it.device, 1, place(&it, 2)));
    fixture_close(&it);
}

static void unmapping_waits_for_the_eviction_too(fixture *it)
{
    tide_work compute = work_on("compute", 3, &writes_slot_1), evict = work_of("evict", 3);
    atomic_int ran = 0, *counter = &ran;
    assert_ok(it->ops->map(it->device, 1, place(it, 2)));
    assert_ok(
        it->ops->launch(it->device, TIDE_STREAM_COMPUTE, &compute, count_kernel, &counter, sizeof counter));
    assert_ok(it->ops->event_record(it->device, it->events[0], TIDE_STREAM_COMPUTE));
    assert_ok(it->ops->event_wait(it->device, it->events[0], SITE));
    assert_ok(it->ops->copy_slot(it->device, TIDE_STREAM_OUT, &evict, TIDE_TIER_HOST, 0, 1, CHUNK_BYTES));
    assert_fails(it->ops->unmap(it->device, 1, place(it, 2)), TIDE_ERROR_HAZARD,
                 "evict 3 on stream out, which read it");
    it->ops->synchronize(it->device);
    assert_ok(it->ops->recover(it->device));
    if (it->ops->remap != NULL) {
        assert_ok(it->ops->copy_slot(it->device, TIDE_STREAM_OUT, &evict, TIDE_TIER_HOST, 0, 1, CHUNK_BYTES));
        assert_int_equal(it->ops->remap(it->device, 1, place(it, 2), place(it, 4)), TIDE_ERROR_HAZARD);
    }
}

static void *synchronize_main(void *argument)
{
    fixture *it = argument;
    it->ops->synchronize(it->device);
    return it->ops->recover(it->device) == TIDE_OK ? NULL : it;
}

static void recovery_orders_every_thread_after_what_was(fixture *it)
{
    tide_work fetch = work_of("fetch", 7), compute = work_on("compute", 3, &writes_slot_1);
    atomic_int ran = 0, *counter = &ran;
    pthread_t thread;
    void *failed;
    assert_ok(it->ops->copy_slot(it->device, TIDE_STREAM_IN, &fetch, TIDE_TIER_DEVICE, 1, 0, CHUNK_BYTES));
    assert_int_equal(
        it->ops->launch(it->device, TIDE_STREAM_COMPUTE, &compute, count_kernel, &counter, sizeof counter),
        TIDE_ERROR_HAZARD);
    assert_int_equal(pthread_create(&thread, NULL, synchronize_main, it), 0);
    assert_int_equal(pthread_join(thread, &failed), 0);
    assert_null(failed);
    assert_ok(
        it->ops->launch(it->device, TIDE_STREAM_COMPUTE, &compute, count_kernel, &counter, sizeof counter));
    it->ops->synchronize(it->device);
}

static void host_thread_that_reads_too_early_is_found(fixture *it)
{
    tide_work evict = work_of("evict", 2);
    tide_access read = tide_reads(TIDE_OBJECT_HOST_SLOT, 3);
    tide_work look = work_on("checkpoint", 0, &read);
    assert_ok(it->ops->copy_slot(it->device, TIDE_STREAM_OUT, &evict, TIDE_TIER_HOST, 3, 0, CHUNK_BYTES));
    assert_ok(it->ops->event_record(it->device, it->events[0], TIDE_STREAM_OUT));
    assert_ok(it->ops->event_wait(it->device, it->events[0], SITE));
    assert_ok(it->ops->host_touch(it->device, &look));
    assert_ok(it->ops->copy_slot(it->device, TIDE_STREAM_OUT, &evict, TIDE_TIER_HOST, 3, 0, CHUNK_BYTES));
    it->ops->synchronize(it->device);
    assert_ok(it->ops->host_touch(it->device, &look));
    assert_ok(it->ops->copy_slot(it->device, TIDE_STREAM_OUT, &evict, TIDE_TIER_HOST, 4, 0, CHUNK_BYTES));
    read.index = 4;
    assert_int_equal(it->ops->host_touch(it->device, &look), TIDE_ERROR_HAZARD);
}

/* --- uses of memory that is not mapped --- */

static void describe_chunk(void *context, const void *address, char *text, size_t text_bytes)
{
    const fixture *it = context;
    (void)snprintf(text, text_bytes, "PARAM chunk %zu, param h.3.attn",
                   (size_t)((const char *)address - it->range) / CHUNK_BYTES);
}

typedef void (*crash_step)(fixture *it);

static void touch_unmapped(fixture *it)
{
    ((volatile char *)place(it, 5))[100] = 1;
}

static void touch_after_unmap(fixture *it)
{
    assert_ok(it->ops->map(it->device, 1, place(it, 5)));
    place(it, 5)[100] = 1;
    assert_ok(it->ops->unmap(it->device, 1, place(it, 5)));
    touch_unmapped(it);
}

static void touch_guarded(fixture *it)
{
    assert_ok(it->ops->map(it->device, 1, place(it, 5)));
    for (int i = 0; i < 2; i++) {
        assert_ok(it->ops->guard(it->device, TIDE_STREAM_COMPUTE, place(it, 5), i == 1));
        it->ops->synchronize(it->device);
    }
    place(it, 5)[100] = 1; /* accessible again */
    assert_ok(it->ops->guard(it->device, TIDE_STREAM_COMPUTE, place(it, 5), false));
    it->ops->synchronize(it->device);
    touch_unmapped(it);
}

static tide_status touch_kernel(void *stream, const void *arguments)
{
    **(volatile char *const *)arguments = 1;
    return TIDE_OK;
}

static void touch_in_a_kernel(fixture *it)
{
    char *address = place(it, 5) + 100;
    tide_work work = work_of("touch", 0);
    work.op = "block 3";
    assert_ok(
        it->ops->launch(it->device, TIDE_STREAM_COMPUTE, &work, touch_kernel, &address, sizeof address));
    it->ops->synchronize(it->device);
}

static void touch_elsewhere(fixture *it)
{
    char *volatile nowhere = (char *)64;
    *(volatile char *)nowhere = 1;
}

/* The child's main function. It resets the signal handlers, since cmocka's would keep the crash from
 * ending the child. */
static void child_main(crash_step crash, int error_fd)
{
    (void)signal(SIGSEGV, SIG_DFL);
    (void)signal(SIGBUS, SIG_DFL);
    (void)dup2(error_fd, STDERR_FILENO);
    tide_device_options options = options_small();
    options.checks.fault_handler = true;
    fixture it = {0};
    if (tide_device_host_open(&options, &it.device) != TIDE_OK)
        _exit(99);
    it.ops = it.device->ops;
    fixture_fill(&it);
    it.ops->set_describe(it.device, describe_chunk, &it);
    crash(&it);
    _exit(98);
}

/* Runs `crash` in a child process; returns its wait status and its output on stderr. */
static int child_run(crash_step crash, char *text, size_t text_bytes)
{
    int pipe_fds[2], how = 0;
    assert_int_equal(pipe(pipe_fds), 0);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0)
        child_main(crash, pipe_fds[1]);
    close(pipe_fds[1]);
    size_t length = 0;
    ssize_t got;
    while (length < text_bytes - 1 && (got = read(pipe_fds[0], text + length, text_bytes - 1 - length)) > 0)
        length += (size_t)got;
    text[length] = '\0';
    close(pipe_fds[0]);
    assert_int_equal(waitpid(child, &how, 0), child);
    return how;
}

static void crash_says(crash_step crash, const char *words, const char *end)
{
    char text[4096];
    int how = child_run(crash, text, sizeof text);
    assert_true(WIFSIGNALED(how));
    assert_true(WTERMSIG(how) == SIGSEGV || WTERMSIG(how) == SIGBUS);
    if (words == NULL) {
        assert_null(strstr(text, "tidepool"));
        return;
    }
    assert_non_null(strstr(text, words));
    const char *described = strstr(text, "PARAM chunk 5, param h.3.attn");
    assert_non_null(described);
    assert_string_equal(strchr(described, '.') + strlen(".3.attn"), end);
    assert_ptr_equal(strstr(text, "tidepool: fault"), text);
}

static void use_of_a_chunk_that_is_not_there_ends_the_process_with_its_description(void **state)
{
    const char *unmapped = "range 0, chunk place 5 + 100 bytes, not mapped: ";
    crash_says(touch_unmapped, unmapped, "\n");
    crash_says(touch_after_unmap, unmapped, "\n");
    crash_says(touch_in_a_kernel, unmapped, "; touch of op block 3 runs\n");
    crash_says(touch_guarded, "range 0, chunk place 5 + 100 bytes, guarded: ", "\n");
}

static void faults_elsewhere_are_none_of_our_business(void **state)
{
    crash_says(touch_elsewhere, NULL, NULL);
}

static void handler_there_before_is_there_again_afterwards(void **state)
{
    struct sigaction before, during, after;
    tide_device_options options = options_small();
    options.checks.fault_handler = true;
    assert_int_equal(sigaction(SIGSEGV, NULL, &before), 0);
    fixture first = fixture_open(&options), second = fixture_open(&options);
    assert_int_equal(sigaction(SIGSEGV, NULL, &during), 0);
    assert_ptr_not_equal(during.sa_sigaction, before.sa_sigaction);
    fixture_close(&first);
    assert_int_equal(sigaction(SIGSEGV, NULL, &after), 0);
    assert_ptr_equal(after.sa_sigaction, during.sa_sigaction);
    fixture_close(&second);
    assert_int_equal(sigaction(SIGSEGV, NULL, &after), 0);
    assert_ptr_equal(after.sa_sigaction, before.sa_sigaction);
}

#endif

/* --- the N-th call fails --- */

/* A life of a device is a list of calls, each of which can be repeated after it failed. */
typedef tide_status (*life_step)(fixture *it);

typedef struct life_call {
    const char *name;
    life_step step;
    uint32_t fault; /* TIDE_FAULT_* kind of the call; 0: none */
} life_call;

static tide_status (*open_device)(const tide_device_options *, tide_device **) = device_open;

static tide_status life_open(fixture *it)
{
    tide_device_options options = options_small();
#ifndef TEST_ON_CUDA
    options.checks.fault_handler = true;
#endif
    tide_status status = open_device(&options, &it->device);
    if (status == TIDE_OK)
        it->ops = it->device->ops;
    return status;
}

static tide_status life_device_slots(fixture *it)
{
    return it->ops->slots_create(it->device, TIDE_TIER_DEVICE, DEVICE_SLOTS);
}

static tide_status life_host_slots(fixture *it)
{
    return it->ops->slots_create(it->device, TIDE_TIER_HOST, HOST_SLOTS);
}

static tide_status life_reserve(fixture *it)
{
    return it->ops->reserve(it->device, RANGE_CHUNKS * CHUNK_BYTES, (void **)&it->range);
}

static tide_status life_region(fixture *it)
{
    return it->ops->region_create(it->device, REGION_BYTES, (void **)&it->region);
}

static tide_status life_part(fixture *it)
{
    return it->ops->region_object(it->device, "part", 0, 256, &it->region_object);
}

static tide_status life_buffer(fixture *it)
{
    return it->ops->buffer_create(it->device, "batch", BUFFER_BYTES, (void **)&it->buffer,
                                  &it->buffer_object);
}

static tide_status life_event(fixture *it)
{
    return it->ops->event_create(it->device, &it->events[0]);
}

static tide_status life_map(fixture *it)
{
    return it->ops->map(it->device, 1, place(it, 3));
}

static tide_status life_fetch(fixture *it)
{
    tide_work work = work_of("fetch", 3);
    return it->ops->copy_slot(it->device, TIDE_STREAM_IN, &work, TIDE_TIER_DEVICE, 1, 2, CHUNK_BYTES);
}

static tide_status life_stage(fixture *it)
{
    tide_access accesses[] = {tide_reads(TIDE_OBJECT_BUFFER, it->buffer_object),
                              tide_writes(TIDE_OBJECT_REGION, it->region_object)};
    tide_work work = {.label = "stage", .accesses = accesses, .access_count = 2};
    return it->ops->copy_bytes(it->device, TIDE_STREAM_IN, &work, it->region, it->buffer, 256, true);
}

static tide_status life_record(fixture *it)
{
    return it->ops->event_record(it->device, it->events[0], TIDE_STREAM_IN);
}

static tide_status life_wait(fixture *it)
{
    return it->ops->stream_wait(it->device, TIDE_STREAM_COMPUTE, it->events[0], SITE, 0);
}

static tide_status life_launch(fixture *it)
{
    tide_work work = work_on("compute", 3, &writes_slot_1);
    store_arguments mix = {(int *)(void *)place(it, 3), 5}; /* the chunk was fetched with zeros */
    return it->ops->launch(it->device, TIDE_STREAM_COMPUTE, &work, mix_kernel, &mix, sizeof mix);
}

static tide_status life_unmap(fixture *it)
{
    it->ops->synchronize(it->device);
    return it->ops->unmap(it->device, 1, place(it, 3));
}

static const life_call lives[] = {
    {"open", life_open, 0},
    {"device slots", life_device_slots, TIDE_FAULT_MEMORY},
    {"host slots", life_host_slots, TIDE_FAULT_MEMORY},
    {"reserve", life_reserve, TIDE_FAULT_MEMORY},
    {"region", life_region, TIDE_FAULT_MEMORY},
    {"part", life_part, TIDE_FAULT_MEMORY},
    {"buffer", life_buffer, TIDE_FAULT_MEMORY},
    {"event", life_event, TIDE_FAULT_MEMORY},
    {"map", life_map, TIDE_FAULT_MAP},
    {"fetch", life_fetch, TIDE_FAULT_COPY},
    {"stage", life_stage, TIDE_FAULT_COPY},
    {"record", life_record, 0},
    {"wait", life_wait, 0},
    {"launch", life_launch, TIDE_FAULT_LAUNCH},
    {"unmap", life_unmap, TIDE_FAULT_MAP},
};
enum { LIFE_STEPS = sizeof lives / sizeof lives[0] };

static tide_memory_usage used(const fixture *it, tide_tier tier)
{
    tide_memory_usage usage = {0};
    if (it->device != NULL)
        it->ops->usage(it->device, tier, &usage);
    return usage;
}

/* Makes a call. If it fails, the memory accounts must be unchanged and a second try must succeed. Returns
 * false then. */
static bool step_make(fixture *it, const life_call *call)
{
    tide_memory_usage before[] = {used(it, TIDE_TIER_DEVICE), used(it, TIDE_TIER_HOST)};
    tide_status status = call->step(it);
    if (status == TIDE_OK)
        return true;
    tide_memory_usage after[] = {used(it, TIDE_TIER_DEVICE), used(it, TIDE_TIER_HOST)};
    assert_memory_equal(before, after, sizeof before);
    assert_true(status == TIDE_ERROR_NO_MEMORY || status == TIDE_ERROR_DEVICE);
    assert_true(strlen(tide_message()) > 0);
    assert_ok(call->step(it));
    return false;
}

/* Runs a whole life. Returns the name of the call that failed (and then succeeded), or NULL if none did. */
static const char *life_run(int first_fault_countdown, uint32_t mask)
{
    fixture it = {0};
    const char *failed = NULL;
    for (int i = 0; i < LIFE_STEPS; i++) {
        if (!step_make(&it, &lives[i]))
            failed = lives[i].name;
        if (i == 0 && mask != 0)
            it.ops->set_fault(it.device, mask, (uint64_t)first_fault_countdown);
    }
    it.ops->synchronize(it.device);
    assert_ok(it.ops->failure(it.device));
    if (it.ops->has_data)
        assert_int_equal(*(int *)(void *)own(&it, TIDE_TIER_DEVICE, 1), 5);
    fixture_close(&it);
    return failed;
}

static int open_files(void)
{
    int count = 0;
    DIR *folder = opendir("/proc/self/fd");
    assert_non_null(folder);
    while (readdir(folder) != NULL)
        count++;
    closedir(folder);
    return count;
}

static void each_injected_fault_fails_its_call_once(void **state)
{
    int files_before = open_files();
    int expected_step = 0, countdown = 1;
    for (;; countdown++) {
        const char *failed = life_run(countdown, TIDE_FAULT_ANY);
        if (failed == NULL)
            break;
        while (lives[expected_step].fault == 0)
            expected_step++;
        assert_string_equal(failed, lives[expected_step++].name);
    }
    assert_int_equal(countdown, 13); /* twelve of the calls can fail by injection */
    assert_int_equal(open_files(), files_before);
}

static void faults_count_only_what_the_mask_names(void **state)
{
    assert_string_equal(life_run(1, TIDE_FAULT_MAP), "map");
    assert_string_equal(life_run(2, TIDE_FAULT_MAP), "unmap");
    assert_string_equal(life_run(2, TIDE_FAULT_COPY), "stage");
    assert_string_equal(life_run(1, TIDE_FAULT_LAUNCH | TIDE_FAULT_COPY), "fetch");
    assert_null(life_run(2, TIDE_FAULT_LAUNCH));
}

static void null_device_fails_alike(void **state)
{
    open_device = tide_device_null_open;
    each_injected_fault_fails_its_call_once(state);
    open_device = device_open;
}

/* Fails each malloc (or mmap) of a whole life once. Nothing may leak, and the call that failed must then
 * succeed. */
static void system_fails(uint32_t mask, int at_least)
{
    if (!interpose_active()) {
        print_message(INTERPOSE_SKIPPED);
        skip();
    }
    assert_null(life_run(0, 0)); /* the C library caches thread stacks; this life fills that cache */
    int files_before = open_files(), strikes = 0;
    for (uint64_t countdown = 1;; countdown++) {
        interpose_arm();
        interpose_fail(mask, countdown);
        (void)life_run(0, 0);
        interpose_disarm();
        interpose_counts counts = interpose_read();
        assert_int_equal(counts.mapped_bytes, 0);
        assert_int_equal(counts.live, 0);
        if (!interpose_has_failed())
            break;
        strikes++;
    }
    assert_true(strikes >= at_least);
    assert_int_equal(open_files(), files_before);
}

static void each_malloc_may_fail(void **state)
{
    system_fails(INTERPOSE_MALLOC, 8);
}

static void each_mmap_may_fail(void **state)
{
#ifdef TEST_ON_CUDA
    /* Host slots and the buffer; the driver's own mappings can't fail here. */
    system_fails(INTERPOSE_MMAP, 2);
#else
    system_fails(INTERPOSE_MMAP, 6);
#endif
}

int main(void)
{
    const struct CMUnitTest tests[] = {
#ifndef TEST_ON_CUDA
        device_test(failed_kernel_makes_the_device_fail_until_it_recovers),
        device_test(what_was_enqueued_before_a_failure_can_be_recorded_behind_it),
        device_test(after_a_failure_its_streams_kernels_are_skipped_and_all_else_goes_on),
        device_test(failed_kernel_is_named_and_fails_its_stream_alone_until_recovery),
        device_test(recovery_while_commands_run_is_refused),
        device_test(missing_wait_is_named_and_the_command_not_run),
        cmocka_unit_test(skipped_wait_site_is_found_by_the_checker),
        cmocka_unit_test(skipped_query_says_done_and_unmapping_in_use_is_found),
        device_test(unmapping_waits_for_the_eviction_too),
        device_test(recovery_orders_every_thread_after_what_was),
        device_test(host_thread_that_reads_too_early_is_found),
        cmocka_unit_test(use_of_a_chunk_that_is_not_there_ends_the_process_with_its_description),
        cmocka_unit_test(faults_elsewhere_are_none_of_our_business),
        cmocka_unit_test(handler_there_before_is_there_again_afterwards),
#endif
        cmocka_unit_test(each_injected_fault_fails_its_call_once),
        cmocka_unit_test(faults_count_only_what_the_mask_names),
        cmocka_unit_test(null_device_fails_alike),
        cmocka_unit_test(each_malloc_may_fail),
        cmocka_unit_test(each_mmap_may_fail),
    };
#ifdef TEST_ON_CUDA
    const char *group = "CUDA device's faults";
#else
    const char *group = "device faults";
#endif
    return cmocka_run_group_tests_name(group, tests, NULL, NULL);
}
