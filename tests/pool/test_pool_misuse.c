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

/* The call is not allowed in this state: it must return STATE or, on a failed pool, the failure. */
#define out_of_place(r, call)                                                                                \
    do {                                                                                                     \
        const tide_status status_of_call = (call);                                                           \
        judge(r, #call, status_of_call,                                                                      \
              (r)->state == FIXTURE_FAILED && status_of_call == TIDE_ERROR_DEVICE                            \
                  ? true                                                                                     \
                  : status_of_call == TIDE_ERROR_STATE,                                                      \
              "");                                                                                           \
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
    misuse(r, tide_description_create((tide_dtype)3, 0, &d), "dtype");
    misuse(r, tide_description_create(TIDE_DTYPE_FP32, UINT64_MAX, &d), "nonmodel_bytes");
    assert_null(d);
}

static void misuse_description_destroy(fixture *r)
{
    tide_description_destroy(NULL);
    holds(r, true);
}

/* A description like the pool's, to which calls may still add. */
static tide_description *description_open(void)
{
    fixture other;
    return fixture_describe(&other);
}

static void misuse_add_param(fixture *r)
{
    const uint64_t shape[4] = {1, 1, 1, 1}, none[2] = {1, 0}, most[2] = {UINT64_MAX, UINT64_MAX};
    const struct {
        tide_param_class of_class;
        const char *words;
    } wrong[] = {
        {{.frozen = true, .decay = true}, "frozen, and can't have weight decay"},
        {{.frozen = true, .state = {3, {128, 128, 128}}}, "frozen, and can't have optimizer state"},
        {{.frozen = true, .state = {UINT32_MAX, {0}}}, "frozen, and can't have optimizer state"},
        {{.state = {4, {128, 128, 128}}}, "4 planes"},
        {{.state = {UINT32_MAX, {128, 128, 128}}}, "4294967295 planes"},
        {{.state = {3, {128, 128, 0}}}, "plane 2 of its state has 0 bytes"},
    };
    tide_description *d = description_open();
    tide_param p = 77;
    misuse_null(r, tide_description_add_param(NULL, "p", shape, 1, NULL, &p), "description");
    misuse_null(r, tide_description_add_param(d, NULL, shape, 1, NULL, &p), "name");
    misuse_null(r, tide_description_add_param(d, "p", NULL, 1, NULL, &p), "shape");
    misuse_null(r, tide_description_add_param(d, "p", shape, 1, NULL, NULL), "param");
    misuse(r, tide_description_add_param(d, "", shape, 1, NULL, &p), "name");
    misuse(r, tide_description_add_param(d, "large", shape, 1, NULL, &p), "one of this name");
    misuse(r, tide_description_add_param(d, "p", shape, 0, NULL, &p), "0 dimensions");
    misuse(r, tide_description_add_param(d, "p", shape, 5, NULL, &p), "5 dimensions");
    misuse(r, tide_description_add_param(d, "p", shape, UINT32_MAX, NULL, &p), "dimensions");
    misuse(r, tide_description_add_param(d, "p", none, 2, NULL, &p), "dimension 1 is 0");
    misuse(r, tide_description_add_param(d, "p", most, 1, NULL, &p), "too large");
    misuse(r, tide_description_add_param(d, "p", most, 2, NULL, &p), "too large");
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++)
        misuse(r, tide_description_add_param(d, "p", shape, 1, &wrong[i].of_class, &p), wrong[i].words);
    refuse_fixed(r, tide_description_add_param(r->description, "p", shape, 4, NULL, &p));
    holds(r, p == 77 && !tide_description_find_param(d, "p", &p));
    holds(r, !tide_description_find_param(r->description, "p", &p));
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
    misuse(r, tide_description_add_activation(d, "c", 0, 1, &c), "activation c");
    misuse(r, tide_description_add_activation(d, "c", UINT32_MAX, 1, &c), "activation c");
    misuse(r, tide_description_add_activation(d, "c", 1, 0, &c), "activation c");
    misuse(r, tide_description_add_activation(d, "c", 1, UINT64_MAX, &c), "activation c");
    misuse(r, tide_description_add_activation(d, "c", 1 << 20, UINT64_MAX, &c), "activation c");
    refuse_fixed(r, tide_description_add_activation(r->description, "c", 1, 1, &c));
    assert_int_equal(c, 77);
    tide_description_destroy(d);
}

static void misuse_add_op(fixture *r)
{
    tide_description *d = description_open();
    const tide_use unknown = {UINT32_MAX, TIDE_ACCESS_READ}, none = {0, 0}, all = {0, UINT32_MAX};
    const tide_op_description good = {.name = "o"};
    const tide_op_description wrong[] = {
        {.name = NULL},
        {.name = ""},
        {.name = "o", .pass = (tide_pass)-1},
        {.name = "o", .pass = (tide_pass)3},
        {.name = "o", .param_count = 1},
        {.name = "o", .params = &unknown, .param_count = 1},
        {.name = "o", .params = &none, .param_count = 1},
        {.name = "o", .params = &all, .param_count = 1},
        {.name = "o", .params = &unknown, .param_count = UINT32_MAX},
        {.name = "o", .activation_count = 1, .slices = FIXTURE_SLICES},
        {.name = "o", .activations = &unknown, .activation_count = 1, .slices = FIXTURE_SLICES},
        {.name = "o", .activations = &none, .activation_count = 1, .slices = FIXTURE_SLICES},
        {.name = "o", .activations = &all, .activation_count = 1, .slices = FIXTURE_SLICES},
        {.name = "o", .activations = &unknown, .activation_count = UINT32_MAX, .slices = FIXTURE_SLICES},
        {.name = "o", .slices = 1},
        {.name = "o", .slices = UINT32_MAX},
        {.name = "o", .workspace_bytes = UINT64_MAX},
    };
    tide_op op = 77;
    misuse_null(r, tide_description_add_op(NULL, &good, &op), "description");
    misuse_null(r, tide_description_add_op(d, NULL, &op), "of_op");
    misuse_null(r, tide_description_add_op(d, &good, NULL), "op");
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++)
        misuse(r, tide_description_add_op(d, &wrong[i], &op), "op");
    refuse_fixed(r, tide_description_add_op(r->description, &good, &op));
    assert_int_equal(op, 77);
    tide_description_destroy(d);
}

static void misuse_find_param(fixture *r)
{
    tide_param param = 77;
    holds(r, !tide_description_find_param(NULL, "large", &param));
    holds(r, !tide_description_find_param(r->description, NULL, &param));
    holds(r, !tide_description_find_param(r->description, "large", NULL));
    holds(r, !tide_description_find_param(r->description, "", &param) && param == 77);
}

static void misuse_param_elements(fixture *r)
{
    holds(r, tide_description_param_elements(NULL, 0) == 0);
    holds(r, tide_description_param_elements(r->description, UINT32_MAX) == 0);
    holds(r, tide_description_param_elements(r->description, 2) == 0);
}

/* --- sections 1 to 3 of pool.h: options, memory, values --- */

static void misuse_options_default(fixture *r)
{
    tide_pool_options_default(NULL);
    holds(r, true);
}

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
    misuse_option(device, "cuda:4294967296", "device");
    misuse_option(device, "moon", "moon");
    misuse_option(chunk_bytes, 1, "chunk size");
    misuse_option(chunk_bytes, UINT64_MAX, "chunk size");
    misuse_option(staging_bytes, UINT64_MAX, "staging_bytes");
    misuse_option(placement, (tide_placement)-1, "placement");
    misuse_option(placement, (tide_placement)3, "placement");
    misuse_option(threads, UINT32_MAX, "threads");
    misuse_option(checks.delay_max_us, UINT32_MAX, "delay_max_us");
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

static void misuse_destroy(fixture *r)
{
    tide_pool_destroy(NULL);
    holds(r, true);
}

static void misuse_plan_get(fixture *r)
{
    tide_pool_plan plan;
    misuse_null(r, tide_pool_plan_get(NULL, &plan), "pool");
    misuse_null(r, tide_pool_plan_get(r->pool, NULL), "plan");
    holds(r, tide_pool_plan_get(r->pool, &plan) == TIDE_OK && plan.params == FIXTURE_LARGE + FIXTURE_SMALL);
}

static void misuse_param_set(fixture *r)
{
    float values[1] = {12345};
    const tide_value none[] = {(tide_value)-1, TIDE_VALUE_PARAM, TIDE_VALUE_COUNT};
    const uint64_t n = FIXTURE_SMALL, most = UINT64_MAX;
    const tide_param small = r->params[1];
    misuse_null(r, tide_param_set(NULL, small, TIDE_VALUE_MASTER, 0, 1, values), "pool");
    misuse_null(r, tide_param_set(r->pool, small, TIDE_VALUE_MASTER, 0, 1, NULL), "values");
    misuse(r, tide_param_set(r->pool, UINT32_MAX, TIDE_VALUE_MASTER, 0, 1, values), "no param");
    misuse(r, tide_param_set(r->pool, 2, TIDE_VALUE_MASTER, 0, 0, values), "no param");
    for (size_t i = 0; i < sizeof none / sizeof none[0]; i++)
        misuse(r, tide_param_set(r->pool, small, none[i], 0, 1, values), "param");
    misuse(r, tide_param_set(r->pool, small, TIDE_VALUE_MASTER, n, 1, values), "param");
    misuse(r, tide_param_set(r->pool, small, TIDE_VALUE_MASTER, n + 1, 0, values), "param");
    misuse(r, tide_param_set(r->pool, small, TIDE_VALUE_MASTER, most, 1, values), "param");
    misuse(r, tide_param_set(r->pool, small, TIDE_VALUE_MASTER, 1, most, values), "param");
    misuse(r, tide_param_set(r->pool, small, TIDE_VALUE_MASTER, most, most, values), "param");
    if (is_open(r))
        out_of_place(r, tide_param_set(r->pool, small, TIDE_VALUE_MASTER, 0, 1, values));
    else if (r->state == FIXTURE_CREATED || r->state == FIXTURE_ENDED)
        assert_ok(tide_param_set(r->pool, small, TIDE_VALUE_MASTER, n, 0, values));
}

static void misuse_param_set_as(fixture *r)
{
    const uint16_t values[1] = {0x4000};
    const tide_param small = r->params[1];
    const tide_value master = TIDE_VALUE_MASTER;
    const tide_dtype bf16 = TIDE_DTYPE_BF16;
    misuse_null(r, tide_param_set_as(NULL, small, master, 0, 1, bf16, values), "pool");
    misuse_null(r, tide_param_set_as(r->pool, small, master, 0, 1, bf16, NULL), "values");
    misuse(r, tide_param_set_as(r->pool, small, master, 0, 1, (tide_dtype)-1, values), "no dtype -1");
    misuse(r, tide_param_set_as(r->pool, small, master, 0, 1, (tide_dtype)3, values), "no dtype 3");
    misuse(r, tide_param_set_as(r->pool, 2, master, 0, 0, bf16, values), "no param");
    misuse(r, tide_param_set_as(r->pool, small, master, FIXTURE_SMALL, 1, bf16, values), "param");
    if (is_open(r))
        out_of_place(r, tide_param_set_as(r->pool, small, master, 0, 1, bf16, values));
    else if (r->state == FIXTURE_CREATED || r->state == FIXTURE_ENDED)
        assert_ok(tide_param_set_as(r->pool, small, master, FIXTURE_SMALL, 0, bf16, values));
}

static void misuse_param_get(fixture *r)
{
    float values[1] = {12345};
    const tide_value none[] = {(tide_value)-1, TIDE_VALUE_COUNT};
    const uint64_t n = FIXTURE_SMALL, most = UINT64_MAX;
    const tide_param small = r->params[1];
    misuse_null(r, tide_param_get(NULL, small, TIDE_VALUE_MASTER, 0, 1, values), "pool");
    misuse_null(r, tide_param_get(r->pool, small, TIDE_VALUE_MASTER, 0, 1, NULL), "values");
    misuse(r, tide_param_get(r->pool, UINT32_MAX, TIDE_VALUE_MASTER, 0, 1, values), "no param");
    misuse(r, tide_param_get(r->pool, 2, TIDE_VALUE_MASTER, 0, 0, values), "no param");
    for (size_t i = 0; i < sizeof none / sizeof none[0]; i++)
        misuse(r, tide_param_get(r->pool, small, none[i], 0, 1, values), "param");
    misuse(r, tide_param_get(r->pool, small, TIDE_VALUE_MASTER, n, 1, values), "param");
    misuse(r, tide_param_get(r->pool, small, TIDE_VALUE_MASTER, most, 1, values), "param");
    misuse(r, tide_param_get(r->pool, small, TIDE_VALUE_MASTER, 1, most, values), "param");
    misuse(r, tide_param_get(r->pool, small, TIDE_VALUE_MASTER, most, most, values), "param");
    if (is_open(r))
        out_of_place(r, tide_param_get(r->pool, small, TIDE_VALUE_MASTER, 0, 1, values));
    else if (r->state == FIXTURE_CREATED || r->state == FIXTURE_ENDED)
        assert_ok(tide_param_get(r->pool, small, TIDE_VALUE_MASTER, n, 0, values));
    assert_true(values[0] == 12345.0F);
}

static void misuse_update_count_set(fixture *r)
{
    misuse_null(r, tide_update_count_set(NULL, 1), "pool");
    misuse(r, tide_update_count_set(r->pool, UINT64_MAX), "2^53");
    misuse(r, tide_update_count_set(r->pool, TIDE_UPDATES_MAX + 1), "2^53");
    if (is_open(r) || r->state == FIXTURE_FAILED)
        out_of_place(r, tide_update_count_set(r->pool, 0));
}

static void misuse_update_count(fixture *r)
{
    holds(r, tide_update_count(NULL) == 0);
}

/* --- sections 4 to 8 of pool.h: steps, ops, the region, end of a step, results --- */

static void misuse_step_begin(fixture *r)
{
    const tide_step_options good = fixture_step_options();
    tide_step_options bad = good;
    float *const fields[] = {&bad.learning_rate, &bad.beta1,     &bad.beta2,     &bad.epsilon,
                             &bad.weight_decay,  &bad.clip_norm, &bad.loss_scale};
    const char *const names[] = {"learning_rate", "beta1",     "beta2",     "epsilon",
                                 "weight_decay",  "clip_norm", "loss_scale"};
    const float wrong[] = {NAN, -INFINITY, -1, -FLT_MIN, INFINITY};
    misuse_null(r, tide_step_begin(NULL, &good), "pool");
    misuse_null(r, tide_step_begin(r->pool, NULL), "options");
    for (size_t f = 0; f < sizeof fields / sizeof fields[0]; f++) {
        for (size_t w = 0; w < sizeof wrong / sizeof wrong[0]; w++) {
            if (fields[f] == &bad.clip_norm && wrong[w] > 0)
                continue; /* INFINITY is allowed: it doesn't clip, but updates wait for the norm */
            bad = good;
            *fields[f] = wrong[w];
            misuse(r, tide_step_begin(r->pool, &bad), names[f]);
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

static void misuse_param_data(fixture *r)
{
    holds(r, tide_param_data(NULL, 0) == NULL);
    holds(r, tide_param_data(r->pool, UINT32_MAX) == NULL);
    holds(r, tide_param_data(r->pool, 2) == NULL);
    holds(r, tide_param_data(r->pool, 1) != NULL);
}

static void misuse_activation_data(fixture *r)
{
    holds(r, tide_activation_data(NULL, 0, 0) == NULL);
    holds(r, tide_activation_data(r->pool, 1, 0) == NULL);
    holds(r, tide_activation_data(r->pool, UINT32_MAX, 0) == NULL);
    holds(r, tide_activation_data(r->pool, 0, FIXTURE_SLICES) == NULL);
    holds(r, tide_activation_data(r->pool, 0, UINT32_MAX) == NULL);
    holds(r, tide_activation_data(r->pool, 0, 1) != NULL);
}

static void misuse_param_gradient(fixture *r)
{
    holds(r, tide_param_gradient(NULL, 0) == NULL);
    holds(r, tide_param_gradient(r->pool, UINT32_MAX) == NULL);
    holds(r, tide_param_gradient(r->pool, 1) == NULL);
}

static void misuse_param_gradient_is_new(fixture *r)
{
    holds(r, !tide_param_gradient_is_new(NULL, 0));
    holds(r, !tide_param_gradient_is_new(r->pool, UINT32_MAX));
    holds(r, !tide_param_gradient_is_new(r->pool, 1));
}

static void misuse_region(fixture *r)
{
    holds(r, tide_region(NULL) == NULL);
    holds(r, tide_region(r->pool) != NULL);
}

static void misuse_workspace(fixture *r)
{
    holds(r, tide_workspace(NULL) == NULL);
    holds(r, (tide_workspace(r->pool) != NULL) == (r->state == FIXTURE_OP || r->state == FIXTURE_FAILED));
}

static void misuse_write(fixture *r)
{
    char bytes[FIXTURE_PART * sizeof(float) + 1] = {0}, *at = tide_region(r->pool);
    const bool here = r->state != FIXTURE_FAILED && r->state != FIXTURE_POISONED;
    const size_t own = FIXTURE_PART * sizeof(float);
    misuse_null(r, tide_write(NULL, at, bytes, 1), "pool");
    misuse_null(r, tide_write(r->pool, NULL, bytes, 1), "region");
    misuse_null(r, tide_write(r->pool, at, NULL, 1), "source");
    misuse_here(r, here, tide_write(r->pool, at, bytes, own + 1), "not inside");
    misuse_here(r, here, tide_write(r->pool, at, bytes, SIZE_MAX), "not inside");
    misuse_here(r, here, tide_write(r->pool, at + own, bytes, 1), "not inside");
    misuse_here(r, here, tide_write(r->pool, at + own + 1, bytes, 0), "not inside");
    misuse_here(r, here, tide_write(r->pool, (char *)1, bytes, 1), "not inside");
    misuse_here(r, here, tide_write(r->pool, (char *)UINTPTR_MAX, bytes, SIZE_MAX), "not inside");
    if (here)
        assert_ok(tide_write(r->pool, at + own, bytes, 0));
}

static void misuse_read(fixture *r)
{
    char bytes[1] = {77}, *at = tide_region(r->pool);
    const bool here = r->state != FIXTURE_FAILED && r->state != FIXTURE_POISONED;
    const size_t own = FIXTURE_PART * sizeof(float);
    misuse_null(r, tide_read(NULL, bytes, at, 1), "pool");
    misuse_null(r, tide_read(r->pool, NULL, at, 1), "target");
    misuse_null(r, tide_read(r->pool, bytes, NULL, 1), "region");
    misuse_here(r, here, tide_read(r->pool, bytes, at, own + 1), "not inside");
    misuse_here(r, here, tide_read(r->pool, bytes, at, SIZE_MAX), "not inside");
    misuse_here(r, here, tide_read(r->pool, bytes, at + own, 1), "not inside");
    misuse_here(r, here, tide_read(r->pool, bytes, (char *)UINTPTR_MAX, SIZE_MAX), "not inside");
    if (here)
        assert_ok(tide_read(r->pool, bytes, at + own, 0));
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

static void misuse_step_counters_take(fixture *r)
{
    tide_pool_counters counters;
    uint64_t step;
    holds(r, !tide_pool_step_counters_take(NULL, &step, &counters));
    holds(r, !tide_pool_step_counters_take(r->pool, NULL, &counters));
    holds(r, !tide_pool_step_counters_take(r->pool, &step, NULL));
}

static void misuse_now_ns(fixture *r)
{
    holds(r, tide_pool_now_ns(NULL) == 0);
}

/* These calls have no effect: on no pool, with a NULL name, and with a begin in the future. The fixture's
 * pool has no trace callback either. */
static void misuse_trace_work(fixture *r)
{
    tide_pool_trace_work(NULL, "work", 0);
    tide_pool_trace_work(r->pool, NULL, 0);
    tide_pool_trace_work(r->pool, "work", UINT64_MAX);
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

static void misuse_status_name(fixture *r)
{
    holds(r, strcmp(tide_status_name((tide_status)-1), "unknown") == 0);
    holds(r, strcmp(tide_status_name((tide_status)9999), "unknown") == 0);
}

static void misuse_message(fixture *r)
{
    holds(r, tide_message() != NULL);
}

static void misuse_fail(fixture *r)
{
    const char *volatile none = NULL;
    char larger[3000];
    memset(larger, 'x', sizeof larger - 1);
    larger[sizeof larger - 1] = 0;
    holds(r, tide_fail(TIDE_ERROR_STATE, none, 1) == TIDE_ERROR_STATE && tide_message()[0] == 0);
    holds(r, tide_fail(TIDE_ERROR_STATE, "%s", larger) == TIDE_ERROR_STATE && strlen(tide_message()) == 1023);
    holds(r, tide_fail(TIDE_ERROR_STATE, "%s", tide_message()) == TIDE_ERROR_STATE &&
                 strlen(tide_message()) == 1023);
}

/* --- run all of them --- */

static const struct {
    const char *call;
    void (*wrongly)(fixture *r);
} calls[] = {
    {"tide_description_create", misuse_description_create},
    {"tide_description_destroy", misuse_description_destroy},
    {"tide_description_add_param", misuse_add_param},
    {"tide_description_add_activation", misuse_add_activation},
    {"tide_description_add_op", misuse_add_op},
    {"tide_description_find_param", misuse_find_param},
    {"tide_description_param_elements", misuse_param_elements},
    {"tide_pool_options_default", misuse_options_default},
    {"tide_pool_create", misuse_create},
    {"tide_pool_destroy", misuse_destroy},
    {"tide_pool_plan_make", misuse_plan_make},
    {"tide_pool_plan_get", misuse_plan_get},
    {"tide_param_set", misuse_param_set},
    {"tide_param_set_as", misuse_param_set_as},
    {"tide_param_get", misuse_param_get},
    {"tide_update_count_set", misuse_update_count_set},
    {"tide_update_count", misuse_update_count},
    {"tide_step_begin", misuse_step_begin},
    {"tide_step_end", misuse_step_end},
    {"tide_op_begin", misuse_op_begin},
    {"tide_op_slice", misuse_op_slice},
    {"tide_op_end", misuse_op_end},
    {"tide_launch", misuse_launch},
    {"tide_param_data", misuse_param_data},
    {"tide_activation_data", misuse_activation_data},
    {"tide_param_gradient", misuse_param_gradient},
    {"tide_param_gradient_is_new", misuse_param_gradient_is_new},
    {"tide_region", misuse_region},
    {"tide_workspace", misuse_workspace},
    {"tide_write", misuse_write},
    {"tide_read", misuse_read},
    {"tide_step_result_get", misuse_result_get},
    {"tide_pool_drain", misuse_drain},
    {"tide_step_abort", misuse_abort},
    {"tide_pool_counters_get", misuse_counters_get},
    {"tide_pool_now_ns", misuse_now_ns},
    {"tide_pool_trace_work", misuse_trace_work},
    {"tide_pool_step_counters_take", misuse_step_counters_take},
    {"tide_pool_predict", misuse_predict},
    {"tide_status_name", misuse_status_name},
    {"tide_message", misuse_message},
    {"tide_fail", misuse_fail},
};

enum { CALLS = sizeof calls / sizeof calls[0] };

static void misuse_of_any_call_in_any_state_is_refused_and_changes_nothing(void **state)
{
    (void)state;
    static float before[FIXTURE_VALUES], after[FIXTURE_VALUES], expected[FIXTURE_VALUES];
    fixture r = {.values = before};
    fixture_enter(&r, FIXTURE_CREATED);
    fixture_finish(&r, expected);
    for (fixture_state s = FIXTURE_CREATED; s < FIXTURE_STATES; s++) {
        for (size_t i = s % STRIDE; i < CALLS; i += STRIDE) {
            r = (fixture){.values = before};
            misused = calls[i].call;
            fixture_enter(&r, s);
            calls[i].wrongly(&r);
            fixture_finish(&r, after);
            if (memcmp(after, expected, sizeof expected) != 0)
                fail_msg("misuse of %s, pool %s: another training", calls[i].call, fixture_state_name(s));
        }
    }
}

/* Check that `calls` has each function that the header declares with TIDE_API: the name before the first
 * parenthesis, which may be on the next line. Returns how many there are. */
static size_t check_header(const char *path)
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
        size_t i = 0;
        while (i < CALLS && strcmp(calls[i].call, name) != 0)
            i++;
        if (i == CALLS)
            fail_msg("%s of %s has no misuse here", name, path);
        found++;
    }
    fclose(file);
    return found;
}

static void every_call_of_the_headers_is_misused(void **state)
{
    (void)state;
    assert_int_equal(check_header(TIDE_INCLUDE_FOLDER "/description.h") +
                         check_header(TIDE_INCLUDE_FOLDER "/pool.h") +
                         check_header(TIDE_INCLUDE_FOLDER "/status.h"),
                     CALLS);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_call_of_the_headers_is_misused),
        cmocka_unit_test(misuse_of_any_call_in_any_state_is_refused_and_changes_nothing),
    };
    return cmocka_run_group_tests_name("pool_misuse", tests, NULL, NULL);
}
