/* The CUDA device inside a foreign process, on a fake CUDA runtime: beside other libraries that use GPUs,
 * in threads that it did not create, in processes that fork, and on machines whose memory grows. Calls
 * that a pool makes often must be fast. */
#include "offload/free_memory.h"
#include "test_offload_fixture.h"

#include <cuda_runtime_api.h>
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

static void another_librarys_choice_of_gpu_does_not_last(void **state)
{
    fake_cudart_options gpu = fake_cudart_defaults();
    gpu.gpus = 2;
    gpu.gpu = 0;
    fake_cudart_start(&gpu);
    fixture it = fixture_small();
    atomic_int ran = 0;
    int current = -1;
    assert_int_equal(cudaSetDevice(1), cudaSuccess);
    assert_ok(launch_count(&it, TIDE_STREAM_COMPUTE, &ran));
    assert_int_equal(cudaGetDevice(&current), cudaSuccess);
    assert_int_equal(current, 0);
    it.ops->synchronize(it.device);
    assert_int_equal(atomic_load(&ran), 1);
    fixture_close(&it); /* fails the test if a call went to the other GPU */
}

static void gpu_that_is_current_is_not_set_again(fixture *it)
{
    atomic_int ran = 0;
    const uint64_t before = fake_cudart_count("cudaSetDevice");
    for (int i = 0; i < 10; i++)
        assert_ok(launch_count(it, TIDE_STREAM_COMPUTE, &ran));
    assert_int_equal(fake_cudart_count("cudaSetDevice"), before);
    it->ops->synchronize(it->device);
}

static void asking_for_a_failure_asks_no_stream(fixture *it)
{
    gate held = {0};
    assert_ok(launch_gate(it, TIDE_STREAM_COMPUTE, &held));
    const uint64_t before = fake_cudart_count(NULL);
    for (int i = 0; i < 10; i++)
        assert_ok(it->ops->failure(it->device));
    assert_int_equal(fake_cudart_count(NULL), before);
    atomic_store(&held.open, true);
    it->ops->synchronize(it->device);
}

static void caller_that_only_launches_meets_the_failure_of_a_kernel(fixture *it)
{
    atomic_int ran = 0;
    fake_cudart_fail_command(1, cudaErrorIllegalAddress);
    (void)launch_count(it, TIDE_STREAM_COMPUTE, &ran); /* this call may report the failure already */
    /* Waits until the stream has run the failing command. */
    for (int current; cudaGetDevice(&current) == cudaSuccess;)
        (void)usleep(100);
    assert_int_equal(launch_count(it, TIDE_STREAM_COMPUTE, &ran), TIDE_ERROR_DEVICE);
    assert_int_equal(it->ops->failure(it->device), TIDE_ERROR_DEVICE);
    it->ops->synchronize(it->device);
}

/* Returns non-NULL if park has set the thread's timer slack to 1 ns, so that its sleeps end in time.
 * (Measured times would be unreliable.) */
static void *park_once(void *context)
{
    fixture *it = context;
    const uint64_t ticket = it->ops->doorbell(it->device);
    it->ops->ring(it->device);
    assert_ok(it->ops->park(it->device, ticket, true));
    return prctl(PR_GET_TIMERSLACK) == 1 ? it : NULL;
}

static void thread_that_parks_sleeps_sharply(fixture *it)
{
    pthread_t thread;
    void *sharp = NULL;
    assert_int_equal(prctl(PR_SET_TIMERSLACK, 50000ul), 0); /* a new thread inherits this value */
    assert_int_equal(pthread_create(&thread, NULL, park_once, it), 0);
    assert_int_equal(pthread_join(thread, &sharp), 0);
    assert_ptr_equal(sharp, it);
}

/* cudaEventSynchronize would spin, or need an interrupt for every event. */
static void thread_that_waits_for_an_event_sleeps_between_looks(fixture *it)
{
    atomic_int ran = 0;
    const uint64_t before = fake_cudart_count("cudaEventSynchronize");
    for (int i = 0; i < 300; i++)
        assert_ok(launch_count(it, TIDE_STREAM_COMPUTE, &ran));
    assert_ok(it->ops->event_record(it->device, it->events[0], TIDE_STREAM_COMPUTE));
    assert_ok(it->ops->event_wait(it->device, it->events[0], SITE));
    assert_int_equal(atomic_load(&ran), 300);
    assert_int_equal(fake_cudart_count("cudaEventSynchronize"), before);
}

static atomic_int threads_wanted;

static void threads_note(int count)
{
    atomic_store(&threads_wanted, count);
}

/* A module loaded with RTLD_LOCAL may not see the process's OpenMP, so it gets a function to set the
 * number of threads. */
static void host_executor_sets_its_threads_by_the_function_that_it_is_given(void **state)
{
    tide_device_options options = options_small();
    options.threads = 3;
    options.threads_set = threads_note;
    fixture it = fixture_open(&options);
    it.ops->synchronize(it.device);
    assert_int_equal(atomic_load(&threads_wanted), 3);
    fixture_close(&it);
}

/* The caller's and the engine's threads need a processor each; else a step waits for them while Adam runs. */
static void adams_team_leaves_two_processors_unless_it_was_told_how_many_to_take(void **state)
{
    /* Number of processors, size of Adam's team. */
    const uint32_t teams[][2] = {{1, 1}, {2, 1}, {3, 1}, {4, 2}, {16, 14}};
    for (size_t i = 0; i < sizeof teams / sizeof teams[0]; i++) {
        assert_int_equal(tide_cuda_executor_threads(0, teams[i][0]), teams[i][1]);
        assert_int_equal(tide_cuda_executor_threads(7, teams[i][0]), 7);
    }
    tide_device_options options = options_small();
    cpu_set_t processors;
    assert_int_equal(sched_getaffinity(0, sizeof processors, &processors), 0);
    options.threads = 0;
    options.threads_set = threads_note;
    fixture it = fixture_open(&options);
    const int team = (int)tide_cuda_executor_threads(0, (uint32_t)CPU_COUNT(&processors));
    assert_int_equal(atomic_load(&threads_wanted), team);
    const tide_device_statistics statistics = statistics_of(&it);
    assert_int_equal(statistics.host_threads, team);
    fixture_close(&it);
}

static void forked_child_has_no_host_slots(fixture *it)
{
    unsigned char pages[CHUNK_BYTES / 4096];
    const pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0)
        _exit(mincore(own(it, TIDE_TIER_HOST, 0), CHUNK_BYTES, pages) != 0 && errno == ENOMEM ? 0 : 1);
    int ended = -1;
    assert_int_equal(waitpid(child, &ended, 0), child);
    assert_int_equal(ended, 0);
    assert_int_equal(mincore(own(it, TIDE_TIER_HOST, 0), CHUNK_BYTES, pages), 0);
}

/* --- a machine whose memory grows, or does not grow --- */

enum { PIECE_BYTES = 64 << 20, PINNED_BYTES = 3 * PIECE_BYTES };

/* A simulated machine with memory for one piece of the host slots; later it has memory for all, or never. */
typedef struct slow_machine {
    uint64_t grows_ns; /* when its memory grows; UINT64_MAX: never */
    uint64_t limit_bytes;
    bool is_whole; /* true: the machine uses all its memory already; false: more may be plugged in */
    bool time_stands;
    _Atomic uint64_t ns;
    _Atomic unsigned looks;
} slow_machine;

static const tide_free_memory_machine *simulated; /* NULL: the real machine */

const tide_free_memory_machine *__real_tide_free_memory_machine_system(void);
const tide_free_memory_machine *__wrap_tide_free_memory_machine_system(void);

const tide_free_memory_machine *__wrap_tide_free_memory_machine_system(void)
{
    return simulated != NULL ? simulated : __real_tide_free_memory_machine_system();
}

static uint64_t slow_available_bytes(void *context)
{
    slow_machine *it = context;
    const unsigned looks = atomic_fetch_add(&it->looks, 1); /* the first look is before any memory is given */
    if (atomic_load(&it->ns) >= it->grows_ns)
        return UINT64_C(20) * PIECE_BYTES;
    return looks < 2 ? 2 * PIECE_BYTES : 0;
}

static uint64_t slow_limit_bytes(void *context)
{
    return ((slow_machine *)context)->limit_bytes;
}

static uint64_t slow_dormant_bytes(void *context)
{
    return ((slow_machine *)context)->is_whole ? 0 : UINT64_MAX;
}

static uint64_t slow_now_ns(void *context)
{
    return atomic_load(&((slow_machine *)context)->ns);
}

static void slow_sleep_until(void *context, uint64_t ns)
{
    slow_machine *it = context;
    if (!it->time_stands)
        atomic_store(&it->ns, ns);
    (void)sched_yield();
}

/* Pins host slots of three pieces with three threads, one piece each, on the simulated machine. */
static tide_status pin_on(slow_machine *machine, fixture *it)
{
    const tide_free_memory_machine simulation = {slow_available_bytes, slow_limit_bytes, slow_dormant_bytes,
                                                 slow_now_ns,          slow_sleep_until, machine};
    tide_device_options options = options_small();
    options.host_memory_bytes = PINNED_BYTES;
    options.threads = 3;
    if (it->device == NULL)
        assert_ok(device_open(&options, &it->device));
    it->ops = it->device->ops;
    simulated = &simulation;
    const tide_status status =
        it->ops->slots_create(it->device, TIDE_TIER_HOST, (uint32_t)(PINNED_BYTES / CHUNK_BYTES));
    simulated = NULL;
    return status;
}

/* A thread that has not used CUDA before sets its GPU once, so the number of calls of cudaSetDevice is the
 * number of threads. */
static void as_many_threads_unpin_host_slots_as_pinned_them(void **state)
{
    slow_machine machine = {.grows_ns = 0, .limit_bytes = UINT64_MAX};
    fixture it = {0};
    assert_ok(pin_on(&machine, &it));
    const uint64_t before = fake_cudart_count("cudaSetDevice");
    it.ops->close(it.device);
    assert_int_equal(fake_cudart_count("cudaHostUnregister"), 3);
    assert_int_equal(fake_cudart_count("cudaSetDevice"), before + 3);
    const fake_cudart_options anew = fake_cudart_defaults();
    fake_cudart_start(&anew);
}

static void machine_that_grows_while_host_slots_are_pinned_gets_them_all(void **state)
{
    slow_machine machine = {.grows_ns = 1000000000, .limit_bytes = UINT64_MAX};
    fixture it = {0};
    assert_ok(pin_on(&machine, &it));
    assert_true(machine.ns >= machine.grows_ns);
    const tide_device_statistics statistics = statistics_of(&it);
    assert_int_equal(statistics.pinning.bytes, PINNED_BYTES);
    assert_int_equal(statistics.pinning.threads, 3);
    assert_true(statistics.pinning.touch_ns > 0 && statistics.pinning.register_ns > 0 &&
                statistics.pinning.wait_ns > 0);
    assert_true(statistics.pinning.touch_ns + statistics.pinning.register_ns + statistics.pinning.wait_ns <=
                3 * statistics.pinning.wall_ns);
    fixture_close(&it);
}

typedef struct told {
    unsigned calls;
    uint64_t first_bytes, last_bytes, total_bytes;
    uint64_t registered; /* calls of cudaHostRegister before the first call of tell() */
} told;

static void tell(void *context, const char *what, uint64_t done_bytes, uint64_t total_bytes)
{
    told *it = context;
    if (strcmp(what, "pinned host slots") != 0)
        return;
    if (it->calls++ == 0) {
        it->first_bytes = done_bytes;
        it->registered = fake_cudart_count("cudaHostRegister");
    }
    it->last_bytes = done_bytes;
    it->total_bytes = total_bytes;
}

/* Without a call before the first piece, the program would time only the pieces after it. */
static void progress_of_pinning_begins_before_the_first_piece_and_ends_with_the_last(void **state)
{
    slow_machine machine = {.grows_ns = 0, .limit_bytes = UINT64_MAX};
    told it = {.first_bytes = UINT64_MAX};
    tide_device_options options = options_small();
    fixture made = {0};
    options.host_memory_bytes = PINNED_BYTES;
    options.threads = 3;
    options.progress = tell;
    options.progress_context = &it;
    assert_ok(device_open(&options, &made.device));
    assert_ok(pin_on(&machine, &made));
    assert_int_equal(it.calls, 1 + 3);
    assert_int_equal(it.first_bytes + it.registered, 0);
    assert_int_equal(it.last_bytes, PINNED_BYTES);
    assert_int_equal(it.total_bytes, PINNED_BYTES);
    fixture_close(&made);
}

static void unpinning_that_fails_is_told_behind_why_it_was_done(void **state)
{
    slow_machine machine = {.grows_ns = 0, .limit_bytes = UINT64_MAX};
    fixture it = {0};
    fake_cudart_options two_pieces = fake_cudart_defaults();
    two_pieces.pinned_bytes = 2 * PIECE_BYTES;
    fake_cudart_start(&two_pieces);
    fake_cudart_fail("cudaHostUnregister", 2, cudaErrorUnknown, false);
    assert_fails(pin_on(&machine, &it), TIDE_ERROR_NO_MEMORY,
                 "134217728 of 201326592 bytes were pinned, then: ");
    expect_words(" (then, undoing it, cudaHostUnregister: cudaErrorUnknown)");
    assert_int_equal(fake_cudart_count("cudaHostUnregister"), 2);
    fixture_close(&it);
}

static void machine_without_so_much_refuses_host_slots_and_nothing_stays_pinned(void **state)
{
    static const struct {
        slow_machine machine;
        const char *words[2];
        bool at_once; /* at the first look, before anything is pinned */
    } cases[] = {
        {{.grows_ns = UINT64_MAX, .limit_bytes = UINT64_MAX},
         {"of 201326592 bytes were pinned, then: host slots: of 201326592 bytes wanted 67108864 were touched",
          "a host budget of 67108864 bytes would do"},
         false},
        {{.grows_ns = 0, .limit_bytes = PINNED_BYTES - 1}, {"201326591 available", ""}, true},
        {{.grows_ns = UINT64_MAX, .limit_bytes = UINT64_MAX, .is_whole = true},
         {"the machine has 134217728 available and 0 that it does not use yet", ""},
         true},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        slow_machine machine = cases[i].machine, enough = {.grows_ns = 0, .limit_bytes = UINT64_MAX};
        fixture it = {0};
        assert_fails(pin_on(&machine, &it), TIDE_ERROR_NO_MEMORY, cases[i].words[0]);
        expect_words(cases[i].words[1]);
        assert_int_equal(fake_cudart_count("cudaHostRegister") == 0 && machine.looks == 1, cases[i].at_once);
        assert_int_equal(fake_cudart_count("cudaHostUnregister"), fake_cudart_count("cudaHostRegister"));
        assert_ok(pin_on(&enough, &it)); /* the same call on a machine with enough memory */
        fixture_close(&it);
    }
}

/* Other threads wait for free memory and would give up only after some time; here the clock stands still,
 * so they would wait for ever. */
static void who_waits_for_room_stops_when_another_piece_could_not_be_registered(void **state)
{
    slow_machine machine = {.grows_ns = UINT64_MAX, .limit_bytes = UINT64_MAX, .time_stands = true};
    fixture it = {0};
    fake_cudart_fail("cudaHostRegister", 1, cudaErrorMemoryAllocation, true);
    assert_fails(pin_on(&machine, &it), TIDE_ERROR_NO_MEMORY,
                 "0 of 201326592 bytes were pinned, then: host slots: 67108864 bytes could not be pinned");
    fixture_close(&it);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(another_librarys_choice_of_gpu_does_not_last),
        device_test(gpu_that_is_current_is_not_set_again),
        device_test(asking_for_a_failure_asks_no_stream),
        device_test(caller_that_only_launches_meets_the_failure_of_a_kernel),
        device_test(thread_that_parks_sleeps_sharply),
        device_test(thread_that_waits_for_an_event_sleeps_between_looks),
        cmocka_unit_test(host_executor_sets_its_threads_by_the_function_that_it_is_given),
        cmocka_unit_test(adams_team_leaves_two_processors_unless_it_was_told_how_many_to_take),
        device_test(forked_child_has_no_host_slots),
        cmocka_unit_test(machine_that_grows_while_host_slots_are_pinned_gets_them_all),
        cmocka_unit_test(progress_of_pinning_begins_before_the_first_piece_and_ends_with_the_last),
        cmocka_unit_test(as_many_threads_unpin_host_slots_as_pinned_them),
        cmocka_unit_test(unpinning_that_fails_is_told_behind_why_it_was_done),
        cmocka_unit_test(machine_without_so_much_refuses_host_slots_and_nothing_stays_pinned),
        cmocka_unit_test(who_waits_for_room_stops_when_another_piece_could_not_be_registered),
    };
    return cmocka_run_group_tests_name("the CUDA device as a guest", tests, NULL, NULL);
}
