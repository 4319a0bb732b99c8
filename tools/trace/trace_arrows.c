/* Arrows lead from each cause to its effect: from a request to the fetches that it made necessary; along a
 * command (the events with one id) from a move to its map and its copy; from the command that ended a stall
 * to the stall, and from the stall to the op that it held up; and from each copy to the device to the first
 * op that used the chunk.
 */
#include "tools/trace/trace_picture.h"

#include <stdlib.h>

/* Finds the chunks that an op uses: those of its params and, for a slice, those of its part of the
 * activations. */
typedef struct users {
    uint32_t
        *first_of_param; /* where a param's chunks begin in chunks_of_params; the next entry is their end */
    uint32_t *chunks_of_params;
    uint32_t first_activation_chunk;
    uint64_t
        *copies; /* by chunk: 1 + the event of its last copy to the device; 0: none, or an op has used it */
} users;

static bool users_make(tide_picture *p, users *made)
{
    const tide_trace_model *model = p->model;
    size_t places = 0;
    for (uint32_t i = 0; i < model->chunk_count; i++)
        places += model->chunks[i].param_count;
    made->first_of_param =
        tide_arrays_add(&p->memory, model->param_count + (size_t)2, sizeof *made->first_of_param);
    made->chunks_of_params = tide_arrays_add(&p->memory, places, sizeof *made->chunks_of_params);
    made->copies = tide_arrays_add(&p->memory, model->chunk_count, sizeof *made->copies);
    if (p->memory.lacks)
        return false;
    /* Sort the chunks by param. First count the chunks of param p in first[p + 2]. The sums of the counts
     * then make first[p + 1] the place of p's first chunk. Storing p's chunks moves first[p + 1] on to their
     * end, where the chunks of p + 1 begin. */
    uint32_t *first = made->first_of_param;
    for (uint32_t i = 0; i < model->chunk_count; i++)
        for (uint32_t j = 0; j < model->chunks[i].param_count; j++)
            first[model->chunks[i].params[j].param + 2]++;
    for (uint32_t i = 2; i < model->param_count + 2; i++)
        first[i] += first[i - 1];
    for (uint32_t i = 0; i < model->chunk_count; i++)
        for (uint32_t j = 0; j < model->chunks[i].param_count; j++)
            made->chunks_of_params[first[model->chunks[i].params[j].param + 1]++] = i;
    made->first_activation_chunk = model->chunk_count;
    for (uint32_t i = model->chunk_count; i > 0 && model->chunks[i - 1].space == TIDE_SPACE_ACTIVATION; i--)
        made->first_activation_chunk = i - 1;
    return true;
}

static uint64_t number_of(const tide_picture *p, const tide_trace_event *event)
{
    return (uint64_t)(event - p->model->events);
}

static void op_uses(tide_picture *p, users *of, const tide_trace_event *op, uint32_t chunk)
{
    if (of->copies[chunk] == 0)
        return;
    tide_picture_arrow_add(p, of->copies[chunk] - 1, number_of(p, op));
    of->copies[chunk] = 0;
}

static void op_uses_params(tide_picture *p, users *of, const tide_trace_event *op)
{
    const tide_traced_op *used = &p->model->ops[op->op];
    for (uint32_t i = 0; i < used->param_count; i++)
        for (uint32_t j = of->first_of_param[used->params[i].tensor];
             j < of->first_of_param[used->params[i].tensor + 1]; j++)
            op_uses(p, of, op, of->chunks_of_params[j]);
}

/* Part m of an activation is that of micro-batch m, the op's slice. The parts follow each other, each aligned
 * by tide_align_up. */
static void op_uses_activations(tide_picture *p, users *of, const tide_trace_event *op)
{
    const tide_traced_op *used = &p->model->ops[op->op];
    const uint64_t chunk_bytes = p->model->chunk_bytes,
                   chunks = p->model->chunk_count - of->first_activation_chunk;
    for (uint32_t i = 0; i < used->activation_count; i++) {
        const tide_traced_activation *activation = &p->model->activations[used->activations[i].tensor];
        const uint64_t begin = activation->offset_bytes + op->slice * tide_align_up(activation->part_bytes);
        const uint64_t end = begin + activation->part_bytes;
        for (uint64_t j = begin / chunk_bytes; j < chunks && j * chunk_bytes < end; j++)
            op_uses(p, of, op, of->first_activation_chunk + (uint32_t)j);
    }
}

/* Draw an arrow from each copy to the device to the first op that used the chunk. Ops run one after the
 * other, and a copy that an op used began before the op's end. So for each op in order, note first the copies
 * that began before its end, then draw the arrows from the noted copies of chunks that it uses. */
static void arrows_to_users(tide_picture *p)
{
    const tide_trace_model *model = p->model;
    users of = {0};
    uint64_t copy = 0;
    /* a chunk size of 0: the trace breaks off before its tables, and has no copies */
    if (model->chunk_bytes == 0 || !users_make(p, &of))
        return;
    for (uint64_t i = 0; i < model->event_count; i++) {
        const tide_trace_event *event = &model->events[i];
        if (event->kind != TIDE_TRACE_OP || event->op == TIDE_TRACE_NONE)
            continue;
        for (; copy < model->event_count && model->events[copy].begin_ns < event->end_ns; copy++)
            if (model->events[copy].kind == TIDE_TRACE_COPY && model->events[copy].tier == TIDE_TIER_DEVICE)
                of.copies[model->events[copy].chunk] = copy + 1;
        op_uses_params(p, &of, event);
        if (event->slice != TIDE_TRACE_NONE)
            op_uses_activations(p, &of, event);
    }
}

/* ---- commands ---- */

/* One event of a command. Once sorted by id, begin and order, the events of a command stand in order of cause
 * and effect. */
typedef struct command_event {
    uint64_t id, begin_ns, event;
    int order; /* as order_of gives it */
} command_event;

/* The place of the event's kind in a command, from its cause to its last effect; 0: events of this kind
 * belong to no command. */
static int order_of(const tide_trace_event *event)
{
    switch (event->kind) {
    case TIDE_TRACE_ACCESS:
        return 1;
    case TIDE_TRACE_MOVE:
        return 2;
    case TIDE_TRACE_MAP:
        return 3;
    case TIDE_TRACE_ZERO:
        return 4;
    case TIDE_TRACE_COPY:
        return 5;
    case TIDE_TRACE_UPDATE:
    case TIDE_TRACE_RESTORE:
        return 6;
    default:
        return 0;
    }
}

static int compare_command_events(const void *a, const void *b)
{
    const command_event *x = a, *y = b;
    if (x->id != y->id)
        return x->id < y->id ? -1 : 1;
    if (x->begin_ns != y->begin_ns)
        return x->begin_ns < y->begin_ns ? -1 : 1;
    return x->order != y->order ? x->order - y->order : (x->event > y->event) - (x->event < y->event);
}

typedef struct command_events {
    command_event *events;
    uint64_t count;
} command_events;

static bool command_events_make(tide_picture *p, command_events *made)
{
    const tide_trace_model *model = p->model;
    made->events = tide_arrays_add(&p->memory, model->event_count, sizeof *made->events);
    made->count = 0;
    for (uint64_t i = 0; i < model->event_count && made->events != NULL; i++)
        if (order_of(&model->events[i]) != 0 && model->events[i].id != 0)
            made->events[made->count++] = (command_event){model->events[i].id, model->events[i].begin_ns, i,
                                                          order_of(&model->events[i])};
    if (made->events != NULL)
        qsort(made->events, made->count, sizeof *made->events, compare_command_events);
    return made->events != NULL;
}

/* Draw an arrow from each event of a command to the command's next event of another kind. */
static void arrows_along_commands(tide_picture *p, const command_events *all)
{
    for (uint64_t i = 1; i < all->count; i++)
        if (all->events[i].id == all->events[i - 1].id && all->events[i].order != all->events[i - 1].order)
            tide_picture_arrow_add(p, all->events[i - 1].event, all->events[i].event);
}

/* Of the command that ended the stall: the event that ended last, but not after the stall. If none ended by
 * then, the first event that began before the stall's end. NULL: the trace has no such event. */
static const command_event *ending_command_event(const tide_picture *p, const command_events *all,
                                                 const tide_trace_event *stall)
{
    const command_event *found = NULL;
    uint64_t from = 0, to = all->count;
    while (from < to) {
        const uint64_t middle = from + (to - from) / 2;
        if (all->events[middle].id < stall->ended_by)
            from = middle + 1;
        else
            to = middle;
    }
    for (; from < all->count && all->events[from].id == stall->ended_by; from++) {
        const uint64_t end_ns = p->model->events[all->events[from].event].end_ns;
        const uint64_t best_ns = found != NULL ? p->model->events[found->event].end_ns : 0;
        if (all->events[from].begin_ns >= stall->end_ns)
            continue;
        if (found == NULL || (end_ns <= stall->end_ns && (end_ns >= best_ns || best_ns > stall->end_ns)))
            found = &all->events[from];
    }
    return found;
}

static bool is_stalled(const tide_trace_event *op, const tide_trace_event *stall)
{
    return op->kind == TIDE_TRACE_OP && op->op == stall->op && op->pass == stall->pass &&
           op->end_ns > stall->end_ns;
}

/* The op that the stall held up: `before`, the last op that had begun before the stall, if it ended after the
 * stall; or else the next op, if no pass begins before it. NULL: the trace has no such op. The search for the
 * next op goes on from *next, which the caller keeps from stall to stall. */
static const tide_trace_event *stalled_op(const tide_trace_model *model, const tide_trace_event *before,
                                          const tide_trace_event *stall, const tide_trace_event **next)
{
    const tide_trace_event *end = model->events + model->event_count;
    if (before != NULL && is_stalled(before, stall))
        return before;
    while (*next < end &&
           (*next <= stall || ((*next)->kind != TIDE_TRACE_OP && (*next)->kind != TIDE_TRACE_PASS)))
        ++*next;
    return *next < end && is_stalled(*next, stall) ? *next : NULL;
}

static void arrows_through_stalls(tide_picture *p, const command_events *all)
{
    const tide_trace_event *before = NULL, *next = p->model->events;
    for (uint64_t i = 0; i < p->model->event_count; i++) {
        const tide_trace_event *event = &p->model->events[i];
        if (event->kind == TIDE_TRACE_OP)
            before = event;
        if (event->kind != TIDE_TRACE_STALL)
            continue;
        const command_event *ended = event->ended_by != 0 ? ending_command_event(p, all, event) : NULL;
        const bool held_up = event->op != TIDE_TRACE_NONE && event->cause != TIDE_STALL_CALLER;
        const tide_trace_event *op = held_up ? stalled_op(p->model, before, event, &next) : NULL;
        if (ended != NULL)
            tide_picture_arrow_add(p, ended->event, i);
        if (op != NULL)
            tide_picture_arrow_add(p, i, number_of(p, op));
    }
}

/* ---- requests ---- */

/* The request to which the event `wait` belongs; NULL: the trace does not have it. Requests never overlap, so
 * the search goes on from *at, which the caller keeps from event to event. */
static const tide_trace_event *request_of(const tide_trace_model *model, const tide_trace_event *wait,
                                          uint64_t *at)
{
    for (; *at < model->event_count; ++*at) {
        const tide_trace_event *request = &model->events[*at];
        if (request->kind != TIDE_TRACE_REQUEST || request->end_ns < wait->begin_ns)
            continue;
        if (request->pass == wait->pass && request->schedule_step == wait->schedule_step &&
            request->begin_ns <= wait->begin_ns)
            return request;
        if (request->begin_ns > wait->begin_ns)
            break;
    }
    return NULL;
}

/* Draw arrows from each request to the fetches that were issued while it lasted. */
static void arrows_from_requests(tide_picture *p)
{
    const tide_trace_model *model = p->model;
    const tide_trace_event **asked = tide_arrays_add(&p->memory, model->chunk_count, sizeof *asked);
    uint64_t at = 0;
    for (uint64_t i = 0; i < model->event_count && asked != NULL; i++) {
        const tide_trace_event *event = &model->events[i];
        if (event->kind == TIDE_TRACE_WAIT)
            asked[event->chunk] = request_of(model, event, &at);
        if (event->kind != TIDE_TRACE_MOVE || event->move != TIDE_TRACE_FETCH || asked[event->chunk] == NULL)
            continue;
        if (event->begin_ns <= asked[event->chunk]->end_ns)
            tide_picture_arrow_add(p, number_of(p, asked[event->chunk]), i);
    }
}

void tide_picture_arrows(tide_picture *p)
{
    command_events all;
    if (command_events_make(p, &all)) {
        arrows_along_commands(p, &all);
        arrows_through_stalls(p, &all);
    }
    arrows_from_requests(p);
    arrows_to_users(p);
}
