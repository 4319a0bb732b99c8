/* Makes a description, its layout and a manager while the N-th request for memory fails, for every N. Each
 * time the call must return NO_MEMORY, leak nothing (the sanitizer run checks that), and succeed when it is
 * repeated. */
#include "chunk/manager.h"
#include "tests/support/assert_ok.h"
#include "tests/support/fake_memory.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>

#include <cmocka.h>

enum { PARAMS = 20, CHUNK_BYTES = 4096 };

static const uint64_t elements = 1500;

typedef struct model {
    tide_description *description;
    tide_layout *layout;
    tide_manager *manager;
} model;

static tide_status add_op(tide_description *description, uint32_t param)
{
    tide_op op;
    const tide_use use = {.tensor = param, .access = TIDE_ACCESS_READ};
    const tide_use part = {.tensor = 0, .access = TIDE_ACCESS_WRITE};
    const tide_op_description d = {.name = "op",
                                   .pass = TIDE_PASS_FORWARD,
                                   .params = &use,
                                   .param_count = 1,
                                   .activations = &part,
                                   .activation_count = 1,
                                   .slices = 2};
    return tide_description_add_op(description, &d, &op);
}

static tide_status describe(tide_description **description)
{
    uint32_t number;
    char name[16];
    tide_status status = tide_description_create(TIDE_DTYPE_BF16, 0, description);
    for (uint32_t i = 0; i < PARAMS && status == TIDE_OK; i++) {
        snprintf(name, sizeof name, "p%u", i);
        status = tide_description_add_param(*description, name, &elements, 1, NULL, &number);
    }
    if (status == TIDE_OK)
        status = tide_description_add_activation(*description, "c", 2, 1000, &number);
    for (uint32_t i = 0; i < PARAMS && status == TIDE_OK; i++)
        status = add_op(*description, i);
    return status;
}

static tide_status make_manager(model *m)
{
    const tide_manager_options slots = {.device_slots = 100, .host_slots = 100, .frames = 2};
    return tide_manager_create(m->layout, &slots, &m->manager);
}

static void destroy(model *m)
{
    tide_manager_destroy(m->manager);
    tide_layout_destroy(m->layout);
    tide_description_destroy(m->description);
}

static const tide_shard shards[] = {{1, 0}, {3, 1}};

static void fail_every_request(tide_shard shard)
{
    unsigned request = 0;
    bool failed = true;
    for (; failed; request++) {
        model m = {0};
        fake_memory_fail(request);
        tide_status status = describe(&m.description);
        if (status == TIDE_OK)
            status = tide_layout_create(m.description, CHUNK_BYTES, shard, &m.layout);
        if (status == TIDE_OK)
            status = make_manager(&m);
        failed = fake_memory_failed();
        fake_memory_clear();
        assert_int_equal(status, failed ? TIDE_ERROR_NO_MEMORY : TIDE_OK);
        destroy(&m);
    }
    assert_true(request > PARAMS * 5);
}

static void every_request_that_fails_is_reported_and_undone(void **state)
{
    for (int i = 0; i < 2; i++)
        fail_every_request(shards[i]);
}

static void make_later(tide_shard shard)
{
    model m = {0};
    assert_int_equal(describe(&m.description), TIDE_OK);
    assert_int_equal(tide_layout_create(m.description, CHUNK_BYTES, shard, &m.layout), TIDE_OK);
    tide_status status = TIDE_ERROR_NO_MEMORY;
    unsigned request = 0, made = 0;
    for (; status == TIDE_ERROR_NO_MEMORY; request++) {
        fake_memory_fail(request);
        status = make_manager(&m);
        made = fake_memory_clear();
    }
    assert_int_equal(status, TIDE_OK);
    assert_int_equal(made, request - 1); /* each request of the last try had failed in an earlier one */
    const unsigned places = 2 + 1 + 6, schedule = 2 * 5, plans = 2 + 2 * (1 + 21), sorted = 6 + 4 + 2;
    const unsigned request_and_prefetch = 4 + 5, manager_and_ops = 1 + 4 + PARAMS * (3 + 2);
    const unsigned tensors_and_pending = 3 + 3;
    const unsigned collectives = shard.ranks == 1 ? 0 : PARAMS + 1 + 2 + 2 * 3; /* reads, roll, frames */
    assert_int_equal(made, manager_and_ops + tensors_and_pending + places + schedule + plans + sorted +
                               request_and_prefetch + collectives);
    destroy(&m);
}

static void a_manager_that_could_not_be_made_can_be_made_later(void **state)
{
    for (int i = 0; i < 2; i++)
        make_later(shards[i]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_request_that_fails_is_reported_and_undone),
        cmocka_unit_test(a_manager_that_could_not_be_made_can_be_made_later),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
