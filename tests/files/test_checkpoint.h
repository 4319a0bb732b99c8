/* A model of three small tensors for the checkpoint tests. Each value is a function of (step, kind of
 * value, tensor, element), so that a test can check any loaded value. */
#ifndef TIDE_TESTS_TEST_CHECKPOINT_H
#define TIDE_TESTS_TEST_CHECKPOINT_H

#include "src/checkpoint/checkpoint.h"
#include "tests/support/fake_files.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const tide_checkpoint_tensor small_tensors[] = {
    {"wte.weight", 2, {5, 3}, false},
    {"h.0.ln_1.bias", 1, {7}, false},
    {"h.0.attn.c_attn.weight", 2, {2, 4}, false},
};

static const tide_checkpoint_tensors small_model = {small_tensors, 3};

enum { SMALL_ELEMENTS = 30 };

static inline float expected_value(uint64_t step, tide_value value, size_t tensor, uint64_t element)
{
    uint64_t mixed =
        (step * 1000003u + (uint64_t)value * 7919u + tensor * 104729u + element) * 0x9E3779B97F4A7C15u;
    return (float)(mixed >> 40) * 0x1p-12f;
}

static inline tide_status pull_values(void *context, size_t tensor, tide_value value, uint64_t first,
                                      uint64_t count, float *values)
{
    uint64_t step = *(const uint64_t *)context;
    for (uint64_t i = 0; i < count; i++)
        values[i] = expected_value(step, value, tensor, first + i);
    return TIDE_OK;
}

typedef struct value_sink {
    uint64_t step; /* the step whose values are expected */
    uint64_t pushed, wrong;
} value_sink;

static inline tide_status push_values(void *context, size_t tensor, tide_value value, uint64_t first,
                                      uint64_t count, const float *values)
{
    value_sink *sink = context;
    for (uint64_t i = 0; i < count; i++)
        sink->wrong += values[i] != expected_value(sink->step, value, tensor, first + i);
    sink->pushed += count;
    return TIDE_OK;
}

static inline tide_train_state state_at(uint64_t step)
{
    tide_model_config model;
    assert_int_equal(tide_model_config_open("gpt2-nano", &model), TIDE_OK);
    return (tide_train_state){.step = step,
                              .tokens = step * 4096,
                              .adam_step = step - 1,
                              .skipped = 1,
                              .model = model,
                              .seed = 0xFFFFFFFFFFFFFFF1u,
                              .data_fingerprint = 0x8123456789abcdefu,
                              .seq_len = 256,
                              .global_batch_tokens = 4096,
                              .micro_batch_sequences = 4,
                              .dtype = TIDE_DTYPE_BF16,
                              .hyper.schedule.steps = 1000,
                              .hyper.schedule.warmup_steps = 20,
                              .hyper.schedule.lr = 0.1 + 0.2,  /* needs all 17 digits */
                              .hyper.schedule.lr_min = 1e-310, /* denormal */
                              .hyper.weight_decay = 0.1,
                              .hyper.clip = 1.0,
                              .hyper.beta1 = 0.9,
                              .hyper.beta2 = 0.95,
                              .hyper.epsilon = 1e-8,
                              .sum_groups = 1};
}

static inline tide_status save_small(const tide_files *files, const char *dir, uint64_t step, unsigned keep,
                                     tide_checkpoint_saved *saved)
{
    tide_train_state state = state_at(step);
    return tide_checkpoint_save(files, dir, &state, &small_model, keep, pull_values, &step, saved);
}

static inline tide_status load_small(const tide_files *files, const char *path, value_sink *sink)
{
    tide_train_state state;
    return tide_checkpoint_load(files, path, NULL, &small_model, push_values, NULL, sink, &state, NULL);
}

/* Whether the checkpoint loads with all values of that step. */
static inline bool loads_as(const tide_files *files, const char *path, uint64_t step)
{
    value_sink sink = {.step = step};
    tide_train_state state;
    tide_status status =
        tide_checkpoint_load(files, path, NULL, &small_model, push_values, NULL, &sink, &state, NULL);
    return status == TIDE_OK && state.step == step && sink.wrong == 0 &&
           sink.pushed == SMALL_ELEMENTS * TIDE_CHECKPOINT_FILES;
}

static inline void assert_message_has(const char *part)
{
    if (strstr(tide_message(), part) == NULL)
        fail_msg("\"%s\" does not say \"%s\"", tide_message(), part);
    assert_null(strchr(tide_message(), '\n'));
}

#endif
