/* Gradients of params that several ops use: which contributions the pool sums, when it rounds the sum, and
 * which orders of ops it refuses. Uses only the public header, with chunks that move and with everything
 * resident. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "tests/support/assert_ok.h"
#include "tidepool/tidepool.h"

enum {
    READ = TIDE_ACCESS_READ,
    GRAD = TIDE_ACCESS_GRAD,
    OVERWRITES = TIDE_ACCESS_GRAD | TIDE_ACCESS_OVERWRITE,
    OPS_MAX = 8,
    PARAMS_MAX = 4,
};

typedef struct op_of {
    tide_op handle;
    tide_use uses[PARAMS_MAX];
    uint32_t use_count;
} op_of;

typedef struct fixture {
    tide_description *description;
    tide_pool *pool;
    op_of ops[OPS_MAX];
    uint32_t op_count;
} fixture;

typedef struct add_args {
    float *gradient, amount;
    bool overwrite;
} add_args;

static tide_status add(void *stream, const void *arguments)
{
    const add_args *args = arguments;
    (void)stream;
    *args->gradient = args->overwrite ? args->amount : *args->gradient + args->amount;
    return TIDE_OK;
}

/* Describe `params` params of one element each. */
static fixture arrange(uint32_t params)
{
    fixture it = {0};
    assert_ok(tide_description_create(TIDE_DTYPE_BF16, 0, &it.description));
    for (uint32_t i = 0; i < params; i++) {
        char name[16];
        const uint64_t one = 1;
        tide_param param;
        snprintf(name, sizeof name, "p%u", i);
        assert_ok(tide_description_add_param(it.description, name, &one, 1, NULL, &param));
        assert_int_equal(param, i);
    }
    return it;
}

static void add_op(fixture *it, const char *name, tide_pass pass, uint32_t use_count, const tide_use *uses)
{
    op_of *op = &it->ops[it->op_count++];
    memcpy(op->uses, uses, use_count * sizeof *uses);
    op->use_count = use_count;
    const tide_op_description description = {
        .name = name, .pass = pass, .params = uses, .param_count = use_count};
    assert_ok(tide_description_add_op(it->description, &description, &op->handle));
}

static void make_pool(fixture *it)
{
    tide_pool_options options;
    tide_pool_options_default(&options);
    options.chunk_bytes = 256 * 1024;
    options.threads = 1;
    options.checks.hazard_check = options.checks.guard = true;
    assert_ok(tide_pool_create(&options, it->description, &it->pool));
}

static void destroy(fixture *it)
{
    tide_pool_destroy(it->pool);
    tide_description_destroy(it->description);
}

static void add_small_op(fixture *it, const char *name, tide_param param, uint32_t access)
{
    add_op(it, name, TIDE_PASS_BACKWARD, 1, &(tide_use){param, access});
}

static void begin(const fixture *it, float clip_norm)
{
    const tide_step_options options = {.training = true,
                                       .learning_rate = 0.5F,
                                       .beta1 = 0.9F,
                                       .beta2 = 0.9F,
                                       .epsilon = 1,
                                       .clip_norm = clip_norm};
    assert_ok(tide_step_begin(it->pool, &options));
}

/* Run op `number`. It adds `amount` to each gradient that it makes, or overwrites the gradient if it is
 * new. */
static tide_status run(const fixture *it, uint32_t number, float amount)
{
    const op_of *op = &it->ops[number];
    tide_status status = tide_op_begin(it->pool, op->handle);
    for (uint32_t i = 0; i < op->use_count && status == TIDE_OK; i++) {
        const tide_param param = op->uses[i].tensor;
        const add_args args = {tide_param_gradient(it->pool, param), amount,
                               tide_param_gradient_is_new(it->pool, param)};
        if (args.gradient != NULL)
            status = tide_launch(it->pool, "add", add, &args, sizeof args, 0, 0);
    }
    return status == TIDE_OK ? tide_op_end(it->pool) : status;
}

static void assert_refused(const fixture *it, uint32_t op, const char *message)
{
    assert_int_equal(tide_op_begin(it->pool, it->ops[op].handle), TIDE_ERROR_STATE);
    assert_string_equal(tide_message(), message);
}

static double end(const fixture *it)
{
    tide_step_result result;
    assert_ok(tide_step_end(it->pool));
    assert_ok(tide_step_result_get(it->pool, &result));
    return result.gradient_norm;
}

/* --- several ops add to one gradient --- */

static void check_one_rounding(uint32_t middle_access)
{
    fixture it = arrange(1);
    add_small_op(&it, "g0", 0, GRAD);
    add_small_op(&it, "g1", 0, middle_access);
    add_small_op(&it, "g2", 0, GRAD);
    make_pool(&it);
    for (int step = 0; step < 2; step++) {
        begin(&it, 1);
        assert_ok(run(&it, 0, 1));
        assert_ok(run(&it, 1, 1.0F / 256));
        assert_ok(run(&it, 2, 1.0F / 256));
        assert_true(end(&it) == 1 + 2.0 / 256); /* bf16 can represent 1 + 1/128, but not 1 + 1/256 */
    }
    destroy(&it);
}

static void a_gradient_of_several_ops_is_rounded_once(void **state)
{
    check_one_rounding(GRAD);
    check_one_rounding(READ | GRAD);
}

static void an_op_may_come_twice_or_not_at_all_before_its_gradient_is_closed(void **state)
{
    fixture it = arrange(2);
    add_small_op(&it, "g0", 0, GRAD);
    add_small_op(&it, "G1", 0, READ | GRAD);
    add_small_op(&it, "g2", 0, GRAD);
    make_pool(&it);
    begin(&it, 0);
    assert_ok(run(&it, 0, 4)); /* the step leaves out op 1, named G1 */
    assert_ok(run(&it, 2, 3));
    assert_refused(&it, 1, "op G1 uses param p0, but its gradient stands in its place since op g2 ended");
    assert_true(end(&it) == 7);
    begin(&it, 0);
    assert_ok(run(&it, 1, 4));
    assert_ok(run(&it, 1, 2));
    assert_ok(run(&it, 2, 1));
    assert_refused(&it, 2, "op g2 uses param p0, but its gradient stands in its place since op g2 ended");
    assert_true(end(&it) == 7);
    destroy(&it);
}

/* --- ops that overwrite a new gradient --- */

static void an_op_overwrites_a_gradient_that_nobody_added_to_in_the_step(void **state)
{
    fixture it = arrange(2);
    add_small_op(&it, "g0", 0, OVERWRITES);
    add_small_op(&it, "g1", 0, OVERWRITES);
    add_op(&it, "g2", TIDE_PASS_BACKWARD, 2, (tide_use[]){{0, GRAD}, {1, READ | OVERWRITES}});
    make_pool(&it);
    assert_false(tide_param_gradient_is_new(it.pool, 0));
    for (int step = 0; step < 2; step++) {
        begin(&it, 1);
        assert_ok(run(&it, 0, 1)); /* overwrites the gradient, which is new */
        assert_ok(run(&it, 0, 1)); /* adds to it, as all later ops do */
        assert_ok(run(&it, 1, 2));
        assert_ok(tide_op_begin(it.pool, it.ops[2].handle));
        assert_false(tide_param_gradient_is_new(it.pool, 0));
        assert_true(tide_param_gradient_is_new(it.pool, 1));
        assert_false(tide_param_gradient_is_new(it.pool, 7));
        const add_args more = {tide_param_gradient(it.pool, 0), 2, false},
                       all = {tide_param_gradient(it.pool, 1), 8, true};
        assert_ok(tide_launch(it.pool, "add", add, &more, sizeof more, 0, 0));
        assert_ok(tide_launch(it.pool, "write", add, &all, sizeof all, 0, 0));
        assert_ok(tide_op_end(it.pool));
        assert_true(end(&it) == 10); /* the norm of (6, 8) */
    }
    destroy(&it);
}

static void an_element_that_an_op_promises_to_overwrite_and_does_not_is_nan(void **state)
{
    tide_step_result result;
    fixture it = arrange(2);
    add_op(&it, "g", TIDE_PASS_BACKWARD, 2, (tide_use[]){{0, GRAD}, {1, OVERWRITES}});
    make_pool(&it);
    begin(&it, 1);
    assert_ok(run(&it, 0, 1));
    assert_true(end(&it) == sqrt(2));
    begin(&it, 1);
    assert_ok(tide_op_begin(it.pool, it.ops[0].handle));
    assert_ok(tide_op_end(it.pool));
    assert_ok(tide_step_end(it.pool));
    assert_ok(tide_step_result_get(it.pool, &result));
    assert_true(isnan(result.gradient_norm));
    destroy(&it);
}

/* --- sum groups --- */

/* Describe an op with one gradient and `slices` slices; none: 0. */
static void add_sliced_op(fixture *it, const char *name, tide_param param, uint32_t slices)
{
    tide_activation activation = 0;
    const tide_use use = {param, GRAD};
    if (slices > 0)
        assert_ok(tide_description_add_activation(it->description, name, slices, 4, &activation));
    const tide_use part = {activation, TIDE_ACCESS_WRITE | TIDE_ACCESS_LAST};
    const tide_op_description description = {.name = name,
                                             .pass = TIDE_PASS_BACKWARD,
                                             .params = &use,
                                             .param_count = 1,
                                             .activations = slices > 0 ? &part : NULL,
                                             .activation_count = slices > 0,
                                             .slices = slices};
    assert_ok(tide_description_add_op(it->description, &description, &it->ops[it->op_count++].handle));
}

static tide_pool_plan plan_of(const fixture *it, uint32_t sum_groups)
{
    tide_pool_options options;
    tide_pool_plan plan;
    tide_pool_options_default(&options);
    options.sum_groups = sum_groups;
    assert_ok(tide_pool_plan_make(&options, it->description, &plan));
    return plan;
}

/* Each accumulator takes 256 bytes. V sum groups need V sets of the one that two ops share, and of the other
 * op's own floor(log2 V) + 1. */
static void the_plan_counts_what_sum_groups_take(void **state)
{
    static const struct {
        uint32_t groups, own_sets;
    } cases[] = {{1, 1}, {2, 2}, {3, 2}, {4, 3}, {6, 3}, {8, 4}, {24, 5}};
    fixture it = arrange(2);
    add_sliced_op(&it, "own", 0, 24);
    add_sliced_op(&it, "one", 1, 24);
    add_sliced_op(&it, "two", 1, 48);
    const tide_pool_plan one = plan_of(&it, 1);
    assert_int_equal(one.sum_group_bytes, 0);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const tide_pool_plan plan = plan_of(&it, cases[i].groups);
        assert_int_equal(plan.shared_accumulator_bytes, 256 * cases[i].groups);
        assert_int_equal(plan.workspace_bytes, 256 * cases[i].own_sets);
        assert_int_equal(plan.sum_group_bytes, 256 * (cases[i].groups - 1 + cases[i].own_sets - 1));
        assert_int_equal(plan.region_bytes, one.region_bytes + plan.sum_group_bytes);
    }
    destroy(&it);
}

static void assert_groups_refused(const fixture *it, uint32_t sum_groups, const char *message)
{
    tide_pool_options options;
    tide_pool *pool = NULL;
    tide_pool_options_default(&options);
    options.sum_groups = sum_groups;
    assert_int_equal(tide_pool_create(&options, it->description, &pool), TIDE_ERROR_ARGUMENT);
    assert_string_equal(tide_message(), message);
}

static void sum_groups_need_slices_that_they_divide(void **state)
{
    fixture it = arrange(2);
    add_sliced_op(&it, "sliced", 0, 6);
    assert_groups_refused(
        &it, 4,
        "pool: sum_groups is 4, but op sliced, which makes gradients, has 6 slices; it must "
        "have a multiple of 4");
    destroy(&it);
    it = arrange(1);
    add_sliced_op(&it, "whole", 0, 0);
    assert_groups_refused(&it, 2,
                          "pool: sum_groups is 2, but op whole, which makes gradients, has 0 slices; it must "
                          "have a multiple of 2");
    destroy(&it);
}

static void a_budget_too_small_for_sum_groups_is_refused_with_what_they_take(void **state)
{
    fixture it = arrange(1);
    tide_pool_options options;
    tide_pool_options_default(&options);
    add_sliced_op(&it, "own", 0, 8);
    options.chunk_bytes = 256 * 1024;
    options.sum_groups = 8;
    options.device_memory_bytes = plan_of(&it, 8).region_bytes;
    assert_int_equal(tide_pool_create(&options, it.description, &it.pool), TIDE_ERROR_BUDGET);
    assert_non_null(strstr(tide_message(), " of region (768 of them since there are 8 sum groups);"));
    destroy(&it);
}

/* --- gradients finished before their op ends --- */

enum { UNIT = TIDE_FINISHED_ALIGNMENT, UNITS = 40, ELEMENTS = UNIT * UNITS + 5 };

static tide_status fill_with_ones(void *stream, const void *arguments)
{
    float *const *gradient = arguments;
    (void)stream;
    for (int i = 0; i < ELEMENTS; i++)
        (*gradient)[i] += 1;
    return TIDE_OK;
}

/* A model of one param of ELEMENTS elements; op 0 makes its gradient, op 1 closes it, op 2 uses neither. */
static fixture arrange_long(void)
{
    fixture it = {0};
    const uint64_t elements = ELEMENTS, one = 1;
    tide_param param;
    assert_ok(tide_description_create(TIDE_DTYPE_BF16, 0, &it.description));
    assert_ok(tide_description_add_param(it.description, "long", &elements, 1, NULL, &param));
    assert_ok(tide_description_add_param(it.description, "other", &one, 1, NULL, &param));
    add_small_op(&it, "make", 0, GRAD);
    add_small_op(&it, "close", 0, GRAD);
    add_small_op(&it, "else", 1, GRAD);
    make_pool(&it);
    return it;
}

static void begin_op(const fixture *it, uint32_t number)
{
    assert_ok(tide_op_begin(it->pool, it->ops[number].handle));
    float *gradient = tide_param_gradient(it->pool, 0);
    if (gradient != NULL)
        assert_ok(tide_launch(it->pool, "ones", fill_with_ones, &gradient, sizeof gradient, 0, 0));
}

static void assert_unfinished(const fixture *it, uint64_t first, uint64_t count, tide_status status,
                              const char *words)
{
    assert_int_equal(tide_gradient_finish(it->pool, 0, first, count), status);
    if (strstr(tide_message(), words) == NULL)
        fail_msg("\"%s\" does not say \"%s\"", tide_message(), words);
}

static void a_gradient_may_be_finished_in_parts_in_any_order(void **state)
{
    fixture it = arrange_long();
    begin(&it, 1);
    begin_op(&it, 0);
    assert_unfinished(&it, 0, UNIT, TIDE_ERROR_STATE, "op make does not close its gradient");
    assert_ok(tide_op_end(it.pool));
    begin_op(&it, 1);
    for (uint64_t i = 0; i < TIDE_FINISHED_RANGES_MAX; i++)
        assert_ok(tide_gradient_finish(it.pool, 0, 2 * i * UNIT, UNIT));
    assert_unfinished(&it, 2 * TIDE_FINISHED_RANGES_MAX * UNIT, UNIT, TIDE_ERROR_STATE,
                      "more than 16 finished ranges would lie apart");
    assert_unfinished(&it, 3 * UNIT, 2 * UNIT, TIDE_ERROR_STATE, "element 256 is finished already");
    assert_unfinished(&it, 2 * UNIT, 2 * UNIT, TIDE_ERROR_STATE, "element 128 is finished already");
    assert_ok(tide_gradient_finish(it.pool, 0, 3 * UNIT, UNIT)); /* joins two ranges */
    assert_ok(tide_gradient_finish(it.pool, 0, 38 * UNIT, 2 * UNIT + 5));
    assert_ok(tide_gradient_finish(it.pool, 0, 31 * UNIT, UNIT)); /* joins one */
    assert_ok(tide_gradient_finish(it.pool, 0, 37 * UNIT, UNIT));
    assert_unfinished(&it, 36 * UNIT, 2 * UNIT, TIDE_ERROR_STATE, "element 2368 is finished already");
    assert_ok(tide_op_end(it.pool));
    assert_true(end(&it) == sqrt(4.0 * ELEMENTS));
    destroy(&it);
}

static void no_other_part_of_a_gradient_can_be_finished(void **state)
{
    fixture it = arrange_long();
    assert_unfinished(&it, 0, UNIT, TIDE_ERROR_STATE, "no op is open");
    begin(&it, 1);
    begin_op(&it, 2);
    assert_unfinished(&it, 0, UNIT, TIDE_ERROR_STATE, "op else does not use it");
    assert_ok(tide_op_end(it.pool));
    begin_op(&it, 1);
    assert_int_equal(tide_gradient_finish(it.pool, 2, 0, 1), TIDE_ERROR_ARGUMENT);
    assert_unfinished(&it, 1, UNIT, TIDE_ERROR_ARGUMENT, "64 elements from 1 on; it has 2565, ");
    assert_unfinished(&it, 0, UNIT + 1, TIDE_ERROR_ARGUMENT, "65 elements");
    assert_unfinished(&it, 0, 0, TIDE_ERROR_ARGUMENT, "0 elements");
    assert_unfinished(&it, ELEMENTS - 5, 6, TIDE_ERROR_ARGUMENT, "6 elements");
    assert_unfinished(&it, UINT64_MAX - 63, UNIT, TIDE_ERROR_ARGUMENT, "64 elements");
    assert_unfinished(&it, UNIT, UINT64_MAX - 63, TIDE_ERROR_ARGUMENT, "elements from 64");
    assert_ok(tide_gradient_finish(it.pool, 0, 0, ELEMENTS));
    assert_unfinished(&it, ELEMENTS - 5, 5, TIDE_ERROR_STATE, "element 2560 is finished already");
    assert_ok(tide_op_end(it.pool));
    assert_true(end(&it) == sqrt(1.0 * ELEMENTS + 0)); /* the gradient of the other param is 0 */
    destroy(&it);
}

/* The step is given up after a gradient was finished and before its op has ended. */
static void a_finished_gradient_is_undone_with_its_step(void **state)
{
    static float before[ELEMENTS], after[ELEMENTS];
    fixture it = arrange_long();
    for (int i = 0; i < ELEMENTS; i++)
        before[i] = (float)i;
    assert_ok(tide_param_set(it.pool, 0, TIDE_VALUE_MASTER, 0, ELEMENTS, before));
    assert_ok(tide_param_get(it.pool, 0, TIDE_VALUE_PARAM, 0, ELEMENTS, before));
    begin(&it, 1);
    begin_op(&it, 1);
    assert_ok(tide_gradient_finish(it.pool, 0, UNIT, 9 * UNIT));
    assert_ok(tide_step_abort(it.pool));
    assert_ok(tide_param_get(it.pool, 0, TIDE_VALUE_PARAM, 0, ELEMENTS, after));
    assert_memory_equal(before, after, sizeof before);
    destroy(&it);
}

/* --- allowed and refused orders of ops --- */

static void a_step_can_not_end_while_a_gradient_waits_for_an_op(void **state)
{
    fixture it = arrange(1);
    add_small_op(&it, "head", 0, READ | GRAD);
    add_small_op(&it, "embedding", 0, GRAD);
    make_pool(&it);
    begin(&it, 0);
    assert_ok(run(&it, 0, 1));
    assert_int_equal(tide_step_end(it.pool), TIDE_ERROR_STATE);
    assert_string_equal(
        tide_message(),
        "step end: the gradient of param p0 waits for the end of op embedding, which has not run");
    assert_ok(run(&it, 1, 1));
    assert_true(end(&it) == 2);
    destroy(&it);
}

/* Ops "a" and "b" make the gradient of p0, and b closes it. Ops "a" and "c" share p1, which c closes; c also
 * reads p0. */
static void an_order_that_would_lose_a_gradient_is_refused_before_it_does(void **state)
{
    fixture it = arrange(2);
    add_small_op(&it, "a", 1, GRAD);
    add_op(&it, "b", TIDE_PASS_BACKWARD, 2, (tide_use[]){{0, READ}, {1, GRAD}});
    add_small_op(&it, "c", 0, GRAD);
    make_pool(&it);
    begin(&it, 0);
    assert_ok(run(&it, 0, 3)); /* the gradient of p1 is now open until b runs, and b reads p0 */
    assert_refused(
        &it, 2,
        "op c can't begin before op b, which a gradient waits for and which uses param p0: op c puts the "
        "gradient of that into its place");
    assert_ok(run(&it, 1, 1));
    assert_ok(run(&it, 2, 3));
    assert_true(end(&it) == 5); /* the norm of (3, 4) */

    begin(&it, 0);
    assert_ok(run(&it, 2, 5));
    assert_refused(
        &it, 0,
        "op a can't begin any more in this step: a gradient would wait for op b, and the gradient of its "
        "param p0 stands in its place since op c ended");
    assert_true(end(&it) == 5); /* p1 has no gradient */
    destroy(&it);
}

static void a_forward_op_may_come_between_the_makers_of_a_gradient_and_not_after_its_end(void **state)
{
    fixture it = arrange(1);
    add_small_op(&it, "first", 0, READ | GRAD);
    add_op(&it, "forward", TIDE_PASS_FORWARD, 1, &(tide_use){0, READ});
    add_small_op(&it, "second", 0, READ | GRAD);
    add_op(&it, "evaluation", TIDE_PASS_FORWARD, 1, &(tide_use){0, READ});
    make_pool(&it);
    begin(&it, 0);
    for (uint32_t op = 0; op < 3; op++)
        assert_ok(run(&it, op, 1));
    assert_refused(&it, 3,
                   "op evaluation uses param p0, but its gradient stands in its place since op second ended");
    assert_true(end(&it) == 2);
    assert_ok(tide_step_begin(it.pool, &(tide_step_options){.training = false}));
    assert_ok(run(&it, 3, 0));
    assert_ok(tide_step_end(it.pool));
    destroy(&it);
}

/* --- the results of a step --- */

static void a_step_is_counted_once_its_norm_is_known(void **state)
{
    for (int clip = 0; clip < 2; clip++) {
        fixture it = arrange(1);
        add_small_op(&it, "g", 0, GRAD);
        make_pool(&it);
        for (uint64_t step = 0; step < 3; step++) {
            begin(&it, (float)clip);
            assert_int_equal(tide_update_count(it.pool), step);
            assert_ok(run(&it, 0, 1));
            assert_int_equal(tide_op_begin(it.pool, it.ops[0].handle), TIDE_ERROR_STATE);
            assert_int_equal(tide_update_count(it.pool), step);
            (void)end(&it);
            assert_int_equal(tide_update_count(it.pool), step + 1);
            assert_ok(tide_step_begin(it.pool, &(tide_step_options){.training = false}));
            assert_int_equal(tide_update_count(it.pool), step + 1);
            assert_ok(tide_step_end(it.pool));
        }
        destroy(&it);
    }
}

static void one_description_makes_pool_after_pool(void **state)
{
    fixture it = arrange(1);
    add_small_op(&it, "g", 0, GRAD);
    for (int i = 0; i < 2; i++) {
        make_pool(&it);
        begin(&it, 1);
        assert_ok(run(&it, 0, 3));
        assert_true(end(&it) == 3);
        tide_pool_destroy(it.pool);
    }
    tide_description_destroy(it.description);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_gradient_of_several_ops_is_rounded_once),
        cmocka_unit_test(an_op_may_come_twice_or_not_at_all_before_its_gradient_is_closed),
        cmocka_unit_test(an_op_overwrites_a_gradient_that_nobody_added_to_in_the_step),
        cmocka_unit_test(an_element_that_an_op_promises_to_overwrite_and_does_not_is_nan),
        cmocka_unit_test(the_plan_counts_what_sum_groups_take),
        cmocka_unit_test(sum_groups_need_slices_that_they_divide),
        cmocka_unit_test(a_budget_too_small_for_sum_groups_is_refused_with_what_they_take),
        cmocka_unit_test(a_gradient_may_be_finished_in_parts_in_any_order),
        cmocka_unit_test(no_other_part_of_a_gradient_can_be_finished),
        cmocka_unit_test(a_finished_gradient_is_undone_with_its_step),
        cmocka_unit_test(a_step_can_not_end_while_a_gradient_waits_for_an_op),
        cmocka_unit_test(an_order_that_would_lose_a_gradient_is_refused_before_it_does),
        cmocka_unit_test(a_forward_op_may_come_between_the_makers_of_a_gradient_and_not_after_its_end),
        cmocka_unit_test(a_step_is_counted_once_its_norm_is_known),
        cmocka_unit_test(one_description_makes_pool_after_pool),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
