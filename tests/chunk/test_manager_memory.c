/* Makes a layout and a manager while the N-th request for memory fails, for every N. Each time the call must
 * return NO_MEMORY, leak nothing (the sanitizer run checks that), and succeed when it is repeated. */
#include "chunk/manager.h"
#include "tests/support/fake_memory.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>

#include <cmocka.h>

enum { PARAMS = 20, CHUNK_BYTES = 4096 };

static const tide_state_format adamw = {3, {128, 128, 128}};

static tide_status make_layout(tide_layout **layout)
{
    tide_layout_options options = {.chunk_bytes = CHUNK_BYTES, .dtype = TIDE_DTYPE_BF16};
    uint32_t number;
    char name[16];
    tide_status status = tide_layout_create(&options, layout);
    if (status == TIDE_OK)
        status = tide_layout_add_class(*layout, &adamw, &number);
    for (uint32_t i = 0; i < PARAMS && status == TIDE_OK; i++) {
        snprintf(name, sizeof name, "p%u", i);
        status = tide_layout_add_param(*layout, 0, name, 1500, &number);
    }
    if (status == TIDE_OK)
        status = tide_layout_add_activation(*layout, "c", 2, 1000, &number);
    return status == TIDE_OK ? tide_layout_seal(*layout) : status;
}

static tide_status add_op(tide_manager *manager, uint32_t param)
{
    tide_op op;
    tide_use use = {.tensor = param, .access = TIDE_ACCESS_READ};
    tide_use part = {.tensor = 0, .access = TIDE_ACCESS_WRITE};
    tide_op_description d = {.name = "op",
                             .pass = TIDE_PASS_FORWARD,
                             .params = &use,
                             .param_count = 1,
                             .activations = &part,
                             .activation_count = 1,
                             .slices = 2};
    return tide_manager_add_op(manager, &d, &op);
}

static const tide_manager_options slots = {.device_slots = 100, .host_slots = 100};

static tide_status make_manager(const tide_layout *layout, tide_manager **manager)
{
    tide_status status = tide_manager_create(layout, manager);
    for (uint32_t i = 0; i < PARAMS && status == TIDE_OK; i++)
        status = add_op(*manager, i);
    return status == TIDE_OK ? tide_manager_seal(*manager, &slots) : status;
}

static void every_request_that_fails_is_reported_and_undone(void **state)
{
    (void)state;
    unsigned request = 0;
    bool failed = true;
    for (; failed; request++) {
        tide_layout *layout = NULL;
        tide_manager *manager = NULL;
        fake_memory_fail(request);
        tide_status status = make_layout(&layout);
        if (status == TIDE_OK)
            status = make_manager(layout, &manager);
        failed = fake_memory_failed();
        fake_memory_clear();
        assert_int_equal(status, failed ? TIDE_ERROR_NO_MEMORY : TIDE_OK);
        tide_manager_destroy(manager);
        tide_layout_destroy(layout);
    }
    assert_true(request > PARAMS * 5);
}

/* A tensor needs memory for its struct, its name, the list and the tree; each of the four requests fails in
 * turn. */
static void a_name_that_found_no_memory_is_added_later(void **state)
{
    (void)state;
    const tide_layout_options options = {.chunk_bytes = CHUNK_BYTES, .dtype = TIDE_DTYPE_BF16};
    tide_layout *layout;
    uint32_t of_class;
    assert_int_equal(tide_layout_create(&options, &layout), TIDE_OK);
    assert_int_equal(tide_layout_add_class(layout, &adamw, &of_class), TIDE_OK);
    for (int kind = 0; kind < 2; kind++) {
        tide_status status = TIDE_ERROR_NO_MEMORY;
        uint32_t number = 77;
        unsigned request = 0;
        for (; status == TIDE_ERROR_NO_MEMORY; request++) {
            assert_int_equal(number, 77);
            fake_memory_fail(request);
            status = kind ? tide_layout_add_activation(layout, "t", 2, 1000, &number)
                          : tide_layout_add_param(layout, 0, "t", 1500, &number);
            assert_int_equal(status, fake_memory_failed() ? TIDE_ERROR_NO_MEMORY : TIDE_OK);
            fake_memory_clear();
        }
        assert_int_equal(number, 0);
        assert_int_equal(request, 4 + 1);
    }
    assert_int_equal(tide_layout_params(layout), 1);
    assert_int_equal(tide_layout_activations(layout), 1);
    assert_int_equal(tide_layout_parts(layout), 2);
    assert_string_equal(tide_layout_param(layout, 0)->name, "t");
    assert_int_equal(tide_layout_seal(layout), TIDE_OK);
    tide_layout_destroy(layout);
}

/* The op records have filled their array, so the next op's first request is for a larger one. */
static void the_ops_before_one_that_found_no_memory_run_without_it(void **state)
{
    (void)state;
    enum { OPS = 16 };
    unsigned request = 0;
    bool failed = true;
    for (; failed; request++) {
        tide_layout *layout;
        tide_manager *manager;
        tide_command command;
        assert_int_equal(make_layout(&layout), TIDE_OK);
        assert_int_equal(tide_manager_create(layout, &manager), TIDE_OK);
        for (uint32_t i = 0; i < OPS; i++)
            assert_int_equal(add_op(manager, i), TIDE_OK);
        fake_memory_fail(request);
        const tide_status status = add_op(manager, OPS);
        failed = fake_memory_failed();
        fake_memory_clear();
        assert_int_equal(status, failed ? TIDE_ERROR_NO_MEMORY : TIDE_OK);
        assert_int_equal(tide_manager_seal(manager, &slots), TIDE_OK);
        assert_int_equal(tide_manager_step_begin(manager, true, false), TIDE_OK);
        assert_int_equal(tide_manager_begin(manager, 0), TIDE_OK);
        while (!tide_manager_ready(manager)) {
            assert_false(tide_manager_is_stuck(manager));
            if (tide_manager_next(manager, &command))
                tide_manager_done(manager, command.id, TIDE_OK);
        }
        assert_int_equal(tide_manager_end(manager), TIDE_OK);
        tide_manager_destroy(manager);
        tide_layout_destroy(layout);
    }
    assert_true(request > 8); /* the array, and the requests for one record */
}

static void a_manager_that_could_not_be_sealed_can_be_sealed_later(void **state)
{
    (void)state;
    tide_layout *layout;
    tide_manager *manager;
    assert_int_equal(make_layout(&layout), TIDE_OK);
    assert_int_equal(tide_manager_create(layout, &manager), TIDE_OK);
    tide_status status = TIDE_ERROR_NO_MEMORY;
    unsigned request = 0, made = 0;
    for (; status == TIDE_ERROR_NO_MEMORY; request++) {
        fake_memory_fail(request);
        status = tide_manager_seal(manager, &slots);
        made = fake_memory_clear();
    }
    assert_int_equal(status, TIDE_OK);
    assert_int_equal(made, request - 1); /* each request has failed once */
    const unsigned places = 2 + 1 + 6, schedule = 2 * 5, plans = 2 + 2 * (1 + 21), sorted = 6 + 4 + 2;
    const unsigned request_and_prefetch = 4 + 5;
    assert_int_equal(made, places + schedule + plans + sorted + request_and_prefetch);
    tide_manager_destroy(manager);
    tide_layout_destroy(layout);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_request_that_fails_is_reported_and_undone),
        cmocka_unit_test(a_name_that_found_no_memory_is_added_later),
        cmocka_unit_test(the_ops_before_one_that_found_no_memory_run_without_it),
        cmocka_unit_test(a_manager_that_could_not_be_sealed_can_be_sealed_later),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
