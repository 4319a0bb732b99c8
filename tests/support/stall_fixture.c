#include "tests/support/stall_fixture.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

fixture_options options_of(const char *device)
{
    fixture_options options = {.elements = ELEMENTS, .spare_chunks = UINT32_MAX, .clip_norm = 1};
    tide_pool_options_default(&options.pool);
    options.pool.device = device;
    options.pool.chunk_bytes = CHUNK_BYTES;
    options.pool.threads = 1;
    options.pool.link_bytes_per_second = 0;
    options.pool.machine = (tide_machine){.flops_per_second = FLOPS_PER_NS * 1e9};
    return options;
}

/* In virtual time all is called on one thread. */
static void trace(void *context, const tide_trace_event *event)
{
    static _Thread_local uint64_t end_ns;
    static _Thread_local tide_stall_cause last;
    fixture *r = context;
    if (r->heard_count < r->heard_most)
        r->heard[r->heard_count++] = *event;
    if (event->kind != TIDE_TRACE_STALL)
        return;
    const tide_stall_cause cause = event->cause;
    r->misplaced += event->step != r->pool->telemetry.tracer.counted;
    r->followed[last][cause] += event->begin_ns == end_ns;
    r->traced_ns[cause] += event->end_ns - event->begin_ns;
    end_ns = event->end_ns;
    last = cause;
}

static void describe(fixture *r, const fixture_options *options)
{
    tide_use param[LAYERS], saved[LAYERS];
    char name[16];
    tide_op_description op = {.name = name, .param_count = 1, .activation_count = 1, .slices = 1};
    assert_ok(tide_description_create(TIDE_DTYPE_BF16, options->nonmodel_bytes, &r->description));
    for (uint32_t l = 0; l < LAYERS; l++) {
        param[l].access = TIDE_ACCESS_READ;
        saved[l].access = TIDE_ACCESS_WRITE;
        snprintf(name, sizeof name, "w%u", l);
        assert_ok(
            tide_description_add_param(r->description, name, &options->elements, 1, NULL, &param[l].tensor));
        name[0] = 's';
        assert_ok(tide_description_add_activation(r->description, name, 1, CHUNK_BYTES, &saved[l].tensor));
        name[0] = 'f';
        op.params = &param[l], op.activations = &saved[l], op.pass = TIDE_PASS_FORWARD;
        assert_ok(tide_description_add_op(r->description, &op, &r->forward[l]));
    }
    for (uint32_t l = LAYERS; l-- > 0;) {
        param[l].access |= TIDE_ACCESS_GRAD;
        saved[l].access = TIDE_ACCESS_READ | TIDE_ACCESS_LAST;
        snprintf(name, sizeof name, "b%u", l);
        op.params = &param[l], op.activations = &saved[l], op.pass = TIDE_PASS_BACKWARD;
        assert_ok(tide_description_add_op(r->description, &op, &r->backward[l]));
    }
}

void fixture_open(const fixture_options *options, fixture *r)
{
    *r = (fixture){.kernel_ns = MS,
                   .layers = LAYERS,
                   .clip_norm = options->clip_norm,
                   .heard = options->heard,
                   .heard_most = options->heard_most};
    tide_pool_options pool = options->pool;
    pool.trace = trace;
    pool.trace_context = r;
    describe(r, options);
    if (options->spare_chunks != UINT32_MAX) {
        tide_pool_plan plan;
        assert_ok(tide_pool_plan_make(&pool, r->description, &plan));
        pool.device_memory_bytes = plan.least_device_bytes + options->spare_chunks * plan.chunk_bytes;
    }
    assert_ok(tide_pool_create(&pool, r->description, &r->pool));
}

void fixture_close(fixture *r)
{
    tide_pool_destroy(r->pool);
    tide_description_destroy(r->description);
}

static tide_status sleep_for(void *stream, const void *arguments)
{
    (void)stream;
    const uint64_t ns = *(const uint64_t *)arguments;
    const struct timespec time = {.tv_sec = (time_t)(ns / 1000000000), .tv_nsec = (long)(ns % 1000000000)};
    nanosleep(&time, NULL);
    return TIDE_OK;
}

tide_status slow_optimizer(void *context, const tide_step_options *step, uint64_t update,
                           float gradient_scale, const tide_update_segment *segments, uint32_t count)
{
    (void)step, (void)update, (void)gradient_scale, (void)segments, (void)count;
    return sleep_for(NULL, context);
}

void caller_sleeps(const fixture *r, uint64_t ns)
{
    tide_device *device = r->pool->context.device;
    if (ns == 0)
        return;
    if (device->ops->asynchronous) {
        assert_ok(sleep_for(NULL, &ns));
        return;
    }
    const tide_work work = {.label = "sleep", .tag = UINT32_MAX, .bytes = (double)ns * BYTES_PER_NS};
    tide_event event;
    assert_ok(device->ops->event_create(device, &event));
    assert_ok(device->ops->launch(device, TIDE_STREAM_HOST, &work, sleep_for, NULL, 0));
    assert_ok(device->ops->event_record(device, event, TIDE_STREAM_HOST));
    assert_ok(device->ops->event_wait(device, event, TIDE_SITE_READ_COMPUTE));
}

void launch_sleep(const fixture *r)
{
    assert_ok(tide_launch(r->pool, "sleep", sleep_for, &r->kernel_ns, sizeof r->kernel_ns,
                          (double)r->kernel_ns * FLOPS_PER_NS, 0));
}

void run_op(fixture *r, tide_op op)
{
    assert_ok(tide_op_begin(r->pool, op));
    assert_ok(tide_op_slice(r->pool, 0));
    launch_sleep(r);
    caller_sleeps(r, r->late_ns);
    assert_ok(tide_op_end(r->pool));
}

void run_step(fixture *r, bool training)
{
    assert_ok(tide_step_begin(
        r->pool, &(tide_step_options){
                     .training = training, .learning_rate = 1, .epsilon = 1, .clip_norm = r->clip_norm}));
    caller_sleeps(r, r->away_ns);
    for (uint32_t l = 0; l < r->layers; l++)
        run_op(r, r->forward[l]);
    for (uint32_t l = r->layers; training && l-- > 0;)
        run_op(r, r->backward[l]);
    caller_sleeps(r, r->away_ns);
    assert_ok(tide_step_end(r->pool));
    caller_sleeps(r, r->away_ns);
}

uint32_t run(fixture *r, tide_pool_counters taken[STEPS])
{
    uint32_t count = 0;
    uint64_t number;
    tide_pool_counters counters;
    for (uint32_t i = 0; i < STEPS; i++) {
        run_step(r, true);
        while (tide_pool_step_counters_take(r->pool, &number, &counters)) {
            if (number > 1)
                taken[count++] = counters;
        }
    }
    assert_ok(tide_pool_drain(r->pool));
    assert_true(count >= STEPS - 3); /* updates of the last steps may not have ended */
    return count;
}

void add(tide_pool_counters *sum, const tide_pool_counters *more, double part)
{
    sum->seconds += part * more->seconds;
    sum->compute_seconds += part * more->compute_seconds;
    sum->stall_seconds += part * more->stall_seconds;
    for (int cause = 0; cause < TIDE_STALL_CAUSE_COUNT; cause++)
        sum->stall_seconds_by[cause] += part * more->stall_seconds_by[cause];
}

tide_pool_counters mean_step(fixture *r)
{
    tide_pool_counters taken[STEPS], mean = {0};
    const uint32_t count = run(r, taken);
    for (uint32_t i = 0; i < count; i++)
        add(&mean, &taken[i], 1.0 / count);
    return mean;
}

tide_pool_counters mean_of(const fixture_options *options)
{
    fixture r;
    fixture_open(options, &r);
    const tide_pool_counters mean = mean_step(&r);
    fixture_close(&r);
    return mean;
}

void fail_with(const char *what, const tide_pool_counters *counters)
{
    char text[512];
    int length = snprintf(text, sizeof text, "%s: step %.9f s, compute %.9f, stall %.9f:", what,
                          counters->seconds, counters->compute_seconds, counters->stall_seconds);
    for (int cause = 0; cause < TIDE_STALL_CAUSE_COUNT; cause++)
        length += snprintf(text + length, sizeof text - (size_t)length, " %s %.9f",
                           tide_stall_cause_name((tide_stall_cause)cause), counters->stall_seconds_by[cause]);
    fail_msg("%s", text);
}

void assert_seconds(const char *what, const tide_pool_counters *counters, double seconds, double expected)
{
    if (!(fabs(seconds - expected) <= 2e-9))
        fail_with(what, counters);
}

void assert_only(const tide_pool_counters *counters, tide_stall_cause cause)
{
    const double idle = counters->seconds - counters->compute_seconds;
    assert_true(idle > 1e-4);
    for (int c = 0; c < TIDE_STALL_CAUSE_COUNT; c++)
        assert_seconds(tide_stall_cause_name(cause), counters, counters->stall_seconds_by[c],
                       c == (int)cause ? idle : 0);
}

void assert_above_all(const tide_pool_counters *counters, tide_stall_cause cause, double least)
{
    const double seconds = counters->stall_seconds_by[cause];
    if (!(seconds >= least && seconds > counters->stall_seconds - seconds))
        fail_with(tide_stall_cause_name(cause), counters);
}
