/* Updates of several pieces: PARAM chunks that share STATE chunks, updated on one tier or on two, with the
 * least budgets; which task waits for which; and frozen params.
 *
 * The model has three params of one chunk each, with 5 bytes of state per element. A STATE chunk holds the
 * state of 768 elements:
 *
 *     elements  0         768   1024  1536    2048  2304    3072
 *     PARAM     |      0        |        1      |      2      |
 *     STATE     |    3     |      4     |      5     |   6    |
 *
 * Thus every PARAM chunk has two pieces, and chunk 1 shares both of its STATE chunks.
 */
#include "manager_fixture.h"

#include <string.h>

enum { PARAMS = 3, STATES = 4, CHUNKS = PARAMS + STATES, PIECES = 2, OPS = 2 * PARAMS };

static const tide_state_format five_bytes = {1, {160}}, some_frozen[] = {{1, {160}}, {.planes = 0}};

/* --- set-up and steps --- */

static void arrange_neighbours(uint32_t device, uint32_t host, tide_placement placement)
{
    arrange_classes(&five_bytes, 1, PARAMS, 0, 0);
    add_chain(PARAMS, true);
    seal(device, host, placement, false);
}

/* Set each chunk's tier for updates. Bit i of `on_device`: chunk i on the device. */
static void place_updates(uint32_t on_device)
{
    tide_pending *pending = &f.manager->pending;
    for (tide_chunk chunk = 0; chunk < PARAMS; chunk++)
        pending->on_device[chunk] = pending->wanted_on_device[chunk] = on_device >> chunk & 1;
}

static tide_tier tier_of(tide_chunk param_chunk)
{
    return f.manager->pending.on_device[param_chunk] ? TIDE_TIER_DEVICE : TIDE_TIER_HOST;
}

/* Run a step. With `waits` its updates begin when they are released after it; otherwise each backward op is
 * followed by the updates that are then possible. */
static void train(bool waits)
{
    step_begin(true, waits);
    for (tide_op op = 0; op < OPS; op++) {
        run_op(op);
        if (!waits && op >= PARAMS)
            run_engine();
    }
    step_end();
    if (waits)
        assert_int_equal(tide_manager_release_updates(f.manager), TIDE_OK);
}

/* Carry out commands until there is a task (`task` true) or a move for the chunk, and leave that one open. */
static tide_command drive_until(bool task, tide_chunk chunk)
{
    tide_command command;
    for (;;) {
        assert_true(tide_manager_next(f.manager, &command));
        if ((command.kind > TIDE_COMMAND_WRITE_BACK) == task && command.chunk == chunk)
            return command;
        tide_manager_done(f.manager, command.id, TIDE_OK);
    }
}

/* Run an op and carry out only commands that it waits for. */
static void run_op_alone(tide_op op)
{
    assert_int_equal(tide_manager_begin(f.manager, op), TIDE_OK);
    while (!tide_manager_ready(f.manager) && !tide_request_try_pin(&f.manager->request))
        assert_true(step_engine(TIDE_OK));
    assert_int_equal(tide_manager_end(f.manager), TIDE_OK);
}

/* Take all commands that there are before one of them completes, either the oldest or the newest, so that
 * both tiers assemble tasks at the same time. Returns the number of commands, which must be finite. */
static uint32_t run_engine_late(bool (*over)(void), bool newest_first)
{
    enum { TAKEN_MOST = 60 };
    tide_command open[TAKEN_MOST];
    uint32_t open_count = 0, taken = 0;
    while (!over()) {
        if (tide_manager_next(f.manager, &open[open_count])) {
            assert_true(f.log_count < LOG_MAX && ++taken < TAKEN_MOST);
            f.log[f.log_count++] = open[open_count++];
        } else if (!over()) {
            assert_false(tide_manager_is_stuck(f.manager));
            assert_true(open_count > 0);
            const uint32_t at = newest_first ? --open_count : 0;
            tide_manager_done(f.manager, open[at].id, TIDE_OK);
            if (!newest_first)
                memmove(open, open + 1, --open_count * sizeof *open);
        }
    }
    while (open_count > 0)
        tide_manager_done(f.manager, open[--open_count].id, TIDE_OK);
    return taken;
}

static bool is_ready(void)
{
    return tide_manager_ready(f.manager);
}

static bool nothing_is_pending(void)
{
    return tide_manager_updates_open(f.manager) == 0;
}

/* --- look at the result --- */

static uint32_t count_pieces(tide_command_kind kind, tide_chunk chunk, uint32_t piece)
{
    uint32_t found = 0;
    for (uint32_t i = 0; i < f.log_count; i++) {
        const tide_command *c = &f.log[i];
        if (c->kind != kind || c->chunk != chunk || c->piece != piece)
            continue;
        found++;
        assert_int_equal(c->task_count, 2);
        assert_int_equal(c->task[1].chunk, tide_layout_piece(f.layout, chunk, piece).state_chunk);
    }
    return found;
}

static uint32_t count_state_fetches(void)
{
    uint32_t found = 0;
    for (uint32_t i = 0; i < f.log_count; i++)
        found += f.log[i].kind == TIDE_COMMAND_FETCH && f.log[i].chunk >= PARAMS;
    return found;
}

static bool assembles(tide_tier tier, tide_chunk chunk, tide_chunk state_chunk)
{
    const tide_command *assembling = &f.manager->tasks.assembling[tier];
    return assembling->task_count == 2 && assembling->chunk == chunk &&
           assembling->task[1].chunk == state_chunk;
}

/* --- least budgets --- */

enum { STEPS = 4 };

/* Each piece must have had one update per step, on its tier, and each chunk must be valid somewhere. */
static void check_updates(uint32_t steps)
{
    for (tide_chunk chunk = 0; chunk < PARAMS; chunk++)
        for (uint32_t piece = 0; piece < PIECES; piece++)
            assert_int_equal(count_pieces(TIDE_COMMAND_UPDATE, chunk, piece), steps);
    for (uint32_t i = 0; i < f.log_count; i++)
        assert_true(f.log[i].kind != TIDE_COMMAND_UPDATE || f.log[i].tier == tier_of(f.log[i].chunk));
    for (tide_chunk chunk = 0; chunk < CHUNKS; chunk++)
        assert_true(residency(chunk).device_valid || residency(chunk).host_valid);
}

/* Run STEPS steps and return the number of commands. */
static uint32_t count_commands(bool waits, bool newest_first)
{
    uint32_t commands = 0;
    for (int step = 0; step < STEPS; step++) {
        step_begin(true, waits);
        for (tide_op op = 0; op < OPS; op++) {
            assert_int_equal(tide_manager_begin(f.manager, op), TIDE_OK);
            commands += run_engine_late(is_ready, newest_first);
            assert_int_equal(tide_manager_end(f.manager), TIDE_OK);
        }
        step_end();
        if (waits)
            assert_int_equal(tide_manager_release_updates(f.manager), TIDE_OK);
        commands += run_engine_late(nothing_is_pending, newest_first);
    }
    return commands;
}

/* The test takes every division of the fewest slots between the tiers, every placement, and updates during
 * backward or after the norm. If the two tiers' tasks took each other's chunks back again and again, commands
 * would never end. */
static void neighbours_on_two_tiers_are_updated_at_least_budgets_in_few_commands(void **state)
{
    enum { COMMANDS_MOST = 3, LEAST = CHUNKS + 1 };
    uint32_t most = 0;
    for (uint32_t i = 0; i < (LEAST - 3) * 4 << PARAMS; i++) {
        const uint32_t device = 2 + (i >> PARAMS) / 4;
        arrange_neighbours(device, LEAST - device, TIDE_PLACEMENT_AUTO);
        place_updates(i & ((1u << PARAMS) - 1));
        const uint32_t commands = count_commands(i >> PARAMS & 1, i >> PARAMS & 2);
        check_updates(STEPS);
        most = commands > most ? commands : most;
        clean_up(state);
    }
    print_message("at most %.1f commands for each op and each piece\n",
                  (double)most / STEPS / (OPS + PARAMS * PIECES));
    assert_true(most <= COMMANDS_MOST * STEPS * (OPS + PARAMS * PIECES));
}

/* --- which task waits for which --- */

/* Chunk 0 is being assembled on its tier, and STATE chunk 4 is on its way there. Chunk 1, of the other tier,
 * needs chunk 4, too. */
static tide_command arrange_an_assembly_of_the_neighbours_state(bool first_on_device)
{
    arrange_neighbours(6, 8, TIDE_PLACEMENT_AUTO);
    place_updates(first_on_device ? 1 : 2);
    train(true);
    run_engine();
    if (first_on_device)
        access_chunk(4, WRITE); /* brings it to the host */
    train(true);
    tide_command command, evicting = {.id = UINT32_MAX};
    if (first_on_device) /* otherwise chunk 1 would be on the host, and updated at once */
        evicting = drive_until(false, 1);
    command = drive_until(false, 4);
    assert_true(assembles(tier_of(0), 0, 4));
    if (first_on_device)
        tide_manager_done(f.manager, evicting.id, TIDE_OK);
    f.log_count = 0;
    return command;
}

static void a_request_takes_over_what_the_other_tier_assembles(void **state)
{
    for (int first_on_device = 0; first_on_device < 2; first_on_device++) {
        const tide_command open = arrange_an_assembly_of_the_neighbours_state(first_on_device);
        step_begin(true, true);
        assert_int_equal(tide_manager_begin(f.manager, 1), TIDE_OK);
        run_engine();
        assert_false(tide_manager_ready(f.manager));
        tide_manager_done(f.manager, open.id, TIDE_OK);
        run_until_ready();
        assert_int_equal(count_pieces(TIDE_COMMAND_UPDATE, 1, 0), 1);
        assert_int_equal(count_pieces(TIDE_COMMAND_UPDATE, 1, 1), 1);
        assert_null(find(TIDE_COMMAND_UPDATE, 0)); /* no request waits for it */
        assert_int_equal(tide_manager_end(f.manager), TIDE_OK);
        run_engine();
        assert_int_equal(count_pieces(TIDE_COMMAND_UPDATE, 0, 1), 1);
        assert_true(nothing_is_pending());
        clean_up(state);
    }
}

static void the_host_sees_state_after_the_updates_of_all_its_owners(void **state)
{
    for (uint32_t on_device = 0; on_device < 1u << PARAMS; on_device++) {
        arrange_neighbours(4, 8, TIDE_PLACEMENT_AUTO);
        place_updates(on_device);
        train(true);
        f.log_count = 0;
        access_chunk(4, READ);
        const tide_command *access = find(TIDE_COMMAND_ACCESS, 4);
        assert_non_null(access);
        for (tide_chunk owner = 0; owner < 2; owner++) {
            assert_int_equal(count_pieces(TIDE_COMMAND_UPDATE, owner, 1 - owner), 1);
            assert_true(find(TIDE_COMMAND_UPDATE, owner) < access);
        }
        assert_false(access->task[0].needs_zero);
        assert_true(!find(TIDE_COMMAND_UPDATE, 2) || find(TIDE_COMMAND_UPDATE, 2) > access);
        clean_up(state);
    }
}

/* From the step before, one piece of chunk 0 is pending, the one that shares its STATE chunk with chunk 1,
 * and both pieces of chunk 2. Chunk 1 has a new gradient when the abort comes. */
static void an_abort_restores_a_chunk_whose_neighbours_wait_for_the_step_before(void **state)
{
    /* chunk 2 has the tier of chunk 0, so that its update comes after that */
    const uint32_t placements[] = {0, 2, 5, 7};
    for (int i = 0; i < 4; i++) {
        bool gave_up, poisoned;
        arrange_neighbours(CHUNKS, 8, TIDE_PLACEMENT_AUTO);
        place_updates(placements[i]);
        train(true);
        run_engine();
        train(true);
        const tide_command first_piece = drive_until(true, 0);
        assert_int_equal(first_piece.piece, 0);
        tide_manager_done(f.manager, first_piece.id, TIDE_OK);
        step_begin(true, true);
        run_op_alone(1);
        run_op_alone(4);
        f.log_count = 0;
        assert_int_equal(tide_manager_abort(f.manager, &gave_up, &poisoned), TIDE_OK);
        assert_true(gave_up && !poisoned);
        assert_int_equal(tide_manager_updates_open(f.manager), 1 + PIECES + PIECES);
        (void)run_engine_late(nothing_is_pending, false);
        for (tide_chunk chunk = 0; chunk < PARAMS; chunk++)
            for (uint32_t piece = 0; piece < PIECES; piece++) {
                assert_int_equal(count_pieces(TIDE_COMMAND_RESTORE, chunk, piece), chunk == 1);
                assert_int_equal(count_pieces(TIDE_COMMAND_UPDATE, chunk, piece),
                                 chunk == 2 || (chunk == 0 && piece == 1));
            }
        assert_int_equal(find(TIDE_COMMAND_RESTORE, 1)->tier, tier_of(1));
        f.log_count = 0;
        train(true); /* repeats the step that was given up */
        run_engine();
        check_updates(1);
        clean_up(state);
    }
}

/* With too few slots beside the open op, a task gets only some of its chunks, which would block the next
 * op. */
static void an_update_assembles_nothing_beside_an_op_that_leaves_it_too_little(void **state)
{
    (void)state;
    arrange_neighbours(2, 8, TIDE_PLACEMENT_DEVICE);
    train(true);
    step_begin(true, true);
    begin(2); /* first carries out the update of chunk 2 */
    f.log_count = 0;
    run_engine();
    assert_int_equal(count(TIDE_COMMAND_FETCH) + count(TIDE_COMMAND_EVICT), 0);
    assert_int_equal(tide_manager_updates_open(f.manager), 2 * PIECES);
    assert_int_equal(tide_manager_end(f.manager), TIDE_OK);
    run_engine();
    assert_true(nothing_is_pending());
}

/* --- order of updates, and contents of state --- */

/* There is only one slot for state, yet each STATE chunk is fetched once. With updates during backward this
 * holds only until ops follow a recording: then the state for an op's own update counts as far away as soon
 * as the op has begun, and may leave for the op's param. */
static void the_state_on_a_border_is_used_twice_in_a_row(void **state)
{
    for (int waits = 0; waits < 2; waits++) {
        arrange_neighbours(2, 8, TIDE_PLACEMENT_DEVICE);
        for (int step = 0; step < (waits ? 3 : 1); step++) {
            f.log_count = 0;
            train(waits);
            run_engine();
            check_updates(1);
            assert_int_equal(count_state_fetches(), STATES);
            const tide_command *first = find(TIDE_COMMAND_UPDATE, ALL);
            assert_int_equal(first->chunk, waits ? 0 : PARAMS - 1);
            assert_int_equal(first->piece, waits ? 0 : PIECES - 1);
        }
        clean_up(state);
    }
}

static void a_state_chunk_has_content_after_its_first_piece(void **state)
{
    (void)state;
    arrange_neighbours(4, 8, TIDE_PLACEMENT_HOST);
    train(true);
    const tide_command first = drive_until(true, 0);
    assert_true(first.task[1].needs_zero && !first.task[0].needs_zero);
    assert_false(f.manager->places.chunks[3].live);
    tide_manager_done(f.manager, first.id, TIDE_OK);
    assert_true(f.manager->places.chunks[3].live);
    run_engine();
    for (uint32_t i = 0; i < f.log_count;
         /* a second piece is the first to use its STATE chunk: chunk 1's uses chunk 5, chunk 0's chunk 4 */
         i++)
        if (f.log[i].kind == TIDE_COMMAND_UPDATE)
            assert_int_equal(f.log[i].task[1].needs_zero, f.log[i].piece == 1);
}

/* AUTO counts a shared STATE chunk for the later one of its two PARAM chunks. A chunk shared by the last
 * PARAM chunk of the device and the first of the host moves back and forth. */
static void auto_counts_a_shared_state_chunk_once(void **state)
{
    static const uint32_t updates[STATES + 1] = {0, 1, 2, 2, 3}, slots[STATES + 1] = {0, 1, 2, 2, 4};
    for (uint32_t margin = 0; margin <= STATES; margin++) {
        arrange_neighbours(PARAMS + 1 + margin, 8, TIDE_PLACEMENT_AUTO);
        for (tide_chunk chunk = 0; chunk < PARAMS; chunk++)
            assert_int_equal(tide_manager_updates_on_device(f.manager, chunk), chunk < updates[margin]);
        assert_int_equal(tide_pending_state_slots(&f.manager->pending), slots[margin]);
        clean_up(state);
    }
}

/* Chunk 0 has four pieces, chunk 1 has one. Once AUTO finds no slots for a chunk's state, it places no later
 * chunk on the device either. */
static void auto_places_first_chunks_only(void **state)
{
    static const tide_state_format formats[] = {{3, {128, 128, 128}}, {1, {128}}};
    for (uint32_t margin = 1; margin <= 5; margin++) {
        arrange_classes(formats, 2, 2, 0, 0);
        add_chain(2, true);
        seal(2 + 1 + margin, 8, TIDE_PLACEMENT_AUTO, false);
        assert_int_equal(tide_manager_updates_on_device(f.manager, 0), margin >= 4);
        assert_int_equal(tide_manager_updates_on_device(f.manager, 1), margin >= 5);
        clean_up(state);
    }
}

/* --- frozen params --- */

/* Chunks 0 and 1 are trained, 2 and 3 are frozen. */
static void arrange_frozen(uint32_t device)
{
    arrange_classes(some_frozen, 2, 4, 0, 0);
    for (uint32_t i = 0; i < 4; i++)
        add_op(TIDE_PASS_FORWARD, i, READ);
    for (uint32_t i = 4; i-- > 0;)
        add_op(TIDE_PASS_BACKWARD, i, i < 2 ? READ | GRAD : READ);
    seal(device, 8, TIDE_PLACEMENT_AUTO, true);
    for (tide_chunk chunk = 0; chunk < 4; chunk++)
        access_chunk(chunk, WRITE);
    f.log_count = 0;
}

static void frozen_params_are_read_and_have_nothing_pending(void **state)
{
    (void)state;
    arrange_frozen(2);
    for (int step = 0; step < 4; step++) {
        step_begin(true, step > 0);
        run_ops(0, 7);
        step_end();
        for (uint32_t param = 2; param < 4; param++)
            assert_int_equal(f.manager->tensors.params[param].state, TIDE_TENSOR_HOLD);
        if (step == 1)
            assert_int_equal(tide_manager_skip_updates(f.manager), TIDE_OK);
        else if (step > 1)
            assert_int_equal(tide_manager_release_updates(f.manager), TIDE_OK);
        assert_true(step == 0 || tide_manager_updates_open(f.manager) == 2 * PIECES);
        run_engine();
    }
    assert_int_equal(counters().zero_gradients, 0);
    assert_int_equal(count(TIDE_COMMAND_UPDATE), 3 * 2 * PIECES);
    assert_int_equal(count(TIDE_COMMAND_RESTORE), 2 * PIECES);
    bool left = false;
    for (uint32_t i = 0; i < f.log_count; i++) {
        const bool frozen = f.log[i].chunk == 2 || f.log[i].chunk == 3;
        assert_false(frozen && f.log[i].kind > TIDE_COMMAND_EVICT);
        assert_false(frozen && f.log[i].kind == TIDE_COMMAND_EVICT && f.log[i].copy);
        left |= frozen && f.log[i].kind == TIDE_COMMAND_EVICT;
    }
    assert_true(left);
}

/* The first half of the params is trained, the second half frozen; backward uses both. */
static void frozen_chunks_that_backward_reads_again_are_kept_for_it(void **state)
{
    (void)state;
    enum { EACH = 12, ROUNDS = 4 };
    arrange_classes(some_frozen, 2, 2 * EACH, 0, 0);
    add_chain(2 * EACH, false);
    for (uint32_t i = 2 * EACH; i-- > 0;)
        add_op(TIDE_PASS_BACKWARD, i, i < EACH ? READ | GRAD : READ);
    seal(EACH + 1, 64, TIDE_PLACEMENT_HOST, true);
    for (int step = 0; step < 2 * ROUNDS; step++) {
        f.log_count = step == ROUNDS ? 0 : f.log_count;
        step_begin(true, false);
        run_ops(0, 4 * EACH - 1);
        step_end();
        run_engine();
    }
    /* The slots hold one half of the params. Backward begins with the chunks that forward left there, and
     * the other half is fetched again. */
    assert_in_range(count(TIDE_COMMAND_FETCH), ROUNDS * EACH, ROUNDS * (2 * EACH + 1));
}

static void only_what_is_trained_is_shared_out_between_the_tiers(void **state)
{
    (void)state;
    arrange_frozen(4 + 1 + 3); /* slots for all chunks */
    for (int step = 0; step < 2; step++) {
        assert_int_equal(tide_manager_updates_on_device(f.manager, 1), step == 0);
        assert_true(tide_manager_updates_on_device(f.manager, 0));
        tide_manager_set_update_seconds(f.manager, 1, 1);
        step_begin(true, false);
        run_ops(0, 7);
        step_end();
        run_engine();
    }
}

static void frozen_chunks_before_them_take_nothing_from_what_is_placed(void **state)
{
    (void)state;
    const tide_state_format formats[] = {some_frozen[1], some_frozen[0]};
    arrange_classes(formats, 2, 4, 0, 0);
    add_chain(2, false);
    seal(4 + 1 + 3, 8, TIDE_PLACEMENT_AUTO, false);
    for (tide_chunk chunk = 0; chunk < 4; chunk++)
        assert_int_equal(tide_manager_updates_on_device(f.manager, chunk), chunk >= 2);
}

static void a_step_in_which_nothing_is_trained_leaves_nothing_pending(void **state)
{
    (void)state;
    arrange_classes(&some_frozen[1], 1, 2, 0, 0);
    for (uint32_t i = 0; i < 2; i++)
        add_op(TIDE_PASS_BOTH, i, READ);
    seal(1, 2, TIDE_PLACEMENT_AUTO, true);
    tide_manager_set_update_seconds(f.manager, 1, 2);
    for (int step = 0; step < 2; step++) {
        step_begin(true, true);
        run_ops(0, 1);
        step_end();
        assert_int_equal(tide_manager_release_updates(f.manager), TIDE_OK);
        assert_true(nothing_is_pending());
    }
}

#define CASE(function) cmocka_unit_test_teardown(function, clean_up)

int main(void)
{
    const struct CMUnitTest tests[] = {
        CASE(neighbours_on_two_tiers_are_updated_at_least_budgets_in_few_commands),
        CASE(a_request_takes_over_what_the_other_tier_assembles),
        CASE(an_update_assembles_nothing_beside_an_op_that_leaves_it_too_little),
        CASE(the_host_sees_state_after_the_updates_of_all_its_owners),
        CASE(an_abort_restores_a_chunk_whose_neighbours_wait_for_the_step_before),
        CASE(the_state_on_a_border_is_used_twice_in_a_row),
        CASE(a_state_chunk_has_content_after_its_first_piece),
        CASE(auto_counts_a_shared_state_chunk_once),
        CASE(auto_places_first_chunks_only),
        CASE(frozen_chunks_that_backward_reads_again_are_kept_for_it),
        CASE(only_what_is_trained_is_shared_out_between_the_tiers),
        CASE(frozen_chunks_before_them_take_nothing_from_what_is_placed),
        CASE(frozen_params_are_read_and_have_nothing_pending),
        CASE(a_step_in_which_nothing_is_trained_leaves_nothing_pending),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
