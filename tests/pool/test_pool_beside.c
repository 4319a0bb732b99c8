/* Gradients that are finished on a stream of their own beside the next op (options.checks.finish_beside). No
 * two params share a chunk here, so only the marks of the region's parts order that stream and the ops that
 * follow: the hazard checker sees a mark that is missing, and a wrong norm an overlap of accumulators. */
#include <math.h>

#include "tests/support/assert_ok.h"
#include "tidepool/tidepool.h"

enum {
    CHUNK_BYTES = 256 * 1024,
    CHUNK_ELEMENTS = CHUNK_BYTES / 4,
    PARAMS = 6,
    OPS = 7,
    GRAD = TIDE_ACCESS_GRAD,
};

/* In chunks. Params 0 to 3 have an op each, which lie at the ends of the region in turn; those of the ops of
 * 0 and 3 are so long that they overlap. Several ops make the gradients of 4 and 5. */
static const uint32_t chunks[PARAMS] = {2, 1, 1, 2, 1, 1};
static const tide_use uses[OPS][2] = {
    {{0, GRAD}}, {{1, GRAD}}, {{2, GRAD}}, {{3, GRAD}}, {{4, GRAD}, {5, GRAD}}, {{4, GRAD}}, {{5, GRAD}}};
static const uint32_t use_counts[OPS] = {1, 1, 1, 1, 2, 1, 1};

typedef struct add_args {
    float *gradient, amount;
    uint64_t elements;
} add_args;

static tide_status add(void *stream, const void *arguments)
{
    const add_args *args = arguments;
    (void)stream;
    for (uint64_t i = 0; i < args->elements; i++)
        args->gradient[i] += args->amount;
    return TIDE_OK;
}

static tide_pool *make(bool beside, uint64_t delay_seed, tide_description **description)
{
    tide_pool_options options;
    tide_pool *pool;
    tide_pool_options_default(&options);
    options.chunk_bytes = CHUNK_BYTES;
    options.threads = 1;
    options.checks.hazard_check = true;
    options.checks.finish_beside = beside;
    options.checks.delay_seed = delay_seed;
    options.checks.delay_max_us = delay_seed > 0 ? 2000 : 0;
    assert_ok(tide_description_create(TIDE_DTYPE_FP32, 0, description));
    for (uint32_t p = 0; p < PARAMS; p++) {
        const uint64_t elements = (uint64_t)chunks[p] * CHUNK_ELEMENTS;
        const char name[] = {'p', (char)('0' + (int)p), 0};
        tide_param param;
        assert_ok(tide_description_add_param(*description, name, &elements, 1, NULL, &param));
    }
    for (uint32_t o = 0; o < OPS; o++) {
        const char name[] = {'o', (char)('0' + (int)o), 0};
        const tide_op_description op = {
            .name = name, .pass = TIDE_PASS_BACKWARD, .params = uses[o], .param_count = use_counts[o]};
        tide_op number;
        assert_ok(tide_description_add_op(*description, &op, &number));
    }
    assert_ok(tide_pool_create(&options, *description, &pool));
    return pool;
}

/* Runs the op, which adds its number and 1 to each of its gradients. */
static void run(tide_pool *pool, tide_op op, bool finishes_early)
{
    assert_ok(tide_op_begin(pool, op));
    for (uint32_t i = 0; i < use_counts[op]; i++) {
        const tide_param param = uses[op][i].tensor;
        const add_args args = {tide_param_gradient(pool, param), (float)(op + 1),
                               (uint64_t)chunks[param] * CHUNK_ELEMENTS};
        assert_ok(tide_launch(pool, "add", add, &args, sizeof args, 0, 0));
        if (finishes_early)
            assert_ok(tide_gradient_finish(pool, param, 0, args.elements));
    }
    assert_ok(tide_op_end(pool));
}

static void begin(tide_pool *pool)
{
    assert_ok(tide_step_begin(pool, &(tide_step_options){.training = true, .epsilon = 1, .clip_norm = 1}));
}

/* Ends a step in which all ops ran. Params 4 and 5 have gradients 5 + 6 and 5 + 7. */
static void end(tide_pool *pool, uint64_t seed)
{
    static const double gradients[PARAMS] = {1, 2, 3, 4, 11, 12};
    double squares = 0;
    tide_step_result result;
    for (uint32_t p = 0; p < PARAMS; p++)
        squares += gradients[p] * gradients[p] * chunks[p] * CHUNK_ELEMENTS;
    assert_ok(tide_step_end(pool));
    assert_ok(tide_step_result_get(pool, &result));
    if (result.gradient_norm != sqrt(squares))
        fail_msg("delays %llu: norm %.17g, not %.17g", (unsigned long long)seed, result.gradient_norm,
                 sqrt(squares));
}

static void check(bool beside, uint64_t seed)
{
    static const tide_op orders[][OPS] = {
        {0, 1, 2, 3, 4, 5, 6}, {0, 3, 1, 2, 4, 6, 5}, {3, 0, 2, 1, 4, 5, 6}, {2, 4, 0, 5, 3, 6, 1}};
    tide_description *description;
    tide_pool *pool = make(beside, seed, &description);
    for (size_t order = 0; order < sizeof orders / sizeof orders[0]; order++) {
        begin(pool);
        for (size_t i = 0; i < OPS; i++)
            run(pool, orders[order][i], order % 2 == 0 && i == 1);
        end(pool, seed);
    }
    tide_pool_destroy(pool);
    tide_description_destroy(description);
}

static void gradients_are_the_same_whatever_stream_finishes_them(void **state)
{
    check(false, 0);
    check(true, 0);
    for (uint64_t seed = 1; seed <= 8; seed++)
        check(true, seed);
}

/* A step that was given up leaves nothing behind, whatever was finishing. */
static void a_step_follows_one_that_was_given_up(void **state)
{
    tide_description *description;
    tide_pool *pool = make(true, 3, &description);
    for (tide_op last = 0; last < OPS; last++) {
        begin(pool);
        for (tide_op op = 0; op <= last; op++)
            run(pool, op, false);
        assert_ok(tide_step_abort(pool));
        begin(pool);
        for (tide_op op = 0; op < OPS; op++)
            run(pool, op, false);
        end(pool, 3);
    }
    tide_pool_destroy(pool);
    tide_description_destroy(description);
}

/* Each accumulator takes as many chunks as its param. */
static void neighbours_have_room_at_both_ends_and_one_end_takes_no_more_than_before(void **state)
{
    tide_pool_plan plan[2];
    for (int beside = 0; beside < 2; beside++) {
        tide_description *description;
        tide_pool *pool = make(beside, 0, &description);
        assert_ok(tide_pool_plan_get(pool, &plan[beside]));
        tide_pool_destroy(pool);
        tide_description_destroy(description);
    }
    assert_int_equal(plan[0].workspace_bytes, 2 * CHUNK_BYTES);
    assert_int_equal(plan[1].workspace_bytes, 3 * CHUNK_BYTES);
    assert_int_equal(plan[1].region_bytes - plan[0].region_bytes, CHUNK_BYTES);
}

static void it_excludes_the_guard(void **state)
{
    tide_pool_options options;
    tide_description *description;
    tide_pool *pool = make(true, 0, &description), *other = NULL;
    tide_pool_options_default(&options);
    options.checks.finish_beside = options.checks.guard = true;
    assert_int_equal(tide_pool_create(&options, description, &other), TIDE_ERROR_ARGUMENT);
    assert_string_equal(tide_message(), "pool: checks.guard and checks.finish_beside exclude each other");
    tide_pool_destroy(pool);
    tide_description_destroy(description);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gradients_are_the_same_whatever_stream_finishes_them),
        cmocka_unit_test(a_step_follows_one_that_was_given_up),
        cmocka_unit_test(neighbours_have_room_at_both_ends_and_one_end_takes_no_more_than_before),
        cmocka_unit_test(it_excludes_the_guard),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
