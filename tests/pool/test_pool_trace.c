/* The events that options.trace gets, in virtual time. For each cause of a stall the step's counters know it
 * alone, and the event names the chunk, the op and the command that ended the stall. Other tests change the
 * order of ops, give up a step and set values. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/stall_fixture.h"

enum { HEARD_MAX = 1 << 14, REGION_BYTES = 256 };

static tide_trace_event heard[HEARD_MAX];

static fixture_options listening(const char *device)
{
    fixture_options options = options_of(device);
    options.heard = heard;
    options.heard_most = HEARD_MAX;
    return options;
}

/* Opens the fixture and returns the counters of a mean step. */
static tide_pool_counters open_and_run(const fixture_options *options, fixture *r)
{
    fixture_open(options, r);
    const tide_pool_counters step = mean_step(r);
    assert_true(r->heard_count < HEARD_MAX);
    return step;
}

/* The last event of the kind; NULL: there is none. */
static const tide_trace_event *last_of(const fixture *r, tide_trace_kind kind)
{
    for (uint32_t i = r->heard_count; i-- > 0;) {
        if (heard[i].kind == kind)
            return &heard[i];
    }
    return NULL;
}

static uint32_t count_of(const fixture *r, tide_trace_kind kind)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < r->heard_count; i++)
        count += heard[i].kind == kind;
    return count;
}

/* The event of this kind with this id; NULL: none. */
static const tide_trace_event *of_id(const fixture *r, uint64_t id, tide_trace_kind kind)
{
    for (uint32_t i = 0; i < r->heard_count; i++) {
        if (heard[i].id == id && heard[i].kind == kind)
            return &heard[i];
    }
    return NULL;
}

/* The longest stall of the later steps, whose plan has settled. It must have this cause. */
static tide_trace_event longest(const fixture *r, tide_stall_cause cause)
{
    tide_trace_event longest = {.begin_ns = 0};
    for (uint32_t i = 0; i < r->heard_count; i++) {
        const tide_trace_event *event = &heard[i];
        if (event->kind == TIDE_TRACE_STALL && event->step > 3 && event->step < STEPS &&
            event->end_ns - event->begin_ns > longest.end_ns - longest.begin_ns)
            longest = *event;
    }
    assert_int_not_equal(longest.end_ns, 0);
    assert_int_equal(longest.cause, cause);
    return longest;
}

/* The event that ended a stall for a chunk: of this kind, and at the same time. */
static const tide_trace_event *ending(const fixture *r, const tide_trace_event *stall, tide_trace_kind kind)
{
    const tide_trace_event *event = of_id(r, stall->ended_by, kind);
    assert_non_null(event);
    assert_int_equal(event->end_ns, stall->end_ns);
    assert_true(stall->op < 2 * LAYERS && stall->chunk != TIDE_TRACE_NONE);
    return event;
}

/* --- each cause of a stall --- */

/* The stall waits for the copy of a chunk that the op uses and ends when the copy ends. */
static void a_stall_for_the_link_names_chunk_and_copy(void **state)
{
    fixture r;
    for (int prefetch = 0; prefetch < 2; prefetch++) {
        fixture_options options = listening("null");
        options.spare_chunks = 1;
        options.pool.prefetch = prefetch;
        options.pool.link_bytes_per_second = CHUNK_BYTES / 2e-3;
        options.pool.machine.link_out_bytes_per_second = 1e15;
        const tide_pool_counters step = open_and_run(&options, &r);
        assert_only(&step, TIDE_STALL_LINK);
        const tide_trace_event stall = longest(&r, TIDE_STALL_LINK);
        const tide_trace_event *copy = ending(&r, &stall, TIDE_TRACE_COPY);
        assert_int_equal(copy->tier, TIDE_TIER_DEVICE);
        assert_int_equal(copy->chunk, stall.chunk);
        assert_true(stall.predicted);
        fixture_close(&r);
    }
}

/* Copies out of the device are slow and copies in take no time. The stall waits for a slot, not for the link,
 * and ends when another chunk has left its slot. */
static void a_stall_for_a_slot_names_who_left(void **state)
{
    fixture r;
    fixture_options options = listening("null");
    options.spare_chunks = 0;
    options.pool.link_bytes_per_second = 1e15;
    options.pool.machine.link_out_bytes_per_second = CHUNK_BYTES / 2e-3;
    const tide_pool_counters step = open_and_run(&options, &r);
    assert_above_all(&step, TIDE_STALL_SLOT, 2 * 2e-3);
    assert_seconds("slot", &step, step.stall_seconds_by[TIDE_STALL_LINK], 0);
    assert_seconds("slot", &step, step.stall_seconds_by[TIDE_STALL_MAP], 0);
    const tide_trace_event stall = longest(&r, TIDE_STALL_SLOT);
    const tide_trace_event *move = ending(&r, &stall, TIDE_TRACE_MOVE);
    assert_int_equal(move->move, TIDE_TRACE_EVICT);
    assert_int_not_equal(move->chunk, stall.chunk);
    fixture_close(&r);
}

static void check_update(const fixture_options *options, tide_tier tier)
{
    fixture r;
    const tide_pool_counters step = open_and_run(options, &r);
    assert_only(&step, TIDE_STALL_UPDATE);
    const tide_trace_event stall = longest(&r, TIDE_STALL_UPDATE);
    const tide_trace_event *update = ending(&r, &stall, TIDE_TRACE_UPDATE);
    assert_int_equal(update->tier, tier);
    assert_int_equal(update->chunk, stall.chunk);
    /* the first op that needs the update waits for that of the step before */
    assert_int_equal(update->step + 1, stall.pass);
    fixture_close(&r);
}

/* On the device ops wait for updates through events; on the host the op's begin waits. */
static void a_stall_for_an_update_names_it(void **state)
{
    fixture_options options = listening("null");
    options.pool.machine.device_bytes_per_second = ELEMENTS * 28 / 3e-3;
    check_update(&options, TIDE_TIER_DEVICE);
    options.clip_norm = 0;
    const tide_pool_counters step = mean_of(&options);
    /* updates run during backward and the next step's first op, whose kernels hide most of them */
    assert_seconds("hidden", &step, step.stall_seconds, step.stall_seconds_by[TIDE_STALL_UPDATE]);
    options = listening("null");
    options.pool.placement = TIDE_PLACEMENT_HOST;
    options.pool.machine.host_bytes_per_second = ELEMENTS * 28 / 6e-3;
    for (int clip = 0; clip < 2; clip++) {
        options.clip_norm = (float)clip;
        check_update(&options, TIDE_TIER_HOST);
    }
}

static void a_stall_for_the_norm_waits_for_no_chunk(void **state)
{
    fixture r;
    fixture_options options = listening("null");
    options.pool.link_bytes_per_second = sizeof(double) / 2e-3;
    const tide_pool_counters step = open_and_run(&options, &r);
    assert_only(&step, TIDE_STALL_NORM);
    assert_seconds("norm", &step, step.stall_seconds, 2e-3);
    const tide_trace_event stall = longest(&r, TIDE_STALL_NORM);
    const tide_trace_event *norm = last_of(&r, TIDE_TRACE_NORM);
    assert_int_equal(stall.chunk, TIDE_TRACE_NONE);
    assert_int_equal(stall.ended_by, 0);
    assert_int_equal(stall.op, TIDE_TRACE_NONE);
    assert_non_null(norm);
    assert_int_equal(norm->end_ns - norm->begin_ns, stall.end_ns - stall.begin_ns);
    fixture_close(&r);
}

static void a_stall_for_a_mapping_names_it(void **state)
{
    fixture r;
    fixture_options options = listening("null");
    options.spare_chunks = 0;
    options.pool.machine.map_ns = MS;
    const tide_pool_counters step = open_and_run(&options, &r);
    assert_only(&step, TIDE_STALL_MAP);
    const tide_trace_event stall = longest(&r, TIDE_STALL_MAP);
    (void)ending(&r, &stall, TIDE_TRACE_MAP);
    fixture_close(&r);
}

/* The caller sleeps inside the step's ops, which counts, and also between ops and around the step, which
 * doesn't. */
static void a_stall_for_the_caller_waits_for_no_chunk(void **state)
{
    fixture r;
    fixture_options options = listening("null");
    options.pool.machine.host_bytes_per_second = BYTES_PER_NS * 1e9;
    fixture_open(&options, &r);
    r.late_ns = 3 * MS; /* the op's own kernel runs during 1 ms of these */
    r.away_ns = 20 * MS;
    const tide_pool_counters step = mean_step(&r);
    assert_seconds("caller", &step, step.stall_seconds_by[TIDE_STALL_CALLER], 2 * LAYERS * 2e-3);
    assert_seconds("caller", &step, step.stall_seconds_by[TIDE_STALL_CALLER], step.stall_seconds);
    const tide_trace_event stall = longest(&r, TIDE_STALL_CALLER);
    assert_int_equal(stall.chunk, TIDE_TRACE_NONE);
    assert_int_equal(stall.ended_by, 0);
    assert_true(stall.op < 2 * LAYERS); /* the op that the caller was late for */
    assert_true(stall.predicted);
    fixture_close(&r);
}

/* When the chunk is there but the caller has not yet noticed, the time still belongs to the stall. In
 * virtual time the caller notices at once, so this test delays it by hand and uses ids that belong to no
 * command. */
static void waking_up_is_part_of_what_was_waited_for(void **state)
{
    enum { CHUNK = 3, BRINGS = 8001, BRINGS_ANOTHER = 8009 };
    fixture r;
    fixture_options options = listening("null");
    options.pool.machine.host_bytes_per_second = BYTES_PER_NS * 1e9;
    fixture_open(&options, &r);
    run_step(&r, true);
    assert_ok(tide_pool_drain(r.pool));
    const uint32_t before = r.heard_count;
    const uint64_t begin_ns = tide_pool_now_ns(r.pool);
    tide_stalls *stalls = &r.pool->telemetry.stalls;
    tide_monitor_lock(&r.pool->monitor);
    tide_stalls_hold(stalls, false, TIDE_REQUEST_MOVE, CHUNK);
    caller_sleeps(&r, 2 * MS);
    tide_tracer_brought_on(&r.pool->telemetry.tracer, BRINGS);
    tide_stalls_tell(stalls, false, TIDE_REQUEST_READY, TIDE_CHUNK_NONE);
    caller_sleeps(&r, MS);
    tide_tracer_brought_on(&r.pool->telemetry.tracer, BRINGS_ANOTHER);
    tide_stalls_release(stalls);
    tide_monitor_unlock(&r.pool->monitor);
    assert_int_equal(r.heard_count, before + 1);
    assert_int_equal(heard[before].kind, TIDE_TRACE_STALL);
    assert_int_equal(heard[before].cause, TIDE_STALL_LINK);
    assert_int_equal(heard[before].begin_ns, begin_ns);
    assert_int_equal(heard[before].end_ns, begin_ns + 3 * MS);
    assert_int_equal(heard[before].chunk, CHUNK);
    assert_int_equal(heard[before].ended_by, BRINGS);
    fixture_close(&r);
}

/* --- spans of ops --- */

/* The next OP event at or behind index *from; moves *from behind it. NULL: none. */
static const tide_trace_event *next_span(const fixture *r, uint32_t *from)
{
    while (*from < r->heard_count) {
        const tide_trace_event *event = &heard[(*from)++];
        if (event->kind == TIDE_TRACE_OP)
            return event;
    }
    return NULL;
}

static void assert_span(const tide_trace_event *span, tide_op op, uint64_t busy_ns)
{
    assert_non_null(span);
    assert_int_equal(span->op, op);
    assert_int_equal(span->slice, op == TIDE_OP_NONE ? TIDE_TRACE_NONE : 0);
    assert_int_equal(span->busy_ns, busy_ns);
}

/* Each op launches two kernels, the second 3 ms after the first, which the op before has delayed. The op's
 * span is busy as long as both kernels. The event of a pass's last op comes, at the latest, when the pool is
 * destroyed. */
static void each_op_has_a_span_of_its_own(void **state)
{
    fixture r;
    fixture_options options = listening("null");
    options.pool.machine.host_bytes_per_second = BYTES_PER_NS * 1e9;
    fixture_open(&options, &r);
    run_step(&r, true);
    assert_ok(tide_pool_drain(r.pool));
    uint32_t at = r.heard_count;
    assert_ok(tide_step_begin(r.pool, &(tide_step_options){.training = false}));
    for (uint32_t l = 0; l < LAYERS; l++) {
        assert_ok(tide_op_begin(r.pool, r.forward[l]));
        assert_ok(tide_op_slice(r.pool, 0));
        launch_sleep(&r);
        caller_sleeps(&r, 3 * MS);
        launch_sleep(&r);
        assert_ok(tide_op_end(r.pool));
    }
    assert_ok(tide_step_end(r.pool));
    assert_ok(tide_pool_drain(r.pool));
    uint64_t end_ns = 0;
    for (uint32_t l = 0; l < LAYERS; l++) {
        if (l + 1 == LAYERS) {
            assert_null(next_span(&r, &at));
            fixture_close(&r);
        }
        const tide_trace_event *span = next_span(&r, &at);
        assert_span(span, r.forward[l], 2 * MS);
        assert_int_equal(span->pass, 2);
        /* an op and its slice are one schedule step each */
        assert_int_equal(span->schedule_step, 2 * (l + 1));
        assert_true(l == 0 || span->begin_ns == end_ns);
        end_ns = span->end_ns;
        assert_int_equal(end_ns - span->begin_ns, (l == 0 ? 4 : 3) * MS);
    }
    assert_null(next_span(&r, &at));
}

/* Region copies before and after the point at which a step's counters end. The caller is at the same place
 * in its program for both. */
static void work_that_two_records_count_is_two_spans(void **state)
{
    fixture r;
    char bytes[REGION_BYTES];
    tide_pool_counters counters;
    uint64_t number, busy_ns = 0;
    fixture_options options = listening("null");
    options.nonmodel_bytes = REGION_BYTES;
    options.pool.link_bytes_per_second = REGION_BYTES * 1e3;
    fixture_open(&options, &r);
    run_step(&r, true);
    assert_ok(tide_read(r.pool, bytes, tide_region(r.pool), REGION_BYTES));
    assert_ok(tide_pool_drain(r.pool));
    assert_ok(tide_read(r.pool, bytes, tide_region(r.pool), REGION_BYTES));
    assert_ok(tide_read(r.pool, bytes, tide_region(r.pool), REGION_BYTES));
    assert_true(tide_pool_step_counters_take(r.pool, &number, &counters));
    fixture_close(&r);
    uint32_t at = 0;
    for (uint32_t i = 0; i < 2 * LAYERS; i++) {
        const tide_trace_event *span = next_span(&r, &at);
        assert_span(span, i < LAYERS ? r.forward[i] : r.backward[2 * LAYERS - 1 - i], MS);
        busy_ns += span->busy_ns;
    }
    const tide_trace_event *counted = next_span(&r, &at), *behind = next_span(&r, &at);
    assert_span(counted, TIDE_OP_NONE, MS);
    assert_int_equal(counted->step, 1);
    busy_ns += counted->busy_ns;
    assert_int_equal(busy_ns, llround(counters.compute_seconds * 1e9));
    assert_span(behind, TIDE_OP_NONE, 2 * MS);
    assert_int_equal(behind->step, 0);
    assert_null(next_span(&r, &at));
}

/* Check the step's update events. An update with a zeroing event begins where that ends. Only updates of
 * `chunk` zero; in the first step, where the state is new, any may. */
static void check_updates(const fixture *r, uint64_t step, double adam_seconds, uint32_t chunk)
{
    const tide_trace_event *zeroing = NULL;
    uint64_t adam_ns = 0;
    for (uint32_t i = 0; i < r->heard_count; i++) {
        if (heard[i].kind == TIDE_TRACE_ZERO)
            zeroing = &heard[i];
        if (heard[i].kind != TIDE_TRACE_UPDATE || heard[i].step != step)
            continue;
        adam_ns += heard[i].end_ns - heard[i].begin_ns;
        if (zeroing == NULL || zeroing->id != heard[i].id) {
            assert_int_not_equal(heard[i].chunk, chunk);
            continue;
        }
        assert_true(heard[i].chunk == chunk || step == 1);
        assert_int_equal(zeroing->step, step);
        assert_true(zeroing->begin_ns < zeroing->end_ns);
        assert_int_equal(zeroing->end_ns, heard[i].begin_ns);
    }
    assert_true(adam_ns > 0);
    assert_int_equal(adam_ns, llround(adam_seconds * 1e9));
}

/* No step runs the last layer, so it has no gradient. The update stream zeroes its gradient, and this time
 * must not count as the optimizer's. */
static void zeroing_before_an_update_is_none_of_it(void **state)
{
    fixture r;
    tide_pool_counters counters;
    uint64_t number, steps = 0;
    fixture_options options = listening("null");
    options.pool.machine.device_bytes_per_second = ELEMENTS * 28 / 3e-3;
    fixture_open(&options, &r);
    r.layers = LAYERS - 1;
    for (uint32_t i = 0; i < 3; i++)
        run_step(&r, true);
    assert_ok(tide_pool_drain(r.pool));
    for (; tide_pool_step_counters_take(r.pool, &number, &counters); steps++)
        check_updates(&r, number, counters.adam_device_seconds, LAYERS - 1);
    assert_int_equal(steps, 3);
    fixture_close(&r);
}

/* --- events of passes --- */

static void assert_pass(const fixture *r, uint64_t pass, bool training, uint64_t number, bool clips)
{
    const tide_trace_event *begun = last_of(r, TIDE_TRACE_PASS);
    assert_non_null(begun);
    assert_int_equal(begun->pass, pass);
    assert_int_equal(begun->training, training);
    assert_int_equal(begun->number, number);
    assert_int_equal(begun->clips, clips);
}

/* An evaluation has no number and does not clip, whatever its options say. */
static void a_pass_says_what_it_is(void **state)
{
    fixture r;
    fixture_options options = listening("null");
    fixture_open(&options, &r);
    run_step(&r, true);
    assert_pass(&r, 1, true, 1, true);
    run_step(&r, false);
    assert_pass(&r, 2, false, 0, false);
    r.clip_norm = 0;
    run_step(&r, true);
    assert_pass(&r, 3, true, 2, false);
    assert_ok(tide_pool_drain(r.pool));
    fixture_close(&r);
}

/* --- changed order, plans, requests --- */

/* The ops run in reverse order. No plan knew of this order, so no stall in it was predicted. */
static void what_another_order_of_ops_waits_for_was_not_predicted(void **state)
{
    fixture r;
    fixture_options options = listening("null");
    options.spare_chunks = 1;
    options.pool.link_bytes_per_second = CHUNK_BYTES / 2e-3;
    fixture_open(&options, &r);
    (void)mean_step(&r);
    const uint32_t before = r.heard_count;
    assert_ok(
        tide_step_begin(r.pool, &(tide_step_options){.training = true, .learning_rate = 1, .epsilon = 1}));
    for (uint32_t l = LAYERS; l-- > 0;)
        run_op(&r, r.forward[l]);
    for (uint32_t l = 0; l < LAYERS; l++)
        run_op(&r, r.backward[l]);
    assert_ok(tide_step_end(r.pool));
    uint32_t stalls = 0, requests = 0;
    for (uint32_t i = before; i < r.heard_count; i++) {
        const tide_trace_event *event = &heard[i];
        if (event->kind == TIDE_TRACE_STALL && event->op != TIDE_TRACE_NONE && event->schedule_step > 0) {
            stalls++;
            assert_false(event->predicted);
        }
        requests += event->kind == TIDE_TRACE_REQUEST;
    }
    assert_true(stalls > LAYERS);
    assert_int_equal(requests, 4 * LAYERS);
    const tide_trace_event *plan = last_of(&r, TIDE_TRACE_PLAN);
    assert_true(plan > &heard[before]); /* the manager made a new plan */
    fixture_close(&r);
}

/* The slots are too few for all params and activations, so the plan moves some of them, and no fewer than the
 * bound that it reports. */
static void a_plan_says_what_it_moves_and_what_is_the_least(void **state)
{
    fixture r;
    for (uint32_t spare = 0; spare < 4; spare++) {
        fixture_options options = listening("null");
        options.spare_chunks = spare;
        options.pool.link_bytes_per_second = 1e12;
        open_and_run(&options, &r);
        const tide_trace_event *plan = last_of(&r, TIDE_TRACE_PLAN);
        assert_non_null(plan);
        assert_true(plan->training);
        assert_true(plan->least_in > 0 && plan->least_in <= plan->planned_in);
        assert_true(plan->least_out > 0 && plan->least_out <= plan->planned_out);
        uint32_t in = 0, out = 0;
        for (uint32_t i = 0; i < r.heard_count; i++) {
            if (heard[i].kind == TIDE_TRACE_COPY && heard[i].step == STEPS - 2) {
                in += heard[i].tier == TIDE_TIER_DEVICE;
                out += heard[i].tier == TIDE_TIER_HOST;
            }
        }
        assert_true(in >= plan->least_in && out >= plan->least_out);
        fixture_close(&r);
    }
}

/* Each plan is reported once, and again only when it changes. */
static void a_plan_is_told_once_of_training_and_of_evaluation(void **state)
{
    fixture r;
    fixture_options options = listening("null");
    options.spare_chunks = 1;
    options.pool.link_bytes_per_second = 1e12;
    open_and_run(&options, &r);
    const uint32_t before = count_of(&r, TIDE_TRACE_PLAN);
    for (int step = 0; step < 3; step++)
        run_step(&r, true);
    assert_int_equal(count_of(&r, TIDE_TRACE_PLAN), before);
    for (int pass = 0; pass < 4; pass++)
        run_step(&r, false);
    assert_int_equal(count_of(&r, TIDE_TRACE_PLAN), before + 1);
    assert_false(last_of(&r, TIDE_TRACE_PLAN)->training);
    assert_ok(tide_pool_drain(r.pool));
    fixture_close(&r);
}

static void a_step_that_is_given_up_is_told_and_its_number_comes_again(void **state)
{
    fixture r;
    fixture_options options = listening("null");
    options.spare_chunks = 1;
    options.pool.link_bytes_per_second = 1e12;
    fixture_open(&options, &r);
    run_step(&r, true);
    assert_ok(tide_pool_drain(r.pool));
    assert_ok(tide_step_begin(r.pool, &(tide_step_options){.training = true, .epsilon = 1, .clip_norm = 1}));
    run_op(&r, r.forward[0]);
    assert_ok(tide_step_abort(r.pool));
    run_step(&r, true);
    const tide_trace_event *given_up = last_of(&r, TIDE_TRACE_GIVEN_UP);
    assert_non_null(given_up);
    assert_int_equal(count_of(&r, TIDE_TRACE_GIVEN_UP), 1);
    assert_int_equal(given_up->step, 2);
    assert_int_equal(given_up->pass, 2);
    assert_int_equal(given_up[-1].kind, TIDE_TRACE_OP);
    const tide_trace_event *again = last_of(&r, TIDE_TRACE_PASS);
    assert_int_equal(again->number, 2);
    assert_int_equal(again->pass, 3);
    fixture_close(&r);
}

static void work_and_values_that_are_set_are_told(void **state)
{
    fixture r;
    const float value = 1;
    fixture_options options = listening("null");
    fixture_open(&options, &r);
    run_step(&r, true);
    assert_ok(tide_pool_drain(r.pool));
    const uint64_t begin_ns = tide_pool_now_ns(r.pool);
    assert_ok(tide_param_set(r.pool, 0, TIDE_VALUE_MASTER, 0, 1, &value));
    tide_pool_trace_work(r.pool, "setting", begin_ns);
    const tide_trace_event *access = last_of(&r, TIDE_TRACE_ACCESS), *work = last_of(&r, TIDE_TRACE_WORK);
    assert_non_null(access);
    assert_non_null(work);
    assert_int_equal(access->step, 0);
    assert_string_equal(work->work, "setting");
    assert_int_equal(work->begin_ns, begin_ns);
    assert_true(access->end_ns <= work->end_ns);
    fixture_close(&r);
}

/* All chunks are resident. Requests need no commands and no op waits. */
static void a_step_with_everything_there_has_requests_and_no_waits(void **state)
{
    fixture r;
    fixture_options options = listening("null");
    fixture_open(&options, &r);
    run_step(&r, true);
    run_step(&r, true);
    assert_ok(tide_pool_drain(r.pool));
    const uint32_t before = r.heard_count;
    run_step(&r, true);
    uint32_t chunks = 0;
    for (uint32_t i = before; i < r.heard_count; i++) {
        assert_int_not_equal(heard[i].kind, TIDE_TRACE_WAIT);
        assert_int_not_equal(heard[i].kind, TIDE_TRACE_MOVE);
        if (heard[i].kind != TIDE_TRACE_REQUEST)
            continue;
        chunks += heard[i].chunks;
        assert_int_equal(heard[i].lacked, 0);
        assert_int_equal(heard[i].begin_ns, heard[i].end_ns);
    }
    assert_int_equal(chunks, 4 * LAYERS);
    fixture_close(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_stall_for_the_link_names_chunk_and_copy),
        cmocka_unit_test(a_stall_for_a_slot_names_who_left),
        cmocka_unit_test(a_stall_for_an_update_names_it),
        cmocka_unit_test(a_stall_for_the_norm_waits_for_no_chunk),
        cmocka_unit_test(a_stall_for_a_mapping_names_it),
        cmocka_unit_test(a_stall_for_the_caller_waits_for_no_chunk),
        cmocka_unit_test(waking_up_is_part_of_what_was_waited_for),
        cmocka_unit_test(each_op_has_a_span_of_its_own),
        cmocka_unit_test(work_that_two_records_count_is_two_spans),
        cmocka_unit_test(zeroing_before_an_update_is_none_of_it),
        cmocka_unit_test(a_pass_says_what_it_is),
        cmocka_unit_test(what_another_order_of_ops_waits_for_was_not_predicted),
        cmocka_unit_test(a_plan_says_what_it_moves_and_what_is_the_least),
        cmocka_unit_test(a_plan_is_told_once_of_training_and_of_evaluation),
        cmocka_unit_test(a_step_that_is_given_up_is_told_and_its_number_comes_again),
        cmocka_unit_test(work_and_values_that_are_set_are_told),
        cmocka_unit_test(a_step_with_everything_there_has_requests_and_no_waits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
