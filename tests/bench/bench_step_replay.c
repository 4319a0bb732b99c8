/* Replays a step on the bare device: the benchmark records the launches of measured steps and later makes
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
#include "tests/bench/bench_step.h"
#include "tests/support/bench.h"

#include "offload/host/host_device.h"

#include <assert.h>
#include <inttypes.h>
#include <math.h>
#include <pthread.h>
#include <stdalign.h>
#include <stdlib.h>
#include <string.h>

enum { NOTES_MAX = 1 << 16, ROUNDS_MAX = 5, SETTLE_STEPS = 3 };
#define COST_MOST 1.02

typedef enum note_kind { NOTE_LAUNCH = 0, NOTE_RECORD, NOTE_WAIT, NOTE_SEEN } note_kind;

typedef struct note {
    note_kind kind;
    tide_stream stream; /* SEEN: unused */
    tide_event event;   /* LAUNCH: unused */
    tide_wait_site site;
    tide_work work; /* LAUNCH only, without the accesses */
    tide_kernel fn;
    size_t argument_bytes;
    alignas(16) unsigned char arguments[TIDE_LAUNCH_ARGUMENTS_MAX_BYTES];
} note;

typedef struct replay {
    tide_device *device;
    tide_kernel adamw; /* the pool's AdamW kernel, whose arguments point to a table */
    /* in the region: the square of the last step's gradient norm */
    double *norm_square;
    tide_device_statistics begin;
    note *notes;
    /* guarded by lock while recording, as are the notes */
    size_t count, launches, copies;
} replay;

typedef struct times {
    /* wall time; time that the compute stream was busy */
    double seconds, compute_seconds;
} times;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
/* NULL: no recording. Guarded by lock, since the engine may call the device at any time. */
static replay *noting;
/* set only while no pool works, so without a lock */
static const tide_device_ops *device_ops;
static tide_device_ops noting_ops;

/* --- recording --- */

static bool has_table(const replay *it, const note *of)
{
    return of->kind == NOTE_LAUNCH && of->fn == it->adamw;
}

static void keep_table(tide_adamw_args *adamw)
{
    const size_t bytes = adamw->segment_count * sizeof *adamw->segments;
    tide_adamw_segment *table = malloc(bytes);
    if (table == NULL)
        bench_die("no memory for a table of %zu bytes", bytes);
    adamw->segments = memcpy(table, adamw->segments, bytes);
}

static void append(const note *made)
{
    pthread_mutex_lock(&lock);
    if (noting != NULL) {
        if (noting->count == NOTES_MAX)
            bench_die("a replay takes %d notes at most", NOTES_MAX);
        note *last = &noting->notes[noting->count++];
        *last = *made;
        noting->launches += made->kind == NOTE_LAUNCH;
        if (has_table(noting, last))
            keep_table((tide_adamw_args *)(void *)last->arguments);
    }
    pthread_mutex_unlock(&lock);
}

static tide_status launch(tide_device *device, tide_stream stream, const tide_work *work, tide_kernel fn,
                          const void *arguments, size_t argument_bytes)
{
    note made = {
        .kind = NOTE_LAUNCH, .stream = stream, .work = *work, .fn = fn, .argument_bytes = argument_bytes};
    if (stream != TIDE_STREAM_COMPUTE && stream != TIDE_STREAM_UPDATE)
        bench_die("a resident step runs %s on stream %s", work->label, tide_stream_name(stream));
    made.work.accesses = NULL;
    made.work.access_count = 0;
    memcpy(made.arguments, arguments, argument_bytes);
    append(&made);
    return device_ops->launch(device, stream, work, fn, arguments, argument_bytes);
}

static tide_status copy_slot(tide_device *device, tide_stream stream, const tide_work *work,
                             tide_tier to_tier, uint32_t to_slot, uint32_t from_slot, uint64_t bytes)
{
    (void)device, (void)stream, (void)to_tier, (void)to_slot, (void)from_slot, (void)bytes;
    bench_die("a chunk moves in a resident step: %s", work->label);
}

static tide_status copy_bytes(tide_device *device, tide_stream stream, const tide_work *work, void *to,
                              const void *from, uint64_t bytes, bool to_device)
{
    pthread_mutex_lock(&lock);
    if (noting != NULL)
        noting->copies++;
    pthread_mutex_unlock(&lock);
    return device_ops->copy_bytes(device, stream, work, to, from, bytes, to_device);
}

static tide_status event_record(tide_device *device, tide_event event, tide_stream stream)
{
    append(&(note){.kind = NOTE_RECORD, .stream = stream, .event = event});
    return device_ops->event_record(device, event, stream);
}

static tide_status stream_wait(tide_device *device, tide_stream stream, tide_event event, tide_wait_site site,
                               uint64_t id)
{
    append(&(note){.kind = NOTE_WAIT, .stream = stream, .event = event, .site = site});
    return device_ops->stream_wait(device, stream, event, site, id);
}

static tide_status event_query(tide_device *device, tide_event event, tide_wait_site site, bool *done)
{
    const tide_status status = device_ops->event_query(device, event, site, done);
    if (status == TIDE_OK && *done)
        append(&(note){.kind = NOTE_SEEN, .event = event, .site = site});
    return status;
}

static void noting_set(replay *it)
{
    pthread_mutex_lock(&lock);
    noting = it;
    pthread_mutex_unlock(&lock);
}

static replay *replay_record(tide_pool *pool)
{
    replay *it = calloc(1, sizeof *it);
    note *notes = calloc(NOTES_MAX, sizeof *notes);
    if (it == NULL || notes == NULL)
        bench_die("no memory for %d notes", NOTES_MAX);
    *it = (replay){
        .device = pool->context.device,
        .adamw = pool->context.kernels->adamw,
        .norm_square =
            (double *)(void *)(pool->context.region + pool->context.packing->region.scalars_offset),
        .notes = notes,
    };
    device_ops = it->device->ops;
    device_ops->synchronize(it->device);
    device_ops->statistics(it->device, &it->begin);
    noting_set(it);
    noting_ops = *device_ops;
    noting_ops.launch = launch;
    noting_ops.copy_slot = copy_slot;
    noting_ops.copy_bytes = copy_bytes;
    noting_ops.event_record = event_record;
    noting_ops.stream_wait = stream_wait;
    noting_ops.event_query = event_query;
    it->device->ops = &noting_ops;
    return it;
}

/* --- the device's counts --- */

static uint64_t commands_since(const replay *it, const tide_device_statistics *begin, double *compute_seconds)
{
    tide_device_statistics end;
    uint64_t commands = 0;
    device_ops->statistics(it->device, &end);
    for (int i = 0; i < TIDE_STREAM_COUNT; i++)
        commands += end.commands[i] - begin->commands[i];
    *compute_seconds =
        (double)(end.busy_ns[TIDE_STREAM_COMPUTE] - begin->busy_ns[TIDE_STREAM_COMPUTE]) * 1e-9;
    return commands;
}

static void replay_stop(replay *it, times *took)
{
    device_ops->synchronize(it->device);
    const uint64_t commands = commands_since(it, &it->begin, &took->compute_seconds);
    it->device->ops = device_ops;
    noting_set(NULL);
    if (commands != it->launches + it->copies)
        bench_die("the device ran %" PRIu64 " commands; %zu launches and %zu copies were noted", commands,
                  it->launches, it->copies);
}

/* --- replaying --- */

static tide_status tell(const replay *it, const note *of)
{
    switch (of->kind) {
    case NOTE_LAUNCH:
        return device_ops->launch(it->device, of->stream, &of->work, of->fn, of->arguments,
                                  of->argument_bytes);
    case NOTE_RECORD:
        return device_ops->event_record(it->device, of->event, of->stream);
    case NOTE_WAIT:
        return device_ops->stream_wait(it->device, of->stream, of->event, of->site, 0);
    case NOTE_SEEN:
        return device_ops->stream_wait(it->device, TIDE_STREAM_UPDATE, of->event, of->site, 0);
    }
    return TIDE_ERROR_INTERNAL;
}

static tide_device_observer observer_set(const replay *it, tide_device_observer observer)
{
    tide_host_streams *streams = &tide_host_device_of(it->device)->streams;
    tide_host_streams_lock(streams);
    const tide_device_observer before = streams->observer;
    streams->observer = observer;
    tide_host_streams_unlock(streams);
    return before;
}

static void replay_run(const replay *it, times *took)
{
    const double square = *it->norm_square;
    *it->norm_square = 0;
    tide_device_statistics begin;
    device_ops->synchronize(it->device);
    const tide_device_observer observer = observer_set(it, NULL);
    device_ops->statistics(it->device, &begin);
    const double start = bench_seconds();
    for (size_t i = 0; i < it->count; i++)
        step_ok(tell(it, &it->notes[i]), "replay");
    device_ops->synchronize(it->device);
    took->seconds = bench_seconds() - start;
    const uint64_t commands = commands_since(it, &begin, &took->compute_seconds);
    observer_set(it, observer);
    if (*it->norm_square != square)
        bench_die("a replay's gradient norm is %.17g, the step's %.17g", sqrt(*it->norm_square),
                  sqrt(square));
    if (commands != it->launches || took->compute_seconds > took->seconds)
        bench_die("a replay of %zu launches: %" PRIu64 " ran, compute for %g s of %g", it->launches, commands,
                  took->compute_seconds, took->seconds);
}

static void replay_free(replay *it)
{
    for (size_t i = 0; i < it->count; i++) {
        const tide_adamw_args *adamw = (const tide_adamw_args *)(const void *)it->notes[i].arguments;
        if (has_table(it, &it->notes[i]))
            free((void *)(uintptr_t)adamw->segments);
    }
    free(it->notes);
    free(it);
}

/* --- the resident row --- */

static void measure(step_session *session, double clip, unsigned steps, replay **recorded, times *managed)
{
    tide_pool *pool = step_session_pool(session);
    step_ok(tide_pool_drain(pool), "drain");
    *recorded = replay_record(pool);
    const double start = bench_seconds();
    for (unsigned i = 0; i < steps; i++)
        step_session_step(session, clip);
    step_ok(tide_pool_drain(pool), "drain");
    managed->seconds = bench_seconds() - start;
    replay_stop(*recorded, managed);
}

void step_replay_print(step_session *session, double clip, unsigned rounds, unsigned steps)
{
    double ratios[ROUNDS_MAX], managed_seconds[ROUNDS_MAX], bare_seconds[ROUNDS_MAX];
    double compute[2] = {0};
    size_t launches = 0;
    assert(rounds <= ROUNDS_MAX);
    step_session_rest(session);
    for (unsigned i = 0; i < SETTLE_STEPS; i++)
        step_session_step(session, clip);
    for (unsigned i = 0; i < rounds; i++) {
        replay *recorded;
        times managed, bare;
        measure(session, clip, steps, &recorded, &managed);
        replay_run(recorded, &bare);
        ratios[i] = managed.seconds / bare.seconds;
        managed_seconds[i] = managed.seconds / steps;
        bare_seconds[i] = bare.seconds / steps;
        compute[0] += managed.compute_seconds / steps / rounds;
        compute[1] += bare.compute_seconds / steps / rounds;
        launches = recorded->launches / steps;
        replay_free(recorded);
    }
    const double ratio = bench_median(ratios, rounds);
    bench_figure(clip > 0 ? "resident, clip" : "resident, no clip", ratio, "ratio", BENCH_AT_MOST, COST_MOST,
                 "a step through the manager over its launches replayed on the bare device (no pool, "
                 "manager, engine or observer; the same addresses, order and events): median of %u (%.3f to "
                 "%.3f); ms: step %.1f, replay %.1f, compute busy %.1f and %.1f; %zu launches a step",
                 rounds, ratios[0], ratios[rounds - 1], bench_median(managed_seconds, rounds) * 1e3,
                 bench_median(bare_seconds, rounds) * 1e3, compute[0] * 1e3, compute[1] * 1e3, launches);
}
