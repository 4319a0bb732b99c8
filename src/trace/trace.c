/* The ring and its writer: see trace.h.
 *
 * `lock` guards the ring: events[n % capacity] for n in [drained, recorded). The writer takes a batch out
 * under the lock and formats it outside. Recorders wake the writer when the ring is a quarter full; otherwise
 * it looks every 100 ms. A lock-free ring was not worth its proof, since only some ten thousand events are
 * recorded each second. Steps' lines have a ring of their own; the writer writes each behind the events that
 * were recorded before it.
 */
#include "src/trace/trace.h"

#include "base/align.h"
#include "base/json_line.h"
#include "src/pool/inspect.h"
#include "src/trace/trace_fields.h"
#include "src/trace/trace_head.h"
#include "src/trace/trace_segments.h"
#include "src/train/metrics.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { BATCH_EVENTS = 256, LINE_BYTES = 1024, WRITER_PERIOD_NS = 100000000, STEPS_MAX = 8 };

typedef struct step_line {
    uint64_t after; /* number of events to write before the line */
    size_t bytes;
    char text[TIDE_METRICS_LINE_BYTES];
} step_line;

struct tide_trace {
    tide_trace_options options;
    tide_segments segments; /* used by the writer thread alone while it runs */
    pthread_t writer;

    /* Guarded by lock. */
    pthread_mutex_t lock;
    pthread_cond_t wake;  /* the writer has something to do */
    pthread_cond_t taken; /* the writer has freed entries of a ring */
    tide_trace_event *events;
    uint64_t recorded, drained;
    uint64_t lost;    /* dropped, and not yet reported by a DROPPED event */
    uint64_t dropped; /* dropped in all */
    step_line steps[STEPS_MAX];
    uint64_t steps_told, steps_written;
    bool writing; /* the writer thread exists; only begin and finish change this */
    bool closing;
    bool finishes; /* with `closing`: the writer completes the file before it ends */

    /* Used by the writer alone. */
    tide_trace_event batch[BATCH_EVENTS];
    uint64_t written, unwritten;
    uint64_t steps_before;
    uint64_t passes; /* training passes seen so far */
    /* each chunk's last event of kind CHUNK; an entry of kind SNAPSHOT: the chunk has had none yet */
    tide_trace_event *places;
    uint32_t chunk_count;
};

#ifndef NDEBUG
static bool trace_is_valid(const tide_trace *trace)
{
    const uint64_t capacity = trace->options.ring_events;
    return trace->recorded >= trace->drained && trace->recorded - trace->drained <= capacity &&
           tide_is_power_of_two(capacity) && trace->steps_told - trace->steps_written <= STEPS_MAX;
}
#endif

/* ---- recording ---- */

static uint64_t free_entries(const tide_trace *trace)
{
    return trace->options.ring_events - (trace->recorded - trace->drained);
}

/* The entries needed: for the next event and, if events were lost, for the one that reports them. */
static uint64_t needed(const tide_trace *trace)
{
    return trace->lost > 0 ? 2 : 1;
}

static void append(tide_trace *trace, const tide_trace_event *event)
{
    assert(free_entries(trace) > 0);
    trace->events[trace->recorded++ & (trace->options.ring_events - 1)] = *event;
}

/* Puts an event into the ring. If events were lost before it, first puts one that says how many. */
static void record_locked(tide_trace *trace, const tide_trace_event *event)
{
    if (free_entries(trace) < needed(trace)) {
        trace->lost++;
        trace->dropped++;
        return;
    }
    if (trace->lost > 0) {
        tide_trace_event gap = *event;
        gap.kind = TIDE_TRACE_DROPPED;
        gap.end_ns = gap.begin_ns;
        gap.number = trace->lost;
        append(trace, &gap);
        trace->lost = 0;
    }
    append(trace, event);
}

void tide_trace_record(void *context, const tide_trace_event *event)
{
    tide_trace *trace = context;
    pthread_mutex_lock(&trace->lock);
    assert(trace_is_valid(trace));
    while (trace->options.waits && free_entries(trace) < needed(trace) && trace->writing && !trace->closing) {
        pthread_cond_signal(&trace->wake);
        pthread_cond_wait(&trace->taken, &trace->lock);
    }
    const uint64_t held = trace->recorded - trace->drained;
    if (trace->writing && !trace->closing)
        record_locked(trace, event);
    pthread_mutex_unlock(&trace->lock);
    if (held == trace->options.ring_events / 4)
        pthread_cond_signal(&trace->wake);
}

void tide_trace_step(tide_trace *trace, const tide_trainer_report *report, const tide_slowest_rank *slowest,
                     uint64_t tokens, const tide_pool_counters *counters)
{
    pthread_mutex_lock(&trace->lock);
    while (trace->steps_told - trace->steps_written == STEPS_MAX && trace->writing) {
        pthread_cond_signal(&trace->wake);
        pthread_cond_wait(&trace->taken, &trace->lock);
    }
    step_line *line = &trace->steps[trace->steps_told % STEPS_MAX];
    line->after = trace->recorded;
    if (trace->writing && tide_metrics_line(report, slowest, tokens, counters, line->text, &line->bytes))
        trace->steps_told++;
    pthread_mutex_unlock(&trace->lock);
}

/* ---- writing ---- */

static void field_add(tide_json_line *line, const tide_trace_field *field, const tide_trace_event *event)
{
    const char *at = (const char *)event + field->offset;
    uint64_t large;
    uint32_t small;
    const char *text;
    switch (field->type) {
    case TIDE_TRACE_COUNT64:
    case TIDE_TRACE_COUNT64_OR_NULL:
        memcpy(&large, at, sizeof large);
        if (large == 0 && field->type == TIDE_TRACE_COUNT64_OR_NULL)
            tide_json_null(line, field->name);
        else
            tide_json_count(line, field->name, large);
        break;
    case TIDE_TRACE_COUNT32:
    case TIDE_TRACE_COUNT32_OR_NULL:
        memcpy(&small, at, sizeof small);
        if (small == TIDE_TRACE_NONE && field->type == TIDE_TRACE_COUNT32_OR_NULL)
            tide_json_null(line, field->name);
        else
            tide_json_count(line, field->name, small);
        break;
    case TIDE_TRACE_WORD:
        memcpy(&small, at, sizeof small);
        assert(field->words(small) != NULL);
        tide_json_text(line, field->name, field->words(small));
        break;
    case TIDE_TRACE_TEXT:
        memcpy(&text, at, sizeof text);
        tide_json_text(line, field->name, text);
        break;
    case TIDE_TRACE_BOOL:
        tide_json_bool(line, field->name, *(const bool *)at);
        break;
    }
}

/* Writes an event. If a text of the caller's makes the line too long, the event is dropped. */
static void event_write(tide_trace *trace, const tide_trace_event *event)
{
    const tide_trace_shape *shape = tide_trace_shape_of(event->kind);
    char text[LINE_BYTES];
    tide_json_line line;
    tide_json_begin(&line, text, sizeof text);
    tide_json_open(&line, NULL, '{');
    tide_json_text(&line, "event", shape->name);
    for (uint32_t i = 0; i < shape->field_count; i++)
        field_add(&line, &shape->fields[i], event);
    tide_json_close(&line, '}');
    if (!tide_json_end(&line)) {
        trace->unwritten++;
        return;
    }
    tide_segments_write(&trace->segments, text, line.length);
    trace->written++;
}

static void snapshot_write(tide_trace *trace, const tide_trace_event *begin)
{
    for (uint32_t chunk = 0; chunk < trace->chunk_count; chunk++) {
        tide_trace_event place = trace->places[chunk];
        if (place.kind != TIDE_TRACE_CHUNK)
            continue;
        place.kind = TIDE_TRACE_SNAPSHOT;
        place.step = begin->step;
        place.pass = begin->pass;
        place.begin_ns = place.end_ns = begin->begin_ns;
        event_write(trace, &place);
    }
}

static void taken_write(tide_trace *trace, tide_trace_event *event)
{
    if (event->step > 0)
        event->step += trace->steps_before;
    if (event->kind == TIDE_TRACE_PASS && event->training)
        event->number += trace->steps_before;
    const bool step_begins = event->kind == TIDE_TRACE_PASS && event->training;
    if (step_begins && ++trace->passes > TIDE_TRACE_WARMUP_STEPS &&
        tide_segments_next(&trace->segments, event->number))
        snapshot_write(trace, event);
    if (event->kind == TIDE_TRACE_CHUNK && event->chunk < trace->chunk_count)
        trace->places[event->chunk] = *event;
    event_write(trace, event);
}

/* Under the lock: take a batch out of the ring, but no event that comes after the next step's line. */
static size_t batch_take(tide_trace *trace)
{
    const bool line_comes = trace->steps_written < trace->steps_told;
    const uint64_t until =
        line_comes ? trace->steps[trace->steps_written % STEPS_MAX].after : trace->recorded;
    size_t count = 0;
    for (; count < BATCH_EVENTS && trace->drained < until; count++)
        trace->batch[count] = trace->events[trace->drained++ & (trace->options.ring_events - 1)];
    assert(trace_is_valid(trace));
    return count;
}

/* Under the lock: the next step's line, if all events before it have been taken; else NULL. */
static const step_line *step_line_next(const tide_trace *trace)
{
    const step_line *line = &trace->steps[trace->steps_written % STEPS_MAX];
    return trace->steps_written < trace->steps_told && trace->drained >= line->after ? line : NULL;
}

/* Under the lock: sleep until a recorder wakes the writer or the period is over. */
static void writer_sleep(tide_trace *trace)
{
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_nsec += WRITER_PERIOD_NS;
    if (until.tv_nsec >= 1000000000)
        until.tv_sec++, until.tv_nsec -= 1000000000;
    pthread_cond_timedwait(&trace->wake, &trace->lock, &until);
}

/* Write a batch or a step's line. Called under the lock, which it releases while it writes. False: nothing to
 * write. */
static bool writer_round(tide_trace *trace)
{
    const size_t count = batch_take(trace);
    const step_line *line = count == 0 ? step_line_next(trace) : NULL;
    if (count == 0 && line == NULL)
        return false;
    pthread_mutex_unlock(&trace->lock);
    for (size_t i = 0; i < count; i++)
        taken_write(trace, &trace->batch[i]);
    if (line != NULL)
        tide_segments_write(&trace->segments, line->text, line->bytes);
    pthread_mutex_lock(&trace->lock);
    trace->steps_written += line != NULL;
    pthread_cond_broadcast(&trace->taken);
    return true;
}

/* After the last event: bring the segments into the file and write the last line. */
static void files_finish(tide_trace *trace)
{
    tide_segments_join(&trace->segments);
    char text[LINE_BYTES];
    if (trace->lost > 0)
        event_write(trace, &(tide_trace_event){.kind = TIDE_TRACE_DROPPED, .number = trace->lost});
    trace->dropped += trace->unwritten;
    const int bytes =
        snprintf(text, sizeof text, "{\"end\":true,\"events\":%" PRIu64 ",\"dropped\":%" PRIu64 "}\n",
                 trace->written, trace->dropped);
    tide_segments_write(&trace->segments, text, (size_t)bytes);
    tide_segments_remove(&trace->segments);
}

/* The writer thread. It blocks all signals, so that a pipe whose reader has left is a failure of the file and
 * does not end the training. */
static void *writer_run(void *context)
{
    tide_trace *trace = context;
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, NULL);
    pthread_mutex_lock(&trace->lock);
    for (;;) {
        if (writer_round(trace))
            continue;
        if (trace->closing)
            break;
        pthread_mutex_unlock(&trace->lock);
        tide_segments_flush(&trace->segments);
        pthread_mutex_lock(&trace->lock);
        if (trace->drained == trace->recorded && step_line_next(trace) == NULL && !trace->closing)
            writer_sleep(trace);
    }
    pthread_mutex_unlock(&trace->lock);
    if (trace->finishes)
        files_finish(trace);
    tide_segments_flush(&trace->segments); /* flush here, where signals are blocked, not in close */
    return NULL;
}

/* ---- begin ---- */

static tide_status put(void *context, const char *line, size_t bytes)
{
    tide_segments_write(context, line, bytes);
    return TIDE_OK;
}

static void set_writing(tide_trace *trace, bool writing)
{
    pthread_mutex_lock(&trace->lock);
    trace->writing = writing;
    pthread_cond_broadcast(&trace->taken);
    pthread_mutex_unlock(&trace->lock);
}

static tide_status start_writer(tide_trace *trace)
{
    set_writing(trace, true);
    const int error = pthread_create(&trace->writer, NULL, writer_run, trace);
    if (error == 0)
        return TIDE_OK;
    set_writing(trace, false);
    return tide_fail(TIDE_ERROR_NO_MEMORY, "trace file %s: no thread to write it: %s",
                     trace->segments.output.path, strerror(error));
}

tide_status tide_trace_begin(tide_trace *trace, const tide_trace_head *head)
{
    assert(!trace->writing);
    tide_segments *segments = &trace->segments;
    for (int space = 0; space < TIDE_SPACE_COUNT; space++)
        trace->chunk_count += head->plan->chunks[space];
    trace->steps_before = head->steps_before;
    trace->places = calloc(trace->chunk_count, sizeof *trace->places);
    if (trace->places == NULL)
        return tide_fail(TIDE_ERROR_NO_MEMORY, "trace file %s: no memory for %u chunks",
                         segments->output.path, trace->chunk_count);
    tide_status status = tide_segments_begin(segments);
    if (status == TIDE_OK)
        status = tide_trace_head_write(head, segments->keep, segments->output.path, put, segments);
    if (status == TIDE_OK && segments->failure != 0)
        status = tide_output_file_failed(&segments->output, "can't be written", segments->failure);
    if (status == TIDE_OK)
        status = start_writer(trace);
    if (status == TIDE_OK)
        tide_pool_trace_chunks(head->pool);
    return status;
}

/* ---- open and close ---- */

static void wake_init(pthread_cond_t *wake)
{
    pthread_condattr_t attributes;
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(wake, &attributes);
    pthread_condattr_destroy(&attributes);
}

tide_status tide_trace_open(const char *path, const tide_trace_options *options, tide_trace **trace)
{
    const uint32_t ring_events = options->ring_events;
    assert(ring_events >= 8 && tide_is_power_of_two(ring_events));
    tide_trace *made = calloc(1, sizeof *made);
    tide_trace_event *events = calloc(ring_events, sizeof *events);
    tide_status status = TIDE_OK;
    if (made == NULL || events == NULL)
        status = tide_fail(TIDE_ERROR_NO_MEMORY, "trace file %s: no memory for a ring of %u events", path,
                           ring_events);
    if (status == TIDE_OK)
        status = tide_segments_open(&made->segments, path, options->keep_steps);
    if (status != TIDE_OK) {
        free(events);
        free(made);
        return status;
    }
    pthread_mutex_init(&made->lock, NULL);
    wake_init(&made->wake);
    pthread_cond_init(&made->taken, NULL);
    made->options = *options;
    made->events = events;
    *trace = made;
    return TIDE_OK;
}

/* Closes the ring to further events, and waits until the writer has emptied it and ended. */
static void writer_stop(tide_trace *trace, bool finishes)
{
    pthread_mutex_lock(&trace->lock);
    trace->closing = true;
    trace->finishes = finishes;
    pthread_cond_broadcast(&trace->taken);
    pthread_mutex_unlock(&trace->lock);
    if (!trace->writing)
        return;
    pthread_cond_signal(&trace->wake);
    pthread_join(trace->writer, NULL);
    assert(trace->drained == trace->recorded && trace->steps_written == trace->steps_told);
}

tide_status tide_trace_finish(tide_trace *trace, uint64_t *dropped)
{
    if (trace == NULL)
        return TIDE_OK;
    writer_stop(trace, true);
    if (trace->writing)
        set_writing(trace, false);
    if (dropped != NULL)
        *dropped = trace->dropped;
    return tide_segments_close(&trace->segments);
}

void tide_trace_destroy(tide_trace *trace)
{
    if (trace == NULL)
        return;
    /* finish has not closed the file: the run has failed, and its caller reports that */
    if (trace->segments.path != NULL) {
        writer_stop(trace, false);
        (void)tide_segments_close(&trace->segments);
    }
    pthread_cond_destroy(&trace->wake);
    pthread_cond_destroy(&trace->taken);
    pthread_mutex_destroy(&trace->lock);
    free(trace->places);
    free(trace->events);
    free(trace);
}
