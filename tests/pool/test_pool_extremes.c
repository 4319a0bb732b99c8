/* Option values that are in range, but larger or smaller than any machine has: the pool works, or create
 * says why it can't. */
#include <float.h>
#include <stddef.h>
#include <string.h>

#include "tests/support/assert_ok.h"
#include "tests/support/misuse_fixture.h"

static tide_status never_called(void *stream, const void *arguments)
{
    (void)stream;
    (void)arguments;
    return tide_fail(TIDE_ERROR_INTERNAL, "the null device called a kernel");
}

static tide_status create(const tide_pool_options *options, fixture *r)
{
    *r = (fixture){.pool = NULL};
    r->description = fixture_describe(r);
    return tide_pool_create(options, r->description, &r->pool);
}

static void destroy(fixture *r)
{
    tide_pool_destroy(r->pool);
    tide_description_destroy(r->description);
}

/* Run four steps, the third with kernels that claim `work` bytes and flops. */
static void run_steps(const fixture *r, double work)
{
    const tide_step_options options = fixture_step_options();
    tide_step_result result;
    for (int step = 0; step < 4; step++) {
        assert_ok(tide_step_begin(r->pool, &options));
        assert_ok(tide_op_begin(r->pool, r->forward));
        for (int i = 0; i < 3 && step == 2; i++)
            assert_ok(tide_launch(r->pool, "never called", never_called, NULL, 0, work, work));
        assert_ok(tide_op_end(r->pool));
        assert_ok(tide_step_end(r->pool));
        assert_ok(tide_step_result_get(r->pool, &result));
    }
    assert_ok(tide_pool_drain(r->pool));
    assert_int_equal(tide_update_count(r->pool), 4);
}

static void sizes_at_the_ends_of_their_ranges_do_or_are_refused(void **state)
{
    const struct {
        const char *name;
        size_t offset; /* where in tide_pool_options the uint64_t lies */
        uint64_t value;
        tide_status status; /* the expected status; NO_MEMORY is allowed, too */
    } extremes[] = {
        {"a device budget of 1", offsetof(tide_pool_options, device_memory_bytes), 1, TIDE_ERROR_BUDGET},
        {"the largest device budget", offsetof(tide_pool_options, device_memory_bytes), UINT64_MAX, TIDE_OK},
        {"a host budget of 1", offsetof(tide_pool_options, host_memory_bytes), 1, TIDE_ERROR_BUDGET},
        {"the largest host budget", offsetof(tide_pool_options, host_memory_bytes), UINT64_MAX, TIDE_OK},
        {"the least staging", offsetof(tide_pool_options, staging_bytes), 1, TIDE_OK},
        {"the largest staging", offsetof(tide_pool_options, staging_bytes), UINT64_C(1) << 40,
         TIDE_ERROR_NO_MEMORY},
        {"the largest seed", offsetof(tide_pool_options, checks.delay_seed), UINT64_MAX, TIDE_OK},
    };
    for (size_t i = 0; i < sizeof extremes / sizeof extremes[0]; i++) {
        tide_pool_options options = fixture_options();
        memcpy((char *)&options + extremes[i].offset, &extremes[i].value, sizeof extremes[i].value);
        fixture r;
        const tide_status status = create(&options, &r);
        if (status != extremes[i].status)
            fail_msg("%s: %s: %s", extremes[i].name, tide_status_name(status), tide_message());
        destroy(&r);
    }
}

static void the_largest_region_is_more_than_there_is_memory(void **state)
{
    const tide_pool_options options = fixture_options();
    const uint64_t elements = 1;
    const tide_op_description nothing = {.name = "op"};
    fixture r = {.pool = NULL};
    assert_ok(tide_description_create(TIDE_DTYPE_FP32, UINT64_C(1) << 50, &r.description));
    assert_ok(tide_description_add_param(r.description, "w", &elements, 1, NULL, &r.params[0]));
    assert_ok(tide_description_add_op(r.description, &nothing, &r.forward));
    assert_int_equal(tide_pool_create(&options, r.description, &r.pool), TIDE_ERROR_NO_MEMORY);
    assert_null(r.pool);
    destroy(&r);
}

static void the_most_threads_are_as_good_as_few(void **state)
{
    tide_pool_options options = fixture_options();
    options.threads = TIDE_THREADS_MAX;
    fixture r;
    assert_ok(create(&options, &r));
    const tide_step_options step = fixture_step_options();
    assert_ok(tide_step_begin(r.pool, &step));
    assert_ok(tide_step_end(r.pool));
    assert_ok(tide_pool_drain(r.pool));
    assert_int_equal(tide_update_count(r.pool), 1);
    destroy(&r);
}

static void the_null_device_imitates_the_slowest_and_the_fastest_machine(void **state)
{
    for (int slow = 0; slow < 2; slow++) {
        tide_pool_options options = fixture_options();
        const double rate = slow ? DBL_MIN : DBL_MAX;
        const uint64_t map_ns = slow ? UINT64_MAX : 0;
        options.device = "null";
        options.link_bytes_per_second = rate;
        options.machine = (tide_machine){rate, rate, rate, map_ns, map_ns, rate, 0};
        fixture r;
        assert_ok(create(&options, &r));
        run_steps(&r, slow ? DBL_MAX : DBL_MIN);
        destroy(&r);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sizes_at_the_ends_of_their_ranges_do_or_are_refused),
        cmocka_unit_test(the_largest_region_is_more_than_there_is_memory),
        cmocka_unit_test(the_most_threads_are_as_good_as_few),
        cmocka_unit_test(the_null_device_imitates_the_slowest_and_the_fastest_machine),
    };
    return cmocka_run_group_tests_name("pool_extremes", tests, NULL, NULL);
}
