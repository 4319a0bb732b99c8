/* The null device: virtual times of schedules that were worked out by hand. Its clock moves only while
 * somebody waits. */
#include "test_offload_fixture.h"

#include <inttypes.h>

enum { MS = 1000000 };

typedef struct span {
    tide_stream stream;
    const char *label;
    uint64_t begin_ms, end_ms;
} span;

enum { SPANS_MAX = 32 };

/* The observer keeps the first SPANS_MAX spans. */
static struct {
    span spans[SPANS_MAX];
    int count;
} seen;

static void observer(void *context, const tide_observed *command)
{
    if (seen.count < SPANS_MAX)
        seen.spans[seen.count++] =
            (span){command->stream, command->label, command->begin_ns / MS, command->end_ns / MS};
}

/* Options of 1 GFLOP/s, 1 GB/s device memory, 0.5 GB/s host memory; a chunk crosses the link in 2 ms, and
 * mapping takes 1 ms. */
static tide_device_options options_null(void)
{
    tide_device_options options = options_small();
    options.machine.flops_per_second = 1e9;
    options.machine.device_bytes_per_second = 1e9;
    options.machine.host_bytes_per_second = 5e8;
    options.link_bytes_per_second = CHUNK_BYTES * 500.0;
    options.machine.map_ns = MS;
    options.observer = observer;
    return options;
}

static fixture null_open(const tide_device_options *options)
{
    fixture it = {0};
    seen.count = 0;
    assert_ok(tide_device_null_open(options, &it.device));
    it.ops = it.device->ops;
    return it;
}

/* A case gets a device of options_null(). */
static void null_case_run(void **state)
{
    const tide_device_options options = options_null();
    fixture it = null_open(&options);
    fixture_fill(&it);
    ((const device_case *)*state)->run(&it);
    fixture_close(&it);
}
#define null_test(name) ((struct CMUnitTest){#name, null_case_run, NULL, NULL, &(device_case){name}})

static tide_status never_called(void *stream, const void *arguments)
{
    abort();
}

static void launch(fixture *it, tide_stream stream, const char *label, double flops, double bytes)
{
    tide_work work = {.label = label, .flops = flops, .bytes = bytes};
    assert_ok(it->ops->launch(it->device, stream, &work, never_called, NULL, 0));
}

static void copy(fixture *it, tide_stream stream, tide_tier to_tier)
{
    tide_work work = work_of("copy", 0);
    assert_ok(it->ops->copy_slot(it->device, stream, &work, to_tier, 0, 0, CHUNK_BYTES));
}

static uint64_t now_ms(const fixture *it)
{
    uint64_t now_ns = it->ops->now_ns(it->device);
    assert_int_equal(now_ns % MS, 0);
    return now_ns / MS;
}

/* Checks the n-th span (from 0) that the observer got of the stream. */
static void assert_span(int n, tide_stream stream, const char *label, uint64_t begin_ms, uint64_t end_ms)
{
    const span *it = seen.spans, *end = seen.spans + seen.count;
    while (it < end && (it->stream != stream || n-- > 0))
        it++;
    assert_true(it < end);
    assert_string_equal(it->label, label);
    assert_int_equal(it->begin_ms, begin_ms);
    assert_int_equal(it->end_ms, end_ms);
}

/* --- durations --- */

static void kernel_lasts_what_the_slower_of_arithmetic_and_memory_takes(fixture *it)
{
    launch(it, TIDE_STREAM_COMPUTE, "arithmetic", 7e6, 1e6);
    launch(it, TIDE_STREAM_COMPUTE, "memory", 1e6, 3e6);
    launch(it, TIDE_STREAM_HOST, "adam", 9e9, 2e6);
    assert_int_equal(seen.count, 0);
    it->ops->synchronize(it->device);
    assert_span(0, TIDE_STREAM_COMPUTE, "arithmetic", 0, 7);
    assert_span(1, TIDE_STREAM_COMPUTE, "memory", 7, 10);
    assert_span(0, TIDE_STREAM_HOST, "adam", 0, 4);
    const tide_device_statistics statistics = statistics_of(it);
    assert_int_equal(statistics.busy_ns[TIDE_STREAM_COMPUTE], 10 * MS);
    assert_int_equal(statistics.commands[TIDE_STREAM_COMPUTE], 2);
}

static void rate_of_zero_is_no_limit(void **state)
{
    tide_device_options options = options_small();
    fixture it = null_open(&options);
    fixture_fill(&it);
    launch(&it, TIDE_STREAM_COMPUTE, "x", 1e12, 1e12);
    copy(&it, TIDE_STREAM_IN, TIDE_TIER_DEVICE);
    it.ops->synchronize(it.device);
    assert_int_equal(now_ms(&it), 0);
    fixture_close(&it);
}

static void what_would_last_longer_than_there_is_time_lasts_to_its_end(fixture *it)
{
    for (int i = 0; i < 3; i++)
        launch(it, TIDE_STREAM_COMPUTE, "endless", 1e300, 0);
    it->ops->synchronize(it->device);
    assert_true(it->ops->now_ns(it->device) == UINT64_MAX);
}

static void each_way_of_the_link_and_of_a_mapping_has_its_own_cost(fixture *it)
{
    tide_device_options machine = options_null();
    machine.machine.link_out_bytes_per_second = CHUNK_BYTES * 250.0;
    machine.machine.unmap_ns = 5 * MS;
    copy(it, TIDE_STREAM_OUT, TIDE_TIER_HOST); /* enqueued before the machine changes, so it takes 2 ms */
    assert_ok(tide_device_null_imitate(it->device, &machine));
    copy(it, TIDE_STREAM_OUT, TIDE_TIER_HOST);
    copy(it, TIDE_STREAM_IN, TIDE_TIER_DEVICE);
    assert_ok(it->ops->map(it->device, 0, place(it, 2)));
    assert_int_equal(now_ms(it), 1);
    assert_ok(it->ops->unmap(it->device, 0, place(it, 2)));
    assert_int_equal(now_ms(it), 6);
    machine.machine.host_bytes_per_second = -1;
    assert_int_equal(tide_device_null_imitate(it->device, &machine), TIDE_ERROR_ARGUMENT);
    launch(it, TIDE_STREAM_HOST, "adam", 0, 1e6);
    it->ops->synchronize(it->device);
    assert_span(0, TIDE_STREAM_OUT, "copy", 0, 2);
    assert_span(1, TIDE_STREAM_OUT, "copy", 2, 6);
    assert_span(0, TIDE_STREAM_IN, "copy", 0, 2);
    assert_span(0, TIDE_STREAM_HOST, "adam", 6, 8);
}

/* --- a schedule by hand ---
 *
 *   in        [copy 1-3][copy 3-5]
 *   compute       wait 1-3 [block 3-8] (the second copy is done: no wait) [block 8-13]
 *   out                                wait 1-8        [copy 8-10]
 */
static void fetches_overlap_compute_as_worked_out_by_hand(fixture *it)
{
    assert_ok(it->ops->map(it->device, 0, place(it, 0)));
    assert_int_equal(now_ms(it), 1);
    for (int i = 0; i < 2; i++) {
        copy(it, TIDE_STREAM_IN, TIDE_TIER_DEVICE);
        assert_ok(it->ops->event_record(it->device, it->events[i], TIDE_STREAM_IN));
    }
    for (int i = 0; i < 2; i++) {
        assert_ok(it->ops->stream_wait(it->device, TIDE_STREAM_COMPUTE, it->events[i], SITE, 0));
        launch(it, TIDE_STREAM_COMPUTE, "block", 5e6, 0);
        assert_ok(it->ops->event_record(it->device, it->events[2 + i], TIDE_STREAM_COMPUTE));
    }
    assert_ok(it->ops->stream_wait(it->device, TIDE_STREAM_OUT, it->events[2], SITE, 0));
    copy(it, TIDE_STREAM_OUT, TIDE_TIER_HOST);
    it->ops->synchronize(it->device);
    assert_span(0, TIDE_STREAM_IN, "copy", 1, 3);
    assert_span(1, TIDE_STREAM_IN, "copy", 3, 5);
    assert_span(0, TIDE_STREAM_COMPUTE, "wait", 1, 3);
    assert_span(1, TIDE_STREAM_COMPUTE, "block", 3, 8);
    assert_span(2, TIDE_STREAM_COMPUTE, "block", 8, 13);
    assert_span(0, TIDE_STREAM_OUT, "wait", 1, 8);
    assert_span(1, TIDE_STREAM_OUT, "copy", 8, 10);
    assert_int_equal(seen.count, 7);
    const tide_device_statistics statistics = statistics_of(it);
    assert_int_equal(statistics.wait_ns[TIDE_STREAM_COMPUTE], 2 * MS);
    assert_int_equal(statistics.waits[SITE], 3);
    assert_int_equal(statistics.h2d_bytes, 2 * CHUNK_BYTES);
    assert_int_equal(statistics.d2h_bytes, CHUNK_BYTES);
    assert_int_equal(now_ms(it), 13);
}

/* --- time moves only in waits --- */

static void park_goes_to_the_next_completion_and_refuses_to_sleep_for_ever(fixture *it)
{
    launch(it, TIDE_STREAM_COMPUTE, "long", 9e6, 0);
    assert_ok(it->ops->event_record(it->device, it->events[0], TIDE_STREAM_COMPUTE));
    launch(it, TIDE_STREAM_IN, "short", 4e6, 0);
    assert_ok(it->ops->event_record(it->device, it->events[1], TIDE_STREAM_IN));
    uint64_t ticket = it->ops->doorbell(it->device);
    assert_int_equal(now_ms(it), 0);
    assert_false(is_done(it, it->events[1]));
    assert_ok(it->ops->park(it->device, ticket, true));
    assert_int_equal(now_ms(it), 4);
    assert_true(is_done(it, it->events[1]));
    assert_false(is_done(it, it->events[0]));
    /* Something has completed since the ticket, so park returns at once. */
    assert_ok(it->ops->park(it->device, ticket, true));
    assert_int_equal(now_ms(it), 4);
    ticket = it->ops->doorbell(it->device);
    assert_ok(it->ops->park(it->device, ticket, true));
    assert_int_equal(now_ms(it), 9);
    ticket = it->ops->doorbell(it->device);
    assert_int_equal(it->ops->park(it->device, ticket, true), TIDE_ERROR_STATE);
    it->ops->ring(it->device);
    assert_ok(it->ops->park(it->device, ticket, true));
    assert_ok(it->ops->park(it->device, ticket, false));
    assert_int_equal(now_ms(it), 9);

    ticket = it->ops->doorbell(it->device); /* the completion of an event does not ring the doorbell */
    assert_ok(it->ops->event_record(it->device, it->events[0], TIDE_STREAM_COMPUTE));
    assert_int_equal(it->ops->park(it->device, ticket, false), TIDE_ERROR_STATE);
    assert_ok(it->ops->park(it->device, ticket, true));
}

/* --- the host device's rules --- */

static void budgets_misplacing_and_waits_for_the_host_executor_are_refused_as_on_the_host_device(fixture *it)
{
    void *address;
    uint32_t object;
    tide_memory_usage usage;
    it->ops->usage(it->device, TIDE_TIER_DEVICE, &usage);
    assert_int_equal(usage.used_bytes, usage.budget_bytes);
    it->ops->usage(it->device, TIDE_TIER_HOST, &usage);
    assert_int_equal(usage.used_bytes, usage.budget_bytes);
    assert_int_equal(it->ops->buffer_create(it->device, "b", 1, &address, &object), TIDE_ERROR_BUDGET);
    assert_int_equal(it->ops->slots_create(it->device, TIDE_TIER_DEVICE, 1), TIDE_ERROR_STATE);
    assert_ok(it->ops->map(it->device, 1, place(it, 3)));
    assert_int_equal(it->ops->map(it->device, 1, place(it, 4)), TIDE_ERROR_ARGUMENT);
    assert_int_equal(it->ops->map(it->device, 2, place(it, 3)), TIDE_ERROR_ARGUMENT);
    assert_int_equal(it->ops->unmap(it->device, 2, place(it, 3)), TIDE_ERROR_ARGUMENT);
    assert_int_equal(own(it, TIDE_TIER_HOST, 2) - own(it, TIDE_TIER_HOST, 1), CHUNK_BYTES);
    tide_work work = work_of("stage", 0);
    assert_ok(
        it->ops->copy_bytes(it->device, TIDE_STREAM_IN, &work, it->region, it->buffer, BUFFER_BYTES, true));
    assert_int_equal(it->ops->copy_bytes(it->device, TIDE_STREAM_IN, &work, it->region, it->region, 1, true),
                     TIDE_ERROR_ARGUMENT);
    assert_ok(it->ops->event_record(it->device, it->events[0], TIDE_STREAM_HOST));
    for (int event = 0; event < 2; event++) /* the stream waits for the executor, then the executor waits */
        assert_int_equal(it->ops->stream_wait(it->device, event == 0 ? TIDE_STREAM_IN : TIDE_STREAM_HOST,
                                              it->events[event], SITE, 0),
                         TIDE_ERROR_ARGUMENT);
}

static void a_hundred_thousand_chunks_cost_little(void **state)
{
    enum { MANY = 100000 };
    tide_device_options options = options_null();
    options.device_memory_bytes = options.host_memory_bytes = UINT64_C(1) << 40;
    fixture it = null_open(&options);
    void *address;
    assert_ok(it.ops->slots_create(it.device, TIDE_TIER_DEVICE, MANY));
    assert_ok(it.ops->reserve(it.device, (uint64_t)MANY * CHUNK_BYTES, &address));
    it.range = address;
    for (uint32_t i = 0; i < MANY; i++) {
        tide_event event;
        assert_ok(it.ops->event_create(it.device, &event));
        assert_ok(it.ops->map(it.device, i, place(&it, MANY - 1 - i)));
        launch(&it, (tide_stream)(i % 5), "x", 1e6 * (i % 17), 0);
        assert_ok(it.ops->event_record(it.device, event, (tide_stream)(i % 5)));
    }
    while (it.ops->park(it.device, it.ops->doorbell(it.device), true) == TIDE_OK)
        ;
    it.ops->synchronize(it.device);
    fixture_close(&it);
}

/* --- streams that slow each other --- */

/* The two streams below run at half speed while both are busy:
 *
 *   compute   [alone 0-2: 2 of 6][half speed beside a copy 2-6: 2][alone 6-8: 2]
 *   in            wait 0-2       [half speed 2-6: 2 ms of copying]
 */
static void streams_go_as_fast_as_what_runs_beside_them_lets_them(fixture *it)
{
    static tide_slowdowns slowdowns;
    const unsigned both = 1u << TIDE_STREAM_COMPUTE | 1u << TIDE_STREAM_IN;
    slowdowns.of[TIDE_STREAM_COMPUTE][both] = slowdowns.of[TIDE_STREAM_IN][both] = 0.5;
    tide_device_options machine = options_null();
    machine.slowdowns = &slowdowns;
    assert_ok(tide_device_null_imitate(it->device, &machine));
    launch(it, TIDE_STREAM_HOST, "adam", 0, 1e6); /* 2 ms that slow no other stream */
    assert_ok(it->ops->event_record(it->device, it->events[0], TIDE_STREAM_HOST));
    launch(it, TIDE_STREAM_COMPUTE, "block", 6e6, 0);
    assert_ok(it->ops->event_wait(it->device, it->events[0], SITE));
    assert_int_equal(now_ms(it), 2);
    copy(it, TIDE_STREAM_IN, TIDE_TIER_DEVICE);
    assert_ok(it->ops->event_record(it->device, it->events[1], TIDE_STREAM_IN));
    assert_ok(it->ops->event_wait(it->device, it->events[1], SITE));
    assert_int_equal(now_ms(it), 6);
    it->ops->synchronize(it->device);
    assert_span(0, TIDE_STREAM_IN, "copy", 2, 6);
    assert_span(0, TIDE_STREAM_COMPUTE, "block", 0, 8);
}

static double time_of(void *context, tide_stream stream, const tide_work *work, tide_kernel fn,
                      const void *arguments)
{
    assert_ptr_equal(context, "context");
    assert_ptr_equal(fn, never_called);
    assert_null(arguments);
    return stream == TIDE_STREAM_COMPUTE ? work->flops : -1;
}

static void kernels_last_what_is_known_of_them(fixture *it)
{
    tide_device_options machine = options_null();
    machine.kernel_time = time_of;
    machine.kernel_time_context = "context";
    assert_ok(tide_device_null_imitate(it->device, &machine));
    launch(it, TIDE_STREAM_COMPUTE, "known", 3.0 * MS, 1e9);
    launch(it, TIDE_STREAM_HOST, "unknown", 0, 1e6);
    it->ops->synchronize(it->device);
    assert_span(0, TIDE_STREAM_COMPUTE, "known", 0, 3);
    assert_span(0, TIDE_STREAM_HOST, "unknown", 0, 2);
}

/* --- against times computed at enqueueing --- */

/* Without slowdowns the end of a command is known when it is enqueued: the later of the present and the
 * end of the command before it in its stream, plus its duration. */
static void ends_are_those_that_are_worked_out_at_once(fixture *it)
{
    enum { EVENTS = 4, STEPS = 20000, STREAMS = TIDE_STREAM_HOST };
    uint64_t tail_ms[STREAMS] = {0}, ends_ms[EVENTS] = {0}, now = 0, random = 5;
    for (int step = 0; step < STEPS; step++) {
        random = random * 6364136223846793005u + 1442695040888963407u;
        const tide_stream stream = (tide_stream)((random >> 40) % STREAMS);
        const unsigned event = (unsigned)(random >> 50) % EVENTS, lasts_ms = (unsigned)(random >> 33) % 9;
        uint64_t *tail = &tail_ms[stream];
        *tail = *tail > now ? *tail : now;
        switch ((random >> 60) % 4) {
        case 0:
            launch(it, stream, "x", 1e6 * lasts_ms, 0);
            *tail += lasts_ms;
            break;
        case 1:
            assert_ok(it->ops->event_record(it->device, it->events[event], stream));
            ends_ms[event] = *tail;
            break;
        case 2:
            assert_ok(it->ops->stream_wait(it->device, stream, it->events[event], SITE, 0));
            *tail = *tail > ends_ms[event] ? *tail : ends_ms[event];
            break;
        default:
            assert_ok(it->ops->event_wait(it->device, it->events[event], SITE));
            now = now > ends_ms[event] ? now : ends_ms[event];
        }
        assert_int_equal(now_ms(it), now);
        for (int i = 0; i < EVENTS; i++)
            assert_int_equal(is_done(it, it->events[i]), ends_ms[i] <= now);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        null_test(kernel_lasts_what_the_slower_of_arithmetic_and_memory_takes),
        cmocka_unit_test(rate_of_zero_is_no_limit),
        null_test(what_would_last_longer_than_there_is_time_lasts_to_its_end),
        null_test(each_way_of_the_link_and_of_a_mapping_has_its_own_cost),
        null_test(fetches_overlap_compute_as_worked_out_by_hand),
        null_test(park_goes_to_the_next_completion_and_refuses_to_sleep_for_ever),
        null_test(budgets_misplacing_and_waits_for_the_host_executor_are_refused_as_on_the_host_device),
        cmocka_unit_test(a_hundred_thousand_chunks_cost_little),
        null_test(streams_go_as_fast_as_what_runs_beside_them_lets_them),
        null_test(kernels_last_what_is_known_of_them),
        null_test(ends_are_those_that_are_worked_out_at_once),
    };
    return cmocka_run_group_tests_name("null device", tests, NULL, NULL);
}
