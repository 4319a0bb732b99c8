/* The number of threads and the budgets that a pool chooses for itself on a machine, and the order in which
 * it undoes a failed fetch. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* for sched_getaffinity */
#endif
#include <sched.h>
#include <stdatomic.h>

#include "base/team.h"
#include "src/pool/internal.h"
#include "tests/support/assert_ok.h"
#include "tests/support/pool_fixture.h"

/* The process may use only one of the machine's processors, as in a cpuset. */
static void threads_are_the_processors_that_the_process_may_use(void **state)
{
    cpu_set_t all, one;
    pool_fixture_options options = pool_fixture_options_default();
    pool_fixture fixture;
    options.pool.threads = 0;
    assert_int_equal(sched_getaffinity(0, sizeof all, &all), 0);
    CPU_ZERO(&one);
    for (size_t i = 0; i < CPU_SETSIZE && CPU_COUNT(&one) == 0; i++) {
        if (CPU_ISSET(i, &all))
            CPU_SET(i, &one);
    }
    assert_int_equal(sched_setaffinity(0, sizeof one, &one), 0);
    assert_ok(pool_fixture_create(&options, &fixture));
    assert_int_equal(sched_setaffinity(0, sizeof all, &all), 0);
    assert_int_equal(tide_team_threads(), 1);
    pool_fixture_destroy(&fixture);
}

/* --- default budgets --- */

static tide_pool_plan plan_on_a_gpu_with(const pool_fixture *fixture, uint64_t free_bytes, uint64_t device,
                                         uint64_t host)
{
    tide_pool_plan plan;
    tide_pool_context context = fixture->pool->context;
    context.factory.available_bytes = free_bytes;
    context.options.device_memory_bytes = device;
    context.options.host_memory_bytes = host;
    assert_ok(tide_plan_make(&context, false, &plan));
    return plan;
}

static void default_device_budget_leaves_the_gpu_room_for_the_host_slots_page_tables(void **state)
{
    enum { MIB = 1 << 20 };
    const pool_fixture_options options = pool_fixture_options_default();
    pool_fixture fixture;
    assert_ok(pool_fixture_create(&options, &fixture));
    const uint64_t full = plan_on_a_gpu_with(&fixture, UINT64_MAX, 0, 0).full_device_bytes;
    assert_true(full > 2 * MIB);
    assert_int_equal(plan_on_a_gpu_with(&fixture, 2 * MIB, 0, 256 * MIB).device_memory_bytes, MIB);
    assert_int_equal(plan_on_a_gpu_with(&fixture, full + 2 * MIB, 0, 256 * MIB).device_memory_bytes, full);
    assert_int_equal(plan_on_a_gpu_with(&fixture, full + MIB - 1, 0, 256 * MIB).device_memory_bytes,
                     full - 1);
    assert_int_equal(plan_on_a_gpu_with(&fixture, 2 * MIB, 2 * MIB, 256 * MIB).device_memory_bytes, 2 * MIB);
    /* Without a host budget the pool leaves device memory for as many host slots as the host may ever
     * hold. */
    const tide_pool_plan open = plan_on_a_gpu_with(&fixture, 2 * MIB, 0, 0);
    assert_true(open.device_memory_bytes <= 2 * MIB - open.host_memory_bytes / 256);
    assert_true(open.device_memory_bytes >= 2 * MIB - 2 * open.host_memory_bytes / 256);
    pool_fixture_destroy(&fixture);
}

/* --- undoing a failed fetch --- */

/* Wraps the device's operations. The N-th event_record on the in stream fails; after that the wrapper
 * records whether the pool synchronizes and whether it unmaps anything before. */
static struct {
    const tide_device_ops *device;
    atomic_int countdown;
    atomic_bool refused, synchronized, unmapped_while_it_ran;
} watch;

static tide_status watched_record(tide_device *device, tide_event event, tide_stream stream)
{
    if (stream == TIDE_STREAM_IN && atomic_fetch_sub(&watch.countdown, 1) == 1) {
        atomic_store(&watch.refused, true);
        return tide_fail(TIDE_ERROR_DEVICE, "record refused");
    }
    return watch.device->event_record(device, event, stream);
}

static void watched_synchronize(tide_device *device)
{
    watch.device->synchronize(device);
    atomic_store(&watch.synchronized, atomic_load(&watch.refused));
}

static tide_status watched_unmap(tide_device *device, uint32_t slot, void *place)
{
    if (atomic_load(&watch.refused) && !atomic_load(&watch.synchronized))
        atomic_store(&watch.unmapped_while_it_ran, true);
    return watch.device->unmap(device, slot, place);
}

/* Install the wrapper. The engine reads the pointer to the table for each call and is asleep here. */
static void device_watch(pool_fixture *fixture, tide_device_ops *watched, int countdown)
{
    watch.device = fixture->pool->context.device->ops;
    atomic_store(&watch.refused, false);
    atomic_store(&watch.synchronized, false);
    atomic_store(&watch.countdown, countdown);
    *watched = *watch.device;
    watched->event_record = watched_record;
    watched->synchronize = watched_synchronize;
    watched->unmap = watched_unmap;
    tide_monitor_lock(&fixture->pool->monitor);
    fixture->pool->context.device->ops = watched;
    tide_monitor_unlock(&fixture->pool->monitor);
}

static void chunk_that_was_not_recorded_stays_mapped_until_nothing_runs(void **state)
{
    pool_fixture_options options = pool_fixture_options_default();
    options.device_share = 0.1;
    int refused = 0;
    for (int n = 1; n <= 6; n++) {
        pool_fixture fixture;
        tide_device_ops watched;
        assert_ok(pool_fixture_create(&options, &fixture));
        assert_ok(pool_fixture_step_and_settle(&fixture, 1));
        device_watch(&fixture, &watched, n);
        tide_status status = pool_fixture_step_and_settle(&fixture, 1);
        if (status == TIDE_OK && atomic_load(&watch.refused)) /* the engine prefetched for the next step */
            status = tide_pool_drain(fixture.pool);
        /* Some of a step's fetches happen before the step begins, while the wrapper is not installed. */
        if (status != TIDE_OK || atomic_load(&watch.refused)) {
            assert_int_equal(status, TIDE_ERROR_DEVICE);
            assert_string_equal(tide_message(), "record refused");
            const tide_status aborted = tide_step_abort(fixture.pool);
            /* STATE: the abort poisoned the pool */
            assert_true(aborted == TIDE_OK || aborted == TIDE_ERROR_STATE);
            assert_false(atomic_load(&watch.unmapped_while_it_ran));
            assert_true(atomic_load(&watch.synchronized));
            refused++;
        }
        tide_monitor_lock(&fixture.pool->monitor);
        fixture.pool->context.device->ops = watch.device;
        tide_monitor_unlock(&fixture.pool->monitor);
        pool_fixture_destroy(&fixture);
    }
    assert_true(refused >= 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(threads_are_the_processors_that_the_process_may_use),
        cmocka_unit_test(default_device_budget_leaves_the_gpu_room_for_the_host_slots_page_tables),
        cmocka_unit_test(chunk_that_was_not_recorded_stays_mapped_until_nothing_runs),
    };
    return cmocka_run_group_tests_name("a pool and its machine", tests, NULL, NULL);
}
