/* Counts what a start makes: a model is described and laid out as often as it has to be, and questions about
 * memory build no pools. The linker puts the functions below in place of the product's, which they call. */
#include "tests/support/test_trainer_fixture.h"

#include "chunk/manager.h"
#include "src/pool/internal.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

static uint32_t layouts, managers, pools;

tide_status __real_tide_layout_create(tide_description *description, uint64_t chunk_bytes, tide_shard shard,
                                      tide_layout **layout);
tide_status __wrap_tide_layout_create(tide_description *description, uint64_t chunk_bytes, tide_shard shard,
                                      tide_layout **layout);
tide_status __wrap_tide_layout_create(tide_description *description, uint64_t chunk_bytes, tide_shard shard,
                                      tide_layout **layout)
{
    layouts++;
    return __real_tide_layout_create(description, chunk_bytes, shard, layout);
}

tide_status __real_tide_manager_create(const tide_layout *layout, const tide_manager_options *options,
                                       tide_manager **manager);
tide_status __wrap_tide_manager_create(const tide_layout *layout, const tide_manager_options *options,
                                       tide_manager **manager);
tide_status __wrap_tide_manager_create(const tide_layout *layout, const tide_manager_options *options,
                                       tide_manager **manager)
{
    managers++;
    return __real_tide_manager_create(layout, options, manager);
}

tide_status __real_tide_pool_make(const tide_pool_options *options, tide_description *description,
                                  tide_pool **pool);
tide_status __wrap_tide_pool_make(const tide_pool_options *options, tide_description *description,
                                  tide_pool **pool);
tide_status __wrap_tide_pool_make(const tide_pool_options *options, tide_description *description,
                                  tide_pool **pool)
{
    pools++;
    return __real_tide_pool_make(options, description, pool);
}

/* As `tidepool train --metrics` starts: default budgets, recompute auto, predictions. */
static tide_trainer_options options_of_train(void)
{
    tide_trainer_options options = small_options(text, TIDE_DTYPE_BF16);
    options.pool.device_memory_bytes = options.pool.host_memory_bytes = 0;
    options.pool.free_memory_bytes = UINT64_C(1) << 34;
    options.pool.predict = true;
    options.recompute = TIDE_RECOMPUTE_AUTO;
    layouts = managers = pools = 0;
    return options;
}

static void a_start_lays_out_twice_and_makes_two_managers(void **state)
{
    const tide_trainer_options options = options_of_train();
    tide_trainer *trainer = trainer_open(&options);
    tide_trainer_destroy(trainer);
    assert_int_equal(layouts, 2); /* the model in which no block saves its activations; the model that runs */
    assert_int_equal(managers, 2); /* the pool's; that of the pool which predicts its steps */
    assert_int_equal(pools, 1);
}

static void a_start_without_questions_lays_out_once(void **state)
{
    tide_trainer_options options = options_of_train();
    options.recompute = TIDE_RECOMPUTE_ALL;
    options.pool.predict = false;
    tide_trainer *trainer = trainer_open(&options);
    tide_trainer_destroy(trainer);
    assert_int_equal(layouts, 1);
    assert_int_equal(managers, 1);
}

/* The refused pool is the only one: the batch that would fit is found by plans. */
static void a_refusal_finds_the_batch_that_fits_without_pools(void **state)
{
    tide_trainer_options options = options_of_train();
    options.global_batch_tokens = 1 << 20;
    options.recompute = TIDE_RECOMPUTE_ALL;
    options.pool.device_memory_bytes = options.pool.host_memory_bytes = 24 << 20;
    tide_trainer *trainer = NULL;
    assert_int_equal(tide_trainer_create(&options, &trainer), TIDE_ERROR_BUDGET);
    assert_true(number_in_message("the largest batch that fits is ") > 0);
    assert_int_equal(pools, 1);
    assert_int_equal(managers, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_start_lays_out_twice_and_makes_two_managers),
        cmocka_unit_test(a_start_without_questions_lays_out_once),
        cmocka_unit_test(a_refusal_finds_the_batch_that_fits_without_pools),
    };
    return cmocka_run_group_tests(tests, fixture_set_up, fixture_tear_down);
}
