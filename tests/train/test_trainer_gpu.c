/* The default host budget of a trainer on a simulated machine. With a GPU (fake_gpu_module.c) it comes from
 * the memory that the machine is known to have, part of which may not be available yet; without a GPU from
 * the memory that is available now. */
#include "offload/free_memory.h"
#include "tests/support/test_trainer_fixture.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const uint64_t mib = UINT64_C(1) << 20, gib = UINT64_C(1) << 30;

/* --- the simulated machine --- */

static struct {
    uint64_t available_bytes, dormant_bytes, limit_bytes;
} simulated;

static uint64_t available_bytes(void *context)
{
    (void)context;
    return simulated.available_bytes;
}

static uint64_t limit_bytes(void *context)
{
    (void)context;
    return simulated.limit_bytes;
}

static uint64_t dormant_bytes(void *context)
{
    (void)context;
    return simulated.dormant_bytes;
}

const tide_free_memory_machine *__wrap_tide_free_memory_machine_system(void);
uint64_t __wrap_tide_topology_available_bytes(void);

const tide_free_memory_machine *__wrap_tide_free_memory_machine_system(void)
{
    static const tide_free_memory_machine machine = {
        .available_bytes = available_bytes, .limit_bytes = limit_bytes, .dormant_bytes = dormant_bytes};
    return &machine;
}

uint64_t __wrap_tide_topology_available_bytes(void)
{
    return simulated.available_bytes;
}

static int no_limit(void **state)
{
    simulated.available_bytes = 4 * mib;
    simulated.dormant_bytes = 0;
    simulated.limit_bytes = UINT64_MAX;
    return 0;
}

/* --- trainers --- */

static tide_trainer_options options_on(const char *device)
{
    tide_trainer_options options = small_options(text, TIDE_DTYPE_BF16);
    options.pool.device = device;
    options.pool.chunk_bytes = 2 * mib;
    options.pool.checks.hazard_check = options.pool.checks.guard = false; /* a GPU supports neither */
    return options;
}

static tide_trainer_plan plan_on(const char *device)
{
    const tide_trainer_options options = options_on(device);
    tide_trainer *trainer = trainer_open(&options);
    const tide_trainer_plan plan = *tide_trainer_plan_get(trainer);
    tide_trainer_destroy(trainer);
    return plan;
}

static void expect_refused(tide_status expected, const char *words)
{
    const tide_trainer_options options = options_on("cuda:0");
    tide_trainer *trainer = NULL;
    assert_int_equal(tide_trainer_create(&options, &trainer), expected);
    assert_non_null(strstr(tide_message(), words));
    assert_null(trainer);
}

static const char four_fifths_of_4_mib[] = "host budget of 3355440 bytes is too small";

static void machine_that_uses_little_of_its_memory_yet_has_all_of_it_for_a_gpus_run(void **state)
{
    simulated.dormant_bytes = gib;
    const tide_trainer_plan plan = plan_on("cuda:0");
    assert_int_equal(plan.free_memory_bytes, gib + 4 * mib);
    assert_int_equal(plan.pool.host_memory_bytes, plan.pool.full_host_bytes);
    assert_true(plan.pool.host_memory_bytes > 4 * mib && plan.default_host_budget);
}

static void control_groups_limit_bounds_what_it_may_grow_to(void **state)
{
    simulated.dormant_bytes = gib;
    simulated.limit_bytes = gib / 2;
    assert_int_equal(plan_on("cuda:0").free_memory_bytes, gib / 2);
    simulated.limit_bytes = 4 * mib;
    expect_refused(TIDE_ERROR_BUDGET, four_fifths_of_4_mib);
}

static void any_number_that_may_be_plugged_in_is_not_counted_on(void **state)
{
    simulated.dormant_bytes = UINT64_MAX;
    expect_refused(TIDE_ERROR_BUDGET, four_fifths_of_4_mib);
    simulated.available_bytes = gib;
    assert_int_equal(plan_on("cuda:0").free_memory_bytes, gib);
}

static void machine_that_does_not_say_what_is_available_needs_a_budget_or_a_limit(void **state)
{
    simulated.available_bytes = UINT64_MAX;
    simulated.dormant_bytes = gib;
    expect_refused(TIDE_ERROR_UNSUPPORTED,
                   "free memory is unknown (/proc/meminfo): the host budget must be given");
    simulated.limit_bytes = gib;
    assert_int_equal(plan_on("cuda:0").free_memory_bytes, gib);
}

/* The emulated device doesn't use memory that is not available now. */
static void emulated_device_counts_on_what_is_available_alone(void **state)
{
    simulated.dormant_bytes = 2 * gib;
    simulated.available_bytes = gib;
    assert_int_equal(plan_on("host").free_memory_bytes, gib);
}

#define TEST(name) cmocka_unit_test_setup(name, no_limit)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(machine_that_uses_little_of_its_memory_yet_has_all_of_it_for_a_gpus_run),
        TEST(control_groups_limit_bounds_what_it_may_grow_to),
        TEST(any_number_that_may_be_plugged_in_is_not_counted_on),
        TEST(machine_that_does_not_say_what_is_available_needs_a_budget_or_a_limit),
        TEST(emulated_device_counts_on_what_is_available_alone),
    };
    if (setenv("TIDEPOOL_MODULES", TIDE_FAKE_GPU_FOLDER, 1) != 0 || setenv("TIDE_FAKE_GPU", "", 1) != 0)
        return 1;
    return cmocka_run_group_tests(tests, fixture_set_up, fixture_tear_down);
}
