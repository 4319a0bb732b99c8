/* The events' spans, by track from top to bottom:
 *
 *   passes           training steps and forward-only passes; in them, as instants: plan, given up, dropped
 *   compute          ops on the compute stream, their slices below them; the gradient norm's copy to the host
 *   stalls           by cause
 *   copies in, out   also the zeroing of chunks without content
 *   updates          on the device and on the host: the optimizer's pieces, and restores
 *   host             the caller's requests and, as instants, the chunks that a request lacked; values set and
 *                    read; work between steps
 *   moves, mapping   the engine's work: a move from when it is issued until it is done, and its maps
 */
#include "tools/trace/trace_picture.h"

#include <stdlib.h>

/* ---- one event ---- */

static uint64_t number_of(const tide_picture *p, const tide_trace_event *event)
{
    return (uint64_t)(event - p->model->events);
}

static void span_add(tide_picture *p, tide_picture_lane lane, const tide_trace_event *event,
                     tide_picture_label label)
{
    const uint32_t span = tide_picture_span_add(p, &(tide_picture_span){.begin_ns = event->begin_ns,
                                                                        .end_ns = event->end_ns,
                                                                        .event = number_of(p, event),
                                                                        .track = lane,
                                                                        .label = label});
    if (!p->memory.lacks)
        p->span_of[number_of(p, event)] = span;
}

static void instant_add(tide_picture *p, tide_picture_lane lane, const tide_trace_event *event)
{
    (void)tide_picture_span_add(p, &(tide_picture_span){.begin_ns = event->begin_ns,
                                                        .end_ns = event->begin_ns,
                                                        .event = number_of(p, event),
                                                        .track = lane,
                                                        .instant = true});
}

/* Passes, ops and zeros have functions of their own; places are drawn by trace_places.c, and params show as
 * the content of their chunk. */
static void event_add(tide_picture *p, const tide_trace_event *event)
{
    switch (event->kind) {
    case TIDE_TRACE_GIVEN_UP:
    case TIDE_TRACE_PLAN:
    case TIDE_TRACE_DROPPED:
        instant_add(p, TIDE_LANE_PASSES, event);
        break;
    case TIDE_TRACE_WAIT:
        instant_add(p, TIDE_LANE_HOST, event);
        break;
    case TIDE_TRACE_REQUEST:
    case TIDE_TRACE_ACCESS:
    case TIDE_TRACE_WORK:
        span_add(p, TIDE_LANE_HOST, event, TIDE_LABEL_EVENT);
        break;
    case TIDE_TRACE_NORM:
        span_add(p, TIDE_LANE_COMPUTE, event, TIDE_LABEL_EVENT);
        break;
    case TIDE_TRACE_MOVE:
        span_add(p, TIDE_LANE_MOVES, event, TIDE_LABEL_EVENT);
        break;
    case TIDE_TRACE_MAP:
        span_add(p, TIDE_LANE_MAPPING, event, TIDE_LABEL_EVENT);
        break;
    case TIDE_TRACE_COPY:
        span_add(p, event->tier == TIDE_TIER_DEVICE ? TIDE_LANE_IN : TIDE_LANE_OUT, event, TIDE_LABEL_EVENT);
        break;
    case TIDE_TRACE_UPDATE:
    case TIDE_TRACE_RESTORE:
        span_add(p, event->tier == TIDE_TIER_HOST ? TIDE_LANE_HOST_UPDATES : TIDE_LANE_DEVICE_UPDATES, event,
                 TIDE_LABEL_EVENT);
        break;
    case TIDE_TRACE_STALL:
        span_add(p, TIDE_LANE_STALLS, event, TIDE_LABEL_EVENT);
        break;
    default:
        break;
    }
}

/* ---- passes ---- */

static void pass_add(tide_picture *p, const tide_trace_event *begun, uint64_t end_ns)
{
    (void)tide_picture_span_add(
        p, &(tide_picture_span){.begin_ns = begun->begin_ns,
                                .end_ns = end_ns < begun->begin_ns ? begun->begin_ns : end_ns,
                                .event = number_of(p, begun),
                                .track = TIDE_LANE_PASSES});
}

/* A pass lasts until its end or until it was given up. Without either it lasts until the next pass or the
 * end of the trace. */
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

/* The events of one op in one pass: its slices and the part before them. */
typedef struct op_group {
    uint64_t first, last; /* numbers of events */
    uint64_t begin_ns, end_ns;
    uint32_t count;
} op_group;

static void op_group_add(tide_picture *p, const op_group *group)
{
    const tide_trace_event *events = p->model->events;
    if (group->count == 1) {
        span_add(p, TIDE_LANE_COMPUTE, &events[group->first], TIDE_LABEL_EVENT);
        return;
    }
    const uint32_t whole = tide_picture_span_add(p, &(tide_picture_span){.begin_ns = group->begin_ns,
                                                                         .end_ns = group->end_ns,
                                                                         .event = group->first,
                                                                         .track = TIDE_LANE_COMPUTE,
                                                                         .label = TIDE_LABEL_OP});
    for (uint64_t i = group->first; i <= group->last; i++)
        if (events[i].kind == TIDE_TRACE_OP)
            span_add(p, TIDE_LANE_COMPUTE, &events[i], TIDE_LABEL_SLICE);
    if (!p->memory.lacks)
        p->span_of[group->first] = whole;
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

/* A zeroing with the id of a move runs on the stream of copies in; the others run before an update on the
 * device. */
static void zeros_add(tide_picture *p)
{
    const tide_trace_model *model = p->model;
    uint64_t *ids = tide_arrays_add(&p->memory, model->event_count, sizeof *ids);
    size_t count = 0;
    if (ids == NULL)
        return;
    for (uint64_t i = 0; i < model->event_count; i++)
        if (model->events[i].kind == TIDE_TRACE_MOVE)
            ids[count++] = model->events[i].id;
    qsort(ids, count, sizeof *ids, ids_compare);
    for (uint64_t i = 0; i < model->event_count; i++) {
        const tide_trace_event *event = &model->events[i];
        if (event->kind != TIDE_TRACE_ZERO)
            continue;
        const bool of_move = bsearch(&event->id, ids, count, sizeof *ids, ids_compare) != NULL;
        span_add(p, of_move ? TIDE_LANE_IN : TIDE_LANE_DEVICE_UPDATES, event, TIDE_LABEL_EVENT);
    }
}

/* ---- counters ---- */

typedef struct change {
    uint64_t t_ns;
    uint64_t bytes; /* modulo 2^64, so that the end of a copy subtracts */
} change;

static int changes_compare(const void *a, const void *b)
{
    const change *x = a, *y = b;
    return (x->t_ns > y->t_ns) - (x->t_ns < y->t_ns);
}

/* The bytes of the copies that are under way to the tier. */
static void link_add(tide_picture *p, tide_tier to, tide_picture_counter counter)
{
    const tide_trace_model *model = p->model;
    change *changes = tide_arrays_add(&p->memory, 2 * model->event_count, sizeof *changes);
    size_t count = 0;
    uint64_t bytes = 0;
    for (uint64_t i = 0; i < model->event_count && changes != NULL; i++) {
        const tide_trace_event *event = &model->events[i];
        if (event->kind != TIDE_TRACE_COPY || event->tier != to)
            continue;
        changes[count++] = (change){event->begin_ns, event->bytes};
        changes[count++] = (change){event->end_ns, 0 - event->bytes};
    }
    if (count > 0)
        qsort(changes, count, sizeof *changes, changes_compare);
    for (size_t i = 0; i < count; i++) {
        bytes += changes[i].bytes;
        tide_picture_value_add(p, counter, changes[i].t_ns, bytes);
    }
}

/* ---- all events ---- */

void tide_picture_spans(tide_picture *p)
{
    passes_add(p);
    ops_add(p);
    for (uint64_t i = 0; i < p->model->event_count; i++)
        event_add(p, &p->model->events[i]);
    zeros_add(p);
    link_add(p, TIDE_TIER_DEVICE, TIDE_COUNTER_LINK_IN);
    link_add(p, TIDE_TIER_HOST, TIDE_COUNTER_LINK_OUT);
}
