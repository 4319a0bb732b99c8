/* A pool of gpt2 under a budget and its steps. The real form runs them by the trainer; the timed form runs
 * the ops in the same order without their kernels. Both count the device's updates (bench_step_timed.c).
 *
 * Bytes and maps are the device's own counts, fetches and evictions the pool's, all as differences over
 * the measured steps. The updates of a step may run into the next one; in a settled run each step inherits
 * as much as it leaves. A session puts an observer before the pool's own, to time each op's kernels. */
#include "tests/bench/bench_step.h"
#include "tests/support/bench.h"

#include "offload/host/host_device.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { STEPS_MAX = 64, CHECKED_ELEMENTS = 4096 };

struct step_session {
    step_session_options options;
    tide_trainer *trainer; /* the real form */
    tide_pool *pool;
    tide_decoder *model; /* the timed form owns it */
    tide_trainer_plan plan;
    /* nanoseconds that each op's own kernels took */
    _Atomic uint64_t op_ns[STEP_OPS_MAX];
};

/* Whether the label is one of the pool's own kernels in an op, in forward or backward. */
static bool is_of_pool(const char *label)
{
    return strcmp(label, "wait") == 0 || strcmp(label, "zero") == 0 || strncmp(label, "gradient ", 9) == 0;
}

static void observe(void *context, const tide_observed *command)
{
    step_session *session = context;
    if (command->stream == TIDE_STREAM_COMPUTE && command->tag < STEP_OPS_MAX && !is_of_pool(command->label))
        session->op_ns[command->tag] += command->end_ns - command->begin_ns;
    tide_telemetry_observe(&session->pool->telemetry, command);
}

/* --- open and close --- */

uint32_t step_tokens(void)
{
    return tide_kernels_cpu_info()->bf16_native ? 256 : 32;
}

tide_trainer_options step_trainer_options(uint64_t device_bytes, const char *data)
{
    tide_trainer_options made;
    tide_trainer_options_default(&made);
    step_ok(tide_model_config_open("gpt2", &made.model), "gpt2");
    made.data = data;
    made.seq_len = step_tokens();
    made.batch_tokens = made.seq_len;
    made.recompute = TIDE_RECOMPUTE_ALL;
    made.pool.chunk_bytes = STEP_CHUNK_BYTES;
    made.pool.threads = bench_threads();
    made.pool.device_memory_bytes = device_bytes;
    return made;
}

static tide_trainer_options trainer_options(const step_session_options *options)
{
    tide_trainer_options made = step_trainer_options(options->device_bytes, options->data);
    made.pool.link_bytes_per_second = options->link_rate;
    return made;
}

/* The caller makes sure that nothing runs on the device yet. */
static void put_observer(step_session *session)
{
    tide_host_streams *streams = &tide_host_device_of(session->pool->context.device)->streams;
    tide_host_streams_lock(streams);
    streams->observer = observe;
    streams->observer_context = session;
    tide_host_streams_unlock(streams);
}

static void open_real(step_session *session, const tide_trainer_options *options)
{
    step_ok(tide_trainer_create(options, &session->trainer), "trainer");
    session->pool = tide_trainer_pool(session->trainer);
    session->plan = *tide_trainer_plan_get(session->trainer);
}

/* Opens the timed form without initial values: all params are zero, and so are their gradients. */
static void open_timed(step_session *session, const tide_trainer_options *options)
{
    tide_trainer_options resolved;
    step_ok(tide_trainer_resolve(options, &resolved), "timed");
    step_ok(tide_trainer_build(&resolved, &session->pool, &session->model, &session->plan), "timed");
}

step_session *step_session_open(const step_session_options *options)
{
    step_session *session = calloc(1, sizeof *session);
    if (session == NULL)
        bench_die("no memory for a session");
    session->options = *options;
    tide_trainer_options of_trainer = trainer_options(options);
    if (options->timed)
        open_timed(session, &of_trainer);
    else
        open_real(session, &of_trainer);
    step_ok(tide_pool_drain(session->pool), "drain");
    put_observer(session);
    if (!options->timed)
        step_counted_install(session->pool);
    return session;
}

void step_session_close(step_session *session)
{
    tide_trainer_destroy(session->trainer);
    if (session->options.timed) {
        tide_pool_destroy(session->pool);
        tide_decoder_destroy(session->model);
    }
    free(session);
}

const tide_pool_plan *step_session_plan(const step_session *session)
{
    return &session->plan.pool;
}

const tide_decoder *step_session_model(const step_session *session)
{
    return session->options.timed ? session->model : session->trainer->model;
}

tide_pool *step_session_pool(const step_session *session)
{
    return session->pool;
}

void step_plan(tide_pool_plan *plan)
{
    tide_trainer_options options = trainer_options(&(step_session_options){0}), resolved;
    options.pool.device = "null";
    tide_pool *pool;
    tide_decoder *model;
    tide_trainer_plan whole;
    step_ok(tide_trainer_resolve(&options, &resolved), "plan");
    step_ok(tide_trainer_build(&resolved, &pool, &model, &whole), "plan");
    *plan = whole.pool;
    plan->largest_op = NULL; /* it points to a string of the model */
    tide_pool_destroy(pool);
    tide_decoder_destroy(model);
}

/* --- steps --- */

static void real_step(step_session *session, double clip)
{
    tide_trainer_report report;
    session->trainer->state.clip = clip;
    step_ok(tide_trainer_step(session->trainer, &report), "step");
    if (!isfinite(report.loss) || report.skipped)
        bench_die("step %" PRIu64 ": loss %g", report.step, report.loss);
}

void step_session_rest(step_session *session)
{
    tide_train_state *state = &session->trainer->state;
    state->lr = state->lr_min = 0;
}

static void timed_op(const step_session *session, const tide_decoder_op *op)
{
    const uint32_t slices = session->model->options.micro_batches;
    step_ok(tide_op_begin(session->pool, op->handle), "op begin");
    for (uint32_t i = 0; i < slices; i++) {
        step_ok(tide_op_slice(session->pool, i), "op slice");
        step_ok(step_timed_launch(session->pool, session->options.op_seconds[op->handle] / slices), "launch");
    }
    step_ok(tide_op_end(session->pool), "op end");
}

static void timed_step(step_session *session, double clip)
{
    const tide_step_options options = {.training = true,
                                       .learning_rate = 1e-3F,
                                       .beta1 = 0.9F,
                                       .beta2 = 0.95F,
                                       .epsilon = 1e-8F,
                                       .weight_decay = 0.1F,
                                       .clip_norm = (float)clip};
    const tide_decoder_order *order = &session->model->order;
    step_ok(tide_step_begin(session->pool, &options), "step begin");
    for (uint32_t i = order->embedding; i <= order->last_trained; i++)
        timed_op(session, &session->model->ops[i]);
    step_ok(tide_step_end(session->pool), "step end");
    tide_step_result result;
    step_ok(tide_step_result_get(session->pool, &result), "step result");
    if (result.skipped || !isfinite(result.gradient_norm))
        bench_die("a timed step's gradients are not finite");
}

void step_session_step(step_session *session, double clip)
{
    if (session->options.timed)
        timed_step(session, clip);
    else
        real_step(session, clip);
}

/* --- measuring --- */

typedef struct sums {
    tide_device_statistics device;
    tide_pool_counters pool;
    step_timed_sums timed;
} sums;

static void sums_get(const step_session *session, sums *now)
{
    session->pool->context.device->ops->statistics(session->pool->context.device, &now->device);
    step_ok(tide_pool_counters_get(session->pool, &now->pool), "counters");
    now->timed = step_timed_sums_get();
}

static void counts_of(const step_session *session, const sums *begin, const sums *end, double steps,
                      step_counts *counts)
{
    const tide_device_statistics *from = &begin->device, *to = &end->device;
    const bool timed = session->options.timed;
    counts->h2d_bytes = (double)(to->h2d_bytes - from->h2d_bytes) / steps;
    counts->d2h_bytes = (double)(to->d2h_bytes - from->d2h_bytes) / steps;
    counts->maps = (double)(to->maps - from->maps) / steps;
    counts->evictions = (double)(end->pool.evictions - begin->pool.evictions) / steps;
    counts->demand_fetches = (double)(end->pool.demand_fetches - begin->pool.demand_fetches) / steps;
    counts->prefetches = (double)(end->pool.prefetches - begin->pool.prefetches) / steps;
    const uint64_t compute_ns = timed ? end->timed.compute_ns - begin->timed.compute_ns
                                      : to->busy_ns[TIDE_STREAM_COMPUTE] - from->busy_ns[TIDE_STREAM_COMPUTE];
    const uint64_t update_ns = timed ? end->timed.update_ns - begin->timed.update_ns
                                     : to->busy_ns[TIDE_STREAM_UPDATE] - from->busy_ns[TIDE_STREAM_UPDATE];
    counts->compute_seconds = (double)compute_ns * 1e-9 / steps;
    counts->update_seconds = (double)update_ns * 1e-9 / steps;
    counts->overslept_seconds = (double)(end->timed.overslept_ns - begin->timed.overslept_ns) * 1e-9 / steps;
    counts->host_params = (double)session->plan.pool.params -
                          (double)(end->timed.update_params - begin->timed.update_params) / steps;
    for (int i = 0; i < TIDE_STALL_CAUSE_COUNT; i++)
        counts->stall_seconds[i] = (end->pool.stall_seconds_by[i] - begin->pool.stall_seconds_by[i]) / steps;
}

double step_session_compute(step_session *session, double op_seconds[STEP_OPS_MAX])
{
    step_ok(tide_pool_drain(session->pool), "drain");
    for (int i = 0; i < STEP_OPS_MAX; i++)
        session->op_ns[i] = 0;
    sums begin, end;
    sums_get(session, &begin);
    /* The step returns as soon as the norm is known, before the updates begin. */
    step_session_step(session, 1.0);
    sums_get(session, &end);
    for (int i = 0; i < STEP_OPS_MAX && op_seconds != NULL; i++)
        op_seconds[i] = (double)session->op_ns[i] * 1e-9;
    step_ok(tide_pool_drain(session->pool), "drain");
    return (double)(end.device.busy_ns[TIDE_STREAM_COMPUTE] - begin.device.busy_ns[TIDE_STREAM_COMPUTE]) *
           1e-9;
}

void step_session_measure(step_session *session, double clip, unsigned settle, unsigned steps,
                          step_counts *counts)
{
    double seconds[STEPS_MAX];
    sums begin, end;
    if (steps == 0 || steps > STEPS_MAX)
        bench_die("1 to %d steps are measured at a time", STEPS_MAX);
    for (unsigned i = 0; i < settle; i++)
        step_session_step(session, clip);
    sums_get(session, &begin);
    const double start = bench_seconds();
    double last = start;
    for (unsigned i = 0; i < steps; i++) {
        step_session_step(session, clip);
        const double now = bench_seconds();
        seconds[i] = now - last;
        last = now;
    }
    sums_get(session, &end);
    counts_of(session, &begin, &end, steps, counts);
    counts->seconds = (last - start) / steps;
    counts->median_seconds = bench_median(seconds, steps);
}

static void check_param(const step_session *session, tide_param param)
{
    static const tide_value kinds[] = {TIDE_VALUE_PARAM, TIDE_VALUE_MASTER, TIDE_VALUE_MOMENTUM,
                                       TIDE_VALUE_VARIANCE};
    const uint64_t elements = session->pool->packing.params[param].elements;
    const uint64_t count = elements < CHECKED_ELEMENTS ? elements : CHECKED_ELEMENTS;
    float values[CHECKED_ELEMENTS];
    for (size_t kind = 0; kind < sizeof kinds / sizeof kinds[0]; kind++) {
        step_ok(tide_param_get(session->pool, param, kinds[kind], elements - count, count, values), "values");
        for (uint64_t i = 0; i < count; i++) {
            if (!isfinite(values[i]))
                bench_die("a value of %s is not finite", session->pool->packing.params[param].name);
        }
    }
}

void step_session_check(step_session *session)
{
    check_param(session, 0);
    check_param(session, session->pool->packing.param_count - 1);
}
