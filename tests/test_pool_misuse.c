/* Every public call, in every state of a pool, with every pointer NULL and every number out of range in turn: a status that
 * says why, and nothing has changed. After the misuse of each call the training goes on, and ends with the bits of one that
 * nobody disturbed. A call of the headers that is missing here fails the test. */
#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/assert_ok.h"
#include "tidepool/tidepool.h"

/* --- a model of two params, one of them tied, and three ops --- */

enum { LARGE = 70000, SMALL = 1000, PART = 300, SLICES = 2, STEPS = 3, SPACES = 4 };

typedef enum pool_state { CREATED, REGISTERED, SEALED, STEP, OP, ENDED, FAILED, TORN, STATES } pool_state;

static const char *const state_names[STATES] = {"created",  "registered",   "sealed", "in a step",
                                                "in an op", "after a step", "failed", "torn"};

typedef struct rig {
    tide_pool *pool;
    pool_state state;
    const char *misused; /* the call */
    tide_param params[2];
    tide_checkpoint saved;
    tide_op forward, head, backward;
    uint64_t updates, hash; /* as they were before the misuse */
    float *values;          /* of a step that was good: LARGE and SMALL of each fp32 space */
} rig;

static const uint64_t elements[2] = {LARGE, SMALL};

typedef struct layer {
    float *input, *saved;
    const float *values;
    float *gradient;
    bool fail;
} layer;

static tide_status forward_kernel(void *stream, const void *arguments)
{
    const layer *it = arguments;
    (void)stream;
    for (int i = 0; i < PART; i++)
        it->saved[i] = it->input[i] + it->values[i];
    return TIDE_OK;
}

static tide_status backward_kernel(void *stream, const void *arguments)
{
    const layer *it = arguments;
    (void)stream;
    if (it->fail)
        return tide_fail(TIDE_ERROR_DEVICE, "on purpose");
    for (int i = 0; i < LARGE; i++)
        it->gradient[i] += 0.1F * it->saved[i % PART] + 0.01F * it->values[i];
    return TIDE_OK;
}

static tide_pool_options options_of(void)
{
    tide_pool_options options;
    tide_pool_options_default(&options);
    options.chunk_bytes = 256 * 1024;
    options.dtype = TIDE_DTYPE_FP32;
    options.threads = 1;
    options.nonmodel_bytes = PART * sizeof(float);
    options.hazard_check = options.guard = true;
    return options;
}

static const tide_step_options good_step = {.training = true,
                                            .learning_rate = 1e-2F,
                                            .beta1 = 0.9F,
                                            .beta2 = 0.95F,
                                            .epsilon = 1e-8F,
                                            .weight_decay = 0.1F,
                                            .clip_norm = 1};

static void register_model(rig *r)
{
    const tide_pass passes[3] = {TIDE_PASS_FORWARD, TIDE_PASS_BOTH, TIDE_PASS_BACKWARD};
    const uint32_t grad = TIDE_ACCESS_READ | TIDE_ACCESS_GRAD;
    const uint32_t access[3] = {TIDE_ACCESS_READ, grad, grad};
    const uint32_t parts[3] = {TIDE_ACCESS_WRITE, TIDE_ACCESS_READ, TIDE_ACCESS_READ | TIDE_ACCESS_LAST};
    tide_op *ops[3] = {&r->forward, &r->head, &r->backward};
    assert_ok(tide_param_register(r->pool, "large", &elements[0], 1, true, &r->params[0]));
    assert_ok(tide_param_register(r->pool, "small", &elements[1], 1, false, &r->params[1]));
    assert_ok(tide_checkpoint_register(r->pool, "saved", SLICES, PART * sizeof(float), &r->saved));
    for (int i = 0; i < 3; i++) {
        const tide_use uses[2] = {{r->params[0], access[i]}, {r->params[1], access[i]}},
                       saved = {r->saved, parts[i]};
        const tide_op_description op = {.name = "op",
                                        .pass = passes[i],
                                        .params = uses,
                                        .param_count = i == 1 ? 2 : 1,
                                        .checkpoints = &saved,
                                        .checkpoint_count = 1,
                                        .slices = SLICES,
                                        .workspace_bytes = 100};
        assert_ok(tide_op_register(r->pool, &op, ops[i]));
    }
}

static void seal(rig *r)
{
    tide_pool_plan plan;
    static float values[LARGE];
    assert_ok(tide_pool_plan_get(r->pool, 0, &plan));
    assert_ok(tide_pool_set_budgets(r->pool, plan.least_device_bytes, 0));
    assert_ok(tide_pool_seal(r->pool));
    for (uint64_t i = 0; i < LARGE; i++)
        values[i] = (float)(i * 7919 % 1000) * 1e-3F - 0.5F;
    for (int p = 0; p < 2; p++)
        assert_ok(tide_param_set(r->pool, r->params[p], TIDE_SPACE_MASTER, 0, elements[p], values));
}

static void run_slice(rig *r, tide_op op, uint32_t slice, bool fail)
{
    const layer it = {.input = tide_region(r->pool),
                      .saved = tide_checkpoint_data(r->pool, r->saved, slice),
                      .values = tide_param_data(r->pool, r->params[0]),
                      .gradient = tide_param_gradient(r->pool, r->params[0]),
                      .fail = fail};
    assert_ok(tide_op_slice(r->pool, slice));
    assert_ok(tide_launch(r->pool, "kernel", op == r->forward ? forward_kernel : backward_kernel, &it,
                          sizeof it, 1, 1));
}

static void run_op(rig *r, tide_op op)
{
    assert_ok(tide_op_begin(r->pool, op));
    for (uint32_t m = 0; m < SLICES; m++)
        run_slice(r, op, m, false);
    assert_ok(tide_op_end(r->pool));
}

/* A step up to its last op's first slice. */
static void begin_step(rig *r, float clip_norm, float input)
{
    tide_step_options step = good_step;
    float state[PART];
    step.clip_norm = clip_norm;
    for (int i = 0; i < PART; i++)
        state[i] = input;
    assert_ok(tide_step_begin(r->pool, &step));
    if (r->state == STEP)
        return;
    assert_ok(tide_write(r->pool, tide_region(r->pool), state, sizeof state));
    run_op(r, r->forward);
    run_op(r, r->head);
    assert_ok(tide_op_begin(r->pool, r->backward));
    run_slice(r, r->backward, 0, r->state == FAILED);
}

static void end_step(rig *r)
{
    run_slice(r, r->backward, 1, false);
    assert_ok(tide_op_end(r->pool));
    assert_ok(tide_step_end(r->pool));
}

static void run_steps(rig *r, uint64_t until)
{
    r->state = SEALED;
    tide_step_result result;
    while (tide_update_count(r->pool) < until) {
        begin_step(r, 1, 0.5F);
        end_step(r);
        assert_ok(tide_step_result_get(r->pool, &result));
    }
    assert_ok(tide_pool_drain(r->pool));
}

static const tide_space spaces[SPACES] = {TIDE_SPACE_MASTER, TIDE_SPACE_MOMENTUM, TIDE_SPACE_VARIANCE,
                                          TIDE_SPACE_PARAM};

/* All values of all spaces into `values`, and their hash. */
static uint64_t read_values(rig *r, float *values)
{
    uint64_t hash = UINT64_C(14695981039346656037);
    for (int i = 0; i < SPACES * 2; i++) {
        float *to = values + (i / 2) * (LARGE + SMALL) + (i % 2) * LARGE;
        assert_ok(tide_param_get(r->pool, r->params[i % 2], spaces[i / 2], 0, elements[i % 2], to));
        const unsigned char *bytes = (const unsigned char *)to;
        for (size_t j = 0; j < elements[i % 2] * sizeof(float); j += 4)
            hash = (hash ^ bytes[j] ^ (uint64_t)bytes[j + 1] << 20 ^ (uint64_t)bytes[j + 2] << 40 ^
                    (uint64_t)bytes[j + 3] << 52) *
                   UINT64_C(1099511628211);
    }
    return hash;
}

static void write_values(rig *r, const float *values)
{
    for (int i = 0; i < (SPACES - 1) * 2; i++)
        assert_ok(tide_param_set(r->pool, r->params[i % 2], spaces[i / 2], 0, elements[i % 2],
                                 values + (i / 2) * (LARGE + SMALL) + (i % 2) * LARGE));
}

/* --- into a state, and on from it to the end of the training --- */

static void tear(rig *r)
{
    tide_step_result result;
    begin_step(r, 0, INFINITY);
    end_step(r);
    assert_int_equal(tide_step_result_get(r->pool, &result), TIDE_ERROR_NONFINITE);
    assert_int_equal(tide_step_abort(r->pool), TIDE_ERROR_STATE);
}

static void enter(rig *r, pool_state state)
{
    float value;
    const tide_pool_options options = options_of();
    r->state = state;
    assert_ok(tide_pool_create(&options, &r->pool));
    if (state >= REGISTERED)
        register_model(r);
    if (state >= SEALED)
        seal(r);
    if (state >= STEP)
        run_steps(r, 1);
    r->state = state;
    if (state >= SEALED)
        r->hash = read_values(r, r->values);
    if (state == TORN)
        tear(r);
    else if (state >= STEP)
        begin_step(r, 1, 0.5F);
    if (state == ENDED)
        end_step(r);
    if (state == FAILED)
        assert_int_equal(tide_read(r->pool, &value, tide_region(r->pool), 4), TIDE_ERROR_DEVICE);
    r->updates = tide_update_count(r->pool);
}

static void finish(rig *r)
{
    const pool_state state = r->state;
    if (state == CREATED)
        register_model(r);
    if (state <= REGISTERED)
        seal(r);
    if (state == STEP)
        assert_ok(tide_step_abort(r->pool));
    if (state == OP)
        end_step(r);
    if (state == FAILED)
        assert_ok(tide_step_abort(r->pool));
    if (state == TORN) {
        write_values(r, r->values);
        assert_ok(tide_update_count_set(r->pool, 1));
    }
    r->state = SEALED;
    if (state == OP || state == ENDED)
        assert_ok(tide_pool_drain(r->pool));
    run_steps(r, STEPS);
}

/* --- judging a misuse --- */

static void assert_untouched(rig *r, const char *call)
{
    static float values[SPACES * (LARGE + SMALL)];
    const uint64_t updates = tide_update_count(r->pool);
    if (updates != r->updates && !(r->state == ENDED && updates == r->updates + 1))
        fail_msg("%s, pool %s: %llu updates", call, state_names[r->state], (unsigned long long)updates);
    if (r->state == SEALED && read_values(r, values) != r->hash)
        fail_msg("%s: values have changed", call);
}

static void judge(rig *r, const char *call, tide_status status, bool right, const char *words)
{
    if (!right || strstr(tide_message(), words) == NULL)
        fail_msg("%s, pool %s: %s: \"%s\", not about %s", call, state_names[r->state],
                 tide_status_name(status), tide_message(), words);
    assert_untouched(r, call);
}

/* Whatever the state: ARGUMENT, with these words. */
#define misuse(r, call, words)                                                                               \
    do {                                                                                                     \
        const tide_status status_of_call = (call);                                                           \
        judge(r, #call, status_of_call, status_of_call == TIDE_ERROR_ARGUMENT, words);                       \
    } while (0)

/* A NULL is named, and so is the call. */
#define misuse_null(r, call, parameter)                                                                      \
    do {                                                                                                     \
        misuse(r, call, parameter " is NULL");                                                               \
        assert_non_null(strstr(tide_message(), (r)->misused));                                                  \
    } while (0)

/* Not in this state: STATE, or on a failed pool its failure. */
#define out_of_place(r, call)                                                                                \
    do {                                                                                                     \
        const tide_status status_of_call = (call);                                                           \
        judge(r, #call, status_of_call,                                                                      \
              (r)->state == FAILED && status_of_call == TIDE_ERROR_DEVICE                                    \
                  ? true                                                                                     \
                  : status_of_call == TIDE_ERROR_STATE,                                                      \
              "");                                                                                           \
    } while (0)

/* The number is wrong, if the state lets the call look at it at all. */
#define misuse_here(r, here, call, words)                                                                    \
    do {                                                                                                     \
        if (here)                                                                                            \
            misuse(r, call, words);                                                                          \
        else                                                                                                 \
            out_of_place(r, call);                                                                           \
    } while (0)

/* No status to judge: it must be so. */
#define holds(r, condition)                                                                                  \
    do {                                                                                                     \
        if (!(condition))                                                                                    \
            fail_msg("%s, pool %s", #condition, state_names[(r)->state]);                                    \
        assert_untouched(r, #condition);                                                                     \
    } while (0)

static bool is_open(const rig *r)
{
    return r->state == STEP || r->state == OP;
}

/* --- 1 to 4: options, the model, memory, values --- */

static void misuse_options_default(rig *r)
{
    tide_pool_options_default(NULL);
    holds(r, true);
}

static void misuse_create(rig *r)
{
    tide_pool *pool = NULL;
    const tide_pool_options good = options_of();
    misuse_null(r, tide_pool_create(NULL, &pool), "options");
    misuse_null(r, tide_pool_create(&good, NULL), "pool");
    tide_pool_options bad;
#define misuse_option(field, wrong, words)                                                                   \
    do {                                                                                                     \
        bad = good;                                                                                          \
        bad.field = wrong;                                                                                   \
        misuse(r, tide_pool_create(&bad, &pool), words);                                                     \
    } while (0)
    misuse_option(device, NULL, "device");
    misuse_option(device, "", "device");
    misuse_option(device, "cuda:", "device");
    misuse_option(device, "cuda:4294967296", "device");
    misuse_option(device, "moon", "moon");
    misuse_option(chunk_bytes, 1, "chunk size");
    misuse_option(chunk_bytes, UINT64_MAX, "chunk size");
    misuse_option(dtype, (tide_dtype)-1, "dtype");
    misuse_option(dtype, (tide_dtype)3, "dtype");
    misuse_option(nonmodel_bytes, UINT64_MAX, "nonmodel_bytes");
    misuse_option(staging_bytes, UINT64_MAX, "staging_bytes");
    misuse_option(placement, (tide_placement)-1, "placement");
    misuse_option(placement, (tide_placement)3, "placement");
    misuse_option(threads, UINT32_MAX, "threads");
    misuse_option(delay_max_us, UINT32_MAX, "delay_max_us");
    misuse_option(skip_wait_site, UINT32_MAX, "wait site");
    const double rates[] = {-1, NAN, INFINITY, -INFINITY, -DBL_MIN};
    for (size_t i = 0; i < sizeof rates / sizeof rates[0]; i++) {
        misuse_option(link_bytes_per_second, rates[i], "link_bytes_per_second");
        misuse_option(machine.flops_per_second, rates[i], "flops_per_second");
        misuse_option(machine.device_bytes_per_second, rates[i], "device_bytes_per_second");
        misuse_option(machine.host_bytes_per_second, rates[i], "host_bytes_per_second");
        misuse_option(machine.link_out_bytes_per_second, rates[i], "link_out_bytes_per_second");
    }
    assert_null(pool);
}

static void misuse_destroy(rig *r)
{
    tide_pool_destroy(NULL);
    holds(r, true);
}

static void misuse_param_register(rig *r)
{
    const uint64_t shape[4] = {1, 1, 1, 1}, none[2] = {1, 0}, most[2] = {UINT64_MAX, UINT64_MAX};
    const bool here = r->state < SEALED;
    tide_param param = 77;
    misuse_null(r, tide_param_register(NULL, "p", shape, 1, true, &param), "pool");
    misuse_null(r, tide_param_register(r->pool, NULL, shape, 1, true, &param), "name");
    misuse_null(r, tide_param_register(r->pool, "p", NULL, 1, true, &param), "shape");
    misuse_null(r, tide_param_register(r->pool, "p", shape, 1, true, NULL), "param");
    misuse_here(r, here, tide_param_register(r->pool, "", shape, 1, true, &param), "name");
    misuse_here(r, here, tide_param_register(r->pool, "p", shape, 0, true, &param), "0 dimensions");
    misuse_here(r, here, tide_param_register(r->pool, "p", shape, 5, true, &param), "5 dimensions");
    misuse_here(r, here, tide_param_register(r->pool, "p", shape, UINT32_MAX, true, &param), "dimensions");
    misuse_here(r, here, tide_param_register(r->pool, "p", none, 2, true, &param), "dimension 1 is 0");
    misuse_here(r, here, tide_param_register(r->pool, "p", most, 1, true, &param), "too large");
    misuse_here(r, here, tide_param_register(r->pool, "p", most, 2, true, &param), "too large");
    if (r->state > CREATED)
        misuse_here(r, here, tide_param_register(r->pool, "large", shape, 1, true, &param),
                    "one of this name");
    if (!here)
        out_of_place(r, tide_param_register(r->pool, "p", shape, 4, true, &param));
    holds(r, param == 77 && !tide_param_find(r->pool, "p", &param));
}

static void misuse_checkpoint_register(rig *r)
{
    const bool here = r->state < SEALED;
    tide_checkpoint c = 77;
    misuse_null(r, tide_checkpoint_register(NULL, "c", 1, 1, &c), "pool");
    misuse_null(r, tide_checkpoint_register(r->pool, NULL, 1, 1, &c), "name");
    misuse_null(r, tide_checkpoint_register(r->pool, "c", 1, 1, NULL), "checkpoint");
    misuse_here(r, here, tide_checkpoint_register(r->pool, "", 1, 1, &c), "name");
    misuse_here(r, here, tide_checkpoint_register(r->pool, "c", 0, 1, &c), "checkpoint c");
    misuse_here(r, here, tide_checkpoint_register(r->pool, "c", UINT32_MAX, 1, &c), "checkpoint c");
    misuse_here(r, here, tide_checkpoint_register(r->pool, "c", 1, 0, &c), "checkpoint c");
    misuse_here(r, here, tide_checkpoint_register(r->pool, "c", 1, UINT64_MAX, &c), "checkpoint c");
    misuse_here(r, here, tide_checkpoint_register(r->pool, "c", 1 << 20, UINT64_MAX, &c), "checkpoint c");
    if (r->state > CREATED)
        misuse_here(r, here, tide_checkpoint_register(r->pool, "saved", 1, 1, &c), "one of this name");
    if (!here)
        out_of_place(r, tide_checkpoint_register(r->pool, "c", 1, 1, &c));
    assert_int_equal(c, 77);
}

static void misuse_op_register(rig *r)
{
    const bool here = r->state < SEALED;
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
        {.name = "o", .checkpoint_count = 1, .slices = SLICES},
        {.name = "o", .checkpoints = &unknown, .checkpoint_count = 1, .slices = SLICES},
        {.name = "o", .checkpoints = &none, .checkpoint_count = 1, .slices = SLICES},
        {.name = "o", .checkpoints = &all, .checkpoint_count = 1, .slices = SLICES},
        {.name = "o", .checkpoints = &unknown, .checkpoint_count = UINT32_MAX, .slices = SLICES},
        {.name = "o", .slices = 1},
        {.name = "o", .slices = UINT32_MAX},
        {.name = "o", .workspace_bytes = UINT64_MAX},
    };
    tide_op op = 77;
    misuse_null(r, tide_op_register(NULL, &good, &op), "pool");
    misuse_null(r, tide_op_register(r->pool, NULL, &op), "description");
    misuse_null(r, tide_op_register(r->pool, &good, NULL), "op");
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++)
        misuse_here(r, here, tide_op_register(r->pool, &wrong[i], &op), "op");
    if (!here)
        out_of_place(r, tide_op_register(r->pool, &good, &op));
    assert_int_equal(op, 77);
}

static void misuse_param_find(rig *r)
{
    tide_param param = 77;
    holds(r, !tide_param_find(NULL, "large", &param));
    holds(r, !tide_param_find(r->pool, NULL, &param));
    holds(r, !tide_param_find(r->pool, "large", NULL));
    holds(r, !tide_param_find(r->pool, "", &param) && param == 77);
}

static void misuse_param_elements(rig *r)
{
    holds(r, tide_param_elements(NULL, 0) == 0);
    holds(r, tide_param_elements(r->pool, UINT32_MAX) == 0);
    holds(r, tide_param_elements(r->pool, 2) == 0);
}

static void misuse_plan_get(rig *r)
{
    tide_pool_plan plan;
    const uint64_t budgets[] = {0, 1, UINT64_MAX};
    misuse_null(r, tide_pool_plan_get(NULL, 0, &plan), "pool");
    misuse_null(r, tide_pool_plan_get(r->pool, 0, NULL), "plan");
    for (size_t i = 0; i < 3; i++) {
        if (r->state == CREATED)
            out_of_place(r, tide_pool_plan_get(r->pool, budgets[i], &plan));
        else
            holds(r,
                  tide_pool_plan_get(r->pool, budgets[i], &plan) == TIDE_OK && plan.params == LARGE + SMALL);
    }
}

static void misuse_set_budgets(rig *r)
{
    const uint64_t budgets[] = {0, 1, UINT64_MAX};
    misuse_null(r, tide_pool_set_budgets(NULL, 0, 0), "pool");
    for (size_t i = 0; i < 9; i++) {
        const uint64_t device = budgets[i % 3], host = budgets[i / 3];
        if (r->state >= SEALED)
            out_of_place(r, tide_pool_set_budgets(r->pool, device, host));
        else
            assert_ok(tide_pool_set_budgets(r->pool, device, host));
        if (r->state == REGISTERED && (device == 1 || host == 1))
            assert_int_equal(tide_pool_seal(r->pool), TIDE_ERROR_BUDGET);
    }
    if (r->state < SEALED)
        assert_ok(tide_pool_set_budgets(r->pool, 0, 0));
}

static void misuse_seal(rig *r)
{
    misuse_null(r, tide_pool_seal(NULL), "pool");
    if (r->state != REGISTERED)
        out_of_place(r, tide_pool_seal(r->pool));
}

static void misuse_param_set(rig *r)
{
    float values[1] = {12345};
    const tide_space none[] = {(tide_space)-1, TIDE_SPACE_PARAM, TIDE_SPACE_CHECKPOINT, TIDE_SPACE_COUNT};
    const uint64_t n = SMALL, most = UINT64_MAX;
    const bool here = r->state >= REGISTERED;
    const tide_param small = here ? r->params[1] : 1;
    misuse_null(r, tide_param_set(NULL, small, TIDE_SPACE_MASTER, 0, 1, values), "pool");
    misuse_null(r, tide_param_set(r->pool, small, TIDE_SPACE_MASTER, 0, 1, NULL), "values");
    misuse(r, tide_param_set(r->pool, UINT32_MAX, TIDE_SPACE_MASTER, 0, 1, values), "no param");
    misuse(r, tide_param_set(r->pool, 2, TIDE_SPACE_MASTER, 0, 0, values), "no param");
    for (size_t i = 0; i < sizeof none / sizeof none[0]; i++)
        misuse(r, tide_param_set(r->pool, small, none[i], 0, 1, values), "param");
    misuse(r, tide_param_set(r->pool, small, TIDE_SPACE_MASTER, n, 1, values), "param");
    misuse(r, tide_param_set(r->pool, small, TIDE_SPACE_MASTER, n + 1, 0, values), "param");
    misuse(r, tide_param_set(r->pool, small, TIDE_SPACE_MASTER, most, 1, values), "param");
    misuse(r, tide_param_set(r->pool, small, TIDE_SPACE_MASTER, 1, most, values), "param");
    misuse(r, tide_param_set(r->pool, small, TIDE_SPACE_MASTER, most, most, values), "param");
    if (r->state == REGISTERED || is_open(r))
        out_of_place(r, tide_param_set(r->pool, small, TIDE_SPACE_MASTER, 0, 1, values));
    else if (r->state == SEALED || r->state == ENDED)
        assert_ok(tide_param_set(r->pool, small, TIDE_SPACE_MASTER, n, 0, values));
}

static void misuse_param_get(rig *r)
{
    float values[1] = {12345};
    const tide_space none[] = {(tide_space)-1, TIDE_SPACE_CHECKPOINT, TIDE_SPACE_COUNT};
    const uint64_t n = SMALL, most = UINT64_MAX;
    const tide_param small = r->state >= REGISTERED ? r->params[1] : 1;
    misuse_null(r, tide_param_get(NULL, small, TIDE_SPACE_MASTER, 0, 1, values), "pool");
    misuse_null(r, tide_param_get(r->pool, small, TIDE_SPACE_MASTER, 0, 1, NULL), "values");
    misuse(r, tide_param_get(r->pool, UINT32_MAX, TIDE_SPACE_MASTER, 0, 1, values), "no param");
    misuse(r, tide_param_get(r->pool, 2, TIDE_SPACE_MASTER, 0, 0, values), "no param");
    for (size_t i = 0; i < sizeof none / sizeof none[0]; i++)
        misuse(r, tide_param_get(r->pool, small, none[i], 0, 1, values), "param");
    misuse(r, tide_param_get(r->pool, small, TIDE_SPACE_MASTER, n, 1, values), "param");
    misuse(r, tide_param_get(r->pool, small, TIDE_SPACE_MASTER, most, 1, values), "param");
    misuse(r, tide_param_get(r->pool, small, TIDE_SPACE_MASTER, 1, most, values), "param");
    misuse(r, tide_param_get(r->pool, small, TIDE_SPACE_MASTER, most, most, values), "param");
    if (r->state == REGISTERED || is_open(r))
        out_of_place(r, tide_param_get(r->pool, small, TIDE_SPACE_MASTER, 0, 1, values));
    else if (r->state == SEALED || r->state == ENDED)
        assert_ok(tide_param_get(r->pool, small, TIDE_SPACE_MASTER, n, 0, values));
    assert_true(values[0] == 12345.0F);
}

static void misuse_update_count_set(rig *r)
{
    misuse_null(r, tide_update_count_set(NULL, 1), "pool");
    misuse(r, tide_update_count_set(r->pool, UINT64_MAX), "2^53");
    misuse(r, tide_update_count_set(r->pool, TIDE_UPDATES_MAX + 1), "2^53");
    if (r->state < SEALED || is_open(r) || r->state == FAILED)
        out_of_place(r, tide_update_count_set(r->pool, 0));
}

static void misuse_update_count(rig *r)
{
    holds(r, tide_update_count(NULL) == 0);
}

/* --- 5 to 9: steps, ops, the region, what follows --- */

static void misuse_step_begin(rig *r)
{
    tide_step_options bad = good_step;
    float *const fields[] = {&bad.learning_rate, &bad.beta1,     &bad.beta2,     &bad.epsilon,
                             &bad.weight_decay,  &bad.clip_norm, &bad.loss_scale};
    const char *const names[] = {"learning_rate", "beta1",     "beta2",     "epsilon",
                                 "weight_decay",  "clip_norm", "loss_scale"};
    const float wrong[] = {NAN, -INFINITY, -1, -FLT_MIN, INFINITY};
    misuse_null(r, tide_step_begin(NULL, &good_step), "pool");
    misuse_null(r, tide_step_begin(r->pool, NULL), "options");
    for (size_t f = 0; f < sizeof fields / sizeof fields[0]; f++) {
        for (size_t w = 0; w < sizeof wrong / sizeof wrong[0]; w++) {
            if (fields[f] == &bad.clip_norm && wrong[w] > 0)
                continue; /* no clipping, but updates wait */
            bad = good_step;
            *fields[f] = wrong[w];
            misuse(r, tide_step_begin(r->pool, &bad), names[f]);
        }
    }
    const tide_step_options forward = {.training = false, .learning_rate = NAN};
    if (r->state != SEALED && r->state != ENDED) {
        out_of_place(r, tide_step_begin(r->pool, &good_step));
        out_of_place(r, tide_step_begin(r->pool, &forward));
    }
}

static void misuse_step_end(rig *r)
{
    misuse_null(r, tide_step_end(NULL), "pool");
    if (r->state != STEP)
        out_of_place(r, tide_step_end(r->pool));
}

static void misuse_op_begin(rig *r)
{
    const bool here = r->state >= SEALED && r->state != FAILED && r->state != TORN;
    misuse_null(r, tide_op_begin(NULL, 0), "pool");
    misuse_here(r, here, tide_op_begin(r->pool, UINT32_MAX), "op 4294967295");
    misuse_here(r, here, tide_op_begin(r->pool, 3), "op 3");
    if (r->state != STEP) {
        out_of_place(r, tide_op_begin(r->pool, 0));
        out_of_place(r, tide_op_begin(r->pool, 1));
    }
}

static void misuse_op_slice(rig *r)
{
    misuse_null(r, tide_op_slice(NULL, 0), "pool");
    misuse_here(r, r->state == OP, tide_op_slice(r->pool, SLICES), "slice 2");
    misuse_here(r, r->state == OP, tide_op_slice(r->pool, UINT32_MAX), "slice 4294967295");
    if (r->state == OP) /* the part is alive until this slice is let go */
        out_of_place(r, tide_op_slice(r->pool, 0));
}

static void misuse_op_end(rig *r)
{
    misuse_null(r, tide_op_end(NULL), "pool");
    if (r->state != OP)
        out_of_place(r, tide_op_end(r->pool));
}

static void misuse_launch(rig *r)
{
    const layer it = {.fail = true};
    const double wrong[] = {NAN, INFINITY, -INFINITY, -1, -DBL_MIN};
    tide_pool *p = r->pool;
    misuse_null(r, tide_launch(NULL, "k", backward_kernel, &it, sizeof it, 0, 0), "pool");
    misuse_null(r, tide_launch(p, NULL, backward_kernel, &it, sizeof it, 0, 0), "name");
    misuse_null(r, tide_launch(p, "k", NULL, &it, sizeof it, 0, 0), "kernel");
    misuse_null(r, tide_launch(p, "k", backward_kernel, NULL, 1, 0, 0), "arguments");
    misuse(r, tide_launch(p, "k", backward_kernel, &it, TIDE_LAUNCH_ARGUMENTS_MAX_BYTES + 1, 0, 0),
           "257 bytes");
    misuse(r, tide_launch(p, "k", backward_kernel, &it, SIZE_MAX, 0, 0), "bytes of arguments");
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        misuse(r, tide_launch(p, "k", backward_kernel, &it, sizeof it, wrong[i], 0), "flops");
        misuse(r, tide_launch(p, "k", backward_kernel, &it, sizeof it, 0, wrong[i]), "flops");
        misuse(r, tide_launch(p, "k", backward_kernel, &it, sizeof it, wrong[i], wrong[i]), "flops");
    }
    if (!is_open(r))
        out_of_place(r, tide_launch(p, "k", backward_kernel, &it, sizeof it, 0, 0));
}

static void misuse_param_data(rig *r)
{
    holds(r, tide_param_data(NULL, 0) == NULL);
    holds(r, tide_param_data(r->pool, UINT32_MAX) == NULL);
    holds(r, tide_param_data(r->pool, 2) == NULL);
    holds(r, (tide_param_data(r->pool, 1) != NULL) == (r->state >= SEALED));
}

static void misuse_checkpoint_data(rig *r)
{
    holds(r, tide_checkpoint_data(NULL, 0, 0) == NULL);
    holds(r, tide_checkpoint_data(r->pool, 1, 0) == NULL);
    holds(r, tide_checkpoint_data(r->pool, UINT32_MAX, 0) == NULL);
    holds(r, tide_checkpoint_data(r->pool, 0, SLICES) == NULL);
    holds(r, tide_checkpoint_data(r->pool, 0, UINT32_MAX) == NULL);
    holds(r, (tide_checkpoint_data(r->pool, 0, 1) != NULL) == (r->state >= SEALED));
}

static void misuse_param_gradient(rig *r)
{
    holds(r, tide_param_gradient(NULL, 0) == NULL);
    holds(r, tide_param_gradient(r->pool, UINT32_MAX) == NULL);
    holds(r, tide_param_gradient(r->pool, 1) == NULL);
}

static void misuse_region(rig *r)
{
    holds(r, tide_region(NULL) == NULL);
    holds(r, (tide_region(r->pool) != NULL) == (r->state >= SEALED));
}

static void misuse_workspace(rig *r)
{
    holds(r, tide_workspace(NULL) == NULL);
    holds(r, (tide_workspace(r->pool) != NULL) == (r->state == OP || r->state == FAILED));
}

static void misuse_write(rig *r)
{
    char bytes[PART * sizeof(float) + 1] = {0}, *at = r->state < SEALED ? bytes : tide_region(r->pool);
    const bool here = r->state >= SEALED && r->state != FAILED && r->state != TORN;
    const size_t own = PART * sizeof(float);
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

static void misuse_read(rig *r)
{
    char bytes[1] = {77}, *at = r->state < SEALED ? bytes : tide_region(r->pool);
    const bool here = r->state >= SEALED && r->state != FAILED && r->state != TORN;
    const size_t own = PART * sizeof(float);
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

static void misuse_result_get(rig *r)
{
    tide_step_result result = {.gradient_norm = 77};
    misuse_null(r, tide_step_result_get(NULL, &result), "pool");
    misuse_null(r, tide_step_result_get(r->pool, NULL), "result");
    if (r->state != ENDED)
        out_of_place(r, tide_step_result_get(r->pool, &result));
    assert_true(result.gradient_norm == 77);
}

static void misuse_drain(rig *r)
{
    misuse_null(r, tide_pool_drain(NULL), "pool");
    if (r->state != SEALED && r->state != STEP && r->state != ENDED)
        out_of_place(r, tide_pool_drain(r->pool));
}

static void misuse_abort(rig *r)
{
    misuse_null(r, tide_step_abort(NULL), "pool");
    if (r->state < SEALED || r->state == TORN)
        out_of_place(r, tide_step_abort(r->pool));
    else if (r->state == SEALED)
        assert_ok(tide_step_abort(r->pool));
}

/* --- 11: what it did --- */

static void misuse_counters_get(rig *r)
{
    tide_pool_counters counters = {.steps = 77};
    misuse_null(r, tide_pool_counters_get(NULL, &counters), "pool");
    misuse_null(r, tide_pool_counters_get(r->pool, NULL), "counters");
    if (r->state < SEALED)
        out_of_place(r, tide_pool_counters_get(r->pool, &counters));
    assert_int_equal(counters.steps, 77);
}

static void misuse_step_counters_take(rig *r)
{
    tide_pool_counters counters;
    uint64_t step;
    holds(r, !tide_pool_step_counters_take(NULL, &step, &counters));
    holds(r, !tide_pool_step_counters_take(r->pool, NULL, &counters));
    holds(r, !tide_pool_step_counters_take(r->pool, &step, NULL));
}

static void misuse_predict(rig *r)
{
    tide_pool_prediction prediction;
    misuse_null(r, tide_pool_predict(NULL, &prediction), "pool");
    misuse_null(r, tide_pool_predict(r->pool, NULL), "prediction");
    if (r->state <= SEALED)
        out_of_place(r, tide_pool_predict(r->pool, &prediction));
    else /* its answer or a status; in any case nothing else changes */
        (void)tide_pool_predict(r->pool, &prediction);
    holds(r, true);
}

/* --- status.h --- */

static void misuse_status_name(rig *r)
{
    holds(r, strcmp(tide_status_name((tide_status)-1), "unknown") == 0);
    holds(r, strcmp(tide_status_name((tide_status)9999), "unknown") == 0);
}

static void misuse_message(rig *r)
{
    holds(r, tide_message() != NULL);
}

static void misuse_fail(rig *r)
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

/* --- all of them --- */

static const struct {
    const char *call;
    void (*wrongly)(rig *r);
} calls[] = {
    {"tide_pool_options_default", misuse_options_default},
    {"tide_pool_create", misuse_create},
    {"tide_pool_destroy", misuse_destroy},
    {"tide_param_register", misuse_param_register},
    {"tide_checkpoint_register", misuse_checkpoint_register},
    {"tide_op_register", misuse_op_register},
    {"tide_param_find", misuse_param_find},
    {"tide_param_elements", misuse_param_elements},
    {"tide_pool_plan_get", misuse_plan_get},
    {"tide_pool_set_budgets", misuse_set_budgets},
    {"tide_pool_seal", misuse_seal},
    {"tide_param_set", misuse_param_set},
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
    {"tide_checkpoint_data", misuse_checkpoint_data},
    {"tide_param_gradient", misuse_param_gradient},
    {"tide_region", misuse_region},
    {"tide_workspace", misuse_workspace},
    {"tide_write", misuse_write},
    {"tide_read", misuse_read},
    {"tide_step_result_get", misuse_result_get},
    {"tide_pool_drain", misuse_drain},
    {"tide_step_abort", misuse_abort},
    {"tide_pool_counters_get", misuse_counters_get},
    {"tide_pool_step_counters_take", misuse_step_counters_take},
    {"tide_pool_predict", misuse_predict},
    {"tide_status_name", misuse_status_name},
    {"tide_message", misuse_message},
    {"tide_fail", misuse_fail},
};

enum { CALLS = sizeof calls / sizeof calls[0] };

static float values_before[SPACES * (LARGE + SMALL)], values_after[SPACES * (LARGE + SMALL)];

static uint64_t end_of_training(rig *r)
{
    finish(r);
    assert_int_equal(tide_update_count(r->pool), STEPS);
    const uint64_t hash = read_values(r, values_after);
    tide_pool_destroy(r->pool);
    return hash;
}

static void misuse_of_any_call_in_any_state_is_refused_and_changes_nothing(void **state)
{
    (void)state;
    rig r = {.values = values_before};
    enter(&r, SEALED);
    const uint64_t expected = end_of_training(&r);
    for (pool_state s = CREATED; s < STATES; s++) {
        for (size_t i = 0; i < CALLS; i++) {
            r = (rig){.values = values_before, .misused = calls[i].call};
            enter(&r, s);
            calls[i].wrongly(&r);
            if (end_of_training(&r) != expected)
                fail_msg("misuse of %s, pool %s: another training", calls[i].call, state_names[s]);
        }
    }
}

/* The names between the last blank or star and the first parenthesis of what TIDE_API declares. */
static size_t check_header(const char *path)
{
    char line[512];
    size_t found = 0;
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    while (fgets(line, sizeof line, file) != NULL) {
        if (strncmp(line, "TIDE_API ", 9) != 0)
            continue;
        char *end = strchr(line, '(');
        assert_non_null(end);
        *end = 0;
        const char *name = end;
        while (name[-1] != ' ' && name[-1] != '*')
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
    assert_int_equal(
        check_header(TIDE_INCLUDE_FOLDER "/pool.h") + check_header(TIDE_INCLUDE_FOLDER "/status.h"), CALLS);
}

/* --- numbers that are large but in range: they do, or they say why not --- */

typedef struct extreme {
    const char *name;
    void (*set)(tide_pool_options *options);
    tide_status seal[2]; /* what may come */
} extreme;

static void device_least(tide_pool_options *options)
{
    options->device_memory_bytes = 1;
}
static void device_most(tide_pool_options *options)
{
    options->device_memory_bytes = UINT64_MAX;
}
static void host_least(tide_pool_options *options)
{
    options->host_memory_bytes = 1;
}
static void host_most(tide_pool_options *options)
{
    options->host_memory_bytes = UINT64_MAX;
}
static void staging_least(tide_pool_options *options)
{
    options->staging_bytes = 1;
}
static void staging_most(tide_pool_options *options)
{
    options->staging_bytes = UINT64_C(1) << 40;
}
static void nonmodel_most(tide_pool_options *options)
{
    options->nonmodel_bytes = UINT64_C(1) << 50;
}
static void threads_most(tide_pool_options *options)
{
    options->threads = TIDE_THREADS_MAX;
}
static void delay_seed_most(tide_pool_options *options)
{
    options->delay_seed = UINT64_MAX;
}
static void chunk_most(tide_pool_options *options)
{
    options->chunk_bytes = UINT64_C(1) << 30;
    options->device = "null";
}
static void null_slowest(tide_pool_options *options)
{
    options->device = "null";
    options->link_bytes_per_second = DBL_MIN;
    options->machine = (tide_machine){DBL_MIN, DBL_MIN, DBL_MIN, UINT64_MAX, UINT64_MAX, DBL_MIN};
}
static void null_fastest(tide_pool_options *options)
{
    options->device = "null";
    options->link_bytes_per_second = DBL_MAX;
    options->machine = (tide_machine){DBL_MAX, DBL_MAX, DBL_MAX, 0, 0, DBL_MAX};
}

static const extreme extremes[] = {
    {"a device budget of 1", device_least, {TIDE_ERROR_BUDGET, TIDE_ERROR_BUDGET}},
    {"the largest device budget", device_most, {TIDE_OK, TIDE_OK}},
    {"a host budget of 1", host_least, {TIDE_ERROR_BUDGET, TIDE_ERROR_BUDGET}},
    {"the largest host budget", host_most, {TIDE_OK, TIDE_OK}},
    {"the least staging", staging_least, {TIDE_OK, TIDE_OK}},
    {"the largest staging", staging_most, {TIDE_ERROR_NO_MEMORY, TIDE_ERROR_BUDGET}},
    {"the largest nonmodel_bytes", nonmodel_most, {TIDE_ERROR_NO_MEMORY, TIDE_ERROR_BUDGET}},
    {"the most threads", threads_most, {TIDE_OK, TIDE_OK}},
    {"the largest seed", delay_seed_most, {TIDE_OK, TIDE_OK}},
    {"the largest chunks", chunk_most, {TIDE_OK, TIDE_OK}},
    {"the slowest machine", null_slowest, {TIDE_OK, TIDE_OK}},
    {"the fastest machine", null_fastest, {TIDE_OK, TIDE_OK}},
};

/* Larger steps of kernels than any machine makes, too. */
static void run_extreme(rig *r)
{
    const layer none = {.fail = true};
    tide_step_result result;
    for (int step = 0; step < 3; step++) {
        assert_ok(tide_step_begin(r->pool, &good_step));
        assert_ok(tide_op_begin(r->pool, r->forward));
        for (int i = 0; i < 3 && step == 2; i++)
            assert_ok(tide_launch(r->pool, "none", forward_kernel, &none, sizeof none, DBL_MAX, DBL_MAX));
        assert_ok(tide_op_end(r->pool));
        assert_ok(tide_step_end(r->pool));
        assert_ok(tide_step_result_get(r->pool, &result));
    }
    assert_ok(tide_pool_drain(r->pool));
}

static void numbers_at_the_ends_of_their_ranges_do_or_are_refused_at_seal(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof extremes / sizeof extremes[0]; i++) {
        tide_pool_options options = options_of();
        extremes[i].set(&options);
        rig r = {.state = SEALED};
        assert_ok(tide_pool_create(&options, &r.pool));
        register_model(&r);
        const tide_status status = tide_pool_seal(r.pool);
        if (status != extremes[i].seal[0] && status != extremes[i].seal[1])
            fail_msg("%s: %s: %s", extremes[i].name, tide_status_name(status), tide_message());
        if (status == TIDE_OK && strcmp(options.device, "null") == 0)
            run_extreme(&r);
        tide_pool_destroy(r.pool);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_call_of_the_headers_is_misused),
        cmocka_unit_test(misuse_of_any_call_in_any_state_is_refused_and_changes_nothing),
        cmocka_unit_test(numbers_at_the_ends_of_their_ranges_do_or_are_refused_at_seal),
    };
    return cmocka_run_group_tests_name("pool_misuse", tests, NULL, NULL);
}
