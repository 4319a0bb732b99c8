/* Compares the predictions of tide_pool_predict with the measured times of the steps that follow: on the
 * null device, where both are in the same virtual time, and on the host device with a throttled link and
 * kernels that only sleep. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/team.h"
#include "src/pool/internal.h"
#include "tests/support/assert_ok.h"
#include "tests/support/interpose.h"
#include "tests/support/test_thin.h"

enum { LAYERS = 6, SLICES = 4, SAVED_BYTES = 100000, MS = 1000000, RUN_STEPS_MAX = 64, BYTES_PER_NS = 10 };

/* A model of layers with one param each. Each layer has a forward and a backward op of up to SLICES slices.
 * A kernel lasts `kernel_ns`: the null device derives this from the kernel's bytes, and on the host device
 * the kernel sleeps. */
typedef struct fixture {
    tide_description *description;
    tide_pool *pool;
    tide_op forward[LAYERS], backward[LAYERS];
    uint64_t kernel_ns[2 * LAYERS]; /* of one slice of each op, in the order of ops */
    uint32_t slices;                /* slices of each op that a step runs */
    float clip_norm;
} fixture;

typedef struct fixture_options {
    tide_pool_options pool;
    double share; /* device budget: 0 the least, 1 all */
    float clip_norm;
} fixture_options;

static fixture_options options_null(double share, double link_bytes_per_second)
{
    fixture_options options = {.share = share, .clip_norm = 1};
    tide_pool_options_default(&options.pool);
    options.pool.device = "null";
    options.pool.chunk_bytes = 256 * 1024;
    options.pool.threads = 1;
    options.pool.link_bytes_per_second = link_bytes_per_second;
    options.pool.machine = (tide_machine){.device_bytes_per_second = BYTES_PER_NS * 1e9,
                                          .host_bytes_per_second = 10e9,
                                          .map_ns = 20000,
                                          .unmap_ns = 30000,
                                          .link_out_bytes_per_second = 0.8 * link_bytes_per_second};
    return options;
}

static void add_op(fixture *r, const char *name, tide_pass pass, tide_use param, tide_use saved, tide_op *op)
{
    const tide_op_description description = {.name = name,
                                             .pass = pass,
                                             .params = &param,
                                             .param_count = 1,
                                             .activations = &saved,
                                             .activation_count = 1,
                                             .slices = SLICES};
    assert_ok(tide_description_add_op(r->description, &description, op));
}

static void describe(fixture *r)
{
    const uint64_t elements = 400000;
    tide_param params[LAYERS];
    tide_activation saved[LAYERS];
    char name[16];
    assert_ok(tide_description_create(TIDE_DTYPE_BF16, 0, &r->description));
    for (uint32_t l = 0; l < LAYERS; l++) {
        snprintf(name, sizeof name, "w%u", l);
        assert_ok(tide_description_add_param(r->description, name, &elements, 1, NULL, &params[l]));
        snprintf(name, sizeof name, "s%u", l);
        assert_ok(tide_description_add_activation(r->description, name, SLICES, SAVED_BYTES, &saved[l]));
        snprintf(name, sizeof name, "f%u", l);
        add_op(r, name, TIDE_PASS_FORWARD, (tide_use){params[l], TIDE_ACCESS_READ},
               (tide_use){saved[l], TIDE_ACCESS_WRITE}, &r->forward[l]);
    }
    for (uint32_t l = LAYERS; l-- > 0;) {
        snprintf(name, sizeof name, "b%u", l);
        add_op(r, name, TIDE_PASS_BACKWARD, (tide_use){params[l], TIDE_ACCESS_READ | TIDE_ACCESS_GRAD},
               (tide_use){saved[l], TIDE_ACCESS_READ | TIDE_ACCESS_LAST}, &r->backward[l]);
    }
}

/* Describes the model and sets options->pool's budgets, but makes no pool. */
static void fixture_prepare(fixture_options *options, fixture *r)
{
    *r = (fixture){.slices = SLICES, .clip_norm = options->clip_norm};
    for (uint32_t i = 0; i < 2 * LAYERS; i++)
        r->kernel_ns[i] = i < LAYERS ? MS : 2 * MS;
    describe(r);
    tide_pool_plan plan;
    assert_ok(tide_pool_plan_make(&options->pool, r->description, &plan));
    const double chunks = (double)((plan.full_device_bytes - plan.least_device_bytes) / plan.chunk_bytes);
    if (options->share < 1)
        options->pool.device_memory_bytes =
            plan.least_device_bytes + (uint64_t)(chunks * options->share) * plan.chunk_bytes;
}

static fixture fixture_create(const fixture_options *given)
{
    fixture r;
    fixture_options options = *given;
    fixture_prepare(&options, &r);
    assert_ok(tide_pool_create(&options.pool, r.description, &r.pool));
    return r;
}

static void fixture_destroy(fixture *r)
{
    tide_pool_destroy(r->pool);
    tide_description_destroy(r->description);
}

static tide_status sleep_for(void *stream, const void *arguments)
{
    (void)stream;
    const struct timespec time = {.tv_nsec = (long)*(const uint64_t *)arguments};
    nanosleep(&time, NULL);
    return TIDE_OK;
}

static void run_op(fixture *r, tide_op op, uint64_t kernel_ns)
{
    assert_ok(tide_op_begin(r->pool, op));
    for (uint32_t m = 0; m < r->slices; m++) {
        assert_ok(tide_op_slice(r->pool, m));
        assert_ok(tide_launch(r->pool, "sleep", sleep_for, &kernel_ns, sizeof kernel_ns, 0,
                              (double)(kernel_ns * BYTES_PER_NS)));
    }
    assert_ok(tide_op_end(r->pool));
}

static void step(fixture *r)
{
    const tide_step_options options = {
        .training = true, .learning_rate = 1, .epsilon = 1, .clip_norm = r->clip_norm};
    assert_ok(tide_step_begin(r->pool, &options));
    for (uint32_t l = 0; l < LAYERS; l++)
        run_op(r, r->forward[l], r->kernel_ns[l]);
    for (uint32_t l = LAYERS; l-- > 0;)
        run_op(r, r->backward[l], r->kernel_ns[2 * LAYERS - 1 - l]);
    assert_ok(tide_step_end(r->pool));
}

typedef struct times {
    double seconds, stall_seconds;
} times;

static void evaluate(fixture *r)
{
    assert_ok(tide_step_begin(r->pool, &(tide_step_options){.training = false}));
    for (uint32_t l = 0; l < LAYERS; l++)
        run_op(r, r->forward[l], r->kernel_ns[l]);
    assert_ok(tide_step_end(r->pool));
}

static tide_pool_prediction predict(fixture *r)
{
    tide_pool_prediction prediction;
    assert_ok(tide_pool_predict(r->pool, &prediction));
    return prediction;
}

/* Run `steps` steps. `taken` gets the counters of the steps that finished during the call, oldest first;
 * returns their number. */
static uint32_t run(fixture *r, uint32_t steps, tide_pool_counters taken[RUN_STEPS_MAX])
{
    uint32_t count = 0;
    uint64_t number;
    tide_pool_counters counters;
    for (uint32_t i = 0; i < steps; i++) {
        step(r);
        while (tide_pool_step_counters_take(r->pool, &number, &counters)) {
            if (count < RUN_STEPS_MAX)
                taken[count++] = counters;
        }
    }
    return count;
}

/* Run `steps` steps and average the last half of them or, if they are more than 26, all after the first 13.
 * A prediction averages the same steps where steps do not repeat (predict.c). */
static times measure(fixture *r, uint32_t steps)
{
    tide_pool_counters taken[RUN_STEPS_MAX];
    const uint32_t count = run(r, steps, taken), first = count > 26 ? 13 : count / 2;
    times mean = {0};
    assert_true(count > 2);
    for (uint32_t i = first; i < count; i++) {
        mean.seconds += taken[i].seconds / (count - first);
        mean.stall_seconds += taken[i].stall_seconds / (count - first);
    }
    return mean;
}

static void assert_near(const char *what, double predicted, double measured, double allowed)
{
    if (!(fabs(predicted - measured) <= allowed))
        fail_msg("%s: predicted %.6f s, measured %.6f s, allowed %.6f s", what, predicted, measured, allowed);
}

/* The tolerance where prediction and measurement are in the same virtual time. */
static double exactly(times measured)
{
    return 0.01 * measured.seconds;
}

/* --- the null device, with the same virtual time --- */

static void check_exact(const fixture_options *options, const char *what)
{
    fixture r = fixture_create(options);
    const times measured = measure(&r, 48);
    const tide_pool_prediction predicted = predict(&r);
    assert_near(what, predicted.step_seconds, measured.seconds, exactly(measured));
    assert_near(what, predicted.stall_seconds, measured.stall_seconds, exactly(measured));
    fixture_destroy(&r);
}

static void on_the_null_device_the_prediction_is_what_happens(void **state)
{
    const double shares[] = {0, 0.2, 0.5, 1}, links[] = {20e9, 500e6, 100e6, 30e6};
    char what[64];
    for (unsigned i = 0; i < 32; i += test_every(3, 7)) {
        const double share = shares[i / 8], link = links[i / 2 % 4];
        fixture_options options = options_null(share, link);
        options.clip_norm = (float)(i % 2);
        snprintf(what, sizeof what, "share %g link %g clip %u", share, link, i % 2);
        check_exact(&options, what);
    }
}

static void placement_and_prefetch_are_predicted_as_set(void **state)
{
    fixture_options options;
    for (int i = 0; i < 4; i++) {
        options = options_null(0.2 * (i + 1), 500e6);
        options.pool.prefetch = false;
        check_exact(&options, "no prefetch");
    }
    options = options_null(0.3, 200e6);
    options.pool.placement = TIDE_PLACEMENT_DEVICE;
    check_exact(&options, "device");
    options.pool.placement = TIDE_PLACEMENT_HOST;
    options.pool.machine.host_bytes_per_second = 500e6;
    check_exact(&options, "host, slow Adam");
}

/* --- changes that do and don't alter a prediction --- */

static void there_is_no_prediction_before_a_step_has_been_measured(void **state)
{
    const fixture_options options = options_null(0.3, 100e6);
    fixture r = fixture_create(&options);
    tide_pool_prediction prediction = {.step_seconds = -1};
    assert_int_equal(tide_pool_predict(r.pool, &prediction), TIDE_ERROR_STATE);
    evaluate(&r);
    assert_int_equal(tide_pool_predict(r.pool, &prediction), TIDE_ERROR_STATE);
    step(&r);
    assert_int_equal(tide_pool_predict(r.pool, &prediction), TIDE_ERROR_STATE);
    assert_true(prediction.step_seconds < 0);
    assert_ok(tide_pool_drain(r.pool));
    assert_true(predict(&r).step_seconds > 0);
    fixture_destroy(&r);
}

static void an_answer_is_kept_while_nothing_changes(void **state)
{
    const fixture_options options = options_null(0.3, 100e6);
    fixture r = fixture_create(&options);
    measure(&r, 4);
    const tide_pool_prediction first = predict(&r);
    assert_int_equal(first.times_played, 1);
    for (int i = 0; i < 4; i++) {
        r.kernel_ns[3] += MS / 100; /* over all four rounds 4 percent of this kernel */
        evaluate(&r);
        step(&r);
        const tide_pool_prediction again = predict(&r);
        assert_int_equal(again.times_played, 1);
        assert_memory_equal(&again, &first, sizeof first);
    }
    fixture_destroy(&r);
}

static void a_changed_duration_changes_the_prediction(void **state)
{
    const fixture_options options = options_null(1, 10e9);
    fixture r = fixture_create(&options);
    const times before = measure(&r, 6);
    const tide_pool_prediction first = predict(&r);
    assert_near("before", first.step_seconds, before.seconds, exactly(before));
    r.kernel_ns[LAYERS + 2] *= 2; /* makes a step of 80 ms 8 ms longer */
    step(&r);
    step(&r);
    assert_true(predict(&r).step_seconds > 1.01 * first.step_seconds);
    for (int i = 0; i < 12; i++) {
        step(&r);
        predict(&r);
    }
    const times after = measure(&r, 4);
    const tide_pool_prediction last = predict(&r);
    assert_true(after.seconds > 1.05 * before.seconds);
    assert_near("after", last.step_seconds, after.seconds, 0.02 * after.seconds);
    fixture_destroy(&r);
}

/* Each op is less than a tenth of the step and becomes an eighth slower. None alone changes the step by more
 * than 1 percent. */
static void a_drift_of_all_ops_together_is_noticed(void **state)
{
    const fixture_options options = options_null(1, 10e9);
    fixture r = fixture_create(&options);
    for (uint32_t i = 0; i < 2 * LAYERS; i++)
        r.kernel_ns[i] = MS;
    measure(&r, 6);
    const tide_pool_prediction first = predict(&r);
    for (uint32_t i = 0; i < 2 * LAYERS; i++)
        r.kernel_ns[i] += MS / 8;
    measure(&r, 20);
    const tide_pool_prediction last = predict(&r);
    assert_int_equal(last.times_played, 2);
    assert_true(last.step_seconds > 1.08 * first.step_seconds);
    fixture_destroy(&r);
}

static void another_batch_shape_is_followed_at_once(void **state)
{
    const fixture_options options = options_null(0.2, 5e9);
    fixture r = fixture_create(&options);
    measure(&r, 6);
    const tide_pool_prediction first = predict(&r);
    r.slices = 1;
    for (uint32_t i = 0; i < 2 * LAYERS; i++)
        r.kernel_ns[i] *= 2; /* the times that the pool has measured so far are now wrong */
    step(&r);
    assert_ok(tide_pool_drain(r.pool));
    const tide_pool_prediction second = predict(&r);
    assert_int_equal(second.times_played, first.times_played + 1);
    assert_true(second.step_seconds < 0.9 * first.step_seconds);
    const times measured = measure(&r, 48);
    /* Which repeating course of moves the plan settles into may depend on earlier steps. */
    assert_near("other shape", second.step_seconds, measured.seconds, 0.03 * measured.seconds);
    r.slices = SLICES;
    const times again = measure(&r, 48);
    const tide_pool_prediction back = predict(&r);
    assert_near("first shape again", back.step_seconds, again.seconds, 0.03 * again.seconds);
    fixture_destroy(&r);
}

/* The pool must not measure a step that is given up, since its durations would be those of half a step. */
static void a_step_given_up_leaves_the_prediction_alone(void **state)
{
    const fixture_options options = options_null(0.3, 100e6);
    fixture r = fixture_create(&options);
    measure(&r, 4);
    const tide_pool_prediction first = predict(&r);
    assert_ok(tide_step_begin(r.pool, &(tide_step_options){.training = true, .epsilon = 1, .clip_norm = 1}));
    run_op(&r, r.forward[0], 50 * MS);
    assert_ok(tide_step_abort(r.pool));
    step(&r);
    assert_ok(tide_pool_drain(r.pool));
    const tide_pool_prediction again = predict(&r);
    assert_memory_equal(&again, &first, sizeof first);
    fixture_destroy(&r);
}

/* --- how durations are measured --- */

static void samples_replace_at_first_and_then_smooth(void **state)
{
    tide_measure measured;
    assert_ok(tide_measure_create(&measured, 1, 8));
    const uint64_t lasts_ns[] = {1000, 100, 200, 0};
    const double means_ns[] = {1000, 100, 125, 125};
    for (int i = 0; i < 4; i++) {
        tide_measure_step_begin(&measured, true);
        tide_measure_op(&measured, 0, TIDE_SCRIPT_OP);
        tide_measure_op(&measured, 0, 0);
        tide_measure_op(&measured, 0, 1);
        tide_measure_op(&measured, 0, TIDE_SCRIPT_END);
        tide_measure_add(&measured, tide_series_of_op(0), 6000, 0); /* two slices of 3000 ns each */
        if (lasts_ns[i] > 0)
            tide_measure_add(&measured, TIDE_SERIES_COPY_IN, 10 * lasts_ns[i], 10);
        tide_measure_step_end(&measured);
        tide_measure_sample(&measured, false);
        assert_int_equal(measured.complete,
                         i > 0); /* the first step's updates have ended by the end of the second step */
        assert_true(measured.series[TIDE_SERIES_COPY_IN].mean_ns == means_ns[i]);
        assert_true(measured.series[tide_series_of_op(0)].mean_ns == 3000);
        assert_int_equal(measured.version, 1);
    }
    tide_measure_destroy(&measured);
}

static double measured_ns(const fixture *r, uint32_t series)
{
    return r->pool->telemetry.measure.series[series].mean_ns;
}

static void assert_ns(double measured, double expected)
{
    if (!(fabs(measured - expected) <= 1e-3 * expected))
        fail_msg("measured %g ns, set %g ns", measured, expected);
}

static void what_the_machine_was_set_to_is_what_is_measured(void **state)
{
    fixture_options options = options_null(0.2, 500e6);
    options.pool.placement = TIDE_PLACEMENT_HOST;
    fixture r = fixture_create(&options);
    measure(&r, 4);
    assert_ns(measured_ns(&r, TIDE_SERIES_COPY_IN), 2);
    assert_ns(measured_ns(&r, TIDE_SERIES_COPY_OUT), 2.5);
    assert_ns(measured_ns(&r, TIDE_SERIES_ADAM_HOST), 0.1);
    assert_ns(measured_ns(&r, TIDE_SERIES_MAP), 20000);
    assert_ns(measured_ns(&r, TIDE_SERIES_UNMAP), 30000);
    assert_ns(measured_ns(&r, tide_series_of_op(r.forward[1])), MS);
    assert_ns(measured_ns(&r, tide_series_of_op(r.backward[1])), 2 * MS);
    assert_ns(measured_ns(&r, tide_series_of_begin(&r.pool->telemetry.measure, r.backward[1])),
              4 * 400000 / BYTES_PER_NS);
    assert_true(measured_ns(&r, tide_series_of_end(&r.pool->telemetry.measure, r.backward[1])) > 0);
    assert_true(measured_ns(&r, tide_series_of_end(&r.pool->telemetry.measure, r.forward[1])) == 0);
    fixture_destroy(&r);
}

static void a_step_with_more_schedule_steps_than_there_is_room_for_is_not_played(void **state)
{
    const fixture_options options = options_null(1, 10e9);
    fixture r = fixture_create(&options);
    const tide_step_options training = {.training = true, .epsilon = 1, .clip_norm = 1};
    tide_pool_prediction prediction;
    assert_ok(tide_step_begin(r.pool, &training));
    for (int i = 0; i < 6 * LAYERS; i++)
        run_op(&r, r.forward[0], MS);
    assert_ok(tide_step_end(r.pool));
    assert_ok(tide_pool_drain(r.pool));
    assert_int_equal(tide_pool_predict(r.pool, &prediction), TIDE_ERROR_UNSUPPORTED);
    step(&r);
    assert_ok(tide_pool_drain(r.pool));
    assert_true(predict(&r).step_seconds > 0);
    fixture_destroy(&r);
}

/* --- memory of predictions --- */

static void skip_unless_interposed(void)
{
    if (!interpose_active()) {
        print_message(INTERPOSE_SKIPPED);
        skip();
    }
}

static void playing_anew_allocates_nothing(void **state)
{
    skip_unless_interposed();
    fixture_options options = options_null(0.3, 100e6);
    options.pool.predict = true;
    fixture r = fixture_create(&options);
    step(&r);
    step(&r);
    assert_ok(tide_pool_drain(r.pool));
    interpose_arm();
    predict(&r);
    r.slices = 2;
    for (int i = 0; i < 3; i++) {
        r.kernel_ns[0] *= 3;
        step(&r);
        predict(&r);
    }
    const interpose_counts counts = interpose_read();
    interpose_disarm();
    assert_true(predict(&r).times_played > 2);
    assert_int_equal(counts.allocations, 0);
    assert_int_equal(counts.new_maps, 0);
    fixture_destroy(&r);
}

static void a_player_that_memory_lacks_for_leaves_nothing_behind(void **state)
{
    skip_unless_interposed();
    const fixture_options options = options_null(0.3, 100e6);
    fixture r = fixture_create(&options);
    const times measured = measure(&r, 48);
    tide_pool_prediction prediction;
    uint64_t n = 0;
    bool met = true;
    while (met) {
        interpose_arm();
        interpose_fail(INTERPOSE_MALLOC | INTERPOSE_MMAP, ++n);
        const tide_status status = tide_pool_predict(r.pool, &prediction);
        met = interpose_has_failed();
        interpose_disarm();
        if (met) {
            assert_int_equal(status, TIDE_ERROR_NO_MEMORY);
            assert_int_equal(interpose_read().live, 0);
        } else {
            assert_int_equal(status, TIDE_OK);
        }
    }
    assert_true(n > 50);
    assert_near("at last", prediction.step_seconds, measured.seconds, exactly(measured));
    fixture_destroy(&r);
}

static void a_create_whose_player_finds_no_memory_can_be_repeated(void **state)
{
    skip_unless_interposed();
    fixture_options options = options_null(0.3, 100e6);
    options.pool.predict = true;
    fixture r;
    fixture_prepare(&options, &r);
    uint64_t n = 0;
    tide_status status = TIDE_ERROR_NO_MEMORY;
    while (status != TIDE_OK) {
        interpose_arm();
        interpose_fail(INTERPOSE_MALLOC | INTERPOSE_MMAP, ++n);
        status = tide_pool_create(&options.pool, r.description, &r.pool);
        interpose_disarm();
        if (status != TIDE_OK) {
            assert_int_equal(status, TIDE_ERROR_NO_MEMORY);
            assert_int_equal(interpose_read().live, 0);
        }
    }
    assert_true(n > 100); /* allocations of the pool and of the second pool that plays steps */
    measure(&r, 4);
    assert_true(predict(&r).step_seconds > 0);
    fixture_destroy(&r);
}

static void a_player_leaves_the_kernels_threads_alone(void **state)
{
    fixture_options options = options_null(0.3, 100e6);
    options.pool.threads = 3;
    fixture r = fixture_create(&options);
    measure(&r, 4);
    tide_kernels_cpu_configure(2);
    const int threads = tide_team_threads();
    predict(&r);
    assert_int_equal(tide_team_threads(), threads);
    fixture_destroy(&r);
}

/* --- the host device --- */

/* Kernels that sleep take no core and the link is slow, so two busy cores can make only a small
 * difference. */
static fixture_options options_host(double share, double link_bytes_per_second)
{
    fixture_options options = options_null(share, link_bytes_per_second);
    options.pool.device = "host";
    return options;
}

static int by_value(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *values, uint32_t count)
{
    qsort(values, count, sizeof *values, by_value);
    return values[count / 2];
}

/* In each round predict a step, run some, and divide the prediction by the median step. Returns the median
 * of these ratios. */
static double predicted_part(fixture *r, double *least, double *most)
{
    enum { ROUNDS = 5, STEPS = 5 };
    double ratios[ROUNDS], seconds[RUN_STEPS_MAX];
    tide_pool_counters taken[RUN_STEPS_MAX];
    for (uint32_t i = 0; i < ROUNDS; i++) {
        const tide_pool_prediction predicted = predict(r);
        const uint32_t count = run(r, STEPS, taken);
        for (uint32_t j = 0; j < count; j++)
            seconds[j] = taken[j].seconds;
        ratios[i] = predicted.step_seconds / median(seconds, count);
    }
    const double ratio = median(ratios, ROUNDS);
    *least = ratios[0];
    *most = ratios[ROUNDS - 1];
    return ratio;
}

/* Other processes may disturb the measurement: twenty busy ones on two cores once made the ratio 1.302. A
 * wrong prediction is wrong in every try, so one good try is enough to pass. */
static void check_host(double share, double link_bytes_per_second, float clip_norm)
{
    enum { SPELLS = 8 };
    tide_pool_counters taken[RUN_STEPS_MAX];
    fixture_options options = options_host(share, link_bytes_per_second);
    options.clip_norm = clip_norm;
    fixture r = fixture_create(&options);
    run(&r, 4, taken);
    bool near = false;
    for (uint32_t spell = 0; spell < SPELLS && !near; spell++) {
        double least, most;
        const double ratio = predicted_part(&r, &least, &most);
        print_message("host, share %g, link %g, clip %g: predicted / measured %.3f (%.3f to %.3f)\n", share,
                      link_bytes_per_second, (double)clip_norm, ratio, least, most);
        near = ratio > 0.7 && ratio < 1.3;
    }
    assert_true(near);
    fixture_destroy(&r);
}

static void on_the_host_device_the_prediction_is_near_what_happens(void **state)
{
    if (test_thin(2) == 1) { /* the test depends on real time; under a sanitizer the last case is enough */
        check_host(1, 1e9, 1);
        check_host(0.3, 200e6, 0);
    }
    check_host(0.3, 50e6, 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(on_the_null_device_the_prediction_is_what_happens),
        cmocka_unit_test(placement_and_prefetch_are_predicted_as_set),
        cmocka_unit_test(there_is_no_prediction_before_a_step_has_been_measured),
        cmocka_unit_test(an_answer_is_kept_while_nothing_changes),
        cmocka_unit_test(a_changed_duration_changes_the_prediction),
        cmocka_unit_test(a_drift_of_all_ops_together_is_noticed),
        cmocka_unit_test(another_batch_shape_is_followed_at_once),
        cmocka_unit_test(a_step_given_up_leaves_the_prediction_alone),
        cmocka_unit_test(samples_replace_at_first_and_then_smooth),
        cmocka_unit_test(what_the_machine_was_set_to_is_what_is_measured),
        cmocka_unit_test(a_step_with_more_schedule_steps_than_there_is_room_for_is_not_played),
        cmocka_unit_test(playing_anew_allocates_nothing),
        cmocka_unit_test(a_player_that_memory_lacks_for_leaves_nothing_behind),
        cmocka_unit_test(a_create_whose_player_finds_no_memory_can_be_repeated),
        cmocka_unit_test(a_player_leaves_the_kernels_threads_alone),
        cmocka_unit_test(on_the_host_device_the_prediction_is_near_what_happens),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
