/* Every public call, in every state of a pool, with every pointer NULL and every number out of range in
 * turn. Each must return a status with a message that says why, and change nothing. After the misuse of one
 * call the training goes on, and must end with the bits of an undisturbed run. The test also reads the
 * public headers and fails if it does not test a call declared there. */
#include <float.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "tests/support/assert_ok.h"
#include "tests/support/misuse_fixture.h"

/* The tests make hundreds of pools. ThreadSanitizer takes ten times as long, so there each state tests only
 * every fourth call, and the next state other calls. */
#if defined(__SANITIZE_THREAD__)
enum { STRIDE = 4 };
#else
enum { STRIDE = 1 };
#endif

/* --- check one misuse --- */

static const char *misused; /* name of the call under test */

static void assert_untouched(fixture *r, const char *call)
{
    static float values[FIXTURE_VALUES];
    const uint64_t updates = tide_update_count(r->pool);
    if (updates != r->updates && !(r->state == FIXTURE_ENDED && updates == r->updates + 1))
        fail_msg("%s, pool %s: %llu updates", call, fixture_state_name(r->state),
                 (unsigned long long)updates);
    if (r->state != FIXTURE_CREATED)
        return;
    fixture_read_values(r, values);
    if (memcmp(values, r->values, sizeof values) != 0)
        fail_msg("%s: values have changed", call);
}

static void judge(fixture *r, const char *call, tide_status status, bool right, const char *words)
{
    if (!right || strstr(tide_message(), words) == NULL)
        fail_msg("%s, pool %s: %s: \"%s\", not about %s", call, fixture_state_name(r->state),
                 tide_status_name(status), tide_message(), words);
    assert_untouched(r, call);
}

/* In every state `call` must return ARGUMENT with a message that contains `words`. */
#define misuse(r, call, words)                                                                               \
    do {                                                                                                     \
        const tide_status status_of_call = (call);                                                           \
        judge(r, #call, status_of_call, status_of_call == TIDE_ERROR_ARGUMENT, words);                       \
    } while (0)

/* The message must name the parameter that is NULL and the call. */
#define misuse_null(r, call, parameter)                                                                      \
    do {                                                                                                     \
        misuse(r, call, parameter " is NULL");                                                               \
        assert_non_null(strstr(tide_message(), misused));                                                    \
    } while (0)

/* The call is not allowed in this state: it must return STATE or, on a failed pool, the failure. A poisoned
 * pool must say that it is. */
#define out_of_place(r, call)                                                                                \
    do {                                                                                                     \
        const tide_status status_of_call = (call);                                                           \
        judge(r, #call, status_of_call,                                                                      \
              status_of_call == TIDE_ERROR_STATE ||                                                          \
                  ((r)->state == FIXTURE_FAILED && status_of_call == TIDE_ERROR_DEVICE),                     \
              (r)->state == FIXTURE_POISONED ? "poisoned" : "");                                             \
    } while (0)

/* In states in which `here` is true the call must refuse the number; in all others it must refuse the
 * state. */
#define misuse_here(r, here, call, words)                                                                    \
    do {                                                                                                     \
        if (here)                                                                                            \
            misuse(r, call, words);                                                                          \
        else                                                                                                 \
            out_of_place(r, call);                                                                           \
    } while (0)

/* Check a condition of a call that returns no status. */
#define holds(r, condition)                                                                                  \
    do {                                                                                                     \
        if (!(condition))                                                                                    \
            fail_msg("%s, pool %s", #condition, fixture_state_name((r)->state));                             \
        assert_untouched(r, #condition);                                                                     \
    } while (0)

/* The pool's description is fixed in every state. */
#define refuse_fixed(r, call)                                                                                \
    do {                                                                                                     \
        const tide_status status_of_call = (call);                                                           \
        judge(r, #call, status_of_call, status_of_call == TIDE_ERROR_STATE, misused);                        \
    } while (0)

static bool is_open(const fixture *r)
{
    return r->state == FIXTURE_STEP || r->state == FIXTURE_OP;
}

/* --- description.h --- */

static void misuse_description_create(fixture *r)
{
    tide_description *d = NULL;
    misuse_null(r, tide_description_create(TIDE_DTYPE_FP32, 0, NULL), "description");
    misuse(r, tide_description_create((tide_dtype)-1, 0, &d), "dtype");
    misuse(r, tide_description_create((tide_dtype)3, 0, &d), "dtype 3");
    misuse(r, tide_description_create(TIDE_DTYPE_FP32, UINT64_MAX, &d), "nonmodel_bytes");
    misuse(r, tide_description_create(TIDE_DTYPE_FP32, (UINT64_C(1) << 50) + 1, &d), "nonmodel_bytes");
    assert_null(d);
}

/* A description like the pool's, to which calls may still add. */
static tide_description *description_open(void)
{
    fixture other;
    return fixture_describe(&other);
}

static void misuse_add_param(fixture *r)
{
    const uint64_t shape[4] = {1, 1, 1, 1}, none[2] = {1, 0}, most[2] = {UINT64_MAX, UINT64_MAX},
                   much[2] = {UINT64_C(1) << 40, UINT64_C(1) << 40}, half[2] = {UINT64_C(1) << 47, 2};
    const struct {
        const char *name;
        const uint64_t *shape;
        uint32_t dimensions;
        const char *words;
    } wrong_shapes[] = {
        {"", shape, 1, "name"},
        {"large", shape, 1, "param large: there is one of this name"},
        {"p", shape, 0, "0 dimensions"},
        {"p", shape, 5, "5 dimensions"},
        {"p", shape, UINT32_MAX, "dimensions"},
        {"p", none, 2, "dimension 1 is 0"},
        {"p", most, 1, "too large"},
        {"p", most, 2, "too large"},
        {"p", much, 2, "dimension 1 is 1099511627776, too"},
        {"p", half, 2, "param p"},
    };
    const struct {
        tide_param_class of_class;
        const char *words;
    } wrong_classes[] = {
        {{.frozen = true, .decay = true}, "frozen, and can't have weight decay"},
        {{.frozen = true, .state = {3, {128, 128, 128}}}, "frozen, and can't have optimizer state"},
        {{.frozen = true, .state = {UINT32_MAX, {0}}}, "frozen, and can't have optimizer state"},
        {{.frozen = true, .state = {0, {0, 128}}}, "for plane 1"},
        {{.state = {4, {128, 128, 128}}}, "4 planes, at most 3"},
        {{.state = {UINT32_MAX, {128, 128, 128}}}, "4294967295 planes"},
        {{.state = {3, {128, 128, 0}}}, "plane 2 of its state has 0 bytes"},
        {{.state = {0, {64, 64}}}, "0 planes has bytes for plane 0"},
        {{.state = {1, {128, 0, 1}}}, "1 planes has bytes for plane 2"},
    };
    tide_description *d = description_open();
    tide_param p = 77, largest;
    misuse_null(r, tide_description_add_param(NULL, "p", shape, 1, NULL, &p), "description");
    misuse_null(r, tide_description_add_param(d, NULL, shape, 1, NULL, &p), "name");
    misuse_null(r, tide_description_add_param(d, "p", NULL, 1, NULL, &p), "shape");
    misuse_null(r, tide_description_add_param(d, "p", shape, 1, NULL, NULL), "param");
    for (size_t i = 0; i < sizeof wrong_shapes / sizeof wrong_shapes[0]; i++)
        misuse(r,
               tide_description_add_param(d, wrong_shapes[i].name, wrong_shapes[i].shape,
                                          wrong_shapes[i].dimensions, NULL, &p),
               wrong_shapes[i].words);
    for (size_t i = 0; i < sizeof wrong_classes / sizeof wrong_classes[0]; i++)
        misuse(r, tide_description_add_param(d, "p", shape, 1, &wrong_classes[i].of_class, &p),
               wrong_classes[i].words);
    refuse_fixed(r, tide_description_add_param(r->description, "p", shape, 4, NULL, &p));
    holds(r, p == 77 && !tide_description_find_param(d, "p", &p));
    holds(r, !tide_description_find_param(r->description, "p", &p));
    assert_ok(tide_description_add_param(d, "p", half, 1, NULL, &largest));
    assert_int_equal(tide_description_param_elements(d, largest), half[0]);
    tide_description_destroy(d);
}

static void misuse_add_activation(fixture *r)
{
    tide_description *d = description_open();
    tide_activation c = 77;
    misuse_null(r, tide_description_add_activation(NULL, "c", 1, 1, &c), "description");
    misuse_null(r, tide_description_add_activation(d, NULL, 1, 1, &c), "name");
    misuse_null(r, tide_description_add_activation(d, "c", 1, 1, NULL), "activation");
    misuse(r, tide_description_add_activation(d, "", 1, 1, &c), "name");
    misuse(r, tide_description_add_activation(d, "saved", 1, 1, &c), "one of this name");
    misuse(r, tide_description_add_activation(d, "c", 0, 1, &c), "activation c: 0 parts");
    misuse(r, tide_description_add_activation(d, "c", (1 << 20) + 1, 1, &c), "2^20");
    misuse(r, tide_description_add_activation(d, "c", UINT32_MAX, 1, &c), "activation c");
    misuse(r, tide_description_add_activation(d, "c", 1, 0, &c), "activation c");
    misuse(r, tide_description_add_activation(d, "c", 1, UINT64_MAX, &c), "activation c");
    misuse(r, tide_description_add_activation(d, "c", 1 << 20, UINT64_C(1) << 31, &c), "activation c");
    refuse_fixed(r, tide_description_add_activation(r->description, "c", 1, 1, &c));
    assert_int_equal(c, 77);
    assert_ok(tide_description_add_activation(d, "large", 1, 1, &c)); /* a param may have the same name */
    tide_description_destroy(d);
}

static void misuse_add_op(fixture *r)
{
    tide_description *d = description_open();
    enum { READ = TIDE_ACCESS_READ, GRAD = TIDE_ACCESS_GRAD, WRITE = TIDE_ACCESS_WRITE };
    const tide_use unknown = {7, READ}, none = {0, 0}, all = {0, UINT32_MAX}, grad = {0, GRAD},
                   write = {0, WRITE}, last = {0, TIDE_ACCESS_LAST},
                   overwrite = {0, READ | TIDE_ACCESS_OVERWRITE}, part = {0, WRITE | TIDE_ACCESS_OVERWRITE},
                   thrice[3] = {{0, READ}, {1, READ}, {0, READ}};
    const tide_op_description good = {.name = "o"};
    const struct {
        tide_op_description op;
        const char *words;
    } wrong[] = {
        {{.name = NULL}, "needs a name"},
        {{.name = ""}, "needs a name"},
        {{.name = "o", .pass = (tide_pass)-1}, "pass"},
        {{.name = "o", .pass = (tide_pass)3}, "pass 3"},
        {{.name = "o", .param_count = 1}, "params is NULL"},
        {{.name = "o", .params = thrice, .param_count = UINT32_MAX}, "4294967295 params"},
        {{.name = "o", .params = thrice, .param_count = 3}, "3 params, of which there are 2"},
        {{.name = "o", .params = &unknown, .param_count = 1}, "no param 7"},
        {{.name = "o", .params = &none, .param_count = 1}, "large: a param's access"},
        {{.name = "o", .params = &all, .param_count = 1}, "large: a param's access"},
        {{.name = "o", .params = &grad, .param_count = 1}, "large: a forward op makes no gradient"},
        {{.name = "o", .pass = TIDE_PASS_BACKWARD, .params = &overwrite, .param_count = 1},
         "OVERWRITE beside GRAD"},
        {{.name = "o", .activation_count = 1, .slices = 2}, "activations is NULL"},
        {{.name = "o", .activations = &unknown, .activation_count = UINT32_MAX, .slices = 2}, "op"},
        {{.name = "o", .activations = &unknown, .activation_count = 1, .slices = 2}, "no activation 7"},
        {{.name = "o", .activations = &none, .activation_count = 1, .slices = 2},
         "saved: an activation's access"},
        {{.name = "o", .activations = &all, .activation_count = 1, .slices = 2},
         "saved: an activation's access"},
        {{.name = "o", .activations = &last, .activation_count = 1, .slices = 2},
         "saved: an activation's access"},
        {{.name = "o", .activations = &part, .activation_count = 1, .slices = 2},
         "saved: an activation's access"},
        {{.name = "o", .activations = &write, .activation_count = 1, .slices = 1}, "1 slices"},
        {{.name = "o", .slices = 1}, "1 slices of no activation"},
        {{.name = "o", .slices = UINT32_MAX}, "slices of no activation"},
        {{.name = "o", .workspace_bytes = UINT64_MAX}, "workspace"},
    };
    tide_op op = 77;
    misuse_null(r, tide_description_add_op(NULL, &good, &op), "description");
    misuse_null(r, tide_description_add_op(d, NULL, &op), "of_op");
    misuse_null(r, tide_description_add_op(d, &good, NULL), "op");
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++)
        misuse(r, tide_description_add_op(d, &wrong[i].op, &op), wrong[i].words);
    refuse_fixed(r, tide_description_add_op(r->description, &good, &op));
    assert_int_equal(op, 77);
    assert_ok(tide_description_add_op(d, &good, &op));
    assert_int_equal(op, 3); /* as if none had been refused */
    tide_description_destroy(d);
}

static void misuse_description_questions(fixture *r)
{
    tide_param param = 77;
    tide_description_destroy(NULL);
    holds(r, !tide_description_find_param(NULL, "large", &param));
    holds(r, !tide_description_find_param(r->description, NULL, &param));
    holds(r, !tide_description_find_param(r->description, "large", NULL));
    holds(r, !tide_description_find_param(r->description, "", &param) && param == 77);
    holds(r, tide_description_param_elements(NULL, 0) == 0);
    holds(r, tide_description_param_elements(r->description, UINT32_MAX) == 0);
    holds(r, tide_description_param_elements(r->description, 2) == 0);
}

/* --- sections 1 to 3 of pool.h: options, memory, values --- */

static tide_status never_called(void *context, const tide_step_options *step, uint64_t update, float scale,
                                const tide_update_segment *segments, uint32_t count)
{
    (void)context, (void)step, (void)update, (void)scale, (void)segments, (void)count;
    return tide_fail(TIDE_ERROR_INTERNAL, "an optimizer of a pool that was refused has run");
}

/* Neither a plan nor a pool can be made with these options. */
static void refuse_options(fixture *r, const tide_pool_options *options, const char *words)
{
    tide_pool_plan plan;
    tide_pool *pool = NULL;
    misuse(r, tide_pool_plan_make(options, r->description, &plan), words);
    misuse(r, tide_pool_create(options, r->description, &pool), words);
    assert_null(pool);
}

static void misuse_create(fixture *r)
{
    tide_pool *pool = NULL;
    tide_pool_options good = fixture_options();
    misuse_null(r, tide_pool_create(NULL, r->description, &pool), "options");
    misuse_null(r, tide_pool_create(&good, NULL, &pool), "description");
    misuse_null(r, tide_pool_create(&good, r->description, NULL), "pool");
    for (uint64_t i = 1; i < 4; i++) {
        tide_pool_options few = good;
        few.device_memory_bytes = i % 2;
        few.host_memory_bytes = i / 2;
        const tide_status status = tide_pool_create(&few, r->description, &pool);
        judge(r, "tide_pool_create", status, status == TIDE_ERROR_BUDGET, "budget");
    }
    assert_null(pool);
}

static void misuse_plan_make(fixture *r)
{
    tide_pool_plan plan;
    tide_pool_options good = fixture_options();
    misuse_null(r, tide_pool_plan_make(NULL, r->description, &plan), "options");
    misuse_null(r, tide_pool_plan_make(&good, NULL, &plan), "description");
    misuse_null(r, tide_pool_plan_make(&good, r->description, NULL), "plan");
    const uint64_t budgets[] = {0, 1, UINT64_MAX};
    for (size_t i = 0; i < 9; i++) {
        tide_pool_options any = good;
        any.device_memory_bytes = budgets[i % 3];
        any.host_memory_bytes = budgets[i / 3];
        holds(r, tide_pool_plan_make(&any, r->description, &plan) == TIDE_OK &&
                     plan.params == FIXTURE_LARGE + FIXTURE_SMALL);
    }
    tide_pool_options bad;
#define misuse_option(field, wrong, words)                                                                   \
    do {                                                                                                     \
        bad = good;                                                                                          \
        bad.field = wrong;                                                                                   \
        refuse_options(r, &bad, words);                                                                      \
    } while (0)
    misuse_option(device, NULL, "device");
    misuse_option(device, "", "device");
    misuse_option(device, "cuda:", "device");
    misuse_option(sum_groups, TIDE_SUM_GROUPS_MAX + 1, "sum_groups");
    misuse_option(reduce_dtype, TIDE_DTYPE_FP16, "reduce_dtype");
    misuse_option(device, "cuda:4294967296", "device");
    misuse_option(device, "moon", "moon");
    misuse_option(chunk_bytes, 1, "chunk size");
    misuse_option(chunk_bytes, UINT64_MAX, "chunk size");
    misuse_option(staging_bytes, UINT64_MAX, "staging_bytes");
    misuse_option(placement, (tide_placement)-1, "placement");
    misuse_option(placement, (tide_placement)3, "placement");
    misuse_option(threads, TIDE_THREADS_MAX + 1, "threads");
    misuse_option(threads, UINT32_MAX, "threads");
    misuse_option(checks.delay_max_us, TIDE_DELAY_MAX_US + 1, "delay_max_us");
    misuse_option(checks.skip_wait_site, UINT32_MAX, "wait site");
    good.update = never_called;
    misuse_option(placement, TIDE_PLACEMENT_DEVICE, "placement");
    good.update = NULL;
    const double rates[] = {-1, NAN, INFINITY, -INFINITY, -DBL_MIN};
    for (size_t i = 0; i < sizeof rates / sizeof rates[0]; i++) {
        misuse_option(link_bytes_per_second, rates[i], "link_bytes_per_second");
        misuse_option(machine.flops_per_second, rates[i], "flops_per_second");
        misuse_option(machine.device_bytes_per_second, rates[i], "device_bytes_per_second");
        misuse_option(machine.host_bytes_per_second, rates[i], "host_bytes_per_second");
        misuse_option(machine.link_out_bytes_per_second, rates[i], "link_out_bytes_per_second");
    }
}

static void misuse_plan_get(fixture *r)
{
    tide_pool_plan plan;
    misuse_null(r, tide_pool_plan_get(NULL, &plan), "pool");
    misuse_null(r, tide_pool_plan_get(r->pool, NULL), "plan");
    holds(r, tide_pool_plan_get(r->pool, &plan) == TIDE_OK && plan.params == FIXTURE_LARGE + FIXTURE_SMALL);
}

/* tide_param_set, tide_param_set_as or tide_param_get, whichever is under test. */
static tide_status move_values(tide_pool *pool, tide_param param, tide_value kind, uint64_t first,
                               uint64_t count, float *values)
{
    if (strcmp(misused, "tide_param_get") == 0)
        return tide_param_get(pool, param, kind, first, count, values);
    return strcmp(misused, "tide_param_set") == 0
               ? tide_param_set(pool, param, kind, first, count, values)
               : tide_param_set_as(pool, param, kind, first, count, TIDE_DTYPE_FP32, values);
}

static void misuse_values(fixture *r)
{
    float values[1] = {12345};
    const bool gets = strcmp(misused, "tide_param_get") == 0;
    const tide_value none[] = {(tide_value)-1, TIDE_VALUE_COUNT, TIDE_VALUE_PARAM};
    const uint64_t n = FIXTURE_SMALL, most = UINT64_MAX,
                   beyond[][2] = {{n, 1}, {n + 1, 0}, {most, 1}, {1, most}, {most, most}};
    const tide_param small = r->params[1];
    misuse_null(r, move_values(NULL, small, TIDE_VALUE_MASTER, 0, 1, values), "pool");
    misuse_null(r, move_values(r->pool, small, TIDE_VALUE_MASTER, 0, 1, NULL), "values");
    misuse(r, move_values(r->pool, UINT32_MAX, TIDE_VALUE_MASTER, 0, 1, values), "no param");
    misuse(r, move_values(r->pool, 2, TIDE_VALUE_MASTER, 0, 0, values), "no param");
    for (size_t i = 0; i < (gets ? 2 : 3); i++) /* PARAM can be read, but not set itself */
        misuse(r, move_values(r->pool, small, none[i], 0, 1, values), "param");
    for (size_t i = 0; i < sizeof beyond / sizeof beyond[0]; i++)
        misuse(r, move_values(r->pool, small, TIDE_VALUE_MASTER, beyond[i][0], beyond[i][1], values),
               "param");
    if (is_open(r) || (gets && r->state == FIXTURE_POISONED))
        out_of_place(r, move_values(r->pool, small, TIDE_VALUE_MASTER, 0, 1, values));
    else if (r->state == FIXTURE_CREATED || r->state == FIXTURE_ENDED)
        assert_ok(move_values(r->pool, small, TIDE_VALUE_MASTER, n, 0, values));
    assert_true(values[0] == 12345.0F);
}

static void misuse_param_set_as(fixture *r)
{
    const uint16_t values[1] = {0x4000};
    const tide_param small = r->params[1];
    const tide_value master = TIDE_VALUE_MASTER;
    misuse(r, tide_param_set_as(r->pool, small, master, 0, 1, (tide_dtype)-1, values), "no dtype -1");
    misuse(r, tide_param_set_as(r->pool, small, master, 0, 1, (tide_dtype)3, values), "no dtype 3");
    misuse_values(r);
}

static void misuse_update_count_set(fixture *r)
{
    misuse_null(r, tide_update_count_set(NULL, 1), "pool");
    misuse(r, tide_update_count_set(r->pool, UINT64_MAX), "2^53");
    misuse(r, tide_update_count_set(r->pool, TIDE_UPDATES_MAX + 1), "2^53");
    if (is_open(r) || r->state == FIXTURE_FAILED)
        out_of_place(r, tide_update_count_set(r->pool, 0));
}

/* --- sections 4 to 8 of pool.h: steps, ops, the region, end of a step, results --- */

static void misuse_step_begin(fixture *r)
{
    const tide_step_options good = fixture_step_options();
    tide_step_options bad = good;
    enum { FIELDS = 7, WRONG = 7 };
    const struct {
        float *value;
        const char *name, *range;
        float wrong[WRONG];
    } fields[FIELDS] = {
        {&bad.learning_rate,
         "learning_rate",
         "finite and at least 0",
         {-1, NAN, INFINITY, -INFINITY, -FLT_MIN, -FLT_MAX, -0.5F}},
        {&bad.beta1, "beta1", "at least 0 and below 1", {-1, NAN, INFINITY, -INFINITY, -FLT_MIN, 1, 2}},
        {&bad.beta2, "beta2", "at least 0 and below 1", {-1, NAN, INFINITY, -INFINITY, -FLT_MIN, 1, 2}},
        {&bad.epsilon, "epsilon", "finite and above 0", {-1, NAN, INFINITY, -INFINITY, -FLT_MIN, 0, -2}},
        {&bad.weight_decay,
         "weight_decay",
         "finite and at least 0",
         {-1, NAN, INFINITY, -INFINITY, -FLT_MIN, -FLT_MAX, -0.5F}},
        /* INFINITY is allowed: it doesn't clip, but updates wait for the norm */
        {&bad.clip_norm, "clip_norm", "at least 0", {-1, NAN, -INFINITY, -FLT_MIN, -FLT_MAX, -0.5F, -2}},
        {&bad.loss_scale, "loss_scale", "power of two", {3, NAN, INFINITY, -2, 0.5F, 1000, 8589934592.0F}},
    };
    misuse_null(r, tide_step_begin(NULL, &good), "pool");
    misuse_null(r, tide_step_begin(r->pool, NULL), "options");
    for (size_t f = 0; f < FIELDS; f++) {
        for (size_t w = 0; w < WRONG; w++) {
            *fields[f].value = fields[f].wrong[w];
            misuse(r, tide_step_begin(r->pool, &bad), fields[f].name);
            assert_non_null(strstr(tide_message(), fields[f].range));
            for (size_t other = 0; other < FIELDS; other++)
                assert_true(other == f || strstr(tide_message(), fields[other].name) == NULL);
            bad = good;
        }
    }
    const tide_step_options forward = {.training = false, .learning_rate = NAN};
    if (r->state != FIXTURE_CREATED && r->state != FIXTURE_ENDED) {
        out_of_place(r, tide_step_begin(r->pool, &good));
        out_of_place(r, tide_step_begin(r->pool, &forward));
    }
}

static void misuse_step_end(fixture *r)
{
    misuse_null(r, tide_step_end(NULL), "pool");
    if (r->state != FIXTURE_STEP)
        out_of_place(r, tide_step_end(r->pool));
}

static void misuse_op_begin(fixture *r)
{
    const bool here = r->state != FIXTURE_FAILED && r->state != FIXTURE_POISONED;
    misuse_null(r, tide_op_begin(NULL, 0), "pool");
    misuse_here(r, here, tide_op_begin(r->pool, UINT32_MAX), "op 4294967295");
    misuse_here(r, here, tide_op_begin(r->pool, 3), "op 3");
    if (r->state != FIXTURE_STEP) {
        out_of_place(r, tide_op_begin(r->pool, 0));
        out_of_place(r, tide_op_begin(r->pool, 1));
    }
}

static void misuse_op_slice(fixture *r)
{
    misuse_null(r, tide_op_slice(NULL, 0), "pool");
    misuse_here(r, r->state == FIXTURE_OP, tide_op_slice(r->pool, FIXTURE_SLICES), "slice 2");
    misuse_here(r, r->state == FIXTURE_OP, tide_op_slice(r->pool, UINT32_MAX), "slice 4294967295");
    if (r->state == FIXTURE_OP) /* the open slice holds this part, which is thus still alive */
        out_of_place(r, tide_op_slice(r->pool, 0));
}

static void misuse_gradient_finish(fixture *r)
{
    const bool here = r->state == FIXTURE_OP;
    misuse_null(r, tide_gradient_finish(NULL, 0, 0, 64), "pool");
    misuse_here(r, here, tide_gradient_finish(r->pool, 99, 0, 64), "param 99");
    misuse_here(r, here, tide_gradient_finish(r->pool, 0, 1, 64), "multiples of 64");
    misuse_here(r, here, tide_gradient_finish(r->pool, 0, 0, UINT64_MAX), "elements");
    if (!here)
        out_of_place(r, tide_gradient_finish(r->pool, 0, 0, 64));
}

static void misuse_op_end(fixture *r)
{
    misuse_null(r, tide_op_end(NULL), "pool");
    if (r->state != FIXTURE_OP)
        out_of_place(r, tide_op_end(r->pool));
}

static tide_status never_run(void *stream, const void *arguments)
{
    (void)stream;
    (void)arguments;
    return tide_fail(TIDE_ERROR_INTERNAL, "a kernel that was refused has run");
}

static void misuse_launch(fixture *r)
{
    const int it = 0;
    const double wrong[] = {NAN, INFINITY, -INFINITY, -1, -DBL_MIN};
    tide_pool *p = r->pool;
    misuse_null(r, tide_launch(NULL, "k", never_run, &it, sizeof it, 0, 0), "pool");
    misuse_null(r, tide_launch(p, NULL, never_run, &it, sizeof it, 0, 0), "name");
    misuse_null(r, tide_launch(p, "k", NULL, &it, sizeof it, 0, 0), "kernel");
    misuse_null(r, tide_launch(p, "k", never_run, NULL, 1, 0, 0), "arguments");
    misuse(r, tide_launch(p, "k", never_run, &it, TIDE_LAUNCH_ARGUMENTS_MAX_BYTES + 1, 0, 0), "257 bytes");
    misuse(r, tide_launch(p, "k", never_run, &it, SIZE_MAX, 0, 0), "bytes of arguments");
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        misuse(r, tide_launch(p, "k", never_run, &it, sizeof it, wrong[i], 0), "flops");
        misuse(r, tide_launch(p, "k", never_run, &it, sizeof it, 0, wrong[i]), "flops");
        misuse(r, tide_launch(p, "k", never_run, &it, sizeof it, wrong[i], wrong[i]), "flops");
    }
    if (!is_open(r))
        out_of_place(r, tide_launch(p, "k", never_run, &it, sizeof it, 0, 0));
}

static void misuse_addresses(fixture *r)
{
    holds(r, tide_param_data(NULL, 0) == NULL);
    holds(r, tide_param_data(r->pool, UINT32_MAX) == NULL);
    holds(r, tide_param_data(r->pool, 2) == NULL);
    holds(r, tide_param_data(r->pool, 1) != NULL);
    holds(r, tide_activation_data(NULL, 0, 0) == NULL);
    holds(r, tide_activation_data(r->pool, 1, 0) == NULL);
    holds(r, tide_activation_data(r->pool, UINT32_MAX, 0) == NULL);
    holds(r, tide_activation_data(r->pool, 0, FIXTURE_SLICES) == NULL);
    holds(r, tide_activation_data(r->pool, 0, UINT32_MAX) == NULL);
    holds(r, tide_activation_data(r->pool, 0, 1) != NULL);
    holds(r, tide_param_gradient(NULL, 0) == NULL);
    holds(r, tide_param_gradient(r->pool, UINT32_MAX) == NULL);
    holds(r, tide_param_gradient(r->pool, 1) == NULL);
    holds(r, !tide_param_gradient_is_new(NULL, 0));
    holds(r, !tide_param_gradient_is_new(r->pool, UINT32_MAX));
    holds(r, !tide_param_gradient_is_new(r->pool, 1));
    holds(r, tide_region(NULL) == NULL);
    holds(r, tide_region(r->pool) != NULL);
    holds(r, tide_workspace(NULL) == NULL);
    holds(r, (tide_workspace(r->pool) != NULL) == (r->state == FIXTURE_OP || r->state == FIXTURE_FAILED));
}

/* tide_write or tide_read, whichever is under test. */
static tide_status move_bytes(tide_pool *pool, char *region, char *bytes, size_t count)
{
    return strcmp(misused, "tide_write") == 0 ? tide_write(pool, region, bytes, count)
                                              : tide_read(pool, bytes, region, count);
}

/* The pool's own data lie directly behind the caller's bytes. */
static void misuse_region_bytes(fixture *r)
{
    enum { OWN = FIXTURE_PART * sizeof(float) };
    char bytes[OWN + 1] = {77}, *at = tide_region(r->pool);
    const bool here = r->state != FIXTURE_FAILED && r->state != FIXTURE_POISONED;
    const struct {
        char *region;
        size_t count;
    } outside[] = {{at, OWN + 1},     {at, SIZE_MAX}, {at + OWN, 1},  {at + OWN - 1, 2},
                   {at + OWN + 1, 0}, {at - 1, 1},    {(char *)1, 1}, {(char *)UINTPTR_MAX, SIZE_MAX}};
    misuse_null(r, move_bytes(NULL, at, bytes, 1), "pool");
    misuse_null(r, move_bytes(r->pool, NULL, bytes, 1), "region");
    if (strcmp(misused, "tide_write") == 0)
        misuse_null(r, move_bytes(r->pool, at, NULL, 1), "source");
    else
        misuse_null(r, move_bytes(r->pool, at, NULL, 1), "target");
    for (size_t i = 0; i < sizeof outside / sizeof outside[0]; i++)
        misuse_here(r, here, move_bytes(r->pool, outside[i].region, bytes, outside[i].count), "not inside");
    if (here)
        assert_ok(move_bytes(r->pool, at + OWN, bytes, 0));
    assert_int_equal(bytes[0], 77);
}

static void misuse_result_get(fixture *r)
{
    tide_step_result result = {.gradient_norm = 77};
    misuse_null(r, tide_step_result_get(NULL, &result), "pool");
    misuse_null(r, tide_step_result_get(r->pool, NULL), "result");
    if (r->state != FIXTURE_ENDED)
        out_of_place(r, tide_step_result_get(r->pool, &result));
    assert_true(result.gradient_norm == 77);
}

static void misuse_drain(fixture *r)
{
    misuse_null(r, tide_pool_drain(NULL), "pool");
    if (r->state != FIXTURE_CREATED && r->state != FIXTURE_STEP && r->state != FIXTURE_ENDED)
        out_of_place(r, tide_pool_drain(r->pool));
}

static void misuse_abort(fixture *r)
{
    misuse_null(r, tide_step_abort(NULL), "pool");
    if (r->state == FIXTURE_POISONED)
        out_of_place(r, tide_step_abort(r->pool));
    else if (r->state == FIXTURE_CREATED)
        assert_ok(tide_step_abort(r->pool));
}

/* --- section 10 of pool.h: counters, trace and prediction --- */

static void misuse_counters_get(fixture *r)
{
    tide_pool_counters counters = {.steps = 77};
    misuse_null(r, tide_pool_counters_get(NULL, &counters), "pool");
    misuse_null(r, tide_pool_counters_get(r->pool, NULL), "counters");
    assert_int_equal(counters.steps, 77);
}

/* Calls without a status: on no pool, with a NULL, and, for tide_pool_trace_work, with a begin in the
 * future. */
static void misuse_calls_without_status(fixture *r)
{
    tide_pool_counters counters;
    uint64_t step;
    tide_pool_options_default(NULL);
    tide_pool_destroy(NULL);
    tide_pool_trace_work(NULL, "work", 0);
    tide_pool_trace_work(r->pool, NULL, 0);
    tide_pool_trace_work(r->pool, "work", UINT64_MAX);
    holds(r, tide_update_count(NULL) == 0);
    holds(r, tide_pool_now_ns(NULL) == 0);
    holds(r, !tide_pool_step_counters_take(NULL, &step, &counters));
    holds(r, !tide_pool_step_counters_take(r->pool, NULL, &counters));
    holds(r, !tide_pool_step_counters_take(r->pool, &step, NULL));
}

static void misuse_predict(fixture *r)
{
    tide_pool_prediction prediction;
    misuse_null(r, tide_pool_predict(NULL, &prediction), "pool");
    misuse_null(r, tide_pool_predict(r->pool, NULL), "prediction");
    if (r->state == FIXTURE_CREATED)
        out_of_place(r, tide_pool_predict(r->pool, &prediction));
    else /* any status is right, as long as the call changes nothing */
        (void)tide_pool_predict(r->pool, &prediction);
    holds(r, true);
}

/* --- calls of status.h --- */

static void misuse_status(fixture *r)
{
    const char *volatile none = NULL;
    char larger[3000];
    memset(larger, 'x', sizeof larger - 1);
    larger[sizeof larger - 1] = 0;
    holds(r, strcmp(tide_status_name((tide_status)-1), "unknown") == 0);
    holds(r, strcmp(tide_status_name((tide_status)9999), "unknown") == 0);
    holds(r, tide_message() != NULL);
    holds(r, tide_fail(TIDE_ERROR_STATE, none, 1) == TIDE_ERROR_STATE && tide_message()[0] == 0);
    holds(r, tide_fail(TIDE_ERROR_STATE, "%s", larger) == TIDE_ERROR_STATE && strlen(tide_message()) == 1023);
    holds(r, tide_fail(TIDE_ERROR_STATE, "%s", tide_message()) == TIDE_ERROR_STATE &&
                 strlen(tide_message()) == 1023);
}

/* --- run all of them --- */

static const struct {
    const char *calls; /* one call, which the messages must name, or several in a row */
    void (*wrongly)(fixture *r);
} misuses[] = {
    {"tide_description_create", misuse_description_create},
    {"tide_description_add_param", misuse_add_param},
    {"tide_description_add_activation", misuse_add_activation},
    {"tide_description_add_op", misuse_add_op},
    {"tide_description_destroy tide_description_find_param tide_description_param_elements",
     misuse_description_questions},
    {"tide_pool_create", misuse_create},
    {"tide_pool_plan_make", misuse_plan_make},
    {"tide_pool_plan_get", misuse_plan_get},
    {"tide_param_set", misuse_values},
    {"tide_param_set_as", misuse_param_set_as},
    {"tide_param_get", misuse_values},
    {"tide_update_count_set", misuse_update_count_set},
    {"tide_step_begin", misuse_step_begin},
    {"tide_step_end", misuse_step_end},
    {"tide_op_begin", misuse_op_begin},
    {"tide_op_slice", misuse_op_slice},
    {"tide_op_end", misuse_op_end},
    {"tide_gradient_finish", misuse_gradient_finish},
    {"tide_launch", misuse_launch},
    {"tide_param_data tide_activation_data tide_param_gradient tide_param_gradient_is_new tide_region "
     "tide_workspace",
     misuse_addresses},
    {"tide_write", misuse_region_bytes},
    {"tide_read", misuse_region_bytes},
    {"tide_step_result_get", misuse_result_get},
    {"tide_pool_drain", misuse_drain},
    {"tide_step_abort", misuse_abort},
    {"tide_pool_counters_get", misuse_counters_get},
    {"tide_pool_options_default tide_pool_destroy tide_pool_trace_work tide_update_count tide_pool_now_ns "
     "tide_pool_step_counters_take",
     misuse_calls_without_status},
    {"tide_pool_predict", misuse_predict},
    {"tide_status_name tide_message tide_fail", misuse_status},
};

enum { MISUSES = sizeof misuses / sizeof misuses[0] };

static void misuse_of_any_call_in_any_state_is_refused_and_changes_nothing(void **state)
{
    static float before[FIXTURE_VALUES], after[FIXTURE_VALUES], expected[FIXTURE_VALUES];
    fixture r = {.values = before};
    fixture_enter(&r, FIXTURE_CREATED);
    fixture_finish(&r, expected);
    for (fixture_state s = FIXTURE_CREATED; s < FIXTURE_STATES; s++) {
        for (size_t i = s % STRIDE; i < MISUSES; i += STRIDE) {
            r = (fixture){.values = before};
            misused = misuses[i].calls;
            fixture_enter(&r, s);
            misuses[i].wrongly(&r);
            fixture_finish(&r, after);
            if (memcmp(after, expected, sizeof expected) != 0)
                fail_msg("misuse of %s, pool %s: another training", misused, fixture_state_name(s));
        }
    }
}

static bool is_misused(const char *name)
{
    const size_t length = strlen(name);
    for (size_t i = 0; i < MISUSES; i++) {
        for (const char *at = misuses[i].calls; (at = strstr(at, name)) != NULL; at += length)
            if ((at == misuses[i].calls || at[-1] == ' ') && (at[length] == ' ' || at[length] == 0))
                return true;
    }
    return false;
}

/* Check that `misuses` has each function that the header declares with TIDE_API: the name before the first
 * parenthesis, which may be on the next line. */
static void check_header(const char *path)
{
    char line[512];
    size_t found = 0;
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    while (fgets(line, sizeof line, file) != NULL) {
        if (strncmp(line, "TIDE_API ", 9) != 0)
            continue;
        const size_t length = strlen(line);
        char *end = strchr(line, '(');
        if (end == NULL && fgets(line + length, (int)(sizeof line - length), file) != NULL)
            end = strchr(line, '(');
        assert_non_null(end);
        *end = 0;
        const char *name = end;
        while (name[-1] != ' ' && name[-1] != '*' && name[-1] != '\n')
            name--;
        if (!is_misused(name))
            fail_msg("%s of %s has no misuse here", name, path);
        found++;
    }
    fclose(file);
    assert_true(found > 2);
}

static void every_call_of_the_headers_is_misused(void **state)
{
    check_header(TIDE_INCLUDE_FOLDER "/description.h");
    check_header(TIDE_INCLUDE_FOLDER "/pool.h");
    check_header(TIDE_INCLUDE_FOLDER "/status.h");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_call_of_the_headers_is_misused),
        cmocka_unit_test(misuse_of_any_call_in_any_state_is_refused_and_changes_nothing),
    };
    return cmocka_run_group_tests_name("pool_misuse", tests, NULL, NULL);
}
