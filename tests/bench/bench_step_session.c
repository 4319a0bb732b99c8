/* The sessions of bench_step: a pool of gpt2 under a budget, the device that sleeps, and the replay of a
 * resident step.
 *
 * The form real runs steps by the trainer. The forms timed and dma run the same ops in the same order without
 * their kernels; their params are zero, and so are the gradients. Bytes and maps are the device's own counts,
 * fetches and evictions the pool's, all as differences over the measured steps. The updates of a step may run
 * into the next one; in a settled run each step inherits as much as it leaves. A session puts an observer
 * before the pool's own, to time each op's kernels. */
#include "tests/bench/bench_step_session.h"

#include "base/clock.h"
#include "base/minmax.h"
#include "offload/host/host_device.h"
#include "offload/host_link.h"
#include "src/train/trainer_internal.h"
#include "tests/support/bench.h"

#include <assert.h>
#include <inttypes.h>
#include <math.h>
#include <pthread.h>
#include <stdalign.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>

/* --- the device that sleeps ---
 *
 * Each stream has a thread that sleeps until the end of the kernel it runs, and wakes a little late. A GPU
 * would have begun the next kernel of its queue by then. So if the thread comes to a kernel within
 * GRACE_NS after waking, the kernel is taken to begin where the one before should have ended, not when the
 * thread woke; but an op or a copy never begins before it was enqueued. (The pool's own kernels carry no
 * time of enqueueing.) If the stream waited for an event that came only during the oversleep, the kernel
 * then begins too early. The benchmark prints the sum of these corrections of the compute stream beside
 * its figure, which they can improve by no more than that. The starts of copies are corrected without a sum.
 *
 * Sleeps replace the pool's own kernels (zeros, gradients into place, norms, updates on the device). They
 * last as long as the bytes take at the device's bandwidth and write nothing, so params that were zero
 * stay zero. */

enum { GRACE_NS = 50000, TIMER_SLACK_NS = 1000 };

/* Used by the stream's thread alone. */
static _Thread_local struct {
    uint64_t free_ns; /* when the last kernel should have ended */
    uint64_t woke_ns; /* when the thread woke after it */
    bool prepared;
    bool compute; /* the thread has run an op, so its stream is the compute stream */
} stream_clock;

/* Set only while no pool works, so without a lock. */
static double bytes_per_second, copy_seconds_per_byte[2];
static const tide_device_ops *host_ops;
/* Sums since the program's begin: time that the streams were occupied, params that the device updated, and
 * time by which the compute stream slept less, because kernels were taken to begin before it came. */
static _Atomic uint64_t compute_ns, update_ns, update_params, overslept_ns, copied_bytes[2];

/* Arguments of ops and copies. */
typedef struct occupation {
    uint64_t duration_ns, enqueued_ns;
} occupation;

static occupation occupation_from_now(double seconds)
{
    return (occupation){.duration_ns = (uint64_t)(seconds * 1e9), .enqueued_ns = tide_clock_ns()};
}

/* The time at which a kernel begins to which the thread comes at `now_ns`. */
static uint64_t begin_of(uint64_t enqueued_ns, uint64_t now_ns)
{
    if (now_ns >= stream_clock.woke_ns + GRACE_NS)
        return now_ns;
    return tide_max_u64(stream_clock.free_ns, enqueued_ns);
}

/* Sleeps for the kernel's duration. `enqueued_ns` 0: not known. */
static void occupy(uint64_t duration_ns, uint64_t enqueued_ns)
{
    if (!stream_clock.prepared) {
        /* An error does no harm: sleeps then end 50 us late. */
        (void)prctl(PR_SET_TIMERSLACK, TIMER_SLACK_NS);
        stream_clock.prepared = true;
    }
    const uint64_t now_ns = tide_clock_ns();
    const uint64_t begin_ns = begin_of(enqueued_ns, now_ns);
    assert(begin_ns >= enqueued_ns && begin_ns <= now_ns);
    stream_clock.free_ns = begin_ns + duration_ns;
    tide_host_sleep_until(stream_clock.free_ns);
    stream_clock.woke_ns = tide_clock_ns();
    if (stream_clock.compute) {
        compute_ns += duration_ns;
        /* the sleep is shorter by the time for which the thread overslept before it */
        overslept_ns += tide_min_u64(now_ns - begin_ns, duration_ns);
    }
}

static uint64_t transfer_ns(uint64_t bytes)
{
    return (uint64_t)((double)bytes / bytes_per_second * 1e9);
}

static tide_status run_op(void *stream, const void *arguments)
{
    (void)stream;
    const occupation *op = arguments;
    stream_clock.compute = true;
    occupy(op->duration_ns, op->enqueued_ns);
    return TIDE_OK;
}

static tide_status run_copy(void *stream, const void *arguments)
{
    (void)stream;
    const occupation *copy = arguments;
    occupy(copy->duration_ns, copy->enqueued_ns);
    return TIDE_OK;
}

/* Defines run_NAME, a kernel of the table that sleeps as long as its bytes take. */
#define SLEEP_FOR_BYTES(NAME)                                                                                \
    static tide_status run_##NAME(void *stream, const void *arguments)                                       \
    {                                                                                                        \
        (void)stream;                                                                                        \
        occupy(transfer_ns(tide_##NAME##_bytes(arguments)), 0);                                              \
        return TIDE_OK;                                                                                      \
    }

SLEEP_FOR_BYTES(zero)
SLEEP_FOR_BYTES(cast)
SLEEP_FOR_BYTES(gradient_norm)
SLEEP_FOR_BYTES(norm_sum)
SLEEP_FOR_BYTES(restore)

static void count_params(const tide_adamw_args *adamw)
{
    update_params += tide_adamw_segments_elements(adamw->segments, adamw->segment_count);
}

static tide_status run_adamw(void *stream, const void *arguments)
{
    (void)stream;
    const uint64_t duration_ns = transfer_ns(tide_adamw_bytes(arguments));
    occupy(duration_ns, 0);
    update_ns += duration_ns;
    count_params(arguments);
    return TIDE_OK;
}

static tide_status run_counted_adamw(void *stream, const void *arguments)
{
    count_params(arguments);
    return tide_kernels_cpu()->adamw(stream, arguments);
}

/* Makes the device sleep in the pool's own kernels; or in the form real only counts what it updates. */
static void install_kernels(tide_pool *pool, const step_session_options *options)
{
    static tide_kernels counted, timed;
    bytes_per_second = options->device_rate;
    timed = counted = *tide_kernels_cpu();
    counted.adamw = run_counted_adamw;
    timed.name = "timed";
    timed.zero = run_zero;
    timed.cast = run_cast;
    timed.gradient_norm = run_gradient_norm;
    timed.norm_sum = run_norm_sum;
    timed.restore = run_restore;
    timed.adamw = run_adamw;
    pool->context.kernels = options->form == STEP_FORM_REAL ? &counted : &timed;
}

static tide_status sleep_slot(tide_device *device, tide_stream stream, const tide_work *work,
                              tide_tier to_tier, uint32_t to_slot, uint32_t from_slot, uint64_t bytes)
{
    (void)to_slot, (void)from_slot;
    const bool out = to_tier == TIDE_TIER_HOST;
    const occupation copy = occupation_from_now(copy_seconds_per_byte[out] * (double)bytes);
    copied_bytes[out] += bytes;
    return host_ops->launch(device, stream, work, run_copy, &copy, sizeof copy);
}

static void statistics_with_copies(tide_device *device, tide_device_statistics *statistics)
{
    host_ops->statistics(device, statistics);
    statistics->h2d_bytes += copied_bytes[0];
    statistics->d2h_bytes += copied_bytes[1];
}

/* Replaces the pool's chunk copies by sleeps: nothing is moved. */
static void install_copies(tide_pool *pool, const double seconds_per_byte[2])
{
    static tide_device_ops timed;
    memcpy(copy_seconds_per_byte, seconds_per_byte, sizeof copy_seconds_per_byte);
    host_ops = pool->context.device->ops;
    timed = *host_ops;
    timed.copy_slot = sleep_slot;
    timed.statistics = statistics_with_copies;
    pool->context.device->ops = &timed;
}

/* --- open and close --- */

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

/* Sets the observer of a device on which nothing runs, and returns the one before. */
static tide_device_observer observer_set(tide_device *device, tide_device_observer observer, void *context)
{
    tide_host_streams *streams = &tide_host_device_of(device)->streams;
    tide_host_streams_lock(streams);
    const tide_device_observer before = streams->observer;
    streams->observer = observer;
    streams->observer_context = context;
    tide_host_streams_unlock(streams);
    return before;
}

tide_trainer_options step_trainer_options(uint64_t device_bytes, const char *data)
{
    tide_trainer_options made;
    tide_trainer_options_default(&made);
    bench_check(tide_model_config_open("gpt2", &made.model), "gpt2");
    made.data = data;
    made.seq_len = tide_kernels_cpu_info()->bf16_native ? 256 : 32;
    made.global_batch_tokens = made.seq_len;
    made.recompute = TIDE_RECOMPUTE_ALL;
    made.pool.chunk_bytes = STEP_CHUNK_BYTES;
    made.pool.threads = bench_threads();
    made.pool.device_memory_bytes = device_bytes;
    return made;
}

step_session *step_session_open(const step_session_options *options)
{
    step_session *session = calloc(1, sizeof *session);
    if (session == NULL)
        bench_die("no memory for a session");
    session->options = *options;
    tide_trainer_options of_trainer = step_trainer_options(options->device_bytes, options->data), resolved;
    of_trainer.pool.link_bytes_per_second = options->link_rate;
    if (options->form == STEP_FORM_REAL) {
        bench_check(tide_trainer_create(&of_trainer, &session->trainer), "trainer");
        session->pool = session->trainer->pool;
        session->model = session->trainer->model;
        session->plan = session->trainer->plan;
    } else {
        bench_check(tide_trainer_resolve(&of_trainer, &resolved), "session");
        bench_check(tide_trainer_build(&resolved, &session->pool, &session->model, &session->plan),
                    "session");
    }
    bench_check(tide_pool_drain(session->pool), "drain");
    (void)observer_set(session->pool->context.device, observe, session);
    install_kernels(session->pool, options);
    if (options->form == STEP_FORM_DMA)
        install_copies(session->pool, options->copy_seconds_per_byte);
    return session;
}

void step_session_close(step_session *session)
{
    if (session->trainer == NULL) {
        tide_pool_destroy(session->pool);
        tide_decoder_destroy(session->model);
    }
    tide_trainer_destroy(session->trainer);
    free(session);
}

/* --- steps --- */

static void real_step(step_session *session, double clip)
{
    tide_trainer_report report;
    session->trainer->state.hyper.clip = clip;
    bench_check(tide_trainer_step(session->trainer, &report), "step");
    if (!isfinite(report.loss) || report.skipped)
        bench_die("step %" PRIu64 ": loss %g", report.step, report.loss);
}

static void timed_op(const step_session *session, const tide_decoder_op *op)
{
    const uint32_t slices = session->model->options.micro_batches;
    bench_check(tide_op_begin(session->pool, op->handle), "op begin");
    for (uint32_t i = 0; i < slices; i++) {
        const occupation timed = occupation_from_now(session->options.op_seconds[op->handle] / slices);
        bench_check(tide_op_slice(session->pool, i), "op slice");
        bench_check(tide_launch(session->pool, "timed op", run_op, &timed, sizeof timed, 0, 0), "launch");
    }
    bench_check(tide_op_end(session->pool), "op end");
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
    bench_check(tide_step_begin(session->pool, &options), "step begin");
    for (uint32_t i = order->embedding; i <= order->last_trained; i++)
        timed_op(session, &session->model->ops[i]);
    bench_check(tide_step_end(session->pool), "step end");
    tide_step_result result;
    bench_check(tide_step_result_get(session->pool, &result), "step result");
    if (result.skipped || !isfinite(result.gradient_norm))
        bench_die("a timed step's gradients are not finite");
}

static void run_step(step_session *session, double clip)
{
    if (session->trainer == NULL)
        timed_step(session, clip);
    else
        real_step(session, clip);
}

/* --- measuring --- */

typedef struct sums {
    tide_device_statistics device;
    tide_pool_counters pool;
    uint64_t compute_ns, update_ns, update_params, overslept_ns;
} sums;

static sums sums_get(const step_session *session)
{
    tide_device *device = session->pool->context.device;
    sums now = {.update_params = update_params, .overslept_ns = overslept_ns};
    device->ops->statistics(device, &now.device);
    bench_check(tide_pool_counters_get(session->pool, &now.pool), "counters");
    const bool real = session->trainer != NULL;
    now.compute_ns = real ? now.device.busy_ns[TIDE_STREAM_COMPUTE] : compute_ns;
    now.update_ns = real ? now.device.busy_ns[TIDE_STREAM_UPDATE] : update_ns;
    return now;
}

static step_counts counts_of(const step_session *session, const sums *from, const sums *to, double steps)
{
    step_counts counts = {
        .h2d_bytes = (double)(to->device.h2d_bytes - from->device.h2d_bytes) / steps,
        .d2h_bytes = (double)(to->device.d2h_bytes - from->device.d2h_bytes) / steps,
        .maps = (double)(to->device.maps - from->device.maps) / steps,
        .evictions = (double)(to->pool.evictions - from->pool.evictions) / steps,
        .demand_fetches = (double)(to->pool.demand_fetches - from->pool.demand_fetches) / steps,
        .prefetches = (double)(to->pool.prefetches - from->pool.prefetches) / steps,
        .compute_seconds = (double)(to->compute_ns - from->compute_ns) * 1e-9 / steps,
        .update_seconds = (double)(to->update_ns - from->update_ns) * 1e-9 / steps,
        .overslept_seconds = (double)(to->overslept_ns - from->overslept_ns) * 1e-9 / steps,
        .host_params =
            (double)session->plan.pool.params - (double)(to->update_params - from->update_params) / steps,
    };
    for (int i = 0; i < TIDE_STALL_CAUSE_COUNT; i++)
        counts.stall_seconds[i] = (to->pool.stall_seconds_by[i] - from->pool.stall_seconds_by[i]) / steps;
    return counts;
}

double step_session_compute(step_session *session, double op_seconds[STEP_OPS_MAX])
{
    bench_check(tide_pool_drain(session->pool), "drain");
    for (int i = 0; i < STEP_OPS_MAX; i++)
        session->op_ns[i] = 0;
    const sums begin = sums_get(session);
    /* The step returns as soon as the norm is known, before the updates begin. */
    run_step(session, 1.0);
    const sums end = sums_get(session);
    for (int i = 0; i < STEP_OPS_MAX && op_seconds != NULL; i++)
        op_seconds[i] = (double)session->op_ns[i] * 1e-9;
    bench_check(tide_pool_drain(session->pool), "drain");
    return (double)(end.compute_ns - begin.compute_ns) * 1e-9;
}

step_counts step_session_measure(step_session *session, double clip, unsigned settle, unsigned steps)
{
    enum { STEPS_MAX = 8 };
    double seconds[STEPS_MAX];
    assert(steps > 0 && steps <= STEPS_MAX);
    for (unsigned i = 0; i < settle; i++)
        run_step(session, clip);
    const sums begin = sums_get(session);
    const double start = bench_seconds();
    double last = start;
    for (unsigned i = 0; i < steps; i++) {
        run_step(session, clip);
        const double now = bench_seconds();
        seconds[i] = now - last;
        last = now;
    }
    const sums end = sums_get(session);
    step_counts counts = counts_of(session, &begin, &end, steps);
    counts.seconds = (last - start) / steps;
    counts.median_seconds = bench_median(seconds, steps);
    bench_check(tide_pool_drain(session->pool), "drain");
    return counts;
}

/* --- the replay of a resident step ---
 *
 * Replays a step on the bare device: the benchmark records the launches of measured steps and later makes
 * the same calls once more, without manager, engine, pool and trainer.
 *
 * While it records, it replaces the device's table of functions. It notes the pool's calls in their order:
 * launches, with a copy of their arguments and of Adam's tables, whose memory the pool uses again; records
 * of events; waits for events. Where the engine saw that an event had passed before it enqueued an update,
 * no stream waited; the replay has no engine, so its update stream waits for that event. The replay leaves
 * out the batches and losses that the host copies, some KB a step. A copy of a chunk ends the program,
 * since the steps have to be resident.
 *
 * The pool stays open and idle during the replay, so each launch finds its memory at the same addresses.
 * The learning rate is 0, so updates write the values that they read, and the last step, whose batch is
 * still on the device, computes the same again. The replayed step must give a gradient norm with the same
 * bits; otherwise a launch is missing or in the wrong order. The observer is removed during the replay,
 * and with it the pool's counters.
 *
 * The recorder notes a call before it makes it, so that no other thread's call waits behind a full queue.
 * The order is still right: a thread that waits for an event has learned of its record, under the pool's
 * lock, after that call returned. */

enum { CALLS_MAX = 1 << 16 };
#define COST_MOST 1.02

typedef enum call_kind { CALL_LAUNCH = 0, CALL_RECORD, CALL_WAIT, CALL_SEEN } call_kind;

typedef struct call {
    call_kind kind;
    tide_stream stream; /* SEEN: unused */
    tide_event event;   /* LAUNCH: unused */
    tide_wait_site site;
    tide_work work; /* LAUNCH only, without the accesses */
    tide_kernel fn;
    size_t argument_bytes;
    tide_adamw_segment *table; /* AdamW's, owned; else NULL */
    alignas(16) unsigned char arguments[TIDE_LAUNCH_ARGUMENTS_MAX_BYTES];
} call;

typedef struct times {
    /* wall time; time that the compute stream was busy */
    double seconds, compute_seconds;
} times;

/* The calls of the steps that were recorded last. */
static struct {
    pthread_mutex_t lock; /* guards what follows, since the engine may call the device at any time */
    bool records;
    call *calls;
    size_t count, launches, copies;
} recorded = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* --- recording --- */

static void record(const call *made)
{
    pthread_mutex_lock(&recorded.lock);
    if (recorded.records) {
        if (recorded.count == CALLS_MAX)
            bench_die("a replay takes %d calls at most", CALLS_MAX);
        recorded.calls[recorded.count++] = *made;
        recorded.launches += made->kind == CALL_LAUNCH;
    }
    pthread_mutex_unlock(&recorded.lock);
}

/* Lets the arguments of the pool's AdamW point to a copy of their table. */
static void keep_table(call *made)
{
    tide_adamw_args *adamw = (tide_adamw_args *)(void *)made->arguments;
    const size_t bytes = adamw->segment_count * sizeof *adamw->segments;
    made->table = malloc(bytes);
    if (made->table == NULL)
        bench_die("no memory for a table of %zu bytes", bytes);
    adamw->segments = memcpy(made->table, adamw->segments, bytes);
}

static tide_status record_launch(tide_device *device, tide_stream stream, const tide_work *work,
                                 tide_kernel fn, const void *arguments, size_t argument_bytes)
{
    call made = {.stream = stream, .work = *work, .fn = fn, .argument_bytes = argument_bytes};
    if (stream != TIDE_STREAM_COMPUTE && stream != TIDE_STREAM_UPDATE)
        bench_die("a resident step runs %s on stream %s", work->label, tide_stream_name(stream));
    made.work.accesses = NULL;
    made.work.access_count = 0;
    memcpy(made.arguments, arguments, argument_bytes);
    if (fn == run_counted_adamw)
        keep_table(&made);
    record(&made);
    return host_ops->launch(device, stream, work, fn, arguments, argument_bytes);
}

static tide_status refuse_slot(tide_device *device, tide_stream stream, const tide_work *work,
                               tide_tier to_tier, uint32_t to_slot, uint32_t from_slot, uint64_t bytes)
{
    (void)device, (void)stream, (void)to_tier, (void)to_slot, (void)from_slot, (void)bytes;
    bench_die("a chunk moves in a resident step: %s", work->label);
}

static tide_status count_bytes(tide_device *device, tide_stream stream, const tide_work *work, void *to,
                               const void *from, uint64_t bytes, bool to_device)
{
    pthread_mutex_lock(&recorded.lock);
    recorded.copies += recorded.records;
    pthread_mutex_unlock(&recorded.lock);
    return host_ops->copy_bytes(device, stream, work, to, from, bytes, to_device);
}

static tide_status record_event(tide_device *device, tide_event event, tide_stream stream)
{
    record(&(call){.kind = CALL_RECORD, .stream = stream, .event = event});
    return host_ops->event_record(device, event, stream);
}

static tide_status record_wait(tide_device *device, tide_stream stream, tide_event event, tide_wait_site site,
                               uint64_t id)
{
    record(&(call){.kind = CALL_WAIT, .stream = stream, .event = event, .site = site});
    return host_ops->stream_wait(device, stream, event, site, id);
}

static tide_status record_query(tide_device *device, tide_event event, tide_wait_site site, bool *done)
{
    const tide_status status = host_ops->event_query(device, event, site, done);
    if (status == TIDE_OK && *done)
        record(&(call){.kind = CALL_SEEN, .stream = TIDE_STREAM_UPDATE, .event = event, .site = site});
    return status;
}

static void records_set(bool records)
{
    pthread_mutex_lock(&recorded.lock);
    recorded.records = records;
    pthread_mutex_unlock(&recorded.lock);
}

/* Number of commands that the device has run since *begin; sets how long its compute stream was busy. */
static uint64_t commands_since(tide_device *device, const tide_device_statistics *begin, times *took)
{
    tide_device_statistics end;
    uint64_t commands = 0;
    host_ops->statistics(device, &end);
    for (int i = 0; i < TIDE_STREAM_COUNT; i++)
        commands += end.commands[i] - begin->commands[i];
    took->compute_seconds =
        (double)(end.busy_ns[TIDE_STREAM_COMPUTE] - begin->busy_ns[TIDE_STREAM_COMPUTE]) * 1e-9;
    return commands;
}

/* Records and times `steps` steps. */
static times run_recorded(step_session *session, double clip, unsigned steps)
{
    static tide_device_ops recording;
    tide_device *device = session->pool->context.device;
    tide_device_statistics begin;
    times took;
    bench_check(tide_pool_drain(session->pool), "drain");
    host_ops = device->ops;
    host_ops->synchronize(device);
    host_ops->statistics(device, &begin);
    recording = *host_ops;
    recording.launch = record_launch;
    recording.copy_slot = refuse_slot;
    recording.copy_bytes = count_bytes;
    recording.event_record = record_event;
    recording.stream_wait = record_wait;
    recording.event_query = record_query;
    records_set(true);
    device->ops = &recording;
    const double start = bench_seconds();
    for (unsigned i = 0; i < steps; i++)
        run_step(session, clip);
    bench_check(tide_pool_drain(session->pool), "drain");
    took.seconds = bench_seconds() - start;
    host_ops->synchronize(device);
    const uint64_t commands = commands_since(device, &begin, &took);
    device->ops = host_ops;
    records_set(false);
    if (commands != recorded.launches + recorded.copies)
        bench_die("the device ran %" PRIu64 " commands; %zu launches and %zu copies were recorded", commands,
                  recorded.launches, recorded.copies);
    return took;
}

/* --- replaying --- */

static tide_status make_again(tide_device *device, const call *of)
{
    if (of->kind == CALL_LAUNCH)
        return host_ops->launch(device, of->stream, &of->work, of->fn, of->arguments, of->argument_bytes);
    if (of->kind == CALL_RECORD)
        return host_ops->event_record(device, of->event, of->stream);
    return host_ops->stream_wait(device, of->stream, of->event, of->site, 0);
}

static times run_replay(step_session *session)
{
    const tide_pool_context *context = &session->pool->context;
    tide_device *device = context->device;
    /* the square of the last step's gradient norm */
    double *norm_square = (double *)(void *)(context->region + context->packing->region.scalars_offset);
    const double square = *norm_square;
    tide_device_statistics begin;
    times took;
    *norm_square = 0;
    host_ops->synchronize(device);
    (void)observer_set(device, NULL, NULL);
    host_ops->statistics(device, &begin);
    const double start = bench_seconds();
    for (size_t i = 0; i < recorded.count; i++)
        bench_check(make_again(device, &recorded.calls[i]), "replay");
    host_ops->synchronize(device);
    took.seconds = bench_seconds() - start;
    const uint64_t commands = commands_since(device, &begin, &took);
    (void)observer_set(device, observe, session);
    if (*norm_square != square)
        bench_die("a replay's gradient norm is %.17g, the step's %.17g", sqrt(*norm_square), sqrt(square));
    if (commands != recorded.launches || took.compute_seconds > took.seconds)
        bench_die("a replay of %zu launches: %" PRIu64 " ran, compute for %g s of %g", recorded.launches,
                  commands, took.compute_seconds, took.seconds);
    return took;
}

static void forget_calls(void)
{
    for (size_t i = 0; i < recorded.count; i++)
        free(recorded.calls[i].table);
    recorded.count = recorded.launches = recorded.copies = 0;
}

void step_replay_print(step_session *session, double clip, unsigned rounds, unsigned steps)
{
    enum { ROUNDS_MAX = 5, SETTLE_STEPS = 3 };
    double ratios[ROUNDS_MAX], managed_ms[ROUNDS_MAX], bare_ms[ROUNDS_MAX], compute_ms[2] = {0};
    size_t launches = 0;
    assert(rounds <= ROUNDS_MAX);
    recorded.calls = calloc(CALLS_MAX, sizeof *recorded.calls);
    if (recorded.calls == NULL)
        bench_die("no memory for %d calls", CALLS_MAX);
    session->trainer->state.hyper.schedule.lr = session->trainer->state.hyper.schedule.lr_min = 0;
    for (unsigned i = 0; i < SETTLE_STEPS; i++)
        run_step(session, clip);
    for (unsigned i = 0; i < rounds; i++) {
        const times managed = run_recorded(session, clip, steps), bare = run_replay(session);
        ratios[i] = managed.seconds / bare.seconds;
        managed_ms[i] = managed.seconds / steps * 1e3;
        bare_ms[i] = bare.seconds / steps * 1e3;
        compute_ms[0] += managed.compute_seconds / steps / rounds * 1e3;
        compute_ms[1] += bare.compute_seconds / steps / rounds * 1e3;
        launches = recorded.launches / steps;
        forget_calls();
    }
    free(recorded.calls);
    const double ratio = bench_median(ratios, rounds);
    bench_figure(clip > 0 ? "resident, clip" : "resident, no clip", ratio, "ratio", BENCH_AT_MOST, COST_MOST,
                 "a step through the manager over its launches replayed on the bare device (no pool, "
                 "manager, engine or observer; the same addresses, order and events): median of %u (%.3f to "
                 "%.3f); ms: step %.1f, replay %.1f, compute busy %.1f and %.1f; %zu launches a step",
                 rounds, ratios[0], ratios[rounds - 1], bench_median(managed_ms, rounds),
                 bench_median(bare_ms, rounds), compute_ms[0], compute_ms[1], launches);
}
