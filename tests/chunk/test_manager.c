/* The manager's choices, messages and counters. test_manager_random.c compares every command with a reference
 * model, but the model makes no choices, reads no messages and counts no copies. So the cases here show the
 * order of moves, the tiers that AUTO gives to updates, prefetch, waits, counters and refusals.
 *
 * Params are fp32 and one chunk large, so param i is chunk i; the STATE chunks follow the params' chunks. The
 * engine carries out commands at once and logs them, unless a test says otherwise.
 */
#include "chunk/manager_internal.h"
#include "tests/support/assert_ok.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

enum { CHUNK_BYTES = 4096, ELEMENTS = CHUNK_BYTES / 4, LOG_MAX = 4096, READ = TIDE_ACCESS_READ };
enum { GRAD = TIDE_ACCESS_GRAD, WRITE = TIDE_ACCESS_WRITE, LAST = TIDE_ACCESS_LAST, ALL = 1000 };

/* With `momentum` the state of a param is one chunk of its own, so its update is one piece. With
 * `five_bytes` a STATE chunk holds the state of 768 elements. Every PARAM chunk then has two pieces, and
 * chunk 1 of three shares both of its STATE chunks:
 *
 *     elements  0         768   1024  1536    2048  2304    3072
 *     PARAM     |      0        |        1      |      2      |
 *     STATE     |    3     |      4     |      5     |   6    |
 */
#define MOMENTUM                                                                                             \
    {                                                                                                        \
        1,                                                                                                   \
        {                                                                                                    \
            128                                                                                              \
        }                                                                                                    \
    }
#define FIVE_BYTES                                                                                           \
    {                                                                                                        \
        1,                                                                                                   \
        {                                                                                                    \
            160                                                                                              \
        }                                                                                                    \
    }
#define ADAMW                                                                                                \
    {                                                                                                        \
        3,                                                                                                   \
        {                                                                                                    \
            128, 128, 128                                                                                    \
        }                                                                                                    \
    }
#define FROZEN                                                                                               \
    {                                                                                                        \
        0,                                                                                                   \
        {                                                                                                    \
            0                                                                                                \
        }                                                                                                    \
    }

static const tide_state_format momentum[] = {MOMENTUM}, five_bytes[] = {FIVE_BYTES},
                               some_frozen[] = {FIVE_BYTES, FROZEN};

static struct {
    tide_description *description;
    tide_layout *layout;
    tide_manager *manager;
    uint32_t params;
    uint32_t log_count;
    tide_command log[LOG_MAX];
} f;

/* --- set-up --- */

/* Describe a model with `params` params, whose formats follow each other in `classes` equal groups. */
static void arrange(const tide_state_format *formats, uint32_t classes, uint32_t params)
{
    const uint64_t elements = ELEMENTS;
    char name[16];
    uint32_t number;
    memset(&f, 0, sizeof f);
    f.params = params;
    assert_int_equal(tide_description_create(TIDE_DTYPE_FP32, 0, &f.description), TIDE_OK);
    for (uint32_t i = 0; i < params; i++) {
        const tide_state_format *format = &formats[i * classes / params];
        const tide_param_class of_class = {.frozen = format->planes == 0, .state = *format};
        snprintf(name, sizeof name, "param%u", i);
        assert_int_equal(tide_description_add_param(f.description, name, &elements, 1, &of_class, &number),
                         TIDE_OK);
    }
}

static tide_op add_op(tide_pass pass, uint32_t param, uint32_t access)
{
    tide_op op;
    const tide_use use = {.tensor = param, .access = access};
    const tide_op_description d = {.name = "op", .pass = pass, .params = &use, .param_count = 1};
    assert_int_equal(tide_description_add_op(f.description, &d, &op), TIDE_OK);
    return op;
}

/* Add forward ops; op i reads param i. If any params are trained, also add as many backward ops, which read
 * the params again in reverse order and make the gradients of the first `trained` params. */
static void add_chain(uint32_t trained)
{
    for (uint32_t i = 0; i < f.params; i++)
        add_op(TIDE_PASS_FORWARD, i, READ);
    for (uint32_t i = f.params; trained > 0 && i-- > 0;)
        add_op(TIDE_PASS_BACKWARD, i, i < trained ? READ | GRAD : READ);
}

/* Add a tensor of `parts` chunks. */
static void add_activation(uint32_t parts)
{
    uint32_t number;
    assert_int_equal(tide_description_add_activation(f.description, "tensor", parts, CHUNK_BYTES, &number),
                     TIDE_OK);
}

/* Add an op that uses the tensor, a part per slice. */
static tide_op add_slices(uint32_t access, uint32_t slices)
{
    tide_op op;
    const tide_use use = {.tensor = 0, .access = access};
    const tide_op_description d = {.name = "slices",
                                   .pass = TIDE_PASS_FORWARD,
                                   .activations = &use,
                                   .activation_count = 1,
                                   .slices = slices};
    assert_int_equal(tide_description_add_op(f.description, &d, &op), TIDE_OK);
    return op;
}

static void make_layout(void)
{
    assert_int_equal(tide_layout_create(f.description, CHUNK_BYTES, TIDE_SHARD_ALL, &f.layout), TIDE_OK);
}

/* Make the manager, and the layout if the test has not. */
static void make_manager(uint32_t device, uint32_t host, tide_placement placement, bool prefetch)
{
    if (!f.layout)
        make_layout();
    const tide_manager_options options = {
        .device_slots = device, .host_slots = host, .placement = placement, .prefetch = prefetch};
    assert_int_equal(tide_manager_create(f.layout, &options, &f.manager), TIDE_OK);
    f.manager->deep_checks = true;
}

/* Params with `momentum`, and a chain of ops. */
static void arrange_chain(uint32_t params, uint32_t trained, uint32_t device, uint32_t host,
                          tide_placement placement, bool prefetch)
{
    arrange(momentum, 1, params);
    add_chain(trained);
    make_manager(device, host, placement, prefetch);
}

static int clean_up(void **state)
{
    tide_manager_destroy(f.manager);
    tide_layout_destroy(f.layout);
    tide_description_destroy(f.description);
    memset(&f, 0, sizeof f);
    return 0;
}

/* --- run ops and commands --- */

/* Carry out one command. False if there is none. */
static bool step_engine(void)
{
    tide_command command;
    if (!tide_manager_next(f.manager, &command))
        return false;
    assert_true(f.log_count < LOG_MAX);
    f.log[f.log_count++] = command;
    tide_manager_done(f.manager, command.id, TIDE_OK);
    return true;
}

static void run_engine(void)
{
    while (step_engine())
        ;
    assert_false(tide_manager_is_stuck(f.manager));
}

/* Begin an op and carry out commands until it is ready. */
static void begin(tide_op op)
{
    assert_int_equal(tide_manager_begin(f.manager, op), TIDE_OK);
    while (!tide_manager_ready(f.manager) && step_engine())
        ;
    assert_true(tide_manager_ready(f.manager));
}

static void end(void)
{
    assert_int_equal(tide_manager_end(f.manager), TIDE_OK);
}

static void run_op(tide_op op)
{
    begin(op);
    end();
}

static void run_ops(tide_op first, tide_op last)
{
    for (tide_op op = first; op <= last; op++)
        run_op(op);
}

static void run_slices(tide_op op, uint32_t count)
{
    begin(op);
    for (uint32_t slice = 0; slice < count; slice++) {
        assert_int_equal(tide_manager_slice(f.manager, slice), TIDE_OK);
        run_engine();
        assert_true(tide_manager_ready(f.manager));
    }
}

static void step_begin(bool training, bool waits)
{
    assert_int_equal(tide_manager_step_begin(f.manager, training, waits), TIDE_OK);
}

static void step_end(void)
{
    assert_int_equal(tide_manager_step_end(f.manager), TIDE_OK);
}

static void release(void)
{
    assert_int_equal(tide_manager_release_updates(f.manager), TIDE_OK);
}

static void forward_pass(void)
{
    step_begin(false, false);
    run_ops(0, f.params - 1);
    step_end();
}

/* Train a step of a chain, and carry out its updates: after each backward op, or with `waits` at the end. */
static void train(bool waits)
{
    step_begin(true, waits);
    for (tide_op op = 0; op < 2 * f.params; op++) {
        run_op(op);
        if (!waits && op >= f.params)
            run_engine();
    }
    step_end();
    if (waits)
        release();
    run_engine();
}

static void access_chunk(tide_chunk chunk, uint32_t access)
{
    const tide_use use = {.tensor = chunk, .access = access};
    assert_int_equal(tide_manager_host_request(f.manager, &use, 1), TIDE_OK);
    run_engine();
}

/* Set chunks, then clear the log. */
static void set_chunks(tide_chunk first, tide_chunk last)
{
    for (tide_chunk chunk = first; chunk <= last; chunk++)
        access_chunk(chunk, WRITE);
    f.log_count = 0;
}

/* --- look at the result --- */

static tide_manager_counters counters(void)
{
    tide_manager_counters c;
    tide_manager_counters_get(f.manager, &c);
    return c;
}

/* The first command of this kind in the log that is for `chunk`, or for any chunk if that is ALL; NULL if
 * there is none. */
static const tide_command *find(tide_command_kind kind, tide_chunk chunk)
{
    for (uint32_t i = 0; i < f.log_count; i++)
        if (f.log[i].kind == kind && (chunk == ALL || f.log[i].chunk == chunk))
            return &f.log[i];
    return NULL;
}

/* The number of commands of this kind in the log for chunks from `first` on. */
static uint32_t count_from(tide_command_kind kind, tide_chunk first)
{
    uint32_t found = 0;
    for (uint32_t i = 0; i < f.log_count; i++)
        found += f.log[i].kind == kind && f.log[i].chunk >= first;
    return found;
}

static uint32_t count(tide_command_kind kind)
{
    return count_from(kind, 0);
}

/* Bit i: the device updates chunk i. */
static uint32_t updated_on_device(void)
{
    uint32_t chunks = 0;
    for (tide_chunk chunk = 0; chunk < f.params; chunk++)
        chunks |= (uint32_t)tide_manager_updates_on_device(f.manager, chunk) << chunk;
    return chunks;
}

/* --- moves --- */

static void a_chunk_that_is_to_leave_stays_if_it_is_used_again_first(void **state)
{
    arrange_chain(4, 0, 2, 20, TIDE_PLACEMENT_HOST, true);
    set_chunks(0, 3);
    forward_pass(); /* this pass is recorded */
    forward_pass(); /* this one follows the plan */
    run_engine();
    step_begin(false, false);
    run_op(0); /* the plan now evicts chunk 0, but the test does not ask for the command */
    assert_int_equal(tide_manager_begin(f.manager, 0), TIDE_OK);
    assert_true(tide_manager_ready(f.manager));
    end();
    f.log_count = 0;
    run_engine(); /* the pass deviates from the recorded order, so no plan applies */
    assert_int_equal(count(TIDE_COMMAND_EVICT), 0);
}

static void no_more_victims_leave_than_slots_are_missing(void **state)
{
    tide_command command, another;
    arrange_chain(3, 0, 2, 20, TIDE_PLACEMENT_HOST, false);
    step_begin(false, false);
    run_ops(0, 1);
    assert_int_equal(tide_manager_begin(f.manager, 2), TIDE_OK);
    assert_true(tide_manager_next(f.manager, &command));
    assert_int_equal(command.kind, TIDE_COMMAND_EVICT);
    assert_false(tide_manager_next(f.manager, &another)); /* the open eviction will provide the slot */
    clean_up(state);

    /* An update of one of the three params needs a slot for its state, too. */
    arrange_chain(3, 3, 3, 20, TIDE_PLACEMENT_DEVICE, false);
    step_begin(true, true);
    run_ops(0, 5);
    step_end();
    release();
    assert_true(tide_manager_next(f.manager, &command));
    assert_int_equal(command.kind, TIDE_COMMAND_EVICT);
    assert_int_equal(command.chunk, 2);
    assert_false(tide_manager_next(f.manager, &another));
}

/* The host is full. It must free slots by returning chunks that it has updated to the device slots that wait
 * for them, before it promotes state that only lies there. */
static void the_host_gets_room_by_what_it_has_updated(void **state)
{
    arrange_chain(4, 4, 5, 5, TIDE_PLACEMENT_HOST, false); /* 8 chunks and two spare slots */
    for (int step = 0; step < 4; step++) {
        f.log_count = 0;
        train(true);
    }
    uint32_t returned = 0, state_promoted = 0;
    for (uint32_t i = 0; i < f.log_count; i++) {
        const tide_command *c = &f.log[i];
        const bool promote = c->kind == TIDE_COMMAND_FETCH && c->reason == TIDE_REASON_PROMOTE;
        returned += promote && c->in_place && c->chunk < 4;
        state_promoted += promote && c->chunk >= 4;
    }
    assert_in_range(returned, 1, 4);
    assert_int_equal(state_promoted, 0);
}

static void what_a_slice_wrote_leaves_for_what_comes_next(void **state)
{
    arrange(momentum, 1, 1);
    add_activation(3);
    add_slices(WRITE, 3);
    add_slices(READ | LAST, 3);
    make_manager(2, 20, TIDE_PLACEMENT_HOST, true);
    step_begin(false, false);
    for (tide_op op = 0; op < 2; op++) {
        run_slices(op, 3);
        end();
    }
    step_end(); /* this pass is recorded */
    f.log_count = 0;
    step_begin(false, false);
    run_slices(0, 2);
    assert_true(find(TIDE_COMMAND_EVICT, 2)->copy);
    assert_int_equal(find(TIDE_COMMAND_FETCH, 4)->reason, TIDE_REASON_PREFETCH);
}

static void a_skipped_step_restores_without_copying_the_gradient(void **state)
{
    arrange_chain(2, 2, 2, 20, TIDE_PLACEMENT_HOST, false);
    set_chunks(0, 3);
    step_begin(true, true);
    run_ops(0, 2); /* param 1 has a gradient, param 0 has none */
    step_end();
    assert_int_equal(tide_manager_skip_updates(f.manager), TIDE_OK);
    run_engine();
    assert_int_equal(count(TIDE_COMMAND_RESTORE), 1);
    assert_non_null(find(TIDE_COMMAND_RESTORE, 1));
    assert_false(find(TIDE_COMMAND_EVICT, 1)->copy);
}

/* With too few slots beside the open op, a task gets only some of its chunks, which would block the next
 * op. */
static void an_update_assembles_nothing_beside_an_op_that_leaves_it_too_little(void **state)
{
    arrange(five_bytes, 1, 3);
    add_chain(3);
    make_manager(2, 8, TIDE_PLACEMENT_DEVICE, false);
    step_begin(true, true);
    run_ops(0, 5);
    step_end();
    release();
    step_begin(true, true);
    begin(2); /* first carries out the update of chunk 2 */
    f.log_count = 0;
    run_engine();
    assert_int_equal(count(TIDE_COMMAND_FETCH) + count(TIDE_COMMAND_EVICT), 0);
    assert_int_equal(tide_manager_updates_open(f.manager), 2 * 2);
    end();
    run_engine();
    assert_int_equal(tide_manager_updates_open(f.manager), 0);
}

/* There is only one slot for state, yet each STATE chunk is fetched once. With updates during backward this
 * holds only until ops follow a recording: then the state for an op's own update counts as far away as soon
 * as the op has begun, and may leave for the op's param. */
static void the_state_on_a_border_is_used_twice_in_a_row(void **state)
{
    for (int waits = 0; waits < 2; waits++) {
        arrange(five_bytes, 1, 3);
        add_chain(3);
        make_manager(2, 8, TIDE_PLACEMENT_DEVICE, false);
        for (int step = 0; step < (waits ? 3 : 1); step++) {
            f.log_count = 0;
            train(waits);
            assert_int_equal(count(TIDE_COMMAND_UPDATE), 3 * 2);
            assert_int_equal(count_from(TIDE_COMMAND_FETCH, 3), 4);
            const tide_command *first = find(TIDE_COMMAND_UPDATE, ALL);
            assert_int_equal(first->chunk, waits ? 0 : 2);
            assert_int_equal(first->piece, waits ? 0 : 1);
        }
        clean_up(state);
    }
}

static void a_chunk_updated_on_the_host_keeps_its_slot_where_there_are_enough(void **state)
{
    arrange_chain(4, 4, 4, 20, TIDE_PLACEMENT_HOST, true);
    for (int step = 0; step < 4; step++) {
        f.log_count = 0;
        train(false);
    }
    assert_int_equal(count(TIDE_COMMAND_EVICT), 0);
    assert_int_equal(count(TIDE_COMMAND_WRITE_BACK), 4);
    assert_int_equal(count(TIDE_COMMAND_FETCH), 4);
    for (tide_chunk chunk = 0; chunk < 4; chunk++) {
        const tide_command *fetch = find(TIDE_COMMAND_FETCH, chunk);
        assert_true(fetch->in_place && fetch->copy && !fetch->zero);
        assert_int_equal(fetch->device_slot, find(TIDE_COMMAND_WRITE_BACK, chunk)->device_slot);
    }
}

/* The first half of the params is trained, the second half frozen; backward uses both. */
static void frozen_chunks_that_backward_reads_again_are_kept_for_it(void **state)
{
    enum { EACH = 12, ROUNDS = 4 };
    arrange(some_frozen, 2, 2 * EACH);
    add_chain(EACH);
    make_manager(EACH + 1, 64, TIDE_PLACEMENT_HOST, true);
    for (int step = 0; step < 2 * ROUNDS; step++) {
        f.log_count = step == ROUNDS ? 0 : f.log_count;
        train(false);
    }
    /* The slots hold one half of the params. Backward begins with the chunks that forward left there, and
     * the other half is fetched again. */
    assert_in_range(count(TIDE_COMMAND_FETCH), ROUNDS * EACH, ROUNDS * (2 * EACH + 1));
}

/* --- the host request --- */

/* A host request writes a chunk back that the device alone has, and to free a host slot it spares the chunk
 * of the request before. */
static void a_host_request_spares_what_the_last_one_was_about(void **state)
{
    arrange_chain(3, 0, 3, 5, TIDE_PLACEMENT_HOST, false);
    set_chunks(3, 5);
    forward_pass(); /* all three chunks now have zeros that only the device has */
    access_chunk(2, READ);
    access_chunk(0, READ); /* the host is now full and has copies of 2 and 0 */
    access_chunk(1, READ); /* takes the slot of 2 */
    access_chunk(2, READ); /* takes the slot of 0 */
    assert_int_equal(count(TIDE_COMMAND_EVICT), 0);
    assert_int_equal(count(TIDE_COMMAND_WRITE_BACK), 4);
    access_chunk(1, READ);
    assert_int_equal(count(TIDE_COMMAND_WRITE_BACK), 4);
}

/* --- waits --- */

/* The first of three pending updates is ready, too, but an op waits for the second, a host request for the
 * last. */
static void the_updates_that_a_request_waits_for_come_first(void **state)
{
    for (int by_host = 0; by_host < 2; by_host++) {
        arrange(five_bytes, 1, 3);
        add_chain(3);
        make_manager(4, 8, TIDE_PLACEMENT_HOST, false);
        step_begin(true, true);
        run_ops(0, 5);
        step_end();
        run_engine(); /* brings the params to the host */
        release();
        f.log_count = 0;
        if (by_host) {
            access_chunk(6, READ);
            assert_true(find(TIDE_COMMAND_UPDATE, 2) < find(TIDE_COMMAND_ACCESS, 6));
            assert_true(find(TIDE_COMMAND_UPDATE, 0) > find(TIDE_COMMAND_ACCESS, 6));
        } else {
            step_begin(true, true);
            begin(1);
            assert_int_equal(find(TIDE_COMMAND_UPDATE, ALL)->chunk, 1);
        }
        clean_up(state);
    }
}

static void expect_wait(tide_request_wait wait)
{
    assert_int_equal(tide_manager_request_wait(f.manager, NULL), wait);
}

static void a_request_says_what_it_waits_for(void **state)
{
    arrange_chain(3, 3, 2, 40, TIDE_PLACEMENT_HOST, false);
    step_begin(true, true);
    expect_wait(TIDE_REQUEST_READY);
    assert_int_equal(tide_manager_begin(f.manager, 0), TIDE_OK);
    expect_wait(TIDE_REQUEST_MOVE); /* a slot is free, so the request waits only for the move */
    run_engine();
    expect_wait(TIDE_REQUEST_READY);
    end();
    run_op(1);
    tide_command evict;
    assert_int_equal(tide_manager_begin(f.manager, 2), TIDE_OK);
    expect_wait(TIDE_REQUEST_SLOT);
    assert_true(tide_manager_next(f.manager, &evict));
    expect_wait(TIDE_REQUEST_SLOT); /* the slot's chunk is being evicted */
    tide_manager_done(f.manager, evict.id, TIDE_OK);
    expect_wait(TIDE_REQUEST_MOVE);
    run_engine();
    end();
    run_ops(3, 5);
    step_end();
    release();
    step_begin(true, true);
    assert_int_equal(tide_manager_begin(f.manager, 0), TIDE_OK);
    expect_wait(TIDE_REQUEST_PENDING);
    run_engine();
    expect_wait(TIDE_REQUEST_READY);
}

/* --- prefetch --- */

static void prefetch_brings_the_next_chunks_in_order_of_use(void **state)
{
    uint64_t demanded = 0;
    arrange_chain(6, 0, 3, 40, TIDE_PLACEMENT_HOST, true);
    set_chunks(0, 5);
    forward_pass();
    forward_pass();
    for (int pass = 0; pass < 3; pass++) {
        step_begin(false, false);
        for (tide_op op = 0; op < 6; op++) {
            begin(op);
            if (pass == 0 && op == 0)
                demanded = counters().demand_fetches;
            run_engine();
            end();
        }
        step_end();
    }
    /* The plan counts on the chunks that a planned pass leaves on the device. The first pass began with
     * others, so it may need one more fetch on demand. */
    assert_in_range(counters().demand_fetches, demanded, demanded + 1);
}

static void prefetch_leaves_complete_gradients_alone_until_their_update(void **state)
{
    arrange_chain(6, 6, 3, 40, TIDE_PLACEMENT_HOST, true);
    set_chunks(0, 11);
    for (int step = 0; step < 3; step++) {
        step_begin(true, true);
        run_ops(0, 11);
        step_end();
        f.log_count = 0;
        /* The norm is not known yet. Chunks that the host will update must not be fetched again, nor
         * exchanged back and forth. */
        run_engine();
        assert_int_equal(count(TIDE_COMMAND_FETCH), 0);
        assert_true(f.log_count <= 3);
        release();
        run_engine();
    }
}

static void prefetch_costs_no_walk_when_there_is_nothing_to_do(void **state)
{
    tide_command command;
    arrange_chain(6, 0, 3, 40, TIDE_PLACEMENT_HOST, true);
    forward_pass();
    step_begin(false, false);
    begin(0);
    run_engine();
    assert_true(f.manager->idle);
    assert_false(tide_manager_next(f.manager, &command));
}

/* --- the schedule --- */

static void a_changed_or_shorter_step_is_counted_once_and_an_evaluation_is_no_change(void **state)
{
    static const struct {
        const char *name;
        bool training;
        uint32_t count;
        tide_op ops[6];
        uint64_t re_recordings; /* after the step */
    } steps[] = {
        {"the first step", true, 6, {0, 1, 2, 3, 4, 5}, 0},
        {"an evaluation", false, 3, {0, 1, 2}, 0},
        {"the same step", true, 6, {0, 1, 2, 3, 4, 5}, 0},
        {"another order", true, 6, {0, 2, 1, 3, 4, 5}, 1},
        {"the same other order", true, 6, {0, 2, 1, 3, 4, 5}, 1},
        {"a shorter evaluation", false, 2, {0, 1}, 2},
    };
    arrange_chain(3, 3, 2, 20, TIDE_PLACEMENT_HOST, true);
    for (size_t i = 0; i < sizeof steps / sizeof *steps; i++) {
        step_begin(steps[i].training, false);
        for (uint32_t op = 0; op < steps[i].count; op++)
            run_op(steps[i].ops[op]);
        step_end();
        if (counters().re_recordings != steps[i].re_recordings)
            fail_msg("%s: %u re-recordings", steps[i].name, (unsigned)counters().re_recordings);
    }
}

/* --- the tiers of updates --- */

/* AUTO counts a shared STATE chunk for the later one of its two PARAM chunks. Once it finds no slots for a
 * chunk's state, it places no later chunk on the device either. Frozen chunks take nothing. */
static void auto_places_the_first_chunks_whose_state_fits_into_the_margin(void **state)
{
    static const struct {
        const char *name;
        tide_state_format formats[2];
        uint32_t params, margin, on_device, state_slots;
    } cases[] = {
        {"no margin", {FIVE_BYTES, FIVE_BYTES}, 3, 0, 0, 0},
        {"one slot", {FIVE_BYTES, FIVE_BYTES}, 3, 1, 1, 1},
        {"two slots", {FIVE_BYTES, FIVE_BYTES}, 3, 2, 1 | 2, 2},
        {"a slot too few", {FIVE_BYTES, FIVE_BYTES}, 3, 3, 1 | 2, 2},
        {"all", {FIVE_BYTES, FIVE_BYTES}, 3, 4, 1 | 2 | 4, 4},
        {"less than the four pieces of chunk 0", {ADAMW, MOMENTUM}, 2, 3, 0, 0},
        {"the four pieces of chunk 0", {ADAMW, MOMENTUM}, 2, 4, 1, 4},
        {"five pieces", {ADAMW, MOMENTUM}, 2, 5, 1 | 2, 5},
        {"frozen chunks first", {FROZEN, FIVE_BYTES}, 4, 3, 4 | 8, 3},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        arrange(cases[i].formats, 2, cases[i].params);
        add_chain(0);
        make_manager(cases[i].params + 1 + cases[i].margin, 8, TIDE_PLACEMENT_AUTO, false);
        const uint32_t slots = tide_pending_state_slots(&f.manager->pending);
        if (updated_on_device() != cases[i].on_device || slots != cases[i].state_slots)
            fail_msg("%s: chunks %#x, %u slots for state", cases[i].name, updated_on_device(), slots);
        clean_up(state);
    }
}

static void auto_lets_both_sides_end_their_updates_together(void **state)
{
    arrange_chain(4, 4, 4 + 1 + 4, 20, TIDE_PLACEMENT_AUTO, true); /* device slots for everything */
    train(false);
    assert_int_equal(updated_on_device(), 1 | 2 | 4 | 8);
    const uint64_t planned = counters().plans;
    /* the host takes 3 s an update, the device 1 s */
    tide_manager_set_update_seconds(f.manager, 3, 1);
    /* an update's tier does not change while it may be pending */
    assert_int_equal(updated_on_device(), 1 | 2 | 4 | 8);
    train(false);
    assert_int_equal(updated_on_device(), 1 | 2 | 4);
    train(false);
    assert_true(counters().plans > planned); /* there was a new plan for the new placement */
    tide_manager_set_update_seconds(f.manager, 3.1, 1);
    train(false);
    f.log_count = 0;
    train(false);
    assert_int_equal(find(TIDE_COMMAND_UPDATE, 2)->tier, TIDE_TIER_DEVICE);
    assert_int_equal(find(TIDE_COMMAND_UPDATE, 3)->tier, TIDE_TIER_HOST);
}

static void auto_leaves_the_host_no_more_updates_than_it_has_room_for(void **state)
{
    /* The host has slots for two updates, each with a chunk of params and one of state. */
    arrange_chain(4, 4, 4 + 1 + 4, 2 * 2, TIDE_PLACEMENT_AUTO, true);
    train(false);
    /* the host would get three of four updates if it had the slots */
    tide_manager_set_update_seconds(f.manager, 1, 3);
    train(false);
    assert_int_equal(updated_on_device(), 1 | 2);
}

/* Chunks 0 and 1 are trained, 2 and 3 are frozen. */
static void only_what_is_trained_is_shared_out_between_the_tiers(void **state)
{
    arrange(some_frozen, 2, 4);
    add_chain(2);
    make_manager(4 + 1 + 3, 8, TIDE_PLACEMENT_AUTO, true); /* slots for all chunks */
    assert_int_equal(updated_on_device(), 1 | 2);
    tide_manager_set_update_seconds(f.manager, 1, 1);
    train(false);
    assert_int_equal(updated_on_device(), 1);
}

/* --- refusals --- */

static void expect_refusal(tide_status status, tide_status wanted, const char *message)
{
    assert_int_equal(status, wanted);
    assert_non_null(strstr(tide_message(), message));
}

static void a_refused_call_names_the_op_or_the_tensor(void **state)
{
    assert_true(tide_tensor_may(TIDE_TENSOR_HOLD, TIDE_TENSOR_COMPUTE));
    assert_false(tide_tensor_may(TIDE_TENSOR_HOLD_AFTER_BWD, TIDE_TENSOR_COMPUTE));
    assert_false(tide_tensor_may(TIDE_TENSOR_FREE, TIDE_TENSOR_HOLD_AFTER_FWD));
    arrange(momentum, 1, 2);
    add_activation(2);
    const tide_op reads = add_slices(READ, 2), backward = add_op(TIDE_PASS_BACKWARD, 1, READ | GRAD);
    make_manager(4, 20, TIDE_PLACEMENT_HOST, false);
    step_begin(true, true);
    expect_refusal(tide_manager_begin(f.manager, 9), TIDE_ERROR_ARGUMENT, "there is no op 9");
    begin(reads);
    expect_refusal(tide_manager_slice(f.manager, 2), TIDE_ERROR_ARGUMENT, "no slice 2");
    expect_refusal(tide_manager_slice(f.manager, 1), TIDE_ERROR_STATE, "part 1 of activation tensor");
    expect_refusal(tide_manager_step_end(f.manager), TIDE_ERROR_STATE, "op slices is open");
    end();
    run_op(backward);
    expect_refusal(tide_manager_begin(f.manager, backward), TIDE_ERROR_STATE, "param param1");
}

static void budgets_below_the_needs_are_refused(void **state)
{
    tide_slot_needs needs;
    arrange(momentum, 1, 3);
    const tide_use uses[2] = {{0, READ}, {1, READ}};
    tide_op wide;
    tide_op_description d = {.name = "wide", .pass = TIDE_PASS_FORWARD, .params = uses, .param_count = 2};
    add_op(TIDE_PASS_FORWARD, 0, READ);
    assert_int_equal(tide_description_add_op(f.description, &d, &wide), TIDE_OK);
    make_layout();
    tide_ops ops;
    assert_int_equal(tide_ops_create(&ops, f.layout), TIDE_OK);
    tide_manager_needs(&ops, TIDE_PLACEMENT_HOST, &needs);
    tide_ops_destroy(&ops);
    assert_int_equal(needs.largest_op, wide);
    assert_int_equal(needs.device_slots, 2);
    assert_int_equal(needs.total_slots, 7);
    const tide_manager_options options[] = {{.device_slots = 50, .host_slots = 1},
                                            {.device_slots = 2, .host_slots = 4},
                                            {.device_slots = 1, .host_slots = 50}};
    for (int i = 0; i < 3; i++) {
        assert_int_equal(tide_manager_create(f.layout, &options[i], &f.manager), TIDE_ERROR_BUDGET);
        assert_null(f.manager);
    }
    assert_non_null(strstr(tide_message(), "wide"));
    make_manager(2, 5, TIDE_PLACEMENT_HOST, false);
    clean_up(state);

    /* The op needs one slot, but an update on the device needs two. */
    arrange(momentum, 1, 1);
    add_chain(1);
    make_layout();
    const tide_manager_options device = {
        .device_slots = 1, .host_slots = 50, .placement = TIDE_PLACEMENT_DEVICE};
    assert_int_equal(tide_manager_create(f.layout, &device, &f.manager), TIDE_ERROR_BUDGET);
    make_manager(2, 2, TIDE_PLACEMENT_DEVICE, false);
}

#define CASE(function) cmocka_unit_test_teardown(function, clean_up)

int main(void)
{
    const struct CMUnitTest tests[] = {
        CASE(a_chunk_that_is_to_leave_stays_if_it_is_used_again_first),
        CASE(no_more_victims_leave_than_slots_are_missing),
        CASE(the_host_gets_room_by_what_it_has_updated),
        CASE(what_a_slice_wrote_leaves_for_what_comes_next),
        CASE(a_skipped_step_restores_without_copying_the_gradient),
        CASE(an_update_assembles_nothing_beside_an_op_that_leaves_it_too_little),
        CASE(the_state_on_a_border_is_used_twice_in_a_row),
        CASE(a_chunk_updated_on_the_host_keeps_its_slot_where_there_are_enough),
        CASE(frozen_chunks_that_backward_reads_again_are_kept_for_it),
        CASE(a_host_request_spares_what_the_last_one_was_about),
        CASE(the_updates_that_a_request_waits_for_come_first),
        CASE(a_request_says_what_it_waits_for),
        CASE(prefetch_brings_the_next_chunks_in_order_of_use),
        CASE(prefetch_leaves_complete_gradients_alone_until_their_update),
        CASE(prefetch_costs_no_walk_when_there_is_nothing_to_do),
        CASE(a_changed_or_shorter_step_is_counted_once_and_an_evaluation_is_no_change),
        CASE(auto_places_the_first_chunks_whose_state_fits_into_the_margin),
        CASE(auto_lets_both_sides_end_their_updates_together),
        CASE(auto_leaves_the_host_no_more_updates_than_it_has_room_for),
        CASE(only_what_is_trained_is_shared_out_between_the_tiers),
        CASE(a_refused_call_names_the_op_or_the_tensor),
        CASE(budgets_below_the_needs_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
