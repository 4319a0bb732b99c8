/* Managers of several ranks in one process (ranks_world.h): every rank issues the same collectives, no rank
 * waits for ever, and every op reads the values of its step, in its own chunks and in those of the others.
 *
 * Each rule that makes that so (chunk/frames.h, collectives.h, roll.h) is broken on purpose, in a process of
 * its own, where an assertion may fail, too.
 *
 *   usage: test_manager_ranks [SEQUENCES [FIRST_SEED]]
 */
#include "tests/chunk/ranks_world.h"
#include "tests/support/assert_ok.h"
#include "tests/support/test_thin.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

enum { SEQUENCES = 2000, ALL_EVENTS = 300 };

static uint32_t sequences;
static uint64_t first_seed = 1;
static world w;

static void random_programs_run_on_all_ranks(void **state)
{
    for (uint64_t seed = first_seed; seed < first_seed + sequences; seed++) {
        world_draw(&w, seed, 0, SABOTAGE_NONE);
        world_start(&w, NULL);
        world_play(&w);
        if (w.failure[0] != 0)
            fail_msg("seed %llu, %u ranks: %s\nalone: test_manager_ranks 1 %llu", (unsigned long long)seed,
                     w.ranks, w.failure, (unsigned long long)seed);
        world_destroy(&w);
    }
}

static void everything_was_met(void **state)
{
    const struct {
        const char *name;
        uint64_t count;
    } seen[] = {{"training steps", world_seen.steps},
                {"forward-only passes", world_seen.passes},
                {"gathers", world_seen.gathers},
                {"gathers into the frame where the group was", world_seen.gathers_kept},
                {"gathers ahead", world_seen.gathers_ahead},
                {"ops that were not expected", world_seen.unexpected_ops},
                {"REDUCEs", world_seen.reduces},
                {"of these before their ops' ends", world_seen.early_reduces},
                {"steps skipped", world_seen.skips},
                {"steps released", world_seen.releases},
                {"values set on one rank", world_seen.sets},
                {"ranks that ended within the program", world_seen.destroys},
                {"ops refused", world_seen.refused},
                {"aborts", world_seen.aborts},
                {"aborts while an op closes", world_seen.aborts_in_close},
                {"looks at a request that waits for peers alone", world_seen.waits_for_peers},
                {"ranks without elements in the last group", world_seen.empty_members}};
    for (size_t i = 0; i < sizeof seen / sizeof seen[0]; i++) {
        print_message("%s%llu %s", i == 0 ? "" : ", ", (unsigned long long)seen[i].count, seen[i].name);
        if (seen[i].count == 0 && sequences >= ALL_EVENTS)
            fail_msg("no %s", seen[i].name);
    }
    print_message("\n");
}

/* The ops A and B each sum gradients and update their params on the device. If the gather of B's group runs
 * beside A, it waits for B's update of the step before, which needs two slots, while A holds one. */
static void play_pair(uint32_t device_slots, bool ahead)
{
    const tide_manager_options options = {.device_slots = device_slots,
                                          .host_slots = 8,
                                          .placement = TIDE_PLACEMENT_DEVICE,
                                          .frames = 2,
                                          .ahead = ahead};
    world_draw_ops(&w, 2, ahead ? SABOTAGE_FEW_SLOTS : SABOTAGE_NONE);
    world_start(&w, &options);
    world_play(&w);
}

static void a_gather_ahead_needs_a_slot_more_than_the_largest_op_and_its_update(void **state)
{
    play_pair(2, true);
    assert_true(w.deadlock && w.stuck);
    world_destroy(&w);
    for (int ahead = 0; ahead < 2; ahead++) {
        play_pair(ahead ? 3 : 2, ahead);
        assert_string_equal(w.failure, "");
        world_destroy(&w);
    }
    tide_manager *manager = NULL;
    const tide_manager_options few = {
        .device_slots = 2, .host_slots = 8, .placement = TIDE_PLACEMENT_DEVICE, .frames = 2, .ahead = true};
    play_pair(2, false);
    assert_int_equal(tide_manager_create(w.rank[0].layout, &few, &manager), TIDE_ERROR_BUDGET);
    world_destroy(&w);
}

static void too_many_early_reduces_wait(void **state)
{
    const tide_manager_options options = {
        .device_slots = 3, .host_slots = 8, .placement = TIDE_PLACEMENT_DEVICE, .frames = 2};
    bool appended = true;
    tide_command command;
    world_draw_ops(&w, 2, SABOTAGE_NONE);
    world_start(&w, &options);
    tide_manager *m = w.rank[0].manager;
    assert_int_equal(tide_manager_reduce(m, 0, 0, 64, &appended), TIDE_ERROR_STATE);
    assert_ok(tide_manager_step_begin(m, true, true));
    assert_ok(tide_manager_begin(m, 0));
    while (!tide_manager_ready(m))
        if (tide_manager_next(m, &command))
            tide_manager_done(m, command.id, TIDE_OK);
    for (uint32_t i = 0; i < TIDE_EARLY_REDUCES_MAX; i++) {
        assert_ok(tide_manager_reduce(m, 0, 64 * i, 64, &appended));
        assert_true(appended);
    }
    for (uint32_t i = 0; i < 2; i++) {
        const uint32_t count = tide_roll_count(&m->collectives.roll);
        assert_ok(tide_manager_reduce(m, 0, 8192, 64, &appended));
        assert_false(appended);
        assert_int_equal(tide_roll_count(&m->collectives.roll), count);
        assert_true(tide_manager_next(m, &command));
        assert_int_equal(command.collective.first, 64 * i);
        tide_manager_done(m, command.id, TIDE_OK);
        assert_ok(tide_manager_reduce(m, 0, 4096 + 64 * i, 64, &appended));
        assert_true(appended);
    }
    world_destroy(&w);
}

/* Take and complete commands of rank 0 until it has no more; `late`: each only when it has no other. But no
 * update of chunk `held`, whose id this returns. */
static uint32_t pump(tide_chunk held, bool late)
{
    enum { COMMANDS_MAX = 1000 };
    tide_manager *m = w.rank[0].manager;
    tide_command command;
    uint32_t ids[COMMANDS_MAX], count = 0, id = UINT32_MAX;
    for (int taken = 0;; taken++) {
        while (!tide_manager_next(m, &command)) {
            if (count == 0)
                return id;
            while (count > 0)
                tide_manager_done(m, ids[--count], TIDE_OK);
        }
        assert_true(taken < COMMANDS_MAX); /* else they go on for ever */
        if (command.kind == TIDE_COMMAND_UPDATE && command.chunk == held)
            id = command.id;
        else if (late)
            ids[count++] = command.id;
        else
            tide_manager_done(m, command.id, TIDE_OK);
    }
}

/* A runs, B is expected, whose update is slow, and C comes. A's slot waits for its REDUCE behind B's gather,
 * and C's chunk has the only other one that B's gather can have; on the device B's update needs one more. */
static void play_unexpected(tide_placement placement, bool late)
{
    enum { A, C, B }; /* C is updated before B */
    static const tide_op order[] = {A, B, C};
    const tide_manager_options options = {.device_slots = placement == TIDE_PLACEMENT_HOST ? 2 : 3,
                                          .host_slots = 8,
                                          .placement = placement,
                                          .frames = 2,
                                          .ahead = true};
    const bool on_host = placement == TIDE_PLACEMENT_HOST;
    tide_command command;
    world_draw_ops(&w, 3, SABOTAGE_NONE);
    world_start(&w, &options);
    tide_manager *m = w.rank[0].manager;
    assert_ok(tide_manager_step_begin(m, true, true));
    for (uint32_t i = 0; i < 3; i++) {
        assert_ok(tide_manager_begin(m, order[i]));
        (void)pump(TIDE_CHUNK_NONE, late);
        assert_ok(tide_manager_end(m));
    }
    (void)pump(TIDE_CHUNK_NONE, late);
    assert_ok(tide_manager_step_end(m));
    (void)pump(TIDE_CHUNK_NONE, late);
    assert_ok(tide_manager_release_updates(m));
    const uint32_t update = on_host ? pump(B, late) : UINT32_MAX;
    while (!on_host && (tide_pending_has(&m->pending, A) || tide_pending_has(&m->pending, C)))
        if (tide_manager_next(m, &command))
            tide_manager_done(m, command.id, TIDE_OK);
    assert_ok(tide_manager_step_begin(m, true, true));
    assert_ok(tide_manager_begin(m, A));
    if (on_host)
        assert_int_equal(pump(B, late), UINT32_MAX);
    while (!tide_manager_ready(m))
        if (tide_manager_next(m, &command))
            tide_manager_done(m, command.id, TIDE_OK);
    assert_true(on_host || tide_pending_has(&m->pending, B));
    assert_ok(tide_manager_end(m));
    assert_ok(tide_manager_begin(m, C));
    if (on_host) {
        assert_int_equal(pump(B, late), UINT32_MAX);
        assert_int_equal(tide_manager_request_wait(m, NULL), TIDE_REQUEST_PEERS);
        tide_manager_done(m, update, TIDE_OK);
    }
    (void)pump(TIDE_CHUNK_NONE, late);
    assert_true(tide_manager_ready(m));
    world_destroy(&w);
}

static void a_gather_for_an_op_that_did_not_come_takes_the_slots_of_the_request(void **state)
{
    for (int late = 0; late < 2; late++) {
        play_unexpected(TIDE_PLACEMENT_HOST, late);
        play_unexpected(TIDE_PLACEMENT_DEVICE, late);
    }
}

/* --- rules broken on purpose --- */

/* Plays a world in another process. Returns whether it failed, be it by an assertion; *deadlock: it hung. */
static bool fails(uint64_t seed, sabotage how, bool *deadlock)
{
    int status = 0;
    (void)fflush(NULL);
    const pid_t child = fork();
    if (child == 0) {
        (void)!freopen("/dev/null", "w", stderr);
        world_draw(&w, seed, 2 + (uint32_t)(seed % 3), how);
        world_start(&w, NULL);
        world_play(&w);
        _exit(w.deadlock ? 2 : w.failure[0] != 0);
    }
    assert_true(child > 0 && waitpid(child, &status, 0) == child);
    *deadlock = WIFEXITED(status) && WEXITSTATUS(status) == 2;
    return !WIFEXITED(status) || WEXITSTATUS(status) != 0;
}

static void each_rule_that_is_broken_is_found(void **state)
{
    static const struct {
        sabotage how;
        const char *what;
        bool hangs;    /* the ranks wait for ever */
        uint64_t from; /* the first seed to try, near one that finds it; 0: 1 */
    } rules[] = {
        {SABOTAGE_OTHER_OP, "one rank runs another op", false, 0},
        {SABOTAGE_LOCAL_CHOICE, "one rank chooses by local state which group leaves a frame", false, 0},
        {SABOTAGE_OTHER_FRAMES, "one rank has a frame more", false, 0},
        {SABOTAGE_OTHER_AHEAD, "one rank gathers ahead", false, 0},
        {SABOTAGE_FORGOTTEN, "one rank drops a gather for an op that did not come", false, 0},
        {SABOTAGE_FEW_FRAMES, "gathers ahead with frames for one op", false, 0},
        {SABOTAGE_FEW_SLOTS, "gathers ahead with device slots for one op", true, 420},
        {SABOTAGE_EARLY_RELEASE, "chunks are released before their REDUCE is issued", false, 0},
        {SABOTAGE_GATHER_AT_END, "the next step's gathers are appended at a step's end", false, 0},
        {SABOTAGE_OTHER_ORDER, "one rank issues another collective first", false, 0},
    };
    enum { SEEDS = 1000 };
    for (size_t i = 0; i < sizeof rules / sizeof rules[0]; i++) {
        uint32_t found = 0, hung = 0;
        uint64_t first = 0;
        for (uint64_t seed = rules[i].from + 1;
             seed <= SEEDS && (found == 0 || (rules[i].hangs && hung == 0)); seed++) {
            bool deadlock;
            found += fails(seed, rules[i].how, &deadlock);
            hung += deadlock;
            first = first == 0 && found > 0 ? seed : first;
        }
        print_message("%s: %s, first with seed %llu\n", rules[i].what,
                      hung > 0    ? "hangs"
                      : found > 0 ? "found"
                                  : "not found",
                      (unsigned long long)first);
        if (found == 0 || (rules[i].hangs && hung == 0))
            fail_msg("not found: %s", rules[i].what);
    }
}

int main(int count, char **arguments)
{
    sequences = count > 1 ? (uint32_t)strtoul(arguments[1], NULL, 10) : SEQUENCES / test_every(1, 8);
    if (count > 2)
        first_seed = strtoull(arguments[2], NULL, 10);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_gather_ahead_needs_a_slot_more_than_the_largest_op_and_its_update),
        cmocka_unit_test(too_many_early_reduces_wait),
        cmocka_unit_test(a_gather_for_an_op_that_did_not_come_takes_the_slots_of_the_request),
        cmocka_unit_test(random_programs_run_on_all_ranks),
        cmocka_unit_test(everything_was_met),
        cmocka_unit_test(each_rule_that_is_broken_is_found),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
