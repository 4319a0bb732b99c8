#include "tests/support/misuse_fixture.h"

#include <math.h>

#include "tests/support/assert_ok.h"

enum { KINDS = 4 };

const char *fixture_state_name(fixture_state state)
{
    static const char *const names[FIXTURE_STATES] = {"created",      "in a step", "in an op",
                                                      "after a step", "failed",    "poisoned"};
    return names[state];
}

static const uint64_t elements[2] = {FIXTURE_LARGE, FIXTURE_SMALL};

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
    for (int i = 0; i < FIXTURE_PART; i++)
        it->saved[i] = it->input[i] + it->values[i];
    return TIDE_OK;
}

static tide_status backward_kernel(void *stream, const void *arguments)
{
    const layer *it = arguments;
    (void)stream;
    if (it->fail)
        return tide_fail(TIDE_ERROR_DEVICE, "on purpose");
    for (int i = 0; i < FIXTURE_LARGE; i += 7)
        it->gradient[i] += 0.1F * it->saved[i % FIXTURE_PART] + 0.01F * it->values[i];
    return TIDE_OK;
}

tide_pool_options fixture_options(void)
{
    tide_pool_options options;
    tide_pool_options_default(&options);
    options.chunk_bytes = 256 * 1024;
    options.threads = 1;
    options.checks.hazard_check = options.checks.guard = true;
    return options;
}

tide_step_options fixture_step_options(void)
{
    return (tide_step_options){.training = true,
                               .learning_rate = 1e-2F,
                               .beta1 = 0.9F,
                               .beta2 = 0.95F,
                               .epsilon = 1e-8F,
                               .weight_decay = 0.1F,
                               .clip_norm = 1};
}

tide_description *fixture_describe(fixture *r)
{
    tide_description *d;
    const tide_pass passes[3] = {TIDE_PASS_FORWARD, TIDE_PASS_BOTH, TIDE_PASS_BACKWARD};
    const uint32_t grad = TIDE_ACCESS_READ | TIDE_ACCESS_GRAD;
    const uint32_t access[3] = {TIDE_ACCESS_READ, grad, grad};
    const uint32_t parts[3] = {TIDE_ACCESS_WRITE, TIDE_ACCESS_READ, TIDE_ACCESS_READ | TIDE_ACCESS_LAST};
    tide_op *ops[3] = {&r->forward, &r->head, &r->backward};
    assert_ok(tide_description_create(TIDE_DTYPE_FP32, FIXTURE_PART * sizeof(float), &d));
    assert_ok(tide_description_add_param(d, "large", &elements[0], 1, &(tide_param_class){.decay = true},
                                         &r->params[0]));
    assert_ok(tide_description_add_param(d, "small", &elements[1], 1, NULL, &r->params[1]));
    assert_ok(
        tide_description_add_activation(d, "saved", FIXTURE_SLICES, FIXTURE_PART * sizeof(float), &r->saved));
    for (int i = 0; i < 3; i++) {
        const tide_use uses[2] = {{r->params[0], access[i]}, {r->params[1], access[i]}},
                       saved = {r->saved, parts[i]};
        const tide_op_description op = {.name = "op",
                                        .pass = passes[i],
                                        .params = uses,
                                        .param_count = i == 1 ? 2 : 1,
                                        .activations = &saved,
                                        .activation_count = 1,
                                        .slices = FIXTURE_SLICES,
                                        .workspace_bytes = 100};
        assert_ok(tide_description_add_op(d, &op, ops[i]));
    }
    return d;
}

static void create_pool(fixture *r)
{
    tide_pool_plan plan;
    static float values[FIXTURE_LARGE];
    tide_pool_options options = fixture_options();
    r->description = fixture_describe(r);
    assert_ok(tide_pool_plan_make(&options, r->description, &plan));
    options.device_memory_bytes = plan.least_device_bytes;
    assert_ok(tide_pool_create(&options, r->description, &r->pool));
    for (uint64_t i = 0; i < FIXTURE_LARGE; i++)
        values[i] = (float)(i * 7919 % 1000) * 1e-3F - 0.5F;
    for (int p = 0; p < 2; p++)
        assert_ok(tide_param_set(r->pool, r->params[p], TIDE_VALUE_MASTER, 0, elements[p], values));
}

static void run_slice(fixture *r, tide_op op, uint32_t slice, bool fail)
{
    const layer it = {.input = tide_region(r->pool),
                      .saved = tide_activation_data(r->pool, r->saved, slice),
                      .values = tide_param_data(r->pool, r->params[0]),
                      .gradient = tide_param_gradient(r->pool, r->params[0]),
                      .fail = fail};
    assert_ok(tide_op_slice(r->pool, slice));
    assert_ok(tide_launch(r->pool, "kernel", op == r->forward ? forward_kernel : backward_kernel, &it,
                          sizeof it, 1, 1));
}

static void run_op(fixture *r, tide_op op)
{
    assert_ok(tide_op_begin(r->pool, op));
    for (uint32_t m = 0; m < FIXTURE_SLICES; m++)
        run_slice(r, op, m, false);
    assert_ok(tide_op_end(r->pool));
}

/* Runs a step up to the first slice of its last op. */
static void begin_step(fixture *r, float clip_norm, float input)
{
    tide_step_options step = fixture_step_options();
    float state[FIXTURE_PART];
    step.clip_norm = clip_norm;
    for (int i = 0; i < FIXTURE_PART; i++)
        state[i] = input;
    assert_ok(tide_step_begin(r->pool, &step));
    if (r->state == FIXTURE_STEP)
        return;
    assert_ok(tide_write(r->pool, tide_region(r->pool), state, sizeof state));
    run_op(r, r->forward);
    run_op(r, r->head);
    assert_ok(tide_op_begin(r->pool, r->backward));
    run_slice(r, r->backward, 0, r->state == FIXTURE_FAILED);
}

static void end_step(fixture *r)
{
    run_slice(r, r->backward, 1, false);
    assert_ok(tide_op_end(r->pool));
    assert_ok(tide_step_end(r->pool));
}

static void run_steps(fixture *r, uint64_t until)
{
    r->state = FIXTURE_CREATED;
    tide_step_result result;
    while (tide_update_count(r->pool) < until) {
        begin_step(r, 1, 0.5F);
        end_step(r);
        assert_ok(tide_step_result_get(r->pool, &result));
    }
    assert_ok(tide_pool_drain(r->pool));
}

static const tide_value kinds[KINDS] = {TIDE_VALUE_MASTER, TIDE_VALUE_MOMENTUM, TIDE_VALUE_VARIANCE,
                                        TIDE_VALUE_PARAM};

/* Reads the values kind after kind; of each kind those of the first param, then those of the second. */
void fixture_read_values(const fixture *r, float values[FIXTURE_VALUES])
{
    for (int i = 0; i < KINDS * 2; i++)
        assert_ok(
            tide_param_get(r->pool, r->params[i % 2], kinds[i / 2], 0, elements[i % 2],
                           values + (i / 2) * (FIXTURE_LARGE + FIXTURE_SMALL) + (i % 2) * FIXTURE_LARGE));
}

static void write_values(fixture *r, const float *values)
{
    for (int i = 0; i < (KINDS - 1) * 2; i++)
        assert_ok(
            tide_param_set(r->pool, r->params[i % 2], kinds[i / 2], 0, elements[i % 2],
                           values + (i / 2) * (FIXTURE_LARGE + FIXTURE_SMALL) + (i % 2) * FIXTURE_LARGE));
}

/* --- entering a state, and continuing from it to the end of the training --- */

static void poison(fixture *r)
{
    tide_step_result result;
    begin_step(r, 0, INFINITY);
    end_step(r);
    assert_int_equal(tide_step_result_get(r->pool, &result), TIDE_ERROR_NONFINITE);
    assert_int_equal(tide_step_abort(r->pool), TIDE_ERROR_STATE);
}

void fixture_enter(fixture *r, fixture_state state)
{
    float value;
    create_pool(r);
    if (state >= FIXTURE_STEP)
        run_steps(r, 1);
    r->state = state;
    fixture_read_values(r, r->values);
    if (state == FIXTURE_POISONED)
        poison(r);
    else if (state >= FIXTURE_STEP)
        begin_step(r, 1, 0.5F);
    if (state == FIXTURE_ENDED)
        end_step(r);
    if (state == FIXTURE_FAILED)
        assert_int_equal(tide_read(r->pool, &value, tide_region(r->pool), 4), TIDE_ERROR_DEVICE);
    r->updates = tide_update_count(r->pool);
}

static void finish(fixture *r)
{
    const fixture_state state = r->state;
    if (state == FIXTURE_STEP)
        assert_ok(tide_step_abort(r->pool));
    if (state == FIXTURE_OP)
        end_step(r);
    if (state == FIXTURE_FAILED)
        assert_ok(tide_step_abort(r->pool));
    if (state == FIXTURE_POISONED) {
        write_values(r, r->values);
        assert_ok(tide_update_count_set(r->pool, 1));
    }
    r->state = FIXTURE_CREATED;
    if (state == FIXTURE_OP || state == FIXTURE_ENDED)
        assert_ok(tide_pool_drain(r->pool));
    run_steps(r, FIXTURE_STEPS);
}

void fixture_finish(fixture *r, float values[FIXTURE_VALUES])
{
    finish(r);
    assert_int_equal(tide_update_count(r->pool), FIXTURE_STEPS);
    fixture_read_values(r, values);
    tide_pool_destroy(r->pool);
    tide_description_destroy(r->description);
}
