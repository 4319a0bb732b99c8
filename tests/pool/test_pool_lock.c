/* No thread sleeps while it holds the pool's lock. While a call waits for free space in the compute stream,
 * other threads, the engine among them, must find the lock free. Each test fills a stream behind a kernel
 * that blocks, makes a call from one thread, and takes the lock again and again from another. */
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "offload/host/host_stream.h"
#include "src/pool/internal.h"
#include "tests/support/assert_ok.h"
#include "tests/support/pool_fixture.h"
#include "tests/support/test_thin.h"

enum { PROBES = 20, DEADLINE_MS = 5000 };

static void sleep_ms(long ms)
{
    nanosleep(&(struct timespec){.tv_nsec = ms * 1000000}, NULL);
}

/* --- fill a stream --- */

typedef struct gate {
    atomic_bool runs, open;
} gate;

typedef struct gate_args {
    gate *gate;
} gate_args;

static tide_status wait_at_gate(void *stream, const void *arguments)
{
    (void)stream;
    gate *it = ((const gate_args *)arguments)->gate;
    atomic_store(&it->runs, true);
    while (!atomic_load(&it->open))
        sleep_ms(1);
    return TIDE_OK;
}

static tide_status do_nothing(void *stream, const void *arguments)
{
    (void)stream, (void)arguments;
    return TIDE_OK;
}

/* Put `pending` commands on the compute stream. The first one runs until the gate is opened. */
static void stream_fill(tide_pool *pool, gate *it, uint32_t pending)
{
    const gate_args args = {it};
    assert_ok(tide_launch(pool, "gate", wait_at_gate, &args, sizeof args, 0, 0));
    while (!atomic_load(&it->runs))
        sleep_ms(1);
    for (uint32_t i = 1; i < pending; i++)
        assert_ok(tide_launch(pool, "nothing", do_nothing, NULL, 0, 0, 0));
}

/* --- run a step up to the call under test --- */

typedef enum call {
    OP_BEGIN,
    FIRST_SLICE,
    NEXT_SLICE,
    OP_END,
    BACKWARD_END, /* ends an op and rounds its gradient */
    STEP_END,
    WRITE,
    CALLS,
} call;

static tide_status call_make(pool_fixture *fixture, call which)
{
    const float value = 1;
    switch (which) {
    case OP_BEGIN:
        return tide_op_begin(fixture->pool, fixture->forward[1]);
    case FIRST_SLICE:
        return tide_op_slice(fixture->pool, 0);
    case NEXT_SLICE:
        return tide_op_slice(fixture->pool, 1);
    case OP_END:
    case BACKWARD_END:
        return tide_op_end(fixture->pool);
    case STEP_END:
        return tide_step_end(fixture->pool);
    case WRITE:
        return tide_write(fixture->pool, tide_region(fixture->pool), &value, sizeof value);
    case CALLS:
        break;
    }
    return TIDE_ERROR_INTERNAL;
}

static void op_open(pool_fixture *fixture, tide_op op, uint32_t slices)
{
    assert_ok(tide_op_begin(fixture->pool, op));
    for (uint32_t slice = 0; slice < slices; slice++)
        assert_ok(tide_op_slice(fixture->pool, slice));
}

static void op_run(pool_fixture *fixture, tide_op op, uint32_t slices)
{
    op_open(fixture, op, slices);
    assert_ok(tide_op_end(fixture->pool));
}

static void forward_and_head(pool_fixture *fixture)
{
    for (int l = 0; l < FIXTURE_LAYERS; l++)
        op_run(fixture, fixture->forward[l], FIXTURE_SLICES);
    op_run(fixture, fixture->head, 0);
}

static void step_up_to(pool_fixture *fixture, call which)
{
    const tide_step_options options = pool_fixture_step_options(1);
    assert_ok(tide_step_begin(fixture->pool, &options));
    switch (which) {
    case FIRST_SLICE:
        op_open(fixture, fixture->forward[0], 0);
        break;
    case NEXT_SLICE:
        op_open(fixture, fixture->forward[0], 1);
        break;
    case OP_END:
        op_open(fixture, fixture->forward[0], FIXTURE_SLICES);
        break;
    case BACKWARD_END:
        forward_and_head(fixture);
        op_open(fixture, fixture->backward[FIXTURE_LAYERS - 1], FIXTURE_SLICES);
        break;
    case STEP_END:
        forward_and_head(fixture);
        for (int l = FIXTURE_LAYERS; l-- > 0;)
            op_run(fixture, fixture->backward[l], FIXTURE_SLICES);
        break;
    case OP_BEGIN:
        op_run(fixture, fixture->forward[0], FIXTURE_SLICES);
        break;
    case WRITE:
    case CALLS:
        break;
    }
}

/* --- the thread that calls, and the thread that takes the lock --- */

typedef struct caller {
    pool_fixture *fixture;
    call which;
    tide_status status;
} caller;

static void *caller_main(void *argument)
{
    caller *it = argument;
    it->status = call_make(it->fixture, it->which);
    return NULL;
}

typedef struct prober {
    tide_pool *pool;
    atomic_uint found; /* how often the prober took the lock */
} prober;

static void *prober_main(void *argument)
{
    prober *it = argument;
    tide_pool_counters counters;
    while (atomic_load(&it->found) < PROBES) {
        assert_ok(tide_pool_counters_get(it->pool, &counters));
        atomic_fetch_add(&it->found, 1);
        sleep_ms(1);
    }
    return NULL;
}

static pthread_t call_begin(void *(*entry)(void *), void *argument)
{
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, entry, argument), 0);
    sleep_ms(20); /* time for the call to return or to fall asleep */
    return thread;
}

/* Can another thread take the lock again and again? Opens the gate afterwards. */
static bool lock_is_free(tide_pool *pool, gate *held)
{
    prober it = {pool, 0};
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, prober_main, &it), 0);
    for (int ms = 0; ms < DEADLINE_MS && atomic_load(&it.found) < PROBES; ms++)
        sleep_ms(1);
    const bool was_free = atomic_load(&it.found) == PROBES;
    atomic_store(&held->open, true);
    assert_int_equal(pthread_join(thread, NULL), 0);
    return was_free;
}

static void check_call(call which, uint32_t pending, bool guard)
{
    pool_fixture fixture;
    gate held = {false, false};
    pool_fixture_options options = pool_fixture_options_default();
    options.pool.checks.guard = guard;
    assert_ok(pool_fixture_create(&options, &fixture));
    step_up_to(&fixture, which);
    stream_fill(fixture.pool, &held, pending);
    caller calling = {&fixture, which, TIDE_ERROR_INTERNAL};
    const pthread_t thread = call_begin(caller_main, &calling);
    if (!lock_is_free(fixture.pool, &held))
        fail_msg("call %d with %u commands pending: the lock was taken for %d ms", which, pending,
                 DEADLINE_MS);
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_ok(calling.status);
    if (which != STEP_END)
        assert_ok(tide_step_abort(fixture.pool));
    pool_fixture_destroy(&fixture);
}

static void who_waits_for_room_leaves_the_lock_to_others(void **state)
{
    /* the stream is full; one command is free; one command fewer is free than the call needs */
    const uint32_t pending[] = {TIDE_HOST_RING_COMMANDS, TIDE_HOST_RING_COMMANDS - 1,
                                TIDE_HOST_RING_COMMANDS - TIDE_CAPACITY_COMMANDS + 1};
    for (call which = 0; which < CALLS; which++) {
        for (unsigned i = which % test_thin(2); i < 6; i += test_thin(2))
            check_call(which, pending[i / 2], i % 2);
    }
}

/* --- the norm's copy, which the engine enqueues while it holds the lock --- */

static void norm_is_copied_when_the_stream_has_capacity(void **state)
{
    pool_fixture fixture;
    gate held = {false, false};
    const pool_fixture_options options = pool_fixture_options_default();
    assert_ok(pool_fixture_create(&options, &fixture));
    step_up_to(&fixture, STEP_END);
    stream_fill(fixture.pool, &held, TIDE_HOST_RING_COMMANDS - TIDE_CAPACITY_COMMANDS);
    /* enqueues the sum for the norm; less free space is left now than a call needs */
    assert_ok(tide_step_end(fixture.pool));
    assert_true(lock_is_free(fixture.pool, &held));
    tide_step_result result;
    assert_ok(tide_step_result_get(fixture.pool, &result));
    pool_fixture_destroy(&fixture);
}

/* --- more commands than a stream can hold --- */

enum { CHUNK_BYTES = 256 * 1024, CHUNK_PARAMS = CHUNK_BYTES / 2, SMALL_PARAMS = 128 };

/* Params that follow each other in memory. One forward and one backward op read them all; the backward op
 * makes the gradients of the first ones. */
typedef struct row_pool {
    tide_description *description;
    tide_pool *pool;
    tide_param params[TIDE_HOST_RING_COMMANDS + 50];
    tide_op forward, backward;
} row_pool;

static void row_op(row_pool *row, tide_pass pass, uint32_t count, uint32_t gradients, tide_op *op)
{
    tide_use uses[TIDE_HOST_RING_COMMANDS + 50];
    for (uint32_t i = 0; i < count; i++)
        uses[i] = (tide_use){row->params[i], TIDE_ACCESS_READ | (i < gradients ? TIDE_ACCESS_GRAD : 0)};
    const tide_op_description described = {.name = "all", .pass = pass, .params = uses, .param_count = count};
    assert_ok(tide_description_add_op(row->description, &described, op));
}

static tide_pool_options row_options(void)
{
    tide_pool_options options;
    tide_pool_options_default(&options);
    options.chunk_bytes = CHUNK_BYTES;
    options.threads = 1;
    options.checks.hazard_check = true;
    return options;
}

/* All values are zeros, for no kernel reads them. */
static void row_make(row_pool *row, const tide_pool_options *options, uint32_t count, uint32_t gradients,
                     uint64_t elements)
{
    assert_true(count <= sizeof row->params / sizeof row->params[0]);
    assert_ok(tide_description_create(TIDE_DTYPE_BF16, 4096, &row->description));
    for (uint32_t i = 0; i < count; i++) {
        char name[16];
        (void)snprintf(name, sizeof name, "p%u", i);
        assert_ok(tide_description_add_param(row->description, name, &elements, 1, NULL, &row->params[i]));
    }
    row_op(row, TIDE_PASS_FORWARD, count, 0, &row->forward);
    row_op(row, TIDE_PASS_BACKWARD, count, gradients, &row->backward);
    assert_ok(tide_pool_create(options, row->description, &row->pool));
}

static void row_destroy(row_pool *row)
{
    tide_pool_destroy(row->pool);
    tide_description_destroy(row->description);
}

static void row_run(const row_pool *row, tide_op op)
{
    assert_ok(tide_op_begin(row->pool, op));
    assert_ok(tide_launch(row->pool, "nothing", do_nothing, NULL, 0, 0, 0));
    assert_ok(tide_op_end(row->pool));
}

/* The link is so slow that the copies wait in its queue. */
static void op_of_more_chunks_than_the_link_takes_at_once(void **state)
{
    row_pool row;
    tide_pool_options options = row_options();
    options.placement = TIDE_PLACEMENT_HOST;
    options.link_bytes_per_second = 2e9;
    row_make(&row, &options, 300, 1, CHUNK_PARAMS);
    const tide_step_options step = {.training = false};
    assert_ok(tide_step_begin(row.pool, &step));
    row_run(&row, row.forward);
    assert_ok(tide_step_end(row.pool));
    row_destroy(&row);
}

/* The update of a param on the device and the copy of a param that the host has just set are both pending
 * when the op begins. The op's begin must wait for both and reserves stream space for exactly these two
 * waits. */
static void two_waits_fit_in_the_room_that_is_made(void **state)
{
    row_pool row;
    gate held = {false, false};
    tide_pool_options options = row_options();
    options.placement = TIDE_PLACEMENT_DEVICE;
    options.checks.delay_seed = 1;
    options.checks.delay_max_us = 30000;
    row_make(&row, &options, 8, 1, CHUNK_PARAMS);
    const tide_step_options step = pool_fixture_step_options(1);
    const float one = 1;
    assert_ok(tide_step_begin(row.pool, &step));
    row_run(&row, row.forward);
    row_run(&row, row.backward);
    assert_ok(tide_step_end(row.pool));
    assert_ok(tide_param_set(row.pool, row.params[0], TIDE_VALUE_MASTER, 0, 1, &one));
    assert_ok(tide_step_begin(row.pool, &step));
    stream_fill(row.pool, &held, TIDE_HOST_RING_COMMANDS - TIDE_CAPACITY_COMMANDS);
    assert_ok(tide_op_begin(row.pool, row.forward));
    atomic_store(&held.open, true);
    assert_ok(tide_op_end(row.pool));
    assert_ok(tide_step_abort(row.pool));
    row_destroy(&row);
}

static void *end_main(void *argument)
{
    assert_ok(tide_op_end(argument));
    return NULL;
}

/* Each rounding takes two launches, so they need more space than the end of the op has reserved. */
static void roundings_of_many_gradients_leave_the_lock(void **state)
{
    row_pool row;
    gate held = {false, false};
    const tide_pool_options options = row_options();
    const tide_step_options step = pool_fixture_step_options(1);
    row_make(&row, &options, 20, 20, SMALL_PARAMS);
    assert_ok(tide_step_begin(row.pool, &step));
    assert_ok(tide_op_begin(row.pool, row.backward));
    stream_fill(row.pool, &held, TIDE_HOST_RING_COMMANDS - TIDE_CAPACITY_COMMANDS);
    const pthread_t thread = call_begin(end_main, row.pool);
    assert_true(lock_is_free(row.pool, &held));
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_ok(tide_step_abort(row.pool));
    row_destroy(&row);
}

/* Most params of this chunk get no gradient, and the update zeroes each of them with its own launch: more
 * launches than the update stream holds. A gate blocks that stream while the engine waits for the norm. The
 * engine must not sleep with the lock until commands of others end. */
static void update_of_more_launches_than_its_stream_takes_leaves_the_lock(void **state)
{
    row_pool row;
    gate norm_held = {false, false}, held = {false, false};
    const gate_args args = {&held};
    const tide_work work = {.label = "gate"};
    tide_pool_options options = row_options();
    options.placement = TIDE_PLACEMENT_DEVICE;
    row_make(&row, &options, TIDE_HOST_RING_COMMANDS + 50, 1, SMALL_PARAMS);
    tide_device *device = row.pool->context.device;
    tide_step_options step = pool_fixture_step_options(1);
    step.clip_norm = 1; /* so updates wait for the norm */
    assert_ok(tide_step_begin(row.pool, &step));
    row_run(&row, row.backward);
    stream_fill(row.pool, &norm_held, 1);
    assert_ok(tide_step_end(row.pool));
    assert_ok(device->ops->launch(device, TIDE_STREAM_UPDATE, &work, wait_at_gate, &args, sizeof args));
    atomic_store(&norm_held.open, true);
    while (device->ops->has_capacity(device, TIDE_STREAM_UPDATE, false))
        sleep_ms(1); /* until the engine has filled the stream */
    assert_true(lock_is_free(row.pool, &held));
    assert_ok(tide_pool_drain(row.pool));
    row_destroy(&row);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(who_waits_for_room_leaves_the_lock_to_others),
        cmocka_unit_test(norm_is_copied_when_the_stream_has_capacity),
        cmocka_unit_test(op_of_more_chunks_than_the_link_takes_at_once),
        cmocka_unit_test(two_waits_fit_in_the_room_that_is_made),
        cmocka_unit_test(roundings_of_many_gradients_leave_the_lock),
        cmocka_unit_test(update_of_more_launches_than_its_stream_takes_leaves_the_lock),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
