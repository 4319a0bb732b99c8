#include "tests/model/family_fixture.h"

#include "tests/support/assert_ok.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static tide_status catch_gradients(void *context, const tide_step_options *step, uint64_t update,
                                   float gradient_scale, const tide_update_segment *segments, uint32_t count)
{
    family_fixture *r = context;
    (void)update;
    if (gradient_scale * step->loss_scale != 1)
        return tide_fail(TIDE_ERROR_ARGUMENT, "gradients scaled by %g", gradient_scale);
    for (uint32_t i = 0; i < count; i++) {
        const tide_update_segment *segment = &segments[i];
        if (segment->zero_gradient)
            return tide_fail(TIDE_ERROR_ARGUMENT, "param %u has no gradient", segment->param);
        const size_t bytes = segment->elements * sizeof(float);
        memcpy(r->gradients[segment->param] + segment->first_element, segment->values, bytes);
        memcpy(segment->values, segment->state[0], bytes);
        r->caught[segment->param] += segment->elements;
    }
    return TIDE_OK;
}

static void make_values(family_fixture *r)
{
    const tide_model_config *config = &r->of->config;
    for (size_t i = 0; i < r->of->tensors; i++) {
        tide_model_tensor tensor;
        tide_model_tensor_describe(config, i, &tensor);
        r->values[i] = malloc(tensor.elements * sizeof(float));
        assert_non_null(r->values[i]);
        family_case_values(r->of, i, r->values[i]);
        assert_ok(tide_decoder_values_set(r->model, i, TIDE_VALUE_MASTER, 0, tensor.elements, r->values[i]));
    }
    for (size_t i = 0; i < tide_model_param_count(config); i++) {
        const tide_param handle = tide_decoder_param_handle(r->model, i);
        r->gradients[handle] = malloc(
            tide_description_param_elements(tide_decoder_description(r->model), handle) * sizeof(float));
        assert_non_null(r->gradients[handle]);
    }
    r->tokens = malloc((FAMILY_SEQUENCES * r->of->seq_len + 1) * sizeof *r->tokens);
    assert_non_null(r->tokens);
    family_case_tokens(r->of, r->tokens);
    r->batch = (tide_decoder_batch){
        .inputs = r->tokens, .targets = r->tokens + 1, .learned = FAMILY_SEQUENCES * r->of->seq_len};
}

void family_fixture_open(family_fixture *r, const family_case *of, bool recompute,
                         uint32_t micro_batch_sequences, uint32_t sum_groups)
{
    *r = (family_fixture){.of = of};
    bool flags[1024];
    for (uint32_t i = 0; i < of->config.layers; i++)
        flags[i] = recompute;
    const tide_decoder_options model = {.config = of->config,
                                        .dtype = TIDE_DTYPE_FP32,
                                        .seq_len = of->seq_len,
                                        .micro_batch_sequences = micro_batch_sequences,
                                        .micro_batches = FAMILY_SEQUENCES / micro_batch_sequences,
                                        .sum_groups = sum_groups,
                                        .recompute = flags,
                                        .kernels = tide_kernels_cpu()};
    tide_pool_options pool;
    tide_pool_options_default(&pool);
    pool.chunk_bytes = 256 * 1024;
    pool.threads = 1;
    pool.sum_groups = sum_groups;
    pool.update = catch_gradients;
    pool.update_context = r;
    pool.checks.hazard_check = true;
    pool.checks.guard = true;
    assert_ok(tide_decoder_create(&model, &r->model));
    assert_ok(tide_pool_create(&pool, tide_decoder_description(r->model), &r->pool));
    tide_decoder_attach(r->model, r->pool);
    make_values(r);
}

void family_fixture_close(family_fixture *r)
{
    tide_pool_destroy(r->pool);
    tide_decoder_destroy(r->model);
    free(r->tokens);
    for (size_t i = 0; i < FAMILY_TENSORS_MAX; i++) {
        free(r->values[i]);
        free(r->gradients[i]);
    }
}

/* The pool checks these values, but the update callback does not use them. */
static const tide_step_options training = {.training = true,
                                           .learning_rate = 1e-3f,
                                           .beta1 = 0.9f,
                                           .beta2 = 0.95f,
                                           .epsilon = 1e-8f,
                                           .loss_scale = 1};

double family_fixture_step(family_fixture *r)
{
    double loss = NAN;
    memset(r->caught, 0, sizeof r->caught);
    assert_ok(tide_step_begin(r->pool, &training));
    assert_ok(tide_decoder_upload(r->model, &r->batch));
    assert_ok(tide_decoder_train(r->model, training.loss_scale));
    assert_ok(tide_step_end(r->pool));
    assert_ok(tide_decoder_loss(r->model, &loss));
    assert_ok(tide_pool_drain(r->pool));
    for (size_t i = 0; i < tide_model_param_count(&r->of->config); i++) {
        const tide_param handle = tide_decoder_param_handle(r->model, i);
        assert_int_equal(r->caught[handle],
                         tide_description_param_elements(tide_decoder_description(r->model), handle));
    }
    return loss;
}

double family_fixture_evaluate(family_fixture *r)
{
    double loss = NAN;
    assert_ok(tide_step_begin(r->pool, &(tide_step_options){.training = false}));
    assert_ok(tide_decoder_upload(r->model, &r->batch));
    assert_ok(tide_decoder_evaluate(r->model));
    assert_ok(tide_decoder_loss(r->model, &loss));
    assert_ok(tide_step_end(r->pool));
    return loss;
}

const float *family_fixture_gradient(const family_fixture *r, size_t tensor)
{
    tide_model_tensor about;
    tide_model_tensor_describe(&r->of->config, tensor, &about);
    return r->gradients[tide_decoder_param_handle(r->model, about.param)] + about.first;
}

void family_fixture_set(family_fixture *r, size_t tensor, uint64_t element, float value)
{
    assert_ok(tide_decoder_values_set(r->model, tensor, TIDE_VALUE_MASTER, element, 1, &value));
}
