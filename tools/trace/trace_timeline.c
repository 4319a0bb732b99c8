/* What the timeline shows, from top to bottom:
 *
 *     passes            training steps and forward-only passes; in them, instants: plan, given up, dropped
 *     compute           ops on the compute stream, their slices below them; the gradient norm's way to the host
 *     stalls            by cause
 *     in, out           copies, and the zeroing of chunks without content
 *     updates           on the device; on the host: the optimizer's pieces and restores
 *     host              what the caller asks for (and, as instants, what it has to wait for), reads, sets and does between steps
 *     moves, mapping    the engine's work: a move from when it is issued until it is done, its maps
 *     memory, link      counters: slots in use, bytes in them against the budget; bytes under way, each way
 *     slots             of the device, of the host, a track each: the chunk that is there, below it its states
 *
 * Arrows: see trace_arrows.c.
 */
#include "tools/trace/trace_timeline.h"

#include "tools/trace/trace_names.h"
#include "tools/trace/trace_picture.h"

#include <stdlib.h>

/* ---- texts ---- */

static uint32_t op_text(tide_picture *p, const tide_trace_event *event, const char *before)
{
    char text[TIDE_TRACE_NAME_BYTES], whole[TIDE_TRACE_NAME_BYTES + 32];
    snprintf(whole, sizeof whole, "%s%s", before,
             tide_trace_op_name(p->model, event->op, event->slice, text));
    return tide_timeline_text(p->timeline, whole);
}

/* "fetch param 3: wte" */
static uint32_t verb_text(tide_picture *p, const char *verb, uint32_t chunk)
{
    char text[TIDE_TRACE_NAME_BYTES], whole[TIDE_TRACE_NAME_BYTES + 32];
    snprintf(whole, sizeof whole, "%s %s", verb, tide_trace_chunk_name(p->model, chunk, text));
    return tide_timeline_text(p->timeline, whole);
}

/* ---- notes ---- */

static void note_chunk(const tide_trace_model *model, const char *name, uint32_t chunk,
                       tide_timeline_notes *notes)
{
    char text[TIDE_TRACE_NAME_BYTES];
    if (chunk != TIDE_TRACE_NONE)
        tide_timeline_note_text(notes, name, tide_trace_chunk_name(model, chunk, text));
}

static void note_command(const tide_trace_event *event, tide_timeline_notes *notes)
{
    tide_timeline_note_text(notes, "reason", tide_trace_reason_word(event->reason));
    if (event->kind == TIDE_TRACE_COPY)
        tide_timeline_note_count(notes, "bytes", event->bytes);
    if (event->device_slot != TIDE_TRACE_NONE)
        tide_timeline_note_count(notes, "device_slot", event->device_slot);
    if (event->host_slot != TIDE_TRACE_NONE)
        tide_timeline_note_count(notes, "host_slot", event->host_slot);
}

static void note_op(const tide_trace_model *model, const tide_trace_event *event, tide_timeline_notes *notes)
{
    if (event->kind == TIDE_TRACE_OP)
        tide_timeline_note_count(notes, "busy_ns", event->busy_ns);
    if (event->kind == TIDE_TRACE_REQUEST)
        tide_timeline_note_count(notes, "chunks", event->chunks);
    if (event->kind == TIDE_TRACE_REQUEST)
        tide_timeline_note_count(notes, "lacked", event->lacked);
    if (event->kind == TIDE_TRACE_STALL)
        tide_timeline_note_bool(notes, "predicted", event->predicted);
    if (event->kind == TIDE_TRACE_STALL && event->op != TIDE_TRACE_NONE)
        tide_timeline_note_text(notes, "op", model->ops[event->op].name);
    if (event->kind == TIDE_TRACE_STALL && event->slice != TIDE_TRACE_NONE)
        tide_timeline_note_count(notes, "slice", event->slice);
    tide_timeline_note_count(notes, "schedule_step", event->schedule_step);
}

/* `source` is an event's number + 1; 0: none. */
static void describe(void *context, uint64_t source, tide_timeline_notes *notes)
{
    const tide_picture *p = context;
    if (source == 0)
        return;
    const tide_trace_event *event = &p->model->events[source - 1];
    tide_timeline_note_count(notes, "step", event->step);
    switch (event->kind) {
    case TIDE_TRACE_OP:
    case TIDE_TRACE_REQUEST:
    case TIDE_TRACE_STALL:
        note_op(p->model, event, notes);
        if (event->kind == TIDE_TRACE_STALL)
            note_chunk(p->model, "chunk", event->chunk, notes);
        break;
    case TIDE_TRACE_WAIT:
        tide_timeline_note_text(notes, "for", tide_trace_awaited_word(event->awaits));
        break;
    case TIDE_TRACE_COPY:
    case TIDE_TRACE_MOVE:
        note_command(event, notes);
        break;
    case TIDE_TRACE_UPDATE:
    case TIDE_TRACE_RESTORE:
        tide_timeline_note_count(notes, "piece", event->piece);
        note_chunk(p->model, "state", event->state_chunk, notes);
        break;
    case TIDE_TRACE_PLAN:
        tide_timeline_note_count(notes, "planned_in", event->planned_in);
        tide_timeline_note_count(notes, "planned_out", event->planned_out);
        tide_timeline_note_count(notes, "least_in", event->least_in);
        tide_timeline_note_count(notes, "least_out", event->least_out);
        break;
    case TIDE_TRACE_DROPPED:
        tide_timeline_note_count(notes, "events", event->number);
        break;
    default:
        break;
    }
}

/* ---- spans ---- */

static uint64_t source_of(const tide_picture *p, const tide_trace_event *event)
{
    return (uint64_t)(event - p->model->events) + 1;
}

static uint32_t span_add(tide_picture *p, tide_picture_lane lane, const tide_trace_event *event,
                         uint32_t text)
{
    const uint32_t number = tide_timeline_span(p->timeline, p->tracks[lane], event->begin_ns, event->end_ns,
                                               text, source_of(p, event));
    p->spans[event - p->model->events] = number;
    return number;
}

static void instant_add(tide_picture *p, tide_picture_lane lane, const tide_trace_event *event, uint32_t text)
{
    tide_timeline_instant(p->timeline, p->tracks[lane], event->begin_ns, text, source_of(p, event));
}

static void schedule_step_add(tide_picture *p, const tide_trace_event *event)
{
    static const char *const names[] = {[TIDE_TRACE_GIVEN_UP] = "step given up",
                                        [TIDE_TRACE_PLAN] = "plan",
                                        [TIDE_TRACE_DROPPED] = "events dropped"};
    instant_add(p, TIDE_LANE_PASSES, event, tide_timeline_text(p->timeline, names[event->kind]));
}

static void event_add(tide_picture *p, const tide_trace_event *event)
{
    switch (event->kind) {
    case TIDE_TRACE_GIVEN_UP:
    case TIDE_TRACE_PLAN:
    case TIDE_TRACE_DROPPED:
        schedule_step_add(p, event);
        break;
    case TIDE_TRACE_REQUEST:
        span_add(p, TIDE_LANE_HOST, event, op_text(p, event, "ask for "));
        break;
    case TIDE_TRACE_WAIT:
        instant_add(p, TIDE_LANE_HOST, event, verb_text(p, "wait for", event->chunk));
        break;
    case TIDE_TRACE_ACCESS:
        span_add(p, TIDE_LANE_HOST, event, verb_text(p, "access", event->chunk));
        break;
    case TIDE_TRACE_WORK:
        span_add(p, TIDE_LANE_HOST, event, tide_timeline_text(p->timeline, event->work));
        break;
    case TIDE_TRACE_NORM:
        span_add(p, TIDE_LANE_COMPUTE, event, tide_timeline_text(p->timeline, "gradient norm"));
        break;
    case TIDE_TRACE_MOVE:
        span_add(p, TIDE_LANE_MOVES, event, verb_text(p, tide_trace_move_word(event->move), event->chunk));
        break;
    case TIDE_TRACE_MAP:
        span_add(p, TIDE_LANE_MAPPING, event,
                 verb_text(p, tide_trace_mapping_word(event->map), event->chunk));
        break;
    case TIDE_TRACE_COPY:
        span_add(p, event->tier == TIDE_TIER_DEVICE ? TIDE_LANE_IN : TIDE_LANE_OUT, event,
                 tide_picture_chunk_text(p, event->chunk));
        break;
    case TIDE_TRACE_UPDATE:
    case TIDE_TRACE_RESTORE:
        span_add(p, event->tier == TIDE_TIER_HOST ? TIDE_LANE_HOST_UPDATES : TIDE_LANE_DEVICE_UPDATES, event,
                 event->kind == TIDE_TRACE_UPDATE ? tide_picture_chunk_text(p, event->chunk)
                                                  : verb_text(p, "restore", event->chunk));
        break;
    case TIDE_TRACE_STALL:
        span_add(p, TIDE_LANE_STALLS, event,
                 tide_timeline_text(p->timeline, tide_stall_cause_name(event->cause)));
        break;
    default: /* ops, zeros, passes and places have functions of their own; params stand in their chunk's content */
        break;
    }
}

/* ---- passes ---- */

static void pass_add(tide_picture *p, const tide_trace_event *begun, uint64_t end_ns)
{
    char text[64];
    if (begun->training)
        snprintf(text, sizeof text, "step %llu", (unsigned long long)begun->number);
    else
        snprintf(text, sizeof text, "forward-only pass");
    if (end_ns < begun->begin_ns)
        end_ns = begun->begin_ns;
    tide_timeline_span(p->timeline, p->tracks[TIDE_LANE_PASSES], begun->begin_ns, end_ns,
                       tide_timeline_text(p->timeline, text), source_of(p, begun));
}

/* A pass lasts until its end; one that was given up until then; one of which no end is told until the next, or as long as the
 * trace. */
static void passes_add(tide_picture *p)
{
    const tide_trace_event *open = NULL;
    for (uint64_t i = 0; i < p->model->event_count; i++) {
        const tide_trace_event *event = &p->model->events[i];
        const bool begins = event->kind == TIDE_TRACE_PASS;
        const bool ends = event->kind == TIDE_TRACE_PASS_END || event->kind == TIDE_TRACE_GIVEN_UP;
        if (open != NULL && (begins || ends)) {
            pass_add(p, open, event->begin_ns);
            open = NULL;
        }
        if (begins)
            open = event;
    }
    if (open != NULL)
        pass_add(p, open, p->end_ns);
}

/* ---- ops ---- */

/* Consecutive ops of one op of one pass: its slices. */
typedef struct op_group {
    uint64_t first, last; /* events */
    uint64_t begin_ns, end_ns;
    uint32_t count;
} op_group;

static void op_group_add(tide_picture *p, const op_group *group)
{
    const tide_trace_event *events = p->model->events, *first = &events[group->first];
    if (group->count == 1) {
        span_add(p, TIDE_LANE_COMPUTE, first, op_text(p, first, ""));
        return;
    }
    tide_trace_event whole = *first;
    whole.slice = TIDE_TRACE_NONE;
    const uint32_t number = tide_timeline_span(p->timeline, p->tracks[TIDE_LANE_COMPUTE], group->begin_ns,
                                               group->end_ns, op_text(p, &whole, ""), 0);
    for (uint64_t i = group->first; i <= group->last; i++) {
        char text[32] = "before slices";
        if (events[i].kind != TIDE_TRACE_OP)
            continue;
        if (events[i].slice != TIDE_TRACE_NONE)
            snprintf(text, sizeof text, "slice %u", events[i].slice);
        span_add(p, TIDE_LANE_COMPUTE, &events[i], tide_timeline_text(p->timeline, text));
    }
    p->spans[group->first] = number;
}

static void ops_add(tide_picture *p)
{
    op_group group = {0};
    for (uint64_t i = 0; i < p->model->event_count; i++) {
        const tide_trace_event *event = &p->model->events[i], *first = &p->model->events[group.first];
        if (event->kind != TIDE_TRACE_OP)
            continue;
        const bool joins = group.count > 0 && event->op != TIDE_TRACE_NONE && event->op == first->op &&
                           event->pass == first->pass && event->slice != TIDE_TRACE_NONE;
        if (!joins) {
            if (group.count > 0)
                op_group_add(p, &group);
            group = (op_group){.first = i, .begin_ns = event->begin_ns};
        }
        group.count++;
        group.last = i;
        group.end_ns = event->end_ns > group.end_ns ? event->end_ns : group.end_ns;
    }
    if (group.count > 0)
        op_group_add(p, &group);
}

/* ---- zeros ---- */

static int ids_compare(const void *a, const void *b)
{
    const uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

/* One with a move's id is on the in stream; the others come before an update on the device. */
static bool zeros_add(tide_picture *p)
{
    const tide_trace_model *model = p->model;
    uint64_t *ids = tide_arrays_add(&p->memory, model->event_count, sizeof *ids);
    size_t count = 0;
    if (ids == NULL)
        return false;
    for (uint64_t i = 0; i < model->event_count; i++)
        if (model->events[i].kind == TIDE_TRACE_MOVE)
            ids[count++] = model->events[i].id;
    qsort(ids, count, sizeof *ids, ids_compare);
    for (uint64_t i = 0; i < model->event_count; i++) {
        const tide_trace_event *event = &model->events[i];
        if (event->kind != TIDE_TRACE_ZERO)
            continue;
        const bool of_move = bsearch(&event->id, ids, count, sizeof *ids, ids_compare) != NULL;
        span_add(p, of_move ? TIDE_LANE_IN : TIDE_LANE_DEVICE_UPDATES, event,
                 verb_text(p, "zero", event->chunk));
    }
    return true;
}

/* ---- counters ---- */

typedef struct change {
    uint64_t t_ns;
    uint64_t bytes; /* modulo 2^64: what ends is less than none */
} change;

static int changes_compare(const void *a, const void *b)
{
    const change *x = a, *y = b;
    return (x->t_ns > y->t_ns) - (x->t_ns < y->t_ns);
}

/* Bytes of the copies that are under way. */
static bool link_add(tide_picture *p, tide_tier to, const char *name, uint32_t rank)
{
    const tide_trace_model *model = p->model;
    uint32_t counter = tide_timeline_counter(p->timeline, p->tracks[TIDE_LANE_LINK], name, rank,
                                             TIDE_TIMELINE_BYTES, "link");
    change *changes = tide_arrays_add(&p->memory, 2 * model->event_count, sizeof *changes);
    size_t count = 0;
    uint64_t bytes = 0;
    if (changes == NULL)
        return false;
    for (uint64_t i = 0; i < model->event_count; i++) {
        const tide_trace_event *event = &model->events[i];
        if (event->kind != TIDE_TRACE_COPY || event->tier != to)
            continue;
        changes[count++] = (change){event->begin_ns, event->bytes};
        changes[count++] = (change){event->end_ns, 0 - event->bytes};
    }
    qsort(changes, count, sizeof *changes, changes_compare);
    for (size_t i = 0; i < count; i++) {
        bytes += changes[i].bytes;
        if (i + 1 == count || changes[i + 1].t_ns != changes[i].t_ns)
            tide_timeline_value(p->timeline, counter, changes[i].t_ns, bytes);
    }
    return true;
}

/* ---- all of it ---- */

static bool picture_draw(tide_picture *p)
{
    const tide_trace_model *model = p->model;
    passes_add(p);
    ops_add(p);
    for (uint64_t i = 0; i < model->event_count; i++)
        event_add(p, &model->events[i]);
    return zeros_add(p) && link_add(p, TIDE_TIER_DEVICE, "bytes on their way in", 0) &&
           link_add(p, TIDE_TIER_HOST, "bytes on their way out", 1) && tide_picture_places(p) &&
           tide_picture_arrows(p);
}

tide_status tide_trace_timeline_write(const tide_trace_model *model, FILE *out)
{
    tide_picture p = {.model = model};
    char process[64];
    snprintf(process, sizeof process, "tidepool rank %u", model->rank);
    p.timeline = tide_timeline_make(process, model->rank, describe, &p);
    tide_status status;
    if (p.timeline != NULL && tide_picture_make(&p) && picture_draw(&p))
        status = tide_timeline_write(p.timeline, out);
    else
        status = tide_fail(TIDE_ERROR_NO_MEMORY, "no memory for the timeline");
    tide_timeline_free(p.timeline);
    tide_arrays_free(&p.memory);
    return status;
}
