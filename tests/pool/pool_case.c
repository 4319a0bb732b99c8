#include "tests/pool/pool_case.h"

#include "tests/support/assert_ok.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { KIB = 1024, REGION_BYTES_MOST = 64 * KIB, PARTS_MOST = 4 };

uint64_t pool_events[EVENT_COUNT];
#define POOL_EVENT_NAME(event, name) name,
const char *const pool_event_names[EVENT_COUNT] = {POOL_EVENTS(POOL_EVENT_NAME)};

/* --- random numbers --- */

static uint64_t next(uint64_t *state)
{
    uint64_t z = *state += UINT64_C(0x9E3779B97F4A7C15);
    z = (z ^ z >> 30) * UINT64_C(0xBF58476D1CE4E5B9);
    z = (z ^ z >> 27) * UINT64_C(0x94D049BB133111EB);
    return z ^ z >> 31;
}

uint64_t pool_random(pool_case *c, uint64_t below)
{
    return next(&c->random) % below;
}

bool pool_chance(pool_case *c, unsigned percent)
{
    return pool_random(c, 100) < percent;
}

/* --- failure messages --- */

void pool_case_fail(const pool_case *c, const char *format, ...)
{
    char text[1024];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    fail_msg("seed %llu%s, step %u, op %s: %s\nalone: test_pool_random 1 %llu", (unsigned long long)c->seed,
             c->variant == 0 ? "" : " (second pool)", c->step, c->op_name == NULL ? "(none)" : c->op_name,
             text, (unsigned long long)c->seed);
}

void pool_expect(const pool_case *c, const char *call, tide_status got, tide_status wanted)
{
    if (got == wanted)
        return;
    pool_case_fail(c, "%s answers %s (%s), not %s", call, tide_status_name(got),
                   got == TIDE_OK ? "" : tide_message(), tide_status_name(wanted));
}

void pool_expect_true(const pool_case *c, const char *what, bool is_true)
{
    if (!is_true)
        pool_case_fail(c, "not so: %s", what);
}

/* --- draw a model --- */

static uint64_t draw_elements(pool_case *c)
{
    const uint64_t kind = pool_random(c, 100);
    return kind < 15   ? 1 + pool_random(c, 3)
           : kind < 55 ? 1 + pool_random(c, 2000)
           : kind < 85 ? 1 + pool_random(c, 40000)
           : kind < 98 ? 1 + pool_random(c, 150000)
                       : 1 + pool_random(c, 400000);
}

/* Draw the state planes that the optimizer keeps for a param. */
static tide_state_format draw_format(pool_case *c)
{
    if (!c->model.own_optimizer)
        return (tide_state_format){3, {128, 128, 128}};
    tide_state_format format = {.planes = 1 + (uint32_t)pool_random(c, 3)};
    for (uint32_t plane = 0; plane < format.planes; plane++)
        format.bytes[plane] = c->model.dtype == TIDE_DTYPE_FP32 || pool_chance(c, 50) ? 128 : 64;
    return format;
}

static bool same_format(const tide_state_format *a, const tide_state_format *b)
{
    return memcmp(a, b, sizeof *a) == 0;
}

/* All params have one state format, or each has its own. Some may be frozen, but never all. */
static void draw_classes(pool_case *c)
{
    const bool mixed = pool_chance(c, 50), freezes = pool_chance(c, 35);
    const uint32_t trained = (uint32_t)pool_random(c, c->model.param_count);
    const tide_state_format format = draw_format(c);
    bool differ = false;
    for (uint32_t i = 0; i < c->model.param_count; i++) {
        tide_param_class *of_class = &c->model.params[i].of_class;
        if (freezes && i != trained && pool_chance(c, 40)) {
            *of_class = (tide_param_class){.frozen = true};
            pool_events[EVENT_FROZEN]++;
            continue;
        }
        of_class->state = mixed ? draw_format(c) : format;
        differ = differ || !same_format(&of_class->state, &c->model.params[trained].of_class.state);
        pool_events[EVENT_HALF_MASTERS] += of_class->state.bytes[0] == 64;
    }
    pool_events[EVENT_FORMATS] += mixed && differ;
}

static void draw_tensors(pool_case *c)
{
    reference_pool *model = &c->model;
    model->param_count = 1 + (uint32_t)pool_random(c, REF_PARAMS_MAX);
    for (uint32_t i = 0; i < model->param_count; i++) {
        model->params[i].elements = draw_elements(c);
        model->params[i].of_class.decay = pool_chance(c, 60);
    }
    draw_classes(c);
    const bool grouped = model->sum_groups > 1;
    model->activation_count = grouped + (uint32_t)pool_random(c, REF_ACTIVATIONS_MAX + 1 - grouped);
    const uint32_t parts =
        grouped ? model->sum_groups * (1 + (uint32_t)pool_random(c, model->sum_groups < 12 ? 2 : 1))
                : 1 + (uint32_t)pool_random(c, PARTS_MOST);
    for (uint32_t i = 0; i < model->activation_count; i++) {
        model->activations[i].parts =
            grouped || pool_chance(c, 80) ? parts : 1 + (uint32_t)pool_random(c, PARTS_MOST);
        model->activations[i].part_bytes = 1 + pool_random(c, pool_chance(c, 20)   ? 400 * KIB / parts
                                                              : pool_chance(c, 50) ? 64 * KIB
                                                                                   : 600);
    }
}

static ref_op *add_op(pool_case *c, tide_pass pass)
{
    ref_op *op = &c->model.ops[c->model.op_count];
    snprintf(op->name, sizeof op->name, "%s %u",
             pass == TIDE_PASS_FORWARD ? "forward"
             : pass == TIDE_PASS_BOTH  ? "both"
                                       : "backward",
             c->model.op_count);
    op->description =
        (tide_op_description){.name = op->name,
                              .pass = pass,
                              .params = op->params,
                              .activations = op->activations,
                              .workspace_bytes = pool_chance(c, 30) ? 1 + pool_random(c, 5000) : 0};
    c->model.op_count++;
    return op;
}

static void use_param(pool_case *c, ref_op *op, tide_param param)
{
    static const uint32_t accesses[] = {TIDE_ACCESS_READ | TIDE_ACCESS_GRAD,
                                        TIDE_ACCESS_READ | TIDE_ACCESS_GRAD | TIDE_ACCESS_OVERWRITE,
                                        TIDE_ACCESS_GRAD, TIDE_ACCESS_READ};
    const bool adds = op->description.pass != TIDE_PASS_FORWARD && !c->model.params[param].of_class.frozen;
    const uint32_t access = adds ? accesses[pool_random(c, 4)] : TIDE_ACCESS_READ;
    for (uint32_t i = 0; i < op->description.param_count; i++)
        if (op->params[i].tensor == param)
            return;
    op->params[op->description.param_count++] = (tide_use){param, access};
}

static void use_activation(pool_case *c, ref_op *op, tide_activation number)
{
    static const uint32_t reads[] = {
        TIDE_ACCESS_READ, TIDE_ACCESS_READ | TIDE_ACCESS_LAST, TIDE_ACCESS_READ | TIDE_ACCESS_WRITE,
        TIDE_ACCESS_WRITE | TIDE_ACCESS_LAST, TIDE_ACCESS_READ | TIDE_ACCESS_WRITE | TIDE_ACCESS_LAST};
    const uint32_t parts = c->model.activations[number].parts;
    tide_op_description *d = &op->description;
    if (d->activation_count > 0 &&
        (d->slices != parts || op->activations[d->activation_count - 1].tensor == number))
        return;
    const bool writes = pool_chance(c, d->pass == TIDE_PASS_FORWARD ? 90 : 10);
    d->slices = parts;
    op->activations[d->activation_count++] =
        (tide_use){number, writes ? TIDE_ACCESS_WRITE : reads[pool_random(c, 5)]};
}

/* Add each activation with a probability of one half, in ascending order, so that an op uses none twice. With
 * sum groups each op gets one, since those that make gradients need slices. */
static void use_activations(pool_case *c, ref_op *op)
{
    for (uint32_t i = 0; i < c->model.activation_count; i++)
        if (pool_chance(c, 50) || (i == 0 && c->model.sum_groups > 1))
            use_activation(c, op, i);
}

/* Ops of layers forward, a head, and the layers backward; now and then an op uses one more param. */
static void draw_layers(pool_case *c)
{
    const uint32_t layers = c->model.param_count < 6 ? c->model.param_count : 6;
    for (uint32_t i = 0; i < 2 * layers + 1; i++) {
        const bool backward = i > layers;
        const uint32_t layer = backward ? 2 * layers - i : i;
        if (i == layers && pool_chance(c, 50))
            continue;
        ref_op *op = add_op(c, i < layers    ? TIDE_PASS_FORWARD
                               : i == layers ? TIDE_PASS_BOTH
                                             : TIDE_PASS_BACKWARD);
        use_param(c, op, layer < layers ? layer : (uint32_t)pool_random(c, c->model.param_count));
        if (pool_chance(c, 35))
            use_param(c, op, (tide_param)pool_random(c, c->model.param_count));
        use_activations(c, op);
    }
}

/* Ops in no order of layers: many ops use few params and add to the same gradients. */
static void draw_anything(pool_case *c)
{
    static const tide_pass passes[] = {TIDE_PASS_FORWARD, TIDE_PASS_BACKWARD, TIDE_PASS_BACKWARD,
                                       TIDE_PASS_BOTH};
    const uint32_t most = 1 + (uint32_t)pool_random(c, c->model.param_count);
    for (uint64_t count = 2 + pool_random(c, 9); count > 0; count--) {
        ref_op *op = add_op(c, passes[pool_random(c, 4)]);
        for (uint64_t uses = pool_random(c, 4); uses > 0; uses--)
            use_param(c, op, (tide_param)pool_random(c, most));
        use_activations(c, op);
    }
}

static void draw_sum_groups(pool_case *c)
{
    static const uint32_t groups[] = {2, 3, 4, 6, 8, 24};
    c->model.sum_groups = pool_chance(c, 40) ? groups[pool_random(c, 6)] : 1;
    c->model.reduce_dtype = pool_chance(c, 20) ? TIDE_DTYPE_BF16 : TIDE_DTYPE_FP32;
    pool_events[EVENT_GROUPED] += c->model.sum_groups > 1;
    pool_events[EVENT_REDUCED_BF16] += c->model.reduce_dtype == TIDE_DTYPE_BF16;
}

static void draw_model(pool_case *c)
{
    static const tide_dtype dtypes[] = {TIDE_DTYPE_FP32, TIDE_DTYPE_BF16, TIDE_DTYPE_FP16};
    c->model.dtype = dtypes[pool_random(c, 3)];
    c->model.own_optimizer = pool_chance(c, 65);
    draw_sum_groups(c);
    draw_tensors(c);
    if (pool_chance(c, 50))
        draw_layers(c);
    else
        draw_anything(c);
    for (uint64_t count = pool_random(c, 3); count > 0; count--) {
        ref_op *op = add_op(c, TIDE_PASS_FORWARD); /* a forward op that only evaluations run */
        use_param(c, op, (tide_param)pool_random(c, c->model.param_count));
    }
}

/* --- draw a machine --- */

static void pause_us(unsigned us)
{
    const struct timespec pause = {.tv_nsec = (long)us * 1000};
    if (us > 0)
        (void)nanosleep(&pause, NULL);
}

void pool_await_update(pool_case *c)
{
    const uint64_t update = c->model.updates + 1;
    for (int tries = 0; tries < 100 && c->model.own_optimizer && atomic_load(&c->begun_update) != update;
         tries++)
        pause_us(50);
}

enum { PIECE = 1024 };

/* A run of at most PIECE elements of a segment, from element `at` on. */
typedef struct element_run {
    const tide_update_segment *segment;
    uint64_t at, count;
} element_run;

static void *plane_of(const pool_case *c, const element_run *these, tide_value kind)
{
    void *begin =
        kind == TIDE_VALUE_PARAM ? these->segment->values : these->segment->state[kind - TIDE_VALUE_MASTER];
    return (char *)begin + these->at * tide_dtype_bytes(ref_dtype(&c->model, these->segment->param, kind));
}

static void update_elements(const pool_case *c, const tide_step_options *step, uint64_t number, float scale,
                            const element_run *these)
{
    const tide_update_segment *segment = these->segment;
    float values[TIDE_VALUE_COUNT][PIECE];
    float *const state[] = {values[TIDE_VALUE_MASTER], values[TIDE_VALUE_MOMENTUM],
                            values[TIDE_VALUE_VARIANCE]};
    const tide_value last = ref_last_value(&c->model, segment->param);
    for (tide_value kind = TIDE_VALUE_PARAM; kind <= last; kind++)
        ref_load(ref_dtype(&c->model, segment->param, kind), values[kind], plane_of(c, these, kind),
                 these->count);
    ref_own_update(last, step, number, scale, segment->decay,
                   segment->zero_gradient ? NULL : values[TIDE_VALUE_PARAM], state, these->count);
    for (tide_value kind = TIDE_VALUE_PARAM; kind <= last; kind++)
        ref_store(ref_dtype(&c->model, segment->param, kind), plane_of(c, these, kind),
                  values[kind == TIDE_VALUE_PARAM ? TIDE_VALUE_MASTER : kind], these->count);
}

static tide_status update(void *context, const tide_step_options *step, uint64_t number, float scale,
                          const tide_update_segment *segments, uint32_t count)
{
    pool_case *c = context;
    atomic_store(&c->begun_update, number);
    pause_us(c->update_us);
    if (atomic_load(&c->failing_update) == number && atomic_fetch_sub(&c->failing_piece, 1) == 0) {
        atomic_fetch_add(&c->update_failures, 1);
        return tide_fail(TIDE_ERROR_MISMATCH, "this update fails on purpose");
    }
    for (uint32_t i = 0; i < count; i++) {
        const tide_update_segment *segment = &segments[i];
        const tide_param_class *of_class = &c->model.params[segment->param].of_class;
        for (uint32_t plane = 0; plane < TIDE_STATE_PLANES_MAX; plane++)
            if ((segment->state[plane] != NULL) != (plane < of_class->state.planes))
                return tide_fail(TIDE_ERROR_INTERNAL, "p%u has not the planes it should", segment->param);
        if (of_class->frozen || segment->decay != of_class->decay)
            return tide_fail(TIDE_ERROR_INTERNAL, "p%u is of another class", segment->param);
        for (uint64_t at = 0; at < segment->elements; at += PIECE) {
            const uint64_t left = segment->elements - at;
            update_elements(c, step, number, scale, &(element_run){segment, at, left < PIECE ? left : PIECE});
        }
    }
    return TIDE_OK;
}

static void trace(void *context, const tide_trace_event *event)
{
    pool_case *c = context;
    if (event->kind < TIDE_TRACE_KIND_COUNT && event->begin_ns <= event->end_ns)
        atomic_fetch_add(&c->traced, 1);
}

static void draw_machine(pool_case *c)
{
    static const tide_placement placements[] = {TIDE_PLACEMENT_AUTO, TIDE_PLACEMENT_HOST,
                                                TIDE_PLACEMENT_DEVICE};
    static const uint64_t staging[] = {0, 512, 3000, 100000};
    tide_pool_options *options = &c->options;
    tide_pool_options_default(options);
    options->sum_groups = c->model.sum_groups;
    options->reduce_dtype = c->model.reduce_dtype;
    options->chunk_bytes = pool_chance(c, 75) ? 256 * KIB : 512 * KIB;
    options->staging_bytes = staging[pool_random(c, 4)];
    options->prefetch = pool_chance(c, 75);
    options->predict = pool_chance(c, 20);
    options->placement = placements[pool_random(c, c->model.own_optimizer ? 2 : 3)];
    options->threads = 1 + (uint32_t)pool_random(c, 3);
#ifdef __SANITIZE_THREAD__
    options->threads = 1; /* ThreadSanitizer can't see the synchronization in OpenMP's own threads */
#endif
    options->checks.hazard_check = pool_chance(c, 40);
    options->checks.guard = pool_chance(c, 40);
    options->checks.finish_beside = !options->checks.guard && pool_chance(c, 40);
    pool_events[EVENT_BESIDE] += options->checks.finish_beside;
    options->checks.delay_seed = pool_random(c, 1 << 30);
    options->checks.delay_max_us = pool_chance(c, 30) ? 1 + (uint32_t)pool_random(c, 200) : 0;
    if (pool_chance(c, 25)) {
        options->trace = trace;
        options->trace_context = c;
    }
    c->update_us = pool_chance(c, 25) ? 1 + (unsigned)pool_random(c, 200) : 0;
    if (c->model.own_optimizer) {
        options->update = update;
        options->update_context = c;
    }
}

static void describe(pool_case *c)
{
    char name[16];
    uint32_t number;
    pool_expect_ok(c, tide_description_create(c->model.dtype, c->nonmodel_bytes, &c->description));
    for (uint32_t i = 0; i < c->model.param_count; i++) {
        const uint64_t elements = c->model.params[i].elements, half = elements / 2;
        const uint64_t shapes[2][2] = {{elements, 1}, {2, half}};
        snprintf(name, sizeof name, "p%u", i);
        pool_expect_ok(c, tide_description_add_param(c->description, name, shapes[elements % 2 == 0], 2,
                                                     &c->model.params[i].of_class, &number));
    }
    for (uint32_t i = 0; i < c->model.activation_count; i++) {
        const ref_activation *activation = &c->model.activations[i];
        snprintf(name, sizeof name, "c%u", i);
        pool_expect_ok(c, tide_description_add_activation(c->description, name, activation->parts,
                                                          activation->part_bytes, &number));
    }
    for (uint32_t i = 0; i < c->model.op_count; i++)
        pool_expect_ok(c, tide_description_add_op(c->description, &c->model.ops[i].description, &number));
}

/* Plans with the case's options. */
static tide_pool_plan plan(const pool_case *c)
{
    tide_pool_plan plan;
    pool_expect_ok(c, tide_pool_plan_make(&c->options, c->description, &plan));
    return plan;
}

static uint64_t model_bytes(const pool_case *c)
{
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < c->model.param_count; i++)
        for (tide_value kind = TIDE_VALUE_PARAM; kind <= ref_last_value(&c->model, i); kind++)
            bytes += c->model.params[i].elements * tide_dtype_bytes(ref_dtype(&c->model, i, kind));
    return bytes;
}

static uint64_t between(pool_case *c, uint64_t least, uint64_t full)
{
    return pool_chance(c, 55) || full <= least ? least : least + pool_random(c, full - least + 1);
}

static void refuse_one_byte_less(pool_case *c, uint64_t device, uint64_t host, bool of_device)
{
    if (!pool_chance(c, 30))
        return;
    tide_pool_options options = c->options;
    options.device_memory_bytes = device - of_device;
    options.host_memory_bytes = host - !of_device;
    pool_expect(c, "tide_pool_create with a byte less than the least",
                tide_pool_create(&options, c->description, &c->pool), TIDE_ERROR_BUDGET);
    pool_events[EVENT_REFUSED_BUDGETS]++;
}

/* Draw the device budget between the least possible and enough for everything, then the host budget in the
 * same way. */
static void budget(pool_case *c)
{
    const tide_pool_plan at_least = plan(c);
    const uint64_t device = between(c, at_least.least_device_bytes, at_least.full_device_bytes);
    c->options.device_memory_bytes = device;
    const tide_pool_plan chosen = plan(c);
    const uint64_t host = between(c, chosen.least_host_bytes, chosen.full_host_bytes);
    if (device == at_least.least_device_bytes)
        refuse_one_byte_less(c, device, host + 64 * KIB * KIB, true);
    if (host == chosen.least_host_bytes)
        refuse_one_byte_less(c, device, host, false);
    c->options.host_memory_bytes = host;
    c->least = device == at_least.least_device_bytes && host == chosen.least_host_bytes;
    pool_events[EVENT_AT_THE_LEAST] += c->least;
}

static void make_pool(pool_case *c)
{
    pool_expect_ok(c, tide_pool_create(&c->options, c->description, &c->pool));
    pool_expect_ok(c, tide_pool_plan_get(c->pool, &c->plan));
    const tide_pool_plan planned = plan(c);
    pool_expect_true(c, "the pool's plan is the one made without it",
                     planned.device_memory_bytes == c->plan.device_memory_bytes &&
                         planned.host_memory_bytes == c->plan.host_memory_bytes &&
                         planned.device_slots == c->plan.device_slots &&
                         planned.host_slots == c->plan.host_slots);
    pool_expect_true(c, "the plan counts the model's bytes", c->plan.model_bytes == model_bytes(c));
}

static void set_values(pool_case *c)
{
    for (uint32_t i = 0; i < c->model.param_count; i++) {
        const uint64_t elements = c->model.params[i].elements;
        const tide_value kind = c->model.params[i].of_class.frozen ? TIDE_VALUE_PARAM : TIDE_VALUE_MASTER;
        for (uint64_t j = 0; j < elements; j++)
            c->buffers[0][j] = ref_amount(i + 1, (uint32_t)j);
        pool_expect_ok(c, tide_param_set(c->pool, i, kind, 0, elements, c->buffers[0]));
        ref_set(&c->model, i, kind, 0, elements, c->buffers[0]);
    }
}

static void make_buffers(pool_case *c)
{
    uint64_t most = 1;
    for (uint32_t i = 0; i < c->model.param_count; i++)
        most = c->model.params[i].elements > most ? c->model.params[i].elements : most;
    for (int i = 0; i < 3; i++)
        assert_non_null(c->buffers[i] = calloc(most, sizeof(float)));
    assert_non_null(c->region = calloc(1, c->nonmodel_bytes));
}

void pool_case_create(pool_case *c, uint64_t seed, uint32_t variant)
{
    memset(c, 0, sizeof *c);
    c->seed = c->random = seed;
    c->variant = variant;
    c->giving_up_in = REF_NONE;
    c->paired = pool_chance(c, 25);
    draw_model(c);
    const uint64_t scenario = next(&c->random);
    c->nonmodel_bytes = 1 + pool_random(c, REGION_BYTES_MOST);
    c->random += variant;
    draw_machine(c);
    assert_true(ref_create_values(&c->model));
    make_buffers(c);
    describe(c);
    budget(c);
    make_pool(c);
    set_values(c);
    c->random = scenario;
}

void pool_case_destroy(pool_case *c)
{
    tide_pool_destroy(c->pool);
    tide_description_destroy(c->description);
    pool_events[EVENT_TRACED] += atomic_load(&c->traced);
    for (int i = 0; i < 3; i++)
        free(c->buffers[i]);
    free(c->region);
    ref_destroy(&c->model);
}
