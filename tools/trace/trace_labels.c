/* Makes a span's name and arguments when the span is written. Until then the picture holds only the number of
 * the span's event, which takes less memory than a name; a trace can have hundreds of thousands of spans. */
#include "src/trace/trace_fields.h"
#include "tools/trace/trace_picture.h"

#include <inttypes.h>

/* ---- names ---- */

/* "param 12: h.3.attn.w +2", "state 4": for a param chunk also its first param and how many more it has. */
static const char *chunk_name(const tide_trace_model *model, uint32_t chunk, char text[TIDE_TEXT_NAME_BYTES])
{
    enum { LETTERS = 40 };
    char content[TIDE_TEXT_NAME_BYTES];
    const tide_traced_chunk *named = &model->chunks[chunk];
    const bool has_params = named->param_count > 0;
    (void)snprintf(text, TIDE_TEXT_NAME_BYTES, "%s %" PRIu32 "%s%s", tide_trace_space_word(named->space),
                   named->index, has_params ? ": " : "",
                   has_params ? tide_chunk_content(model, chunk, LETTERS, content) : "");
    return text;
}

/* "fetch param 3: wte" */
static void verb_label(const tide_trace_model *model, const char *verb, uint32_t chunk,
                       char text[TIDE_TEXT_NAME_BYTES])
{
    char name[TIDE_TEXT_NAME_BYTES];
    (void)snprintf(text, TIDE_TEXT_NAME_BYTES, "%s %.200s", verb, chunk_name(model, chunk, name));
}

/* "h.3 slice 2", "h.3", "between ops" */
static void op_label(const tide_trace_model *model, const char *before, uint32_t op, uint32_t slice,
                     char text[TIDE_TEXT_NAME_BYTES])
{
    enum { LETTERS = 40 };
    char name[TIDE_TEXT_NAME_BYTES];
    const char *shown =
        op == TIDE_TRACE_NONE ? "between ops" : tide_text_shorten(model->ops[op].name, LETTERS, name);
    if (slice == TIDE_TRACE_NONE)
        (void)snprintf(text, TIDE_TEXT_NAME_BYTES, "%s%.200s", before, shown);
    else
        (void)snprintf(text, TIDE_TEXT_NAME_BYTES, "%s%.200s slice %" PRIu32, before, shown, slice);
}

static void event_label(const tide_trace_model *model, const tide_trace_event *event,
                        char text[TIDE_TEXT_NAME_BYTES])
{
    static const char *const fixed[TIDE_TRACE_KIND_COUNT] = {[TIDE_TRACE_GIVEN_UP] = "step given up",
                                                             [TIDE_TRACE_PLAN] = "plan",
                                                             [TIDE_TRACE_DROPPED] = "events dropped",
                                                             [TIDE_TRACE_NORM] = "gradient norm"};
    switch (event->kind) {
    case TIDE_TRACE_PASS:
        if (event->training)
            (void)snprintf(text, TIDE_TEXT_NAME_BYTES, "step %" PRIu64, event->number);
        else
            (void)snprintf(text, TIDE_TEXT_NAME_BYTES, "forward-only pass");
        break;
    case TIDE_TRACE_REQUEST:
        op_label(model, "ask for ", event->op, event->slice, text);
        break;
    case TIDE_TRACE_OP:
        op_label(model, "", event->op, event->slice, text);
        break;
    case TIDE_TRACE_WAIT:
        verb_label(model, "wait for", event->chunk, text);
        break;
    case TIDE_TRACE_ACCESS:
        verb_label(model, "access", event->chunk, text);
        break;
    case TIDE_TRACE_MOVE:
        verb_label(model, tide_trace_move_word(event->move), event->chunk, text);
        break;
    case TIDE_TRACE_MAP:
        verb_label(model, tide_trace_mapping_word(event->map), event->chunk, text);
        break;
    case TIDE_TRACE_ZERO:
        verb_label(model, "zero", event->chunk, text);
        break;
    case TIDE_TRACE_RESTORE:
        verb_label(model, "restore", event->chunk, text);
        break;
    case TIDE_TRACE_COPY:
    case TIDE_TRACE_UPDATE:
        (void)chunk_name(model, event->chunk, text);
        break;
    case TIDE_TRACE_STALL:
        (void)snprintf(text, TIDE_TEXT_NAME_BYTES, "%s", tide_stall_cause_name(event->cause));
        break;
    case TIDE_TRACE_WORK:
        (void)tide_text_shorten(event->work, 40, text);
        break;
    default:
        (void)snprintf(text, TIDE_TEXT_NAME_BYTES, "%s", fixed[event->kind]);
        break;
    }
}

const char *tide_picture_label_make(const tide_picture *p, const tide_picture_span *span,
                                    char text[TIDE_TEXT_NAME_BYTES])
{
    const tide_trace_event *event = &p->model->events[span->event];
    switch (span->label) {
    case TIDE_LABEL_EVENT:
        event_label(p->model, event, text);
        break;
    case TIDE_LABEL_SLICE:
        if (event->slice == TIDE_TRACE_NONE)
            (void)snprintf(text, TIDE_TEXT_NAME_BYTES, "before slices");
        else
            (void)snprintf(text, TIDE_TEXT_NAME_BYTES, "slice %" PRIu32, event->slice);
        break;
    case TIDE_LABEL_OP:
        op_label(p->model, "", event->op, TIDE_TRACE_NONE, text);
        break;
    case TIDE_LABEL_CHUNK:
        (void)chunk_name(p->model, event->chunk, text);
        break;
    case TIDE_LABEL_DEVICE_STATE:
        (void)snprintf(text, TIDE_TEXT_NAME_BYTES, "%s: %s%s%s", tide_trace_stand_word(event->device),
                       tide_trace_content_word(event->content), event->pinned ? ", pinned" : "",
                       event->pending ? ", update to come" : "");
        break;
    case TIDE_LABEL_HOST_STATE:
        (void)snprintf(text, TIDE_TEXT_NAME_BYTES, "%s", tide_trace_stand_word(event->host));
        break;
    }
    return text;
}

/* ---- arguments ---- */

static void count_write(const char *name, uint64_t value, FILE *out)
{
    fprintf(out, ",\"%s\":%" PRIu64, name, value);
}

static void text_write(const char *name, const char *value, FILE *out)
{
    fprintf(out, ",\"%s\":", name);
    tide_text_json_write(value, out);
}

static void chunk_write(const tide_trace_model *model, const char *name, uint32_t chunk, FILE *out)
{
    char text[TIDE_TEXT_NAME_BYTES];
    if (chunk != TIDE_TRACE_NONE)
        text_write(name, chunk_name(model, chunk, text), out);
}

static void stall_write(const tide_trace_model *model, const tide_trace_event *event, FILE *out)
{
    fprintf(out, ",\"predicted\":%s", event->predicted ? "true" : "false");
    if (event->op != TIDE_TRACE_NONE)
        text_write("op", model->ops[event->op].name, out);
    if (event->slice != TIDE_TRACE_NONE)
        count_write("slice", event->slice, out);
    chunk_write(model, "chunk", event->chunk, out);
    count_write("schedule_step", event->schedule_step, out);
}

static void move_write(const tide_trace_event *event, FILE *out)
{
    text_write("reason", tide_trace_reason_word(event->reason), out);
    if (event->kind == TIDE_TRACE_COPY)
        count_write("bytes", event->bytes, out);
    count_write("device_slot", event->device_slot, out);
    if (event->host_slot != TIDE_TRACE_NONE)
        count_write("host_slot", event->host_slot, out);
}

static void event_arguments_write(const tide_trace_model *model, const tide_trace_event *event, FILE *out)
{
    fprintf(out, ",\"args\":{\"step\":%" PRIu64, event->step);
    switch (event->kind) {
    case TIDE_TRACE_OP:
        count_write("busy_ns", event->busy_ns, out);
        count_write("schedule_step", event->schedule_step, out);
        break;
    case TIDE_TRACE_REQUEST:
        count_write("chunks", event->chunks, out);
        count_write("lacked", event->lacked, out);
        count_write("schedule_step", event->schedule_step, out);
        break;
    case TIDE_TRACE_STALL:
        stall_write(model, event, out);
        break;
    case TIDE_TRACE_WAIT:
        text_write("for", tide_trace_awaited_word(event->awaits), out);
        break;
    case TIDE_TRACE_COPY:
    case TIDE_TRACE_MOVE:
        move_write(event, out);
        break;
    case TIDE_TRACE_UPDATE:
    case TIDE_TRACE_RESTORE:
        count_write("piece", event->piece, out);
        chunk_write(model, "state", event->state_chunk, out);
        break;
    case TIDE_TRACE_PLAN:
        count_write("planned_in", event->planned_in, out);
        count_write("planned_out", event->planned_out, out);
        count_write("least_in", event->least_in, out);
        count_write("least_out", event->least_out, out);
        break;
    case TIDE_TRACE_DROPPED:
        count_write("events", event->number, out);
        break;
    default:
        break;
    }
    fputc('}', out);
}

void tide_picture_arguments_write(const tide_picture *p, const tide_picture_span *span, FILE *out)
{
    if (span->label == TIDE_LABEL_EVENT || span->label == TIDE_LABEL_SLICE)
        event_arguments_write(p->model, &p->model->events[span->event], out);
}
