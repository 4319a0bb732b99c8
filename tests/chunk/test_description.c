/* Descriptions of models: refused calls, copies of names and uses, and calls that find no memory. */
#include "chunk/description.h"
#include "chunk/layout.h"
#include "tests/support/assert_ok.h"
#include "tests/support/fake_memory.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

enum { READ = TIDE_ACCESS_READ, GRAD = TIDE_ACCESS_GRAD, WRITE = TIDE_ACCESS_WRITE };
#define UNCHANGED UINT32_MAX

static const uint64_t one = 1;

static tide_description *description;

static int make_description(void **state)
{
    assert_int_equal(tide_description_create(TIDE_DTYPE_BF16, 0, &description), TIDE_OK);
    return 0;
}

static int destroy_description(void **state)
{
    tide_description_destroy(description);
    return 0;
}

static tide_status add_shape(const char *name, const uint64_t *shape, uint32_t rank)
{
    tide_param param = UNCHANGED;
    const tide_status status = tide_description_add_param(description, name, shape, rank, NULL, &param);
    assert_int_equal(param == UNCHANGED, status != TIDE_OK);
    return status;
}

static tide_status add_class(const char *name, const tide_param_class *of_class)
{
    tide_param param;
    return tide_description_add_param(description, name, &one, 1, of_class, &param);
}

static tide_status add_activation(const char *name, uint32_t parts, uint64_t part_bytes)
{
    tide_activation activation = UNCHANGED;
    const tide_status status =
        tide_description_add_activation(description, name, parts, part_bytes, &activation);
    assert_int_equal(activation == UNCHANGED, status != TIDE_OK);
    return status;
}

static tide_status add_op(const tide_op_description *of_op)
{
    tide_op op = UNCHANGED;
    const tide_status status = tide_description_add_op(description, of_op, &op);
    assert_int_equal(op == UNCHANGED, status != TIDE_OK);
    return status;
}

static void expect_refusal(tide_status status, const char *message)
{
    assert_int_equal(status, TIDE_ERROR_ARGUMENT);
    assert_non_null(strstr(tide_message(), message));
}

/* --- refusals --- */

static void nulls_are_refused_or_find_nothing(void **state)
{
    tide_description *d = description;
    const tide_op_description of_op = {.name = "op"};
    tide_op number = UNCHANGED;
    expect_refusal(tide_description_create(TIDE_DTYPE_BF16, 0, NULL), "description is NULL");
    expect_refusal(tide_description_add_param(NULL, "p", &one, 1, NULL, &number), "description is NULL");
    expect_refusal(tide_description_add_param(d, NULL, &one, 1, NULL, &number), "name is NULL");
    expect_refusal(tide_description_add_param(d, "p", NULL, 1, NULL, &number), "shape is NULL");
    expect_refusal(tide_description_add_param(d, "p", &one, 1, NULL, NULL), "param is NULL");
    expect_refusal(tide_description_add_activation(NULL, "c", 1, 1, &number), "description is NULL");
    expect_refusal(tide_description_add_activation(d, NULL, 1, 1, &number), "name is NULL");
    expect_refusal(tide_description_add_activation(d, "c", 1, 1, NULL), "activation is NULL");
    expect_refusal(tide_description_add_op(NULL, &of_op, &number), "description is NULL");
    expect_refusal(tide_description_add_op(d, NULL, &number), "of_op is NULL");
    expect_refusal(tide_description_add_op(d, &of_op, NULL), "op is NULL");
    assert_false(tide_description_find_param(NULL, "p", &number));
    assert_false(tide_description_find_param(d, NULL, &number));
    assert_false(tide_description_find_param(d, "p", NULL));
    assert_int_equal(tide_description_param_elements(NULL, 0), 0);
    assert_int_equal(tide_description_param_elements(d, 0), 0);
    assert_int_equal(number, UNCHANGED);
    tide_description_destroy(NULL);
}

static void bad_dtypes_and_sizes_are_refused_at_create(void **state)
{
    tide_description *made = NULL;
    expect_refusal(tide_description_create((tide_dtype)7, 0, &made), "dtype 7");
    expect_refusal(tide_description_create(TIDE_DTYPE_BF16, (UINT64_C(1) << 50) + 1, &made),
                   "nonmodel_bytes");
    assert_null(made);
}

static void bad_params_are_refused_by_name(void **state)
{
    const uint64_t shape[] = {1, 2, 3, 4, 5}, zero[] = {3, 0}, large[] = {1 << 24, (1 << 24) + 1};
    const uint64_t most = UINT64_C(1) << 48;
    expect_refusal(add_shape("", &one, 1), "every param needs a name");
    expect_refusal(add_shape("p", shape, 0), "param p: 0 dimensions");
    expect_refusal(add_shape("p", shape, 5), "param p: 5 dimensions");
    expect_refusal(add_shape("p", zero, 2), "param p: dimension 1 is 0");
    expect_refusal(add_shape("p", large, 2), "param p: dimension 1 is 16777217, too large");
    assert_int_equal(add_shape("p", shape, 4), TIDE_OK);
    assert_int_equal(tide_description_param_elements(description, 0), 1 * 2 * 3 * 4);
    expect_refusal(add_shape("p", &one, 1), "param p: there is one of this name");
    expect_refusal(add_shape("q", &most, 1), "param q: 281474976710656 elements behind 128 of others");
}

static void bad_states_are_refused_by_param(void **state)
{
    const tide_param_class bad[] = {{.state = {4, {1, 1, 1}}},
                                    {.state = {2, {1, 0}}},
                                    {.state = {1, {1, 1}}},
                                    {.frozen = true, .decay = true},
                                    {.frozen = true, .state = {1, {1}}}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        expect_refusal(add_class("p", &bad[i]), "param p: ");
    assert_int_equal(description->params.count + description->class_count, 0);
}

/* Decay makes no class, and no state is AdamW's. */
static void params_have_at_most_eight_kinds_of_state(void **state)
{
    const tide_param_class frozen = {.frozen = true}, adamw = {.state = {3, {128, 128, 128}}};
    char name[16];
    for (uint32_t i = 1; i < TIDE_CLASSES_MAX; i++) {
        const tide_param_class of_class = {.state = {1, {i}}};
        snprintf(name, sizeof name, "p%u", i);
        assert_int_equal(add_class(name, &of_class), TIDE_OK);
    }
    assert_int_equal(add_class("adamw", &adamw), TIDE_OK);
    expect_refusal(add_class("frozen", &frozen), "param frozen: its state is of one kind too many");
    assert_int_equal(add_class("decays", &(tide_param_class){.decay = true}), TIDE_OK);
    assert_int_equal(add_class("default", NULL), TIDE_OK);
    assert_int_equal(description->class_count, TIDE_CLASSES_MAX);
    assert_int_equal(description->classes[TIDE_CLASSES_MAX - 1].params, 3);
}

static void bad_activations_are_refused_by_name(void **state)
{
    const uint64_t most = UINT64_C(1) << 50;
    assert_int_equal(add_shape("p", &one, 1), TIDE_OK);
    assert_int_equal(add_activation("p", 1, 1), TIDE_OK); /* a param may have the same name */
    expect_refusal(add_activation("p", 1, 1), "activation p: there is one of this name");
    expect_refusal(add_activation("", 1, 1), "every activation needs a name");
    expect_refusal(add_activation("c", 0, 1), "activation c: 0 parts");
    expect_refusal(add_activation("c", 1, 0), "activation c: 1 parts of 0 bytes");
    expect_refusal(add_activation("c", (1 << 20) + 1, 1), "activation c: 1048577 parts");
    expect_refusal(add_activation("c", 2, most / 2), "activation c: 2 parts");
    expect_refusal(add_activation("c", 1, most + 1), "activation c: 1 parts");
}

/* An op of BACKWARD, to which the cases below give wrong uses. */
static tide_op_description bad_op(const tide_use *params, uint32_t count)
{
    return (tide_op_description){
        .name = "bad", .pass = TIDE_PASS_BACKWARD, .params = params, .param_count = count};
}

static void add_two_params_and_an_activation(void)
{
    assert_int_equal(add_shape("warm", &one, 1), TIDE_OK);
    assert_int_equal(add_class("cold", &(tide_param_class){.frozen = true}), TIDE_OK);
    assert_int_equal(add_activation("tensor", 2, 1), TIDE_OK);
}

static void bad_uses_of_params_are_refused_naming_op_and_param(void **state)
{
    add_two_params_and_an_activation();
    static const struct {
        tide_use uses[3];
        uint32_t count;
        const char *message;
    } cases[] = {{{{7, READ}}, 1, "op bad: there is no param 7"},
                 {{{0, READ}, {0, GRAD}}, 2, "op bad, warm: named twice"},
                 {{{0, READ}, {1, READ}, {0, READ}}, 3, "op bad: 3 params, of which there are 2"},
                 {{{0, 0}}, 1, "op bad, warm: a param's access"},
                 {{{0, WRITE}}, 1, "op bad, warm: a param's access"},
                 {{{0, READ | TIDE_ACCESS_OVERWRITE}}, 1, "op bad, warm: a param's access"},
                 {{{1, READ | GRAD}}, 1, "op bad, cold: it is frozen"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const tide_op_description op = bad_op(cases[i].uses, cases[i].count);
        expect_refusal(add_op(&op), cases[i].message);
    }
    const tide_use gradient = {0, GRAD};
    tide_op_description op = bad_op(&gradient, 1);
    op.pass = TIDE_PASS_FORWARD;
    expect_refusal(add_op(&op), "op bad, warm: a forward op makes no gradient");
}

static void bad_uses_of_activations_are_refused_naming_op_and_activation(void **state)
{
    add_two_params_and_an_activation();
    static const struct {
        tide_use use;
        uint32_t slices;
        const char *message;
    } cases[] = {{{7, READ}, 2, "op bad: there is no activation 7"},
                 {{0, READ}, 3, "op bad has 3 slices, but activation tensor has 2 parts"},
                 {{0, TIDE_ACCESS_LAST}, 2, "op bad, tensor: an activation's access"},
                 {{0, READ | GRAD}, 2, "op bad, tensor: an activation's access"}};
    tide_op_description op = bad_op(NULL, 0);
    op.activation_count = 1;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        op.activations = &cases[i].use;
        op.slices = cases[i].slices;
        expect_refusal(add_op(&op), cases[i].message);
    }
}

static void other_bad_ops_are_refused(void **state)
{
    add_two_params_and_an_activation();
    tide_op_description op = bad_op(NULL, 1);
    expect_refusal(add_op(&op), "op bad: params is NULL, 1 are counted");
    op = bad_op(NULL, 0);
    op.activation_count = 1;
    expect_refusal(add_op(&op), "op bad: activations is NULL, 1 are counted");
    op.activation_count = 0;
    op.slices = 1;
    expect_refusal(add_op(&op), "op bad has 1 slices of no activation");
    op.slices = 0;
    op.workspace_bytes = (UINT64_C(1) << 50) + 1;
    expect_refusal(add_op(&op), "op bad: workspace of");
    op.pass = (tide_pass)7;
    expect_refusal(add_op(&op), "op bad: pass 7 is unknown");
    op.name = "";
    expect_refusal(add_op(&op), "an op needs a name");
    assert_int_equal(description->op_count, 0);
}

/* --- from the first layout on --- */

static void a_layout_fixes_a_description(void **state)
{
    tide_layout *layouts[2];
    const tide_op_description op = {.name = "late"};
    assert_int_equal(tide_layout_create(description, 4096, TIDE_SHARD_ALL, &layouts[0]), TIDE_ERROR_ARGUMENT);
    assert_int_equal(add_shape("p", &one, 1), TIDE_OK); /* a layout that failed has fixed nothing */
    for (int i = 0; i < 2; i++) {
        assert_int_equal(tide_layout_create(description, 4096u << i, TIDE_SHARD_ALL, &layouts[i]), TIDE_OK);
        assert_int_equal(add_shape("late", &one, 1), TIDE_ERROR_STATE);
        assert_int_equal(add_activation("late", 1, 1), TIDE_ERROR_STATE);
        assert_int_equal(add_op(&op), TIDE_ERROR_STATE);
    }
    assert_int_equal(tide_layout_params(layouts[1]), 1);
    tide_layout_destroy(layouts[0]);
    tide_layout_destroy(layouts[1]);
}

static void an_op_and_a_param_make_a_description_complete_and_a_trained_param_makes_it_trainable(void **state)
{
    const tide_op_description op = {.name = "op"};
    (void)state;
    assert_int_equal(add_op(&op), TIDE_OK);
    assert_false(tide_description_is_complete(description));
    assert_int_equal(add_class("cold", &(tide_param_class){.frozen = true}), TIDE_OK);
    assert_true(tide_description_is_complete(description));
    assert_false(tide_description_is_trainable(description));
    assert_int_equal(add_shape("warm", &one, 1), TIDE_OK);
    assert_true(tide_description_is_trainable(description));
    destroy_description(state);
    make_description(state);
    assert_int_equal(add_shape("warm", &one, 1), TIDE_OK);
    assert_false(tide_description_is_complete(description));
}

/* --- copies --- */

static void an_op_is_copied(void **state)
{
    add_two_params_and_an_activation();
    char name[] = "op";
    tide_use param = {0, READ}, activation = {0, WRITE};
    const tide_op_description op = {.name = name,
                                    .params = &param,
                                    .param_count = 1,
                                    .activations = &activation,
                                    .activation_count = 1,
                                    .slices = 2};
    assert_int_equal(add_op(&op), TIDE_OK);
    name[0] = 'x';
    param = activation = (tide_use){9, 9};
    const tide_op_description *kept = &description->ops[0];
    assert_string_equal(kept->name, "op");
    assert_int_equal(kept->params[0].access, READ);
    assert_int_equal(kept->activations[0].access, WRITE);
    assert_int_equal(kept->slices, 2);
}

static void each_of_many_names_is_found_by_its_number_and_refused_twice(void **state)
{
    enum { NAMES = 20000 };
    uint32_t number = UNCHANGED;
    char name[32];
    for (uint32_t i = 0; i < NAMES; i++) {
        snprintf(name, sizeof name, "block.%u.weight", i);
        assert_false(tide_description_find_param(description, name, &number));
        assert_int_equal(number, UNCHANGED);
        assert_int_equal(add_shape(name, &one, 1), TIDE_OK);
    }
    for (uint32_t i = 0; i < NAMES; i += 7) {
        snprintf(name, sizeof name, "block.%u.weight", i);
        assert_true(tide_description_find_param(description, name, &number));
        assert_int_equal(number, i);
        assert_string_equal(tide_names_at(&description->params, i)->name, name);
        assert_int_equal(add_shape(name, &one, 1), TIDE_ERROR_ARGUMENT);
        assert_int_equal(add_activation(name, 1, 1), TIDE_OK);
    }
    assert_int_equal(add_shape("block.7.weigh", &one, 1), TIDE_OK);
    assert_int_equal(description->params.count, NAMES + 1);
}

/* --- requests for memory that fail --- */

static tide_status add_param_t(void)
{
    return add_shape("t", &one, 1);
}

static tide_status add_activation_t(void)
{
    return add_activation("t", 2, 1000);
}

static tide_status add_op_t(void)
{
    const tide_use use = {0, READ};
    return add_op(&(tide_op_description){.name = "t", .params = &use, .param_count = 1});
}

/* Call `add` again and again, with a later request for memory failing each time, until it succeeds. Returns
 * how many calls failed. */
static unsigned count_failures(tide_status (*add)(void))
{
    for (unsigned request = 0;; request++) {
        fake_memory_fail(request);
        const tide_status status = add();
        const bool failed = fake_memory_failed();
        fake_memory_clear();
        assert_int_equal(status, failed ? TIDE_ERROR_NO_MEMORY : TIDE_OK);
        if (!failed)
            return request;
    }
}

static void what_found_no_memory_is_added_later(void **state)
{
    const unsigned for_a_name = 4; /* its struct, its text, the list and the tree */
    const unsigned for_an_op = 2;  /* its name and its array of uses */
    assert_int_equal(count_failures(add_param_t), for_a_name);
    assert_int_equal(count_failures(add_activation_t), for_a_name);
    for (int i = 0; i < 30; i++) { /* the list of ops grows with the first op and with the 17th */
        const unsigned for_the_list = i == 0 || i == 16;
        assert_int_equal(count_failures(add_op_t), for_an_op + for_the_list);
    }
    assert_int_equal(description->params.count, 1);
    assert_int_equal(description->class_count, 1);
    assert_int_equal(description->activations.count, 1);
    assert_int_equal(description->activations.parts, 2);
    assert_int_equal(description->op_count, 30);
    assert_int_equal(description->ops[0].params[0].access, READ);
}

static void a_description_without_memory_is_none(void **state)
{
    tide_description *made = NULL;
    fake_memory_fail(0);
    const tide_status status = tide_description_create(TIDE_DTYPE_BF16, 0, &made);
    fake_memory_clear();
    assert_int_equal(status, TIDE_ERROR_NO_MEMORY);
    assert_null(made);
}

#define CASE(function) cmocka_unit_test_setup_teardown(function, make_description, destroy_description)

int main(void)
{
    const struct CMUnitTest tests[] = {
        CASE(nulls_are_refused_or_find_nothing),
        CASE(bad_dtypes_and_sizes_are_refused_at_create),
        CASE(bad_params_are_refused_by_name),
        CASE(bad_states_are_refused_by_param),
        CASE(params_have_at_most_eight_kinds_of_state),
        CASE(bad_activations_are_refused_by_name),
        CASE(bad_uses_of_params_are_refused_naming_op_and_param),
        CASE(bad_uses_of_activations_are_refused_naming_op_and_activation),
        CASE(other_bad_ops_are_refused),
        CASE(a_layout_fixes_a_description),
        CASE(an_op_and_a_param_make_a_description_complete_and_a_trained_param_makes_it_trainable),
        CASE(an_op_is_copied),
        CASE(each_of_many_names_is_found_by_its_number_and_refused_twice),
        CASE(what_found_no_memory_is_added_later),
        CASE(a_description_without_memory_is_none),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
