/* Optimizers of the caller's own. They keep any planes of 16 or 32 bits, different ones for different
 * params, and none for frozen params. Pools with all kinds of budgets and chunk sizes train a small model,
 * and a loop over plain arrays must give the same bits, also through skipped steps, a poisoned pool and its
 * recovery. Uses only the public header.
 *
 *      gradient of element i of param p, step t    p[i] / 8 + frozen[i] / 4 + ref_amount(p + 16 t, i)
 *      momentum'                                   0.9 momentum + g scale
 *      variance'                                   0.5 variance + momentum'
 *      param'                                      param - rate (momentum' + variance')
 *
 * A param without a plane for the momentum uses momentum' = g scale, one without a plane for the variance
 * uses variance' = 0.
 */
#include "tests/support/assert_ok.h"
#include "tests/support/reference_pool.h"
#include "tests/support/test_thin.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PARAMS_MAX = 8, KIB = 1024 };

typedef struct spec {
    uint64_t elements;
    tide_param_class of_class;
} spec;

/* A model of `count` params. The last may be frozen; all ops then read it. */
typedef struct model {
    const spec *specs;
    uint32_t count;
    tide_dtype dtype;
} model;

static const spec momentum_of_4_bytes[] = {{90001, {.state = {2, {64, 64}}}},
                                           {1, {.state = {2, {64, 64}}}},
                                           {200000, {.state = {2, {64, 64}}}},
                                           {70000, {.state = {2, {64, 64}}}}};
/* As the Muon optimizer, which keeps fewer planes for matrices. */
static const spec of_two_formats[] = {{120000, {.state = {2, {128, 128}}}},
                                      {77, {.state = {3, {128, 128, 128}}}},
                                      {90000, {.state = {2, {128, 128}}}},
                                      {50000, {.decay = true}},
                                      {30000, {.frozen = true}}};
/* The param of 170001 elements has several PARAM chunks. Its 6 bytes of state do not divide a chunk, so
 * these PARAM chunks share STATE chunks. */
static const spec of_many_formats[] = {
    {6000, {.state = {2, {64, 64}}}},    {70001, {.state = {3, {64, 128, 64}}}},
    {257, {.state = {1, {128}}}},        {100000, {.decay = true, .state = {2, {64, 64}}}},
    {1, {.state = {1, {64}}}},           {40000, {.state = {3, {128, 64, 128}}}},
    {170001, {.state = {2, {64, 128}}}}, {20000, {.frozen = true}}};

/* --- the reference: a loop over plain arrays --- */

typedef struct reference {
    model of;
    /* in fp32, but rounded to the plane's format; NULL: no such plane */
    float *values[PARAMS_MAX][TIDE_VALUE_COUNT];
    uint64_t updates;
} reference;

static tide_dtype dtype_of(const model *m, tide_param p, tide_value kind)
{
    const tide_state_format *state = &m->specs[p].of_class.state;
    const bool fp32 =
        kind != TIDE_VALUE_PARAM && (state->planes == 0 || state->bytes[kind - TIDE_VALUE_MASTER] == 128);
    return fp32 ? TIDE_DTYPE_FP32 : m->dtype;
}

/* The last kind of value that a param has. */
static tide_value last_of(const model *m, tide_param p)
{
    const tide_param_class *it = &m->specs[p].of_class;
    return it->frozen              ? TIDE_VALUE_PARAM
           : it->state.planes == 0 ? TIDE_VALUE_VARIANCE
                                   : (tide_value)it->state.planes;
}

static void ref_values(reference *it, tide_param p, tide_value kind, const float *values)
{
    for (uint64_t i = 0; i < it->of.specs[p].elements; i++) {
        it->values[p][kind][i] = ref_round(dtype_of(&it->of, p, kind), values[i]);
        if (kind == TIDE_VALUE_MASTER)
            it->values[p][TIDE_VALUE_PARAM][i] = ref_round(it->of.dtype, values[i]);
    }
}

static void ref_create(reference *it, const model *of)
{
    *it = (reference){.of = *of};
    for (tide_param p = 0; p < of->count; p++)
        for (tide_value kind = 0; kind <= last_of(of, p); kind++)
            assert_non_null(it->values[p][kind] = calloc(of->specs[p].elements, sizeof(float)));
}

static void ref_free(reference *it)
{
    for (tide_param p = 0; p < it->of.count; p++)
        for (tide_value kind = 0; kind < TIDE_VALUE_COUNT; kind++)
            free(it->values[p][kind]);
}

static float gradient_of(float value, float frozen, uint32_t p, uint64_t step, uint64_t i)
{
    return 0.125F * value + 0.25F * frozen + ref_amount((uint32_t)(p + 16 * step), (uint32_t)i);
}

/* Update one element. The first `planes` of values[1], values[2] and values[3] exist. */
static void descend(float *const values[TIDE_VALUE_COUNT], uint32_t planes, float rate, float gradient)
{
    float momentum = gradient, variance = 0;
    if (planes > 1)
        momentum = *values[TIDE_VALUE_MOMENTUM] = 0.9F * *values[TIDE_VALUE_MOMENTUM] + gradient;
    if (planes > 2)
        variance = *values[TIDE_VALUE_VARIANCE] = 0.5F * *values[TIDE_VALUE_VARIANCE] + momentum;
    *values[TIDE_VALUE_MASTER] -= rate * (momentum + variance);
}

static float frozen_at(const reference *it, uint64_t i)
{
    const tide_param last = it->of.count - 1;
    const spec *of = &it->of.specs[last];
    return of->of_class.frozen ? it->values[last][TIDE_VALUE_PARAM][i % of->elements] : 0;
}

static const float rate = 0.015625F;

static void ref_step(reference *it)
{
    it->updates++;
    for (tide_param p = 0; p < it->of.count; p++) {
        const tide_value last = last_of(&it->of, p);
        for (uint64_t i = 0; i < it->of.specs[p].elements && last != TIDE_VALUE_PARAM; i++) {
            float *values[TIDE_VALUE_COUNT] = {0};
            for (tide_value kind = 0; kind <= last; kind++)
                values[kind] = &it->values[p][kind][i];
            const float gradient =
                gradient_of(*values[TIDE_VALUE_PARAM], frozen_at(it, i), p, it->updates, i);
            descend(values, last, rate, ref_round(it->of.dtype, gradient));
            *values[TIDE_VALUE_PARAM] = ref_round(it->of.dtype, *values[TIDE_VALUE_MASTER]);
            for (tide_value kind = TIDE_VALUE_MASTER; kind <= last; kind++)
                *values[kind] = ref_round(dtype_of(&it->of, p, kind), *values[kind]);
        }
    }
}

/* --- the same on a pool --- */

typedef struct random_case {
    model of;
    tide_description *description;
    tide_pool *pool;
    tide_op ops[PARAMS_MAX];
    bool fails; /* the optimizer returns an error */
} random_case;

typedef struct machine {
    uint64_t chunk_bytes;
    uint32_t device_share, host_share; /* 0: the least budget, 1: half, 2: all */
} machine;

static const machine machines[] = {
    {256 * KIB, 0, 0}, {256 * KIB, 1, 0}, {256 * KIB, 2, 2}, {512 * KIB, 0, 1}, {4096 * KIB, 0, 0}};

enum { MACHINES = sizeof machines / sizeof machines[0] };

static void *element(void *plane, tide_dtype dtype, uint64_t i)
{
    return (char *)plane + i * tide_dtype_bytes(dtype);
}

static tide_status update(void *context, const tide_step_options *step, uint64_t number, float scale,
                          const tide_update_segment *segments, uint32_t count)
{
    const random_case *t = context;
    if (t->fails)
        return tide_fail(TIDE_ERROR_MISMATCH, "update %llu fails on purpose", (unsigned long long)number);
    for (uint32_t s = 0; s < count; s++) {
        const tide_update_segment *segment = &segments[s];
        const tide_value last = last_of(&t->of, segment->param);
        for (uint32_t plane = 0; plane < TIDE_STATE_PLANES_MAX; plane++)
            if ((segment->state[plane] != NULL) != (plane < last))
                return tide_fail(TIDE_ERROR_INTERNAL, "param %u: not its planes", segment->param);
        for (uint64_t i = 0; i < segment->elements; i++) {
            float kept[TIDE_VALUE_COUNT], *values[TIDE_VALUE_COUNT];
            void *places[TIDE_VALUE_COUNT];
            for (tide_value kind = 0; kind <= last; kind++) {
                const tide_dtype dtype = dtype_of(&t->of, segment->param, kind);
                places[kind] = element(kind == 0 ? segment->values : segment->state[kind - 1], dtype, i);
                values[kind] = &kept[kind];
                ref_load(dtype, values[kind], places[kind], 1);
            }
            descend(values, last, step->learning_rate, segment->zero_gradient ? 0 : kept[0] * scale);
            kept[0] = kept[1];
            for (tide_value kind = 0; kind <= last; kind++)
                ref_store(dtype_of(&t->of, segment->param, kind), places[kind], values[kind], 1);
        }
    }
    return TIDE_OK;
}

static void describe(random_case *t)
{
    const tide_param last = t->of.count - 1;
    tide_param number;
    char name[16];
    assert_ok(tide_description_create(t->of.dtype, 0, &t->description));
    for (tide_param p = 0; p < t->of.count; p++) {
        snprintf(name, sizeof name, "p%u", p);
        assert_ok(tide_description_add_param(t->description, name, &t->of.specs[p].elements, 1,
                                             &t->of.specs[p].of_class, &number));
    }
    for (tide_param p = 0; p < t->of.count; p++) {
        const tide_use uses[] = {{p, TIDE_ACCESS_READ | TIDE_ACCESS_GRAD}, {last, TIDE_ACCESS_READ}};
        const tide_op_description op = {.name = "op",
                                        .pass = TIDE_PASS_BOTH,
                                        .params = uses,
                                        .param_count = 1 + t->of.specs[last].of_class.frozen};
        if (!t->of.specs[p].of_class.frozen)
            assert_ok(tide_description_add_op(t->description, &op, &t->ops[p]));
    }
}

static uint64_t shared_out(uint64_t least, uint64_t full, uint32_t share, uint64_t chunk_bytes)
{
    return full <= least ? least : least + (full - least) / chunk_bytes * share / 2 * chunk_bytes;
}

static void choose_budgets(const random_case *t, const machine *on, tide_pool_options *options)
{
    tide_pool_plan plan;
    assert_ok(tide_pool_plan_make(options, t->description, &plan));
    options->device_memory_bytes =
        shared_out(plan.least_device_bytes, plan.full_device_bytes, on->device_share, on->chunk_bytes);
    assert_ok(tide_pool_plan_make(options, t->description, &plan));
    options->host_memory_bytes =
        shared_out(plan.least_host_bytes, plan.full_host_bytes, on->host_share, on->chunk_bytes);
}

static void set_all(random_case *t, tide_param p, tide_value kind, const float *values)
{
    assert_ok(tide_param_set(t->pool, p, kind, 0, t->of.specs[p].elements, values));
}

static void case_create(random_case *t, const model *of, const machine *on, reference *beside)
{
    tide_pool_options options;
    tide_pool_options_default(&options);
    options.chunk_bytes = on->chunk_bytes;
    options.threads = 1;
    options.checks.hazard_check = options.checks.guard = true;
    options.update = update;
    options.update_context = t;
    *t = (random_case){.of = *of};
    describe(t);
    choose_budgets(t, on, &options);
    assert_ok(tide_pool_create(&options, t->description, &t->pool));
    for (tide_param p = 0; p < of->count; p++) {
        float *values = malloc(of->specs[p].elements * sizeof *values);
        assert_non_null(values);
        for (uint64_t i = 0; i < of->specs[p].elements; i++)
            values[i] = ref_amount(p + 1000, (uint32_t)i);
        const tide_value kind = of->specs[p].of_class.frozen ? TIDE_VALUE_PARAM : TIDE_VALUE_MASTER;
        set_all(t, p, kind, values);
        ref_values(beside, p, kind, values);
        free(values);
    }
}

static void case_destroy(random_case *t, reference *beside)
{
    tide_pool_destroy(t->pool);
    tide_description_destroy(t->description);
    ref_free(beside);
}

typedef struct add_args {
    float *accumulator;
    const void *values, *frozen; /* `frozen` NULL: no frozen param */
    uint64_t elements, frozen_elements, step;
    uint32_t param;
    tide_dtype dtype;
    float special; /* the kernel adds this to the last element */
} add_args;

static tide_status add_kernel(void *stream, const void *arguments)
{
    const add_args *a = arguments;
    (void)stream;
    for (uint64_t i = 0; i < a->elements; i++) {
        float value, frozen = 0;
        ref_load(a->dtype, &value, element((void *)(uintptr_t)a->values, a->dtype, i), 1);
        if (a->frozen != NULL)
            ref_load(a->dtype, &frozen,
                     element((void *)(uintptr_t)a->frozen, a->dtype, i % a->frozen_elements), 1);
        a->accumulator[i] += gradient_of(value, frozen, a->param, a->step, i);
    }
    a->accumulator[a->elements - 1] += a->special;
    return TIDE_OK;
}

/* Run a step in which `special` is added to the gradient of param 0. */
static void run_step(random_case *t, float clip_norm, float special)
{
    const tide_step_options step = {
        .training = true, .learning_rate = rate, .epsilon = 1, .clip_norm = clip_norm};
    const tide_param last = t->of.count - 1;
    const bool freezes = t->of.specs[last].of_class.frozen;
    const uint64_t number = tide_update_count(t->pool) + 1;
    assert_ok(tide_step_begin(t->pool, &step));
    for (tide_param p = 0; p < t->of.count - freezes; p++) {
        assert_ok(tide_op_begin(t->pool, t->ops[p]));
        const add_args args = {.accumulator = tide_param_gradient(t->pool, p),
                               .values = tide_param_data(t->pool, p),
                               .frozen = freezes ? tide_param_data(t->pool, last) : NULL,
                               .elements = t->of.specs[p].elements,
                               .frozen_elements = t->of.specs[last].elements,
                               .step = number,
                               .param = p,
                               .dtype = t->of.dtype,
                               .special = p == 0 ? special : 0};
        assert_ok(tide_launch(t->pool, "add", add_kernel, &args, sizeof args, 0, 0));
        assert_ok(tide_op_end(t->pool));
    }
    assert_ok(tide_step_end(t->pool));
}

static void step_beside(random_case *t, reference *beside, float clip_norm)
{
    tide_step_result result;
    run_step(t, clip_norm, 0);
    ref_step(beside);
    assert_ok(tide_step_result_get(t->pool, &result));
    assert_true(!result.skipped && result.gradient_scale == 1 && result.zero_gradients == 0);
}

static void skip_one(random_case *t)
{
    tide_step_result result;
    run_step(t, INFINITY, INFINITY);
    assert_ok(tide_step_result_get(t->pool, &result));
    assert_true(result.skipped);
}

static void compare(random_case *t, const reference *with, const char *when)
{
    for (tide_param p = 0; p < t->of.count; p++) {
        const uint64_t count = t->of.specs[p].elements;
        float *got = calloc(count, sizeof *got);
        assert_non_null(got);
        for (tide_value kind = 0; kind <= last_of(&t->of, p); kind++) {
            assert_ok(tide_param_get(t->pool, p, kind, 0, count, got));
            for (uint64_t i = 0; i < count; i++)
                if (memcmp(&got[i], &with->values[p][kind][i], sizeof *got) != 0)
                    fail_msg("%s, %s: %s %llu of p%u is %.9g, not %.9g", tide_dtype_name(t->of.dtype), when,
                             tide_value_name(kind), (unsigned long long)i, p, (double)got[i],
                             (double)with->values[p][kind][i]);
        }
        free(got);
    }
    assert_int_equal(tide_update_count(t->pool), with->updates);
}

/* --- training --- */

static void train(const model *of, const machine *on)
{
    reference beside;
    random_case t;
    ref_create(&beside, of);
    case_create(&t, of, on, &beside);
    compare(&t, &beside, "as set");
    step_beside(&t, &beside, 0);
    step_beside(&t, &beside, INFINITY);
    compare(&t, &beside, "after two steps");
    skip_one(&t);
    compare(&t, &beside, "after a skipped step");
    skip_one(&t);
    step_beside(&t, &beside, INFINITY);
    step_beside(&t, &beside, of->dtype == TIDE_DTYPE_FP16 ? INFINITY : 0);
    compare(&t, &beside, "at the end");
    case_destroy(&t, &beside);
}

/* On every machine, or on one if the params are of fp32. The suite trains a quarter of the pairs; every
 * model and every machine is among them. A sanitizer run trains fewer. */
static void params_of_any_formats_train_as_a_ref_loop_does(void **state)
{
    static const model models[] = {
        {momentum_of_4_bytes, 4, TIDE_DTYPE_BF16}, {momentum_of_4_bytes, 4, TIDE_DTYPE_FP16},
        {of_two_formats, 5, TIDE_DTYPE_BF16},      {of_two_formats, 5, TIDE_DTYPE_FP16},
        {of_two_formats, 5, TIDE_DTYPE_FP32},      {of_many_formats, 8, TIDE_DTYPE_BF16},
        {of_many_formats, 8, TIDE_DTYPE_FP16}};
    unsigned pair = 0;
    for (size_t m = 0; m < sizeof models / sizeof models[0]; m++)
        for (int i = 0; i < (models[m].dtype == TIDE_DTYPE_FP32 ? 1 : MACHINES); i++)
            if (pair++ % test_every(4, 6) == 0)
                train(&models[m], &machines[i]);
}

/* --- a poisoned pool --- */

static void see_poisoned(random_case *t)
{
    const tide_step_options step = {0};
    float value;
    assert_int_equal(tide_step_begin(t->pool, &step), TIDE_ERROR_STATE);
    assert_int_equal(tide_param_get(t->pool, 0, TIDE_VALUE_PARAM, 0, 1, &value), TIDE_ERROR_STATE);
}

static void a_poisoned_pool_recovers_when_every_plane_that_there_is_was_set(void **state)
{
    for (unsigned i = 0; i < MACHINES; i += test_every(1, 3)) {
        const model of = {of_many_formats, 8, i % 2 ? TIDE_DTYPE_BF16 : TIDE_DTYPE_FP16};
        reference beside;
        random_case t;
        ref_create(&beside, &of);
        case_create(&t, &of, &machines[i], &beside);
        step_beside(&t, &beside, INFINITY);
        assert_ok(tide_pool_drain(t.pool));
        t.fails = true;
        run_step(&t, INFINITY, 0);
        assert_fails(tide_pool_drain(t.pool), TIDE_ERROR_MISMATCH, "update 2 fails on purpose");
        assert_int_equal(tide_step_abort(t.pool), TIDE_ERROR_STATE);
        t.fails = false;
        /* a frozen param does not count */
        set_all(&t, 7, TIDE_VALUE_PARAM, beside.values[7][TIDE_VALUE_PARAM]);
        for (tide_param p = 0; p < 7; p++)
            for (tide_value kind = TIDE_VALUE_MASTER; kind <= last_of(&of, p); kind++) {
                see_poisoned(&t);
                set_all(&t, p, kind, beside.values[p][kind]);
            }
        assert_ok(tide_update_count_set(t.pool, beside.updates));
        compare(&t, &beside, "recovered");
        step_beside(&t, &beside, INFINITY);
        compare(&t, &beside, "a step later");
        case_destroy(&t, &beside);
    }
}

/* --- frozen params --- */

static void a_frozen_param_has_values_that_are_rounded(void **state)
{
    const model of = {of_two_formats, 5, TIDE_DTYPE_BF16};
    float values[3] = {1, 1 + 0x1p-9F, -0.0F}, got[3];
    reference beside;
    random_case t;
    ref_create(&beside, &of);
    case_create(&t, &of, &machines[0], &beside);
    assert_ok(tide_param_set(t.pool, 4, TIDE_VALUE_PARAM, 29000, 3, values));
    assert_ok(tide_param_get(t.pool, 4, TIDE_VALUE_PARAM, 29000, 3, got));
    values[1] = 1; /* rounded to bf16 */
    assert_memory_equal(got, values, sizeof got);
    case_destroy(&t, &beside);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(params_of_any_formats_train_as_a_ref_loop_does),
        cmocka_unit_test(a_poisoned_pool_recovers_when_every_plane_that_there_is_was_set),
        cmocka_unit_test(a_frozen_param_has_values_that_are_rounded),
    };
    return cmocka_run_group_tests_name("pool_states", tests, NULL, NULL);
}
