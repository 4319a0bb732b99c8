/* The times of a GPU's commands on the host's clock: cuda_clock.c alone, on a fake GPU. The test decides
 * when events end, sets the times that the GPU stamps, perhaps at another speed, and moves the host's
 * clock. Times in this file are microseconds. */
#include "base/clock.h"
#include "offload/cuda/cuda_clock.h"
#include "offload/host_link.h"
#include "tests/support/assert_ok.h"

#include <stdlib.h>
#include <string.h>

/* --- the GPU --- */

struct CUevent_st {
    bool recorded, done;
    double gpu_us;
};

static double now_us, gpu_us; /* the host's clock; the GPU's stamp for a record that ends now */
static uint32_t live_events;
static cudaError_t record_error; /* returned by all records until the test changes it */
/* The event that the latest query found incomplete; the host's next sleep completes it. */
static cudaEvent_t awaited;

uint64_t tide_clock_ns(void)
{
    return (uint64_t)(now_us * 1000);
}

void tide_host_sleep_sharply(void) {}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned flags)
{
    assert_int_equal(flags, cudaEventDefault); /* records times; a wait for it takes no interrupt */
    *event = calloc(1, sizeof **event);
    live_events += *event != NULL;
    return *event != NULL ? cudaSuccess : cudaErrorMemoryAllocation;
}

cudaError_t cudaEventDestroy(cudaEvent_t event)
{
    free(event);
    live_events--;
    return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream)
{
    if (record_error == cudaSuccess)
        *event = (struct CUevent_st){.recorded = true};
    return record_error;
}

static void event_end(cudaEvent_t event, double at_gpu_us)
{
    assert_true(event->recorded && !event->done);
    event->done = true;
    event->gpu_us = at_gpu_us;
}

void tide_host_sleep_until(uint64_t deadline_ns)
{
    now_us = (double)deadline_ns / 1000;
    assert_non_null(awaited);
    event_end(awaited, gpu_us);
    awaited = NULL;
}

cudaError_t cudaEventSynchronize(cudaEvent_t event)
{
    if (!event->done)
        event_end(event, gpu_us);
    return cudaSuccess;
}

cudaError_t cudaEventQuery(cudaEvent_t event)
{
    awaited = event->done ? awaited : event;
    return event->done ? cudaSuccess : cudaErrorNotReady;
}

cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t start, cudaEvent_t end)
{
    assert_true(start->done && end->done);
    *ms = (float)((end->gpu_us - start->gpu_us) * 1e-3);
    return cudaSuccess;
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags)
{
    return cudaSuccess;
}

cudaError_t cudaGetLastError(void)
{
    return cudaSuccess;
}

const char *cudaGetErrorName(cudaError_t error)
{
    return "an error";
}

const char *cudaGetErrorString(cudaError_t error)
{
    return cudaGetErrorName(error);
}

cudaError_t cudaGetDevice(int *ordinal)
{
    *ordinal = 0;
    return cudaSuccess;
}

cudaError_t cudaSetDevice(int ordinal)
{
    return cudaSuccess;
}

cudaError_t cudaGetDriverEntryPointByVersion(const char *symbol, void **address, unsigned version,
                                             unsigned long long flags,
                                             enum cudaDriverEntryPointQueryResult *found)
{
    return cudaErrorNotSupported;
}

/* --- the test's fixture and its steps --- */

typedef struct fixture {
    tide_cuda_clock clock;
    uint32_t seen;
    double begin_us, end_us; /* of the last observed command */
    double flops;
} fixture;

static void observe(void *context, const tide_observed *command)
{
    fixture *it = context;
    assert_int_equal(command->stream, TIDE_STREAM_IN);
    assert_string_equal(command->label, "fetch");
    assert_int_equal(command->tag, it->seen);
    assert_true(command->begin_ns <= command->end_ns);
    it->seen++;
    it->begin_us = (double)command->begin_ns * 1e-3;
    it->end_us = (double)command->end_ns * 1e-3;
    it->flops = command->flops;
}

/* Opens the clock while the host's clock shows 1000 and the GPU's 5000. */
static fixture *fixture_open(void)
{
    fixture *it = calloc(1, sizeof *it);
    assert_non_null(it);
    const tide_device_options options = {.observer = observe, .observer_context = it};
    now_us = 1000;
    gpu_us = 5000;
    assert_ok(tide_cuda_clock_open(&it->clock, TIDE_STREAM_IN, NULL, &options));
    return it;
}

static void fixture_close(fixture *it)
{
    tide_cuda_clock_close(&it->clock);
    assert_int_equal(live_events, 0);
    free(it);
}

/* A case of a clock that is opened and closed around it. */
typedef struct clock_case {
    void (*run)(fixture *it);
} clock_case;

static void clock_case_run(void **state)
{
    fixture *it = fixture_open();
    ((const clock_case *)*state)->run(it);
    fixture_close(it);
}
#define clock_test(name) ((struct CMUnitTest){#name, clock_case_run, NULL, NULL, &(clock_case){name}})

static void enqueue_work(fixture *it, double at_us, const tide_work *work)
{
    uint64_t events = 0;
    now_us = at_us;
    assert_ok(tide_cuda_clock_reserve(&it->clock, &events));
    assert_ok(tide_cuda_clock_enter(&it->clock, work, false, tide_clock_ns()));
}

static void enqueue_at(fixture *it, double at_us)
{
    const uint32_t tag = (uint32_t)atomic_load(&it->clock.enqueued);
    enqueue_work(it, at_us, &(tide_work){.label = "fetch", .tag = tag});
}

/* Enqueues a kernel that may coalesce with the one before into a run, which is observed as one command. */
static void enqueue_of_run(fixture *it, double at_us, double flops)
{
    enqueue_work(it, at_us, &(tide_work){.label = "fetch", .flops = flops, .may_coalesce = true});
}

static void end_next(fixture *it, double at_gpu_us)
{
    const uint64_t next = atomic_load(&it->clock.harvested) + 1;
    event_end(it->clock.ring[next % TIDE_CUDA_RING_ENTRIES].done, at_gpu_us);
}

static void look_at(fixture *it, double at_us)
{
    uint64_t events = 0;
    now_us = at_us;
    assert_ok(tide_cuda_clock_harvest(&it->clock, &events));
}

static void assert_span(const fixture *it, double begin_us, double end_us)
{
    assert_float_equal(it->begin_us, begin_us, 0.6); /* us; CUDA's event times have a resolution of 0.5 */
    assert_float_equal(it->end_us, end_us, 0.6);
}

/* --- tests --- */

static void end_is_measured_from_the_end_before(fixture *it)
{
    enqueue_at(it, 1010);
    end_next(it, 5050);
    look_at(it, 1100);
    assert_span(it, 1010, 1050);
    enqueue_at(it, 1100);
    enqueue_at(it, 1101);
    end_next(it, 5200);
    look_at(it, 1250);
    assert_span(it, 1100, 1200);
    end_next(it, 5280);
    look_at(it, 1301);
    assert_span(it, 1200, 1280);
    assert_int_equal(it->seen, 3);
    assert_in_range(atomic_load(&it->clock.busy_ns), 219998, 220002);
}

static void nothing_ends_after_it_was_seen_ended(fixture *it)
{
    enqueue_at(it, 1010);
    end_next(it, 5900); /* the GPU's clock runs too fast */
    look_at(it, 1100);
    assert_span(it, 1010, 1100);
}

static void nothing_ends_before_it_was_enqueued_or_seen_running(fixture *it)
{
    enqueue_at(it, 1500);
    end_next(it, 5001); /* the GPU's clock hardly moves */
    look_at(it, 1600);
    assert_span(it, 1500, 1500);
    enqueue_at(it, 1700);
    look_at(it, 1750);
    assert_int_equal(it->seen, 1);
    end_next(it, 5002);
    look_at(it, 1800);
    assert_span(it, 1700, 1750);
}

/* The stream is busy without a gap for ten thousand commands of 100 us. The test looks 2 us before and
 * after each end: the error of the GPU's clock must not add up. */
static void another_speed_of_the_gpus_clock_does_not_add_up(void **state)
{
    const double speeds[] = {0.99, 1.01};
    for (int s = 0; s < 2; s++) {
        fixture *it = fixture_open();
        enqueue_at(it, 1000);
        for (int i = 1; i <= 10000; i++) {
            const double end_us = 1000 + 100.0 * i;
            enqueue_at(it, end_us - 50);
            look_at(it, end_us - 2);
            end_next(it, 5000 + 100.0 * i * speeds[s]);
            look_at(it, end_us + 2);
            assert_int_equal(it->seen, i);
            assert_float_equal(it->end_us, end_us, 2.6);
        }
        end_next(it, 5e6);
        look_at(it, 3e6);
        fixture_close(it);
    }
}

static void full_ring_waits_for_the_oldest(fixture *it)
{
    for (int i = 0; i < TIDE_CUDA_RING_ENTRIES - 1; i++)
        enqueue_at(it, 1000);
    assert_int_equal(it->seen, 0);
    assert_int_equal(tide_cuda_clock_pending(&it->clock), TIDE_CUDA_RING_ENTRIES - 1);
    gpu_us = 5001;
    enqueue_at(it, 1002);
    assert_int_equal(it->seen, 1);
    assert_int_equal(tide_cuda_clock_pending(&it->clock), TIDE_CUDA_RING_ENTRIES - 1);
    tide_cuda_clock_drop(&it->clock);
    assert_int_equal(tide_cuda_clock_pending(&it->clock), 0);
    assert_int_equal(it->seen, 1);
}

/* A run of kernels is observed as one command; the idle time inside is not visible. */
static void run_is_told_as_one_command_from_its_first_begin_to_its_last_end(fixture *it)
{
    enqueue_of_run(it, 1010, 1);
    enqueue_of_run(it, 1020, 2);
    enqueue_of_run(it, 1090, 4);
    look_at(it, 1095);
    assert_int_equal(it->seen, 0);
    assert_int_equal(tide_cuda_clock_pending(&it->clock), 3);
    assert_false(tide_cuda_clock_awaits_event(&it->clock));
    assert_ok(tide_cuda_clock_mark(&it->clock));
    event_end(it->clock.ring[3].done, 5150);
    look_at(it, 1160);
    assert_int_equal(it->seen, 1);
    assert_span(it, 1010, 1150);
    assert_true(it->flops == 7);
    assert_int_equal(atomic_load(&it->clock.commands), 3);
    assert_int_equal(tide_cuda_clock_pending(&it->clock), 0);
}

static void only_kernels_that_count_as_the_same_join_a_run(fixture *it)
{
    const tide_work of_run = {.label = "fetch", .may_coalesce = true},
                    others[] = {{.tag = 1, .may_coalesce = true},
                                {.timer = 1, .may_coalesce = true},
                                {.id = 1, .may_coalesce = true},
                                {.may_coalesce = false}};
    assert_false(tide_cuda_clock_joins(&it->clock, &of_run)); /* no run is open */
    enqueue_of_run(it, 1010, 0);
    assert_true(tide_cuda_clock_joins(&it->clock, &of_run));
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++)
        assert_false(tide_cuda_clock_joins(&it->clock, &others[i]));
    assert_ok(tide_cuda_clock_mark(&it->clock));
    assert_false(tide_cuda_clock_joins(&it->clock, &of_run)); /* the run has ended */
}

static void run_ends_by_itself_before_it_fills_the_ring(fixture *it)
{
    for (int i = 0; i < TIDE_CUDA_RING_ENTRIES - 1; i++)
        enqueue_of_run(it, 1000, 0);
    gpu_us = 5001;
    enqueue_of_run(it, 1002, 0);
    assert_int_equal(it->seen, 1);
    assert_in_range(tide_cuda_clock_pending(&it->clock), TIDE_CUDA_RING_ENTRIES / 2,
                    TIDE_CUDA_RING_ENTRIES - 2);
}

static void run_that_gets_no_event_is_not_entered(fixture *it)
{
    enqueue_at(it, 1000);
    enqueue_of_run(it, 1010, 0);
    enqueue_of_run(it, 1020, 0);
    record_error = cudaErrorInvalidValue;
    assert_int_equal(tide_cuda_clock_mark(&it->clock), TIDE_ERROR_DEVICE);
    record_error = cudaSuccess;
    assert_int_equal(tide_cuda_clock_pending(&it->clock), 1);
    assert_int_equal(tide_cuda_clock_record(&it->clock), 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        clock_test(end_is_measured_from_the_end_before),
        clock_test(nothing_ends_after_it_was_seen_ended),
        clock_test(nothing_ends_before_it_was_enqueued_or_seen_running),
        cmocka_unit_test(another_speed_of_the_gpus_clock_does_not_add_up),
        clock_test(full_ring_waits_for_the_oldest),
        clock_test(run_is_told_as_one_command_from_its_first_begin_to_its_last_end),
        clock_test(only_kernels_that_count_as_the_same_join_a_run),
        clock_test(run_ends_by_itself_before_it_fills_the_ring),
        clock_test(run_that_gets_no_event_is_not_entered),
    };
    return cmocka_run_group_tests_name("times of a GPU's commands", tests, NULL, NULL);
}
