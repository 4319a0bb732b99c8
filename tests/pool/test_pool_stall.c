/* Stalls and their causes. On the null device, in exact virtual time, tests add up the causes of whole steps
 * and mix causes; test_pool_trace provokes each cause alone there. On the host device each test provokes one
 * cause with real durations: kernels, optimizer and caller sleep and the link is throttled. */
#include <stdio.h>
#include <string.h>

#include "tests/support/stall_fixture.h"
#include "tests/support/test_thin.h"

/* --- names of the causes --- */

static void every_cause_has_its_name(void **state)
{
    const char *names[] = {"link", "slot", "update", "norm", "map", "peer", "caller"};
    assert_int_equal(TIDE_STALL_CAUSE_COUNT, 7);
    for (int cause = 0; cause < TIDE_STALL_CAUSE_COUNT; cause++)
        assert_string_equal(tide_stall_cause_name((tide_stall_cause)cause), names[cause]);
    assert_string_equal(tide_stall_cause_name(TIDE_STALL_CAUSE_COUNT), "unknown");
}

/* Each moment of a step is either computing or a stall of one cause. The causes' times add up to the step's
 * stall time, and trace and totals agree with the step's counters. */
static void check_account(fixture_options *options, uint64_t late_ns, const char *what)
{
    fixture r;
    tide_pool_counters taken[STEPS], total;
    fixture_open(options, &r);
    r.late_ns = late_ns;
    const uint32_t count = run(&r, taken);
    for (uint32_t i = 0; i < count; i++) {
        double sum = 0;
        for (int cause = 0; cause < TIDE_STALL_CAUSE_COUNT; cause++)
            sum += taken[i].stall_seconds_by[cause];
        assert_true(sum == taken[i].stall_seconds);
        assert_seconds(what, &taken[i], taken[i].compute_seconds + sum, taken[i].seconds);
    }
    assert_ok(tide_pool_counters_get(r.pool, &total));
    for (int cause = 0; cause < TIDE_STALL_CAUSE_COUNT; cause++)
        assert_seconds(what, &total, total.stall_seconds_by[cause], (double)r.traced_ns[cause] * 1e-9);
    assert_int_equal(r.misplaced, 0);
    fixture_close(&r);
}

static void every_nanosecond_of_a_step_is_computing_or_has_its_cause(void **state)
{
    const double links[] = {1e12, CHUNK_BYTES / 0.5e-3}, hosts[] = {1e12, ELEMENTS * 28 / 6e-3};
    char what[64];
    for (uint32_t i = 0; i < 128; i += test_thin(7)) {
        const uint32_t spare = i % 4, link = i / 4 % 2, host = i / 8 % 2, map = i / 16 % 2, clip = i / 32 % 2,
                       late = i / 64;
        fixture_options options = options_of("null");
        options.spare_chunks = spare;
        options.pool.link_bytes_per_second = links[link];
        options.pool.machine.host_bytes_per_second = hosts[host];
        options.pool.machine.map_ns = map * 10000;
        options.clip_norm = (float)clip;
        snprintf(what, sizeof what, "spare %u link %u host %u map %u clip %u late %u", spare, link, host, map,
                 clip, late);
        check_account(&options, late * 3 * MS / (host ? 2000 : 1), what);
    }
}

/* --- in virtual time --- */

static void where_nothing_is_slow_nothing_stalls(void **state)
{
    fixture_options options = options_of("null");
    const tide_pool_counters step = mean_of(&options);
    assert_seconds("nothing", &step, step.stall_seconds, 0);
    assert_seconds("nothing", &step, step.seconds, 2 * LAYERS * 1e-3);
}

/* Updates of params that the next step does not use end, at the latest, when that step's next gradients come
 * or the step ends. The caller then waits for them. */
static void updates_of_what_a_step_does_not_use_are_update(void **state)
{
    for (int clip = 0; clip < 2; clip++) {
        fixture_options options = options_of("null");
        fixture r;
        tide_pool_counters step;
        uint64_t number;
        options.clip_norm = (float)clip;
        options.pool.placement = TIDE_PLACEMENT_HOST;
        options.pool.machine.host_bytes_per_second = ELEMENTS * 28 / 20e-3;
        fixture_open(&options, &r);
        run_step(&r, true);
        r.layers = 1;
        run_step(&r, true);
        run_step(&r, true);
        for (int i = 0; i < 2; i++)
            assert_true(tide_pool_step_counters_take(r.pool, &number, &step));
        assert_int_equal(number, 2);
        assert_only(&step, TIDE_STALL_UPDATE);
        fixture_close(&r);
    }
}

/* Between two ops the caller waits for all updates that are still pending from the step before. */
static void a_drain_within_a_step_is_update(void **state)
{
    fixture_options options = options_of("null");
    fixture r;
    tide_pool_counters step;
    uint64_t number;
    options.clip_norm = 1;
    options.pool.placement = TIDE_PLACEMENT_HOST;
    options.pool.machine.host_bytes_per_second = ELEMENTS * 28 / 20e-3;
    fixture_open(&options, &r);
    run_step(&r, true);
    assert_ok(tide_step_begin(r.pool, &(tide_step_options){.training = true, .epsilon = 1}));
    run_op(&r, r.forward[0]);
    assert_ok(tide_pool_drain(r.pool));
    run_op(&r, r.backward[0]);
    assert_ok(tide_step_end(r.pool));
    assert_ok(tide_pool_drain(r.pool));
    for (int i = 0; i < 2; i++)
        assert_true(tide_pool_step_counters_take(r.pool, &number, &step));
    assert_int_equal(number, 2);
    assert_true(step.stall_seconds > (LAYERS - 1) * 20e-3);
    assert_seconds("drain", &step, step.stall_seconds_by[TIDE_STALL_UPDATE], step.stall_seconds);
    fixture_close(&r);
}

/* The caller sleeps, evaluates, sets values and gives a step up. The pool's work for these calls must count
 * for no step. */
static void the_time_between_steps_is_nobodys(void **state)
{
    const float value = 1;
    fixture_options options = options_of("null");
    fixture r;
    tide_pool_counters total;
    options.spare_chunks = 1;
    options.pool.machine.host_bytes_per_second = BYTES_PER_NS * 1e9;
    options.pool.machine.device_bytes_per_second = ELEMENTS * 28 / 3e-3;
    options.pool.link_bytes_per_second = CHUNK_BYTES / 1e-3;
    options.pool.machine.map_ns = MS;
    fixture_open(&options, &r);
    r.away_ns = 20 * MS;
    for (int i = 0; i < 3; i++) {
        run_step(&r, true);
        run_step(&r, false);
        assert_ok(tide_step_begin(r.pool, &(tide_step_options){.training = true, .epsilon = 1}));
        run_op(&r, r.forward[0]);
        assert_ok(tide_step_abort(r.pool));
        caller_sleeps(&r, r.away_ns);
        run_step(&r, false);
    }
    assert_ok(tide_pool_counters_get(r.pool, &total));
    assert_seconds("nobody's", &total, total.stall_seconds_by[TIDE_STALL_CALLER], 0);
    const double before = total.stall_seconds;
    assert_ok(tide_param_set(r.pool, 0, TIDE_VALUE_MASTER, 0, 1, &value));
    assert_ok(tide_pool_counters_get(r.pool, &total));
    assert_seconds("setting", &total, total.stall_seconds, before);
    fixture_close(&r);
}

/* The wait for a slot has two parts: the slot's chunk is copied out, then it is unmapped and the new one
 * mapped. */
static void a_wait_is_cut_where_its_cause_changes(void **state)
{
    fixture_options options = options_of("null");
    fixture r;
    options.spare_chunks = 0;
    options.pool.machine.map_ns = MS / 10;
    options.pool.link_bytes_per_second = 1e15;
    options.pool.machine.link_out_bytes_per_second = CHUNK_BYTES / 2e-3;
    fixture_open(&options, &r);
    const tide_pool_counters step = mean_step(&r);
    assert_true(r.followed[TIDE_STALL_SLOT][TIDE_STALL_MAP] >= STEPS - 1);
    assert_true(r.followed[TIDE_STALL_MAP][TIDE_STALL_SLOT] >= STEPS - 1);
    assert_above_all(&step, TIDE_STALL_SLOT, 2e-3);
    assert_true(step.stall_seconds_by[TIDE_STALL_MAP] > 1e-4);
    fixture_close(&r);
}

static void a_chunk_that_comes_after_its_update_waits_for_both(void **state)
{
    fixture_options options = options_of("null");
    fixture r;
    options.pool.placement = TIDE_PLACEMENT_HOST;
    options.pool.machine.host_bytes_per_second = ELEMENTS * 28 / 6e-3;
    options.pool.link_bytes_per_second = CHUNK_BYTES / 1e-3;
    fixture_open(&options, &r);
    const tide_pool_counters step = mean_step(&r);
    assert_true(r.followed[TIDE_STALL_UPDATE][TIDE_STALL_LINK] >= STEPS - 1);
    assert_true(step.stall_seconds_by[TIDE_STALL_LINK] > 0.99e-3);
    assert_true(step.stall_seconds_by[TIDE_STALL_UPDATE] > 6e-3);
    assert_true(step.stall_seconds_by[TIDE_STALL_UPDATE] < step.stall_seconds - 0.99e-3);
    fixture_close(&r);
}

/* With finish_beside as with several ranks, a stream of its own finishes gradients. Here that takes longer
 * than the backward ops, which wait for parts of the region that it uses, as does the norm. */
static void gradients_finished_on_a_slow_stream_are_peer(void **state)
{
    fixture_options options = options_of("null");
    options.pool.checks.finish_beside = true;
    options.pool.machine.device_bytes_per_second = ELEMENTS / 1e-3;
    options.pool.placement = TIDE_PLACEMENT_HOST;
    const tide_pool_counters step = mean_of(&options);
    assert_seconds("peer", &step, step.stall_seconds_by[TIDE_STALL_PEER], step.stall_seconds);
    assert_true(step.stall_seconds > LAYERS * 3e-3);
}

/* --- each cause, in real time on the host device --- */

/* Other programs use the machine, too, so this looks at the step with the largest share of the cause, and
 * compares with the causes but the caller, whose thread other programs delay. It also checks that no time
 * counts twice. */
static void check_host(fixture *r, tide_stall_cause cause, double least)
{
    tide_pool_counters taken[STEPS], sum = {0}, best = {.seconds = 1};
    const uint32_t count = run(r, taken);
    for (uint32_t i = 0; i < count; i++) {
        add(&sum, &taken[i], 1);
        if (taken[i].stall_seconds_by[cause] / taken[i].seconds > best.stall_seconds_by[cause] / best.seconds)
            best = taken[i];
    }
    if (sum.compute_seconds + sum.stall_seconds > sum.seconds + 2e-3)
        fail_with("twice", &sum);
    if (cause != TIDE_STALL_CALLER)
        best.stall_seconds -= best.stall_seconds_by[TIDE_STALL_CALLER];
    assert_above_all(&best, cause, least);
    fixture_close(r);
}

static void on_the_host_device_a_throttled_link_is_link(void **state)
{
    fixture_options options = options_of("host");
    fixture r;
    uint64_t lasts_ns = 0;
    options.spare_chunks = 1;
    options.pool.update = slow_optimizer; /* the real optimizer is slow when compiled without optimization */
    options.pool.update_context = &lasts_ns;
    options.pool.link_bytes_per_second = CHUNK_BYTES / 4e-3;
    fixture_open(&options, &r);
    check_host(&r, TIDE_STALL_LINK, 8e-3);
}

static void on_the_host_device_an_optimizer_that_sleeps_is_update(void **state)
{
    uint64_t lasts_ns = 6 * MS;
    fixture_options options = options_of("host");
    fixture r;
    options.pool.update = slow_optimizer;
    options.pool.update_context = &lasts_ns;
    fixture_open(&options, &r);
    check_host(&r, TIDE_STALL_UPDATE, 6e-3);
}

static void on_the_host_device_a_slow_norm_is_norm(void **state)
{
    fixture_options options = options_of("host");
    fixture r;
    options.elements = 64; /* so few that their update takes no time */
    options.pool.link_bytes_per_second = sizeof(double) / 10e-3;
    fixture_open(&options, &r);
    check_host(&r, TIDE_STALL_NORM, 9e-3);
}

static void on_the_host_device_a_caller_that_sleeps_is_caller(void **state)
{
    fixture_options options = options_of("host");
    fixture r;
    options.elements = 64;
    fixture_open(&options, &r);
    r.late_ns = 3 * MS;
    r.away_ns = 20 * MS;
    check_host(&r, TIDE_STALL_CALLER, 2 * LAYERS * 1e-3);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_cause_has_its_name),
        cmocka_unit_test(every_nanosecond_of_a_step_is_computing_or_has_its_cause),
        cmocka_unit_test(where_nothing_is_slow_nothing_stalls),
        cmocka_unit_test(updates_of_what_a_step_does_not_use_are_update),
        cmocka_unit_test(a_drain_within_a_step_is_update),
        cmocka_unit_test(the_time_between_steps_is_nobodys),
        cmocka_unit_test(a_wait_is_cut_where_its_cause_changes),
        cmocka_unit_test(a_chunk_that_comes_after_its_update_waits_for_both),
        cmocka_unit_test(gradients_finished_on_a_slow_stream_are_peer),
        cmocka_unit_test(on_the_host_device_a_throttled_link_is_link),
        cmocka_unit_test(on_the_host_device_an_optimizer_that_sleeps_is_update),
        cmocka_unit_test(on_the_host_device_a_slow_norm_is_norm),
        cmocka_unit_test(on_the_host_device_a_caller_that_sleeps_is_caller),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
