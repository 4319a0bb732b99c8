#include "tests/support/pool_fixture.h"

#include <math.h>

#include "base/fp16.h"

#include <string.h>

typedef struct layer_args {
    float *state;       /* [FIXTURE_STATE] of the micro-batch, in the region */
    float *saved;       /* [FIXTURE_STATE], a part of the layer's activation */
    const void *values; /* of the param, or NULL */
    float *gradient;    /* the param's accumulator, or NULL */
    uint64_t elements;
    uint64_t stride; /* of backward, in elements */
    tide_dtype dtype;
    float loss_scale; /* factor of the gradients */
    bool fail;
} layer_args;

/* To compute less, a forward kernel reads only every FORWARD_STRIDE-th element, and the backward kernel of a
 * second slice adds only to every SECOND_STRIDE-th. */
enum { FORWARD_STRIDE = 7, SECOND_STRIDE = 4 };

static float value(const layer_args *a, uint64_t i)
{
    if (a->dtype == TIDE_DTYPE_FP32)
        return ((const float *)a->values)[i];
    return a->dtype == TIDE_DTYPE_BF16 ? tide_bf16_to_float(((const tide_bf16 *)a->values)[i])
                                       : tide_fp16_to_float(((const tide_fp16 *)a->values)[i]);
}

static tide_status forward(void *stream, const void *arguments)
{
    const layer_args *a = arguments;
    (void)stream;
    if (a->saved != NULL)
        memcpy(a->saved, a->state, FIXTURE_STATE * sizeof(float));
    for (uint64_t i = 0; i < a->elements; i += FORWARD_STRIDE)
        a->state[i % FIXTURE_STATE] = 0.5F * a->state[i % FIXTURE_STATE] + value(a, i);
    return TIDE_OK;
}

static tide_status backward(void *stream, const void *arguments)
{
    const layer_args *a = arguments;
    (void)stream;
    if (a->fail)
        return tide_fail(TIDE_ERROR_DEVICE, "fixture backward failed on purpose");
    const float *from = a->saved == NULL ? a->state : a->saved;
    for (uint64_t i = 0; i < a->elements; i += a->stride)
        a->gradient[i] += a->loss_scale * (0.1F * from[i % FIXTURE_STATE] + 0.01F * value(a, i));
    return TIDE_OK;
}

pool_fixture_options pool_fixture_options_default(void)
{
    pool_fixture_options options = {.dtype = TIDE_DTYPE_BF16, .device_share = 1};
    tide_pool_options_default(&options.pool);
    options.pool.chunk_bytes = 256 * 1024;
    options.pool.threads = 1;
    options.pool.checks.hazard_check = true;
    options.pool.checks.guard = true;
    return options;
}

static tide_status add_layers(pool_fixture *fixture)
{
    static const char *const names[FIXTURE_LAYERS] = {"w0", "w1", "w2", "w3", "w4", "w5"};
    static const char *const saves[FIXTURE_LAYERS] = {"s0", "s1", "s2", "s3", "s4", "s5"};
    /* One param is larger than a chunk, one has a single element, the others cross chunk borders. */
    static const uint64_t elements[FIXTURE_LAYERS] = {90000, 200000, 1, 70001, 130000, 50000};
    tide_status status = TIDE_OK;
    for (int l = 0; l < FIXTURE_LAYERS && status == TIDE_OK; l++) {
        const tide_param_class of_class = {.decay = l % 2 == 0, .state = fixture->state};
        fixture->elements[l] = elements[l];
        status = tide_description_add_param(fixture->description, names[l], &elements[l], 1, &of_class,
                                            &fixture->params[l]);
        if (status == TIDE_OK)
            status = tide_description_add_activation(fixture->description, saves[l], FIXTURE_SLICES,
                                                     FIXTURE_STATE * sizeof(float), &fixture->saved[l]);
    }
    return status;
}

static tide_status add_ops(pool_fixture *fixture)
{
    static const char *const forwards[FIXTURE_LAYERS] = {"f0", "f1", "f2", "f3", "f4", "f5"};
    static const char *const backwards[FIXTURE_LAYERS] = {"b0", "b1", "b2", "b3", "b4", "b5"};
    tide_status status = TIDE_OK;
    for (int l = 0; l < FIXTURE_LAYERS && status == TIDE_OK; l++) {
        const tide_use param = {fixture->params[l], TIDE_ACCESS_READ},
                       saved = {fixture->saved[l], TIDE_ACCESS_WRITE};
        const tide_op_description op = {.name = forwards[l],
                                        .pass = TIDE_PASS_FORWARD,
                                        .params = &param,
                                        .param_count = 1,
                                        .activations = &saved,
                                        .activation_count = 1,
                                        .slices = FIXTURE_SLICES};
        status = tide_description_add_op(fixture->description, &op, &fixture->forward[l]);
    }
    const tide_use tied = {fixture->params[0], TIDE_ACCESS_READ | TIDE_ACCESS_GRAD};
    const tide_op_description head = {
        .name = "head", .pass = TIDE_PASS_BOTH, .params = &tied, .param_count = 1, .workspace_bytes = 1000};
    if (status == TIDE_OK)
        status = tide_description_add_op(fixture->description, &head, &fixture->head);
    for (int l = FIXTURE_LAYERS - 1; l >= 0 && status == TIDE_OK; l--) {
        const tide_use param = {fixture->params[l], TIDE_ACCESS_READ | TIDE_ACCESS_GRAD};
        const tide_use saved = {fixture->saved[l], TIDE_ACCESS_READ | TIDE_ACCESS_LAST};
        const tide_op_description op = {.name = backwards[l],
                                        .pass = TIDE_PASS_BACKWARD,
                                        .params = &param,
                                        .param_count = 1,
                                        .activations = &saved,
                                        .activation_count = 1,
                                        .slices = FIXTURE_SLICES};
        status = tide_description_add_op(fixture->description, &op, &fixture->backward[l]);
    }
    return status;
}

static tide_status set_values(pool_fixture *fixture)
{
    float values[4096];
    for (int l = 0; l < FIXTURE_LAYERS; l++) {
        for (uint64_t first = 0; first < fixture->elements[l]; first += 4096) {
            const uint64_t count = fixture->elements[l] - first < 4096 ? fixture->elements[l] - first : 4096;
            for (uint64_t i = 0; i < count; i++)
                values[i] = (float)((first + i) * 7919 % 1000) * 1e-3F - 0.5F + (float)l * 0.01F;
            const tide_status status =
                tide_param_set(fixture->pool, fixture->params[l], TIDE_VALUE_MASTER, first, count, values);
            if (status != TIDE_OK)
                return status;
        }
    }
    return TIDE_OK;
}

static tide_status describe(pool_fixture *fixture)
{
    tide_status status = tide_description_create(fixture->dtype, FIXTURE_REGION_BYTES, &fixture->description);
    if (status == TIDE_OK)
        status = add_layers(fixture);
    return status == TIDE_OK ? add_ops(fixture) : status;
}

static tide_status choose_budgets(const pool_fixture *fixture, const pool_fixture_options *options,
                                  tide_pool_options *pool)
{
    tide_pool_plan plan;
    tide_status status = tide_pool_plan_make(pool, fixture->description, &plan);
    if (status != TIDE_OK)
        return status;
    const uint64_t chunks = (plan.full_device_bytes - plan.least_device_bytes) / plan.chunk_bytes;
    pool->device_memory_bytes =
        plan.least_device_bytes + (uint64_t)((double)chunks * options->device_share) * plan.chunk_bytes;
    pool->host_memory_bytes = 0;
    if (options->least_host)
        status = tide_pool_plan_make(pool, fixture->description, &plan);
    if (options->least_host && status == TIDE_OK)
        pool->host_memory_bytes = plan.least_host_bytes;
    return status;
}

tide_status pool_fixture_create(const pool_fixture_options *options, pool_fixture *fixture)
{
    tide_pool_options pool = options->pool;
    *fixture =
        (pool_fixture){.dtype = options->dtype, .state = options->state, .finishes = options->finishes};
    tide_status status = describe(fixture);
    if (status == TIDE_OK && pool.device_memory_bytes == 0 &&
        (options->device_share < 1 || options->least_host))
        status = choose_budgets(fixture, options, &pool);
    if (status == TIDE_OK)
        status = tide_pool_create(&pool, fixture->description, &fixture->pool);
    if (status == TIDE_OK && strcmp(pool.device, "null") != 0)
        status = set_values(fixture);
    if (status != TIDE_OK)
        pool_fixture_destroy(fixture);
    return status;
}

void pool_fixture_destroy(pool_fixture *fixture)
{
    tide_pool_destroy(fixture->pool);
    tide_description_destroy(fixture->description);
    fixture->pool = NULL;
    fixture->description = NULL;
}

tide_step_options pool_fixture_step_options(float clip_norm)
{
    return (tide_step_options){.training = true,
                               .learning_rate = 1e-2F,
                               .beta1 = 0.9F,
                               .beta2 = 0.95F,
                               .epsilon = 1e-8F,
                               .weight_decay = 0.1F,
                               .clip_norm = clip_norm};
}

static float loss_scale(const pool_fixture *fixture)
{
    return fixture->loss_scale > 0 ? fixture->loss_scale : 1;
}

static float *state_of(const pool_fixture *fixture, uint32_t slice)
{
    return (float *)tide_region(fixture->pool) + (size_t)slice * FIXTURE_STATE;
}

static tide_status run_layer(pool_fixture *fixture, tide_op op, int l, bool is_backward, bool fail)
{
    tide_status status = tide_op_begin(fixture->pool, op);
    for (uint32_t m = 0; m < FIXTURE_SLICES && status == TIDE_OK; m++) {
        status = tide_op_slice(fixture->pool, m);
        const layer_args args = {.state = state_of(fixture, m),
                                 .saved = tide_activation_data(fixture->pool, fixture->saved[l], m),
                                 .values = tide_param_data(fixture->pool, fixture->params[l]),
                                 .gradient = tide_param_gradient(fixture->pool, fixture->params[l]),
                                 .elements = fixture->elements[l],
                                 .stride = m == 0 ? 1 : SECOND_STRIDE,
                                 .dtype = fixture->dtype,
                                 .loss_scale = loss_scale(fixture),
                                 .fail = fail};
        if (status == TIDE_OK)
            status = tide_launch(fixture->pool, is_backward ? "fixture backward" : "fixture forward",
                                 is_backward ? backward : forward, &args, sizeof args, 1e6, 1e6);
    }
    if (status == TIDE_OK && is_backward && fixture->finishes &&
        fixture->elements[l] > TIDE_FINISHED_ALIGNMENT)
        status = tide_gradient_finish(fixture->pool, fixture->params[l], 0, TIDE_FINISHED_ALIGNMENT);
    return status == TIDE_OK ? tide_op_end(fixture->pool) : status;
}

static tide_status run_head(pool_fixture *fixture)
{
    tide_status status = tide_op_begin(fixture->pool, fixture->head);
    for (uint32_t m = 0; m < FIXTURE_SLICES && status == TIDE_OK; m++) {
        const layer_args args = {.state = state_of(fixture, m),
                                 .values = tide_param_data(fixture->pool, fixture->params[0]),
                                 .gradient = tide_param_gradient(fixture->pool, fixture->params[0]),
                                 .elements = fixture->elements[0],
                                 .stride = m == 0 ? 1 : SECOND_STRIDE,
                                 .dtype = fixture->dtype,
                                 .loss_scale = loss_scale(fixture)};
        status = tide_launch(fixture->pool, "fixture head", backward, &args, sizeof args, 1e6, 1e6);
    }
    return status == TIDE_OK ? tide_op_end(fixture->pool) : status;
}

static tide_status write_state(pool_fixture *fixture)
{
    float state[FIXTURE_SLICES * FIXTURE_STATE];
    for (int i = 0; i < FIXTURE_SLICES * FIXTURE_STATE; i++)
        state[i] = (float)(i % 97) * 0.01F;
    return tide_write(fixture->pool, tide_region(fixture->pool), state, sizeof state);
}

static tide_status run_forward(pool_fixture *fixture)
{
    tide_status status = write_state(fixture);
    for (int l = 0; l < FIXTURE_LAYERS && status == TIDE_OK; l++)
        status = run_layer(fixture, fixture->forward[l], l, false, false);
    return status;
}

static tide_status run_backward(pool_fixture *fixture, bool fail_kernel)
{
    tide_status status = run_head(fixture);
    for (int l = FIXTURE_LAYERS - 1; l >= 0 && status == TIDE_OK; l--)
        status = run_layer(fixture, fixture->backward[l], l, true, fail_kernel && l == 2);
    return status;
}

tide_status pool_fixture_ops(pool_fixture *fixture, bool fail_kernel)
{
    const tide_status status = run_forward(fixture);
    return status == TIDE_OK ? run_backward(fixture, fail_kernel) : status;
}

tide_status pool_fixture_step(pool_fixture *fixture, float clip_norm, bool fail_kernel)
{
    tide_step_options options = pool_fixture_step_options(clip_norm);
    options.loss_scale = fixture->loss_scale;
    tide_status status = tide_step_begin(fixture->pool, &options);
    if (status == TIDE_OK)
        status = pool_fixture_ops(fixture, fail_kernel);
    return status == TIDE_OK ? tide_step_end(fixture->pool) : status;
}

tide_status pool_fixture_step_and_settle(pool_fixture *fixture, float clip_norm)
{
    tide_step_result result;
    tide_status status = pool_fixture_step(fixture, clip_norm, false);
    if (status == TIDE_OK)
        status = tide_step_result_get(fixture->pool, &result);
    return status == TIDE_OK ? tide_pool_drain(fixture->pool) : status;
}

tide_status pool_fixture_step_not_finite(pool_fixture *fixture)
{
    const tide_step_options options = pool_fixture_step_options(1);
    const float not_finite = INFINITY;
    tide_status status = tide_step_begin(fixture->pool, &options);
    if (status == TIDE_OK)
        status = run_forward(fixture);
    if (status == TIDE_OK)
        status = tide_write(fixture->pool, tide_region(fixture->pool), &not_finite, sizeof not_finite);
    if (status == TIDE_OK)
        status = run_backward(fixture, false);
    return status == TIDE_OK ? tide_step_end(fixture->pool) : status;
}

tide_status pool_fixture_evaluate(pool_fixture *fixture)
{
    const tide_step_options options = {.training = false};
    tide_status status = tide_step_begin(fixture->pool, &options);
    if (status == TIDE_OK)
        status = run_forward(fixture);
    return status == TIDE_OK ? tide_step_end(fixture->pool) : status;
}

tide_status pool_fixture_hash(pool_fixture *fixture, tide_value kind, uint64_t *hash)
{
    float values[4096];
    uint64_t sum = UINT64_C(14695981039346656037);
    for (int l = 0; l < FIXTURE_LAYERS; l++) {
        for (uint64_t first = 0; first < fixture->elements[l]; first += 4096) {
            const uint64_t count = fixture->elements[l] - first < 4096 ? fixture->elements[l] - first : 4096;
            const tide_status status =
                tide_param_get(fixture->pool, fixture->params[l], kind, first, count, values);
            if (status != TIDE_OK)
                return status;
            for (uint64_t i = 0; i < count; i++) {
                uint32_t bits;
                memcpy(&bits, &values[i], sizeof bits);
                sum = (sum ^ bits) * UINT64_C(1099511628211);
            }
        }
    }
    *hash = sum;
    return TIDE_OK;
}
