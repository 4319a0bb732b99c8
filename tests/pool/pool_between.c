/* The part of a random case that happens while no step is open. It checks the last step's result, reads and
 * sets values, gives steps up, and sees that a poisoned pool refuses calls and recovers once all values are
 * set. */
#include "tests/pool/pool_case.h"
#include "tests/pool/reference_kernels.h"

#include <math.h>
#include <string.h>

static uint64_t hash_bytes(uint64_t hash, const void *bytes, uint64_t count)
{
    for (uint64_t i = 0; i + 4 <= count; i += 4) {
        uint32_t word;
        memcpy(&word, (const char *)bytes + i, sizeof word);
        hash = (hash ^ word) * UINT64_C(1099511628211);
    }
    return hash;
}

bool pool_is_blind(const pool_case *c)
{
    return c->variant == 1 && !c->model.own_optimizer;
}

/* --- the result of a step --- */

static float scale_of(const tide_step_options *step, double norm, float loss_scale)
{
    const double factor = (double)step->clip_norm / (norm + 1e-6);
    return (step->clip_norm > 0 && factor < 1 ? (float)factor : 1.0F) / loss_scale;
}

static void compare_result(pool_case *c, const tide_step_result *got)
{
    const tide_step_result *wanted = &c->model.pending_result;
    const double norm = wanted->gradient_norm;
    const float scale =
        got->skipped ? 0 : scale_of(&c->model.pending_step, got->gradient_norm, wanted->loss_scale);
    pool_expect_true(c, "the norm is the model's",
                     isfinite(norm) ? fabs(got->gradient_norm - norm) <= 1e-12 * norm
                                    : !isfinite(got->gradient_norm));
    pool_expect_true(c, "skipped or not as the model", got->skipped == wanted->skipped);
    pool_expect_true(c, "skipped in a row as the model", got->skipped_in_row == wanted->skipped_in_row);
    pool_expect_true(c, "zero gradients as the model", got->zero_gradients == wanted->zero_gradients);
    pool_expect_true(c, "the loss scale", got->loss_scale == wanted->loss_scale);
    pool_expect_true(c, "the scale is that of the norm", got->gradient_scale == scale);
    pool_expect_true(c, "the update counts once the norm is known",
                     tide_update_count(c->pool) == c->model.updates + !wanted->skipped);
}

void pool_know_result(pool_case *c)
{
    tide_step_result result;
    if (!c->model.pending || c->result_known)
        return;
    const bool ten = c->model.pending_result.skipped_in_row >= 10;
    pool_expect(c, "tide_step_result_get", tide_step_result_get(c->pool, &result),
                ten ? TIDE_ERROR_NONFINITE : TIDE_OK);
    c->result_known = true;
    if (ten)
        return;
    compare_result(c, &result);
    c->model.pending_result.gradient_scale = result.gradient_scale;
    if (!result.skipped)
        c->hash = hash_bytes(c->hash, &result.gradient_norm, sizeof result.gradient_norm);
}

/* The model does not compute AdamW. It checks that the pool's results are within their bounds and then
 * copies them. */
static void take_adamw(pool_case *c)
{
    for (uint32_t i = 0; i < c->model.param_count; i++) {
        const uint64_t elements = c->model.params[i].elements;
        if (c->model.params[i].of_class.frozen)
            continue;
        for (int j = 0; j < 3; j++)
            pool_expect_ok(c, tide_param_get(c->pool, i, (tide_value)(TIDE_VALUE_MASTER + j), 0, elements,
                                             c->buffers[j]));
        const uint64_t at = ref_adamw_take(&c->model, i, (const float *const *)c->buffers);
        if (at < elements)
            pool_case_fail(c, "AdamW: element %llu of p%u is %.9g, momentum %.9g, variance %.9g",
                           (unsigned long long)at, i, (double)c->buffers[0][at], (double)c->buffers[1][at],
                           (double)c->buffers[2][at]);
    }
}

static void wait_for_kernels(pool_case *c)
{
    if (c->kernels_may_run)
        pool_region_read(c);
}

void pool_settle(pool_case *c)
{
    if (!c->model.pending)
        return;
    const bool skipped = c->model.pending_result.skipped;
    wait_for_kernels(c);
    ref_settle(&c->model);
    pool_events[EVENT_SKIPS] += skipped;
    for (uint32_t i = 0; i < c->model.param_count && skipped; i++)
        pool_events[EVENT_HALF_SKIPS] += c->model.params[i].of_class.state.bytes[0] == 64;
    if (!c->model.own_optimizer && !skipped && !pool_is_blind(c))
        take_adamw(c);
}

/* The next step's begin may settle the last step in the model, which needs that step's clip factor and
 * AdamW's results: fetch them now. */
static void prepare(pool_case *c)
{
    const float clip = c->model.pending_step.clip_norm;
    if ((clip > 0 && isfinite(clip)) || !c->model.own_optimizer || pool_chance(c, 50))
        pool_know_result(c);
    if (!c->model.own_optimizer && !pool_is_blind(c) && c->model.pending_result.skipped_in_row < 10)
        pool_settle(c);
}

/* --- a poisoned pool --- */

static void see_poisoned(pool_case *c)
{
    const tide_step_options step = {0};
    tide_step_result result;
    char byte = 0;
    pool_expect(c, "tide_step_begin on a poisoned pool", tide_step_begin(c->pool, &step), TIDE_ERROR_STATE);
    pool_expect(c, "tide_pool_drain on a poisoned pool", tide_pool_drain(c->pool), TIDE_ERROR_STATE);
    pool_expect(c, "tide_step_result_get on a poisoned pool", tide_step_result_get(c->pool, &result),
                TIDE_ERROR_STATE);
    pool_expect(c, "tide_write on a poisoned pool", tide_write(c->pool, tide_region(c->pool), &byte, 1),
                TIDE_ERROR_STATE);
    pool_expect(c, "tide_read on a poisoned pool", tide_read(c->pool, &byte, tide_region(c->pool), 1),
                TIDE_ERROR_STATE);
}

static void set_whole(pool_case *c, tide_param param, tide_value kind)
{
    const float *values = c->model.params[param].values[kind - TIDE_VALUE_MASTER];
    const uint64_t elements = c->model.params[param].elements;
    for (uint64_t done = 0; done < elements;) {
        const uint64_t piece = pool_chance(c, 50) ? elements - done : 1 + pool_random(c, elements - done);
        pool_expect_ok(c, tide_param_set(c->pool, param, kind, done, piece, values + done));
        done += piece;
    }
}

/* Set all values of all params. A poisoned pool stays poisoned until the last of them is set. */
static void set_everything(pool_case *c, bool is_poisoned)
{
    const uint32_t params = c->model.param_count, first = (uint32_t)pool_random(c, params);
    for (uint32_t i = 0; i < params; i++) {
        const tide_param param = (first + i) % params;
        for (tide_value kind = TIDE_VALUE_MASTER; kind <= ref_last_value(&c->model, param); kind++) {
            if (is_poisoned && pool_chance(c, 15))
                see_poisoned(c);
            set_whole(c, param, kind);
        }
    }
    pool_expect_ok(c, tide_update_count_set(c->pool, c->model.updates));
}

/* --- giving a step up --- */

static void see_given_up(pool_case *c)
{
    tide_step_result result;
    if (pool_chance(c, 50))
        pool_expect(c, "tide_step_result_get of a step given up", tide_step_result_get(c->pool, &result),
                    TIDE_ERROR_STATE);
    pool_expect_true(c, "an abort of nothing is fine", tide_step_abort(c->pool) == TIDE_OK);
}

static void poisoned(pool_case *c, pool_event by)
{
    pool_events[by]++;
    c->model.pending = false;
    c->model.skipped_in_row = 0;
    set_everything(c, true);
    pool_events[EVENT_RECOVERS]++;
}

static void give_up_open(pool_case *c)
{
    const bool may_tear = ref_may_poison(&c->model);
    /* the status of a read on the failed pool: OK, or that of the abort if the abort poisons the pool */
    tide_status got = TIDE_OK;
    float value;
    if (c->failed && pool_chance(c, 50))
        got = tide_param_get(c->pool, 0, TIDE_VALUE_PARAM, 0, 1, &value);
    const tide_status status = tide_step_abort(c->pool);
    pool_expect(c, "tide_param_get on a failed pool", got, got == TIDE_OK ? TIDE_OK : status);
    ref_step_forget(&c->model);
    c->region_known = c->failed = c->kernels_may_run = false;
    if (status != TIDE_OK && may_tear) {
        pool_expect(c, "tide_step_abort", status, TIDE_ERROR_STATE);
        poisoned(c, EVENT_POISONED_BY_ABORT);
        return;
    }
    pool_expect(c, "tide_step_abort", status, TIDE_OK);
    pool_expect_true(c, "a step given up does not count", tide_update_count(c->pool) == c->model.updates);
}

/* Abort after the end of a training step, whose updates may be running. The pool may drop the step as if it
 * had not begun, let it take place, or be poisoned because some of its updates have begun. */
static void give_up_pending(pool_case *c)
{
    const bool skipped = c->model.pending_result.skipped;
    if (c->paired)
        pool_expect_ok(c, tide_pool_drain(c->pool));
    else if (!skipped && pool_chance(c, 40))
        pool_await_update(c);
    const tide_status status = tide_step_abort(c->pool);
    const uint64_t count = tide_update_count(c->pool), before = c->model.updates;
    c->region_known = c->kernels_may_run = false;
    if (status != TIDE_OK && !c->paired && !skipped) {
        pool_expect(c, "tide_step_abort", status, TIDE_ERROR_STATE);
        poisoned(c, EVENT_LATE_POISONED);
        return;
    }
    pool_expect(c, "tide_step_abort", status, TIDE_OK);
    if (skipped || (count == before && !c->paired)) {
        c->model.pending = false;
        c->model.skipped_in_row = 0;
        pool_events[EVENT_LATE_GIVEN_UP] += !skipped;
        if (!skipped)
            see_given_up(c);
    } else {
        pool_expect_true(c, "a step after its abort counts or not", count == before + 1);
        pool_know_result(c);
        pool_settle(c);
        pool_events[EVENT_LATE_TAKEN]++;
    }
}

/* Abort after a forward-only pass. The pool gives up the training step before that pass if its updates are
 * not over. The model no longer has the values from before that step, so it sets all values anew when the
 * step was given up. */
static void give_up_settled(pool_case *c)
{
    if (c->paired && c->updates_may_run)
        pool_expect_ok(c, tide_pool_drain(c->pool));
    const bool may_run = c->updates_may_run && !c->paired;
    const tide_status status = tide_step_abort(c->pool);
    c->updates_may_run = false;
    if (status != TIDE_OK && may_run) {
        pool_expect(c, "tide_step_abort", status, TIDE_ERROR_STATE);
        poisoned(c, EVENT_LATE_POISONED);
        return;
    }
    pool_expect(c, "tide_step_abort", status, TIDE_OK);
    if (may_run && tide_update_count(c->pool) == c->model.updates - 1)
        set_everything(c, false);
    pool_expect_true(c, "an abort of nothing changes no count",
                     tide_update_count(c->pool) == c->model.updates);
}

void pool_give_up(pool_case *c)
{
    c->giving_up_in = REF_NONE;
    if (c->model.step_open)
        give_up_open(c);
    else if (c->model.pending)
        give_up_pending(c);
    else
        give_up_settled(c);
    c->model.skipped_in_row = 0;
}

/* --- steps that end badly --- */

/* If the pending step did not wait for its norm before the updates, and the norm is not finite, its updates
 * have poisoned the pool: check that and recover. Returns whether this was so. */
static bool spoilt(pool_case *c)
{
    const reference_pool *model = &c->model;
    const tide_step_options step = {0};
    tide_step_result result;
    if (!model->pending || ref_waits(model, &model->pending_step) ||
        isfinite(model->pending_result.gradient_norm))
        return false;
    const uint64_t met_by = pool_random(c, 3);
    if (met_by == 0)
        pool_expect(c, "tide_step_result_get", tide_step_result_get(c->pool, &result), TIDE_ERROR_NONFINITE);
    else if (met_by == 1)
        pool_expect(c, "tide_step_begin", tide_step_begin(c->pool, &step), TIDE_ERROR_NONFINITE);
    else
        pool_expect(c, "tide_pool_drain", tide_pool_drain(c->pool), TIDE_ERROR_NONFINITE);
    pool_expect(c, "tide_step_abort", tide_step_abort(c->pool), TIDE_ERROR_STATE);
    poisoned(c, EVENT_POISONED_BY_NORM);
    return true;
}

/* After pool_case told the update callback to fail for one piece: check that the pool reports the failure,
 * unless the step made no such piece. */
static void see_update_fail(pool_case *c)
{
    if (atomic_load(&c->failing_update) == 0)
        return;
    const bool at_once = pool_chance(c, 30); /* give the step up before the pool reports the failure */
    const tide_status status = c->model.pending && !at_once ? tide_pool_drain(c->pool) : TIDE_OK;
    if (at_once)
        pool_give_up(c);
    const bool failed = atomic_exchange(&c->update_failures, 0) > 0;
    atomic_store(&c->failing_update, 0);
    if (!c->model.pending || at_once)
        return;
    pool_expect(c, "tide_pool_drain", status, failed ? TIDE_ERROR_MISMATCH : TIDE_OK);
    if (!failed)
        return;
    c->region_known = false;
    pool_expect(c, "tide_step_abort", tide_step_abort(c->pool), TIDE_ERROR_STATE);
    poisoned(c, EVENT_POISONED_BY_UPDATE);
}

/* --- values --- */

static void compare_values(pool_case *c, tide_param number, tide_value kind, uint64_t first, uint64_t count)
{
    const ref_param *param = &c->model.params[number];
    const float *got = c->buffers[0], *wanted = c->buffers[1];
    if (kind == TIDE_VALUE_PARAM)
        ref_load(c->model.dtype, c->buffers[1],
                 (const char *)param->place + first * tide_dtype_bytes(c->model.dtype), count);
    else
        wanted = param->values[kind - TIDE_VALUE_MASTER] + first;
    for (uint64_t i = 0; i < count && !pool_is_blind(c); i++)
        if (memcmp(&got[i], &wanted[i], sizeof *got) != 0)
            pool_case_fail(c, "element %llu of p%u in kind %d is %.9g, not %.9g",
                           (unsigned long long)(first + i), number, (int)kind, (double)got[i],
                           (double)wanted[i]);
}

/* Fetch the clip factor and AdamW's results before another call changes or reads values. */
static void before_values(pool_case *c)
{
    pool_know_result(c);
    if (!c->model.own_optimizer)
        pool_settle(c);
}

static void draw_values(pool_case *c, tide_param *param, uint64_t *first, uint64_t *count)
{
    *param = (tide_param)pool_random(c, c->model.param_count);
    const uint64_t elements = c->model.params[*param].elements;
    *first = pool_random(c, elements);
    *count = pool_chance(c, 30) ? elements - *first : pool_random(c, elements - *first + 1);
}

static void get_values(pool_case *c)
{
    tide_param param;
    uint64_t first, count;
    draw_values(c, &param, &first, &count);
    const tide_value kind = (tide_value)pool_random(c, ref_last_value(&c->model, param) + 1);
    before_values(c);
    pool_expect_ok(c, tide_param_get(c->pool, param, kind, first, count, c->buffers[0]));
    if (c->model.pending)
        pool_settle(c);
    compare_values(c, param, kind, first, count);
}

static void set_values(pool_case *c)
{
    tide_param param;
    uint64_t first, count;
    draw_values(c, &param, &first, &count);
    const uint32_t planes = ref_last_value(&c->model, param);
    const tide_value kind = planes == 0 ? TIDE_VALUE_PARAM : (tide_value)(1 + pool_random(c, planes));
    const uint32_t seed = 1 + (uint32_t)pool_random(c, 1 << 20);
    before_values(c);
    for (uint64_t i = 0; i < count; i++) /* a variance is never negative */
        c->buffers[0][i] = fabsf(ref_amount(seed, (uint32_t)i));
    pool_expect_ok(c, tide_param_set(c->pool, param, kind, first, count, c->buffers[0]));
    pool_settle(c);
    wait_for_kernels(c);
    ref_set(&c->model, param, kind, first, count, c->buffers[0]);
}

static void set_count(pool_case *c)
{
    const uint64_t updates = pool_random(c, pool_chance(c, 50) ? 10 : 100000);
    before_values(c);
    pool_settle(c);
    if (c->model.skipped_in_row > 0)
        return; /* whether this call resets the count of skipped steps is not specified */
    pool_expect_ok(c, tide_update_count_set(c->pool, updates));
    c->model.updates = updates;
}

static void drain(pool_case *c)
{
    pool_expect_ok(c, tide_pool_drain(c->pool));
    before_values(c);
    pool_settle(c);
}

void pool_check_all(pool_case *c)
{
    before_values(c);
    for (uint32_t i = 0; i < c->model.param_count; i++)
        for (tide_value kind = TIDE_VALUE_PARAM; kind <= ref_last_value(&c->model, i); kind++) {
            const uint64_t elements = c->model.params[i].elements;
            pool_expect_ok(c, tide_param_get(c->pool, i, kind, 0, elements, c->buffers[0]));
            pool_settle(c);
            compare_values(c, i, kind, 0, elements);
            c->hash = hash_bytes(c->hash, c->buffers[0], elements * sizeof(float));
        }
}

/* --- predictions, counters and traces --- */

static void predict(pool_case *c)
{
    tide_pool_prediction prediction;
    const bool measured = c->model.pending && !c->model.pending_result.skipped && c->ops_played > 0;
    if (c->model.pending)
        drain(c);
    const tide_status status = tide_pool_predict(c->pool, &prediction);
    c->predicted = true;
    if ((!measured && status == TIDE_ERROR_STATE) || status == TIDE_ERROR_UNSUPPORTED)
        return;
    pool_expect(c, "tide_pool_predict", status, TIDE_OK);
    pool_expect_true(c, "a prediction is a time",
                     prediction.step_seconds >= 0 && prediction.stall_seconds >= 0);
    pool_events[EVENT_PREDICTIONS]++;
}

static void look_at_counters(pool_case *c)
{
    tide_pool_counters counters;
    uint64_t step;
    pool_expect_ok(c, tide_pool_counters_get(c->pool, &counters));
    pool_expect_true(c, "the device's budget holds",
                     counters.device_bytes_peak <= c->plan.device_memory_bytes);
    pool_expect_true(c, "the host's budget holds", counters.host_bytes_peak <= c->plan.host_memory_bytes);
    if (c->training_steps < 2 || c->predicted)
        return;
    if (c->counters.steps > 0)
        pool_expect_true(c, "nothing is allocated in steady state",
                         c->counters.device_allocations == counters.device_allocations &&
                             c->counters.host_allocations == counters.host_allocations);
    c->counters = counters;
    while (tide_pool_step_counters_take(c->pool, &step, &counters))
        pool_expect_true(c, "a step's counters are a step's", counters.steps <= 1);
}

static void one_thing(pool_case *c)
{
    void (*const things[])(pool_case *) = {
        pool_know_result, get_values, set_values,       set_count,         drain,
        pool_give_up,     predict,    look_at_counters, pool_region_write, pool_region_read};
    float value;
    const uint64_t kind = pool_random(c, 11);
    if (kind < sizeof things / sizeof *things) {
        things[kind](c);
        return;
    }
    pool_expect(c, "tide_op_begin without a step", tide_op_begin(c->pool, 0), TIDE_ERROR_STATE);
    pool_expect(c, "tide_step_end without a step", tide_step_end(c->pool), TIDE_ERROR_STATE);
    pool_expect(c, "tide_param_get of too much",
                tide_param_get(c->pool, 0, TIDE_VALUE_MASTER, c->model.params[0].elements, 1, &value),
                TIDE_ERROR_ARGUMENT);
    const tide_param any = (tide_param)pool_random(c, c->model.param_count);
    const tide_value beyond = (tide_value)(ref_last_value(&c->model, any) + 1);
    pool_expect(c, "tide_param_get of a value that the param has not",
                tide_param_get(c->pool, any, beyond, 0, 1, &value), TIDE_ERROR_ARGUMENT);
    pool_expect(c, "tide_param_set likewise", tide_param_set(c->pool, any, beyond, 0, 1, &value),
                TIDE_ERROR_ARGUMENT);
    pool_events[EVENT_REFUSED_OTHERS] += 5;
}

void pool_between(pool_case *c)
{
    see_update_fail(c);
    if (!spoilt(c))
        for (uint64_t count = c->skips_to_come > 0 ? 0 : pool_random(c, 4); count > 0; count--)
            one_thing(c);
    look_at_counters(c);
    prepare(c);
    if (ref_difference() != NULL)
        pool_case_fail(c, "%s", ref_difference());
}
