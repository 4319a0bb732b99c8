/* The planner: its plans are played to check its contract (tests/chunk/plan_replay.h), and their copies are
 * compared with the optimum and with those of other policies. */
#include "tests/chunk/plan_replay.h"
#include "tests/support/assert_ok.h"
#include "tests/support/fake_memory.h"
#include "tests/support/policies.h"
#include "tests/support/small_traces.h"
#include "tests/support/test_thin.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { RANDOM_CASES = 3000, SMALL_CASES = 2000, COMPARED_CASES = 3000 };

static tide_planner *the_planner;

static int make_planner(void **state)
{
    return tide_planner_create(PLANNED_CHUNKS_MAX, PLANNED_USES_MAX, &the_planner) == TIDE_OK ? 0 : -1;
}

static int destroy_planner(void **state)
{
    tide_planner_destroy(the_planner);
    return 0;
}

static void plan_drawn(uint64_t seed, const trace_limits *limits, planned *made)
{
    assert_true(limits->uses <= PLANNED_USES_MAX && limits->chunks <= PLANNED_CHUNKS_MAX);
    made->seed = seed;
    made->trace = (tide_use_trace){.uses = made->uses};
    trace_draw(seed, limits, &made->trace, &made->slots);
    made->plan = tide_planner_build(the_planner, &made->trace, made->slots);
}

/* Plan a step written by hand; copies `uses`. */
static void plan_given(const tide_trace_use *uses, uint32_t use_count, uint32_t chunk_count, uint32_t slots,
                       planned *made)
{
    memset(made, 0, sizeof *made);
    if (use_count > 0)
        memcpy(made->uses, uses, use_count * sizeof *uses);
    made->trace =
        (tide_use_trace){.schedule_step_count = use_count ? uses[use_count - 1].schedule_step + 1 : 0,
                         .chunk_count = chunk_count,
                         .use_count = use_count,
                         .uses = made->uses};
    made->slots = slots;
    made->plan = tide_planner_build(the_planner, &made->trace, slots);
}

static const trace_limits *limits_of(uint64_t seed)
{
    static const trace_limits limits[] = {{PLANNED_CHUNKS_MAX, PLANNED_USES_MAX, 6},
                                          {12, 40, 3},
                                          {30, 90, 12},
                                          {SMALL_CHUNKS_MAX, SMALL_USES_MAX, 2}};
    return &limits[seed % 4];
}

static void a_plan_is_right_when_it_is_played(void **state)
{
    static planned made;
    uint32_t unsteady = 0;
    for (uint64_t seed = 0; seed < RANDOM_CASES; seed++) {
        plan_drawn(seed, limits_of(seed), &made);
        unsteady += !made.plan->steady;
        check_by_replay(&made);
        check_pairing(&made);
        check_early_fetches(&made);
    }
    print_message("%u of %d plans are not steady\n", unsteady, RANDOM_CASES);
    assert_true(unsteady * 10 <= RANDOM_CASES);
}

/* A step may begin anywhere in the repeating sequence. Chunks that are alive or modified at that point are
 * so across the end of the step. */
static void a_plan_is_right_wherever_the_step_begins(void **state)
{
    static planned made, rotated;
    uint32_t turns = 0;
    for (uint64_t seed = 0; seed < RANDOM_CASES / 3; seed++) {
        plan_drawn(seed, limits_of(seed), &made);
        rotated.trace.uses = rotated.uses;
        rotated.seed = seed;
        rotated.slots = made.slots;
        if (!trace_rotate(&made.trace, made.trace.schedule_step_count * 2 / 3, &rotated.trace))
            continue;
        rotated.plan = tide_planner_build(the_planner, &rotated.trace, rotated.slots);
        check_by_replay(&rotated);
        check_early_fetches(&rotated);
        turns++;
    }
    assert_true(turns > 100);
}

/* --- number of copies --- */

static void a_small_plan_copies_hardly_more_than_the_least(void **state)
{
    static planned made;
    uint64_t ours = 0, least = 0, equal = 0;
    for (uint64_t seed = 0; seed < SMALL_CASES; seed++) {
        optimum best;
        plan_drawn(seed, &small_limits, &made);
        CHECK(optimum_find(&made.trace, made.slots, &best), &made);
        const uint64_t copies = made.plan->copies_in + made.plan->copies_out;
        CHECK(copies * best.steps >= best.at_least, &made);
        CHECK(copies * OPTIMUM_PERIOD >= best.copies, &made);
        ours += copies * OPTIMUM_PERIOD;
        least += best.copies;
        equal += copies * OPTIMUM_PERIOD == best.copies;
    }
    print_message("%.1f chunks a step, optimum %.1f: ratio %.4f, optimal in %llu of %d cases\n",
                  (double)ours / OPTIMUM_PERIOD / SMALL_CASES, (double)least / OPTIMUM_PERIOD / SMALL_CASES,
                  (double)ours / (double)least, (unsigned long long)equal, SMALL_CASES);
    assert_true(least > 0);
    assert_true(ours * 1000 <= least * 1002);
}

/* Does the policy copy different numbers of chunks in different steps? It is then in a cycle of several
 * steps, which no plan can imitate, since a plan is the same every step. */
static bool turns_over(const policy_copies *copies)
{
    return copies->in % POLICY_STEPS != 0 || copies->out % POLICY_STEPS != 0;
}

/* A plan may never copy more than a policy whose steps are all equal, and at most half a chunk more in and
 * out than one whose steps differ. Returns how many of these copy less than the plan. */
static uint32_t compare_with(policy which, const trace_limits *(*limits)(uint64_t seed))
{
    static planned made;
    uint64_t ours = 0, theirs = 0;
    uint32_t luckier = 0, cases = 0;
    for (uint64_t seed = 0; seed < COMPARED_CASES; seed += test_thin(5), cases++) {
        policy_copies copies;
        plan_drawn(seed, limits(seed), &made);
        assert_true(policy_play(which, &made.trace, made.slots, &copies));
        const uint64_t our = (made.plan->copies_in + made.plan->copies_out) * POLICY_STEPS;
        const uint64_t their = copies.in + copies.out;
        ours += our;
        theirs += their;
        luckier += our > their;
        CHECK(our <= their || (turns_over(&copies) && our <= their + POLICY_STEPS), &made);
    }
    print_message("%s copies %.3f times what we do; less with %u of %u traces\n", policy_name(which),
                  (double)theirs / (double)ours, luckier, cases);
    assert_true(ours < theirs);
    return luckier;
}

static const trace_limits *small_limits_of(uint64_t seed)
{
    (void)seed;
    return &small_limits;
}

static void lru_never_copies_less(void **state)
{
    assert_int_equal(compare_with(POLICY_LRU, limits_of), 0);
    assert_int_equal(compare_with(POLICY_LRU, small_limits_of), 0);
}

static void patrickstar_copies_less_only_in_steps_that_differ(void **state)
{
    assert_true(compare_with(POLICY_PATRICKSTAR, limits_of) * 1000 <= COMPARED_CASES);
    assert_true(compare_with(POLICY_PATRICKSTAR, small_limits_of) * 1000 <= COMPARED_CASES);
}

/* Three chunks are written in turn, with two slots. A policy that misses every other use copies 1.5 in and
 * out a step, but then two steps differ. A plan is the same every step: it keeps one chunk and copies two. */
static void a_plan_that_is_the_same_every_step_may_copy_more_than_the_least(void **state)
{
    static const tide_trace_use uses[] = {
        {0, 0, TIDE_TRACE_MODIFIES, 0}, {1, 1, TIDE_TRACE_MODIFIES, 0}, {2, 2, TIDE_TRACE_MODIFIES, 0}};
    static planned made;
    optimum best;
    policy_copies copies;
    plan_given(uses, 3, 3, 2, &made);
    check_by_replay(&made);
    assert_int_equal(made.plan->copies_in, 2);
    assert_int_equal(made.plan->copies_out, 2);
    assert_true(optimum_find(&made.trace, made.slots, &best));
    assert_int_equal(best.copies, 3 * OPTIMUM_PERIOD);
    assert_true(policy_play(POLICY_LRU, &made.trace, made.slots, &copies));
    assert_int_equal(copies.in + copies.out, 6 * POLICY_STEPS);
}

/* --- a chunk leaves only if its slot is needed --- */

/* Set following[] of each use to the next use of its chunk, in this step or the next. */
static void follow(const tide_use_trace *trace, uint32_t *following)
{
    uint32_t next[PLANNED_CHUNKS_MAX];
    for (int pass = 0; pass < 2; pass++) {
        for (uint32_t u = trace->use_count; u-- > 0;) {
            following[u] = pass == 0 ? UINT32_MAX : next[trace->uses[u].chunk];
            next[trace->uses[u].chunk] = u;
        }
    }
}

/* Add `by` to crowd[] of each schedule step between a use and its chunk's next one. Returns the largest
 * sum. */
static uint32_t add_between(const planned *made, uint32_t use, uint32_t next, uint32_t *crowd, uint32_t by)
{
    const tide_trace_use *u = &made->trace.uses[use];
    const uint32_t schedule_steps = made->trace.schedule_step_count;
    uint32_t most = 0;
    for (uint32_t m = (u->schedule_step + u->held_schedule_steps + 1) % schedule_steps;
         m != made->trace.uses[next].schedule_step; m = (m + 1) % schedule_steps) {
        crowd[m] += by;
        most = crowd[m] > most ? crowd[m] : most;
    }
    return most;
}

static void a_chunk_is_copied_only_where_its_slot_is_wanted_before_its_next_use(void **state)
{
    static planned made;
    static uint32_t following[PLANNED_USES_MAX];
    uint32_t evictions = 0;
    for (uint64_t seed = 0; seed < RANDOM_CASES; seed += test_thin(5)) {
        uint32_t crowd[PLANNED_USES_MAX] = {0};
        plan_drawn(seed, limits_of(seed), &made);
        follow(&made.trace, following);
        for (uint32_t u = 0; u < made.trace.use_count; u++) {
            for (uint32_t m = 0; m <= made.trace.uses[u].held_schedule_steps; m++)
                crowd[made.trace.uses[u].schedule_step + m]++;
            if (!made.plan->leaves[u])
                (void)add_between(&made, u, following[u], crowd, 1);
        }
        for (uint32_t u = 0; u < made.trace.use_count; u++) {
            const bool full = add_between(&made, u, following[u], crowd, 0) >= made.slots;
            const bool leaves =
                made.plan->leaves[u] && !(made.uses[u].flags & (TIDE_TRACE_LEAVES | TIDE_TRACE_ENDS));
            CHECK(!leaves || full, &made);
            evictions += leaves;
        }
    }
    assert_true(evictions > RANDOM_CASES);
}

/* --- special cases --- */

static void an_empty_step_moves_nothing(void **state)
{
    static planned made;
    plan_given(NULL, 0, 5, 2, &made);
    assert_true(made.plan->steady);
    assert_int_equal(made.plan->use_count, 0);
    assert_int_equal(made.plan->fetch_count, 0);
    assert_int_equal(made.plan->copies_in + made.plan->copies_out, 0);
}

static void one_chunk_stays_where_it_is(void **state)
{
    static const tide_trace_use uses[] = {{0, 0, 0, 0}, {1, 0, TIDE_TRACE_MODIFIES, 0}};
    static planned made;
    plan_given(uses, 2, 1, 1, &made);
    check_by_replay(&made);
    assert_true(made.plan->steady);
    assert_int_equal(made.plan->fetch_count, 0);
    assert_false(made.plan->leaves[0] || made.plan->leaves[1]);
}

static void a_chunk_changed_on_the_host_waits_in_its_slot(void **state)
{
    static const tide_trace_use uses[] = {{0, 0, 0, 0}, {1, 0, TIDE_TRACE_MODIFIES | TIDE_TRACE_LEAVES, 0}};
    static planned made;
    plan_given(uses, 2, 1, 1, &made);
    check_by_replay(&made);
    assert_int_equal(made.plan->fetch_count, 1);
    assert_int_equal(made.plan->fetches[0], 0);
    assert_true(made.plan->in_place[0]);
    assert_false(made.plan->leaves[0] || made.plan->leaves[1]);
    assert_int_equal(made.plan->copies_in, 1);
    assert_int_equal(made.plan->copies_out, 1);
}

/* Chunk 0 must be copied in again anyway, because the host changes it. Chunk 1, needed later, would be
 * copied in addition. */
static void a_chunk_changed_on_the_host_is_the_first_to_give_its_slot_up(void **state)
{
    static const tide_trace_use uses[] = {{0, 0, TIDE_TRACE_MODIFIES | TIDE_TRACE_LEAVES, 0},
                                          {1, 1, 0, 0},
                                          {2, 2, TIDE_TRACE_CREATES | TIDE_TRACE_ENDS, 0}};
    static planned made;
    plan_given(uses, 3, 3, 2, &made);
    check_by_replay(&made);
    assert_true(made.plan->leaves[0]);
    assert_false(made.plan->leaves[1]);
    assert_int_equal(made.plan->copies_in, 1);
    assert_int_equal(made.plan->copies_out, 1);
}

static void a_chunk_that_leaves_unmodified_is_not_copied_out(void **state)
{
    static const tide_trace_use uses[] = {{0, 0, TIDE_TRACE_LEAVES, 0}};
    static planned made;
    plan_given(uses, 1, 1, 1, &made);
    check_by_replay(&made);
    assert_int_equal(made.plan->copies_in, 1);
    assert_int_equal(made.plan->copies_out, 0);
}

static void what_all_fits_moves_only_for_updates(void **state)
{
    static planned made;
    for (uint64_t seed = 0; seed < 200; seed++) {
        plan_drawn(seed, limits_of(seed), &made);
        made.plan = tide_planner_build(the_planner, &made.trace, made.trace.chunk_count);
        uint64_t evictions = 0, modified = 0;
        for (uint32_t u = 0; u < made.trace.use_count; u++) {
            const uint32_t flags = made.trace.uses[u].flags;
            CHECK(!made.plan->leaves[u], &made);
            evictions += (flags & TIDE_TRACE_LEAVES) != 0;
            modified += flags & TIDE_TRACE_LEAVES && flags & TIDE_TRACE_MODIFIES;
        }
        CHECK(made.plan->steady && made.plan->fetch_count == evictions, &made);
        CHECK(made.plan->copies_in == evictions && made.plan->copies_out == modified, &made);
    }
}

/* --- no state kept between calls; memory --- */

static void the_same_trace_gives_the_same_plan(void **state)
{
    static planned made, again;
    tide_planner *larger;
    assert_int_equal(tide_planner_create(3 * PLANNED_CHUNKS_MAX, 5 * PLANNED_USES_MAX, &larger), TIDE_OK);
    for (uint64_t seed = 0; seed < 200; seed++) {
        /* the second planner plans another step before, which must not change its next plan */
        plan_drawn(seed + 1, limits_of(seed + 1), &again);
        (void)tide_planner_build(larger, &again.trace, again.slots);
        plan_drawn(seed, limits_of(seed), &made);
        const tide_plan *other = tide_planner_build(larger, &made.trace, made.slots);
        CHECK(made.plan->copies_in == other->copies_in && made.plan->copies_out == other->copies_out, &made);
        CHECK(made.plan->fetch_count == other->fetch_count && made.plan->steady == other->steady, &made);
        assert_memory_equal(made.plan->leaves, other->leaves, made.trace.use_count * sizeof(bool));
        for (uint32_t i = 0; i < other->fetch_count; i++)
            CHECK(made.plan->fetches[i] == other->fetches[i], &made);
    }
    tide_planner_destroy(larger);
}

static void memory_that_runs_out_in_create_is_a_status_and_leaks_nothing(void **state)
{
    for (unsigned request = 0;; request++) {
        tide_planner *planner = NULL;
        fake_memory_fail(request);
        const tide_status status = tide_planner_create(10, 100, &planner);
        const bool failed = fake_memory_failed();
        fake_memory_clear();
        if (!failed) {
            assert_int_equal(status, TIDE_OK);
            assert_true(request > 1);
            tide_planner_destroy(planner);
            return;
        }
        assert_int_equal(status, TIDE_ERROR_NO_MEMORY);
        assert_null(planner);
    }
}

static void building_a_plan_allocates_nothing(void **state)
{
    static planned made;
    fake_memory_clear();
    for (uint64_t seed = 0; seed < 100; seed++)
        plan_drawn(seed, limits_of(seed), &made);
    assert_int_equal(fake_memory_clear(), 0);
}

static void destroying_no_planner_is_allowed(void **state)
{
    tide_planner_destroy(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_plan_is_right_when_it_is_played),
        cmocka_unit_test(a_plan_is_right_wherever_the_step_begins),
        cmocka_unit_test(a_small_plan_copies_hardly_more_than_the_least),
        cmocka_unit_test(lru_never_copies_less),
        cmocka_unit_test(patrickstar_copies_less_only_in_steps_that_differ),
        cmocka_unit_test(a_plan_that_is_the_same_every_step_may_copy_more_than_the_least),
        cmocka_unit_test(a_chunk_is_copied_only_where_its_slot_is_wanted_before_its_next_use),
        cmocka_unit_test(an_empty_step_moves_nothing),
        cmocka_unit_test(one_chunk_stays_where_it_is),
        cmocka_unit_test(a_chunk_changed_on_the_host_waits_in_its_slot),
        cmocka_unit_test(a_chunk_changed_on_the_host_is_the_first_to_give_its_slot_up),
        cmocka_unit_test(a_chunk_that_leaves_unmodified_is_not_copied_out),
        cmocka_unit_test(what_all_fits_moves_only_for_updates),
        cmocka_unit_test(the_same_trace_gives_the_same_plan),
        cmocka_unit_test(memory_that_runs_out_in_create_is_a_status_and_leaks_nothing),
        cmocka_unit_test(building_a_plan_allocates_nothing),
        cmocka_unit_test(destroying_no_planner_is_allowed),
    };
    return cmocka_run_group_tests(tests, make_planner, destroy_planner);
}
