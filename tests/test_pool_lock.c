/* Nobody sleeps with the pool's lock: while the caller of any call waits for room in the compute stream, others, the engine among
 * them, find the lock free. */
#include <pthread.h>
#include <stdatomic.h>
#include <time.h>

#include "offload/host_stream.h"
#include "src/pool/internal.h"
#include "tests/assert_ok.h"
#include "tests/toy_model.h"

enum { PROBES = 50, DEADLINE_MS = 5000 };

static void sleep_ms(long ms)
{
    nanosleep(&(struct timespec){.tv_nsec = ms * 1000000}, NULL);
}

/* --- a stream that is full --- */

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

/* `pending` commands on the compute stream, the first of which runs until the gate is opened. */
static void stream_fill(toy_model *toy, gate *it, uint32_t pending)
{
    const gate_args args = {it};
    assert_ok(tide_launch(toy->pool, "gate", wait_at_gate, &args, sizeof args, 0, 0));
    while (!atomic_load(&it->runs))
        sleep_ms(1);
    for (uint32_t i = 1; i < pending; i++)
        assert_ok(tide_launch(toy->pool, "nothing", do_nothing, NULL, 0, 0, 0));
}

/* --- a step, up to the call under test --- */

typedef enum call {
    OP_BEGIN,
    FIRST_SLICE,
    NEXT_SLICE,
    OP_END,
    BACKWARD_END, /* rounds a gradient */
    STEP_END,
    WRITE,
    CALLS,
} call;

static tide_status call_make(toy_model *toy, call which)
{
    const float value = 1;
    switch (which) {
    case OP_BEGIN:
        return tide_op_begin(toy->pool, toy->forward[1]);
    case FIRST_SLICE:
        return tide_op_slice(toy->pool, 0);
    case NEXT_SLICE:
        return tide_op_slice(toy->pool, 1);
    case OP_END:
    case BACKWARD_END:
        return tide_op_end(toy->pool);
    case STEP_END:
        return tide_step_end(toy->pool);
    case WRITE:
        return tide_write(toy->pool, tide_region(toy->pool), &value, sizeof value);
    case CALLS:
        break;
    }
    return TIDE_ERROR_INTERNAL;
}

static void op_open(toy_model *toy, tide_op op, uint32_t slices)
{
    assert_ok(tide_op_begin(toy->pool, op));
    for (uint32_t slice = 0; slice < slices; slice++)
        assert_ok(tide_op_slice(toy->pool, slice));
}

static void op_run(toy_model *toy, tide_op op, uint32_t slices)
{
    op_open(toy, op, slices);
    assert_ok(tide_op_end(toy->pool));
}

static void forward_and_head(toy_model *toy)
{
    for (int l = 0; l < TOY_LAYERS; l++)
        op_run(toy, toy->forward[l], TOY_SLICES);
    op_run(toy, toy->head, 0);
}

static void step_up_to(toy_model *toy, call which)
{
    const tide_step_options options = toy_step_options(1);
    assert_ok(tide_step_begin(toy->pool, &options));
    switch (which) {
    case FIRST_SLICE:
        op_open(toy, toy->forward[0], 0);
        break;
    case NEXT_SLICE:
        op_open(toy, toy->forward[0], 1);
        break;
    case OP_END:
        op_open(toy, toy->forward[0], TOY_SLICES);
        break;
    case BACKWARD_END:
        forward_and_head(toy);
        op_open(toy, toy->backward[TOY_LAYERS - 1], TOY_SLICES);
        break;
    case STEP_END:
        forward_and_head(toy);
        for (int l = TOY_LAYERS; l-- > 0;)
            op_run(toy, toy->backward[l], TOY_SLICES);
        break;
    case OP_BEGIN:
        op_run(toy, toy->forward[0], TOY_SLICES);
        break;
    case WRITE:
    case CALLS:
        break;
    }
}

/* --- caller and prober --- */

typedef struct caller {
    toy_model *toy;
    call which;
    tide_status status;
} caller;

static void *caller_main(void *argument)
{
    caller *it = argument;
    it->status = call_make(it->toy, it->which);
    return NULL;
}

typedef struct prober {
    toy_model *toy;
    atomic_uint found; /* how often the lock was free */
} prober;

static void *prober_main(void *argument)
{
    prober *it = argument;
    tide_pool_counters counters;
    while (atomic_load(&it->found) < PROBES) {
        assert_ok(tide_pool_counters_get(it->toy->pool, &counters));
        atomic_fetch_add(&it->found, 1);
        sleep_ms(1);
    }
    return NULL;
}

static bool probes_end(prober *it)
{
    for (int ms = 0; ms < DEADLINE_MS && atomic_load(&it->found) < PROBES; ms++)
        sleep_ms(1);
    return atomic_load(&it->found) == PROBES;
}

static void check_call(call which, uint32_t pending)
{
    toy_model toy;
    gate held = {false, false};
    const toy_options options = toy_options_default();
    assert_ok(toy_create(&options, &toy));
    step_up_to(&toy, which);
    stream_fill(&toy, &held, pending);
    caller calling = {&toy, which, TIDE_ERROR_INTERNAL};
    prober probing = {&toy, 0};
    pthread_t threads[2];
    assert_int_equal(pthread_create(&threads[0], NULL, caller_main, &calling), 0);
    sleep_ms(20); /* it sleeps by then, or is done */
    assert_int_equal(pthread_create(&threads[1], NULL, prober_main, &probing), 0);
    const bool lock_was_free = probes_end(&probing);
    atomic_store(&held.open, true);
    for (int i = 0; i < 2; i++)
        assert_int_equal(pthread_join(threads[i], NULL), 0);
    if (!lock_was_free)
        fail_msg("call %d with %u commands pending: the lock was taken for %d ms", which, pending,
                 DEADLINE_MS);
    assert_ok(calling.status);
    if (which != STEP_END)
        assert_ok(tide_step_abort(toy.pool));
    toy_destroy(&toy);
}

static void who_waits_for_room_leaves_the_lock_to_others(void **state)
{
    (void)state;
    for (call which = 0; which < CALLS; which++) {
        check_call(which, TIDE_HOST_RING_COMMANDS);     /* full */
        check_call(which, TIDE_HOST_RING_COMMANDS - 1); /* of its commands the second meets that */
        check_call(which, TIDE_HOST_RING_COMMANDS - TIDE_ROOM_COMMANDS +
                              1); /* less than the room that it makes sure of */
    }
}

/* --- the norm's copy, which the engine makes with the lock --- */

static void norm_is_copied_when_the_stream_has_room(void **state)
{
    (void)state;
    toy_model toy;
    gate held = {false, false};
    const toy_options options = toy_options_default();
    assert_ok(toy_create(&options, &toy));
    step_up_to(&toy, STEP_END);
    stream_fill(&toy, &held, TIDE_HOST_RING_COMMANDS - TIDE_ROOM_COMMANDS);
    assert_ok(tide_step_end(toy.pool)); /* the norm's sum; fewer than that many are free now */
    prober probing = {&toy, 0};
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, prober_main, &probing), 0);
    const bool lock_was_free = probes_end(&probing);
    atomic_store(&held.open, true);
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_true(lock_was_free);
    tide_step_result result;
    assert_ok(tide_step_result_get(toy.pool, &result));
    toy_destroy(&toy);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(who_waits_for_room_leaves_the_lock_to_others),
        cmocka_unit_test(norm_is_copied_when_the_stream_has_room),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
