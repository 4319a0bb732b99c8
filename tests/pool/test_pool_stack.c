/* How much of the caller's stack a pool takes: some programs give threads only 64 KiB. Uses only the public
 * header. */
#include "tests/support/assert_ok.h"

#include "tidepool/tidepool.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* MOST_BYTES: the limit. Measured were 21 KiB, and 28 KiB where the pool looks for a GPU, somewhat more
 * without optimization. */
enum { STACK_BYTES = 256 << 10, MOST_BYTES = 40 << 10, UNTOUCHED = 0x5a, STEPS = 3 };

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SANITIZED 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer) || __has_feature(memory_sanitizer)
#define SANITIZED 1
#endif
#endif
#ifndef SANITIZED
#define SANITIZED 0
#endif

static tide_status no_kernel(void *stream, const void *arguments)
{
    (void)stream, (void)arguments;
    return TIDE_OK;
}

static void step(tide_pool *pool, tide_op op)
{
    const tide_step_options options = {.training = true, .learning_rate = 0.1F, .epsilon = 1e-8F};
    tide_step_result result;
    assert_ok(tide_step_begin(pool, &options));
    assert_ok(tide_op_begin(pool, op));
    assert_ok(tide_launch(pool, "nothing", no_kernel, &op, sizeof op, 0, 0));
    assert_ok(tide_op_end(pool));
    assert_ok(tide_step_end(pool));
    assert_ok(tide_step_result_get(pool, &result));
}

static void *pool_life(void *unused)
{
    const uint64_t elements = 100000;
    const tide_use grad = {0, TIDE_ACCESS_GRAD};
    const tide_op_description op = {.name = "op", .pass = TIDE_PASS_BOTH, .params = &grad, .param_count = 1};
    tide_pool_options options;
    tide_pool_prediction prediction;
    tide_description *description;
    tide_pool *pool;
    tide_param param;
    tide_op number;
    float values[8];
    tide_pool_options_default(&options);
    options.chunk_bytes = 1 << 18;
    options.predict = true;
    assert_ok(tide_description_create(TIDE_DTYPE_BF16, 0, &description));
    assert_ok(tide_description_add_param(description, "w", &elements, 1, NULL, &param));
    assert_ok(tide_description_add_op(description, &op, &number));
    assert_ok(tide_pool_create(&options, description, &pool));
    for (int i = 0; i < STEPS; i++)
        step(pool, number);
    assert_ok(tide_pool_predict(pool, &prediction));
    assert_ok(tide_param_get(pool, param, TIDE_VALUE_MASTER, 0, 8, values));
    tide_pool_destroy(pool);
    tide_description_destroy(description);
    return unused;
}

/* The search for the GPU module takes stack whether or not the machine has a GPU. */
static void *gpu_search(void *unused)
{
    tide_pool_options options;
    tide_pool_plan plan;
    tide_description *description;
    assert_ok(tide_description_create(TIDE_DTYPE_BF16, 0, &description));
    tide_pool_options_default(&options);
    options.device = "cuda:0";
    assert_true(tide_pool_plan_make(&options, description, &plan) != TIDE_OK); /* it is empty */
    tide_description_destroy(description);
    return unused;
}

static size_t stack_of(void *(*call)(void *))
{
    pthread_attr_t attributes;
    pthread_t thread;
    unsigned char *stack = aligned_alloc(4096, STACK_BYTES);
    assert_non_null(stack);
    memset(stack, UNTOUCHED, STACK_BYTES);
    assert_int_equal(pthread_attr_init(&attributes), 0);
    assert_int_equal(pthread_attr_setstack(&attributes, stack, STACK_BYTES), 0);
    assert_int_equal(pthread_create(&thread, &attributes, call, NULL), 0);
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_int_equal(pthread_attr_destroy(&attributes), 0);
    size_t left = 0;
    while (left < STACK_BYTES && stack[left] == UNTOUCHED)
        left++;
    free(stack);
    return STACK_BYTES - left;
}

static void a_pool_lives_on_a_small_stack(void **state)
{
    if (SANITIZED)
        skip();
    assert_in_range(stack_of(pool_life), 1, MOST_BYTES);
    assert_in_range(stack_of(gpu_search), 1, MOST_BYTES);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_pool_lives_on_a_small_stack)};
    return cmocka_run_group_tests_name("pool_stack", tests, NULL, NULL);
}
