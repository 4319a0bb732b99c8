/* The ring, its writer and the first line: see trace.h.
 *
 * Ring, guarded by `lock`: events[n % capacity] for n in [drained, recorded). The writer takes a batch out
 * under the lock and formats it outside; recorders wake it when the ring is a quarter full, else it looks
 * every 100 ms. A lock-free ring was not worth its proof: recording comes a few thousand times a second.
 */
#include "src/train/trace.h"

#include "src/train/json_line.h"
#include "src/train/output_file.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { BATCH_EVENTS = 256, LINE_BYTES = 1024, WRITER_PERIOD_NS = 100000000 };

struct tide_trace {
    tide_output_file output;
    FILE *file; /* its stream, NULL once closed; owns the descriptor */
    pthread_mutex_t lock;
    pthread_cond_t wake;
    pthread_t writer;
    bool writing; /* the writer thread exists; driver's thread only */

    /* Guarded by lock. */
    tide_trace_event *events;
    uint32_t capacity; /* a power of two */
    uint64_t recorded;
    uint64_t drained;
    uint64_t dropped;
    bool closing;
    int failure; /* errno of the writer's first failed write, 0: none */

    tide_trace_event batch[BATCH_EVENTS]; /* writer only */
    uint64_t written;                     /* writer only: lines of events in the file */
};

#ifndef NDEBUG
static bool trace_is_valid(const tide_trace *trace)
{
    return trace->recorded >= trace->drained && trace->recorded - trace->drained <= trace->capacity &&
           (trace->capacity & (trace->capacity - 1)) == 0;
}
#endif

/* ---- recording ---- */

void tide_trace_record(void *context, const tide_trace_event *event)
{
    tide_trace *trace = context;
    pthread_mutex_lock(&trace->lock);
    assert(trace_is_valid(trace));
    uint64_t held = trace->recorded - trace->drained;
    if (trace->closing) {
        pthread_mutex_unlock(&trace->lock);
        return;
    }
    if (held == trace->capacity || trace->recorded == TIDE_TRACE_EVENTS_MAX || trace->failure != 0)
        trace->dropped++;
    else
        trace->events[trace->recorded++ & (trace->capacity - 1)] = *event;
    bool wake = held == trace->capacity / 4;
    pthread_mutex_unlock(&trace->lock);
    if (wake)
        pthread_cond_signal(&trace->wake);
}

/* ---- writing ---- */

static bool event_line(tide_json_line *line, const tide_trace_event *event)
{
    bool of_chunk = event->chunk != UINT32_MAX;
    tide_json_open(line, NULL, '{');
    tide_json_count(line, "t_ns", event->t_ns);
    tide_json_count(line, "step", event->step);
    tide_json_count(line, "moment", event->moment);
    tide_json_text(line, "op", event->op);
    tide_json_text(line, "event", event->event);
    if (of_chunk) {
        tide_json_count(line, "chunk", event->chunk);
        tide_json_text(line, "space", tide_space_name(event->space));
    }
    tide_json_text(line, "from", event->from);
    tide_json_text(line, "to", event->to);
    tide_json_count(line, "bytes", event->bytes);
    tide_json_text(line, "reason", event->reason);
    tide_json_close(line, '}');
    return tide_json_end(line);
}

/* Returns 0 or the errno of a failed write. A name too long for a line loses its event. */
static int batch_write(tide_trace *trace, size_t count, uint64_t *lost)
{
    char text[LINE_BYTES];
    for (size_t i = 0; i < count; i++) {
        tide_json_line line;
        tide_json_begin(&line, text, sizeof text);
        if (!event_line(&line, &trace->batch[i])) {
            (*lost)++;
            continue;
        }
        if (fwrite(text, 1, line.length, trace->file) != line.length) {
            *lost += count - i;
            return errno != 0 ? errno : EIO;
        }
        trace->written++;
    }
    return 0;
}

/* Under the lock: sleep until there is something to do. */
static void writer_sleep(tide_trace *trace)
{
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_nsec += WRITER_PERIOD_NS;
    if (until.tv_nsec >= 1000000000)
        until.tv_sec++, until.tv_nsec -= 1000000000;
    pthread_cond_timedwait(&trace->wake, &trace->lock, &until);
}

/* Under the lock: move up to a batch out of the ring. */
static size_t batch_take(tide_trace *trace)
{
    size_t count = 0;
    for (; count < BATCH_EVENTS && trace->drained < trace->recorded; count++)
        trace->batch[count] = trace->events[trace->drained++ & (trace->capacity - 1)];
    assert(trace_is_valid(trace));
    return count;
}

static void *writer_run(void *context)
{
    tide_trace *trace = context;
    pthread_mutex_lock(&trace->lock);
    for (;;) {
        size_t count = batch_take(trace);
        if (count == 0 && trace->closing)
            break;
        if (count == 0) {
            writer_sleep(trace);
            continue;
        }
        uint64_t lost = 0;
        pthread_mutex_unlock(&trace->lock);
        int failure = batch_write(trace, count, &lost);
        pthread_mutex_lock(&trace->lock);
        trace->dropped += lost;
        if (trace->failure == 0)
            trace->failure = failure;
    }
    pthread_mutex_unlock(&trace->lock);
    return NULL;
}

/* ---- the first line ---- */

static void configuration_write(tide_json_line *line, const tide_trace_header *header)
{
    tide_json_open(line, "configuration", '{');
    for (uint32_t i = 0; i < header->setting_count; i++)
        tide_json_text(line, header->configuration[i].name, header->configuration[i].value);
    tide_json_count(line, "params", header->model_params);
    tide_json_count(line, "padding", header->plan->params - header->model_params);
    tide_json_count(line, "model_bytes", header->plan->model_bytes);
    tide_json_count(line, "chunk_bytes", header->plan->chunk_bytes);
    tide_json_count(line, "device_memory_bytes", header->plan->device_memory_bytes);
    tide_json_count(line, "host_memory_bytes", header->plan->host_memory_bytes);
    tide_json_count(line, "device_slots", header->plan->device_slots);
    tide_json_count(line, "host_slots", header->plan->host_slots);
    tide_json_close(line, '}');
}

static void chunk_table_write(tide_json_line *line, const tide_pool_plan *plan)
{
    tide_json_open(line, "chunks", '{');
    for (int space = 0; space < TIDE_SPACE_COUNT; space++) {
        tide_json_open(line, tide_space_name((tide_space)space), '{');
        tide_json_count(line, "chunks", plan->chunks[space]);
        tide_json_count(line, "bytes", plan->space_bytes[space]);
        tide_json_close(line, '}');
    }
    tide_json_close(line, '}');
}

static void chunk_params_write(tide_json_line *line, const tide_layout *layout)
{
    tide_json_open(line, "params_per_chunk", '[');
    for (uint32_t i = 0; i < tide_layout_space_chunks(layout, TIDE_SPACE_PARAM); i++) {
        tide_chunk chunk = tide_layout_chunk(layout, TIDE_SPACE_PARAM, i);
        tide_json_open(line, NULL, '[');
        for (uint32_t s = 0; s < tide_layout_chunk_segments(layout, chunk); s++) {
            tide_segment segment = tide_layout_chunk_segment(layout, chunk, s);
            tide_json_open(line, NULL, '{');
            tide_json_text(line, "name", tide_layout_param(layout, segment.param)->name);
            tide_json_count(line, "first", segment.param_offset_elements);
            tide_json_count(line, "elements", segment.elements);
            tide_json_close(line, '}');
        }
        tide_json_close(line, ']');
    }
    tide_json_close(line, ']');
}

static void header_line(tide_json_line *line, const tide_trace_header *header)
{
    tide_json_open(line, NULL, '{');
    tide_json_count(line, "format", TIDE_TRACE_FORMAT);
    tide_json_text(line, "tidepool", header->version);
    configuration_write(line, header);
    chunk_table_write(line, header->plan);
    chunk_params_write(line, header->layout);
    tide_json_close(line, '}');
}

/* A generous bound: every param stands in the line once, and once more for every chunk end that cuts one. */
static size_t header_bytes_max(const tide_trace_header *header)
{
    size_t bytes = 16384;
    for (uint32_t i = 0; i < header->setting_count; i++)
        bytes += 6 * (strlen(header->configuration[i].name) + strlen(header->configuration[i].value)) + 16;
    size_t longest = 0;
    const uint32_t params = tide_layout_params(header->layout);
    for (uint32_t i = 0; i < params; i++) {
        const size_t length = strlen(tide_layout_param(header->layout, i)->name);
        longest = length > longest ? length : longest;
    }
    return bytes + ((size_t)params + header->plan->chunks[TIDE_SPACE_PARAM]) * (6 * longest + 96);
}

static tide_status header_write(tide_trace *trace, const tide_trace_header *header)
{
    size_t capacity = header_bytes_max(header);
    char *text = malloc(capacity);
    if (text == NULL)
        return tide_fail(TIDE_ERROR_NO_MEMORY, "trace file %s: no memory for a first line of %zu bytes",
                         trace->output.path, capacity);
    tide_json_line line;
    tide_status status = TIDE_OK;
    tide_json_begin(&line, text, capacity);
    header_line(&line, header);
    bool complete = tide_json_end(&line);
    assert(complete && "header_bytes_max bounds the line");
    if (!complete || fwrite(text, 1, line.length, trace->file) != line.length)
        status = tide_output_file_failed(&trace->output, "can't be written", errno);
    free(text);
    return status;
}

tide_status tide_trace_begin(tide_trace *trace, const tide_trace_header *header)
{
    assert(!trace->writing);
    for (int space = 0; space < TIDE_SPACE_COUNT; space++)
        assert(tide_layout_space_chunks(header->layout, (tide_space)space) == header->plan->chunks[space]);
    tide_status status = tide_output_file_begin(&trace->output, false);
    if (status == TIDE_OK)
        status = header_write(trace, header);
    if (status != TIDE_OK)
        return status;
    int error = pthread_create(&trace->writer, NULL, writer_run, trace);
    if (error != 0)
        return tide_fail(TIDE_ERROR_NO_MEMORY, "trace file %s: no thread to write it: %s", trace->output.path,
                         strerror(error));
    trace->writing = true;
    return TIDE_OK;
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

tide_status tide_trace_open(const char *path, uint32_t ring_events, tide_trace **trace)
{
    assert(ring_events > 0 && (ring_events & (ring_events - 1)) == 0);
    tide_trace *made = calloc(1, sizeof *made);
    tide_trace_event *events = calloc(ring_events, sizeof *events);
    tide_status status = TIDE_OK;
    if (made == NULL || events == NULL) {
        status = tide_fail(TIDE_ERROR_NO_MEMORY, "trace file %s: no memory for a ring of %u events", path,
                           ring_events);
        goto free_memory;
    }
    status = tide_output_file_open("trace file", path, O_WRONLY, &made->output);
    if (status != TIDE_OK)
        goto free_memory;
    made->file = fdopen(made->output.descriptor, "w");
    if (made->file == NULL) {
        status = tide_output_file_failed(&made->output, "can't be written", errno);
        goto close_output;
    }
    pthread_mutex_init(&made->lock, NULL);
    wake_init(&made->wake);
    made->events = events;
    made->capacity = ring_events;
    *trace = made;
    return TIDE_OK;

close_output:
    (void)tide_output_file_close(&made->output);
free_memory:
    free(events);
    free(made);
    return status;
}

/* No event enters the ring any more; the writer empties it and ends. */
static void writer_stop(tide_trace *trace)
{
    pthread_mutex_lock(&trace->lock);
    trace->closing = true;
    pthread_mutex_unlock(&trace->lock);
    if (!trace->writing)
        return;
    pthread_cond_signal(&trace->wake);
    pthread_join(trace->writer, NULL);
    assert(trace->drained == trace->recorded);
}

static void last_line_write(tide_trace *trace)
{
    if (!trace->writing)
        return; /* there is no first line either */
    if (fprintf(trace->file, "{\"events\":%" PRIu64 ",\"dropped\":%" PRIu64 "}\n", trace->written,
                trace->dropped) < 0 &&
        trace->failure == 0)
        trace->failure = errno;
}

/* 0 or the errno of bytes that could not be written. */
static int stream_close(tide_trace *trace)
{
    int failure = fclose(trace->file) != 0 ? errno : 0;
    trace->file = NULL;
    trace->output.descriptor = -1; /* the stream closed it */
    return failure;
}

tide_status tide_trace_finish(tide_trace *trace, uint64_t *dropped)
{
    if (trace == NULL)
        return TIDE_OK;
    assert(trace->file != NULL);
    writer_stop(trace);
    last_line_write(trace);
    int failure = stream_close(trace);
    if (trace->failure == 0)
        trace->failure = failure;
    trace->writing = false;
    if (dropped != NULL)
        *dropped = trace->dropped;
    if (trace->failure != 0)
        return tide_output_file_failed(&trace->output, "can't be written", trace->failure);
    return TIDE_OK;
}

void tide_trace_destroy(tide_trace *trace)
{
    if (trace == NULL)
        return;
    if (trace->file != NULL) {
        writer_stop(trace);
        (void)stream_close(trace); /* given up: the caller reports another failure */
    }
    (void)tide_output_file_close(&trace->output);
    pthread_cond_destroy(&trace->wake);
    pthread_mutex_destroy(&trace->lock);
    free(trace->events);
    free(trace);
}
