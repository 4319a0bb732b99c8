#include "tests/model/gpt2_fixture.h"

#include "base/bf16.h"
#include "base/fp16.h"
#include "src/pool/device_factory.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

void ok(tide_status status)
{
    if (status != TIDE_OK)
        fail_msg("%s: %s", tide_status_name(status), tide_message());
}

static void catch_segment(gpt2_fixture *r, const tide_update_segment *segment)
{
    float *gradient = r->gradients[segment->param] + segment->first_element;
    const float *master = segment->state[0];
    r->caught[segment->param] += segment->elements;
    for (uint64_t i = 0; i < segment->elements; i++) {
        if (r->dtype == TIDE_DTYPE_FP32) {
            gradient[i] = ((const float *)segment->values)[i];
            ((float *)segment->values)[i] = master[i];
        } else if (r->dtype == TIDE_DTYPE_FP16) {
            gradient[i] =
                tide_fp16_to_float(((const tide_fp16 *)segment->values)[i]) / GPT2_FIXTURE_FP16_LOSS_SCALE;
            ((tide_fp16 *)segment->values)[i] = tide_fp16_from_float(master[i]);
        } else {
            gradient[i] = tide_bf16_to_float(((const tide_bf16 *)segment->values)[i]);
            ((tide_bf16 *)segment->values)[i] = tide_bf16_from_float(master[i]);
        }
    }
}

static tide_status catch_gradients(void *context, const tide_step_options *step, uint64_t update,
                                   float gradient_scale, const tide_update_segment *segments, uint32_t count)
{
    (void)update;
    if (((const gpt2_fixture *)context)->update_fails)
        return tide_fail(TIDE_ERROR_INTERNAL, "an update that is to fail");
    if (gradient_scale * step->loss_scale != 1)
        return tide_fail(TIDE_ERROR_ARGUMENT, "gradients scaled by %g", gradient_scale);
    for (uint32_t i = 0; i < count; i++) {
        if (segments[i].zero_gradient)
            return tide_fail(TIDE_ERROR_ARGUMENT, "param %u has no gradient", segments[i].param);
        catch_segment(context, &segments[i]);
    }
    return TIDE_OK;
}

void gpt2_fixture_set_values(gpt2_fixture *r)
{
    static const float zeros[64 * 256]; /* as many as the largest param has */
    for (size_t i = 0; i < GOLDEN_PARAMS; i++) {
        assert_true(r->elements[i] <= sizeof zeros / sizeof zeros[0]);
        ok(tide_decoder_values_set(r->model, i, TIDE_VALUE_MASTER, 0, r->elements[i], r->values[i]));
        ok(tide_decoder_values_set(r->model, i, TIDE_VALUE_MOMENTUM, 0, r->elements[i], zeros));
        ok(tide_decoder_values_set(r->model, i, TIDE_VALUE_VARIANCE, 0, r->elements[i], zeros));
    }
}

static void make_values(gpt2_fixture *r)
{
    for (size_t i = 0; i < GOLDEN_PARAMS; i++) {
        tide_model_param param;
        tide_model_param_describe(&r->config, i, &param);
        r->elements[i] = param.elements;
        r->memory_elements[i] = tide_description_param_elements(tide_decoder_description(r->model),
                                                                tide_decoder_param_handle(r->model, i));
        r->values[i] = malloc(r->elements[i] * sizeof(float));
        r->gradients[i] = malloc(r->memory_elements[i] * sizeof(float));
        assert_true(r->values[i] && r->gradients[i]);
        golden_param_values(&r->config, i, r->values[i]);
    }
}

static void make_tokens(gpt2_fixture *r)
{
    golden_token_stream(r->tokens);
    for (int i = 0; i <= GOLDEN_TOKENS; i++)
        r->tokens[i] %= (int32_t)r->config.vocab_size;
    r->batch = (tide_decoder_batch){.inputs = r->tokens, .targets = r->tokens + 1, .learned = GOLDEN_TOKENS};
}

static void open_on(gpt2_fixture *r, const tide_kernels *kernels, tide_dtype dtype, bool recompute,
                    uint32_t micro_batch_sequences, uint32_t vocabulary)
{
    *r = (gpt2_fixture){.config = golden_config(), .dtype = dtype};
    r->config.vocab_size = vocabulary;
    make_tokens(r);
    const bool flags[2] = {recompute, recompute};
    const tide_decoder_options model = {.config = r->config,
                                        .dtype = dtype,
                                        .seq_len = GOLDEN_SEQ_LEN,
                                        .micro_batch_sequences = micro_batch_sequences,
                                        .micro_batches = GOLDEN_SEQUENCES / micro_batch_sequences,
                                        .sum_groups = 1,
                                        .recompute = flags,
                                        .kernels = kernels};
    tide_pool_options pool;
    tide_pool_options_default(&pool);
    pool.chunk_bytes = 256 * 1024;
    pool.update = catch_gradients;
    pool.update_context = r;
    pool.checks.hazard_check = true;
    pool.checks.guard = true;
    tide_kernels_cpu_configure(tide_device_factory_threads(&pool));
    ok(tide_decoder_create(&model, &r->model));
    ok(tide_pool_create(&pool, tide_decoder_description(r->model), &r->pool));
    tide_decoder_attach(r->model, r->pool);
    make_values(r);
    gpt2_fixture_set_values(r);
}

void gpt2_fixture_open_on(gpt2_fixture *r, const tide_kernels *kernels, tide_dtype dtype, bool recompute,
                          uint32_t micro_batch_sequences)
{
    open_on(r, kernels, dtype, recompute, micro_batch_sequences, golden_config().vocab_size);
}

void gpt2_fixture_open(gpt2_fixture *r, tide_dtype dtype, bool recompute, uint32_t micro_batch_sequences)
{
    gpt2_fixture_open_on(r, tide_kernels_cpu(), dtype, recompute, micro_batch_sequences);
}

void gpt2_fixture_open_small(gpt2_fixture *r, const tide_kernels *kernels, tide_dtype dtype, bool recompute,
                             uint32_t vocabulary)
{
    open_on(r, kernels, dtype, recompute, 2, vocabulary);
}

void gpt2_fixture_close(gpt2_fixture *r)
{
    tide_pool_destroy(r->pool);
    tide_decoder_destroy(r->model);
    for (size_t i = 0; i < GOLDEN_PARAMS; i++) {
        free(r->values[i]);
        free(r->gradients[i]);
    }
}

/* The pool checks these values, but the update callback does not use them. */
static const tide_step_options training = {
    .training = true, .learning_rate = 1e-3f, .beta1 = 0.9f, .beta2 = 0.95f, .epsilon = 1e-8f};

double gpt2_fixture_step(gpt2_fixture *r)
{
    memset(r->caught, 0, sizeof r->caught);
    double loss = NAN;
    tide_step_options options = training;
    options.loss_scale = r->dtype == TIDE_DTYPE_FP16 ? GPT2_FIXTURE_FP16_LOSS_SCALE : 1;
    ok(tide_step_begin(r->pool, &options));
    ok(tide_decoder_upload(r->model, &r->batch));
    ok(tide_decoder_train(r->model, options.loss_scale));
    ok(tide_step_end(r->pool));
    ok(tide_decoder_loss(r->model, &loss));
    ok(tide_pool_drain(r->pool));
    for (size_t i = 0; i < GOLDEN_PARAMS; i++)
        assert_int_equal(r->caught[i], r->memory_elements[i]);
    return loss;
}

double gpt2_fixture_evaluate(gpt2_fixture *r)
{
    double loss = NAN;
    ok(tide_step_begin(r->pool, &(tide_step_options){.training = false}));
    ok(tide_decoder_upload(r->model, &r->batch));
    ok(tide_decoder_evaluate(r->model));
    ok(tide_decoder_loss(r->model, &loss));
    ok(tide_step_end(r->pool));
    return loss;
}
