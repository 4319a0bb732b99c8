#include "src/trace/trace_read.h"

#include "src/trace/trace_fields.h"

#include <assert.h>
#include <inttypes.h>
#include <string.h>

/* ---- an event ---- */

static void field_read(tide_trace_reader *reader, const tide_trace_field *field, tide_trace_event *event)
{
    void *at = (char *)event + field->offset;
    tide_trace_scan *scan = &reader->scan;
    switch (field->type) {
    case TIDE_TRACE_COUNT64:
        *(uint64_t *)at = tide_scan_count(scan, field->name, TIDE_SCAN_COUNT_MAX);
        break;
    case TIDE_TRACE_COUNT32:
        *(uint32_t *)at = (uint32_t)tide_scan_count(scan, field->name, UINT32_MAX - 1);
        break;
    case TIDE_TRACE_COUNT64_OR_NULL:
        *(uint64_t *)at = 0;
        if (!tide_scan_is_null(scan, field->name))
            *(uint64_t *)at = tide_scan_count(scan, field->name, TIDE_SCAN_COUNT_MAX);
        break;
    case TIDE_TRACE_COUNT32_OR_NULL:
        *(uint32_t *)at = TIDE_TRACE_NONE;
        if (!tide_scan_is_null(scan, field->name))
            *(uint32_t *)at = (uint32_t)tide_scan_count(scan, field->name, UINT32_MAX - 1);
        break;
    case TIDE_TRACE_WORD:
        *(uint32_t *)at = tide_scan_word(scan, field->name, field->words);
        break;
    case TIDE_TRACE_TEXT:
        *(const char **)at = tide_scan_text(scan, field->name);
        break;
    case TIDE_TRACE_BOOL:
        *(bool *)at = tide_scan_bool(scan, field->name);
        break;
    }
}

static void known_check(tide_trace_reader *reader, const char *name, uint32_t number, uint32_t count,
                        const char *what)
{
    if (number != TIDE_TRACE_NONE)
        tide_scan_number_check(&reader->scan, name, number, count, what);
}

static void chunk_check(tide_trace_reader *reader, const char *name, uint32_t chunk, tide_space space)
{
    if (reader->scan.status == TIDE_OK && reader->model->chunks[chunk].space != space)
        tide_scan_refuse(&reader->scan, "\"%s\" is %" PRIu32 ", which is no %s chunk", name, chunk,
                         space == TIDE_SPACE_PARAM ? "param" : "state");
}

/* Refuse numbers of ops, chunks, slots or params that the trace does not have. */
static void event_check(tide_trace_reader *reader, const tide_trace_event *event)
{
    const tide_trace_model *model = reader->model;
    known_check(reader, "op", event->op, model->op_count, "ops");
    known_check(reader, "chunk", event->chunk, model->chunk_count, "chunks");
    known_check(reader, "state_chunk", event->state_chunk, model->chunk_count, "chunks");
    known_check(reader, "device_slot", event->device_slot, model->device_slots, "device slots");
    known_check(reader, "host_slot", event->host_slot, model->host_slots, "host slots");
    known_check(reader, "param", event->param, model->param_count, "params");
    if (reader->scan.status != TIDE_OK)
        return;
    if (event->slice != TIDE_TRACE_NONE && event->op == TIDE_TRACE_NONE)
        tide_scan_refuse(&reader->scan, "\"slice\" is %" PRIu32 ", but \"op\" is null", event->slice);
    else if (event->slice != TIDE_TRACE_NONE)
        tide_scan_number_check(&reader->scan, "slice", event->slice, model->ops[event->op].slices,
                               "this op's slices");
    if (event->end_ns < event->begin_ns)
        tide_scan_refuse(&reader->scan, "\"end_ns\" %" PRIu64 " is before \"begin_ns\" %" PRIu64,
                         event->end_ns, event->begin_ns);
    if (event->kind == TIDE_TRACE_COPY && event->bytes > model->chunks[event->chunk].bytes)
        tide_scan_refuse(&reader->scan, "\"bytes\" is %" PRIu64 ", but chunk %" PRIu32 " has %" PRIu64,
                         event->bytes, event->chunk, model->chunks[event->chunk].bytes);
    if (event->kind == TIDE_TRACE_UPDATE || event->kind == TIDE_TRACE_RESTORE) {
        chunk_check(reader, "chunk", event->chunk, TIDE_SPACE_PARAM);
        chunk_check(reader, "state_chunk", event->state_chunk, TIDE_SPACE_STATE);
    }
}

/* ---- passes ---- */

static void pass_begin(tide_trace_reader *reader, const tide_trace_event *event)
{
    tide_trace_model *model = reader->model;
    if (event->training != (event->number > 0))
        tide_scan_refuse(&reader->scan, "\"number\" is %" PRIu64 ", but \"training\" is %s", event->number,
                         event->training ? "true" : "false");
    if (!tide_scan_reserve(&reader->scan, &model->passes, model->pass_count, sizeof *model->passes))
        return;
    model->passes[model->pass_count++] = (tide_traced_pass){.pass = event->pass,
                                                            .number = event->number,
                                                            .training = event->training,
                                                            .clips = event->clips,
                                                            .begin_ns = event->begin_ns,
                                                            .end_ns = UINT64_MAX};
}

static void pass_end(tide_trace_model *model, const tide_trace_event *event)
{
    for (uint32_t i = model->pass_count; i-- > 0;)
        if (model->passes[i].pass == event->pass) {
            model->passes[i].end_ns = event->end_ns;
            return;
        }
}

/* Mark the step's last try as given up; earlier tries are marked already. trace_model.c later takes the
 * step's events out of the count. */
static void step_give_up(tide_trace_model *model, uint64_t step)
{
    uint32_t i = model->pass_count;
    while (i > 0 && !model->passes[i - 1].training)
        i--;
    if (i > 0 && model->passes[i - 1].number == step)
        model->passes[i - 1].given_up = true;
}

static void event_take(tide_trace_reader *reader, const tide_trace_event *event)
{
    tide_trace_model *model = reader->model;
    if (event->kind == TIDE_TRACE_PASS)
        pass_begin(reader, event);
    else if (event->kind == TIDE_TRACE_PASS_END)
        pass_end(model, event);
    else if (event->kind == TIDE_TRACE_GIVEN_UP)
        step_give_up(model, event->step);
    else if (event->kind == TIDE_TRACE_DROPPED)
        reader->dropped += event->number, reader->passes_before_drop = model->pass_count;
    if (tide_scan_reserve(&reader->scan, &model->events, model->event_count, sizeof *model->events))
        model->events[model->event_count++] = *event;
}

static void event_read(tide_trace_reader *reader)
{
    tide_trace_event event = {.op = TIDE_TRACE_NONE,
                              .slice = TIDE_TRACE_NONE,
                              .chunk = TIDE_TRACE_NONE,
                              .state_chunk = TIDE_TRACE_NONE,
                              .device_slot = TIDE_TRACE_NONE,
                              .host_slot = TIDE_TRACE_NONE,
                              .param = TIDE_TRACE_NONE};
    tide_trace_scan *scan = &reader->scan;
    tide_scanned name = tide_scan_raw(scan, "event");
    char text[TIDE_SCAN_SHOWN_BYTES];
    int kind = 0;
    while (kind < TIDE_TRACE_KIND_COUNT &&
           !tide_scanned_is(name, tide_trace_shape_of((tide_trace_kind)kind)->name))
        kind++;
    if (scan->status == TIDE_OK && kind == TIDE_TRACE_KIND_COUNT) {
        scan->at = name.at - 1;
        tide_scan_refuse(scan, "there is no event %s in format %d", tide_scan_shown(scan, text),
                         TIDE_TRACE_FORMAT);
    }
    if (scan->status != TIDE_OK)
        return;
    const tide_trace_shape *shape = tide_trace_shape_of((tide_trace_kind)kind);
    event.kind = (tide_trace_kind)kind;
    scan->name = shape->name;
    for (uint32_t i = 0; i < shape->field_count; i++)
        field_read(reader, &shape->fields[i], &event);
    tide_scan_end(scan);
    if (strcmp(shape->fields[2].name, "t_ns") == 0)
        event.end_ns = event.begin_ns;
    if (scan->status == TIDE_OK)
        event_check(reader, &event);
    if (scan->status == TIDE_OK)
        event_take(reader, &event);
}

/* ---- a line ---- */

static void end_read(tide_trace_reader *reader)
{
    tide_trace_scan *scan = &reader->scan;
    bool end = tide_scan_bool(scan, "end");
    (void)tide_scan_count(scan, "events", TIDE_SCAN_COUNT_MAX);
    uint64_t dropped = tide_scan_count(scan, "dropped", TIDE_SCAN_COUNT_MAX);
    tide_scan_end(scan);
    if (!end)
        tide_scan_refuse(scan, "\"end\" must be true");
    reader->has_ended = true;
    reader->dropped = dropped;
}

void tide_trace_reader_begin(tide_trace_reader *reader, tide_trace_model *model)
{
    *reader = (tide_trace_reader){.model = model, .scan = {.memory = &model->memory}};
}

tide_status tide_trace_reader_line(tide_trace_reader *reader, const char *path, uint64_t line,
                                   const char *text, size_t bytes)
{
    static const struct {
        const char *kind;
        void (*read)(tide_trace_reader *reader);
    } kinds[] = {{"event", event_read},
                 {"step", tide_trace_read_step},
                 {"table", tide_trace_read_table},
                 {"end", end_read}};
    tide_trace_scan *scan = &reader->scan;
    char shown[TIDE_SCAN_SHOWN_BYTES];
    tide_scan_begin(scan, path, line, text, bytes);
    if (!reader->has_begun) {
        tide_trace_read_first(reader);
        return scan->status;
    }
    if (reader->has_ended) {
        tide_scan_refuse(scan, "comes behind the line \"end\", which is a trace's last");
        return scan->status;
    }
    tide_scanned first = tide_scan_first(scan);
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0] && scan->status == TIDE_OK; i++)
        if (tide_scanned_is(first, kinds[i].kind)) {
            scan->kind = kinds[i].kind;
            kinds[i].read(reader);
            return scan->status;
        }
    tide_scan_refuse(scan, "a line begins with \"event\", \"step\", \"table\" or \"end\", not with %s",
                     tide_scan_shown(scan, shown));
    return scan->status;
}
