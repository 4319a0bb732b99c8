/* Makes the N-th operation of a step fail for N = 1, 2, 3 ... until a run meets no fault. Each time the call
 * must return a clear status, nothing may be lost, and the steps that follow must give the bits of an
 * undisturbed run. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "src/pool/internal.h"
#include "tests/support/assert_ok.h"
#include "tests/support/interpose.h"
#include "tests/support/pool_fixture.h"
#include "tests/support/test_thin.h"

static const tide_value fp32_kinds[] = {TIDE_VALUE_MASTER, TIDE_VALUE_MOMENTUM, TIDE_VALUE_VARIANCE};

static void set_fault(pool_fixture *fixture, uint32_t mask, uint64_t countdown)
{
    fixture->pool->context.device->ops->set_fault(fixture->pool->context.device, mask, countdown);
}

/* --- a step that goes wrong --- */

/* A pool after two steps, whose third step goes wrong. The test gives that step up and makes it once more. */
typedef struct attempt {
    pool_fixture fixture;
    float clip_norm;
    uint64_t expected;                /* hash of the masters after three good steps */
    float *values[3][FIXTURE_LAYERS]; /* all values before the third step, as a checkpoint would hold them */
} attempt;

static uint64_t masters_of(pool_fixture *fixture)
{
    uint64_t hash;
    assert_ok(pool_fixture_hash(fixture, TIDE_VALUE_MASTER, &hash));
    return hash;
}

static void run_steps(pool_fixture *fixture, int steps, float clip_norm)
{
    for (int step = 0; step < steps; step++)
        assert_ok(pool_fixture_step_and_settle(fixture, clip_norm));
}

static uint64_t undisturbed(const pool_fixture_options *options, float clip_norm)
{
    pool_fixture fixture;
    assert_ok(pool_fixture_create(options, &fixture));
    run_steps(&fixture, 3, clip_norm);
    const uint64_t hash = masters_of(&fixture);
    pool_fixture_destroy(&fixture);
    return hash;
}

static void attempt_begin(attempt *t, const pool_fixture_options *options, float clip_norm, uint64_t expected)
{
    *t = (attempt){.clip_norm = clip_norm, .expected = expected};
    assert_ok(pool_fixture_create(options, &t->fixture));
    run_steps(&t->fixture, 2, clip_norm);
    for (int kind = 0; kind < 3; kind++) {
        for (int l = 0; l < FIXTURE_LAYERS; l++) {
            assert_non_null(t->values[kind][l] = calloc(t->fixture.elements[l], sizeof(float)));
            assert_ok(tide_param_get(t->fixture.pool, t->fixture.params[l], fp32_kinds[kind], 0,
                                     t->fixture.elements[l], t->values[kind][l]));
        }
    }
}

/* The abort must poison the pool, which takes no step until all its values are set again. */
static void attempt_recover(attempt *t, tide_status aborted)
{
    const tide_step_options refused = pool_fixture_step_options(t->clip_norm);
    assert_int_equal(aborted, TIDE_ERROR_STATE);
    assert_non_null(strstr(tide_message(), "poisoned"));
    assert_int_equal(tide_step_begin(t->fixture.pool, &refused), TIDE_ERROR_STATE);
    for (int kind = 0; kind < 3; kind++) {
        for (int l = 0; l < FIXTURE_LAYERS; l++)
            assert_ok(tide_param_set(t->fixture.pool, t->fixture.params[l], fp32_kinds[kind], 0,
                                     t->fixture.elements[l], t->values[kind][l]));
    }
    assert_ok(tide_update_count_set(t->fixture.pool, 2));
}

/* Makes the third step unless it has taken place, compares the masters and destroys the pool. */
static void attempt_end(attempt *t, const char *what)
{
    const uint64_t done = tide_update_count(t->fixture.pool) - 2;
    assert_true(done <= 1);
    run_steps(&t->fixture, done == 0, t->clip_norm);
    if (masters_of(&t->fixture) != t->expected)
        fail_msg("%s: other bits", what);
    for (int kind = 0; kind < 3; kind++) {
        for (int l = 0; l < FIXTURE_LAYERS; l++)
            free(t->values[kind][l]);
    }
    pool_fixture_destroy(&t->fixture);
}

/* Runs the third step with a fault that hits its end, which the engine meets when the step has ended. */
static void third_step_fails_late(attempt *t, bool drained, uint32_t mask, uint64_t n)
{
    const tide_step_options third = pool_fixture_step_options(t->clip_norm);
    assert_ok(tide_step_begin(t->fixture.pool, &third));
    assert_ok(pool_fixture_ops(&t->fixture, false));
    if (drained)
        assert_ok(tide_pool_drain(t->fixture.pool));
    set_fault(&t->fixture, mask, n);
    assert_ok(tide_step_end(t->fixture.pool));
    assert_int_equal(tide_pool_drain(t->fixture.pool), TIDE_ERROR_DEVICE);
    set_fault(&t->fixture, 0, 0);
}

/* The norm is known and finite, and the launch of the first update fails: the abort gives the step up as if
 * it had not begun. */
static void an_update_that_could_not_be_started_poisons_nothing(void **state)
{
    enum { NORM_AND_FIRST_UPDATE = 2 };
    for (int placement = TIDE_PLACEMENT_HOST; placement <= TIDE_PLACEMENT_DEVICE; placement++) {
        pool_fixture_options options = pool_fixture_options_default();
        options.pool.placement = (tide_placement)placement;
        attempt t;
        tide_step_result result;
        attempt_begin(&t, &options, 1, undisturbed(&options, 1));
        third_step_fails_late(&t, false, TIDE_FAULT_LAUNCH, NORM_AND_FIRST_UPDATE);
        assert_ok(tide_step_abort(t.fixture.pool));
        /* the step was given up */
        assert_int_equal(tide_step_result_get(t.fixture.pool, &result), TIDE_ERROR_STATE);
        assert_int_equal(tide_update_count(t.fixture.pool), 2);
        attempt_end(&t, "an update not started");
    }
}

/* Fails the copy of the norm to the host: the only copy of this step while the device is otherwise idle. */
static void a_norm_that_never_arrives_is_undone(void **state)
{
    for (int clip = 0; clip < 2; clip++) {
        const pool_fixture_options options = pool_fixture_options_default();
        attempt t;
        attempt_begin(&t, &options, (float)clip, undisturbed(&options, (float)clip));
        third_step_fails_late(&t, true, TIDE_FAULT_COPY, 1);
        const tide_status given_up = tide_step_abort(t.fixture.pool);
        if (given_up != TIDE_OK) { /* without clipping, updates run before the norm is known */
            assert_int_equal(clip, 0);
            attempt_recover(&t, given_up);
        }
        assert_int_equal(tide_update_count(t.fixture.pool), 2);
        attempt_end(&t, "a norm that never arrives");
    }
}

/* Make the N-th operation of the third step fail, counting the kinds in `mask`. Returns whether no fault was
 * met. */
static bool third_step_with_fault(const pool_fixture_options *options, float clip_norm, uint32_t mask,
                                  uint64_t n, uint64_t expected, uint64_t *poisonings)
{
    attempt t;
    attempt_begin(&t, options, clip_norm, expected);
    set_fault(&t.fixture, mask, n);
    const tide_status status = pool_fixture_step_and_settle(&t.fixture, clip_norm);
    set_fault(&t.fixture, 0, 0);
    char what[300] = "no fault";
    if (status != TIDE_OK) {
        assert_true(strlen(tide_message()) > 0);
        snprintf(what, sizeof what, "fault %llu (%s)", (unsigned long long)n, tide_message());
        /* the pool reports the failure until the step is given up */
        assert_int_equal(tide_pool_drain(t.fixture.pool), status);
        const tide_status aborted = tide_step_abort(t.fixture.pool);
        if (aborted != TIDE_OK) {
            attempt_recover(&t, aborted);
            ++*poisonings;
        }
    }
    attempt_end(&t, what); /* a prefetch that fails behind the last update leaves the step in place */
    return status == TIDE_OK;
}

enum { FAULT_KINDS = 3 };

static const struct {
    double share;
    tide_placement placement;
    float clip;
    uint32_t least[FAULT_KINDS]; /* the third step makes at least this many launches, copies and maps */
    bool finishes, beside;       /* gradients in part before their ops end; on a stream of their own */
} fault_cases[] = {{0.1, TIDE_PLACEMENT_HOST, 1.0F, {16, 8, 8}, false, false},
                   {0.0, TIDE_PLACEMENT_DEVICE, 0.0F, {16, 8, 8}, false, false},
                   /* everything is resident, so nothing is mapped */
                   {1.0, TIDE_PLACEMENT_AUTO, 1.0F, {16, 1, 0}, false, false},
                   {0.1, TIDE_PLACEMENT_HOST, 1.0F, {16, 8, 8}, true, false},
                   {0.0, TIDE_PLACEMENT_DEVICE, 0.0F, {16, 8, 8}, false, true}};

/* Fail each of the first operations whatever its kind, then a sample of the rest, which are much alike. */
static void faults_of_any_kind(const pool_fixture_options *options, float clip, uint64_t expected)
{
    uint64_t n = 1, poisonings = 0;
    while (!third_step_with_fault(options, clip, TIDE_FAULT_ANY, n, expected, &poisonings))
        n += n < 40 / test_every(4, 40) ? 1 : 7 * test_every(4, 40);
    print_message("%llu operations, %llu poisonings\n", (unsigned long long)n,
                  (unsigned long long)poisonings);
    assert_true(n > 50);
}

/* Fail operations of each kind alone, with N = 1, 2, 4 ... A sanitizer run takes only some pairs of case and
 * kind. */
static void faults_of_each_kind(const pool_fixture_options *options, float clip, uint64_t expected,
                                const uint32_t least[FAULT_KINDS], size_t of_case)
{
    static const uint32_t kinds[FAULT_KINDS] = {TIDE_FAULT_LAUNCH, TIDE_FAULT_COPY, TIDE_FAULT_MAP};
    uint64_t poisonings = 0;
    for (int kind = 0; kind < FAULT_KINDS; kind++) {
        uint64_t n = 1;
        if ((of_case + 1 + (size_t)kind * 2) % test_thin(FAULT_KINDS) != 0)
            continue;
        while (!third_step_with_fault(options, clip, kinds[kind], n, expected, &poisonings))
            n *= 2 * test_thin(4);
        if (n <= least[kind])
            fail_msg("%llu was past the last operation of kind %d", (unsigned long long)n, kind);
    }
}

static void every_fault_of_a_step_is_undone(void **state)
{
    for (size_t i = 0; i < sizeof fault_cases / sizeof fault_cases[0]; i++) {
        pool_fixture_options options = pool_fixture_options_default();
        options.device_share = fault_cases[i].share;
        options.pool.placement = fault_cases[i].placement;
        options.finishes = fault_cases[i].finishes;
        options.pool.checks.finish_beside = fault_cases[i].beside;
        options.pool.checks.guard = !fault_cases[i].beside;
        const uint64_t expected = undisturbed(&options, fault_cases[i].clip);
        faults_of_any_kind(&options, fault_cases[i].clip, expected);
        faults_of_each_kind(&options, fault_cases[i].clip, expected, fault_cases[i].least, i);
    }
}

static void memory_that_fails_at_create_and_seal_leaves_nothing_behind(void **state)
{
    if (!interpose_active()) {
        print_message(INTERPOSE_SKIPPED);
        skip();
    }
    pool_fixture_options options = pool_fixture_options_default();
    options.device_share = 0.3;
    pool_fixture fixture;
    /* allocate first what a process allocates only once */
    assert_ok(pool_fixture_create(&options, &fixture));
    pool_fixture_destroy(&fixture);
    uint64_t n = 1;
    for (bool met = true; met; n++) {
        interpose_arm();
        interpose_fail(INTERPOSE_MALLOC | INTERPOSE_MMAP, n);
        const tide_status status = pool_fixture_create(&options, &fixture);
        met = interpose_has_failed();
        if (status == TIDE_OK)
            pool_fixture_destroy(&fixture);
        interpose_disarm();
        if (met && status != TIDE_OK)
            assert_int_equal(status, TIDE_ERROR_NO_MEMORY);
        const interpose_counts counts = interpose_read();
        if (counts.live != 0)
            fail_msg("fault %llu: %lld allocations left", (unsigned long long)n, (long long)counts.live);
    }
    print_message("%llu allocations\n", (unsigned long long)n);
    assert_true(n > 50);
}

/* --- a failing optimizer on the device --- */

static struct {
    tide_kernel adamw;
    uint32_t calls, fails_at; /* fails_at: the call that fails; 0: none */
} counted;

/* The failing call sleeps before it fails. By then the pool has enqueued it and all later calls, and the
 * manager counts them as done. */
static tide_status counted_adamw(void *stream, const void *arguments)
{
    if (++counted.calls != counted.fails_at)
        return counted.adamw(stream, arguments);
    nanosleep(&(struct timespec){.tv_nsec = 50000000}, NULL);
    return tide_fail(TIDE_ERROR_DEVICE, "Adam fell");
}

/* The third step's last update fails: only the failure of its stream can tell the pool. A first round counts
 * the updates of a step. */
static void an_update_that_fails_on_the_device_poisons_and_setting_all_recovers(void **state)
{
    pool_fixture_options options = pool_fixture_options_default();
    options.pool.placement = TIDE_PLACEMENT_DEVICE;
    const uint64_t expected = undisturbed(&options, 1);
    for (int fails = 0; fails < 2; fails++) {
        attempt t;
        attempt_begin(&t, &options, 1, expected);
        tide_kernels kernels = *t.fixture.pool->context.kernels;
        counted.adamw = kernels.adamw;
        kernels.adamw = counted_adamw;
        t.fixture.pool->context.kernels = &kernels;
        counted.fails_at = fails ? counted.calls : 0;
        counted.calls = 0;
        const tide_status status = pool_fixture_step_and_settle(&t.fixture, 1);
        assert_int_equal(status, fails ? TIDE_ERROR_DEVICE : TIDE_OK);
        if (fails) {
            assert_non_null(strstr(tide_message(), "Adam fell"));
            attempt_recover(&t, tide_step_abort(t.fixture.pool));
        }
        attempt_end(&t, "an update on the device");
    }
}

/* --- gradients that are not finite --- */

static void without_clipping_it_poisons_and_setting_all_recovers(void **state)
{
    pool_fixture_options options = pool_fixture_options_default();
    options.device_share = 0.2;
    attempt t;
    const float not_finite = NAN;
    tide_step_result result;
    attempt_begin(&t, &options, 0, undisturbed(&options, 0));
    assert_ok(tide_param_set(t.fixture.pool, t.fixture.params[3], TIDE_VALUE_MASTER, 5, 1, &not_finite));
    assert_ok(pool_fixture_step(&t.fixture, 0, false));
    assert_int_equal(tide_step_result_get(t.fixture.pool, &result), TIDE_ERROR_NONFINITE);
    assert_non_null(strstr(tide_message(), "step 3"));
    assert_non_null(strstr(tide_message(), "param w"));
    attempt_recover(&t, tide_step_abort(t.fixture.pool));
    attempt_end(&t, "a gradient that is not finite");
}

/* --- the steps that an abort gives up --- */

static void giving_up_an_evaluation_leaves_the_updates_before_it_alone(void **state)
{
    pool_fixture_options options = pool_fixture_options_default();
    options.device_share = 0.2;
    options.pool.chunk_bytes = 262144;
    const uint64_t expected = undisturbed(&options, 1.0F);
    pool_fixture fixture;
    assert_ok(pool_fixture_create(&options, &fixture));
    for (int step = 0; step < 3; step++) {
        assert_ok(pool_fixture_step(&fixture, 1.0F, false));
        const tide_step_options evaluation = {.training = false};
        assert_ok(tide_step_begin(fixture.pool, &evaluation)); /* lets the updates run */
        if (step > 0)
            assert_ok(tide_op_begin(fixture.pool, fixture.forward[0]));
        assert_ok(tide_step_abort(fixture.pool));
        assert_int_equal(tide_update_count(fixture.pool), step + 1);
    }
    assert_int_equal(masters_of(&fixture), expected);
    pool_fixture_destroy(&fixture);
}

/* An abort after step end: the step has taken place, or is undone, or the pool says that it is poisoned, and
 * the step's result goes the same way. Variant 4 knows the result before it aborts; its link is so slow that
 * it depends on timing whether an update has begun. */
static void an_abort_after_step_end_is_exact_or_poisoned(void **state)
{
    for (int variant = 0; variant < 5; variant++) {
        pool_fixture_options options = pool_fixture_options_default();
        options.device_share = variant % 2 == 0 ? 0.2 : 1;
        const float clip = variant == 2 || variant == 3 ? 0.0F : 1.0F;
        const uint64_t expected = undisturbed(&options, clip);
        if (variant == 4) {
            options.pool.placement = TIDE_PLACEMENT_HOST;
            options.pool.link_bytes_per_second = 20e6;
        }
        attempt t;
        tide_step_result result;
        attempt_begin(&t, &options, clip, expected);
        assert_ok(pool_fixture_step(&t.fixture, clip, false));
        if (variant == 4)
            assert_ok(tide_step_result_get(t.fixture.pool, &result));
        const tide_status aborted = tide_step_abort(t.fixture.pool);
        if (aborted != TIDE_OK) {
            assert_int_equal(aborted, TIDE_ERROR_STATE);
            expect_words("poisoned");
            assert_fails(tide_step_result_get(t.fixture.pool, &result), TIDE_ERROR_STATE, "poisoned");
            attempt_recover(&t, tide_step_abort(t.fixture.pool));
        } else if (tide_update_count(t.fixture.pool) == 2) {
            assert_fails(tide_step_result_get(t.fixture.pool, &result), TIDE_ERROR_STATE, "given up");
        } else {
            assert_ok(tide_step_result_get(t.fixture.pool, &result));
        }
        attempt_end(&t, "an abort after step end");
    }
}

/* The fault may have hit a prefetch that the engine makes by itself. The next call then reports it, once. */
#define assert_ok_at_last(call)                                                                              \
    do {                                                                                                     \
        if ((call) != TIDE_OK)                                                                               \
            assert_ok(call);                                                                                 \
    } while (0)

static void set_and_get_survive_every_fault(void **state)
{
    pool_fixture_options options = pool_fixture_options_default();
    options.device_share = 0.1;
    options.least_host = true;
    pool_fixture fixture;
    assert_ok(pool_fixture_create(&options, &fixture));
    run_steps(&fixture, 2, 1);
    uint64_t after, faults = 0;
    const uint64_t before = masters_of(&fixture);
    for (uint64_t n = 1; n < 16; n++) {
        float values[64] = {0};
        assert_ok(tide_param_get(fixture.pool, fixture.params[1], TIDE_VALUE_MASTER, 1000, 64, values));
        assert_ok(pool_fixture_evaluate(&fixture)); /* moves params to the device */
        set_fault(&fixture, TIDE_FAULT_ANY, n);
        const tide_status status =
            tide_param_set(fixture.pool, fixture.params[1], TIDE_VALUE_MASTER, 1000, 64, values);
        set_fault(&fixture, 0, 0);
        faults += status != TIDE_OK;
        assert_ok_at_last(
            tide_param_set(fixture.pool, fixture.params[1], TIDE_VALUE_MASTER, 1000, 64, values));
        set_fault(&fixture, TIDE_FAULT_ANY, n);
        const tide_status evaluated = pool_fixture_evaluate(&fixture);
        set_fault(&fixture, 0, 0);
        if (evaluated != TIDE_OK)
            assert_ok(tide_step_abort(fixture.pool));
        faults += evaluated != TIDE_OK;
        assert_ok_at_last(pool_fixture_hash(&fixture, TIDE_VALUE_MASTER, &after));
        assert_int_equal(before, after);
    }
    assert_true(faults > 4); /* the number of operations in a call depends on how far the engine has come */
    print_message("%llu faults in set and evaluation\n", (unsigned long long)faults);
    pool_fixture_destroy(&fixture);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_update_that_could_not_be_started_poisons_nothing),
        cmocka_unit_test(a_norm_that_never_arrives_is_undone),
        cmocka_unit_test(every_fault_of_a_step_is_undone),
        cmocka_unit_test(memory_that_fails_at_create_and_seal_leaves_nothing_behind),
        cmocka_unit_test(an_update_that_fails_on_the_device_poisons_and_setting_all_recovers),
        cmocka_unit_test(without_clipping_it_poisons_and_setting_all_recovers),
        cmocka_unit_test(giving_up_an_evaluation_leaves_the_updates_before_it_alone),
        cmocka_unit_test(an_abort_after_step_end_is_exact_or_poisoned),
        cmocka_unit_test(set_and_get_survive_every_fault),
    };
    return cmocka_run_group_tests_name("pool_faults", tests, NULL, NULL);
}
