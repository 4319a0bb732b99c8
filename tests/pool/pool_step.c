/* Plays a random step on the pool and on the reference model. The model predicts the status of every call;
 * kernels compare the values they find with the model's as soon as they run. */
#include "tests/pool/pool_case.h"
#include "tests/pool/reference_kernels.h"

#include <math.h>
#include <string.h>

static const tide_step_options forward_only = {
    .learning_rate = NAN, .beta1 = 7, .clip_norm = -1, .loss_scale = 3};

static void launch(pool_case *c, const char *name, tide_kernel kernel, const void *arguments, size_t bytes)
{
    pool_expect(c, name, tide_launch(c->pool, name, kernel, arguments, bytes, 0, 0), TIDE_OK);
}

static void expect_bytes(pool_case *c, const char *what, const void *found, const void *expected,
                         uint64_t bytes, uint32_t seed)
{
    const ref_expect_args args = {what, found, expected, bytes, seed};
    launch(c, "expect", ref_expect_kernel, &args, sizeof args);
}

static uint32_t draw_seed(pool_case *c)
{
    return 1 + (uint32_t)pool_random(c, 1 << 30);
}

/* --- the region --- */

static void draw_range(pool_case *c, uint64_t *first, uint64_t *bytes)
{
    *first = pool_random(c, c->nonmodel_bytes);
    *bytes = pool_random(c, c->nonmodel_bytes - *first + 1);
}

void pool_region_write(pool_case *c)
{
    char *region = tide_region(c->pool);
    uint64_t first = 0, bytes = c->nonmodel_bytes;
    if (c->region_known)
        draw_range(c, &first, &bytes);
    ref_pattern(draw_seed(c), 0, c->region + first, bytes);
    pool_expect_ok(c, tide_write(c->pool, region + first, c->region + first, bytes));
    c->region_known = true;
}

void pool_region_read(pool_case *c)
{
    static char target[64 * 1024];
    const char *region = tide_region(c->pool);
    uint64_t first, bytes;
    draw_range(c, &first, &bytes);
    pool_expect_ok(c, tide_read(c->pool, target, region + first, bytes));
    c->kernels_may_run = false;
    pool_expect_true(c, "tide_read gives what the region holds",
                     !c->region_known || memcmp(target, c->region + first, bytes) == 0);
}

/* Launch a kernel that fills the region with a pattern (`from` NULL) or with a copy of `from`, if the model
 * knows those bytes. */
static void fill_region(pool_case *c, const void *from, const void *model, uint64_t bytes)
{
    ref_fill_args args = {.to = tide_region(c->pool), .from = from, .seed = draw_seed(c)};
    if (!c->region_known || (from != NULL && model == NULL))
        return;
    args.bytes = bytes < c->nonmodel_bytes ? bytes : c->nonmodel_bytes;
    if (model != NULL)
        memcpy(c->region, model, args.bytes);
    else
        ref_pattern(args.seed, 0, c->region, args.bytes);
    launch(c, "fill region", ref_fill_kernel, &args, sizeof args);
}

/* --- calls that are always refused --- */

static void refused(pool_case *c, const char *call, tide_status got, tide_status wanted)
{
    pool_expect(c, call, got, wanted);
    pool_events[EVENT_REFUSED_OTHERS]++;
}

static void refuse_between_ops(pool_case *c)
{
    float value = 0;
    refused(c, "tide_op_end without an op", tide_op_end(c->pool), TIDE_ERROR_STATE);
    refused(c, "tide_op_slice without an op", tide_op_slice(c->pool, 0), TIDE_ERROR_STATE);
    refused(c, "an op that is not there", tide_op_begin(c->pool, c->model.op_count), TIDE_ERROR_ARGUMENT);
    refused(c, "tide_param_set in a step",
            tide_param_set(c->pool, 0,
                           c->model.params[0].of_class.frozen ? TIDE_VALUE_PARAM : TIDE_VALUE_MASTER, 0, 1,
                           &value),
            TIDE_ERROR_STATE);
    pool_expect_true(c, "no gradient, no workspace between ops",
                     tide_param_gradient(c->pool, 0) == NULL && tide_workspace(c->pool) == NULL);
}

static void refuse_in_op(pool_case *c)
{
    const tide_op_description *d = &c->model.ops[c->model.op].description;
    refused(c, "tide_step_end in an op", tide_step_end(c->pool), TIDE_ERROR_STATE);
    refused(c, "tide_pool_drain in an op", tide_pool_drain(c->pool), TIDE_ERROR_STATE);
    refused(c, "tide_op_begin in an op", tide_op_begin(c->pool, 0), TIDE_ERROR_STATE);
    refused(c, "a slice too many", tide_op_slice(c->pool, d->slices), TIDE_ERROR_ARGUMENT);
}

static void refuse_in_step(pool_case *c)
{
    const size_t too_many = c->nonmodel_bytes + 1;
    char *region = tide_region(c->pool);
    tide_step_result result;
    float value;
    refused(c, "tide_step_begin in a step", tide_step_begin(c->pool, &forward_only), TIDE_ERROR_STATE);
    refused(c, "tide_param_get in a step", tide_param_get(c->pool, 0, TIDE_VALUE_PARAM, 0, 1, &value),
            TIDE_ERROR_STATE);
    refused(c, "tide_update_count_set in a step", tide_update_count_set(c->pool, 1), TIDE_ERROR_STATE);
    refused(c, "tide_step_result_get in a step", tide_step_result_get(c->pool, &result), TIDE_ERROR_STATE);
    refused(c, "tide_write over the end", tide_write(c->pool, region, c->region, too_many),
            TIDE_ERROR_ARGUMENT);
    refused(c, "tide_read over the end", tide_read(c->pool, c->region, region, too_many),
            TIDE_ERROR_ARGUMENT);
    pool_expect_true(c, "an open step does not count", tide_update_count(c->pool) == c->model.updates);
    if (c->model.op != REF_NONE)
        refuse_in_op(c);
    else
        refuse_between_ops(c);
}

/* --- giving up between any two calls --- */

/* End an op after a kernel that fails. The gradients that the op's end rounds have no meaning, but the pool
 * must undo them. */
static void end_op_on_failure(pool_case *c)
{
    const tide_status status = tide_op_end(c->pool);
    if (status != TIDE_OK)
        pool_expect(c, "tide_op_end behind a failed kernel", status, TIDE_ERROR_IO);
    ref_op_end(&c->model);
}

/* Launch a kernel that fails. Calls return OK until the pool notices, and from then on the kernel's
 * status. */
static void fail_a_kernel(pool_case *c)
{
    const char *op = c->model.op == REF_NONE ? "" : c->model.ops[c->model.op].name;
    char target;
    pool_events[EVENT_KERNEL_FAILURES]++;
    launch(c, "the failing one", ref_failing_kernel, NULL, 0);
    c->region_known = false;
    if (c->model.op != REF_NONE && !c->paired && pool_chance(c, 25)) {
        end_op_on_failure(c);
        return;
    }
    if (pool_chance(c, 30))
        return;
    pool_expect(c, "tide_read behind a failed kernel", tide_read(c->pool, &target, tide_region(c->pool), 1),
                TIDE_ERROR_IO);
    c->failed = true;
    if (strstr(tide_message(), "the failing one") == NULL || strstr(tide_message(), op) == NULL)
        pool_case_fail(c, "a failure does not name kernel and op: %s", tide_message());
    if (pool_chance(c, 50))
        pool_expect(c, "tide_op_begin behind a failed kernel", tide_op_begin(c->pool, 0), TIDE_ERROR_IO);
    if (pool_chance(c, 50))
        pool_expect(c, "tide_step_end behind a failed kernel", tide_step_end(c->pool), TIDE_ERROR_IO);
}

/* Called between any two calls of a step. Returns false if it gave the step up. */
static bool moment(pool_case *c)
{
    if (ref_difference() != NULL)
        pool_case_fail(c, "%s", ref_difference());
    if (c->giving_up_in == 0 && !(c->paired && ref_may_poison(&c->model))) {
        if (pool_chance(c, 40))
            fail_a_kernel(c);
        pool_events[EVENT_ABORTS]++;
        pool_events[EVENT_ABORTS_IN_OPS] += c->model.op != REF_NONE;
        pool_give_up(c);
        return false;
    }
    c->giving_up_in -= c->giving_up_in > 0;
    const uint64_t kind = pool_random(c, 60);
    if (kind < 1)
        refuse_in_step(c);
    else if (kind < 4)
        pool_region_write(c);
    else if (kind < 5)
        pool_region_read(c);
    else if (kind < 6 && c->model.op == REF_NONE)
        pool_expect_ok(c, tide_pool_drain(c->pool));
    return true;
}

/* --- an op --- */

/* `overwrite`: the op may overwrite the gradient, because it is new and this is the op's first
 * contribution. */
static void add_to_gradient(pool_case *c, tide_param number, bool overwrite)
{
    static const float specials[] = {INFINITY, -INFINITY, NAN};
    const float loss_scale = c->model.step.loss_scale == 0 ? 1 : c->model.step.loss_scale;
    ref_add_args args = {.accumulator = tide_param_gradient(c->pool, number),
                         .elements = c->model.params[number].elements,
                         .seed = draw_seed(c),
                         .factor = loss_scale * c->size,
                         .overwrite = overwrite};
    const uint64_t special = pool_random(c, 4);
    if (c->spoil)
        args.special = special < 3                         ? specials[special]
                       : c->model.dtype == TIDE_DTYPE_FP32 ? INFINITY
                       : c->model.dtype == TIDE_DTYPE_BF16 ? 3.4e38F
                                                           : 66000.0F * 64;
    c->spoil = false;
    launch(c, "add", ref_add_kernel, &args, sizeof args);
    ref_add(&c->model, number, args.seed, args.factor, args.special);
}

/* Add to the gradient a random number of times, also zero times; but at least once if the op promised to
 * overwrite it. */
static void make_gradient(pool_case *c, tide_param number, bool sum_begins)
{
    const bool is_new = ref_is_new(&c->model, number);
    if (c->model.sum_groups > 1 && c->model.slice == REF_NONE) {
        pool_expect_true(c, "no gradient outside slices", tide_param_gradient(c->pool, number) == NULL);
        return;
    }
    if (tide_param_gradient_is_new(c->pool, number) != is_new)
        pool_case_fail(c, "a gradient is new, and is said not to be, or the other way round");
    const bool overwrite = is_new && sum_begins;
    for (uint64_t times = pool_random(c, 3) + c->spoil + overwrite, i = 0; i < times; i++)
        add_to_gradient(c, number, overwrite && i == 0);
    pool_events[EVENT_OVERWRITTEN] += overwrite;
}

/* `sum_begins`: no kernel of the op has added to the open sum group's gradients yet. */
static void use_params(pool_case *c, bool sum_begins)
{
    const tide_op_description *d = &c->model.ops[c->model.op].description;
    for (uint32_t i = 0; i < d->param_count; i++) {
        const tide_param number = d->params[i].tensor;
        const ref_param *param = &c->model.params[number];
        const uint64_t bytes = param->elements * tide_dtype_bytes(c->model.dtype);
        if (c->finished[number] > 0)
            continue;
        const void *model = pool_is_blind(c) ? NULL : param->place;
        if ((d->params[i].access & TIDE_ACCESS_READ) != 0) {
            if (model != NULL)
                expect_bytes(c, "a param that an op reads", tide_param_data(c->pool, number), model, bytes,
                             0);
            if (pool_chance(c, 10))
                fill_region(c, tide_param_data(c->pool, number), model, bytes);
        }
        if ((d->params[i].access & TIDE_ACCESS_GRAD) != 0)
            make_gradient(c, number, sum_begins);
    }
}

/* May elements of the gradient be finished in the open op? The model's sums are complete then, since the case
 * does not use the param any more. */
static bool may_finish(const pool_case *c, tide_param number)
{
    const reference_pool *model = &c->model;
    const bool last = model->group + 1 == model->sum_groups && model->group_slices > 0;
    return model->params[number].dirty && model->params[number].closing_op == model->op &&
           (model->sum_groups == 1 || last || !ref_makes_gradients(model));
}

/* Finish the param's next elements, or those behind the next ones and then these, or be refused. */
static void finish_some(pool_case *c, tide_param number)
{
    const uint64_t elements = c->model.params[number].elements, first = c->finished[number];
    const uint64_t units = (elements - first + TIDE_FINISHED_ALIGNMENT - 1) / TIDE_FINISHED_ALIGNMENT;
    const uint64_t half = pool_random(c, units + 1) * TIDE_FINISHED_ALIGNMENT;
    const uint64_t middle = first + half < elements ? first + half : elements;
    const uint64_t end = pool_chance(c, 50) ? elements : middle;
    if (end > middle)
        pool_expect_ok(c, tide_gradient_finish(c->pool, number, middle, end - middle));
    const bool all = end == middle || pool_chance(c, 70); /* else a gap stays, for the op's end */
    if (all && middle > first)
        pool_expect_ok(c, tide_gradient_finish(c->pool, number, first, middle - first));
    if (end > first)
        refused(c, "a range that is finished", tide_gradient_finish(c->pool, number, first, elements - first),
                TIDE_ERROR_STATE);
    c->finished[number] = all ? end : elements;
    pool_events[EVENT_FINISHED] += end > first;
    pool_events[EVENT_FINISHED_IN_PARTS] += end > middle && middle > first;
}

static void finish_gradients(pool_case *c)
{
    const tide_op_description *d = &c->model.ops[c->model.op].description;
    for (uint32_t i = 0; i < d->param_count; i++) {
        const tide_param number = d->params[i].tensor;
        if (!may_finish(c, number))
            refused(c, "an early end of a gradient",
                    tide_gradient_finish(c->pool, number, 0, c->model.params[number].elements),
                    TIDE_ERROR_STATE);
        else if (c->finished[number] < c->model.params[number].elements && pool_chance(c, 50))
            finish_some(c, number);
    }
}

static void use_parts(pool_case *c)
{
    const tide_op_description *d = &c->model.ops[c->model.op].description;
    const uint32_t slice = (uint32_t)c->model.slice;
    for (uint32_t i = 0; i < d->activation_count; i++) {
        const tide_use use = d->activations[i];
        ref_activation *activation = &c->model.activations[use.tensor];
        void *part = tide_activation_data(c->pool, use.tensor, slice);
        if ((use.access & TIDE_ACCESS_READ) != 0 && activation->seed[slice] != 0)
            expect_bytes(c, "an activation's part", part, NULL, activation->part_bytes,
                         activation->seed[slice]);
        if ((use.access & TIDE_ACCESS_WRITE) == 0 || pool_chance(c, 10))
            continue;
        const ref_fill_args args = {.to = part, .bytes = activation->part_bytes, .seed = draw_seed(c)};
        launch(c, "fill part", ref_fill_kernel, &args, sizeof args);
        activation->seed[slice] = args.seed;
    }
}

static void refuse_slice(pool_case *c, uint32_t slice, pool_event why)
{
    pool_expect(c,
                why == EVENT_REFUSED_GROUPS ? "tide_op_slice of an earlier sum group"
                                            : "tide_op_slice of a dead part",
                tide_op_slice(c->pool, slice), TIDE_ERROR_STATE);
    pool_events[why]++;
}

static bool take_slice(pool_case *c, uint32_t slice)
{
    if (!moment(c))
        return false;
    const bool in_order = ref_slice_in_order(&c->model, slice);
    if (!in_order || !ref_slice_may_begin(&c->model, slice)) {
        refuse_slice(c, slice, in_order ? EVENT_REFUSED_DEAD_PARTS : EVENT_REFUSED_GROUPS);
        if (c->model.slice != REF_NONE)
            use_parts(c); /* after a refused slice the previous one must still be held */
        return true;
    }
    const uint32_t before = c->model.group;
    pool_expect_ok(c, tide_op_slice(c->pool, slice));
    ref_slice(&c->model, slice);
    pool_events[EVENT_LEFT_OUT_GROUPS] += c->model.group > before + 1;
    use_parts(c);
    const bool sum_begins = c->model.sum_groups > 1 && c->model.group_slices == 1;
    if (sum_begins || pool_chance(c, 25))
        use_params(c, sum_begins);
    if (pool_chance(c, 10))
        finish_gradients(c);
    return true;
}

/* Take all slices in order, or some of them, or a random number of random ones. */
static bool take_slices(pool_case *c)
{
    const uint32_t slices = c->model.ops[c->model.op].description.slices;
    const bool in_order = pool_chance(c, 70), all = c->model.sum_groups == 1 || pool_chance(c, 70);
    uint32_t count = in_order || slices == 0 ? slices : (uint32_t)pool_random(c, 2 * slices);
    for (uint32_t i = 0; i < count; i++) {
        if (in_order && !all && pool_chance(c, 50))
            continue;
        if (!take_slice(c, in_order ? i : (uint32_t)pool_random(c, slices)))
            return false;
    }
    return true;
}

static void count_adders(pool_case *c, tide_op op)
{
    const tide_op_description *d = &c->model.ops[op].description;
    for (uint32_t i = 0; i < d->param_count; i++) {
        const tide_param param = d->params[i].tensor;
        c->adders[param] += (d->params[i].access & TIDE_ACCESS_GRAD) != 0;
        pool_events[EVENT_TIED_CLOSINGS] +=
            c->model.params[param].closing_op == (int)op && c->adders[param] > 1;
    }
}

/* Returns false if the step was given up. */
static bool play_op(pool_case *c, tide_op op)
{
    const ref_op *played = &c->model.ops[op];
    const uint64_t workspace_bytes = played->description.workspace_bytes;
    const uint32_t seed = draw_seed(c);
    pool_expect_ok(c, tide_op_begin(c->pool, op));
    ref_op_begin(&c->model, op);
    memset(c->finished, 0, sizeof c->finished);
    pool_events[EVENT_OPS]++;
    c->ops_played++;
    count_adders(c, op);
    const ref_fill_args fill = {.to = tide_workspace(c->pool), .bytes = workspace_bytes, .seed = seed};
    if (workspace_bytes > 0)
        launch(c, "fill workspace", ref_fill_kernel, &fill, sizeof fill);
    use_params(c, true);
    if (!take_slices(c) || !moment(c))
        return false;
    if (pool_chance(c, 20))
        use_params(c, false);
    if (pool_chance(c, 30))
        finish_gradients(c);
    if (workspace_bytes > 0)
        expect_bytes(c, "an op's workspace", tide_workspace(c->pool), NULL, workspace_bytes, seed);
    if (pool_chance(c, 10))
        fill_region(c, NULL, NULL, pool_random(c, 4000));
    /* before tide_op_end, because the updates of this op's gradients may begin before that call returns */
    ref_op_end(&c->model);
    pool_expect_ok(c, tide_op_end(c->pool));
    return moment(c);
}

static void see_refusal(pool_case *c, tide_op op, ref_refusal why)
{
    static const pool_event events[] = {[REF_REFUSED_PASS] = EVENT_REFUSED_OTHERS,
                                        [REF_REFUSED_CLOSED] = EVENT_REFUSED_CLOSED,
                                        [REF_REFUSED_STUCK] = EVENT_REFUSED_STUCK};
    pool_expect(c,
                why == REF_REFUSED_PASS ? "tide_op_begin of a backward op in a forward-only pass"
                : why == REF_REFUSED_CLOSED
                    ? "tide_op_begin of an op with a closed param"
                    : "tide_op_begin of an op that would leave a gradient waiting for ever",
                tide_op_begin(c->pool, op), TIDE_ERROR_STATE);
    pool_events[events[why]]++;
}

/* --- a step --- */

static bool play_or_be_refused(pool_case *c, tide_op op)
{
    const ref_refusal why = ref_op_refusal(&c->model, op);
    bool goes_on = true;
    c->op_name = c->model.ops[op].name;
    if (why == REF_ALLOWED)
        goes_on = play_op(c, op);
    else
        see_refusal(c, op, why);
    c->op_name = NULL;
    return goes_on;
}

static bool play_ops(pool_case *c)
{
    /* below 45: as added; below 65: some left out; else random */
    const uint64_t order = c->skips_to_come > 0 ? 0 : pool_random(c, 100);
    const uint32_t count = order < 65 ? c->model.op_count : (uint32_t)pool_random(c, 2 * c->model.op_count);
    for (uint32_t i = 0; i < count; i++) {
        if (order >= 45 && order < 65 && pool_chance(c, 25))
            continue;
        if (!play_or_be_refused(c, order < 65 ? i : (tide_op)pool_random(c, c->model.op_count)))
            return false;
    }
    return true;
}

/* If a gradient is open, the pool refuses step end. Run the ops that close the open gradients in the order
 * in which they were added, which the pool always allows. */
static bool close_gradients(pool_case *c)
{
    if (ref_step_may_end(&c->model))
        return true;
    pool_expect(c, "tide_step_end with an open gradient", tide_step_end(c->pool), TIDE_ERROR_STATE);
    pool_events[EVENT_REFUSED_STEP_ENDS]++;
    for (tide_op op = 0; op < c->model.op_count && !ref_step_may_end(&c->model); op++) {
        bool closes = false;
        for (uint32_t i = 0; i < c->model.param_count; i++)
            closes = closes || (c->model.params[i].dirty && c->model.params[i].closing_op == (int)op);
        if (closes && !play_or_be_refused(c, op))
            return false;
    }
    if (ref_step_may_end(&c->model))
        return true;
    pool_case_fail(c, "a gradient can't be closed any more");
    return false;
}

static void draw_step(pool_case *c, tide_step_options *step)
{
    static const float clips[] = {0, INFINITY, 1e-3F, 30.0F}, scales[] = {0, 1, 16, 256};
    *step = (tide_step_options){.training = true,
                                .learning_rate = 0.001F * (float)pool_random(c, 100),
                                .beta1 = 0.01F * (float)pool_random(c, 99),
                                .beta2 = 0.001F * (float)(900 + pool_random(c, 100)),
                                .epsilon = pool_chance(c, 50) ? 1e-8F : 1e-3F,
                                .weight_decay = 0.01F * (float)pool_random(c, 20),
                                .clip_norm = clips[pool_random(c, 4)],
                                .loss_scale = scales[pool_random(c, 4)]};
    /* with small gradients the 1e-6 in the clip factor and the denormals of fp16 matter */
    c->size = pool_chance(c, 30) ? 0x1p-12F : 1;
    if (pool_chance(c, 5))
        step->loss_scale = 65536;
    if (c->skips_to_come == 0 && pool_random(c, 150) == 0)
        c->skips_to_come = 11; /* ten skipped steps are allowed, the eleventh step is refused */
    c->spoil = c->skips_to_come > 0 || pool_chance(c, 10);
    if (c->skips_to_come > 0) {
        step->clip_norm = 1;
        step->loss_scale = 1;
    }
    if (c->spoil && c->paired && !ref_waits(&c->model, step))
        /* a skip without a wait for the norm poisons the pool with values that depend on time */
        c->spoil = false;
}

/* `step` NULL: begin a forward-only pass. */
static bool begin(pool_case *c, const tide_step_options *step)
{
    tide_step_options bad = {.training = true, .epsilon = 1e-8F, .loss_scale = 3};
    if (pool_chance(c, 5))
        refused(c, "tide_step_begin with a loss scale of 3", tide_step_begin(c->pool, &bad),
                TIDE_ERROR_ARGUMENT);
    if (step == NULL)
        step = &forward_only;
    const reference_pool *model = &c->model;
    const uint32_t skipped = model->pending ? model->pending_result.skipped_in_row : model->skipped_in_row;
    const bool too_many = step->training && skipped >= 10;
    const tide_status status = tide_step_begin(c->pool, step);
    if (too_many) {
        pool_expect(c, "tide_step_begin after ten skips", status, TIDE_ERROR_NONFINITE);
        pool_events[EVENT_TEN_SKIPS]++;
        c->skips_to_come = 0;
        pool_give_up(c);
        return false;
    }
    pool_expect(c, "tide_step_begin", status, TIDE_OK);
    c->updates_may_run = c->updates_may_run || model->pending;
    pool_settle(c);
    ref_step_begin(&c->model, step);
    c->giving_up_in =
        pool_chance(c, c->skips_to_come > 0 ? 5 : 18) ? (int)pool_random(c, 3 * c->model.op_count) : REF_NONE;
    return true;
}

void pool_step(pool_case *c)
{
    tide_step_options step;
    memset(c->adders, 0, sizeof c->adders);
    c->skips_to_come -= c->skips_to_come > 0;
    const bool training = c->skips_to_come > 0 || !pool_chance(c, 15);
    c->step++;
    c->spoil = false;
    c->ops_played = 0;
    if (training)
        draw_step(c, &step);
    if (!begin(c, training ? &step : NULL) || !moment(c) || !play_ops(c) || !close_gradients(c))
        return;
    if (ref_may_poison(&c->model) && !c->paired && pool_chance(c, 40)) {
        pool_await_update(c);
        c->giving_up_in = 0;
    }
    if (!moment(c))
        return;
    c->giving_up_in = REF_NONE;
    ref_step_end(&c->model);
    const bool poisons = training && !isfinite(c->model.pending_result.gradient_norm);
    pool_expect_ok(c, tide_step_end(c->pool));
    /* only now, since an update that failed before would fail tide_step_end, too */
    if (training && !poisons && !c->paired && c->model.own_optimizer && pool_chance(c, 6)) {
        atomic_store(&c->failing_piece, (int)pool_random(c, 3));
        atomic_store(&c->failing_update, c->model.updates + 1);
    }
    c->result_known = false;
    c->kernels_may_run = !training;
    c->updates_may_run = c->updates_may_run && !training;
    pool_events[training ? EVENT_STEPS : EVENT_FORWARD_PASSES]++;
    c->training_steps += training;
}
